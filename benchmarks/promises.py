"""Whether plans keep what they promise on this machine, and how far `--strategy auto` is from the best fixed strategy.

Usage: python benchmarks/promises.py SECTION … [--data FOLDER] [--seeds 3] [--steps 30] [--parameters 10000000]

machine   a PyTorch model on 4 processes: recorded under uncoded, planned, and run under five strategies
auto      `--strategy auto` against nine fixed strategies on the virtual clock, for delays of eight kinds
held      how often promises of 90 % hold on later rounds of measured traces (--data, or the variable ANYK_DATA)
"""

import argparse
import os
from pathlib import Path
from statistics import median

import numpy as np

import anyk
from anyk.fleet.plans.measured_fleet import MeasuredFleet

PROCESSES, INPUTS = 4, 1000
FIVE = ("uncoded", "frc:stragglers=1", "cyclic:stragglers=1", "progress:load=2", "uncoded:balance=auto")


def machine(asked):
    import torch

    def problem():
        torch.manual_seed(0)
        hidden = asked.parameters // INPUTS * 2 // 3
        model = torch.nn.Sequential(
            torch.nn.Linear(INPUTS, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, INPUTS // 2)
        )
        X, y = torch.randn(asked.samples, INPUTS), torch.randint(0, INPUTS // 2, (asked.samples,))
        return anyk.problems.TorchProblem(model, torch.nn.CrossEntropyLoss(), (X, y))

    def trained(spec):
        optimizer = anyk.optimizers.TorchOptimizer("AdamW", lr=1e-4)
        with anyk.clusters.Processes(PROCESSES) as cluster:
            return anyk.train(problem(), spec, cluster, optimizer=optimizer, steps=asked.steps, evaluate="none")

    plan = anyk.plan(trained("uncoded"), everything=True)
    promises = {one.spec: one.seconds_per_step for one in (*plan.candidates, *plan.others)}
    inside = 0
    for spec in FIVE:
        run, promise = trained(spec), promises[anyk.strategy(spec, workers=PROCESSES).spec]
        real = run.seconds / run.jobs
        inside += promise.holds(real)
        print(
            f"{spec:24s} real {real:.3f} s, promised {promise.median:.3f} ({promise.low:.3f} to {promise.high:.3f}), "
            f"ratio {real / promise.median:.2f} {'inside' if promise.holds(real) else 'outside'}",
            flush=True,
        )
    print(f"inside the promised interval: {inside} of {len(FIVE)} (goal: 4)")


# ------------------------------------------------------------------------------------------- auto

WORKERS, STEPS = 8, 600
NINE = (
    "uncoded", "uncoded:balance=auto", "frc:stragglers=1", "frc:stragglers=3", "frc:stragglers=7",
    "cyclic:stragglers=2", "nested:stragglers=3", "progress:load=2", "bcc:batches=2",
)  # fmt: skip
COMPUTING = "simulated:partition=0.2,cores=8"


def kinds(seed):
    """Delays of eight kinds by name: seconds, rounds x workers."""
    random = np.random.default_rng([11, seed])
    shape = 2 * STEPS, WORKERS
    steady = 0.5 * (1.0 + random.exponential(0.05, shape))
    slower, ending = steady.copy(), steady.copy()
    slower[STEPS // 2 :, 3] *= 6.0
    ending[: STEPS // 2] += random.exponential(0.5, (STEPS // 2, WORKERS))
    yield "exponential", random.exponential(0.5, shape)
    yield "shifted exponential", 0.5 + random.exponential(0.5, shape)
    yield "bimodal", np.where(random.random(shape) < 0.1, 2.0, 0.2)
    yield "Pareto", 0.2 * (1.0 + random.pareto(1.5, shape))
    yield "constant", np.full(shape, 0.5)
    yield "two speeds", steady * np.where(np.arange(WORKERS) % 2, 2.0, 1.0)
    yield "one slower from half on", slower
    yield "delays end half-way", ending


def settings():
    """What takes a worker's time: delays only; also computing; computing only, by the delays' law."""
    yield "delays", {"cluster": "simulated"}, {}
    yield "delays and computing", {"cluster": COMPUTING}, {}
    yield "computing", {"cluster": "simulated"}, {"per": "load"}


def auto(asked):
    problem = anyk.problems.from_data("synthetic:rows=240,features=4")
    for setting, clusters, laws in settings():
        ratios = {}
        for seed in range(asked.seeds):
            for kind, times in kinds(seed):
                delays = anyk.delays.TableDelays(times, by="round", **laws)
                same = {"workers": WORKERS, "delays": delays, "steps": STEPS, "evaluate": "none", **clusters}
                fixed = {spec: anyk.train(problem, spec, **same).seconds for spec in NINE}
                found = anyk.train_auto(problem, **same)
                ratios.setdefault(kind, []).append(found.seconds / min(fixed.values()))
                if asked.verbose:
                    parts = [(run.config.strategy, run.begun, round(run.seconds, 1)) for run in found.runs]
                    shown = {spec: round(seconds, 1) for spec, seconds in fixed.items()}
                    print(f"    {kind} {ratios[kind][-1]:.2f} {found.seconds:.1f} {parts} {shown}", flush=True)
        for kind, values in ratios.items():
            print(
                f"auto, {setting}: {kind:24s} {median(values):.2f} times the best of nine ({min(values):.2f} to "
                f"{max(values):.2f}, {len(values)} seeds); goal: 1.3",
                flush=True,
            )


# ------------------------------------------------------------------------------------------- held

FLEET = 32  # workers of a fleet that is cut out of a trace
FAMILIES = "uncoded", "frc", "cyclic", "nested", "progress", "bcc"


def traces(folder):
    """Fleets of the measured traces by name: seconds, rounds x workers."""
    for file in sorted(Path(folder, "lambda-traces").glob("*.npz")):
        with np.load(file) as held:
            seconds = held["seconds"].astype(float)
        for first in range(0, seconds.shape[1] - FLEET + 1, FLEET):
            yield "lambda", seconds[:, first : first + FLEET]
    for name in ("AR", "ST"):
        yield "llm", anyk.fleet.read(Path(folder, "llm-traces", f"trace-{name}.parquet")).table


def held(asked):
    """Plan on each half of the rounds, and hold the promises against the other half."""
    if asked.data is None:
        raise SystemExit("say where the traces are: --data FOLDER")
    outcomes = {}
    for kind, times in list(traces(asked.data))[:: asked.every]:
        half, workers = len(times) // 2, times.shape[1]
        for past, future in ((times[:half], times[half:]), (times[half:], times[:half])):
            record = anyk.fleet.Record(past, load=1 / workers)
            slope = 0.2 * float(np.median(past)) * workers
            plan = anyk.plan(
                record, slope=slope, resamples=200, steps=len(future),
                among=lambda one: one.spec.partition(":")[0] in FAMILIES,
            )  # fmt: skip
            later = MeasuredFleet(future, np.zeros(future.shape, bool), 1 / workers, np.array(plan.slopes))
            for choice in {one.spec: one for one in (plan.today, plan.best, plan.candidates[0])}.values():
                promise, real = choice.seconds_per_step, later.alone(choice.spec, plan.workers)
                side = "inside" if promise.holds(real) else "below" if real < promise.low else "above"
                outcomes.setdefault(kind, []).append(side)
                outcomes.setdefault(f"{kind}, {len(past)} rounds", []).append(side)
                outcomes.setdefault("all", []).append(side)
    for kind, sides in outcomes.items():
        inside = sides.count("inside")
        print(
            f"held, {kind}: {inside} of {len(sides)} promises ({100 * inside / len(sides):.0f} %), "
            f"{sides.count('below')} took less, {sides.count('above')} took more; goal: 85 to 95 %",
            flush=True,
        )


SECTIONS = {"machine": machine, "auto": auto, "held": held}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="+", choices=SECTIONS, metavar="SECTION")
    parser.add_argument("--data", default=os.environ.get("ANYK_DATA"), type=Path)
    parser.add_argument("--every", default=1, type=int, help="use only every so many fleets of the traces")
    parser.add_argument("--seeds", default=3, type=int)
    parser.add_argument("--steps", default=30, type=int)
    parser.add_argument("--samples", default=128, type=int)
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--parameters", default=10_000_000, type=int)
    asked = parser.parse_args()
    for name in asked.sections:
        SECTIONS[name](asked)
