"""Repetition: groups of workers compute the same partitions, and one reply of each group is enough."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Self

import numpy as np
from numpy.typing import ArrayLike

from anyk.checks import typed
from anyk.codes.base import Code, Decoder, Decoding, Floats, Indices, Row, Selection, check_stragglers, check_workers
from anyk.codes.made import LEFT_OUT, fixed_property
from anyk.errors import BadInput
from anyk.specs import show

_MOST = 10_000  # partitions that one worker's share may stand for


def check_shares(shares: Sequence[int], workers: int) -> None:
    """Raise :class:`~anyk.errors.BadInput` unless there are none, or one for each worker."""
    if shares and (len(shares) != workers or not all(1 <= share <= _MOST for share in shares)):
        raise BadInput(
            f"shares must be one whole number from 1 to {_MOST:,} for each of {workers} workers, as in "
            f"shares=3/1/1/…, got {'/'.join(map(str, shares))}"
        )


def _cut(items: int, pieces: int) -> list[range]:
    """``items`` numbers in ``pieces`` runs whose lengths differ by at most one, the longer ones first."""
    size, longer = divmod(items, pieces)
    ends = np.cumsum([0] + [size + (piece < longer) for piece in range(pieces)]).tolist()
    return [range(a, b) for a, b in pairwise(ends)]


class RepetitionCode(Code):
    """A code in which each group of workers computes one block of partitions; a subclass says how many groups.

    ``shares``: how much of the data each worker computes, relative to the others (none: all alike); a group's block has
    as many partitions as the largest share of its members.
    """

    shares: tuple[int, ...] = ()

    @property
    def groups(self) -> int:
        """The number of groups, at most the number of workers and of partitions."""
        raise NotImplementedError("a repetition code says how many groups it has")

    @fixed_property
    def members(self) -> tuple[tuple[int, ...], ...]:
        """The workers of each group."""
        return tuple(tuple(run) for run in _cut(self.workers, self.groups))

    @fixed_property
    def blocks_of(self) -> tuple[tuple[int, ...], ...]:
        """The partitions of each group."""
        ends = np.cumsum([0, *self.sizes]).tolist()
        return tuple(tuple(range(a, b)) for a, b in pairwise(ends))

    @property
    def sizes(self) -> list[int]:
        """The partitions in each group's block: as even as possible, or what its members' shares ask for."""
        if not self.shares:
            return [len(run) for run in _cut(self.partitions, self.groups)]
        return [max(self.shares[worker] for worker in members) for members in self.members]

    def cut(self, sizes: Sequence[int]) -> Self:
        """The same code with so many partitions in the block of each group.

        >>> Uncoded(3).cut([2, 1, 1]).spec, FractionalRepetition(4, load=2).cut([3, 1]).rows[0][0]
        ('uncoded:shares=2/1/1', (0, 1, 2))
        """
        del sizes
        raise NotImplementedError(f"'{self.spec}' has blocks of equal size only")

    @fixed_property
    def group_of(self) -> tuple[int, ...]:
        """The group of each worker."""
        groups = [0] * self.workers
        for g, members in enumerate(self.members):
            for worker in members:
                groups[worker] = g
        return tuple(groups)

    @fixed_property
    def rows(self) -> Sequence[Row]:
        rows = [(block, (1.0,) * len(block)) for block in self.blocks_of]
        return tuple(rows[g] for g in self.group_of)

    @property
    def tolerates(self) -> int:
        """The smallest group less one: a group is lost only when all its members are."""
        return min(len(members) for members in self.members) - 1

    def decoder(self) -> Decoder:
        return _GroupDecoder(self)

    @fixed_property
    def _group_array(self) -> Indices:
        return np.array(self.group_of, dtype=np.int64)

    def _solve(self, replies: Indices) -> Floats:
        """The lowest-numbered reply of each group, once."""
        weights = np.zeros(self.workers)
        weights[replies[np.unique(self._group_array[replies], return_index=True)[1]]] = 1.0
        return weights

    def _lost_chance(self, replies: int) -> Floats:
        """p: for each group, the chance that none of its members is among ``replies`` random workers."""
        n = self.workers
        by_size = {
            size: float(np.prod([max(n - replies - i, 0) / (n - i) for i in range(size)]))
            for size in {len(members) for members in self.members}
        }
        return np.array([by_size[len(members)] for members in self.members])

    def expected_coefficients(self, replies: int) -> Floats:
        """1 less the chance that a partition's whole group is missing: ``C(n - l, r) / C(n, r)`` for a group of l."""
        return np.repeat(1.0 - self._lost_chance(replies), [len(block) for block in self.blocks_of])

    def expected_error(self, replies: int, *, decoder: str = "own") -> float | None:
        """See :meth:`Code.expected_error`: the partitions of each group times the chance that it is lost."""
        if decoder not in ("own", "least-squares"):
            return super().expected_error(replies, decoder=decoder)
        self._check_count(replies)
        return float(self._lost_chance(replies) @ np.array([len(block) for block in self.blocks_of]))

    def worst_error(self, stragglers: int) -> tuple[float, bool] | None:
        """See :meth:`Code.worst_error`: the most partitions in groups that so many stragglers can silence."""
        lost = np.zeros(stragglers + 1)  # by stragglers spent
        for members, block in zip(self.members, self.blocks_of, strict=True):
            if len(members) <= stragglers:
                lost[len(members) :] = np.maximum(lost[len(members) :], lost[: -len(members)] + len(block))
        return float(lost[-1]), True

    def finish_times(self, arrivals: ArrayLike) -> Floats:
        """The slowest group's fastest member; see :meth:`Code.finish_times`."""
        order = np.argsort(self._group_array, kind="stable")
        times = self._arrivals(arrivals)[:, order]
        starts = np.searchsorted(self._group_array[order], np.arange(self.groups))
        return np.asarray(np.minimum.reduceat(times, starts, axis=1).max(axis=1), dtype=np.float64)


