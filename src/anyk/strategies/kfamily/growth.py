"""Rules by which K of the K family grows: by loss, delays or gradient noise, or by plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from math import floor, isfinite, sqrt
from typing import Any, ClassVar, Literal, cast

import numpy as np
from numpy.typing import ArrayLike

from anyk.base.checks import AtLeastOne, PositiveNumber, check_range, typed
from anyk.base.errors import BadInput
from anyk.base.plain import values_of
from anyk.base.specs import show_spec
from anyk.protocol import (
    Command,
    Commands,
    EvaluateLoss,
    Event,
    LossEvaluated,
    MeasureNoise,
    NoiseMeasured,
    Note,
    SetAlarm,
    Stop,
)
from anyk.strategies.kfamily.observed import Durations
from anyk.strategies.kfamily.state import FamilyTerms, KState

Rule = Literal["loss", "delays", "noise"]
_ALARM = "adasync"
_SMOOTHING = 0.9  # factor of the past gradient noise scale in each step


def adapted_k(first_k: int, first_loss: float, loss: float, workers: int, *, linear: bool, rate: float = 1.0) -> float:
    """Return K for a loss, not rounded, which minimises the error as a function of time over the next interval.

    With ``F`` the excess loss and initial values K_0, F_0: if a step takes time proportional to K (the batch kinds,
    ``linear``), ``K = K_0 r sqrt(F_0 / F)``; if proportional to ``log(P / (P - K))`` (the others, exponential delays),
    ``K = (-C + sqrt(C^2 + 4 C P)) / 2`` with ``C = K_0^2 / (P - K_0) r^2 F_0 / F``. ``rate`` r is the learning rate
    over the initial one. (AdaSync, Dutta, Wang and Joshi 2021; the constants cancel.)

    >>> adapted_k(2, 1.0, 0.25, 8, linear=True), round(adapted_k(2, 1.0, 0.25, 8, linear=False), 4)
    (4.0, 3.4741)
    """
    if loss <= 0.0:
        return float(workers)
    if linear:
        return first_k * rate * sqrt(first_loss / loss)
    if first_k >= workers:
        return float(first_k)
    c = first_k**2 / (workers - first_k) * rate**2 * first_loss / loss
    return 2.0 * workers / (1.0 + sqrt(1.0 + 4.0 * workers / c))  # the same root, without a difference of large numbers


def k_for_delays(first_k: int, first_loss: float, loss: float, seconds: ArrayLike, *, rate: float = 1.0) -> int:
    """Return K for a loss under any delays: the minimiser of ``F R(K) + A r^2 / K`` over K = 1, …, P.

    ``seconds[K - 1]`` is the mean time of a step with K, and R(K) its ratio to that with K_0. A is the middle of the
    interval in which K_0 is the minimiser at F_0, or the lower end if that interval is empty. (AdaSync, Dutta, Wang and
    Joshi 2021, for measured delays.)

    >>> k_for_delays(2, 9.0, 1.0, [1, 2, 3, 4, 5, 6, 7, 8])
    6
    """
    times = np.asarray(seconds, dtype=np.float64)
    if loss <= 0.0:
        return int(times.size)
    k = np.arange(1, times.size + 1)
    ratio = times / times[first_k - 1]
    smaller, larger = k < first_k, k > first_k
    least = first_loss * (1.0 - ratio[smaller]) / (1.0 / k[smaller] - 1.0 / first_k)
    most = first_loss * (ratio[larger] - 1.0) / (1.0 / first_k - 1.0 / k[larger])
    low = float(least.max()) if least.size else 0.0
    high = float(most.min()) if most.size else low
    a = max(low, 0.5 * (low + high))
    return int(np.argmin(loss * ratio + a * rate**2 / k)) + 1


def k_for_noise(noise: float, seconds: ArrayLike) -> int:
    """Return K for a gradient noise scale: the minimiser of ``(1 + noise / K) T(K)`` over K = 1, …, P.

    ``noise`` is the variance of one worker's gradient over the squared norm of the true one (McCandlish et al. 2018),
    ``seconds[K - 1]`` the mean time T(K) of a step with K.

    >>> k_for_noise(4.0, [1.125, 1.267857, 1.434524, 1.634524, 1.884524, 2.217857, 2.717857, 3.717857])
    4
    """
    times = np.asarray(seconds, dtype=np.float64)
    return int(np.argmin((1.0 + noise / np.arange(1, times.size + 1)) * times)) + 1


@dataclass(slots=True)
class NoState:
    """The state of a rule without one."""


class Growth:
    """A rule by which K of the K family grows; by default its hooks do nothing."""

    name: ClassVar[str]
    why: ClassVar[str]  # reason why its pace has no closed form
    State: ClassVar[type[Any]] = NoState

    @property
    def losses(self) -> bool:
        """Whether the rule evaluates the training loss."""
        return False

    def check(self, family: FamilyTerms) -> None:
        """Raise :class:`~anyk.BadInput` if K of this family cannot grow by this rule."""

    def show(self, family: FamilyTerms) -> str:
        """Return the spec of the family with this rule, whose first setting is always shown."""
        others = fields(cast(Any, self))[1:]
        usual = {"lr_scale": 1.0, "batch": 0, "cancel": "preempt"} | {field.name: field.default for field in others}
        values = {"base": family.kind, "k": family.k} | vars(self) | values_of(family, "lr_scale", "batch", "cancel")
        return show_spec(self.name, values, usual)

    def start(self, s: KState) -> tuple[Any, list[Command]]:
        """Return the rule's state and the first commands of a run."""
        return NoState(), []

    def on(self, family: FamilyTerms, s: KState, event: Event) -> Commands:
        """Return the commands that follow a measurement for the rule, or its alarm."""
        return ()

    def dispatched(self, s: KState, tasks: range) -> None:
        """Note that tasks start now."""

    def ended(self, s: KState, task: int, *, whole: bool) -> None:
        """Note that a task has ended now, or been cancelled (``whole=False``)."""

    def stepping(self, s: KState, used: Sequence[tuple[int, int]]) -> list[Command]:
        """Return the commands before the step that uses these messages."""
        return []

    def stepped(self, family: FamilyTerms, s: KState) -> list[Command]:
        """Return the commands after a step."""
        return []


