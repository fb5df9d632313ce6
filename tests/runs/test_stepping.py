"""A loop of one's own: what it is handed, what becomes of its steps, and how it ends."""

import copy
import gc
import io
import threading
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

import anyk
from anyk.base.errors import BadInput, RunFailed
from anyk.clusters import Outage, Simulated

pytestmark = pytest.mark.slow

EXP = anyk.delays.Exponential(0.5)
PROBLEM = anyk.problems.from_data("synthetic:rows=240,features=6")


def simulated(workers=6, **options):
    return Simulated(workers, delays=EXP, seed=3, **options)


def began():
    return [thread for thread in threading.enumerate() if thread.name == "anyk rounds"]


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # for so little several are slower
    yield
    torch.set_num_threads(threads)


# ----------------------------------------------------------------------------------------------- plain problems


@pytest.mark.parametrize("spec", ["uncoded", "frc:load=3", "cyclic:stragglers=2", "agc:load=3,wait=4", "k-sync:k=3",
                                  "async:lr_scale=0.1", "k-async:k=2", "uncoded:batch=8", "frc:load=2,wait=4,scaling=marginal",
                                  "gc:stragglers=1", "compressed:of=uncoded,by=qsgd"])  # fmt: skip
def test_gradient_descent_in_a_loop_is_gradient_descent(spec):
    run = anyk.train(PROBLEM, spec, simulated(), optimizer=anyk.optimizers.GD(lr=0.3), steps=25)
    loop = anyk.rounds(PROBLEM, spec, simulated(), steps=25)
    numbers = []
    for step in loop:
        step.model -= 0.3 * step.scale * step.gradient
        numbers.append(step.number)
    assert numbers == list(range(25))
    assert loop.run.model.tobytes() == run.model.tobytes() == step.model.tobytes()
    assert loop.run.seconds == run.seconds
    assert loop.run.history["loss"].tolist() == run.history["loss"].tolist()


def test_the_scale_of_a_step_is_the_strategys():
    assert {step.scale for step in anyk.rounds(PROBLEM, "async:lr_scale=0.125", simulated(), steps=5)} == {0.125}
    assert {step.scale for step in anyk.rounds(PROBLEM, "uncoded", simulated(), steps=5)} == {1.0}


def test_gradients_of_a_loop_are_the_objectives_and_stay():
    problem = anyk.problems.from_data("synthetic:rows=60,features=3", l2=0.1)
    gradients = []
    for step in anyk.rounds(problem, "frc:load=2", simulated(), steps=4):
        gradients.append((step, step.gradient.copy(), step.model.copy()))
        step.model = step.model - 0.5 * step.gradient  # assigned, not changed in place
    for (step, gradient, model), (_, _, following) in pairwise(gradients):
        for i in range(problem.dimension):
            nudge = np.zeros(problem.dimension)
            nudge[i] = 1e-6
            slope = (problem.loss(model + nudge) - problem.loss(model - nudge)) / 2e-6
            assert gradient[i] == pytest.approx(slope, abs=1e-7)
        assert np.array_equal(step.gradient, gradient)
        assert np.array_equal(following, model - 0.5 * gradient)


def test_a_loop_that_changes_nothing_leaves_the_model():
    loop = anyk.rounds(PROBLEM, "uncoded", simulated(), steps=3)
    assert [step.number for step in loop] == [0, 1, 2]
    assert np.array_equal(loop.run.model, PROBLEM.initial())


def test_seconds_are_a_limit_too():
    loop = anyk.rounds(PROBLEM, "frc:load=2", simulated(), seconds=5.0)
    assert len(list(loop)) == loop.run.steps > 0
    assert loop.run.seconds <= 5.0


# ----------------------------------------------------------------------------------------------- how it ends


