"""Runs for other programs: Perfetto's traces, tables, and metrics for Prometheus."""

from anyk.exporting.perfetto import save_perfetto
from anyk.exporting.tables import save_tables

__all__ = ["save_perfetto", "save_tables"]
