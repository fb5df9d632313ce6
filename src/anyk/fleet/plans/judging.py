"""Candidates on a measured fleet with prediction intervals, and the verdict of a plan."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from anyk.base import Floats, keyed_generator
from anyk.fleet.explanation import attribution
from anyk.fleet.plans.candidates import Request, candidates_for, time_strategies
from anyk.fleet.plans.measured_fleet import USUAL, MeasuredFleet, loads_of, vectors_held
from anyk.fleet.plans.targets import SEEDS, Arrival, Contest, Goal
from anyk.protocol import share_stored
from anyk.runs.api import Estimate

LEVEL = 0.90
_LEAST = 1e-6  # of the mean: the lower limit of a resample


def block_length(series: ArrayLike) -> float:
    """Return the block length that suits a series' mean best, in rounds.

    Politis and White (2004) with the correction of Patton, Politis and White (2009), for the circular bootstrap. 1 for
    a series that is constant or shorter than 4.

    >>> random = np.random.default_rng(0)
    >>> white = random.normal(size=2000)
    >>> walk = np.zeros(2000)
    >>> for t in range(1, 2000):
    ...     walk[t] = 0.9 * walk[t - 1] + white[t]
    >>> block_length(white) < 5 < 20 < block_length(walk)
    True
    """
    values = np.asarray(series, dtype=float)
    n = len(values)
    centred = values - values.mean()
    if n < 4 or not centred.any():
        return 1.0
    least = max(5, int(np.sqrt(np.log10(n))))
    most = min(n - 1, int(np.ceil(np.sqrt(n))) + least)
    covariance = np.array([float(centred[: n - lag] @ centred[lag:]) / n for lag in range(most + 1)])
    small = np.abs(covariance[1:] / covariance[0]) < 2.0 * np.sqrt(np.log10(n) / n)
    runs = [m for m in range(len(small) - least + 1) if small[m : m + least].all()]
    significant = np.flatnonzero(~small) + 1
    last = runs[0] if runs else int(significant[-1]) if len(significant) else 1
    wide = min(2 * max(last, 1), most)
    lags = np.arange(-wide, wide + 1)
    window = np.clip(2.0 * (1.0 - np.abs(lags) / wide), 0.0, 1.0)
    weighted = window * covariance[np.abs(lags)]
    spread, level = float((weighted * np.abs(lags)).sum()), float(weighted.sum())
    if level <= 0.0:
        return 1.0
    best = (2.0 * spread**2 / (4.0 / 3.0 * level**2)) ** (1.0 / 3.0) * n ** (1.0 / 3.0)
    return float(min(max(1.0, best), np.ceil(min(3.0 * np.sqrt(n), n / 3.0))))


class Logarithms(NamedTuple):
    """Logarithms of seconds: on the record, shape (candidates,), and in resamples, shape (resamples, candidates).

    ``past``: of the record; ``future``: of future runs, relative to the record.
    """

    center: Floats
    past: Floats
    future: Floats

    def deviations(self, i: int) -> Floats:
        """Return a candidate's deviations in future runs from the record, shape (resamples,)."""
        return np.asarray(self.past[:, i] - self.center[i] + self.future[:, i])


@dataclass(frozen=True)
class Resampled:
    """Weights of rounds in resamples of the record (``past``) and of a future run, each of shape (resamples, rounds).

    ``effective``: the number of independent blocks in the record.
    """

    past: Floats
    future: Floats
    effective: float

    def spread(self, series: Floats) -> Logarithms:
        """Return the logarithms of the mean seconds of ``series``, shape (candidates, rounds)."""
        means = series.mean(axis=1)
        least = _LEAST * means  # simultaneous steps have no logarithm
        past, future = (np.log(np.maximum(weights @ series.T, least)) for weights in (self.past, self.future))
        return Logarithms(np.log(means), past, future - np.log(means))

    def widened(self, deviations: Floats) -> tuple[float, float]:
        """Return the 5 % and 95 % quantiles of deviations, widened as by Student's t for few independent blocks."""
        wider = student_factor(self.effective)
        low, high = np.quantile(deviations, [(1.0 - LEVEL) / 2.0, (1.0 + LEVEL) / 2.0])
        return float(low * wider), float(high * wider)


