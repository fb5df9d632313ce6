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
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from anyk.clusters.base import PINNED, Cluster, InFlight, Order
from anyk.clusters.local import Local
from anyk.clusters.messages import Messages
from anyk.clusters.packing import scheme, unpack
from anyk.clusters.processes.memory import (
    ERROR_BOX,
    FAILED,
    FREE,
    FULL,
    HEADER,
    ORDER,
    PREEMPT,
    PROGRESS,
    RECORD,
    REPLY,
    STOPPED,
    UNINTERRUPTIBLE,
    Layout,
    MailBox,
    Segment,
    available_memory,
    model_view,
    place_buffers,
)
from anyk.delays import Communication, DelayModel
from anyk.errors import BadInput, RunFailed
from anyk.problems.base import Partitions, Vector
from anyk.protocol import (
    Alarm,
    Cancel,
    Chunk,
    Collect,
    Cut,
    Dispatch,
    Event,
    Failed,
    Joined,
    Lost,
    Measure,
    Measured,
    Progress,
    Reply,
    Task,
    Timing,
)

_BUFFERS = 4  # reply buffers a worker; when all but one hold messages not yet used, further ones are copied out
_BOX = 1 << 16  # bytes of a mail box; untouched pages cost nothing
_IDLE = 0.1  # seconds after which the driver is given a turn though nothing happened
_DEATHS = 3  # deaths in a row, without a message in between, after which a worker is given up
_START = 120.0  # seconds a worker may take to load its partitions before the start is given up
_SINGLE = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")

_BOOT = "import json, sys; sys.path[:] = json.loads(sys.argv[2]); from anyk.clusters.processes import nursery; "
_BOOT += "nursery.main(int(sys.argv[1]))"


class _Message(NamedTuple):
    ids: tuple[int, ...]
    vector: Vector
    worker: int
    at: int  # where its buffer begins; -1 once copied out


class _Post:
    """What the driver knows of one worker's mail."""

    __slots__ = ("body", "box", "chunks", "collects", "deaths", "doorbell", "head", "held", "incarnation", "positions",
                 "preempt", "present")  # fmt: skip

    def __init__(self) -> None:
        self.box: MailBox | None = None
        self.doorbell = -1
        self.incarnation = -1
        self.present = False
        self.deaths = 0
        self.preempt = False  # whether what the worker may still be doing is to be dropped
        self.chunks: Task = ()
        self.body = b"[]"
        self.head: tuple[int, float, float, float] = (-1, 0.0, 0.0, 0.0)  # task, start, before, each
        self.positions: list[int] = []
        self.collects: list[list[Any]] = []
        self.held = 0


