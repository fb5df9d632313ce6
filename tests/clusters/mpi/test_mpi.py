"""Programs under mpiexec, as users start them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest

import anyk
from anyk.clusters.contract import Report
from anyk.clusters.mpi.link import REPORT_BYTES, TEXT_LENGTH
from anyk.clusters.mpi.mpi import Rank
from anyk.clusters.mpi.rank_worker import _RankWorker

pytestmark = pytest.mark.slow

MPIEXEC = str(Path(sys.executable).with_name("mpiexec"))
ANYK = [sys.executable, "-m", "anyk"]
SMALL = ["--data", "synthetic:rows=60,features=4", "--cluster", "mpi", "--quiet"]


def mpi(ranks: int, *command: str, timeout: float = 100.0) -> subprocess.CompletedProcess[str]:
    return subprocess.run([MPIEXEC, "-n", str(ranks), *command], capture_output=True, text=True, timeout=timeout)


def test_runs_on_ranks_give_the_model_of_the_simulator(tmp_path: Path) -> None:
    train = [
        "train",
        *SMALL,
        "--workers",
        "4",
        "--strategy",
        "frc:load=2",
        "--steps",
        "6",
        "--evaluate",
        "where=aside",
        "--out",
        str(tmp_path / "r"),
    ]
    done = mpi(6, *ANYK, *train)  # one rank more than are needed stays idle
    assert done.returncode == 0, done.stderr
    done = mpi(5, *ANYK, "resume", str(tmp_path / "r"), "--steps", "9", "--quiet")
    assert done.returncode == 0, done.stderr
    run = anyk.Run.open(tmp_path / "r")
    assert run.steps == 9
    problem = anyk.problems.from_data("synthetic:rows=60,features=4")
    method = anyk.optimizers.optimizer(run.config.optimizer, lr=run.config.lr)
    expected = anyk.train(problem, "frc:load=2", anyk.clusters.Simulated(4), optimizer=method, steps=9)
    assert np.allclose(run.model, expected.model, rtol=1e-9)
    assert run.config.evaluate == "where=aside"
    assert run.loss == pytest.approx(expected.loss, rel=1e-9)  # by a process that is no rank, before and after
    assert anyk.replay(run).decisions


@pytest.mark.parametrize(
    ("ranks", "options", "sentence"),
    [
        (
            3,
            ["--workers", "4"],
            "4 workers need 5 MPI ranks, the program was started with 3; use 'mpiexec -n 5 …' or 2",
        ),
        (1, ["--workers", "4"], "cluster 'mpi' has no workers: start the program with mpiexec"),
        (3, ["--workers", "2", "--strategy", "frc:lod=2"], "has no key 'lod'; did you mean 'load'?"),
    ],
)
def test_what_cannot_work_is_said_once_and_ends(ranks: int, options: list[str], sentence: str, tmp_path: Path) -> None:
    done = mpi(ranks, *ANYK, "train", *SMALL, "--out", str(tmp_path / "r"), *options)
    assert done.returncode == 2
    assert done.stderr.count(sentence) == 1, done.stderr


def test_a_script_runs_a_class_of_its_own_and_several_runs(tmp_path: Path) -> None:
    """No ``__main__`` guard; two runs one after another on the same ranks; an error in a gradient ends with a sentence."""
    script = tmp_path / "script.py"
    script.write_text(
        """
import anyk, numpy as np
from anyk.testing import Squares

class Mine(Squares):
    pass

descent = anyk.optimizers.GD(lr=1.0)
import threading
unsendable = Mine(3)
unsendable.faults = {0: threading.Lock()}
try:
    anyk.train(unsendable, "uncoded", anyk.clusters.Mpi(3), optimizer=descent, steps=5)
except anyk.BadInput as error:
    print(error, flush=True)
for spec in ("uncoded", "async:lr_scale=0.1"):
    cluster = anyk.clusters.Mpi(3, delays=anyk.delays.Constant(0.01))
    run = anyk.train(Mine(3), spec, cluster, optimizer=descent, steps=5)
    print("steps", run.steps, flush=True)
try:
    anyk.train(Mine(3, faults={1: "raise"}), "uncoded", anyk.clusters.Mpi(3), optimizer=descent, steps=5)
except anyk.RunFailed as error:
    print(error, flush=True)
