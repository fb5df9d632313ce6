"""Where a run stands, as far as another run can begin there: versions, models, optimiser states, delays drawn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anyk.errors import BadInput
from anyk.optimizers import Optimizer
from anyk.problems.base import Problem, Vector
from anyk.protocol import Strategy
from anyk.runs.folder import checkpoints

NAME = "begin.safetensors"
OUTER = "outer "  # with which the names of an outer optimiser's vectors begin


@dataclass(frozen=True)
class Beginning:
    """What a run that goes on from another begins with.

    By slot: ``versions``, ``models`` (shape (dimension,)) and ``states``, the optimiser's vectors by name (without what
    an outer one, of local work, has among them). ``tasks``: as many as the worker with the most has been given, whose
    delays have been drawn.
    """

    versions: dict[str, int]
    models: dict[str, Vector]
    states: dict[str, dict[str, Vector]]
    tasks: int

    @property
    def step(self) -> int:
        """Versions of the slot that has the fewest."""
        return min(self.versions.values())

    @property
    def rounds(self) -> int:
        """Steps of all slots together."""
        return sum(self.versions.values())

    @classmethod
    def of_saved(
        cls, state: Mapping[str, Any], vectors: Mapping[str, Vector], auxiliary: tuple[str, ...] = ()
    ) -> Beginning:
        """Where a checkpoint stands, or what :meth:`save` wrote."""
        versions = {slot: version for slot, version in state["versions"].items() if slot not in auxiliary}
        states: dict[str, dict[str, Vector]] = {slot: {} for slot in versions}
        for key, vector in vectors.items():
            kind, *rest = key.split("/")
            if kind == "optimizer" and rest[0] in states and not rest[1].startswith(OUTER):
                states[rest[0]][rest[1]] = vector
        models = {slot: vectors[f"model/{slot}/{version}"] for slot, version in versions.items()}
        return cls(versions, models, states, max(state["cluster"]["numbers"]))

    def save(self, folder: Path) -> None:
        """Keep it in a run folder, which then needs no other; raises :class:`~anyk.errors.RunFailed` if it cannot."""
        vectors = {f"model/{slot}/{self.versions[slot]}": w for slot, w in self.models.items()}
        for slot, state in self.states.items():
            vectors |= {f"optimizer/{slot}/{name}": vector for name, vector in state.items()}
        checkpoints.save(folder, {"versions": self.versions, "cluster": {"numbers": [self.tasks]}}, vectors, name=NAME)

    @classmethod
    def load(cls, folder: Path) -> Beginning:
        """What :meth:`save` wrote; raises :class:`~anyk.errors.BadInput` where it is gone or damaged."""
        saved = checkpoints.load(folder, name=NAME)
        if saved is None:
            raise BadInput(f"the run '{folder}' started from another run, but its {NAME} is missing")
        return cls.of_saved(*saved)

    def check(self, strategy: Strategy, problem: Problem, optimizer: Optimizer, earlier: Mapping[str, Any]) -> None:
        """Raise where a run of this strategy, problem and optimiser cannot go on from one of that configuration."""
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
        if earlier["optimizer"] != optimizer.spec:
            raise BadInput(
                f"the run to continue from was optimised by '{earlier['optimizer']}', whose state "
                f"'{optimizer.spec}' does "
                f"not know; use '{earlier['optimizer']}' (with any learning rate)"
            )


def _listed(slots: Any) -> str:
    names = sorted(slots)
    return f"'{names[0]}'" if len(names) == 1 else f"{len(names)} models, '{names[0]}' to '{names[-1]}'"
