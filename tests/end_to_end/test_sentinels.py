"""Every command, given what a stranger may have made: nothing runs, is unpickled, fetched, waited for or written.

The commands and their parameters are taken from the command line itself: a new one fails here until it is classified.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import pickle
import shutil
import sqlite3
import struct
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from click.testing import CliRunner

import anyk
from anyk.cli import main
from anyk.runs.folder.config import NAME, _digest, read_config, write_plain
from anyk.views import Watch
from hanging import within

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300, method="thread")]  # a library may hear no signal

DATA = "synthetic:rows=60,features=4"
SECONDS = 30  # of the processor or the clock, after which a command counts as hanging

# ------------------------------------------------------------------------------------------- the command line

# what each parameter takes. "reads": a run, a file or a source of others; "spec": a spec, which may name a file;
# "code": code, run because the user names it here and now; "writes": a place for results; "names": nothing that is
# opened; "address": where to listen or connect, because the user asks for it
PARAMETERS = {
    "reads": "run runs sources source folders file record config from plan data data-file data-dir other",
    "spec": "spec specs strategy add today delays communication cluster optimizer lr model evaluate decoder",
    "code": "plugin problem callback function",
    "writes": "out json picture table mirror page",
    "names": "name kind to split args workers kill stop slow corrupt nan driver round worker seconds node-kill node-stop network "
    "nodes",
    "address": "metrics address",
}
KINDS = {name: kind for kind, names in PARAMETERS.items() for name in names.split()}


def leaves(
    command: click.Command = main, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield the commands that do something, each with the words that name it."""
    if not isinstance(command, click.Group):
        yield path, command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        subcommand = command.get_command(context, name)
        assert subcommand is not None
        yield from leaves(subcommand, (*path, name))


COMMANDS = {" ".join(path): command for path, command in leaves()}


def name_of(parameter: click.Parameter) -> str:
    """Return a parameter's name, without dashes."""
    return max(parameter.opts, key=len).lstrip("-").replace("_", "-")


def texts(command: click.Command) -> dict[str, click.Parameter]:
    """Return the parameters of a command that take a text."""
    return {
        name_of(parameter): parameter
        for parameter in command.params
        if isinstance(parameter.type, click.types.StringParamType)
    }


def test_each_parameter_of_each_command_is_classified() -> None:
    names = {name for command in COMMANDS.values() for name in texts(command)}
    assert names == set(KINDS)


# what a command needs beside the parameter that is tried
NEEDS = {
    "train": ["--data", DATA, "--workers", "3", "--steps", "2", "--cluster", "simulated", "--delays", "exp:mean=1"],
    "record": ["-o", "record.csv"],
    "export": ["--to", "csv", "-o", "tables"],
    "trace record": ["--out", "trace.npz"],
    "replay": [],
    "resume": ["--steps", "6", "--quiet"],
    "report": ["-o", "page.html"],
    "plan": ["--resamples", "20", "--steps", "5", "--slope", "0"],
    "scale": ["--model", "1e6", "--network", "1Gb/s", "--nodes", "4"],
}
NEEDS["race"] = [*NEEDS["train"], "--strategy", "uncoded"]
ARGUMENTS = {"run": "run", "runs": "run", "sources": "times.csv", "source": "times.csv", "file": "rows.csv"}
ARGUMENTS |= {
    "workers": "1",
    "folders": ".",
    "spec": "frc:load=2",
    "specs": "frc:load=2",
    "function": "math:sqrt",
    "name": "?",
    "strategy": "uncoded",
}
INSTEAD = {
    "delays": ["--data"], "data": ["--data"], "data-file": ["--data"], "cluster": ["--cluster"],
    "strategy": ["--strategy"], "model": ["--model"], "out": ["-o", "--out"],
}  # fmt: skip


def given(words: str, parameter: str, value: str) -> list[str]:
    """Return the arguments of a command in which one parameter has a value and the others what they need."""
    command, line, options = COMMANDS[words], words.split(), []
    for option in command.params:
        name = name_of(option)
        if isinstance(option, click.Argument):
            line.append(value if name == parameter else ARGUMENTS[name])
        elif name == parameter:
            options = [max(option.opts, key=len), value]
    needs = list(NEEDS.get(words, []))
    for flag in {*options[:1], *INSTEAD.get(parameter, [])}:
        while flag in needs:
            del needs[needs.index(flag) : needs.index(flag) + 2]
    if parameter == "data-file":
        options += ["--data", "file"]
    return [*line, *needs, *options]


