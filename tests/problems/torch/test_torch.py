"""PyTorch modules: gradients against autograd on the whole batch, what buffers and draws may not do, and real workers."""

from __future__ import annotations

import pickle
import subprocess
import sys
import textwrap
import warnings
from itertools import combinations

import cloudpickle
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

import anyk
from anyk.base.errors import BadInput, RunFailed
from anyk.clusters.messages import Messages
from anyk.problems import TorchProblem
from anyk.problems.torch.network import Network
from anyk.protocol import Chunk

pytestmark = pytest.mark.slow

EXACT = ["uncoded", "frc:stragglers=2", "cyclic:stragglers=2", "mds:stragglers=2", "binary:stragglers=2"]


def made(dtype=torch.float64, samples=24, *, module=None, loss=None, **options):
    """A small network for classes, with data."""
    random = torch.Generator().manual_seed(1)
    X = torch.randn(samples, 5, generator=random, dtype=dtype)
    y = X[:, :3].argmax(dim=1)
    torch.manual_seed(2)
    if module is None:
        module = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)).to(dtype)
    return TorchProblem(module, loss or nn.CrossEntropyLoss(), (X, y), **options), module, X, y


def flat(tensors):
    return np.concatenate([tensor.detach().reshape(-1).numpy() for tensor in tensors])


def autograd(module, X, y):
    """The gradient of the sum of losses over all samples, with the module's own parameters."""
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    loss = cross_entropy(module(X), y, reduction="sum")
    actual = torch.autograd.grad(loss, parameters, allow_unused=True)
    return flat(torch.zeros_like(p) if g is None else g for p, g in zip(parameters, actual, strict=True))


@pytest.mark.parametrize("spec", EXACT)
def test_decoded_gradients_are_autograds_for_every_pattern(spec):
    code = anyk.code(spec, workers=6)
    for dtype in (torch.float32, torch.float64):
        problem, module, X, y = made(dtype)
        w = problem.initial()
        assert w.dtype == problem.dtype == np.dtype(str(dtype).removeprefix("torch."))
        parts, messages = problem.split(code.partitions), []
        gradients = np.array([parts.partial_gradient(j, w) for j in range(code.partitions)])
        assert gradients.dtype == w.dtype
        for ids, coefficients in code.rows:
            messages.append(np.asarray(coefficients, dtype=w.dtype) @ gradients[list(ids)])
        for arrived in combinations(range(6), 6 - code.tolerates):
            weights, residual, gain = code.decode(arrived)
            assert residual <= 1e-6
            total = np.asarray(weights) @ np.array(messages, dtype=np.float64)
            limit = 10 * gain * np.finfo(w.dtype).eps * np.abs(gradients).sum()
            assert np.abs(total - autograd(module, X, y)).max() <= limit


@pytest.mark.parametrize("spec", [*EXACT, "nested", "progress", "partial:stragglers=1,load=4", "tree", "bcc",
                                  "comm-efficient"])  # fmt: skip
def test_a_step_of_every_exact_code_is_one_of_the_whole_batch(spec):
    problem, module, X, y = made()
    w = problem.initial()
    full_gradient = autograd(module, X, y) / len(X)
    for seed in range(3):  # who is late, and by how much
        cluster = anyk.clusters.Simulated(6, delays=anyk.delays.Exponential(mean=1.0), seed=seed)
        run = anyk.train(problem, spec, cluster, steps=1, optimizer=anyk.optimizers.GD())
        assert w - run.model == pytest.approx(full_gradient, abs=1e-9)


@settings(max_examples=12, deadline=None)
@given(
    partitions=st.integers(1, 7),
    batch=st.integers(1, 6),
    version=st.integers(0, 5),
    microbatch=st.sampled_from([None, 1, 2, 5]),
    reduction=st.sampled_from(["mean", "sum"]),
)
def test_mini_batches_are_drawn_by_key_and_scaled(partitions, batch, version, microbatch, reduction):
    problem, module, X, y = made(loss=nn.CrossEntropyLoss(reduction=reduction), microbatch=microbatch)
    w = problem.initial()
    parts = problem.split(partitions)
    messages = Messages(parts, seed=7)
    ends = np.concatenate(([0], np.cumsum(parts.sizes)))
    for j in range(partitions):
        assert parts.partial_gradient(j, w) == pytest.approx(
            autograd(module, X[ends[j] : ends[j + 1]], y[ends[j] : ends[j + 1]]), abs=1e-12
        )
        chunk = Chunk("model", (j,), (1.0,), batch=batch)
        rows = messages.rows(j, chunk, version)
        chosen = np.arange(parts.sizes[j]) if rows is None else rows
        some = torch.from_numpy(chosen + ends[j])
        expected = autograd(module, X[some], y[some]) * (parts.sizes[j] / len(chosen))
        assert messages.partial_gradient(j, w, chunk, version) == pytest.approx(expected, abs=1e-12)


