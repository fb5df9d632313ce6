"""Closed forms of how fast the K family steps, against golden values and the strategies themselves."""

from __future__ import annotations

import numpy as np
import pytest

import anyk
from anyk.delays import parse
from anyk.fleet import pace
from anyk.runs import Driver, session

P = 8
LAWS = [
    "constant:2", "exp:mean=0.7", "shifted-exp:shift=1,mean=1", "pareto:minimum=1,alpha=2.5",
    "bimodal:fast=1,slow=10,probability=0.2", "hetero:means=0.5/1/3",
    "uniform:low=0.5,high=2",
]  # fmt: skip


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("k", [1, 4, 7, 8])
def test_the_kth_of_n_delays_against_monte_carlo(law: str, k: int) -> None:
    model = parse(law)
    draws = np.array([model.draws(5, worker, 0, 20_000) for worker in range(P)])
    kth = np.sort(draws, axis=0)[k - 1]
    expected = model.order_statistic(k, P)
    assert expected is not None
    assert abs(kth.mean() - expected) <= 4.5 * kth.std(ddof=1) / 20_000**0.5 + 1e-4  # what is rarer than that


def test_golden_values() -> None:
    """H_8 - H_4; a shift adds; Pareto's largest has a mean only for alpha above 1, its smallest for alpha above 1/n."""
    assert parse("exp:mean=1").order_statistic(4, 8) == pytest.approx(0.6345238, abs=5e-8)
    assert parse("shifted-exp:shift=1,mean=1").order_statistic(4, 8) == pytest.approx(1.6345238, abs=5e-8)
    assert parse("pareto:minimum=1,alpha=1").order_statistic(8, 8) == float("inf")
    assert parse("pareto:minimum=1,alpha=1").order_statistic(1, 8) == pytest.approx(8 / 7)
    assert parse("exp:mean=2").order_statistic(8, 8) == pytest.approx(2 * 2.7178571428571425)


PACES = (
    "sync", "k-sync:k=3", "k-batch-sync:k=3", "async", "k-async:k=3", "k-batch-async:k=12", "anytime:deadline=1.2,parts=1",
)  # fmt: skip
# a pace is made of means and order statistics, which are compared above for each law: every strategy here has three
# laws (constant, memoryless, and workers that differ), and every other law the two strategies of most formulas
EVERYWHERE = {"constant:2", "exp:mean=0.7", "hetero:means=0.5/1/3"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spec", "law"),
    [(spec, law) for law in LAWS for spec in PACES if law in EVERYWHERE or spec in ("k-sync:k=3", "async")],
)
def test_the_pace_of_a_strategy_is_what_the_simulator_finds(spec: str, law: str) -> None:
    strategy, model = anyk.strategy(spec, workers=P), parse(law)
    expected = pace(strategy, model)
    if expected.seconds is None:
        assert "simulate" in expected.why
        return
    times = []
    cluster = anyk.clusters.Simulated(P, delays=model, seed=11)
    with session(
        Driver(strategy, cluster, steps=3000, on_step=lambda record: times.append(record.update.time))
    ) as driver:
        driver.run()
    waits = np.diff([0.0, *times])[200:]
    batches = waits[: len(waits) // 100 * 100].reshape(-1, 100).mean(axis=1)
    assert (
        abs(waits.mean() - expected.seconds) <= 5 * batches.std(ddof=1) / len(batches) ** 0.5 + 1e-3 * expected.seconds
    )


@pytest.mark.parametrize("spec", ["gc:stragglers=1", "sr-sgc:B=1,W=2,lambda=2", "m-sgc:B=1,W=2,lambda=2", "dpsgd"])
def test_staleness_is_claimed_only_where_it_is_known(spec: str) -> None:
    """Sequential codes never use a gradient of an older version; of gossip nothing is claimed."""
    strategy = anyk.strategy(spec, workers=4)
    staleness = pace(strategy, parse("exp:mean=1")).staleness
    if spec == "dpsgd":
        assert staleness is None
        return
    with session(Driver(strategy, anyk.clusters.Simulated(4, delays="exp:mean=1", seed=1), steps=40)) as driver:
        driver.run()
    counts = driver.ledger.counts
    assert staleness == 0.0 == counts.late_counted < counts.counted


def test_delays_that_cannot_be_interrupted_end_in_vain() -> None:
    uninterruptible, model = (parse(f"exp:mean=1{option}") for option in (",uninterruptible=true", ""))
    in_vain = pace(anyk.strategy("k-batch-sync:k=3,cancel=discard", workers=6), model)
    assert pace(anyk.strategy("k-batch-sync:k=3", workers=6), uninterruptible) == in_vain
    assert in_vain.seconds == pytest.approx(1.03555, abs=1e-5)  # and not k / n, as if they were cancelled


def test_what_has_no_closed_form_says_so() -> None:
    assert pace(anyk.strategy("adasync", workers=8), parse("exp:mean=1")).why == "k changes with the loss"
    assert pace(anyk.strategy("k-async:k=3", workers=8), parse("pareto:minimum=1,alpha=3")).seconds is None
    assert (
        pace(anyk.strategy("k-sync:k=3,cancel=discard", workers=8), parse("pareto:minimum=1,alpha=3")).seconds is None
    )
    assert pace(anyk.strategy("gradual", workers=8), parse("exp:mean=1")).seconds is None
    assert pace(anyk.strategy("async:cutoff=3", workers=8), parse("exp:mean=1")).staleness is None
