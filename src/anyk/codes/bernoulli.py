"""Random sparse codes: each entry of the encoding matrix is drawn independently."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from anyk import keyed
from anyk.checks import typed
from anyk.codes.base import Indices, MatrixCode, check_load, check_workers, incidence, usual_load, whole
from anyk.codes.made import fixed_property
from anyk.errors import BadInput
from anyk.specs import show

if TYPE_CHECKING:
    import scipy.sparse


def _thrown(
    random: np.random.Generator, rows: int, columns: int, chance: float, picked: NDArray[np.int64] | None = None
) -> tuple[Indices, Indices]:
    """Places (row, column) of a rows x columns grid that come up with ``chance`` each, independently."""
    count = random.binomial(columns, chance, size=rows)  # a row's number of ones, then which: linear in the ones
    held = [np.sort(random.choice(columns, k, replace=False, shuffle=False)) for k in count.tolist()]
    at = np.repeat(np.arange(rows), count)
    which = np.concatenate(held) if len(held) else np.empty(0, dtype=np.int64)
    return at, which if picked is None else picked[which]


def _with_all_held(
    assignment: list[list[int]], partitions: int, random: np.random.Generator, most: int | None = None
) -> list[list[int]]:
    """Give each partition that nobody holds to one random worker with less than ``most``: else it would be lost."""
    held = np.zeros(partitions, dtype=bool)
    for own in assignment:
        held[own] = True
    for j in np.flatnonzero(~held).tolist():
        able = [own for own in assignment if most is None or len(own) < most]
        able[int(random.integers(len(able)))].append(j)
    return assignment


class _RandomCode(MatrixCode):
    """What random codes of 0 and 1 share; ``load`` is what came out for the worker that holds most."""

    approximate = True

    def drawn_error(self, replies: int) -> float:
        """Mean of ``err = m x residual^2`` of one-step decoding with ``rho = m / (r d)``, over draws of the code.

        d is the expected load. Partitions that nobody holds are given to someone here, which the formula leaves out.
        """
        raise NotImplementedError("a random code knows its error")


@typed
@dataclass(frozen=True)
class BernoulliCode(_RandomCode):
    """Bernoulli gradient code (BGC): each worker holds each partition with the same probability, load / m.

    Hard to attack without knowledge of the draw; with random stragglers fractional repetition is better (Charles,
    Papailiopoulos and Ellenberg 2017). One-step decoding has mean error ``m (m - d) / (r d)`` over draws. A partition
    that nobody would hold is given to one random worker (this changes the law slightly: about ``m (1 - d/m)^n``
    partitions are affected).

    ``expected_load`` is the expected number of partitions a worker holds (d; s in the paper; ``load`` in a spec); left
    out about log n.

    >>> code = BernoulliCode(100, expected_load=10)
    >>> round(code.drawn_error(70), 3)
    12.857
    """

    workers: int
    expected_load: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        n = check_workers(self.workers)
        load = usual_load(n) if self.expected_load is None else check_load("bgc", self.expected_load, n)
        object.__setattr__(self, "expected_load", load)

    @property
    def _d(self) -> int:
        return int(self.expected_load or 0)

    @property
    def spec(self) -> str:
        return f"bgc:load={self.expected_load}" + (f",seed={self.seed}" if self.seed else "")

    def _matrix(self) -> scipy.sparse.csr_array:
        n = self.workers
        random = keyed.generator(self.seed, "bgc", n, self._d)
        at, which = _thrown(random, n, n, self._d / n)
        assignment = [part.tolist() for part in np.split(which, np.searchsorted(at, np.arange(1, n)))]
        return incidence(_with_all_held(self._pruned(assignment, random), n, random, self._most), n)

    @property
    def _most(self) -> int | None:
        """How many partitions a worker may hold."""
        return None

    def _pruned(self, assignment: list[list[int]], random: np.random.Generator) -> list[list[int]]:
        del random
        return assignment

    def drawn_error(self, replies: int) -> float:
        """``m (m - d) / (r d)``; see :meth:`_RandomCode.drawn_error`."""
        self._check_count(replies)
        m, d = self.partitions, self._d
        return m * (m - d) / (replies * d)


@typed
@dataclass(frozen=True)
class RegularisedBernoulliCode(BernoulliCode):
    """Regularised Bernoulli code (rBGC): as ``bgc``, but nobody holds more than twice the expected load.

    A worker that has drawn more keeps a random choice of 2 load of them (Charles, Papailiopoulos and Ellenberg 2017),
    so even the slowest worker has a bounded amount of work.

    >>> bool(max(map(len, RegularisedBernoulliCode(100, expected_load=3).assignment)) <= 6)
    True
    """

    @property
    def spec(self) -> str:
        return "r" + super().spec

    @property
    def _most(self) -> int | None:
        return 2 * self._d

    def _pruned(self, assignment: list[list[int]], random: np.random.Generator) -> list[list[int]]:
        most = 2 * self._d
        return [own if len(own) <= most else random.choice(own, most, replace=False).tolist() for own in assignment]


@typed
@dataclass(frozen=True)
class StochasticBlockCode(_RandomCode):
    """Stochastic block code (SBC): communities of workers and partitions, dense inside, sparse across.

    Workers and partitions are cut into communities of ``block``; a worker holds a partition of its own community with
    probability ``inside`` and any other with ``outside`` (Charles and Papailiopoulos 2018). ``inside=1`` and
    ``outside=0`` is fractional repetition, ``inside = outside`` is ``bgc``. Workers and partitions are relabelled at
    random, so that an adversary does not know the communities.

    ``expected_load`` (``load`` in a spec) is the number of partitions a worker holds on average, ``d = block inside +
    (m - block) outside``; give it or ``outside``, as each determines the other. Left out, it is about log n, ``block``
    the same and ``inside`` 0.8.

    >>> code = StochasticBlockCode(100, block=10, inside=0.8, outside=0.02)
    >>> round(code.expected_load, 9), round(code.drawn_error(70), 3)
    (9.8, 7.472)
    """

    workers: int
    expected_load: float | None = None
    block: int | None = None
    inside: float = 0.8
    outside: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        n = check_workers(self.workers)
        if self.expected_load is not None and self.outside is not None:
            raise BadInput("sbc takes load=… or outside=…, not both; one follows from the other")
        load = float(usual_load(n) if self.expected_load is None else self.expected_load)
        if not 0 < load <= n:
            raise BadInput(f"sbc:load={load:g} does not exist for {n} partitions; load must be above 0 and at most {n}")
        block = min(n, max(1, round(load))) if self.block is None else whole("block", self.block)
        if not 1 <= block <= n:
            raise BadInput(f"sbc:block={block} does not exist for {n} workers; block must be 1 to {n}")
        if not 0 < self.inside <= 1:
            raise BadInput(f"sbc:inside={self.inside:g} must be above 0 and at most 1")
        outside = self.outside
        if outside is None:
            outside = (load - block * self.inside) / (n - block) if block < n else 0.0
            if -1e-12 < outside < 0 or (self.block is None and outside < 0):
                outside = 0.0
            elif outside < 0:
                raise BadInput(
                    f"sbc:load={load:g},block={block} does not exist: with inside={self.inside:g} a worker holds "
                    f"{block * self.inside:g} of its own community alone; lower block or inside"
                )
        if not 0 <= outside <= self.inside:
            raise BadInput(
                f"sbc:outside={outside:.3g} must be between 0 and inside ({self.inside:g}); a block of "
                f"{min(n, max(1, int(load / self.inside)))} holds that load"
            )
        object.__setattr__(self, "block", block)
        object.__setattr__(self, "outside", outside)
        own = sum(size * size for size in self._sizes) / n  # partitions of a worker's own community, on average
        object.__setattr__(self, "expected_load", own * self.inside + (n - own) * outside)

    @property
    def _sizes(self) -> list[int]:
        """Sizes of the communities; the last one may be smaller."""
        n, block = self.workers, int(self.block or 1)
        return [min(block, n - start) for start in range(0, n, block)]

    @property
    def spec(self) -> str:
        return show(
            "sbc", {"block": self.block, "inside": self.inside, "outside": self.outside, "seed": self.seed}, {"seed": 0}
        )

    @fixed_property
    def communities(self) -> tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]:
        """The workers and the partitions of each community, relabelled at random."""
        n, block = self.workers, int(self.block or 1)
        random = keyed.generator(self.seed, "sbc-labels", n, block)
        starts = range(0, n, block)
        workers, partitions = random.permutation(n), random.permutation(n)
        return tuple(
            (tuple(workers[a : a + block].tolist()), tuple(partitions[a : a + block].tolist())) for a in starts
        )

    def _matrix(self) -> scipy.sparse.csr_array:
        n = self.workers
        random = keyed.generator(self.seed, "sbc", n, int(self.block or 1))
        assignment: list[list[int]] = [[] for _ in range(n)]
        for workers, partitions in self.communities:
            own = np.array(partitions)
            for chance, picked in ((self.inside, own), (float(self.outside or 0.0), np.setdiff1d(np.arange(n), own))):
                at, which = _thrown(random, len(workers), len(picked), chance, picked)
                for i, j in zip(at.tolist(), which.tolist(), strict=True):
                    assignment[workers[i]].append(j)
        return incidence(_with_all_held(assignment, n, random), n)

    def drawn_error(self, replies: int) -> float:
        """``m (m / (r d))^2 V``; see :meth:`_RandomCode.drawn_error`.

        ``V = q p (1 - p) + (r - q) o (1 - o) + (p - o)^2 v`` with p inside, o outside, ``q = r b / m`` and
        ``v = q (1 - b/m) (m - r) / (m - 1)`` for communities of b (Charles and Papailiopoulos 2018). Where the last
        community is smaller, each counts with its own b, and with the square of its bias.
        """
        self._check_count(replies)
        m, d = self.partitions, float(self.expected_load or 0.0)
        p, o = self.inside, float(self.outside or 0.0)
        total = 0.0
        for b in self._sizes:
            own = replies * b / m
            spread = own * (1 - b / m) * (m - replies) / (m - 1) if m > 1 else 0.0
            variance = own * p * (1 - p) + (replies - own) * o * (1 - o) + (p - o) ** 2 * spread
            total += b * ((m / (replies * d)) ** 2 * variance + ((b * p + (m - b) * o) / d - 1.0) ** 2)
        return total
