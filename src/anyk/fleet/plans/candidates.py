"""The strategies that could be run on a measured fleet, and the seconds of their rounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from anyk import codes
from anyk.base import BadInput, Floats, RunFailed, keyed_generator, parse_spec, with_keys
from anyk.delays import HEAVIEST, Bimodal, Pareto, fit
from anyk.fleet.plans.measured_fleet import MeasuredFleet, Quality, VectorSize, code_of, loads_of, slowness
from anyk.problems import Tell
from anyk.protocol import Strategy, Workers, models_trained, share_stored
from anyk.strategies import from_spec, registry
from anyk.strategies import strategy as build_strategy

SIMULATED = 60  # largest number of candidates that are simulated, because they have no closed form
_MOST_DECODING = 2_000_000  # largest rounds x workers^2 for which codes without a closed form are simulated
_FAR = 1e3  # factor by which censored times may be longer than measured, in the extreme
_NO_MEAN = 1.0  # exponent of a Pareto delay model up to which its mean is infinite
_STEEPEST = 1e6  # largest exponent of a Pareto model: of times that are equal up to rounding
_MISFIT = 0.1  # largest misfit of a delay model that counts as fitting
_TOLERANCE = 0.1  # largest relative difference between the samples of a step and the requested number


def ignore(sentence: str) -> None:
    """Ignore a sentence, if the user wants none."""


def specs_for(workers: int) -> Iterator[str]:
    """Yield the specs that registered codes and strategies offer for planning; some may be impossible here."""
    for entry in (*codes.registry, *registry):
        yield from entry.grid(workers) if entry.grid is not None else (entry.name,)


def build_candidate(spec: str, workers: Workers, models: int, *, exact: bool = False, batch: int = 0) -> Strategy:
    """Return the strategy for ``models`` models; raise :class:`~anyk.BadInput` if it does not exist.

    ``exact``: require that steps are the exact sum. ``batch``: the samples of a step, met to within 10 %; 0: all of the
    data.
    """
    strategy = from_spec(spec, workers)  # not by strategy(), whose errors suggest other specs: most errors are ignored
    if exact and not strategy.facts.exact:
        raise BadInput(f"steps of '{spec}' are not the exact sum")
    if models_trained(strategy) != models:
        strategy = from_spec(with_keys(spec, {"models": models}), workers)
    if models_trained(strategy) != models:
        raise BadInput(f"'{spec}' does not train {models} models simultaneously")
    if batch == batch_of(strategy):
        return strategy
    parts = _sampled_parts(strategy)
    part_batch = max(1, round(batch / parts))
    if abs(part_batch * parts - batch) > _TOLERANCE * batch:
        raise BadInput(f"a step of '{strategy.spec}' cannot have {batch} samples")
    return from_spec(with_keys(strategy.spec, {"batch": part_batch}), workers)


def batch_of(strategy: Strategy) -> int:
    """Return the number of samples of a step; 0: all of the data."""
    part_batch = parse_spec(strategy.spec)[1].get("batch", "0")
    return int(part_batch) * _sampled_parts(strategy) if part_batch.isdigit() else 0


def _sampled_parts(strategy: Strategy) -> int:
    """Return the number of parts of the data from which each step samples ``batch`` rows."""
    layout = strategy.layout
    return layout.workers if layout.together else layout.partitions


@dataclass(frozen=True)
class Request:
    """The arguments of :func:`anyk.plan` that limit candidates; ``inexact``: include strategies with inexact steps."""

    today: str
    workers: Workers
    max_load: float
    memory: float
    models: int
    steps: int | None
    resamples: int
    seed: int
    inexact: bool
    tell: Tell
    among: Callable[[Strategy], bool] | None
    batch: int | None  # None: the samples of a step under today's strategy
    max_staleness: float | None


def candidates_for(fleet: MeasuredFleet, request: Request) -> dict[str, Strategy]:
    """Return today's strategy, then every other registered strategy within the request's limits, by spec."""
    workers, today, models, batch = request.workers, request.today, request.models, request.batch
    if batch is None:
        batch = batch_of(build_strategy(today, workers=workers))
    current = build_candidate(today, workers, models, batch=batch)
    candidates = {current.spec: current}
    for spec in specs_for(workers.most):
        try:
            strategy = build_candidate(spec, workers, models, exact=not request.inexact, batch=batch_of(current))
            load = loads_of(fleet.adapt(strategy)).max()
            fits = load <= request.max_load + 1e-12 and share_stored(strategy) <= request.memory + 1e-12
        except BadInput:
            continue  # the strategy does not exist for these numbers of workers and models
        if fits and (request.among is None or request.among(strategy)):
            candidates.setdefault(strategy.spec, strategy)
    return candidates


@dataclass(frozen=True, eq=False)
class Timed:
    """A strategy with the seconds that each recorded round would take under it, shape (rounds,).

    ``series``: seconds if tasks that were cut off took no longer than measured; ``imputed``: seconds if delay models
    continue these tasks, one series for each model, or none if it makes no difference; ``unbounded``: whether one of
    these models has no mean, so that nothing limits the seconds. ``measured_share``: the share of rounds whose seconds
    do not depend on tasks that were cut off. ``readings``: for each of the fleet's other readings the means of one or
    two series, as multiples of the series' mean; the last readings are of the driver's time. ``quality``: the
    composition of its steps.
    """

    strategy: Strategy
    series: Floats
    imputed: list[Floats]
    unbounded: bool
    measured_share: float
    readings: list[list[float]]
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
        """Return the mean of the series, then of each imputed one; the last is repeated until these are ``least``."""
        all_series = [self.series, *self.imputed]
        all_series += all_series[-1:] * (least - len(self.imputed))
        return np.array([series.mean() for series in all_series])

    @property
    def factors(self) -> list[float]:
        """The factors by which the mean seconds differ between the fleet's readings; the first is 1."""
        return [1.0, *(factor for reading in self.readings for factor in reading)]

    def factors_over(self, other: Timed) -> list[float]:
        """Return the factors by which the ratio of its seconds to another's differs between the fleet's readings."""
        pairs = zip(self.readings, other.readings, strict=True)
        return [1.0, *(one / two for ones, twos in pairs for one in ones for two in twos)]


