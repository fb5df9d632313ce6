"""Snapshots: rounds whose sum is exact, and whose messages correct later approximate steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import fsum, sqrt

from anyk.base.checks import typed
from anyk.base.errors import BadInput
from anyk.codes import RepetitionCode, Selection
from anyk.protocol import Combine
from anyk.strategies.rounds.state import Ending, RoundState
from anyk.strategies.rounds.terms import RoundTerms
from anyk.strategies.wait import Decodable


@dataclass(slots=True)
class SnapshotState:
    """The messages of the last snapshot."""

    stored: dict[int, int] = field(default_factory=dict)  # group -> task whose message is stored


@typed
@dataclass(frozen=True)
class Snapshot:
    """Every ``every`` rounds one waits until its sum is exact, and its messages correct the steps of the others.

    With ``a_u`` the weight of group u in a round's decoding (0: no reply), ``g_u(w)`` the sum of its partial gradients
    and ``v`` the version of its last snapshot, the estimate of the gradient is

        sum_u g_u(v) + sum_u a_u (g_u(w) - g_u(v)),

    for which the messages of the snapshot, stored on the driver, are used again. Its error is
    ``sum_u (a_u - 1) (g_u(w) - g_u(v))``: it vanishes as the model converges, unlike the error of the decoding alone
    (Johnson and Zhang 2013, with groups of workers in place of samples).
    """

    State = SnapshotState

    every: int

    def __post_init__(self) -> None:
        if self.every < 2:
            raise BadInput(f"snapshot must be at least 2 rounds (0: no snapshots), got {self.every}")

    def check(self, rounds: RoundTerms) -> None:
        """Raise :class:`~anyk.BadInput` if these rounds cannot have snapshots."""
        if not isinstance(rounds.code, RepetitionCode):
            raise BadInput(
                f"snapshot corrects the sums of groups of workers, and '{rounds.code.spec}' has no groups; take agc, "
                "frc, bcc or uncoded"
            )
        if rounds.rule == Decodable():
            raise BadInput(
                "snapshot corrects steps taken early, and these are all exact; add wait=…, or leave snapshot out"
            )
        if rounds.changes is not None:
            raise BadInput(
                f"snapshot uses earlier messages of groups again, whose partitions change under {rounds.changes.name}; "
                "leave out either"
            )
        if rounds.models > 1 or rounds.batch or not rounds.own_decoder:
            raise BadInput("snapshot has been tested with wait, scaling and cancel only; leave out the rest")

    def is_due(self, s: RoundState) -> bool:
        """Return whether this round waits for the exact sum."""
        return s.version % self.every == 0

    def ending(self, s: RoundState) -> Ending | None:
        """Return the condition that ends a round that is due; None for the others."""
        return _is_exact if self.is_due(s) else None

    def corrected(self, s: RoundState, decoding: Selection) -> tuple[Combine, Sequence[int]]:
        """Return the corrected step of a round that is over, and the tasks to be cancelled after it.

        In a round that :meth:`is_due` the new message of each group that has replied is stored.
        """
        code, stored = s.code, s.work.snapshot.stored
        assert isinstance(code, RepetitionCode)
        due, tasks = self.is_due(s), range(s.first, s.crew.next)
        groups = [code.group_of[reply] for reply in decoding.replies]
        fresh = [(s.task_of[reply], 0) for reply in decoding.replies]
        weight = dict(zip(groups, decoding.weights, strict=True))
        remaining = {group: 1.0 - weight.get(group, 0.0) for group in sorted(stored)}
        incomplete = [group for group in remaining if remaining[group]]
        residual, gain = _quality(code, weight, remaining)
        step = Combine(
            "model",
            [*fresh, *((stored[group], 0) for group in incomplete)],
            [*decoding.weights, *(remaining[group] for group in incomplete)],
            residual=residual,
            gain=gain,
            keep=fresh if due else (),
        )
        if not due:
            return step, tasks
        done = [stored[group] for group in groups if group in stored]
        new = {group: task for group, (task, _) in zip(groups, fresh, strict=True)}
        stored.update(new)
        return step, [*done, *sorted(set(tasks) - set(new.values()))]


def _is_exact(s: RoundState) -> bool:
    """Return whether the replies give the exact sum."""
    return bool(s.decoder.decodable)


def _quality(code: RepetitionCode, weight: dict[int, float], remaining: dict[int, float]) -> tuple[float, float]:
    """Return the residual and the gain of a corrected step.

    ``weight``: of each group's fresh message. ``remaining``: of its stored one, if there is one.
    """
    sizes = [len(block) for block in code.blocks_of]
    missing = fsum(n * (weight.get(u, 0.0) - 1.0) ** 2 for u, n in enumerate(sizes) if u not in remaining)
    fresh = fsum(sizes[u] * a * a for u, a in weight.items())
    stored = fsum(sizes[u] * a**2 for u, a in remaining.items())
    return sqrt(missing / code.partitions), sqrt(fresh + stored)
