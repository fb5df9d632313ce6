"""Weights of samples: objectives, gradients and metrics are those of weighted means written out."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import anyk
from anyk.base.errors import BadInput
from anyk.clusters.messages import Messages
from anyk.problems import TorchProblem
from anyk.protocol import Chunk

SAMPLES = 24


class Items:
    """A map-style data set without tensors of its own."""

    def __init__(self, *columns):
        self.columns = columns

    def __len__(self):
        return len(self.columns[0])

    def __getitem__(self, i):
        return tuple(column[i] for column in self.columns)


def flat(tensors):
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors]).numpy()


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


WEIGHTS = random(SAMPLES, seed=9).exp()
WEIGHTS[[2, 7, 20]] = 0.0


def own(outputs, targets):
    return (outputs - targets.double()[:, None]).abs().pow(1.5).mean()


def own_model(model, batch):
    return functional.cross_entropy(model(batch["x"]), batch["y"])


def own_terms(model, batch):
    losses = functional.cross_entropy(model(batch["x"]).unflatten(1, (3, 2)), batch["t"], reduction="sum")
    return losses / max(int((batch["t"] != -100).sum()), 1)


class TimeFirst(nn.Module):
    """A module whose outputs have the samples as their second axis."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, X):
        return self.layer(X).expand(SAMPLES, *X.shape[:1], 3)


def time_first(outputs, targets):
    return functional.cross_entropy(outputs[0], targets)


def cases():
    """Data, module, loss, options, and the sum of one sample's losses with the number of its terms."""
    X, y = random(SAMPLES, 4, seed=1), torch.arange(SAMPLES) % 3
    padded = torch.arange(2 * SAMPLES).view(SAMPLES, 2) % 3
    padded[::3, 1] = -100
    padded[4] = -100
    single, image = random(SAMPLES, 3, seed=3), nn.Sequential(nn.Linear(4, 6), nn.Unflatten(1, (3, 2)))
    named = {"x": X, "y": y, "t": padded}

    def count(batch):
        return (batch["t"] != -100).sum()

    def one(loss):
        return lambda module, i: (loss(module(X[i : i + 1]), i), 1)

    def ignoring(module, i):
        outputs = module(X[i : i + 1])
        outputs = outputs if outputs.dim() == 3 else outputs.unflatten(1, (3, 2))
        return functional.cross_entropy(outputs, padded[i : i + 1], reduction="sum"), int((padded[i] != -100).sum())

    entropy = one(lambda o, i: functional.cross_entropy(o, y[i : i + 1]))
    return {
        "cross-entropy": ((X, y), nn.Linear(4, 3), nn.CrossEntropyLoss(), {}, entropy),
        "a sum": ((X, y), nn.Linear(4, 3), nn.CrossEntropyLoss(reduction="sum"), {}, entropy),
        "squares": (
            (X, single),
            nn.Linear(4, 3),
            nn.MSELoss(),
            {"microbatch": 4},
            one(lambda o, i: functional.mse_loss(o, single[i : i + 1])),
        ),
        "ignored targets": ((X, padded), image, nn.CrossEntropyLoss(), {}, ignoring),
        "a function": ((X, y), nn.Linear(4, 3), own, {}, one(lambda o, i: own(o, y[i : i + 1]))),
        "items": (Items(X, y), nn.Linear(4, 3), nn.CrossEntropyLoss(), {}, entropy),
        "model and batch": (named, nn.Linear(4, 3), own_model, {}, entropy),
        "counted terms": (named, nn.Linear(4, 6), own_terms, {"count": count}, ignoring),
        "another axis": (
            (X, y),
            TimeFirst(),
            time_first,
            {},
            one(lambda o, i: functional.cross_entropy(o[0], y[i : i + 1])),
        ),
        "batch of two axes": (
            (X[:, None].expand(-1, 2, -1), padded.clamp(min=0)),
            nn.Sequential(nn.Linear(4, 3), nn.Flatten(1), nn.Unflatten(1, (2, 3))),
            lambda o, t: functional.cross_entropy(o.flatten(0, 1), t.flatten()),
            {},
            lambda module, i: (functional.cross_entropy(module(X[i : i + 1, None].expand(-1, 2, -1))[0], padded[i].clamp(min=0)), 1),
        ),
    }  # fmt: skip


