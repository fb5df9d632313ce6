"""The cluster of MPI ranks."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from anyk.arrays import Array
from anyk.checks import typed
from anyk.clusters.contract import Envelope, Report
from anyk.clusters.injection import ClusterOptions
from anyk.clusters.local import Local
from anyk.clusters.mpi.link import BYE, CLOSE, LONG_DRIVER, ORDERS, RECEIVED, RUN, Pause
from anyk.clusters.mpi.ranks import PATIENCE, join, shared_ranks
from anyk.clusters.remote.handles import Died
from anyk.clusters.remote.networked import Networked, NetworkedHandle
from anyk.clusters.remote.shipping import parcels
from anyk.delays import Communication, DelayModel
from anyk.errors import BadInput, RunFailed
from anyk.problems.base import Partitions
from anyk.protocol import Layout


@typed
class Mpi(Networked[NetworkedHandle]):
    """MPI ranks, one a worker and one that drives: mpiexec -n 31 anyk train … --cluster mpi.

    On all ranks but the first, the program ends with the creation of its first such cluster: these ranks only work.
    Ranks that are not needed stay idle. With most MPI libraries, such as MPICH, a rank that dies ends the whole
    program; its run can be resumed. If the library continues and reports the failure, the worker is abandoned.

    Raises :class:`~anyk.errors.BadInput` if mpi4py is missing or there are too few ranks.
    """

    name = "mpi"
    patience = 1  # ranks cannot be restarted

    def __init__(
        self,
        workers: int,
        *,
        delays: DelayModel | str | None = None,
        seed: int = 0,
        byzantine: Sequence[int] = (),
        communication: Communication | DelayModel | str | None = None,
    ) -> None:
        super().__init__(ClusterOptions(workers, delays, seed, byzantine, communication), NetworkedHandle)
        join()
        self._ranks = shared_ranks()
        available = self._ranks.world.size - 1
        if workers > available:
            raise BadInput(
                f"{workers} workers need {workers + 1} MPI ranks, the program was started with {available + 1}; use "
                f"'mpiexec -n {workers + 1} …' or {available} workers"
            )
        self._ours = self._ranks.all[:workers]
        self.run = 0

    # ------------------------------------------------------------------------------------------- life

    def open(self, layout: Layout, partitions: Partitions | None, local: Local | None = None) -> tuple[int, ...]:
        if self._ranks.open is not None:
            raise BadInput("the MPI ranks are busy with another run; close its cluster first")
        return super().open(layout, partitions, local)

    def ship(self, partitions: Partitions) -> None:
        ranks = self._ranks
        self._parcels = parcels(partitions, self.assignment)
        if not ranks.freed(self._ours, self.patience_at_start):
            late = [rank.number - 1 for rank in self._ours if rank.busy]
            raise RunFailed(f"workers {late} are still busy with the previous run")
        self.run = ranks.runs = ranks.runs + 1
        ranks.open = self

    def spawn(self, worker: int) -> None:
        self.renew(worker)
        rank = self._ours[worker]
        rank.busy, rank.told_to_close, rank.received = self.run, False, True
        values = self.run, worker, self.setup, list(self.assignment[worker])
        self._ranks.send(
            rank, RUN, values, b"", [np.frombuffer(part, dtype=np.uint8) for part in self._parcels[worker]]
        )

    def close(self) -> None:
        if self._ranks.open is not self:
            return
        try:
            for rank in self._ours:
                if rank.busy == self.run and not rank.told_to_close:
                    rank.told_to_close = True
                    self._ranks.send(rank, CLOSE)
            self._ranks.freed(self._ours, PATIENCE)
        finally:
            self._ranks.open = None
            for handle in self.handles:
                handle.present = False
            self.store.clear()
            self.news.clear()
            self._parcels = []

    # ------------------------------------------------------------------------------------------- orders

    def listens(self, worker: int) -> bool:
        return self._ours[worker].received

    def send(self, worker: int, envelope: Envelope) -> None:
        self._ours[worker].received = False
        number, orders, needs, fresh = envelope
        vectors = [vector for key in fresh if (vector := self.store.vector(key)) is not None]
        self._ranks.send(self._ours[worker], ORDERS, (number, needs, fresh), orders, vectors)

    # ------------------------------------------------------------------------------------------- news

    def poll(self, timeout: float) -> None:
        until = time.monotonic() + timeout
        pause = Pause(LONG_DRIVER)
        while not self._ranks.look() and time.monotonic() < until:
            pause(until)

    def on_message(self, worker: int, report: Report, vector: Array | None) -> None:
        """Take in a report of a worker of this run."""
        handle = self.handles[worker]
        if report.kind == RECEIVED:
            if handle.owed:
                self.send_orders(worker)
        elif report.kind != BYE:
            self.news.append(self.notice(worker, handle.incarnation, report, vector))

    def lost(self, worker: int, reason: str) -> None:
        """Note that a worker's rank has died."""
        if worker < self.workers:
            self.news.append(Died(worker, self.handles[worker].incarnation, reason))
