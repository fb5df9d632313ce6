"""Several problems on the same workers: each model of a run has its own objective."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any

import numpy as np

from anyk.base.arrays import Vector
from anyk.base.errors import BadInput
from anyk.problems.base import (
    Better,
    Index,
    PartitionAbilities,
    Partitions,
    Problem,
    ProblemAbilities,
    Recipe,
    abilities_of,
    partition_abilities,
    problem_text,
)
from anyk.problems.digests import data_digest, digest_of
from anyk.protocol import slot_names


class ManyPartitions(PartitionAbilities):
    """The partitions of several problems, by slot; see :class:`~anyk.problems.base.Partitions`."""

    def __init__(self, parts: dict[str, Partitions]) -> None:
        self._parts = parts
        first = next(iter(parts.values()))
        self.dimension, self.dtype, self.sizes = first.dimension, first.dtype, first.sizes
        self.least = partition_abilities(first).least

    @property
    def each(self) -> list[Partitions]:
        """The partitions of all slots."""
        return list(self._parts.values())

    def of(self, slot: str) -> Partitions:
        """Return the partitions of a slot."""
        return self._parts[slot]

    def load(self, partitions: Sequence[int]) -> None:
        for slot_partitions in self._parts.values():
            slot_partitions.load(partitions)

    def only(self, partitions: Sequence[int]) -> ManyPartitions:
        """Return a copy that computes only these partitions, with less data for each problem that can be divided."""
        smaller = copy(self)
        smaller._parts = {}
        for slot, slot_partitions in self._parts.items():
            only = partition_abilities(slot_partitions).only
            smaller._parts[slot] = slot_partitions if only is None else only(partitions)
        return smaller

    def adopt(self, other: ManyPartitions) -> None:
        """Take over the data of the partitions of ``other``."""
        for slot, slot_partitions in self._parts.items():
            if (adopt := partition_abilities(slot_partitions).adopt) is not None:
                adopt(other._parts[slot])

    def compare_replicas(self) -> None:
        """Check that replicas of a gradient agree."""
        for slot_partitions in self._parts.values():
            partition_abilities(slot_partitions).compare_replicas()
            self.tolerance = max(self.tolerance, partition_abilities(slot_partitions).tolerance)

    def compare_workers(self, *, replicas: bool) -> None:
        for slot_partitions in self._parts.values():
            partition_abilities(slot_partitions).compare_workers(replicas=replicas)

    def check_partial_loss(self) -> None:
        for slot_partitions in self._parts.values():
            partition_abilities(slot_partitions).check_partial_loss()

    def support(self, partition: int) -> Index | None:
        """Return the support that all problems have in common; None (all coordinates) if supports differ."""
        first, *others = (slot_partitions.support(partition) for slot_partitions in self._parts.values())
        equal = first is not None and all(other is not None and np.array_equal(first, other) for other in others)
        return first if equal else None

    def partial_gradient(self, partition: int, w: Vector, rows: Index | None = None, /) -> Vector:
        """Return the first problem's gradient; workers ask for a slot's partitions by :meth:`of`."""
        first = next(iter(self._parts.values()))
        return first.partial_gradient(partition, w, *(() if rows is None else (rows,)))


class ManyProblems(ProblemAbilities):
    """Problems trained simultaneously, one per slot, with equal dimension, number type, number of samples and metric.

    >>> import anyk
    >>> problem = anyk.problems.from_data("synthetic:rows=60,features=4")
    >>> ManyProblems([problem, problem]).of("model 1") is problem
    True
    """

    def __init__(self, problems: Sequence[Problem]) -> None:
        if not problems:
            raise BadInput("there is no problem to train on")
        first = self._first = problems[0]
        for name in ("dimension", "dtype", "samples", "metric", "better"):
            values = [getattr(problem, name) for problem in problems]
            if any(value != values[0] for value in values):
                raise BadInput(f"problems trained together must agree in {name}, got {', '.join(map(str, values))}")
        for problem in problems:
            changing = abilities_of(problem).changing_values
            if changing is not None and changing.names:
                raise BadInput(
                    f"problems trained together cannot have values, got {', '.join(changing.names)}; train each by "
                    "itself"
                )
        self._of = dict(zip(slot_names(len(problems)), problems, strict=True))
        self.dimension, self.dtype, self.samples, self.l2 = first.dimension, first.dtype, first.samples, first.l2
        self.metric: str = first.metric
        self.better: Better = first.better
        self.endless, self.evaluated_on = abilities_of(first).endless, abilities_of(first).evaluated_on

    def __repr__(self) -> str:
        return problem_text(self)

    def of(self, slot: str) -> Problem:
        """Return the problem of a slot."""
        return self._of[slot]

    @property
    def by_slot(self) -> dict[str, Problem]:
        """The problem of each slot."""
        return dict(self._of)

    @property
    def each(self) -> tuple[Problem, ...]:
        """All problems, in the order of the slots."""
        return tuple(self._of.values())

    def split(self, partitions: int, shares: Sequence[int] | None = None) -> Partitions:
        """Divide all problems into the same number of partitions."""
        parts = {slot: problem.split(partitions, shares) for slot, problem in self._of.items()}
        if len({tuple(slot_partitions.sizes) for slot_partitions in parts.values()}) > 1:
            raise BadInput("problems trained together must have partitions of the same sizes")
        return ManyPartitions(parts)

    def initial(self) -> Vector:
        """Return the first problem's initial model."""
        return self._first.initial()

    def loss(self, w: Vector) -> float:
        """Return the first problem's objective at ``w``."""
        return self._first.loss(w)

    def metrics(self, w: Vector) -> dict[str, float]:
        """Return the first problem's metrics at ``w``."""
        return self._first.metrics(w)

    def sampled(self, samples: int) -> ManyProblems:
        """Return the problems on a sample of their data; raise :class:`~anyk.BadInput` if that is impossible."""
        return ManyProblems([abilities_of(problem).sampled(samples) for problem in self._of.values()])

    def predictor(self) -> Any:
        """Return the first problem's predictor, if it has one."""
        predictor = abilities_of(self._first).predictor
        return None if predictor is None else predictor()

    def digest(self) -> str | None:
        """Return a digest of the data of all problems."""
        distinct = {id(problem): data_digest(problem) for problem in self._of.values()}
        digests = [distinct[id(problem)] for problem in self._of.values()]
        return None if None in digests else digest_of(np.array(digests))

    def recipe(self) -> Recipe | None:
        """Return the recipes of all problems; None if a problem has none."""
        recipes = [problem.recipe() for problem in self._of.values()]
        return None if None in recipes else {"many": recipes}


def each_of(problem: Problem) -> tuple[Problem, ...]:
    """Return the problems of all slots."""
    return problem.each if isinstance(problem, ManyProblems) else (problem,)


def problem_of(problem: Problem, slot: str) -> Problem:
    """Return the objective of a slot: the problem itself, or the slot's problem among many."""
    return problem.of(slot) if isinstance(problem, ManyProblems) else problem
