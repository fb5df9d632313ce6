"""A loss and its model, computed in the same way by a JAX problem's workers and its driver; averages in its state."""

from __future__ import annotations

import dataclasses
import inspect
import io
import pickle
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from anyk.base.arrays import Array, Floats
from anyk.base.errors import BadInput
from anyk.base.keyed import keyed_integer
from anyk.base.plain import ByName
from anyk.problems.jax.pytrees import Held, JaxArray, Model, Tree
from anyk.problems.replicas import scales_of
from anyk.problems.values import arguments, check_taken, taken_by


def _pickle_by_value(value: object) -> tuple[bytes, list[pickle.PickleBuffer]]:
    """Return the bytes of a value, whose classes may be of a script, and beside them the bytes of its arrays."""
    import cloudpickle

    class ModelPickler(cloudpickle.Pickler):  # type: ignore[misc]
        def reducer_override(self, obj: Any) -> object:
            reduced = super().reducer_override(obj)
            if isinstance(reduced, tuple) and isinstance(obj, type) and is_equinox(obj):
                make, arguments, *further = reduced
                return _class_with_fields, (make, arguments, _own_fields(obj)), *further
            return reduced

    raw: list[pickle.PickleBuffer] = []
    stream = io.BytesIO()
    ModelPickler(stream, protocol=5, buffer_callback=raw.append).dump(value)
    return stream.getvalue(), raw


def is_equinox(kind: type) -> bool:
    """Return whether a class is one of Equinox modules."""
    equinox = sys.modules.get("equinox")
    return equinox is not None and issubclass(kind, equinox.Module)


def _own_fields(kind: Any) -> dict[str, ByName]:
    """Return the arguments of the fields that a class adds to its bases."""
    annotations = inspect.get_annotations(kind)
    options = ("default", "default_factory", "init", "kw_only", "metadata")
    return {
        field.name: {
            option: dict(value) if option == "metadata" else value
            for option in options
            if (value := getattr(field, option)) is not dataclasses.MISSING
        }
        for field in dataclasses.fields(kind)
        if field.name in annotations
    }


def _class_with_fields(make: Callable[..., type], arguments: tuple[Any, ...], fields: dict[str, ByName]) -> type:
    constructor, name, bases, namespace, *further = arguments
    namespace = namespace | {"__annotations__": dict.fromkeys(fields, object)}
    namespace |= {name: dataclasses.field(**options) for name, options in fields.items()}
    return make(constructor, name, bases, namespace, *further)


EVALUATION = "evaluation"  # a purpose of random numbers
OPTIONS = {"key": "rng=True", "state": "state=…"}  # further arguments of a loss, and the options that supply them
_COMPILED = ("gradient", "weighted_gradient", "evaluation", "weighted_evaluation")  # by each process itself


