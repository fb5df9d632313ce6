"""Balance: shares of the data that follow the measured speed of workers."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from anyk.codes import Code, RepetitionCode
from anyk.errors import BadInput

_PARTS = 16  # pieces that an even share is cut into
_FEWEST = 8  # and at least, where a mini-batch is to be spread over them
_COLD = 2  # rounds that are not measured: caches are cold, functions are being compiled
_ROUNDS = 10  # after so many rounds shares are thought over
_REMEMBERED = 50  # rounds that are looked back on
_CHANCE = 0.002  # at most, that workers which are alike would look as different
_GAIN = 0.05  # of a round's seconds that other shares must save, in either half of those rounds
_APART = 0.2  # relative change of a share from which its effect can be told from noise
_LEAST = 0.1  # of a share's seconds that are taken to be in proportion to its size, whatever was measured
_OFF = 0.1  # how far the samples of a step may be from what was asked for

Floats = NDArray[np.float64]


@dataclass(slots=True)
class BalanceState:
    """The partitions of each group's block, and what rounds under them took."""

    sizes: list[int]
    cold: int = _COLD  # rounds still to be passed over
    first_reply: dict[int, float] = field(default_factory=dict)  # group -> seconds to its first reply in this round
    disturbed: bool = False  # somebody came or went in this round
    seconds: list[list[float]] = field(
        default_factory=list
    )  # of each round, each group's; the round's where it was cut
    rounds: int = 0  # measured under these shares
    before: tuple[list[int], list[float]] | None = None  # sizes before the last change, and median seconds under them


@dataclass(frozen=True)
class Balance:
    """Cuts the data by the speed of workers, measured in the first rounds and again whenever it changes.

    Every 10 rounds the seconds to each group's first reply are looked at, in the last 50 rounds of these shares (a
    worker of an uncoded sum is a group; who was cut off took at least as long as the round). Shares are cut again when
    groups differ (by the test of Friedman 1937, at 0.2 %) and it makes rounds at least 5 % shorter: the odd rounds by
    shares chosen by the even ones, and the other way round. So a worker that is always slow is given less, and
    stragglers that wander change nothing. A share's seconds are taken to be proportional to its size until two sizes
    have been seen, from then on to be a fixed part and one in proportion.
    """

    State: ClassVar[type[BalanceState]] = BalanceState

    def check(self, code: Code) -> None:
        """Raise :class:`~anyk.errors.BadInput` for a code whose blocks must be of equal size."""
        if not isinstance(code, RepetitionCode) or type(code).cut is RepetitionCode.cut:
            raise BadInput(f"balance=auto cuts the data of uncoded and frc by speed; '{code.spec}' needs even blocks")

    def start(self, code: RepetitionCode) -> BalanceState:
        """At the start of a run."""
        return BalanceState([len(block) for block in code.blocks_of])

    def reply(self, own: BalanceState, group: int, seconds: float) -> None:
        """A group's reply has come, so long after the round began."""
        own.first_reply.setdefault(group, seconds)

    def ended(self, own: BalanceState, seconds: float) -> list[int] | None:
        """A round has ended after so long; the sizes of blocks from now on, None where they stay."""
        first_reply, own.first_reply = own.first_reply, {}
        disturbed, own.disturbed = own.disturbed, False
        if own.cold or disturbed:
            own.cold = max(0, own.cold - 1)
            return None
        own.seconds.append([first_reply.get(group, seconds) for group in range(len(own.sizes))])
        del own.seconds[:-_REMEMBERED]
        own.rounds += 1
        if own.rounds % _ROUNDS:
            return None
        table, current = np.array(own.seconds), np.array(own.sizes)
        sizes = better(table, current, _growing(np.median(table, axis=0), current, own.before))
        if sizes is not None:
            own.before = own.sizes, np.median(table, axis=0).tolist()
            own.sizes, own.seconds, own.rounds = sizes, [], 0
        return sizes


def even_parts(batch: int) -> int:
    """The pieces that an even share is cut into; with mini-batches a number that spreads their samples evenly."""
    if not batch:
        return _PARTS
    return min(range(min(batch, _FEWEST), min(batch, _PARTS) + 1), key=lambda parts: (abs(_each(batch, parts)), -parts))


def _each(batch: int, parts: int) -> float:
    return max(1, round(batch / parts)) * parts / batch - 1.0


def batch_of(batch: int, workers: int, partitions: int) -> int:
    """The samples drawn of each partition, so that a step has as many as ``batch`` of each worker would give.

    >>> batch_of(32, workers=4, partitions=6)
    21
    """
    if not batch:
        return 0
    each = max(1, round(batch * workers / partitions))
    if abs(each * partitions - batch * workers) > _OFF * batch * workers:
        raise BadInput(
            f"batch={batch} is {batch * workers} samples a step, which {partitions} shares cannot give to within 10 %; "
            "give smaller shares or a larger batch"
        )
    return each


