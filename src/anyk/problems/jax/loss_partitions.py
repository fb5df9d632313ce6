"""Data of JAX problems, and gradients of their losses on flat vectors, with JAX or from NumPy source."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from copy import copy
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from anyk.base.arrays import Array, DType, Floats, Vector
from anyk.base.errors import BadInput
from anyk.base.plain import ByName
from anyk.problems.base import Ends, Index, PartitionAbilities, even_ends
from anyk.problems.batches import Batches
from anyk.problems.data.sample_batches import Arrays, NamedForm, PartitionSamples, SampleBatch, Samples
from anyk.problems.data.shards.shard_samples import ShardSamples
from anyk.problems.data.shards.sources import Shards
from anyk.problems.data.streams import ENDS, Stream, StreamSamples
from anyk.problems.jax.decompiling import decompiling
from anyk.problems.jax.model_loss import EVALUATION, SEED, JaxNetwork, seed_for, seed_of
from anyk.problems.jax.pytrees import Held, Tree, first_line
from anyk.problems.network_problem import check_lengths, number_array
from anyk.problems.replicas import ROWS, Sketch, Trial, model_like, seed_of_draws
from anyk.problems.surroundings import Variables, variables_of
from anyk.problems.values import Values

_SETTINGS = (  # of JAX, on which results depend and which a new process does not have
    "jax_enable_x64",
    "jax_default_matmul_precision",
    "jax_threefry_partitionable",
    "jax_numpy_dtype_promotion",
    "jax_numpy_rank_promotion",
    "jax_default_prng_impl",
)
TOGETHER = 1024  # rows of a computation, at most, for evaluation and for data that need not fit into memory


class DecompiledPartitions(PartitionAbilities):
    """Training data in partitions, and the source of the gradient for each number of rows.

    ``texts``: for each number of rows, the source of a function of the flat model and the arrays' rows, and its digest,
    by which workers recognise the driver's text. It reaches workers as plain text and arrays: nothing is unpickled. See
    :class:`~anyk.problems.base.Partitions`.
    """

    def __init__(
        self,
        texts: dict[int, tuple[str, str]],
        arrays: Sequence[Array],
        ends: Sequence[int],
        dimension: int,
        dtype: DType,
    ) -> None:
        self._texts, self._arrays, self._ends = texts, list(arrays), list(ends)
        self._bounds = list(pairwise(ends))
        self.sizes = tuple(np.diff(ends).tolist())
        self.dimension = dimension
        self.dtype = dtype
        self._functions: dict[int, Callable[..., Any]] = {}

    def plain(self) -> tuple[ByName, list[Array]]:
        """Return the partitions as plain data and arrays."""
        texts = [[rows, *source] for rows, source in self._texts.items()]
        plain = {"texts": texts, "ends": self._ends, "dimension": self.dimension, "dtype": self.dtype.str}
        return plain, self._arrays

    @classmethod
    def from_plain(cls, plain: ByName, arrays: Sequence[Array]) -> DecompiledPartitions:
        """Return the partitions that :meth:`plain` converted."""
        texts = {rows: (source, digest) for rows, source, digest in plain["texts"]}
        return cls(texts, arrays, plain["ends"], plain["dimension"], np.dtype(plain["dtype"]))

    def load(self, partitions: Sequence[int]) -> None:
        """Compile the texts."""
        with decompiling("a worker without JAX"):
            from readjax import compile_source

            self._functions = {rows: compile_source(*source) for rows, source in self._texts.items()}

    def check_partial_loss(self) -> None:
        raise BadInput(
            "workers without JAX (workers='numpy') compute gradients alone; evaluate where='driver' or 'aside'"
        )

    def support(self, partition: int) -> Index | None:
        """Return None: a gradient may touch all coordinates."""
        return None  # explicit, as mypy demands

    def partial_gradient(self, partition: int, w: Vector, rows: Index | None = None, /) -> Vector:
        if not self._functions:
            self.load(())
        first, last = self._bounds[partition]
        rows_used = slice(first, last) if rows is None else rows + first
        number = last - first if rows is None else len(rows)
        function = self._functions.get(number)
        if function is None:
            raise BadInput(
                f"there is no source for mini-batches of {number} rows; give JaxProblem(…, workers='numpy', "
                f"batch={number})"
            )
        return np.asarray(function(w, *(array[rows_used] for array in self._arrays)))


class JaxPartitions(Batches):
    """A function's training data in partitions; see :class:`~anyk.problems.base.Partitions`."""

    custom_code = True

    def __init__(
        self,
        network: JaxNetwork,
        constants: Held,
        data: Samples,
        ends: Ends,
        dtype: DType,
        *,
        platform: str = "cpu",
        values: Values | None = None,
    ) -> None:
        import jax

        most = TOGETHER if isinstance(data, ShardSamples) else None
        super().__init__(data, ends, dimension=network.dimension, dtype=dtype, most=most)
        self._network, self._held, self._platform, self._values = network, constants, platform, values
        self._stateful = "a model with state" if network.keeps else ""
        config: Any = jax.config
        self._settings = {name: getattr(config, name) for name in _SETTINGS if hasattr(config, name)}
        self._device: Any = None
        self._compiled: set[int] = set()
        self._trial: Trial | None = None

    def __getstate__(self) -> ByName:
        return super().__getstate__() | {"_device": None, "_compiled": set()}

    def load(self, partitions: Sequence[int]) -> None:
        """Choose the device, and compile the gradient for each size of partition."""
        import jax

        if "ANYK_WORKER" in os.environ:  # a worker's process, in which JAX has computed nothing yet
            os.environ["NPROC"] = "1"  # threads that XLA starts
            os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_multi_thread_eigen=false"
            os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # workers share a GPU's memory
            if self._platform == "cpu":
                jax.config.update("jax_platforms", "cpu")
        for name, value in self._settings.items():
            if getattr(jax.config, name) != value:
                jax.config.update(name, value)
        self._device = self._device or device_of(self._platform)
        for j in () if self.data.endless else partitions:
            ends = even_ends(self.sizes[j], self.most or self.sizes[j])
            for rows in {b - a for a, b in pairwise(ends)} - self._compiled:
                self._compiled.add(rows)
                blank = jax.tree.map(
                    lambda leaf, rows=rows: np.zeros((rows, *leaf.shape[1:]), leaf.dtype), self.data.batch(slice(0, 0))
                )
                weights = None if self.data.weights_of(slice(0, 0)) is None else np.zeros(rows)
                with jax.default_device(self._device):
                    self._gradient(np.zeros(self.dimension, dtype=self.dtype), blank, SEED, weights)
        trial, self._trial = self._trial, None
        if trial is not None:
            trial.check(self._tried, self._variables)

    def carry(self, numbers: Sequence[float], places: Sequence[int], content: Sequence[Vector]) -> None:
        """Compute the next gradients with these values."""
        assert self._values is not None
        self._held = self._held._replace(values=self._values.build(self._values.decode(numbers, places, content)))

    def compare_workers(self, *, replicas: bool) -> None:
        """Have each worker's gradient of up to 8 samples compared with the driver's.

        A driver that lacks the workers' platform computes nothing.
        """
        twin = copy(self)
        try:
            twin._device = device_of(self._platform)
        except BadInput:
            return
        limit = float(np.finfo(self.dtype).eps) ** 0.5
        self._trial = Trial.of(twin._tried, limit, replicas=replicas, variables=self._variables())

    def _tried(self) -> Floats:
        head, (first, last) = self.data.head, self._bounds[0]
        rows = np.arange(min(ROWS, head.tried, self.sizes[0]))
        chosen = PartitionSamples(data=head, partition=0, first=first, last=last, rows=rows, requested_rows=rows)
        return Sketch.of(self.gradient_sum(model_like(self._network.scales, self.dtype), chosen))

    def _variables(self) -> Variables:
        """Return the variables that the user's code reads."""
        roots = {"the loss": self._network.loss, "the model": self._network.model}
        return variables_of({**roots, **self.data.code})

    def _gradient(self, w: Vector, batch: Tree, seed: Any, weights: Floats | None) -> Vector:
        if weights is None:
            return np.asarray(self._network.gradient(w, self._held, batch, seed))
        return np.asarray(self._network.weighted_gradient(w, self._held, batch, seed, weights.astype(self.dtype)))

    def gradient_sum(self, w: Vector, chosen: PartitionSamples) -> Vector:
        import jax

        if self._device is None:
            self.load(())
        total: Vector | None = None
        for sample_batch in chosen.parts(self.most):
            seed = SEED
            if self._network.random:
                rows = chosen.requested_rows if sample_batch.rows is None else sample_batch.rows
                seed = seed_of(seed_of_draws(self.key, chosen.partition, rows))
            with jax.default_device(self._device):
                gradient = self._gradient(w, sample_batch.batch, seed, sample_batch.weights)
            total = gradient if total is None else total + gradient
        assert total is not None
        return total

    def loss_sum(self, w: Vector, chosen: PartitionSamples) -> float:
        """Return the sum of the losses, without dropout."""
        import jax

        if self._device is None:
            self.load(())
        total = 0.0
        for sample_batch in chosen.parts(TOGETHER):
            with jax.default_device(self._device):
                total += sums_of(self._network, w, self._held, sample_batch)[0]
        return total


