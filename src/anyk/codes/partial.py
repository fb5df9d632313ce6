"""Partial stragglers: workers that are slow but not dead first send what nobody else computes, then a coded part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from anyk.checks import typed
from anyk.codes.base import Code, Decoder, Decoding, Floats, Indices, Row, check_stragglers, check_workers
from anyk.codes.cyclic import CyclicRepetition
from anyk.codes.made import LEFT_OUT, fixed_property
from anyk.codes.repetition import FractionalRepetition
from anyk.errors import BadInput


@typed
@dataclass(frozen=True)
class PartialStragglers(Code):
    """Two messages a worker: a private part that only it computes, then a part under an exact code.

    Of each worker's ``load`` partitions (w), ``w - s - 1`` are private and ``s + 1`` are coded, so that a worker up
    to ``alpha = w / (w - s - 1)`` times slower than the rest finishes its private part when the others finish all
    (Tandon, Lei, Dimakis and Karampatziakis 2017, section on partial stragglers). The data has ``n (w - s)``
    partitions. Every worker's first message is needed, so no dead worker is tolerated.

    ``stragglers`` left out is 1; ``load`` left out is twice ``stragglers + 1`` (alpha = 2). ``inner`` is the code of
    the second part, ``frc`` or ``cyclic``. Where ``s + 1`` does not divide ``workers``, the groups of ``frc`` are
    larger and their workers compute more than was asked for; the attribute ``load`` is the most that any computes.

    >>> code = PartialStragglers(4, stragglers=1, load=4)
    >>> code.partitions, code.messages, code.alpha
    (12, 2, 2.0)
    """

    workers: int
    stragglers: int = 1
    load: int = LEFT_OUT
    inner: Literal["frc", "cyclic"] = "frc"
    messages = 2

    def __post_init__(self) -> None:
        s = check_stragglers(self.stragglers, check_workers(self.workers))
        if self.inner not in ("frc", "cyclic"):
            raise BadInput(f"inner of 'partial' must be frc or cyclic, got {self.inner!r}")
        w = 2 * (s + 1) if self.load is LEFT_OUT else self.load
        if w <= s + 1:
            raise BadInput(
                f"partial:load={w} leaves no private part with stragglers={s}; load must be at least {s + 2}, "
                f"or use {self.inner}:stragglers={s}"
            )
        object.__setattr__(self, "_share", w)
        object.__setattr__(self, "load", max(len(held) for held in self.assignment))

    @property
    def spec(self) -> str:
        inner = "" if self.inner == "frc" else f",inner={self.inner}"
        return f"partial:stragglers={self.stragglers},load={self.__dict__['_share']}{inner}"

    @property
    def alpha(self) -> float:
        """How many times slower a straggler may be without being waited for."""
        return (self._private + self.stragglers + 1) / self._private

    @property
    def _private(self) -> int:
        return int(self.__dict__["_share"]) - self.stragglers - 1

    @fixed_property
    def code(self) -> Code:
        """The code of the second messages, over the last ``workers`` partitions."""
        made = FractionalRepetition if self.inner == "frc" else CyclicRepetition
        return made(self.workers, stragglers=self.stragglers)

    @property
    def partitions(self) -> int:
        """n (w - s)."""
        return self.workers * (self._private + 1)

    @property
    def tolerates(self) -> int:
        """0: each private part has one holder."""
        return 0

    @fixed_property
    def rows(self) -> Sequence[Row]:
        rows: list[Row] = []
        first = self.workers * self._private
        for worker, (held, coefficients) in enumerate(self.code.rows):
            own = tuple(range(worker * self._private, (worker + 1) * self._private))
            rows += [(own, (1.0,) * len(own)), (tuple(first + j for j in held), coefficients)]
        return tuple(rows)

    def finish_times(self, arrivals: ArrayLike) -> Floats:
        """All first messages, and enough of the second; see :meth:`Code.finish_times`."""
        times = self._arrivals(arrivals)
        return np.asarray(np.maximum(times[:, ::2].max(axis=1), self.code.finish_times(times[:, 1::2])))

    def decoder(self) -> Decoder:
        return _TwoPartDecoder(self)

    def _solve(self, replies: Indices) -> Floats:
        weights = np.zeros(self.replies)
        weights[replies[replies % 2 == 0]] = 1.0
        weights[1::2] = self.code._solve(replies[replies % 2 == 1] // 2)
        return weights


class _TwoPartDecoder(Decoder):
    """All first messages, and second messages that the inner code can decode."""

    def __init__(self, code: PartialStragglers) -> None:
        self._code = code
        self._inner = code.code.decoder()
        self._private: set[int] = set()

    def add(self, worker: int) -> bool:
        """See :meth:`Decoder.add`; ``worker`` is a reply: 2 i for the private, 2 i + 1 for the coded part of i."""
        owner, part = divmod(worker, 2)
        if part:
            self._inner.add(owner)
        else:
            self._private.add(owner)
        self.decodable = self._inner.decodable and len(self._private) == self._code.workers
        return self.decodable

    @property
    def residual(self) -> float:
        return 0.0 if self.decodable else self.decode().residual

    def decode(self) -> Decoding:
        weights = np.zeros(self._code.replies)
        weights[[2 * worker for worker in self._private]] = 1.0
        weights[1::2] = self._inner.decode().weights
        return self._code.judge(weights)
