"""Every chunk ends in exactly one way, and its message and its version are stored as long as they may be used."""

from __future__ import annotations

import copy
import json
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from anyk.base.errors import RunFailed
from anyk.clusters.store import Message, Place, VectorStore
from anyk.protocol import (
    Cancel,
    Chunk,
    Combine,
    Cut,
    Dispatch,
    Failed,
    Layout,
    Progress,
    Reply,
    RequestMessage,
    Task,
    Timing,
)
from anyk.runs.engine.counts import ENDINGS, Usage
from anyk.runs.engine.ledger import Ledger
from anyk.runs.engine.versions import Versions
from anyk.runs.log.log_writer import LogWriter
from anyk.testing import Squares

pytestmark = pytest.mark.in_process

SIZES = (1, 10, 100, 1000, 10_000)  # rows of partitions, so that a sum of them tells which they are
WORKERS = 4


class Books:
    """A ledger with a store and a log of its own; ``now`` counts what has happened.

    ``quick``: as in a simulation of times only, without log and messages.
    """

    def __init__(self, slots: tuple[str, ...] = ("model",), *, quick: bool = False) -> None:
        self.store, self.log = VectorStore(), None if quick else LogWriter()
        cluster = cast(Any, SimpleNamespace(store=self.store, publish=self._publish))
        layout = Layout(WORKERS, len(SIZES), (tuple(range(len(SIZES))),) * WORKERS, slots)
        self.versions = Versions(cluster, layout, None if quick else Squares(len(SIZES)), None)
        self.ledger = Ledger("toy", WORKERS, cluster, self.versions, self.log, computes=not quick)
        self.ledger.sizes = SIZES
        self.now = 0.0
        for slot in slots:
            self._publish(slot, 0, np.zeros(1))

    def _publish(self, slot: str, version: int, w: Any) -> None:
        self.store.publish(slot, version, w)

    @property
    def counts(self) -> dict[str, int]:
        """The counts that are not 0."""
        return {name: count for name, count in self.ledger.counts.plain().items() if count}

    def chunks(self, columns: str) -> dict[Place, Any]:
        """The columns of each chunk that has ended, by task and chunk; fails if one has ended twice."""
        assert self.log is not None
        self.log.flush()
        rows = self.log.rows(f"SELECT task, chunk, {columns} FROM chunks")
        by_place = {(task, chunk): rest if len(rest) > 1 else rest[0] for task, chunk, *rest in rows}
        assert len(by_place) == len(rows), "a chunk has ended twice"
        return by_place

    @property
    def endings(self) -> dict[Place, str]:
        return self.chunks("ending")

    def has(self, version: int, slot: str = "model") -> bool:
        """Whether a version is stored."""
        try:
            return self.store.model(slot, version) is not None
        except KeyError:
            return False

    # what a driver does

    def dispatch(self, first: int, workers: Sequence[int], tasks: Sequence[Task] | None = None) -> None:
        """Give workers tasks; by default of one chunk, of the partition with the worker's number."""
        self.now += 1.0
        given = [(Chunk((worker,), (1.0,)),) for worker in workers] if tasks is None else tasks
        self.ledger.dispatch(Dispatch(first, workers, given), self.now)

    def reply(self, worker: int, task: int, chunk: int = 0) -> bool:
        """Have a message arrive; it says how many events there have been."""
        self.now += 1.0
        self.store.arrived[task, chunk] = Message((), np.array([self.now]), worker)
        times = Timing(self.now - 0.4, self.now - 0.3, self.now - 0.2, self.now - 0.1, digest=7)
        return self.ledger.arrive(Reply(self.now, worker, task, chunk, times))

    def cancel(self, tasks: Sequence[int], cuts: Sequence[Cut] = (), *, later: bool = False) -> None:
        self.now += 1.0
        self.ledger.cancel(Cancel(tasks), cuts, self.now, later=later)

    def step(
        self,
        messages: Sequence[Place],
        weights: Sequence[Any] | None = None,
        keep: Sequence[Place] = (),
        slot: str = "model",
    ) -> Usage:
        """Take a step, as ``Driver._update`` does."""
        self.now += 1.0
        command = Combine(slot, messages, [1.0] * len(messages) if weights is None else weights, keep=keep)
        full = self.ledger.with_gathered(command)
        version = self.versions[slot]
        self.versions.publish(slot, np.zeros(1))
        return self.ledger.use(full, version)

    def settle(self) -> None:
        self.now += 1.0
        self.ledger.settle(self.now)

    def resumed(self) -> Books:
        """The books of a run that is resumed from a checkpoint of this one."""
        state = json.loads(json.dumps(self.ledger.state()))
        books = Books(tuple(self.versions.newest))
        books.versions.newest = dict(self.versions.newest)
        books.now = self.now
        vectors = self.ledger.vectors()
        for slot, version in self.versions.newest.items():
            vectors[f"model/{slot}/{version}"] = self.store.model(slot, version)
            books.store.release(slot, 0)
        for key, vector in vectors.items():
            if key.startswith("model/"):
                _, slot, number = key.split("/")
                books.store.publish(slot, int(number), vector)
        books.ledger.restore(state, vectors)
        return books


