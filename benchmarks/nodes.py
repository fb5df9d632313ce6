"""anyk on several machines (cluster ``nodes``) against DistributedDataParallel on gloo, in network namespaces; as root.

    python benchmarks/nodes.py [ROWS] [--nodes 4 8] [--columns star slices] [--rounds 5] [--steps 6] [--network 1gbit]

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
*communication part* is the step less that; where it is not positive in each round, its ratio says nothing and is not
judged. A load of 2 computes twice, which is in both. Beside it: gloo's all-reduce
of one flat vector of the same size, with nothing else to do.

Rows (all by default):

- ``steps``: a step of frc:load=2 at 1 Gb/s, or ``--network``, and how many vectors the driver sends and receives in it
- ``delays``: with exponential delays of 0.5 s, which a rank of DDP sleeps before it computes (the same draws), 8 nodes
- ``uncoded``: as ``steps``
- ``loopback``: as ``steps``, both strategies
- ``stop``: bytes that still arrive on an interface after a read of 40 MB was stopped
- ``faults``: the slowest step of 4 nodes and 2.4 MB while a worker or a machine is killed, a machine is stopped for
  10 s, or its link is down for 10 s; the loss must be that of ``processes``
- ``slow``: one of 4 nodes computes and sends three times slower (mean delay 0.3 s instead of 0.1 s, a third of 1 Gb/s)
- ``ray``: a step of frc:load=2 at 1 Gb/s in slices on a Ray cluster of the same machines, over one on ``nodes``
- ``memory``: 1e8 parameters on 4 nodes of one machine: memory of all processes, at most during steps, over DDP's; it is
  that of the whole computer less what was in use before, so that nothing else may run

Whether other programs disturb the figures is seen from the load, and from the spread. As root they may be given way to:
``nice -n -10 python benchmarks/nodes.py``.
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
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from inspect import signature
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import anyk
from anyk.clusters import Nodes
from anyk.clusters.nodes.carrier import Carrier
from anyk.clusters.nodes.wire import Offered

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from machines import Machines  # type: ignore[import-not-found]

INPUTS, ROWS, BLOCKS = 50, 32, 10  # of the module: inputs, rows of data a rank, parameters
RATE, WARM_UP = 2e-3, 2
SPEED = "1gbit"
RAY_PORT = 6379
RAY_SETTINGS = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "ab" * 32, "RAY_worker_niceness": "0"}
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
    copies: int = 1
    alone: bool = False  # for DDP: measure steps without transfer, and all-reduces, after those of a round


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
    module, twin = Means(task.size), Means(task.size if task.alone else 1000)
    flat = torch.zeros(task.size if task.alone else 1)
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
        for _ in range(task.steps if task.alone else 0):
            dist.barrier()
            began = time.monotonic()
            step(twin)
            dist.barrier()
            alone.append(time.monotonic() - began)
        for _ in range(task.steps if task.alone else 0):
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
        self.moved = 0  # bytes, before the steps that are measured

    def bytes_of(self, info):
        """Bytes of vectors that the driver has sent and received."""
        cluster = info.driver.cluster
        if not isinstance(cluster, Nodes):
            return 0
        carrier = cluster._hub.carrier
        return carrier.offers.sent + carrier.reads.received

    def on_step(self, info):
        if info.step == 1:
            self.turns.end()
            return
        self.times.append(time.monotonic())
        if len(self.times) == WARM_UP:
            self.moved = self.bytes_of(info)
        elif len(self.times) == WARM_UP + self.task.steps:
            moved = self.bytes_of(info) - self.moved
            self.turns.end(times=self.times, moved=moved, loss=self.problem.loss(info.model))
            self.times = []


def ours(task: Task) -> None:
    """A rank of anyk; all but the first leave where the cluster is made."""
    separator = "," if ":" in task.cluster else ":"
    spec = f"{task.cluster}{separator}slices={task.slices}" if task.slices else task.cluster
    spec += f",copies={task.copies}" if task.copies > 1 else ""
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
                for rank in range(task.ranks if task.cluster in ("", "nodes") else 1)
            ]
        self._listen()

    def _listen(self) -> dict[str, Any]:
        pipe = self._jobs[0].stdout
        assert pipe is not None
        line = pipe.readline()
        if not line:
            sys.exit(f"{self.task} failed:\n{self._errors.read_text()[-4000:]}")
        return dict(json.loads(line))

    def begin(self) -> None:
        """Have the ranks take the steps of a round, or end after the last."""
        pipe = self._jobs[0].stdin
        assert pipe is not None
        pipe.write("go\n")
        pipe.flush()

    def turn(self) -> dict[str, Any]:
        """Have the ranks take the steps of a round; return what the first one found."""
        self.begin()
        found = self.finish()
        time.sleep(1 + 2 * found["step"])  # until models and messages that are under way have arrived
        return found

    def finish(self) -> dict[str, Any]:
        """Return what the first rank found in a round."""
        found = self._listen()
        times = found["times"]
        found["window"] = times[-1] - times[WARM_UP - 1]
        found["step"] = found["window"] / self.task.steps
        return found

    def end(self) -> None:
        """Let the ranks end."""
        self.begin()
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
    plain = Task(place.ranks, size, asked.rounds, asked.steps, alone=True)
    tasks = {"DDP": plain, "processes": replace(plain, cluster="processes", spec=spec)}
    for column in asked.columns:
        tasks[column] = replace(plain, cluster="nodes", spec=spec, slices=COLUMNS[column])
    steps: dict[str, list[float]] = {name: [] for name in tasks}
    moved: dict[str, list[float]] = {name: [] for name in tasks}
    parts: dict[str, list[float]] = {name: [] for name in tasks}
    reduce = []
    for found in rounds_of(place, tasks):
        reduce.append(statistics.mean(found["DDP"]["reduce"]))
        for name, one in found.items():
            alone = statistics.mean(one["alone"]) if name == "DDP" else found["processes"]["step"]
            steps[name].append(one["step"])
            parts[name].append(one["step"] - alone)
            moved[name].append(one.get("moved", 0) / 4 / size / asked.steps)
    report("gloo's all-reduce alone", reduce, "s")
    report("DDP, a step", steps["DDP"], "s")
    report("DDP, communication part", parts["DDP"], "s")
    report("ours on processes, a step", steps["processes"], "s")
    for column in asked.columns:
        report(f"{column}, a step", steps[column], "s")
        report(f"{column}, communication part", parts[column], "s")
        report(f"{column} / DDP, whole step", over(steps[column], steps["DDP"]), "")
        ratios = over(parts[column], parts["DDP"])
        certain = min(*parts[column], *parts["DDP"]) > 0  # else a part, a difference, is smaller than its error
        report(f"{column} / DDP, communication part", ratios, "", goal if column == "slices" and certain else None)
        if not certain:
            print("    not judged: in some round a communication part came out negative")
        report(f"{column}, communication part / all-reduce", over(parts[column], reduce), "")
        report(f"{column}, vectors through the driver", moved[column], "", 0 if column == "slices" else None)


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
        with Place(ranks, rate=asked.network) as place:
            compare(asked, place, asked.network, size=10_000_000, spec="frc:load=2", goal=0.9)


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


def row_stop(asked: argparse.Namespace) -> None:
    heading("bytes after a stop, of 40 MB at 1 Gb/s")
    arrived = []
    with Place(2, rate=SPEED) as place:
        for _ in range(asked.rounds):
            options: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            program = [sys.executable, __file__]
            offering = place.start(0, [*program, "offer", place.machines.address(0)], **options)
            reading = place.start(1, [*program, "read", place.machines.address(1)], **options)
            assert offering.stdout is not None
            printed, _ = reading.communicate(offering.stdout.readline())
            offering.communicate("")
            arrived.append(int(printed) / 1e6)
    report("MB on the interface after the stop", arrived, "MB", 2.2)


def offer(host: str) -> None:
    """Offer 40 MB until standard input ends."""
    carrier = Carrier(host)
    carrier.start()
    offered = carrier.offer(memoryview(bytes(40_000_000)))
    digests = [digest.hex() for digest in offered.digests]
    print(json.dumps([carrier.address, offered.key.hex(), offered.size, digests]), flush=True)
    sys.stdin.read()
    carrier.end()


def read(host: str) -> None:
    """Read a third of what is offered, stop, and print the bytes that still arrive."""
    address, key, size, digests = json.loads(sys.stdin.readline())
    carrier = Carrier(host)
    carrier.start()
    offered = Offered(bytes.fromhex(key), size, tuple(bytes.fromhex(digest) for digest in digests))
    carrier.read(1, memoryview(bytearray(size)), offered, [address])
    while carrier.reads.received < size / 3:
        time.sleep(1e-3)
    carrier.stop(1)
    before = received_bytes()
    time.sleep(2)
    print(received_bytes() - before, flush=True)
    carrier.end()


def received_bytes() -> int:
    """Bytes that this namespace's interface has received."""
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == "eth0":
            return int(numbers.split()[0])
    raise RuntimeError("there is no eth0")


