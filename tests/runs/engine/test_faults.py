"""Errors in a gradient: once or for good, in one worker or in most."""

import os

import numpy as np
import pytest

import anyk
from anyk.clusters import Processes, Simulated
from anyk.delays import Constant
from anyk.protocol import Failed, Lost
from anyk.runs.engine.counts import ENDINGS
from anyk.runs.engine.faults import Faults
from anyk.testing import Squares


class Once:
    """Squares, whose partition 1 raises at its second call on a worker that is not lost since."""

    def __init__(self, of):
        self.of, self.calls = of, 0
        self.sizes, self.dimension, self.dtype = of.sizes, of.dimension, of.dtype

    def load(self, partitions):
        pass

    def support(self, partition):
        return None

    def partial_gradient(self, partition, w, rows=None, /):
        self.calls += partition == 1 and os.environ.get("ANYK_WORKER", "1") == "1"
        if self.calls == 2:
            self.calls += 1
            raise OSError("the disk was away for a moment")
        return self.of.partial_gradient(partition, w)


class Flaky(Squares):
    def split(self, partitions, shares=None):
        return Once(super().split(partitions, shares))


@pytest.mark.slow
@pytest.mark.parametrize("cluster", [Simulated, Processes])
@pytest.mark.parametrize("spec", ["uncoded", "dpsgd", "async"])
def test_an_error_that_happens_once_is_asked_again(spec, cluster):
    problem = Flaky(4)
    run = anyk.train(problem, spec, cluster(4, delays=Constant(0.01)), optimizer=anyk.optimizers.GD(lr=0.1), steps=12)
    assert run.steps == 12
    assert run.ledger["unusable"] == 1
    (named,) = [note["text"] for note in run.notes if note["kind"] == "set aside"]
    assert "worker 1" in named
    assert "OSError: the disk was away for a moment" in named
    if spec == "uncoded":
        plain = anyk.train(Squares(4), spec, Simulated(4), optimizer=anyk.optimizers.GD(lr=0.1), steps=12)
        assert np.allclose(run.model, plain.model, rtol=1e-12)


@pytest.mark.parametrize("spec", ["frc:load=2", "async", "k-batch-async:k=2", "dpsgd", "ad-psgd", "pasgd:tau=2,wait=3"])
def test_a_worker_that_always_fails_is_given_up_by_name(spec):
    """Ten times in a row; the others go on, and what they decide replays."""
    problem = Squares(4, faults={-2: "raise"})
    if spec == "frc:load=2":  # two workers have partition 1, and both fail
        spec = "frc:load=2,wait=2"
    run = anyk.train(problem, spec, Simulated(4, delays=Constant(0.01)), optimizer=anyk.optimizers.GD(lr=0.1), steps=60)
    assert run.steps == 60
    gone = [note["text"] for note in run.notes if note["kind"] == "given up"]
    assert gone
    assert "worker 1: 10 unusable messages in a row, the last: ValueError: partition 1 is broken" in gone[-1]
    assert run.ledger["dispatched"] == sum(run.ledger[name] for name in ENDINGS)
    assert anyk.replay(run, problem=problem, optimizer=anyk.optimizers.GD(lr=0.1)).model


def test_an_error_on_most_workers_ends_the_run_with_its_text():
    for spec in ("uncoded", "async", "dpsgd", "frc:load=2"):
        problem = Squares(4, faults={-1: "raise", -2: "raise", -3: "raise"})
        with pytest.raises(
            anyk.RunFailed, match="step .: most replies cannot be used; worker .: ValueError: partition"
        ):
            anyk.train(
                problem, spec, Simulated(4, delays=Constant(0.01)), optimizer=anyk.optimizers.GD(lr=0.1), steps=9
            )


class Unreadable:
    """A map-style data set, one item of which only the driver can read."""

    def __init__(self, samples=40):
        self.samples = samples

    def __len__(self):
        return self.samples

    def __getitem__(self, i):
        if i == 7 and "ANYK_WORKER" in os.environ:
            raise OSError("no such picture: 7.png")
        return np.full(3, float(i % 5), dtype=np.float32), np.int64(i % 2)


