"""Rounds of a fleet whose workers join and leave."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from anyk.base.checks import AtLeastOne, typed
from anyk.base.errors import BadInput
from anyk.codes import Code
from anyk.codes.base import Row
from anyk.codes.bernoulli import BernoulliCode
from anyk.codes.changing import GroupedRepetition, Lists, PartialBernoulli, check_elastic, first_groups, follow
from anyk.protocol import Fleet, Note
from anyk.strategies.crew import Crew
from anyk.strategies.rounds.code_rules import CodeRule, since
from anyk.strategies.rounds.state import RoundState
from anyk.strategies.rounds.terms import RoundTerms


@dataclass(slots=True)
class ElasticState:
    """The workers to which the current code assigns partitions, and its groups if it is a repetition code."""

    present: list[int]
    members: Lists = field(default_factory=list)  # workers of each group
    blocks: Lists = field(default_factory=list)  # partitions of each group


@typed
@dataclass(frozen=True)
class Elastic(CodeRule):
    """A fleet of at least ``fewest`` workers; the data always has the same ``partitions``.

    Between rounds, and in a round whose sum can no longer be obtained, the code is adapted to the workers that are
    present (:func:`anyk.codes.changing.follow`). With fewer than ``fewest`` workers the run waits for others to join.
    """

    fewest: int
    partitions: AtLeastOne

    State = ElasticState
    name = "a range of workers or partitions"
    moves_data = True

    def check(self, rounds: RoundTerms) -> None:
        """Raise :class:`~anyk.BadInput` if the code or the wait rule cannot be adapted to the fleet."""
        code, rule = rounds.code, rounds.rule
        check_elastic(code, self.fewest, self.partitions)
        if any(count > self.fewest for count in rule.counts()):
            raise BadInput(
                f"wait={rule} is more than the smallest number of workers ({self.fewest}); give a share of those "
                "present, such as wait=0.75n or wait=all"
            )
        if code.approximate and not rule.approximate:
            raise BadInput(
                f"wait={rule} waits for the exact sum, which '{code.spec}' may never give as its fleet "
                "changes; leave out wait, or give a share such as wait=0.75n"
            )

    # ------------------------------------------------------------------------------------------- the code

    def first_code(self, rounds: RoundTerms) -> Code:
        """Return the code of the largest fleet."""
        return self._code_of(rounds.code, self._first_state(rounds.code, range(rounds.code.workers)))

    def start(self, rounds: RoundTerms, fleet: Fleet) -> ElasticState:
        """Return the state at the start of a run, with the workers that are present."""
        return self._first_state(rounds.code, fleet.present or range(fleet.workers))

    def code(self, rounds: RoundTerms, s: RoundState) -> Code:
        """Return the code that is adapted to the present workers."""
        return self._code_of(rounds.code, s.code_rule)

    def followed(self, rounds: RoundTerms, s: RoundState) -> Code | None:
        """Return the code adapted to the workers that are present now; None if it is already, or if they are too few.

        Repetition codes keep their groups as far as possible.
        """
        elastic, present = s.code_rule, sorted(s.crew.present)
        if elastic.present == present or len(present) < self.fewest:
            return None
        elastic.present = present
        if elastic.members:
            elastic.members, elastic.blocks = follow(
                rounds.code, elastic.members, elastic.blocks, present, self.partitions
            )
        return self._code_of(rounds.code, elastic)

    def _first_state(self, code: Code, present: Collection[int]) -> ElasticState:
        workers = sorted(present)
        if isinstance(code, BernoulliCode):
            return ElasticState(workers)
        return ElasticState(workers, *first_groups(code, workers, self.partitions))

    def _code_of(self, code: Code, elastic: ElasticState) -> Code:
        """Return the adapted code; it has a row for each worker of the largest fleet, empty for absent workers."""
        if isinstance(code, BernoulliCode):
            return PartialBernoulli(code.workers, self.partitions, code, tuple(elastic.present))
        groups = zip(map(tuple, elastic.members), map(tuple, elastic.blocks), strict=True)
        return GroupedRepetition(code.workers, code, tuple(groups))

    # ------------------------------------------------------------------------------------------- the fleet

    def has_too_few(self, crew: Crew) -> bool:
        """Return whether fewer workers than needed are present."""
        return len(crew.present) < self.fewest

    def awaits_others(self, crew: Crew) -> bool:
        """Return whether workers may still join without whom the run cannot continue."""
        return len(crew.present) < self.fewest <= crew.size - len(crew.gone)

    def lacks_messages(self, s: RoundState, replies: int | None) -> bool:
        """Return whether the present round lacks messages of workers that have left, whoever else replies.

        ``replies``: the number of replies with which a step can be taken; None if one of each group is needed.
        """
        if s.decoder.decodable:
            return False
        coming = {*s.task_of, *s.open.values(), *filter(s.crew.able, s.crew.failures)}
        if replies is not None:
            return len(coming) < replies
        groups, count = s.code.group_of, int(s.code.groups)
        return len({groups[worker] for worker in coming}) < count

    def waiting_note(self, crew: Crew) -> Note:
        """Return the note that the run waits for workers."""
        missing = self.fewest - len(crew.present)
        return Note(f"waits for {missing} more workers, as {self.fewest} are needed")


def fleet_note(rounds: RoundTerms, s: RoundState, before: Code | None = None) -> Note:
    """Return the note about the code that has been adapted; ``before``: the code until now."""
    change = "" if before is None else f"{100.0 * share_moved(before, s.code):.0f} % of the data move, "
    loads = [len(partitions) for partitions, _ in s.code.rows if partitions]
    uneven = max(loads) * len(loads) / sum(loads) - 1.0
    return Note(
        f"{len(s.code_rule.present)} workers {since(rounds, s)}: {change}the largest share is "
        f"{100.0 * uneven:.0f} % above the mean, {s.code.tolerates} more may leave without moving data",
        "fleet",
    )


def share_moved(before: Code, after: Code) -> float:
    """Return the amount of data that workers must load when the code changes, as a multiple of the whole data."""
    pairs = zip(before.assignment, after.assignment, strict=True)
    return sum(len(set(new).difference(old)) for old, new in pairs) / after.partitions


def drop_changed(s: RoundState, before: Sequence[Row]) -> list[int]:
    """Forget the messages of workers whose partitions are others than ``before``; return their tasks."""
    changed = {worker for worker, row in enumerate(s.code.rows) if row != before[worker]}
    dropped = [task for worker, task in s.task_of.items() if worker in changed]
    dropped += [task for task, worker in s.open.items() if worker in changed]
    s.task_of = {worker: task for worker, task in s.task_of.items() if worker not in changed}
    s.open = {task: worker for task, worker in s.open.items() if worker not in changed}
    return dropped
