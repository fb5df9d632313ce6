"""Views of runs: tables, pictures, pages, progress, and exports for other programs."""

from anyk.runs.live_progress import Progress
from anyk.views.chaos_page import chaos_page, chaos_table
from anyk.views.code_tables import (
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
from anyk.views.columns import Columns
from anyk.views.exports import Exporter, Metrics, exporters, save_perfetto, save_tables
from anyk.views.page import report
from anyk.views.page.panels import Panel, report_figures
from anyk.views.plots import NothingToDraw, plot
from anyk.views.result_tables import (
    MEAN_NOTE,
    check_table_packages,
    coefficients_report,
    coefficients_table,
    mean_staleness,
    mean_table,
    plot_staleness,
    race_notes,
    race_table,
    ratio_to_floor,
    save_race_table,
    speed_table,
    staleness_table,
)
from anyk.views.watching import Watch

__all__ = [
    "Exporter",
    "Metrics",
    "exporters",
    "save_perfetto",
    "save_tables",
    "Columns",
    "coefficients_report",
    "coefficients_table",
    "NothingToDraw",
    "Panel",
    "Progress",
    "Watch",
    "chaos_page",
    "chaos_table",
    "code_facts",
    "codes_table",
    "curves_table",
    "holders_text",
    "matrix_text",
    "check_table_packages",
    "MEAN_NOTE",
    "mean_staleness",
    "mean_table",
    "save_race_table",
    "plot",
    "plot_code",
    "plot_codes",
    "plot_staleness",
    "race_notes",
    "race_table",
    "ratio_to_floor",
    "report",
    "report_figures",
    "residual_text",
    "speed_table",
    "staleness_table",
    "theory_text",
    "thresholds_table",
]
