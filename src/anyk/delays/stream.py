"""Delays for clusters: the next delay of a worker, from blocks of draws."""

from __future__ import annotations

from anyk.delays.base import DelayModel

_BLOCK = 256


class DelayStream:
    """The delays of a fleet by (worker, number), from a block of draws for each worker."""

    def __init__(self, model: DelayModel, seed: int, workers: int) -> None:
        model.check_fleet(workers)
        self.model = model
        self.silent = model.silent
        self._seed = seed
        self._starts = [-1] * workers
        self._row_start = 0
        self._rows: list[list[float]] = []
        self._blocks: list[list[float]] = [[] for _ in range(workers)]

    def at(self, worker: int, number: int) -> float:
        """Return the ``number``-th delay of a worker, in seconds."""
        offset = number - self._starts[worker]
        if not 0 <= offset < _BLOCK or self._starts[worker] < 0:
            start = number - number % _BLOCK
            self._starts[worker] = start
            self._blocks[worker] = self.model.draws(self._seed, worker, start, _BLOCK).tolist()
            offset = number - start
        return self._blocks[worker][offset]

    def row(self, number: int) -> list[float]:
        """Return the ``number``-th delay of every worker, in seconds."""
        if not self._row_start <= number < self._row_start + len(self._rows):
            start = self._row_start = number - number % _BLOCK
            workers = range(len(self._starts))
            columns = [self.model.draws(self._seed, worker, start, _BLOCK).tolist() for worker in workers]
            self._rows = [list(row) for row in zip(*columns, strict=True)]
        return self._rows[number - self._row_start]

    def for_task(
        self, worker: int, *, number: int, version: int, repeat: int, partitions: int, relative_load: float
    ) -> tuple[float, float]:
        """Return the seconds of delay before a task and before each of its partitions.

        ``number``: tasks that were dispatched to the worker before; ``version``: the model version; ``repeat``: the
        worker's tasks on that version before.
        """
        if self.silent:
            return 0.0, 0.0
        by = self.model.by
        if by == "item":
            seconds = self.model.item_draw(self._seed, worker, version, repeat)
        else:
            seconds = self.at(worker, number if by == "task" else version)
        if self.model.per == "load":
            return 0.0, seconds
        return self.model.at_load(seconds, relative_load), 0.0
