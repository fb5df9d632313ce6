"""What the benchmarks share: the data, the set-up of the papers, and how a result is printed."""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

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
