"""Fleets: what was measured of one, what its slow workers cost, and which strategy to run on it."""

from anyk.fleet.auto.auto_training import Auto, modes, open_auto, resume_auto, train_auto
from anyk.fleet.auto.parts import Part, read_auto
from anyk.fleet.explanation.attribution import lower_median
from anyk.fleet.explanation.explaining import explain
from anyk.fleet.explanation.sentences import Explanation, WorkerCost, percent, rounded, seconds_text, spans
from anyk.fleet.plans.check import Checked, Figures, check
from anyk.fleet.plans.judging import Choice, gain_text, headline, interval_text, pareto
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
from anyk.fleet.scaling.network import WAYS, NodeLink, StepTransfer, Way, transfer_seconds
from anyk.fleet.scaling.scale import ScaleResult, ScaleRow, StepSeconds, node_counts, scale
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
from anyk.fleet.theory.code_curves import (
    ATTACKED,
    Curve,
    Facts,
    MissingCode,
    compare_codes,
    facts,
    straggler_counts,
    survey,
)
from anyk.protocol import Pace
from anyk.runs.api import Estimate
from anyk.strategies import discard_seconds

__all__ = [
    "ATTACKED",
    "PARTS",
    "WAYS",
    "Advice",
    "Auto",
    "Candidate",
    "Checked",
    "Choice",
    "Curve",
    "Estimate",
    "Explanation",
    "Facts",
    "Figures",
    "Measured",
    "MissingCode",
    "NodeLink",
    "Pace",
    "Part",
    "Plan",
    "Reading",
    "Record",
    "RecordSource",
    "Recorder",
    "ScaleRow",
    "ScaleResult",
    "StepSeconds",
    "Threshold",
    "TraceGrid",
    "StepTransfer",
    "Way",
    "WorkerCost",
    "adversarial_threshold",
    "async_factor",
    "best_k",
    "best_tau",
    "check",
    "chosen_stragglers",
    "compare_codes",
    "computed_load",
    "cooperative_bound",
    "ddp",
    "discard_seconds",
    "erasurehead",
    "error_after",
    "error_floor",
    "explain",
    "facts",
    "fit_slope",
    "fresh_share",
    "gain_text",
    "headline",
    "interval_text",
    "joined",
    "lower_median",
    "modes",
    "node_counts",
    "open_auto",
    "pace",
    "pareto",
    "percent",
    "plan",
    "read",
    "read_all",
    "read_auto",
    "record_sources",
    "resume_auto",
    "rounded",
    "scale",
    "seconds_text",
    "sequential_candidates",
    "simulate",
    "simulated_pace",
    "spans",
    "stability_limit",
    "stationary_error",
    "straggler_counts",
    "survey",
    "threshold_bound",
    "train_auto",
    "transfer_seconds",
]