def cut(books: Books, worker: int, task: int, done: int, due: float | None = None, chunk: int = 0) -> None:
    books.ledger.cut(Cut(books.now, worker, task, chunk, done, due))


# ------------------------------------------------------------------------------------------- how chunks end


def test_one_round_ends_its_chunks_in_each_usual_way() -> None:
    books = Books()
    books.dispatch(0, range(4))
    assert books.counts == {"dispatched": 4} and books.endings == {}
    assert books.reply(0, 0) and books.reply(1, 1) and books.reply(2, 2)
    assert books.step([(0, 0), (1, 0)], [2.0, 0.5]) == Usage(2, 0.0, 0, {0, 1})
    books.cancel(range(4))
    assert books.endings == {(0, 0): "counted", (1, 0): "counted", (2, 0): "discarded", (3, 0): "cancelled"}
    assert books.counts == {"dispatched": 4, "counted": 2, "discarded": 1, "cancelled": 1}
    assert not books.ledger.under_way and not books.store.arrived


def test_the_log_says_when_each_stage_was_and_what_for() -> None:
    books = Books()
    books.dispatch(0, [2, 1, 0])  # at 1
    books.reply(1, 1)  # at 2
    books.reply(2, 0)  # at 3
    books.step([(1, 0)], [0.5])
    books.cancel(range(3))  # at 5
    columns = "worker, version, dispatched, started, computing, computed, sent, received, cancelled, done, step, weight"
    assert books.chunks(columns) == {
        (1, 0): [1, 0, 1.0, 1.6, 1.7, 1.8, 1.9, 2.0, None, 1, 1, 0.5],
        (0, 0): [2, 0, 1.0, 2.6, 2.7, 2.8, 2.9, 3.0, 5.0, 1, None, None],
        (2, 0): [0, 0, 1.0, None, None, None, None, None, 5.0, None, None, None],
    }
    assert set(books.chunks("digest").values()) == {7, None}


def test_weights_of_blocks_are_written_as_json() -> None:
    books = Books()
    books.dispatch(0, [0])
    books.reply(0, 0)
    books.step([(0, 0)], [[0.5, 2.0]])
    assert json.loads(books.chunks("weight")[0, 0]) == [0.5, 2.0]


def test_tasks_may_differ_in_their_number_of_chunks() -> None:
    """Places without a chunk are not counted, nor cancelled."""
    books = Books()
    books.dispatch(0, [0, 1], [(Chunk((0,), (1.0,)),), (Chunk((1,), (1.0,)), Chunk((2,), (1.0,)))])
    assert books.counts == {"dispatched": 3}
    assert books.reply(1, 1, chunk=1)
    assert list(books.ledger.messages()) == [((1, 1), 1)]
    books.cancel(range(2))
    assert books.endings == {(0, 0): "cancelled", (1, 0): "cancelled", (1, 1): "discarded"}


def test_a_task_that_is_dispatched_twice_ends_the_run() -> None:
    books = Books()
    books.dispatch(3, [0, 1])
    for used in (0, 3, 4):
        with pytest.raises(RunFailed, match=f"^task {used} was dispatched twice: 'toy' must number its tasks upwards"):
            books.dispatch(used, [2])
    books.dispatch(7, [2])  # it may leave numbers out
    assert set(books.ledger.under_way) == {3, 4, 7}


def test_tasks_that_were_dispatched_together_may_end_apart() -> None:
    books = Books()
    books.dispatch(0, [0, 1, 2])
    books.cancel(range(1))
    assert set(books.ledger.under_way) == {1, 2} and books.endings == {(0, 0): "cancelled"}
    books.cancel([2])
    assert set(books.ledger.under_way) == {1} and books.reply(1, 1)
    books.cancel(range(9))  # those that have ended, or were never there, are passed over
    assert books.endings == {(0, 0): "cancelled", (1, 0): "discarded", (2, 0): "cancelled"}


