"""Scaling: the correction of sums in which partitions are missing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np

from anyk.base.arrays import Floats
from anyk.base.errors import BadInput
from anyk.codes import Code, Selection
from anyk.codes.decoders import EXACT
from anyk.strategies.wait import Wait

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

    Raises :class:`~anyk.BadInput` for ``marginal`` scaling if the expected coefficients under the code and the
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
