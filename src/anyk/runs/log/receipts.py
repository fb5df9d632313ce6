"""Receipts: the messages that made a version, with their weights, and the fate of the others."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from anyk.base.arrays import Floats
from anyk.base.plain import ByName
from anyk.protocol import Combine
from anyk.runs.engine.dispatches import ARRIVED, CANCELLED, OPEN, Batch, plain_weight
from anyk.runs.log import queries
from anyk.runs.log.runlog import RunLog

if TYPE_CHECKING:
    from anyk.runs.engine.driver import Driver
    from anyk.runs.engine.step_record import StepBegun


@dataclass(frozen=True)
class CutOff:
    """A chunk that was not waited for; it took ``seconds`` from its dispatch, or longer if this is not ``known``.

    ``done``: how many of its ``partitions`` were finished when it stopped; None if this was not reported.
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


class UsedMessage(NamedTuple):
    """A message that made a version: its worker and task, its weight, and its staleness in versions.

    The weight is JSON text if there is one for each block.
    """

    worker: int
    task: int
    weight: float | str
    staleness: int


@dataclass(frozen=True)
class Receipt:
    """The messages that made a version of a slot, and the fate of the others.

    ``weights``: the weight of each partition in the sum of the messages, shape (partitions,). The sum is divided by the
    number of all samples; under asynchronous strategies and ``anytime``, by that of the samples which it covers, the
    sum of ``samples``, and ``residual`` and ``gain`` are of the weights after this division. ``used``: the messages.
    ``samples``: the number of samples of each message (of local work in each of its steps; None without a problem, and
    with ``order=epoch``, whose batches vary). ``cut_off``: chunks that were not waited for.
    ``spare``: workers whose messages had arrived but were not needed. ``rest``: all other workers, still at work or
    absent. ``values``: the problem's values with which the newest of the gradients were computed, arrays as digests.
    ``fleet``: of a fleet that changes, its number of workers, the imbalance of their shares, and how many may
    leave without moving data. ``slices``: for each of the messages, the workers whose replicas gave each slice of it;
    empty where a message was read as a whole.
    """

    slot: str
    version: int
    time: float
    weights: Floats
    residual: float
    gain: float
    used: tuple[UsedMessage, ...]
    cut_off: tuple[CutOff, ...]
    spare: tuple[int, ...] = ()
    rest: tuple[int, ...] = ()
    samples: tuple[int | None, ...] = ()
    fleet: str = ""
    values: Mapping[str, float | str] = field(default_factory=dict)
    slices: tuple[tuple[int, ...], ...] = ()

    def report(self) -> ByName:
        """Return the receipt as plain values for JSON; a number that is not finite is None."""
        named = {
            "weights": self.weights.tolist(),
            "used": [message._asdict() for message in self.used],
            "cut_off": [asdict(cut) for cut in self.cut_off],
        }
        plain: ByName = msgspec.json.decode(msgspec.json.encode(vars(self) | named))
        return plain


class _Update(NamedTuple):
    """The update that a receipt is for."""

    slot: str
    version: int
    time: float
    residual: float
    gain: float
    fleet: str = ""
    values: Mapping[str, float | str] = {}


class _Message(NamedTuple):
    """A message that the update uses; its weight is JSON if there is one for each block."""

    worker: int
    task: int
    chunk: int
    weight: float | str
    staleness: int
    work: queries.Work
    slices: tuple[int, ...] = ()  # the workers whose replicas gave each slice


_MADE = (
    "SELECT slot, version, time, residual, gain, "
    "coalesce((SELECT text FROM notes n WHERE n.kind = 'fleet' AND n.time < u.time ORDER BY n.seq DESC LIMIT 1), ''), "
    "(SELECT coalesce(max(time), 0.0) FROM updates WHERE slot = ?1 AND version < ?2) "
    "FROM updates u WHERE slot = ?1 AND version = ?2"
)
_USED = (
    "SELECT worker, task, chunk, weight, ?2 - 1 - version, work FROM chunks WHERE slot = ?1 AND step = ?2 "
    "UNION ALL SELECT c.worker, r.task, r.chunk, r.weight, ?2 - 1 - c.version, c.work FROM reuses r "
    "JOIN chunks c ON c.task = r.task AND c.chunk = r.chunk WHERE r.slot = ?1 AND r.version = ?2 ORDER BY 1, 2, 3"
)
_SLICES = "SELECT task, chunk, workers FROM slices WHERE slot = ? AND version = ?"
_CARRIED = "SELECT info FROM carried WHERE slot = ? AND version < ? ORDER BY version DESC LIMIT 1"
_CANCELLED = (
    "SELECT worker, task, dispatched, cancelled, due, received, done, work FROM chunks WHERE ending IN "
    "('cancelled', 'discarded') AND cancelled > ? AND cancelled <= ? AND version < ?"
)


