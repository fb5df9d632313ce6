"""Messages: workers encode partial gradients as messages, and the driver adds these up; the same code everywhere.

A message contains only the coordinates that its partitions touch, an index set that worker and driver both compute.
With ``blocks`` it is shorter: one number for every ``blocks`` consecutive coordinates, their weighted sum.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from anyk.base.arrays import NO_GRADIENT, Floats, Vector
from anyk.base.errors import BadInput, describe_error
from anyk.base.keyed import array_digest, keyed_generator, keyed_integer
from anyk.clusters.mini_batches import MiniBatches
from anyk.clusters.read_only import ADVICE, ReadOnlyData
from anyk.clusters.supports import Supports
from anyk.problems.base import Index, Partitions, partition_abilities, some_rows
from anyk.problems.batches import Batches, Put
from anyk.problems.many import ManyPartitions
from anyk.problems.replicas import Mark
from anyk.protocol import Chunk

WHOLE = slice(None)  # all coordinates
_COLUMNS, _ROWS = 512, 8  # columns into which a long message is folded, and the fewest rows that it then has


def reverse_attack(message: Vector) -> None:
    """Multiply a message by -100 in place, as a Byzantine worker does (the reverse attack)."""
    message *= -100.0


def spoil(message: Vector, requests: Path) -> None:
    """Spoil a message in place if a file in a folder asks for it; the first worker that removes the file does so.

    This is how ``anyk chaos`` has workers send a message that is not finite (``nan``) or wrong (``corrupt``).
    """
    for kind, value in (("nan", np.nan), ("corrupt", 1.0 + np.abs(message).max(initial=0.0))):
        with contextlib.suppress(OSError):
            (requests / kind).unlink()
            message[message.size // 2] += value


def inspect_message(message: Vector) -> tuple[str | None, int]:
    """Return the reason why a message must not be used (None if it may), and its digest; usually in one pass.

    On one machine, equal messages have equal digests. Different messages, even if only in sign or order, have different
    digests up to rounding: a long message is reduced to weighted sums of its numbers before the digest is computed.
    """
    rows, remainder = divmod(message.size, _COLUMNS)
    if rows < _ROWS:
        sums = message
    else:
        with np.errstate(over="ignore", invalid="ignore"):
            folded = _weights(rows, message.dtype.char) @ message[: rows * _COLUMNS].reshape(rows, _COLUMNS)
        sums = np.concatenate([folded, message[message.size - remainder :]])
    bits = array_digest(sums)
    if np.isfinite(sums).all() or np.isfinite(message).all():
        return None, bits
    return f"not finite ({'NaN' if np.isnan(message).any() else 'Inf'})", bits


def add_weighted(terms: Sequence[tuple[Vector, float]], size: int) -> Floats:
    """Return the weighted sum of vectors of a ``size``, added in order; float64."""
    total = np.full(size, NO_GRADIENT)
    for vector, weight in terms:
        total += _weighted(vector, weight)
    return total


def _weighted(vector: Vector, weight: float) -> Vector:
    return vector if weight == 1.0 else np.multiply(vector, weight, dtype=np.float64)


@lru_cache(maxsize=8)
def _weights(count: int, dtype: str) -> Vector:
    return keyed_generator(0, "weights of a digest", count).uniform(1.0, 2.0, count).astype(dtype)


@lru_cache(maxsize=8)  # sampling takes time in proportion to the rows
def rows_by_partition(sizes: tuple[int, ...], samples: int) -> list[Index] | None:
    """Return each partition's rows among the ``samples`` of all training rows to evaluate; None: all rows.

    >>> [len(rows) for rows in rows_by_partition((500, 500), 10)], rows_by_partition((2, 2), 4)
    ([3, 7], None)
    """
    sampled_rows = some_rows(sum(sizes), samples, "train")
    if isinstance(sampled_rows, slice):
        return None
    ends = np.cumsum(sizes)
    parts = np.split(sampled_rows, np.searchsorted(sampled_rows, ends[:-1]))
    return list(map(np.subtract, parts, ends - sizes))


class WrongLength(BadInput):
    """Raised if a partial gradient does not have the length of its support, or its numbers are not real."""


def describe(error: Exception) -> str:
    """Return an exception of a gradient as one line: anyk's own messages unchanged, others with their type."""
    at_fault = isinstance(error, BadInput) and not isinstance(error, WrongLength)
    sentence = f"{type(error).__name__}: {error}" if at_fault else describe_error(error)
    if isinstance(error, ValueError) and "read-only" in sentence:
        sentence += f"; {ADVICE}"
    return sentence


