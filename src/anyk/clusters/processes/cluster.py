"""Workers as processes of this machine: models and messages in shared memory, orders in mail boxes, one pipe back."""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anyk.checks import typed
from anyk.clusters.base import PINNED
from anyk.clusters.local import Local
from anyk.clusters.orders import NOTHING
from anyk.clusters.processes.memory import (
    ERROR_BOX,
    FREE,
    FULL,
    HEADER,
    RECORD,
    Layout,
    MailBox,
    Segment,
    available_memory,
    model_view,
    place_buffers,
)
from anyk.clusters.remote import Died, Message, Post, Remote, Told
from anyk.clusters.shipping import ship
from anyk.clusters.worker import FAILED, READY
from anyk.delays import Communication, DelayModel
from anyk.errors import BadInput, RunFailed
from anyk.problems.base import Partitions, Vector
from anyk.protocol import Lost

_BUFFERS = 4  # reply buffers a worker; when all but one hold messages not yet used, further ones are copied out
_BOX = 1 << 16  # bytes of a mail box; untouched pages cost nothing
_START = 120.0  # seconds a worker may take to load its partitions before the start is given up
_SINGLE = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")

_BOOT = "import json, sys; sys.path[:] = json.loads(sys.argv[2]); from anyk.clusters.processes import nursery; "
_BOOT += "nursery.main(int(sys.argv[1]))"


class _BoxedPost(Post):
    """With a mail box, a doorbell, and reply buffers of which some are held."""

    def __init__(self) -> None:
        super().__init__()
        self.box: MailBox | None = None
        self.doorbell = -1
        self.held: set[int] = set()


