"""The driver's store of a run whose sums, models and optimisers' states lie in slices at the nodes."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from anyk.base import keyed
from anyk.base.arrays import Vector, Vectors
from anyk.clusters.contract import Key
from anyk.clusters.messages import Messages
from anyk.clusters.nodes.driver_store import DriverStore
from anyk.clusters.nodes.held_optimizers import HeldOptimizers
from anyk.clusters.nodes.holders import Holders
from anyk.clusters.nodes.node import DriverOfNodes
from anyk.clusters.nodes.session import MeasureStep, OfferedPart, TakeStep
from anyk.clusters.nodes.sliced_messages import DRIVER, MessageSource, SlicedMessage
from anyk.clusters.nodes.sliced_versions import SlicedVersion, SlicedVersions
from anyk.clusters.nodes.wire import bytes_of
from anyk.clusters.remote.handles import Notice
from anyk.clusters.steps import Place, StepPlan, stepping_by
from anyk.clusters.store import Elsewhere, Message
from anyk.optimizers import Clip, Optimizer

_LARGE = 1 << 26  # bytes of a message whose replicas are freed early


class SlicedStore(DriverStore):
    """Has holders collect messages, step their slices, and offer them to the other nodes.

    No vector passes through the driver but those that it is asked for: the first version, checkpoints, evaluations and
    what callbacks read.
    """

    def __init__(self, messages: Messages, cluster: DriverOfNodes, holders: Holders) -> None:
        super().__init__(messages, cluster.carrier)
        self._holders, self._questions, self._placement = holders, holders.questions, holders.placement
        self._versions = SlicedVersions(cluster, holders)
        self._optimizers = HeldOptimizers(cluster, holders, self._versions, needs=self._in_use)

    # ------------------------------------------------------------------------------------------- versions

    def publish(self, slot: str, version: int, w: Vector | Elsewhere) -> None:
        self._versions.newest[slot] = version
        if isinstance(w, SlicedVersion):
            self._versions.publish(w)
        else:
            super().publish(slot, version, w)

    def release(self, slot: str, version: int) -> None:
        super().release(slot, version)
        if self._versions.release((slot, version)):
            self.gone.append((slot, version))

    def vector(self, key: Key) -> Any:
        return self._versions.published.get(key) or super().vector(key)

    def parts(self, key: Key, rank: int) -> list[OfferedPart]:
        if (version := self._versions.published.get(key)) is not None:
            return self._versions.parts(version, rank)
        first, second = key
        if not isinstance(first, str):
            source = self._content((first, second)).sources[0]
            return [OfferedPart(0, source.offered, source.address)]
        return super().parts(key, rank)

    def model(self, slot: str, version: int) -> Vector:
        sliced = self._versions.published.get((slot, version))
        return super().model(slot, version) if sliced is None else self._versions.read(sliced)

    def _in_use(self, slot: str) -> list[Key]:
        """Return the versions of a slot from which steps may be taken, or which they may need."""
        return [*(key for key in self._models if key[0] == slot), *self._versions.keys(slot)]

    def clear(self) -> None:
        super().clear()
        self._versions.published.clear()
        self._optimizers.clear()

    # ------------------------------------------------------------------------------------------- messages

    def _content(self, key: Place) -> SlicedMessage:
        content: Any = self.arrived[key].vector
        assert isinstance(content, SlicedMessage)
        return content

    def keep(self, notice: Notice, ids: tuple[int, ...], vector: Any) -> Message:
        if isinstance(vector, SlicedMessage) and self._placement.copies == 1:
            _free_replicas(vector)
        return Message(ids, vector, notice.worker)

    def message(self, key: Place) -> Vector:
        content = self._content(key)
        if content.whole is None:
            content.whole = self._holders.messages.read(content)
        return content.whole

    def givers(self, key: Place) -> list[int]:
        return [worker for _, worker in sorted(self._content(key).givers.items())]

    def alike(self, one: Place, other: Place, tolerance: float) -> bool:
        first, second = self._content(one), self._content(other)
        if first is second:
            return True
        if not tolerance:
            return False  # other bytes, by their digests
        norm = self._questions.squared_norm
        largest = max(norm([(first, 1.0)]), norm([(second, 1.0)]))
        return norm([(first, 1.0), (second, -1.0)]) <= tolerance**2 * largest

    def _drop(self, key: Place) -> None:
        super()._drop(key)
        self.gone.append(key)  # some worker may have read it

    def restore_message(self, worker: int, task: int, chunk: int, ids: tuple[int, ...], message: Vector) -> None:
        offered = self._carrier.offer(bytes_of(np.ascontiguousarray(message)))
        source = MessageSource(worker, DRIVER, self._carrier.address, offered)
        content: Any = self._holders.messages.collect_now(
            message.dtype, message.size, source, free=lambda: self._carrier.drop(offered.key)
        )
        self.arrived[task, chunk] = Message(ids, content, worker)

    # ------------------------------------------------------------------------------------------- steps

    def start_optimizer(self, slot: str, version: int, optimizer: Optimizer, states: Vectors | None = None) -> None:
        self._optimizers.start(slot, optimizer, states)

    def optimizer_states(self, slot: str) -> Vectors:
        return self._optimizers.states(slot, model=lambda: self.model(slot, self._versions.newest[slot]))

    def apply(
        self, plan: StepPlan, optimizer: Optimizer, penalties: Vector | None = None
    ) -> tuple[Vector | Elsewhere, int]:
        optimizer = self._optimizers.at_step(plan.slot, optimizer, plan.version, plan.scale)
        renewed = self._optimizers.renew(plan.slot, optimizer, penalties)
        self._holders.suspend_who_lags()
        self._optimizers.bring_back()
        needs = _versions_of(plan)
        self._versions.locate(needs)
        stale = [stale_message.message for stale_message in plan.compensation or ()]
        keep = [self._content(message) for message in (*plan.messages, *stale)]
        numbered = self._numbered(plan)
        factor = self._factor(numbered, needs, optimizer, keep)
        version = self._versions.make(plan.slot, plan.version + 1)
        answers = self._questions.ask(
            lambda run, number, of: TakeStep(run, number, of, numbered, needs, factor, renewed),
            keep=keep,
            late=partial(self._versions.note_offers, [version]),
        )
        for number, (rank, done) in answers.items():
            self._versions.note_offers([version], number, rank, done)
        return version, sum(done.digest for _, done in answers.values()) & keyed.POSITIVE

    def _factor(
        self, plan: StepPlan, needs: list[Key], optimizer: Optimizer, keep: list[SlicedMessage]
    ) -> float | None:
        """Return the factor by which the gradient of a step is clipped; None if it is not to be."""
        steps_by, _ = stepping_by(plan, optimizer, {}, np.empty(0))
        if not isinstance(steps_by, Clip):
            return None
        answers = self._questions.ask(lambda run, number, of: MeasureStep(run, number, of, plan, needs), keep=keep)
        return steps_by.factor([square for _, done in answers.values() for square in done.squares])

    def _numbered(self, plan: StepPlan) -> StepPlan:
        """Return a plan with messages by the numbers of their slices."""

        def number(message: Place) -> Place:
            return self._content(message).number, 0

        stale = plan.compensation and tuple(
            stale_message._replace(message=number(stale_message.message)) for stale_message in plan.compensation
        )
        return plan._replace(messages=list(map(number, plan.messages)), compensation=stale)


def _versions_of(plan: StepPlan) -> list[Key]:
    """Return the versions of models that a step is made of."""
    mixed = [(term.slot, term.version) for term in plan.mix.models] if plan.mix is not None else []
    stale = [(plan.slot, stale_message.version) for stale_message in plan.compensation or ()]
    return [(plan.slot, plan.version), *mixed, *stale]


def _free_replicas(message: SlicedMessage) -> None:
    """Free the memory of a large message that is at its holders, but for one replica from which all can be read."""
    if message.size * message.dtype.itemsize < _LARGE:
        return  # whose memory is used again as soon as the step is taken
    frees = message.frees[1:]
    del message.sources[1:], message.frees[1:]
    for free in frees:
        free()