def objective(name, module, weights=WEIGHTS):
    losses = [cases()[name][4](module, i) for i in range(SAMPLES)]
    total = sum(weight * loss for weight, (loss, _) in zip(weights, losses, strict=True))
    return total / sum(weight * terms for weight, (_, terms) in zip(weights, losses, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("name", cases())
def test_a_step_is_one_of_the_weighted_mean_under_any_code(name):
    data, module, loss, options, _ = cases()[name]
    module = module.double()
    problem = TorchProblem(module, loss, data, held_out=data, weights=WEIGHTS, held_out_weights=WEIGHTS, **options)
    w, value = problem.initial(), objective(name, module)
    expected = flat(torch.autograd.grad(value, list(module.parameters())))
    for spec in ("uncoded", "frc:stragglers=2", "cyclic:stragglers=1", "k-sync:k=4"):
        cluster = anyk.clusters.Simulated(4 if "k=" in spec else 6, seed=1)
        run = anyk.train(problem, spec, cluster, steps=1, optimizer=anyk.optimizers.GD())
        assert w - run.model == pytest.approx(expected, abs=1e-9)
    assert problem.loss(w) == pytest.approx(value.item(), rel=1e-9)
    parts = problem.split(4)
    assert sum(parts.partial_loss(j, w) for j in range(4)) / SAMPLES == pytest.approx(value.item(), rel=1e-9)
    if problem.metric == "held_out_loss":
        assert problem.metrics(w)["held_out_loss"] == pytest.approx(value.item(), rel=1e-9)


def chosen(problem, partition, batch, version, partitions=4):
    messages = Messages(problem.split(partitions), seed=3)
    chunk = Chunk((partition,), (1.0,), batch=batch)
    return messages, chunk, messages.rows(partition, chunk, version)


def test_mini_batches_are_scaled_weighted_sums():
    data, module, loss, _, sample_loss = cases()["cross-entropy"]
    module = module.double()
    problem = TorchProblem(module, loss, data, weights=WEIGHTS)
    mean = WEIGHTS.mean()
    messages, chunk, rows = chosen(problem, 1, 2, version=5)
    value = sum(WEIGHTS[6 + i] / mean * sample_loss(module, 6 + int(i))[0] for i in rows) * 6 / 2
    expected = flat(torch.autograd.grad(value, list(module.parameters())))
    assert messages.partial_gradient(1, problem.initial(), chunk, 5) == pytest.approx(expected, abs=1e-12)


@pytest.mark.slow
def test_sampling_by_weight_is_unbiased_and_never_draws_weight_0():
    data, module, loss, _, sample_loss = cases()["cross-entropy"]
    module = module.double()
    problem = TorchProblem(module, loss, data, weights=WEIGHTS, sampling="weights")
    shares = (WEIGHTS / WEIGHTS.mean())[:6]  # of partition 0
    messages, chunk, rows = chosen(problem, 0, 4, version=2)
    value = sum(sample_loss(module, int(i))[0] for i in rows) * shares.sum() / 4
    expected = flat(torch.autograd.grad(value, list(module.parameters())))
    assert messages.partial_gradient(0, problem.initial(), chunk, 2) == pytest.approx(expected, abs=1e-12)
    counts = np.zeros(6)
    for version in range(4000):
        np.add.at(counts, messages.rows(0, chunk, version), 1)
    assert counts / 16000 == pytest.approx((shares / shares.sum()).numpy(), abs=0.015) and counts[2] == 0
    redrawn, _, same = chosen(problem, 0, 4, version=2)
    assert (same == rows).all() and redrawn is not messages
    gradient = problem.split(4).partial_gradient(0, problem.initial())
    value = sum(share * sample_loss(module, i)[0] for i, share in enumerate(shares))
    assert gradient == pytest.approx(flat(torch.autograd.grad(value, list(module.parameters()))), abs=1e-12)


def test_a_partition_of_weight_0_adds_nothing_to_a_step():
    data, module, loss, _, _ = cases()["cross-entropy"]
    weights = WEIGHTS.clone()
    weights[:6] = 0.0
    for sampling in ("uniform", "weights"):
        problem = TorchProblem(module.double(), loss, data, weights=weights, sampling=sampling)
        messages, chunk, _ = chosen(problem, 0, 4, version=0)
        assert not messages.partial_gradient(0, problem.initial(), chunk, 0).any()
        run = anyk.train(
            problem, "frc:load=2,batch=2", anyk.clusters.Simulated(4), steps=4, optimizer=anyk.optimizers.GD(lr=0.1)
        )
        assert np.isfinite(run.model).all()


def test_equal_weights_are_no_weights():
    data, module, loss, _, _ = cases()["cross-entropy"]
    plain = TorchProblem(
        module, loss, tuple(tensor.float() if tensor.is_floating_point() else tensor for tensor in data)
    )
    weighted = TorchProblem(plain.module, loss, plain._data.arrays, weights=np.full(SAMPLES, 0.1), sampling="weights")
    runs = [
        anyk.train(
            problem, "frc:load=2,batch=2", anyk.clusters.Simulated(4), steps=3, optimizer=anyk.optimizers.GD(lr=0.1)
        )
        for problem in (plain, weighted)
    ]
    assert (runs[0].model == runs[1].model).all() and plain.digest() == weighted.digest()


def test_weights_are_part_of_the_data():
    data, module, loss, _, _ = cases()["cross-entropy"]
    digests = {
        TorchProblem(module.double(), loss, data, **options).digest()
        for options in (
            {},
            {"weights": WEIGHTS},
            {"weights": WEIGHTS + torch.arange(SAMPLES)},
            {"weights": WEIGHTS, "sampling": "weights"},
        )
    }
    assert len(digests) == 4


def test_weights_follow_their_samples():
    X, y = random(SAMPLES, 4, seed=1), torch.arange(SAMPLES) % 3
    module = nn.Linear(4, 3).double()
    weights = (y + 1).double() * (X[:, 0] > 0)  # tells the samples
    problem = TorchProblem(module, nn.CrossEntropyLoss(), (X, y), weights=weights, split="dirichlet:alpha=0.1")
    parts, w = problem.split(4), problem.initial()
    assert not np.array_equal(parts.data.arrays[1], y)
    value = (weights * functional.cross_entropy(module(X), y, reduction="none")).sum() / weights.mean()
    expected = flat(torch.autograd.grad(value, list(module.parameters())))
    assert sum(parts.partial_gradient(j, w) for j in range(4)) == pytest.approx(expected, abs=1e-9)
    some = parts.only([1, 3])
    assert (some.partial_gradient(3, w) == parts.partial_gradient(3, w)).all()
    sample = problem.sampled(10)
    assert sample._data.weights.shape == (10,)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a function", "items", "model and batch"])
def test_processes_weigh_as_the_simulator_does(name):
    data, module, loss, options, _ = cases()[name]
    problem = TorchProblem(module.double(), loss, data, weights=WEIGHTS, sampling="weights", **options)
    models = []
    for cluster in (anyk.clusters.Simulated(2, seed=1), anyk.clusters.Processes(2, seed=1)):
        run = anyk.train(
            problem,
            "frc:load=2,batch=5",
            cluster,
            steps=4,
            optimizer=anyk.optimizers.GD(lr=0.1),
            evaluate="where=workers,on=train,every=1" if name != "items" else "none",
        )
        models.append((run.model, run.loss))
    assert (models[0][0] == models[1][0]).all() and models[0][1] == pytest.approx(models[1][1])


def test_held_out_weights_weigh_metrics():
    X, y = random(SAMPLES, 4, seed=1), torch.arange(SAMPLES) % 3
    module = nn.Linear(4, 3).double()

    def weighted(outputs, targets, weights):
        return (weights * (outputs.argmax(dim=1) == targets)).sum() / weights.sum()

    right = (module(X).argmax(dim=1) == y).double()
    expected = pytest.approx(((WEIGHTS * right).sum() / WEIGHTS.sum()).item())
    for metrics in (None, {"accuracy": weighted}):
        problem = TorchProblem(
            module,
            nn.CrossEntropyLoss(),
            (X, y),
            held_out=(X, y),
            held_out_weights=WEIGHTS,
            metrics=metrics,
            microbatch=5,
        )
        assert problem.metrics(problem.initial()) == {"accuracy": expected}
    problem = TorchProblem(
        module,
        nn.CrossEntropyLoss(),
        (X, y),
        held_out=(X, y),
        held_out_weights=WEIGHTS,
        metrics={"m": lambda outputs, targets: 1.0},
    )
    with pytest.raises(BadInput, match="metric 'm' does not take the weights of held-out samples"):
        problem.metrics(problem.initial())


def test_bad_weights_are_refused_in_a_sentence():
    X, y = random(SAMPLES, 4, seed=1), torch.arange(SAMPLES) % 3
    for weights, sentence in (
        (-WEIGHTS, "weights must be finite numbers of at least 0"),
        (WEIGHTS * float("nan"), "weights must be finite numbers of at least 0"),
        (WEIGHTS[:-1], r"weights must hold one number for each of the 24 rows, got shape \(23,\)"),
        (WEIGHTS * 0, "all weights are zero"),
        (WEIGHTS.to(torch.complex64), "weights must be finite numbers"),
        (["a"] * SAMPLES, "weights must be finite numbers"),
        (WEIGHTS * 1e308, "so large|finite"),
    ):
        with pytest.raises(BadInput, match=sentence):
            TorchProblem(nn.Linear(4, 3).double(), nn.CrossEntropyLoss(), (X, y), weights=weights)
    layer, loss = nn.Linear(4, 3).double(), nn.CrossEntropyLoss()
    for options, sentence in (
        ({"sampling": "weights"}, "sampling='weights' draws samples in proportion to their weights; give weights"),
        ({"sampling": "even", "weights": WEIGHTS}, "sampling must be uniform or weights, got 'even'"),
        ({"held_out_weights": WEIGHTS}, "held_out_weights are of held-out samples; give held_out, too"),
    ):
        with pytest.raises(BadInput, match=sentence):
            TorchProblem(layer, loss, (X, y), **options)
    problem = TorchProblem(layer, loss, (X, y), weights=WEIGHTS, sampling="weights")
    with pytest.raises(BadInput, match="order=epoch takes each sample once in an epoch"):
        anyk.train(problem, "uncoded:batch=2,order=epoch", anyk.clusters.Simulated(4), optimizer=anyk.optimizers.GD())
    with pytest.raises(BadInput, match="computed one by one here, and a module with batch norm"):
        module = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)).double()
        TorchProblem(module, own_model, {"x": X, "y": y}, weights=WEIGHTS)