def _real(partition: int, gradient: Vector) -> Vector:
    """Return a gradient as an array; refuse complex numbers and integers, whose results NumPy would truncate."""
    if isinstance(gradient, np.ma.MaskedArray):
        raise WrongLength(f"wrong type: partition {partition} gave a masked gradient; fill it, or leave values out")
    gradient = np.asarray(gradient)
    if gradient.dtype.kind != "f":
        raise WrongLength(
            f"wrong type: partition {partition} gave a gradient of {gradient.dtype}; it must be of real floating-point "
            "numbers"
        )
    return gradient


class Messages:
    """Encodes the messages of a problem's partitions, and adds them up.

    ``together``, ``epochs``: see :class:`~anyk.protocol.Layout`. ``first``: the number of the first partition.

    It belongs to the process that made it. A copy of that process, as a user's function makes it that forks, ends when
    it has computed: there would be two of the same worker.
    """

    def __init__(
        self,
        partitions: Partitions,
        blocks: int = 1,
        seed: int = 0,
        *,
        together: bool = False,
        epochs: bool = False,
        first: int = 0,
    ) -> None:
        self.partitions = partitions
        # NumPy's own dtype object: with an unpickled one ufunc.at takes 10 times as long
        self.dtype: np.dtype[np.floating[Any]] = np.dtype(np.dtype(partitions.dtype).str)
        self.blocks = blocks
        self._seed = seed  # for sampling
        self._batches = MiniBatches(partitions, seed, epochs=epochs, first=first)
        abilities = partition_abilities(partitions)
        self._together = together and abilities.piece is not None
        self._pieces: dict[tuple[int, ...], Messages] = {}
        self._directions: dict[int, Floats] = {}
        self._supports = Supports(partitions)
        # for comparing replicas; 0: they are not compared
        self.tolerance: float = abilities.tolerance
        self._data = ReadOnlyData(partitions)
        self._process = os.getpid()

    def support(self, ids: tuple[int, ...]) -> Index | None:
        """Return the coordinates in a message over partitions ``ids``, sorted; None: all."""
        return self._supports.support(ids)

    def length(self, ids: tuple[int, ...]) -> int:
        """Return the length of a message over partitions ``ids``."""
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
        """Return each partition's coordinates as positions in the message; None: all positions, in order."""
        return [self._supports.positions(ids, (j,)) for j in ids]

    def encode(
        self,
        chunk: Chunk,
        w: Vector,
        out: Vector,
        between: Callable[[int], None] | None = None,
        *,
        version: int = 0,
        compared: int = -1,
        seen: Callable[[Mark], None] | None = None,
    ) -> None:
        """Write a chunk's message to ``out``; ``between(done)`` is called before each partition and may raise to stop.

        ``version``: the version of the model ``w``, which also determines mini-batches. ``seen`` is called with the
        mark of the gradient of the partition ``compared``, if the chunk has it.
        """
        ids = chunk.partitions
        if not ids:
            out[:] = NO_GRADIENT
        coefficients = self.split(chunk.coefficients)
        for item, group in enumerate(self.parts(chunk)):
            if between is not None:
                between(item + len(group) - 1)
            mark = Mark() if compared in group else None

            def put(first: int, piece: Vector, item: int = item, mark: Mark | None = mark) -> None:
                if mark is not None:
                    mark.add(first, piece)
                self.add(out, ids, item, coefficients[item], piece, first=first)

            self._put_gradient(group, w, chunk, version, put)
            if mark is not None and seen is not None:
                seen(mark)

    def carry(self, numbers: Sequence[float], places: Sequence[int], content: Sequence[Vector]) -> None:
        """Compute the next gradients with the values that a version carries (:class:`~anyk.clusters.store.Carried`).

        ``content``: the pieces of the arrays at ``places``.
        """
        for partitions in (self.partitions, *(piece.partitions for piece in self._pieces.values())):
            carry = partition_abilities(partitions).carry
            assert carry is not None  # the problem has values
            carry(numbers, places, content)

    def compared(self, version: int) -> int:
        """Return the partition whose gradients are compared between its workers at a version; -1: none.

        Gradients are compared at versions 0, 1, 2, 4, … and at every 64th, for a partition sampled from the version.
        """
        if not self.tolerance or (version & (version - 1) and version % 64):
            return -1
        return keyed_integer(self._seed, "compared", version) % len(self.partitions.sizes)

    def rows(self, partition: int, chunk: Chunk, version: int) -> Index | None:
        """Return the rows of a partition's mini-batch; None: all rows."""
        return self._batches.rows(partition, chunk, version)

    def parts(self, chunk: Chunk) -> list[tuple[int, ...]]:
        """Return a chunk's partitions, in groups whose gradients are computed together."""
        ids = chunk.partitions
        return [ids] if self._together and len(ids) > 1 else [(j,) for j in ids]

    def gradient(self, part: tuple[int, ...], w: Vector, chunk: Chunk, version: int) -> Vector:
        """Return the gradient of a group of partitions that are computed together, on the coordinates they touch."""
        if len(part) == 1:
            return self.partial_gradient(part[0], w, chunk, version)
        piece = self._pieces.get(part)
        if piece is None:
            if sum(map(len, self._pieces)) > len(self.partitions.sizes):  # a piece takes the memory of its data
                self._pieces.clear()
            partitions: Any = self.partitions
            merged = partitions.piece(part[0], part[-1])
            merged.load((0,))
            piece = self._pieces[part] = Messages(merged, seed=self._seed, first=part[0])
        gradient = piece.partial_gradient(0, w, chunk._replace(batch=chunk.batch * len(part)), version)
        support = self.support(part)
        return gradient if support is None or gradient.size == support.size else gradient[support]

    def _put_gradient(self, part: tuple[int, ...], w: Vector, chunk: Chunk, version: int, put: Put) -> None:
        """Pass on what :meth:`gradient` returns; in pieces, where these take less memory."""
        partitions = self.partitions
        rows = None if len(part) > 1 else self.rows(part[0], chunk, version)
        whole = len(part) > 1 or self.blocks > 1 or (rows is not None and not rows.size)
        if whole or not isinstance(partitions, Batches):
            put(0, self.gradient(part, w, chunk, version))
            return
        share = None if rows is None else self._batches.share(part[0], chunk, rows)

        def put_share(first: int, piece: Vector) -> None:
            put(first, piece if share is None else piece * piece.dtype.type(share))

        with self._computing(partitions, chunk, version):
            partitions.put_gradient(part[0], w, rows, put_share)

    @contextlib.contextmanager
    def _computing(self, partitions: Any, chunk: Chunk | None, version: int) -> Iterator[None]:
        """Guard the computation of a gradient."""
        if isinstance(partitions, Batches):
            partitions.key = keyed_integer(self._seed, "draws", version, 0 if chunk is None else chunk.repeat)
        try:
            # inspect_message() detects numbers that are not finite
            with np.errstate(over="ignore", invalid="ignore"), self._data:
                yield
        finally:
            self._stop_if_forked()

    def partial_gradient(self, partition: int, w: Vector, chunk: Chunk | None = None, version: int = 0) -> Vector:
        """Return a partition's gradient, or its mini-batch's, scaled up to the partition; check its length."""
        rows = None if chunk is None else self.rows(partition, chunk, version)
        partitions = self.partitions
        if chunk is not None and isinstance(partitions, ManyPartitions):
            partitions = partitions.of(chunk.slot)
        with self._computing(partitions, chunk, version):
            if rows is None:
                gradient = _real(partition, partitions.partial_gradient(partition, w))
            elif not rows.size:
                gradient = np.full(self.length((partition,)), NO_GRADIENT, dtype=self.dtype)
            else:
                gradient = _real(partition, partitions.partial_gradient(partition, w, rows))
                assert chunk is not None
                gradient = gradient * gradient.dtype.type(self._batches.share(partition, chunk, rows))
        slot_support = partitions.support(partition) if isinstance(self.partitions, ManyPartitions) else None
        support = self.support((partition,))
        if slot_support is not None and support is None:  # the slots' gradients touch different coordinates
            spread = np.zeros(self.partitions.dimension, dtype=gradient.dtype)
            spread[slot_support] = gradient
            gradient = spread
        expected = self.partitions.dimension if support is None else int(support.size)
        if np.shape(gradient) != (expected,):
            raise WrongLength(
                f"wrong length: partition {partition} gave a gradient of shape {np.shape(gradient)}, its support has "
                f"{expected} coordinates"
            )
        return gradient

    def loss(self, slot: str, partition: int, w: Vector, samples: int | None) -> float:
        """Return the sum of a partition's losses at a slot's model, over its rows among the ``samples`` to evaluate."""
        partitions: Any = self.partitions
        if isinstance(partitions, ManyPartitions):
            partitions = partitions.of(slot)
        chosen_rows = None if samples is None else rows_by_partition(tuple(self.partitions.sizes), samples)
        rows = (chosen_rows[partition],) if chosen_rows else ()
        try:
            with np.errstate(over="ignore", invalid="ignore"), self._data:
                return float(partitions.partial_loss(partition, w, *rows))
        finally:
            self._stop_if_forked()

    def _stop_if_forked(self) -> None:
        if os.getpid() != self._process:
            os._exit(0)  # a user's function has forked: the child must not continue as the same worker

    def split(self, coefficients: Sequence[float]) -> Sequence[Any]:
        """Return each partition's coefficients: a number, or a list of ``blocks`` numbers."""
        b = self.blocks
        return coefficients if b == 1 else [coefficients[i : i + b] for i in range(0, len(coefficients), b)]

    def add(
        self, out: Vector, ids: tuple[int, ...], item: int, coefficient: Any, gradient: Vector, first: int = 0
    ) -> None:
        """Add the gradient of a chunk's ``item``-th partition or group to a message; the first overwrites ``out``.

        ``first``: the coordinate of a gradient's first number, if only a piece of it is given.
        """
        if self.blocks > 1:
            if item == 0:
                out[:] = NO_GRADIENT
            for offset, factor in enumerate(coefficient):
                strided = gradient[offset :: self.blocks]
                out[: strided.size] += strided * gradient.dtype.type(factor)
            return
        if coefficient != 1.0:
            gradient = gradient * gradient.dtype.type(coefficient)
        positions = None if self._together else self._supports.positions(ids, (ids[item],))
        if positions is None:
            out = out[first : first + gradient.size]
        if item == 0:
            if positions is None:
                out[:] = gradient
                return
            out[:] = 0.0
        if positions is None:
            out += gradient
        else:
            np.add.at(out, positions, gradient)

    def add_message(
        self, out: Vector, ids: tuple[int, ...], other: tuple[int, ...], message: Vector, weight: float
    ) -> None:
        """Add ``weight`` times a message over partitions ``other`` to ``out``, a message over ``ids``, a superset."""
        positions = self._supports.positions(ids, other)
        if weight != 1.0:
            message = message * message.dtype.type(weight)
        if positions is None:
            out += message
        else:
            np.add.at(out, positions, message)

    def project(self, ids: tuple[int, ...], message: Vector, key: int) -> float:
        """Return a message's product with the direction of a key: a normal sample with mean 1 per coordinate."""
        direction = self._directions.get(key)
        if direction is None:
            random = keyed_generator(key, "projection", self.partitions.dimension)
            direction = self._directions[key] = 1.0 + random.standard_normal(self.partitions.dimension)
        support = self.support(ids)
        restricted = direction[: message.size] if support is None else direction[support]
        return float(restricted @ message.astype(np.float64, copy=False))

    def add_up(self, terms: Sequence[tuple[tuple[int, ...], Vector, Any]], part: slice = WHOLE) -> Floats:
        """Return the weighted sum of messages, ``terms`` of (partitions, vector, weight), added in order; float64.

        With ``blocks`` a weight is a list of ``blocks`` numbers. ``part``: the coordinates to add up; sums do
        not depend on it. Several threads may call this method at the same time.
        """
        first, last, _ = part.indices(self.partitions.dimension)
        total = np.full(last - first, NO_GRADIENT)
        for ids, message, weight in terms:
            if self.blocks > 1:
                for k, factor in enumerate(weight):
                    a, b = ((coordinate - k + self.blocks - 1) // self.blocks for coordinate in (first, last))
                    strided = total[a * self.blocks + k - first :: self.blocks]
                    strided += factor * message[a:b]
                continue
            support = self.support(ids)
            if support is None:
                message = message[part]
            elif last - first < self.partitions.dimension:
                a, b = np.searchsorted(support, (first, last))
                support, message = support[a:b] - first, message[a:b]
            message = _weighted(message, weight)
            if support is None:
                total += message
            else:  # one pass; += would read, add and write separately
                np.add.at(total, support, message.astype(np.float64, copy=False))
        return total
