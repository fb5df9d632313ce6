"""JAX functions: any loss of a pytree of parameters, and gradients on flat vectors."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from itertools import pairwise
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from anyk.checks import check
from anyk.decompile import Source
from anyk.errors import BadInput, MissingPackage
from anyk.problems.base import Index, Vector, cut, problem_text, some_rows
from anyk.problems.decompiled import DecompiledPartitions
from anyk.problems.digest import digest_of
from anyk.problems.sums import is_no_sum, telling

_ROUNDED = 0.02  # relative difference that a loss may have which computes in bfloat16
_EVALUATED = 1024  # rows of which the loss is evaluated at once at most

# what Flax's linen calls state beside 'params', and names that everybody gives to running statistics
_COLLECTIONS = {"batch_stats", "cache", "carry", "intermediates", "perturbations"}
_RUNNING = {f"{kind}_{what}" for kind in ("running", "moving") for what in ("mean", "var", "variance")}

Tree = Any  # nested tuples, lists, dictionaries and what else JAX takes for a pytree
Loss = Callable[[Tree, Tree], Any]


class JaxPartitions:
    """A function's training data in partitions; see :class:`~anyk.problems.base.Partitions`."""

    def __init__(self, loss: Loss, params: Tree, data: Tree, ends: NDArray[np.int64], *, mean: bool) -> None:
        import jax

        flat = _ravel(params)[0]
        self.sizes = tuple(np.diff(ends).tolist())
        self.dtype, self.dimension = np.dtype(flat.dtype), int(flat.size)
        self._loss, self._params, self._mean = loss, jax.tree.map(np.asarray, params), mean
        self._data, self._bounds = data, list(pairwise(ends.tolist()))
        config: Any = jax.config
        self._wide = bool(config.jax_enable_x64)
        self._gradient: Callable[[Vector, Tree], Any] | None = None
        self._compiled: set[int] = set()
        self.tolerance = 0.0

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_gradient": None, "_compiled": set()}

    def load(self, partitions: Sequence[int]) -> None:
        """See :class:`~anyk.problems.base.Partitions`; compiles for each size of partition."""
        import jax

        config: Any = jax.config
        if "ANYK_WORKER" in os.environ:  # a process of its own, in which JAX has computed nothing yet
            os.environ["NPROC"] = "1"  # threads that XLA starts
            os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_multi_thread_eigen=false"
            config.update("jax_platforms", "cpu")
        if bool(config.jax_enable_x64) != self._wide:
            config.update("jax_enable_x64", self._wide)
        if self._gradient is None:
            self._gradient = self._gradient_function()
        for j in partitions:
            if self.sizes[j] not in self._compiled:
                self._compiled.add(self.sizes[j])
                self.partial_gradient(j, np.zeros(self.dimension, dtype=self.dtype))

    def piece(self, first: int, last: int) -> JaxPartitions:
        """See :class:`~anyk.problems.base.Partitions`."""
        made = copy(self)
        made._bounds = [(self._bounds[first][0], self._bounds[last][1])]
        made.sizes = (sum(self.sizes[first : last + 1]),)
        return made

    def compare_replicas(self) -> None:
        """See :class:`~anyk.problems.base.Partitions`; nothing is computed before the run."""
        self.tolerance = float(np.finfo(self.dtype).eps) ** 0.5

    def _gradient_function(self) -> Callable[[Vector, Tree], Any]:
        """The gradient, at a flat model, of the sum of a batch's losses; compiled once for each number of rows."""
        import jax

        return jax.jit(jax.grad(sum_of_losses(self._loss, self._params, mean=self._mean)))

    def support(self, partition: int) -> Index | None:
        """All coordinates."""
        del partition
        return None  # as opposed to an index of some

    def partial_gradient(self, partition: int, w: Vector, rows: Index | None = None, /) -> Vector:
        """See :class:`~anyk.problems.base.Partitions`."""
        if self._gradient is None:
            self.load(())
        assert self._gradient is not None
        first, last = self._bounds[partition]
        batch = chosen(self._data, slice(first, last) if rows is None else rows + first)
        return np.asarray(self._gradient(w, batch))


def _ravel(params: Tree) -> tuple[Any, Callable[[Any], Tree]]:
    from jax.flatten_util import ravel_pytree

    return ravel_pytree(params)


def sum_of_losses(loss: Loss, params: Tree, *, mean: bool) -> Callable[[Any, Tree], Any]:
    """The sum of a batch's losses as a function of a flat model, shaped as ``params`` are."""
    import jax

    _, unravel = _ravel(params)

    def total(flat: Any, batch: Tree) -> Any:
        value = loss(unravel(flat), batch)
        return value * jax.tree.leaves(batch)[0].shape[0] if mean else value

    return total


