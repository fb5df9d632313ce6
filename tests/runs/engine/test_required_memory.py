"""What a run takes of the driver's memory: foretold, refused where there is not so much, and kept to."""

from __future__ import annotations

import contextlib
import gc
import resource
import tracemalloc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import optax
import pytest

import anyk
from anyk.base.errors import BadInput
from anyk.clusters.available import available_addresses
from anyk.runs.callbacks import Callback

SIZE = 1_000_000


def squares(dtype: str) -> Any:
    """``|w - j|^2 / 2`` over samples j; a class that workers get by value."""

    class Squares:
        dimension, samples, sizes, l2, metric, better = SIZE, 4, (1,) * 4, 1e-3, "none", "lower"

        def __init__(self) -> None:
            self.dtype = np.dtype(dtype)

        def split(self, partitions: int) -> Any:
            if partitions != 4:  # no assert: a watch of the problem would follow it into pytest
                raise ValueError(partitions)
            return self

        def load(self, partitions: Any) -> None:
            pass

        def support(self, partition: int) -> None:
            return None

        def partial_gradient(self, partition: int, w: Any, rows: Any = None, /) -> Any:
            return w - w.dtype.type(partition)

        def initial(self) -> Any:
            return np.zeros(self.dimension, dtype=self.dtype)

        def loss(self, w: Any) -> float:
            return (float(w @ w) - 3.0 * float(w.sum()) + 2.25 * w.size) / 2  # of the mean sample, without a copy of w

        def metrics(self, w: Any) -> dict[str, float]:
            return {}

        def digest(self) -> str:
            return "squares"

        def recipe(self) -> None:
            return None

    return Squares()


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What a first run imports, and notes of classes when it looks at a user's problem, is no vector of the model."""
    out = tmp_path_factory.mktemp("first") / "run"
    descent = anyk.optimizers.GD(lr=0.1)
    anyk.train(squares("float32"), "uncoded", "processes", workers=4, optimizer=descent, steps=2, out=out).close()


class Peak(Callback):
    """The most that has been allocated from the run's beginning to its end, and what was foretold."""

    def on_begin(self, info: Any) -> None:
        self.need = info.driver.need
        self.shared = self.shared_at_end = self.share()

    def on_step(self, info: Any) -> None:
        self.shared_at_end = self.share()

    def share(self) -> int:
        sizes = {}  # memory that workers share, by file
        for link in Path("/proc/self/fd").glob("*"):
            with contextlib.suppress(FileNotFoundError):  # another thread has closed its file meanwhile
                if "memfd:anyk" in str(link.readlink()):
                    sizes[link.stat().st_ino] = link.stat().st_blocks * 512
        return sum(sizes.values())

    def on_end(self, info: Any) -> None:
        self.most = tracemalloc.get_traced_memory()[1]


@pytest.mark.slow
@pytest.mark.usefixtures("imported")
@pytest.mark.parametrize(
    ("spec", "dtype", "optimizer", "state"),
    [
        ("uncoded", "float32", "adamw", 2),
        ("cyclic:stragglers=1", "float64", "nesterov", 1),
        ("k-sync:k=3", "float32", "clip:of=(adam),norm=1", 2),
        ("async:compensate=0.1", "float32", "momentum", 1),
        ("pasgd:tau=2,outer=slowmo", "float32", "gd", 1),
    ],
)
def test_a_run_takes_a_few_vectors_besides_the_optimisers(
    spec: str, dtype: str, optimizer: str, state: int, tmp_path: Path
) -> None:
    """At most 3, with versions to be evaluated and the result, and as much again for the checkpoint being written.

    Messages lie in shared memory.
    """
    peak = Peak()
    gc.collect()
    tracemalloc.start()
    try:
        run = anyk.train(
            squares(dtype),
            spec,
            "processes",
            workers=4,
            optimizer=anyk.optimizers.optimizer(optimizer, lr=1e-3),
            steps=8,
            evaluate="every=2",
            out=tmp_path / "run",
            checkpoint_every=0.05,
            callbacks=[peak],
        )
        gc.collect()
        left = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    vector = SIZE * np.dtype(dtype).itemsize
    assert peak.most <= 2 * (3 + state) * vector
    assert left <= (1.5 + state) * vector  # the result: the model and the optimiser's state
    assert peak.most <= peak.need.driver + peak.need.optimizer
    assert peak.shared <= peak.need.models + peak.need.replies + vector / 10  # the helper program's mail and the data
    assert run.steps == 8 and np.isfinite(run.history["loss"]).sum() == 5
    run.close()