@pytest.mark.parametrize(
    "cluster", [simulated, lambda: anyk.clusters.Processes(3, delays=anyk.delays.Exponential(0.01))]
)
def test_the_step_at_which_a_loop_is_left_is_the_last_one(cluster):
    loop = anyk.rounds(PROBLEM, "uncoded", cluster(), steps=50)
    for step in loop:
        step.model -= 0.3 * step.gradient
        if step.number == 3:
            break
    assert loop.run.steps == 4
    assert np.array_equal(loop.run.model, step.model)
    assert not began()
    ledger = loop.run.summary["ledger"]
    assert ledger["dispatched"] == sum(count for name, count in ledger.items() if name != "dispatched")


@pytest.mark.parametrize("cluster", [simulated, lambda: anyk.clusters.Processes(3)])
def test_an_exception_in_the_loop_ends_the_run(cluster):
    loop = anyk.rounds(PROBLEM, "uncoded", cluster(), steps=50)
    with pytest.raises(ZeroDivisionError):
        for step in loop:
            step.model -= step.number / (2 - step.number)
    gc.collect()
    assert not began()
    assert loop.run.steps == 3


def test_what_a_run_fails_of_reaches_the_loop():
    loop = anyk.rounds(PROBLEM, "uncoded", simulated(), steps=50)
    with pytest.raises(RunFailed, match="diverged at step 2"):
        for step in loop:
            step.model += 1.0 if step.number < 2 else np.inf
    with pytest.raises(RunFailed, match="diverged at step 2"):
        _ = loop.run
    gone = simulated(outages=[Outage(2.0, worker) for worker in range(6)])
    with pytest.raises(RunFailed):
        for step in anyk.rounds(PROBLEM, "uncoded", gone, steps=50):
            step.model -= 0.3 * step.gradient
    assert not began()


def test_a_failure_of_a_loops_last_step_is_told_by_its_run():
    loop = anyk.rounds(PROBLEM, "uncoded", simulated(), steps=50)
    for step in loop:
        step.model[:] = np.nan
        break
    with pytest.raises(RunFailed, match="diverged at step 0"):
        _ = loop.run


def test_a_loop_that_is_left_while_it_waits_hands_out_no_more():
    loop = anyk.rounds(PROBLEM, "uncoded", simulated(), steps=50)
    loop._loop.over = True  # as by Ctrl-C before the first gradient is there
    with pytest.raises(RunFailed, match="left while it waited"):
        list(loop)


def test_a_model_of_another_shape_is_refused():
    with pytest.raises(BadInput, match=r"step.model must stay a vector of 6 numbers, got shape \(2,\)"):
        for step in anyk.rounds(PROBLEM, "uncoded", simulated(), steps=5):
            step.model = step.model[:2]


def test_rounds_are_gone_through_once():
    loop = anyk.rounds(PROBLEM, "uncoded", simulated(), steps=3)
    with pytest.raises(BadInput, match="after the loop has ended"):
        _ = loop.run
    for _ in loop:
        with pytest.raises(BadInput, match="iterated only once"):
            next(iter(loop))
        with pytest.raises(BadInput, match="after the loop has ended"):
            _ = loop.run
    with pytest.raises(BadInput, match="iterated only once"):
        list(loop)
    assert loop.run.steps == 3


@pytest.mark.parametrize("spec", ["pasgd:tau=3", "fedavg", "diloco", "adacomm:tau=4", "fedbuff", "dpsgd", "easgd",
                                  "ad-psgd", "compressed:of=pasgd,by=qsgd"])  # fmt: skip
def test_strategies_whose_workers_step_are_refused(spec):
    with pytest.raises(BadInput, match="workers take the steps"):
        anyk.rounds(PROBLEM, spec, simulated(), steps=3)


def test_several_models_are_refused():
    with pytest.raises(BadInput, match="trains 2 models; a custom loop trains one"):
        anyk.rounds(PROBLEM, "gc:stragglers=1,models=2", simulated(), steps=3)


