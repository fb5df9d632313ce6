"""The models of a run: the newest version of each slot, its optimiser's vectors, and which older versions are kept."""

from __future__ import annotations

from collections.abc import Mapping

from anyk.base.arrays import Vector, Vectors
from anyk.base.errors import BadInput, RunFailed
from anyk.clusters.available import give_back
from anyk.clusters.contract import Cluster
from anyk.clusters.steps import split_states
from anyk.clusters.store import Elsewhere
from anyk.optimizers import Optimizer
from anyk.problems.base import Problem, initial_of
from anyk.problems.many import problem_of
from anyk.protocol import Layout
from anyk.runs.engine.carried_values import CarriedValues
from anyk.runs.engine.warm_start import WarmStart


class Versions:
    """Model versions by slot: ``versions[slot]`` is the number of the newest, ``model(slot)`` its vector.

    The vectors are in the cluster's store, an older version's as long as it is pinned. Without a problem and an
    optimiser there are only numbers. ``warm_start``: the state of another run, which this run continues.
    """

    def __init__(
        self,
        cluster: Cluster,
        layout: Layout,
        problem: Problem | None,
        optimizer: Optimizer | None,
        warm_start: WarmStart | None = None,
        carried: CarriedValues | None = None,
    ) -> None:
        self._cluster, self._problem, self._optimizer, self._beginning = cluster, problem, optimizer, warm_start
        self.carried = carried  # None: the problem has no values that travel with versions
        self._trained = layout.trained
        self.newest: dict[str, int] = dict.fromkeys(layout.slots, 0)
        if warm_start is not None:
            self.newest |= warm_start.versions
        self.step = self._fewest()  #: number of versions so far of the trained slot that has the fewest
        self.kept: Vectors | None = None  # the newest models, once the cluster is to close
        self._kept_states: dict[str, Vectors] = {}  # with these models
        self._lost: RunFailed | None = None  # why the newest models cannot be had any more
        self._computed: list[str] = []  # the slots that have models
        self._pins: dict[tuple[str, int], int] = {}

    def __getitem__(self, slot: str) -> int:
        return self.newest[slot]

    def _fewest(self) -> int:
        return min(self.newest[slot] for slot in self._trained)

    def model(self, slot: str) -> Vector:
        """Return the newest model of a slot."""
        if self._lost is not None:
            raise self._lost
        return self._cluster.store.model(slot, self.newest[slot]) if self.kept is None else self.kept[slot]

    @property
    def models(self) -> Vectors:
        """The newest model of each slot; empty if nothing is computed."""
        return {slot: self.model(slot) for slot in self._computed}

    def optimizer_states(self, slot: str) -> Vectors:
        """Return the vectors of a slot's optimiser at its newest version."""
        return self._cluster.store.optimizer_states(slot) if self.kept is None else self._kept_states[slot]

    @property
    def trained(self) -> Vectors:
        """The newest model of each slot that is trained for its own sake."""
        return {slot: w for slot, w in self.models.items() if slot in self._trained}

    def keep(self) -> None:
        """Keep the newest models while the cluster, with its store, closes."""
        try:
            states = {slot: self.optimizer_states(slot) for slot in self._computed}
            self.kept, self._kept_states = self.models, states
        except RunFailed as error:  # they were elsewhere, and are lost; the run has failed for the same reason
            self._lost = error

    def begin(self) -> None:
        """Publish the first version of each slot."""
        earlier = self._beginning
        for slot, version in self.newest.items():
            if self._problem is None or self._optimizer is None:
                self._cluster.publish(slot, version, None)
                continue
            w, states = self._cluster.store.blank(slot), None
            if earlier is None or slot not in earlier.models:
                w[:] = initial_of(problem_of(self._problem, slot))
            else:
                w[:] = earlier.models[slot]
                states = {name: value.copy() for name, value in earlier.states[slot].items()}
            self._cluster.publish(slot, version, w)
            self._start(slot, version, states)
            if self.carried is not None:
                self.carried.attach(slot, version, self.step)
            give_back(w.nbytes)

    def _start(self, slot: str, version: int, states: Vectors | None) -> None:
        """Prepare steps from a version that has been published."""
        assert self._optimizer is not None
        self._cluster.store.start_optimizer(slot, version, self._optimizer, states)
        self._computed.append(slot)

    def publish(self, slot: str, w: Vector | Elsewhere | None) -> None:
        """Publish a slot's next version (None if nothing is computed), and release the previous one unless pinned."""
        version = self.newest[slot]
        self._cluster.publish(slot, version + 1, w)
        self.newest[slot] = version + 1
        self.step = version + 1 if len(self.newest) == 1 else self._fewest()
        if self.carried is not None:  # after it, as the next blank of the store was the model's
            self.carried.attach(slot, version + 1, self.step)
        if self._problem is not None and (slot, version) not in self._pins:
            self._cluster.store.release(slot, version)

    def pin(self, slot: str, version: int) -> None:
        """Keep a version until it has been unpinned as often as pinned."""
        key = (slot, version)
        self._pins[key] = self._pins.get(key, 0) + 1

    def unpin(self, slot: str, version: int) -> None:
        """Remove one pin of a version, and release it if none is left and it is not the newest."""
        key = (slot, version)
        self._pins[key] -= 1
        if not self._pins[key]:
            del self._pins[key]
            if version < self.newest[slot]:
                self._cluster.store.release(slot, version)

    def warm_start(self) -> WarmStart:
        """Return a copy of the run's state, from which another can start."""
        models = {slot: w.copy() for slot, w in self.trained.items()}
        return WarmStart(
            {slot: self.newest[slot] for slot in models},
            models,
            {slot: split_states(self.optimizer_states(slot))[0] for slot in models},
            self._cluster.injection.tasks,
        )

    def vectors(self) -> Vectors:
        """Return the newest models and the optimiser's vectors, by the names that :meth:`restore` expects."""
        vectors: Vectors = {}
        for slot, w in self.models.items():
            vectors[f"model/{slot}/{self.newest[slot]}"] = w
            for name, value in self.optimizer_states(slot).items():
                vectors[f"optimizer/{slot}/{name}"] = value
        return vectors if self.carried is None else vectors | self.carried.vectors()

    def restore(self, newest: Mapping[str, int], vectors: Mapping[str, Vector]) -> None:
        """Restore the vectors that :meth:`vectors` returned, and older versions that tasks under way use."""
        self.newest = dict(newest)
        self.step = self._fewest()
        keys = [key.split("/") for key in vectors]
        for version, slot in sorted((int(key[2]), key[1]) for key in keys if key[0] == "model"):
            saved = vectors[f"model/{slot}/{version}"]
            w = self._cluster.store.blank(slot)
            if saved.size != w.size:
                raise BadInput(f"the run's models have {saved.size:,} parameters, those of the problem {w.size:,}")
            w[:] = saved
            self._cluster.publish(slot, version, w)
        states: dict[str, Vectors] = {key[1]: {} for key in keys if key[0] == "model"}  # empty if it has no vectors
        for _, slot, name in (key for key in keys if key[0] == "optimizer"):
            states[slot][name] = vectors[f"optimizer/{slot}/{name}"]
        for slot in states:
            self._start(slot, self.newest[slot], states[slot])
