"""finish_times: the moment at which the incremental decoder, fed in order of arrival, first says yes; and their means."""

from __future__ import annotations

from fractions import Fraction
from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from anyk.base.errors import BadInput
from anyk.codes import (
    BernoulliCode,
    Code,
    HeterogeneousCode,
)
from anyk.delays import ShiftedExponential
from code_oracles import AnyMatrix, harmonic, lost_chance, made

pytestmark = pytest.mark.in_process

SPECS = ["uncoded", "frc:load=2", "frc:stragglers=3", "frc:stragglers=2,partitions=4", "cyclic:stragglers=2"]
SPECS += ["cyclic:stragglers=0", "partial:stragglers=1,load=3", "partial:stragglers=2,load=4,inner=cyclic"]


def one_by_one(code: Code, times: np.ndarray) -> float:
    """The decoder's own word, reply by reply; who comes at the same time comes by number."""
    decoder = code.decoder()
    for time, reply in sorted((time, reply) for reply, time in enumerate(times.tolist())):
        if np.isfinite(time) and decoder.add(reply):
            return float(time)
    return np.inf


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(SPECS), st.data())
def test_they_are_the_decoders_own(spec: str, data: st.DataObject) -> None:
    code = made(spec, 8)
    ties = st.sampled_from([0.0, 0.5, 1.0, 2.0, np.inf])
    element = data.draw(st.sampled_from([ties, st.floats(0, 10), st.one_of(ties, st.floats(0, 10))]))
    rounds = data.draw(arrays(np.float64, (3, code.replies), elements=element))
    assert code.finish_times(rounds).tolist() == [one_by_one(code, row) for row in rounds]


@settings(deadline=None, max_examples=40)
@given(st.sampled_from(SPECS), st.data())
def test_later_replies_never_finish_a_round_earlier(spec: str, data: st.DataObject) -> None:
    code = made(spec, 8)
    times = data.draw(arrays(np.float64, (1, code.replies), elements=st.floats(0, 10)))
    later = times.copy()
    later[0, data.draw(st.integers(0, code.replies - 1))] += data.draw(st.sampled_from([0.5, np.inf]))
    assert code.finish_times(later)[0] >= code.finish_times(times)[0]
    assert code.finish_times(times + 3.0)[0] == pytest.approx(code.finish_times(times)[0] + 3.0)


def test_an_unstructured_code_uses_its_decoder() -> None:
    code = AnyMatrix(4, ((1, 1, 0), (0, 0, 1), (1, 0, 0), (0, 1, 0)))
    times = [[1, 2, 3, 4], [9, 2, 3, 4], [1, np.inf, 3, 4], [5, 5, 5, 5], [4, 3, 2, 1]]
    assert code.finish_times(times).tolist() == [2, 4, np.inf, 5, 3]


def test_one_round_may_be_given_flat() -> None:
    assert made("frc:load=2", 8).finish_times(range(8)).tolist() == [6]


@pytest.mark.parametrize("spec", SPECS)
def test_arrivals_of_the_wrong_kind_are_named(spec: str) -> None:
    code = made(spec, 8)
    for wrong in ([1.0] * (code.replies - 1), np.zeros((2, 3, code.replies)), 3.0):
        with pytest.raises(BadInput, match=rf"arrivals must have shape \(rounds, {code.replies}\), got \("):
            code.finish_times(wrong)
    times = np.ones(code.replies)
    times[2] = np.nan
    with pytest.raises(BadInput, match=r"arrivals must be numbers \(inf for a worker that never replies\), got NaN"):
        code.finish_times(times)


# ------------------------------------------------------------------------------------------- expectations

ROUNDS = 20_000


def arrivals(load: int) -> np.ndarray:
    """ErasureHead's model at n = 30, lambda = 1/3: a worker with c tasks takes c/n + Exp(rate lambda n / c)."""
    law = ShiftedExponential(shift=load / 30, mean=load / 10)
    return np.array([law.draws(1, worker, 0, ROUNDS) for worker in range(30)]).T


def within(sample: np.ndarray, mean: float | Fraction) -> bool:
    return abs(sample.mean() - float(mean)) < 4 * sample.std() / len(sample) ** 0.5


