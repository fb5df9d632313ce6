"""Optimisers: each against its published update written out, what a step may touch, and convergence at rate 1/L."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from anyk.base.errors import BadInput
from anyk.optimizers import GD, Accelerated, Adam, ExponentialRate, Momentum, Nesterov, Optimizer, optimizer

pytestmark = pytest.mark.in_process

MAKERS: list[Callable[[Any], Optimizer]] = [
    lambda lr: GD(lr),
    lambda lr: Momentum(lr, 0.8),
    lambda lr: Nesterov(lr, 0.8),
    lambda lr: Accelerated(lr),
    lambda lr: Adam(lr, 0.8, 0.95, 1e-6),
]
NAMES = ["gd", "momentum", "nesterov", "accelerated", "adam"]
every = pytest.mark.parametrize("make", MAKERS, ids=NAMES)


def reference(name: str, w: np.ndarray, gradients: list[np.ndarray], rates: list[float]) -> list[np.ndarray]:
    """The models after each step, from the published recursions; nothing is shared with the code under test."""
    models, w = [], w.copy()
    buffer = None  # torch.optim.SGD: the first step's buffer is its gradient
    x, u = w.copy(), w.copy()  # Nesterov's two sequences
    m, v = np.zeros_like(w), np.zeros_like(w)
    for t, (g, lr) in enumerate(zip(gradients, rates, strict=True)):
        if name == "gd":
            w = w - lr * g
        elif name in ("momentum", "nesterov"):
            buffer = g.copy() if buffer is None else 0.8 * buffer + g
            w = w - lr * (g + 0.8 * buffer if name == "nesterov" else buffer)
        elif name == "accelerated":  # w is y_t = (1 - theta_t) x_t + theta_t u_t
            theta, following = 2 / (t + 2), 2 / (t + 3)
            stepped = w - lr * g
            u = x + (stepped - x) / theta
            x = stepped
            w = (1 - following) * x + following * u
        else:
            m, v = 0.8 * m + 0.2 * g, 0.95 * v + 0.05 * g * g
            w = w - lr * (m / (1 - 0.8 ** (t + 1))) / (np.sqrt(v / (1 - 0.95 ** (t + 1))) + 1e-6)
        models.append(w)
    return models


vectors = arrays(np.float64, 4, elements=st.floats(-100, 100).filter(lambda x: x == 0 or abs(x) > 1e-3))


@pytest.mark.slow
@every
@settings(deadline=None, max_examples=40)
@given(w=vectors, gradients=st.lists(vectors, min_size=1, max_size=12), scale=st.sampled_from([1.0, 0.25]))
def test_steps_are_the_published_ones(
    make: Callable[[Any], Optimizer], w: np.ndarray, gradients: list[np.ndarray], scale: float
) -> None:
    optimizer = make(ExponentialRate(0.3, 0.9))
    rates = [0.3 * 0.9**t * scale for t in range(len(gradients))]
    state = optimizer.start(w)
    for t, (g, expected) in enumerate(zip(gradients, reference(optimizer.name, w, gradients, rates), strict=True)):
        w = optimizer.step(w, g.copy(), state, t, scale)
        assert w == pytest.approx(expected, rel=1e-9, abs=1e-9)


@pytest.mark.slow
@every
@settings(deadline=None, max_examples=25)
@given(w=vectors, gradients=st.lists(vectors, min_size=1, max_size=6), dtype=st.sampled_from([np.float64, np.float32]))
def test_where_the_model_is_written_changes_nothing(
    make: Callable[[Any], Optimizer], w: np.ndarray, gradients: list[np.ndarray], dtype: Any
) -> None:
    """With and without ``out`` the same bits; the old model is never touched, so a worker may still be reading it."""
    optimizer = make(0.1)
    one = other = w.astype(dtype)
    states = optimizer.start(one), optimizer.start(other)
    for t, g in enumerate(gradients):
        before, out = one.copy(), np.full(4, np.nan, dtype=dtype)
        stepped = optimizer.step(other, g.astype(dtype), states[1], t, 1.0, out)
        assert stepped is out
        one, old = optimizer.step(one, g.astype(dtype), states[0], t), one
        other = stepped
        assert one.tolist() == other.tolist() and one.dtype == other.dtype == dtype
        assert old.tolist() == before.tolist() and not np.shares_memory(one, old)
        for name, value in states[0].items():
            assert value.tolist() == states[1][name].tolist() and value.dtype == dtype
            assert not np.shares_memory(value, one)


@every
def test_the_start_does_not_hold_on_to_the_model(make: Callable[[Any], Optimizer]) -> None:
    w = np.ones(3)
    state = make(0.1).start(w)
    assert not any(np.shares_memory(value, w) for value in state.values())
    make(0.1).step(w, np.ones(3), state, 0)
    assert w.tolist() == [1, 1, 1]


@every
def test_a_state_saved_and_restored_goes_on_alike(make: Callable[[Any], Optimizer]) -> None:
    optimizer, random = make("exponential:start=0.1,decay=0.9"), np.random.default_rng(0)
    gradients = random.standard_normal((8, 5))
    w = random.standard_normal(5)
    state = optimizer.start(w)
    for t in range(4):
        w = optimizer.step(w, gradients[t].copy(), state, t)
    saved_w, saved = w.copy(), {name: value.copy() for name, value in state.items()}
    restored = make("exponential:start=0.1,decay=0.9")
    for t in range(4, 8):
        w = optimizer.step(w, gradients[t].copy(), state, t)
        saved_w = restored.step(saved_w, gradients[t].copy(), saved, t)
    assert w.tolist() == saved_w.tolist()


@pytest.mark.parametrize("make", MAKERS[:4], ids=NAMES[:4])
def test_scaling_the_gradients_scales_the_steps(make: Callable[[Any], Optimizer]) -> None:
    """All but Adam are linear in the gradients; Adam's steps hardly depend on their size."""
    gradients = np.random.default_rng(0).standard_normal((5, 3))
    ends = []
    for factor in (1.0, 4.0):
        optimizer, w = make(0.1), np.zeros(3)
        state = optimizer.start(w)
        for t, g in enumerate(gradients):
            w = optimizer.step(w, factor * g, state, t)
        ends.append(w)
    assert ends[1].tolist() == (4.0 * ends[0]).tolist()


