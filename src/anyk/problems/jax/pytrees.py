"""Models of JAX: pytrees of arrays, Equinox modules, nnx modules; which of their arrays are trained."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from anyk.base.arrays import Array
from anyk.base.errors import BadInput, RunFailed
from anyk.base.plain import ByName

Tree = Any  # nested tuples, lists, dictionaries and other pytrees of JAX
Arrays = list[Array]
Leaves = Sequence[Any]  # of a pytree
JaxArray = Any  # which may be traced
Trainable = Tree | Callable[[str], bool] | None

# names of Flax's linen for state beside 'params', and usual names of running statistics
_COLLECTIONS = {"batch_stats", "cache", "carry", "intermediates", "perturbations"}
_RUNNING = {f"{kind}_{what}" for kind in ("running", "moving") for what in ("mean", "var", "variance")}
_ALONE = (
    "which is not to be trained; give the trainable parameters alone (variables['params'], nnx.state(model, nnx.Param))"
    " and state that the loss updates as state=…; modules of nnx and Equinox are taken as they are"
)


class Held(NamedTuple):
    """What a loss is computed with besides the model and a batch: frozen arrays, the initial state, and values."""

    fixed: Arrays
    state: Tree
    values: ByName


class Model:
    """A pytree of trained arrays, whose initial values are ``begin``, other arrays, ``fixed``, and other objects.

    ``switches``: whether it distinguishes training from evaluation by itself. ``draws``: whether it needs random
    numbers in training. ``state``: what it changes as it computes, beside parameters; None: nothing.
    """

    switches = draws = False
    state: Tree = None

    def __init__(self, params: Tree, trainable: Trainable) -> None:
        import jax

        leaves, tree = jax.tree.flatten(params)
        self._tree: Any = tree
        self._moves = self._moving(params, trainable)
        moves = [move and self._is_parameter(leaf) for move, leaf in zip(self._moves, leaves, strict=True)]
        self._kinds = [
            "trained" if move else "fixed" if _is_fixed(leaf) else "kept"
            for move, leaf in zip(moves, leaves, strict=True)
        ]
        self._check(params)
        self.begin = [np.asarray(jax.numpy.asarray(leaf)) for leaf in self._of("trained", leaves)]
        self.fixed: Arrays = [np.asarray(jax.numpy.asarray(leaf)) for leaf in self._of("fixed", leaves)]
        self._kept = self._of("kept", leaves)
        check_numbers(self.begin)

    def __getstate__(self) -> ByName:
        # JAX's description of a tree does not always survive pickling (Equinox's does not), but the tree does;
        # workers need no values: trained ones come with the model, fixed ones with each call
        tree = self._join([0] * self._kinds.count("trained"), [0] * self._kinds.count("fixed"))
        return self.__dict__ | {"_tree": tree, "begin": [], "fixed": [], "state": None}

    def __setstate__(self, state: ByName) -> None:
        import jax

        self.__dict__.update(state)
        self._tree = jax.tree.structure(self._tree)

    def whole(self, trained: Leaves, constants: Held, key: JaxArray, *, train: bool) -> Any:
        """Return the user's model with these arrays in it, for training or for evaluation."""
        return self._join(trained, constants.fixed)

    def named(self, trained: Leaves, fixed: Leaves) -> ByName:
        """Return the arrays by their paths, as ``trainable`` receives them; raise if two have the same path."""
        return distinct((path, array) for path, _, array in self._arrays(trained, fixed))

    def kinds(self) -> list[tuple[str, str, Array]]:
        """Return of each array the path, which another may have, too, ``trained`` or ``fixed``, and its numbers."""
        return self._arrays(self.begin, self.fixed)

    def _arrays(self, trained: Leaves, fixed: Leaves) -> list[tuple[str, str, Any]]:
        import jax

        pairs = jax.tree_util.tree_flatten_with_path(self._join(trained, fixed))[0]
        return [
            (self._name(path), kind, leaf)
            for (path, leaf), kind in zip(pairs, self._kinds, strict=True)
            if _is_fixed(leaf)
        ]

    def trained(self, arrays: Leaves) -> Tree:
        """Return the pytree of trained arrays, with None for all others."""
        parts = iter(arrays)
        return self._tree.unflatten([next(parts) if kind == "trained" else None for kind in self._kinds])

    def state_after(self, model: object) -> Tree:
        """Return the model's state after it has computed."""
        return None

    def _join(self, trained: Leaves, fixed: Leaves) -> Tree:
        parts = {"trained": iter(trained), "fixed": iter(fixed), "kept": iter(self._kept)}
        return self._tree.unflatten([next(parts[kind]) for kind in self._kinds])

    def _of(self, kind: str, leaves: Leaves) -> list[Any]:
        return [leaf for one, leaf in zip(self._kinds, leaves, strict=True) if one == kind]

    def _name(self, path: Leaves) -> str:
        """Return the path of a leaf, as ``trainable`` receives it."""
        import jax

        return jax.tree_util.keystr(tuple(path), simple=True, separator="/")

    def _is_parameter(self, leaf: object) -> bool:
        """Return whether a leaf is trained by default."""
        return True

    def _check(self, params: Tree) -> None:
        """Raise :class:`~anyk.BadInput` if something in the tree must not be trained."""
        import jax

        paths = jax.tree_util.tree_flatten_with_path(params)[0]
        frozen = {path for (path, _), move in zip(paths, self._moves, strict=True) if not move}
        for path, node in _nodes(params):
            name = jax.tree_util.keystr(path)
            state = _state(node) or (path and _key(path[-1]) in _RUNNING and f"'{_key(path[-1])}'")
            if path in frozen or (state and not jax.tree.leaves(node)):
                continue  # only a place for it
            if state:
                raise BadInput(f"params{name} holds {state}, {_ALONE}")
            if not is_array(node):
                raise BadInput(
                    f"params{name} must be an array, it is {kind_of(node)}; give the arrays alone and put the "
                    "rest into the loss"
                )

    def _moving(self, params: Tree, trainable: Trainable) -> list[bool]:
        """Return, for each leaf, whether the user wants it to be trained."""
        import jax

        paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(params)[0]]
        if trainable is None:
            return [True] * len(paths)
        names = [self._name(path) for path in paths]
        if callable(trainable) and not _is_module(trainable):
            try:
                flags = [trainable(name) for name in names]
            except Exception as error:
                raise BadInput(
                    f"trainable fails at the path '{names[0]}': {type(error).__name__}: {first_line(error)}; a "
                    "function takes one path and gives True or False"
                ) from None
        else:
            try:
                spread = jax.tree.map(lambda move, subtree: jax.tree.map(lambda _: move, subtree), trainable, params)
            except (ValueError, TypeError) as error:
                raise BadInput(f"trainable does not have the form of params: {first_line(error)}") from None
            flags = jax.tree.leaves(spread)
        for value in flags:
            if not isinstance(value, (bool, np.bool_)):
                raise BadInput(
                    "trainable must be a pytree of True and False, formed as params or the upper part of it, or a "
                    f"function of a parameter's path that gives one of the two, got {kind_of(value)}"
                )
        if not any(flags):
            listed = ", ".join(names[:4]) + ", …" * (len(names) > 4)
            raise BadInput(f"trainable leaves no parameter to train; params has {listed}")
        return [bool(value) for value in flags]


