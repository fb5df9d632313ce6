"""How many stragglers it takes to do harm, when somebody chooses them, and what that somebody must know.

An adversary of gradient codes picks the workers that straggle so that the decoded sum is as wrong as possible. One that
knows the ``code`` searches for the worst set. One that knows the ``overlaps`` only, how many partitions any two workers
share but not what they compute, looks for a community of workers that share much (Charles and Papailiopoulos 2018).
One that knows ``nothing`` draws at random.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from anyk import keyed
from anyk.codes import Code, worst_stragglers
from anyk.codes.base import incidence
from anyk.codes.decoders import Decoding, Method, method
from anyk.errors import BadInput

Knowledge = Literal["code", "overlaps", "nothing"]


def chosen_stragglers(
    code: Code, stragglers: int, *, knows: Knowledge = "code", decoder: str | Method = "own", seed: int = 0
) -> tuple[tuple[int, ...], Decoding]:
    """The workers that an adversary picks, and the decoding without them.

    Where it knows the code the set is that of :func:`~anyk.codes.worst_stragglers`, a search, or what the overlaps
    suggest, if that is worse: the worst there is may be worse still. ``seed`` is for one that knows nothing. Raises
    :class:`~anyk.errors.BadInput` for a number of stragglers below 0 or not below the number of workers.

    >>> import anyk
    >>> code = anyk.code("frc:load=3", workers=9)
    >>> [chosen_stragglers(code, 3, knows=knows)[0] for knows in ("code", "overlaps")]
    [(0, 1, 2), (0, 1, 2)]
    """
    n, c = code.workers, code.messages
    if not 0 <= stragglers < n:
        raise BadInput(f"stragglers must be at least 0 and below {n}, got {stragglers}")
    if knows in ("code", "overlaps"):
        lost = _community(code, stragglers)
    elif knows == "nothing":
        lost = np.sort(keyed.generator(seed, "adversary", n, stragglers).permutation(n)[:stragglers])
    else:
        raise BadInput(f"knows must be code, overlaps or nothing, got {knows!r}")
    here = np.setdiff1d(np.arange(n), lost)
    found = tuple(lost.tolist()), code.decode((here[:, None] * c + np.arange(c)).ravel(), decoder=method(decoder))
    if knows == "code":
        searched = worst_stragglers(code, stragglers, decoder=decoder)
        return max(searched, found, key=lambda choice: choice[1].residual)
    return found


def _community(code: Code, size: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Workers that share most with each other: grown from each worker in turn, the set of largest total overlap."""
    held = incidence(code.assignment, code.partitions)
    overlap = np.asarray((held @ held.T).todense())
    np.fill_diagonal(overlap, 0.0)
    best, most = np.empty(0, dtype=np.int64), -1.0
    for first in range(code.workers if size else 0):
        inside = np.zeros(code.workers, dtype=bool)
        inside[first] = True
        shared, total = overlap[first].copy(), 0.0
        for _ in range(size - 1):
            at = int(np.argmax(np.where(inside, -1.0, shared)))
            inside[at] = True
            total += shared[at]
            shared += overlap[at]
        if total > most:
            best, most = np.flatnonzero(inside), total
    return best


def adversarial_threshold(
    code: Code, error: float, *, knows: Knowledge = "code", decoder: str | Method = "own", seed: int = 0
) -> int | None:
    """The least number of chosen stragglers that pushes the error per partition, residual^2, to ``error`` or more.

    None where even all workers but one missing do not. For an adversary that searches it is an upper bound: a better
    search may need fewer.

    >>> import anyk
    >>> adversarial_threshold(anyk.code("frc:load=3", workers=9), 0.3)
    3
    """
    if not 0.0 < error <= 1.0:
        raise BadInput(f"the error per partition must be above 0 and at most 1, got {error:g}")
    found = None
    low, high = 0, code.workers
    while high - low > 1:  # errors grow with the number of stragglers
        middle = (low + high) // 2
        _, decoding = chosen_stragglers(code, middle, knows=knows, decoder=decoder, seed=seed)
        if decoding.residual**2 >= error - 1e-12:
            found = high = middle
        else:
            low = middle
    return found