@typed
class Processes(Remote[_BoxedPost]):
    """Processes of this machine, one a worker; any of them may be slow, stopped or killed.

    Injected ``delays`` are real waiting, interrupted when the task is cancelled with ``preempt`` (unless the model is
    ``uninterruptible``), and computing comes after. A worker that dies is replaced; one that dies three times in a
    row without a message is given up. Data, models and messages exist once, in shared memory without a name; when
    the driver ends, however it ends, so does everything else.

    Raises :class:`~anyk.errors.BadInput` where the system lacks what it takes.

    >>> Processes(workers=4).spec
    'processes'
    """

    name = "processes"

    def __init__(
        self,
        workers: int,
        *,
        delays: DelayModel | None = None,
        seed: int = 0,
        liars: Sequence[int] = (),
        communication: Communication | None = None,
    ) -> None:
        super().__init__(
            workers,
            [_BoxedPost() for _ in range(workers)],
            delays=delays,
            seed=seed,
            liars=liars,
            communication=communication,
        )
        if not sys.platform.startswith(("linux", "darwin")):
            raise BadInput(f"cluster 'processes' runs on Linux and macOS, not on {sys.platform}; use 'simulated'")
        self.pids: dict[int, int] = {}
        self._nursery: subprocess.Popen[bytes] | None = None
        self._link: socket.socket | None = None
        self._segments: list[Segment] = []
        self._pipe = -1
        self._copies: dict[tuple[str, int], int] = {}
        self._reserved: set[tuple[str, int]] = set()
        self._unread = b""

    # ------------------------------------------------------------------------------------------- life

    def prepare(self) -> None:
        """See :meth:`Cluster.prepare`: the helper program, which needs a while to import NumPy and scipy.sparse."""
        if self._nursery is not None:
            return
        ours, theirs = socket.socketpair()
        environment = dict(os.environ) | dict.fromkeys(_SINGLE, "1")
        path = json.dumps([entry or os.getcwd() for entry in sys.path])  # noqa: PTH109
        self._nursery = subprocess.Popen(
            [sys.executable, "-c", _BOOT, str(theirs.fileno()), path],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,  # Ctrl-C in the terminal reaches the driver alone
        )
        theirs.close()
        self._link = ours

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
        partitions, self._frame = self._set_out(partitions, total, slots, blocks, local)
        self._slot_numbers = {slot: i for i, slot in enumerate(slots)}
        self._layout = layout = Layout(
            workers=self.workers,
            slots=tuple(slots),
            # each worker may be on a version of its own; the newest; the one being written; those yet to be evaluated
            copies=self.workers + 2 + PINNED,
            dimension=partitions.dimension,
            dtype=np.dtype(partitions.dtype).str,
            buffers=_BUFFERS,
            lengths=tuple(self._messages.length(tuple(held)) for held in covers or holdings),
            box=_BOX,
        )
        self._free_copies = {slot: list(reversed(range(layout.copies))) for slot in slots}
        try:
            self._start_nursery(partitions, holdings)
            present = self._await_workers(_START)
            self._touch()
        except BaseException:
            self.close()
            raise
        self._start = time.monotonic()
        return present

    def _start_nursery(self, partitions: Partitions, holdings: Sequence[tuple[int, ...]]) -> None:
        self.prepare()
        ours = self._link
        assert ours is not None
        layout = self._layout
        places, data = self._write_data(partitions)
        models = Segment.create(layout.models_size, "models")
        replies = Segment.create(layout.replies_size, "replies")
        mail = Segment.create(layout.workers * (layout.box + ERROR_BOX), "mail")
        self._segments = [data, models, replies, mail]
        self._models, self._replies, self._mail = models, replies, mail
        self._pipe, pipe = os.pipe()
        message = {
            "layout": layout.plain(),
            "frame": self._frame,
            "holdings": [list(held) for held in holdings],
            "places": places,
            "sizes": [segment.size for segment in self._segments],
        }
        data_fds = [segment.fd for segment in self._segments]
        text = json.dumps(message).encode()
        try:
            socket.send_fds(ours, [len(text).to_bytes(8, "little")], [*data_fds, pipe])
            ours.sendall(text)
        except OSError:
            raise RunFailed("the helper program that starts workers ended at once; see its message above") from None
        os.close(pipe)
        for i, post in enumerate(self._posts):
            post.box = MailBox(mail, layout.box_at(i), layout.box)
            self._spawn(i)
        ours.setblocking(False)

    def _write_data(self, partitions: Partitions) -> tuple[list[tuple[int, int]], Segment]:
        """The partitions' bytes in shared memory: first the object, then its arrays, each where it will be used."""
        buffers = ship(partitions)
        places, size = place_buffers(buffers)
        layout = self._layout
        needed = size + 3 * layout.model_bytes * len(layout.slots) + layout.replies_size // 2
        available = available_memory()
        if available is not None and needed > available:
            raise BadInput(
                f"the data and {self.workers} workers' buffers need {needed / 2**20:,.0f} MiB of shared memory, "
                f"{available / 2**20:,.0f} MiB are available; use fewer workers, fewer columns or float32"
            )
        segment = Segment.create(size, "data")
        segment.reserve(0, max(size, 1))
        view = memoryview(segment.memory)
        for (start, length), buffer in zip(places, buffers, strict=True):
            view[start : start + length] = buffer
        return places, segment

    def _spawn(self, worker: int) -> None:
        """Have a worker forked, with a doorbell of its own."""
        post = self._posts[worker]
        post.incarnation += 1
        assert post.box is not None
        post.box.put(NOTHING)  # not what a predecessor was told
        if post.doorbell >= 0:
            os.close(post.doorbell)
        theirs, post.doorbell = os.pipe()
        os.set_blocking(post.doorbell, False)
        assert self._link is not None
        self._link.setblocking(True)
        try:
            # one request a message: the helper reads a request and its descriptor together
            socket.send_fds(self._link, [json.dumps([worker, post.incarnation]).ljust(32).encode() + b"\n"], [theirs])
        except OSError:
            raise RunFailed("the helper program that starts workers has ended") from None
        finally:
            os.close(theirs)
            self._link.setblocking(False)
        while select.select([self._link.fileno()], [], [], 0)[0]:
            self._read_helper()  # else both sides could wait for the other to listen

    def _touch(self) -> None:
        """Map what the first steps will use, so that they do not pay a page fault for every 4 KiB of it."""
        layout = self._layout
        for slot in layout.slots:
            for copy in self._free_copies[slot][-3:]:
                model_view(self._models, layout, self._slot_numbers[slot], copy)[:] = 0.0
        size = self._replies.size // 8
        self._replies.array(0, size, np.dtype(np.int64))[:: 4096 // 8].max(initial=0)

    def close(self) -> None:
        """See :meth:`Cluster.close`."""
        for post in self._posts:
            if post.doorbell >= 0:
                os.close(post.doorbell)
                post.doorbell = -1
            post.present = False
        if self._link is not None:
            self._link.close()  # the helper ends the workers and itself
            self._link = None
        if self._nursery is not None:
            try:
                self._nursery.wait(10)
            except subprocess.TimeoutExpired:
                self._nursery.kill()  # the kernel ends its workers with it
                self._nursery.wait()
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1
        for segment in self._segments:
            segment.close()

    # ------------------------------------------------------------------------------------------- models and messages

    def blank(self, slot: str) -> Vector:
        """See :meth:`Cluster.blank`; in the memory that workers read."""
        copy, number, layout = self._free_copies[slot][-1], self._slot_numbers[slot], self._layout
        if (slot, copy) not in self._reserved:
            self._models.reserve((number * layout.copies + copy) * layout.model_bytes, layout.model_bytes)
            self._reserved.add((slot, copy))
        return model_view(self._models, layout, number, copy)

    def publish(self, slot: str, version: int, w: Vector) -> None:
        """See :meth:`Cluster.publish`."""
        blank = self.blank(slot)
        if not np.may_share_memory(w, blank):
            blank[:] = w
        self._copies[slot, version] = self._free_copies[slot].pop()
        self._newest[slot] = max(version, self._newest.get(slot, -1))

    def release(self, slot: str, version: int) -> None:
        """See :meth:`Cluster.release`."""
        copy = self._copies.pop((slot, version), None)
        if copy is not None:
            self._free_copies[slot].append(copy)

    def model(self, slot: str, version: int) -> Vector:
        """See :meth:`Cluster.model`."""
        return model_view(self._models, self._layout, self._slot_numbers[slot], self._copies[slot, version])

    def hold(self, worker: int, task: int, chunk: int, ids: tuple[int, ...], message: Vector) -> None:
        """See :meth:`Cluster.hold`; where its sender would have left it, so that other workers can read it."""
        post, layout = self._posts[worker], self._layout
        if len(post.held) >= _BUFFERS - 1:
            self._arrived[task, chunk] = Message(ids, message, worker, None)
            return
        room = next(room for room in range(_BUFFERS) if room not in post.held)
        at = layout.buffer_at(worker, room)
        self._replies.reserve(at, layout.buffer_bytes(worker))
        vector = self._replies.array(at + HEADER.size, message.size, np.dtype(layout.dtype))
        vector[:] = message
        vector.flags.writeable = False
        HEADER.pack_into(self._replies.memory, at, FULL, task, chunk, message.size)
        post.held.add(room)
        self._arrived[task, chunk] = Message(ids, vector, worker, room)

    def _place(self, slot: str, version: int) -> int:
        return self._copies[slot, version]

    def _find(self, key: tuple[int, int], message: Message) -> tuple[int, int]:
        if message.room is None:
            raise RunFailed(f"a message of worker {message.worker} is no longer in shared memory; too many are kept")
        return self._layout.buffer_at(message.worker, message.room), 0

    def _contents(self, told: Told, length: int, dtype: np.dtype[Any]) -> tuple[int, NDArray[Any] | None]:
        at = self._layout.buffer_at(told.worker, told.room)
        state, task, chunk, found = HEADER.unpack_from(self._replies.memory, at)
        if (state, task, chunk) != (FULL, told.task, told.chunk) or found != length:
            return found, None
        return found, self._replies.array(at + HEADER.size, length, dtype)

    def _take_over(self, told: Told, ids: tuple[int, ...], vector: Vector) -> Message:
        post = self._posts[told.worker]
        if len(post.held) >= _BUFFERS - 1:
            self._copy_out(told.worker)
        post.held.add(told.room)
        return Message(ids, vector, told.worker, told.room)

    def _copy_out(self, worker: int) -> None:
        """A worker needs a free buffer: the oldest of its messages is moved to the driver's own memory."""
        held = [key for key, m in self._arrived.items() if m.worker == worker and m.room is not None]
        key = next((key for key in held if key not in self._readers), held[0])
        message = self._arrived[key]
        self._arrived[key] = message._replace(vector=message.vector.copy(), room=None)
        self._let_go(worker, message.room)

    def _let_go(self, worker: int, room: Any) -> None:
        HEADER.pack_into(self._replies.memory, self._layout.buffer_at(worker, room), FREE, -1, -1, 0)
        self._posts[worker].held.discard(room)

    # ------------------------------------------------------------------------------------------- commands and events

    def _mail_to(self, worker: int) -> None:
        post = self._posts[worker]
        if not post.present or post.box is None:
            return
        post.box.put(self._orders(post))
        # a full bell has rung already; a closed one's worker is dead, which the helper will report
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            os.write(post.doorbell, b"!")

    def _poll(self, timeout: float) -> None:
        """Wait for news from workers or the helper; it is taken in later, one by one, when the driver asks for it.

        What the driver has not been told of has not happened, so that what it saves is consistent.
        """
        assert self._link is not None
        link = self._link.fileno()
        ready, _, _ = select.select([self._pipe, link], [], [], timeout)
        if self._pipe in ready:
            self._read_records()
        if link in ready:
            self._read_helper()

    def _read_records(self) -> None:
        data = os.read(self._pipe, RECORD.size * 512)
        now = time.monotonic()
        for record in RECORD.iter_unpack(data):
            told = Told(now, *record)
            if told.kind == FAILED or (told.kind == READY and told.done):
                told = told._replace(text=self._error(told.worker))
            self._news.append(told)

    def _read_helper(self) -> None:
        assert self._link is not None
        try:
            data = self._link.recv(1 << 16)
        except (BlockingIOError, ConnectionResetError):
            data = b" "
        if not data:
            raise RunFailed("the helper program that starts workers has ended, and they with it; resume the run")
        *lines, self._unread = (self._unread + data.strip(b" ")).split(b"\n")
        for line in lines:
            news = json.loads(line)
            if "forked" in news:
                if news["incarnation"] == self._posts[news["forked"]].incarnation:
                    self.pids[news["forked"]] = news["pid"]
            else:
                while select.select([self._pipe], [], [], 0)[0]:
                    self._read_records()  # what it said before it died still counts
                self._news.append(Died(news["died"], news["incarnation"], news["reason"]))

    def _bury(self, died: Died) -> Lost:
        """What it was writing is void, what it sent is not."""
        self.pids.pop(died.worker, None)
        held = self._posts[died.worker].held
        for buffer in range(_BUFFERS):
            if buffer not in held:
                self._let_go(died.worker, buffer)
        return super()._bury(died)

    def _error(self, worker: int) -> str:
        at = self._layout.box_at(worker) + self._layout.box
        size = int.from_bytes(self._mail.memory[at : at + 8], "little")
        return self._mail.memory[at + 8 : at + 8 + min(size, ERROR_BOX - 8)].decode(errors="replace")
