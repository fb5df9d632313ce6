"""Coupons, short replies, nested and progress codes, Byzantine workers, trees, and decoding methods as values."""

from __future__ import annotations

from itertools import combinations, product
from typing import Any

import numpy as np
import pytest
from code_oracles import dense, harmonic, least_squares, made, spans_ones, subsets
from hypothesis import given, settings
from hypothesis import strategies as st

import anyk
from anyk.codes import (
    Algorithmic,
    BatchedCoupons,
    ChunkOrderCode,
    Code,
    CommunicationEfficient,
    CyclicRepetition,
    DracoCode,
    Exact,
    FractionalRepetition,
    LeastSquaresMethod,
    NestedCode,
    OneStep,
    Own,
    ProgressCode,
    RandomBiregularCode,
    TreeCode,
    locate,
)
from anyk.codes.tree_code import ROOT
from anyk.errors import BadInput, NotDecodable

pytestmark = pytest.mark.in_process

# ------------------------------------------------------------------------------------------- batched coupons


def test_the_golden_number_of_replies_needed() -> None:
    assert BatchedCoupons(40, batches=10).expected_replies == pytest.approx(29.2896825)
    for b in (1, 2, 7):
        assert BatchedCoupons(40, batches=b).expected_replies == pytest.approx(float(b * harmonic(b)))


