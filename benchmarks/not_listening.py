"""Stragglers that do not listen: workers stopped for 2 s at random, and workers whose computing is 8 times slower.

In the first, SIGSTOP falls on a random worker every 0.4 s on average; no delay is injected. The driver must not wait
for a stopped worker while a code allows: the longest step is shown beside the 2 s. In the second, workers 0 to 4 do
their sparse products eight times; uncoded waits for them and frc does not. Third, injected delays that cannot be
interrupted: processes against the simulator.
"""

import contextlib
import os
import random
import signal
import statistics
import threading
import time

import numpy as np
from common import accelerated, amazon, processes, show

import anyk
from anyk.runs.callbacks import Watching

STEPS, STOP = 400, 2.0
problem = amazon()


def send(pid, number):
    with contextlib.suppress(ProcessLookupError):  # the run may be over
        os.kill(pid, number)


def steps_of(run):
    return np.diff(run.history["seconds"])


def stopped_at_random(spec, seed):
    cluster = processes("none", seed)
    rng = random.Random(seed)
    over = threading.Event()
    down = []

    def stop_some():
        while not over.wait(rng.expovariate(1 / 0.4)):
            pid = cluster.pids.get(rng.randrange(30))
            if pid is not None:
                down.append(pid)
                send(pid, signal.SIGSTOP)
                threading.Timer(STOP, send, (pid, signal.SIGCONT)).start()

    stopper = threading.Thread(target=stop_some)

    def watch(driver, evaluator):
        if driver.step == 1:
            stopper.start()

    try:
        run = anyk.train(problem, spec, cluster, optimizer=accelerated(), steps=STEPS, callbacks=[Watching(watch)])
    finally:
        over.set()
    stopper.join()
    time.sleep(0.1)
    return run, len(down)


for spec in ("frc:load=3", "agc:load=3,wait=11"):
    longest, median, stops = [], [], []
    for seed in range(3):
        run, count = stopped_at_random(spec, seed)
        steps = steps_of(run)
        longest.append(steps.max())
        median.append(statistics.median(steps))
        stops.append(count)
    show(f"{spec}, SIGSTOP: longest step", longest, "s", "well below 2, unless a whole group was stopped")
    show(f"{spec}, SIGSTOP: median step", median, "s")
    print(f"    workers stopped in a run: {stops}")


class Slow(type(problem.split(1))):
    """Workers 0 to 4 do the work eight times."""

    def partial_gradient(self, partition, w):
        slow = int(os.environ.get("ANYK_WORKER", "-1")) in range(5)
        for _ in range(8 if slow else 1):
            gradient = super().partial_gradient(partition, w)
        return gradient


class SlowProblem(type(problem)):
    def split(self, partitions):
        pieces = super().split(partitions)
        pieces.__class__ = Slow
        return pieces


problem.__class__ = SlowProblem
for spec in ("uncoded", "frc:load=3", "agc:load=3,wait=11"):
    seconds, share = [], []
    for seed in range(3):
        run = anyk.train(problem, spec, processes("none", seed), optimizer=accelerated(), steps=200)
        seconds.append(statistics.median(steps_of(run)) * 1e3)
        used = run.log.rows("SELECT sum(worker < 5), count(*) FROM chunks WHERE step IS NOT NULL")[0]
        share.append(used[0] / used[1])
    show(f"{spec}, 5 workers 8 times slower: median step", seconds, "ms")
    show(f"{spec}: share of messages from the slow", share, "")
problem.__class__ = SlowProblem.__mro__[1]

for spec in ("uncoded", "frc:load=3", "agc:load=3,wait=11"):
    ratios = []
    for seed in range(3):
        delays = "bimodal:fast=0.05,slow=2,probability=0.1,uninterruptible=true"
        run = anyk.train(problem, spec, processes(delays, seed), optimizer=accelerated(), steps=20)
        ratios.append(run.seconds / run.floor_seconds)
    show(f"{spec}, uninterruptible: seconds / simulator", ratios, "", "about 1")
