"""Workers as MPI ranks: rank 0 drives, the others work. Point-to-point messages only, and nobody waits in one.

Started as ``mpiexec -n 31 anyk train … --cluster mpi``, or with a script of one's own: every rank runs the program, and
what makes the cluster makes workers of all ranks but the first, which leave the program there when the first has ended.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import struct
import sys
import time
import traceback
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anyk.checks import typed
from anyk.clusters.local import Local
from anyk.clusters.remote.handles import Died
from anyk.clusters.remote.networked import (
    Envelope,
    Key,
    Networked,
    NetworkedHandle,
    NetworkedPayload,
    NetworkedWorker,
    WireMessage,
)
from anyk.clusters.remote.shipping import ship
from anyk.clusters.remote.worker import Disconnected, RunSetup
from anyk.delays import Communication, DelayModel
from anyk.errors import BadInput, MissingPackage, RunFailed
from anyk.problems.base import Partitions
from anyk.protocol import Layout

_START = 300.0  # seconds that workers may take to load their partitions
_PATIENCE = 30.0  # seconds that a worker may take to end what it is doing, when the run has ended
_RECEIVED, _BYE = 100, 101  # further kinds of messages: an envelope has been received; a run has been left
_TO_WORKER, _WIRE, _VECTOR = 1, 2, 3  # tags
_RUN, _ORDERS, _CLOSE, _END = range(4)  # what the driver sends: each begins with its kind
_TEXT = 512
_WIRE_FORM = struct.Struct(f"=qqqqddddqqqqi{_TEXT}s")  # a message, its run, the size and type of its vector
_SHORT = 5e-5  # seconds between two looks for messages, doubled while there are none
_LONG, _LONG_DRIVER = 2e-3, 5e-4  # up to these


class _Pause:
    """Between two looks for messages: MPI's own waiting would keep a processor busy that others need."""

    def __init__(self, longest: float = _LONG) -> None:
        self.seconds, self._longest = _SHORT, longest

    def __call__(self, until: float | None = None) -> None:
        wait = self.seconds if until is None else min(self.seconds, max(0.0, until - time.monotonic()))
        time.sleep(wait)
        self.seconds = min(2 * self.seconds, self._longest)


@cache
def _world() -> Any:
    """The communicator of anyk's own, made once by all ranks; starts MPI."""
    try:
        from mpi4py import MPI
    except ModuleNotFoundError:
        raise MissingPackage("mpi4py", "mpi", "cluster 'mpi'") from None
    except (ImportError, RuntimeError) as error:  # the wheel of mpi4py looks for a library when it is imported
        why = str(error).partition("\n")[0].rstrip("(: ")
        raise BadInput(
            f"cluster 'mpi' needs an MPI library that mpi4py can load ({why}); a package of the system is often built "
            "for another mpi4py: run pip install mpich, and start the program with the mpiexec that it brings"
        ) from None
    return MPI.COMM_WORLD.Dup()


# ----------------------------------------------------------------------------------------------- workers


class _Sends:
    """Messages on their way out; what they are sent from is kept until they have left."""

    def __init__(self, world: Any) -> None:
        self._world = world
        self._open: list[tuple[Any, Any]] = []

    def __call__(self, rank: int, tag: int, data: Any) -> None:
        self.tidy()
        self._open.append((self._world.Isend(data, dest=rank, tag=tag), data))

    def tidy(self) -> None:
        """Let go of what has left."""
        if self._open:
            self._open = [(request, data) for request, data in self._open if not request.Test()]

    @property
    def left(self) -> int:
        """How many have not."""
        self.tidy()
        return len(self._open)


class _Inbox:
    """What the driver sends: a head that says which vectors follow."""

    def __init__(self, world: Any) -> None:
        self._world = world

    def take(self) -> tuple[int, bytes, list[NDArray[Any]]] | None:
        """The next parcel, if one is there."""
        from mpi4py import MPI

        status = MPI.Status()
        if not self._world.Iprobe(source=0, tag=_TO_WORKER, status=status):
            return None
        data = bytearray(status.Get_count(MPI.BYTE))
        self._receive(data)
        size = int.from_bytes(data[:8], "little")
        kind, forms = json.loads(bytes(data[8 : 8 + size]))
        vectors = []
        for dtype, length in forms:
            vector = np.empty(length, dtype=np.dtype(dtype))
            self._receive(vector)
            vectors.append(vector)
        return kind, bytes(data[8 + size :]), vectors

    def _receive(self, data: Any) -> None:
        request = self._world.Irecv(data, source=0, tag=_TO_WORKER)
        pause = _Pause()
        while not request.Test():
            pause()


