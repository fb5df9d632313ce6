"""Data that only workers open: files read out of core, and streams without an end."""

from anyk.problems.data.shards import Shards
from anyk.problems.data.streams import Stream

__all__ = ["Shards", "Stream"]