def test_bad_input_is_said_by_the_loop():
    with pytest.raises(BadInput, match="no strategy 'uncodde'"):
        anyk.rounds(PROBLEM, "uncodde", simulated())
    with pytest.raises(BadInput, match="steps must be a whole number of at least 1 or None, got 0"):
        list(anyk.rounds(PROBLEM, "uncoded", simulated(), steps=0))
    with pytest.raises(BadInput, match="the strategy is for 4 workers, the cluster has 6"):
        list(anyk.rounds(PROBLEM, anyk.strategy("uncoded", workers=4), simulated()))


# ----------------------------------------------------------------------------------------------- a module


def network(seed=0, dtype=torch.float64):
    torch.manual_seed(seed)
    module = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3)).to(dtype)
    for parameter in module[2].parameters():
        parameter.requires_grad_(False)
    return module


def samples(count=48):
    X = torch.randn(count, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return X, X[:, :3].argmax(dim=1)


def stepping(module):
    """What an existing script has: its optimiser, its schedule, its clipping."""
    optimizer = torch.optim.AdamW([p for p in module.parameters() if p.requires_grad], lr=0.05, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=30)

    def step():
        norm = nn.utils.clip_grad_norm_(module.parameters(), 0.2)
        optimizer.step()
        schedule.step()
        return float(norm)

    return optimizer, step


def plain(module, X, y, steps):
    optimizer, step = stepping(module)
    norms = []
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(X), y).backward()
        norms.append(step())
    return norms


def flat(module):
    return nn.utils.parameters_to_vector(module.parameters()).detach().numpy()


@pytest.mark.parametrize("spec", ["uncoded", "frc:load=2", "cyclic:stragglers=2"])
def test_a_script_goes_on_as_it_did(spec):
    X, y = samples()
    module, same = network(), network()
    problem = anyk.problems.TorchProblem(module, nn.CrossEntropyLoss(), (X, y))
    norms = []
    _, step = stepping(module)
    loop = anyk.rounds(problem, spec, simulated(), steps=30, into=module, evaluate="every=30")
    for _ in loop:
        norms.append(step())
    expected = plain(same, X, y, 30)
    assert min(expected) < 0.2 < max(expected)  # else clipping would not have been tried
    assert np.allclose(norms, expected, rtol=1e-9)
    assert np.abs(flat(module) - flat(same)).max() < 1e-10
    assert np.array_equal(flat(module[2]), flat(network()[2])), "frozen parameters stay"
    assert all(p.grad is None for p in module[2].parameters())
    trained = np.concatenate([flat(module[0]), flat(module[4])])
    assert np.array_equal(loop.run.model, trained)


def test_it_begins_where_the_module_stands():
    X, y = samples()
    module = network()
    problem = anyk.problems.TorchProblem(module, nn.CrossEntropyLoss(), (X, y))
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.requires_grad:
                parameter.mul_(0.5)
    same = copy.deepcopy(module)
    start = np.concatenate([flat(module[0]), flat(module[4])])
    _, step = stepping(module)
    for handed in anyk.rounds(problem, "frc:load=2", simulated(), steps=5, into=module):
        if handed.number == 0:
            assert np.array_equal(handed.model, start)
        step()
    plain(same, X, y, 5)
    assert np.abs(flat(module) - flat(same)).max() < 1e-12
    assert not np.array_equal(problem.initial(), start), "the problem itself begins where it did"


def test_a_loop_left_early_leaves_run_and_module_alike():
    X, y = samples()
    module = network()
    problem = anyk.problems.TorchProblem(module, nn.CrossEntropyLoss(), (X, y))
    _, step = stepping(module)
    loop = anyk.rounds(problem, "uncoded", simulated(), steps=30, into=module, evaluate="every=30")
    for handed in loop:
        step()
        if handed.number == 2:
            break
    assert loop.run.steps == 3
    assert np.array_equal(loop.run.model, np.concatenate([flat(module[0]), flat(module[4])]))


