"""The events of a hostile schedule: work that succeeds, fails or comes late, workers that leave and return."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from anyk.base import keyed_generator
from anyk.protocol import (
    Alarm,
    Event,
    Failed,
    Joined,
    Leaving,
    Lost,
    MessageProjected,
    Progress,
    Reply,
)
from anyk.testing.world import Place, World

_REASONS = ("not finite: 3 of 5 numbers", "wrong length: 4 numbers for 5", "ValueError: a problem's own")
_BACK = 8  # last events of a worker that may be repeated


class Action(NamedTuple):
    """A step of a schedule: an event of some ``kind``, of ``worker`` if it concerns a worker, after ``wait`` seconds.

    ``pick`` chooses among several possible chunks or events. ``save``: the twin is then saved and restored. An action
    that is impossible when its turn comes is skipped, so that any part of a schedule is a schedule.
    """

    kind: str
    worker: int
    pick: int
    wait: float
    save: bool


class Fate:
    """Turns actions into the events that a strategy receives, and changes the world accordingly."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.history: dict[int, list[Event]] = {worker: [] for worker in range(world.workers)}
        self._projections: dict[tuple[Any, ...], Any] = {}

    def event(self, action: Action) -> Event | None:
        """Carry out an action and return its event; None if it is impossible."""
        worker, moment = self._able(action.kind, action.worker), self.world.now + action.wait
        act = _ACTIONS.get(action.kind)
        if action.kind in ("work", "fail", "restart"):
            event = self._advance(action.kind, worker, action.pick, moment)
        else:
            event = (
                self._come_or_go(action.kind, worker, moment) if act is None else act(self, worker, action.pick, moment)
            )
        if event is not None:
            self.world.now = event.time
            if isinstance(event, (Reply, Failed, Progress, MessageProjected)):
                self.history[event.worker].append(event)
        return event

    def _able(self, kind: str, worker: int) -> int:
        """Return the worker of an action or, if it is impossible there, the next for which it is possible."""
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
        record = self.world.tasks[task]
        return [
            (task, index)
            for index in record.open()
            if not record.waits(index) or record.progress[index] < len(record.chunks[index].partitions)
        ]

    def _advance(self, kind: str, worker: int, pick: int, moment: float) -> Event | None:
        """Return an event of an open chunk; a worker of a resumed run starts its chunk again."""
        chunks = self.open(worker)
        if not chunks:
            return None
        task, index = chunks[pick % len(chunks)]
        record = self.world.tasks[task]
        if kind == "fail":
            record.status[index] = "failed"
            self.world.failures += 1
            self.world.update_states(record, task, index, certain=False)
            return Failed(moment, worker, task, index, _REASONS[pick % len(_REASONS)])
        if record.waits(index):
            if kind == "restart" and not record.progress[index]:
                return None
            record.progress[index] = 1 if kind == "restart" else record.progress[index] + 1
            return Progress(moment, worker, task, index, record.progress[index])
        if kind == "restart":
            return None
        record.status[index] = "arrived"
        self.world.update_states(record, task, index, certain=True)
        return Reply(moment, worker, task, index, staleness=self._staleness(task, index))

    def _belated(self, worker: int, pick: int, moment: float) -> Event | None:
        """Return an event of a chunk that was cancelled, or whose worker has died."""
        past = self.world.silent[worker][-_BACK:]
        if not past:
            return None
        task, index = past[pick % len(past)]
        if pick % 4 == 0:
            return Failed(moment, worker, task, index, _REASONS[pick // 4 % len(_REASONS)])
        if self.world.tasks[task].waits(index):
            return Progress(moment, worker, task, index, 1)
        return Reply(moment, worker, task, index, staleness=self._staleness(task, index))

    def _staleness(self, task: int, index: int) -> int:
        """Return the number of versions since the one that a message is of."""
        record = self.world.tasks[task]
        slot = record.chunks[index].slot
        return self.world.versions[slot] - record.versions[slot]

    def _again(self, worker: int, pick: int, moment: float) -> Event | None:
        """Return an earlier event again."""
        past = self.history[worker][-_BACK:]
        event = past[pick % len(past)]._replace(time=moment) if past else None
        if isinstance(
            event, Progress
        ):  # messages arrive in order: less progress than before means that the chunk was started again
            record = self.world.tasks[event.task]
            if record.status[event.chunk] == "open" and event.done != record.progress[event.chunk]:
                return None
        return event

    def _alarm(self, worker: int, pick: int, moment: float) -> Event | None:
        alarms = self.world.alarms
        if not alarms:
            return None
        time, name = alarms.next()
        del alarms[name]
        return Alarm(max(moment, time), name)

    def _measured(self, worker: int, pick: int, moment: float) -> Event | None:
        """Return a message's projection, combined from the projections of its partial gradients."""
        if not self.world.measures:
            return None
        task, index = self.world.measures.popleft()
        record = self.world.tasks[task]
        chunk = record.chunks[index]
        key = record.versions[chunk.slot], chunk.batch, chunk.repeat
        if key not in self._projections:
            self._projections[key] = keyed_generator(self.world.seed, "projections", *key).standard_normal(
                self.world.partitions
            )
        value = float(np.asarray(chunk.coefficients) @ self._projections[key][list(chunk.partitions)])
        return MessageProjected(moment, record.worker, task, index, value)

    def _leaving(self, worker: int, pick: int, moment: float) -> Event | None:
        """Return the notice of a worker that will be taken away, or its repetition, or one that comes too late."""
        del pick
        if worker in self.world.present:
            self.world.leaving.add(worker)
        return Leaving(moment, worker, moment + 1.0)

    def _come_or_go(self, kind: str, worker: int, moment: float) -> Event | None:
        world = self.world
        present = worker in world.present
        if kind in ("join", "return", "join again"):
            if (kind == "join again") != present or (kind == "return") != (worker in world.gone):
                return None
            world.present.add(worker)
            world.gone.discard(worker)
            return Joined(moment, worker)
        if (kind == "lose again") == present:
            return None
        if present:
            world.present.discard(worker)
            world.leaving.discard(worker)
            world.lives[worker] += 1
            task = world.task_of.get(worker, -1)
            for index in world.tasks[task].open() if task in world.tasks else ():
                world.tasks[task].status[index] = "lost"
                world.silent[worker].append((task, index))
        if kind == "give up":
            world.gone.add(worker)
        return Lost(moment, worker, "a hostile schedule", gone=worker in world.gone)

    @property
    def stuck(self) -> bool:
        """Whether no event is possible unless a worker returns."""
        return not (self.world.alarms or self.world.measures or any(self.open(worker) for worker in self.world.present))


_ACTIONS: dict[str, Callable[[Fate, int, int, float], Event | None]] = {
    "repeat": Fate._again,
    "late": Fate._belated,
    "alarm": Fate._alarm,
    "measured": Fate._measured,
    "leaving": Fate._leaving,
}
