"""What a run was made of must be what it is resumed and replayed with."""

import numpy as np
import pytest

import anyk
from anyk.clusters import Simulated
from anyk.problems import data_digest
from anyk.training.config import read_config


def table(path, shift=0.0):
    X = np.arange(120.0).reshape(40, 3) % 7.0
    np.savez(path, X=X, y=(X[:, 0] > 3).astype(float) + shift)


def test_changed_data_is_refused_by_name(tmp_path):
    table(tmp_path / "mine.npz")
    problem = anyk.problems.from_data("file", file=tmp_path / "mine.npz")
    anyk.train(
        problem, "uncoded", Simulated(4, delays=anyk.delays.Exponential(1.0)), steps=3, out=tmp_path / "run"
    ).close()
    assert read_config(tmp_path / "run")["digests"]["data"] == data_digest(problem)
    anyk.resume(tmp_path / "run", steps=4).close()
    assert anyk.replay(tmp_path / "run").model
    table(tmp_path / "mine.npz", shift=1.0)  # other labels, the same classes: what is trained on is the same
    assert anyk.replay(tmp_path / "run").model
    X = np.ones((40, 3))
    X[::2] = 0.5
    np.savez(tmp_path / "mine.npz", X=X, y=np.arange(40) % 2)
    for again in (lambda: anyk.resume(tmp_path / "run", steps=6), lambda: anyk.replay(tmp_path / "run")):
        with pytest.raises(
            anyk.BadInput, match=r"mine.npz' has changed since the run '.*run' began: the data's digest"
        ):
            again()
    with pytest.raises(anyk.BadInput, match="has changed since the run"):
        anyk.resume(tmp_path / "run", problem=anyk.problems.from_data("synthetic:rows=60,features=3"), steps=6)


def test_a_changed_trace_is_refused_by_name(tmp_path):
    np.savez(tmp_path / "t.npz", seconds=np.ones((5, 4)))
    problem = anyk.problems.from_data("synthetic:rows=60,features=3")
    delays = f"trace:{tmp_path}/t.npz"
    cluster = anyk.cluster("simulated", workers=4, delays=delays)
    anyk.train(problem, "uncoded", cluster, steps=3, out=tmp_path / "run").close()
    np.savez(tmp_path / "t.npz", seconds=np.full((5, 4), 2.0))
    with pytest.raises(anyk.BadInput, match=r"the trace '.*t\.npz' has changed since the run"):
        anyk.resume(tmp_path / "run", steps=6)
    assert anyk.replay(tmp_path / "run").model  # which takes times from the log


def test_a_digest_is_of_the_data_and_not_of_what_was_done_with_it():
    torch = pytest.importorskip("torch")
    X, y = torch.randn(40, 3), torch.arange(40) % 2

    def problem(X, dataset=False):
        data = torch.utils.data.TensorDataset(X, y) if dataset else (X, y)
        torch.manual_seed(0)
        return anyk.problems.TorchProblem(torch.nn.Linear(3, 2), torch.nn.CrossEntropyLoss(), data, held_out=(X, y))

    other = X.clone()
    other[7, 1] += 1e-6
    for dataset in (False, True):
        first = problem(X, dataset)
        before = data_digest(first)
        anyk.train(first, "uncoded", Simulated(4), steps=2, optimizer=anyk.optimizers.GD())
        assert before == data_digest(first) == data_digest(problem(X.clone(), dataset)) is not None
        assert before != data_digest(problem(other, dataset))
    many = anyk.problems.ManyProblems([problem(X), problem(other)])
    assert data_digest(many) not in (None, data_digest(anyk.problems.ManyProblems([problem(other), problem(X)])))

    class Silent(anyk.testing.Squares):
        def digest(self):
            return None

    assert data_digest(Silent(4)) is None
    assert data_digest(anyk.testing.Squares(4)) != data_digest(anyk.testing.Squares(5))


def test_a_problem_that_keeps_arrays_of_its_own_can_go_on(tmp_path):
    class Keeping(anyk.testing.Squares):
        def loss(self, w):
            self.last = w.copy()
            return super().loss(w)

    problem = Keeping(4)
    anyk.train(
        problem, "uncoded", Simulated(4, delays=anyk.delays.Exponential(1.0)), steps=3, out=tmp_path / "run"
    ).close()
    anyk.resume(tmp_path / "run", problem=problem, steps=4).close()
    anyk.resume(tmp_path / "run", problem=Keeping(4), steps=5).close()
    with pytest.raises(anyk.BadInput, match="the problem's data have changed since"):
        anyk.resume(tmp_path / "run", problem=Keeping(5), steps=6)
