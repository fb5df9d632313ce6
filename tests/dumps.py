"""Logs of some forty runs on the virtual clock, to compare what one state of the package writes with another.

    python tests/dumps.py               compare with tests/dumps.txt; exit status 1 where a table differs
    python tests/dumps.py --write       write tests/dumps.txt
    python tests/dumps.py --show RUN    print all tables of a run's logs, for ``diff`` with what a former state prints

The runs have different strategies, problems, delays, outages, limits and callbacks; some are interrupted and resumed,
some race. All rows of all tables are read by SQL. What depends on the clock of the machine or is written for readers is
left out: see ``LEFT_OUT`` and ``plain``.

A line of the file has, of a table of a log, the number of rows and a fingerprint of each column: a digest of its values
with numbers to 12 significant digits, and, where there are fractional numbers, also a digest without them and a weighted
sum of them. A column agrees when its digest does, or when the others do, the sum within a tolerance: linear algebra
differs in the last digits from one machine to another. Columns of digests of vectors (``BITS``) differ with them; they
count with ``--exact``, and are mentioned otherwise.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import io
import json
import math
import os
import signal
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

import anyk
from anyk.cli import main as command
from anyk.clusters import Compute, Outage, Simulated
from anyk.runs import saving
from golden import digest, digits, without_noise

FILE = Path(__file__).with_suffix(".txt")
QUICK = ("frc:load=2,wait=4 with outages", "fedbuff, compressed messages", "resumed twice", "race, resumed")
LEFT_OUT = {"seals": "*", "checkpoints": ("digest",), "notes": ("text",)}  # of bytes of files, and for readers
BITS = ("digest",)
TOLERANCE, TOLERANCE_TORCH = 1e-9, 1e-4  # of a sum, relative to the sum of absolute values; torch has 32 bits
OUTAGES = (Outage(0.9, 2, 2.5), Outage(1.4, 0, 1.9), Outage(3.0, 4, 30.0))


GD, MOMENTUM = anyk.optimizers.GD(lr=0.3), anyk.optimizers.Momentum(lr=0.1)

# ------------------------------------------------------------------------------------------------- the runs

Make = Callable[[Path], None]
RUNS: dict[str, Make] = {}


@functools.cache
def problem(name: str) -> Any:
    """A problem by its name; each is made once."""
    if name == "torch":
        return torch_problem()
    if name == "many":
        return [problem("linear"), anyk.problems.from_data("synthetic:rows=240,features=8,seed=5")]
    data, _, options = {
        "linear": "synthetic:rows=240,features=8",
        "regression": "synthetic:rows=240,features=6,task=regression",
        "classes": "synthetic:rows=240,features=6,task=multiclass,classes=3",
        "skewed": "synthetic:rows=240,features=6,task=multiclass,classes=3|split=dirichlet:alpha=0.3",
        "network": "synthetic:rows=240,features=6,task=multiclass,classes=3|model=two-layer:hidden=5",
    }[name].partition("|")
    key, _, value = options.partition("=")
    return anyk.problems.from_data(data, **({key: value} if key else {}))


def torch_problem() -> Any:
    """A small network of torch."""
    import torch

    with torch.random.fork_rng():
        torch.manual_seed(0)
        inputs = torch.randn(120, 5)
        module = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    return anyk.problems.TorchProblem(
        module, torch.nn.CrossEntropyLoss(), (inputs, (inputs[:, 0] > 0).long()), threads=1
    )


def simulated(
    spec: str,
    *,
    on: str = "linear",
    workers: int = 6,
    delays: str = "exp:mean=0.5",
    steps: int | None = 30,
    seed: int = 1,
    cluster: dict[str, Any] | None = None,
    **options: Any,
) -> Make:
    """A run in one go."""

    def make(folder: Path) -> None:
        on_clock = Simulated(workers, delays=delays, seed=seed, **(cluster or {}))
        train = anyk.train_many if on == "many" else anyk.train
        limits = {"steps": steps, "checkpoint_every": 1e9, **options}
        if "callbacks" in options:
            limits["callbacks"] = [anyk.callbacks.callback(text.format(folder)) for text in options["callbacks"]]
        train(problem(on), spec, on_clock, out=folder / "run", **limits).close()

    return make


class InterruptedAt(anyk.Callback):
    """Ctrl-C after a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step(self, info: Any) -> None:
        if info.step == self.step:
            os.kill(os.getpid(), signal.SIGINT)


