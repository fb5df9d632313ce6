"""Batched coupon collector: every worker picks a batch of the data without coordination."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from anyk import keyed
from anyk.checks import typed
from anyk.codes.base import RegisteredCode, check_workers
from anyk.codes.made import fixed_property
from anyk.codes.repetition import RepetitionCode
from anyk.errors import BadInput


@typed
@dataclass(frozen=True)
class BatchedCoupons(RegisteredCode, RepetitionCode):
    """Batched coupon collector (BCC): each worker takes one of ``batches`` batches of the data at random.

    The step is taken when every batch has arrived: fractional repetition with random group sizes and no
    coordination (Li, Mousavi Kalan, Avestimehr and Soltanolkotabi 2018). With many workers about ``b H_b`` replies are
    needed. With probability ``sum_i (-1)^(i+1) C(b, i) (1 - i/b)^n`` some batch would be picked by no worker: here a
    worker of the largest group then takes it.

    ``batches`` is by default the largest b with ``b H_b`` at most three quarters of the workers. Raises
    :class:`~anyk.errors.BadInput` unless it is between 1 and the number of workers. The data has as many partitions as
    workers.

    >>> code = BatchedCoupons(40, batches=10)
    >>> code.groups, round(code.expected_replies, 2)
    (10, 29.29)
    """

    workers: int
    batches: int | None = None
    seed: int = 0
    name = "bcc"

    def __post_init__(self) -> None:
        n = check_workers(self.workers)
        batches = self.batches
        if batches is None:
            batches = 1
            while (batches + 1) * _harmonic(batches + 1) <= 0.75 * n:
                batches += 1
        if not 1 <= batches <= n:
            raise BadInput(f"bcc:batches={batches} does not exist for {n} workers; batches must be 1 to {n}")
        self._resolve(batches=batches)

    @property
    def groups(self) -> int:
        """Number of groups, one for each batch."""
        return int(self.batches or 1)

    @property
    def expected_replies(self) -> float:
        """Mean number of replies needed if there are many workers: ``b H_b``."""
        return self.groups * _harmonic(self.groups)

    @fixed_property
    def members(self) -> tuple[tuple[int, ...], ...]:
        b = self.groups
        picks = keyed.generator(self.seed, "bcc", self.workers, b).integers(b, size=self.workers)
        counts = np.bincount(picks, minlength=b)
        for batch in np.flatnonzero(counts == 0).tolist():
            largest = int(counts.argmax())
            picks[np.flatnonzero(picks == largest)[-1]] = batch
            counts[largest] -= 1
            counts[batch] = 1
        return tuple(tuple(np.flatnonzero(picks == batch).tolist()) for batch in range(b))


def _harmonic(n: int) -> float:
    return float((1.0 / np.arange(1, n + 1)).sum())
