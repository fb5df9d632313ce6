"""Optimisers of torch and optax as they are, and clipping: against plain loops with the same, to the bit where one can."""

from __future__ import annotations

import json
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.optim import lr_scheduler

import anyk
from anyk.base.errors import BadInput, RunFailed
from anyk.optimizers import GD, Adam, Clip, ExponentialRate, OptaxOptimizer, TorchOptimizer, optimizer
from anyk.runs.folder import checkpoints

pytestmark = pytest.mark.slow

SHAPES = [(3, 2), (4,), ()]
SIZE = 11
STEPS = 6
TORCH = [
    ("SGD", {}),
    ("SGD", {"momentum": 0.9, "dampening": 0.1, "weight_decay": 0.01}),
    ("SGD", {"momentum": 0.9, "nesterov": True}),
    ("Adam", {"betas": (0.8, 0.95), "amsgrad": True}),
    ("AdamW", {"weight_decay": 0.1}),
    ("NAdam", {}),
    ("RAdam", {}),
    ("Adamax", {}),
    ("Adagrad", {"initial_accumulator_value": 0.1}),
    ("Adadelta", {}),
    ("RMSprop", {"centered": True, "momentum": 0.5}),
    ("Rprop", {}),
    ("ASGD", {"t0": 2.0}),
    ("Adafactor", {}),
]


def gradients(seed: int = 0, dtype: type = np.float32) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    return [random.standard_normal(SIZE).astype(dtype) for _ in range(STEPS)]


def through_a_checkpoint(state: dict, folder) -> dict:
    checkpoints.save(folder, "{}", {f"optimizer/model/{key}": value for key, value in state.items()})
    loaded = checkpoints.load(folder)[1] if state else {}
    return {key.split("/")[2]: value for key, value in loaded.items()}


def pieces(w: torch.Tensor) -> list[torch.Tensor]:
    parts = torch.split(w, [int(np.prod(shape)) for shape in SHAPES])
    return [vector.view(shape) for vector, shape in zip(parts, SHAPES, strict=True)]


def plain_torch(cls, arguments, lr, schedule=None, clip=None, dtype=np.float32) -> list[np.ndarray]:
    """The models of a plain torch loop over tensors of their own."""
    parameters = [p.clone().requires_grad_() for p in pieces(torch.linspace(-1, 1, SIZE, dtype=torch.float64))]
    parameters = [p.detach().to(getattr(torch, np.dtype(dtype).name)).requires_grad_() for p in parameters]
    optimizer = cls(parameters, lr=lr, **arguments)
    following = None if schedule is None else schedule(optimizer)
    models = []
    for g in gradients(dtype=dtype):
        for parameter, slope in zip(parameters, pieces(torch.from_numpy(g)), strict=True):
            parameter.grad = slope.clone()
        if clip is not None:
            nn.utils.clip_grad_norm_(parameters, clip)
        optimizer.step()
        if following is not None:
            following.step()
        models.append(np.concatenate([p.detach().reshape(-1).numpy() for p in parameters]))
    return models


def ours(made, folder=None, dtype=np.float32, scale=1.0, problem=None) -> list[np.ndarray]:
    made = made.fitted(problem or SimpleNamespace(shapes=SHAPES, dtype=np.dtype(dtype)))
    w = np.linspace(-1, 1, SIZE).astype(dtype)
    state, models = made.start(w), []
    for t, g in enumerate(gradients(dtype=dtype)):
        before = w.copy()
        stepped = made.step(w, g, state, t, scale, out=np.empty_like(w))
        assert np.array_equal(w, before) and stepped.dtype == dtype
        w = stepped
        models.append(w.copy())
        if folder is not None:
            state = through_a_checkpoint(state, folder)
    return models


