"""A cluster on a virtual clock: gradients are real, time is not."""

from anyk.clusters.virtual.cluster import Simulated
from anyk.clusters.virtual.cores import Compute
from anyk.clusters.virtual.outages import Outage

__all__ = ["Compute", "Outage", "Simulated"]