def processes_of(machines: Machines, machine: int) -> dict[int, psutil.Process]:
    """The processes of a machine, but not those that hold it, by their numbers on this one."""
    inside = machines._inside(machines._holders[machine].pid)
    space = Path(f"/proc/{inside}/ns/pid").stat().st_ino
    found = {}
    for process in psutil.process_iter():
        with suppress(OSError):
            if process.pid != inside and Path(f"/proc/{process.pid}/ns/pid").stat().st_ino == space:
                found[process.pid] = process
    return found


def kill_worker(machines: Machines) -> None:
    """Kill a worker of the last machine: a process below the helper program, which is below the agent."""
    for process in processes_of(machines, machines.count - 1).values():
        parents = [parent for parent in process.parents() if "python" in parent.name()]
        if len(parents) >= 3:  # of them, one is this program
            process.kill()
            return
    raise RuntimeError("no worker was found")


def kill_machine(machines: Machines) -> None:
    machines.kill(machines.count - 1)


def freeze_machine(machines: Machines) -> None:
    frozen = processes_of(machines, machines.count - 1).values()
    for process in frozen:
        process.suspend()
    time.sleep(10)
    for process in frozen:
        process.resume()
        parent = process.parent()
        if parent is not None and parent.name() == "nsenter":  # which has stopped itself with its child
            parent.resume()


