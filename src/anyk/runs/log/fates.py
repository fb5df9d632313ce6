"""The fate of every task of a run, and its times: columns for pictures and exports, all taken from its log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anyk.runs.log import queries
from anyk.runs.run import Run

Column = NDArray[Any]
FATES = (
    "used",
    "used late",
    "not needed",
    "cut off",
    "lost",
    "unfinished at the end",
)
USED, LATE, SPARE, CUT, LOST, OPEN = range(len(FATES))
PHASES = ("waiting", "computing", "idle", "sending")  # of a finished chunk, in this order


@dataclass(frozen=True, eq=False)
class Tasks:
    """A row for each chunk of work that was handed out; times in seconds on the run's clock.

    ``start``: when it could begin: dispatched, and the chunk before it in its task computed. Then it took ``waiting``
    (until it was computed: for its order and an injected delay), ``computing``, ``idle`` (until its message was asked
    for, where that is not sent by itself) and ``sending``; of a chunk that was not finished only their sum is known,
    ``unknown``. ``fate``: an index into :data:`FATES`. ``step``: the step that used
    it or did not wait for it, -1 where there is none. ``late``: seconds after it was cut off at which its message would
    have come, or came; NaN where that is not known.
    """

    task: Column
    chunk: Column
    worker: Column
    slot: Column
    version: Column
    step: Column
    start: Column
    waiting: Column
    computing: Column
    idle: Column
    sending: Column
    unknown: Column
    fate: Column
    late: Column
    weight: Column
    work: Column
    slots: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.task)

    def only(self, which: Column) -> Tasks:
        """Some of them."""
        return Tasks(
            **{one.name: getattr(self, one.name)[which] for one in fields(self) if one.name != "slots"},
            slots=self.slots,
        )

    @property
    def finished(self) -> Column:
        """Which have their phases known."""
        return np.asarray(self.unknown == 0.0)

    @property
    def end(self) -> Column:
        """When each was over."""
        return np.asarray(self.start + self.waiting + self.computing + self.idle + self.sending + self.unknown)

    @cached_property
    def seconds(self) -> Column:
        """From the start of each to its end, without the time in which it was idle."""
        return self.end - self.start - self.idle

    @cached_property
    def first(self) -> Column:
        """The row of each task's first chunk; rows are ordered by task and chunk."""
        return np.flatnonzero(np.diff(self.task, prepend=-1))


def tasks_of(run: Run) -> Tasks:
    """Return all tasks of a run."""
    log = queries.columns(run.log, "chunks")
    steps = queries.columns(run.log, "steps")
    slots, slot = _coded(log["slot"])
    start = _starts(log)
    fate = _fates(run, log, slots, slot)
    finished = np.isfinite(log["computed"]) & np.isfinite(log["received"]) & (fate != LOST)
    over = np.where(np.isfinite(log["received"]), log["received"], log["cancelled"])
    lost = ~np.isfinite(over)
    if lost.any():  # events are many
        over[lost] = np.maximum(_losses(run, log, lost), start[lost])
    computing = np.where(np.isfinite(log["computing"]), log["computing"], start)
    computing = np.maximum(computing, start)
    worked = np.clip(_last_progress(run, log), computing, np.maximum(log["computed"], computing))
    phases = {
        "waiting": np.where(finished, computing - start, 0.0),
        "computing": np.where(finished, worked - computing, 0.0),
        "idle": np.where(finished, np.maximum(log["computed"] - worked, 0.0), 0.0),
        "sending": np.where(finished, np.maximum(log["received"] - log["computed"], 0.0), 0.0),
        "unknown": np.where(finished, 0.0, np.maximum(over - start, 0.0)),
    }
    phases["unknown"][~finished & (phases["unknown"] == 0.0)] = np.finfo(np.float32).tiny
    would = np.where(np.isfinite(log["due"]), log["due"], log["received"])
    return Tasks(
        task=log["task"],
        chunk=log["chunk"],
        worker=log["worker"],
        slot=slot,
        version=log["version"],
        step=_steps(log, steps, fate, slots, slot),
        start=start,
        **phases,
        fate=fate,
        late=np.where(fate == CUT, would - log["cancelled"], np.nan),
        weight=log["weight"],
        work=log["work"],
        slots=slots,
    )


