"""Steps by the clock: at the deadline every worker sends the sum of what it has finished."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from typing import Any

from anyk import keyed
from anyk.checks import AtLeastOne, AtLeastZero, check_workers, typed
from anyk.errors import BadInput
from anyk.plain import derived
from anyk.protocol import (
    Alarm,
    Cancel,
    Chunk,
    Combine,
    Command,
    Commands,
    DelayLaw,
    Event,
    Failed,
    Fleet,
    Layout,
    Note,
    Pace,
    Progress,
    Reply,
    RequestMessage,
    SetAlarm,
    StrategyFacts,
)
from anyk.specs import show
from anyk.strategies.crew import RETRIES, Crew, CrewStrategy
from anyk.strategies.wait import Adaptive, Deadline, wait_rule

_ROUNDS_SEEN = 10  # rounds that an adapting deadline looks back on
_ALARM = "deadline"


@dataclass(slots=True)
class AnytimeState:
    """A run's steps: the crew, and what of the present step is finished, asked for and in."""

    crew: Crew
    now: float
    before: int = 0  # steps of the run that this one goes on from
    version: int = 0
    first: int = 0  # the step's first task
    began: float = 0.0
    task_of: dict[int, int] = field(default_factory=dict)  # the newest task of each worker in this step
    done: dict[int, int] = field(default_factory=dict)  # parts finished in it, of workers that have finished any
    asked: dict[int, int] = field(default_factory=dict)  # parts asked for, by worker; empty before the deadline
    got: set[int] = field(default_factory=set)  # workers whose message is in
    arrivals: list[float] = field(default_factory=list)  # seconds that workers took for all their parts in this step
    recent: tuple[float, ...] = ()  # the same of the last steps, where the deadline adapts
    noted: str = ""  # the log's last note about an adapting deadline
    extended: bool = False  # whether the log has been told of a deadline at which nobody had finished anything
    orders: Any = derived()  # the partitions of each worker in the order of this step


