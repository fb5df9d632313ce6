"""Drivers killed (SIGKILL) at points of every kind, and resumed: what must have become of their runs.

On ``simulated`` the resumed run is, bit for bit, the run that was never interrupted. On ``processes``, whose times
differ from run to run, its ledger balances and its replay takes the same decisions and computes the same bits.
``scripts/soak crashes`` kills 200 drivers on each; the tests take a sample.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import hashlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import anyk
from anyk.base import regular_files
from anyk.clusters import Cluster, Outage, Processes, Simulated
from anyk.runs import training
from anyk.runs.callbacks import Watching
from anyk.runs.engine.driver import Driver
from anyk.runs.folder import checkpoints
from anyk.runs.launch import Launch
from anyk.runs.log.log_writer import LogWriter
from anyk.runs.log.schema import KINDS
from anyk.runs.saving import Saving
from anyk.testing import Squares

STEPS = 10
CALL = "any call"  # the kind of points at an arbitrary call of a Python function
BEFORE_ALL = "before the first checkpoint"
OUTAGES = (Outage(2.0, 1, 3.0), Outage(4.0, 2, 4.5))
_FAILURES = 5  # after so many no more drivers are killed
AGAIN = 0.25  # how often the driver that resumes is killed as well


@dataclass(frozen=True)
class Scenario:
    """A run to be killed; ``kills``: steps at which worker 0 is killed, on processes."""

    strategy: str
    cluster: str = "simulated"
    workers: int = 4
    outages: tuple[Outage, ...] = ()
    kills: tuple[int, ...] = ()
    evaluate: str | None = "every=3"

    def build(self) -> Cluster:
        """Return a new cluster."""
        if self.outages:
            return Simulated(self.workers, delays=anyk.delays.Exponential(1.0), seed=1, outages=self.outages)
        if self.cluster == "processes":
            return Processes(self.workers, delays=anyk.delays.Exponential(0.002), seed=1)
        return anyk.cluster(self.cluster, workers=self.workers, delays="exp:mean=1", seed=1)

    def problem(self) -> Squares:
        """Return a new problem."""
        return Squares(anyk.strategy(self.strategy, workers=self.workers).layout.partitions)


SIMULATED = (
    Scenario("frc:load=2", outages=OUTAGES),
    Scenario("progress:load=2"),
    Scenario("anytime:deadline=1,parts=2"),
    Scenario("adacomm:tau=4,interval=1"),
    Scenario("diloco:tau=2", outages=OUTAGES),
    Scenario("async:lr_scale=0.1", evaluate=None),
    Scenario("adasync:base=k-sync,k=2,interval=1,rule=noise"),
    Scenario("draco:byzantine=1", "simulated:byzantine=1", 6),
    Scenario("frc:load=3,check=0.5", "simulated:byzantine=1", 6),
    Scenario("compressed:of=(k-sync:k=3),by=(top-k:share=0.5)"),
    Scenario("k-async:k=2,stale=distance,bound=0.5"),
)
PROCESSES = (
    Scenario("frc:load=2", "processes", kills=(3,)),
    Scenario("diloco:tau=2,inner=adamw", "processes", 3, kills=(4,)),
    Scenario("async:lr_scale=0.1", "processes", 3, evaluate=None),
    Scenario("progress:load=2", "processes"),
    Scenario("compressed:of=(pasgd:tau=2,wait=2),by=(top-k:share=0.5)", "processes", 3),
)


class Point(NamedTuple):
    """Where a driver is killed: at the ``number``-th time that it comes by a point of this kind."""

    kind: str
    number: int


# ----------------------------------------------------------------------------------------------- points


@dataclass
class Points:
    """Counts the points that a driver passes, and kills it at one of them."""

    kill: Point | None = None
    passed: Counter[str] = field(default_factory=collections.Counter)

    def by(self, kind: str) -> None:
        """Pass a point."""
        self.passed[kind] += 1
        if self.kill is not None and self.kill.kind == kind and self.kill.number == self.passed[kind]:
            os.kill(os.getpid(), signal.SIGKILL)

    def around(self, owner: Any, name: str, kind: str | None = None) -> None:
        """Have two points, before and after each call of a function or method."""
        plain, kind = getattr(owner, name), kind or name

        def wrapped(*arguments: Any, **more: Any) -> Any:
            self.by(f"before {kind}")
            result = plain(*arguments, **more)
            self.by(f"after {kind}")
            return result

        setattr(owner, name, wrapped)

    def install(self) -> None:
        """Put points where a driver decides, writes or sends."""
        event = LogWriter.event

        def logged(log: LogWriter, happened: Any) -> None:
            event(log, happened)
            self.by(f"event {type(happened).__name__}")

        LogWriter.event = logged  # type: ignore[method-assign]
        for name in ("flush", "checkpoint", "evaluation", "update", "summarise", "truncate", "start"):
            self.around(LogWriter, name, f"log.{name}")
        for name in ("_obey", "settle", "begin", "restore", "open"):
            self.around(Driver, name, f"driver.{name}")
        self.around(Launch, "_recover", "launch._recover")
        for name in ("write_models", "_save"):
            self.around(Saving, name, f"saving.{name}")
        self.around(checkpoints.CheckpointWriter, "start", "copies for a checkpoint")
        self.around(checkpoints, "save", "writing a checkpoint")
        self.around(checkpoints, "synchronise", "synchronising a checkpoint")
        self.around(regular_files, "synchronise", "synchronising")
        self.around(Path, "replace", "renaming")
        if self.kill is None or self.kill.kind == CALL:
            count = [0]
            number = 0 if self.kill is None else self.kill.number

            def called(_: Any, what: str, __: Any) -> None:
                if what == "call":
                    count[0] += 1
                    if count[0] == number:
                        os.kill(os.getpid(), signal.SIGKILL)

            threading.setprofile(called)
            sys.setprofile(called)
            self.calls = count


# ----------------------------------------------------------------------------------------------- drivers


def in_process(work: Callable[[], Any]) -> tuple[int, Any]:
    """Run a function in a process of its own; return its status (negative: the signal that ended it) and its result."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        status = 1
        try:
            os.setsid()
            with open(write, "w", encoding="utf-8") as pipe:
                json.dump(work(), pipe)
            status = 0
        except BaseException as error:
            with contextlib.suppress(OSError):
                os.write(2, f"{type(error).__name__}: {error}\n".encode())
        finally:
            os._exit(status)
    os.close(write)
    with open(read, encoding="utf-8") as pipe:
        text = pipe.read()
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return status, json.loads(text) if status == 0 else None


