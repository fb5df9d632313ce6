"""Vectors travel with orders: a worker has what it needs when it needs it, and no more than that."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

import anyk
from anyk.clusters.contract import Envelope, Key, Report
from anyk.clusters.remote.networked import NetworkedWorker
from anyk.clusters.remote.orders import Orders, pack
from anyk.clusters.remote.worker import RunSetup
from anyk.protocol import Chunk
from anyk.runs.cluster_speed import cluster_speed
from anyk.testing import Squares


class Deaf(NetworkedWorker):
    """A worker whose words nobody hears; the test moves it by hand."""

    def transmit(self, report: Report, vector: Any) -> None:
        pass

    def listen(self, until: float | None) -> None:
        raise AssertionError("nothing to wait for")


def envelope(number: int, task: int, versions: list[int], has: set[Key]) -> tuple[Envelope, dict[Key, Any]]:
    """What the driver sends of a task with a chunk at each version, to a worker that has some of the models."""
    chunks = [Chunk((0,), (1.0,)) for _ in versions]
    needs: tuple[Key, ...] = tuple(dict.fromkeys(("model", version) for version in versions))
    fresh = tuple(key for key in needs if key not in has)
    orders = pack(Orders(task, 0, 0.0, 0.0, 0.0, chunks, versions, versions, []))
    return Envelope(number, orders, needs, fresh), {key: np.full(2, float(key[1])) for key in fresh}


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.lists(st.integers(0, 4), min_size=1, max_size=3), st.booleans(), st.booleans()), max_size=12)
)
def test_a_worker_has_what_its_newest_and_its_present_task_need(steps: list[tuple[list[int], bool, bool]]) -> None:
    """Envelopes come in order, and are looked at or not; a task is begun, or waits while another is worked on."""
    worker = Deaf(0, RunSetup(), [], [0])
    has: set[Key] = set()
    newest = -1
    for number, (versions, taken, begun) in enumerate(steps):
        sent, vectors = envelope(number + 1, number, versions, has)
        worker.receive(sent, vectors)
        has = set(sent.needs)  # what the driver then believes
        newest = number
        if taken:
            orders = worker.take()
            assert orders is not None and orders.task == newest
            worker._next = orders
            if begun:
                worker._orders, worker._next = orders, None
        for orders in (worker._orders, worker._next):
            if orders is not None:
                for chunk, slot in zip(orders.chunks, orders.places, strict=True):
                    assert worker.model(chunk.slot, slot)[0] == slot
        assert has <= set(worker._vectors)
        assert len(worker._vectors) <= 3 * 3  # the newest envelope's, the present task's and the next one's


def test_late_mail_is_not_obeyed_but_its_vectors_are_kept() -> None:
    worker = Deaf(0, RunSetup(), [], [0])
    first, some = envelope(1, 0, [1], set())
    second, none = envelope(2, 1, [1], {("model", 1)})
    assert not none
    worker.receive(second, {})
    assert worker.take() is None  # what it needs is still on its way
    worker.receive(first, some)
    orders = worker.take()
    assert orders is not None and orders.task == 1
    assert worker.model("model", 1).tolist() == [1.0, 1.0]
    assert worker.take() is None


def test_orders_that_are_overtaken_between_two_looks_stop_nobody() -> None:
    """A complete envelope is seen; before it is taken a newer one comes whose vectors are still on their way."""
    worker = Deaf(0, RunSetup(), [], [0])
    sent, vectors = envelope(1, 0, [1], set())
    worker.receive(sent, vectors)
    worker._orders = worker.take()
    newer, on_their_way = envelope(2, 1, [2], {("model", 1)})

    def changed() -> bool:
        worker.receive(newer, {})
        return True  # so it was a moment ago

    worker.changed = changed  # type: ignore[method-assign]
    worker._check_orders(0, 0)  # neither stops nor fails
    worker.receive(newer, on_their_way)
    orders = worker.take()
    assert orders is not None and orders.task == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"address": "127.0.0.1:1"}, "no Ray cluster answers at '127.0.0.1:1'"),
        ({"address": "nowhere:port"}, "no Ray cluster answers at 'nowhere:port'"),
    ],
)
def test_an_address_that_does_not_answer_is_said_at_once(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(anyk.BadInput, match=sentence):
        anyk.train(Squares(4), "uncoded", anyk.clusters.Ray(4, **options), steps=1)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"resources": {"CPU": 1}}, "resources of a worker must be numbers of at least 0 by name .*, got {'CPU': 1}"),
        ({"resources": {"slot": -1}}, "resources of a worker must be numbers"),
        ({"resources": "slot"}, "resources of a worker must be numbers of at least 0 by name .*, got 'slot'"),
        ({"runtime_env": "pip"}, "runtime_env must be a dictionary as Ray takes it, got 'pip'"),
        ({"placement_group": object(), "nodes": ["10.0.0.1"]}, "omit nodes= or placement_group="),
    ],
)
def test_options_of_ray_that_cannot_be_are_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(anyk.BadInput, match=sentence):
        anyk.clusters.Ray(2, **options)


def test_the_spec_of_a_ray_cluster_is_read_back() -> None:
    cluster = anyk.cluster("ray:address=auto,cpus=0.5,nodes=10.0.0.1/10.0.0.2,byzantine=1/3", workers=4)
    assert isinstance(cluster, anyk.clusters.Ray)
    assert (cluster.address, cluster.cpus, cluster.nodes, cluster.byzantine) == (
        "auto",
        0.5,
        ("10.0.0.1", "10.0.0.2"),
        (1, 3),
    )
    assert anyk.cluster(cluster.spec, workers=4).spec == cluster.spec
    with pytest.raises(anyk.BadInput, match="cpus must be a finite number of at least 0, got -1.0"):
        anyk.cluster("ray:cpus=-1", workers=4)


def test_a_virtual_clock_cannot_be_measured() -> None:
    with pytest.raises(anyk.BadInput, match="cluster 'simulated' has a virtual clock"):
        cluster_speed(lambda: anyk.clusters.Simulated(2))