def test_the_end_of_a_run_ends_what_is_open() -> None:
    """At that time, unless it was cancelled before."""
    books = Books()
    books.dispatch(0, range(3))
    books.cancel([2], later=True)  # at 2
    books.reply(0, 0)
    books.settle()  # at 4
    columns = books.chunks("ending, cancelled")
    assert columns == {(0, 0): ["discarded", 4.0], (1, 0): ["cancelled", 4.0], (2, 0): ["cancelled", 2.0]}
    assert not books.ledger.under_way and not books.ledger.cancelled and not books.store.arrived


def test_a_chunk_that_its_task_does_not_have_is_refused() -> None:
    books = Books()
    books.dispatch(0, [0, 1])
    with pytest.raises(RunFailed, match="^worker 1 reports chunk 1 of a task with 1 chunks"):
        books.ledger.progress(Progress(1.0, 1, 1, 1, 1))


def test_a_repeated_message_does_not_count_again() -> None:
    books = Books()
    books.dispatch(0, [0, 1])
    assert books.reply(0, 0) and not books.reply(0, 0)
    assert (0, 0) in books.store.arrived  # as a step may still use it
    books.step([(0, 0)])
    assert not books.reply(0, 0) and not books.store.arrived
    assert books.counts == {"dispatched": 2, "counted": 1} and books.endings == {(0, 0): "counted"}


def test_what_a_step_uses_need_not_be_of_the_newest_round() -> None:
    books = Books()
    books.dispatch(0, [0, 1])
    books.reply(0, 0)
    books.step([(0, 0)])
    books.dispatch(2, [0])
    books.reply(1, 1)
    books.reply(0, 2)
    assert books.step([(1, 0), (2, 0)]) == Usage(2, 0.5, 1, {0, 1})
    assert books.endings == {(0, 0): "counted", (1, 0): "late_counted", (2, 0): "counted"}
    assert books.chunks("version, step") == {(0, 0): [0, 1], (1, 0): [0, 2], (2, 0): [1, 2]}


# ------------------------------------------------------------------------------------------- late messages


def test_a_message_after_its_cancellation_is_discarded() -> None:
    books = Books()
    books.dispatch(0, [0, 1])
    books.cancel([0, 1], later=True)
    assert books.endings == {} and books.ledger.counts.open == 2  # their end is not known yet
    assert not books.ledger.under_way and set(books.ledger.cancelled) == {0, 1}
    assert not books.reply(1, 1) and not books.store.arrived
    assert not books.reply(1, 1)
    assert books.chunks("ending, received, done, due, cancelled") == {(1, 0): ["discarded", 3.0, 1, 3.0, 2.0]}
    assert set(books.ledger.cancelled) == {0}


def test_a_worker_reports_how_far_it_came() -> None:
    """Once: what it says afterwards changes nothing."""
    books = Books()
    books.dispatch(0, [0], [(Chunk((0, 1, 2), (1.0,) * 3),)])
    books.cancel([0], later=True)
    cut(books, 0, 0, done=2, due=5.5)
    cut(books, 0, 0, done=3, due=6.5)
    assert books.chunks("ending, done, due, received") == {(0, 0): ["cancelled", 2, 5.5, None]}
    assert not books.ledger.cancelled and not books.reply(0, 0) and not books.store.arrived


def test_what_a_virtual_cluster_reports_at_once_is_entered() -> None:
    books = Books()
    books.dispatch(0, [0, 1])
    books.reply(0, 0)
    reported = [Cut(3.0, 0, 0, 0, 1, 2.0), Cut(3.0, 1, 1, 0, 0, 4.5)]  # the first had arrived
    books.cancel(range(2), reported)
    columns = books.chunks("ending, done, due, cancelled")
    assert columns == {(0, 0): ["discarded", 1, None, 3.0], (1, 0): ["cancelled", 0, 4.5, 3.0]}


def test_a_later_report_shows_that_earlier_tasks_were_not_begun() -> None:
    """Of the same worker: it takes its tasks in order."""
    books = Books()
    for task, worker in enumerate([0, 1, 0, 0]):
        books.dispatch(task, [worker])
        books.cancel([task], later=True)
    cut(books, 0, 2, done=1)
    assert books.chunks("ending, done") == {(0, 0): ["cancelled", None], (2, 0): ["cancelled", 1]}
    assert set(books.ledger.cancelled) == {1, 3}
    books.reply(0, 3)
    assert books.endings[3, 0] == "discarded" and set(books.ledger.cancelled) == {1}


