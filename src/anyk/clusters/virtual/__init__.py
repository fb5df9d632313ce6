"""A cluster on a virtual clock: gradients are real, time is not."""

from anyk.clusters.virtual.calendar import Outage
from anyk.clusters.virtual.cores import Compute
from anyk.clusters.virtual.simulated import Simulated

__all__ = ["Compute", "Outage", "Simulated"]
