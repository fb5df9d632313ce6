"""The settings of rounds, with the layout and other facts that follow from them before a run starts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from typing import Any

from anyk.base.arrays import Floats
from anyk.base.checks import AtLeastZero
from anyk.codes import Code, Policy, RepetitionCode, Selection
from anyk.protocol import CancelMode, Layout
from anyk.strategies.crew import CrewStrategy
from anyk.strategies.rounds.code_rules import CodeRule, FixedCode, LearningCode
from anyk.strategies.rounds.elastic import Elastic
from anyk.strategies.rounds.gradients import Gradients
from anyk.strategies.rounds.round_work import OWN_DECODERS, RoundWork
from anyk.strategies.rounds.scaling import Scaling, scaling_of
from anyk.strategies.rounds.shares import batch_of, shares_of
from anyk.strategies.rounds.state import RoundState
from anyk.strategies.wait import Count, Decodable, Fraction, Wait, WaitLike, wait_rule


@dataclass(frozen=True, repr=False)
class RoundSettings(CrewStrategy[RoundState]):
    """Settings of rounds with their layout and spec; :class:`~anyk.strategies.Rounds` makes the decisions."""

    State = RoundState

    code: Code
    _: KW_ONLY
    wait: WaitLike = None
    cancel: CancelMode = "preempt"
    batch: AtLeastZero = 0
    work: RoundWork = field(default_factory=Gradients)
    changes: CodeRule | None = None
    # plain attributes, as they are asked for at every reply
    _timed: bool = field(default=False, init=False, compare=False)  # whether times of replies are noted
    _projected: bool = field(default=False, init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_timed", self.work.speeds or self.code_rule.measures)
        object.__setattr__(self, "_projected", self.policy.projected)
        if self.changes is not None:
            self.changes.check(self)
        self.work.check(self)
        _ = self._samples
        _ = self._scaled  # refuse scaling that is not possible here, not in the first step

    # ------------------------------------------------------------------------------------------- the code

    @cached_property
    def policy(self) -> Policy:
        """Further duties of the code's rounds."""
        return self.code.policy()

    @cached_property
    def code_rule(self) -> CodeRule:
        """The rule by which the code changes: as asked for, else the code's own."""
        if self.changes is not None:
            return self.changes
        return FixedCode() if self.policy.relearned is None else LearningCode()

    @cached_property
    def keys_of_changes(self) -> Mapping[str, Any]:
        """The keys of the spec for the rule by which the code changes."""
        return self.code_rule.keys

    @cached_property
    def first_code(self) -> Code:
        """The code at the start of a run."""
        return self.code_rule.first_code(self)

    @cached_property
    def spanning(self) -> int:
        """Number of replies from which all others follow, whichever they are; 0 if replicas show it or none do."""
        code = self.code
        if self.policy.projected or isinstance(code, RepetitionCode) or code.approximate or code.blocks > 1:
            return 0
        return code.replies - code.tolerates if code.tolerates and code.messages == 1 else 0

    # ------------------------------------------------------------------------------------------- the end of a round

    @cached_property
    def rule(self) -> Wait:
        """The rule that ends a round before the sum is exact."""
        wait = self.work.usual_wait if self.wait is None else self.wait
        if isinstance(self.changes, Elastic):
            if wait == "all":
                return Fraction(1.0)
            if wait is None and self.code.approximate:
                return Fraction(0.9)
        if wait is None and self.code.approximate:
            wait = max(1, self.code.replies - max(1, self.code.replies // 10))
        return wait_rule(wait, replies=self.code.replies)

    @cached_property
    def wait_shown(self) -> str | None:
        """The rule as text; None if rounds end when the sum is exact."""
        return None if self.rule == Decodable() else str(self.rule)

    @cached_property
    def enough(self) -> Wait:
        """The rule that ends a round."""
        return self.rule | Decodable()

    def _count_of(self, expected: int) -> int | None:
        """Return the number of replies that ends a round, too large to reach for "decodable"; None for other rules.

        ``expected``: the number of replies if no worker is late.
        """
        if isinstance(self.rule, Count):
            return self.rule.number
        if isinstance(self.rule, Fraction):
            return self.rule.of(expected)
        return self.code.replies + 1 if self.rule == Decodable() else None

    # ------------------------------------------------------------------------------------------- the work

    @property
    def models(self) -> int:
        """Number of models that are trained simultaneously."""
        return self.work.models

    @cached_property
    def _samples(self) -> int:
        """Number of samples in the mini-batch of a partition; 0: all samples."""
        code = self.first_code
        return batch_of(self.batch, code.workers, code.partitions) if self.together else self.batch

    @cached_property
    def together(self) -> bool:
        """Whether the partitions of a block are computed together, as blocks differ in size."""
        return self.code_rule.measures or bool(shares_of(self.code))

    @cached_property
    def own_decoder(self) -> bool:
        """Whether replies are decoded in the code's own way."""
        return self.work.method in OWN_DECODERS

    @cached_property
    def scaling_used(self) -> Scaling:
        """Correction of sums in which partitions are missing."""
        return self.work.scaling_under(self.code)

    @cached_property
    def _scaled(self) -> Callable[[Selection, Floats], Selection]:
        return scaling_of(self.scaling_used, self.first_code, self.rule)

    # ------------------------------------------------------------------------------------------- facts

    @cached_property
    def layout(self) -> Layout:
        code, rule = self.first_code, self.code_rule
        of_code = Layout(
            workers=code.workers,
            partitions=code.partitions,
            assignment=(tuple(range(code.partitions)),) * code.workers if rule.moves_data else code.assignment,
            blocks=code.blocks,
            voting=self.policy.projected,
            together=self.together,
            replicated=not self.code.own_messages if rule.moves_data else None,
            minibatches=self._samples > 0,
            spanning=self.spanning,
            fewest=self.changes.fewest if isinstance(self.changes, Elastic) else 0,
        )
        return self.work.layout(of_code)

    @cached_property
    def spec(self) -> str:
        return self.work.show(self)

    @property
    def summary(self) -> str:
        return "; ".join(filter(None, (self.work.summary(self), self.code_rule.summary)))