def test_a_task_is_remembered_until_all_of_it_was_reported() -> None:
    books = Books()
    books.dispatch(0, [0], [(Chunk((0,), (1.0,)), Chunk((1,), (1.0,)))])
    books.cancel([0], later=True)
    books.reply(0, 0, chunk=0)
    assert books.endings == {(0, 0): "discarded"} and set(books.ledger.cancelled) == {0}
    cut(books, 0, 0, done=0, chunk=1)
    assert books.endings == {(0, 0): "discarded", (0, 1): "cancelled"} and not books.ledger.cancelled


def test_of_a_silent_worker_the_oldest_tasks_are_given_up() -> None:
    """Of another they are not."""
    books = Books()
    books.dispatch(0, [1])
    books.cancel([0], later=True)
    for task in range(1, 20):
        books.dispatch(task, [0])
        books.cancel([task], later=True)
    assert books.endings == {(task, 0): "cancelled" for task in (1, 2, 3)}
    assert set(books.ledger.cancelled) == {0, *range(4, 20)}


def test_a_failure_after_the_cancellation_is_no_fault() -> None:
    books = Books()
    books.dispatch(0, [0])
    books.cancel([0], later=True)
    failed = Failed(9.0, 0, 0, 0, "not finite")
    books.ledger.fail_late(failed)
    books.ledger.fail_late(failed)
    assert books.chunks("ending, due, done") == {(0, 0): ["discarded", 9.0, None]}
    assert books.counts == {"dispatched": 1, "discarded": 1}


# ------------------------------------------------------------------------------------------- lost and unusable


def test_a_lost_worker_ends_what_it_owes_and_nothing_else() -> None:
    books = Books()
    books.dispatch(0, [0, 1])
    books.cancel([0, 1], later=True)
    books.dispatch(2, [0, 1], [(Chunk((0,), (1.0,)), Chunk((2,), (1.0,))), (Chunk((1,), (1.0,)), Chunk((3,), (1.0,)))])
    books.reply(0, 2, chunk=0)
    books.ledger.lose(0)
    assert books.endings == {(0, 0): "lost", (2, 1): "lost"} and set(books.ledger.cancelled) == {1}
    assert not books.reply(0, 2, chunk=1)  # its message was on the way
    assert list(books.store.arrived) == [(2, 0)] and books.ledger.arrived(2, 0)
    books.step([(2, 0)])  # what had arrived still counts
    assert books.endings[2, 0] == "counted" and books.counts == {"dispatched": 6, "lost": 2, "counted": 1}
    cut(books, 0, 0, done=1)
    assert books.endings[0, 0] == "lost"


def test_an_unusable_message_is_lost() -> None:
    books = Books()
    books.dispatch(0, [0, 1])
    books.ledger.fail(Failed(2.0, 0, 0, 0, "not finite"))
    assert books.endings == {(0, 0): "lost"} and books.counts == {"dispatched": 2, "lost": 1, "unusable": 1}
    assert set(books.ledger.under_way) == {0, 1}  # the other of the batch goes on
    assert not books.ledger.arrived(0, 0)


def test_a_message_that_contradicts_another_is_discarded() -> None:
    books = Books()
    books.dispatch(0, [0, 1])
    books.reply(0, 0)
    books.ledger.fail(Failed(2.0, 0, 0, 0, "contradicts"))
    books.ledger.fail(Failed(2.0, 0, 0, 0, "contradicts"))
    assert books.endings == {(0, 0): "discarded"} and not books.store.arrived
    assert books.counts == {"dispatched": 2, "discarded": 1, "unusable": 2}


# ------------------------------------------------------------------------------------------- kept and reused


def test_a_kept_message_counts_once_and_each_reuse_is_logged() -> None:
    books = Books()
    books.dispatch(0, [0, 1])
    books.reply(0, 0)
    books.reply(1, 1)
    assert books.step([(0, 0), (1, 0)], keep=[(1, 0)]).replies == 2
    assert list(books.store.arrived) == [(1, 0)] and not books.ledger.arrived(1, 0)
    books.dispatch(2, [0])
    books.reply(0, 2)
    assert books.step([(2, 0), (1, 0)], [1.0, -0.5]) == Usage(1, 0.5, 1, {0})
    assert list(books.store.arrived) == [(1, 0)]  # until its task is cancelled, whether it is named again or not
    books.step([(1, 0)], [[1.0, 2.0]])
    assert books.counts == {"dispatched": 3, "counted": 3}
    assert books.log is not None
    books.log.flush()
    reuses = books.log.rows("SELECT slot, version, task, chunk, weight FROM reuses")
    assert reuses == [("model", 2, 1, 0, -0.5), ("model", 3, 1, 0, "[1.0, 2.0]")]
    books.cancel([1])
    assert not books.store.arrived and not books.ledger.under_way
    assert books.endings == {(0, 0): "counted", (1, 0): "counted", (2, 0): "counted"}


