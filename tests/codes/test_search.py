"""The search for the worst stragglers: against enumeration, closed forms and swaps."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

import anyk
from anyk.codes import (
    Code,
    worst_stragglers,
)
from anyk.codes.decoders import METHODS
from anyk.codes.search import _Errors, is_exhaustive
from anyk.fleet import compare_codes, facts
from code_oracles import made

pytestmark = pytest.mark.in_process

OWN = METHODS["own"]


def error_without(code: Code, lost: tuple[int, ...], decoder: str = "own") -> float:
    remaining = np.setdiff1d(np.arange(code.workers), lost)
    return code.partitions * float(code.decode(remaining, decoder=decoder).residual) ** 2


@pytest.mark.parametrize(
    ("spec", "error"), [("sbc:load=4,block=5,inside=0.6", 3.9380188), ("biregular:load=4", 1.4979149)]
)
def test_all_4845_sets_are_compared(spec: str, error: float) -> None:
    """The errors are those of a least-squares solve for each of the sets."""
    code = anyk.code(spec, workers=20)
    lost, decoding = worst_stragglers(code, 4)
    assert is_exhaustive(code, 4, OWN) and error_without(code, lost) == pytest.approx(error, abs=1e-6)
    assert decoding.residual**2 * 20 == pytest.approx(error, abs=1e-6)
    assert facts(code, stragglers=4, sets=2).worst_known


def test_8_of_31_workers_that_a_greedy_search_misses() -> None:
    code = anyk.code("biregular:load=6,seed=2", workers=31)
    lost, decoding = worst_stragglers(code, 8)
    assert decoding.residual**2 == pytest.approx(error_without(code, (1, 8, 9, 18, 22, 23, 28, 29)) / 31, abs=1e-9)
    assert error_without(code, lost) / 31 == pytest.approx(0.08236, abs=1e-5)
    assert not is_exhaustive(code, 8, OWN) and not facts(code, stragglers=8, sets=2).worst_known


@pytest.mark.parametrize("spec", ["bgc:load=4", "biregular:load=3", "graph:load=3", "kronecker"])
def test_errors_of_sets_are_tight_upper_bounds(spec: str) -> None:
    """Also if rows depend on each other, as those of a graph with fewer vertices than edges."""
    code = anyk.code(spec, workers=12)
    errors = _Errors(code)
    sets = np.array(list(combinations(range(12), 3)))
    errors_of_sets = {tuple(lost): error_without(code, tuple(lost)) for lost in sets.tolist()}
    errors_found = errors.without(sets)
    assert (errors_found >= np.array(list(errors_of_sets.values())) - 1e-7).all()
    assert errors_found == pytest.approx(np.array(list(errors_of_sets.values())), abs=1e-4)
    lost = sets[5:6]
    more, (_, swapped) = errors.with_more(lost[:, :2]), errors.with_swap(lost)
    for i in set(range(12)) - set(lost[0].tolist()):
        assert more[0, i] == pytest.approx(errors_of_sets[tuple(sorted([*lost[0, :2].tolist(), i]))], abs=1e-3)
        for lost_number in range(3):
            swap = sorted([*np.delete(lost[0], lost_number).tolist(), i])
            assert swapped[0, lost_number, i] == pytest.approx(errors_of_sets[tuple(swap)], abs=1e-3)


def test_no_swap_makes_the_set_worse() -> None:
    code = anyk.code("sbc:load=4,block=6,inside=0.5", workers=30)
    lost, _ = worst_stragglers(code, 9)
    assert not is_exhaustive(code, 9, OWN)
    others = set(range(30)) - set(lost)
    swaps = [tuple(sorted({*lost, i} - {gone})) for i in others for gone in lost]
    assert max(error_without(code, swap) for swap in swaps) <= error_without(code, lost) + 1e-6


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spec", "n", "f"), [("frc:load=5", 60, 15), ("bcc", 31, 8), ("frc:load=4,partitions=20", 20, 8)]
)
def test_groups_are_silenced_one_by_one(spec: str, n: int, f: int) -> None:
    """The closed forms say how many partitions so many stragglers can silence."""
    code = anyk.code(spec, workers=n)
    error, attained = code.worst_error(f)  # type: ignore[misc]
    for decoder in ("own", "least-squares"):
        assert attained and error_without(code, worst_stragglers(code, f, decoder=decoder)[0]) == pytest.approx(error)


def test_another_decoder_against_all_its_sets() -> None:
    """One-step errors are cheap: of 18 choose 6, all by one product."""
    code = anyk.code("biregular:load=4", workers=18)
    replied = np.ones((18564, 18))
    np.put_along_axis(replied, np.array(list(combinations(range(18), 6))), 0.0, axis=1)
    sums = replied @ code.encoding.toarray() * (18 / (12 * 4))
    worst = np.square(sums - 1.0).sum(axis=1).max()
    worst_error = error_without(code, worst_stragglers(code, 6, decoder="one-step")[0], "one-step")
    assert 0.97 * worst < worst_error <= worst + 1e-9


@pytest.mark.slow
def test_a_curve_says_where_it_is_exact() -> None:
    biregular, design = compare_codes(["biregular:load=6", "bibd"], workers=31, most=6, sets=4)
    assert biregular.exact.tolist() == [True] * 6 + [False]  # 31 choose 6 are 736,281 sets
    assert design.exact.all()  # by the closed form


def test_greedy_stragglers_hurt_more_than_random_ones() -> None:
    code, random = made("biregular:load=4", 12), np.random.default_rng(2)
    for f in (1, 2, 3):
        lost, decoding = worst_stragglers(code, f)
        everyone = set(range(12))
        all_of_them = {
            tuple(chosen): code.decode(everyone - set(chosen)).residual for chosen in combinations(range(12), f)
        }
        assert len(lost) == f and decoding.residual == max(all_of_them.values())
        assert all_of_them[lost] == decoding.residual
    code = made("bgc:load=5", 40)
    lost, decoding = worst_stragglers(code, 8)
    drawn = [code.decode(random.choice(40, 32, replace=False)).residual for _ in range(50)]
    assert len(set(lost)) == 8 and decoding.residual > np.mean(drawn)
