"""What the simulator says and what the processes then do: seconds, and which replies are used.

Computing is calibrated from a run without delays: what a message and a partition cost, from the log's own times, and
what the driver does between a step's last reply and the next dispatch.
"""

import argparse
import os
import statistics

import numpy as np
from common import WORKERS, accelerated, amazon, processes, show

import anyk

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--means", type=float, nargs="*", default=[0.02, 0.5])
parser.add_argument("--strategies", nargs="*", default=["uncoded", "frc:load=3", "agc:load=3,wait=11"])
arguments = parser.parse_args()
problem = amazon()


def calibrate(spec):
    """Costs of computing with this strategy, from runs with delays long enough that workers do not meet."""
    run = anyk.train(problem, spec, processes("exp:mean=0.3", 99), optimizer=accelerated(), steps=25)
    rows = run.log.rows("SELECT computing, received FROM chunks WHERE step IS NOT NULL")
    message = statistics.median(received - computing for computing, received in rows)
    last = run.log.rows(
        "SELECT u.time - max(c.received) FROM updates u JOIN chunks c ON c.version = u.version - 1 "
        "WHERE c.received <= u.time GROUP BY u.version"
    )
    step = statistics.median(row[0] for row in last)
    return anyk.clusters.Compute(task=message, partition=0.0, step=step, cores=os.cpu_count() or 1)


def used(run):
    found = {}
    for step, worker in run.log.rows("SELECT step, worker FROM chunks WHERE step IS NOT NULL"):
        found.setdefault(step, set()).add(worker)
    return found


for mean in arguments.means:
    for spec in arguments.strategies:
        compute = calibrate(spec)
        seed = 1
        delays = anyk.delays.Exponential(mean)
        steps = arguments.steps if spec != "uncoded" or mean < 0.1 else 40
        real = anyk.train(problem, spec, processes(f"exp:mean={mean}", seed), optimizer=accelerated(), steps=steps)
        simulated = anyk.clusters.Simulated(WORKERS, delays=delays, seed=seed, compute=compute)
        virtual = anyk.train(problem, spec, simulated, optimizer=accelerated(), steps=steps, evaluate_every=10**6)
        a, b = used(real), used(virtual)
        same = np.mean([a[step] == b[step] for step in range(1, steps + 1)])
        show(f"{spec}, mean {mean}: predicted / real seconds", [virtual.seconds / real.seconds], "", "0.95 to 1.05")
        show("    same replies used", [100 * same], "% of steps", "95 exact, 90 agc")
