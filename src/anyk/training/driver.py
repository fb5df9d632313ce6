"""The one driver loop: events to the strategy, its commands to the cluster, sums to the optimiser, all to the log."""

from __future__ import annotations

import json
import time as clock
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anyk import keyed
from anyk.clusters.contract import Cluster, Order
from anyk.clusters.local import Local
from anyk.errors import BadInput, RunFailed
from anyk.optimizers import Optimizer, SlowMo, optimizer
from anyk.problems.base import Problem, Vector
from anyk.problems.many import problem_of
from anyk.protocol import (
    Alarm,
    Cancel,
    Combine,
    Command,
    Cut,
    Dispatch,
    DriftMeasured,
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
    Reply,
    RequestMessage,
    Running,
    SetAlarm,
    Stop,
    Strategy,
    Timing,
)
from anyk.training.audit import Audit
from anyk.training.batches import ARRIVED, CUT, ENDED, OPEN, Batch
from anyk.training.beginning import OUTER, Beginning
from anyk.training.ledger import Ledger
from anyk.training.runlog import RunLog
from anyk.training.versions import Versions

_LIMIT = "the run's limit"  # the alarm that ends a run
_UNTIMED: tuple[Timing | None, float | None] = (None, None)
_NO_TIMES = (None, None, None, None, None)
_AMPLIFIED = 1e-3  # a decode whose gain x rounding exceeds this is refused
_NOT_FINITE = "not finite"
_AT_FAULT = f"{BadInput.__name__}: "  # how a worker's words begin where asking again is of no use
_FAILURES = 10  # unusable messages in a row after which a worker is given up
_MOST = 1_000_000  # steps that a limit of seconds may take on a virtual clock; without one of steps
_PACE = 1000  # steps between two looks at the pace
_CUTS_KEPT = 16  # cancelled tasks a silent worker may have before the oldest is written down as never begun


