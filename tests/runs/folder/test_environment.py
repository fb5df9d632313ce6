"""A run folder says where it was made, and resuming it elsewhere is noted."""

import subprocess
import sys
from types import ModuleType

import numpy as np
import pytest

import anyk
from anyk.runs.folder.config import NAME, read_config, write_plain
from anyk.runs.folder.environment import environment

PROBLEM = anyk.problems.from_data("synthetic:rows=60,features=4")


def fleet():
    return anyk.clusters.Simulated(4, seed=1)


def git(folder, *words):
    who = ["-c", "user.name=someone", "-c", "user.email=someone@example.org"]
    return subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


@pytest.mark.parametrize("script", [True, False])
def test_the_commit_is_the_scripts_or_the_current_folders(tmp_path, monkeypatch, script):
    repository = tmp_path / "repository"
    repository.mkdir()
    (repository / "train.py").write_text("")
    git(repository, "init", "-q")
    main = ModuleType("__main__")
    if script:
        main.__file__ = str(repository / "train.py")
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.chdir(tmp_path if script else repository)
    assert "commit" not in environment()  # nothing has been committed
    git(repository, "add", ".")
    git(repository, "commit", "-q", "-m", "first")
    head = git(repository, "rev-parse", "HEAD")
    assert environment()["commit"] == head
    (repository / "train.py").write_text("changed")
    assert environment()["commit"] == f"{head}-dirty"


def test_without_a_repository_there_is_no_commit(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "__main__", ModuleType("__main__"))
    monkeypatch.chdir(tmp_path)
    assert "commit" not in environment()


def test_resuming_with_another_major_version_is_noted(tmp_path):
    uninterrupted = anyk.train(PROBLEM, "frc:load=2", fleet(), steps=12)
    anyk.train(PROBLEM, "frc:load=2", fleet(), steps=6, out=tmp_path / "run").close()
    config = read_config(tmp_path / "run").plain()
    assert config["environment"] == environment()
    config["environment"] |= {"numpy": "1.26.4", "host": "elsewhere"}
    write_plain(tmp_path / "run" / NAME, config)
    with pytest.warns(RuntimeWarning, match=rf"numpy {np.__version__} \(was 1\.26\.4\): from here on bits may differ"):
        run = anyk.resume(tmp_path / "run", steps=12)
    assert np.array_equal(run.model, uninterrupted.model)
    assert [note["kind"] for note in run.notes] == ["resumed"]
    assert "host" in run.notes[0]["text"] and run.notes[0]["time"] == uninterrupted.history["seconds"][6]


def test_resuming_where_nothing_has_changed_notes_nothing(tmp_path):
    anyk.train(PROBLEM, "uncoded", fleet(), steps=3, out=tmp_path / "run").close()
    run = anyk.resume(tmp_path / "run", steps=6)
    assert run.notes == []