# ------------------------------------------------------------------------------------------- sentinels


class Touched(AssertionError):
    """Something happened that must not."""


class Guard:
    """Notes, while it is on, what the interpreter's audit events report: it cannot be removed, only switched off."""

    def __init__(self) -> None:
        self.on = False
        self.noted: list[str] = []
        self.places: tuple[str, ...] = ()
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.on:
            return
        if event in ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto"):
            self.noted.append(f"{event} {arguments[-1]}")
            raise OSError("no network here")
        if event == "pickle.find_class" and arguments[0] == "os":
            self.noted.append(f"{event} {arguments}")
        elif event in ("os.system", "subprocess.Popen", "os.exec", "os.posix_spawn"):
            if not str(arguments[0]).endswith("git") and str(arguments[0]) != sys.executable:  # the run's environment
                self.noted.append(f"{event} {arguments[:2]}")
        elif event == "import" and str(arguments[0]).startswith("evil"):
            self.noted.append(f"{event} {arguments[0]}")
        elif (
            event == "open"
            and isinstance(arguments[0], str)
            and arguments[2] & (os.O_WRONLY | os.O_RDWR)
            and "__pycache__" not in arguments[0]
            and not os.path.realpath(arguments[0]).startswith(self.places)
        ):
            self.noted.append(f"{event} {arguments[0]} for writing")

    @contextlib.contextmanager
    def watching(self, *places: Path) -> Iterator[list[str]]:
        """Note what happens; files may be written below ``places`` only."""
        self.noted, self.places = [], (*map(str, places), "/dev/null", "/proc")
        self.on = True
        try:
            yield self.noted
        finally:
            self.on = False


GUARD = Guard()


@pytest.fixture(autouse=True)
def no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """``watch`` answers once instead of serving."""

    def answer(watch: Watch) -> None:
        for path in ("/", "/0"):
            with contextlib.suppress(KeyError):
                watch._answer(path)

    monkeypatch.setattr(Watch, "serve", answer)
    monkeypatch.setattr(os, "nice", lambda _: 0)


# ------------------------------------------------------------------------------------------- what strangers make

EVIL = "from pathlib import Path\nPath({sentinel!r}).touch()\ndef make(*_):\n    return 1\nmake.X = make\n"


class Bomb:
    """Unpickled, it makes a file."""

    def __init__(self, sentinel: Path) -> None:
        self._sentinel = sentinel

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self._sentinel),)


def parquet(file: Path) -> None:
    """Write a table whose metadata pretend to more rows than any memory has."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"w0": [1.0, 2.0], "w1": [1.0, 2.0]}), file)


def npy_head(shape: str, kind: str = "'<f8'") -> bytes:
    """Return an array's header that pretends to a shape."""
    head = f"{{'descr': {kind}, 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", 118) + head.ljust(117) + b"\n"


def make_files(folder: Path, sentinel: Path) -> list[str]:
    """Make the files of a stranger, each under every suffix that some reader takes; return their names."""
    bomb = pickle.dumps(Bomb(sentinel))
    objects = np.empty(2, dtype=object)
    objects[:] = Bomb(sentinel)
    suffixes = ("csv", "npz", "npy", "parquet", "svm", "toml", "json", "gz", "pt", "pkl", "safetensors")
    names = []
    for suffix in suffixes:
        (folder / f"bomb.{suffix}").write_bytes(bomb)
        names.append(f"bomb.{suffix}")
    np.save(folder / "objects.npy", objects, allow_pickle=True)
    np.savez(folder / "objects.npz", X=objects, y=objects, times=objects)
    (folder / "huge.npy").write_bytes(npy_head("(1000000000000000,)"))
    (folder / "long.npy").write_bytes(npy_head(f"({10**40}, {10**40})"))
    for name in ("X", "times"):
        with zipfile.ZipFile(folder / f"huge-{name}.npz", "w") as archive:
            for member in (name, "y"):
                archive.writestr(f"{member}.npy", npy_head("(1000000000000000,)"))
        names.append(f"huge-{name}.npz")
    (folder / "huge.safetensors").write_bytes(struct.pack("<Q", 2**62) + b"{}")
    (folder / "deep.json").write_bytes(b"[" * 100_000)
    (folder / "deep.toml").write_bytes(b"a = " + b"[" * 100_000)
    (folder / "digits.toml").write_bytes(b"workers = " + b"9" * 100_000 + b"\n")
    (folder / "digits.csv").write_bytes(b"a,b\n" + b"9" * 100_000 + b",1\n")
    for suffix in ("csv", "npz", "toml", "parquet"):
        os.mkfifo(folder / f"pipe.{suffix}")
        (folder / f"device.{suffix}").symlink_to("/dev/zero")
        (folder / f"endless.{suffix}").symlink_to(folder / f"endless.{suffix}")
        names += [f"pipe.{suffix}", f"device.{suffix}", f"endless.{suffix}"]
    (folder / "gone.csv").symlink_to(folder / "nowhere.csv")
    names += ["objects.npy", "objects.npz", "huge.npy", "long.npy", "huge.safetensors", "deep.json", "deep.toml"]
    return [*names, "digits.toml", "digits.csv", "gone.csv"]


