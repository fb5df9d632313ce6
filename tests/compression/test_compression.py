"""Compressors: what each promises, measured; error feedback against a recursion computed here, cancelled messages too."""

from __future__ import annotations

import os
import signal
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

import anyk
from anyk.clusters.packing import pack, unpack
from anyk.compression import compressor
from anyk.protocol import Chunk

SPECS = [
    "random-k:share=0.25",
    "random-k:share=1",
    "qsgd:levels=4",
    "qsgd:levels=127",
    "half",
    "top-k:share=0.1",
    "sign",
]


def through(spec: str, x: Any, key: Any = (0, "0:0 (0,)")) -> Any:
    scheme = compressor(spec)
    payload = scheme.pack(x, key)
    assert payload.dtype == np.uint8 and payload.size == scheme.size(x.size, x.itemsize) and payload.size % 8 == 0
    return scheme.unpack(payload, x.size, x.dtype, key)


@pytest.mark.slow
@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@settings(max_examples=60, deadline=None)
@given(st.integers(1, 70), st.integers(0, 10_000), st.floats(-8, 8))
def test_there_and_back(spec: str, dtype: str, size: int, seed: int, scale: float) -> None:
    x = (np.random.default_rng(seed).standard_normal(size) * 10**scale).astype(dtype)
    y = through(spec, x)
    assert y.shape == x.shape and y.dtype == x.dtype and np.isfinite(y).all()
    assert not through(spec, np.zeros_like(x)).any()
    norm = float(np.linalg.norm(x.astype(np.float64)))
    error = float(np.linalg.norm(y.astype(np.float64) - x))
    scheme = compressor(spec)
    if scheme.name == "top-k":
        count = max(1, round(0.1 * size))
        assert error**2 <= (1 - count / size) * norm**2 * (1 + 1e-5)
        assert np.count_nonzero(y) <= count
    elif scheme.name == "sign":
        assert error**2 == pytest.approx(
            norm**2 - np.abs(x.astype(np.float64)).sum() ** 2 / size, rel=1e-4, abs=1e-6 * norm**2
        )
    elif scheme.name == "half":
        assert (np.abs(y - x) <= 2.0**-10.9 * np.abs(x) + 2.0**-30 * np.abs(x).max()).all()
    elif scheme.name == "qsgd":
        levels = scheme.levels  # type: ignore[attr-defined]
        assert (np.abs(y - x) <= norm / levels * (1 + 1e-5)).all()
    elif spec.endswith("share=1"):
        assert np.array_equal(x, y)


def keys(count: int) -> list[tuple[int, str]]:
    return [(7, f"{version}:0 (0,)") for version in range(count)]


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["random-k:share=0.25", "qsgd:levels=4"])
def test_unbiased_with_the_variance_it_states(spec: str) -> None:
    """random-k: (1/share - 1) |x|^2; QSGD: (|x|/s)^2 sum f (1 - f), f the fractional part of s |x_i| / |x|."""
    x = np.random.default_rng(2).standard_normal(100)
    draws = np.array([through(spec, x, key) for key in keys(6000)])
    error = draws.std(axis=0) / 6000**0.5
    assert (np.abs(draws.mean(axis=0) - x) < 4.5 * error + 1e-12).all()
    measured = ((draws - x) ** 2).sum(axis=1).mean() / (x @ x)
    if spec.startswith("random-k"):
        assert measured == pytest.approx(3.0, rel=0.02)
    else:
        scaled = 4 * np.abs(x) / np.linalg.norm(x)
        f = scaled - np.floor(scaled)
        assert measured == pytest.approx((f * (1 - f)).sum() / 16, rel=0.01)
        assert measured <= min(100 / 16, 10 / 4)


