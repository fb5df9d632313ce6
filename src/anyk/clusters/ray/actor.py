"""The worker in a Ray actor, and the actor's class."""

from __future__ import annotations

import os
import pickle
import threading
import time
import traceback
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anyk.base.arrays import Array, Vector
from anyk.clusters.contract import Envelope, Key, Report
from anyk.clusters.ray.connection import ray_module
from anyk.clusters.remote.networked import NetworkedWorker
from anyk.clusters.remote.shipping import unship
from anyk.clusters.remote.wire import pack_reports, unpack_reports
from anyk.clusters.remote.worker import RunSetup
from anyk.problems.base import partition_abilities

_Parcels = Sequence[Sequence[Any]]  # Ray's references to the bytes of each partition


class RayWorker(NetworkedWorker):
    """The worker in an actor, in a separate thread; the actor's threads receive orders and return reports."""

    def __init__(
        self,
        worker: int,
        setup: RunSetup,
        shipped: Sequence[memoryview],
        assigned: Sequence[int],
        parcels: _Parcels,
    ) -> None:
        super().__init__(worker, setup, shipped, assigned)
        self._missing = dict(enumerate(parcels))  # Ray's references to the bytes of partitions that are not loaded
        self._missing.pop(0, None)  # it came with the worker
        self._condition = threading.Condition(self.lock)
        self._news: list[tuple[Report, Array | None]] = []

    def load_missing(self, partitions: Sequence[int]) -> None:
        missing = [j for j in partitions if j in self._missing]
        if not missing:
            return
        ray, loaded = ray_module(), self._messages.partitions
        adopt = partition_abilities(loaded).adopt
        assert adopt is not None
        ray.get([reference for j in missing for reference in self._missing[j]])  # so that Ray fetches all in parallel
        for j in missing:
            adopt(unship([buffer.data for buffer in ray.get(self._missing[j])]))
        loaded.load(missing)
        for j in missing:
            del self._missing[j]

    def transmit(self, report: Report, vector: Array | None) -> None:
        with self._condition:
            self._news.append((report, vector))
            self._condition.notify_all()

    def listen(self, until: float | None) -> None:
        with self._condition:
            self._condition.wait_for(self.changed, None if until is None else max(0.0, until - time.monotonic()))

    def receive_and_wake(self, envelope: Envelope, vectors: dict[Key, Vector]) -> None:
        """Take in an envelope, and wake the worker if it is waiting for one."""
        self.receive(envelope, vectors)
        with self._condition:
            self._condition.notify_all()

    def news(self) -> list[tuple[Report, Array | None]]:
        """Return the reports not sent yet, with their vectors; wait until there is a report."""
        with self._condition:
            self._condition.wait_for(lambda: bool(self._news))
            news, self._news = self._news, []
        return news


class Actor:
    """The class that Ray instantiates, once for each worker."""

    def __init__(
        self,
        worker: int,
        setup: RunSetup,
        assigned: Sequence[int],
        parcels: _Parcels,
        *shipped: NDArray[np.uint8],
    ) -> None:
        os.environ["ANYK_WORKER"] = str(worker)
        views = [buffer.data for buffer in shipped]
        self._worker = RayWorker(worker, setup, views, assigned, parcels)
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        try:
            self._worker.run()
        except BaseException:
            traceback.print_exc()
            os._exit(1)  # otherwise Ray would consider the actor alive

    def receive(self, packed: bytes, *objects: Any) -> bytes:
        """Take in an envelope; each vector is an object itself, or at a place in another worker's packed reports."""
        envelope: Envelope
        envelope, places = pickle.loads(packed)  # from the driver, which started this process
        vectors: dict[Key, Vector] = {}
        for key, index, object_ in zip(envelope.fresh, places, objects, strict=True):
            vector = object_ if index < 0 else unpack_reports(object_)[index][1]
            assert vector is not None
            vectors[key] = vector
        self._worker.receive_and_wake(envelope, vectors)
        return b""

    def exchange(self, *packed: Any) -> bytes:
        """Take in an envelope, if there is one; wait for reports and return them, packed.

        Ray passes bytes on as they are, and pickles everything else, which the driver refuses.
        """
        if packed:
            self.receive(*packed)
        return pack_reports(self._worker.news())
