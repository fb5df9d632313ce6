"""Partial stragglers: workers that are slow but not dead send first their own part of the sum, then a coded part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from anyk.base.arrays import Floats, Indices
from anyk.base.checks import value_class
from anyk.base.errors import BadInput
from anyk.base.specs import show_spec
from anyk.codes.base import Code, Decoder, Row, check_stragglers, check_workers
from anyk.codes.cyclic import CyclicRepetition
from anyk.codes.decoders import SetDecoder
from anyk.codes.made import LEFT_OUT, fixed_property
from anyk.codes.repetition import FractionalRepetition


@value_class
class PartialStragglers(Code):
    """Two messages a worker: a private part that only it computes, then a part under an exact code.

    Of each worker's ``load`` partitions (w), ``w - s - 1`` are private and ``s + 1`` are coded, so that a worker up
    to ``alpha = w / (w - s - 1)`` times slower than the rest finishes its private part when the others finish all
    (Tandon, Lei, Dimakis and Karampatziakis 2017, section on partial stragglers). The data has ``n (w - s)``
    partitions. Every worker's first message is needed, so no dead worker is tolerated.

    ``load`` is by default twice ``stragglers + 1`` (alpha = 2). ``inner`` is the code of the second part, ``frc`` or
    ``cyclic``. If ``s + 1`` does not divide ``workers``, the groups of ``frc`` are larger and their workers compute
    more than ``load`` specifies; the attribute ``load`` is the largest number of partitions that a worker computes.
    Raises :class:`~anyk.BadInput` for stragglers out of range and a load without a private part.

    >>> code = PartialStragglers(4, stragglers=1, load=4)
    >>> code.partitions, code.messages, code.alpha
    (12, 2, 2.0)
    """

    workers: int
    stragglers: int = 1
    load: int = LEFT_OUT
    inner: Literal["frc", "cyclic"] = "frc"
    private: int = field(init=False, repr=False)  # partitions of a worker that no other worker holds
    messages = 2

    def __post_init__(self) -> None:
        s = check_stragglers(self.stragglers, check_workers(self.workers))
        w = 2 * (s + 1) if self.load is LEFT_OUT else self.load
        if w <= s + 1:
            raise BadInput(
                f"partial:load={w} leaves no private part with stragglers={s}; load must be at least {s + 2}, "
                f"or use {self.inner}:stragglers={s}"
            )
        self._resolve(private=w - s - 1)
        self._resolve(load=max(map(len, self.assignment)))

    @property
    def spec(self) -> str:
        load = self.private + self.stragglers + 1
        return show_spec(
            "partial", {"stragglers": self.stragglers, "load": load, "inner": self.inner}, {"inner": "frc"}
        )

    @property
    def alpha(self) -> float:
        """Ratio of a straggler's time to the others' up to which no worker waits for it."""
        return (self.private + self.stragglers + 1) / self.private

    @fixed_property
    def code(self) -> Code:
        """Code of the second messages, over the last ``workers`` partitions."""
        kind = FractionalRepetition if self.inner == "frc" else CyclicRepetition
        return kind(self.workers, stragglers=self.stragglers)

    @property
    def partitions(self) -> int:
        """Number of partitions, n (w - s)."""
        return self.workers * (self.private + 1)

    @property
    def tolerates(self) -> int:
        """Stragglers with which the sum is exact: 0, as each private part has one holder."""
        return 0

    @fixed_property
    def rows(self) -> Sequence[Row]:
        rows: list[Row] = []
        w = self.private
        for worker, (partitions, coefficients) in enumerate(self.code.rows):
            own_partitions = tuple(range(worker * w, (worker + 1) * w))
            rows += [(own_partitions, (1.0,) * w), (tuple(self.workers * w + j for j in partitions), coefficients)]
        return tuple(rows)

    def finish_times(self, arrivals: ArrayLike) -> Floats:
        """Return when all first and enough second messages have arrived in each round."""
        times = self._arrivals(arrivals)
        return np.asarray(np.maximum(times[:, ::2].max(axis=1), self.code.finish_times(times[:, 1::2])))

    def decoder(self) -> Decoder:
        return _TwoPartDecoder(self)

    def _solve(self, replies: Indices) -> Floats:
        weights = np.zeros(self.replies)
        weights[replies[replies % 2 == 0]] = 1.0
        weights[1::2] = self.code._solve(replies[replies % 2 == 1] // 2)
        return weights


class _TwoPartDecoder(SetDecoder):
    """Decodes when all first messages and enough second messages for the inner code have arrived."""

    def __init__(self, code: PartialStragglers) -> None:
        super().__init__(code)
        self._inner = code.code.decoder()
        self._missing = code.workers  # first messages

    def _may_suffice(self) -> bool:
        worker, half = divmod(self._replied[-1], 2)
        if half:
            self._inner.add(worker)
        else:
            self._missing -= 1
        return self._inner.decodable and not self._missing
