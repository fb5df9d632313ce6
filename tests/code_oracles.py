"""Answers computed another way: whole-number and rational arithmetic, dense least squares, and a code of any matrix."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, cached_property
from itertools import chain, combinations
from math import comb
from typing import Any

import numpy as np

from anyk import codes
from anyk.codes import Code


@cache
def made(spec: str, workers: int) -> Code:
    """A code, built once for all tests."""
    return codes.code(spec, workers=workers)


def dense(code: Code) -> np.ndarray:
    return code.encoding.toarray()


def subsets(items: Iterable[int], least: int = 0, most: int | None = None) -> Iterator[tuple[int, ...]]:
    chosen = list(items)
    sizes = range(least, (len(chosen) if most is None else most) + 1)
    return chain.from_iterable(combinations(chosen, size) for size in sizes)


@cache
def spans_ones(rows: frozenset[tuple[int, ...]]) -> bool:
    """Whether some rational combination of the rows is all ones: Gaussian elimination without rounding."""
    if not rows:
        return False
    left = [list(map(Fraction, row)) for row in rows]
    target = [Fraction(1)] * len(left[0])
    for column in range(len(target)):
        pivot = next((row for row in left if row[column]), None)
        if pivot is None:
            if target[column]:
                return False
            continue
        left.remove(pivot)
        for row in [*left, target]:
            factor = row[column] / pivot[column]
            if factor:
                row[:] = [a - factor * b for a, b in zip(row, pivot, strict=True)]
    return not any(target)


def least_squares(code: Code, replies: Sequence[int]) -> tuple[np.ndarray, float]:
    """Weights of smallest norm and the residual, by NumPy on the dense matrix."""
    weights = np.zeros(code.replies)
    if len(replies):
        B = dense(code)[list(replies)]
        weights[list(replies)] = np.linalg.lstsq(B.T, np.ones(code.partitions), rcond=None)[0]
    return weights, float(np.sqrt(((weights @ dense(code) - 1.0) ** 2).mean()))


def lost_chance(n: int, size: int, replies: int) -> Fraction:
    """p: the chance that all ``size`` members of a group are among the workers that did not reply."""
    return Fraction(comb(n - size, replies), comb(n, replies))


def harmonic(n: int) -> Fraction:
    return sum((Fraction(1, i) for i in range(1, n + 1)), Fraction(0))


@dataclass(frozen=True)
class AnyMatrix(Code):
    """A code given by its matrix; nothing is known of it, so the base class decodes it."""

    workers: int
    matrix: tuple[tuple[float, ...], ...]
    tolerates: Any = 0

    @property
    def spec(self) -> str:
        return "any-matrix"

    @property
    def partitions(self) -> int:
        return len(self.matrix[0])

    @cached_property
    def rows(self) -> Any:
        held = [tuple(j for j, value in enumerate(row) if value) for row in self.matrix]
        return tuple((p, tuple(float(row[j]) for j in p)) for p, row in zip(held, self.matrix, strict=True))
