"""A node's slice without network: cutting, sums, steps, and what it does when reads end, fail or are not needed."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anyk.base import keyed
from anyk.base.arrays import Vector
from anyk.base.keyed import array_digest
from anyk.clusters.nodes import sliced_store, slices
from anyk.clusters.nodes.holding import Holding
from anyk.clusters.nodes.session import (
    NOT_INTACT,
    Collect,
    CollectAlso,
    Done,
    Hold,
    Measure,
    OfferedPart,
    Release,
    Show,
    TakeStep,
)
from anyk.clusters.nodes.sliced_messages import MessageSource, SlicedMessage
from anyk.clusters.nodes.sliced_store import SlicedStore
from anyk.clusters.nodes.sliced_versions import SlicedVersion, SlicedVersions
from anyk.clusters.nodes.slices import Holder, cut, no_slices
from anyk.clusters.nodes.wire import Offered
from anyk.clusters.steps import StepPlan
from anyk.optimizers import Optimizer, optimizer

pytestmark = pytest.mark.in_process

SIZE, FIRST, LAST = 40, 16, 32
REMOTE = Offered(b"remote", 8 * (LAST - FIRST), ())
OWN = Offered(b"own", 8 * (LAST - FIRST), ())


@pytest.fixture(autouse=True)
def short_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyed, "PART", 8)
    monkeypatch.setattr(slices, "PIECE", 64)


@given(st.integers(1, 500), st.sampled_from([2, 4, 8]), st.integers(1, 9))
def test_slices_cover_the_model_and_begin_with_parts_and_pieces(dimension: int, itemsize: int, holders: int) -> None:
    cuts = cut(dimension, itemsize, holders)
    assert [number for first, last in cuts for number in range(first, last)] == list(range(dimension))
    assert len(cuts) == holders
    for first, last in cuts:
        assert first % 8 == 0 or first == last
        assert (first * itemsize) % 64 == 0 or first == last
    sizes = [last - first for first, last in cuts]
    assert max(sizes) - min(sizes) <= 2 * max(8, 64 // itemsize)


class Vectors:
    """The models of a node, some of which are not there yet."""

    def __init__(self) -> None:
        self.models: dict[Any, Vector] = {("model", 0): np.linspace(-1.0, 1.0, SIZE)}
        self.missing: set[Any] = set()
        self.fetched: list[Any] = []
        self.written: list[Any] = []

    def reserve(self, key: Any, first: int, size: int) -> None: ...

    def here(self, key: Any) -> bool:
        return key in self.models and key not in self.missing

    def fetch(self, keys: Any) -> None:
        self.fetched += list(keys)

    def wrote(self, key: Any, first: int) -> None:
        assert (key, first) == (key, 8 * FIRST) and key in self.models
        self.written.append(key)

    def room(self, key: Any) -> Vector:
        return self.models.setdefault(key, np.zeros(SIZE))


class Node:
    """A node's holding, with what it has told, read and offered."""

    def __init__(self) -> None:
        self.vectors = Vectors()
        self.told: list[Done] = []
        self.reads: dict[int, memoryview] = {}
        self.also: list[tuple[int, str]] = []
        self.stopped: list[int] = []
        self.offered: dict[bytes, memoryview] = {}
        self.messages: dict[bytes, Vector] = {}  # of the node's own workers
        holder = Holder(FIRST, LAST, np.dtype(float), lambda slot, version: self.vectors.models[slot, version])
        self.holding = Holding(
            run=1,
            number=3,
            holder=holder,
            vectors=self.vectors,  # type: ignore[arg-type]
            read=self.read,
            read_also=lambda number, address, key: self.also.append((number, address)),
            stop=self.stopped.append,
            offer=self.offer,
            drop=lambda key: self.offered.pop(key, None),
            own_message=self.messages.get,
            tell=self.told.append,
        )

    def read(self, into: memoryview, offered: Offered, address: str, first: int) -> int:
        self.reads[len(self.reads) + 1] = into
        return len(self.reads)

    def offer(self, data: memoryview) -> Offered:
        offered = Offered(b"%d" % len(self.offered), len(data), ())
        self.offered[offered.key] = data
        return offered

    def arrive(self, read: int, content: Vector | None) -> None:
        if content is not None:
            self.reads[read][:] = content.tobytes()
        assert self.holding.finished(read, b"k", complete=content is not None)

    def hold(self, made: Optimizer, states: Any = None) -> None:
        self.holding.obey(Hold(1, 90, 3, "model", pickle.dumps(made), states, None))
        self.holding.look()


