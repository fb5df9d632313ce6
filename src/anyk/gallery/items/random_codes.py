"""Bernoulli and stochastic block codes: error of approximate decoding over draws of the code."""

import numpy as np

from anyk import code, keyed
from anyk.gallery.item import Criterion, Item, Order
from anyk.gallery.lab import Found, Lab
from anyk.gallery.pictures import Lines
from anyk.gallery.table import Case, Table

K = 100
CODES = {
    "FRC": "frc:load={load}", "BGC": "bgc:load={load},seed={seed}", "rBGC": "rbgc:load={load},seed={seed}",
    "SBC": "sbc:load={load},block=10,inside={inside},seed={seed}", "expander": "expander:load={load},seed={seed}",
}  # fmt: skip
SHARES = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)


def measure(lab: Lab, case: Case, seed: int) -> Found:
    """Error per partition, mean over draws of the code (and, for the code without draws, of the stragglers)."""
    lost = round(case["share"] * K)
    errors: dict[str, list[float]] = {"one-step": [], "least-squares": []}
    for draw in range(lab.size(100, 10)):
        spec = CODES[case["code"]].format(
            load=case["load"], seed=1000 * seed + draw, inside=0.8 if case["load"] == 10 else 0.4
        )
        made = code(spec, workers=K)
        here = np.sort(keyed.generator(seed, "gallery-random-codes", draw, lost).permutation(K)[lost:])
        for decoder, found in errors.items():
            found.append(made.decode(here, decoder=decoder).residual ** 2)
    return {decoder: float(np.mean(found)) for decoder, found in errors.items()}


def table(lab: Lab) -> Table:
    shares = (0.1, 0.3, 0.6) if lab.quick else SHARES
    return lab.measure(
        measure, [{"code": c, "load": load, "share": share} for load in (5, 10) for c in CODES for share in shares]
    )


def _formula(t: Table) -> tuple[bool, str]:
    """BGC, one-step: (m - load) / (replies load) per partition."""
    pairs = [(row.mean("one-step"), (K - row.case["load"]) / (K * (1 - row.case["share"]) * row.case["load"]))
             for row in t.where(code="BGC")]  # fmt: skip
    worst = max(abs(found / known - 1.0) for found, known in pairs)
    known = (K - 10) / (70 * 10)
    return (
        worst < 0.1,
        f"{t.mean('one-step', code='BGC', load=10, share=0.3):.4f} for {known:.4f} at 30 %; off by {100 * worst:.0f} %",
    )


ITEM = Item(
    name="random-codes",
    title="Error per partition against the share of stragglers, 100 workers, over draws of the code",
    source="Charles, Papailiopoulos and Ellenberg 2017 (BGC); Charles and Papailiopoulos 2018 (SBC)",
    minutes=3.0,
    table=table,
    claims=(
        Criterion("one-step error of a Bernoulli code: (k - d) / (r d)", "formula", _formula),
        Order(
            "optimal decoding at 30 % lost, load 10",
            ("BGC", "SBC"),
            lambda t: [t.mean("least-squares", code=c, load=10, share=0.3) for c in ("BGC", "SBC")],
        ),
        Order(
            "one-step decoding at 30 % lost, load 10",
            ("BGC", "SBC", "FRC"),
            lambda t: [t.mean("one-step", code=c, load=10, share=0.3) for c in ("BGC", "SBC", "FRC")],
        ),
    ),
    panels=tuple(
        Lines(
            "share",
            (decoder,),
            "share of stragglers",
            "error per partition",
            f"{decoder} decoding, load 10",
            by="code",
            log="y",
            of={"load": 10},
        )
        for decoder in ("one-step", "least-squares")
    ),
    columns=("code", "load", "share", "one-step", "least-squares"),
    differs="random stragglers only; the papers print figures, no numbers",
)
