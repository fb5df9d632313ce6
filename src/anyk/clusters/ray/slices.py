"""The driver's side of the actors that hold slices.

Vectors are objects that contain only bytes, and belong to the driver, as results of calls do: Ray frees one with the
driver's last reference to it, and none is lost with the actor that returned it while its machine is there. The driver
reads an object only if it is asked for its numbers.
"""

from __future__ import annotations

import os
import pickle
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from anyk.base.arrays import DType
from anyk.base.errors import RunFailed, StateLost
from anyk.clusters.contract import Key
from anyk.clusters.messages import Messages
from anyk.clusters.nodes.holders import Holders
from anyk.clusters.nodes.session import (
    Collect,
    CollectAlso,
    Done,
    Hold,
    Show,
    TakeStep,
    ToNode,
    from_node,
)
from anyk.clusters.nodes.sliced_store import SlicedStore
from anyk.clusters.nodes.wire import Offered, digests_of
from anyk.clusters.ray.answers import Unanswered, answer
from anyk.clusters.ray.connection import one_line, ray_module
from anyk.clusters.ray.holder import HolderActor, HolderNews, Question
from anyk.clusters.ray.slice_reads import SliceReads

_READS = 32  # slices of messages that a holder reads at the same time
_TURN = 0.25  # seconds between two looks while the driver waits for holders


class Stored(NamedTuple):
    """Bytes in Ray's store: objects one after the other, from the byte ``first`` on."""

    references: Sequence[Any]
    first: int = 0


class ObjectOffers:
    """Offers bytes as objects of Ray's store, by keys that only the driver makes."""

    address = "driver"

    def __init__(self) -> None:
        self.stored: dict[bytes, Stored] = {}

    def offer(self, data: memoryview) -> Offered:
        """Store bytes."""
        return Offered(self.name(Stored([ray_module().put(bytes(data))])), len(data), digests_of(data))

    def name(self, stored: Stored) -> bytes:
        """Return a new key of bytes that are stored."""
        key = os.urandom(16)
        self.stored[key] = stored
        return key

    def drop(self, key: bytes) -> None:
        """Forget bytes; Ray frees them when nobody else refers to them."""
        self.stored.pop(key, None)


class ObjectSlices(SlicedStore):
    """The driver's store of a run whose slices are objects of Ray's store."""

    def __init__(self, messages: Messages, cluster: HolderActors, holders: Holders) -> None:
        super().__init__(messages, cluster, holders)

    def references(self, key: Key) -> Sequence[Any]:
        """Return the objects of which a vector consists."""
        stored = self._carrier.stored  # type: ignore[attr-defined]
        return [reference for part in self.parts(key, 0) for reference in stored[part.offered.key].references]

    def release(self, slot: str, version: int) -> None:
        sliced = self._versions.published.get((slot, version))
        super().release(slot, version)
        for part in sliced.parts if sliced is not None else ():
            self._carrier.drop(part.offered.key)


class _Call(NamedTuple):
    """A call of a holder that has not returned; ``payload``: the object with what it offers."""

    rank: int
    order: Question | Collect
    payload: Any = None


