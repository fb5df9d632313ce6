"""Delay models: quantiles, means, order statistics and fits against closed forms, and draws that only their key decides."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from math import comb, gamma
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from anyk import delays
from anyk.base.errors import BadInput
from anyk.base.keyed import keyed_uniform, keyed_uniforms
from anyk.delays import (
    Bimodal,
    Constant,
    DelayModel,
    DelayStream,
    Exponential,
    Heterogeneous,
    NoDelay,
    Pareto,
    ShiftedExponential,
    fit,
    parse,
)

pytestmark = pytest.mark.in_process

MODELS: list[DelayModel] = [
    Constant(0.25),
    Exponential(0.5),
    ShiftedExponential(1.0, 2.0),
    Pareto(1.5, 2.5),
    Bimodal(1.0, 10.0, 0.1),
    Heterogeneous((0.1, 1.0, 4.0)),
]
MEANS: list[Callable[[int], float]] = [
    lambda worker: 0.25,
    lambda worker: 0.5,
    lambda worker: 3.0,
    lambda worker: 1.5 * 2.5 / 1.5,
    lambda worker: 1.9,
    lambda worker: (0.1, 1.0, 4.0)[worker % 3],
]
LAWS: list[tuple[DelayModel, Any]] = [
    (Exponential(0.5), stats.expon(scale=0.5)),
    (ShiftedExponential(1.0, 2.0), stats.expon(loc=1.0, scale=2.0)),
    (Pareto(1.5, 2.5), stats.pareto(2.5, scale=1.5)),
    (Pareto(0.1, 0.8), stats.pareto(0.8, scale=0.1)),  # no mean
    (Heterogeneous((0.1, 1.0, 4.0)), stats.expon(scale=4.0)),  # worker 2
]


def within(sample: np.ndarray, mean: float) -> bool:
    return abs(sample.mean() - mean) <= 4 * sample.std() / len(sample) ** 0.5


def mean_of_kth(model: DelayModel, k: int, n: int) -> float:
    """E[X_{k:n}]: the quantile function against the law of the k-th smallest of n uniform draws."""

    def integrand(u: float) -> float:
        return float(model.seconds(np.array([u]), 0)[0]) * stats.beta.pdf(u, k, n - k + 1)

    return float(integrate.quad(integrand, 0, 1, epsabs=1e-12, epsrel=1e-11, limit=500)[0])


# ------------------------------------------------------------------------------------------- laws


@pytest.mark.parametrize(("model", "law"), LAWS, ids=lambda x: x.spec if isinstance(x, DelayModel) else "")
def test_seconds_are_the_quantiles(model: DelayModel, law: Any) -> None:
    u = np.array([0.0, 1e-12, 1e-3, 0.25, 0.5, 0.9, 0.999, 1 - 2**-53])
    assert model.seconds(u, 2) == pytest.approx(law.ppf(u), rel=1e-9)


@pytest.mark.parametrize(("model", "law"), LAWS, ids=lambda x: x.spec if isinstance(x, DelayModel) else "")
def test_draws_follow_the_law(model: DelayModel, law: Any) -> None:
    count = 40_000
    drawn = model.draws(3, 2, 0, count)
    assert stats.kstest(drawn, law.cdf).pvalue > 1e-3
    for p in (0.01, 0.5, 0.99, 0.999):  # tails: the number below a quantile is binomial
        assert abs(np.count_nonzero(drawn <= law.ppf(p)) - p * count) < 4 * (count * p * (1 - p)) ** 0.5


@pytest.mark.parametrize(("model", "mean"), list(zip(MODELS, MEANS, strict=True)), ids=lambda x: getattr(x, "spec", ""))
def test_means(model: DelayModel, mean: Callable[[int], float]) -> None:
    for worker in (0, 1, 2, 5):
        assert within(model.draws(1, worker, 0, 40_000), mean(worker)), worker


def test_a_constant_is_constant_and_none_is_nothing() -> None:
    assert set(Constant(0.25).draws(1, 0, 0, 1000).tolist()) == {0.25}
    assert set(NoDelay().draws(1, 0, 0, 1000).tolist()) == {0.0}


def test_two_values_with_the_stated_chance() -> None:
    drawn = Bimodal(1.0, 10.0, 0.3).draws(5, 0, 0, 40_000)
    assert set(drawn.tolist()) == {1.0, 10.0}
    assert within(drawn == 10.0, 0.3)


# ------------------------------------------------------------------------------------------- order statistics


def harmonic(n: int) -> Fraction:
    return sum((Fraction(1, i) for i in range(1, n + 1)), Fraction(0))


def pareto_kth(minimum: float, a: float, k: int, n: int) -> float:
    return minimum * gamma(n + 1) * gamma(n - k + 1 - 1 / a) / (gamma(n - k + 1) * gamma(n + 1 - 1 / a))


def test_published_order_statistics_of_eight() -> None:
    """Golden values 1, 2, 4, 8, 9 of the specification, by quadrature over the models' own quantile functions."""
    assert float(harmonic(8) - harmonic(4)) == pytest.approx(0.6345238095, rel=1e-9)
    assert pareto_kth(1, 2.5, 4, 8) == pytest.approx(1.3001872270, rel=1e-9)
    for model, k, golden in [
        (Exponential(1.0), 4, 0.6345238095),
        (Exponential(1.0), 8, 2.7178571429),
        (ShiftedExponential(1.0, 1.0), 4, 1.6345238095),
        (Pareto(1.0, 2.5), 4, 1.3001872270),
        (Pareto(1.0, 2.5), 8, 3.4727222942),
        (Pareto(1.0, 2.0), 8, 5.0921522923),
    ]:
        assert mean_of_kth(model, k, 8) == pytest.approx(golden, rel=1e-7), model.spec


