"""Error at a fixed time against K: the bound, and measured on a quadratic whose constants are known."""

import numpy as np

from anyk.delays import Exponential
from anyk.fleet import best_k, error_after
from anyk.optimizers import GD
from anyk_papers.item import Criterion, Item
from anyk_papers.item_table import Case, Row, Table, cases
from anyk_papers.lab import Lab, Results
from anyk_papers.pictures import Lines
from anyk_papers.quadratic import noisy

P, LAW = 8, Exponential(mean=0.5)
RATE, CURVATURE, NOISE, FIRST = 0.2, 1.0, 1.0, 2.0  # of F(w) = |w|^2 / 2; FIRST is F(w_0)
TIMES = (0.5, 2.0, 5.0, 20.0)
PACE = [LAW.order_statistic(k, P) for k in range(1, P + 1)]  # K-sync


def losses(lab: Lab, case: Case, seed: int) -> Results:
    """Return the excess loss of K-sync SGD at each of the times, mean over runs."""
    totals = np.zeros(len(TIMES))
    runs = lab.size(40, 4)
    for run in range(runs):
        problem = noisy(P, 20, first=FIRST, noise=NOISE, seed=seed * runs + run)
        steps, values = lab.train(
            problem,
            f"k-sync:k={case['K']},batch=1",
            workers=P,
            delays=LAW,
            seed=seed * runs + run,
            optimizer=GD(lr=RATE),
            seconds=TIMES[-1],
            evaluate="every=1",
        )["curves"]["loss"]
        totals += values[np.searchsorted(steps, TIMES, side="right") - 1]  # of the newest model at that time
    return {f"{seconds:g}": total / runs for seconds, total in zip(TIMES, totals, strict=True)}


def table(lab: Lab) -> Table:
    measured = lab.measure(losses, [{"K": k} for k in range(1, P + 1)])
    constants = (FIRST, RATE, CURVATURE, CURVATURE, NOISE)
    rows = []
    for case in cases(seconds=TIMES, K=list(range(1, P + 1))):
        row = measured.row(K=case["K"])
        bound = error_after(case["seconds"], PACE[case["K"] - 1], *constants, case["K"])
        rows.append(Row(case, {"measured": row.numbers[f"{case['seconds']:g}"], "bound": [bound] * lab.seeds}))
    return Table(tuple(rows))


def _best(t: Table, number: str) -> list[int]:
    return [min(t.where(seconds=seconds), key=lambda row: row.mean(number)).case["K"] for seconds in TIMES]


def _grows(t: Table) -> tuple[bool, str]:
    best = _best(t, "measured")
    return best == sorted(best) and best[0] < best[-1], "best K " + ", ".join(map(str, best)) + f" after {TIMES} s"


def _agrees(t: Table) -> tuple[bool, str]:
    measured = _best(t, "measured")
    planned = [
        best_k(
            seconds=seconds,
            step_seconds=PACE,
            first=FIRST,
            rate=RATE,
            smoothness=CURVATURE,
            convexity=CURVATURE,
            noise=NOISE,
        )
        for seconds in TIMES
    ]
    losses = [
        t.mean("measured", seconds=seconds, K=k) / t.mean("measured", seconds=seconds, K=b)
        for seconds, k, b in zip(TIMES, planned, measured, strict=True)
    ]
    return max(
        losses
    ) < 1.25, f"planned {planned}, best {measured}; {100 * (max(losses) - 1):.0f} % worse at most (test: 25 %)"


def _above(t: Table) -> tuple[bool, str]:
    off = max(row.mean("measured") / row.mean("bound") for row in t)
    return off <= 1.02, f"measured is at most {off:.2f} of the bound (test: 1.02, as the runs scatter)"


ITEM = Item(
    name="kfamily-bestk",
    title="Excess loss of K-sync SGD at fixed times against K, 8 workers, exponential delays of 0.5 s",
    source="Dutta, Joshi, Ghosh, Dube and Nagpurkar 2018 (talk: choosing the best K)",
    minutes=0.3,
    table=table,
    claims=(
        Criterion("the best K grows with the time there is", "small K early, large K late", _grows),
        Criterion("error after t seconds is below the bound with t / E[T] steps", "upper bound", _above),
        Criterion("the K that the bound says is nearly the best", "argmin of the bound", _agrees),
    ),
    panels=(
        Lines(over="K", numbers=("measured",), x="K", y="excess loss", title="measured", by="seconds", log="y"),
        Lines(over="K", numbers=("bound",), x="K", y="bound on the excess loss", title="bound", by="seconds", log="y"),
    ),
    columns=("seconds", "K", "measured", "bound"),
    differs="a quadratic with known constants, so that bound and measurement can be compared",
)
