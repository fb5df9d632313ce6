"""Compressed messages: packed by workers, unpacked by the driver. One definition for all clusters."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from anyk.compression import Compressor, compressor
from anyk.compression.schemes import Key, Payload
from anyk.problems.base import Vector
from anyk.protocol import Chunk

RESIDUAL = "residual"  # what a worker's last used message left out, kept like an optimiser's state


@lru_cache(maxsize=64)
def scheme(spec: str) -> Compressor:
    """The compressor of a chunk."""
    return compressor(spec)


def _key(seed: int, chunk: Chunk, version: int) -> Key:
    return seed, f"{version}:{chunk.repeat} {chunk.partitions}"


def pack(
    chunk: Chunk, version: int, seed: int, vector: Vector, base: Vector, state: dict[str, Vector] | None
) -> tuple[Payload, dict[str, Vector]]:
    """A message's payload, and what the worker is to keep; of a model (``steps``) the change from ``base``."""
    made = scheme(chunk.compress)
    if chunk.steps:
        vector = vector - base
    if made.feedback and state is not None and RESIDUAL in state:
        vector = vector + state[RESIDUAL]
    key = _key(seed, chunk, version)
    payload = made.pack(vector, key)
    if not made.feedback:
        return payload, {}
    return payload, {RESIDUAL: vector - made.unpack(payload, vector.size, vector.dtype, key)}


def unpack(
    chunk: Chunk, version: int, seed: int, payload: Payload, length: int, dtype: np.dtype[Any], base: Vector
) -> Vector:
    """The message that a payload stands for."""
    vector = scheme(chunk.compress).unpack(payload, length, np.dtype(dtype), _key(seed, chunk, version))
    return vector + base if chunk.steps else vector
