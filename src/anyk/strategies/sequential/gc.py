"""One code of n partitions for every job, and one message a worker and round: GC, round by round."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from anyk.checks import typed
from anyk.codes import Code
from anyk.errors import BadInput
from anyk.protocol import Layout
from anyk.specs import show
from anyk.strategies.sequential.base import (
    DEFAULTS,
    Flags,
    Place,
    SequentialRounds,
    SequentialState,
    inner_code,
)


@dataclass(slots=True)
class OneCodeState(SequentialState):
    """The rounds, and the messages that are in."""

    results: dict[int, dict[int, Place]] = field(default_factory=dict)  # job -> worker -> its message


@dataclass(frozen=True, repr=False, kw_only=True)
class OneCode(SequentialRounds):
    """Schemes with one code of n partitions for every job, and one message a worker and round."""

    State = OneCodeState

    def __post_init__(self) -> None:
        if not 0 <= self.tolerated < self.workers:
            raise BadInput(
                f"'{self.name}' would have to tolerate {self.tolerated} of {self.workers} workers; at most all but one"
            )
        super().__post_init__()

    @property
    @abstractmethod
    def tolerated(self) -> int:
        """s, the workers that may be missing from a job."""

    @property
    def load(self) -> float:
        """See :class:`SequentialRounds`."""
        return (self.tolerated + 1) / self.workers

    @cached_property
    def code(self) -> Code:
        """The code within a job."""
        return inner_code(self.inner, self.workers, self.tolerated)

    @cached_property
    def layout(self) -> Layout:
        """See :class:`~anyk.protocol.Strategy`."""
        return Layout(self.workers, self.workers, self.code.assignment, self.slots)

    def _rows(self, worker: int, piece: int) -> tuple[tuple[int, ...], tuple[float, ...]]:
        del piece
        return self.code.rows[worker]

    def _deliver(self, s: OneCodeState, worker: int, job: int, piece: int, place: Place) -> None:
        del piece
        s.results.setdefault(job, {})[worker] = place

    def _job_done(self, s: OneCodeState, job: int) -> bool:
        return len(s.results.get(job, ())) >= self.workers - self.tolerated

    def _job_sum(self, s: OneCodeState, job: int) -> tuple[list[Place], list[float], float, float]:
        results = s.results.pop(job)
        replies = sorted(results)
        decoding = self.code.decode(replies)
        used = [(results[r], float(decoding.weights[r])) for r in replies if decoding.weights[r]]
        return [place for place, _ in used], [a for _, a in used], decoding.residual, decoding.gain


@typed
@dataclass(frozen=True, repr=False, kw_only=True)
class GradientCodingRounds(OneCode):
    """Gradient coding round by round, T = 0: what the sequential codes are compared with.

    Any ``stragglers`` workers may be late at the cut-off. ``strict``: only fewer than that, as the code published with
    the sequential codes has it. ``inner``: frc, cyclic or binary (auto: frc where it fits, else cyclic).

    >>> GradientCodingRounds(30, stragglers=2).spec
    'gc:stragglers=2'
    """

    name = "gc"
    T = 0

    stragglers: int
    strict: bool = False

    @property
    def tolerated(self) -> int:
        """See :class:`OneCode`."""
        return self.stragglers

    @cached_property
    def spec(self) -> str:
        """The short form."""
        values: dict[str, Any] = {"stragglers": self.stragglers, "mu": self.mu, "wait": self.wait}
        values |= {"strict": self.strict, "inner": self.inner, "models": self.trained, "jobs": self.jobs}
        return show(self.name, values | {"batch": self.batch}, DEFAULTS | {"models": 1})

    def _assign(self, s: OneCodeState, t: int) -> list[list[tuple[int, int]]]:
        return [[(t, 0)]] * self.workers

    def _fits(self, s: OneCodeState, late: Flags) -> bool:
        return int(late.sum()) < self.stragglers + (not self.strict)

    def _feasible(self, s: OneCodeState, late: Flags) -> bool:
        return int(late.sum()) <= self.stragglers

    def _end_round(self, s: OneCodeState, late: Flags) -> None:
        self._forget_late(s, 0)
