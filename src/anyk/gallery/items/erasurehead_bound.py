"""ErasureHead's convergence theorems against gradient descent on least squares with known constants."""

from typing import Any

import numpy as np

from anyk.gallery.item import Criterion, Item
from anyk.gallery.lab import Found, Lab
from anyk.gallery.pictures import Lines
from anyk.gallery.table import Case, Table, cases
from anyk.planning.erasurehead import excess_bound, missing

N, C, R = 12, 3, 5


def measure(lab: Lab, case: Case, seed: int) -> Found:
    """Mean excess loss over runs, and both theorems with the largest gradient that was met."""
    random = np.random.default_rng(seed)
    A, true = random.standard_normal((N, 4, 3)), random.standard_normal(3)
    b = A @ true + 0.1 * random.standard_normal((N, 4))
    hessian = np.einsum("ijk,ijl->kl", A, A) / N
    beta, mu = np.linalg.eigvalsh(hessian)[[-1, 0]]
    best = np.linalg.lstsq(A.reshape(-1, 3), b.ravel(), rcond=None)[0]

    def loss(w: Any) -> Any:
        return np.asarray(0.5 * ((np.einsum("ijk,...k->...ij", A, w) - b) ** 2).sum(axis=(-1, -2)) / N)

    p = missing(N, C, R).one
    size = (1.0 if case["step"] == "full" else 1.0 - p) / beta
    w, sigma = np.zeros((lab.size(200, 50), 3)), 0.0
    for _ in range(case["steps"]):
        parts = np.einsum("ijk,tij->tik", A, np.einsum("ijk,tk->tij", A, w) - b)
        sigma = max(sigma, float(np.linalg.norm(parts, axis=2).max()))
        heard = np.argsort(random.random((len(w), N)), axis=1) < R
        groups = heard.reshape(-1, N // C, C).any(axis=2).repeat(C, axis=1)
        w = w - size * np.einsum("ti,tik->tk", groups, parts) / (N * (1.0 - p))
    first = float(loss(np.zeros(3)) - loss(best))
    arguments = (case["steps"], first, float(beta), float(mu), sigma, N, C, R)
    return {
        "measured": float((loss(w) - loss(best)).mean()),
        "Theorem 1": excess_bound(*arguments, step=case["step"]),
        "Theorem 2": excess_bound(*arguments, step=case["step"], simple=True),
    }


def table(lab: Lab) -> Table:
    return lab.measure(measure, cases(step=["full", "scaled"], steps=[1, 2, 5, 10, 20, 50, 100]))


def _holds(name: str) -> Criterion:
    def here(t: Table) -> tuple[bool, str]:
        worst = max(row.mean("measured") / row.mean(name) for row in t)
        return worst <= 1.0, f"measured is at most {worst:.2g} of it"

    return Criterion(f"{name} bounds the excess loss", "upper bound", here)


ITEM = Item(
    name="erasurehead-bound",
    title="Excess loss of approximate gradient descent and its bounds, 12 workers, load 3, 5 replies",
    source="Wang, Charles and Papailiopoulos 2019, Theorems 1 and 2",
    minutes=0.2,
    table=table,
    claims=(_holds("Theorem 1"), _holds("Theorem 2")),
    panels=tuple(
        Lines(
            "steps",
            ("measured", "Theorem 1", "Theorem 2"),
            "steps",
            "excess loss",
            f"step size: {step}",
            log="xy",
            of={"step": step},
        )
        for step in ("full", "scaled")
    ),
    columns=("step", "steps", "measured", "Theorem 1", "Theorem 2"),
    differs="least squares, whose constants are known; the bound on gradients is the largest one met",
)
