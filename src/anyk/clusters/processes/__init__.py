"""A cluster of processes on this machine."""

from anyk.clusters.processes.processes import Processes

__all__ = ["Processes"]
