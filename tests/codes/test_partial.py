"""Partial stragglers: two messages a worker, the balance of their sizes, and who need not be waited for."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

import anyk
from anyk.base.specs import parse_spec
from anyk.codes import PartialStragglers
from anyk.testing import check_code
from code_oracles import dense, least_squares, subsets

pytestmark = pytest.mark.in_process


def private_share(n: int, s: int, alpha: Fraction) -> Fraction:
    """n1: from alpha n1 = n1 + n2, n2 = (s + 1) coded / n and n n1 + coded = 1."""
    return (s + 1) / (n * (s + alpha))


CODES = [
    PartialStragglers(n, stragglers=s, load=w, inner=inner)  # type: ignore[arg-type]
    for n in (1, 2, 3, 4, 5)
    for s in range(n)
    for w in ((s + 2, 2 * s + 3) if n < 4 else (s + 2,))
    for inner in ("frc", "cyclic")
]


def test_the_published_shares() -> None:
    share = private_share(12, 3, Fraction(4))
    assert float(share) == pytest.approx(0.0476190, abs=5e-8)
    assert float(4 * share) == pytest.approx(0.1904762, abs=5e-8)  # private and coded together
    assert private_share(12, 3, Fraction(1)) == Fraction(1, 12)  # no slower than the rest: uncoded


@pytest.mark.slow
def test_shares_of_whole_partitions_are_the_balanced_ones() -> None:
    """alpha n1 = n1 + n2 holds without rounding, for every code there is up to 12 workers."""
    for n in range(1, 13):
        for s in range(n):
            for w in range(s + 2, s + 12):
                code = PartialStragglers(n, stragglers=s, load=w)
                alpha = Fraction(w, w - s - 1)
                assert code.alpha == pytest.approx(float(alpha), rel=1e-15)
                first = Fraction(len(code.rows[0][0]), code.partitions)
                assert first == private_share(n, s, alpha)
                assert code.partitions == n * (w - s) and code.messages == 2 and code.replies == 2 * n
                if n % (s + 1) == 0:  # groups of equal size: every worker has w partitions
                    assert {len(partitions) for partitions in code.assignment} == {w} == {code.load}
                    assert Fraction(w, code.partitions) == alpha * first


@pytest.mark.parametrize("inner", ["frc", "cyclic"])
def test_the_load_is_the_most_that_any_worker_computes(inner: str) -> None:
    code = anyk.code(f"partial:stragglers=1,load=3,inner={inner}", workers=7)  # groups of 2, 2 and 3
    check_code(code)
    assert code.load == (4 if inner == "frc" else 3)
    assert anyk.code(code.spec, workers=7) == code


@pytest.mark.parametrize("code", CODES, ids=lambda code: f"{code.workers}-{code.spec}")
def test_private_parts_are_disjoint_beside_the_inner_code(code: PartialStragglers) -> None:
    B, n = dense(code), code.workers
    private = n * (int(parse_spec(code.spec)[1]["load"]) - code.stragglers - 1)
    first, second = B[0::2], B[1::2]
    assert np.array_equal(first.sum(axis=0), np.r_[np.ones(private), np.zeros(n)])
    assert set(np.unique(first)) <= {0.0, 1.0} and len(set(first.sum(axis=1))) == 1
    assert not second[:, :private].any()
    assert np.array_equal(second[:, private:], dense(code.code))
    assert code.code.tolerates >= code.stragglers and code.tolerates == 0


@pytest.mark.slow
@pytest.mark.parametrize("code", [c for c in CODES if c.workers < 5], ids=lambda code: f"{code.workers}-{code.spec}")
def test_all_sets_of_messages(code: PartialStragglers) -> None:
    """Decodable exactly when all first messages are in and the inner code can do without the missing second ones."""
    n = code.workers
    for replied in subsets(range(2 * n)):
        decoder = code.decoder()
        for message in replied:
            decoder.add(message)
        firsts = [r // 2 for r in replied if r % 2 == 0]
        seconds = [r // 2 for r in replied if r % 2]
        nearest = least_squares(code, replied)[1]
        assert decoder.decodable == (nearest < 1e-8)
        assert decoder.decodable == (len(firsts) == n and least_squares(code.code, seconds)[1] < 1e-8)
        decoding = code.decode(replied)
        assert decoding.residual == pytest.approx(nearest, abs=1e-9)
        assert decoder.residual == pytest.approx(nearest, abs=1e-9)
        if len(firsts) == n and len(seconds) >= n - code.stragglers:
            assert decoder.decodable and np.abs(decoding.weights @ dense(code) - 1).max() < 1e-9


@pytest.mark.parametrize("inner", ["frc", "cyclic"])
@pytest.mark.parametrize(("n", "s", "w"), [(6, 2, 4), (6, 1, 4), (4, 1, 6), (6, 3, 5)])
def test_slow_workers_are_not_waited_for_whoever_they_are(n: int, s: int, w: int, inner: str) -> None:
    """With s workers alpha times slower the sum is there when a normal worker is done with all its w partitions."""
    code = PartialStragglers(n, stragglers=s, load=w, inner=inner)  # type: ignore[arg-type]
    alpha = Fraction(w, w - s - 1)
    for slow in subsets(range(n), s, s):
        speeds = [alpha if i in slow else Fraction(1) for i in range(n)]
        arrivals = [float(seconds) for speed in speeds for seconds in (speed * (w - s - 1), speed * w)]
        assert code.finish_times(arrivals) == pytest.approx([w], rel=1e-12)
    # one more slow worker and somebody is waited for, wherever the inner code promises no more than s
    if code.code.tolerates == s:
        late = [2 * w if i in range(s + 1) else w for i in range(n)]
        arrivals = [float(seconds) for i in range(n) for seconds in (w, late[i])]
        assert code.finish_times(arrivals)[0] == 2 * w


def test_defaults() -> None:
    code = PartialStragglers(6)
    assert (code.stragglers, code.load, code.alpha, code.spec) == (1, 4, 2.0, "partial:stragglers=1,load=4")


def test_a_misspelt_inner_code_is_refused() -> None:
    """In Python as in a spec: not quietly another code."""
    with pytest.raises(ValueError, match="frcc"):
        PartialStragglers(4, inner="frcc").rows  # type: ignore[arg-type]  # noqa: B018
