"""The strategies that could be run on a measured fleet, and the seconds of their rounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from anyk import codes, keyed
from anyk.delays import fit
from anyk.delays.base import Floats
from anyk.delays.models import HEAVIEST, Bimodal, Pareto
from anyk.errors import BadInput, RunFailed
from anyk.fleet.plans.measured_fleet import USUAL, MeasuredFleet, Quality, VectorSize, code_of, loads_of, slowness
from anyk.problems.base import Tell
from anyk.protocol import Strategy, models_trained, share_stored
from anyk.specs import parse, with_keys
from anyk.strategies import registry
from anyk.strategies import strategy as build_strategy
from anyk.strategies.construction import fleet_keys, from_spec

SIMULATED = 60  # candidates at most that have no closed form
_STEPS = 2_000_000  # rounds x workers^2 from which on replies are not decoded one after another
_FAR = 1e3  # factor by which times that were cut off might be longer
_MISFIT = 0.1  # largest misfit of a delay model that fits
_OFF = 0.1  # largest relative difference between the samples of a step and the request


def specs_for(workers: int) -> Iterator[str]:
    """Yield the specs that registered codes and strategies offer for planning; some may not exist."""
    for entry in (*codes.registry, *registry):
        yield from entry.grid(workers) if entry.grid is not None else (entry.name,)


def build_candidate(spec: str, workers: int, models: int, *, exact: bool = False, batch: int = 0) -> Strategy:
    """Return the strategy for ``models`` models; raise :class:`~anyk.errors.BadInput` if there is none.

    ``exact``: require steps that are the exact sum. ``batch``: the samples of a step, to within 10 %; 0: all of the
    data.
    """
    strategy = from_spec(spec, workers)  # without suggestions, as most specs that do not exist are skipped
    if exact and not strategy.facts.exact:
        raise BadInput(f"steps of '{spec}' are not the exact sum")
    if models_trained(strategy) != models:
        strategy = from_spec(with_keys(spec, {"models": models}), workers)
    if models_trained(strategy) != models:
        raise BadInput(f"'{spec}' does not train {models} models at once")
    if batch == batch_of(strategy):
        return strategy
    parts = _sampled_parts(strategy)
    each = max(1, round(batch / parts))
    if abs(each * parts - batch) > _OFF * batch:
        raise BadInput(f"a step of '{strategy.spec}' cannot have {batch} samples")
    return from_spec(with_keys(strategy.spec, {"batch": each}), workers)


def batch_of(strategy: Strategy) -> int:
    """Return the samples of a step; 0: all of the data."""
    each = parse(strategy.spec)[1].get("batch", "0")
    return int(each) * _sampled_parts(strategy) if each.isdigit() else 0


def _sampled_parts(strategy: Strategy) -> int:
    """Return the number of parts that a mini-batch is sampled from."""
    layout = strategy.layout
    return layout.workers if layout.together else layout.partitions


@dataclass(frozen=True)
class Request:
    """The request that a plan answers, see :func:`anyk.plan`; ``inexact``: include strategies with inexact steps."""

    today: str
    max_load: float
    memory: float
    models: int
    steps: int | None
    resamples: int
    seed: int
    inexact: bool
    tell: Tell | None
    among: Callable[[Strategy], bool] | None
    batch: int | None  # None: the samples of a step under today's strategy
    max_staleness: float | None


def candidates_for(fleet: MeasuredFleet, request: Request) -> dict[str, Strategy]:
    """Return today's strategy, then every other registered strategy within the request's limits, by spec."""
    workers, today, models, batch = fleet.times.shape[1], request.today, request.models, request.batch
    if batch is None:
        batch = batch_of(build_strategy(today, workers=workers))
    current = build_candidate(today, workers, models, batch=batch)
    candidates = {current.spec: current}
    fleet_of_today = fleet_keys(current.spec)  # others follow a changing fleet as well, or are skipped
    for spec in specs_for(workers):
        try:
            spec = with_keys(spec, fleet_of_today)
            strategy = build_candidate(spec, workers, models, exact=not request.inexact, batch=batch_of(current))
            load = loads_of(fleet.adapt(strategy)).max()
            within = load <= request.max_load + 1e-12 and share_stored(strategy) <= request.memory + 1e-12
        except BadInput:
            continue  # it does not exist for these numbers of workers and models
        if within and (request.among is None or request.among(strategy)):
            candidates.setdefault(strategy.spec, strategy)
    return candidates


@dataclass(frozen=True, eq=False)
class Timed:
    """A strategy with the seconds of each round under it, shape (rounds,).

    ``series``: with times that were cut off counted as measured; ``imputed``: with their continuations by several
    delay models, if they matter. ``measured_share``: the share of rounds that measured times decide. ``quality``: the
    composition of its steps.
    """

    strategy: Strategy
    series: Floats
    imputed: list[Floats]
    measured_share: float
    quality: Quality

    @property
    def spec(self) -> str:
        """The strategy's spec."""
        return self.strategy.spec

    @property
    def exact(self) -> bool:
        """Whether its steps are the exact sum."""
        return self.strategy.facts.exact

    @property
    def mean(self) -> float:
        """Mean seconds of a round."""
        return float(self.series.mean())

    def means(self, least: int) -> Floats:
        """Return the means of the series and of its imputed versions, the last repeated up to ``least`` of these."""
        versions = [self.series, *self.imputed]
        versions += versions[-1:] * (least - len(self.imputed))
        return np.array([version.mean() for version in versions])


