"""Slices on Ray: what driver and holders make of objects that are lost, wrong or late, without Ray; and all of it with Ray."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import anyk
from anyk.base.errors import StateLost
from anyk.cli.options import TrainingOptions
from anyk.clusters import Ray
from anyk.clusters.contract import Report
from anyk.clusters.nodes.arrivals import Announced
from anyk.clusters.nodes.holders import Holders
from anyk.clusters.nodes.session import NOT_INTACT, Measure, Told
from anyk.clusters.nodes.sliced_messages import DRIVER, MessageSource
from anyk.clusters.nodes.wire import Offered, bytes_of, digests_of
from anyk.clusters.ray import holder, slice_reads, slices
from anyk.clusters.ray.actor import Actor, RayWorker, joined, unpack_announced
from anyk.clusters.ray.answers import Unanswered
from anyk.clusters.remote.channel import REPLY

F4 = np.dtype(np.float32)
CUTS = [(0, 1 << 17), (1 << 17, (1 << 17) + 5)]
SIZE = CUTS[-1][1]


class Object:
    """An object of Ray's store; None: it is lost."""

    def __init__(self, value: bytes | None) -> None:
        self.value = value


class Remote:
    """An actor in this process, whose calls are carried out at once."""

    def __init__(self, instance: Any) -> None:
        self.instance, self.dead, self.deaf = instance, False, False

    def __getattr__(self, name: str) -> Any:
        def remote(*arguments: Any) -> Any:
            if self.deaf:
                return Object(b"never")
            found = Object(None) if self.dead else getattr(self.instance, name)(*arguments)
            if isinstance(found, tuple):
                return [Object(each) for each in found]
            return [found, found] if name == "carry_out" else found if self.dead else Object(found)

        return SimpleNamespace(options=lambda **_: SimpleNamespace(remote=remote))


def read(ray: Any, reference: Object, seconds: float) -> memoryview:
    if reference.value is None:
        raise Unanswered("it was lost")
    return memoryview(reference.value)


class Driver:
    """The driver's side with two holders; ``over``: messages that have arrived, or why they cannot."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        ray = SimpleNamespace(put=Object, is_initialized=lambda: False)
        for module in (slices, holder):
            monkeypatch.setattr(module, "answer", read)
            monkeypatch.setattr(module, "ray_module", lambda: ray)
        self.over: list[tuple[int, str]] = []
        self.actors = slices.HolderActors(self.poll, lambda *each: self.over.append(each), 1.0)
        self.holders = self.actors.holders = Holders(self.actors, CUTS, F4, copies=1)
        self.remotes = [Remote(holder.HolderActor(rank, *CUTS[rank], F4.str)) for rank in range(2)]
        self.actors._actors.update(enumerate(self.remotes))
        self.actors._machines.update({0: "a", 1: "b"})

    def poll(self, timeout: float = 0.0) -> None:
        self.actors.look()
        for call in list(self.actors.calls):
            if call.value != b"never":
                self.actors.returned(call)

    def source(self, worker: int, vector: Any, *, lost: bool = False, sent: Any = None) -> MessageSource:
        """A worker's message; ``lost``: with its machine. ``sent``: other numbers than it has announced."""
        data = bytes_of(vector if sent is None else sent)
        parts = [bytes(data[4 * first : 4 * last]) for first, last in CUTS]
        key = self.actors.carrier.name(slices.Stored([Object(None if lost else part) for part in parts]))
        offered = Offered(key, 4 * SIZE, digests_of(bytes_of(vector)))
        return MessageSource(worker, DRIVER, f"worker {worker}", offered)

    def also(self, message: Any, source: MessageSource) -> None:
        """A further replica of a message."""
        told = Told(1, source.worker, 0, Report(REPLY, 0), None, source.offered)
        announced = Announced(told, rank=DRIVER, address=source.address, free=lambda: None)
        self.holders.messages.also(message.number, message, announced)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    return Driver(monkeypatch)


@pytest.fixture
def vector() -> Any:
    return np.random.default_rng(1).normal(size=SIZE).astype(F4)


@pytest.mark.in_process
@pytest.mark.parametrize("wrong", ["lost", "other numbers"])
def test_a_slice_comes_from_the_next_replica(driver: Driver, vector: Any, wrong: str) -> None:
    broken: Any = {"lost": True} if wrong == "lost" else {"sent": vector + 1}
    message = driver.holders.messages.collect(F4, SIZE, driver.source(3, vector, **broken), lambda: None)
    driver.also(message, driver.source(5, vector))
    driver.poll()  # both holders have failed with the first
    driver.poll()
    assert driver.over == [(message.number, "")] and message.givers == {0: 5, 1: 5}
    squares = driver.holders.questions.squared_norm([(message, 2.0)])
    assert squares == pytest.approx(4 * float(np.sum(vector.astype(float) ** 2)))


@pytest.mark.in_process
def test_a_message_without_a_good_replica_has_failed(driver: Driver, vector: Any) -> None:
    message = driver.holders.messages.collect(F4, SIZE, driver.source(3, vector, lost=True), lambda: None)
    driver.also(message, driver.source(5, vector, sent=-vector))
    for _ in range(3):
        driver.poll()
    assert driver.over == [(message.number, NOT_INTACT)] and not driver.actors._reads._readings


@pytest.mark.in_process
def test_numbers_that_are_not_finite_are_not_used(driver: Driver, vector: Any) -> None:
    vector[-1] = np.nan
    message = driver.holders.messages.collect(F4, SIZE, driver.source(3, vector), lambda: None)
    driver.poll()
    assert driver.over == [(message.number, "not finite")]


