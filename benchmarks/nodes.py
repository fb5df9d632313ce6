"""anyk on several machines (cluster ``nodes``) against DistributedDataParallel on gloo, in network namespaces; as root.

    python benchmarks/nodes.py [ROWS] [--nodes 4 8] [--columns star slices] [--rounds 5] [--steps 6]

Machines are namespaces of this one, each with an interface of its own, in each direction limited to 1 Gb/s or not at
all; "loopback" is one machine, on which all ranks use 127.0.0.1. A rank is started on each as by ssh: with RANK,
WORLD_SIZE, MASTER_ADDR and MASTER_PORT, one thread a process. Both sides train the same module, float32, by PyTorch's
AdamW on the same rows, full batch, one partition a rank, and must end with the same loss, which is checked. Columns:
``star``, where vectors meet at rank 0, and ``slices``, where sums, model and optimiser's state lie at the nodes.

All columns and DDP are started once, and take their steps in turn, round after round, while the others wait. A step is
the mean of a round's after the first two; ratios are of the same round, and medians of rounds are printed.

Two cores carry all machines, so the gradient is cheap (a linear model of means of blocks: its cost is to write it), and
a step is also measured without transfer: DDP's as that of a plain module, by all ranks at once, ours as that of the
same run on the cluster ``processes``, where nothing crosses a network (its driver takes the whole AdamW step). The
*communication part* is the step less that. A load of 2 computes twice, which is in both. Beside it: gloo's all-reduce
of one flat vector of the same size, with nothing else to do.

Rows (all by default): ``steps`` a step of frc:load=2 at 1 Gb/s; ``delays`` with exponential delays of 0.5 s, which a
rank of DDP sleeps before it computes (the same draws), on 8 nodes; ``uncoded``; ``loopback``.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import anyk

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from machines import Machines  # type: ignore[import-not-found]

INPUTS, ROWS, BLOCKS = 50, 32, 10  # of the module: inputs, rows of data a rank, parameters
RATE, WARM_UP = 2e-3, 2
SPEED = "1gbit"
COLUMNS = {"star": "", "slices": "nodes"}  # values of the cluster's option ``slices``


@dataclass(frozen=True)
class Task:
    """What the ranks of a side do; ``cluster`` is empty for DDP. A round's first steps are not measured."""

    ranks: int
    size: int  # parameters
    rounds: int
    steps: int  # of a round that are measured
    cluster: str = ""
    spec: str = ""
    slices: str = ""
    delays: str = "none"


class Turns:
    """The first rank's talk with the program that measures; the other ranks say nothing."""

    def __init__(self) -> None:
        self.first = os.environ["RANK"] == "0"

    def end(self, **found: Any) -> None:
        """Tell what was found in a turn, and wait for the next."""
        if self.first:
            print(json.dumps(found), flush=True)
            if not sys.stdin.readline():
                sys.exit("the measuring program has ended")


# ----------------------------------------------------------------------------------------------- what both train