ROUNDS = 20_000


def sorted_rounds(model: DelayModel, workers: int = 8) -> np.ndarray:
    return np.sort([model.draws(2, worker, 0, ROUNDS) for worker in range(workers)], axis=0)


@pytest.mark.slow
def test_order_statistics_of_drawn_rounds() -> None:
    """Golden values 1, 2, 8, 10 and 12, from draws of eight workers: so the workers are independent, too."""
    assert 10 - 9 * sum(comb(8, i) * 0.9**i * 0.1 ** (8 - i) for i in range(6, 9)) == pytest.approx(
        1.34282611, rel=1e-8
    )
    hetero = Heterogeneous((1.0, 1.0, 1.0, 1.0, 0.5, 0.5, 0.25, 0.25))
    for model, k, golden in [
        (Exponential(1.0), 4, 0.6345238095),
        (Exponential(1.0), 8, 2.7178571429),
        (ShiftedExponential(1.0, 1.0), 4, 1.6345238095),
        (Pareto(1.0, 2.5), 4, 1.3001872270),
        (Pareto(1.0, 2.5), 8, 3.4727222942),
        (Bimodal(1.0, 10.0, 0.1), 6, 1.34282611),
        (Bimodal(1.0, 10.0, 0.1), 8, 6.12579511),
        (hetero, 4, 0.3614149740),
        (hetero, 8, 2.1508033634),
    ]:
        assert within(sorted_rounds(model)[k - 1], golden), (model.spec, k)


@pytest.mark.slow
def test_the_uniform_law_that_a_trace_of_even_steps_has(tmp_path: Any) -> None:
    """Golden value 11, E[X_{4:8}] = 8/9 of uniform(0, 2): by item, a trace is drawn from with replacement."""
    steps = 1000
    np.savez(tmp_path / "u.npz", seconds=np.repeat((np.arange(steps) + 0.5)[:, None] * 2 / steps, 8, axis=1))
    trace = delays.Trace(str(tmp_path / "u.npz"), by="item")
    drawn = np.sort(
        [[trace.item_draw(1, worker, version, 0) for version in range(3000)] for worker in range(8)], axis=0
    )
    assert within(drawn[3], 0.8888888889)


# ------------------------------------------------------------------------------------------- keys


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(st.sampled_from(MODELS), st.integers(0, 99), st.integers(0, 40), st.integers(0, 2000), st.integers(0, 300))
def test_a_draw_depends_on_seed_worker_and_number_only(
    model: DelayModel, seed: int, worker: int, start: int, count: int
) -> None:
    drawn = model.draws(seed, worker, start, count)
    assert drawn.shape == (count,) and (drawn >= 0).all()
    assert drawn.tolist() == model.draws(seed, worker, 0, start + count)[start:].tolist()
    uniform = keyed_uniforms(seed, "delay", worker, start=start, count=count)
    assert drawn.tolist() == np.round(model.seconds(uniform, worker), 9).tolist()


def test_other_seeds_and_workers_draw_otherwise() -> None:
    for model in MODELS[1:4]:
        base = model.draws(1, 0, 0, 200)
        assert not np.isin(model.draws(2, 0, 0, 200), base).any()
        assert not np.isin(model.draws(1, 1, 0, 200), base).any()


def test_laws_share_their_luck() -> None:
    """One draw a key under every law: the worker that is late under one is late under another."""
    one, other = Exponential(0.5).draws(1, 3, 0, 500), Pareto(1.0, 2.0).draws(1, 3, 0, 500)
    assert np.argsort(one).tolist() == np.argsort(other).tolist()
    assert Exponential(2.0).draws(1, 3, 0, 500) == pytest.approx(4 * one, abs=3e-9)