class JaxNetwork:
    """A model's loss on batches, as functions of a flat vector.

    ``loss(whole, batch)`` may take ``key``, ``state`` and ``train``, by name. It returns one number; with a state
    ``(number, state)``, with ``has_aux`` ``(number, metrics)``, with both ``(number, (state, metrics))``.
    ``mean``: whether the number is a batch's mean; otherwise it is its sum.
    """

    def __init__(self, loss: Any, model: Model, *, mean: bool, rng: bool, has_aux: bool, state: bool) -> None:
        self.loss, self.model, self.mean, self._has_aux, self._stateful = loss, model, mean, has_aux, state
        self.shapes = [array.shape for array in model.begin]
        self.scales = scales_of(model.begin)
        self.dtype = model.begin[0].dtype
        self._sizes = np.cumsum([prod(shape) for shape in self.shapes])[:-1].tolist()
        self.for_loss: tuple[str, ...] = ()  # the problem's values that the loss takes
        self._takes = arguments_of(loss, {name for name, is_given in (("key", rng), ("state", state)) if is_given})
        self.random = rng or model.draws
        self.switches = model.switches or "train" in self._takes
        self.keeps = state or model.state is not None
        self.dimension = sum(map(prod, self.shapes))

    def take_values(self, names: Sequence[str]) -> None:
        """Find out which of the values the loss takes; raise if there are any that it does not."""
        self.for_loss = taken_by(self.loss, names)
        check_taken(names, self.for_loss)

    def with_model(self, model: Model) -> JaxNetwork:
        """Return the same loss of another model, not compiled yet."""
        network = object.__new__(JaxNetwork)
        network.__dict__ |= {name: value for name, value in self.__dict__.items() if name not in _COMPILED}
        network.model = model
        return network

    def __reduce__(self) -> Any:
        state = {name: value for name, value in self.__dict__.items() if name not in _COMPILED}
        return _unpickle, _pickle_by_value(state)

    @cached_property
    def gradient(self) -> Callable[..., Any]:
        """The gradient of :meth:`total` at a flat model, a function that is compiled once for each number of rows."""
        import jax

        return jax.jit(jax.grad(self.total))

    @cached_property
    def evaluation(self) -> Callable[..., Any]:
        """The function :meth:`evaluated`, compiled in the same way."""
        import jax

        return jax.jit(self.evaluated)

    @cached_property
    def weighted_gradient(self) -> Callable[..., Any]:
        """The gradient of the sum of a batch's losses times weights, compiled in the same way."""
        import jax

        def total(flat: JaxArray, constants: Held, batch: Tree, seed: JaxArray, weights: JaxArray) -> Any:
            losses, _ = self._by_row(flat, constants, batch, seed, train=True)
            return weights @ losses

        return jax.jit(jax.grad(total))

    @cached_property
    def weighted_evaluation(self) -> Callable[..., Any]:
        """The function :meth:`evaluated` with weights of the rows, compiled in the same way."""
        import jax

        def evaluated(flat: JaxArray, constants: Held, batch: Tree, seed: JaxArray, weights: JaxArray) -> Any:
            losses, metrics = self._by_row(flat, constants, batch, seed, train=False)
            return weights @ losses, {name: weights @ values for name, values in metrics.items()}

        return jax.jit(evaluated)

    def _by_row(
        self, flat: JaxArray, constants: Held, batch: Tree, seed: JaxArray, *, train: bool
    ) -> tuple[Any, ByName]:
        """Return losses and metrics of rows, each computed from a batch of its own with random numbers of its own."""
        import jax

        def single(row: Tree, number: JaxArray) -> tuple[Any, ByName]:
            own_seed = jax.random.key_data(jax.random.fold_in(key_of(seed), number)) if self.random else seed
            own_batch = jax.tree.map(lambda leaf: leaf[None], row)
            loss, _, metrics = self._compute(flat, constants, own_batch, own_seed, train=train)
            return loss, metrics

        return jax.vmap(single)(batch, jax.numpy.arange(rows_of(batch)))

    def total(self, flat: JaxArray, constants: Held, batch: Tree, seed: JaxArray) -> Any:
        """Return the sum of a batch's losses in training."""
        return self._compute(flat, constants, batch, seed, train=True)[0]

    def evaluated(self, flat: JaxArray, constants: Held, batch: Tree, seed: JaxArray) -> tuple[Any, ByName]:
        """Return the sums of a batch's losses and metrics in evaluation."""
        total, _, metrics = self._compute(flat, constants, batch, seed, train=False)
        rows = rows_of(batch)
        return total, {name: value * rows for name, value in metrics.items()}

    def stepped(self, flat: JaxArray, constants: Held, batch: Tree, seed: JaxArray) -> Tree:
        """Return the state after a batch, in training."""
        return self._compute(flat, constants, batch, seed, train=True)[1]

    def at(self, flat: JaxArray, constants: Held) -> Any:
        """Return the user's model with the parameters of a flat vector, for evaluation."""
        key = key_of(SEED) if self.random else None
        return self.model.whole(self.pieces(flat), constants, key, train=False)

    def pieces(self, flat: JaxArray) -> list[Any]:
        """Return the trained arrays that a flat vector consists of."""
        import jax.numpy as jnp

        if isinstance(flat, np.ndarray):  # outside of compiled functions, where JAX would compile every split
            parts = [jnp.array(piece) for piece in np.split(flat, self._sizes)]
        else:
            parts = jnp.split(flat, self._sizes)
        return [piece.reshape(shape) for piece, shape in zip(parts, self.shapes, strict=True)]

    def _compute(
        self, flat: JaxArray, constants: Held, batch: Tree, seed: JaxArray, *, train: bool
    ) -> tuple[Any, Tree, ByName]:
        key = key_of(seed) if self.random else None
        full_model = self.model.whole(self.pieces(flat), constants, key, train=train)
        options = {"key": key, "state": constants.state, "train": train}
        taken = {name: options[name] for name in self._takes} | arguments(self.for_loss, constants.values)
        value, state, metrics = self._read(self.loss(full_model, batch, **taken))
        if self.keeps:
            state = self.model.state_after(full_model) if state is None else state
            check_state(state, constants.state)
        return (value * rows_of(batch) if self.mean else value), state, metrics

    def _read(self, result: Any) -> tuple[Any, Tree, ByName]:
        """Return the value, state and metrics of a loss's result; :class:`~anyk.BadInput` for other forms."""
        wanted = {
            (False, False): "one number for a batch, its mean or sum",
            (True, False): "(number, state), as a state is given",
            (False, True): "(number, metrics), as has_aux=True says",
            (True, True): "(number, (state, metrics)), as has_aux=True says and a state is given",
        }[self._stateful, self._has_aux]
        value, state, hint = result, None, ""
        metrics: Any = {}
        match self._stateful, self._has_aux, result:
            case True, True, [value, [state, metrics]]:
                pass
            case True, False, [value, state]:
                pass
            case False, True, [value, metrics]:
                pass
            case False, False, [*_]:
                hint = "; for (number, metrics) say has_aux=True, and a new state beside the number goes with state=…"
        if value is result and (self._stateful or self._has_aux or hint):
            raise BadInput(f"the loss must give {wanted}, got {_shown(result)}{hint}")
        if getattr(value, "shape", () if isinstance(value, (int, float)) else None) != ():
            raise BadInput(f"the loss must give {wanted}, got {_shown(value)}")
        return value, state, _numbers(metrics)


