"""Live models of JAX that change before a run or in a loop are compared with what workers have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anyk
from anyk.base.errors import BadInput
from anyk.problems.jax.given_model import call_compiled

jax = pytest.importorskip("jax")
nnx = pytest.importorskip("flax.nnx")
equinox = pytest.importorskip("equinox")
jnp = jax.numpy

X = np.random.default_rng(0).standard_normal((24, 3)).astype(np.float32)
y = np.random.default_rng(1).standard_normal(24).astype(np.float32)
ONES = np.ones(3, np.float32)


class Net(nnx.Module):  # type: ignore[misc, name-defined]
    def __init__(self) -> None:
        rngs = nnx.Rngs(0)
        self.first, self.norm = nnx.Linear(3, 4, rngs=rngs), nnx.BatchNorm(4, rngs=rngs)
        self.drop, self.last, self.scale = nnx.Dropout(0.2, rngs=rngs), nnx.Linear(4, 1, rngs=rngs), 1.0

    def __call__(self, inputs: Any) -> Any:
        return self.last(self.drop(nnx.relu(self.norm(self.first(inputs)))))[:, 0] * self.scale


class Scaled(equinox.Module):  # type: ignore[misc, name-defined]
    w: Any
    options: dict[str, float] = equinox.field(static=True)

    def __call__(self, inputs: Any) -> Any:
        return inputs @ self.w * self.options["scale"]


def by_model(model: Any, batch: Any) -> Any:
    return jnp.mean((model(batch[0]) - batch[1]) ** 2)


def by_product(params: Any, batch: Any) -> Any:
    return jnp.mean((batch[0] @ (params["w"] * params["fixed"]) - batch[1]) ** 2)


def product() -> dict[str, Any]:
    return {"w": ONES.copy(), "fixed": ONES.copy()}


def train(problem: Any) -> anyk.Run:
    optimizer = anyk.optimizers.GD(lr=0.01)
    return anyk.train(problem, "uncoded", anyk.clusters.Simulated(2), optimizer=optimizer, steps=1)


def loop(problem: Any, change: Callable[[], Any]) -> int:
    done = 0
    for step in anyk.rounds(problem, "uncoded", anyk.clusters.Simulated(2), steps=5):
        step.model -= 0.01 * step.gradient
        change()
        done = step.number
    return done


def zero(model: Any) -> None:
    model.first.kernel[...] = 0.0 * model.first.kernel[...]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda model: setattr(model.drop, "rate", 0.7), "attribute 'rate' of attribute 'drop' of params was 0.2"),
        (lambda model: setattr(model, "scale", 2.0), "attribute 'scale' of params was 1.0"),
        (lambda model: model.norm.eval(), "'use_running_average' of attribute 'norm' of params was False"),
    ],
)
def test_changes_of_nnx_modules_are_refused(change: Callable[[Any], Any], words: str) -> None:
    model = Net()
    problem = anyk.problems.JaxProblem(by_model, model, (X, y))
    with pytest.raises(BadInput, match=f"{words} when the run began"):
        loop(problem, lambda: change(model))
    for start in (train, lambda each: loop(each, lambda: None)):
        with pytest.raises(BadInput, match=f"{words} when the problem was made"):
            start(problem)


@pytest.mark.slow
def test_evaluation_and_parameters_of_nnx_are_no_change() -> None:
    model = Net()
    problem = anyk.problems.JaxProblem(by_model, model, (X, y))

    def evaluate() -> None:
        model(X)
        model.eval()
        zero(model)

    assert loop(problem, evaluate) == 4
    with pytest.warns(RuntimeWarning, match="the trained parameter 'first/kernel' of params had other numbers"):
        train(problem)


@pytest.mark.slow
def test_frozen_parts_that_change_are_refused_in_a_loop() -> None:
    params = product()
    problem = anyk.problems.JaxProblem(by_product, params, (X, y), trainable={"w": True, "fixed": False})
    train(problem)
    with pytest.raises(BadInput, match="the fixed parameter 'fixed' was an array"):
        loop(problem, lambda: params["fixed"].__imul__(2.0))
    with pytest.warns(RuntimeWarning, match="the fixed parameter 'fixed' of params had other numbers"):
        train(problem)


@pytest.mark.slow
def test_other_arrays_than_the_problem_was_made_of_are_refused() -> None:
    model = Net()
    problem = anyk.problems.JaxProblem(by_model, model, (X, y))
    model.last = nnx.Linear(4, 1, use_bias=False, rngs=nnx.Rngs(1))
    with pytest.raises(BadInput, match="params has other arrays .*the trained parameter 'last/bias'"):
        train(problem)


@pytest.mark.slow
def test_params_of_equal_paths_are_each_compared() -> None:
    """Paths are joined by a slash, which a key may have, too."""
    params = {"a": {"b": ONES.copy()}, "a/b": ONES.copy()}

    def loss(params: Any, batch: Any) -> Any:
        return jnp.mean((batch[0] @ (params["a"]["b"] + params["a/b"]) - batch[1]) ** 2)

    problem = anyk.problems.JaxProblem(loss, params, (X, y))
    assert problem.dimension == 6 and problem.check_unchanged(begins=True) == []
    params["a/b"] *= 2.0
    (remark,) = problem.check_unchanged(begins=True)
    assert remark.startswith("the trained parameter 'a/b' (2) of params had other numbers")

    params = {"a": {"b": ONES.copy()}, "a/b": ONES.copy()}
    frozen = {"a": {"b": False}, "a/b": True}
    problem = anyk.problems.JaxProblem(loss, params, (X, y), trainable=frozen)
    params["a"]["b"] *= 2.0
    (remark,) = problem.check_unchanged(begins=False)
    assert remark.startswith("the fixed parameter 'a/b' of params had other numbers")


@pytest.mark.slow
def test_params_of_another_shape_are_refused() -> None:
    params = {"w": ONES.copy(), "fixed": ONES.copy()}

    def loss(params: Any, batch: Any) -> Any:
        return jnp.mean((batch[0].sum(axis=1) * params["w"].sum() * params["fixed"].sum() - batch[1]) ** 2)

    frozen = {"w": True, "fixed": False}
    problem = anyk.problems.JaxProblem(loss, params, (X, y), trainable=frozen)
    params["w"] = np.ones(4, np.float32)
    words = r"the trained parameter 'w' of params was of shape \(3,\) when .* and is of shape \(4,\) now; make the"
    for begins in (True, False):
        with pytest.raises(BadInput, match=words):
            problem.check_unchanged(begins=begins)
    params |= {"w": ONES, "fixed": np.ones((3, 1), np.float32)}
    with pytest.raises(BadInput, match=r"the fixed parameter 'fixed' of params was of shape \(3,\) when"):
        problem.check_unchanged(begins=True)
    params["fixed"] = ONES
    assert problem.check_unchanged(begins=True) == []


@pytest.mark.slow
def test_options_of_an_equinox_module_that_change_are_refused() -> None:
    model = Scaled(jnp.ones(3), {"scale": 1.0})
    problem = anyk.problems.JaxProblem(by_model, model, (X, y))
    with pytest.raises(BadInput, match=r"attribute 'options' of params\['scale'\] was 1.0 when the run began"):
        loop(problem, lambda: model.options.__setitem__("scale", 2.0))


@pytest.mark.slow
def test_arrays_in_a_closure_that_change_are_refused() -> None:
    factor = ONES.copy()

    def loss(params: Any, batch: Any) -> Any:
        return jnp.mean((batch[0] @ (params * factor) - batch[1]) ** 2)

    problem = anyk.problems.JaxProblem(loss, ONES, (X, y))
    with pytest.raises(BadInput, match="variable 'factor' was an array of shape .* when the run began"):
        loop(problem, lambda: factor.__imul__(2.0))


@pytest.mark.slow
def test_a_loss_changed_between_runs_is_compiled_anew() -> None:
    factor = [1.0]

    def loss(params: Any, batch: Any) -> Any:
        return jnp.mean((batch[0] @ (params * factor[0]) - batch[1]) ** 2)

    problem = anyk.problems.JaxProblem(loss, ONES, (X, y))
    first = train(problem).loss
    factor[0] = 2.0
    assert train(problem).loss == train(anyk.problems.JaxProblem(loss, ONES, (X, y))).loss != first


@pytest.mark.slow
def test_data_of_another_type_that_change_are_refused() -> None:
    targets = y.astype(float)
    problem = anyk.problems.JaxProblem(by_product, product(), (X, targets))
    train(problem)
    targets *= 2.0
    with pytest.raises(BadInput, match=r"the data\[1\] was an array of shape .* when the problem was made"):
        train(problem)


@pytest.mark.slow
def test_the_program_of_a_loss_is_compiled_once_for_all_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = []
    compile_program = jax.stages.Lowered.compile
    monkeypatch.setattr(jax.stages.Lowered, "compile", lambda program: compiled.append(1) or compile_program(program))
    problem = anyk.problems.JaxProblem(lambda w, batch: jnp.mean(jnp.sin(batch[0] @ w) * batch[1]), ONES, (X, y))
    for _ in range(2):
        problem.check_unchanged(begins=True)
    assert len(compiled) == 1


@pytest.mark.slow
@pytest.mark.parametrize("hoisted", [False, True])
def test_a_program_that_computes_with_more_is_compiled_anew(hoisted: bool) -> None:
    array, number = np.ones(3, np.float32), [1.0]
    inner = [jnp.ones(3)]

    def total(w: Any) -> Any:
        drawn = jax.pure_callback(lambda: array.sum(), jax.ShapeDtypeStruct((), np.float32))
        return (w * array).sum() * number[0] + jax.jit(lambda v: (v * inner[0]).sum())(w) + drawn

    def without_callback(w: Any) -> Any:
        return (w * array).sum() * number[0] + jax.jit(lambda v: (v * inner[0]).sum())(w)

    before = jax.config.jax_use_simplified_jaxpr_constants
    jax.config.update("jax_use_simplified_jaxpr_constants", hoisted)
    try:
        for function in (total, without_callback):
            array[:], number[0], inner[0] = 1.0, 1.0, jnp.ones(3)
            for change in (lambda: array.__imul__(2.0), lambda: number.__setitem__(0, 3.0),
                           lambda: inner.__setitem__(0, jnp.full(3, 5.0))):  # fmt: skip
                call_compiled(function, ONES)
                change()
                assert float(call_compiled(function, ONES)) == float(function(jnp.asarray(ONES)))
    finally:
        jax.config.update("jax_use_simplified_jaxpr_constants", before)
