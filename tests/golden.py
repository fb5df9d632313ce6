"""Decisions of every strategy and numbers of every code, to compare one state of the package with another.

    python tests/golden.py             compare with tests/golden.txt; exit status 1 where a case differs
    python tests/golden.py --write     write tests/golden.txt
    python tests/golden.py --show CASE print the whole text of a case, such as 'strategy async workers=4 seed=0'

A strategy is played a hostile schedule (:mod:`anyk.testing.hostile`) beside a twin that is saved as plain data and
restored after every tenth event, and must decide the same. A code is asked for its encoding matrix and for decodings of random replies.
Further cases are layouts; strategies of changing fleets, of checked messages and of ordered mini-batches, with their
notes; and fleets of steady but unequal speed, in which shares are balanced. Of a note, the kind and the numbers count.
The texts of all would fill megabytes, so a line of the golden file has, of each case:

- ``digest``: of the text, with numbers to 12 significant digits;
- ``form`` and ``sum``: the digest of the text without fractional numbers, and a weighted sum of these. Linear algebra
  differs in the last digits from one machine to another, and a number near a rounding boundary then changes the
  digest. Such a case passes when form and sum agree; sums are compared with a tolerance, so there is no boundary. It is
  reported, and ``--exact`` refuses it;
- ``trail``: a character for each event, of the digest of all text up to it with numbers to 6 digits. The first that
  differs is the first event that differs (once in 64 times, the one after it).

To see what an event was before, run ``--show`` in a checkout of the former state.
"""

from __future__ import annotations

import argparse
import hashlib
import heapq
import math
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

import anyk
from anyk.base.keyed import keyed_generator
from anyk.base.specs import parse_spec, show_spec
from anyk.codes import registry as codes
from anyk.protocol import Cancel, Combine, Dispatch, Failed, Fleet, Joined, Lost, Note, Reply, Running, SetAlarm, Stop
from anyk.strategies import registry as strategies
from anyk.testing.hostile import Play
from strategy_schedules import STRATEGIES, built

FILE = Path(__file__).with_suffix(".txt")
SEEDS = (0, 1, 2)
EVENTS = 140  # of a schedule, before everything goes well
EVERY = 10  # events after which the twin is saved and restored
SETS = 12  # of random replies that a code decodes
NOISE = 1e-9  # numbers below it are written as 0
TOLERANCE = 1e-9  # of a sum, relative to the sum of absolute values
ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
RENAMED: dict[str, str] = {}  # events and commands by their present class names: their names in the golden file
# fields that are left out: for readers, which no decision depends on, or that follow from the commands before
TEXTS = {Failed: ("reason",), Lost: ("reason",), Stop: ("reason",), Reply: ("staleness",)}
NUMBER = re.compile(r"-?[0-9]+(?:[.][0-9]+)?(?:e[-+]?[0-9]+)?")
NOTED: tuple[tuple[str, int], ...] = (  # played with their notes
    ("uncoded:fewest=3", 6),
    ("uncoded:fewest=2,models=2", 5),
    ("uncoded:batch=2,order=epoch,fewest=3,partitions=12", 6),
    ("uncoded:wait=0.75n,fewest=3", 6),
    ("uncoded:wait=2|0.5s,fewest=3", 5),
    ("frc:stragglers=1,fewest=3", 6),
    ("frc:stragglers=2,fewest=4,partitions=24,check=0.5", 8),
    ("bgc:load=3,fewest=3", 6),
    ("pasgd:tau=3,fewest=2", 5),
    ("frc:load=2,check=1", 6),
    ("frc:load=3,batch=4,check=0.5", 6),
    ("frc:load=2,batch=4,order=epoch,check=0.3", 6),
    ("cyclic:stragglers=2,check=1", 6),
    ("uncoded:batch=4,order=epoch", 4),
    ("uncoded:balance=auto", 4),
    ("frc:stragglers=1,balance=auto", 6),
    ("uncoded:wait=3mad", 5),
    ("uncoded:wait=2&1mad", 4),
    ("anytime:parts=2", 6),
    ("adasync:base=k-sync,k=2,interval=0.5,rule=delays", 5),
    ("gradual:base=k-sync,k=1,every=3", 4),
    ("adacomm:tau=5,interval=0.5", 4),
    ("adacomm:tau=5,interval=0.5,probe=1/2/5", 4),
)
STEADY: tuple[tuple[str, tuple[float, ...]], ...] = (  # with the seconds that each worker needs for an even share
    ("uncoded:balance=auto", (1.0, 0.1, 0.1, 0.1)),
    ("uncoded:balance=auto", (0.3, 0.2)),
    ("uncoded:balance=auto", (0.2, 0.2, 0.2, 0.2)),
    ("uncoded:batch=8,balance=auto", (0.1, 0.1, 0.4, 0.1)),
    ("uncoded:wait=3,balance=auto", (1.0, 0.1, 0.1, 0.1)),
    ("frc:stragglers=1,balance=auto", (0.5, 0.4, 0.1, 0.1, 0.1, 0.2)),
    ("pasgd:tau=2,balance=auto", (0.6, 0.1, 0.2, 0.1)),
)
ROUNDS = 70  # of a steady fleet
CHANGE = 35  # the round after which the first two workers exchange their speeds; the last is lost and returns