def time_strategies(
    fleet: MeasuredFleet,
    strategies: dict[str, Strategy],
    seed: int,
    tell: Tell | None = None,
    size: VectorSize = USUAL,
) -> tuple[dict[str, Timed], list[str]]:
    """Return strategies with their seconds by spec, and sentences about those that were omitted.

    The first strategy is today's and must be possible. ``size``: of the model.
    """
    timed: dict[str, Timed] = {}
    omitted: list[str] = []
    continued = []
    if fleet.censored.any():
        far = fleet.taking(np.where(fleet.censored, fleet.times * _FAR, fleet.times))
        continued = [far, *imputations(fleet, seed)]
    today = next(iter(strategies))

    def add(spec: str) -> None:
        try:
            timed[spec] = _time(fleet, continued, strategies[spec], size)
        except (BadInput, RunFailed):
            if spec == today:
                raise

    quick = [spec for spec, strategy in strategies.items() if _quick(strategy, fleet) or spec == today]
    for spec in quick:
        add(spec)
    for spec in _promising(fleet, timed, [strategies[spec] for spec in strategies if spec not in quick], omitted):
        if tell is not None:
            tell(spec)
        add(spec)
    return timed, omitted


def _quick(strategy: Strategy, fleet: MeasuredFleet) -> bool:
    """Return whether the seconds of its rounds have a closed form."""
    code = code_of(strategy)
    if code is not None and not code.quick and code.policy().rounds == "coded":
        return False
    return fleet.taking(fleet.times[:1]).closed_form(strategy) is not None


def _time(fleet: MeasuredFleet, continued: list[MeasuredFleet], strategy: Strategy, size: VectorSize) -> Timed:
    """Return a strategy with its seconds; raise if its steps are impossible or take no time.

    ``continued``: if times were cut off, the fleet with these far longer, then with likely continuations.
    """
    rounds, measured_share = len(fleet.times), 1.0
    lower, *others = (np.resize(own.durations(strategy), rounds) for own in (fleet, *continued[:1]))
    if not np.isfinite(lower).all() or lower.mean() <= 0:
        raise BadInput(f"no step of '{strategy.spec}' takes any time")
    if others:
        measured_share = float((np.abs(others[0] - lower) <= 1e-9 * lower).mean())
    imputed = [np.resize(likely.durations(strategy), rounds) for likely in continued[1:] if measured_share < 1.0]
    return Timed(strategy, lower, imputed, measured_share, fleet.quality(strategy, size))


