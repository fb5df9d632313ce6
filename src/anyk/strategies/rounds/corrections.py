"""Corrections of sums in which partitions are missing: by scaling, or by messages of an earlier round."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import fsum, sqrt
from typing import Literal

import numpy as np

from anyk.arrays import Floats
from anyk.codes import Code, RepetitionCode, Selection
from anyk.codes.decoders import EXACT
from anyk.errors import BadInput
from anyk.protocol import Combine
from anyk.strategies.rounds.state import RoundState
from anyk.strategies.wait import Decodable, Wait

Scaling = Literal["none", "marginal", "conditional"]


def rescale(decoding: Selection, factor: float, mean: float | None = None) -> Selection:
    """Return a decoding with all weights times ``factor``; ``mean``: its mean coefficient ``sum(a B) / m``.

    With ``p = a B`` the residual before is ``R^2 = p.p / m - 2 mean + 1``, after scaling by f
    ``f^2 (R^2 - 1 + 2 mean) - 2 f mean + 1``. For least squares p is the projection of the all-ones vector and the
    mean is ``1 - R^2``, the default.
    """
    if factor == 1.0:
        return decoding
    square = decoding.residual**2
    c = 1.0 - square if mean is None else mean
    residual = max(factor * factor * (square - 1.0 + 2.0 * c) - 2.0 * factor * c + 1.0, 0.0) ** 0.5
    return Selection(
        decoding.replies, [weight * factor for weight in decoding.weights], residual, decoding.gain * factor
    )


def scaling_of(scaling: Scaling, code: Code, rule: Wait) -> Callable[[Selection, Floats], Selection]:
    """Return the function that corrects a decoding, given the row sums of the current code.

    Raises :class:`~anyk.errors.BadInput` for ``marginal`` scaling if the expected coefficients under the code and the
    wait rule are unknown.
    """
    if scaling == "conditional" and code.blocks == 1:
        return lambda decoding, row_sums: _conditional(decoding, row_sums, code.partitions)
    if scaling != "marginal":
        return lambda decoding, row_sums: decoding
    counts = rule.counts()
    if len(counts) != 1:
        raise BadInput(f"scaling=marginal needs a fixed number of replies, as in wait=11; got wait={rule}")
    factors = np.asarray(1.0 / code.expected_coefficients(counts[0]))
    first = float(factors[0])
    if (factors == first).all():
        return lambda decoding, row_sums: rescale(decoding, first)
    return lambda decoding, row_sums: _by_group(decoding, factors, code)


def _conditional(decoding: Selection, row_sums: Floats, partitions: int) -> Selection:
    """Return a decoding divided by its mean coefficient."""
    if decoding.residual > EXACT:
        mean = float(np.array(decoding.weights) @ row_sums[decoding.replies]) / partitions
        if mean > 0:
            return rescale(decoding, 1.0 / mean, mean)
    return decoding


def _by_group(decoding: Selection, factors: Floats, code: Code) -> Selection:
    """Return a decoding with each reply times the factor of its group, as the chance of a reply depends on its size."""
    weights = np.zeros(code.replies)
    for reply, weight in zip(decoding.replies, decoding.weights, strict=True):
        weights[reply] = weight * factors[code.rows[reply][0][0]]
    judged = code.judge(weights)
    return Selection(decoding.replies, weights[decoding.replies].tolist(), judged.residual, judged.gain)


# ---------------------------------------------------------------------------------------------------- snapshots


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
