"""A loss of several samples must be the mean, or the sum, of theirs; one that is not is found wherever it shows."""

from __future__ import annotations

import os

import numpy as np
import pytest

import anyk
from anyk.base.errors import BadInput, RunFailed
from anyk.problems import JaxProblem, TorchProblem
from anyk.problems.replicas import trial_groups

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn.functional import cross_entropy, mse_loss, nll_loss  # noqa: E402

pytestmark = pytest.mark.slow

GD = anyk.optimizers.GD(lr=0.1)


class Listed(torch.utils.data.Dataset):
    def __init__(self, X, y):
        self.X, self.y = X, y

    def __len__(self):
        return len(self.X)

    def __getitem__(self, i):
        return self.X[i], self.y[i]


def padded(samples=60, length=6, ignored=0, whole=2):
    """Sequences of different lengths behind ``whole`` ones without padding; classes 1 to 3, outputs of 4 classes."""
    random = torch.Generator().manual_seed(4)
    X = torch.randn(samples, 5, length, generator=random)
    y = 1 + X[:, :3].argmax(dim=1)
    lengths = torch.randint(1, length + 1, (samples,), generator=random)
    lengths[:whole] = length
    y[torch.arange(length) >= lengths[:, None]] = ignored
    torch.manual_seed(5)
    return nn.Conv1d(5, 4, 1), X, y


def ignoring(outputs, targets):
    return cross_entropy(outputs, targets, ignore_index=0)


class Ignoring(nn.Module):
    def forward(self, outputs, targets):
        return nll_loss(outputs.log_softmax(dim=1), targets, ignore_index=0)


def masked(outputs, targets):
    mask = (targets != 0).float()
    return (cross_entropy(outputs, targets, reduction="none") * mask).sum() / mask.sum()


@pytest.mark.parametrize("loss", [ignoring, Ignoring(), masked], ids=["function", "module", "mask"])
@pytest.mark.parametrize("data", [tuple, lambda pair: Listed(*pair)], ids=["arrays", "items"])
@pytest.mark.parametrize("start", ["random", "zero"])
def test_a_mean_over_what_is_not_padding_is_refused(loss, data, start):
    module, X, y = padded()
    if start == "zero":  # all losses are alike, their gradients are not
        nn.init.zeros_(module.weight)
        nn.init.zeros_(module.bias)
    with pytest.raises(BadInput, match=r"not the mean of their losses: .*CrossEntropyLoss\(ignore_index=…\).*'sum'"):
        TorchProblem(module, loss, data((X, y)))
    TorchProblem(module, loss, data((X[:2], y[:2])))  # without padding it is a mean
    TorchProblem(module, loss, data((X, y)), microbatch=1)  # one by one there is nobody to be weighed with


def test_what_is_advised_is_exact():
    module, X, y = padded()
    parameters = list(module.parameters())
    exact = torch.autograd.grad(ignoring(module(X), y), parameters)
    own = TorchProblem(module, nn.CrossEntropyLoss(ignore_index=0), (X, y))
    total = TorchProblem(module, lambda o, t: cross_entropy(o, t, ignore_index=0, reduction="sum"), (X, y),
                         reduction="sum")  # fmt: skip
    for problem, divisor in ((own, len(X)), (total, int((y != 0).sum()))):
        parts = problem.split(4)
        gradient = sum(parts.partial_gradient(j, problem.initial()) for j in range(4)) / divisor
        assert gradient == pytest.approx(np.concatenate([g.reshape(-1).numpy() for g in exact]), abs=1e-6)


def test_class_weights_show_in_sorted_data_too():
    X, y = torch.randn(90, 3, generator=torch.Generator().manual_seed(1)), torch.arange(90) // 30
    weights = torch.tensor([1.0, 1.0, 4.0])
    with pytest.raises(BadInput, match="it weighs or leaves out targets"):
        TorchProblem(nn.Linear(3, 3), lambda o, t: cross_entropy(o, t, weight=weights), (X, y))
    with pytest.raises(BadInput, match="it weighs or leaves out targets"):  # numbers left out
        TorchProblem(nn.Linear(3, 1), lambda o, t: ((o[:, 0] - t) ** 2)[t > -1].mean(), (X, y.float() - 1.0))


def test_outputs_may_be_several_tensors_or_transposed():
    class Pair(nn.Module):
        def __init__(self, part):
            super().__init__()
            self.part = part

        def forward(self, x):
            outputs = self.part(x)
            return {"logits": outputs, "more": (outputs, x)}

    class Across(Pair):
        def forward(self, x):
            return self.part(x).permute(2, 0, 1)

    module, X, y = padded()
    for module_of_several, take in (
        (Pair(module), lambda o: o["logits"]),
        (Across(module), lambda o: o.permute(1, 2, 0)),
    ):
        with pytest.raises(BadInput, match="not the mean of their losses"):
            TorchProblem(module_of_several, lambda o, t, take=take: ignoring(take(o), t), (X, y))
        TorchProblem(module_of_several, lambda o, t, take=take: cross_entropy(take(o), t), (X, y))