def collect(node: Node, number: int, content: Vector) -> None:
    node.holding.obey(Collect(1, number, 3, 8 * FIRST, REMOTE, "there:1"))
    node.arrive(len(node.reads), content)


def ask_step(node: Node, numbers: Sequence[int], version: int = 0) -> None:
    plan = StepPlan("model", version, [(number, 0) for number in numbers], [1.0] * len(numbers), 2.0)
    node.holding.obey(TakeStep(1, 50, 3, plan, [("model", version)]))
    node.holding.look()


def test_a_step_of_a_slice_is_that_of_the_whole() -> None:
    node, made = Node(), optimizer("adam", lr=0.1)
    node.hold(made)
    random = np.random.default_rng(0)
    w = node.vectors.models["model", 0].copy()
    state = made.start(w)
    for version in range(3):
        messages = random.standard_normal((2, SIZE))
        for number, message in enumerate(messages):
            collect(node, 10 * version + number, message[FIRST:LAST])
        ask_step(node, [10 * version, 10 * version + 1], version)
        w = made.step(w, messages.sum(axis=0) / 2.0, state, version)
        done = node.told[-1]
        assert done.failure == ""
        assert node.vectors.models["model", version + 1][FIRST:LAST].tobytes() == w[FIRST:LAST].tobytes()
        parts = [slice(start, start + 8) for start in (16, 24)]
        assert done.digest == sum(array_digest(w[part], part.start) for part in parts) & keyed.POSITIVE
        assert bytes(node.offered[done.offered[0][2].key]) == w[FIRST:LAST].tobytes()
        node.holding.forget_model(("model", version))
        node.holding.forget_messages([10 * version, 10 * version + 1])
    node.holding.obey(Show(1, 60, 3, "model", 3))
    node.holding.look()
    shown = {name: np.frombuffer(node.offered[offered.key]) for name, _, offered in node.told[-1].offered}
    assert set(shown) == set(state)
    assert all(np.array_equal(shown[name], vector[FIRST:LAST]) for name, vector in state.items())


def test_a_step_waits_for_its_model() -> None:
    node = Node()
    node.hold(optimizer("gd", lr=1.0))
    collect(node, 1, np.ones(LAST - FIRST))
    node.vectors.missing.add(("model", 0))
    told = len(node.told)
    ask_step(node, [1])
    assert len(node.told) == told and node.vectors.fetched == [("model", 0)]
    node.vectors.missing.clear()
    node.holding.look()
    assert len(node.told) == told + 1


def test_a_step_that_diverges_is_told_as_the_models_failure() -> None:
    node = Node()
    node.hold(optimizer("gd", lr=1.0))
    collect(node, 1, np.full(LAST - FIRST, 1.7e308))
    collect(node, 2, np.full(LAST - FIRST, 1.7e308))
    ask_step(node, [1, 2])
    assert node.told[-1].final and "diverged at step 0" in node.told[-1].failure


def test_messages_of_the_node_itself_are_not_read() -> None:
    node = Node()
    node.messages[b"own"] = np.arange(float(SIZE))
    node.holding.obey(Collect(1, 1, 3, 8 * FIRST, OWN, "here:1"))
    assert not node.reads and node.told == [Done(1, 1, 3, key=b"own")]
    node.holding.obey(Collect(1, 2, 3, 8 * FIRST, REMOTE, "there:1"))
    node.holding.obey(CollectAlso(1, 2, 3, b"third", "third:1"))
    assert node.also == [(1, "third:1")] and len(node.told) == 1
    node.holding.obey(CollectAlso(1, 2, 3, b"own", "here:1"))
    assert node.stopped == [1] and node.told[-1] == Done(1, 2, 3, key=b"own")
    node.holding.obey(Measure(1, 3, 3, [(1, 1.0), (2, -1.0)]))
    node.holding.look()
    assert node.told[-1].squares == [0.0, 0.0]
    node.holding.obey(Measure(1, 3, 3, [(1, 2.0), (2, 1.0)]))
    node.holding.look()
    assert sum(node.told[-1].squares) == pytest.approx(9.0 * float(np.square(np.arange(FIRST, LAST)).sum()))