def _parcel(kind: int, body: bytes, vectors: Sequence[NDArray[Any]]) -> bytes:
    head = json.dumps([kind, [[vector.dtype.str, vector.size] for vector in vectors]]).encode()
    return len(head).to_bytes(8, "little") + head + body


class _MpiWorker(NetworkedWorker):
    """The worker in a rank, for one run."""

    def __init__(self, inbox: _Inbox, sends: _Sends, run: int, *what: Any) -> None:
        super().__init__(*what)
        self._inbox, self._sends, self._run = inbox, sends, run
        self.ended = False  # whether there will be no further run

    def _transmit(self, wire: WireMessage, vector: NDArray[Any] | None) -> None:
        text = wire.text.encode()
        if len(text) > _TEXT:
            text = text[: _TEXT - 3] + "…".encode()
        size, single = (-1, 0) if vector is None else (vector.size, ord(vector.dtype.char))
        data = bytearray(_WIRE_FORM.pack(*wire[:-1], self._run, size, len(text), single, text))
        self._sends(0, _WIRE, data)
        if vector is not None:
            self._sends(0, _VECTOR, vector)

    def leave(self) -> None:
        """Say that this was all."""
        self._transmit(WireMessage(_BYE, 0), None)

    def _look(self) -> bool:
        """Take in one parcel, if there is one; raises :class:`Disconnected` at the last."""
        self._sends.tidy()
        parcel = self._inbox.take()
        if parcel is None:
            return False
        kind, body, vectors = parcel
        if kind in (_CLOSE, _END):
            self.ended = kind == _END
            raise Disconnected
        number, needs, fresh, size = json.loads(body[8 : 8 + int.from_bytes(body[:8], "little")])
        keys: list[tuple[Key, ...]] = [tuple((first, second) for first, second in some) for some in (needs, fresh)]
        self.receive(Envelope(number, body[-size:], *keys), dict(zip(keys[1], vectors, strict=True)))
        self._transmit(WireMessage(_RECEIVED, number), None)
        return True

    def _changed(self) -> bool:
        while self._look():
            pass
        return super()._changed()

    def _listen(self, until: float | None) -> None:
        pause = _Pause()
        while not self._changed() and (until is None or time.monotonic() < until):
            pause(until)


def _serve(world: Any) -> None:
    """Be a worker, run after run, until the driver ends."""
    from threadpoolctl import threadpool_limits

    threadpool_limits(1)  # ranks share their machine
    inbox, sends = _Inbox(world), _Sends(world)
    pause = _Pause()
    ended = False
    while not ended:
        parcel = inbox.take()
        sends.tidy()
        if parcel is None:
            pause()
            continue
        pause = _Pause()
        kind, body, vectors = parcel
        ended = kind == _END
        if kind != _RUN:
            continue
        run, worker, setup, held = json.loads(body)
        os.environ["ANYK_WORKER"] = str(worker)
        made = _MpiWorker(inbox, sends, run, worker, RunSetup.from_plain(setup), [part.data for part in vectors], held)
        made.run()
        made.leave()
        ended = made.ended
    while sends.left:
        time.sleep(_LONG)


def join() -> None:
    """Make a worker of this rank, unless it is the first: it serves until the first ends, and leaves the program."""
    world = _world()
    if world.rank == 0:
        if world.size == 1:
            raise BadInput("cluster 'mpi' has no workers: start the program with mpiexec, as in 'mpiexec -n 5 anyk …'")
        _ranks()  # from now on the workers are let go when this program ends, however early
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the driver's affair
    try:
        _serve(world)
    except BaseException:
        traceback.print_exc()  # a defect of ours, or a broken connection: without this rank the others would hang
        sys.stderr.flush()
        world.Abort(1)
    raise SystemExit(0)


# ----------------------------------------------------------------------------------------------- the driver


