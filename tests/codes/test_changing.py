"""Codes that follow a fleet: what moves when workers come and go, and what the code still tolerates."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import anyk
from anyk.base.keyed import keyed_generator
from anyk.codes import BernoulliCode, FractionalRepetition, Uncoded
from anyk.codes.changing import GroupedRepetition, PartialBernoulli, first_groups, follow
from anyk.codes.decoders import method

pytestmark = pytest.mark.in_process

MOST, PARTITIONS = 16, 64


def code_for(stragglers: int):
    return FractionalRepetition(MOST, stragglers=stragglers) if stragglers else Uncoded(MOST)


def held(groups) -> dict[int, set[int]]:
    return {worker: set(block) for members, block in zip(*groups, strict=True) for worker in members}


def fleets(seed: int, smallest: int, events: int):
    """Sets of workers that differ by one worker each, and the least share of the data that must move for each change."""
    random = keyed_generator(seed, "fleet")
    present = set(range(12))
    yield present, 0.0
    for _ in range(events):
        joins = len(present) == smallest or (len(present) < MOST and random.random() < 0.5)
        others = sorted(set(range(MOST)) - present if joins else present)
        worker = others[int(random.integers(len(others)))]
        share = 1.0 / (len(present) + joins)
        present = present | {worker} if joins else present - {worker}
        yield present, share


@pytest.mark.parametrize(("stragglers", "smallest", "bound"), [(2, 9, 1.3), (1, 9, 1.3), (0, 4, 1.0)])
def test_little_moves_and_loads_stay_even(stragglers: int, smallest: int, bound: float) -> None:
    """Of 1,000 joins and departures: the data moved against an eager repair, which copies each share at once.

    A new even layout each time moves 2.7 times as much as an eager repair with two stragglers.
    """
    code, groups, total, least, loads = code_for(stragglers), None, 0, 0.0, []
    for present, share in fleets(1, smallest, 1000):
        before = {} if groups is None else held(groups)
        groups = (
            first_groups(code, present, PARTITIONS) if groups is None else follow(code, *groups, present, PARTITIONS)
        )
        after = held(groups)
        if before:
            total += sum(
                len(partitions - before.get(worker, set())) for worker, partitions in after.items() if worker in present
            )
        least += share * (stragglers + 1) * PARTITIONS
        loads.append(sum(map(len, after.values())) / ((stragglers + 1) * PARTITIONS))
    assert total <= bound * least
    assert np.mean(loads) <= 1.2


@pytest.mark.slow
@given(
    stragglers=st.integers(0, 3),
    partitions=st.integers(MOST, 70),
    changes=st.lists(st.sets(st.integers(0, MOST - 1), min_size=4), min_size=1, max_size=8),
)
@settings(max_examples=150, deadline=None)
def test_any_change_leaves_a_code_that_tolerates_what_it_must(stragglers, partitions, changes) -> None:
    """Also if half of the fleet is replaced: every partition is in one group, with more members than stragglers."""
    code = code_for(stragglers)
    groups = first_groups(code, changes[0], partitions)
    for present in changes:
        groups = follow(code, *groups, present, partitions)
        built = GroupedRepetition(MOST, code, tuple(zip(map(tuple, groups[0]), map(tuple, groups[1]), strict=True)))
        assert sorted(worker for group in groups[0] for worker in group) == sorted(present)
        assert sorted(j for block in groups[1] for j in block) == list(range(partitions))
        assert built.tolerates >= stragglers
        assert max(built.sizes) - min(built.sizes) <= 1
        lost = {worker for group in groups[0] for worker in group[:1]} if stragglers else set()
        decoding = built.decode(sorted(present - set(sorted(lost)[:stragglers])))
        assert decoding.residual == 0.0
        assert not any(built.rows[worker][0] for worker in set(range(MOST)) - present)


def test_nothing_moves_while_enough_members_are_left() -> None:
    code = code_for(1)
    members, blocks = [[0, 1, 2], [3, 4, 5]], [[0, 1], [2, 3]]
    assert follow(code, members, blocks, {0, 2, 3, 5}, 4) == ([[0, 2], [3, 5]], blocks)
    assert follow(code, [[0, 2], [3, 5]], blocks, {0, 2, 3, 5, 6}, 4) == ([[0, 2, 6], [3, 5]], blocks)


def test_a_bernoulli_code_keeps_the_samples_of_workers_that_stay() -> None:
    """With one worker less the probability rises, and only few partitions are added; replication stays the same."""
    base = BernoulliCode(MOST, expected_load=4)
    full, fewer = (PartialBernoulli(MOST, 640, base, tuple(range(n))) for n in (16, 15))
    unchanged = [set(a) <= set(b) for a, b in zip(full.assignment[:15], fewer.assignment[:15], strict=True)]
    assert all(unchanged)
    assert full.replication == pytest.approx(4.0, rel=0.05)
    assert fewer.replication == pytest.approx(4.0, rel=0.05)
    assert fewer.encoding[15].nnz == 0
    assert (np.asarray(fewer.encoding.sum(axis=0)) >= 1).all()


def test_absent_workers_do_not_make_the_sum_larger() -> None:
    """The mean coefficient of one-step decoding is 1 when all who are there have replied."""
    present = (1, 4, 5, 8, 13)
    groups = tuple(
        (tuple(group), tuple(block)) for group, block in zip(*first_groups(Uncoded(MOST), present, 64), strict=True)
    )
    bernoulli = PartialBernoulli(MOST, 64, BernoulliCode(MOST), present)
    for code in (bernoulli, GroupedRepetition(MOST, Uncoded(MOST), groups)):
        weights = method("one-step").weights(code, np.array(present))
        assert (weights @ code.encoding).mean() == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("cyclic:stragglers=2", "'cyclic:stragglers=2' is a code for a fixed number of workers"),
        ("mds:stragglers=2", "is a code for a fixed number of workers"),
        ("frc:load=4", "use frc:stragglers=s, for example frc:stragglers=3"),
        ("k-sync:k=9", "wait=9 is more than the smallest number of workers"),
        ("async", "'async' is for a fixed number of workers"),
        ("uncoded:shares=" + "/".join("1" * MOST), "shares belong to a fixed fleet"),
        ("frc:stragglers=5", "needs at least 6 workers to lose 5, got 4"),
        ("uncoded:batch=0,order=epoch", "order=epoch orders the mini-batches"),
    ],
)
def test_what_cannot_follow_is_refused_by_name(spec: str, sentence: str) -> None:
    with pytest.raises(anyk.BadInput, match=sentence):
        anyk.strategy(spec, workers=(4, MOST))


@pytest.mark.parametrize(("fewest", "partitions"), [(0, None), (17, None), (4, 15), (4, 10**12)])
def test_sizes_that_do_not_exist_are_refused(fewest: int, partitions: int | None) -> None:
    with pytest.raises(anyk.BadInput, match="must be"):
        anyk.strategy("uncoded", workers=(fewest, MOST), partitions=partitions)
