"""Reports: tables, pictures, progress."""

from anyk.reports.codes import (
    code_facts,
    codes_table,
    curves_table,
    holders_text,
    matrix_text,
    plot_code,
    plot_codes,
    residual_text,
    theory_text,
    thresholds_table,
)
from anyk.reports.coefficients import coefficients_report, coefficients_table
from anyk.reports.columns import Columns
from anyk.reports.page import report
from anyk.reports.plots import NothingToDraw, plot
from anyk.reports.staleness import mean_staleness, plot_staleness, staleness_table
from anyk.reports.tables import race_notes, race_table, ratio_to_floor, speed_table
from anyk.reports.watching import Watch
from anyk.training.progress import Progress

__all__ = [
    "Columns",
    "coefficients_report",
    "coefficients_table",
    "NothingToDraw",
    "Progress",
    "Watch",
    "code_facts",
    "codes_table",
    "curves_table",
    "holders_text",
    "matrix_text",
    "mean_staleness",
    "plot",
    "plot_code",
    "plot_codes",
    "plot_staleness",
    "race_notes",
    "race_table",
    "ratio_to_floor",
    "report",
    "residual_text",
    "speed_table",
    "staleness_table",
    "theory_text",
    "thresholds_table",
]
