"""Balance: shares of the data that follow the measured speed of workers."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anyk.base.arrays import Floats
from anyk.base.errors import BadInput
from anyk.codes import Code, RepetitionCode
from anyk.protocol import Fleet, Note
from anyk.strategies.rounds.code_rules import CodeRule, since
from anyk.strategies.rounds.state import RoundState
from anyk.strategies.rounds.terms import RoundTerms

_PARTS = 16  # partitions of an even share
_FEWEST = 8  # and at least, if a mini-batch is distributed over them
_COLD = 2  # rounds that are not measured, as caches are cold and functions are compiled
_ROUNDS = 10  # rounds after which shares are reconsidered
_REMEMBERED = 50  # rounds whose times are kept
_CHANCE = 0.002  # significance level of the test that groups differ
_GAIN = 0.05  # share of a round's seconds that other shares must save, in either half of the rounds
_APART = 0.2  # relative change of a share whose effect stands out from noise
_LEAST = 0.1  # smallest part of a share's seconds that is assumed to be proportional to its size


@dataclass(slots=True)
class BalanceState:
    """Number of partitions in each group's block, and the times of rounds with them."""

    sizes: list[int]
    cold: int = _COLD  # rounds still to be ignored
    first_reply: dict[int, float] = field(default_factory=dict)  # group -> seconds to its first reply in this round
    disturbed: bool = False  # a worker joined or was lost in this round
    seconds: list[list[float]] = field(default_factory=list)  # per round and group; of the round if it was cut off
    rounds: int = 0  # measured with these shares
    before: tuple[list[int], list[float]] | None = None  # sizes before the last change, and median seconds with them


@dataclass(frozen=True)
class Balance(CodeRule):
    """Cuts the data by the speed of workers, measured in the first rounds and whenever it changes.

    Every 10 rounds the seconds to each group's first reply are compared, over the last 50 rounds with these shares (in
    an uncoded sum each worker is a group; a worker that was cut off took at least as long as the round). The data are
    cut again if groups differ (by the test of Friedman 1937, at 0.2 %) and rounds become at least 5 % shorter: the odd
    rounds with shares chosen by the even ones, and vice versa. So a worker that is always slow is given less, and
    random stragglers change nothing. The seconds of a share are assumed to be proportional to its size until two sizes
    have been measured, then to have a fixed and a proportional part.
    """

    State = BalanceState
    moves_data = True
    measures = True
    name = "balance=auto"
    summary = "shares of the data follow the speed of workers"

    def check(self, rounds: RoundTerms) -> None:
        """Raise :class:`~anyk.BadInput` for a code whose blocks must be of equal size."""
        code = rounds.code
        if not isinstance(code, RepetitionCode) or type(code).cut is RepetitionCode.cut:
            raise BadInput(f"balance=auto cuts the data of uncoded and frc by speed; '{code.spec}' needs even blocks")

    @property
    def keys(self) -> Mapping[str, Any]:
        """The key of a spec for this rule."""
        return {"balance": "auto"}

    def first_code(self, rounds: RoundTerms) -> Code:
        """Return the code with its blocks cut into many partitions."""
        code = rounds.code
        assert isinstance(code, RepetitionCode)
        parts = even_parts(rounds.batch)
        shares = np.array([len(block) for block in code.blocks_of]) * (code.groups / code.partitions)
        return code.cut([max(1, round(parts * share)) for share in shares.tolist()])

    def start(self, rounds: RoundTerms, fleet: Fleet) -> BalanceState:
        """Return the state at the start of a run."""
        code = rounds.first_code
        assert isinstance(code, RepetitionCode)
        return BalanceState([len(block) for block in code.blocks_of])

    def code(self, rounds: RoundTerms, s: RoundState) -> Code:
        """Return the code with the present sizes of blocks."""
        first = rounds.first_code
        assert isinstance(first, RepetitionCode)
        sizes = s.code_rule.sizes
        return first if sizes == first.sizes else first.cut(sizes)

    def note_reply(self, s: RoundState, worker: int) -> None:
        """Note the time of a reply, of which the first of a group counts."""
        s.code_rule.first_reply.setdefault(s.code.group_of[worker], s.now - s.began)

    def ignore_times(self, s: RoundState) -> None:
        """Do not measure this round, in which a worker joined or was lost."""
        s.code_rule.disturbed = True

    def after_step(self, rounds: RoundTerms, s: RoundState) -> tuple[Code, list[Note]] | None:
        """Return the code with other sizes of blocks, and a note about it, if that makes rounds shorter."""
        sizes = reconsidered_sizes(s.code_rule, s.now - s.began)
        if sizes is None:
            return None
        old = s.code
        new = old.cut(sizes)
        before, after = (np.repeat(range(old.groups), code.sizes) for code in (old, new))  # group of each partition
        moved = 100.0 * np.count_nonzero(before != after) / old.partitions
        shares = "/".join(map(str, new.shares))
        return new, [Note(f"shares={shares} {since(rounds, s)}: {moved:.0f} % of the samples change hands")]

    def adapted(self, code: Code, seconds: Floats, slopes: Floats, load: float) -> Code:
        """Return the code with the shares at which balance settles on a fleet, see :func:`settled_sizes`."""
        assert isinstance(code, RepetitionCode)
        return code.cut(settled_sizes(code, seconds, slopes, load))


