"""Gradient coding at n = 12 with injected stragglers: exact codes, and ignoring who is late."""

from anyk.optimizers import Nesterov
from anyk_papers.item import Criterion, Item, Order
from anyk_papers.item_table import Case, Table
from anyk_papers.lab import Lab, Results
from anyk_papers.pictures import Bars, Curves

STRATEGIES = {
    "uncoded": "uncoded",
    "ignore 1": "uncoded:wait=11",
    "ignore 2": "uncoded:wait=10",
    "FRC, s = 1": "frc:stragglers=1",
    "FRC, s = 2": "frc:stragglers=2",
    "FRC, s = 3": "frc:stragglers=3",
    "cyclic, s = 1": "cyclic:stragglers=1",
    "cyclic, s = 2": "cyclic:stragglers=2",
}


def measure(lab: Lab, case: Case, seed: int) -> Results:
    return lab.train(
        lab.problem("digits"),
        STRATEGIES[case["strategy"]],
        workers=12,
        delays="exp:mean=0.5",
        seed=seed,
        optimizer=Nesterov(lr=0.15),
        steps=lab.size(60, 30),
        targets=(0.93,),
        evaluate="every=1",
    )


def table(lab: Lab) -> Table:
    return lab.measure(measure, [{"strategy": name} for name in STRATEGIES])


def _seconds(t: Table, *names: str) -> list[float]:
    return [t.mean("seconds a step", strategy=name) for name in names]


def _same(t: Table) -> tuple[bool, str]:
    codes = [row for row in t if not row.case["strategy"].startswith("ignore")]
    worst = max(abs(row.mean("loss") - t.mean("loss", strategy="uncoded")) for row in codes)
    return worst < 1e-6, f"losses differ by {worst:.1g} at most"


def _ignoring(t: Table) -> tuple[bool, str]:
    fewer, everyone = (t.mean("accuracy", strategy=name) for name in ("ignore 2", "uncoded"))
    return fewer < everyone - 0.005, f"{fewer:.4f} with 10 of 12, {everyone:.4f} with all (test: 0.005 less)"


ITEM = Item(
    name="tandon-12",
    title="Twelve workers with exponential delays of 0.5 s: exact codes against ignoring stragglers",
    source="Tandon, Lei, Dimakis and Karampatziakis 2017 (talk: n = 12 on EC2 with artificial straggling)",
    minutes=0.7,
    table=table,
    claims=(
        Order(
            "coding is faster than waiting for all",
            ("uncoded", "cyclic, s = 1", "cyclic, s = 2"),
            lambda t: _seconds(t, "uncoded", "cyclic, s = 1", "cyclic, s = 2"),
        ),
        Order(
            "fractional repetition decodes sooner than cyclic repetition",
            ("cyclic, s = 2", "FRC, s = 2"),
            lambda t: _seconds(t, "cyclic, s = 2", "FRC, s = 2"),
        ),
        Criterion("exact codes take the steps of uncoded", "the same model", _same),
        Criterion("ignoring stragglers loses accuracy", "generalises worse", _ignoring),
    ),
    panels=(
        Curves(curve="loss", x="virtual seconds", y="loss", title="loss against time", log="xy"),
        Bars("seconds a step", "seconds an iteration", "time of an iteration"),
    ),
    columns=("strategy", "seconds a step", "to 0.93", "loss", "accuracy"),
    differs="handwritten digits in place of the talk's data, delays that do not depend on load, no computing; ignoring "
    "stragglers at random, as here, is unbiased: on data sorted by worker it would not be",
)
