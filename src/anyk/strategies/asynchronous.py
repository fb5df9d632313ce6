"""Asynchronous SGD: every reply is a step, and only its sender gets the new version."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from anyk.errors import BadInput
from anyk.protocol import Chunk, Combine, Command, Dispatch, Event, Failed, Fleet, Joined, Lost, Reply, Stop
from anyk.specs import show


class Asynchronous:
    """Asynchronous SGD: each reply steps the model at once; its worker goes on from the newest version.

    Worker i holds partition i. A step uses the mean gradient over that partition (``divisor="counted"``), computed on
    the version its worker was given, so gradients are stale: by ``workers - 1`` versions on average whatever the
    delays (conservation: at each step all unfinished tasks grow one version older). A learning rate that is stable for
    synchronous steps is about ``workers`` times too large here; ``step`` multiplies it.

    >>> Asynchronous(workers=4, step=0.25).spec
    'async:step=0.25'
    """

    slots = ("model",)

    def __init__(self, workers: int, *, step: float = 1.0) -> None:
        if workers < 1:
            raise BadInput(f"workers must be at least 1, got {workers}")
        if not 0.0 < step < float("inf"):
            raise BadInput(f"step (a factor on the learning rate) must be above 0, got {step:g}")
        self.workers = workers
        self.partitions = workers
        self.step = step
        self.holdings = tuple((i,) for i in range(workers))
        self._tasks = tuple((Chunk((i,), (1.0,)),) for i in range(workers))
        self.version = 0
        self._next = 0
        self._present: set[int] = set()
        self._gone: set[int] = set()

    @property
    def spec(self) -> str:
        """The short form."""
        return "async" if self.step == 1.0 else show("async", {"step": self.step})

    def start(self, fleet: Fleet) -> Sequence[Command]:
        """See :class:`~anyk.protocol.Strategy`."""
        self.version = self._next = 0
        self._present, self._gone = set(fleet.present), set()
        return [self._dispatch(tuple(sorted(self._present)))]

    def on(self, event: Event) -> Sequence[Command]:
        """See :class:`~anyk.protocol.Strategy`."""
        if type(event) is Reply:
            self.version += 1
            # partitions differ in size by at most one, so 1/m of the whole sum stands for any: residual sqrt(1 - 1/m)
            combine = Combine(
                "model",
                ((event.task, event.chunk),),
                (1.0,),
                "counted",
                self.step,
                (1.0 - 1.0 / self.partitions) ** 0.5,
            )
            return (combine, self._dispatch((event.worker,)))
        if isinstance(event, Failed):
            return (self._dispatch((event.worker,)),)
        if isinstance(event, Joined):
            self._present.add(event.worker)
            self._gone.discard(event.worker)
            return (self._dispatch((event.worker,)),)
        if isinstance(event, Lost):
            self._present.discard(event.worker)
            if event.gone:
                self._gone.add(event.worker)
            if len(self._gone) == self.workers:
                return (Stop("every worker has been given up", failed=True),)
        return ()

    def _dispatch(self, workers: tuple[int, ...]) -> Dispatch:
        task, self._next = self._next, self._next + len(workers)
        return Dispatch(task, workers, [self._tasks[i] for i in workers])

    def state(self) -> dict[str, Any]:
        """See :class:`~anyk.protocol.Strategy`."""
        return {
            "version": self.version,
            "next": self._next,
            "present": sorted(self._present),
            "gone": sorted(self._gone),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """See :class:`~anyk.protocol.Strategy`."""
        self.version, self._next = state["version"], state["next"]
        self._present, self._gone = set(state["present"]), set(state["gone"])