NAMES = [
    "evil:make", "evil.py:make", "os:abort", "http://203.0.113.9/x.csv", "https://203.0.113.9/x.npz",
    "s3://bucket/x.parquet", "ssh://203.0.113.9/x.csv", "ftp://203.0.113.9/x.toml", "file:///etc/hostname",
    "//203.0.113.9/share/x.csv", "a\0b", "x" * 5000, "-", "/dev/stdin", "~nobody/x", "../" * 50, "", " ", "٣", "%s{0}",
]  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, a race and a plan."""
    folder = tmp_path_factory.mktemp("made")
    problem = anyk.problems.from_data(DATA)
    cluster = anyk.cluster("simulated", workers=3, delays="exp:mean=1", seed=1)
    setting: Any = {"optimizer": anyk.optimizers.GD(lr=0.1), "checkpoint_every": 0.0}
    anyk.train(problem, "uncoded", cluster, steps=4, out=folder / "run", **setting).close()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        two = ["--strategy", "uncoded", "--strategy", "frc:load=3", "--out", "race", "--quiet"]
        done = CliRunner().invoke(main, ["race", *NEEDS["train"], *two])
        assert done.exit_code == 0, done.output
        record = anyk.fleet.Record([[4, 1, 1], [1, 4, 1]] * 4)
        anyk.plan(record, slope=0.0, resamples=20).promise.save("plan.toml")
        record.save("times.csv")
    return folder


@pytest.fixture
def place(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of a stranger with all of this, in which a command is called."""
    working = tmp_path / "here"
    shutil.copytree(made, working)
    monkeypatch.chdir(working)
    monkeypatch.setattr(tempfile, "tempdir", str(working))
    monkeypatch.setattr(sys, "path", ["", *sys.path])  # as in a notebook, or with python -m
    (working / "rows.csv").write_text("a,b,c,d\n1,2,3,4\n")
    for folder in (working, working / "run", working / "race"):
        (folder / "evil.py").write_text(EVIL.format(sentinel=str(tmp_path / "sentinel")))
    yield working
    for name in [name for name in sys.modules if name.startswith(("evil", "anyk_file_evil"))]:
        del sys.modules[name]


def call(line: list[str], place: Path, why: object = "", *, network: bool = False) -> click.testing.Result:
    """Call a command and check that it ends by itself, in a sentence or well, and that no sentinel was touched."""
    if line[0] == "watch":
        line = [*line, "--port", "0"]
    sentinel, about = place.parent / "sentinel", f"{why}: anyk {' '.join(line)[:300]}"
    with GUARD.watching(place) as noted, within(SECONDS, error=Touched):
        result = CliRunner().invoke(main, line, input="")
    noted = [note for note in noted if not (network and note.startswith("socket."))]
    assert not noted, f"{about}: {noted[:5]}"
    assert not sentinel.exists(), about
    assert "evil" not in sys.modules, about
    ended = result.exception is None or isinstance(result.exception, SystemExit)
    assert ended, f"{about}: {result.exception!r}\n{result.output[-2000:]}"
    assert result.exit_code in (0, 1, 2), f"{about}: {result.exit_code}"
    assert "Traceback" not in result.output, f"{about}: {result.output}"
    if result.exit_code == 2:
        said = [line for line in result.stderr.splitlines() if line.startswith(("anyk:", "Error:"))]
        assert len(said) == 1, f"{about}: {result.stderr}"
    return result


