"""``anyk verify``: is a run folder whole?"""

import json
import shutil
import sqlite3

import numpy as np
import pytest
from click.testing import CliRunner

import anyk
from anyk.cli import main
from anyk.runs.callbacks import Watching
from anyk.runs.folder import checkpoints
from anyk.runs.folder.config import NAME, read_config, write_plain
from anyk.runs.log.log_writer import LogWriter
from anyk.runs.log.runlog import RunLog
from anyk.testing import Squares

SETTING = {"workers": 4, "delays": "exp:mean=1", "seed": 1}


def run(*arguments):
    return CliRunner().invoke(main, list(map(str, arguments)))


@pytest.fixture
def folder(tmp_path):
    np.savez(tmp_path / "mine.npz", X=np.arange(120.0).reshape(40, 3) % 7.0, y=np.arange(40) % 2)
    np.savez(tmp_path / "t.npz", seconds=np.ones((5, 4)))
    problem = anyk.problems.from_data("file", file=tmp_path / "mine.npz")
    fleet = anyk.cluster("simulated", **SETTING | {"delays": f"trace:{tmp_path}/t.npz"})
    optimizer = anyk.optimizers.GD(lr=0.1)
    anyk.train(
        problem, "frc:load=2", fleet, steps=6, optimizer=optimizer, out=tmp_path / "run", checkpoint_every=0.0
    ).close()
    return tmp_path / "run"


def damaged(folder):
    return {check.name for check in anyk.verify(folder).checks if check.whole is False}


def test_a_whole_folder(folder):
    before = {path: path.read_bytes() for path in folder.iterdir()}
    result = run("verify", folder)
    assert result.exit_code == 0, result.output
    assert result.output.splitlines()[-1] == f"the run '{folder}' is whole"
    names = [line.split()[0] for line in result.output.splitlines()[:-1]]
    assert names == [
        "configuration",
        "log",
        "rows",
        "sequence",
        "ledger",
        "checkpoint",
        "the",
        "predictor",
        "traces",
        "data",
    ]
    assert "events 1 to " in result.output and "chunks dispatched and ended, each once" in result.output
    report = json.loads(run("verify", folder, "--json", "-").stdout)
    assert report["whole"] and {check["whole"] for check in report["checks"]} == {True}
    assert {path: path.read_bytes() for path in folder.iterdir()} == before
    assert run("verify", folder.parent).exit_code == 2
    assert "is not a run folder: it has neither" in run("verify", folder.parent).output


def test_a_checkpoint_that_is_being_written_is_no_damage(tmp_path, monkeypatch):
    """The log does not list it yet; nor does it if the driver is killed meanwhile."""

    class Killed(BaseException):
        pass

    def list_some(log, seq, digest):
        if unlisted:
            raise Killed
        if log.rows("SELECT 1 FROM updates WHERE version = 3"):
            unlisted.append(seq)
        else:
            listing(log, seq, digest)

    unlisted, listing = [], LogWriter.checkpoint
    monkeypatch.setattr(LogWriter, "checkpoint", list_some)
    with pytest.raises(Killed):
        anyk.train(Squares(4), "frc:load=2", "simulated", workers=4, out=tmp_path / "run", checkpoint_every=0.0)
    assert damaged(tmp_path / "run") == set()
    with sqlite3.connect(tmp_path / "run" / "log.sqlite") as db:
        events = [seq for (seq,) in db.execute("SELECT seq FROM events ORDER BY seq")]
    db.close()
    assert unlisted[0] + 1 not in events and unlisted[0] + 2 in events


def test_a_run_that_goes_on_while_its_log_is_read_is_whole(folder, monkeypatch):
    """Two checkpoints are written after its log has been copied and before they are looked at."""
    before, checking, went_on = anyk.Run.open(folder), RunLog.check_seals, []

    def check_seals(log):
        if not went_on:
            went_on.append(True)
            for steps in (before.steps + 2, before.steps + 4):
                anyk.resume(folder, steps=steps).close()
        return checking(log)

    monkeypatch.setattr(RunLog, "check_seals", check_seals)
    assert damaged(folder) == set()
    with before, anyk.Run.open(folder) as after:
        assert after.steps == before.steps + 4
        assert (before.model == after.model).all()


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ("UPDATE events SET time = time + 1e-9 WHERE seq > 5", {"rows"}),
        ("UPDATE updates SET digest = 1 WHERE version = 6", {"rows", "checkpoint"}),
        ("DROP TABLE notes", {"log"}),
    ],
)
def test_a_changed_log(change, found, folder):
    with sqlite3.connect(folder / "log.sqlite") as db:
        db.execute(change)
    db.close()
    assert found <= damaged(folder)
    assert run("verify", folder).exit_code == 1


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ("DELETE FROM events WHERE seq = 4", {"sequence"}),
        ("DELETE FROM chunks WHERE task = 3", {"ledger"}),
        ("INSERT INTO chunks SELECT * FROM chunks WHERE task = 3", {"ledger"}),
        ("UPDATE chunks SET step = 2 WHERE step = 1 AND worker = 0", {"ledger"}),
        ("UPDATE chunks SET ending = 'won' WHERE task = 3", {"ledger"}),
        ("INSERT INTO checkpoints VALUES (1000, 'x')", {"checkpoint"}),
    ],
)
def test_a_log_that_is_wrong_though_it_is_sealed(change, found, folder):
    """As a fault of ours would leave it."""
    with sqlite3.connect(folder / "log.sqlite") as db:
        db.execute(change)
        db.execute("DELETE FROM seals")
    db.close()
    log = anyk.runs.LogWriter(folder / "log.sqlite")
    log.flush()  # one seal over all
    log.close()
    assert "rows" not in damaged(folder)
    assert found <= damaged(folder)