class Means(nn.Module):
    """A linear model whose coefficients are sums of means over blocks: many parameters, and next to nothing to do."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.blocks = nn.ParameterList([torch.zeros(size // BLOCKS // INPUTS, INPUTS) for _ in range(BLOCKS)])

    def forward(self, X: torch.Tensor) -> torch.Tensor:
        coefficients = torch.stack([block.mean(0) for block in self.blocks]).sum(0)
        return X @ coefficients


def data_of(ranks: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(ranks * ROWS, INPUTS, generator=generator)
    return X, X @ torch.randn(INPUTS, generator=generator)


# ----------------------------------------------------------------------------------------------- DDP


def ddp(task: Task) -> None:
    """A rank of DDP."""
    rank, turns = int(os.environ["RANK"]), Turns()
    dist.init_process_group("gloo")
    X, y = (part[rank * ROWS : (rank + 1) * ROWS] for part in data_of(task.ranks))
    whole, wanted = data_of(task.ranks)
    module, twin, flat = Means(task.size), Means(task.size), torch.zeros(task.size)
    trained = DistributedDataParallel(module, gradient_as_bucket_view=True)
    optimizers = {
        trained: torch.optim.AdamW(module.parameters(), lr=RATE),
        twin: torch.optim.AdamW(twin.parameters(), lr=RATE),
    }

    def step(stepped: nn.Module, hold: float = 0.0) -> None:
        time.sleep(hold)
        nn.functional.mse_loss(stepped(X), y).backward()
        optimizers[stepped].step()
        optimizers[stepped].zero_grad(set_to_none=False)

    step(trained)
    turns.end()
    per_round = WARM_UP + task.steps
    holds = anyk.delays.parse(task.delays).draws(0, rank, 1, task.rounds * per_round).reshape(task.rounds, per_round)
    for drawn in holds:
        times: list[float] = []
        alone, reduce = [], []
        for hold in drawn:
            step(trained, float(hold))
            times.append(time.monotonic())
        for _ in range(0 if drawn.any() else task.steps):
            dist.barrier()
            began = time.monotonic()
            step(twin)
            dist.barrier()
            alone.append(time.monotonic() - began)
        for _ in range(0 if drawn.any() else task.steps):
            began = time.monotonic()
            dist.all_reduce(flat)
            dist.barrier()
            reduce.append(time.monotonic() - began)
        with torch.no_grad():
            loss = float(nn.functional.mse_loss(module(whole), wanted))
        turns.end(times=times, alone=alone, reduce=reduce, loss=loss)
    dist.destroy_process_group()


# ----------------------------------------------------------------------------------------------- anyk


class Rounds(anyk.Callback):
    """Ends a turn after the first step and after each round."""

    def __init__(self, task: Task, problem: anyk.problems.TorchProblem) -> None:
        self.task, self.problem, self.turns = task, problem, Turns()
        self.times: list[float] = []

    def on_step(self, info):
        if info.step == 1:
            self.turns.end()
            return
        self.times.append(time.monotonic())
        if len(self.times) == WARM_UP + self.task.steps:
            self.turns.end(times=self.times, loss=self.problem.loss(info.model))
            self.times = []


def ours(task: Task) -> None:
    """A rank of anyk; all but the first leave where the cluster is made."""
    spec = f"{task.cluster}:slices={task.slices}" if task.slices else task.cluster
    cluster = anyk.cluster(spec, workers=task.ranks, delays=task.delays, seed=0)
    X, y = data_of(task.ranks)
    problem = anyk.problems.TorchProblem(Means(task.size), nn.MSELoss(), (X, y))
    anyk.train(
        problem,
        task.spec,
        cluster,
        optimizer=anyk.optimizers.TorchOptimizer("AdamW", lr=RATE),
        steps=1 + task.rounds * (WARM_UP + task.steps),
        evaluate=None,
        callbacks=[Rounds(task, problem)],
    )


# ----------------------------------------------------------------------------------------------- measuring


class Place:
    """Machines for a number of ranks while a ``with`` block lasts; ``loopback``: one machine for all."""

    def __init__(self, ranks: int, *, rate: str | None = None, loopback: bool = False) -> None:
        self.ranks, self.loopback = ranks, loopback
        self.machines = Machines(1 if loopback else ranks, rate=rate)
        self.port = 29500

    def __enter__(self) -> Place:
        self.folder = tempfile.TemporaryDirectory()
        self.machines.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self.machines.__exit__(*exception)
        self.folder.cleanup()

    def start(self, rank: int, command: list[str], **options: Any) -> subprocess.Popen[str]:
        """Start a rank, which meets the others at ``port``."""
        settings = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
        settings |= {"ANYK_SECRET": "benchmark", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        settings |= {
            "RANK": str(rank),
            "WORLD_SIZE": str(self.ranks),
            "MASTER_ADDR": "127.0.0.1" if self.loopback else self.machines.address(0),
            "MASTER_PORT": str(self.port),
            "GLOO_SOCKET_IFNAME": "lo" if self.loopback else "eth0",
        }
        job: subprocess.Popen[str] = self.machines.start(
            0 if self.loopback else rank, command, env=settings, text=True, **options
        )
        return job


class Side:
    """The ranks of DDP, or of anyk, which take turns with others."""

    def __init__(self, place: Place, task: Task) -> None:
        self.task = task
        place.port += 10
        command = [sys.executable, __file__, "rank", json.dumps(asdict(task))]
        self._errors = Path(place.folder.name, str(place.port))
        with self._errors.open("w") as errors:
            self._jobs = [
                place.start(
                    rank,
                    command,
                    stdin=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
                    stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
                    stderr=errors,
                )
                for rank in range(1 if task.cluster == "processes" else task.ranks)
            ]
        self._listen()

    def _listen(self) -> dict[str, Any]:
        pipe = self._jobs[0].stdout
        assert pipe is not None
        line = pipe.readline()
        if not line:
            sys.exit(f"{self.task} failed:\n{self._errors.read_text()[-4000:]}")
        return dict(json.loads(line))

    def _next(self) -> None:
        pipe = self._jobs[0].stdin
        assert pipe is not None
        pipe.write("go\n")
        pipe.flush()

    def turn(self) -> dict[str, Any]:
        """Have the ranks take the steps of a round; return what the first one found."""
        self._next()
        found = self._listen()
        times = found["times"]
        found["window"] = times[-1] - times[WARM_UP - 1]
        found["step"] = found["window"] / self.task.steps
        time.sleep(1 + 2 * found["step"])  # until models and messages that are under way have arrived
        return found

    def end(self) -> None:
        """Let the ranks end."""
        self._next()
        for job in self._jobs:
            job.wait(60)


def rounds_of(place: Place, tasks: dict[str, Task]) -> Iterator[dict[str, dict[str, Any]]]:
    """Have several sides take rounds of steps in turn; yields what each found, round after round."""
    sides = {name: Side(place, task) for name, task in tasks.items()}
    for _ in range(next(iter(tasks.values())).rounds):
        found = {name: side.turn() for name, side in sides.items()}
        check_losses(found)
        yield found
    for side in sides.values():
        side.end()


def check_losses(found: dict[str, dict[str, Any]]) -> None:
    losses = {name: one["loss"] for name, one in found.items()}
    if max(losses.values()) - min(losses.values()) > 1e-3 * max(losses.values()):
        sys.exit(f"the sides did not take the same steps: their losses are {losses}")


# ----------------------------------------------------------------------------------------------- rows


def report(name: str, values: list[float], unit: str, goal: float | None = None) -> None:
    """Print the median and the spread over rounds, and whether the goal (at most) was reached."""
    middle = statistics.median(values)
    spread = f"({min(values):.3g} to {max(values):.3g})"
    judged = "" if goal is None else f"  goal: at most {goal:g}, {'reached' if middle <= goal else 'MISSED'}"
    print(f"  {name:<44} {middle:8.3f} {unit:<3} {spread:<18}{judged}", flush=True)


def heading(text: str) -> None:
    print(f"{text}   [load {os.getloadavg()[0]:.1f}]", flush=True)


def over(ours: list[float], theirs: list[float]) -> list[float]:
    return [a / b for a, b in zip(ours, theirs, strict=True)]


def compare(asked: argparse.Namespace, place: Place, name: str, *, size: int, spec: str, goal: float) -> None:
    """Measure a step without stragglers."""
    heading(f"{name}: {spec}, {size * 4e-6:g} MB, {place.ranks} nodes")
    plain = Task(place.ranks, size, asked.rounds, asked.steps)
    tasks = {"DDP": plain, "processes": replace(plain, cluster="processes", spec=spec)}
    for column in asked.columns:
        tasks[column] = replace(plain, cluster="nodes", spec=spec, slices=COLUMNS[column])
    steps: dict[str, list[float]] = {name: [] for name in tasks}
    parts: dict[str, list[float]] = {name: [] for name in tasks}
    reduce = []
    for found in rounds_of(place, tasks):
        reduce.append(statistics.mean(found["DDP"]["reduce"]))
        for name, one in found.items():
            alone = statistics.mean(one["alone"]) if name == "DDP" else found["processes"]["step"]
            steps[name].append(one["step"])
            parts[name].append(one["step"] - alone)
    report("gloo's all-reduce alone", reduce, "s")
    report("DDP, a step", steps["DDP"], "s")
    report("DDP, communication part", parts["DDP"], "s")
    report("ours on processes, a step", steps["processes"], "s")
    for column in asked.columns:
        report(f"{column}, a step", steps[column], "s")
        report(f"{column}, communication part", parts[column], "s")
        report(f"{column} / DDP, whole step", over(steps[column], steps["DDP"]), "")
        ratios = over(parts[column], parts["DDP"])
        report(f"{column} / DDP, communication part", ratios, "", goal if column == "slices" else None)
        report(f"{column}, communication part / all-reduce", over(parts[column], reduce), "")


def delayed(asked: argparse.Namespace, place: Place, *, size: int, goal: float) -> None:
    """Measure steps under delays: as many to the same loss on both sides."""
    delays, spec = "exp:mean=0.5", "frc:load=2"
    heading(f"delays: {spec}, {size * 4e-6:g} MB, {place.ranks} nodes, {delays}")
    plain = Task(place.ranks, size, asked.rounds, asked.delayed_steps, delays=delays)
    tasks = {"DDP": plain}
    for column in asked.columns:
        tasks[column] = replace(plain, cluster="nodes", spec=spec, slices=COLUMNS[column])
    seconds: dict[str, list[float]] = {name: [] for name in tasks}
    for found in rounds_of(place, tasks):
        for name, one in found.items():
            seconds[name].append(one["window"])
    for name, windows in seconds.items():
        report(f"{name}, {asked.delayed_steps} steps", windows, "s")
    for column in asked.columns:
        ratios = over(seconds[column], seconds["DDP"])
        report(f"{column} / DDP, time to the same loss", ratios, "", goal if column == "slices" else None)


def row_steps(asked: argparse.Namespace) -> None:
    for ranks in asked.nodes:
        with Place(ranks, rate=SPEED) as place:
            compare(asked, place, "1 Gb/s", size=10_000_000, spec="frc:load=2", goal=0.9)


def row_delays(asked: argparse.Namespace) -> None:
    with Place(8, rate=SPEED) as place:
        delayed(asked, place, size=10_000_000, goal=0.58)
        delayed(asked, place, size=2_500_000, goal=0.48)


def row_uncoded(asked: argparse.Namespace) -> None:
    for ranks in asked.nodes:
        with Place(ranks, rate=SPEED) as place:
            compare(asked, place, "1 Gb/s", size=10_000_000, spec="uncoded", goal=1.25)


def row_loopback(asked: argparse.Namespace) -> None:
    for ranks in asked.nodes:
        with Place(ranks, loopback=True) as place:
            compare(asked, place, "loopback", size=10_000_000, spec="frc:load=2", goal=1.6)
            compare(asked, place, "loopback", size=10_000_000, spec="uncoded", goal=2.0)


MEASURED = {"steps": row_steps, "delays": row_delays, "uncoded": row_uncoded, "loopback": row_loopback}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("rows", nargs="*", metavar="ROWS", help=f"of {', '.join(MEASURED)}; all by default")
    options.add_argument("--nodes", nargs="+", type=int, default=[4, 8])
    options.add_argument("--columns", nargs="+", choices=COLUMNS, default=list(COLUMNS))
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--steps", type=int, default=6, help="steps of a round")
    options.add_argument("--delayed-steps", type=int, default=20, help="steps of a round with delays")
    asked = options.parse_args()
    if unknown := [row for row in asked.rows if row not in MEASURED]:
        options.error(f"no rows {unknown}; there are {', '.join(MEASURED)}")
    for number in (signal.SIGTERM, signal.SIGINT):  # also where the latter is ignored, as in the background of a script
        signal.signal(number, lambda *_: sys.exit(1))  # leaves the blocks that end machines
    for row in asked.rows or MEASURED:
        MEASURED[row](asked)


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1:2] == ["rank"]:
        task = Task(**json.loads(sys.argv[2]))
        (ours if task.cluster else ddp)(task)
    else:
        main()
