"""Callbacks on the command line: by spec, by the function that makes them, kept in run folders and made again."""

import sys

import pytest
from click.testing import CliRunner

import anyk
from anyk.base import named
from anyk.callbacks import callback
from anyk.cli import main
from anyk.runs.folder.config import read_config

MINE = """
import pathlib

import anyk

class Counting(anyk.Callback):
    steps = 0

    def on_step(self, info):
        self.steps += 1
        pathlib.Path("count").write_text(str(self.steps))

    def state_dict(self):
        return {"steps": self.steps}

    def load_state_dict(self, state):
        self.steps = state["steps"]

def make():
    return Counting()

def none():
    return 3
"""
TRAIN = "train --data synthetic:rows=60,features=3 --strategy uncoded --cluster simulated --workers 3 --quiet --steps 4"


def run(*words):
    return CliRunner().invoke(main, " ".join(words).split())


def forget():
    """As a process has it that has run none of the test's files."""
    named._LOADED.clear()
    sys.modules.pop("anyk_file_mine", None)


@pytest.mark.slow
def test_callbacks_are_made_again_if_the_folder_is_trusted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(MINE)
    more = "--callback mine.py:make --callback early-stopping:90 --callback checkpoint:models,every=2"
    assert run(TRAIN, "--out run", more).exit_code == 0
    models = tmp_path / "models"
    config = read_config(tmp_path / "run")
    assert config.callbacks == [
        f"{tmp_path / 'mine.py'}:make", "early-stopping:patience=90", f"checkpoint:folder={models},every=2",
    ]  # fmt: skip
    assert str(tmp_path / "mine.py") in config.digests.code
    resume = "resume run --quiet --steps"
    refused = run(resume, "6")
    assert refused.exit_code == 2 and "names code to run, the callback" in refused.output
    assert run(resume, "6", "--trust").exit_code == 0
    assert (tmp_path / "count").read_text() == "6" and len(list(models.iterdir())) == 3
    (tmp_path / "mine.py").write_text(MINE + "# changed")
    forget()
    refused = run(resume, "8", "--trust")
    assert refused.exit_code == 2 and "has changed since the run began" in refused.output
    options = "--callback mine.py:make --callback checkpoint:models,every=2"
    assert run(resume, "8", options).exit_code == 0 and (tmp_path / "count").read_text() == "8"
    assert run(resume, "9", "--trust").exit_code == 0  # as it was named again
    assert run(resume, "9", "--callback log").exit_code == 0 and read_config(tmp_path / "run").callbacks == ["log"]
    assert run(resume, "10").exit_code == 0  # which neither is code nor writes anywhere


@pytest.mark.slow
def test_a_place_that_a_folder_names_is_not_written_to(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    race = "race --strategy uncoded --data synthetic:rows=60,features=3 --cluster simulated --workers 3 --quiet --steps 2 --page none"
    assert run(race, "--out race --callback checkpoint:models,every=1").exit_code == 0
    refused = run("resume race --quiet --steps 4")
    assert refused.exit_code == 2 and "which writes to a place that somebody else may have chosen" in refused.output
    assert len(list((tmp_path / "models/uncoded").iterdir())) == 2
    assert run("resume race --quiet --trust --steps 4").exit_code == 0
    assert len(list((tmp_path / "models/uncoded").iterdir())) == 4


@pytest.mark.parametrize(
    "spec, sentence",
    [
        ("early-stoping:patience=5", "no callback 'early-stoping'; did you mean 'early-stopping'"),
        ("early-stopping:patients=5", "has no key 'patients'; did you mean 'patience'"),
        ("early-stopping:patience=0", "patience must be a whole number of at least 1, got 0"),
        ("checkpoint:every=2", "callback 'checkpoint' needs folder="),
        ("nowhere.py:make", "no file 'nowhere.py' for the callback"),
        ("mine.py:none", "'mine.py:none' gave int, which is not a callback"),
        ("mine.py:Counting", "no callback"),
        ("mine.py:mak", "did you mean 'make'"),
    ],
)
def test_wrong_callbacks_get_a_sentence(tmp_path, monkeypatch, spec, sentence):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(MINE)
    if spec == "mine.py:Counting":  # a class without arguments makes one, too
        assert callback(spec).steps == 0
        return
    with pytest.raises(anyk.BadInput, match=sentence):
        callback(spec)
