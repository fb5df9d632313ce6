"""What a message is: made by a worker from partial gradients, added up by the driver. One definition for all clusters.

A message covers only the coordinates that its partitions touch, an index set both sides compute alike. With ``blocks``
it is a fraction of the vector instead: of each run of so many coordinates one number, which is their weighted sum.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anyk import keyed
from anyk.errors import BadInput, describe_error
from anyk.problems.base import Index, Partitions, Vector, partition_abilities, rows_within
from anyk.problems.many import ManyPartitions
from anyk.protocol import Chunk

WHOLE = slice(None)  # all coordinates
_COLUMNS, _ROWS = 512, 8  # numbers that a long message is folded to, and how many times as many it has at least


def reverse_attack(message: Vector) -> None:
    """Make a message that of a Byzantine worker: -100 times itself (the reverse attack), in place."""
    message *= -100.0


def checked(message: Vector) -> tuple[str | None, int]:
    """Return why a message must not be used (None if it may), and its digest. One pass over almost all messages.

    Equal bits have equal digests on one machine. Different ones, also in sign or order, have different digests but for
    what rounding hides: of long messages the digest is that of sums of numbers with weights.
    """
    rows, rest = divmod(message.size, _COLUMNS)
    if rows < _ROWS:
        sums = message
    else:
        with np.errstate(over="ignore", invalid="ignore"):
            whole = _weights(rows, message.dtype.char) @ message[: rows * _COLUMNS].reshape(rows, _COLUMNS)
        sums = np.concatenate([whole, message[message.size - rest :]])
    bits = keyed.digest(sums)
    if np.isfinite(sums).all() or np.isfinite(message).all():
        return None, bits
    return f"not finite ({'NaN' if np.isnan(message).any() else 'Inf'})", bits


@lru_cache(maxsize=8)
def _weights(count: int, dtype: str) -> Vector:
    return keyed.generator(0, "weights of a digest", count).uniform(1.0, 2.0, count).astype(dtype)


class WrongLength(BadInput):
    """A partial gradient does not have the length of its support, or its numbers are not real ones."""


def describe(error: Exception) -> str:
    """An exception of a gradient in one line: anyk's own sentences unchanged, others with their type."""
    at_fault = isinstance(error, BadInput) and not isinstance(error, WrongLength)
    return f"{type(error).__name__}: {error}" if at_fault else describe_error(error)


def _real(partition: int, gradient: Vector) -> Vector:
    """A gradient of floating-point numbers: NumPy would drop imaginary parts, and cut coefficients to whole numbers."""
    gradient = np.asarray(gradient)
    if gradient.dtype.kind != "f":
        raise WrongLength(
            f"wrong type: partition {partition} gave a gradient of {gradient.dtype}; it must be of real floating-point "
            "numbers"
        )
    return gradient


