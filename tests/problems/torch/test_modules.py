"""What a PyTorch module is must not be lost by computing with copies of it; plain torch is the oracle."""

import copy
import functools

import numpy as np
import pytest

import anyk
from anyk.clusters import Simulated
from anyk.clusters.remote.shipping import ship, unship
from anyk.optimizers import TorchOptimizer
from anyk.problems import TorchProblem
from anyk.problems.torch import module_checks, modules, network
from anyk.problems.torch.network import LARGE

torch = pytest.importorskip("torch")
nn = torch.nn

torch.manual_seed(0)
X, Y = torch.randn(40, 5), torch.randint(0, 3, (40,))
CROSS_ENTROPY = nn.CrossEntropyLoss()


class Frozen(nn.Module):
    """A batch norm with statistics of its own, which training does not renew."""

    def __init__(self, how):
        super().__init__()
        self.how = how
        self.l, self.bn, self.h = nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)
        self.bn.running_mean.fill_(2.0)
        self.bn.running_var.fill_(9.0)
        if how == "momentum":
            self.bn.momentum = 0.0

    def train(self, mode=True):
        super().train(mode)
        if self.how == "train":
            self.bn.eval()
        return self

    def forward(self, x):
        if self.how == "forward":
            self.bn.eval()
        return self.h(torch.relu(self.bn(self.l(x))))


def trained_plainly(module, steps=3, optimizer=torch.optim.SGD, loss=CROSS_ENTROPY, **options):
    options = options or {"lr": 0.5}
    steps_with = optimizer([p for p in module.parameters() if p.requires_grad], **options)
    for _ in range(steps):
        steps_with.zero_grad()
        loss(module(X), Y).backward()
        steps_with.step()
    return module


def trained_in_a_loop(module, optimizer, steps=3, strategy="uncoded", cluster=None):
    problem = TorchProblem(module, CROSS_ENTROPY, (X, Y))
    for _ in anyk.rounds(problem, strategy, cluster or Simulated(workers=4), steps=steps, into=module):
        optimizer.step()
    return module


def test_another_module_needs_another_problem():
    """The problem has a copy of the module that it was made with."""
    problem = TorchProblem(nn.Linear(5, 3), CROSS_ENTROPY, (X, Y))
    with pytest.raises(anyk.BadInput, match="module of a TorchProblem cannot be changed; make a new one with another"):
        problem.module = nn.Linear(5, 3)


@pytest.mark.parametrize("how", ["train", "mode", "forward", "momentum"])
def test_frozen_batch_norms_keep_their_statistics(how):
    module = Frozen(how).train()
    if how == "mode":
        module.bn.eval()
    plain = trained_plainly(copy.deepcopy(module))
    problem = TorchProblem(module, CROSS_ENTROPY, (X, Y), held_out=(X, Y), metrics={"loss": CROSS_ENTROPY})
    workers = 1 if how == "momentum" else 4  # a batch norm in training mode normalises by partition
    run = anyk.train(problem, "uncoded", Simulated(workers), optimizer=TorchOptimizer("SGD", lr=0.5), steps=3)
    trained = problem.module_at(run.model)
    for name, tensor in plain.state_dict().items():
        if "num_batches" not in name:
            assert torch.allclose(trained.state_dict()[name], tensor, atol=1e-6), name
    modes = [layer.training for layer in module.modules()]
    expected = CROSS_ENTROPY(plain.eval()(X), Y).item()
    assert run.loss == pytest.approx(expected, abs=1e-6)
    assert run.metric["value"] == pytest.approx(expected, abs=1e-6)
    trained_in_a_loop(module, torch.optim.SGD(module.parameters(), lr=0.5), steps=1)
    assert module.bn.running_mean[0] == 2.0 and module.bn.running_var[0] == 9.0
    assert [layer.training for layer in module.modules()] == modes


@pytest.mark.parametrize("strategy", ["uncoded", "frc:stragglers=1", "pasgd:tau=1"])
def test_parts_in_evaluation_mode_stay_in_it(strategy):
    module = nn.Sequential(nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.5), nn.BatchNorm1d(8)), nn.Linear(8, 3))
    module[0].requires_grad_(False).eval()
    plain = trained_plainly(copy.deepcopy(module))
    problem = TorchProblem(module, CROSS_ENTROPY, (X, Y))
    run = anyk.train(problem, strategy, Simulated(4), optimizer=anyk.optimizers.GD(lr=0.5), steps=3)
    assert np.allclose(run.model[:24], plain[1].weight.detach().reshape(-1).numpy(), atol=1e-6)
    assert module.training and not module[0][1].training


