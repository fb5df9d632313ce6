"""State that a JAX loss updates: running statistics, computed anew for a model.

A worker computes from the problem's initial state, and drops the new state: replies must not depend on a worker's
earlier tasks. For evaluation, the state is the limit to which it would converge if the training data were passed
through the model again and again. A moving average s = m s + (1 - m) x converges to the mean of x, from any start; so
one pass over the data is enough once m is known. The factor m is the share of a difference between two states that
remains in the states after them (a derivative would miss it behind stop_gradient). Integers, such as the count by which
Equinox and Haiku correct young averages, are set to a large number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from anyk.errors import BadInput
from anyk.problems.base import Array, Floats
from anyk.problems.jax.pytrees import Arrays, Tree

Step = Callable[[Tree], Tree]  # a state after a batch
_FAR = 2**20  # batches that a counter has counted when its averages no longer depend on their start
_ASIDE = np.float32(2**20)  # change of an average that shows how much of it remains: far above its rounding
_APART = 0.02  # change, relative to its size, that an average may show at its limit


class Averages(NamedTuple):
    """Moving averages in a state: the state that a pass starts with, and each leaf's share m of the old value."""

    start: Tree
    factors: Arrays

    @classmethod
    def of(cls, step: Step, state: Tree) -> Averages:
        """Learn the averages from one batch; raise :class:`~anyk.errors.BadInput` if the state is something else.

        >>> import jax.numpy as jnp
        >>> of = Averages.of(lambda state: {"mean": 0.9 * state["mean"] + 0.1 * 5.0}, {"mean": jnp.zeros(())})
        >>> of.at([{"mean": 0.9 * 0.0 + 0.1 * 5.0}, {"mean": 0.9 * 0.0 + 0.1 * 7.0}])["mean"].round(4).item()
        6.0
        """
        import jax

        leaves, tree = jax.tree.flatten(state)
        if any(leaf.dtype.kind not in "biu" and leaf.dtype not in (np.float32, np.float64) for leaf in leaves):
            raise BadInput("the state must hold arrays of float32, float64 or whole numbers")
        floats = [place for place, leaf in enumerate(leaves) if leaf.dtype.kind == "f"]
        once = jax.tree.leaves(step(state))
        far = [
            leaf + (new - leaf) * np.asarray(_FAR, leaf.dtype)
            if leaf.dtype.kind in "iu" and leaf.dtype.itemsize > 2
            else leaf
            for leaf, new in zip(leaves, map(np.asarray, once), strict=True)
        ]

        moved = [leaf + _ASIDE if place in floats else leaf for place, leaf in enumerate(far)]
        here, there = (jax.tree.leaves(step(jax.tree.unflatten(tree, leaves))) for leaves in (far, moved))
        apart = [np.asarray(there[place], np.float64) - np.asarray(here[place], np.float64) for place in floats]
        factors = [part / (moved[k] - far[k]) for part, k in zip(apart, floats, strict=True)]
        linear = cls(jax.tree.unflatten(tree, far), factors)
        linear._check(step, floats)
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
        factors = iter(self.factors)
        limits = [
            _limit_of(np.asarray(old), total / count, next(factors)) if old.dtype.kind == "f" else new
            for old, total, new in zip(begin, sums, last, strict=True)
        ]
        return jax.tree.unflatten(tree, limits)

    def _check(self, step: Step, floats: list[int]) -> None:
        """Refuse a state that still changes at the limit of moving averages."""
        import jax

        limit = self.at([step(self.start)])
        paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(limit)[0]]
        before, after = jax.tree.leaves(limit), jax.tree.leaves(step(limit))
        for place, factor in zip(floats, self.factors, strict=True):
            old, new = before[place].astype(float), np.asarray(after[place], dtype=float)
            size = max(float(np.abs(old).max(initial=0.0)), float(np.abs(new).max(initial=0.0)))
            allowed = _APART * np.abs(1.0 - factor) * size + 10.0 * np.finfo(before[place].dtype).eps * size
            fades = (np.abs(factor - 0.5) <= 0.5 + 1e-5).all()
            if not (fades and (np.abs(new - old) <= allowed).all()):
                raise BadInput(
                    f"state{jax.tree_util.keystr(paths[place])} is no moving average of what batches have (batch "
                    "norm's running statistics), so what it is after training cannot be told from the parameters; give "
                    "Equinox's BatchNorm mode='batch', and leave out other state (spectral norm, memories)"
                )


def _limit_of(old: Array, new: Floats, factor: Floats) -> Array:
    """Return the limit of an average that went from ``old`` to ``new`` and keeps ``factor`` of the old."""
    moves = np.abs(1.0 - factor) > 1e-5
    limit = (new - factor * old.astype(float)) / np.where(moves, 1.0 - factor, 1.0)
    return np.where(moves, limit, new).astype(old.dtype)
