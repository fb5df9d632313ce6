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
from anyk.strategies.averaging.local_steps import LocalSteps
from anyk.strategies.crew import CrewStrategy
from anyk.strategies.rounds.balance import Balance, batch_of, shares_of
from anyk.strategies.rounds.code_rules import CodeRule, FixedCode, LearningCode
from anyk.strategies.rounds.elastic import Elastic
from anyk.strategies.rounds.gradients import Gradients
from anyk.strategies.rounds.scaling import Scaling, scaling_of
from anyk.strategies.rounds.snapshot import Snapshot
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
    work: Gradients | LocalSteps = field(default_factory=Gradients)
    changes: Balance | Elastic | None = None
    # plain attributes, as they are asked for at every reply
    _timed: bool = field(default=False, init=False, compare=False)  # whether times of replies are noted
    _projected: bool = field(default=False, init=False, compare=False)

    def __post_init__(self) -> None:
        speeds = isinstance(self.work, LocalSteps) and self.work.speeds
        object.__setattr__(self, "_timed", speeds or isinstance(self.changes, Balance))
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
        if self.work.snapshot is not None:
            return None
        if isinstance(self.rule, Count):
            return self.rule.number
        if isinstance(self.rule, Fraction):
            return self.rule.of(expected)
        return self.code.replies + 1 if self.rule == Decodable() else None

    def _enough_of(self, s: RoundState) -> Wait:
        """Return the rule that ends this round."""
        snapshot = self.work.snapshot
        return Decodable() if snapshot is not None and snapshot.is_due(s) else self.enough

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
        return isinstance(self.changes, Balance) or bool(shares_of(self.code))

    @cached_property
    def own_decoder(self) -> bool:
        """Whether replies are decoded in the code's own way."""
        return self.work.own_decoder

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
        code, rule, local = self.first_code, self.code_rule, isinstance(self.work, LocalSteps)
        return Layout(
            workers=code.workers,
            partitions=code.partitions,
            assignment=(tuple(range(code.partitions)),) * code.workers if rule.moves_data else code.assignment,
            slots=self.work.slots,
            auxiliary=self.work.slots[self.models :],
            covers=((),) * code.workers if local else None,
            blocks=code.blocks,
            voting=self.policy.projected,
            inner=self.work.inner,
            together=self.together,
            replicated=not self.code.own_messages if rule.moves_data else None,
            losses=self.work.losses,
            minibatches=self._samples > 0,
            spanning=self.spanning,
            epochs=self.work.epochs,
            fewest=self.changes.fewest if isinstance(self.changes, Elastic) else 0,
            stateful=self.work.keep,
        )

    @cached_property
    def spec(self) -> str:
        return self.work.show(self)

    @property
    def summary(self) -> str:
        words = self.work.summary or _in_words(self.code, self.wait_shown, self.work.snapshot)
        return words + ("; shares of the data follow the speed of workers" if isinstance(self.changes, Balance) else "")


def _in_words(code: Code, wait: str | None, snapshot: Snapshot | None) -> str:
    """Return a short description of rounds of gradients; ``wait``: the rule, None if they wait for the exact sum."""
    n = code.workers
    load_text = "" if code.load == 1 else f"; each computes {code.load} of {code.partitions} parts"
    if wait is not None:
        first = f"the first {wait} of {n} replies" if wait.isdigit() else f"enough replies (wait={wait})"
        now_and_then = "" if snapshot is None else f", corrected by an exact one every {snapshot.every} rounds"
        return f"approximate gradient from {first}{load_text}{now_and_then}"
    if code.tolerates == 0 and not code.approximate:
        return f"exact gradient; waits for all {n} workers{load_text}"
    if code.approximate:
        return f"approximate gradient from most of {n} replies{load_text}"
    return f"exact gradient, whichever {code.tolerates} of {n} workers are late{load_text}"
