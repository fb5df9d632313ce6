"""Codes for a number of workers that changes during a run, over partitions whose number is fixed.

Workers and partitions keep their numbers: a worker that is absent has an empty row. Repetition codes keep their groups
as long as they can, so that little data moves.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from anyk.base.checks import MOST_WORKERS, check_range
from anyk.base.errors import BadInput
from anyk.base.keyed import keyed_generator
from anyk.codes.base import Code, MatrixCode, incidence
from anyk.codes.bernoulli import BernoulliCode
from anyk.codes.made import SparseMatrix
from anyk.codes.repetition import FractionalRepetition, RepetitionCode, Uncoded, cut_evenly

_MOST_PARTITIONS = 4 * MOST_WORKERS
_UNEVEN = 1.4  # times the load of an even layout, above which another group is formed

Lists = list[list[int]]


@dataclass(frozen=True)
class GroupedRepetition(RepetitionCode):
    """Repetition with explicit groups: ``members`` and ``blocks``, the workers and the partitions of each group.

    ``base``: the code that is adapted. A worker in no group has an empty row.
    """

    workers: int
    base: Code
    groups_given: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]

    def __post_init__(self) -> None:
        members, blocks = zip(*((m, tuple(sorted(block))) for m, block in self.groups_given), strict=True)
        self._resolve(members=members, blocks_of=blocks)

    @property
    def spec(self) -> str:
        return self.base.spec

    @property
    def partitions(self) -> int:
        return sum(self.sizes)

    @property
    def expected(self) -> int:
        return sum(map(len, self.members))

    @property
    def groups(self) -> int:
        return len(self.members)

    @property
    def sizes(self) -> list[int]:
        return list(map(len, self.blocks_of))


@dataclass(frozen=True)
class PartialBernoulli(MatrixCode):
    """A Bernoulli code of the workers that are ``present``: each holds a partition with probability load / present.

    A pair of worker and partition has one random number for the whole run, so that a change of the probability moves
    few partitions. A partition without a holder goes to the worker with the smallest number.
    """

    approximate = True
    workers: int
    pieces: int
    base: BernoulliCode
    present: tuple[int, ...]

    @property
    def spec(self) -> str:
        return self.base.spec

    @property
    def partitions(self) -> int:
        return self.pieces

    @property
    def expected(self) -> int:
        return len(self.present)

    def _matrix(self) -> SparseMatrix:
        numbers = keyed_generator(self.base.seed, "elastic bgc", self.pieces).random((self.workers, self.pieces))
        absent = np.setdiff1d(np.arange(self.workers), self.present)
        numbers[absent] = np.inf
        assigned = numbers < self.base.expected_load / len(self.present)
        missing = np.flatnonzero(~assigned.any(axis=0))
        assigned[numbers[:, missing].argmin(axis=0), missing] = True
        return incidence([np.flatnonzero(row).tolist() for row in assigned], self.pieces)


def check_elastic(code: Code, fewest: int, partitions: int) -> None:
    """Raise :class:`~anyk.BadInput` for a code that cannot follow a fleet of ``fewest`` workers and more."""
    check_range("the smallest number of workers", fewest, 1, code.workers, ", the largest")
    # a typing error would fill the memory
    check_range("partitions", partitions, code.workers, _MOST_PARTITIONS, ", at least one for each worker")
    if isinstance(code, RepetitionCode) and code.shares:
        raise BadInput("shares belong to a fixed fleet; leave them out, or the range and partitions")
    if isinstance(code, FractionalRepetition) and code.stragglers is None:
        raise BadInput(
            f"'{code.spec}' fixes groups of one size, which cannot follow a fleet; use frc:stragglers=s, for example "
            f"frc:stragglers={max(1, code.tolerates)}"
        )
    if type(code) not in (Uncoded, FractionalRepetition, BernoulliCode):
        raise BadInput(
            f"'{code.spec}' is a code for a fixed number of workers; for a fleet that changes use uncoded, "
            "frc:stragglers=s, bgc or k-sync, or leave out the range and partitions"
        )
    if fewest <= (stragglers := _stragglers(code)):
        raise BadInput(
            f"'{code.spec}' needs at least {stragglers + 1} workers to lose {stragglers}, got {fewest} as the smallest "
            "number"
        )


def _stragglers(code: Code) -> int:
    """Return the number of stragglers that a code is to tolerate, whatever the number of workers."""
    return code.stragglers or 0 if isinstance(code, FractionalRepetition) else 0


def first_groups(code: Code, present: Collection[int], partitions: int) -> tuple[Lists, Lists]:
    """Return even groups of the workers that are present, and their blocks of partitions, as lists."""
    workers = sorted(present)
    groups = max(1, len(workers) // (_stragglers(code) + 1))
    members = [[workers[i] for i in group] for group in cut_evenly(len(workers), groups)]
    return members, [list(block) for block in cut_evenly(partitions, groups)]


def follow(code: Code, members: Lists, blocks: Lists, present: Collection[int], partitions: int) -> tuple[Lists, Lists]:
    """Return groups for the workers that are present now, from earlier groups, at little movement of data.

    With s the stragglers that the code tolerates, a group needs s + 1 members; while each has them, nothing moves. A
    group that has too few takes a new worker, or a member of a group that has more than it needs. If there is neither,
    the smallest group is dissolved, and its partitions and members go to the smallest others. Another group is formed
    if there are workers for it, and a worker's load is more than 1.4 times that of an even layout; without redundancy
    at any load, as a worker beyond the first of a group would repeat its work in vain.

    >>> follow(Uncoded(3), [[0], [1]], [[0, 1, 2], [3, 4, 5]], {0, 1, 2}, 6)
    ([[0], [1], [2]], [[0, 1], [3, 4], [2, 5]])
    >>> follow(Uncoded(3), [[0], [1], [2]], [[0, 1], [3, 4], [2, 5]], {0, 2}, 6)
    ([[0], [2]], [[0, 1, 3], [2, 5, 4]])
    """
    fewest = _stragglers(code) + 1  # members of a group
    members = [[worker for worker in group if worker in present] for group in members]
    blocks = [list(block) for block in blocks]
    free = _refill(members, blocks, sorted(set(present).difference(*members)), fewest)
    for worker in free:
        min(members, key=len).append(worker)
    n, tolerable = len(present), _UNEVEN if fewest > 1 else 0.0  # an even load is fewest * partitions / n
    while len(members) < min(n // fewest, partitions) and max(map(len, blocks)) * n > tolerable * fewest * partitions:
        _add_group(members, blocks, fewest, partitions)
    return members, blocks


def _refill(members: Lists, blocks: Lists, free: list[int], fewest: int) -> list[int]:
    """Fill groups of fewer than ``fewest`` members, or dissolve them; return the workers that are still free.

    The group that lacks least is filled first, and the one that lacks most is dissolved.
    """
    while len(members) > 1 and len(smallest := min(members, key=len)) < fewest:
        fullest_of_short = max((group for group in members if len(group) < fewest), key=len)
        largest = max(members, key=len)
        if free:
            fullest_of_short.append(free.pop(0))
        elif len(largest) > fewest:
            fullest_of_short.append(largest.pop())
        else:
            group = members.index(smallest)
            free = members.pop(group)
            for partition in blocks.pop(group):
                min(blocks, key=len).append(partition)
    return free


def _add_group(members: Lists, blocks: Lists, fewest: int, partitions: int) -> None:
    """Form another group, of members and partitions of the largest others; of equal blocks, of those of its members."""
    donors, new = set(), []
    for _ in range(fewest):
        group = max(range(len(members)), key=lambda g: len(members[g]))
        donors.add(group)
        new.append(members[group].pop())
    block: list[int] = []
    while len(block) < partitions // (len(members) + 1):
        block.append(blocks[max(range(len(blocks)), key=lambda g: (len(blocks[g]), g in donors))].pop())
    members.append(new)
    blocks.append(block)