def test_a_module_in_evaluation_mode_trains_with_dropout():
    module = nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.5), nn.Linear(8, 3)).eval()
    problem = TorchProblem(module, CROSS_ENTROPY, (X, Y))
    training = TorchProblem(copy.deepcopy(module).train(), CROSS_ENTROPY, (X, Y))
    gradients = [
        next(iter(anyk.rounds(one_problem, "uncoded", Simulated(2), steps=1))).gradient
        for one_problem in (problem, training)
    ]
    assert np.array_equal(*gradients)
    assert not module.training


# ------------------------------------------------------------------------------------------------- hooks of parameters

MASK = torch.tensor([0.0, 1, 1, 1, 1])


def halve(parameter):
    parameter.grad.mul_(0.5)


HOOKS = {
    "mask": ("register_hook", lambda gradient: gradient * MASK),
    "clip": ("register_hook", lambda gradient: gradient.clamp(-0.02, 0.02)),
    "after": ("register_post_accumulate_grad_hook", halve),
}


def hooked(module, hook):
    register, function = HOOKS[hook]
    getattr(module.weight, register)(function)
    return module


@pytest.mark.slow
@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize("strategy", ["uncoded", "frc:stragglers=1", "cyclic:stragglers=1"])
def test_hooks_see_the_gradient_of_the_step_once(hook, strategy):
    module = nn.Linear(5, 3)
    plain, mine, looped = (hooked(copy.deepcopy(module), hook) for _ in range(3))
    expected = trained_plainly(plain, lr=0.5, momentum=0.9).weight.detach()
    problem = TorchProblem(mine, CROSS_ENTROPY, (X, Y), microbatch=3)
    optimizer = TorchOptimizer("SGD", lr=0.5, momentum=0.9)
    run = anyk.train(problem, strategy, Simulated(workers=4), optimizer=optimizer, steps=3)
    assert torch.allclose(problem.module_at(run.model).weight, expected, atol=1e-5)
    assert torch.equal(mine.weight, module.weight) and mine.weight.grad is None
    sgd = torch.optim.SGD(looped.parameters(), lr=0.5, momentum=0.9)
    assert torch.allclose(trained_in_a_loop(looped, sgd, strategy=strategy).weight, expected, atol=1e-5)
    assert not torch.allclose(trained_plainly(copy.deepcopy(module), lr=0.5, momentum=0.9).weight, expected, atol=1e-3)


def test_hooks_that_read_the_parameter_see_the_model():
    given = nn.Linear(5, 3)
    plain, mine = copy.deepcopy(given), copy.deepcopy(given)
    for module in (plain, mine):
        module.weight.register_hook(lambda gradient, module=module: gradient + 0.1 * module.weight.detach())
    problem = TorchProblem(mine, CROSS_ENTROPY, (X, Y))
    run = anyk.train(problem, "uncoded", Simulated(2), optimizer=anyk.optimizers.GD(lr=0.5), steps=3)
    assert torch.allclose(problem.module_at(run.model).weight, trained_plainly(plain).weight, atol=1e-6)


def test_hooks_that_take_steps_are_refused():
    module = nn.Linear(5, 3)

    def step(parameter):
        parameter.data.sub_(parameter.grad)

    module.weight.register_post_accumulate_grad_hook(step)
    problem = TorchProblem(module, CROSS_ENTROPY, (X, Y))
    with pytest.raises(anyk.BadInput, match="a hook of a parameter changes a parameter"):
        anyk.train(problem, "uncoded", Simulated(2), optimizer=anyk.optimizers.GD(lr=0.5), steps=3)


def test_hooks_are_refused_where_workers_take_the_steps():
    problem = TorchProblem(hooked(nn.Linear(5, 3), "mask"), CROSS_ENTROPY, (X, Y))
    with pytest.raises(anyk.BadInput, match="parameter 'weight' of the module has a hook, and under 'pasgd"):
        anyk.train(problem, "pasgd:tau=2", Simulated(2), optimizer=anyk.optimizers.GD(lr=0.5), steps=3)


# ----------------------------------------------------------------------------------------- parameters without gradient


class TwoHeads(nn.Module):
    """The second head is used only by batches with a first input above a limit."""

    def __init__(self, limit):
        super().__init__()
        self.limit = limit
        self.used, self.other = nn.Linear(5, 3), nn.Linear(5, 3)

    def forward(self, x):
        outputs = self.used(x)
        chosen = (x[:, 0] > self.limit).nonzero()[:, 0]
        return outputs.index_add(0, chosen, self.other(x[chosen])) if len(chosen) else outputs


