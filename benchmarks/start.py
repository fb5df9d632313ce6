"""How soon 30 workers are ready once the data is, and what each keeps to itself."""

import time
from pathlib import Path

from common import WORKERS, amazon, processes, show

import anyk

problem = amazon()
for spec in ("uncoded", "frc:load=3"):
    strategy = anyk.strategy(spec, workers=WORKERS)
    seconds, private = [], []
    for seed in range(3):
        with processes("none", seed) as cluster:
            cluster.prepare()  # as the driver does, before it cuts the data
            partitions = problem.split(strategy.layout.partitions)
            began = time.perf_counter()
            cluster.open(strategy.layout, partitions)
            seconds.append(time.perf_counter() - began)
            for pid in cluster.pids.values():
                with Path(f"/proc/{pid}/smaps_rollup").open() as lines:
                    kib = [int(line.split()[1]) for line in lines if line.startswith("Private_")]
                private.append(sum(kib) / 1024)
    show(f"{spec}: data cut to 30 workers ready", seconds, "s", "at most 1")
    show(f"{spec}: private memory of a worker", private, "MiB", "at most 15")