def chosen(data: Tree, rows: slice | Index) -> Tree:
    """Some rows of every array."""
    import jax

    return jax.tree.map(lambda array: array[rows], data)


def _arrays(data: Tree, name: str, dtype: np.dtype[Any]) -> tuple[Tree, int]:
    """Data as NumPy arrays of the number types that JAX computes in, and how many rows they have."""
    import jax

    def plain(leaf: Any) -> NDArray[Any]:
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

    made = jax.tree.map(plain, data)
    lengths = [len(leaf) for leaf in jax.tree.leaves(made)]
    if len(set(lengths)) != 1:
        raise BadInput(f"the arrays of {name} must have one entry for each sample, got {lengths} entries")
    return made, lengths[0]


class JaxProblem:
    """A loss written in JAX; see :class:`~anyk.problems.base.Problem`.

    The objective is ``(1/N) sum of sample losses + (l2/2) |w|^2`` over the leaves of ``params``, a pytree of float32 or
    float64 arrays (the latter with ``jax_enable_x64``, which workers then turn on, too). The model begins as ``params``
    is, flattened by ``jax.flatten_util.ravel_pytree``; :meth:`params_at` gives a pytree back.

    - ``loss(params, batch)`` gives the mean over the batch's rows, or their sum with ``reduction="sum"``. It must be
      one that ``jax.jit`` and ``jax.grad`` take, and a function of its arguments alone: what is random comes with the
      data. A mean that is not one over the rows alike, as over the targets that are not padding, is refused, unless
      ``reduction="mean"`` says that it is meant so, as of a loss that normalises by the batch.
    - ``params`` is trained as a whole: of a Flax model give ``variables["params"]``, of an Equinox model the arrays.
      What is known to be state (``batch_stats``, say) is refused.
    - ``data``: a pytree of arrays with equal first axis; a batch is the same pytree with some rows. The arrays exist
      once on a machine. ``held_out`` likewise.
    - ``metrics``: functions of (params, batch) for all held-out rows, by name; the first one is the run's, and
      ``better`` says whether high is good. Left out: ``held_out_loss``.
    - ``workers``: what workers compute with: ``"jax"``, on one thread of the CPU, compiled once for each number of
      rows; or ``"numpy"``: workers need no JAX. They run the gradient as :func:`anyk.decompile.to_python` writes it
      down (:meth:`source` shows it), which is plain text, and nothing is unpickled. The source is for one number of
      rows: under a strategy with mini-batches say theirs, ``batch``.

    Raises :class:`~anyk.errors.BadInput` for what cannot work: the loss is traced on two rows first, and computed on up
    to 32.

    >>> import jax.numpy as jnp
    >>> def loss(params, batch):
    ...     return jnp.mean((batch["x"] @ params["w"] + params["b"] - batch["y"]) ** 2)
    >>> data = {"x": np.eye(6, 3), "y": np.ones(6)}
    >>> problem = JaxProblem(loss, {"w": np.zeros(3), "b": 0.0}, data)
    >>> problem.dimension, problem.loss(problem.initial())
    (4, 1.0)
    >>> run = anyk.train(problem, "frc:load=2", anyk.clusters.Simulated(4), steps=1, optimizer=anyk.optimizers.GD())
    >>> float(problem.params_at(run.model)["b"])
    2.0
    """

    def __init__(
        self,
        loss: Loss,
        params: Tree,
        data: Tree,
        *,
        held_out: Tree = None,
        l2: float = 0.0,
        reduction: Literal["mean", "sum"] | None = None,
        metrics: Mapping[str, Loss] | None = None,
        better: Literal["higher", "lower"] | None = None,
        workers: Literal["jax", "numpy"] = "jax",
        batch: int = 0,
    ) -> None:
        try:
            import jax
        except ImportError:
            raise MissingPackage("JAX", "jax", "JaxProblem") from None
        if workers not in ("jax", "numpy"):
            raise BadInput(f"workers must be 'jax' or 'numpy', got '{workers}'")
        check(l2, float, "l2")
        if check(batch, int, "batch") < 0:
            raise BadInput(f"batch must be at least 0 rows, got {batch}")
        self._workers, self._batch = workers, batch
        if reduction not in (None, "mean", "sum"):
            raise BadInput(f"the loss of a batch must be its mean or its sum, got reduction '{reduction}'")
        if not 0.0 <= l2 < float("inf"):
            raise BadInput(f"l2 must be a finite number of at least 0, got {l2:g}")
        self.l2, self._loss, self._mean = float(l2), loss, reduction != "sum"
        self._params = _own(params)
        flat, self._unravel = _ravel(self._params)
        self._initial: Vector = np.array(flat)
        self.dtype, self.dimension = self._initial.dtype, self._initial.size
        self.shapes = [np.shape(leaf) for leaf in jax.tree.leaves(self._params)]
        self._data, self.samples = _arrays(data, "the data", self.dtype)
        self._held_out: Tree = None
        if held_out is not None:
            self._held_out, self._held = _arrays(held_out, "held_out", self.dtype)
        self._metrics = None if metrics is None else dict(metrics)
        if self._metrics == {}:
            raise BadInput("metrics must name at least one function, or be left out")
        self.metric = next(iter(self._metrics or ["held_out_loss"]))
        self.better: Literal["higher", "lower"] = better or ("higher" if self._metrics else "lower")
        total = sum_of_losses(loss, self._params, mean=self._mean)
        self._try(total, self._data, self.samples, "the data")
        if self._held_out is not None and self._metrics is None:
            self._try(total, self._held_out, self._held, "held_out")
        if reduction is None:
            self._try_sum(total)
        self._total = jax.jit(total)

    def __repr__(self) -> str:
        return problem_text(self)

    def _try(self, total: Callable[[Any, Tree], Any], data: Tree, rows: int, name: str) -> None:
        """Trace the gradient on some rows: nothing is computed."""
        import jax

        if not rows:
            raise BadInput(f"{name} has no rows")
        some = min(2, rows)
        batch = chosen(data, slice(0, some))
        try:
            shape = jax.eval_shape(total, self._initial, batch).shape
            if shape == ():
                jax.eval_shape(jax.grad(total), self._initial, batch)
        except Exception as error:
            first = (str(error).splitlines() or [""])[0]
            raise BadInput(
                f"the loss fails on the first {some} rows of {name}: {type(error).__name__}: {first}"
            ) from None
        if shape != ():
            raise BadInput(f"the loss must give one number for a batch, its mean or sum, got shape {shape}")

    def _try_sum(self, total: Callable[[Any, Tree], Any]) -> None:
        """Refuse a loss of several rows that is not the mean of theirs, in value or gradient; where it can be told."""
        import jax

        both = jax.jit(jax.value_and_grad(total))

        def at(rows: Index) -> Vector:
            value, gradient = both(self._initial, chosen(self._data, rows))
            return np.append(np.asarray(gradient, dtype=np.float64), float(value))

        for rows in telling(jax.tree.leaves(self._data), self.samples):
            try:
                whole, alone = at(rows), [at(rows[i : i + 1]) for i in range(len(rows))]
            except Exception:  # what fails in a run is said there
                return
            if not np.isfinite(whole).all():
                continue
            apart, largest = np.abs(np.sum(alone, axis=0) - whole).max(), np.abs(alone).sum(axis=0).max()
            if not apart <= _ROUNDED * largest:
                raise is_no_sum(
                    f"rows {', '.join(map(str, rows))}",
                    mean=True,
                    way="to leave out targets or weigh them give a loss that is a sum over rows, with reduction='sum'; "
                    "one that normalises by the batch is taken as it is with reduction='mean'",
                )

    def split(self, partitions: int, shares: Sequence[int] | None = None) -> JaxPartitions | DecompiledPartitions:
        """See :class:`~anyk.problems.base.Problem`; raises when there are fewer rows than partitions."""
        ends = cut(self.samples, partitions, shares)
        if self._workers == "jax":
            return JaxPartitions(self._loss, self._params, self._data, ends, mean=self._mean)
        import jax

        sizes = set(np.diff(ends).tolist())
        wanted = sizes | {min(self._batch, size) for size in sizes if self._batch}
        sources = {rows: self.source(rows) for rows in sorted(wanted)}
        return DecompiledPartitions.of(sources, jax.tree.leaves(self._data), ends.tolist(), self._initial)

    def source(self, rows: int) -> Source:
        """The gradient of the sum of the losses of so many rows, as NumPy: a function of the flat model and the arrays.

        The arrays are the leaves of ``data``, in JAX's order.
        """
        import jax

        from anyk.decompile import to_python

        leaves, tree = jax.tree.flatten(chosen(self._data, slice(0, 1)))
        like: Any = jax.ShapeDtypeStruct
        examples = [like((rows, *leaf.shape[1:]), leaf.dtype) for leaf in leaves]
        total = sum_of_losses(self._loss, self._params, mean=self._mean)

        def gradient(model: Any, *arrays: Any) -> Any:
            return jax.grad(total)(model, jax.tree.unflatten(tree, arrays))

        model = like(self._initial.shape, self._initial.dtype)
        return to_python(gradient, model, *examples, target="numpy")

    def initial(self) -> Vector:
        """The parameters that the problem was given, as one vector."""
        return self._initial.copy()

    def loss(self, w: Vector) -> float:
        """See :class:`~anyk.problems.base.Problem`."""
        return self._mean_loss(self._data, self.samples, w) + 0.5 * self.l2 * float(w @ w)

    def metrics(self, w: Vector) -> dict[str, float]:
        """See :class:`~anyk.problems.base.Problem`."""
        if self._held_out is None:
            return {}
        if self._metrics is None:
            return {"held_out_loss": self._mean_loss(self._held_out, self._held, w)}
        params = self.params_at(w)
        return {name: float(metric(params, self._held_out)) for name, metric in self._metrics.items()}

    def sampled(self, samples: int) -> Self:
        """See :class:`~anyk.problems.base.Problem`."""
        made = copy(self)
        made._data = chosen(self._data, some_rows(self.samples, samples, "train"))
        made.samples = min(samples, self.samples)
        if self._held_out is not None:
            made._held_out = chosen(self._held_out, some_rows(self._held, samples, "held out"))
            made._held = min(samples, self._held)
        return made

    def params_at(self, w: Vector) -> Tree:
        """The pytree of parameters that the vector ``w`` (length d) stands for."""
        import jax.numpy as jnp

        return self._unravel(jnp.array(w))

    def digest(self) -> str | None:
        """See :class:`~anyk.problems.base.Problem`."""
        return digest_of(self._data, self._held_out)

    def recipe(self) -> dict[str, Any] | None:
        """None: it is made in Python."""
        return None

    def _mean_loss(self, data: Tree, rows: int, w: Vector) -> float:
        ends = cut(rows, -(-rows // _EVALUATED)).tolist()
        return sum(float(self._total(w, chosen(data, slice(a, b)))) for a, b in pairwise(ends)) / rows


def _own(params: Tree) -> Tree:
    """The parameters as arrays of one kind of number; raises where something in them is not to be trained."""
    import jax

    for path, node in jax.tree_util.tree_flatten_with_path(params, is_leaf=lambda node: _state(node) is not None)[0]:
        name = jax.tree_util.keystr(path)
        state = _state(node) or (path and _key(path[-1]) in _RUNNING and f"'{_key(path[-1])}'")
        if state and not jax.tree.leaves(node):
            continue  # only a place for it
        if state:
            raise BadInput(
                f"params{name} holds {state}, which is not to be trained, and JaxProblem keeps no state; give the "
                "trainable parameters alone (variables['params'], nnx.state(model, nnx.Param)) and normalise by the "
                "batch or within a sample (LayerNorm)"
            )
        if not _is_array(node):
            kind = "a function" if callable(node) else f"of type {type(node).__name__}"
            raise BadInput(
                f"params{name} must be an array, it is {kind}; give the arrays alone and put the rest into the loss "
                "(for equinox: arrays, rest = equinox.partition(model, equinox.is_inexact_array), and "
                "equinox.combine(params, rest) in the loss)"
            )
    leaves = [jax.numpy.asarray(leaf) for leaf in jax.tree.leaves(params)]
    kinds = {str(leaf.dtype) for leaf in leaves}
    if not kinds:
        raise BadInput("params has no array to train")
    if len(kinds) > 1 or not kinds <= {"float32", "float64"}:
        raise BadInput(f"the arrays of params must all be float32 or all float64, got {', '.join(sorted(kinds))}")
    return jax.tree.map(np.asarray, jax.tree.unflatten(jax.tree.structure(params), leaves))


def _is_array(leaf: Any) -> bool:
    import jax

    if isinstance(leaf, (bool, str, bytes)):
        return False
    try:
        jax.numpy.asarray(leaf)
    except (TypeError, ValueError):
        return False
    return True


def _state(node: Any) -> str | None:
    """What state of the common libraries a node of a pytree is, in words; None where it is not known to be any."""
    if isinstance(node, Mapping):  # of Flax's linen, one collection beside another
        found = [key for key in node if key in _COLLECTIONS]
        if isinstance(node.get("params"), Mapping):
            found += [key for key, value in node.items() if key != "params" and isinstance(value, Mapping)]
        return f"the collection '{found[0]}'" if found else None
    kinds = {(base.__module__.partition(".")[0], base.__name__) for base in type(node).__mro__}
    variable = ("flax", "Variable") in kinds and ("flax", "Param") not in kinds
    if variable or kinds & {("equinox", "State"), ("equinox", "StateIndex")}:
        return f"a {type(node).__name__}"
    return None


def _key(entry: Any) -> Any:
    """The key or attribute that an entry of a path in a pytree stands for."""
    return getattr(entry, "key", getattr(entry, "name", None))
