"""Steps corrected by messages of an earlier round, whose sum was exact: variance reduction for approximate codes."""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum, sqrt

from anyk.codes import Code, RepetitionCode, Selection
from anyk.errors import BadInput
from anyk.protocol import Combine
from anyk.strategies.rounds.state import RoundState
from anyk.strategies.wait import Decodable, Wait


def check_snapshot(every: int, code: Code, rule: Wait) -> None:
    """Raise :class:`~anyk.errors.BadInput` if rounds of a code cannot have a snapshot every ``every`` rounds."""
    if every < 2:
        raise BadInput(f"snapshot must be at least 2 rounds (0: no snapshots), got {every}")
    if not isinstance(code, RepetitionCode):
        raise BadInput(
            f"snapshot corrects the sums of groups of workers, and '{code.spec}' has no groups; take agc, frc, bcc or "
            "uncoded"
        )
    if rule == Decodable():
        raise BadInput(
            "snapshot corrects steps taken early, and these are all exact; add wait=…, or leave snapshot out"
        )


def at_snapshot(s: RoundState, every: int) -> bool:
    """Return whether this round, one in ``every`` (0: none), waits for the exact sum."""
    return every > 0 and s.version % every == 0


def corrected(s: RoundState, code: Code, decoding: Selection, every: int) -> tuple[Combine, Sequence[int]]:
    """Return the corrected step of a round that is over, and the tasks to be cancelled after it.

    With ``a_u`` the weight of group u in this round's decoding (0: no reply), ``g_u(w)`` the sum of its partial
    gradients and ``v`` the version of its last snapshot, the estimate of the gradient is

        sum_u g_u(v) + sum_u a_u (g_u(w) - g_u(v)),

    for which the messages of the snapshot, stored on the driver, are used again. Its error is
    ``sum_u (a_u - 1) (g_u(w) - g_u(v))``: it vanishes as the model converges, unlike the error of the decoding alone
    (Johnson and Zhang 2013, with groups of workers in place of samples). In a round :func:`at_snapshot` the new message
    of each group that has replied is stored.
    """
    assert isinstance(code, RepetitionCode)
    snapshot, tasks = at_snapshot(s, every), range(s.first, s.crew.next)
    groups = [code.group_of[reply] for reply in decoding.replies]
    fresh = [(s.task_of[reply], 0) for reply in decoding.replies]
    weight = dict(zip(groups, decoding.weights, strict=True))
    remaining = {group: 1.0 - weight.get(group, 0.0) for group in sorted(s.snapshot)}
    again = [group for group in remaining if remaining[group]]
    sizes = [len(block) for block in code.blocks_of]
    missing = fsum(n * (weight.get(u, 0.0) - 1.0) ** 2 for u, n in enumerate(sizes) if u not in remaining)
    gain = fsum(sizes[u] * a * a for u, a in weight.items()) + fsum(sizes[u] * remaining[u] ** 2 for u in again)
    step = Combine(
        "model",
        [*fresh, *((s.snapshot[group], 0) for group in again)],
        [*decoding.weights, *(remaining[group] for group in again)],
        "all",
        1.0,
        sqrt(missing / code.partitions),
        sqrt(gain),
        keep=fresh if snapshot else (),
    )
    if not snapshot:
        return step, tasks
    done = [s.snapshot[group] for group in groups if group in s.snapshot]
    new = {group: task for group, (task, _) in zip(groups, fresh, strict=True)}
    s.snapshot |= new
    return step, [*done, *sorted(set(tasks) - set(new.values()))]
