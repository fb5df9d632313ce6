"""Rounds in which workers report progress and, once there is enough, a few are asked for one message each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from typing import Any

from anyk.checks import typed
from anyk.codes.base import Floats
from anyk.codes.progress import ProgressCode, ProgressWatch
from anyk.errors import BadInput
from anyk.plain import derived
from anyk.protocol import (
    Alarm,
    Cancel,
    CancelMode,
    Chunk,
    Combine,
    Command,
    Commands,
    Event,
    Failed,
    Fleet,
    Layout,
    Progress,
    Reply,
    RequestMessage,
    SetAlarm,
    StrategyFacts,
    Task,
)
from anyk.strategies.crew import RETRIES, Crew, CrewStrategy
from anyk.strategies.rounds.settings import with_keys
from anyk.strategies.wait import Count, Decodable, Wait, WaitLike, wait_rule


@dataclass(slots=True)
class ProgressState:
    """A run's rounds: the crew, and what of the present round is finished, asked for and in."""

    crew: Crew
    now: float
    version: int = 0
    first: int = 0  # the round's first task
    began: float = 0.0
    task_of: dict[int, int] = field(default_factory=dict)  # the newest task of each worker in this round
    done: dict[int, int] = field(default_factory=dict)  # partitions finished in it
    asked: dict[int, tuple[int, float]] = field(default_factory=dict)  # of which task, and with which weight, by worker
    got: set[int] = field(default_factory=set)  # those of them whose message is in
    missing: float = 0.0  # residual of what was asked for
    gain: float = 0.0
    watch: Any = derived()


class _Seen:
    """The view of a round that a wait rule gets."""

    __slots__ = ("_state", "recent")

    def __init__(self, state: ProgressState) -> None:
        self._state = state
        self.recent: Sequence[float] = ()  # no rule that remembers is taken

    @property
    def replies(self) -> int:
        """Workers that have finished something in this round."""
        return len(self.replied)

    @property
    def replied(self) -> tuple[int, ...]:
        """The workers that have finished something."""
        return tuple(worker for worker, done in self._state.done.items() if done)

    @property
    def decodable(self) -> bool:
        """Whether what is finished gives the exact sum."""
        return bool(self._state.watch.ready)

    @property
    def residual(self) -> float:
        """The residual if the workers were asked now."""
        return float(self._state.watch.residual)

    @property
    def elapsed(self) -> float:
        """Seconds since the round began."""
        return self._state.now - self._state.began