def reconsidered_sizes(balance: BalanceState, seconds: float) -> list[int] | None:
    """Note that a round has ended after ``seconds``; return new sizes of blocks, None to keep the present ones."""
    first_reply, balance.first_reply = balance.first_reply, {}
    disturbed, balance.disturbed = balance.disturbed, False
    if balance.cold or disturbed:
        balance.cold = max(0, balance.cold - 1)
        return None
    balance.seconds.append([first_reply.get(group, seconds) for group in range(len(balance.sizes))])
    del balance.seconds[:-_REMEMBERED]
    balance.rounds += 1
    if balance.rounds % _ROUNDS:
        return None
    table, current = np.array(balance.seconds), np.array(balance.sizes)
    sizes = better(table, current, _growing(np.median(table, axis=0), current, balance.before))
    if sizes is not None:
        balance.before = balance.sizes, np.median(table, axis=0).tolist()
        balance.sizes, balance.seconds, balance.rounds = sizes, [], 0
    return sizes


def even_parts(batch: int) -> int:
    """Return the number of partitions of an even share, for which the samples of a mini-batch distribute evenly."""
    if not batch:
        return _PARTS
    return min(range(min(batch, _FEWEST), min(batch, _PARTS) + 1), key=lambda parts: (abs(_each(batch, parts)), -parts))


def _each(batch: int, parts: int) -> float:
    return max(1, round(batch / parts)) * parts / batch - 1.0


def settled_sizes(code: RepetitionCode, seconds: Floats, slopes: Floats, load: float) -> list[int]:
    """Return the sizes of blocks at which balance settles on a fleet.

    ``seconds``: shape (rounds, workers), of tasks that cover the share ``load`` of the data; ``slopes``: seconds for
    the whole data, shape (workers,).

    >>> from anyk.codes import Uncoded
    >>> even, slopes = Uncoded(3).cut([16, 16, 16]), np.array([6.0, 3.0, 3.0])
    >>> settled_sizes(even, np.tile([2.0, 1.0, 1.0], (10, 1)), slopes, load=1 / 3)
    [10, 19, 19]
    """
    sizes = np.array(code.sizes)
    shares = (sizes / sizes.sum())[list(code.group_of)]
    predicted = np.maximum(seconds + (shares - load) * slopes, 0.0)
    first = [members[int(np.argmin(np.median(predicted[:, members], axis=0)))] for members in map(list, code.members)]
    table = np.stack([predicted[:, list(members)].min(axis=1) for members in code.members], axis=1)
    median = np.median(table, axis=0)
    if not (median > 0.0).all():
        return code.sizes
    growing = np.clip(slopes[first] * shares[first] / median, _LEAST, 1.0)
    return better(table, sizes, growing) or code.sizes


def better(seconds: Floats, sizes: NDArray[np.int_], growing: Floats) -> list[int] | None:
    """Return sizes with which rounds would be shorter; None if the measurements do not support a change.

    ``seconds``: shape (rounds, groups); ``growing``: the part of each group's seconds proportional to its size.

    >>> steady, sizes = np.tile([2.0, 1.0, 1.0], (10, 1)), np.array([16, 16, 16])
    >>> better(steady, sizes, np.ones(3))
    [10, 19, 19]
    >>> wandering = np.stack([np.roll(row, shift) for shift, row in enumerate(steady)])
    >>> better(wandering, sizes, np.ones(3)) is None
    True
    """
    if len(seconds) < _ROUNDS or not (seconds > 0.0).all():  # too few rounds, or no time to save
        return None

    def mean_seconds(rows: Floats, changed: Sequence[int]) -> float:
        """Return the mean seconds of these rounds with other sizes."""
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
    """Return the p-value of the hypothesis that all groups are equally fast, from their ranks within rounds."""
    from scipy import stats

    if seconds.shape[1] == 2:  # Friedman's test needs three
        return float(stats.wilcoxon(seconds[:, 0], seconds[:, 1]).pvalue)
    return float(stats.friedmanchisquare(*seconds.T).pvalue)


def _growing(median: Floats, sizes: NDArray[np.int_], before: tuple[list[int], list[float]] | None) -> Floats:
    """Return the part of each group's seconds that is proportional to its size, shape (groups,)."""
    if before is None:
        return np.ones(len(sizes))
    change = sizes - np.array(before[0])
    with np.errstate(divide="ignore", invalid="ignore"):
        growing_share = (median - np.array(before[1])) / change * sizes / median
    measured = (np.abs(change) >= _APART * np.array(before[0])) & np.isfinite(growing_share)
    return np.where(measured, np.clip(growing_share, _LEAST, 1.0), 1.0)


def _shortest(median: Floats, growing: Floats, sizes: NDArray[np.int_], total: int) -> list[int]:
    """Return sizes of at least 1 that minimise the time of the slowest group.

    One partition after another goes to the group that finishes it first.
    """
    seconds_each = median * growing / sizes
    fixed = median * (1.0 - growing)
    shortest = [1] * len(sizes)
    heap = [(fixed[g] + 2.0 * seconds_each[g], g) for g in range(len(sizes))]
    heapq.heapify(heap)
    for _ in range(total - len(sizes)):
        seconds, group = heap[0]
        shortest[group] += 1
        heapq.heapreplace(heap, (seconds + seconds_each[group], group))
    return shortest