@pytest.mark.in_process
def test_a_slow_replica_does_not_hold_up_the_others(
    driver: Driver, vector: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(slice_reads, "time", SimpleNamespace(monotonic=lambda: now[0]))
    driver.remotes[1].deaf = True
    message = driver.holders.messages.collect(F4, SIZE, driver.source(3, vector), lambda: None)
    driver.also(message, driver.source(5, vector))
    driver.poll()
    driver.remotes[1].deaf = False
    driver.poll()
    assert not driver.over
    now[0] += 1.5
    driver.poll()
    driver.poll()
    assert driver.over == [(message.number, "")] and message.givers == {0: 3, 1: 5}
    held = driver.remotes[1].instance._holder
    number = message.number
    del message  # while the first call has not returned
    driver.holders.questions.ask(lambda run, number, of: Measure(run, number, of, []))
    assert held.has(number) and (number, 1) in driver.actors._reads._readings
    driver.actors.drop_slice(1, 99)  # one that it does not have
    slow = next(call for call in driver.actors.calls)
    slow.value = driver.remotes[1].instance.collect(pickle.dumps(driver.actors.calls[slow].order), [Object(None)], 0)
    driver.poll()
    driver.holders.questions.ask(lambda run, number, of: Measure(run, number, of, []))
    assert not held.has(number) and not driver.actors._reads._readings


@pytest.mark.in_process
def test_the_driver_reads_whole_vectors_from_their_slices(driver: Driver, vector: Any) -> None:
    read, source = np.zeros_like(vector), driver.source(3, vector)
    assert driver.actors.read_now([(bytes_of(read), source.offered, source.address)]) and np.array_equal(read, vector)
    states = driver.actors.carrier.name(slices.Stored([Object(b"12345678" + bytes(bytes_of(vector)))], 8))
    driver.actors.read_now([(bytes_of(read[:2]), Offered(states, 8, digests_of(bytes_of(vector[:2]))), "")])
    with pytest.raises(anyk.RunFailed, match="intact"):
        driver.actors.read_now([(bytes_of(read), driver.source(3, vector, sent=-vector).offered, "")])
    with pytest.raises(StateLost, match=r"was lost with its machine \(it was lost\); resume the run"):
        driver.actors.read_now([(bytes_of(read), driver.source(3, vector, lost=True).offered, "")])


@pytest.mark.in_process
def test_a_dead_holder_ends_the_run(driver: Driver) -> None:
    driver.remotes[1].dead = True
    with pytest.raises(StateLost, match=r"Ray's node b was lost with its slice of the model \(it was lost\); resume"):
        driver.holders.questions.ask(lambda run, number, of: Measure(run, number, of, []))


@pytest.mark.in_process
@pytest.mark.parametrize("answer", [b"", b"\x80\x05noise", b"\x93\x01", b"\xff" * 99])
def test_what_no_holder_sends_is_refused(driver: Driver, answer: bytes) -> None:
    driver.remotes[0].instance = SimpleNamespace(carry_out=lambda *arguments: (answer, b""))
    with pytest.raises(anyk.RunFailed, match="the holder of slice 0 sent what no holder sends"):
        driver.holders.questions.ask(lambda run, number, of: Measure(run, number, of, []))


@pytest.mark.in_process
@given(st.data())
def test_announced_slices_make_up_the_message(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 50))
    ends = sorted({*data.draw(st.lists(st.integers(1, size), max_size=3)), size})
    first, second = np.arange(size, dtype=F4), np.ones(size, dtype=F4)
    reports = [(Report(REPLY, 1), None), (Report(REPLY, 2), first), (Report(REPLY, 3), second)]
    worker: Any = object.__new__(RayWorker)
    worker.__dict__.update(_news=list(reports), _condition=Always())
    actor: Any = object.__new__(Actor)
    actor._worker = worker
    told, *parts = actor.exchange_parts([4 * end for end in ends])
    assert [each.report.task for each in unpack_announced(told)] == [1, 2]
    assert [len(part) for part in parts] == [4 * n for n in np.diff([0, *ends])]
    assert np.array_equal(joined(list(map(memoryview, parts)), F4), first)
    offered = unpack_announced(told)[-1].offered
    assert offered is not None and offered[1:] == (first.nbytes, digests_of(bytes_of(first)))
    assert [each.report.task for each in unpack_announced(actor.exchange_parts([4 * size])[0])] == [3]


class Always:
    """A condition that holds."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass

    def wait_for(self, condition: Any) -> None:
        assert condition()


@pytest.mark.in_process
def test_slices_are_an_option_of_ray() -> None:
    assert Ray(3, slices="nodes").spec == "ray:slices=nodes" and Ray(3, slices="nodes").in_slices
    unset: Any = dict.fromkeys(field.name for field in fields(TrainingOptions)) | {"workers": 3}
    made = TrainingOptions(**unset | {"cluster": "ray:cpus=2", "slices": "nodes"})
    assert made.cluster == "ray:slices=nodes,cpus=2"
    with pytest.raises(anyk.BadInput, match="--slices is an option of --cluster nodes and ray, got --cluster mpi"):
        TrainingOptions(**unset | {"cluster": "mpi", "slices": "nodes"})
    with pytest.raises(anyk.BadInput, match="each slice is held once on 'ray'; copies=2 is an option of 'nodes'"):
        Ray(3, slices="nodes", copies=2)


@pytest.mark.slow
@pytest.mark.timeout(1500)  # a busy machine starts actors slowly
def test_slices_on_three_nodes_of_ray() -> None:
    script = str(Path(__file__).with_name("slices_on_ray.py"))
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=1450, check=False)
    told = dict(json.loads(line) for line in done.stdout.splitlines() if line.startswith('["'))
    assert len(told) == 7 and not any(told.values()), told
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
