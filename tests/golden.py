"""Decisions of every code and strategy as JSON lines, to compare one state of the package with another bit for bit.

    python tests/golden.py write FOLDER     write a file for each strategy
    python tests/golden.py compare FOLDER   decide again, and say where that differs from what was written

Each file has, for three seeds with workers lost and found, every event that the strategy was told and every command
it gave: numbers, weights, times; no texts. Each run is made twice, the second time with the strategy saved, through
JSON, and restored into a fresh one at every tenth event; both must be the same. Weights depend on the machine's
linear algebra in the last digits, so both states are to be run on one machine.
"""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import anyk
from anyk import keyed
from anyk.clusters import Outage, Simulated
from anyk.codes import registry as codes
from anyk.delays import parse
from anyk.errors import RunFailed
from anyk.problems.many import ManyProblems
from anyk.protocol import Combine, Failed, Lost, Mix, Note, Reply, Running, Stop
from anyk.runs.engine.driver import Driver
from anyk.runs.engine.session import session

STEPS, EVERY, SEEDS = 60, 10, (0, 1, 2)
FORMER = {  # specs that decide as another did when a log was written
    "gc:stragglers=1,end=cutoff": "gc:stragglers=1", "gc:stragglers=2,end=cutoff,models=2": "gc:stragglers=2,models=2",
}  # fmt: skip
SPECS = [
    *(entry.name for entry in codes if entry.build.__module__.startswith("anyk.") and entry.name != "matrix"),
    *("agc:load=3", "agc:load=2,scaling=marginal,wait=3", "nested:kind=cyclic", "progress:placement=random,wait=20%"),
    *("draco:kind=cyclic", "tree:children=2,stragglers=0", "bgc:decoder=one-step", "biregular:decoder=algorithmic"),
    *("hetero:relearn=5", "frc:stragglers=2,cancel=discard", "cyclic:stragglers=2,batch=3", "frc:load=2,models=3"),
    *("uncoded:wait=3&3mad", "uncoded:wait=4|0.2s", "expander:wait=30%", "partial:stragglers=1,load=3,inner=cyclic"),
    *("sync", "k-sync:k=4", "k-batch-sync:k=4,batch=2", "k-batch-sync:k=8,cancel=discard,batch=2", "async"),
    *("async:stale=inverse,cutoff=7", "async:stale=distance,bound=0.01", "async:compensate=0.04,batch=2"),
    *("k-async:k=3", "k-batch-async:k=3,batch=2,stale=sqrt", "adasync:base=k-async,interval=0.5"),
    *("adasync:base=k-sync,rule=noise,interval=0.5,batch=4", "adasync:base=k-batch-sync,rule=delays,interval=0.5"),
    *("gradual:base=k-batch-async,every=5", "pasgd:tau=3", "pasgd:tau=3,wait=4,batch=2", "fedavg:tau=3,clients=4"),
    *("slowmo:tau=3", "diloco:tau=3", "adacomm:tau=8,interval=2", "fedbuff:tau=3,k=3", "dpsgd:graph=ring,tau=2"),
    *("matcha:graph=ring,tau=2", "easgd:tau=2", "ad-psgd", *FORMER),
    *("sr-sgc:B=2,W=3,lambda=3", "m-sgc:B=1,W=2,lambda=2", "m-sgc:B=2,W=3,lambda=1,late=keep"),
    *("compressed:of=(frc:load=2),by=(qsgd:levels=4)", "compressed:of=(pasgd:tau=3),by=(top-k:share=0.5)"),
]
DELAYS = ("exp:mean=0.3", "bimodal:fast=0.1,slow=1,probability=0.2", "hetero:means=0.1/0.2/0.6")
NAMES: dict[str, str] = {  # commands and events that have been renamed since a log was written
    "EvaluateLoss": "Assess", "LossEvaluated": "Assessed", "MeasureDrift": "Compare", "DriftMeasured": "Compared",
    "MeasureNoise": "Scatter", "NoiseMeasured": "Scattered", "ProjectMessage": "Measure", "MessageProjected": "Measured",
    "RequestMessage": "Collect",
}  # fmt: skip


