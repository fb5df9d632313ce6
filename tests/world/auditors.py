"""What must hold in every run, checked from outside after every message, step and event.

An auditor keeps records of its own: copies of every model version and message, computed anew, and of what was
dispatched, cancelled and used. It looks into the driver, the store and the kernel, and never changes them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from anyk.base.keyed import array_digest
from anyk.clusters.local import LocalStepper, State
from anyk.clusters.nodes.sliced_store import SlicedStore
from anyk.clusters.packing import pack, unpack
from anyk.clusters.processes import Processes
from anyk.clusters.processes.memory import FULL, HEADER, RECORD
from anyk.clusters.remote.handles import Died, Notice
from anyk.clusters.remote.worker import ASKED
from anyk.protocol import Cancel, Cut, Dispatch, Failed, Lost, Reply
from anyk.runs import Driver
from anyk.runs.engine.dispatches import ARRIVED, CANCELLED, KEPT, OPEN

from .broken import Broken
from .kernel import Kernel, ReadEnd

Place = tuple[int, int]


class Auditors:
    """All auditors of a run; one per driver, with the ``history`` of models shared by those that resume each other."""

    def __init__(
        self,
        driver: Driver,
        kernel: Kernel,
        history: dict[tuple[str, int], Any],
        *,
        altered: bool,
    ) -> None:
        self._driver, self._kernel, self._history, self._altered = driver, kernel, history, altered
        # what each task must have left of optimiser and compressor, with its worker
        self.states: dict[int, tuple[int, State]] = {}
        self._cluster: Any = driver.cluster
        self._wrong: set[Place] = set()  # messages whose numbers a worker has altered
        self._chunks: dict[Place, Any] = {}  # as dispatched, and as requested later
        self._arrived: dict[Place, Any] = {}  # copies
        self._used: set[Place] = set()
        self._kept: set[Place] = set()
        self._cancelled: set[int] = set()
        self._asked_again: set[int] = set()  # workers that failed, or died, and have no new task since
        self.seen: set[str] = set()  # names of what happened
        self._wrap()

    def _wrap(self) -> None:
        driver, cluster = self._driver, self._cluster
        publish, arrive = cluster.publish, driver.ledger.arrive

        def published(slot: str, version: int, w: Any) -> None:
            publish(slot, version, w)
            known = self._history.setdefault((slot, version), np.array(cluster.store.model(slot, version)))
            self._check(
                "models", np.array_equal(known, cluster.store.model(slot, version)), f"'{slot}' {version} differs"
            )

        def arrived(event: Reply) -> bool:
            usable = arrive(event)
            if usable:
                self.on_message(event)
            return usable

        cluster.publish = published  # type: ignore[method-assign]
        driver.ledger.arrive = arrived  # type: ignore[method-assign]
        driver.before_step = lambda begun: self.on_step(begun.command)
        interpret = cluster._interpret
        dead: set[tuple[int, int]] = set()

        def interpreted(news: Any) -> Any:
            if isinstance(news, Died):
                dead.add((news.worker, news.incarnation))
                for task in [task for task, (worker, _) in self.states.items() if worker == news.worker]:
                    del self.states[task]
            event = interpret(news)
            if isinstance(event, Cut):
                self.seen.add("preempted")
            if isinstance(event, (Failed, Lost)):
                self._asked_again.add(event.worker)
            late = isinstance(news, Notice) and (news.worker, news.incarnation) in dead
            self._check("messages", event is None or not late, f"{event} comes after its sender's death")
            return event

        cluster._interpret = interpreted  # type: ignore[method-assign]
        for kind, note in ((Dispatch, self._on_dispatch), (Cancel, self._on_cancel)):
            driver._carry_out[kind] = self._noting(driver._carry_out[kind], note)

    @staticmethod
    def _noting(carry_out: Callable[[Any], None], note: Callable[[Any], None]) -> Callable[[Any], None]:
        def both(command: Any) -> None:
            note(command)
            carry_out(command)

        return both

    @staticmethod
    def _check(auditor: str, holds: bool, what: str) -> None:
        if not holds:
            raise Broken(auditor, what)

    # ------------------------------------------------------------------------------------------- decisions

    def _on_dispatch(self, command: Dispatch) -> None:
        if self._asked_again & set(command.workers):
            self.seen.add("retried")
            self._asked_again -= set(command.workers)
        for task in range(command.task, command.task + len(command.workers)):
            self._check("ledger", task not in self._cancelled, f"task {task} was dispatched twice")

    def _on_cancel(self, command: Cancel) -> None:
        self._cancelled.update(command.tasks)
        if self._sent() & set(command.tasks):
            self.seen.add("cancelled while sending")

    # ------------------------------------------------------------------------------------------- messages

    def on_message(self, event: Reply) -> None:
        """Compute a message that has arrived anew, and compare."""
        place = event.task, event.chunk
        self._check("messages", event.task not in self._cancelled, f"{place} may be used after its cancellation")
        vector = np.array(self._cluster.store.message(place))
        assert event.timing is not None
        chunk = self._driver.ledger.chunk(*place)
        expected = self._expected(place, chunk, event.worker)
        if expected is not None:
            right = np.allclose(vector, expected, rtol=1e-9, atol=1e-9)
            self._check("messages", right or self._altered, f"{place} has wrong numbers")
            if not right:
                self._wrong.add(place)
        if not chunk.compress:
            self._check("messages", array_digest(vector) == event.timing.digest, f"{place} is not what was sent")
        self._arrived[place] = vector

    def on_resume(self, states: dict[int, tuple[int, State]]) -> None:
        """Note the messages and the workers' states that a checkpoint has brought."""
        self.states = dict(states)
        self._arrived |= {place: np.array(self._cluster.store.message(place)) for place in self._cluster.store.arrived}
        self._kept |= self._in_use(self._driver, (KEPT,))

    def _expected(self, place: Place, chunk: Any, worker: int) -> Any:
        driver = self._driver
        messages = self._cluster.store.messages
        version = driver.ledger.version(chunk.slot, place[0])
        w = self._history[chunk.slot, version]
        states = {task: self.states[task][1] for task in (chunk.state,) if task in self.states}
        if chunk.steps:
            models = [self._arrived.get((task, index)) for _, task, index, _ in chunk.mix]
            if any(model is None for model in models):
                return None  # it came before a checkpoint, and has been dropped since
            out = np.array(LocalStepper(messages, self._cluster.setup.local).run(place[0], chunk, w, models, states))
        elif chunk.compress:
            out = np.empty(messages.length(chunk.covers))
            messages.encode(chunk, w, out, version=version)
        if chunk.compress:
            payload = pack(place[0], chunk, version, self._cluster.seed, out, w, states)
            out = unpack(chunk, version, self._cluster.seed, payload, out.size, out.dtype, w)
        if chunk.steps or chunk.compress:
            self.states[place[0]] = worker, states[place[0]]
            return out
        if chunk.send == "done":
            out = np.empty(messages.length(chunk.covers))
            messages.encode(chunk, w, out, version=version)
            return out
        total = np.zeros(w.size)
        for j, coefficient in zip(chunk.partitions, chunk.coefficients, strict=True):
            total += coefficient * messages.partial_gradient(j, w, chunk, version)
        for other, weight in driver.ledger.gathered.get(place, ()):
            total += weight * self._arrived[other]
        return total

    def on_step(self, command: Any) -> None:
        """Check the messages of a step: each as it arrived, none twice, none after its cancellation."""
        for place in command.messages:
            place = tuple(place)
            self._check("agreement", place not in self._wrong, f"{place} has wrong numbers, and is used")
            self._check("messages", place not in self._used or place in self._kept, f"{place} is used twice")
            self._check("messages", place[0] not in self._cancelled, f"{place} is used after its cancellation")
            same = place[0] in self._inside(command) or np.array_equal(
                self._cluster.store.message(place), self._arrived[place]
            )
            self._check("messages", same, f"{place} has changed since it arrived")
            self._used.add(place)
        self._kept |= {tuple(place) for place in command.keep}
        self.seen.add("step")

    def _inside(self, command: Any) -> set[int]:
        return {other[0] for place in command.messages for other, _ in self._driver.ledger.gathered.get(place, ())}

    # ------------------------------------------------------------------------------------------- accounts

    def on_event(self, driver: Driver) -> None:
        """Check that everything is accounted for."""
        self._balance(driver)
        self._stored(driver)
        if isinstance(self._cluster, Processes):
            self._buffers()
        self._versions(driver)

    def _balance(self, driver: Driver) -> None:
        ledger, open_ = driver.ledger, 0
        for tasks, statuses in ((ledger._given, (OPEN, ARRIVED)), (ledger._cancelled, (CANCELLED,))):
            for task, batch in tasks.items():
                open_ += sum(len(batch.cells(task, status)) for status in statuses)
        self._check(
            "ledger", open_ == ledger.counts.open, f"{ledger.counts.open} chunks are open, {open_} are recorded"
        )

    def _stored(self, driver: Driver) -> None:
        """The driver keeps the messages that may still be used or are read by tasks, and no others."""
        store = self._cluster.store
        stale = store.arrived.keys() - (self._in_use(driver) | store.freed)
        self._check("messages", not stale, f"messages {sorted(stale)} are kept, and nobody uses them")
        read: dict[Place, int] = {}
        for entry in self._cluster._tasks.in_flight.values():
            for chunk in entry.chunks:
                for _, task, index, _ in chunk.mix:
                    read[task, index] = read.get((task, index), 0) + 1
        gone = read.keys() - store.arrived.keys()
        self._check("messages", not gone, f"messages {sorted(gone)} are read by tasks, and gone")
        self._check("messages", read == store.readers, f"readers {store.readers}, tasks that read {read}")

    def _buffers(self) -> None:
        """Every reply buffer is free, is being written, is in the pipe, or belongs to one message in use."""
        store, plan = self._cluster.store, self._cluster._plan
        known: dict[tuple[int, int], Place] = {}
        for place, message in store.arrived.items():
            if isinstance(message.buffer, int):
                at = message.worker, message.buffer
                self._check("buffers", at not in known, f"messages {known.get(at)} and {place} share buffer {at}")
                known[at] = place
        occupied = {(worker, buffer) for worker, of in enumerate(store._occupied) for buffer in of}
        self._check("buffers", occupied == known.keys(), f"occupied {sorted(occupied)}, used {sorted(known)}")
        coming = self._coming()
        for worker in range(plan.workers):
            for buffer in range(plan.buffers):
                state, task, chunk, _ = HEADER.unpack_from(store._replies.memory, plan.buffer_at(worker, buffer))
                if state == FULL and (worker, buffer) not in known:
                    dead = not self._cluster.handles[worker].present
                    self._check(
                        "buffers",
                        dead or (worker, buffer) in coming or self._sending(worker),
                        f"buffer {buffer} of worker {worker} holds message {task, chunk}, which nobody knows",
                    )
                elif (worker, buffer) in known:
                    whole = state == FULL and (task, chunk) == known[worker, buffer]
                    self._check("buffers", whole, f"buffer {buffer} of worker {worker} is written while it is in use")

    def _in_use(self, driver: Driver, statuses: tuple[int, ...] = (ARRIVED, KEPT)) -> set[Place]:
        found = set()
        for task, batch in driver.ledger._given.items():
            for status in statuses:
                found |= {(task, cell % batch.width) for cell in batch.cells(task, status)}
        return found

    def _coming(self) -> set[tuple[int, int]]:
        """The buffers announced in reports that the driver has not processed."""
        end = self._kernel.current.files[self._cluster._reports.fd]
        assert isinstance(end, ReadEnd)
        found = {(worker, buffer) for worker, _, buffer, *_ in RECORD.iter_unpack(bytes(end.pipe.data))}
        for news in self._cluster.news:
            if hasattr(news, "buffer"):
                found.add((news.worker, news.buffer))
        return found

    def _sent(self) -> set[int]:
        """The tasks of reports that have been sent, and that the driver has not processed."""
        return {news.report.task for news in self._cluster.news if isinstance(news, Notice)}

    def _sending(self, worker: int) -> bool:
        """Whether a worker may be between marking a buffer as full and its report, or has died there."""
        name = f"worker {worker}."
        alive = [each for each in self._kernel.processes.values() if each.name.startswith(name) and not each.ended]
        return not alive or any(each.doing in ("written", "write") for each in alive)

    def _versions(self, driver: Driver) -> None:
        store, newest = self._cluster.store, driver.versions.newest
        shared = isinstance(self._cluster, Processes)
        held = store._copies if shared else store._models
        if isinstance(store, SlicedStore):
            held = {**held, **store._versions.published}
        kept = {key for key in held if key[0] != ASKED}
        self._check("versions", len(held) <= len(kept) + 1, "models of more than one question are kept")
        wanted = {key for key in driver.versions._pins if key[0] in newest} | set(newest.items())
        self._check("versions", kept <= wanted, f"versions {kept - wanted} are kept")
        self._check("versions", wanted <= kept, f"versions {wanted - kept} are gone")
        if shared:
            places = [*store._copies.values(), *store._free_copies]
            self._check("versions", len(set(places)) == len(places), "two versions share their memory")
        for entry in self._cluster._tasks.in_flight.values():
            for chunk, version in zip(entry.chunks, entry.versions, strict=True):
                key = chunk.slot, version
                self._check("versions", key in kept, f"{key} is read by a task, and gone")
                same = np.array_equal(store.model(*key), self._history[key])
                self._check("versions", same, f"{key} has changed while a task reads it")


def check_ended(kernel: Kernel, before: dict[str, int]) -> None:
    """Check that nothing is left after a driver has closed its cluster."""
    driver = kernel.current
    if len(driver.files) != before["files"]:
        raise Broken("descriptors", f"{len(driver.files)} descriptors are open, {before['files']} were before")
    left = [
        each.name
        for each in kernel.processes.values()
        if not each.ended and each.parent is driver and each.leader is each
    ]
    if left:
        raise Broken("processes", f"{left} are still running")
