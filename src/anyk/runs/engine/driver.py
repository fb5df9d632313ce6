"""The driver loop, which passes events, commands and sums between strategy, cluster and optimiser, and logs them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from anyk.base.arrays import Vector, Vectors
from anyk.base.errors import RunFailed
from anyk.clusters.contract import Cluster, Order
from anyk.clusters.steps import Place
from anyk.optimizers import Optimizer
from anyk.problems.base import Problem, Tell, abilities_of, partition_abilities
from anyk.problems.many import problem_of
from anyk.protocol import (
    Alarm,
    Cancel,
    Combine,
    Command,
    Cut,
    Dispatch,
    EvaluateLoss,
    Event,
    Failed,
    Fleet,
    Joined,
    LossEvaluated,
    Lost,
    MeasureDrift,
    MeasureNoise,
    Mix,
    NoiseMeasured,
    Note,
    Progress,
    ProjectMessage,
    Reply,
    RequestMessage,
    Running,
    SetAlarm,
    Stop,
    Strategy,
)
from anyk.runs.engine.agreement import Agreement, tolerance_of
from anyk.runs.engine.audit import Audit
from anyk.runs.engine.carried_values import CarriedValues
from anyk.runs.engine.command_checks import CommandChecks
from anyk.runs.engine.counts import Usage
from anyk.runs.engine.faults import Faults
from anyk.runs.engine.ledger import Ledger
from anyk.runs.engine.questions import Questions
from anyk.runs.engine.required_memory import Need
from anyk.runs.engine.step_record import StepBegun, StepRecord
from anyk.runs.engine.updates import Updates
from anyk.runs.engine.versions import Versions
from anyk.runs.engine.warm_start import WarmStart
from anyk.runs.engine.workers_start import local_of, partitions_of, replicated
from anyk.runs.limits import ClockLimit
from anyk.runs.log.log_writer import LogWriter
from anyk.runs.log.schema import KINDS, Update

_LIMIT = "the run's limit"  # the alarm that ends a run


class Driver:
    """The loop of one run; :func:`anyk.train` makes and uses it.

    Without a ``problem`` nothing is computed: only decisions and times remain (simulated clusters), and a strategy's
    questions about losses and gradients are answered from ``answers``, in order. ``warm_start``: the state of a run
    that this run continues. ``on_step`` is called with the record of every step of a model that is not auxiliary,
    ``on_news`` after the commands that follow an event have been carried out (it may end the run), ``on_lost`` when a
    worker was lost, ``on_event`` after every event that did not end the run, and from time to time while no event
    occurs. ``evaluate_objective`` returns the objective of a slot when a strategy asks for it; by default the problem
    does. ``workers_evaluate``: whether the workers evaluate losses, which the problem must then support.
    """

    def __init__(
        self,
        strategy: Strategy,
        cluster: Cluster,
        *,
        problem: Problem | None = None,
        optimizer: Optimizer | None = None,
        log: LogWriter | None = None,
        steps: int | None = None,
        seconds: float | None = None,
        answers: Sequence[LossEvaluated | NoiseMeasured] = (),
        warm_start: WarmStart | None = None,
        on_step: Callable[[StepRecord], None] | None = None,
        on_news: Callable[[Driver], None] | None = None,
        on_lost: Callable[[Lost], None] | None = None,
        on_event: Callable[[Driver], None] | None = None,
        evaluate_objective: Callable[[str, Vector], float] | None = None,
        workers_evaluate: bool = False,
    ) -> None:
        if optimizer is not None and problem is not None:
            optimizer = optimizer.fitted(problem_of(problem, strategy.layout.slots[0]))
        self.strategy, self.cluster, self.problem, self.optimizer, self.log = strategy, cluster, problem, optimizer, log
        self.running = Running(strategy)
        self.steps, self.seconds = steps, seconds
        self._on_step, self._on_news, self._on_lost, self._on_event = on_step, on_news, on_lost, on_event
        self.warm_start = warm_start
        self.layout = layout = strategy.layout
        values = None if problem is None or optimizer is None else abilities_of(problem).changing_values
        carried = None if values is None else CarriedValues(cluster, values, log)
        self.versions = Versions(
            cluster=cluster, layout=layout, problem=problem, optimizer=optimizer, warm_start=warm_start, carried=carried
        )
        self.ledger = Ledger(
            strategy=strategy.spec,
            workers=layout.workers,
            cluster=cluster,
            versions=self.versions,
            log=log,
            computes=problem is not None,
        )
        parts, audit = (cluster, self.versions, self.ledger), Audit(layout.partitions, layout.blocks)
        self._updates = None if problem is None else Updates(*parts, problem, optimizer, audit)
        self._checks = CommandChecks(strategy.spec, layout, self.ledger)
        self._questions = Questions(*parts, problem, optimizer, evaluate_objective, answers)
        self._faults = Faults(layout.workers)
        self._workers_evaluate = workers_evaluate
        self.equal_bits = False  # whether several workers send messages that must not differ in a bit
        self._agreement: Agreement | None = None
        self._pending: deque[Event] = deque()  # events of one message that the strategy has not received yet
        self.need: Need | None = None  # required memory
        self.time = 0.0  # of the newest version
        self.present: set[int] = set()
        self.stopped: Stop | None = None
        self.interrupted = self._over = False
        self.before_step: Callable[[StepBegun], None] | None = None  # called before the next model is computed
        self._commands: Sequence[Command] = ()  # those that are being carried out
        self._orders: list[Order] = []  # commands that the cluster has not received yet
        self._carry_out: dict[type[Command], Callable[[Any], None]] = {
            Dispatch: self._dispatch,
            Cancel: self._cancel,
            RequestMessage: self._request,
            ProjectMessage: self._orders.append,
            SetAlarm: self._set_alarm,
            Combine: self._update,
            Mix: self._update,
            EvaluateLoss: self._questions.loss,
            MeasureNoise: self._questions.noise,
            MeasureDrift: self._questions.drift,
            Note: self._note,
        }
        self._now = 0.0
        paced = cluster.virtual and not cluster.recorded and steps is None
        self._pace = ClockLimit(seconds, self.versions.step) if paced and seconds is not None else None
        cluster.report_cuts = log is not None

    # ------------------------------------------------------------------------------------------- run

    def open(self, tell: Tell | None = None) -> None:
        """Start the cluster's workers on the problem's partitions; first, ``tell`` receives a line on required memory.

        Raises :class:`~anyk.BadInput` if less memory is available.
        """
        self.cluster.prepare()
        partitions = None
        if self.problem is not None:
            partitions = partitions_of(
                self.problem, self.layout, copied=not self.cluster.virtual, compared=not self.cluster.recorded
            )
            self.ledger.sizes = partitions.sizes
            tolerance = partition_abilities(partitions).tolerance
            comparable = replicated(self.layout) and not self.layout.voting
            self.equal_bits = comparable and not tolerance
            if comparable and self.layout.blocks == 1 and not self.cluster.recorded:
                tolerance = tolerance_of(self.cluster, tolerance, partitions.dtype)
                note = None if self.log is None else self.log.note
                self._agreement = Agreement(
                    layout=self.layout, cluster=self.cluster, ledger=self.ledger, tolerance=tolerance, note=note
                )
            if self._workers_evaluate:
                partition_abilities(partitions).check_partial_loss()
            if not self.cluster.recorded:
                self.need = Need.of(
                    self.cluster,
                    self.layout,
                    partitions,
                    self.optimizer,
                    saved=self.log is not None and self.log.path is not None,
                )
                line = self.need.check()
                if tell is not None:
                    tell(line)
        local = local_of(self.layout, self.problem, self.optimizer)
        self.present = set(self.cluster.open(self.layout, partitions, local))

    def begin(self) -> None:
        """Publish the first versions and ask the strategy for its first commands."""
        earlier = self.warm_start
        if earlier is not None:
            self.cluster.injection.skip(earlier.tasks)
        self.versions.begin()
        self._now = self.cluster.now()
        present = tuple(sorted(self.present))
        rounds = 0 if earlier is None else earlier.rounds
        if self.log is not None:
            self.log.start(self._now, present, rounds, () if self.layout.epochs else self.ledger.sizes)
        self._obey(self.running.start(Fleet(self.layout.workers, present, self._now, rounds)))
        self._answer()

    def run(self) -> None:
        """Continue until a limit is reached or the strategy stops; raise :class:`~anyk.RunFailed` on failure."""
        if self.finished():
            return
        self._answer()  # questions of a resumed run's strategy that were not answered yet
        # a run ends by an alarm, as reading the clock would take a later event from the cluster and lose it
        self.cluster.execute([SetAlarm(_LIMIT, self.seconds)])
        agreement = self._agreement
        receive = self.ledger.arrive if agreement is None else self.ledger.aged  # compared ones have arrived already
        for event in self.cluster.events() if agreement is None else self._compared_events(agreement):
            if isinstance(event, Reply):
                self._now = event.time
                reply = receive(event)  # none if it is late: the ledger has freed its message
                if reply is not None and self._decide(reply):
                    break
            elif event is None:
                if self._rest():
                    break
            elif self._take(event):
                break
        else:
            if self.cluster.recorded:
                return  # the log has ended
            raise RunFailed(
                f"deadlock at step {self.step}: '{self.strategy.spec}' is waiting for workers that cannot answer"
            )
        if self.stopped is not None and self.stopped.failed:
            raise RunFailed(self.stopped.reason + self._faults.since_step())

    def _rest(self) -> bool:
        """Do what can wait, as there was no event for some time; return whether the run has ended."""
        if self.log is not None:
            self.log.tidy()
        if self.interrupted:
            return True
        if self._on_event is not None:
            self._on_event(self)
        return False

    def _take(self, event: Event | Cut) -> bool:
        """Enter an event, not a reply, into the ledger, and decide on it; return whether the run has ended."""
        self._now = event.time
        if isinstance(event, Alarm) and event.name == _LIMIT:
            return True
        if isinstance(event, Cut):
            self.ledger.cut(event)
            return False
        if isinstance(event, Progress):
            self.ledger.progress(event)
        elif isinstance(event, Failed):
            if self.ledger.batch(event.task) is None:
                self.ledger.fail_late(event)
                return False
            event = self._judge_failure(event)
        return self._decide(event)

    def _decide(self, event: Event) -> bool:
        """Let the strategy decide on an event, and carry that out; return whether the run has ended."""
        if self.log is not None:
            self.log.event(event)  # before its consequences are logged
            self.log.tidy()
        if not isinstance(event, Reply):
            self._note_worker(event)
        elif self._faults.in_a_row:
            self._faults.in_a_row.pop(event.worker, None)
        commands = self.running.on(event)
        if commands or self.interrupted:
            self._obey(commands)
            if self._questions.answers and not self.finished():
                self._answer()
            if self._on_news is not None:
                self._on_news(self)
            if self.finished():
                return True
            if self._pace is not None:
                self._pace.check(self.step, self._now)
        if self._on_event is not None:
            self._on_event(self)
        return False

    def _compared_events(self, agreement: Agreement) -> Iterator[Event | Cut | None]:
        """Yield the cluster's events, with failures in place of messages that contradict each other.

        Late replies are dropped: ``Ledger.arrive`` has freed their messages.
        """
        pending = self._pending
        while pending:  # since before a resume
            yield pending.popleft()
        for event in self.cluster.events():
            if not isinstance(event, Reply):
                yield event
            elif self.ledger.arrive(event):
                pending.extend(agreement.take(event))
                while pending:
                    yield pending.popleft()

    def _answer(self) -> None:
        """Pass answers to the strategy's questions on to it, and carry out the commands that follow."""
        answers = self._questions.answers
        while answers:
            event = answers.popleft()
            self._now = event.time
            if self.log is not None:
                self.log.event(event)
            self._obey(self.running.on(event))

    @property
    def step(self) -> int:
        """Number of versions so far of the trained slot that has the fewest."""
        return self.versions.step

    @property
    def models(self) -> Vectors:
        """The newest version of each slot."""
        return self.versions.models

    @property
    def now(self) -> float:
        """Time of the current event, in seconds of the run's clock."""
        return self._now

    def end(self) -> None:
        """End the run after the current event, because its goal has been reached."""
        self._over = True

    def interrupt(self) -> None:
        """End the run after the current event, although it could continue."""
        self.interrupted = True

    def finished(self) -> bool:
        """Return whether a limit has been reached or the strategy has stopped."""
        return (
            self.stopped is not None
            or self.interrupted
            or self._over
            or (self.steps is not None and self.versions.step >= self.steps)
        )

    def settle(self) -> None:
        """Close the ledger; open chunks are cancelled."""
        if self.log is not None:
            self.log.seq += 1  # entries from here on are dropped when the run is resumed
        self.ledger.settle(self._now)
        if self.log is not None:
            self.log.flush()

    # ------------------------------------------------------------------------------------------- commands

    def _obey(self, commands: Sequence[Command]) -> None:
        carry_out, self._commands = self._carry_out, commands
        for command in commands:
            method = carry_out.get(type(command))
            if method is not None:
                method(command)
            elif isinstance(command, Stop):
                if not (command.failed and self.finished()):  # a step before it may have ended the run
                    self.stopped = command
                break
            else:
                raise RunFailed(f"'{self.strategy.spec}' returned {command!r}, which is not a command")
        if self._orders:
            self._send()

    def _send(self) -> Sequence[Cut]:
        """Send the collected commands to the cluster; return ends of cancelled chunks that it reports immediately."""
        cuts = self.cluster.execute(self._orders)
        self._orders.clear()
        return cuts

    def _dispatch(self, command: Dispatch) -> None:
        if self._updates is not None:
            self._checks.dispatch(command)
        self.ledger.dispatch(command, self._now)
        self._orders.append(command)

    def _cancel(self, command: Cancel) -> None:
        self._checks.cancel(command)
        self._orders.append(command)
        # a virtual cluster reports the ends of cancelled chunks immediately
        cuts = self._send() if self.cluster.virtual else ()
        # a real worker may still answer, and does so if it is left to finish
        later = not self.cluster.virtual or command.mode == "discard"
        self.ledger.cancel(command, cuts, self._now, later=later)

    def _set_alarm(self, command: SetAlarm) -> None:
        self._checks.alarm(command)
        self._orders.append(command)

    def _request(self, command: RequestMessage) -> None:
        self.ledger.request(command)
        self._orders.append(command)

    def _note(self, command: Note) -> None:
        if self.log is not None:
            self.log.note(self._now, command.kind, command.text)

    def _update(self, command: Combine | Mix) -> None:
        """Make a slot's next version."""
        if self._orders:
            self._send()
        if self._updates is not None:
            self._checks.step(command)
        slot, version = command.slot, self.versions.newest[command.slot]
        full = self.ledger.with_gathered(command) if self.ledger.gathered else command
        if self._agreement is not None:
            self._agreement.check(full.messages, self.strategy.spec, self.step)
        w, bits = None, 0
        if self._updates is not None:
            if isinstance(full, Combine) and full.divisor == "all":
                full = self._updates.audit(full)
            if self.before_step is not None:
                self.before_step(StepBegun(full, version + 1, self._now, self._cancelled_now()))
            w, bits = self._updates.result(command) or (None, 0)
        givers = self._givers(full.messages) if self.cluster.in_slices else {}
        self.versions.publish(slot, w)
        self._faults.stepped()
        used = self.ledger.use(full, version)
        self.cluster.step_done()
        self.time = self._now = self.cluster.now()
        if self.log is not None or self._on_step is not None:
            self._record(full, version + 1, used, bits=bits, givers=givers)

    def _givers(self, messages: Sequence[Place]) -> dict[Place, list[int]]:
        """Return the workers whose replicas gave each slice of the messages."""
        store = self.cluster.store
        return {message: store.givers(message) for message in messages}

    def _record(
        self, command: Combine | Mix, version: int, used: Usage, *, bits: int, givers: dict[Place, list[int]]
    ) -> None:
        """Log a new version, and pass it on to whoever follows the steps.

        ``bits``: its digest. ``givers``: by message, as :meth:`_givers` returns them.
        """
        residual, gain, scale = 0.0, 1.0, 1.0
        if isinstance(command, Combine):
            residual, gain, scale = command.residual or 0.0, command.gain, command.scale
        update = Update(
            slot=command.slot,
            version=version,
            time=self.time,
            replies=used.replies,
            residual=residual,
            gain=gain,
            staleness=used.staleness,
            stalest=used.stalest,
            scale=scale,
            digest=bits,
        )
        if self.log is not None:
            self.log.update(update)
            self.log.slices(command.slot, version, givers)
        if self._on_step is not None and command.slot not in self.layout.auxiliary:
            self._on_step(StepRecord(update, command, used.by))

    def _cancelled_now(self) -> tuple[int, ...]:
        """Return the tasks that the commands which are being carried out cancel."""
        return tuple(task for command in self._commands if isinstance(command, Cancel) for task in command.tasks)

    def observe(self, slot: str, version: int, value: float) -> None:
        """Pass the value of the newest version to the optimiser, for a schedule that depends on it."""
        if self.optimizer is not None and self.versions[slot] == version:
            self.optimizer.observe(self.versions.optimizer_states(slot), value)

    # ------------------------------------------------------------------------------------------- what goes wrong

    def _note_worker(self, event: Event) -> None:
        """Record that a worker has failed, is lost or has joined."""
        match event:
            case Failed():
                self._set_aside(event)
            case Lost():
                self._lose(event)
            case Joined():
                self.present.add(event.worker)

    def _judge_failure(self, event: Failed) -> Failed | Lost:
        """Return the failure, or the loss of its worker after too many failures in a row."""
        if self.cluster.recorded:
            return event
        judged = self._faults.judge(event, self.step)
        if isinstance(judged, Lost):
            self._set_aside(event)
            self.cluster.abandon(event.worker)
        return judged

    def _set_aside(self, event: Failed) -> None:
        """Record a message that must not be used."""
        if self.log is not None:
            self.log.note(event.time, "set aside", f"worker {event.worker}, step {self.step}: {event.reason}")
        self.ledger.fail(event)

    def _lose(self, event: Lost) -> None:
        self.present.discard(event.worker)
        if self.log is not None:
            self.log.note(event.time, "given up" if event.gone else "lost", f"worker {event.worker}: {event.reason}")
        self.ledger.lose(event.worker)
        if self._on_lost is not None:
            self._on_lost(event)

    # ------------------------------------------------------------------------------------------- checkpoints

    def state(self) -> dict[str, Any]:
        """Return everything that a resumed run needs besides vectors, as plain data."""
        return {
            "strategy": self.running.save(),
            "cluster": self.cluster.state(),
            "time": self.time,
            "now": self._now,
            "versions": dict(self.versions.newest),
            "carried": None if self.versions.carried is None else self.versions.carried.state(),
            "present": sorted(self.present),
            "answers": self._questions.state(),
            "failing": self._faults.state(),
            "agreement": None if self._agreement is None else self._agreement.state(),
            "pending": [[type(event).__name__, *event] for event in self._pending],
            "seq": self.log.seq if self.log is not None else 0,
            **self.ledger.state(),
        }

    def vectors(self) -> Vectors:
        """Return the vectors that a resumed run needs: models in use, optimiser states and unused messages."""
        of_cluster = {f"cluster/{key}": vector for key, vector in self.cluster.store.vectors().items()}
        return self.versions.vectors() | self.ledger.vectors() | of_cluster

    def restore(self, state: Mapping[str, Any], vectors: Mapping[str, Vector]) -> None:
        """Continue from a checkpoint; called after :meth:`open` in place of :meth:`begin`."""
        self.time, self._now = state["time"], state["now"]
        present_now, self.present = self.present, set(state["present"])
        if self.versions.carried is not None:
            self.versions.carried.restore(state["carried"], vectors)
        self.versions.restore(state["versions"], vectors)
        makers = self.ledger.restore(state, vectors)
        of_cluster = {
            key.removeprefix("cluster/"): vector for key, vector in vectors.items() if key.startswith("cluster/")
        }
        self.cluster.store.restore(of_cluster, makers)
        self._faults.restore(state["failing"])
        if self._agreement is not None:
            self._agreement.restore(state["agreement"])
            self._pending.extend(KINDS[kind](*fields) for kind, *fields in state["pending"])
        self._questions.restore(state["answers"])
        self.running.restore(state["strategy"])
        self.cluster.restore(self._now, state["cluster"])
        if self.cluster.virtual:
            return
        events: list[Event] = [
            Lost(self._now, worker, "absent on resume") for worker in sorted(self.present - present_now)
        ]
        # in a fleet that changes, workers that were leaving have been replaced, so that all of them join
        joined = present_now if self.layout.fewest else present_now - self.present
        events += [Joined(self._now, worker) for worker in sorted(joined)]
        for event in events:
            if self.log is not None:
                self.log.event(event)
            self._note_worker(event)
            self._obey(self.running.on(event))
