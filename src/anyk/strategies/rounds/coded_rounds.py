"""Rounds: all workers compute on the same version; the step is taken at the reply that makes it possible."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isnan

import numpy as np

from anyk import keyed
from anyk.checks import typed
from anyk.codes import Code
from anyk.codes.decoders import METHODS, Decoder, LeastSquaresDecoder, SetDecoder
from anyk.protocol import (
    Alarm,
    Cancel,
    Chunk,
    Combine,
    Command,
    Commands,
    Dispatch,
    Event,
    Failed,
    Fleet,
    Leaving,
    LossEvaluated,
    MessageProjected,
    Note,
    ProjectMessage,
    Reply,
    SetAlarm,
    StrategyFacts,
    Task,
)
from anyk.strategies.crew import Crew
from anyk.strategies.rounds.corrections import corrected
from anyk.strategies.rounds.elastic import share_moved
from anyk.strategies.rounds.round_facts import facts_of
from anyk.strategies.rounds.round_settings import RoundSettings
from anyk.strategies.rounds.state import RoundState
from anyk.strategies.wait import Waiting

_ROUNDS_SEEN = 10  # rounds whose arrivals an adapting deadline uses


@typed
@dataclass(frozen=True, repr=False)
class Rounds(RoundSettings):
    """Synchronous rounds under any code, ended by any wait rule.

    In each round all workers get the newest version. When ``wait`` is met, the replies are decoded, the model steps,
    the other tasks are cancelled (``cancel="preempt"``: interrupted; ``"discard"``: left to finish in vain) and another
    round starts. ``wait`` (default: until decodable) is a number of replies, ``"decodable"``, a residual ``"5%"``, a
    deadline ``"0.5s"``, combinations with ``|`` and ``&``, a :class:`~anyk.strategies.wait.Wait` or a predicate; the
    round also ends as soon as the sum is exact. If rounds end early, this is ErasureHead's approximate gradient coding
    (Wang, Charles and Papailiopoulos 2019), or K-sync SGD if the sum is uncoded.

    The rounds of a code that is meant to be approximate wait, by default, for all but a tenth of the workers.
    ``decoder`` is the method that decodes the replies: the code's ``own`` way, ``exact``, ``least-squares``,
    ``one-step``, ``algorithmic`` or a :class:`~anyk.codes.Method`.

    ``scaling`` corrects a sum with partitions missing: ``conditional`` divides by the mean coefficient (the covered
    share, under a repetition code), given who replied (unbiased if workers and groups are alike, exact if complete);
    ``marginal`` always divides by the expected share ``1 - p`` (needs a repetition code and a number in ``wait``);
    ``none`` changes nothing. The default is conditional, but none for codes and decoders that are unbiased already.

    ``check``: the share of rounds, sampled by their numbers, that wait for every sum twice (or for one reply more than
    the code needs), so that the driver can compare messages and find those with wrong numbers.

    ``batch``: samples in the mini-batch of each partition (0: all samples); replicas sample the same mini-batch.
    ``models``: number of models that are trained simultaneously, one round each in turn.

    ``snapshot``: every ``snapshot`` rounds one waits until its sum is exact, and the steps of the others are corrected
    by its messages (:func:`~anyk.strategies.rounds.corrections.corrected`; 0: never); the driver stores one message per
    group. For repetition codes.

    ``balance``: the shares of the data that workers compute follow their measured speed
    (:class:`~anyk.strategies.rounds.balance.Balance`); for uncoded and frc. If shares differ in size, given or
    measured, a step has ``batch`` samples per worker on average, distributed in proportion to the shares.

    ``elastic``: workers join and leave between rounds, and the code follows
    (:class:`~anyk.strategies.rounds.elastic.Elastic`); for uncoded, frc with ``stragglers`` and bgc.

    ``order="epoch"``: the mini-batches of a partition are consecutive parts of a permutation, so that an epoch of steps
    uses each sample once.

    ``work``: local steps in place of gradients (periodic averaging, of an uncoded sum only); ``adapt``: a rule that
    adapts their number.

    A code states its further needs itself (:meth:`~anyk.codes.Code.policy`): under a code against Byzantine workers
    replies are projected when they arrive, and count only then; a code that learns gives workers new coefficients at
    intervals.

    A worker that joins during a round is given its task immediately; a worker whose reply is unusable is set aside for
    the round. When no other worker is left to wait for, it is asked again, twice. Then the step is taken with the
    replies so far if the rule allows an approximation; else the run stops.

    >>> import anyk
    >>> Rounds(anyk.codes.FractionalRepetition(workers=30, load=3), wait=11).spec
    'frc:load=3,wait=11'
    """

    @property
    def facts(self) -> StrategyFacts:
        return facts_of(self)

    def start(self, fleet: Fleet) -> tuple[RoundState, Commands]:
        s = RoundState(Crew.of(fleet), now=fleet.time, before=fleet.rounds, missed=[0] * fleet.workers)
        first: list[Command] = []
        if self.elastic is None:
            self._use_code(s, self.first_code)
        else:
            s.elastic = self.elastic.start(self.code, fleet.present or range(fleet.workers))
            self._use_code(s, self.elastic.code(s.elastic, self.code))
            first = [self._fleet_note(s)]
        if self.balance is not None:
            s.balance = self.balance.start(self.balanced_code)
        if self.work is not None:
            s.work = self.work.start()
        if self.adapt is not None:
            s.adapt, probes = self.adapt.start(s)
            first += probes
        return s, [*first, *self._begin(s)]

    def rebuild(self, state: RoundState) -> None:
        s, policy, code = state, self.policy, self.first_code
        if policy.relearned is not None and s.version >= policy.every:
            code = policy.relearned(s.learned, s.version - s.version % policy.every)
        if self.balance is not None:
            code = self.balanced_code.cut(s.balance.sizes)
        if self.elastic is not None:
            code = self.elastic.code(s.elastic, self.code)
        self._use_code(s, code)
        self._restart_decoder(s)

    def _restart_decoder(self, s: RoundState) -> None:
        """Give a fresh decoder the replies that this round has."""
        s.decoder = self._fresh(s.code)
        for worker, value in s.values.items():
            s.decoder.measure(worker, value)
        for reply in s.values or s.task_of:  # replies that are projected count with their projections
            s.decoder.add(reply)

    def on(self, state: RoundState, event: Event) -> Commands:
        s = state
        if type(event) is Reply:
            s.now = event[0]
            messages = self.code.messages
            worker, task = event[1], event[2]
            if self.work is not None:
                self.work.note_speed(s, worker, task)
            if s.open.pop(task if messages == 1 else task * messages + event[3], None) is None:
                return ()  # late or repeated
            if self.policy.projected:
                s.measuring[task] = worker
                return (ProjectMessage(worker, task, event[3]),)
            return self._arrived(s, worker if messages == 1 else worker * messages + event[3], task)
        s.now = event[0]
        return self.handlers[type(event)](self, s, event)

    def on_projected(self, state: RoundState, event: MessageProjected) -> Commands:
        s, worker = state, event.worker
        if s.measuring.pop(event.task, None) is None:
            return ()
        if not isnan(s.values.get(worker, 0.0)):  # a reply that is not finite was a lie
            s.values[worker] = event.value
            s.decoder.measure(worker, event.value)
        return self._arrived(s, worker, event.task)

    def on_loss(self, state: RoundState, event: LossEvaluated) -> Commands:
        commands = None if self.adapt is None else self.adapt.on_loss(state, event)
        return [] if commands is None else [*commands, *self._begin(state)]

    def on_failed(self, state: RoundState, event: Failed) -> Commands:
        s, worker, messages = state, event.worker, self.code.messages
        if s.open.pop(event.task * messages + event.chunk, None) is None:
            reply = worker * messages + event.chunk
            if s.task_of.get(reply) != event.task:
                return ()
            del s.task_of[reply]  # its message contradicts another
            self._restart_decoder(s)
        s.crew.fail(worker, event.task)
        if self.policy.projected and event.reason.startswith("not finite"):  # honest replies are finite
            s.values[worker] = float("nan")
            s.decoder.measure(worker, float("nan"))
            if s.decoder.add(worker):
                return self._step(s)
        return self._covered(s)

    def on_alarm(self, state: RoundState, event: Alarm) -> Commands:
        enough = self._enough_of(state).enough(Waiting(state, self.code.messages))
        return self._step(state) if enough else self._waited(state)

    def worker_left(self, state: RoundState, worker: int) -> Commands:
        self._ignore_times(state)
        state.open = {message: other for message, other in state.open.items() if other != worker}
        if self.work is not None:
            self.work.lost(state.work, worker)
        return self._covered(state)

    def on_leaving(self, state: RoundState, event: Leaving) -> Commands:
        if self.elastic is not None:  # its message may still come, and the next round is without it
            state.crew.present.discard(event.worker)
            if event.worker in state.crew.failures:
                return self._covered(state)
        return ()

    def worker_returned(self, state: RoundState, worker: int) -> Commands:
        self._ignore_times(state)
        if self.elastic is not None:
            if not (state.open or state.task_of):
                return self._begin(state)
            if self._uncovered(state):
                return self._take_over(state)
            if worker not in state.elastic.present:  # it takes part in the next round
                return ()
        busy = worker in {*state.measuring.values(), *state.open.values()} or self._has_replied(state, worker)
        return ([] if busy else self._dispatch(state, (worker,))) or self._waited(state)

    def _arrived(self, s: RoundState, reply: int, task: int) -> Commands:
        """Count a reply."""
        task_of = s.task_of
        if reply in task_of:  # this message was counted before the worker was asked again for another
            return self._waited(s)
        task_of[reply] = task
        if self.balance is not None:
            self.balance.reply(s.balance, s.code.group_of[reply], s.now - s.began)
        count = s.count
        if count is None:
            s.arrivals[reply] = s.now - s.began
        if s.decoder.add(reply) or (
            len(task_of) >= count if count else self._enough_of(s).enough(Waiting(s, self.code.messages))
        ):
            return () if s.checking and not self._compared(s) else self._step(s)
        return () if s.open else self._waited(s)

    def _compared(self, s: RoundState) -> bool:
        """Return whether every reply of this round can be compared with others, or no more will come."""
        if not s.open:
            return True
        if self.layout.spanning:
            return len(s.task_of) > self.layout.spanning
        groups = s.code.group_of
        replies, expected = Counter(groups[r] for r in s.task_of), Counter(groups[w] for w in s.open.values())
        return all(count > 1 or not expected[group] for group, count in replies.items())

    def _waited(self, s: RoundState) -> Commands:
        """Return the commands that follow if no more replies of this round are expected."""
        if s.checking and s.decoder.decodable and self._compared(s):
            return self._step(s)
        return () if s.open or s.measuring else self._stuck(s)

    def _has_replied(self, s: RoundState, worker: int) -> bool:
        messages = self.code.messages
        return all(worker * messages + c in s.task_of for c in range(messages))

    def _dispatch(self, s: RoundState, workers: Sequence[int]) -> list[Command]:
        if self.work is not None:
            workers = self.work.select_clients(s, workers)
            if not workers:
                return []
        task = s.crew.number(len(workers))
        messages = self.code.messages
        if messages == 1:
            s.open.update(zip(range(task, task + len(workers)), workers, strict=True))
        else:
            for number, worker in enumerate(workers, task):
                s.open.update(dict.fromkeys(range(number * messages, (number + 1) * messages), worker))
        if self.work is not None:
            work, assignment = self.work, s.code.assignment
            own = [(work.chunk(s.work, worker, self._samples, assignment[worker]),) for worker in workers]
            return [Dispatch(task, workers, own)]
        tasks = s.tasks[s.version % self.models]
        chunks = tasks if len(workers) == len(tasks) else tuple(tasks[i] for i in workers)
        # with several models, versions differ from rounds
        return [Dispatch(task, workers, chunks, None if self.models == 1 else s.before + s.version)]

    def _begin(self, s: RoundState) -> list[Command]:
        crew, n = s.crew, self.code.workers
        notes = self._follow(s)
        s.first = crew.next
        s.task_of = {}
        s.values, s.measuring = {}, {}
        crew.failures = {}
        s.open = {}
        s.decoder = self._fresh(s.code)
        s.began = s.now
        s.checking = self.check > 0 and keyed.generator(0, "check", s.before + s.version).random() < self.check
        if crew.hopeless:
            return crew.stop_if_hopeless()
        commands: list[Command] = notes
        if self.elastic is not None and len(crew.present) < self.elastic.fewest:
            if not self._awaits_others(s):
                gone = ", ".join(map(str, sorted(crew.gone)))
                return self.cannot_step(s, f"{self.elastic.fewest} workers are needed; given up: {gone}")
            return [*notes, self._waiting_note(s)]
        if crew.present:
            commands += self._dispatch(s, range(n) if len(crew.present) == n else tuple(sorted(crew.present)))
        if s.count is not None:
            return commands
        view = Waiting(s, self.code.messages)
        s.arrivals = {}
        if self.enough.remembers:
            what = "adapts" if self.enough.deadlines(view) else "waits for all until enough arrivals have been seen"
            if what != s.noted:
                s.noted = what
                commands.append(Note(f"wait={self.rule} {what}"))
        for number, seconds in enumerate(self._enough_of(s).deadlines(view)):
            commands.append(SetAlarm(f"wait {number}", s.now + seconds))
        return commands

    def _step(self, s: RoundState) -> list[Command]:
        decoding = self._scaled(s.decoder.select(), s.row_sums)
        task_of, messages = s.task_of, self.code.messages
        used = [(task_of[reply], reply % messages) for reply in decoding.replies]
        combine: Command
        done: Sequence[int] = range(s.first, s.crew.next)
        if self.snapshot:
            combine, done = corrected(s, self.code, decoding, self.snapshot)
        elif self.work is None:
            slot = self.slots[s.version % self.models]
            combine = Combine(slot, used, decoding.weights, "all", 1.0, decoding.residual, decoding.gain)
        else:
            combine = self.work.averaged(s, used)
        if self.enough.remembers:  # a worker that is cut off takes at least as long as the round
            late = [s.now - s.began] * (s.expected - len(s.arrivals))
            s.recent = (*s.recent, *s.arrivals.values(), *late)[-_ROUNDS_SEEN * self.code.replies :]
        s.version += 1
        policy = self.policy
        if policy.relearned is not None:
            s.missed = [count + (worker not in task_of) for worker, count in enumerate(s.missed)]
            if s.version % policy.every == 0:
                s.learned = list(s.missed)
                self._use_code(s, policy.relearned(s.missed, s.version))
        questions = [] if self.adapt is None else self.adapt.before_round(s)  # the next round waits for their answers
        notes = [] if self.balance is None else self._balanced(s)
        return [combine, Cancel(done, self.cancel), *notes, *(questions or self._begin(s))]

    def _balanced(self, s: RoundState) -> list[Command]:
        """Cut the data again if that makes rounds shorter; return a note about it."""
        assert self.balance is not None
        old = s.code
        sizes = self.balance.ended(s.balance, s.now - s.began)
        if sizes is None:
            return []
        self._use_code(s, old.cut(sizes))
        before, after = (np.repeat(range(old.groups), code.sizes) for code in (old, s.code))  # group of each partition
        share = 100.0 * np.count_nonzero(before != after) / old.partitions
        shown = "/".join(map(str, s.code.shares))
        return [Note(f"shares={shown} from step {s.version} on: {share:.0f} % of the samples change hands")]

    def _follow(self, s: RoundState) -> list[Command]:
        """Adapt the code to the workers that are present; return a note about it."""
        elastic, present = self.elastic, s.crew.present
        if elastic is None or s.elastic.present == sorted(present) or len(present) < elastic.fewest:
            return []
        old = s.code
        elastic.follow(s.elastic, self.code, present)
        self._use_code(s, elastic.code(s.elastic, self.code))
        return [self._fleet_note(s, f"{100.0 * share_moved(old, s.code):.0f} % of the data move, ")]

    def _fleet_note(self, s: RoundState, change: str = "") -> Note:
        loads = [len(partitions) for partitions, _ in s.code.rows if partitions]
        uneven = max(loads) * len(loads) / sum(loads) - 1.0
        return Note(
            f"{len(s.elastic.present)} workers from step {s.version} on: {change}the largest share is "
            f"{100.0 * uneven:.0f} % above the mean, {s.code.tolerates} more may leave without moving data",
            "fleet",
        )

    def _covered(self, s: RoundState) -> Commands:
        """Return the commands that follow if messages of this round are not expected any more."""
        if self.elastic is not None and self._uncovered(s):
            return self._take_over(s)
        return self._waited(s)

    def _uncovered(self, s: RoundState) -> bool:
        """Return whether this round lacks messages of workers that have left, whoever else replies."""
        if s.decoder.decodable:
            return False
        coming = {*s.task_of, *s.open.values(), *filter(s.crew.able, s.crew.failures)}
        if self.work is not None:
            return not coming
        if self.enough.approximate:
            return len(coming) < (s.count or 1)
        groups, count = s.code.group_of, int(s.code.groups)
        return len({groups[worker] for worker in coming}) < count

    def _take_over(self, s: RoundState) -> Commands:
        """Have others compute the missing partitions; messages of workers whose partitions stay the same are kept."""
        assert self.elastic is not None
        if len(s.crew.present) < self.elastic.fewest:
            return self._waited(s) or [self._waiting_note(s)]
        old, notes = s.code.rows, self._follow(s)
        rows = s.code.rows
        changed = {worker for worker, row in enumerate(rows) if row != old[worker]}
        dropped = [task for worker, task in s.task_of.items() if worker in changed]
        dropped += [task for task, worker in s.open.items() if worker in changed]
        s.task_of = {worker: task for worker, task in s.task_of.items() if worker not in changed}
        s.open = {task: worker for task, worker in s.open.items() if worker not in changed}
        self._restart_decoder(s)
        busy = {*s.task_of, *s.open.values()}
        again = tuple(worker for worker in s.elastic.present if worker not in busy and s.crew.able(worker))
        cancels = [Cancel(dropped, self.cancel)] if dropped else []
        return [*notes, *cancels, *(self._dispatch(s, again) if again else self._waited(s))]

    def _ignore_times(self, s: RoundState) -> None:
        """Ignore the times of this round when the workers' speed is measured."""
        if s.balance is not None:
            s.balance.disturbed = True

    # ------------------------------------------------------------------------------------------- the code in use

    def _use_code(self, s: RoundState, code: Code) -> None:
        s.code = code
        s.tasks = self._tasks if code is self.first_code else self._tasks_of(code)
        s.row_sums = np.asarray(code.encoding.sum(axis=1), dtype=np.float64).ravel()
        s.expected = code.expected
        s.count = self._count_of(s.expected)

    @cached_property
    def _tasks(self) -> tuple[tuple[Task, ...], ...]:
        return self._tasks_of(self.first_code)

    def _tasks_of(self, code: Code) -> tuple[tuple[Task, ...], ...]:
        """Return the tasks per model and worker."""
        c = code.messages
        rows = [(tuple(map(int, p)), tuple(map(float, w))) for p, w in code.rows]  # a custom code may have arrays
        return tuple(
            tuple(
                tuple(Chunk(p, w, slot, batch=self._samples) for p, w in rows[i * c : i * c + c])
                for i in range(code.workers)
            )
            for slot in self.slots[: self.models]
        )

    def _fresh(self, code: Code) -> Decoder:
        if self.own_decoder:
            return code.decoder()
        if self.method == METHODS["least-squares"]:
            return LeastSquaresDecoder(code, self.method)
        return SetDecoder(code, self.method)

    # ------------------------------------------------------------------------------------------- when stuck

    def _waiting_note(self, s: RoundState) -> Note:
        assert self.elastic is not None
        fewest = self.elastic.fewest
        return Note(f"waits for {fewest - len(s.crew.present)} more workers, as {fewest} are needed")

    def _awaits_others(self, s: RoundState) -> bool:
        """Return whether workers may still join without whom the run cannot continue."""
        crew = s.crew
        if self.elastic is None:
            return not crew.complete
        return len(crew.present) < self.elastic.fewest <= crew.size - len(crew.gone)

    def _stuck(self, s: RoundState) -> list[Command]:
        """Ask again, step or stop, as no worker is left to wait for and there is not enough."""
        if self.work is not None:
            others = self.work.others(s)
            if others and (replacements := self._dispatch(s, others)):
                return replacements
            if self.work.done_without(s) or (self.elastic is not None and s.task_of):
                return self._step(s)
        crew = s.crew
        again = [w for w in sorted(crew.failures) if crew.able(w) and not self._has_replied(s, w)]
        if again:
            return self._dispatch(s, tuple(again))
        if self._awaits_others(s):
            return []
        if s.task_of and self.enough.approximate:
            return self._step(s)
        why = []
        if crew.failures:
            why.append("unusable replies from " + ", ".join(f"worker {w}" for w in sorted(crew.failures)))
        if self.policy.projected and not crew.failures:
            why.append("more workers lie than the code finds out, or replies are less exact than float64")
        if crew.gone:
            why.append("given up: " + ", ".join(f"worker {w}" for w in sorted(crew.gone)))
        reasons = f" ({'; '.join(why)})" if why else ""
        advice = "; a code that tolerates more stragglers, or wait=…, goes on" if crew.present else ""
        return self.cannot_step(
            s, f"{len(s.task_of)} of {self.code.replies} replies do not give the sum{reasons}{advice}"
        )