def test_seconds_are_whole_nanoseconds() -> None:
    for model in (
        Exponential(0.5),
        ShiftedExponential(1 / 3, 1 / 7),
        Pareto(1 / 3, 2.5),
        Heterogeneous((1 / 3, 1 / 7)),
    ):
        drawn = [*model.draws(1, 0, 0, 1000), *(model.item_draw(1, 0, version, 1) for version in range(50))]
        assert all(seconds == round(float(seconds), 9) for seconds in drawn)
        assert np.round(model.seconds(np.full(1, 1 / 3), 0), 9)[0] != model.seconds(np.full(1, 1 / 3), 0)[0]


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(st.integers(0, 9), st.integers(0, 5), st.integers(0, 400), st.integers(0, 300))
def test_item_draws_are_keyed_by_version_and_repeat(seed: int, worker: int, version: int, repeat: int) -> None:
    model = Exponential(0.5, by="item")
    u = keyed_uniform(seed, "delay-item", worker, version, number=repeat)
    assert model.item_draw(seed, worker, version, repeat) == pytest.approx(-0.5 * np.log1p(-u), abs=1e-9)
    assert model.item_draw(seed, worker, version, repeat) != model.item_draw(seed, worker, version, repeat + 1)
    assert model.item_draw(seed, worker, version, repeat) != model.item_draw(seed, worker, version + 1, repeat)


def test_item_draws_follow_the_law() -> None:
    model = Exponential(0.5, by="item")
    drawn = np.array([model.item_draw(1, worker, v, r) for worker in range(4) for v in range(300) for r in range(3)])
    assert stats.kstest(drawn, stats.expon(scale=0.5).cdf).pvalue > 1e-3


# ------------------------------------------------------------------------------------------- streams


@pytest.mark.slow
@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1100), st.booleans()), min_size=1, max_size=12))
def test_a_stream_gives_the_draws_in_whatever_order_it_is_asked(asked: list[tuple[int, int, bool]]) -> None:
    model = Exponential(0.5)
    stream = DelayStream(model, seed=3, workers=4)
    for worker, number, whole_row in asked:
        expected = [model.draws(3, w, number, 1)[0] for w in range(4)]
        if whole_row:
            assert stream.row(number) == expected
        else:
            assert stream.at(worker, number) == expected[worker]


ASKED = {"number": 7, "version": 5, "repeat": 2, "partitions": 3, "relative_load": 0.3}


def test_what_numbers_the_draws() -> None:
    """The same task under each way: by its number, by its round, by its version and repeat."""
    for by, expected in [
        ("task", Exponential(0.5).draws(3, 1, 7, 1)[0]),
        ("round", Exponential(0.5).draws(3, 1, 5, 1)[0]),
        ("item", Exponential(0.5).item_draw(3, 1, 5, 2)),
    ]:
        stream = DelayStream(Exponential(0.5, by=by), seed=3, workers=4)  # type: ignore[arg-type]
        assert stream.for_task(1, **ASKED) == (expected, 0.0)
        assert stream.for_task(0, **ASKED) != (expected, 0.0)
        loaded = DelayStream(Exponential(0.5, by=by, per="load"), seed=3, workers=4)  # type: ignore[arg-type]
        assert loaded.for_task(1, **ASKED) == (0.0, expected)


def test_injected_delays_do_not_depend_on_load_unless_asked() -> None:
    stream = DelayStream(Exponential(0.5), seed=3, workers=4)
    assert stream.for_task(1, **ASKED) == stream.for_task(1, **{**ASKED, "partitions": 9, "relative_load": 0.9})


def test_no_delay_is_nothing_in_every_way() -> None:
    for by in ("task", "round", "item"):
        assert DelayStream(NoDelay(by=by), seed=3, workers=4).for_task(1, **ASKED) == (0.0, 0.0)


# ------------------------------------------------------------------------------------------- complaints


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("exp:mean=0", "mean must be a number above 0 and of at most 1e+09, got 0.0"),
        ("exp:mean=-1", "mean must be a number above 0 and of at most 1e+09, got -1.0"),
        ("exp:mean=inf", "mean must be a number above 0 and of at most 1e+09, got inf"),
        ("constant:value=0", "value must be a number above 0 and of at most 1e+09, got 0.0"),
        ("shifted-exp:shift=-1,mean=1", "shift must be a number from 0 to 1e+09, got -1.0"),
        ("shifted-exp:shift=1,mean=0", "mean must be a number above 0 and of at most 1e+09, got 0.0"),
        ("pareto:minimum=0,alpha=1", "minimum must be a number above 0 and of at most 1e+09, got 0.0"),
        ("pareto:minimum=1,alpha=-1", "alpha must be a number from 0.1 to 1e+09, got -1.0"),
        ("bimodal:fast=-1,slow=1", "fast must be a number from 0 to 1e+09, got -1.0"),
        ("bimodal:fast=2,slow=1", "'slow' of 'bimodal' must be above 'fast' (2), got 1"),
        ("bimodal:fast=1,slow=1", "'slow' of 'bimodal' must be above 'fast' (1), got 1"),
        (
            "bimodal:fast=1,slow=2,probability=0",
            "probability must be a tuple of numbers above 0 and below 1, got (0.0,)",
        ),
        (
            "bimodal:fast=1,slow=2,probability=1",
            "probability must be a tuple of numbers above 0 and below 1, got (1.0,)",
        ),
        ("hetero:means=1/0/2", "means must be a tuple of numbers above 0 and of at most 1e+09, got (1.0, 0.0, 2.0)"),
        ("none:later", "by in 'none:later' should be one of task, round, item, got 'later'"),
    ],
)
def test_laws_that_do_not_exist(spec: str, sentence: str) -> None:
    with pytest.raises(BadInput) as caught:
        delays.parse(spec)
    assert str(caught.value).startswith(sentence)


