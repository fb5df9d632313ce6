"""The settings of the sequential codes, and what follows from them before a run begins."""

from __future__ import annotations

import copy
from abc import abstractmethod
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np

from anyk.codes import Code
from anyk.codes.decoders import Floats
from anyk.errors import BadInput
from anyk.protocol import DelayLaw, Pace, Strategy, StrategyFacts, slot_names
from anyk.strategies.crew import CrewStrategy
from anyk.strategies.sequential.inner import Inner
from anyk.strategies.sequential.jobs import SequentialState
from anyk.strategies.sequential.replay import Decided, KnownRounds, bits_of

End = Literal["cutoff", "decodable"]
Waiting = Literal["all", "minimal", "feasible"]
Late = Literal["drop", "keep"]
DEFAULTS: dict[str, Any] = {
    "end": "cutoff",
    "mu": 1.0,
    "models": None,
    "jobs": 0,
    "batch": 0,
    "inner": "auto",
    "strict": False,
    "late": "drop",
}


@dataclass(frozen=True, repr=False)
class SequentialSettings(CrewStrategy):
    """The settings of sequential codes, and what follows from them; :class:`SequentialRounds` runs them."""

    State: ClassVar[type[Any]] = SequentialState
    name: ClassVar[str]

    workers: int
    _: KW_ONLY
    end: End = "cutoff"
    mu: float = 1.0
    wait: Waiting | None = None
    inner: str = "auto"
    models: int | None = None
    jobs: int = 0
    batch: int = 0
    _planned: int = field(default=0, init=False, compare=False)  # jobs of the run, where ``jobs`` says nothing

    def __post_init__(self) -> None:
        if not 0.0 <= self.mu < float("inf"):
            raise BadInput(f"mu of '{self.name}' must be at least 0, got {self.mu:g}")
        least = self.T + 1
        if self.trained < least:
            raise BadInput(f"'{self.name}' needs models >= {least} (each job spans {least} rounds), got {self.trained}")
        if self.jobs < 0 or self.batch < 0:
            raise BadInput(
                f"jobs and batch of '{self.name}' must be at least 0, got jobs={self.jobs}, batch={self.batch}"
            )

    # ------------------------------------------------------------------------------------------- settings

    @property
    def late(self) -> Late:
        """The fate of a straggler's task when its round ends."""
        return "drop"

    @property
    @abstractmethod
    def T(self) -> int:
        """Rounds after its own by whose end a job is done."""

    @property
    @abstractmethod
    def load(self) -> float:
        """The share of the data that a worker computes in a round."""

    @cached_property
    def facts(self) -> StrategyFacts:
        return StrategyFacts(
            exact=True,  # a job is done when its sum can be had
            models=self.trained,
            shares_computed=(self.load,) * self.workers,
            vectors_sent=2.0 * self.workers,
            pace=_pace,
            durations=self._durations,
            for_jobs=self._for_jobs,
            extra_rounds=self.T,
            round_seconds=_round_seconds,
            check_further=self._check_further,
        )

    @property
    @abstractmethod
    def tolerated(self) -> int:
        """The workers that may be missing from a sum, whoever they are."""

    @property
    def waits(self) -> Waiting:
        """For whom a round waits after its cut-off."""
        return self.wait or self.usual_wait

    @property
    def usual_wait(self) -> Waiting:
        """The value of ``wait`` if it is left out."""
        return "all" if self.end == "cutoff" else "minimal"

    @cached_property
    def within(self) -> Inner:
        """The code within a job, and which workers it bears to miss."""
        return Inner(self.inner, self.workers, self.tolerated, self.inner == "frc" or self.end == "decodable")

    @property
    def code(self) -> Code:
        """The code within a job."""
        return self.within.code

    @property
    def trained(self) -> int:
        """M, the number of models."""
        return self.T + 1 if self.models is None else self.models

    @property
    def limit(self) -> int:
        """The number of jobs in all; 0: no end."""
        return self.jobs or self._planned

    def planned(self, steps: int | None) -> Strategy:
        """The rounds of a run in which no job begins that is beyond so many steps of each model."""
        made = copy.copy(self)
        object.__setattr__(made, "_planned", 0 if steps is None else steps * self.trained)
        return made

    def _for_jobs(self, jobs: int) -> Strategy:
        return replace(self, jobs=jobs)

    def _durations(self, seconds: Floats, whole: Floats) -> Floats | None:
        """Seconds of rounds without an end of jobs."""
        del whole
        if self.waits != self.usual_wait or self.late != "drop":
            return None
        groups = self.within.group_of
        decided = self._replayed(KnownRounds(seconds, self.mu), [] if groups is None else bits_of(groups.tolist()))
        return np.array([round_seconds for round_seconds, _ in decided])

    @abstractmethod
    def _replayed(self, known: KnownRounds, groups: list[int]) -> Decided:
        """The rounds on known times."""

    def _check_further(self, state: Any, steps: int, begun: int) -> None:
        """Raise if a state, saved in a run planned for ``steps`` steps, has begun rounds without further jobs."""
        if state.round >= (steps - begun) * self.trained:
            raise BadInput(
                f"the run was planned for {steps} steps of each model, and its last rounds started no further jobs; "
                "start a new one from it: anyk train --from FOLDER, or train_many(begin=…)"
            )

    @cached_property
    def slots(self) -> tuple[str, ...]:
        """The models."""
        return slot_names(self.trained)

    def slot(self, job: int) -> str:
        """The model that a job is a step of."""
        return self.slots[job % self.trained]


def _pace(delays: DelayLaw) -> Pace:
    """Return an unknown pace without staleness: a job begins when the step before it on its model has been taken."""
    del delays
    return Pace(None, 0.0, "no closed form; simulate")


def _round_seconds(state: SequentialState) -> tuple[list[float], int]:
    return state.durations, state.waits