def test_random_k_is_linear_within_a_version_only() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((2, 50))
    spec = "random-k:share=0.3"
    one, other = (3, "4:0 (0, 1)"), (3, "4:0 (2,)")  # other partitions, the same version
    assert through(spec, 2 * x - y, one) == pytest.approx(
        2 * through(spec, x, one) - through(spec, y, other), abs=1e-12
    )
    assert not np.array_equal(through(spec, x, one) == 0, through(spec, x, (3, "5:0 (0, 1)")) == 0)


def test_only_replicas_of_a_message_are_rounded_alike() -> None:
    x = np.random.default_rng(0).standard_normal(300)
    chunk = Chunk((0, 1), (1.0, 1.0), compress="qsgd:levels=2")
    first, second = (pack(0, chunk, 5, 1, x, x, {}) for _ in range(2))
    assert np.array_equal(first, second)
    assert not np.array_equal(first, pack(0, chunk._replace(partitions=(2, 3)), 5, 1, x, x, {}))


def test_what_is_not_finite_does_not_slip_through() -> None:
    """A message is looked at before it is packed, so NaN cannot hide in what is left out."""
    problem = anyk.testing.Squares(4, faults={-1 - 2: "nan"})
    for by in ("top-k:share=0.2", "sign", "qsgd"):
        cluster = anyk.cluster("simulated", workers=4, delays="exp:mean=1")
        run = anyk.train(
            problem, f"compressed:of=(uncoded:wait=3),by=({by})", cluster, steps=5, optimizer=anyk.optimizers.GD()
        )
        assert run.ledger["unusable"] > 0 and np.isfinite(run.model).all()


@pytest.mark.slow
@pytest.mark.parametrize("cluster", ["simulated", "processes"])
@pytest.mark.parametrize(
    "spec", ["k-sync:k=2", "k-async:k=2", "k-batch-sync:k=5", "k-batch-async:k=3", "async:cutoff=3"]
)
def test_error_feedback_under_cancelled_and_dropped_messages(spec: str, cluster: str) -> None:
    """Re-run from the log: a worker's memory moves on with the messages that count, and only with those."""
    lr, n = 0.1, 4
    problem = anyk.testing.Squares(n, d=8)
    fleet = anyk.cluster(cluster, workers=n, delays="exp:mean=0.02", seed=2)
    by = compressor("top-k:share=0.25")
    run = anyk.train(
        problem, f"compressed:of=({spec}),by=({by.spec})", fleet, steps=40, optimizer=anyk.optimizers.GD(lr=lr)
    )
    rows = run.log.rows("SELECT task, worker, version, step FROM chunks WHERE step IS NOT NULL ORDER BY task")
    memory: dict[int, Any] = {i: np.zeros(8) for i in range(n)}
    sent: dict[int, Any] = {}
    models = [problem.initial()]
    done = 0
    while done < 40:  # messages in the order of their tasks, as soon as the versions they began from are known
        for task, worker, version, _ in rows:
            if task not in sent and version < len(models):
                memory[worker] = memory[worker] + models[version] - problem.centres[worker]
                sent[task] = through(by.spec, memory[worker])
                memory[worker] = memory[worker] - sent[task]
        used = [sent[task] for task, _, _, step in rows if step == done + 1]
        models.append(models[-1] - lr * np.sum(used, axis=0) / len(used))
        done += 1
    assert run.model == pytest.approx(models[-1], abs=1e-9)
    if spec != "k-async:k=2" and spec != "k-batch-async:k=3":
        assert run.ledger["cancelled"] + run.ledger["discarded"] > n
    assert any(np.abs(m).max() > 0.1 for m in memory.values())


@pytest.mark.slow
def test_error_feedback_gets_there_where_without_it_does_not() -> None:
    """Only the largest of each message's coordinates is sent; with memory all get their turn."""
    problem = anyk.testing.Squares(4, d=10)
    fleet = anyk.cluster("simulated", workers=4, delays="exp:mean=1")
    run = anyk.train(
        problem, "compressed:of=sync,by=(top-k:share=0.1)", fleet, steps=1500,
        optimizer=anyk.optimizers.optimizer("gd", lr="inverse:start=0.1,decay=0.02"),
    )  # fmt: skip
    least = problem.loss(problem.centres.mean(axis=0))
    first = problem.loss(problem.initial())
    assert problem.loss(run.model) - least < 0.01 * (first - least)


