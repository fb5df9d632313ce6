"""Nested codes: one code for every number of stragglers, against gradient codes for one number."""

import numpy as np

from anyk import strategy
from anyk.delays import parse
from anyk.fleet import computed_load, simulated_pace
from anyk.optimizers import GD
from anyk_papers.item import Criterion, Item, Order
from anyk_papers.item_table import Case, Table
from anyk_papers.lab import Lab, Results
from anyk_papers.pictures import Bars
from anyk_papers.quadratic import Quadratic

N = 32
LAWS = {
    "10 % are five times slower": "bimodal:fast=1,slow=5,probability=0.1,per=load",
    "shifted exponential": "shifted-exp:shift=0.5,mean=0.5,per=load",
}
CODES = {
    "s = 0": "uncoded",
    "s = 1": "frc:stragglers=1",
    "s = 3": "frc:stragglers=3",
    "s = 7": "frc:stragglers=7",
    "nested, binary": "nested",
    "nested, cyclic": "nested:kind=cyclic",
    "progress": "progress",
}


def measure(lab: Lab, case: Case, seed: int) -> Results:
    law = parse(LAWS[case["law"]] + ",by=round")
    built = strategy(CODES[case["code"]], workers=N)
    problem = Quadratic(np.random.default_rng(0).standard_normal((8 * N, 20)), np.ones(20))
    trained = lab.train(problem, CODES[case["code"]], workers=N, delays=law, seed=seed, optimizer=GD(lr=0.1), steps=20)
    return {
        "seconds": simulated_pace(built, law, updates=lab.size(2_000, 200), seed=seed).seconds,
        "computed": N * computed_load(built, law, updates=lab.size(500, 50), seed=seed),
        "loss": trained["loss"],
    }


def table(lab: Lab) -> Table:
    return lab.measure(measure, [{"law": law, "code": code} for law in LAWS for code in CODES])


def _exact(t: Table) -> tuple[bool, str]:
    uncoded_loss = t.mean("loss", law=next(iter(LAWS)), code="s = 0")
    worst = max(abs(value / uncoded_loss - 1.0) for row in t for value in row.numbers["loss"])
    return worst < 1e-9, f"losses after 20 steps differ by {worst:.0e} at most (test: 1e-9)"


def _fixed(t: Table, law: str) -> float:
    return min(t.mean("seconds", law=law, code=code) for code in CODES if code.startswith("s = "))


def _lower(t: Table) -> tuple[bool, str]:
    pairs = [(t.mean("seconds", law=law, code="nested, binary"), _fixed(t, law)) for law in LAWS]
    return all(a < b for a, b in pairs), "; ".join(f"{a:.3g} s, best fixed {b:.3g} s" for a, b in pairs)


ITEM = Item(
    name="nested-latency",
    title="Seconds a step of 32 workers: nested codes against codes for one number of stragglers",
    source="Nested gradient codes 2022 (arXiv 2212.08580), abstract",
    minutes=0.6,
    table=table,
    claims=(
        Criterion("every step is one by the whole gradient", "exact", _exact),
        Criterion(
            "the binary nested code has a lower latency than FRC for any one of these numbers of stragglers",
            "lower",
            _lower,
        ),
        Order(
            "with 10 % slow the fixed codes have a best number of stragglers in the middle",
            ("s = 7", "s = 0", "s = 1"),
            lambda t: [
                t.mean("seconds", law="10 % are five times slower", code=code) for code in ("s = 7", "s = 0", "s = 1")
            ],
        ),
    ),
    panels=tuple(
        Bars("seconds", "seconds a step", law, label=lambda case: str(case["code"]), of={"law": law}) for law in LAWS
    ),
    columns=("law", "code", "computed", "seconds"),
    differs="the paper's full text was not at hand: the code is built from its abstract, the delay laws are ours",
)
