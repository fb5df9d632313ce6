"""Chaos runs: real training under faults, and checks that all promises hold afterwards."""

from __future__ import annotations

import contextlib
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from anyk.base import BadInput, Nonnegative, RunFailed, bracketed, parse_spec, take_key, typed, with_keys
from anyk.optimizers import Optimizer
from anyk.problems import Problem
from anyk.protocol import Strategy, Workers
from anyk.runs import Run, replay, train, verify
from anyk.runs.api import log_columns, rebuild
from anyk.strategies import strategy as build
from anyk.testing.chaos_faults import OF_NODES, PROMISES, FaultPlan
from anyk.testing.chaos_training import FINDERS, DisturbedTraining

_WINDOW = 30.0  # seconds in each of which the run must be fast enough


@dataclass(frozen=True)
class Effect:
    """The number of faults of a kind that were injected, and the effects that were observed."""

    kind: str
    amount: str
    promise: str
    injected: int
    observed: str


@dataclass(frozen=True)
class Finding:
    """A promise that must hold after a chaos run, and whether it does."""

    name: str
    holds: bool
    text: str


@dataclass(frozen=True)
class ChaosResult:
    """The result of :func:`chaos`.

    ``steps``: of the finished run. ``samples``: seconds since the first step, and updates in the log, which become
    fewer when a run is resumed. ``marks``: seconds and kinds of the faults. ``environment``: versions of packages.
    ``least``: updates per second that were required.
    """

    strategy: str
    cluster: str
    workers: Workers
    faults: FaultPlan
    options: tuple[str, ...]
    steps: int
    effects: tuple[Effect, ...]
    findings: tuple[Finding, ...]
    samples: tuple[tuple[float, int], ...]
    marks: tuple[tuple[float, str], ...]
    environment: dict[str, str]
    least: float = 1.0

    @property
    def passed(self) -> bool:
        """Whether everything holds that must."""
        return all(finding.holds for finding in self.findings)

    @property
    def command(self) -> str:
        """The command that repeats the chaos run."""
        words = ["--strategy", self.strategy, "--cluster", self.cluster, "--workers", str(self.workers), *self.options]
        for kind, amount in self.faults.amounts.items():
            if amount:
                words += [f"--{kind}"] if kind == "disk-full" else [f"--{kind}", amount]
        words += [
            "--seconds",
            f"{self.faults.seconds:g}",
            "--seed",
            str(self.faults.seed),
            "--least",
            f"{self.least:g}",
        ]
        return shlex.join(["anyk", "chaos", *words])

    def report(self) -> dict[str, Any]:
        """Return the result as plain data, in the form that ``--json`` writes."""
        return {"command": self.command, "passed": self.passed} | asdict(self)


@typed
def chaos(
    strategy: str,
    cluster: str,
    faults: FaultPlan,
    *,
    workers: int | tuple[int, int] | Workers = 6,
    least: Nonnegative = 1.0,
    options: Sequence[str] = (),
    out: str | Path | None = None,
    tell: Callable[[str], None] | None = None,
) -> ChaosResult:
    """Train on real processes while faults are injected, and check all that was promised.

    A process of its own trains (``anyk train``), for the seconds that ``faults`` states. Each kind of fault must occur
    and have an effect. In every 30 seconds the run must take at least ``least`` updates per second, not counting the
    time until it has resumed after a death of its driver. The final model must equal the model of a run without faults,
    up to rounding, if the strategy computes exact sums; else its loss must be lower than the first. The run must replay
    and be intact, and nothing may be left behind.

    ``cluster``: the spec of a cluster ``processes``, ``ray`` or ``nodes``, of which three then run on this machine.
    ``workers``: their number, or a range. ``options``:
    further options of ``anyk train``, such as ``("--data", "digits", "--delays", "exp:mean=0.01")``. ``out``: a new
    folder for the run; by default it is not kept. ``tell`` is called with lines on the progress.

    Raises :class:`~anyk.BadInput` for faults that the cluster or the strategy cannot take, for options that the
    training refuses, and on other systems than Linux; :class:`~anyk.RunFailed` if the training does not start.
    """
    workers = Workers.of(workers)
    plan = build(strategy, workers=workers)
    _check_possible(plan, cluster, faults)
    scratch = Path(tempfile.mkdtemp(prefix="anyk-chaos-"))
    folder = scratch / "run" if out is None else Path(out)
    requests = scratch / "requests"
    spoiling = with_keys(take_key(cluster, "spoiled")[0], {"spoiled": bracketed(str(requests))})
    shared = ["--cluster", spoiling, "--workers", str(workers), "--seconds", str(faults.seconds), *options]
    problem = [word for pair in pairwise(options) if pair[0] == "--problem" for word in pair]
    descriptors, report = _descriptors(), tell or (lambda _: None)
    report(
        f"{faults.seconds:g} s of training under faults, after the start of {workers.most} workers and before the "
        "checks"
    )
    training = DisturbedTraining(
        train=["train", "--strategy", strategy, *shared, "--out", str(folder), "--quiet"],
        resume=["resume", str(folder), "--trust", "--quiet", *problem],
        folder=folder,
        cluster=cluster,
        faults=faults,
        requests=requests,
        temporary=scratch / "temporary",
        tell=report,
    )
    try:
        training.run()
        trained = time.monotonic()
        report(f"{training.length}; now comparing the model, replaying and verifying the run")
        effects = tuple(_effect(kind, amount, training, plan) for kind, amount in faults.amounts.items() if amount)
        steps, environment, of_run = _of_run(folder, plan)
        findings = (
            _happened(effects),
            Finding("end", not training.defects, "; ".join(training.defects) or "the training ended by itself"),
            _fast_enough(training.samples, training.outages, least, faults.seconds),
            *of_run,
            _nothing_left(descriptors, training, folder),
        )
        report(f"checked in {time.monotonic() - trained:.0f} s")
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return ChaosResult(
        strategy=strategy,
        cluster=cluster,
        workers=workers,
        faults=faults,
        options=tuple(options),
        steps=steps,
        effects=effects,
        findings=findings,
        samples=tuple(training.samples),
        marks=tuple(training.marks),
        environment=environment,
        least=least,
    )