def time_strategies(
    fleet: MeasuredFleet,
    strategies: dict[str, Strategy],
    seed: int,
    tell: Tell,
    size: VectorSize,
) -> tuple[dict[str, Timed], list[str]]:
    """Return timed strategies by spec, and sentences about omitted strategies.

    The first strategy is today's; an error of it is raised, others are skipped. ``size``: the size of the model.
    """
    timed: dict[str, Timed] = {}
    omitted: list[str] = []
    continued, unbounded = [], False
    if fleet.censored.any():
        extreme = fleet.taking(np.where(fleet.censored, fleet.times * _FAR, fleet.times))
        likely, unbounded = imputations(fleet, seed)
        continued = [extreme, *likely]
    today = next(iter(strategies))

    def time_strategy(spec: str) -> None:
        try:
            one = _time(fleet, continued, unbounded, strategies[spec], size)
            further = [[factor] for factor in _driver_factors(fleet, one, timed.get(today, one))]
            timed[spec] = replace(one, readings=[*one.readings, *further])
        except (BadInput, RunFailed):
            if spec == today:
                raise

    quick = [spec for spec, strategy in strategies.items() if _has_closed_form(strategy, fleet) or spec == today]
    for spec in quick:
        time_strategy(spec)
    for spec in _promising(fleet, timed, [strategies[spec] for spec in strategies if spec not in quick], omitted):
        tell(spec)
        time_strategy(spec)
    return timed, omitted


def _has_closed_form(strategy: Strategy, fleet: MeasuredFleet) -> bool:
    """Return whether the seconds of a strategy's rounds have a closed form."""
    code = code_of(strategy)
    if code is not None and not code.quick and code.policy().rounds == "coded":
        return False
    return fleet.taking(fleet.times[:1]).closed_form(strategy) is not None


def _time(
    fleet: MeasuredFleet, continued: list[MeasuredFleet], unbounded: bool, strategy: Strategy, size: VectorSize
) -> Timed:
    """Return a strategy with its seconds; raise if its steps are impossible or take no time.

    ``continued``: nothing without censored times, otherwise the fleet with these extremely long, then with their likely
    values; ``unbounded``: see :func:`imputations`.
    """
    rounds, measured_share = len(fleet.times), 1.0
    measured, *extreme = (np.resize(reading.durations(strategy), rounds) for reading in (fleet, *continued[:1]))
    if not np.isfinite(measured).all() or measured.mean() <= 0:
        raise BadInput(f"no step of '{strategy.spec}' takes any time")
    if extreme:
        measured_share = float((np.abs(extreme[0] - measured) <= 1e-9 * measured).mean())
    imputed = [np.resize(likely.durations(strategy), rounds) for likely in continued[1:] if measured_share < 1.0]
    # balance chooses shares by what it believes, which another reading may refute, or by what it finds out
    versions = dict.fromkeys((strategy, fleet.adapt(strategy)))
    readings = [
        [float(np.resize(reading.durations(version), rounds).mean() / measured.mean()) for version in versions]
        for reading in fleet.readings
    ]
    quality = fleet.quality(strategy, size)
    return Timed(
        strategy=strategy,
        series=measured,
        imputed=imputed,
        unbounded=unbounded and measured_share < 1.0,
        measured_share=measured_share,
        readings=readings,
        quality=quality,
    )


def _driver_factors(fleet: MeasuredFleet, one: Timed, today: Timed) -> list[float]:
    """Return factors of a strategy's mean seconds if the driver's time differs from the record's.

    The first: it grows with the vectors sent in a step. If workers share cores with the driver, its time also depends
    on how busy they are, and a worker that is cut off frees its core late. So the second has the driver wait for cores
    and every worker finish its task; the third has the driver use cores of its own.
    """
    vectors = 1.0
    if one.quality.vectors and today.quality.vectors:
        vectors = one.quality.vectors / today.quality.vectors
    driver, besides = fleet.driver, one.mean - fleet.driver
    seconds = [one.mean + driver * (vectors - 1.0)]
    if fleet.crowding > 1.0 and driver:
        loads = loads_of(fleet.adapt(one.strategy))
        longest = float(fleet.seconds(loads).max(axis=1).mean())
        seconds.append(max(besides, longest) + driver * max(1.0, vectors) * fleet.crowding)
        seconds.append(besides + driver / fleet.crowding)
    return [total / one.mean for total in seconds]