def student_factor(count: float) -> float:
    """Return the factor by which Student's t widens a 90 % interval for ``count`` independent values."""
    from scipy.stats import t

    return float(np.sqrt(count / (count - 1.0)) * t.ppf(0.5 + LEVEL / 2.0, count - 1.0) / 1.645)


def resample(rounds: int, steps: int, block: int, resamples: int, generator: np.random.Generator) -> Resampled:
    """Sample rounds in circular blocks, for the length of the record and for a future run of ``steps`` steps."""
    return Resampled(
        _weights(rounds, rounds, block, resamples, generator),
        _weights(rounds, steps, block, resamples, generator),
        max(2.0, rounds / block),
    )


def _weights(rounds: int, length: int, block: int, resamples: int, generator: np.random.Generator) -> Floats:
    """Return the share of each round in samples of ``length`` rounds, shape (resamples, rounds)."""
    starts = generator.integers(0, rounds, size=(resamples, -(-length // block)))
    weights = np.zeros((resamples, rounds))
    rows = np.arange(resamples)
    for number in range(length):
        np.add.at(weights, (rows, (starts[:, number // block] + number % block) % rounds), 1.0)
    return weights / length


_GAIN = 0.03  # below it a change is not worth it
_TIE = 0.01  # strategies within it are equally good
_MOMENTUM = 1  # vectors of the usual optimiser's state
_SEEN = 0.95  # share of a candidate's steps that measured times must decide
_RARE = 1.4  # factor by which promised intervals are wider with few independent blocks; from measured traces
_MANY = 10.0  # times today's seconds, from which on a gain is told as a multiple
_FAR = 1000.0  # times the least value: an end of an interval that far away is none
_FEW, _INDEPENDENT = 30, 10.0  # rounds, and blocks, below which the evidence is thin


@dataclass(frozen=True)
class Choice:
    """A strategy that could be run.

    ``seconds_per_step`` and ``gain`` (1 - its seconds over today's) for a run of the requested steps; ``load``: the
    largest share of the data that a worker computes in a step; ``exact``: whether every step is the exact sum.
    ``probability_best``: the share of resamples in which it is the best of the competing strategies; ``optimism``:
    added to the promise, since the best of many looks better than it is; ``seen``: the share of its steps that measured
    times decide; if the share is too small, seconds and gain range over the least and the largest continuation of the
    times that were cut off. Its price: ``worker_seconds`` of a step; ``memory``, the largest share of the data that a
    worker stores; and vectors as long as the model: the most ``vectors`` sent in a step (``bytes_per_step`` if the
    problem is given), and the ``vectors_held`` by a worker. Composition of steps: mean ``residual`` and ``staleness``,
    and ``samples_per_step``, a share of the data.

    With a target: the ``learning_rate`` at which it is reached soonest, ``steps_to_target`` and seconds (``arrival``),
    to which ``gain`` refers. None (and a ``gain`` of nan) if it was not trained, or abandoned.
    """

    spec: str
    family: str
    exact: bool
    seconds_per_step: Estimate
    gain: Estimate
    load: float
    probability_best: float
    optimism: float
    seen: float
    worker_seconds: float
    memory: float
    vectors: float | None = None
    vectors_held: int | None = None
    bytes_per_step: float | None = None
    residual: float | None = None
    staleness: float | None = None
    samples_per_step: float | None = None
    learning_rate: float | None = None
    steps_to_target: float | None = None
    arrival: Estimate | None = None

    @property
    def measured(self) -> bool:
        """Whether measured times decide enough of its steps."""
        return self.seen >= _SEEN

    @property
    def seconds_to_target(self) -> float | None:
        """The median of ``arrival``."""
        return None if self.arrival is None else self.arrival.median


class Judgement:
    """Candidates on a fleet with their intervals, and the verdict."""

    def __init__(self, fleet: MeasuredFleet, request: Request, goal: Goal | None) -> None:
        self.fleet, self._goal, rounds = fleet, goal, len(fleet.times)
        strategies = candidates_for(fleet, request)  # the first is today's, here and in all that follows
        today = next(iter(strategies))
        size = USUAL if goal is None else goal.size
        timed, omitted = time_strategies(fleet, strategies, request.seed, request.tell, size)
        stalest = math.inf if request.max_staleness is None else request.max_staleness
        timed = {spec: one for spec, one in timed.items() if spec == today or (one.quality.staleness or 0.0) <= stalest}
        self._timed = [timed[spec] for spec in strategies if spec in timed]
        self._table = np.stack([one.series for one in self._timed])
        self.omitted = tuple(omitted)
        self.horizon = request.steps or rounds
        self._arrivals: dict[str, Arrival] = {}
        if goal is not None:
            contest = Contest(fleet=fleet, timed=timed, goal=goal, today=today, tell=request.tell)
            self._arrivals = contest.arrivals()
            self.omitted += tuple(contest.omitted)
            self.horizon = request.steps or max(1, round(float(np.median(self._arrivals[today].steps))))
        # the largest of Politis and White's length, the cube root of the rounds and twice the mean burst
        straggling = attribution.late(fleet.times)
        burst = attribution.mean_burst(straggling[:, straggling.mean(axis=0) <= 0.5])  # without the slow for good
        length: float = max(block_length(self._table[0]), float(np.cbrt(rounds)), 2.0 * burst)
        self.block = max(1, min(math.ceil(length), rounds // 3))
        self._resamples = resample(
            rounds, self.horizon, self.block, request.resamples, keyed_generator(request.seed, "plan")
        )
        self.thin = rounds < _FEW or self._resamples.effective < _INDEPENDENT
        # in few rounds the rarest stalls do not occur, so that seconds vary more than these rounds show
        self._wider = _RARE if self._resamples.effective < _INDEPENDENT else 1.0
        self._pace = self._resamples.spread(self._table)
        self._total = self._pace if goal is None else self._to_target(request.seed)
        self._choose()

    def _choose(self) -> None:
        """Choose the best strategy, and correct its figures for the optimism of choosing among many."""
        total = self._total
        competing = self._competing()
        picks = np.array(competing)[total.past[:, competing].argmin(axis=1)]
        bias = float((total.past[np.arange(len(total.past)), picks] - total.center[picks]).mean())
        optimism = max(0.0, -bias), float(total.center[picks].std())
        wins = (np.bincount(picks, minlength=len(self._timed)) / len(picks)).tolist()
        choices = []
        for i, share in enumerate(wins):  # with a target, only the best is chosen by the luck of its seeds
            flattered = self._goal is None and i in competing and i > 0
            choices.append(self._choice(i, share, *(optimism if flattered else (0.0, 0.0))))

        def seconds(i: int) -> float:
            return (choices[i].arrival or choices[i].seconds_per_step).median

        order = sorted(competing, key=lambda i: (seconds(i), choices[i].load))
        ties = [i for i in order if seconds(i) <= (1.0 + _TIE) * seconds(order[0])]
        winner = min(ties, key=lambda i: (round(choices[i].load, 9), choices[i].vectors or 0.0))
        if self._goal is not None and winner > 0:
            choices[winner] = self._choice(winner, wins[winner], *optimism)
        self.today, self._first = choices[0], choices[winner]
        self.candidates = tuple(choices[i] for i in order)
        others = [choice for i, choice in enumerate(choices) if i not in competing]
        self.others = tuple(sorted(others, key=lambda choice: choice.seconds_per_step.median))
        steps = np.exp(total.center - self._pace.center)
        self._halves = [
            1.0 - float(half[winner].mean() * steps[winner] / (half[0].mean() * steps[0]))
            for half in np.array_split(self._table, 2, axis=1)
        ]

    def _competing(self) -> list[int]:
        """Return the numbers of today's strategy and of those that it is compared with."""
        # without a target nothing competes with inexact steps: their progress differs
        exact = self._timed[0].exact
        return [
            i
            for i, one in enumerate(self._timed)
            if i == 0
            or (
                one.measured_share >= _SEEN
                and (exact and one.exact if self._goal is None else one.spec in self._arrivals)
            )
        ]

    def _to_target(self, seed: int) -> Logarithms:
        """Return the logarithms of seconds to the target; nan for strategies that do not reach it.

        Seeds are resampled like rounds: all seeds for the record, one for the future, the same for all strategies,
        and deviations are widened as by Student's t for so few.
        """
        pace, random = self._pace, keyed_generator(seed, "seeds")
        resamples = len(pace.past)
        past_seeds, future_seed = random.integers(0, SEEDS, (resamples, SEEDS)), random.integers(0, SEEDS, resamples)
        center, past, future = np.full_like(pace.center, np.nan), pace.past.copy(), pace.future.copy()
        for i, one in enumerate(self._timed):
            if one.spec in self._arrivals:
                logs = np.log(self._arrivals[one.spec].seconds)
                center[i] = logs.mean()
                apart = student_factor(SEEDS) * (logs - logs.mean())
                past[:, i] += center[i] - pace.center[i] + apart[past_seeds].mean(axis=1)
                future[:, i] += apart[future_seed]
        return Logarithms(center, past, future)

    def _choice(self, i: int, probability_best: float, shift: float, unsure: float) -> Choice:
        """Return a candidate with its figures; ``shift`` and ``unsure``: its optimism, in logarithms of seconds."""
        one, today, pace, total = self._timed[i], self._timed[0], self._pace, self._total
        spec, strategy, quality = one.spec, one.strategy, one.quality
        wider = self._wider
        in_all = self._estimate(wider * total.deviations(i), total.center[i] + shift, unsure)
        seconds = in_all if self._goal is None else self._estimate(wider * pace.deviations(i), pace.center[i], 0.0)
        gap = total.center[i] - total.center[0] + shift
        ratio = self._estimate(total.deviations(i) - total.deviations(0), gap, unsure)
        if self._goal is None:
            # a ratio of sums lies between the ratios of their terms; logarithms of means that rare stalls dominate are
            # skewed, and widened by Student's t they would reach 20 times as long although no round took longer
            with np.errstate(divide="ignore", invalid="ignore"):  # asynchronous steps may take no time
                most = float((self._table[i] / self._table[0]).max()) * math.exp(shift)
            ratio = Estimate(ratio.median, ratio.low, max(ratio.median, min(ratio.high, most)))
        if min(one.measured_share, today.measured_share) < _SEEN:
            means = one.means(len(today.imputed))
            ratios = means / today.means(len(one.imputed))
            seconds = _between(seconds, means, no_least=False, no_most=one.unbounded)
            ratio = _between(ratio, ratios, no_least=today.unbounded, no_most=one.unbounded)
        seconds, ratio = _covering(seconds, one.factors), _covering(ratio, one.factors_over(today))
        if self._goal is not None:
            in_all = _covering(in_all, one.factors)
        gain = Estimate(1.0 - ratio.median, 1.0 - ratio.high, 1.0 - ratio.low)
        arrival, goal = self._arrivals.get(spec), self._goal
        choice = Choice(
            spec=spec,
            family=spec.partition(":")[0],
            exact=one.exact,
            seconds_per_step=seconds,
            gain=gain if i else Estimate(0.0, 0.0, 0.0),
            load=float(loads_of(self.fleet.adapt(strategy)).max()),
            probability_best=probability_best,
            optimism=shift,
            seen=one.measured_share,
            worker_seconds=self.fleet.times.shape[1] * seconds.median,
            memory=share_stored(strategy),
            vectors=quality.vectors,
            vectors_held=vectors_held(strategy, _MOMENTUM if goal is None else goal.start.vectors),
            bytes_per_step=None if goal is None or quality.vectors is None else quality.vectors * goal.size.bytes,
            residual=quality.residual,
            staleness=quality.staleness,
            samples_per_step=quality.samples,
        )
        if arrival is None:
            return choice
        steps = float(np.median(arrival.steps))
        return replace(choice, learning_rate=arrival.learning_rate, steps_to_target=steps, arrival=in_all)

    def _estimate(self, deviations: Floats, center: float, unsure: float) -> Estimate:
        """Return an interval of seconds (or a ratio) from logarithms."""
        low, high = self._resamples.widened(deviations)
        more = 1.645 * unsure
        return Estimate(
            float(np.exp(center)),
            float(np.exp(center - math.hypot(low, more))),
            float(np.exp(center + math.hypot(high, more))),
        )

    @property
    def best(self) -> Choice:
        """The fastest (within 1 %, the one of least load), or today's strategy if nothing is better."""
        return self._first if self.verdict()[0] == "change" else self.today

    def verdict(self) -> tuple[Literal["change", "nothing"], str, Literal["enough", "thin", "none"]]:
        """Return change or nothing, the reason, and the quality of the evidence."""
        evidence: Literal["enough", "thin"] = "thin" if self.thin else "enough"
        if not self.today.measured:
            reason = f"how long steps of '{self.today.spec}' take is not known, as too many times were cut off"
            return "nothing", reason, "none"
        first, to_target = self._first, "" if self._goal is None else " to the target"
        interval = f"{100 * first.gain.low:.0f} to {100 * first.gain.high:.0f} %"
        if len(self.candidates) == 1:
            reason = f"no strategy makes steps that are worth as much as the steps of '{self.today.spec}'"
        elif first is self.today:
            reason = f"'{self.today.spec}' is the soonest{to_target} of {len(self.candidates)} strategies"
        elif min([first.gain.low, *(self._halves if self.thin else ())]) >= _GAIN:
            reason = f"'{first.spec}' would take {100 * first.gain.median:.0f} % less{to_target} ({interval})"
            return "change", reason, evidence
        else:
            doubt = f"less than {100 * _GAIN:.0f} %" if first.gain.median < _GAIN else "not sure"
            gain = f"would gain {100 * first.gain.median:.0f} %{to_target} ({interval}), which is {doubt}"
            reason = f"the best, '{first.spec}', {gain}"
        return "nothing", reason, evidence


def _between(estimate: Estimate, values: Floats, *, no_least: bool, no_most: bool) -> Estimate:
    """Return an interval that covers several possible values, each with the width of an estimate.

    ``no_least``, ``no_most``: nothing limits the values from below, so that they may be near 0, or from above. A limit
    that is a thousand times the least value says no more than none.
    """
    low, high = estimate.low / estimate.median, estimate.high / estimate.median
    least, most = 0.0 if no_least else float(values.min() * low), float(values.max() * high)
    return Estimate(float(np.median(values)), least, math.inf if no_most or most > _FAR * values.min() else most)


def _covering(estimate: Estimate, factors: Sequence[float]) -> Estimate:
    """Return an interval that covers an estimate multiplied by several factors, one of which is 1."""
    return Estimate(estimate.median, estimate.low * min(factors), estimate.high * max(factors))


def headline(verdict: str, today: Choice) -> str:
    """Return the advice in a few words; there is none if the steps of today's strategy were not measured."""
    if not today.measured:
        return "no advice"
    return "change" if verdict == "change" else f"stay with '{today.spec}'"


def in_short(judged: Judgement) -> str:
    """Return the advice and the reason for it."""
    verdict, reason, _ = judged.verdict()
    return reason if verdict == "change" else f"{headline(verdict, judged.today)}, {reason}"


def gain_text(choice: Choice, today: Choice) -> str:
    """Return the gain of a choice with its 90 % interval in words."""
    gain = choice.gain
    if choice.spec == today.spec:
        return "today's"
    if math.isnan(gain.median) or not today.measured:
        return "not known"
    if gain.low == -math.inf and 1.0 - gain.high >= _MANY:
        return f"at least {1.0 - gain.high:.3g} times as long"
    if gain.low == -math.inf:
        return f"at most {_share(gain.high)} %"
    if 1.0 - gain.low >= _MANY:
        return f"{1.0 - gain.median:.3g} times as long"
    return f"{_share(gain.median)} % ({_share(gain.low)} to {_share(gain.high)})"


def _share(gain: float) -> str:
    """Return a gain in per cent."""
    return f"{100 * gain:.0f}"


def interval_text(estimate: Estimate) -> str:
    """Return seconds with their interval; only the least seconds if nothing limits them.

    >>> interval_text(Estimate(1.0, 0.5, 2.0)), interval_text(Estimate(1.0, 0.5, math.inf))
    ('1 (0.5 to 2)', '0.5 or more')
    """
    if estimate.high == math.inf:
        return f"{estimate.low:.3g} or more"
    return f"{estimate.median:.3g} ({estimate.low:.3g} to {estimate.high:.3g})"


def pareto(choices: Sequence[Choice]) -> list[Choice]:
    """Return the choices that none beats in both time and load or memory, the fastest first."""
    front: list[Choice] = []
    for choice in sorted(choices, key=lambda choice: ((choice.arrival or choice.seconds_per_step).median, choice.load)):
        if all(choice.load < other.load - 1e-12 or choice.memory < other.memory - 1e-12 for other in front):
            front.append(choice)
    return front
