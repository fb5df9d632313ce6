"""Asynchronous SGD near its stability limit: a constant rate, and one that is smaller where the model has moved far."""

import numpy as np

from anyk.base import RunFailed, keyed_generator
from anyk.callbacks import Callback, EvaluationInfo
from anyk.fleet import stability_limit
from anyk.optimizers import GD
from anyk.problems import LeastSquares
from anyk_papers.item import Criterion, Item
from anyk_papers.item_table import Case, Table, cases
from anyk_papers.lab import Lab, Results
from anyk_papers.pictures import Curves

RULES = {"constant": "async", "min(C / distance, rate)": "async:stale=distance,bound=0.01"}
SHOWN = 1e3  # losses above it are drawn there


class LossRecorder(Callback):
    """Records the loss against seconds, also of a run that fails because it diverges."""

    def __init__(self) -> None:
        self.points: list[tuple[float, float]] = []

    def on_evaluation(self, info: EvaluationInfo) -> None:
        """Note one evaluation."""
        self.points.append((info.seconds, float("nan") if info.loss is None else info.loss))


def measure(lab: Lab, case: Case, seed: int) -> Results:
    """Train at a multiple of the largest rate that is stable when every gradient is P - 1 versions old."""
    random = keyed_generator(0, "gallery-stale-lr")
    X = random.standard_normal((800, 10))
    problem = LeastSquares(X, X @ random.standard_normal(10) + 0.3 * random.standard_normal(800), l2=0.0)
    rate = case["rate"] * stability_limit(case["P"] - 1) / problem.smoothness()
    recorder = LossRecorder()
    try:
        lab.train(
            problem,
            RULES[case["rule"]],
            workers=case["P"],
            delays="exp:mean=0.5",
            seed=seed,
            optimizer=GD(lr=rate),
            steps=lab.size(3_000, 1_500),
            evaluate="every=25",
            callbacks=[recorder],
        )
    except RunFailed:  # it has diverged, which is a result here
        if case["rate"] <= 1.0:
            raise
    times, losses = np.array(recorder.points).T
    return {"loss": float(losses[-1]), "curves": {"loss": (times, np.minimum(losses, SHOWN))}}


def table(lab: Lab) -> Table:
    return lab.measure(measure, cases(P=[8, 30], rate=[1.0, 8.0], rule=list(RULES)))


def _stable(t: Table) -> tuple[bool, str]:
    pairs = [[t.mean("loss", P=P, rate=8.0, rule=rule) for rule in RULES] for P in (8, 30)]
    in_words = "; ".join(f"P = {P}: {a:.2g} and {b:.2g}" for P, (a, b) in zip((8, 30), pairs, strict=True))
    return all(a > 1.0 > b for a, b in pairs), f"loss at the end, constant and adaptive, {in_words}"


def _costs(t: Table) -> tuple[bool, str]:
    pairs = [[t.mean("loss", P=P, rate=1.0, rule=rule) for rule in RULES] for P in (8, 30)]
    worst = max(b / a for a, b in pairs)
    return worst <= 1.1, f"loss at the end at most {100 * (worst - 1):.1f} % higher (test: 10 %)"


ITEM = Item(
    name="stale-lr",
    title="Asynchronous SGD at and above the stability limit of its rate, with and without a rule for stale gradients",
    source="Dutta, Joshi, Ghosh, Dube and Nagpurkar 2018 (talk: min{C / distance^2, eta_max})",
    minutes=0.5,
    table=table,
    claims=(
        Criterion(
            "the rule keeps a rate stable that diverges with stale gradients (8 times the limit)", "stable", _stable
        ),
        Criterion("it costs nothing at a rate that is small enough", "same loss", _costs),
    ),
    panels=tuple(
        Curves(
            curve="loss",
            x="virtual seconds",
            y="loss (cut off at 1000)",
            title=f"{P} workers",
            log="y",
            of={"P": P},
            label=lambda case: f"{case['rate']:g} x limit, {case['rule']}",
        )
        for P in (8, 30)
    ),
    columns=("P", "rate", "rule", "loss"),
    differs="least squares on drawn data, whose largest curvature is known; the limit is that of a constant staleness",
)
