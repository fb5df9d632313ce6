"""Versions of models that lie in slices at the nodes, and from which node each slice is read."""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import numpy as np

from anyk.base.arrays import Vector
from anyk.base.errors import RunFailed
from anyk.clusters.contract import Key
from anyk.clusters.nodes.holders import Holders
from anyk.clusters.nodes.node import DriverOfNodes
from anyk.clusters.nodes.session import Done, OfferedPart
from anyk.clusters.nodes.wire import PIECE, Offered, bytes_of
from anyk.clusters.store import Elsewhere


class SlicedVersion(Elsewhere):
    """A version whose slices are written by steps of those who hold them, and offered by them.

    ``ranks``: by slice, those of the nodes that have it, or are about to write it, first the one that others are to
    read it from.
    """

    def __init__(self, key: Key, ranks: dict[int, list[int]]) -> None:
        self.key, self.ranks = key, ranks
        self.is_located = False  # whether others have been told where they read it
        self.offers: dict[int, dict[int, OfferedPart]] = {number: {} for number in ranks}  # by slice and rank
        self.chosen: dict[int, int] = {}  # by slice, the rank from which others read it
        self.whole: Vector | None = None  # once the driver has read it

    @property
    def parts(self) -> list[OfferedPart]:
        """Where each slice is read."""
        return [offers[self.chosen[number]] for number, offers in self.offers.items()]

    @property
    def is_settled(self) -> bool:
        """Whether each slice is read from a node that still holds it."""
        return all(rank in self.ranks[number] for number, rank in self.chosen.items())

    def choose(self, number: int) -> bool:
        """Choose from where a slice is read, unless it can stay; return whether it is read elsewhere from now on."""
        before, offers = self.chosen.get(number), self.offers[number]
        if not self.is_located or before not in self.ranks[number]:
            fit = [rank for rank in self.ranks[number] if rank in offers]
            self.chosen[number] = (fit or list(offers))[0]
        return before not in (None, self.chosen[number])


class SlicedVersions:
    """The versions that the holders have in slices.

    ``published``: those that nodes may read; ``newest``: the newest version of each slot, whole ones included.
    """

    def __init__(self, cluster: DriverOfNodes, holders: Holders) -> None:
        self._cluster, self._placement = cluster, holders.placement
        self.newest: dict[str, int] = {}
        self.published: dict[Key, SlicedVersion] = {}
        self._made: weakref.WeakValueDictionary[Key, SlicedVersion] = weakref.WeakValueDictionary()
        holders.suspended = self._on_suspended

    def make(self, slot: str, version: int) -> SlicedVersion:
        """Return a version that the holders are about to write."""
        prepared = self._made[slot, version] = SlicedVersion((slot, version), self._placement.readable())
        return prepared

    def publish(self, version: SlicedVersion) -> None:
        """Tell all who hold slices where they read a version that has been written."""
        self.published[version.key] = version
        version.is_located = True
        self.locate([version.key])

    def release(self, key: Key) -> bool:
        """Forget a version; return whether it was one in slices."""
        return self.published.pop(key, None) is not None

    def keys(self, slot: str) -> list[Key]:
        """Return the versions of a slot."""
        return [key for key in self.published if key[0] == slot]

    # ------------------------------------------------------------------------------------------- where they are read

    def parts(self, version: SlicedVersion, rank: int) -> list[OfferedPart]:
        """Return where a node reads the slices of a version; its own ones from itself."""
        address = self._cluster.address_of(rank)
        return [
            part._replace(address=address) if rank in ranks else part
            for part, ranks in zip(version.parts, version.ranks.values(), strict=True)
        ]

    def read(self, version: SlicedVersion) -> Vector:
        """Return all of a version, read by the driver once."""
        while version.whole is None:
            self._cluster.wait_until(lambda: version.is_settled)
            vector, parts = np.empty(self._placement.dimension, dtype=self._placement.dtype), version.parts
            memory, reads = bytes_of(vector), []
            for first, offered, address in parts:
                reads.append((memory[first : first + offered.size], offered, address))
            if self._cluster.read_now(reads, moved=lambda: not version.is_settled or version.parts != parts):  # noqa: B023
                version.whole = vector
        return version.whole

    def locate(self, keys: Sequence[Key]) -> None:
        """Tell all who hold slices where vectors are read."""
        for rank in sorted({rank for ranks in self._placement.ranks.values() for rank in ranks}):
            self._cluster.locate(rank, keys)

    def note_offers(self, versions: Sequence[SlicedVersion], number: int, rank: int, done: Done) -> None:
        """Note a node that offers a slice of some versions."""
        start, end = self._placement.bytes_at(number)
        if len(done.offered) != len(versions):
            raise RunFailed(f"node {rank} offers {len(done.offered)} slices of {len(versions)} models")
        for version, (_, _, offered) in zip(versions, done.offered, strict=True):
            check_offered(rank, offered, end - start, most=end - start)
            version.offers[number][rank] = OfferedPart(start, offered, self._cluster.address_of(rank))
            if version.choose(number):
                self._locate_again(version)

    def note_return(self, slot: str, number: int, rank: int, done: Done) -> None:
        """Note a node that has a slice of all versions of a slot again."""
        versions = [self.published[key] for key in self.keys(slot)]
        for version in versions:
            version.ranks[number].append(rank)
        self.note_offers(versions, number, rank, done)

    def _on_suspended(self, number: int, rank: int) -> None:
        """Have a slice read elsewhere that a node does not hold any more."""
        for version in list(self._made.values()):
            if rank in version.ranks[number]:
                version.ranks[number].remove(rank)
                if version.offers[number]:
                    version.choose(number)
                    self._locate_again(version)

    def _locate_again(self, version: SlicedVersion) -> None:
        """Tell nodes that a version is read elsewhere, unless nobody needs it yet, or any more."""
        if version.key in self.published:
            self._cluster.locate_again(version.key)


def check_offered(rank: int, offered: Offered, size: int, most: int) -> None:
    """Raise :class:`~anyk.RunFailed` for what no node of anyk offers."""
    if offered.size != size or size > most or len(offered.digests) != -(-size // PIECE):
        raise RunFailed(
            f"node {rank} offers {offered.size} bytes with {len(offered.digests)} digests where {size} of at most "
            f"{most} are expected: its process is damaged, or not anyk's; resume the run"
        )