@settings(deadline=None, max_examples=150)
@given(st.integers(1, 60), st.integers(0, 10**6), st.data())
def test_picks_partition_the_workers_and_every_batch_is_covered(n: int, seed: int, data: st.DataObject) -> None:
    b = data.draw(st.integers(1, n))
    code = BatchedCoupons(n, batches=b, seed=seed)
    assert len(code.members) == b and all(code.members)
    assert sorted(i for own in code.members for i in own) == list(range(n))
    assert sorted(j for own in code.blocks_of for j in own) == list(range(n))
    assert code.load == -(-n // b) and code.tolerates == min(map(len, code.members)) - 1
    decoding = code.decode_exactly(own[-1] for own in code.members)
    assert decoding.residual == 0.0 and set(decoding.weights.tolist()) <= {0.0, 1.0}


def test_the_mean_number_of_replies_needed_of_many_workers() -> None:
    """Picks are independent, so a fresh code for each round makes the order of arrival that of coupons."""
    for b in (4, 10):
        needed = []
        for seed in range(800):
            code = BatchedCoupons(400, batches=b, seed=seed)
            needed.append(float(code.finish_times(np.arange(1.0, 401.0))[0]))
        assert abs(np.mean(needed) - code.expected_replies) < 4 * np.std(needed) / 800**0.5


def test_picks_are_uniform_and_their_gaps_filled_as_often_as_counted() -> None:
    """P(some batch unassigned) is 0.1419 for n = 40, b = 10: then a group of one is made from the largest."""
    counts = np.zeros(10)
    for seed in range(400):
        counts += [len(own) for own in BatchedCoupons(40, batches=10, seed=seed).members]
    assert (np.abs(counts - 1600) < 5 * (16_000 * 0.09) ** 0.5).all()


def test_every_set_of_replies_of_a_small_coupon_code() -> None:
    for seed in range(5):
        code = BatchedCoupons(8, batches=3, seed=seed)
        matrix = [tuple(row) for row in dense(code).astype(int).tolist()]
        worst = np.zeros(9)
        for replied in subsets(range(8)):
            decoding = code.decode(replied)
            assert decoding.exact == spans_ones(frozenset(matrix[i] for i in replied))
            assert decoding.residual == pytest.approx(least_squares(code, replied)[1], abs=1e-9)
            worst[8 - len(replied)] = max(worst[8 - len(replied)], 8 * decoding.residual**2)
        for f in range(9):
            assert code.worst_error(f) == (pytest.approx(worst[f], abs=1e-9), True)


def test_batches_left_out_need_three_quarters_of_the_workers_at_most() -> None:
    for n in (1, 2, 10, 40, 100):
        b = BatchedCoupons(n).groups
        assert b == 1 or b * harmonic(b) <= 0.75 * n
        assert (b + 1) * harmonic(b + 1) > 0.75 * n
    for batches in (0, 9, -1):
        with pytest.raises(BadInput, match=f"batches of 'bcc' must be 1 to 8 workers, got {batches}"):
            BatchedCoupons(8, batches=batches)


# ------------------------------------------------------------------------------------------- short replies


def short_replies(code: CommunicationEfficient, gradients: np.ndarray) -> np.ndarray:
    """What workers send, from the rows alone; gradients have shape (partitions, a multiple of blocks)."""
    b = code.blocks
    parts = gradients.reshape(len(gradients), -1, b)  # coordinate v b + u is part u
    sent = np.zeros((code.workers, parts.shape[1]))
    for i, (held, coefficients) in enumerate(code.rows):
        for j, own in zip(held, np.reshape(coefficients, (len(held), b)), strict=True):
            sent[i] += parts[j] @ own
    return sent


@pytest.mark.parametrize(
    ("n", "s", "b"), [(5, 1, 2), (5, 2, 3), (6, 1, 2), (6, 0, 3), (6, 3, 1), (7, 2, 2), (4, 0, 4), (3, 2, 1)]
)
def test_any_replies_but_s_recover_all_blocks_of_the_sum(n: int, s: int, b: int) -> None:
    code, random = CommunicationEfficient(n, stragglers=s, blocks=b), np.random.default_rng(n)
    length = 11
    padded = -(-length // b) * b
    gradients = np.pad(random.standard_normal((n, length)), ((0, 0), (0, padded - length)))
    sent = short_replies(code, gradients)
    assert sent.shape == (n, -(-length // b))
    assert code.load == s + b == max(len(held) for held in code.assignment) and (code.tolerates, code.blocks) == (s, b)
    assert all(len(held) == s + b for held, _ in code.rows)
    for replied in subsets(range(n), n - s):
        weights, residual, gain = code.decode_exactly(replied)
        assert weights.shape == (n, b) and residual < 1e-9 and np.isfinite(gain) and 0 < gain < 1e6
        assert not weights[np.setdiff1d(np.arange(n), replied)].any()
        found = (weights.T @ sent).T.ravel()[:length]
        assert found == pytest.approx(gradients.sum(axis=0)[:length], abs=1e-8)


def test_fewer_replies_are_refused_or_as_near_as_possible() -> None:
    code = CommunicationEfficient(6, stragglers=1, blocks=2)
    for replied in subsets(range(6), 0, 4):
        decoder = code.decoder()
        assert not any(decoder.add(worker) for worker in replied)
        assert code.decode(replied).residual > 1e-3
        with pytest.raises(
            NotDecodable, match=rf"{len(replied)} of 6 replies .*'comm-efficient:stragglers=1,blocks=2'"
        ):
            code.decode_exactly(replied)
    decoder = code.decoder()
    assert [decoder.add(worker) for worker in (5, 0, 3, 2, 1, 4)] == [False] * 4 + [True] * 2


def test_a_larger_code_with_short_replies() -> None:
    code, random = CommunicationEfficient(30, stragglers=4, blocks=3), np.random.default_rng(0)
    gradients = random.standard_normal((30, 12))
    sent = short_replies(code, gradients)
    for _ in range(20):
        replied = random.choice(30, 26, replace=False)
        decoding = code.decode_exactly(replied)
        assert (decoding.weights.T @ sent).T.ravel() == pytest.approx(
            gradients.sum(axis=0), abs=1e-12 * decoding.gain * 30
        )
    arrivals = random.exponential(size=(5, 30))
    assert code.finish_times(arrivals) == pytest.approx(np.sort(arrivals, axis=1)[:, 25])


@pytest.mark.parametrize(
    ("blocks", "sentence"),
    [
        (0, "blocks of 'comm-efficient' must be 1 to 4 .*, got 0"),
        (5, "blocks of 'comm-efficient' must be 1 to 4 .*, got 5"),
        (-1, "blocks of 'comm-efficient' must be 1 to 4 .*, got -1"),
    ],
)
def test_blocks_out_of_range(blocks: int, sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        CommunicationEfficient(6, stragglers=2, blocks=blocks)
    with pytest.raises(BadInput, match=r"stragglers must be at least 0 and below workers \(6\), got 6"):
        CommunicationEfficient(6, stragglers=6)
    for decoder in ("one-step", "least-squares", "algorithmic"):
        with pytest.raises(BadInput, match="supports only its own decoder: each reply is a part of the vector"):
            CommunicationEfficient(6).decode(range(6), decoder=decoder)


# ------------------------------------------------------------------------------------------- nested and progress codes


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


def test_before_a_level_is_ready_the_asks_give_what_the_residual_says() -> None:
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


# ------------------------------------------------------------------------------------------- liars


def honest(code: DracoCode, random: np.random.Generator) -> np.ndarray:
    return dense(code) @ random.standard_normal(code.partitions)


DRACO = [(9, 1, 0, "repetition"), (12, 1, 1, "repetition"), (16, 2, 0, "repetition"), (30, 2, 2, "repetition")]
DRACO += [(7, 1, 0, "cyclic"), (9, 2, 0, "cyclic"), (15, 3, 0, "cyclic"), (15, 2, 2, "cyclic"), (15, 1, 4, "cyclic")]
DRACO += [(21, 2, 4, "cyclic"), (8, 1, 1, "cyclic"), (16, 3, 1, "cyclic"), (31, 5, 0, "cyclic"), (40, 4, 3, "cyclic")]


@pytest.mark.parametrize(("n", "byzantine", "late", "kind"), DRACO)
def test_all_liars_are_found_and_nobody_else(n: int, byzantine: int, late: int, kind: Any) -> None:
    code, random = DracoCode(n, byzantine=byzantine, stragglers=late, kind=kind), np.random.default_rng(n)
    assert code.load >= 2 * byzantine + late + 1 and (code.tolerates, code.partitions) == (late, n)
    for _ in range(40):
        truth = honest(code, random)
        order = random.permutation(n)
        f, t = int(random.integers(late + 1)), int(random.integers(byzantine + 1))
        replied = np.sort(order[: n - f])
        lying = np.sort(random.choice(replied, t, replace=False))
        values = truth.copy()
        values[lying] += random.choice([-1, 1], t) * random.uniform(0.5, 50, t)
        assert locate(code, replied.tolist(), values[replied].tolist()) == tuple(lying.tolist())


@pytest.mark.parametrize(("n", "byzantine", "late", "kind"), DRACO)
def test_honest_words_accuse_nobody(n: int, byzantine: int, late: int, kind: Any) -> None:
    code, random = DracoCode(n, byzantine=byzantine, stragglers=late, kind=kind), np.random.default_rng(n)
    for scale in (1e-30, 1e-6, 1.0, 1e12):
        for _ in range(10):
            replied = np.sort(random.choice(n, n - int(random.integers(late + 1)), replace=False))
            values = scale * honest(code, random)
            assert locate(code, replied.tolist(), values[replied].tolist()) == ()
    assert locate(code, range(n), [0.0] * n) == ()


@pytest.mark.parametrize(
    ("n", "kind"), [(3, "repetition"), (7, "repetition"), (5, "cyclic"), (6, "cyclic"), (9, "cyclic")]
)
@pytest.mark.parametrize("lie", [1e-3, -1.0, 1e9])
def test_every_single_liar_is_found(n: int, kind: Any, lie: float) -> None:
    code, random = DracoCode(n, byzantine=1, kind=kind), np.random.default_rng(0)
    for liar in range(n):
        values = honest(code, random)
        values[liar] += lie
        assert locate(code, range(n), values.tolist()) == (liar,)


@pytest.mark.parametrize("kind", ["repetition", "cyclic"])
def test_every_pair_of_liars_with_every_straggler_is_found(kind: Any) -> None:
    code, random = DracoCode(12, byzantine=2, stragglers=1, kind=kind), np.random.default_rng(3)
    for late in range(12):
        replied = [i for i in range(12) if i != late]
        for lying in combinations(replied, 2):
            values = honest(code, random)
            values[list(lying)] += random.uniform(1, 10, 2)
            assert locate(code, replied, values[replied].tolist()) == lying


def test_liars_that_agree_are_still_outvoted() -> None:
    code, values = DracoCode(10, byzantine=2), np.repeat([1.0, 2.0], 5)
    values[[1, 3]] = 77.0
    assert locate(code, range(10), values.tolist()) == (1, 3)
    values[4] = 77.0  # three are more than were to be expected: they are believed
    assert locate(code, range(10), values.tolist()) == (0, 2)


def test_nothing_is_said_before_liars_would_have_been_found_out() -> None:
    code = DracoCode(9, byzantine=1)
    assert locate(code, [0, 1, 3, 4, 6], [1.0, 1.0, 2.0, 2.0, 3.0]) is None
    assert locate(code, [0, 1, 3, 4, 6, 7], [1.0, 1.0, 2.0, 2.0, 3.0, 4.0]) is None
    assert locate(code, [0, 1, 3, 4, 6, 7], [1.0, 1.0, 2.0, 2.0, 3.0, 3.0]) == ()
    cyclic = DracoCode(9, byzantine=1, kind="cyclic")
    assert locate(cyclic, range(8), honest(cyclic, np.random.default_rng(0))[:8].tolist()) is None


@pytest.mark.parametrize("kind", ["repetition", "cyclic"])
def test_the_sum_of_real_vectors_in_spite_of_liars(kind: Any) -> None:
    code, random = DracoCode(15, byzantine=2, stragglers=2, kind=kind), np.random.default_rng(5)
    for _ in range(20):
        gradients, secret = random.standard_normal((15, 6)), random.standard_normal(6)
        replies = dense(code) @ gradients
        order = random.permutation(15).tolist()
        lying = sorted(order[:2])
        replies[lying] = random.standard_normal((2, 6)) * 1e3
        decoder = code.decoder()
        assert decoder.residual == 1.0
        for worker in order[:13]:
            decoder.measure(worker, float(replies[worker] @ secret))  # type: ignore[attr-defined]
            decoder.add(worker)
        assert decoder.decodable and decoder.byzantine == tuple(lying)  # type: ignore[attr-defined]
        decoding = decoder.decode()
        assert decoding.exact and not decoding.weights[lying].any()
        assert decoding.weights @ replies == pytest.approx(gradients.sum(axis=0), abs=1e-8)


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("draco:byzantine=4", "draco:byzantine=4,stragglers=0 needs 2 x byzantine + stragglers + 1 workers, and there are 8; at most 3 may lie"),
        ("draco:byzantine=3,stragglers=3", "at most 2 may lie"),
        ("draco:byzantine=-1", "byzantine must be a whole number of at least 0, got -1; nearest: draco:byzantine=0"),
        ("draco:kind=other", "should be one of repetition, cyclic, got 'other'"),
    ],
)  # fmt: skip
def test_draco_codes_that_do_not_exist(spec: str, sentence: str) -> None:
    with pytest.raises(BadInput) as caught:
        anyk.code(spec, workers=8)
    assert sentence in str(caught.value)


# ------------------------------------------------------------------------------------------- trees


@pytest.mark.parametrize(
    ("c", "s", "depth", "fraction"),
    [(5, 1, 2, 0.1142857), (8, 1, 3, 0.0119048), (4, 1, 3, 1 / 14), (3, 2, 2, 1 / 2), (3, 0, 2, 1 / 12)],
)
def test_golden_fractions_and_every_node_computes_as_much(c: int, s: int, depth: int, fraction: float) -> None:
    n = sum(c**level for level in range(1, depth + 1))
    code = TreeCode(n, children=c, stragglers=s)
    assert code.depth == depth
    assert code.load / code.partitions == pytest.approx(fraction, rel=1e-5)
    assert 1 / sum((c / (s + 1)) ** level for level in range(1, depth + 1)) == pytest.approx(fraction, rel=1e-5)
    assert {len(held) for held in code.assignment} == {code.load}
    assert sorted({j for held in code.assignment for j in held}) == list(range(code.partitions))
    handed = (s + 1) / c  # what the first layer covers, then layer by layer
    for layer in range(depth):
        first = sum(c**level for level in range(1, layer + 1))
        assert len(code.covers[first]) / code.partitions == pytest.approx(handed)
        handed = (s + 1) / c * (handed - code.load / code.partitions)


@settings(deadline=None, max_examples=40)
@given(st.integers(2, 5), st.integers(1, 3))
def test_parents_and_children_are_a_regular_tree(c: int, depth: int) -> None:
    n = sum(c**level for level in range(1, depth + 1))
    code = TreeCode(n, children=c)
    assert code.children_of(ROOT) == range(c)
    below = [child for node in range(ROOT, n) for child in code.children_of(node)]
    assert below == list(range(n))
    for node in range(ROOT, n):
        assert len(code.children_of(node)) in (0, c)
        assert all(code.parents[child] == node for child in code.children_of(node))
        assert node == ROOT or code.shares[node].children == tuple(code.children_of(node))


@pytest.mark.parametrize(("c", "s"), [(3, 1), (4, 1), (3, 2)])
def test_any_dead_children_at_every_parent_leave_weights_that_add_up_to_one(c: int, s: int) -> None:
    code = TreeCode(c + c * c, children=c, stragglers=s)
    B = dense(code)
    patterns = list(product(combinations(range(c), s), repeat=c + 1))
    random = np.random.default_rng(0)
    for at in random.choice(len(patterns), min(len(patterns), 150), replace=False).tolist():
        dead = {
            code.children_of(node)[i] for node, lost in zip(range(ROOT, c), patterns[at], strict=True) for i in lost
        }
        alive = sorted(set(range(code.workers)) - dead)
        decoding = code.decode_exactly(alive)
        assert np.abs(decoding.weights @ B - 1).max() < 1e-9
        for node in sorted(dead):
            assert not decoding.weights[[node, *code.children_of(node)]].any()  # who is cut off counts nothing


@pytest.mark.parametrize(
    ("n", "c", "s", "dead"), [(30, 5, 1, 1), (84, 4, 1, 1), (39, 3, 1, 1), (30, 5, 2, 2), (5, 5, 2, 2)]
)
def test_messages_up_the_tree_give_the_sum(n: int, c: int, s: int, dead: int) -> None:
    code, random = TreeCode(n, children=c, stragglers=s), np.random.default_rng(n)
    for _ in range(15):
        gradients = random.standard_normal((code.partitions, 3))
        lost = {child for node in range(ROOT, n) if (below := code.children_of(node))
                for child in random.choice(list(below), dead, replace=False).tolist()}  # fmt: skip
        messages: dict[int, np.ndarray] = {}
        for node in reversed(range(ROOT, n)):
            total = np.zeros(3)
            if node != ROOT:
                share = code.shares[node]
                total += np.array(share.coefficients) @ gradients[list(share.partitions)]
            if len(code.children_of(node)):
                ready = [child for child in code.children_of(node) if child not in lost]
                weights = code.weights_below(node, ready)
                assert weights is not None and set(weights) <= set(ready)
                total += sum((weight * messages[child] for child, weight in weights.items()), np.zeros(3))
            messages[node] = total
        assert messages[ROOT] == pytest.approx(gradients.sum(axis=0), abs=1e-9)
        replies = sorted(set(range(n)) - lost)
        assert code.decode(replies).weights @ dense(code) == pytest.approx(np.ones(code.partitions), abs=1e-9)


def test_a_parent_waits_while_its_children_do_not_suffice() -> None:
    code = TreeCode(20, children=4)
    assert code.weights_below(ROOT, []) is None and code.weights_below(ROOT, [0, 1]) is None
    assert code.weights_below(2, [12, 15]) == {12: 1.0, 15: 1.0}
    decoder = code.decoder()
    said = [decoder.add(worker) for worker in (0, 2, 4, 6, 12, 14)]
    assert said == [False] * 5 + [True]


def test_a_tree_of_one_layer_is_a_plain_code() -> None:
    for n, s in ((6, 1), (6, 2), (5, 1), (4, 0)):
        code = TreeCode(n, children=n, stragglers=s)
        plain = FractionalRepetition(n, stragglers=s) if n % (s + 1) == 0 else CyclicRepetition(n, stragglers=s)
        assert code.depth == 1 and code.partitions == n
        assert dense(code) == pytest.approx(dense(plain))


@pytest.mark.parametrize(
    ("n", "spec", "sentence"),
    [
        (
            30,
            "tree:children=4",
            "tree:children=4 does not exist for 30 workers: they must number c + c^2 + … + c^L; nearest: ",
        ),
        (30, "tree:children=5,stragglers=5", "tree: stragglers must be below children (5), got 5"),
        (30, "tree:children=5,stragglers=-1", "stragglers must be at least 0 and below workers (30), got -1"),
    ],
)
def test_trees_that_do_not_exist(n: int, spec: str, sentence: str) -> None:
    with pytest.raises(BadInput) as caught:
        anyk.code(spec, workers=n)
    assert sentence in str(caught.value)


# ------------------------------------------------------------------------------------------- decoding methods

METHOD_CODES = [
    ("bgc:load=4", 20),
    ("biregular:load=4", 20),
    ("graph:load=4", 20),
    ("frc:load=2", 12),
    ("mds:stragglers=2", 9),
]
METHOD_CODES += [("cyclic:stragglers=3", 10), ("expander:load=4", 20), ("bibd", 13)]


@pytest.mark.parametrize(("spec", "n"), METHOD_CODES)
def test_algorithmic_decoding_never_grows_its_error_and_ends_at_least_squares(spec: str, n: int) -> None:
    code, random = made(spec, n), np.random.default_rng(n)
    for r in (n // 2, n - 2):
        replied = random.choice(n, r, replace=False)
        counts = [1, 2, 3, 5, 10, 50, 200]
        errors = [code.decode(replied, decoder=Algorithmic(k)).residual for k in counts]
        best = code.decode(replied, decoder=LeastSquaresMethod()).residual
        assert errors[0] <= 1.0 and all(
            later <= earlier + 1e-12 for earlier, later in zip(errors, errors[1:], strict=False)
        )
        assert errors[-1] >= best - 1e-9 and best == pytest.approx(least_squares(code, replied.tolist())[1], abs=1e-8)
        assert code.decode(replied, decoder="algorithmic").residual == errors[5]


def test_algorithmic_decoding_converges_to_the_weights_of_least_norm() -> None:
    code = made("biregular:load=4", 12)
    replied = [0, 1, 2, 5, 7, 8, 11]
    found = code.decode(replied, decoder=Algorithmic(20_000))
    assert found.weights == pytest.approx(least_squares(code, replied)[0], abs=1e-6)


def test_one_gradient_step_from_zero_by_hand() -> None:
    code = made("frc:load=2", 4)  # nu = 2 x 2 with all replies: column sums 2, row sums 2
    assert code.decode(range(4), decoder=Algorithmic(1)).weights.tolist() == [0.5] * 4
    assert code.decode([0, 2], decoder=Algorithmic(1)).weights.tolist() == [1.0, 0.0, 1.0, 0.0]
    assert code.decode([], decoder=Algorithmic(3)).weights.tolist() == [0.0] * 4


@pytest.mark.parametrize(("spec", "n"), METHOD_CODES)
def test_methods_by_name_and_as_values_are_the_same(spec: str, n: int) -> None:
    code = made(spec, n)
    for name, value in (
        ("own", Own()),
        ("least-squares", LeastSquaresMethod()),
        ("one-step", OneStep()),
        ("algorithmic", Algorithmic()),
    ):
        by_name, by_value = (code.decode(range(n - 2), decoder=how) for how in (name, value))
        assert by_name is by_value
    assert code.decode(range(n), decoder="exact").exact if not spec.startswith("bgc") else True


@pytest.mark.parametrize(("spec", "n"), METHOD_CODES)
def test_what_was_decoded_before_is_remembered_and_cannot_be_written(spec: str, n: int) -> None:
    code = anyk.code(spec, workers=n)
    one = code.decode([1, 0, 2])
    assert code.decode([2, 1, 0]) is one and code.decode(np.array([0, 1, 2])) is one and code.decode({0, 1, 2}) is one
    assert code.decode([0, 1, 3]) is not one
    assert code.decode([0, 1, 2], decoder=Algorithmic(7)) is code.decode([0, 1, 2], decoder=Algorithmic(7))
    assert code.decode([0, 1, 2], decoder=Algorithmic(8)) is not code.decode([0, 1, 2], decoder=Algorithmic(7))
    with pytest.raises(ValueError, match="read-only"):
        one.weights[0] = 5.0


def test_the_exact_method_raises_where_the_sum_would_not_be_exact() -> None:
    for spec, n in METHOD_CODES:
        code = made(spec, n)
        with pytest.raises(NotDecodable, match=rf"1 of {n} replies do not give the exact sum"):
            code.decode([0], decoder=Exact())
    with pytest.raises(NotDecodable, match="only an approximation"):
        made("bibd", 13).decode(range(12), decoder="exact")


def test_methods_that_do_not_exist() -> None:
    code: Code = made("frc:load=2", 4)
    with pytest.raises(
        BadInput, match="no decoder 'two-step'; there are own, exact, least-squares, one-step, algorithmic"
    ):
        code.decode([0], decoder="two-step")
    for iterations in (0, -3):
        with pytest.raises(BadInput, match=f"iterations must be a whole number of at least 1, got {iterations}"):
            Algorithmic(iterations)