class _GroupDecoder(Decoder):
    """The lowest-numbered reply of each group counts once: sets, not orders, decide (replicas are equal anyway)."""

    __slots__ = ("_code", "_first", "_group_of", "_missing", "decodable")

    def __init__(self, code: RepetitionCode) -> None:
        self._code = code
        self._group_of = code.group_of
        self._first: dict[int, int] = {}
        self._missing = code.groups
        self.decodable = False

    def add(self, worker: int) -> bool:
        group = self._group_of[worker]
        known = self._first.get(group)
        if known is None:
            self._first[group] = worker
            self._missing -= 1
            self.decodable = not self._missing
        elif worker < known:
            self._first[group] = worker
        return self.decodable

    @property
    def residual(self) -> float:
        if self.decodable:
            return 0.0
        blocks = self._code.blocks_of
        lost = sum(len(blocks[g]) for g in range(len(blocks)) if g not in self._first)
        return float((lost / self._code.partitions) ** 0.5)

    def decode(self) -> Decoding:
        used, values, residual, gain = self.select()
        weights = np.zeros(self._code.workers)
        weights[used] = values
        return Decoding(weights, residual, gain, 0.0 if self.decodable else 1.0)

    def select(self) -> Selection:
        blocks = self._code.blocks_of
        covered = self._code.partitions if self.decodable else sum(len(blocks[g]) for g in self._first)
        used = sorted(self._first.values())
        return Selection(used, [1.0] * len(used), self.residual, float(covered**0.5))


