"""Code rules: which code applies in a round; the code as given, or the code that learns from missing replies."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from anyk.codes import Code
from anyk.protocol import Fleet, Note
from anyk.strategies.rounds.state import RoundState
from anyk.strategies.rounds.terms import RoundTerms


class CodeRule(ABC):
    """The choice of the code for each round; ``moves_data``: whether the partitions of a worker change in a run."""

    State: ClassVar[type[Any]]
    moves_data: bool = False

    @property
    def keys(self) -> Mapping[str, Any]:
        """The keys of a spec for this rule."""
        return {}

    def first_code(self, rounds: RoundTerms) -> Code:
        """Return the code at the start of a run."""
        return rounds.code

    @abstractmethod
    def start(self, rounds: RoundTerms, fleet: Fleet) -> Any:
        """Return the state at the start of a run."""

    def code(self, rounds: RoundTerms, s: RoundState) -> Code:
        """Return the code of the present round, as a run starts or is resumed."""
        return rounds.first_code

    def after_step(self, rounds: RoundTerms, s: RoundState) -> tuple[Code, list[Note]] | None:
        """Return the code of the next rounds, with notes about the change; None if it stays the same."""
        return None


@dataclass(slots=True)
class FixedState:
    """Nothing: the code stays the same."""


@dataclass(frozen=True)
class FixedCode(CodeRule):
    """The code stays as it was given."""

    State = FixedState

    def start(self, rounds: RoundTerms, fleet: Fleet) -> FixedState:
        """Return the state at the start of a run."""
        return FixedState()


@dataclass(slots=True)
class LearningState:
    """The number of missing replies of each worker."""

    missed: list[int] = field(default_factory=list)  # number of steps taken without each worker's reply
    learned: list[int] = field(default_factory=list)  # the same when the code was last relearned


@dataclass(frozen=True)
class LearningCode(CodeRule):
    """A code that learns gives workers other coefficients at intervals, by how often each was missing."""

    State = LearningState

    def start(self, rounds: RoundTerms, fleet: Fleet) -> LearningState:
        """Return the state at the start of a run."""
        return LearningState([0] * fleet.workers)

    def code(self, rounds: RoundTerms, s: RoundState) -> Code:
        """Return the code as it was last relearned."""
        policy = rounds.policy
        if policy.relearned is None or s.version < policy.every:
            return rounds.first_code
        return policy.relearned(s.code_rule.learned, s.version - s.version % policy.every)

    def after_step(self, rounds: RoundTerms, s: RoundState) -> tuple[Code, list[Note]] | None:
        """Count the missing replies; return the relearned code if it is due."""
        policy, rule_state = rounds.policy, s.code_rule
        assert policy.relearned is not None
        rule_state.missed = [count + (worker not in s.task_of) for worker, count in enumerate(rule_state.missed)]
        if s.version % policy.every:
            return None
        rule_state.learned = list(rule_state.missed)
        return policy.relearned(rule_state.missed, s.version), []


def since(rounds: RoundTerms, s: RoundState) -> str:
    """Return from when on the code applies, in words: models that are trained in turn have a step in some rounds."""
    return f"from {'step' if rounds.models == 1 else 'round'} {s.version} on"
