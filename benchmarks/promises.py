"""Whether plans keep what they promise on this machine, and how far `--strategy auto` is from the best fixed strategy.

Usage: python benchmarks/promises.py SECTION … [--data FOLDER] [--seeds 3] [--steps 30] [--parameters 10000000]

machine   a PyTorch model on 4 processes: recorded under uncoded, planned, and run under five strategies
auto      `--strategy auto` against nine fixed strategies on the virtual clock, for delays of eight kinds
held      how often promises of 90 % hold on later rounds of measured traces (--data, or the variable ANYK_DATA)
"""

import argparse
import os
from pathlib import Path

import anyk

PROCESSES, INPUTS = 4, 1000
FIVE = ("uncoded", "frc:stragglers=1", "cyclic:stragglers=1", "progress:load=2", "uncoded:balance=auto")


def machine(asked):
    import torch

    def problem():
        torch.manual_seed(0)
        hidden = asked.parameters // INPUTS * 2 // 3
        model = torch.nn.Sequential(
            torch.nn.Linear(INPUTS, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, INPUTS // 2)
        )
        X, y = torch.randn(asked.samples, INPUTS), torch.randint(0, INPUTS // 2, (asked.samples,))
        return anyk.problems.TorchProblem(model, torch.nn.CrossEntropyLoss(), (X, y))

    def trained(spec):
        optimizer = anyk.optimizers.TorchOptimizer("AdamW", lr=1e-4)
        with anyk.clusters.Processes(PROCESSES) as cluster:
            return anyk.train(problem(), spec, cluster, optimizer=optimizer, steps=asked.steps, evaluate="none")

    plan = anyk.plan(trained("uncoded"), everything=True)
    promises = {one.spec: one.seconds_per_step for one in (*plan.candidates, *plan.others)}
    inside = 0
    for spec in FIVE:
        run, promise = trained(spec), promises[anyk.strategy(spec, workers=PROCESSES).spec]
        real = run.seconds / run.jobs
        inside += promise.holds(real)
        print(
            f"{spec:24s} real {real:.3f} s, promised {promise.median:.3f} ({promise.low:.3f} to {promise.high:.3f}), "
            f"ratio {real / promise.median:.2f} {'inside' if promise.holds(real) else 'outside'}",
            flush=True,
        )
    print(f"inside the promised interval: {inside} of {len(FIVE)} (goal: 4)")


SECTIONS = {"machine": machine}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="+", choices=SECTIONS, metavar="SECTION")
    parser.add_argument("--data", default=os.environ.get("ANYK_DATA"), type=Path)
    parser.add_argument("--seeds", default=3, type=int)
    parser.add_argument("--steps", default=30, type=int)
    parser.add_argument("--samples", default=128, type=int)
    parser.add_argument("--parameters", default=10_000_000, type=int)
    asked = parser.parse_args()
    for name in asked.sections:
        SECTIONS[name](asked)
