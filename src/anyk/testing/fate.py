"""The events of a hostile schedule: work that is done, fails or comes late, workers that go and come back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from anyk import keyed
from anyk.protocol import (
    Alarm,
    Event,
    Failed,
    Joined,
    Lost,
    MessageProjected,
    Progress,
    Reply,
)
from anyk.testing.world import Place, World

_REASONS = ("not finite: 3 of 5 numbers", "wrong length: 4 numbers for 5", "ValueError: a problem's own")
_BACK = 8  # how many of a worker's last events may be repeated


class Action(NamedTuple):
    """An action of a schedule: something that happens, to ``worker`` if it concerns a worker, after ``wait`` seconds.

    ``pick`` chooses among whatever there is to choose from. ``save``: the twin is saved and restored right after it.
    An action that is not possible when its turn comes is left out, so that any part of a schedule is a schedule.
    """

    kind: str
    worker: int
    pick: int
    wait: float
    save: bool


class Fate:
    """Lets actions happen in a world: each becomes the event that a strategy receives."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.history: dict[int, list[Event]] = {worker: [] for worker in range(world.workers)}
        self._projections: dict[tuple[Any, ...], Any] = {}

    def event(self, action: Action) -> Event | None:
        """Let an action happen; None where it cannot."""
        worker, at = self._able(action.kind, action.worker), self.world.now + action.wait
        act = _ACTIONS.get(action.kind)
        event = self._come_or_go(action.kind, worker, at) if act is None else act(self, worker, action.pick, at)
        if event is not None:
            self.world.now = event.time
            if isinstance(event, (Reply, Failed, Progress, MessageProjected)):
                self.history[event.worker].append(event)
        return event

    def _able(self, kind: str, worker: int) -> int:
        """The worker that an action is about, or the next to whom it can happen."""
        able: dict[str, Callable[[int], Sequence[Any]]] = {
            "work": self.open,
            "fail": self.open,
            "repeat": self.history.__getitem__,
            "late": self.world.silent.__getitem__,
        }
        if kind in able:
            for other in range(worker, worker + self.world.workers):
                if able[kind](other % self.world.workers):
                    return other % self.world.workers
        return worker

    def open(self, worker: int) -> list[Place]:
        """Return the chunks that a worker may continue."""
        task = self.world.task_of.get(worker)
        if task is None:
            return []
        given = self.world.tasks[task]
        return [
            (task, index)
            for index in given.open()
            if not given.waits(index) or given.progress[index] < len(given.chunks[index].partitions)
        ]

    def _pick(self, worker: int, pick: int) -> Place:
        places = self.open(worker)
        return places[pick % len(places)] if places else (-1, 0)

    def _work(self, worker: int, pick: int, at: float) -> Event | None:
        task, index = self._pick(worker, pick)
        given = self.world.tasks.get(task)
        if given is None:
            return None
        if given.waits(index):
            given.progress[index] += 1
            return Progress(at, worker, task, index, given.progress[index])
        given.status[index] = "arrived"
        self.world.keeps(given, task, index, certain=True)
        return Reply(at, worker, task, index)

    def _fail(self, worker: int, pick: int, at: float) -> Event | None:
        task, index = self._pick(worker, pick)
        given = self.world.tasks.get(task)
        if given is None:
            return None
        given.status[index] = "failed"
        self.world.failures += 1
        self.world.keeps(given, task, index, certain=False)
        return Failed(at, worker, task, index, _REASONS[pick % len(_REASONS)])

    def _restart(self, worker: int, pick: int, at: float) -> Event | None:
        """Begin a chunk again, as the worker of a resumed run does."""
        task, index = self._pick(worker, pick)
        given = self.world.tasks.get(task)
        if given is None:
            return None
        if not given.waits(index) or not given.progress[index]:
            return None
        given.progress[index] = 1
        return Progress(at, worker, task, index, 1)

    def _belated(self, worker: int, pick: int, at: float) -> Event | None:
        """Let something arrive of a chunk that was cancelled, or whose worker has died."""
        past = self.world.silent[worker][-_BACK:]
        if not past:
            return None
        task, index = past[pick % len(past)]
        if pick % 4 == 0:
            return Failed(at, worker, task, index, _REASONS[pick // 4 % len(_REASONS)])
        if self.world.tasks[task].waits(index):
            return Progress(at, worker, task, index, 1)
        return Reply(at, worker, task, index)

    def _again(self, worker: int, pick: int, at: float) -> Event | None:
        """Repeat an event."""
        past = self.history[worker][-_BACK:]
        event = past[pick % len(past)]._replace(time=at) if past else None
        if isinstance(event, Progress):  # a worker's messages come in order: less than before means that it began anew
            given = self.world.tasks[event.task]
            if given.status[event.chunk] == "open" and event.done != given.progress[event.chunk]:
                return None
        return event

    def _alarm(self, worker: int, pick: int, at: float) -> Event | None:
        del worker, pick
        alarms = self.world.alarms
        name = min(alarms, key=lambda name: (alarms[name], name), default=None)
        return None if name is None else Alarm(max(at, alarms.pop(name)), name)

    def _measured(self, worker: int, pick: int, at: float) -> Event | None:
        """Project a message: combine the projections of its partial gradients."""
        del worker, pick
        if not self.world.measures:
            return None
        task, index = self.world.measures.popleft()
        given = self.world.tasks[task]
        chunk = given.chunks[index]
        key = given.versions[chunk.slot], chunk.batch, chunk.repeat
        if key not in self._projections:
            self._projections[key] = keyed.generator(self.world.seed, "projections", *key).standard_normal(
                self.world.partitions
            )
        value = float(np.asarray(chunk.coefficients) @ self._projections[key][list(chunk.partitions)])
        return MessageProjected(at, given.worker, task, index, value)

    def _come_or_go(self, kind: str, worker: int, at: float) -> Event | None:
        world = self.world
        here = worker in world.present
        if kind in ("join", "return", "join again"):
            if (kind == "join again") != here or (kind == "return") != (worker in world.gone):
                return None
            world.present.add(worker)
            world.gone.discard(worker)
            return Joined(at, worker)
        if (kind == "lose again") == here:
            return None
        if here:
            world.present.discard(worker)
            world.lives[worker] += 1
            task = world.task_of.get(worker, -1)
            for index in world.tasks[task].open() if task in world.tasks else ():
                world.tasks[task].status[index] = "lost"
                world.silent[worker].append((task, index))
        if kind == "give up":
            world.gone.add(worker)
        return Lost(at, worker, "a hostile schedule", gone=worker in world.gone)

    @property
    def stuck(self) -> bool:
        """Whether nothing can happen any more, unless a worker comes back."""
        return not (self.world.alarms or self.world.measures or any(self.open(worker) for worker in self.world.present))


_ACTIONS: dict[str, Callable[[Fate, int, int, float], Event | None]] = {
    "work": Fate._work,
    "fail": Fate._fail,
    "restart": Fate._restart,
    "repeat": Fate._again,
    "late": Fate._belated,
    "alarm": Fate._alarm,
    "measured": Fate._measured,
}
