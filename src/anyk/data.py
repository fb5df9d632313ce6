"""Data where it lies: opened by the workers that hold it, out of core, and never by the driver."""

from anyk.problems.shards import Shards

__all__ = ["Shards"]
