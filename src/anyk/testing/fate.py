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
    """One thing that happens: to ``worker``, where it concerns one, after ``wait`` seconds.

    ``pick`` chooses among whatever there is to choose from. ``save``: the twin is saved and restored right after it.
    An action that is not possible when its turn comes is left out, so that any part of a schedule is a schedule.
    """

    kind: str
    worker: int
    pick: int
    wait: float
    save: bool


class Fate:
    """Lets actions happen in a world: each becomes the event of which a strategy is told."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.history: dict[int, list[Event]] = {worker: [] for worker in range(world.workers)}
        self._projections: dict[tuple[Any, ...], Any] = {}

    def event(self, action: Action) -> Event | None:
        """Let an action happen; None where it cannot."""
        kind, pick, at = action.kind, action.pick, self.world.now + action.wait
        worker = self._able(kind, action.worker)
        event: Event | None = None
        if kind in ("work", "fail", "restart"):
            event = self._worked(kind, worker, pick, at)
        elif kind == "repeat":
            event = self._again(worker, pick, at)
        elif kind == "late":
            event = self._belated(worker, pick, at)
        elif kind == "alarm":
            name = min(self.world.alarms, key=lambda name: (self.world.alarms[name], name), default=None)
            event = None if name is None else Alarm(max(at, self.world.alarms.pop(name)), name)
        elif kind == "measured":
            event = self._measured(at)
        else:
            event = self._came_or_went(kind, worker, at)
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
        """What a worker may do next."""
        task = self.world.task_of.get(worker)
        return (
            []
            if task is None
            else [(task, index) for index in self.world.tasks[task].open() if self._can_go_on(task, index)]
        )

    def _can_go_on(self, task: int, index: int) -> bool:
        given = self.world.tasks[task]
        chunk = given.chunks[index]
        return chunk.send == "done" or index in given.asked or given.progress[index] < len(chunk.partitions)

    def _worked(self, kind: str, worker: int, pick: int, at: float) -> Event | None:
        places = self.open(worker)
        if not places:
            return None
        task, index = places[pick % len(places)]
        given = self.world.tasks[task]
        waits = given.chunks[index].send == "request" and index not in given.asked
        if kind == "fail":
            given.status[index] = "failed"
            self.world.failures += 1
            self.world.keeps(given, task, index, certain=False)
            return Failed(at, worker, task, index, _REASONS[pick % len(_REASONS)])
        if kind == "restart":  # as the worker of a resumed run
            if not waits or not given.progress[index]:
                return None
            given.progress[index] = 0
        if waits:
            given.progress[index] += 1
            return Progress(at, worker, task, index, given.progress[index])
        given.status[index] = "arrived"
        self.world.keeps(given, task, index, certain=True)
        return Reply(at, worker, task, index)

    def _belated(self, worker: int, pick: int, at: float) -> Event | None:
        """Of a chunk that was cancelled, or whose worker has died, something comes all the same."""
        past = self.world.silent[worker][-_BACK:]
        if not past:
            return None
        task, index = past[pick % len(past)]
        if pick % 4 == 0:
            return Failed(at, worker, task, index, _REASONS[pick // 4 % len(_REASONS)])
        if self.world.tasks[task].chunks[index].send == "request" and index not in self.world.tasks[task].asked:
            return Progress(at, worker, task, index, 1)
        return Reply(at, worker, task, index)

    def _again(self, worker: int, pick: int, at: float) -> Event | None:
        """Something that has come before."""
        past = self.history[worker][-_BACK:]
        event = past[pick % len(past)]._replace(time=at) if past else None
        if isinstance(event, Progress):  # a worker's messages come in order: less than before means that it began anew
            given = self.world.tasks[event.task]
            if given.status[event.chunk] == "open" and event.done != given.progress[event.chunk]:
                return None
        return event

    def _measured(self, at: float) -> Event | None:
        """The projection of a message: the same combination of the partial gradients' projections."""
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

    def _came_or_went(self, kind: str, worker: int, at: float) -> Event | None:
        here = worker in self.world.present
        if kind in ("join", "return", "join again"):
            if (kind == "join again") != here or (kind == "return") != (worker in self.world.gone):
                return None
            self.world.present.add(worker)
            self.world.gone.discard(worker)
            return Joined(at, worker)
        if (kind == "lose again") == here:
            return None
        if here:
            self.world.present.discard(worker)
            self.world.lives[worker] += 1
            task = self.world.task_of.get(worker)
            if task is not None:
                for index in self.world.tasks[task].open():
                    self.world.tasks[task].status[index] = "lost"
                    self.world.silent[worker].append((task, index))
        if kind == "give up":
            self.world.gone.add(worker)
        return Lost(at, worker, "a hostile schedule", gone=worker in self.world.gone)

    @property
    def stuck(self) -> bool:
        """Whether nothing can happen any more, unless a worker comes back."""
        return not (self.world.alarms or self.world.measures or any(self.open(worker) for worker in self.world.present))
