"""A K that grows: begin asynchronously, for speed, and become more synchronous, for accuracy."""

from __future__ import annotations

from collections.abc import Sequence
from math import floor, isfinite, sqrt
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from anyk.checks import typed
from anyk.errors import BadInput
from anyk.protocol import (
    Alarm,
    CancelMode,
    Command,
    EvaluateLoss,
    Event,
    Fleet,
    LossEvaluated,
    MeasureNoise,
    NoiseMeasured,
    Note,
    Reply,
    SetAlarm,
    Stop,
)
from anyk.specs import show
from anyk.strategies.kfamily import KFamily, synchronous
from anyk.strategies.observed import Durations

Base = Literal["k-sync", "k-async", "k-batch-sync", "k-batch-async"]
Rule = Literal["loss", "delays", "noise"]
_BASES = ("k-sync", "k-async", "k-batch-sync", "k-batch-async")
_ALARM = "adasync"
_SMOOTHING = 0.9  # of the gradient noise scale, a step


def adapted_k(first_k: int, first_loss: float, loss: float, workers: int, *, linear: bool, rate: float = 1.0) -> float:
    """K for a loss, not rounded: what minimises error against time over the next interval.

    With ``F`` the excess loss and K_0, F_0 where it began: if a step takes time proportional to K (the batch kinds,
    ``linear``), ``K = K_0 r sqrt(F_0 / F)``; if proportional to ``log(P / (P - K))`` (the others, exponential delays),
    ``K = (-C + sqrt(C^2 + 4 C P)) / 2`` with ``C = K_0^2 / (P - K_0) r^2 F_0 / F``. ``rate`` r is the learning rate
    over that at the beginning. (AdaSync, Dutta, Wang and Joshi 2021; the constants cancel.)

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
    """K for a loss under any delays: the minimiser of ``F R(K) + A r^2 / K`` over K = 1, …, P.

    ``seconds[K - 1]`` is the mean time of a step with K, R(K) that over its value at K_0, and A such that K_0 is the
    minimiser at F_0: the middle of the interval of such A, or its lower end where there is none. (AdaSync, Dutta, Wang
    and Joshi 2021, for measured delays.)

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
    low = float(least.max()) if least.size else None
    high = float(most.min()) if most.size else None
    if low is None:
        a = 0.5 * (high or 0.0)  # everything from 0 to its upper end
    elif high is None or high < low:
        a = low
    else:
        a = 0.5 * (low + high)
    return int(np.argmin(loss * ratio + a * rate**2 / k)) + 1


def k_for_noise(noise: float, seconds: ArrayLike) -> int:
    """K for a gradient noise scale: the minimiser of ``(1 + noise / K) T(K)`` over K = 1, …, P.

    ``noise`` is the variance of one worker's gradient over the squared norm of the true one (McCandlish et al. 2018),
    ``seconds[K - 1]`` the mean time T(K) of a step with K.

    >>> k_for_noise(4.0, [1.125, 1.267857, 1.434524, 1.634524, 1.884524, 2.217857, 2.717857, 3.717857])
    4
    """
    times = np.asarray(seconds, dtype=np.float64)
    return int(np.argmin((1.0 + noise / np.arange(1, times.size + 1)) * times)) + 1


