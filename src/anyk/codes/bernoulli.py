"""Random sparse codes: each entry of the encoding matrix is sampled independently."""

from __future__ import annotations

import numpy as np

from anyk.base.checks import PositiveShare, check_range, value_class
from anyk.base.errors import BadInput
from anyk.base.keyed import keyed_generator
from anyk.base.specs import show_spec
from anyk.codes.base import MatrixCode, check_load, check_workers, incidence, usual_load
from anyk.codes.made import LEFT_OUT, SparseMatrix, fixed_property


def _sample_rows(random: np.random.Generator, rows: int, columns: int, chance: float) -> list[list[int]]:
    """Return the sorted columns of each row; each column is included with this chance, independently."""
    counts = random.binomial(columns, chance, size=rows).tolist()  # first how many, then which: linear in their number
    return [np.sort(random.choice(columns, k, replace=False, shuffle=False)).tolist() for k in counts]


class _RandomCode(MatrixCode):
    """A random code of coefficients 0 and 1; ``load`` is the largest number of partitions that a worker obtained."""

    approximate = True
    _most: int | None = None  # partitions that a worker may hold

    def _complete(self, assignment: list[list[int]], random: np.random.Generator) -> SparseMatrix:
        """Return the encoding, after giving each partition without a holder to a random worker."""
        missing = set(range(self.partitions)).difference(*assignment)
        for j in sorted(missing):
            able = [assigned for assigned in assignment if self._most is None or len(assigned) < self._most]
            able[int(random.integers(len(able)))].append(j)
        return incidence(assignment, self.partitions)


@value_class
class BernoulliCode(_RandomCode):
    """Bernoulli gradient code (BGC): each worker holds each partition with the same probability, load / m.

    Hard to attack without knowledge of the sample; with random stragglers fractional repetition is better (Charles,
    Papailiopoulos and Ellenberg 2017). One-step decoding has mean error ``m (m - d) / (r d)`` over seeds. A partition
    without a holder is given to one random worker (this changes the distribution slightly: about ``m (1 - d/m)^n``
    partitions are affected).

    ``expected_load`` is the expected number of partitions of a worker (d; s in the paper; ``load`` in a spec), by
    default about log n. Raises :class:`~anyk.BadInput` unless it is between 1 and the number of workers.

    >>> code = BernoulliCode(100, expected_load=10)
    >>> round(code.drawn_error(70), 3)
    12.857
    """

    workers: int
    expected_load: int = LEFT_OUT
    seed: int = 0

    def __post_init__(self) -> None:
        n, load = check_workers(self.workers), self.expected_load
        self._resolve(expected_load=usual_load(n) if load is LEFT_OUT else check_load("bgc", load, n))

    @property
    def spec(self) -> str:
        return f"bgc:load={self.expected_load}" + (f",seed={self.seed}" if self.seed else "")

    def _matrix(self) -> SparseMatrix:
        n, most = self.workers, self._most
        random = keyed_generator(self.seed, "bgc", n, self.expected_load)
        assignment = _sample_rows(random, n, n, self.expected_load / n)
        if most is not None:
            assignment = [
                assigned if len(assigned) <= most else random.choice(assigned, most, replace=False).tolist()
                for assigned in assignment
            ]
        return self._complete(assignment, random)

    def drawn_error(self, replies: int) -> float:
        """Return ``m (m - d) / (r d)``, the mean of ``err = m x residual^2`` of one-step decoding over seeds.

        Decoding is with ``rho = m / (r d)``, where d is the expected load. The formula ignores that partitions without
        a holder are assigned to a random worker.
        """
        self._check_count(replies)
        m, d = self.partitions, self.expected_load
        return m * (m - d) / (replies * d)


@value_class
class RegularisedBernoulliCode(BernoulliCode):
    """Regularised Bernoulli code (rBGC): as ``bgc``, but no worker holds more than twice the expected load.

    A worker with more partitions keeps a random choice of 2 load partitions (Charles, Papailiopoulos and Ellenberg
    2017), so even the slowest worker has a bounded amount of work.

    >>> bool(max(map(len, RegularisedBernoulliCode(100, expected_load=3).assignment)) <= 6)
    True
    """

    @property
    def spec(self) -> str:
        return "r" + super().spec

    def __post_init__(self) -> None:
        super().__post_init__()
        self._resolve(_most=2 * self.expected_load)


