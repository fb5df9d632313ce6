"""Uneven splits: which rows of labelled data are in which partition, by name."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anyk import keyed
from anyk.checks import typed
from anyk.errors import BadInput
from anyk.problems.base import Index
from anyk.specs import Registry, show

splits: Registry[Dirichlet] = Registry("split")


@splits.register("dirichlet")
@typed
@dataclass(frozen=True)
class Dirichlet:
    """Partitions differ in their labels: each has its own shares of them, drawn from a Dirichlet law.

    The shares of the C classes in a partition are drawn from ``Dir(alpha C p)``, p being those in the rows that are not
    in a partition before it: ``Dir(alpha, …, alpha)`` where they are equally frequent. A large ``alpha`` gives all
    partitions the same labels, a small one leaves most with one or two. Where a class has no rows left the others make
    up for it, so that the last partitions are more mixed. Sizes stay even, or in proportion to what a strategy asks
    for, and each row is in one partition: the objective is the same. (After Hsu, Qi and Brown 2019.)

    >>> Dirichlet(alpha=0.3, seed=1).spec
    'dirichlet:alpha=0.3,seed=1'
    """

    alpha: float
    seed: int = 0

    def __post_init__(self) -> None:
        if not 1e-6 <= self.alpha <= 1e6:
            raise BadInput(f"alpha of 'dirichlet' must be from 1e-6 to 1e6, got {self.alpha:g}")

    @property
    def spec(self) -> str:
        """The short form."""
        return show("dirichlet", {"alpha": self.alpha, "seed": self.seed}, {"seed": 0})

    @property
    def told(self) -> tuple[NDArray[Any], ...]:
        """The arrays that the split adds to the digest of a problem's data."""
        return (np.array(self.spec),)

    def order(self, labels: NDArray[Any], ends: NDArray[np.int64]) -> Index:
        """All rows in the order of their partitions: those from ``ends[j]`` on are partition j's; shape (rows,).

        ``labels``: shape (rows,). ``ends``: where partitions begin and the last one ends, shape (partitions + 1,).
        """
        _, of, counts = np.unique(labels, return_inverse=True, return_counts=True)
        rows = [
            keyed.generator(self.seed, "dirichlet rows", c).permutation(np.flatnonzero(of.reshape(-1) == c))
            for c in range(len(counts))
        ]
        used, chosen_rows = np.zeros_like(counts), []
        for j, (a, b) in enumerate(pairwise(ends.tolist())):
            amounts = _taken(self.alpha, counts - used, b - a, keyed.generator(self.seed, "dirichlet", j))
            own = [rows[c][used[c] : used[c] + number] for c, number in enumerate(amounts.tolist())]
            chosen_rows.append(np.sort(np.concatenate(own)))
            used += amounts
        return np.concatenate(chosen_rows).astype(np.intp)


def _taken(alpha: float, left: NDArray[Any], size: int, random: np.random.Generator) -> NDArray[Any]:
    """Return the number of rows of each class, from those ``left``, in a partition of ``size`` rows."""
    shares, amounts = np.zeros(len(left)), np.zeros_like(left)
    shares[left > 0] = random.dirichlet(alpha * len(left) * left[left > 0] / left.sum())
    while (missing := size - int(amounts.sum())) > 0:
        there = left - amounts
        wanted = shares * (there > 0)
        if not wanted.sum() > 0.0:  # none of its classes has rows left
            wanted = there.astype(np.float64)
        # rounded up or down such that means and their sum stay right
        ends = np.floor(np.cumsum(missing * wanted / wanted.sum()) + random.random())
        amounts += np.minimum(there, np.diff(np.minimum(ends, missing), prepend=0.0).astype(left.dtype))
    return amounts


def checked(split: Dirichlet | str | None, kind: str | None) -> Dirichlet | None:
    """A split as asked for; ``kind`` says what a problem without labels has in their place, and is None of others."""
    built = splits.build(split) if isinstance(split, str) else split
    if built is not None and kind is not None:
        raise BadInput(f"split={built.spec} needs labels, and {kind}; leave split out")
    return built