def test_modules_that_are_not_the_problems_are_refused():
    X, y = samples()
    problem = anyk.problems.TorchProblem(network(), nn.CrossEntropyLoss(), (X, y))
    for module, words in (
        (nn.Linear(5, 3).double(), "the module has 18 trainable parameters, the problem 57"),
        (nn.Linear(18, 3).double(), "have other shapes than the problem's"),
        (network(dtype=torch.float32), "the module's parameters are float32, the problem's float64"),
        (nn.Flatten(), "no parameter to train"),
        (list(network().parameters()), "into must be a PyTorch module, got list"),
    ):
        with pytest.raises(BadInput, match=words):
            anyk.rounds(problem, "uncoded", simulated(), into=module)


def test_a_script_on_processes_goes_on_as_it_did():
    X, y = samples()
    module, same = network(), network()
    problem = anyk.problems.TorchProblem(module, nn.CrossEntropyLoss(), (X, y))
    optimizer, step = stepping(module)
    for handed in anyk.rounds(problem, "frc:load=2", anyk.clusters.Processes(2), steps=10, into=module):
        step()
        optimizer.zero_grad()  # after the step it does no harm
        if handed.number == 7:
            break
    plain(same, X, y, 8)
    assert np.abs(flat(module) - flat(same)).max() < 1e-12


# ----------------------------------------------------------------------------------------------- running statistics


class Nested(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.ReLU())
        self.norm = nn.BatchNorm1d(6, track_running_stats=False)
        self.last = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
        self.double()

    def forward(self, x):
        return self.last(self.norm(self.first(x)))


def pickled(module):
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False).state_dict()


LOOKS = {
    "state_dict": lambda module, X: module.state_dict(),
    "a part's": lambda module, X: {f"first.{name}": value for name, value in module.first.state_dict().items()},
    "copy": lambda module, X: copy.deepcopy(module).state_dict(),
    "pickle": lambda module, X: pickled(module),
    "evaluation": lambda module, X: {"outputs": module.eval()(X), **dict(module.train().named_buffers())},
}


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
def test_running_statistics_are_always_of_the_parameters(look):
    X, y = samples()
    module = Nested()
    problem = anyk.problems.TorchProblem(module, nn.CrossEntropyLoss(), (X, y))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    loop = anyk.rounds(problem, "frc:load=2", simulated(), steps=6, into=module, evaluate="every=6")
    for step in loop:
        optimizer.step()
        if step.number in (1, 4):
            reference = problem.module_at(np.concatenate([p.detach().numpy().reshape(-1) for p in module.parameters()]))
            expected = reference.state_dict() | {"outputs": reference(X)}
            seen = {name: value.clone() for name, value in look(module, X).items()}
            assert {"first.1.running_mean", "first.1.running_var", "first.1.num_batches_tracked"} <= set(seen)
            for name, value in seen.items():
                assert torch.equal(value, expected[name]), name
            assert module.training
            before = copy.deepcopy(module)
    for name, value in before.state_dict().items():  # a copy stays as it was
        assert torch.equal(value, expected[name]), name
    assert not torch.equal(module.first[1].running_mean, before.first[1].running_mean)


def test_a_batch_norm_on_one_worker_is_that_of_one_process():
    X, y = samples()
    alone, module = Nested(), Nested()
    optimizer = torch.optim.SGD(alone.parameters(), lr=0.1, momentum=0.9)
    for _ in range(6):
        optimizer.zero_grad()
        nn.functional.cross_entropy(alone(X), y).backward()
        optimizer.step()
    torch.optim.swa_utils.update_bn([X], alone)
    problem = anyk.problems.TorchProblem(module, nn.CrossEntropyLoss(), (X, y))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    for _ in anyk.rounds(problem, "uncoded", anyk.clusters.Simulated(1), steps=6, into=module, evaluate=None):
        optimizer.step()
    state = module.state_dict()
    for name, value in alone.state_dict().items():
        assert torch.allclose(state[name], value, rtol=1e-12, atol=1e-12), name