def jax_cases():
    jax = pytest.importorskip("jax")
    jnp = jax.numpy

    def mean(params, batch):
        return jnp.mean(jnp.logaddexp(0.0, -batch["y"] * (batch["x"] @ params["w"] + params["b"])))

    def total(params, batch):
        return mean(params, batch) * len(batch["y"])

    def with_metrics(params, batch, train):
        return mean(params, batch), {"size": jnp.mean(batch["x"] ** 2)}

    return {
        "a mean": (mean, {}),
        "a sum": (total, {"reduction": "sum"}),
        "metrics": (with_metrics, {"has_aux": True}),
    }


def jax_data():
    x = np.random.default_rng(0).normal(size=(SAMPLES, 3)).astype(np.float32)
    return {"x": x, "y": np.where(x[:, 0] > 0, 1.0, -1.0).astype(np.float32)}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a mean", "a sum", "metrics"])
def test_a_jax_step_is_one_of_the_weighted_mean(name):
    loss, options = jax_cases()[name]
    data, start = jax_data(), {"w": np.ones(3, np.float32), "b": np.float32(0.5)}
    weights = WEIGHTS.numpy()
    problem = anyk.problems.JaxProblem(
        loss, start, data, weights=WEIGHTS, held_out=data, held_out_weights=WEIGHTS, **options
    )
    w = problem.initial().astype(float)
    inputs = np.column_stack([np.ones(SAMPLES), data["x"]])  # b comes before w
    scores = -data["y"] * (inputs @ w)
    shares = weights / weights.sum()
    gradient = inputs.T @ (shares * -data["y"] / (1 + np.exp(-scores)))
    for spec in ("uncoded", "frc:stragglers=1", "cyclic:stragglers=1"):
        run = anyk.train(problem, spec, anyk.clusters.Simulated(4), steps=1, optimizer=anyk.optimizers.GD())
        assert w - run.model == pytest.approx(gradient, abs=2e-6)
    value = shares @ np.logaddexp(0, scores)
    assert problem.loss(problem.initial()) == pytest.approx(value, rel=1e-5)
    metrics = problem.metrics(problem.initial())
    assert metrics["held_out_loss"] == pytest.approx(value, rel=1e-5)
    if name == "metrics":
        assert metrics["size"] == pytest.approx(shares @ (data["x"] ** 2).mean(axis=1), rel=1e-5)
    parts = problem.split(4)
    assert sum(parts.partial_loss(j, problem.initial()) for j in range(4)) / SAMPLES == pytest.approx(value, rel=1e-5)


