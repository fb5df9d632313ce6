"""ErasureHead's expected times of an iteration: printed, corrected and simulated."""

import numpy as np

from anyk import code
from anyk.delays import ShiftedExponential
from anyk.gallery.item import Criterion, Item
from anyk.gallery.lab import Found, Lab
from anyk.gallery.pictures import Lines
from anyk.gallery.table import Case, Table
from anyk.planning.erasurehead import seconds_bound, step_seconds

N, RATE = 30, 1.0 / 3.0


def measure(lab: Lab, case: Case, seed: int) -> Found:
    c, replies = case["load"], case["replies"]
    law = ShiftedExponential(shift=1.0 / N, mean=1.0 / (RATE * N))  # of one partition
    times = c * np.stack([law.draws(seed, i, 0, lab.size(40_000, 4_000)) for i in range(N)], axis=1)
    done = code(f"frc:load={c}", workers=N).finish_times(times)
    if replies:
        done = np.minimum(done, np.sort(times, axis=1)[:, replies - 1])
    found = {"simulated": float(done.mean()), "corrected": step_seconds(N, c, replies or None, rate=RATE)}
    found["printed"] = step_seconds(N, c, replies or None, rate=RATE, printed=True)
    return found


def table(lab: Lab) -> Table:
    exact = [{"scheme": "exact", "load": c, "replies": 0} for c in (1, 2, 3, 5, 6, 10)]
    return lab.measure(measure, [*exact, *({"scheme": "AGC", "load": c, "replies": 11} for c in (1, 2, 3, 5))])


def _off(t: Table, name: str) -> tuple[float, float]:
    """By how much formulas are off for the exact code, least and largest over loads above 1."""
    errors = [row.mean(name) / row.mean("simulated") - 1.0 for row in t.where(scheme="exact") if row.case["load"] > 1]
    return min(errors), max(errors)


def _uncoded(t: Table) -> tuple[bool, str]:
    row = t.row(scheme="exact", load=1)
    printed, found = row.mean("printed"), row.mean("simulated")
    return abs(printed / found - 1.0) < 0.01, f"{printed:.4f}, simulated {found:.4f}"


def _printed(t: Table) -> tuple[bool, str]:
    low, high = _off(t, "printed")
    return max(-low, high) < 0.01, f"off by {100 * low:.0f} to {100 * high:.0f} %"


def _corrected(t: Table) -> tuple[bool, str]:
    worst = max(map(abs, _off(t, "corrected")))
    return worst < 0.01, f"off by {100 * worst:.1f} % at worst"


def _approximate(t: Table) -> tuple[bool, str]:
    row = t.row(scheme="AGC", load=3)
    kept = all(row.mean("simulated") <= 1.005 * row.mean("printed") for row in t.where(scheme="AGC"))
    return kept, f"load 3: bound {row.mean('printed'):.4f}, simulated {row.mean('simulated'):.4f}"


def _theorem_3(t: Table) -> tuple[bool, str]:
    exact, printed = step_seconds(N, 3, rate=RATE), (3 * np.log(N / 3) + 3 + 1) / N
    corrected = seconds_bound("exact", 0.5, 1.0, 2.0, 1.0, N, 3)  # one step
    return bool(exact <= printed), f"exact {exact:.4f} s an iteration, bound {printed:.4f} (with 2c: {corrected:.4f})"


ITEM = Item(
    name="erasurehead-theory",
    title="Expected seconds of an iteration against the load, 30 workers, shifted exponential per partition",
    source="Wang, Charles and Papailiopoulos 2019, Lemma 8 and Theorem 3",
    minutes=0.2,
    table=table,
    claims=(
        Criterion("Lemma 8, uncoded: 1/n + H_n / (lambda n)", "exact", _uncoded),
        Criterion("Lemma 8, exact codes, printed: c/n + (H_n - H_c) / (lambda n)", "exact", _printed),
        Criterion("Lemma 8, exact codes, with H_(n/c) in place of H_n - H_c", "(corrected here)", _corrected),
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
    differs="nothing; formulas are compared with draws of the paper's own time model",
)