def test_adams_first_step_is_the_learning_rate() -> None:
    adam = Adam(0.1)
    for size in (1e-3, 1.0, 1e3):
        stepped = adam.step(np.zeros(2), np.array([size, -size]), adam.start(np.zeros(2)), 0)
        assert stepped == pytest.approx([-0.1, 0.1], rel=1e-4)


def test_momentum_zero_is_gradient_descent() -> None:
    gradients = np.random.default_rng(0).standard_normal((5, 3))
    ends = []
    for descent in (GD(0.1), Momentum(0.1, 0.0), Nesterov(0.1, 0.0)):
        w = np.ones(3)
        state = descent.start(w)
        for t, g in enumerate(gradients):
            w = descent.step(w, g.copy(), state, t)
        ends.append(w.tolist())
    assert ends[0] == ends[1] == ends[2]


# ------------------------------------------------------------------------------------------- convergence


def quadratic() -> tuple[np.ndarray, np.ndarray, float]:
    """f = w'Aw/2 with condition number 1000 and a start; L = 1."""
    random = np.random.default_rng(4)
    rotation = np.linalg.qr(random.standard_normal((20, 20)))[0]
    curvatures = np.geomspace(1e-3, 1.0, 20)
    return rotation @ np.diag(curvatures) @ rotation.T, random.standard_normal(20), 1.0


def losses(made: Optimizer, steps: int) -> list[float]:
    A, w, _ = quadratic()
    state, values = made.start(w), []
    for t in range(steps):
        w = made.step(w, A @ w, state, t)
        point = state.get("x", w)  # the sequence that the accelerated method's bound is about
        values.append(float(point @ A @ point / 2))
    return values


def test_gradient_descent_meets_its_bound() -> None:
    """f(w_t) - f* <= L |w_0 - w*|^2 / (2 t), and it never goes up."""
    _, start, L = quadratic()
    losses_reached = losses(GD(1 / L), 300)
    assert all(f <= L * float(start @ start) / (2 * t) for t, f in enumerate(losses_reached, 1))
    assert all(later <= earlier for earlier, later in zip(losses_reached, losses_reached[1:], strict=False))


def test_the_accelerated_method_meets_its_bound() -> None:
    """f(x_t) - f* <= 2 L |x_0 - x*|^2 / (t + 1)^2, which gradient descent does not."""
    _, start, L = quadratic()
    bounds = [2 * L * float(start @ start) / (t + 1) ** 2 for t in range(1, 301)]
    assert all(f <= bound for f, bound in zip(losses(Accelerated(1 / L), 300), bounds, strict=True))
    assert losses(Accelerated(1 / L), 100)[-1] < losses(GD(1 / L), 100)[-1] / 5


@every
def test_all_converge_on_a_quadratic(make: Callable[[Any], Optimizer]) -> None:
    A, w, _ = quadratic()
    optimizer = make("inverse:start=0.5,decay=0.01")
    before = float(w @ A @ w / 2)
    state = optimizer.start(w)
    for t in range(600):
        w = optimizer.step(w, A @ w, state, t)
    assert float(w @ A @ w / 2) < before / 100


# ------------------------------------------------------------------------------------------- parameters


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("momentum:momentum=1", "momentum must be a number of at least 0 and below 1, got 1.0"),
        ("nesterov:momentum=-0.1", "momentum must be a number of at least 0 and below 1, got -0.1"),
        ("adam:beta1=1", "beta1 must be a number of at least 0 and below 1, got 1.0"),
        ("adam:beta2=2", "beta2 must be a number of at least 0 and below 1, got 2.0"),
        ("adam:beta2=inf", "beta2 must be a number of at least 0 and below 1, got inf"),
        ("adam:epsilon=-1", "epsilon"),
        ("gd:momentum=0.5", "optimizer 'gd' has no key 'momentum'; its keys: none"),
        ("gd:lr=0.5", "the learning rate is given twice, as 'gd:lr=0.5' and as lr=0.1; keep one"),
    ],
)
def test_parameters_out_of_range(spec: str, sentence: str) -> None:
    with pytest.raises(BadInput) as caught:
        optimizer(spec, lr=0.1)
    assert sentence in str(caught.value)