OPTIMIZERS = {
    "AdamW": {"lr": 0.1, "weight_decay": 0.5},
    "SGD": {"lr": 0.1, "weight_decay": 0.5, "momentum": 0.9},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("strategy", ["uncoded", "frc:stragglers=1", "cyclic:stragglers=1", "async", "pasgd:tau=2"])
def test_unused_parameters_are_not_moved(name, strategy):
    module = TwoHeads(limit=100.0)
    problem = TorchProblem(module, CROSS_ENTROPY, (X, Y))
    optimizer = TorchOptimizer(name, **OPTIMIZERS[name])
    run = anyk.train(problem, strategy, Simulated(4), optimizer=optimizer, steps=4)
    trained = problem.module_at(run.model)
    assert torch.equal(trained.other.weight, module.other.weight)
    assert not torch.equal(trained.used.weight, module.used.weight)


@pytest.mark.slow
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("strategy", ["uncoded", "frc:stragglers=1"])
def test_parameters_of_some_partitions_are_trained(name, strategy):
    module = TwoHeads(limit=float(X[:, 0].sort().values[-2]))  # one sample uses it
    plain = trained_plainly(copy.deepcopy(module), 4, getattr(torch.optim, name), **OPTIMIZERS[name])
    problem = TorchProblem(module, CROSS_ENTROPY, (X, Y))
    run = anyk.train(problem, strategy, Simulated(4), optimizer=TorchOptimizer(name, **OPTIMIZERS[name]), steps=4)
    assert torch.allclose(problem.module_at(run.model).other.weight, plain.other.weight, atol=1e-5)


class Sometimes(nn.Module):
    """The second head is used where the value says so."""

    def __init__(self):
        super().__init__()
        self.used, self.other = nn.Linear(5, 3), nn.Linear(5, 3)

    def forward(self, x, both):
        return self.used(x) + self.other(x) if both else self.used(x)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("first", [True, False])
def test_parameters_unused_in_some_steps_rest_there(name, first):
    module = Sometimes()
    plain = copy.deepcopy(module)
    steps_with = getattr(torch.optim, name)(plain.parameters(), **OPTIMIZERS[name])
    used = [first, not first, False, True, False]
    for both in used:
        steps_with.zero_grad()
        CROSS_ENTROPY(plain(X, both), Y).backward()
        steps_with.step()
    problem = TorchProblem(module, CROSS_ENTROPY, (X, Y), values={"both": lambda step: float(used[min(step, 4)])})
    run = anyk.train(problem, "uncoded", Simulated(4), optimizer=TorchOptimizer(name, **OPTIMIZERS[name]), steps=5)
    trained = np.concatenate([p.detach().numpy().ravel() for p in plain.parameters()])
    assert np.allclose(run.model, trained, atol=1e-5)


OWN_OPTIMIZERS = [
    anyk.optimizers.AdamW(lr=0.1, weight_decay=0.5),
    anyk.optimizers.Nesterov(lr=0.1),
    anyk.optimizers.Clip(of=anyk.optimizers.AdamW(lr=0.1)),
]


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["uncoded", "cyclic:stragglers=1", "async", "pasgd:tau=2", "diloco"])
@pytest.mark.parametrize("optimizer", OWN_OPTIMIZERS)
def test_our_own_optimisers_leave_unused_parameters_alone(optimizer, strategy):
    module = TwoHeads(limit=100.0)
    problem = TorchProblem(module, CROSS_ENTROPY, (X, Y))
    run = anyk.train(problem, strategy, Simulated(4), optimizer=optimizer, steps=4)
    trained = problem.module_at(run.model)
    assert torch.equal(trained.other.weight, module.other.weight)
    assert not torch.equal(trained.used.weight, module.used.weight)


