"""Rounds in which replies are added up on the way: workers form a tree, and parents decode their children."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property

import numpy as np

from anyk.base.arrays import Floats
from anyk.base.checks import typed
from anyk.base.specs import with_keys
from anyk.codes.tree_code import ROOT, TreeCode
from anyk.protocol import (
    CancelMode,
    Chunk,
    Combine,
    Command,
    Commands,
    Failed,
    Layout,
    Progress,
    Reply,
    RequestMessage,
    StrategyFacts,
    Task,
)
from anyk.strategies.rounds.message_requests import RequestRounds, RequestState


@dataclass(slots=True)
class TreeState(RequestState):
    """The parents that may be asked for the sum of their children, and the messages that have arrived."""

    finished: set[int] = field(default_factory=set)  # parents whose own share is done
    inside: dict[int, dict[int, float]] = field(default_factory=dict)  # asked parent -> weights of its children


@typed
@dataclass(frozen=True, repr=False)
class TreeRounds(RequestRounds[TreeState]):
    """Synchronous rounds under a tree code: a step needs only the messages of the driver's children (CodedReduce).

    Leaves send their results. A parent is asked for its message when it has finished its own share and the messages of
    its children decode: it reads them from their workers and adds them to its own. The driver decodes the messages of
    its children. A worker that dies, or whose message is unusable, is a straggler to its parent; it is asked again
    when it joins.

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
        return StrategyFacts(exact=True, vectors_sent=2.0 * self.code.workers, durations=self._durations)

    def _durations(self, seconds: Floats, full_seconds: Floats) -> Floats | None:
        """Return the seconds until the driver decodes; a parent waits for its own share and its children's messages."""
        if self.cancel != "preempt":
            return None
        children = len(self.code.children_of(ROOT))
        ready, below, first = seconds.copy(), seconds.shape[1], seconds.shape[1]
        for layer in range(self.code.depth, 0, -1):  # the senders of the messages, from the leaves up
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
        return self.code.spec if self.cancel == "preempt" else with_keys(self.code.spec, {"cancel": self.cancel})

    @cached_property
    def _tasks(self) -> tuple[Task, ...]:
        return tuple(
            (Chunk(share.partitions, share.coefficients, send="request" if share.children else "done"),)
            for share in self.code.shares
        )

    # ------------------------------------------------------------------------------------------- events

    def on_progress(self, state: TreeState, event: Progress) -> Commands:
        worker = event.worker
        if event.done < len(self.code.shares[worker].partitions):
            return ()
        state.finished.add(worker)
        return self._ask(state, worker)

    def on_reply(self, state: TreeState, event: Reply) -> Commands:
        state.got[event.worker] = event.task
        parent = self.code.parents[event.worker]
        if parent != ROOT:
            return self._ask(state, parent)
        return [] if self._weights_below(state, ROOT) is None else self._step(state)

    def on_failed(self, state: TreeState, event: Failed) -> Commands:
        worker = event.worker
        state.crew.fail(worker, event.task)
        self._drop(state, worker)
        return self._dispatch(state, (worker,)) or self._stuck(state)

    def worker_returned(self, state: TreeState, worker: int) -> Commands:
        commands = [] if worker in state.got else self._dispatch(state, (worker,))
        return commands + self._stuck(state)

    def worker_left(self, state: TreeState, worker: int) -> Commands:
        self._drop(state, worker)
        return self._stuck(state)

    # ------------------------------------------------------------------------------------------- commands

    def _begin(self, s: TreeState) -> list[Command]:
        s.finished, s.inside = set(), {}
        commands = super()._begin(s)
        return self._stuck(s) or commands

    def _task(self, s: TreeState, worker: int) -> Task:
        return self._tasks[worker]

    def _drop(self, s: TreeState, worker: int) -> None:
        """End a worker's task; its message stays if it has arrived."""
        s.task_of.pop(worker, None)
        s.finished.discard(worker)
        if worker not in s.got:
            s.inside.pop(worker, None)

    def _weights_below(self, s: TreeState, node: int) -> dict[int, float] | None:
        """Return the weights of the children's messages that have arrived; None if they do not decode."""
        return self.code.weights_below(node, [child for child in self.code.children_of(node) if child in s.got])

    def _ask(self, s: TreeState, node: int) -> list[Command]:
        """Request the sum of a parent's children, once it has finished and their messages decode."""
        if node in s.inside or node not in s.finished:
            return []
        weights = self._weights_below(s, node)
        if weights is None:
            return []
        s.inside[node] = weights
        share = self.code.shares[node]
        messages = tuple((s.got[child], 0) for child in weights)
        task = s.task_of[node]
        factors = tuple(weights.values())
        return [RequestMessage(node, task, 0, share.partitions, share.coefficients, messages=messages, weights=factors)]

    def _combine(self, s: TreeState) -> Combine:
        weights = self._weights_below(s, ROOT) or {}
        judged = self.code.judge(self.code.multiply_down({**s.inside, ROOT: weights}))
        messages = [(s.got[child], 0) for child in weights]
        return Combine("model", messages, list(weights.values()), residual=judged.residual, gain=judged.gain)

    def _stuck(self, s: TreeState) -> list[Command]:
        """Stop if the messages that can still come do not decode, and no worker can join any more."""
        if not s.crew.complete:
            return []
        hopeful: set[int] = set()  # nodes whose message is there or can come

        def decodable(node: int) -> bool:
            children = self.code.children_of(node)
            ready = [child for child in children if child in hopeful]
            return not children or self.code.weights_below(node, ready) is not None

        for node in reversed(range(self.code.workers)):
            if node in s.got or (s.crew.able(node) and decodable(node)):
                hopeful.add(node)
        if decodable(ROOT):
            return []
        return self.cannot_step(s, "more children of one parent are missing than it tolerates")
