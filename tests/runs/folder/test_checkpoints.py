"""Run folders that are damaged, cut short, read-only or read while they are written."""

import copy
import pickle
import shutil
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import anyk
from anyk.clusters import Simulated
from anyk.runs import evaluating, launch, training
from anyk.runs.callbacks import Watching
from anyk.runs.folder import checkpoints
from anyk.runs.log.log_writer import LogWriter
from anyk.runs.log.schema import TABLES
from anyk.testing import Squares

EXP = anyk.delays.Exponential(0.5)
GD = anyk.optimizers.GD(lr=0.05)


def trained(folder, steps=8, every=10.0, watch=None):
    fleet = Simulated(4, delays=EXP, seed=1)
    return anyk.train(
        Squares(4), "frc:load=2,wait=3", fleet, optimizer=GD, steps=steps, out=folder, checkpoint_every=every,
        callbacks=[] if watch is None else [Watching(watch)],
    )  # fmt: skip


def flip(file, place, bit=0):
    data = bytearray(file.read_bytes())
    data[place] ^= 1 << bit
    file.write_bytes(data)


def resumed(folder, told=None):
    with anyk.resume(folder, problem=Squares(4), steps=12, tell=None if told is None else told.append) as run:
        return run.model.tobytes(), run.history["seconds"].tolist(), run.ledger, [note["kind"] for note in run.notes]


def test_a_flipped_bit_is_found_and_the_older_checkpoint_used(tmp_path):
    with trained(tmp_path / "whole", steps=12) as run:
        uninterrupted = run.model.tobytes(), run.history["seconds"].tolist(), run.ledger
    trained(tmp_path / "run", every=0.0).close()
    assert (tmp_path / "run" / checkpoints.OLDER).is_file()
    file = tmp_path / "run" / checkpoints.NAME
    flip(file, file.stat().st_size - 3)  # in the last tensor
    with anyk.Run.open(tmp_path / "run") as run, pytest.raises(anyk.BadInput, match="do not match their digest"):
        run.model  # noqa: B018
    lines = []
    *same, notes = resumed(tmp_path / "run", lines)
    assert tuple(same) == uninterrupted
    assert len(lines) == 1 and lines[0].endswith(
        "do not match their digest); continuing from the checkpoint before, at step 7"
    )
    assert "older checkpoint" in notes
    *same, notes = resumed(tmp_path / "run")  # the damaged one is out of the way
    assert tuple(same) == uninterrupted and notes.count("older checkpoint") == 1


def test_an_unlisted_checkpoint_at_the_same_event_is_whole(tmp_path, monkeypatch):
    class Killed(BaseException):
        pass

    def killed(*_):
        raise Killed

    def resume():
        lines = []
        anyk.resume(tmp_path / "run", problem=Squares(4), tell=lines.append).close()
        assert "the checkpoint before" not in lines[0]

    def killed_at_its_end(run):
        with monkeypatch.context() as patch, pytest.raises(Killed):
            patch.setattr(checkpoints.CheckpointWriter, "finish", killed)
            run()

    monkeypatch.setattr(launch, "changes", lambda began: ["numpy 3 (was 2)"])  # a note, so that checkpoints differ
    monkeypatch.setattr(training, "_reached", lambda *_: "")  # as if its result had not been written
    killed_at_its_end(lambda: trained(tmp_path / "run"))
    resume()
    assert anyk.verify(tmp_path / "run").whole
    killed_at_its_end(resume)
    resume()
    assert anyk.verify(tmp_path / "run").whole


def test_an_unlisted_damaged_checkpoint_is_put_aside(tmp_path, monkeypatch):
    """It must not take the place of the one before, which is whole."""
    trained(tmp_path / "run", steps=6).close()
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(LogWriter, "checkpoint", lambda *_: signal.raise_signal(signal.SIGINT))
        anyk.resume(tmp_path / "run", problem=Squares(4), steps=8)
    file = tmp_path / "run" / checkpoints.NAME
    flip(file, file.stat().st_size - 3)
    lines = []
    *_, notes = resumed(tmp_path / "run", lines)
    assert lines[0].endswith("continuing from the checkpoint before, at step 6") and "older checkpoint" in notes
    assert anyk.verify(tmp_path / "run").whole