def padded(samples=18, length=6, ignored=-100, dtype=torch.float64):
    """Sequences of different lengths, one of them all padding; outputs (samples, classes, length)."""
    random = torch.Generator().manual_seed(4)
    X = torch.randn(samples, 5, length, generator=random, dtype=dtype)
    y = X[:, :3].argmax(dim=1)
    lengths = torch.randint(0, length + 1, (samples,), generator=random)
    y[torch.arange(length) >= lengths[:, None]] = ignored
    y[:6] = ignored  # of 3 partitions the first has no target at all
    torch.manual_seed(5)
    return nn.Conv1d(5, 3, 1).to(dtype), X, y


@pytest.mark.parametrize("ignored", [-100, 0])
@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss, nn.NLLLoss])
def test_means_without_ignored_targets_cover_the_whole_data(ignored, loss):
    module, X, y = padded(ignored=ignored)
    if loss is nn.NLLLoss:
        module = nn.Sequential(module, nn.LogSoftmax(dim=1))
    loss_given = loss(ignore_index=ignored)
    for options in ({}, {"microbatch": 4}):
        problem = TorchProblem(module, loss_given, (X, y), held_out=(X, y), **options)
        w, parts = problem.initial(), problem.split(3)
        expected = loss_given(module(X), y)
        gradient = torch.autograd.grad(expected, list(module.parameters()))
        full_gradient = sum(parts.partial_gradient(j, w) for j in range(3)) / len(X)
        assert full_gradient == pytest.approx(flat(gradient), abs=1e-12)
        assert problem.loss(w) == pytest.approx(expected.item(), rel=1e-12)
        assert loss_given.reduction == "mean"
        counts = y != ignored
        right = (module(X).argmax(dim=1) == y)[counts].double().mean().item()
        assert problem.metrics(w)["accuracy"] == pytest.approx(right, rel=1e-12)
    cluster = anyk.clusters.Simulated(3, delays=anyk.delays.Exponential(mean=1.0), seed=1)
    run = anyk.train(problem, "cyclic:stragglers=1", cluster, steps=1, optimizer=anyk.optimizers.GD())
    assert w - run.model == pytest.approx(flat(gradient), abs=1e-9)
    batch = np.array([1, 4])
    some = y[6:][batch] != ignored
    assert some.any()
    actual = parts.partial_gradient(1, w, batch) / len(X) * (y != ignored).sum().item()
    loss_given.reduction = "sum"
    expected = torch.autograd.grad(loss_given(module(X[6:][batch]), y[6:][batch]), list(module.parameters()))
    assert actual == pytest.approx(flat(expected), abs=1e-12)


def test_ignored_targets_that_cannot_be_counted_are_refused():
    module, X, y = padded()
    items = Listed(list(zip(X, y, strict=True)))
    with pytest.raises(
        BadInput, match=r"targets that are not -100 \(ignore_index\), and how many .* known of arrays alone"
    ):
        TorchProblem(module, nn.CrossEntropyLoss(), items)
    later = Listed([(X[0], y[0].clamp(min=0))] * 2 + items.items)  # not among the first
    with pytest.raises(BadInput, match="known of arrays alone; give the data as tensors"):
        anyk.train(
            TorchProblem(module, nn.CrossEntropyLoss(), later),
            "uncoded",
            anyk.clusters.Simulated(2),
            steps=1,
            optimizer=anyk.optimizers.GD(),
        )
    assert TorchProblem(module, nn.CrossEntropyLoss(reduction="sum"), items).samples == 18
    with pytest.raises(BadInput, match="the loss ignores every target: all are -100"):
        TorchProblem(module, nn.CrossEntropyLoss(), (X, torch.full_like(y, -100)))


def test_a_loss_that_is_no_sum_over_samples_is_refused():
    module, X, y = padded(ignored=0)
    every = X, y
    for few in ([8, 7], [8, 0]):  # one target of padding beside three, and beside nothing else
        X, y = every[0][few], every[1][few]
        with pytest.raises(BadInput, match="is not the mean of their losses"):
            TorchProblem(module, lambda o, t: cross_entropy(o, t, ignore_index=0), (X, y))
    for loss_given, reduction, words in (
        (
            lambda o, t: cross_entropy(o, t, weight=torch.tensor([1.0, 5.0, 9.0], dtype=o.dtype)),
            None,
            "is not the mean",
        ),
        (lambda o, t: cross_entropy(o, t), "sum", "is not the sum of their losses"),
        (lambda o, t: o.sum() ** 2, "sum", "or looks at several samples at once"),
    ):
        with pytest.raises(BadInput, match=words):
            TorchProblem(module, loss_given, (X, y), reduction=reduction)
    for loss_given in (
        lambda o, t: cross_entropy(o, t) + 0.1 * module.weight.norm(),
        lambda o, t: cross_entropy(o, t) * torch.rand(()),  # draws: nothing can be told
        lambda o, t: cross_entropy(o, t) if len(t) > 1 else 1 / 0,
        lambda o, t: cross_entropy(o, t) / 0.0,
        lambda o, t: mse_loss(o[:, 0, 0].squeeze(), t[:, 0].to(o.dtype)),  # warns of a single sample
    ):
        TorchProblem(module, loss_given, (X, y))


