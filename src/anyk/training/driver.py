"""The one driver loop: events to the strategy, its commands to the cluster, sums to the optimiser, all to the log."""

from __future__ import annotations

import time as clock
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anyk.clusters.base import Cluster, Order
from anyk.errors import RunFailed
from anyk.optimizers import Optimizer
from anyk.problems.base import Problem, Vector
from anyk.protocol import (
    Cancel,
    Chunk,
    Combine,
    Command,
    Cut,
    Dispatch,
    Event,
    Failed,
    Fleet,
    Joined,
    Lost,
    Reply,
    Stop,
    Strategy,
    Task,
    Timing,
)
from anyk.training.books import Books
from anyk.training.runlog import RunLog

_OPEN, _ARRIVED, _ENDED = 0, 1, 2
_AMPLIFIED = 1e-3  # a decode whose gain x rounding exceeds this is refused
_CUTS_KEPT = 16  # cancelled tasks a silent worker may have before the oldest is written down as never begun


class _Given:
    """A task the driver has dispatched and not closed."""

    __slots__ = ("at", "cancelled", "chunks", "left", "status", "timing", "versions", "worker")

    def __init__(self, worker: int, chunks: Task, versions: tuple[int, ...], at: float) -> None:
        self.worker, self.chunks, self.versions, self.at = worker, chunks, versions, at
        self.left = len(chunks)
        self.status = [_OPEN] * self.left
        self.timing: list[tuple[Timing | None, float]] | None = None
        self.cancelled: float | None = None