def result_of(run: anyk.Run, problem: Squares) -> dict[str, Any]:
    """Return what an uninterrupted and a resumed run must have in common, and the replay."""
    digest = hashlib.sha256(run.model.tobytes()).hexdigest()
    updates = run.log.rows("SELECT slot, version, time, digest FROM updates ORDER BY slot, version")
    events = run.log.rows("SELECT time, kind, worker, task, chunk, info FROM events ORDER BY seq")
    common = hashlib.sha256(json.dumps([updates, events, run.history["loss"].tolist()]).encode()).hexdigest()
    return {
        "steps": run.steps,
        "common": [digest, common],
        "ledger": dict(run.ledger),
        "replay": str(anyk.replay(run, problem=problem)),
        "kinds": [kind for (kind,) in run.log.rows("SELECT DISTINCT kind FROM events")],
    }


def train(scenario: Scenario, folder: Path | None, every: float, points: Points | None = None) -> dict[str, Any]:
    """Train; return the result, or with ``points`` how often each was passed."""
    problem = scenario.problem()
    killed: set[int] = set()

    def watch(driver: Driver, _: Any) -> None:
        if driver.step in scenario.kills and driver.step not in killed and isinstance(driver.cluster, Processes):
            killed.add(driver.step)
            with contextlib.suppress(ProcessLookupError, KeyError):
                os.kill(driver.cluster.pids[0], signal.SIGKILL)

    cluster = scenario.build()
    if points is not None:
        points.install()
    run = anyk.train(
        problem,
        scenario.strategy,
        cluster,
        optimizer=anyk.optimizers.Nesterov(lr=0.05),
        steps=STEPS,
        evaluate=scenario.evaluate,
        out=folder,
        checkpoint_every=every,
        callbacks=[Watching(watch)] if scenario.kills else [],
    )
    if points is not None:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
        return {**points.passed, CALL: points.calls[0]} if points.kill is None else {}
    with run:
        return result_of(run, problem)


