"""Serialisation of partitions for workers: a description, and the arrays as separate buffers without copies.

With them go the compressors, optimisers and schedules that the user's code has registered, as workers build these by
name.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import pickle
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from anyk import compression, optimizers
from anyk.base.errors import as_bad_input
from anyk.base.registries import Registry
from anyk.problems.base import Partitions, Problem, partition_abilities
from anyk.problems.jax.loss_partitions import DecompiledPartitions

_PLAIN = b"{"  # first byte of a JSON object, which no pickle has
_BUILT_BY_WORKERS: tuple[Registry[Any], ...] = (compression.registry, optimizers.registry, optimizers.schedules)


def ship(partitions: Partitions | Problem, *, to: str = "workers") -> list[memoryview]:
    """Return an object's bytes, then its arrays' bytes; classes of a script or notebook are pickled by value."""
    if isinstance(partitions, DecompiledPartitions):
        plain, arrays = partitions.plain()
        arrays = [np.ascontiguousarray(array) for array in arrays]
        plain["arrays"] = [[array.dtype.str, array.shape] for array in arrays]
        texts = memoryview(json.dumps(plain).encode())
        return [texts, *(array.view(np.uint8).reshape(-1).data for array in arrays)]
    import cloudpickle

    raw: list[Any] = []
    by_value = {"__main__", *cloudpickle.list_registry_pickle_by_value()}  # modules that workers do not have

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle has no types
        def reducer_override(self, value: Any) -> Any:
            if isinstance(value, _LruCache) and (value.__module__ in by_value or "<locals>" in value.__qualname__):
                return _cached, (value.__wrapped__, value.cache_parameters())
            return super().reducer_override(value)

    with as_bad_input(f"the problem cannot be sent to {to}", Exception), io.BytesIO() as file:
        Pickler(file, protocol=5, buffer_callback=raw.append).dump((_registered(), partitions))
        main = file.getvalue()
    return [memoryview(main), *(buffer.raw() for buffer in raw)]


def _registered() -> list[tuple[int, str, bytes]]:
    """Return what the user's code has registered: the number of its registry, its name and its pickled constructor."""
    import cloudpickle

    registered = []
    for number, registry in enumerate(_BUILT_BY_WORKERS):
        for name, entry in registry.entries.items():
            if not entry.own and not entry.origin:  # installed plug-ins are installed for workers, too
                with contextlib.suppress(Exception):  # if a worker needs it, it reports that there is none
                    registered.append((number, name, cloudpickle.dumps(entry.build)))
    return registered


_LruCache = type(functools.lru_cache(len))


def _cached(function: Callable[..., Any], settings: dict[str, Any]) -> Any:
    """Return a script's function with an empty cache of its results, which pickle would look for in a module."""
    return functools.lru_cache(**settings)(function)


def parcels(partitions: Partitions, assignment: Sequence[Sequence[int]]) -> list[list[memoryview]]:
    """Return each worker's bytes, as :func:`ship` does, without the data of partitions not assigned to it.

    Arrays for several workers share their memory between these workers' parcels.
    """
    if partition_abilities(partitions).only is None:
        return [ship(partitions)] * len(assignment)
    by_partitions = {assigned: ship(_only(partitions, assigned)) for assigned in set(map(tuple, assignment))}
    return [by_partitions[tuple(assigned)] for assigned in assignment]


def single_parcels(partitions: Partitions) -> list[list[memoryview]]:
    """Return the bytes of each partition alone, as :func:`ship` does, for workers that adopt partitions when needed.

    The list is empty if partitions cannot be adopted, or if what every parcel contains besides its rows, such as a
    network, outweighs them.
    """
    abilities = partition_abilities(partitions)
    if abilities.only is None or abilities.adopt is None:
        return []
    (description, *_), first = ship(_only(partitions, ())), ship(_only(partitions, (0,)))
    if sum(buffer.nbytes for buffer in first) < 2 * description.nbytes:
        return []
    return [first, *(ship(_only(partitions, (j,))) for j in range(1, len(partitions.sizes)))]


def _only(partitions: Partitions, chosen: tuple[int, ...]) -> Any:
    """Return partitions without the data of those that are not chosen, with what the driver has set on all."""
    abilities = partition_abilities(partitions)
    assert abilities.only is not None
    smaller = abilities.only(chosen)
    if abilities.penalty is not None:
        smaller.penalty = abilities.penalty
    return smaller


def unship(buffers: Sequence[memoryview]) -> Any:
    """Return the partitions from their bytes, on a worker; their arrays use the buffers' memory.

    The bytes must come from the worker's own driver, never from another worker, a file or a reply.
    """
    if bytes(buffers[0][:1]) == _PLAIN:
        plain = json.loads(bytes(buffers[0]))
        arrays = [
            np.frombuffer(buffer, dtype=np.dtype(dtype)).reshape(shape)
            for buffer, (dtype, shape) in zip(buffers[1:], plain["arrays"], strict=True)
        ]
        return DecompiledPartitions.from_plain(plain, arrays)
    registered, partitions = pickle.loads(buffers[0], buffers=buffers[1:])
    for number, name, constructor in registered:
        registry = _BUILT_BY_WORKERS[number]
        if name not in registry.entries or registry.entries[name].own:  # else this process has registered it itself
            registry.register(name)(pickle.loads(constructor))
    return partitions
