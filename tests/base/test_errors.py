"""Runs where the system is in the way: few open files, small files, folders to be read only."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from click.testing import CliRunner

import anyk
from anyk.cli import main

pytestmark = pytest.mark.slow

TRAIN = ["train", "--data", "synthetic:rows=90,features=4", "--delays", "exp:mean=0.01", "--quiet", "--steps", "400"]


def run(*arguments):
    return CliRunner().invoke(main, list(map(str, arguments)))


def limited(limit, *arguments):
    """The command in a process of its own with a limit on files, of ``ulimit``."""
    script = f"ulimit {limit}; exec {sys.executable} -m anyk " + " ".join(map(str, arguments))
    return subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=250)


def test_too_few_open_files_end_in_a_sentence(tmp_path):
    done = limited("-n 24", *TRAIN[:-1], 3, "--workers", 16, "--out", tmp_path / "run")
    assert done.returncode == 1
    assert done.stderr.strip() == (
        "anyk: 16 workers need more open files than this process may have (24); allow more (ulimit -n) and resume the run"
    )
    resumed = run("resume", tmp_path / "run", "--quiet")
    assert resumed.exit_code == 0, resumed.output
    assert anyk.verify(tmp_path / "run").whole


@pytest.mark.parametrize(("blocks", "code"), [(1, 2), (200, 1)])
def test_files_that_may_not_grow_end_in_a_sentence(blocks, code, tmp_path):
    done = limited(f"-f {blocks}", *TRAIN, "--workers", 4, "--cluster", "simulated", "--out", tmp_path / "run")
    assert done.returncode == code
    assert len(done.stderr.strip().splitlines()) == 1 and "log.sqlite' cannot be" in done.stderr, done.stderr


@pytest.fixture
def read_only():
    """A finished run in a folder that this user may not write to."""
    folder = Path(tempfile.mkdtemp(prefix="anyk-read-only-"))
    problem = anyk.problems.from_data("synthetic:rows=60,features=4")
    cluster = anyk.cluster("simulated", workers=4, delays="exp:mean=1")
    anyk.train(problem, "uncoded", cluster, steps=4, optimizer=anyk.optimizers.GD(lr=0.1), out=folder / "run").close()
    anyk.Run.open(folder / "run").close()
    assert run("show", folder / "run").exit_code == run("replay", folder / "run").exit_code == 0  # imported by now
    folder.chmod(0o755)
    for file in (folder / "run").iterdir():
        file.chmod(0o444)
    (folder / "run").chmod(0o555)
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    yield folder / "run"
    if root:
        os.seteuid(0)
    (folder / "run").chmod(0o755)
    shutil.rmtree(folder)


def test_a_folder_that_may_only_be_read(read_only):
    before = {path.name: path.read_bytes() for path in read_only.iterdir()}
    with pytest.raises(PermissionError):
        (read_only / "new").touch()
    for command in (
        ["show", read_only],
        ["show", read_only, "--step", 2],
        ["replay", read_only],
        ["verify", read_only],
    ):
        result = run(*command)
        assert result.exit_code == 0, (command, result.output)
    refused = run("resume", read_only, "--steps", 9)
    assert refused.exit_code == 2 and "cannot be written (Permission denied)" in refused.output, refused.output
    assert len(refused.output.strip().splitlines()) == 1
    assert {path.name: path.read_bytes() for path in read_only.iterdir()} == before


def test_a_folder_that_may_not_be_looked_into(read_only):
    begin = [
        "--data",
        "synthetic:rows=60,features=4",
        "--workers",
        4,
        "--cluster",
        "simulated",
        "--steps",
        6,
        "--quiet",
    ]
    for parent in (False, True):  # the folder, or the one it is in
        closed = read_only.parent if parent else read_only
        os.seteuid(os.getuid())
        closed.chmod(0o000)
        if os.getuid() == 0:
            os.seteuid(65534)
        for command in (
            ["show", read_only],
            ["replay", read_only],
            ["verify", read_only],
            ["resume", read_only, "--steps", 9],
            ["train", *begin, "--from", read_only, "--out", read_only.parent / "next"],
            ["train", *begin, "--out", read_only],
            ["race", *begin, "--out", read_only],
            ["train", *begin, "--out", read_only / "in"],
        ):
            result = run(*command)
            assert result.exit_code == 2, (command, result.output)
            said = result.output.splitlines()[-1]
            assert said.startswith("anyk: '") and "ermission denied" in said, (command, said)
            assert "--out" not in command or "cannot be read" not in said, (command, said)
    os.seteuid(os.getuid())
    closed.chmod(0o755)


NAME = os.fsdecode(b"ru\xffn")  # not UTF-8
SHORT = ["train", "--data", "synthetic:rows=60,features=4", "--cluster", "simulated", "--workers", "3", "--steps", "3"]
SHORT += ["--delays", "exp:mean=1", "--quiet"]


def test_a_folder_whose_name_is_not_utf8_is_used_as_any_other(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for command in (
        [*SHORT, "--out", NAME],
        ["verify", NAME],
        ["show", NAME],
        ["replay", NAME],
        ["resume", NAME, "--steps", "5", "--quiet"],
        ["report", NAME, "--out", "page.html"],
        ["export", NAME, "--to", "csv", "-o", "tables"],
        ["export", NAME, "--to", "perfetto", "-o", "trace.json"],
    ):
        done = subprocess.run([sys.executable, "-m", "anyk", *command], capture_output=True, timeout=250)
        assert done.returncode == 0, (command[0], done.stderr[-2000:])


def test_settings_that_are_not_utf8_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path(f"{NAME}.csv").write_text("a,y\n" + "".join(f"{i},{i % 2}\n" for i in range(20)))
    setting = ["--data", "file", "--data-file", f"{NAME}.csv", "--workers", "2", "--cluster", "simulated"]
    done = run("train", *setting, "--delays", "exp:mean=1", "--steps", "2", "--lr", "0.1", "--out", "run")
    assert done.exit_code == 2, done.output
    assert "is not UTF-8; rename the file" in done.output and not Path("run").exists()


@pytest.mark.parametrize("columns", ["0", "00", "1", "-5", "x"])
def test_any_width_of_a_terminal(columns, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    for command in ([*SHORT, "--out", tmp_path / "run"], ["show", tmp_path / "run"], ["--help"], ["train", "--help"]):
        done = run(*command)
        assert done.exit_code == 0, done.exception


def test_a_current_folder_that_is_gone_is_said(tmp_path):
    (tmp_path / "gone").mkdir()
    for command in (SHORT, ["train", "--data", "file", "--data-file", "x.csv"], ["show", "x"], ["data"]):
        script = f"rmdir {tmp_path}/gone; exec {sys.executable} -m anyk {' '.join(command)}"
        done = subprocess.run(
            ["bash", "-c", script], cwd=tmp_path / "gone", capture_output=True, text=True, timeout=250
        )
        (tmp_path / "gone").mkdir()
        assert done.returncode in (0, 2) and "Traceback" not in done.stderr, done.stderr