class Driver:
    """Drives one run; :func:`anyk.train` is how it is used.

    Without a ``problem`` nothing is computed: only decisions and times remain (simulated clusters). ``watch`` is
    called after every step with the driver.
    """

    def __init__(
        self,
        strategy: Strategy,
        cluster: Cluster,
        *,
        problem: Problem | None = None,
        optimizer: Optimizer | None = None,
        log: RunLog | None = None,
        steps: int | None = None,
        seconds: float | None = None,
        watch: Callable[[Driver], None] | None = None,
    ) -> None:
        self.strategy, self.cluster, self.problem, self.optimizer, self.log = strategy, cluster, problem, optimizer, log
        self.steps, self.seconds = steps, seconds
        self.watch = watch
        self.save: Callable[[], None] | None = None  # called between two events, every ``save_every`` seconds
        self.save_every = self.save_at = 0.0
        self.books = Books()
        self.versions: dict[str, int] = dict.fromkeys(strategy.slots, 0)
        self.models: dict[str, Vector] = {}
        self.optimizer_states: dict[str, dict[str, Vector]] = {}
        self.time = 0.0  # of the newest version
        self.present: set[int] = set()
        self.stopped: Stop | None = None
        self.interrupted = False  # set from outside, as is ``reached``; the run ends after the event at hand
        self.reached = False
        self.last_update: Combine | None = None
        self.on_time = 0  # messages used in the last step
        self._given: dict[int, _Given] = {}
        self._cut: dict[int, _Given] = {}  # cancelled tasks whose end is not known yet
        self._cut_of: list[deque[int]] = [deque() for _ in range(strategy.workers)]
        self._pins: dict[tuple[str, int], int] = {}
        self._sizes: tuple[int, ...] = ()
        self._scratch: NDArray[np.float64] | None = None
        self._finite: deque[bool] = deque(maxlen=strategy.workers)
        self._now = 0.0
        # a cancelled chunk's fate matters to the log, and where a real worker may answer all the same
        self._follow = log is not None or not cluster.virtual
        cluster.report_cuts = self._follow

    # ------------------------------------------------------------------------------------------- run

    def open(self) -> None:
        """Start the cluster's workers on the problem's partitions."""
        strategy = self.strategy
        self.cluster.prepare()
        partitions = None
        if self.problem is not None:
            partitions = self.problem.split(strategy.partitions)
            self._sizes = partitions.sizes
        present = self.cluster.open(
            partitions, total=strategy.partitions, slots=strategy.slots, holdings=strategy.holdings
        )
        self.present = set(present)

    def begin(self) -> None:
        """Publish the first versions and ask the strategy for its first commands."""
        if self.problem is not None and self.optimizer is not None:
            for slot in self.versions:
                w = self.models[slot] = self.cluster.blank(slot)
                w[:] = self.problem.initial()
                self.optimizer_states[slot] = self.optimizer.start(w)
                self.cluster.publish(slot, 0, w)
        self._now = self.cluster.now()
        self._obey(self.strategy.start(Fleet(self.strategy.workers, tuple(sorted(self.present)), self._now)))

    def run(self) -> None:
        """Go on until a limit is reached or the strategy stops; raises :class:`~anyk.errors.RunFailed` if it failed."""
        if self.finished:
            return
        strategy, log, given, on = self.strategy, self.log, self._given, self.strategy.on
        limit = self.seconds
        for event in self.cluster.events():
            if event is None:
                if log is not None:
                    log.tidy()
                if self.interrupted or (limit is not None and self.cluster.now() >= limit):
                    break
                continue
            if limit is not None and event[0] >= limit:
                break
            self._now = event[0]
            kind = type(event)
            if kind is Reply:
                entry = given.get(event[2])
                if entry is None:
                    self._late(event)  # type: ignore[arg-type]
                    continue
                entry.status[event[3]] = _ARRIVED  # type: ignore[misc]
                if log is not None:
                    self._stamp(entry, event)  # type: ignore[arg-type]
                self._finite.append(True)
            elif kind is Cut:
                self._close_cut(event)  # type: ignore[arg-type]
                continue
            elif kind is Failed:
                if not self._unusable(event):  # type: ignore[arg-type]
                    continue
            elif kind is Lost:
                self._lose(event)  # type: ignore[arg-type]
            elif kind is Joined:
                self.present.add(event.worker)  # type: ignore[union-attr]
            if log is not None:
                log.event(event)  # type: ignore[arg-type]
            self._obey(on(event))  # type: ignore[arg-type]
            if log is not None:
                log.tidy()
            if self.finished:
                break
            if self.save is not None and clock.monotonic() >= self.save_at:
                self.save()
                self.save_at = clock.monotonic() + self.save_every
        else:
            raise RunFailed(
                f"nothing can happen any more at step {self.step}: '{strategy.spec}' waits for workers that will not answer"
            )
        if self.stopped is not None and self.stopped.failed:
            raise RunFailed(self.stopped.reason)

    @property
    def step(self) -> int:
        """Versions made so far, of the slot that has the fewest."""
        return min(self.versions.values())

    @property
    def finished(self) -> bool:
        """Whether a limit has been reached or the strategy has stopped."""
        return (
            self.stopped is not None
            or self.interrupted
            or self.reached
            or (self.steps is not None and self.step >= self.steps)
        )

    def settle(self) -> None:
        """Close the books: what is still open is cancelled."""
        now = self._now
        if self.log is not None:
            self.log.seq += 1  # what is written from here on is forgotten when the run is resumed
        for task, entry in list(self._given.items()):
            for chunk, status in enumerate(entry.status):
                if status == _ARRIVED:
                    self._end(task, entry, chunk, "discarded")
                elif status == _OPEN:
                    entry.cancelled = now
                    self._end(task, entry, chunk, "cancelled")
        for task, entry in list(self._cut.items()):
            self._forget(task, entry)
        if self.log is not None:
            self.log.flush()

    # ------------------------------------------------------------------------------------------- commands

    def _obey(self, commands: Sequence[Command]) -> None:
        orders: list[Order] = []
        for command in commands:
            kind = type(command)
            if kind is Dispatch:
                self._dispatch(command)  # type: ignore[arg-type]
                orders.append(command)  # type: ignore[arg-type]
            elif kind is Cancel:
                self._cancel(command)  # type: ignore[arg-type]
                orders.append(command)  # type: ignore[arg-type]
            elif kind is Combine:
                if orders:
                    self.cluster.execute(orders)
                    orders = []
                self._combine(command)  # type: ignore[arg-type]
            elif kind is Stop:
                self.stopped = command  # type: ignore[assignment]
                break
            else:
                orders.append(command)  # type: ignore[arg-type]
        if orders:
            self.cluster.execute(orders)

    def _dispatch(self, command: Dispatch) -> None:
        now, versions, given = self._now, self.versions, self._given
        computing = self.problem is not None
        total = 0
        for task, (worker, chunks) in enumerate(zip(command.workers, command.chunks, strict=True), command.task):
            if len(chunks) == 1:
                on = (versions[chunks[0].slot],)
                total += 1
            else:
                on = tuple(versions[chunk.slot] for chunk in chunks)
                total += len(chunks)
            given[task] = _Given(worker, chunks, on, now)
            if computing:
                for chunk, version in zip(chunks, on, strict=True):
                    self.pin(chunk.slot, version)
        self.books.dispatched += total

    def _cancel(self, command: Cancel) -> None:
        given, now, books = self._given, self._now, self.books
        follow = self._follow or command.mode == "discard"
        quick = not follow and self.problem is None
        for task in command.tasks:
            entry = given.get(task)
            if entry is None:
                continue
            if quick and entry.left == 1 and len(entry.status) == 1:
                if entry.status[0] == _ARRIVED:
                    books.discarded += 1
                else:
                    books.cancelled += 1
                del given[task]
                continue
            entry.cancelled = now
            for chunk, status in enumerate(entry.status):
                if status == _ARRIVED:
                    self._end(task, entry, chunk, "discarded")
                elif status == _OPEN and not follow:
                    self._end(task, entry, chunk, "cancelled")
            if given.pop(task, None) is not None:  # some chunks are open, and what becomes of them is yet to be heard
                self._cut[task] = entry
                queue = self._cut_of[entry.worker]
                queue.append(task)
                if len(queue) > _CUTS_KEPT:
                    oldest = queue.popleft()
                    if oldest in self._cut:
                        self._forget(oldest, self._cut[oldest])

    def _combine(self, command: Combine) -> None:
        slot = command.slot
        version = self.versions[slot]
        self.last_update = command
        self.on_time = len(command.messages)
        bits = 0
        if self.problem is not None and self.optimizer is not None:
            w = self._stepped(command, version)
            self.models[slot] = w
            self.cluster.publish(slot, version + 1, w)
            bits = 0 if self.log is None else _bits(w)
        self.versions[slot] = version + 1
        oldest = total = 0
        given = self._given
        for (task, chunk), weight in zip(command.messages, command.weights, strict=True):
            entry = given[task]
            staleness = version - entry.versions[chunk]
            total += staleness
            if staleness > oldest:
                oldest = staleness
            self._end(task, entry, chunk, "late_counted" if staleness else "counted", version + 1, weight, slot)
        if self.problem is not None and not self._pins.get((slot, version)):
            self.cluster.release(slot, version)
        if hasattr(self.cluster, "step_done"):
            self.cluster.step_done()
        self.time = self._now = self.cluster.now()
        if self.log is not None:
            count = len(command.messages)
            row = (slot, version + 1, self.time, count, command.residual, command.gain, total / max(count, 1), oldest)
            self.log.update((*row, command.scale, bits))
        if self.watch is not None:
            self.watch(self)

    def _stepped(self, command: Combine, version: int) -> Vector:
        """The slot's next version."""
        assert self.problem is not None and self.optimizer is not None
        slot, problem = command.slot, self.problem
        rounding = float(np.finfo(problem.dtype).eps) * command.gain
        if rounding > _AMPLIFIED:
            raise RunFailed(
                f"decoding step {version} would amplify the rounding of {problem.dtype} replies {command.gain:.1e} "
                f"times; use {'float64 data or ' if problem.dtype == np.float32 else ''}a repetition code"
            )
        gradient = self.cluster.combine(command.messages, command.weights)
        w = self.models[slot]
        samples = problem.samples if command.divisor == "all" else self._covered(command.messages)
        gradient /= samples
        if problem.l2:
            if self._scratch is None:
                self._scratch = np.empty(problem.dimension)
            gradient += np.multiply(w, problem.l2, out=self._scratch)
        typed = gradient.astype(problem.dtype, copy=False)
        blank, state = self.cluster.blank(slot), self.optimizer_states[slot]
        stepped = self.optimizer.step(w, typed, state, version, command.scale, out=blank)
        if not np.isfinite(np.add.reduce(stepped)) and not np.isfinite(stepped).all():
            raise RunFailed(f"diverged at step {version}: the model is no longer finite; lower the learning rate")
        return stepped

    def _covered(self, messages: Sequence[tuple[int, int]]) -> int:
        return sum(self._sizes[j] for task, chunk in messages for j in self._given[task].chunks[chunk].partitions)

    # ------------------------------------------------------------------------------------------- how chunks end

    def _end(
        self,
        task: int,
        entry: _Given,
        chunk: int,
        ending: str,
        step: int | None = None,
        weight: float | None = None,
        slot: str | None = None,
        done: int | None = None,
        due: float | None = None,
    ) -> None:
        """Close a chunk in the books and the log, and give back what it held."""
        books = self.books
        setattr(books, ending, getattr(books, ending) + 1)
        arrived = entry.status[chunk] == _ARRIVED
        entry.status[chunk] = _ENDED
        entry.left -= 1
        if self.log is not None:
            work: Chunk = entry.chunks[chunk]
            timing, received = entry.timing[chunk] if entry.timing is not None else (None, None)
            times: tuple[Any, ...] = timing[:4] if timing is not None else (None, None, None, None)
            row = (task, chunk, entry.worker, entry.versions[chunk], self.log.work(work), entry.at, *times, received,
                   entry.cancelled, len(work.partitions) if arrived else done, due, ending, slot or work.slot, step,
                   weight, timing.digest if timing is not None else None)  # fmt: skip
            self.log.chunk(row)
        if self.problem is not None:
            if arrived:
                self.cluster.free(task, chunk)
            self.unpin(entry.chunks[chunk].slot, entry.versions[chunk])
        if not entry.left:
            self._given.pop(task, None)
            self._cut.pop(task, None)

    def pin(self, slot: str, version: int) -> None:
        """Keep a version until it is unpinned as often."""
        key = (slot, version)
        self._pins[key] = self._pins.get(key, 0) + 1

    def unpin(self, slot: str, version: int) -> None:
        """Take one pin back; a version without any, and not the newest, is released."""
        key = (slot, version)
        self._pins[key] -= 1
        if not self._pins[key]:
            del self._pins[key]
            if version < self.versions[slot]:
                self.cluster.release(slot, version)

    def _stamp(self, entry: _Given, event: Reply) -> None:
        if entry.timing is None:
            entry.timing = [(None, 0.0)] * len(entry.chunks)
        entry.timing[event.chunk] = (event.timing, event.time)

    def _late(self, event: Reply) -> None:
        """A message of a cancelled task came all the same."""
        entry = self._cut.get(event.task)
        if entry is None or entry.status[event.chunk] != _OPEN:
            self.cluster.free(event.task, event.chunk)
            return
        self._stamp(entry, event)
        entry.status[event.chunk] = _ARRIVED
        self._end(event.task, entry, event.chunk, "discarded", due=event.time)
        self._overtake(event.worker, event.task)

    def _close_cut(self, event: Cut) -> None:
        """A worker says how far a cancelled chunk had come."""
        entry = self._cut.get(event.task)
        if entry is not None and entry.status[event.chunk] == _OPEN:
            self._end(event.task, entry, event.chunk, "cancelled", done=event.done, due=event.due)
        self._overtake(event.worker, event.task)

    def _overtake(self, worker: int, task: int) -> None:
        """A worker speaks of ``task``: what it was given before and never spoke of, it never began."""
        queue = self._cut_of[worker]
        while queue and queue[0] <= task:
            older = queue.popleft()
            if older != task and older in self._cut:
                self._forget(older, self._cut[older])
            elif older == task and older in self._cut:
                queue.appendleft(older)
                return

    def _forget(self, task: int, entry: _Given) -> None:
        for chunk, status in enumerate(entry.status):
            if status == _OPEN:
                self._end(task, entry, chunk, "cancelled")

    def _unusable(self, event: Failed) -> bool:
        """Book a message that must not be used; whether the strategy is to hear of it."""
        entry = self._given.get(event.task)
        if entry is None:  # it had been cancelled, and its model version may have been overwritten under it
            entry = self._cut.get(event.task)
            if entry is not None and entry.status[event.chunk] == _OPEN:
                self._end(event.task, entry, event.chunk, "discarded", due=event.time)
            return False
        self.books.unusable += 1
        if self.log is not None:
            self.log.note(event.time, "set aside", f"worker {event.worker}, step {self.step}: {event.reason}")
        if entry.status[event.chunk] == _OPEN:
            self._end(event.task, entry, event.chunk, "lost")
        if event.reason.startswith("not finite"):
            self._finite.append(False)
            bad = len(self._finite) - sum(self._finite)
            if 2 * bad > self.strategy.workers:
                raise RunFailed(
                    f"diverged at step {self.step}: most replies are {event.reason}; lower the learning rate"
                )
        elif not event.reason.startswith("wrong"):
            raise RunFailed(f"worker {event.worker} could not compute its gradient at step {self.step}: {event.reason}")
        return True

    def _lose(self, event: Lost) -> None:
        self.present.discard(event.worker)
        if self.log is not None:
            self.log.note(event.time, "given up" if event.gone else "lost", f"worker {event.worker}: {event.reason}")
        for tasks in (self._given, self._cut):
            for task, entry in [(t, e) for t, e in tasks.items() if e.worker == event.worker]:
                for chunk, status in enumerate(entry.status):
                    if status == _OPEN:
                        self._end(task, entry, chunk, "lost")

    # ------------------------------------------------------------------------------------------- checkpoints

    def state(self) -> dict[str, Any]:
        """Everything a resumed run needs besides vectors, as plain data."""
        return {
            "strategy": self.strategy.state(),
            "cluster": self.cluster.state(),
            "time": self.time,
            "now": self._now,
            "versions": dict(self.versions),
            "present": sorted(self.present),
            "books": self.books.plain(),
            "cut": sum(status == _OPEN for entry in self._cut.values() for status in entry.status),
            "given": [
                [task, e.worker, e.chunks, e.versions, e.at, e.status, e.timing] for task, e in self._given.items()
            ],
            "finite": list(self._finite),
            "seq": self.log.seq if self.log is not None else 0,
        }

    def vectors(self) -> dict[str, Vector]:
        """The vectors a resumed run needs: models in use, optimiser states, messages that wait to be used."""
        vectors: dict[str, Vector] = {}
        for slot, w in self.models.items():
            vectors[f"model/{slot}/{self.versions[slot]}"] = w
            for name, value in self.optimizer_states[slot].items():
                vectors[f"optimizer/{slot}/{name}"] = value
        for slot, version in self._pins:
            vectors[f"model/{slot}/{version}"] = self.cluster.model(slot, version)
        for task, entry in self._given.items():
            for chunk, status in enumerate(entry.status):
                if status == _ARRIVED:
                    vectors[f"message/{task}/{chunk}"] = self.cluster.message(task, chunk)
        return vectors

    def restore(self, state: dict[str, Any], vectors: dict[str, Vector]) -> None:
        """Go on from a checkpoint; called after :meth:`open` in place of :meth:`begin`."""
        self.books = Books(**state["books"])
        self.books.cancelled += state["cut"]  # whatever had been cut off then is over now
        self.time, self._now = state["time"], state["now"]
        self.versions = dict(state["versions"])
        here, self.present = self.present, set(state["present"])
        self._finite.extend(state["finite"])
        for task, worker, chunks, versions, at, status, timing in state["given"]:
            work = tuple(Chunk(tuple(c[0]), tuple(c[1]), c[2], c[3]) for c in chunks)
            entry = self._given[task] = _Given(worker, work, tuple(versions), at)
            entry.status, entry.left = list(status), sum(s != _ENDED for s in status)
            if timing is not None:
                entry.timing = [(None if t is None else Timing(*t), received) for t, received in timing]
            for chunk, version, s in zip(work, versions, status, strict=True):
                if s != _ENDED:
                    self.pin(chunk.slot, version)
        models = sorted((int(k.split("/")[2]), k.split("/")[1], v) for k, v in vectors.items() if k.startswith("model/"))
        for version, slot, saved in models:
            w = self.models[slot] = self.cluster.blank(slot)
            w[:] = saved
            self.cluster.publish(slot, version, w)
        for key, value in vectors.items():
            kind, *rest = key.split("/")
            if kind == "optimizer":
                self.optimizer_states.setdefault(rest[0], {})[rest[1]] = value
            elif kind == "message":
                entry = self._given[int(rest[0])]
                self.cluster.hold(int(rest[0]), int(rest[1]), entry.chunks[int(rest[1])].partitions, value)
        for slot in self.versions:
            self.optimizer_states.setdefault(slot, {})
        self.strategy.restore(state["strategy"])
        self.cluster.restore(self._now, state["cluster"])
        for worker in sorted(here - self.present) if not self.cluster.virtual else ():
            self.present.add(worker)
            event: Event = Joined(self._now, worker)
            if self.log is not None:
                self.log.event(event)
            self._obey(self.strategy.on(event))


def _bits(w: Vector) -> int:
    words: NDArray[Any] = w.view(np.uint32 if w.dtype.itemsize == 4 else np.uint64)
    return int(np.add.reduce(words, dtype=np.uint64)) & 0x7FFF_FFFF_FFFF_FFFF
