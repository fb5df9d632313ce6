"""ErasureHead's theorems, bounds on load and on error against time: values, enumeration and Monte Carlo."""

from __future__ import annotations

from itertools import combinations
from math import exp

import numpy as np
import pytest

import anyk
from anyk.base.errors import BadInput
from anyk.fleet import adversarial_threshold, best_k, chosen_stragglers, error_after, error_floor, threshold_bound
from anyk.fleet.theory.erasurehead import excess_bound, missing, seconds_bound, step_seconds
from anyk.strategies import Arbitrary, Bursty, GilbertElliott, PerRound

pytestmark = pytest.mark.in_process

KNOWLEDGE = ("code", "overlaps", "nothing")


@pytest.mark.parametrize(("n", "c", "r"), [(12, 3, 5), (10, 2, 4), (8, 4, 1), (6, 2, 6)])
def test_chances_of_missing_groups_by_enumeration(n: int, c: int, r: int) -> None:
    sets = [set(chosen) for chosen in combinations(range(n), r)]
    first, second = set(range(c)), set(range(c, 2 * c))
    p = np.mean([not first & chosen for chosen in sets])
    q = np.mean([not first & chosen or not second & chosen for chosen in sets])
    chance = missing(n, c, r)
    assert chance == pytest.approx((p, q), abs=1e-12)
    assert chance.one <= chance.either <= 2 * chance.one and chance.one <= exp(-c * r / n)


@pytest.mark.parametrize(("partitions", "load", "replies"), [(24, 4, 5), (6, 1, 7), (24, 6, 3)])
def test_chances_and_seconds_for_any_number_of_partitions(partitions: int, load: int, replies: int) -> None:
    """Workers and partitions in anyk's own repetition code; every set of replies, and 40,000 steps."""
    code = anyk.code(f"frc:load={load},partitions={partitions}", workers=12)
    p, q = missing(12, load, replies, partitions=partitions)
    coefficients = np.array([code.decode(s).weights @ code.encoding for s in combinations(range(12), replies)])
    lacking = np.abs(coefficients[:, ::load]) < 0.5  # one partition of each group
    assert (p, q) == pytest.approx((lacking[:, 0].mean(), (lacking[:, 0] | lacking[:, 1]).mean()), abs=1e-12)
    times = load / partitions * (1.0 + 2.0 * np.random.default_rng(3).exponential(size=(40_000, 12)))  # rate 1/2
    done = code.finish_times(times)
    assert step_seconds(12, load, rate=0.5, partitions=partitions) == pytest.approx(done.mean(), rel=0.01)
    fifth = np.sort(times, axis=1)[:, 4].mean()
    assert step_seconds(12, load, 5, rate=0.5, partitions=partitions) == pytest.approx(fifth, rel=0.01)
    with pytest.raises(BadInput, match="is printed for as many partitions as workers, 12, got"):
        step_seconds(12, load, printed=True, partitions=partitions)
    with pytest.raises(BadInput, match="the 24 groups must divide the number of workers, 12"):
        missing(12, 1, 3, partitions=24)


@pytest.mark.parametrize("load", [1, 2, 3, 5])
def test_seconds_of_a_step_by_monte_carlo(load: int) -> None:
    """Lemma 8: a worker with c partitions takes c/n + Exp(rate n / c); n = 30, rate = 1/3."""
    n, rate = 30, 1.0 / 3.0
    times = load / n + np.random.default_rng(5).exponential(load / (rate * n), size=(40_000, n))
    done = anyk.code(f"frc:load={load}" if load > 1 else "uncoded", workers=n).finish_times(times)
    assert step_seconds(n, load, rate=rate) == pytest.approx(done.mean(), rel=0.01)
    eleventh = np.sort(times, axis=1)[:, 10]
    assert step_seconds(n, load, 11, rate=rate) == pytest.approx(eleventh.mean(), rel=0.01)
    assert np.minimum(done, eleventh).mean() <= eleventh.mean()  # hence an upper bound
    harmonic = [sum(1.0 / i for i in range(1, most + 1)) for most in (n, load)]
    printed = step_seconds(n, load, rate=rate, printed=True)
    assert printed == pytest.approx(load / n + (harmonic[0] - harmonic[1]) / (rate * n))  # (13)
    assert printed < 0.85 * done.mean()  # it is too small, for the load 1 as well


