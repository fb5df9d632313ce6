"""What the machines of a job are, and how fast they read from each other, before the first run.

All ranks take part. They meet at the job's store, as a cluster's nodes do, and read a few megabytes from each other by
the same offers and reads, in rounds of pairs that have no machine in common.
"""

from __future__ import annotations

import contextlib
import os
import platform
import secrets
import time
from collections.abc import Callable, Collection, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from anyk.base.errors import BadInput, RunFailed
from anyk.clusters.nodes.site import JobPlace, Site, difference, need_packages, versions
from anyk.clusters.nodes.wire import Offered
from anyk.clusters.waiting import readable

if TYPE_CHECKING:
    from anyk.clusters.nodes.carrier import Carrier

Kind = TypeVar("Kind")

_SIZE = 8 << 20  # bytes that are read from each other
_TRIPS = 7  # reads of a few bytes
_CONNECTING, _READING = 4.0, 6.0  # seconds until a machine cannot be reached, and for the bytes of a pair
_ROUND = 30.0  # seconds after which a machine is missed in a round
_FAREWELL = 2.0  # seconds for the others to leave before the store ends with rank 0's program
_LOOK = 0.005  # seconds between two looks at the store
_SLOWER = 1.5  # times slower than the others, from which on a machine is named
_TOKEN = "survey"  # the name under which rank 0 announces a survey


class Machine(msgspec.Struct, frozen=True):
    """A machine of the job: its name, where it is reached (``port``: for bytes), what it has and its versions."""

    rank: int
    host: str
    address: str
    port: int
    cores: int
    devices: list[str]
    versions: dict[str, str]


class ReadSpeed(msgspec.Struct, frozen=True):
    """What ``reader`` measured of reading from ``source``: bytes per second, and seconds of a round trip.

    Both directions of a pair were read simultaneously. None: the source could not be reached, or sent nothing.
    """

    reader: int
    source: int
    bandwidth: float | None
    round_trip: float | None


class MachineSurvey(msgspec.Struct, frozen=True):
    """The machines of a job, what they measured of each other, and ``differences`` of their versions, as sentences.

    ``store``: where the machines meet. ``seconds``: that reading took, after all had come.
    """

    machines: list[Machine]
    reads: list[ReadSpeed]
    differences: list[str]
    store: str
    seconds: float

    @property
    def unreachable(self) -> list[ReadSpeed]:
        """Reads that did not begin, such as because of a firewall."""
        return [read for read in self.reads if read.bandwidth is None]

    @property
    def bandwidth(self) -> float | None:
        """Median bytes per second from one machine to another, while as many come back."""
        rates = [read.bandwidth for read in self.reads if read.bandwidth is not None]
        return median(rates) if rates else None

    @property
    def round_trip(self) -> float | None:
        """Median seconds of a question and its answer."""
        trips = [read.round_trip for read in self.reads if read.round_trip is not None]
        return median(trips) if trips else None

    @property
    def slow(self) -> dict[int, float]:
        """Machines that send at least 1.5 times slower than the median, by rank, and how many times."""
        times_slower = {}
        for machine in self.machines:
            sent = [read.bandwidth for read in self.reads if read.source == machine.rank and read.bandwidth is not None]
            if sent and self.bandwidth is not None and self.bandwidth >= _SLOWER * median(sent):
                times_slower[machine.rank] = self.bandwidth / median(sent)
        return times_slower

    def report(self) -> dict[str, Any]:
        """Return all of it as plain data, for JSON."""
        medians = {"bandwidth": self.bandwidth, "round_trip": self.round_trip}
        return dict(msgspec.to_builtins(self)) | medians | {"slow": {str(rank): k for rank, k in self.slow.items()}}


class _Entry(msgspec.Struct):
    """What a machine says of itself, and what others may read from it."""

    machine: Machine
    bytes_at: str
    few: Offered
    many: Offered


