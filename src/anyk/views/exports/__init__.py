"""Exports of runs: traces for Perfetto, tables, and metrics for Prometheus."""

from anyk.views.exports.export_formats import Exporter, build_exporter, exporters
from anyk.views.exports.log_tables import save_tables
from anyk.views.exports.perfetto import save_perfetto
from anyk.views.exports.prometheus import Metrics

__all__ = ["Exporter", "Metrics", "build_exporter", "exporters", "save_perfetto", "save_tables"]
