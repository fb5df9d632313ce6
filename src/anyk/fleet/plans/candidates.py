"""The strategies that could be run on a measured fleet, and the seconds of each of their rounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from anyk import codes, keyed
from anyk.delays import fit
from anyk.delays.models import HEAVIEST, Bimodal, Pareto
from anyk.errors import BadInput, RunFailed
from anyk.fleet.plans.measured import Fleet, Quality, code_of, loads_of, slowness
from anyk.fleet.plans.prices import USUAL, VectorSize
from anyk.protocol import Strategy, models_trained, share_stored
from anyk.specs import parse, with_keys
from anyk.strategies import registry
from anyk.strategies import strategy as build_strategy
from anyk.strategies.building import from_spec

Floats = NDArray[np.float64]
Tell = Callable[[str], None]
SIMULATED = 60  # candidates at most that have no closed form
_STEPS = 2_000_000  # rounds x workers^2 from which on replies are not decoded one after another
_FAR = 1e3  # times as long: what is known to be cut off might take
_MISFIT = 0.1  # of a law that still fits
_OFF = 0.1  # by which the samples of a step may differ from what is asked for


def specs_for(workers: int) -> Iterator[str]:
    """Every spec that a code or strategy of the registries gives for planning, of those that can be built."""
    for entry in (*codes.registry, *registry):
        yield from entry.grid(workers) if entry.grid is not None else (entry.name,)


def built(spec: str, workers: int, models: int, *, exact: bool = False, batch: int = 0) -> Strategy:
    """The strategy for so many models trained at once; raises :class:`~anyk.errors.BadInput` where there is none.

    ``exact``: one whose steps are not the exact sum will not do. ``batch``: the samples of a step, to within 10 %; 0:
    all of the data.
    """
    made = from_spec(spec, workers)  # without suggestions: most specs that do not exist are skipped
    if exact and not made.facts.exact:
        raise BadInput(f"steps of '{spec}' are not the exact sum")
    if models_trained(made) != models:
        made = from_spec(with_keys(spec, {"models": models}), workers)
    if models_trained(made) != models:
        raise BadInput(f"'{spec}' does not train {models} models at once")
    return made if batch == batch_of(made) else _with_batch(made, batch)


def batch_of(strategy: Strategy) -> int:
    """The samples of a step; 0: all of the data."""
    each = parse(strategy.spec)[1].get("batch", "0")
    return int(each) * _drawn_from(strategy) if each.isdigit() else 0


def _drawn_from(strategy: Strategy) -> int:
    """Of how many parts a mini-batch is drawn."""
    layout = strategy.layout
    return layout.workers if layout.together else layout.partitions


def _with_batch(strategy: Strategy, batch: int) -> Strategy:
    parts = _drawn_from(strategy)
    each = max(1, round(batch / parts))
    if abs(each * parts - batch) > _OFF * batch:
        raise BadInput(f"a step of '{strategy.spec}' cannot have {batch} samples")
    return from_spec(with_keys(strategy.spec, {"batch": each}), strategy.layout.workers)


def candidates_for(
    today: str,
    fleet: Fleet,
    *,
    max_load: float,
    memory: float,
    models: int,
    everything: bool,
    batch: int | None = None,
    among: Callable[[Strategy], bool] | None = None,
) -> dict[str, Strategy]:
    """Today's strategy first, then every other of the registries within the limits, by spec.

    ``batch``: the samples of a step; None: as many as today's has.
    """
    workers = fleet.times.shape[1]
    now = built(
        today, workers, models, batch=batch_of(build_strategy(today, workers=workers)) if batch is None else batch
    )
    made = {now.spec: now}
    for spec in specs_for(workers):
        try:
            strategy = built(spec, workers, models, exact=not everything, batch=batch_of(now))
            load = loads_of(fleet.settled(strategy)).max()
            within = load <= max_load + 1e-12 and share_stored(strategy) <= memory + 1e-12
        except BadInput:
            continue  # it does not exist for so many workers or models
        if within and (among is None or among(strategy)):
            made.setdefault(strategy.spec, strategy)
    return made


@dataclass
class Paces:
    """Seconds of each round (rounds,) under each strategy, by spec.

    ``series``: with times that were cut off as they stand; ``imputed``: with these continued by one law and another,
    where they matter. ``seen``: the share of rounds that measured times decide. ``quality``: what steps are made of, of
    a model of that ``size``. ``left_out``: sentences.
    """

    series: dict[str, Floats] = field(default_factory=dict)
    imputed: dict[str, list[Floats]] = field(default_factory=dict)
    seen: dict[str, float] = field(default_factory=dict)
    quality: dict[str, Quality] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    size: VectorSize = USUAL


def paces_of(
    fleet: Fleet, made: dict[str, Strategy], seed: int, tell: Tell | None = None, size: VectorSize = USUAL
) -> Paces:
    """The pace of each strategy, of which the first is today's and must be possible; ``size``: of the model."""
    found = Paces(size=size)
    far = fleet.taking(np.where(fleet.censored, fleet.times * _FAR, fleet.times)) if fleet.censored.any() else None
    others = [] if far is None else imputations(fleet, seed)
    today = next(iter(made))
    quick = {spec: strategy for spec, strategy in made.items() if _quick(strategy, fleet) or spec == today}
    for spec, strategy in quick.items():
        _pace(found, fleet, far, others, spec, strategy, spec == today)
    rest = {spec: strategy for spec, strategy in made.items() if spec not in quick}
    for spec in _promising(fleet, rest, found, made):
        if tell is not None:
            tell(spec)
        _pace(found, fleet, far, others, spec, rest[spec], False)
    return found


