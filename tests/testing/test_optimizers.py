"""The suite that defines what an optimiser is: anyk's own pass, and each thing that it must find."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

import anyk
from anyk.optimizers import GD, Momentum, OptaxOptimizer, Optimizer, TorchOptimizer, optimizer
from anyk.testing import check_optimizer

pytestmark = pytest.mark.in_process


@pytest.mark.parametrize(
    "spec",
    ["gd", "momentum", "nesterov:momentum=0.5", "accelerated", "adam", "adamw:weight_decay=0.1", "slowmo",
     "clip:norm=2", "clip:of=(adam:beta1=0.5),norm=0.1"],
)  # fmt: skip
def test_anyks_optimisers_pass(spec: str) -> None:
    check_optimizer(optimizer(spec, lr="inverse:start=0.1,decay=0.5"))


def test_every_registered_optimiser_is_tested_here() -> None:
    tested = {"gd", "momentum", "nesterov", "accelerated", "adam", "adamw", "slowmo", "clip", "torch", "optax"}
    built_in = {entry.name for entry in anyk.optimizers.registry if entry.build.__module__.startswith("anyk.")}
    assert built_in == tested


@pytest.mark.slow
def test_torchs_optimisers_pass() -> None:
    pytest.importorskip("torch")
    for spec in ("torch:SGD,momentum=0.9", "torch:Adam", "torch:Adam,amsgrad=true", "torch:RMSprop", "torch:Adagrad"):
        check_optimizer(optimizer(spec, lr=0.01))
    check_optimizer(TorchOptimizer("SGD", lr=0.1, schedule="CosineAnnealingLR:T_max=5"))


@pytest.mark.slow
def test_optaxs_optimisers_pass() -> None:
    pytest.importorskip("optax")
    for method in ("adam", "sgd", "lamb"):
        check_optimizer(OptaxOptimizer(method, lr=0.01), dtype="float32")


class Plain(Optimizer):
    """Heavy ball written plainly, for one thing to go wrong."""

    by_coordinate: ClassVar[bool] = True

    def start(self, w: Any) -> Any:
        return {"velocity": np.zeros_like(w)}

    def step(self, w: Any, gradient: Any, state: Any, t: int, scale: float = 1.0, out: Any = None) -> Any:
        velocity = state["velocity"]
        velocity *= 0.9
        velocity += self.direction(w, gradient)
        out = np.multiply(velocity, -self.rate.at(t) * scale, out=out)
        out += w
        return out

    def direction(self, w: Any, gradient: Any) -> Any:
        return gradient


def test_what_is_right_passes() -> None:
    check_optimizer(Plain(lr=0.1))
    check_optimizer(Plain(lr=0.1), dimension=1)


WRONG: dict[str, tuple[type[Optimizer], str]] = {}


def wrong(sentence: str) -> Any:
    def add(kind: type[Optimizer]) -> type[Optimizer]:
        WRONG[kind.__name__] = kind, sentence
        return kind

    return add


class Claimed(Plain):
    by_coordinate = True


@wrong("by_coordinate, but step 0 in slices is not the step of the whole")
class Normed(Claimed):
    by_coordinate = True

    def direction(self, w: Any, gradient: Any) -> Any:
        return gradient / np.linalg.norm(gradient)


@wrong("by_coordinate, but step 1 in slices")
class ClippedOnlyIfLarge(Claimed):
    """The gradients of most tests are too small to be clipped."""

    by_coordinate = True

    def direction(self, w: Any, gradient: Any) -> Any:
        return gradient * min(1.0, 500.0 / float(np.linalg.norm(gradient)))


@wrong("by_coordinate, but step 0 in slices")
class Centred(Claimed):
    by_coordinate = True

    def direction(self, w: Any, gradient: Any) -> Any:
        return gradient - gradient.mean() if gradient.size > 1 else gradient


@wrong("by_coordinate, but step 0 in slices")
class ByPosition(Claimed):
    by_coordinate = True

    def direction(self, w: Any, gradient: Any) -> Any:
        return gradient * (np.arange(gradient.size) % 3 + 1).astype(gradient.dtype)


@wrong("by_coordinate, but step 0 in slices")
class TrustRatio(Claimed):
    """As LARS: the size of the model relative to that of the gradient."""

    by_coordinate = True

    def direction(self, w: Any, gradient: Any) -> Any:
        return gradient * (np.abs(w).max() / (np.abs(gradient).max() + 1.0)).astype(gradient.dtype)


@wrong("by_coordinate, but the state's 'total' has shape")
class OneNumber(Claimed):
    by_coordinate = True

    def start(self, w: Any) -> Any:
        return super().start(w) | {"total": np.zeros(1)}


@wrong("slices leaves another 'velocity' in the state")
class Rebinding(Claimed):
    by_coordinate = True

    def step(self, w: Any, gradient: Any, state: Any, t: int, scale: float = 1.0, out: Any = None) -> Any:
        state["velocity"] = 0.9 * state["velocity"] + gradient
        out = np.multiply(state["velocity"], -self.rate.at(t) * scale, out=out)
        out += w
        return out


@wrong("depends on the other steps that the object has taken")
class Remembering(Plain):
    """The velocity is the object's own."""

    def start(self, w: Any) -> Any:
        object.__setattr__(self, "velocity", np.zeros_like(w))
        return {}

    def step(self, w: Any, gradient: Any, state: Any, t: int, scale: float = 1.0, out: Any = None) -> Any:
        if out is None:
            self.velocity *= 0.9
            self.velocity += gradient
        out = np.multiply(self.velocity, -self.rate.at(t) * scale, out=out)
        out += w
        return out


