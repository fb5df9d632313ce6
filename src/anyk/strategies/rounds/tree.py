"""Rounds in which replies are added up on the way: workers form a tree, and parents decode their children."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property

import numpy as np

from anyk.checks import typed
from anyk.codes.base import Floats
from anyk.codes.tree import ROOT, TreeCode
from anyk.protocol import (
    Cancel,
    CancelMode,
    Chunk,
    Combine,
    Command,
    Commands,
    Failed,
    Fleet,
    Layout,
    Progress,
    Reply,
    RequestMessage,
    StrategyFacts,
    Task,
)
from anyk.strategies.crew import Crew, CrewStrategy
from anyk.strategies.rounds.settings import with_keys


@dataclass(slots=True)
class TreeState:
    """A run's rounds: the crew, and whose message is in, asked for or possible."""

    crew: Crew
    version: int = 0
    first: int = 0  # the round's first task
    task_of: dict[int, int] = field(default_factory=dict)  # a worker's newest task in this round
    finished: set[int] = field(default_factory=set)  # parents whose own share is done
    asked: set[int] = field(default_factory=set)
    ready: dict[int, int] = field(default_factory=dict)  # workers whose message is in, and the task that gave it
    inside: dict[int, dict[int, float]] = field(default_factory=dict)  # of an asked parent, its message's children


