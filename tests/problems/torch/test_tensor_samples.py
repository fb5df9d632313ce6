"""Losses of (module, batch): modules that compute their own loss, batches of any kind, means over terms."""

from __future__ import annotations

import os
import pickle
import random
import sys
from types import SimpleNamespace

import cloudpickle
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import anyk
from anyk.base.errors import BadInput
from anyk.problems import TorchProblem
from anyk.problems.replicas import trial_groups
from anyk.problems.torch.tensor_samples import ItemReading, Items

WORDS, LONGEST = 7, 6


class Causal(nn.Module):
    """A model of sequences that computes its own loss, as those of transformers do."""

    def __init__(self, *, zero=False, dropout=0.0):
        super().__init__()
        torch.manual_seed(3)
        self.embedding = nn.Embedding(WORDS, 5)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(5, WORDS)
        if zero:  # every sequence then has the same loss, whatever it weighs
            nn.init.zeros_(self.head.weight)
            nn.init.zeros_(self.head.bias)
        self.double()

    def forward(self, input_ids, attention_mask=None, labels=None):
        hidden = self.embedding(input_ids)
        if attention_mask is not None:
            hidden = hidden * attention_mask[..., None]
        logits = self.head(self.dropout(torch.cumsum(hidden, dim=1)))
        loss = None if labels is None else cross_entropy(logits[:, :-1].transpose(1, 2), labels[:, 1:])
        return SimpleNamespace(loss=loss, logits=logits)


def own_loss(model, batch):
    return model(**batch).loss


def tokens(batch):
    return (batch["labels"][:, 1:] != -100).sum()


def sequences(samples=24):
    random = torch.Generator().manual_seed(4)
    ids = torch.randint(0, WORDS, (samples, LONGEST), generator=random)
    lengths = torch.randint(1, LONGEST + 1, (samples,), generator=random)  # of one word there is no term
    mask = (torch.arange(LONGEST) < lengths[:, None]).long()
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


class Texts(torch.utils.data.Dataset):
    """Items of different lengths, to be padded."""

    def __init__(self, whole):
        self.whole = whole

    def __len__(self):
        return len(self.whole["input_ids"])

    def __getitem__(self, i):
        length = int(self.whole["attention_mask"][i].sum())
        return {"ids": self.whole["input_ids"][i, :length].tolist(), "id": f"text {i}"}


def padded(items):
    ids = nn.utils.rnn.pad_sequence([torch.tensor(item["ids"]) for item in items], batch_first=True)
    mask = nn.utils.rnn.pad_sequence([torch.ones(len(item["ids"]), dtype=torch.long) for item in items], True)
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


def flat(tensors):
    return np.concatenate([tensor.detach().reshape(-1).numpy() for tensor in tensors])


def whole_gradient(module, loss, batch):
    return flat(torch.autograd.grad(loss(module, batch), list(module.parameters())))


