"""Queries of a run log as named rows.

Not all queries are here: ``fleet``, ``testing`` and ``runs/run.py`` read the tables of
:mod:`anyk.runs.log.schema` with SQL of their own.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from anyk.errors import BadInput
from anyk.runs.log.runlog import RunLog
from anyk.runs.log.schema import Totals


class Decision(NamedTuple):
    """A message that a step used, and its weight (JSON where there is one for each block)."""

    step: int
    task: int
    chunk: int
    worker: int
    version: int
    weight: float | str


class Point(NamedTuple):
    """A version in a run's history; None for what is not known of it."""

    version: int
    seconds: float
    replies: int | None
    residual: float | None
    gain: float | None
    staleness: float | None
    loss: float | None
    metric: float | None


class Work(NamedTuple):
    """The work of a chunk; ``batch``: samples drawn of each partition (0: all)."""

    partitions: list[int]
    coefficients: list[float]
    batch: int

    def samples(self, sizes: Sequence[int]) -> int:
        """Return the number of samples that a message covers, for partitions of these sizes."""
        return sum(min(self.batch, sizes[j]) if self.batch else sizes[j] for j in self.partitions)


class TaskTime(NamedTuple):
    """When a task was dispatched and ended; ``known``: whether it was finished, so that its end is no lower bound.

    ``computing``: seconds that its worker computed, where all of its chunks are stamped.
    """

    dispatched: float
    worker: int
    end: float | None
    known: bool
    computing: float | None
    partitions: list[int]


def decisions(log: RunLog) -> list[Decision]:
    """The messages that steps used, by step, task and chunk."""
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
    behind = "max(rowid) FROM {} WHERE rowid > ? GROUP BY slot"
    for slot, version, time, stalest, row in log.rows(
        f"SELECT slot, max(version), max(time), max(stalest), {behind.format('updates')}", (totals.updates,)
    ):
        totals.newest[slot] = max(version, totals.newest.get(slot, version))
        totals.time, totals.stalest = max(time or 0.0, totals.time), max(stalest or 0, totals.stalest)
        totals.updates = max(row, totals.updates)
    for slot, row in log.rows(f"SELECT slot, {behind.format('evaluations')}", (totals.evaluations,)):
        totals.evaluated.add(slot)
        totals.evaluations = max(row, totals.evaluations)
    return totals


def newest(log: RunLog, without: Collection[str] = ()) -> dict[str, int]:
    """The newest version of each slot that has had an update, by slot in order."""
    return {slot: version for slot, version in sorted(totals(log).newest.items()) if slot not in without}


def first_slot(log: RunLog, without: Collection[str] = ()) -> str:
    """The first slot, by name, of those with a version."""
    summary = totals(log)
    return next((slot for slot in sorted({*summary.newest, *summary.evaluated}) if slot not in without), "model")


def stalest(log: RunLog) -> int:
    """The highest staleness of any message used."""
    return totals(log).stalest


def last_time(log: RunLog) -> float:
    """When the last version was made, on the run's clock."""
    return totals(log).time


def replies_used(log: RunLog) -> float:
    """Messages that went into versions."""
    return float(log.rows("SELECT total(replies) FROM updates")[0][0])


def history(log: RunLog, slot: str) -> list[Point]:
    """The versions of a slot that were made or evaluated, in order."""
    rows = log.rows(
        "SELECT e.version, coalesce(u.time, e.time), u.replies, u.residual, u.gain, u.staleness, e.loss, e.metric "
        "FROM evaluations e LEFT JOIN updates u ON u.slot = e.slot AND u.version = e.version WHERE e.slot = ? "
        "UNION ALL SELECT u.version, u.time, u.replies, u.residual, u.gain, u.staleness, NULL, NULL FROM updates u "
        "WHERE u.slot = ? AND NOT EXISTS "
        "(SELECT 1 FROM evaluations e WHERE e.slot = u.slot AND e.version = u.version) ORDER BY 1",
        (slot, slot),
    )
    return [Point(*row) for row in rows]


def staleness(log: RunLog) -> dict[str, dict[int, int]]:
    """By slot, how many messages of which staleness its versions used."""
    rows = log.rows(
        "SELECT slot, stale, count(*) FROM (SELECT slot, step - 1 - version AS stale FROM chunks WHERE step > 0 "
        "UNION ALL SELECT r.slot, r.version - 1 - c.version FROM reuses r JOIN chunks c "
        "ON c.task = r.task AND c.chunk = r.chunk) GROUP BY slot, stale ORDER BY slot, stale"
    )
    by_slot: dict[str, dict[int, int]] = {}
    for slot, stale, count in rows:
        by_slot.setdefault(slot, {})[stale] = count
    return by_slot


def works(log: RunLog) -> dict[int, Work]:
    """The work of chunks, by number."""
    rows = log.rows("SELECT id, partitions, coefficients, batch FROM works")
    return {number: Work(json.loads(p), json.loads(c), batch) for number, p, c, batch in rows}


def continued_states(log: RunLog) -> set[str]:
    """Return what workers continued from one task to the next: ``optimiser states``, ``error feedback`` of messages."""
    rows = log.rows("SELECT DISTINCT compress != '' FROM works WHERE state >= 0")
    return {"error feedback" if compressed else "optimiser states" for (compressed,) in rows}


