"""Requirements of every optimiser."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from anyk.base import AtLeastOne, BadInput, Vector, keyed_generator, typed
from anyk.optimizers import MADE, Optimizer, State, registry
from anyk.optimizers import optimizer as build
from anyk.testing.failures import failing_as

_SCALES = (1.0, 0.5, 1.0, 0.25, 2.0, 1.0)  # factors on the learning rate, one for each step of a trajectory
_STEPS = len(_SCALES)
_SAVED = 3  # the step before which a trajectory is saved and restored


@typed
def check_optimizer(
    optimizer: Optimizer,
    *,
    dimension: AtLeastOne = 40,
    dtype: Literal["float64", "float32"] | None = None,
    seed: int = 0,
) -> None:
    """Check all properties of an optimiser that runs rely on; raise AssertionError for the first that fails.

    A step depends on its arguments alone, whatever steps the object has taken before; it leaves the model unchanged,
    has the model's shape and dtype, and the same bits with and without ``out``; nothing in the state is the memory of
    another vector. A trajectory that is saved and restored continues with the same bits, and so does the optimiser that
    its spec builds. ``scale`` and a schedule of learning rates have an effect. If the class declares ``by_coordinate``,
    slices give the steps of the whole, whatever the size of the gradients; if ``by_smoothness``, steps are in
    proportion to the gradients.

    ``dimension``: the length of the model, for an optimiser that needs a certain one. ``dtype``: by default both.

    >>> import anyk
    >>> check_optimizer(anyk.optimizers.Momentum(lr=0.1))
    """
    for number in ("float64", "float32") if dtype is None else (dtype,):
        trial = _Trial(optimizer, dimension, np.dtype(number), seed)
        with failing_as(f"a step in {number} fails"):
            trial.check()


class _Trial:
    """The trajectories of an optimiser from one model, with gradients of very different sizes."""

    def __init__(self, optimizer: Optimizer, dimension: int, dtype: Any, seed: int) -> None:
        random = keyed_generator(seed, "check-optimizer", dimension)
        self.optimizer, self.dtype = optimizer, dtype
        self.w = random.standard_normal(dimension).astype(dtype)
        gradients = random.standard_normal((_STEPS, dimension)) * np.array([[1.0, 1e3, 1.0, 1e-3, 1.0, 10.0]]).T
        gradients[2, dimension // 2 :] = 0.0
        gradients[4, -1] = 1e3
        self.gradients = gradients.astype(dtype)

    def check(self) -> None:
        """Check all properties."""
        models = self._checked_trajectory()
        self._check_order(models)
        self._check_saved(models)
        if self.w.size > 1 and vars(type(self.optimizer)).get("by_coordinate", False):
            self._check_lengths()
        self._check_slices(models)
        self._check_spec(models)
        self._check_scale(models)
        if vars(type(self.optimizer)).get("by_smoothness", False):
            self._check_proportion()

    # ------------------------------------------------------------------------------------------- trajectories

    def _start(self, optimizer: Optimizer | None = None) -> State:
        return dict((optimizer or self.optimizer).start(self.w.copy()))

    def _step(
        self, w: Vector, state: State, t: int, *, optimizer: Optimizer | None = None, scale: float | None = None
    ) -> Vector:
        """Return the model after a step without ``out``."""
        gradient = self.gradients[t].copy()
        return (optimizer or self.optimizer).step(w, gradient, state, t, _SCALES[t] if scale is None else scale)

    def _checked_trajectory(self) -> list[Vector]:
        """Return the models of a trajectory, after checks of the form of each step."""
        copied = self.w.copy()
        state = dict(self.optimizer.start(copied))
        assert _same(copied, self.w), "start() changes the model"
        _check_state(state, {"the model": copied}, "start()")
        w, models = self.w, []
        twin = {name: value.copy() for name, value in state.items()}
        for t in range(_STEPS):
            gradient, former = self.gradients[t].copy(), {name: value.dtype for name, value in state.items()}
            copied = w.copy()
            stepped = self.optimizer.step(copied, gradient, state, t, _SCALES[t])
            assert _same(copied, w), f"step {t} changes the model that it starts from, which others still read"
            assert isinstance(stepped, np.ndarray) and stepped.shape == w.shape, (
                f"step {t} returns {_shown(stepped)}, not a vector of the model's shape {w.shape}"
            )
            assert stepped.dtype == self.dtype, f"step {t} of a model of {self.dtype} returns {stepped.dtype}"
            assert np.isfinite(stepped).all(), f"step {t} by finite gradients is not finite"
            assert not np.shares_memory(stepped, copied), f"step {t} returns the memory of the model before it"
            _check_state(
                state, {"the model": stepped, "the former model": copied, "the gradient": gradient}, f"step {t}"
            )
            for name in former.keys() & state.keys():
                assert state[name].dtype == former[name], (
                    f"step {t} turns the state's '{name}' from {former[name]} into {state[name].dtype}"
                )
            self._check_out(copied, t, twin, stepped, state)
            w = stepped.copy()
            models.append(w)
        return models

    def _check_out(self, w: Vector, t: int, twin: State, stepped: Vector, state: State) -> None:
        """Take the same step with ``out``, and compare model and state."""
        out = np.full_like(self.w, np.nan)
        returned = self.optimizer.step(w, self.gradients[t].copy(), twin, t, scale=_SCALES[t], out=out)
        assert returned is out, f"step {t} does not return the vector out that it was given"
        assert _same(out, stepped), f"step {t} gives another model in out than without it"
        _check_state(twin, {"out": out}, f"step {t}")
        assert twin.keys() == state.keys() and all(_same(twin[name], state[name]) for name in state), (
            f"step {t} leaves another state with out than without it"
        )

    # ------------------------------------------------------------------------------------------- properties

    def _check_order(self, models: Sequence[Vector]) -> None:
        """Take the steps of two trajectories in turn, of which one is later by a step, and a step out of order."""
        states, newest = [self._start(), self._start()], [self.w, self.w]
        self._step(self.w, self._start(), _STEPS - 1)
        for t in range(_STEPS + 1):
            for which in (0, 1):
                step_number = t - which
                if 0 <= step_number < _STEPS:
                    newest[which] = self._step(newest[which], states[which], step_number)
                    assert _same(newest[which], models[step_number]), (
                        f"step {step_number} depends on the other steps that the object has taken; all state belongs "
                        "into the dictionary that start() returns"
                    )

    def _continued(self, optimizer: Optimizer) -> Iterator[tuple[int, Vector]]:
        """Yield steps and models of a trajectory that ``optimizer`` continues from the saved state of ours."""
        state, w = self._start(), self.w
        for t in range(_SAVED):
            w = self._step(w, state, t)
        saved = {name: state[name].copy() for name in sorted(state, reverse=True)}  # in another order
        for t in range(_SAVED, _STEPS):
            w = self._step(w, saved, t, optimizer=optimizer)
            yield t, w

    def _check_saved(self, models: Sequence[Vector]) -> None:
        restored = copy.deepcopy(self.optimizer)
        for t, w in self._continued(restored):
            assert _same(w, models[t]), f"step {t} is another one after the state was saved and restored"

    def _check_spec(self, models: Sequence[Vector]) -> None:
        """Compare the steps of the optimiser that the spec builds; a class without a registered name has none."""
        if self.optimizer.name not in registry or MADE in self.optimizer.spec:
            return
        spec = self.optimizer.spec
        try:
            rebuilt = build(spec, lr=self.optimizer.rate.spec)
        except BadInput as error:
            raise AssertionError(f"the spec '{spec}' cannot be read: {error}") from None
        for t, w in self._continued(rebuilt):
            assert _same(w, models[t]), f"the spec '{spec}' builds an optimiser whose step {t} is another one"
        if not self.optimizer.uniform:
            return
        rates = [f"inverse:start={self.optimizer.rate.at(0)!r},decay={decay}" for decay in (0, 1)]
        try:
            constant, falling = (build(spec, lr=rate) for rate in rates)
        except BadInput:
            return  # it takes a number alone, as with a schedule of its own
        assert self._differ(constant, falling), (
            "a schedule of learning rates has no effect; the rate of step t is self.rate.at(t)"
        )

    def _differ(self, first: Optimizer, second: Optimizer) -> bool:
        """Return whether the trajectories of two optimisers end in different models."""
        ends = []
        for optimizer in (first, second):
            state, w = self._start(optimizer), self.w
            for t in range(_STEPS):
                w = self._step(w, state, t, optimizer=optimizer)
            ends.append(w)
        return not _same(*ends)

    def _check_scale(self, models: Sequence[Vector]) -> None:
        state, w = self._start(), self.w
        for t in range(_STEPS):
            w = self._step(w, state, t, scale=1.0)
        assert not _same(w, models[-1]), "scale, a factor on the learning rate, has no effect"

    def _check_lengths(self) -> None:
        state, w = self._start(), self.w
        self._step(w, state, 0)
        for name, vector in state.items():
            assert vector.shape == w.shape, (
                f"the class declares by_coordinate, but the state's '{name}' has shape {vector.shape}, not {w.shape}"
            )

    def _check_slices(self, models: Sequence[Vector]) -> None:
        """Take every step in slices, in any order, if the optimiser can, and compare model and state."""
        random = keyed_generator(1, "check-optimizer", "slices")
        size = self.w.size
        whole_state, state, w = self._start(), self._start(), self.w
        for t in range(_STEPS):
            cuts = np.unique([0, min(1, size), size // 5, size // 2, size]).tolist()
            slices = [slice(first, last) for first, last in pairwise(cuts)]
            out = np.full_like(w, np.nan)
            with self.optimizer.stepping(w.copy(), state, t, _SCALES[t], out) as take:
                if take is None:
                    return
                for which in random.permutation(len(slices)).tolist():
                    take(slices[which], self.gradients[t][slices[which]].copy())
            of_all = self._step(w, whole_state, t)
            claim = f"the class declares by_coordinate, but step {t}"
            assert _near(out, of_all, w), f"{claim} in slices is not the step of the whole model"
            for name in whole_state:
                assert name in state and _near(state[name], whole_state[name], whole_state[name]), (
                    f"{claim} in slices leaves another '{name}' in the state: a slice must change its part in place, "
                    "by its own coordinates alone"
                )
            w = of_all
        assert _near(w, models[-1], self.w), "steps after steps in slices are other ones"

    def _check_proportion(self) -> None:
        """Compare trajectories from zero with gradients four times as large, from which no rounding differs."""
        ends = []
        for factor in (1.0, 4.0):
            w = np.zeros_like(self.w)
            state = dict(self.optimizer.start(w.copy()))
            for t in range(_STEPS):
                w = self.optimizer.step(w, self.dtype.type(factor) * self.gradients[t], state, t)
            ends.append(w)
        assert _near(ends[1], 4.0 * ends[0], ends[1]), (
            "the class declares by_smoothness, but steps are not in proportion to the gradients"
        )


def _check_state(state: Any, others: dict[str, Vector], after: str) -> None:
    """Check that a state consists of arrays with memory of their own."""
    for name, value in state.items():
        assert isinstance(name, str) and isinstance(value, np.ndarray), (
            f"after {after} the state's {name!r} is {_shown(value)}; a state consists of arrays by name"
        )
        assert value.dtype.kind in "fiub", f"after {after} the state's '{name}' is of {value.dtype}, not of numbers"
        for other, vector in others.items():
            assert not np.shares_memory(value, vector), (
                f"after {after} the state's '{name}' is the memory of {other}, which others change; copy it"
            )


def _shown(value: object) -> str:
    return f"an array of shape {value.shape}" if isinstance(value, np.ndarray) else f"{type(value).__name__} {value!r}"


def _same(a: Vector, b: Vector) -> bool:
    """Return whether two vectors have the same bits, signs of zeros aside."""
    return a.dtype == b.dtype and np.array_equal(a, b)


def _near(value: Vector, expected: Vector, size: Vector) -> bool:
    """Return whether two vectors agree up to rounding, relative to the size of each coordinate."""
    epsilon = float(np.finfo(expected.dtype).eps) if expected.dtype.kind == "f" else 0.0
    slack = 64.0 * epsilon * (np.abs(expected) + np.abs(size))
    return value.shape == expected.shape and bool((np.abs(value - expected) <= slack).all())