def settled_sizes(code: RepetitionCode, seconds: Floats, slopes: Floats, load: float) -> list[int]:
    """Return the sizes of blocks to which balance comes on a fleet.

    ``seconds``: shape (rounds, workers), of tasks that cover the share ``load`` of the data; ``slopes``: seconds for
    the whole data, shape (workers,).

    >>> from anyk.codes import Uncoded
    >>> even, slopes = Uncoded(3).cut([16, 16, 16]), np.array([6.0, 3.0, 3.0])
    >>> settled_sizes(even, np.tile([2.0, 1.0, 1.0], (10, 1)), slopes, load=1 / 3)
    [10, 19, 19]
    """
    sizes = np.array(code.sizes)
    shares = (sizes / sizes.sum())[list(code.group_of)]
    there = np.maximum(seconds + (shares - load) * slopes, 0.0)
    first = [members[int(np.argmin(np.median(there[:, members], axis=0)))] for members in map(list, code.members)]
    table = np.stack([there[:, list(members)].min(axis=1) for members in code.members], axis=1)
    median = np.median(table, axis=0)
    if not (median > 0.0).all():
        return code.sizes
    growing = np.clip(slopes[first] * shares[first] / median, _LEAST, 1.0)
    return better(table, sizes, growing) or code.sizes


def better(seconds: Floats, sizes: NDArray[np.int_], growing: Floats) -> list[int] | None:
    """Sizes under which rounds would be shorter; None where that is not sure.

    ``seconds``: shape (rounds, groups); ``growing``: the part of each group's that is in proportion to its size.

    >>> steady, sizes = np.tile([2.0, 1.0, 1.0], (10, 1)), np.array([16, 16, 16])
    >>> better(steady, sizes, np.ones(3))
    [10, 19, 19]
    >>> wandering = np.stack([np.roll(row, shift) for shift, row in enumerate(steady)])
    >>> better(wandering, sizes, np.ones(3)) is None
    True
    """
    if len(seconds) < _ROUNDS or not (seconds > 0.0).all():  # too few to tell, or nothing can be shorter
        return None

    def mean_seconds(rows: Floats, changed: Sequence[int]) -> float:
        """Mean seconds of these rounds under other sizes."""
        factors = 1.0 - growing + growing * np.asarray(changed) / sizes
        return float((rows * factors).max(axis=1).mean())

    total = int(sizes.sum())
    halves = seconds[::2], seconds[1::2]
    for half, other in (halves, halves[::-1]):
        candidate = _shortest(np.median(half, axis=0), growing, sizes, total)
        if not mean_seconds(other, candidate) <= (1.0 - _GAIN) * mean_seconds(other, sizes.tolist()):
            return None
    if not _chance(seconds) <= _CHANCE:
        return None
    candidate = _shortest(np.median(seconds, axis=0), growing, sizes, total)
    return None if candidate == sizes.tolist() else candidate


def _chance(seconds: Floats) -> float:
    """The chance that groups which are alike would differ as much in their ranks within rounds."""
    from scipy import stats

    if seconds.shape[1] == 2:  # for which Friedman's test is not made
        return float(stats.wilcoxon(seconds[:, 0], seconds[:, 1]).pvalue)
    return float(stats.friedmanchisquare(*seconds.T).pvalue)


def _growing(median: Floats, sizes: NDArray[np.int_], before: tuple[list[int], list[float]] | None) -> Floats:
    """The part of each group's seconds that is in proportion to its size."""
    if before is None:
        return np.ones(len(sizes))
    change = sizes - np.array(before[0])
    with np.errstate(divide="ignore", invalid="ignore"):
        part = (median - np.array(before[1])) / change * sizes / median
    measured = (np.abs(change) >= _APART * np.array(before[0])) & np.isfinite(part)
    return np.where(measured, np.clip(part, _LEAST, 1.0), 1.0)


def _shortest(median: Floats, growing: Floats, sizes: NDArray[np.int_], total: int) -> list[int]:
    """Sizes, of at least 1, under which the slowest group is soonest done: one partition after another goes to the
    group that is first done with it.
    """
    each = median * growing / sizes
    fixed = median * (1.0 - growing)
    shortest = [1] * len(sizes)
    heap = [(fixed[g] + 2.0 * each[g], g) for g in range(len(sizes))]
    heapq.heapify(heap)
    for _ in range(total - len(sizes)):
        seconds, group = heap[0]
        shortest[group] += 1
        heapq.heapreplace(heap, (seconds + each[group], group))
    return shortest


def shares_of(code: Code) -> tuple[int, ...]:
    """The shares that a code was given; none where its blocks are as even as possible."""
    return code.shares if isinstance(code, RepetitionCode) else ()


def owners(code: RepetitionCode) -> list[int]:
    """The group of each partition."""
    return [group for group, block in enumerate(code.blocks_of) for _ in block]