def _quick(strategy: Strategy, fleet: Fleet) -> bool:
    """Whether its rounds are known in closed form, all at once."""
    code = code_of(strategy)
    if code is not None and not code.quick and code.policy().rounds == "coded":
        return False
    one = fleet.taking(fleet.times[:1])
    return one.closed(strategy) is not None


def _pace(
    found: Paces, fleet: Fleet, far: Fleet | None, others: list[Fleet], spec: str, strategy: Strategy, needed: bool
) -> None:
    rounds = len(fleet.times)

    def series(one: Fleet) -> Floats:
        values = one.durations(strategy)
        return values if len(values) == rounds else np.resize(values, rounds)

    try:
        lower = series(fleet)
        if not np.isfinite(lower).all() or lower.mean() <= 0:
            raise BadInput(f"no step of '{spec}' takes any time")
        seen = 1.0 if far is None else float((np.abs(series(far) - lower) <= 1e-9 * lower).mean())
        imputed = [series(one) for one in others] if seen < 1.0 else []
        quality = fleet.quality(strategy, found.size)
    except (BadInput, RunFailed):
        if needed:
            raise
        return
    found.series[spec], found.seen[spec], found.imputed[spec] = lower, seen, imputed
    found.quality[spec] = quality


def _promising(fleet: Fleet, rest: dict[str, Strategy], found: Paces, made: dict[str, Strategy]) -> list[str]:
    """Of the strategies without a closed form those that might be the soonest; of inexact ones the first of each kind.

    No exact step can be taken before each partition has been computed by someone.
    """
    rounds, workers = fleet.times.shape
    exact = [spec for spec, strategy in rest.items() if strategy.facts.exact]
    least = min((series.mean() for spec, series in found.series.items() if made[spec].facts.exact), default=np.inf)
    bounds = {spec: _bound(fleet, rest[spec]) for spec in exact}
    near = sorted((spec for spec in exact if bounds[spec] < least), key=bounds.__getitem__)
    if len(near) < len(exact):
        found.left_out.append(f"{counted(len(exact) - len(near))} left out that cannot be the soonest")
    heavy = [spec for spec in near if rounds * workers**2 > _STEPS and code_of(rest[spec]) is not None]
    if heavy:
        found.left_out.append(f"{_some(heavy)} left out, as deciding when they can be decoded takes too long")
    first = [spec for spec in near if spec not in heavy] + [spec for spec in rest if spec not in exact]
    if len(first) > SIMULATED:
        found.left_out.append(f"{counted(len(first) - SIMULATED)} that would have to be simulated left out")
    return first[:SIMULATED]


def counted(strategies: int) -> str:
    """So many strategies, in words."""
    return f"{strategies} strateg{'y' if strategies == 1 else 'ies'}"


def _some(specs: list[str]) -> str:
    return ", ".join(specs[:3]) + (f" and {len(specs) - 3} more" if len(specs) > 3 else "")


def _bound(fleet: Fleet, strategy: Strategy) -> float:
    """Mean seconds until each partition has been computed by the first of its holders, at the least load of any."""
    loads = loads_of(strategy)
    sizes = np.array([max(1, len(held)) for held in strategy.layout.assignment])
    first = fleet.seconds(loads / sizes)  # when one partition of each worker can be done at the earliest
    partitions = np.concatenate([np.asarray(held, dtype=np.int64) for held in strategy.layout.assignment])
    workers = np.repeat(np.arange(len(sizes)), [len(held) for held in strategy.layout.assignment])
    order = np.argsort(partitions, kind="stable")
    starts = np.searchsorted(partitions[order], np.unique(partitions))
    return float(np.minimum.reduceat(first[:, workers[order]], starts, axis=1).max(axis=1).mean())


# ------------------------------------------------------------------------------------------- what was cut off


def imputations(fleet: Fleet, seed: int) -> list[Fleet]:
    """The fleet with times that were cut off continued, by every law that fits what was seen, and by Pareto's.

    Laws are fitted to times relative to how slow each worker is, and draw what is left of a time given that it is
    longer than where it was cut off; the same uniforms serve all of them.
    """
    speeds = slowness(fleet.times)
    relative = fleet.times / speeds
    uniforms = keyed.generator(seed, "imputed").random(relative.shape)
    found = []
    known = relative[~fleet.censored]
    try:
        laws = [one.law for one in fit(relative, censored=fleet.censored) if one.misfit <= _MISFIT]
    except BadInput:
        laws = []
    least = known[known > 0].min() if (known > 0).any() else 0.0
    if least > 0 and not any(isinstance(law, Pareto) for law in laws):
        logs = float(np.log(np.maximum(relative, least) / least).sum())
        laws.append(Pareto(minimum=float(least), alpha=max(HEAVIEST, known.size / logs if logs else 100.0)))
    for law in laws:
        if isinstance(law, Bimodal):
            longer = np.full_like(relative, law.slow)
        else:
            before = np.asarray(law.cdf(relative.ravel(), 0)).reshape(relative.shape)
            longer = law.seconds(np.minimum(before + (1.0 - before) * uniforms, 1.0 - 1e-12), 0)
        times = np.where(fleet.censored, np.maximum(relative, longer), relative) * speeds
        found.append(fleet.taking(times))
    return found
