"""ErasureHead's expected times of an iteration: printed, corrected and simulated."""

from collections.abc import Callable

from anyk import strategy
from anyk.delays import ShiftedExponential
from anyk.gallery.item import Criterion, Item
from anyk.gallery.lab import Found, Lab
from anyk.gallery.pictures import Lines
from anyk.gallery.table import Case, Row, Table
from anyk.planning import simulated_pace
from anyk.planning.erasurehead import seconds_bound, step_seconds

N, RATE = 30, 1.0 / 3.0


def measure(lab: Lab, case: Case, seed: int) -> Found:
    """Seconds of a step of the strategies on the virtual clock, and both formulas."""
    c, replies = case["load"], case["replies"]
    law = ShiftedExponential(shift=1.0 / N, mean=1.0 / (RATE * N), per="load")
    spec = f"agc:load={c},wait={replies}" if replies else f"frc:load={c}"
    measured = simulated_pace(strategy(spec, workers=N), law, updates=lab.size(2_000, 400), seed=seed)
    found = {"simulated": measured.seconds, "error": measured.error}
    found["corrected"] = step_seconds(N, c, replies or None, rate=RATE)
    found["printed"] = step_seconds(N, c, replies or None, rate=RATE, printed=True)
    return found


def table(lab: Lab) -> Table:
    exact = [{"scheme": "exact", "load": c, "replies": 0} for c in (1, 2, 3, 5, 6, 10)]
    return lab.measure(measure, [*exact, *({"scheme": "AGC", "load": c, "replies": 11} for c in (1, 2, 3, 5))])


def _errors(t: Table, name: str) -> list[tuple[float, float]]:
    """By how much a formula for the exact code is off, and the standard error of that, for each load above 1."""
    return [
        (row.mean(name) / row.mean("simulated") - 1.0, _error(row) / row.mean("simulated"))
        for row in t.where(scheme="exact")
        if row.case["load"] > 1
    ]


def _error(row: Row) -> float:
    """The standard error of the mean over the seeds."""
    return row.mean("error") / float(len(row.numbers["error"]) ** 0.5)


def _uncoded(t: Table) -> tuple[bool, str]:
    row = t.row(scheme="exact", load=1)
    formula, found = row.mean("corrected"), row.mean("simulated")
    return abs(formula - found) < 4.0 * _error(row), (
        f"{formula:.4f}, simulated {found:.4f} (test: 4 standard errors of {_error(row):.4f})"
    )


def _exact(name: str) -> Callable[[Table], tuple[bool, str]]:
    def here(t: Table) -> tuple[bool, str]:
        errors = _errors(t, name)
        off = [100.0 * value for value, _ in errors]
        worst = max(abs(value) / error for value, error in errors)
        return worst < 4.0, f"off by {min(off):.1f} to {max(off):.1f} %, {worst:.1f} standard errors at worst (test: 4)"

    return here


def _approximate(t: Table) -> tuple[bool, str]:
    row = t.row(scheme="AGC", load=3)
    kept = all(row.mean("simulated") <= row.mean("printed") + 4.0 * _error(row) for row in t.where(scheme="AGC"))
    return kept, f"load 3: bound {row.mean('printed'):.4f}, simulated {row.mean('simulated'):.4f}"


def _theorem_3(t: Table) -> tuple[bool, str]:
    row = t.row(scheme="exact", load=3)
    printed, corrected = (seconds_bound("exact", 0.5, 1.0, 2.0, 1.0, N, 3, printed=wrong) for wrong in (True, False))
    return row.mean("simulated") <= printed, (
        f"simulated {row.mean('simulated'):.4f} s an iteration, bound {printed:.4f} (with 2c: {corrected:.4f})"
    )


ITEM = Item(
    name="erasurehead-theory",
    title="Expected seconds of an iteration against the load, 30 workers, shifted exponential per partition",
    source="Wang, Charles and Papailiopoulos 2019, Lemma 8 and Theorem 3",
    minutes=1.5,
    table=table,
    claims=(
        Criterion("Lemma 8, uncoded: 1/n + H_n / (lambda n)", "exact", _uncoded),
        Criterion("Lemma 8, exact codes, printed: c/n + (H_n - H_c) / (lambda n)", "exact", _exact("printed")),
        Criterion("Lemma 8, exact codes, with H_(n/c) in place of H_n - H_c", "(corrected here)", _exact("corrected")),
        Criterion("Lemma 8, AGC: at most c/n + c (H_n - H_(n-r)) / (lambda n)", "upper bound", _approximate),
        Criterion("Theorem 3, exact codes, printed: (c log(n/c) + c + 1) / n", "upper bound", _theorem_3),
    ),
    panels=(
        Lines(
            "load",
            ("simulated", "corrected", "printed"),
            "load c",
            "seconds an iteration",
            "exact codes",
            of={"scheme": "exact"},
        ),
        Lines(
            "load",
            ("simulated", "printed"),
            "load c",
            "seconds an iteration",
            "AGC, 11 of 30 replies",
            of={"scheme": "AGC"},
        ),
    ),
    columns=("scheme", "load", "simulated", "corrected", "printed"),
    differs="nothing; formulas are compared with the strategies under the paper's own time model",
)
