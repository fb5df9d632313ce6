"""anyk on several machines (cluster ``nodes``) against DistributedDataParallel on gloo, in network namespaces; as root.

    python benchmarks/nodes.py [ROWS] [--nodes 4 8] [--columns star slices] [--rounds 3] [--steps 8]

Machines are namespaces of this one, each with an interface of its own, in each direction limited to 1 Gb/s or not at
all; "loopback" is one machine, on which all ranks use 127.0.0.1. A rank is started on each as by ssh: with RANK,
WORLD_SIZE, MASTER_ADDR and MASTER_PORT, one thread a process. Both sides train the same module, float32, by PyTorch's
AdamW on the same rows, full batch, one partition a rank, and must end with the same loss, which is checked. Columns:
``star``, where vectors meet at rank 0, and ``slices``, where sums, model and optimiser's state lie at the nodes. All
columns and DDP run in turn, round after round, in one program; ratios are of the same round.

Two cores carry all machines, so the gradient is cheap (a linear model of means of blocks: its cost is to write it), and
a step is also measured without transfer: DDP's under ``no_sync``, from barrier to barrier, ours as the same run on the
cluster ``processes``, where nothing crosses a network (its driver takes the whole AdamW step). The *communication
part* is the step less that. A load of 2 computes twice, which is in both. Beside it: gloo's all-reduce of one flat
vector of the same size, with nothing else to do.

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
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from inspect import signature
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import anyk
from anyk.clusters import Nodes

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from machines import Machines  # type: ignore[import-not-found]

INPUTS, ROWS, BLOCKS = 50, 32, 10  # of the module: inputs, rows of data a rank, parameters
RATE, WARM_UP = 0.02, 2
SPEED = "1gbit"
COLUMNS = {"star": "", "slices": "nodes"}  # values of the cluster's option ``slices``
NO_SLICES = "slices" not in signature(Nodes).parameters


@dataclass(frozen=True)
class Task:
    """What the ranks of a job do; ``side``: ddp, nodes or processes."""

    side: str
    ranks: int
    size: int  # parameters
    steps: int
    spec: str = ""
    slices: str = ""
    delays: str = "none"


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


def ddp(task: Task) -> dict[str, Any]:
    """A rank of DDP."""
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo")
    X, y = (part[rank * ROWS : (rank + 1) * ROWS] for part in data_of(task.ranks))
    module = Means(task.size)
    trained = DistributedDataParallel(module, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(module.parameters(), lr=RATE)
    holds = anyk.delays.parse(task.delays).draws(0, rank, 0, task.steps)

    def step(hold: float = 0.0) -> None:
        time.sleep(hold)
        nn.functional.mse_loss(trained(X), y).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)

    dist.barrier()
    times = [time.monotonic()]
    for hold in holds:
        step(float(hold))
        times.append(time.monotonic())
    whole, wanted = data_of(task.ranks)
    with torch.no_grad():
        loss = float(nn.functional.mse_loss(module(whole), wanted))
    found: dict[str, Any] = {"times": times, "loss": loss, "alone": [], "reduce": []}
    flat = torch.ones(task.size)
    for _ in range(0 if task.delays != "none" else task.steps):
        dist.barrier()
        began = time.monotonic()
        with trained.no_sync():
            step()
        dist.barrier()
        middle = time.monotonic()
        dist.all_reduce(flat)
        dist.barrier()
        found["alone"].append(middle - began)
        found["reduce"].append(time.monotonic() - middle)
    dist.destroy_process_group()
    return found


# ----------------------------------------------------------------------------------------------- anyk


class Clock(anyk.Callback):
    """Notes when steps were taken."""

    def __init__(self) -> None:
        self.times = [time.monotonic()]

    def on_begin(self, info):
        self.times = [time.monotonic()]

    def on_step(self, info):
        self.times.append(time.monotonic())


def ours(task: Task) -> dict[str, Any]:
    """A rank of anyk; all but the first leave where the cluster is made."""
    spec = f"{task.side}:slices={task.slices}" if task.slices else task.side
    cluster = anyk.cluster(spec, workers=task.ranks, delays=task.delays, seed=0)
    X, y = data_of(task.ranks)
    problem = anyk.problems.TorchProblem(Means(task.size), nn.MSELoss(), (X, y))
    optimizer = anyk.optimizers.TorchOptimizer("AdamW", lr=RATE)
    clock = Clock()
    run = anyk.train(
        problem, task.spec, cluster, optimizer=optimizer, steps=task.steps, evaluate=None, callbacks=[clock]
    )
    return {"times": clock.times, "loss": problem.loss(run.model)}


# ----------------------------------------------------------------------------------------------- jobs


class Jobs:
    """Starts jobs on machines of a number of ranks, while a ``with`` block lasts."""

    def __init__(self, ranks: int, *, rate: str | None = None, loopback: bool = False) -> None:
        self.machines = Machines(1 if loopback else ranks, rate=rate)
        self.loopback = loopback
        self._port = 29500

    def __enter__(self) -> Jobs:
        self.machines.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self.machines.__exit__(*exception)

    def run(self, task: Task) -> dict[str, Any]:
        """Return what the first rank of a job has found."""
        self._port += 10
        settings = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
        settings |= {"ANYK_SECRET": "benchmark", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        settings |= {"GLOO_SOCKET_IFNAME": "lo" if self.loopback else "eth0"}
        if task.side != "processes":
            master = "127.0.0.1" if self.loopback else self.machines.address(0)
            settings |= {"WORLD_SIZE": str(task.ranks), "MASTER_ADDR": master, "MASTER_PORT": str(self._port)}
        command = [sys.executable, __file__, "rank", json.dumps(asdict(task))]
        with tempfile.TemporaryFile("w+") as said:
            programs = []
            for rank in reversed(range(1 if task.side == "processes" else task.ranks)):
                programs.append(
                    self.machines.start(
                        0 if self.loopback else rank,
                        command,
                        env=settings | {"RANK": str(rank)},
                        stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
                        stderr=said,
                        text=True,
                    )
                )
            printed, _ = programs[-1].communicate()
            if programs[-1].returncode == 0:
                for program in programs:
                    program.wait(60)
                return dict(json.loads(printed.splitlines()[-1]))
            said.seek(0)
            sys.exit(f"{task} failed:\n{said.read()[-4000:]}")


def step_times(found: dict[str, Any]) -> list[float]:
    """Seconds of each step of a job after the first ones."""
    times = found["times"]
    return [after - before for before, after in zip(times[WARM_UP:-1], times[WARM_UP + 1 :], strict=True)]


def step_of(found: dict[str, Any]) -> float:
    return statistics.median(step_times(found))


def check_losses(found: Iterable[dict[str, Any]]) -> None:
    losses = [one["loss"] for one in found]
    if max(losses) - min(losses) > 1e-3 * max(losses):
        sys.exit(f"the jobs did not take the same steps: they end with losses of {losses}")


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


def columns_of(asked: argparse.Namespace) -> list[str]:
    """The columns to measure, after a line for each that is not available."""
    missing = [column for column in asked.columns if COLUMNS[column] and NO_SLICES]
    for column in missing:
        print(f"  {column}: not available")
    return [column for column in asked.columns if column not in missing]


def compare(asked: argparse.Namespace, jobs: Jobs, name: str, *, ranks: int, size: int, spec: str, goal: float) -> None:
    """Measure a step without stragglers."""
    heading(f"{name}: {spec}, {size * 4e-6:g} MB, {ranks} nodes")
    columns = columns_of(asked)
    ddp_step, ddp_part, reduce, alone = [], [], [], []
    steps: dict[str, list[float]] = {column: [] for column in columns}
    for _ in range(asked.rounds):
        theirs = jobs.run(Task("ddp", ranks, size, asked.steps + WARM_UP))
        ddp_step.append(step_of(theirs))
        ddp_part.append(ddp_step[-1] - statistics.median(theirs["alone"]))
        reduce.append(statistics.median(theirs["reduce"]))
        bare = jobs.run(Task("processes", ranks, size, asked.steps + WARM_UP, spec))
        alone.append(step_of(bare))
        found = {
            column: jobs.run(Task("nodes", ranks, size, asked.steps + WARM_UP, spec, COLUMNS[column]))
            for column in columns
        }
        check_losses([theirs, bare, *found.values()])
        for column in columns:
            steps[column].append(step_of(found[column]))
    report("gloo's all-reduce alone", reduce, "s")
    report("DDP, a step", ddp_step, "s")
    report("DDP, communication part", ddp_part, "s")
    report("ours on processes, a step", alone, "s")
    for column in columns:
        parts = [step - bare for step, bare in zip(steps[column], alone, strict=True)]
        report(f"{column}, a step", steps[column], "s")
        report(f"{column}, communication part", parts, "s")
        report(f"{column} / DDP, whole step", over(steps[column], ddp_step), "")
        report(f"{column} / DDP, communication part", over(parts, ddp_part), "", goal if column == "slices" else None)
        report(f"{column}, communication part / all-reduce", over(parts, reduce), "")


def delayed(asked: argparse.Namespace, jobs: Jobs, *, size: int, goal: float, ranks: int = 8) -> None:
    """Measure steps under delays: as many to the same loss on both sides."""
    delays, spec = "exp:mean=0.5", "frc:load=2"
    heading(f"delays: {spec}, {size * 4e-6:g} MB, {ranks} nodes, {delays}")
    columns = columns_of(asked)
    seconds: dict[str, list[float]] = {column: [] for column in ("DDP", *columns)}
    for _ in range(asked.rounds):
        steps = asked.delayed_steps + WARM_UP
        found = {"DDP": jobs.run(Task("ddp", ranks, size, steps, delays=delays))}
        for column in columns:
            found[column] = jobs.run(Task("nodes", ranks, size, steps, spec, COLUMNS[column], delays))
        check_losses(found.values())
        for column, one in found.items():
            seconds[column].append(sum(step_times(one)))
    for column, times in seconds.items():
        report(f"{column}, {asked.delayed_steps} steps", times, "s")
    for column in columns:
        ratios = over(seconds[column], seconds["DDP"])
        report(f"{column} / DDP, time to the same loss", ratios, "", goal if column == "slices" else None)


def row_steps(asked: argparse.Namespace) -> None:
    for ranks in asked.nodes:
        with Jobs(ranks, rate=SPEED) as jobs:
            compare(asked, jobs, "1 Gb/s", ranks=ranks, size=10_000_000, spec="frc:load=2", goal=0.9)


def row_delays(asked: argparse.Namespace) -> None:
    with Jobs(8, rate=SPEED) as jobs:
        delayed(asked, jobs, size=10_000_000, goal=0.58)
        delayed(asked, jobs, size=2_500_000, goal=0.48)


def row_uncoded(asked: argparse.Namespace) -> None:
    for ranks in asked.nodes:
        with Jobs(ranks, rate=SPEED) as jobs:
            compare(asked, jobs, "1 Gb/s", ranks=ranks, size=10_000_000, spec="uncoded", goal=1.25)


def row_loopback(asked: argparse.Namespace) -> None:
    for ranks in asked.nodes:
        with Jobs(ranks, loopback=True) as jobs:
            compare(asked, jobs, "loopback", ranks=ranks, size=10_000_000, spec="frc:load=2", goal=1.6)
            compare(asked, jobs, "loopback", ranks=ranks, size=10_000_000, spec="uncoded", goal=2.0)


MEASURED = {"steps": row_steps, "delays": row_delays, "uncoded": row_uncoded, "loopback": row_loopback}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("rows", nargs="*", metavar="ROWS", help=f"of {', '.join(MEASURED)}; all by default")
    options.add_argument("--nodes", nargs="+", type=int, default=[4, 8])
    options.add_argument("--columns", nargs="+", choices=COLUMNS, default=list(COLUMNS))
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--steps", type=int, default=8, help="steps of each job")
    options.add_argument("--delayed-steps", type=int, default=30, help="steps of each job with delays")
    asked = options.parse_args()
    if unknown := [row for row in asked.rows if row not in MEASURED]:
        options.error(f"no rows {unknown}; there are {', '.join(MEASURED)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # leaves the blocks that end machines, as Ctrl-C does
    for row in asked.rows or MEASURED:
        MEASURED[row](asked)


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1:2] == ["rank"]:
        task = Task(**json.loads(sys.argv[2]))
        result = json.dumps(ddp(task) if task.side == "ddp" else ours(task))
        if os.environ["RANK"] == "0":
            print(result, flush=True)
    else:
        main()
