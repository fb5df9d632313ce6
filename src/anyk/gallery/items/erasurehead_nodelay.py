"""ErasureHead without injected delays, on real processes: does coding pay when nobody straggles?"""

from anyk.gallery.item import Criterion, Item
from anyk.gallery.items.erasurehead_amazon import STRATEGIES
from anyk.gallery.lab import Found, Lab
from anyk.gallery.pictures import Bars, Curves
from anyk.gallery.table import Case, Table
from anyk.optimizers import Accelerated


def measure(lab: Lab, case: Case, seed: int) -> Found:
    return lab.train(
        lab.problem("amazon"), STRATEGIES[case["strategy"]], workers=30, delays="none", seed=seed,
        optimizer=Accelerated(lr=10.0), steps=lab.size(40, 15), evaluate="every=2",
    )  # fmt: skip


def table(lab: Lab) -> Table:
    return lab.measure(measure, [{"strategy": name} for name in STRATEGIES])


def _no_worse(t: Table) -> tuple[bool, str]:
    found = {name: t.mean("seconds a step", strategy=name) for name in STRATEGIES}
    best = min(value for name, value in found.items() if name.startswith("AGC"))
    other = min(value for name, value in found.items() if not name.startswith("AGC"))
    return (
        best <= 1.05 * other,
        f"AGC {1000 * best:.1f} ms a step, the best other {1000 * other:.1f} ms (test: within 5 %)",
    )


ITEM = Item(
    name="erasurehead-nodelay",
    title="Seconds an iteration without injected delays, 30 processes on one machine, Amazon data",
    source="Wang, Charles and Papailiopoulos 2019, Figure 4",
    minutes=2.0,
    clock="processes",
    table=table,
    claims=(Criterion("AGC is at least as good as uncoded and exact codes", "no slower", _no_worse),),
    panels=(
        Bars("seconds a step", "seconds an iteration", "time of an iteration"),
        Curves("auc", "wall-clock seconds", "AUC on held-out rows", "AUC against time"),
    ),
    columns=("strategy", "seconds a step", "auc"),
    differs="one machine whose few cores all processes share, in place of 30 instances: load costs more than there",
)