@dataclass(slots=True)
class AdaSyncState:
    """AdaSync's record of losses, durations and noise."""

    durations: Durations
    first: tuple[float, float] | None = None  # loss and learning rate
    began: dict[int, float] = field(default_factory=dict)  # task under way -> its start, if durations matter
    variance: float = 0.0  # of a gradient, smoothed
    square: float = 0.0  # squared norm of the true gradient, smoothed


@typed
@dataclass(frozen=True)
class AdaSync(Growth):
    """AdaSync's rule: K grows as the loss falls, or as noise exceeds the gradient (Dutta, Wang and Joshi 2021).

    Every ``interval`` seconds K may grow, at most to the number of workers; each change is a note in the run's log.
    ``rule`` determines K:

    - ``loss``: :func:`adapted_k` of the objective at the newest version, rounded to the nearest number; right for
      exponential delays.
    - ``delays``: :func:`k_for_delays` of the objective, with step times from the durations of tasks observed so far.
    - ``noise``: :func:`k_for_noise`, which needs no loss: the gradient noise scale is measured from the gradients of
      each step (k must be at least 2), smoothed over steps.

    ``loss_floor`` is the least possible value of the objective, whose excess over it enters the rules. A learning rate
    that falls by a schedule reduces the effect of noise, and so K.
    """

    name = "adasync"
    why = "k changes with the loss"
    State = AdaSyncState

    _: KW_ONLY
    interval: PositiveNumber = 60.0
    rule: Rule = "loss"
    loss_floor: float = 0.0

    def check(self, family: FamilyTerms) -> None:
        if self.rule == "noise" and family.k < 2:
            raise BadInput("rule=noise of 'adasync' measures how gradients of a step differ; k must be at least 2")
        if family.k > family.workers:
            raise BadInput(f"k of 'adasync' grows up to {family.workers} workers, it cannot start at {family.k}")

    @property
    def losses(self) -> bool:
        return self.rule != "noise"

    def start(self, s: KState) -> tuple[AdaSyncState, list[Command]]:
        first: list[Command] = [] if self.rule == "noise" else [EvaluateLoss("model")]
        return AdaSyncState(Durations(max(400, 20 * s.crew.size))), [*first, SetAlarm(_ALARM, s.now + self.interval)]

    def on(self, family: FamilyTerms, s: KState, event: Event) -> Commands:
        match event:
            case NoiseMeasured():
                self._weigh(s.growth, event)
                return ()
            case LossEvaluated():
                return self._adapt(family, s, event)
        alarm = SetAlarm(_ALARM, event.time + self.interval)
        return [alarm, *self._by_noise(family, s)] if self.rule == "noise" else [EvaluateLoss("model"), alarm]

    # ------------------------------------------------------------------------------------------- measurements

    def dispatched(self, s: KState, tasks: range) -> None:
        if self.rule != "loss":
            s.growth.began.update(dict.fromkeys(tasks, s.now))

    def ended(self, s: KState, task: int, *, whole: bool) -> None:
        began = s.growth.began.pop(task, None)
        if began is not None:
            s.growth.durations.add(s.now - began, ended=whole)

    def stepping(self, s: KState, used: Sequence[tuple[int, int]]) -> list[Command]:
        return [MeasureNoise(used)] if self.rule == "noise" and len(used) > 1 else []

    def stepped(self, family: FamilyTerms, s: KState) -> list[Command]:
        s.growth.began = {task: began for task, began in s.growth.began.items() if task in s.under_way}
        return []

    def _weigh(self, growth: AdaSyncState, event: NoiseMeasured) -> None:
        """Update the noise from a measurement; numerator and denominator are smoothed before they are divided.

        ``S = k / (k-1) (mean |g|^2 - |mean g|^2)``, ``|F'|^2 = |mean g|^2 - S / k``.
        """
        k = event.replies
        variance = max(0.0, k / (k - 1.0) * (event.mean_square - event.square_of_mean))
        square = event.square_of_mean - variance / k
        growth.variance = _SMOOTHING * growth.variance + (1.0 - _SMOOTHING) * variance
        growth.square = _SMOOTHING * growth.square + (1.0 - _SMOOTHING) * square

    def _times(self, family: FamilyTerms, s: KState) -> Any:
        """Return the mean seconds of a step for K = 1, …, P; None until enough durations are known."""
        durations, n = s.growth.durations, family.workers
        if len(durations.entries) < 2 * n or len(durations) < max(4, n // 4):
            return None
        return durations.mean() / n * np.arange(1, n + 1) if family.batches else durations.means(n)

    # ------------------------------------------------------------------------------------------- changes of K

    def _adapt(self, family: FamilyTerms, s: KState, event: LossEvaluated) -> Commands:
        loss, growth = event.loss - self.loss_floor, s.growth
        if growth.first is None:
            if loss <= 0.0:
                reason = (
                    f"loss_floor of 'adasync' is not below the first loss: {self.loss_floor:g}, and the loss is "
                    f"{event.loss:g}"
                )
                return [Stop(reason, failed=True)]
            growth.first = loss, event.rate
            return ()
        first, before = growth.first
        if not (isfinite(loss) and isfinite(first) and event.rate > 0.0 and before > 0.0):
            return ()
        rate = event.rate / before
        if self.rule == "loss":
            wanted = adapted_k(family.k, first, loss, family.workers, linear=family.batches, rate=rate)
            k = floor(min(wanted, float(family.workers)) + 0.5)
        else:
            times = self._times(family, s)
            k = 0 if times is None else k_for_delays(family.k, first, loss, times, rate=rate)
        return self._grow(family, s, k, f"an excess loss of {loss:.4g}")

    def _by_noise(self, family: FamilyTerms, s: KState) -> Commands:
        growth, times = s.growth, self._times(family, s)
        if times is None or growth.variance <= 0.0:
            return ()
        noise = growth.variance / growth.square if growth.square > 0.0 else float("inf")
        k = family.workers if noise == float("inf") else k_for_noise(noise, times)
        return self._grow(family, s, k, f"a gradient noise scale of {noise:.4g} gradients")

    def _grow(self, family: FamilyTerms, s: KState, k: int, reason: str) -> Commands:
        k = min(k, family.workers)
        if k <= s.k:
            return ()
        s.k = k
        return [Note(f"k = {k} of {family.workers} at {reason}")]


@typed
@dataclass(frozen=True)
class Gradual(Growth):
    """A K that grows by plan: by ``by`` after every ``every`` steps, up to ``last`` (default: all workers)."""

    name = "gradual"
    why = "k changes by plan"

    _: KW_ONLY
    every: AtLeastOne = 100
    by: AtLeastOne = 1
    last: int | None = None

    def check(self, family: FamilyTerms) -> None:
        if self.last is not None:
            check_range("last of 'gradual'", self.last, family.k, family.workers, " workers, and at least k")

    def show(self, family: FamilyTerms) -> str:
        return super(Gradual, replace(self, last=None) if self.last == family.workers else self).show(family)

    def stepped(self, family: FamilyTerms, s: KState) -> list[Command]:
        last = family.workers if self.last is None else self.last
        k = max(s.k, min(last, family.k + s.version // self.every * self.by))
        if k == s.k:
            return []
        s.k = k
        return [Note(f"k = {k} of {family.workers} from step {s.version} on")]
