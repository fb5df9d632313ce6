"""Sequential codes and their parameters, compared by replaying them on a measured trace.

In :func:`anyk.fleet.simulate` the strategies themselves decide. Here the same decisions are taken for thousands of
candidates, with sets of workers as bits of integers. A task that covers another share of the data than in the trace
takes ``(share - load) * slope`` seconds more, for all workers alike, so that the same workers are slow in a round and
only the cut-off moves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from anyk.base import AtLeastOne, BadInput, FiniteNumber, Floats, NonnegativeNumber, check_range, typed
from anyk.codes import FractionalRepetition
from anyk.strategies import (
    LEAST_SECONDS,
    Decided,
    End,
    KnownRounds,
    Tolerance,
    as_bits,
    replay_rounds,
    replay_selective,
)

_WINDOW = 20  # rounds that SR-SGC's straggler model looks back on at most


@dataclass(frozen=True)
class Candidate:
    """A scheme on a trace.

    Its ``spec``, ``load`` (share of the data that a worker computes in a round), rounds of delay ``T``, ``seconds`` of
    all rounds of ``jobs`` jobs, and ``waits``, the rounds in which the master had to wait.
    """

    spec: str
    load: float
    T: int
    seconds: float
    waits: int
    jobs: int


class TraceGrid:
    """A trace prepared for replaying schemes.

    ``delays``, in seconds, shape (rounds, workers), were measured at ``load``; ``slope`` in seconds for the whole data;
    ``mu``: the cut-off of a round is at 1 + mu times its fastest; ``jobs`` to complete. ``end`` and ``inner`` are those
    of the strategies: with ``cutoff``, rounds wait for all if stragglers do not fit the model; with ``decodable``,
    until the remaining stragglers fit.

    >>> grid = TraceGrid([[1, 1, 4], [1, 3, 1], [1, 1, 1]], load=0.0, slope=0.0, jobs=2)
    >>> grid.multiplexed(1, 2, 1).seconds, grid.uncoded().seconds, grid.repetition(2).seconds
    (6.0, 7.0, 2.0)
    """

    @typed
    def __init__(
        self, delays: ArrayLike, *, load: NonnegativeNumber, slope: FiniteNumber, jobs: int, mu: NonnegativeNumber = 1.0
    ) -> None:
        table = np.asarray(delays, dtype=float)
        if table.ndim != 2 or not table.size or not np.isfinite(table).all():
            raise BadInput(f"delays must be a table of rounds x workers in finite seconds, got shape {table.shape}")
        check_range("jobs", jobs, 1, len(table), ", the rounds of the trace")
        self.rounds, self.workers = table.shape
        self.load, self.slope, self.jobs, self.mu = load, slope, jobs, mu
        self._known = KnownRounds(table, mu)

    # ------------------------------------------------------------------------------------------- rounds

    def _shift(self, load: float) -> float:
        return (load - self.load) * self.slope

    def _code_of_job(self, stragglers: int, end: End, inner: str) -> tuple[list[int], float]:
        """Return the groups of the code within a job as bits (none if they do not count), and its load."""
        if inner == "frc" or (end == "decodable" and self.workers % (stragglers + 1) == 0):
            code = FractionalRepetition(self.workers, stragglers=stragglers)
            return list(map(as_bits, code.members)), code.load / self.workers
        return [], (stragglers + 1) / self.workers

    def _spec_keys(self, end: End, usual: End, inner: str) -> str:
        mu = f",mu={self.mu:g}" if self.mu != 1.0 else ""
        return f",end={end}" * (end != usual) + mu + f",inner={inner}" * (inner != "auto")

    # ------------------------------------------------------------------------------------------- schemes

    def uncoded(self) -> Candidate:
        """Return no coding: every round waits for all."""
        shift = self._shift(1.0 / self.workers)
        seconds = sum(max(LEAST_SECONDS, self._known.rows[t][0][-1] + shift) for t in range(self.jobs))
        return Candidate(spec="uncoded", load=1.0 / self.workers, T=0, seconds=seconds, waits=self.jobs, jobs=self.jobs)

    def repetition(self, s: int) -> Candidate:
        """Return ``frc``, whose rounds end when each group of at least s + 1 workers has one reply."""
        coded = self.gradient_coding(s, inner="frc")
        return replace(coded, spec=f"frc:stragglers={s}", waits=self.jobs)

    def gradient_coding(
        self, s: int, *, strict: bool = False, end: End = "decodable", inner: str = "auto"
    ) -> Candidate:
        """Return ``gc`` with any s stragglers."""
        groups, load = self._code_of_job(s, end, inner)
        model = Tolerance(s - 1, []) if strict else Tolerance(s, groups)
        decided = replay_rounds(self._known, self.jobs, model, end, self._shift(load))
        spec = f"gc:stragglers={s}{',strict=true' * strict}{self._spec_keys(end, 'decodable', inner)}"
        return self._candidate(spec, load, 0, decided)

    def multiplexed(self, B: int, W: int, lambda_: int, *, end: End = "cutoff", inner: str = "auto") -> Candidate:
        """Return ``m-sgc``."""
        n = self.workers
        spec = f"m-sgc:B={B},W={W},lambda={lambda_}{self._spec_keys(end, 'cutoff', inner)}"
        if lambda_ < n:
            groups, coded = self._code_of_job(lambda_, end, inner)
            copies = lambda_ + 1
            parts = n * (B + (W - 1) * copies)
            load = ((W - 1) * copies + B * max(copies, round(coded * n))) / parts
        else:
            groups, load = [], (W - 1 + B) / (n * (W - 1))
        T = W - 2 + B
        model = Tolerance(most=lambda_, groups=groups, B=B, W=W)
        decided = replay_rounds(self._known, self.jobs + T, model, end, self._shift(load))
        return self._candidate(spec, load, T, decided)

    def selective(self, B: int, W: int, lambda_: int, *, end: End = "cutoff", inner: str = "auto") -> Candidate:
        """Return ``sr-sgc``."""
        s = _selective_stragglers(B, W, lambda_)
        spec = f"sr-sgc:B={B},W={W},lambda={lambda_}{self._spec_keys(end, 'cutoff', inner)}"
        groups, load = self._code_of_job(s, end, inner)
        decided = replay_selective(
            self._known,
            self.jobs + B,
            B=B,
            W=W,
            most=lambda_,
            tolerated=s,
            end=end,
            groups=groups,
            jobs=self.jobs,
            shift=self._shift(load),
        )
        return self._candidate(spec, load, B, decided)

    def _candidate(self, spec: str, load: float, T: int, decided: Decided) -> Candidate:
        """Return a scheme with the sums over its rounds; raise BadInput if the trace has too few rounds."""
        if self.jobs + T > self.rounds:
            raise BadInput(f"{self.jobs} jobs of '{spec}' take {self.jobs + T} rounds, the trace has {self.rounds}")
        seconds, waits = 0.0, 0
        for duration, waited in decided:
            seconds += duration
            waits += waited
        return Candidate(spec=spec, load=load, T=T, seconds=seconds, waits=waits, jobs=self.jobs)

    # ------------------------------------------------------------------------------------------- the grid

    def grid(self, most_delay: int, *, published: bool = False) -> Iterator[Candidate]:
        """Yield every scheme whose jobs take at most ``most_delay`` further rounds, with all parameters (W up to 20).

        ``published``: only as the authors define them, ``end=cutoff`` and stragglers counted by their number, besides
        ``frc``. Otherwise with both rules, and with groups, once for each number of groups.
        """
        most = min(most_delay, self.rounds - self.jobs)
        ends: tuple[End, ...] = ("cutoff",) if published else ("cutoff", "decodable")
        sizes = sorted({self.workers // groups for groups in range(1, self.workers // 2 + 1)})  # of the smallest group
        yield self.uncoded()
        for size in sizes:
            yield self.repetition(size - 1)
        for s in range(self.workers):
            yield self.gradient_coding(s, end=ends[-1])
        grouped = [] if published else sizes
        yield from self._all_selective(most, ends, grouped)
        yield from self._all_multiplexed(most, ends, grouped)

    def _counts_workers(self, stragglers: int, end: End) -> bool:
        """Return whether stragglers are counted by their number: else their groups count, once for each size."""
        return end == "cutoff" or self.workers % (stragglers + 1) != 0

    def _all_selective(self, most: int, ends: Sequence[End], sizes: Sequence[int]) -> Iterator[Candidate]:
        """Yield ``sr-sgc`` with all parameters that delay jobs by ``most`` rounds, then with groups of ``sizes``."""
        for B in range(1, most + 1):
            for W in range(B + 1, min(self.jobs, _WINDOW) + 1, B):
                for lambda_ in range(1, self.workers + 1):
                    s = _selective_stragglers(B, W, lambda_)
                    if s < self.workers:
                        for end in ends:
                            if self._counts_workers(s, end):
                                yield self.selective(B, W, lambda_, end=end)
            for size in sizes:
                lambda_ = 2 * (size - 1)
                if lambda_ <= self.workers:
                    for end in ends:
                        yield self.selective(B, B + 1, lambda_, end=end, inner="frc")

    def _all_multiplexed(self, most: int, ends: Sequence[End], sizes: Sequence[int]) -> Iterator[Candidate]:
        """Yield ``m-sgc`` with all parameters that delay jobs by ``most`` rounds, and with groups of ``sizes``."""
        for W in range(2, most + 2):
            for B in range(1, min(W - 1, most + 2 - W) + 1):
                for lambda_ in range(1, self.workers + 1):
                    for end in ends:
                        if self._counts_workers(lambda_, end):
                            yield self.multiplexed(B, W, lambda_, end=end)
                for size in sizes:
                    for end in ends:
                        yield self.multiplexed(B, W, size - 1, end=end, inner="frc")


def _selective_stragglers(B: int, W: int, lambda_: int) -> int:
    """Return the stragglers of the code within a job of SR-SGC."""
    return -(-B * lambda_ // (W - 1 + B))


@typed
def sequential_candidates(
    delays: ArrayLike,
    *,
    models: AtLeastOne,
    load: float,
    slope: float,
    jobs: int | None = None,
    mu: float = 1.0,
    published: bool = False,
) -> list[Candidate]:
    """Return the best of no coding, FRC, GC, SR-SGC and M-SGC on a trace, the fastest first.

    ``delays``, in seconds, shape (rounds, workers), at ``load`` (share of the data that a worker computed); ``slope``
    in seconds for the whole data (:func:`fit_slope`). ``models`` trained simultaneously allow jobs models - 1 further
    rounds. ``jobs``: by default, the most that the trace's rounds allow. For equal seconds, the smaller load is first.
    ``published``: see :meth:`TraceGrid.grid`.

    >>> times = [[1, 1, 4], [1, 3, 1], [1, 1, 5], [1, 1, 1]]
    >>> best = sequential_candidates(times, models=2, load=0.3, slope=0.1)
    >>> best[0].spec
    'gc:stragglers=1'
    """
    table = np.asarray(delays, dtype=float)
    if jobs is None:
        jobs = max(1, len(table) - (models - 1))
    grid = TraceGrid(table, load=load, slope=slope, jobs=jobs, mu=mu)
    best: dict[str, Candidate] = {}

    def cost(candidate: Candidate) -> tuple[float, float]:
        return candidate.seconds, candidate.load

    for candidate in grid.grid(models - 1, published=published):
        family = candidate.spec.partition(":")[0]
        best[family] = min(best.get(family, candidate), candidate, key=cost)
    return sorted(best.values(), key=cost)


def fit_slope(tables: list[tuple[float, Floats]]) -> float:
    """Return the seconds of computing on the whole data, by least squares of mean times against two loads or more.

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
