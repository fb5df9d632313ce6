"""Choosing the parameters of sequential codes from a probe: seconds against load over the whole grid."""

from typing import Any

import numpy as np

from anyk.fleet import fit_slope, sequential_candidates, simulate
from anyk.strategies import strategy
from anyk_papers.gallery.sgc_table import LOADS, load_of, trace
from anyk_papers.item import Criterion, Item
from anyk_papers.item_table import Case, Table, cases
from anyk_papers.lab import Lab, Results
from anyk_papers.pictures import Bars

PROBES = (10, 20)
KINDS = {
    "uncoded": "no coding",
    "gc": "GC",
    "sr-sgc": "SR-SGC",
    "m-sgc": "M-SGC",
    "frc": "FRC until decodable",
}


def measure(lab: Lab, case: Case, seed: int) -> Results:
    measured = [trace(lab, load) for load in LOADS]
    slope = (
        2.2013 if case["slope"] == "the authors'" else fit_slope([(t.load_measured or 0.0, t.times) for t in measured])
    )
    load, jobs = measured[0].load_measured or 0.0, case["jobs"]
    candidates = sequential_candidates(measured[0].times, models=4, load=load, slope=slope, jobs=jobs, published=True)
    best = next(candidate for candidate in candidates if KINDS.get(candidate.spec.partition(":")[0]) == case["kind"])
    # the strategy itself on the same rounds, with the load that it really has
    spec = best.spec if best.spec == "uncoded" or best.spec.startswith("frc") else best.spec + ",models=4"
    built: Any = strategy(spec, workers=measured[0].times.shape[1])
    own_load = load_of(built)
    durations, _ = simulate(built, np.maximum(1e-6, measured[0].times + (own_load - load) * slope), jobs=jobs)
    return {"planned": best.seconds, "seconds": float(np.sum(durations)), "load": own_load}


def table(lab: Lab) -> Table:
    return lab.measure(
        measure, cases(slope=["the authors'", "fitted"], jobs=list(PROBES), kind=list(KINDS.values())), seeds=1
    )


def _ahead(t: Table) -> tuple[bool, str]:
    sentences, ahead = [], True
    for jobs in PROBES:
        seconds = {kind: t.mean("seconds", slope="the authors'", jobs=jobs, kind=kind) for kind in KINDS.values()}
        ahead &= all(seconds[kind] < seconds["no coding"] for kind in ("GC", "SR-SGC", "M-SGC"))
        sentences.append(f"J = {jobs}: " + ", ".join(f"{kind} {value:.4g}" for kind, value in seconds.items()))
    return ahead, "; ".join(sentences)


def _unlisted(t: Table) -> tuple[bool, str]:
    seconds = {kind: t.mean("seconds", slope="the authors'", jobs=20, kind=kind) for kind in KINDS.values()}
    plain = seconds.pop("FRC until decodable")
    return min(seconds.values()) < plain, f"best of the paper's {min(seconds.values()):.4g} s, FRC {plain:.4g} s"


def _replayed(t: Table) -> tuple[bool, str]:
    worst = max(abs(row.mean("planned") / row.mean("seconds") - 1.0) for row in t)
    return worst < 1e-6, f"{len(t.rows)} cases, off by {worst:.0e} at most (test: 1e-6)"


def _low(t: Table) -> tuple[bool, str]:
    loads = [t.mean("load", slope="the authors'", jobs=20, kind=kind) for kind in ("M-SGC", "SR-SGC", "GC")]
    return loads[0] < loads[1] < loads[2], ", ".join(f"{load:.4f}" for load in loads)


ITEM = Item(
    name="sgc-params",
    title="Best parameters of each kind of code for a probe of 10 and 20 jobs, 256 workers of a measured trace",
    source="Krishnan, Ebrahimi and Khisti 2023, parameter selection; the authors' results",
    minutes=0.3,
    clock="none",
    table=table,
    claims=(
        Criterion(
            "the best GC, SR-SGC and M-SGC are sooner than no coding",
            "J = 10: none 14.67, GC 12.69, SR-SGC 12.36, M-SGC 12.99",
            _ahead,
        ),
        Criterion(
            "no code is sooner (the paper leaves out FRC that ends when decodable)", "the paper's first", _unlisted
        ),
        Criterion("the time of the choice is that of the strategy itself on the same rounds", "replay", _replayed),
        Criterion("loads grow from M-SGC over SR-SGC to GC", "M-SGC < SR-SGC < GC", _low),
    ),
    panels=tuple(
        Bars(
            "seconds",
            f"seconds of {jobs} jobs",
            f"J = {jobs}, the authors' slope",
            label=lambda case: str(case["kind"]),
            of={"slope": "the authors'", "jobs": jobs},
        )
        for jobs in PROBES
    ),
    columns=("slope", "jobs", "kind", "load", "planned", "seconds"),
    differs="the published probe has 30 rounds only, so that 40 jobs and more cannot be planned on it",
)