@pytest.mark.slow
@pytest.mark.usefixtures("imported")
@pytest.mark.parametrize("checkpoint_every", [0.0, 0.05])
@pytest.mark.parametrize(
    ("spec", "vectors"), [("diloco:tau=2,inner=adamw", 2), ("compressed:of=uncoded,by=(top-k:share=0.01)", 1)]
)
def test_the_states_of_workers_are_foretold(spec: str, vectors: int, checkpoint_every: float, tmp_path: Path) -> None:
    """Two of each worker in shared memory, and copies of one of each for a checkpoint.

    The driver may take a vector more than foretold: 1.07, if it writes all states at every step, else less.
    """
    peak = Peak()
    gc.collect()
    tracemalloc.start()
    try:
        anyk.train(
            squares("float32"),
            spec,
            "processes",
            workers=4,
            optimizer=anyk.optimizers.GD(lr=1e-3),
            steps=8,
            evaluate=None,
            out=tmp_path / "run",
            checkpoint_every=checkpoint_every,
            callbacks=[peak],
        ).close()
    finally:
        tracemalloc.stop()
    states = 4 * vectors * SIZE * 4
    most = peak.need.driver + peak.need.optimizer + peak.need.replies  # some replies are saved, too
    assert 2 * states < peak.most <= most + 1.1 * SIZE * 4
    assert peak.need.workers > 2 * states
    assert 2 * states < peak.shared_at_end <= peak.need.models + peak.need.replies + 2 * states + SIZE


def test_a_run_that_does_not_fit_is_refused_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anyk.runs.engine.required_memory.available_memory", lambda: 20 << 20)
    expected = r"needs about 145 MiB of memory \(models 11 MiB, replies 31 MiB, optimizer 8 MiB, driver 34 MiB, workers"
    expected += r" 61 MiB\), 20 MiB are available; use fewer workers"
    cluster = anyk.clusters.Processes(workers=4)
    with pytest.raises(BadInput, match=expected):
        anyk.train(
            squares("float32"), "uncoded", cluster, optimizer=anyk.optimizers.Adam(lr=1e-3), out=tmp_path / "run"
        )
    assert cluster.pids == {} and not list((tmp_path / "run").glob("*"))
    monkeypatch.setattr("anyk.runs.engine.required_memory.available_addresses", lambda: 20 << 20)
    with pytest.raises(
        BadInput, match=r"of addresses, this process may map 20 MiB more \(ulimit -v\); raise the limit"
    ):
        anyk.train(squares("float32"), "uncoded", cluster, optimizer=anyk.optimizers.Adam(lr=1e-3))


def test_a_limit_of_addresses_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (1 << 45, resource.RLIM_INFINITY))
    left = available_addresses()
    assert left is None or 0 < left < 1 << 45  # None where the system does not say what is mapped
    monkeypatch.setattr(resource, "getrlimit", lambda which: (1 << 12, resource.RLIM_INFINITY))
    assert available_addresses() in (None, 0)
    monkeypatch.setattr(resource, "getrlimit", lambda which: (resource.RLIM_INFINITY,) * 2)
    assert available_addresses() is None


@pytest.mark.parametrize(
    ("optimizer", "vectors"),
    [("gd", 0), ("nesterov", 1), ("adamw", 2), ("clip:of=(adam),norm=1", 2), ("torch:method=AdamW", 2),
     ("torch:method=SGD", 0), ("torch:method=SGD,momentum=0.9", 1), ("optax:method=adam", 2)],
)  # fmt: skip
def test_the_vectors_of_an_optimiser_are_counted(optimizer: str, vectors: int) -> None:
    assert anyk.optimizers.optimizer(optimizer, lr=0.1).vectors == vectors


def test_optimiser_vectors_of_a_pytree_cover_stepped_parameters() -> None:
    problem = SimpleNamespace(
        shapes=[(6,), (2,)], dtype=np.dtype(np.float32), trained_at=lambda w: {"a": w[:6], "b": w[6:]}
    )
    for stepped, vectors in (({"a": True, "b": True}, 2), ({"a": False, "b": True}, 0), ({"a": True, "b": False}, 1)):
        optimizer = anyk.optimizers.OptaxOptimizer(optax.masked(optax.adam(0.1), stepped))
        assert optimizer.vectors == 0 and optimizer.fitted(problem).vectors == vectors
