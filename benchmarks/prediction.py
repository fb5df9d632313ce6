"""What the simulator says and what the processes then do: seconds, and which replies are used.

Computing is calibrated on a run of 100 steps at a mean of 0.02 s and with another seed: what the driver does between
a step's last reply and the next dispatch, from the log's own times, and what a message costs, so that the simulator
takes as long as that run did.
"""

import argparse
import os
import statistics

import numpy as np
from common import WORKERS, accelerated, amazon, processes, show

import anyk
from anyk.runs import Driver, session

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--means", type=float, nargs="*", default=[0.02, 0.5])
parser.add_argument("--strategies", nargs="*", default=["uncoded", "frc:load=3", "agc:load=3,wait=11"])
arguments = parser.parse_args()
problem = amazon()


def virtual_seconds(spec, compute, mean, seed, steps):
    """Seconds of a run on the virtual clock, decisions and times alone."""
    cluster = anyk.clusters.Simulated(WORKERS, delays=anyk.delays.Exponential(mean), seed=seed, compute=compute)
    driver = Driver(anyk.strategy(spec, workers=WORKERS), cluster, steps=steps)
    with session(driver):
        driver.run()
    return driver.time


def calibrate(spec, mean=0.02, seed=99, steps=100):
    """Costs of computing with this strategy: those with which the simulator takes the seconds of another run."""
    run = anyk.train(problem, spec, processes(f"exp:mean={mean}", seed), optimizer=accelerated(), steps=steps)
    last = run.log.rows(
        "SELECT u.time - max(c.received) FROM updates u JOIN chunks c ON c.version = u.version - 1 "
        "WHERE c.received <= u.time GROUP BY u.version"
    )
    step = statistics.median(row[0] for row in last)
    low, high = 0.0, 0.01  # seconds a message
    for _ in range(20):
        compute = anyk.clusters.Compute(task=(low + high) / 2, partition=0.0, step=step, cores=os.cpu_count() or 1)
        if virtual_seconds(spec, compute, mean, seed, steps) < run.seconds:
            low = compute.task
        else:
            high = compute.task
    return compute


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
        print(f"    calibrated: {compute.task * 1e3:.2f} ms a message, {compute.step * 1e3:.2f} ms a step")
        simulated = anyk.clusters.Simulated(WORKERS, delays=delays, seed=seed, compute=compute)
        virtual = anyk.train(problem, spec, simulated, optimizer=accelerated(), steps=steps, evaluate="every=1000000")
        a, b = used(real), used(virtual)
        same = np.mean([a[step] == b[step] for step in range(1, steps + 1)])
        show(f"{spec}, mean {mean}: predicted / real seconds", [virtual.seconds / real.seconds], "", "0.95 to 1.05")
        show("    same replies used", [100 * same], "% of steps", "95 exact, 90 agc")
