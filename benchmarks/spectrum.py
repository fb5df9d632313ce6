"""From synchronous to asynchronous: loss against virtual seconds for fixed K and for adasync, over several seeds.

Mini-batch SGD on digits (or --data, --model), exponential delays (or --delays), the same learning rate for all, as in
the figures of the papers: a small
K begins fast and ends noisy, a large one the reverse. Printed is the loss at some times, and how far adasync is above
the best fixed K of that time, on average over time. With --picture the curves are drawn.
"""

import argparse

import numpy as np
from common import show

import anyk

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--seeds", type=int, default=10)
parser.add_argument("--workers", type=int, default=8)
parser.add_argument("--seconds", type=float, default=200.0)
parser.add_argument("--delays", default="exp:mean=0.5")
parser.add_argument("--lr", type=float, default=0.2)
parser.add_argument("--batch", type=int, default=2)
parser.add_argument("--family", default="k-batch-async", choices=["k-sync", "k-async", "k-batch-sync", "k-batch-async"])
parser.add_argument("--data", default="digits")
parser.add_argument("--data-file")
parser.add_argument("--model", default="linear")
parser.add_argument("--rule", default="loss", choices=["loss", "delays", "noise"])
parser.add_argument("--picture")
arguments = parser.parse_args()
problem = anyk.problems.from_data(arguments.data, file=arguments.data_file, model=arguments.model)
P, T = arguments.workers, arguments.seconds
times = np.linspace(T / 60, T, 60)


def curve(spec):
    """Loss at ``times``, mean over seeds."""
    losses = []
    for seed in range(arguments.seeds):
        cluster = anyk.cluster("simulated", workers=P, delays=arguments.delays, seed=seed)
        optimizer = anyk.optimizers.GD(lr=arguments.lr)
        run = anyk.train(problem, spec, cluster, optimizer=optimizer, seconds=T, evaluate="every=3")
        known = ~np.isnan(run.history["loss"])
        losses.append(np.interp(times, run.history["seconds"][known], run.history["loss"][known]))
        run.close()
    return np.mean(losses, axis=0)


fixed = sorted({1, 2, P // 2, P})
curves = {f"{arguments.family}:k={k}": curve(f"{arguments.family}:k={k},batch={arguments.batch}") for k in fixed}
first = 2 if arguments.rule == "noise" else 1
adaptive = (
    f"adasync:base={arguments.family},k={first},interval={T / 20:g},batch={arguments.batch},rule={arguments.rule}"
)
curves["adasync"] = curve(adaptive)
at = [0, 4, 14, 29, 59]
print(f"{'loss at':<24}" + "".join(f"{times[i]:>9.3g} s" for i in at))
for name, losses in curves.items():
    print(f"{name:<24}" + "".join(f"{losses[i]:>11.4f}" for i in at))
best = np.min([losses for name, losses in curves.items() if name != "adasync"], axis=0)
show(
    "adasync over the best fixed K of each time", [100 * float(np.mean(curves["adasync"] / best - 1))], "%", "about 10"
)
if arguments.picture:
    from anyk.views.style import COLOURS, picture

    with picture(arguments.picture, (8, 5)) as (figure, axes):
        for colour, (name, losses) in zip(COLOURS, curves.items(), strict=False):
            axes.semilogy(times, losses, color=colour, lw=2.4 if name == "adasync" else 1.4, label=name)
        axes.set_xlabel("virtual seconds")
        axes.set_ylabel(f"loss, mean of {arguments.seeds} seeds")
        axes.set_title(
            f"{arguments.data}, {arguments.model}, {P} workers, delays {arguments.delays}, batch {arguments.batch}",
        )
        axes.legend()
