"""Bytes that are pulled in pieces, on a network and a clock that the tests move by hand."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from anyk.clusters.nodes.wire import PIECE, WINDOW, ByteSource, Offers, Reads, bytes_of, digests_of

pytestmark = pytest.mark.in_process
KEY = b"secret"


class Network:
    """Sources and one reader; nothing moves until :meth:`deliver` is called."""

    def __init__(self) -> None:
        self.time = 0.0
        self.mail: list[tuple[str, bool, list[bytes]]] = []  # address, whether to the source, frames
        self.asked: list[tuple[str, int]] = []
        self.ends: dict[int, bool] = {}
        self.frozen: set[str] = set()
        self.offers: dict[str, Offers] = {}
        self.keys: dict[int, bytes] = {}  # under which most of each read came
        self.reads = Reads(self._ask, self._end, lambda: self.time)

    def _end(self, number: int, complete: bool, key: bytes) -> None:
        self.ends[number], self.keys[number] = complete, key

    def source(self, address: str, data: bytes | None) -> ByteSource:
        self.offers[address] = Offers(
            lambda who, frames: self.mail.append((address, False, [bytes(frame) for frame in frames]))
        )
        if data is not None:
            self.offers[address].put(KEY + address.encode(), memoryview(data))
        self.reads.connected(address)
        return ByteSource(address, KEY + address.encode())

    def _ask(self, address: str, frames: object) -> None:
        self.asked.append((address, int.from_bytes(frames[1][8:16], "little") // PIECE))
        self.mail.append((address, True, [bytes(frame) for frame in frames]))

    def deliver(self, *, change: Callable[[bytes], bytes] = bytes) -> None:
        """Deliver until nothing more is sent; mail from and to frozen sources stays."""
        while moving := [mail for mail in self.mail if mail[0] not in self.frozen]:
            self.mail = [mail for mail in self.mail if mail[0] in self.frozen]
            for address, to_source, frames in moving:
                self.time += 0.01
                if to_source:
                    self.offers[address].asked(b"reader", frames)
                else:
                    self.reads.arrived(address, [frames[0], change(frames[1])])

    def lose(self, address: str) -> None:
        """Drop a connection with all that is on it."""
        self.mail = [mail for mail in self.mail if mail[0] != address]
        self.reads.disconnected(address)


DATA = np.random.default_rng(1).bytes(3 * PIECE + 5)
DIGESTS = digests_of(memoryview(DATA))


def begin(network: Network, *sources: ByteSource, number: int = 1) -> bytearray:
    into = bytearray(len(DATA))
    network.reads.begin(number, memoryview(into), DIGESTS, sources)
    return into


def test_a_vector_comes_in_pieces_and_in_full():
    network = Network()
    into = begin(network, network.source("a", DATA))
    assert len(network.asked) == WINDOW
    network.deliver()
    assert network.ends == {1: True} and into == DATA
    assert sorted(piece for _, piece in network.asked) == [0, 1, 2, 3]
    network.reads.begin(2, memoryview(b""), (), ())
    assert network.ends[2], "a vector without entries needs no source"


def test_two_sources_share_the_work():
    network = Network()
    into = begin(network, network.source("a", DATA), network.source("b", DATA))
    network.deliver()
    assert into == DATA and {address for address, _ in network.asked} == {"a", "b"}
    assert len(network.asked) == 4, "no piece is asked for twice"


def test_a_frozen_source_is_replaced_but_not_asked_again():
    network = Network()
    first = network.source("a", DATA)
    network.frozen.add("a")
    into = begin(network, first)
    network.reads.add_source(1, network.source("b", DATA))
    network.deliver()
    assert not network.ends, "two pieces are with the frozen source"
    network.time += 0.9
    network.reads.look()
    network.deliver()
    assert not network.ends, "a second has not passed"
    network.time += 0.2
    network.reads.look()
    network.deliver()
    assert network.ends == {1: True} and into == DATA
    assert network.keys == {1: KEY + b"b"}, "that under which most came"
    assert [address for address, _ in network.asked].count("a") == WINDOW
    network.frozen.clear()
    network.deliver()  # what comes late changes nothing
    assert into == DATA


def test_a_slow_source_without_another_is_asked_once():
    network = Network()
    source = network.source("a", DATA)
    network.frozen.add("a")
    into = begin(network, source)
    for _ in range(100):
        network.time += 10.0
        network.reads.look()
    assert len(network.asked) == WINDOW
    network.frozen.clear()
    network.deliver()
    assert into == DATA and len(network.asked) == 4


def test_a_source_as_slow_as_usual_is_not_replaced():
    network = Network()
    into = begin(network, network.source("a", DATA))
    network.frozen.add("a")
    for _ in range(2):  # its pieces take 3 s each
        network.time += 3.0
        mail, network.mail = network.mail[0], network.mail[1:]
        network.frozen.clear()
        network.mail, kept = [mail], network.mail
        address, _, frames = network.mail.pop()
        network.offers[address].asked(b"reader", frames)
        address, _, frames = network.mail.pop()
        network.reads.arrived(address, frames)
        network.mail = kept + network.mail
    network.reads.add_source(1, network.source("b", None))
    network.frozen.add("a")
    asked = len(network.asked)
    network.time += 11.0
    network.reads.look()
    assert len(network.asked) == asked, "four times 3 s have not passed"
    assert not into.startswith(b"\0" * PIECE)


def test_a_lost_connection_has_its_pieces_asked_again():
    network = Network()
    into = begin(network, network.source("a", DATA))
    network.lose("a")
    network.deliver()
    assert not network.ends
    network.reads.connected("a")
    network.deliver()
    assert into == DATA and len(network.asked) == 4 + WINDOW


def test_a_withdrawn_vector_fails_or_comes_from_another():
    network = Network()
    begin(network, network.source("a", None))
    network.deliver()
    assert network.ends == {1: False}
    into = begin(network, network.source("a", None), network.source("b", DATA), number=2)
    network.deliver()
    assert network.ends[2] and into == DATA


def test_bytes_of_another_digest_are_never_used():
    network = Network()
    wrong = bytes(len(DATA))
    into = begin(network, network.source("a", wrong))
    network.deliver()
    assert network.ends == {1: False} and into == bytes(len(DATA))
    into = begin(network, network.source("a", wrong), network.source("b", DATA), number=2)
    network.deliver()
    assert network.ends[2] and into == DATA


def test_nothing_is_asked_for_after_a_stop():
    network = Network()
    into = begin(network, network.source("a", DATA))
    network.reads.stop(1)
    network.deliver()
    assert len(network.asked) == WINDOW and not network.ends and into == bytes(len(DATA))


def test_a_stopped_read_leaves_room_for_the_next():
    network = Network()
    source = network.source("a", DATA)
    begin(network, source)
    into = begin(network, source, number=2)
    assert len(network.asked) == WINDOW, "the second waits for the first"
    network.reads.stop(1)
    network.deliver()
    assert network.ends == {2: True} and into == DATA


@pytest.mark.parametrize("frames", [[], [b"x"], [b"k", b"short"], [KEY, bytes(24)], [KEY, b"\xff" * 24], [b"a"] * 5])
def test_garbage_changes_nothing(frames: list[bytes]):
    network = Network()
    source = network.source("a", DATA)
    into = begin(network, source)
    network.reads.arrived("a", frames)
    network.reads.arrived("nobody", frames)
    network.offers["a"].asked(b"stranger", frames)
    assert not network.ends and into == bytes(len(DATA))
    assert all(not frames[1] for _, to_source, frames in network.mail if not to_source)


def test_a_stranger_without_the_key_reads_nothing():
    sent: list[bytes] = []
    offers = Offers(lambda who, frames: sent.append(bytes(frames[1])))
    offers.put(KEY, memoryview(DATA))
    for key, start, length in ((b"other", 0, 5), (KEY, len(DATA), 5), (KEY, -5, 5), (KEY, 0, 2 * PIECE), (KEY, 0, -1)):
        head = b"".join(number.to_bytes(8, "little", signed=True) for number in (1, start, length))
        offers.asked(b"stranger", [key, head])
    assert sent == [b""] * 5 and offers.sent == 0


@pytest.mark.parametrize("kind", ["f2", "f4", "f8", "g", "u1"])
def test_bytes_of_every_type_of_message(kind: str):
    array = np.arange(5, dtype=kind)
    copy = np.zeros(5, dtype=kind)
    bytes_of(copy)[:] = bytes_of(array)
    assert np.array_equal(copy, array)
