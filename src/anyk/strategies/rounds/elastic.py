"""Rounds of a fleet whose workers join and leave."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from anyk.checks import AtLeastOne, typed
from anyk.codes import Code
from anyk.codes.bernoulli import BernoulliCode
from anyk.codes.changing import GroupedRepetition, Lists, PartialBernoulli, check_elastic, first_groups, follow

PARTITIONS = 4  # default number of partitions per worker of the largest fleet


@dataclass(slots=True)
class ElasticState:
    """The workers to which the current code assigns partitions, and its groups if it is a repetition code."""

    present: list[int]
    members: Lists = field(default_factory=list)  # workers of each group
    blocks: Lists = field(default_factory=list)  # partitions of each group


@typed
@dataclass(frozen=True)
class Elastic:
    """A fleet of at least ``fewest`` workers; the data always has the same ``partitions``.

    Between rounds, and in a round whose sum can no longer be obtained, the code is adapted to the workers that are
    present (:func:`anyk.codes.changing.follow`). With fewer than ``fewest`` workers the run waits for others to join.
    """

    fewest: int
    partitions: AtLeastOne

    State = ElasticState

    def check(self, code: Code) -> None:
        """Raise :class:`~anyk.errors.BadInput` if a code cannot be adapted to the fleet."""
        check_elastic(code, self.fewest, self.partitions)

    def start(self, code: Code, present: Collection[int]) -> ElasticState:
        """Return the state at the start of a run, with the workers that are ``present``."""
        workers = sorted(present)
        if isinstance(code, BernoulliCode):
            return ElasticState(workers)
        return ElasticState(workers, *first_groups(code, workers, self.partitions))

    def follow(self, own: ElasticState, code: Code, present: Collection[int]) -> None:
        """Adapt the state, and the groups of a repetition code, to the workers that are ``present`` now."""
        own.present = sorted(present)
        if own.members:
            own.members, own.blocks = follow(code, own.members, own.blocks, present, self.partitions)

    def code(self, own: ElasticState, code: Code) -> Code:
        """Return the adapted code; it has a row for each worker of the largest fleet, empty for absent workers."""
        if isinstance(code, BernoulliCode):
            return PartialBernoulli(code.workers, self.partitions, code, tuple(own.present))
        groups = zip(map(tuple, own.members), map(tuple, own.blocks), strict=True)
        return GroupedRepetition(code.workers, code, tuple(groups))


def share_moved(before: Code, after: Code) -> float:
    """Return the amount of data that workers must load when the code changes, as a multiple of the whole data."""
    pairs = zip(before.assignment, after.assignment, strict=True)
    return sum(len(set(new).difference(old)) for old, new in pairs) / after.partitions
