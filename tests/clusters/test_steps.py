"""Steps taken in parts, by holders of a part of the model, have the bits and digests of steps of the whole."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import combinations, pairwise
from typing import Any

import numpy as np
import pytest
import torch

from anyk.base import keyed
from anyk.base.arrays import NO_GRADIENT, Floats, Vector, Vectors
from anyk.base.errors import RunFailed
from anyk.base.keyed import array_digest
from anyk.clusters.messages import Messages
from anyk.clusters.steps import OUTER, MixPlan, ModelTerm, PartOfStep, StaleMessage, StepPlan
from anyk.clusters.store import Message, VectorStore
from anyk.optimizers import Clip, OptaxOptimizer, Optimizer, TorchOptimizer, optimizer, registry

PART = 16
SHAPES = ((5, 3), (0, 2), (20,), (2, 2), (18,))  # across the cuts, several in a part, and an empty one
SIZE = 3 * PART + 9
LATE, NEVER = slice(15, 35), slice(35, 39)  # parameters that have a gradient in some steps, and in none
MESSAGES = ((0, 0), (1, 0), (2, 0))
PENALTIES = np.linspace(0.0, 0.3, SIZE)

OWN = ("gd", "momentum", "nesterov", "accelerated", "adam", "adamw", "slowmo")
BY_TORCH: dict[str, dict[str, Any]] = {
    "Adadelta": {}, "Adagrad": {}, "Adam": {"amsgrad": True}, "Adamax": {}, "AdamW": {}, "ASGD": {}, "NAdam": {},
    "RAdam": {}, "RMSprop": {"centered": True}, "Rprop": {}, "SGD": {"momentum": 0.9},
}  # fmt: skip


CLIPPED: dict[str, Any] = {
    "adamw": lambda: optimizer("adamw", lr=0.05),
    "clip": lambda: Clip(of=optimizer("momentum", lr=0.05), norm=0.1),
    "torch": lambda: TorchOptimizer("RMSprop", lr=0.05, centered=True),
}


class Shaped:
    shapes = SHAPES
    dtype = np.dtype(np.float32)
    marks_unused = True


class Sums:
    """Partitions without data: the messages are given."""

    dimension, sizes = SIZE, [1, 1, 1]

    def __init__(self, dtype: Any) -> None:
        self.dtype = np.dtype(dtype)

    def support(self, partition: int) -> None:
        return None


class Holder:
    """Has the coordinates from ``first`` to ``last``, and reads no others."""

    def __init__(self, store: VectorStore, first: int, last: int) -> None:
        self._store, self.first, self.last = store, first, last
        self.state: Vectors = {}

    def _check(self, coordinates: slice) -> None:
        assert self.first <= coordinates.start <= coordinates.stop <= self.last

    def combine(self, messages: Sequence[Any], weights: Sequence[Any], coordinates: slice) -> Floats:
        self._check(coordinates)
        return self._store.combine(messages, weights, coordinates)

    def model_at(self, slot: str, version: int, coordinates: slice) -> Vector:
        self._check(coordinates)
        return self._store.model_at(slot, version, coordinates)

    def begin(self, plan: StepPlan, penalties: Vector | None = None) -> PartOfStep:
        own = slice(self.first, self.last)
        w = self._store.model(plan.slot, plan.version)[own].copy()
        self.out = np.full_like(w, np.nan)
        mine = None if penalties is None else penalties[own].copy()
        return PartOfStep(plan, self, w=w, out=self.out, offset=self.first, penalties=mine)


def take_all(
    holders: Sequence[Holder], plan: StepPlan, steps_by: Optimizer | None, penalties: Vector | None = None
) -> list[tuple[Vector, int]]:
    """Return each holder's slice and its digest after a step; an optimiser that clips is told of all squares."""
    steps, factor = [holder.begin(plan, penalties) for holder in holders], None
    if isinstance(steps_by, Clip):
        factor = steps_by.factor([square for step in steps for square in step.squares()])
    digests = [step.take(steps_by, holder.state, factor) for step, holder in zip(steps, holders, strict=True)]
    assert None not in digests
    return [(holder.out, int(digest or 0)) for holder, digest in zip(holders, digests, strict=True)]


@pytest.fixture(autouse=True)
def short_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyed, "PART", PART)