def test_python_values_are_checked_like_specs() -> None:
    with pytest.raises(BadInput, match="got nan"):
        Exponential(float("nan"))
    with pytest.raises(BadInput, match="'hetero' needs at least one mean, as in hetero:means=0.1/0.4"):
        Heterogeneous(())
    with pytest.raises(BadInput, match="rund"):
        Exponential(1.0, by="rund")  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="lode"):
        Exponential(1.0, per="lode")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "spec", ["exp:mean=0.7", "shifted-exp:shift=1,mean=0.5", "pareto:minimum=0.3,alpha=2.2", "bimodal:fast=1,slow=9"]
)
def test_the_law_that_was_drawn_fits_best(spec: str) -> None:
    law = parse(spec)
    times = np.concatenate([law.draws(3, worker, 0, 500) for worker in range(20)])
    best = fit(times)[0]
    assert best.misfit < 0.02
    if spec.startswith("exp"):  # a shift of almost nothing fits as well
        assert isinstance(best.law, (Exponential, ShiftedExponential)) and best.law.mean == pytest.approx(0.7, rel=0.03)
    else:
        assert type(best.law) is type(law)
    if isinstance(best.law, ShiftedExponential) and spec.startswith("shifted"):
        assert (best.law.shift, best.law.mean) == pytest.approx((1.0, 0.5), rel=0.03)
    if isinstance(best.law, Pareto):
        assert (best.law.minimum, best.law.alpha) == pytest.approx((0.3, 2.2), rel=0.03)
    if isinstance(best.law, Bimodal):
        assert (best.law.fast, best.law.slow, *best.law.probability) == pytest.approx((1, 9, 0.1), rel=0.06)


@pytest.mark.parametrize("spec", ["exp:mean=0.7", "pareto:minimum=0.3,alpha=2.2"])
def test_times_that_were_cut_off_bias_nothing(spec: str) -> None:
    law = parse(spec)
    times = np.concatenate([law.draws(3, worker, 0, 500) for worker in range(20)])
    limit = np.quantile(times, 0.6)
    cut = times > limit
    fitted = {type(one.law): one.law for one in fit(np.minimum(times, limit), censored=cut)}
    if spec.startswith("exp"):
        assert fitted[Exponential].mean == pytest.approx(0.7, rel=0.03)  # type: ignore[attr-defined]
        naive = {type(one.law): one.law for one in fit(np.minimum(times, limit))}
        assert naive[Exponential].mean < 0.45  # type: ignore[attr-defined]
    else:
        assert fitted[Pareto].alpha == pytest.approx(2.2, rel=0.04)  # type: ignore[attr-defined]


def test_few_different_times_still_have_laws() -> None:
    assert {type(one.law) for one in fit([0.0, 1.0, 1.0])} == {Exponential, ShiftedExponential}


def test_what_cannot_be_fitted() -> None:
    with pytest.raises(BadInput, match="a law needs at least two different times above 0"):
        fit([1.0, 1.0])
    with pytest.raises(BadInput, match="times must be finite and at least 0"):
        fit([1.0, -1.0])
    with pytest.raises(BadInput, match="censored must have one flag for each of the 2 times, got 1"):
        fit([1.0, 2.0], censored=[True])


@pytest.mark.parametrize("key", ["by=item", "per=load", "uninterruptible=true"])
def test_the_laws_of_a_mixture_have_no_keys_of_their_own(key: str) -> None:
    with pytest.raises(BadInput, match="are keys of 'mixture' itself, not of its laws"):
        parse(f"mixture:laws=(exp:mean=1,{key})/(exp:mean=1),weights=0.5/0.5")
    assert parse(f"mixture:laws=(exp:mean=1)/(exp:mean=1),weights=0.5/0.5,{key}").spec.count(key) == 1
