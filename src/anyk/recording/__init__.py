"""Measuring a fleet: records of how long each worker takes, read from many sources or made by a recorder."""

from anyk.recording.distributed import ddp
from anyk.recording.record import PARTS, Record, joined
from anyk.recording.recorder import Recorder
from anyk.recording.sources import read, read_all

__all__ = ["PARTS", "Record", "Recorder", "ddp", "joined", "read", "read_all"]
