"""Fast replays of sequential codes on known times, with sets of workers as the bits of integers.

The strategies decide from events. These functions take the same decisions (with the default ``wait``, and dropping the
tasks of stragglers) for planners, which compare thousands of candidates. They yield, for each round, its seconds and
whether it waited beyond its cut-off, as its late workers did not fit the straggler model.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import Literal

import numpy as np

from anyk.base.arrays import Floats

LEAST = 1e-6  # smallest load-adjusted delay in seconds
End = Literal["cutoff", "decodable"]
Decided = Iterator[tuple[float, bool]]  # of each round: its seconds, and whether it waited beyond the cut-off


class KnownRounds:
    """Seconds of tasks, shape (rounds, workers), prepared for replays; the cut-off is at 1 + mu times the fastest."""

    def __init__(self, table: Floats, mu: float) -> None:
        self.count, self.workers = table.shape
        self.mu = mu
        self.rows = _sorted(table)
        self._table = table

    def round(self, t: int, shift: float, end: End, model: Tolerance) -> tuple[float, int, bool]:
        """Return the seconds of round t, its stragglers, and whether the late workers did not fit.

        ``shift`` is added to all times.
        """
        times, slower = self.rows[t]
        if times[0] + shift < LEAST:  # clipping makes times equal, which changes their order
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


def replay(known_rounds: KnownRounds, count: int, model: Tolerance, end: End, shift: float = 0.0) -> Decided:
    """Replay ``gc`` or ``m-sgc``; ``model``: the sets of workers that may straggle."""
    for t in range(count):
        seconds, late, waited = known_rounds.round(t, shift, end, model)
        yield seconds, waited
        model.note(late)


def selective(
    known_rounds: KnownRounds,
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
    """Replay ``sr-sgc``; rounds after ``jobs`` without work are skipped (None: no end of jobs)."""
    lates: list[int] = []
    missing: list[int] = []
    model = Tolerance(tolerated, groups) if groups else Tolerance(most, [], B, W)
    for t in range(count):
        miss = missing[t - B] if t >= B else 0
        repeaters = choose_repeaters(miss, lates[t - B] if t >= B else 0, groups, tolerated)
        late = 0
        if jobs is None or t < jobs or repeaters:
            if groups:
                model.union, model.among = miss & ~repeaters, repeaters
            seconds, late, waited = known_rounds.round(t, shift, end, model)
            yield seconds, waited
        model.note(0 if late.bit_count() <= tolerated and not repeaters & ~late else late)
        lates.append(late)
        missing.append(late | repeaters)


class Tolerance:
    """The sets of workers that may straggle in a round.

    No worker of ``again`` may straggle: these repeat missed work. The others and ``union`` together must leave one
    worker of each of ``groups``, or number at most ``most``; only workers in ``among`` count here. With B and W,
    ``again`` and ``union`` follow from the stragglers noted in the last rounds. Sets of workers are the bits of
    integers.
    """

    __slots__ = ("_burst", "_past", "again", "among", "groups", "most", "union", "window")

    def __init__(self, most: int, groups: list[int], B: int = 0, W: int = 1) -> None:
        self.most, self.groups, self.union, self.again, self.among = most, groups, 0, 0, -1
        self._past: list[int] = []
        self._burst, self.window = B, W

    def fits(self, late: int) -> bool:
        """Return whether these workers may straggle."""
        if late & self.again:
            return False
        missing = self.union | (late & self.among)
        if missing.bit_count() <= self.most:
            return True
        return bool(self.groups) and all(group & ~missing for group in self.groups)

    def note(self, late: int) -> None:
        """Note the stragglers of a round that is over, 0 if it does not count."""
        past, B, W = self._past, self._burst, self.window
        if W == 1:
            return
        past.append(late)
        union = repeaters = 0
        for mask in past[-(W - 1) :]:
            union |= mask
        for mask in past[max(0, len(past) - W + 1) : max(0, len(past) - B + 1)]:
            repeaters |= mask
        self.union, self.again = union, repeaters


def choose_repeaters(missing: int, late: int, groups: list[int], tolerated: int) -> int:
    """Return the workers that repeat a job of ``sr-sgc``; ``missing``: the workers whose results are missing.

    All missing workers but the ``tolerated`` highest repeat it; if ``groups`` count, the lowest worker of each group
    without a result, preferably a worker that was ``late``.
    """
    if not groups:
        return _lowest(missing, max(0, missing.bit_count() - tolerated))
    workers = 0
    for group in groups:
        if not group & ~missing:
            among = group & late or group
            workers |= among & -among
    return workers


def as_bits(workers: Iterable[int]) -> int:
    """Return a set of different workers as the bits of an integer.

    >>> as_bits([0, 2])
    5
    """
    return sum(1 << worker for worker in workers)


def workers_in(bits: int) -> list[int]:
    """Return the workers of a set, in ascending order."""
    return [worker for worker in range(bits.bit_length()) if bits >> worker & 1]


def _sorted(table: Floats) -> list[tuple[list[float], list[int]]]:
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


def _lowest(mask: int, count: int) -> int:
    """Return the ``count`` lowest bits that are set."""
    higher = mask
    for _ in range(count):
        higher &= higher - 1
    return mask & ~higher