@pytest.mark.parametrize("name, arguments", TORCH, ids=lambda value: str(value))
def test_torchs_optimisers_step_as_in_a_torch_loop_to_the_bit(name, arguments, tmp_path):
    torch_optimizer = TorchOptimizer(name, lr=0.01, **arguments)
    expected = plain_torch(getattr(torch.optim, name), arguments, 0.01)
    for folder in (None, tmp_path):  # resumed after every step
        for one, other in zip(ours(torch_optimizer, folder), expected, strict=True):
            assert one.tobytes() == other.tobytes()
    rebuilt = optimizer(torch_optimizer.spec, lr=torch_optimizer.rate.spec)
    assert rebuilt.spec == torch_optimizer.spec
    assert ours(rebuilt)[-1].tobytes() == expected[-1].tobytes()


def test_an_optimiser_that_needs_shapes_gets_them():
    adafactor = TorchOptimizer("Adafactor", lr=0.01)
    assert ours(adafactor, problem=SimpleNamespace())[-1].tobytes() != ours(adafactor)[-1].tobytes()
    if hasattr(torch.optim, "Muon"):  # matrices only
        with pytest.raises(
            BadInput, match="the torch optimiser 'Muon' cannot be used like this: Muon only supports 2D"
        ):
            TorchOptimizer("Muon", lr=0.01).fitted(SimpleNamespace(shapes=SHAPES))


@pytest.mark.parametrize(
    "spec, schedule",
    [
        ("CosineAnnealingLR:T_max=4", lambda o: lr_scheduler.CosineAnnealingLR(o, 4)),
        ("MultiStepLR:milestones=2/4,gamma=0.5", lambda o: lr_scheduler.MultiStepLR(o, [2, 4], 0.5)),
        ("OneCycleLR:max_lr=0.1,total_steps=7", lambda o: lr_scheduler.OneCycleLR(o, 0.1, 7)),  # momentum, too
        (None, lambda o: lr_scheduler.LambdaLR(o, lambda t: 1 / (1 + t))),
    ],
)
def test_torchs_schedulers_step_as_in_a_torch_loop_to_the_bit(spec, schedule, tmp_path):
    arguments = {"betas": (0.8, 0.95)}
    expected = plain_torch(torch.optim.Adam, arguments, 0.01, schedule)
    torch_optimizer = TorchOptimizer(torch.optim.Adam, lr=0.01, schedule=spec or schedule, **arguments)
    for one, other in zip(ours(torch_optimizer, tmp_path), expected, strict=True):
        assert one.tobytes() == other.tobytes()
    rates = [torch_optimizer.rate.at(t) for t in range(5)]
    assert [torch_optimizer.rate.at(t) for t in (4, 1, 3, 0)] == [
        rates[t] for t in (4, 1, 3, 0)
    ]  # whenever it is asked
    if spec is not None:
        rebuilt = optimizer(torch_optimizer.spec, lr=torch_optimizer.rate.spec)
        assert ours(rebuilt)[-1].tobytes() == expected[-1].tobytes()
    else:
        assert torch_optimizer.spec == "torch:method=(made in Python)"


def test_a_step_may_be_scaled_and_the_rate_ours():
    plain = plain_torch(torch.optim.SGD, {"momentum": 0.5}, 0.02)
    assert ours(TorchOptimizer("SGD", lr=0.04, momentum=0.5), scale=0.5)[-1].tobytes() == plain[-1].tobytes()
    falling = ExponentialRate(0.1, 0.5)
    expected = plain_torch(torch.optim.SGD, {}, 0.1, lambda o: lr_scheduler.ExponentialLR(o, 0.5))
    assert ours(TorchOptimizer("SGD", lr=falling))[-1] == pytest.approx(expected[-1], rel=1e-6)
    assert ours(OptaxOptimizer("sgd", lr=falling))[-1] == pytest.approx(expected[-1], rel=1e-6)
    assert ours(OptaxOptimizer(optax.sgd(2.0), lr=0.01))[-1] == pytest.approx(
        plain_torch(torch.optim.SGD, {}, 0.02)[-1], rel=1e-5
    )