def cut_link(machines: Machines) -> None:
    machines.link(machines.count - 1, up=False)
    time.sleep(10)
    machines.link(machines.count - 1, up=True)


FAULTS = {
    "nothing": lambda machines: None,
    "a worker is killed": kill_worker,
    "a machine is stopped for 10 s": freeze_machine,
    "a link is down for 10 s": cut_link,
    "a machine is killed": kill_machine,
}


def row_faults(asked: argparse.Namespace) -> None:
    size, steps = 600_000, 120  # so that each node holds a slice
    plain = Task(4, size, 1, steps, cluster="nodes", spec="frc:load=2", delays="exp:mean=0.3")
    heading(f"faults: frc:load=2, {size * 4e-6:g} MB, 4 nodes, {plain.delays}, {steps} steps")
    columns = {"star": (plain, 2.0), "slices, copies=2": (replace(plain, slices="nodes", copies=2), 4.0)}
    if "copies" not in signature(Nodes).parameters:
        print("  slices, copies=2: not available")
        del columns["slices, copies=2"]
    with Place(1) as place:
        loss = Side(place, replace(plain, cluster="processes", delays="none")).turn()["loss"]
    for name, (task, goal) in columns.items():
        for fault, inject in FAULTS.items():
            with Place(4, rate=SPEED) as place:
                side = Side(place, task)
                side.begin()
                time.sleep(3)
                inject(place.machines)
                found = side.finish()
            times = found["times"]
            slowest = max(after - before for before, after in pairwise(times))
            same = "the same loss" if found["loss"] == loss else f"ANOTHER LOSS, {found['loss']} instead of {loss}"
            report(f"{name}: {fault}, slowest step", [slowest], "s", goal)
            print(f"    {same}; the steps took {times[-1] - times[0]:.1f} s")


def row_slow(asked: argparse.Namespace) -> None:
    size, ranks, spec = 10_000_000, 4, "frc:load=2"
    for name, means, rate in (
        ("all alike", "0.1", SPEED),
        ("one of 4 three times slower", "0.1/0.1/0.1/0.3", "333mbit"),
    ):
        heading(f"slow: {spec}, {size * 4e-6:g} MB, {ranks} nodes, {name}")
        plain = Task(ranks, size, asked.rounds, asked.steps, delays=f"hetero:means={means}")
        tasks = {"DDP": plain}
        for column in asked.columns:
            tasks[column] = replace(plain, cluster="nodes", spec=spec, slices=COLUMNS[column])
        steps: dict[str, list[float]] = {name: [] for name in tasks}
        with Place(ranks, rate=SPEED) as place:
            place.machines.limit(ranks - 1, rate)
            for found in rounds_of(place, tasks):
                for side, one in found.items():
                    steps[side].append(one["step"])
        for side, seconds in steps.items():
            report(f"{side}, a step", seconds, "s")
        for column in asked.columns:
            report(f"{column} / DDP", over(steps[column], steps["DDP"]), "")


