"""No injected delays: a step of anyk against a bare loop over as many processes, buffers and sparse products.

The bare loop is what is left when everything that makes a cluster is taken away: workers forked once, a pipe to wake
each and one back, messages in shared memory, the same products, the same additions and the same step. It knows no
death, no cancel, no log. Both run in turn, in one go.
"""

import mmap
import statistics
import time
from typing import Any

import numpy as np
from common import WORKERS, BareWorkers, accelerated, amazon, processes, show

import anyk
from anyk.clusters import Messages
from anyk.protocol import Chunk

STEPS = 200
GOAL = "at most 1.3"


def bare(problem, spec):
    """Median seconds of a step of the bare loop."""
    strategy: Any = anyk.strategy(spec, workers=WORKERS)
    partitions = problem.split(strategy.layout.partitions)
    messages, of_worker = Messages(partitions), []
    work = [Chunk(*row) for row in strategy.code.rows]
    model = np.frombuffer(mmap.mmap(-1, problem.dimension * 8))

    def encode(i, buffer):
        if not of_worker:  # in a process of its own, as messages are not computed by copies of a process
            of_worker.append(Messages(partitions))
        of_worker[0].encode(work[i], model, buffer)

    workers = BareWorkers([messages.length(chunk.partitions) for chunk in work], encode)
    optimizer = accelerated()
    w = problem.initial()
    state = optimizer.start(w)
    times = []
    for t in range(STEPS):
        began = time.perf_counter()
        model[:] = w
        decoder = strategy.code.decoder()
        for i in workers.gather():
            decoder.add(i)
        replies, weights, *_ = decoder.select()
        gradient = messages.add_up(
            [(work[i].partitions, workers.buffers[i], a) for i, a in zip(replies, weights, strict=True)]
        )
        gradient /= problem.samples
        gradient += problem.l2 * w
        w = optimizer.step(w, gradient, state, t)
        times.append(time.perf_counter() - began)
    workers.close()
    return statistics.median(times)


problem = amazon()
w = problem.initial()
single = []
for _ in range(20):
    began = time.perf_counter()
    problem.X.T @ (problem.X @ w)
    single.append(time.perf_counter() - began)
show("one thread, the whole gradient", [t * 1e3 for t in single], "ms")
for spec in ("uncoded", "frc:load=3"):
    ratios, ours, theirs = [], [], []
    for seed in range(3):
        floor = bare(problem, spec)
        run = anyk.train(problem, spec, processes("none", seed), optimizer=accelerated(), steps=STEPS)
        step = statistics.median(np.diff(run.history["seconds"]))
        ratios.append(step / floor)
        ours.append(step * 1e3)
        theirs.append(floor * 1e3)
    show(f"{spec}: bare loop, median step", theirs, "ms")
    show(f"{spec}: anyk, median step", ours, "ms")
    show(f"{spec}: anyk / bare loop", ratios, "", GOAL)