def test_an_older_checkpoint_as_the_newest_is_kept(tmp_path, monkeypatch):
    """As from a backup; it is the only one, also for who dies before the next is written."""
    with trained(tmp_path / "whole", steps=12) as run:
        uninterrupted = run.model.tobytes(), run.history["seconds"].tolist(), run.ledger
    trained(tmp_path / "run", every=0.0).close()
    (tmp_path / "run" / checkpoints.OLDER).replace(tmp_path / "run" / checkpoints.NAME)
    with anyk.Run.open(tmp_path / "run") as run, pytest.raises(anyk.BadInput, match="newer checkpoint than there is$"):
        run.model  # noqa: B018
    lines = []

    def killed(_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(evaluating.Evaluating, "store_first_versions", killed)
        anyk.resume(tmp_path / "run", problem=Squares(4), steps=12, tell=lines.append)
    assert lines[0].endswith("has a newer checkpoint than there is; continuing from the checkpoint before, at step 7")
    *same, _ = resumed(tmp_path / "run")
    assert tuple(same) == uninterrupted
    assert anyk.verify(tmp_path / "run").whole


def test_a_missing_checkpoint_or_log_is_never_passed_over(tmp_path):
    trained(tmp_path / "run", every=0.0).close()

    def without(*names):
        shutil.rmtree(tmp_path / "part", ignore_errors=True)
        shutil.copytree(tmp_path / "run", tmp_path / "part")
        for name in names:
            (tmp_path / "part" / name).unlink()
        return tmp_path / "part"

    with pytest.warns(
        RuntimeWarning, match=r"checkpoint\.safetensors' is gone; continuing from .* before, at step"
    ) as said:
        assert "older checkpoint" in resumed(without(checkpoints.NAME))[-1]
    assert [one.filename for one in said] == [__file__]  # once, and where it was asked for
    with pytest.raises(anyk.BadInput, match=r"checkpoint\.safetensors' is gone; there is no checkpoint to resume from"):
        resumed(without(checkpoints.NAME, checkpoints.OLDER))
    with pytest.raises(anyk.BadInput, match=r"has no log\.sqlite"):
        resumed(without("log.sqlite"))
    with pytest.raises(anyk.BadInput, match=r"has no run\.toml, though it has checkpoints; restore that file"):
        resumed(without("run.toml"))
    assert "older checkpoint" not in resumed(without(checkpoints.OLDER))[-1]


@pytest.mark.slow
def test_a_race_tells_of_an_older_checkpoint(tmp_path):
    problem = anyk.problems.from_data("synthetic:rows=60,features=4")
    anyk.runs.race(problem, ["uncoded"], workers=4, cluster="simulated", steps=4, out=tmp_path / "race").close()
    for steps in (8, 12):  # two checkpoints
        anyk.runs.resume_race(tmp_path / "race", steps=steps).close()
    file = tmp_path / "race" / "uncoded" / checkpoints.NAME
    flip(file, file.stat().st_size - 3)
    lines = []
    anyk.runs.resume_race(tmp_path / "race", steps=16, tell=lines.append).close()
    assert len(lines) == 1 and "continuing from the checkpoint before, at step 8" in lines[0]


def test_a_log_that_is_shorter_than_its_checkpoint_is_found(tmp_path):
    trained(tmp_path / "short", steps=4).close()
    trained(tmp_path / "run", steps=8).close()
    shutil.copy(tmp_path / "short" / "log.sqlite", tmp_path / "run" / "log.sqlite")
    with pytest.raises(
        anyk.BadInput, match=r"is not the one that 'checkpoint\.safetensors' was written with, or was cut"
    ):
        resumed(tmp_path / "run")


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE events SET time = time + 1e-9 WHERE seq = 5",
        "UPDATE updates SET digest = digest + 1 WHERE version = 2",
        "DELETE FROM chunks WHERE task = 3",
        "INSERT INTO notes VALUES (0.0, 'note', 'nobody wrote this', 1)",
        f"UPDATE seals SET upto = '{[0] * len(TABLES)}' WHERE id = 1",
        "DELETE FROM seals",
        "CREATE TRIGGER more AFTER INSERT ON events BEGIN DELETE FROM updates; END",
    ],
)
def test_a_row_that_was_changed_is_found(change, tmp_path):
    trained(tmp_path / "run").close()
    with sqlite3.connect(tmp_path / "run" / "log.sqlite") as db:
        db.execute(change)
    db.close()
    before = (tmp_path / "run" / "log.sqlite").read_bytes()
    for attempt in (lambda: anyk.Run.open(tmp_path / "run"), lambda: resumed(tmp_path / "run")):
        with pytest.raises(anyk.BadInput, match=r"log\.sqlite' is damaged \(.*anyk train --from"):
            attempt()
    assert (tmp_path / "run" / "log.sqlite").read_bytes() == before