def rare(samples=400):
    """Only the very last sample has padding; neither the least nor the largest class stands for it."""
    module, X, y = padded(samples, whole=samples, ignored=2)
    y[-1, 2:] = 2
    y[:-1][y[:-1] == 2] = 3
    return TorchProblem(module, lambda o, t: cross_entropy(o, t, ignore_index=2), Listed(X, y))


def test_a_first_gradient_shows_what_one_partition_hides():
    problem = rare()
    parts, w = problem.split(4), problem.initial()
    for j in range(3):
        parts.partial_gradient(j, w)
    with pytest.raises(BadInput, match="the loss of 100 samples of partition 3 together is not the mean"):
        parts.partial_gradient(3, w)
    with pytest.raises(BadInput, match="of 5 samples of partition 3"):
        parts.partial_gradient(3, w, np.array([0, 3, 7, 8, 99]))


def test_mini_batches_are_looked_at_again_and_again():
    """At the gradients 1, 2, 4, 8 and so on: padding in those between is not noticed."""
    parts, without, with_padding = rare().split(4), np.array([0, 3, 7]), np.array([0, 3, 99])
    for number in range(1, 8):
        rows = with_padding if number in (3, 5, 6) else without
        parts.partial_gradient(3, np.zeros(24, dtype=np.float32) + number, rows)
    with pytest.raises(BadInput, match="of 3 samples of partition 3 together is not the mean"):
        parts.partial_gradient(3, rare().initial(), with_padding)  # the eighth


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["simulated", "processes"])
@pytest.mark.parametrize("spec", ["uncoded", "async"])
def test_a_worker_whose_loss_is_no_mean_ends_the_run_by_name(kind, spec):
    with pytest.raises(RunFailed, match="worker 3: the loss of 100 samples of partition 3 together is not the mean"):
        anyk.train(rare(), spec, anyk.cluster(kind, workers=4, delays="constant:value=0.01"), steps=40, optimizer=GD)


def test_looking_at_the_loss_changes_no_draw():
    """Of dropout in the microbatches that follow, in a worker, too, where draws are not put back."""
    module, X, y = padded()
    net = nn.Sequential(module, nn.Dropout(0.3)).double()
    problem = TorchProblem(net, nn.CrossEntropyLoss(), (X.double(), y), microbatch=5)
    parts, w = problem.split(2), problem.initial()
    for worker in ({}, {"ANYK_WORKER": "0"}):
        with pytest.MonkeyPatch.context() as patch:
            for key, value in worker.items():
                patch.setitem(os.environ, key, value)
            parts = problem.split(2)
            assert np.array_equal(parts.partial_gradient(1, w), parts.partial_gradient(1, w))


def test_means_pass_where_rounding_is_coarse_too():
    module, X, y = padded()
    for loss in (cross_entropy, nn.CrossEntropyLoss(label_smoothing=0.1), lambda o, t: mse_loss(o[:, 0], t.float())):
        for precision in (None, "bf16"):
            problem = TorchProblem(module, loss, (X, y), precision=precision)
            problem.split(2).partial_gradient(0, problem.initial())


