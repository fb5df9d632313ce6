"""The driver's store of a run whose sums, models and optimisers' states lie in slices at the nodes."""

from __future__ import annotations

import pickle
import weakref
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from anyk.base import keyed
from anyk.base.arrays import Vector, Vectors
from anyk.base.errors import BadInput, RunFailed
from anyk.clusters.contract import Key
from anyk.clusters.messages import Messages
from anyk.clusters.nodes.driver_store import DriverStore
from anyk.clusters.nodes.holders import Holders
from anyk.clusters.nodes.node import DriverOfNodes
from anyk.clusters.nodes.session import Done, Hold, MeasureStep, OfferedPart, Show, TakeStep
from anyk.clusters.nodes.slice_questions import PATIENCE
from anyk.clusters.nodes.sliced_messages import DRIVER, MessageSource, SlicedMessage
from anyk.clusters.nodes.wire import PIECE, Offered, bytes_of
from anyk.clusters.remote.handles import Notice
from anyk.clusters.remote.wire import Form, form_of, vector_type
from anyk.clusters.steps import Place, StepPlan, named_outer, split_states, stepping_by
from anyk.clusters.store import Elsewhere, Message
from anyk.optimizers import Clip, Optimizer, unclipped

_LARGE = 1 << 26  # bytes of a message whose replicas are freed early


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


