"""JAX functions: any loss of a pytree of parameters or of a module, and gradients on flat vectors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from anyk.base.arrays import Floats, Vector
from anyk.base.checks import AtLeastZero, typed
from anyk.base.errors import BadInput, needing
from anyk.problems.base import NO_HELD_OUT, Better, cut
from anyk.problems.data.sample_batches import Samples
from anyk.problems.digests import digest_of
from anyk.problems.jax.decompiling import decompiling
from anyk.problems.jax.given_model import GivenModel, sketch_of
from anyk.problems.jax.loss_checks import check_sum, check_weighted, try_loss
from anyk.problems.jax.loss_partitions import TOGETHER, DecompiledPartitions, JaxPartitions, data_of, sums_of
from anyk.problems.jax.model_loss import SEED, Averages, JaxNetwork, names_of, seed_for
from anyk.problems.jax.pytrees import Held, Trainable, Tree, distinct, is_array, kind_of, model_of
from anyk.problems.linear.scaling import checked_l2
from anyk.problems.model_files import write_model_file
from anyk.problems.network_problem import (
    HELD_OUT_LOSS,
    NO_METRICS,
    NetworkProblem,
    check_metrics,
    fresh,
    is_collected,
    metric_number,
    with_weights,
)
from anyk.problems.surroundings import Variables, variables_of
from anyk.problems.values import Leaves, Values
from anyk.problems.watch import DATA, CodeWatch, Computing, rounding

if TYPE_CHECKING:
    from readjax import Source

_WITHOUT_JAX = "JaxProblem(workers='numpy')"
_RENEWED = 1024  # rows of shards from which running statistics are computed to evaluate
_TRIED = 4  # rows from which the moving averages of a state are learned
_LOSS = HELD_OUT_LOSS

Loss = Callable[..., Any]


@typed
class JaxProblem(NetworkProblem):
    """A loss written in JAX; see :class:`~anyk.problems.base.Problem`.

    The objective is ``(1/N) sum of sample losses + (l2/2) |w|^2`` over the trained part of ``params``: arrays of
    float32 or float64 (the latter with ``jax_enable_x64``, which workers then turn on, too). The initial model is
    ``params``, flattened as by ``jax.flatten_util.ravel_pytree``; :meth:`params_at` returns it with other values.

    - ``loss(params, batch)`` returns the mean over the batch's rows, or their sum with ``reduction="sum"``. ``jax.jit``
      and ``jax.grad`` must accept it, and it must be a function of its arguments alone. A mean that does not weigh all
      rows alike, such as a mean over the targets that are not padding, is refused, unless ``reduction="mean"`` states
      that it is intended, as with a loss that normalises by the batch.
    - ``params``: a pytree of arrays (``variables["params"]`` of a linen module), a module of Equinox, or one of Flax's
      nnx. The floating-point arrays, or the ``Param`` variables, of a module are trained, and the loss is called with
      the module: for evaluation, in inference mode.
    - ``trainable``: the parameters to train, as a pytree of bools with the structure of ``params`` (or its upper part),
      or as a function of a parameter's path, ``lambda path: path.startswith("head/")``. Others are sent to workers once
      and do not change.
    - ``rng=True``: the loss takes ``key``, a JAX key that depends on the model, the partition and the rows alone, so
      that replicas agree and a run replays. Random streams of an nnx module are keyed without it.
    - ``state``: the initial state that the loss takes as ``state`` and updates, such as running statistics of batch
      norm. Workers begin each gradient with it and drop its changes; for evaluation it is computed anew over the
      training data (:meth:`state_at`). An nnx module has its own state.
    - ``has_aux=True``: the loss returns metrics, numbers by name, beside its value. On held-out data they are averaged
      over the rows and reported.
    - The loss returns its value, ``(value, state)``, ``(value, metrics)`` or ``(value, (state, metrics))``. If it takes
      ``train``, this is True for gradients and False for evaluation; with a ``state`` it must take it, unless the model
      is a module.
    - ``data``: a pytree of arrays with equal first axis; a batch is the same pytree with some rows. The arrays exist
      once on a machine. Or :class:`~anyk.data.Shards`, files that the driver never opens: a batch is then ``(X, y)``,
      or a dictionary if ``read`` returns one. Or :class:`~anyk.data.Stream`, whose samples are pytrees of one row each.
    - ``held_out``: held-out data in the same forms, except streams.
    - ``weights``: weights of the rows of arrays, at least 0. The objective is then the weighted mean, ``sum w_i loss_i
      / sum w_i + (l2/2) |w|^2``; the loss of each row is computed from this row alone (``jax.vmap``).
      ``sampling="weights"`` draws the rows of mini-batches with replacement, in proportion to their weights, for the
      same objective; by default a row's gradient is multiplied by its weight. ``held_out_weights``: the same for
      held-out rows; functions of the user get them as ``weights``.
    - ``metrics``: functions of (params, batch) for all held-out rows, by name, which may take ``state``; objects with
      ``update(params, batch)`` and ``compute()``, which receive batch after batch; or the names of metrics that the
      loss returns. The first one is the run's metric, and ``better`` specifies whether higher or lower is better
      (default: what an object states in ``higher_is_better``). Default: ``held_out_loss`` and the loss's own metrics.
    - ``values``: numbers and pytrees of arrays by name that change during a run, such as a temperature. A function of
      the step is a schedule; a loop (:func:`anyk.rounds`) sets others (``step.values["beta"] = 0.1``). They travel to
      the workers with each version of the model. The loss receives those that it has a parameter for, ``loss(params,
      batch, beta)``, or all of them in a parameter called ``values``.
    - ``platform``: where workers compute: ``"cpu"``, on one thread, or ``"gpu"``, spread over a machine's devices.
    - ``workers``: the framework of the workers: ``"jax"``, compiled once for each number of rows; or ``"numpy"``, so
      that workers need no JAX. They run the gradient's source, written by :func:`readjax.to_python`
      (:meth:`source` shows it), which is plain text, and nothing is unpickled. The source is for one number of rows:
      for a strategy with mini-batches give their size, ``batch``.

    Raises :class:`~anyk.BadInput` for problems that cannot be trained: the loss is first traced on two rows, and
    computed on up to 32.

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
    >>> JaxProblem(loss, {"w": np.zeros(3), "b": 0.0}, data, trainable={"w": True, "b": False}).dimension
    3
    """

    _last: tuple[Vector, Held] | None = None  # the last model, and the constants with a state that suits it

    def __init__(
        self,
        loss: Loss,
        params: Any,
        data: Tree,
        *,
        held_out: Tree = None,
        l2: float = 0.0,
        reduction: Literal["mean", "sum"] | None = None,
        rng: bool = False,
        has_aux: bool = False,
        state: Tree = None,
        trainable: Trainable = None,
        metrics: Mapping[str, Loss] | Sequence[str] | None = None,
        better: Better | None = None,
        platform: Literal["cpu", "gpu"] = "cpu",
        workers: Literal["jax", "numpy"] = "jax",
        batch: AtLeastZero = 0,
        weights: Any = None,
        held_out_weights: Any = None,
        sampling: Literal["uniform", "weights"] = "uniform",
        values: Mapping[str, Any] | None = None,
    ) -> None:
        with needing("JAX", "jax", "JaxProblem"):
            import jax
        if workers == "numpy":
            with decompiling(_WITHOUT_JAX):
                pass  # refused at once where it is not installed
        self._workers, self._batch, self._platform = workers, batch, platform
        self.l2 = checked_l2(l2)
        model = model_of(params, trainable)
        self._network = JaxNetwork(
            loss, model, mean=reduction != "sum", rng=rng, has_aux=has_aux, state=state is not None
        )
        self._given = GivenModel(params, trainable)
        self._loss_variables = variables_of({"the loss": loss})
        self._initial: Vector = np.concatenate([array.reshape(-1) for array in model.begin])
        self.dtype, self.dimension = self._initial.dtype, self._initial.size
        self.shapes = self._network.shapes
        self.changing_values: Values = _values_of(values)
        self._network.take_values(self.changing_values.names)
        initial = self.changing_values.build(self.changing_values.initial)
        self._held = Held(model.fixed, _state_of(state, self._network), initial)
        if workers == "numpy":
            _check_without_jax(self._network, self.changing_values, platform)
        samples = data_of(data, "the data", self.dtype)
        self._set_samples(samples, None if held_out is None else data_of(held_out, "held_out", self.dtype, samples))
        if workers == "numpy" and not self._data.in_memory:
            raise BadInput("workers='numpy' take arrays in memory; leave it out for workers that have JAX")
        self._set_weights(weights, held_out_weights, sampling)
        self._given_weights = weights
        self._note_given(data, held_out, weights, held_out_weights)
        if self._weighted:
            check_weighted(self._network, reduction, workers)
        remark = try_loss(self._network, self._initial, self._held, self._data.head, "the data")
        if self._held_out is not None and (has_aux or not isinstance(metrics, Mapping)):
            head = self._held_out.head
            remark = try_loss(self._network, self._initial, self._held, head, "held_out", gradient=False)
        self._set_metrics(metrics, remark, has_aux)
        self._set_better(better, self._functions.get(self.metric), own=self.metric != _LOSS)
        if reduction is None or self._weighted:
            check_sum(self._network, self._initial, self._held, self._data.head)
        self._stepped = jax.jit(self._network.stepped)
        self._averages = None
        if self._network.keeps:
            batch = self._data.head.batch(slice(0, min(_TRIED, self._data.head.tried)))
            self._averages = Averages.of(
                lambda state: self._stepped(self._initial, self._held._replace(state=state), batch, SEED),
                self._held.state,
            )

    def _set_metrics(self, metrics: object, from_loss: list[str], has_aux: bool) -> None:
        """Set the metrics to report: the user's functions, the held-out loss, and those ``from_loss``."""
        self._functions: dict[str, Loss] = {}
        if not (metrics is None or isinstance(metrics, Sequence)):
            self._functions = check_metrics(metrics)
        for name in from_loss:
            if name == _LOSS or name in self._functions:
                raise BadInput(f"there are two metrics called '{name}'; have the loss give its own another name")
        together = not all(map(is_collected, self._functions.values()))
        if together and self._held_out is not None and not self._held_out.in_memory:
            raise BadInput(
                "functions as metrics take all held-out rows at once, and shards need not fit into memory; give "
                "held_out as arrays, or metrics that the loss gives (has_aux=True) or that have update and compute"
            )
        names = [*(self._functions or [_LOSS]), *from_loss]
        if isinstance(metrics, Sequence):
            names = [metrics] if isinstance(metrics, str) else list(metrics)
            _check_given_by_loss(names, from_loss, has_aux=has_aux)
        if self._functions and self._held_out is None:
            raise BadInput(NO_HELD_OUT)
        if not names:
            raise BadInput(NO_METRICS)
        self._names, self.metric = names, names[0]

    def split(self, partitions: int, shares: Sequence[int] | None = None) -> JaxPartitions | DecompiledPartitions:
        """Divide the rows into partitions; raise :class:`~anyk.BadInput` for fewer rows than partitions."""
        ends, data = cut(self.samples, partitions, shares), self._data
        if self._workers == "jax":
            parts = JaxPartitions(
                self._network, self._held, data, ends, self.dtype, platform=self._platform, values=self.changing_values
            )
            parts.by_weight = self.by_weight
            return parts
        sizes = set(np.diff(ends).tolist())
        wanted = sizes | {min(self._batch, size) for size in sizes if self._batch}
        sources = {rows: self.source(rows) for rows in sorted(wanted)}
        texts = {rows: (source.text, source.digest) for rows, source in sources.items()}
        return DecompiledPartitions(texts, data.arrays, ends.tolist(), self.dimension, self.dtype)

    def watch_code(self) -> CodeWatch:
        """Return an object that notices if the given loss or model compute something else than now."""
        network = self._network
        roots = {"the loss": network.loss, DATA: self._data.arrays, **self._data.code}
        if self._given_weights is not None:
            roots[f"{DATA}'s weights"] = self._given_weights

        def variables(*, arrays: bool = True) -> Variables:
            return self._given.variables(arrays=arrays) | variables_of(roots, arrays=arrays)

        def sketch(rows: int) -> Floats:
            model = self._given.now()
            state = self._held.state if model.state is None else model.state
            constants = self._held._replace(fixed=model.fixed, state=state)
            return sketch_of(network.with_model(model), constants, self._data.head, rows)

        return CodeWatch(Computing(variables, sketch), rounding(self.dtype))

    def check_unchanged(self, *, begins: bool) -> list[str]:
        """Refuse a model or data that have changed since the problem was made; return a sentence on other numbers.

        ``begins``: whether the run begins with the problem's initial parameters.
        """
        self._given_arrays.check()
        self._follow_loss()
        return self._given.check_unchanged(self._network, self._held, self._data.head, begins=begins)

    def _follow_loss(self) -> None:
        """Compile anew if the loss reads other variables than when it was last compiled: they are constants in it."""
        import jax

        now = variables_of({"the loss": self._network.loss})
        if now != self._loss_variables:
            self._network = self._network.with_model(self._network.model)
            self._stepped, self._last = jax.jit(self._network.stepped), None
            self._loss_variables = now

    def with_values(self, leaves: Leaves) -> JaxProblem:
        """Return the problem with other values, with which it is evaluated."""
        other = copy(self)
        other._held, other._last = self._held._replace(values=self.changing_values.build(leaves)), None
        return other

    def source(self, rows: int) -> Source:
        """Return the NumPy source of the gradient of the summed losses of ``rows`` rows.

        It is a function of the flat model and the arrays, which are the leaves of ``data`` in JAX's order.
        """
        import jax

        leaves, tree = jax.tree.flatten(self._data.head.batch(slice(0, 1)))
        like: Any = jax.ShapeDtypeStruct
        examples = [like((rows, *leaf.shape[1:]), leaf.dtype) for leaf in leaves]

        def gradient(model: object, *arrays: Any) -> Any:
            return self._network.gradient(model, self._held, jax.tree.unflatten(tree, arrays), SEED)

        model = like(self._initial.shape, self._initial.dtype)
        with decompiling(_WITHOUT_JAX):
            from readjax import to_python

            return to_python(gradient, model, *examples, target="numpy")

    def initial(self) -> Vector:
        """Return the given parameters, as one vector."""
        return self._initial.copy()

    def _mean_loss(self, w: Vector) -> float:
        return self._sums(self._data, w)[_LOSS] / len(self._data)

    def metrics(self, w: Vector) -> dict[str, float]:
        if self._held_out is None:
            return {}
        metrics: dict[str, float] = {}
        if self._functions:
            state = self._held_at(w)
            full_model = self._network.at(self._vector(w), state)
            for name, metric in self._functions.items():
                metrics[name] = metric_number(name, _measure(name, metric, self._held_out, full_model, state))
        if set(self._names) - set(metrics):
            weights = self._held_out.weights
            total = len(self._held_out) if weights is None else float(weights.sum())
            metrics |= {name: value / total for name, value in self._sums(self._held_out, w).items()}
        return {name: metrics[name] for name in self._names}

    def params_at(self, w: Vector) -> Any:
        """Return ``params`` with the parameters ``w`` (length d): a pytree, or a module for evaluation.

        A module of nnx has matching running statistics; :meth:`state_at` returns the state for other models.
        """
        state = self._held_at(w) if self._network.model.state is not None else self._held
        return self._network.at(self._vector(w), state)

    def write_model(self, w: Vector, file: Path) -> None:
        """Write the arrays of ``params`` at ``w`` as safetensors, as runs do.

        Names are the paths that ``trainable`` receives, ``Dense_0/kernel``; names of the state begin with ``state/``.
        """
        import jax
        from safetensors.numpy import save

        state = self._held_at(w)
        arrays = self._network.model.named(self._network.pieces(self._vector(w)), state.fixed)
        paths = jax.tree_util.tree_flatten_with_path(state.state)[0]
        names = (f"state/{jax.tree_util.keystr(path, simple=True, separator='/')}" for path, _ in paths)
        arrays |= distinct(zip(names, (leaf for _, leaf in paths), strict=True))

        def write(name: str, metadata: dict[str, str]) -> None:
            with Path(name).open("xb") as new:
                new.write(save(arrays, metadata))

        write_model_file(file, write)

    def state_at(self, w: Vector) -> Tree:
        """Return the state for evaluation at ``w`` (length d), in the form of ``state``; raise if there is none."""
        import jax

        if self._averages is None:
            raise BadInput("the problem has no state; one that the loss updates is given as state=…")
        return jax.tree.map(jax.numpy.asarray, self._held_at(w).state)

    def trained_at(self, w: Vector) -> Tree:
        """Return the pytree of the trained arrays at ``w``, with None for all others, as optimisers see it."""
        return self._network.model.trained(self._network.pieces(self._vector(w)))

    def digest(self) -> str | None:
        """Return a digest of the data, by which a later change is noticed; None if there is none."""
        held_out = None if self._held_out is None else _content(self._held_out)
        return digest_of(_content(self._data), held_out, *self._weights())

    def _vector(self, w: object) -> object:
        self._check_model(w)
        import jax

        # while jax differentiates or compiles a function, w has no values
        return w.astype(self.dtype) if isinstance(w, jax.core.Tracer) else np.asarray(w, dtype=self.dtype)

    def _held_at(self, w: Vector) -> Held:
        """Return the constants with a state that suits ``w``; the last is cached, as loss and metrics share it."""
        if self._averages is None:
            return self._held
        if self._last is None or not np.array_equal(self._last[0], w):
            begin = self._held._replace(state=self._averages.start)
            data = self._data if self._data.in_memory else self._data.some(_RENEWED, "statistics")
            states = (self._stepped(w, begin, *batch) for batch in _batches(data, "statistics"))
            self._last = w.copy(), self._held._replace(state=self._averages.at(states))
        return self._last[1]

    def _sums(self, data: Samples, w: Vector) -> dict[str, float]:
        """Return the sums of the loss and its metrics over the rows, times their weights."""
        state = self._held_at(w)
        sums: dict[str, float] = {}
        for sample_batch in data.parts(0, len(data), most=TOGETHER):
            total, metrics = sums_of(self._network, w, state, sample_batch)
            for name, value in {_LOSS: total, **metrics}.items():
                sums[name] = sums.get(name, 0.0) + value
        return sums


