"""The cost of tolerating any s stragglers: the load of every exact code against Tandon's bound."""

from itertools import combinations

import numpy as np

from anyk.base import BadInput
from anyk.codes import Code, code
from anyk_papers.item import Criterion, Item
from anyk_papers.item_table import Case, Table, cases
from anyk_papers.lab import Lab, Results
from anyk_papers.pictures import Lines

N = 12
CODES = {
    "FRC": "frc:stragglers={s}",
    "cyclic": "cyclic:stragglers={s}",
    "MDS": "mds:stragglers={s}",
    "binary": "binary:stragglers={s}",
}


def exact(built: Code, stragglers: int) -> bool:
    """Return whether the decoded sum of random gradients is their sum whichever workers straggle."""
    gradients = np.random.default_rng(stragglers).standard_normal((built.partitions, 3))
    messages = np.array([np.asarray(values) @ gradients[list(partitions)] for partitions, values in built.rows])
    total = gradients.sum(axis=0)
    return all(
        np.abs(built.decode(workers).weights @ messages - total).max() < 1e-6
        for workers in combinations(range(built.workers), built.workers - stragglers)
    )


def measure(lab: Lab, case: Case, seed: int) -> Results:
    """Measure the mean load of a worker, relative to the data, the stragglers tolerated, and their least load."""
    n, s = lab.size(N, 6), case["s"]
    try:
        built = code(CODES[case["code"]].format(s=s), workers=n)
    except BadInput:
        return {"bound": (s + 1) / n}
    tolerated = s if exact(built, s) else -1
    while 0 <= tolerated < n - 1 and exact(built, tolerated + 1):
        tolerated += 1
    return {
        "load": sum(map(len, built.assignment)) / n / built.partitions,
        "largest": built.load / built.partitions,
        "tolerated": tolerated,
        "needed": (tolerated + 1) / n,
        "bound": (s + 1) / n,
    }


def table(lab: Lab) -> Table:
    return lab.measure(measure, cases(code=list(CODES), s=list(range(lab.size(N, 6)))), seeds=1)


def _above_bound(t: Table) -> tuple[bool, str]:
    rows = [row for row in t if "load" in row.numbers and row.mean("tolerated") >= 0]
    least = min((row.mean("load") / row.mean("needed") for row in rows), default=0.0)
    return least >= 1.0 - 1e-9, f"{len(rows)} codes decode, the least load is {least:.3f} of the bound"


def _attained(t: Table) -> tuple[bool, str]:
    rows = t.where(code="cyclic").rows
    attaining = [
        row
        for row in rows
        if row.numbers.get("tolerated") == [row.case["s"]] and abs(row.mean("largest") - row.mean("bound")) < 1e-9
    ]
    in_words = f"cyclic repetition attains it for {len(attaining)} of {len(rows)} numbers of stragglers"
    return len(attaining) == len(rows), in_words


ITEM = Item(
    name="tandon-bound",
    title="Load of a worker against the stragglers tolerated, 12 workers",
    source="Tandon, Lei, Dimakis and Karampatziakis 2017, Theorem 1",
    minutes=0.2,
    clock="none",
    table=table,
    claims=(
        Criterion("no code has a load below (s + 1) / n", "lower bound", _above_bound),
        Criterion("it is attained for every s", "cyclic repetition", _attained),
    ),
    panels=(
        Lines(over="s", numbers=("load",), x="stragglers tolerated, s", y="mean load, share of the data", by="code"),
    ),
    columns=("code", "s", "tolerated", "load", "largest", "bound"),
    differs="nothing",
)