TRIED = [
    (words, name) for words, command in COMMANDS.items() for name in texts(command) if KINDS[name] in ("reads", "spec")
]
WRAPPED = {
    "delays": "trace:{}", "communication": "link:latency=(trace:{}),bandwidth=1e6", "spec": "file:{}", "specs": "file:{}",
    "strategy": "dpsgd:graph=(file:{})", "today": "dpsgd:graph=(file:{})", "add": "dpsgd:graph=(file:{})",
    "data": "shards:files=({})", "source": "trace:{}", "optimizer": "torch:method={}.X", "model": "{}", "evaluate": "{}",
}  # fmt: skip


@pytest.mark.parametrize(("words", "name"), TRIED, ids=[f"{words} {name}" for words, name in TRIED])
def test_files_and_names_of_strangers(words: str, name: str, place: Path) -> None:
    files = make_files(place, place.parent / "sentinel")
    wrong: list[str] = []
    ways = ["{}"] if KINDS[name] == "reads" else []
    ways += [WRAPPED[name]] if name in WRAPPED else ["{}"]
    for way, named in itertools.product(dict.fromkeys(ways), [*files, *NAMES]):
        code = named.startswith(("evil", "os:")) and name in ("optimizer", "strategy")  # which the user names now
        value = way.format(named)
        if code:
            continue
        asked = name in ("data", "cluster")  # what is at an address is fetched, as the user asks for it
        shutil.rmtree("tables", ignore_errors=True)
        try:
            call(given(words, name, value), place, f"{name} = {value[:60]!r}", network=asked and "://" in value)
        except AssertionError as error:
            wrong.append(str(error).split("\nassert")[0][:600])
    assert not wrong, "\n".join(wrong)


# ------------------------------------------------------------------------------------------- folders of strangers


def edited(folder: Path, **changes: Any) -> None:
    """Change a run's settings, as a stranger would who knows how the file is made."""
    write_plain(folder / NAME, read_config(folder).plain() | changes)


def put(name: str, content: bytes) -> Callable[[Path], None]:
    """Return a change of a folder: other contents of a file."""
    return lambda folder: (folder / name).write_bytes(content) and None


def sealed(text: str) -> bytes:
    """Return settings with the digest that belongs to them."""
    return f'digest = "{_digest(tomllib.loads(text))}"\n{text}'.encode()