class SlicedStore(DriverStore):
    """Has holders collect messages, step their slices, and offer them to the other nodes.

    No vector passes through the driver but those that it is asked for: the first version, checkpoints, evaluations and
    what callbacks read.
    """

    def __init__(self, messages: Messages, cluster: DriverOfNodes, holders: Holders) -> None:
        super().__init__(messages, cluster.carrier)
        self._cluster, self._holders = cluster, holders
        self._questions, self._placement = holders.questions, holders.placement
        self._versions: dict[Key, SlicedVersion] = {}
        self._newest: dict[str, int] = {}
        self._given: dict[str, Vectors | None] = {}  # states with which slots are to be stepped, None: fresh ones
        self._optimizers: dict[str, Optimizer] = {}
        self._held: dict[str, bytes] = {}  # as the holders have them
        self._factors: dict[str, dict[int, tuple[Form, OfferedPart] | None]] = {}  # the regulariser's, by slice
        self._made: weakref.WeakValueDictionary[Key, SlicedVersion] = weakref.WeakValueDictionary()
        holders.suspended = self._on_suspended
        self._offers: list[Offered] = []

    # ------------------------------------------------------------------------------------------- versions

    def publish(self, slot: str, version: int, w: Vector | Elsewhere) -> None:
        self._newest[slot] = version
        if not isinstance(w, SlicedVersion):
            super().publish(slot, version, w)
            return
        self._versions[slot, version] = w
        w.is_located = True
        self._locate([(slot, version)])

    def release(self, slot: str, version: int) -> None:
        super().release(slot, version)
        if self._versions.pop((slot, version), None) is not None:
            self.gone.append((slot, version))

    def vector(self, key: Key) -> Any:
        return self._versions.get(key) or super().vector(key)

    def parts(self, key: Key, rank: int) -> list[OfferedPart]:
        if (version := self._versions.get(key)) is not None:
            own = self._cluster.address_of(rank)
            return [
                part._replace(address=own) if rank in ranks else part
                for part, ranks in zip(version.parts, version.ranks.values(), strict=True)
            ]
        first, second = key
        if not isinstance(first, str):
            source = self._content((first, second)).sources[0]
            return [OfferedPart(0, source.offered, source.address)]
        return super().parts(key, rank)

    def _locate(self, keys: Sequence[Key]) -> None:
        """Tell all who hold slices where vectors are read."""
        for rank in sorted({rank for ranks in self._placement.ranks.values() for rank in ranks}):
            self._cluster.locate(rank, keys)

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
        if version.key in self._versions:
            self._cluster.locate_again(version.key)

    def model(self, slot: str, version: int) -> Vector:
        sliced = self._versions.get((slot, version))
        if sliced is None:
            return super().model(slot, version)
        while sliced.whole is None:
            self._cluster.wait_until(lambda: sliced.is_settled)
            whole, parts = np.empty(self._placement.dimension, dtype=self.messages.dtype), sliced.parts
            memory, reads = bytes_of(whole), []
            for first, offered, address in parts:
                reads.append((memory[first : first + offered.size], offered, address))
            if self._cluster.read_now(reads, moved=lambda: not sliced.is_settled or sliced.parts != parts):  # noqa: B023
                sliced.whole = whole
        return sliced.whole

    def clear(self) -> None:
        super().clear()
        self._versions.clear()
        for offered in self._offers:
            self._carrier.drop(offered.key)
        self._offers.clear()

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
            content.whole = self._read_message(content)
        return content.whole

    def _read_message(self, content: SlicedMessage) -> Vector:
        """Read a whole message from one of its sources, or from the next one if that falls silent or is lost."""
        whole = np.empty(content.size, dtype=content.dtype)
        sources = sorted(filter(self._holders.messages.offers, content.sources), key=self._silence) or content.sources
        for source in sources:
            wanted = [(bytes_of(whole), source.offered, source.address)]
            if self._cluster.read_now(wanted, moved=partial(self._has_moved, source, sources[-1])):
                break
        return whole

    def _has_moved(self, source: MessageSource, last: MessageSource) -> bool:
        is_lost = not self._holders.messages.offers(source) or self._silence(source) > PATIENCE
        return is_lost and source is not last

    def _silence(self, source: MessageSource) -> float:
        return 0.0 if source.rank == DRIVER else self._cluster.silence(source.rank)

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
        offered = self._offer(message)
        source = MessageSource(worker, DRIVER, self._carrier.address, offered)
        content: Any = self._holders.messages.collect_now(
            message.dtype, message.size, source, free=lambda: self._carrier.drop(offered.key)
        )
        self.arrived[task, chunk] = Message(ids, content, worker)

    # ------------------------------------------------------------------------------------------- steps

    def start_optimizer(self, slot: str, version: int, optimizer: Optimizer, states: Vectors | None = None) -> None:
        _check_sliceable(optimizer)
        given = optimizer.given_state() or None if states is None else states
        self._optimizers[slot], self._given[slot] = optimizer, given

    def optimizer_states(self, slot: str) -> Vectors:
        optimizer = self._optimizers[slot]
        if slot in self._given:
            states = self._given[slot]
            return optimizer.start(self.model(slot, self._newest[slot])) if states is None else states
        version = self._newest[slot]
        parts: list[tuple[Vectors, Vectors]] = []
        while len(parts) < len(self._placement.slices):  # one that showed its slice may have been lost
            answers = self._questions.ask(lambda run, number, of: Show(run, number, of, slot, version))
            read = [self._read_states(number, rank, done) for number, (rank, done) in answers.items()]
            parts = [split_states(states) for states in read if states is not None]
        joined = optimizer.joined_state([inner for inner, _ in parts])
        return joined | named_outer(_joined_outer([outer for _, outer in parts]))

    def _read_states(self, number: int, rank: int, done: Done) -> Vectors | None:
        """Read the state that a holder of a slice offers; return None if it is lost."""
        states: Vectors = {}
        reads = []
        for name, form, part in self._shown(number, rank, done):
            states[name] = np.empty(form[1], dtype=vector_type(form))
            reads.append((bytes_of(states[name]), part.offered, part.address))
        moved = not self._cluster.read_now(reads, moved=lambda: rank not in self._placement.ranks[number])
        return None if moved else states

    def _shown(self, number: int, rank: int, done: Done) -> list[tuple[str, Form, OfferedPart]]:
        """Return the parts of a state that a holder of a slice offers."""
        first, last = self._placement.slices[number]
        parts = []
        for name, form, offered in done.offered:
            kind = vector_type(form)
            _check_offered(rank, offered, form[1] * kind.itemsize, most=max(last - first, 1) * kind.itemsize)
            parts.append((name, form, OfferedPart(0, offered, self._cluster.address_of(rank))))
        return parts

    def apply(
        self, plan: StepPlan, optimizer: Optimizer, penalties: Vector | None = None
    ) -> tuple[Vector | Elsewhere, int]:
        slot = plan.slot
        if optimizer is not self._optimizers[slot]:
            raise BadInput(_WHOLE)
        optimizer = optimizer.at_step(plan.version, plan.scale)
        fresh = slot in self._given
        pickled = pickle.dumps(optimizer) if fresh or optimizer is not self._optimizers[slot] else b""
        renewed = b"" if fresh or pickled == self._held[slot] else pickled
        self._held[slot] = pickled or self._held[slot]
        if fresh:
            self._hold(slot, optimizer, penalties)
        needs: list[Key] = [(slot, plan.version)]
        if plan.mix is not None:
            needs += [(term.slot, term.version) for term in plan.mix.models]
        stale = plan.compensation or ()
        needs += [(slot, each.version) for each in stale]
        self._holders.suspend_who_lags()
        self._bring_back()
        self._locate(needs)
        keep = [self._content(message) for message in (*plan.messages, *(each.message for each in stale))]
        numbered = self._numbered(plan)
        factor = self._factor(numbered, needs, optimizer, keep)
        version = SlicedVersion((slot, plan.version + 1), self._placement.readable())
        self._made[version.key] = version
        answers = self._questions.ask(
            lambda run, number, of: TakeStep(run, number, of, numbered, needs, factor, renewed),
            keep=keep,
            late=partial(self._note_offers, [version]),
        )
        for number, (rank, done) in answers.items():
            self._note_offers([version], number, rank, done)
        return version, sum(done.digest for _, done in answers.values()) & keyed.POSITIVE

    def _note_offers(self, versions: Sequence[SlicedVersion], number: int, rank: int, done: Done) -> None:
        """Note a node that offers a slice of some versions."""
        start, end = self._placement.bytes_at(number)
        if len(done.offered) != len(versions):
            raise RunFailed(f"node {rank} offers {len(done.offered)} slices of {len(versions)} models")
        for version, (_, _, offered) in zip(versions, done.offered, strict=True):
            _check_offered(rank, offered, end - start, most=end - start)
            version.offers[number][rank] = OfferedPart(start, offered, self._cluster.address_of(rank))
            if version.choose(number):
                self._locate_again(version)

    def _bring_back(self) -> None:
        """Make nodes up to date that can hold slices again: with the state of the other copy, before its next step."""
        for number, rank in self._holders.returning():
            if all(self._hand_over(slot, number, rank) for slot in self._held):
                self._holders.resume(number, rank)
            else:
                self._holders.put_off(number, rank)

    def _hand_over(self, slot: str, number: int, rank: int) -> bool:
        """Give a node a slice of a slot's state as another one has it; return whether it has it now."""
        version, giver = self._newest[slot], self._placement.ranks[number][0]
        self._cluster.locate(rank, self._in_use(slot))
        shown = self._questions.ask_one(number, giver, lambda run, question, of: Show(run, question, of, slot, version))
        if shown is None:
            return False
        order = partial(self._hold_order, slot, self._shown(number, giver, shown))
        done = self._questions.ask_one(number, rank, order)
        if done is None:
            return False
        versions = [self._versions[key] for key in self._sliced_in_use(slot)]
        for each in versions:
            each.ranks[number].append(rank)
        self._note_offers(versions, number, rank, done)
        return True

    def _hold_order(
        self, slot: str, states: list[tuple[str, Form, OfferedPart]] | None, run: int, question: int, number: int
    ) -> Hold:
        factors = self._factors[slot][number]
        return Hold(
            run,
            question,
            number,
            slot,
            self._held[slot],
            states=states,
            penalties=factors,
            needs=self._in_use(slot),
            offers=self._sliced_in_use(slot),
        )

    def _in_use(self, slot: str) -> list[Key]:
        """Return the versions of a slot from which steps may be taken, or which they may need."""
        return [*(key for key in self._models if key[0] == slot), *self._sliced_in_use(slot)]

    def _sliced_in_use(self, slot: str) -> list[Key]:
        return [key for key in self._versions if key[0] == slot]

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

        stale = plan.compensation
        return plan._replace(
            messages=list(map(number, plan.messages)),
            compensation=stale and tuple(each._replace(message=number(each.message)) for each in stale),
        )

    def _hold(self, slot: str, optimizer: Optimizer, penalties: Vector | None) -> None:
        """Give the holders the optimiser of a slot, with the slices of its state and of the regulariser's factors."""
        states = self._given.pop(slot)
        parts: dict[int, list[tuple[str, Form, OfferedPart]] | None] = dict.fromkeys(self._placement.slices)
        factors = self._factors[slot] = dict.fromkeys(self._placement.slices)
        for number, (first, last) in self._placement.slices.items():
            coordinates = slice(first, last)
            if states is not None:
                inner, outer = split_states(states)
                own = optimizer.state_at(inner, coordinates) | named_outer(_outer_at(outer, coordinates))
                parts[number] = [(name, *self._offered_part(vector)) for name, vector in own.items()]
            if penalties is not None:
                factors[number] = self._offered_part(penalties[coordinates])
        self._locate(self._in_use(slot))
        self._questions.ask_all(lambda run, question, of: self._hold_order(slot, parts[of], run, question, of))

    def _offered_part(self, vector: Vector) -> tuple[Form, OfferedPart]:
        contiguous = np.ascontiguousarray(vector)
        form = form_of(contiguous)
        assert form is not None
        return form, OfferedPart(0, self._offer(contiguous), self._carrier.address)

    def _offer(self, vector: Vector) -> Offered:
        self._offers.append(self._carrier.offer(bytes_of(np.ascontiguousarray(vector))))
        return self._offers[-1]