OWN_AND_TORCHS = [
    (anyk.optimizers.Momentum(lr=0.1), torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
    (anyk.optimizers.Nesterov(lr=0.1), torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
]


@pytest.mark.parametrize(("own", "torchs", "options"), OWN_AND_TORCHS)
def test_momentum_rests_in_steps_without_a_gradient_as_in_torch(own, torchs, options):
    module, used = Sometimes(), [True, False, False, True, False]
    plain = copy.deepcopy(module)
    steps_with = torchs(plain.parameters(), **options)
    for both in used:
        steps_with.zero_grad()
        CROSS_ENTROPY(plain(X, both), Y).backward()
        steps_with.step()
    problem = TorchProblem(module, CROSS_ENTROPY, (X, Y), values={"both": lambda step: float(used[min(step, 4)])})
    run = anyk.train(problem, "uncoded", Simulated(4), optimizer=own, steps=5)
    trained = np.concatenate([p.detach().numpy().ravel() for p in plain.parameters()])
    assert np.allclose(run.model, trained, atol=1e-5)


RESTING = [
    anyk.optimizers.Momentum(lr=0.1),
    anyk.optimizers.AdamW(lr=0.1, weight_decay=0.5),
    TorchOptimizer("SGD", **OPTIMIZERS["SGD"]),
    TorchOptimizer("AdamW", **OPTIMIZERS["AdamW"]),
]


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["async:compensate=0.5", "async"])
@pytest.mark.parametrize("optimizer", RESTING)
def test_compensated_steps_let_parameters_rest(optimizer, strategy):
    """Only the first four messages, all of version 0, use the second head; a missing gradient has no correction."""
    problem = TorchProblem(Sometimes(), CROSS_ENTROPY, (X, Y), values={"both": lambda step: float(step == 0)})
    runs = [anyk.train(problem, strategy, Simulated(4), optimizer=optimizer, steps=steps) for steps in (4, 12)]
    early, late = (problem.module_at(run.model) for run in runs)
    assert torch.equal(early.other.weight, late.other.weight) and torch.equal(early.other.bias, late.other.bias)
    assert not torch.equal(early.used.weight, late.used.weight)
    assert not torch.equal(early.other.weight, problem.module_at(problem.initial()).other.weight)


def test_a_step_in_parts_rests_like_a_whole_step():
    problem = TorchProblem(TwoHeads(limit=100.0), CROSS_ENTROPY, (X, Y))
    optimizer, w = anyk.optimizers.AdamW(lr=0.1, weight_decay=0.5).fitted(problem), problem.initial()
    gradient = problem.split(1).partial_gradient(0, w)
    in_one, in_parts = optimizer.start(w), optimizer.start(w)
    expected, out = optimizer.step(w, gradient.copy(), in_one, 0), np.empty_like(w)
    with optimizer.stepping(w, in_parts, 0, 1.0, out) as step:
        for first in range(0, w.size, 5):
            step(slice(first, min(first + 5, w.size)), gradient[first : first + 5].copy())
    assert np.array_equal(out, expected) and not np.array_equal(out, w)
    assert all(np.array_equal(in_one[name], in_parts[name]) for name in in_one)


def test_a_gradient_of_zeros_is_a_gradient():
    module = nn.Sequential(nn.Linear(5, 4, bias=False), nn.Linear(4, 3, bias=False))
    module[1].weight.data.zero_()  # as in LoRA: the first layer's gradient is 0 in the first step
    plain = trained_plainly(copy.deepcopy(module), 2, torch.optim.AdamW, **OPTIMIZERS["AdamW"])
    adamw = torch.optim.AdamW(module.parameters(), **OPTIMIZERS["AdamW"])
    trained_in_a_loop(module, adamw, steps=2)
    assert torch.allclose(module[0].weight, plain[0].weight, atol=1e-5)


# ------------------------------------------------------------------------------------------------------------- loops


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 4])  # with 4, a step begins with an evaluation where the last one ended
def test_closures_take_a_round_for_each_evaluation(seed):
    for search in (None, "strong_wolfe"):
        torch.manual_seed(seed)
        given = nn.Linear(5, 3)
        plain, mine, third_module = (copy.deepcopy(given) for _ in range(3))
        first, second, third = (
            torch.optim.LBFGS(module.parameters(), line_search_fn=search) for module in (plain, mine, third_module)
        )

        def closure(module=plain, optimizer=first):
            optimizer.zero_grad()
            value = CROSS_ENTROPY(module(X), Y)
            value.backward()
            return value

        for _ in range(3):
            first.step(closure)
        for module, lbfgs, given_loss in (
            (mine, second, None),
            (third_module, third, lambda third_module=third_module: CROSS_ENTROPY(third_module(X), Y)),
        ):
            problem = TorchProblem(module, CROSS_ENTROPY, (X, Y))
            with anyk.torch.Optimizer(lbfgs, problem, "frc:stragglers=1", Simulated(4)) as optimizer:
                for _ in range(3):
                    optimizer.step(given_loss)
            assert torch.allclose(module.weight, plain.weight, atol=2e-3)
            loss = CROSS_ENTROPY(module(X), Y).item()
            assert loss == pytest.approx(CROSS_ENTROPY(plain(X), Y).item(), abs=1e-5)


