"""Queries of a run log, each a function that returns named rows, columns or a number.

Nothing outside of this package knows the tables of :mod:`anyk.runs.log.schema`.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from itertools import combinations
from typing import Literal, NamedTuple

import numpy as np

from anyk.base.arrays import Array
from anyk.base.errors import BadInput
from anyk.base.plain import ByName
from anyk.runs.log.runlog import RunLog
from anyk.runs.log.schema import TABLES as SCHEMA_TABLES
from anyk.runs.log.schema import Evaluation, Totals


class Decision(NamedTuple):
    """A message that a step used, and its weight: a number, or a JSON list with a weight for each block."""

    step: int
    task: int
    chunk: int
    worker: int
    version: int
    weight: float | str


class Work(NamedTuple):
    """The work of a chunk; ``batch``: the number of samples taken from each partition (0: all)."""

    partitions: list[int]
    coefficients: list[float]
    batch: int

    def samples(self, sizes: Sequence[int]) -> int:
        """Return the number of samples that a message covers, for partitions of these sizes."""
        return sum(min(self.batch, sizes[j]) if self.batch else sizes[j] for j in self.partitions)


class TaskTime(NamedTuple):
    """The times of a task on the run's clock, in seconds.

    ``finished``: whether ``end`` is exact; a task that was cancelled has a lower bound. ``computing``: seconds that the
    worker computed; None unless every chunk of the task reports them.
    """

    dispatched: float
    worker: int
    end: float
    finished: bool
    computing: float | None
    partitions: list[int]


class Transfer(NamedTuple):
    """The exchange of a chunk.

    ``mix``: workers whose models its own was mixed with, in JSON. ``share``: the weight of its own. ``compress``: the
    compressor of its message, empty without one.
    """

    task: int
    worker: int
    slot: str
    mix: str | None
    share: float
    compress: str


class MeanUpdate(NamedTuple):
    """The mean residual and staleness of the updates in a log, and their number; no means without updates."""

    residual: float | None
    staleness: float | None
    number: int


class Finished(NamedTuple):
    """Chunks of the same work of which ``done`` partitions were finished: their number."""

    work: int
    done: int
    number: int


class MeanTimes(NamedTuple):
    """The mean seconds for which messages were computed, and waited before that."""

    computing: float
    waiting: float


class Miscounted(NamedTuple):
    """A version whose number of messages differs from the number of messages that were counted in it."""

    version: int
    slot: str
    replies: int
    counted: int


def decisions(log: RunLog) -> list[Decision]:
    """Return the messages that steps used, in order of step, task and chunk."""
    rows = log.rows(
        "SELECT step, task, chunk, worker, version, weight FROM chunks WHERE step IS NOT NULL "
        "UNION ALL SELECT r.version, r.task, r.chunk, c.worker, c.version, r.weight FROM reuses r "
        "JOIN chunks c ON c.task = r.task AND c.chunk = r.chunk ORDER BY 1, 2, 3"
    )
    return [Decision(*row) for row in rows]


def digest(log: RunLog, slot: str, version: int) -> int | None:
    """Return the digest of a version; None if the log has none."""
    rows = log.rows("SELECT digest FROM updates WHERE slot = ? AND version = ?", (slot, version))
    return rows[0][0] if rows else None


def totals(log: RunLog) -> Totals:
    """Return the totals of all updates and evaluations; only new rows are read."""
    totals = log.totals
    new_rows = "max(rowid) FROM {} WHERE rowid > ? GROUP BY slot"
    for slot, version, time, stalest, row in log.rows(
        f"SELECT slot, max(version), max(time), max(stalest), {new_rows.format('updates')}", (totals.updates,)
    ):
        totals.newest[slot] = max(version, totals.newest.get(slot, version))
        totals.time, totals.stalest = max(time or 0.0, totals.time), max(stalest or 0, totals.stalest)
        totals.updates = max(row, totals.updates)
    for slot, row in log.rows(f"SELECT slot, {new_rows.format('evaluations')}", (totals.evaluations,)):
        totals.evaluated.add(slot)
        totals.evaluations = max(row, totals.evaluations)
    return totals


def newest_versions(log: RunLog, without: Collection[str] = ()) -> dict[str, int]:
    """Return the newest version of each slot that has been updated, except ``without``; sorted by slot."""
    return {slot: version for slot, version in sorted(totals(log).newest.items()) if slot not in without}


def staleness(log: RunLog, slots: Collection[str]) -> dict[int, int]:
    """Return the number of messages that updates of some slots used, by staleness in versions."""
    query = (
        "SELECT stale, count(*) FROM (SELECT slot, step - 1 - version AS stale FROM chunks WHERE step > 0 "
        "UNION ALL SELECT r.slot, r.version - 1 - c.version FROM reuses r JOIN chunks c "
        "ON c.task = r.task AND c.chunk = r.chunk) "
        "WHERE slot IN (SELECT value FROM json_each(?)) GROUP BY stale ORDER BY stale"
    )
    return dict(log.rows(query, (json.dumps(list(slots)),)))


def works(log: RunLog) -> dict[int, Work]:
    """Return all works by their numbers, which chunks refer to."""
    rows = log.rows("SELECT id, partitions, coefficients, batch FROM works")
    return {number: Work(json.loads(p), json.loads(c), batch) for number, p, c, batch in rows}


def kept_states(log: RunLog) -> set[str]:
    """Return names of the states that workers had kept for their next tasks; empty before the first reply."""
    if not log.rows("SELECT 1 FROM events WHERE kind = 'Reply' LIMIT 1"):
        return set()
    rows = log.rows("SELECT DISTINCT compress != '' FROM works")
    return {"error feedback" if compressed else "optimiser states" for (compressed,) in rows} or {"states"}


def different_messages(log: RunLog) -> dict[tuple[int, int], tuple[int, int]]:
    """Return the pairs of workers whose messages of the same sum at the same model have different digests.

    The values are the number of such messages and the first version of the model. Messages that were set aside are not
    compared again. Local steps and error feedback depend on a worker's earlier tasks, and messages on request on the
    work that was finished; they are not compared.
    """
    rows = log.rows(
        "SELECT c.version, group_concat(c.worker), group_concat(c.digest) FROM chunks c JOIN works w ON w.id = c.work "
        "WHERE c.digest != 0 AND w.steps = 0 AND w.send = 'done' AND w.compress = '' "
        "AND (c.task, c.chunk) NOT IN (SELECT task, chunk FROM events WHERE kind = 'Failed') "  # runs only once
        "GROUP BY c.version, c.work HAVING min(c.digest) != max(c.digest) ORDER BY c.version"
    )
    pairs: dict[tuple[int, int], tuple[int, int]] = {}
    for version, *texts in rows:
        digests = sorted({*zip(*(map(int, digits.split(",")) for digits in texts), strict=True)})
        for (a, digest_a), (b, digest_b) in combinations(digests, 2):
            if a != b and digest_a != digest_b:
                count, first = pairs.get((a, b), (0, version))
                pairs[a, b] = count + 1, first
    return pairs


def waits_of_steps(log: RunLog) -> float | None:
    """Return the total seconds that steps waited, from dispatch to the last message used.

    None if a step used a message that was dispatched for an earlier one.
    """
    rows = log.rows(
        "SELECT total(wait), max(late) FROM (SELECT max(c.received - c.dispatched) AS wait, "
        "max(c.version < c.step - 1) AS late FROM chunks c WHERE c.step > 0 GROUP BY c.slot, c.step)"
    )
    wait, late = rows[0]
    return None if late is None or late else float(wait)


def task_times(log: RunLog, *, due: bool = True) -> list[TaskTime]:
    """Return all tasks that have an end and were not lost with their workers, in the order of dispatch.

    ``due``: let cancelled tasks end when they would have ended, if the cluster reports that time.
    """
    end = "c.received, c.due" if due else "c.received"
    rows = log.rows(
        f"SELECT c.dispatched, c.worker, max(coalesce({end}, c.cancelled)), "
        f"min(coalesce({end}, NULL) IS NOT NULL), "
        "CASE WHEN min(c.computed IS NOT NULL) THEN sum(c.computed - c.computing) END, group_concat(w.partitions, ';') "
        "FROM chunks c JOIN works w ON w.id = c.work WHERE c.ending != 'lost' GROUP BY c.dispatched, c.worker, c.task "
        "ORDER BY c.dispatched, c.task"
    )
    return [
        TaskTime(
            dispatched=start,
            worker=worker,
            end=end,
            finished=bool(exact),
            computing=computing,
            partitions=[j for numbers in texts.split(";") for j in json.loads(numbers)],
        )
        for start, worker, end, exact, computing, texts in rows
        if end is not None
    ]


def transfers(log: RunLog, first: int, last: int) -> list[Transfer]:
    """Return what the chunks exchanged that were dispatched with versions ``first`` to ``last``."""
    rows = log.rows(
        "SELECT c.task, c.worker, w.slot, w.mix, w.share, w.compress FROM chunks c JOIN works w ON w.id = c.work "
        "WHERE c.version BETWEEN ? AND ?",
        (first, last),
    )
    return [Transfer(*row) for row in rows]


def mean_update(log: RunLog) -> MeanUpdate:
    """Return the means over all updates."""
    return MeanUpdate(*log.rows("SELECT avg(residual), avg(staleness), count(*) FROM updates")[0])


def replies_used(log: RunLog) -> float:
    """Return the number of messages that all updates used."""
    return float(log.rows("SELECT total(replies) FROM updates")[0][0])


def used_works(log: RunLog) -> dict[int, int]:
    """Return, by work, the number of messages that steps used."""
    return dict(log.rows("SELECT work, count(*) FROM chunks WHERE step > 0 GROUP BY work"))


def finished_works(log: RunLog) -> list[Finished]:
    """Return the chunks of which something was finished, counted by work and number of partitions."""
    rows = log.rows("SELECT work, done, count(*) FROM chunks WHERE done > 0 GROUP BY work, done")
    return [Finished(*row) for row in rows]


def mean_times(log: RunLog) -> MeanTimes:
    """Return the means over all messages that were computed; 0 without any."""
    rows = log.rows(
        "SELECT coalesce(avg(computed - computing), 0.0), coalesce(avg(computing - started), 0.0) FROM chunks "
        "WHERE computed IS NOT NULL"
    )
    return MeanTimes(*rows[0])


def evaluations(log: RunLog) -> list[Evaluation]:
    """Return all evaluations, in their order."""
    return [Evaluation(*row) for row in log.rows("SELECT slot, version, time, loss, metric FROM evaluations")]


def notes(log: RunLog) -> list[ByName]:
    """Return the notes, each with ``time``, ``kind`` and ``text``."""
    return log.table("SELECT time, kind, text FROM notes ORDER BY seq, time")


def best_metric(log: RunLog, slot: str, better: Literal["higher", "lower"]) -> float | None:
    """Return the best metric of a slot over all versions that were evaluated; None without one."""
    best = "max" if better == "higher" else "min"
    value: float | None = log.rows(f"SELECT {best}(metric) FROM evaluations WHERE slot = ?", (slot,))[0][0]
    return value


# ------------------------------------------------------------------------------------------- is the log whole?


def row_count(log: RunLog) -> int:
    """Return the number of rows of all tables."""
    return sum(int(log.rows(f"SELECT count(*) FROM {name}")[0][0]) for name in SCHEMA_TABLES)


def event_numbers(log: RunLog) -> list[int]:
    """Return the numbers of all events, sorted."""
    return [seq for (seq,) in log.rows("SELECT seq FROM events ORDER BY seq")]


def endings(log: RunLog) -> dict[str, int]:
    """Return the number of chunks by how they ended."""
    return dict(log.rows("SELECT ending, count(*) FROM chunks GROUP BY ending"))


def ended_twice(log: RunLog) -> tuple[int, int, int] | None:
    """Return the task and number of the first chunk that ended more than once, and how often; None if none did."""
    rows = log.rows(
        "SELECT task, chunk, count(*) FROM chunks GROUP BY task, chunk HAVING count(*) > 1 ORDER BY task, chunk LIMIT 1"
    )
    return rows[0] if rows else None


def miscounted(log: RunLog) -> Miscounted | None:
    """Return the first version with another number of messages than were counted in it; None if there is none."""
    rows = log.rows(
        "SELECT u.version, u.slot, u.replies, coalesce(c.used, 0) FROM updates u LEFT JOIN "
        "(SELECT slot, step, count(*) AS used FROM chunks WHERE step > 0 GROUP BY slot, step) c "
        "ON c.slot = u.slot AND c.step = u.version WHERE u.replies != coalesce(c.used, 0) ORDER BY u.rowid LIMIT 1"
    )
    return Miscounted(*rows[0]) if rows else None


# ------------------------------------------------------------------------------------------- whole tables

_MEAN = "CASE typeof({0}) WHEN 'text' THEN (SELECT avg(value) FROM json_each({0})) ELSE {0} END"  # over blocks
_QUERIES = {
    "chunks": (
        "SELECT task, chunk, worker, slot, version, step, ending, dispatched, started, computing, computed, sent, "
        f"received, cancelled, due, done, {_MEAN.format('weight')} AS weight, work, seq FROM chunks "
        "ORDER BY task, chunk"
    ),
    "steps": (
        "SELECT u.slot, u.version AS step, u.time AS seconds, u.replies, u.residual, u.gain, u.staleness, u.stalest, "
        "u.scale, e.loss, e.metric FROM updates u LEFT JOIN evaluations e ON e.slot = u.slot AND e.version = u.version "
        "UNION ALL SELECT e.slot, e.version, e.time, NULL, NULL, NULL, NULL, NULL, NULL, e.loss, e.metric FROM "
        "evaluations e WHERE NOT EXISTS (SELECT 1 FROM updates u WHERE u.slot = e.slot AND u.version = e.version) "
        "ORDER BY 1, 2"
    ),
    "events": "SELECT seq, time, kind, worker, task, chunk, info FROM events ORDER BY seq",
    "notes": "SELECT time, kind, text FROM notes ORDER BY seq, time",
    "works": "SELECT id AS work, slot, partitions, coefficients, batch, steps, compress FROM works ORDER BY id",
    "reuses": (
        f"SELECT slot, version AS step, task, chunk, {_MEAN.format('weight')} AS weight FROM reuses ORDER BY 1, 2"
    ),
}
TABLES = tuple(_QUERIES)
_TEXT = {"slot", "ending", "kind", "info", "text", "partitions", "coefficients", "compress"}
_INTEGERS = {"task", "chunk", "worker", "version", "work", "seq"}
# columns of integers that log_columns() returns as float, because values may be missing
COUNTS = ("step", "done", "replies", "stalest", "worker", "task", "chunk")


def log_columns(log: RunLog, table: str, slot: str | None = None) -> dict[str, Array]:
    """Return a table of the log, one of :data:`TABLES`, as columns; with ``slot`` only the rows of this slot, by step.

    Missing numbers are NaN, missing text is None. A message with a weight for each block has their mean in the column.
    Raises :class:`~anyk.BadInput` if the table does not exist.
    """
    if table not in _QUERIES:
        raise BadInput(f"a run has no table '{table}'; it has {', '.join(_QUERIES)}")
    query, values = _QUERIES[table], () if slot is None else (slot,)
    names, rows = log.select(f"SELECT * FROM ({query}) WHERE slot = ? ORDER BY step" if values else query, values)
    arrays: dict[str, Array] = {}
    for name, column in zip(names, zip(*rows, strict=True) if rows else [()] * len(names), strict=True):
        integer = name in _INTEGERS and not (table == "events" and name in ("worker", "task", "chunk"))
        arrays[name] = np.array(column, dtype=object if name in _TEXT else np.int64 if integer else np.float64)
    return arrays


def newest_seal(log: RunLog) -> str:
    """Return the last seal, which covers all rows before it; empty if there is none."""
    rows = log.rows("SELECT seal FROM seals ORDER BY id DESC LIMIT 1")
    return str(rows[0][0]) if rows else ""


# ------------------------------------------------------------------------------------------- checkpoints


def checkpoint_numbers(log: RunLog) -> list[int]:
    """Return the number of the event after which each checkpoint was written, sorted."""
    return [seq for (seq,) in log.rows("SELECT seq FROM checkpoints ORDER BY seq")]


def checkpoint_digests(log: RunLog, seq: int) -> list[str]:
    """Return the digests of the checkpoints that were written after event ``seq``."""
    return [digest for (digest,) in log.rows("SELECT digest FROM checkpoints WHERE seq = ?", (seq,))]
