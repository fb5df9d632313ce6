"""Nothing that a stranger's folder names is fetched, followed or waited for."""

import contextlib
import os
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

import anyk
from anyk.callbacks import Mirror
from anyk.cli import main
from anyk.problems.data.shards import survey
from anyk.problems.linear import sharded
from anyk.runs.callbacks import Callback
from anyk.runs.folder.config import NAME, read_config, write_plain
from anyk.views import Watch

pytestmark = pytest.mark.timeout(60, method="thread")  # a library that waits for a pipe hears no signal
DATA = "synthetic:rows=60,features=4"


def run(*arguments):
    return CliRunner().invoke(main, list(map(str, arguments)))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made") / "run"
    first = folder.with_name("first")
    cluster = anyk.cluster("simulated", workers=3, delays="exp:mean=1", seed=1)
    problem, optimizer = anyk.problems.from_data(DATA), anyk.optimizers.GD(lr=0.1)
    setting = {"optimizer": optimizer, "checkpoint_every": 0.0}
    anyk.train(problem, "uncoded", cluster, steps=2, out=first, **setting).close()
    anyk.train(problem, "uncoded", cluster, steps=4, out=folder, begin=first, **setting).close()
    return folder


@pytest.fixture
def folder(made, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(made, tmp_path / "run")
    return tmp_path / "run"


COMMANDS = {
    "verify": ("verify", "run"),
    "show": ("show", "run"),
    "resume": ("resume", "run", "--steps", "6", "--quiet"),
    "replay": ("replay", "run"),
    "predict": ("predict", "run", "rows.csv"),
    "coefficients": ("coefficients", "run"),
    "trace": ("trace", "record", "run", "--out", "x.npz"),
    "check": ("check", "run"),
    "export": ("export", "run", "--to", "csv", "-o", "tables"),
}


def told(result):
    """The sentence with which a command ends; empty if it went well."""
    assert result.exception is None or isinstance(result.exception, SystemExit), (result.exception, result.output)
    if result.exit_code == 2:
        assert len(result.output.strip().splitlines()) == 1, result.output
    return result.output if result.exit_code else ""


@pytest.mark.slow
def test_a_pipe_in_a_run_folder_keeps_nobody_waiting(folder):
    Path("rows.csv").write_text("a,b,c,d\n1,2,3,4\n")
    names = {file.name for file in folder.iterdir() if file.is_file()} | {"log.sqlite-wal"}
    assert {"begin.safetensors", "predictor.json", "checkpoint.older.safetensors"} < names
    os.mkfifo("pipe")
    shutil.copytree(folder, "untouched")
    for name in names:
        shutil.rmtree(folder)
        shutil.copytree("untouched", folder)
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name)
        for command, arguments in COMMANDS.items():
            shutil.rmtree("tables", ignore_errors=True)
            sentence = told(run(*arguments))
            if command == "verify":
                assert bool(sentence) == (name != "lock"), name
        (folder / name).unlink()
        (folder / name).symlink_to(Path("pipe").absolute())
        assert bool(told(run("verify", "run"))) == (name != "lock"), name
        with contextlib.suppress(anyk.BadInput):
            anyk.Run.open(folder).model  # noqa: B018


@pytest.mark.slow
def test_an_unreadable_folder_keeps_no_list_waiting(folder, tmp_path):
    shutil.copytree(folder, "other")
    os.mkfifo(folder / "log.sqlite-wal")
    with Watch([tmp_path]) as watch:
        kind, page = watch._answer("/")
        assert kind == "text/html" and ">other</a>" in page and "is not a regular file" in page
        for number in range(2):
            watch._answer(f"/{number}")


def test_code_and_files_that_a_folder_names_are_not_waited_for(folder):
    os.mkfifo("pipe.py")
    named = {str(Path(name).absolute()): "0" * 64 for name in ("pipe.py", "/dev/zero", "/dev/zero.py", "a\0b.py", "..")}
    write_plain(
        folder / NAME, read_config(folder).plain() | {"digests": {"code": named | {"a..b": "0"}, "files": named}}
    )
    for command in ("verify", "resume", "replay"):
        told(run(*COMMANDS[command]))


HOSTILE = {
    "an address": {"data": "http://203.0.113.9/x.csv"},
    "shards elsewhere": {"data": "shards:files=http://203.0.113.9/x.csv"},
    "held out elsewhere": {"data": "shards:files=here.csv,test=(ssh://203.0.113.9/x.csv)"},
    "a store": {"data": "shards:files=(s3://bucket/x-*.parquet)"},
    "a public data set": {"data": "amazon"},
    "another": {"data": "covertype"},
    "a chain": {"data": "simplecache::http://203.0.113.9/x.csv"},
    "a chain of shards": {"data": "shards:files=(filecache::memory://x.csv)"},
    "a file by address": {"data": "file:///etc/hostname.csv"},
    "references": {"data": "reference://x.csv"},
    "no scheme": {"data": "nothing://x.csv"},
    "one of many": {"many": [{"data": DATA}, {"data": "http://203.0.113.9/x.csv"}]},
    "many of many": {"many": [{"many": [{"data": DATA}]}]},
    "many of nothing": {"many": []},
    "many numbers": {"many": [1, 2]},
    "no data set": {"data": "nobody"},
    "no text": {"data": 5},
    "no function": {"problem": 5},
    "no file": {"data": "file", "file": 3},
    "a file with a NUL": {"data": "file", "file": "a\0b.csv"},
    "shards with a NUL": {"data": "shards:files=a\0*.csv"},
    "a long name": {"data": f"shards:files={'x' * 5000}.csv"},
    "no number": {"data": DATA, "l2": "x"},
    "both": {"data": DATA, "problem": "x:y", "many": [{"data": DATA}]},
    "a pipe": {"data": "shards:files=pipe.csv"},
    "pipes": {"data": "pi*.csv"},
    "a device": {"data": "shards:files=/dev/zero"},
    "a pipe as a file": {"data": "file", "file": "pipe.csv"},
}


