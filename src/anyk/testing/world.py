"""The state of a hostile schedule: the tasks and messages against which each command is checked."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from anyk.base import keyed_generator
from anyk.clusters import Alarms
from anyk.protocol import (
    Cancel,
    Chunk,
    Combine,
    Commands,
    Dispatch,
    DriftMeasured,
    EvaluateLoss,
    Event,
    Fleet,
    LossEvaluated,
    MeasureDrift,
    MeasureNoise,
    Mix,
    NoiseMeasured,
    Note,
    ProjectMessage,
    RequestMessage,
    SetAlarm,
    Stop,
    Strategy,
    Task,
)

Place = tuple[int, int]  # task and chunk of a message


class Broken(AssertionError):
    """A strategy has broken a rule; ``kind`` names the rule, or the exception that it raised."""

    def __init__(self, kind: str, sentence: str) -> None:
        super().__init__(sentence)
        self.kind = kind


@dataclass(slots=True)
class TaskRecord:
    """A task that was dispatched; its chunks are each open, arrived, kept, used, cancelled, failed or lost."""

    worker: int
    chunks: list[Chunk]
    status: list[str]
    progress: list[int]
    versions: dict[str, int]
    life: int  # previous deaths of its worker
    requested: set[int] = field(default_factory=set)  # chunks whose messages were requested

    def waits(self, index: int) -> bool:
        """Return whether a chunk's message waits to be requested."""
        return self.chunks[index].send == "request" and index not in self.requested

    def open(self) -> list[int]:
        """Return the chunks that may still give a message."""
        return [index for index, status in enumerate(self.status) if status == "open"]