class FailsAt(InterruptedAt):
    """An exception after a step."""

    def on_step(self, info: Any) -> None:
        if info.step == self.step:
            raise RuntimeError("as a test wants it")


def resumed(spec: str, *stops: Any, on: str = "linear", steps: int = 30, every: float = 1e9, **options: Any) -> Make:
    """A run that is resumed after each stop: a number of steps, or a callback that ends it."""

    def make(folder: Path) -> None:
        again = {"problem": problem(on)} if on == "torch" else {}
        for number, stop in enumerate((*stops, steps)):
            limits: dict[str, Any] = {"steps": stop} if isinstance(stop, int) else {"steps": steps, "callbacks": [stop]}
            limits["checkpoint_every"] = every
            with contextlib.suppress(KeyboardInterrupt, RuntimeError):
                if number:
                    anyk.resume(folder / "run", **limits, **again).close()
                else:
                    clock = Simulated(6, delays="exp:mean=0.5", seed=2)
                    anyk.train(problem(on), spec, clock, out=folder / "run", **limits, **options).close()

    return make


def begun(first: str, second: str) -> Make:
    """A run that begins where another ended."""

    def make(folder: Path) -> None:
        for number, spec in enumerate((first, second), 1):
            begin = {"begin": folder / "1"} if number == 2 else {}
            clock = Simulated(6, delays="exp:mean=0.5", seed=3)
            run = anyk.train(problem("linear"), spec, clock, steps=12 * number, out=folder / str(number), **begin)
            run.close()

    return make


def commanded(*lines: str) -> Make:
    """Command lines, one after another, in which {} is a folder."""

    def make(folder: Path) -> None:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            for line in lines:
                command([word.format(folder) for word in line.split()], standalone_mode=False)

    return make


def _auto(folder: Path) -> None:
    auto = anyk.train_auto(
        problem("linear"), workers=6, cluster="simulated", delays="bimodal:fast=0.1,slow=1,probability=0.2", steps=40,
        measure=10, out=folder / "auto",
    )  # fmt: skip
    for run in auto.runs:
        run.close()


def _raced(folder: Path) -> None:
    options: dict[str, Any] = {"workers": 6, "cluster": "simulated", "delays": "exp:mean=1", "seeds": 2}
    race = anyk.race(problem("linear"), ["uncoded", "frc:load=3"], steps=12, out=folder / "race", **options)
    race.close()
    anyk.resume_race(folder / "race", add=["agc:load=2,wait=4"]).close()


