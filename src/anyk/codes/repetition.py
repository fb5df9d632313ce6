"""Repetition: groups of workers compute the same partitions, and one reply of each group is enough."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Self

import numpy as np
from numpy.typing import ArrayLike

from anyk.base.arrays import Floats, Indices
from anyk.base.checks import AtLeastOne, check_range, value_class
from anyk.base.errors import BadInput
from anyk.base.keyed import keyed_generator
from anyk.base.plain import ByName
from anyk.base.specs import show_spec
from anyk.codes.base import Code, Decoder, Decoding, RegisteredCode, Row, Selection, check_stragglers, check_workers
from anyk.codes.made import LEFT_OUT, fixed_property

_MOST = 10_000  # partitions that one worker's share may stand for


def check_shares(shares: Sequence[int], workers: int) -> None:
    """Raise :class:`~anyk.BadInput` unless there are none, or one for each worker."""
    if shares and (len(shares) != workers or not all(1 <= share <= _MOST for share in shares)):
        raise BadInput(
            f"shares must be one whole number from 1 to {_MOST:,} for each of {workers} workers, as in "
            f"shares=3/1/1/…, got {'/'.join(map(str, shares))}"
        )


def cut_evenly(items: int, pieces: int) -> list[range]:
    """Cut range(items) into pieces whose lengths differ by at most one, the longer pieces first."""
    size, longer = divmod(items, pieces)
    ends = np.cumsum([0] + [size + (piece < longer) for piece in range(pieces)]).tolist()
    return [range(a, b) for a, b in pairwise(ends)]


class RepetitionCode(Code):
    """A code in which each group of workers computes one block of partitions; a subclass defines ``groups``.

    ``shares``: how much of the data each worker computes, relative to the others (none: all alike). The size of a
    group's block is the largest share of its members.
    """

    shares: tuple[int, ...] = ()
    _groups: int
    _even: ByName  # the settings of fractional repetition apart from shares

    @property
    def groups(self) -> int:
        """Number of groups, at most the number of workers and of partitions."""
        raise NotImplementedError("a repetition code defines its number of groups")

    @fixed_property
    def members(self) -> tuple[tuple[int, ...], ...]:
        """Workers of each group."""
        return tuple(map(tuple, cut_evenly(self.workers, self.groups)))

    @fixed_property
    def blocks_of(self) -> tuple[tuple[int, ...], ...]:
        """Partitions of each group."""
        ends = np.cumsum([0, *self.sizes]).tolist()
        return tuple(tuple(range(a, b)) for a, b in pairwise(ends))

    @property
    def sizes(self) -> list[int]:
        """Number of partitions in each group's block: as even as possible, or the largest share of its members."""
        if not self.shares:
            return list(map(len, cut_evenly(self.partitions, self.groups)))
        return [max(self.shares[worker] for worker in members) for members in self.members]

    def cut(self, sizes: Sequence[int]) -> Self:
        """Return the same code with these numbers of partitions in the blocks of the groups.

        Raises NotImplementedError for codes with blocks of equal size.

        >>> Uncoded(3).cut([2, 1, 1]).spec, FractionalRepetition(4, load=2).cut([3, 1]).rows[0][0]
        ('uncoded:shares=2/1/1', (0, 1, 2))
        """
        raise NotImplementedError(f"'{self.spec}' has blocks of equal size only")

    @fixed_property
    def group_of(self) -> tuple[int, ...]:
        """Group of each worker; -1 for a worker in no group."""
        groups = {worker: g for g, members in enumerate(self.members) for worker in members}
        return tuple(groups.get(worker, -1) for worker in range(self.workers))

    @fixed_property
    def rows(self) -> Sequence[Row]:
        rows = [(block, (1.0,) * len(block)) for block in (*self.blocks_of, ())]  # the last: of no group
        return tuple(rows[g] for g in self.group_of)

    @property
    def tolerates(self) -> int:
        """Size of the smallest group less one, as a group is lost only with all its members."""
        return min(map(len, self.members)) - 1

    def decoder(self) -> Decoder:
        return _GroupDecoder(self)

    @fixed_property
    def _group_array(self) -> Indices:
        return np.array(self.group_of, dtype=np.int64)

    def _solve(self, replies: Indices) -> Floats:
        """Return weight 1 for the lowest-numbered reply of each group."""
        weights = np.zeros(self.workers)
        weights[replies[np.unique(self._group_array[replies], return_index=True)[1]]] = 1.0
        return weights

    def _lost_chance(self, replies: int) -> Floats:
        """Return, for each group, the chance that none of its members is among ``replies`` random workers."""
        n, sizes = self.workers, list(map(len, self.members))
        chances = {s: float(np.prod([max(n - replies - i, 0) / (n - i) for i in range(s)])) for s in set(sizes)}
        return np.array([chances[size] for size in sizes])

    def expected_coefficients(self, replies: int) -> Floats:
        """Return 1 - ``C(n - l, r) / C(n, r)``, the chance that a group of l workers replies, for each partition."""
        return np.repeat(1.0 - self._lost_chance(replies), self.sizes)

    def expected_error(self, replies: int, *, decoder: str = "own") -> float | None:
        """Return the sum over groups of their partitions times the chance that all their members are missing."""
        if decoder not in ("own", "least-squares"):
            return super().expected_error(replies, decoder=decoder)
        self._check_count(replies)
        return float(self._lost_chance(replies) @ np.array(self.sizes))

    def worst_error(self, stragglers: int) -> tuple[float, bool] | None:
        """Return the most partitions in groups that this many stragglers can silence; attained."""
        lost = np.zeros(stragglers + 1)  # by the number of stragglers used
        for members, size in zip(self.members, self.sizes, strict=True):
            if len(members) <= stragglers:
                lost[len(members) :] = np.maximum(lost[len(members) :], lost[: -len(members)] + size)
        return float(lost[-1]), True

    def finish_times(self, arrivals: ArrayLike) -> Floats:
        """Return the arrival of the slowest group's fastest member in each round."""
        order = np.argsort(self._group_array, kind="stable")
        times = self._arrivals(arrivals)[:, order]
        starts = np.searchsorted(self._group_array[order], np.arange(self.groups))
        return np.asarray(np.minimum.reduceat(times, starts, axis=1).max(axis=1), dtype=float)