@typed
@dataclass(frozen=True, repr=False)
class TreeRounds(CrewStrategy):
    """Synchronous rounds under a tree code: a step needs the driver's children only (CodedReduce).

    Leaves send what they computed. A parent that has finished its own share and whose children's messages decode is
    asked to add them up, read where they lie, and send one message. The driver decodes its children's. A worker that
    dies, or whose message is unusable, is a straggler to its parent; it is asked again when it joins.

    >>> import anyk
    >>> TreeRounds(anyk.codes.TreeCode(30, children=5)).spec
    'tree:children=5,stragglers=1'
    """

    State = TreeState

    code: TreeCode
    _: KW_ONLY
    cancel: CancelMode = "preempt"

    # ------------------------------------------------------------------------------------------- settings

    @property
    def facts(self) -> StrategyFacts:
        # a parent waits until its children's messages decode, and reads them where they lie
        return StrategyFacts(exact=True, vectors_sent=2.0 * self.code.workers, durations=self._durations)

    def _durations(self, seconds: Floats, whole: Floats) -> Floats | None:
        """Seconds until the driver decodes: from the leaves up, a parent's own share and its children's messages."""
        if self.cancel != "preempt":
            return None
        children = len(self.code.children_of(ROOT))
        ready, below, first = seconds.copy(), seconds.shape[1], seconds.shape[1]
        for layer in range(self.code.depth, 0, -1):  # of which the messages come
            first -= children**layer
            messages = ready[:, first:below].reshape(-1, children)
            decoded = self.code.code.finish_times(messages).reshape(len(seconds), -1)
            if layer == 1:
                break
            parents = slice(first - children ** (layer - 1), first)
            ready[:, parents] = np.maximum(ready[:, parents], decoded)
            below = first
        return decoded[:, 0]

    @cached_property
    def layout(self) -> Layout:
        return Layout(self.code.workers, self.code.partitions, self.code.assignment, covers=self.code.covers)

    @cached_property
    def spec(self) -> str:
        return with_keys(self.code.spec, [f"cancel={self.cancel}"] * (self.cancel != "preempt"))

    @cached_property
    def _tasks(self) -> tuple[Task, ...]:
        return tuple(
            (Chunk(share.partitions, share.coefficients, send="request" if share.children else "done"),)
            for share in self.code.shares
        )

    # ------------------------------------------------------------------------------------------- events

    def start(self, fleet: Fleet) -> tuple[TreeState, Commands]:
        s = TreeState(Crew.of(fleet))
        return s, self._begin(s)

    def on_progress(self, state: TreeState, event: Progress) -> Commands:
        worker = event.worker
        if state.task_of.get(worker) != event.task or event.done < len(self.code.shares[worker].partitions):
            return ()
        state.finished.add(worker)
        return self._ask(state, worker)

    def on_reply(self, state: TreeState, event: Reply) -> Commands:
        if state.task_of.get(event.worker) != event.task:
            return ()
        state.ready[event.worker] = event.task
        parent = self.code.parents[event.worker]
        return self._step(state) if parent == ROOT else self._ask(state, parent)

    def on_failed(self, state: TreeState, event: Failed) -> Commands:
        worker = event.worker
        if state.task_of.get(worker) != event.task:
            return ()
        state.crew.fail(worker, event.task)
        self._drop(state, worker)
        return self._dispatch(state, (worker,)) if state.crew.able(worker) else self._stuck(state)

    def worker_returned(self, state: TreeState, worker: int) -> Commands:
        commands = [] if worker in state.ready else self._dispatch(state, (worker,))
        return commands + self._stuck(state)

    def worker_left(self, state: TreeState, worker: int) -> Commands:
        self._drop(state, worker)
        return self._stuck(state)

    def _drop(self, s: TreeState, worker: int) -> None:
        """A worker's task has ended; a message of it that is in stays."""
        s.task_of.pop(worker, None)
        s.finished.discard(worker)
        if worker not in s.ready:
            s.asked.discard(worker)
            s.inside.pop(worker, None)

    def _below(self, s: TreeState, node: int) -> list[int]:
        return [child for child in self.code.children_of(node) if child in s.ready]

    def _ask(self, s: TreeState, node: int) -> list[Command]:
        """Have a parent add up its children, if that can be done now."""
        if node in s.asked or node not in s.finished:
            return []
        weights = self.code.weights_below(node, self._below(s, node))
        if weights is None:
            return []
        s.asked.add(node)
        s.inside[node] = weights
        share = self.code.shares[node]
        messages = tuple((s.ready[child], 0) for child in weights)
        task = s.task_of[node]
        return [RequestMessage(node, task, 0, share.partitions, share.coefficients, messages, tuple(weights.values()))]

    def _step(self, s: TreeState) -> list[Command]:
        weights = self.code.weights_below(ROOT, self._below(s, ROOT))
        if weights is None:
            return []
        total, pending = np.zeros(self.code.workers), dict(weights)
        while pending:
            node, weight = pending.popitem()
            total[node] = weight
            pending |= {child: weight * share for child, share in s.inside.get(node, {}).items()}
        judged = self.code.judge(total)
        messages = [(s.ready[child], 0) for child in weights]
        combine = Combine("model", messages, list(weights.values()), residual=judged.residual, gain=judged.gain)
        s.version += 1
        return [combine, Cancel(range(s.first, s.crew.next), self.cancel), *self._begin(s)]

    def _begin(self, s: TreeState) -> list[Command]:
        s.first = s.crew.next
        s.crew.failures, s.task_of, s.ready = {}, {}, {}
        s.finished, s.asked, s.inside = set(), set(), {}
        return self._stuck(s) or (self._dispatch(s, sorted(s.crew.present)) if s.crew.present else [])

    def _dispatch(self, s: TreeState, workers: Sequence[int]) -> list[Command]:
        return self.dispatch(s, workers, tuple(self._tasks[worker] for worker in workers))

    def _stuck(self, s: TreeState) -> list[Command]:
        """Stop when no more messages can come and no one may join any more."""
        if s.crew.hopeless:
            return self.cannot_step(s, "every worker has been given up")
        if not s.crew.complete:
            return []
        hopeful: set[int] = set()
        for node in reversed(range(self.code.workers)):
            below = [child for child in self.code.children_of(node) if child in hopeful]
            enough = not self.code.children_of(node) or self.code.weights_below(node, below) is not None
            if node in s.ready or (s.crew.able(node) and enough):
                hopeful.add(node)
        if self.code.weights_below(ROOT, [c for c in self.code.children_of(ROOT) if c in hopeful]) is not None:
            return []
        return self.cannot_step(s, "more children of one parent are missing than it tolerates")