def test_what_a_run_used(folder):
    np.savez(folder.parent / "t.npz", seconds=np.full((5, 4), 2.0))
    np.savez(folder.parent / "mine.npz", X=np.ones((40, 3)), y=np.arange(40) % 2)
    assert damaged(folder) == {"traces", "data"}
    (folder.parent / "mine.npz").unlink()
    assert damaged(folder) == {"traces"}  # what is not there cannot be looked at
    assert "?: there is no file" in run("verify", folder).output


@pytest.mark.slow
def test_missing_and_damaged_files(folder):
    copy = folder.parent / "whole"
    shutil.copytree(folder, copy)
    for name, failing in (
        ("run.toml", {"configuration"}),
        ("log.sqlite", {"log"}),
        (checkpoints.NAME, {"checkpoint"}),
        (checkpoints.OLDER, {"the one before"}),
        ("lock", set()),
    ):
        (folder / name).unlink()
        assert damaged(folder) == failing, name
        assert run("verify", folder).exit_code == bool(failing)
        if failing:
            (folder / name).write_bytes((copy / name).read_bytes()[:-7])
            assert damaged(folder) in (failing, {"rows"}), name  # SQLite does not mind a page that is cut short
        shutil.copy(copy / name, folder / name)
    config = read_config(folder).plain()
    (folder / "run.toml").write_text((folder / "run.toml").read_text().replace("seed = 1", "seed = 2"))
    assert damaged(folder) == {"configuration"}
    write_plain(folder / NAME, config | {"problem": {"problem": "evil.py:make"}})
    assert damaged(folder) == set()
    assert "not looked at: code makes the problem" in run("verify", folder).output
    write_plain(folder / NAME, config | {"problem": {"data": "test-own:rows=3"}})
    assert "?: not looked at: data set 'test-own' is of a plug-in file" in run("verify", folder).output


@pytest.mark.slow
def test_a_run_that_goes_on_and_one_that_has_not_ended(tmp_path):
    problem = anyk.problems.ManyProblems([anyk.problems.from_data("synthetic:rows=60,features=4")] * 2)

    def watch(driver, evaluator):
        if driver.step == 4:
            assert anyk.verify(tmp_path / "first").whole  # while it is written
        if driver.step == 5:
            driver.interrupt()

    with pytest.raises(KeyboardInterrupt):
        anyk.train(problem, "m-sgc:B=1,W=2,lambda=2,models=2", anyk.cluster("simulated", **SETTING), steps=8,
                   out=tmp_path / "first", callbacks=[Watching(watch)], checkpoint_every=0.0)  # fmt: skip
    assert anyk.verify(tmp_path / "first").whole
    anyk.resume(tmp_path / "first", problem=problem).close()
    assert anyk.verify(tmp_path / "first").whole
    anyk.train(
        problem, "uncoded:models=2", anyk.cluster("simulated", **SETTING), steps=9, begin=tmp_path / "first",
        out=tmp_path / "second",
    ).close()  # fmt: skip
    assert [check.whole for check in anyk.verify(tmp_path / "second").checks if check.name == "beginning"] == [True]
    (tmp_path / "second" / "begin.safetensors").unlink()
    assert damaged(tmp_path / "second") == {"beginning"}


def test_all_runs_of_a_race(tmp_path):
    result = run("race", "--data", "synthetic:rows=60,features=4", "--workers", 4, "--cluster", "simulated", "--delays",
                 "exp:mean=1", "--strategy", "uncoded", "--strategy", "frc:load=2", "--steps", 3, "--quiet", "--out",
                 tmp_path / "race")  # fmt: skip
    assert result.exit_code == 0, result.output
    outcome = run("verify", tmp_path / "race")
    assert outcome.exit_code == 0 and "race.toml, 2 of 2 runs begun" in outcome.output, outcome.output
    (tmp_path / "race" / "frc-load=2" / checkpoints.NAME).unlink()
    outcome = run("verify", tmp_path / "race")
    assert (
        outcome.exit_code == 1
        and "checkpoint     DAMAGED: frc-load=2: checkpoint.safetensors is gone" in outcome.output
    )


