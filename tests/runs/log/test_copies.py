"""Where the surroundings fail, commands say so, and call no whole run damaged."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import anyk
from anyk.base.errors import Surroundings
from anyk.cli import main
from anyk.runs.folder import checkpoints
from anyk.runs.log import copies

COMMANDS = (["verify"], ["show"], ["replay"], ["resume", "--steps", "9"], ["report", "--out", "page.html"])


@pytest.fixture
def run(tmp_path: Path) -> Path:
    problem = anyk.problems.from_data("synthetic:rows=60,features=4")
    anyk.train(problem, "frc:load=2", "simulated", workers=4, steps=4, out=tmp_path / "run").close()
    return tmp_path / "run"


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
@pytest.mark.parametrize("lacking", ["room", "folder"])
def test_no_place_for_copies_is_no_damage(
    command: list[str], lacking: str, run: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    if lacking == "room":
        usage = shutil.disk_usage(run)._replace(free=10)
        monkeypatch.setattr(copies.shutil, "disk_usage", lambda _: usage)
    else:
        monkeypatch.setenv("TMPDIR", str(tmp_path / "none"))
        monkeypatch.setattr(copies.tempfile, "tempdir", str(tmp_path / "none"))
    before = {file.name: file.read_bytes() for file in run.iterdir()}
    name, *options = command
    done = CliRunner().invoke(main, [name, str(run), *options])
    assert done.exit_code == 2, done.output
    assert "which cannot be written to" in done.output and "TMPDIR" in done.output
    assert "damage" not in done.output.lower()
    assert {file.name: file.read_bytes() for file in run.iterdir()} == before
    monkeypatch.undo()
    assert anyk.verify(run).whole


@pytest.mark.slow
def test_small_files_only_are_no_damage(run: Path) -> None:
    """A limit on the size of files, as of ``ulimit -f``, lets the log be read and its copy not be written."""
    for name in ("verify", "show", "replay"):
        script = f"ulimit -f 8; exec {sys.executable} -m anyk {name} {run}"
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=250, check=False)
        assert done.returncode == 2, done.stderr + done.stdout
        assert "File too large" in done.stderr and "amage" not in done.stderr + done.stdout


def test_a_newest_checkpoint_that_cannot_be_read_now_is_kept(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    anyk.resume(run, steps=8).close()  # so that there is an older one

    def refused(path: Path) -> None:
        raise OSError(24, os.strerror(24))

    monkeypatch.setattr(checkpoints, "open_plain", refused)
    with pytest.raises(Surroundings, match="checkpoint.safetensors' cannot be read .Too many open files"):
        anyk.resume(run, steps=12)
    monkeypatch.undo()
    assert not (run / "checkpoint.safetensors.damaged").exists()
    anyk.resume(run, steps=12).close()
    assert anyk.verify(run).whole


def test_a_checkpoint_is_read_from_the_file_that_was_checked(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the check and the reading another file takes its name, or a link."""
    opened = checkpoints.open_plain
    checkpoint = checkpoints.load(run)
    assert checkpoint is not None

    def swapped(path: Path) -> object:
        file = opened(path)
        path.unlink()
        path.symlink_to("/dev/null")
        return file

    monkeypatch.setattr(checkpoints, "open_plain", swapped)
    loaded = checkpoints.load(run)
    assert loaded is not None and loaded.digest == checkpoint.digest