def _unpickle(body: bytes, buffers: list[Any]) -> JaxNetwork:
    network = object.__new__(JaxNetwork)
    network.__dict__ |= pickle.loads(body, buffers=buffers)
    return network


SEED = np.zeros(2, dtype=np.uint32)


def seed_of(number: int) -> NDArray[np.uint32]:
    """Return a seed of 63 bits as the two words of a JAX key."""
    return np.array([number & 0xFFFF_FFFF, number >> 32], dtype=np.uint32)


def seed_for(purpose: str, first: int) -> NDArray[np.uint32]:
    """Return the seed of random numbers for rows from ``first`` on, for a ``purpose`` other than training."""
    return seed_of(keyed_integer(0, purpose, first))


def key_of(seed: JaxArray) -> Any:
    """Return the key of a seed (:func:`seed_of`), the same on all devices and under all settings."""
    import jax

    return jax.random.wrap_key_data(jax.numpy.asarray(seed), impl="threefry2x32")


def rows_of(batch: Tree) -> int:
    """Return the number of rows of a batch."""
    import jax

    return int(jax.tree.leaves(batch)[0].shape[0])


def arguments_of(loss: Any, available: set[str]) -> set[str]:
    """Return the names of a loss's arguments beside model and batch: those ``available``, and ``train``.

    Raises :class:`~anyk.BadInput` if it does not take a given argument, or needs one that is not given.

    >>> sorted(arguments_of(lambda params, batch, key, train: 0.0, {"key"}))
    ['key', 'train']
    """
    if not callable(loss):
        raise BadInput(f"the loss must be a function of (params, batch), got {type(loss).__name__}")
    parameters = names_of(loss)
    if not parameters:  # a compiled function has no signature
        return available
    names = list(parameters)
    takes_more = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
    for name in sorted(available):
        if not (takes_more or name in names[2:]):
            raise BadInput(
                f"{OPTIONS[name]} is given, but the loss takes no argument called '{name}': it is called as "
                f"loss(params, batch, {', '.join(f'{one}={one}' for one in sorted(available))}), and takes "
                f"({', '.join(names)})"
            )
    for name in set(OPTIONS) - available:
        if name in names[2:] and parameters[name].default is parameters[name].empty:
            raise BadInput(f"the loss takes '{name}', which it is given with {OPTIONS[name]} only")
    return available | ({"train"} & set(names[2:]))


def names_of(function: Any) -> Mapping[str, inspect.Parameter]:
    """Return a function's parameters by name; empty if it has no signature."""
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return {}


def check_state(state: Tree, before: Tree) -> None:
    """Raise :class:`~anyk.BadInput` if a new state has not the form of the one before."""
    import jax

    def form(tree: Tree) -> dict[str, str]:
        leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
        return {jax.tree_util.keystr(path): f"{leaf.dtype}{list(leaf.shape)}" for path, leaf in leaves}

    tree: Any = jax.tree.structure(state)
    if tree == jax.tree.structure(before) and form(state) == form(before):
        return
    try:
        state_form, wanted = form(state), form(before)
        leaf = next(leaf for leaf in wanted | state_form if wanted.get(leaf) != state_form.get(leaf))
    except (AttributeError, StopIteration):
        raise BadInput(f"the new state must be formed as the one given, got {_shown(state)}") from None
    raise BadInput(
        f"the new state must be formed as the one given: state{leaf} is {state_form.get(leaf, 'missing')} in the new "
        f"one and {wanted.get(leaf, 'missing')} in the other"
    )


def _numbers(metrics: Any) -> ByName:
    if not (isinstance(metrics, Mapping) and all(isinstance(name, str) for name in metrics)):
        raise BadInput(f"metrics beside the loss must be numbers by name, {{'accuracy': …}}, got {_shown(metrics)}")
    for name, value in metrics.items():
        if np.shape(value) != ():
            raise BadInput(f"metrics beside the loss must be numbers, '{name}' is {_shown(value)}")
    return dict(metrics)