@typed
@dataclass(frozen=True, repr=False)
class Anytime(CrewStrategy):
    """Anytime mini-batches: at a deadline every worker sends the sum of the micro-batches it has finished by then.

    (Ferdinand, Al-Lawati, Draper and Nokleby 2019; with a cap on micro-batches, DropCompute of Giladi et al. 2023.)
    Nobody waits for a slow worker, and what a slow worker has finished counts: a step takes the clock's time, and its
    batch is as large as the fleet makes it. Worker i holds ``parts`` partitions of its own and goes through them in an
    order drawn by (``seed``, step, worker); ``batch``: of each so many samples, drawn by (version, partition), stand
    for all (0: all of them). The step takes the mean over all samples that were done. A worker keeps each part's
    gradient until then, so ``parts`` also says how many vectors it holds.

    With c_i parts done by worker i, C in total, the expected update is ``sum_i E[c_i / C] g_i``, g_i the mean gradient
    of worker i's data: in a random order each of its parts is as likely as the others to be among the c_i. It is
    unbiased where workers are alike in how much they finish or in their data, as shuffled data is, and no other
    weights on the same samples have a smaller variance. Where slow workers hold other data than fast ones, or a
    micro-batch's time depends on its contents, what takes long counts less.

    ``deadline``: seconds, or ``3mad``: three median absolute deviations past the median of the seconds that workers
    took for all their parts in the last ten steps; until 30 such times have been seen, and whenever all have finished
    everything, the step is taken when they have. Where nobody has finished anything at the deadline, the step goes on
    for another. A message that was asked for may take as long as the deadline again before the step goes without it;
    a worker that dies or whose message is unusable counts with nothing.

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
        self.rule  # noqa: B018  # raises where it is no deadline

    # ------------------------------------------------------------------------------------------- settings

    @cached_property
    def rule(self) -> Deadline | Adaptive:
        """The deadline, as the rule of a round that waits."""
        text = str(self.deadline).strip()
        try:
            seconds = float(text.removesuffix("s"))
        except ValueError:
            rule = wait_rule(text, replies=1) if text.endswith("mad") else None
            if isinstance(rule, Adaptive):
                return rule
            why = f"deadline should be seconds, such as 0.5, or 3mad, which adapts; got '{text}'"
            raise BadInput(why) from None
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
        values = {"deadline": deadline, "parts": self.parts, "batch": self.batch, "seed": self.seed}
        return show("anytime", values, {"deadline": "3mad", "parts": 8, "batch": 0, "seed": 0})

    @property
    def summary(self) -> str:
        return f"steps by the clock (deadline {self.rule}) with what workers have finished of {self.parts} parts each"

    def _seconds(self, s: AnytimeState) -> float | None:
        """The deadline of a step; None while it is not known."""
        return self.rule.seconds if isinstance(self.rule, Deadline) else self.rule.after(s.recent)

    def _sample_orders(self, s: AnytimeState) -> list[tuple[int, ...]]:
        """The partitions of each worker in the order of this step."""
        random = keyed.generator(self.seed, "anytime", s.before + s.version)
        orders = random.random((self.workers, self.parts)).argsort(axis=1)
        return [tuple(i * self.parts + j for j in order) for i, order in enumerate(orders.tolist())]

    # ------------------------------------------------------------------------------------------- events

    def start(self, fleet: Fleet) -> tuple[AnytimeState, Commands]:
        s = AnytimeState(Crew.of(fleet), fleet.time, fleet.rounds)
        return s, self._begin(s)

    def rebuild(self, state: AnytimeState) -> None:
        state.orders = self._sample_orders(state)

    def on(self, state: AnytimeState, event: Event) -> Commands:
        state.now = event.time
        return super().on(state, event)

    def on_progress(self, state: AnytimeState, event: Progress) -> Commands:
        s, worker = state, event.worker
        if s.asked or s.task_of.get(worker) != event.task:
            return ()
        s.done[worker] = event.done  # less than before where the worker of a resumed run begins anew
        if event.done < self.parts:
            return ()
        s.arrivals.append(s.now - s.began)
        return self._ask_if_all_done(s)

    def on_reply(self, state: AnytimeState, event: Reply) -> Commands:
        if state.task_of.get(event.worker) != event.task:
            return ()
        state.got.add(event.worker)
        return self._step_if_all_in(state)

    def on_failed(self, state: AnytimeState, event: Failed) -> Commands:
        if state.task_of.get(event.worker) != event.task:
            return ()
        state.crew.fail(event.worker, event.task)
        return self.worker_left(state, event.worker)

    def on_alarm(self, state: AnytimeState, event: Alarm) -> Commands:
        s = state
        if not s.asked:
            return self._ask(s)
        if not s.got:
            return self._alarm(s)
        s.asked = {worker: done for worker, done in s.asked.items() if worker in s.got}  # the others take too long
        return self._step_if_all_in(s)

    def worker_returned(self, state: AnytimeState, worker: int) -> Commands:
        return () if state.asked else self._dispatch(state, (worker,))

    def worker_left(self, state: AnytimeState, worker: int) -> Commands:
        """Continue without what a lost worker, or one with an unusable message, has finished; its message stays."""
        s = state
        if worker in s.got:
            return ()
        task = s.task_of.pop(worker, None)
        s.done.pop(worker, None)
        if s.asked:
            s.asked.pop(worker, None)
            return self._step_if_all_in(s) if s.asked else self._again(s)
        if task is not None and s.crew.able(worker):
            return self._dispatch(s, (worker,))
        if s.crew.complete and not any(map(s.crew.able, s.crew.present)):
            return self._stop(s)
        return self._ask_if_all_done(s)

    def _ask_if_all_done(self, s: AnytimeState) -> Commands:
        """Nobody who is present can do more in this step."""
        whole = s.task_of and all(s.done.get(worker, 0) == self.parts for worker in s.task_of)
        return self._ask(s) if whole else ()

    def _step_if_all_in(self, s: AnytimeState) -> Commands:
        return self._step(s) if len(s.got) == len(s.asked) else ()

    # ------------------------------------------------------------------------------------------- commands

    def _begin(self, s: AnytimeState) -> list[Command]:
        s.first, s.began = s.crew.next, s.now
        s.task_of, s.done, s.asked, s.got, s.arrivals = {}, {}, {}, set(), []
        s.orders = self._sample_orders(s)
        able = sorted(filter(s.crew.able, s.crew.present))
        if not able and s.crew.complete:
            return self._stop(s)
        return [*self._dispatch(s, able), *self._adapted(s), *self._alarm(s)]

    def _again(self, s: AnytimeState) -> list[Command]:
        """The same step once more: of those who were asked none has sent a usable message."""
        return [Cancel(range(s.first, s.crew.next)), *self._begin(s)]

    def _dispatch(self, s: AnytimeState, workers: Sequence[int]) -> list[Command]:
        if not workers:
            return []
        ones = (1.0,) * self.parts
        tasks = [(Chunk(s.orders[worker], ones, send="request", batch=self.batch),) for worker in workers]
        return self.dispatch(s, workers, tasks)

    def _adapted(self, s: AnytimeState) -> list[Command]:
        """Return a note about an adapting deadline if it begins or ceases to adapt."""
        if isinstance(self.rule, Deadline):
            return []
        what = "adapts" if self._seconds(s) is not None else "waits for all parts until enough times have been seen"
        if what == s.noted:
            return []
        s.noted = what
        return [Note(f"deadline={self.rule} {what}")]

    def _alarm(self, s: AnytimeState) -> list[Command]:
        seconds = self._seconds(s)  # 0 where no time passes, on a virtual clock without delays: all finish at once
        return [SetAlarm(_ALARM, s.now + seconds if seconds else None)]

    def _ask(self, s: AnytimeState) -> list[Command]:
        """The step's time is over: have everybody send what is finished."""
        s.asked = {worker: done for worker, done in sorted(s.done.items()) if done}
        if not s.asked:
            note = f"nobody had finished anything at the deadline of {self._seconds(s):.3g} s; such a step goes on"
            first = [] if s.extended else [Note(f"{note} for another (this is noted once)")]
            s.extended = True
            return [*first, *self._alarm(s)]
        if isinstance(self.rule, Adaptive):  # who was cut off takes at least as long as the step
            late = [s.now - s.began] * (len(s.task_of) - len(s.arrivals))
            s.recent = (*s.recent, *s.arrivals, *late)[-_ROUNDS_SEEN * self.workers :]
        nothing = tuple(task for worker, task in s.task_of.items() if worker not in s.asked)
        commands: list[Command] = [Cancel(nothing)] if nothing else []
        for worker, done in s.asked.items():
            order = s.orders[worker][:done]
            commands.append(RequestMessage(worker, s.task_of[worker], 0, order, (1.0,) * done))
        return [*commands, *self._alarm(s)]

    def _step(self, s: AnytimeState) -> list[Command]:
        workers = sorted(s.asked)
        parts, finished = self.layout.partitions, sum(s.asked.values())
        messages = [(s.task_of[worker], 0) for worker in workers]
        # coefficients are m / C for what was done and 0 for the rest
        residual, gain = (parts / finished - 1.0) ** 0.5, parts / finished**0.5
        combine = Combine("model", messages, [1.0] * len(messages), "counted", 1.0, residual, gain)
        s.version += 1
        s.crew.failures = {}
        return [combine, Cancel(range(s.first, s.crew.next)), *self._begin(s)]

    def _stop(self, s: AnytimeState) -> list[Command]:
        failed = f"no usable messages in {RETRIES + 1} attempts"
        return self.cannot_step(s, "every worker has been given up" if s.crew.hopeless else failed)

    # ------------------------------------------------------------------------------------------- how fast it is

    @property
    def facts(self) -> StrategyFacts:
        return StrategyFacts(pace=self._pace)

    def _pace(self, delays: DelayLaw) -> Pace:
        """Return the pace for a fixed deadline.

        A worker is held up once, before its first part. A step is over at the deadline or when the last worker is;
        where nobody is by then, it goes on, under a memoryless law as if it began.
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
            return Pace(None, 0.0, "no closed form where nobody may have finished anything; simulate")
        return Pace(seconds, 0.0, "the deadline, or the largest of n delays")
