"""Seconds a step on processes whose workers differ in speed, over those of no coding: balance, a code, and both.

Delays go by load: some workers always take `factor` times as long as the others for the same data, and all have
exponential delays besides. The ideal is what a fleet of the same total speed, all alike and without the exponential
part, would take.
"""

import argparse

import numpy as np
from common import show

import anyk

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--workers", type=int, default=8)
parser.add_argument("--slow", type=int, default=2)
parser.add_argument("--factor", type=float, default=3.0)
parser.add_argument("--seconds", type=float, default=0.05, help="of an even share on a fast worker")
parser.add_argument(
    "--wandering", type=float, default=0.1, help="mean seconds of an exponential delay, as a share of it"
)
parser.add_argument("--steps", type=int, default=120)
parser.add_argument("--seeds", type=int, default=3)
arguments = parser.parse_args()
P, seconds = arguments.workers, arguments.seconds
problem = anyk.problems.from_data("digits")
speeds = np.where(np.arange(P) < arguments.slow, arguments.factor, 1.0)
specs = ("uncoded", "uncoded:balance=auto", "frc:stragglers=1", "frc:stragglers=1,balance=auto")


def step(spec, seed):
    """Seconds of a step in the second half of a run, when balance has come to know the fleet."""
    random = np.random.default_rng(seed)
    times = seconds * speeds * (1.0 + random.exponential(arguments.wandering, (arguments.steps, P)))
    law = anyk.delays.TableDelays(times, by="round", per="load")
    cluster = anyk.cluster("processes", workers=P, delays=law, seed=seed)
    run = anyk.train(
        problem, spec, cluster, optimizer=anyk.optimizers.GD(lr=0.01), steps=arguments.steps, evaluate=None
    )
    ends = [run.receipt(number).time for number in (arguments.steps // 2, arguments.steps)]
    run.close()
    return (ends[1] - ends[0]) / (arguments.steps - arguments.steps // 2)


known = {spec: [step(spec, seed) for seed in range(arguments.seeds)] for spec in specs}
for spec in specs[1:]:
    show(f"{spec}, over uncoded", np.array(known[spec]) / np.array(known["uncoded"]), "", "")
show("the ideal, over uncoded", P / (1 / speeds).sum() * seconds / np.array(known["uncoded"]), "", "")
