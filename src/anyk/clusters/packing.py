"""Compression of messages: workers pack them, the driver unpacks them; the same code for all clusters."""

from __future__ import annotations

from collections.abc import MutableMapping
from functools import lru_cache

import numpy as np

from anyk.base.arrays import DType, Vector
from anyk.base.errors import BadInput
from anyk.clusters.local import State, keep_state
from anyk.compression import Compressor, compressor
from anyk.compression.schemes import Key, Payload
from anyk.protocol import Chunk

RESIDUAL = "residual"  # the part that compression omitted, stored like an optimiser's state
COVERED = "covered"  # the partitions of that part


@lru_cache(maxsize=64)
def scheme(spec: str) -> Compressor:
    """Return the compressor of a spec."""
    return compressor(spec)


def _key(seed: int, chunk: Chunk, version: int) -> Key:
    return seed, f"{version}:{chunk.repeat} {chunk.partitions}"


def pack(
    task: int, chunk: Chunk, version: int, seed: int, vector: Vector, base: Vector, states: MutableMapping[int, State]
) -> Payload:
    """Return a message's payload; for a model (``steps``) the payload encodes its change from ``base``.

    ``states``: the worker's states, by task; the part that this message omits is added to them. It is dropped when the
    worker's partitions change, if messages have only the coordinates that these touch.
    """
    scheme_, state = scheme(chunk.compress), states.get(chunk.state, {})
    if chunk.steps:
        vector = vector - base
    covered = np.array(chunk.partitions)
    if (
        scheme_.feedback
        and RESIDUAL in state
        and (vector.size == base.size or np.array_equal(state.get(COVERED, ()), covered))
    ):
        vector = vector + state[RESIDUAL]
    key = _key(seed, chunk, version)
    payload = scheme_.pack(vector, key)
    residual: State = {}
    if scheme_.feedback:
        residual = {RESIDUAL: vector - _unpacked(scheme_, payload, vector.size, vector.dtype, key), COVERED: covered}
    keep_state(states, task, chunk, residual)
    return payload


def unpack(chunk: Chunk, version: int, seed: int, payload: Payload, length: int, dtype: DType, base: Vector) -> Vector:
    """Return the message that a payload encodes."""
    key = _key(seed, chunk, version)
    vector = _unpacked(scheme(chunk.compress), payload, length, np.dtype(dtype), key)
    return vector + base if chunk.steps else vector.copy()  # it may be a buffer of the compressor's own


def _unpacked(scheme_: Compressor, payload: Payload, length: int, dtype: DType, key: Key) -> Vector:
    """Return what a compressor makes of a payload; raise :class:`~anyk.BadInput` if it does not have that length."""
    vector = scheme_.unpack(payload, length, dtype, key)
    if not isinstance(vector, np.ndarray) or vector.shape != (length,) or vector.dtype.kind != "f":
        form = f"{vector.dtype} of shape {vector.shape}" if isinstance(vector, np.ndarray) else type(vector).__name__
        raise BadInput(f"{type(scheme_).__name__} must unpack {length} numbers, got {form}")
    return vector
