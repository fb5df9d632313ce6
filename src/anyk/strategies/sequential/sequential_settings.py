"""The settings of the sequential codes, with what follows from them before a run starts."""

from __future__ import annotations

import copy
from abc import abstractmethod
from dataclasses import KW_ONLY, dataclass, field, fields
from functools import cached_property
from typing import Any, ClassVar, Literal

from anyk.base.checks import AtLeastZero, NonnegativeNumber
from anyk.base.errors import BadInput
from anyk.base.specs import show_spec
from anyk.codes import Code, RepetitionCode, code
from anyk.protocol import Strategy, slot_names
from anyk.strategies.crew import Crew, CrewStrategy
from anyk.strategies.sequential.replay import Decided, End, KnownRounds, Tolerance, as_bits, replay

LateWait = Literal["all", "minimal", "feasible"]
Late = Literal["drop", "keep"]
Work = list[tuple[int, int]]  # (job, piece) pairs


@dataclass(slots=True)
class SequentialState:
    """The rounds of a run: the assignment of pieces of jobs to workers, and the stragglers."""

    crew: Crew
    now: float
    before: int = 0  # rounds that an earlier run took
    round: int = 0
    rounds_waited: int = 0  # number of rounds whose late workers at the cut-off did not fit
    durations: list[float] = field(default_factory=list)  # seconds of each round, if the number of jobs is limited
    began: float = 0.0
    cut: float = float("inf")  # seconds from the start of the round to its cut-off, once known
    task: dict[int, int] = field(default_factory=dict)  # worker -> its newest task, of this round or one that continues
    work: dict[int, Work] = field(default_factory=dict)  # task -> (job, piece) of each chunk, until counted
    missing: dict[int, set[int]] = field(default_factory=dict)  # task under way -> chunks that have not arrived
    behind: set[int] = field(default_factory=set)  # tasks under way of earlier rounds
    done: list[int] = field(default_factory=list)  # workers that have completed this round, in order
    waiting: bool = False  # whether the cut-off of this round has passed without fitting
    late: list[list[int]] = field(default_factory=list)  # stragglers of the last rounds that count, newest last
    # round -> completed tasks whose messages may still be used
    reusable: dict[int, list[int]] = field(default_factory=dict)
    combined: int = 0  # number of jobs done; they are done in order
    assigned: list[Work] = field(default_factory=list)  # (job, piece) pairs of this round, by worker


@dataclass(frozen=True, repr=False)
class SequentialSettings(CrewStrategy[SequentialState]):
    """Settings of the sequential codes; :class:`~anyk.strategies.SequentialRounds` describes them."""

    State: ClassVar[type[Any]] = SequentialState
    name: ClassVar[str]
    _own_settings: ClassVar[tuple[tuple[str, ...], tuple[str, ...]]]  # before and after those of waiting in the spec

    workers: int
    _: KW_ONLY
    end: End = "cutoff"
    mu: NonnegativeNumber = 1.0
    wait: LateWait | None = None
    inner: str = "auto"
    models: int | None = None
    jobs: AtLeastZero = 0
    batch: AtLeastZero = 0
    _planned: int = field(default=0, init=False, compare=False)  # jobs of the run if ``jobs`` is 0

    def __post_init__(self) -> None:
        least = self.T + 1
        if self.trained < least:
            raise BadInput(f"'{self.name}' needs models >= {least} (each job spans {least} rounds), got {self.trained}")

    @property
    def late(self) -> Late:
        """Fate of a straggler's task when its round ends."""
        return "drop"

    @property
    @abstractmethod
    def T(self) -> int:
        """Number of rounds after its own that a job may take."""

    @property
    @abstractmethod
    def load(self) -> float:
        """Share of the data that a worker computes in a round."""

    @property
    @abstractmethod
    def tolerated(self) -> int:
        """Number of workers that may be missing from a sum, whichever they are."""

    @cached_property
    def spec(self) -> str:
        first, then = ({name.rstrip("_"): vars(self)[name] for name in names} for names in self._own_settings)
        values = {**first, "end": self.end, "mu": self.mu, "wait": self.waits, **then, "inner": self.inner}
        values |= {"models": self.trained, "jobs": self.jobs, "batch": self.batch}
        usual = {f.name: f.default for f in fields(self)} | {"wait": self.usual_wait, "models": self.T + 1}
        return show_spec(self.name, values, usual)

    @property
    def waits(self) -> LateWait:
        """Rule for the workers that are late at the cut-off."""
        return self.wait or self.usual_wait

    @property
    def usual_wait(self) -> LateWait:
        """Default of ``wait``."""
        return "all" if self.end == "cutoff" else "minimal"

    @cached_property
    def code(self) -> Code:
        """The code within a job, from which any ``tolerated`` workers may be missing."""
        n, s, name = self.workers, self.tolerated, self.inner
        if name == "auto":
            name = "cyclic" if n % (s + 1) else "frc"
        inner = code(f"{name}:stragglers={s}", workers=n)
        if inner.tolerates < s or inner.partitions != n or inner.messages != 1 or inner.blocks != 1:
            raise BadInput(f"inner={name} has no code of {n} partitions that tolerates {s} of {n} workers")
        return inner

    @cached_property
    def groups(self) -> list[int]:
        """Groups of workers, as bits, if one worker of each is enough; none if only the number of stragglers counts."""
        if (self.inner == "frc" or self.end == "decodable") and isinstance(self.code, RepetitionCode):
            return list(map(as_bits, self.code.members))
        return []

    @property
    def trained(self) -> int:
        """Number of models, M."""
        return self.T + 1 if self.models is None else self.models

    @property
    def limit(self) -> int:
        """Total number of jobs; 0: no end."""
        return self.jobs or self._planned

    @cached_property
    def slots(self) -> tuple[str, ...]:
        """Names of the models."""
        return slot_names(self.trained)

    def slot(self, job: int) -> str:
        """Return the name of the model that a job updates."""
        return self.slots[job % self.trained]

    def planned(self, steps: int | None) -> Strategy:
        """Return the rounds of a run that starts no job beyond ``steps`` steps of each model."""
        strategy = copy.copy(self)
        object.__setattr__(strategy, "_planned", 0 if steps is None else steps * self.trained)
        return strategy

    # ------------------------------------------------------------------------------------------- the straggler model

    @abstractmethod
    def _tolerance(self) -> Tolerance:
        """Return the sets of workers that may straggle, before any round."""

    def _decodes_without(self, missing: int) -> bool:
        """Return whether the sum under the code is available without these workers."""
        return Tolerance(self.tolerated, self.groups).fits(missing)

    def replay_rounds(self, known_rounds: KnownRounds) -> Decided:
        """Return the decisions of rounds whose times are known."""
        return replay(known_rounds, known_rounds.count, self._tolerance(), self.end)
