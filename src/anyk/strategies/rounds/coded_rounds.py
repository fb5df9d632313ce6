"""Rounds: all workers compute on the same version; the step is taken at the reply that makes it possible."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import isnan

from anyk.base.arrays import Floats
from anyk.base.checks import typed
from anyk.codes.decoders import EXACT
from anyk.protocol import (
    Alarm,
    Cancel,
    Command,
    Commands,
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
)
from anyk.strategies.crew import Crew
from anyk.strategies.rounds.code_in_use import CodeInUse
from anyk.strategies.rounds.elastic import drop_changed, fleet_note
from anyk.strategies.rounds.state import RoundState
from anyk.strategies.wait import Waiting

_ROUNDS_SEEN = 10  # rounds whose arrivals an adapting deadline uses


@typed
@dataclass(frozen=True, repr=False)
class Rounds(CodeInUse):
    """Synchronous rounds under any code, ended by any wait rule.

    In each round all workers get the newest version. When ``wait`` is met, the replies are decoded, the model steps,
    the other tasks are cancelled (``cancel="preempt"``: interrupted; ``"discard"``: left to finish in vain) and another
    round starts. ``wait`` (default: until decodable) is a number of replies, ``"decodable"``, a residual ``"5%"``, a
    deadline ``"0.5s"``, combinations with ``|`` and ``&``, a :class:`~anyk.strategies.wait.Wait` or a predicate; the
    round also ends as soon as the sum is exact. If rounds end early, this is ErasureHead's approximate gradient coding
    (Wang, Charles and Papailiopoulos 2019), or K-sync SGD if the sum is uncoded.

    The rounds of a code that is meant to be approximate wait, by default, for all but a tenth of the workers.

    ``batch``: samples in the mini-batch of each partition (0: all samples); replicas sample the same mini-batch.

    ``work``: what workers send, and which step it makes: :class:`~anyk.strategies.Gradients`, with their decoding, or
    :class:`~anyk.strategies.LocalSteps` (periodic averaging, of an uncoded sum only).

    ``changes``: the rule by which the code changes, by default the code's own.
    :class:`~anyk.strategies.Balance`: the shares of the data that workers compute follow their measured speed; for
    uncoded and frc. If shares differ in size, given or measured, a step has ``batch`` samples per worker on average,
    distributed in proportion to the shares. :class:`~anyk.strategies.Elastic`: workers join and leave between rounds,
    and the code follows; for uncoded, frc with ``stragglers`` and bgc.

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
        computed = None
        if self.changes is not None:  # at the start
            computed = [len(assigned) / self.first_code.partitions for assigned in self.first_code.assignment]
        adapted = partial(_adapted, self) if self.code_rule.measures else None
        return replace(self.work.facts(self), shares_computed=computed, adapted=adapted)

    def start(self, fleet: Fleet) -> tuple[RoundState, Commands]:
        s = RoundState(Crew.of(fleet), now=fleet.time, before=fleet.rounds)
        s.code_rule = self.code_rule.start(self, fleet)
        self._use_code(s, self.code_rule.code(self, s))
        notes: list[Command] = [] if self._elastic is None else [fleet_note(self, s)]
        s.work, requests = self.work.start(s)
        return s, [*notes, *requests, *self._begin(s)]

    def rebuild(self, state: RoundState) -> None:
        self._use_code(state, self.code_rule.code(self, state))
        self._restart_decoder(state)
        state.ending = self.work.ending(self, state)

    # ------------------------------------------------------------------------------------------- events

    def on(self, state: RoundState, event: Event) -> Commands:
        s = state
        if type(event) is Reply:
            s.now = event[0]
            messages = self.code.messages
            worker, task = event[1], event[2]
            if s.open.pop(task if messages == 1 else task * messages + event[3], None) is None:
                return ()  # late or repeated
            if self._projected:
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
        commands = self.work.on_loss(state, event)
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
        # without any reply there is nothing to step by: the first one is waited for
        if state.ending is None and state.task_of and self.enough.enough(Waiting(state, self.code.messages)):
            return self._step(state)
        return self._waited(state)

    def worker_left(self, state: RoundState, worker: int) -> Commands:
        self.code_rule.ignore_times(state)
        state.open = {message: other for message, other in state.open.items() if other != worker}
        self.work.forget(state, worker)
        return self._covered(state)

    def on_leaving(self, state: RoundState, event: Leaving) -> Commands:
        if self._elastic is not None:  # its message may still come, and the next round is without it
            state.crew.present.discard(event.worker)
            if event.worker in state.crew.failures:
                return self._covered(state)
        return ()

    def worker_returned(self, state: RoundState, worker: int) -> Commands:
        self.code_rule.ignore_times(state)
        if self._elastic is not None:
            if not (state.open or state.task_of):
                return self._begin(state)
            if self._lacks_messages(state):
                return self._take_over(state)
            if worker not in state.code_rule.present:  # it takes part in the next round
                return ()
        busy = worker in {*state.measuring.values(), *state.open.values()} or self._has_replied(state, worker)
        return ([] if busy else self._dispatch(state, (worker,))) or self._waited(state)

    # ------------------------------------------------------------------------------------------- replies

    def _arrived(self, s: RoundState, reply: int, task: int) -> Commands:
        """Count a reply."""
        task_of = s.task_of
        if reply in task_of:  # this message was counted before the worker was asked again for another
            return self._waited(s)
        task_of[reply] = task
        if self._timed:
            self._note_time(s, reply)
        count = s.count
        if count is None:
            s.arrivals[reply] = s.now - s.began
        exact = over = s.decoder.add(reply)
        if s.ending is not None:
            over = s.ending(s)
        elif not over:
            over = len(task_of) >= count if count else self.enough.enough(Waiting(s, self.code.messages))
        if over:
            return self._step(s, exact=exact)
        return () if s.open else self._waited(s)

    def _waited(self, s: RoundState) -> Commands:
        """Return the commands that follow if no more replies of this round are expected."""
        if s.ending is not None and s.ending(s):
            return self._step(s)
        return () if s.open or s.measuring else self._stuck(s)

    # ------------------------------------------------------------------------------------------- rounds

    def _dispatch(self, s: RoundState, workers: Sequence[int]) -> list[Command]:
        """Return the command that gives tasks to those of the workers that take part in this round."""
        workers = self.work.participants(s, workers)
        if not workers:
            return []
        task = s.crew.number(len(workers))
        messages = self.code.messages
        if messages == 1:
            s.open.update(zip(range(task, task + len(workers)), workers, strict=True))
        else:
            for number, worker in enumerate(workers, task):
                s.open.update(dict.fromkeys(range(number * messages, (number + 1) * messages), worker))
        return [self.work.dispatch(s, task, workers, self._samples)]

    def _begin(self, s: RoundState) -> list[Command]:
        """Start a round with all present workers, unless they are too few."""
        crew, n = s.crew, self.code.workers
        notes = [] if self.changes is None else self._follow(s)
        s.first = crew.next
        s.task_of, s.open = {}, {}
        s.values, s.measuring = {}, {}
        crew.failures = {}
        s.decoder = self._fresh(s.code)
        s.began = s.now
        s.ending = self.work.ending(self, s)
        if crew.hopeless:
            return crew.stop_if_hopeless()
        if self._elastic is not None and self._elastic.has_too_few(crew):
            if not self._elastic.awaits_others(crew):
                gone = ", ".join(map(str, sorted(crew.gone)))
                return self.cannot_step(s, f"{self._elastic.fewest} workers are needed; given up: {gone}")
            return [*notes, self._elastic.waiting_note(crew)]
        commands: list[Command] = notes
        if crew.present:
            commands += self._dispatch(s, range(n) if len(crew.present) == n else tuple(sorted(crew.present)))
        return commands if s.count is not None else commands + self._set_alarms(s)

    def _set_alarms(self, s: RoundState) -> list[Command]:
        """Set the alarms of the wait rule, after a note if its deadline starts or ceases to adapt."""
        commands: list[Command] = []
        view = Waiting(s, self.code.messages)
        s.arrivals = {}
        if self.enough.remembers:
            what = "adapts" if self.enough.deadlines(view) else "waits for all until enough arrivals have been seen"
            if what != s.noted:
                s.noted = what
                commands.append(Note(f"wait={self.rule} {what}"))
        if s.ending is None:
            for number, seconds in enumerate(self.enough.deadlines(view)):
                commands.append(SetAlarm(f"wait {number}", s.now + seconds))
        return commands

    def _step(self, s: RoundState, *, exact: bool = False) -> list[Command]:
        """Take the step and start the next round; ``exact``: the decoder has promised the exact sum."""
        selection = s.decoder.select()
        if (exact or s.decoder.decodable) and not selection.residual <= EXACT:
            return self.cannot_step(
                s,
                f"the decoder of '{s.code.spec}' says that {len(s.task_of)} replies give the exact sum, "
                f"and its weights leave a residual of {selection.residual:.3g}",
            )
        step, done = self.work.step(s, self._scaled(selection, s.row_sums))
        if self.enough.remembers:  # a worker that is cut off takes at least as long as the round
            late = [s.now - s.began] * (s.expected - len(s.arrivals))
            s.recent = (*s.recent, *s.arrivals.values(), *late)[-_ROUNDS_SEEN * self.code.replies :]
        s.version += 1
        notes: list[Note] = []
        changed = self.code_rule.after_step(self, s)
        if changed is not None:
            code, notes = changed
            self._use_code(s, code)
        requests = self.work.before_round(s)  # the next round waits for the answers
        return [step, Cancel(done, self.cancel), *notes, *(requests or self._begin(s))]

    # ------------------------------------------------------------------------------------------- workers that left

    def _covered(self, s: RoundState) -> Commands:
        """Return the commands that follow if messages of this round are not expected any more."""
        return self._take_over(s) if self._lacks_messages(s) else self._waited(s)

    def _take_over(self, s: RoundState) -> Commands:
        """Have others compute the missing partitions; messages of workers whose partitions stay the same are kept."""
        assert self._elastic is not None
        if self._elastic.has_too_few(s.crew):
            return self._waited(s) or [self._elastic.waiting_note(s.crew)]
        before, notes = s.code.rows, self._follow(s)
        dropped = drop_changed(s, before)
        self._restart_decoder(s)
        busy = {*s.task_of, *s.open.values()}
        helpers = tuple(worker for worker in s.code_rule.present if worker not in busy and s.crew.able(worker))
        cancels = [Cancel(dropped, self.cancel)] if dropped else []
        return [*notes, *cancels, *(self._dispatch(s, helpers) if helpers else self._waited(s))]

    def _stuck(self, s: RoundState) -> list[Command]:
        """Ask again, step or stop, as no worker is left to wait for and there is not enough."""
        crew = s.crew
        others = self.work.replacements(s)
        if others and (commands := self._dispatch(s, others)):
            return commands
        if self.work.complete_without(s):
            return self._step(s)
        retried = [w for w in sorted(crew.failures) if crew.able(w) and not self._has_replied(s, w)]
        if retried:
            return self._dispatch(s, tuple(retried))
        if not crew.complete if self._elastic is None else self._elastic.awaits_others(crew):
            return []
        if s.task_of and self.enough.approximate:
            return self._step(s)
        advice = "; a code that tolerates more stragglers, or wait=…, goes on" if crew.present else ""
        return self.cannot_step(
            s, f"{len(s.task_of)} of {self.code.replies} replies do not give the sum{_reasons(self, crew)}{advice}"
        )


def _adapted(rounds: Rounds, seconds: Floats, slopes: Floats, load: float) -> Rounds:
    """Return rounds with the code on which the rule that measures settles."""
    code = rounds.code_rule.adapted(rounds.first_code, seconds, slopes, load)
    return replace(rounds, code=code, changes=None)


def _reasons(rounds: Rounds, crew: Crew) -> str:
    """Return why the replies are not enough, in brackets; empty if nothing is known."""
    reasons = []
    if crew.failures:
        reasons.append("unusable replies from " + _named(crew.failures))
    elif rounds.policy.projected:
        reasons.append("more workers lie than the code finds out, or replies are less exact than float64")
    if crew.gone:
        reasons.append("given up: " + _named(crew.gone))
    return f" ({'; '.join(reasons)})" if reasons else ""


def _named(workers: Iterable[int]) -> str:
    return ", ".join(f"worker {worker}" for worker in sorted(workers))
