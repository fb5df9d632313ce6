"""Updates a second of `async` on processes, over P times those of one worker, when delays dominate; goal 0.9."""

import argparse

from common import show

import anyk

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--workers", type=int, default=8)
parser.add_argument("--delays", default="exp:mean=0.1")
parser.add_argument("--seconds", type=float, default=20.0)
parser.add_argument("--seeds", type=int, default=3)
arguments = parser.parse_args()
problem = anyk.problems.from_data("digits")


def rate(workers, seed):
    """Updates a second of the run's clock."""
    cluster = anyk.cluster("processes", workers=workers, delays=arguments.delays, seed=seed)
    optimizer = anyk.optimizers.GD(lr=0.01)
    run = anyk.train(problem, "async", cluster, optimizer=optimizer, seconds=arguments.seconds, evaluate="every=100")
    updates = run.steps / run.seconds
    run.close()
    return updates


P = arguments.workers
ratios = [rate(P, seed) / (P * rate(1, seed)) for seed in range(arguments.seeds)]
show(f"async, {P} workers, over {P} times one worker", ratios, "", "0.9")
