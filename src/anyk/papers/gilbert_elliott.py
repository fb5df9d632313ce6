"""Stragglers in bursts, as the papers on sequential codes sample them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from anyk import keyed
from anyk.checks import PositiveShare, typed


@typed
@dataclass(frozen=True)
class GilbertElliott:
    """A Markov chain of each worker: it fails with probability ``fail`` per round, and recovers with ``recover``.

    It starts in the stationary distribution: a worker straggles with probability fail / (fail + recover), for
    1 / recover rounds on average, with lag-1 autocorrelation 1 - fail - recover.

    >>> model = GilbertElliott(fail=0.05, recover=0.25)
    >>> round(model.share, 7), model.burst, round(model.correlation, 3)
    (0.1666667, 4.0, 0.7)
    """

    fail: PositiveShare
    recover: PositiveShare

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

    def draw(self, rounds: int, workers: int, *, seed: int = 0) -> NDArray[np.bool_]:
        """Return a pattern sampled from the chain, shape (rounds, workers), true if a worker straggles in a round."""
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
