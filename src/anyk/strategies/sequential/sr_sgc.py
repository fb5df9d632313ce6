"""SR-SGC: missing results that a code does not tolerate are computed again."""

from __future__ import annotations

from dataclasses import dataclass, field

from anyk.base.checks import typed
from anyk.base.errors import BadInput
from anyk.strategies.sequential.gc import OneCode, OneCodeState
from anyk.strategies.sequential.replay import Decided, KnownRounds, as_bits, choose_repeaters, selective, workers_in
from anyk.strategies.sequential.sequential_rounds import ForBursts
from anyk.strategies.sequential.sequential_settings import SequentialState, Work


@dataclass(slots=True)
class RepetitionState(OneCodeState):
    """The rounds, and all stragglers of the last rounds; ``late`` has only the stragglers that count in the model."""

    stragglers: list[list[int]] = field(default_factory=list)  # of the last B rounds


@typed
@dataclass(frozen=True, repr=False, kw_only=True)
class SelectiveRepetition(ForBursts, OneCode):
    """SR-SGC: a job's missing results beyond what the code tolerates are computed again B rounds later.

    For (``B``, ``W``, ``lambda``)-bursty stragglers, with W - 1 a multiple of B: every job has a code that tolerates
    ``s = ceil(B lambda / (W - 1 + B))`` stragglers, of load (s + 1) / n; T = B. If more than s workers did not return
    job t - B in its round, they repeat it in round t, except the s workers with the highest numbers among them; all
    others do job t.

    If groups count (``inner=frc``), one worker of each group without a result repeats the job; a worker that was late
    is preferred to one that was busy with a repetition. Any workers may then straggle, except those that repeat a job:
    this is the straggler model, and W and lambda only determine the size of the groups.

    >>> SelectiveRepetition(256, B=2, W=3, lambda_=23).tolerated
    12
    """

    name = "sr-sgc"
    State = RepetitionState

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.W - 1) % self.B:
            raise BadInput(f"W - 1 of 'sr-sgc' must be a multiple of B = {self.B}, got W = {self.W}")

    @property
    def T(self) -> int:
        return self.B

    @property
    def tolerated(self) -> int:
        return -(-self.B * self.lambda_ // (self.W - 1 + self.B))

    def replay_rounds(self, known_rounds: KnownRounds) -> Decided:
        return selective(
            known_rounds,
            known_rounds.count,
            B=self.B,
            W=self.W,
            most=self.lambda_,
            tolerated=self.tolerated,
            end=self.end,
            groups=self.groups,
        )

    def _skips(self, s: RepetitionState, t: int) -> bool:
        return bool(self.limit) and t >= self.limit and t - self.B < s.combined

    def _assign(self, s: RepetitionState, t: int) -> list[Work]:
        due, repeaters = t - self.B, 0
        if due >= s.combined:
            repeaters = choose_repeaters(
                self._missing(s, due), as_bits(s.stragglers[-self.B]), self.groups, self.tolerated
            )
        new_job = [(t, 0)] if not self.limit or t < self.limit else []
        return [[(due, 0)] if repeaters >> worker & 1 else list(new_job) for worker in range(self.workers)]

    def _fits(self, s: RepetitionState, late: int) -> bool:
        return self._feasible(s, late) if self.groups else super()._fits(s, late)

    def _repeaters(self, s: RepetitionState) -> int:
        """Return the workers that repeat a job in this round."""
        return as_bits(i for i, work in enumerate(s.assigned) if work and work[0][0] < s.round)

    def _feasible(self, s: RepetitionState, late: int) -> bool:
        """Return whether the job that is due in this round gets its sum; later jobs can still repeat all results."""
        due = s.round - self.B
        if due < s.combined:
            return True
        return self._decodes_without(self._missing(s, due) & ~(self._repeaters(s) & ~late))

    def _finish_round(self, s: SequentialState, late: int) -> None:
        assert isinstance(s, RepetitionState)
        s.stragglers = [*s.stragglers, workers_in(late)][-self.B :]
        counts = late.bit_count() > self.tolerated or self._repeaters(s) & ~late
        super()._finish_round(s, late if counts else 0)