def sums_of(
    network: JaxNetwork, w: Vector, constants: Held, sample_batch: SampleBatch
) -> tuple[float, dict[str, float]]:
    """Return the sums of a batch's losses and metrics in evaluation, weighted if the rows have weights."""
    arguments = w, constants, sample_batch.batch, seed_for(EVALUATION, sample_batch.start)
    if sample_batch.weights is None:
        loss, metrics = network.evaluation(*arguments)
    else:
        loss, metrics = network.weighted_evaluation(*arguments, sample_batch.weights.astype(network.dtype))
    return float(loss), {name: float(value) for name, value in metrics.items()}


def device_of(platform: str) -> Any:
    """Return the device to compute on: of several devices of a platform each worker takes the next."""
    import jax

    try:
        devices = jax.devices(platform)
    except RuntimeError:
        raise BadInput(
            f"there is no platform '{platform}' here: JAX finds {jax.default_backend()}; use platform='cpu', or "
            "install JAX for it on the workers"
        ) from None
    return devices[int(os.environ.get("ANYK_WORKER", "0")) % len(devices)]


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


def data_of(data: object, name: str, dtype: DType, training: Samples | None = None) -> Samples:
    """Return a user's data as samples; raise :class:`~anyk.BadInput` if that is impossible.

    Held-out shards have the columns of ``training``.
    """
    import jax

    if isinstance(data, Stream):
        if name == "held_out":
            raise BadInput(ENDS)
        return StreamSamples(data, partial(_stacked, dtype))
    if isinstance(data, Shards):
        trained = training if isinstance(training, ShardSamples) else None
        return ShardSamples(data, partial(_converted, dtype), NamedForm, training=trained)
    if any(base.__name__ == "DataLoader" for base in type(data).__mro__):  # torch need not be installed
        raise BadInput(
            f"{name} is a DataLoader, which only a TorchProblem takes; give a pytree of arrays, and the strategy the "
            "samples of each partition, as in 'uncoded:batch=8'"
        )
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
        raise BadInput(f"the samples of the stream do not all have the same form: {first_line(error)}") from None
    tree = jax.tree.map(partial(_plain, "the stream", dtype), tree)
    return Arrays(jax.tree.leaves(tree), TreeForm(tree))


def _converted(dtype: DType, named: dict[str, Array], where: str) -> dict[str, Array]:
    return {name: _plain(where, dtype, array) for name, array in named.items()}


def _plain(name: str, dtype: DType, leaf: object) -> Array:
    """Return a NumPy array of a number type in which JAX computes."""
    import jax

    array = number_array(leaf, name, dtype)
    return array if array.dtype.kind == "f" else array.astype(jax.dtypes.canonicalize_dtype(array.dtype), copy=False)
