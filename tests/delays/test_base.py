"""A law's own facts against its draws, against each other and against SciPy."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from anyk.base.errors import BadInput
from anyk.delays import DelayModel, parse

pytestmark = pytest.mark.in_process

N = 6
LAWS = [
    "constant:value=0.3", "uniform:low=0.1,high=0.9", "exp:mean=0.5", "shifted-exp:shift=0.2,mean=0.5",
    "pareto:minimum=0.1,alpha=3", "bimodal:fast=0.1,slow=1,probability=0.3",
    "bimodal:fast=0,slow=1,probability=0.05/0.2/0.6", "hetero:means=0.1/0.5/2",
    "mixture:laws=(exp:mean=0.5)/(exp:mean=5.5),weights=0.9/0.1", "scipy:gamma,args=2,scale=0.25", "none",
    "mixture:laws=(scipy:gamma,args=2,scale=0.25)/(hetero:means=0.1/0.5),weights=0.123456789/0.041",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("spec", LAWS)
def test_facts_are_those_of_the_draws(spec: str) -> None:
    law = parse(spec)
    assert parse(law.spec) == law
    table = np.stack([law.draws(3, worker, 0, 40_000) for worker in range(N)], axis=1)
    for worker in range(N):
        mean, error = table[:, worker].mean(), table[:, worker].std() / 200.0
        assert law.expected(worker) == pytest.approx(mean, abs=5 * error + 1e-9)
        for seconds in np.quantile(table[:, worker], [0.1, 0.5, 0.95]):
            share = law.cdf(np.array([seconds + 2e-9]), worker)
            assert share is not None and share[0] == pytest.approx(
                (table[:, worker] <= seconds + 2e-9).mean(), abs=0.012
            )
    ordered = np.sort(table, axis=1)
    for k in (1, 3, N):
        error = ordered[:, k - 1].std() / 200.0
        assert law.order_statistic(k, N) == pytest.approx(ordered[:, k - 1].mean(), abs=5 * error + 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("spec", [spec for spec in LAWS if spec.partition(":")[0] not in ("constant", "none")])
@pytest.mark.parametrize("k", [1, 4, N])
def test_closed_forms_are_the_integral(spec: str, k: int) -> None:
    law = parse(spec)
    assert law.order_statistic(k, N) == pytest.approx(DelayModel.order_statistic(law, k, N) or 0.0, rel=1e-6)


@pytest.mark.slow
def test_a_mean_that_does_not_exist_is_infinite_or_unknown() -> None:
    law = parse("pareto:minimum=1,alpha=0.9")
    assert law.expected() == np.inf == law.order_statistic(4, 4)
    assert DelayModel.order_statistic(law, 4, 4) is None
    assert DelayModel.order_statistic(law, 2, 4) == pytest.approx(law.order_statistic(2, 4), rel=1e-6)


def test_a_hyper_exponential_law_varies_more_than_an_exponential() -> None:
    """Value of section 1.1: (0.9: mean 0.5, 0.1: mean 5.5) has mean 1 and E[X_(4:8)] = 0.368."""
    law = parse("mixture:laws=(exp:mean=0.5)/(exp:mean=5.5),weights=0.9/0.1")
    assert law.expected() == pytest.approx(1.0)
    assert law.order_statistic(4, 8) == pytest.approx(0.368, abs=5e-4)


def test_a_law_of_scipy_is_that_law() -> None:
    draws = parse("scipy:lognorm,args=0.5,scale=2").draws(0, 1, 0, 5_000)
    assert stats.kstest(draws, stats.lognorm(0.5, scale=2).cdf).pvalue > 1e-3


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("mixture:laws=(exp:mean=1),weights=1", "needs at least two laws and a weight for each, got 1 laws and 1 wei"),
        (
            "mixture:laws=(exp:mean=1)/(exp:mean=2),weights=1/-1",
            r"weights must be a tuple of finite numbers above 0, got \(1.0, -1.0\)",
        ),
        ("mixture:laws=(exp:mean=1)/(exq:mean=2),weights=1/1", "no delay model 'exq'; did you mean 'exp'?"),
        ("scipy:gama,args=2", "scipy.stats has no continuous law 'gama'"),
        ("scipy:system", "scipy.stats has no continuous law 'system'"),
        ("scipy:gamma", r"'scipy:gamma' takes 1 shape parameters \(a\), as in args=2, got 0"),
        ("scipy:norm", "'scipy:norm' can give delays below 0"),
        ("scipy:gamma,args=-1", "'gamma' of scipy.stats does not exist for the shape parameters"),
        ("scipy:gamma,args=1,scale=0", "scale must be a finite number above 0, got 0.0"),
        ("bimodal:fast=0,slow=1,probability=0.1/1", r"a tuple of numbers above 0 and below 1, got \(0.1, 1.0\)"),
    ],
)
def test_laws_that_cannot_be_are_refused(spec: str, reason: str) -> None:
    with pytest.raises(BadInput, match=reason):
        parse(spec)