def cases():
    data = sequences()
    full = {"input_ids": data["input_ids"], "labels": data["input_ids"]}
    pair = nn.Linear(3, 2).double()
    X = torch.randn(24, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    y = X[:, :2].argmax(dim=1)
    items = [{"x": x, "y": label} for x, label in zip(X, y, strict=True)]

    def pairs(module, batch):
        return cross_entropy(module(batch[0]), batch[1])

    def named(module, batch):
        return cross_entropy(module(batch["x"]), batch["y"], reduction="sum")

    return {
        "arrays by name": (Causal(), own_loss, full, {}, full),
        "terms of arrays": (Causal(), own_loss, data, {"count": tokens}, data),
        "a head of zeros": (Causal(zero=True), own_loss, data, {"count": tokens, "microbatch": 3}, data),
        "terms of items": (Causal(), own_loss, Texts(data), {"count": tokens, "collate_fn": padded}, data),
        "a pair": (pair, pairs, (X, y), {}, (X, y)),
        "items by torch's loader": (pair, named, items, {"reduction": "sum"}, {"x": X, "y": y}),
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", cases())
def test_a_step_is_one_of_the_whole_batch_under_any_code(name):
    module, loss, data, options, batch = cases()[name]
    problem = TorchProblem(module, loss, data, held_out=data, **options)
    w, samples = problem.initial(), 24
    expected = whole_gradient(module, loss, batch) / (samples if "reduction" in options else 1)
    for spec in ("uncoded", "frc:stragglers=2", "cyclic:stragglers=2"):
        cluster = anyk.clusters.Simulated(6, delays=anyk.delays.Exponential(mean=1.0), seed=1)
        run = anyk.train(problem, spec, cluster, steps=1, optimizer=anyk.optimizers.GD())
        assert w - run.model == pytest.approx(expected, abs=1e-9)
    value = float(loss(module, batch).detach()) / (samples if "reduction" in options else 1)
    assert problem.loss(w) == pytest.approx(value, rel=1e-12)
    assert problem.metric == "held_out_loss" and problem.better == "lower"
    assert problem.metrics(w)["held_out_loss"] == pytest.approx(value, rel=1e-12)


def test_mini_batches_expect_the_mean_over_all_terms():
    data = sequences()
    problem = TorchProblem(Causal(), own_loss, data, count=tokens)
    parts, w, module = problem.split(3), problem.initial(), Causal()
    parts = pickle.loads(cloudpickle.dumps(parts))  # as a worker has them
    rows = np.array([0, 3, 5])
    chosen = {key: value[8:16][rows] for key, value in data.items()}
    total = whole_gradient(module, own_loss, chosen) * float(tokens(chosen))
    actual = parts.partial_gradient(1, w, rows) / 24
    assert actual == pytest.approx(total / float(tokens(data)), abs=1e-12)


@pytest.mark.slow
def test_a_run_reads_dictionaries_and_measures_batches():
    data = sequences(48)

    def right(model, batch):
        predicted, labelled = model(batch["input_ids"]).logits[:, :-1].argmax(-1), batch["labels"][:, 1:] != -100
        return (predicted == batch["labels"][:, 1:])[labelled].double().mean()

    problem = TorchProblem(Causal(dropout=0.2), own_loss, data, count=tokens, held_out=data, metrics={"right": right},
                           better="higher", microbatch=5)  # fmt: skip
    run = anyk.train(problem, "frc:stragglers=1,batch=6", anyk.clusters.Simulated(4), steps=40,
                     optimizer=anyk.optimizers.Adam(lr=0.05))  # fmt: skip
    module = problem.module_at(run.model)
    assert run.metric["value"] == pytest.approx(float(right(module, data)), rel=1e-12)
    assert run.loss < problem.loss(problem.initial())


def test_statistics_of_batch_norm_are_those_of_the_batches():
    X = torch.randn(16, 3, dtype=torch.float64)
    module = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 1)).double()
    problem = TorchProblem(module, lambda model, batch: (model(batch["x"]) ** 2).mean(), {"x": X}, microbatch=8)
    module_there = problem.module_at(problem.initial())
    assert module_there[0].running_mean.numpy() == pytest.approx(X.mean(dim=0).numpy(), abs=1e-12)


def test_means_over_tokens_are_refused_unless_they_are_counted():
    whole = sequences()
    for module in (Causal(), Causal(zero=True)):
        for data, options in ((whole, {}), (Texts(whole), {"collate_fn": padded})):
            with pytest.raises(BadInput, match=r"(is not the mean of their|one of them alone is not).* give count=…"):
                TorchProblem(module, own_loss, data, **options)


