"""Nested and progress codes: what is finished when, what asks give, and which level is ready first."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anyk.base.errors import BadInput
from anyk.codes import (
    ChunkOrderCode,
    NestedCode,
    ProgressCode,
    RandomBiregularCode,
)
from code_oracles import dense, least_squares, spans_ones, subsets

pytestmark = pytest.mark.in_process


def asked_sum(code: ProgressCode, watch: Any, done: list[int], gradients: np.ndarray) -> np.ndarray:
    """What comes of the asks, each checked to be for finished partitions and to each worker once."""
    asks = watch.asks()
    assert len({ask.worker for ask in asks}) == len(asks)
    total = np.zeros(gradients.shape[1])
    for worker, partitions, coefficients, weight in asks:
        assert set(partitions) <= set(code.orders[worker][: done[worker]])
        total += weight * (np.array(coefficients) @ gradients[list(partitions)])
    return total


def in_order(times: np.ndarray) -> list[tuple[float, int, int]]:
    """(time, worker, partitions finished), in order of time."""
    return sorted((float(times[i, q]), i, q + 1) for i, q in np.ndindex(*times.shape))


NESTED = [
    (8, 3, "binary"),
    (8, 7, "binary"),
    (6, 1, "binary"),
    (16, 3, "binary"),
    (7, 3, "cyclic"),
    (8, 2, "cyclic"),
    (6, 5, "cyclic"),
]


@pytest.mark.parametrize(("n", "s", "kind"), NESTED)
def test_beginnings_of_the_order_are_the_rows_of_each_level(n: int, s: int, kind: Any) -> None:
    code = NestedCode(n, stragglers=s, kind=kind)
    loads = [level.load for level in code.levels]
    assert loads == ([2**u for u in range(len(loads))] if kind == "binary" else list(range(1, s + 2)))
    assert [level.tolerates for level in code.levels] == [load - 1 for load in loads]
    for level, load in zip(code.levels, loads, strict=True):
        for i in range(n):
            assert set(code.orders[i][:load]) == set(level.assignment[i])
    assert all(len(set(order)) == s + 1 for order in code.orders)
    assert dense(code) == pytest.approx(dense(code.levels[-1]))
    assert (code.tolerates, code.load, code.partitions) == (s, s + 1, n)


@pytest.mark.parametrize(("n", "s", "kind"), NESTED)
def test_the_step_ends_with_the_level_that_is_ready_first(n: int, s: int, kind: Any) -> None:
    code, random = NestedCode(n, stragglers=s, kind=kind), np.random.default_rng(n + s)
    gradients = random.standard_normal((n, 3))
    for _ in range(25):
        speed = np.where(random.random(n) < 0.25, 8.0, 1.0)
        times = np.cumsum(random.exponential(size=(n, s + 1)) * speed[:, None], axis=1)
        if kind == "binary":
            tau = [times[:, 2**u - 1].reshape(-1, 2**u).min(axis=1).max() for u in range((s + 1).bit_length())]
        else:
            tau = [np.sort(times[:, level])[n - level - 1] for level in range(s + 1)]
        best = int(np.argmin(tau))
        watch, done = code.watch(), [0] * n
        for now, worker, finished in in_order(times):
            done[worker] = finished
            assert watch.saw(worker, finished) == (now >= tau[best])
            if watch.ready:
                break
        assert watch.ready and watch.residual == 0.0
        assert asked_sum(code, watch, done, gradients) == pytest.approx(gradients.sum(axis=0), abs=1e-8)
        assert {len(ask.partitions) for ask in watch.asks()} == {code.levels[best].load}


def test_early_asks_give_what_the_residual_says() -> None:
    code, random = NestedCode(8, stragglers=3, kind="binary"), np.random.default_rng(0)
    for _ in range(30):
        watch, done = code.watch(), [0] * 8
        assert watch.residual == 1.0 and watch.asks() == []
        for worker in random.choice(8, 4, replace=False).tolist():
            for finished in range(1, int(random.integers(1, 5)) + 1):
                done[worker] = finished
                watch.saw(worker, finished)
        coefficients = asked_sum(code, watch, done, np.eye(8))
        assert np.linalg.norm(coefficients - 1) / 8**0.5 == pytest.approx(watch.residual, abs=1e-12)


def test_progress_may_come_in_jumps() -> None:
    code = NestedCode(8, stragglers=3, kind="binary")
    watch = code.watch()
    assert [watch.saw(worker, 4) for worker in (2, 7)] == [False, True]
    assert [(ask.worker, ask.partitions) for ask in watch.asks()] == [(2, (2, 3, 0, 1)), (7, (7, 6, 5, 4))]


def test_the_kind_is_binary_where_it_can_be() -> None:
    assert [NestedCode(n).kind for n in (8, 9, 20, 40, 30)] == ["binary", "cyclic", "binary", "binary", "cyclic"]
    assert NestedCode(8, stragglers=2).tolerates == 3
    with pytest.raises(
        BadInput,
        match="nested:kind=binary,stragglers=2 does not exist for 6 workers: 4 must divide them; use kind=cyclic",
    ):
        NestedCode(6, stragglers=2, kind="binary")
    with pytest.raises(BadInput, match="kind must be binary, cyclic or None, got 'other'"):
        NestedCode(6, kind="other")  # type: ignore[arg-type]


def in_vain(code: ChunkOrderCode, j: int) -> int:
    """Q_j: the most partitions that can be finished without j."""
    return sum(order.index(j) if j in order else len(order) for order in code.orders)


@pytest.mark.parametrize(("n", "d", "golden"), [(12, 3, 30), (30, 4, 110)])
@pytest.mark.parametrize("placement", ["cyclic", "random"])
def test_golden_numbers_of_partitions_finished_in_vain(n: int, d: int, golden: int, placement: Any) -> None:
    code = ChunkOrderCode(n, load=d, placement=placement)
    assert code.most_in_vain == golden == n * d - d**2 + d * (d - 1) // 2
    assert [in_vain(code, j) for j in range(n)] == [golden] * n
    watch = code.watch()
    for i, order in enumerate(code.orders):  # all that can be done without partition 5
        watch.saw(i, order.index(5) if 5 in order else d)
    assert not watch.ready and watch.residual == pytest.approx((1 / n) ** 0.5)


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 25), st.integers(0, 1000), st.sampled_from(["cyclic", "random"]), st.data())
def test_each_partition_stands_once_at_each_position(n: int, seed: int, placement: Any, data: st.DataObject) -> None:
    d = data.draw(st.integers(1, n))
    code = ChunkOrderCode(n, load=d, placement=placement, seed=seed)
    orders = np.array(code.orders)
    assert orders.shape == (n, d)
    assert (np.sort(orders, axis=0) == np.arange(n)[:, None]).all()
    assert all(len(set(order)) == d for order in code.orders)
    if placement == "random":
        assert code.assignment == RandomBiregularCode(n, load=d, seed=seed).assignment
    assert {in_vain(code, j) for j in range(n)} == {code.most_in_vain}


@settings(deadline=None, max_examples=80)
@given(st.integers(1, 14), st.sampled_from(["cyclic", "random"]), st.data())
def test_asks_give_exactly_what_someone_has_finished(n: int, placement: Any, data: st.DataObject) -> None:
    d = data.draw(st.integers(1, n))
    code = ChunkOrderCode(n, load=d, placement=placement)
    done = data.draw(st.lists(st.integers(0, d), min_size=n, max_size=n))
    gradients = np.random.default_rng(n).integers(-100, 100, (n, 2)).astype(float)
    watch = code.watch()
    for worker in data.draw(st.permutations(range(n))):
        for finished in range(1, done[worker] + 1):
            watch.saw(worker, finished)
    covered = sorted({j for i in range(n) for j in code.orders[i][: done[i]]})
    assert watch.ready == (len(covered) == n)
    assert watch.residual == pytest.approx(((n - len(covered)) / n) ** 0.5)
    assert np.array_equal(asked_sum(code, watch, done, gradients), gradients[covered].sum(axis=0))


def test_as_a_code_each_finished_partition_is_a_reply() -> None:
    code = ChunkOrderCode(5, load=2)
    assert (code.replies, code.messages, code.tolerates) == (10, 2, 1)
    matrix = [tuple(row) for row in dense(code).astype(int).tolist()]
    for replied in subsets(range(10)):
        decoding = code.decode(replied)
        assert decoding.exact == (len({code.orders[r // 2][r % 2] for r in replied}) == 5)
        assert decoding.residual == pytest.approx(least_squares(code, replied)[1], abs=1e-9)
    assert spans_ones(frozenset(matrix))


@pytest.mark.parametrize("load", [0, 6, -1])
def test_loads_of_progress_codes_out_of_range(load: int) -> None:
    with pytest.raises(BadInput, match=f"load of 'progress' must be 1 to 5 partitions, got {load}"):
        ChunkOrderCode(5, load=load)