class World:
    """The knowledge of a driver and a cluster, against which each command of a strategy is checked."""

    def __init__(self, strategy: Strategy, fleet: Fleet, seed: int) -> None:
        self.layout = layout = strategy.layout
        self.workers, self.partitions, self.slots = layout.workers, layout.partitions, layout.slots
        self.assignment = [frozenset(partitions) for partitions in layout.assignment]
        self.blocks, self.trained = layout.blocks, layout.trained
        self.shares: Sequence[int] = layout.shares or (1,) * self.partitions
        self.exact = strategy.facts.exact
        self.seed = seed
        self.now = fleet.time
        self.present, self.gone = set(fleet.present), set[int]()
        self.leaving = set[int]()  # workers that have been told to leave
        self.versions = dict.fromkeys(layout.slots, 0)
        self.tasks: dict[int, TaskRecord] = {}
        self.task_of: dict[int, int] = {}  # the newest task of each worker
        self.next = 0
        self.alarms = Alarms()
        self.measures: deque[Place] = deque()
        self.questions: deque[Event] = deque()  # answers that the driver gives immediately
        self.stopped: Stop | None = None
        self.failures = 0
        self.inside: dict[Place, list[tuple[Place, float]]] = {}  # messages that were added to another
        self.silent: dict[int, list[Place]] = {worker: [] for worker in range(self.workers)}  # ended without a message
        self.lives = [0] * self.workers
        self.states: list[set[int]] = [set() for _ in range(self.workers)]  # tasks whose optimiser states workers have
        self.noise = keyed_generator(seed, "hostile answers")
        self.loss = math.nan if self.noise.random() < 0.2 else 10.0

    @property
    def step(self) -> int:
        """The number of versions of the model that has the fewest."""
        return min(self.versions[slot] for slot in self.trained)

    # ------------------------------------------------------------------------------------------- commands

    def obey(self, commands: Commands) -> None:
        """Carry out commands; raise :class:`Broken` at the first that breaks a rule."""
        for command in commands:
            carry_out = _CARRY_OUT.get(type(command))
            if carry_out is None:
                raise Broken("command", f"{command!r} is not a command")
            carry_out(self, command)
            if self.stopped is not None:
                return

    def _dispatch(self, command: Dispatch) -> None:
        workers, chunks = list(command.workers), list(command.chunks)
        if len(workers) != len(chunks):
            raise Broken("dispatch", f"{len(workers)} workers are given {len(chunks)} tasks")
        for task, (worker, work) in enumerate(zip(workers, chunks, strict=True), command.task):
            if task in self.tasks:
                raise Broken("reused", f"task {task} was dispatched twice")
            if task < self.next:
                raise Broken("reused", f"task {task} was dispatched after task {self.next - 1}; numbers go upwards")
            if worker not in self.present:
                raise Broken("absent", f"task {task} was dispatched to worker {worker}, which is not present")
            before = self.task_of.get(worker)
            if before is not None and self.tasks[before].open():
                raise Broken("busy", f"worker {worker} was given task {task} while it is busy with task {before}")
            self._check_task(worker, task, work)
            self.next = task + 1
            self.task_of[worker] = task
            self.tasks[task] = TaskRecord(
                worker=worker,
                chunks=list(work),
                status=["open"] * len(work),
                progress=[0] * len(work),
                versions=dict(self.versions),
                life=self.lives[worker],
            )

    def _check_task(self, worker: int, task: int, work: Task) -> None:
        if not work:
            raise Broken("dispatch", f"task {task} has no chunks")
        for chunk in work:
            if chunk.slot not in self.versions:
                raise Broken("dispatch", f"task {task} is about '{chunk.slot}', which is not one of {self.slots}")
            if not self.assignment[worker].issuperset(chunk.partitions):
                raise Broken("dispatch", f"task {task} asks worker {worker} for partitions that it does not hold")
            if self.layout.minibatches and chunk.partitions and not chunk.batch:
                raise Broken("layout", f"task {task} computes full batches; the layout states mini-batches")
            if len(chunk.coefficients) != len(chunk.partitions) * self.blocks:
                raise Broken("dispatch", f"task {task} has {len(chunk.coefficients)} coefficients")
            for _, other, index, _ in chunk.mix:
                self._arrived((other, index), f"read by task {task}")
            if chunk.mix:
                _check_total(f"task {task} begins at", [*(weight for *_, weight in chunk.mix), chunk.share])
            if chunk.state != -1:
                _check_state(self, worker, task, chunk)

    def _cancel(self, command: Cancel) -> None:
        for task in command.tasks:
            record = self.tasks.get(task)
            if record is None:
                raise Broken("cancel", f"task {task} was cancelled and never dispatched")
            for index, status in enumerate(record.status):
                if status == "open":
                    self.silent[record.worker].append((task, index))
                    self.update_states(record, task, index, certain=False)
                if status in ("open", "arrived", "kept"):
                    record.status[index] = "cancelled"

    def _collect(self, command: RequestMessage) -> None:
        worker, task, index = command.worker, command.task, command.chunk
        record = self.tasks.get(task)
        if record is None or record.worker != worker or record.status[index] != "open":
            raise Broken("collect", f"a message of task {task} is asked for, which worker {worker} is not busy with")
        chunk = record.chunks[index]
        if chunk.send != "request" or index in record.requested:
            raise Broken("collect", f"the message of task {task} is asked for, and it is sent by itself or asked twice")
        if not set(chunk.partitions[: record.progress[index]]).issuperset(command.partitions):
            raise Broken("collect", f"worker {worker} is asked for partitions that it has not finished")
        for message in command.messages:
            self._arrived(message, f"added to the message of task {task}")
        record.requested.add(index)
        record.chunks[index] = chunk._replace(partitions=command.partitions, coefficients=command.coefficients)
        self.inside[task, index] = list(zip(command.messages, command.weights, strict=True))

    def _combine(self, command: Combine) -> None:
        slot = self._check_slot(command.slot)
        if not command.messages:
            raise Broken("combine", "a step without messages")
        numbers = [
            *np.ravel(command.weights),
            command.scale,
            command.residual or 0.0,
            command.gain,
            command.compensation,
        ]
        if not np.isfinite(numbers).all():
            raise Broken("combine", f"a step with numbers that are not finite: {command}")
        used = self._use(command.messages, command.weights, _keep_list(command))
        for (task, index), _ in used:
            chunk = self.tasks[task].chunks[index]
            if chunk.steps or chunk.slot != slot:
                raise Broken("combine", f"a step of '{slot}' uses task {task}, which is not a gradient of it")
        self._check_sum(command, used)
        self.versions[slot] += 1

    def _check_sum(self, command: Combine, used: list[tuple[Place, Any]]) -> None:
        """Raise :class:`Broken` unless coefficients and weights give the residual that the step claims."""
        stated = command.residual
        if stated is None and not self.exact:
            return
        b, m = self.blocks, self.partitions
        total = np.zeros((b, m * b))
        counted = 0
        for (task, index), weight in used:
            chunk = self.tasks[task].chunks[index]
            columns = [j * b + u for j in chunk.partitions for u in range(b)]
            for u, a in enumerate(np.atleast_1d(weight)):
                np.add.at(total[u], columns, a * np.asarray(chunk.coefficients))
            counted += sum(self.shares[j] for j in chunk.partitions)
        if command.divisor == "counted":
            total *= sum(self.shares) / counted
        residual = float(np.linalg.norm(total - np.tile(np.eye(b), (1, m)))) / math.sqrt(m * b)
        if stated is not None and abs(residual - stated) > 1e-6 * max(1.0, command.gain):
            raise Broken("residual", f"a step claims a residual of {stated:.6g}, and it is {residual:.6g}")
        if self.exact and residual > 1e-6 * max(1.0, command.gain):
            raise Broken("residual", f"a step has a residual of {residual:.6g}; 'wait' allows no approximation")

    def _mix(self, command: Mix) -> None:
        slot = self._check_slot(command.slot)
        for message, _ in self._use(command.messages, command.weights, _keep_list(command)):
            if not self.tasks[message[0]].chunks[message[1]].steps:
                raise Broken("mix", f"task {message[0]} is a gradient, and models are averaged")
        moved = [] if command.relative else list(command.weights)
        _check_total(f"'{slot}' is averaged", [*moved, command.share, *(weight for _, weight in command.others)])
        for other, _ in command.others:
            self._check_slot(other)
        self.versions[slot] += 1

    def _use(self, messages: Sequence[Place], weights: Sequence[Any], keep: Sequence[Place]) -> list[tuple[Place, Any]]:
        """Mark messages, and those added to them, as used or kept; return all with their weights in the sum."""
        used: list[tuple[Place, Any]] = list(zip(messages, weights, strict=True))
        for message, weight in used:  # the list grows during the loop
            self._arrived(message, "used")
            stays = message in keep or self.status(message) == "kept"
            self.tasks[message[0]].status[message[1]] = "kept" if stays else "used"
            used.extend((other, weight * share) for other, share in self.inside.pop(message, ()))
        return used

    def _arrived(self, message: Place, what: str) -> Place:
        """Return a message that has arrived and is unused, or raise :class:`Broken`; ``what``: its use."""
        task, index = message
        record = self.tasks.get(task)
        status = "never dispatched" if record is None else record.status[index]
        if status not in ("arrived", "kept"):
            lateness = {
                "open": "before it came",
                "used": "though it was used before",
                "cancelled": "after its cancellation",
            }
            reason = lateness.get(status, f"though it was {status}")
            raise Broken("message", f"the message of task {task}, chunk {index}, is {what} {reason}")
        return message

    def _check_slot(self, slot: str) -> str:
        if slot not in self.versions:
            raise Broken("slot", f"'{slot}' is not one of {self.slots}")
        return slot

    def _alarm(self, command: SetAlarm) -> None:
        if command.time is not None and not math.isfinite(command.time):
            raise Broken("alarm", f"an alarm is set for {command.time}")
        self.alarms.set(command)

    def _stop(self, command: Stop) -> None:
        self.stopped = command
        if command.failed and not self.gone and not self.failures:
            raise Broken("stop", f"it stopped though no worker was given up and nothing failed: {command.reason}")

    def _evaluate_loss(self, command: EvaluateLoss) -> None:
        if not self.layout.losses:
            raise Broken("layout", "it asks for the loss, and losses is not set in its layout")
        self.loss *= float(self.noise.uniform(0.5, 1.1))
        slot = self._check_slot(command.slot)
        self.questions.append(LossEvaluated(self.now, slot, self.versions[slot], self.loss, 1.0))

    def _measure_drift(self, command: MeasureDrift) -> None:
        self._arrived((command.task, command.chunk), "compared")
        value = float(self.noise.choice([0.0, self.noise.exponential()]))
        self.questions.append(DriftMeasured(self.now, command.worker, command.task, command.chunk, value))

    def _measure_noise(self, command: MeasureNoise) -> None:
        for message in command.messages:
            self._arrived(message, "compared")
        mean = float(self.noise.exponential())
        factor = float(self.noise.uniform(1.0, 3.0))
        self.questions.append(NoiseMeasured(self.now, len(command.messages), mean * factor, mean))

    def update_states(self, record: TaskRecord, task: int, index: int, *, certain: bool) -> None:
        """Update the optimiser states that a worker certainly has, after a chunk that leaves one."""
        chunk = record.chunks[index]
        if chunk.steps or chunk.compress:
            states = {task, chunk.state}
            self.states[record.worker] = states if certain else self.states[record.worker] & states

    def status(self, chunk: Place) -> str:
        """Return the status of a chunk."""
        return self.tasks[chunk[0]].status[chunk[1]]


