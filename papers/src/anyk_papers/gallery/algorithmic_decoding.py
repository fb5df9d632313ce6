"""Algorithmic decoding: error against iterations, from above to the optimal error."""

from itertools import pairwise

import numpy as np

from anyk import code
from anyk.base import keyed_generator
from anyk.codes import Algorithmic
from anyk_papers.gallery.bibd_adversarial import decoded_error
from anyk_papers.gallery.random_codes import CODES, K
from anyk_papers.item import Criterion, Item
from anyk_papers.item_table import Case, Table, cases
from anyk_papers.lab import Lab, Results
from anyk_papers.pictures import Lines

STEPS = (1, 2, 5, 10, 20, 50, 100, 200, 500)
LOST = 30


def measure(lab: Lab, case: Case, seed: int) -> Results:
    """Measure errors per partition, mean over draws of code and stragglers; ``optimal`` is least squares."""
    errors, optimal = [], []
    for draw in range(lab.size(20, 5)):
        spec = CODES[case["code"]].format(load=10, seed=1000 * seed + draw, inside=0.8)
        random_code = code(spec, workers=K)
        lost = keyed_generator(seed, "gallery-algorithmic", draw).permutation(K)[:LOST]
        errors.append(decoded_error(random_code, lost, Algorithmic(iterations=case["iterations"])))
        optimal.append(decoded_error(random_code, lost, "least-squares"))
    return {
        "error": float(np.mean(errors)),
        "optimal": float(np.mean(optimal)),
        "below": float(np.max(np.subtract(optimal, errors))),
    }


def table(lab: Lab) -> Table:
    return lab.measure(measure, cases(code=["FRC", "BGC", "SBC", "expander"], iterations=list(STEPS)))


def _falls(t: Table) -> tuple[bool, str]:
    lines = {row.case["code"]: [one.mean("error") for one in t.where(code=row.case["code"])] for row in t}
    falls = all(b <= a + 1e-12 for errors in lines.values() for a, b in pairwise(errors))
    in_words = "; ".join(f"{name} {errors[0]:.3f} to {errors[-1]:.4f}" for name, errors in lines.items())
    return falls and all(e[-1] < 0.5 * e[0] for e in lines.values()), f"{in_words} (test: never rises, halves)"


def _never_below(t: Table) -> tuple[bool, str]:
    worst = max(row.spread("below")[1] for row in t)
    return worst < 1e-9, f"below by at most {max(worst, 0.0):.0e}"


def _tends(t: Table) -> tuple[bool, str]:
    last = [row for row in t if row.case["iterations"] == STEPS[-1]]
    excess = {row.case["code"]: row.mean("error") - row.mean("optimal") for row in last}
    first = {name: t.mean("error", code=name, iterations=1) for name in excess}
    shares = {name: excess[name] / (first[name] - t.mean("optimal", code=name, iterations=1)) for name in excess}
    share, name = max((share, name) for name, share in shares.items())
    return share < 0.02, f"{100 * share:.2g} % of the first excess is left, for {name} (test: below 2 %)"


ITEM = Item(
    name="algorithmic-decoding",
    title=f"Error per partition of algorithmic decoding against its iterations, {K} workers, load 10, {LOST} lost",
    source="Charles, Papailiopoulos and Ellenberg 2017, algorithmic decoding",
    minutes=0.5,
    table=table,
    claims=(
        Criterion("the error falls with each iteration", "decreasing", _falls),
        Criterion("it is never below that of optimal decoding", "upper bound", _never_below),
        Criterion("it tends to that of optimal decoding", "limit", _tends),
    ),
    panels=(
        Lines(
            over="iterations",
            numbers=("error", "optimal"),
            x="iterations",
            y="error per partition",
            title=f"{LOST} of {K} lost at random",
            by="code",
            log="x",
        ),
    ),
    columns=("code", "iterations", "error", "optimal"),
    differs="the paper's figures could not be read; the step is 1 / (|B|_1 |B|_inf), which needs no eigenvalue",
)
