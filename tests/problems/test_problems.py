"""Problems named as file.py:function or module:function: made, sent to workers, resumed, and refused with a sentence."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
from click.testing import CliRunner

import anyk
from anyk.base.errors import BadInput
from anyk.cli import main
from anyk.problems import from_function, from_recipe

SCRIPT = """
import numpy as np
import anyk
import anyk.testing.problems
from beside_it import CENTRE

assert __name__ != "__main__"


class Own(anyk.testing.problems._SquarePartitions):
    def partial_gradient(self, partition, w, rows=None, /):
        return shifted(super().partial_gradient(partition, w, rows))


class Problem(anyk.testing.Squares):
    def split(self, partitions, shares=None):
        pieces = super().split(partitions, shares)
        pieces.__class__ = Own
        return pieces


def shifted(gradient):
    return gradient - CENTRE


def make_problem():
    return Problem(4)


def broken():
    raise KeyError("lost")


def nothing():
    return 7
"""


def run(*arguments):
    return CliRunner().invoke(main, list(arguments))


@pytest.fixture
def script(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    file = tmp_path / "my_script.py"
    file.write_text(SCRIPT)
    (tmp_path / "beside_it.py").write_text("CENTRE = 0.5\n")
    monkeypatch.setitem(sys.modules, "beside_it", None)
    monkeypatch.delitem(sys.modules, "beside_it")
    yield file
    for name in ("beside_it", "anyk_file_my_script"):
        sys.modules.pop(name, None)


@pytest.mark.slow
def test_a_files_problem_is_resumed_from_another_folder(script, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = str(tmp_path / "run")
    arguments = ("--problem", "my_script.py:make_problem", "--workers", "4", "--lr", "0.5", "--optimizer", "gd")
    result = run("train", *arguments, "--strategy", "frc:stragglers=1", "--steps", "3", "--out", folder, "--json", "-")
    assert result.exit_code == 0, result.output
    name = f"{script}:make_problem"
    assert json.loads(result.stdout)["data"] == name
    monkeypatch.chdir("/")
    resumed = run("resume", folder, "--steps", "8", "--problem", name)
    assert resumed.exit_code == 0, resumed.output
    assert "the same bits of model" in run("replay", folder, "--trust").output
    centres = anyk.testing.Squares(4).split(4).centres.mean(axis=0) + 0.5
    assert anyk.Run.open(folder).model == pytest.approx(centres * (1 - 0.5**8), abs=1e-12)
    raced = run("race", "--problem", name, "--workers", "4", "--cluster", "simulated", "--lr", "0.1", "--steps", "2",
                "--strategy", "uncoded", "--strategy", "frc:load=2", "--out", str(tmp_path / "race"))  # fmt: skip
    assert raced.exit_code == 0, raced.output
    assert "5 parameters" in raced.output


def test_a_modules_function_and_a_recipe(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "own_module.py").write_text("import anyk\n\ndef make():\n    return anyk.testing.Squares(3)\n")
    monkeypatch.chdir(tmp_path)
    problem = from_function("own_module:make")
    assert problem.recipe() == {"problem": "own_module:make"}
    assert np.array_equal(from_recipe(problem.recipe()).centres, problem.centres)
    sys.modules.pop("own_module")


def test_what_names_no_problem_is_said(script):
    (script.parent / "raises.py").write_text("1 / 0\n")
    bad = [
        ("my_script.py", "named as file.py:function or module:function, got 'my_script.py'"),
        ("nowhere.py:make", "no file 'nowhere.py' for the problem"),
        (f"{script}:make_problm", "has no function 'make_problm'; did you mean 'make_problem'?"),
        (f"{script}:np", "has no function 'np'"),
        (f"{script}:make_problem.of.nothing", "has no function 'make_problem.of.nothing'"),
        (f"{script}:broken", "failed: KeyError: 'lost'"),
        (f"{script}:nothing", "gave int, which is not a problem: it has no dimension"),
        (f"{script.parent}/raises.py:make", "failed: ZeroDivisionError: division by zero"),
        ("no_such_module:make", "cannot be imported: ModuleNotFoundError: No module named 'no_such_module'"),
    ]
    for name, sentence in bad:
        with pytest.raises(BadInput) as caught:
            from_function(name)
        assert sentence in str(caught.value), str(caught.value)
    for options, sentence in [
        (["--data", "digits"], "--problem brings its own data and model; omit --data"),
        (["--l2", "0.1"], "omit --l2"),
    ]:
        result = run("train", "--problem", f"{script}:make_problem", "--workers", "4", *options)
        assert result.exit_code == 2 and sentence in result.output, result.output
    rough = script.parent / "rough.py"
    rough.write_text(
        "import anyk\nclass Rough(anyk.testing.Squares):\n    smoothness = None\nmake = lambda: Rough(4)\n"
    )
    result = run("train", "--problem", f"{rough}:make", "--workers", "4")
    assert result.exit_code == 2 and "no default learning rate is known for this problem" in result.output, (
        result.output
    )