def test_closures_that_compute_gradients_are_refused():
    module = nn.Linear(5, 3)
    problem = TorchProblem(module, CROSS_ENTROPY, (X, Y))
    lbfgs = torch.optim.LBFGS(module.parameters())

    def closure():
        lbfgs.zero_grad()
        value = CROSS_ENTROPY(module(X), Y)
        value.backward()
        return value

    with (
        pytest.raises(anyk.BadInput, match="the closure of step.. changes the gradient"),
        anyk.torch.Optimizer(lbfgs, problem, "uncoded", Simulated(2)) as optimizer,
    ):
        optimizer.step(closure)
    with pytest.raises(anyk.BadInput, match="use anyk.torch.Optimizer, where each evaluation of a closure is a round"):
        for _ in anyk.rounds(problem, "uncoded", Simulated(2), steps=2, into=module):
            lbfgs.step(closure)
    with (
        pytest.raises(anyk.BadInput, match="under 'uncoded:batch=4' two evaluations of a closure have gradients"),
        anyk.torch.Optimizer(lbfgs, problem, "uncoded:batch=4", Simulated(2)) as optimizer,
    ):
        optimizer.step()


def test_buffers_read_in_a_loop_are_current():
    module = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    problem = TorchProblem(module, CROSS_ENTROPY, (3 * X + 4, Y))
    average = torch.optim.swa_utils.AveragedModel(module)
    sgd = torch.optim.SGD(module.parameters(), lr=0.1)
    for step in anyk.rounds(problem, "uncoded", Simulated(2), steps=3, into=module):
        sgd.step()
        average.update_parameters(module)
        w = np.concatenate([p.detach().numpy().ravel() for p in module.parameters()])
        current = problem.module_at(w)[1].running_mean
        assert torch.equal(average.module[1].running_mean, current)
        assert torch.equal(module[1].running_mean, current)
        assert torch.equal(dict(module.named_buffers())["1.running_mean"], current)
        if step.number == 1:
            assert torch.equal(copy.deepcopy(module)[1].running_mean, current)
    assert type(module[1]._buffers) is dict


def test_layers_can_be_frozen_in_a_loop():
    module = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))
    plain = copy.deepcopy(module)
    adam, expected = (torch.optim.AdamW(model.parameters(), lr=0.1) for model in (module, plain))
    for number in range(4):
        plain[0].requires_grad_(number not in (1, 2))
        expected.zero_grad()
        CROSS_ENTROPY(plain(X), Y).backward()
        expected.step()
    problem = TorchProblem(module, CROSS_ENTROPY, (X, Y))
    for step in anyk.rounds(problem, "uncoded", Simulated(2), steps=4, into=module):
        adam.step()
        module[0].requires_grad_(step.number + 1 not in (1, 2))
    assert torch.allclose(module[0].weight, plain[0].weight, atol=1e-5)


def test_layers_frozen_before_the_loop_are_named():
    module = nn.Sequential(nn.Linear(5, 8).requires_grad_(False), nn.ReLU(), nn.Linear(8, 3))
    problem = TorchProblem(module, CROSS_ENTROPY, (X, Y))
    with pytest.raises(anyk.BadInput, match="parameter '0.weight' was frozen when the loop began"):
        for _ in anyk.rounds(problem, "uncoded", Simulated(2), steps=3, into=module):
            module.requires_grad_(True)


def test_gradients_that_no_step_uses_are_reported():
    module = nn.Linear(5, 3)
    sgd = torch.optim.SGD(module.parameters(), lr=0.1)
    problem = TorchProblem(module, CROSS_ENTROPY, (X, Y))
    for _ in anyk.rounds(problem, "uncoded", Simulated(2), steps=2, into=module):
        sgd.step()
    with pytest.warns(RuntimeWarning, match="3 gradients before this step were used by no step of an optimiser"):
        for step in anyk.rounds(problem, "uncoded", Simulated(2), steps=4, into=module):
            if step.number == 3:
                sgd.step()


class Force(nn.Module):
    def __init__(self):
        super().__init__()
        self.energy = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, x):
        x = x.detach().requires_grad_(True)
        return -torch.autograd.grad(self.energy(x).sum(), x, create_graph=True)[0]