@typed
class AdaSync(KFamily):
    """AdaSync: one of the K family whose K grows as the loss falls, or as noise drowns the gradient.

    Every ``interval`` seconds K is set anew, only upwards, at most to the number of workers; each change is a note in
    the run's log. ``rule`` says how:

    - ``loss``: :func:`adapted_k` of the objective at the newest version, rounded to the nearest number; right for
      exponential delays.
    - ``delays``: :func:`k_for_delays` of the same, with step times from the durations of tasks seen so far.
    - ``noise``: :func:`k_for_noise`, which needs no loss: the gradient noise scale is measured from the gradients of
      each step (k must be at least 2), smoothed over steps.

    ``floor`` is the least value that the objective can have (its excess over that is what counts). A learning rate that
    falls by a schedule makes gradients less noisy in effect, and K smaller, as the rules say.

    >>> AdaSync(8, base="k-async", k=2, interval=5.0).spec
    'adasync:base=k-async,k=2,interval=5'
    """

    def __init__(
        self,
        workers: int,
        *,
        base: Base = "k-async",
        k: int | None = None,
        interval: float = 60.0,
        rule: Rule = "loss",
        floor: float = 0.0,
        step: float = 1.0,
        batch: int = 0,
        cancel: CancelMode = "preempt",
    ) -> None:
        _check_base(base, "adasync")
        if not 0.0 < interval < float("inf"):
            raise BadInput(f"interval of 'adasync' must be above 0 s, got {interval:g}")
        if rule not in ("loss", "delays", "noise"):
            raise BadInput(f"rule of 'adasync' must be loss, delays or noise, got {rule!r}")
        k = (2 if rule == "noise" else 1) if k is None else k
        if rule == "noise" and k < 2:
            raise BadInput("rule=noise of 'adasync' measures how gradients of a step differ; k must be at least 2")
        if k > workers:
            raise BadInput(f"k of 'adasync' grows up to {workers} workers, it cannot begin at {k}")
        super().__init__(workers, kind=base, k=k, step=step, batch=batch, cancel=cancel)
        self._one = False  # not for long
        self.first_k, self.interval, self.rule, self.floor = k, interval, rule, floor
        self._first: tuple[float, float] | None = None  # loss and learning rate
        self._began: dict[int, float] = {}  # of tasks under way, where durations matter
        self._now = 0.0
        self._kept = max(400, 20 * workers)
        self._seen = Durations(keep=self._kept)
        self._scatter = [0.0, 0.0]  # smoothed variance of a gradient and squared norm of the true one

    @property
    def spec(self) -> str:
        """The short form."""
        values: dict[str, Any] = {"base": self.kind, "k": self.first_k, "interval": self.interval, "rule": self.rule}
        values |= {"floor": self.floor, "step": self.step, "batch": self.batch, "cancel": self.cancel}
        return show("adasync", values, {"rule": "loss", "floor": 0.0, "step": 1.0, "batch": 0, "cancel": "preempt"})

    def start(self, fleet: Fleet) -> Sequence[Command]:
        """See :class:`~anyk.protocol.Strategy`."""
        self.k, self._first, self._now = self.first_k, None, fleet.time
        self._began, self._scatter = {}, [0.0, 0.0]
        self._seen = Durations(keep=self._kept)
        first = [] if self.rule == "noise" else [EvaluateLoss("model")]
        return [*first, SetAlarm(_ALARM, fleet.time + self.interval), *super().start(fleet)]

    def on(self, event: Event) -> Sequence[Command]:
        """See :class:`~anyk.protocol.Strategy`."""
        self._now = event.time
        if isinstance(event, NoiseMeasured):
            self._weigh(event)
            return ()
        if isinstance(event, LossEvaluated):
            return self._adapt(event)
        if isinstance(event, Alarm):
            again = SetAlarm(_ALARM, event.time + self.interval)
            return [again, *self._grow_by_noise()] if self.rule == "noise" else [EvaluateLoss("model"), again]
        if isinstance(event, Reply) and event.task in self._under_way:
            self._heard(event.task, ended=True)
        return super().on(event)

    # ------------------------------------------------------------------------------------------- what is measured

    def _dispatch(self, workers: Sequence[int]) -> list[Command]:
        if self.rule != "loss":
            self._began.update(dict.fromkeys(range(self._next, self._next + len(workers)), self._now))
        return super()._dispatch(workers)

    def _heard(self, task: int, *, ended: bool) -> None:
        began = self._began.pop(task, None)
        if began is not None:
            self._seen.add(self._now - began, ended=ended)

    def _step(self, last: int) -> list[Command]:
        if synchronous(self.kind):
            for task in self._under_way:
                self._heard(task, ended=False)
        used = [(task, 0) for _, task, _ in sorted(self._buffer)]
        commands = super()._step(last)
        self._began = {task: began for task, began in self._began.items() if task in self._under_way}
        return [MeasureNoise(used), *commands] if self.rule == "noise" and len(used) > 1 else commands

    def _weigh(self, event: NoiseMeasured) -> None:
        """Take in how gradients differed: ``S = k / (k-1) (mean |g|^2 - |mean g|^2)``, ``|F'|^2 = |mean g|^2 - S / k``.

        Numerator and denominator are smoothed before they are divided.
        """
        k = event.replies
        variance = max(0.0, k / (k - 1.0) * (event.mean_square - event.square_of_mean))
        for i, value in enumerate((variance, event.square_of_mean - variance / k)):
            self._scatter[i] = _SMOOTHING * self._scatter[i] + (1.0 - _SMOOTHING) * value

    def _times(self) -> Any:
        """Mean seconds of a step for K = 1, …, P; None until enough has been seen."""
        if self._seen.all < 2 * self.workers or len(self._seen) < max(4, self.workers // 4):
            return None
        if self._linear:
            return self._seen.mean() / self.workers * np.arange(1, self.workers + 1)
        return self._seen.means(self.workers)

    @property
    def _linear(self) -> bool:
        return self.kind in ("k-batch-sync", "k-batch-async")

    # ------------------------------------------------------------------------------------------- what follows

    def _adapt(self, event: LossEvaluated) -> Sequence[Command]:
        loss = event.loss - self.floor
        if self._first is None:
            if loss <= 0.0:
                why = f"floor of 'adasync' is not below the first loss: {self.floor:g}, and the loss is {event.loss:g}"
                return [Stop(why, failed=True)]
            self._first = loss, event.rate
            return ()
        first, before = self._first
        if not (isfinite(loss) and isfinite(first) and event.rate > 0.0 and before > 0.0):
            return ()
        rate = event.rate / before
        if self.rule == "loss":
            wanted = adapted_k(self.first_k, first, loss, self.workers, linear=self._linear, rate=rate)
            k = floor(min(wanted, float(self.workers)) + 0.5)
        else:
            times = self._times()
            k = 0 if times is None else k_for_delays(self.first_k, first, loss, times, rate=rate)
        return self._grow(k, f"an excess loss of {loss:.4g}")

    def _grow_by_noise(self) -> Sequence[Command]:
        variance, square = self._scatter
        times = self._times()
        if times is None or variance <= 0.0:
            return ()
        noise = variance / square if square > 0.0 else float("inf")
        k = self.workers if noise == float("inf") else k_for_noise(noise, times)
        return self._grow(k, f"a gradient noise scale of {noise:.4g} gradients")

    def _grow(self, k: int, why: str) -> Sequence[Command]:
        k = min(k, self.workers)
        if k <= self.k:
            return ()
        self.k = k
        return [Note(f"k = {k} of {self.workers} at {why}")]

    # ------------------------------------------------------------------------------------------- state

    def state(self) -> dict[str, Any]:
        """See :class:`~anyk.protocol.Strategy`."""
        own = {"k": self.k, "first": self._first, "now": self._now, "began": list(self._began.items())}
        return super().state() | own | {"seen": self._seen.plain(), "scatter": list(self._scatter)}

    def restore(self, state: dict[str, Any]) -> None:
        """See :class:`~anyk.protocol.Strategy`."""
        super().restore(state)
        self.k, self._now, self._began = state["k"], state["now"], dict(state["began"])
        self._first = None if state["first"] is None else (state["first"][0], state["first"][1])
        self._seen.restore(state["seen"])
        self._scatter = list(state["scatter"])


@typed
class Gradual(KFamily):
    """A K that grows by plan: by so much after every so many steps.

    From ``k``, ``by`` more after each ``every`` steps, to ``last`` (all workers if left out).

    >>> Gradual(8, base="k-sync", k=2, every=50).spec
    'gradual:base=k-sync,k=2,every=50'
    """

    def __init__(
        self,
        workers: int,
        *,
        base: Base = "k-async",
        k: int = 1,
        every: int = 100,
        by: int = 1,
        last: int | None = None,
        step: float = 1.0,
        batch: int = 0,
        cancel: CancelMode = "preempt",
    ) -> None:
        _check_base(base, "gradual")
        if every < 1 or by < 1:
            raise BadInput(f"every and by of 'gradual' must be at least 1, got every={every}, by={by}")
        if last is not None and not k <= last <= workers:
            raise BadInput(f"last of 'gradual' must be k = {k} to {workers} workers, got {last}")
        super().__init__(workers, kind=base, k=k, step=step, batch=batch, cancel=cancel)
        self._one = False  # not for long
        self.first_k, self.every, self.by, self.last = k, every, by, workers if last is None else last

    @property
    def spec(self) -> str:
        """The short form."""
        values: dict[str, Any] = {"base": self.kind, "k": self.first_k, "every": self.every, "by": self.by}
        values |= {"last": self.last, "step": self.step, "batch": self.batch, "cancel": self.cancel}
        return show("gradual", values, {"by": 1, "last": self.workers, "step": 1.0, "batch": 0, "cancel": "preempt"})

    def start(self, fleet: Fleet) -> Sequence[Command]:
        """See :class:`~anyk.protocol.Strategy`."""
        self.k = self.first_k
        return super().start(fleet)

    def _step(self, last: int) -> list[Command]:
        commands = super()._step(last)
        k = max(self.k, min(self.last, self.first_k + self.version // self.every * self.by))
        if k > self.k:
            self.k = k
            commands.append(Note(f"k = {k} of {self.workers} from step {self.version} on"))
        return commands

    def restore(self, state: dict[str, Any]) -> None:
        """See :class:`~anyk.protocol.Strategy`."""
        super().restore(state)
        self.k = max(self.first_k, min(self.last, self.first_k + self.version // self.every * self.by))


def _check_base(base: str, name: str) -> None:
    if base not in _BASES:
        raise BadInput(f"base of '{name}' must be k-sync, k-async, k-batch-sync or k-batch-async, got {base!r}")
