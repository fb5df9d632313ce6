"""Progress in a notebook: one output a run, renewed in place; IPython is not imported elsewhere."""

import re
import sys
from types import ModuleType, SimpleNamespace

import pytest

import anyk
from anyk.runs import live_progress

PROBLEM = anyk.problems.from_data("synthetic:rows=60,features=4")


@pytest.fixture
def cell(monkeypatch):
    """What the outputs of a cell of a notebook with IPython's interface were, in turn, by output."""
    outputs = []

    def display(page, *, display_id):
        assert display_id
        outputs.append([page])
        return SimpleNamespace(update=outputs[-1].append)

    ipython, display_module = ModuleType("IPython"), ModuleType("IPython.display")
    ipython.get_ipython = lambda: SimpleNamespace(kernel=object())
    display_module.HTML, display_module.display = str, display
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display_module)
    monkeypatch.setattr(live_progress, "_CELL", 0.0)
    return outputs


def test_each_run_of_a_race_has_an_output_to_its_last_step(cell, capfd):
    race = anyk.race(PROBLEM, ["uncoded", "frc:load=2"], workers=4, cluster="simulated", delays="exp:mean=1",
                     steps=5, progress=True)  # fmt: skip
    assert capfd.readouterr().err == ""  # all of it is in the cell
    assert len(cell) == 2
    for run, pages in zip(race.runs, cell, strict=True):
        steps = [re.search(r"step (\d+)/5", page) for page in pages]
        assert [int(one[1]) for one in steps if one] == sorted(int(one[1]) for one in steps if one)
        assert re.search(rf"step 5/5  loss .* of 4 workers on time  .* s  {run.config.strategy}", pages[-1])
        assert '<rect width="320.0"' in pages[-1] and "<polyline" in pages[-1]
        points = re.search(r'points="([^"]*)"', pages[-1])[1].split()
        assert len(points) == 5 and float(points[-1].split(",")[0]) == 320.0


def test_a_terminal_of_ipython_is_no_notebook(cell, capfd):
    sys.modules["IPython"].get_ipython = lambda: object()
    anyk.train(PROBLEM, "uncoded", "simulated", workers=2, steps=2, progress=True)
    assert cell == []
