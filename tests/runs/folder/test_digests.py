"""What a run was made of must be what it is resumed and replayed with."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

import anyk
from anyk.base.specs import File
from anyk.clusters import Simulated
from anyk.problems import data_digest
from anyk.runs.folder.config import read_config


def table(path, shift=0.0):
    X = np.arange(120.0).reshape(40, 3) % 7.0
    np.savez(path, X=X, y=(X[:, 0] > 3).astype(float) + shift)


def test_changed_data_is_refused_by_name(tmp_path):
    table(tmp_path / "mine.npz")
    problem = anyk.problems.from_data("file", file=tmp_path / "mine.npz")
    anyk.train(
        problem, "uncoded", Simulated(4, delays=anyk.delays.Exponential(1.0)), steps=3, out=tmp_path / "run"
    ).close()
    assert read_config(tmp_path / "run").digests.data == data_digest(problem)
    anyk.resume(tmp_path / "run", steps=4).close()
    assert anyk.replay(tmp_path / "run").model
    table(tmp_path / "mine.npz", shift=1.0)  # other labels, the same classes: what is trained on is the same
    assert anyk.replay(tmp_path / "run").model
    X = np.ones((40, 3))
    X[::2] = 0.5
    np.savez(tmp_path / "mine.npz", X=X, y=np.arange(40) % 2)
    for action in (lambda: anyk.resume(tmp_path / "run", steps=6), lambda: anyk.replay(tmp_path / "run")):
        with pytest.raises(
            anyk.BadInput, match=r"mine.npz' has changed since the run '.*run' began \(the data's digest"
        ):
            action()
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


@pytest.mark.slow
def test_a_digest_is_of_the_data_and_not_of_their_use():
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
    with pytest.raises(anyk.BadInput, match="the problem's data set has changed since"):
        anyk.resume(tmp_path / "run", problem=Keeping(5), steps=6)


class Remembering(anyk.testing.Squares):
    """A problem of somebody's own, with held-out data, that keeps what it computed last."""

    def __init__(self, samples):
        super().__init__(samples)
        self.held_out, self.last_losses, self.requests = np.arange(5.0), np.zeros(3), np.zeros(1)

    def loss(self, w):
        self.last_losses = np.append(self.last_losses[1:], super().loss(w))
        return float(self.last_losses[-1])

    def metrics(self, w):
        self.requests += 1.0
        return {"distance": float(np.abs(self.held_out - w[0]).mean())}


@pytest.mark.parametrize("attribute", [None, "held_out", "targets"])
def test_data_that_change_in_place_are_noticed_later(attribute, tmp_path):
    problem = Remembering(4)
    problem.targets = np.ones(7)  # of which no method is known to read it
    anyk.train(problem, "uncoded", Simulated(4), steps=3, optimizer="gd:lr=0.1", out=tmp_path / "run").close()
    assert problem.requests.any() and problem.last_losses.any()
    if attribute is None:
        anyk.resume(tmp_path / "run", problem=problem, steps=5).close()
        return
    getattr(problem, attribute)[-1] += 1e-3
    with pytest.raises(anyk.BadInput, match="the problem's data set has changed since"):
        anyk.resume(tmp_path / "run", problem=problem, steps=5)
    anyk.train(problem, "uncoded", Simulated(4), steps=3, optimizer="gd:lr=0.1", out=tmp_path / "other").close()
    anyk.resume(tmp_path / "other", problem=problem, steps=5).close()


def ring(path, turn=0.25):
    matrix = np.eye(4) * (1 - 2 * turn) + turn * (np.roll(np.eye(4), 1, axis=0) + np.roll(np.eye(4), -1, axis=0))
    np.savetxt(path, matrix, delimiter=",")


NAMING = ["dpsgd:graph=(file:w.csv)", "dpsgd:graph=file:w.csv,tau=2", "matcha:graph=(file:file=w.csv),budget=0.5",
          "matrix:file=w.csv,wait=3"]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("made", [str, lambda spec: anyk.strategies.strategy(spec, workers=4)], ids=["spec", "object"])
