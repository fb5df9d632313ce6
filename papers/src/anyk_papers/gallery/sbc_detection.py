"""Stochastic block codes: the harm of an adversary that sees overlaps only, from hidden blocks to plain ones."""

import numpy as np

from anyk import code
from anyk.codes import StochasticBlockCode
from anyk.fleet import chosen_stragglers
from anyk_papers.gallery.random_codes import attack
from anyk_papers.item import Criterion, Item
from anyk_papers.item_table import Case, Table, cases
from anyk_papers.lab import Lab, Results
from anyk_papers.pictures import Lines

N, BLOCK, LOAD = 60, 10, 5
KNOWLEDGE = ("code", "overlaps", "nothing")
FLAT = 0.084  # the chance at which blocks are hardly denser than the rest (LOAD / N)


def detectable_from() -> float:
    """Return the chance inside blocks from which they can be detected in large graphs (Kesten and Stigum's bound).

    With chances p inside and q outside, the blocks' singular value ``BLOCK (p - q)`` exceeds that of the noise,
    ``sqrt(LOAD)``; a worker holds LOAD partitions on average, whatever p is.
    """
    outside = N - BLOCK
    return float((LOAD**0.5 / BLOCK + LOAD / outside) / (1.0 + BLOCK / outside))


def measure(lab: Lab, case: Case, seed: int) -> Results:
    """Lose as many workers as one block contains. ``in one block``: the largest share of these from one block."""
    block_code = code(f"sbc:load={LOAD},block={BLOCK},inside={case['inside']},seed={seed}", workers=N)
    assert isinstance(block_code, StochasticBlockCode)
    lost = set(chosen_stragglers(block_code, BLOCK, knows=case["knows"], seed=seed)[0])
    together = max(len(lost.intersection(workers)) for workers, _ in block_code.communities)
    return {"error": attack(block_code, BLOCK, case["knows"]), "in one block": together / BLOCK}


def table(lab: Lab) -> Table:
    chances = (FLAT, 0.25, 0.5) if lab.quick else (FLAT, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5)
    return lab.measure(measure, cases(inside=chances, knows=KNOWLEDGE))


def _ends(t: Table) -> tuple[float, float]:
    chances = [row.case["inside"] for row in t]
    return min(chances), max(chances)


def _hard_to_detect(t: Table) -> tuple[bool, str]:
    flat, _ = _ends(t)
    share = t.mean("in one block", inside=flat, knows="overlaps")
    return share < 0.6, f"{100 * share:.0f} % of those chosen are of one block (test: below 60 %)"


def _easy_to_detect(t: Table) -> tuple[bool, str]:
    _, plain = _ends(t)
    share, error = (t.mean(name, inside=plain, knows="overlaps") for name in ("in one block", "error"))
    with_code = t.mean("error", inside=plain, knows="code")
    return (
        share > 0.9 and error > 0.9 * with_code,
        f"{100 * share:.0f} % of one block, error {error:.3f} of {with_code:.3f} with the code (test: above 90 % each)",
    )


def _as_hard_as_detection(t: Table) -> tuple[bool, str]:
    rows = list(t.where(knows="overlaps"))
    ratios = [row.mean("error") / t.mean("error", inside=row.case["inside"], knows="nothing") for row in rows]
    slope = float(np.corrcoef([row.case["inside"] for row in rows], ratios)[0, 1])
    in_words = f"{ratios[0]:.1f} to {ratios[-1]:.1f} times the error of random stragglers"
    return slope > 0.7 and ratios[-1] > 1.5 * ratios[0], f"{in_words}, correlation {slope:.2f} (test: 1.5 times, 0.7)"


ITEM = Item(
    name="sbc-detection",
    title=f"Error per partition when {BLOCK} of {N} workers are chosen, against how dense the blocks of an SBC are",
    source="Charles and Papailiopoulos 2018, abstract: adversaries must detect communities",
    minutes=0.5,
    table=table,
    claims=(
        Criterion("blocks no denser than the rest are not found", "hard to detect", _hard_to_detect),
        Criterion(
            "dense blocks are found, and then knowing more of the code adds little", "easy to detect", _easy_to_detect
        ),
        Criterion(
            "the harder blocks are to detect, the less overlaps help", "as hard as detection", _as_hard_as_detection
        ),
    ),
    panels=(
        Lines(
            over="inside",
            numbers=("error",),
            x="chance of a partition of the own block",
            y="error per partition",
            title="the adversary knows (code: at least)",
            by="knows",
            marks=((detectable_from(), "detectable from here (large graphs)"),),
        ),
        Lines(
            over="inside",
            numbers=("in one block",),
            x="chance of a partition of the own block",
            y="share of those chosen",
            title="chosen from one block",
            by="knows",
            marks=((detectable_from(), "detectable from here (large graphs)"),),
        ),
    ),
    columns=("inside", "knows", "error", "in one block"),
    differs="the paper proves this for large graphs; here one greedy rule looks for communities, better ones may find "
    "more; who knows the code searches, a lower bound; the dashed line is Kesten and Stigum's bound for large graphs",
)
