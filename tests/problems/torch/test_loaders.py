"""A DataLoader given as data: what it means is kept, and what cannot be kept is refused by name."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

import anyk
from anyk.base.errors import BadInput
from anyk.problems import TorchProblem

X = torch.randn(32, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
Y = X[:, :3].argmax(dim=1)
GD = anyk.optimizers.GD(lr=0.3)


class Items(Dataset):
    def __len__(self):
        return len(X)

    def __getitem__(self, i):
        return X[i], Y[i]


class Doubled(TensorDataset):
    """A data set of tensors whose items are others than their rows."""

    def __getitem__(self, i):
        x, y = super().__getitem__(i)
        return 2 * x, y


def layer():
    torch.manual_seed(0)
    return nn.Linear(4, 3).double()


def trained(data, spec="uncoded", cluster=None, **options):
    problem = TorchProblem(layer(), nn.CrossEntropyLoss(), data, **options)
    cluster = cluster or anyk.clusters.Simulated(4, seed=2)
    return anyk.train(problem, spec, cluster, steps=3, optimizer=GD)


def reversing(items):
    """A collate function of one's own: features in another order."""
    x, y = zip(*items, strict=True)
    return torch.stack(x).flip(1), torch.stack(y)


@pytest.mark.slow
@pytest.mark.parametrize("data", [TensorDataset(X, Y), Items()])
@pytest.mark.parametrize("options", [{}, {"shuffle": True}, {"drop_last": True, "pin_memory": False}])
@pytest.mark.parametrize("spec", ["uncoded", "frc:load=2", "cyclic:stragglers=1"])
def test_a_step_has_the_samples_of_a_batch(data, options, spec):
    run = trained(DataLoader(data, batch_size=8, **options), spec)
    plain = trained(data, f"{spec}{',' if ':' in spec else ':'}batch=2")
    assert (run.model == plain.model).all() and run.config.strategy.endswith("batch=2")
    assert {note["kind"] for note in run.notes} == {"data"} and not plain.notes
    assert "of 8 samples a step" in run.notes[0]["text"] and "Sampler is replaced" in run.notes[0]["text"]


@pytest.mark.slow
def test_the_strategys_own_batch_counts():
    loader = DataLoader(TensorDataset(X, Y), batch_size=8)
    for spec in ("uncoded:batch=3", "k-sync:k=2,batch=3", "async:batch=3"):
        assert (trained(loader, spec).model == trained((X, Y), spec).model).all()
    assert (trained(loader, "uncoded:batch=0").model == trained((X, Y)).model).all()
    whole = DataLoader(TensorDataset(X, Y), batch_size=64)
    assert trained(whole).model == pytest.approx(trained((X, Y)).model, abs=1e-12)


@pytest.mark.slow
def test_batches_that_cannot_be_shared_are_refused():
    loader = DataLoader(Items(), batch_size=10)
    with pytest.raises(BadInput, match=r"10 samples, which 4 partitions cannot share evenly; .*'uncoded:batch=8'"):
        trained(loader)
    for spec in ("async", "pasgd:tau=2", "k-async:k=2", "gc:stragglers=1", "tree"):
        with pytest.raises(
            BadInput, match="for rounds of a code alone; give '.*' batch=…, the samples of each partition"
        ):
            trained(loader, spec)
    problem = TorchProblem(layer(), nn.CrossEntropyLoss(), loader)
    with pytest.raises(BadInput, match="cannot share evenly"):
        anyk.rounds(problem, "uncoded", anyk.clusters.Simulated(4), steps=1)
    with pytest.raises(BadInput, match="cannot share evenly"):
        anyk.race(problem, ["uncoded"], cluster="simulated", workers=4, steps=1, optimizer=GD)


@pytest.mark.slow
def test_collate_fn_and_transforms_are_kept():
    plain = TorchProblem(layer(), nn.CrossEntropyLoss(), (X.flip(1), Y))
    for data in (TensorDataset(X, Y), Items()):
        loader = DataLoader(data, batch_size=8, collate_fn=reversing)
        problem = TorchProblem(layer(), nn.CrossEntropyLoss(), loader, held_out=DataLoader(data, collate_fn=reversing))
        w = problem.initial()
        assert problem.split(4).partial_gradient(1, w) == pytest.approx(plain.split(4).partial_gradient(1, w))
        accuracy = (plain.module_at(w)(X.flip(1)).argmax(dim=1) == Y).double().mean().item()
        assert problem.metrics(w) == {"accuracy": pytest.approx(accuracy)}
    for data in (Doubled(X, Y), DataLoader(Doubled(X, Y), batch_size=8)):
        doubled = TorchProblem(layer(), nn.CrossEntropyLoss(), data)
        twice = TorchProblem(layer(), nn.CrossEntropyLoss(), (2 * X, Y))
        w = doubled.initial()
        assert doubled.split(4).partial_gradient(1, w) == pytest.approx(twice.split(4).partial_gradient(1, w))