@pytest.mark.slow
def test_an_item_that_cannot_be_read_is_named():
    torch = pytest.importorskip("torch")
    problem = anyk.problems.TorchProblem(torch.nn.Linear(3, 2), torch.nn.CrossEntropyLoss(), Unreadable())
    cause = "item 7 of the data set cannot be read: OSError: no such picture: 7.png"
    variable = r"environment variable 'ANYK_WORKER' is '\1' on the worker and not set on the driver"
    with pytest.raises(anyk.RunFailed, match=rf"worker ([0-3]) .* \({cause} \(.*\)\): {variable}"):  # whoever is first
        anyk.train(problem, "frc:load=2", Processes(4), optimizer=anyk.optimizers.GD(lr=0.1), steps=3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ANYK_WORKER", "0")  # here, too
        with pytest.raises(anyk.BadInput, match=f"^{cause}"):
            anyk.problems.TorchProblem(torch.nn.Linear(3, 2), torch.nn.CrossEntropyLoss(), Unreadable(9))


def test_a_first_gradient_that_fails_can_be_spared():
    """Of two replicas of a partition one worker cannot compute it, from the first gradient on."""
    problem = Squares(4, faults={})
    problem.split = lambda m, shares=None: Away(Squares.split(problem, m))
    run = anyk.train(problem, "frc:load=2", Processes(4), optimizer=anyk.optimizers.GD(lr=0.1), steps=12)
    assert run.steps == 12


class Away(Once):
    def partial_gradient(self, partition, w, rows=None, /):
        if os.environ["ANYK_WORKER"] == "1":
            raise OSError("not on this machine")
        return self.of.partial_gradient(partition, w)


def judged(workers, failures):
    """What faults of a run come to: for each (worker, reason) the event or the sentence that ends the run."""
    faults, results = Faults(workers), []
    for worker, reason in failures:
        try:
            results.append(faults.judge(Failed(1.0, worker, 0, 0, reason), 7))
        except anyk.RunFailed as error:
            return [*(type(result) for result in results), str(error)]
    return [type(result) for result in results]


@pytest.mark.parametrize("workers", [1, 2, 3, 6, 7])
def test_faults_of_more_than_half_of_the_workers_end_the_run(workers):
    half = workers // 2
    alike = [(worker, "not finite: 3 of 5 numbers") for worker in range(half + 1)]
    *before, reason = judged(workers, alike)
    assert before == [Failed] * half and reason.startswith("diverged at step 7: most replies are not finite")
    assert judged(workers, alike[:half]) == [Failed] * half
    raised = [(worker, f"OSError: disk {worker}") for worker in range(max(half + 1, 2))]
    if workers > 1:
        *before, reason = judged(workers, raised)
        assert before == [Failed] * half and reason.startswith("step 7: most replies cannot be used; worker")
        assert judged(workers, [*raised[:half], (half, "ValueError: 1")]) == [Failed] * (half + 1)


def test_workers_that_were_given_up_do_not_speak_against_others():
    gone = [(worker, f"OSError: disk {worker}") for worker in (0, 1) for _ in range(10)]
    assert judged(4, [*gone, (2, "OSError: disk 2")]) == [*[*[Failed] * 9, Lost] * 2, Failed]
    assert judged(5, [*gone, *((2, "not finite") for _ in range(9)), (3, "not finite")])[-2:] == [Failed, Failed]


def test_the_tenth_fault_in_a_row_is_the_loss_of_its_worker():
    assert judged(1, [(0, "OSError: disk")] * 10) == [Failed] * 9 + [Lost]
    assert judged(3, [(0, "not finite")] * 10) == [Failed] * 9 + [Lost]
    assert judged(3, [(0, "differs from the message of worker 2")] * 12) == [Failed] * 12  # it may be worker 2
