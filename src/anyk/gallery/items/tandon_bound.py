"""What tolerating any s stragglers costs: the load of every exact code against Tandon's bound."""

from anyk.codes import code
from anyk.errors import BadInput
from anyk.gallery.item import Criterion, Item
from anyk.gallery.lab import Found, Lab
from anyk.gallery.pictures import Lines
from anyk.gallery.table import Case, Table, cases

N = 12
CODES = {
    "FRC": "frc:stragglers={s}", "cyclic": "cyclic:stragglers={s}", "MDS": "mds:stragglers={s}",
    "binary": "binary:stragglers={s}",
}  # fmt: skip


def measure(lab: Lab, case: Case, seed: int) -> Found:
    """The mean load of a worker, relative to the data, and the bound (s + 1) / n."""
    s = case["s"]
    try:
        made = code(CODES[case["code"]].format(s=s), workers=N)
    except BadInput:
        return {"bound": (s + 1) / N}
    mean = sum(map(len, made.assignment)) / N / made.partitions
    return {
        "load": mean,
        "largest": made.load / made.partitions,
        "tolerates": float(made.tolerates),
        "bound": (s + 1) / N,
    }


def table(lab: Lab) -> Table:
    return lab.measure(measure, cases(code=list(CODES), s=list(range(N))), seeds=1)


def _kept(t: Table) -> tuple[bool, str]:
    rows = [row for row in t if "load" in row.numbers]
    least = min(row.mean("load") / ((row.mean("tolerates") + 1) / N) for row in rows)
    return least >= 1.0 - 1e-9, f"{len(rows)} codes, the least load is {least:.3f} of the bound"


def _attained(t: Table) -> tuple[bool, str]:
    there = {
        row.case["s"]
        for row in t.where(code="cyclic")
        if abs(row.numbers.get("largest", [9.0])[0] - row.mean("bound")) < 1e-9
    }
    return there == set(range(N)), f"cyclic repetition attains it for {len(there)} of {N} numbers of stragglers"


ITEM = Item(
    name="tandon-bound",
    title="Load of a worker against the stragglers tolerated, 12 workers",
    source="Tandon, Lei, Dimakis and Karampatziakis 2017, Theorem 1",
    minutes=0.1,
    clock="none",
    table=table,
    claims=(
        Criterion("no code has a load below (s + 1) / n", "lower bound", _kept),
        Criterion("it is attained for every s", "cyclic repetition", _attained),
    ),
    panels=(Lines("s", ("load",), "stragglers tolerated, s", "mean load, share of the data", by="code"),),
    columns=("code", "s", "load", "largest", "bound"),
    differs="nothing",
)