def test_theorem_3_holds_with_the_corrected_term_only() -> None:
    n, c = 30, 3
    steps = seconds_bound("exact", 0.01, 1.0, 4.0, 1.0, n, c) / ((c * np.log(n / c) + 2 * c) / n)
    time = step_seconds(n, c, rate=1 / c)
    assert seconds_bound("exact", 0.01, 1.0, 4.0, 1.0, n, c, printed=True) < steps * time
    for excess in (0.5, 0.01):
        for load in (2, 3, 5):
            steps = np.log(1.0 / excess) / -np.log(1.0 - 0.25)
            assert seconds_bound("exact", excess, 1.0, 4.0, 1.0, n, load) >= steps * step_seconds(
                n, load, rate=1 / load
            )
            uncoded = step_seconds(n, 1, rate=1 / load)
            assert seconds_bound("uncoded", excess, 1.0, 4.0, 1.0, n, load) >= steps * uncoded
    assert seconds_bound("approximate", 0.01, 1.0, 4.0, 1.0, n, 3, share=11 / 30) > 0


@pytest.mark.slow
def test_theorem_1_bounds_gradient_descent_on_what_arrives() -> None:
    """Least squares over random sets of replies; sigma is the largest gradient of a partition that was met."""
    n, c, r, steps, rng = 12, 3, 5, 60, np.random.default_rng(0)
    A, w_true = rng.standard_normal((n, 4, 3)), rng.standard_normal(3)
    b = A @ w_true + 0.1 * rng.standard_normal((n, 4))
    H = np.einsum("ijk,ijl->kl", A, A) / n
    beta, mu = np.linalg.eigvalsh(H)[[-1, 0]]
    best = np.linalg.lstsq(A.reshape(-1, 3), b.ravel(), rcond=None)[0]
    loss = lambda w: 0.5 * ((np.einsum("ijk,...k->...ij", A, w) - b) ** 2).sum(axis=(-1, -2)) / n  # noqa: E731
    p = missing(n, c, r).one
    for step, size in (("full", 1.0 / beta), ("scaled", (1.0 - p) / beta)):
        w, sigma = np.zeros((400, 3)), 0.0
        for _ in range(steps):
            parts = np.einsum("ijk,tij->tik", A, np.einsum("ijk,tk->tij", A, w) - b)
            sigma = max(sigma, float(np.linalg.norm(parts, axis=2).max()))
            heard = np.array([np.isin(np.arange(n), rng.choice(n, r, replace=False)) for _ in range(len(w))])
            groups = heard.reshape(-1, n // c, c).any(axis=2).repeat(c, axis=1)
            w -= size * np.einsum("ti,tik->tk", groups, parts) / (n * (1.0 - p))
        excess = float((loss(w) - loss(best)).mean())
        first = float(loss(np.zeros(3)) - loss(best))
        bound = excess_bound(steps, first, beta, mu, sigma, n, c, r, step=step)  # type: ignore[arg-type]
        assert 0.0 < excess < bound
        wider = excess_bound(steps, first, beta, mu, sigma, n, c, r, step=step, simple=True)  # type: ignore[arg-type]
        assert bound < wider


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda: missing(10, 3, 4), "load must divide the number of workers, 10, got 3"),
        (lambda: missing(9, 3, 10), "replies must be 1 to 9, got 10"),
        (
            lambda: excess_bound(1, 1, 1, 1, 1, 30, 2, 5, simple=True),
            "load x replies of at least n log 2 = 20.79, got 10",
        ),
        (lambda: seconds_bound("exact", 2, 1, 4, 1, 30, 3), "above 0 and below the first, 1, got 2"),
        (lambda: error_after(1, 1, 1, 2, 1, 1, 1, 1), "a rate x convexity above 0 and below 1, got 2"),
    ],
)
def test_constants_for_which_nothing_is_known_are_refused(call: object, reason: str) -> None:
    with pytest.raises(BadInput, match=reason):
        call()  # type: ignore[operator]


