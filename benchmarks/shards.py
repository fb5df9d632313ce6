"""Data ten times what the driver may map: does it train, and what does the driver's memory do as the data grow?

The driver, and the processes that it starts, may map ``--limit`` MB (RLIMIT_AS). For a tenth of the data and for all of
it, ``--times`` the limit, a driver of its own trains a logistic regression on Parquet files with 4 worker processes;
shown is the largest resident memory of each driver, and the ratio. The floor is 1: memory that knows nothing of data.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time

import numpy as np

import anyk

COLUMNS = 50


def write(folder: str, megabytes: float) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    rows = 20_000
    weights = np.random.default_rng(0).normal(size=COLUMNS)
    for i in range(max(1, round(megabytes * 1e6 / (8 * rows * COLUMNS)))):
        X = np.random.default_rng([1, i]).normal(size=(rows, COLUMNS))
        columns = {f"x{j}": X[:, j] for j in range(COLUMNS)} | {"y": (X @ weights > 0).astype(np.int64)}
        parquet.write_table(pa.table(columns), f"{folder}/part-{i:05}.parquet", row_group_size=10_000)


def drive(folder: str, limit: int, steps: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (limit * 1_000_000, limit * 1_000_000))
    shards = anyk.data.Shards(f"{folder}/part-*.parquet", cache_mb=20)
    began = time.perf_counter()
    problem = anyk.problems.LogisticRegression(shards, l2=1e-6)
    known = time.perf_counter()
    cluster = anyk.cluster("processes", workers=4)
    run = anyk.train(problem, "frc:stragglers=1", cluster, steps=steps, optimizer=anyk.optimizers.Nesterov(lr=1.0))
    done = time.perf_counter()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(peak, known - began, done - known, problem.samples, float(np.linalg.norm(run.model)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--limit", type=int, default=1000, help="MB that the driver may map")
    parser.add_argument("--times", type=float, default=10.0)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--drive", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.drive:
        drive(given.drive, given.limit, given.steps)
        return
    peaks = []
    for share in (0.1, 1.0):
        with tempfile.TemporaryDirectory() as folder:
            megabytes = share * given.times * given.limit
            write(folder, megabytes)
            command = [sys.executable, __file__, "--drive", folder, "--limit", str(given.limit)]
            done = subprocess.run(
                [*command, "--steps", str(given.steps)], stdout=subprocess.PIPE, text=True, check=True
            )
            peak, first, then, rows, norm = map(float, done.stdout.split())
            peaks.append(peak)
            print(
                f"{megabytes:8,.0f} MB, {rows:12,.0f} rows: driver {peak:6.0f} MB at most; pass {first:6.1f} s, "
                f"{given.steps} steps {then:6.1f} s; |model| {norm:.3f}",
                flush=True,
            )
    print(f"memory of the driver, all data to a tenth of them: {peaks[1] / peaks[0]:.3f}  goal: 1")


if __name__ == "__main__":
    main()