def test_a_kept_message_is_let_go_at_the_end_of_the_run() -> None:
    books = Books()
    books.dispatch(0, [0])
    books.reply(0, 0)
    books.step([(0, 0)], keep=[(0, 0)])
    books.settle()
    assert not books.store.arrived and books.counts == {"dispatched": 1, "counted": 1}


# ------------------------------------------------------------------------------------------- messages in messages


def gathered() -> Books:
    """The message of task 2 has that of task 1 inside, which has that of task 0; partition 1 is in two of them."""
    books = Books()
    books.dispatch(
        0, [0, 1, 2], [(Chunk((0, 1), (1.0, 1.0)),), (Chunk((1, 2), (1.0, 1.0)),), (Chunk((3, 4), (1.0, 1.0)),)]
    )
    books.ledger.request(RequestMessage(1, 1, 0, (1, 2), (1.0, 1.0), ((0, 0),), (3.0,)))
    books.ledger.request(RequestMessage(2, 2, 0, (3,), (5.0,), ((1, 0),), (-2.0,)))
    return books


def test_a_request_replaces_what_one_message_is_made_of() -> None:
    books = gathered()
    assert books.ledger.chunk(2, 0) == Chunk((3,), (5.0,))
    assert books.ledger.chunk(0, 0) == Chunk((0, 1), (1.0, 1.0))


def test_a_message_covers_those_inside_once_each() -> None:
    books = gathered()
    assert books.ledger.partitions(0, 0) == (0, 1)
    assert sorted(books.ledger.partitions(1, 0)) == [0, 1, 2]
    assert sorted(books.ledger.partitions(2, 0)) == [0, 1, 2, 3]
    assert books.ledger.covered([(2, 0)]) == 1111
    assert books.ledger.covered([(0, 0), (2, 0)]) == 1111 + 11  # each gradient counts where it is in the sum
    assert books.ledger.covered([]) == 0


def test_messages_inside_count_with_the_product_of_weights() -> None:
    books = gathered()
    command = books.ledger.with_gathered(Combine("model", [(2, 0)], [0.5]))
    assert command.messages == [(2, 0), (1, 0), (0, 0)] and command.weights == [0.5, -1.0, -3.0]
    alone = Combine("model", [(0, 0)], [0.5])
    assert books.ledger.with_gathered(alone) == alone


def test_messages_inside_end_with_the_step_that_uses_them() -> None:
    books = gathered()
    for task in (0, 1, 2):
        books.reply(task, task)
    assert books.step([(2, 0)], keep=[(2, 0)]).by == {0, 1, 2}
    assert books.endings == {(task, 0): "counted" for task in (0, 1, 2)}
    assert books.ledger.under_way and not books.ledger.gathered  # the kept message is used again alone


def test_messages_inside_are_forgotten_with_their_tasks() -> None:
    books = gathered()
    books.cancel(range(3))
    assert not books.ledger.gathered


def test_messages_inside_are_covered_after_a_resume() -> None:
    books = gathered()
    for task in (0, 1, 2):
        books.reply(task, task)
    resumed = books.resumed()
    assert resumed.ledger.covered([(2, 0)]) == 1111
    assert sorted(resumed.store.arrived[2, 0].ids) == [0, 1, 2, 3]
    assert resumed.ledger.with_gathered(Combine("model", [(2, 0)], [0.5])).weights == [0.5, -1.0, -3.0]


# ------------------------------------------------------------------------------------------- versions and staleness