@pytest.mark.parametrize("spec", NAMING)
def test_a_matrix_is_found_from_any_folder_if_unchanged(spec, made, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ring("w.csv")
    problem = anyk.problems.from_data("synthetic:rows=60,features=3")
    fleet = anyk.cluster("simulated", workers=4, delays="exp:mean=1")
    anyk.train(problem, made(spec), fleet, steps=3, optimizer=anyk.optimizers.GD(), out="run").close()
    (tmp_path / "else").mkdir()
    monkeypatch.chdir(tmp_path / "else")
    config = read_config(tmp_path / "run")
    assert str(tmp_path / "w.csv") in config.strategy and list(config.digests.files) == [f"{tmp_path}/w.csv"]
    anyk.resume(tmp_path / "run", steps=5).close()
    assert anyk.replay(tmp_path / "run").model
    assert any(one.name == "files" and one.whole for one in anyk.verify(tmp_path / "run").checks)
    ring(tmp_path / "w.csv", turn=0.1)
    for action in (lambda: anyk.resume(tmp_path / "run", steps=6), lambda: anyk.replay(tmp_path / "run")):
        with pytest.raises(anyk.BadInput, match=r"w.csv' has changed since the run '.*run' began \(SHA-256"):
            action()
    assert any(one.name == "files" and not one.whole for one in anyk.verify(tmp_path / "run").checks)


def test_a_race_keeps_where_its_matrices_and_traces_are(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ring("w.csv")
    np.savez("t.npz", seconds=np.ones((5, 4)))
    np.savez("d.npz", X=np.arange(120.0).reshape(40, 3) % 7.0, y=np.arange(40) % 2)
    problem = anyk.problems.from_data("file", file="d.npz")
    how = {"workers": 4, "cluster": "simulated", "delays": "trace:t.npz", "steps": 3, "out": "race"}
    anyk.race(problem, ["dpsgd:graph=(file:w.csv)"], optimizer=anyk.optimizers.GD(), **how).close()
    (tmp_path / "else").mkdir()
    monkeypatch.chdir(tmp_path / "else")
    ring("w.csv", turn=0.1)  # another of that name
    more = anyk.resume_race(tmp_path / "race", add=["matcha:graph=(file:w.csv)"])
    assert [run.steps for run in more.runs] == [3, 3] and len(more.config.digests.files) == 2
    more.close()
    ring(tmp_path / "w.csv", turn=0.1)
    with pytest.raises(anyk.BadInput, match=r"w.csv' has changed since the race"):
        anyk.resume_race(tmp_path / "race", add=["uncoded"])


def test_files_are_found_in_specs_inside_specs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    spec = anyk.strategies.resolve_paths("compressed:of=(dpsgd:graph=(file:w.csv),tau=2),by=(top-k:share=0.01)")
    inner = f"dpsgd:graph=(file:file={tmp_path}/w.csv),tau=2"
    assert spec == f"compressed:of=({inner}),by=(top-k:share=0.01)"
    for same in (spec, "frc:load=3,wait=11", "frc:load=3,wait=(4|0.2s)&2", "k-sync", "nobody:knows=w.csv"):
        assert anyk.strategies.resolve_paths(same) == same
    assert anyk.delays.resolve_paths("trace:t.npz,by=round") == f"trace:file={tmp_path}/t.npz,by=round"


def test_names_of_files_that_a_spec_cannot_hold_are_refused(tmp_path, monkeypatch):
    (tmp_path / "a(b").mkdir()
    monkeypatch.chdir(tmp_path / "a(b")
    ring("w.csv")
    with pytest.raises(anyk.BadInput, match="a spec cannot hold the names of files in 'file:w.csv'"):
        anyk.strategies.resolve_paths("dpsgd:graph=(file:w.csv)")
    (tmp_path / "a, b").mkdir()
    monkeypatch.chdir(tmp_path / "a, b")
    ring("w.csv")
    spec = anyk.strategies.resolve_paths("dpsgd:graph=(file:w.csv),tau=2")
    assert spec == f"dpsgd:graph=(file:file=({tmp_path}/a, b/w.csv)),tau=2"
    assert anyk.strategies.strategy(spec, workers=4).spec == spec


@pytest.mark.slow
def test_files_of_a_plug_ins_law_are_found_from_any_folder(tmp_path, monkeypatch):
    """Alone and as the latency of a link, given as a spec or as a value, in a run and in a race."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(anyk.delays.registry, "entries", dict(anyk.delays.registry.entries))

    @anyk.delays.register("written")
    @dataclass(frozen=True)
    class Written(anyk.delays.DelayModel):
        file: File
        name: ClassVar[str] = "written"

        def seconds(self, uniforms, worker):
            return np.full_like(uniforms, float(Path(self.file).read_text()))

    Path("s.txt").write_text("0.25")
    written = f"written:file={tmp_path}/s.txt"
    assert anyk.delays.resolve_paths("link:latency=0.5,links=serial") == "link:latency=0.5,links=serial"
    problem = anyk.problems.from_data("synthetic:rows=60,features=3")
    asked = {
        "written:s.txt": written,
        "link:latency=(written:s.txt),bandwidth=1e9": f"link:latency=({written}),bandwidth=",
    }
    for index, (spec, expected) in enumerate(asked.items()):
        lines = spec if index else anyk.delays.communication(spec)
        how = {
            "workers": 3,
            "communication": lines,
            "steps": 2,
            "optimizer": anyk.optimizers.GD(),
            "out": f"run{index}",
        }
        anyk.train(problem, "uncoded", "simulated", **how).close()
        assert read_config(tmp_path / f"run{index}").communication.startswith(expected)
        anyk.race(problem, ["uncoded"], cluster="simulated", **how | {"out": f"race{index}"}).close()
    (tmp_path / "else").mkdir()
    monkeypatch.chdir(tmp_path / "else")
    for index in (0, 1):
        with (
            anyk.resume(tmp_path / f"run{index}", steps=4) as run,
            anyk.resume_race(tmp_path / f"race{index}", steps=4) as race,
        ):
            assert run.seconds == race.runs[0].seconds == pytest.approx(1.0, abs=1e-5)
