"""Random numbers as pure functions of (seed, purpose, ids).

No draw depends on earlier draws, so two strategies, a simulation and a real cluster, or a run and its resumption get
the same random numbers. The bits come from NumPy's Philox, a counter-based generator (Salmon, Moraes, Dror and Shaw
2011), keyed by a BLAKE2 hash of the key: the same on every machine. So are the digests of arrays.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b

import numpy as np

from anyk.base.arrays import Array, Floats

PART = 1 << 17  # numbers of an array that are digested, and stepped, together: they fit into a core's cache
_LONG = 1 << 13  # bytes up to which everything is hashed
_COLUMNS = 511  # words in a row; odd, as the top bits (signs) of an even number of words would cancel out
POSITIVE = 0x7FFF_FFFF_FFFF_FFFF  # SQLite's integers are signed
_BLOCK = 256  # uniforms computed together for one key; a block of Philox costs about as much as a single draw


def _key(seed: int, purpose: str, ids: tuple[int | str, ...]) -> int:
    joined = "\x1f".join([str(int(seed)), purpose, *map(str, ids)])
    return int.from_bytes(blake2b(joined.encode(), digest_size=16).digest(), "little")


@lru_cache(maxsize=4096)
def _recent(seed: int, purpose: str, ids: tuple[int | str, ...]) -> dict[int, Floats]:
    """Return the last blocks of a key, at most two, by number."""
    del seed, purpose, ids
    return {}


def _block(seed: int, purpose: str, ids: tuple[int | str, ...], block: int) -> Floats:
    recent = _recent(seed, purpose, ids)
    if block in recent:
        return recent[block]
    if len(recent) > 1:
        del recent[next(iter(recent))]
    # Philox yields four 64-bit words a count; the counter starts where this block's words do.
    bits = np.random.Philox(key=_key(seed, purpose, ids), counter=block * (_BLOCK // 4))
    draws = (bits.random_raw(_BLOCK) >> np.uint64(11)).astype(np.float64) * 2.0**-53
    draws.flags.writeable = False
    recent[block] = draws
    return draws


def keyed_uniform(seed: int, purpose: str, *ids: int | str, number: int) -> float:
    """Return the ``number``-th uniform draw in [0, 1) under the key ``(seed, purpose, *ids)``.

    >>> keyed_uniform(1, "delay", 3, number=0) == keyed_uniform(1, "delay", 3, number=0)
    True
    >>> keyed_uniform(1, "delay", 3, number=0) == keyed_uniform(1, "delay", 4, number=0)
    False
    """
    block, offset = divmod(number, _BLOCK)
    return float(_block(seed, purpose, ids, block)[offset])


def keyed_uniforms(seed: int, purpose: str, *ids: int | str, start: int, count: int) -> Floats:
    """Return draws ``start`` to ``start + count - 1`` of :func:`uniform` under a key, shape ``(count,)``."""
    first, last = start // _BLOCK, (start + max(count, 1) - 1) // _BLOCK
    blocks = np.concatenate([_block(seed, purpose, ids, b) for b in range(first, last + 1)])
    return blocks[start - first * _BLOCK :][:count]


def keyed_generator(seed: int, purpose: str, *ids: int | str) -> np.random.Generator:
    """Return a new NumPy generator for arrays of draws; equal keys give generators in the same state."""
    return np.random.Generator(np.random.Philox(key=_key(seed, purpose, ids)))


def keyed_integer(seed: int, purpose: str, *ids: int | str) -> int:
    """Return an integer from 0 to 2**63 - 1 that depends on a key alone, as a seed for other generators than NumPy's.

    >>> keyed_integer(1, "item", 3) == keyed_integer(1, "item", 3) != keyed_integer(1, "item", 4)
    True
    """
    return _key(seed, purpose, ids) >> 65


def array_digest(array: Array, first: int = 0) -> int:
    """Return a digest of 63 bits of an array's bits and their order.

    The digests of consecutive parts of :data:`PART` numbers, each with ``first``, the index of its first number, add up
    to the digest of the whole array modulo 2^63. For long parts only the sums of rows and columns of words are hashed,
    which is ten times as fast as hashing everything.

    >>> array_digest(np.array([1.0, 2.0])) == array_digest(np.array([1.0, -2.0]))
    False
    """
    if array.size > PART:
        starts = range(0, array.size, PART)
        return sum(array_digest(array[start : start + PART], first + start) for start in starts) & POSITIVE
    if array.nbytes <= _LONG:
        hasher = blake2b(array.data, digest_size=8)
    else:
        plain = array.view(np.uint8)
        rows = plain.size // (8 * _COLUMNS)
        end = 8 * rows * _COLUMNS
        words = plain[:end].view(np.uint64).reshape(rows, _COLUMNS)
        hasher = blake2b(plain[end:].data, digest_size=8)
        for axis in (0, 1):
            hasher.update(np.add.reduce(words, axis=axis).data)
    if first:
        hasher.update(first.to_bytes(8, "little"))
    return int.from_bytes(hasher.digest(), "little") & POSITIVE
