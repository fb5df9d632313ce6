"""Ranges of bytes, pulled: whoever has a vector offers it, and whoever needs it asks for one piece after another.

What is asked for is checked, piece by piece, against digests that came another, authenticated way. Offers and reads
know neither sockets nor time: they are given a function that sends, and a clock.
"""

from __future__ import annotations

import struct
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from anyk.base.arrays import Array

PIECE = 1 << 19  # bytes
WINDOW = 2  # pieces under way from a source: after a stop no more than these still arrive
_PATIENCE = 1.0  # seconds without a piece after which another source is asked, or
_SLOWER = 4.0  # so many times what the source's last piece took
_HEAD = struct.Struct("<qqq")  # number of the read, offset and length of the piece

Frames = Sequence[bytes | memoryview]


class Offered(NamedTuple):
    """What a reader must know of bytes that are offered: the secret key to ask with, their number, their digests."""

    key: bytes
    size: int
    digests: tuple[bytes, ...]  # of each piece

    def slice(self, first: int, last: int) -> Offered:
        """Return what a reader must know of the bytes from ``first`` on, a multiple of ``PIECE``, to ``last``."""
        assert first % PIECE == 0 and (last % PIECE == 0 or last == self.size)
        return Offered(self.key, last - first, self.digests[first // PIECE : -(-last // PIECE)])


class ByteSource(NamedTuple):
    """A place from which bytes can be read: the address of a process, and its key of them."""

    address: str
    key: bytes


def digests_of(data: memoryview) -> tuple[bytes, ...]:
    """Return the digest of each piece of some bytes.

    >>> [len(digest) for digest in digests_of(memoryview(bytes(PIECE + 1)))]
    [16, 16]
    """
    return tuple([_digest(data[start : start + PIECE]) for start in range(0, len(data), PIECE)])


def bytes_of(array: Array) -> memoryview:
    """Return the bytes of a contiguous array, which may be written if the array may."""
    return array.reshape(-1).view(np.uint8).data


def _digest(piece: memoryview | bytes) -> bytes:
    from blake3 import blake3  # which belongs to an extra

    return blake3(piece).digest(16)  # several times as fast as the digests of Python's library


class Offers:
    """Bytes that others may read, by secret keys; a request for anything else is answered with an empty piece."""

    def __init__(self, send: Callable[[bytes, Frames], None]) -> None:
        self._send = send
        self._have: dict[bytes, memoryview] = {}
        self.sent = 0  # bytes

    def put(self, key: bytes, data: memoryview) -> None:
        """Offer bytes, which must not change until they are dropped."""
        self._have[key] = data

    def drop(self, key: bytes) -> None:
        """Withdraw bytes."""
        self._have.pop(key, None)

    def asked(self, who: bytes, frames: Frames) -> bool:
        """Answer a request; return False for what is none."""
        if len(frames) != 2 or len(frames[1]) != _HEAD.size:
            return False
        key, head = frames
        _, start, length = _HEAD.unpack(head)
        data = self._have.get(bytes(key), memoryview(b""))
        if start < 0 or not 0 < length <= PIECE or start + length > len(data):
            data = data[:0]
        piece = data[start : start + length]
        self.sent += len(piece)
        self._send(who, [head, piece])
        return True


@dataclass
class _Peer:
    """A process that is a source of reads."""

    up: bool = False  # whether there is a connection
    under_way: dict[tuple[int, int], bytes] = field(default_factory=dict)  # keys of pieces, by read and number
    since: float = 0.0  # time of its last piece, or at which it was asked while idle
    took: float = 0.0  # seconds between its last two pieces


@dataclass
class _Read:
    """Bytes that are being read."""

    into: memoryview
    first: int  # where they begin among the bytes that are offered
    digests: tuple[bytes, ...]
    sources: list[ByteSource]
    left: deque[int]  # pieces to ask for
    missing: set[int]
    tried: dict[int, set[str]] = field(default_factory=dict)  # addresses asked for a piece, until they fail
    given: Counter[bytes] = field(default_factory=Counter)  # bytes that came under each key


class Reads:
    """Reads that are under way.

    ``send(address, frames)`` sends a request, ``done(number, complete, key)`` is told the end of a read that was not
    stopped, and under which key most of its bytes came. A source that withdraws the bytes, or whose bytes do not match
    their digests, is not asked again, and a read without a source has failed. No source is asked twice for a piece
    while its connection lasts, however slow it is: another one is asked as well if it has delivered nothing for a
    second, and four times what its last piece took.
    """

    def __init__(
        self,
        send: Callable[[str, Frames], None],
        done: Callable[[int, bool, bytes], None],
        clock: Callable[[], float],
    ) -> None:
        self._send, self._done, self._clock = send, done, clock
        self._reads: dict[int, _Read] = {}
        self._peers: dict[str, _Peer] = {}
        self.received = 0  # bytes

    def begin(
        self,
        number: int,
        into: memoryview,
        digests: Sequence[bytes],
        sources: Sequence[ByteSource],
        first: int = 0,
    ) -> None:
        """Begin to read what is offered from byte ``first`` on; the number must be new.

        Raises ValueError for digests of another number of pieces.
        """
        pieces = -(-len(into) // PIECE)
        if len(digests) != pieces:
            raise ValueError(f"{len(digests)} digests for {pieces} pieces")
        if not pieces:
            self._done(number, True, b"")
            return
        read = _Read(into, first, tuple(digests), [], deque(range(pieces)), set(range(pieces)))
        self._reads[number] = read
        for source in sources:
            self.add_source(number, source)

    def add_source(self, number: int, source: ByteSource) -> None:
        """Read from a further source as well, if the read is not over."""
        read = self._reads.get(number)
        if read is not None and source not in read.sources:
            read.sources.append(source)
            self._peers.setdefault(source.address, _Peer())
            self._ask()

    def stop(self, number: int) -> None:
        """Ask for nothing more."""
        self._reads.pop(number, None)
        for peer in self._peers.values():
            for piece in [piece for piece in peer.under_way if piece[0] == number]:
                del peer.under_way[piece]
        self._ask()

    @property
    def addresses(self) -> set[str]:
        """The addresses of all sources of reads that are under way."""
        return {source.address for read in self._reads.values() for source in read.sources}

    # ------------------------------------------------------------------------------------------- what happens

    def connected(self, address: str) -> None:
        """Note that there is a connection, perhaps a new one: pieces that were asked for are asked for again."""
        self.disconnected(address)
        self._peers.setdefault(address, _Peer()).up = True
        self._ask()

    def disconnected(self, address: str) -> None:
        """Note that a connection has ended; what was under way on it is lost."""
        peer = self._peers.get(address)
        if peer is None:
            return
        peer.up, lost = False, list(peer.under_way)
        peer.under_way.clear()
        for read in self._reads.values():
            for asked in read.tried.values():
                asked.discard(address)
        for number, piece in lost:
            self._return_piece(number, piece)
        self._ask()

    def forget(self, address: str) -> None:
        """Drop the record of a process that no read needs."""
        if address not in self.addresses:
            self._peers.pop(address, None)

    def arrived(self, address: str, frames: Frames) -> None:
        """Take in what a source has sent; ignore what was not asked for."""
        peer = self._peers.get(address)
        if peer is None or len(frames) != 2 or len(frames[0]) != _HEAD.size:
            return
        number, offset, length = _HEAD.unpack(frames[0])
        data = memoryview(frames[1])
        if number not in self._reads:
            return
        start = offset - self._reads[number].first
        piece = start // PIECE
        if (number, piece) not in peer.under_way or start % PIECE:
            return
        key = peer.under_way.pop((number, piece))
        now = self._clock()
        peer.took, peer.since = now - peer.since, now
        read = self._reads[number]
        if len(data) != length or length != len(read.into[start : start + PIECE]):
            self._drop_source(number, address)
        elif piece in read.missing:
            self.received += length
            if _digest(data) == read.digests[piece]:
                read.into[start : start + length] = data
                read.missing.discard(piece)
                read.given[key] += length
                if not read.missing:
                    self.stop(number)
                    self._done(number, True, max(read.given, key=read.given.__getitem__))
            else:
                self._drop_source(number, address)
        self._return_piece(number, piece)
        self._ask()

    def look(self) -> None:
        """Ask other sources for what a source has not delivered in good time; call this regularly."""
        now = self._clock()
        for address, peer in self._peers.items():
            if peer.under_way and now > peer.since + max(_PATIENCE, _SLOWER * peer.took):
                for number, piece in peer.under_way:
                    read = self._reads[number]
                    if piece in read.missing and piece not in read.left and self._free_source(read, piece, address):
                        read.left.appendleft(piece)
        self._ask()

    # ------------------------------------------------------------------------------------------- what is asked

    def _ask(self) -> None:
        """Ask for pieces, in the order of the reads, wherever the window allows."""
        for number, read in self._reads.items():
            for _ in range(len(read.left)):
                piece = read.left.popleft()
                source = self._free_source(read, piece)
                if source is None:
                    read.left.appendleft(piece)
                    break
                self._ask_for(number, piece, source)

    def _ask_for(self, number: int, piece: int, source: ByteSource) -> None:
        read, peer = self._reads[number], self._peers[source.address]
        if not peer.under_way:
            peer.since = self._clock()
        peer.under_way[number, piece] = source.key
        read.tried.setdefault(piece, set()).add(source.address)
        start = piece * PIECE
        length = len(read.into[start : start + PIECE])
        self._send(source.address, [source.key, _HEAD.pack(number, read.first + start, length)])

    def _free_source(self, read: _Read, piece: int, without: str = "") -> ByteSource | None:
        """Return the least busy source of a piece that can be asked for it; None if there is none."""
        free = [
            source
            for source in read.sources
            if source.address != without
            and (peer := self._peers[source.address]).up
            and len(peer.under_way) < WINDOW
            and source.address not in read.tried.get(piece, ())
        ]
        return min(free, key=lambda source: len(self._peers[source.address].under_way), default=None)

    def _return_piece(self, number: int, piece: int) -> None:
        """Have a piece asked for again that is missing and under way from nobody."""
        read = self._reads.get(number)
        if read is None or piece not in read.missing or piece in read.left:
            return
        if not any((number, piece) in peer.under_way for peer in self._peers.values()):
            read.left.appendleft(piece)

    def _drop_source(self, number: int, address: str) -> None:
        """Read from a source no more; without any source the read has failed."""
        read, peer = self._reads[number], self._peers[address]
        read.sources = [source for source in read.sources if source.address != address]
        pieces = [piece for other, piece in peer.under_way if other == number]
        for piece in pieces:
            del peer.under_way[number, piece]
            self._return_piece(number, piece)
        if not read.sources:
            self.stop(number)
            self._done(number, False, b"")
