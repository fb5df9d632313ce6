"""PyTorch's DistributedDataParallel (gloo, 8 processes) against anyk on 8 processes, side by side in one run.

Both train the same small convolutional network on MNIST images from the same parameters with the same AdamW, one
thread a process; a step is one of the same mini-batches, 64 samples of each of 8 partitions, the same rows on both
sides. Without an approximation both therefore take the same steps, which is checked.

Stragglers: each worker is held up in each step by the same injected delay on both sides, drawn by anyk's stream from
(seed, worker, step). A rank of DDP sleeps before it computes; all others wait for it in the all-reduce, as they would
for a slow machine. A worker of anyk that is not waited for is interrupted, in the midst of a delay, too, and starts on
the newest version: interruptible on this side only, as DDP has no way to leave a rank behind. With
``--delays exp:mean=0.25,uninterruptible=true`` they are not interruptible here either.

(a) seconds until the test accuracy is reached for the first time, looked up afterwards in all versions; (b) seconds of
as many steps without stragglers. Starting (8 processes import torch) and warming up are not counted on either side.
"""

import argparse
import copy
import os
import statistics
import sys
import tempfile
import time

import numpy as np
import torch
import torch.distributed as dist
from common import DATA, show
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import anyk
from anyk.clusters import Messages
from anyk.protocol import Chunk
from anyk.runs.callbacks import Watching

WORKERS, BATCH, RATE = 8, 64, 4e-3
STRATEGIES = ("k-sync:k=4", "agc:load=2,wait=3")


def network(seed):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(512, 128), nn.ReLU(), nn.Linear(128, 10),
    )  # fmt: skip


def problem_of(seed):
    if not DATA.is_dir():
        sys.exit(f"no folder {DATA}; set ANYK_DATA to the folder that has MNIST's IDX files")
    data = anyk.problems.load("mnist-idx", file=DATA)
    X, X_test = (
        torch.tensor(X[:, :784], dtype=torch.float32).reshape(-1, 1, 28, 28) for X in (data.X_train, data.X_test)
    )
    y, y_test = (torch.tensor(y.astype(int)) for y in (data.y_train, data.y_test))
    return anyk.problems.TorchProblem(network(seed), nn.CrossEntropyLoss(), (X, y), held_out=(X_test, y_test)), X, y


# ----------------------------------------------------------------------------------------------- DDP


def rank(number, folder, jobs, done):
    """One process of DDP, with a job at a time; the first one leaves behind when it had which parameters."""
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=number, world_size=WORKERS)
    while True:
        train(number, folder, *jobs[number].get())
        if number == 0:
            done.put(None)


def train(number, folder, seed, steps, delays):
    X, y, rows = (torch.from_numpy(np.load(f"{folder}/{name}{number}.npy")) for name in ("X", "y", "rows"))
    module = network(seed)
    trained = DistributedDataParallel(module)
    optimizer = torch.optim.AdamW(trained.parameters(), lr=RATE)
    holds = anyk.delays.parse(delays).draws(seed, number, 0, steps)
    times, versions = [0.0], [flat(module)]
    for _ in range(3):  # warm up
        nn.functional.cross_entropy(trained(X[rows[0]]), y[rows[0]]).backward()
        optimizer.zero_grad()
    dist.barrier()
    began = time.monotonic()
    for t in range(steps):
        time.sleep(holds[t])
        nn.functional.cross_entropy(trained(X[rows[t]]), y[rows[t]]).backward()
        optimizer.step()
        optimizer.zero_grad()
        if number == 0:
            times.append(time.monotonic() - began)
            versions.append(flat(module))
    dist.barrier()
    if number == 0:
        np.savez(f"{folder}/found.npz", times=times, versions=versions)


def flat(module):
    return torch.cat([parameter.detach().reshape(-1) for parameter in module.parameters()]).numpy()


class Group:
    """The processes of DDP, started once; between two jobs they wait."""

    def __enter__(self):
        self.home = tempfile.TemporaryDirectory()
        context = torch.multiprocessing.get_context("spawn")
        self.jobs, self.done = [context.SimpleQueue() for _ in range(WORKERS)], context.SimpleQueue()
        self.processes = torch.multiprocessing.spawn(
            rank, (self.home.name, self.jobs, self.done), nprocs=WORKERS, join=False
        )
        return self

    def __call__(self, problem, X, y, seed, steps, delays):
        """Seconds and parameters of all versions."""
        folder, parts = self.home.name, problem.split(WORKERS)
        ends = np.concatenate(([0], np.cumsum(parts.sizes)))
        draw = Messages(parts, seed=seed).rows
        for j, jobs in enumerate(self.jobs):
            chunk = Chunk((j,), (1.0,), batch=BATCH)
            np.save(f"{folder}/X{j}.npy", X[ends[j] : ends[j + 1]])
            np.save(f"{folder}/y{j}.npy", y[ends[j] : ends[j + 1]])
            np.save(f"{folder}/rows{j}.npy", np.array([draw(j, chunk, t) for t in range(steps)]))
            jobs.put((seed, steps, delays))
        while self.done.empty():
            self.processes.join(timeout=0.2)  # raises what one of them failed of
        self.done.get()
        with np.load(f"{folder}/found.npz") as found:
            return found["times"], found["versions"]

    def __exit__(self, *_):
        for process in self.processes.processes:
            process.terminate()
            process.join()
        self.home.cleanup()


