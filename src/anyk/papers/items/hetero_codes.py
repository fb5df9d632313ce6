"""Codes for workers that straggle with different chances: error and bias of the sum and of the learned model."""

from collections.abc import Callable

import numpy as np

from anyk import codes, keyed
from anyk.papers.item import Criterion, Item
from anyk.papers.item_table import Case, Table
from anyk.papers.lab import Lab, Results
from anyk.papers.pictures import Bars

CHANCES = (0.05,) * 4 + (0.2,) * 4 + (0.6,) * 4
N, FEATURES, STEPS = len(CHANCES), 5, 300
CODES = {
    "heterogeneous": f"hetero:load=3,probability={'/'.join(map(str, CHANCES))}",
    "FRC": "frc:load=3",
    "BGC": "bgc:load=3,seed={seed}",
    "biregular": "biregular:load=3,seed={seed}",
    "uncoded": "uncoded",
}


def measure(lab: Lab, case: Case, seed: int) -> Results:
    """Measure error and bias of the coefficients, and the excess loss of gradient descent on least squares."""
    code = codes.code(CODES[case["code"]].format(seed=seed), workers=N)
    random = keyed.generator(seed, "gallery-hetero-codes")
    encoding = np.asarray(code.encoding.todense())
    A = random.standard_normal((code.partitions, 8, FEATURES)) + 0.3 * random.standard_normal(
        (code.partitions, 1, FEATURES)
    )
    b = A @ random.standard_normal(FEATURES) + random.standard_normal((code.partitions, 8))
    w, errors, total = np.zeros(FEATURES), [], np.zeros(code.partitions)
    best = np.linalg.lstsq(A.reshape(-1, FEATURES), b.ravel(), rcond=None)[0]
    rate = 0.5 / np.linalg.eigvalsh(np.einsum("pij,pik->jk", A, A)).max()
    tail = []
    for step in range(lab.size(STEPS, 100)):
        here = np.flatnonzero(random.random(N) >= CHANCES)
        weights = code.decode(here).weights @ encoding if here.size else np.zeros(code.partitions)
        errors.append(float(((weights - 1.0) ** 2).sum()))
        total += weights
        w = w - rate * np.einsum("p,pik,pi->k", weights, A, A @ w - b)
        if step >= lab.size(STEPS, 100) // 2:
            tail.append(float(((A @ w - b) ** 2).mean() - ((A @ best - b) ** 2).mean()))
    bias = float(np.abs(total / len(errors) - 1.0).max())
    return {"error": float(np.mean(errors)), "bias": bias, "excess loss": float(np.mean(tail))}


def table(lab: Lab) -> Table:
    return lab.measure(measure, [{"code": name} for name in CODES])


def _unbiased(t: Table) -> tuple[bool, str]:
    # with the seeds' steps the standard error of a coefficient is about sqrt(0.5 / 3000)
    bias = t.mean("bias", code="heterogeneous")
    return (
        bias < 0.15,
        f"{bias:.3f} (largest of {N} over {STEPS} steps; test: below 0.15), FRC {t.mean('bias', code='FRC'):.3f}",
    )


def _closed(t: Table) -> tuple[bool, str]:
    formula = codes.code(CODES["heterogeneous"], workers=N).expected_error(N)
    error = t.mean("error", code="heterogeneous")
    return formula is not None and abs(error / formula - 1.0) < 0.1, f"{error:.3f}, closed form {formula:.3f}"


def _least(number: str) -> Callable[[Table], tuple[bool, str]]:
    def here(t: Table) -> tuple[bool, str]:
        values = {name: t.mean(number, code=name) for name in CODES}
        ordered = sorted(values, key=lambda name: values[name])
        return ordered[0] == "heterogeneous", ", ".join(f"{name} {values[name]:.3g}" for name in ordered)

    return here


ITEM = Item(
    name="hetero-codes",
    title="Workers that straggle with chances 5, 20 and 60 %: error, bias and what gradient descent ends at",
    source="Heterogeneous gradient coding, abstract: closed form, unbiased, faster convergence",
    minutes=0.5,
    seeds=10,
    table=table,
    claims=(
        Criterion("the coefficients have a closed form for their error", "closed form", _closed),
        Criterion("the sum is unbiased", "unbiased", _unbiased),
        Criterion("least error of all codes at the same load", "least", _least("error")),
        Criterion("gradient descent ends nearest to the optimum", "faster convergence", _least("excess loss")),
    ),
    panels=(
        Bars("error", "squared error of the coefficients", "error"),
        Bars("bias", "largest bias of a coefficient", "bias"),
        Bars("excess loss", "excess loss", "where gradient descent ends", log="y"),
    ),
    columns=("code", "error", "bias", "excess loss"),
    differs="least squares on drawn data; plain gradient descent without rescaling",
)
