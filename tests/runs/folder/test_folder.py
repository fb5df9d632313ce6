"""Folders of runs: a link in one is never written through, and a run that is not set up leaves none."""

import gc
import os
import shutil
import sys
from collections import Counter
from pathlib import Path

import pytest
from click.testing import CliRunner

import anyk
from anyk.cli import main
from anyk.runs import launch, training
from runs import corruption

DATA = ("--data", "synthetic:rows=60,features=4", "--cluster", "simulated", "--workers", "4", "--delays", "exp:mean=1")
IN_A_RUN = (
    "lock", "run.toml", "run.toml.part", "log.sqlite", "log.sqlite-wal", "log.sqlite-shm", "log.sqlite-journal",
    "checkpoint.safetensors", "checkpoint.safetensors.part", "checkpoint.older.safetensors",
    "checkpoint.safetensors.damaged",
)  # fmt: skip


def run(*arguments):
    return CliRunner().invoke(main, list(map(str, arguments)))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run and a race, each with something left to do."""
    folder = tmp_path_factory.mktemp("made")
    assert run("train", *DATA, "--steps", 3, "--out", folder / "run", "--quiet").exit_code == 0
    two = ("--strategy", "uncoded", "--strategy", "frc:load=2")
    assert run("race", *DATA, *two, "--steps", 3, "--out", folder / "race", "--quiet").exit_code == 0
    gc.collect()  # the commands' logs are closed
    return folder


@pytest.fixture
def folders(made, tmp_path, monkeypatch):
    """Copies of them, in the current folder."""
    monkeypatch.chdir(tmp_path)
    for name in ("run", "race"):
        shutil.copytree(made / name, name)
    return tmp_path


def link(place: Path, outside: Path):
    """A link at ``place`` to a file outside that holds what was there."""
    if place.is_file():
        shutil.move(place, outside)
    elif not outside.exists():
        outside.write_text("mine")
    place.symlink_to(outside)
    return outside.read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("name", [*(f"run/{one}" for one in IN_A_RUN), *(f"race/uncoded/{one}" for one in IN_A_RUN[:4]),
                                  "race/lock", "race/race.toml", "race/race.toml.part", "race/race.png"])  # fmt: skip
def test_nothing_is_written_through_a_link(name, folders):
    content = link(folders / name, folders / "outside")
    folder = name.split("/")[0]
    resumed = run("resume", folder, "--steps", 6, "--quiet")
    assert resumed.exit_code == 2, resumed.output
    sentence = resumed.output.splitlines()[-1]
    assert f"'{name}' " in sentence and " is a link" in sentence and "put the file itself in its place" in sentence
    for command in (("show", folder), ("verify", "run"), ("replay", "run")):
        assert "Traceback" not in run(*command).output
    assert (folders / "outside").read_bytes() == content
    assert (folders / name).is_symlink()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["auto.toml", "auto.toml.part", "1-measure", "1-measure/run.toml.part", "lock"])
def test_nothing_is_written_through_a_link_of_auto_training(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run("train", *DATA, "--strategy", "auto:measure=9", "--steps", 3, "--out", "auto", "--quiet")
    assert result.exit_code == 0, result.output
    if name == "1-measure":
        shutil.move("auto/1-measure", "outside")
        Path("auto/1-measure").symlink_to(tmp_path / "outside")
    else:
        link(tmp_path / "auto" / name, tmp_path / "outside")
    outside = tmp_path / "outside"
    before = {file: file.read_bytes() for file in (outside, *outside.glob("*")) if file.is_file()}
    resumed = run("resume", "auto", "--steps", 6, "--quiet")
    assert resumed.exit_code == 2 and f"'auto/{name}' " in resumed.output, resumed.output
    assert " is a link" in resumed.output
    assert before and all(file.read_bytes() == content for file, content in before.items())


@pytest.mark.parametrize("name", ["run/lock", "run/run.toml.part", "race/race.toml.part", "race/race.png"])
def test_nothing_waits_at_a_pipe(name, folders):
    Path(name).unlink(missing_ok=True)
    os.mkfifo(name)
    result = run("resume", name.split("/")[0], "--steps", 6, "--quiet")
    assert result.exit_code == 2 and result.output == f"anyk: '{name}' is no plain file; remove it\n"


def test_a_run_of_a_race_is_not_gone_on_with_through_a_link(folders):
    shutil.move("race/uncoded", "elsewhere")
    Path("race/uncoded").symlink_to(folders / "elsewhere")
    before = {file: file.read_bytes() for file in Path("elsewhere").iterdir()}
    for more in (("--steps", 6), ("--add", "frc:load=4")):
        result = run("resume", "race", *more, "--quiet")
        assert result.exit_code == 2 and "'race/uncoded' is a link" in result.output
    assert before == {file: file.read_bytes() for file in Path("elsewhere").iterdir()}


@pytest.mark.parametrize("command", [
    ("show", "race", "--picture", "race/x.png"), ("show", "run", "--picture", "run/x.png"),
    ("show", "run", "--json", "run/x.json"), ("verify", "run", "--json", "run/x.json"),
    ("resume", "run", "--steps", 6, "--json", "run/x.json"), ("trace", "record", "run", "--out", "run/x.npz"),
])  # fmt: skip
def test_a_file_asked_for_in_such_a_folder_is_no_link_either(command, folders):
    link(folders / command[-1], folders / "outside")
    result = run(*command)
    assert result.exit_code == 2 and f"'{command[-1]}' is a link" in result.output, result.output
    assert (folders / "outside").read_text() == "mine"


@pytest.mark.parametrize("kind", ["json", "csv", "md", "png"])
def test_a_reproduction_writes_through_no_link(kind, folders):
    Path("gallery").mkdir()
    link(folders / f"gallery/erasurehead-theory.{kind}", folders / "outside")
    result = run("reproduce", "erasurehead-theory", "--quick", "--seeds", "1", "--out", "gallery")
    assert result.exit_code == 2 and f"erasurehead-theory.{kind}' is a link" in result.output, result.output
    assert (folders / "outside").read_text() == "mine"


# ----------------------------------------------------------------------------------------------- setting up


@pytest.mark.slow
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("step", ["new_folder", "LogWriter", "Driver", "write_sealed"])
def test_ctrl_c_while_a_run_is_set_up_leaves_nothing_or_a_run(step, after, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    home = next(module for module in (training, launch) if hasattr(module, step))
    real = getattr(home, step)

    def interrupted(*args, **keys):
        if after:
            real(*args, **keys)
        raise KeyboardInterrupt

    monkeypatch.setattr(home, step, interrupted)
    result = run("train", *DATA, "--steps", 3, "--out", "run", "--quiet")
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    assert result.exit_code == 130
    assert result.output == "anyk: interrupted; start it again\n"
    assert not list(Path().rglob("run/*"))
    assert run("train", *DATA, "--steps", 3, "--out", "run", "--quiet").exit_code == 0


def test_what_cannot_be_set_up_leaves_no_folder(tmp_path):
    problem = anyk.problems.from_data("synthetic:rows=60,features=4")
    first = anyk.train(problem, "uncoded", "simulated", workers=4, steps=2, out=tmp_path / "first")
    first.close()
    with pytest.raises(ZeroDivisionError):
        broken = anyk.optimizers.GD(lr=0.1)
        object.__setattr__(broken, "fitted", lambda problem: 1 / 0)
        anyk.train(problem, "uncoded", "simulated", workers=4, steps=2, optimizer=broken, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_folder_that_was_killed_before_it_was_a_run_says_so(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "lock").touch()
    with pytest.raises(anyk.BadInput, match=r"it has no run.toml, because its run was killed .* start the run"):
        anyk.resume(tmp_path / "run")
    problem = anyk.problems.from_data("synthetic:rows=60,features=4")
    anyk.train(problem, "uncoded", "simulated", workers=4, steps=2, out=tmp_path / "run").close()


def test_a_cluster_that_cannot_start_leaves_no_folder(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(anyk.base.errors.MissingPackage, match="cluster 'ray' needs Ray"):
        anyk.train(anyk.testing.Squares(2), "uncoded", anyk.clusters.Ray(2), steps=3, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    monkeypatch.setattr("anyk.clusters.processes.memory.available_memory", lambda: 1000)
    with pytest.raises(anyk.BadInput, match="shared memory"):
        anyk.train(anyk.testing.Squares(2), "uncoded", anyk.clusters.Processes(2), steps=3, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.fixture(scope="module")
def corruptible(tmp_path_factory):
    return corruption.make(tmp_path_factory.mktemp("runs"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ended", "killed"])
def test_a_damaged_folder_gives_the_same_or_a_sentence(name, corruptible):
    folder = corruptible[name]
    expected = corruption.expectations(folder)
    counts = Counter()
    for case in corruption.cases(folder, 20, seed=1):
        for command, verdict, sentence in corruption.judge(folder, expected, case):
            assert verdict not in ("silently different", "no sentence"), (command, case, sentence)
            counts[verdict] += 1
    assert counts["refused"] > 50 and counts["the same"] > 20