class Processes(Cluster):
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
        super().__init__(workers, delays=delays, seed=seed, liars=liars, communication=communication)
        if not sys.platform.startswith(("linux", "darwin")):
            raise BadInput(f"cluster 'processes' runs on Linux and macOS, not on {sys.platform}; use 'simulated'")
        self.pids: dict[int, int] = {}
        self._nursery: subprocess.Popen[bytes] | None = None
        self._link: socket.socket | None = None
        self._segments: list[Segment] = []
        self._pipe = -1
        self._posts = [_Post() for _ in range(workers)]
        self._news: deque[tuple[Any, ...]] = deque()  # records and deaths, taken in when the driver comes to them
        self._alarms: dict[str, float] = {}
        self._live: dict[int, InFlight] = {}
        self._asked: dict[tuple[int, int], Collect] = {}  # requests that have not been answered
        self._missing: dict[int, set[int]] = {}  # chunks of a live task that have neither arrived nor failed
        self._arrived: dict[tuple[int, int], _Message] = {}
        self._newest: dict[str, int] = {}
        self._copies: dict[tuple[str, int], int] = {}
        self._reserved: set[tuple[str, int]] = set()
        self._bodies: dict[Task, bytes] = {}
        self._start = time.monotonic()
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
        if partitions is None:
            raise BadInput("cluster 'processes' needs a problem to work on; for timing alone use 'simulated'")
        if self._segments:
            raise BadInput("this cluster is in use already; make one for each run")
        self._total = total
        self._messages = Messages(partitions, blocks, self.seed)
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
            blocks=blocks,
            liars=self.liars,
            seed=self.seed,
            local=local,
        )
        self._bytes = layout.dimension * layout.itemsize, layout.itemsize
        self._free_copies = {slot: list(reversed(range(layout.copies))) for slot in slots}
        try:
            self._start_nursery(partitions, holdings)
            return self._await_workers()
        except BaseException:
            self.close()
            raise

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
        import cloudpickle

        raw: list[Any] = []
        try:
            main = cloudpickle.dumps(partitions, protocol=5, buffer_callback=raw.append)
        except Exception as error:
            raise BadInput(f"the problem cannot be sent to workers: {error}") from None
        buffers = [memoryview(main), *(buffer.raw() for buffer in raw)]
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
        post.box.put(ORDER.pack(-1, 0, 0.0, 0.0, 0.0, 0, 0, 0))  # not what a predecessor was told
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

    def _await_workers(self) -> tuple[int, ...]:
        deadline = time.monotonic() + _START
        while not all(post.present for post in self._posts):
            self._poll(0.5)
            while self._news:
                event = self._take_in(self._news.popleft())
                if isinstance(event, Lost) and event.gone:
                    raise RunFailed(f"worker {event.worker} did not start: {event.reason}")
            if time.monotonic() > deadline:
                late = [i for i, post in enumerate(self._posts) if not post.present]
                raise RunFailed(f"workers {late} did not load their partitions within {_START:.0f} s")
        self._touch()
        self._start = time.monotonic()
        return tuple(range(self.workers))

    def _touch(self) -> None:
        """Map what the first steps will use, so that they do not pay a page fault for every 4 KiB of it."""
        layout = self._layout
        for slot in layout.slots:
            for copy in self._free_copies[slot][-3:]:
                model_view(self._models, layout, self._slot_numbers[slot], copy)[:] = 0.0
        size = self._replies.size // 8
        self._replies.array(0, size, np.dtype(np.int64))[:: 4096 // 8].max(initial=0)
        self._messages.add_up([])

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

    def now(self) -> float:
        """See :meth:`Cluster.now`."""
        return time.monotonic() - self._start

    def state(self) -> dict[str, Any]:
        """See :meth:`Cluster.state`."""
        live = [
            (task, entry._replace(started=entry.started - self._start), sorted(self._missing[task]))
            for task, entry in self._live.items()
        ]
        measures = [news for news in self._news if len(news) == 4]
        asked = list(self._asked.values())
        return super().state() | {"live": live, "alarms": dict(self._alarms), "measures": measures, "asked": asked}

    def restore(self, time_: float, state: dict[str, Any]) -> None:
        """See :meth:`Cluster.restore`; tasks in flight start their delays anew from where the clock was."""
        super().restore(time_, state)
        self._start = time.monotonic() - time_
        self._alarms |= state["alarms"]
        self._news.extend(tuple(measure) for measure in state["measures"])
        for task, plain, missing in state["live"]:
            entry = InFlight.from_plain(plain)
            self._give(task, entry._replace(started=entry.started + self._start))
            self._missing[task] = set(missing)
        for worker, task, chunk, partitions, coefficients, messages, weights in state["asked"]:
            inside = tuple((a, b) for a, b in messages)
            self._ask(Collect(worker, task, chunk, tuple(partitions), tuple(coefficients), inside, tuple(weights)))
        for worker in range(self.workers):
            self._mail_to(worker)

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

    def message(self, task: int, chunk: int) -> Vector:
        """See :meth:`Cluster.message`."""
        return self._arrived[task, chunk].vector

    def hold(self, worker: int, task: int, chunk: int, ids: tuple[int, ...], message: Vector) -> None:
        """See :meth:`Cluster.hold`; where its sender would have left it, so that other workers can read it."""
        post, layout = self._posts[worker], self._layout
        if post.held >= _BUFFERS - 1:
            self._arrived[task, chunk] = _Message(ids, message, worker, -1)
            return
        at = layout.buffer_at(worker, post.held)
        self._replies.reserve(at, layout.buffer_bytes(worker))
        vector = self._replies.array(at + HEADER.size, message.size, np.dtype(layout.dtype))
        vector[:] = message
        vector.flags.writeable = False
        HEADER.pack_into(self._replies.memory, at, FULL, task, chunk, message.size)
        post.held += 1
        self._arrived[task, chunk] = _Message(ids, vector, worker, at)

    def combine(self, messages: Sequence[tuple[int, int]], weights: Sequence[Any]) -> NDArray[np.float64]:
        """See :meth:`Cluster.combine`."""
        found = [self._arrived[key] for key in messages]
        return self._messages.add_up([(m.ids, m.vector, weight) for m, weight in zip(found, weights, strict=True)])

    def _length(self, chunk: Chunk) -> int:
        return self._messages.length(chunk.covers)

    def _drop(self, task: int, chunk: int) -> None:
        message = self._arrived.pop((task, chunk), None)
        if message is not None and message.at >= 0:
            HEADER.pack_into(self._replies.memory, message.at, FREE, -1, -1, 0)
            self._posts[message.worker].held -= 1

    # ------------------------------------------------------------------------------------------- commands

    def execute(self, orders: Sequence[Order]) -> Sequence[Cut]:
        """See :meth:`Cluster.execute`; a worker is told once, of the last of what concerns it."""
        touched: dict[int, None] = {}
        for order in orders:
            if isinstance(order, Dispatch):
                now = time.monotonic()
                for task, (worker, chunks) in enumerate(zip(order.workers, order.chunks, strict=True), order.task):
                    versions = tuple([self._newest[chunk.slot] for chunk in chunks])
                    number = versions[0] if order.round is None else order.round
                    self._give(task, InFlight(worker, chunks, versions, now, *self._hold(worker, chunks, number)))
                    self._mail_to(worker)  # at once: it can begin while the others are written to
                    touched.pop(worker, None)
            elif isinstance(order, Cancel):
                for task in order.tasks:
                    entry = self._live.pop(task, None)
                    self._missing.pop(task, None)
                    if entry is None:
                        continue
                    self._ended(entry.chunks)
                    if self._asked:
                        self._asked = {key: ask for key, ask in self._asked.items() if key[0] != task}
                    post = self._posts[entry.worker]
                    post.preempt = order.mode == "preempt"
                    if post.head[0] == task:
                        post.head = (-1, 0.0, 0.0, 0.0)
                        post.chunks, post.body, post.positions, post.collects = (), b"[]", [], []
                        if post.preempt:
                            touched[entry.worker] = None
            elif isinstance(order, Collect):
                if self._ask(order):
                    touched[order.worker] = None
            elif isinstance(order, Measure):
                self._news.append((order.worker, order.task, order.chunk, order.key))
            elif order.time is None:
                self._alarms.pop(order.name, None)
            else:
                self._alarms[order.name] = order.time
        for worker in touched:
            self._mail_to(worker)
        return ()

    def _ask(self, order: Collect) -> bool:
        """Have a worker make a message; False when it has nothing to make it of any more."""
        entry = self._live.get(order.task)
        if entry is None:
            return False
        found = [self._arrived[key] for key in order.messages]
        if any(message.at < 0 for message in found):
            raise RunFailed("a message to be added up by a worker is no longer in shared memory; too many are kept")
        gathered = [[m.at, m.vector.size, m.ids, weight] for m, weight in zip(found, order.weights, strict=True)]
        self._posts[order.worker].collects.append(
            [order.task, order.chunk, order.partitions, order.coefficients, gathered]
        )
        self._asked[order.task, order.chunk] = order
        return True

    def _ids(self, entry: InFlight, task: int, chunk: int) -> tuple[int, ...]:
        """The partitions that a message covers."""
        order = self._asked.get((task, chunk))
        if order is None:
            return entry.chunks[chunk].covers
        inside = [j for key in order.messages for j in self._arrived[key].ids]
        return tuple(dict.fromkeys([*order.partitions, *inside]))

    def _give(self, task: int, entry: InFlight) -> None:
        """Make a task the newest of its worker; it is mailed by :meth:`_mail_to`."""
        self._live[task] = entry
        self._begins(entry.chunks)
        self._missing[task] = set(range(len(entry.chunks)))
        post = self._posts[entry.worker]
        chunks = entry.chunks
        if chunks is not post.chunks:
            body = self._bodies.get(chunks)
            if body is None and chunks[0].steps:  # every task its own: not worth remembering
                body = json.dumps([self._placed(chunk) for chunk in chunks]).encode()
            elif body is None:
                body = self._bodies[chunks] = json.dumps(chunks).encode()
            post.chunks, post.body = chunks, body
        post.head = (task, entry.started, entry.before, entry.each)
        post.positions = [
            self._copies[chunk.slot, version] for chunk, version in zip(chunks, entry.versions, strict=True)
        ]
        post.positions += entry.versions

    def _placed(self, chunk: Chunk) -> Chunk:
        """A chunk that says where the messages it begins from lie, in place of their tasks."""
        places = []
        for worker, task, index, weight in chunk.mix:
            message = self._arrived[task, index]
            if message.at < 0:
                raise RunFailed(f"a model that worker {worker} made is no longer in shared memory; too many are kept")
            places.append((worker, message.at, 0, weight))
        return chunk._replace(mix=tuple(places))

    def _mail_to(self, worker: int) -> None:
        post = self._posts[worker]
        if not post.present or post.box is None:
            return
        task, start, before, each = post.head
        flags = PREEMPT * post.preempt | UNINTERRUPTIBLE * self.delays.uninterruptible
        collects = json.dumps(post.collects).encode() if post.collects else b""
        head = ORDER.pack(task, flags, start, before, each, len(post.body), len(post.positions), len(collects))
        post.box.put(head + post.body + np.asarray(post.positions, dtype=np.int64).tobytes() + collects)
        # a full bell has rung already; a closed one's worker is dead, which the helper will report
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            os.write(post.doorbell, b"!")

    # ------------------------------------------------------------------------------------------- events

    def events(self) -> Iterator[Event | Cut | None]:
        """See :meth:`Cluster.events`."""
        while True:
            while self._news:
                event = self._take_in(self._news.popleft())
                if event is not None:
                    yield event
            timeout = _IDLE
            if self._alarms:
                name = min(self._alarms, key=lambda key: (self._alarms[key], key))
                timeout = min(timeout, self._alarms[name] - self.now())
                if timeout <= 0:
                    del self._alarms[name]
                    yield Alarm(self.now(), name)
                    continue
            self._poll(timeout)
            if not self._news:
                yield None

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
        self._news.extend((now, *record) for record in RECORD.iter_unpack(data))

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
                self._news.append((news["died"], news["incarnation"], news["reason"]))

    def _take_in(self, news: tuple[Any, ...]) -> Event | Cut | None:
        """What a piece of news means, and what it changes here; None where it is out of date."""
        if len(news) == 4:
            worker, task, chunk, key = news
            message = self._arrived.get((task, chunk))
            value = self._messages.project(message.ids, message.vector, key) if message is not None else 0.0
            return Measured(self.now(), worker, task, chunk, value) if message is not None else None
        if len(news) == 3:
            worker, incarnation, reason = news
            return self._bury(worker, reason) if incarnation == self._posts[worker].incarnation else None
        at, kind, worker, task, chunk, buffer, done, incarnation, *times, bits = news
        now = at - self._start
        if incarnation != self._posts[worker].incarnation:
            return None
        if kind == REPLY:
            started, computing, computed, sent = (t - self._start for t in times)
            return self._receive(now, worker, task, chunk, buffer, Timing(started, computing, computed, sent, bits))
        if kind == STOPPED:
            return Cut(now, worker, task, chunk, done, None)
        if kind == PROGRESS:
            self._posts[worker].deaths = 0
            return Progress(now, worker, task, chunk, done) if task in self._live else None
        if kind == FAILED:
            self._settle(task, chunk)
            return Failed(now, worker, task, chunk, self._error(worker))
        if done:  # READY, but it could not load
            raise RunFailed(f"worker {worker} could not load its partitions: {self._error(worker)}")
        self._posts[worker].present = True
        self._mail_to(worker)
        return Joined(now, worker)

    def _settle(self, task: int, chunk: int) -> None:
        """A chunk has arrived or failed; a task of which none is missing is live no more."""
        missing = self._missing.get(task)
        self._asked.pop((task, chunk), None)
        if missing is not None:
            missing.discard(chunk)
            if not missing:
                self._ended(self._live.pop(task).chunks)
                del self._missing[task]

    def _receive(
        self, now: float, worker: int, task: int, chunk: int, buffer: int, timing: Timing
    ) -> Reply | Failed | None:
        """A message is in: check that the buffer holds what was announced."""
        post = self._posts[worker]
        post.deaths = 0
        at = self._layout.buffer_at(worker, buffer)
        state, task_there, chunk_there, length = HEADER.unpack_from(self._replies.memory, at)
        entry = self._live.get(task)
        if entry is None or chunk not in self._missing[task]:
            HEADER.pack_into(self._replies.memory, at, FREE, -1, -1, 0)
            # of a cancelled task: nobody will use it, but the books want to know; of a resumed one: it is in already
            return Reply(now, worker, task, chunk, timing) if entry is None else None
        ids, work = self._ids(entry, task, chunk), entry.chunks[chunk]
        size = self._messages.length(ids)
        expected = scheme(work.compress).size(size, self._layout.itemsize) if work.compress else size
        if (state, task_there, chunk_there) != (FULL, task, chunk) or length != expected:
            HEADER.pack_into(self._replies.memory, at, FREE, -1, -1, 0)
            self._settle(task, chunk)
            return Failed(now, worker, task, chunk, f"wrong length ({length} instead of {expected})")
        dtype = np.dtype(self._layout.dtype)
        if work.compress:
            payload = self._replies.array(at + HEADER.size, length, np.dtype(np.uint8))
            version = entry.versions[chunk]
            base = self.model(work.slot, version)
            vector = unpack(work, version, self.seed, payload, size, dtype, base)
            HEADER.pack_into(self._replies.memory, at, FREE, -1, -1, 0)
            self._arrived[task, chunk] = _Message(ids, vector, worker, -1)
            self._settle(task, chunk)
            return Reply(now, worker, task, chunk, timing)
        vector = self._replies.array(at + HEADER.size, length, dtype)
        vector.flags.writeable = False
        if post.held >= _BUFFERS - 1:
            self._copy_out(worker)
        self._arrived[task, chunk] = _Message(ids, vector, worker, at)
        post.held += 1
        self._settle(task, chunk)
        if post.collects:
            post.collects = [ask for ask in post.collects if ask[0] != task or ask[1] != chunk]
        return Reply(now, worker, task, chunk, timing)

    def _copy_out(self, worker: int) -> None:
        """A worker needs a free buffer: the oldest of its messages is moved to the driver's own memory."""
        held = [key for key, m in self._arrived.items() if m.worker == worker and m.at >= 0]
        key = next((key for key in held if key not in self._readers), held[0])
        message = self._arrived[key]
        self._arrived[key] = message._replace(vector=message.vector.copy(), at=-1)
        HEADER.pack_into(self._replies.memory, message.at, FREE, -1, -1, 0)
        self._posts[worker].held -= 1

    def _bury(self, worker: int, reason: str) -> Lost:
        """A worker is dead: what it was writing is void, what it sent is not; another takes its place."""
        post = self._posts[worker]
        post.present = False
        post.deaths += 1
        self.pids.pop(worker, None)
        for task in [task for task, entry in self._live.items() if entry.worker == worker]:
            self._ended(self._live.pop(task).chunks)
            del self._missing[task]
            self._asked = {key: ask for key, ask in self._asked.items() if key[0] != task}
        post.head, post.chunks, post.body, post.positions, post.collects = (-1, 0.0, 0.0, 0.0), (), b"[]", [], []
        kept = {message.at for message in self._arrived.values() if message.worker == worker}
        for buffer in range(_BUFFERS):
            at = self._layout.buffer_at(worker, buffer)
            if at not in kept:
                HEADER.pack_into(self._replies.memory, at, FREE, -1, -1, 0)
        gone = post.deaths >= _DEATHS
        if gone:
            reason += f", {post.deaths} times in a row"
        else:
            self._spawn(worker)
        return Lost(self.now(), worker, reason, gone)

    def _error(self, worker: int) -> str:
        at = self._layout.box_at(worker) + self._layout.box
        size = int.from_bytes(self._mail.memory[at : at + 8], "little")
        return self._mail.memory[at + 8 : at + 8 + min(size, ERROR_BOX - 8)].decode(errors="replace")