def rounds_of_pairs(count: int) -> list[list[tuple[int, int]]]:
    """Return rounds of disjoint pairs, in which each pair of ``count`` machines meets once (the circle method).

    >>> rounds_of_pairs(4)
    [[(0, 3), (1, 2)], [(0, 2), (1, 3)], [(0, 1), (2, 3)]]
    """
    seats = count + count % 2  # whoever meets an empty seat rests
    circle = list(range(1, seats))
    rounds = []
    for _ in range(seats - 1):
        row = [0, *circle]
        pairs = [(row[i], row[-1 - i]) for i in range(seats // 2)]
        rounds.append([(min(pair), max(pair)) for pair in pairs if max(pair) < count])
        circle = [circle[-1], *circle[:-1]]
    return rounds


def survey_nodes(*, address: str = "", port: int = 0, within: float = 60.0) -> MachineSurvey | None:
    """Survey the machines of the job that torchrun, srun or ssh has started; return the result on rank 0, else None.

    Every rank must call it. ``address``: this machine's, by default that from which MASTER_ADDR is reached. ``port``:
    as in ``nodes:port=``; bytes are read from the port after it. ``within``: seconds within which all machines must
    have come. Raises :class:`~anyk.BadInput` without a launcher, or if a package is missing, and
    :class:`~anyk.RunFailed` if a machine does not come, or leaves.
    """
    place = JobPlace.from_environment(address)
    need_packages("a survey of machines")
    from anyk.clusters.nodes.carrier import Carrier

    site = Site(place)
    carrier = Carrier(place.host, port and port + 1)
    carrier.start()
    try:
        member = _Member(site, carrier, within)
        if place.rank:
            member.take_part()
            return None
        entries = member.gather()
        begun = time.monotonic()
        ours = versions()
        apart = [difference(f"node {e.machine.rank}", e.machine.versions, ours) for e in entries]
        return MachineSurvey(
            machines=[entry.machine for entry in entries],
            reads=member.lead(entries),
            differences=[sentence for sentence in apart if sentence],
            store=f"{place.store_host}:{place.store_port}",
            seconds=time.monotonic() - begun,
        )
    finally:
        carrier.end()


def _devices() -> list[str]:
    """Return the names of the GPUs that PyTorch sees."""
    import torch

    return [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]


class _Member:
    """A rank that takes part in a survey."""

    def __init__(self, site: Site, carrier: Carrier, within: float) -> None:
        self._site, self._carrier, self._within = site, carrier, within
        self._rank, self._size = site.place.rank, site.place.size
        self._token = ""
        self._number = 0  # of reads
        few, many = bytearray(os.urandom(8)), bytearray(os.urandom(1 << 16) * (_SIZE >> 16))
        self._buffers = few, many  # they live as long as the offers
        host, _, port = carrier.address.rpartition(":")
        self._entry = _Entry(
            machine=Machine(
                rank=self._rank,
                host=platform.node(),
                address=host.strip("[]"),
                port=int(port),
                cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
                devices=_devices(),
                versions=versions(),
            ),
            bytes_at=carrier.address,
            few=carrier.offer(memoryview(few)),
            many=carrier.offer(memoryview(many)),
        )

    # ------------------------------------------------------------------------------------------- rank 0

    def gather(self) -> list[_Entry]:
        """Return what all machines say of themselves, in the order of their ranks."""
        self._token = secrets.token_hex(8)
        self._site.write(_TOKEN, self._token.encode())
        self._say("entry", self._rank, msgspec.json.encode(self._entry))
        missing = self._wait_for_all("entry", within=self._within)
        if missing:
            place = self._site.place
            self._say("go", 0, b"")  # those that have come may leave
            self._wait_for_all("bye", within=_FAREWELL, without=missing)
            raise RunFailed(
                f"{_named(missing)} did not come within {self._within:g} s; is the command started there, with the "
                f"same WORLD_SIZE, and is port {place.store_port} of {place.store_host} let through?"
            )
        entries = [self._heard("entry", rank, _Entry) for rank in range(self._size)]
        self._say("go", 0, msgspec.json.encode(entries))
        return entries

    def lead(self, entries: Sequence[_Entry]) -> list[ReadSpeed]:
        """Take part in all rounds, and return what all machines have measured."""
        reads_here = self._measure(entries, self._begin_round)
        self._say("result", 0, msgspec.json.encode(reads_here))
        self._miss(self._wait_for_all("result", within=_ROUND))
        reads = [read for rank in range(self._size) for read in self._heard("result", rank, list[ReadSpeed])]
        self._say("over", 0, b"1")
        self._wait_for_all("bye", within=_FAREWELL)
        return sorted(reads, key=lambda read: (read.reader, read.source))

    def _begin_round(self, number: int) -> None:
        """Let all begin a round when all have ended the one before."""
        self._miss(self._wait_for_all(f"ready {number}", within=_ROUND))
        self._say("begin", number, b"1")

    def _miss(self, missing: Collection[int]) -> None:
        if missing:
            raise RunFailed(f"{_named(missing)} left in the middle of the survey; see the messages there")

    # ------------------------------------------------------------------------------------------- the other ranks

    def take_part(self) -> None:
        """Take part in the survey that rank 0 leads."""
        until = time.monotonic() + self._within + _ROUND
        while True:
            token = (self._site.read(_TOKEN) or b"").decode()
            if token and token != self._token:  # rank 0 has come, or was started again
                self._token = token
                self._say("entry", self._rank, msgspec.json.encode(self._entry))
            if self._token and (answer := self._read("go", 0)) is not None:
                break
            if time.monotonic() > until:
                raise RunFailed(f"rank 0 did not begin a survey within {self._within + _ROUND:g} s")
            time.sleep(10 * _LOOK)
        if not answer:
            self._say("bye", self._rank, b"1")
            raise RunFailed("some of the machines did not come: rank 0 names them")
        entries = msgspec.json.decode(answer, type=list[_Entry])
        reads_here = self._measure(entries, self._await_round)
        self._say("result", self._rank, msgspec.json.encode(reads_here))
        self._await("over", 0)
        self._say("bye", self._rank, b"1")

    def _await_round(self, number: int) -> None:
        self._say(f"ready {number}", self._rank, b"1")
        self._await("begin", number)

    def _await(self, what: str, number: int) -> None:
        until = time.monotonic() + 2 * _ROUND
        while self._read(what, number) is None:
            if time.monotonic() > until:
                raise RunFailed("rank 0 left in the middle of the survey; see the messages there")
            time.sleep(_LOOK)

    # ------------------------------------------------------------------------------------------- the store

    def _say(self, what: str, number: int, value: bytes) -> None:
        with contextlib.suppress(RuntimeError):  # the store has ended, as the wait that follows will tell
            self._site.write(f"{_TOKEN}/{self._token}/{what}/{number}", value)

    def _read(self, what: str, number: int) -> bytes | None:
        return self._site.read(f"{_TOKEN}/{self._token}/{what}/{number}")

    def _heard(self, what: str, rank: int, kind: type[Kind]) -> Kind:
        try:
            return msgspec.json.decode(self._read(what, rank) or b"", type=kind)
        except msgspec.MsgspecError:
            raise BadInput(
                f"node {rank} has another version of anyk, which surveys differently; install the same on all nodes"
            ) from None

    def _wait_for_all(self, what: str, *, within: float, without: Collection[int] = ()) -> list[int]:
        """Wait until all other ranks have said something; return those that have not."""
        until = time.monotonic() + within
        missing = [rank for rank in range(1, self._size) if rank not in without]
        while True:
            missing = [rank for rank in missing if self._read(what, rank) is None]
            if not missing or time.monotonic() > until:
                return missing
            time.sleep(_LOOK)

    # ------------------------------------------------------------------------------------------- reading

    def _measure(self, entries: Sequence[_Entry], begin: Callable[[int], None]) -> list[ReadSpeed]:
        """Read from each of the others in turn; ``begin`` returns when all begin a round."""
        reads = []
        for number, pairs in enumerate(rounds_of_pairs(self._size)):
            others = [sum(pair) - self._rank for pair in pairs if self._rank in pair]
            begin(2 * number)
            trip = self._round_trip(entries[others[0]]) if others else None
            begin(2 * number + 1)  # so that long reads do not delay short ones
            if others:
                bandwidth = None if trip is None else self._bandwidth(entries[others[0]])
                reads.append(ReadSpeed(self._rank, others[0], bandwidth, trip))
        return reads

    def _round_trip(self, other: _Entry) -> float | None:
        """Return the seconds of a question and its answer; None if there is no answer."""
        into = bytearray(other.few.size)
        if self._seconds_to_read(other, other.few, into, _CONNECTING)[0] is None:  # which also connects
            return None
        trips = [self._seconds_to_read(other, other.few, into, _CONNECTING)[0] for _ in range(_TRIPS)]
        measured = [trip for trip in trips if trip is not None]
        return median(measured) if measured else None

    def _bandwidth(self, other: _Entry) -> float | None:
        """Return bytes per second of a long read, also if it does not end in time; None if nothing comes."""
        rates, into = [], bytearray(other.many.size)
        for _ in range(2):  # a connection must come up to speed first
            seconds, received = self._seconds_to_read(other, other.many, into, _READING)
            rates.append(received / (seconds or _READING))
            if seconds is None:
                break
        return max(rates) or None

    def _seconds_to_read(
        self, other: _Entry, offered: Offered, into: bytearray, within: float
    ) -> tuple[float | None, int]:
        """Return the seconds in which all bytes were read, None if they were not, and the number of those that were."""
        from anyk.clusters.nodes.carrier import ReadFinished

        self._number += 1
        before, begun = self._carrier.reads.received, time.monotonic()
        self._carrier.read(self._number, memoryview(into), offered, [other.bytes_at])
        complete = None
        while complete is None and (left := begun + within - time.monotonic()) > 0:
            readable([self._carrier.fd], left)
            for news in self._carrier.news():
                if isinstance(news, ReadFinished) and news.number == self._number:
                    complete = news.complete
        seconds = time.monotonic() - begun
        if not complete:
            self._carrier.stop(self._number)
        return (seconds if complete else None), self._carrier.reads.received - before


def _named(ranks: Collection[int]) -> str:
    return f"node{'s' * (len(ranks) > 1)} {', '.join(map(str, sorted(ranks)))}"
