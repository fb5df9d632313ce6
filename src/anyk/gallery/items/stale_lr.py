"""Asynchronous SGD near its stability limit: a constant rate, and one that is smaller where the model has moved far."""

from anyk.gallery.item import Criterion, Item
from anyk.gallery.lab import Found, Lab
from anyk.gallery.pictures import Curves
from anyk.gallery.table import Case, Table, cases
from anyk.optimizers import GD
from anyk.planning import stability_limit

RULES = {"constant": "async:batch=4", "min(C / distance, rate)": "async:batch=4,stale=distance,bound={bound:g}"}


def measure(lab: Lab, case: Case, seed: int) -> Found:
    """At twice the limit of stability for the mean staleness P - 1."""
    problem = lab.problem("digits")
    smoothness = problem.smoothness()  # type: ignore[attr-defined]
    rate = case["rate"] * stability_limit(case["P"] - 1) / smoothness
    return lab.train(
        problem, RULES[case["rule"]].format(bound=1.0), workers=case["P"], delays="exp:mean=0.5", seed=seed,
        optimizer=GD(lr=rate), steps=lab.size(3_000, 600), evaluate_every=25,
    )  # fmt: skip


def table(lab: Lab) -> Table:
    return lab.measure(measure, cases(P=[8, 30], rate=[1.0, 8.0], rule=list(RULES)))


def _early(t: Table) -> tuple[bool, str]:
    """The largest loss on the way, which a rate that is too large drives up."""
    peaks = {}
    for rule in RULES:
        row = t.row(P=30, rate=8.0, rule=rule)
        peaks[rule] = max(float(y[1:].max()) for _, y in row.curves["loss"])
    constant, adaptive = (peaks[rule] for rule in RULES)
    return adaptive < constant, f"largest loss on the way {constant:.3g} and {adaptive:.3g} (P = 30, 8 times the limit)"


def _costs(t: Table) -> tuple[bool, str]:
    constant, adaptive = (t.mean("loss", P=8, rate=1.0, rule=rule) for rule in RULES)
    return adaptive <= 1.1 * constant, f"loss at the end {constant:.3g} and {adaptive:.3g} (test: within 10 %)"


ITEM = Item(
    name="stale-lr",
    title="Asynchronous SGD at and above the stability limit of its rate, with and without a rule for stale gradients",
    source="Dutta, Joshi, Ghosh, Dube and Nagpurkar 2018 (talk: min{C / distance^2, eta_max})",
    minutes=3.0,
    table=table,
    claims=(
        Criterion("the rule keeps a rate stable that is too large for stale gradients", "lower loss", _early),
        Criterion("it costs nothing at a rate that is small enough", "same loss", _costs),
    ),
    panels=(
        Curves(
            "loss",
            "virtual seconds",
            "loss",
            "8 workers",
            log="y",
            of={"P": 8},
            label=lambda case: f"{case['rate']:g} x limit, {case['rule']}",
        ),
        Curves(
            "loss",
            "virtual seconds",
            "loss",
            "30 workers",
            log="y",
            of={"P": 30},
            label=lambda case: f"{case['rate']:g} x limit, {case['rule']}",
        ),
    ),
    columns=("P", "rate", "rule", "loss", "accuracy"),
    differs="softmax regression on handwritten digits; the limit is that of a quadratic with the largest curvature",
)
