"""Straggler models: sets of straggler patterns, as objects that check, sample and fit patterns.

A pattern is a boolean array, shape (rounds, workers), true if a worker straggles in a round.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from anyk.base.checks import AtLeastOne, AtLeastZero, check_range, typed
from anyk.base.errors import BadInput
from anyk.base.keyed import keyed_generator, keyed_uniforms
from anyk.base.registries import Registry
from anyk.base.specs import show_spec

Pattern = NDArray[np.bool_]
Chance = Annotated[float, msgspec.Meta(gt=0, le=1)]


class StragglerModel(ABC):
    """A set of patterns."""

    name: str = ""

    @property
    def spec(self) -> str:
        """Text from which :data:`registry` builds the model again."""
        return show_spec(self.name, vars(self))

    def load_bound(self, workers: int) -> float | None:
        """Return the least relative load of any code that completes a job per round under all patterns of the model.

        In a pattern that is repeated without end, the jobs of a period must each be computed at least once by the
        workers that do not straggle in it (the lower bound of Krishnan, Ebrahimi and Khisti 2023); jobs may end
        arbitrarily late. None for a model without such a pattern; inf if no load suffices.

        >>> bound = Bursty(burst=1, window=2, most=27).load_bound(256)
        >>> round(bound or 0, 7)  # m-sgc:B=1,W=2,lambda=27 has 0.0075431
        0.0041237
        """
        period, present = self._busiest(workers)
        return None if not period else period / present if present else float("inf")

    def _busiest(self, workers: int) -> tuple[int, int]:
        """Return the rounds of a pattern that can be repeated without end, and its worker-rounds without stragglers."""
        return 0, 0

    @abstractmethod
    def _allows(self, pattern: Pattern, row: int) -> bool:
        """Return whether the pattern conforms up to ``row``, given that it does up to the row before."""

    def conforms(self, pattern: ArrayLike) -> bool:
        """Return whether a pattern, shape (rounds, workers), belongs to the model."""
        table = _table(pattern)
        return all(self._allows(table, row) for row in range(len(table)))

    def draw(self, rounds: int, workers: int, *, seed: int = 0, density: float = 0.5) -> Pattern:
        """Return a random pattern of the model: stragglers are tried in random order, and kept if they conform.

        ``density`` is the share of workers tried in a round.

        >>> pattern = Bursty(2, 3, 2).draw(20, 6, seed=1)
        >>> Bursty(2, 3, 2).conforms(pattern), pattern.any()
        (True, np.True_)
        """
        random = keyed_generator(seed, "pattern", self.spec, rounds, workers)
        table = np.zeros((rounds, workers), dtype=bool)
        for row in range(rounds):
            for worker in random.permutation(workers):
                if random.random() < density:
                    table[row, worker] = True
                    if not self._allows(table, row):
                        table[row, worker] = False
        return table


def _table(pattern: ArrayLike) -> Pattern:
    table = np.asarray(pattern, dtype=bool)
    if table.ndim != 2:
        raise BadInput(f"a pattern is a table of rounds x workers, got shape {table.shape}")
    return table


@typed
@dataclass(frozen=True)
class PerRound(StragglerModel):
    """At most ``s`` stragglers in a round."""

    s: AtLeastZero
    name = "per-round"

    def _busiest(self, workers: int) -> tuple[int, int]:
        return 1, max(0, workers - self.s)

    def _allows(self, pattern: Pattern, row: int) -> bool:
        return int(pattern[row].sum()) <= self.s


@typed
@dataclass(frozen=True)
class Bursty(StragglerModel):
    """(B, W, lambda)-bursty (Krishnan, Ebrahimi and Khisti 2023).

    In any ``window`` of W rounds at most ``most`` (lambda) workers straggle, each within ``burst`` (B) rounds.
    """

    burst: AtLeastOne
    window: int
    most: AtLeastZero
    name = "bursty"

    def __post_init__(self) -> None:
        check_range("burst of 'bursty'", self.burst, 1, self.window - 1, " (window - 1)")

    def _busiest(self, workers: int) -> tuple[int, int]:
        """Return both numbers for bursts of ``most`` workers, window - 1 rounds without stragglers apart."""
        quiet = self.window - 1
        return quiet + self.burst, quiet * workers + self.burst * (workers - min(self.most, workers))

    def _allows(self, pattern: Pattern, row: int) -> bool:
        start = max(0, row + 1 - self.window)
        if pattern[start : row + 1].any(axis=0).sum() > self.most:
            return False
        return not (pattern[start : max(start, row + 1 - self.burst)].any(axis=0) & pattern[row]).any()


@typed
@dataclass(frozen=True)
class Arbitrary(StragglerModel):
    """(N, W', lambda')-arbitrary: in any ``window`` at most ``most`` stragglers, each in at most ``times`` rounds."""

    times: AtLeastZero
    window: AtLeastOne
    most: AtLeastZero
    name = "arbitrary"

    def _busiest(self, workers: int) -> tuple[int, int]:
        times = min(self.times, self.window)
        return self.window, self.window * workers - times * min(self.most, workers)

    def _allows(self, pattern: Pattern, row: int) -> bool:
        counts = pattern[max(0, row + 1 - self.window) : row + 1].sum(axis=0)
        return bool(np.count_nonzero(counts) <= self.most and counts.max(initial=0) <= self.times)


@typed
@dataclass(frozen=True)
class GilbertElliott(StragglerModel):
    """A Markov chain of each worker: it fails with probability ``fail`` per round, and recovers with ``recover``.

    It starts in the stationary distribution: a worker straggles with probability fail / (fail + recover), for
    1 / recover rounds on average, with lag-1 autocorrelation 1 - fail - recover. All patterns are possible and conform.

    >>> model = GilbertElliott(fail=0.05, recover=0.25)
    >>> round(model.share, 7), model.burst, round(model.correlation, 3)
    (0.1666667, 4.0, 0.7)
    """

    fail: Chance
    recover: Chance
    name = "gilbert-elliott"

    @property
    def share(self) -> float:
        """Share of rounds in which a worker straggles."""
        return self.fail / (self.fail + self.recover)

    @property
    def burst(self) -> float:
        """Mean number of rounds of a burst."""
        return 1.0 / self.recover

    @property
    def correlation(self) -> float:
        """Correlation between one round and the next."""
        return 1.0 - self.fail - self.recover

    def _allows(self, pattern: Pattern, row: int) -> bool:
        return True

    def draw(self, rounds: int, workers: int, *, seed: int = 0, density: float = 0.5) -> Pattern:
        """Return a pattern sampled from the chain; ``density`` is ignored."""
        draws = np.stack(
            [keyed_uniforms(seed, "gilbert-elliott", worker, start=0, count=rounds) for worker in range(workers)],
            axis=1,
        )
        table = np.zeros((rounds, workers), dtype=bool)
        bad = draws[0] < self.share
        for row in range(rounds):
            if row:
                bad = np.where(bad, draws[row] >= self.recover, draws[row] < self.fail)
            table[row] = bad
        return table


def stragglers(seconds: ArrayLike, mu: float) -> Pattern:
    """Return the pattern of workers above ``1 + mu`` times the fastest; ``seconds``: shape (rounds, workers)."""
    times = np.asarray(seconds, dtype=np.float64)
    return np.asarray(times > (1.0 + mu) * times.min(axis=1, keepdims=True))


def smallest_bursty(pattern: ArrayLike, *, window: int) -> Bursty:
    """Return the bursty model with this window and the smallest ``burst`` and ``most`` to which a pattern conforms.

    >>> smallest_bursty([[1, 0, 0], [1, 0, 0], [0, 0, 1]], window=3)
    Bursty(burst=2, window=3, most=2)
    """
    table, burst = _table(pattern), 1
    for start in range(max(1, len(table) - window + 1)):
        rows = table[start : start + window]
        for worker in np.flatnonzero(rows.any(axis=0)):
            places = np.flatnonzero(rows[:, worker])
            burst = max(burst, int(places[-1] - places[0]) + 1)
    if burst > window - 1:
        raise BadInput(f"a worker straggles at both ends of a window of {window} rounds; take a larger window")
    return Bursty(burst, window, smallest_arbitrary(table, window=window).most)


def smallest_arbitrary(pattern: ArrayLike, *, window: int) -> Arbitrary:
    """Return the arbitrary model with this window and the smallest numbers to which a pattern conforms."""
    table = _table(pattern)
    counts = [table[start : start + window].sum(axis=0) for start in range(max(1, len(table) - window + 1))]
    return Arbitrary(int(np.max(counts, initial=0)), window, int(np.count_nonzero(counts, axis=1).max()))


registry: Registry[Any] = Registry("straggler model")
for _model in (PerRound, Bursty, Arbitrary, GilbertElliott):
    registry.register(_model.name)(_model)
