"""GC, round by round: one code of n partitions for every job, and one message per worker and round."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from anyk.base.checks import typed
from anyk.base.errors import BadInput
from anyk.codes.base import Row
from anyk.protocol import Layout
from anyk.strategies.sequential.jobs import JobSum, Place
from anyk.strategies.sequential.replay import End, Tolerance
from anyk.strategies.sequential.sequential_rounds import SequentialRounds
from anyk.strategies.sequential.sequential_settings import SequentialState, Work


@dataclass(slots=True)
class OneCodeState(SequentialState):
    """The rounds, and the messages that have arrived."""

    results: dict[int, dict[int, Place]] = field(default_factory=dict)  # job -> worker -> its message


@dataclass(frozen=True, repr=False, kw_only=True)
class OneCode(SequentialRounds):
    """Schemes with one code of n partitions for every job, and one message per worker and round."""

    State = OneCodeState

    def __post_init__(self) -> None:
        if not 0 <= self.tolerated < self.workers:
            raise BadInput(
                f"'{self.name}' would have to tolerate {self.tolerated} of {self.workers} workers; at most all but one"
            )
        super().__post_init__()

    @property
    def load(self) -> float:
        return self.code.load / self.workers

    @cached_property
    def layout(self) -> Layout:
        return Layout(
            workers=self.workers,
            partitions=self.workers,
            assignment=self.code.assignment,
            slots=self.slots,
            minibatches=self.batch > 0,
        )

    @cached_property
    def _piece_rows(self) -> tuple[tuple[Row], ...]:
        return tuple((row,) for row in self.code.rows)

    def _deliver(self, s: OneCodeState, worker: int, job: int, piece: int, message: Place) -> None:
        s.results.setdefault(job, {})[worker] = message

    def _job_done(self, s: OneCodeState, job: int) -> bool:
        return self._decodes_without(self._missing(s, job))

    def _missing(self, s: OneCodeState, job: int) -> int:
        """Return the workers whose result of a job is missing, as bits of a whole number."""
        return self._without(s.results.get(job, ()))

    def _job_sum(self, s: OneCodeState, job: int) -> JobSum:
        return self._decode(s.results.pop(job))


@typed
@dataclass(frozen=True, repr=False, kw_only=True)
class GradientCodingRounds(OneCode):
    """Gradient coding round by round, T = 0: the baseline of the sequential codes.

    Any ``stragglers`` workers may be late. Rounds are independent, so none gains by waiting longer: by default a round
    ends when it is decodable. ``strict``: only fewer than ``stragglers`` workers may be late, as in the implementation
    published with the sequential codes. ``inner``: frc, cyclic or binary (auto: frc where it fits, else cyclic).

    >>> GradientCodingRounds(30, stragglers=2).spec
    'gc:stragglers=2'
    """

    name = "gc"
    T = 0
    _own_settings = ("stragglers",), ("strict",)

    stragglers: int
    end: End = "decodable"
    strict: bool = False

    @property
    def tolerated(self) -> int:
        return self.stragglers

    def _tolerance(self) -> Tolerance:
        return Tolerance(self.stragglers - 1, []) if self.strict else Tolerance(self.stragglers, self.groups)

    def _assign(self, s: OneCodeState, t: int) -> list[Work]:
        return [[(t, 0)]] * self.workers

    def _feasible(self, s: OneCodeState, late: int) -> bool:
        return self._decodes_without(late)
