"""Amazon data, 30 processes, exponential delays of mean 0.5 s, 40 steps: seconds over floor seconds.

The floor is the same strategy with the same delays on the virtual clock, where nothing else takes time.
"""

import argparse

from common import accelerated, amazon, processes, show

import anyk

GOALS = {"uncoded": 1.01, "frc:load=3": 1.03, "agc:load=3,wait=11": 1.05}

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--seeds", type=int, default=3)
parser.add_argument("--steps", type=int, default=40)
parser.add_argument("--mean", type=float, default=0.5)
arguments = parser.parse_args()

problem = amazon()
medians = {}
for spec, goal in GOALS.items():
    ratios, over, seconds = [], [], []
    for seed in range(arguments.seeds):
        cluster = processes(f"exp:mean={arguments.mean}", seed)
        run = anyk.train(problem, spec, cluster, optimizer=accelerated(), steps=arguments.steps)
        ratios.append(run.seconds / run.floor_seconds)
        over.append((run.seconds - run.floor_seconds) / run.steps * 1e3)
        seconds.append(run.seconds)
    show(f"{spec}: seconds / floor", ratios, "", f"at most {goal}")
    show(f"{spec}: over the floor a step", over, "ms", "at most 12")
    medians[spec] = show(f"{spec}: seconds", seconds, "s")
gain = medians["uncoded"] / medians["agc:load=3,wait=11"]
print(f"uncoded / agc, wall clock: {gain:.1f} times  goal: at least 8")
