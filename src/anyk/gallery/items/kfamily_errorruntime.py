"""Error against time of K-batch-async SGD for several K, and with a K that grows."""

import numpy as np

from anyk.gallery.item import Criterion, Item, Order
from anyk.gallery.lab import Found, Lab
from anyk.gallery.pictures import Bars, Curves
from anyk.gallery.table import Case, Table, above_best
from anyk.optimizers import GD
from anyk.training import Run
from anyk.training.rows import decisions

P, SECONDS, BATCH = 8, 200.0, 2
KS = (1, 2, 4, 8)
TIMES = np.linspace(SECONDS / 60, SECONDS, 60)


def stale(run: Run) -> dict[str, float]:
    """Of all replies used, how many were so many versions old (none, one, …, 20 or more)."""
    staleness = np.array([used.step - 1 - used.version for used in decisions(run.log)])
    return {"mean staleness": float(staleness.mean()), "fresh": float((staleness == 0).mean())}


def measure(lab: Lab, case: Case, seed: int) -> Found:
    seconds = SECONDS if not lab.quick else SECONDS / 4
    spec = f"k-batch-async:k={case['K']},batch={BATCH}"
    if case["K"] == "grows":
        spec = f"adasync:base=k-batch-async,k=1,interval={seconds / 20:g},batch={BATCH}"
    return lab.train(
        lab.problem("digits"), spec, workers=P, delays="exp:mean=0.5", seed=seed, optimizer=GD(lr=0.2),
        seconds=seconds, evaluate="every=3", further=stale,
    )  # fmt: skip


def table(lab: Lab) -> Table:
    return lab.measure(measure, [{"K": k} for k in (*KS, "grows")])


def _envelope(t: Table) -> tuple[bool, str]:
    above = above_best(t.row(K="grows"), [t.row(K=k) for k in KS], "loss")
    return above < 0.10, f"{100 * above:+.1f} % from the best fixed K of each time, on average (test: below 10 %)"


def _label(case: Case) -> str:
    return "K grows" if case["K"] == "grows" else f"K = {case['K']}"


ITEM = Item(
    name="kfamily-errorruntime",
    title="Loss against seconds of K-batch-async SGD, 8 workers: fixed K, and a K that grows",
    source="Dutta, Joshi, Ghosh, Dube and Nagpurkar 2018; Dutta, Wang and Joshi 2021 (AdaSync)",
    minutes=4.0,
    seeds=10,
    table=table,
    claims=(
        Order(
            "early (a sixtieth of the time), a larger K is behind",
            ("K = 8", "K = 4", "K = 1"),
            lambda t: [t.row(K=k).at("loss", TIMES[0]) for k in (8, 4, 1)],
        ),
        Order(
            "K = 1 ends above where K = 4 ends: a larger K has the lower floor",
            ("K = 1", "K = 4"),
            lambda t: [t.mean("loss", K=k) for k in (1, 4)],
        ),
        Criterion("a K that grows follows the best fixed K of each time", "lower envelope", _envelope),
        Criterion(
            "mean staleness is (P - 1) / K",
            "7, 3.5, 1.75, 0.875",
            lambda t: (
                max(abs(t.mean("mean staleness", K=k) * k / (P - 1) - 1) for k in KS) < 0.03,
                ", ".join(f"{t.mean('mean staleness', K=k):.3g}" for k in KS),
            ),
        ),
    ),
    panels=(
        Curves("loss", "virtual seconds", "loss", "error against time", log="y", label=_label),
        Bars("mean staleness", "versions", "mean staleness", label=_label),
    ),
    columns=("K", "loss", "accuracy", "mean staleness", "fresh"),
    differs="handwritten digits (softmax regression) with mini-batches of 2, one learning rate, 0.2; the paper "
    "has neural networks on CIFAR-10, and its figures print no numbers",
)