@pytest.mark.slow
@pytest.mark.parametrize("data", [TensorDataset(X, Y), Items()])
def test_samplers_of_torch_keep_their_meaning(data):
    chosen = [3, 5, 8, 13, 21, 2, 1, 30]
    problem = TorchProblem(
        layer(), nn.CrossEntropyLoss(), DataLoader(data, batch_size=4, sampler=SubsetRandomSampler(chosen))
    )
    few = TorchProblem(layer(), nn.CrossEntropyLoss(), (X[chosen], Y[chosen]))
    w = few.initial()
    assert problem.samples == 8
    assert problem.split(2).partial_gradient(1, w) == pytest.approx(few.split(2).partial_gradient(1, w), abs=1e-12)
    weights = np.where(Y == 0, 5.0, 1.0)
    sampler = WeightedRandomSampler(weights, num_samples=100)
    problem = TorchProblem(layer(), nn.CrossEntropyLoss(), DataLoader(data, batch_size=8, sampler=sampler))
    weighted = TorchProblem(layer(), nn.CrossEntropyLoss(), data, weights=weights, sampling="weights")
    runs = [
        anyk.train(one_problem, spec, anyk.clusters.Simulated(4, seed=2),
                   steps=3, optimizer=GD)
        for one_problem, spec in ((problem, "uncoded"), (weighted, "uncoded:batch=2"))
    ]  # fmt: skip
    assert (runs[0].model == runs[1].model).all()
    for sampler in (RandomSampler(data, replacement=True), RandomSampler(data, num_samples=7)):
        for loader in (
            DataLoader(data, batch_size=8, sampler=sampler),
            DataLoader(data, batch_sampler=BatchSampler(sampler, batch_size=8, drop_last=False)),
        ):
            assert (trained(loader).model == trained(data, "uncoded:batch=2").model).all()


@pytest.mark.slow
def test_problems_of_loaders_accumulate_and_resume(tmp_path):
    def script(steps):
        module = layer()
        problem = TorchProblem(module, nn.CrossEntropyLoss(), DataLoader(Items(), batch_size=8))
        sgd = torch.optim.SGD(module.parameters(), lr=0.3)
        loop = anyk.rounds(problem, "frc:load=2", anyk.clusters.Simulated(4), steps=steps, into=module, accumulate=2,
                           out=tmp_path / "run", keep=sgd, go_on=True)  # fmt: skip
        return [step.number for step in loop if sgd.step() is None]

    assert script(2) == [0, 1] and script(3) == [2]


class Stream(IterableDataset):
    def __iter__(self):
        return iter(Items())


class Own(Sampler):
    def __iter__(self):
        return iter([0, 1])

    def __len__(self):
        return 2


class Prepared(DataLoader):
    def __iter__(self):
        yield from super().__iter__()


def test_loaders_of_unknown_meaning_are_refused_by_name():
    data = Items()
    for loader, sentence in (
        (DataLoader(Stream(), batch_size=4), "iterable data set, whose samples have no numbers"),
        (
            DataLoader(data, batch_size=4, worker_init_fn=print),
            "with a worker_init_fn, which anyk's workers do not call",
        ),
        (DataLoader(data, batch_size=None), "with batch_size=None, whose data set makes the batches"),
        (DataLoader(data, batch_sampler=[[0, 1]]), "with the batch_sampler list, whose batches anyk cannot draw"),
        (DataLoader(data, sampler=Own()), "with the sampler Own, whose meaning is not known"),
        (
            DataLoader(data, sampler=DistributedSampler(data, num_replicas=2, rank=0)),
            "DistributedSampler, and anyk divides the data among its workers itself; leave the sampler out",
        ),
        (DataLoader(data, sampler=RandomSampler(range(5))), "sampler is of 5 samples and whose data set has 32"),
        (
            DataLoader(data, sampler=WeightedRandomSampler([1.0] * 32, 4, replacement=False)),
            "WeightedRandomSampler without replacement",
        ),
        (Prepared(data), "Prepared, a DataLoader that makes batches in a way of its own"),
    ):
        for arguments in ({"dataset": loader}, {"dataset": data, "held_out": loader}):
            with pytest.raises(BadInput, match=sentence):
                TorchProblem(layer(), nn.CrossEntropyLoss(), **arguments)
    weighted = DataLoader(data, sampler=WeightedRandomSampler([1.0] * 31 + [2.0], 4))
    with pytest.raises(BadInput, match="held_out is a DataLoader with a WeightedRandomSampler"):
        TorchProblem(layer(), nn.CrossEntropyLoss(), data, held_out=weighted)
    for loader, options, name in (
        (weighted, {"weights": np.ones(32)}, "weights"),
        (DataLoader(data, collate_fn=reversing), {"collate_fn": reversing}, "collate_fn"),
    ):
        with pytest.raises(BadInput, match=f"the DataLoader has {name} of its own"):
            TorchProblem(layer(), nn.CrossEntropyLoss(), loader, **options)


@pytest.mark.slow
def test_a_loader_trains_on_processes_as_on_the_simulator():
    sampler = WeightedRandomSampler(np.where(Y == 0, 5.0, 1.0), num_samples=32)
    models = []
    for cluster in (anyk.clusters.Simulated(2, seed=1), anyk.clusters.Processes(2, seed=1)):
        loader = DataLoader(Items(), batch_size=8, sampler=sampler, num_workers=1, collate_fn=reversing)
        models.append(trained(loader, "frc:load=2", cluster).model)
    assert (models[0] == models[1]).all()