def test_a_schedule_that_ends_ends_the_run():
    module, X, y = network()
    problem = anyk.problems.TorchProblem(module, nn.CrossEntropyLoss(), (X, y))
    optimizer = TorchOptimizer("SGD", lr=0.1, schedule="OneCycleLR:max_lr=0.1,total_steps=3")
    with pytest.raises(
        RunFailed, match="'OneCycleLR:max_lr=0.1,total_steps=3' cannot go beyond step 3: Tried to step 4"
    ):
        anyk.train(problem, "uncoded", fleet(), optimizer=optimizer, steps=6)


def test_what_a_torch_optimiser_cannot_be_is_said():
    bad = [
        (lambda: TorchOptimizer("AdmaW"), "no 'AdmaW' in torch.optim; did you mean 'AdamW'?"),
        (lambda: TorchOptimizer("nowhere.Lion"), r"'nowhere.Lion' cannot be imported \(No module named 'nowhere'\)"),
        (lambda: TorchOptimizer("Adam", momentum=0.9), "'Adam' cannot be used like this: .*unexpected keyword.*'momentum'"),
        (lambda: TorchOptimizer("SGD", lr=-1.0), "learning rate must be a finite number above 0"),
        (lambda: TorchOptimizer("AdamW", capturable=True), "'AdamW' cannot be .* it steps on the driver's CPU, whatever"),
        (lambda: TorchOptimizer("LBFGS"), "'LBFGS' cannot be used like this"),
        (lambda: TorchOptimizer("SGD", schedule="StepLR"), "'StepLR' cannot be used like this: .*step_size"),
        (lambda: TorchOptimizer("SGD", schedule="StepLr:step_size=2"), "did you mean 'StepLR'?"),
        (lambda: TorchOptimizer("SGD", lr=ExponentialRate(1.0, 0.5), schedule="StepLR:step_size=2"),
         "starts from a learning rate that is a number, got 'exponential:start=1,decay=0.5'"),
        (lambda: optimizer("torch:method=(made in Python)", lr=1.0), "made in Python; give it again"),
        (lambda: optimizer("torch", lr=1.0), "optimizer 'torch' needs method=…"),
        (lambda: OptaxOptimizer("admaw"), "no 'admaw' in optax; did you mean 'adam"),
        (lambda: OptaxOptimizer("adam", b3=1.0), "optax's 'adam' cannot be used like this .*'b3'"),
        (lambda: OptaxOptimizer(3), "optax knows no optimiser 3"),
        (lambda: optimizer("optax:(made in Python)", lr=1.0), "made in Python; give it again"),
        (lambda: OptaxOptimizer("adam").start(np.zeros(3)), "jax.config.update\\('jax_enable_x64', True\\)"),
        (lambda: optimizer(OptaxOptimizer("adamw", lr=0.1, mask=[True, False]).spec, lr=1.0), "made in Python; give it again"),
        (lambda: fitted_to_tree(optax.masked(optax.sgd(0.1), {"a": True, "c": False})), "like these: .* key path"),
        (lambda: fitted_to_tree(optax.partition({"x": optax.sgd(0.1)}, {"a": "x", "b": "z"})), r"like these: .*\['x', 'z'\]"),
        (lambda: OptaxOptimizer("lbfgs").start(np.zeros(3, np.float32)), "cannot step parameters like these: .*value"),
        (lambda: Clip(norm=0.0), "norm must be a finite number above 0, got 0.0"),
        (lambda: optimizer("clip:of=adma", lr=1.0), "no optimizer 'adma'; did you mean 'adam'?"),
    ]  # fmt: skip
    for make, sentence in bad:
        with pytest.raises(BadInput, match=sentence):
            make()


# ------------------------------------------------------------------------------------ optax


def tree_of(w):
    return {"a": w[:6].reshape(3, 2), "b": [w[6:10], w[10]]}


def fitted_to_tree(transformation):
    """Start an optimiser on parameters that form a pytree."""
    problem = SimpleNamespace(shapes=SHAPES, dtype=np.dtype(np.float32), trained_at=tree_of)
    return OptaxOptimizer(transformation).fitted(problem).start(np.zeros(SIZE, np.float32))


