"""Codes that use what a worker has finished so far: it reports progress, and sends one message when it is asked."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from anyk.checks import typed
from anyk.codes.base import (
    Code,
    Decoder,
    Floats,
    Indices,
    Policy,
    Row,
    check_load,
    check_stragglers,
    check_workers,
    usual_load,
)
from anyk.codes.cyclic import CyclicRepetition
from anyk.codes.made import LEFT_OUT, fixed_property
from anyk.codes.regular import RandomBiregularCode
from anyk.codes.repetition import FractionalRepetition, Uncoded
from anyk.errors import BadInput


class Ask(NamedTuple):
    """What one worker is asked for: finished partitions with coefficients; its message counts with ``weight``."""

    worker: int
    partitions: tuple[int, ...]
    coefficients: tuple[float, ...]
    weight: float


class Watch(ABC):
    """Sees how many partitions each worker has finished, and says when and what to ask for. One per step."""

    ready: bool = False

    @abstractmethod
    def saw(self, worker: int, done: int) -> bool:
        """A worker has finished ``done`` of its partitions; returns whether the sum can be had now."""

    @abstractmethod
    def asks(self) -> list[Ask]:
        """Whom to ask for what: the exact sum if :attr:`ready`, else as much of it as there is."""

    @property
    @abstractmethod
    def residual(self) -> float:
        """The residual of what :meth:`asks` would give now."""


class ProgressCode(Code):
    """A code whose workers compute their partitions in a given order and send one message when asked.

    A subclass gives ``orders`` and ``watch``. As a code (its rows, its decoder) it is what workers can send that have
    finished everything.
    """

    def policy(self) -> Policy:
        return Policy(rounds="progress")

    @property
    @abstractmethod
    def orders(self) -> Sequence[tuple[int, ...]]:
        """For each worker, its partitions in the order in which it computes them."""

    @fixed_property
    def assignment(self) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(sorted(order)) for order in self.orders)

    @abstractmethod
    def watch(self) -> Watch:
        """A fresh watch for one step."""

    def ready_times(self, seconds: Floats, each: Floats) -> Floats | None:
        """When the sum can be had, for many rounds at once; by default that is not known.

        ``seconds``: what workers take for all of their partitions, ``each``: for one of them, which they finish one
        after another at the end; both rounds x workers. Returns shape (rounds,).
        """
        del seconds, each
        return None


@typed
@dataclass(frozen=True)
class NestedCode(ProgressCode):
    """Nested code: one placement serves a code for each tolerance; the progress in a step decides between them.

    Worker i computes its partitions in an order whose beginnings are the rows of exact codes of growing tolerance.
    It reports progress (a number, no vector); as soon as for some level enough workers have come that far, those are
    asked for one vector each. No fixed tolerance ends a step sooner, and a fleet without stragglers computes each
    partition once. (After Massny, Hofmeister, Egger, Bitar and Wachter-Zeh 2022; the construction here is our own
    with the properties their abstract states.)

    ``kind="binary"``: levels u = 0 … U tolerate ``2^u - 1``; worker i computes partitions i xor 0, i xor 1, …, and
    level u is ready when each block of ``2^u`` workers has one that finished ``2^u``; free of rounding, but 2^U must
    divide n.
    ``kind="cyclic"``: levels s = 0 … S; worker i computes i, i + 1, …, and level s is ready when n - s workers have
    finished s + 1 (cyclic repetition at each level). Left out, binary where some 2^U > ``stragglers`` divides n.

    ``stragglers`` is the largest tolerance, a tenth of the workers if left out; binary rounds it up to 2^U - 1.

    >>> code = NestedCode(8, stragglers=3)
    >>> code.kind, code.orders[5], [level.tolerates for level in code.levels]
    ('binary', (5, 4, 7, 6), [0, 1, 3])
    """

    workers: int
    stragglers: int | None = None
    kind: Literal["binary", "cyclic"] | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        n = check_workers(self.workers)
        s = (max(1, n // 10) if n > 1 else 0) if self.stragglers is None else self.stragglers
        check_stragglers(s, n)
        top = s.bit_length()  # 2^top > s
        if self.kind not in (None, "binary", "cyclic"):
            raise BadInput(f"kind of 'nested' must be binary or cyclic, got {self.kind!r}")
        kind = self.kind or ("binary" if n % 2**top == 0 else "cyclic")
        if kind == "binary":
            if n % 2**top:
                raise BadInput(
                    f"nested:kind=binary,stragglers={s} does not exist for {n} workers: {2**top} must divide them; "
                    "use kind=cyclic"
                )
            s = 2**top - 1
        object.__setattr__(self, "kind", kind)
        object.__setattr__(self, "stragglers", s)

    @property
    def spec(self) -> str:
        seed = f",seed={self.seed}" if self.seed else ""
        return f"nested:stragglers={self.stragglers},kind={self.kind}{seed}"

    @property
    def partitions(self) -> int:
        """As many as workers."""
        return self.workers

    @property
    def tolerates(self) -> int:
        return self.stragglers or 0

    @fixed_property
    def levels(self) -> tuple[Code, ...]:
        """The code of each level, of growing tolerance."""
        n, s = self.workers, self.tolerates
        if self.kind == "binary":
            return tuple(FractionalRepetition(n, load=2**u) for u in range(s.bit_length() + 1))
        return (Uncoded(n), *(CyclicRepetition(n, stragglers=level, seed=self.seed) for level in range(1, s + 1)))

    @fixed_property
    def orders(self) -> tuple[tuple[int, ...], ...]:
        n, load = self.workers, self.tolerates + 1
        if self.kind == "binary":
            return tuple(tuple(i ^ step for step in range(load)) for i in range(n))
        return tuple(tuple((i + step) % n for step in range(load)) for i in range(n))

    @property
    def rows(self) -> Sequence[Row]:
        """Those of the top level; see :attr:`Code.rows`."""
        return self.levels[-1].rows

    def decoder(self) -> Decoder:
        """That of the top level."""
        return self.levels[-1].decoder()

    def _solve(self, replies: Indices) -> Floats:
        return self.levels[-1]._solve(replies)

    def watch(self) -> Watch:
        return _LevelWatch(self)

    def ready_times(self, seconds: Floats, each: Floats) -> Floats:
        """See :meth:`ProgressCode.ready_times`: the first of the levels."""
        load = self.tolerates + 1
        times = [level.finish_times(seconds - (load - level.load) * each) for level in self.levels]
        return np.asarray(np.min(times, axis=0))


class _LevelWatch(Watch):
    """Counts, for each level, who has come that far."""

    def __init__(self, code: NestedCode) -> None:
        self._code = code
        self._done = [0] * code.workers
        self._needs = [len(level.rows[0][0]) for level in code.levels]  # partitions to finish
        self._decoders = [level.decoder() for level in code.levels]
        self._level: int | None = None

    def saw(self, worker: int, done: int) -> bool:
        """See :meth:`Watch.saw`; of levels that become ready at once, the one of least tolerance counts."""
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
        found = self._decoders[level].select()
        asks = []
        for worker, weight in zip(found.replies, found.weights, strict=True):
            coefficient = dict(zip(*code.rows[worker], strict=True))
            first = self._code.orders[worker][: self._needs[level]]
            asks.append(Ask(worker, first, tuple(coefficient[j] for j in first), weight))
        return asks

    @property
    def residual(self) -> float:
        return self._decoders[self._best()].residual


@typed
@dataclass(frozen=True)
class ChunkOrderCode(ProgressCode):
    """Progress-based code for partial stragglers: whatever anybody has finished counts, chunk by chunk.

    Each partition has ``load`` holders. When every partition has been finished by someone, each is assigned to one
    who did, and those workers send one vector each: exact, with coefficients 0 and 1. How late that can be depends on
    the orders: let ``Q_j`` be the most partitions that can be finished in all without partition j being among them,
    ``sum over non-holders of their load + sum over holders of (position of j - 1)``. The largest Q_j is least when
    each partition stands once at each position: the placement is cut into perfect matchings (Konig), and matching t
    gives the t-th position (after Ramamoorthy, Meng and Girimaji 2024; the protocol is derived).

    ``placement="cyclic"``: worker i holds and computes i, i + 1, …, which has that property already. ``"random"``: a
    random biregular placement with the order from matchings. ``load`` left out is about log n.

    >>> ChunkOrderCode(12, load=3).most_in_vain, ChunkOrderCode(12, load=3, placement="random").most_in_vain
    (30, 30)
    """

    workers: int
    load: int = LEFT_OUT
    placement: Literal["cyclic", "random"] = "cyclic"
    seed: int = 0

    def __post_init__(self) -> None:
        n = check_workers(self.workers)
        load = usual_load(n) if self.load is LEFT_OUT else check_load("progress", self.load, n)
        if self.placement not in ("cyclic", "random"):
            raise BadInput(f"placement of 'progress' must be cyclic or random, got {self.placement!r}")
        object.__setattr__(self, "load", load)
        object.__setattr__(self, "messages", load)  # as a code, each finished partition is a reply of its own

    @property
    def spec(self) -> str:
        place = "" if self.placement == "cyclic" else f",placement={self.placement}"
        return f"progress:load={self.load}{place}" + (f",seed={self.seed}" if self.seed else "")

    @property
    def partitions(self) -> int:
        """As many as workers."""
        return self.workers

    @property
    def tolerates(self) -> int:
        """Every partition has ``load`` holders: one less may be missing."""
        return self.load - 1

    @fixed_property
    def orders(self) -> tuple[tuple[int, ...], ...]:
        n, load = self.workers, self.load
        if self.placement == "cyclic":
            return tuple(tuple((i + step) % n for step in range(load)) for i in range(n))
        from scipy.sparse.csgraph import maximum_bipartite_matching

        left = RandomBiregularCode(n, load=load, seed=self.seed).encoding.tolil()
        positions = []
        for _ in range(load):
            match = maximum_bipartite_matching(left.tocsr(), perm_type="column")
            positions.append(match)
            left[np.arange(n), match] = 0
        return tuple(tuple(int(match[i]) for match in positions) for i in range(n))

    @property
    def most_in_vain(self) -> int:
        """The largest Q_j: so many partitions can be finished before the sum is certain, less one."""
        n, load = self.workers, self.load
        position = np.zeros(n, dtype=np.int64)
        for order in self.orders:
            position[list(order)] += np.arange(load)
        return int((n - load) * load + position.max())

    @fixed_property
    def rows(self) -> Sequence[Row]:
        """One partition each, worker by worker in the order of computing; see :attr:`Code.rows`."""
        return tuple(((j,), (1.0,)) for order in self.orders for j in order)

    def watch(self) -> Watch:
        return _CoverWatch(self)

    def ready_times(self, seconds: Floats, each: Floats) -> Floats:
        """See :meth:`ProgressCode.ready_times`: the last partition, by the first of its holders."""
        first = np.full(seconds.shape, np.inf)
        for place, held in enumerate(np.array(self.orders).T):  # each partition once at each position
            first[:, held] = np.minimum(first[:, held], seconds - (self.load - 1 - place) * each)
        return np.asarray(first.max(axis=1))

    def _solve(self, replies: Indices) -> Floats:
        """The first of each partition."""
        weights = np.zeros(self.replies)
        weights[replies[np.unique(self.encoding.indices[replies], return_index=True)[1]]] = 1.0
        return weights


class _CoverWatch(Watch):
    """Counts the partitions that someone has finished."""

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
        """See :meth:`Watch.asks`; few workers are asked: each time the one that has most of what is left."""
        left = {j for j, covered in enumerate(self._covered) if covered}
        finished = {worker: set(self._code.orders[worker][:done]) for worker, done in sorted(self._done.items())}
        asks = []
        while left:
            worker = max(finished, key=lambda i: (len(finished[i] & left), -i))
            own = tuple(sorted(finished[worker] & left))
            left -= finished[worker]
            asks.append(Ask(worker, own, (1.0,) * len(own), 1.0))
        return sorted(asks)

    @property
    def residual(self) -> float:
        return float((self._missing / self._code.partitions) ** 0.5)
