"""Which sequential code, with which parameters: every one of a grid replayed on a measured trace, quickly.

The strategies themselves decide in :func:`anyk.planning.simulate`; here the same decisions for thousands of candidates
are taken on sets of workers as bits of whole numbers. A task that covers another share of the data than the trace was
measured at takes ``(share - load) * slope`` seconds more, for all workers alike, so who is slow in a round stays the
same and only the cut-off moves.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from anyk.errors import BadInput

_WINDOW = 20  # rounds that SR-SGC's straggler model looks back on at most
_LEAST = 1e-6  # seconds that a load-adjusted delay takes at least


@dataclass(frozen=True)
class Candidate:
    """A scheme on a trace.

    Its ``spec``, ``load`` (share of the data that a worker computes a round), rounds of delay ``T``, ``seconds`` of all
    rounds that ``jobs`` jobs take, and ``waits``, the rounds in which the master had to wait.
    """

    spec: str
    load: float
    T: int
    seconds: float
    waits: int
    jobs: int


class TraceGrid:
    """A trace prepared for replaying schemes, which all wait for all where stragglers do not fit.

    ``delays`` (rounds x workers, seconds) were measured at ``load``; ``slope`` in seconds for the whole data; ``mu``:
    the cut-off of a round is at 1 + mu times its fastest; ``jobs`` to be done.

    >>> grid = TraceGrid([[1, 1, 4], [1, 3, 1], [1, 1, 1]], load=0.0, slope=0.0, jobs=2)
    >>> grid.multiplexed(1, 2, 1).seconds, grid.uncoded().seconds
    (6.0, 7.0)
    """

    def __init__(self, delays: ArrayLike, *, load: float, slope: float, jobs: int, mu: float = 1.0) -> None:
        table = np.asarray(delays, dtype=np.float64)
        if table.ndim != 2 or not table.size or not np.isfinite(table).all():
            raise BadInput(f"delays must be a table of rounds x workers in finite seconds, got shape {table.shape}")
        for what, value in (("load", load), ("slope", slope), ("mu", mu)):
            if not np.isfinite(value) or (value < 0 and what != "slope"):
                raise BadInput(f"{what} must be a finite number of at least 0, got {value:g}")
        if not 1 <= jobs <= len(table):
            raise BadInput(f"jobs must be 1 to the trace's {len(table)} rounds, got {jobs}")
        self.rounds, self.workers = table.shape
        self.load, self.slope, self.jobs, self.mu = load, slope, jobs, mu
        self._sorted: list[list[float]] = []
        self._slower: list[list[int]] = []  # per round: bits of all workers but the k fastest
        for row in table:
            order = np.argsort(row, kind="stable")
            self._sorted.append(row[order].tolist())
            mask, slower = 0, [0]
            for worker in order[::-1].tolist():
                mask |= 1 << worker
                slower.append(mask)
            self._slower.append(slower[::-1])

    def _round(self, t: int, shift: float) -> tuple[float, float, int]:
        """Cut-off and end of round t in seconds, and who is late at the cut-off, as bits."""
        times = self._sorted[t]
        fastest = times[0] + shift
        if fastest < _LEAST:  # clipped: some tie at the least
            clipped = [max(_LEAST, x + shift) for x in times]
            cut = (1.0 + self.mu) * clipped[0]
            return cut, clipped[-1], self._slower[t][bisect_right(clipped, cut)]
        cut = (1.0 + self.mu) * fastest
        return cut, times[-1] + shift, self._slower[t][bisect_right(times, cut - shift)]

    def _shift(self, load: float) -> float:
        return (load - self.load) * self.slope

    def _needs(self, spec: str, delay: int) -> int:
        if self.jobs + delay > self.rounds:
            raise BadInput(f"{self.jobs} jobs of '{spec}' take {self.jobs + delay} rounds, the trace has {self.rounds}")
        return self.jobs + delay

    def uncoded(self) -> Candidate:
        """No coding: every round waits for all."""
        shift = self._shift(1.0 / self.workers)
        seconds = sum(max(_LEAST, self._sorted[t][-1] + shift) for t in range(self.jobs))
        return Candidate("uncoded", 1.0 / self.workers, 0, seconds, self.jobs, self.jobs)

    def gradient_coding(self, s: int, *, strict: bool = False) -> Candidate:
        """``gc`` with any s stragglers."""
        load = (s + 1) / self.workers
        shift, total, waits = self._shift(load), 0.0, 0
        most = s - strict
        for t in range(self.jobs):
            cut, end, late = self._round(t, shift)
            if late.bit_count() <= most:
                total += min(cut, end)
            else:
                total += end
                waits += 1
        return Candidate(f"gc:stragglers={s}{',strict=true' * strict}{self._mu}", load, 0, total, waits, self.jobs)

    def multiplexed(self, B: int, W: int, lambda_: int) -> Candidate:
        """``m-sgc``."""
        n = self.workers
        each, parts = (lambda_ + 1, n * (B + (W - 1) * (lambda_ + 1))) if lambda_ < n else (1, n * (W - 1))
        load = (W - 1 + B) * each / parts
        spec = f"m-sgc:B={B},W={W},lambda={lambda_}{self._mu}"
        shift, total, waits = self._shift(load), 0.0, 0
        past: list[int] = []
        for t in range(self._needs(spec, W - 2 + B)):
            cut, end, late = self._round(t, shift)
            if late:
                union = late
                for mask in past[-(W - 1) :]:
                    union |= mask
                again = 0
                for mask in past[max(0, len(past) - W + 1) : max(0, len(past) - B + 1)]:
                    again |= mask
                if union.bit_count() > lambda_ or again & late:
                    waits += 1
                    total += end
                    past.append(0)
                    continue
            total += min(cut, end)
            past.append(late)
        return Candidate(spec, load, W - 2 + B, total, waits, self.jobs)

    def selective(self, B: int, W: int, lambda_: int) -> Candidate:
        """``sr-sgc``."""
        n, J = self.workers, self.jobs
        s = -(-B * lambda_ // (W - 1 + B))
        load = (s + 1) / n
        spec = f"sr-sgc:B={B},W={W},lambda={lambda_}{self._mu}"
        shift, total, waits = self._shift(load), 0.0, 0
        past: list[int] = []  # stragglers, and 0 for rounds that count for nothing
        missing: list[int] = []
        for t in range(self._needs(spec, B)):
            miss = missing[t - B] if t >= B else 0
            extra = miss.bit_count() - s
            if t >= J and extra <= 0:  # the job is done: the round is skipped
                past.append(0)
                missing.append(0)
                continue
            again = _lowest(miss, extra) if extra > 0 else 0
            cut, end, late = self._round(t, shift)
            if late:
                union = late
                for mask in past[-(W - 1) :]:
                    union |= mask
                before = 0
                for mask in past[max(0, len(past) - W + 1) : max(0, len(past) - B + 1)]:
                    before |= mask
                if union.bit_count() > lambda_ or before & late:
                    waits += 1
                    total += end
                    late = 0
                else:
                    total += min(cut, end)
            else:
                total += min(cut, end)
            past.append(0 if late.bit_count() <= s and not again & ~late else late)
            missing.append(late | again)
        return Candidate(spec, load, B, total, waits, J)

    @property
    def _mu(self) -> str:
        return f",mu={self.mu:g}" if self.mu != 1.0 else ""

    def grid(self, most_delay: int) -> Iterator[Candidate]:
        """Every scheme whose jobs take at most ``most_delay`` further rounds, with all parameters (W up to 20)."""
        yield self.uncoded()
        n, most = self.workers, min(most_delay, self.rounds - self.jobs)
        for s in range(n):
            yield self.gradient_coding(s)
        for B in range(1, most + 1):
            for W in range(B + 1, min(self.jobs, _WINDOW) + 1, B):
                for lambda_ in range(1, n + 1):
                    if -(-B * lambda_ // (W - 1 + B)) < n:
                        yield self.selective(B, W, lambda_)
        for W in range(2, most + 2):
            for B in range(1, min(W - 1, most + 2 - W) + 1):
                for lambda_ in range(1, n + 1):
                    yield self.multiplexed(B, W, lambda_)


def _lowest(mask: int, count: int) -> int:
    """The ``count`` lowest bits that are set."""
    rest = mask
    for _ in range(count):
        rest &= rest - 1
    return mask & ~rest


def tune(
    delays: ArrayLike, *, models: int, load: float, slope: float, jobs: int | None = None, mu: float = 1.0
) -> list[Candidate]:
    """The best of no coding, GC, SR-SGC and M-SGC on a trace, soonest first.

    ``delays`` (rounds x workers, seconds) at ``load`` (share of the data a worker computed), ``slope`` in seconds for
    the whole data (:func:`fit_slope`). ``models`` trained at once allow jobs models - 1 further rounds. ``jobs``: as
    many as the trace's rounds leave if left out. Equal seconds: the smaller load first.

    >>> best = tune([[1, 1, 4], [1, 3, 1], [1, 1, 5], [1, 1, 1]], models=2, load=0.3, slope=0.1)
    >>> best[0].spec
    'gc:stragglers=1'
    """
    table = np.asarray(delays, dtype=np.float64)
    if models < 1:
        raise BadInput(f"models must be at least 1, got {models}")
    if jobs is None:
        jobs = max(1, len(table) - (models - 1))
    grid = TraceGrid(table, load=load, slope=slope, jobs=jobs, mu=mu)
    best: dict[str, Candidate] = {}
    for candidate in grid.grid(models - 1):
        family = candidate.spec.partition(":")[0]
        known = best.get(family)
        if known is None or (candidate.seconds, candidate.load) < (known.seconds, known.load):
            best[family] = candidate
    return sorted(best.values(), key=lambda candidate: (candidate.seconds, candidate.load))


def fit_slope(tables: list[tuple[float, NDArray[np.float64]]]) -> float:
    """Seconds that the whole data takes beyond none: least squares of mean times against loads, two loads at least.

    >>> round(fit_slope([(0.0, np.array([[1.0, 1.0]])), (0.5, np.array([[1.5, 1.5]]))]), 9)
    1.0
    """
    loads = np.array([load for load, _ in tables])
    if np.unique(loads).size < 2:
        raise BadInput(
            "the slope of time against load needs traces at two loads or more; give several, or the slope (--slope)"
        )
    means = np.array([float(table.mean()) for _, table in tables])
    return float(np.polyfit(loads, means, 1)[0])