def _values_of(values: Mapping[str, Any] | None) -> Values:
    """Return values that change, after a check of their names."""
    changing = Values(values or {})
    if reserved := sorted({"key", "state", "train"}.intersection(changing.names)):
        raise BadInput(f"'{reserved[0]}' is a name that the loss's own arguments have; call the value otherwise")
    return changing


def _check_without_jax(network: JaxNetwork, values: Values, platform: str) -> None:
    """Raise BadInput for what workers without JAX cannot compute."""
    if values.names:
        raise BadInput("workers='numpy' compute with constants, and values change; leave out one of them")
    if network.random or platform != "cpu":
        raise BadInput("workers='numpy' compute on the CPU and draw no random numbers; leave out platform and rng")


def _check_given_by_loss(names: Sequence[str], from_loss: Sequence[str], *, has_aux: bool) -> None:
    """Raise BadInput for the name of a metric that is neither the loss nor one ``from_loss``."""
    for name in names:
        if name not in (_LOSS, *from_loss):
            has = ", ".join(from_loss) if from_loss else f"none{'' if has_aux else ' without has_aux=True'}"
            raise BadInput(f"metrics names {name!r}, but the loss gives {has}; give functions by name for others")


def _measure(name: str, metric: Any, data: Samples, full_model: Any, constants: Held) -> Any:
    """Return a user's metric of all rows; one with ``update`` and ``compute`` receives batch after batch."""
    collected = fresh(metric) if is_collected(metric) else None
    call = metric if collected is None else collected.update
    options = {"state": constants.state} if "state" in names_of(call) and constants.state is not None else {}
    if collected is None:
        return with_weights(partial(call, **options), name, (full_model, _content(data)), data.weights)
    for sample_batch in data.parts(0, len(data), most=TOGETHER):
        with_weights(partial(call, **options), name, (full_model, sample_batch.batch), sample_batch.weights)
    return collected.compute()