@typed
@dataclass(frozen=True, repr=False)
class ProgressRounds(CrewStrategy):
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

    State = ProgressState

    code: ProgressCode
    _: KW_ONLY
    wait: WaitLike = None
    cancel: CancelMode = "preempt"

    def __post_init__(self) -> None:
        if self.rule.counts() or isinstance(self.rule, Count):
            raise BadInput(
                f"'{self.code.spec}' waits for progress, not for a number of replies; give a residual or a deadline"
            )
        if self.rule.remembers:
            raise BadInput(f"'{self.code.spec}' waits for progress; give a residual or a deadline in seconds")

    # ------------------------------------------------------------------------------------------- settings

    @cached_property
    def rule(self) -> Wait:
        """When the workers may be asked, apart from when the sum is exact."""
        return wait_rule(self.wait, replies=self.code.workers)

    @cached_property
    def enough(self) -> Wait:
        """When the workers are asked."""
        return self.rule if isinstance(self.rule, Decodable) else self.rule | Decodable()

    @cached_property
    def exact(self) -> bool:
        """Whether every step is the exact sum."""
        return not self.enough.approximate

    @property
    def summary(self) -> str:
        """A description in a few words."""
        kind, n = "exact" if self.exact else "approximate", self.code.workers
        most = max(map(len, self.code.assignment))
        return (
            f"{kind} gradient as soon as the parts that workers have finished make it up; each of {n} has {most} of "
            f"{self.code.partitions} parts to compute, one after another"
        )

    @cached_property
    def layout(self) -> Layout:
        return Layout(self.code.workers, self.code.partitions, self.code.assignment, blocks=self.code.blocks)

    @cached_property
    def spec(self) -> str:
        parts = [] if self.rule == Decodable() else [f"wait={self.rule}"]
        return with_keys(self.code.spec, parts + [f"cancel={self.cancel}"] * (self.cancel != "preempt"))

    @cached_property
    def _tasks(self) -> tuple[Task, ...]:
        orders = [tuple(map(int, order)) for order in self.code.orders]
        return tuple((Chunk(order, (1.0,) * len(order), send="request"),) for order in orders)

    @property
    def facts(self) -> StrategyFacts:
        vectors = self.code.workers * (1.0 + 1.0 / self.code.blocks)
        return StrategyFacts(exact=self.exact, vectors_sent=vectors if self.exact else None, durations=self._durations)

    def _durations(self, seconds: Floats, whole: Floats) -> Floats | None:
        if not self.exact or self.cancel != "preempt":
            return None
        return self.code.ready_times(seconds, whole / self.code.partitions)

    # ------------------------------------------------------------------------------------------- events

    def start(self, fleet: Fleet) -> tuple[ProgressState, Commands]:
        s = ProgressState(Crew.of(fleet), fleet.time)
        return s, self._round(s)

    def rebuild(self, state: ProgressState) -> None:
        state.watch = self._watched(state)

    def on(self, state: ProgressState, event: Event) -> Commands:
        state.now = event.time
        return super().on(state, event)

    def on_progress(self, state: ProgressState, event: Progress) -> Commands:
        s, worker = state, event.worker
        if s.asked or s.task_of.get(worker) != event.task:
            return ()
        anew = event.done < s.done.get(worker, 0)  # the worker of a resumed run begins anew
        s.done[worker] = event.done
        if anew:
            s.watch = self._watched(s)
        else:
            s.watch.saw(worker, event.done)
        return self._ask(s) if self.enough.enough(_Seen(s)) else self._stuck(s)

    def on_reply(self, state: ProgressState, event: Reply) -> Commands:
        if state.asked.get(event.worker, (-1, 0.0))[0] != event.task:
            return ()
        state.got.add(event.worker)
        return self._step(state) if len(state.got) == len(state.asked) else ()

    def on_failed(self, state: ProgressState, event: Failed) -> Commands:
        if state.task_of.get(event.worker) != event.task:
            return ()
        state.crew.fail(event.worker, event.task)
        return self._again(state)

    def on_alarm(self, state: ProgressState, event: Alarm) -> Commands:
        return self._ask(state) if not state.asked and self.enough.enough(_Seen(state)) else ()

    def worker_returned(self, state: ProgressState, worker: int) -> Commands:
        return [] if state.asked else [*self._dispatch(state, (worker,)), *self._stuck(state)]

    def worker_left(self, state: ProgressState, worker: int) -> Commands:
        s = state
        s.task_of.pop(worker, None)
        if worker in s.asked and worker not in s.got:
            return self._again(s)
        if not s.asked and s.done.pop(worker, 0):
            s.watch = self._watched(s)
        return [] if s.asked else self._stuck(s)

    def _watched(self, s: ProgressState) -> ProgressWatch:
        """A watch that has seen all that is known of this round."""
        watch = self.code.watch()
        for worker, done in s.done.items():
            watch.saw(worker, done)
        return watch

    def _again(self, s: ProgressState) -> list[Command]:
        """The same version once more, without whoever failed too often."""
        if max(map(len, s.crew.failures.values()), default=0) > RETRIES * self.code.workers:
            return self.cannot_step(s, "unusable messages")
        return [Cancel(range(s.first, s.crew.next), self.cancel), *self._round(s)]

    def _round(self, s: ProgressState) -> list[Command]:
        crew = s.crew
        s.first = crew.next
        s.task_of, s.done, s.asked, s.got = {}, {}, {}, set()
        s.watch = self.code.watch()
        s.began = s.now
        able = sorted(filter(crew.able, crew.present))
        if not able and crew.complete:
            return self.cannot_step(s, "no usable messages" if crew.failures else "every worker has been given up")
        commands = self._dispatch(s, able) if able else []
        for number, seconds in enumerate(self.enough.deadlines(_Seen(s))):
            commands.append(SetAlarm(f"wait {number}", s.now + seconds))
        return commands

    def _dispatch(self, s: ProgressState, workers: Sequence[int]) -> list[Command]:
        return self.dispatch(s, workers, tuple(self._tasks[worker] for worker in workers))

    def _ask(self, s: ProgressState) -> list[Command]:
        asks = [ask for ask in s.watch.asks() if ask.partitions]
        if not asks:
            return []
        s.missing = 0.0 if s.watch.ready else s.watch.residual
        s.asked = {ask.worker: (s.task_of[ask.worker], ask.weight) for ask in asks}
        others = tuple(task for worker, task in s.task_of.items() if worker not in s.asked)
        commands: list[Command] = [Cancel(others, self.cancel)] if others else []
        for ask in asks:
            commands.append(RequestMessage(ask.worker, s.task_of[ask.worker], 0, ask.partitions, ask.coefficients))
        s.gain = sum((ask.weight**2 * sum(c * c for c in ask.coefficients)) for ask in asks) ** 0.5
        return commands

    def _step(self, s: ProgressState) -> list[Command]:
        covered = 1.0 - s.missing**2
        used = [s.asked[worker] for worker in sorted(s.asked)]
        # the share that is missing is made up for; what is left is the spread of the coefficients around 1
        residual = (1.0 / covered - 1.0) ** 0.5 if covered < 1.0 else 0.0
        messages = [(task, 0) for task, _ in used]
        weights = [weight / covered for _, weight in used]
        combine = Combine("model", messages, weights, "all", 1.0, residual, s.gain / covered)
        s.version += 1
        s.crew.failures = {}
        return [combine, Cancel(range(s.first, s.crew.next), self.cancel), *self._round(s)]

    def _stuck(self, s: ProgressState) -> list[Command]:
        """Everybody who can has finished everything, and there is not enough."""
        if any(s.done.get(worker, 0) < len(self.code.orders[worker]) for worker in s.task_of):
            return []
        if not s.crew.complete:
            return []  # someone may still join
        if self.enough.approximate and s.done:
            return self._ask(s)
        if s.crew.hopeless:
            return self.cannot_step(s, "every worker has been given up")
        return self.cannot_step(
            s,
            f"what {len(s.task_of)} of {self.code.workers} workers can finish does not give the sum; a code that "
            "tolerates more stragglers, or wait=…, goes on",
        )
