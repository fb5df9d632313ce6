"""Fleets: what was measured of one, what its slow workers cost, and which strategy to run on it."""

from anyk.fleet.auto.auto_training import Auto, resume_auto, train_auto
from anyk.fleet.auto.parts import Part
from anyk.fleet.explanation.explaining import explain
from anyk.fleet.explanation.sentences import Explanation, WorkerCost
from anyk.fleet.plans.check import Checked, Figures, check
from anyk.fleet.plans.judging import Choice, pareto
from anyk.fleet.plans.plan import Advice, Plan, plan
from anyk.fleet.plans.sequential_grid import Candidate, TraceGrid, fit_slope, sequential_candidates
from anyk.fleet.records import (
    PARTS,
    Reading,
    Record,
    Recorder,
    RecordSource,
    ddp,
    joined,
    read,
    read_all,
    record_sources,
)
from anyk.fleet.simulation import Measured, computed_load, pace, simulate, simulated_pace
from anyk.fleet.theory import erasurehead
from anyk.fleet.theory.adversaries import Threshold, adversarial_threshold, chosen_stragglers, threshold_bound
from anyk.fleet.theory.bounds import (
    async_factor,
    best_k,
    best_tau,
    cooperative_bound,
    error_after,
    error_floor,
    fresh_share,
    stability_limit,
    stationary_error,
)
from anyk.fleet.theory.code_curves import Curve, Facts, compare_codes, facts, survey
from anyk.protocol import Pace
from anyk.runs.folder.promise import Estimate
from anyk.strategies import discard_seconds

__all__ = [
    "PARTS",
    "Reading",
    "Record",
    "RecordSource",
    "Recorder",
    "ddp",
    "joined",
    "read",
    "read_all",
    "record_sources",
    "Advice",
    "Auto",
    "Part",
    "resume_auto",
    "train_auto",
    "Candidate",
    "TraceGrid",
    "fit_slope",
    "sequential_candidates",
    "Checked",
    "Choice",
    "Curve",
    "Estimate",
    "Plan",
    "Explanation",
    "WorkerCost",
    "explain",
    "Facts",
    "Figures",
    "Measured",
    "Pace",
    "Threshold",
    "adversarial_threshold",
    "async_factor",
    "best_k",
    "best_tau",
    "check",
    "chosen_stragglers",
    "computed_load",
    "compare_codes",
    "erasurehead",
    "error_after",
    "cooperative_bound",
    "discard_seconds",
    "error_floor",
    "facts",
    "fresh_share",
    "pace",
    "pareto",
    "plan",
    "simulate",
    "simulated_pace",
    "stability_limit",
    "stationary_error",
    "survey",
    "threshold_bound",
]