@pytest.mark.slow
def test_jax_mini_batches_drawn_by_weight_have_equal_parts():
    loss, _ = jax_cases()["a mean"]
    data = jax_data()
    start = {"w": np.ones(3, np.float32), "b": np.float32(0.5)}
    problem = anyk.problems.JaxProblem(loss, start, data, weights=WEIGHTS, sampling="weights")
    plain = anyk.problems.JaxProblem(loss, start, data)
    messages, chunk, rows = chosen(problem, 1, 3, version=4)
    w = problem.initial()
    factor = (WEIGHTS[6:12] / WEIGHTS.mean()).sum().item() / 3
    expected = sum(plain.split(4).partial_gradient(1, w, np.array([row])) for row in rows) * factor
    assert messages.partial_gradient(1, w, chunk, 4) == pytest.approx(expected, rel=1e-4, abs=1e-5)


@pytest.mark.slow
def test_jax_draws_of_weighted_rows_follow_from_their_key():
    jax = pytest.importorskip("jax")

    def loss(params, batch, key):
        keep = jax.random.bernoulli(key, 0.5, batch["x"].shape)
        return jax.numpy.mean(((batch["x"] * keep) @ params - batch["y"]) ** 2)

    problem = anyk.problems.JaxProblem(loss, np.ones(3, np.float32), jax_data(), weights=WEIGHTS, rng=True)
    gradients = []
    for version in (0, 0, 1):
        messages, chunk, _ = chosen(problem, 0, 0, version)
        gradients.append(messages.partial_gradient(0, problem.initial(), chunk, version))
    assert (gradients[0] == gradients[1]).all() and not np.allclose(gradients[0], gradients[2])


