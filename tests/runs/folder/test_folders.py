"""What killed processes leave in a run folder, and who holds its lock."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import anyk
from anyk.protocol import Workers
from anyk.runs.folder import drains
from anyk.runs.folder.folders import is_locked, locked, unstarted

PROBLEM = anyk.problems.from_data("synthetic:rows=60,features=4")
LEFT = (".tmpAb3dEf", "checkpoint.safetensors.part", "model.safetensors.part")
OTHERS = (".tmp-notes", ".tmpAb3dEfg", "drained.json.part", "log.sqlite.part", "mine.part")


def train(folder: Path, **settings: Any) -> None:
    anyk.train(PROBLEM, "uncoded", "simulated", workers=3, steps=4, out=folder, **settings).close()


@pytest.mark.parametrize("how", ["resume", "verify"])
def test_unfinished_checkpoints_are_removed_and_nothing_else(tmp_path: Path, how: str) -> None:
    folder = tmp_path / "run"
    train(folder)
    for name in (*LEFT, *OTHERS):
        (folder / name).write_bytes(b"1")
    if how == "resume":
        anyk.resume(folder, steps=8).close()
    assert anyk.verify(folder).whole
    names = {file.name for file in folder.iterdir()}
    assert not names & set(LEFT) and names >= set(OTHERS)


def test_unfinished_files_of_a_running_writer_stay(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    train(folder)
    (folder / LEFT[0]).write_bytes(b"1")
    with locked(folder):
        (folder / LEFT[0]).write_bytes(b"1")
        assert anyk.verify(folder).whole
        assert (folder / LEFT[0]).exists()


def test_verify_leaves_links_and_folders_of_such_names(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    train(folder)
    (tmp_path / "mine").write_text("mine")
    (folder / LEFT[0]).symlink_to(tmp_path / "mine")
    (folder / LEFT[1]).mkdir()
    anyk.verify(folder)
    assert (folder / LEFT[0]).is_symlink() and (folder / LEFT[1]).is_dir() and (tmp_path / "mine").exists()


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_checkpoints_follow_the_umask(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        train(tmp_path / "run")
    finally:
        os.umask(before)
    names = ("checkpoint.safetensors", "run.toml", "lock")
    modes = {name: stat.S_IMODE((tmp_path / "run" / name).stat().st_mode) for name in names}
    assert modes == dict.fromkeys(names, 0o666 & ~umask)


# ------------------------------------------------------------------------------------------- killed at the start


@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGTERM])
def test_a_folder_of_a_run_killed_at_its_start_is_used_again(tmp_path: Path, sent: int) -> None:
    folder = tmp_path / "run"
    script = f"""
import os, anyk
from anyk.runs import training
training.write_sealed = lambda *_: os.kill(os.getpid(), {int(sent)})
problem = anyk.problems.from_data("synthetic:rows=60,features=4")
anyk.train(problem, "uncoded", "simulated", workers=3, steps=4, out={str(folder)!r})
"""
    assert subprocess.run([sys.executable, "-c", script], timeout=250, check=False).returncode == -sent
    assert (folder / "log.sqlite").exists() and unstarted(folder)
    with pytest.raises(anyk.BadInput, match="killed before it began; start the run again, which may be in this folder"):
        anyk.resume(folder)
    train(folder)
    assert anyk.verify(folder).whole


@pytest.mark.slow
def test_sigterm_at_the_start_of_the_command_leaves_nothing(tmp_path: Path) -> None:
    script = f"""
import os, signal, sys
from anyk.runs import training
training.environment = lambda: os.kill(os.getpid(), signal.SIGTERM)
from anyk.__main__ import main
sys.argv[1:] = ["train", "--data", "synthetic:rows=60", "--cluster", "simulated", "--delays", "exp:mean=1", "--steps", "3",
                "--out", {str(tmp_path / "run")!r}]
main()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 130 and "Traceback" not in done.stderr, done.stderr
    assert not (tmp_path / "run").exists()


def test_a_folder_with_a_run_or_with_other_files_is_not_used(tmp_path: Path) -> None:
    train(tmp_path / "lost")
    (tmp_path / "lost" / "run.toml").unlink()
    for name in ("checkpoint.safetensors", "checkpoint.older.safetensors"):
        (tmp_path / "lost" / name).unlink(missing_ok=True)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "log.sqlite").write_text("mine")
    for name in ("lost", "other", "log"):
        contents = {file: file.read_bytes() for file in (tmp_path / name).iterdir()}
        with pytest.raises(anyk.BadInput, match="exists; choose another, or an empty one"):
            train(tmp_path / name)
        assert {file: file.read_bytes() for file in contents} == contents


# ------------------------------------------------------------------------------------------- locks


@contextlib.contextmanager
def held(path: Path, how: int) -> Iterator[None]:
    """Another process that has a file or folder locked."""
    script = (
        f"import fcntl, os, sys; fcntl.flock(os.open({str(path)!r}, os.O_RDONLY), {how}); print(flush=True); "
        "sys.stdin.read()"
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None and process.stdout is not None
    process.stdout.readline()
    try:
        yield
    finally:
        process.communicate()


def test_a_second_driver_is_refused_without_the_lock_file(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    train(folder)
    with locked(folder):
        (folder / "lock").unlink()
        with pytest.raises(anyk.BadInput, match="is being written by another process"):
            anyk.resume(folder, steps=9)
    anyk.resume(folder, steps=9).close()


def test_drain_does_not_wait_for_ever_for_a_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "run"
    train(folder)
    content = (folder / "run.toml").read_text()
    config = type("Config", (), {"workers": Workers(most=3), "cluster": "processes"})
    monkeypatch.setattr(drains, "read_config", lambda _: config)
    monkeypatch.setattr(drains, "_PATIENCE", 0.3)
    with locked(folder):
        assert drains.drain(folder, [1]) == [1]
        with held(folder / "drained.json.lock", fcntl.LOCK_SH), pytest.raises(anyk.BadInput, match="has had .* locked"):
            drains.drain(folder, [2])
        assert drains.drain(folder, [2]) == [1, 2]
    assert (folder / "run.toml").read_text() == content


@pytest.mark.filterwarnings("ignore:os.fork")  # of JAX, if another test has loaded it
def test_a_forked_process_does_not_keep_the_lock(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    train(folder)
    reader, writer = os.pipe()
    with locked(folder):
        child = os.fork()
        if child == 0:
            os.close(writer)
            os.read(reader, 1)  # until the test has looked
            os._exit(0)
    try:
        until = time.monotonic() + 60.0  # the child lets go of the lock when it first runs
        while is_locked(folder):
            assert time.monotonic() < until
            time.sleep(0.01)
    finally:
        os.close(writer)
        os.close(reader)
        os.waitpid(child, 0)