class _GroupDecoder(Decoder):
    """Counts the lowest-numbered reply of each group, so that sets decide and not orders."""

    __slots__ = ("_code", "_first", "_group_of", "_missing", "decodable")

    def __init__(self, code: RepetitionCode) -> None:
        self._code = code
        self._group_of = code.group_of
        self._first: dict[int, int] = {}
        self._missing = code.groups
        self.decodable = False

    def add(self, worker: int) -> bool:
        group = self._group_of[worker]
        lowest = self._first.get(group)
        if lowest is None:
            self._first[group] = worker
            self._missing -= 1
            self.decodable = not self._missing
        elif worker < lowest:
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


@value_class
class Uncoded(RegisteredCode, RepetitionCode):
    """Every partition on one worker: no redundancy, so an exact sum needs every reply.

    Stopped early (``uncoded:wait=20``) it ignores the stragglers, also known as backup workers (Chen, Pan, Monga,
    Bengio and Jozefowicz 2016). ``shares``: workers of different speed compute different shares of the data.

    >>> Uncoded(4).tolerates
    0
    """

    workers: int
    shares: tuple[int, ...] = ()
    name = "uncoded"
    optional = ("shares",)
    own_messages = True

    def __post_init__(self) -> None:
        check_workers(self.workers)
        check_shares(self.shares, self.workers)

    @property
    def partitions(self) -> int:
        """Number of partitions: the number of workers, or the sum of the shares."""
        return sum(self.shares) or self.workers

    @property
    def groups(self) -> int:
        """Number of groups: every worker is its own group."""
        return self.workers

    def cut(self, sizes: Sequence[int]) -> Uncoded:
        return replace(self, shares=tuple(sizes))


