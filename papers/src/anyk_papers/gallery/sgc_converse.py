"""M-SGC against the least load with which bursts of stragglers can be tolerated at all."""

import numpy as np

from anyk.clusters import cluster as build_cluster
from anyk.codes.base import EXACT
from anyk.delays import TableDelays as Measured
from anyk.optimizers import GD
from anyk.runs import train_many
from anyk.strategies import Bursty, Multiplexed
from anyk.strategies.sequential.patterns import Pattern
from anyk_papers.item import Criterion, Item
from anyk_papers.item_table import Case, Table, cases
from anyk_papers.lab import Lab, Results
from anyk_papers.pictures import Lines

N, B = 20, 2
RUN_UP_TO = 6  # windows that are trained with
SLOW = 50.0  # seconds
WINDOWS = (3, 4, 6, 10, 18, 34, 66)
LAMBDAS = (4, 12)


def worst_pattern(workers: int, *, W: int, stragglers: int, periods: int) -> Pattern:
    """Return bursts as dense as the model allows: B rounds with ``stragglers``, W - 1 rounds without, and so on."""
    pattern = np.zeros((periods * (W - 1 + B), workers), dtype=bool)
    pattern[np.arange(len(pattern)) % (W - 1 + B) < B, :stragglers] = True
    return pattern


def counted_load(workers: int, *, W: int, stragglers: int) -> float:
    """Return the least load that finishes a job a round in the pattern, counted in its rounds.

    NaN if the model does not allow the pattern, or allows a further straggler or a longer burst in it.
    """
    model, pattern = Bursty(B, W, stragglers), worst_pattern(workers, W=W, stragglers=stragglers, periods=3)
    worse = pattern.copy()
    worse[0, stragglers] = True
    longer = pattern.copy()
    longer[B, 0] = True
    if not model.conforms(pattern) or model.conforms(worse) or model.conforms(longer):
        return float("nan")
    return len(pattern) / float((~pattern).sum())


def measure(lab: Lab, case: Case, seed: int) -> Results:
    W, stragglers = case["W"], case["lambda"]
    spec = f"m-sgc:B={B},W={W},lambda={stragglers}"
    load, bound = Multiplexed(N, B=B, W=W, lambda_=stragglers).load, Bursty(B, W, stragglers).load_bound(N)
    assert bound is not None
    counted = counted_load(N, W=W, stragglers=stragglers)
    numbers = {"load": load, "bound": bound, "counted": counted, "gap times W": (load - bound) * W}
    if W > RUN_UP_TO:
        return numbers
    times = np.where(worst_pattern(N, W=W, stragglers=stragglers, periods=4), SLOW, 1.0)
    problem = lab.problem("synthetic:rows=240,features=3")
    models, steps = W - 1 + B, 3
    fleet = build_cluster("simulated", workers=N, delays=Measured(times, by="round"))
    with train_many([problem] * models, spec, fleet, optimizer=GD(lr=0.1), steps=steps) as run:
        rounds = models * steps + models - 1
        exact = float(np.nanmax(run.history["residual"])) <= EXACT
        return numbers | {"seconds a round": run.seconds / rounds, "exact": float(exact)}


def table(lab: Lab) -> Table:
    return lab.measure(measure, cases(**{"lambda": list(LAMBDAS), "W": list(WINDOWS)}), seeds=1)


def _tolerated(t: Table) -> tuple[bool, str]:
    run = [row for row in t if "exact" in row.numbers]
    slowest = max(row.mean("seconds a round") for row in run)
    met = all(row.mean("exact") for row in run) and slowest <= 2.0
    return met, f"{slowest:.3g} s a round at most, where a straggler takes {SLOW:g} s (test: the cut-off, 2 s)"


def _counted(t: Table) -> tuple[bool, str]:
    apart = max(abs(row.mean("counted") / row.mean("bound") - 1.0) for row in t)
    return apart < 1e-9, f"off by {apart:.0e} at worst, in {len(t.rows)} cases"


def _above(t: Table) -> tuple[bool, str]:
    least = min(row.mean("load") / row.mean("bound") for row in t)
    return least >= 1.0, f"{least:.3f} to {max(row.mean('load') / row.mean('bound') for row in t):.3f} times the bound"


def _vanishes(t: Table) -> tuple[bool, str]:
    last = {few: [row.mean("gap times W") for row in t.where(**{"lambda": few})][-2:] for few in LAMBDAS}
    flat = all(abs(b / a - 1.0) < 0.05 for a, b in last.values())
    in_words = "; ".join(f"lambda = {few}: {a:.4f}, {b:.4f}" for few, (a, b) in last.items())
    return flat, f"gap times W at the two longest windows, {in_words} (test: within 5 %)"


ITEM = Item(
    name="sgc-converse",
    title=f"Load of M-SGC and the least load that tolerates bursts of {B} rounds, {N} workers",
    source="Krishnan, Ebrahimi and Khisti 2023, converse for bursty stragglers",
    minutes=0.2,
    table=table,
    claims=(
        Criterion("M-SGC gives exact sums under the worst bursts, without waiting for them", "tolerated", _tolerated),
        Criterion("the bound is the work of a round over the workers that bursts leave", "counted here", _counted),
        Criterion("no load of M-SGC is below the converse bound", "at least 1", _above),
        Criterion("the gap to the bound vanishes as 1/W", "O(1/W)", _vanishes),
    ),
    panels=(
        Lines(
            over="W",
            numbers=("load", "bound"),
            x="window W (rounds)",
            y="load",
            title="lambda = 4",
            log="x",
            of={"lambda": 4},
        ),
        Lines(
            over="W",
            numbers=("load", "bound"),
            x="window W (rounds)",
            y="load",
            title="lambda = 12",
            log="x",
            of={"lambda": 12},
        ),
        Lines(
            over="W",
            numbers=("gap times W",),
            x="window W (rounds)",
            y="(load - bound) W",
            title="the gap",
            log="x",
            by="lambda",
        ),
    ),
    columns=("lambda", "W", "load", "bound", "counted", "gap times W", "seconds a round"),
    differs="the bound is derived here from a periodic pattern: lambda workers straggle for B rounds, nobody for "
    f"W - 1; codes are run for windows up to {RUN_UP_TO}, as a run needs W - 1 + B models",
)
