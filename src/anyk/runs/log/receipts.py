"""Receipts: which messages made a version, with which weights, and what became of the others."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from anyk.protocol import Cancel, Combine
from anyk.runs.engine.dispatches import ARRIVED, CUT, OPEN, Batch
from anyk.runs.log import queries
from anyk.runs.log.runlog import RunLog

if TYPE_CHECKING:
    from anyk.runs.engine.driver import Driver


@dataclass(frozen=True)
class CutOff:
    """A chunk that was not waited for: it took ``seconds`` from its dispatch, or at least that if not ``known``.

    ``done`` of ``partitions`` were finished when it stopped; None where nobody can tell.
    """

    worker: int
    task: int
    seconds: float
    known: bool
    done: int | None
    partitions: int

    def __str__(self) -> str:
        if self.known:
            return f"worker {self.worker}, {self.seconds:.3f} s"
        done = "" if self.done is None else f", {self.done} of {self.partitions} partitions done"
        return f"worker {self.worker}, at least {self.seconds:.3f} s{done}"


@dataclass(frozen=True)
class Receipt:
    """The messages that made one version of a slot, and the fate of the others.

    ``weights``: the weight with which each partition counted, shape (partitions,); ``used``: (worker, task, weight,
    staleness) of each message, and ``samples`` how many it was computed from (of local work in each of its steps; None
    for each without a problem); ``cut_off``: workers that were not waited for; ``spare``: workers whose messages had
    arrived but were not needed; ``rest``: all others, still at work or absent.
    """

    slot: str
    version: int
    time: float
    weights: NDArray[np.float64]
    residual: float
    gain: float
    used: tuple[tuple[int, int, float | str, int], ...]
    cut_off: tuple[CutOff, ...]
    spare: tuple[int, ...] = ()
    rest: tuple[int, ...] = ()
    samples: tuple[int | None, ...] = ()


def logged_receipt(log: RunLog, slot: str, version: int, *, workers: int, partitions: int) -> Receipt | None:
    """Return the receipt of a version as the log has it, or None if there is no such version."""
    made = queries.made(log, slot, version)
    if made is None:
        return None
    used = queries.used(log, slot, version)
    works, sizes = queries.works(log), queries.sizes(log)
    weights = np.zeros(partitions)
    for chunk in used:
        weight = chunk.weight
        covered, coefficients, _ = works[chunk.work]
        if isinstance(weight, str):  # one a block: what a partition's coefficient is on average over the blocks
            parts = np.asarray(coefficients).reshape(len(covered), -1) * np.asarray(json.loads(weight))
            np.add.at(weights, covered, parts.mean(axis=1))
        else:
            np.add.at(weights, covered, weight * np.asarray(coefficients))
    before = queries.time_before(log, slot, version)
    late = queries.cancelled(log, before, max(made.time, before), version)
    cut = tuple(
        CutOff(
            chunk.worker,
            chunk.task,
            (chunk.cancelled if chunk.due is None else chunk.due) - chunk.dispatched,
            chunk.due is not None,
            chunk.done,
            len(works[chunk.work].partitions),
        )
        for chunk in late
        if chunk.received is None or chunk.received > chunk.cancelled
    )
    counted, late_ones = {chunk.worker for chunk in used}, {one.worker for one in cut}
    spare = {chunk.worker for chunk in late} - counted - late_ones
    rest = set(range(workers)) - counted - late_ones - spare
    messages = tuple(chunk[:4] for chunk in used)
    return Receipt(
        slot,
        version,
        made.time,
        weights,
        made.residual,
        made.gain,
        messages,
        cut,
        tuple(sorted(spare)),
        tuple(sorted(rest)),
        tuple(works[chunk.work].samples(sizes) if sizes else None for chunk in used),
    )


def receipt_after(driver: Driver, slot: str, version: int) -> Receipt | None:
    """The receipt of a version that has been made, also while the run goes on.

    Of workers that have been told to stop and have not said how far they had come, it says at least how long they took.
    """
    assert driver.log is not None
    driver.log.flush()
    layout = driver.layout
    found = logged_receipt(driver.log, slot, version, workers=layout.workers, partitions=layout.partitions)
    if found is None:
        return None
    before = queries.time_before(driver.log, slot, version)
    counted = {message[0] for message in found.used}
    silent = [
        one
        for task, batch in driver.ledger.cut_off.items()
        if before < batch.cancelled.get(task, before) <= found.time and batch.versions[slot] < version
        for one in _late(task, batch, batch.cancelled[task], CUT)
        if one.worker not in counted
    ]
    cut = tuple(sorted((*found.cut_off, *silent), key=lambda one: (one.worker, one.task)))
    late = {one.worker for one in cut}
    return replace(found, cut_off=cut, rest=tuple(worker for worker in found.rest if worker not in late))


def receipt_of_step(driver: Driver) -> Receipt:
    """The receipt of the step that is being taken.

    Who is cut off is who the cancellation that comes with the step will find at work.
    """
    combine, now = driver.taking, driver.now
    assert combine is not None
    slot, ledger = combine.slot, driver.ledger
    version = driver.versions[slot]
    weights, messages = np.zeros(driver.layout.partitions), []
    for (task, index), weight in zip(combine.messages, combine.weights, strict=True):
        batch = ledger.under_way[task]
        chunk = batch.chunks[task - batch.first][index]
        shares = np.asarray(chunk.coefficients, dtype=np.float64).reshape(len(chunk.partitions), -1)
        np.add.at(weights, list(chunk.partitions), (shares * np.asarray(weight)).mean(axis=1))
        worker = batch.workers[task - batch.first]
        plain = weight if isinstance(weight, (int, float)) else json.dumps(list(weight))
        of = chunk.partitions
        samples = sum(min(chunk.batch, ledger.sizes[j]) if chunk.batch else ledger.sizes[j] for j in of)
        messages.append(((worker, task, plain, version - batch.versions[slot]), samples, index))
    messages.sort(key=lambda one: (*one[0][:2], one[2]))  # as the log has them
    used = [one[0] for one in messages]
    counted = {message[0] for message in used}
    ended = [task for command in driver.obeying if isinstance(command, Cancel) for task in command.tasks]
    given = [(task, ledger.under_way[task]) for task in ended if task in ledger.under_way]
    cut = [one for task, batch in given for one in _late(task, batch, now, OPEN) if one.worker not in counted]
    late = {one.worker for one in cut}
    spare = {batch.workers[task - batch.first] for task, batch in given if batch.places(task, ARRIVED)}
    spare -= counted | late
    rest = set(range(driver.layout.workers)) - counted - late - spare
    residual, gain = (combine.residual or 0.0, combine.gain) if isinstance(combine, Combine) else (0.0, 1.0)
    return Receipt(
        slot,
        version + 1,
        now,
        weights,
        residual,
        gain,
        tuple(used),
        tuple(sorted(cut, key=_place)),
        tuple(sorted(spare)),
        tuple(sorted(rest)),
        tuple(samples for _, samples, _ in messages),
    )


def _late(task: int, batch: Batch, until: float, status: int) -> Sequence[CutOff]:
    """The chunks of a task that are in a status, as cut off at a time."""
    worker = batch.workers[task - batch.first]
    return [
        CutOff(worker, task, until - batch.at, False, batch.done.get(place), len(batch.chunk(place).partitions))
        for place in batch.places(task, status)
    ]


def _place(one: CutOff) -> tuple[int, int]:
    return one.worker, one.task
