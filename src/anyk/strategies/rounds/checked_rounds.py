"""Checks: rounds that wait until messages can be compared, so that wrong ones are found."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import partial

from anyk.base.checks import PositiveShare, typed
from anyk.base.errors import BadInput
from anyk.base.keyed import keyed_generator
from anyk.codes import RepetitionCode
from anyk.strategies.rounds.state import Ending, RoundState
from anyk.strategies.rounds.terms import RoundTerms
from anyk.strategies.wait import Decodable


@typed
@dataclass(frozen=True)
class CheckedRounds:
    """A ``share`` of rounds, sampled by their numbers, waits for every sum twice, so that messages can be compared.

    Under a code whose replies are not replicas they wait for one reply more than it needs.
    """

    share: PositiveShare

    def check(self, rounds: RoundTerms) -> None:
        """Raise :class:`~anyk.BadInput` if the messages of these rounds cannot be compared."""
        if rounds.rule != Decodable():
            raise BadInput("check is for rounds that end when the sum is exact; leave out wait")
        if rounds.changes is not None and rounds.changes.measures:
            raise BadInput(
                f"check has not been tested with shares that change; leave out check or {rounds.changes.name}"
            )
        code = rounds.code
        if not ((isinstance(code, RepetitionCode) and code.tolerates) or rounds.spanning):
            raise BadInput(f"check needs a code with redundant replies, such as frc, cyclic or mds, got '{code.spec}'")

    def samples(self, s: RoundState) -> bool:
        """Return whether the present round is checked."""
        return bool(keyed_generator(0, "check", s.before + s.version).random() < self.share)

    def ending(self, s: RoundState, spanning: int) -> Ending | None:
        """Return the condition that ends a round that is checked; None for the others."""
        return partial(_are_compared, spanning) if self.samples(s) else None


def _are_compared(spanning: int, s: RoundState) -> bool:
    """Return whether the sum is known, and every reply can be compared with others or no more will come."""
    if not s.decoder.decodable:
        return False
    if not s.open:
        return True
    if spanning:
        return len(s.task_of) > spanning
    groups = s.code.group_of
    replies, expected = Counter(groups[r] for r in s.task_of), Counter(groups[w] for w in s.open.values())
    return all(count > 1 or not expected[group] for group, count in replies.items())
