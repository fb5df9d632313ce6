"""Fits give back what was drawn, also from times that were cut off."""

from __future__ import annotations

import numpy as np
import pytest

from anyk.delays import Bimodal, Exponential, Pareto, ShiftedExponential, fit, parse
from anyk.errors import BadInput

pytestmark = pytest.mark.in_process


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
    found = {type(one.law): one.law for one in fit(np.minimum(times, limit), censored=cut)}
    if spec.startswith("exp"):
        assert found[Exponential].mean == pytest.approx(0.7, rel=0.03)  # type: ignore[attr-defined]
        naive = {type(one.law): one.law for one in fit(np.minimum(times, limit))}
        assert naive[Exponential].mean < 0.45  # type: ignore[attr-defined]
    else:
        assert found[Pareto].alpha == pytest.approx(2.2, rel=0.04)  # type: ignore[attr-defined]


def test_few_different_times_still_have_laws() -> None:
    assert {type(one.law) for one in fit([0.0, 1.0, 1.0])} == {Exponential, ShiftedExponential}


def test_what_cannot_be_fitted() -> None:
    with pytest.raises(BadInput, match="a law needs at least two different times above 0"):
        fit([1.0, 1.0])
    with pytest.raises(BadInput, match="times must be finite and at least 0"):
        fit([1.0, -1.0])
    with pytest.raises(BadInput, match="censored must have one flag for each of the 2 times, got 1"):
        fit([1.0, 2.0], censored=[True])