@wrong("depends on the other steps that the object has taken")
class Counting(Plain):
    """Counts calls instead of using t."""

    def step(self, w: Any, gradient: Any, state: Any, t: int, scale: float = 1.0, out: Any = None) -> Any:
        if out is None:
            object.__setattr__(self, "count", getattr(self, "count", 0) + 1)
        return super().step(w, gradient / self.count, state, t, scale, out)


@wrong("after the state was saved and restored")
class ByIdentity(Plain):
    """Knows its state by its memory, which a restored state does not have."""

    def start(self, w: Any) -> Any:
        state = super().start(w)
        states = self.__dict__.setdefault("known", {})
        states[id(state["velocity"])] = state["velocity"]
        return state

    def direction(self, w: Any, gradient: Any) -> Any:
        return gradient

    def step(self, w: Any, gradient: Any, state: Any, t: int, scale: float = 1.0, out: Any = None) -> Any:
        if id(state["velocity"]) not in self.__dict__["known"] and t >= 3 and out is None:
            gradient = 2 * gradient
        return super().step(w, gradient, state, t, scale, out)


@wrong("after the state was saved and restored")
class ByOrder(Plain):
    """Takes the state's vectors by their order, which a checkpoint does not keep."""

    by_coordinate = True

    def start(self, w: Any) -> Any:
        return {"a": np.zeros_like(w), "b": np.ones_like(w)}

    def step(self, w: Any, gradient: Any, state: Any, t: int, scale: float = 1.0, out: Any = None) -> Any:
        first, second = state.values()
        first += gradient
        second += gradient * gradient
        out = np.divide(first, second, out=out)
        out *= -self.rate.at(t) * scale
        out += w
        return out


@wrong("the state's 'last' is the memory of the gradient")
class KeepsGradient(Plain):
    def step(self, w: Any, gradient: Any, state: Any, t: int, scale: float = 1.0, out: Any = None) -> Any:
        state["last"] = gradient
        return super().step(w, gradient, state, t, scale, out)


@wrong(r"after start\(\) the state's 'centre' is the memory of the model")
class KeepsModel(Plain):
    def start(self, w: Any) -> Any:
        return super().start(w) | {"centre": w}


@wrong("the state's 'model' is the memory of the model")
class KeepsResult(Plain):
    def step(self, w: Any, gradient: Any, state: Any, t: int, scale: float = 1.0, out: Any = None) -> Any:
        stepped = super().step(w, gradient, state, t, scale, out)
        state["model"] = stepped
        return stepped


@wrong("step 0 changes the model that it starts from")
class InPlace(Plain):
    def step(self, w: Any, gradient: Any, state: Any, t: int, scale: float = 1.0, out: Any = None) -> Any:
        w -= self.rate.at(t) * scale * gradient
        return w


@wrong("step 0 of a model of float32 returns float64")
class Widening(Plain):
    def step(self, w: Any, gradient: Any, state: Any, t: int, scale: float = 1.0, out: Any = None) -> Any:
        stepped = w - np.float64(self.rate.at(t) * scale) * gradient.astype(np.float64)
        if out is None:
            return stepped
        out[:] = stepped
        return out