@pytest.mark.parametrize("where", ["driver", "workers"])
def test_models_that_differentiate_are_evaluated(where):
    module = Force()
    plain = trained_plainly(copy.deepcopy(module), loss=lambda outputs, _: nn.MSELoss()(outputs, X), lr=0.1)
    problem = TorchProblem(module, nn.MSELoss(), (X, X), held_out=(X, X), metrics={"mse": nn.MSELoss()}, better="lower")
    run = anyk.train(
        problem,
        "uncoded",
        Simulated(4),
        optimizer=anyk.optimizers.GD(lr=0.1),
        steps=3,
        evaluate=f"where={where},on=train",
    )
    assert run.loss == pytest.approx(nn.MSELoss()(plain(X), X).item(), rel=1e-5)


# --------------------------------------------------------------------------------------------------- wrapped modules


class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(5, 6), nn.Linear(6, 3)

    def forward(self, x):
        return torch.utils.checkpoint.checkpoint(self.b, self.a(x), use_reentrant=True)


@pytest.mark.filterwarnings("ignore")  # of torch, if no input of a checkpoint requires a gradient
def test_reentrant_checkpoints_are_computed_by_backward():
    module = Checkpointed()
    plain = trained_plainly(copy.deepcopy(module))
    problem = TorchProblem(module, CROSS_ENTROPY, (X, Y))
    run = anyk.train(problem, "frc:stragglers=1", Simulated(4), optimizer=anyk.optimizers.GD(lr=0.5), steps=3)
    assert torch.allclose(problem.module_at(run.model).a.weight, plain.a.weight, atol=1e-6)


class Mixing(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.Linear(5, 3)

    def forward(self, x):
        outputs = self.l(x)
        return outputs - outputs.mean(dim=0)


class Whitening(Mixing):
    """Divides by a standard deviation over the batch, which a single sample has not."""

    def forward(self, x):
        return self.l((x - x.mean(dim=0)) / x.std(dim=0))


class ClippedInside(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(5, 6), nn.Linear(6, 3)

    def forward(self, x):
        hidden = self.a(x)
        if hidden.requires_grad:
            hidden.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))
        return self.b(hidden)


@pytest.mark.parametrize("large", [LARGE, 10])  # of a large module, some coordinates are compared
@pytest.mark.parametrize("module", [Mixing(), Whitening(), ClippedInside()])
def test_gradients_that_are_no_sum_are_refused(module, large, monkeypatch):
    for place in (network, module_checks):
        monkeypatch.setattr(place, "LARGE", large)
    TorchProblem(nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3)), CROSS_ENTROPY, (X, Y))
    with pytest.raises(anyk.BadInput, match="a layer mixes the samples of a batch, or a hook changes"):
        TorchProblem(module, CROSS_ENTROPY, (X, Y))


@pytest.mark.parametrize("large", [LARGE, 5])
def test_losses_follow_a_model_and_modules_do_not(large, monkeypatch):
    monkeypatch.setattr(modules, "LARGE", large)
    problem = TorchProblem(nn.Sequential(nn.Linear(5, 3)), CROSS_ENTROPY, (X, Y), held_out=(X, Y))
    w = problem.initial()
    before, module = problem.loss(w), problem.module_at(w)
    changed = 3.0 * w
    w *= 3.0
    w.flags.writeable = False
    assert before != problem.loss(w) == problem.loss(changed)
    assert problem.metrics(w) == problem.metrics(changed)
    with torch.no_grad():
        assert float(CROSS_ENTROPY(module(X), Y)) == pytest.approx(before)


def test_gradients_divided_by_frequencies_are_refused():
    module = nn.Sequential(nn.Embedding(10, 4, scale_grad_by_freq=True), nn.Flatten(), nn.Linear(8, 3))
    with pytest.raises(anyk.BadInput, match="'0' divides gradients by how often a number occurs"):
        TorchProblem(module, CROSS_ENTROPY, (torch.randint(0, 10, (40, 2)), Y))


def test_a_cached_function_of_a_script_reaches_workers():
    @functools.lru_cache(maxsize=7)
    def scale(width):
        return 2.0 * width

    def loss(outputs, targets):
        return nn.functional.cross_entropy(scale(3) * outputs, targets)

    problem = TorchProblem(nn.Linear(5, 3), loss, (X, Y))
    copied = unship([memoryview(bytes(buffer)) for buffer in ship(problem.split(2))])
    w = problem.initial()
    np.testing.assert_array_equal(copied.partial_gradient(0, w), problem.split(2).partial_gradient(0, w))
    assert scale.cache_parameters()["maxsize"] == 7