@pytest.mark.parametrize("body", ["erased", "zeroed", "other", "none", "in place", "left", "torch", "late"])
def test_a_loop_that_changes_nothing_is_warned_of(body):
    """When it has ended; a rate may begin at 0, and the last steps of a schedule have no rate."""
    X, y = samples()
    module = network()
    problem = anyk.problems.TorchProblem(module, nn.CrossEntropyLoss(), (X, y))
    stepped = network() if body == "other" else module
    optimizer = torch.optim.SGD(stepped.parameters(), lr=0.0 if body == "torch" else 0.1)

    def train():
        if body == "torch":
            with anyk.torch.ClusterOptimizer(optimizer, problem, "uncoded", simulated()) as stepper:
                for _ in range(4):
                    stepper.step()
            return
        for step in anyk.rounds(problem, "uncoded", simulated(), steps=6, into=module, evaluate=None):
            if body in ("erased", "zeroed"):
                optimizer.zero_grad(set_to_none=body == "erased")
            if body == "in place":  # of what into= does not take
                step.model -= 0.1 * step.gradient
            if body in ("erased", "zeroed", "other") or (body == "late" and step.number == 5):
                optimizer.step()
            if body == "left" and step.number == 3:
                break

    if body == "late":
        with pytest.warns(RuntimeWarning, match="5 gradients before this step were used by no step of an optimiser"):
            train()
        return
    with pytest.warns(RuntimeWarning, match="no step of this loop has changed a parameter of the module") as caught:
        train()
    assert len(caught) == 1 and caught[0].filename == __file__


def test_a_run_of_a_loop_is_not_resumed_without_it(tmp_path):
    for step in anyk.rounds(PROBLEM, "uncoded", simulated(), steps=2, out=tmp_path / "run"):
        step.model -= 0.1 * step.gradient
    with pytest.raises(BadInput, match=r"taken by the user's loop \(anyk.rounds, .* continue with its script"):
        anyk.resume(tmp_path / "run", problem=PROBLEM, steps=4)


@pytest.mark.parametrize("how", ["limit", "break", "error"])
def test_after_the_loop_running_statistics_are_right(how):
    X, y = samples()
    module = Nested()
    problem = anyk.problems.TorchProblem(module, nn.CrossEntropyLoss(), (X, y), held_out=(X, y))
    optimizer = torch.optim.Adam(module.parameters(), lr=0.05)
    loop = anyk.rounds(problem, "uncoded", simulated(), steps=25, into=module, evaluate="every=25")
    try:
        for step in loop:
            optimizer.step()
            if step.number == 20 and how != "limit":
                if how == "break":
                    break
                raise ZeroDivisionError
    except ZeroDivisionError:
        pass
    buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
    assert all(
        not module_part._forward_pre_hooks and not module_part._state_dict_pre_hooks for module_part in module.modules()
    )
    expected = dict(problem.module_at(loop.run.model).named_buffers())
    assert buffers.keys() == expected.keys()
    assert all(torch.equal(buffers[name], expected[name]) for name in expected)
    right = (module.eval()(X).argmax(1) == y).double().mean().item()
    assert right == loop.run.metric["value"] > 0.8


def test_running_statistics_that_cannot_be_computed_are_refused():
    module = nn.Sequential(nn.BatchNorm1d(3, affine=False), nn.Linear(3, 2, bias=False)).double()
    with pytest.raises(
        BadInput, match="has 1 batch norms with running statistics, which only a TorchProblem can compute"
    ):
        anyk.rounds(PROBLEM, "uncoded", simulated(), into=module)
    X, y = samples()
    problem = anyk.problems.TorchProblem(Nested(), nn.CrossEntropyLoss(), (X, y))
    other = Nested()
    other.first[0], other.first[1] = other.first[0], nn.BatchNorm1d(6, track_running_stats=False).double()
    with pytest.raises(BadInput, match="the module's batch norms are not the problem's"):
        anyk.rounds(problem, "uncoded", simulated(), into=other)
