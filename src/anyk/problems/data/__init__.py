"""Data sets: built in, public, from a user's own files, or random."""

from anyk.problems.data import user_files, built_in  # isort: skip  # they register sources in this order
from anyk.problems.data.dataset import Dataset, assemble, load, read_target, sources, tell
from anyk.tables import Column, Encoding

__all__ = ["Column", "Dataset", "Encoding", "assemble", "load", "read_target", "sources", "tell"]

del built_in, user_files
