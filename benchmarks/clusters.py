"""30 workers, models and messages of 2 MB, no delays: a step of each cluster against the same bytes moved bare.

    python benchmarks/clusters.py processes
    python benchmarks/clusters.py ray
    mpiexec -n 31 python benchmarks/clusters.py mpi

Bare is what the engine's own users would write first: for ``processes`` a write and a read of the bytes through shared
memory, for ``ray`` ``ray.put`` and ``ray.get`` of one call an actor, for ``mpi`` a broadcast and a gather, and besides
the same with non-blocking messages and sleeps between looks, for fewer cores than ranks. Nobody computes anything.
"""

import logging
import mmap
import statistics
import sys
import time
from typing import Any

import numpy as np
from common import WORKERS, BareWorkers, show

import anyk
from anyk.runs.cluster_speed import cluster_speed

BYTES = 2_000_000
STEPS = 20
RUNS = 3


def timed(step):
    times = []
    for _ in range(STEPS + 1):
        began = time.perf_counter()
        step()
        times.append(time.perf_counter() - began)
    return statistics.median(times[1:])


def bare_processes():
    model, own = np.frombuffer(mmap.mmap(-1, BYTES)), []
    w, total = np.zeros(BYTES // 8), np.zeros(BYTES // 8)

    def write(_, buffer):
        if not own:  # a gradient in each worker's own memory, as in the other clusters
            own.append(np.ones(BYTES // 8))
        buffer[:] = own[0]

    workers = BareWorkers([BYTES // 8] * WORKERS, write)

    def step():
        model[:] = w
        total.fill(0.0)
        for i in workers.gather():
            np.add(total, workers.buffers[i], out=total)

    seconds = timed(step)
    workers.close()
    return seconds


def bare_ray():
    import ray

    class Bare:
        def __init__(self):
            self.gradient = np.ones(BYTES // 8)

        def compute(self, w):
            return self.gradient

    remote: Any = ray.remote(Bare)
    actors = [remote.remote() for _ in range(WORKERS)]
    w = np.zeros(BYTES // 8)
    total = np.zeros(BYTES // 8)

    def step():
        model = ray.put(w)
        total.fill(0.0)
        for gradient in ray.get([actor.compute.remote(model) for actor in actors]):
            np.add(total, gradient, out=total)

    seconds = timed(step)
    for actor in actors:
        ray.kill(actor)
    return seconds


def bare_mpi(comm, polite):
    from mpi4py import MPI

    w, gradient = np.zeros(BYTES // 8), np.ones(BYTES // 8)
    gathered = [np.empty(BYTES // 8) for _ in range(comm.size)] if comm.rank == 0 else []
    whole = np.empty((comm.size, BYTES // 8)) if comm.rank == 0 else None
    total = np.zeros(BYTES // 8)

    def wait(requests):
        while not MPI.Request.Testall(requests):
            time.sleep(5e-4)

    def step():
        if not polite:
            comm.Bcast(w)
            comm.Gather(gradient, whole)
            messages = whole[1:] if comm.rank == 0 else ()
        elif comm.rank:
            wait([comm.Irecv(w, source=0)])
            wait([comm.Isend(gradient, dest=0)])
            return
        else:
            sends = [comm.Isend(w, dest=rank) for rank in range(1, comm.size)]
            wait(sends + [comm.Irecv(gathered[rank], source=rank) for rank in range(1, comm.size)])
            messages = gathered[1:]
        total.fill(0.0)
        for message in messages:
            np.add(total, message, out=total)

    return timed(step)


def ours(name):
    speed = cluster_speed(lambda: anyk.cluster(name, workers=WORKERS), sizes=[BYTES], steps=STEPS)
    return speed.speeds[0].step


def report(name, floors, goal):
    """``floors``: seconds of each way to do it bare, by name, once a run."""
    steps = []
    measured = {way: [] for way in floors}
    for _ in range(RUNS):
        for way, bare in floors.items():
            measured[way].append(bare())
        steps.append(ours(name))
    show(f"{name}: anyk, median step", [t * 1e3 for t in steps], "ms")
    for way, times in measured.items():
        show(f"{name}: {way}, median step", [t * 1e3 for t in times], "ms")
        show(f"{name}: anyk / {way}", [a / b for a, b in zip(steps, times, strict=True)], "", goal)


if __name__ == "__main__":
    name = sys.argv[1] if len(sys.argv) > 1 else "processes"
    if name == "processes":
        report(name, {"bare shared memory": bare_processes}, "at most 1.5")
    elif name == "ray":
        import ray

        ray.init(num_cpus=2 * WORKERS, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
        report(name, {"bare gather": bare_ray}, "at most 1.2")
        ray.shutdown()
    else:
        from mpi4py import MPI

        comm = MPI.COMM_WORLD
        floors = {"bare broadcast and gather": [], "bare, with sleeps": []}
        for _ in range(RUNS):
            for polite, times in enumerate(floors.values()):
                times.append(bare_mpi(comm, bool(polite)))
        comm.Barrier()
        report(name, {way: iter(times).__next__ for way, times in floors.items()}, "at most 1.2")