class EquinoxModel(Model):
    """An Equinox module, or a pytree with one in it: floating-point arrays of JAX are parameters, the rest stays."""

    switches = True

    def whole(self, trained: Leaves, constants: Held, key: JaxArray, *, train: bool) -> Any:
        """Return the complete model; in evaluation the module is in inference mode."""
        import equinox

        model = self._join(trained, constants.fixed)
        return model if train else equinox.nn.inference_mode(model)

    def _is_parameter(self, leaf: object) -> bool:
        import jax

        return isinstance(leaf, jax.Array) and bool(jax.numpy.issubdtype(leaf.dtype, jax.numpy.inexact))

    def _check(self, params: Tree) -> None:
        import jax

        for path, node in _nodes(params):
            if _state(node) is not None and jax.tree.leaves(node):
                raise BadInput(
                    f"params{jax.tree_util.keystr(path)} holds {_state(node)}, which is not to be trained; make "
                    "model and state apart, model, state = equinox.nn.make_with_state(…)(…), and give state=state"
                )


class NnxModel(Model):
    """A module of Flax's nnx: its ``Param`` variables are trained, its random streams are keyed, the rest is state."""

    switches = True

    def __init__(self, module: object, trainable: Trainable) -> None:
        import jax
        from flax import nnx

        self._graph, params, streams, state = nnx.split(module, nnx.Param, nnx.RngState, ...)
        super().__init__(params, trainable)
        # random keys are made anew: booleans mark their places
        self._streams = jax.tree.map(lambda leaf: np.zeros(leaf.shape, bool if _is_key(leaf) else leaf.dtype), streams)
        self.draws = bool(jax.tree.leaves(streams))
        self.state = jax.tree.map(np.asarray, state) if jax.tree.leaves(state) else None
        self._empty = state if self.state is None else None

    def whole(self, trained: Leaves, constants: Held, key: JaxArray, *, train: bool) -> Any:
        """Return the complete model; in evaluation the module is in evaluation mode."""
        import jax
        from flax import nnx

        leaves, tree = jax.tree.flatten(self._streams)
        for index, leaf in enumerate(leaves):
            if leaf.dtype != bool:
                leaves[index] = jax.numpy.zeros_like(leaf)
                continue
            stream_key = jax.random.fold_in(key, index)
            leaves[index] = jax.random.split(stream_key, leaf.shape) if leaf.shape else stream_key
        # mapped, as variables may only be changed under the transformation in which they were made
        state = jax.tree.map(lambda leaf: leaf, constants.state) if self._empty is None else self._empty
        merged = nnx.merge(self._graph, self._join(trained, constants.fixed), jax.tree.unflatten(tree, leaves), state)
        if not train:
            merged.eval()
        return merged

    def _name(self, path: Leaves) -> str:
        return super()._name(path[:-1])  # the last step is the variable's value

    def state_after(self, model: object) -> Tree:
        from flax import nnx

        return nnx.split(model, nnx.Param, nnx.RngState, ...)[3] if self._empty is None else None


