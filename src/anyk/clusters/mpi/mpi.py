"""The cluster of MPI ranks: the first is the driver, the others work in one run after another."""

from __future__ import annotations

import atexit
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from anyk.base.arrays import Array
from anyk.base.checks import typed
from anyk.base.errors import BadInput, RunFailed
from anyk.clusters.contract import Envelope, Report
from anyk.clusters.injection import ClusterOptions
from anyk.clusters.local import Local
from anyk.clusters.mpi.link import (
    BYE,
    CLOSE,
    DRIVER_PAUSE,
    END,
    ORDERS,
    PARCEL_TAG,
    RECEIVED,
    REPORT_BYTES,
    REPORT_TAG,
    RUN,
    VECTOR_TAG,
    Pause,
    Sends,
    SentReport,
    communicator,
    parcel,
)
from anyk.clusters.mpi.rank_worker import serve
from anyk.clusters.remote.handles import Died
from anyk.clusters.remote.networked import Networked, NetworkedHandle
from anyk.clusters.remote.shipping import parcels
from anyk.clusters.remote.wire import refuse, vector_type
from anyk.delays import Communication, DelayModel
from anyk.problems.base import Partitions
from anyk.protocol import Layout

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm, Request

PATIENCE = 30.0  # seconds that a worker may take to finish its work after the run has ended


class Rank:
    """The driver's record of a worker's rank; it lasts until the program ends."""

    def __init__(self, world: Intracomm, number: int) -> None:
        self.number = number
        self._world = world
        self._buffer = bytearray(REPORT_BYTES)
        self._pending: tuple[int, Report, Array] | None = None  # a report whose vector has not arrived yet
        self.busy = 0  # the number of its run, 0 if idle
        self.received = True  # whether it has received the last envelope
        self.dead = False
        self.request = self._await_message()

    def _await_message(self) -> Request:
        return self._world.Irecv(self._buffer, source=self.number, tag=REPORT_TAG)

    def take(self) -> tuple[int, Report, Array | None] | None:
        """Return the message received: its run's number, report and vector; None until the vector has arrived."""
        if self._pending is not None:
            pending, self._pending = self._pending, None
            self.request = self._await_message()
            return pending
        try:
            run, report, form = msgspec.json.decode(self._buffer.partition(b"\n")[0], type=SentReport)
            vector = None if form is None else np.empty(form[1], dtype=vector_type(form))
        except (ValueError, MemoryError) as error:
            refuse(self.number - 1, error)
        if vector is None:
            self.request = self._await_message()
            return run, report, None
        self._pending = run, report, vector
        self.request = self._world.Irecv(vector, source=self.number, tag=VECTOR_TAG)
        return None