@pytest.mark.slow
@pytest.mark.parametrize("named", HOSTILE)
def test_data_that_a_folder_names_is_not_fetched(named, folder, monkeypatch):
    def fetch(*_, **__):
        raise AssertionError("it is fetched")

    for name in ("fsspec.core.url_to_fs", "sklearn.datasets.fetch_openml", "sklearn.datasets.fetch_covtype"):
        monkeypatch.setattr(name, fetch)
    Path("rows.csv").write_text("a,b,c,d\n1,2,3,4\n")
    Path("here.csv").write_text("a,y\n" + "1.5,0\n2.5,1\n" * 5)
    os.mkfifo("pipe.csv")
    write_plain(folder / NAME, read_config(folder).plain() | {"problem": HOSTILE[named]})
    remote = any(sign in str(HOSTILE[named]) for sign in ("://", "amazon", "covertype"))
    for command in ("verify", "show", "resume", "replay", "predict"):
        sentence = told(run(*COMMANDS[command]))
        if command in ("resume", "replay"):
            assert sentence, command
            if remote:
                assert "names data that would be fetched" in sentence, sentence
    assert not remote or "would be fetched" in run("verify", "run").output


def test_remote_data_is_read_if_trusted_or_named_again(folder, monkeypatch):
    from fsspec import filesystem

    for module in (sharded, survey):
        monkeypatch.setattr(module, "map_in_processes", lambda work, pieces: [work(piece) for piece in pieces])
    filesystem("memory").pipe("/hostile/x.csv", b"a,y\n" + b"1.5,0\n2.5,1\n" * 5)
    write_plain(folder / NAME, read_config(folder).plain() | {"problem": {"data": "memory://hostile/x.csv"}})
    assert "names data that would be fetched, 'memory://hostile/x.csv'" in run(*COMMANDS["replay"]).output
    assert "has changed since the run" in run(*COMMANDS["replay"], "--trust").output
    problem = anyk.problems.LeastSquares(anyk.data.Shards("memory://hostile/x.csv", cache_mb=1e-9))
    anyk.train(problem, "uncoded", "simulated", workers=2, steps=1, out="given").close()
    assert anyk.resume("given", problem=problem, steps=3).steps == 3  # which reads it again, and needs no trust
    result = run("train", "--data", "reference://x.csv", "--workers", 2, "--steps", 1)
    assert "'reference://x.csv' cannot be opened" in told(result)


class Linking(Callback):
    """Makes links in a mirror's folder while the run goes on."""

    def __init__(self, place, precious):
        self.place, self.precious = place, precious

    def on_step(self, info):
        if info.step == 2:
            for name in ("log.sqlite", "run.toml"):
                (self.place / name).unlink()
                for end in ("", ".new", ".part"):
                    (self.place / f"{name}{end}").symlink_to(self.precious)


def test_new_links_in_a_mirrors_folder_are_not_followed(tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("mine")
    mirror = Mirror(tmp_path / "copy")
    anyk.train(
        anyk.problems.from_data(DATA), "uncoded", "simulated", workers=2, steps=4, out=tmp_path / "run",
        callbacks=[mirror, Linking(mirror.folder, precious)],
    ).close()  # fmt: skip
    assert precious.read_text() == "mine"
    assert not (mirror.folder / "log.sqlite").is_symlink()
    with anyk.Run.open(mirror.folder) as copy:
        assert copy.steps == 4


def test_the_folder_of_a_mirror_is_whole_and_is_not_resumed(made, tmp_path):
    mirror = Mirror(tmp_path / "copy")
    cluster = anyk.cluster("simulated", workers=3, delays="exp:mean=1", seed=1)
    anyk.train(
        anyk.problems.from_data(DATA), "uncoded", cluster, steps=6, begin=made, optimizer=anyk.optimizers.GD(lr=0.1),
        out=tmp_path / "run", checkpoint_every=0.0, callbacks=[mirror],
    ).close()  # fmt: skip
    verdict = anyk.verify(mirror.folder)
    assert verdict.whole and "mirror" in [check.name for check in verdict.checks], str(verdict)
    assert "resume the folder of the run itself" in told(run("resume", mirror.folder, "--steps", 9))
    (tmp_path / "run" / "checkpoint.safetensors").unlink()
    assert not anyk.verify(tmp_path / "run").whole
    with (mirror.folder / "log.sqlite").open("r+b") as log:
        log.truncate(5000)
    assert not anyk.verify(mirror.folder).whole