@wrong("step 0 turns the state's 'velocity' from float32 into float64")
class WideningState(Plain):
    by_coordinate = False

    def step(self, w: Any, gradient: Any, state: Any, t: int, scale: float = 1.0, out: Any = None) -> Any:
        state["velocity"] = 0.9 * state["velocity"] + gradient.astype(np.float64)
        out = np.empty_like(w) if out is None else out
        out[:] = w - self.rate.at(t) * scale * state["velocity"]
        return out


@wrong("does not return the vector out")
class IgnoresOut(Plain):
    def step(self, w: Any, gradient: Any, state: Any, t: int, scale: float = 1.0, out: Any = None) -> Any:
        return w - self.dtype_rate(w, t, scale) * gradient

    def dtype_rate(self, w: Any, t: int, scale: float) -> Any:
        return w.dtype.type(self.rate.at(t) * scale)


@wrong("is not finite|gives another model in out")
class AddsToOut(Plain):
    def step(self, w: Any, gradient: Any, state: Any, t: int, scale: float = 1.0, out: Any = None) -> Any:
        out = np.zeros_like(w) if out is None else out
        out += w - w.dtype.type(self.rate.at(t) * scale) * gradient
        return out


@wrong("scale, a factor on the learning rate, has no effect")
class IgnoresScale(Plain):
    def step(self, w: Any, gradient: Any, state: Any, t: int, scale: float = 1.0, out: Any = None) -> Any:
        return super().step(w, gradient, state, t, 1.0, out)


@wrong("by_smoothness, but steps are not in proportion")
class Signs(Plain):
    by_smoothness = True

    def direction(self, w: Any, gradient: Any) -> Any:
        return np.sign(gradient)


@wrong("'count' is int 0; a state consists of arrays")
class CountsInState(Plain):
    def start(self, w: Any) -> Any:
        return super().start(w) | {"count": 0}


@wrong("a step in float64 fails: KeyError: 'momentum'")
class Raising(Plain):
    def step(self, w: Any, gradient: Any, state: Any, t: int, scale: float = 1.0, out: Any = None) -> Any:
        return state["momentum"]


@wrong("is not finite")
class Dividing(Plain):
    def direction(self, w: Any, gradient: Any) -> Any:
        with np.errstate(all="ignore"):
            return gradient / np.where(gradient == 0.0, 0.0, 1.0).astype(gradient.dtype)


@pytest.mark.parametrize("name", list(WRONG))
def test_what_is_wrong_is_found(name: str) -> None:
    kind, sentence = WRONG[name]
    with pytest.raises(AssertionError, match=sentence):
        check_optimizer(kind(lr=0.1))


def registered(kind: Any, name: str) -> Any:
    kind.name = name
    return anyk.optimizers.register(name)(dataclass(frozen=True)(kind))


def test_a_spec_that_forgets_a_setting_is_found() -> None:
    class Forgetful(Momentum):
        @property
        def spec(self) -> str:
            return "test-forgetful"

    try:
        optimizer = registered(Forgetful, "test-forgetful")(lr=0.1, momentum=0.5)
        with pytest.raises(
            AssertionError, match="the spec 'test-forgetful' builds an optimiser whose step 3 is another"
        ):
            check_optimizer(optimizer)
    finally:
        del anyk.optimizers.registry.entries["test-forgetful"]


def test_a_schedule_without_effect_is_found() -> None:
    class Constant(GD):
        def step(self, w: Any, gradient: Any, state: Any, t: int, scale: float = 1.0, out: Any = None) -> Any:
            return super().step(w, gradient, state, 0, scale, out)

    try:
        optimizer = registered(Constant, "test-constant")(lr=0.1)
        with pytest.raises(AssertionError, match="a schedule of learning rates has no effect"):
            check_optimizer(optimizer)
    finally:
        del anyk.optimizers.registry.entries["test-constant"]


def test_a_wrong_claim_is_found_in_each_dtype_alone() -> None:
    for dtype in ("float64", "float32"):
        with pytest.raises(AssertionError, match="by_coordinate"):
            check_optimizer(Normed(lr=0.1), dtype=dtype)
    with pytest.raises(anyk.BadInput, match="dtype"):
        check_optimizer(GD(lr=0.1), dtype="int8")  # type: ignore[arg-type]