def all_cuts() -> Iterator[list[int]]:
    """Return every way to divide the model at multiples of a part."""
    inner = range(PART, SIZE, PART)
    for count in range(len(inner) + 1):
        for chosen in combinations(inner, count):
            yield [0, *chosen, SIZE]


def new_store(dtype: Any) -> VectorStore:
    store = VectorStore(Messages(Sums(dtype)))  # type: ignore[arg-type]
    store.publish("model", 0, np.random.default_rng(0).standard_normal(SIZE).astype(dtype))
    return store


def receive(store: VectorStore, t: int, *, late: bool) -> None:
    """Store the messages of step ``t``; ``late``: whether the late parameter has a gradient."""
    for task, chunk in MESSAGES:
        vector = np.random.default_rng((t, task)).standard_normal(SIZE).astype(store.messages.dtype)
        vector[NEVER] = NO_GRADIENT
        if not late:
            vector[LATE] = NO_GRADIENT
        store.arrived[task, chunk] = Message((task,), vector, task)


def plans() -> list[tuple[StepPlan, bool, Vector | None]]:
    """Return the plan of each step, whether the late parameter has a gradient, and the factors of coordinates."""
    plan = StepPlan(slot="model", version=0, messages=MESSAGES, weights=(1.0, 0.5, 2.0), divisor=7.0, scale=0.5)
    stale = (StaleMessage((0, 0), 0, 0.04), StaleMessage((2, 0), 2, 0.3))
    return [
        (plan, False, None),
        (plan, True, None),
        (plan._replace(penalty=0.1, scale=1.0), True, None),
        (plan, False, None),
        (plan._replace(compensation=stale), True, PENALTIES),
        (plan._replace(compensation=()), False, None),
        (plan, True, None),
    ]


def fitted(made: Optimizer) -> Optimizer:
    return made.fitted(Shaped)


def elementwise() -> list[Any]:
    cases = [
        pytest.param(lambda name=name: optimizer(name, lr=0.05), dtype, id=f"{name}, {dtype}")
        for name in OWN
        for dtype in ("float32", "float64")
    ]
    cases += [
        pytest.param(lambda of=of, norm=norm: Clip(of=of(), norm=norm), "float32", id=f"clip {name}, {norm:g}")
        for name, of in CLIPPED.items()
        for norm in (0.02, 1e6)  # each step and none, as norms go from 1 to 20
    ]
    return cases + [
        pytest.param(lambda name=name, more=more: TorchOptimizer(name, lr=0.05, **more), "float32", id=f"torch {name}")
        for name, more in BY_TORCH.items()
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("make", "dtype"), elementwise())
def test_steps_in_parts_have_the_bits_of_the_whole(make: Any, dtype: Any) -> None:
    whole, at_once = fitted(make()), fitted(make())
    store = new_store(dtype)
    store.start_optimizer("model", 0, whole)
    state, state_at_once = store.optimizer_states("model"), at_once.start(store.model("model", 0))
    cuts = list(all_cuts())
    assert len(cuts) == 8
    divided = [[Holder(store, first, last) for first, last in pairwise(cut)] for cut in cuts]
    for holders in divided:
        for holder in holders:
            holder.state = whole.start(store.model("model", 0)[holder.first : holder.last])
    for t, (plan, late, penalties) in enumerate(plans()):
        receive(store, t, late=late)
        plan = plan._replace(version=t)
        blank = store.blank("model")
        step = PartOfStep(plan, store, w=store.model("model", t), out=blank, penalties=penalties)
        expected, bits = step.take_at_once(at_once, state_at_once)
        w, digest = store.apply(plan, whole, penalties)
        assert w.tobytes() == expected.tobytes()
        assert digest == bits == array_digest(w)
        for holders in divided:
            taken = take_all(holders, plan, whole, penalties)
            assert b"".join(out.tobytes() for out, _ in taken) == w.tobytes()
            assert sum(each for _, each in taken) & keyed.POSITIVE == digest
        store.publish("model", t + 1, w)
    versions = [store.model("model", t) for t in range(len(plans()) + 1)]
    assert np.array_equal(versions[2][NEVER], versions[0][NEVER])  # parameters without a gradient rest
    assert np.array_equal(versions[4][LATE], versions[3][LATE]) and not np.array_equal(versions[4], versions[3])
    for holders in divided:
        parts = [holder.state for holder in holders]
        check_states(state, parts)
        check_equal(whole.joined_state(parts), state)
        for holder in holders:
            check_equal(whole.state_at(state, slice(holder.first, holder.last)), holder.state)
    check_states(state, [state_at_once])


