"""Rounds that end when what workers report to have finished is enough; a few are then asked for one message each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from typing import Any

from anyk.base.arrays import Floats
from anyk.base.checks import typed
from anyk.base.errors import BadInput
from anyk.base.plain import derived
from anyk.base.specs import with_keys
from anyk.codes.progress_codes import ProgressCode, ProgressWatch
from anyk.protocol import (
    Alarm,
    CancelMode,
    Chunk,
    Combine,
    Command,
    Commands,
    Failed,
    Layout,
    Progress,
    SetAlarm,
    StrategyFacts,
    Task,
)
from anyk.strategies.rounds.message_requests import RequestRounds, RequestState
from anyk.strategies.wait import AnyOf, Decodable, Fraction, Wait, Waiting, WaitLike, wait_rule


@dataclass(slots=True)
class ProgressState(RequestState):
    """The progress of the present round, and the quality of the sum that was requested."""

    missing: float = 0.0  # residual of the requested sum
    gain: float = 0.0
    arrivals: dict[int, float] = field(default_factory=dict)  # seconds to the first finished partition of each worker
    watch: Any = derived()


class _SeenProgress(Waiting):
    """The view of a round that a wait rule gets: a worker has replied if it has finished a partition."""

    __slots__ = ()
    recent: Sequence[float] = ()  # rules that remember are refused

    @property
    def replies(self) -> int:
        """Number of workers that have finished a partition."""
        return len(self.replied)

    @property
    def expected(self) -> int:
        """Number of workers that take part."""
        return len(self._state.task_of)

    @property
    def replied(self) -> tuple[int, ...]:
        """Workers that have finished a partition."""
        return tuple(worker for worker, done in self._state.done.items() if done)

    @property
    def arrivals(self) -> tuple[float, ...]:
        """Seconds from the start of this round to the first finished partition of each such worker."""
        return tuple(self._state.arrivals[worker] for worker in self.replied)

    @property
    def decodable(self) -> bool:
        """Whether the finished partitions give the exact sum."""
        return bool(self._state.watch.ready)

    @property
    def residual(self) -> float:
        """Residual if the messages were requested now."""
        return float(self._state.watch.residual)


def _has_share(rule: Wait) -> bool:
    """Return whether a rule counts a share of the workers."""
    return isinstance(rule, Fraction) or (isinstance(rule, AnyOf) and any(map(_has_share, rule.rules)))


@typed
@dataclass(frozen=True, repr=False)
class ProgressRounds(RequestRounds[ProgressState]):
    """Synchronous rounds under a code whose workers report how many partitions they have finished.

    All workers compute their partitions in order. When the finished partitions give the exact sum (or ``wait``, a
    residual or a deadline, is met), the workers that the code selects are asked for one message each, and all others
    are cancelled. So a worker sends at most one vector a step. If a worker that was asked dies or gives no usable
    message, the round starts again with the others.

    With ``wait`` an approximation is divided by the covered share (unbiased if all partitions are equally likely to be
    finished).

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
        if self.rule.counts() or _has_share(self.rule):
            raise BadInput(
                f"'{self.code.spec}' waits for progress, not for a number of replies; give a residual or a deadline"
            )
        if self.rule.remembers:
            raise BadInput(f"'{self.code.spec}' waits for progress; give a residual or a deadline in seconds")

    # ------------------------------------------------------------------------------------------- settings

    @cached_property
    def rule(self) -> Wait:
        """The rule that ends a round before the sum is exact."""
        return wait_rule(self.wait, replies=self.code.workers)

    @cached_property
    def enough(self) -> Wait:
        """The rule that ends a round."""
        return self.rule | Decodable()

    @cached_property
    def exact(self) -> bool:
        """Whether every step is the exact sum."""
        return not self.enough.approximate

    @property
    def summary(self) -> str:
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
        keys = {} if self.rule == Decodable() else {"wait": self.rule}
        return with_keys(self.code.spec, keys if self.cancel == "preempt" else keys | {"cancel": self.cancel})

    @cached_property
    def _tasks(self) -> tuple[Task, ...]:
        orders = [tuple(map(int, order)) for order in self.code.orders]
        return tuple((Chunk(order, (1.0,) * len(order), send="request"),) for order in orders)

    @property
    def facts(self) -> StrategyFacts:
        vectors = self.code.workers * (1.0 + 1.0 / self.code.blocks)
        return StrategyFacts(exact=self.exact, vectors_sent=vectors if self.exact else None, durations=self._durations)

    def _durations(self, seconds: Floats, full_seconds: Floats) -> Floats | None:
        if not self.exact or self.cancel != "preempt":
            return None
        return self.code.ready_times(seconds, full_seconds / self.code.partitions)

    # ------------------------------------------------------------------------------------------- events

    def rebuild(self, state: ProgressState) -> None:
        watch: ProgressWatch = self.code.watch()
        for worker, done in state.done.items():
            watch.saw(worker, done)
        state.watch = watch

    def on_progress(self, state: ProgressState, event: Progress) -> Commands:
        s, worker = state, event.worker
        if s.asked:
            return ()
        restarted = event.done < s.done.get(worker, 0)  # the worker of a resumed run starts again
        s.done[worker] = event.done
        s.arrivals.setdefault(worker, s.now - s.began)
        if restarted:
            self.rebuild(s)
        else:
            s.watch.saw(worker, event.done)
        return self._ask(s) if self._is_enough(s) else self._stuck(s)

    def on_failed(self, state: ProgressState, event: Failed) -> Commands:
        state.crew.fail(event.worker, event.task)
        return self._restart(state)

    def on_alarm(self, state: ProgressState, event: Alarm) -> Commands:
        return self._ask(state) if not state.asked and self._is_enough(state) else ()

    def worker_returned(self, state: ProgressState, worker: int) -> Commands:
        return [] if state.asked else [*self._dispatch(state, (worker,)), *self._stuck(state)]

    def worker_left(self, state: ProgressState, worker: int) -> Commands:
        state.task_of.pop(worker, None)
        if state.asked:
            return self._restart(state) if worker in state.asked and worker not in state.got else []
        state.arrivals.pop(worker, None)
        if state.done.pop(worker, 0):
            self.rebuild(state)
        return self._stuck(state)

    # ------------------------------------------------------------------------------------------- commands

    def _begin(self, s: ProgressState) -> list[Command]:
        s.arrivals = {}
        return super()._begin(s)

    def _task(self, s: ProgressState, worker: int) -> Task:
        return self._tasks[worker]

    def _set_alarms(self, s: ProgressState) -> list[Command]:
        deadlines = self.enough.deadlines(_SeenProgress(s))
        return [SetAlarm(f"wait {number}", s.now + seconds) for number, seconds in enumerate(deadlines)]

    def _is_enough(self, s: ProgressState) -> bool:
        return self.enough.enough(_SeenProgress(s))

    def _ask(self, s: ProgressState) -> list[Command]:
        asks = [ask for ask in s.watch.asks() if ask.partitions]
        if not asks:
            return []
        s.missing = 0.0 if s.watch.ready else s.watch.residual
        s.gain = sum((ask.weight**2 * sum(c * c for c in ask.coefficients)) for ask in asks) ** 0.5
        return self._request(s, asks)

    def _combine(self, s: ProgressState) -> Combine:
        covered = 1.0 - s.missing**2
        workers = sorted(s.asked)
        # weights are divided by the covered share; the residual is the spread of the coefficients around 1
        residual = (1.0 / covered - 1.0) ** 0.5 if covered < 1.0 else 0.0
        messages = [(s.got[worker], 0) for worker in workers]
        weights = [s.asked[worker] / covered for worker in workers]
        return Combine("model", messages, weights, residual=residual, gain=s.gain / covered)

    def _stuck(self, s: ProgressState) -> list[Command]:
        """Ask or stop if all workers have finished everything and there is not enough."""
        if any(s.done.get(worker, 0) < len(self.code.orders[worker]) for worker in s.task_of):
            return []
        if not s.crew.complete:
            return []  # a worker may still join
        if self.enough.approximate and s.done:
            return self._ask(s)
        return self.cannot_step(
            s,
            f"what {len(s.task_of)} of {self.code.workers} workers can finish does not give the sum; a code that "
            "tolerates more stragglers, or wait=…, goes on",
        )