def test_staleness_is_that_of_the_slot_of_the_message() -> None:
    """It grows with each step of its own model, and with no step of another."""
    books = Books(("a", "b"))
    books.dispatch(0, [0, 1], [(Chunk((0,), (1.0,), "a"),), (Chunk((1,), (1.0,), "b"),)])
    books.dispatch(2, [2], [(Chunk((2,), (1.0,), "a"),)])
    reply_a, reply_b = Reply(1.0, 0, 0, 0), Reply(1.0, 1, 1, 0)
    assert books.ledger.aged(reply_a).staleness == books.ledger.aged(reply_b).staleness == 0
    for task in (0, 1, 2):
        books.reply(task, task)
    books.step([(2, 0)], slot="a")
    assert books.ledger.aged(reply_a).staleness == 1 and books.ledger.aged(reply_b).staleness == 0
    books.step([], slot="a")
    assert books.ledger.aged(reply_a).staleness == 2 and books.ledger.version("a", 0) == 0
    assert books.step([(0, 0)], slot="a") == Usage(1, 2.0, 2, {0})
    assert books.step([(1, 0)], slot="b") == Usage(1, 0.0, 0, {1})
    assert books.chunks("ending, slot, version, step") == {
        (2, 0): ["counted", "a", 0, 1],
        (0, 0): ["late_counted", "a", 0, 3],
        (1, 0): ["counted", "b", 0, 1],
    }
    books.dispatch(3, [3], [(Chunk((0,), (1.0,), "b"),)])
    books.cancel([3], later=True)
    books.step([], slot="b")
    assert books.ledger.aged(Reply(1.0, 3, 3, 0)).staleness == 0  # of a task that was cancelled
    books.reply(3, 3)
    assert books.chunks("version, step")[3, 0] == [1, None]  # and model a has had 3 steps by then


def test_a_version_stays_until_its_last_task_has_ended() -> None:
    books = Books()
    books.dispatch(0, [0, 1])
    books.dispatch(2, [2])
    books.reply(0, 0)
    books.step([(0, 0)])
    assert books.has(0) and books.has(1)
    books.step([])
    assert books.has(0) and not books.has(1)  # no task needed it
    books.cancel([1])
    assert books.has(0)
    books.cancel([2], later=True)  # though its worker may still say how far it came
    assert not books.has(0) and books.has(2)


# ------------------------------------------------------------------------------------------- progress


@pytest.mark.parametrize(
    ("progress", "end", "done"),
    [(2, "cancel", 2), (0, "cancel", None), (2, "cut", 2), (1, "cut", 2), (3, "reply", 3), (0, "reply", 2)],
)
def test_the_log_states_how_many_partitions_were_finished(progress: int, end: str, done: int | None) -> None:
    """The most that is known: by reports of progress, by the report of the end, or by a message that arrived."""
    books = Books()
    books.dispatch(0, [0], [(Chunk((0, 1, 2), (1.0,) * 3, send="request"),)])
    if progress:
        books.ledger.progress(Progress(1.0, 0, 0, 0, progress))
    if end == "reply":
        books.ledger.request(RequestMessage(0, 0, 0, (0, 1), (1.0, 1.0)))  # of the finished
        books.reply(0, 0)
        books.step([(0, 0)])
    else:
        books.cancel([0], later=end == "cut")
        if end == "cut":
            cut(books, 0, 0, done=2)
    assert books.chunks("done") == {(0, 0): done}
    books.ledger.progress(Progress(9.0, 0, 0, 0, 3))  # of a task that is no more: nothing happens


# ------------------------------------------------------------------------------------------- any order of events


class Oracle:
    """How each chunk has ended, or where it is, by the rules in words; it knows tasks one by one."""

    def __init__(self) -> None:
        self.place: dict[Place, str] = {}  # open, arrived, kept, cut, or an ending
        self.worker: dict[int, int] = {}
        self.begun: dict[int, int] = {}  # the version of each task
        self.kept: dict[Place, str] = {}  # how messages that are stored for later have ended

    def among(self, *places: str) -> list[Place]:
        return [key for key, place in self.place.items() if place in places]

    def of(self, tasks: Sequence[int], place: str) -> list[Place]:
        return [key for key in self.among(place) if key[0] in tasks]

    def overtake(self, task: int) -> None:
        for key in self.among("cut"):
            if self.worker[key[0]] == self.worker[task] and key[0] < task:
                self.place[key] = "cancelled"

    def cancel(self, tasks: Sequence[int], later: bool) -> None:
        for key in [key for key in self.place if key[0] in tasks]:
            now = self.place[key]
            changed = {"arrived": "discarded", "open": "cut" if later else "cancelled", "kept": self.kept.get(key, "")}
            self.place[key] = changed.get(now, now)
        for worker in set(self.worker.values()):
            waiting = sorted({task for task, _ in self.among("cut") if self.worker[task] == worker})
            for key in self.of(waiting[:-16], "cut"):
                self.place[key] = "cancelled"

    @property
    def endings(self) -> dict[Place, str]:
        final = {key: place for key, place in self.place.items() if place in ENDINGS}
        return final | {key: self.kept[key] for key in self.among("kept")}


