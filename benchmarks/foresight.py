"""What explanations find, what plans and their promises are worth, and what both cost.

Usage: python benchmarks/foresight.py [SECTION …] [--data FOLDER] [--repeat 3]

One table: a line, its goal, what was found. All sections if none is named: about an hour of a core.
Lines on measured traces need the folder of the traces (--data, or the environment variable ANYK_DATA): in it
`lambda-traces/*.npz` (seconds: rounds x workers, load) and `llm-traces/` (published operation traces and analyses).

replay     eight strategies on processes, against their simulation on the very rows they meet
forecast   plans made on one half of the rounds and held against the other; how often their intervals hold
load       times at two loads predict a third
decision   how far from the best the advice is, whether a change was right, and how much promises flatter themselves
scale      processor seconds of many candidates on many workers, and of an event under each decentralised strategy
llm        what is said of two traces of large language models whose authors published what they found
explain    planted causes found, what few bad steps cost
innocents  workers, racks and drift found without cause, in 200 fleets of each kind
culprits   slow workers named, in 200 fleets of each kind
target     seconds to a target, planned on one half of the rounds and trained on the other
check      the five parts of a broken promise
recorder   what recording DistributedDataParallel costs, in paired steps
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections import Counter
from itertools import combinations
from pathlib import Path

import msgspec
import numpy as np
from synthetic_fleets import CLEAN, CULPRITS, FLEETS, NOISE, REPORTED, base, few, make, rack, slow_one, waves

import anyk
from anyk.base import keyed_generator
from anyk.fleet.explanation.attribution import culprits as find_culprits
from anyk.fleet.explanation.attribution import drifts, groups, shares
from anyk.fleet.plans.candidates import Request, candidates_for, time_strategies
from anyk.fleet.plans.measured_fleet import USUAL, MeasuredFleet, fleet_of
from anyk.fleet.records import Record
from anyk.fleet.simulation import drive
from anyk.protocol import Workers
from anyk.runs.folder.promise import Estimate

WORKERS = 12
SIZES = ((8, 30), (12, 60), (30, 200), (256, 60))  # workers x rounds
EIGHT = (
    "uncoded", "frc:stragglers=1", "cyclic:stragglers=2", "k-sync:k=9", "gc:stragglers=2", "sr-sgc:B=1,W=2,lambda=4",
    "agc:load=3,wait=9", "async",
)  # fmt: skip
SLOPE = 0.2  # of a task's median that is computing, where a fleet is made up


def row(line, goal, found):
    print(f"{line:<74} {goal:<26} {found}", flush=True)


def share(found):
    found = list(found)
    return f"{sum(found)} of {len(found)} ({100 * sum(found) / max(1, len(found)):.0f} %)"


def percent(values, of=np.median):
    return f"{100 * float(of(list(values))):.1f} %"


def traces(folder):
    """Fleets of the traces by name: seconds (rounds x workers) and load."""
    files = sorted(Path(folder, "lambda-traces").glob("*.npz"))
    for file in files:
        with np.load(file) as held:
            yield file.stem, held["seconds"].astype(float), float(held["load"])


def wide(folder, workers=32):
    """The traces as fleets of so many workers each, whose tasks are taken to cover 1/workers of the data."""
    for name, seconds, _ in traces(folder):
        for first in range(0, seconds.shape[1] - workers + 1, workers):
            yield name, seconds[:, first : first + workers]


def planned(times, **rest):
    """A plan from measured times of which a fifth is computing."""
    slope = SLOPE * float(np.median(times)) * times.shape[1]
    return anyk.plan(Record(times, load=1 / times.shape[1]), slope=slope, resamples=200, **rest)


def later(times, found):
    """A fleet of other rounds with the slopes that a plan took."""
    return MeasuredFleet(times, np.zeros(times.shape, bool), 1 / times.shape[1], np.array(found.slopes))


# ------------------------------------------------------------------------------------------- replay


def replay(asked):
    problem = anyk.problems.from_data("synthetic:rows=240,features=4")
    random, steps = np.random.default_rng(1), 24
    errors = {spec: [] for spec in EIGHT}
    for number in range(asked.repeat):
        times = 0.15 + random.exponential(0.15, (steps + 4, WORKERS))
        times[:, number] *= 2.0
        fleet = MeasuredFleet(times, np.zeros(times.shape, bool), 1 / WORKERS, 0.0)
        for spec in EIGHT:
            strategy = anyk.strategy(spec, workers=WORKERS)
            rounds = strategy.facts.exact or spec.startswith("agc")
            delays = anyk.delays.TableDelays(times, by="round" if rounds else "task")
            with anyk.clusters.Processes(WORKERS, delays=delays) as cluster:
                each = steps // anyk.protocol.models_trained(strategy)
                run = anyk.train(problem, strategy, cluster, steps=each, evaluate="none")
            errors[spec].append(run.seconds / run.jobs / float(fleet.durations(strategy)[: run.jobs].mean()) - 1.0)
    for spec, found in errors.items():
        row(f"replay: {spec} on processes over its simulation", "", f"{100 * np.median(found):+.1f} %")
    middle = [abs(float(np.median(found))) for found in errors.values()]
    row("replay: error of eight strategies, median", "at most 3 %", percent(middle))
    row("replay: largest error", "at most 10 %", percent(middle, max))


# ------------------------------------------------------------------------------------------- forecast


def forecast(asked):
    for rounds in (30, 100):
        errors, halves, held = _forecasts(
            ((name, make(name, 2 * rounds, seed)) for name in FLEETS for seed in range(10)), rounds
        )
        goal = "at least 75 %" if rounds == 30 else "at least 80 %"
        for name in FLEETS:
            kind = "reported only" if name in REPORTED else ""
            row(f"forecast: intervals, {rounds} rounds, {name}", kind, share(held[name]))
        kept = [name for name in FLEETS if name not in REPORTED]
        row(
            f"forecast: intervals hold, {rounds} synthetic rounds",
            goal,
            share(one for name in kept for one in held[name]),
        )
        _ratio(f"{rounds} synthetic rounds", errors, halves)
    if asked.data:
        fleets = list(wide(asked.data))
        errors, halves, held = _forecasts(fleets, None)
        row("forecast: intervals hold, traces", "at least 70 %", share(one for found in held.values() for one in found))
        row("forecast: traces, between the halves, largest", "", percent(halves, max))
        _ratio("traces", errors, halves)


def _ratio(what, errors, halves):
    ratio = float(np.median(errors) / np.median(halves))
    row(f"forecast: error over that between the halves, {what}", "at most 1.25", f"{ratio:.2f} ({percent(errors)})")


def _forecasts(fleets, rounds):
    """Errors of promises of today's and the best strategy, errors between the halves, and whether intervals held."""
    errors, halves, held, drift = [], [], {}, []
    for name, times in fleets:
        half = len(times) // 2 if rounds is None else rounds
        found = planned(times[:half])
        first, second = later(times[:half], found), later(times[half : 2 * half], found)
        for choice in (found.today, found.candidates[0]):
            measured, known = second.alone(choice.spec), first.alone(choice.spec)
            errors.append(abs(choice.seconds_per_step.median / measured - 1.0))
            halves.append(abs(known / measured - 1.0))
            held.setdefault(name, []).append(choice.seconds_per_step.holds(measured))
        if name == "drifting":
            drift.append(any("drifts" in one for one in found.assumptions))
    if drift:
        row(f"forecast: the plan names the drift, {rounds} rounds", "", share(drift))
    return errors, halves, held


