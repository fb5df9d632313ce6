"""Gradient transformations of optax, unchanged, on the driver."""

from __future__ import annotations

import copy
from collections.abc import Callable
from difflib import get_close_matches
from math import prod
from textwrap import shorten
from typing import Any

import numpy as np

from anyk.base.arrays import Vector
from anyk.base.errors import BadInput, as_bad_input, needing
from anyk.base.specs import show_spec
from anyk.optimizers.library_classes import MADE, refuse_made
from anyk.optimizers.steps import Optimizer, Schedule, State

Functions = tuple[Callable[..., Any], Callable[..., Any]]  # the start of a transformation, and its step


class OptaxOptimizer(Optimizer):
    """An unchanged gradient transformation of optax, or a chain of several: ``OptaxOptimizer(optax.adamw(1e-3))``.

    Or the name of one of optax's optimisers, ``OptaxOptimizer("adamw", lr=1e-3, weight_decay=0.1)``, which has a spec,
    with ``lr`` as its learning rate (a schedule of ours scales later updates). Of a transformation made in Python
    ``lr`` is a factor on its updates, and a run with one is resumed with ``optimizer=…``.

    It sees the pytree of parameters if the problem has one (``problem.trained_at``), a list of arrays if the problem
    has only their shapes, else one flat vector. Its state is stored as arrays, so runs resume and replay to the bit.

    Raises :class:`~anyk.BadInput` for an unknown name, arguments that it refuses and, at the start, for float64
    parameters without ``jax_enable_x64``.

    >>> OptaxOptimizer("sgd", lr=0.5, momentum=0.9).spec
    'optax:method=sgd,momentum=0.9'
    """

    name = "optax"

    def __init__(self, method: Any, *, lr: float | str | Schedule = 1.0, **arguments: Any) -> None:
        refuse_made(method)
        with needing("optax", "jax", "an optimiser of optax"):
            import optax
        super().__init__(lr)
        transformation = method
        if isinstance(method, str):
            if not callable(getattr(optax, method, None)):
                near = get_close_matches(method, dir(optax), n=1, cutoff=0.5)
                raise BadInput(f"no '{method}' in optax" + (f"; did you mean '{near[0]}'?" if near else ""))
            with as_bad_input(f"optax's '{method}' cannot be used like this", Exception):
                transformation = getattr(optax, method)(learning_rate=self.rate.at(0), **arguments)
        elif arguments:
            raise BadInput(f"a transformation has its arguments already, got {', '.join(arguments)} as well")
        if not (hasattr(transformation, "init") and hasattr(transformation, "update")):
            raise BadInput(f"optax knows no optimiser {method!r}: one has init and update, as optax.adam(1e-3) does")
        self.method, self.arguments, self._transformation = method, arguments, transformation
        self._tree: Any = None
        self._functions: dict[tuple[int, str], Functions] = {}

    def __eq__(self, other: object) -> bool:
        mine = self.method, self.lr, self.arguments
        return isinstance(other, OptaxOptimizer) and mine == (other.method, other.lr, other.arguments)

    def __hash__(self) -> int:
        return hash((self.method, self.lr))

    @property
    def spec(self) -> str:
        plain = all(value is None or isinstance(value, bool | int | float | str) for value in self.arguments.values())
        if not (plain and isinstance(self.method, str)):
            return show_spec(self.name, {"method": f"({MADE})"})
        return show_spec(self.name, {"method": self.method} | self.arguments)

    @property
    def vectors(self) -> int:
        import jax

        tree = jax.ShapeDtypeStruct((1 << 20,), np.float32) if self._tree is None else self._tree
        try:
            state = jax.eval_shape(self._transformation.init, tree)
        except Exception:  # masks and labels may want the problem's pytree
            return 0
        numbers, parameters = (sum(int(leaf.size) for leaf in jax.tree.leaves(of)) for of in (state, tree))
        return numbers // parameters

    def fitted(self, problem: Any) -> Optimizer:
        shapes, trained_at = getattr(problem, "shapes", None), getattr(problem, "trained_at", None)
        if shapes is None:
            return self
        flat = np.zeros(sum(map(prod, shapes)), dtype=problem.dtype)
        fitted = copy.copy(self)
        fitted._functions = {}
        fitted._tree = trained_at(flat) if trained_at else [np.zeros(shape, dtype=problem.dtype) for shape in shapes]
        return fitted

    def start(self, w: Vector) -> State:
        return _plain(self._compiled(w)[0](w))

    def step(
        self, w: Vector, gradient: Vector, state: State, t: int, scale: float = 1.0, out: Vector | None = None
    ) -> Vector:
        factor = self._lr(t, scale) / (self.rate.at(0) if isinstance(self.method, str) else 1.0)
        leaves = [state[key] for key in sorted(state)]
        stepped, new_leaves = self._compiled(w)[1](w, gradient, leaves, w.dtype.type(factor))
        state.update(_plain(new_leaves))
        out = np.empty_like(w) if out is None else out
        out[:] = stepped
        return out

    def _compiled(self, w: Vector) -> Functions:
        """Return the start and a step, as functions of flat vectors and the state's leaves."""
        key = w.size, w.dtype.str
        if key not in self._functions:
            self._functions[key] = self._compile(w)
        return self._functions[key]

    def _compile(self, w: Vector) -> Functions:
        import jax
        import optax
        from jax.flatten_util import ravel_pytree

        config: Any = jax.config
        if w.dtype == np.float64 and not config.jax_enable_x64:
            raise BadInput(
                "optax would step float64 parameters in float32; set JAX_ENABLE_X64=1 in the environment, or call "
                "jax.config.update('jax_enable_x64', True) first"
            )
        transformation = self._transformation
        unravel: Callable[[Any], Any] = ravel_pytree(w if self._tree is None else self._tree)[1]
        try:
            shaped = jax.eval_shape(lambda flat: transformation.init(unravel(flat)), w)
            jax.eval_shape(transformation.update, unravel(w), shaped, unravel(w))
        except Exception as error:
            reason = shorten(str(error), 240, placeholder=" …")
            raise BadInput(f"the optax optimiser cannot step parameters like these: {reason}") from None
        structure, shapes = jax.tree.structure(shaped), [leaf.shape for leaf in jax.tree.leaves(shaped)]
        kinds = [leaf.dtype for leaf in jax.tree.leaves(shaped)]
        if any(not isinstance(kind, np.dtype) or kind.kind not in "biuf" for kind in kinds):
            raise BadInput("the optax optimiser's state has arrays that a checkpoint cannot keep, of bfloat16 or keys")

        def begin(flat: object) -> list[Any]:
            return jax.tree.leaves(transformation.init(unravel(flat)))

        def step(flat: object, slope: object, leaves: list[Any], factor: object) -> tuple[Any, list[Any]]:
            state = jax.tree.unflatten(structure, [leaf.reshape(s) for leaf, s in zip(leaves, shapes, strict=True)])
            params = unravel(flat)
            updates, state = transformation.update(unravel(slope), state, params)
            updates = jax.tree.map(lambda update: update * factor, updates)
            return ravel_pytree(optax.apply_updates(params, updates))[0], jax.tree.leaves(state)

        return jax.jit(begin), jax.jit(step)


def _plain(leaves: list[Any]) -> State:
    """Return the leaves of a state as arrays, by their index, in NumPy's memory, as JAX's is read-only."""
    return {f"{index:06d}": np.array(leaf) for index, leaf in enumerate(leaves)}