def _free_replicas(message: SlicedMessage) -> None:
    """Free the memory of a large message that is at its holders, but for one replica from which all can be read."""
    if message.size * message.dtype.itemsize < _LARGE:
        return  # whose memory is used again as soon as the step is taken
    frees = message.frees[1:]
    del message.sources[1:], message.frees[1:]
    for free in frees:
        free()


def _check_offered(rank: int, offered: Offered, size: int, most: int) -> None:
    """Raise :class:`~anyk.RunFailed` for what no node of anyk offers."""
    if offered.size != size or size > most or len(offered.digests) != -(-size // PIECE):
        raise RunFailed(
            f"node {rank} offers {offered.size} bytes with {len(offered.digests)} digests where {size} of at most "
            f"{most} are expected: its process is damaged, or not anyk's; resume the run"
        )


_WHOLE = (
    "with slices no node has the whole gradient: parameters with hooks, and loops that take steps themselves, need a "
    "cluster without slices"
)


def _check_sliceable(optimizer: Optimizer) -> None:
    """Raise :class:`~anyk.BadInput` for an optimiser that cannot step slices."""
    if optimizer.watches is not None:
        raise BadInput(f"with slices the optimiser '{optimizer.spec}' would have to know evaluations; use a schedule")
    w = np.zeros(2)
    with unclipped(optimizer).stepping(w, optimizer.start(w), 0, 1.0, np.empty(2), 0) as step:
        if step is None:
            raise BadInput(
                f"the optimiser '{optimizer.spec}' steps all coordinates together, and with slices no node has them "
                "all; use one that steps each coordinate separately, such as adamw, or a cluster without slices"
            )


def _outer_at(states: Vectors, coordinates: slice) -> Vectors:
    """Return the state of an outer optimiser at some coordinates; numbers of torch's are as they are."""
    return {name: vector if ":" in name else vector[coordinates] for name, vector in states.items()}


def _joined_outer(parts: Sequence[Vectors]) -> Vectors:
    return {
        name: vector if ":" in name else np.concatenate([part[name] for part in parts])
        for name, vector in parts[0].items()
    }
