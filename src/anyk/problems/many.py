"""Several problems on the same workers: each model of a run has its own objective."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any, Literal

import numpy as np

from anyk.errors import BadInput
from anyk.problems.base import Index, Partitions, Problem, Vector, endless, problem_text
from anyk.problems.digest import data_digest, digest_of
from anyk.protocol import slot_names


class ManyPartitions:
    """The partitions of several problems, by slot; see :class:`~anyk.problems.base.Partitions`."""

    def __init__(self, parts: dict[str, Partitions]) -> None:
        self._parts = parts
        first = next(iter(parts.values()))
        self.dimension, self.dtype, self.sizes = first.dimension, first.dtype, first.sizes
        self.tolerance = 0.0
        if hasattr(first, "penalty"):
            self.penalty = first.penalty

    def of(self, slot: str) -> Partitions:
        """Return the partitions of a slot."""
        return self._parts[slot]

    def load(self, partitions: Sequence[int]) -> None:
        for part in self._parts.values():
            part.load(partitions)

    def only(self, partitions: Sequence[int]) -> ManyPartitions:
        """Return the part that computes these partitions, for each problem that can be divided."""
        made = copy(self)
        made._parts = {
            slot: part.only(partitions) if hasattr(part, "only") else part for slot, part in self._parts.items()
        }
        return made

    def compare_replicas(self) -> None:
        """Check that replicas of a gradient agree."""
        for part in self._parts.values():
            compare = getattr(part, "compare_replicas", None)
            if compare is not None:
                compare()
                self.tolerance = max(self.tolerance, getattr(part, "tolerance", 0.0))

    def check_partial_loss(self) -> None:
        """Raise :class:`~anyk.errors.BadInput` if workers cannot evaluate the loss."""
        for part in self._parts.values():
            check_partial_loss(part)

    def support(self, partition: int) -> Index | None:
        """The common one; all coordinates where they differ."""
        supports = [part.support(partition) for part in self._parts.values()]
        first = supports[0]
        alike = first is not None and all(other is not None and np.array_equal(first, other) for other in supports)
        return first if alike else None

    def partial_gradient(self, partition: int, w: Vector, rows: Index | None = None, /) -> Vector:
        """Return the first problem's gradient; workers ask for a slot's partitions by :meth:`of`."""
        first = next(iter(self._parts.values()))
        return first.partial_gradient(partition, w) if rows is None else first.partial_gradient(partition, w, rows)


class ManyProblems:
    """Problems trained at once, one a slot; they must agree in dimension, number type, number of samples and metric.

    >>> import anyk
    >>> problem = anyk.problems.from_data("synthetic:rows=60,features=4")
    >>> ManyProblems([problem, problem]).of("model 1") is problem
    True
    """

    def __init__(self, problems: Sequence[Problem]) -> None:
        if not problems:
            raise BadInput("there is no problem to train on")
        first = self._first = problems[0]
        for what in ("dimension", "dtype", "samples", "metric", "better"):
            values = [getattr(problem, what) for problem in problems]
            if any(value != values[0] for value in values):
                raise BadInput(f"models trained at once must agree in {what}, got {', '.join(map(str, values))}")
        self._of = dict(zip(slot_names(len(problems)), problems, strict=True))
        self.dimension, self.dtype, self.samples, self.l2 = first.dimension, first.dtype, first.samples, first.l2
        self.metric: str = first.metric
        self.better: Literal["higher", "lower"] = first.better

    def __repr__(self) -> str:
        return problem_text(self)

    def of(self, slot: str) -> Problem:
        """The problem of a slot."""
        return self._of[slot]

    @property
    def by_slot(self) -> dict[str, Problem]:
        """The problem of each slot."""
        return dict(self._of)

    @property
    def each(self) -> tuple[Problem, ...]:
        """All of them, in the order of the slots."""
        return tuple(self._of.values())

    def split(self, partitions: int, shares: Sequence[int] | None = None) -> Partitions:
        """Divide all problems into the same number of partitions."""
        parts = {slot: problem.split(partitions, shares) for slot, problem in self._of.items()}
        if len({tuple(part.sizes) for part in parts.values()}) > 1:
            raise BadInput("models trained at once must have partitions of the same sizes")
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

    @property
    def evaluated_on(self) -> Literal["train", "held_out"] | None:
        """The data that is evaluated by default: the choice of the first problem."""
        own: Literal["train", "held_out"] | None = getattr(self._first, "evaluated_on", "train")
        return own

    @property
    def endless(self) -> bool:
        """Whether the training data is a stream: all problems have the same number of samples."""
        return endless(self._first)

    def sampled(self, samples: int) -> ManyProblems:
        """Return the problems on a sample of their data; raise :class:`~anyk.errors.BadInput` if one has none."""
        return ManyProblems([sampled(problem, samples) for problem in self._of.values()])

    def predictor(self) -> Any:
        """Return the first problem's predictor, if it has one."""
        own = getattr(self._first, "predictor", None)
        return None if own is None else own()

    def digest(self) -> str | None:
        """Return a digest of the data of all problems."""
        distinct = {id(problem): data_digest(problem) for problem in self._of.values()}
        digests = [distinct[id(problem)] for problem in self._of.values()]
        return None if None in digests else digest_of(np.array(digests))

    def recipe(self) -> dict[str, Any] | None:
        """Return the recipes of all problems; None if a problem has none."""
        recipes = [problem.recipe() for problem in self._of.values()]
        return None if any(recipe is None for recipe in recipes) else {"many": recipes}


def sampled(problem: Problem, samples: int) -> Problem:
    """A problem with so many of its samples; raises :class:`~anyk.errors.BadInput` where it cannot give them."""
    make = getattr(problem, "sampled", None)
    if make is None:
        raise BadInput(
            f"{type(problem).__name__} cannot be evaluated on a sample of its data; give it a method "
            "sampled(samples), or leave samples out"
        )
    part: Problem = make(samples)
    return part


def check_partial_loss(partitions: Partitions) -> None:
    """Raise :class:`~anyk.errors.BadInput` where workers cannot be asked for the losses of partitions."""
    check = getattr(partitions, "check_partial_loss", None)
    if check is not None:
        check()
    elif not hasattr(partitions, "partial_loss"):
        raise BadInput(
            f"workers cannot evaluate {type(partitions).__name__}, which has no partial_loss(partition, w, rows); give "
            "it one, or evaluate where='driver' or 'aside'"
        )


def each_of(problem: Problem) -> tuple[Problem, ...]:
    """The problems of all slots."""
    return problem.each if isinstance(problem, ManyProblems) else (problem,)


def problem_of(problem: Problem, slot: str) -> Problem:
    """The objective of a slot: the problem itself, or one of many."""
    return problem.of(slot) if isinstance(problem, ManyProblems) else problem
