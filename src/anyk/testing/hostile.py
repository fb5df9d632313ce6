"""Hostile schedules: a strategy is told whatever can happen, in any order, beside a twin that is saved and restored.

A schedule is a list of actions that are drawn from a seed: messages that arrive in any order, chunks that fail, workers
that die, are given up and come back, and events that come late or twice. The strategy and its twin are told the same,
and must answer with the same commands, though the twin is saved as JSON and restored into a fresh strategy now and
then. Each command is checked against what a driver and a cluster would know. In the end every worker that may come back
does, everything goes well for a while, and the strategy must take steps and finish with whatever it had begun.

A schedule that fails is cut down to a short one that fails in the same way.
"""

from __future__ import annotations

import copy
import json
import math
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from anyk import keyed
from anyk.errors import RunFailed
from anyk.protocol import (
    Alarm,
    Cancel,
    Chunk,
    Combine,
    Command,
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
    MessageProjected,
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
    Task,
)

Place = tuple[int, int]  # task and chunk of a message

_REASONS = ("not finite: 3 of 5 numbers", "wrong length: 4 numbers for 5", "ValueError: a problem's own")
_BACK = 8  # how many of a worker's last events may be repeated
_PATIENCE = 2000  # events that all go well, within which a strategy must step and end what it began
_ENOUGH = 2  # steps to take in that time
_SHRINKING = 50_000  # events that may be spent on finding a shorter schedule


