"""``--supervise`` resumes a run whose process is killed, and nothing else."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

import anyk

pytestmark = pytest.mark.slow

# kills its own process at its 200th gradient, as often as the file beside it says
MORTAL = """
import os, signal
from pathlib import Path
import anyk

LIVES = Path(__file__).with_name("lives")

def make():
    problem = anyk.problems.from_data("synthetic:rows=120,features=6")
    count = [0]

    def partial_gradient(self, partition, w, rows=None):
        count[0] += 1
        if count[0] == 200 and int(LIVES.read_text()) > 0:
            LIVES.write_text(str(int(LIVES.read_text()) - 1))
            if LIVES.with_name("run").is_dir():  # as if it had died while it wrote a checkpoint
                LIVES.with_name("run").joinpath("checkpoint.safetensors.part").write_bytes(b"")
            os.kill(os.getpid(), signal.SIGKILL)
        return plain(self, partition, w) if rows is None else plain(self, partition, w, rows)

    kind = anyk.problems.LinearPartitions
    plain = kind.partial_gradient
    kind.partial_gradient = partial_gradient
    return problem
"""
RUN = ["--strategy", "frc:load=2", "--workers", "4", "--cluster", "simulated", "--delays", "exp:mean=1", "--quiet",
       "--evaluate", "none"]  # fmt: skip  # metrics import scikit-learn, which takes as long as the rest of a short run


def command(folder: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "anyk", "train", *RUN, "--out", str(folder), "--supervise", *arguments]


def train(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(folder, *arguments), capture_output=True, text=True, timeout=250, check=False)


def steps_logged(folder: Path) -> int:
    try:
        with contextlib.closing(sqlite3.connect(f"file:{folder / 'log.sqlite'}?mode=ro", uri=True)) as log:
            return int(log.execute("SELECT count(*) FROM updates").fetchone()[0])
    except sqlite3.Error:  # it is not there yet
        return 0


def mortal(folder: Path, lives: int) -> str:
    (folder / "mortal.py").write_text(MORTAL)
    (folder / "lives").write_text(str(lives))
    return f"{folder / 'mortal.py'}:make"


def test_a_killed_run_is_resumed_to_the_same_end(tmp_path: Path) -> None:
    result = train(tmp_path / "killed", "--problem", mortal(tmp_path, 2), "--steps", "150")
    assert result.returncode == 0, result.stderr
    assert result.stderr.count("the run was killed (SIGKILL)") == 2
    assert train(tmp_path / "whole", "--problem", mortal(tmp_path, 0), "--steps", "150").returncode == 0
    runs = [anyk.Run.open(tmp_path / name) for name in ("killed", "whole")]
    assert runs[0].steps == 150
    assert runs[0].model.tobytes() == runs[1].model.tobytes()


def test_a_run_that_dies_again_and_again_is_given_up(tmp_path: Path) -> None:
    result = train(tmp_path / "run", "--problem", mortal(tmp_path, 100), "--steps", "5000")
    assert result.returncode == 1
    assert "4 times without a new checkpoint; it is not resumed" in result.stderr
    assert (tmp_path / "lives").read_text() == "96"


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--data", "synthetic:rows=60", "--steps", "0"], 2, "steps"),
        (
            ["--data", "synthetic:rows=60,features=4", "--steps", "40", "--lr", "1e9", "--evaluate", "every=1"],
            1,
            "diverged",
        ),
    ],
)
def test_bad_input_and_failed_runs_are_final(tmp_path: Path, arguments: list[str], code: int, words: str) -> None:
    result = train(tmp_path / "run", *arguments)
    assert (result.returncode, "killed" in result.stderr) == (code, False)
    assert words in result.stderr


def test_an_interrupt_ends_both_processes_and_resume_works(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    process = subprocess.Popen(
        command(folder, "--data", "synthetic:rows=120,features=6", "--steps", "100000000"),
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        while not steps_logged(folder):
            assert process.poll() is None
            time.sleep(0.05)
        children = psutil.Process(process.pid).children()
        os.kill(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=250)
    finally:
        process.kill()
    assert process.returncode == 130
    assert f"anyk resume {folder}" in errors
    assert len(children) == 1 and not children[0].is_running()


def test_a_hangup_that_is_ignored_stays_ignored(tmp_path: Path) -> None:
    """As under nohup, whose programs go on when their terminal is closed."""
    folder = tmp_path / "run"
    process = subprocess.Popen(
        ["nohup", *command(folder, "--data", "synthetic:rows=120,features=6", "--steps", "100000000")],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        while not steps_logged(folder):
            assert process.poll() is None
            time.sleep(0.05)
        trains = psutil.Process(process.pid).children()[0]
        for _ in range(3):
            process.send_signal(signal.SIGHUP)
            trains.send_signal(signal.SIGHUP)
            time.sleep(0.2)
        assert process.poll() is None and trains.is_running()
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=250)
    finally:
        process.kill()
    assert process.returncode == 130


# as a library in C may fork, without Python's hooks
LEAVES = """
import ctypes, os, time
import mortal

def make():
    problem = mortal.make()
    count = [0]
    kind = mortal.anyk.problems.LinearPartitions
    plain = kind.partial_gradient

    def partial_gradient(self, partition, w, rows=None):
        count[0] += 1
        if count[0] == 150 and int(mortal.LIVES.read_text()) > 0 and ctypes.CDLL(None).fork() == 0:
            time.sleep(15)
            os._exit(0)
        return plain(self, partition, w) if rows is None else plain(self, partition, w, rows)

    kind.partial_gradient = partial_gradient
    return problem
"""


def test_a_process_left_behind_with_the_lock_is_waited_for(tmp_path: Path) -> None:
    mortal(tmp_path, 1)
    (tmp_path / "leaves.py").write_text(LEAVES)
    result = train(tmp_path / "run", "--problem", f"{tmp_path / 'leaves.py'}:make", "--steps", "150")
    assert result.returncode == 0, result.stderr
    assert "a process that the run has left behind still has" in result.stderr
    assert anyk.verify(tmp_path / "run").whole
