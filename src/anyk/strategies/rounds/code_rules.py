"""Code rules: which code applies in a round; the code as given, or the code that learns from missing replies."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from anyk.base.arrays import Floats
from anyk.base.errors import BadInput
from anyk.codes import Code
from anyk.protocol import Fleet, Note
from anyk.strategies.rounds.state import RoundState
from anyk.strategies.rounds.terms import RoundTerms


class CodeRule(ABC):
    """The choice of the code for each round.

    ``name``: the setting that asks for the rule, in messages. ``moves_data``: whether the partitions of a worker change
    in a run. ``measures``: whether shares of the data follow the measured speed of workers, so that the partitions of a
    share are computed together. ``summary``: what the rule does, in words; empty if it is not worth a mention.
    """

    State: ClassVar[type[Any]]
    name: ClassVar[str]
    moves_data: ClassVar[bool] = False
    measures: ClassVar[bool] = False
    summary: ClassVar[str] = ""

    def check(self, rounds: RoundTerms) -> None:
        """Raise :class:`~anyk.BadInput` if the code of these rounds cannot follow the rule."""
        return

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

    def note_reply(self, s: RoundState, worker: int) -> None:
        """Note the time of a reply, if the rule measures."""
        return

    def ignore_times(self, s: RoundState) -> None:
        """Do not measure this round."""
        return

    def adapted(self, code: Code, seconds: Floats, slopes: Floats, load: float) -> Code:
        """Return the code on which a rule that measures settles, see :class:`~anyk.protocol.StrategyFacts`."""
        return code

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
    name = "a code that stays the same"

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
    name = "a code that learns"

    def check(self, rounds: RoundTerms) -> None:
        """Raise :class:`~anyk.BadInput` for a code that does not learn."""
        if rounds.policy.relearned is None:
            raise BadInput(f"'{rounds.code.spec}' does not learn from missing replies; leave out changes")

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