class Broken(AssertionError):
    """A strategy has broken a rule; ``kind`` names the rule, or the exception that it raised."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


class Action(NamedTuple):
    """One thing that happens: to ``worker``, where it concerns one, after ``wait`` seconds.

    ``pick`` chooses among whatever there is to choose from. ``save``: the twin is saved and restored right after it.
    An action that is not possible when its turn comes is left out, so that any part of a schedule is a schedule.
    """

    kind: str
    worker: int
    pick: int
    wait: float
    save: bool


@dataclass(slots=True)
class _Given:
    """A task that was dispatched, with the status of its chunks: open, arrived, used, cancelled, failed or lost."""

    worker: int
    chunks: list[Chunk]
    status: list[str]
    progress: list[int]
    versions: dict[str, int]
    life: int  # how often its worker had died before
    asked: set[int] = field(default_factory=set)

    def open(self) -> list[int]:
        """The chunks that may still give a message."""
        return [index for index, status in enumerate(self.status) if status == "open"]


class _World:
    """What a driver and a cluster would know; it checks commands and makes events."""

    def __init__(self, strategy: Strategy, fleet: Fleet, seed: int) -> None:
        layout = strategy.layout
        self.workers, self.partitions, self.slots = layout.workers, layout.partitions, layout.slots
        self.assignment = [frozenset(held) for held in layout.assignment]
        self.blocks, self.trained = layout.blocks, layout.trained
        self.shares: Sequence[int] = layout.shares or (1,) * self.partitions
        self.exact = strategy.exact
        self.seed = seed
        self.now = fleet.time
        self.present, self.gone = set(fleet.present), set[int]()
        self.versions = dict.fromkeys(layout.slots, 0)
        self.tasks: dict[int, _Given] = {}
        self.task_of: dict[int, int] = {}  # the newest task of each worker
        self.next = 0
        self.alarms: dict[str, float] = {}
        self.measures: deque[Place] = deque()
        self.questions: deque[Event] = deque()  # answers that the driver gives at once
        self.asked = 0
        self.stopped: Stop | None = None
        self.failures = 0
        self.inside: dict[Place, list[tuple[Place, float]]] = {}  # messages that were added to another
        self.history: dict[int, list[Event]] = {worker: [] for worker in range(self.workers)}
        self.silent: dict[int, list[Place]] = {worker: [] for worker in range(self.workers)}  # ended without a message
        self.lives = [0] * self.workers
        self.states: list[set[int]] = [set() for _ in range(self.workers)]  # tasks whose optimiser states workers have
        self._projections: dict[tuple[Any, ...], Any] = {}
        # what this schedule's losses are like
        self.noise = keyed.generator(seed, "hostile answers")
        self.loss = math.nan if self.noise.random() < 0.2 else 10.0

    @property
    def step(self) -> int:
        """Versions of the model that has the fewest."""
        return min(self.versions[slot] for slot in self.trained)

    # ------------------------------------------------------------------------------------------- commands

    def obey(self, commands: Sequence[Command]) -> None:
        """Carry out commands; raises :class:`Broken` at the first that breaks a rule."""
        for command in commands:
            if isinstance(command, Dispatch):
                self._dispatch(command)
            elif isinstance(command, Cancel):
                self._cancel(command)
            elif isinstance(command, RequestMessage):
                self._collect(command)
            elif isinstance(command, Combine):
                self._combine(command)
            elif isinstance(command, Mix):
                self._mix(command)
            elif isinstance(command, SetAlarm):
                self._alarm(command)
            elif isinstance(command, ProjectMessage):
                self._arrived((command.task, command.chunk), "measured")
                self.measures.append((command.task, command.chunk))
            elif isinstance(command, Stop):
                self._stop(command)
                return
            elif isinstance(command, (EvaluateLoss, MeasureDrift, MeasureNoise)):
                self._ask(command)
            elif not isinstance(command, Note):
                raise Broken("command", f"{command!r} is not a command")

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
            self.tasks[task] = _Given(
                worker, list(work), ["open"] * len(work), [0] * len(work), dict(self.versions), self.lives[worker]
            )

    def _check_task(self, worker: int, task: int, work: Task) -> None:
        if not work:
            raise Broken("dispatch", f"task {task} has no chunks")
        for chunk in work:
            if chunk.slot not in self.versions:
                raise Broken("dispatch", f"task {task} is about '{chunk.slot}', which is not one of {self.slots}")
            if not self.assignment[worker].issuperset(chunk.partitions):
                raise Broken("dispatch", f"task {task} asks worker {worker} for partitions that it does not hold")
            if len(chunk.coefficients) != len(chunk.partitions) * self.blocks:
                raise Broken("dispatch", f"task {task} has {len(chunk.coefficients)} coefficients")
            for _, other, index, _ in chunk.mix:
                self._arrived((other, index), f"read by task {task}")
            if chunk.mix:
                self._whole(f"task {task} begins at", [*(weight for *_, weight in chunk.mix), chunk.share])
            before = self.tasks.get(chunk.state)
            if chunk.state != -1 and (before is None or before.worker != worker):
                raise Broken("state", f"task {task} goes on from the state of task {chunk.state}, another worker's")
            if before is not None and before.life == self.lives[worker] and chunk.state not in self.states[worker]:
                raise Broken("state", f"task {task} goes on from the state of task {chunk.state}, which may be gone")

    def _cancel(self, command: Cancel) -> None:
        for task in command.tasks:
            given = self.tasks.get(task)
            if given is None:
                raise Broken("cancel", f"task {task} was cancelled and never dispatched")
            for index, status in enumerate(given.status):
                if status == "open":
                    self.silent[given.worker].append((task, index))
                    self._keeps(given, task, index, certain=False)
                if status in ("open", "arrived"):
                    given.status[index] = "cancelled"

    def _collect(self, command: RequestMessage) -> None:
        worker, task, index = command.worker, command.task, command.chunk
        given = self.tasks.get(task)
        if given is None or given.worker != worker or given.status[index] != "open":
            raise Broken("collect", f"a message of task {task} is asked for, which worker {worker} is not busy with")
        chunk = given.chunks[index]
        if chunk.send != "request" or index in given.asked:
            raise Broken("collect", f"the message of task {task} is asked for, and it is sent by itself or asked twice")
        if not set(chunk.partitions[: given.progress[index]]).issuperset(command.partitions):
            raise Broken("collect", f"worker {worker} is asked for partitions that it has not finished")
        for place in command.messages:
            self._arrived(place, f"added to the message of task {task}")
        given.asked.add(index)
        given.chunks[index] = chunk._replace(partitions=command.partitions, coefficients=command.coefficients)
        self.inside[task, index] = list(zip(command.messages, command.weights, strict=True))

    def _combine(self, command: Combine) -> None:
        slot = self._known(command.slot)
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
        used = self._use(command.messages, command.weights)
        for (task, index), _ in used:
            chunk = self.tasks[task].chunks[index]
            if chunk.steps or chunk.slot != slot:
                raise Broken("combine", f"a step of '{slot}' uses task {task}, which is not a gradient of it")
        self._check_sum(command, used)
        self.versions[slot] += 1

    def _check_sum(self, command: Combine, used: list[tuple[Place, Any]]) -> None:
        """The coefficients dispatched and the weights give the residual that the step claims."""
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
        slot = self._known(command.slot)
        for place, _ in self._use(command.messages, command.weights):
            if not self.tasks[place[0]].chunks[place[1]].steps:
                raise Broken("mix", f"task {place[0]} is a gradient, and models are averaged")
        moved = [] if command.relative else list(command.weights)
        self._whole(f"'{slot}' is averaged", [*moved, command.share, *(weight for _, weight in command.others)])
        for other, _ in command.others:
            self._known(other)
        self.versions[slot] += 1

    def _use(self, messages: Sequence[Place], weights: Sequence[Any]) -> list[tuple[Place, Any]]:
        """Mark messages as used, with those inside them; returns all, each with the weight it comes to."""
        used: list[tuple[Place, Any]] = list(zip(messages, weights, strict=True))
        for place, weight in used:  # grows while it is walked through
            self._arrived(place, "used")
            self.tasks[place[0]].status[place[1]] = "used"
            used.extend((other, weight * share) for other, share in self.inside.pop(place, ()))
        return used

    def _arrived(self, place: Place, what: str) -> None:
        task, index = place
        given = self.tasks.get(task)
        status = "never dispatched" if given is None else given.status[index]
        if status != "arrived":
            why = {"open": "before it came", "used": "though it was used before", "cancelled": "after its cancellation"}
            said = why.get(status, f"though it was {status}")
            raise Broken("message", f"the message of task {task}, chunk {index}, is {what} {said}")

    def _known(self, slot: str) -> str:
        if slot not in self.versions:
            raise Broken("slot", f"'{slot}' is not one of {self.slots}")
        return slot

    @staticmethod
    def _whole(what: str, weights: Iterable[float]) -> None:
        total = math.fsum(weights)
        if not abs(total - 1.0) <= 1e-9:
            raise Broken("mix", f"{what} with weights that add up to {total:.9g}, not 1")

    def _alarm(self, command: SetAlarm) -> None:
        if command.time is None:
            self.alarms.pop(command.name, None)
        elif math.isfinite(command.time):
            self.alarms[command.name] = command.time
        else:
            raise Broken("alarm", f"an alarm is set for {command.time}")

    def _stop(self, command: Stop) -> None:
        self.stopped = command
        if command.failed and not self.gone and not self.failures:
            raise Broken("stop", f"it stopped though no worker was given up and nothing failed: {command.reason}")

    def _ask(self, command: EvaluateLoss | MeasureDrift | MeasureNoise) -> None:
        """Answer what the driver answers itself, right after the commands."""
        random = self.noise
        self.asked += 1
        if isinstance(command, EvaluateLoss):
            self.loss *= float(random.uniform(0.5, 1.1))
            slot = self._known(command.slot)
            self.questions.append(LossEvaluated(self.now, slot, self.versions[slot], self.loss, 1.0))
        elif isinstance(command, MeasureDrift):
            self._arrived((command.task, command.chunk), "compared")
            value = float(random.choice([0.0, random.exponential()]))
            self.questions.append(DriftMeasured(self.now, command.worker, command.task, command.chunk, value))
        else:
            for place in command.messages:
                self._arrived(place, "compared")
            mean = float(random.exponential())
            self.questions.append(
                NoiseMeasured(self.now, len(command.messages), mean * float(random.uniform(1.0, 3.0)), mean)
            )

    # ------------------------------------------------------------------------------------------- events

    def event(self, action: Action) -> Event | None:
        """Let an action happen; None where it cannot."""
        kind, pick, at = action.kind, action.pick, self.now + action.wait
        worker = self._able(kind, action.worker)
        event: Event | None = None
        if kind in ("work", "fail", "restart"):
            event = self._worked(kind, worker, pick, at)
        elif kind == "repeat":
            event = self._again(worker, pick, at)
        elif kind == "late":
            event = self._belated(worker, pick, at)
        elif kind == "alarm":
            name = min(self.alarms, key=lambda name: (self.alarms[name], name), default=None)
            event = None if name is None else Alarm(max(at, self.alarms.pop(name)), name)
        elif kind == "measured":
            event = self._measured(at)
        else:
            event = self._came_or_went(kind, worker, at)
        if event is not None:
            self.now = event.time
            if isinstance(event, (Reply, Failed, Progress, MessageProjected)):
                self.history[event.worker].append(event)
        return event

    def _able(self, kind: str, worker: int) -> int:
        """The worker that an action is about, or the next to whom it can happen."""
        able: dict[str, Callable[[int], Sequence[Any]]] = {
            "work": self.open,
            "fail": self.open,
            "repeat": self.history.__getitem__,
            "late": self.silent.__getitem__,
        }
        if kind in able:
            for other in range(worker, worker + self.workers):
                if able[kind](other % self.workers):
                    return other % self.workers
        return worker

    def open(self, worker: int) -> list[Place]:
        """What a worker may do next."""
        task = self.task_of.get(worker)
        return (
            [] if task is None else [(task, index) for index in self.tasks[task].open() if self._can_go_on(task, index)]
        )

    def _can_go_on(self, task: int, index: int) -> bool:
        given = self.tasks[task]
        chunk = given.chunks[index]
        return chunk.send == "done" or index in given.asked or given.progress[index] < len(chunk.partitions)

    def _worked(self, kind: str, worker: int, pick: int, at: float) -> Event | None:
        places = self.open(worker)
        if not places:
            return None
        task, index = places[pick % len(places)]
        given = self.tasks[task]
        waits = given.chunks[index].send == "request" and index not in given.asked
        if kind == "fail":
            given.status[index] = "failed"
            self.failures += 1
            self._keeps(given, task, index, certain=False)
            return Failed(at, worker, task, index, _REASONS[pick % len(_REASONS)])
        if kind == "restart":  # as the worker of a resumed run
            if not waits or not given.progress[index]:
                return None
            given.progress[index] = 0
        if waits:
            given.progress[index] += 1
            return Progress(at, worker, task, index, given.progress[index])
        given.status[index] = "arrived"
        self._keeps(given, task, index, certain=True)
        return Reply(at, worker, task, index)

    def _keeps(self, given: _Given, task: int, index: int, *, certain: bool) -> None:
        """Which optimiser states a worker has for certain, after a chunk that leaves one."""
        chunk = given.chunks[index]
        if chunk.steps or chunk.compress:
            left = {task, chunk.state}
            self.states[given.worker] = left if certain else self.states[given.worker] & left

    def _belated(self, worker: int, pick: int, at: float) -> Event | None:
        """Of a chunk that was cancelled, or whose worker has died, something comes all the same."""
        past = self.silent[worker][-_BACK:]
        if not past:
            return None
        task, index = past[pick % len(past)]
        if pick % 4 == 0:
            return Failed(at, worker, task, index, _REASONS[pick // 4 % len(_REASONS)])
        if self.tasks[task].chunks[index].send == "request" and index not in self.tasks[task].asked:
            return Progress(at, worker, task, index, 1)
        return Reply(at, worker, task, index)

    def _again(self, worker: int, pick: int, at: float) -> Event | None:
        """Something that has come before."""
        past = self.history[worker][-_BACK:]
        event = past[pick % len(past)]._replace(time=at) if past else None
        if isinstance(event, Progress):  # a worker's messages come in order: less than before means that it began anew
            given = self.tasks[event.task]
            if given.status[event.chunk] == "open" and event.done != given.progress[event.chunk]:
                return None
        return event

    def _measured(self, at: float) -> Event | None:
        """The projection of a message: the same combination of the partial gradients' projections."""
        if not self.measures:
            return None
        task, index = self.measures.popleft()
        given = self.tasks[task]
        chunk = given.chunks[index]
        key = given.versions[chunk.slot], chunk.batch, chunk.repeat
        if key not in self._projections:
            self._projections[key] = keyed.generator(self.seed, "projections", *key).standard_normal(self.partitions)
        value = float(np.asarray(chunk.coefficients) @ self._projections[key][list(chunk.partitions)])
        return MessageProjected(at, given.worker, task, index, value)

    def _came_or_went(self, kind: str, worker: int, at: float) -> Event | None:
        here = worker in self.present
        if kind in ("join", "return", "join again"):
            if (kind == "join again") != here or (kind == "return") != (worker in self.gone):
                return None
            self.present.add(worker)
            self.gone.discard(worker)
            return Joined(at, worker)
        if (kind == "lose again") == here:
            return None
        if here:
            self.present.discard(worker)
            self.lives[worker] += 1
            task = self.task_of.get(worker)
            if task is not None:
                for index in self.tasks[task].open():
                    self.tasks[task].status[index] = "lost"
                    self.silent[worker].append((task, index))
        if kind == "give up":
            self.gone.add(worker)
        return Lost(at, worker, "a hostile schedule", gone=worker in self.gone)

    # ------------------------------------------------------------------------------------------- what is left

    @property
    def stuck(self) -> bool:
        """Whether nothing can happen any more, unless a worker comes back."""
        return not (self.alarms or self.measures or any(self.open(worker) for worker in self.present))

    def status(self, place: Place) -> str:
        """What has become of a chunk."""
        return self.tasks[place[0]].status[place[1]]

    def held(self) -> list[Place]:
        """Chunks that have not ended."""
        places = [(task, index) for task, given in self.tasks.items() for index in range(len(given.status))]
        return [place for place in places if self.status(place) in ("open", "arrived")]


