"""The numbers of the literature that everything about the K family must come to, each derived independently here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from scipy import integrate, stats

import anyk
from anyk.base.errors import BadInput
from anyk.delays import parse
from anyk.fleet import (
    async_factor,
    discard_seconds,
    error_floor,
    fresh_share,
    pace,
    stability_limit,
    stationary_error,
)
from anyk.protocol import Dispatch, Running
from anyk.runs import Driver, session
from anyk.runs.engine.step_record import StepRecord
from anyk.strategies import adapted_k, k_for_delays, k_for_noise, order_means

pytestmark = [pytest.mark.in_process, pytest.mark.slow]

P = 8


def harmonic(n: int) -> float:
    return sum(1.0 / i for i in range(1, n + 1))


def by_quadrature(quantile: Any, k: int, n: int) -> float:
    """Mean of the k-th of n by integrating the quantile function against its Beta law."""
    value, _ = integrate.quad(lambda u: quantile(u) * stats.beta.pdf(u, k, n - k + 1), 0, 1, epsabs=1e-11, limit=400)
    return float(value)


ORDER = [
    # law, quantile, k, golden value
    ("exp:mean=1", lambda u: -np.log1p(-u), 4, 0.6345238095),  # 1
    ("exp:mean=1", lambda u: -np.log1p(-u), 8, 2.7178571429),  # 2
    ("shifted-exp:shift=1,mean=1", lambda u: 1 - np.log1p(-u), 4, 1.6345238095),  # 4
    ("pareto:minimum=1,alpha=2.5", lambda u: (1 - u) ** (-1 / 2.5), 4, 1.3001872270),  # 8
    ("pareto:minimum=1,alpha=2.5", None, 8, 3.4727222942),
    ("pareto:minimum=1,alpha=2", None, 8, 5.0921522923),  # 9
    ("bimodal:fast=1,slow=10,probability=0.1", None, 6, 1.34282611),  # 10
    ("bimodal:fast=1,slow=10,probability=0.1", None, 8, 6.12579511),
    ("uniform:low=0,high=2", lambda u: 2 * u, 4, 0.8888888889),  # 11
    ("hetero:means=1/1/1/1/0.5/0.5/0.25/0.25", None, 4, 0.3614149740),  # 12
    ("hetero:means=1/1/1/1/0.5/0.5/0.25/0.25", None, 8, 2.1508033634),
]


@pytest.mark.parametrize(("law", "quantile", "k", "golden"), ORDER)
def test_values_1_to_12_order_statistics(law: str, quantile: Any, k: int, golden: float) -> None:
    seconds = parse(law).order_statistic(k, P)
    assert seconds == pytest.approx(golden, rel=1e-7 if "bimodal" in law or "hetero" in law else 1e-9)
    if quantile is not None:
        assert seconds == pytest.approx(by_quadrature(quantile, k, P), rel=1e-8)


def test_value_3_synchronous_over_asynchronous() -> None:
    sync, one = (pace(anyk.strategy(spec, workers=P), parse("exp:mean=1")).seconds for spec in ("sync", "async"))
    assert sync is not None and one is not None
    assert sync / one == pytest.approx(21.7428571429, rel=1e-9) and sync / one == pytest.approx(P * harmonic(P))


def test_values_5_6_and_12_paces() -> None:
    assert pace(anyk.strategy("k-batch-sync:k=4", workers=P), parse("exp:mean=1")).seconds == 0.5
    assert pace(anyk.strategy("k-batch-async:k=4", workers=P), parse("shifted-exp:shift=1,mean=1")).seconds == 1.0
    hetero = pace(anyk.strategy("async", workers=P), parse("hetero:means=1/1/1/1/0.5/0.5/0.25/0.25"))
    assert hetero.seconds == pytest.approx(0.0625, rel=1e-12)


def simulated(spec: str, law: str, steps: int, seed: int = 1) -> tuple[np.ndarray, list[list[int]]]:
    """Times of the versions, and the staleness of each message of each step, in order of arrival."""
    strategy = anyk.strategy(spec, workers=P)
    cluster = anyk.clusters.Simulated(P, delays=parse(law), seed=seed)
    times: list[float] = [0.0]
    stale: list[list[int]] = []
    base: dict[int, int] = {}
    arrived: list[int] = []
    execute = cluster.execute

    class Heard(Running):
        def start(self, fleet: Any) -> Any:
            commands = super().start(fleet)
            self.inside, self.on = self.on, self.hear
            return commands

        def hear(self, event: Any) -> Any:
            if type(event).__name__ == "Reply":
                arrived.append(event.task)
            return self.inside(event)

    def give(orders: Any) -> Any:
        for order in orders:
            if isinstance(order, Dispatch):
                base.update(dict.fromkeys(range(order.task, order.task + len(order.workers)), driver.versions["model"]))
        return execute(orders)

    def watch(record: StepRecord) -> None:
        times.append(record.update.time)
        used = {task for task, _ in record.command.messages}
        stale.append([driver.step - 1 - base[task] for task in arrived if task in used])
        arrived[:] = [task for task in arrived if task not in used]

    cluster.execute = give  # type: ignore[method-assign]
    driver = Driver(strategy, cluster, steps=steps, on_step=watch)
    driver.running = Heard(strategy)
    with session(driver):
        driver.run()
    return np.array(times), stale


@pytest.mark.parametrize(
    ("spec", "law", "golden"),
    [
        ("k-batch-sync:k=4", "exp:mean=1", 0.5),  # 5
        ("k-batch-async:k=4", "shifted-exp:shift=1,mean=1", 1.0),  # 6
        ("k-async:k=4", "shifted-exp:shift=1,mean=1", 1.2497),  # 7
        ("k-sync:k=4,cancel=discard", "exp:mean=1", 1.0343494016),  # 16
        ("k-batch-sync:k=4,cancel=discard", "exp:mean=1", 1.0756071965),
    ],
)
def test_values_5_6_7_and_16_in_the_simulator(spec: str, law: str, golden: float) -> None:
    times, _ = simulated(spec, law, 12_000)
    assert times[-1] / 12_000 == pytest.approx(golden, rel=0.02)


def test_value_16_is_the_solution_of_its_chain() -> None:
    """Solved here as a linear system over all states, not by recursion."""
    for batch, golden in ((False, 1.0343494016), (True, 1.0756071965)):
        states = [(f, c) for c in range(4) for f in range(P + 1) if batch or f <= P - c]
        index = {state: i for i, state in enumerate(states)}
        a, b = np.eye(len(states)), np.zeros(len(states))
        for (f, c), i in index.items():
            busy = P if batch else P - c
            b[i] = 1.0 / busy
            if f and c < 3:
                a[i, index[(f if batch else f - 1), c + 1]] -= f / busy
            if f < busy:
                a[i, index[f + 1, c]] -= (busy - f) / busy
        expected = np.linalg.solve(a, b)[index[(1 if batch else 4), 0]]
        assert expected == pytest.approx(golden, rel=1e-9)
        assert discard_seconds(4, P, 1.0, batch=batch) == pytest.approx(expected, rel=1e-12)


def shares(stale: Sequence[Sequence[int]], values: Sequence[int]) -> list[float]:
    counts = Counter(s for step in stale for s in step)
    return [counts[value] / sum(counts.values()) for value in values]


def test_values_12_13_and_14_the_law_of_staleness() -> None:
    """async: (1/P)(1 - 1/P)^s from s = 0 on; K-async (K/P)(1 - K/P)^s."""
    steps = 40_000
    _, one = simulated("async", "exp:mean=1", steps)
    assert shares(one[200:], (0, 1, 2)) == pytest.approx([0.125, 0.109375, 0.095703125], rel=0.05)
    assert np.mean([s for step in one[200:] for s in step]) == pytest.approx(7, rel=0.02)
    _, four = simulated("k-async:k=4", "exp:mean=1", steps // 2)
    assert shares(four[200:], (0, 1, 2)) == pytest.approx([0.5, 0.25, 0.125], rel=0.03)
    assert np.mean([s for step in four[200:] for s in step]) == pytest.approx(1, rel=0.02)
    _, uneven = simulated("async", "hetero:means=1/1/1/1/0.5/0.5/0.25/0.25", steps)
    assert shares(uneven[200:], (0,))[0] == pytest.approx(0.171875, rel=0.04)


def test_value_15_freshness_by_place_in_the_batch() -> None:
    assert fresh_share("k-batch-async", 4, P) == pytest.approx(0.2758178711, rel=1e-9)
    assert fresh_share("k-batch-async", 8, P) == pytest.approx(0.4256578013, rel=1e-9)
    _, stale = simulated("k-batch-async:k=4", "exp:mean=1", 20_000)
    for rank in range(4):  # the r-th gradient collected is fresh with chance 1 - (1 - 1/P)^r
        fresh = np.mean([step[rank] == 0 for step in stale[200:]])
        assert fresh == pytest.approx(1 - (1 - 1 / P) ** (rank + 1), abs=0.013)
    assert np.mean([s for step in stale[200:] for s in step]) == pytest.approx(1.75, rel=0.01)


def test_staleness_laws_of_other_delays() -> None:
    """New better than used: almost round robin, so hardly ever fresh; heavy tails the other way."""
    _, regular = simulated("async", "shifted-exp:shift=1,mean=1", 20_000)
    assert shares(regular[200:], (0,))[0] < 0.01


def test_value_38_adasync() -> None:
    assert adapted_k(2, 9.0, 1.0, P, linear=True) == pytest.approx(6, abs=1e-12)
    assert adapted_k(2, 9.0, 1.0, P, linear=False) == pytest.approx(4.5498344353, rel=1e-9)
    assert adapted_k(2, 4.0, 1.0, P, linear=False) == pytest.approx(3.4740683673, rel=1e-9)


def test_value_39_the_noise_rule() -> None:
    times = np.array([parse("shifted-exp:shift=1,mean=1").order_statistic(k, P) for k in range(1, P + 1)], dtype=float)
    costs = (1 + 4.0 / np.arange(1, P + 1)) * times
    golden = [5.625, 3.80357, 3.34722, 3.26905, 3.39214, 3.69643, 4.27092, 5.57679]
    assert costs == pytest.approx(golden, abs=1e-5)
    assert k_for_noise(4.0, times) == 4
    assert k_for_noise(0.0, times) == 1 and k_for_noise(1e9, times) == 1 + np.argmin(times / np.arange(1, P + 1))


def test_the_rule_for_any_delays_agrees_with_known_formulas() -> None:
    """Step times proportional to K: K_0 sqrt(F_0 / F), to rounding and the freedom of A."""
    for k0, ratio in ((1, 4.0), (2, 9.0), (2, 16.0), (3, 2.0), (4, 3.5)):
        exact = k0 * ratio**0.5
        rule_k = k_for_delays(k0, ratio, 1.0, np.arange(1.0, 41.0))
        assert abs(rule_k - exact) <= 0.5 + 0.25 * exact / k0
    times = [parse("exp:mean=1").order_statistic(k, P) for k in range(1, P + 1)]
    chosen = [k_for_delays(2, 1.0, loss, times) for loss in (1.0, 0.5, 0.1, 0.02, 0.001)]
    assert chosen[0] == 2 and chosen == sorted(chosen) and chosen[-1] == P  # type: ignore[type-var]
    assert k_for_delays(2, 1.0, 0.25, np.arange(1.0, 41.0), rate=0.5) == k_for_delays(2, 1.0, 1.0, np.arange(1.0, 41.0))
    assert k_for_delays(1, 1.0, 1.0, times) == 1


def test_values_40_and_41_bounds() -> None:
    assert error_floor(0.1, 1.0, 0.2, 1.0 / 4, 4) == pytest.approx(0.015625, abs=1e-12)
    slow = async_factor(0.5, 1 / P)
    assert slow == pytest.approx(0.5625, abs=1e-12)
    assert error_floor(0.1, 1.0, 0.2, 1.0 / 4, 1, slowdown=slow) == pytest.approx(0.1111111111, rel=1e-9)
    assert 1 - 0.1 * 0.2 * slow == pytest.approx(0.98875, abs=1e-12)


class Noisy:
    """``mean |w - y|^2 / 2`` in many coordinates, each an independent chain; all partitions hold the same samples."""

    metric, l2 = "loss", 0.0
    better = "lower"

    def __init__(self, each: int, d: int, partitions: int) -> None:
        self.y = np.random.default_rng(5).standard_normal((each, d))
        self.y -= self.y.mean(axis=0)
        self.dimension, self.dtype, self.samples = d, np.dtype("float64"), each * partitions

    def split(self, partitions: int) -> Any:
        self.sizes = (len(self.y),) * partitions
        return self

    def load(self, partitions: Sequence[int]) -> None: ...

    def support(self, partition: int) -> None: ...

    def partial_gradient(self, partition: int, w: Any, rows: Any = None, /) -> Any:
        y = self.y if rows is None else self.y[rows]
        return len(y) * w - y.sum(axis=0)

    def initial(self) -> Any:
        return np.zeros(self.dimension)

    def loss(self, w: Any) -> float:
        return float(0.5 * w @ w)

    def metrics(self, w: Any) -> dict[str, float]:
        return {}

    def recipe(self) -> None: ...


def test_value_42_the_error_that_remains() -> None:
    """K-sync on w^2/2: eta v / (2 K (2 - eta)), v the variance of a mini-batch drawn without replacement."""
    assert stationary_error(0.1, 1.0, 1.0, 4) == pytest.approx(0.0065789474, abs=1e-10)
    assert stationary_error(0.1, 1.0, 1.0, 4) < error_floor(0.1, 1.0, 1.0, 1.0, 4)
    with pytest.raises(BadInput, match="steps of 2 diverge at curvature 1: it must be below 2"):
        stationary_error(2.0, 1.0, 1.0, 1)
    problem, batch, k = Noisy(20, 1500, P), 5, 4
    losses: list[float] = []
    variance = problem.y.var(axis=0, ddof=1).sum() / batch * (1 - batch / 20)
    driver = Driver(
        anyk.strategy(f"k-sync:k={k},batch={batch}", workers=P),
        anyk.clusters.Simulated(P, delays=parse("exp:mean=1"), seed=2),
        problem=problem,  # type: ignore[arg-type]
        optimizer=anyk.optimizers.GD(lr=0.1),
        steps=700,
        on_step=lambda _: losses.append(problem.loss(driver.models["model"])),
    )
    with session(driver):
        driver.run()
    assert np.mean(losses[100:]) == pytest.approx(stationary_error(0.1, 1.0, variance, k), rel=0.03)


@pytest.mark.parametrize(("workers", "golden"), [(2, 1.0), (4, 0.4450418679), (8, 0.2090569265)])
def test_value_43_the_stability_limit(workers: int, golden: float) -> None:
    """Equal delays make async a round robin of staleness P - 1: stable just below the limit, unstable just above."""
    limit = stability_limit(workers - 1)
    assert limit == pytest.approx(golden, rel=1e-9)
    roots = np.roots([1.0, -1.0, *[0.0] * (workers - 2), limit])  # z^(d+1) = z^d - eta
    assert np.abs(roots).max() == pytest.approx(1.0, abs=1e-9)
    sizes = {}
    for factor in (0.97, 1.03):
        problem = Noisy(1, 2, workers)
        problem.initial = lambda: np.ones(2)  # type: ignore[method-assign]
        cluster = anyk.clusters.Simulated(workers, delays=parse("constant:1"))
        optimizer = anyk.optimizers.GD(lr=factor * limit)
        run = anyk.train(problem, "async", cluster, optimizer=optimizer, steps=250 * workers, evaluate=None)  # type: ignore[arg-type]
        sizes[factor] = float(np.abs(run.model).max())
    assert sizes[0.97] < 0.05 and sizes[1.03] > 20


def test_value_44_the_distance_rule() -> None:
    """min(C / d^2, eta_max) with C = 0.01, eta_max = 0.1, as a weight times the learning rate."""
    from anyk.protocol import Combine, DriftMeasured, Fleet, Reply

    rates = []
    for squared in (0.0, 0.05, 0.1, 0.2, 1.0):
        running = Running(anyk.strategy("async:stale=distance,bound=0.1", workers=2))  # bound = C / eta_max
        running.start(Fleet(2, (0, 1)))
        running.on(Reply(1.0, 0, 0, 0))
        combine = running.on(DriftMeasured(1.0, 0, 0, 0, squared))[0]
        assert isinstance(combine, Combine)
        rates.append(0.1 * combine.weights[0])
    assert rates == pytest.approx([0.1, 0.1, 0.1, 0.05, 0.01], abs=1e-12)


def test_order_statistics_of_a_sample() -> None:
    """With replacement from the sample, counted out over all draws."""
    from itertools import product

    sample = [0.5, 1.0, 4.0]
    draws = np.sort(np.array(list(product(sample, repeat=4))), axis=1)
    assert order_means(sample, 4) == pytest.approx(draws.mean(axis=0))
    masses = np.array([0.2, 0.5, 0.3])
    chances = np.array([np.prod(c) for c in product(masses, repeat=4)])
    assert order_means(sample, 4, masses) == pytest.approx((draws * chances[:, None]).sum(axis=0))
    assert order_means(sample, 4).mean() == pytest.approx(np.mean(sample))