@pytest.mark.parametrize(
    "made, plain",
    [
        (OptaxOptimizer("adamw", lr=0.01, weight_decay=0.1), optax.adamw(0.01, weight_decay=0.1)),
        (OptaxOptimizer("sgd", lr=0.01, momentum=0.9, nesterov=True), optax.sgd(0.01, 0.9, nesterov=True)),
        (OptaxOptimizer("lamb", lr=0.01), optax.lamb(0.01)),  # norms of each array
        (OptaxOptimizer(optax.adam(optax.cosine_decay_schedule(0.01, 5))), optax.adam(optax.cosine_decay_schedule(0.01, 5))),
        (OptaxOptimizer(optax.chain(optax.clip_by_global_norm(1.0), optax.masked(optax.scale(-0.1), {"a": True, "b": False}))),
         optax.chain(optax.clip_by_global_norm(1.0), optax.masked(optax.scale(-0.1), {"a": True, "b": False}))),
    ],
    ids=["adamw", "sgd", "lamb", "schedule", "chain"],
)  # fmt: skip
def test_optaxs_transformations_step_as_in_an_optax_loop(made, plain, tmp_path):
    params = tree_of(jnp.linspace(-1, 1, SIZE, dtype=jnp.float32))
    state, expected = plain.init(params), []
    for g in gradients():
        updates, state = plain.update(tree_of(jnp.asarray(g)), state, params)
        params = optax.apply_updates(params, updates)
        expected.append(np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(params)]))
    problem = SimpleNamespace(shapes=SHAPES, dtype=np.dtype(np.float32), trained_at=tree_of)
    models = ours(made, problem=problem)
    assert np.array(models) == pytest.approx(np.array(expected), rel=1e-5, abs=1e-6)
    for one, other in zip(ours(made, tmp_path, problem=problem), models, strict=True):  # resumed after every step
        assert one.tobytes() == other.tobytes()
    if isinstance(made.method, str):
        assert ours(optimizer(made.spec, lr=made.rate.spec), problem=problem)[-1].tobytes() == models[-1].tobytes()
    else:
        assert made.spec == "optax:method=(made in Python)"


# ------------------------------------------------------------------------------------ clipping


@given(norm=st.floats(0.05, 20.0), seed=st.integers(0, 9), size=st.floats(1e-3, 1e3))
@settings(max_examples=40, deadline=None)
def test_gradients_are_clipped_as_torch_clips_them(norm, seed, size):
    g = np.random.default_rng(seed).standard_normal(SIZE) * size
    parameter = nn.Parameter(torch.zeros(SIZE, dtype=torch.float64))
    parameter.grad = torch.from_numpy(g.copy())
    nn.utils.clip_grad_norm_([parameter], norm)
    stepped = Clip(of=GD(lr=1.0), norm=norm).step(np.zeros(SIZE), g, {}, 0)
    assert -stepped == pytest.approx(parameter.grad.numpy(), rel=1e-9)


def test_clipping_wraps_any_optimiser_and_has_a_spec():
    for dtype in (np.float32, np.float64):
        clipped = Clip(of=TorchOptimizer("AdamW", lr=0.01, weight_decay=0.1), norm=1.5)
        expected = plain_torch(torch.optim.AdamW, {"weight_decay": 0.1}, 0.01, clip=1.5, dtype=dtype)
        assert ours(clipped, dtype=dtype)[-1] == pytest.approx(expected[-1], rel=1e-5 if dtype == np.float32 else 1e-12)
    assert clipped.spec == "clip:of=(torch:method=AdamW,weight_decay=0.1),norm=1.5"
    assert (
        optimizer(clipped.spec, lr="0.01").spec == clipped.spec
        and optimizer(clipped.spec, lr="0.01").rate.at(3) == 0.01
    )
    assert Clip(of=Adam(lr=0.3), norm=2.0).rate.at(0) == 0.3
    huge = np.full(4, 1e30, dtype=np.float32)
    assert Clip(lr=1.0, norm=1.0).step(np.zeros(4, np.float32), huge, {}, 0) == pytest.approx(-0.5 * np.ones(4))


