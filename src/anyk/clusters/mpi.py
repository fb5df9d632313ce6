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

from anyk.clusters.local import Local
from anyk.clusters.mailed import Key, Mail, Mailed, MailedPost, MailedWorker, Word
from anyk.clusters.remote import Died
from anyk.clusters.shipping import ship
from anyk.clusters.worker import Frame, HungUp
from anyk.delays import Communication, DelayModel
from anyk.errors import BadInput, RunFailed
from anyk.problems.base import Partitions

_START = 300.0  # seconds that workers may take to load their partitions
_PATIENCE = 30.0  # seconds that a worker may take to end what it is doing, when the run has ended
_HEARD, _BYE = 100, 101  # further kinds of words: a mail has been heard; a run has been left
_TO_WORKER, _WORD, _VECTOR = 1, 2, 3  # tags
_RUN, _MAIL, _CLOSE, _END = range(4)  # what the driver sends: each begins with its kind
_TEXT = 512
_WORD_FORM = struct.Struct(f"=qqqqddddqqqqi{_TEXT}s")  # a word, the number of its run, the bytes and kind of its vector
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
    except ImportError as error:
        hint = "pip install 'anyk[mpi]'" if isinstance(error, ModuleNotFoundError) else f"no MPI library ({error})"
        raise BadInput(f"cluster 'mpi' needs mpi4py and an MPI library: {hint}") from None
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
        """The next letter, if one is there."""
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


def _letter(kind: int, body: bytes, vectors: Sequence[NDArray[Any]]) -> bytes:
    head = json.dumps([kind, [[vector.dtype.str, vector.size] for vector in vectors]]).encode()
    return len(head).to_bytes(8, "little") + head + body


class _MpiWorker(MailedWorker):
    """The worker in a rank, for one run."""

    def __init__(self, inbox: _Inbox, sends: _Sends, run: int, *what: Any) -> None:
        super().__init__(*what)
        self._inbox, self._sends, self._run = inbox, sends, run

    def _speak(self, word: Word, vector: NDArray[Any] | None) -> None:
        text = word.text.encode()[:_TEXT]
        size, single = (-1, 0) if vector is None else (vector.size, ord(vector.dtype.char))
        data = bytearray(_WORD_FORM.pack(*word[:-1], self._run, size, len(text), single, text))
        self._sends(0, _WORD, data)
        if vector is not None:
            self._sends(0, _VECTOR, vector)

    def leave(self) -> None:
        """Say that this was all."""
        self._speak(Word(_BYE, 0), None)

    def _look(self) -> bool:
        """Take in one letter, if there is one; raises :class:`HungUp` at the last."""
        self._sends.tidy()
        letter = self._inbox.take()
        if letter is None:
            return False
        kind, body, vectors = letter
        if kind == _CLOSE:
            raise HungUp
        number, needs, fresh, size = json.loads(body[8 : 8 + int.from_bytes(body[:8], "little")])
        keys: list[tuple[Key, ...]] = [tuple((first, second) for first, second in some) for some in (needs, fresh)]
        self.hear(Mail(number, body[-size:], *keys), dict(zip(keys[1], vectors, strict=True)))
        self._speak(Word(_HEARD, number), None)
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
    inbox, sends = _Inbox(world), _Sends(world)
    pause = _Pause()
    while True:
        letter = inbox.take()
        sends.tidy()
        if letter is None:
            pause()
            continue
        pause = _Pause()
        kind, body, vectors = letter
        if kind == _END:
            while sends.left:
                time.sleep(_LONG)
            return
        if kind != _RUN:
            continue
        run, worker, frame, held = json.loads(body)
        os.environ["ANYK_WORKER"] = str(worker)
        made = _MpiWorker(inbox, sends, run, worker, Frame.from_plain(frame), [part.data for part in vectors], held)
        made.run()
        made.leave()


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


class _RankPost(MailedPost):
    """With what is awaited of the rank."""

    def __init__(self) -> None:
        super().__init__()
        self.buffer = bytearray(_WORD_FORM.size)
        self.heard = True
        self.word: Word | None = None  # whose vector is under way
        self.vector: NDArray[Any] | None = None
        self.gone = False  # has left the run