@pytest.mark.parametrize("name", ["SGD", "AdamW"])
def test_compensated_steps_are_those_of_plain_torch(name: str) -> None:
    """In plain torch a parameter without a gradient (``grad`` is None) has no correction, and is not stepped."""
    options = {"lr": 0.05, "weight_decay": 0.3} | ({"momentum": 0.9} if name == "SGD" else {})
    store, steps_by = new_store(np.float32), fitted(TorchOptimizer(name, **options))
    ends = np.cumsum([int(np.prod(shape)) for shape in SHAPES])
    first = store.model("model", 0)
    pieces = [torch.tensor(piece, requires_grad=True) for piece in np.split(first.copy(), ends[:-1])]
    plain = getattr(torch.optim, name)(pieces, **options)
    store.start_optimizer("model", 0, steps_by)
    for t, late in enumerate((True, False, True, False)):
        receive(store, t, late=late)
        stale = tuple(StaleMessage(message, 0, 0.04) for message in MESSAGES)
        plan = StepPlan("model", t, MESSAGES, (1.0, 0.5, 2.0), divisor=7.0, compensation=stale)
        w = store.model("model", t)
        messages = [store.arrived[message].vector for message in MESSAGES]
        gradient = sum(weight * g for weight, g in zip(plan.weights, messages, strict=True))
        gradient = (gradient + sum(0.04 * g * g * (w - first) for g in messages)) / 7.0
        resting = [NEVER.stop] if late else [NEVER.stop, LATE.stop]
        for piece, slope, end in zip(pieces, np.split(gradient, ends[:-1]), ends, strict=True):
            piece.grad = None if end in resting else torch.tensor(slope)
        plain.step()
        following, _ = store.apply(plan, steps_by)
        store.publish("model", t + 1, following)
        expected = np.concatenate([piece.detach().numpy() for piece in pieces])
        assert following == pytest.approx(expected, rel=1e-5, abs=1e-6)
        assert np.array_equal(following[LATE], w[LATE]) is (not late)


def check_equal(one: Vectors, other: Vectors) -> None:
    assert set(one) == set(other)
    for name, vector in one.items():
        assert vector.shape == other[name].shape and vector.tobytes() == other[name].tobytes(), name


def check_states(state: Vectors, parts: list[Vectors]) -> None:
    """Check that states of parts are the state of the whole, numbers of a parameter in each of its parts."""
    assert set(state) == {name for part in parts for name in part}
    for name, vector in state.items():
        pieces = [part[name].reshape(-1) for part in parts if name in part]
        if ":" in name or not vector.size:
            assert all(np.array_equal(piece, vector.reshape(-1)) for piece in pieces), name
        else:
            assert np.concatenate(pieces).tobytes() == vector.tobytes(), name


MIXED = MixPlan((ModelTerm("model", 0, -0.25), ModelTerm("model", 1, 0.5), ModelTerm("other", 3, 0.25)))


@pytest.mark.parametrize(
    "outer",
    [
        None,
        ("slowmo", 0.7),
        ("clip:of=slowmo,norm=0.1", 0.7),
        ("nesterov", 0.7),
        ("torch:method=SGD,momentum=0.9", 0.5),
    ],
)
def test_mixes_in_parts_have_the_bits_of_the_whole(outer: tuple[str, float] | None) -> None:
    store = new_store(np.float32)
    for slot, version in (("model", 1), ("other", 3)):
        store.publish(slot, version, np.random.default_rng(version).standard_normal(SIZE).astype(np.float32))
    receive(store, 0, late=True)
    steps_by = None if outer is None else optimizer(outer[0], lr=outer[1])
    plan = StepPlan("model", 1, MESSAGES, (0.2, 0.2, 0.1), scale=0.5, mix=MIXED._replace(outer=outer))
    w = store.model("model", 1)
    store.start_optimizer("model", 1, optimizer("gd", lr=0.1))
    whole, digest = store.apply(plan, optimizer("gd", lr=0.1))
    kept = {OUTER + name for name in ([] if steps_by is None else steps_by.start(w))}
    assert kept <= store.optimizer_states("model").keys()
    assert digest == array_digest(whole)
    expected = sum(weight * store.arrived[key].vector for key, weight in zip(MESSAGES, plan.weights, strict=True))
    expected = expected + sum(weight * store.model(slot, version) for slot, version, weight in MIXED.models)
    if outer is None:
        assert whole == pytest.approx(expected, rel=1e-4, abs=1e-6)
    elif outer[0].startswith("torch"):  # its first step is plain
        assert whole == pytest.approx(w - 0.25 * (w - expected), rel=1e-4, abs=1e-6)
    for cut in all_cuts():
        holders = [Holder(store, first, last) for first, last in pairwise(cut)]
        for holder in holders:
            holder.state = {} if steps_by is None else steps_by.start(w[holder.first : holder.last])
        taken = take_all(holders, plan, steps_by)
        assert b"".join(out.tobytes() for out, _ in taken) == whole.tobytes()
        assert sum(each for _, each in taken) & keyed.POSITIVE == digest


