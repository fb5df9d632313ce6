"""A cluster on a virtual clock: gradients are real, time is not."""

from anyk.clusters.virtual.calendar import Outage
from anyk.clusters.virtual.cluster import Simulated
from anyk.clusters.virtual.cores import Compute

__all__ = ["Compute", "Outage", "Simulated"]
