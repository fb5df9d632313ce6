"""Reports: tables, pictures, progress."""

from anyk.reports.plots import plot
from anyk.reports.progress import Progress
from anyk.reports.tables import race_table, ratio_to_floor, speed_ups

__all__ = ["Progress", "plot", "race_table", "ratio_to_floor", "speed_ups"]
