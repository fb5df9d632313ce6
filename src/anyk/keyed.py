"""Random draws as pure functions of (seed, purpose, ids).

No draw depends on which draws were made before it, so two strategies, a simulation and a real cluster, or a run and
its resumption meet the same luck. The bits come from NumPy's Philox, a counter-based generator (Salmon, Moraes, Dror
and Shaw 2011), keyed by a BLAKE2 hash of the key: the same on every machine.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

_BLOCK = 256  # uniforms made at once for one key; a block of Philox costs about as much as a single draw


def _key(seed: int, purpose: str, ids: tuple[int | str, ...]) -> int:
    text = "\x1f".join([str(int(seed)), purpose, *map(str, ids)])
    return int.from_bytes(blake2b(text.encode(), digest_size=16).digest(), "little")


@lru_cache(maxsize=4096)
def _block(seed: int, purpose: str, ids: tuple[int | str, ...], block: int) -> NDArray[np.float64]:
    # Philox yields four 64-bit words a count; the counter starts where this block's words do.
    bits = np.random.Philox(key=_key(seed, purpose, ids), counter=block * (_BLOCK // 4))
    draws = (bits.random_raw(_BLOCK) >> np.uint64(11)).astype(np.float64) * 2.0**-53
    draws.flags.writeable = False
    return draws


def uniform(seed: int, purpose: str, *ids: int | str, number: int) -> float:
    """The ``number``-th uniform draw in [0, 1) under the key ``(seed, purpose, *ids)``.

    >>> uniform(1, "delay", 3, number=0) == uniform(1, "delay", 3, number=0)
    True
    >>> uniform(1, "delay", 3, number=0) == uniform(1, "delay", 4, number=0)
    False
    """
    block, offset = divmod(number, _BLOCK)
    return float(_block(seed, purpose, ids, block)[offset])


def uniforms(seed: int, purpose: str, *ids: int | str, start: int, count: int) -> NDArray[np.float64]:
    """Draws ``start`` to ``start + count - 1`` under a key, shape ``(count,)``; equal to :func:`uniform` one by one."""
    first, last = start // _BLOCK, (start + max(count, 1) - 1) // _BLOCK
    blocks = np.concatenate([_block(seed, purpose, ids, b) for b in range(first, last + 1)])
    return blocks[start - first * _BLOCK :][:count]


def generator(seed: int, purpose: str, *ids: int | str) -> np.random.Generator:
    """A fresh NumPy generator for arrays of draws; the same key gives a generator in the same state."""
    return np.random.Generator(np.random.Philox(key=_key(seed, purpose, ids)))


def integer(seed: int, purpose: str, *ids: int | str) -> int:
    """A whole number from 0 to 2**63 - 1 that belongs to a key: a seed for generators that are not NumPy's own.

    >>> integer(1, "item", 3) == integer(1, "item", 3) != integer(1, "item", 4)
    True
    """
    return _key(seed, purpose, ids) >> 65


def digest(array: NDArray[Any]) -> int:
    """What tells arrays apart: the wrapping sum of their words of 8 bytes, or of 4 where they are of 4; 63 bits.

    >>> digest(np.array([1.0, 2.0])) == digest(np.array([1.0, 2.0 + 1e-15]))
    False
    """
    words = array.view(np.uint32 if array.itemsize == 4 else np.uint64)
    return int(np.add.reduce(words, dtype=np.uint64)) & 0x7FFF_FFFF_FFFF_FFFF  # signed, as SQLite's integers are