class Messages:
    """Encodes and adds up the messages of a problem's partitions.

    ``together``: see :class:`~anyk.protocol.Layout`. ``first``: the number of the first of these partitions among all.
    """

    def __init__(
        self, partitions: Partitions, blocks: int = 1, seed: int = 0, *, together: bool = False, first: int = 0
    ) -> None:
        self.partitions = partitions
        # NumPy's own: with one that has been unpickled its ufunc.at takes 10 times as long
        self.dtype: np.dtype[np.floating[Any]] = np.dtype(np.dtype(partitions.dtype).str)
        self.blocks = blocks
        self._seed = seed  # of mini-batches
        self._first = first
        self._together = together and partition_abilities(partitions).piece is not None
        self._pieces: dict[tuple[int, ...], Messages] = {}
        self._within: dict[tuple[tuple[int, ...], tuple[int, ...]], Index | None] = {}
        self._directions: dict[int, NDArray[np.float64]] = {}
        self._supports: dict[tuple[int, ...], Index | None] = {}
        self._places: dict[tuple[int, ...], list[Index | None]] = {}
        self.tolerance: float = partition_abilities(partitions).tolerance  # of replicas; 0: they are not compared
        self._chosen: dict[int, Index | None] = {}  # rows to evaluate, by partition
        self._process = os.getpid()

    def support(self, ids: tuple[int, ...]) -> Index | None:
        """The coordinates that a message over partitions ``ids`` covers; None: all."""
        if ids not in self._supports:
            parts = [self.partitions.support(j) for j in ids]
            if any(part is None for part in parts) or not parts:
                union = None
            elif len(parts) == 1:
                union = parts[0]
            else:
                union = self._union([part for part in parts if part is not None])
            self._supports[ids] = union
        return self._supports[ids]

    def _marks(self, size: int) -> bool:
        """Whether marking coordinates in an array of length d is cheaper than sorting ``size`` of them."""
        return self.partitions.dimension < 32 * size

    def _union(self, parts: list[Index]) -> Index:
        if not self._marks(sum(part.size for part in parts)):
            return np.unique(np.concatenate(parts))
        marked = np.zeros(self.partitions.dimension, dtype=bool)
        for part in parts:
            marked[part] = True
        return np.flatnonzero(marked)

    def length(self, ids: tuple[int, ...]) -> int:
        """The length of a message over partitions ``ids``."""
        support = self.support(ids)
        if self.blocks > 1:
            if support is not None and ids:
                raise BadInput(
                    "codes with short replies need gradients that touch every coordinate; this data is sparse, and its "
                    "replies are short already"
                )
            return -(-self.partitions.dimension // self.blocks)
        return self.partitions.dimension if support is None else int(support.size)

    def places(self, ids: tuple[int, ...]) -> list[Index | None]:
        """For each partition of a message, where its own coordinates lie in the message; None: everywhere, in order."""
        if ids not in self._places:
            union = self.support(ids)
            found: list[Index | None] = []
            for j in ids:
                own = self.partitions.support(j)
                if own is None or (union is not None and own.size == union.size):
                    found.append(None)
                elif union is None:
                    found.append(own)
                elif self._marks(union.size):
                    where = np.empty(self.partitions.dimension, dtype=np.intp)
                    where[union] = np.arange(union.size)
                    found.append(where[own])
                else:
                    found.append(np.searchsorted(union, own))
            self._places[ids] = found
        return self._places[ids]

    def encode(
        self,
        chunk: Chunk,
        w: Vector,
        out: Vector,
        between: Callable[[int], None] | None = None,
        *,
        version: int = 0,
        seen: Callable[[int, Vector], None] | None = None,
    ) -> None:
        """Write a chunk's message to ``out``; ``between(done)``, called before each partition, stops it by raising.

        ``version`` is that of the model ``w``; mini-batches are drawn by it. ``seen`` is called with each partition and
        its gradient.
        """
        ids = chunk.partitions
        if not ids:
            out[:] = 0.0
        coefficients = self.split(chunk.coefficients)
        for item, part in enumerate(self.parts(chunk)):
            if between is not None:
                between(item + len(part) - 1)
            gradient = self.gradient(part, w, chunk, version)
            if seen is not None:
                for j in part:
                    seen(j, gradient)
            self.add(out, ids, item, coefficients[item], gradient)

    def compared(self, version: int) -> int:
        """The partition whose gradients at a version are compared, where several workers compute one; -1: none.

        That is so at versions 0, 1, 2, 4, … and at every 64th, for a partition drawn by the version.
        """
        if not self.tolerance or (version & (version - 1) and version % 64):
            return -1
        return keyed.integer(self._seed, "compared", version) % len(self.partitions.sizes)

    def rows(self, partition: int, chunk: Chunk, version: int) -> Index | None:
        """The samples of a partition's mini-batch, sorted, drawn without replacement; None: all of them."""
        size = self.partitions.sizes[partition]
        if not 0 < chunk.batch < size:
            return None
        random = keyed.generator(self._seed, "batch", version, self._first + partition, chunk.repeat)
        return np.sort(random.choice(size, chunk.batch, replace=False, shuffle=False)).astype(np.intp)

    def parts(self, chunk: Chunk) -> list[tuple[int, ...]]:
        """The partitions of a chunk, those together that are computed at once."""
        ids = chunk.partitions
        return [ids] if self._together and len(ids) > 1 else [(j,) for j in ids]

    def gradient(self, part: tuple[int, ...], w: Vector, chunk: Chunk, version: int) -> Vector:
        """The gradient of partitions that are computed at once, on the coordinates that they touch."""
        if len(part) == 1:
            return self.partial_gradient(part[0], w, chunk, version)
        piece = self._pieces.get(part)
        if piece is None:
            if sum(map(len, self._pieces)) > len(self.partitions.sizes):  # what a piece needs of memory is its data
                self._pieces.clear()
            partitions: Any = self.partitions
            made = partitions.piece(part[0], part[-1])
            made.load((0,))
            piece = self._pieces[part] = Messages(made, seed=self._seed, first=part[0])
        gradient = piece.partial_gradient(0, w, chunk._replace(batch=chunk.batch * len(part)), version)
        support = self.support(part)
        return gradient if support is None or gradient.size == support.size else gradient[support]

    def partial_gradient(self, partition: int, w: Vector, chunk: Chunk | None = None, version: int = 0) -> Vector:
        """Return a partition's gradient, or its chunk's mini-batch scaled up to the partition; check its length."""
        rows = None if chunk is None else self.rows(partition, chunk, version)
        parts = self.partitions
        if chunk is not None and isinstance(parts, ManyPartitions):
            parts = parts.of(chunk.slot)
        try:
            with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is found by fault()
                if rows is None:
                    gradient = _real(partition, parts.partial_gradient(partition, w))
                else:
                    gradient = _real(partition, parts.partial_gradient(partition, w, rows))
                    gradient = gradient * gradient.dtype.type(self.partitions.sizes[partition] / len(rows))
        finally:
            self._stop_if_forked()
        own = parts.support(partition) if isinstance(self.partitions, ManyPartitions) else None
        support = self.support((partition,))
        if own is not None and support is None:  # models whose gradients touch different coordinates
            spread = np.zeros(self.partitions.dimension, dtype=gradient.dtype)
            spread[own] = gradient
            gradient = spread
        expected = self.partitions.dimension if support is None else int(support.size)
        if np.shape(gradient) != (expected,):
            raise WrongLength(
                f"wrong length: partition {partition} gave a gradient of shape {np.shape(gradient)}, its support has "
                f"{expected} coordinates"
            )
        return gradient

    def loss(self, slot: str, partition: int, w: Vector, samples: int | None) -> float:
        """The sum of a partition's losses at a model of a slot: of those of its samples that are among ``samples``."""
        parts: Any = self.partitions
        if isinstance(parts, ManyPartitions):
            parts = parts.of(slot)
        if samples is not None and partition not in self._chosen:
            self._chosen[partition] = rows_within(self.partitions.sizes, partition, samples)
        rows = () if samples is None or self._chosen[partition] is None else (self._chosen[partition],)
        try:
            with np.errstate(over="ignore", invalid="ignore"):
                return float(parts.partial_loss(partition, w, *rows))
        finally:
            self._stop_if_forked()

    def _stop_if_forked(self) -> None:
        if os.getpid() != self._process:
            os._exit(0)  # what a user gave has forked, and this is the child: it must not go on as the same worker

    def split(self, coefficients: Sequence[float]) -> Sequence[Any]:
        """The coefficients of each partition: a number, or ``blocks`` of them."""
        b = self.blocks
        return coefficients if b == 1 else [coefficients[i : i + b] for i in range(0, len(coefficients), b)]

    def add(self, out: Vector, ids: tuple[int, ...], item: int, coefficient: Any, gradient: Vector) -> None:
        """Add the ``item``-th partition's gradient to a message, or that of several; the first one begins it."""
        if self.blocks > 1:
            if item == 0:
                out[:] = 0.0
            for part, factor in enumerate(coefficient):
                some = gradient[part :: self.blocks]
                out[: some.size] += some * gradient.dtype.type(factor)
            return
        if coefficient != 1.0:
            gradient = gradient * gradient.dtype.type(coefficient)
        place = None if self._together else self.places(ids)[item]
        if item == 0:
            if place is None:
                out[:] = gradient
                return
            out[:] = 0.0
        if place is None:
            out += gradient
        else:
            np.add.at(out, place, gradient)

    def add_message(
        self, out: Vector, ids: tuple[int, ...], other: tuple[int, ...], message: Vector, weight: float
    ) -> None:
        """Add a message over partitions ``other`` to one over ``ids``, which covers it."""
        key = ids, other
        if key not in self._within:
            union, own = self.support(ids), self.support(other)
            if own is None or union is None:
                self._within[key] = own
            else:
                self._within[key] = None if own.size == union.size else np.searchsorted(union, own)
        place = self._within[key]
        if weight != 1.0:
            message = message * message.dtype.type(weight)
        if place is None:
            out += message
        else:
            np.add.at(out, place, message)

    def project(self, ids: tuple[int, ...], message: Vector, key: int) -> float:
        """The product of a message with the direction of a key: normal draws with mean 1, one each coordinate."""
        direction = self._directions.get(key)
        if direction is None:
            random = keyed.generator(key, "projection", self.partitions.dimension)
            direction = self._directions[key] = 1.0 + random.standard_normal(self.partitions.dimension)
        support = self.support(ids)
        chosen = direction[: message.size] if support is None else direction[support]
        return float(chosen @ message.astype(np.float64, copy=False))

    def add_up(self, terms: Sequence[tuple[tuple[int, ...], Vector, Any]], part: slice = WHOLE) -> NDArray[np.float64]:
        """The weighted sum of messages, each given as (partitions, vector, weight), in the order given; float64.

        With ``blocks`` a weight is that many numbers, one for each part of the vector. ``part``: of these coordinates
        only; the numbers are the same. May be called by several threads.
        """
        first, last, _ = part.indices(self.partitions.dimension)
        total = np.zeros(last - first)
        for ids, message, weight in terms:
            if self.blocks > 1:
                for k, factor in enumerate(weight):
                    a, b = ((at - k + self.blocks - 1) // self.blocks for at in (first, last))
                    some = total[a * self.blocks + k - first :: self.blocks]
                    some += factor * message[a:b]
                continue
            support = self.support(ids)
            if support is None:
                message = message[part]
            elif last - first < self.partitions.dimension:
                a, b = np.searchsorted(support, (first, last))
                support, message = support[a:b] - first, message[a:b]
            if weight != 1.0:
                message = np.multiply(message, weight, dtype=np.float64)
            if support is None:
                total += message
            else:  # one pass, where += reads, adds and writes in three
                np.add.at(total, support, message.astype(np.float64, copy=False))
        return total
