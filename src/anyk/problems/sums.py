"""Check that the loss of several samples is the mean, or the sum, of their losses.

Only then do the gradients of partitions add up. A mean over the targets that are not padding is no such loss, nor is a
mean with class weights: each divides by a number that depends on the other samples of the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from anyk import keyed
from anyk.errors import BadInput
from anyk.problems.base import Array, Floats, Index, cut

TOGETHER = 4  # samples that a loss is tried on together before a run
_TRIED = 32  # samples of the data set that a loss is tried on before a run
_NUDGES = 4  # times that a loss is computed from slightly changed numbers, to measure the effect of rounding
_BEYOND = 8.0  # a difference larger than this multiple of the effect of rounding is no rounding

# loss and gradient of the samples at some places, as one vector; the second argument is None or a nudge
Measure = Callable[[Index, int | None], Floats]


def trial_groups(arrays: Sequence[Array], samples: int, together: int = TOGETHER) -> Iterator[Index]:
    """Yield groups of rows on which a loss is tried: at most 32 rows from all parts of the data, 4 or fewer in a group.

    Among them are the rows with the least and the largest number of each of ``arrays`` (shape (samples, …)), as padding
    and other targets that a loss omits are often extreme. ``together``: rows in a group, at most.

    >>> [rows.tolist() for rows in trial_groups([np.array([3, 3, 0, 3, 3, 9])], samples=6)]
    [[2, 4, 5], [0, 1, 3]]
    """
    places = [0, min(1, samples - 1)]
    for array in arrays:
        width = array.size // samples
        places += [int(extreme(array)) // width for extreme in (np.argmin, np.argmax) if width]
    ends = cut(samples, min(samples, _TRIED))
    random = keyed.generator(0, "telling", samples)
    places += random.permutation(random.integers(ends[:-1], ends[1:])).tolist()
    rows = random.permutation(list(dict.fromkeys(places))[:_TRIED]).astype(np.intp)
    for group in np.array_split(rows, -(-len(rows) // min(together, TOGETHER))):
        yield np.sort(group)


def adds_up(measure: Measure, count: int, *, tolerance: float, alone: Index | None = None, vectors: int = 1) -> bool:
    """Return whether the loss of ``count`` samples and its gradient are the sums over single samples, up to rounding.

    ``measure(places, nudge)`` returns the summed loss of the samples at these places, followed by its gradient, which
    consists of ``vectors`` vectors of equal length. With a ``nudge`` from 0 to 3 the numbers that the loss is computed
    from are changed by some roundings. ``alone``: the places of the samples that are measured one by one, by default
    all; if these are fewer, only gradients are compared. ``tolerance``: a relative difference that is always accepted.

    Returns True also where the answer cannot be found: if the loss draws random numbers, or is not finite.
    """
    every = np.arange(count)
    places = every if alone is None else alone

    def sizes(measured: Floats) -> Floats:
        """Return the absolute loss, and the norm of the longest vector of the gradient."""
        norms = np.linalg.norm(measured[1:].reshape(vectors, -1), axis=1)
        return np.array([abs(measured[0]), norms.max()])

    def measure_singly() -> tuple[Floats, Floats]:
        """Return the sum over single samples, one in memory at a time, and the sizes of each."""
        total, each = np.zeros_like(whole), []
        for place in places:
            own = measure(every[place : place + 1], None)
            total += own
            each.append(sizes(own))
        return total, np.array(each)

    whole = measure(every, None)
    if whole[0] != measure(every, None)[0] or not np.isfinite(whole).all():
        return True
    total, each = measure_singly()
    difference = sizes(total - whole)
    if len(places) < count:
        difference[0] = 0.0  # the loss cannot be compared
    allowed = tolerance * np.max([sizes(whole), *each], axis=0)
    if (difference <= allowed).all() or not np.array_equal(measure_singly()[1], each, equal_nan=True):
        return True
    rounding = np.max([sizes(measure(every, nudge) - whole) for nudge in range(_NUDGES)], axis=0)
    return bool((difference <= np.fmax(allowed, _BEYOND * rounding)).all())  # False for NaN


def nudge_signs(size: int, nudge: int) -> Floats:
    """Return changes of ``size`` numbers in multiples of their rounding: 4 up or down."""
    return keyed.generator(nudge, "nudged", size).choice((-4.0, 4.0), size)


def not_a_sum(samples: str, advice: str, *, mean: bool) -> BadInput:
    """Return the error for a loss of several ``samples`` that is not the mean, or the sum, of their losses."""
    return BadInput(
        f"the loss of {samples} together is not the {'mean' if mean else 'sum'} of their losses: it weighs or leaves "
        f"out targets, or looks at several samples at once; {advice}"
    )
