"""Views of runs: tables, pictures, pages, progress, and exports for other programs."""

from anyk.runs.api import LiveProgress
from anyk.views.chaos_report import chaos_page, chaos_table
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
from anyk.views.exports import Exporter, Metrics, build_exporter, exporters, save_perfetto, save_tables
from anyk.views.exports.prometheus import address
from anyk.views.fleet_tables import (
    PLAN_NOTE,
    checked_lines,
    draw_explanation,
    draw_plan,
    explained_note,
    explained_table,
    inexact_table,
    parts_table,
    plan_lines,
    plan_table,
)
from anyk.views.page import PAGE, check_packages, report
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
from anyk.views.scale_views import SCALE_NOTE, draw_scale, scale_lines, scale_table
from anyk.views.style import picture_formats
from anyk.views.survey_views import machines_table, pairs_table, step_lines, survey_lines
from anyk.views.trace_pictures import draw_graph, draw_trace, graph_text, trace_facts, trace_text
from anyk.views.watching import Watch

__all__ = [
    "MEAN_NOTE",
    "PAGE",
    "PLAN_NOTE",
    "SCALE_NOTE",
    "Columns",
    "Exporter",
    "LiveProgress",
    "Metrics",
    "NothingToDraw",
    "Panel",
    "Watch",
    "address",
    "build_exporter",
    "chaos_page",
    "chaos_table",
    "check_packages",
    "check_table_packages",
    "checked_lines",
    "code_facts",
    "codes_table",
    "coefficients_report",
    "coefficients_table",
    "curves_table",
    "draw_explanation",
    "draw_graph",
    "draw_plan",
    "draw_scale",
    "draw_trace",
    "explained_note",
    "explained_table",
    "exporters",
    "graph_text",
    "holders_text",
    "machines_table",
    "inexact_table",
    "matrix_text",
    "mean_staleness",
    "mean_table",
    "pairs_table",
    "parts_table",
    "picture_formats",
    "plan_lines",
    "plan_table",
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
    "save_perfetto",
    "save_race_table",
    "save_tables",
    "scale_lines",
    "scale_table",
    "speed_table",
    "staleness_table",
    "step_lines",
    "survey_lines",
    "theory_text",
    "thresholds_table",
    "trace_facts",
    "trace_text",
]