def test_erasureheads_times_per_step() -> None:
    """Uncoded, exact and stopped at the 11th reply: the closed forms, and the printed one that is not exact."""
    uncoded = Fraction(1, 30) + harmonic(30) / 10
    exact = Fraction(3, 30) + harmonic(10) / 10
    eleventh = Fraction(3, 30) + 3 * (harmonic(30) - harmonic(19)) / 10
    printed = Fraction(3, 30) + (harmonic(30) - harmonic(3)) / 10
    assert float(uncoded) == pytest.approx(0.4328320464, rel=1e-9)
    assert float(exact) == pytest.approx(0.3928968254, rel=1e-9)
    assert float(eleventh) == pytest.approx(0.2341742421, rel=1e-9)
    assert float(printed) == pytest.approx(0.3161653798, rel=1e-9)
    assert within(made("uncoded", 30).finish_times(arrivals(1)), uncoded)
    coded = arrivals(3)
    finish = made("frc:load=3", 30).finish_times(coded)
    assert within(finish, exact) and not within(finish, printed)
    reply = np.sort(coded, axis=1)[:, 10]
    assert within(reply, eleventh)
    assert within(np.minimum(reply, finish), 0.23415)  # a round ends with either
    # the sum was complete by then: the chance of test_all_groups_by_eleven_random_replies
    assert np.mean(finish <= reply) == pytest.approx(0.0108094304, abs=4 * (0.0108 / ROUNDS) ** 0.5)


def test_any_28_of_30() -> None:
    expected = Fraction(3, 30) + 3 * (harmonic(30) - harmonic(2)) / 10
    assert float(expected) == pytest.approx(0.8484961393, rel=1e-9)
    assert within(made("cyclic:stragglers=2", 30).finish_times(arrivals(3)), expected)


# ------------------------------------------------------------------------------------------- stopped early


def random_sums(replies: int, rounds: int) -> np.ndarray:
    """For random sets of replies: which of the ten groups of frc:load=3 have answered, by the decoder's weights."""
    code, random = made("frc:load=3", 30), np.random.default_rng(replies)
    chosen = [code.decode(random.choice(30, replies, replace=False)).weights for _ in range(rounds)]
    return np.array(chosen).reshape(rounds, 10, 3).sum(axis=2)


@pytest.mark.slow
def test_the_published_q() -> None:
    """p is the chance that a given group did not answer, 1 - q that two given groups did; of 15 and 11 replies."""
    for r, p, q in ((15, 0.112069, 0.215709), (11, 0.2386699507, 0.4316458254)):
        one, both = lost_chance(30, 3, r), lost_chance(30, 6, r)
        assert float(2 * one - both) == pytest.approx(q, rel=5e-6)
        assert p <= q <= 2 * p and p <= np.exp(-3 * r / 30)
        answered = random_sums(r, 4000)
        assert set(np.unique(answered)) == {0.0, 1.0}
        assert within(answered.mean(axis=1), 1 - p)
        pairs = (answered.sum(axis=1) ** 2 - answered.sum(axis=1)) / 90  # the mean over all pairs of groups
        assert within(pairs, 1 - q)


@pytest.mark.slow
def test_all_groups_by_eleven_random_replies() -> None:
    """By inclusion and exclusion it is 0.0108094304; on average 7.6 of the ten groups have answered."""
    covered = sum((-1) ** j * comb(10, j) * lost_chance(30, 3 * j, 11) for j in range(11))
    assert float(covered) == pytest.approx(0.0108094304, rel=1e-8)
    answered = random_sums(11, 4000).sum(axis=1)
    assert within(answered, 7.6133004926)
    assert np.mean(answered == 10) == pytest.approx(0.0108094304, abs=4 * (0.0108 / 4000) ** 0.5)


def test_nothing_is_promised_for_codes_that_are_not_exact_at_all() -> None:
    code = BernoulliCode(6, expected_load=2, seed=0)
    assert code.decode(range(6)).residual > 0.1 and code.worst_error(0) is None
    assert HeterogeneousCode(6).worst_error(0) is None