class _Rank:
    """What is awaited of a worker's rank, for as long as the program runs."""

    def __init__(self, world: Any, number: int) -> None:
        self.number = number
        self._world = world
        self._buffer = bytearray(_WIRE_FORM.size)
        self._pending: tuple[int, WireMessage, NDArray[Any]] | None = None  # a message whose vector is under way
        self.busy = 0  # the run it is in
        self.told_to_close = False
        self.received = True  # whether it has received the last envelope
        self.dead = False
        self.request = self._await_message()

    def _await_message(self) -> Any:
        return self._world.Irecv(self._buffer, source=self.number, tag=_WIRE)

    def came(self) -> tuple[int, WireMessage, NDArray[Any] | None] | None:
        """What has come: the number of a run, a message and its vector; None while that is under way."""
        if self._pending is not None:
            pending, self._pending = self._pending, None
            self.request = self._await_message()
            return pending
        *values, run, size, length, single, text = _WIRE_FORM.unpack(self._buffer)
        wire = WireMessage(*values)._replace(text=text[:length].decode(errors="replace"))
        if size < 0:
            self.request = self._await_message()
            return run, wire, None
        vector = np.empty(size, dtype=np.dtype(chr(single)))
        self._pending = run, wire, vector
        self.request = self._world.Irecv(vector, source=self.number, tag=_VECTOR)
        return None

    def let_go(self) -> None:
        """Await nothing more."""
        if not self.dead:
            self.request.Cancel()
            self.request.Wait()


class _Ranks:
    """The workers' ranks, which outlive runs: whoever drives next goes on with them."""

    def __init__(self, world: Any) -> None:
        self.world = world
        self._sends = _Sends(world)
        self.all = [_Rank(world, number) for number in range(1, world.size)]
        self.runs = 0
        self.open: Mpi | None = None
        atexit.register(self.end)

    def send(self, rank: _Rank, kind: int, body: bytes = b"", vectors: Sequence[NDArray[Any]] = ()) -> None:
        """Send a parcel."""
        if not rank.dead:
            self._sends(rank.number, _TO_WORKER, _parcel(kind, body, vectors))
            for vector in vectors:
                self._sends(rank.number, _TO_WORKER, vector)

    def look(self) -> bool:
        """Take in what has come, also of runs that are over; False when nothing has."""
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

    def _interpret(self, rank: _Rank) -> None:
        came = rank.came()
        if came is None:
            return
        run, wire, vector = came
        if wire.kind == _BYE:
            rank.busy = 0
        elif wire.kind == _RECEIVED:
            rank.received = True
        if self.open is not None and run == self.open.run:
            self.open.on_message(rank.number - 1, wire, vector)

    def _find_the_dead(self, living: list[_Rank], error: Exception) -> bool:
        """Which ranks an MPI library has lost that goes on without them."""
        from mpi4py import MPI

        found = False
        for rank in living:
            try:
                if rank.request.Test():
                    self._interpret(rank)
            except MPI.Exception as reason:
                rank.dead = found = True
                rank.busy = 0
                if self.open is not None:
                    self.open.lost(rank.number - 1, str(reason).splitlines()[0])
        if not found:
            raise RunFailed(f"MPI reports an error that is no rank's death ({error}); resume the run")
        return True

    def freed(self, ranks: Sequence[_Rank], within: float) -> bool:
        """Wait until the ranks have left what they were in; False when they have not within so many seconds."""
        until = time.monotonic() + within
        pause = _Pause(_LONG_DRIVER)
        while any(rank.busy for rank in ranks):
            if not self.look():
                pause()
            if time.monotonic() > until:
                return False
        return True

    def end(self) -> None:
        """Let the workers leave; where one does not listen, end the program for all."""
        if self.open is not None:
            self.open.close()
        for rank in self.all:
            self.send(rank, _END)
        if not self.freed(self.all, _PATIENCE):
            late = [rank.number - 1 for rank in self.all if rank.busy]
            print(f"anyk: workers {late} are still at work; ending the MPI program", file=sys.stderr)
            sys.stdout.flush()
            sys.stderr.flush()
            self.world.Abort(1)
        for rank in self.all:
            rank.let_go()


@cache
def _ranks() -> _Ranks:
    return _Ranks(_world())


