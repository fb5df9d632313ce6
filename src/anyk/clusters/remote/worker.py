"""The worker of clusters on the wall clock: it takes the newest orders, computes, and sends messages.

Each cluster implements how orders and messages travel: through shared memory, Ray's objects or MPI's messages.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, MutableMapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from anyk.base.arrays import Array, Vector
from anyk.base.errors import RunFailed
from anyk.base.keyed import array_digest
from anyk.clusters.contract import Report
from anyk.clusters.local import Local, LocalStepper, State
from anyk.clusters.messages import Messages, describe, inspect_message, reverse_attack, spoil
from anyk.clusters.packing import pack
from anyk.clusters.remote.channel import (
    COMPARED,
    EVALUATED,
    FAILED,
    LEAVING,
    PROGRESS,
    READY,
    REPLY,
    STOPPED,
    Channel,
    Disconnected,
    R,
)
from anyk.clusters.remote.orders import NO_TASK, PREEMPT, UNINTERRUPTIBLE, Orders
from anyk.clusters.store import CARRIED
from anyk.problems.base import Partitions
from anyk.problems.replicas import Mark
from anyk.protocol import Chunk

ASKED = "asked for losses"  # the slot name of models whose losses workers evaluate


class RunSetup(NamedTuple):
    """The settings of a run that all its workers need."""

    blocks: int = 1  # coordinates that are combined into one number of a message
    byzantine: tuple[int, ...] = ()  # Byzantine workers
    seed: int = 0  # for sampling mini-batches
    local: Local | None = None  # how workers take local steps
    together: bool = False  # whether consecutive partitions are computed together
    epochs: bool = False  # whether mini-batches are parts of a permutation
    spoiled: str = ""  # the folder in which wrong messages are requested, if any


class _Stop(BaseException):  # like Disconnected; not an Exception, which a user's code may catch
    """Raised in a worker when its task has been cancelled."""


class _Work(NamedTuple):
    """A chunk of a task, with the model at which it is computed."""

    task: int
    chunk_index: int  # in its task
    chunk: Chunk
    version: int
    w: Vector


class Worker(Channel[R]):
    """A worker of one run; :meth:`run` returns when the driver has ended."""

    def __init__(self, worker: int, setup: RunSetup) -> None:
        self.worker, self._setup = worker, setup
        self._idle_since = 0.0  # time until which the worker was busy
        self._orders: Orders | None = None
        self._next: Orders | None = None
        # states of optimiser and compressor after a task, by task
        self._states: MutableMapping[int, State] = {}
        # partial gradients kept for requests, by (task, chunk) and partition
        self._gradients: dict[tuple[int, int], dict[int, Vector]] = {}
        self._sent_requests: set[tuple[int, int]] = set()  # (task, chunk) of requests whose messages were sent
        self._task_times = 0.0, 0.0  # times at which the task started and its first delay ended
        self._pending: list[Any] = []  # requests for partitions that are not finished yet
        self._last_question = 0  # number of the last question about losses

    def _notify(self, kind: int, task: int, chunk: int = 0, done: int = 0, text: str = "", bits: int = 0) -> None:
        self.report(Report(kind, task, chunk, done, sent=time.monotonic(), bits=bits, text=text))

    # ------------------------------------------------------------------------------------------- start and end

    def leave(self) -> None:
        """Report that this worker has been asked to end; the driver ends it when its task is done."""
        self._notify(LEAVING, NO_TASK)

    def begin(self, partitions: Partitions, assigned: Sequence[int], first: Vector) -> None:
        """Load the assigned partitions, and compute a gradient at the model ``first``, as the first call is slow.

        An error of this gradient is ignored; it recurs in the first task, where it is reported.
        """
        setup = self._setup
        self._messages = Messages(partitions, setup.blocks, setup.seed, together=setup.together, epochs=setup.epochs)
        partitions.load(list(assigned))
        self._local = None if setup.local is None else LocalStepper(self._messages, setup.local)
        self._messages.places(tuple(assigned))
        if assigned:
            with contextlib.suppress(Exception):
                self._messages.partial_gradient(assigned[0], first)

    def run(self) -> None:
        """Load the partitions, report that the worker is ready, and work."""
        with contextlib.suppress(Disconnected):
            try:
                self.start()
            except Exception as error:
                self._notify(READY, NO_TASK, done=1, text=describe(error))
                return
            self._notify(READY, NO_TASK)
            last_task = NO_TASK
            while True:
                orders, self._next = self.take() or self._next, None
                if orders is None:
                    self.listen(None)
                    continue
                orders = self._handle_orders(orders)
                if orders.task > last_task:
                    last_task = orders.task
                    with contextlib.suppress(_Stop):
                        self._compute_task(orders)

    # ------------------------------------------------------------------------------------------- orders and requests

    def _check_orders(self, done: int, chunk: int) -> None:
        """Read new orders between two partitions: serve requests, and stop if the task is cancelled."""
        if not self.changed():
            return
        orders = self.take()
        if orders is None:
            return  # newer orders are arriving
        assert self._orders is not None
        orders = self._handle_orders(orders)
        if orders.task != self._orders.task:
            self._next = orders
            if orders.flags & PREEMPT:
                self._notify(STOPPED, self._orders.task, chunk=chunk, done=done)
                raise _Stop

    def _handle_orders(self, orders: Orders) -> Orders:
        """Serve requests and answer questions; return the newest orders, as others may have arrived meanwhile."""
        self._serve_requests(orders.requests)
        while (question := orders.question) is not None and question[0] > self._last_question:
            number, location, slot, partitions, samples = question
            self._last_question = number
            w = self.model(ASKED, location)
            for j in partitions:
                self._report_loss(number, slot, j, w, samples)
                newer = self.take() if self.changed() else None
                if newer is not None:
                    orders = newer
                    self._serve_requests(orders.requests)
                    if orders.question is None or orders.question[0] != number:
                        break
        return orders

    def _report_loss(self, number: int, slot: str, partition: int, w: Vector, samples: int | None) -> None:
        try:
            self.load_missing((partition,))
            loss = np.float64(self._messages.loss(slot, partition, w, samples))
        except Exception as error:
            self._notify(EVALUATED, number, chunk=partition, done=1, text=describe(error))
            return
        self._notify(EVALUATED, number, chunk=partition, bits=int(loss.view(np.int64)))

    def _wait(self, until: float, done: int, chunk: int) -> None:
        """Wait until an injected delay is over; ``done``: partitions finished before it, ``chunk``: their chunk."""
        assert self._orders is not None
        if self._orders.flags & UNINTERRUPTIBLE:
            time.sleep(max(0.0, until - time.monotonic()))
            self._idle_since = until
            self._check_orders(done, chunk)
            return
        while time.monotonic() < until:
            self.listen(until)
            self._check_orders(done, chunk)

    # ------------------------------------------------------------------------------------------- computing

    def _compute_task(self, orders: Orders) -> None:
        """Compute the chunks of a task after their injected delays, and send their messages."""
        self._orders = orders
        self._gradients.clear()
        self._sent_requests.clear()
        self._pending = [request for request in orders.requests if request[0] == orders.task]
        started = max(orders.start, self._idle_since)
        due = started + orders.before
        self._task_times = started, due
        if orders.before:
            self._wait(due, 0, 0)
        models = zip(orders.chunks, orders.places, orders.versions, strict=True)
        for index, (chunk, location, version) in enumerate(models):
            work = _Work(orders.task, index, chunk, version, self.model(chunk.slot, location))
            self._take_carried(orders, index)
            between = self._pauses(index, due, orders.each)
            if not chunk.partitions:
                between(0)
            due += orders.each * len(chunk.partitions)
            try:
                self.load_missing(chunk.partitions)
                if chunk.send == "request":
                    self._compute_and_keep(work, between)
                else:
                    self._compute_and_send(work, between)
            except Exception as error:
                self._notify(FAILED, orders.task, chunk=index, text=describe(error))
        self._idle_since = time.monotonic()  # the delay of the next task starts after this task

    def _take_carried(self, orders: Orders, index: int) -> None:
        """Compute the next gradients with the values that a chunk's model carries, if it carries any."""
        if not orders.carried or (carried := orders.carried[index]) is None:
            return
        numbers, arrays, pieces = carried
        content = [self.model(f"{CARRIED} {number}", location) for number, location in enumerate(pieces)]
        self._messages.carry(numbers, arrays, content)

    def _pauses(self, index: int, first: float, per_partition: float) -> Callable[[int], None]:
        """Return a function to call before each partition of a chunk, with the number of those that are finished.

        It waits for the injected delay, ``per_partition`` seconds for each from the time ``first``, and reads orders.
        """

        def between(done: int) -> None:
            if per_partition:
                self._wait(first + per_partition * (done + 1), done, index)
            else:
                self._check_orders(done, index)

        return between

    def _compute_and_send(self, work: _Work, between: Callable[[int], None]) -> None:
        """Compute a chunk's message in a buffer, and send it."""
        task, index, chunk, version, w = work
        length = self._messages.length(chunk.covers)
        buffer, out = self.reserve_buffer(length, index)
        try:
            computing = time.monotonic()
            if chunk.compress:
                out = np.empty(length, dtype=out.dtype)  # the buffer is only for the payload
            if chunk.steps:
                assert self._local is not None
                models = [self.message((first, second), w.size) for _, first, second, _ in chunk.mix]
                out[:] = self._local.run(task, chunk, w, models, self._states, between=between)
            else:
                compared = self._messages.compared(version)
                report_mark = partial(self._report_mark, task, index, compared)
                self._messages.encode(chunk, w, out, between, version=version, compared=compared, seen=report_mark)
            times = self._task_times[0], computing
            self._send(task, index, buffer, out, times=times, compressed=work if chunk.compress else None)
        except BaseException:
            self.discard_buffer(buffer)
            raise

    def _report_mark(self, task: int, index: int, partition: int, mark: Mark) -> None:
        """Report the mark of a gradient, with which other workers' are compared, if it is finite."""
        if (bits := mark.number) is not None:
            self._notify(COMPARED, task, chunk=index, done=partition, bits=bits)

    def _compute_and_keep(self, work: _Work, between: Callable[[int], None]) -> None:
        """Compute partitions one by one, keep their gradients, and report each."""
        task, index, chunk, version, w = work
        gradients = self._gradients.setdefault((task, index), {})
        compared = self._messages.compared(version)
        for done, j in enumerate(chunk.partitions):
            between(done)
            if (task, index) in self._sent_requests:
                return  # its message has been sent: the other partitions are not needed
            gradients[j] = self._messages.partial_gradient(j, w, chunk, version)
            if j == compared:
                self._report_mark(task, index, j, Mark.of(gradients[j]))
            self._notify(PROGRESS, task, chunk=index, done=done + 1)
            if self._pending:
                requests, self._pending = self._pending, []
                self._serve_requests(requests)

    def _serve_requests(self, requests: Sequence[Any]) -> None:
        """Send requested messages; a message with unfinished partitions (in a resumed run) is sent later."""
        for request in requests:
            task, index, partitions, coefficients, gathered = request
            gradients = self._gradients.get((task, index))
            if gradients is None or (task, index) in self._sent_requests:
                continue
            if any(j not in gradients for j in partitions):
                self._pending.append(request)
                continue
            self._sent_requests.add((task, index))
            ids = tuple(dict.fromkeys([*partitions, *(j for *_, covered, _ in gathered for j in covered)]))
            try:
                buffer, out = self.reserve_buffer(self._messages.length(ids), index)
            except RunFailed as error:
                self._notify(FAILED, task, chunk=index, text=describe(error))
                continue
            out[:] = 0.0
            for j, coefficient in zip(partitions, coefficients, strict=True):
                self._messages.add_message(out, ids, (j,), gradients[j], coefficient)
            for first, second, size, covered, weight in gathered:  # other workers' messages
                self._messages.add_message(out, ids, tuple(covered), self.message((first, second), size), weight)
            self._send(task, index, buffer, out, times=self._task_times)

    def _send(
        self,
        task: int,
        index: int,
        buffer: R,
        out: Vector,
        *,
        times: tuple[float, float],
        compressed: _Work | None = None,
    ) -> None:
        """Send the message in a buffer, or report its fault.

        ``times``: the start of the task, and of computing. ``compressed``: what was computed, if it is compressed.
        """
        if self.worker in self._setup.byzantine:
            reverse_attack(out)
        if self._setup.spoiled:
            spoil(out, Path(self._setup.spoiled))
        computed = time.monotonic()
        fault, bits = inspect_message(out)
        if fault is not None:
            self.discard_buffer(buffer)
            self._notify(FAILED, task, chunk=index, text=fault)
            return
        sent: Array = out
        if compressed is not None:
            sent = pack(
                task,
                compressed.chunk,
                compressed.version,
                self._setup.seed,
                vector=out,
                base=compressed.w,
                states=self._states,
            )
            bits = array_digest(sent)
        started, computing = times
        report = Report(
            REPLY,
            task,
            index,
            started=started,
            computing=computing,
            computed=computed,
            sent=time.monotonic(),
            bits=bits,
        )
        self.report(report, sent, buffer)
