"""ErasureHead without injected delays, on real processes: does coding pay without stragglers?"""

from anyk.optimizers import Accelerated
from anyk_papers.gallery.erasurehead_amazon import STRATEGIES
from anyk_papers.item import Criterion, Item
from anyk_papers.item_table import Case, Table, cases
from anyk_papers.lab import Lab, Results
from anyk_papers.pictures import Bars, Curves

RATES: dict[str, float | str] = {"amazon": 10.0, "kc-housing": "exponential:start=0.1,decay=0.99"}


def measure(lab: Lab, case: Case, seed: int) -> Results:
    return lab.train(
        lab.problem(case["data"]),
        STRATEGIES[case["strategy"]],
        workers=30,
        delays="none",
        seed=seed,
        optimizer=Accelerated(lr=RATES[case["data"]]),
        steps=lab.size(40, 15),
        evaluate="every=2",
    )


def table(lab: Lab) -> Table:
    return lab.measure(measure, cases(data=list(RATES), strategy=list(STRATEGIES)))


def _strategy(case: Case) -> str:
    return str(case["strategy"])


def _no_worse(data: str, load: int) -> Criterion:
    def here(t: Table) -> tuple[bool, str]:
        names = (f"AGC, load {load}, 11 replies", "uncoded", f"exact, load {load}")
        agc, *others = (1000 * t.mean("seconds a step", data=data, strategy=name) for name in names)
        slower = 100.0 * (agc / min(others) - 1.0)
        in_words = f"{agc:.1f} ms a step; uncoded {others[0]:.1f}, exact {others[1]:.1f}: {slower:+.0f} % (test: 5 %)"
        return slower <= 5.0, in_words

    what = f"{data}: AGC on 11 replies, load {load}, is no slower a step than uncoded and the exact code of this load"
    return Criterion(what, "no slower", here)


ITEM = Item(
    name="erasurehead-nodelay",
    title="Seconds an iteration without injected delays, 30 processes on one machine, two data sets",
    source="Wang, Charles and Papailiopoulos 2019, Figure 4",
    minutes=4.0,
    clock="processes",
    table=table,
    claims=tuple(_no_worse(data, load) for data in RATES for load in (2, 3)),
    panels=(
        *(Bars("seconds a step", "seconds an iteration", data, label=_strategy, of={"data": data}) for data in RATES),
        Curves(
            curve="auc",
            x="wall-clock seconds",
            y="AUC on held-out rows",
            title="amazon",
            label=_strategy,
            of={"data": "amazon"},
        ),
        Curves(
            curve="mse",
            x="wall-clock seconds",
            y="mean squared error",
            title="kc-housing",
            log="y",
            label=_strategy,
            of={"data": "kc-housing"},
        ),
    ),
    columns=("data", "strategy", "seconds a step", "auc", "mse"),
    differs="one machine whose few cores all processes share, in place of 30 instances: load costs more than there; "
    "AGC on 15 replies is added, and judged nowhere",
)
