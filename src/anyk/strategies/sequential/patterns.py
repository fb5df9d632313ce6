"""Straggler models: which workers may straggle in which rounds, as objects that check, draw and fit patterns.

A pattern is a boolean table, rounds x workers, true where a worker straggles.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from anyk import keyed
from anyk.checks import AtLeastOne, AtLeastZero, typed
from anyk.errors import BadInput
from anyk.specs import Registry, show

Pattern = NDArray[np.bool_]
Chance = Annotated[float, msgspec.Meta(gt=0, le=1)]


class StragglerModel(ABC):
    """A set of patterns."""

    name: str = ""

    @property
    @abstractmethod
    def spec(self) -> str:
        """The model as text, from which :data:`registry` builds it again."""

    def load_bound(self, workers: int) -> float | None:
        """Least relative load of any code that does one job a round whatever pattern of the model comes.

        A pattern repeated without end leaves so many rounds of workers in each period, in which as many jobs as the
        period has rounds must be computed at least once each (the lower bound of Krishnan, Ebrahimi and Khisti 2023);
        jobs may end as late as they like. None for a model without such a pattern; inf where no load suffices.

        >>> bound = Bursty(burst=1, window=2, most=27).load_bound(256)
        >>> round(bound or 0, 7)  # m-sgc:B=1,W=2,lambda=27 has 0.0075431
        0.0041237
        """
        period, present = self._busiest(workers)
        return None if not period else period / present if present else float("inf")

    def _busiest(self, workers: int) -> tuple[int, int]:
        """Rounds of a pattern that can be repeated without end, and worker-rounds in it without a straggler."""
        return 0, 0

    @abstractmethod
    def _allows(self, pattern: Pattern, row: int) -> bool:
        """Whether the pattern conforms as far as row, if it did up to the row before."""

    def conforms(self, pattern: ArrayLike) -> bool:
        """Whether a pattern, rounds x workers, is one of the model's."""
        table = _table(pattern)
        return all(self._allows(table, row) for row in range(len(table)))

    def draw(self, rounds: int, workers: int, *, seed: int = 0, density: float = 0.5) -> Pattern:
        """A random pattern of the model: stragglers are tried one by one, round by round, and kept where they conform.

        ``density`` is the share of workers tried in a round.

        >>> made = Bursty(2, 3, 2).draw(20, 6, seed=1)
        >>> Bursty(2, 3, 2).conforms(made), made.any()
        (True, np.True_)
        """
        random = keyed.generator(seed, "pattern", self.spec, rounds, workers)
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

    @property
    def spec(self) -> str:
        return show(self.name, {"s": self.s})

    def _busiest(self, workers: int) -> tuple[int, int]:
        return 1, max(0, workers - self.s)

    def _allows(self, pattern: Pattern, row: int) -> bool:
        return int(pattern[row].sum()) <= self.s


@typed
@dataclass(frozen=True)
class Bursty(StragglerModel):
    """(B, W, lambda)-bursty (Krishnan, Ebrahimi and Khisti 2023).

    In any ``window`` W of rounds at most ``most`` lambda workers straggle, and each of them within ``burst`` B rounds.
    """

    burst: AtLeastOne
    window: int
    most: AtLeastZero
    name = "bursty"

    def __post_init__(self) -> None:
        if self.burst > self.window - 1:
            raise BadInput(f"burst of 'bursty' must be 1 to window - 1 = {self.window - 1}, got {self.burst}")

    @property
    def spec(self) -> str:
        return show(self.name, {"burst": self.burst, "window": self.window, "most": self.most})

    def _busiest(self, workers: int) -> tuple[int, int]:
        """Bursts of as many workers as may straggle, with window - 1 rounds between them."""
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

    @property
    def spec(self) -> str:
        return show(self.name, {"times": self.times, "window": self.window, "most": self.most})

    def _busiest(self, workers: int) -> tuple[int, int]:
        times = min(self.times, self.window)
        return self.window, self.window * workers - times * min(self.most, workers)

    def _allows(self, pattern: Pattern, row: int) -> bool:
        counts = pattern[max(0, row + 1 - self.window) : row + 1].sum(axis=0)
        return bool(np.count_nonzero(counts) <= self.most and counts.max(initial=0) <= self.times)


@typed
@dataclass(frozen=True)
class GilbertElliott(StragglerModel):
    """Each worker goes from good to bad with chance ``fail`` a round and back with ``recover``; starts stationary.

    Any pattern has some chance, so all conform; bad with chance fail / (fail + recover), for 1 / recover rounds on
    average, with lag-1 autocorrelation 1 - fail - recover.

    >>> model = GilbertElliott(fail=0.05, recover=0.25)
    >>> round(model.share, 7), model.burst, round(model.correlation, 3)
    (0.1666667, 4.0, 0.7)
    """

    fail: Chance
    recover: Chance
    name = "gilbert-elliott"

    @property
    def spec(self) -> str:
        return show(self.name, {"fail": self.fail, "recover": self.recover})

    @property
    def share(self) -> float:
        """The share of rounds in which a worker straggles."""
        return self.fail / (self.fail + self.recover)

    @property
    def burst(self) -> float:
        """Mean rounds of a burst."""
        return 1.0 / self.recover

    @property
    def correlation(self) -> float:
        """The correlation between one round and the next."""
        return 1.0 - self.fail - self.recover

    def _allows(self, pattern: Pattern, row: int) -> bool:
        return True

    def draw(self, rounds: int, workers: int, *, seed: int = 0, density: float = 0.5) -> Pattern:
        """A pattern drawn from the chain; ``density`` does not matter."""
        draws = np.stack(
            [keyed.uniforms(seed, "gilbert-elliott", worker, start=0, count=rounds) for worker in range(workers)],
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
    """Return which workers take more than ``1 + mu`` times the fastest of the round; ``seconds``: rounds x workers."""
    times = np.asarray(seconds, dtype=np.float64)
    return np.asarray(times > (1.0 + mu) * times.min(axis=1, keepdims=True))


def smallest_bursty(pattern: ArrayLike, *, window: int) -> Bursty:
    """The bursty model with this window, and the least burst and then most workers, that a pattern conforms to.

    >>> smallest_bursty([[1, 0, 0], [1, 0, 0], [0, 0, 1]], window=3)
    Bursty(burst=2, window=3, most=2)
    """
    table = _table(pattern)
    burst, most = 1, 0
    for start in range(max(1, len(table) - window + 1)):
        rows = table[start : start + window]
        most = max(most, int(rows.any(axis=0).sum()))
        for worker in np.flatnonzero(rows.any(axis=0)):
            places = np.flatnonzero(rows[:, worker])
            burst = max(burst, int(places[-1] - places[0]) + 1)
    if burst > window - 1:
        raise BadInput(f"a worker straggles at both ends of a window of {window} rounds; take a larger window")
    return Bursty(burst, window, most)


def smallest_arbitrary(pattern: ArrayLike, *, window: int) -> Arbitrary:
    """The arbitrary model with this window and the least numbers that a pattern conforms to."""
    table = _table(pattern)
    times = most = 0
    for start in range(max(1, len(table) - window + 1)):
        counts = table[start : start + window].sum(axis=0)
        times, most = max(times, int(counts.max(initial=0))), max(most, int(np.count_nonzero(counts)))
    return Arbitrary(times, window, most)


registry: Registry[Any] = Registry("straggler model")
for _model in (PerRound, Bursty, Arbitrary, GilbertElliott):
    registry.register(_model.name)(_model)