def logged_receipt(
    log: RunLog, slot: str, version: int, *, workers: int, partitions: int, stopped: Mapping[int, Batch] | None = None
) -> Receipt | None:
    """Return the receipt of a version from the log, or None without such a version.

    ``stopped``: the batches of tasks that were cancelled, and whose workers have not reported their progress; the
    receipt states lower bounds of their seconds.
    """
    rows = log.rows(_MADE, (slot, version))
    if not rows:
        return None
    *fields, before = rows[0]
    carried = log.rows(_CARRIED, (slot, version))
    update = _Update(*fields)._replace(values=json.loads(carried[0][0]) if carried else {})
    works = queries.works(log)
    slices = {(task, chunk): tuple(json.loads(text)) for task, chunk, text in log.rows(_SLICES, (slot, version))}
    used = [
        _Message(
            worker=worker,
            task=task,
            chunk=chunk,
            weight=weight,
            staleness=staleness,
            work=works[work],
            slices=slices.get((task, chunk), ()),
        )
        for worker, task, chunk, weight, staleness, work in log.rows(_USED, (slot, version))
    ]
    cancelled = log.rows(_CANCELLED, (before, max(update.time, before), version))
    cut_off = [
        CutOff(
            worker=worker,
            task=task,
            seconds=(cancelled_at if due is None else due) - start,
            known=due is not None,
            done=done,
            partitions=len(works[work].partitions),
        )
        for worker, task, start, cancelled_at, due, received, done, work in cancelled
        if received is None or received > cancelled_at
    ]
    silent = [
        chunk
        for task, batch in (stopped or {}).items()
        if before < batch.cancelled.get(task, before) <= update.time and batch.versions[slot] < version
        for chunk in _late(task, batch, batch.cancelled[task], CANCELLED)
    ]
    sizes = [samples for (samples,) in log.rows("SELECT samples FROM partitions ORDER BY id")]
    return _receipt(
        update=update,
        fleet=(partitions, workers),
        sizes=sizes,
        used=used,
        cut_off=cut_off + _unused(silent, used),
        cancelled={row[0] for row in cancelled},
    )


def receipt_after(driver: Driver, slot: str, version: int) -> Receipt | None:
    """Return the receipt of a version that has been made, also of a run that has not ended."""
    assert driver.log is not None
    driver.log.flush()
    workers, partitions = driver.layout.workers, driver.layout.partitions
    stopped = driver.ledger.cancelled
    return logged_receipt(driver.log, slot, version, workers=workers, partitions=partitions, stopped=stopped)


def receipt_of_step(driver: Driver, begun: StepBegun) -> Receipt:
    """Return the receipt of a step that has begun, which is not in the log yet.

    The workers that are cut off are those at work that the strategy cancels together with the step.
    """
    combine, tasks = begun.command, driver.ledger.under_way
    used = []
    for (task, index), weight in zip(combine.messages, combine.weights, strict=True):
        batch = tasks[task]
        chunk = batch.chunks[task - batch.first][index]
        work = queries.Work(list(chunk.partitions), list(chunk.coefficients), chunk.batch)
        worker = batch.workers[task - batch.first]
        used.append(
            _Message(
                worker=worker,
                task=task,
                chunk=index,
                weight=plain_weight(weight),
                staleness=begun.version - 1 - batch.versions[combine.slot],
                work=work,
                slices=tuple(driver.cluster.store.givers((task, index))),
            )
        )
    used.sort(key=lambda message: message[:3])  # as in the log
    batches = [(task, tasks[task]) for task in begun.cancelled if task in tasks]
    cut_off = [chunk for task, batch in batches for chunk in _late(task, batch, begun.time, OPEN)]
    answered = {batch.workers[task - batch.first] for task, batch in batches if batch.cells(task, ARRIVED)}
    residual, gain = (combine.residual or 0.0, combine.gain) if isinstance(combine, Combine) else (0.0, 1.0)
    carried = driver.versions.carried
    values = {} if carried is None else carried.shown(combine.slot)
    update = _Update(combine.slot, begun.version, begun.time, residual, gain, values=values)
    fleet = driver.layout.partitions, driver.layout.workers
    sizes = () if driver.layout.epochs else driver.ledger.sizes
    return _receipt(
        update=update, fleet=fleet, sizes=sizes, used=used, cut_off=_unused(cut_off, used), cancelled=answered
    )


def _receipt(
    update: _Update,
    fleet: tuple[int, int],
    sizes: Sequence[int],
    used: Sequence[_Message],
    cut_off: Sequence[CutOff],
    cancelled: set[int],
) -> Receipt:
    """Assemble a receipt; ``fleet``: numbers of partitions and workers; ``cancelled``: workers with cancelled tasks."""
    partitions, workers = fleet
    weights = np.zeros(partitions)
    for message in used:
        work, weight = message.work, message.weight
        values = np.asarray(json.loads(weight) if isinstance(weight, str) else weight)
        # with a weight for each block: the mean of a partition's coefficients over the blocks
        shares = np.asarray(work.coefficients, dtype=np.float64).reshape(len(work.partitions), values.size) * values
        np.add.at(weights, work.partitions, shares.mean(axis=1))
    counted, late = {message.worker for message in used}, {chunk.worker for chunk in cut_off}
    spare = cancelled - counted - late
    return Receipt(
        **update._asdict(),
        weights=weights,
        used=tuple(UsedMessage(message.worker, message.task, message.weight, message.staleness) for message in used),
        cut_off=tuple(sorted(cut_off, key=lambda chunk: (chunk.worker, chunk.task))),
        spare=tuple(sorted(spare)),
        rest=tuple(sorted(set(range(workers)) - counted - late - spare)),
        samples=tuple(message.work.samples(sizes) if sizes else None for message in used),
        slices=tuple(message.slices for message in used),
    )


def _late(task: int, batch: Batch, until: float, status: int) -> list[CutOff]:
    """Return the chunks of a task that are in a status, as cut off at a time."""
    worker = batch.workers[task - batch.first]
    return [
        CutOff(
            worker=worker,
            task=task,
            seconds=until - batch.dispatched,
            known=False,
            done=batch.done.get(cell),
            partitions=len(batch.chunk(cell).partitions),
        )
        for cell in batch.cells(task, status)
    ]


def _unused(chunks: Sequence[CutOff], used: Sequence[_Message]) -> list[CutOff]:
    """Return the chunks of workers none of whose messages was used."""
    counted = {message.worker for message in used}
    return [chunk for chunk in chunks if chunk.worker not in counted]