def test_trial_rows_have_extremes_and_come_from_everywhere():
    values = np.full((5000, 3), 7)
    values[4321, 2], values[17, 0] = -100, 255
    rows = np.concatenate(list(trial_groups([values], 5000)))
    assert {0, 1, 17, 4321} <= set(rows.tolist()) and len(rows) == len(set(rows.tolist())) == 32
    assert all((rows // 500 == block).any() for block in range(10))
    assert all(len(group) <= 4 for group in trial_groups([values], 5000))
    assert [group.tolist() for group in trial_groups([], 3, 2)] != [] and sum(map(len, trial_groups([], 3, 2))) == 3


@pytest.mark.slow
def test_a_jax_loss_that_is_no_mean_over_rows_is_refused():
    jax = pytest.importorskip("jax")
    jnp = jax.numpy
    _, X, y = padded()
    data = {"x": X.numpy(), "y": y.numpy(), "mask": (y != 0).numpy().astype(np.float32)}
    params = {"w": np.zeros((5, 4), dtype=np.float32)}

    def each(params, batch):
        scores = jax.nn.log_softmax(jnp.einsum("nct,ck->ntk", batch["x"], params["w"]))
        return -jnp.take_along_axis(scores, batch["y"][:, :, None], axis=2)[:, :, 0] * batch["mask"]

    def mean(params, batch):
        return each(params, batch).sum() / batch["mask"].sum()

    def normal(params, batch):
        x = batch["x"]
        return jnp.mean(((x - x.mean(axis=0)) / (x.std(axis=0) + 0.1)) ** 2) * (params["w"] ** 2 + params["w"]).sum()

    for loss in (mean, normal):
        with pytest.raises(
            BadInput, match="not the mean of their losses: .*reduction='sum'; one that normalises by the"
        ):
            JaxProblem(loss, params, data)
        assert JaxProblem(loss, params, data, reduction="mean").samples == 60
    JaxProblem(mean, params, {name: array[:2] for name, array in data.items()})
    JaxProblem(lambda p, b: each(p, b).mean(), params, data)
    JaxProblem(lambda p, b: each(p, b).sum(), params, data, reduction="sum")
    JaxProblem(lambda p, b: mean(p, b) / 0.0, params, data)  # nothing can be told


def own_mse(model, batch):
    return mse_loss(model(batch[0]), batch[1])


def fitted(noise=0.0):
    """Least squares, and the solution: what is left of the losses' gradients is of the size of rounding."""
    random = torch.Generator().manual_seed(0)
    X, w = torch.randn(64, 8, generator=random), torch.randn(8, 1, generator=random)
    module = nn.Linear(8, 1)
    with torch.no_grad():
        module.weight[:] = w.T
        module.bias.zero_()
    return module, X, X @ w + noise * torch.randn(64, 1, generator=random)


@pytest.mark.parametrize("loss", [own_mse, mse_loss], ids=["module", "outputs"])
@pytest.mark.parametrize("noise", [0.0, 1e-6])
def test_a_model_that_fits_up_to_rounding_is_trained_on(loss, noise):
    module, X, y = fitted(noise)
    problem = TorchProblem(module, loss, (X, y))
    assert anyk.train(problem, "uncoded:batch=8", "simulated", workers=2, optimizer=GD, steps=64).steps == 64
    fresh = TorchProblem(nn.Linear(8, 1), loss, (X, y))  # and one that comes to fit while it is trained
    run = anyk.train(fresh, "uncoded:batch=8", "simulated", workers=2, optimizer=anyk.optimizers.GD(lr=0.3), steps=150)
    assert run.steps == 150 and run.loss < 1e-9


def test_what_weighs_samples_is_found_where_a_model_nearly_fits():
    module, X, y = fitted(noise=1e-3)

    def weighing(model, batch):
        weights = batch[1].abs()
        return ((model(batch[0]) - batch[1]) ** 2 * weights).sum() / weights.sum()

    with pytest.raises(BadInput, match="not the mean of their losses"):
        TorchProblem(module, weighing, (X, y))
    with pytest.raises(BadInput, match="not the mean of their losses"):
        TorchProblem(module, lambda o, t: ((o - t) ** 2 * t.abs()).sum() / t.abs().sum(), (X, y))


def test_fitted_parameters_are_no_mistake_of_a_jax_loss():
    jnp = pytest.importorskip("jax.numpy")
    module, X, y = fitted()
    w = module.weight.detach().numpy()[0]
    JaxProblem(lambda w, b: jnp.mean((b[0] @ w - b[1]) ** 2), w, (X.numpy(), y[:, 0].numpy()))


def test_a_loss_that_draws_at_times_is_not_said_to_weigh():
    module, X, y = padded(whole=60)
    calls = []

    def rarely(outputs, targets):
        calls.append(len(targets))
        return cross_entropy(outputs, targets) * (3.0 if len(calls) % 29 == 0 else 1.0)

    problem = TorchProblem(module, rarely, (X, y))
    assert anyk.train(problem, "uncoded:batch=8", "simulated", workers=2, optimizer=GD, steps=40).steps == 40
    assert len(calls) > 29


def test_a_module_without_gradients_in_evaluation_is_trained():
    class Frugal(nn.Linear):
        def forward(self, x):
            with torch.set_grad_enabled(self.training):
                return super().forward(x)

    random = torch.Generator().manual_seed(0)
    X, y = torch.randn(20, 3, generator=random), torch.randn(20, 1, generator=random)
    problem = TorchProblem(Frugal(3, 1), own_mse, (X, y))
    assert anyk.train(problem, "uncoded", "simulated", workers=2, optimizer=GD, steps=3).steps == 3
    with pytest.raises(BadInput, match="the loss has no gradient"):
        TorchProblem(nn.Linear(3, 1), lambda model, batch: own_mse(model, batch).detach(), (X, y))