@typed
class Mpi(Networked[NetworkedHandle]):
    """MPI ranks, one a worker; the program is started by ``mpiexec`` with one rank more than there are workers.

    On all ranks but the first, making the first of these clusters is where the program ends. Ranks that are not needed
    stay idle. A rank that dies takes the whole program along under most MPI libraries, MPICH's ``mpiexec`` among them;
    its run can be resumed. Where the library goes on and says so, the worker is lost and given up.

    Raises :class:`~anyk.errors.BadInput` where mpi4py is missing or there are too few ranks.
    """

    name = "mpi"
    patience = 1  # nobody can start a rank anew

    def __init__(
        self,
        workers: int,
        *,
        delays: DelayModel | str | None = None,
        seed: int = 0,
        byzantine: Sequence[int] = (),
        communication: Communication | DelayModel | str | None = None,
    ) -> None:
        super().__init__(
            workers, NetworkedHandle, delays=delays, seed=seed, byzantine=byzantine, communication=communication
        )
        join()
        self._ranks = _ranks()
        there = self._ranks.world.size - 1
        if workers > there:
            raise BadInput(
                f"{workers} workers need {workers + 1} MPI ranks, the program was started with {there + 1}; use "
                f"'mpiexec -n {workers + 1} …' or {there} workers"
            )
        self._ours = self._ranks.all[:workers]
        self.run = 0

    # ------------------------------------------------------------------------------------------- life

    def open(self, layout: Layout, partitions: Partitions | None, local: Local | None = None) -> tuple[int, ...]:
        """See :meth:`Cluster.open`."""
        ranks = self._ranks
        if ranks.open is not None:
            raise BadInput("the MPI ranks are at work for another run; close its cluster first")
        partitions, messages, self._setup = self._prepare_run(layout, partitions, local)
        self._keep_vectors_in(NetworkedPayload(messages))
        self._assignment = layout.assignment
        only = getattr(partitions, "only", None)
        self._parcels = [ship(partitions if only is None else only(held)) for held in layout.assignment]
        if not ranks.freed(self._ours, _START):
            late = [rank.number - 1 for rank in self._ours if rank.busy]
            raise RunFailed(f"workers {late} are still at work for the last run")
        self.run = ranks.runs = ranks.runs + 1
        ranks.open = self
        try:
            for worker in range(self.workers):
                self._spawn(worker)
            return self._await_workers(_START)
        except BaseException:
            self.close()
            raise

    def _spawn(self, worker: int) -> None:
        self._renew(self._handles[worker])
        rank = self._ours[worker]
        rank.busy, rank.told_to_close, rank.received = self.run, False, True
        body = json.dumps([self.run, worker, self._setup, list(self._assignment[worker])]).encode()
        parcel = [np.frombuffer(part, dtype=np.uint8) for part in self._parcels[worker]]
        self._ranks.send(rank, _RUN, body, parcel)

    def close(self) -> None:
        """See :meth:`Cluster.close`; workers that do not listen leave the run when they do."""
        if self._ranks.open is not self:
            return
        try:
            for rank in self._ours:
                if rank.busy == self.run and not rank.told_to_close:
                    rank.told_to_close = True
                    self._ranks.send(rank, _CLOSE)
            self._ranks.freed(self._ours, _PATIENCE)
        finally:
            self._ranks.open = None
            for handle in self._handles:
                handle.present = False
            self._payload.clear()
            self._news.clear()
            self._parcels = []

    # ------------------------------------------------------------------------------------------- orders

    def _listens(self, worker: int) -> bool:
        return self._ours[worker].received

    def _send(self, worker: int, envelope: Envelope) -> None:
        self._ours[worker].received = False
        head = json.dumps([envelope.number, envelope.needs, envelope.fresh, len(envelope.orders)]).encode()
        vectors = [vector for key in envelope.fresh if (vector := self._payload.vector(key)) is not None]
        self._ranks.send(self._ours[worker], _ORDERS, len(head).to_bytes(8, "little") + head + envelope.orders, vectors)

    # ------------------------------------------------------------------------------------------- news

    def _poll(self, timeout: float) -> None:
        until = time.monotonic() + timeout
        pause = _Pause(_LONG_DRIVER)
        while not self._ranks.look() and time.monotonic() < until:
            pause(until)

    def on_message(self, worker: int, wire: WireMessage, vector: NDArray[Any] | None) -> None:
        """A worker of this run has sent a message."""
        handle = self._handles[worker]
        if wire.kind == _RECEIVED:
            if handle.owed:
                self._send_orders(worker)
        elif wire.kind != _BYE:
            self._news.append(self._notice(worker, handle.incarnation, wire, vector))

    def lost(self, worker: int, reason: str) -> None:
        """A worker's rank has died."""
        if worker < self.workers:
            self._news.append(Died(worker, self._handles[worker].incarnation, reason))