def _saved(running: Running) -> str:
    """A strategy's state as JSON."""
    try:
        return json.dumps(running.save())
    except (TypeError, ValueError) as error:
        raise Broken("state", f"its state is not plain data that JSON can hold: {error}") from error


class _Play:
    """One schedule being played to a strategy and its twin."""

    def __init__(self, strategy: Strategy, seed: int) -> None:
        self.pristine, self.seed = strategy, seed
        self.random = keyed.generator(seed, "hostile", strategy.spec, strategy.layout.workers)
        self.fleet = self._fleet()
        self.world = _World(strategy, self.fleet, seed)
        self.subject, self.twin = Running(copy.deepcopy(strategy)), Running(copy.deepcopy(strategy))
        self.told_of: list[Any] = []  # events, and what was said to them
        self.done: list[Action] = []  # the actions that happened
        self.told = 0  # events
        self.ended = False  # whether all actions are over

    def _fleet(self) -> Fleet:
        workers = self.pristine.layout.workers
        present = tuple(range(workers))
        if self.random.random() < 0.3:
            present = tuple(worker for worker in present if self.random.random() < 0.6)
        return Fleet(workers, present, *((12.5, 7) if self.random.random() < 0.2 else (0.0, 0)))

    # ------------------------------------------------------------------------------------------- the two of them

    def _start(self) -> None:
        self._both(self.fleet, lambda running: running.start(self.fleet), save=False)

    def _tell(self, event: Event, *, save: bool = False) -> None:
        self._both(event, lambda running: running.on(event), save=save)

    def _both(self, what: Fleet | Event, react: Callable[[Running], Sequence[Command]], *, save: bool) -> None:
        """Tell both, compare and carry out what they say, and answer what they ask."""
        self.told += 1
        self.told_of.append(what)
        commands, others = list(react(self.subject)), list(react(self.twin))
        self.told_of.append(commands)
        if commands != others and repr(commands) != repr(others):
            raise Broken("restored", f"saved and restored it decides otherwise: {_shown(others)}")
        self.world.obey(commands)
        if save:
            self._restore()
        while self.world.questions and self.world.stopped is None:
            self._tell(self.world.questions.popleft())

    def _restore(self) -> None:
        self.told_of.append(["saved and restored"])
        state = json.loads(_saved(self.twin))
        self.twin = Running(copy.deepcopy(self.pristine))
        self.twin.restore(state)

    # ------------------------------------------------------------------------------------------- playing

    def play(self, actions: Iterable[Action], *, whole: bool) -> None:
        """Play a schedule, and if the ``whole`` is asked for let all go well in the end."""
        self._start()
        for action in actions:
            if self.world.stopped is not None:
                break
            event = self.world.event(action)
            if event is not None:
                self.done.append(action)
                self._tell(event, save=action.save)
                self._alive()
        if whole:
            self.ended = True
            if self.world.stopped is None:
                self._quiet()
            self._again()

    def _alive(self) -> None:
        world = self.world
        if world.stopped is None and world.stuck and len(world.present | world.gone) == world.workers:
            raise Broken("deadlock", f"deadlock at step {world.step}: every worker is idle, and no alarm is set")

    def _quiet(self) -> None:
        """Everybody who may comes back, and all goes well: steps are taken, and all that was begun ends."""
        world = self.world
        self.told_of.append("from here on all goes well")
        for worker in sorted(set(range(world.workers)) - world.present - world.gone):
            self._act("join", worker)
        begun, aim = world.held(), world.step + _ENOUGH
        self._alive()
        for _ in range(_PATIENCE):
            begun = [place for place in begun if world.status(place) in ("open", "arrived")]
            if world.stopped is not None or (world.step >= aim and not begun):
                return
            busy = min((place for worker in world.present for place in world.open(worker)), default=None)
            if world.measures:
                self._act("measured", 0)
            elif busy is not None:
                self._act("work", world.tasks[busy[0]].worker)
            elif world.alarms:
                self._act("alarm", 0)
            self._alive()
        if world.step < aim:
            raise Broken("starved", f"it took fewer than {_ENOUGH} steps in {_PATIENCE} events in which all went well")
        task, chunk = begun[0]
        why = f"task {task}, chunk {chunk}, which is {world.status(begun[0])}, is neither used nor cancelled"
        raise Broken("forgotten", why)

    def _act(self, kind: str, worker: int) -> None:
        if self.world.stopped is None:
            event = self.world.event(Action(kind, worker, 0, 0.01, False))
            if event is not None:
                self._tell(event)

    def _again(self) -> None:
        """A strategy that has been used begins as a fresh one does."""
        self.told_of.append("it is used again: start")
        fresh = Running(copy.deepcopy(self.pristine))
        fleet = Fleet(self.pristine.layout.workers, tuple(range(self.pristine.layout.workers)))
        first, second = list(fresh.start(fleet)), list(self.subject.start(fleet))
        if first != second or _saved(fresh) != _saved(self.subject):
            raise Broken("used", "used before, it does not start as a fresh one does")

    # ------------------------------------------------------------------------------------------- drawing

    def drawn(self, events: int) -> Iterable[Action]:
        """A schedule of so many events, each drawn when those before it have happened."""
        random, world = self.random, self.world
        mood = {
            "work": 12.0,
            "alarm": 2.0,
            "measured": 12.0,
            "join": float(random.choice([0.3, 1.0, 4.0])),
            "fail": float(random.choice([0.0, 0.2, 0.2, 1.0])),
            "lose": float(random.choice([0.0, 0.3, 1.0])),
            "give up": float(random.choice([0.0, 0.0, 0.2])),
            "return": float(random.choice([0.0, 0.5])),
            "restart": float(random.choice([0.0, 0.5])),
            "repeat": float(random.choice([0.0, 0.5, 2.0])),
            "late": float(random.choice([0.0, 0.5, 2.0])),
            "lose again": float(random.choice([0.0, 0.3])),
            "join again": float(random.choice([0.0, 0.5])),
        }
        slow = random.random(world.workers) ** 2 if random.random() < 0.3 else np.ones(world.workers)
        kinds, weights = list(mood), np.array(list(mood.values()))
        likely = np.cumsum(weights / weights.sum())
        saves = float(random.choice([0.0, 0.05, 0.3]))
        for _ in range(3 * events):
            if len(self.done) >= events or world.stopped is not None:
                return
            kind = kinds[int(np.searchsorted(likely, random.random()))]
            worker = int(random.integers(world.workers))
            if kind == "work" and random.random() > slow[worker]:
                continue
            wait = float(random.choice([0.0, 0.01, 0.3]) * random.exponential())
            yield Action(kind, worker, int(random.integers(1 << 16)), wait, bool(random.random() < saves))


