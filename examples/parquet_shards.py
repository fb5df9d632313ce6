"""A model of Parquet files, in a driver whose memory does not grow by what they hold.

While it trains, the driver may take 12 MB more than it has; the files hold 48 MB, and each worker keeps 4 MB of them.
"""

import resource
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import scipy.sparse  # noqa: F401  # what a run imports is no data
from pyarrow import parquet

import anyk

FILES, ROWS, COLUMNS = 4, 60_000, 25


def write(folder: str) -> None:
    weights = np.random.default_rng(0).normal(size=COLUMNS)
    for i in range(FILES):
        X = np.random.default_rng([1, i]).normal(size=(ROWS, COLUMNS))
        columns = {f"x{j}": X[:, j] for j in range(COLUMNS)} | {"y": (X @ weights > 0).astype(np.int64)}
        parquet.write_table(pa.table(columns), f"{folder}/train-{i}.parquet", row_group_size=5_000)


@contextmanager
def limited(more: int) -> Iterator[None]:
    """No more memory of its own than this program has now (VmData of Linux), and so many bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    has = next(int(line.split()[1]) for line in lines if line.startswith("VmData"))
    before = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (has * 1024 + more, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_DATA, before)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        write(folder)
        shards = anyk.data.Shards(f"{folder}/train-[0-2].parquet", cache_mb=4)
        held_out = anyk.data.Shards(f"{folder}/train-3.parquet", cache_mb=4)
        problem = anyk.problems.LogisticRegression(shards, intercept=True, l2=1e-5, X_test=held_out)
        cluster = anyk.cluster("processes", workers=2)
        cluster.prepare()  # the limit is the driver's own
        optimizer = anyk.optimizers.Nesterov(lr=1.0)
        with limited(12_000_000):
            run = anyk.train(problem, "frc:stragglers=1", cluster, optimizer=optimizer, steps=5, evaluate=None)
        print(f"{problem.samples:,} rows, {run.steps} steps, held out: {problem.metrics(run.model)}")


if __name__ == "__main__":
    main()