def _check_possible(strategy: Strategy, cluster: str, faults: FaultPlan) -> None:
    """Raise BadInput for faults that cannot be injected, or whose effects are not promised to be noticed."""
    name = parse_spec(cluster)[0]
    if not sys.platform.startswith("linux"):
        raise BadInput(f"chaos runs need Linux, whose /proc shows the workers; this is {sys.platform}")
    if name not in FINDERS:
        raise BadInput(f"faults are injected into workers of {' and '.join(FINDERS)}, not of cluster '{name}'")
    if name != "nodes" and (kinds := [kind for kind in OF_NODES if faults.amounts[kind]]):
        raise BadInput(f"{' and '.join(kinds)} needs the cluster 'nodes', not '{name}'")
    keys = parse_spec(cluster)[1]
    if faults.node_kill and "slices" in keys and keys.get("copies") != "2":
        raise BadInput(
            "node-kill ends a run whose nodes alone hold their slices of the model; add copies=2, or leave out slices"
        )
    if faults.corrupt and not strategy.facts.compares_all:
        raise BadInput(
            f"corrupt needs a strategy that compares every message, such as draco; '{strategy.spec}' would use wrong "
            "numbers"
        )


# ------------------------------------------------------------------------------------------- findings

_EFFECTS = {
    "kill": "{} deaths in the log",
    "stop": "{} continued",
    "freeze": "seen stopped {} times",
    "slow": "{} continued",
    "corrupt": "{} messages refused as contradictory",
    "nan": "{} messages refused as not finite",
    "node-kill": "{} workers lost with their nodes",
    "node-stop": "{} continued",
    "driver": "{} resumed and took steps",
    "disk-full": "{} resumed and took steps",
}


def _effect(kind: str, amount: str, training: DisturbedTraining, strategy: Strategy) -> Effect:
    observed = _EFFECTS[kind].format(training.observed[kind])
    if kind == "corrupt" and strategy.layout.voting:
        observed = "outvoted"  # without an event: the model shows it
    elif not training.observed[kind]:
        observed = ""
    return Effect(kind, amount, PROMISES[kind], training.injected[kind], observed)


def _happened(effects: Sequence[Effect]) -> Finding:
    never = [effect.kind for effect in effects if not effect.injected]
    unseen = [effect.kind for effect in effects if effect.injected and not effect.observed]
    groups = (never, "never occurred"), (unseen, "occurred without an effect")
    wrong = "; ".join(f"{' and '.join(kinds)} {what}" for kinds, what in groups if kinds)
    return Finding("faults", not wrong, wrong or "every kind of fault occurred and had its effect")


