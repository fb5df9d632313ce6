"""Workers that share no memory with the driver: vectors go with the mail, and only those that are not there yet."""

from __future__ import annotations

import contextlib
import os
import platform
import threading
import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from anyk.clusters.orders import OrderReader
from anyk.clusters.remote import Message, Post, Remote, Told
from anyk.clusters.shipping import unship
from anyk.clusters.worker import NO_TASK, READY, REPLY, Frame, Orders, Times, Worker
from anyk.errors import RunFailed
from anyk.problems.base import Vector

Key = tuple[str | int, int]  # a model as (slot, version), a message as (task, chunk)


def machine() -> str:
    """What tells apart machines whose clocks have nothing to do with each other."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return platform.node()


class Mail(NamedTuple):
    """What the driver sends: orders, the vectors they need, and those of them that the worker does not have."""

    number: int  # counts a worker's mail; what is older than what has been heard is out of date
    orders: bytes
    needs: tuple[Key, ...]
    fresh: tuple[Key, ...]


class Word(NamedTuple):
    """What a worker says; a message's vector goes beside it. Times are those of the worker's clock."""

    kind: int
    task: int
    chunk: int = 0
    done: int = 0
    started: float = 0.0
    computing: float = 0.0
    computed: float = 0.0
    sent: float = 0.0
    bits: int = 0
    text: str = ""


class MailedPost(Post):
    """With what has been sent and what waits to be sent; a worker that does not listen has one mail, and no queue."""

    def __init__(self) -> None:
        super().__init__()
        self.number = 0
        self.has: frozenset[Key] = frozenset()  # what the last mail left with the worker
        self.owed = False  # whether there is something newer to say
        self.here = True  # whether its clock is the driver's


M = TypeVar("M", bound=MailedPost)


class Mailed(Remote[M]):
    """The driver's side of clusters without shared memory."""

    def __init__(self, workers: int, posts: list[M], **options: Any) -> None:
        super().__init__(workers, posts, **options)
        self._models: dict[tuple[str, int], Vector] = {}
        self._blanks: dict[str, Vector] = {}
        self.pids: dict[int, int] = {}

    @abstractmethod
    def _listens(self, worker: int) -> bool:
        """Whether the last mail has been heard, so that another may be sent."""

    @abstractmethod
    def _send(self, worker: int, mail: Mail) -> None:
        """Send a mail, with the vectors of its fresh keys."""

    # ------------------------------------------------------------------------------------------- models and messages

    def blank(self, slot: str) -> Vector:
        """See :meth:`Cluster.blank`."""
        if slot not in self._blanks:
            self._blanks[slot] = np.empty(self._messages.partitions.dimension, dtype=self._dtype)
        return self._blanks[slot]

    def publish(self, slot: str, version: int, w: Vector) -> None:
        """See :meth:`Cluster.publish`."""
        blank = self.blank(slot)
        if w is not blank:
            blank[:] = w
        del self._blanks[slot]  # workers may be reading it until long after its release: it is never written again
        self._models[slot, version] = blank
        self._newest[slot] = max(version, self._newest.get(slot, -1))

    def release(self, slot: str, version: int) -> None:
        """See :meth:`Cluster.release`."""
        self._models.pop((slot, version), None)

    def model(self, slot: str, version: int) -> Vector:
        """See :meth:`Cluster.model`."""
        return self._models[slot, version]

    def hold(self, worker: int, task: int, chunk: int, ids: tuple[int, ...], message: Vector) -> None:
        """See :meth:`Cluster.hold`."""
        self._arrived[task, chunk] = Message(ids, message, worker, message)

    def _vector(self, key: Key) -> Vector | None:
        """The vector of a key, while there is one."""
        first, second = key
        if isinstance(first, str):
            return self._models.get((first, second))
        message = self._arrived.get((first, second))
        return None if message is None else message.vector

    def _place(self, slot: str, version: int) -> int:
        return version

    def _find(self, key: tuple[int, int], message: Message) -> tuple[int, int]:
        return key

    def _contents(self, told: Told, length: int, dtype: np.dtype[Any]) -> tuple[int, NDArray[Any] | None]:
        vector: NDArray[Any] = told.room
        good = vector.shape == (length,) and vector.dtype == dtype
        return vector.size, vector if good else None

    def _take_over(self, told: Told, ids: tuple[int, ...], vector: Vector) -> Message:
        return Message(ids, vector, told.worker, vector)

    def _let_go(self, worker: int, room: Any) -> None:
        """The array goes with its last reference."""

    # ------------------------------------------------------------------------------------------- mail

    def _mail_to(self, worker: int) -> None:
        post = self._posts[worker]
        if not post.present:
            return
        post.owed = not self._listens(worker)
        if post.owed:
            return
        needs: dict[Key, None] = {}
        for chunk, version in zip(post.chunks, post.positions[len(post.chunks) :], strict=True):
            needs[chunk.slot, version] = None
            needs.update(((task, index), None) for _, task, index, _ in chunk.mix)
        for *_, gathered in post.collects:
            needs.update(((task, index), None) for task, index, *_ in gathered)
        # what is gone was needed by a task that has ended since
        there = tuple(key for key in needs if self._vector(key) is not None)
        post.number += 1
        fresh = tuple(key for key in there if key not in post.has)
        self._send(worker, Mail(post.number, self._orders(post), there, fresh))
        post.has = frozenset(there)

    def _reborn(self, post: M) -> None:
        """A new life of a worker begins with nothing."""
        post.incarnation += 1
        post.has = frozenset()
        post.owed = False

    def _heard(self, worker: int, incarnation: int, word: Word, room: Any) -> Told:
        """A word as it is taken in, in the driver's time."""
        post = self._posts[worker]
        if word.kind == READY and not word.done:
            where, pid = word.text.rsplit(" ", 1)
            self.pids[worker] = int(pid)
            post.here = where == machine()
            post.clock = 0.0 if post.here else word.sent - time.monotonic()
        if not post.here:  # words are late by their way, by the least of which is known what its clock shows
            post.clock = max(post.clock, word.sent - time.monotonic())
        late = post.clock
        times = word.started - late, word.computing - late, word.computed - late, word.sent - late
        return Told(
            time.monotonic(), word.kind, worker, word.task, word.chunk, room, word.done, incarnation, *times,
            word.bits, word.text,
        )  # fmt: skip