# ----------------------------------------------------------------------------------------------- anyk


def ours(problem, spec, seed, steps, delays):
    """The same of a run."""
    cluster = anyk.cluster("processes", workers=WORKERS, delays=delays, seed=seed)
    optimizer = anyk.optimizers.TorchOptimizer("AdamW", lr=RATE)
    times, versions = [0.0], [problem.initial()]

    def keep(driver, evaluator):
        times.append(driver.time)
        versions.append(driver.models["model"].copy())

    unseen = copy.copy(problem)  # evaluated as the versions of DDP are, afterwards, and not beside the run
    unseen.loss, unseen.metrics = lambda w: 0.0, lambda w: {}
    anyk.train(
        unseen, spec, cluster, optimizer=optimizer, steps=steps, evaluate=f"every={steps}", callbacks=[Watching(keep)]
    )
    return times, versions


def first(problem, found, target):
    """When the target was first reached, and after how many steps."""
    for step, (seconds, w) in enumerate(zip(*found, strict=True)):
        if (accuracy := problem.metrics(w)["accuracy"]) >= target:
            return seconds, step
    sys.exit(f"an accuracy of {target} was not reached, {accuracy:.4f} at the end; take more steps")


def with_stragglers(ddp, asked):
    """(a)"""
    seconds = {way: [] for way in ("DDP", *asked.strategies)}
    for seed in range(asked.seeds):
        problem, X, y = problem_of(seed)
        for way, found in seconds.items():
            if way == "DDP":
                versions = ddp(problem, X, y, seed, asked.steps, asked.delays)
            else:
                versions = ours(problem, f"{way},batch={BATCH}", seed, asked.steps * 3 // 2, asked.delays)
            reached, steps = first(problem, versions, asked.target)
            found.append(reached)
            print(f"seed {seed}, {way}: {reached:.2f} s, {steps} steps", flush=True)
    print(f"to an accuracy of {asked.target:g} under {asked.delays}")
    for way, found in seconds.items():
        show(way, found, "s")
    best = min(asked.strategies, key=lambda spec: statistics.median(seconds[spec]))
    for spec in asked.strategies:
        ratios = [a / b for a, b in zip(seconds["DDP"], seconds[spec], strict=True)]
        show(f"DDP / {spec}", ratios, "", "at least 4" if spec == best else "")


def without(ddp, asked):
    """(b)"""
    seconds = {"DDP": [], "uncoded": []}
    for seed in range(asked.seeds):
        problem, X, y = problem_of(seed)
        theirs = ddp(problem, X, y, seed, asked.plain_steps, "none")
        found = ours(problem, f"uncoded:batch={BATCH}", seed, asked.plain_steps, "none")
        early = theirs[1][5], found[1][5]  # later on AdamW makes much of rounding, where a gradient is all but 0
        apart = np.linalg.norm(early[0] - early[1]) / np.linalg.norm(early[0] - theirs[1][0])
        if apart > 1e-2:
            sys.exit(f"the two do not take the same steps: after 5 they are {apart:.2g} of their way apart")
        seconds["DDP"].append(theirs[0][-1])
        seconds["uncoded"].append(found[0][-1])
        print(f"seed {seed}: DDP {theirs[0][-1]:.2f} s, uncoded {found[0][-1]:.2f} s, {apart:.0e} apart", flush=True)
    print(f"{asked.plain_steps} steps without stragglers")
    for way, found in seconds.items():
        show(f"{way}, a step", [1e3 * time / asked.plain_steps for time in found], "ms")
    ratios = [a / b for a, b in zip(seconds["uncoded"], seconds["DDP"], strict=True)]
    show("uncoded / DDP", ratios, "", "at most 1.15")


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--delays", default="exp:mean=0.25")
    options.add_argument("--target", type=float, default=0.93, help="test accuracy to reach")
    options.add_argument("--steps", type=int, default=55, help="steps of DDP; of the approximations half more")
    options.add_argument("--plain-steps", type=int, default=30, help="steps without stragglers")
    options.add_argument("--seeds", type=int, default=3)
    options.add_argument("--strategies", nargs="+", default=STRATEGIES)
    options.add_argument("--only", choices=("with", "without"), help="stragglers")
    asked = options.parse_args()
    torch.set_num_threads(1)  # the driver's, too
    with Group() as ddp:
        if asked.only != "with":
            without(ddp, asked)
        if asked.only != "without":
            with_stragglers(ddp, asked)
