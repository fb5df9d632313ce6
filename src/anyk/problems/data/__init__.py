"""Loading data: embedded, public, from your own files, or drawn from a seed."""

from anyk.problems.data import files, public, synthetic  # they register their sources
from anyk.problems.data.dataset import Dataset, assemble, load, sources, tell
from anyk.problems.data.encoding import Column, Encoding

__all__ = ["Column", "Dataset", "Encoding", "assemble", "load", "sources", "tell"]

del files, public, synthetic
