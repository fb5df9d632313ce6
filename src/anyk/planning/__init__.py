"""Planning: what codes and fleets are worth before anything is trained."""

from anyk.planning.codes import Curve, Facts, compare_codes, facts, survey
from anyk.planning.times import Pace, mean_delay, order_statistic, pace

__all__ = [
    "Curve",
    "Facts",
    "Pace",
    "compare_codes",
    "facts",
    "mean_delay",
    "order_statistic",
    "pace",
    "survey",
]
