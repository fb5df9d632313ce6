"""No injected delays: a step of anyk against a bare loop over as many processes, buffers and sparse products.

The bare loop is what is left when everything that makes a cluster is taken away: workers forked once, a pipe to wake
each and one back, messages in shared memory, the same products, the same additions and the same step. It knows no
death, no cancel, no log. Both run in turn, in one go.
"""

import gc
import mmap
import os
import select
import statistics
import struct
import time

import numpy as np
from common import WORKERS, accelerated, amazon, processes, show

import anyk
from anyk.clusters import Messages
from anyk.protocol import Chunk

STEPS = 200
GOAL = "at most 1.3"


def bare(problem, spec):
    """Median seconds of a step of the bare loop."""
    strategy = anyk.strategy(spec, workers=WORKERS)
    partitions = problem.split(strategy.partitions)
    messages = Messages(partitions)
    work = [Chunk(*row) for row in strategy.code.rows]
    sizes = [messages.length(chunk.partitions) for chunk in work]
    model = np.frombuffer(mmap.mmap(-1, problem.dimension * 8))
    buffers = [np.frombuffer(mmap.mmap(-1, size * 8)) for size in sizes]
    back_read, back_write = os.pipe()
    bells = [os.pipe() for _ in range(WORKERS)]
    gc.freeze()
    pids = []
    for i in range(WORKERS):
        pid = os.fork()
        if pid == 0:
            for j, (_, bell) in enumerate(bells):
                os.close(bell)
                if j != i:
                    os.close(bells[j][0])
            messages.places(work[i].partitions)
            while select.select([bells[i][0]], [], [])[0] and os.read(bells[i][0], 1):
                messages.encode(work[i], model, buffers[i])
                os.write(back_write, struct.pack("=i", i))
            os._exit(0)
        pids.append(pid)
    optimizer = accelerated()
    w = problem.initial()
    state = optimizer.start(w)
    times = []
    for t in range(STEPS):
        began = time.perf_counter()
        model[:] = w
        for _, bell in bells:
            os.write(bell, b"!")
        decoder = strategy.code.decoder()
        arrived = 0
        while arrived < WORKERS:  # all of them: a worker that is not waited for would be in the next step's way
            select.select([back_read], [], [])
            for (i,) in struct.iter_unpack("=i", os.read(back_read, 4096)):
                decoder.add(i)
                arrived += 1
        replies, weights, *_ = decoder.select()
        gradient = messages.add_up([(work[i].partitions, buffers[i], a) for i, a in zip(replies, weights, strict=True)])
        gradient /= problem.samples
        gradient += problem.l2 * w
        w = optimizer.step(w, gradient, state, t)
        times.append(time.perf_counter() - began)
    for read, bell in bells:
        os.close(bell)
        os.close(read)
    os.close(back_read)
    os.close(back_write)
    for pid in pids:
        os.waitpid(pid, 0)
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
