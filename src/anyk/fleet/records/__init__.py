"""Measuring a fleet: records of how long each worker takes, read from many sources or made by a recorder."""

from anyk.fleet.records.reading import Reading, RecordSource, read, read_all, record_sources
from anyk.fleet.records.record import PARTS, Record, joined
from anyk.fleet.records.recorder import Recorder, ddp

__all__ = [
    "PARTS",
    "Reading",
    "Record",
    "RecordSource",
    "Recorder",
    "ddp",
    "joined",
    "read",
    "read_all",
    "record_sources",
]