COMMON = "--cluster simulated --workers 6 --delays exp:mean=0.5 --quiet"
RUNS |= {
    "uncoded": simulated("uncoded", optimizer="gd"),
    "uncoded:wait=4|0.2s with outages": simulated("uncoded:wait=4|0.2s", cluster={"outages": OUTAGES}),
    "uncoded:wait=2&1mad, limit of seconds": simulated("uncoded:wait=2&1mad", steps=None, seconds=9.0),
    "frc:load=2,wait=4 with outages": simulated("frc:load=2,wait=4,cancel=discard", cluster={"outages": OUTAGES}),
    "agc with snapshots": simulated("agc:load=2,wait=4,snapshot=3", on="regression", optimizer="momentum"),
    "cyclic, communication": simulated("cyclic:stragglers=2", cluster={"communication": "exp:mean=0.1"}),
    "mds, least squares": simulated("mds:stragglers=2,wait=3,decoder=least-squares", on="classes"),
    "nested:wait=50%": simulated("nested:stragglers=1,wait=50%", cluster={"compute": Compute(0.01, 0.05, 0.0, 4)}),
    "progress with outages": simulated("progress:load=2", cluster={"outages": OUTAGES}),
    "partial, bimodal delays": simulated("partial:stragglers=1,load=3", delays="bimodal:fast=0.1,slow=1,probability=0.2"),
    "comm-efficient": simulated("comm-efficient:stragglers=1", on="classes"),
    "draco, a byzantine worker": simulated("draco:byzantine=1,stragglers=1", workers=8, cluster={"byzantine": (1,)}),
    "tree": simulated("tree:children=2,stragglers=1", optimizer="adam:lr=3.04"),
    "bgc on classes": simulated("bgc:load=2,decoder=one-step", on="classes", callbacks=["checkpoint:folder={0}/kept,every=10,best=loss"]),
    "hetero": simulated("hetero:probability=0.2,relearn=3", delays="hetero:means=0.1/0.2/0.6"),
    "balance": simulated("uncoded:balance=auto", delays="hetero:means=0.1/0.2/0.6"),
    "anytime": simulated("anytime:deadline=0.6,parts=3", cluster={"compute": Compute(0.01, 0.05, 0.0, 6)}),
    "async, stale=distance": simulated("async:stale=distance,bound=0.5,cutoff=6", optimizer="gd", steps=60),
    "async, compensated, target": simulated("async:compensate=0.04,batch=8", steps=80, target=0.95),
    "k-async:stale=sqrt": simulated("k-async:k=3,stale=sqrt,batch=4", on="network", optimizer="gd", cluster={"outages": OUTAGES}),
    "k-batch-sync": simulated("k-batch-sync:k=6,batch=2,cancel=discard"),
    "adasync, noise": simulated("adasync:base=k-sync,k=2,interval=0.5,rule=noise,batch=4"),
    "gradual": simulated("gradual:base=k-batch-async,k=1,every=5,by=2", on="classes"),
    "pasgd, kept states": simulated("pasgd:tau=3,wait=3,cancel=discard,keep=true,inner=adamw", cluster={"outages": OUTAGES}),
    "fedavg on skewed data": simulated("fedavg:tau=3,clients=4,batch=8", on="skewed"),
    "adacomm": simulated("adacomm:tau=5,interval=0.5", steps=25),
    "fedbuff, compressed messages": simulated("compressed:of=(fedbuff:tau=2,k=3),by=sign"),
    "matcha, budget": simulated("matcha:graph=ring,budget=0.5,tau=2", steps=20),
    "hierarchical": simulated("hierarchical:groups=2,tau=2,every=3", steps=20, evaluate="every=5,samples=100"),
    "gc, two models": simulated("gc:stragglers=1", on="many", steps=15),
    "sr-sgc": simulated("sr-sgc:B=2,W=3,lambda=3,wait=feasible"),
    "compressed:by=qsgd, early stopping": simulated("compressed:of=(frc:load=2),by=(qsgd:levels=4)", callbacks=["early-stopping:patience=2,min_delta=0.01"], evaluate="every=2"),
    "pasgd on torch": simulated("compressed:of=(pasgd:tau=3),by=(top-k:share=0.5)", on="torch", steps=10, optimizer=GD),
    "frc on torch": simulated("frc:load=2,wait=4", on="torch", steps=12, optimizer=MOMENTUM, cluster={"outages": OUTAGES}),
    "resumed twice": resumed("k-async:k=3,batch=4", 10, InterruptedAt(21), optimizer="gd"),
    "resumed after an exception": resumed("pasgd:tau=3,keep=true,inner=momentum", FailsAt(11), 17),
    "resumed, checkpoints at every event": resumed("m-sgc:B=1,W=2,lambda=2,late=keep", InterruptedAt(5), steps=9, every=0.0),
    "resumed on torch": resumed("easgd:tau=2", InterruptedAt(8), on="torch", optimizer=GD),
    "begun from another": begun("frc:load=2", "async:lr_scale=0.2"),
    "commands": commanded(
        f"train --data synthetic:rows=200,features=5 --strategy ad-psgd --steps 40 --seed 4 --out {{}}/1 {COMMON}",
        f"train --data synthetic:rows=200,features=5 --strategy frc:load=2 --from {{}}/1 --steps 60 --out {{}}/2 {COMMON}",
        "resume {}/2 --steps 70 --quiet",
    ),
    "race, resumed": _raced,
    "race of commands": commanded(
        "race --data digits --strategy uncoded --strategy frc:load=2 --strategy slowmo:tau=2 --steps 8 --seed 3 --page "
        f"none --out {{}}/race {COMMON}",
        "resume {}/race --seeds 2 --quiet",
    ),
    "auto": _auto,
}  # fmt: skip