class _Ranks:
    """The workers' ranks, which outlive runs: whoever drives next goes on with them."""

    def __init__(self, world: Any) -> None:
        self.world = world
        self.sends = _Sends(world)
        self.runs = 0
        self.open: Mpi | None = None
        atexit.register(self.end)

    def end(self) -> None:
        """Let the workers leave; one that does not listen is ended by MPI."""
        if self.open is not None:
            self.open.close()
        for rank in range(1, self.world.size):
            self.sends(rank, _TO_WORKER, _letter(_END, b"", ()))
        deadline = time.monotonic() + _PATIENCE
        while self.sends.left and time.monotonic() < deadline:
            time.sleep(_SHORT)
        if self.sends.left:
            self.world.Abort(1)


@cache
def _ranks() -> _Ranks:
    return _Ranks(_world())


class Mpi(Mailed):
    """MPI ranks, one a worker; the program is started by ``mpiexec`` with one rank more than there are workers.

    On all ranks but the first, making the first of these clusters is where the program ends. Ranks that are not needed
    stay idle. A rank that dies takes the whole program along under most MPI libraries, MPICH's ``mpiexec`` among them;
    its run can be resumed. Where the library goes on and says so, the worker is lost and given up.

    Raises :class:`~anyk.errors.BadInput` where mpi4py is missing or there are too few ranks.
    """

    name = "mpi"
    lives = 1  # nobody can start a rank anew

    def __init__(
        self,
        workers: int,
        *,
        delays: DelayModel | None = None,
        seed: int = 0,
        liars: Sequence[int] = (),
        communication: Communication | None = None,
    ) -> None:
        self._mine = [_RankPost() for _ in range(workers)]
        super().__init__(workers, self._mine, delays=delays, seed=seed, liars=liars, communication=communication)
        join()
        self._ranks = _ranks()
        there = self._ranks.world.size - 1
        if workers > there:
            raise BadInput(
                f"{workers} workers need {workers + 1} MPI ranks, the program was started with {there + 1}; use "
                f"'mpiexec -n {workers + 1} …' or {there} workers"
            )
        self._requests: list[Any] = []
        self._run = -1

    # ------------------------------------------------------------------------------------------- life

    def open(
        self,
        partitions: Partitions | None,
        *,
        total: int,
        slots: Sequence[str],
        holdings: Sequence[tuple[int, ...]],
        covers: Sequence[tuple[int, ...]] | None = None,
        blocks: int = 1,
        local: Local | None = None,
    ) -> tuple[int, ...]:
        """See :meth:`Cluster.open`."""
        del covers  # messages have the room they need
        if partitions is None:
            raise BadInput("cluster 'mpi' needs a problem to work on; for timing alone use 'simulated'")
        if self._run >= 0:
            raise BadInput("this cluster is in use already; make one for each run")
        if self._ranks.open is not None:
            raise BadInput("the MPI ranks are at work for another run; close its cluster first")
        self._frame = self._set_out(partitions, total, slots, blocks, local)
        self._dimension = partitions.dimension
        self._holdings = holdings
        self._partitions: Any = partitions
        self._run = self._ranks.runs = self._ranks.runs + 1
        self._ranks.open = self
        try:
            self._requests = [self._await_word(post, worker) for worker, post in enumerate(self._mine)]
            for worker in range(self.workers):
                self._spawn(worker)
            return self._await_workers(_START)
        except BaseException:
            self.close()
            raise

    def _await_word(self, post: _RankPost, worker: int) -> Any:
        return self._ranks.world.Irecv(post.buffer, source=worker + 1, tag=_WORD)

    def _spawn(self, worker: int) -> None:
        self._reborn(self._mine[worker])
        held = list(self._holdings[worker])
        only = getattr(self._partitions, "only", None)
        parts = ship(self._partitions if only is None else only(held))
        body = json.dumps([self._run, worker, self._frame, held]).encode()
        self._post(worker, _RUN, body, [np.frombuffer(part, dtype=np.uint8) for part in parts])

    def _post(self, worker: int, kind: int, body: bytes, vectors: Sequence[NDArray[Any]] = ()) -> None:
        sends = self._ranks.sends
        sends(worker + 1, _TO_WORKER, _letter(kind, body, vectors))
        for vector in vectors:
            sends(worker + 1, _TO_WORKER, vector)

    def close(self) -> None:
        """See :meth:`Cluster.close`; waits until the ranks have left the run."""
        if self._ranks.open is not self:
            return
        self._ranks.open = None
        for worker, post in enumerate(self._mine):
            post.present = False
            if not post.gone:
                self._post(worker, _CLOSE, b"")
        deadline = time.monotonic() + _PATIENCE
        pause = _Pause()
        while not all(post.gone for post in self._mine):
            if not self._look():
                pause()
            if time.monotonic() > deadline:
                late = [worker for worker, post in enumerate(self._mine) if not post.gone]
                print(f"anyk: workers {late} do not answer; ending the MPI program", file=sys.stderr, flush=True)
                self._ranks.world.Abort(1)
        self._arrived.clear()
        self._news.clear()
        self._models.clear()
        self._partitions = None

    # ------------------------------------------------------------------------------------------- mail

    def _listens(self, worker: int) -> bool:
        return self._mine[worker].heard

    def _send(self, worker: int, mail: Mail) -> None:
        post = self._mine[worker]
        post.heard = False
        head = json.dumps([mail.number, mail.needs, mail.fresh, len(mail.orders)]).encode()
        vectors = [vector for key in mail.fresh if (vector := self._vector(key)) is not None]
        self._post(worker, _MAIL, len(head).to_bytes(8, "little") + head + mail.orders, vectors)

    # ------------------------------------------------------------------------------------------- news

    def _poll(self, timeout: float) -> None:
        until = time.monotonic() + timeout
        pause = _Pause(_LONG_DRIVER)
        while not self._look() and time.monotonic() < until:
            pause(until)

    def _look(self) -> bool:
        """Take in what has come; False when nothing has."""
        from mpi4py import MPI

        self._ranks.sends.tidy()
        try:
            done = MPI.Request.Testsome(self._requests)
        except MPI.Exception:
            return self._find_the_dead()
        for worker in done or ():
            self._came(worker)
        return bool(done)

    def _came(self, worker: int) -> None:
        """A worker's word is in, or the vector of its last one."""
        post = self._mine[worker]
        if post.word is not None:
            word, vector = post.word, post.vector
            post.word = post.vector = None
            self._news.append(self._heard(worker, post.incarnation, word, vector))
            self._requests[worker] = self._await_word(post, worker)
            return
        *values, run, size, length, single, text = _WORD_FORM.unpack(post.buffer)
        word = Word(*values)._replace(text=text[:length].decode(errors="replace"))
        assert run == self._run, "a rank speaks of a run that has ended"
        if size >= 0:
            post.word, post.vector = word, np.empty(size, dtype=np.dtype(chr(single)))
            receive = self._ranks.world.Irecv
            self._requests[worker] = receive(post.vector, source=worker + 1, tag=_VECTOR)
            return
        if word.kind == _BYE:
            post.gone = True
            return  # nothing more comes of it
        self._requests[worker] = self._await_word(post, worker)
        if word.kind == _HEARD:
            post.heard = True
            if post.owed:
                self._mail_to(worker)
            return
        self._news.append(self._heard(worker, post.incarnation, word, None))

    def _find_the_dead(self) -> bool:
        """Which of the requests an MPI library that goes on without a rank has failed."""
        from mpi4py import MPI

        found = False
        for worker, request in enumerate(self._requests):
            try:
                if request.Test():
                    self._came(worker)
            except MPI.Exception as error:
                post = self._mine[worker]
                post.gone = found = True
                self._requests[worker] = MPI.REQUEST_NULL
                self._news.append(Died(worker, post.incarnation, str(error).splitlines()[0]))
        if not found:
            raise RunFailed("MPI reports an error that is no rank's death; resume the run")
        return True
