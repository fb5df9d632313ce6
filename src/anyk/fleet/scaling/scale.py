"""Predict the seconds of a step for any number of nodes: as a star, in slices, and as an all-reduce."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Literal, NamedTuple

import numpy as np

from anyk.base import AtLeastZero, BadInput, ByName, Floats, check_range, check_value, typed
from anyk.clusters import Simulated, SliceCopies, no_slices
from anyk.compression import compressor
from anyk.delays import DelayModel, SecondsOrZero
from anyk.delays import parse as parse_delays
from anyk.fleet.scaling.links import BETWEEN_WORKERS, MessageReading, ModelReading
from anyk.fleet.scaling.network import (
    SLICE_MESSAGES,
    SLOW_NODE,
    STAR_MESSAGES,
    WAYS,
    AtLeastOneTime,
    NodeLink,
    Way,
    held_sizes,
    spread_seconds,
    transfer_seconds,
)
from anyk.fleet.simulation import drive
from anyk.protocol import Chunk, Dispatch, Fleet, Strategy, Task, shares_computed
from anyk.strategies import Compressed, Rounds, strategy

DType = Literal["float16", "bfloat16", "float32", "float64"]
_BYTES: dict[str, int] = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
_MOST_NODES, _MOST_COUNTS = 4096, 200
_MESSAGES = 20_000  # of the steps that are simulated, about
_FEWEST, _MOST = 40, 400  # steps
_WORTH = 0.99  # of the all-reduce's seconds, from which on another way is worth it
_COUNTS = re.compile(r"(\d+)\.\.(\d+)", re.ASCII)
_MEANT = "should be numbers of machines such as 4..512 (each twice the one before) or 4,6,8"


class StepSeconds(NamedTuple):
    """Mean seconds of a step in one way, and the standard error of the mean; None, and the ``reason``, if it cannot be.

    ``error`` is 0 if nothing is random.
    """

    seconds: float | None
    error: float = 0.0
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class ScaleRow:
    """The seconds of a step on ``nodes`` machines.

    ``star``, ``slices``: of the strategy, which is in ``spec`` with its numbers for this many workers. ``all_reduce``:
    of gradients without redundancy, for which everybody waits. ``waiting`` and ``waiting_for_all``: what computing and
    delays take alone, on a network that takes no time, of the strategy and without redundancy. ``load``: what a worker
    computes in a step, relative to that without redundancy. ``reason``: why there is no such strategy, or no such
    delays; empty if there are.
    """

    nodes: int
    spec: str = ""
    load: float = 1.0
    star: StepSeconds
    slices: StepSeconds
    all_reduce: StepSeconds
    waiting: StepSeconds
    waiting_for_all: StepSeconds
    reason: str = ""

    def of(self, way: Way) -> StepSeconds:
        """Return the seconds of one way."""
        return {"star": self.star, "slices": self.slices, "all-reduce": self.all_reduce}[way]

    @property
    def best(self) -> Way | None:
        """The way that takes least time; None if there is no other than the all-reduce to compare.

        The all-reduce, which needs least of all, is the best if no other takes at least 1 % less.
        """
        predicted = [(seconds, way) for way in WAYS if (seconds := self.of(way).seconds) is not None]
        worth = [(seconds * (_WORTH if way == "all-reduce" else 1.0), way) for seconds, way in predicted]
        return min(worth)[1] if len(worth) > 1 else None


@dataclass(frozen=True, kw_only=True)
class ScaleResult:
    """What :func:`scale` predicts: a row for each number of nodes, and what was assumed.

    ``size``: bytes of a vector. ``copies``: nodes that hold each slice. ``exact``: whether every step is the exact sum.
    """

    strategy: str
    parameters: int
    dtype: DType
    size: int
    network: NodeLink
    delays: str
    compute: float
    slow: float
    copies: int
    seed: int
    exact: bool
    rows: tuple[ScaleRow, ...] = field(repr=False)

    def wins(self, way: Way) -> list[tuple[int, int]]:
        """Return the ranges of nodes, among those tried, in which a way takes least time."""
        compared = [row for row in self.rows if row.best is not None]
        runs = [list(run) for best, run in groupby(compared, key=lambda row: row.best) if best == way]
        return [(run[0].nodes, run[-1].nodes) for run in runs]

    def slow_node_costs(self, nodes: int) -> dict[Way, float]:
        """Return the seconds that the slow node adds to each step's transfers, by way.

        Of slices, that of the model which it holds, and everybody reads from it. Its messages are not counted, which a
        replica may send in its place.
        """
        plain, slow = (
            {
                way: transfer_seconds(
                    way,
                    self.size,
                    self.network,
                    nodes=nodes,
                    copies=self.copies,
                    slow=times,
                    itemsize=self.size // self.parameters,
                )
                for way in WAYS
            }
            for times in (1.0, self.slow)
        )
        ring = slow["all-reduce"].seconds - plain["all-reduce"].seconds
        return {"star": 0.0, "slices": slow["slices"].spread - plain["slices"].spread, "all-reduce": ring}

    def report(self) -> ByName:
        """Return all of it as plain data, for JSON."""
        rows = []
        for row in self.rows:
            parts = {name: value._asdict() for name, value in vars(row).items() if isinstance(value, StepSeconds)}
            rows.append(vars(row) | parts | {"best": row.best})
        return vars(self) | {
            "network": vars(self.network),
            "rows": rows,
            "wins": {way: self.wins(way) for way in WAYS},
        }


def node_counts(text: str | Sequence[int]) -> tuple[int, ...]:
    """Return numbers of nodes: ``4..512`` is 4, 8, 16 and so on, each twice the one before, and 512.

    >>> node_counts("4..24"), node_counts("4, 6")
    ((4, 8, 16, 24), (4, 6))
    """
    if isinstance(text, str):
        span = _COUNTS.fullmatch(text.strip())
        words = text.split(",")
        if span is not None:
            first, last = int(span[1]), int(span[2])
            check_range("the first number of nodes", first, 2, last, ", the last")
            check_range("the last number of nodes", last, 2, _MOST_NODES)
            doubled = [first << power for power in range(last.bit_length()) if first << power < last]
            return (*doubled, last)
        if not all(word.strip().isdecimal() and word.isascii() for word in words):
            raise BadInput(f"nodes {_MEANT}, got '{text}'")
        counts: Sequence[int] = [int(word) for word in words]
    else:
        counts = check_value(text, tuple[int, ...], "nodes")
    if not 0 < len(counts) <= _MOST_COUNTS:
        raise BadInput(f"nodes {_MEANT}, at most {_MOST_COUNTS}, got {len(counts)} numbers")
    for count in counts:
        check_range("nodes", count, 2, _MOST_NODES)
    return tuple(sorted(set(counts)))


@typed
def scale(
    strategy: str,
    *,
    parameters: float,
    network: str | NodeLink,
    nodes: Any = "4..512",
    delays: str | DelayModel = "none",
    compute: SecondsOrZero = 0.0,
    dtype: DType = "float32",
    latency: SecondsOrZero = 0.0,
    slow: AtLeastOneTime = 1.0,
    copies: SliceCopies = 1,
    seed: int = 0,
    steps: AtLeastZero = 0,
    tell: Callable[[str], None] | None = None,
) -> ScaleResult:
    """Predict the seconds of a step on each number of nodes: as a star, in slices, and as an all-reduce.

    Each node has one worker and one link. The strategy runs on the virtual clock with ``delays``, ``compute`` seconds
    (of a node's samples without redundancy; r times as long with load r) and transfers over these links
    (:mod:`anyk.fleet.scaling.links`). The all-reduce is what DistributedDataParallel does: each node computes its
    samples once, everybody waits for the last one, and then vectors go round a ring. All ways have the same delays.

    ``parameters``: of the model, of type ``dtype``. ``network``: a rate such as ``10Gb/s`` or ``100MB/s``, with
    ``latency`` in seconds, or a :class:`NodeLink`. ``nodes``: numbers, or a text such as ``4..512``. ``slow``: node 1
    computes and sends so many times slower. ``copies``: nodes that hold each slice, 1 or 2, all of which read what
    they need for it in each step. ``steps``: to simulate (0: 40 to 400). ``tell`` is called with a line before each
    number of nodes. The formulas, and what they assume, are in :mod:`anyk.fleet.scaling.network`.

    A strategy that does not exist for some numbers of nodes has rows without seconds, with the reason; if it exists for
    none, or sends models between workers, :class:`~anyk.BadInput` is raised.

    >>> scaling = scale("frc:load=2", parameters=1e7, network="1Gb/s", nodes=(4, 8))
    >>> [(row.nodes, round(row.slices.seconds, 3), round(row.all_reduce.seconds, 3), row.best) for row in scaling.rows]
    [(4, 0.356, 0.51, 'slices'), (8, 0.445, 0.595, 'slices')]
    """
    if not 1 <= parameters <= 1e13 or parameters != int(parameters):
        raise BadInput(f"parameters should be their number, such as 1e8, got {parameters:g}")
    counts = node_counts(nodes)
    link = NodeLink.read(network, latency) if isinstance(network, str) else network
    law = parse_delays(delays)
    request = _Request(
        spec=strategy,
        parameters=int(parameters),
        itemsize=_BYTES[dtype],
        network=link,
        law=law,
        compute=compute,
        slow=slow,
        copies=copies,
        seed=seed,
        steps=steps,
    )
    rows, errors, exact = [], [], True
    for count in counts:
        if tell is not None:
            tell(f"{count} nodes")
        try:
            built = _built(strategy, count)
            law.check_fleet(count)
        except BadInput as error:
            errors.append(error)
            rows.append(_row_without(request, count, str(error)))
            continue
        exact &= built.facts.exact
        rows.append(_row(request, built, count))
    if len(errors) == len(rows):
        raise errors[0]
    return ScaleResult(
        strategy=strategy,
        parameters=int(parameters),
        dtype=dtype,
        size=request.size,
        network=link,
        delays=law.spec,
        compute=compute,
        slow=slow,
        copies=copies,
        seed=seed,
        exact=exact,
        rows=tuple(rows),
    )


def _built(spec: str, nodes: int) -> Strategy:
    return strategy(spec, workers=nodes)


# ----------------------------------------------------------------------------------------------- one number of nodes


class _Request(NamedTuple):
    """What is asked, for any number of nodes."""

    spec: str
    parameters: int
    itemsize: int
    network: NodeLink
    law: DelayModel
    compute: float
    slow: float
    copies: int
    seed: int
    steps: int

    @property
    def size(self) -> int:
        """Bytes of a vector."""
        return self.parameters * self.itemsize

    def transfer(self, way: Way, nodes: int) -> Any:
        """Return what the uncoded sum takes."""
        return transfer_seconds(way, self.size, self.network, nodes=nodes, slow=self.slow)


def _row(request: _Request, built: Strategy, nodes: int) -> ScaleRow:
    own_models = built.layout.inner is not None and len(built.layout.slots) > 1
    if own_models or any(chunk.send == "request" for task in _first_tasks(built) for chunk in task):
        raise BadInput(BETWEEN_WORKERS)
    reason = _no_slices(built)
    all_reduce, waiting_for_all = _all_reduce(request, nodes)
    return ScaleRow(
        nodes=nodes,
        spec=built.spec,
        load=nodes * max(shares_computed(built)),
        star=_simulated(request, built, "star"),
        slices=StepSeconds(None, reason=reason) if reason else _simulated(request, built, "slices"),
        all_reduce=all_reduce,
        waiting=_simulated(request, built, None),
        waiting_for_all=waiting_for_all,
    )


def _row_without(request: _Request, nodes: int, reason: str) -> ScaleRow:
    """Return the row of a number of nodes for which there is no such strategy, or no such delays."""
    none = StepSeconds(None, reason=reason)
    try:
        request.law.check_fleet(nodes)
        all_reduce, waiting = _all_reduce(request, nodes)
    except BadInput:
        all_reduce = waiting = none
    return ScaleRow(
        nodes=nodes,
        star=none,
        slices=none,
        all_reduce=all_reduce,
        waiting=none,
        waiting_for_all=waiting,
        reason=reason,
    )


def _first_tasks(built: Strategy) -> list[Task]:
    """Return the tasks with which a strategy begins."""
    workers = built.layout.workers
    _, commands = built.start(Fleet(workers, tuple(range(workers))))
    return [task for command in commands if isinstance(command, Dispatch) for task in command.chunks]


def _no_slices(built: Strategy) -> str:
    """Return why a strategy's sums cannot lie in slices; empty if they can."""
    return "compressed messages have no slices" if isinstance(built, Compressed) else no_slices(built.layout)


def _all_reduce(request: _Request, nodes: int) -> tuple[StepSeconds, StepSeconds]:
    """Return the seconds of a step whose vectors go round a ring, and those in which all wait for all before that."""
    waiting = _simulated(request, _built("uncoded", nodes), None)
    assert waiting.seconds is not None
    ring = request.transfer("all-reduce", nodes).seconds
    return waiting._replace(seconds=waiting.seconds + ring), waiting


def _simulated(request: _Request, built: Strategy, way: Way | None) -> StepSeconds:
    """Return the seconds of a strategy's steps on the virtual clock; without a way its network takes no time."""
    nodes, network = built.layout.workers, request.network
    slower = np.ones(nodes)
    slower[SLOW_NODE] = request.slow
    tasks = max(1, max((chunk.steps for task in _first_tasks(built) for chunk in task), default=1))
    before = request.compute * tasks * nodes * np.array(shares_computed(built)) * slower
    one = 0.0
    if way == "star":
        before += STAR_MESSAGES * network.latency
        vector = request.size / network.bandwidth
        if _all_at_once(built):
            before[1:] += (nodes - 1) * vector  # rank 0's node is on its machine
        else:
            one = vector
    elif way == "slices":
        before += SLICE_MESSAGES * network.latency + spread_seconds(
            request.size, network, nodes, slow=request.slow, itemsize=request.itemsize, copies=request.copies
        )
    law = _SlowNode.of(request.law, SLOW_NODE, request.slow)
    cluster = Simulated(nodes, delays=law, seed=request.seed, communication=ModelReading(before=before, one=one))
    if way is not None:
        held = held_sizes(request.size, nodes, request.itemsize, request.copies)
        cluster.reading = MessageReading(
            shares=np.ones(1) if way == "star" else held / request.size,
            rates=network.bandwidth / slower,
            bandwidth=network.bandwidth,
            size=_message_size(request, built),
        )
    random = not request.law.silent
    steps = request.steps or min(_MOST, max(_FEWEST, _MESSAGES // nodes))
    if not random and _all_at_once(built):
        steps = min(steps, 3)
    return _mean(np.diff(drive(built, cluster, steps)[0]), random=random)


def _all_at_once(built: Strategy) -> bool:
    """Return whether all workers begin a step together."""
    return isinstance(built.of if isinstance(built, Compressed) else built, Rounds)


def _message_size(request: _Request, built: Strategy) -> Callable[[Chunk], float]:
    """Return a function of a chunk: the bytes of its message."""
    sizes: dict[str, float] = {"": request.size / built.layout.blocks}

    def size(chunk: Chunk) -> float:
        if chunk.compress not in sizes:
            sizes[chunk.compress] = float(compressor(chunk.compress).size(request.parameters, request.itemsize))
        return sizes[chunk.compress]

    return size


def _mean(durations: Floats, *, random: bool) -> StepSeconds:
    """Return the mean seconds of a step, with the standard error by means of batches."""
    batches = min(20, len(durations))
    if not random or batches < 2:
        return StepSeconds(float(durations[-1] if not random and len(durations) <= 3 else durations.mean()))
    means = durations[: len(durations) // batches * batches].reshape(batches, -1).mean(axis=1)
    return StepSeconds(float(durations.mean()), float(means.std(ddof=1) / batches**0.5))


@dataclass(frozen=True)
class _SlowNode(DelayModel):
    """Delays of which those of one worker are longer."""

    law: DelayModel
    worker: int
    factor: float
    name = "slow node"

    @classmethod
    def of(cls, law: DelayModel, worker: int, factor: float) -> DelayModel:
        """Return the delays with those of a worker multiplied."""
        if law.silent or factor == 1.0:
            return law
        return cls(law, worker, factor, by=law.by, per=law.per, uninterruptible=law.uninterruptible)

    @property
    def slope(self) -> float:
        """Whether delays depend on the load, as in a trace."""
        return float(getattr(self.law, "slope", 0.0))

    def _of(self, worker: int) -> float:
        return self.factor if worker == self.worker else 1.0

    def seconds(self, uniforms: Floats, worker: int) -> Floats:
        return self.law.seconds(uniforms, worker) * self._of(worker)

    def draws(self, seed: int, worker: int, start: int, count: int) -> Floats:
        return self.law.draws(seed, worker, start, count) * self._of(worker)

    def item_draw(self, seed: int, worker: int, version: int, repeat: int) -> float:
        return self.law.item_draw(seed, worker, version, repeat) * self._of(worker)

    def at_load(self, seconds: float, relative_load: float) -> float:
        return self.law.at_load(seconds, relative_load)

    def check_fleet(self, workers: int) -> None:
        self.law.check_fleet(workers)
