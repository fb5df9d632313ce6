"""Codes against Byzantine workers, whose replies may be anything; comparing one number of each reply exposes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from anyk.base.arrays import Floats, Indices
from anyk.base.checks import AtLeastZero, value_class
from anyk.base.errors import BadInput
from anyk.codes.base import Code, Decoder, Policy, RegisteredCode, Row, check_workers
from anyk.codes.decoders import METHODS, Decoding
from anyk.codes.made import fixed_property
from anyk.codes.mds import CyclicMDS
from anyk.codes.repetition import FractionalRepetition, RepetitionCode

Complex = NDArray[np.complex128]

_MOST_WORKERS, _MOST_BYZANTINE = 40, 5  # limits of kind="cyclic"
_EQUAL = 1e-9  # replicas agree if their projections differ by less than this fraction
_ROUNDING = 1e-9  # syndromes below n times this fraction of the largest projection are due to rounding of replies


@value_class
class DracoCode(RegisteredCode):
    """DRACO: the exact sum although ``byzantine`` workers send arbitrary replies and ``stragglers`` do not reply.

    Each reply is projected on one random vector; these numbers reveal the liars (with probability 1 if they do not
    know the vector: a harmful lie would have to be orthogonal to it), and the sum is decoded from the others
    (Chen, Wang, Charles and Papailiopoulos 2018). The vector is sampled by key, so that runs can be replayed; an
    adversary that knows the key can lie undetected. With t Byzantine workers and f stragglers every partition is
    computed by ``2 t + f + 1`` workers, the fewest possible.

    ``kind="repetition"``: groups of 2 t + f + 1 or more replicas; a group is decided when t + 1 replies agree, since
    one is honest. ``kind="cyclic"``: the real cyclic MDS code of tolerance 2 t + f. The projections of honest
    replies are a code word. The syndromes of the received projections are a sum of exponentials, whose frequencies
    (by Prony's method) identify the Byzantine workers. For up to 40 workers, up to 5 Byzantine, and float64 replies;
    lies as small as rounding (1e-6 of the largest reply) may be blamed on another worker, but then they hardly change
    the sum.

    Replicas must agree to 1e-9. A reply that is not finite is ignored, as if its worker were a straggler. Raises
    :class:`~anyk.BadInput` for fewer than ``2 t + f + 1`` workers.

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
        if self._redundancy >= n:
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
    def _redundancy(self) -> int:
        return 2 * self.byzantine + self.stragglers

    @fixed_property
    def code(self) -> Code:
        """The code by which workers encode their gradients."""
        kind = FractionalRepetition if self.kind == "repetition" else CyclicMDS
        return kind(self.workers, stragglers=self._redundancy)

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
    """A decoder of replies and their projections; decodable once all Byzantine workers are certainly known."""

    def __init__(self, code: DracoCode) -> None:
        self._code = code
        self._projections: dict[int, float] = {}  # projections of finite replies by worker, 0 if not measured
        self._invalid: set[int] = set()  # workers whose replies are not finite
        self.byzantine: tuple[int, ...] = ()

    def measure(self, worker: int, value: float) -> None:
        """Record the projection of a worker's reply, before :meth:`add`."""
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
        """Residual of a step taken now; 1 while the decoder is not decodable."""
        return self.decode().residual if self.decodable else 1.0

    def decode(self) -> Decoding:
        """Return weights for the replies of the workers that have not been detected."""
        honest = sorted(self._projections.keys() - self.byzantine)
        return self._code._decode(np.array(honest, dtype=np.int64), METHODS["own"])


def locate(
    code: DracoCode, replied: Sequence[int], values: Sequence[float], *, known: int = 0
) -> tuple[int, ...] | None:
    """Return the Byzantine workers among those that replied, or None if more replies are needed.

    ``replied``: workers in ascending order; ``values``: the projections of their replies. ``known``: the number of
    Byzantine workers detected before, which are not among these. With repetition each group needs ``byzantine + 1``
    replies that agree.
    """
    if code.kind == "repetition":
        return _find_by_vote(code, replied, values)
    return _find_by_syndromes(code, replied, values, code.byzantine - known)


def _find_by_vote(code: DracoCode, replied: Sequence[int], values: Sequence[float]) -> tuple[int, ...] | None:
    """Return the workers that contradict ``byzantine + 1`` replicas of their group; None if a group is undecided."""
    inner = code.code
    assert isinstance(inner, RepetitionCode)
    groups: list[dict[int, float]] = [{} for _ in range(inner.groups)]
    for worker, value in zip(replied, values, strict=True):
        groups[inner.group_of[worker]][worker] = value
    byzantine: list[int] = []
    for replies in groups:
        for value in replies.values():
            agree = {i for i, other in replies.items() if abs(other - value) <= _EQUAL * max(abs(other), abs(value))}
            if len(agree) > code.byzantine:
                byzantine += replies.keys() - agree
                break
        else:
            return None
    return tuple(sorted(byzantine))


def _find_by_syndromes(
    code: DracoCode, replied: Sequence[int], values: Sequence[float], limit: int
) -> tuple[int, ...] | None:
    """Return the Byzantine workers by decoding errors and erasures; None if undecided, or if more than ``limit`` lie.

    The search is repeated without the workers that it detects: a huge lie hides a small lie in its rounding.
    """
    inner = code.code
    assert isinstance(inner, CyclicMDS)
    n, redundancy = code.workers, inner.tolerates
    index = np.arange(n)
    nodes, phases = np.exp(2j * np.pi * index / n), np.exp(1j * inner.angles[:1].sum() * index)
    projections, present = np.zeros(n), np.zeros(n, dtype=bool)
    projections[list(replied)], present[list(replied)] = values, True
    if redundancy - (n - len(replied)) < 2 * limit:
        return None
    byzantine: list[int] = []
    while largest := float(np.abs(projections[present]).max(initial=0.0)):
        scaled = np.where(present, projections / largest, 0.0)
        liars = _fewest_liars(scaled * phases, nodes, np.flatnonzero(~present), redundancy)
        if liars is None or len(byzantine) + len(liars) > limit:
            return None
        if not len(liars):
            break
        byzantine += liars.tolist()
        present[liars] = False
    return tuple(sorted(byzantine))


def _fewest_liars(weighted: Complex, nodes: Complex, erased: Indices, redundancy: int) -> Indices | None:
    """Return the fewest workers whose errors explain the syndromes up to rounding; None if too many would be needed.

    With ``nodes`` z_i and errors e_i the syndromes are ``S_l = sum_i e_i z_i^l``. Filtered with the coefficients of
    ``prod (X - z_q)`` over the workers q that are ``erased``, they no longer contain errors of these workers. If r
    others lie, the filtered syndromes F obey a recurrence ``sum_b c_b F_(a+b) = -F_(a+r)`` of order r, and the roots
    of its polynomial are the nodes of the liars.
    """
    syndromes = np.array([(weighted * nodes**power).sum() for power in range(redundancy)])
    erasures = np.ones(1, dtype=complex)  # coefficients of prod (X - z_q), the constant first
    for q in erased.tolist():
        erasures = np.convolve(erasures, [-nodes[q], 1.0])
    filtered = np.array([(erasures * syndromes[a : a + len(erasures)]).sum() for a in range(redundancy - len(erased))])
    if not len(filtered) or np.abs(filtered).max() <= _ROUNDING * len(nodes) * float(np.abs(erasures).max()):
        return np.empty(0, dtype=np.int64)
    for count in range(1, len(filtered) // 2 + 1):
        windows = np.array([filtered[a : a + count] for a in range(len(filtered) - count)])
        locator = np.append(np.linalg.lstsq(windows, -filtered[count:], rcond=None)[0], 1.0)
        distances = np.abs(np.polyval(locator[::-1], nodes))  # nearly 0 at the nodes of liars
        distances[erased] = np.inf
        liars = np.sort(np.argsort(distances)[:count])
        if _explain_syndromes(syndromes, np.union1d(liars, erased), nodes):
            return liars
    return None


def _explain_syndromes(syndromes: Complex, workers: Indices, nodes: Complex) -> bool:
    """Return whether errors of these workers alone account for the syndromes."""
    if len(workers) >= len(syndromes):
        return len(workers) == len(syndromes)
    columns = np.array([nodes[workers] ** power for power in range(len(syndromes))])
    error = syndromes - columns @ np.linalg.lstsq(columns, syndromes, rcond=None)[0]
    return bool(np.abs(error).max() <= 1e-7 * max(1.0, float(np.abs(syndromes).max())))
