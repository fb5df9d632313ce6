"""The machines of a Ray cluster that workers may get, and what each worker gets of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from anyk.base.errors import BadInput


@dataclass(frozen=True)
class Machines:
    """What a worker gets: ``cpus``, ``gpus`` and other ``resources`` of one of the ``addresses``, or of any machine.

    ``placement_group``: of Ray, used instead of ``addresses``.

    Raises :class:`~anyk.BadInput` for resources that are no amounts by name.
    """

    addresses: Sequence[str]
    cpus: float
    gpus: float
    resources: Mapping[str, float]
    placement_group: Any = None

    def __post_init__(self) -> None:
        if self.placement_group is not None and self.addresses:
            raise BadInput("a placement group determines the workers' machines; omit nodes= or placement_group=")
        if not isinstance(self.resources, dict) or any(
            name in ("CPU", "GPU") or not isinstance(amount, (int, float)) or not 0 <= amount < float("inf")
            for name, amount in self.resources.items()
        ):
            raise BadInput(
                "resources of a worker must be numbers of at least 0 by name (CPU and GPU are cpus= and gpus=), got "
                f"{self.resources!r}"
            )

    def ids(self, ray: Any) -> dict[str, str]:
        """Return the node ids of the Ray cluster's live machines, by address."""
        return {node["NodeManagerAddress"]: node["NodeID"] for node in ray.nodes() if node["Alive"]}

    def count(self, ray: Any) -> int:
        """Return the number of machines that have room for a worker."""
        fit = [
            node["NodeManagerAddress"]
            for node in ray.nodes()
            if node["Alive"] and node["Resources"].get("CPU", 0.0) >= self.cpus
        ]
        return len([address for address in fit if not self.addresses or address in self.addresses])

    def check(self, ray: Any, workers: int) -> None:
        """Raise :class:`~anyk.BadInput` if the Ray cluster lacks what so many workers need, or an address."""
        available = ray.cluster_resources()
        for name, amount in (("CPU", self.cpus), ("GPU", self.gpus), *self.resources.items()):
            option = "resources" if name in self.resources else f"{name.lower()}s"
            if amount * workers > available.get(name, 0.0) + 1e-9:
                raise BadInput(
                    f"{workers} workers of {amount:g} {name} each need {amount * workers:g}, the Ray cluster "
                    f"has {available.get(name, 0.0):g}; use fewer workers or a smaller {option}="
                )
        ids = self.ids(ray)
        for address in self.addresses:
            if address not in ids:
                raise BadInput(f"the Ray cluster has no machine '{address}'; it has {', '.join(sorted(ids))}")

    def strategy(self, ray: Any, worker: int) -> Any:
        """Return Ray's scheduling strategy for a worker: the live machines among ``addresses`` in turn."""
        if self.placement_group is not None:
            from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

            return PlacementGroupSchedulingStrategy(self.placement_group)
        ids = self.ids(ray) if self.addresses else {}
        alive = [address for address in self.addresses if address in ids]
        if not alive:
            return "SPREAD"
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        return NodeAffinitySchedulingStrategy(ids[alive[worker % len(alive)]], soft=False)