def moves(books: Books, oracle: Oracle, seed: int, number: int) -> Iterator[None]:
    """Have random things happen to the books, and tell the oracle; yield after each."""
    draw = random.Random(seed)
    for _ in range(number):
        kinds = ["dispatch", "reply", "reply", "reply", "step", "cancel", "late", "cut", "fail", "fail late", "lose"]
        kind = draw.choices(kinds, [4, 4, 4, 4, 4, 2, 3, 2, 1, 1, 0.3])[0]
        if kind == "dispatch":
            first = max(oracle.worker, default=-1) + draw.randint(1, 2)
            busy = {oracle.worker[task] for task, _ in oracle.among("open")}  # no strategy gives them a task
            idle = [worker for worker in range(WORKERS) if worker not in busy]
            workers = draw.sample(idle, draw.randint(min(1, len(idle)), len(idle)))
            if not workers:
                continue
            tasks = [tuple(Chunk((j,), (1.0,)) for j in range(draw.randint(1, 2))) for _ in workers]
            books.dispatch(first, workers, tasks)
            for task, (worker, chunks) in enumerate(zip(workers, tasks, strict=True), first):
                oracle.worker[task], oracle.begun[task] = worker, books.versions["model"]
                oracle.place.update(dict.fromkeys(((task, i) for i in range(len(chunks))), "open"))
        elif kind == "reply" and (among := oracle.among("open")):
            task, chunk = key = draw.choice(among)
            assert books.reply(oracle.worker[task], task, chunk)
            oracle.place[key] = "arrived"
        elif kind == "step":
            ready = oracle.among("arrived", "kept")
            messages = draw.sample(ready, draw.randint(0, len(ready)))
            keep = [key for key in messages if draw.random() < 0.3]
            version = books.versions["model"]
            stale = {key: version - oracle.begun[key[0]] for key in messages}
            usage = books.step(messages, keep=keep)
            if books.log is not None:
                mean = sum(stale.values()) / max(len(stale), 1)
                new = [key for key in messages if oracle.place[key] == "arrived"]
                by = {oracle.worker[task] for task, _ in new}
                assert usage == Usage(len(new), mean, max(stale.values(), default=0), by)
            for key in messages:
                if oracle.place[key] == "arrived":
                    ending = "late_counted" if stale[key] else "counted"
                    oracle.place[key] = "kept" if key in keep else ending
                    oracle.kept[key] = ending
        elif kind == "cancel" and oracle.worker:
            last = max(oracle.worker) + 1
            start = draw.randint(max(0, last - 8), last)
            some = range(start, draw.randint(start, last))
            tasks_ended = draw.choice([range(start, last), some, draw.sample(range(last), min(last, 3))])
            later = draw.random() < 0.7
            books.cancel(tasks_ended, later=later)
            oracle.cancel(tasks_ended, later)
        elif kind in ("late", "cut", "fail late") and (among := oracle.among("cut")):
            task, chunk = key = draw.choice(among)
            worker = oracle.worker[task]
            if kind == "late":
                assert not books.reply(worker, task, chunk)
            elif kind == "cut":
                cut(books, worker, task, done=0, chunk=chunk)
            else:
                books.ledger.fail_late(Failed(books.now, worker, task, chunk, "not finite"))
            oracle.place[key] = "cancelled" if kind == "cut" else "discarded"
            if kind != "fail late":
                oracle.overtake(task)
        elif kind == "fail" and (among := oracle.among("open", "arrived")):
            task, chunk = key = draw.choice(among)
            books.ledger.fail(Failed(books.now, oracle.worker[task], task, chunk, "not finite"))
            oracle.place[key] = "lost" if oracle.place[key] == "open" else "discarded"
        elif kind == "lose":
            worker = draw.randrange(WORKERS)
            books.ledger.lose(worker)
            for key in oracle.among("open", "cut"):
                if oracle.worker[key[0]] == worker:
                    oracle.place[key] = "lost"
        yield


