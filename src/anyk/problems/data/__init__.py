"""Loading data: embedded, public, from your own files, or drawn from a seed."""

from anyk.problems.data import files, public, synthetic  # they register their sources
from anyk.problems.data.dataset import Dataset, load, sources

__all__ = ["Dataset", "load", "sources"]

del files, public, synthetic