class MailedWorker(Worker[None]):
    """The worker's side; :meth:`hear` may be called from another thread than :meth:`run`."""

    def __init__(self, worker: int, frame: Frame, shipped: Sequence[memoryview], held: Sequence[int]) -> None:
        super().__init__(worker, frame)
        self._shipped, self._held = shipped, held
        self._read = OrderReader()
        self._lock = threading.Lock()
        self._number = 0
        self._mail: Mail | None = None
        self._vectors: dict[Key, Vector] = {}
        self._needs: dict[int, tuple[Key, ...]] = {}  # of the tasks that have been taken and may still be worked on

    @abstractmethod
    def _speak(self, word: Word, vector: NDArray[Any] | None) -> None:
        """Send a word, with the vector of a message."""

    def hear(self, mail: Mail, vectors: Mapping[Key, Vector]) -> None:
        """Take in a mail; the orders of older ones, heard later, are dropped, their vectors are not."""
        with self._lock:
            self._vectors.update(vectors)
            if mail.number > self._number:
                self._number, self._mail = mail.number, mail
                kept = {key for needs in self._needs.values() for key in needs} | {*mail.needs}
                self._vectors = {key: vector for key, vector in self._vectors.items() if key in kept}

    def _start(self) -> None:
        partitions = unship(self._shipped)
        self._begin(partitions, self._held, np.zeros(partitions.dimension, dtype=partitions.dtype))

    def _complete(self) -> bool:
        """Whether there is a mail with all it needs; it may have overtaken another that brings that."""
        mail = self._mail
        return mail is not None and all(key in self._vectors for key in mail.needs)

    def _changed(self) -> bool:
        return self._complete()

    def _take(self) -> Orders | None:
        with self._lock:
            if not self._complete():
                return None
            mail, self._mail = self._mail, None
            assert mail is not None
            orders = self._read(mail.orders)
            working = self._orders.task if self._orders is not None else NO_TASK
            waiting = self._next.task if self._next is not None else NO_TASK
            self._needs = {task: needs for task, needs in self._needs.items() if task in (working, waiting)}
            self._needs[orders.task] = mail.needs
            return orders

    def _model(self, slot: str, place: int) -> Vector:
        w = self._vectors[slot, place]
        w.flags.writeable = False
        return w

    def _other(self, place: tuple[int, int], size: int) -> Vector:
        vector = self._vectors[place]
        if vector.size != size:
            raise RunFailed(f"a message of {vector.size} numbers came where {size} were announced")
        return vector

    def _room(self, length: int, chunk: int) -> tuple[None, Vector]:
        return None, np.empty(length, dtype=self._dtype)

    def _give_back(self, room: None) -> None:
        """The array goes with its last reference."""

    def _deliver(self, task: int, index: int, room: None, message: NDArray[Any], times: Times, bits: int) -> None:
        word = Word(REPLY, task, index, 0, *times, time.monotonic(), bits)
        self._speak(word, message)

    def _tell(self, kind: int, task: int, *, chunk: int = 0, done: int = 0, text: str = "", bits: int = 0) -> None:
        if kind == READY and not done:
            text = f"{machine()} {os.getpid()}"
        self._speak(Word(kind, task, chunk, done, sent=time.monotonic(), bits=bits, text=text), None)
