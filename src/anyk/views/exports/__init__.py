"""Exports of runs: traces for Perfetto, tables, and metrics for Prometheus."""

from anyk.views.exports.export_formats import Exporter, exporters
from anyk.views.exports.log_tables import save_tables
from anyk.views.exports.perfetto import save_perfetto
from anyk.views.exports.prometheus import Metrics

__all__ = ["Exporter", "Metrics", "exporters", "save_perfetto", "save_tables"]
