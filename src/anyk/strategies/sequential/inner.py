"""The code within a job, and the sets of workers that may be missing from its sum."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from anyk.arrays import Flags, Indices
from anyk.codes import Code, code
from anyk.codes.repetition import RepetitionCode
from anyk.errors import BadInput


@lru_cache(maxsize=64)
def inner_code(name: str, workers: int, tolerates: int) -> Code:
    """Return the code within a job, from which any ``tolerates`` workers may be missing."""
    if name == "auto":
        name = "frc" if workers % (tolerates + 1) == 0 else "cyclic"
    inner = code(f"{name}:stragglers={tolerates}", workers=workers)
    if inner.tolerates < tolerates or inner.partitions != workers or inner.messages != 1 or inner.blocks != 1:
        raise BadInput(
            f"inner={name} has no code of {workers} partitions that tolerates {tolerates} of {workers} workers"
        )
    return inner


@dataclass(frozen=True)
class Inner:
    """A code of ``workers`` partitions within each job that tolerates any ``tolerates`` missing workers.

    ``grouped``: a repetition code tolerates any missing workers that leave one of each group.

    >>> Inner("frc", 4, 1, grouped=True).bears(np.array([True, False, False, True]))
    True
    >>> Inner("frc", 4, 1, grouped=False).bears(np.array([True, False, False, True]))
    False
    """

    name: str
    workers: int
    tolerates: int
    grouped: bool

    @cached_property
    def code(self) -> Code:
        """The code."""
        return inner_code(self.name, self.workers, self.tolerates)

    @cached_property
    def group_of(self) -> Indices | None:
        """Group of each worker if groups count, else None."""
        if self.grouped and isinstance(self.code, RepetitionCode):
            return np.array(self.code.group_of, dtype=np.int64)
        return None

    def bears(self, missing: Flags) -> bool:
        """Return whether the sum is available without these workers; ``missing``: shape (workers,)."""
        if self.group_of is None:
            return int(missing.sum()) <= self.tolerates
        return len(np.unique(self.group_of[~missing])) == int(self.group_of[-1]) + 1
