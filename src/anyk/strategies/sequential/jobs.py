"""The jobs of the sequential codes: their pieces, the messages of these, and the steps that they give."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from anyk.codes.base import Row
from anyk.protocol import Chunk, Combine, Command, Task
from anyk.strategies.sequential.replay import as_bits
from anyk.strategies.sequential.sequential_settings import SequentialSettings, SequentialState, Work

Place = tuple[int, int]  # task and chunk of a message
JobSum = tuple[list[Place], list[float], float, float]  # messages, weights, residual and gain


@dataclass(frozen=True, repr=False)
class SequentialJobs(SequentialSettings):
    """The jobs of a run, each of which is a step of one model; a scheme defines their pieces and sums."""

    # ------------------------------------------------------------------------------------------- what a scheme defines

    @property
    @abstractmethod
    def _piece_rows(self) -> Sequence[Sequence[Row]]:
        """Partitions and coefficients of each piece of each worker."""

    @abstractmethod
    def _assign(self, s: Any, t: int) -> list[Work]:
        """Return the (job, piece) pairs of each worker in round t, given the messages delivered before."""

    @abstractmethod
    def _deliver(self, s: Any, worker: int, job: int, piece: int, message: Place) -> None:
        """Note the message of a piece of a job, from a worker that has completed its task."""

    @abstractmethod
    def _job_done(self, s: Any, job: int) -> bool:
        """Return whether a job's sum is available."""

    @abstractmethod
    def _job_sum(self, s: Any, job: int) -> JobSum:
        """Return messages, weights, residual and gain of a job's sum, and forget the job."""

    def _skips(self, s: Any, t: int) -> bool:
        """Return whether round t has nothing left to do."""
        return False

    # ------------------------------------------------------------------------------------------- common to schemes

    def _task(self, s: SequentialState, worker: int) -> Task:
        """Return a worker's task in this round; a chunk without partitions if it has nothing to do."""
        chunks = [
            Chunk(*self._piece_rows[worker][piece], slot=self.slot(job), batch=self.batch)
            for job, piece in s.assigned[worker]
        ]
        return tuple(chunks) or (Chunk((), (), slot=self.slot(s.round), batch=self.batch),)

    def _take(self, s: SequentialState, worker: int, task: int) -> None:
        """Count the messages of a complete task for the jobs that are not done."""
        s.reusable.setdefault(s.round, []).append(task)
        for chunk, (job, piece) in enumerate(s.work.pop(task)):
            if job >= s.combined:
                self._deliver(s, worker, job, piece, (task, chunk))

    def _steps(self, s: SequentialState) -> list[Command]:
        """Return the steps by the sums of the jobs that are done, in order."""
        steps: list[Command] = []
        last = s.round if not self.limit else min(s.round, self.limit - 1)
        while s.combined <= last and self._job_done(s, s.combined):
            messages, weights, residual, gain = self._job_sum(s, s.combined)
            steps.append(Combine(self.slot(s.combined), messages, weights, residual=residual, gain=gain))
            s.combined += 1
        return steps

    def _decode(self, results: dict[int, Place]) -> JobSum:
        """Return messages, weights, residual and gain of a sum under the code; ``results``: messages by worker."""
        weights, residual, gain = self.code.decode(results)
        used = np.flatnonzero(weights)
        return [results[worker] for worker in used.tolist()], weights[used].tolist(), residual, gain

    def _without(self, workers: Iterable[int]) -> int:
        """Return the set of all other workers."""
        return (1 << self.workers) - 1 - as_bits(workers)