class Watched(Running):
    """A strategy whose events and commands are written down, and which is now and then replaced by its restored self."""

    def __init__(self, strategy: Any, restored: bool) -> None:
        super().__init__(strategy)
        self._fresh, self._restored = copy.deepcopy(strategy), restored
        self._heard = 0
        self.lines: list[Any] = []

    def start(self, fleet: Any) -> Sequence[Any]:
        commands = self._told(["start", *fleet], super().start(fleet))
        self._watch()
        return commands

    def _watch(self) -> None:
        self._on, self.on = self.on, self._hear

    def _hear(self, event: Any) -> Sequence[Any]:
        self._heard += 1
        if self._restored and self._heard % EVERY == 0:
            state = json.loads(json.dumps(self.save()))
            self.strategy = copy.deepcopy(self._fresh)
            self.restore(state)
            self._watch()
        fields = list(event)
        if isinstance(event, (Reply, Failed)):
            fields = fields[:4]
        elif isinstance(event, Lost):
            fields = [event.time, event.worker, event.gone]
        return self._told([type(event).__name__, *fields], self._on(event))

    def _told(self, event: list[Any], commands: Sequence[Any]) -> Sequence[Any]:
        given = [
            [type(command).__name__, *([command.failed] if isinstance(command, Stop) else map(plain, _fields(command)))]
            for command in commands
            if not isinstance(command, Note)
        ]
        for line in (event, *given):
            line[0] = NAMES.get(line[0], line[0])
        self.lines.append([event, given])
        return commands


def _fields(command: Any) -> Sequence[Any]:
    """Those of a command, without one that commands had not when logs were written."""
    return command[:-1] if isinstance(command, (Combine, Mix)) and not command.keep else command


def plain(value: Any) -> Any:
    """Ranges, tuples and NumPy's numbers as JSON has them."""
    if isinstance(value, (range, tuple, list)):
        return [plain(item) for item in value]
    if isinstance(value, np.ndarray):
        return value.tolist()
    return value.item() if isinstance(value, np.generic) else value


def decisions(spec: str, seed: int, *, restored: bool) -> Iterator[str]:
    """The lines of one run."""
    n = 7 if spec.startswith("bibd") else 6
    random = keyed.generator(seed, "golden", FORMER.get(spec, spec))
    outages = []
    for _ in range(3):
        time = float(random.exponential(1.5))
        outages.append(Outage(time, int(random.integers(n)), time + float(random.exponential(0.5))))
    strategy: Any = anyk.strategy(spec, workers=n)
    strategy = strategy.planned(STEPS)
    watched: Any = Watched(strategy, restored)
    byzantine = (1,) if spec.startswith("draco") else ()
    cluster = Simulated(n, delays=parse(DELAYS[seed % len(DELAYS)]), seed=seed, outages=outages, byzantine=byzantine)
    problem: Any = anyk.problems.from_data("synthetic:rows=60,features=4")
    if strategy.layout.slots[0].startswith("model "):
        problem = ManyProblems([problem] * len(strategy.layout.slots))
    driver = Driver(strategy, cluster, problem=problem, optimizer=anyk.optimizers.GD(lr=0.3), steps=STEPS)
    driver.running = watched
    with session(driver):
        try:
            driver.run()
        except RunFailed:
            watched.lines.append(["failed"])
    yield json.dumps(["run", FORMER.get(spec, spec), seed, driver.step])
    yield from map(json.dumps, watched.lines)


def written(spec: str) -> str:
    """Everything of one strategy."""
    lines: list[str] = []
    for seed in SEEDS:
        whole = list(decisions(spec, seed, restored=False))
        if list(decisions(spec, seed, restored=True)) != whole:
            print(f"{spec}, seed {seed}: restored, it decides otherwise", flush=True)
        lines += whole
    return "\n".join(lines) + "\n"


def main(what: str, folder: str) -> None:
    different = 0
    for spec in SPECS:
        file = Path(folder) / (FORMER.get(spec, spec).replace("/", "-") + ".jsonl")
        text = written(spec)
        if what == "write":
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
            print(f"{spec}: {text.count(chr(10))} lines", flush=True)
            continue
        known = file.read_text().splitlines()
        found = text.splitlines()
        if known != found:
            different += 1
            at = next(
                (i for i, (a, b) in enumerate(zip(known, found, strict=False)) if a != b), min(len(known), len(found))
            )
            print(f"{spec}: line {at + 1} differs\n  was {known[at : at + 1]}\n  is  {found[at : at + 1]}", flush=True)
    if what == "compare":
        print(f"{len(SPECS) - different} of {len(SPECS)} strategies decide as before")
        sys.exit(1 if different else 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
