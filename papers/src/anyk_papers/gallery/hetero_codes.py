"""Codes for workers that straggle with different chances: error and bias of the sum and of the learned model."""

import numpy as np

from anyk import codes
from anyk.base import keyed_generator
from anyk.codes import Code
from anyk_papers.item import Criterion, Item
from anyk_papers.item_table import Case, Table
from anyk_papers.lab import Lab, Results
from anyk_papers.pictures import Bars

CHANCES = (0.05,) * 4 + (0.2,) * 4 + (0.6,) * 4
N, FEATURES = len(CHANCES), 5
HETERO = f"hetero:load=3,probability={'/'.join(map(str, CHANCES))}"
SAME = "heterogeneous, least squares"  # the same placement, with weights that depend on who replies
CODES = {
    "heterogeneous": (HETERO, "own"),
    SAME: (HETERO, "least-squares"),
    "FRC": ("frc:load=3", "own"),
    "BGC": ("bgc:load=3,seed={seed}", "own"),
    "biregular": ("biregular:load=3,seed={seed}", "own"),
    "uncoded": ("uncoded", "own"),
}
LARGEST_BIAS = 0.03  # of a coefficient of an unbiased sum, in the seeds' mean


def least_fixed_error(code: Code) -> float:
    """Return the least error of unbiased fixed weights on a code's placement; inf if they do not exist.

    A partition whose holders have the odds ``(1 - p) / p`` contributes the inverse of the odds' sum.
    """
    assigned = code.encoding.toarray() != 0.0
    odds = assigned.T @ np.array([(1.0 - chance) / chance for chance in CHANCES])
    return float((1.0 / odds).sum()) if (odds > 0.0).all() else float("inf")


def measure(lab: Lab, case: Case, seed: int) -> Results:
    """Measure error and bias of the coefficients, and the excess loss of gradient descent on least squares."""
    spec, decoder = CODES[case["code"]]
    code = codes.code(spec.format(seed=seed), workers=N)
    encoding = np.asarray(code.encoding.todense())
    random = keyed_generator(seed, "gallery-hetero-codes")

    def decoded() -> np.ndarray:
        """Return the coefficients of the partitions for random replies."""
        replying = np.flatnonzero(random.random(N) >= CHANCES)
        return code.decode(replying, decoder=decoder).weights @ encoding if replying.size else np.zeros(code.partitions)

    sets, steps = lab.size(4_000, 1_000), lab.size(300, 100)
    drawn = np.array([decoded() for _ in range(sets)])
    data = keyed_generator(seed, "gallery-hetero-codes-data")
    A = data.standard_normal((code.partitions, 8, FEATURES)) + 0.3 * data.standard_normal(
        (code.partitions, 1, FEATURES)
    )
    b = A @ data.standard_normal(FEATURES) + data.standard_normal((code.partitions, 8))
    best = np.linalg.lstsq(A.reshape(-1, FEATURES), b.ravel(), rcond=None)[0]
    rate = 0.5 / np.linalg.eigvalsh(np.einsum("pij,pik->jk", A, A)).max()
    w, excesses = np.zeros(FEATURES), []
    for _ in range(steps):
        w = w - rate * np.einsum("p,pik,pi->k", decoded(), A, A @ w - b)
        excesses.append(float(((A @ w - b) ** 2).mean() - ((A @ best - b) ** 2).mean()))
    return {
        "error": float(((drawn - 1.0) ** 2).sum(axis=1).mean()),
        "bias": float(np.abs(drawn.mean(axis=0) - 1.0).max()),
        "fixed": least_fixed_error(code),
        "excess loss": float(np.mean(excesses[steps // 2 :])),
        "sets": float(sets),
    }


def table(lab: Lab) -> Table:
    return lab.measure(measure, [{"code": name} for name in CODES])


def _closed(t: Table) -> tuple[bool, str]:
    formula = codes.code(HETERO, workers=N).expected_error(N)
    error = t.mean("error", code="heterogeneous")
    in_words = f"{error:.3f}, closed form {formula:.3f} (test: within 5 %)"
    return formula is not None and abs(error / formula - 1.0) < 0.05, in_words


def _unbiased(t: Table) -> tuple[bool, str]:
    # the standard error of a coefficient is about sqrt(0.04 / sets); the largest of all is twice that
    bias, sets = t.mean("bias", code="heterogeneous"), t.mean("sets", code="heterogeneous")
    in_words = f"{bias:.3f} (largest of {N} over {sets:.0f} sets of replies; test: below {LARGEST_BIAS})"
    return bias < LARGEST_BIAS, f"{in_words}, FRC {t.mean('bias', code='FRC'):.3f}"


def _least_fixed(t: Table) -> tuple[bool, str]:
    error = t.mean("error", code="heterogeneous")
    others = {name: t.row(code=name).spread("fixed")[0] for name in ("FRC", "biregular", "uncoded")}
    in_words = ", ".join(f"{name} {value:.3f}" for name, value in others.items())
    best = min(others.values())
    unbiased = t.mean("bias", code="heterogeneous") < LARGEST_BIAS
    return unbiased and error < best, f"{error:.3f}; best unbiased fixed weights on the placement of {in_words} (least)"


def _least_squares(t: Table) -> tuple[bool, str]:
    heterogeneous, same = (t.mean("error", code=name) for name in ("heterogeneous", SAME))
    bias = t.mean("bias", code=SAME)
    return same < heterogeneous, f"{same:.3f} (largest bias {bias:.3f}) for {heterogeneous:.3f}"


def _nearest(t: Table) -> tuple[bool, str]:
    values = {name: t.mean("excess loss", code=name) for name in CODES}
    ordered = sorted(values, key=lambda name: values[name])
    return ordered[0] == "heterogeneous", ", ".join(f"{name} {values[name]:.3g}" for name in ordered)


ITEM = Item(
    name="hetero-codes",
    title="Workers that straggle with chances 5, 20 and 60 %: error, bias and what gradient descent ends at",
    source="Heterogeneous gradient coding, abstract: closed form, unbiased, faster convergence",
    minutes=1.5,
    seeds=5,
    table=table,
    claims=(
        Criterion("the coefficients have a closed form for their error", "closed form", _closed),
        Criterion("the sum is unbiased", "unbiased", _unbiased),
        Criterion("least error of unbiased fixed weights at the same load", "least", _least_fixed),
        Criterion("least squares on the same placement has less error (found here)", "(not compared)", _least_squares),
        Criterion("gradient descent ends nearest to the optimum", "faster convergence", _nearest),
    ),
    panels=(
        Bars("error", "squared error of the coefficients", "error, and that of the best fixed weights", mark="fixed"),
        Bars("bias", "largest bias of a coefficient", "bias"),
        Bars("excess loss", "excess loss", "where gradient descent ends", log="y"),
    ),
    columns=("code", "error", "fixed", "bias", "excess loss"),
    differs="least squares on drawn data; plain gradient descent without rescaling; 'fixed' is the least error of "
    "unbiased fixed weights on a code's placement, which is not compared for BGC: its workers may hold more than 3",
)
