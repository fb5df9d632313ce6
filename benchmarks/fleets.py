"""Synthetic fleets of known kind: seconds, rounds x workers, drawn by a seed."""

import numpy as np


def base(random, rounds, workers, scale=0.3):
    return 1.0 + random.exponential(scale, (rounds, workers))


def gilbert(random, rounds, workers, begin=0.03, stop=0.2, factor=4.0):
    """Bursts by Gilbert and Elliott's chain of two states."""
    slow = np.zeros((rounds, workers), dtype=bool)
    slow[0] = random.random(workers) < begin / (begin + stop)
    for t in range(1, rounds):
        slow[t] = np.where(slow[t - 1], random.random(workers) > stop, random.random(workers) < begin)
    return np.where(slow, factor, 1.0) * base(random, rounds, workers, 0.05)


def slow_one(random, rounds, workers, factor=2.0):
    """A fleet with one slow worker, and which it is."""
    times, which = base(random, rounds, workers), int(random.integers(workers))
    times[:, which] *= factor
    return times, which


def rack(random, rounds, workers):
    """The first third is slow together in three rounds of ten."""
    times = base(random, rounds, workers)
    times[:, : workers // 3] *= 1.0 + (random.random((rounds, 1)) < 0.3)
    return times


def waves(random, rounds, workers):
    """All take twice as long for ten rounds."""
    times = base(random, rounds, workers)
    times[rounds // 3 : rounds // 3 + 10] *= 2.0
    return times


def two_speed(random, rounds, workers):
    slow = random.random((rounds, workers)) < 0.1
    return np.where(slow, 5.0, 1.0) + 0.01 * base(random, rounds, workers)


FLEETS = {
    "exponential": lambda random, *size: random.exponential(1.0, size),
    "shifted exponential": base,
    "pareto 2.2": lambda random, *size: 1.0 + random.pareto(2.2, size),
    "pareto 3": lambda random, *size: 1.0 + random.pareto(3.0, size),
    "two-speed": two_speed,
    "bursty": gilbert,
    "one slow worker": lambda random, *size: slow_one(random, *size)[0],
    "a slow rack": rack,
    "drifting": lambda random, *size: base(random, *size) * np.linspace(1.0, 1.4, size[0])[:, None],
    "no stragglers": lambda random, *size: base(random, *size, scale=0.01),
}
CLEAN = ("no stragglers",)
REPORTED = ("drifting",)  # it will be another fleet, which no interval covers


def make(name, rounds, seed, workers=12):
    """One fleet of a kind."""
    return FLEETS[name](np.random.default_rng([seed, *name.encode()]), rounds, workers)
