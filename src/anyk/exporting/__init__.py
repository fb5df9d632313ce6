"""Runs for other programs: Perfetto's traces, tables, and metrics for Prometheus."""

from anyk.exporting.perfetto import save_perfetto
from anyk.exporting.prometheus import Metrics
from anyk.exporting.tables import save_tables

__all__ = ["Metrics", "save_perfetto", "save_tables"]