_MODES = ("deterministic", "use_running_average")  # attributes that nnx's train() and eval() set
Modes = dict[tuple[Any, ...], bool]


def modes_of(params: object) -> Modes:
    """Return the modes of the parts of an nnx module, True for evaluation, by path and attribute; else none."""
    if _is_module(params) != "nnx" or isinstance(params, type):
        return {}
    from flax import nnx

    return {
        (*path, name): bool(vars(node)[name])
        for path, node in nnx.iter_graph(params)
        if isinstance(node, nnx.Module)
        for name in _MODES
        if isinstance(vars(node).get(name), bool)
    }


def in_modes(params: Any, modes: Modes) -> Any:
    """Return a module that computes in these modes, a copy if it is one of nnx in evaluation mode as a whole."""
    now = modes_of(params)
    if not now or now == modes or not all(now.values()):
        return params
    from flax import nnx

    copied = nnx.merge(*nnx.split(params))
    for path, node in nnx.iter_graph(copied):
        for name in _MODES:
            if (*path, name) in modes:
                setattr(node, name, modes[*path, name])
    return copied


def is_module(params: object) -> bool:
    """Return whether params is a module of Equinox or nnx, whose attributes count as well as its arrays."""
    return _is_module(params) in ("equinox", "nnx")


def model_of(params: object, trainable: Trainable) -> Model:
    """Return the model in ``params``, by its kind; raise :class:`~anyk.BadInput` if it cannot be trained."""
    import jax

    kind = _is_module(params)
    if isinstance(params, type):
        raise BadInput(f"params is the class {params.__name__}, not a model made of it")
    if kind == "linen":
        raise BadInput(
            f"params is the linen module {type(params).__name__}, which holds no arrays; give "
            "module.init(key, inputs)['params'], and call module.apply({'params': params}, inputs) in the loss"
        )
    if kind == "nnx":
        return NnxModel(params, trainable)
    nodes = jax.tree.leaves(params, is_leaf=lambda node: _is_module(node) is not None)
    return (EquinoxModel if any(_is_module(node) == "equinox" for node in nodes) else Model)(params, trainable)