# ------------------------------------------------------------------------------------------------- their logs

Number = Callable[[float], str]


@dataclass
class Table:
    """All rows of a table of a log, column by column."""

    rows: int
    columns: dict[str, list[Any]]


def logs(name: str) -> dict[str, dict[str, Table]]:
    """The tables of each log that a run writes, by name."""
    with tempfile.TemporaryDirectory() as folder:
        # on a busy machine a run lasts for the second after which it would write its first checkpoint
        with contextlib.chdir(folder), mock.patch.object(saving, "FIRST_SAVE", math.inf):
            RUNS[name](Path(folder))
        found = sorted(Path(folder).rglob("log.sqlite"))
        return {" ".join([name, *file.relative_to(folder).parts[:-1]]): tables(file, folder) for file in found}


def tables(file: Path, folder: str) -> dict[str, Table]:
    """The tables of a log, without what is left out."""
    found = {}
    with contextlib.closing(sqlite3.connect(file)) as log:
        for (name,) in log.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name").fetchall():
            cursor = log.execute(f"SELECT * FROM {name} ORDER BY rowid")
            names = [column[0] for column in cursor.description]
            rows = [dict(zip(names, row, strict=True)) for row in cursor]
            columns = [column for column in names if LEFT_OUT.get(name) != "*" and column not in LEFT_OUT.get(name, ())]
            if columns:
                values = {column: [plain(row, column, folder) for row in rows] for column in columns}
                found[name] = Table(len(rows), values)
    return found


def plain(row: dict[str, Any], column: str, folder: str) -> Any:
    """A value as plain data: JSON is read, and texts for readers and names of folders are left out."""
    value = row[column]
    if isinstance(value, str) and (value[:1] in ("[", "{") or column == "value"):
        with contextlib.suppress(ValueError):
            value = json.loads(value)
    if isinstance(value, list) and row.get("kind") in ("Lost", "Failed"):
        return [item for item in value if not isinstance(item, str)]
    if row.get("name") == "stopped" and column == "value":
        return value is not None
    if row.get("name") == "models" and column == "value":
        return sorted(value)  # slots, without the digests of their files
    return value.replace(folder, "FOLDER") if isinstance(value, str) else value


def text_of(value: Any, number: Number) -> str:
    """A value as text."""
    if isinstance(value, dict):
        return text_of(sorted(value.items()), number)
    if isinstance(value, (list, tuple)):
        return f"[{' '.join(text_of(item, number) for item in value)}]"
    return number(value) if isinstance(value, float) else "-" if value is None else str(value)