class Counted:
    """A metric with a state, of JAX."""

    higher_is_better = False

    def __init__(self):
        self.total = self.batches = 0

    def reset(self):
        self.__init__()

    def update(self, params, batch):
        self.total += float(batch["x"].sum())
        self.batches += 1

    def compute(self):
        return self.total / self.batches


def test_jax_metrics_may_have_a_state():
    loss, _ = jax_cases()["a mean"]
    data, start = jax_data(), {"w": np.ones(3, np.float32), "b": np.float32(0.5)}
    problem = anyk.problems.JaxProblem(loss, start, data, held_out=data, metrics={"counted": Counted()})
    for _ in range(2):
        metrics = problem.metrics(problem.initial())
        assert metrics == {"counted": pytest.approx(float(data["x"].sum()), rel=1e-4)}
    assert (problem.metric, problem.better) == ("counted", "lower")


@pytest.mark.slow
def test_jax_weights_that_cannot_be_used_are_refused():
    loss, _ = jax_cases()["a mean"]
    data, start = jax_data(), {"w": np.ones(3, np.float32), "b": np.float32(0.5)}
    stream = anyk.data.Stream(
        lambda partition, seed: iter([{"x": np.full(3, seed / 2**32, np.float32), "y": np.float32(1)}])
    )
    for options, sentence in (
        ({"weights": -WEIGHTS}, "weights must be finite numbers of at least 0"),
        ({"weights": WEIGHTS, "reduction": "mean"}, "reduction='mean' is for a loss that normalises by the batch"),
        ({"weights": WEIGHTS, "workers": "numpy"}, "workers='numpy' compute sums without weights"),
        ({"weights": WEIGHTS, "data": stream}, "shards or a stream have none in memory"),
    ):
        with pytest.raises(BadInput, match=sentence):
            anyk.problems.JaxProblem(loss, start, **{"data": data, **options})

    def normalised(params, batch):
        return loss(params, {"x": batch["x"] - batch["x"].mean(axis=0), "y": batch["y"]})

    with pytest.raises(BadInput, match="is not the sum of their losses"):
        anyk.problems.JaxProblem(normalised, start, data, weights=WEIGHTS, reduction="sum")


