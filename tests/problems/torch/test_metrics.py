"""What is measured on held-out samples: what the loss determines, what a user's metrics return, and nothing guessed."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import anyk
from anyk.base.errors import BadInput
from anyk.problems import TorchProblem


class Items:
    """A map-style data set without tensors of its own."""

    def __init__(self, *columns):
        self.columns = columns

    def __len__(self):
        return len(self.columns[0])

    def __getitem__(self, i):
        return tuple(column[i] for column in self.columns)


def measured(module, loss, X, y, **options):
    problem = TorchProblem(module, loss, (X, y), held_out=(X, y), **options)
    return problem, problem.metrics(problem.initial())


def positions(shape, classes=5, seed=0):
    """Logits (samples, classes, …), and targets of which some are ignored."""
    torch.manual_seed(seed)
    outputs = torch.randn(shape[0], classes, *shape[1:], dtype=torch.float64)
    targets = torch.randint(0, classes, shape)
    targets[torch.rand(shape) < 0.3] = -100
    return outputs, targets


@pytest.mark.parametrize("shape", [(24,), (24, 5), (24, 3, 5), (5, 5)])
@pytest.mark.parametrize("read", [lambda *pair: pair, Items])
def test_accuracy_is_over_targets_that_are_not_ignored(shape, read):
    outputs, targets = positions(shape)
    loss = nn.CrossEntropyLoss(reduction="sum")
    problem = TorchProblem(nn.PReLU(init=1.0).double(), loss, read(outputs, targets), held_out=read(outputs, targets))
    counts = targets != -100
    right = (outputs.argmax(dim=1) == targets)[counts].double().mean().item()
    assert problem.metrics(problem.initial()) == {"accuracy": pytest.approx(right, rel=1e-12)}
    assert problem.better == "higher"


def test_classes_of_weight_0_do_not_count():
    outputs, targets = positions((24, 4))
    targets = targets.clamp(min=0)
    weight = torch.tensor([0.0, 1, 2, 1, 1], dtype=torch.float64)
    _, metrics = measured(nn.PReLU(init=1.0).double(), nn.CrossEntropyLoss(weight, reduction="sum"), outputs, targets)
    right = (outputs.argmax(dim=1) == targets)[targets != 0].double().mean().item()
    assert metrics == {"accuracy": pytest.approx(right, rel=1e-12)}


@pytest.mark.parametrize(("loss", "threshold"), [(nn.BCEWithLogitsLoss(), 0.0), (nn.BCELoss(), 0.5)])
def test_a_single_output_predicts_class_1(loss, threshold):
    torch.manual_seed(1)
    X = torch.rand(40, 1, dtype=torch.float64) - (0.5 if threshold == 0 else 0.0)
    y = (torch.rand(40, 1) < 0.5).double()
    problem, metrics = measured(nn.PReLU(init=1.0).double(), loss, X, y)
    right = ((threshold < X) == (y == 1)).double().mean().item()
    assert metrics == {"accuracy": pytest.approx(right)} and problem.better == "higher" and 0 < right < 1


@pytest.mark.slow
def test_what_the_loss_does_not_determine_is_its_own_value():
    torch.manual_seed(2)
    X, soft = torch.randn(12, 3, dtype=torch.float64), torch.rand(12, 3, dtype=torch.float64).softmax(dim=1)
    y = torch.randint(0, 3, (12,))

    class Focal(nn.CrossEntropyLoss):
        def forward(self, outputs, targets):
            losses = functional.cross_entropy(outputs, targets, reduction="none")
            return ((1 - torch.exp(-losses)) ** 2 * losses).mean()

    def smooth(outputs, targets):
        return functional.cross_entropy(outputs, targets, label_smoothing=0.1)

    for loss, targets in (
        (nn.CrossEntropyLoss(), soft),
        (nn.BCEWithLogitsLoss(), soft),
        (nn.L1Loss(), soft),
        (Focal(), y),
        (smooth, y),
    ):
        problem, metrics = measured(nn.PReLU(init=1.0).double(), loss, X, targets, microbatch=5)
        assert metrics == {"held_out_loss": pytest.approx(loss(X, targets).item(), rel=1e-12)}
        assert problem.better == "lower"


def test_a_subclass_is_averaged_over_targets_not_ignored():
    class Own(nn.CrossEntropyLoss):
        pass

    outputs, targets = positions((24, 4))
    train, held_out = slice(0, 16), slice(16, 24)
    problem = TorchProblem(
        nn.PReLU(init=1.0).double(),
        Own(),
        (outputs[train], targets[train]),
        held_out=(outputs[held_out], targets[held_out]),
        microbatch=3,
    )
    expected = functional.cross_entropy(outputs[held_out], targets[held_out]).item()
    assert problem.metrics(problem.initial()) == {"held_out_loss": pytest.approx(expected, rel=1e-12)}


def test_mean_squared_errors_are_those_of_the_loss():
    torch.manual_seed(3)
    X, y = torch.randn(10, 2, 3, dtype=torch.float64), torch.randn(10, 2, 3, dtype=torch.float64)
    for loss in (nn.MSELoss(), nn.MSELoss(reduction="sum"), functional.mse_loss):
        problem, metrics = measured(nn.PReLU(init=1.0).double(), loss, X, y, microbatch=4)
        assert metrics == {"mse": pytest.approx(functional.mse_loss(X, y).item(), rel=1e-12)}
        assert problem.better == "lower"


def test_soft_targets_among_items_are_refused_by_name():
    X, y = torch.randn(8, 1), torch.zeros(8, 1)
    y[6] = 0.3
    problem = TorchProblem(nn.PReLU(), nn.BCEWithLogitsLoss(), Items(X, y), held_out=Items(X, y))
    with pytest.raises(BadInput, match="accuracy is for targets of 0 and 1, and some held-out targets are others"):
        problem.metrics(problem.initial())


def test_a_target_of_the_held_out_loss_ends_a_run_when_it_falls():
    torch.manual_seed(4)
    X = torch.randn(32, 3)
    y = X.sum(dim=1, keepdim=True)
    loss = lambda outputs, targets: functional.smooth_l1_loss(outputs, targets)  # noqa: E731
    problem = TorchProblem(nn.Linear(3, 1), loss, (X, y), held_out=(X, y))
    first = problem.metrics(problem.initial())["held_out_loss"]
    cluster = anyk.clusters.Simulated(4)
    run = anyk.train(problem, "uncoded", cluster, target=first / 10, optimizer=anyk.optimizers.GD(lr=0.5))
    assert 0 < run.steps < 1000 and run.metric["value"] <= first / 10
    loss = run.history["loss"][[0, -1]]  # the training loss keeps its own column
    assert loss[1] < loss[0] and "held_out_loss" in run.history


class Right:
    """An accuracy with a state, as torchmetrics has them."""

    higher_is_better = True

    def __init__(self):
        self.reset()

    def reset(self):
        self.right = self.count = 0

    def update(self, outputs, targets):
        self.right += int((outputs.argmax(dim=1) == targets).sum())
        self.count += len(targets)

    def compute(self):
        return torch.tensor(self.right / self.count)


class Errors(Right):
    """The share of errors, without a reset."""

    higher_is_better = False
    reset = None

    def __init__(self):
        self.right = self.count = 0

    def compute(self):
        return 1 - super().compute()


def classified(samples=30):
    torch.manual_seed(5)
    X = torch.randn(samples, 4)
    return X, X[:, :3].argmax(dim=1)


def test_metrics_with_a_state_start_anew_in_each_evaluation():
    X, y = classified()
    mine, errors = Right(), Errors()
    options = {"metrics": {"right": mine, "errors": errors}, "microbatch": 7}
    problem, first = measured(nn.Linear(4, 3), nn.CrossEntropyLoss(), X, y, **options)
    mine.update(torch.eye(3), torch.tensor([1, 1, 1]))  # the user's own object is another
    expected = (problem.module_at(problem.initial())(X).argmax(dim=1) == y).double().mean().item()
    for metrics in (first, problem.metrics(problem.initial())):
        assert metrics == {"right": pytest.approx(expected), "errors": pytest.approx(1 - expected, abs=1e-6)}
    assert problem.better == "higher" and mine.count == 3
    assert measured(nn.Linear(4, 3), nn.CrossEntropyLoss(), X, y, metrics={"e": errors})[0].better == "lower"


def test_an_assumed_direction_of_a_metric_is_noted():
    X, y = classified()

    def notes(metric, **options):
        problem, _ = measured(nn.Linear(4, 3), nn.CrossEntropyLoss(), X, y, metrics={"m": metric}, **options)
        run = anyk.train(problem, "uncoded", anyk.clusters.Simulated(2), steps=1, optimizer=anyk.optimizers.GD(lr=0.1))
        return [note["text"] for note in run.notes]

    assumed = ["higher values of the metric 'm' are taken for better; if not, give better='lower'"]
    assert notes(lambda o, t: 1.0) == assumed
    assert notes(lambda o, t: 1.0, better="higher") == [] and notes(Right()) == []


def test_metrics_with_a_state_take_batches_of_different_shapes():
    words = [torch.arange(n) % 4 for n in (3, 5, 2, 4, 6, 3)]

    def collate(items):
        padded = nn.utils.rnn.pad_sequence(items, batch_first=True, padding_value=-100)
        return padded.clamp(min=0), padded

    def loss(outputs, targets):
        return functional.cross_entropy(outputs.transpose(1, 2), targets, reduction="sum")

    class Hits(Right):
        def update(self, outputs, targets):
            counts = targets != -100
            self.right += int((outputs.argmax(dim=2) == targets)[counts].sum())
            self.count += int(counts.sum())

    module = nn.Embedding(4, 4)
    options = {"reduction": "sum", "collate_fn": collate, "held_out": words, "microbatch": 2}
    problem = TorchProblem(module, loss, words, metrics={"hits": Hits()}, **options)
    hits = sum(int((module(word).argmax(dim=1) == word).sum()) for word in words)
    assert problem.metrics(problem.initial()) == {"hits": pytest.approx(hits / sum(map(len, words)))}
    problem = TorchProblem(module, loss, words, metrics={"hits": lambda o, t: 1.0}, **options)
    with pytest.raises(BadInput, match="'hits' is a function of all outputs .* differ in shape"):
        problem.metrics(problem.initial())


def test_metrics_with_a_state_are_computed_in_another_process():
    X, y = classified()
    problem, first = measured(nn.Linear(4, 3), nn.CrossEntropyLoss(), X, y, metrics={"right": Right()})
    run = anyk.train(
        problem,
        "uncoded",
        anyk.clusters.Simulated(2),
        steps=3,
        optimizer=anyk.optimizers.GD(lr=0.5),
        evaluate="where=aside,every=1",
    )
    assert run.history["right"][0] == pytest.approx(first["right"])
    assert run.metric["value"] == pytest.approx(problem.metrics(run.model)["right"])


@pytest.mark.slow
def test_metrics_of_other_kinds_are_refused_by_name():
    X, y = classified()

    class Several(Right):
        def compute(self):
            return {"a": 1.0}

    class Fixed(Right):
        def __deepcopy__(self, memo):
            raise TypeError("no copies")

    for metric, sentence in (
        (Right, "'m' is a class; give an object of it"),
        (Several(), r"'m' must give one number, got dict; give each of its values a name of its own"),
        (Fixed(), "'m' has update and compute, but cannot be copied and reset .* no copies"),
        ("accuracy", "functions by name"),
        (lambda o, t: o, r"'m' must give one number, got shape \(30, 3\)"),
    ):
        with pytest.raises(BadInput, match=sentence):
            measured(nn.Linear(4, 3), nn.CrossEntropyLoss(), X, y, metrics={"m": metric})
    with pytest.raises(BadInput, match="'m' needs outputs that are one tensor, got tuple"):
        measured(
            nn.LSTM(4, 3, batch_first=True), lambda o, t: o[0].mean(), X[:, None], y, metrics={"m": lambda o, t: 1.0}
        )


def test_metrics_of_a_model_and_a_batch_may_have_a_state():
    X, y = classified()

    def loss(model, batch):
        return functional.cross_entropy(model(batch["x"]), batch["y"])

    class Batches(Right):
        def update(self, model, batch):
            super().update(model(batch["x"]), batch["y"])

    data = {"x": X, "y": y}
    problem = TorchProblem(nn.Linear(4, 3), loss, data, held_out=data, metrics={"right": Batches()}, microbatch=8)
    expected = (problem.module_at(problem.initial())(X).argmax(dim=1) == y).double().mean().item()
    assert problem.metrics(problem.initial()) == {"right": pytest.approx(expected)}


def doubled(items):
    X, y = (torch.stack(column) for column in zip(*items, strict=True))
    return torch.cat([X, -X]), torch.cat([y, y])


def only_some(items):
    X, y = (torch.stack(column) for column in zip(*items, strict=True))
    return X[y != 2], y[y != 2]


@pytest.mark.parametrize("collate", [doubled, only_some])
def test_a_collate_fn_that_drops_samples_is_refused_or_counted(collate):
    X, y = classified(24)
    y[:6] = 2 if collate is doubled else 1  # not seen at the start
    y[6:] = torch.arange(18) % 3
    data, module = Items(X, y), nn.Linear(4, 3)

    def trained(**options):
        problem = TorchProblem(module, nn.CrossEntropyLoss(), data, collate_fn=collate, **options)
        optimizer = anyk.optimizers.GD(lr=1.0)
        return problem, anyk.train(problem, "frc:load=2", anyk.clusters.Simulated(4), steps=1, optimizer=optimizer)

    with pytest.raises((BadInput, anyk.RunFailed), match="collate_fn makes a batch of .* give count="):
        trained()
    problem, run = trained(count=lambda batch: len(batch[-1]))
    full_loss = functional.cross_entropy(module(collate(list(data))[0]), collate(list(data))[1])
    gradient = torch.autograd.grad(full_loss, list(module.parameters()))
    expected = torch.cat([piece.reshape(-1) for piece in gradient]).numpy()
    assert problem.initial() - run.model == pytest.approx(expected, abs=1e-5)


def test_dictionaries_of_fewer_samples_are_refused_too():
    X, y = classified(24)

    def loss(model, batch):
        return functional.cross_entropy(model(batch["x"]), batch["y"])

    def collate(items):
        remaining = items[:-1]
        return {
            "x": torch.stack([x for x, _ in remaining]),
            "y": torch.stack([t for _, t in remaining]),
            "sizes": torch.ones(7),
        }

    with pytest.raises(BadInput, match="collate_fn makes a batch of 1 or 7 samples of 2 items"):
        TorchProblem(nn.Linear(4, 3), loss, Items(X, y), collate_fn=collate)


def test_nothing_to_measure_is_not_a_number():
    X, y = classified(8)
    problem = TorchProblem(nn.Linear(4, 3), nn.CrossEntropyLoss(), (X, y), held_out=(X, torch.full_like(y, -100)))
    assert math.isnan(problem.metrics(problem.initial())["accuracy"])
    assert np.isfinite(problem.loss(problem.initial()))
