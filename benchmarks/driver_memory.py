"""How much memory the driver takes more with every round.

Usage: python benchmarks/driver_memory.py [ROUNDS]

Runs of 10,000 rounds (ROUNDS) without evaluation, with a folder and checkpoints every second, each in a process of its
own: growth from the middle to the end, in bytes per round, of what Python has allocated (tracemalloc, which includes
NumPy's arrays), and of the process's resident memory, which goes up in steps of pages. Each number is the slope of a
straight line through the lowest values of 20 stretches of the second half: a checkpoint in the making is no growth.
"""

from __future__ import annotations

import gc
import multiprocessing
import sys
import tempfile
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray

import anyk
from anyk.runs.callbacks import Callback

STRETCHES = 20
STRATEGIES = ("frc:load=2", "agc:load=2,wait=3", "async:lr_scale=0.1", "diloco:tau=2")
CLUSTERS = (("simulated", "exp:mean=1"), ("processes", "none"))
GOAL = 50.0  # bytes per round


class Memory(Callback):
    """Notes the memory in use after every tenth round, in arrays that are made before the first."""

    def __init__(self, rounds: int) -> None:
        self.allocated, self.resident = np.full((2, rounds // 10), 1e18)
        self._process = psutil.Process()

    def on_step(self, info: Any) -> None:
        place, rest = divmod(info.step, 10)
        if not rest and place <= self.allocated.size:
            if not info.step % 500:
                gc.collect()
            self.allocated[place - 1] = tracemalloc.get_traced_memory()[0]
            self.resident[place - 1] = self._process.memory_info().rss


def slope(values: NDArray[np.float64]) -> float:
    """Return how much the lowest values of the second half grow with each round."""
    parts = np.array_split(np.arange(values.size // 2, values.size), STRETCHES)
    lowest = np.array([part[values[part].argmin()] for part in parts])
    return float(np.polyfit(10.0 * (lowest + 1), values[lowest], 1)[0])


def growth(strategy: str, cluster: str, delays: str, rounds: int, back: Any) -> None:
    """Send both slopes of a run, in bytes per round."""
    memory = Memory(rounds)
    problem = anyk.problems.from_data("synthetic:rows=60,features=5")
    tracemalloc.start()
    with tempfile.TemporaryDirectory() as folder:
        anyk.train(
            problem,
            strategy,
            cluster,
            workers=4,
            delays=delays,
            optimizer=anyk.optimizers.GD(lr=1e-3),
            steps=rounds,
            evaluate=None,
            out=Path(folder) / "run",
            checkpoint_every=1.0,
            callbacks=[memory],
        ).close()
    back.send((slope(memory.allocated), slope(memory.resident)))


def main() -> int:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    spawn = multiprocessing.get_context("spawn")
    most = 0.0
    for cluster, delays in CLUSTERS:
        for strategy in STRATEGIES:
            ours, theirs = spawn.Pipe()
            process = spawn.Process(target=growth, args=(strategy, cluster, delays, rounds, theirs))
            process.start()
            theirs.close()
            allocated, resident = ours.recv()
            process.join()
            most = max(most, allocated)
            print(f"{cluster:<10} {strategy:<20} {allocated:8.1f} B per round, resident {resident:8.1f}", flush=True)
    print(f"most: {most:.1f} B per round  goal: below {GOAL:.0f}")
    return most >= GOAL


if __name__ == "__main__":
    sys.exit(main())