@dataclass
class Fingerprint:
    """A column in short; ``size``: the sum of the absolute values of ``sum``'s terms, if it was computed just now."""

    digest: str
    form: str = ""
    sum: float = 0.0
    size: float = 0.0

    def __str__(self) -> str:
        return f"{self.digest}~{self.form}~{self.sum:.12g}" if self.form else self.digest

    @classmethod
    def of(cls, values: Sequence[Any]) -> Fingerprint:
        """The fingerprint of values."""
        numbers: list[float] = []

        def gathered(number: float) -> str:
            if not math.isfinite(number):
                return str(number)
            numbers.append(without_noise(number))
            return "#"

        whole = digest(text_of(values, digits(12)))[:8]
        form = digest(text_of(values, gathered))[:6]
        factors = np.random.default_rng(0).uniform(0.5, 1.5, len(numbers)).tolist()
        products = [factor * number for factor, number in zip(factors, numbers, strict=True)]
        return cls(whole, form, math.fsum(products), math.fsum(map(abs, products))) if numbers else cls(whole)

    @classmethod
    def read(cls, text: str) -> Fingerprint:
        """Read back what ``str`` gives."""
        parts = text.split("~")
        return cls(parts[0], parts[1], float(parts[2])) if len(parts) > 1 else cls(text)

    def agrees(self, now: Fingerprint, tolerance: float) -> bool:
        """Whether the column is the same now, but for rounding."""
        near = self.form != "" and self.form == now.form and abs(self.sum - now.sum) <= tolerance * now.size
        return self.digest == now.digest or near


@dataclass
class Record:
    """A table in short."""

    rows: int
    columns: dict[str, Fingerprint]

    def __str__(self) -> str:
        return f"rows={self.rows} {' '.join(f'{name}={column}' for name, column in self.columns.items())}"

    @classmethod
    def of(cls, table: Table) -> Record:
        """The record of a table."""
        return cls(table.rows, {name: Fingerprint.of(values) for name, values in table.columns.items()})

    @classmethod
    def read(cls, text: str) -> Record:
        """Read back what ``str`` gives."""
        rows, *columns = (item.split("=", 1) for item in text.split(" "))
        return cls(int(rows[1]), {name: Fingerprint.read(column) for name, column in columns})


Records = dict[str, dict[str, Record]]  # by log and table


def records(names: Sequence[str]) -> Records:
    """What the logs of runs come to."""
    whole = {}
    for name in names:
        whole |= {log: {table: Record.of(rows) for table, rows in of.items()} for log, of in logs(name).items()}
    return whole


def written() -> Records:
    """What is in the file."""
    whole: Records = {}
    for line in FILE.read_text(encoding="utf-8").splitlines():
        log, table, record = line.split(" | ")
        whole.setdefault(log, {})[table] = Record.read(record)
    return whole


# ------------------------------------------------------------------------------------------------- comparison


def renamed(gone: dict[str, Any], new: dict[str, Any], same: Callable[[Any, Any], bool]) -> Iterator[tuple[str, str]]:
    """Names that are gone, each with the new name of the same thing."""
    left = dict(new)
    for name, before in gone.items():
        now = next((now for now, after in left.items() if same(before, after)), None)
        if now is not None:
            del left[now]
            yield name, now


def _matched(was: dict[str, Any], now: dict[str, Any], same: Callable[[Any, Any], bool]) -> dict[str, str]:
    """The present names of all that is still there."""
    gone = {name: value for name, value in was.items() if name not in now}
    new = {name: value for name, value in now.items() if name not in was}
    return {name: name for name in was if name in now} | dict(renamed(gone, new, same))


def differences(was: dict[str, Record], now: dict[str, Record], tolerance: float) -> Iterator[tuple[str, str]]:
    """What differs between two records of a log: kind (``name``, ``value`` or ``bits``) and a sentence."""

    def alike(before: Record, after: Record) -> bool:
        digests = {column.digest for column in after.columns.values()}
        return 2 * sum(column.digest in digests for column in before.columns.values()) > len(before.columns)

    tables = _matched(was, now, alike)
    for table in was:
        if table not in tables:
            yield "value", f"{table}: the table is gone"
    for table in now:
        if table not in tables.values():
            yield "value", f"{table}: the table is new"
    for table, present in tables.items():
        if table != present:
            yield "name", f"{table}: the table is now called {present}"
        yield from _of_table(present, was[table], now[present], tolerance)