@pytest.mark.slow
def test_jax_on_processes_weighs_as_the_simulator_does():
    loss, _ = jax_cases()["a mean"]
    start = {"w": np.ones(3, np.float32), "b": np.float32(0.5)}
    problem = anyk.problems.JaxProblem(loss, start, jax_data(), weights=WEIGHTS, sampling="weights")
    runs = [
        anyk.train(problem, "frc:load=2,batch=5", cluster, steps=3, optimizer=anyk.optimizers.GD(lr=0.1))
        for cluster in (anyk.clusters.Simulated(2, seed=1), anyk.clusters.Processes(2, seed=1))
    ]
    assert runs[0].model == pytest.approx(runs[1].model, abs=1e-6)


def test_weighted_losses_take_values_that_change():
    X, y = random(SAMPLES, 4, seed=1), torch.arange(SAMPLES) % 3
    module = nn.Linear(4, 3).double()

    def loss(outputs, targets, beta):
        return functional.cross_entropy(outputs, targets) + beta * outputs.pow(2).mean()

    problem = TorchProblem(module, loss, (X, y), weights=WEIGHTS, values={"beta": lambda step: 0.5 * step})
    for step in anyk.rounds(problem, "frc:load=2", anyk.clusters.Simulated(4), steps=3, into=module):
        outputs = module(X)
        losses = functional.cross_entropy(outputs, y, reduction="none") + 0.5 * step.number * outputs.pow(2).mean(dim=1)
        value = (WEIGHTS * losses).sum() / WEIGHTS.sum()
        gradient = torch.autograd.grad(value, list(module.parameters()))
        assert flat([w.grad for w in module.parameters()]) == pytest.approx(flat(gradient), abs=1e-12)
        with torch.no_grad():
            for parameter in module.parameters():
                parameter -= 0.1 * parameter.grad
