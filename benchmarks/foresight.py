"""What explanations find and what plans are worth, on synthetic fleets whose answer is known.

Usage: python benchmarks/foresight.py [explain] [plan] [load] [pace] [--workers 256 --rounds 200 --models 6]

All of them, if left out; a few minutes. --workers, --rounds and --models are of pace.

explain: a worker twice as slow among 12 or 30 (named?), clean fleets (anybody named?), and planted bursts, racks, waves
and drift. plan: on the first half of each fleet's rounds; then every exact strategy meets the second half: how far the
advice is from the best there, whether the promise was right, and whether its interval held. load: from records at two
loads, the median task and the 0.9 n-th of n at a third. pace: how many candidates on how many workers and rounds in how
many seconds of this process (the machine may be shared), without and with intervals.
"""

import argparse
import time

import numpy as np

import anyk
from anyk.planning import Explanation
from anyk.planning.candidates import candidates_for, paces_of
from anyk.planning.fleets import Fleet, fleet_of
from anyk.recording import Record

ROUNDS, WORKERS = 200, 12
random = np.random.default_rng(0)


def gilbert(rounds, workers, begin, stop, factor):
    slow = np.zeros((rounds, workers), dtype=bool)
    for t in range(1, rounds):
        slow[t] = np.where(slow[t - 1], random.random(workers) > stop, random.random(workers) < begin)
    return np.where(slow, factor, 1.0)


def base(rounds=ROUNDS, workers=WORKERS, scale=0.3):
    return 1.0 + random.exponential(scale, (rounds, workers))


