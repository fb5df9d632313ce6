"""Models of 1e7 parameters and more on 4 processes: private memory of the driver, and a step beside PyTorch's DDP.

    python benchmarks/large.py memory
    python benchmarks/large.py steps

``memory``: a run of each strategy in a process of its own, trained by AdamW of PyTorch. What is counted is the driver's
private memory (RssAnon), the peak above what it had before the module was made, in vectors of the model, without the
optimiser's state; shared memory, where models and messages lie, is not in it. The vectors of the user's own module and
of the problem's are. Beside it: the most that driver, workers and shared memory take together from the run's beginning
on, above what a small run takes, and what the run said that it needs. ``steps``: a step without stragglers, side by
side with DistributedDataParallel (gloo), the same module, mini-batches of the same size and the same optimiser, one
thread a process; the driver has all cores.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from common import show
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import anyk
from anyk.runs.callbacks import Callback

WORKERS, BATCH, INPUTS, WARM_UP = 4, 8, 1000, 3
STRATEGIES = (
    "uncoded",
    "cyclic:stragglers=1",
    "k-sync:k=3",
    "async",
    "pasgd:tau=2",
    "diloco:tau=2",
    "anytime:deadline=2,parts=2,batch=8",
)


def network(parameters):
    """Of about so many parameters, two thirds of them in one tensor, as in models with a large embedding."""
    torch.manual_seed(0)
    hidden = parameters // INPUTS * 2 // 3
    return nn.Sequential(nn.Linear(INPUTS, hidden), nn.ReLU(), nn.Linear(hidden, INPUTS // 2))


def problem_of(parameters, samples):
    X, y = torch.randn(samples, INPUTS), torch.randint(0, INPUTS // 2, (samples,))
    return anyk.problems.TorchProblem(network(parameters), nn.CrossEntropyLoss(), (X, y), held_out=(X[:32], y[:32]))


# ----------------------------------------------------------------------------------------------- memory


def private(pid):
    """Bytes of a process's memory that are its own; 0 of one that has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:"))


def below(pid):
    """The processes that one has started, and those that they have."""
    try:
        own = [
            int(one) for task in Path(f"/proc/{pid}/task").iterdir() for one in (task / "children").read_text().split()
        ]
    except OSError:
        return []
    return [one for child in own for one in (child, *below(child))]


def shared(pid):
    """Bytes of the memory without a name that a process shares with its workers."""
    found = {}  # by file: each has several descriptors
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            if "memfd:anyk" in str(link.readlink()):
                found[link.stat().st_ino] = link.stat().st_blocks * 512
        except OSError:
            continue
    return sum(found.values())


class Phases(Callback):
    """Says when a run's phases begin, what it needs and what its optimiser keeps, by lines that the measuring process
    reads.
    """

    def on_begin(self, info):
        self.driver = info.driver
        print(f"need {info.driver.need.total}\nphase steps", flush=True)

    def on_end(self, info):
        state = self.driver.versions.optimizer_states("model")
        print(f"state {sum(vector.nbytes for vector in state.values())}\nphase result", flush=True)


def train(spec, parameters, steps, folder):
    """A run, in a process that is watched."""
    small = problem_of(10_000, 64)  # a run takes some memory whatever the model's size
    cluster = anyk.cluster("processes", workers=WORKERS)
    optimizer = anyk.optimizers.TorchOptimizer("AdamW", lr=1e-4)
    print("phase small", flush=True)
    anyk.train(small, spec, cluster, optimizer=optimizer, steps=steps, out=f"{folder}-small").close()
    print("phase ready", flush=True)
    sys.stdin.readline()
    problem = problem_of(parameters, 64)
    print(f"size {problem.dimension * problem.dtype.itemsize}", flush=True)
    cluster = anyk.cluster("processes", workers=WORKERS)
    run = anyk.train(
        problem, spec, cluster, optimizer=optimizer, steps=steps, callbacks=[Phases()], out=folder, checkpoint_every=1.0
    )
    print("phase kept", flush=True)
    time.sleep(0.5)
    print(f"done {run.steps}", flush=True)