@value_class
class StochasticBlockCode(_RandomCode):
    """Stochastic block code (SBC): communities of workers and partitions, dense inside, sparse across.

    Workers and partitions are cut into communities of ``block``; a worker holds a partition of its own community with
    probability ``inside`` and any other with ``outside`` (Charles and Papailiopoulos 2018). ``inside=1`` and
    ``outside=0`` is fractional repetition, ``inside = outside`` is ``bgc``. Workers and partitions are relabelled at
    random, so that an adversary does not know the communities.

    ``expected_load`` (``load`` in a spec) is the mean number of partitions of a worker, ``d = block inside +
    (m - block) outside``; give it or ``outside``, as each determines the other. By default it is about log n, and
    ``block`` the same. Raises :class:`~anyk.BadInput` for values that no probabilities satisfy.

    >>> code = StochasticBlockCode(100, block=10, inside=0.8, outside=0.02)
    >>> round(code.expected_load, 9), round(code.drawn_error(70), 3)
    (9.8, 7.472)
    """

    workers: int
    expected_load: float = LEFT_OUT
    block: int = LEFT_OUT
    inside: PositiveShare = 0.8
    outside: float = LEFT_OUT
    seed: int = 0

    def __post_init__(self) -> None:
        n = check_workers(self.workers)
        if self.expected_load is not LEFT_OUT and self.outside is not LEFT_OUT:
            raise BadInput("sbc takes load=… or outside=…, not both; one follows from the other")
        load = float(usual_load(n) if self.expected_load is LEFT_OUT else self.expected_load)
        if not 0 < load <= n:
            raise BadInput(f"sbc:load={load:g} does not exist for {n} partitions; load must be above 0 and at most {n}")
        block = min(n, max(1, round(load))) if self.block is LEFT_OUT else self.block
        check_range("block of 'sbc'", block, 1, n, " workers")
        outside = self.outside
        if outside is LEFT_OUT:
            outside = (load - block * self.inside) / (n - block) if block < n else 0.0
            if outside > -1e-12 or self.block is LEFT_OUT:
                outside = max(outside, 0.0)
            else:
                raise BadInput(
                    f"sbc:load={load:g},block={block} does not exist: with inside={self.inside:g} a worker holds "
                    f"{block * self.inside:g} of its own community alone; lower block or inside"
                )
        if not 0 <= outside <= self.inside:
            raise BadInput(
                f"sbc:outside={outside:.3g} must be between 0 and inside ({self.inside:g}); a block of "
                f"{min(n, max(1, int(load / self.inside)))} holds that load"
            )
        self._resolve(block=block, outside=outside)
        inner = sum(size * size for size in self._sizes) / n  # partitions of a worker's own community, on average
        self._resolve(expected_load=inner * self.inside + (n - inner) * outside)

    @property
    def _sizes(self) -> list[int]:
        """Sizes of the communities; the last one may be smaller."""
        n, block = self.workers, self.block
        return [min(block, n - start) for start in range(0, n, block)]

    @property
    def spec(self) -> str:
        values = {"block": self.block, "inside": self.inside, "outside": self.outside, "seed": self.seed}
        return show_spec("sbc", values, {"seed": 0})

    @fixed_property
    def communities(self) -> tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]:
        """Workers and partitions of each community, relabelled at random."""
        n, block = self.workers, self.block
        random = keyed_generator(self.seed, "sbc-labels", n, block)
        workers, partitions = random.permutation(n).tolist(), random.permutation(n).tolist()
        return tuple((tuple(workers[a : a + block]), tuple(partitions[a : a + block])) for a in range(0, n, block))

    def _matrix(self) -> SparseMatrix:
        n = self.workers
        random = keyed_generator(self.seed, "sbc", n, self.block)
        assignment: list[list[int]] = [[] for _ in range(n)]
        for workers, community_partitions in self.communities:
            others = np.setdiff1d(np.arange(n), community_partitions).tolist()
            for chance, partitions in ((self.inside, community_partitions), (self.outside, others)):
                samples = _sample_rows(random, len(workers), len(partitions), chance)
                for worker, sample in zip(workers, samples, strict=True):
                    assignment[worker] += [partitions[j] for j in sample]
        return self._complete(assignment, random)

    def drawn_error(self, replies: int) -> float:
        """Return ``m (m / (r d))^2 V``, the mean error of one-step decoding over seeds.

        ``V = q p (1 - p) + (r - q) o (1 - o) + (p - o)^2 v`` with p inside, o outside, ``q = r b / m`` and
        ``v = q (1 - b/m) (m - r) / (m - 1)`` for communities of b (Charles and Papailiopoulos 2018). If the last
        community is smaller, each counts with its own b, and with the square of its bias.
        """
        self._check_count(replies)
        m, d = self.partitions, self.expected_load
        p, o = self.inside, self.outside
        total = 0.0
        for b in self._sizes:
            share = replies * b / m
            spread = share * (1 - b / m) * (m - replies) / (m - 1) if m > 1 else 0.0
            variance = share * p * (1 - p) + (replies - share) * o * (1 - o) + (p - o) ** 2 * spread
            total += b * ((m / (replies * d)) ** 2 * variance + ((b * p + (m - b) * o) / d - 1.0) ** 2)
        return total