class Driver:
    """Drives one run; :func:`anyk.train` is how it is used.

    Without a ``problem`` nothing is computed: only decisions and times remain (simulated clusters), and what a strategy
    asks of losses and gradients is answered from ``told``, in that order. ``watch`` is called after every step with
    the driver. ``beginning``: where another run stood, from which this one goes on.
    """

    def __init__(
        self,
        strategy: Strategy,
        cluster: Cluster,
        *,
        problem: Problem | None = None,
        optimizer: Optimizer | None = None,
        log: RunLog | None = None,
        steps: int | None = None,
        seconds: float | None = None,
        watch: Callable[[Driver], None] | None = None,
        told: Sequence[LossEvaluated | NoiseMeasured] = (),
        beginning: Beginning | None = None,
    ) -> None:
        if optimizer is not None and problem is not None:
            optimizer = optimizer.fitted(problem_of(problem, strategy.layout.slots[0]))
        self.strategy, self.cluster, self.problem, self.optimizer, self.log = strategy, cluster, problem, optimizer, log
        self.running = Running(strategy)
        self.steps, self.seconds = steps, seconds
        self.watch = watch
        self.save: Callable[[], None] | None = None  # called between two events, every ``save_every`` seconds
        self.save_every = self.save_at = 0.0
        self.ledger = Ledger()
        self.beginning = beginning
        self.layout = layout = strategy.layout
        self.versions = Versions(cluster, layout, problem, optimizer, beginning)
        self.time = 0.0  # of the newest version
        self.present: set[int] = set()
        self.stopped: Stop | None = None
        self.interrupted = False  # set from outside, as is ``reached``; the run ends after the event at hand
        self.reached = False
        self.last_update: Combine | Mix | None = None
        self.on_time = 0  # workers whose messages were used in the last step
        self._next = 0  # the least number that the next task may have
        self._given: dict[int, Batch] = {}  # by task
        self._cut: dict[int, Batch] = {}  # cancelled tasks whose end is not known yet
        self._cut_of: list[deque[int]] = [deque() for _ in range(layout.workers)]
        self._answers: deque[Event] = deque()  # to what the strategy asked the driver itself
        self._told = {
            kind: deque(event for event in told if type(event) is kind) for kind in (LossEvaluated, NoiseMeasured)
        }
        self._audit = Audit(layout.partitions, layout.blocks)
        self._gathered: dict[tuple[int, int], list[tuple[tuple[int, int], float]]] = {}  # messages inside messages
        self._sizes: tuple[int, ...] = ()
        self._scratch: NDArray[np.float64] | None = None
        self._bad: dict[tuple[str, int], set[int]] = {}  # who gave what is not finite, by version
        self._failing: dict[int, tuple[int, str]] = {}  # how many unusable messages in a row, and the last one's fault
        self._faults: dict[int, str] = {}  # of unusable messages since the last step, by worker
        self._now = 0.0
        self._sees_ahead = cluster.virtual
        paced = cluster.virtual and not cluster.recorded and seconds is not None and steps is None
        self._look = _PACE if paced else 0  # at the pace, when so many steps have been taken; 0: never
        cluster.report_cuts = log is not None

    # ------------------------------------------------------------------------------------------- run

    def open(self) -> None:
        """Start the cluster's workers on the problem's partitions."""
        layout = self.layout
        self.cluster.prepare()
        partitions = None
        shares = layout.shares
        if self.problem is not None:
            # problems of one's own need not know of shares as long as no strategy asks for them
            partitions = (
                self.problem.split(layout.partitions)
                if shares is None
                else self.problem.split(layout.partitions, shares)
            )
            self._sizes = partitions.sizes
            compare = getattr(partitions, "compare_replicas", None)
            if compare is not None and self._replicated() and not self.cluster.recorded:
                compare()
                if getattr(getattr(self.strategy, "code", None), "byzantine", 0):
                    partitions.tolerance = 0.0  # type: ignore[attr-defined]  # it outvotes a worker that differs
        present = self.cluster.open(layout, partitions, self._local())
        self.present = set(present)

    def _replicated(self) -> bool:
        """Whether several workers compute gradients of the same partition, which then have to agree."""
        held = [j for partitions in self.layout.assignment for j in partitions]
        return len(set(held)) < len(held) and self.layout.inner is None

    def _local(self) -> Local | None:
        """How workers take local steps, if the strategy has them do so."""
        inner = self.layout.inner
        if inner is None or self.problem is None or self.optimizer is None:
            return None
        local = Local(inner or self.optimizer.spec, self.optimizer.rate.spec, self.problem.l2)
        optimizer(local.optimizer, lr=local.rate)  # what cannot be made is found here, and not by the workers
        return local

    def begin(self) -> None:
        """Publish the first versions and ask the strategy for its first commands."""
        earlier = self.beginning
        if earlier is not None:
            self.cluster.injection.skip(earlier.tasks)
        self.versions.begin()
        self._now = self.cluster.now()
        present = tuple(sorted(self.present))
        rounds = 0 if earlier is None else earlier.rounds
        if self.log is not None:
            self.log.start(self._now, present, rounds)
        self._obey(self.running.start(Fleet(self.layout.workers, present, self._now, rounds)))
        self._answer()

    def run(self) -> None:
        """Go on until a limit is reached or the strategy stops; raises :class:`~anyk.errors.RunFailed` if it failed."""
        if self.finished():
            return
        strategy, log, given, on = self.strategy, self.log, self._given, self.running.on
        self._answer()  # what a resumed run's strategy had asked and not been told
        # an alarm, and not a look at the clock, ends a run at its limit: no event that comes later is taken and lost
        self.cluster.execute([SetAlarm(_LIMIT, self.seconds)])
        for event in self.cluster.events():
            if event is None:
                if log is not None:
                    log.tidy()
                if self.interrupted:
                    break
                continue
            self._now = event.time
            if isinstance(event, Reply):
                batch = given.get(event.task)
                if batch is None:
                    self._late(event)
                    continue
                if self._failing:
                    self._failing.pop(event.worker, None)
                place = (event.task - batch.first) * batch.width + event.chunk
                if batch.status[place] != OPEN:  # told twice, or its worker was lost before
                    if batch.status[place] == ENDED:
                        self.cluster.free(event.task, event.chunk)
                    continue
                batch.status[place] = ARRIVED
                if log is not None:
                    batch.timing[place] = (event.timing, event.time)
            elif isinstance(event, Cut):
                self._close_cut(event)
                continue
            elif isinstance(event, Alarm) and event.name == _LIMIT:
                break
            elif isinstance(event, Failed):
                if event.task not in given:
                    self._late_failure(event)
                    continue
                event = self._failed(event)
            if log is not None:
                log.event(event)  # before what follows from it is written down
                log.tidy()
            if isinstance(event, Failed):
                self._unusable(event)
            elif isinstance(event, Lost):
                self._lose(event)
            elif isinstance(event, Joined):
                self.present.add(event.worker)
            commands = on(event)
            if commands or self.interrupted:
                self._obey(commands)
                if self._answers and not self.finished():
                    self._answer()
                if self.finished():
                    break
                if self._look and self.step - self._begun >= self._look:
                    self._check_pace()
            if self.save is not None and clock.monotonic() >= self.save_at:
                self.save()
                self.save_at = clock.monotonic() + self.save_every
        else:
            if self.cluster.recorded:
                return  # the log has ended
            raise RunFailed(
                f"nothing can happen any more at step {self.step}: '{strategy.spec}' waits for workers that will not "
                "answer"
            )
        if self.stopped is not None and self.stopped.failed:
            faults = [f"; worker {worker}: {why}" for worker, why in sorted(self._faults.items())]
            raise RunFailed(self.stopped.reason + "".join(faults[:3]))

    @property
    def _begun(self) -> int:
        return 0 if self.beginning is None else self.beginning.step

    def _check_pace(self) -> None:
        """Raise where so little time passes on the virtual clock that a limit of seconds would hardly ever come."""
        assert self.seconds is not None
        taken = self.step - self._begun
        if self._now * _MOST < self.seconds * taken:
            raise RunFailed(
                f"{taken:,} steps took {self._now:.3g} s of the virtual clock; at this pace a limit of "
                f"{self.seconds:g} seconds takes more than {_MOST:,} steps; give steps as well, or longer delays"
            )
        self._look = taken + _PACE

    def _answer(self) -> None:
        """Tell the strategy what it asked the driver, and do what it says to that."""
        while self._answers:
            event = self._answers.popleft()
            self._now = event.time
            if self.log is not None:
                self.log.event(event)
            self._obey(self.running.on(event))

    @property
    def step(self) -> int:
        """Versions made so far, of the trained slot that has the fewest."""
        return self.versions.step

    @property
    def models(self) -> dict[str, Vector]:
        """The newest version of each slot."""
        return self.versions.models

    def finished(self) -> bool:
        """Whether a limit has been reached or the strategy has stopped."""
        return (
            self.stopped is not None
            or self.interrupted
            or self.reached
            or (self.steps is not None and self.step >= self.steps)
        )

    def settle(self) -> None:
        """Close the ledger: what is still open is cancelled."""
        now = self._now
        if self.log is not None:
            self.log.seq += 1  # what is written from here on is forgotten when the run is resumed
        for batch in dict.fromkeys(self._given.values()):
            batch.cancelled = now
            for place, status in enumerate(batch.status):
                if status != ENDED:
                    self._end(batch, place, "discarded" if status == ARRIVED else "cancelled")
            self._close(batch)
        for task in list(self._cut):
            self._forget(task)
        if self.log is not None:
            self.log.flush()

    # ------------------------------------------------------------------------------------------- commands

    def _obey(self, commands: Sequence[Command]) -> None:
        orders: list[Order] = []
        for command in commands:
            kind = type(command)
            if kind is Dispatch:
                self._dispatch(command)  # type: ignore[arg-type]
                orders.append(command)  # type: ignore[arg-type]
            elif kind is Cancel:
                orders.append(command)  # type: ignore[arg-type]
                if self._sees_ahead:  # and then it is told at once, to hear what becomes of what is cut off
                    self._cancel(command, self.cluster.execute(orders))  # type: ignore[arg-type]
                    orders = []
                else:
                    self._cancel(command, ())  # type: ignore[arg-type]
            elif kind is Combine or kind is Mix:
                if orders:
                    self.cluster.execute(orders)
                    orders = []
                self._combine(command)  # type: ignore[arg-type]
            elif kind is Stop:
                self.stopped = command  # type: ignore[assignment]
                break
            elif kind is EvaluateLoss:
                self._assess(command)  # type: ignore[arg-type]
            elif kind is MeasureDrift:
                self._compare(command)  # type: ignore[arg-type]
            elif kind is MeasureNoise:
                self._scatter(command.messages)  # type: ignore[union-attr]
            elif kind is Note:
                if self.log is not None:
                    self.log.note(self._now, "strategy", command.text)  # type: ignore[union-attr]
            else:
                if kind is RequestMessage:
                    self._collect(command)  # type: ignore[arg-type]
                orders.append(command)  # type: ignore[arg-type]
        if orders:
            self.cluster.execute(orders)

    def _assess(self, command: EvaluateLoss) -> None:
        """The objective at the newest version, for the strategy; a log that is replayed tells it itself."""
        if self.problem is None or self.cluster.recorded:
            self._tell_again(LossEvaluated)
            return
        slot = command.slot
        with np.errstate(over="ignore", invalid="ignore"):
            loss = problem_of(self.problem, slot).loss(self.models[slot])
        version = self.versions[slot]
        number = version if command.number is None else command.number
        rate = 1.0 if self.optimizer is None else self.optimizer.rate.at(number)
        self._answers.append(LossEvaluated(self.cluster.now(), slot, version, loss, rate))

    def _tell_again(self, kind: type[LossEvaluated | NoiseMeasured]) -> None:
        """Nothing is computed here: the next answer of the run that it was; a loss that nobody knows is NaN."""
        if self.cluster.recorded:
            return
        if self._told[kind]:
            self._answers.append(self._told[kind].popleft()._replace(time=self.cluster.now()))
        elif kind is LossEvaluated:
            self._answers.append(LossEvaluated(self.cluster.now(), "", 0, float("nan")))

    def _scatter(self, messages: Sequence[tuple[int, int]]) -> None:
        """How far apart gradients are: what tells the noise in them from what they agree on."""
        if self.problem is None or self.cluster.recorded:
            self._tell_again(NoiseMeasured)
            return
        squares, total = 0.0, np.zeros(self.problem.dimension)
        for message in messages:
            mean = self.cluster.combine([message], [1.0])
            mean /= self._covered([message])
            squares += float(mean @ mean)
            total += mean
        total /= len(messages)
        self._answers.append(
            NoiseMeasured(self.cluster.now(), len(messages), squares / len(messages), float(total @ total))
        )

    def _compare(self, command: MeasureDrift) -> None:
        """How far the model has moved since a task was given it."""
        if self.cluster.recorded:
            return
        value = 0.0
        batch = self._given.get(command.task)
        if self.problem is not None and batch is not None:
            slot = batch.chunks[command.task - batch.first][command.chunk].slot
            then, now = self.cluster.model(slot, batch.versions[slot]), self.models[slot]
            moved = np.subtract(now, then, dtype=np.float64)
            value = float(moved @ moved)
        self._answers.append(DriftMeasured(self.cluster.now(), *command, value))

    def _collect(self, command: RequestMessage) -> None:
        """A chunk's message will be made of this; the ledger and the receipt are to say so."""
        batch = self._given[command.task]
        item = command.task - batch.first
        task = list(batch.chunks[item])
        task[command.chunk] = task[command.chunk]._replace(
            partitions=command.partitions, coefficients=command.coefficients
        )
        batch.chunks = [*batch.chunks[:item], tuple(task), *batch.chunks[item + 1 :]]
        if command.messages:
            self._gathered[command.task, command.chunk] = list(zip(command.messages, command.weights, strict=True))

    def _with_gathered(self, command: Combine | Mix) -> Combine | Mix:
        """A combine that names the messages inside messages, too, each with the weight it comes to."""
        messages, weights = list(command.messages), list(command.weights)
        for place, weight in zip(messages, weights, strict=True):  # grows while it is walked through
            for inside, share in self._gathered.get(place, ()):
                messages.append(inside)
                weights.append(weight * share)
        return command._replace(messages=messages, weights=weights)

    def _ids(self, task: int, chunk: int) -> tuple[int, ...]:
        """The partitions that a message covers."""
        batch = self._given[task]
        inside = [j for (t, c), _ in self._gathered.get((task, chunk), ()) for j in self._ids(t, c)]
        return tuple(dict.fromkeys([*batch.chunks[task - batch.first][chunk].partitions, *inside]))

    def _dispatch(self, command: Dispatch) -> None:
        first, workers, chunks, _ = command
        if first < self._next:
            raise RunFailed(
                f"task {first} was dispatched twice: '{self.strategy.spec}' must number its tasks upwards and never "
                f"reuse a number (anyk strategies check '{self.strategy.spec}' shows when it does)"
            )
        self._next = first + len(workers)
        batch = Batch(first, workers, chunks, self.versions.newest.copy(), self._now)
        if len(workers) == 1:
            self._given[first] = batch
        else:
            self._given.update(dict.fromkeys(range(first, first + len(workers)), batch))
        self.ledger.dispatched += batch.left
        if self.problem is not None:
            for slot in batch.slots():
                self.versions.pin(slot, batch.versions[slot])

    def _mixed(self, command: Mix, version: int) -> Vector:
        """The slot's next version, made of models."""
        assert self.problem is not None
        slot, w = command.slot, self.models[command.slot]
        weights = list(command.weights)
        if command.by_samples:
            samples = [self._covered([message]) for message in command.messages]
            total = sum(weights)
            weights = [weight * size for weight, size in zip(weights, samples, strict=True)]
            weights = [weight * total / sum(weights) for weight in weights]
        target = self.cluster.combine(command.messages, weights)
        if command.relative:
            for (task, _), weight in zip(command.messages, weights, strict=True):
                target -= weight * self.cluster.model(slot, self._given[task].versions[slot])
        if command.share:
            target += command.share * w
        for other, weight in command.others:
            target += weight * self.models[other]
        blank = self.cluster.blank(slot)
        if command.outer is None:
            blank[:] = target
        else:
            outer = optimizer(command.outer[0], lr=command.outer[1])
            change = np.subtract(w, target).astype(w.dtype, copy=False)
            inner = 1.0 if self.optimizer is None else self.optimizer.rate.at(command.number)
            scale = inner if isinstance(outer, SlowMo) else 1.0
            state = self._outer_state(slot, outer, w)
            blank = outer.step(w, change, state, version, scale, out=blank)
            self.versions.optimizer_states[slot] |= {f"outer {name}": vector for name, vector in state.items()}
        if not np.isfinite(np.add.reduce(blank)) and not np.isfinite(blank).all():
            raise RunFailed(f"diverged at step {version}: the model is no longer finite; lower the learning rate")
        return blank

    def _outer_state(self, slot: str, outer: Optimizer, w: Vector) -> dict[str, Vector]:
        """The state of the optimiser that steps by what local work has changed."""
        state = self.versions.optimizer_states[slot]
        if not any(name.startswith(OUTER) for name in state):
            for name, vector in outer.start(w).items():
                state[OUTER + name] = vector
        return {name.removeprefix(OUTER): vector for name, vector in state.items() if name.startswith(OUTER)}

    def _cancel(self, command: Cancel, cuts: Sequence[Cut]) -> None:
        """Book what a cancel ends; ``cuts`` tell what a cluster that sees ahead knows of it."""
        given, ledger = self._given, self.ledger
        tasks = command.tasks
        # a real worker may answer all the same, and one that is left to finish will
        later = not self._sees_ahead or command.mode == "discard"
        for cut in cuts:
            batch = given[cut.task]
            batch.cancelled = self._now
            place = (cut.task - batch.first) * batch.width + cut.chunk
            if batch.status[place] == OPEN:
                self._end(batch, place, "cancelled", done=cut.done, due=cut.due)
        while tasks:
            batch_or_none = given.get(tasks[0])
            if batch_or_none is None:
                tasks = tasks[1:]
                continue
            batch = batch_or_none
            first = batch.first
            whole = isinstance(tasks, range) and tasks[0] == first and len(tasks) >= len(batch.workers)
            mine = range(first, first + len(batch.workers)) if whole else tasks[:1]
            tasks = tasks[len(mine) :]
            batch.cancelled = self._now
            if whole and self.log is None and self.problem is None and not later:
                ledger.discarded += batch.status.count(ARRIVED)
                ledger.cancelled += batch.status.count(OPEN)
                batch.left = 0
            else:
                for task in mine:
                    self._cancel_task(task, batch, later)
            if whole:
                self._close(batch)

    def _cancel_task(self, task: int, batch: Batch, later: bool) -> None:
        start = (task - batch.first) * batch.width
        cut = False
        for place in range(start, start + batch.width):
            status = batch.status[place]
            if status == ARRIVED:
                self._end(batch, place, "discarded")
            elif status == OPEN:
                if later:
                    cut = True
                    batch.status[place] = CUT
                    batch.left -= 1
                else:
                    self._end(batch, place, "cancelled")
        self._given.pop(task, None)
        if cut:  # what becomes of it is yet to be heard
            self._cut[task] = batch
            queue = self._cut_of[batch.workers[task - batch.first]]
            queue.append(task)
            if len(queue) > _CUTS_KEPT:
                self._forget(queue.popleft())
        if not batch.left:
            self._close(batch)

    def _close(self, batch: Batch) -> None:
        """Nobody is on the batch any more (or nobody whose work will be used): forget it."""
        if batch.closed:
            return
        batch.closed = True
        pop = self._given.pop
        for task in range(batch.first, batch.first + len(batch.workers)):
            pop(task, None)
        if self._gathered:
            self._gathered = {key: inside for key, inside in self._gathered.items() if key[0] in self._given}
        if self.problem is not None:
            for slot in batch.slots():
                self.versions.unpin(slot, batch.versions[slot])

    def _combine(self, command: Combine | Mix) -> None:
        slot = command.slot
        version = self.versions[slot]
        self.last_update = command
        bits = 0
        full = self._with_gathered(command) if self._gathered else command
        if self.problem is not None and isinstance(full, Combine) and full.divisor == "all":
            full = self._audited(full, version)
        if self.problem is not None and self.optimizer is not None:
            with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is found and named
                w = self._stepped(command, version) if isinstance(command, Combine) else self._mixed(command, version)
            self.versions.publish(slot, w)
            bits = 0 if self.log is None else keyed.digest(w)
        else:
            self.versions.publish(slot, None)
        if self._faults:
            self._faults.clear()
        command = full
        for key in command.messages if self._gathered else ():
            self._gathered.pop(key, None)
        if self._bad:
            self._bad = {key: bad for key, bad in self._bad.items() if key[0] != slot}
        oldest = total = 0
        used: set[int] = set()
        given, ledger, log = self._given, self.ledger, self.log
        quick = log is None and self.problem is None
        for (task, chunk), weight in zip(command.messages, command.weights, strict=True):
            batch = given[task]
            place = (task - batch.first) * batch.width + chunk
            staleness = version - batch.versions[slot]
            if staleness:
                total += staleness
                if staleness > oldest:
                    oldest = staleness
            if quick:
                batch.status[place] = ENDED
                batch.left -= 1
                if staleness:
                    ledger.late_counted += 1
                else:
                    ledger.counted += 1
                if not batch.left:
                    self._close(batch)
            else:
                used.add(batch.workers[task - batch.first])
                plain = weight if isinstance(weight, (int, float)) else json.dumps(list(weight))
                self._end(batch, place, "late_counted" if staleness else "counted", version + 1, plain, slot)
        self.on_time = len(used)
        self.cluster.step_done()
        self.time = self._now = self.cluster.now()
        if self.log is not None:
            count = len(command.messages)
            residual, gain, scale = 0.0, 1.0, 1.0
            if isinstance(command, Combine):
                residual, gain, scale = command.residual or 0.0, command.gain, command.scale
            row = (slot, version + 1, self.time, count, residual, gain, total / max(count, 1), oldest)
            self.log.update((*row, scale, bits))
        if self.watch is not None and slot not in self.layout.auxiliary:
            self.watch(self)

    def _audited(self, command: Combine, version: int) -> Combine:
        """A combine with its residual checked or, where it states none, worked out."""
        parts = []
        for (task, chunk), weight in zip(command.messages, command.weights, strict=True):
            batch = self._given[task]
            parts.append((batch, (task - batch.first) * batch.width + chunk, weight))
        return command._replace(residual=self._audit.residual(command, parts, version))

    def _stepped(self, command: Combine, version: int) -> Vector:
        """The slot's next version."""
        assert self.problem is not None and self.optimizer is not None
        slot = command.slot
        problem = problem_of(self.problem, slot)
        rounding = float(np.finfo(problem.dtype).eps) * command.gain
        if rounding > _AMPLIFIED:
            raise RunFailed(
                f"decoding step {version} would amplify the rounding of {problem.dtype} replies {command.gain:.1e} "
                f"times; use {'float64 data or ' if problem.dtype == np.float32 else ''}a repetition code"
            )
        extra = self._compensation(command, version) if command.compensation else None
        gradient = self.cluster.combine(command.messages, command.weights)
        if extra is not None:
            gradient += extra
        w = self.models[slot]
        samples = problem.samples if command.divisor == "all" else self._covered(command.messages)
        gradient /= samples
        if problem.l2:
            if self._scratch is None:
                self._scratch = np.empty(problem.dimension)
            gradient += np.multiply(w, problem.l2, out=self._scratch)
        typed = gradient.astype(problem.dtype, copy=False)
        blank, state = self.cluster.blank(slot), self.versions.optimizer_states[slot]
        stepped = self.optimizer.step(w, typed, state, version, command.scale, out=blank)
        if not np.isfinite(np.add.reduce(stepped)) and not np.isfinite(stepped).all():
            raise RunFailed(f"diverged at step {version}: the model is no longer finite; lower the learning rate")
        return stepped

    def _compensation(self, command: Combine, version: int) -> NDArray[np.float64]:
        """What delay compensation adds to the sum: ``compensation g g (w - w_old)`` of each stale mean gradient g."""
        slot, total = command.slot, np.zeros(self.models[command.slot].size)
        for message, weight in zip(command.messages, command.weights, strict=True):
            base = self._given[message[0]].versions[slot]
            if base != version:
                g = self.cluster.combine([message], [1.0])
                g *= g
                g *= self.models[slot] - self.cluster.model(slot, base)
                total += g * (weight * command.compensation / self._covered([message]))
        return total

    def _covered(self, messages: Sequence[tuple[int, int]]) -> int:
        total = 0
        for task, chunk in messages:
            total += sum(self._sizes[j] for j in self._ids(task, chunk))
        return total

    # ------------------------------------------------------------------------------------------- how chunks end

    def _end(
        self,
        batch: Batch,
        place: int,
        ending: str,
        step: int | None = None,
        weight: float | str | None = None,
        slot: str | None = None,
        done: int | None = None,
        due: float | None = None,
        arrived: bool = False,
    ) -> None:
        """Close a chunk in the ledger and the log, and give back what it held; ``arrived``: its message came late."""
        width = batch.width
        self.ledger.end(ending)
        status = batch.status[place]
        held = status == ARRIVED
        batch.status[place] = ENDED
        if status != CUT:
            batch.left -= 1
        item, index = divmod(place, width) if width > 1 else (place, 0)
        log = self.log
        if log is not None:
            chunk = batch.chunks[item][index]
            timing, received = batch.timing.pop(place, _UNTIMED)
            started, computing, computed, sent, digest = timing or _NO_TIMES
            if held or arrived:
                done = len(chunk.partitions)
            log.chunk(
                (batch.first + item, index, batch.workers[item], batch.versions[chunk.slot], log.work(chunk), batch.at,
                 started, computing, computed, sent, received, batch.cancelled, done, due, ending, slot or chunk.slot,
                 step, weight, digest)
            )  # fmt: skip
        if held and self.problem is not None:
            self.cluster.free(batch.first + item, index)
        if not batch.left:
            self._close(batch)

    def _late(self, event: Reply) -> None:
        """A message of a cancelled task came all the same."""
        batch = self._cut.get(event.task)
        place = (event.task - batch.first) * batch.width + event.chunk if batch is not None else 0
        self.cluster.free(event.task, event.chunk)
        if batch is None or batch.status[place] != CUT:
            return
        batch.timing[place] = (event.timing, event.time)
        self._end(batch, place, "discarded", due=event.time, arrived=True)
        self._overtake(event.worker, event.task)

    def _close_cut(self, event: Cut) -> None:
        """A worker says how far a cancelled chunk had come."""
        batch = self._cut.get(event.task)
        if batch is not None:
            place = (event.task - batch.first) * batch.width + event.chunk
            if batch.status[place] == CUT:
                self._end(batch, place, "cancelled", done=event.done, due=event.due)
        self._overtake(event.worker, event.task)

    def _overtake(self, worker: int, task: int) -> None:
        """A worker speaks of ``task``: what it was given before and never spoke of, it never began."""
        queue = self._cut_of[worker]
        while queue and queue[0] < task:
            self._forget(queue.popleft())
        if queue and queue[0] == task and not self._cut_places(task):
            del self._cut[queue.popleft()]

    def _cut_places(self, task: int) -> list[int]:
        """The places of a cut task's chunks whose end is not known."""
        batch = self._cut[task]
        start = (task - batch.first) * batch.width
        return [place for place in range(start, start + batch.width) if batch.status[place] == CUT]

    def _forget(self, task: int) -> None:
        """Nothing more will be heard of a cut task."""
        if task in self._cut:
            for place in self._cut_places(task):
                self._end(self._cut[task], place, "cancelled")
            del self._cut[task]

    def _late_failure(self, event: Failed) -> None:
        """A cancelled task failed; its model version may have been overwritten under it, so that says nothing."""
        batch = self._cut.get(event.task)
        if batch is not None:
            place = (event.task - batch.first) * batch.width + event.chunk
            if batch.status[place] == CUT:
                self._end(batch, place, "discarded", due=event.time)

    def _failed(self, event: Failed) -> Failed | Lost:
        """A message that must not be used; one too many in a row, and its worker is given up instead.

        Raises when most workers fail in the same way, which no other worker can make up for, and when the problem
        itself is at fault.
        """
        if self.cluster.recorded:
            return event
        worker, why = event.worker, event.reason
        if why.startswith(_AT_FAULT):
            raise RunFailed(f"step {self.step}: worker {worker}: {why.removeprefix(_AT_FAULT)}")
        count = self._failing.get(worker, (0, ""))[0] + 1
        self._failing[worker] = count, why
        self._faults[worker] = why
        alike = sum(_kind(other) == _kind(why) for _, other in self._failing.values())
        if alike > max(1, self.layout.workers // 2):
            if _kind(why) == _NOT_FINITE:
                raise self._diverged(why)
            raise RunFailed(f"step {self.step}: most replies cannot be used; worker {worker}: {why}")
        if count < _FAILURES:
            return event
        self._unusable(event)
        self.cluster.give_up(worker)
        return Lost(event.time, worker, f"{count} unusable messages in a row, the last: {why}", gone=True)

    def _unusable(self, event: Failed) -> None:
        """Book a message that must not be used; raises when the run has diverged."""
        batch = self._given[event.task]
        place = (event.task - batch.first) * batch.width + event.chunk
        chunk = batch.chunk(place)
        self.ledger.unusable += 1
        if self.log is not None:
            self.log.note(event.time, "set aside", f"worker {event.worker}, step {self.step}: {event.reason}")
        if batch.status[place] == OPEN:
            self._end(batch, place, "lost")
        if _kind(event.reason) == _NOT_FINITE:
            bad = self._bad.setdefault((chunk.slot, batch.versions[chunk.slot]), set())
            bad.add(event.worker)
            if 2 * len(bad) > self.layout.workers:
                raise self._diverged(event.reason)

    def _diverged(self, why: str) -> RunFailed:
        return RunFailed(f"diverged at step {self.step}: most replies are {why}; lower the learning rate")

    def _lose(self, event: Lost) -> None:
        self.present.discard(event.worker)
        if self.log is not None:
            self.log.note(event.time, "given up" if event.gone else "lost", f"worker {event.worker}: {event.reason}")
        for tasks, waiting in ((self._given, OPEN), (self._cut, CUT)):
            for task, batch in list(tasks.items()):
                if batch.workers[task - batch.first] != event.worker:
                    continue
                start = (task - batch.first) * batch.width
                for place in range(start, start + batch.width):
                    if batch.status[place] == waiting:
                        self._end(batch, place, "lost")
                if tasks is self._cut:
                    del self._cut[task]
        self._cut_of[event.worker].clear()

    # ------------------------------------------------------------------------------------------- checkpoints

    def state(self) -> dict[str, Any]:
        """Everything a resumed run needs besides vectors, as plain data."""
        return {
            "strategy": self.running.save(),
            "cluster": self.cluster.state(),
            "time": self.time,
            "now": self._now,
            "versions": dict(self.versions.newest),
            "present": sorted(self.present),
            "ledger": self.ledger.plain(),
            "cut": [batch.plain(self._cut) for batch in dict.fromkeys(self._cut.values())],
            "given": [batch.plain(self._given) for batch in dict.fromkeys(self._given.values())],
            "answers": [[type(answer).__name__, *answer] for answer in self._answers],
            "gathered": [[list(key), inside] for key, inside in self._gathered.items()],
            "failing": [[worker, *failing] for worker, failing in self._failing.items()],
            "next": self._next,
            "seq": self.log.seq if self.log is not None else 0,
        }

    def vectors(self) -> dict[str, Vector]:
        """The vectors a resumed run needs: models in use, optimiser states, messages that wait to be used."""
        vectors = self.versions.vectors()
        for batch in dict.fromkeys(self._given.values()):
            for slot in batch.slots():
                version = batch.versions[slot]
                vectors[f"model/{slot}/{version}"] = self.cluster.model(slot, version)
            for place, status in enumerate(batch.status):
                if status == ARRIVED:
                    task, chunk = batch.first + place // batch.width, place % batch.width
                    vectors[f"message/{task}/{chunk}"] = self.cluster.message(task, chunk)
        return vectors | {f"cluster/{key}": vector for key, vector in self.cluster.vectors().items()}

    def restore(self, state: dict[str, Any], vectors: dict[str, Vector]) -> None:
        """Go on from a checkpoint; called after :meth:`open` in place of :meth:`begin`."""
        self.ledger = Ledger(**state["ledger"])
        self.time, self._now, self._next = state["time"], state["now"], state["next"]
        self.versions.restore(state["versions"], vectors)
        here, self.present = self.present, set(state["present"])
        for plain in state["given"]:
            batch = Batch.from_plain(plain)
            self._given.update(dict.fromkeys(range(batch.first, batch.first + len(batch.workers)), batch))
            for slot in batch.slots():
                self.versions.pin(slot, batch.versions[slot])
        for plain in state["cut"]:
            batch = Batch.from_plain(plain)
            batch.closed = True
            for task, worker in enumerate(batch.workers, batch.first):
                start = (task - batch.first) * batch.width
                if CUT in batch.status[start : start + batch.width]:
                    self._cut[task] = batch
                    self._cut_of[worker].append(task)
        self._failing = {worker: (count, why) for worker, count, why in state["failing"]}
        for (task, chunk), inside in state["gathered"]:
            self._gathered[task, chunk] = [((t, c), weight) for (t, c), weight in inside]
        for key, value in vectors.items():
            kind, *rest = key.split("/")
            if kind == "message":
                task, chunk = int(rest[0]), int(rest[1])
                batch = self._given[task]
                item = task - batch.first
                ids = () if batch.chunks[item][chunk].steps else self._ids(task, chunk)
                self.cluster.hold(batch.workers[item], task, chunk, ids, value)
        own = {key.removeprefix("cluster/"): vector for key, vector in vectors.items() if key.startswith("cluster/")}
        self.cluster.take_back(own, _makers(self._given.values()))
        kinds = {kind.__name__: kind for kind in (LossEvaluated, DriftMeasured, NoiseMeasured)}
        self._answers.extend(kinds[name](*plain) for name, *plain in state["answers"])
        self.running.restore(state["strategy"])
        self.cluster.restore(self._now, state["cluster"])
        for worker in sorted(here - self.present) if not self.cluster.virtual else ():
            self.present.add(worker)
            event: Event = Joined(self._now, worker)
            if self.log is not None:
                self.log.event(event)
            self._obey(self.running.on(event))


def _kind(fault: str) -> str:
    """What is wrong with a message, without what differs from worker to worker: the type of an error."""
    return _NOT_FINITE if fault.startswith(_NOT_FINITE) else fault.partition(":")[0]


def _makers(batches: Iterable[Batch]) -> dict[int, int]:
    """Who made the messages that tasks under way begin from."""
    tasks = (task for batch in batches for task in batch.chunks)
    return {other: worker for task in tasks for chunk in task for worker, other, _, _ in chunk.mix}