# ------------------------------------------------------------------------------------------------------- text


def text_of(value: Any, number: Callable[[float], str]) -> str:
    """A value as text: fractional numbers as ``number`` writes them, named tuples without the names of fields."""
    if isinstance(value, (np.ndarray, np.generic)):
        value = value.tolist()
    if value is None or isinstance(value, (bool, int, str)):
        return "-" if value is None else str(value)
    if isinstance(value, float):
        return number(value)
    fields = getattr(value, "_fields", None)
    if fields is not None:
        kind = type(value)
        shown = [part for name, part in zip(fields, value, strict=True) if name not in TEXTS.get(kind, ())]
        return f"{RENAMED.get(kind.__name__, kind.__name__)}({', '.join(text_of(part, number) for part in shown)})"
    return f"[{' '.join(text_of(part, number) for part in value)}]"


def without_noise(number: float) -> float:
    """A number, or 0 where it is nothing but rounding; never minus zero."""
    return 0.0 if abs(number) < NOISE else number


def digits(count: int) -> Callable[[float], str]:
    """A writer of numbers with so many significant digits."""
    return lambda number: f"{without_noise(number):.{count}g}"


def without_unused(command: Any) -> Any:
    """A combine without messages whose weight is nothing but rounding: linear algebra elsewhere may make it 0."""
    if not isinstance(command, Combine):
        return command
    pairs = zip(command.messages, command.weights, strict=True)
    used = [(message, weight) for message, weight in pairs if np.abs(weight).max() >= NOISE]
    return command._replace(messages=[message for message, _ in used], weights=[weight for _, weight in used])


def numbers_of(note: Note) -> list[Any]:
    """The kind of a note and the numbers in its text, which readers may find in other words."""
    return ["Note", note.kind, *map(float, NUMBER.findall(note.text))]


def digest(text: str) -> str:
    """A digest of a text, 12 hexadecimal digits."""
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


class Case:
    """The text of a case, line by line, in the forms that are compared."""

    def __init__(self, summary: str, lines: list[tuple[str, list[Any]]]) -> None:
        self.summary = summary
        self.lines = self._lines(lines, digits(12))
        self.coarse = self._lines(lines, digits(6))
        numbers: list[float] = []

        def gathered(number: float) -> str:
            if not math.isfinite(number):
                return str(number)
            numbers.append(without_noise(number))
            return "#"

        self.form = digest("\n".join(self._lines(lines, gathered)))
        factors = np.random.default_rng(0).uniform(0.5, 1.5, len(numbers)).tolist()
        products = [factor * number for factor, number in zip(factors, numbers, strict=True)]
        self.sum, self.size = math.fsum(products), math.fsum(map(abs, products))

    @staticmethod
    def _lines(lines: list[tuple[str, list[Any]]], number: Callable[[float], str]) -> list[str]:
        return ["\n    ".join([head, *(text_of(value, number) for value in values)]).lstrip() for head, values in lines]

    @property
    def trail(self) -> str:
        """A character for each line, of the digest of all lines up to it."""
        running, characters = hashlib.blake2b(digest_size=1), []
        for line in self.coarse:
            running.update(line.encode())
            characters.append(ALPHABET[running.digest()[0] % 64])
        return "".join(characters)

    def record(self) -> str:
        """The line of the golden file, without the name."""
        sums = f"form={self.form} sum={self.sum:.15g}"
        return f"{self.summary} digest={digest(chr(10).join(self.lines))} {sums} trail={self.trail}"


