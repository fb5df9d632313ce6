"""The K family: how many gradients make a step, what their workers do meanwhile, and how stale they may be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from anyk.checks import check_workers, typed
from anyk.codes import Selection
from anyk.errors import BadInput
from anyk.protocol import (
    Cancel,
    CancelMode,
    Chunk,
    Combine,
    Command,
    Dispatch,
    DriftMeasured,
    Event,
    Failed,
    Fleet,
    Joined,
    Layout,
    Lost,
    MeasureDrift,
    Reply,
    Stop,
    Task,
    strategy_text,
)
from anyk.specs import show

Kind = Literal["async", "k-sync", "k-async", "k-batch-async", "k-batch-sync"]
Stale = Literal["constant", "inverse", "sqrt", "distance"]

_WEIGHT: dict[str, Callable[[int], float]] = {
    "constant": lambda staleness: 1.0,
    "inverse": lambda staleness: 1.0 / max(1, staleness),
    "sqrt": lambda staleness: (1.0 + staleness) ** -0.5,
    "distance": lambda staleness: 1.0,
}


_DEFAULTS = {
    "step": 1.0, "batch": 0, "stale": "constant", "cutoff": 0, "bound": None, "compensate": 0.0, "cancel": "preempt",
}  # fmt: skip
_ONE = (1.0,)


def synchronous(kind: str) -> bool:
    """Whether a step cuts off what is still under way."""
    return kind in ("k-sync", "k-batch-sync")


@typed
class KFamily:
    """K-async, K-batch-async and K-batch-sync SGD (Dutta, Joshi, Ghosh, Dube and Nagpurkar 2018); K = 1 is ``async``.

    Worker i holds partition i. A step takes the mean of the ``k`` gradients that come first.

    =============  ==========================================  ==============================================
    kind           a worker that replied before the step       at the step
    =============  ==========================================  ==============================================
    k-async        waits                                       those k workers get the new version, the others go on
    k-batch-async  gets the current version again              the worker that completed the step gets the new version
    k-batch-sync   gets the same version again (a new batch)   the others are cut off, all get the new version
    =============  ==========================================  ==============================================

    In the asynchronous kinds nothing is cancelled, and gradients are stale: on average by ``(n - k) / k`` versions
    under k-async and ``(n - 1) / k`` under k-batch-async, whatever the delays, since at each step so many unfinished
    tasks grow one version older. A learning rate that is stable for synchronous steps is too large by about as much;
    ``step`` multiplies it. The remaining two of the family are rounds: ``sync`` is ``uncoded``, ``k-sync:k=K`` is
    ``uncoded:wait=K``.

    ``batch``: samples of a mini-batch, drawn by (version, worker, how often on that version); 0: the whole partition.
    ``stale``: the weight of a gradient that is s versions old, ``constant`` 1, ``inverse`` 1 / max(1, s) (Zhang, Gupta,
    Lian and Liu 2016) or ``sqrt`` (1 + s)^-1/2 (as FedBuff does); or ``distance``: min(1, ``bound`` / d^2) for a model
    that has moved by d since the gradient's version, so that far moves make small steps (Dutta et al. 2018, with bound
    = C / eta_max). ``cutoff``: a gradient that old or older is dropped, and its worker starts on the newest version
    (0: none is; Maranjyan, Tyurin and Richtarik 2025). ``compensate``: lambda of delay compensation; a stale gradient g
    counts as ``g + lambda g g (w - w_old)``, elementwise, its value at the newest model to first order with the
    squared gradient for the curvature (DC-ASGD-c, Zheng et al. 2017).

    When nobody is left to wait for, because workers have been given up, a step is taken with fewer than k.

    >>> KFamily(8, kind="k-async", k=3).spec, KFamily(4, kind="async", step=0.25).spec
    ('k-async:k=3', 'async:step=0.25')
    """

    slots = ("model",)
    covers: tuple[tuple[int, ...], ...] | None = None
    inner: str | None = None

    def __repr__(self) -> str:
        return strategy_text(self)

    def __init__(
        self,
        workers: int,
        *,
        kind: Kind = "async",
        k: int = 1,
        step: float = 1.0,
        batch: int = 0,
        stale: Stale = "constant",
        cutoff: int = 0,
        bound: float | None = None,
        compensate: float = 0.0,
        cancel: CancelMode = "preempt",
    ) -> None:
        check_workers(workers)
        if not 0.0 < step < float("inf"):
            raise BadInput(f"step (a factor on the learning rate) must be above 0, got {step:g}")
        single = kind in ("k-async", "k-sync")
        if k < 1 or (single and k > workers):
            most = f" to {workers}; the batch kinds take more gradients than workers" if single else " or more"
            raise BadInput(f"k of '{kind}' must be 1{most}, got {k}")
        if batch < 0:
            raise BadInput(f"batch must be at least 1 sample (0: all of them), got {batch}")
        if stale not in _WEIGHT:
            raise BadInput(f"stale must be {', '.join(_WEIGHT)}, got {stale!r}")
        if cutoff < 0:
            raise BadInput(f"cutoff must be at least 1 version (0: none), got {cutoff}")
        if (stale == "distance") != (bound is not None) or (bound is not None and not 0.0 < bound < float("inf")):
            raise BadInput(
                "stale=distance needs bound=…, the squared distance up to which a gradient counts fully, above 0; "
                f"got stale={stale}, bound={bound}"
            )
        if not 0.0 <= compensate < float("inf"):
            raise BadInput(f"compensate (lambda of delay compensation) must be at least 0, got {compensate:g}")
        if cancel not in ("preempt", "discard"):
            raise BadInput(f"cancel must be preempt or discard, got {cancel!r}")
        self.bound, self.compensate = bound, compensate
        self.workers = self.partitions = workers
        self.kind, self.k, self.step, self.batch = kind, k, step, batch
        self.stale, self.cutoff, self.cancel = stale, cutoff, cancel
        self.assignment = tuple((i,) for i in range(workers))
        self._known: dict[tuple[int, int], Task] = {}
        # one gradient a step of the whole partition is what asynchronous runs are mostly made of, and therefore fast
        self._one = k == 1 and not synchronous(kind) and not batch and stale == "constant" and not compensate
        self._given: list[tuple[Task]] = [((Chunk((i,), (1.0,)),),) for i in range(workers)]
        self._far = (workers - 1.0) ** 0.5  # residual of such a step
        # what changes:
        self.version = 0
        self._next = 0
        self._present: set[int] = set()
        self._gone: set[int] = set()
        self._under_way: dict[int, tuple[int, int]] = {}  # task -> worker, version
        self._repeats: dict[int, tuple[int, int]] = {}  # worker -> version, its tasks on it so far
        self._weights: dict[int, float] = {}  # of gradients in the buffer, by how far the model has moved
        self._buffer: list[tuple[int, int, int]] = []  # worker, task, version of gradients not used yet

    @property
    def layout(self) -> Layout:
        """See :class:`~anyk.protocol.Strategy`."""
        return Layout(self.workers, self.partitions, self.assignment, self.slots, covers=self.covers, inner=self.inner)

    @property
    def spec(self) -> str:
        """The short form."""
        values: dict[str, Any] = {
            "k": self.k,
            "step": self.step,
            "batch": self.batch,
            "stale": self.stale,
            "cutoff": self.cutoff,
        }
        values |= {"bound": self.bound, "compensate": self.compensate, "cancel": self.cancel}
        if self.kind == "async":
            del values["k"]
        return show(self.kind, values, _DEFAULTS)

    # ------------------------------------------------------------------------------------------- events

    def start(self, fleet: Fleet) -> Sequence[Command]:
        """See :class:`~anyk.protocol.Strategy`."""
        self.version = self._next = 0
        self._present, self._gone = set(fleet.present), set()
        self._under_way, self._repeats, self._weights, self._buffer = {}, {}, {}, []
        return self._dispatch(sorted(self._present))

    def on(self, event: Event) -> Sequence[Command]:
        """See :class:`~anyk.protocol.Strategy`."""
        if type(event) is Reply and self.bound is not None:
            return (MeasureDrift(event.worker, event.task, event.chunk),) if event.task in self._under_way else ()
        if type(event) is Reply or type(event) is DriftMeasured:
            if type(event) is DriftMeasured and self.bound is not None:
                self._weights[event.task] = min(1.0, self.bound / event.value) if event.value > 0.0 else 1.0
            found = self._under_way.pop(event.task, None)
            if found is None:
                return ()
            worker, version = found
            if self.cutoff and self.version - version >= self.cutoff:
                self._weights.pop(event.task, None)
                return [Cancel((event.task,), self.cancel), *self._dispatch([worker])]
            if self._one:
                task, self._next = self._next, self._next + 1
                self.version += 1
                self._under_way[task] = worker, self.version
                combine = Combine("model", ((event.task, 0),), _ONE, "counted", self.step, self._far, self.partitions)
                return (combine, Dispatch(task, (worker,), self._given[worker]))
            self._buffer.append((worker, event.task, version))
            if len(self._buffer) >= self.k:
                return self._step(worker)
            if self.kind in ("k-batch-async", "k-batch-sync"):
                return self._dispatch([worker])
            return self._short_of()
        if isinstance(event, Failed):
            if self._under_way.pop(event.task, None) is None:
                return ()
            return self._dispatch([event.worker])
        if isinstance(event, Joined):
            if event.worker in self._present:
                return ()  # told twice that it is here
            self._present.add(event.worker)
            self._gone.discard(event.worker)
            if self.kind in ("k-sync", "k-async") and any(worker == event.worker for worker, _, _ in self._buffer):
                return self._short_of()  # its gradient is in already: it waits for the step like the others
            return self._dispatch([event.worker])
        if isinstance(event, Lost):
            self._present.discard(event.worker)
            if event.gone:
                self._gone.add(event.worker)
            self._under_way = {task: at for task, at in self._under_way.items() if at[0] != event.worker}
            if len(self._gone) == self.workers:
                return (Stop("every worker has been given up", failed=True),)
            return self._short_of()
        return ()

    def _short_of(self) -> Sequence[Command]:
        """Take a step with fewer gradients than k when no more can come before it."""
        if self._under_way or not self._buffer or len(self._present) + len(self._gone) < self.workers:
            return ()
        return self._step(self._buffer[-1][0])

    def _step(self, last: int) -> list[Command]:
        used = sorted(self._buffer)
        self._buffer = []
        m, count = self.partitions, len(used)
        rule = _WEIGHT[self.stale]
        weights = [self._weights.pop(task, rule(self.version - version)) for _, task, version in used]
        coefficients = [0.0] * m
        for (worker, _, _), weight in zip(used, weights, strict=True):
            coefficients[worker] += weight * m / count
        residual = (sum((c - 1.0) ** 2 for c in coefficients) / m) ** 0.5
        gain = sum((weight * m / count) ** 2 for weight in weights) ** 0.5
        combine = self._combined([(task, 0) for _, task, _ in used], Selection([], weights, residual, gain))
        self.version += 1
        if synchronous(self.kind):
            cut = tuple(self._under_way)
            self._under_way = {}
            commands: list[Command] = [combine, Cancel(cut, self.cancel)] if cut else [combine]
            return commands + self._dispatch(sorted(self._present))
        again = [last] if self.kind == "k-batch-async" else [worker for worker, _, _ in used]
        return [combine, *self._dispatch([worker for worker in again if worker in self._present])]

    def _combined(self, messages: list[tuple[int, int]], weighed: Selection) -> Command:
        """What is made of the gradients of a step."""
        _, weights, residual, gain = weighed
        if synchronous(self.kind):  # as rounds do: an estimate of the whole sum
            share = len(messages) / self.partitions
            weights = [weight * (1.0 / share) for weight in weights]
            return Combine("model", messages, weights, "all", self.step, residual, gain)
        return Combine("model", messages, weights, "counted", self.step, residual, gain, self.compensate)

    def _dispatch(self, workers: Sequence[int]) -> list[Command]:
        if not workers:
            return []
        first, self._next = self._next, self._next + len(workers)
        tasks = []
        for task, worker in enumerate(workers, first):
            self._under_way[task] = worker, self.version
            if not self.batch:
                tasks.append(self._given[worker][0])
                continue
            version, count = self._repeats.get(worker, (-1, 0))
            repeat = count if version == self.version else 0
            self._repeats[worker] = self.version, repeat + 1
            known = self._known.get((worker, repeat))
            if known is None:
                known = self._known[worker, repeat] = (Chunk((worker,), (1.0,), batch=self.batch, repeat=repeat),)
            tasks.append(known)
        return [Dispatch(first, tuple(workers), tasks)]

    # ------------------------------------------------------------------------------------------- state

    def state(self) -> dict[str, Any]:
        """See :class:`~anyk.protocol.Strategy`."""
        return {
            "version": self.version,
            "next": self._next,
            "present": sorted(self._present),
            "gone": sorted(self._gone),
            "under_way": [[task, *at] for task, at in self._under_way.items()],
            "repeats": [[worker, *at] for worker, at in self._repeats.items()],
            "buffer": [list(entry) for entry in self._buffer],
            "weights": list(self._weights.items()),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """See :class:`~anyk.protocol.Strategy`."""
        self.version, self._next = state["version"], state["next"]
        self._present, self._gone = set(state["present"]), set(state["gone"])
        self._under_way = {task: (worker, version) for task, worker, version in state["under_way"]}
        self._repeats = {worker: (version, count) for worker, version, count in state["repeats"]}
        self._buffer = [(worker, task, version) for worker, task, version in state["buffer"]]
        self._weights = dict(state["weights"])
