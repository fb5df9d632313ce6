"""The K family's expected time of an update: closed forms against the virtual clock, under five delay laws."""

from anyk import strategy
from anyk.delays import parse
from anyk.fleet import pace, simulated_pace
from anyk_papers.item import Criterion, Item, Value
from anyk_papers.item_table import Case, Table, cases
from anyk_papers.lab import Lab, Results
from anyk_papers.pictures import Lines

LAWS = {
    "exponential": "exp:mean=1",
    "shifted exponential": "shifted-exp:shift=0.5,mean=0.5",
    "Pareto": "pareto:minimum=0.6,alpha=2.5",
    "uniform": "uniform:low=0,high=2",
    "two-valued": "bimodal:fast=0.5,slow=5.5,probability=0.1",
}
P = 8


def measure(lab: Lab, case: Case, seed: int) -> Results:
    kind, k, law = case["kind"], case["k"], parse(LAWS[case["law"]])
    family = strategy("async" if kind == "async" else f"{kind}:k={k}", workers=P)
    updates = lab.size(20_000, 2_000)
    measured = simulated_pace(family, law, updates=updates, seed=seed)
    numbers = {"simulated": measured.seconds, "error": measured.error}
    closed_form = pace(family, law).seconds
    return numbers if closed_form is None else numbers | {"closed form": closed_form}


def table(lab: Lab) -> Table:
    kinds = cases(law=list(LAWS), kind=["k-sync", "k-batch-sync", "k-async", "k-batch-async"], k=[1, 2, 4, 8])
    return lab.measure(measure, kinds)


def _worst(t: Table) -> tuple[bool, str]:
    rows = [row for row in t if "closed form" in row.numbers]
    # in standard errors of the mean over the seeds, with one part in 1000 for what ties and starts cost
    off = [abs(row.mean("simulated") - row.mean("closed form")) for row in rows]
    error = [row.mean("error") / len(row.numbers["error"]) ** 0.5 + 1e-3 * row.mean("closed form") for row in rows]
    worst = max(a / b for a, b in zip(off, error, strict=True))
    return (
        worst < 4.5,
        f"{len(rows)} of {len(t.rows)} cases have one; off by {worst:.1f} standard errors at worst (test: 4.5)",
    )


def _gain(t: Table) -> float:
    synchronous, asynchronous = (
        t.row(law="exponential", kind=kind, k=k) for kind, k in (("k-sync", P), ("k-async", 1))
    )
    return synchronous.mean("closed form") / asynchronous.mean("closed form")


def _proportional(t: Table) -> tuple[bool, str]:
    rows = t.where(kind="k-batch-async")
    ones = {row.case["law"]: row.mean("simulated") for row in rows if row.case["k"] == 1}
    worst = max(abs(row.mean("simulated") / ones[row.case["law"]] / row.case["k"] - 1.0) for row in rows)
    return worst < 0.03, (
        f"within {100 * worst:.1f} % of proportional to K, {len(ones)} laws (test: 3 %, for the scatter under Pareto)"
    )


ITEM = Item(
    name="kfamily-runtime",
    title="Expected seconds of an update of the K family, 8 workers, five delay laws of mean 1",
    source="Dutta, Joshi, Ghosh, Dube and Nagpurkar 2018 (talk: expected time per iteration)",
    minutes=2.0,
    table=table,
    claims=(
        Criterion("closed forms hold wherever there is one", "exact", _worst),
        Value(
            text="synchronous over asynchronous in closed form, exponential: P H_P",
            paper=P * sum(1.0 / i for i in range(1, P + 1)),
            here=_gain,
            unit=" times",
            says="P log P times (16.6), the leading term",
        ),
        Criterion("K-batch-async takes K E[X] / P whatever the law", "exact", _proportional),
    ),
    panels=(
        Lines(
            over="k",
            numbers=("simulated", "closed form"),
            x="K",
            y="seconds an update",
            title="exponential delays",
            by="kind",
            of={"law": "exponential"},
        ),
        Lines(
            over="k",
            numbers=("simulated",),
            x="K",
            y="seconds an update",
            title="Pareto delays",
            by="kind",
            of={"law": "Pareto"},
        ),
    ),
    columns=("law", "kind", "k", "simulated", "closed form"),
    differs="nothing; the talk prints formulas for exponential delays, four more laws are simulated",
)