def rack(rounds=ROUNDS, workers=WORKERS):
    times = base(rounds, workers)
    times[:, : workers // 3] *= 1.0 + (random.random((rounds, 1)) < 0.3)
    return times


def waves(rounds=ROUNDS, workers=WORKERS):
    times = base(rounds, workers)
    times[rounds // 3 : rounds // 3 + 10] *= 2.0
    return times


def slow_one(rounds=ROUNDS, workers=WORKERS, factor=2.0):
    times = base(rounds, workers)
    times[:, random.integers(workers)] *= factor
    return times


FLEETS = {
    "exponential": lambda: random.exponential(1.0, (ROUNDS, WORKERS)),
    "shifted exponential": base,
    "pareto 2.2": lambda: 1.0 + random.pareto(2.2, (ROUNDS, WORKERS)),
    "pareto 3": lambda: 1.0 + random.pareto(3.0, (ROUNDS, WORKERS)),
    "two-speed": lambda: np.where(random.random((ROUNDS, WORKERS)) < 0.1, 5.0, 1.0) + 0.01 * base(),
    "bursty": lambda: gilbert(ROUNDS, WORKERS, 0.03, 0.2, 4.0) * base(scale=0.05),
    "one slow worker": slow_one,
    "a slow rack": rack,
    "drifting": lambda: base() * np.linspace(1.0, 1.4, ROUNDS)[:, None],
    "no stragglers": lambda: base(scale=0.01),
}


def share(found):
    return f"{sum(found)} of {len(found)}"


def explained():
    def said(found: Explanation, words: str) -> bool:
        return any(words in sentence for sentence in found.sentences)

    for workers in (12, 30):
        named = []
        for _ in range(100):
            times = base(60, workers)
            which = int(random.integers(workers))
            times[:, which] *= 2.0
            named.append(anyk.explain(Record(times)).named == (which,))
        print(f"a worker of {workers} twice as slow, 60 rounds: it alone named in {share(named)}")
        clean = [bool(anyk.explain(Record(base(60, workers))).named) for _ in range(100)]
        print(f"clean fleet of {workers}, 60 rounds: somebody named in {share(clean)}")
    for name, make, words in (
        ("bursts", FLEETS["bursty"], "longer than chance would have it"),
        ("no bursts", FLEETS["two-speed"], "coding within a round is enough"),
        ("a rack", rack, "workers 0 to 3 are slow in the same rounds"),
        ("a wave", waves, "all workers slow down together"),
        ("drift", FLEETS["drifting"], "the fleet drifts"),
    ):
        print(f"{name}: told in {share([said(anyk.explain(Record(make())), words) for _ in range(20)])}")


def planned():
    print(f"\n{'fleet':<22}{'slope':>7}  {'verdict':<9}{'advice':<34}{'promised':>9}{'measured':>9}{'regret':>8}  held")
    errors, regrets, held = [], [], []
    for name, make in FLEETS.items():
        for part in (0.1, 0.5):  # of a task's median that is computing
            times = make()
            slope = part * float(np.median(times)) * WORKERS
            first, second = times[: ROUNDS // 2], times[ROUNDS // 2 :]
            found = anyk.plan(Record(first, load=1 / WORKERS), slope=slope, resamples=200)
            later = Fleet(second, np.zeros(second.shape, bool), 1 / WORKERS, slope)
            took = {one.spec: later.alone(one.spec) for one in found.candidates}
            promise = found.best.seconds_per_step
            measured = took[found.best.spec]
            regret = measured / min(took.values()) - 1.0
            errors.append(abs(promise.median / measured - 1.0))
            regrets.append(regret)
            held.append(promise.low <= measured <= promise.high)
            print(
                f"{name:<22}{slope:>7.2f}  {found.verdict:<9}{found.best.spec:<34}{promise.median:>9.3f}"
                f"{measured:>9.3f}{100 * regret:>7.1f} %  {'yes' if held[-1] else 'no'}",
                flush=True,
            )
    print(
        f"promise off by {100 * np.median(errors):.1f} % (median), {100 * max(errors):.0f} % at most; within 5 % of "
        f"the best in {share([regret <= 0.05 for regret in regrets])}; intervals held in {share(held)}"
    )


def loads():
    """Two loads predict a third, on fleets whose workers differ in speed and whose rounds have exponential delays."""
    errors = {"median task": [], "0.9 n-th of n": []}
    for _ in range(20):
        workers, speeds = 30, np.exp(random.normal(0.0, 0.3, 30))

        def measured(load, workers=workers, speeds=speeds):
            return 1.0 + random.exponential(0.5, (ROUNDS, workers)) + 10.0 * load * speeds

        fleet = fleet_of(Record(measured(1 / 30), load=1 / 30), Record(measured(4 / 30), load=4 / 30))[0]
        predicted, met = fleet.seconds(np.full(workers, 8 / 30)), measured(8 / 30)
        for name, place in (("median task", workers // 2), ("0.9 n-th of n", round(0.9 * workers) - 1)):
            ours, theirs = (np.median(np.sort(times, axis=1)[:, place]) for times in (predicted, met))
            errors[name].append(abs(ours / theirs - 1.0))
    for name, found in errors.items():
        print(
            f"\nload: {name} at twice the larger load off by {100 * np.median(found):.1f} % (median of 20 fleets)",
            end="",
        )
    print()


def paced(workers, rounds, models):
    fleet = fleet_of(Record(0.2 + random.exponential(1.0, (rounds, workers)), load=1 / workers), slope=0.2 * workers)[0]
    begin = time.process_time()
    made = candidates_for("uncoded", fleet, max_load=1.0, memory=1.0, models=models, everything=False)
    found = paces_of(fleet, made, seed=0)
    without = time.process_time() - begin
    anyk.plan(Record(fleet.times, load=fleet.load), slope=0.2 * workers, models=models)
    print(
        f"\npace: {len(found.series)} candidates, {workers} workers x {rounds} rounds: {without:.1f} s of computing, "
        f"{time.process_time() - begin - without:.1f} s for a whole plan with intervals"
    )


parser = argparse.ArgumentParser()
parser.add_argument("parts", nargs="*", choices=["explain", "plan", "load", "pace", []])
for option, usual in (("--workers", 256), ("--rounds", 200), ("--models", 6)):
    parser.add_argument(option, type=int, default=usual)
asked = parser.parse_args()
chosen = set(asked.parts) or {"explain", "plan", "load", "pace"}
if "explain" in chosen:
    explained()
if "plan" in chosen:
    planned()
if "load" in chosen:
    loads()
if "pace" in chosen:
    paced(asked.workers, asked.rounds, asked.models)
