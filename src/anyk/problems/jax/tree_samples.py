"""Training data of JAX problems: pytrees of arrays, shards and streams, as batches of chosen rows."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from anyk.errors import BadInput
from anyk.problems.base import Array, DType
from anyk.problems.data.samples import Arrays, Samples
from anyk.problems.data.shards.samples import ShardSamples
from anyk.problems.data.shards.sources import Shards
from anyk.problems.data.streams import ENDS, Stream, StreamSamples
from anyk.problems.jax.pytrees import Tree

TOGETHER = 1024  # rows computed with at once, at most, where they need not all fit into memory, or are evaluated


class TreeForm:
    """The form of batches that are pytrees.

    It keeps a pytree without rows, not JAX's description of it: nodes like Equinox's cannot be pickled in that.
    """

    def __init__(self, tree: Tree) -> None:
        import jax

        self._empty = jax.tree.map(lambda array: array[:0], tree)

    def __call__(self, arrays: Sequence[Array]) -> Tree:
        """Return the pytree of some rows of the arrays, given in JAX's order."""
        import jax

        tree: Any = jax.tree.structure(self._empty)
        return tree.unflatten(arrays)


class NamedForm:
    """The form of batches of shards: a dictionary, or, without ``keys``, a tuple."""

    def __init__(self, keys: tuple[str, ...] | None) -> None:
        self._keys = keys

    def __call__(self, arrays: Sequence[Array]) -> Tree:
        """Return a batch of some rows of the arrays."""
        return tuple(arrays) if self._keys is None else dict(zip(self._keys, arrays, strict=True))


def data_of(data: Any, name: str, dtype: DType) -> Samples:
    """Return a user's data as samples; raises :class:`~anyk.errors.BadInput` if it cannot be one."""
    import jax

    if isinstance(data, Stream):
        if name == "held_out":
            raise BadInput(ENDS)
        return StreamSamples(data, partial(_stacked, dtype))
    if isinstance(data, Shards):
        return ShardSamples(data, partial(_converted, dtype), NamedForm)
    tree = jax.tree.map(partial(_plain, name, dtype), data)
    arrays = jax.tree.leaves(tree)
    lengths = [len(array) for array in arrays]
    if not lengths:
        raise BadInput(f"{name} must be a pytree of arrays with a row for each sample, got {type(data).__name__}")
    if len(set(lengths)) != 1:
        raise BadInput(f"the arrays of {name} must have one entry for each sample, got {lengths} entries")
    if not lengths[0]:
        raise BadInput(f"{name} has no rows")
    return Arrays(arrays, TreeForm(tree))


def _stacked(dtype: DType, samples: list[Any]) -> Arrays:
    """Return the samples of a stream as arrays with a row for each."""
    import jax

    try:
        tree = jax.tree.map(lambda *parts: np.stack(parts), *samples)
    except (TypeError, ValueError) as error:
        first = str(error).splitlines()[0]
        raise BadInput(f"the samples of the stream do not all have the same form: {first}") from None
    tree = jax.tree.map(partial(_plain, "the stream", dtype), tree)
    return Arrays(jax.tree.leaves(tree), TreeForm(tree))


def _converted(dtype: DType, named: dict[str, Array], where: str) -> dict[str, Array]:
    return {name: _plain(where, dtype, array) for name, array in named.items()}


def _plain(name: str, dtype: DType, leaf: Any) -> Array:
    """Return an array as NumPy's, of the number types that JAX computes in."""
    import jax

    try:
        array = np.asarray(leaf)
    except (TypeError, ValueError):  # random keys, rows of different lengths
        array = np.array(None)
    if array.ndim == 0 or array.dtype.kind not in "biuf":
        raise BadInput(
            f"{name} must hold arrays of numbers with a row for each sample, got {array.dtype} {array.shape}"
        )
    if array.dtype.kind != "f":
        return np.ascontiguousarray(array, dtype=jax.dtypes.canonicalize_dtype(array.dtype))
    if not np.isfinite(array).all():
        raise BadInput(f"{name} must hold finite numbers")
    return np.ascontiguousarray(array, dtype=dtype)
