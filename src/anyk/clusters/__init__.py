"""Clusters, which carry out a strategy's commands: simulated, processes of this machine, MPI ranks and Ray actors."""

from __future__ import annotations

from anyk.base.registries import Registry
from anyk.clusters.alarms import Alarms
from anyk.clusters.contract import Cluster, Order
from anyk.clusters.injection import ClusterOptions, InFlight
from anyk.clusters.messages import Messages
from anyk.clusters.mpi import Mpi, join
from anyk.clusters.nodes import MachineSurvey, Nodes, SliceCopies, join_nodes, no_slices, nodes_of_job, survey_nodes
from anyk.clusters.processes import Processes
from anyk.clusters.ray import Ray
from anyk.clusters.remote.handles import is_stopped
from anyk.clusters.virtual import Compute, Outage, Simulated
from anyk.delays import Communication, DelayModel

_SUPPLIED = (
    "workers",
    "delays",
    "seed",
    "communication",
    "resources",
    "runtime_env",
    "placement_group",
)  # arguments that a spec cannot contain
registry: Registry[Cluster] = Registry("cluster", supplied=_SUPPLIED)
for _cluster in (Processes, Mpi, Nodes, Ray):
    registry.register(_cluster.name)(_cluster)
register = registry.register


@register("simulated")
def simulated(
    workers: int,
    *,
    delays: DelayModel | str | None = None,
    seed: int = 0,
    communication: Communication | DelayModel | str | None = None,
    task: float = 0.0,
    partition: float = 0.0,
    step: float = 0.0,
    cores: int | None = None,
    byzantine: tuple[int, ...] = (),
) -> Cluster:
    """A virtual clock: gradients are real, time is not; task, partition, step: seconds of computing, on cores."""
    costs = task, partition, step
    compute = None if cores is None and not any(costs) else Compute(*costs, 1 if cores is None else cores)
    return Simulated(
        workers, delays=delays, seed=seed, compute=compute, byzantine=byzantine, communication=communication
    )


def cluster(
    spec: str,
    *,
    workers: int,
    delays: str | DelayModel | None = None,
    seed: int = 0,
    communication: str | DelayModel | Communication | None = None,
) -> Cluster:
    """Build a cluster from its spec; ``delays`` and ``communication`` may be specs as well.

    >>> cluster("simulated", workers=4, delays="exp:mean=0.5", seed=1).workers
    4
    """
    return registry.build(spec, workers=workers, delays=delays, seed=seed, communication=communication)


__all__ = [
    "Alarms",
    "Cluster",
    "ClusterOptions",
    "Compute",
    "InFlight",
    "Messages",
    "Mpi",
    "Nodes",
    "Order",
    "Outage",
    "Processes",
    "Ray",
    "Simulated",
    "MachineSurvey",
    "SliceCopies",
    "cluster",
    "is_stopped",
    "join",
    "join_nodes",
    "no_slices",
    "nodes_of_job",
    "register",
    "registry",
    "survey_nodes",
]
