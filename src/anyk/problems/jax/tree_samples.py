"""Training data of JAX problems: pytrees of arrays, shards and streams, as batches of chosen rows."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from anyk.arrays import Array, DType
from anyk.errors import BadInput
from anyk.problems.data.sample_batches import Arrays, NamedForm, Samples
from anyk.problems.data.shards.shard_samples import ShardSamples
from anyk.problems.data.shards.sources import Shards
from anyk.problems.data.streams import ENDS, Stream, StreamSamples
from anyk.problems.jax.pytrees import Tree
from anyk.problems.network_problem import check_lengths, number_array

TOGETHER = 1024  # rows of a computation, at most, for evaluation and for data that need not fit into memory


class TreeForm:
    """The form of batches that are pytrees.

    It stores a pytree without rows, and not JAX's description of it, in which some nodes cannot be pickled (Equinox's).
    """

    def __init__(self, tree: Tree) -> None:
        import jax

        self._empty = jax.tree.map(lambda array: array[:0], tree)

    def __call__(self, arrays: Sequence[Array]) -> Tree:
        """Return the pytree of some rows of the arrays, given in JAX's order."""
        import jax

        return jax.tree.unflatten(jax.tree.structure(self._empty), arrays)


def data_of(data: object, name: str, dtype: DType) -> Samples:
    """Return a user's data as samples; raise :class:`~anyk.errors.BadInput` if that is impossible."""
    import jax

    if isinstance(data, Stream):
        if name == "held_out":
            raise BadInput(ENDS)
        return StreamSamples(data, partial(_stacked, dtype))
    if isinstance(data, Shards):
        return ShardSamples(data, partial(_converted, dtype), NamedForm)
    tree = jax.tree.map(partial(_plain, name, dtype), data)
    arrays = jax.tree.leaves(tree)
    if not arrays:
        raise BadInput(f"{name} must be a pytree of arrays with a row for each sample, got {type(data).__name__}")
    check_lengths(arrays, name)
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


def _plain(name: str, dtype: DType, leaf: object) -> Array:
    """Return a NumPy array of a number type in which JAX computes."""
    import jax

    array = number_array(leaf, name, dtype)
    return array if array.dtype.kind == "f" else array.astype(jax.dtypes.canonicalize_dtype(array.dtype), copy=False)
