"""The values that model versions carry to the workers: changed by schedules and by the user's loop."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from anyk.base.arrays import Array, Vector, Vectors
from anyk.clusters.contract import Cluster
from anyk.clusters.store import CARRIED, Carried
from anyk.problems.values import Leaves, Values
from anyk.runs.log.log_writer import LogWriter


class CarriedValues:
    """Attaches the current values of a problem to each version that is published.

    Numbers travel in the orders. Arrays that differ from the initial ones travel like models: their bytes, in pieces of
    a model's length, are stored once, and again only when one of them changes.
    """

    def __init__(self, cluster: Cluster, values: Values, log: LogWriter | None) -> None:
        self._cluster, self._values, self._log = cluster, values, log
        self.leaves = values.initial
        self.rounds = 1  # versions for each step of a loop that accumulates gradients, from which schedules count
        self._places: tuple[int, ...] = ()  # of the arrays that have changed
        self._content, self._pieces = -1, 0  # the newest content, and the number of its pieces
        self._changed = False  # whether an array has changed since
        self._shown: dict[str, dict[str, float | str]] = {}  # of the newest version, by slot

    @property
    def values(self) -> dict[str, Any]:
        """The current values by name."""
        return self._values.build(self.leaves)

    @property
    def arrays(self) -> dict[int, Array]:
        """The arrays that have changed, by their places among all arrays."""
        return {index: self.leaves.arrays[index] for index in self._places}

    @property
    def changed(self) -> Leaves | None:
        """The current leaves; None if they are still the initial ones."""
        initial = self._values.initial
        return None if not self._places and self.leaves.numbers == initial.numbers else self.leaves

    def change(self, values: Mapping[str, Any] | None, kept: Mapping[int, Array]) -> None:
        """Set the values of the next version; ``kept``: arrays by their places among all arrays.

        Raises :class:`~anyk.BadInput` if their form has changed.
        """
        numbers, arrays = self.leaves
        new = list(arrays)
        if values is not None:
            numbers, arrays_read = self._values.read(values)
            new[: len(arrays_read)] = arrays_read
        for index, array in kept.items():
            new[index] = array
        self._take(Leaves(numbers, tuple(new)))

    def _take(self, leaves: Leaves) -> None:
        pairs = enumerate(zip(self.leaves.arrays, leaves.arrays, strict=True))
        changed = [index for index, (old, new) in pairs if old is not new and not _equal(old, new)]
        if changed:
            self._places, self._changed = tuple(sorted({*self._places, *changed})), True
            # copies, as the user may change arrays in place
            tensors = [
                np.array(new) if index in changed else old
                for index, (old, new) in enumerate(zip(self.leaves.arrays, leaves.arrays, strict=True))
            ]
            leaves = leaves._replace(arrays=tuple(tensors))
        else:
            leaves = leaves._replace(arrays=self.leaves.arrays)
        self.leaves = leaves

    def attach(self, slot: str, version: int, step: int) -> None:
        """Let a version that is about to be published carry the values at a step."""
        self._take(self._values.at(self.leaves, step // self.rounds))
        if not self._values.names and not self._places:
            return  # nothing has ever changed
        if self._changed:
            self._changed, self._content = False, self._content + 1
            self._publish()
        store = self._cluster.store
        store.carried[slot, version] = Carried(self.leaves.numbers, self._places, self._content, self._pieces)
        description = self._values.describe(self.leaves, self._places)
        if description != self._shown.get(slot):
            self._shown[slot] = description
            if self._log is not None:
                self._log.carried(slot, version, description)

    def shown(self, slot: str) -> Mapping[str, float | str]:
        """Return the values of a slot's newest version, arrays as digests."""
        return self._shown.get(slot, {})

    def _publish(self) -> None:
        """Store the arrays that have changed, in pieces of a model's length."""
        store = self._cluster.store
        like = store.messages
        arrays = (np.ascontiguousarray(self.leaves.arrays[index]) for index in self._places)
        content = np.concatenate([array.reshape(-1).view(np.uint8) for array in arrays])
        length = like.partitions.dimension * like.dtype.itemsize
        self._pieces = -(-content.size // length)
        padded = np.zeros(self._pieces * length, dtype=np.uint8)
        padded[: content.size] = content
        for piece, vector in enumerate(padded.view(like.dtype).reshape(self._pieces, -1)):
            store.publish(f"{CARRIED} {piece}", self._content, vector)

    # ------------------------------------------------------------------------------------------- checkpoints

    def state(self) -> list[Any]:
        """Return the values of all versions in use, as plain data."""
        versions = [[*key, *carried] for key, carried in self._cluster.store.carried.items()]
        return [versions, self.leaves.numbers, self._places, self._content, self._pieces]

    def vectors(self) -> Vectors:
        """Return the contents of all versions in use, by the names that :meth:`restore` expects."""
        store = self._cluster.store
        keys = {key for carried in store.carried.values() for key in carried.stored}
        return {f"{slot}/{content}": store.model(slot, content) for slot, content in sorted(keys)}

    def restore(self, state: list[Any], vectors: Mapping[str, Vector]) -> None:
        """Restore the values of the versions whose models are among the ``vectors``."""
        versions, numbers, places, self._content, self._pieces = state
        self._places = tuple(places)
        store, stored = self._cluster.store, set[tuple[str, int]]()
        for slot, version, *fields in versions:
            if f"model/{slot}/{version}" not in vectors:
                continue
            carried = Carried(tuple(fields[0]), tuple(fields[1]), *fields[2:])
            for key in carried.stored:
                if key not in stored:
                    store.publish(*key, vectors[f"{key[0]}/{key[1]}"])
                    stored.add(key)
            store.carried[slot, version] = carried
        newest = Carried((), (), self._content, self._pieces).stored
        content = [vectors[f"{slot}/{number}"] for slot, number in newest]
        self.leaves = self._values.decode(numbers, self._places, content)


def _equal(one: Array, other: Array) -> bool:
    return bool(np.array_equal(one, other, equal_nan=one.dtype.kind in "fc"))
