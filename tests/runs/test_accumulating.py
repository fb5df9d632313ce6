"""Gradients of several rounds for one step of a loop: those of a PyTorch loop with as many calls of ``backward``."""

import numpy as np
import pytest
import torch
from torch import nn

import anyk
from anyk.base.errors import BadInput
from anyk.clusters.messages import Messages
from anyk.problems import TorchProblem
from anyk.protocol import Chunk

SEED, WORKERS, BATCH = 3, 4, 3


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()


def samples():
    X = torch.randn(32, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return X, X[:, :3].argmax(dim=1)


def cluster(**options):
    return anyk.clusters.Simulated(WORKERS, seed=SEED, **options)


def flat(module):
    return torch.cat([parameter.detach().reshape(-1) for parameter in module.parameters()]).numpy()


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["uncoded:", "frc:load=2,", "cyclic:stragglers=1,"])
def test_a_step_has_the_mean_gradient_of_its_rounds(spec):
    X, y = samples()
    module, plain, loss = network(), network(), nn.CrossEntropyLoss()
    problem = TorchProblem(module, loss, (X, y))
    adam = torch.optim.AdamW(module.parameters(), lr=0.05)
    loop = anyk.rounds(problem, f"{spec}batch={BATCH}", cluster(), steps=3, into=module, accumulate=4)
    receipts = []
    for step in loop:
        adam.step()
        receipts.append([receipt.version for receipt in step.receipts])
        assert step.receipt is step.receipts[-1] and step.scale == 1.0
    assert receipts == [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12]] and loop.run.steps == 12

    parts = problem.split(WORKERS)
    drawn = Messages(parts, seed=SEED)
    ends = np.cumsum([0, *parts.sizes])
    optimizer = torch.optim.AdamW(plain.parameters(), lr=0.05)
    for version in range(12):
        rows = [drawn.rows(j, Chunk((j,), (1.0,), batch=BATCH), version) + ends[j] for j in range(WORKERS)]
        some = torch.from_numpy(np.concatenate(rows))  # partitions have equal sizes
        (loss(plain(X[some]), y[some]) / 4).backward()
        if version % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()
    assert flat(module) == pytest.approx(flat(plain), abs=1e-12)


def test_loops_without_a_module_accumulate_too():
    problem = anyk.problems.from_data("synthetic:rows=64,features=3")
    single = anyk.rounds(problem, "uncoded:batch=4", cluster(), steps=2)
    gradients = [step.gradient for step in single]  # at the same model
    (step,) = list(anyk.rounds(problem, "uncoded:batch=4", cluster(), steps=1, accumulate=2))
    assert step.number == 0 and step.gradient == pytest.approx((gradients[0] + gradients[1]) / 2, abs=1e-15)


def test_factors_of_stale_gradients_are_in_the_mean():
    problem = anyk.problems.from_data("synthetic:rows=64,features=3")
    spec = "async:lr_scale=0.25,batch=4"
    single = anyk.rounds(problem, spec, cluster(), steps=2)
    gradients = [step.scale * step.gradient for step in single]
    (step,) = list(anyk.rounds(problem, spec, cluster(), steps=1, accumulate=2))
    assert step.scale == 1.0 and step.gradient == pytest.approx((gradients[0] + gradients[1]) / 2, abs=1e-15)


class Killed(Exception):
    pass


@pytest.mark.slow
def test_a_loop_resumed_within_a_step_takes_the_same_steps(tmp_path):
    X, y = samples()

    def script(folder, kill=None, accumulate=4):
        module = network()
        problem = TorchProblem(module, nn.CrossEntropyLoss(), (X, y))
        adam = torch.optim.AdamW(module.parameters(), lr=0.05)

        class Kill(anyk.Callback):
            def on_step(self, info):
                if info.step == kill:
                    raise Killed

        loop = anyk.rounds(
            problem,
            "frc:load=2,batch=3",
            cluster(),
            steps=4,
            into=module,
            keep=adam,
            accumulate=accumulate,
            out=tmp_path / folder,
            go_on=True,
            callbacks=[Kill()],
        )
        numbers = []
        for step in loop:
            adam.step()
            numbers.append(step.number)
        return numbers, flat(module)

    numbers, uninterrupted = script("whole")
    assert numbers == [0, 1, 2, 3]
    with pytest.raises(Killed):
        script("killed", kill=6)
    with pytest.raises(BadInput, match="the run accumulates 4 rounds for each step, got accumulate=2"):
        script("killed", accumulate=2)
    numbers, resumed = script("killed")
    assert numbers == [1, 2, 3] and (resumed == uninterrupted).all()


@pytest.mark.slow
def test_torchs_optimiser_accumulates():
    X, y = samples()
    modules = network(), network()
    for module, accumulate in zip(modules, (1, 2), strict=True):
        problem = TorchProblem(module, nn.CrossEntropyLoss(), (X, y))
        sgd = torch.optim.SGD(module.parameters(), lr=0.1)
        with anyk.torch.Optimizer(sgd, problem, "uncoded:batch=3", cluster(), accumulate=accumulate) as optimizer:
            for _ in range(2):
                optimizer.step()
        assert optimizer.run.steps == 2 * accumulate
    assert not np.allclose(*map(flat, modules))


def test_accumulating_without_mini_batches_is_refused():
    problem = anyk.problems.from_data("synthetic:rows=64,features=3")
    with pytest.raises(BadInput, match="accumulate=4 adds up the gradients of mini-batches, and 'frc:load=2' computes"):
        anyk.rounds(problem, "frc:load=2", cluster(), steps=2, accumulate=4)
    for wrong in (0, 1.5, "4"):
        with pytest.raises(BadInput, match="accumulate must be a whole number of at least 1"):
            anyk.rounds(problem, "uncoded:batch=2", cluster(), steps=2, accumulate=wrong)


@pytest.mark.slow
def test_a_loop_that_steps_in_every_fourth_round_is_warned():
    X, y = samples()
    module = network()
    problem = TorchProblem(module, nn.CrossEntropyLoss(), (X, y))
    sgd = torch.optim.SGD(module.parameters(), lr=0.1)

    def script(every):
        for step in anyk.rounds(problem, "uncoded:batch=3", cluster(), steps=12, into=module):
            if step.number % every == every - 1:
                sgd.step()

    with pytest.warns(RuntimeWarning, match="3 gradients before this step were used by no step .* accumulate=4"):
        script(4)
    script(1)
