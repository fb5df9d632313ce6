"""Partitions on their way to workers: sent once, their arrays uncopied beside a description."""

from __future__ import annotations

import json
import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np

from anyk.errors import BadInput
from anyk.problems.base import Partitions, Problem, partition_abilities
from anyk.problems.jax.decompiled import DecompiledPartitions

_PLAIN = b"{"  # what JSON of an object begins with, and no pickle


def ship(partitions: Partitions | Problem, *, to: str = "workers") -> list[memoryview]:
    """Return an object's bytes, then its arrays' bytes; classes of a script or notebook are included by value."""
    if isinstance(partitions, DecompiledPartitions):
        plain, arrays = partitions.plain()
        arrays = [np.ascontiguousarray(array) for array in arrays]
        plain["arrays"] = [[array.dtype.str, array.shape] for array in arrays]
        texts = memoryview(json.dumps(plain).encode())
        return [texts, *(array.view(np.uint8).reshape(-1).data for array in arrays)]
    import cloudpickle

    raw: list[Any] = []
    try:
        main = cloudpickle.dumps(partitions, protocol=5, buffer_callback=raw.append)
    except Exception as error:
        raise BadInput(f"the problem cannot be sent to {to}: {error}") from None
    return [memoryview(main), *(buffer.raw() for buffer in raw)]


def parcels(partitions: Partitions, assignment: Sequence[Sequence[int]]) -> list[list[memoryview]]:
    """Return the bytes for each worker, as :func:`ship`, without the data of partitions that are not assigned to it.

    Arrays that several workers are sent are the same memory in all of their parcels.
    """
    only = partition_abilities(partitions).only
    if only is None:
        return [ship(partitions)] * len(assignment)
    by_partitions = {assigned: ship(only(assigned)) for assigned in set(map(tuple, assignment))}
    return [by_partitions[tuple(assigned)] for assigned in assignment]


def unship(buffers: Sequence[memoryview]) -> Any:
    """Return the partitions on a worker; their arrays lie in the buffers.

    The bytes come from the worker's own driver, never from a peer, a file or a reply.
    """
    if bytes(buffers[0][:1]) == _PLAIN:
        plain = json.loads(bytes(buffers[0]))
        arrays = [
            np.frombuffer(buffer, dtype=np.dtype(dtype)).reshape(shape)
            for buffer, (dtype, shape) in zip(buffers[1:], plain["arrays"], strict=True)
        ]
        return DecompiledPartitions.from_plain(plain, arrays)
    return pickle.loads(buffers[0], buffers=buffers[1:])