@value_class
class FractionalRepetition(RepetitionCode):
    """Fractional repetition: groups of workers hold the same partitions; any one reply a group is enough.

    Give ``stragglers`` (s in Tandon et al. 2017): ``floor(n / (s + 1))`` groups, of workers and of partitions, as even
    as possible, for any n and s; every group has at least s + 1 members. Or give ``load`` (c in ErasureHead, Wang,
    Charles and Papailiopoulos 2019): partitions per worker, which must divide the number of partitions. Decoding is
    free of rounding at any size, and the gain is ``sqrt(partitions)``. With neither, load is the
    largest of 3, 2 or 1 that divides the number of workers.

    ``shares``: one a worker; groups of workers of different speed compute blocks of different size. A group's size is
    the largest share of its members (all compute the same, and the first to reply counts).

    Raises :class:`~anyk.BadInput` for both parameters together or values out of range.

    >>> code = FractionalRepetition(6, load=3)
    >>> code.encoding.toarray().astype(int).tolist()[0], code.tolerates
    ([1, 1, 1, 0, 0, 0], 2)
    >>> code.decode([2, 4]).weights.tolist()
    [0.0, 0.0, 1.0, 0.0, 1.0, 0.0]
    """

    workers: int
    load: int = LEFT_OUT
    stragglers: int | None = None
    partitions: AtLeastOne = LEFT_OUT
    shares: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        n = check_workers(self.workers)
        check_shares(self.shares, n)
        m = n if self.partitions is LEFT_OUT else self.partitions
        if self.load is not LEFT_OUT and self.stragglers is not None:
            raise BadInput("frc takes load=… or stragglers=…, not both; stragglers=s is load=s+1 where s+1 divides")
        load = None
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
        self._resolve(
            _groups=groups, _even={"load": load, "stragglers": self.stragglers, "partitions": m}, partitions=m
        )
        self._resolve(partitions=sum(self.sizes), load=max(self.sizes))

    @property
    def spec(self) -> str:
        usual = {"load": None, "stragglers": None, "partitions": self.workers, "shares": ()}
        return show_spec("frc", self._even | {"shares": self.shares}, usual)

    def cut(self, sizes: Sequence[int]) -> FractionalRepetition:
        shares = tuple(sizes[g] for g in self.group_of)
        return FractionalRepetition(self.workers, shares=shares, **self._even)

    @property
    def groups(self) -> int:
        """Number of groups."""
        return self._groups


@value_class
class BatchedCoupons(RegisteredCode, RepetitionCode):
    """Batched coupon collector (BCC): each worker takes one of ``batches`` batches of the data at random.

    The step is taken when every batch has arrived: fractional repetition with random group sizes and no
    coordination (Li, Mousavi Kalan, Avestimehr and Soltanolkotabi 2018). With many workers about ``b H_b`` replies are
    needed. With probability ``sum_i (-1)^(i+1) C(b, i) (1 - i/b)^n`` some batch would be picked by no worker: here a
    worker of the largest group then takes it.

    ``batches`` is by default the largest b with ``b H_b`` at most three quarters of the workers. Raises
    :class:`~anyk.BadInput` unless it is between 1 and the number of workers. The data has as many partitions as
    workers.

    >>> code = BatchedCoupons(40, batches=10)
    >>> code.groups, round(code.expected_replies, 2)
    (10, 29.29)
    """

    workers: int
    batches: int | None = None
    seed: int = 0
    name = "bcc"

    def __post_init__(self) -> None:
        n = check_workers(self.workers)
        batches = self.batches
        if batches is None:
            batches = 1
            while (batches + 1) * harmonic(batches + 1) <= 0.75 * n:
                batches += 1
        check_range("batches of 'bcc'", batches, 1, n, " workers")
        self._resolve(batches=batches)

    @property
    def groups(self) -> int:
        """Number of groups, one for each batch."""
        return int(self.batches or 1)

    @property
    def expected_replies(self) -> float:
        """Mean number of replies needed if there are many workers: ``b H_b``."""
        return self.groups * harmonic(self.groups)

    @fixed_property
    def members(self) -> tuple[tuple[int, ...], ...]:
        b = self.groups
        picks = keyed_generator(self.seed, "bcc", self.workers, b).integers(b, size=self.workers)
        counts = np.bincount(picks, minlength=b)
        for batch in np.flatnonzero(counts == 0).tolist():
            largest = int(counts.argmax())
            picks[np.flatnonzero(picks == largest)[-1]] = batch
            counts[largest] -= 1
            counts[batch] = 1
        return tuple(tuple(np.flatnonzero(picks == batch).tolist()) for batch in range(b))


def harmonic(n: int) -> float:
    """Return the n-th harmonic number."""
    return float((1.0 / np.arange(1, n + 1)).sum())