def test_reading_changes_nothing_and_sees_what_is_written_ahead(tmp_path):
    """Also while the run goes on: SQLite's write-ahead file holds the newest rows."""
    seen = []

    def files():
        return {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}

    def watch(driver, evaluator):
        driver.log.flush()
        if driver.step == 5:
            before = files()
            assert before["log.sqlite-wal"]
            with anyk.Run.open(tmp_path / "run") as run:
                seen.append(run.steps)
                assert "log.sqlite-shm" in before and files() == before
                seen.append(len(run.history["step"]))

    trained(tmp_path / "run", watch=watch).close()
    assert seen == [5, 6]
    before = files()
    with anyk.Run.open(tmp_path / "run") as run:
        assert run.steps == 8
    assert files() == before


def test_a_run_closes_itself_copies_and_pickles(tmp_path):
    with trained(tmp_path / "run") as run:
        copies = [copy.copy(run), copy.deepcopy(run), pickle.loads(pickle.dumps(run))]
        history = run.history["seconds"].tolist()
    with pytest.raises(anyk.BadInput, match=r"the run is closed; open it again: anyk\.Run\.open"):
        run.receipt(1)
    run.close()
    shutil.rmtree(tmp_path / "run")
    for other in copies:
        assert other.steps == 8 and other.model.tobytes() == run.model.tobytes()
        assert other.history["seconds"].tolist() == history
    finished = anyk.train(Squares(4), "uncoded", Simulated(4), steps=2)
    assert pickle.loads(pickle.dumps(finished)).receipt(2).used == finished.receipt(2).used
    closed = []
    log = LogWriter()
    log._db.set_trace_callback(None)
    finalizer = log._closing
    del log
    closed.append(finalizer.alive)
    assert closed == [False]


def test_a_finished_run_says_so_when_it_is_resumed(tmp_path):
    trained(tmp_path / "run").close()
    lines = []
    assert anyk.resume(tmp_path / "run", problem=Squares(4), tell=lines.append).steps == 8
    assert lines == [
        "nothing was left to do at step 8: it has reached its limit (steps = 8); to continue, give more steps or seconds"
    ]


def test_checkpoints_after_an_unused_one_are_whole(tmp_path):
    """A disk that fills while a checkpoint is written leaves the one before."""
    trained(tmp_path / "run").close()
    before = checkpoints.load(tmp_path / "run")
    with pytest.raises(anyk.RunFailed, match="cannot be written"):
        checkpoints.save(tmp_path / "run", "{}", {"x": np.array([object()])})
    after = checkpoints.load(tmp_path / "run")
    assert before[0] == after[0]


@pytest.mark.parametrize(
    ("limits", "again", "reached"),
    [
        ({"steps": 6}, {}, "steps = 6"),
        ({"steps": 6}, {"steps": 4}, "steps = 4"),
        ({"steps": 6}, {"steps": 6, "seconds": 9e9}, "steps = 6"),
        ({"seconds": 9.0}, {}, "seconds = 9"),
        ({"target": 0.6}, {}, "target = 0.6"),
    ],
)
def test_a_complete_run_is_resumed_without_workers(limits, again, reached, tmp_path, monkeypatch):
    problem = anyk.problems.from_data("synthetic:rows=60,features=4")
    anyk.train(problem, "uncoded", "simulated", workers=3, delays="exp:mean=1", out=tmp_path / "run", **limits).close()
    before = (tmp_path / "run" / "run.toml").read_bytes()
    monkeypatch.setattr("anyk.runs.training.Launch", None)
    lines = []
    with anyk.resume(tmp_path / "run", problem=problem, tell=lines.append, **again) as run:
        assert len(lines) == 1 and f"it has reached its limit ({reached})" in lines[0]
        assert f"at step {run.steps}: " in lines[0] and (tmp_path / "run" / "run.toml").read_bytes() == before


@pytest.mark.slow
@pytest.mark.parametrize(("cluster", "drivers"), [("simulated", 12), ("processes", 4)])
def test_killed_drivers_lose_nothing(cluster: str, drivers: int) -> None:
    """They are killed in processes that are forked, which needs a program without threads."""
    numbers = {"simulated": 0, "processes": 0} | {cluster: drivers}
    arguments = [argument for name, number in numbers.items() for argument in (f"--{name}", str(number))]
    script = Path(__file__).parents[1] / "crash_points.py"
    result = subprocess.run([sys.executable, str(script), *arguments], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert f"{cluster}: {drivers} drivers killed" in result.stdout
