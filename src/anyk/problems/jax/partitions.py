"""What workers do for a JAX problem: gradients of a loss on flat vectors, from arrays that all share."""

from __future__ import annotations

import os
from collections.abc import Sequence
from copy import copy
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anyk import keyed
from anyk.errors import BadInput
from anyk.problems.base import Index, Vector, even_ends
from anyk.problems.data.streams import NO_PARTS
from anyk.problems.jax.batches import TOGETHER, ArrayRuns, Arrays, Data, Sharded, Streamed
from anyk.problems.jax.model_loss import EVALUATION, SEED, Held, Network, seed_for, seed_of
from anyk.problems.jax.pytrees import Tree
from anyk.problems.replicas import seed_of_draws


class JaxPartitions:
    """A function's training data in partitions; see :class:`~anyk.problems.base.Partitions`."""

    def __init__(
        self,
        network: Network,
        held: Held,
        data: Data,
        ends: NDArray[np.int64],
        dtype: np.dtype[Any],
        *,
        platform: str = "cpu",
    ) -> None:
        import jax

        self.sizes = tuple(np.diff(ends).tolist())
        self.dtype, self.dimension = dtype, network.dimension
        self._network, self._held, self._platform = network, held, platform
        self._data: Data | ArrayRuns = data
        self._bounds = list(pairwise(ends.tolist()))
        config: Any = jax.config
        self._wide = bool(config.jax_enable_x64)
        self._device: Any = None
        self._compiled: set[int] = set()
        self._first = 0  # the number of its first partition among all
        self._spanned = 1  # how many partitions of the strategy's each of its own is
        self.tolerance = 0.0

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_device": None, "_compiled": set()}

    def load(self, partitions: Sequence[int]) -> None:
        """See :class:`~anyk.problems.base.Partitions`; compiles for each size of partition."""
        import jax

        config: Any = jax.config
        if "ANYK_WORKER" in os.environ:  # a process of its own, in which JAX has computed nothing yet
            os.environ["NPROC"] = "1"  # threads that XLA starts
            os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_multi_thread_eigen=false"
            os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # workers share a GPU's memory
            if self._platform == "cpu":
                config.update("jax_platforms", "cpu")
        if bool(config.jax_enable_x64) != self._wide:
            config.update("jax_enable_x64", self._wide)
        self._device = self._device or device_of(self._platform)
        for j in () if isinstance(self._data, Streamed) else partitions:
            for rows in {b - a for a, b in self._pieces(self.sizes[j])} - self._compiled:
                self._compiled.add(rows)
                blank = jax.tree.map(
                    lambda leaf, rows=rows: np.zeros((rows, *leaf.shape[1:]), leaf.dtype), self._data.rows(slice(0, 0))
                )
                with jax.default_device(self._device):
                    self._network.gradient(np.zeros(self.dimension, dtype=self.dtype), self._held, blank, SEED)

    def piece(self, first: int, last: int) -> JaxPartitions:
        """See :class:`~anyk.problems.base.Partitions`."""
        made = copy(self)
        made._bounds = [(self._bounds[first][0], self._bounds[last][1])]
        made.sizes = (sum(self.sizes[first : last + 1]),)
        made._first, made._spanned = self._first + first, last - first + 1
        return made

    def only(self, partitions: Sequence[int]) -> JaxPartitions:
        """See :class:`~anyk.problems.base.Partitions`; shards are read by those who hold their rows anyway."""
        if not isinstance(self._data, Arrays):
            return self
        made = copy(self)
        made._data = self._data.only([self._bounds[j] for j in sorted(partitions)])
        return made

    def compare_replicas(self) -> None:
        """See :class:`~anyk.problems.base.Partitions`; nothing is computed before the run."""
        self.tolerance = float(np.finfo(self.dtype).eps) ** 0.5

    def support(self, partition: int) -> Index | None:
        """All coordinates."""
        del partition
        return None  # as opposed to an index of some

    def partial_gradient(self, partition: int, w: Vector, rows: Index | None = None, /) -> Vector:
        """See :class:`~anyk.problems.base.Partitions`.

        The key of a random loss is that of the bits of ``w``, the partition and the rows, so that all who hold a
        partition draw alike.
        """
        if self._device is None:
            self.load(())
        first, last = self._bounds[partition]
        bits = keyed.digest(np.ascontiguousarray(w)) if self._network.random else 0
        if isinstance(self._data, Streamed):
            number = self._first + partition
            batch = self._data.drawn(range(number, number + self._spanned), rows)
            return self._gradient(w, batch, bits, partition, rows)
        total: Vector | None = None
        pieces = self._pieces(last - first if rows is None else len(rows))
        for a, b in pieces:
            some = slice(first + a, first + b) if rows is None else rows[a:b] + first
            drawn = rows
            if len(pieces) > 1:
                drawn = np.arange(a, b) if rows is None else rows[a:b]
            part = self._gradient(w, self._data.rows(some), bits, partition, drawn)
            total = part if total is None else total + part
        assert total is not None
        return total

    def check_partial_loss(self) -> None:
        """See :class:`~anyk.problems.base.Partitions`."""
        if isinstance(self._data, Streamed):
            raise BadInput(NO_PARTS)
        if self._network.keeps:
            raise BadInput(
                "workers cannot evaluate a model with state, whose running statistics are over the data of all; "
                "evaluate where='driver' or 'aside'"
            )

    def partial_loss(self, partition: int, w: Vector, rows: Index | None = None, /) -> float:
        """See :class:`~anyk.problems.base.Partitions`: in evaluation, without dropout."""
        import jax

        if self._device is None:
            self.load(())
        assert not isinstance(self._data, Streamed)
        first, last = self._bounds[partition]
        total = 0.0
        for a, b in pairwise(even_ends(last - first if rows is None else len(rows), TOGETHER)):
            batch = self._data.rows(slice(first + a, first + b) if rows is None else rows[a:b] + first)
            with jax.default_device(self._device):
                found, _ = self._network.evaluation(w, self._held, batch, seed_for(EVALUATION, first + a))
            total += float(found)
        return total

    def _gradient(self, w: Vector, batch: Tree, bits: int, partition: int, rows: Index | None) -> Vector:
        """Of a batch; ``bits`` of the model, partition and rows are the key of what the loss draws."""
        import jax

        seed = SEED
        if self._network.random:
            seed = seed_of(seed_of_draws(bits, self._first + partition, rows))
        with jax.default_device(self._device):
            return np.asarray(self._network.gradient(w, self._held, batch, seed))

    def _pieces(self, rows: int) -> list[tuple[int, int]]:
        """Where so many rows are cut into those that are computed at once; of arrays all are."""
        return list(pairwise(even_ends(rows, TOGETHER if isinstance(self._data, Sharded) else rows)))


def device_of(platform: str) -> Any:
    """Where to compute: of several devices of a platform each worker takes the next."""
    import jax

    try:
        devices = jax.devices(platform)
    except RuntimeError:
        raise BadInput(
            f"there is no platform '{platform}' here: JAX finds {jax.default_backend()}; use platform='cpu', or "
            "install JAX for it on the workers"
        ) from None
    return devices[int(os.environ.get("ANYK_WORKER", "0")) % len(devices)]
