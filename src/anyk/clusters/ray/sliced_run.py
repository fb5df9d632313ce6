"""What a run on Ray has besides its workers if models lie in slices: holders, and messages on their way to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from anyk.base.arrays import DType
from anyk.clusters.messages import Messages
from anyk.clusters.nodes.arrivals import Announced, Arrivals, announced_vector
from anyk.clusters.nodes.holders import Holders
from anyk.clusters.nodes.session import Told
from anyk.clusters.nodes.sliced_messages import DRIVER
from anyk.clusters.nodes.slices import cut
from anyk.clusters.ray.slices import HolderActors, ObjectSlices, Stored
from anyk.clusters.remote.wire import refuse


class SlicedRun:
    """Holders of slices, one on each of ``machines``, and the messages that they collect.

    ``lengths``: of each worker's longest message. ``poll`` takes in what workers and holders return. ``enter`` is
    called with a message, its content and why it failed when its slices are at their holders, or cannot be had.
    ``patience``: seconds that a holder may take to answer.
    """

    def __init__(
        self,
        messages: Messages,
        lengths: Sequence[int],
        machines: int,
        *,
        poll: Callable[[float], None],
        enter: Callable[[Announced, Any, str], None],
        patience: float,
    ) -> None:
        dtype = messages.dtype
        cuts = cut(messages.partitions.dimension, dtype.itemsize, machines)
        self._enter = enter
        self.actors = actors = HolderActors(poll, self._collected, patience)
        actors.holders = Holders(actors, cuts, dtype, copies=1)
        actors.store = self.store = ObjectSlices(messages, actors, actors.holders)
        self._arrivals = Arrivals(actors.holders.messages, enter)
        self._most = [length * dtype.itemsize for length in lengths]  # bytes of each worker's longest message
        # where each slice ends, in bytes
        placement = actors.holders.placement
        self.ends = [placement.bytes_at(number)[1] for number in placement.slices]

    def start(self, machines: Sequence[str], dtype: DType, runtime_env: Any) -> None:
        """Start the holders; ``machines``: the ids of Ray's nodes that have workers."""
        self.actors.start(machines, dtype, runtime_env)

    def close(self) -> None:
        """End the holders, and forget the messages on their way."""
        self._arrivals.close()
        self.actors.close()

    def look(self) -> None:
        """Have holders do what is due."""
        self.actors.tidy()
        self.actors.look()

    def announce(self, worker: int, incarnation: int, told: Told, parts: Sequence[Any], *, needed: bool) -> None:
        """Have holders read the slices of a worker's message, which are in these objects, if it is still needed."""
        assert told.offered is not None
        try:
            dtype, size = announced_vector(told, self._most[worker])
        except ValueError as error:
            refuse(worker, error)
        carrier = self.actors.carrier
        key = carrier.name(Stored(parts))
        told.worker, told.incarnation, told.offered = worker, incarnation, told.offered._replace(key=key)
        message = Announced(told, rank=DRIVER, address=f"worker {worker}", free=partial(carrier.drop, key))
        if needed:
            self._arrivals.announce(message, dtype, size)
        else:
            self._enter(message, np.empty(0), "")
            message.free()

    def stop_unneeded(self, needed: Callable[[int], bool]) -> None:
        """Stop bringing the messages of tasks that are not needed any more."""
        self._arrivals.stop_unneeded(needed)

    def _collected(self, number: int, failure: str) -> None:
        self._arrivals.finished(number, failure)