def _shown(value: Any) -> str:
    """An event or a command as text, without fields that are as they usually are."""
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        return f"{value:.4g}"
    usual: dict[str, Any] | None = getattr(value, "_field_defaults", None)
    if usual is not None:
        shown = zip(value._fields, value, strict=True)
        text = ", ".join(f"{name}={_shown(v)}" for name, v in shown if name not in usual or v != usual[name])
        return f"{type(value).__name__}({text})"
    return f"({', '.join(map(_shown, value))})" if isinstance(value, (tuple, list)) else repr(value)


def _schedule(told_of: Sequence[Any]) -> Iterator[str]:
    """A line for each event, and indented for each command."""
    for what in told_of:
        if isinstance(what, list):
            yield from (f"      {_shown(command)}" for command in what)
        else:
            yield f"  {_shown(what)}"


def explained(error: Exception) -> Broken:
    """What went wrong: a rule that was broken, or an exception that a strategy raised, and where it did."""
    if isinstance(error, Broken):
        return error
    if isinstance(error, AssertionError):
        return Broken("assertion", str(error))
    if isinstance(error, RunFailed):
        return Broken("run", f"the run failed: {error}")
    frame = traceback.extract_tb(error.__traceback__)[-1]
    text = (
        f"it raised {type(error).__name__}: {error} ({Path(frame.filename).name}, line {frame.lineno}, in {frame.name})"
    )
    return Broken(type(error).__name__, text)


