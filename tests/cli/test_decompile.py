"""The command that shows a JAX function as Python, and what is said where a distribution beside anyk is missing."""

from __future__ import annotations

import json
import sys

import jax.numpy as jnp
import numpy as np
import pytest
from click.testing import CliRunner

import anyk
from anyk.base.errors import MissingPackage
from anyk.cli import main
from readjax import Source

pytestmark = pytest.mark.slow

X = np.arange(12, dtype=np.float32).reshape(3, 4) / 10
W = np.ones(4, np.float32)


MODULE = """
import jax
import jax.numpy as jnp

def energy(x, w):
    y = x @ w
    return jnp.sum(y**2)

number = 3
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "my_energy.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("my_energy", None)


@pytest.mark.parametrize("place", ["my_energy", "my_energy.py"])
def test_the_command(folder, place):
    run = CliRunner().invoke(main, ["decompile", f"{place}:energy", "--args", "f32[3,4],f32[4]", "--target", "numpy"])
    assert run.exit_code == 0, run.output
    assert "y = x @ w  # f32[3]" in run.output
    assert Source(run.output).function()(X, W) == pytest.approx(float(jnp.sum((X @ W) ** 2)))


def test_the_command_writes_gradients_to_files(folder):
    line = [
        "decompile",
        "my_energy:energy",
        "--args",
        " f32[3, 4] , f32[4]",
        "--grad",
        "-o",
        "grad.py",
        "--json",
        "grad.json",
    ]
    run = CliRunner().invoke(main, line)
    assert run.exit_code == 0, run.output
    source = Source((folder / "grad.py").read_text())
    np.testing.assert_allclose(source.function()(X, W), 2 * np.outer(X @ W, W), rtol=1e-6)
    assert json.loads((folder / "grad.json").read_text())["digest"] == source.digest


@pytest.mark.parametrize(("words", "reason"), [
    (["my_energy", "--args", "f32[3]"], "module:function"),
    (["my_energy:force"], "has no function 'force'"),
    (["my_energy:number"], "has no function 'number'"),
    (["nowhere:f"], "'nowhere' cannot be imported"),
    (["nowhere.py:f"], "no file 'nowhere.py'"),
    (["my_energy:energy", "--args", "f32[3,4],float"], "argument types should look like f32"),
    (["my_energy:energy", "--args", "f32[3,4],f32[5]"], "cannot trace 'energy'"),
    (["my_energy:energy", "--args", "f32[3,4],f32[4]", "-o", "no/grad.py"], "cannot be written"),
])  # fmt: skip
def test_the_command_on_bad_input(folder, words, reason):
    run = CliRunner().invoke(main, ["decompile", *words])
    assert run.exit_code == 2
    assert reason in run.output
    assert "Traceback" not in run.output


def test_commands_name_the_distribution_that_is_missing(folder, monkeypatch):
    for module in [name for name in sys.modules if name.partition(".")[0] in ("readjax", "anyk_papers")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "readjax", None)  # importing it fails
    monkeypatch.setitem(sys.modules, "anyk_papers", None)
    for words, install in (
        (["decompile", "my_energy:energy", "--args", "f32[3,4],f32[4]"], "pip install ./decompile"),
        (["reproduce"], "pip install ./papers"),
        (["reproduce", "--all"], "pip install ./papers"),
    ):
        run = CliRunner().invoke(main, words)
        assert run.exit_code == 2 and install in run.output and "Traceback" not in run.output
    with pytest.raises(MissingPackage, match=r"JaxProblem\(workers='numpy'\) needs readjax.*pip install ./decompile"):
        anyk.problems.JaxProblem(lambda w, x: ((x @ w) ** 2).mean(), W, X, workers="numpy")
    run = anyk.train(
        anyk.problems.JaxProblem(lambda w, x: ((x @ w) ** 2).mean(), W, X),
        "uncoded",
        "simulated",
        workers=1,
        steps=1,
        lr=0.1,
    )
    assert run.steps == 1
