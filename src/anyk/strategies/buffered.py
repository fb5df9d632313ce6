"""Asynchronous local work: models' changes are gathered in a buffer, and nobody waits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from anyk.checks import typed
from anyk.codes import Selection
from anyk.errors import BadInput
from anyk.protocol import Chunk, Command, Dispatch, Fleet, Mix
from anyk.specs import bracketed, show
from anyk.strategies.kfamily import KFamily, Stale


@typed
class FedBuff(KFamily):
    """FedBuff (Nguyen et al. 2022): K-batch-async whose workers send what ``tau`` local steps have changed.

    The model moves by ``rate`` times the mean of the ``k`` changes that come first, each weighted by its staleness s,
    ``(1 + s)^-1/2`` by default; their workers go on from the newest version and nobody waits. ``k=1`` is FedAsync-like
    (Xie, Koyejo and Gupta 2019). ``outer``: an optimiser's spec that steps by the mean change, with learning rate
    ``rate``. Mean staleness is (n - 1) / k, whatever the delays.

    >>> FedBuff(8, tau=5, k=4).spec
    'fedbuff:tau=5,k=4'
    """

    inner = ""

    def __init__(
        self,
        workers: int,
        *,
        tau: int = 10,
        k: int = 1,
        rate: float = 1.0,
        batch: int = 0,
        stale: Stale = "sqrt",
        cutoff: int = 0,
        bound: float | None = None,
        outer: str | None = None,
    ) -> None:
        if tau < 1:
            raise BadInput(f"tau (local steps) must be at least 1, got {tau}")
        if not 0.0 < rate < float("inf"):
            raise BadInput(f"rate (the outer learning rate) must be above 0, got {rate:g}")
        super().__init__(workers, kind="k-batch-async", k=k, batch=batch, stale=stale, cutoff=cutoff, bound=bound)
        self._one = False  # its steps are not gradients
        self.tau, self.rate, self.outer = tau, rate, outer
        self.covers = ((),) * workers  # a message is a whole model
        self._taken = [0] * workers  # local steps of each worker so far

    @property
    def spec(self) -> str:
        """The short form."""
        values: dict[str, Any] = {"tau": self.tau, "k": self.k, "rate": self.rate, "batch": self.batch}
        values |= {"stale": self.stale, "cutoff": self.cutoff, "bound": self.bound, "outer": bracketed(self.outer)}
        return show(
            "fedbuff", values,
            {"rate": 1.0, "batch": 0, "stale": "sqrt", "cutoff": 0, "bound": None, "outer": None},
        )  # fmt: skip

    def start(self, fleet: Fleet) -> Sequence[Command]:
        """See :class:`~anyk.protocol.Strategy`."""
        self._taken = [0] * self.workers
        return super().start(fleet)

    def _dispatch(self, workers: Sequence[int]) -> list[Command]:
        if not workers:
            return []
        first, self._next = self._next, self._next + len(workers)
        tasks = []
        for task, worker in enumerate(workers, first):
            self._under_way[task] = worker, self.version
            chunk = Chunk((worker,), (1.0,), batch=self.batch, repeat=self._taken[worker], steps=self.tau)
            self._taken[worker] += self.tau
            tasks.append((chunk,))
        return [Dispatch(first, tuple(workers), tasks)]

    def _combined(self, messages: list[tuple[int, int]], weighed: Selection) -> Command:
        scale = (1.0 if self.outer else self.rate) / len(messages)
        weights = [scale * weight for weight in weighed.weights]
        outer = None if self.outer is None else (self.outer, self.rate)
        return Mix("model", messages, weights, share=1.0, relative=True, outer=outer, number=self.version * self.tau)

    def state(self) -> dict[str, Any]:
        """See :class:`~anyk.protocol.Strategy`."""
        return super().state() | {"taken": list(self._taken)}

    def restore(self, state: dict[str, Any]) -> None:
        """See :class:`~anyk.protocol.Strategy`."""
        super().restore(state)
        self._taken = list(state["taken"])
