"""Every ``$ anyk`` line of the README and the docs, executed; all of them should work.

    python tests/doclines.py [PAGE ...]           print the lines that fail, with what they print; exit status 1 if any
    python tests/doclines.py --show [PAGE ...]    print what all lines print and write, for ``diff`` with a former state

The lines of a page are executed in order, in one process and one scratch folder. Whatever trains does so on the virtual
clock. Files and runs that a page takes for granted are made when a line first names them (``FILES``, ``MADE_BY``); lines
that cannot be executed everywhere are skipped (``SKIPPED``). Shown are exit status, output, names of the files written
and keys of JSON; numbers are rounded, since their last digits depend on the machine's linear algebra, and times, folders
and versions are masked.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]

SKIPPED = {  # part of a line: why it is not executed
    "anyk watch": "serves a live page",
    "--metrics": "serves a live page",
    "s3://": "needs a network",
    "--cluster ray": "needs Ray",
    "--cluster mpi": "needs mpiexec",
    "--cluster nodes": "needs a launcher",
    "anyk drain": "needs a run that is going on",
    "/shared/": "writes outside of its folder",
    "anyk chaos": "kills processes for minutes",
    "cluster check": "measures this machine",
    "record fleet monday.csv": "needs the recording of a torch job",
    "reproduce erasurehead-kc": "needs data sets that are not part of the project",
    "reproduce --all": "takes hours",
    "--target 0.": "trains hundreds of times",
    "auto:measure": "takes long",
}
CHEAPER = {  # part of a line: what is executed in its place
    "--draws 100": "--draws 5",
    "--lr 0.01 --workers 4 --steps 60": "--lr 0.01 --workers 4 --steps 2",
    "--steps 200 --problem examples/resnet.py": "--steps 3 --problem examples/resnet.py",
}

PROBLEM = """
import anyk

def make_problem():
    return anyk.problems.from_data("synthetic:rows=480,features=6")

make = make_problem

def loss(X, w):
    return ((X @ w) ** 2).mean()