# ------------------------------------------------------------------------------------ runs


def network():
    torch.manual_seed(0)
    X = torch.randn(40, 6, dtype=torch.float64)
    module = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    return module, X, X[:, :3].argmax(dim=1)


def fleet():
    return anyk.clusters.Simulated(4, delays=anyk.delays.Exponential(mean=1.0), seed=1)


def test_a_run_on_full_batches_is_a_plain_torch_loop():
    module, X, y = network()
    problem = anyk.problems.TorchProblem(module, nn.CrossEntropyLoss(), (X, y))
    clipped = Clip(of=TorchOptimizer("AdamW", lr=0.05, schedule="CosineAnnealingLR:T_max=20"), norm=0.1)
    for spec in ("uncoded", "frc:stragglers=1"):
        run = anyk.train(problem, spec, fleet(), optimizer=clipped, steps=20, evaluate="every=20")
        plain, _, _ = network()
        stepping = torch.optim.AdamW(plain.parameters(), lr=0.05)
        schedule = lr_scheduler.CosineAnnealingLR(stepping, 20)
        for _ in range(20):
            stepping.zero_grad()
            nn.functional.cross_entropy(plain(X), y).backward()
            nn.utils.clip_grad_norm_(plain.parameters(), 0.1)
            stepping.step()
            schedule.step()
        expected = np.concatenate([p.detach().reshape(-1).numpy() for p in plain.parameters()])
        assert np.abs(run.model - expected).max() < 1e-11
        assert str(anyk.replay(run, problem=problem)).endswith("the same bits of model")


class Scaled(nn.Module):
    """A parameter that is one number, as the temperature of a contrastive loss."""

    def __init__(self):
        super().__init__()
        self.scale, self.linear = nn.Parameter(torch.tensor(2.0)), nn.Linear(4, 3)

    def forward(self, x):
        return self.linear(x) * self.scale


@pytest.mark.parametrize("stepped", [0, 2])
@pytest.mark.parametrize(
    "name, arguments", [("AdamW", {}), ("SGD", {"momentum": 0.9}), ("NAdam", {}), ("Adafactor", {})]
)
def test_a_parameter_may_be_one_number(name, arguments, stepped):
    """Also of an optimiser that has taken steps before."""
    torch.manual_seed(0)
    plain, x, y = Scaled(), torch.randn(24, 4), torch.arange(24) % 3
    stepping = getattr(torch.optim, name)(plain.parameters(), lr=0.1, **arguments)

    def step():
        stepping.zero_grad()
        nn.functional.cross_entropy(plain(x), y).backward()
        stepping.step()

    for _ in range(stepped):
        step()
    problem = anyk.problems.TorchProblem(plain, nn.CrossEntropyLoss(), (x, y))
    optimizer = TorchOptimizer(stepping) if stepped else TorchOptimizer(name, lr=0.1, **arguments)
    run = anyk.train(problem, "frc:stragglers=1", fleet(), optimizer=optimizer, steps=4, evaluate="every=9")
    for _ in range(4):
        step()
    expected = np.concatenate([p.detach().reshape(-1).numpy() for p in plain.parameters()])
    assert run.model == pytest.approx(expected, abs=1e-6)


LABELS = {"w": "fast", "b": "slow"}


