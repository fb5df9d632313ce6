"""Codes for numbers of workers without a block design: products and biregular codes, bound and search."""

from anyk import code
from anyk.base import BadInput
from anyk_papers.gallery.bibd_adversarial import errors
from anyk_papers.item import Criterion, Item
from anyk_papers.item_table import Case, Table
from anyk_papers.lab import Lab, Results
from anyk_papers.pictures import Lines

CODES = {
    "Fano x Fano": (49, "kronecker:left=(bibd),right=(bibd),split=7"),
    "FRC x Fano": (21, "kronecker:left=(frc:load=3),right=(bibd),split=3"),
    "biregular, n = 30": (30, "biregular:load=6"),
    "biregular, n = 50": (50, "biregular:load=7"),
    "biregular, n = 100": (100, "biregular:load=10"),
    "design, n = 31": (31, "bibd"),
    "design, n = 57": (57, "bibd"),
    "FRC, n = 30": (30, "frc:load=6"),
    "FRC, n = 100": (100, "frc:load=10"),
}


def measure(lab: Lab, case: Case, seed: int) -> Results:
    """Measure the error per partition without random and chosen workers, and compute the code's own bound."""
    n, spec = CODES[case["code"]]
    built, lost = code(spec, workers=n), round(case["share"] * n)
    numbers = errors(built, lost, lab.size(200, 30), seed) | {"load": float(built.load)}
    bound = built.worst_error(lost)
    return numbers if bound is None else numbers | {"bound": bound[0] / built.partitions}


def table(lab: Lab) -> Table:
    shares = (0.2, 0.3) if lab.quick else (0.1, 0.2, 0.3, 0.4)
    return lab.measure(measure, [{"code": name, "share": share} for name in CODES for share in shares])


def _exist(t: Table) -> tuple[bool, str]:
    missing = []
    for n in (30, 49, 50, 100):
        try:
            code("bibd", workers=n)
        except BadInput:
            missing.append(n)
    return set(missing) >= {
        30,
        50,
        100,
    }, f"no design known for {', '.join(map(str, missing))} workers; these codes exist"


def _bounded(t: Table) -> tuple[bool, str]:
    rows = [row for row in t if "bound" in row.numbers]
    worst = max(row.mean("chosen") / max(row.mean("bound"), 1e-12) for row in rows if row.mean("bound") > 1e-9)
    return worst <= 1.0 + 1e-9, f"the search finds at most {worst:.2f} of the bound, in {len(rows)} cases"


def _quality(t: Table) -> tuple[bool, str]:
    pairs = [
        (t.mean("chosen", code="biregular, n = 30", share=s), t.mean("chosen", code="design, n = 31", share=s))
        for s in (0.2, 0.3)
    ]
    in_words = "; ".join(f"at least {a:.3f} for {b:.3f}, {a / b:.2f} times" for a, b in pairs)
    return all(a < 1.5 * b for a, b in pairs), f"{in_words} (test: below 1.5 times)"


ITEM = Item(
    name="designs-variants",
    title="Error per partition where no block design exists: products and biregular codes",
    source="Kadhe, Koyluoglu and Ramchandran 2019, 2020, abstracts: wider parameters, same quality",
    minutes=1.0,
    table=table,
    claims=(
        Criterion("they exist where designs do not", "wider parameters", _exist),
        Criterion("the bound on the error holds for whatever a search finds", "upper bound", _bounded),
        Criterion("a biregular code of 30 workers is about as good as the design of 31", "same quality", _quality),
    ),
    panels=(
        Lines(
            over="share",
            numbers=("chosen",),
            x="share of stragglers",
            y="error per partition",
            title="chosen (search: at least)",
            by="code",
        ),
        Lines(
            over="share",
            numbers=("random",),
            x="share of stragglers",
            y="error per partition",
            title="random",
            by="code",
        ),
    ),
    columns=("code", "load", "share", "random", "chosen", "exact", "bound"),
    differs="where 'exact' is 0 the error under chosen stragglers is a lower bound, found by a search",
)