class HolderActors:
    """Has actors hold slices, one each (:class:`~anyk.clusters.nodes.node.DriverOfNodes`).

    ``poll`` takes in what workers and holders return. ``arrived`` is told of messages whose slices are at their
    holders, or that cannot be had.
    """

    def __init__(self, poll: Callable[[float], None], arrived: Callable[[int, str], None], seconds: float) -> None:
        self.run = 1
        self.carrier = ObjectOffers()
        self._poll, self._arrived, self._seconds = poll, arrived, seconds
        self.holders: Holders
        self.store: ObjectSlices
        self.calls: dict[Any, _Call] = {}
        self._actors: dict[int, Any] = {}
        self._machines: dict[int, str] = {}
        self._told: set[Key] = set()  # versions that all holders have, or will have with their next order
        self._news: dict[int, HolderNews] = defaultdict(lambda: HolderNews([], [], []))
        self._reads = SliceReads(self._read, lambda rank, number: self._news[rank].dropped.append(number))
        self._shown: list[bytes] = []  # keys of states

    def start(self, machines: Sequence[str], dtype: DType, runtime_env: Any) -> None:
        """Start an actor for each slice, and wait for them; ``machines``: the ids of Ray's nodes that have workers.

        Raises :class:`~anyk.RunFailed` if one does not start.
        """
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        groups = {"steps": 1, "reads": _READS}
        kind = ray_module().remote(num_cpus=0, runtime_env=runtime_env, concurrency_groups=groups)(HolderActor)
        for rank, (first, last) in self.holders.placement.slices.items():
            machine = self._machines[rank] = machines[rank % len(machines)]
            strategy = NodeAffinitySchedulingStrategy(machine, soft=False)
            self._actors[rank] = kind.options(scheduling_strategy=strategy).remote(rank, first, last, dtype.str)
        for rank, call in [(rank, actor.ready.remote()) for rank, actor in self._actors.items()]:
            try:
                answer(ray_module(), call, self._seconds)
            except (Unanswered, ValueError) as error:
                raise RunFailed(f"the holder of slice {rank} did not start: {one_line(error)}") from None

    def close(self) -> None:
        """End the actors, and forget everything."""
        ray = ray_module()
        for actor in self._actors.values():
            if ray.is_initialized():
                ray.kill(actor, no_restart=True)
        for collection in (self._actors, self.calls, self.carrier.stored, self._reads, self._news):
            collection.clear()

    # ------------------------------------------------------------------------------------------- orders

    def address_of(self, rank: int) -> str:
        """Return what names a holder where addresses are compared."""
        return f"holder {rank}"

    def tell_rank(self, rank: int, order: ToNode) -> None:
        """Give a holder an order."""
        match order:
            case Collect():
                self._reads.begin(rank, order)
            case CollectAlso():
                self._reads.also(rank, order.number, order.key)
            case _:
                self._ask(rank, order)  # type: ignore[arg-type]

    def _read(self, rank: int, order: Collect) -> None:
        """Have a holder read its slice of a replica."""
        stored = self.carrier.stored[order.offered.key].references
        is_whole = len(stored) == 1  # the driver's own
        position = list(self.holders.placement.slices).index(rank)
        reference, skip = (stored[0], order.first) if is_whole else (stored[position], 0)
        method = self._actors[rank].collect.options(concurrency_group="reads")
        self.calls[method.remote(pickle.dumps(order), [reference], skip)] = _Call(rank, order)

    def _ask(self, rank: int, order: Question) -> None:
        news = self._news.pop(rank, HolderNews([], [], []))
        parts = [part for _, part in news.given]
        if isinstance(order, Hold):
            parts += [part for _, _, part in order.states or ()]
            parts += [order.penalties[1]] if order.penalties is not None else []
        if isinstance(order, Show | TakeStep):
            for key in self._shown:
                self.carrier.drop(key)
            self._shown.clear()
        references = {part.offered.key: self.carrier.stored[part.offered.key].references[0] for part in parts}
        method = self._actors[rank].carry_out.options(concurrency_group="steps", num_returns=2)
        # Ray's own serialisation is slow
        head, payload = method.remote(pickle.dumps((order, news)), references)
        self.calls[head] = _Call(rank, order, payload)

    def locate(self, rank: int, keys: Sequence[Key]) -> None:
        """Give holders their slices of versions that they have not written."""
        for key in keys:
            if key in self._told:
                continue
            self._told.add(key)
            for other in self.holders.placement.slices:
                start, _ = self.holders.placement.bytes_at(other)
                for part in self.store.parts(key, other):
                    inside = part.first <= start < part.first + part.offered.size
                    if inside and part.address != self.address_of(other):
                        self._news[other].given.append((key, part))

    def locate_again(self, key: Key) -> None:
        """Do nothing: slices do not move."""

    def drop_slice(self, rank: int, number: int) -> None:
        """Have a holder drop its slice of a message with its next order."""
        self._reads.drop(rank, number)

    def tidy(self) -> None:
        """Have holders drop what is needed no more with their next orders."""
        gone, self.store.gone = self.store.gone, []
        for key in self._told.intersection(gone):
            for rank in self.holders.placement.slices:
                news = self._news[rank]
                news.given[:] = [pair for pair in news.given if pair[0] != key]
                news.gone.append(key)
        self._told.difference_update(gone)

    # ------------------------------------------------------------------------------------------- answers

    def look(self) -> None:
        """Have slices be read from a further replica that are long in coming."""
        self._reads.look()

    def returned(self, reference: Any) -> None:
        """Take in what a call has returned."""
        call = self.calls.pop(reference)
        rank, order = call.rank, call.order
        try:
            done = from_node(bytes(answer(ray_module(), reference, self._seconds)))
            if not isinstance(done, Done) or (done.run, done.number, done.slice) != (order.run, order.number, rank):
                raise ValueError("an answer to something else")
        except Unanswered as error:
            raise StateLost(
                f"the actor on Ray's node {self._machines[rank][:12]} was lost with its slice of the model "
                f"({one_line(error)}); resume the run from its last checkpoint, which --supervise does by itself"
            ) from None
        except ValueError as error:
            reason = " ".join(str(error).split())[:200]
            raise RunFailed(
                f"the holder of slice {rank} sent what no holder sends ({reason}): its process is damaged, or not "
                "anyk's; resume the run"
            ) from None
        if not isinstance(order, Collect):
            self.holders.on_done(rank, self._named(done, call))
        elif self._reads.returned(rank, done):
            self.holders.on_done(rank, replace(done, key=order.offered.key))

    def _named(self, done: Done, call: _Call) -> Done:
        """Return an answer in which what is offered has keys."""
        offered, first = [], 0
        for name, form, slice_offer in done.offered:
            key = self.carrier.name(Stored([call.payload], first))
            offered.append((name, form, slice_offer._replace(key=key)))
            first += slice_offer.size
            if isinstance(call.order, Show):
                self._shown.append(key)
        return replace(done, offered=offered)

    def collected(self, number: int, failure: str) -> None:
        """Note that the slices of a message are at their holders, or that one could not get it."""
        self._arrived(number, failure)

    def silence(self, rank: int) -> float:
        """Return 0.0: Ray itself watches actors."""
        return 0.0

    def offers_at(self, rank: int, address: str) -> bool:
        """Return True: it is the driver that has the references."""
        return True

    def can_hold(self, rank: int) -> bool:
        """Return False: there is one copy of each slice."""
        return False

    def wait_until(self, done: Callable[[], bool]) -> None:
        """Take in what actors return until something is done."""
        while not done():
            self._poll(_TURN)

    def read_now(
        self, wanted: Sequence[tuple[memoryview, Offered, str]], moved: Callable[[], bool] = lambda: False
    ) -> bool:
        """Read objects, and wait for them; nothing moves on Ray."""
        for memory, offered, _ in wanted:
            stored, written = self.carrier.stored[offered.key], 0
            skip = stored.first
            for reference in stored.references:
                try:
                    data = answer(ray_module(), reference, self._seconds)[skip : skip + len(memory) - written]
                except (Unanswered, ValueError) as error:
                    raise StateLost(
                        f"a vector that the driver needs was lost with its machine ({one_line(error)}); resume the run "
                        "from its last checkpoint, which --supervise does by itself"
                    ) from None
                memory[written : written + len(data)] = data
                written, skip = written + len(data), 0
            if written != offered.size or digests_of(memory) != offered.digests:
                raise RunFailed("the driver could not read a vector of the holders intact")
        return True