def test_fewer_bytes_take_less_time() -> None:
    """Seconds of a round over a narrow link: the model down and the payload up."""
    seconds = []
    for spec in ("sync", "compressed:of=sync,by=(top-k:share=0.1)", "compressed:of=sync,by=half"):
        fleet = anyk.cluster("simulated", workers=3, communication="link:bandwidth=1000")
        run = anyk.train(anyk.testing.Squares(3, d=100), spec, fleet, steps=4, optimizer=anyk.optimizers.GD())
        seconds.append(run.seconds / 4)
        assert run.seconds == run.floor_seconds
    assert seconds == pytest.approx([1.6, 0.8 + 0.12, 0.8 + 0.208])


def test_messages_of_local_work_are_changes() -> None:
    chunk = Chunk((0,), (1.0,), steps=3, compress="half")
    base = np.array([1e6, -1e6])
    payload = pack(0, chunk, 2, 1, base + [1e-3, 2e-3], base, {})
    back = unpack(chunk, 2, 1, payload, 2, np.dtype("float64"), base)
    assert back - base == pytest.approx([1e-3, 2e-3], rel=1e-3)


def test_what_is_left_out_goes_only_to_the_same_coordinates() -> None:
    """A worker's partitions may change; messages about sparse data then have other coordinates, and dense ones not."""
    base, x = np.zeros(9), np.array([1.0, 2.0, 4.0])

    def packed(partitions: tuple[int, ...], base: Any) -> list[float]:
        states: dict[int, Any] = {}
        chunks = [
            Chunk(p, (1.0,) * len(p), compress="top-k:share=0.3", state=s) for p, s in (((0, 1), -1), (partitions, 0))
        ]
        for task, chunk in enumerate(chunks):
            payload = pack(task, chunk, 0, 0, x, base, states)
        return unpack(chunks[1], 0, 0, payload, 3, x.dtype, base).tolist()

    assert packed((0, 1), base) == [0.0, 4.0, 0.0]
    assert packed((2, 3), base[:3]) == [0.0, 4.0, 0.0]
    assert packed((2, 3), base) == [0.0, 0.0, 4.0]


@pytest.mark.slow
@pytest.mark.parametrize("cluster", ["simulated", "processes"])
def test_compressed_messages_about_sparse_data_follow_a_fleet(cluster: str) -> None:
    X = scipy.sparse.random(120, 200, density=0.01, random_state=1, format="csr")
    problem = anyk.problems.LogisticRegression(X, np.sign(np.arange(120) % 2 - 0.5), l2=0.01)
    spec = "compressed:of=uncoded,by=(top-k:share=0.3)"
    fleet: Any = anyk.cluster(cluster, workers=4, delays="exp:mean=0.01")
    if fleet.virtual:
        away = [anyk.clusters.Outage(0.1 * i, i % 4, 0.1 * i + 0.05) for i in range(8)]
        fleet = anyk.clusters.Simulated(4, delays="exp:mean=0.01", outages=away)

    class Killing(anyk.Callback):
        def on_step(self, info: Any) -> None:
            if info.step == 10 and not fleet.virtual:
                os.kill(fleet.pids[1], signal.SIGKILL)

    gd = anyk.optimizers.GD(lr=1.0)
    run = anyk.train(problem, spec, fleet, workers=(2, 4), partitions=12, steps=60, optimizer=gd, callbacks=[Killing()])
    assert run.loss < 0.69
    assert [note for note in run.notes if note["kind"] == "lost"]
    assert not run.ledger["unusable"]
