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


def autoregressive(random, rounds, workers, correlation=0.5, scale=0.3):
    """Lognormal times; the correlation of logarithms is that of a worker's successive rounds."""
    state = random.normal(size=(rounds, workers))
    for t in range(1, rounds):
        state[t] = correlation * state[t - 1] + (1.0 - correlation**2) ** 0.5 * state[t]
    return np.exp(scale * state)


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
NOISE = {  # no worker differs from the others
    "independent": base,
    "independent, Pareto 2.2": FLEETS["pareto 2.2"],
    "AR(0.5)": autoregressive,
    "AR(0.9)": lambda random, *size: autoregressive(random, *size, correlation=0.9),
    "5 % jitter": lambda random, *size: np.exp(0.05 * random.standard_normal(size)),
    "bursts of 3.3 rounds": lambda random, *size: gilbert(random, *size, begin=0.03, stop=0.3),
    "rare bursts of 3.3 rounds": lambda random, *size: gilbert(random, *size, begin=0.01, stop=0.3),
    "bursts of 10 rounds": lambda random, *size: gilbert(random, *size, begin=0.01, stop=0.1),
}


def throughout(times, random):
    """Twice as slow in every round."""
    times[:, 0] *= 2.0


def now_and_then(times, random):
    """Three times as slow in three rounds of ten."""
    times[random.random(len(times)) < 0.3, 0] *= 3.0


def from_the_middle(times, random):
    """Twice as slow in the second half."""
    times[len(times) // 2 :, 0] *= 2.0


def few(times, random):
    """Five steps that take five seconds longer, where a usual one takes about one."""
    times[random.choice(len(times), 5, replace=False), 0] += 5.0


def two(times, random):
    """One worker twice as slow, and one 1.3 times."""
    times[:, 0] *= 2.0
    times[:, 1] *= 1.3


def three(times, random):
    """Three workers 1.5 times as slow."""
    times[:, :3] *= 1.5


CULPRITS = {throughout: (0,), now_and_then: (0,), from_the_middle: (0,), few: (0,), two: (0, 1), three: (0, 1, 2)}
CLEAN = ("no stragglers",)
REPORTED = ("drifting",)  # it will be another fleet, which no interval covers


def make(name, rounds, seed, workers=12):
    """One fleet of a kind."""
    return FLEETS[name](np.random.default_rng([seed, *name.encode()]), rounds, workers)