def resume(scenario: Scenario, folder: Path, every: float, points: Points | None = None) -> dict[str, Any]:
    """Resume a run that was killed, or begin anew if it had not begun; return the result."""
    if not (folder / "run.toml").exists():
        shutil.rmtree(folder, ignore_errors=True)
        return train(scenario, folder, every)
    if scenario.outages:  # they are no part of a cluster's spec
        rebuild = training.rebuild
        training.rebuild = lambda *given, **more: rebuild(*given, **more)._replace(cluster=scenario.build())
    if points is not None:
        points.install()
    problem = scenario.problem()
    with anyk.resume(folder, problem=problem, checkpoint_every=every, tell=lambda _: None) as run:
        result = result_of(run, problem)
    return result | {"damage": [str(check) for check in anyk.verify(folder).checks if check.whole is False]}


# ----------------------------------------------------------------------------------------------- cases


class Case(NamedTuple):
    """A driver killed at a point, and perhaps the one that resumes it at another."""

    scenario: Scenario
    every: float  # seconds between checkpoints; 0: one after every event
    point: Point
    second: Point | None

    def __str__(self) -> str:
        also = f", then at {self.second.kind} {self.second.number}" if self.second else ""
        return f"{self.scenario.cluster} {self.scenario.strategy}, every={self.every}: {self.point.kind} {self.point.number}{also}"


