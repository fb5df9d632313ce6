"""The ranks of an MPI program: the first is the driver, the others work in one run after another."""

from __future__ import annotations

import atexit
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from anyk.arrays import Array
from anyk.clusters.contract import Report
from anyk.clusters.mpi.link import (
    BYE,
    END,
    LONG_DRIVER,
    RECEIVED,
    TO_WORKER,
    VECTOR,
    WIRE,
    WIRE_FORM,
    Pause,
    Sends,
    communicator,
    parcel,
)
from anyk.clusters.mpi.rank_worker import serve
from anyk.errors import BadInput, RunFailed

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm, Request

    from anyk.clusters.mpi.mpi import Mpi

PATIENCE = 30.0  # seconds that a worker may take to finish its work after the run has ended


class Rank:
    """The driver's record of a worker's rank; it lasts until the program ends."""

    def __init__(self, world: Intracomm, number: int) -> None:
        self.number = number
        self._world = world
        self._buffer = bytearray(WIRE_FORM.size)
        self._pending: tuple[int, Report, Array] | None = None  # a report whose vector has not arrived yet
        self.busy = 0  # the number of its run, 0 if idle
        self.told_to_close = False
        self.received = True  # whether it has received the last envelope
        self.dead = False
        self.request = self._await_message()

    def _await_message(self) -> Request:
        return self._world.Irecv(self._buffer, source=self.number, tag=WIRE)

    def take(self) -> tuple[int, Report, Array | None] | None:
        """Return the message received: its run's number, report and vector; None until the vector has arrived."""
        if self._pending is not None:
            pending, self._pending = self._pending, None
            self.request = self._await_message()
            return pending
        *values, run, size, length, single, text = WIRE_FORM.unpack(self._buffer)
        report = Report(*values)._replace(text=text[:length].decode(errors="replace"))
        if size < 0:
            self.request = self._await_message()
            return run, report, None
        vector = np.empty(size, dtype=np.dtype(chr(single)))
        self._pending = run, report, vector
        self.request = self._world.Irecv(vector, source=self.number, tag=VECTOR)
        return None

    def let_go(self) -> None:
        """Stop waiting for messages."""
        if not self.dead:
            self.request.Cancel()
            self.request.Wait()


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
                self._sends(rank.number, TO_WORKER, data)

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
        for place in done or ():
            self._interpret(living[place])
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
        pause = Pause(LONG_DRIVER)
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
            rank.let_go()


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
