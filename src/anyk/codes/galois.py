"""Finite fields of small order, as tables."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import product

import numpy as np
from numpy.typing import NDArray

Table = NDArray[np.int64]


def prime_power(q: int) -> tuple[int, int] | None:
    """Return ``(p, e)`` with ``q = p^e`` and p prime, or None.

    >>> prime_power(9), prime_power(12)
    ((3, 2), None)
    """
    if q < 2:
        return None
    p = next((d for d in range(2, int(q**0.5) + 1) if q % d == 0), q)
    e = 1
    while p**e < q:
        e += 1
    return (p, e) if p**e == q else None


@dataclass(frozen=True)
class Field:
    """GF(q): elements 0 to q - 1 (digits base p are polynomial coefficients), with tables of sums and products."""

    order: int
    plus: Table
    times: Table

    @property
    def squares(self) -> frozenset[int]:
        """Squares except 0."""
        return frozenset(np.diagonal(self.times)[1:].tolist())


@cache
def field(q: int) -> Field:
    """Return the field of prime power order ``q``, by the first polynomial that gives every element an inverse.

    >>> field(4).times.tolist()
    [[0, 0, 0, 0], [0, 1, 2, 3], [0, 2, 3, 1], [0, 3, 1, 2]]
    """
    power = prime_power(q)
    if power is None:
        raise ValueError(f"there is no field of order {q}: it is no prime power")
    p, e = power
    digits = np.array([[a // p**i % p for i in range(e)] for a in range(q)], dtype=np.int64)
    weights = p ** np.arange(e)
    plus = ((digits[:, None, :] + digits[None, :, :]) % p) @ weights
    for low in product(range(p), repeat=e):  # x^e = -(low_0 + low_1 x + …)
        long = np.zeros((q, q, 2 * e - 1), dtype=np.int64)
        for i in range(e):
            for j in range(e):
                long[:, :, i + j] += digits[:, None, i] * digits[None, :, j]
        for top in range(2 * e - 2, e - 1, -1):
            for i in range(e):
                long[:, :, top - e + i] -= low[i] * long[:, :, top]
        times = (long[:, :, :e] % p) @ weights
        if (np.sort(times[1:, 1:], axis=1) == np.arange(1, q)).all():
            return Field(q, plus, times)
    raise AssertionError(f"no irreducible polynomial of degree {e} over GF({p})")