def _shown(value: Any) -> str:
    shape = getattr(value, "shape", None)
    if shape is not None:
        return "one number" if shape == () else f"shape {tuple(shape)}"
    if isinstance(value, (tuple, list)):
        return f"{type(value).__name__} ({', '.join(map(_shown, value))})"
    return type(value).__name__


Step = Callable[[Tree], Tree]  # a state after a batch
_FAR = 2**20  # batches that a counter has counted when its averages no longer depend on their start
_ASIDE = np.float32(2**20)  # change of an average that shows how much of it remains: far above its rounding
_APART = 0.02  # change, relative to its size, that an average may show at its limit


class Averages(NamedTuple):
    """Moving averages in a state: the state that a pass starts with, and each leaf's share of its old value.

    The share is None for leaves that are no floating-point numbers.
    """

    start: Tree
    factors: list[Floats | None]

    @classmethod
    def of(cls, step: Step, state: Tree) -> Averages:
        """Learn the averages from one batch; raise :class:`~anyk.BadInput` if the state is something else.

        >>> import jax.numpy as jnp
        >>> of = Averages.of(lambda state: {"mean": 0.9 * state["mean"] + 0.1 * 5.0}, {"mean": jnp.zeros(())})
        >>> of.at([{"mean": 0.9 * 0.0 + 0.1 * 5.0}, {"mean": 0.9 * 0.0 + 0.1 * 7.0}])["mean"].round(4).item()
        6.0
        """
        import jax

        leaves, tree = jax.tree.flatten(state)
        if any(leaf.dtype.kind not in "biu" and leaf.dtype not in (np.float32, np.float64) for leaf in leaves):
            raise BadInput("the state must hold arrays of float32, float64 or whole numbers")
        once = jax.tree.leaves(step(state))
        far = [
            leaf + (new - leaf) * np.asarray(_FAR, leaf.dtype)
            if leaf.dtype.kind in "iu" and leaf.dtype.itemsize > 2
            else leaf
            for leaf, new in zip(leaves, map(np.asarray, once), strict=True)
        ]
        moved = [leaf + _ASIDE if leaf.dtype.kind == "f" else leaf for leaf in far]
        from_far, from_moved = (jax.tree.leaves(step(jax.tree.unflatten(tree, leaves))) for leaves in (far, moved))
        factors = [
            (np.asarray(b, float) - np.asarray(a, float)) / (shifted - leaf) if leaf.dtype.kind == "f" else None
            for a, b, leaf, shifted in zip(from_far, from_moved, far, moved, strict=True)
        ]
        linear = cls(jax.tree.unflatten(tree, far), factors)
        linear._check(step)
        return linear

    def at(self, states: Iterable[Tree]) -> Tree:
        """Return the state for evaluation, given the states that the batches of the data make of ``start``."""
        import jax

        begin, tree = jax.tree.flatten(self.start)
        sums: list[Any] = [0.0] * len(begin)
        count, last = 0, []
        for state in states:
            last, count = [np.asarray(leaf) for leaf in jax.tree.leaves(state)], count + 1
            sums = [total + leaf.astype(float) for total, leaf in zip(sums, last, strict=True)]
        limits = [
            new if factor is None else _limit_of(np.asarray(old), total / count, factor)
            for old, total, new, factor in zip(begin, sums, last, self.factors, strict=True)
        ]
        return jax.tree.unflatten(tree, limits)

    def _check(self, step: Step) -> None:
        """Refuse a state that still changes at the limit of moving averages."""
        import jax

        limit = self.at([step(self.start)])
        before, after = jax.tree_util.tree_flatten_with_path(limit)[0], jax.tree.leaves(step(limit))
        for (path, leaf), next_leaf, factor in zip(before, after, self.factors, strict=True):
            if factor is None:
                continue
            old, new = leaf.astype(float), np.asarray(next_leaf, dtype=float)
            size = max(float(np.abs(old).max(initial=0.0)), float(np.abs(new).max(initial=0.0)))
            allowed = _APART * np.abs(1.0 - factor) * size + 10.0 * np.finfo(leaf.dtype).eps * size
            fades = (np.abs(factor - 0.5) <= 0.5 + 1e-5).all()
            if not (fades and (np.abs(new - old) <= allowed).all()):
                raise BadInput(
                    f"state{jax.tree_util.keystr(path)} is no moving average of what batches have (batch "
                    "norm's running statistics), so what it is after training cannot be told from the parameters; give "
                    "Equinox's BatchNorm mode='batch', and leave out other state (spectral norm, memories)"
                )


def _limit_of(old: Array, new: Floats, factor: Floats) -> Array:
    """Return the limit of an average that went from ``old`` to ``new`` and keeps ``factor`` of the old."""
    moves = np.abs(1.0 - factor) > 1e-5
    limit = (new - factor * old.astype(float)) / np.where(moves, 1.0 - factor, 1.0)
    return np.where(moves, limit, new).astype(old.dtype)
