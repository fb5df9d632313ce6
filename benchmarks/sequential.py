"""Coding over time: which scheme wins where, and whether the clock agrees.

Without options: the whole grid of published schemes on one 30-round trace of 256 workers, in seconds. --map: the best
scheme of each kind over (seconds for the whole data / seconds of a task without load) x (mean burst length): the
published rules, and (with a *) those whose rounds end when decodable and whose groups count, with FRC. --rules: what
either rule is worth to each kind, on that trace and on bimodal and Gilbert-Elliott delays. --clock: two points of the
map on 32 processes, four small networks at once, published M-SGC against gradient coding.
"""

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from common import DATA, show

import anyk
from anyk.fleet import TraceGrid, sequential_candidates
from anyk.strategies import GilbertElliott

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--map", action="store_true")
parser.add_argument("--rules", action="store_true")
parser.add_argument("--clock", action="store_true")
parser.add_argument("--workers", type=int, nargs="*", default=[64, 256])
parser.add_argument("--ratios", type=float, nargs="*", default=[0.1, 1.0, 5.0, 20.0, 50.0, 100.0, 200.0, 500.0])
parser.add_argument("--jobs", type=int, default=200)
parser.add_argument("--models", type=int, default=4)
parser.add_argument("--share", type=float, default=0.05, help="of tasks that straggle")
parser.add_argument("--slow", type=float, default=4.0, help="how many times slower a straggler is")
parser.add_argument("--seconds", type=float, default=0.3, help="of a task without load, with --clock")
parser.add_argument("--picture")
arguments = parser.parse_args()
RATIOS = arguments.ratios
BURSTS = (1.05, 2.0, 4.0)


def bursty(rounds, workers, burst, seed):
    """Seconds of tasks without load: 1 and a little, ``slow`` times that in a burst."""
    recover = 1.0 / burst
    chain = GilbertElliott(fail=recover * arguments.share / (1 - arguments.share), recover=recover)
    noise = 1.0 + 0.05 * np.random.default_rng(seed).exponential(size=(rounds, workers))
    return noise * np.where(chain.draw(rounds, workers, seed=seed), arguments.slow, 1.0)


def best_of(table, slope, jobs):
    """By kind, the best candidate; of sequential codes as published, and (with a *) with both rules and groups."""
    grid = TraceGrid(table, load=0.0, slope=slope, jobs=jobs)
    best = {}
    gc = (grid.gradient_coding(s, end="cutoff") for s in range(grid.workers))
    for one in (*gc, *grid.grid(arguments.models - 1)):
        kind = one.spec.partition(":")[0]
        published = kind in ("uncoded", "frc") or not ("decodable" in one.spec or "inner" in one.spec)
        kinds = {"gc": ["gc" if "cutoff" in one.spec else "gc*"]}.get(
            kind, [kind] * published + [f"{kind}*"] * ("sgc" in kind)
        )
        for name in kinds:
            if name not in best or (one.seconds, one.load) < (best[name].seconds, best[name].load):
                best[name] = one
    return best


def shown(best):
    """The winner as published, the winner of all, and the best of each kind relative to FRC."""
    published = min((best[name] for name in NAMES[:4]), key=seconds)
    every = min((best[name] for name in NAMES), key=seconds)
    ratios = " ".join(f"{name} {one.seconds / best['frc'].seconds:.3f}" for name, one in best.items())
    return f"published {published.spec}; of all {every.spec} ({every.seconds:.4g} s); over frc: {ratios}"


def seconds(one):
    return one.seconds, one.load


NAMES = ("uncoded", "gc", "sr-sgc", "m-sgc", "frc", "gc*", "sr-sgc*", "m-sgc*")
if arguments.rules:
    file = DATA / "lambda-traces" / "p_desktop_long-Canada-n30-b2048-load0.00.npz"
    cases = {"trace, 256 workers": (np.load(file)["seconds"].astype(float), 1.122, 20)}
    for name, burst in (("bimodal", 1.05), ("Gilbert-Elliott, bursts of 4", 4.0)):
        for ratio in (1.0, 20.0, 100.0):
            case = bursty(arguments.jobs + arguments.models - 1, 64, burst, seed=0), ratio, arguments.jobs
            cases[f"{name}, 64 workers, ratio {ratio:g}"] = case
    for name, (table, slope, jobs) in cases.items():
        grid = TraceGrid(table, load=0.0, slope=slope, jobs=jobs)
        best = {"gc, cut-off": min((grid.gradient_coding(s, end="cutoff") for s in range(grid.workers)), key=seconds)}
        for one in grid.grid(arguments.models - 1):
            kind = one.spec.partition(":")[0]
            if "sgc" in kind:
                kind += ", decodable" if "decodable" in one.spec else ", cut-off"
                kind += ", groups" * ("inner" in one.spec)
            best[kind] = min(one, best.get(kind, one), key=seconds)
        print(f"{name}: {jobs} jobs of {arguments.models} models")
        for kind in sorted(best, key=lambda kind: best[kind].seconds):
            one = best[kind]
            print(f"  {kind:<26} {one.seconds:8.2f} s  load {one.load:.4f}  {one.spec}", flush=True)
