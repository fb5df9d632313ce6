"""The worker in a Ray actor, and the actor's class."""

from __future__ import annotations

import os
import pickle
import threading
import time
import traceback
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from anyk.base.arrays import Array, DType, Vector
from anyk.clusters.contract import Envelope, Key, Report
from anyk.clusters.nodes.session import Told
from anyk.clusters.nodes.wire import Offered, bytes_of, digests_of
from anyk.clusters.ray.answers import FOREVER, answer
from anyk.clusters.ray.connection import ray_module
from anyk.clusters.remote.networked import NetworkedWorker
from anyk.clusters.remote.shipping import unship
from anyk.clusters.remote.wire import form_of, pack_reports, unpack_reports
from anyk.clusters.remote.worker import RunSetup
from anyk.problems.base import partition_abilities

_pack = msgspec.msgpack.Encoder(enc_hook=float).encode  # float() converts NumPy's numbers
_unpack = msgspec.msgpack.Decoder(list[Told]).decode
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

    def news_up_to_a_message(self) -> list[tuple[Report, Array | None]]:
        """Return the reports not sent yet, up to the first that has a vector; wait until there is a report."""
        with self._condition:
            self._condition.wait_for(lambda: bool(self._news))
            with_vector = [number for number, (_, vector) in enumerate(self._news, 1) if vector is not None]
            count = with_vector[0] if with_vector else len(self._news)
            news, self._news = self._news[:count], self._news[count:]
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

    def receive_parts(self, packed: bytes, references: Sequence[Any]) -> bytes:
        """Take in an envelope whose vectors are the bytes of objects, one after the other.

        They come from other actors, so none is unpickled.
        """
        ray = ray_module()
        different = list(dict.fromkeys(references))  # vectors with the same bytes are the same objects
        if different:
            ray.wait(different, num_returns=len(different))  # so that Ray fetches all in parallel
        envelope: Envelope
        envelope, counts, kind = pickle.loads(packed)  # from the driver, which started this process
        left, vectors = iter([answer(ray, reference, FOREVER) for reference in references]), {}
        for key, count in zip(envelope.fresh, counts, strict=True):
            vectors[key] = joined([next(left) for _ in range(count)], np.dtype(kind))
        self._worker.receive_and_wake(envelope, vectors)
        return b""

    def exchange_parts(self, ends: Sequence[int], *packed: Any) -> tuple[bytes, ...]:
        """Take in an envelope, if there is one; return reports, and apart the slices of a message if one has it.

        ``ends``: the byte after the last one of each slice.
        """
        if packed:
            self.receive_parts(*packed)
        news = self._worker.news_up_to_a_message()
        vector = news[-1][1]
        if vector is None:
            return (pack_announced(news), *[b""] * len(ends))
        data = bytes_of(np.ascontiguousarray(vector))
        return (pack_announced(news), *[bytes(data[start:end]) for start, end in pairwise((0, *ends))])


def joined(parts: Sequence[memoryview], kind: DType) -> Vector:
    """Return the vector whose bytes are in these parts."""
    vectors = [np.frombuffer(data, dtype=kind) for data in parts]
    return vectors[0] if len(vectors) == 1 else np.concatenate(vectors)


def pack_announced(news: Sequence[tuple[Report, Array | None]]) -> bytes:
    """Return reports as bytes, with form and digests of the vector that the last one may have."""
    told = []
    for report, vector in news:
        offered = None if vector is None else Offered(b"", vector.nbytes, digests_of(bytes_of(vector)))
        told.append(Told(0, 0, 0, report, form=form_of(vector), offered=offered))
    return _pack(told)


def unpack_announced(data: bytes | memoryview) -> list[Told]:
    """Return what :func:`pack_announced` packed; raise ValueError (msgspec's errors) for anything else."""
    return _unpack(data)
