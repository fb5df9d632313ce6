"""Rounds in which replies are added up on the way: workers form a tree, and parents decode their children."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from anyk.checks import typed
from anyk.codes.tree import ROOT, TreeCode
from anyk.errors import BadInput
from anyk.protocol import (
    Cancel,
    CancelMode,
    Chunk,
    Combine,
    Command,
    Dispatch,
    Event,
    Failed,
    Fleet,
    Joined,
    Lost,
    Progress,
    Reply,
    RequestMessage,
    Stop,
    Task,
)
from anyk.strategies.coded import OfCode

_RETRIES = 2


@typed
class TreeRounds(OfCode):
    """Synchronous rounds under a tree code: a step needs the driver's children only (CodedReduce).

    Leaves send what they computed. A parent that has finished its own share and whose children's messages decode is
    asked to add them up, read where they lie, and send one message. The driver decodes its children's. A worker that
    dies, or whose message is unusable, is a straggler to its parent; it is asked again when it joins.

    >>> import anyk
    >>> TreeRounds(anyk.codes.TreeCode(30, children=5)).spec
    'tree:children=5,stragglers=1'
    """

    def __init__(self, code: TreeCode, *, cancel: CancelMode = "preempt") -> None:
        if cancel not in ("preempt", "discard"):
            raise BadInput(f"cancel must be preempt or discard, got {cancel!r}")
        self.code: TreeCode = code
        self.cancel = cancel
        self.version = self._next = self._first = 0
        self._present: set[int] = set()
        self._gone: set[int] = set()
        self._failures: dict[int, int] = {}
        self._task_of: dict[int, int] = {}  # a worker's newest task in this round
        self._finished: set[int] = set()  # parents whose own share is done
        self._asked: set[int] = set()
        self._ready: dict[int, int] = {}  # workers whose message is in, and the task that gave it
        self._inside: dict[int, dict[int, float]] = {}  # of an asked parent, the children in its message, weighted

    # ------------------------------------------------------------------------------------------- what it is

    @property
    def spec(self) -> str:
        """The short form."""
        return self._spec([f"cancel={self.cancel}"] * (self.cancel != "preempt"))

    @property
    def covers(self) -> Sequence[tuple[int, ...]]:
        """The partitions that each worker's message covers."""
        return self.code.covers

    @cached_property
    def _tasks(self) -> tuple[Task, ...]:
        return tuple(
            (Chunk(share.partitions, share.coefficients, send="request" if share.children else "done"),)
            for share in self.code.shares
        )

    # ------------------------------------------------------------------------------------------- events

    def start(self, fleet: Fleet) -> Sequence[Command]:
        """See :class:`~anyk.protocol.Strategy`."""
        self.version = self._next = 0
        self._present, self._gone = set(fleet.present), set()
        return self._begin()

    def on(self, event: Event) -> Sequence[Command]:
        """See :class:`~anyk.protocol.Strategy`."""
        if isinstance(event, Lost):
            self._present.discard(event.worker)
            self._drop(event.worker)
            if event.gone:
                self._gone.add(event.worker)
            return self._stuck()
        if isinstance(event, Joined):
            if event.worker in self._present:
                return ()  # told twice that it is here
            self._present.add(event.worker)
            self._gone.discard(event.worker)
            given = [] if event.worker in self._ready else self._dispatch((event.worker,))
            return given + self._stuck()
        if not isinstance(event, (Progress, Reply, Failed)) or self._task_of.get(event.worker) != event.task:
            return ()
        worker = event.worker
        if isinstance(event, Failed):
            self._failures[worker] = self._failures.get(worker, 0) + 1
            self._drop(worker)
            if self._failures[worker] <= _RETRIES and worker in self._present:
                return self._dispatch((worker,))
            return self._stuck()
        if isinstance(event, Progress):
            if event.done == len(self.code.shares[worker].partitions):
                self._finished.add(worker)
                return self._ask(worker)
            return ()
        self._ready[worker] = event.task
        above = self.code.parents[worker]
        return self._step() if above == ROOT else self._ask(above)

    def _drop(self, worker: int) -> None:
        """A worker's task is no more; a message of it that is in stays."""
        self._task_of.pop(worker, None)
        self._finished.discard(worker)
        if worker not in self._ready:
            self._asked.discard(worker)
            self._inside.pop(worker, None)

    def _below(self, node: int) -> list[int]:
        return [child for child in self.code.children_of(node) if child in self._ready]

    def _ask(self, node: int) -> list[Command]:
        """Have a parent add up its children, if that can be done now."""
        if node in self._asked or node not in self._finished:
            return []
        weights = self.code.weights_below(node, self._below(node))
        if weights is None:
            return []
        self._asked.add(node)
        self._inside[node] = weights
        share = self.code.shares[node]
        messages = tuple((self._ready[child], 0) for child in weights)
        task = self._task_of[node]
        return [RequestMessage(node, task, 0, share.partitions, share.coefficients, messages, tuple(weights.values()))]

    def _step(self) -> list[Command]:
        weights = self.code.weights_below(ROOT, self._below(ROOT))
        if weights is None:
            return []
        total, left = np.zeros(self.workers), dict(weights)
        while left:
            node, weight = left.popitem()
            total[node] = weight
            left |= {child: weight * share for child, share in self._inside.get(node, {}).items()}
        judged = self.code.judge(total)
        messages = [(self._ready[child], 0) for child in weights]
        combine = Combine("model", messages, list(weights.values()), residual=judged.residual, gain=judged.gain)
        self.version += 1
        return [combine, Cancel(range(self._first, self._next), self.cancel), *self._begin()]

    def _begin(self) -> list[Command]:
        self._first = self._next
        self._failures, self._task_of, self._ready = {}, {}, {}
        self._finished, self._asked, self._inside = set(), set(), {}
        if len(self._gone) == self.workers:
            return [self._stop("every worker has been given up")]
        hopeless = self._stuck()
        if hopeless:
            return hopeless
        return self._dispatch(sorted(self._present)) if self._present else []

    def _dispatch(self, workers: Sequence[int]) -> list[Command]:
        first, self._next = self._next, self._next + len(workers)
        self._task_of.update(zip(workers, range(first, self._next), strict=True))
        return [Dispatch(first, tuple(workers), tuple(self._tasks[worker] for worker in workers))]

    def _stuck(self) -> list[Command]:
        """Stop when no more messages can come and no one may join any more."""
        if len(self._present) + len(self._gone) < self.workers:
            return []
        able = {w for w in self._present if self._failures.get(w, 0) <= _RETRIES}
        hopeful: set[int] = set()
        for node in reversed(range(self.workers)):
            below = [child for child in self.code.children_of(node) if child in hopeful]
            enough = not self.code.children_of(node) or self.code.weights_below(node, below) is not None
            if node in self._ready or (node in able and enough):
                hopeful.add(node)
        if self.code.weights_below(ROOT, [c for c in self.code.children_of(ROOT) if c in hopeful]) is not None:
            return []
        return [self._stop("more children of one parent are missing than it tolerates")]

    def _stop(self, why: str) -> Stop:
        return Stop(f"step {self.version} cannot be taken under '{self.spec}': {why}", failed=True)

    # ------------------------------------------------------------------------------------------- state

    def state(self) -> dict[str, Any]:
        """See :class:`~anyk.protocol.Strategy`."""
        return {
            "version": self.version,
            "next": self._next,
            "first": self._first,
            "present": sorted(self._present),
            "gone": sorted(self._gone),
            "failures": sorted(self._failures.items()),
            "tasks": list(self._task_of.items()),
            "finished": sorted(self._finished),
            "asked": sorted(self._asked),
            "ready": list(self._ready.items()),
            "inside": [[node, list(weights.items())] for node, weights in self._inside.items()],
        }

    def restore(self, state: dict[str, Any]) -> None:
        """See :class:`~anyk.protocol.Strategy`."""
        self.version, self._next, self._first = state["version"], state["next"], state["first"]
        self._present, self._gone = set(state["present"]), set(state["gone"])
        self._failures, self._task_of = dict(state["failures"]), dict(state["tasks"])
        self._finished, self._asked, self._ready = set(state["finished"]), set(state["asked"]), dict(state["ready"])
        self._inside = {node: dict(weights) for node, weights in state["inside"]}
