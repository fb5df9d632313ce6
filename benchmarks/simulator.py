"""Task endings a second on the virtual clock, cancelled ones included, without payload; against a bare heap loop."""

import argparse
import tempfile
import time
from heapq import heapify, heappop, heappush
from pathlib import Path

from common import WORKERS, show

import anyk
from anyk.runs import Driver, LogWriter, session

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--runs", type=int, default=5)
arguments = parser.parse_args()


def heap_loop(count=200_000):
    heap = [(float(i), i) for i in range(WORKERS)]
    heapify(heap)
    began = time.perf_counter()
    for _ in range(count):
        now, worker = heappop(heap)
        heappush(heap, (now + 1.5, worker))
    return count / (time.perf_counter() - began)


def endings(spec, steps, log):
    cluster = anyk.clusters.Simulated(WORKERS, delays=anyk.delays.Exponential(mean=0.5), seed=1)
    driver = Driver(anyk.strategy(spec, workers=WORKERS), cluster, steps=steps, log=log)
    with session(driver):
        began = time.perf_counter()
        driver.run()
        seconds = time.perf_counter() - began
    return driver.ledger.counts.ended / seconds


for spec, steps in (("agc:load=3,wait=11", 4000), ("frc:load=3", 4000), ("uncoded", 2000), ("async", 50_000)):
    for logged, goal in ((False, 300_000), (True, 80_000)):
        rates, ratios = [], []
        for _ in range(arguments.runs):
            with tempfile.TemporaryDirectory() as folder:
                log = LogWriter(Path(folder) / "log.sqlite") if logged else None
                bare = heap_loop()
                rate = endings(spec, steps, log)
                if log is not None:
                    log.close()
            rates.append(rate)
            ratios.append(rate / bare)
        name = f"{spec}, log and receipts {'on' if logged else 'off'}"
        show(name, rates, "endings/s", f"at least {goal:,}")
        show("    of a bare heap loop's rate", ratios, "")