def test_a_slice_outlives_the_message_that_it_lay_in() -> None:
    node = Node()
    message = node.messages[b"own"] = np.arange(float(SIZE))
    node.holding.obey(Collect(1, 1, 3, 8 * FIRST, OWN, "here:1"))
    collect(node, 2, np.arange(float(FIRST), float(LAST)))
    read = np.frombuffer(node.reads[1])
    node.holding.forget_source(message)
    message[:] = np.nan  # its worker writes there again
    node.holding.obey(Measure(1, 3, 3, [(1, 1.0), (2, -1.0)]))
    node.holding.look()
    assert node.told[-1].squares == [0.0, 0.0]
    assert np.shares_memory(node.holding._holder._sums[2], read), "what does not lie in it is not copied"


@pytest.mark.parametrize(("copies", "large", "left"), [(1, 1, 1), (1, 1 << 26, 3), (2, 1, 3)])
def test_replicas_of_a_large_message_at_its_holders_are_freed(
    copies: int, large: int, left: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for one from which the driver may read all of it; with copies, others may still have to read it."""
    monkeypatch.setattr(sliced_store, "_LARGE", large)
    store: Any = object.__new__(SlicedStore)
    store._placement = SimpleNamespace(copies=copies)
    sources = [MessageSource(rank, rank, f"node{rank}:1", REMOTE) for rank in range(3)]
    message, freed = SlicedMessage(1, np.dtype(float), SIZE, sources[0]), []
    message.sources += sources[1:]
    message.frees += [lambda rank=rank: freed.append(rank) for rank in range(3)]  # type: ignore[misc]
    frees = message.frees
    for _ in range(2):
        assert store.keep(SimpleNamespace(worker=4), (0,), message).vector is message
    assert message.sources == sources[:left] and freed == [1, 2][: 3 - left]
    for free in frees:  # as when nothing refers to the message any more
        free()
    assert sorted(freed) == [0, 1, 2]


def test_what_does_not_arrive_intact_or_finite_is_told() -> None:
    node = Node()
    node.holding.obey(Collect(1, 1, 3, 8 * FIRST, REMOTE, "there:1"))
    node.arrive(1, None)
    assert node.told == [Done(1, 1, 3, NOT_INTACT)]
    for value in (np.nan, np.inf):
        message = np.ones(LAST - FIRST)
        message[3] = value
        collect(node, 2, message)
        assert node.told[-1] == Done(1, 2, 3, "not finite", key=b"k")
        node.holding.forget_messages([2])


def test_a_dropped_message_is_stopped_and_its_memory_used_again() -> None:
    node = Node()
    node.holding.obey(Collect(1, 1, 3, 8 * FIRST, REMOTE, "there:1"))
    node.holding.forget_messages([1])
    assert node.stopped == [1] and not node.holding.finished(1, b"k", complete=True)
    node.holding.obey(Collect(1, 2, 3, 8 * FIRST, REMOTE, "there:1"))
    assert np.shares_memory(np.frombuffer(node.reads[2]), np.frombuffer(node.reads[1]))
    node.holding.close()
    assert node.stopped == [1, 2]


def test_given_states_and_factors_are_read_before_a_step() -> None:
    node, made = Node(), optimizer("momentum", lr=0.5)
    momentum, factors = np.full(LAST - FIRST, 3.0), np.full(LAST - FIRST, 0.25)
    (name,) = made.start(np.zeros(2))
    form = ("<f8", LAST - FIRST)
    part = OfferedPart(0, REMOTE, "driver:1")
    node.holding.obey(Hold(1, 90, 3, "model", pickle.dumps(made), [(name, form, part)], (form, part)))
    assert not node.told
    node.arrive(1, momentum)
    assert not node.told
    node.arrive(2, factors)
    node.holding.look()
    assert node.told == [Done(1, 90, 3)]
    collect(node, 1, np.ones(LAST - FIRST))
    ask_step(node, [1])
    w = node.vectors.models["model", 0][FIRST:LAST]
    expected = made.step(w, 0.5 + 0.25 * w, {name: momentum.copy()}, 0)
    np.testing.assert_array_equal(node.vectors.models["model", 1][FIRST:LAST], expected)


def test_who_gets_a_slice_reads_and_offers_the_models_in_use() -> None:
    node, made = Node(), optimizer("gd", lr=1.0)
    models = [("model", 0), ("model", 1)]
    node.vectors.models[models[1]] = np.arange(float(SIZE))
    node.vectors.missing.add(models[0])
    node.holding.obey(Hold(1, 90, 3, "model", pickle.dumps(made), [], None, needs=models, offers=models[1:]))
    node.holding.look()
    assert not node.told and node.vectors.fetched == models[:1] and node.holding.needs(models[0])
    node.vectors.missing.clear()
    node.holding.look()
    ((_, _, offered),) = node.told[0].offered
    assert bytes(node.offered[offered.key]) == np.arange(float(FIRST), float(LAST)).tobytes()
    assert not node.holding.needs(models[0])


def test_a_step_waits_for_its_messages_and_its_turn() -> None:
    node = Node()
    node.hold(optimizer("gd", lr=1.0))
    ask_step(node, [1])
    node.holding.obey(Show(1, 60, 3, "model", 1))
    node.holding.look()
    assert [done.number for done in node.told] == [90]
    collect(node, 1, np.ones(LAST - FIRST))
    node.holding.look()
    assert [done.number for done in node.told] == [90, 1, 50, 60]


def test_what_is_released_is_forgotten_and_may_be_given_again() -> None:
    node = Node()
    node.hold(optimizer("gd", lr=1.0))
    collect(node, 1, np.ones(LAST - FIRST))
    ask_step(node, [1])
    node.holding.obey(Collect(1, 2, 3, 8 * FIRST, REMOTE, "there:1"))
    node.holding.obey(Measure(1, 70, 3, [(2, 1.0)]))
    node.holding.obey(Release(1, 0, 3))
    assert not node.offered and node.stopped == [2], "neither its offers nor its reads go on"
    told = len(node.told)
    node.holding.look()
    assert len(node.told) == told, "nor its orders"
    node.hold(optimizer("gd", lr=1.0), [])
    collect(node, 3, np.ones(LAST - FIRST))
    ask_step(node, [3], version=1)
    assert node.told[-1].number == 50 and not node.told[-1].failure


def test_a_lost_holder_has_only_versions_in_use_located_again() -> None:
    located: list[Any] = []
    versions = [SlicedVersion(("model", number), {0: [0, 1]}) for number in range(3)]
    for version in versions:
        version.offers[0] = {rank: OfferedPart(0, REMOTE, f"node{rank}:1") for rank in (0, 1)}
        version.choose(0)
    known: Any = object.__new__(SlicedVersions)
    known._cluster = SimpleNamespace(locate_again=located.append)
    known._made = {version.key: version for version in versions}
    known.published = {versions[1].key: versions[1]}  # the others: released, and not published yet
    known._on_suspended(0, 0)
    assert located == [("model", 1)]
    assert [version.parts[0].address for version in versions] == ["node1:1"] * 3


def test_slices_are_read_from_their_own_node_if_it_is_in_time() -> None:
    def offer(version: SlicedVersion, rank: int) -> bool:
        version.offers[0][rank] = OfferedPart(0, REMOTE, f"node{rank}:1")
        return version.choose(0)

    early, late = (SlicedVersion(("model", number), {0: [0, 1]}) for number in range(2))
    for version in (early, late):
        offer(version, 1)
        assert version.chosen == {0: 1}
    offer(early, 0)
    early.is_located = late.is_located = True
    assert not offer(late, 0), "who reads from node 1 may go on"
    assert (early.chosen, late.chosen) == ({0: 0}, {0: 1})
    late.ranks[0].remove(1)
    assert late.choose(0) and late.chosen == {0: 0}


def test_layouts_that_slices_cannot_have_are_named() -> None:
    assert "shorter than the model" in no_slices(SimpleNamespace(blocks=2, voting=False))  # type: ignore[arg-type]
    assert "number by number" in no_slices(SimpleNamespace(blocks=1, voting=True))  # type: ignore[arg-type]
    assert no_slices(SimpleNamespace(blocks=1, voting=False)) == ""  # type: ignore[arg-type]