# ------------------------------------------------------------------------------------------------------ cases


def transcript(strategy: Any, seed: int, name: str) -> list[tuple[Any, Sequence[Any]]]:
    """The events of the hostile schedule of a name and a seed, each with the commands that a strategy answers."""
    play = Play(strategy, seed, name)
    schedule = (action._replace(save=len(play.done) % EVERY == EVERY - 1) for action in play.sample_actions(EVENTS))
    play.play(schedule, whole=True)
    entries = [entry for entry in play.transcript if not isinstance(entry, str)]
    return list(zip(entries[::2], entries[1::2], strict=True))


def strategy_case(spec: str, workers: int, seed: int, *, notes: bool = False) -> Case:
    """The decisions of a strategy in the schedule of a seed."""
    with_file, folder = "FILE" in spec, tempfile.TemporaryDirectory()
    with folder:
        strategy = built(spec.replace("FILE", matrix_file(folder.name)) if with_file else spec, workers)
        entries = transcript(strategy, seed, spec)
    return decisions(entries, notes=notes)


def decisions(entries: Sequence[tuple[Any, Sequence[Any]]], *, notes: bool) -> Case:
    """The case of events, each with the commands that answer it."""
    lines, counts = [], Counter[str]()
    for event, commands in entries:
        given = [without_unused(command) for command in commands if notes or not isinstance(command, Note)]
        counts.update(RENAMED.get(type(command).__name__, type(command).__name__) for command in given)
        lines.append(("", [event, *(numbers_of(one) if isinstance(one, Note) else one for one in given)]))
    shown = ",".join(f"{name}:{count}" for name, count in sorted(counts.items()))
    return Case(f"events={len(entries)} commands={shown}", lines)


def layout_case(spec: str, workers: int) -> Case:
    """The layout of a strategy."""
    with tempfile.TemporaryDirectory() as folder:
        layout = built(spec.replace("FILE", matrix_file(folder)), workers).layout
    lines = [(field.name, [getattr(layout, field.name)]) for field in fields(layout)]
    derived = ("unit", "trained", "shares_assigned")
    return Case(f"partitions={layout.partitions}", [*lines, *((name, [getattr(layout, name)]) for name in derived)])


class SteadyFleet:
    """Workers that take the same seconds for a share of the data whenever they are asked, within a hundredth.

    A task that is cancelled takes no more time. Half-way the first two workers exchange their speeds; then the last
    worker is lost and returns.
    """

    def __init__(self, spec: str, seconds: tuple[float, ...]) -> None:
        strategy = anyk.strategy(spec, workers=len(seconds))
        self.layout, self.seconds = strategy.layout, list(seconds)
        self.random = keyed_generator(0, "steady", spec, len(seconds))
        self.running = Running(strategy)
        self.events: list[tuple[float, int, Any]] = []
        self.ended: set[int] = set()
        self.rounds = 0

    def play(self) -> list[tuple[Any, Sequence[Any]]]:
        """The events, each with the commands that answer it."""
        fleet = Fleet(len(self.seconds), tuple(range(len(self.seconds))))
        entries: list[tuple[Any, Sequence[Any]]] = [(fleet, list(self.running.start(fleet)))]
        self._obey(entries[0][1], 0.0)
        while self.rounds < ROUNDS:
            now, _, event = heapq.heappop(self.events)
            if isinstance(event, Reply) and event.task in self.ended:
                continue
            rounds = self.rounds
            entries.append((event, list(self.running.on(event))))
            self._obey(entries[-1][1], now)
            if rounds < CHANGE <= self.rounds:
                self.seconds[:2] = self.seconds[1::-1]
                last = len(self.seconds) - 1
                self._at(now, Lost(now, last, "lost on purpose"))
                self._at(now + 1e-3, Joined(now + 1e-3, last))
        return entries

    def _at(self, time: float, event: Any) -> None:
        heapq.heappush(self.events, (time, len(self.events), event))

    def _obey(self, commands: Sequence[Any], now: float) -> None:
        for command in commands:
            if isinstance(command, Dispatch):
                given = zip(command.workers, command.chunks, strict=True)
                for task, (worker, chunks) in enumerate(given, command.task):
                    share = sum(len(chunk.partitions) for chunk in chunks) * len(self.seconds) / self.layout.partitions
                    jitter = float(self.random.uniform(0.99, 1.01))
                    end = now + self.seconds[worker] * share * jitter
                    self._at(end, Reply(end, worker, task, 0))
            elif isinstance(command, Cancel):
                self.ended.update(command.tasks)
                self.rounds += 1
            else:
                assert not isinstance(command, (SetAlarm, Stop)), command


