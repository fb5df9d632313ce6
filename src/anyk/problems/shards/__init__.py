"""Data where it lies: files that the workers open which hold their rows, out of core, and the driver never does."""

from anyk.problems.shards.linear import LinearShardPartitions, ShardRows
from anyk.problems.shards.source import Shards

__all__ = ["LinearShardPartitions", "ShardRows", "Shards"]