def test_batchmean_is_a_mean_over_samples():
    loss = nn.KLDivLoss(reduction="batchmean")
    X, module = torch.randn(12, 5), nn.Sequential(nn.Linear(5, 3), nn.LogSoftmax(dim=1))
    y = torch.rand(12, 3).softmax(dim=1)
    problem = TorchProblem(module, loss, (X, y))
    w, parts = problem.initial(), problem.split(3)
    actual = torch.autograd.grad(loss(module(X), y), list(module.parameters()))
    assert sum(parts.partial_gradient(j, w) for j in range(3)) / 12 == pytest.approx(flat(actual), abs=1e-6)
    assert problem.loss(w) == pytest.approx(loss(module(X), y).item(), rel=1e-5)


class Tied(nn.Module):
    """Two layers that share a weight, a frozen one, and one that is never used."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(5, 5, bias=False)
        self.second = nn.Linear(5, 5)
        self.second.weight = self.first.weight
        self.frozen = nn.Linear(5, 5).requires_grad_(False)
        self.last = nn.Linear(5, 3)
        self.unused = nn.Linear(2, 2)
        self.double()

    def forward(self, x):
        return self.last(self.frozen(torch.tanh(self.second(torch.tanh(self.first(x))))))


def test_shared_parameters_count_once_and_frozen_ones_stay():
    torch.manual_seed(0)
    problem, module, X, y = made(module=Tied())
    assert problem.dimension == 25 + 5 + (5 * 3 + 3) + (4 + 2)
    w = problem.initial() * 0.7
    module_there = problem.module_at(w)
    assert module_there.second.weight is module_there.first.weight
    assert torch.equal(module_there.frozen.weight, module.frozen.weight)
    assert np.array_equal(flat(p for p in module_there.parameters() if p.requires_grad), w)
    parts = problem.split(3)
    full_gradient = sum(parts.partial_gradient(j, w) for j in range(3))
    assert full_gradient == pytest.approx(autograd(module_there, X, y), abs=1e-12)
    assert not full_gradient[-6:].any()  # what is not used has no gradient


def test_any_module_works_and_the_users_own_is_left_alone():
    torch.manual_seed(0)
    lstm = nn.LSTM(4, 3, batch_first=True)
    before = flat(lstm.parameters())
    X, y = torch.randn(8, 6, 4), torch.randn(8, 6, 3)
    problem = TorchProblem(lstm, lambda outputs, y: mse_loss(outputs[0], y), (X, y))
    parts = problem.split(2)
    w = problem.initial() + np.float32(0.1)
    full_gradient = (parts.partial_gradient(0, w) + parts.partial_gradient(1, w)) / 8
    assert np.array_equal(flat(lstm.parameters()), before)
    module_there = problem.module_at(w).train()
    actual = torch.autograd.grad(mse_loss(module_there(X)[0], y), list(module_there.parameters()))
    assert full_gradient == pytest.approx(flat(actual), abs=1e-6)
    assert problem.loss(w) == pytest.approx(mse_loss(module_there(X)[0], y).item(), abs=1e-6)
    with torch.no_grad():
        lstm.weight_ih_l0.zero_()
    assert np.array_equal(problem.initial(), before)


# ------------------------------------------------------------------------------------ buffers and draws


def normalised():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3)).double()


def test_what_a_forward_pass_does_to_buffers_is_dropped():
    problem, module, X, y = made(module=normalised())
    parts = problem.split(3)
    w = problem.initial()
    first = parts.partial_gradient(0, w)
    parts.partial_gradient(2, w + 1.0)
    assert np.array_equal(parts.partial_gradient(0, w), first)
    assert first == pytest.approx(autograd(module.train(), X[:8], y[:8]), abs=1e-12)  # the batch's own statistics
    worker = parts._network.module[1]
    assert torch.equal(worker.running_mean, torch.zeros(6)) and worker.num_batches_tracked == 0


def test_statistics_for_evaluation_are_update_bns():
    problem, module, X, y = made(module=normalised(), microbatch=8, held_out=None)
    w = problem.initial()
    with torch.no_grad():
        module[1].running_mean.fill_(17.0)  # of what the user did since, nothing is seen
    own = normalised()
    torch.optim.swa_utils.update_bn([X[:8], X[8:16], X[16:]], own)
    module_there = problem.module_at(w)
    assert not module_there.training
    assert (
        torch.equal(module_there[1].running_mean, own[1].running_mean) and module_there[1].momentum == own[1].momentum
    )
    assert torch.equal(module_there[1].running_var, own[1].running_var)
    assert problem.loss(w) == pytest.approx(cross_entropy(own.eval()(X), y).item(), rel=1e-12)
    module_there[1].running_mean.zero_()
    assert torch.equal(problem.module_at(w)[1].running_mean, own[1].running_mean)


def test_replicas_draw_alike_and_leave_everybodys_draws_alone():
    module = nn.Sequential(nn.Linear(5, 40), nn.Dropout(0.5), nn.Linear(40, 3)).double()
    problem, *_ = made(module=module)
    w, rows = problem.initial(), np.array([1, 3])
    one, other = problem.split(4), pickle.loads(cloudpickle.dumps(problem.split(4)))
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    first = one.partial_gradient(1, w)
    assert torch.equal(torch.rand(3), expected)
    other.partial_gradient(0, w)
    assert np.array_equal(other.partial_gradient(1, w), first)
    assert np.array_equal(one.partial_gradient(1, w, rows), other.partial_gradient(1, w, rows))

    def dropped(partition, w, rows=None):
        units = one.partial_gradient(partition, w, rows)[:200].reshape(40, 5)
        return tuple(~units.any(axis=1)) if rows is not None else units.tobytes()

    single = np.array([2])
    assert dropped(1, w, single) != dropped(2, w, single) != dropped(1, w + 1e-9, single)
    loss = problem.loss(w)  # evaluation drops nothing out
    plain = problem.module_at(w)
    assert loss == problem.loss(w) == pytest.approx(cross_entropy(plain(made()[2]), made()[3]).item(), rel=1e-12)


# ------------------------------------------------------------------------------------ data


class Drawn(torch.utils.data.Dataset):
    """Items made when asked for, with two inputs."""

    def __len__(self):
        return 13

    def __getitem__(self, i):
        return torch.full((2,), float(i)), torch.tensor([1.0]), torch.tensor(float(i % 3))


class Listed(torch.utils.data.Dataset):
    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 1)

    def forward(self, x, one):
        return self.layer(torch.cat([x, one], dim=1))[:, 0]


def test_samples_spread_by_labels_give_the_same_gradient():
    X, y = torch.randn(40, 3, dtype=torch.float64), torch.arange(40) % 2
    module = nn.Linear(3, 2).double()
    split = {"split": "dirichlet:alpha=1e-6,seed=1"}
    plain, uneven = (TorchProblem(module, nn.CrossEntropyLoss(), (X, y), **keys) for keys in ({}, split))
    a, b = plain.split(4), uneven.split(4)
    a.load(range(4))
    b.load(range(4))
    w = plain.initial()
    sums = [sum(parts.partial_gradient(j, w).copy() for j in range(4)) for parts in (a, b)]
    assert np.allclose(*sums, rtol=1e-12) and a.sizes == b.sizes == (10,) * 4
    assert plain.digest() != uneven.digest()
    for j in range(4):  # ten of one label, in the order they had
        rows, label = b.data.arrays[0][10 * j : 10 * j + 10], b.data.arrays[1][10 * j]
        places = [int((X.numpy() == row).all(axis=1).argmax()) for row in rows]
        assert places == sorted(places) and set(y.numpy()[places]) == {label}
    for data in ((X, X[:, :2]), Listed(list(zip(X, y, strict=True)))):
        with pytest.raises(BadInput, match="needs labels, and the targets are not an array of one integer for each"):
            TorchProblem(module, nn.MSELoss(), data, **split)


def test_a_data_set_is_read_item_by_item():
    torch.manual_seed(0)
    problem = TorchProblem(Two(), mse_loss, Drawn(), held_out=Drawn(), microbatch=3)
    assert (problem.samples, problem.metric, problem.better) == (13, "mse", "lower")
    arrays = [torch.stack(column) for column in zip(*(Drawn()[i] for i in range(13)), strict=True)]
    other = TorchProblem(Two(), mse_loss, torch.utils.data.TensorDataset(*arrays))
    assert TorchProblem(Two(), mse_loss, [Drawn()[i] for i in range(13)]).samples == 13  # a list is a data set, too
    w, parts, plain = problem.initial(), problem.split(3), other.split(3)
    assert problem.metrics(w)["mse"] == pytest.approx(problem.loss(w), rel=1e-5)
    for rows in (None, np.array([0, 2])):
        assert parts.partial_gradient(1, w, rows) == pytest.approx(plain.partial_gradient(1, w, rows), rel=1e-5)


def test_items_that_are_not_tuples_of_tensors_are_refused():
    x, y = torch.ones(5), torch.tensor(1)
    good = [(x, y)] * 4
    for item, words in (
        ({"x": x, "y": y}, "got dict with keys 'x', 'y'; wrap the data set"),
        ((x, {"label": y}), "got tuple of Tensor, dict; wrap"),
        (("text", y), "got tuple of str, Tensor; wrap"),
        ((x,), "got tuple of Tensor; wrap"),
        (x, "got Tensor; wrap"),
    ):
        items = Listed([item] * 4)
        for arguments, options in (((items,), {}), ((good,), {"held_out": items})):
            with pytest.raises(BadInput, match=f"must be a tuple of tensors or numbers, the inputs .* {words}"):
                TorchProblem(nn.Linear(5, 3), nn.CrossEntropyLoss(), *arguments, **options)
    for ragged in [(x, y), (x[:3], y)], [(x, y), (None, y)]:
        for arguments, options in (((Listed(ragged),), {}), ((good,), {"held_out": Listed(ragged)})):
            with pytest.raises(BadInput, match="^(held_out: )?items 0, 1 of the data set cannot be put together"):
                TorchProblem(nn.Linear(5, 3), nn.CrossEntropyLoss(), *arguments, **options)


def test_arrays_go_out_of_band_and_are_used_where_they_lie():
    X, y = torch.randn(5000, 30), torch.randint(0, 3, (5000,))
    module = nn.Linear(30, 3000)
    problem = TorchProblem(nn.Sequential(module, nn.Linear(3000, 3)), nn.CrossEntropyLoss(), (X, y))
    raw = []
    main = cloudpickle.dumps(problem.split(4), protocol=5, buffer_callback=raw.append)
    assert len(main) < 20_000  # neither data nor parameters
    assert sum(len(buffer.raw()) for buffer in raw) == X.numel() * 4 + y.numel() * 8
    parts = pickle.loads(main, buffers=[bytes(buffer.raw()) for buffer in raw])  # read-only, as on a worker
    parts.load([1])
    (placed, _), array = parts._placed[1].batch(slice(0, 1250)), parts.data.arrays[0]
    assert placed.data_ptr() == array[1250:].ctypes.data and not array.flags.writeable
    w = problem.initial()
    w.flags.writeable = False
    assert np.array_equal(parts.partial_gradient(1, w), problem.split(4).partial_gradient(1, w))


def test_metrics_of_ones_own_and_of_sequences():
    X = torch.randint(0, 4, (6, 7))
    module = nn.Embedding(4, 4)
    with torch.no_grad():
        module.weight.copy_(torch.eye(4))
    loss = nn.CrossEntropyLoss()
    problem = TorchProblem(module, lambda o, y: loss(o.transpose(1, 2), y), (X, X), held_out=(X, X))
    assert problem.metrics(problem.initial()) == {
        "held_out_loss": pytest.approx(loss(torch.eye(4)[X].transpose(1, 2), X).item(), rel=1e-6)
    }
    seen = []
    metrics = {"first": lambda o, y: seen.append((o.shape, y.shape)) or 0.25, "second": lambda o, y: 2}
    problem = TorchProblem(module, lambda o, y: loss(o.transpose(1, 2), y), (X, X), held_out=(X, X), metrics=metrics,
                           better="lower", microbatch=4)  # fmt: skip
    assert problem.metrics(problem.initial()) == {"first": 0.25, "second": 2.0}
    assert seen == [((6, 7, 4), (6, 7))] and (problem.metric, problem.better) == ("first", "lower")


class Stubborn(nn.Linear):
    """A module that cannot be moved to a device."""

    def to(self, *args, **options):
        raise RuntimeError("out of memory")


def test_a_module_that_could_not_move_is_not_counted_as_moved():
    network = Network(Stubborn(3, 1), nn.MSELoss(), device="cpu", precision=None, mean=True)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="out of memory"):
            network.move()


def test_bf16_computes_in_bf16_and_answers_in_float32():
    precise, *_ = made(torch.float32)
    mixed, *_ = made(torch.float32, precision="bf16")
    w = precise.initial()
    one, other = precise.split(2).partial_gradient(0, w), mixed.split(2).partial_gradient(0, w)
    assert other.dtype == np.float32
    assert 0 < np.linalg.norm(one - other) < 0.05 * np.linalg.norm(one)
    layer = nn.Linear(1, 1, bias=False)  # whose gradient bf16 can say, but not the number of samples
    X = torch.ones(301, 1)
    problem = TorchProblem(layer, lambda o, y: (o * y).mean(), (X, X), precision="bf16")
    assert problem.split(1).partial_gradient(0, problem.initial()).tolist() == [301.0]


def test_what_cannot_work_is_said():
    X, y = torch.randn(10, 5), torch.zeros(10, dtype=torch.long)
    layer, loss = nn.Linear(5, 3), nn.CrossEntropyLoss()
    bad = [
        ((layer, loss, (X, y[:9])), {}, "one entry for each sample, got \\[10, 9\\] entries"),
        ((layer, loss, (X * np.nan, y)), {}, "the data set must hold finite numbers"),
        ((layer, loss, X), {}, "must be a pair \\(X, y\\) of tensors or arrays"),
        ((layer, loss, ([[1.0], [2.0, 3.0]], y)), {}, "must hold arrays of numbers with a row for each sample, got object"),
        ((layer, loss, [(X[0], y[0]), (X[1],)]), {}, "items 0, 1 of the data set cannot be put together"),
        ((layer, loss, (X,)), {}, "must be inputs and targets, \\(X, y\\), got 1 array"),
        ((nn.Linear(4, 3), loss, (X, y)), {}, "module and loss fail on the first 2 samples: RuntimeError"),
        ((layer, nn.CrossEntropyLoss(reduction="none"), (X, y)), {}, "its mean or its sum, got reduction 'none'"),
        ((layer, lambda o, y: o, (X, y)), {}, "must give one number for a batch.* got shape \\(2, 3\\)"),
        ((layer, loss, (X, y)), {"reduction": "sum"}, "the loss itself returns the mean"),
        ((layer, nn.CrossEntropyLoss(weight=torch.ones(3)), (X, y)), {}, "give the loss reduction='sum'"),
        ((layer.requires_grad_(True), loss, (X, y)), {"precision": "fp16"}, "not supported; use 'bf16'"),
        ((layer, loss, (X, y)), {"device": "gpu"}, "device must be 'cpu', 'cuda' or 'cuda:0', got 'gpu'"),
        ((layer, loss, (X, y)), {"device": "mps"}, "device must be 'cpu', 'cuda' or 'cuda:0', got 'mps'"),
        ((layer, mse_loss, (X, X[:, :3])), {"held_out": (X, X[:, :2])}, "mse cannot be computed from outputs of shape \\(2, 3"),
        ((nn.Linear(5, 1), lambda o, y: o.mean(), (X, y)), {"held_out": (X[:, :4], y)}, "the module fails on held_out"),
        ((layer, loss, (X, y)), {"microbatch": 0}, "microbatch must be a whole number of at least 1 or None, got 0"),
        ((layer, loss, (X, y)), {"threads": 0}, "threads must be a whole number of at least 1, got 0"),
        ((layer, loss, (X, y)), {"l2": -1.0}, "l2 must be a finite number of at least 0, got -1"),
        ((nn.ReLU(), loss, (X, y)), {}, "no parameter to train"),
        ((nn.Linear(5, 3).half(), loss, (X, y)), {}, "all be float32 or all float64, got float16"),
        ((nn.Sequential(nn.ReLU(inplace=True), layer), loss, (X, y)), {}, "changes its inputs or parameters in place"),
        ((nn.Linear, loss, (X, y)), {}, "the module must be a torch.nn.Module, got the class Linear; give an object of it, Linear\\(…\\)"),
        ((None, loss, (X, y)), {}, "the module must be a torch.nn.Module, got NoneType"),
        ((layer, nn.CrossEntropyLoss, (X, y)), {}, "got the class CrossEntropyLoss; give an object of it, CrossEntropyLoss"),
        ((layer, loss, (X[:0], y[:0])), {}, "the data set is empty"),
        ((layer, loss, (X, y)), {"held_out": (X[:0], y[:0])}, "held_out is empty"),
        ((layer, loss, Listed([(X[0], y[0])] * 4 + [None])), {}, "item 4 of the data set is None"),
        ((layer, loss, Listed(None)), {}, "the data set cannot tell its length: TypeError: .* \\(test_torch.py, line"),
        ((layer, loss, (X, y)), {"metrics": ["accuracy"]}, "functions by name, as in {'name': function}, got \\['accuracy'\\]"),
        ((layer, loss, (X, y)), {"metrics": {"m": "accuracy"}}, "functions by name, as in {'name': function}"),
        ((layer, loss, (X, y)), {"better": "max"}, "better must be higher, lower or None, got 'max'"),
        ((layer, loss, Listed([(X[0], y[0])])), {"collate_fn": "pad"}, "collate_fn must be a function .*, got 'pad'"),
        ((layer, loss, (X, y)), {"count": lambda batch: batch[0]}, "a whole number, got Tensor of shape \\(10, 5\\)$"),
        ((layer, lambda o, t: loss(o, t).detach(), (X, y)), {}, "the loss has no gradient"),
        ((nn.Linear(5, 1), mse_loss, (X, X[:, 0])), {}, r"outputs of shape \(2, 1\) and targets of shape \(2,\) are not paired"),
        ((layer, lambda o, t: {}["x"], (X, y)), {}, "KeyError: 'x' \\(test_torch.py, line \\d+\\)$"),
    ]  # fmt: skip
    for arguments, options, sentence in bad:
        with pytest.raises(BadInput, match=sentence), warnings.catch_warnings(action="ignore"):
            TorchProblem(*arguments, **options)
    with warnings.catch_warnings(action="ignore"):
        scripted = torch.jit.script(nn.Linear(5, 3))
    with pytest.raises(BadInput, match="a TorchScript module cannot be sent to workers"):
        TorchProblem(scripted, loss, (X, y))
    assert (
        TorchProblem(layer, loss, (X, y), device=torch.device("cpu"))
        .split(2)
        .partial_gradient(0, np.zeros(18, np.float32))
        .any()
    )
    with pytest.raises(BadInput, match="10 rows cannot be cut into 11 partitions"):
        TorchProblem(layer, loss, (X, y)).split(11)


def test_items_that_do_not_fit_together_are_named_in_a_run():
    X, y = torch.randn(16, 5), torch.zeros(16, dtype=torch.long)
    items = Listed([(x[:2] if i == 9 else x, t) for i, (x, t) in enumerate(zip(X, y, strict=True))])
    with pytest.raises(
        RunFailed, match=r"items 8, 9, 10, 11 of the data set cannot be put together \(torch's default_"
    ):
        anyk.train(
            TorchProblem(nn.Linear(5, 3), nn.CrossEntropyLoss(), items),
            "uncoded",
            anyk.clusters.Simulated(4),
            optimizer=anyk.optimizers.GD(),
            steps=1,
        )


def test_an_infinite_start_is_not_blamed_on_the_learning_rate():
    X, y = torch.randn(16, 5), torch.zeros(16, dtype=torch.long)
    problem = TorchProblem(nn.Linear(5, 3), lambda o, t: (o.mean() - 9).sqrt(), (X, y))
    with pytest.raises(
        RunFailed, match="diverged at step 0: most replies are not finite .*, the loss or the initial model"
    ):
        anyk.train(problem, "uncoded", anyk.clusters.Simulated(4), optimizer=anyk.optimizers.GD(), steps=1)


# ------------------------------------------------------------------------------------ real workers


def test_parametrized_modules_can_be_sent_to_workers():
    """torch itself refuses to pickle them; a worker that another one starts gets them a second time."""
    weight_norm, orthogonal = nn.utils.parametrizations.weight_norm, nn.utils.parametrizations.orthogonal
    module = nn.Sequential(weight_norm(nn.Linear(5, 4)), orthogonal(nn.Linear(4, 4)), nn.Linear(4, 3)).double()
    problem, *_ = made(module=module)
    w, parts = problem.initial(), problem.split(3)
    copied = pickle.loads(cloudpickle.dumps(pickle.loads(cloudpickle.dumps(parts))))
    assert np.array_equal(copied.partial_gradient(1, w), parts.partial_gradient(1, w))
    sent = pickle.loads(cloudpickle.dumps(problem))
    assert sent.loss(w) == problem.loss(w)


def test_an_unguarded_script_trains_to_the_simulators_bits(tmp_path):
    """A module, a loss and a data set of ``__main__``; dropout, batch norm, two threads; a worker that is killed."""
    script = tmp_path / "own.py"
    script.write_text(
        textwrap.dedent(
            """
            import os, signal, warnings
            warnings.simplefilter("error")
            import anyk, torch

            class Net(torch.nn.Module):
                def __init__(self):
                    super().__init__()
                    self.layers = torch.nn.Sequential(
                        torch.nn.Linear(6, 12), torch.nn.BatchNorm1d(12), torch.nn.ReLU(), torch.nn.Dropout(0.2),
                        torch.nn.Linear(12, 3))

                def forward(self, x):
                    assert torch.get_num_threads() == 2 or "ANYK_WORKER" not in os.environ
                    return self.layers(x)

            def loss(outputs, targets):
                return torch.nn.functional.cross_entropy(outputs, targets)

            torch.manual_seed(0)
            X = torch.randn(120, 6)
            problem = anyk.problems.TorchProblem(Net(), loss, (X, X[:, :3].argmax(1)), l2=1e-3, threads=2)
            models = []
            for kind in ("Simulated", "Processes"):
                cluster = getattr(anyk.clusters, kind)(3, delays=anyk.delays.Exponential(mean=0.01), seed=1)
                killed = []

                def kill(driver, _):
                    if kind == "Processes" and driver.step == 3 and not killed:
                        killed.append(os.kill(cluster.pids[0], signal.SIGKILL))

                run = anyk.train(problem, "frc:stragglers=1", cluster, optimizer=anyk.optimizers.Adam(lr=0.01), steps=8,
                                 callbacks=[anyk.runs.callbacks.Watching(kill)], evaluate="every=8")
                models.append(run.model.tobytes())
            assert models[0] == models[1]
            """
        )
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr


def test_a_device_that_a_worker_lacks_is_said():
    if torch.cuda.is_available():
        pytest.skip("there is CUDA here")
    problem, *_ = made(device="cuda")
    assert problem.loss(problem.initial()) > 0  # the driver's machine need not have it
    with pytest.raises(RunFailed, match="there is no device 'cuda' here: torch finds no CUDA; use device='cpu'"):
        anyk.train(problem, "uncoded", anyk.clusters.Processes(1), steps=1, optimizer=anyk.optimizers.GD())


def test_a_run_goes_on_from_its_checkpoint_bit_for_bit(tmp_path):
    module = nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.3), nn.Linear(8, 3))
    problem, *_ = made(torch.float32, module=module)
    arguments = {"optimizer": anyk.optimizers.Adam(lr=0.05), "evaluate": "every=100"}

    def fleet():
        return anyk.clusters.Simulated(6, delays=anyk.delays.Exponential(mean=1.0), seed=4)

    uninterrupted = anyk.train(problem, "frc:stragglers=1,batch=3", fleet(), steps=12, **arguments)
    anyk.train(problem, "frc:stragglers=1,batch=3", fleet(), steps=5, out=tmp_path / "run", **arguments).close()
    resumed = anyk.resume(tmp_path / "run", problem=problem, steps=12, evaluate="every=100")
    assert resumed.model.tobytes() == uninterrupted.model.tobytes()
    assert str(anyk.replay(resumed, problem=problem)).endswith("the same bits of model")


def test_a_missing_package_is_answered_with_how_to_install_it(monkeypatch):
    for name, extra, make in [
        ("torch", "torch", lambda: TorchProblem(None, None, None)),
        ("torch", "torch", lambda: anyk.optimizers.TorchOptimizer("SGD")),
        ("jax", "jax", lambda: anyk.problems.JaxProblem(None, None, None)),
        ("optax", "jax", lambda: anyk.optimizers.OptaxOptimizer("sgd")),
    ]:
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, name, None)
            with pytest.raises(BadInput, match=rf"pip install (-e )?.*\[{extra}\]"):
                make()


def test_what_fails_in_the_user_s_own_code_is_said_in_a_sentence():
    X, y = torch.randn(60, 4), torch.zeros(60, dtype=torch.long)
    with pytest.raises(BadInput, match="the module is lazy and has no shapes yet"):
        TorchProblem(nn.LazyLinear(3), nn.CrossEntropyLoss(), (X, y))
    with pytest.raises(BadInput, match="metrics are computed on held-out samples, and there are none"):
        TorchProblem(nn.Linear(4, 3), nn.CrossEntropyLoss(), (X, y), metrics={"m": lambda o, t: 1.0})
    bad = TorchProblem(
        nn.Linear(4, 3), nn.CrossEntropyLoss(), (X, y), held_out=(X, y), metrics={"m": lambda o, t: 1 / 0}
    )
    with pytest.raises(BadInput, match="the metrics fail at the initial model: ZeroDivisionError"):
        anyk.train(bad, "uncoded", anyk.clusters.Simulated(4), steps=2, optimizer=anyk.optimizers.GD())
    y[50] = 7
    with pytest.raises(RunFailed, match="the problem cannot be evaluated at step 0: IndexError: Target 7"):
        anyk.train(
            TorchProblem(nn.Linear(4, 3), nn.CrossEntropyLoss(), (X, y)),
            "uncoded",
            anyk.clusters.Simulated(4),
            steps=2,
            optimizer=anyk.optimizers.GD(),
        )


def test_a_run_is_not_resumed_with_a_problem_of_another_size(tmp_path):
    X, y = torch.randn(60, 4), torch.zeros(60, dtype=torch.long)

    def problem(width):
        return TorchProblem(nn.Sequential(nn.Linear(4, width), nn.Linear(width, 3)), nn.CrossEntropyLoss(), (X, y))

    anyk.train(
        problem(5), "uncoded", anyk.clusters.Simulated(4), steps=2, out=tmp_path / "run", optimizer=anyk.optimizers.GD()
    ).close()
    with pytest.raises(BadInput, match="the run's models have 43 parameters, those of the problem 35"):
        anyk.resume(tmp_path / "run", problem=problem(4), steps=4)