def code_case(spec: str, workers: int) -> Case:
    """The encoding matrix of a code, and how it decodes random sets of replies."""
    with tempfile.TemporaryDirectory() as folder:
        code = anyk.code(spec.replace("FILE", matrix_file(folder)), workers=workers)
        facts = [code.partitions, code.replies, code.blocks, code.tolerates, code.load]
        lines = [("facts", [*facts, code.approximate]), ("encoding", code.encoding.toarray().tolist())]
        random = keyed_generator(0, "golden", spec, workers)
        for number in range(SETS):
            fewest = max(1, code.replies - code.tolerates) if number % 2 else 1
            order = random.permutation(code.replies)[: int(random.integers(fewest, code.replies + 1))].tolist()
            for decoder in ("own", "least-squares"):
                lines.append((f"{decoder} {sorted(order)}", decoded(code, order, decoder)))
            lines.append((f"decodable after {order}", [first_decodable(code, order)]))
    return Case(f"partitions={facts[0]} replies={facts[1]} tolerates={facts[3]}", lines)


def decoded(code: Any, replies: list[int], decoder: str) -> list[Any]:
    """Weights, residual and gain."""
    try:
        weights, residual, gain = code.decode(replies, decoder=decoder)
    except anyk.BadInput:
        return ["refused"]
    return [weights, residual, gain]


def first_decodable(code: Any, order: list[int]) -> int | None:
    """The number of replies, in order of arrival, after which the incremental decoder has enough."""
    if code.policy().projected:
        return None  # it wants to see what is in the messages
    decoder = code.decoder()
    return next((count for count, worker in enumerate(order, 1) if decoder.add(worker)), None)


def matrix_file(folder: str) -> str:
    """A file with the matrix of a code for 5 workers."""
    file = Path(folder) / "matrix.csv"
    file.write_text("1,1,0,0\n0,1,2,0\n0,0,1,1\n1,0,0,-1\n1,1,1,1\n")
    return str(file)


def built_in(registry: Any) -> list[Any]:
    """The entries that are not of plug-ins."""
    return [entry for entry in registry if entry.build.__module__.startswith("anyk.")]


def strategy_specs() -> list[tuple[str, int]]:
    """Specs of every registered strategy and code, with workers."""
    specs = [*STRATEGIES, ("matrix:file=FILE", 5), ("matrix:file=FILE,wait=3", 5)]
    known = {parse_spec(spec)[0] for spec, _ in specs}
    return [*specs, *((entry.name, 6) for entry in built_in(strategies) + built_in(codes) if entry.name not in known)]


def code_specs() -> list[tuple[str, int]]:
    """Specs of every registered code, with workers: those of its strategies, and those that planning tries."""
    entries = {entry.name: entry for entry in built_in(codes)}
    specs: dict[tuple[str, int], None] = {}
    for spec, workers in strategy_specs():
        name, values = parse_spec(spec)
        if name in entries:
            own = {key: value for key, value in values.items() if key in entries[name].parameters()}
            brackets = {key: f"({value})" if ":" in value else value for key, value in own.items()}
            specs[show_spec(name, brackets), workers] = None
    for entry in entries.values():
        specs.update(((spec, 12), None) for spec in (entry.grid(12) if entry.grid else ()) if exists(spec, 12))
    return list(specs)


def exists(spec: str, workers: int) -> bool:
    """Whether there is such a code; planning tries some that do not exist."""
    try:
        anyk.code(spec, workers=workers)
    except anyk.BadInput:
        return False
    return True


