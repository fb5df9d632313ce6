"""Training data of JAX problems: pytrees of arrays, shards and streams, as batches of chosen rows."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anyk.errors import BadInput
from anyk.problems.base import Index, some_rows
from anyk.problems.data.row_runs import Runs
from anyk.problems.data.shards.arrays import ShardArrays
from anyk.problems.data.shards.sources import Shards
from anyk.problems.data.streams import ENDS, SAMPLES, Draws, Stream
from anyk.problems.jax.pytrees import Tree

Rows = slice | Index
TOGETHER = 1024  # rows computed with at once, at most, where they need not all fit into memory, or are evaluated


class Arrays:
    """Rows in memory: a pytree of arrays with equal first axis."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree

    def __len__(self) -> int:
        return len(self.leaves[0])

    @property
    def leaves(self) -> list[NDArray[Any]]:
        """The arrays, in JAX's order."""
        import jax

        leaves: list[NDArray[Any]] = jax.tree.leaves(self.tree)
        return leaves

    @property
    def tried(self) -> int:
        """How many of the first rows can be had without opening anything."""
        return len(self)

    def rows(self, rows: Rows) -> Tree:
        """Some rows of every array."""
        import jax

        return jax.tree.map(lambda array: array[rows], self.tree)

    def some(self, samples: int, of: str) -> Arrays:
        """So many of the rows; see :func:`~anyk.problems.base.some_rows`."""
        return Arrays(self.rows(some_rows(len(self), samples, of)))

    def only(self, bounds: Sequence[tuple[int, int]]) -> ArrayRuns:
        """Some runs of the rows, which keep their numbers."""
        return ArrayRuns(self, bounds)


class ArrayRuns:
    """What a worker is sent of :class:`Arrays`: the rows of its own partitions."""

    def __init__(self, whole: Arrays, bounds: Sequence[tuple[int, int]]) -> None:
        self._none = whole.rows(slice(0, 0))  # for how the tree is formed: that of nodes like Equinox's is not pickled
        self._runs = Runs(whole.leaves, bounds)

    def rows(self, rows: Rows) -> Tree:
        """Some rows of every array."""
        import jax

        tree: Any = jax.tree.structure(self._none)
        return tree.unflatten(self._runs.taken(rows))


class Sharded:
    """Rows in files, read block by block by those who hold them; see :class:`~anyk.data.Shards`."""

    leaves: tuple[NDArray[Any], ...] = ()  # reading them would read everything

    def __init__(self, shards: Shards, dtype: np.dtype[Any]) -> None:
        self._samples = ShardArrays(shards, partial(_converted, dtype))
        self._some: dict[tuple[int, str], Arrays] = {}
        self.tried = self._samples.tried

    def __len__(self) -> int:
        return len(self._samples)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_some": {}}

    def rows(self, rows: Rows) -> Tree:
        """Some rows of every array."""
        return self._formed(self._samples.arrays(rows))

    def some(self, samples: int, of: str) -> Arrays:
        """So many of the rows, in memory; see :func:`~anyk.problems.base.some_rows`."""
        if (samples, of) not in self._some:
            self._some[samples, of] = Arrays(self._formed(self._samples.some(samples, of)))
        return self._some[samples, of]

    @property
    def tree(self) -> Tree:
        """What tells the files from others, in the place of all their arrays."""
        return np.array([self._samples.digest])

    def _formed(self, named: dict[str, NDArray[Any]]) -> Tree:
        return named if self._samples.named else tuple(named.values())


class Streamed:
    """Rows of a stream, of which the first are known; see :class:`~anyk.data.Stream`."""

    def __init__(self, stream: Stream, dtype: np.dtype[Any]) -> None:
        self._draws, self._dtype = Draws(stream), dtype
        self.head = self._arrays(self._draws.head)

    def __len__(self) -> int:
        return SAMPLES

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"head": None}  # workers draw their own

    @property
    def leaves(self) -> list[NDArray[Any]]:
        """The arrays of the first rows, in JAX's order."""
        return self.head.leaves

    @property
    def tried(self) -> int:
        """How many of the first rows are known."""
        return len(self.head)

    def rows(self, rows: Rows) -> Tree:
        """Some of the first rows."""
        return self.head.rows(rows)

    def drawn(self, partitions: range, rows: Index | None) -> Tree:
        """The rows of a mini-batch."""
        return self._arrays(self._draws.drawn(partitions, rows)).tree

    def some(self, samples: int, of: str) -> Arrays:
        """So many rows, in memory."""
        return self._arrays(self._draws.some(samples, of))

    @property
    def tree(self) -> Tree:
        """What tells the stream from others: its first rows."""
        return np.array([self._draws.digest])

    def _arrays(self, samples: list[Any]) -> Arrays:
        import jax

        try:
            made = jax.tree.map(lambda *parts: np.stack(parts), *samples)
        except (TypeError, ValueError) as error:
            first = str(error).splitlines()[0]
            raise BadInput(f"the samples of the stream do not all have the same form: {first}") from None
        return Arrays(jax.tree.map(partial(_plain, "the stream", self._dtype), made))


Data = Arrays | Sharded | Streamed


def data_of(data: Any, name: str, dtype: np.dtype[Any]) -> Data:
    """A user's data as one of the kinds; raises :class:`~anyk.errors.BadInput` where it is none of them."""
    import jax

    if isinstance(data, Stream):
        if name == "held_out":
            raise BadInput(ENDS)
        return Streamed(data, dtype)
    if isinstance(data, Shards):
        return Sharded(data, dtype)
    made = jax.tree.map(partial(_plain, name, dtype), data)
    lengths = [len(leaf) for leaf in jax.tree.leaves(made)]
    if not lengths:
        raise BadInput(f"{name} must be a pytree of arrays with a row for each sample, got {type(data).__name__}")
    if len(set(lengths)) != 1:
        raise BadInput(f"the arrays of {name} must have one entry for each sample, got {lengths} entries")
    if not lengths[0]:
        raise BadInput(f"{name} has no rows")
    return Arrays(made)


def _converted(dtype: np.dtype[Any], named: dict[str, NDArray[Any]], where: str) -> dict[str, NDArray[Any]]:
    return {name: _plain(where, dtype, array) for name, array in named.items()}


def _plain(name: str, dtype: np.dtype[Any], leaf: Any) -> NDArray[Any]:
    """As a NumPy array of the number types that JAX computes in."""
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
