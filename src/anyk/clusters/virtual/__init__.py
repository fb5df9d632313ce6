"""The cluster on a virtual clock: it computes real gradients and simulates time."""

from anyk.clusters.virtual.calendar import Outage
from anyk.clusters.virtual.cores import Compute
from anyk.clusters.virtual.simulated import Simulated

__all__ = ["Compute", "Outage", "Simulated"]
