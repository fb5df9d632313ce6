"""ErasureHead on the Covertype data: accuracy against time."""

from anyk.optimizers import Accelerated
from anyk_papers.gallery.erasurehead_amazon import STRATEGIES, sooner
from anyk_papers.item import Criterion, Item, Ratio
from anyk_papers.item_table import Case, Table
from anyk_papers.lab import Lab, Results
from anyk_papers.pictures import Bars, Curves


def measure(lab: Lab, case: Case, seed: int) -> Results:
    return lab.train(
        lab.problem("covertype"),
        STRATEGIES[case["strategy"]],
        workers=30,
        delays="exp:mean=0.5",
        seed=seed,
        optimizer=Accelerated(lr=0.1),
        steps=lab.size(100, 30),
        evaluate="every=2",
    )


def table(lab: Lab) -> Table:
    return lab.measure(measure, [{"strategy": name} for name in STRATEGIES])


def _same(t: Table) -> tuple[bool, str]:
    exact, agc = (t.mean("auc", strategy=name) for name in ("exact, load 3", "AGC, load 3, 11 replies"))
    return abs(exact - agc) < 0.01, f"{agc:.4f} for {exact:.4f} (test: within 0.01)"


ITEM = Item(
    name="erasurehead-covertype",
    title="AUC against seconds on the Covertype data, 30 workers, exponential delays of 0.5 s",
    source="Wang, Charles and Papailiopoulos 2019, Figures 2b, 2e and 3b",
    minutes=5.0,
    table=table,
    claims=(
        Ratio(
            text="an iteration of AGC is about 2 times as fast as one of the exact code",
            paper=2.0,
            here=sooner("seconds a step", "AGC, load 3, 11 replies", "exact, load 3"),
            unit=" times",
            within=0.25,
            reason="one digit is printed, 1.5 to 2.5",
        ),
        Criterion("AGC and the exact code end at nearly the same AUC", "nearly equal", _same),
    ),
    panels=(
        Curves(curve="auc", x="virtual seconds", y="AUC on held-out rows", title="AUC against time", log="x"),
        Bars("seconds a step", "seconds an iteration", "time of an iteration"),
    ),
    columns=("strategy", "seconds a step", "auc"),
    differs="computing costs nothing on the virtual clock",
)
