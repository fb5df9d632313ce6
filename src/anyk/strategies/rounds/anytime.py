"""Steps by the clock: at the deadline each worker sends the sum of the parts that it has finished."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from typing import Any

from anyk.base.checks import AtLeastOne, AtLeastZero, check_workers, typed
from anyk.base.errors import BadInput
from anyk.base.keyed import keyed_generator
from anyk.base.plain import derived
from anyk.codes.progress_codes import Ask
from anyk.protocol import (
    Alarm,
    Chunk,
    Combine,
    Command,
    Commands,
    DelayLaw,
    Failed,
    Layout,
    Note,
    Pace,
    Progress,
    SetAlarm,
    StrategyFacts,
    Task,
)
from anyk.strategies.crew import spec_of
from anyk.strategies.rounds.message_requests import RequestRounds, RequestState
from anyk.strategies.wait import Adaptive, Deadline, wait_rule

_RECENT_STEPS = 10  # steps whose times determine a deadline that adapts


@dataclass(slots=True)
class AnytimeState(RequestState):
    """The progress of the present step, and the times from which a deadline is adapted."""

    arrivals: list[float] = field(default_factory=list)  # seconds that workers took for all their parts in this step
    recent: tuple[float, ...] = ()  # the same for the last steps, if the deadline adapts
    noted: str = ""  # the last note in the log about an adapting deadline
    extended: bool = False  # whether the log has the note that no worker had finished a part at a deadline
    orders: Any = derived()  # each worker's partitions in the order of this step


@typed
@dataclass(frozen=True, repr=False)
class Anytime(RequestRounds[AnytimeState]):
    """Anytime mini-batches: at a deadline each worker sends the sum of the micro-batches that it has finished.

    (Ferdinand, Al-Lawati, Draper and Nokleby 2019; with a cap on micro-batches, DropCompute of Giladi et al. 2023.) A
    step never waits for a slow worker, but uses the parts that it has finished: the step ends at a fixed time, and its
    batch is as large as the workers manage. Worker i has ``parts`` partitions, which no other worker has, and computes
    them in an order sampled by (``seed``, step, worker). ``batch``: samples of each partition, sampled by (version,
    partition), whose gradient estimates the gradient of the partition (0: all samples). The step takes the mean over
    all samples that were computed. A worker stores the gradient of each part until the deadline, so ``parts`` is also
    the number of vectors that it stores.

    With c_i parts done by worker i, C in total, the expected update is ``sum_i E[c_i / C] g_i``, g_i the mean gradient
    of worker i's data: in a random order each of its parts is equally likely to be among the c_i. It is unbiased if
    workers finish equally much on average, or if their data are alike, as shuffled data are; no other weights of the
    same samples have a smaller variance. If slow workers have different data from fast ones, or the time of a
    micro-batch depends on its contents, slow data are underrepresented.

    ``deadline``: seconds, or ``3mad``: three median absolute deviations above the median of the seconds that workers
    took for all their parts in the last ten steps; until 30 such times are known there is no deadline. A step ends
    earlier when all workers have finished all parts. If no worker has finished a part at the deadline, the step
    continues until the next deadline. The step is taken without messages that arrive later than ``deadline`` after
    they were requested, and without workers that die or whose message is unusable.

    >>> Anytime(8, deadline=0.5, batch=32).spec, Anytime(8).spec
    ('anytime:deadline=0.5,batch=32', 'anytime')
    """

    State = AnytimeState

    workers: int
    _: KW_ONLY
    deadline: float | str = "3mad"
    parts: AtLeastOne = 8
    batch: AtLeastZero = 0
    seed: int = 0

    def __post_init__(self) -> None:
        check_workers(self.workers)
        self.rule  # noqa: B018  # raises BadInput for an invalid deadline

    # ------------------------------------------------------------------------------------------- settings

    @cached_property
    def rule(self) -> Deadline | Adaptive:
        """The deadline as a wait rule."""
        deadline = str(self.deadline).strip()
        try:
            seconds = float(deadline.removesuffix("s"))
        except ValueError:
            rule = wait_rule(deadline, replies=1) if deadline.endswith("mad") else None
            if isinstance(rule, Adaptive):
                return rule
            reason = f"deadline must be seconds, such as 0.5, or 3mad, which adapts to the workers; got '{deadline}'"
            raise BadInput(reason) from None
        if not 0.0 < seconds < float("inf"):
            raise BadInput(f"deadline must be above 0 s, got {seconds:g}")
        return Deadline(seconds)

    @cached_property
    def layout(self) -> Layout:
        n, parts = self.workers, self.parts
        assignment = tuple(tuple(range(i * parts, (i + 1) * parts)) for i in range(n))
        return Layout(n, n * parts, assignment, minibatches=self.batch > 0)

    @cached_property
    def spec(self) -> str:
        deadline = str(self.rule).removesuffix("s")
        first = {} if deadline == "3mad" else {"deadline": deadline}
        return spec_of("anytime", self, first, omit=("workers", "deadline"))

    @property
    def summary(self) -> str:
        return f"steps by the clock (deadline {self.rule}) with what workers have finished of {self.parts} parts each"

    # ------------------------------------------------------------------------------------------- events

    def rebuild(self, state: AnytimeState) -> None:
        random = keyed_generator(self.seed, "anytime", state.before + state.version)
        orders = random.random((self.workers, self.parts)).argsort(axis=1)
        state.orders = [tuple(i * self.parts + j for j in order) for i, order in enumerate(orders.tolist())]

    def on_progress(self, state: AnytimeState, event: Progress) -> Commands:
        s, worker = state, event.worker
        if s.asked:
            return ()
        s.done[worker] = event.done  # less than before if the worker of a resumed run starts again
        if event.done < self.parts:
            return ()
        s.arrivals.append(s.now - s.began)
        return self._request_if_all_done(s)

    def on_failed(self, state: AnytimeState, event: Failed) -> Commands:
        state.crew.fail(event.worker, event.task)
        return self.worker_left(state, event.worker)

    def on_alarm(self, state: AnytimeState, event: Alarm) -> Commands:
        s = state
        if not s.asked:
            return self._request_messages(s)
        if not s.got:
            return self._alarm_at_deadline(s)
        s.asked = {worker: weight for worker, weight in s.asked.items() if worker in s.got}
        return self._step_if_complete(s)

    def worker_returned(self, state: AnytimeState, worker: int) -> Commands:
        return () if state.asked else self._dispatch(state, (worker,))

    def worker_left(self, state: AnytimeState, worker: int) -> Commands:
        """Continue without a worker that is lost, or whose message is unusable, unless its message has arrived."""
        s = state
        if worker in s.got:
            return ()
        task = s.task_of.pop(worker, None)
        s.done.pop(worker, None)
        if s.asked:
            s.asked.pop(worker, None)
            return self._step_if_complete(s) if s.asked else self._restart(s)
        if task is not None and s.crew.able(worker):
            return self._dispatch(s, (worker,))
        if s.crew.complete and not any(map(s.crew.able, s.crew.present)):
            return self._stop_without_workers(s)
        return self._request_if_all_done(s)

    # ------------------------------------------------------------------------------------------- commands

    def _begin(self, s: AnytimeState) -> list[Command]:
        s.arrivals = []
        return super()._begin(s)

    def _task(self, s: AnytimeState, worker: int) -> Task:
        return (Chunk(s.orders[worker], (1.0,) * self.parts, send="request", batch=self.batch),)

    def _set_alarms(self, s: AnytimeState) -> list[Command]:
        """Set the alarm of the deadline, after a note if the deadline starts or ceases to adapt."""
        adapts = self.rule.after(s.recent) is not None
        what = "adapts" if adapts else "waits for all parts until enough times have been seen"
        if not self.rule.remembers or what == s.noted:
            return self._alarm_at_deadline(s)
        s.noted = what
        return [Note(f"deadline={self.rule} {what}"), *self._alarm_at_deadline(s)]

    def _alarm_at_deadline(self, s: AnytimeState) -> list[Command]:
        seconds = self.rule.after(s.recent)  # 0 on a virtual clock without delays: all workers finish immediately
        return [SetAlarm("deadline", s.now + seconds if seconds else None)]

    def _request_if_all_done(self, s: AnytimeState) -> Commands:
        """Request the messages if no present worker can do more in this step."""
        complete = s.task_of and all(s.done.get(worker, 0) == self.parts for worker in s.task_of)
        return self._request_messages(s) if complete else ()

    def _request_messages(self, s: AnytimeState) -> list[Command]:
        """Request a message of each worker that has finished a part; without any, wait for another deadline."""
        asks = [
            Ask(worker, s.orders[worker][:done], (1.0,) * done, 1.0) for worker, done in sorted(s.done.items()) if done
        ]
        if not asks:
            deadline = self.rule.after(s.recent)
            reason = f"no worker had finished a part at the deadline of {deadline:.3g} s"
            notes = [] if s.extended else [Note(f"{reason}; the step waits for another deadline (noted only once)")]
            s.extended = True
            return [*notes, *self._alarm_at_deadline(s)]
        if self.rule.remembers:  # workers with unfinished parts would take longer than this
            late = [s.now - s.began] * (len(s.task_of) - len(s.arrivals))
            s.recent = (*s.recent, *s.arrivals, *late)[-_RECENT_STEPS * self.workers :]
        return [*self._request(s, asks), *self._alarm_at_deadline(s)]

    def _combine(self, s: AnytimeState) -> Combine:
        workers = sorted(s.asked)
        parts, finished = self.layout.partitions, sum(s.done[worker] for worker in workers)
        messages = [(s.got[worker], 0) for worker in workers]
        # the decoded coefficients are parts / finished for finished parts and 0 for the others
        residual, gain = (parts / finished - 1.0) ** 0.5, parts / finished**0.5
        weights = [1.0] * len(messages)
        return Combine("model", messages, weights, divisor="counted", residual=residual, gain=gain)

    # ------------------------------------------------------------------------------------------- pace

    @property
    def facts(self) -> StrategyFacts:
        return StrategyFacts(pace=self._pace)

    def _pace(self, delays: DelayLaw) -> Pace:
        """Return the pace for a fixed deadline.

        A worker is delayed once, before its first part. A step ends at the deadline, or earlier with the last worker's
        delay. If all delays exceed the deadline, the step continues; with memoryless delays this is like a new start.
        """
        if isinstance(self.rule, Adaptive) or delays.uninterruptible:
            return Pace(None, 0.0, "no closed form for a deadline that adapts or uninterruptible delays; simulate")
        n, end = self.workers, self.rule.seconds
        seconds, first = delays.short_of(n, n, 0.0, end), delays.order_statistic(1, n)
        if seconds is None or first is None:
            return Pace(None, 0.0, f"no closed form for {delays.spec}; simulate")
        if delays.memoryless:
            return Pace(seconds / -math.expm1(-end / first), 0.0, "the deadline, or the largest of n delays")
        if (delays.short_of(1, n, end, 2.0 * end) or 0.0) > 1e-9 * end:
            return Pace(None, 0.0, "no closed form if all workers may miss the deadline; simulate")
        return Pace(seconds, 0.0, "the deadline, or the largest of n delays")