@contextmanager
def steps_a_part(made: Optimizer) -> Iterator[bool]:
    w = np.ones(SIZE, dtype=np.float32)
    with made.stepping(w, made.start(w), 0, 1.0, np.empty_like(w), 0) as step:
        yield step is not None


def test_the_optimisers_that_step_parts_are_known() -> None:
    found = {entry.name for entry in registry}
    assert found == {*OWN, "clip", "torch", "optax"}
    for name in OWN:
        with steps_a_part(fitted(optimizer(name, lr=0.1))) as can:
            assert can
    others = ("Adafactor", "SparseAdam", "LBFGS", "Muon")
    classes = {name for name in dir(torch.optim) if isinstance(getattr(torch.optim, name), type)}
    assert classes == {*BY_TORCH, *others, "Optimizer"}
    for name in BY_TORCH:
        with steps_a_part(fitted(TorchOptimizer(name, lr=0.1))) as can:
            assert can, name


class Halving(torch.optim.SGD):
    """Someone's own class, of which nobody knows whether it steps number by number."""


@pytest.mark.parametrize(
    "make",
    [
        lambda: Clip(of=TorchOptimizer(Halving, lr=0.05), norm=0.5),
        lambda: TorchOptimizer(Halving, lr=0.05),
        pytest.param(lambda: OptaxOptimizer("lamb", lr=0.05), marks=pytest.mark.slow),
    ],
    ids=["clip", "of torch", "optax"],
)
def test_other_optimisers_step_the_whole_model(make: Any) -> None:
    made = fitted(make())
    store = new_store(np.float32)
    w = store.model("model", 0)
    receive(store, 0, late=True)
    plan = plans()[1][0]
    gradient = store.combine(MESSAGES, plan.weights) / 7.0
    expected = made.step(w, gradient.astype(np.float32), made.start(w), 0, 0.5)
    assert PartOfStep(plan, store, w=w, out=np.empty_like(w)).take(made, made.start(w)) is None
    store.start_optimizer("model", 0, made)
    stepped, digest = store.apply(plan, made)
    assert stepped.tobytes() == expected.tobytes() and digest == array_digest(expected)
    assert not np.array_equal(stepped, w)


def test_a_plan_is_plain_data() -> None:
    for plan, _, _ in plans():
        assert json.loads(json.dumps(plan)) is not None
    plan = plans()[4][0]._replace(mix=MIXED._replace(outer=("slowmo", 1.0)))
    assert len(json.dumps(plan)) < 500


def test_a_part_that_is_not_finite_ends_the_run() -> None:
    store = new_store(np.float32)
    receive(store, 0, late=True)
    store.arrived[1, 0].vector[SIZE - 1] = np.inf
    holders = [Holder(store, 0, 2 * PART), Holder(store, 2 * PART, SIZE)]
    plan = plans()[1][0]._replace(version=0)
    take_all(holders[:1], plan, optimizer("gd", lr=0.1))
    with pytest.raises(RunFailed, match="diverged at step 0"):
        take_all(holders[1:], plan, optimizer("gd", lr=0.1))
    store.start_optimizer("model", 0, optimizer("gd", lr=0.1))
    with pytest.raises(RunFailed, match="diverged at step 0"):
        store.apply(plan, optimizer("gd", lr=0.1))
