"""SR-SGC: missing results beyond what a code tolerates are computed again."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from anyk.checks import typed
from anyk.errors import BadInput
from anyk.strategies.sequential.bursts import ForBursts
from anyk.strategies.sequential.gc import OneCode, OneCodeState
from anyk.strategies.sequential.inner import Flags
from anyk.strategies.sequential.replay import Decided, KnownRounds, selective


@dataclass(slots=True)
class RepetitionState(OneCodeState):
    """The rounds, and which of the last count for nothing."""

    all_on: list[bool] = field(default_factory=list)  # of the last rounds: whether they count for nothing in the model


@typed
@dataclass(frozen=True, repr=False, kw_only=True)
class SelectiveRepetition(ForBursts, OneCode):
    """SR-SGC: a job's missing results beyond what the code tolerates are computed again B rounds later.

    For (``B``, ``W``, ``lambda``)-bursty stragglers, W = x B + 1: one code that tolerates
    ``s = ceil(B lambda / (W - 1 + B))`` for every job, of load (s + 1) / n; T = B. Of the workers that did not return
    job t - B in its round, those beyond s repeat it in round t, in order of their numbers; all others do job t.

    Where groups count (``inner=frc``), one worker repeats it for each group of which nobody returned it: one that was
    late, and not busy with a repetition. That is enough for any stragglers as long as these are in time B rounds later,
    and this is then the straggler model: W and lambda only say how large groups are.

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

    def _replayed(self, known: KnownRounds, groups: list[int]) -> Decided:
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

    def _repeating(self, s: RepetitionState, t: int) -> list[int]:
        """Return the workers beyond s that have not returned job t - B; a job that is done needs none."""
        if t - self.B < s.combined:
            return []
        miss = self._missing(s, t - self.B)
        group_of = self.within.group_of
        if group_of is None:
            return [int(i) for i in np.flatnonzero(miss)[: max(0, int(miss.sum()) - self.tolerated)]]
        late = self._in(s, range(t - self.B, t - self.B + 1))
        unheard = set(group_of.tolist()) - set(group_of[~miss].tolist())
        first = {int(group_of[i]): int(i) for i in [*np.flatnonzero(~late)[::-1], *np.flatnonzero(late)[::-1]]}
        return sorted(first[group] for group in unheard)

    def _skips(self, s: RepetitionState, t: int) -> bool:
        return bool(self.limit) and t >= self.limit and t - self.B < s.combined

    def _assign(self, s: RepetitionState, t: int) -> list[list[tuple[int, int]]]:
        again = set(self._repeating(s, t))
        fresh = [(t, 0)] if not self.limit or t < self.limit else []
        return [[(t - self.B, 0)] if worker in again else list(fresh) for worker in range(self.workers)]

    def _fits(self, s: RepetitionState, late: Flags) -> bool:
        if self.within.group_of is not None:
            return self._feasible(s, late)
        r = s.round
        first = r - len(s.all_on)
        counted = [q for q in range(max(0, r + 1 - self.W), r) if q < first or not s.all_on[q - first]]
        union = late.copy()
        before = np.zeros(self.workers, dtype=bool)
        for q in counted:
            straggled = self._in(s, range(q, q + 1))
            union |= straggled
            if q <= r - self.B:
                before |= straggled
        return int(union.sum()) <= self.lambda_ and not (before & late).any()

    def _feasible(self, s: RepetitionState, late: Flags) -> bool:
        """The job that ends now is done, and each begun can be, all of its missing results being repeated."""
        due = s.round - self.B
        if due < s.combined:
            return True
        missing = self._missing(s, due)
        missing[[i for i, work in enumerate(s.assigned) if work and work[0][0] == due and not late[i]]] = False
        return self.within.bears(missing)

    def _end_round(self, s: RepetitionState, late: Flags) -> None:
        again = [i for i, work in enumerate(s.assigned) if work and work[0][0] < s.round]
        s.all_on.append(int(late.sum()) <= self.tolerated and all(late[i] for i in again))
        del s.all_on[: max(0, len(s.all_on) - self.W)]
        self._forget_late(s, self.W)