def row_ray(asked: argparse.Namespace) -> None:
    for ranks in asked.nodes:
        with Place(ranks, rate=SPEED) as place:
            start_ray(place.machines)
            for size in (2_500_000, 10_000_000):
                heading(f"Ray: frc:load=2 in slices, {size * 4e-6:g} MB, {ranks} nodes")
                plain = Task(ranks, size, asked.rounds, asked.steps, spec="frc:load=2", slices="nodes")
                ray = f"ray:address={place.machines.address(0)}:{RAY_PORT}"
                tasks = {"nodes": replace(plain, cluster="nodes"), "ray": replace(plain, cluster=ray)}
                steps: dict[str, list[float]] = {name: [] for name in tasks}
                for found in rounds_of(place, tasks):
                    for name, one in found.items():
                        steps[name].append(one["step"])
                for name, values in steps.items():
                    report(f"{name}, a step", values, "s")
                report("ray / nodes, a step", over(steps["ray"], steps["nodes"]), "", 1.5)


def start_ray(machines: Machines) -> None:
    """Start a Ray cluster in which every machine has room for one worker; it ends with the machines."""
    command = [str(Path(sys.executable).with_name("ray")), "start", "--num-cpus=1", "--disable-usage-stats"]
    command += ["--object-store-memory=600000000"]
    threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    os.environ.update(RAY_SETTINGS)  # which the ranks inherit
    head = f"{machines.address(0)}:{RAY_PORT}"
    for machine in range(machines.count):
        joining = [f"--address={head}"] if machine else ["--head", f"--port={RAY_PORT}", "--include-dashboard=false"]
        own = f"--node-ip-address={machines.address(machine)}"
        machines.run(machine, [*command, *joining, own], env=os.environ | threads)


def row_memory(asked: argparse.Namespace) -> None:
    size, ranks = 100_000_000, 4
    heading(f"memory: frc:load=2, {size:.0e} parameters, {ranks} nodes on one machine")
    plain = Task(ranks, size, 1, 3)
    tasks = {"DDP": plain}
    for column in asked.columns:
        tasks[column] = replace(plain, cluster="nodes", spec="frc:load=2", slices=COLUMNS[column])
    most = {}
    for name, task in tasks.items():
        with Place(ranks, loopback=True) as place, ThreadPoolExecutor(1) as pool:
            before = memory_in_use()
            side = Side(place, task)
            side.begin()
            finishing, found = pool.submit(side.finish), []
            while not finishing.done():
                found.append(memory_in_use() - before)
                time.sleep(0.01)
            finishing.result()
        most[name] = max(found) / 1e9
        report(f"{name}, memory of all processes", [most[name]], "GB")
    for column in asked.columns:
        report(f"{column} / DDP", [most[column] / most["DDP"]], "", 0.8 if column == "slices" else None)


def memory_in_use() -> int:
    """Bytes that all processes of this computer take, without files; what several share is counted once.

    The kernel counts them as it gives them, so that short peaks are seen: to add up what each process takes, it would
    look at all of its pages, for half a second.
    """
    lines = Path("/proc/meminfo").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(("AnonPages:", "Shmem:")))


MEASURED = {
    "steps": row_steps,
    "delays": row_delays,
    "uncoded": row_uncoded,
    "loopback": row_loopback,
    "stop": row_stop,
    "faults": row_faults,
    "slow": row_slow,
    "ray": row_ray,
    "memory": row_memory,
}


ENDING = (signal.SIGTERM, signal.SIGINT)


def leave(*_: object) -> None:
    """Leave the blocks that end machines; a second signal, as ``timeout`` sends, must not interrupt that."""
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)
    sys.exit(1)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("rows", nargs="*", metavar="ROWS", help=f"of {', '.join(MEASURED)}; all by default")
    options.add_argument("--nodes", nargs="+", type=int, default=[4, 8])
    options.add_argument("--columns", nargs="+", choices=COLUMNS, default=list(COLUMNS))
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument(
        "--network", default=SPEED, metavar="SPEED", help="speed of the links of row steps, as tc(8) writes it"
    )
    options.add_argument("--steps", type=int, default=6, help="steps of a round")
    options.add_argument("--delayed-steps", type=int, default=20, help="steps of a round with delays")
    asked = options.parse_args()
    if unknown := [row for row in asked.rows if row not in MEASURED]:
        options.error(f"no rows {unknown}; there are {', '.join(MEASURED)}")
    for number in ENDING:  # also where the latter is ignored, as in the background of a script
        signal.signal(number, leave)
    for row in asked.rows or MEASURED:
        MEASURED[row](asked)


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1:2] == ["rank"]:
        task = Task(**json.loads(sys.argv[2]))
        (ours if task.cluster else ddp)(task)
    elif sys.argv[1:2] in (["offer"], ["read"]):
        (offer if sys.argv[1] == "offer" else read)(sys.argv[2])
    else:
        main()