@pytest.mark.parametrize(
    "plain",
    [
        optax.chain(optax.clip_by_global_norm(1.0), optax.adam(optax.cosine_decay_schedule(0.1, 20))),
        optax.chain(optax.adam(0.1), optax.masked(optax.set_to_zero(), {"w": False, "b": True})),
        optax.partition({"fast": optax.adam(0.1), "slow": optax.sgd(0.01)}, LABELS),
        optax.adamw(0.1, weight_decay=0.5, mask=lambda params: {name: name == "w" for name in params}),
    ],
    ids=["chain", "masked", "labels", "mask by function"],
)
def test_a_run_on_full_batches_is_a_plain_optax_loop(plain):
    random = np.random.default_rng(0)
    x = random.standard_normal((30, 4)).astype(np.float32)
    data, params = {"x": x, "y": x[:, 0] * 2}, {"w": np.ones(4, np.float32), "b": np.float32(0)}

    def loss(params, batch):
        return jnp.mean((batch["x"] @ params["w"] + params["b"] - batch["y"]) ** 2)

    problem = anyk.problems.JaxProblem(loss, params, data)
    run = anyk.train(problem, "uncoded", fleet(), optimizer=OptaxOptimizer(plain), steps=20, evaluate="every=20")
    state = plain.init(params)
    for _ in range(20):
        updates, state = plain.update(jax.grad(loss)(params, data), state, params)
        params = optax.apply_updates(params, updates)
    reached = problem.params_at(run.model)
    for name in ("w", "b"):
        assert np.asarray(reached[name]) == pytest.approx(np.asarray(params[name]), abs=2e-5)


@pytest.mark.parametrize(
    "made",
    [
        TorchOptimizer("NAdam", lr=0.05, schedule="OneCycleLR:max_lr=0.1,total_steps=20"),
        TorchOptimizer("SGD", lr=0.05, momentum=0.9, schedule=lambda o: lr_scheduler.StepLR(o, 3)),
        Clip(of=OptaxOptimizer(optax.adam(0.01)), norm=0.5),
    ],
    ids=["spec", "made in Python", "optax"],
)
def test_a_run_goes_on_to_the_same_bits(made, tmp_path):
    module, X, y = network()
    problem = anyk.problems.TorchProblem(module.float(), nn.CrossEntropyLoss(), (X, y))
    arguments = {"optimizer": made, "evaluate": "every=100"}
    uninterrupted = anyk.train(problem, "frc:stragglers=1", fleet(), steps=12, **arguments)
    anyk.train(problem, "frc:stragglers=1", fleet(), steps=5, out=tmp_path / "run", **arguments).close()
    if "made in Python" in made.spec:
        with pytest.raises(BadInput, match="this optimiser was made in Python; give it again"):
            anyk.resume(tmp_path / "run", problem=problem, steps=12)
        resumed = anyk.resume(tmp_path / "run", problem=problem, steps=12, optimizer=made)
        assert str(anyk.replay(resumed, problem=problem, optimizer=made)).endswith("the same bits of model")
    else:
        resumed = anyk.resume(tmp_path / "run", problem=problem, steps=12)
    assert resumed.model.tobytes() == uninterrupted.model.tobytes()
    json.dumps(resumed.report())


def test_workers_take_local_steps_with_a_torch_optimiser():
    module, X, y = network()
    problem = anyk.problems.TorchProblem(module, nn.CrossEntropyLoss(), (X, y))
    optimizer = TorchOptimizer("SGD", lr=0.1, momentum=0.9)
    cluster = anyk.clusters.Simulated(1)
    run = anyk.train(problem, "pasgd:tau=3,keep=true", cluster, optimizer=optimizer, steps=2, evaluate="every=9")
    plain, _, _ = network()
    stepping = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    for _ in range(6):
        stepping.zero_grad()
        nn.functional.cross_entropy(plain(X), y).backward()
        stepping.step()
    expected = np.concatenate([p.detach().reshape(-1).numpy() for p in plain.parameters()])
    assert run.model == pytest.approx(expected, abs=1e-12)


def test_a_torch_optimiser_steps_by_what_local_work_has_changed():
    """Its momentum outlives the round: the same as our own heavy ball."""
    module, X, y = network()
    problem = anyk.problems.TorchProblem(module, nn.CrossEntropyLoss(), (X, y))
    models = []
    for outer in ("(torch:SGD,momentum=0.5)", "(momentum:momentum=0.5)"):
        spec = f"pasgd:tau=2,outer={outer},rate=0.7"
        run = anyk.train(problem, spec, fleet(), optimizer=GD(lr=0.1), steps=4, evaluate="every=9")
        models.append(run.model)
    assert models[0] == pytest.approx(models[1], abs=1e-13)