def agree(books: Books, oracle: Oracle) -> None:
    """Counts, log, stored messages and stored versions are those of the oracle."""
    counts = books.ledger.counts
    endings = Counter(oracle.endings.values())
    assert {name: getattr(counts, name) for name in ENDINGS} == {name: endings[name] for name in ENDINGS}
    assert counts.dispatched == len(oracle.place) and counts.open == len(oracle.among("open", "arrived", "cut"))
    assert sorted(key for key, _ in books.ledger.messages()) == sorted(oracle.among("arrived"))
    for key in oracle.place:
        assert books.ledger.arrived(*key) == (oracle.place[key] == "arrived")
    assert {task for task, _ in oracle.among("open", "arrived", "kept")} <= set(books.ledger.under_way)
    assert {task for task, _ in oracle.among("cut")} <= set(books.ledger.cancelled)
    if books.log is not None:
        assert books.endings == oracle.endings
        assert sorted(books.store.arrived) == sorted(oracle.among("arrived", "kept"))
        needed = {oracle.begun[task] for task, _ in oracle.among("open", "arrived", "kept")}
        assert all(books.has(version) for version in needed | {books.versions["model"]})


def end(books: Books, oracle: Oracle) -> None:
    """At the end of the run nothing is open, and nothing stored but the newest version."""
    books.settle()
    for key, place in oracle.place.items():
        changed = {"open": "cancelled", "cut": "cancelled", "arrived": "discarded", "kept": oracle.kept.get(key, "")}
        oracle.place[key] = changed.get(place, place)
    agree(books, oracle)
    assert books.ledger.counts.open == 0 and not books.ledger.under_way and not books.ledger.cancelled
    if books.log is not None:
        assert [version for version in range(books.versions["model"] + 1) if books.has(version)] == [
            books.versions["model"]
        ]


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_in_any_order_each_chunk_ends_in_exactly_one_way(seed: int, quick: bool) -> None:
    books, oracle = Books(quick=quick), Oracle()
    for _ in moves(books, oracle, seed, 150):
        agree(books, oracle)
    end(books, oracle)


def test_a_resumed_ledger_knows_which_numbers_were_used() -> None:
    books = Books()
    books.dispatch(0, [0, 1])
    books.cancel(range(2))
    resumed = books.resumed()
    with pytest.raises(RunFailed, match="^task 1 was dispatched twice"):
        resumed.dispatch(1, [0])


def test_a_resumed_ledger_knows_which_tasks_came_before() -> None:
    books = Books()
    for task in range(2):
        books.dispatch(task, [0])
        books.cancel([task], later=True)
    resumed = books.resumed()
    cut(resumed, 0, 1, done=0)
    assert resumed.endings == {(0, 0): "cancelled", (1, 0): "cancelled"} and not resumed.ledger.cancelled


def test_a_cancelled_task_stays_cancelled_in_a_resumed_ledger() -> None:
    """Although another of its batch goes on."""
    books = Books()
    books.dispatch(0, [0, 1])
    books.cancel([0], later=True)
    resumed = books.resumed()
    assert set(resumed.ledger.under_way) == {1}
    assert not resumed.reply(0, 0) and resumed.endings == {(0, 0): "discarded"}


def test_a_second_cancellation_does_not_change_the_time() -> None:
    books = Books()
    books.dispatch(0, [0, 1])
    books.cancel([1], later=True)  # at 2
    books.cancel(range(2), later=True)  # at 3
    books.reply(1, 1)
    assert books.chunks("cancelled") == {(1, 0): 2.0}


def test_a_resumed_ledger_knows_the_progress_of_tasks() -> None:
    books = Books()
    books.dispatch(0, [0], [(Chunk((0, 1, 2), (1.0,) * 3, send="request"),)])
    books.ledger.progress(Progress(1.0, 0, 0, 0, 2))
    resumed = books.resumed()
    resumed.cancel([0], later=False)
    assert resumed.chunks("done") == {(0, 0): 2}


@pytest.mark.parametrize("seed", range(30))
def test_a_resumed_ledger_goes_on_as_if_uninterrupted(seed: int) -> None:
    books, oracle = Books(), Oracle()
    for _ in moves(books, oracle, seed, 60 + seed):
        pass
    resumed, same = books.resumed(), copy.deepcopy(oracle)
    before = books.endings
    stored = {key: float(message.vector[0]) for key, message in books.store.arrived.items()}
    assert {key: float(message.vector[0]) for key, message in resumed.store.arrived.items()} == stored
    for one, told in ((books, oracle), (resumed, same)):
        for _ in moves(one, told, seed + 100, 60):
            pass
        one.settle()
    assert resumed.ledger.counts == books.ledger.counts
    columns = "ending, version, dispatched, computed, received, cancelled, done, due, step, weight"
    whole, rest = books.chunks(columns), resumed.chunks(columns)
    assert rest and rest == {key: row for key, row in whole.items() if key not in before}