# ------------------------------------------------------------------------------------------- load


def load(asked):
    errors = _load_errors(_synthetic_loads())
    for name, found in errors.items():
        row(f"load: {name} at a third load, 20 synthetic fleets", "", percent(found))
    if asked.data:
        at = {}
        for name, seconds, where in traces(asked.data):
            at.setdefault(name.rsplit("-", 1)[0], {})[where] = seconds
        row("load: the straight line through the median tasks themselves, traces", "", percent(_lines(at)))
        for name, found in _load_errors(_measured_loads(at)).items():
            goal = "at most 3 %" if name == "median task" else "at most 6 %"
            row(f"load: {name} at a third load, traces", goal, percent(found))


def _synthetic_loads():
    random = np.random.default_rng(2)
    for _ in range(20):
        speeds = np.exp(random.normal(0.0, 0.3, 30))
        yield [(k / 30, 1.0 + random.exponential(0.5, (200, 30)) + k / 3 * speeds) for k in (1, 4, 8)]


def _measured_loads(at):
    for loads in at.values():
        for three in combinations(sorted(loads), 3):
            for third in three:
                yield [(one, loads[one]) for one in three if one != third] + [(third, loads[third])]


def _lines(at):
    """Errors at a third load of the line through the median tasks at two loads, which all rounds have told."""
    for triple in _measured_loads(at):
        (one, a), (two, b), (third, met) = (
            (load, np.median(np.sort(times, axis=1)[:, times.shape[1] // 2])) for load, times in triple
        )
        yield abs((a + (third - one) / (two - one) * (b - a)) / met - 1.0)


def _load_errors(triples):
    errors = {"median task": [], "0.9 n-th of n": []}
    for (one, first), (two, second), (third, met) in triples:
        workers = met.shape[1]
        fleet = fleet_of(Record(first, load=one), Record(second, load=two))[0]
        predicted = fleet.seconds(np.full(workers, third))
        for name, place in (("median task", workers // 2), ("0.9 n-th of n", round(0.9 * workers) - 1)):
            ours, theirs = (np.median(np.sort(times, axis=1)[:, place]) for times in (predicted, met))
            errors[name].append(abs(ours / theirs - 1.0))
    return errors


# ------------------------------------------------------------------------------------------- decision


def decision(asked):
    many = [(name, make(name, 400, seed)) for name in FLEETS for seed in range(4)]
    regrets, right, nothing, _ = _decisions(many)
    row("decision: within 5 % of the best, synthetic, 200 rounds", "at least 95 %", share(r <= 0.05 for r in regrets))
    row("decision: a change was right, synthetic", "at least 95 %", share(right))
    row("decision: nothing on the fleet without stragglers", "all", share(nothing))
    if asked.data:
        fleets = list(wide(asked.data))
        regrets, right, _, ranked = _decisions(fleets)
        row("decision: the same of the best on the trace's other workers", "", share(r <= 0.05 for r in _known(fleets)))
        row(
            "decision: the soonest named within 5 % of the best, traces",
            "at least 80 %",
            share(r <= 0.05 for r in ranked),
        )
        row("decision: the same of what is advised, which may be today's", "", share(r <= 0.05 for r in regrets))
        row("decision: a change was right, traces", "at least 95 %", share(right))
    for models, rounds in ((1, 30), (12, 30)):
        biases, counts = [], []
        for name in FLEETS:
            if name in REPORTED:
                continue
            for seed in range(6):
                times = make(name, rounds + 400, 100 + seed)
                found = planned(times[:rounds], models=models)
                best = found.candidates[0]
                truth = later(times[rounds:], found).alone(best.spec)
                biases.append(best.seconds_per_step.median / truth - 1.0)
                counts.append(len(found.candidates))
        row(f"decision: mean bias of the promise, {int(np.median(counts))} candidates, {rounds} rounds",
            "at most 3 %", f"{100 * np.mean(biases):+.1f} % (standard error "
            f"{100 * np.std(biases) / len(biases) ** 0.5:.1f})")  # fmt: skip


def _decisions(fleets):
    """Regrets on the other half, whether changes were right, nothing on clean fleets, and regrets of the soonest."""
    regrets, right, nothing, ranked = [], [], [], []
    for name, times in fleets:
        half = len(times) // 2
        found = planned(times[:half])
        second = later(times[half:], found)
        took = {one.spec: second.alone(one.spec) for one in found.candidates}
        regrets.append(took[found.best.spec] / min(took.values()) - 1.0)
        ranked.append(took[found.candidates[0].spec] / min(took.values()) - 1.0)
        if found.verdict == "change":
            right.append(took[found.best.spec] < took[found.today.spec])
        if name in CLEAN:
            nothing.append(found.verdict == "nothing")
    return regrets, right, nothing, ranked


def _quiet(text):
    """Print no progress."""


def _all_exact(workers, models=1):
    """Return a plan's request for all strategies with exact steps."""
    return Request(
        today="uncoded", workers=Workers(most=workers), max_load=1.0, memory=1.0, models=models, steps=None,
        resamples=0, seed=0, inexact=False,
        tell=_quiet, among=None, batch=None, max_staleness=None,
    )  # fmt: skip


def _known(fleets):
    """Regrets on the other half of what is best on all other workers of the same trace."""
    tables = []
    for name, times in fleets:
        fleet = fleet_of(Record(times, load=1 / times.shape[1]), slope=SLOPE * float(np.median(times)) * times.shape[1])
        made = candidates_for(fleet[0], _all_exact(times.shape[1]))
        timed = time_strategies(fleet[0], made, 0, _quiet, USUAL)[0]
        tables.append((name, {spec: one.series for spec, one in timed.items()}))
    for i, (name, own) in enumerate(tables):
        rest = [series for j, (other, series) in enumerate(tables) if other == name and j != i]
        known = set(own).intersection(*rest)
        best = min(known, key=lambda spec: sum(series[spec].mean() for series in rest))
        took = {spec: series[len(series) // 2 :].mean() for spec, series in own.items()}
        yield took[best] / min(took.values()) - 1.0


# ------------------------------------------------------------------------------------------- scale


def scale(asked):
    del asked
    workers, rounds = 256, 200
    times = 0.2 + np.random.default_rng(3).exponential(1.0, (rounds, workers))
    record = Record(times, load=1 / workers)
    fleet = fleet_of(record, slope=SLOPE * workers)[0]
    pace = intervals = count = 0.0
    for models in (1, 4, 8, 12):  # until there are a thousand
        begin = time.process_time()
        made = candidates_for(fleet, _all_exact(workers, models))
        count += len(time_strategies(fleet, made, 0, _quiet, USUAL)[0])
        pace += time.process_time() - begin
        begin = time.process_time()
        anyk.plan(record, slope=SLOPE * workers, models=models)
        intervals += time.process_time() - begin
        if count >= 1000:
            break
    row(f"scale: {count:.0f} candidates, {workers} workers x {rounds} rounds, pace", "30 s for 1,000", f"{pace:.1f} s")
    row("scale: the same as whole plans with intervals", "60 s for 1,000", f"{intervals:.1f} s")
    for spec in ("dpsgd", "dpsgd:graph=exp", "matcha", "easgd", "ad-psgd", "hierarchical", "coop"):
        costs = []
        for n in (64, 256):
            strategy = anyk.strategy(spec, workers=n)
            table = anyk.delays.TableDelays(times[:50, :n], by="task")
            begin = time.process_time()
            drive(strategy, anyk.clusters.Simulated(n, delays=table), 50)
            costs.append(time.process_time() - begin)
        row(f"scale: {spec}, 50 rounds of 256 workers; over 64 workers", "4 (complete: 16)",
            f"{costs[1]:.1f} s; "
            f"{costs[1] / costs[0]:.1f}")  # fmt: skip


# ------------------------------------------------------------------------------------------- language models


def llm(asked):
    if not asked.data:
        return
    for name in ("AR", "ST"):
        found = anyk.explain(Path(asked.data, "llm-traces", f"trace-{name}.parquet"))
        published = json.loads(Path(asked.data, "llm-traces", f"result-{name}.json").read_text(encoding="utf-8"))
        first = found.workers[0]
        cost = first.cost_seconds / sum(one.cost_seconds for one in found.workers)
        stage, factor = max(found.stages.items(), key=lambda item: item[1])
        if name == "AR":
            row("llm: AR, replicas named; share of the cost of dp rank 0", "rank 0, above 90 %",
                f"{list(found.named)}; {100 * cost * (first.worker == 0):.1f} %")  # fmt: skip
        else:
            row("llm: ST, replicas named; slowest stage", "none; the last (3)",
                f"{list(found.named) or 'none'}; {stage}, {factor:.2f} times")  # fmt: skip
        row(f"llm: {name}, slowdown without the schedule; S as published", "", f"{found.slowdown:.3f}; "
            f"{published['blocking_slowdown']:.3f}")  # fmt: skip


# ------------------------------------------------------------------------------------------- explanations


def explain(asked):
    del asked
    named = []
    for workers in (12, 30):
        for seed in range(100):
            random = np.random.default_rng([4, workers, seed])
            times, which = slow_one(random, 60, workers)
            named.append(anyk.explain(Record(times)).named == (which,))
    row("explain: a worker of 12 or 30 twice as slow, it alone named", "all", share(named))
    added, costs, waiting = 0.0, 0.0, 0.0
    for seed in range(100):
        random = np.random.default_rng([6, seed])
        before = base(random, 60, WORKERS, 0.03)
        after = before.copy()
        few(after, random)
        added += float((after.max(axis=1) - before.max(axis=1)).sum())
        costs += float((shares(after) - shares(before))[:, 0].sum())
        waiting += float(shares(after).sum())
    row("explain: five bad steps, cost to their worker over the seconds that they add", "at least 95 %",
        f"{100 * costs / added:.0f} %")  # fmt: skip
    row("explain: the seconds that they add over all waiting", "", f"{100 * added / waiting:.0f} %")
    for what, words in (
        ("bursty", "longer than chance would have it"),
        ("two-speed", "coding within a round is enough"),
        (rack, "workers 0 to 3 are slow in the same rounds"),
        (waves, "all workers slow down together"),
        ("drifting", "the fleet drifts"),
    ):
        told = []
        for seed in range(20):
            times = make(what, 200, seed) if isinstance(what, str) else what(np.random.default_rng(seed), 200, WORKERS)
            told.append(any(words in sentence for sentence in anyk.explain(Record(times)).sentences))
        row(f"explain: '{words}'", "all", share(told))


def innocents(asked):
    """Fleets without a culprit in which anybody is named, and in which racks or drift are found."""
    del asked
    for noise in NOISE:
        for workers, rounds in SIZES:
            found = [_judged(noise, workers, rounds, seed) for seed in range(200)]
            named, short, racks, drifting = (sum(flags) / 2 for flags in zip(*found, strict=True))
            row(f"innocents: {noise}, {workers} x {rounds}", "at most 5 % each",
                f"named {named:.1f} %, racks {racks:.1f} %, drift {drifting:.1f} % (short {short:.0f} %)")  # fmt: skip


def culprits(asked):
    """Fleets in which the culprits, and those in which only they, are named."""
    del asked
    for noise in ("5 % jitter", "independent", "AR(0.5)", "bursts of 3.3 rounds"):
        for workers, rounds in SIZES[:2]:
            for culprit, who in CULPRITS.items():
                found = []
                for seed in range(200):
                    random = np.random.default_rng([seed, workers, *noise.encode()])
                    times = NOISE[noise](random, rounds, workers)
                    culprit(times, random)
                    judged = find_culprits(times, keyed_generator(0, "explain"))
                    now = set(np.flatnonzero(judged.named).tolist())
                    found.append((now >= set(who), now == set(who), judged.too_short))
                all_of, alone, short = (sum(flags) / 2 for flags in zip(*found, strict=True))
                what = culprit.__name__.replace("_", " ")
                row(f"culprits: {noise}, {workers} x {rounds}, {what}", "",
                    f"named {all_of:.1f} %, nobody else {alone:.1f} % (too short {short:.0f} %)")  # fmt: skip


def _judged(noise, workers, rounds, seed):
    """Whether anybody is named, the record is too short, and racks and drift are found, in a fleet without culprits."""
    times = NOISE[noise](np.random.default_rng([seed, workers, *noise.encode()]), rounds, workers)
    judged = find_culprits(times, keyed_generator(0, "explain"))
    return judged.named.any(), judged.too_short, bool(groups(times, keyed_generator(1, "explain"))), drifts(times)


# ------------------------------------------------------------------------------------------- check


def check(asked):
    problem = anyk.problems.from_data("synthetic:rows=240,features=4")
    exact, apart, broke = [], [], Counter()
    for number in range(2 * asked.repeat):
        random = np.random.default_rng([5, number])
        times = 0.1 + random.exponential(0.1, (40, WORKERS))
        found = anyk.plan(Record(times, load=1 / WORKERS), slope=0.0, resamples=50, max_load=0.35)
        promise = found.promise
        said = promise.seconds_per_step  # halved it is missed for sure, else it is not split
        halved = Estimate(said.median / 2, said.low / 2, said.high / 2)
        promise = msgspec.structs.replace(promise, seconds_per_step=halved)
        delays = anyk.delays.TableDelays(0.1 + random.exponential(0.1, (40, WORKERS)), by="round")
        with anyk.clusters.Processes(WORKERS, delays=delays) as cluster:
            run = anyk.train(problem, promise, cluster, steps=40, evaluate="none")
        checked = anyk.check(run, record=Record(times, load=1 / WORKERS), again=False)
        exact.append(sum(checked.parts.values()) == checked.measured.seconds - checked.promised.seconds)
        apart.append(abs(checked.parts["anyk"] - checked.added) / checked.measured.seconds)
        broke[checked.broke] += 1
    row("check: the parts add up to the last bit", "all", share(exact))
    row("check: the part anyk and the log's stamps, apart by (of the run; largest)", "at most 3 %", percent(apart, max))
    row("check: a promise halved is missed by luck", "", share(name == "luck" for name in broke.elements()))


# ------------------------------------------------------------------------------------------- target


def target(asked):
    """Least squares by gradient descent, to a hundredth of the loss; five seeds on rounds that a plan has not seen."""
    random = np.random.default_rng(5)
    X = random.normal(size=(480, 8)) * np.linspace(1.0, 0.3, 8)
    y = X @ random.normal(size=8) + random.normal(size=480)
    problem = anyk.problems.LeastSquares(X, y, l2=0.0, X_test=X, y_test=y)
    least = float(np.mean((y - X @ np.linalg.lstsq(X, y, rcond=None)[0]) ** 2))
    families = ("uncoded", "frc", "async", "k-batch-sync", "anytime")
    errors, held, best = [], [], []
    for name in ("exponential", "bursty", "one slow worker", "a slow rack")[: asked.repeat]:
        times = make(name, 200, 7)
        found = anyk.plan(
            Record(times[:100], load=1 / WORKERS), slope=SLOPE * WORKERS * np.median(times), problem=problem,
            target=1.01 * least, optimizer="gd", lr=0.2, runs=150, resamples=100,
            among=lambda one: one.spec.partition(":")[0] in families,
        )  # fmt: skip
        second, took = later(times[100:], found), {}
        for choice in {one.family: one for one in reversed(found.candidates)}.values():
            strategy = anyk.strategy(choice.spec, workers=WORKERS)
            seconds = []
            for seed in range(5):
                optimizer = anyk.optimizers.GD(lr=choice.learning_rate or 0.2)
                cluster = second.from_round(seed, 5).cluster(second.adapt(strategy), seed=10 + seed)
                with anyk.train(problem, strategy, cluster, optimizer=optimizer, target=found.target) as run:
                    seconds.append(run.time_to_target or np.inf)
            took[choice.spec] = float(np.median(seconds))
            errors.append(abs(choice.seconds_to_target / took[choice.spec] - 1.0))
            held += [choice.arrival.holds(one) for one in seconds]
        best.append(took[found.candidates[0].spec] <= 1.05 * min(took.values()))
    row(
        f"target: seconds to it, median of 5 seeds, {len(errors)} strategies: median error",
        "at most 15 %",
        percent(errors),
    )
    row("target: single runs within their 90 % interval", "at least 80 %", share(held))
    row("target: the soonest is within 5 % of the best", "", share(best))


# ------------------------------------------------------------------------------------------- recorder


def recorder(asked):
    script = Path(__file__).with_name("recording.py")
    ratios, processor, alone = [], [], []
    for _ in range(asked.repeat):
        said = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True).stdout
        ratios.append(float(said.split("median ")[1].split()[0]) - 1.0)
        processor.append(float(said.split("processor time ")[1]) - 1.0)
        alone.append(float(said.split("us: ")[1].partition("%")[0]) / 100)
    each = ", ".join(percent([one]) for one in ratios)
    row("recorder: processor time that it adds to a step of DistributedDataParallel", "at most 1 %", percent(alone))
    row("recorder: a recorded step of it takes more", "", f"{percent(ratios)} ({each})")
    row("recorder: the same in processor time of a rank", "", percent(processor))


SECTIONS = (replay, forecast, load, decision, scale, llm, explain, innocents, culprits, target, check, recorder)

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", metavar="SECTION")
    parser.add_argument("--data", default=os.environ.get("ANYK_DATA"))
    parser.add_argument("--repeat", type=int, default=3)
    asked = parser.parse_args()
    known = {section.__name__: section for section in SECTIONS}
    wrong = [name for name in asked.sections if name not in known]
    if wrong:
        parser.error(f"no section '{wrong[0]}'; there are {', '.join(known)}")
    if not asked.data:
        print("lines on traces left out; say where they are: --data FOLDER")
    row("line", "goal", "found")
    for name in asked.sections or known:
        known[name](asked)