@typed
@dataclass(frozen=True)
class Uncoded(RepetitionCode):
    """Every partition on one worker: no redundancy, so an exact sum needs every reply.

    Stopped early (``uncoded:wait=20``) it ignores the stragglers, also known as backup workers (Chen, Pan, Monga,
    Bengio and Jozefowicz 2016). ``shares``: workers of different speed compute different shares of the data.

    >>> Uncoded(4).tolerates
    0
    """

    own_messages = True

    workers: int
    shares: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        check_workers(self.workers)
        check_shares(self.shares, self.workers)

    @property
    def spec(self) -> str:
        return show("uncoded", {"shares": self.shares}, {"shares": ()})

    @property
    def partitions(self) -> int:
        """As many as workers, or as the shares add up to."""
        return sum(self.shares) if self.shares else self.workers

    @property
    def groups(self) -> int:
        """Every worker is its own group."""
        return self.workers

    def cut(self, sizes: Sequence[int]) -> Uncoded:
        return replace(self, shares=tuple(sizes))


@typed
@dataclass(frozen=True)
class FractionalRepetition(RepetitionCode):
    """Fractional repetition: groups of workers hold the same partitions; any one reply a group is enough.

    Give ``stragglers`` (s in Tandon et al. 2017): ``floor(n / (s + 1))`` groups, of workers and of partitions, as even
    as possible, for any n and s; every group has at least s + 1 members. Or give ``load`` (c in ErasureHead, Wang,
    Charles and Papailiopoulos 2019): partitions per worker, which must divide the number of partitions. Decoding is
    free of rounding at any size, and the gain is ``sqrt(partitions)``. With neither, load is the
    largest of 3, 2 or 1 that divides the number of workers.

    ``shares``: one a worker; groups of workers of different speed compute blocks of different size, that of a group
    being the largest share of its members (all of them compute the same, and the first to reply counts).

    Raises :class:`~anyk.errors.BadInput` for both parameters at once or values out of range.

    >>> code = FractionalRepetition(6, load=3)
    >>> code.encoding.toarray().astype(int).tolist()[0], code.tolerates
    ([1, 1, 1, 0, 0, 0], 2)
    >>> code.decode([2, 4]).weights.tolist()
    [0.0, 0.0, 1.0, 0.0, 1.0, 0.0]
    """

    workers: int
    load: int = LEFT_OUT
    stragglers: int | None = None
    partitions: int = LEFT_OUT
    shares: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        n = check_workers(self.workers)
        check_shares(self.shares, n)
        m = n if self.partitions is LEFT_OUT else self.partitions
        if m < 1:
            raise BadInput(f"partitions must be at least 1, got {m}")
        if self.load is not LEFT_OUT and self.stragglers is not None:
            raise BadInput("frc takes load=… or stragglers=…, not both; stragglers=s is load=s+1 where s+1 divides")
        if self.stragglers is not None:
            groups = min(n // (check_stragglers(self.stragglers, n) + 1), m)
        else:
            good = [c for c in range(1, m + 1) if m % c == 0 and m // c <= n]
            load = self.load if self.load is not LEFT_OUT else max((c for c in good if c <= 3), default=good[0])
            if load not in good:
                other = f"; frc:stragglers={load - 1} always exists" if 1 <= load <= n else ""
                raise BadInput(
                    f"frc:load={load} does not exist for {n} workers and {m} partitions: load must divide the number "
                    f"of partitions and leave at most {n} groups{other}"
                )
            groups = m // load
        object.__setattr__(self, "_groups", groups)
        given = None if self.stragglers is not None else -(-m // groups)
        object.__setattr__(self, "_even", (("load", given), ("stragglers", self.stragglers), ("partitions", m)))
        object.__setattr__(self, "partitions", sum(self.sizes) if self.shares else m)
        object.__setattr__(self, "load", max(self.sizes) if self.shares else -(-m // groups))

    @property
    def spec(self) -> str:
        usual = {"load": None, "stragglers": None, "partitions": self.workers, "shares": ()}
        return show("frc", dict(self.__dict__["_even"]) | {"shares": self.shares}, usual)

    def cut(self, sizes: Sequence[int]) -> FractionalRepetition:
        shares = tuple(sizes[g] for g in self.group_of)
        return FractionalRepetition(self.workers, shares=shares, **dict(self.__dict__["_even"]))

    @property
    def groups(self) -> int:
        """Number of groups."""
        return int(self.__dict__["_groups"])
