"""Averaging less, and knowing when: loss against seconds for fixed numbers of local steps and for adacomm.

A two-layer network on digits, mini-batch SGD, communication several times as long as computing, the same learning rate
for all, as in the figures of the AdaComm paper. Printed is the loss at some times, how much sooner adacomm reaches the
loss at which fully synchronous SGD ends, and how far it is above the best fixed tau, on average over time. With
--picture the curves are drawn; with --cluster processes the time is real.
"""

import argparse

import numpy as np
from common import show

import anyk

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--cluster", default="simulated")
parser.add_argument("--seeds", type=int, default=10)
parser.add_argument("--workers", type=int, default=8)
parser.add_argument("--seconds", type=float, default=300.0)
parser.add_argument("--delays", default="exp:mean=0.1")
parser.add_argument("--communication", default="constant:0.5")
parser.add_argument("--lr", type=float, default=0.3)
parser.add_argument("--batch", type=int, default=2)
parser.add_argument("--tau", type=int, default=50)
parser.add_argument("--taus", type=int, nargs="*", default=[1, 5, 20, 50])
parser.add_argument("--intervals", type=int, default=15)
parser.add_argument("--data", default="digits")
parser.add_argument("--data-file")
parser.add_argument("--model", default="two-layer:hidden=16")
parser.add_argument("--picture")
arguments = parser.parse_args()
problem = anyk.problems.from_data(arguments.data, file=arguments.data_file, model=arguments.model)
P, T = arguments.workers, arguments.seconds
times = np.linspace(T / 100, T, 100)


def curve(spec):
    """Loss at ``times``, mean over seeds."""
    losses = []
    for seed in range(arguments.seeds):
        cluster = anyk.cluster(
            arguments.cluster, workers=P, delays=arguments.delays, seed=seed, communication=arguments.communication
        )
        optimizer = anyk.optimizers.GD(lr=arguments.lr)
        run = anyk.train(problem, spec, cluster, optimizer=optimizer, seconds=T, evaluate="every=1")
        known = ~np.isnan(run.history["loss"])
        losses.append(np.interp(times, run.history["seconds"][known], run.history["loss"][known]))
        run.close()
    return np.mean(losses, axis=0)


curves = {f"tau = {tau}": curve(f"pasgd:tau={tau},batch={arguments.batch}") for tau in arguments.taus}
adaptive = f"adacomm:tau={arguments.tau},interval={T / arguments.intervals:g},batch={arguments.batch}"
curves["adacomm"] = curve(adaptive)
at = [0, 4, 14, 29, 59, 99]
print(f"{'loss at':<12}" + "".join(f"{times[i]:>9.3g} s" for i in at))
for name, losses in curves.items():
    print(f"{name:<12}" + "".join(f"{losses[i]:>11.4f}" for i in at))
synchronous = curves["tau = 1"]
goal = synchronous[-1]
reached = times[np.argmax(curves["adacomm"] <= goal)] if (curves["adacomm"] <= goal).any() else np.inf
wanted = "2.5" if arguments.cluster == "simulated" else "2"
show("synchronous loss reached sooner by adacomm", [T / reached], "times", f"at least {wanted}")
best = np.min([losses for name, losses in curves.items() if name != "adacomm"], axis=0)
show("adacomm over the best fixed tau of each time", [100 * float(np.mean(curves["adacomm"] / best - 1))], "%", "10")
if arguments.picture:
    from anyk.views.style import COLOURS, picture

    with picture(arguments.picture, (8, 5)) as (figure, axes):
        for colour, (name, losses) in zip(COLOURS, curves.items(), strict=False):
            axes.semilogy(times, losses, color=colour, lw=2.4 if name == "adacomm" else 1.4, label=name)
        axes.set_xlabel("virtual seconds" if arguments.cluster == "simulated" else "wall-clock seconds")
        axes.set_ylabel(f"loss, mean of {arguments.seeds} seeds")
        where = f"step {arguments.delays}, link {arguments.communication}"
        axes.set_title(f"{arguments.data}, {arguments.model}, {P} workers, {where}", fontsize=10)
        axes.legend()