def _played(
    strategy: Strategy, seed: int, actions: Iterable[Action] | None, *, events: int = 0, whole: bool = True
) -> tuple[_Play, Broken | None]:
    """Play a schedule, or one that is drawn; what it broke, if anything."""
    play = _Play(strategy, seed)
    try:
        play.play(play.drawn(events) if actions is None else actions, whole=whole)
    except Exception as error:  # whatever a strategy of a user's raises
        return play, explained(error)
    return play, None


def _shortest(strategy: Strategy, seed: int, actions: list[Action], kind: str, *, whole: bool) -> list[Action]:
    """Leave out whatever a schedule fails without (delta debugging, Zeller and Hildebrandt 2002)."""
    spent = 0

    def fails(some: list[Action]) -> bool:
        nonlocal spent
        if spent > _SHRINKING:
            return False
        play, broken = _played(strategy, seed, some, whole=whole)
        spent += play.told
        return broken is not None and broken.kind == kind

    before = -1
    while before != len(actions):
        before, size = len(actions), max(1, len(actions) // 2)
        while size:
            at = 0
            while at < len(actions):
                shorter = actions[:at] + actions[at + size :]
                if fails(shorter):
                    actions = shorter
                else:
                    at += size
            size //= 2
    for at, action in enumerate(actions):
        for plainer in (action._replace(worker=0, pick=0, wait=0.0, save=False), action._replace(save=False)):
            if plainer != action and fails([*actions[:at], plainer, *actions[at + 1 :]]):
                actions = [*actions[:at], plainer, *actions[at + 1 :]]
                break
    return actions


def hostile(strategy: Strategy, *, seed: int, events: int = 200) -> None:
    """Play a fresh strategy the hostile schedule of a seed.

    Raises :class:`Broken` with the shortest schedule found that fails in the same way.
    """
    play, broken = _played(strategy, seed, None, events=events)
    if broken is None:
        return
    actions = _shortest(strategy, seed, play.done, broken.kind, whole=play.ended)
    short, again = _played(strategy, seed, actions, whole=play.ended)
    if again is None:
        short, again = play, broken
    lines = "\n".join(_schedule(short.told_of))
    raise Broken(again.kind, f"{again}\nits shortest schedule:\n{lines}") from None