def test_a_configuration_without_a_key(folder):
    config = (folder / "run.toml").read_text()
    for key in ("strategy", "workers", "metric"):
        lines = [line for line in config.splitlines() if not line.startswith(f"{key} =")]
        (folder / "run.toml").write_text("\n".join(lines).replace(f"[{key}]", "[others]"))
        for command in ("show", "replay", "resume"):
            result = run(command, folder)
            assert result.exit_code == 2 and f"missing required field `{key}`" in result.output, result.output
            assert len(result.output.strip().splitlines()) == 1
        assert damaged(folder) == {"configuration"}


@pytest.fixture(scope="module")
def networks(tmp_path_factory):
    """The folders of two runs, which together hold every file that a run may write."""
    torch = pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("networks")
    X, y = torch.randn(24, 3), torch.arange(24) % 2
    network = anyk.problems.TorchProblem(torch.nn.Linear(3, 2), torch.nn.CrossEntropyLoss(), (X, y))
    linear = anyk.problems.from_data("synthetic:rows=60,features=4")
    how = {"cluster": anyk.cluster("simulated", **SETTING), "optimizer": anyk.optimizers.GD(lr=0.1)}
    for name, problem in (("network", network), ("linear", linear)):
        anyk.train(problem, "uncoded", steps=2, out=folder / f"{name}-first", **how).close()
        anyk.train(
            problem, "uncoded", steps=3, begin=folder / f"{name}-first", out=folder / name, checkpoint_every=0.0, **how
        ).close()
    return folder


@pytest.mark.slow
def test_every_file_that_a_run_writes_is_compared(networks, tmp_path):
    written = set()
    for name in ("network", "linear"):
        shutil.copytree(networks / name, tmp_path / name)
        assert anyk.verify(tmp_path / name).whole
        for file in sorted((tmp_path / name).iterdir()):
            written.add(file.name)
            content = file.read_bytes()
            file.unlink()
            assert bool(damaged(tmp_path / name)) == (file.name != "lock"), file
            places = range(0, len(content), max(1, len(content) // 12))
            for position in places if file.name != "log.sqlite" else ():  # every bit of a log: corruption.py
                changed = bytearray(content)
                changed[position] ^= 4
                file.write_bytes(changed)
                assert damaged(tmp_path / name), (file, position)
            file.write_bytes(content)
    assert written == {
        "run.toml", "log.sqlite", "lock", "checkpoint.safetensors", "checkpoint.older.safetensors",
        "begin.safetensors", "predictor.json", "model.safetensors",
    }  # fmt: skip


def test_a_model_that_was_changed_is_refused(networks, tmp_path):
    from safetensors import safe_open
    from safetensors.numpy import load_file, save_file

    torch = pytest.importorskip("torch")
    shutil.copytree(networks / "network", tmp_path / "run")
    file = tmp_path / "run" / "model.safetensors"
    content = file.read_bytes()
    with safe_open(file, "np") as opened:
        metadata = opened.metadata()
    X, y = torch.zeros(8, 3), torch.arange(8) % 2
    problem = anyk.problems.TorchProblem(torch.nn.Linear(3, 2), torch.nn.CrossEntropyLoss(), (X, y))
    problem.load_state_dict(tmp_path / "run")
    before = problem.initial()
    negated = {name: -array for name, array in load_file(file).items()}
    flipped = bytearray(content)
    flipped[-2] ^= 1
    for change, sentence in (
        (lambda: save_file(negated, file), "it has no digest"),
        (lambda: save_file(negated, file, {"format": "pt"}), "it has no digest"),
        (lambda: save_file(negated, file, metadata), "its contents do not match their digest"),
        (lambda: file.write_bytes(flipped), "its contents do not match their digest"),
        (file.unlink, "there is no '"),
    ):
        change()
        assert damaged(tmp_path / "run") == {"model"}
        with pytest.raises(anyk.BadInput, match=sentence):
            problem.load_state_dict(tmp_path / "run")
        assert (problem.initial() == before).all()
    save_file(negated, tmp_path / "mine.safetensors")
    problem.load_state_dict(tmp_path / "mine.safetensors")  # anybody's file that the user names
    assert (problem.initial() == -before).all()
    file.symlink_to(tmp_path / "mine.safetensors")
    with pytest.raises(anyk.BadInput, match="it is a link"):
        problem.load_state_dict(tmp_path / "run")


def test_the_model_of_a_run_that_goes_on_is_not_compared(networks, tmp_path):
    torch = pytest.importorskip("torch")
    shutil.copytree(networks / "network", tmp_path / "run")
    X, y = torch.randn(24, 3), torch.arange(24) % 2
    problem = anyk.problems.TorchProblem(torch.nn.Linear(3, 2), torch.nn.CrossEntropyLoss(), (X, y))

    def look(driver, evaluator):
        checks = {check.name: check.whole for check in anyk.verify(tmp_path / "run").checks}
        seen.append(checks["model"])

    seen = []
    config = read_config(tmp_path / "run").plain()
    del config["digests"]["data"], config["digests"]["gradient"]
    write_plain(tmp_path / "run" / NAME, config)
    anyk.resume(tmp_path / "run", problem=problem, steps=4, callbacks=[Watching(look)]).close()
    assert seen == [None] and anyk.verify(tmp_path / "run").whole
