"""Data where it lies: files that the workers open which hold their rows, out of core, and the driver never does."""

from anyk.problems.data.shards.sources import Shards

__all__ = ["Shards"]
