"""Rounds of sequential codes on known times, quickly: their decisions on sets of workers as bits of whole numbers.

The strategies themselves decide from events; here are the same decisions (with the usual ``wait`` and stragglers' tasks
dropped) for planners, which meet thousands of candidates. Each function yields seconds of a round, and whether those
late at its cut-off did not fit.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

LEAST = 1e-6  # seconds that a load-adjusted delay takes at least
End = Literal["cutoff", "decodable"]
Decided = Iterator[tuple[float, bool]]


class KnownRounds:
    """Times of tasks, seconds, rounds x workers, prepared for replaying; the cut-off is at 1 + mu times the fastest."""

    def __init__(self, table: NDArray[np.float64], mu: float) -> None:
        self.count, self.workers = table.shape
        self.mu = mu
        self.rows = _sorted(table)
        self._table = table

    def round(self, t: int, shift: float, end: End, model: Tolerance) -> tuple[float, int, bool]:
        """Seconds of round t with ``shift`` more for all, who straggles, and whether those late did not fit."""
        times, slower = self.rows[t]
        if times[0] + shift < LEAST:  # clipped: some tie at the least
            times, slower = _sorted(np.maximum(LEAST, self._table[t : t + 1] + shift))[0]
            shift = 0.0
        cut = (1.0 + self.mu) * (times[0] + shift)
        on_time = bisect_right(times, cut - shift)
        late = slower[on_time]
        fitting = not late or model.fits(late)
        if end == "cutoff":
            return (min(cut, times[-1] + shift), late, False) if fitting else (times[-1] + shift, 0, True)
        first, last = (1, on_time) if fitting else (on_time + 1, self.workers)
        k = first + bisect_left(range(first, last), True, key=lambda k: model.fits(slower[k]))
        return times[k - 1] + shift, slower[k], not fitting


def gradient_coding(
    known: KnownRounds,
    count: int,
    *,
    stragglers: int,
    end: End,
    groups: list[int],
    strict: bool = False,
    shift: float = 0.0,
) -> Decided:
    """``gc``; ``groups``: those of the code within a job as bits, none where they do not count."""
    model = Tolerance(stragglers - 1, []) if strict else Tolerance(stragglers, groups)
    for t in range(count):
        seconds, _, waited = known.round(t, shift, end, model)
        yield seconds, waited


def multiplexed(
    known: KnownRounds,
    count: int,
    *,
    B: int,
    W: int,
    most: int,
    end: End,
    groups: list[int],
    shift: float = 0.0,
) -> Decided:
    """``m-sgc``; ``most`` is lambda."""
    past: list[int] = []
    model = Tolerance(most, groups, past, B, W)
    for t in range(count):
        seconds, late, waited = known.round(t, shift, end, model)
        yield seconds, waited
        past.append(late)


def selective(
    known: KnownRounds,
    count: int,
    *,
    B: int,
    W: int,
    most: int,
    tolerated: int,
    end: End,
    groups: list[int],
    jobs: int | None = None,
    shift: float = 0.0,
) -> Decided:
    """``sr-sgc``; of the rounds from ``jobs`` on those that nobody needs are skipped (None: there are none)."""
    past: list[int] = []  # stragglers, and 0 for rounds that count for nothing
    lates: list[int] = []
    missing: list[int] = []
    model = Tolerance(tolerated, groups) if groups else Tolerance(most, [], past, B, W)
    for t in range(count):
        miss = missing[t - B] if t >= B else 0
        if groups:
            again = _one_of_each([group for group in groups if not group & ~miss], lates[t - B] if t >= B else 0)
        else:
            again = _lowest(miss, max(0, miss.bit_count() - tolerated))
        late = 0
        if jobs is None or t < jobs or again:
            if groups:
                model.union, model.among = miss & ~again, again
            seconds, late, waited = known.round(t, shift, end, model)
            yield seconds, waited
        past.append(0 if late.bit_count() <= tolerated and not again & ~late else late)
        lates.append(late)
        missing.append(late | again)


class Tolerance:
    """The workers that may straggle in a round: none in ``again``; with those in ``union``, no more than a code bears.

    ``groups`` of workers of which one each must be left (none: any ``most`` may be missing). Of those who straggle only
    the ones ``among`` these matter to it. With B and W, ``again`` and ``union`` are those who straggled in the last
    rounds of the ``past``, a list that grows. Sets of workers are the bits of whole numbers.
    """

    __slots__ = ("_B", "_W", "_known", "_past", "again", "among", "groups", "most", "union")

    def __init__(self, most: int, groups: list[int], past: Sequence[int] = (), B: int = 0, W: int = 1) -> None:
        self.most, self.groups, self.union, self.again, self.among = most, groups, 0, 0, -1
        self._past, self._B, self._W, self._known = past, B, W, 0

    def fits(self, late: int) -> bool:
        """Whether these may straggle."""
        if len(self._past) != self._known:
            self._look_back()
        if late & self.again:
            return False
        missing = self.union | (late & self.among)
        if missing.bit_count() <= self.most:
            return True
        return bool(self.groups) and all(group & ~missing for group in self.groups)

    def _look_back(self) -> None:
        past, B, W = self._past, self._B, self._W
        self._known = len(past)
        union = again = 0
        for mask in past[-(W - 1) :]:
            union |= mask
        for mask in past[max(0, len(past) - W + 1) : max(0, len(past) - B + 1)]:
            again |= mask
        self.union, self.again = union, again


def bits_of(groups: Sequence[int]) -> list[int]:
    """Groups as bits of their workers, where ``groups`` names each worker's.

    >>> bits_of([0, 0, 1])
    [3, 4]
    """
    masks = [0] * (max(groups) + 1)
    for worker, group in enumerate(groups):
        masks[group] |= 1 << worker
    return masks


def _sorted(table: NDArray[np.float64]) -> list[tuple[list[float], list[int]]]:
    """Return the sorted times of each round, and for each k the bits of all workers but the k fastest."""
    order = np.argsort(table, axis=1, kind="stable")
    bit = [1 << worker for worker in range(table.shape[1])]
    rows = []
    for times, workers in zip(np.take_along_axis(table, order, axis=1).tolist(), order.tolist(), strict=True):
        mask, slower = (1 << len(bit)) - 1, []
        for worker in workers:
            slower.append(mask)
            mask ^= bit[worker]
        slower.append(0)
        rows.append((times, slower))
    return rows


def _one_of_each(groups: list[int], late: int) -> int:
    """The lowest worker of each group, if possible of those that were late."""
    chosen = 0
    for group in groups:
        among = group & late or group
        chosen |= among & -among
    return chosen


def _lowest(mask: int, count: int) -> int:
    """The ``count`` lowest bits that are set."""
    higher = mask
    for _ in range(count):
        higher &= higher - 1
    return mask & ~higher
