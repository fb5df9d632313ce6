"""Cooperative SGD: the bound on the mean squared gradient, and what is measured."""

import numpy as np

from anyk.gallery.item import Criterion, Item, Order
from anyk.gallery.items.coop_easgd import elastic
from anyk.gallery.lab import Found, Lab
from anyk.gallery.pictures import Bars
from anyk.gallery.table import Case, Floats, Table
from anyk.graphs import graph
from anyk.planning import cooperative_bound

M, RATE, STEPS = 8, 0.05, 1000
SCHEMES = {"synchronous": (1, 0), "PASGD, tau = 10": (10, 0), "ring": (1, 0), "elastic": (1, 1)}


def mixing(name: str) -> Floats:
    if name == "ring":
        return np.asarray(graph("ring", workers=M).at(0), dtype=np.float64)
    return elastic(2.0 / (M + 2.0)) if name == "elastic" else np.full((M, M), 1.0 / M)


def measure(lab: Lab, case: Case, seed: int) -> Found:
    """On F(w) = w^2 / 2 with gradients of variance 1, from w = sqrt(2): F_1 - F_inf = 1, L = 1."""
    tau, auxiliary = SCHEMES[case["scheme"]]
    W = mixing(case["scheme"])
    n, random = M + auxiliary, np.random.default_rng(seed)
    steps = lab.size(STEPS, 300)
    runs = lab.size(200, 40)
    X, squares = np.full((runs, n), 2.0**0.5), []
    for k in range(1, steps + 1):
        mean = X.mean(axis=1)
        squares.append(float((mean**2).mean()))
        gradients = X + random.standard_normal(X.shape)
        gradients[:, M:] = 0.0
        X = X - RATE * gradients
        if k % tau == 0:
            X = X @ W
    zeta = float(np.sort(np.abs(np.linalg.eigvalsh(W)))[-2])
    bound = cooperative_bound(1.0, RATE, 1.0, 1.0, M, steps, tau=tau, zeta=zeta, auxiliary=auxiliary)
    return {"measured": float(np.mean(squares)), "bound": bound, "zeta": zeta}


def table(lab: Lab) -> Table:
    return lab.measure(measure, [{"scheme": name} for name in SCHEMES])


def _golden(t: Table) -> tuple[bool, str]:
    rows = {"PASGD, tau = 10": (10, 0), "ring": (1, 0), "elastic": (1, 1)}
    found = [cooperative_bound(1.0, RATE, 1.0, 1.0, M, STEPS, tau=tau, zeta=t.mean("zeta", scheme=name), auxiliary=v)
             for name, (tau, v) in rows.items()]  # fmt: skip
    near = all(abs(a - b) < 5e-6 for a, b in zip(found, (0.06875, 0.05544, 0.05944), strict=True))
    return near, ", ".join(f"{value:.5f}" for value in found)


def _bounds(t: Table) -> tuple[bool, str]:
    worst = max(row.mean("measured") / row.mean("bound") for row in t)
    return worst <= 1.0, f"measured is at most {worst:.2f} of it"


ITEM = Item(
    name="coop-bound",
    title="Mean squared gradient of cooperative SGD with 8 workers: bound and measured",
    source="Wang and Joshi 2018, Theorem 1 (talk)",
    minutes=0.3,
    table=table,
    claims=(
        Criterion(
            "values of the bound (F = 1, rate 0.05, L = 1, variance 1, 1000 steps)",
            "0.06875, 0.05544, 0.05944",
            _golden,
        ),
        Criterion("the bound holds", "upper bound", _bounds),
        Order(
            "the bound orders local steps above a ring above averaging each step",
            ("PASGD, tau = 10", "ring", "synchronous"),
            lambda t: [t.mean("bound", scheme=name) for name in ("PASGD, tau = 10", "ring", "synchronous")],
        ),
    ),
    panels=(Bars("measured", "mean squared gradient", mark="bound"),),
    columns=("scheme", "zeta", "measured", "bound"),
    differs="measured on a quadratic in one dimension with the constants of the bound",
)
