"""AdaSync: begin asynchronously, for speed, and grow more synchronous as the loss falls, for accuracy."""

from __future__ import annotations

from collections.abc import Sequence
from math import floor, sqrt
from typing import Any, Literal

from anyk.errors import BadInput
from anyk.protocol import Alarm, Assess, Assessed, CancelMode, Command, Event, Fleet, Note, SetAlarm
from anyk.specs import show
from anyk.strategies.kfamily import KFamily

Base = Literal["k-sync", "k-async", "k-batch-sync", "k-batch-async"]
_ALARM = "adasync"


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


class AdaSync(KFamily):
    """AdaSync: one of the K family whose K grows as the loss falls.

    Every ``interval`` seconds the objective at the newest version is looked at, and K is set by :func:`adapted_k`,
    rounded to the nearest number, only upwards, at most the number of workers. ``floor`` is the least value that the
    objective can have (its excess over that is what counts). Each change is a note in the run's log.

    >>> AdaSync(8, base="k-async", k=2, interval=5.0).spec
    'adasync:base=k-async,k=2,interval=5'
    """

    def __init__(
        self,
        workers: int,
        *,
        base: Base = "k-async",
        k: int = 1,
        interval: float = 60.0,
        floor: float = 0.0,
        step: float = 1.0,
        batch: int = 0,
        cancel: CancelMode = "preempt",
    ) -> None:
        if base not in ("k-sync", "k-async", "k-batch-sync", "k-batch-async"):
            raise BadInput(f"base of 'adasync' must be k-sync, k-async, k-batch-sync or k-batch-async, got {base!r}")
        if not 0.0 < interval < float("inf"):
            raise BadInput(f"interval of 'adasync' must be above 0 s, got {interval:g}")
        super().__init__(workers, kind=base, k=k, step=step, batch=batch, cancel=cancel)
        self.first_k, self.interval, self.floor = k, interval, floor
        self._first_loss: float | None = None

    @property
    def spec(self) -> str:
        """The short form."""
        values: dict[str, Any] = {"base": self.kind, "k": self.first_k, "interval": self.interval, "floor": self.floor}
        values |= {"step": self.step, "batch": self.batch, "cancel": self.cancel}
        return show("adasync", values, {"floor": 0.0, "step": 1.0, "batch": 0, "cancel": "preempt"})

    def start(self, fleet: Fleet) -> Sequence[Command]:
        """See :class:`~anyk.protocol.Strategy`."""
        self.k, self._first_loss = self.first_k, None
        return [Assess("model"), SetAlarm(_ALARM, fleet.time + self.interval), *super().start(fleet)]

    def on(self, event: Event) -> Sequence[Command]:
        """See :class:`~anyk.protocol.Strategy`."""
        if isinstance(event, Assessed):
            return self._adapt(event.loss - self.floor)
        if isinstance(event, Alarm):
            return [Assess("model"), SetAlarm(_ALARM, event.time + self.interval)]
        return super().on(event)

    def _adapt(self, loss: float) -> Sequence[Command]:
        if self._first_loss is None:
            self._first_loss = loss
            return ()
        linear = self.kind in ("k-batch-sync", "k-batch-async")
        wanted = adapted_k(self.first_k, self._first_loss, loss, self.workers, linear=linear)
        k = min(self.workers, floor(wanted + 0.5)) if wanted == wanted else self.k
        if k <= self.k:
            return ()
        self.k = k
        return [Note(f"k = {k} of {self.workers} at an excess loss of {loss:.4g}")]

    def state(self) -> dict[str, Any]:
        """See :class:`~anyk.protocol.Strategy`."""
        return super().state() | {"k": self.k, "first_loss": self._first_loss}

    def restore(self, state: dict[str, Any]) -> None:
        """See :class:`~anyk.protocol.Strategy`."""
        super().restore(state)
        self.k, self._first_loss = state["k"], state["first_loss"]