class Counts(torch.optim.Optimizer):
    """Keeps how often it has stepped, in one of three places that are no parameter's state."""

    def __init__(self, parameters, lr=0.1, where="group"):
        super().__init__(parameters, {"lr": lr, "count": 0})
        self.where, self.count = where, 0

    @torch.no_grad()
    def step(self, closure=None):
        self.count += self.where == "self"
        if self.where == "state":
            self.state["global"]["count"] = self.state["global"].get("count", 0) + 1
        for group in self.param_groups:
            group["count"] += self.where == "group"
            for parameter in group["params"]:
                if self.where == "dotted":
                    self.state[parameter]["a.b:c"] = 1
                parameter.add_(parameter.grad, alpha=-group["lr"])


@pytest.mark.parametrize(
    ("where", "sentence"), [("group", "keeps count beside"), ("self", "keeps count beside"), ("state", "keeps global beside"), ("dotted", "'a.b:c'")]
)  # fmt: skip
def test_what_an_optimiser_keeps_elsewhere_is_refused_not_lost(where, sentence):
    with pytest.raises(BadInput, match=sentence):
        TorchOptimizer(Counts, lr=1.0, where=where)
    TorchOptimizer(Counts, lr=1.0, where="nowhere")


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: anyk.optimizers.optimizer("torch:AdamW,lr=3", lr=0.1), "given twice, as 'torch:AdamW,lr=3' and as lr=0.1; keep one"),
        (lambda: anyk.optimizers.optimizer("optax:adam,lr=3", lr=0.1), "given twice, as 'optax:adam,lr=3' and as lr=0.1; keep one"),
        (lambda: TorchOptimizer("SGD", lr=1.0, schedule="MultiStepLR:milestones=3;6"), "numbers as in 3/6"),
        (lambda: TorchOptimizer("SGD", lr=1.0, schedule="MultiStepLR:milestones=(3,6)"), "numbers as in 3/6"),
        (lambda: anyk.train(anyk.testing.Squares(2), "uncoded", anyk.clusters.Simulated(2), optimizer=0.1, steps=1),
         "optimizer must be an Optimizer, a string or None"),
        (lambda: anyk.train(anyk.testing.Squares(2), "uncoded", anyk.clusters.Simulated(2), steps=1,
                            optimizer=torch.optim.SGD([torch.zeros(1)], lr=0.1)),
         r"got a SGD; one of torch is given as anyk.optimizers.TorchOptimizer\(…\)$"),
        (lambda: anyk.train(anyk.testing.Squares(2), "uncoded", anyk.clusters.Simulated(2), steps=1, optimizer=torch.optim.SGD),
         r"TorchOptimizer\(…, lr=…\)$"),
        (lambda: anyk.train(anyk.testing.Squares(2), "uncoded", anyk.clusters.Simulated(2), steps=1, optimizer=optax.sgd(0.1)),
         r"one of optax is given as anyk.optimizers.OptaxOptimizer\(…\)$"),
        (lambda: anyk.train(anyk.testing.Squares(2), "uncoded", anyk.clusters.Simulated(2), steps=1, optimizer="adm"),
         "no optimizer 'adm'; did you mean 'adam'"),
        (lambda: anyk.train(anyk.testing.Squares(2, dtype="float32"), "uncoded", anyk.clusters.Simulated(2), steps=1,
                            optimizer=OptaxOptimizer(optax.chain(optax.add_noise(0.1, 0.5, key=3), optax.sgd(0.1)))),
         "a checkpoint cannot keep, of bfloat16 or keys"),
    ],
)  # fmt: skip
def test_what_would_be_silent_or_a_traceback_is_a_sentence(make, sentence):
    with pytest.raises(BadInput, match=sentence):
        make()


def test_one_milestone_can_be_said():
    schedule = TorchOptimizer("SGD", lr=1.0, schedule="MultiStepLR:milestones=3/,gamma=0.5").rate
    assert [schedule.at(t) for t in range(5)] == [1.0, 1.0, 1.0, 0.5, 0.5]
