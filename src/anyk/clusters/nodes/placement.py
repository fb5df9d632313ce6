"""Which nodes hold which slice of a model."""

from __future__ import annotations

from collections.abc import Sequence

from anyk.base.arrays import DType


class Placement:
    """The slices of vectors, and the nodes that hold them, by rank.

    Each slice may lie at as many of the nodes ``among`` as there are ``copies``: that in the place of its number, and
    those that follow. ``ranks``: those that hold it now, by slice.
    """

    def __init__(self, slices: Sequence[tuple[int, int]], dtype: DType, copies: int, among: Sequence[int] = ()) -> None:
        """``among``: ranks, as many as slices; by default 0, 1 and so on."""
        among = among or range(len(slices))
        self.dtype, self.copies, self.dimension = dtype, copies, slices[-1][1]
        self.slices = {number: ends for number, ends in enumerate(slices) if ends[0] < ends[1]}
        self.homes = {number: [among[(number + copy) % len(among)] for copy in range(copies)] for number in self.slices}
        self.ranks = {number: list(homes) for number, homes in self.homes.items()}

    def bytes_at(self, slice_number: int) -> tuple[int, int]:
        """Return the first byte of a slice in a vector, and the one after its last."""
        first, last = self.slices[slice_number]
        return first * self.dtype.itemsize, last * self.dtype.itemsize

    def at(self, rank: int) -> dict[int, tuple[int, int]]:
        """Return the coordinates of the slices that a node may hold, first the one that is read from it."""
        return {number: self.slices[number] for number, home in self._in_turn() if home == rank}

    def readable(self) -> dict[int, list[int]]:
        """Return who holds each slice now, first the node that others are to read it from: that of its number."""
        return {number: [rank for rank in homes if rank in self.ranks[number]] for number, homes in self.homes.items()}

    def pairs(self) -> list[tuple[int, int]]:
        """Return slices and who holds them now, first what others wait for."""
        return [(number, rank) for number, rank in self._in_turn() if rank in self.ranks[number]]

    def _in_turn(self) -> list[tuple[int, int]]:
        """Return slices and who may hold them: first those from whom others are to read them."""
        return [(number, homes[copy]) for copy in range(self.copies) for number, homes in self.homes.items()]
