"""The corruption matrix: run folders cut, flipped and robbed of files; what every command makes of them.

Each case must end in the same result as the folder untouched, or in one sentence and exit code 2. ``scripts/soak
folders`` tries every offset of the last pages; the tests try a sample.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from click.testing import CliRunner, Result

import anyk
from anyk.cli import main
from anyk.runs.callbacks import Watching
from anyk.runs.folder import checkpoints

STEPS = 8
PAGE = 4096


class Case(NamedTuple):
    """A change to one file of a folder: ``cut`` at an offset, ``flip`` a bit of a byte, or ``remove``."""

    kind: str
    file: str
    at: int = 0
    bit: int = 0


def make(place: Path) -> dict[str, Path]:
    """A run that ended and one that was killed, whose newest rows are in SQLite's write-ahead file alone."""
    problem = anyk.problems.from_data("synthetic:rows=24,features=2")
    optimizer = anyk.optimizers.Nesterov(lr=0.05)

    def watch(driver: Any, _: Any) -> None:
        if driver.step == STEPS - 2:
            driver.log.flush()
            shutil.copytree(place / "ended", place / "killed")

    fleet = anyk.cluster("simulated", workers=3, delays="exp:mean=1", seed=1)
    anyk.train(
        problem, "uncoded:wait=2", fleet, optimizer=optimizer, steps=STEPS, out=place / "ended", checkpoint_every=0.0,
        callbacks=[Watching(watch)],
    ).close()  # fmt: skip
    return {name: place / name for name in ("ended", "killed")}


def do(command: str, folder: Path) -> Result:
    arguments = {
        "show": ("show", folder, "--json", "-"),
        "receipt": ("show", folder, "--step", "3"),
        "replay": ("replay", folder),
        "verify": ("verify", folder),
        "resume": ("resume", folder, "--steps", STEPS + 2, "--quiet"),
    }[command]
    return CliRunner().invoke(main, list(map(str, arguments)))


COMMANDS = ("verify", "show", "receipt", "replay", "resume")


def said(command: str, folder: Path) -> tuple[int, str]:
    """What a command comes to, as far as it must be the same: of resume the run, not what led there."""
    result = do(command, folder)
    if not (result.exception is None or isinstance(result.exception, SystemExit)):
        return 3, f"{type(result.exception).__name__}: {result.exception}"
    if result.exit_code == 2:
        lines = result.output.strip().splitlines()
        return (2, lines[0]) if len(lines) == 1 and lines[0].startswith("anyk: ") else (3, result.output)
    if command != "resume" or result.exit_code:
        return result.exit_code, result.stdout
    with anyk.Run.open(folder) as run:
        history = {name: column.tolist() for name, column in run.history.items()}
        outcome = (
            run.model.tobytes().hex(),
            repr(history),
            json.dumps(run.result() | {"run": ""}),
            json.dumps(run.ledger),
        )
    return 0, repr(outcome)


def apply(case: Case, folder: Path) -> None:
    file = folder / case.file
    if case.kind == "remove":
        file.unlink()
    elif case.kind == "cut":
        with file.open("r+b") as opened:
            opened.truncate(case.at)
    else:
        data = bytearray(file.read_bytes())
        data[case.at] ^= 1 << case.bit
        file.write_bytes(data)


def cases(folder: Path, sample: int | None, seed: int) -> Iterator[Case]:
    """All cases of a folder, or a sample of the cuts and as large a one of the flips."""
    cuts, flips = [], []
    for file in sorted(folder.iterdir()):
        if file.name.endswith("-shm"):  # SQLite makes it anew
            continue
        size = file.stat().st_size
        yield Case("remove", file.name)
        cuts += [Case("cut", file.name, at) for at in range(max(0, size - 2 * PAGE), size)]
        flips += [Case("flip", file.name, at, bit) for at in range(size) for bit in range(8)]
    draw = random.Random(seed)
    for kind in (cuts, flips):
        yield from kind if sample is None else draw.sample(kind, min(sample, len(kind)))


def judge(
    folder: Path, expected: dict[str, tuple[int, str]], case: Case, commands: tuple[str, ...] = COMMANDS
) -> Iterator[tuple[str, str, str]]:
    """(command, verdict, text) for each command on a folder changed so; ``folder`` is left as it was."""
    broken = folder.with_name("broken")
    for command in commands:
        if command in (commands[0], "resume"):  # only resume may change a folder
            shutil.rmtree(broken, ignore_errors=True)
            shutil.copytree(folder, broken)
            apply(case, broken)
        code, text = said(command, broken)
        text = text.replace(str(broken), str(folder))
        if (code, text) == expected[command]:
            verdict = "the same"
        elif code == 2 or (command == "verify" and code == 1):
            verdict = "refused"
        elif code in (1, 3):
            verdict = "no sentence"
        elif folder.name == "killed" and case.file.endswith("-wal") and _earlier(folder, command, text):
            verdict = "killed earlier"
        else:
            verdict = "silently different"
        yield command, verdict, text
    shutil.rmtree(broken)


def _earlier(folder: Path, command: str, text: str) -> bool:
    """Whether it is what a run killed a moment earlier would be, but after its last checkpoint: none can tell these."""
    if command == "show":
        state, *_ = checkpoints.load(folder) or ({},)
        return bool(json.loads(text)["runs"][0]["steps"] >= min(state["versions"].values()))
    ends = {"replay": "the same decisions and the same bits of model", "verify": "is whole"}
    return command in ends and text.strip().endswith(ends[command])


def expectations(folder: Path) -> dict[str, tuple[int, str]]:
    """What the commands make of a whole folder."""
    found = {}
    for command in COMMANDS:
        copy = folder.with_name("broken")
        shutil.copytree(folder, copy)
        code, text = said(command, copy)
        assert code == 0, text
        found[command] = code, text.replace(str(copy), str(folder))
        shutil.rmtree(copy)
    return found


def soak(sample: int | None, seed: int, share: tuple[int, int]) -> int:
    """Print counts of verdicts, every case that must not be, and return how many those are."""
    wrong = 0
    with tempfile.TemporaryDirectory() as place:
        for name, folder in make(Path(place)).items():
            counts: Counter[tuple[str, str, str]] = Counter()
            expected = expectations(folder)
            for number, case in enumerate(cases(folder, sample, seed)):
                if number % share[1] != share[0]:
                    continue
                for command, verdict, text in judge(folder, expected, case):
                    counts[case.kind, command, verdict] += 1
                    if verdict in ("no sentence", "silently different"):
                        wrong += 1
                        print(f"{verdict}: {name}, {command} after {case}: {text[:300]!r}", flush=True)
            for (kind, command, verdict), count in sorted(counts.items()):
                print(f"{name:<7} {kind:<7} {command:<8} {verdict:<18} {count:>8,}")
    print(f"silently different or without a sentence: {wrong}")
    return wrong


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sample", type=int, help="So many cuts and flips of each folder; all if left out.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--share", default="0/1", help="Only the cases of this share, as 0/4 to 3/4.")
    arguments = parser.parse_args()
    part, parts = map(int, arguments.share.split("/"))
    sys.exit(bool(soak(arguments.sample, arguments.seed, (part, parts))))
