"""Elastic averaging: how fast models mix against alpha, and where the best alpha is."""

import numpy as np

from anyk.gallery.item import Criterion, Item
from anyk.gallery.lab import Found, Lab
from anyk.gallery.pictures import Lines
from anyk.gallery.table import Case, Floats, Table
from anyk.optimizers import GD

M = 8
BEST, TALK = 2.0 / (M + 2.0), M / (M + 2.0)


def elastic(alpha: float) -> Floats:
    """The mixing matrix of M workers and a centre."""
    W = np.eye(M + 1) * (1.0 - alpha)
    W[M, :M] = W[:M, M] = alpha
    W[M, M] = 1.0 - M * alpha
    return W


def measure(lab: Lab, case: Case, seed: int) -> Found:
    alpha = case["alpha"]
    W = elastic(alpha)
    found: Found = {"zeta": float(np.sort(np.abs(np.linalg.eigvalsh(W)))[-2]) if alpha < 2 / (M + 1)
                    else float(np.abs(np.linalg.eigvalsh(W)).max()),
                    "formula": max(abs(1.0 - alpha), abs(1.0 - (M + 1.0) * alpha))}  # fmt: skip
    if case["train"]:
        made = lab.train(
            lab.problem("digits"), f"easgd:alpha={alpha:g},batch=2", workers=M, delays="exp:mean=0.5", seed=seed,
            optimizer=GD(lr=0.3), steps=lab.size(400, 60), evaluate="every=20",
        )  # fmt: skip
        found |= {"loss": made["loss"], "curves": made["curves"]}
    return found


def table(lab: Lab) -> Table:
    alphas = sorted({round(a, 4) for a in np.linspace(0.01, 0.9, 30)} | {BEST, TALK, 0.05, 0.1, 0.21})
    trained = (0.05, 0.1, BEST, 0.21)
    return lab.measure(measure, [{"alpha": alpha, "train": alpha in trained} for alpha in alphas])


def _best(t: Table) -> tuple[bool, str]:
    least = min(t, key=lambda row: row.mean("zeta"))
    return abs(
        least.case["alpha"] - BEST
    ) < 0.02, f"least zeta {least.mean('zeta'):.3f} at alpha = {least.case['alpha']:.3g}"


def _talk(t: Table) -> tuple[bool, str]:
    zeta = t.mean("zeta", alpha=TALK)
    return zeta < 1.0, f"zeta {zeta:.3g} at alpha = {TALK:g}: models drift apart"


ITEM = Item(
    name="coop-easgd",
    title="Elastic averaging of 8 workers: mixing rate zeta against alpha",
    source="Wang and Joshi 2018 (talk: alpha = m / (m + 2)); Zhang, Choromanska and LeCun 2015",
    minutes=0.5,
    table=table,
    claims=(
        Criterion(
            "zeta is the larger of |1 - alpha| and |1 - (m + 1) alpha|",
            "formula",
            lambda t: (all(abs(row.mean("zeta") - row.mean("formula")) < 1e-9 for row in t), "equal at every alpha"),
        ),
        Criterion("zeta is least at alpha = 2 / (m + 2)", f"alpha = {BEST:g}, zeta = 0.8", _best),
        Criterion("alpha = m / (m + 2), as the talk prints it, averages", f"alpha = {TALK:g}", _talk),
    ),
    panels=(
        Lines("alpha", ("zeta", "formula"), "alpha", "zeta", "mixing", marks=((BEST, "2/(m+2)"), (TALK, "m/(m+2)"))),
        Lines("alpha", ("loss",), "alpha", "loss of the centre", "digits, mini-batches of 2", of={"train": True}),
    ),
    columns=("alpha", "zeta", "formula", "loss"),
    differs="the loss is the centre's, which averages more the smaller alpha is",
)
