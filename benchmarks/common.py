"""What the benchmarks share: the data, the set-up of the papers, and how a result is printed."""

from __future__ import annotations

import gc
import mmap
import os
import select
import statistics
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import anyk

DATA = Path(os.environ.get("ANYK_DATA", Path(__file__).parents[2] / "shared" / "data"))
WORKERS = 30


def amazon() -> anyk.problems.LinearProblem:
    file = DATA / "amazon_employee_access_train.csv.gz"
    if not file.is_file():
        sys.exit(f"no {file}; set ANYK_DATA to the folder that has it")
    return anyk.problems.from_data("amazon", file=file)


def accelerated() -> anyk.optimizers.Optimizer:
    return anyk.optimizers.Accelerated(lr=10)


def processes(delays: str, seed: int) -> anyk.clusters.Cluster:
    return anyk.cluster("processes", workers=WORKERS, delays=delays, seed=seed)


def show(name: str, values: Sequence[float], unit: str, goal: str = "") -> float:
    """Print the median and the spread of several runs."""
    middle = statistics.median(values)
    spread = f"{min(values):.4g} to {max(values):.4g}"
    print(
        f"{name:<44} {middle:9.4g} {unit:<12} ({spread}, {len(values)} runs){'  goal: ' + goal if goal else ''}",
        flush=True,
    )
    return middle


class BareWorkers:
    """Processes forked once, a pipe to wake each and one back: what is left of a cluster when all else is taken away.

    When its bell rings, worker ``i`` has ``work(i, buffer)`` fill its buffer of shared memory, of ``sizes[i]`` numbers.
    """

    def __init__(self, sizes: Sequence[int], work: Callable[[int, NDArray[np.float64]], object]) -> None:
        self.buffers = [np.frombuffer(mmap.mmap(-1, size * 8)) for size in sizes]
        self._back, back = os.pipe()
        self._bells = [os.pipe() for _ in sizes]
        self._pids: list[int] = []
        gc.freeze()
        for i, buffer in enumerate(self.buffers):
            pid = os.fork()
            if pid == 0:
                for j, (read, bell) in enumerate(self._bells):
                    os.close(bell)
                    if j != i:
                        os.close(read)
                while os.read(self._bells[i][0], 1):
                    work(i, buffer)
                    os.write(back, struct.pack("=i", i))
                os._exit(0)
            self._pids.append(pid)
        os.close(back)

    def gather(self) -> Iterator[int]:
        """Wake all; yields each worker when its buffer is full."""
        for _, bell in self._bells:
            os.write(bell, b"!")
        arrived = 0
        while arrived < len(self.buffers):  # all of them: one that is not waited for would be in the next step's way
            select.select([self._back], [], [])
            reports = os.read(self._back, 4096)
            if not reports:
                raise RuntimeError("the bare loop's workers have ended")
            for (i,) in struct.iter_unpack("=i", reports):
                arrived += 1
                yield i

    def close(self) -> None:
        """End the processes."""
        for read, bell in self._bells:
            os.close(bell)
            os.close(read)
        os.close(self._back)
        for pid in self._pids:
            os.waitpid(pid, 0)
