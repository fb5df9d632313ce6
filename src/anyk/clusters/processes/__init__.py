"""A cluster of processes on this machine."""

from anyk.clusters.processes.cluster import Processes

__all__ = ["Processes"]