def _of_table(table: str, was: Record, now: Record, tolerance: float) -> Iterator[tuple[str, str]]:
    columns = _matched(was.columns, now.columns, lambda before, after: before.agrees(after, tolerance))
    for name, present in columns.items():
        if name != present:
            yield "name", f"{table}: the column {name} is now called {present}, with the same values"
        elif not was.columns[name].agrees(now.columns[name], tolerance):
            rows = f" ({was.rows} rows, now {now.rows})" if was.rows != now.rows else ""
            yield "bits" if name in BITS else "value", f"{table}: values of the column {name} differ{rows}"
    for name in was.columns:
        if name not in columns:
            yield "value", f"{table}: the column {name} is gone"
    for name in now.columns:
        if name not in columns.values():
            yield "value", f"{table}: the column {name} is new"


def possible() -> list[str]:
    """The runs whose packages are installed."""
    return [name for name in RUNS if "torch" not in name or find_spec("torch") is not None]


def compare(names: Sequence[str], *, exact: bool = False) -> tuple[list[str], list[str]]:
    """What differs from the file, as sentences with the logs of which they are true; and where only bits differ."""
    known = {
        log: of for log, of in written().items() if any(log == name or log.startswith(f"{name} ") for name in names)
    }
    found: dict[tuple[str, str], list[str]] = {}
    now = {}
    for name in names:
        try:
            now |= records([name])
        except Exception as error:
            found["value", f"it failed: {type(error).__name__}: {error}"] = [name]
    for log in sorted({*known, *now}):
        if log not in known or log not in now:
            text = "the log is gone" if log in known else f"the log is not in {FILE.name}; write it again"
            found.setdefault(("value", text), []).append(log)
            continue
        tolerance = TOLERANCE_TORCH if "torch" in log else TOLERANCE
        for difference in differences(known[log], now[log], tolerance):
            found.setdefault(difference, []).append(log)
    problems, bits = [], []
    for (kind, text), of in sorted(found.items()):
        shown = ", ".join(f"'{log}'" for log in of[:3]) + (f" and {len(of) - 3} more" if len(of) > 3 else "")
        (bits if kind == "bits" and not exact else problems).append(f"{text}: {shown}")
    return problems, bits


def main(arguments: list[str] | None = None) -> int:
    """Write, compare or show; returns the exit status."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--write", action="store_true", help=f"write {FILE.name}")
    parser.add_argument("--exact", action="store_true", help="refuse other bits of vectors, too")
    parser.add_argument("--only", default="", metavar="TEXT", help="only runs whose names have TEXT in them")
    parser.add_argument("--show", metavar="RUN", help="print all tables of a run's logs")
    given = parser.parse_args(arguments)
    if given.show is not None:
        for log, of in logs(given.show).items():
            for name, table in of.items():
                print(f"\n{log}, {name}: {' '.join(table.columns)}")
                for row in zip(*table.columns.values(), strict=True):
                    print("  ".join(text_of(value, digits(12)) for value in row))
        return 0
    names = [name for name in possible() if given.only in name]
    if given.write:
        whole = records(list(RUNS))
        lines = [f"{log} | {table} | {record}\n" for log, of in whole.items() for table, record in of.items()]
        FILE.write_text("".join(sorted(lines)), encoding="utf-8")
        print(f"{FILE}: {len(whole)} logs, {FILE.stat().st_size} bytes")
        return 0
    problems, bits = compare(names, exact=given.exact)
    print("\n".join([*problems, f"{len(problems)} differences in the logs of {len(names)} runs"]))
    if bits:
        print(
            "\n".join(["bits of vectors, which are the machine's own, differ; on one machine that is a change:", *bits])
        )
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