def _batches(data: Samples, purpose: str) -> Iterator[tuple[Tree, Any]]:
    """Yield all rows in batches for evaluation, each with the seed of its random numbers."""
    for sample_batch in data.parts(0, len(data), most=TOGETHER):
        yield sample_batch.batch, seed_for(purpose, sample_batch.start)


def _content(data: Samples) -> Tree:
    """Return all rows in memory, or the mark of the files or the stream."""
    return data.batch(slice(None)) if data.in_memory else data.mark


def _state_of(state: Tree, network: JaxNetwork) -> Tree:
    """Return a state as arrays; raise :class:`~anyk.BadInput` if it could not be evaluated with."""
    import jax

    kept_state = network.model.state
    if state is not None and kept_state is not None:
        raise BadInput("a module of nnx keeps its state itself; leave out state")
    if state is not None:
        for path, leaf in jax.tree_util.tree_flatten_with_path(state)[0]:
            if not is_array(leaf):
                raise BadInput(f"state{jax.tree_util.keystr(path)} must be an array, it is {kind_of(leaf)}")
        if not network.switches:
            raise BadInput(
                "with a state the loss must take train, a bool: True where workers compute gradients, False where the "
                "model is evaluated, for which batch norm uses the state; as in loss(params, batch, state, train)"
            )
        kept_state = jax.tree.map(lambda leaf: np.asarray(jax.numpy.asarray(leaf)), state)
    return kept_state