def watched(spec, asked):
    """Vectors in the driver's private memory at most in each phase of a run; all vectors, and those foretold."""
    with tempfile.TemporaryDirectory() as home:
        command = [sys.executable, __file__, "train", "--strategies", spec, "--parameters", f"{asked.parameters[0]:g}"]
        command += ["--steps", str(asked.steps), "--out", f"{home}/run"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            os.set_blocking(process.stdout.fileno(), False)
            said, most, together = {"phase": ""}, {}, {}
            while process.poll() is None:
                for line in (process.stdout.read() or b"").decode().splitlines():
                    kind, value = line.split()
                    said[kind] = value if kind == "phase" else int(value)
                    if line == "phase ready":
                        before = private(process.pid)
                        process.stdin.write(b"go\n")
                        process.stdin.flush()
                phase, own = said["phase"], private(process.pid)
                most[phase] = max(most.get(phase, 0), own)
                everyone = own + shared(process.pid) + sum(map(private, below(process.pid)))
                together[phase] = max(together.get(phase, 0), everyone)
                time.sleep(0.002)
            if process.returncode:
                sys.exit(f"the run of {spec} failed")
    size = said["size"]
    vectors = {
        phase: (most[phase] - before - said["state"] * (phase != "ready")) / size
        for phase in ("ready", "steps", "kept")
    }
    # at the run's beginning the module and the problem's copy of it are there already
    return vectors | {"all": (together["steps"] - together["small"]) / size - 2, "foretold": said["need"] / size}


def memory(asked):
    print("vectors of the model in the driver's private memory, without the optimiser's")
    for spec in asked.strategies:
        found = watched(spec, asked)
        print(f"{spec:16}", "  ".join(f"{phase} {vectors:5.1f}" for phase, vectors in found.items()), flush=True)


# ----------------------------------------------------------------------------------------------- steps


def rank(number, folder, parameters, steps):
    """One process of DDP; the first one prints seconds a step."""
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=number, world_size=WORKERS)
    module = network(parameters)
    X, y = torch.randn(BATCH, INPUTS), torch.randint(0, INPUTS // 2, (BATCH,))
    trained = DistributedDataParallel(module, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(trained.parameters(), lr=1e-4)
    times = []
    for _ in range(WARM_UP + steps):
        nn.functional.cross_entropy(trained(X), y).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        times.append(time.monotonic())
    if number == 0:
        Path(folder, "seconds").write_text(str((times[-1] - times[WARM_UP - 1]) / steps))
    dist.barrier()
    dist.destroy_process_group()


def theirs(parameters, steps):
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(rank, (folder, parameters, steps), nprocs=WORKERS)
        return float(Path(folder, "seconds").read_text())


class Clock(Callback):
    def __init__(self):
        self.times = []

    def on_step(self, info):
        self.times.append(info.seconds)


def ours(parameters, steps, optimizer):
    clock, problem = Clock(), problem_of(parameters, WORKERS * BATCH)
    cluster = anyk.cluster("processes", workers=WORKERS)
    anyk.train(
        problem, "uncoded", cluster, optimizer=optimizer, steps=WARM_UP + steps, evaluate=None, callbacks=[clock]
    )
    return (clock.times[-1] - clock.times[WARM_UP - 1]) / steps


def compare(asked):
    optimizers = {
        "AdamW of torch": anyk.optimizers.TorchOptimizer("AdamW", lr=1e-4),
        "adamw": anyk.optimizers.AdamW(lr=1e-4),
    }
    for parameters in asked.parameters:
        seconds = {"DDP": [], **{name: [] for name in optimizers}}
        for _ in range(asked.runs):
            seconds["DDP"].append(theirs(parameters, asked.steps))
            for name, optimizer in optimizers.items():
                seconds[name].append(ours(parameters, asked.steps, optimizer))
        print(f"{parameters:.0e} parameters, {WORKERS} processes")
        for name, found in seconds.items():
            show(f"{name}, a step", [1e3 * second for second in found], "ms")
        for name in optimizers:
            ratios = [a / b for a, b in zip(seconds[name], seconds["DDP"], strict=True)]
            show(f"anyk with {name} / DDP", ratios, "", "at most 1.1")


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("what", choices=("memory", "steps", "train"))
    options.add_argument("--parameters", nargs="+", type=float)
    options.add_argument("--steps", type=int, default=20)
    options.add_argument("--runs", type=int, default=5)
    options.add_argument("--strategies", nargs="+", default=STRATEGIES)
    options.add_argument("--out")
    asked = options.parse_args()
    asked.parameters = [int(n) for n in asked.parameters or ([1e7] if asked.what == "memory" else [1e7, 3e7])]
    if asked.what == "train":
        train(asked.strategies[0], asked.parameters[0], asked.steps, asked.out)
    elif asked.what == "memory":
        memory(asked)
    else:
        compare(asked)
