"""Codes against Byzantine workers, whose replies may be anything; comparing one number of each reply exposes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from anyk.checks import AtLeastZero, value_class
from anyk.codes.base import Code, Decoder, Floats, Indices, Policy, RegisteredCode, Row, check_workers
from anyk.codes.decoders import METHODS, Decoding
from anyk.codes.made import fixed_property
from anyk.codes.mds import CyclicMDS
from anyk.codes.repetition import FractionalRepetition, RepetitionCode
from anyk.errors import BadInput

Complex = NDArray[np.complex128]

_MOST_WORKERS, _MOST_BYZANTINE = 40, 5  # of the cyclic kind
_SAME = 1e-9  # replicas agree if their projections differ by less than this fraction
_CLEAN = 1e-9  # a syndrome below this fraction of the largest projection (times n) is rounding of float64 replies


@value_class
class DracoCode(RegisteredCode):
    """DRACO: the exact sum although ``byzantine`` workers reply whatever they like and ``stragglers`` do not reply.

    Each reply is projected on one random vector; these numbers reveal the liars (with probability 1 if they do not
    know the vector: a harmful lie would have to be orthogonal to it), and the sum is decoded from the others
    (Chen, Wang, Charles and Papailiopoulos 2018). The vector is sampled by key, so that runs can be replayed; an
    adversary that knows the key can lie undetected. With t Byzantine workers and f stragglers every partition has
    ``2 t + f + 1`` holders, the least possible.

    ``kind="repetition"``: groups of 2 t + f + 1 or more replicas; a group is decided when t + 1 replies agree, since
    one is honest. ``kind="cyclic"``: the real cyclic MDS code of tolerance 2 t + f. The projections of honest
    replies are a code word. The syndromes of the received projections are a sum of exponentials, whose frequencies
    (by Prony's method) identify the Byzantine workers. For up to 40 workers, up to 5 Byzantine, and float64 replies;
    lies of the size of rounding (1e-6 of the largest reply) may be blamed on another worker, which harms the sum as
    little as they do.

    Replicas must agree to 1e-9. A reply that is not finite is set aside beforehand, like a straggler's. Raises
    :class:`~anyk.errors.BadInput` for fewer than ``2 t + f + 1`` workers.

    >>> code = DracoCode(9, byzantine=1)
    >>> code.load, code.tolerates, locate(code, range(9), [3.0] * 3 + [1.0, 7.0, 1.0] + [2.0] * 3)
    (3, 0, (4,))
    """

    workers: int
    byzantine: AtLeastZero = 1
    stragglers: AtLeastZero = 0
    kind: Literal["repetition", "cyclic"] = "repetition"
    name = "draco"
    optional = ("stragglers", "kind")

    def __post_init__(self) -> None:
        n = check_workers(self.workers)
        if self._spare >= n:
            raise BadInput(
                f"draco:byzantine={self.byzantine},stragglers={self.stragglers} needs 2 x byzantine + stragglers + 1 "
                f"workers, and there are {n}; at most {max(0, (n - 1 - self.stragglers) // 2)} may lie"
            )
        if self.kind == "cyclic" and (n > _MOST_WORKERS or self.byzantine > _MOST_BYZANTINE):
            raise BadInput(
                f"draco:kind=cyclic finds up to {_MOST_BYZANTINE} Byzantine workers among at most {_MOST_WORKERS} "
                f"in double precision, got {n} with {self.byzantine}; use kind=repetition"
            )

    @property
    def _spare(self) -> int:
        return 2 * self.byzantine + self.stragglers

    @fixed_property
    def code(self) -> Code:
        """Code of the messages."""
        kind = FractionalRepetition if self.kind == "repetition" else CyclicMDS
        return kind(self.workers, stragglers=self._spare)

    @property
    def tolerates(self) -> int:
        """Number of stragglers besides the Byzantine workers."""
        return self.stragglers

    @property
    def rows(self) -> Sequence[Row]:
        return self.code.rows

    def policy(self) -> Policy:
        return Policy(projected=True)

    def decoder(self) -> Decoder:
        """Return a decoder that also receives projections; without them every worker counts as honest."""
        return ByzantineDecoder(self)

    def _solve(self, replies: Indices) -> Floats:
        return self.code._solve(replies)


class ByzantineDecoder(Decoder):
    """Receives replies and their projections; decodable when Byzantine workers would have been detected."""

    def __init__(self, code: DracoCode) -> None:
        self._code = code
        self._projections: dict[int, float] = {}  # of workers that may be honest; 0 if not measured
        self._invalid: set[int] = set()  # workers whose replies are not finite
        self.byzantine: tuple[int, ...] = ()

    def measure(self, worker: int, value: float) -> None:
        if np.isfinite(value):
            self._projections[worker] = value
        else:
            self._invalid.add(worker)

    def add(self, worker: int) -> bool:
        if worker not in self._invalid:
            self._projections.setdefault(worker, 0.0)
        code, invalid, replied = self._code, len(self._invalid), sorted(self._projections)
        liars: tuple[int, ...] | None = None
        enough = code.kind == "repetition" or len(replied) + invalid >= code.workers - code.stragglers
        if enough and invalid <= code.byzantine:
            liars = locate(code, replied, [self._projections[i] for i in replied], known=invalid)
        self.decodable = liars is not None
        self.byzantine = tuple(sorted([*self._invalid, *(liars or ())]))
        return self.decodable

    @property
    def residual(self) -> float:
        """Residual of a step taken now; 1 until Byzantine workers would have been detected."""
        return self.decode().residual if self.decodable else 1.0

    def decode(self) -> Decoding:
        """Return weights for the replies of workers that are not known to lie."""
        honest = sorted(self._projections.keys() - self.byzantine)
        return self._code._decode(np.array(honest, dtype=np.int64), METHODS["own"])


def locate(
    code: DracoCode, replied: Sequence[int], values: Sequence[float], *, known: int = 0
) -> tuple[int, ...] | None:
    """Return the Byzantine workers among ``replied`` (ascending) by the projections ``values``; None: undecided yet.

    With repetition each group must have ``byzantine + 1`` replies that agree. ``known``: the number of Byzantine
    workers detected before, which are not among the replies.
    """
    if code.kind == "repetition":
        return _outvoted(code, replied, values)
    return _off_the_code(code, replied, values, code.byzantine - known)


def _outvoted(code: DracoCode, replied: Sequence[int], values: Sequence[float]) -> tuple[int, ...] | None:
    inner = code.code
    assert isinstance(inner, RepetitionCode)
    groups: list[dict[int, float]] = [{} for _ in range(inner.groups)]
    for worker, value in zip(replied, values, strict=True):
        groups[inner.group_of[worker]][worker] = value
    byzantine: list[int] = []
    for replies in groups:
        for value in replies.values():
            agree = {i for i, other in replies.items() if abs(other - value) <= _SAME * max(abs(other), abs(value))}
            if len(agree) > code.byzantine:
                byzantine += replies.keys() - agree
                break
        else:
            return None
    return tuple(sorted(byzantine))


def _off_the_code(
    code: DracoCode, replied: Sequence[int], values: Sequence[float], most: int
) -> tuple[int, ...] | None:
    """Return the Byzantine workers by decoding errors and erasures, repeatedly, as detected workers are erased.

    A huge lie hides a small one in its rounding; once it is erased the small one shows.
    """
    inner = code.code
    assert isinstance(inner, CyclicMDS)
    n, spare = code.workers, inner.tolerates
    at = np.arange(n)
    nodes, first = np.exp(2j * np.pi * at / n), np.exp(1j * inner.angles[:1].sum() * at)
    y, here = np.zeros(n), np.zeros(n, dtype=bool)
    y[list(replied)], here[list(replied)] = values, True
    if spare - (n - len(replied)) < 2 * most:
        return None
    byzantine: list[int] = []
    while size := float(np.abs(y[here]).max(initial=0.0)):
        liars = _loudest(np.where(here, y / size, 0.0) * first, nodes, np.flatnonzero(~here), spare)
        if liars is None or len(byzantine) + len(liars) > most:
            return None
        if not len(liars):
            break
        byzantine += liars.tolist()
        here[liars] = False
    return tuple(sorted(byzantine))


def _loudest(weighted: Complex, nodes: Complex, lost: Indices, spare: int) -> Indices | None:
    """Return the fewest workers whose errors explain the syndromes up to rounding; None if no few workers do.

    With ``nodes`` z_i the syndromes are ``S_l = sum_i e_i z_i^l``; multiplied by ``prod (X - z_q)`` over the lost they
    forget these. Their recurrence of order r, ``sum_b c_b S_(a+b) = -S_(a+r)``, has as roots the nodes of
    r Byzantine workers.
    """
    syndromes = np.array([(weighted * nodes**power).sum() for power in range(spare)])
    erased = np.ones(1, dtype=complex)  # prod (X - z_q), lowest power first
    for q in lost.tolist():
        erased = np.convolve(erased, [-nodes[q], 1.0])
    clean = np.array([(erased * syndromes[a : a + len(erased)]).sum() for a in range(spare - len(lost))])
    if not len(clean) or np.abs(clean).max() <= _CLEAN * len(nodes) * float(np.abs(erased).max()):
        return np.empty(0, dtype=np.int64)
    for byzantine in range(1, len(clean) // 2 + 1):
        square = np.array([clean[a : a + byzantine] for a in range(len(clean) - byzantine)])
        low = np.linalg.lstsq(square, -clean[byzantine:], rcond=None)[0]
        locator = np.concatenate([low, [1.0]])
        size_at = np.abs(np.polyval(locator[::-1], nodes))
        size_at[lost] = np.inf
        liars = np.sort(np.argsort(size_at)[:byzantine])
        if _explains(nodes, spare, np.union1d(liars, lost), syndromes):
            return liars
    return None


def _explains(nodes: Complex, spare: int, bad: Indices, syndromes: Complex) -> bool:
    """Return whether errors at the places ``bad`` alone account for the syndromes."""
    if len(bad) >= spare:
        return len(bad) == spare
    columns = np.array([nodes[bad] ** power for power in range(spare)])
    error = syndromes - columns @ np.linalg.lstsq(columns, syndromes, rcond=None)[0]
    return bool(np.abs(error).max() <= 1e-7 * max(1.0, float(np.abs(syndromes).max())))
