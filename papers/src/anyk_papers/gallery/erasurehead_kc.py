"""ErasureHead on house prices: error against time."""

from anyk.optimizers import Accelerated
from anyk_papers.gallery.erasurehead_amazon import seconds, sooner, speedup_bars, with_speedups
from anyk_papers.item import Criterion, Item, Order, Ratio
from anyk_papers.item_table import Case, Table
from anyk_papers.lab import Lab, Results
from anyk_papers.pictures import Bars, Curves

STRATEGIES = {
    "uncoded": "uncoded",
    "exact, load 2": "frc:load=2",
    "exact, load 3": "frc:load=3",
    "AGC, load 2": "agc:load=2,wait=11,scaling=none",
    "AGC, load 3": "agc:load=3,wait=11,scaling=none",
    "AGC, load 2, rescaled": "agc:load=2,wait=11",
}
TARGETS = (0.10, 0.06, 0.05)


def measure(lab: Lab, case: Case, seed: int) -> Results:
    return lab.train(
        lab.problem("kc-housing"),
        STRATEGIES[case["strategy"]],
        workers=30,
        delays="exp:mean=0.5",
        seed=seed,
        optimizer=Accelerated(lr="exponential:start=0.1,decay=0.99"),
        steps=lab.size(100, 90),
        targets=TARGETS,
        evaluate="every=1",
    )


def table(lab: Lab) -> Table:
    return with_speedups(lab.measure(measure, [{"strategy": name} for name in STRATEGIES]), TARGETS)


def _final(t: Table) -> tuple[bool, str]:
    agc, exact = (t.mean("mse", strategy=name) for name in ("AGC, load 3", "exact, load 3"))
    return agc <= 1.1 * exact, f"AGC {agc:.4f}, exact {exact:.4f} (test: within 10 %)"


ITEM = Item(
    name="erasurehead-kc",
    title="Test error against seconds on King County house prices, 30 workers, exponential delays of 0.5 s",
    source="Wang, Charles and Papailiopoulos 2019, Figures 2c, 2f and 3c",
    minutes=1.5,
    table=table,
    claims=(
        Order(
            "seconds to an error of 0.06 fall from uncoded over exact to approximate",
            ("uncoded", "exact, load 2", "exact, load 3", "AGC, load 3"),
            seconds("to 0.06", "uncoded", "exact, load 2", "exact, load 3", "AGC, load 3"),
        ),
        Ratio(
            text="AGC up to 3 times sooner than exact at the same load (2)",
            paper=3.0,
            here=sooner("to 0.06", "AGC, load 2", "exact, load 2"),
            unit=" times",
            least=True,
            within=0.17,
            reason="one digit is printed, 2.5 to 3.5",
        ),
        Criterion("the approximation costs little accuracy in the end", "nearly the same error", _final),
    ),
    panels=(
        Curves(
            curve="mse",
            x="virtual seconds",
            y="mean squared error on held-out rows",
            title="error against time",
            log="xy",
            lines=TARGETS,
        ),
        Bars("seconds a step", "seconds an iteration", "time of an iteration"),
        speedup_bars(TARGETS, "error"),
    ),
    columns=("strategy", "seconds a step", "to 0.1", "to 0.06", "to 0.05", "mse"),
    differs="computing costs nothing on the virtual clock; AGC with its sum rescaled is added",
)