"""
CALLBACK = "import anyk\n\ndef make():\n    return anyk.callbacks.Logging(every=100)\n"


def table(names: str, rows: int = 120) -> str:
    """A table of whole numbers, without any regularity that a model could learn fully."""
    count = len(names.split(","))
    cells = [[(7 * row + 3 * row * column + column**3) % 23 for column in range(count - 1)] for row in range(rows)]
    lines = [",".join(map(str, [*row, (row[0] > 11) + 2 * row[-1]])) for row in cells]
    return "\n".join([names, *lines]) + "\n"


def dated(text: str) -> str:
    """The same table with a first column of dates."""
    names, *rows = text.splitlines()
    days = [f"2024-{1 + place // 28:02}-{1 + place % 28:02}" for place in range(len(rows))]
    return "\n".join([f"date,{names}", *map(",".join, zip(days, rows, strict=True))]) + "\n"


AMAZON = "RESOURCE,MGR_ID,ROLE_ROLLUP_1,ROLE_ROLLUP_2,ROLE_DEPTNAME,ROLE_TITLE,ROLE_FAMILY_DESC,ROLE_FAMILY,ROLE_CODE"
FILES = {  # name: contents
    "my.csv": table("a,b,target"),
    "houses.csv": table("rooms,area,price"),
    "jobs.log": "Seq\tHost\tStarttime\tJobRuntime\tSend\tReceive\tExitval\tSignal\tCommand\n"
    + "".join(f"{j + 1}\t{'abc'[j % 3]}\t{j}.0\t{1 + (j % 3 == 2) * (j % 5)}\t0\t0\t0\t0\ttrain\n" for j in range(60)),
    "houses.jsonl": "".join(f'{{"area": {a}, "rooms": {a % 5}, "y": {3 * a + a % 5}}}\n' for a in range(40)),
    "kc_house_data.csv.gz": dated(table("rooms,area,price")),
    "measured.data": table("a,b,target"),
    "sales.csv": dated(table("id,rooms,area,price")),
    "train.csv": "ACTION,"
    + AMAZON
    + "\n"
    + "".join(f"{r % 2},{','.join([str(r * c % 7) for c in range(1, 10)])}\n" for r in range(240)),
    "new.csv": "rooms,area\n3,120\n4,80\n",
    "new.parquet": "rooms,area\n3,120\n4,80\n",
    "train-*.parquet": table("rooms,area,price"),
    "train.py": PROBLEM,
    "my_script.py": "import jax\n\njax.config.update('jax_enable_x64', True)\n" + PROBLEM,
    "my_module.py": PROBLEM,
    "my_package/problems.py": PROBLEM,
    "mine.py": CALLBACK,
}
MADE_BY = {  # name: the command that makes it
    "runs/train-1": "anyk train --strategy frc:load=3 --delays exp:mean=0.2 --steps 60",
    "runs/train-2": "anyk train --strategy uncoded --delays exp:mean=0.2 --steps 60",
    "runs/race-1": "anyk race --delays exp:mean=0.2 --steps 20",
    "fleet.parquet": "anyk record runs/train-1 -o fleet.parquet",
    "monday.npz": "anyk trace record runs/train-1 --out monday.npz",
}

MASKS = {  # what is measured on this machine, or names it, or is shown now and then only: what stands there instead
    r"^\s*(step \d+/\d+|step \d+ +loss|·) .*\n": "",
    r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d(:\d\d)?": "DATE",
    r"made with .*": "made with VERSIONS",
    r"partition=\S+,cores": "partition=SECONDS,cores",
    r"computing takes \S+ ms": "computing takes TIME ms",
    r"\(\d+\.\d+ MB\)": "(SIZE MB)",
}


# ------------------------------------------------------------------------------------------- pages


def pages() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]


def lines_of(page: Path) -> list[str]:
    """``anyk …``, each line of the page's console blocks."""
    blocks = re.findall(r"^```console\n(.*?)^```", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    return [line[2:] for block in blocks for line in block.splitlines() if line.startswith("$ anyk ")]


def saved_files(page: Path) -> dict[str, str]:
    """The Python files that a page says to save; a plug-in that it only names has its first code block."""
    text = page.read_text(encoding="utf-8")
    block = r"```python\n(.*?)^```"
    plugins = re.findall(r"--plugin (\w+\.py)", "\n".join(lines_of(page)))
    first = dict.fromkeys(plugins, "".join(re.findall(block, text, flags=re.M | re.S)[:1]))
    return first | dict(re.findall(rf"`(\w+\.py)`:\n\n{block}", text, flags=re.M | re.S))


# ------------------------------------------------------------------------------------------- execution


def write(name: str, text: str) -> None:
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    if name.endswith(".gz"):
        import gzip

        path.write_bytes(gzip.compress(text.encode(), mtime=0))
    elif name.endswith(".parquet"):
        import io

        import pandas

        for part in range(4) if "*" in name else (0,):
            pandas.read_csv(io.StringIO(text)).to_parquet(name.replace("*", str(part)))
    else:
        path.write_text(text, encoding="utf-8")


def provide(line: str) -> None:
    """Make what the line names, and what that needs."""
    for name, text in FILES.items():
        stem = name.removesuffix(".py").replace("/", ".")
        if (name in line or f" {stem}:" in line) and not Path(name).exists():
            write(name, text)
    for name, command in MADE_BY.items():
        if re.search(rf"(?<!-o )(?<!--out ){re.escape(name)}\b", line) and not Path(name).exists():
            provide(command)
            done = invoke(command)
            assert done.exit_code == 0, f"{command}: {done.output}"


def invoke(line: str) -> Any:
    from click.testing import CliRunner

    from anyk.cli import main

    for part, cheaper in CHEAPER.items():
        line = line.replace(part, cheaper)
    words = shlex.split(line, comments=True)[1:]
    if "--cluster" in words:
        place = words.index("--cluster") + 1
        words[place] = words[place].replace("processes", "simulated")
    elif words[0] in ("train", "race"):
        words += ["--cluster", "simulated" if words[1:] else "simulated:partition=2e-05,cores=30"]
    if words[0] in ("train", "race") and "--delays" not in words and line != "anyk race":
        words += ["--delays", "exp:mean=0.2"]  # without delays no time passes on the virtual clock
    return CliRunner().invoke(main, words)


def files() -> set[str]:
    """Names of all files below this folder, but for those that a database has beside itself now and then."""
    found = (Path(folder) / name for folder, _, names in os.walk(".") for name in names)
    return {path.as_posix() for path in found if not path.name.endswith(("-shm", "-wal"))}


def keys(value: Any, path: str = "") -> set[str]:
    """The paths of the keys in JSON; those of all items of a list together."""
    if isinstance(value, dict):
        return {path + key for key in value}.union(*(keys(item, f"{path}{key}.") for key, item in value.items()))
    if isinstance(value, list):
        return set().union(*(keys(item, path) for item in value))
    return set()


def rounded(match: re.Match[str]) -> str:
    return f"{float(match[0].replace(',', '')):.3g}"


def normalised(text: str) -> str:
    """The output without what changes from run to run or machine to machine, and without its layout."""
    text = text.replace(str(ROOT), "ROOT").replace(str(Path.cwd()), "FOLDER")
    for pattern, mask in MASKS.items():
        text = re.sub(pattern, mask, text, flags=re.M)
    text = re.sub(r"\d[\d,]*\.\d+(e[+-]?\d+)?|\d[\d,]{6,}", rounded, text)
    text = re.sub(r"[ ─━]{2,}", " ", text)
    if "worst gain ms" in text:  # of decoding
        text = re.sub(r"((?: [~≥]? ?[\d.]+){5}) [\d.]+$", r"\1 TIME", text, flags=re.M)
    return "\n".join(line.strip() for line in text.splitlines() if line.strip(" -─━"))


def execute(line: str) -> Iterator[str]:
    """What a line does, as lines of text."""
    yield f"$ {line}"
    for part, reason in SKIPPED.items():
        if part in line:
            yield f"skipped: {reason}"
            return
    provide(line)
    before = files()
    done = invoke(line)
    raised = done.exception if not isinstance(done.exception, SystemExit) else None
    yield f"exit {done.exit_code}" + (f" {type(raised).__name__}" if raised else "")
    yield from (f"  {printed}" for printed in normalised(done.output).splitlines())
    # a run that lasts for more than a second, on a busy machine, writes a second checkpoint
    # and the names of stored results depend on the package's code
    passing = ("checkpoint.older.safetensors", "/.results/")
    written = sorted(name for name in files() - before if not any(one in name for one in passing))
    yield from (f"file: {name}" for name in written)
    for name in written:
        if name.endswith(".json") and not name.startswith("runs/"):
            yield f"keys of {name}: {' '.join(sorted(keys(json.loads(Path(name).read_text(encoding='utf-8')))))}"


def perform(page: Path) -> None:
    """Execute a page's lines in a scratch folder, and print what they do."""
    sys.path.insert(0, "")
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        os.symlink(ROOT / "examples", "examples")
        for name, text in saved_files(page).items():
            write(name, text)
        for line in lines_of(page):
            print(*execute(line), sep="\n", flush=True)
        os.chdir(ROOT)


# ------------------------------------------------------------------------------------------- verdicts


def performed(page: Path) -> list[str]:
    """What a page's lines do, found out in a process of its own."""
    fixed = {"ANYK_RACE_PAGE": "none", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"} | fixed
    command = [sys.executable, __file__, "--perform", str(page)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    crashed = [f"exit {done.returncode} of the process", *done.stderr.splitlines()] if done.returncode else []
    return [*done.stdout.splitlines(), *crashed]


def failures(page: Path) -> list[str]:
    """What the lines of a page that fail do."""
    commands: list[list[str]] = []
    for line in performed(page):
        if line.startswith("$ ") or not commands:
            commands.append([])
        commands[-1].append(line)
    worked = ("exit 0", "skipped: ")
    ended = [[line for line in command if line.startswith(("exit ", "skipped: "))] for command in commands]
    failed = [
        line
        for command, ends in zip(commands, ended, strict=True)
        if len(ends) != 1 or not ends[0].startswith(worked)
        for line in command
    ]
    missing = len(lines_of(page)) - len(commands)
    return failed + [f"{missing} lines of {name_of(page)} were not executed"] * bool(missing)


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("pages", nargs="*", type=Path)
    parser.add_argument("--show", action="store_true")
    parser.add_argument("--perform", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.perform:
        perform(given.pages[0].resolve())
        return 0
    asked = [page.resolve() for page in given.pages] or [page for page in pages() if lines_of(page)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = dict(zip(asked, pool.map(performed if given.show else failures, asked), strict=True))
    for page, lines in found.items():
        if lines:
            print(f"# {name_of(page)}", *lines, sep="\n")
    return int(any(found.values()) and not given.show)


if __name__ == "__main__":
    sys.exit(main())
