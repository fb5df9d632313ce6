"""Rounds in which workers report progress and, once there is enough, a few are asked for one message each."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from anyk.checks import typed
from anyk.codes.progress import ProgressCode, Watch
from anyk.errors import BadInput
from anyk.protocol import (
    Alarm,
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
    SetAlarm,
    Stop,
    Task,
)
from anyk.strategies.coded import OfCode
from anyk.strategies.wait import Count, Decodable, WaitLike, wait_rule

_RETRIES = 2  # how often a worker whose message was unusable may be tried again in a round


@typed
class ProgressRounds(OfCode):
    """Synchronous rounds under a code whose workers report how much they have finished.

    All workers compute their partitions in order; when what is finished gives the exact sum (or ``wait``, a residual
    or a deadline, is met), those that the code names are asked for one message each, and everybody else is cut off at
    once. Nobody sends more than one vector a step. Should a worker that was asked die or give no usable message, the
    round is begun again with the others.

    With ``wait`` an approximation is scaled by the covered share (unbiased when partitions are alike in how likely
    they are to be finished).

    >>> import anyk
    >>> ProgressRounds(anyk.codes.NestedCode(8, stragglers=3)).spec
    'nested:stragglers=3,kind=binary'
    """

    def __init__(self, code: ProgressCode, *, wait: WaitLike = None, cancel: CancelMode = "preempt") -> None:
        self.code: ProgressCode = code
        rule = wait_rule(wait, replies=code.workers)
        if rule.counts() or isinstance(rule, Count):
            raise BadInput(
                f"'{code.spec}' waits for progress, not for a number of replies; give a residual or a deadline"
            )
        if rule.remembers:
            raise BadInput(f"'{code.spec}' waits for progress; give a residual or a deadline in seconds")
        self._given = str(rule)
        self.wait = rule if isinstance(rule, Decodable) else rule | Decodable()
        if cancel not in ("preempt", "discard"):
            raise BadInput(f"cancel must be preempt or discard, got {cancel!r}")
        self.cancel = cancel
        self.version = self._next = self._first = 0
        self._present: set[int] = set()
        self._gone: set[int] = set()
        self._failures: dict[int, int] = {}  # unusable messages in this round, by worker
        self._task_of: dict[int, int] = {}  # the newest task of each worker in this round
        self._done: dict[int, int] = {}  # partitions finished in it
        self._asked: dict[int, tuple[int, float]] = {}  # workers asked for a message: of which task, and its weight
        self._got: set[int] = set()
        self._missing = 0.0  # residual of what was asked for
        self._began = self._now = 0.0
        self._watch: Watch = code.watch()

    # ------------------------------------------------------------------------------------------- what it is

    @property
    def spec(self) -> str:
        """The short form."""
        parts = [] if self._given == "decodable" else [f"wait={self._given}"]
        parts += [f"cancel={self.cancel}"] * (self.cancel != "preempt")
        return self._spec(parts)

    @cached_property
    def _tasks(self) -> tuple[Task, ...]:
        orders = [tuple(map(int, order)) for order in self.code.orders]
        return tuple((Chunk(order, (1.0,) * len(order), send="request"),) for order in orders)

    # ------------------------------------------------------------------------------------------- waiting

    @property
    def replies(self) -> int:
        """Workers that have finished something in this round."""
        return sum(done > 0 for done in self._done.values())

    @property
    def replied(self) -> tuple[int, ...]:
        """Who they are."""
        return tuple(worker for worker, done in self._done.items() if done)

    @property
    def decodable(self) -> bool:
        """Whether what is finished gives the exact sum."""
        return self._watch.ready

    @property
    def residual(self) -> float:
        """The residual if the workers were asked now."""
        return self._watch.residual

    @property
    def elapsed(self) -> float:
        """Seconds since the round began."""
        return self._now - self._began

    # ------------------------------------------------------------------------------------------- events

    def start(self, fleet: Fleet) -> Sequence[Command]:
        """See :class:`~anyk.protocol.Strategy`."""
        self.version = self._next = 0
        self._present, self._gone = set(fleet.present), set()
        self._now, self._missing = fleet.time, 0.0
        return self._begin()

    def on(self, event: Event) -> Sequence[Command]:
        """See :class:`~anyk.protocol.Strategy`."""
        self._now = event.time
        if isinstance(event, Progress):
            worker = event.worker
            if self._asked or self._task_of.get(worker) != event.task:
                return ()
            if event.done < self._done.get(worker, 0):  # the worker of a resumed run begins anew
                self._done[worker] = event.done
                self._watch = self._watched()
            else:
                self._done[worker] = event.done
                self._watch.saw(worker, event.done)
            return self._ask() if self.wait.enough(self) else self._stuck()
        if isinstance(event, Reply):
            if self._asked.get(event.worker, (-1, 0.0))[0] != event.task:
                return ()
            self._got.add(event.worker)
            return self._step() if len(self._got) == len(self._asked) else ()
        if isinstance(event, Failed):
            if self._task_of.get(event.worker) != event.task:
                return ()
            self._failures[event.worker] = self._failures.get(event.worker, 0) + 1
            return self._again()
        if isinstance(event, Lost):
            return self._lose(event)
        if isinstance(event, Joined):
            if event.worker in self._present:
                return ()  # told twice that it is here
            self._present.add(event.worker)
            self._gone.discard(event.worker)
            return [] if self._asked else [*self._dispatch((event.worker,)), *self._stuck()]
        if isinstance(event, Alarm) and not self._asked and self.wait.enough(self):
            return self._ask()
        return ()

    def _lose(self, event: Lost) -> Sequence[Command]:
        worker = event.worker
        self._present.discard(worker)
        self._task_of.pop(worker, None)
        if event.gone:
            self._gone.add(worker)
        if worker in self._asked and worker not in self._got:
            return self._again()
        if not self._asked and self._done.pop(worker, 0):
            self._watch = self._watched()
        return [] if self._asked else self._stuck()

    def _watched(self) -> Watch:
        """A watch that has seen all that is known of this round."""
        watch = self.code.watch()
        for worker, done in self._done.items():
            watch.saw(worker, done)
        return watch

    def _begin(self) -> list[Command]:
        self._failures = {}
        return self._round()

    def _again(self) -> list[Command]:
        """The same version once more, without whoever failed too often."""
        worst = max(self._failures.values(), default=0)
        if worst > _RETRIES * self.workers:
            return [Stop(f"step {self.version} cannot be taken under '{self.spec}': unusable messages", failed=True)]
        return [Cancel(range(self._first, self._next), self.cancel), *self._round()]

    def _round(self) -> list[Command]:
        self._first = self._next
        self._task_of, self._done, self._asked, self._got = {}, {}, {}, set()
        self._watch = self.code.watch()
        self._began = self._now
        able = sorted(w for w in self._present if self._failures.get(w, 0) <= _RETRIES)
        if not able and len(self._present) + len(self._gone) == self.workers:
            why = "every worker has been given up" if not self._failures else "no usable messages"
            return [Stop(f"step {self.version} cannot be taken under '{self.spec}': {why}", failed=True)]
        commands = self._dispatch(able) if able else []
        for number, seconds in enumerate(self.wait.deadlines(self)):
            commands.append(SetAlarm(f"wait {number}", self._now + seconds))
        return commands

    def _dispatch(self, workers: Sequence[int]) -> list[Command]:
        first, self._next = self._next, self._next + len(workers)
        self._task_of.update(zip(workers, range(first, self._next), strict=True))
        return [Dispatch(first, tuple(workers), tuple(self._tasks[worker] for worker in workers))]

    def _ask(self) -> list[Command]:
        asks = [ask for ask in self._watch.asks() if ask.partitions]
        if not asks:
            return []
        self._missing = 0.0 if self._watch.ready else self._watch.residual
        self._asked = {ask.worker: (self._task_of[ask.worker], ask.weight) for ask in asks}
        others = tuple(task for worker, task in self._task_of.items() if worker not in self._asked)
        commands: list[Command] = [Cancel(others, self.cancel)] if others else []
        for ask in asks:
            commands.append(RequestMessage(ask.worker, self._task_of[ask.worker], 0, ask.partitions, ask.coefficients))
        self._gain = sum((ask.weight**2 * sum(c * c for c in ask.coefficients)) for ask in asks) ** 0.5
        return commands

    def _step(self) -> list[Command]:
        covered = 1.0 - self._missing**2
        used = [self._asked[worker] for worker in sorted(self._asked)]
        # the share that is missing is made up for; what is left is the spread of the coefficients around 1
        residual = (1.0 / covered - 1.0) ** 0.5 if covered < 1.0 else 0.0
        messages = [(task, 0) for task, _ in used]
        weights = [weight / covered for _, weight in used]
        combine = Combine("model", messages, weights, "all", 1.0, residual, self._gain / covered)
        self.version += 1
        return [combine, Cancel(range(self._first, self._next), self.cancel), *self._begin()]

    def _stuck(self) -> list[Command]:
        """Everybody who can has finished everything, and there is not enough."""
        if any(self._done.get(worker, 0) < len(self.code.orders[worker]) for worker in self._task_of):
            return []
        if len(self._present) + len(self._gone) < self.workers:
            return []  # someone may still join
        if self.wait.approximate and self._done:
            return self._ask()
        return [
            Stop(
                f"step {self.version} cannot be taken under '{self.spec}': what {len(self._task_of)} of {self.workers} "
                "workers can finish does not give the sum; a code that tolerates more stragglers, or wait=…, goes on",
                failed=True,
            )
        ]

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
            "done": list(self._done.items()),
            "asked": [[worker, *ask] for worker, ask in self._asked.items()],
            "got": sorted(self._got),
            "missing": self._missing,
            "gain": self._gain if self._asked else 0.0,
            "began": self._began,
            "now": self._now,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """See :class:`~anyk.protocol.Strategy`."""
        self.version, self._next, self._first = state["version"], state["next"], state["first"]
        self._present, self._gone = set(state["present"]), set(state["gone"])
        self._failures, self._task_of = dict(state["failures"]), dict(state["tasks"])
        self._done, self._got = dict(state["done"]), set(state["got"])
        self._asked = {worker: (task, weight) for worker, task, weight in state["asked"]}
        self._missing, self._gain = state["missing"], state["gain"]
        self._began, self._now = state["began"], state["now"]
        self._watch = self._watched()