def different_messages(log: RunLog) -> dict[tuple[int, int], tuple[int, int]]:
    """Return the pairs of workers that sent messages with different digests of the same sum at the same model.

    By pair: how often, and the first version of the model. Messages that were set aside are not compared again. Local
    steps and error feedback depend on what a worker did before, and messages on request on what it had finished; they
    are not compared.
    """
    rows = log.rows(
        "SELECT c.version, group_concat(c.worker), group_concat(c.digest) FROM chunks c JOIN works w ON w.id = c.work "
        "WHERE c.digest != 0 AND w.steps = 0 AND w.send = 'done' AND w.compress = '' "
        "AND NOT EXISTS (SELECT 1 FROM events e WHERE e.kind = 'Failed' AND e.task = c.task AND e.chunk = c.chunk) "
        "GROUP BY c.version, c.work HAVING min(c.digest) != max(c.digest) ORDER BY c.version"
    )
    pairs: dict[tuple[int, int], tuple[int, int]] = {}
    for version, *texts in rows:
        digests = sorted({*zip(*(map(int, text.split(",")) for text in texts), strict=True)})
        for (one, digest), (other, another) in combinations(digests, 2):
            if one != other and digest != another:
                count, first = pairs.get((one, other), (0, version))
                pairs[one, other] = count + 1, first
    return pairs


def mean_times(log: RunLog) -> tuple[float, float]:
    """Mean seconds that finished chunks were computed for and held up before, as far as workers said."""
    rows = log.rows("SELECT avg(computed - computing), avg(computing - started) FROM chunks WHERE computed IS NOT NULL")
    computing, waiting = rows[0]
    return computing or 0.0, waiting or 0.0


def waits_of_steps(log: RunLog) -> float | None:
    """Seconds from the dispatch of its messages to the last that it used, of all steps; None where tasks go on."""
    rows = log.rows(
        "SELECT total(wait), max(late) FROM (SELECT max(c.received - c.dispatched) AS wait, "
        "max(c.version < c.step - 1) AS late FROM chunks c WHERE c.step > 0 GROUP BY c.slot, c.step)"
    )
    wait, late = rows[0]
    return None if late is None or late else float(wait)


def task_times(log: RunLog, *, due: bool = True) -> list[TaskTime]:
    """Every task that did not end with its worker, in the order of dispatch.

    ``due``: of a task that was cut off, take the time at which it would have ended, where the cluster knows.
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
        TaskTime(at, worker, end, bool(complete), computing, [j for part in parts.split(";") for j in json.loads(part)])
        for at, worker, end, complete, computing, parts in rows
    ]


# ------------------------------------------------------------------------------------------- whole tables

_MEAN = "CASE typeof({0}) WHEN 'text' THEN (SELECT avg(value) FROM json_each({0})) ELSE {0} END"  # of blocks
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
_WHOLE = {"task", "chunk", "worker", "version", "work", "seq"}
COUNTS = (
    "step",
    "done",
    "replies",
    "stalest",
    "worker",
    "task",
    "chunk",
)  # whole, though floats where some are missing


def columns(log: RunLog, table: str) -> dict[str, NDArray[Any]]:
    """Return a table of the log, one of :data:`TABLES`, as columns.

    Numbers that are not known are NaN, or None in text. A weight is the mean over blocks where
    a message has one for each. Raises :class:`~anyk.errors.BadInput` for another table.
    """
    if table not in _QUERIES:
        raise BadInput(f"a run has no table '{table}'; it has {', '.join(_QUERIES)}")
    names, rows = log.select(_QUERIES[table])
    arrays: dict[str, NDArray[Any]] = {}
    for name, values in zip(names, zip(*rows, strict=True) if rows else [()] * len(names), strict=True):
        whole = name in _WHOLE and not (table == "events" and name in ("worker", "task", "chunk"))
        arrays[name] = np.array(values, dtype=object if name in _TEXT else np.int64 if whole else np.float64)
    return arrays


def newest_seal(log: RunLog) -> str:
    """The seal of what was written last: it stands for all rows up to there; empty before the first."""
    rows = log.rows("SELECT seal FROM seals ORDER BY id DESC LIMIT 1")
    return str(rows[0][0]) if rows else ""


# ------------------------------------------------------------------------------------------- to be checked


def numbers(log: RunLog) -> list[int]:
    """The numbers of all events."""
    return [seq for (seq,) in log.rows("SELECT seq FROM events ORDER BY seq")]


def checkpoint_numbers(log: RunLog) -> list[int]:
    """After which event each checkpoint was written, in that order."""
    return [seq for (seq,) in log.rows("SELECT seq FROM checkpoints ORDER BY seq")]


def checkpoint_digests(log: RunLog, seq: int) -> list[str]:
    """The digests of the checkpoints that were written after an event."""
    return [written for (written,) in log.rows("SELECT digest FROM checkpoints WHERE seq = ?", (seq,))]


def endings(log: RunLog) -> dict[str, int]:
    """Return the number of chunks for each ending."""
    return dict(log.rows("SELECT ending, count(*) FROM chunks GROUP BY ending"))


def ended_twice(log: RunLog) -> tuple[int, int, int] | None:
    """Task, chunk and number of endings of a chunk that ended more than once."""
    rows = log.rows("SELECT task, chunk, count(*) FROM chunks GROUP BY task, chunk HAVING count(*) > 1 LIMIT 1")
    return rows[0] if rows else None


def replies(log: RunLog) -> dict[tuple[str, int], int]:
    """By version, of how many messages its update says that it is made."""
    return {(slot, version): n for slot, version, n in log.rows("SELECT slot, version, replies FROM updates")}


def chunks_used(log: RunLog) -> dict[tuple[str, int], int]:
    """By version, how many chunks say that they were used in it."""
    rows = log.rows("SELECT slot, step, count(*) FROM chunks WHERE step > 0 GROUP BY 1, 2")
    return {(slot, step): count for slot, step, count in rows}