def _promising(
    fleet: MeasuredFleet, timed: dict[str, Timed], simulated: list[Strategy], omitted: list[str]
) -> list[str]:
    """Return the specs of ``simulated`` strategies that may be the fastest, then of all inexact strategies among them.

    An exact strategy may be the fastest if the time until each partition has been computed by some worker is below the
    least mean of exact strategies in ``timed``. Reasons for omitting strategies are added to ``omitted``.
    """
    rounds, workers = fleet.times.shape
    fastest = min((strategy.mean for strategy in timed.values() if strategy.exact), default=np.inf)
    bounds = {strategy.spec: _bound(fleet, strategy) for strategy in simulated if strategy.facts.exact}
    promising = sorted((spec for spec, bound in bounds.items() if bound < fastest), key=bounds.__getitem__)
    if len(promising) < len(bounds):
        omitted.append(f"{count_strategies(len(bounds) - len(promising))} omitted that cannot be the fastest")
    coded = {strategy.spec for strategy in simulated if code_of(strategy) is not None}
    undecoded = [spec for spec in promising if rounds * workers**2 > _MOST_DECODING and spec in coded]
    if undecoded:
        names = ", ".join(undecoded[:3]) + (f" and {len(undecoded) - 3} more" if len(undecoded) > 3 else "")
        omitted.append(f"{names} omitted, because computing when they can be decoded takes too long")
    selected = [spec for spec in promising if spec not in undecoded]
    selected += [strategy.spec for strategy in simulated if strategy.spec not in bounds]
    if len(selected) > SIMULATED:
        omitted.append(f"{count_strategies(len(selected) - SIMULATED)} omitted that would have to be simulated")
    return selected[:SIMULATED]


def count_strategies(strategies: int) -> str:
    """Return the number with the noun, such as '2 strategies'."""
    return f"{strategies} strateg{'y' if strategies == 1 else 'ies'}"


def _bound(fleet: MeasuredFleet, strategy: Strategy) -> float:
    """Return a lower bound on the mean seconds of an exact step.

    It is the time until each partition has been computed by a worker that computes it before its other partitions.
    """
    assignment = strategy.layout.assignment
    sizes = np.array([len(partitions) for partitions in assignment])
    first = fleet.seconds(loads_of(strategy) / np.maximum(sizes, 1))  # until a worker's first partition is computed
    partitions = np.concatenate([np.asarray(assigned, dtype=np.int64) for assigned in assignment])
    workers = np.repeat(np.arange(len(sizes)), sizes)
    order = np.argsort(partitions, kind="stable")
    starts = np.searchsorted(partitions[order], np.unique(partitions))
    return float(np.minimum.reduceat(first[:, workers[order]], starts, axis=1).max(axis=1).mean())


# ------------------------------------------------------------------------------------------- censored times


def imputations(fleet: MeasuredFleet, seed: int) -> tuple[list[MeasuredFleet], bool]:
    """Return fleets with likely values of the censored times: one for each delay model that fits, and one for Pareto.

    A Pareto model whose mean does not exist gives no fleet: the mean of its samples would be decided by the largest
    one. It says that nothing limits the times, which is the second value returned.

    Models are fitted to times relative to the workers' slowness. A censored time is sampled from the model's
    distribution above the time of censoring; all models use the same uniform random numbers.
    """
    factors = slowness(fleet.times)
    relative = fleet.times / factors
    uniforms = keyed_generator(seed, "imputed").random(relative.shape)
    uncensored = relative[~fleet.censored]
    try:
        models = [candidate.law for candidate in fit(relative, censored=fleet.censored) if candidate.misfit <= _MISFIT]
    except BadInput:
        models = []
    shortest = uncensored[uncensored > 0].min() if (uncensored > 0).any() else 0.0
    if shortest > 0 and not any(isinstance(model, Pareto) for model in models):
        logs = float(np.log(np.maximum(relative, shortest) / shortest).sum())
        steepness = uncensored.size / logs if logs > 0 else _STEEPEST
        models.append(Pareto(minimum=float(shortest), alpha=min(max(HEAVIEST, steepness), _STEEPEST)))
    finite = [model for model in models if not isinstance(model, Pareto) or model.alpha > _NO_MEAN]
    fleets = []
    for model in finite:
        if isinstance(model, Bimodal):
            sampled = np.full_like(relative, model.slow)
        else:
            below = np.asarray(model.cdf(relative.ravel(), 0)).reshape(relative.shape)
            sampled = model.seconds(np.minimum(below + (1.0 - below) * uniforms, 1.0 - 1e-12), 0)
        times = np.where(fleet.censored, np.maximum(relative, sampled), relative) * factors
        fleets.append(fleet.taking(times))
    return fleets, len(finite) < len(models)
