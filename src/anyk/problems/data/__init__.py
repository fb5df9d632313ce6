"""Loading data: embedded, public, from your own files, or drawn from a seed."""

from anyk.problems.data import files, public, synthetic  # they register their sources
from anyk.problems.data.dataset import Column, Dataset, load, sources, tell

__all__ = ["Column", "Dataset", "load", "sources", "tell"]

del files, public, synthetic
