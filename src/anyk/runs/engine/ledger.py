"""The ledger of a run, in which every dispatched chunk ends in exactly one way."""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any

from anyk.base.arrays import Vector, Vectors
from anyk.base.errors import RunFailed
from anyk.clusters.contract import Cluster
from anyk.clusters.steps import Place
from anyk.protocol import Cancel, Chunk, Combine, Cut, Dispatch, Failed, Mix, Progress, Reply, RequestMessage, Timing
from anyk.runs.engine.counts import Counts, Usage
from anyk.runs.engine.dispatches import ARRIVED, CANCELLED, ENDED, KEPT, OPEN, Batch, plain_weight
from anyk.runs.engine.versions import Versions
from anyk.runs.log.log_writer import LogWriter
from anyk.runs.log.schema import Ended, Reuse

_UNTIMED: tuple[Timing | None, float | None] = (None, None)
_NO_TIMES = (None, None, None, None, None)
_UNUSED = (None, None, None)
_CANCELLED_KEPT = 16  # cancelled tasks a silent worker may have before the oldest is recorded as never begun
_UNSEEN = Usage(0, 0.0, 0)  # without log and models, these statistics are not used


class Ledger:
    """The chunks under way, their status, and how each ends.

    ``computes``: whether there are messages, so that they and the versions they need are stored.
    """

    def __init__(
        self,
        strategy: str,
        workers: int,
        cluster: Cluster,
        versions: Versions,
        log: LogWriter | None,
        *,
        computes: bool,
    ) -> None:
        self._strategy, self._cluster, self._versions, self._log = strategy, cluster, versions, log
        self._computes = computes
        self.counts = Counts()
        self.sizes: Sequence[int] = ()  # rows of each partition, known when the data has been split
        self._next = 0  # the least number that the next task may have
        self._given: dict[int, Batch] = {}  # by task
        self._cancelled: dict[int, Batch] = {}  # cancelled tasks whose end is not known yet
        self._cancelled_of: list[deque[int]] = [deque() for _ in range(workers)]
        self.gathered: dict[Place, list[tuple[Place, float]]] = {}  # messages inside messages

    @property
    def under_way(self) -> Mapping[int, Batch]:
        """The batches of tasks under way, by task."""
        return self._given

    @property
    def cancelled(self) -> Mapping[int, Batch]:
        """The batches of cancelled tasks whose end is not known yet, by task."""
        return self._cancelled

    def batch(self, task: int) -> Batch | None:
        """Return the batch of a task that is under way, or None."""
        return self._given.get(task)

    def version(self, slot: str, task: int) -> int:
        """Return the version of a slot on which a task is computed."""
        return self._given[task].versions[slot]

    def partitions(self, task: int, chunk: int) -> tuple[int, ...]:
        """Return the partitions that a message covers."""
        batch = self._given[task]
        inside = [j for (t, c), _ in self.gathered.get((task, chunk), ()) for j in self.partitions(t, c)]
        return tuple(dict.fromkeys([*batch.chunks[task - batch.first][chunk].partitions, *inside]))

    def chunk(self, task: int, index: int) -> Chunk:
        """Return a chunk of a task that is under way."""
        batch = self._given[task]
        return batch.chunks[task - batch.first][index]

    def arrived(self, task: int, index: int) -> bool:
        """Return whether a message has arrived, and has neither been used nor freed."""
        batch = self._given.get(task)
        return batch is not None and batch.status[(task - batch.first) * batch.width + index] == ARRIVED

    def messages(self) -> Iterator[tuple[Place, int]]:
        """Yield the messages that have arrived and not been used, each as (task, chunk) and its worker."""
        for batch in dict.fromkeys(self._given.values()):
            for cell, status in enumerate(batch.status):
                if status == ARRIVED:
                    item, index = divmod(cell, batch.width)
                    yield (batch.first + item, index), batch.workers[item]

    def covered(self, messages: Sequence[Place]) -> int:
        """Return the number of rows that messages cover."""
        return sum(self.sizes[j] for message in messages for j in self.partitions(*message))

    # ------------------------------------------------------------------------------------------- dispatch and arrival

    def dispatch(self, command: Dispatch, now: float) -> None:
        """Open the chunks of tasks."""
        first, workers, chunks, _ = command
        if first < self._next:
            raise RunFailed(
                f"task {first} was dispatched twice: '{self._strategy}' must number its tasks upwards and never "
                f"reuse a number (anyk strategies check '{self._strategy}' shows when it does)"
            )
        self._next = first + len(workers)
        batch = Batch(first, workers, chunks, self._versions.newest.copy(), now)
        if len(workers) == 1:
            self._given[first] = batch
        else:
            self._given.update(dict.fromkeys(range(first, first + len(workers)), batch))
        self.counts.dispatched += batch.left
        if self._computes:
            for slot in batch.slots():
                self._versions.pin(slot, batch.versions[slot])

    def request(self, command: RequestMessage) -> None:
        """Record the partitions and coefficients of a message that has been requested."""
        batch = self._given[command.task]
        item = command.task - batch.first
        task = list(batch.chunks[item])
        task[command.chunk] = task[command.chunk]._replace(
            partitions=command.partitions, coefficients=command.coefficients
        )
        batch.chunks = [*batch.chunks[:item], tuple(task), *batch.chunks[item + 1 :]]
        if command.messages:
            self.gathered[command.task, command.chunk] = list(zip(command.messages, command.weights, strict=True))

    def arrive(self, reply: Reply) -> Reply | None:
        """Record a message that arrived; return it with its staleness, or None if it may not be used."""
        batch = self._given.get(reply.task)
        if batch is None:
            self._late(reply)
            return None
        cell = (reply.task - batch.first) * batch.width + reply.chunk
        if batch.status[cell] != OPEN:  # repeated, or its worker was lost before
            if batch.status[cell] == ENDED:
                self._cluster.store.free(reply.task, reply.chunk)
            return None
        batch.status[cell] = ARRIVED
        if self._log is not None:
            batch.timing[cell] = (reply.timing, reply.time)
        return reply if batch.versions == self._versions.newest else self._aged(reply, batch)

    def aged(self, reply: Reply) -> Reply:
        """Return a reply with the staleness that its message would have if a step used it now."""
        batch = self._given.get(reply.task)
        return reply if batch is None else self._aged(reply, batch)  # none if its task was cancelled

    def _aged(self, reply: Reply, batch: Batch) -> Reply:
        slot = batch.chunks[reply.task - batch.first][reply.chunk].slot
        staleness = self._versions.newest[slot] - batch.versions[slot]
        return tuple.__new__(Reply, (*reply[:-1], staleness)) if staleness else reply  # faster than _replace

    def progress(self, event: Progress) -> None:
        """Record the number of finished partitions of a chunk that is sent on request."""
        batch = self._given.get(event.task)
        if batch is not None:
            batch.done[batch.cell_of(event)] = event.done

    def _late(self, event: Reply) -> None:
        """Free a message that arrived after its task was cancelled, and record its end."""
        batch = self._cancelled.get(event.task)
        cell = batch.cell_of(event) if batch is not None else 0
        self._cluster.store.free(event.task, event.chunk)
        if batch is None or batch.status[cell] != CANCELLED:
            return
        batch.timing[cell] = (event.timing, event.time)
        self._end(batch, cell, "discarded", due=event.time, arrived=True)
        self._overtake(event.worker, event.task)

    def fail(self, event: Failed) -> None:
        """Record an unusable message."""
        batch = self._given[event.task]
        cell = batch.cell_of(event)
        self.counts.unusable += 1
        if batch.status[cell] == OPEN:
            self._end(batch, cell, "lost")
        elif batch.status[cell] == ARRIVED:  # it turned out to contradict another
            self._end(batch, cell, "discarded")

    def fail_late(self, event: Failed) -> None:
        """Record the failure of a cancelled task, which is no fault: its model may have been overwritten meanwhile."""
        batch = self._cancelled.get(event.task)
        if batch is not None:
            cell = batch.cell_of(event)
            if batch.status[cell] == CANCELLED:
                self._end(batch, cell, "discarded", due=event.time)

    def cut(self, event: Cut) -> None:
        """Record the number of partitions that a worker finished of a cancelled chunk."""
        batch = self._cancelled.get(event.task)
        if batch is not None:
            cell = batch.cell_of(event)
            if batch.status[cell] == CANCELLED:
                self._end(batch, cell, "cancelled", done=event.done, due=event.due)
        self._overtake(event.worker, event.task)

    def lose(self, worker: int) -> None:
        """End all chunks of a lost worker."""
        for tasks, waiting in ((self._given, OPEN), (self._cancelled, CANCELLED)):
            for task, batch in list(tasks.items()):
                if batch.workers[task - batch.first] != worker:
                    continue
                for cell in batch.cells(task, waiting):
                    self._end(batch, cell, "lost")
                if tasks is self._cancelled:
                    del self._cancelled[task]
        self._cancelled_of[worker].clear()

    def _overtake(self, worker: int, task: int) -> None:
        """Record that a worker reported ``task``, and never began cancelled tasks before it that it did not report."""
        queue = self._cancelled_of[worker]
        while queue and queue[0] < task:
            self._forget(queue.popleft())
        if queue and queue[0] == task and not self._cancelled[task].cells(task, CANCELLED):
            del self._cancelled[queue.popleft()]

    def _forget(self, task: int) -> None:
        """End the chunks of a cancelled task that its worker will not report."""
        batch = self._cancelled.pop(task, None)
        if batch is not None:
            for cell in batch.cells(task, CANCELLED):
                self._end(batch, cell, "cancelled")

    # ------------------------------------------------------------------------------------------- how chunks end

    def cancel(self, command: Cancel, cuts: Sequence[Cut], now: float, *, later: bool) -> None:
        """Record the ends of cancelled tasks; ``cuts``: those that the cluster reported immediately.

        ``later``: workers may still report the ends of the tasks.
        """
        batches, counts = self._given, self.counts
        tasks = command.tasks
        for cut in cuts:
            batch = batches[cut.task]
            batch.cancelled[cut.task] = now
            cell = batch.cell_of(cut)
            if batch.status[cell] == OPEN:
                self._end(batch, cell, "cancelled", done=cut.done, due=cut.due)
        while tasks:
            batch_or_none = batches.get(tasks[0])
            if batch_or_none is None:
                tasks = tasks[1:]
                continue
            batch = batch_or_none
            first = batch.first
            covers_all = isinstance(tasks, range) and tasks[0] == first and len(tasks) >= len(batch.workers)
            mine = range(first, first + len(batch.workers)) if covers_all else tasks[:1]
            tasks = tasks[len(mine) :]
            if covers_all and self._log is None and not self._computes and not later:
                counts.discarded += batch.status.count(ARRIVED)
                counts.cancelled += batch.status.count(OPEN)
                batch.left = 0
            else:
                for task in mine:
                    batch.cancelled.setdefault(task, now)
                    self._cancel_task(task, batch, later)
            if covers_all:
                self._close(batch)

    def _cancel_task(self, task: int, batch: Batch, later: bool) -> None:
        start = (task - batch.first) * batch.width
        cut = False
        for cell in range(start, start + batch.width):
            status = batch.status[cell]
            if status == ARRIVED:
                self._end(batch, cell, "discarded")
            elif status == KEPT:
                self._let_go(batch, cell)
            elif status == OPEN:
                if later:
                    cut = True
                    batch.status[cell] = CANCELLED
                    batch.left -= 1
                else:
                    self._end(batch, cell, "cancelled")
        self._given.pop(task, None)
        if cut:
            self._cancelled[task] = batch
            queue = self._cancelled_of[batch.workers[task - batch.first]]
            queue.append(task)
            if len(queue) > _CANCELLED_KEPT:
                self._forget(queue.popleft())
        if not batch.left:
            self._close(batch)

    def with_gathered(self, command: Combine | Mix) -> Combine | Mix:
        """Return the command with the messages inside messages added, each with its resulting weight."""
        messages, weights = list(command.messages), list(command.weights)
        for message, weight in zip(messages, weights, strict=True):  # grows while it is walked through
            for inside, share in self.gathered.get(message, ()):
                messages.append(inside)
                weights.append(weight * share)
        return command._replace(messages=messages, weights=weights)

    def use(self, command: Combine | Mix, version: int) -> Usage:
        """End the chunks whose messages were used in the step from ``version``; return statistics of the messages."""
        slot = command.slot
        for message in command.messages if self.gathered else ():
            self.gathered.pop(message, None)
        keep = set(command.keep) if command.keep else ()
        if self._log is None and not self._computes:
            self._count_used(command.messages, keep, slot=slot, version=version)
            return _UNSEEN
        oldest = total = replies = 0
        used: set[int] = set()
        for (task, chunk), weight in zip(command.messages, command.weights, strict=True):
            batch = self._given[task]
            cell = (task - batch.first) * batch.width + chunk
            staleness = version - batch.versions[slot]
            if staleness:
                total += staleness
                if staleness > oldest:
                    oldest = staleness
            if batch.status[cell] == KEPT:
                if self._log is not None:
                    self._log.reuse(Reuse(slot, version + 1, task, chunk, plain_weight(weight)))
                continue
            replies += 1
            used.add(batch.workers[task - batch.first])
            ending = "late_counted" if staleness else "counted"
            stays = (task, chunk) in keep
            self._end(batch, cell, ending, (slot, version + 1, plain_weight(weight)), kept=stays)
        return Usage(replies, total / max(len(command.messages), 1), oldest, used)

    def _count_used(self, messages: Sequence[Place], keep: Container[Place], *, slot: str, version: int) -> None:
        """End the chunks of messages that were used, where nothing is computed or logged."""
        counts = self.counts
        for task, chunk in messages:
            batch = self._given[task]
            cell = (task - batch.first) * batch.width + chunk
            if batch.status[cell] == KEPT:
                continue
            if batch.versions[slot] < version:
                counts.late_counted += 1
            else:
                counts.counted += 1
            if (task, chunk) in keep:
                batch.status[cell] = KEPT
                continue
            batch.status[cell] = ENDED
            batch.left -= 1
            if not batch.left:
                self._close(batch)

    def settle(self, now: float) -> None:
        """End all open chunks at the end of the run."""
        for batch in dict.fromkeys(self._given.values()):
            for cell, status in enumerate(batch.status):
                if status == KEPT:
                    self._let_go(batch, cell)
                elif status != ENDED:
                    batch.cancelled.setdefault(batch.first + cell // batch.width, now)
                    self._end(batch, cell, "discarded" if status == ARRIVED else "cancelled")
            self._close(batch)
        for task in list(self._cancelled):
            self._forget(task)

    def _end(
        self,
        batch: Batch,
        cell: int,
        ending: str,
        use: tuple[str | None, int | None, float | str | None] = _UNUSED,
        done: int | None = None,
        due: float | None = None,
        arrived: bool = False,
        kept: bool = False,
    ) -> None:
        """End a chunk here and in the log, and release its message unless it is ``kept``.

        ``use``: the slot, the version and the weight for which it was used. ``arrived``: its message came late.
        """
        width = batch.width
        self.counts.end(ending)
        status = batch.status[cell]
        waiting = status == ARRIVED
        batch.status[cell] = KEPT if kept else ENDED
        if status != CANCELLED and not kept:
            batch.left -= 1
        item, index = divmod(cell, width) if width > 1 else (cell, 0)
        log = self._log
        if log is not None:
            chunk = batch.chunks[item][index]
            timing, received = batch.timing.pop(cell, _UNTIMED)
            started, computing, computed, sent, digest = timing or _NO_TIMES
            slot, step, weight = use
            if waiting or arrived:
                done = len(chunk.partitions)
            reported = batch.done.pop(cell, 0)  # it may have been asked for less
            if reported:
                done = max(done or 0, reported)
            log.chunk(
                Ended(  # by position, as keywords take three times as long, and every chunk of a run ends here
                    batch.first + item,
                    index,
                    batch.workers[item],
                    batch.versions[chunk.slot],
                    log.work(chunk),
                    batch.dispatched,
                    started,
                    computing,
                    computed,
                    sent,
                    received,
                    batch.cancelled.get(batch.first + item),
                    done,
                    due,
                    ending,
                    slot or chunk.slot,
                    step,
                    weight,
                    digest,
                )
            )
        if waiting and self._computes and not kept:
            self._cluster.store.free(batch.first + item, index)
        if not batch.left:
            self._close(batch)

    def _let_go(self, batch: Batch, cell: int) -> None:
        """Release a message that was counted and kept."""
        batch.status[cell] = ENDED
        batch.left -= 1
        if self._computes:
            item, index = divmod(cell, batch.width)
            self._cluster.store.free(batch.first + item, index)
        if not batch.left:
            self._close(batch)

    def _close(self, batch: Batch) -> None:
        """Forget a batch whose chunks can no longer be used."""
        if batch.closed:
            return
        batch.closed = True
        pop = self._given.pop
        for task in range(batch.first, batch.first + len(batch.workers)):
            pop(task, None)
        if self.gathered:
            self.gathered = {message: inside for message, inside in self.gathered.items() if message[0] in self._given}
        if self._computes:
            for slot in batch.slots():
                self._versions.unpin(slot, batch.versions[slot])

    # ------------------------------------------------------------------------------------------- checkpoints

    def state(self) -> dict[str, Any]:
        """Return counts and tasks under way, as plain data."""
        return {
            "ledger": self.counts.plain(),
            "cut": [batch.plain(self._cancelled) for batch in dict.fromkeys(self._cancelled.values())],
            "given": [batch.plain(self._given) for batch in dict.fromkeys(self._given.values())],
            "gathered": [[list(message), inside] for message, inside in self.gathered.items()],
            "next": self._next,
        }

    def vectors(self) -> Vectors:
        """Return the model versions of tasks under way, and the messages that have not been used."""
        vectors: Vectors = {}
        for batch in dict.fromkeys(self._given.values()):
            for slot in batch.slots():
                version = batch.versions[slot]
                vectors[f"model/{slot}/{version}"] = self._cluster.store.model(slot, version)
            for cell, status in enumerate(batch.status):
                if status in (ARRIVED, KEPT):
                    task, chunk = batch.first + cell // batch.width, cell % batch.width
                    vectors[f"message/{task}/{chunk}"] = self._cluster.store.message((task, chunk))
        return vectors

    def restore(self, state: Mapping[str, Any], vectors: Mapping[str, Vector]) -> dict[int, int]:
        """Continue from :meth:`state` and :meth:`vectors`, after the versions have been restored.

        Return, by task, the worker whose message a task under way starts from.
        """
        self.counts = Counts(**state["ledger"])
        self._next = state["next"]
        for plain in state["given"]:
            batch = Batch.from_plain(plain)
            tasks = range(batch.first, batch.first + len(batch.workers))
            self._given.update((task, batch) for task in tasks if task not in batch.cancelled)
            for slot in batch.slots():
                self._versions.pin(slot, batch.versions[slot])
        for plain in state["cut"]:
            batch = Batch.from_plain(plain)
            batch.closed = True
            for task, worker in enumerate(batch.workers, batch.first):
                if batch.cells(task, CANCELLED):
                    self._cancelled[task] = batch
                    self._cancelled_of[worker].append(task)
        for (task, chunk), inside in state["gathered"]:
            self.gathered[task, chunk] = [((t, c), weight) for (t, c), weight in inside]
        self._restore_messages(vectors)
        chunks: list[Chunk] = [chunk for batch in self._given.values() for task in batch.chunks for chunk in task]
        return {task: worker for chunk in chunks for worker, task, _, _ in chunk.mix}

    def _restore_messages(self, vectors: Mapping[str, Vector]) -> None:
        for key, value in vectors.items():
            kind, *numbers = key.split("/")
            if kind == "message":
                task, chunk = int(numbers[0]), int(numbers[1])
                batch = self._given[task]
                item = task - batch.first
                ids = () if batch.chunks[item][chunk].steps else self.partitions(task, chunk)
                self._cluster.store.restore_message(batch.workers[item], task, chunk, ids, value)