"""
    )
    done = mpi(4, sys.executable, str(script))
    assert done.returncode == 0, done.stderr
    refused, first, second, third = done.stdout.splitlines()
    assert "the problem cannot be sent to workers (cannot pickle" in refused
    assert (first, second) == ("steps 5", "steps 5")
    assert "unusable replies from worker 1" in third and "worker 1: ValueError: partition 1 is broken" in third


def test_a_killed_rank_ends_the_program_and_resume_works(tmp_path: Path) -> None:
    out = tmp_path / "r"
    train = ["train", *SMALL, "--workers", "2", "--delays", "constant:value=0.05", "--steps", "200", "--out", str(out)]
    program = subprocess.Popen(
        [MPIEXEC, "-n", "3", *ANYK, *train], stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )
    try:
        until = time.monotonic() + 60.0
        while not (out / "log.sqlite").exists() and time.monotonic() < until:
            time.sleep(0.1)
        time.sleep(2.0)
        ranks = [pid for pid in below(program.pid) if b"train" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        os.kill(ranks[-1], signal.SIGKILL)
        program.communicate(timeout=250)
        assert program.returncode != 0
    finally:
        program.kill()
        program.wait()
    done = mpi(3, *ANYK, "resume", str(out), "--steps", "5", "--quiet")
    assert done.returncode == 0, done.stderr
    assert anyk.Run.open(out).steps >= 5


def below(pid: int) -> list[int]:
    """Processes that a process has started, at any depth, in order."""
    children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return [descendant for child in children for descendant in (child, *below(child))]


def test_the_cluster_can_be_measured() -> None:
    done = mpi(3, *ANYK, "cluster", "check", "mpi", "--workers", "2", "--steps", "2", "--json", "-")
    assert done.returncode == 0, done.stderr
    measured = json.loads(done.stdout)
    assert measured["workers"] == 2 and measured["latency"] > 0
    assert [speed["size"] for speed in measured["speeds"]] == [100_000, 2_000_000, 50_000_000]
    assert all(0 < speed["floor"] < speed["step"] for speed in measured["speeds"])


@pytest.mark.parametrize("text", ["é" * 10, "\x00\n" * TEXT_LENGTH])
def test_a_report_arrives_as_it_was_sent(text: str) -> None:
    report = Report(1, 2**40, 3, 4, 0.5, 1.5, 2.5, 3.5, -(2**62), text)
    rank = Rank(SimpleNamespace(Irecv=lambda buffer, **_: buffer), 1)
    for sent, vector in ((report, np.zeros(3, np.float32)), (report._replace(text=""), None)):
        sends = mock.Mock()
        _RankWorker(None, sends, 7, worker=0, setup=None, shipped=[], assigned=[]).transmit(sent, vector)
        line = sends.call_args_list[0].args[2]
        assert len(line) <= REPORT_BYTES
        rank._buffer[: len(line)] = line
        run, arrived, array = rank.take() or rank.take()
        assert run == 7 and arrived._replace(text="") == sent._replace(text="")
        assert arrived.text == sent.text or arrived.text == sent.text[: TEXT_LENGTH - 1] + "…"
        assert array is None if vector is None else (array.dtype, array.size) == (vector.dtype, vector.size)


@pytest.mark.parametrize(
    ("broken", "sentence"),
    [
        ("raise RuntimeError('cannot load MPI library (\\nlibmpi.so.12: no such file\\n)')",
         r"needs an MPI library that mpi4py can load \(cannot load MPI library\).*: run pip install mpich"),
        ("import nowhere_at_all", r"cluster 'mpi' needs mpi4py, which is not installed"),
    ],
)  # fmt: skip
def test_an_mpi_that_does_not_load_is_said_in_one_sentence(broken, sentence, tmp_path, monkeypatch):
    from anyk.clusters.mpi.link import communicator

    (tmp_path / "mpi4py").mkdir()
    (tmp_path / "mpi4py" / "__init__.py").write_text("")
    (tmp_path / "mpi4py" / "MPI.py").write_text(broken)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("mpi4py", "mpi4py.MPI"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(anyk.BadInput, match=sentence) as caught:
        communicator.__wrapped__()
    assert "\n" not in str(caught.value)
    for name in ("mpi4py", "mpi4py.MPI"):
        sys.modules.pop(name, None)