class Ranks:
    """The workers' ranks, which outlast runs: the program's next cluster uses them again."""

    def __init__(self, world: Intracomm) -> None:
        self.world = world
        self._sends = Sends(world)
        self.all = [Rank(world, number) for number in range(1, world.size)]
        self.runs = 0
        self.open: Mpi | None = None
        atexit.register(self.end)

    def send(
        self, rank: Rank, kind: int, values: Sequence[Any] = (), body: bytes = b"", vectors: Sequence[Array] = ()
    ) -> None:
        """Send a parcel."""
        if not rank.dead:
            for data in (parcel(kind, values, body, vectors), *vectors):
                self._sends(rank.number, PARCEL_TAG, data)

    def look(self) -> bool:
        """Take in the messages that have arrived, also from earlier runs; return whether there were any."""
        from mpi4py import MPI

        living = [rank for rank in self.all if not rank.dead]
        requests = [rank.request for rank in living]
        try:
            self._sends.tidy()
            done = MPI.Request.Testsome(requests)
        except MPI.Exception as error:
            return self._find_the_dead(living, error)
        for index in done or ():
            self._interpret(living[index])
        return bool(done)

    def _interpret(self, rank: Rank) -> None:
        arrived = rank.take()
        if arrived is None:
            return
        run, report, vector = arrived
        if report.kind == BYE:
            rank.busy = 0
        elif report.kind == RECEIVED:
            rank.received = True
        if self.open is not None and run == self.open.run:
            self.open.on_message(rank.number - 1, report, vector)

    def _find_the_dead(self, living: list[Rank], error: Exception) -> bool:
        """Record which ranks have died, if the MPI library continues without them."""
        from mpi4py import MPI

        any_dead = False
        for rank in living:
            try:
                if rank.request.Test():
                    self._interpret(rank)
            except MPI.Exception as reason:
                rank.dead = any_dead = True
                rank.busy = 0
                if self.open is not None:
                    self.open.lost(rank.number - 1, str(reason).splitlines()[0])
        if not any_dead:
            raise RunFailed(f"MPI reports an error other than the death of a rank ({error}); resume the run")
        return True

    def freed(self, ranks: Sequence[Rank], within: float) -> bool:
        """Wait until the ranks have left their run; return False if that takes more than ``within`` seconds."""
        until = time.monotonic() + within
        pause = Pause(DRIVER_PAUSE)
        while any(rank.busy for rank in ranks):
            if not self.look():
                pause()
            if time.monotonic() > until:
                return False
        return True

    def end(self) -> None:
        """Tell the workers to leave; if one does not respond, abort the whole program."""
        if self.open is not None:
            self.open.close()
        for rank in self.all:
            self.send(rank, END)
        if not self.freed(self.all, PATIENCE):
            late = [rank.number - 1 for rank in self.all if rank.busy]
            print(f"anyk: workers {late} are still at work; ending the MPI program", file=sys.stderr)
            sys.stdout.flush()
            sys.stderr.flush()
            self.world.Abort(1)
        for rank in self.all:
            if not rank.dead:
                rank.request.Cancel()
                rank.request.Wait()


@cache
def shared_ranks() -> Ranks:
    """Return the ranks, the same for all clusters of the program; start MPI."""
    return Ranks(communicator())


def join() -> None:
    """Turn this rank into a worker, unless it is the first: serve until the driver ends, then exit."""
    world = communicator()
    if world.rank == 0:
        if world.size == 1:
            raise BadInput("cluster 'mpi' has no workers: start the program with mpiexec, as in 'mpiexec -n 5 anyk …'")
        shared_ranks()  # from now on the workers leave when this program ends, however early
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the driver handles Ctrl-C
    try:
        serve(world)
    except BaseException:
        traceback.print_exc()  # a bug of anyk, or a broken connection: without this rank the others would hang
        sys.stderr.flush()
        world.Abort(1)
    raise SystemExit(0)


@typed
class Mpi(Networked[NetworkedHandle]):
    """MPI ranks, one a worker and one that drives: mpiexec -n 31 anyk train … --cluster mpi.

    On all ranks but the first, the program ends with the creation of its first such cluster: these ranks only work.
    Ranks that are not needed stay idle. With most MPI libraries, such as MPICH, a rank that dies ends the whole
    program; its run can be resumed. If the library continues and reports the failure, the worker is abandoned.

    Raises :class:`~anyk.BadInput` if mpi4py is missing or there are too few ranks.
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
        options = ClusterOptions(
            workers=workers, delays=delays, seed=seed, byzantine=byzantine, communication=communication
        )
        super().__init__(options, NetworkedHandle)
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
        rank.busy, rank.received = self.run, True
        values = self.run, worker, self.setup, list(self.assignment[worker])
        self._ranks.send(
            rank, RUN, values, b"", [np.frombuffer(buffer, dtype=np.uint8) for buffer in self._parcels[worker]]
        )

    def close(self) -> None:
        if self._ranks.open is not self:
            return
        try:
            for rank in self._ours:
                if rank.busy == self.run:
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
        pause = Pause(DRIVER_PAUSE)
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
