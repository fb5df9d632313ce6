"""Codes whose workers report their progress and send one message, of what they have finished, on request."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from anyk.base.arrays import Floats, Indices
from anyk.base.checks import value_class
from anyk.base.errors import BadInput
from anyk.codes.base import (
    Code,
    Decoder,
    Policy,
    RegisteredCode,
    Row,
    StragglersCode,
    check_load,
    check_workers,
    usual_load,
    windows,
)
from anyk.codes.biregular import RandomBiregularCode
from anyk.codes.cyclic import CyclicRepetition
from anyk.codes.made import LEFT_OUT, fixed_property
from anyk.codes.repetition import FractionalRepetition, Uncoded


class Ask(NamedTuple):
    """A request to one worker: finished partitions with coefficients; its message counts with ``weight``."""

    worker: int
    partitions: tuple[int, ...]
    coefficients: tuple[float, ...]
    weight: float


class ProgressWatch(ABC):
    """Counts the partitions that workers finish in one step, and decides when to request which messages."""

    ready: bool = False

    @abstractmethod
    def saw(self, worker: int, done: int) -> bool:
        """Note that a worker has finished ``done`` of its partitions; return whether the sum is available."""

    @abstractmethod
    def asks(self) -> list[Ask]:
        """Return requests for the exact sum if :attr:`ready`, else for as much of it as is finished."""

    @property
    @abstractmethod
    def residual(self) -> float:
        """Residual of the sum that :meth:`asks` would request now."""


class ProgressCode(Code):
    """A code whose workers compute their partitions in a given order and send one message on request.

    A subclass defines ``orders`` and ``watch``. Its rows and decoder are for workers that have finished everything.
    """

    def policy(self) -> Policy:
        return Policy(rounds="progress")

    @property
    @abstractmethod
    def orders(self) -> Sequence[tuple[int, ...]]:
        """Partitions of each worker in the order in which it computes them."""

    @fixed_property
    def assignment(self) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(sorted(order)) for order in self.orders)

    def _check_more(self) -> None:
        assignment = Code.assignment.func(self)  # by the rows, whatever the class defines
        if len(self.orders) != len(assignment):
            raise BadInput(f"orders must be one for each of {len(assignment)} workers, got {len(self.orders)}")
        for i, (order, partitions) in enumerate(zip(self.orders, assignment, strict=True)):
            if sorted(order) != sorted(partitions):
                raise BadInput(f"orders[{i}] must list the partitions of worker {i}, {partitions}, got {order}")

    @abstractmethod
    def watch(self) -> ProgressWatch:
        """Return a new watch for one step."""

    def ready_times(self, seconds: Floats, per_partition: Floats) -> Floats | None:
        """Return when the sum is available in each round, shape (rounds,); None, the default, if unknown.

        ``seconds``: time of each worker for all its partitions, ``per_partition``: for one partition, both of shape
        (rounds, workers). The partitions are finished one after another at the end.
        """
        return None


@value_class
class NestedCode(StragglersCode, ProgressCode):
    """Nested code: one placement serves a code for each tolerance; the progress in a step decides between them.

    Worker i computes its partitions in an order whose beginnings are the rows of exact codes of growing tolerance.
    It reports progress (a number, no vector). As soon as enough workers have reached some level, each is asked for
    one vector. No fixed tolerance ends a step sooner, and a fleet without stragglers computes each
    partition once. (After Massny, Hofmeister, Egger, Bitar and Wachter-Zeh 2022; the construction here is our own
    with the properties that their abstract states.)

    ``kind="binary"``: levels u = 0 … U tolerate ``2^u - 1``; worker i computes partitions i xor 0, i xor 1, …, and
    level u is ready when each block of ``2^u`` workers has one that finished ``2^u``; free of rounding, but 2^U must
    divide n.
    ``kind="cyclic"``: levels s = 0 … S; worker i computes i, i + 1, …, and level s is ready when n - s workers have
    finished s + 1 (cyclic repetition at each level). The default is binary if some 2^U > ``stragglers`` divides n.

    ``stragglers`` is the largest tolerance, by default a tenth of the workers; binary rounds it up to 2^U - 1. Raises
    :class:`~anyk.BadInput` for stragglers out of range, and for a kind that does not exist for the workers.

    >>> code = NestedCode(8, stragglers=3)
    >>> code.kind, code.orders[5], [level.tolerates for level in code.levels]
    ('binary', (5, 4, 7, 6), [0, 1, 3])
    """

    workers: int
    stragglers: int | None = None
    kind: Literal["binary", "cyclic"] | None = None
    seed: int = 0
    name = "nested"

    def __post_init__(self) -> None:
        super().__post_init__()
        n, s = self.workers, self.tolerates
        top = s.bit_length()  # 2^top > s
        kind = self.kind or ("binary" if n % 2**top == 0 else "cyclic")
        if kind == "binary":
            if n % 2**top:
                raise BadInput(
                    f"nested:kind=binary,stragglers={s} does not exist for {n} workers: {2**top} must divide them; "
                    "use kind=cyclic"
                )
            s = 2**top - 1
        self._resolve(kind=kind, stragglers=s)

    @fixed_property
    def levels(self) -> tuple[Code, ...]:
        """Codes of the levels, of growing tolerance."""
        n, s = self.workers, self.tolerates
        if self.kind == "binary":
            return tuple(FractionalRepetition(n, load=2**u) for u in range(s.bit_length() + 1))
        return (Uncoded(n), *(CyclicRepetition(n, stragglers=level, seed=self.seed) for level in range(1, s + 1)))

    @fixed_property
    def orders(self) -> tuple[tuple[int, ...], ...]:
        n, load = self.workers, self.tolerates + 1
        if self.kind == "binary":
            return tuple(tuple(i ^ step for step in range(load)) for i in range(n))
        return windows(n, load)

    @property
    def rows(self) -> Sequence[Row]:
        """Rows of the top level."""
        return self.levels[-1].rows

    def decoder(self) -> Decoder:
        """Return a decoder of the top level."""
        return self.levels[-1].decoder()

    def _solve(self, replies: Indices) -> Floats:
        return self.levels[-1]._solve(replies)

    def watch(self) -> ProgressWatch:
        return _LevelWatch(self)

    def ready_times(self, seconds: Floats, per_partition: Floats) -> Floats:
        """Return when the first of the levels is ready in each round, shape (rounds,)."""
        load = self.tolerates + 1
        times = [level.finish_times(seconds - (load - level.load) * per_partition) for level in self.levels]
        return np.asarray(np.min(times, axis=0))


class _LevelWatch(ProgressWatch):
    """Counts the workers that have reached each level."""

    def __init__(self, code: NestedCode) -> None:
        self._code = code
        self._done = [0] * code.workers
        self._needs = [level.load for level in code.levels]  # partitions to finish
        self._decoders = [level.decoder() for level in code.levels]
        self._level: int | None = None

    def saw(self, worker: int, done: int) -> bool:
        """Note progress; if several levels become ready together, the one of least tolerance counts."""
        before, self._done[worker] = self._done[worker], done
        for level, needs in enumerate(self._needs):
            reached = before < needs <= done
            if reached and self._decoders[level].add(worker) and (self._level is None or level < self._level):
                self._level = level
        self.ready = self._level is not None
        return self.ready

    def _best(self) -> int:
        if self._level is not None:
            return self._level
        return min(range(len(self._decoders)), key=lambda level: self._decoders[level].residual)

    def asks(self) -> list[Ask]:
        level = self._best()
        code = self._code.levels[level]
        selection = self._decoders[level].select()
        asks = []
        for worker, weight in zip(selection.replies, selection.weights, strict=True):
            coefficient = dict(zip(*code.rows[worker], strict=True))
            first = self._code.orders[worker][: self._needs[level]]
            asks.append(Ask(worker, first, tuple(coefficient[j] for j in first), weight))
        return asks

    @property
    def residual(self) -> float:
        return self._decoders[self._best()].residual


@value_class
class ChunkOrderCode(RegisteredCode, ProgressCode):
    """Progress-based code for partial stragglers: every finished partition counts, whoever has finished it.

    Each partition has ``load`` holders. When every partition has been finished by some worker, it is assigned to one
    of those, and they send one vector each: exact, with coefficients 0 and 1. How late that can be depends on
    the orders: let ``Q_j`` be the largest total number of finished partitions without partition j among them,
    ``sum over non-holders of their load + sum over holders of (position of j - 1)``. The largest Q_j is least when
    each partition stands once at each position: the placement is cut into perfect matchings (Konig), and matching t
    gives the t-th position (after Ramamoorthy, Meng and Girimaji 2024; the protocol is derived).

    ``placement="cyclic"``: worker i holds and computes i, i + 1, …, which has that property already. ``"random"``: a
    random biregular placement with the order from matchings. ``load`` is by default about log n. Raises
    :class:`~anyk.BadInput` unless it is between 1 and the number of workers.

    >>> ChunkOrderCode(12, load=3).most_in_vain, ChunkOrderCode(12, load=3, placement="random").most_in_vain
    (30, 30)
    """

    workers: int
    load: int = LEFT_OUT
    placement: Literal["cyclic", "random"] = "cyclic"
    seed: int = 0
    name = "progress"
    optional = ("placement", "seed")

    def __post_init__(self) -> None:
        n = check_workers(self.workers)
        load = usual_load(n) if self.load is LEFT_OUT else check_load("progress", self.load, n)
        self._resolve(load=load, messages=load)  # as a code, each finished partition is a reply of its own

    @property
    def tolerates(self) -> int:
        """Stragglers with which the sum is exact: load - 1, as every partition has ``load`` holders."""
        return self.load - 1

    @fixed_property
    def orders(self) -> tuple[tuple[int, ...], ...]:
        n, load = self.workers, self.load
        if self.placement == "cyclic":
            return windows(n, load)
        from scipy.sparse.csgraph import maximum_bipartite_matching

        unmatched = RandomBiregularCode(n, load=load, seed=self.seed).encoding.tolil()
        positions = np.empty((load, n), dtype=np.int64)
        for position in positions:
            position[:] = maximum_bipartite_matching(unmatched.tocsr(), perm_type="column")
            unmatched[np.arange(n), position] = 0
        return tuple(map(tuple, positions.T.tolist()))

    @property
    def most_in_vain(self) -> int:
        """Largest Q_j, the number of finished partitions with which the sum may still be incomplete."""
        n, load = self.workers, self.load
        position = np.zeros(n, dtype=np.int64)
        for order in self.orders:
            position[list(order)] += np.arange(load)
        return int((n - load) * load + position.max())

    @fixed_property
    def rows(self) -> Sequence[Row]:
        """Rows of one partition each, worker by worker in the order of computing."""
        return tuple(((j,), (1.0,)) for order in self.orders for j in order)

    def watch(self) -> ProgressWatch:
        return _CoverWatch(self)

    def ready_times(self, seconds: Floats, per_partition: Floats) -> Floats:
        """Return when the last partition is finished by the first of its holders, shape (rounds,)."""
        first = np.full(seconds.shape, np.inf)
        for position, columns in enumerate(np.array(self.orders).T):  # each partition once at each position
            first[:, columns] = np.minimum(first[:, columns], seconds - (self.load - 1 - position) * per_partition)
        return np.asarray(first.max(axis=1))

    def _solve(self, replies: Indices) -> Floats:
        """Return weight 1 for the first reply of each partition."""
        weights = np.zeros(self.replies)
        weights[replies[np.unique(self.encoding.indices[replies], return_index=True)[1]]] = 1.0
        return weights


class _CoverWatch(ProgressWatch):
    """Counts the partitions that any worker has finished."""

    def __init__(self, code: ChunkOrderCode) -> None:
        self._code = code
        self._done: dict[int, int] = {}
        self._covered = [False] * code.partitions
        self._missing = code.partitions

    def saw(self, worker: int, done: int) -> bool:
        before = self._done.get(worker, 0)
        self._done[worker] = done
        for j in self._code.orders[worker][before:done]:
            if not self._covered[j]:
                self._covered[j] = True
                self._missing -= 1
        self.ready = not self._missing
        return self.ready

    def asks(self) -> list[Ask]:
        """Return requests to few workers: each time to the one with most of the remaining partitions."""
        remaining = {j for j, covered in enumerate(self._covered) if covered}
        finished = {worker: set(self._code.orders[worker][:done]) for worker, done in sorted(self._done.items())}
        asks = []
        while remaining:
            worker = max(finished, key=lambda i: (len(finished[i] & remaining), -i))
            useful = tuple(sorted(finished[worker] & remaining))
            remaining -= finished[worker]
            asks.append(Ask(worker, useful, (1.0,) * len(useful), 1.0))
        return sorted(asks)

    @property
    def residual(self) -> float:
        return float((self._missing / self._code.partitions) ** 0.5)