def _nodes(params: Tree) -> list[tuple[Any, Any]]:
    """Return the leaves of a pytree and the nodes that are state of a library, with their paths."""
    import jax

    return jax.tree_util.tree_flatten_with_path(params, is_leaf=lambda node: _state(node) is not None)[0]


def distinct(pairs: Iterable[tuple[str, Any]]) -> ByName:
    """Return pairs of names and arrays as a dictionary; raise :class:`~anyk.RunFailed` for equal names."""
    arrays: ByName = {}
    for name, array in pairs:
        if name in arrays:
            raise RunFailed(f"two arrays of the model are called '{name}', so that it cannot be written as safetensors")
        arrays[name] = np.ascontiguousarray(np.asarray(array))
    return arrays


def check_numbers(arrays: Arrays) -> None:
    """Raise :class:`~anyk.BadInput` if arrays are not all of one type that can be trained."""
    kinds = {str(array.dtype) for array in arrays}
    if not kinds:
        raise BadInput("params has no array to train")
    if len(kinds) > 1 or not kinds <= {"float32", "float64"}:
        raise BadInput(
            f"the arrays of params must all be float32 or all float64, got {', '.join(sorted(kinds))}; those that do "
            "not move may be others (trainable=…)"
        )
    if not all(np.isfinite(array).all() for array in arrays):
        raise BadInput("the arrays of params must hold finite numbers")


def _is_module(node: object) -> str | None:
    """Return the library whose module a node of a pytree is: ``equinox``, ``nnx`` or ``linen``; None: no module."""
    for base in type(node).__mro__:
        home = base.__module__
        if base.__name__ == "Module":
            if home.startswith("equinox."):
                return "equinox"
            if home.startswith("flax."):
                return "nnx" if home.startswith("flax.nnx") else "linen"
    return None


def _is_key(leaf: Any) -> bool:
    import jax

    return bool(jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key))


def is_array(leaf: object) -> bool:
    """Return whether a leaf is an array of numbers, or a number."""
    import jax

    if isinstance(leaf, (bool, str, bytes)):
        return False
    try:
        return not _is_key(jax.numpy.asarray(leaf))
    except (TypeError, ValueError):
        return False


def _is_fixed(leaf: object) -> bool:
    """Return whether a leaf is an array, and not a mere number, that a compiled function takes."""
    import jax

    return isinstance(leaf, (jax.Array, np.ndarray, np.generic)) and is_array(leaf)


def kind_of(value: object) -> str:
    """Return the kind of an unsuitable value, in words."""
    return "a function" if callable(value) and hasattr(value, "__name__") else f"of type {type(value).__name__}"


def first_line(error: Exception) -> str:
    """Return the first line of an exception's message."""
    return (str(error).splitlines() or [""])[0]


def _state(node: object) -> str | None:
    """Return the kind of library state that a node of a pytree is, in words; None: no known state."""
    if isinstance(node, Mapping):  # of Flax's linen, one collection beside another
        collections = [key for key in node if key in _COLLECTIONS]
        if isinstance(node.get("params"), Mapping):
            collections += [key for key, value in node.items() if key != "params" and isinstance(value, Mapping)]
        return f"the collection '{collections[0]}'" if collections else None
    kinds = {(base.__module__.partition(".")[0], base.__name__) for base in type(node).__mro__}
    variable = ("flax", "Variable") in kinds and ("flax", "Param") not in kinds
    if variable or kinds & {("equinox", "State"), ("equinox", "StateIndex")}:
        return f"a {type(node).__name__}"
    return None


def _key(entry: object) -> object:
    """Return the key or attribute that an entry of a path in a pytree represents."""
    return getattr(entry, "key", getattr(entry, "name", None))