def cases() -> Iterator[tuple[str, Callable[[], Case]]]:
    """Names of all cases, each with the function that computes it."""
    for spec, workers in code_specs():
        yield f"code {spec} workers={workers}", lambda spec=spec, workers=workers: code_case(spec, workers)
    for spec, workers in strategy_specs():
        for seed in SEEDS:
            yield (
                f"strategy {spec} workers={workers} seed={seed}",
                lambda spec=spec, workers=workers, seed=seed: strategy_case(spec, workers, seed),
            )
    for spec, workers in NOTED:
        for seed in SEEDS:
            yield (
                f"noted {spec} workers={workers} seed={seed}",
                lambda spec=spec, workers=workers, seed=seed: strategy_case(spec, workers, seed, notes=True),
            )
    for spec, workers in dict.fromkeys([*strategy_specs(), *NOTED]):
        yield f"layout {spec} workers={workers}", lambda spec=spec, workers=workers: layout_case(spec, workers)
    for spec, seconds in STEADY:
        yield (
            f"steady {spec} seconds={'/'.join(map(str, seconds))}",
            lambda spec=spec, seconds=seconds: decisions(SteadyFleet(spec, seconds).play(), notes=True),
        )


# ------------------------------------------------------------------------------------------------- comparison


def read() -> dict[str, str]:
    """The golden file: records by the names of cases."""
    lines = FILE.read_text(encoding="utf-8").splitlines()
    return {name: record for name, _, record in (line.partition(" | ") for line in lines)}


def difference(known: str, case: Case, *, exact: bool = False) -> str | None:
    """The first difference between a case and its record, as text; None where they agree, '' but for rounding."""
    if known == case.record():
        return None
    was, now = (dict(item.split("=", 1) for item in record.split(" ")) for record in (known, case.record()))
    near = abs(float(was["sum"]) - case.sum) <= TOLERANCE * case.size
    if near and not exact and known.startswith(f"{case.summary} ") and was["form"] == now["form"]:
        return ""
    for place, (before, after) in enumerate(zip_longest(was["trail"], now["trail"])):
        if before != after:
            if after is None:
                return f"it has {len(now['trail'])} lines, and had {len(was['trail'])}"
            return f"line {place + 1} is now\n{case.lines[place]}"
    return "numbers differ by less than their sixth digit; compare the outputs of --show before and after"


def compare(only: str = "", *, exact: bool = False) -> tuple[list[str], int, int]:
    """What differs from the golden file, as texts; the number of cases, and of those that differ in last digits."""
    known, problems, rounded = read(), [], 0
    every = {name: compute for name, compute in cases() if only in name}
    for name, compute in every.items():
        if name not in known:
            problems.append(f"{name}: not in {FILE.name}; write it again")
            continue
        try:
            text = difference(known[name], compute(), exact=exact)
        except Exception as error:  # a rule that was broken, or an exception of a strategy or code
            text = f"{type(error).__name__}: {error}"
        rounded += text == ""
        if text:
            problems.append(f"{name}: {text}")
    gone = [name for name in known if only in name and name not in every]
    return [*problems, *(f"{name}: in {FILE.name}, and no longer a case" for name in gone)], len(every), rounded


def main(arguments: list[str] | None = None) -> int:
    """Write, compare or show; returns the exit status."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--write", action="store_true", help=f"write {FILE.name}")
    parser.add_argument("--exact", action="store_true", help="refuse differences of rounding, too")
    parser.add_argument("--only", default="", metavar="TEXT", help="compare only cases whose names have TEXT in them")
    parser.add_argument("--show", metavar="CASE", help="print the text of a case")
    given = parser.parse_args(arguments)
    if given.show is not None:
        print("\n".join(dict(cases())[given.show]().lines))
        return 0
    if given.write:
        FILE.write_text("".join(sorted(f"{name} | {compute().record()}\n" for name, compute in cases())))
        print(f"{FILE}: {FILE.stat().st_size} bytes")
        return 0
    problems, count, rounded = compare(given.only, exact=given.exact)
    print("\n".join([*problems, f"{len(problems)} differences in {count} cases"]))
    if rounded:
        print(f"{rounded} others differ in the last digits of numbers")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