elif arguments.map:
    cells = {}
    for workers in arguments.workers:
        what = f"{100 * arguments.share:g} % stragglers, {arguments.slow:g} times slower"
        print(f"n = {workers}, {arguments.jobs} jobs of {arguments.models} models, {what}")
        for burst in BURSTS:
            for ratio in RATIOS:
                table = bursty(arguments.jobs + arguments.models - 1, workers, burst, seed=0)
                best = best_of(table, ratio, arguments.jobs)
                order = sorted(best, key=lambda name: (best[name].seconds, best[name].load, name))
                cells[workers, burst, ratio] = (
                    NAMES.index(order[0]), best[order[1]].seconds / best[order[0]].seconds - 1
                )  # fmt: skip
                print(f"  burst {burst:<5g} ratio {ratio:<5g} {shown(best)}", flush=True)
    if arguments.picture:
        from matplotlib.patches import Rectangle

        from anyk.views.style import COLOURS, picture

        with picture(arguments.picture, (5.4 * len(arguments.workers), 3.6), columns=len(arguments.workers)) as (
            figure,
            axes,
        ):
            for ax, workers in zip(np.atleast_1d(axes), arguments.workers, strict=True):
                for (n, burst, ratio), (winner, margin) in cells.items():
                    if n == workers:
                        x, y = RATIOS.index(ratio), BURSTS.index(burst)
                        alpha = 0.3 + 0.6 * min(1.0, margin / 0.3)
                        ax.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, color=COLOURS[winner], alpha=alpha))
                        ax.text(x, y, f"{NAMES[winner]}\n{100 * margin:.0f} %", ha="center", va="center", fontsize=8)
                ax.set_xlim(-0.5, len(RATIOS) - 0.5)
                ax.set_ylim(-0.5, len(BURSTS) - 0.5)
                ax.set_xticks(range(len(RATIOS)), [f"{ratio:g}" for ratio in RATIOS])
                ax.set_yticks(range(len(BURSTS)), [f"{burst:.3g}" for burst in BURSTS])
                ax.set_xlabel("seconds for the whole data / seconds of a task without load")
                ax.set_ylabel("mean burst, rounds")
                ax.set_title(f"n = {workers}: who wins, and by how much", fontsize=10)
elif arguments.clock:
    workers, models, steps = 32, arguments.models, 10
    file = DATA / "t10k-images-idx3-ubyte.gz"
    problems = [
        anyk.problems.from_data("mnist-idx", file=file, model=f"two-layer:hidden=8,seed={seed}")
        for seed in range(models)
    ]
    curves = {}
    for ratio, burst in ((20.0, 1.05), (0.1, 1.05)):
        table = bursty(models * steps + models - 1, workers, burst, seed=3)
        found = sequential_candidates(table, models=models, load=0.0, slope=ratio, jobs=models * steps, published=True)
        kinds: dict[str, Any] = {one.spec.partition(":")[0]: one for one in found}
        seconds = {}
        with tempfile.TemporaryDirectory() as folder:
            trace = Path(folder) / "bursty.npz"
            np.savez(trace, seconds=table * arguments.seconds, load=0.0)
            delays = f"trace:{trace},by=round,slope={ratio * arguments.seconds}"
            for kind in ("gc", "m-sgc"):
                cluster = anyk.cluster("processes", workers=workers, delays=delays)
                spec = kinds[kind].spec + ",batch=4"
                run = anyk.train_many(
                    problems, spec, cluster, steps=steps, optimizer=anyk.optimizers.GD(lr=0.1), evaluate=None
                )
                seconds[kind] = run.seconds
                ends = sorted(t for i in range(models) for t in run.history_of(f"model {i}")["seconds"][1:])
                curves[f"{kinds[kind].spec}, ratio {ratio:g}"] = ends
                print(f"ratio {ratio:g}: {kinds[kind].spec}: {run.seconds:.2f} s, floor {run.floor_seconds:.2f} s, "
                      f"planned {kinds[kind].seconds * arguments.seconds:.2f} s", flush=True)  # fmt: skip
                run.close()
        planned = 100 * (1 - kinds["m-sgc"].seconds / kinds["gc"].seconds)
        show(f"M-SGC sooner than GC (planned {planned:.0f} %)", [100 * (1 - seconds["m-sgc"] / seconds["gc"])], "%")
    if arguments.picture:
        from anyk.views.style import COLOURS, picture

        with picture(arguments.picture, (8, 5)) as (figure, axes):
            for colour, (name, ends) in zip(COLOURS, curves.items(), strict=False):
                axes.step(ends, range(1, len(ends) + 1), where="post", color=colour, label=name)
            axes.set_xlabel("wall-clock seconds")
            axes.set_ylabel("jobs finished")
            axes.set_title(f"{models} networks on MNIST images, {workers} processes")
            axes.legend()
else:
    file = DATA / "lambda-traces" / "p_desktop_long-Canada-n30-b2048-load0.00.npz"
    table = np.load(file)["seconds"].astype(float)
    times = []
    for _ in range(3):
        began = time.perf_counter()
        count = sum(1 for _ in TraceGrid(table, load=0.0, slope=1.122, jobs=20).grid(10, published=True))
        times.append(time.perf_counter() - began)
    show(f"{count:,} candidates on 30 rounds x 256 workers", times, "s", "20, aim 5")
