"""Messages that tasks begin from: kept until the last such task has ended."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from anyk.problems.base import Vector
from anyk.protocol import Task

Place = tuple[int, int]  # a message, by its task and chunk


class Readers:
    """Counts the tasks that read each message; ``drop(task, chunk)`` is called when a freed one has no reader left."""

    def __init__(self, drop: Callable[[int, int], None]) -> None:
        self._drop = drop
        self.counts: dict[Place, int] = {}  # messages that tasks begin from, and how many do
        self.freed: set[Place] = set()  # those of them that nobody else needs any more

    def begin(self, chunks: Task) -> None:
        """A task is under way that begins from messages."""
        for chunk in chunks:
            for _, task, index, _ in chunk.mix:
                self.counts[task, index] = self.counts.get((task, index), 0) + 1

    def end(self, chunks: Task) -> None:
        """It has ended."""
        for chunk in chunks if self.counts else ():
            for _, task, index, _ in chunk.mix:
                left = self.counts.get((task, index), 0) - 1
                if left > 0:
                    self.counts[task, index] = left
                elif self.counts.pop((task, index), None) is not None and (task, index) in self.freed:
                    self.freed.discard((task, index))
                    self._drop(task, index)

    def free(self, task: int, chunk: int) -> None:
        """Drop a message, at once or when its last reader has ended."""
        if self.counts and (task, chunk) in self.counts:
            self.freed.add((task, chunk))
        else:
            self._drop(task, chunk)

    def vectors(self, message: Callable[[int, int], Vector]) -> dict[str, Vector]:
        """The messages that only tasks under way still need, to be saved."""
        return {f"read/{task}/{chunk}": message(task, chunk) for task, chunk in sorted(self.freed)}

    def take_back(
        self,
        vectors: Mapping[str, Vector],
        workers: Mapping[int, int],
        hold: Callable[[int, int, int, tuple[int, ...], Vector], None],
    ) -> None:
        """Take in what :meth:`vectors` gave, by ``hold(worker, task, chunk, partitions, message)``."""
        for key, vector in vectors.items():
            kind, *rest = key.split("/")
            if kind == "read":
                task, chunk = map(int, rest)
                hold(workers.get(task, 0), task, chunk, (), vector)
                self.freed.add((task, chunk))