def _keep_list(command: Combine | Mix) -> Sequence[Place]:
    if not set(command.messages).issuperset(command.keep):
        raise Broken("keep", f"a step keeps messages that it does not use: {command.keep}")
    return command.keep


def _check_state(world: World, worker: int, task: int, chunk: Chunk) -> None:
    """Raise :class:`Broken` if a chunk continues a state that its worker may lack."""
    before = world.tasks.get(chunk.state)
    if not world.layout.stateful:
        raise Broken("layout", f"task {task} continues a state; the layout states that none does")
    if before is None or before.worker != worker:
        raise Broken("state", f"task {task} continues from the state of task {chunk.state}, another worker's")
    if before.life == world.lives[worker] and chunk.state not in world.states[worker]:
        raise Broken("state", f"task {task} continues from the state of task {chunk.state}, which may be gone")


def _check_total(what: str, weights: Iterable[float]) -> None:
    total = math.fsum(weights)
    if not abs(total - 1.0) <= 1e-9:
        raise Broken("mix", f"{what} with weights that add up to {total:.9g}, not 1")


_CARRY_OUT: dict[type[Any], Callable[[World, Any], None]] = {
    Dispatch: World._dispatch,
    Cancel: World._cancel,
    RequestMessage: World._collect,
    Combine: World._combine,
    Mix: World._mix,
    SetAlarm: World._alarm,
    ProjectMessage: lambda world, message: world.measures.append(
        world._arrived((message.task, message.chunk), "measured")
    ),
    EvaluateLoss: World._evaluate_loss,
    MeasureDrift: World._measure_drift,
    MeasureNoise: World._measure_noise,
    Note: lambda world, note: None,
    Stop: World._stop,
}