def test_bounds_on_load() -> None:
    """No sequential code of ours is below the bound; for all workers straggling M-SGC attains it."""
    n = 8
    for burst, window, most in ((1, 2, 2), (2, 3, 3), (1, 4, 5), (2, 4, n)):
        model = Bursty(burst, window, most)
        bound = model.load_bound(n)
        spec = f"m-sgc:B={burst},W={window},lambda={most}"
        load = anyk.strategy(spec, workers=n).load  # type: ignore[attr-defined]
        assert bound is not None and load >= bound - 1e-12
        assert (load == pytest.approx(bound)) == (most == n)
        repeated = np.zeros((3 * (window - 1 + burst), n), dtype=bool)  # the pattern that the bound is of conforms
        for start in range(0, len(repeated), window - 1 + burst):
            repeated[start : start + burst, :most] = True
        assert model.conforms(repeated)
    assert PerRound(3).load_bound(n) == pytest.approx(1 / 5) and PerRound(n).load_bound(n) == float("inf")
    assert Arbitrary(times=2, window=4, most=3).load_bound(n) == pytest.approx(4 / (32 - 6))
    assert GilbertElliott(0.1, 0.5).load_bound(n) is None


def test_error_against_time() -> None:
    args = (2.3, 0.2, 1.0, 0.2, 1.0)
    assert error_after(0.0, 1.0, *args, 4) == pytest.approx(2.3)
    assert error_after(1e6, 1.0, *args, 4) == pytest.approx(error_floor(0.2, 1.0, 0.2, 1.0, 4))
    pace = [k / 8 for k in range(1, 9)]
    for t in (10.0, 40.0, 90.0):
        errors = [error_after(t, pace[k - 1], *args, k) for k in range(1, 9)]
        assert best_k(t, pace, *args) == int(np.argmin(errors)) + 1
    assert [best_k(t, pace, *args) for t in (1.0, 1e4)] == [1, 8]


def test_what_an_adversary_needs_to_know() -> None:
    """In a block code whoever knows the overlaps finds the blocks; in a design nobody gains by knowing anything."""
    sbc = anyk.code("sbc:block=10,inside=0.5,outside=0.02,seed=3", workers=40)
    errors = {knows: chosen_stragglers(sbc, 10, knows=knows)[1].residual ** 2 for knows in KNOWLEDGE}
    assert errors["code"] >= errors["overlaps"] - 1e-12 and errors["overlaps"] > 2 * errors["nothing"]
    lost = chosen_stragglers(sbc, 10, knows="overlaps")[0]
    blocks = [set(sbc.assignment[i]) for i in lost]
    assert all(any(a & b for b in blocks if b is not a) for a in blocks)  # a community
    design = anyk.code("bibd", workers=13)
    assert len({round(chosen_stragglers(design, 5, knows=knows)[1].residual, 9) for knows in KNOWLEDGE}) == 1


@pytest.mark.slow
def test_thresholds() -> None:
    """Value of the gallery: an error of 0.1 takes 14 of 31 under PG(2, 5) and 6 under FRC of the same load."""
    for spec, workers, error, expected in (
        ("bibd", 31, 0.1, 14), ("frc:stragglers=5", 31, 0.1, 6), ("uncoded", 10, 0.1, 1), ("frc:load=5", 5, 0.5, None),
    ):  # fmt: skip
        threshold = adversarial_threshold(anyk.code(spec, workers=workers), error)
        assert (threshold.stragglers, threshold.found) == (expected, "exact")
    small = anyk.code("cyclic:stragglers=2", workers=7)
    for error in (0.05, 0.2, 0.5):
        exhaustive = next(
            (f for f in range(7) for lost in combinations(range(7), f)
             if small.decode([i for i in range(7) if i not in lost]).residual ** 2 >= error - 1e-12), None,
        )  # fmt: skip
        threshold = adversarial_threshold(small, error)
        assert (threshold.stragglers, threshold.found) == (exhaustive, "exact")
    for spec, workers in (("bibd", 13), ("biregular:load=3", 13), ("expander:load=4", 14), ("kronecker", 12)):
        code = anyk.code(spec, workers=workers)
        for error in (0.05, 0.2, 0.5):
            bound, threshold = threshold_bound(code, error), adversarial_threshold(code, error)
            assert threshold.found == "exact" and bound is not None and bound <= (threshold.stragglers or workers)
            assert spec != "bibd" or bound == threshold.stragglers
    assert threshold_bound(small, 0.2) is None
    with pytest.raises(BadInput, match="error must be a number above 0 and of at most 1, got 0"):
        adversarial_threshold(small, 0.0)
    with pytest.raises(BadInput, match="knows must be code, overlaps or nothing, got 'all'"):
        chosen_stragglers(small, 1, knows="all")  # type: ignore[arg-type]
