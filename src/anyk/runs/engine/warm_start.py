"""The state of a run from which another can start: versions, models, optimiser states, number of delays sampled."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anyk.base.arrays import Vector, Vectors
from anyk.base.errors import BadInput
from anyk.clusters.steps import OUTER
from anyk.optimizers import Optimizer
from anyk.problems.base import Problem
from anyk.protocol import Strategy
from anyk.runs.folder import checkpoints

NAME = "begin.safetensors"


@dataclass(frozen=True)
class WarmStart:
    """The state with which a run starts that continues another.

    By slot: ``versions``, ``models`` (shape (dimension,)) and ``states``, the optimiser's vectors by name (without the
    vectors of an outer optimiser, which local work has). ``tasks``: the largest number of tasks that a worker was
    given, whose delays have been sampled.
    """

    versions: dict[str, int]
    models: Vectors
    states: dict[str, Vectors]
    tasks: int

    @property
    def step(self) -> int:
        """The number of versions of the slot that has the fewest."""
        return min(self.versions.values())

    @property
    def rounds(self) -> int:
        """The number of steps of all slots together."""
        return sum(self.versions.values())

    @classmethod
    def of_saved(
        cls, state: Mapping[str, Any], vectors: Mapping[str, Vector], auxiliary: Collection[str] = ()
    ) -> WarmStart:
        """Return the state in a checkpoint, or in the file that :meth:`save` wrote."""
        versions = {slot: version for slot, version in state["versions"].items() if slot not in auxiliary}
        states: dict[str, Vectors] = {slot: {} for slot in versions}
        for key, vector in vectors.items():
            kind, *parts = key.split("/")
            if kind == "optimizer" and parts[0] in states and not parts[1].startswith(OUTER):
                states[parts[0]][parts[1]] = vector
        models = {slot: vectors[f"model/{slot}/{version}"] for slot, version in versions.items()}
        return cls(versions, models, states, max(state["cluster"]["numbers"]))

    def save(self, folder: Path) -> None:
        """Write the state into a run folder; raise :class:`~anyk.RunFailed` if it cannot be written."""
        vectors = {f"model/{slot}/{self.versions[slot]}": w for slot, w in self.models.items()}
        for slot, state in self.states.items():
            vectors |= {f"optimizer/{slot}/{name}": vector for name, vector in state.items()}
        encoded = json.dumps({"versions": self.versions, "cluster": {"numbers": [self.tasks]}})
        checkpoints.save(folder, encoded, vectors, name=NAME)

    @classmethod
    def load(cls, folder: Path) -> WarmStart:
        """Return the saved state; raise :class:`~anyk.BadInput` if it is missing or damaged."""
        saved = checkpoints.load(folder, NAME)
        if saved is None:
            raise BadInput(f"the run '{folder}' started from another run, but its {NAME} is missing")
        return cls.of_saved(saved.state, saved.vectors)

    def check(self, strategy: Strategy, problem: Problem, optimizer: Optimizer, earlier: str) -> None:
        """Raise if a run of this strategy, problem and optimiser cannot continue one with the optimiser ``earlier``."""
        trained = set(strategy.layout.trained)
        if strategy.layout.inner is not None:
            raise BadInput(
                f"'{strategy.spec}' counts local steps, not versions, and cannot continue from another run; start "
                "a new one"
            )
        if trained != set(self.versions):
            raise BadInput(
                f"the run to continue from trained {_listed(self.versions)}, '{strategy.spec}' trains "
                f"{_listed(trained)}; "
                "they must be the same models"
            )
        w = problem.initial()
        for slot, model in self.models.items():
            if model.shape != w.shape or model.dtype != w.dtype:
                raise BadInput(
                    f"{slot} of the run to continue from has {model.size} numbers of {model.dtype}, the problem has "
                    f"{w.size} of {w.dtype}; give the problem that it was trained on"
                )
        if earlier != optimizer.spec:
            raise BadInput(
                f"the run to continue from was optimised by '{earlier}', whose state '{optimizer.spec}' does not know; "
                f"use '{earlier}' (with any learning rate)"
            )


def _listed(slots: Any) -> str:
    names = sorted(slots)
    return f"'{names[0]}'" if len(names) == 1 else f"{len(names)} models, '{names[0]}' to '{names[-1]}'"