def special(name: str, make: Callable[[Path], None]) -> Callable[[Path], None]:
    """Return a change of a folder: something else instead of a file."""

    def change(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        make(folder / name)

    return change


def statement(*texts: str) -> Callable[[Path], None]:
    """Return a change of a run's log."""

    def change(folder: Path) -> None:
        with contextlib.closing(sqlite3.connect(folder / "log.sqlite")) as log:
            for value in texts:
                log.execute(value)
            log.commit()

    return change


def sparse(name: str) -> Callable[[Path], None]:
    """Return a change of a folder: a file with a hole of a terabyte."""

    def change(folder: Path) -> None:
        with (folder / name).open("ab") as file:
            file.truncate(1 << 40)

    return change


FILES = ("run.toml", "log.sqlite", "predictor.json", "checkpoint.safetensors", "checkpoint.older.safetensors", "lock")
HUGE = "9" * 18
SAFE = b'{"a":{"dtype":"F64","shape":[%s],"data_offsets":[0,%s]}}'
FOLDERS: dict[str, Callable[[Path], None]] = {
    "code": lambda at: edited(at, problem={"problem": "evil:make"}),
    "code in a file": lambda at: edited(at, problem={"problem": f"{at}/evil.py:make"}),
    "code of the library": lambda at: edited(at, problem={"problem": "os:abort"}),
    "code of an optimiser": lambda at: edited(at, optimizer="torch:method=evil.X"),
    "code of an inner optimiser": lambda at: edited(at, strategy="pasgd:tau=2,inner=(torch:method=evil.X)"),
    "code of a callback": lambda at: edited(at, callbacks=["evil:make", f"{at}/evil.py:make"]),
    "modules to preload": lambda at: edited(at, cluster="processes:preload=evil"),
    "a folder of requests": lambda at: edited(at, cluster=f"processes:spoiled={at.parent}"),
    "plug-ins": lambda at: edited(at, digests={"code": {f"{at}/evil.py": "0" * 64}, "plugins": [f"{at}/evil.py"]}),
    "data at an address": lambda at: edited(at, problem={"data": "http://203.0.113.9/x.csv"}),
    "a cluster at an address": lambda at: edited(at, cluster="ray:address=203.0.113.9:6379"),
    "a trace at an address": lambda at: edited(at, delays="trace:http://203.0.113.9/x.npz"),
    "a trace in a pipe": lambda at: edited(at, delays=f"trace:{at.parent}/pipe.npz"),
    "a trace of objects": lambda at: edited(at, delays=f"trace:{at.parent}/objects.npz"),
    "a matrix of objects": lambda at: edited(at, strategy=f"dpsgd:graph=(file:{at.parent}/objects.npy)"),
    "a huge matrix": lambda at: edited(at, strategy=f"dpsgd:graph=(file:{at.parent}/huge.npy)"),
    "a tracker": lambda at: edited(at, callbacks=["mirror:/nowhere"]),
    "a start elsewhere": lambda at: edited(at, begin={"run": "http://203.0.113.9/", "strategy": "uncoded", "step": 10**18}),
    "many workers": lambda at: edited(at, workers=10**15),
    "workers of a large machine": lambda at: edited(at, workers=10**7),
    "many partitions": lambda at: edited(at, partitions=10**15),
    "many models": lambda at: edited(at, strategy="uncoded:models=1000000000"),
    "a large load": lambda at: edited(at, strategy="frc:load=1000000000000"),
    "many steps": lambda at: edited(at, steps=2**53),
    "a negative count": put("run.toml", sealed("format = 1\nworkers = -5\n")),
    "numbers out of range": put("run.toml", sealed(f"format = 1\nworkers = {10**30}\n")),
    "a number of many digits": put("run.toml", b"workers = " + b"9" * 100_000),
    "deep settings": put("run.toml", b"a = " + b"[" * 100_000),
    "a header of a checkpoint": put("checkpoint.safetensors", struct.pack("<Q", 2**62) + b"{}"),
    "a header of much memory": put("checkpoint.safetensors", struct.pack("<Q", 90_000_000) + b"{}"),
    "a shape of a checkpoint": put(
        "checkpoint.safetensors", struct.pack("<Q", len(SAFE) + 32) + (SAFE % (HUGE.encode(), HUGE.encode())).ljust(len(SAFE) + 32)
    ),
    "a deep predictor": put("predictor.json", b"[" * 100_000),
    "no log": put("log.sqlite", b"no log"),
    "a page size of a log": put("log.sqlite", b"SQLite format 3\0" + b"\xff" * 84),
    "many versions": statement(f"UPDATE updates SET version = {HUGE}"),
    "many tasks": statement(f"UPDATE chunks SET task = {HUGE}, chunk = {HUGE}, worker = {HUGE}"),
    "many workers in the log": statement("UPDATE chunks SET worker = 10000000 WHERE task = 1"),
    "negative numbers": statement("UPDATE chunks SET worker = -7, version = -7, step = -7, task = -7"),
    "texts for numbers": statement("UPDATE chunks SET worker = 'x', received = 'x'", "UPDATE updates SET time = 'x'"),
    "large works": statement("UPDATE works SET partitions = '[1e999]', coefficients = printf('%.*c', 3000000, '[')"),
    "deep works": statement("UPDATE works SET partitions = printf('%.*c', 100000, '[')"),
    "many samples": statement(f"UPDATE partitions SET samples = {HUGE}"),
    "a blob of much memory": statement("UPDATE events SET info = zeroblob(20000000)"),
    "views for tables": statement("DROP TABLE chunks", "CREATE VIEW chunks AS SELECT load_extension('evil') AS task"),
    "triggers": statement("CREATE TRIGGER t AFTER INSERT ON events BEGIN SELECT writefile('/tmp/x', 'x'); END"),
    "many rows": statement(
        "CREATE TABLE n AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 30000) SELECT i FROM n",
        "INSERT INTO notes SELECT 0.0, 'k', 'x', i FROM n", "DROP TABLE n",
    ),
    "an endless view": statement(
        "DROP TABLE notes", "CREATE VIEW notes AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) "
        "SELECT 0.0 AS time, 'k' AS kind, 'x' AS text, i AS seq FROM n",
    ),
}  # fmt: skip
for _name in FILES:
    FOLDERS[f"a pipe as {_name}"] = special(_name, os.mkfifo)
    FOLDERS[f"a link as {_name}"] = special(_name, lambda place: place.symlink_to("/etc/hostname"))
    FOLDERS[f"a device as {_name}"] = special(_name, lambda place: place.symlink_to("/dev/zero"))
    FOLDERS[f"a folder as {_name}"] = special(_name, lambda place: place.mkdir())
    FOLDERS[f"a hole in {_name}"] = sparse(_name)
TAKE_RUNS = [
    (words, name)
    for words, name in TRIED
    if name in ("run", "runs", "from", "sources", "source", "folders", "record", "other")
]


WHOLE = ("resume", "show", "train", "replay")  # the others are given a part of the folders, each another


@pytest.mark.parametrize(("words", "name"), TAKE_RUNS, ids=[f"{words} {name}" for words, name in TAKE_RUNS])
def test_run_folders_of_strangers(words: str, name: str, place: Path) -> None:
    make_files(place, place.parent / "sentinel")
    shutil.copytree("run", "untouched")
    wrong: list[str] = []
    first = TAKE_RUNS.index((words, name))
    for number, (made_by, change) in enumerate(FOLDERS.items()):
        if words not in WHOLE and number > 12 and number % len(TAKE_RUNS) % 6 != first % 6:
            continue
        shutil.rmtree("run")
        shutil.copytree("untouched", "run")
        for left in ("tables", "runs"):
            shutil.rmtree(left, ignore_errors=True)
        change(place / "run")
        try:
            call(given(words, name, "." if name == "folders" else "run"), place, made_by)
        except AssertionError as error:
            wrong.append(str(error).split("\nassert")[0][:600])
    assert not wrong, "\n".join(wrong)


def raced(**changes: Any) -> Callable[[Path], None]:
    """Return a change of a race's settings."""

    def change(folder: Path) -> None:
        plain = tomllib.loads((folder / "race.toml").read_text())
        write_plain(folder / "race.toml", {key: value for key, value in plain.items() if key != "digest"} | changes)

    return change


def plain_race(folder: Path) -> dict[str, Any]:
    """Return the settings that a race has in common with a run."""
    return {"optimizer": "torch:method=evil.X", "problem": {"problem": f"{folder}/evil.py:make"}}


RACES: dict[str, Callable[[Path], None]] = {
    "code": raced(problem={"problem": "evil:make"}),
    "code in a file": lambda at: raced(**plain_race(at))(at),
    "an address": raced(problem={"data": "s3://bucket/x.parquet"}, cluster="ray:address=203.0.113.9:6379"),
    "a place to write": raced(callbacks=["mirror:/nowhere"]),
    "many workers": raced(workers=10**15),
    "many steps": raced(steps=2**53),
    "a number of many digits": put("race.toml", b"workers = " + b"9" * 100_000),
    "deep settings": put("race.toml", b"a = " + b"[" * 100_000),
    "a pipe": special("race.toml", os.mkfifo),
    "a device": special("race.toml", lambda place: place.symlink_to("/dev/zero")),
    "a hole": sparse("race.toml"),
    "runs elsewhere": lambda at: (at / "more").symlink_to("/"),
    "itself in itself": lambda at: (at / "more").symlink_to(at),
}
TAKE_RACES = [(words, name) for words, name in TAKE_RUNS if name in ("run", "runs", "folders", "from")]


@pytest.mark.parametrize(("words", "name"), TAKE_RACES, ids=[f"{words} {name}" for words, name in TAKE_RACES])
def test_race_folders_of_strangers(words: str, name: str, place: Path) -> None:
    shutil.copytree("race", "untouched")
    wrong: list[str] = []
    for made_by, change in RACES.items():
        shutil.rmtree("race")
        shutil.copytree("untouched", "race")
        change(place / "race")
        more = ["--add", "cyclic:stragglers=1"] if words == "resume" else []
        try:
            call([*given(words, name, "." if name == "folders" else "race"), *more], place, made_by)
        except AssertionError as error:
            wrong.append(str(error).split("\nassert")[0][:600])
    assert not wrong, "\n".join(wrong)