def cases(scenarios: tuple[Scenario, ...], number: int, seed: int) -> Iterator[Case]:
    """Yield cases without end, of as many kinds of points as there are; of some scenarios if their number is small."""
    draw = random.Random(f"{seed} crashes")
    scenarios = tuple(draw.sample(scenarios, min(len(scenarios), number // 4 + 1)))
    passed: dict[Scenario, Counter[str]] = {}
    for scenario in scenarios:
        with tempfile.TemporaryDirectory() as place:
            status, counts = in_process(lambda s=scenario, p=place: train(s, Path(p) / "run", 0.0, Points()))
        assert status == 0, f"{scenario.strategy} does not run"
        passed[scenario] = Counter(counts)
    kinds = [(kind, scenario) for scenario in scenarios for kind in passed[scenario] if kind != CALL]
    draw.shuffle(kinds)
    chosen: Counter[str] = Counter()
    used: Counter[tuple[str, Scenario]] = Counter()
    while True:
        # a kind that was chosen least often, so that a sample has many; every fourth time an arbitrary call
        kind, scenario = min(kinds, key=lambda pair: (chosen[pair[0]], used[pair]))
        if used.total() % 4 == 3:
            kind, scenario = CALL, draw.choice(scenarios)
        chosen[kind] += 1
        used[kind, scenario] += 1
        point = Point(kind, draw.randint(1, passed[scenario][kind]))
        second = None
        if draw.random() < AGAIN:
            kind = draw.choice([kind for kind in passed[scenario] if kind != CALL])
            second = Point(kind, draw.randint(1, max(1, passed[scenario][kind] // 2)))
        # with fewer checkpoints some points may not be reached
        yield Case(scenario, draw.choice((0.0, 0.0, 0.0, 0.003)), point, second)


def wrong(case: Case, whole: dict[str, Any] | None, happened: Counter[str]) -> str | None:
    """Return what is wrong with a case's run in the end; None if nothing is. ``whole``: what it must be, if known."""
    scenario = case.scenario
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "run"
        status, _ = in_process(lambda: train(scenario, folder, case.every, Points(case.point)))
        if status not in (0, -signal.SIGKILL):
            return f"the run ended with status {status}"
        happened["killed" if status else "not reached"] += 1
        if status:
            happened[case.point.kind] += 1
            happened[BEFORE_ALL] += not (folder / checkpoints.NAME).exists()
        if case.second is not None:
            status, _ = in_process(lambda: resume(scenario, folder, case.every, Points(case.second)))
            if status not in (0, -signal.SIGKILL):
                return f"the first resume ended with status {status}"
            happened["killed again"] += status != 0
        status, result = in_process(lambda: resume(scenario, folder, case.every))
    if status:
        return f"resume ended with status {status}"
    ends = sum(result["ledger"][name] for name in ("counted", "late_counted", "discarded", "cancelled", "lost"))
    happened.update(f"log has {kind}" for kind in result["kinds"])
    if result["steps"] != STEPS:
        return f"{result['steps']} steps"
    if ends != result["ledger"]["dispatched"]:
        return f"the ledger does not balance: {result['ledger']}"
    if not result["replay"].endswith("the same decisions and the same bits of model"):
        return f"the replay: {result['replay']}"
    if result.get("damage"):
        return f"verify: {result['damage']}"
    if whole is not None and (result["common"], result["ledger"]) != (whole["common"], whole["ledger"]):
        return f"not the run that was never interrupted: {result['common']}, {whole['common']}"
    return None


def run_cases(scenarios: tuple[Scenario, ...], number: int, seed: int) -> tuple[list[str], Counter[str]]:
    """Kill and resume; return what was wrong, and what happened."""
    failures: list[str] = []
    happened: Counter[str] = Counter()
    wholes: dict[Scenario, Any] = {}
    for case in cases(scenarios, number, seed):
        if happened["killed"] >= number or len(failures) >= _FAILURES:
            break
        whole = None
        if case.scenario.cluster != "processes":
            if case.scenario not in wholes:
                with tempfile.TemporaryDirectory() as place:
                    folder = Path(place) / "run"
                    wholes[case.scenario] = in_process(lambda s=case.scenario, f=folder: train(s, f, 10.0))[1]
            whole = wholes[case.scenario]
        why = wrong(case, whole, happened)
        if why is not None:
            failures.append(f"{case}: {why}")
            print(failures[-1], flush=True)
    return failures, happened


def main() -> int:
    """Kill the drivers that the command line asks for; return 1 if something is wrong, or never happened."""
    parser = argparse.ArgumentParser(prog="scripts/soak crashes")
    parser.add_argument("--simulated", type=int, default=200)
    parser.add_argument("--processes", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    found = False
    for name, scenarios, number in (
        ("simulated", SIMULATED, chosen.simulated),
        ("processes", PROCESSES, chosen.processes),
    ):
        if not number:
            continue
        began = time.monotonic()
        failures, happened = run_cases(scenarios, number, chosen.seed)
        kinds = [kind for kind in happened if kind.startswith(("event", "before", "after", CALL))]
        print(
            f"{name}: {happened['killed']} drivers killed at {len(kinds)} kinds of points, "
            f"{happened['killed again']} again while they resumed, {happened['not reached']} points not reached; "
            f"{len(failures)} wrong; {time.monotonic() - began:.0f} s"
        )
        wanted = KINDS if name == "simulated" else ("Reply", "Progress", "Lost", "Joined")
        missing = [f"event {kind}" for kind in wanted if not happened[f"event {kind}"]]
        if number >= 200 and missing:
            print(f"no driver was killed at: {', '.join(missing)}")
            found = True
        found |= bool(failures)
    return int(found)


if __name__ == "__main__":
    sys.exit(main())