def _fast_enough(
    samples: Sequence[tuple[float, int]], outages: Sequence[tuple[float, float]], least: float, limit: float
) -> Finding:
    """Return whether enough updates were added to the log in every window, without the driver's outages.

    Updates that a resumed run takes again count again. After ``limit`` seconds only the time until the last update
    counts, as the run then ends.
    """
    while samples[-1][0] > limit and len(samples) > 1 and samples[-2][1] == samples[-1][1]:
        samples = samples[:-1]
    seconds, updates = np.array(samples, dtype=float).T
    added = np.concatenate([[0.0], np.cumsum(np.maximum(np.diff(updates), 0.0))])
    times = seconds - sum((np.clip(seconds, start, end) - start for start, end in outages), np.zeros(len(seconds)))
    window = min(_WINDOW, float(times[-1] - times[0]))
    starts = times[times <= times[-1] - window + 1e-9]
    rates = (np.interp(starts + window, times, added) - np.interp(starts, times, added)) / max(window, 1e-9)
    slowest, mean = float(rates.min()), float(added[-1]) / max(float(times[-1]), 1e-9)
    sentence = f"{mean:.1f} updates per second, {slowest:.1f} in the slowest {window:.0f} s; {least:g} are required"
    if outages:
        sentence += (
            f"; after a death of the driver at most {max(end - start for start, end in outages):.1f} s without one"
        )
    return Finding("speed", slowest >= least, sentence)


def _of_run(folder: Path, strategy: Strategy) -> tuple[int, dict[str, str], Sequence[Finding]]:
    """Return the steps and the environment of a run that has ended, and findings on its model, replay and folder."""
    try:
        with contextlib.closing(Run.open(folder)) as run:
            of = f"the run '{folder}'"
            rebuilt = rebuild(folder, run.config, of, call="chaos", cluster="simulated", trust=True)
            replayed = replay(run, problem=rebuilt.problem, trust=True)
            verified = verify(folder)
            damaged = [str(check) for check in verified.checks if check.whole is False]
            findings = (
                _right_model(run, rebuilt.problem, rebuilt.optimizer, strategy),
                Finding("replay", replayed.decisions and replayed.model is True, str(replayed)),
                Finding("folder", verified.whole, "; ".join(damaged) or "log, checkpoints and ledger are intact"),
            )
            return run.steps, run.config.environment, findings
    except (BadInput, RunFailed) as error:
        return 0, {}, [Finding("run", False, str(error))]


def _right_model(run: Run, problem: Problem, optimizer: Optimizer, strategy: Strategy) -> Finding:
    """Compare the model of exact sums with a run without faults; else compare its loss with the first."""
    history, model = run.history["loss"], run.model
    losses = history[np.isfinite(history)]
    if not strategy.facts.exact or any(log_columns(run.log, "works")["compress"]):
        sentence = f"{run.steps:,} steps; not an exact sum, so only the loss is compared: "
        if len(losses) < 2:
            return Finding(
                "model", False, f"{sentence}it was evaluated {len(losses)} times, not at first and at the end"
            )
        falls = bool(np.isfinite(model).all() and losses[-1] < losses[0])
        return Finding("model", falls, f"{sentence}{losses[0]:.4g} at first, {losses[-1]:.4g} at the end")
    sampled = strategy.layout.minibatches
    reference, workers = (strategy.spec, run.config.workers) if sampled else ("uncoded", Workers(most=1))
    undisturbed = train(
        problem,
        reference,
        "simulated",
        workers=workers,
        partitions=None if sampled else run.config.partitions,
        seed=run.config.seed,
        optimizer=optimizer,
        steps=run.steps,
        evaluate=None,
    )
    with contextlib.closing(undisturbed):
        distance = float(np.linalg.norm(undisturbed.model - model) / max(float(np.linalg.norm(model)), 1e-300))
    tolerance = float(np.finfo(model.dtype).eps) ** 0.5
    sentence = (
        f"{run.steps:,} steps: differs by {distance:.1e} of its norm from a run without faults ('{reference}' on "
    )
    sentence += f"{workers} simulated workers); {tolerance:.1e} is allowed for rounding"
    return Finding("model", distance <= tolerance, sentence)


def _descriptors() -> int:
    """Return the number of open files of this process."""
    return len(list(Path("/proc/self/fd").iterdir()))


def _nothing_left(descriptors: int, training: DisturbedTraining, folder: Path) -> Finding:
    """Return whether there are files that should be gone, or more open files than ``descriptors``, as before the run.

    Processes that were left are among the training's defects.
    """
    paths = [*map(Path, sorted(training.named)), *training.temporary.rglob("*"), *folder.glob("*.part")]
    remains = [str(path) for path in paths if path.exists()]
    if (opened := _descriptors() - descriptors) > 0:
        remains.append(f"{opened} open files")
    sentence = (
        f"left behind: {', '.join(remains)}" if remains else "no process, file, socket or shared memory is left behind"
    )
    return Finding("remains", not remains, sentence)