def _promising(fleet: MeasuredFleet, timed: dict[str, Timed], slow: list[Strategy], omitted: list[str]) -> list[str]:
    """Return the ``slow`` strategies, without a closed form, that might be the fastest, then inexact ones in order.

    No exact step can be taken before each partition has been computed by some worker. Reasons for omitting the others
    are added to ``omitted``.
    """
    rounds, workers = fleet.times.shape
    least = min((one.mean for one in timed.values() if one.exact), default=np.inf)
    bounds = {strategy.spec: _bound(fleet, strategy) for strategy in slow if strategy.facts.exact}
    near = sorted((spec for spec, bound in bounds.items() if bound < least), key=bounds.__getitem__)
    if len(near) < len(bounds):
        omitted.append(f"{count_strategies(len(bounds) - len(near))} left out that cannot be the soonest")
    coded = {strategy.spec for strategy in slow if code_of(strategy) is not None}
    heavy = [spec for spec in near if rounds * workers**2 > _STEPS and spec in coded]
    if heavy:
        some = ", ".join(heavy[:3]) + (f" and {len(heavy) - 3} more" if len(heavy) > 3 else "")
        omitted.append(f"{some} left out, as deciding when they can be decoded takes too long")
    first = [spec for spec in near if spec not in heavy]
    first += [strategy.spec for strategy in slow if strategy.spec not in bounds]
    if len(first) > SIMULATED:
        omitted.append(f"{count_strategies(len(first) - SIMULATED)} that would have to be simulated left out")
    return first[:SIMULATED]


def count_strategies(strategies: int) -> str:
    """Return a number of strategies in words."""
    return f"{strategies} strateg{'y' if strategies == 1 else 'ies'}"


def _bound(fleet: MeasuredFleet, strategy: Strategy) -> float:
    """Return the mean seconds until each partition has been computed by one of its workers, at the least load."""
    assignment = strategy.layout.assignment
    sizes = np.array([len(partitions) for partitions in assignment])
    first = fleet.seconds(loads_of(strategy) / np.maximum(sizes, 1))  # until a worker's first partition is computed
    partitions = np.concatenate([np.asarray(assigned, dtype=np.int64) for assigned in assignment])
    workers = np.repeat(np.arange(len(sizes)), sizes)
    order = np.argsort(partitions, kind="stable")
    starts = np.searchsorted(partitions[order], np.unique(partitions))
    return float(np.minimum.reduceat(first[:, workers[order]], starts, axis=1).max(axis=1).mean())


# ------------------------------------------------------------------------------------------- censored times


def imputations(fleet: MeasuredFleet, seed: int) -> list[MeasuredFleet]:
    """Return the fleet with its censored times continued, once by each delay model that fits, and by Pareto's.

    Models are fitted to times relative to the workers' slowness, and sample the remainder of a time given that it is
    longer than the cut; all models use the same uniforms.
    """
    speeds = slowness(fleet.times)
    relative = fleet.times / speeds
    uniforms = keyed.generator(seed, "imputed").random(relative.shape)
    uncensored = relative[~fleet.censored]
    try:
        models = [candidate.law for candidate in fit(relative, censored=fleet.censored) if candidate.misfit <= _MISFIT]
    except BadInput:
        models = []
    least = uncensored[uncensored > 0].min() if (uncensored > 0).any() else 0.0
    if least > 0 and not any(isinstance(model, Pareto) for model in models):
        logs = float(np.log(np.maximum(relative, least) / least).sum())
        models.append(Pareto(minimum=float(least), alpha=max(HEAVIEST, uncensored.size / logs if logs else 100.0)))
    fleets = []
    for model in models:
        if isinstance(model, Bimodal):
            longer = np.full_like(relative, model.slow)
        else:
            before = np.asarray(model.cdf(relative.ravel(), 0)).reshape(relative.shape)
            longer = model.seconds(np.minimum(before + (1.0 - before) * uniforms, 1.0 - 1e-12), 0)
        times = np.where(fleet.censored, np.maximum(relative, longer), relative) * speeds
        fleets.append(fleet.taking(times))
    return fleets
