"""The fate and the times of every task of a run, as columns for pictures and exports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property

import numpy as np

from anyk.base.arrays import Array
from anyk.runs.log import queries
from anyk.runs.run import Run

FATES = ("used", "used late", "not needed", "cut off", "lost", "unfinished at the end")
USED, LATE, SPARE, CUT, LOST, OPEN = range(len(FATES))
PHASES = ("waiting", "computing", "idle", "sending")  # of a finished chunk, in this order


# when each chunk could be computed, when its last partition, or else its message, was finished, the newest version of
# its slot, and whether it ended after the last event
_FACTS = (
    "SELECT max(c.dispatched, coalesce(lag(c.computed) OVER (PARTITION BY task ORDER BY chunk), c.dispatched)), "
    "CASE WHEN c.computed IS NOT NULL THEN coalesce(p.time, c.computed) END, coalesce(u.newest, 0), "
    "c.seq > (SELECT coalesce(max(seq), 0) FROM events) FROM chunks c LEFT JOIN "
    "(SELECT task, chunk, max(time) AS time FROM events WHERE kind = 'Progress' GROUP BY task, chunk) p "
    "USING (task, chunk) LEFT JOIN (SELECT slot, max(version) AS newest FROM updates GROUP BY slot) u USING (slot) "
    "ORDER BY task, chunk"
)
_LOSSES = (  # the time at which the worker of each lost chunk was lost or failed; without one, a given time
    "SELECT coalesce(min(e.time), ?) FROM chunks c LEFT JOIN events e ON e.kind IN ('Lost', 'Failed') "
    "AND e.worker = c.worker AND e.time >= c.dispatched WHERE c.received IS NULL AND c.cancelled IS NULL "
    "GROUP BY c.task, c.chunk, c.rowid ORDER BY c.task, c.chunk"
)


@dataclass(frozen=True, eq=False)
class Tasks:
    """Columns with a row for each chunk that was dispatched; times in seconds on the run's clock.

    ``start``: the time from which it could be computed, which is after its dispatch and the chunk before it in its
    task. Then it took ``waiting`` (for its order and an injected delay), ``computing``, ``idle`` (until its message was
    requested, if it is sent on request) and ``sending``; for an unfinished chunk only their sum is known, ``unknown``.
    ``fate``: an index into :data:`FATES`. ``step``: the step that used it or did not wait for it, or -1. ``late``: the
    seconds from its cancellation to its message, if that arrived or its time is known; else NaN.
    """

    task: Array
    chunk: Array
    worker: Array
    slot: Array
    version: Array
    step: Array
    start: Array
    waiting: Array
    computing: Array
    idle: Array
    sending: Array
    unknown: Array
    fate: Array
    late: Array
    weight: Array
    work: Array
    slots: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.task)

    def only(self, which: Array) -> Tasks:
        """Return the rows that a mask or an array of indices selects."""
        names = [field.name for field in fields(self) if field.name != "slots"]
        return replace(self, **{name: getattr(self, name)[which] for name in names})

    @property
    def finished(self) -> Array:
        """A mask of the rows whose phases are known."""
        return np.asarray(self.unknown == 0.0)

    @property
    def end(self) -> Array:
        """The time at which each chunk was finished or abandoned."""
        return np.asarray(self.start + self.waiting + self.computing + self.idle + self.sending + self.unknown)

    @cached_property
    def seconds(self) -> Array:
        """Seconds from start to end, without those in which the chunk was idle."""
        return self.end - self.start - self.idle

    @cached_property
    def first(self) -> Array:
        """The row of each task's first chunk; rows are ordered by task and chunk."""
        return np.flatnonzero(np.diff(self.task, prepend=-1))


def tasks_of(run: Run) -> Tasks:
    """Return all tasks of a run."""
    log = queries.log_columns(run.log, "chunks")
    steps = queries.log_columns(run.log, "steps")
    slots = tuple(sorted(set(log["slot"])))
    places = {name: i for i, name in enumerate(slots)}
    slot = np.fromiter(map(places.__getitem__, log["slot"]), dtype=np.int64)
    start, last, newest, at_end = np.array(run.log.rows(_FACTS), dtype=np.float64).reshape(-1, 4).T
    fate = _fates(run, log, newest, at_end)
    computed, received = log["computed"], log["received"]
    finished = np.isfinite(computed) & np.isfinite(received) & (fate != LOST)
    end = np.where(np.isfinite(received), received, log["cancelled"])
    lost = ~np.isfinite(end)
    if lost.any():  # there are many events to read
        end[lost] = np.maximum(np.ravel(run.log.rows(_LOSSES, (run.seconds,))), start[lost])
    first = np.fmax(log["computing"], start)
    last = np.clip(last, first, np.maximum(computed, first))
    phases = first - start, last - first, np.maximum(computed - last, 0.0), np.maximum(received - computed, 0.0)
    waiting, computing, idle, sending = np.where(finished, phases, 0.0)
    unknown = np.where(finished, 0.0, np.maximum(end - start, np.finfo(np.float32).tiny))
    arrival = np.where(np.isfinite(log["due"]), log["due"], received)
    return Tasks(
        task=log["task"],
        chunk=log["chunk"],
        worker=log["worker"],
        slot=slot,
        version=log["version"],
        step=_steps(log, steps, fate, slots, slot),
        start=start,
        waiting=waiting,
        computing=computing,
        idle=idle,
        sending=sending,
        unknown=unknown,
        fate=fate,
        late=np.where(fate == CUT, arrival - log["cancelled"], np.nan),
        weight=log["weight"],
        work=log["work"],
        slots=slots,
    )


def _fates(run: Run, log: Mapping[str, Array], newest: Array, at_end: Array) -> Array:
    ending = log["ending"]
    fate = np.full(len(ending), LOST, dtype=np.uint8)
    fate[ending == "counted"] = USED
    fate[ending == "late_counted"] = LATE
    unused = (ending == "cancelled") | (ending == "discarded")
    arrived = np.isfinite(log["received"]) & ~(log["received"] > log["cancelled"])
    fate[unused] = np.where(arrived, SPARE, CUT)[unused]
    unfinished = unused & ~arrived & (at_end > 0) & (log["cancelled"] >= run.seconds)
    fate[unfinished & (run.asynchronous | (log["version"] >= newest))] = OPEN
    return fate


def _steps(
    log: Mapping[str, Array], steps: Mapping[str, Array], fate: Array, slots: tuple[str, ...], slot: Array
) -> Array:
    """Return the step that used each chunk, or else the first after its cancellation, unless the chunk is newer."""
    step = np.where(np.isfinite(log["step"]), log["step"], -1).astype(np.int64)
    for i, name in enumerate(slots):
        updates = (steps["slot"] == name) & np.isfinite(steps["replies"])
        times, versions = steps["seconds"][updates], steps["step"][updates].astype(np.int64)
        mine = (slot == i) & (step < 0) & np.isin(fate, (CUT, SPARE)) & np.isfinite(log["cancelled"])
        if not len(times) or not mine.any():
            continue
        indices = np.searchsorted(np.maximum.accumulate(times), log["cancelled"][mine], side="left")
        within = indices < len(times)
        candidates = np.where(within, versions[np.minimum(indices, len(times) - 1)], -1)
        step[mine] = np.where(candidates > log["version"][mine], candidates, -1)
    return step
