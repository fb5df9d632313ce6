"""Planning: the speed and error of codes, strategies and fleets, before anything is trained."""

from anyk.planning import erasurehead
from anyk.planning.adversaries import Threshold, adversarial_threshold, chosen_stragglers, threshold_bound
from anyk.planning.advice import Advice
from anyk.planning.auto import Auto, Part, resume_auto, train_auto
from anyk.planning.bounds import (
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
from anyk.planning.codes import Curve, Facts, compare_codes, facts, survey
from anyk.planning.explaining import Explanation, WorkerCost, explain
from anyk.planning.plans import Choice, Estimate, Plan, pareto, plan
from anyk.planning.promises import Checked, Figures, check
from anyk.planning.sequential import Candidate, TraceGrid, fit_slope, sequential_candidates
from anyk.planning.simulation import Measured, computed_load, simulate, simulated_pace
from anyk.planning.times import pace
from anyk.protocol import Pace
from anyk.strategies import discard_seconds

__all__ = [
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
