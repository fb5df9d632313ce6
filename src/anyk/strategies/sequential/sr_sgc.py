"""SR-SGC: missing results that a code does not tolerate are computed again."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from anyk.arrays import Flags
from anyk.checks import typed
from anyk.errors import BadInput
from anyk.strategies.sequential.bursts import ForBursts
from anyk.strategies.sequential.gc import OneCode, OneCodeState
from anyk.strategies.sequential.replay import Decided, KnownRounds, selective
from anyk.strategies.sequential.sequential_rounds import SequentialState


@dataclass(slots=True)
class RepetitionState(OneCodeState):
    """The rounds, and which of the last rounds do not count in the straggler model."""

    exempt: list[bool] = field(default_factory=list)  # whether a round does not count, for the last W rounds


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

    def _replay_rounds(self, known: KnownRounds, groups: list[int]) -> Decided:
        return selective(
            known,
            known.count,
            B=self.B,
            W=self.W,
            most=self.lambda_,
            tolerated=self.tolerated,
            end=self.end,
            groups=groups,
        )

    def _choose_repeaters(self, s: RepetitionState, t: int) -> list[int]:
        """Return the workers that repeat job t - B in round t; none if it is done."""
        if t - self.B < s.combined:
            return []
        missing = self._missing(s, t - self.B)
        group_of = self.within.group_of
        if group_of is None:
            return [int(i) for i in np.flatnonzero(missing)[: max(0, int(missing.sum()) - self.tolerated)]]
        late = self._straggled(s, [t - self.B])
        missing_groups = set(group_of.tolist()) - set(group_of[~missing].tolist())
        # the last worker of a group in this order is chosen
        repeater = {int(group_of[i]): int(i) for i in [*np.flatnonzero(~late)[::-1], *np.flatnonzero(late)[::-1]]}
        return sorted(repeater[group] for group in missing_groups)

    def _skips(self, s: RepetitionState, t: int) -> bool:
        return bool(self.limit) and t >= self.limit and t - self.B < s.combined

    def _assign(self, s: RepetitionState, t: int) -> list[list[tuple[int, int]]]:
        repeaters = set(self._choose_repeaters(s, t))
        new_job = [(t, 0)] if not self.limit or t < self.limit else []
        return [[(t - self.B, 0)] if worker in repeaters else list(new_job) for worker in range(self.workers)]

    def _fits(self, s: RepetitionState, late: Flags) -> bool:
        if self.within.group_of is not None:
            return self._feasible(s, late)
        r = s.round
        counted = [q for q in range(max(0, r + 1 - self.W), r) if not s.exempt[q - r]]
        stragglers = late | self._straggled(s, counted)
        late_again = late & self._straggled(s, [q for q in counted if q <= r - self.B])
        return int(stragglers.sum()) <= self.lambda_ and not late_again.any()

    def _feasible(self, s: RepetitionState, late: Flags) -> bool:
        """Return whether the job that is due in this round gets its sum; later jobs can still repeat all results."""
        due = s.round - self.B
        if due < s.combined:
            return True
        missing = self._missing(s, due)
        missing[[i for i, work in enumerate(s.assigned) if work and work[0][0] == due and not late[i]]] = False
        return self.within.bears(missing)

    def _finish_round(self, s: SequentialState, late: Flags) -> None:
        assert isinstance(s, RepetitionState)
        repeaters = [i for i, work in enumerate(s.assigned) if work and work[0][0] < s.round]
        s.exempt.append(int(late.sum()) <= self.tolerated and all(late[i] for i in repeaters))
        del s.exempt[: -self.W]
        super()._finish_round(s, late)