def test_what_the_first_samples_do_not_show_the_partitions_do():
    random = torch.Generator().manual_seed(6)
    ids = torch.randint(0, WORDS, (300, LONGEST), generator=random)
    data = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    tried = np.concatenate(list(trial_groups([], 300)))
    short = next(i for i in range(0, 300, 3) if i not in tried)  # 100 partitions of 3
    data["attention_mask"][short, 2:] = 0
    problem = TorchProblem(Causal(), own_loss, Texts(data), collate_fn=padded)
    parts = problem.split(100)
    parts.partial_gradient((short // 3 + 1) % 100, problem.initial())
    with pytest.raises(BadInput, match=f"3 samples of partition {short // 3} together .* give count=…"):
        parts.partial_gradient(short // 3, problem.initial())


def test_what_cannot_work_with_batches_is_said():
    data, module = sequences(), Causal()
    full = {"input_ids": data["input_ids"], "labels": data["input_ids"]}
    texts, plain = Texts(data), nn.Linear(3, 1).double()
    X, y = torch.randn(8, 3).double(), torch.zeros(8).double()
    bad = [
        ((module, own_loss, full), {"count": lambda b: 5}, "count returns 5 terms for .* together and 10 for them one by one"),
        ((module, own_loss, full), {"count": lambda b: 0}, "count finds no term in the whole data set"),
        ((module, own_loss, full), {"count": lambda b: 0.5}, "a whole number, got 0.5"),
        ((module, own_loss, full), {"count": lambda b: "many"}, "a whole number, got str many"),
        ((module, own_loss, full), {"count": lambda b: b["x"]}, "count fails on the data set: KeyError: 'x'"),
        ((module, own_loss, full), {"collate_fn": padded}, "collate_fn is for items of a data set, and the data set is arrays; leave it out"),
        ((module, own_loss, texts), {}, "items 0, 1 of the data set cannot be put together"),
        ((module, lambda m, b: m(**b).loss, full), {}, "arrays by name go with a loss\\(module, batch\\), whose first"),
        ((module, own_loss, full), {"held_out": {"labels": full["labels"]}}, "the module fails on held_out: TypeError"),
        ((module, lambda model, batch: model(**batch).logits, full), {}, "must give one number for a batch"),
        ((module, lambda model, batch: model(**batch).loss ** 2, full), {}, "is not the mean of their losses"),
        ((module, own_loss, full), {"reduction": "sum"}, "is not the sum of their losses"),
        ((module, 3, full), {}, "the loss must be a function of \\(outputs, targets\\) or \\(module, batch\\), got int"),
        ((plain, lambda o, t: (o[:, 0] - t).pow(2).mean(), [{"x": X[0], "y": y[0]}] * 4), {},
         "got dict with keys 'x', 'y'; .* or give a loss\\(module, batch\\), which takes any"),
        ((plain, lambda model, batch: model(batch[0][1:]).pow(2).mean(), (X, y)), {}, "one of them alone"),
    ]  # fmt: skip
    for arguments, options, sentence in bad:
        with pytest.raises(BadInput, match=sentence):
            TorchProblem(*arguments, **options)


@pytest.mark.parametrize("assignment", [[(0, 1), (1, 2), (2, 3), (3, 0)], [(0, 1), (0, 1), (2, 3), (2, 3)]])
def test_a_worker_without_shared_memory_gets_its_rows_only(assignment):
    """Ray and MPI; and what several workers hold is the same memory, so that a store has it once."""
    from anyk.clusters.remote.shipping import parcels, unship

    X, y = torch.randn(4000, 5), torch.arange(4000) % 2
    problem = anyk.problems.TorchProblem(torch.nn.Linear(5, 2), torch.nn.CrossEntropyLoss(), (X, y))
    partitions, w = problem.split(4), problem.initial()
    sent = parcels(partitions, assignment)
    total = 4000 * (5 * 4 + 8)
    for assigned, parcel in zip(assignment, sent, strict=True):
        assert total / 2 <= sum(buffer.nbytes for buffer in parcel) < total / 2 + 20_000
        received = unship(parcel)
        received.load(assigned)
        for j in assigned:
            np.testing.assert_array_equal(received.partial_gradient(j, w), partitions.partial_gradient(j, w))
            rows = np.array([0, 3, 999])
            np.testing.assert_array_equal(
                received.partial_gradient(j, w, rows), partitions.partial_gradient(j, w, rows)
            )
    places = {(np.frombuffer(buffer, np.uint8).ctypes.data, buffer.nbytes) for parcel in sent for buffer in parcel[1:]}
    assert sum(size for _, size in places) == total
    received = unship(sent[0])
    piece = received.piece(0, 1)
    piece.load((0,))
    np.testing.assert_allclose(
        piece.partial_gradient(0, w), sum(partitions.partial_gradient(j, w) for j in (0, 1)), atol=1e-3
    )


class Drawn:
    """Items of a script's, which draw from all three generators; the last one fails."""

    __module__ = "__main__"

    def __len__(self):
        return 12

    def __getitem__(self, i):
        if i == 11:
            raise OSError("gone")
        return torch.rand(2), np.random.rand(), random.random(), i, os.getpid()  # noqa: NPY002


def halved(item):
    return item[0] / 2 + torch.rand(2), *item[1:]


class Raw:
    """Numbers as a data set has them before anything is made of them."""

    def __len__(self):
        return 30

    def __getitem__(self, i):
        return [float(i), 1.0], i % 2


class Augmented(Raw):
    def __getitem__(self, i):
        return augmented(super().__getitem__(i))


def augmented(item):
    return torch.tensor(item[0]) + torch.rand(2), item[1]


def plain(item):
    return torch.tensor(item[0]), item[1]


@pytest.mark.slow
def test_items_are_transformed_for_training_and_evaluation():
    def of(data, **options):
        torch.manual_seed(0)
        return TorchProblem(nn.Linear(2, 2), nn.CrossEntropyLoss(), data, **options)

    both = {"transform": augmented, "eval_transform": plain}
    problem = of(Raw(), held_out=Raw(), **both)
    arrays = torch.tensor([Raw()[i][0] for i in range(30)]), torch.arange(30) % 2
    clean, drawn = of(arrays, held_out=arrays), of(Augmented())
    w = problem.initial() + np.float32(0.1)
    assert problem.loss(w) == pytest.approx(clean.loss(w), rel=1e-6)
    assert problem.sampled(9).loss(w) == pytest.approx(clean.sampled(9).loss(w), rel=1e-6)
    assert problem.metrics(w) == clean.metrics(w)
    for j in range(2):
        parts, others = problem.split(2), drawn.split(2)
        before = parts.partial_gradient(j, w)
        assert np.array_equal(before, others.partial_gradient(j, w))  # drawn alike
        assert parts.partial_loss(j, w) == pytest.approx(clean.split(2).partial_loss(j, w), rel=1e-6)
        assert np.array_equal(parts.partial_gradient(j, w), before)
    stream = of(anyk.data.Stream(lambda j, seed: (([float(seed % 7 + i), 1.0], i % 2) for i in range(99))), **both)
    assert np.isfinite(stream.split(2).partial_gradient(1, w, np.arange(4))).all()
    assert stream.sampled(20).loss(w) == stream.sampled(20).loss(w)
    for data, options, sentence in [
        (
            arrays,
            {"transform": augmented},
            "transform is for items of a data set, and the data set is arrays; leave it",
        ),
        (
            arrays,
            {"eval_transform": plain},
            "eval_transform is for items of a data set, and the data set is arrays or",
        ),
        (
            Raw(),
            {"eval_transform": plain, "held_out": arrays},
            "eval_transform is for items .*, and held_out is arrays",
        ),
        (Raw(), {"transform": 3}, "transform must be a function of an item"),
        (Raw(), {"transform": lambda item: 1 / 0}, "item 0 of the data set cannot be read: ZeroDivisionError"),
    ]:
        with pytest.raises(BadInput, match=sentence):
            of(data, **options)


@pytest.mark.slow
def test_items_read_by_processes_are_those_read_by_one(monkeypatch):
    """In a worker only; and the program's main module, which need not have a guard, is not imported by them."""
    monkeypatch.setattr(sys.modules["__main__"], "__file__", "/nowhere/script.py", raising=False)
    alone, items = (Items(Drawn(), ItemReading(transform=halved)) for _ in range(2))
    items.processes = 1
    batch_here = items.batch(slice(0, 3), key=5)
    assert set(batch_here[-1].tolist()) == {os.getpid()}
    monkeypatch.setenv("ANYK_WORKER", "0")
    before = torch.get_rng_state()
    try:
        for rows, key in [(slice(0, 9), 5), (np.array([1, 7, 10]), 6)]:
            actual, expected = items.batch(rows, key), alone.batch(rows, key)
            for one, other in zip(actual[:-1], expected[:-1], strict=True):
                assert torch.equal(one, other)
            assert os.getpid() not in actual[-1].tolist()
        with pytest.raises(anyk.RunFailed, match="item 11 of the data set cannot be read: OSError: gone"):
            items.batch(np.array([3, 11]), 7)
        assert torch.equal(torch.get_rng_state(), before)
    finally:
        del items
    for options, sentence in [
        ({"num_workers": 2}, "num_workers is for map-style data sets"),
        ({"num_workers": -1}, "num_workers must be a whole number of at least 0, got -1"),
    ]:
        with pytest.raises(BadInput, match=sentence):
            TorchProblem(torch.nn.Linear(2, 1), torch.nn.MSELoss(), (torch.ones(3, 2), torch.ones(3, 1)), **options)


def test_a_failing_collate_fn_ends_the_run_with_its_text():
    """Though each names items of its own."""
    calls = []

    def failing(items):
        calls.append(len(items))
        if len(calls) > 60:
            raise ValueError("bad collate")
        return torch.utils.data.default_collate(items)

    X, y = torch.randn(64, 3), torch.zeros(64, dtype=torch.long)
    data = list(torch.utils.data.TensorDataset(X, y))
    problem = TorchProblem(nn.Linear(3, 2), nn.CrossEntropyLoss(), data, collate_fn=failing)
    asked = {"workers": 8, "delays": "exp:mean=1", "optimizer": anyk.optimizers.GD(lr=0.1), "evaluate": None}
    with pytest.raises(
        anyk.RunFailed, match=r"most replies cannot be used; worker \d: items .* ValueError: bad collate"
    ):
        anyk.train(problem, "k-sync:k=2,batch=4", "simulated", steps=50, **asked)