def _coded(words: Column) -> tuple[tuple[str, ...], Column]:
    """The different words of a column in order, and the place of each among them."""
    names = tuple(sorted(set(words)))
    place = {name: i for i, name in enumerate(names)}
    return names, np.fromiter(map(place.__getitem__, words), dtype=np.int64, count=len(words))


def _starts(log: Mapping[str, Column]) -> Column:
    """When each chunk could begin; rows are ordered by task and chunk."""
    start = log["dispatched"].astype(np.float64)
    behind = np.flatnonzero(log["chunk"][1:] > 0) + 1 if len(start) else np.empty(0, int)
    same = behind[log["task"][behind] == log["task"][behind - 1]]
    before = log["computed"][same - 1]
    start[same] = np.where(np.isfinite(before), np.maximum(before, start[same]), start[same])
    return start


def _last_progress(run: Run, log: Mapping[str, Column]) -> Column:
    """When a worker last finished a partition of each chunk, where it reported that; else when it made the message."""
    last = log["computed"].astype(np.float64)
    rows = run.log.rows("SELECT task, chunk, max(time) FROM events WHERE kind = 'Progress' GROUP BY task, chunk")
    reports = {(task, chunk): time for task, chunk, time in rows}
    for i in np.flatnonzero(np.isfinite(last)) if reports else ():
        last[i] = reports.get((log["task"][i], log["chunk"][i]), last[i])
    return last


def _fates(run: Run, log: Mapping[str, Column], slots: tuple[str, ...], slot: Column) -> Column:
    names, ending = _coded(log["ending"])
    ends = {name: ending == i for i, name in enumerate(names)}
    none = np.zeros(len(ending), dtype=bool)
    fate = np.full(len(ending), LOST, dtype=np.uint8)
    fate[ends.get("counted", none)] = USED
    fate[ends.get("late_counted", none)] = LATE
    gone = ends.get("cancelled", none) | ends.get("discarded", none)
    with np.errstate(invalid="ignore"):
        came = np.isfinite(log["received"]) & ~(log["received"] > log["cancelled"])
    fate[gone] = np.where(came, SPARE, CUT)[gone]
    last = run.seconds
    newest = queries.newest(run.log)
    version = np.array([newest.get(name, 0) for name in slots] or [0], dtype=np.int64)[slot]
    last_event = run.log.rows("SELECT coalesce(max(seq), 0) FROM events")[0][0]
    unfinished = gone & ~came & (log["seq"] > last_event) & (log["cancelled"] >= last)
    fate[unfinished & (run.asynchronous | (log["version"] >= version))] = OPEN
    return fate


def _losses(run: Run, log: Mapping[str, Column], lost: Column) -> Column:
    """When the workers of some chunks were lost, or said that they could not do them; else the end of the run."""
    events = queries.columns(run.log, "events")
    gone = np.isin(events["kind"].astype(str), ("Lost", "Failed"))
    ends = np.full(int(lost.sum()), run.seconds)
    for i, (worker, dispatched) in enumerate(zip(log["worker"][lost], log["dispatched"][lost], strict=True)):
        times = events["time"][gone & (events["worker"] == worker) & (events["time"] >= dispatched)]
        if len(times):
            ends[i] = times.min()
    return ends


def _steps(
    log: Mapping[str, Column], steps: Mapping[str, Column], fate: Column, slots: tuple[str, ...], slot: Column
) -> Column:
    """The step that used a chunk, or the first that was made without one that had been given an earlier version."""
    step = np.where(np.isfinite(log["step"]), log["step"], -1).astype(np.int64)
    for i, name in enumerate(slots):
        updates = (steps["slot"] == name) & np.isfinite(steps["replies"])
        times, versions = steps["seconds"][updates], steps["step"][updates].astype(np.int64)
        mine = (slot == i) & (step < 0) & np.isin(fate, (CUT, SPARE)) & np.isfinite(log["cancelled"])
        if not len(times) or not mine.any():
            continue
        place = np.searchsorted(np.maximum.accumulate(times), log["cancelled"][mine], side="left")
        within = place < len(times)
        candidates = np.where(within, versions[np.minimum(place, len(times) - 1)], -1)
        step[mine] = np.where(candidates > log["version"][mine], candidates, -1)
    return step
