"""Uneven splits of labelled data into partitions."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated

import msgspec
import numpy as np

from anyk import keyed
from anyk.arrays import Array
from anyk.checks import value_class
from anyk.errors import BadInput
from anyk.problems.base import Ends, Index
from anyk.specs import Registry, show

splits: Registry[Dirichlet] = Registry("split")


@splits.register("dirichlet")
@value_class
class Dirichlet:
    """Partitions that differ in their labels: the shares of the classes follow a Dirichlet distribution.

    The shares of the C classes in a partition are sampled from ``Dir(alpha C p)``, where p are the shares in the rows
    that no earlier partition has: ``Dir(alpha, …, alpha)`` if classes are equally frequent. With a large ``alpha`` all
    partitions have the same labels, with a small one most have one or two. When a class has no rows left, rows of other
    classes replace it, so the last partitions are more mixed. Sizes stay even, or in the proportions that a strategy
    requests, and each row is in one partition: the objective is the same. (After Hsu, Qi and Brown 2019.)

    >>> Dirichlet(alpha=0.3, seed=1).spec
    'dirichlet:alpha=0.3,seed=1'
    """

    alpha: Annotated[float, msgspec.Meta(ge=1e-6, le=1e6)]
    seed: int = 0

    @property
    def spec(self) -> str:
        """The spec that builds this split."""
        return show("dirichlet", {"alpha": self.alpha, "seed": self.seed}, {"seed": 0})

    @property
    def digest_arrays(self) -> tuple[Array, ...]:
        """The arrays that the split adds to the digest of a problem's data."""
        return (np.array(self.spec),)

    def order(self, labels: Array, ends: Ends) -> Index:
        """Return all rows in the order of their partitions, shape (rows,).

        ``labels``: shape (rows,). ``ends``: the start of each partition and the end of the last, shape
        (partitions + 1,).
        """
        _, codes, counts = np.unique(labels, return_inverse=True, return_counts=True)
        rows = [
            keyed.generator(self.seed, "dirichlet rows", c).permutation(np.flatnonzero(codes.reshape(-1) == c))
            for c in range(len(counts))
        ]
        used, partitions = np.zeros_like(counts), []
        for j, (a, b) in enumerate(pairwise(ends.tolist())):
            amounts = _sample_amounts(self.alpha, counts - used, b - a, keyed.generator(self.seed, "dirichlet", j))
            own = [rows[c][used[c] : used[c] + number] for c, number in enumerate(amounts.tolist())]
            partitions.append(np.sort(np.concatenate(own)))
            used += amounts
        return np.concatenate(partitions).astype(np.intp)


def _sample_amounts(alpha: float, unused: Array, size: int, random: np.random.Generator) -> Array:
    """Return the number of rows of each class in a partition of ``size`` rows, at most the ``unused`` ones."""
    shares, amounts = np.zeros(len(unused)), np.zeros_like(unused)
    shares[unused > 0] = random.dirichlet(alpha * len(unused) * unused[unused > 0] / unused.sum())
    while (missing := size - int(amounts.sum())) > 0:
        available = unused - amounts
        weights = shares * (available > 0)
        if not weights.sum() > 0.0:  # all rows of its classes are used
            weights = available.astype(float)
        # rounded up or down at random, so that expected values and the sum do not change
        ends = np.floor(np.cumsum(missing * weights / weights.sum()) + random.random())
        amounts += np.minimum(available, np.diff(np.minimum(ends, missing), prepend=0.0).astype(unused.dtype))
    return amounts


def build_split(split: Dirichlet | str | None, unlabelled: str | None) -> Dirichlet | None:
    """Return the split; raise BadInput if a problem has no labels, for the reason ``unlabelled``."""
    built = splits.build(split) if isinstance(split, str) else split
    if built is not None and unlabelled is not None:
        raise BadInput(f"split={built.spec} needs labels, and {unlabelled}; leave split out")
    return built
