"""Codes against Byzantine workers, whose replies may be anything; they are detected by comparing single numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from anyk.checks import typed
from anyk.codes.base import Code, Decoder, Floats, Indices, Policy, Row, check_workers, whole
from anyk.codes.decoders import METHODS, Decoding
from anyk.codes.made import fixed_property
from anyk.codes.mds import CyclicMDS
from anyk.codes.repetition import RepetitionCode
from anyk.errors import BadInput

Complex = NDArray[np.complex128]

_MOST_WORKERS, _MOST_BYZANTINE = 40, 5  # of the cyclic kind
_SAME = 1e-9  # replicas whose projections differ by less than this fraction say the same
_CLEAN = 1e-9  # a syndrome below this fraction of the largest projection (times n) is rounding of float64 replies


@dataclass(frozen=True)
class _Replicas(RepetitionCode):
    """Groups of replicas."""

    workers: int
    size: int

    @property
    def spec(self) -> str:
        return f"replicas:{self.size}"

    @property
    def partitions(self) -> int:
        return self.workers

    @property
    def groups(self) -> int:
        return self.workers // self.size


@typed
@dataclass(frozen=True)
class DracoCode(Code):
    """DRACO: the exact sum although ``byzantine`` workers reply whatever they like and ``stragglers`` do not reply.

    Each reply is projected on one random vector; these numbers reveal the liars (with probability 1 if they do not
    know the vector: a lie that matters would have to be orthogonal to it), and the sum is decoded from the others
    (Chen, Wang, Charles and Papailiopoulos 2018). The vector is a keyed draw, so that runs can be replayed; an
    adversary that knows the key can lie undetected. With t Byzantine workers and f stragglers every partition has
    ``2 t + f + 1`` holders, the least possible.

    ``kind="repetition"``: groups of 2 t + f + 1 or more replicas; a group is decided when t + 1 replies agree, since
    one of those is honest. ``kind="cyclic"``: the real cyclic MDS code of tolerance 2 t + f; the projections of honest
    replies are a code word, the syndromes of what came are a sum of exponentials, and its frequencies (found by Prony's
    method) name the Byzantine workers. For up to 40 workers, 5 of them Byzantine, and float64 replies; lies of the size
    of rounding (1e-6 of the largest reply) may be blamed on another worker, which harms the sum as little as they do.

    Replicas must agree to 1e-9. A reply that is not finite is set aside beforehand, like a straggler's.

    >>> code = DracoCode(9, byzantine=1)
    >>> code.load, code.tolerates, locate(code, range(9), [3.0] * 3 + [1.0, 7.0, 1.0] + [2.0] * 3)
    (3, 0, (4,))
    """

    workers: int
    byzantine: int = 1
    stragglers: int = 0
    kind: Literal["repetition", "cyclic"] = "repetition"

    def __post_init__(self) -> None:
        n = check_workers(self.workers)
        if (
            whole("byzantine", self.byzantine) < 0
            or whole("stragglers", self.stragglers) < 0
            or 2 * self.byzantine + self.stragglers >= n
        ):
            raise BadInput(
                f"draco:byzantine={self.byzantine},stragglers={self.stragglers} needs 2 x byzantine + stragglers + 1 "
                f"workers, and there are {n}; at most {max(0, (n - 1 - max(self.stragglers, 0)) // 2)} may lie"
            )
        if self.kind not in ("repetition", "cyclic"):
            raise BadInput(f"kind of 'draco' must be repetition or cyclic, got {self.kind!r}")
        if self.kind == "cyclic" and (n > _MOST_WORKERS or self.byzantine > _MOST_BYZANTINE):
            raise BadInput(
                f"draco:kind=cyclic finds up to {_MOST_BYZANTINE} Byzantine workers among at most {_MOST_WORKERS} "
                f"in double precision, got {n} with {self.byzantine}; use kind=repetition"
            )

    @property
    def spec(self) -> str:
        late = f",stragglers={self.stragglers}" if self.stragglers else ""
        return f"draco:byzantine={self.byzantine}{late}" + ("" if self.kind == "repetition" else f",kind={self.kind}")

    @fixed_property
    def code(self) -> Code:
        """The code that is sent."""
        spare = 2 * self.byzantine + self.stragglers
        if self.kind == "repetition":
            return _Replicas(self.workers, spare + 1)
        return CyclicMDS(self.workers, stragglers=spare)

    @property
    def partitions(self) -> int:
        """As many as workers."""
        return self.workers

    @property
    def tolerates(self) -> int:
        """Stragglers, besides the Byzantine workers."""
        return self.stragglers

    @property
    def rows(self) -> Sequence[Row]:
        return self.code.rows

    def policy(self) -> Policy:
        return Policy(projected=True)

    def decoder(self) -> Decoder:
        """One that also takes projections; without them everybody is taken to be honest."""
        return ByzantineDecoder(self)

    def _solve(self, replies: Indices) -> Floats:
        return self.code._solve(replies)


class ByzantineDecoder(Decoder):
    """Sees who replied and what their projections are; decodable when Byzantine workers would have been found out."""

    def __init__(self, code: DracoCode) -> None:
        self._code = code
        self._value: dict[int, float] = {}  # of workers that may be honest; 0 where nothing was measured
        self._known: set[int] = set()  # workers whose reply no honest one could have sent: it is not finite
        self.byzantine: tuple[int, ...] = ()

    def measure(self, worker: int, value: float) -> None:
        if np.isfinite(value):
            self._value[worker] = value
        else:
            self._known.add(worker)

    def add(self, worker: int) -> bool:
        if worker not in self._known:
            self._value.setdefault(worker, 0.0)
        code, replied = self._code, sorted(self._value)
        found: tuple[int, ...] | None = None
        enough = code.kind == "repetition" or len(replied) + len(self._known) >= code.workers - code.stragglers
        if enough and len(self._known) <= code.byzantine:
            found = locate(code, replied, [self._value[i] for i in replied], known=len(self._known))
        self.decodable = found is not None
        self.byzantine = tuple(sorted([*self._known, *(found or ())]))
        return self.decodable

    def _honest(self) -> Indices:
        return np.array(sorted(set(self._value) - set(self.byzantine)), dtype=np.int64)

    @property
    def residual(self) -> float:
        """See :attr:`Decoder.residual`; 1 until Byzantine workers would have been found."""
        return self.decode().residual if self.decodable else 1.0

    def decode(self) -> Decoding:
        """See :meth:`Decoder.decode`; from those who are not known to lie."""
        return self._code._decode(self._honest(), METHODS["own"])


def locate(
    code: DracoCode, replied: Sequence[int], values: Sequence[float], *, known: int = 0
) -> tuple[int, ...] | None:
    """The Byzantine workers among ``replied`` (ascending), by the replies' projections; None: it cannot be told yet.

    With repetition a group is judged when ``byzantine + 1`` of its replies agree; all groups must be. ``known`` such
    workers have been found already and are not among the replies.
    """
    if code.kind == "repetition":
        return _outvoted(code, replied, values)
    return _off_the_code(code, replied, values, code.byzantine - known)


def _outvoted(code: DracoCode, replied: Sequence[int], values: Sequence[float]) -> tuple[int, ...] | None:
    inner = code.code
    assert isinstance(inner, RepetitionCode)
    said: list[dict[int, float]] = [{} for _ in range(inner.groups)]
    for worker, value in zip(replied, values, strict=True):
        said[inner.group_of[worker]][worker] = value
    byzantine: list[int] = []
    for replies in said:
        honest: set[int] = set()
        for value in replies.values():
            agree = {i for i, other in replies.items() if abs(other - value) <= _SAME * max(abs(other), abs(value))}
            if len(agree) > code.byzantine:
                honest = agree
                break
        if not honest:
            return None
        byzantine += [i for i in replies if i not in honest]
    return tuple(sorted(byzantine))


def _off_the_code(
    code: DracoCode, replied: Sequence[int], values: Sequence[float], most: int
) -> tuple[int, ...] | None:
    """Byzantine workers by decoding errors and erasures; who is found out is erased, and the rest is looked at again.

    A huge lie hides a small one in its rounding; once it is gone the small one shows.
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
    while True:
        size = float(np.abs(y[here]).max(initial=0.0))
        if size == 0.0:
            return tuple(sorted(byzantine))
        found = _loudest(np.where(here, y / size, 0.0) * first, nodes, np.flatnonzero(~here), spare)
        if found is None or len(byzantine) + len(found) > most:
            return None
        if not len(found):
            return tuple(sorted(byzantine))
        byzantine += found.tolist()
        here[found] = False


def _loudest(weighted: Complex, nodes: Complex, lost: Indices, spare: int) -> Indices | None:
    """The fewest workers whose errors explain all but rounding; empty when there is nothing to explain.

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
        found = np.sort(np.argsort(size_at)[:byzantine])
        if _explains(nodes, spare, np.union1d(found, lost), syndromes):
            return found
    return None


def _explains(nodes: Complex, spare: int, bad: Indices, syndromes: Complex) -> bool:
    """Whether errors at the places ``bad`` alone account for the syndromes."""
    if len(bad) >= spare:
        return len(bad) == spare
    columns = np.array([nodes[bad] ** power for power in range(spare)])
    rest = syndromes - columns @ np.linalg.lstsq(columns, syndromes, rcond=None)[0]
    return bool(np.abs(rest).max() <= 1e-7 * max(1.0, float(np.abs(syndromes).max())))
