"""Block designs: the error depends on how many straggle, not on who."""

from anyk import code
from anyk.gallery.item import Criterion, Item, Order
from anyk.gallery.lab import Found, Lab
from anyk.gallery.pictures import Lines
from anyk.gallery.table import Case, Table
from anyk.planning import adversarial_threshold, facts

N = 31
CODES = {
    "block design": "bibd", "biregular": "biregular:load=6", "FRC": "frc:stragglers=5", "BGC": "bgc:load=6",
    "rBGC": "rbgc:load=6", "SBC": "sbc:load=6", "expander": "expander:load=6",
}  # fmt: skip


def measure(lab: Lab, case: Case, seed: int) -> Found:
    spec = CODES[case["code"]]
    if case["code"] not in ("block design", "FRC"):
        spec = f"{spec},seed={seed}"
    found = facts(code(spec, workers=N), stragglers=case["stragglers"], sets=lab.size(200, 30), seed=seed)
    return {"random": found.expected**2, "chosen": found.worst**2}


def threshold(lab: Lab, case: Case, seed: int) -> Found:
    """How many chosen stragglers it takes to push the error per partition so far."""
    found = adversarial_threshold(code(CODES[case["code"]], workers=N), case["error"]).stragglers
    return {"threshold": float(N if found is None else found)}


def table(lab: Lab) -> Table:
    counts = (0, 3, 5, 8, 10, 15)
    errors = lab.measure(measure, [{"code": c, "stragglers": f} for c in CODES for f in counts])
    levels = (0.1,) if lab.quick else (0.02, 0.05, 0.1, 0.2, 0.4)
    names = ("block design", "biregular", "FRC", "expander")
    limits = lab.measure(threshold, [{"code": c, "error": level} for c in names for level in levels], seeds=1)
    return Table(errors.rows + limits.rows)


def _same(t: Table) -> tuple[bool, str]:
    rows = [row for row in t.where(code="block design") if row.case.get("stragglers")]
    worst = max(abs(row.mean("chosen") - row.mean("random")) for row in rows)
    design = code("bibd", workers=N)
    known = max(
        abs(row.mean("chosen") - (design.expected_error(N - row.case["stragglers"]) or 0.0) / N) for row in rows
    )
    return (
        worst < 1e-9 and known < 1e-9,
        f"random and chosen stragglers differ by {worst:.0e}, the formula by {known:.0e}",
    )


def _harm(t: Table) -> tuple[bool, str]:
    design, repeated = (t.mean("threshold", code=name, error=0.1) for name in ("block design", "FRC"))
    return design > repeated, f"{design:.0f} for an error of 0.1, FRC {repeated:.0f}"


def _beats(f: int) -> Criterion:
    def here(t: Table) -> tuple[bool, str]:
        found = {c: t.mean("chosen", code=c, stragglers=f) for c in CODES}
        other = min((c for c in found if c != "block design"), key=lambda c: found[c])
        return found["block design"] < found[other], f"{found['block design']:.4f}, next {other} {found[other]:.4f}"

    return Criterion(f"least error under {f} chosen stragglers", "least", here)


ITEM = Item(
    name="bibd-adversarial",
    title="Error per partition under random and chosen stragglers, 31 workers, load 6",
    source="Kadhe, Koyluoglu and Ramchandran 2019, abstract",
    minutes=1.5,
    table=table,
    claims=(
        Criterion("the error depends on the number of stragglers only", "closed form", _same),
        _beats(5),
        _beats(8),
        _beats(10),
        _beats(15),
        Criterion("it takes more chosen stragglers to do harm than with repetition", "more", _harm),
        Order(
            "under 10 random stragglers the design is not the best",
            ("block design", "FRC"),
            lambda t: [t.mean("random", code=c, stragglers=10) for c in ("block design", "FRC")],
        ),
    ),
    panels=(
        Lines("stragglers", ("chosen",), "stragglers", "error per partition", "chosen to hurt (search)", by="code"),
        Lines("stragglers", ("random",), "stragglers", "error per partition", "random", by="code"),
        Lines(
            "error",
            ("threshold",),
            "error per partition",
            "chosen stragglers that it takes",
            "threshold",
            by="code",
            log="x",
        ),
    ),
    columns=("code", "stragglers", "random", "chosen", "error", "threshold"),
    differs="chosen stragglers are found by a search, a lower bound for all codes but the design",
)
