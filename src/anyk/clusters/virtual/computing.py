"""The store of vectors on the virtual clock: models, and messages that are computed on arrival."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from anyk.base.arrays import Vector
from anyk.base.keyed import array_digest
from anyk.clusters.local import Local, LocalStepper
from anyk.clusters.messages import Messages, describe, inspect_message, reverse_attack
from anyk.clusters.packing import pack, unpack
from anyk.clusters.store import Message, VectorStore
from anyk.problems.base import Partitions
from anyk.protocol import Chunk, Layout

Part = tuple[tuple[int, ...], int, int]  # partitions computed together, batch size, number of the mini-batch


class ComputingStore(VectorStore):
    """Computes messages on arrival, as workers would, so that cancelled messages cost no computing."""

    def __init__(
        self, layout: Layout, partitions: Partitions, local: Local | None, *, seed: int, byzantine: Collection[int]
    ) -> None:
        super().__init__(Messages(partitions, layout.blocks, seed, together=layout.together, epochs=layout.epochs))
        self._seed, self._byzantine = seed, byzantine
        self._gradients: dict[tuple[str, int], dict[Part, Vector]] = {}  # shared by replicas, by slot and version
        self._local = None if local is None else LocalStepper(self.messages, local)
        self.states = [{} for _ in range(layout.workers)]
        for assigned, covered in zip(layout.assignment, layout.covers or layout.assignment, strict=True):
            partitions.load(assigned)
            self.messages.length(tuple(covered))  # raises for messages that are not supported

    # ------------------------------------------------------------------------------------------- models and messages

    def release(self, slot: str, version: int) -> None:
        super().release(slot, version)
        self._gradients.pop((slot, version), None)

    # ------------------------------------------------------------------------------------------- computing

    def compute(self, task: int, index: int, chunk: Chunk, version: int, worker: int) -> tuple[str | None, int]:
        """Compute a chunk's message, and store it unless it has a fault; return (fault, digest)."""
        w = self._models[chunk.slot, version]
        gradients = self._gradients.setdefault((chunk.slot, version), {})
        try:
            if (carried := self.carried.get((chunk.slot, version))) is not None:
                content = [self._models[key] for key in carried.stored]
                self.messages.carry(carried.numbers, carried.places, content)
            if chunk.steps:
                assert self._local is not None
                models = [self.arrived[other, number].vector for _, other, number, _ in chunk.mix]
                ids, out = chunk.covers, np.array(self._local.run(task, chunk, w, models, self.states[worker]))
            else:
                ids, out = self._encode(task, index, chunk, version, w=w, gradients=gradients)
        except Exception as error:  # a user's problem may raise any exception, as on a real worker
            return describe(error), 0
        fault, bits = self._arrive(task, index, chunk, version, worker=worker, ids=ids, out=out)
        if fault is not None:
            gradients.clear()  # a repeated request is computed again
        return fault, bits

    def _encode(
        self, task: int, index: int, chunk: Chunk, version: int, w: Vector, gradients: dict[Part, Vector]
    ) -> tuple[tuple[int, ...], Vector]:
        """Return a message's partitions and the message; compute gradients that are missing in ``gradients``."""
        messages = self.messages
        keys = [(group, chunk.batch, chunk.repeat) for group in messages.parts(chunk)]
        for key in keys:
            if key not in gradients:  # a copy: the problem may reuse its buffer
                gradients[key] = np.array(messages.gradient(key[0], w, chunk, version))
        ids = self.covered(task, index, chunk)
        request = self.requests.pop((task, index), None)
        out = np.empty(messages.length(ids), dtype=w.dtype)
        if request is not None or not ids:
            out[:] = 0.0
        coefficients = messages.split(chunk.coefficients)
        for item, key in enumerate(keys):
            if request is None:
                messages.add(out, ids, item, coefficients[item], gradients[key])
            else:
                messages.add_message(out, ids, key[0], gradients[key], coefficients[item])
        for message_key, weight in zip(request.messages, request.weights, strict=True) if request is not None else ():
            messages.add_message(out, ids, *self.arrived[message_key][:2], weight)
        return ids, out

    def _arrive(
        self, task: int, index: int, chunk: Chunk, version: int, *, worker: int, ids: tuple[int, ...], out: Vector
    ) -> tuple[str | None, int]:
        """Store a message unless it has a fault; return (fault, digest)."""
        if worker in self._byzantine:
            reverse_attack(out)
        fault, bits = inspect_message(out)
        if fault is not None:
            return fault, bits
        if not chunk.compress:
            self.arrived[task, index] = Message(ids, out, worker)
            return None, bits
        base = self._models[chunk.slot, version]
        payload = pack(task, chunk, version, self._seed, vector=out, base=base, states=self.states[worker])
        unpacked = unpack(chunk, version, self._seed, payload, length=out.size, dtype=out.dtype, base=base)
        self.arrived[task, index] = Message(ids, unpacked, worker)
        return None, array_digest(payload)
