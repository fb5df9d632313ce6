"""What a step moves over the links of a network, in closed form, and the seconds that this takes.

There are N nodes with one worker each. Every node has one link, on which it sends and receives simultaneously, each at
the ``bandwidth``. A *vector* is a whole model, or a whole message. All messages are ready at the same time here; when
they are not, :mod:`anyk.fleet.scaling.links` simulates the same transfers.

*Star.* Rank 0 reads every different sum over its one link. A repetition code has G of them, one from each group of
replicas, of which rank 0's own worker computes one: G - 1 vectors come in. Then N - 1 nodes read the new model from
rank 0, over that same link: N - 1 vectors go out. They do not overlap, as the model follows from the sums::

    star = (G - 1) + (N - 1)

*Slices.* Each node holds about 1/N of the sums, of the model and of the optimiser's state. In the *reduce* phase a
holder reads its slice of each sum. The slice of the sum that its own worker computed is here, so (G - 1) / N of a
vector comes in at each holder. At the other end, the c replicas of a sum share N - c readers: each sends
(N - c) / (c N) of a vector, which is the same if all groups have c = N / G members. In the *spread* phase, when every
holder has stepped its slice, each node reads the slices of the other N - 1: (N - 1) / N of a vector comes in, and as
much goes out::

    slices = max((G - 1) / N, (N - c) / (c N)) + (N - 1) / N

Uncoded, G = N and c = 1: 2 (N - 1) / N, what a ring moves. With c = 2 the reduce phase is about half of that. A code
that is no repetition has no replicas: its holders read all the messages that are decoded, slice by slice, and c = 1.
Vectors are cut at multiples of 131,072 numbers, and the holder of the largest slice is the last to be ready. So where
1/N is a holder's, its slice's share counts, which is up to 0.5 MiB of float32 more: much where a vector has few MiB for
each node.

*Slices in C copies.* Each node holds the slices of C nodes, and reads as many of each sum: C times the reduce phase.
Then it has C of the N slices of the new model, and reads the others, each from one of those who hold it::

    slices = C max((G - 1) / N, (N - c) / (c N)) + (N - C) / N

*All-reduce.* In a ring, each node sends 1/N of a vector to its neighbour N - 1 times until the sums are complete, and
N - 1 times until everybody has them::

    all-reduce = 2 (N - 1) / N

(Patarasuk and Yuan 2009: no all-reduce sends less.) Gloo, NCCL and MPI use it for long vectors, as
DistributedDataParallel does.

*Latency.* What waits for each other takes the ``latency`` of a message from machine to machine several times. Star: an
announcement, the question for the bytes and the answer, on the way in; the order, the question and the answer on the
way out: 6. Slices: besides, the holders are told what to read, report that they have it, and are told to step: 10. A
ring has 2 (N - 1) messages in succession.

*A slow node*, which is node 1 here, sends k times slower. In a star that concerns its message only, and a replica may
be faster. In slices every node waits for the slice of the model that it holds: the spread phase takes k times as long.
A ring takes k times as long as a whole.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal, NamedTuple

import msgspec
import numpy as np

from anyk.base import BadInput, Floats, NonnegativeNumber, PositiveNumber, value_class

Way = Literal["star", "slices", "all-reduce"]
WAYS: tuple[Way, ...] = ("star", "slices", "all-reduce")
PAYLOAD = 1448 / 1538  # of the bits on an Ethernet link: a segment of TCP in a frame, with the gap between two frames
STAR_MESSAGES, SLICE_MESSAGES = 6, 10  # in succession, in a step
_UNIT = 131_072  # numbers at whose multiples slices begin
SLOW_NODE = 1  # the one that may be slow: another than rank 0, with a slice as large as any
_LEAST = 1000.0  # bytes a second; below that a unit has been forgotten

AtLeastOneTime = Annotated[float, msgspec.Meta(ge=1, le=1e6)]  # how many times slower

_PREFIXES = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30}
_RATE = re.compile(
    r"(?P<number>\d+\.?\d*(e[+-]?\d+)?|\.\d+)\s*(?P<prefix>[a-zA-Z]??i?)(?P<unit>bits?|bytes?|b|B)(/s|ps)", re.ASCII
)
_WRITE = "write bits as in 10Gb/s or 10Gbit/s (a link's rate), or bytes as in 100MB/s (what a program measured)"


@value_class
class NodeLink:
    """The link that each node has, in each direction.

    ``bandwidth``: bytes of vectors a second. ``latency``: seconds that a short message takes from one machine to
    another, half of what ``ping`` shows.

    >>> NodeLink.read("1Gb/s").bandwidth / 1e6  # doctest: +ELLIPSIS
    117.68...
    >>> NodeLink.read("100MB/s", latency=5e-5)
    NodeLink(bandwidth=100000000.0, latency=5e-05)
    """

    bandwidth: PositiveNumber
    latency: NonnegativeNumber = 0.0

    @classmethod
    def read(cls, text: str, latency: float = 0.0) -> NodeLink:
        """Return the network that a text states, in bits or bytes a second.

        Of a link's bits, 94 % arrive as bytes of vectors: Ethernet and TCP/IP take the rest. Bytes a second are taken
        as what a program measured. Raises :class:`~anyk.BadInput` for other texts, also for ``10G`` and ``10Gb``, which
        may mean either.
        """
        match = _RATE.fullmatch(text.strip())
        prefix = match["prefix"] if match else ""
        in_bits = match is not None and match["unit"] in ("b", "bit", "bits")
        if match is not None and match["unit"] in ("bit", "bits", "byte", "bytes"):
            prefix = {"m": "M", "g": "G", "t": "T"}.get(prefix, prefix)  # as in tc's 1gbit; a unit in full is clear
        if match is None or prefix not in _PREFIXES or (in_bits and prefix.endswith("i")):
            raise BadInput(f"network should be a rate such as 10Gb/s or 100MB/s, got '{text}'; {_WRITE}")
        bandwidth = float(match["number"]) * _PREFIXES[prefix] * (PAYLOAD / 8 if in_bits else 1.0)
        if not _LEAST <= bandwidth <= 1e15:
            raise BadInput(f"network should be at least 1 kB/s, and at most 1e15 bytes a second, got '{text}'")
        return cls(bandwidth, latency)


class StepTransfer(NamedTuple):
    """The seconds of a step's communication: of the sums, of the new model, and of what waits for a message.

    An all-reduce has its two halves in ``reduce`` and ``spread``.
    """

    reduce: float
    spread: float
    latency: float

    @property
    def seconds(self) -> float:
        """All of it."""
        return self.reduce + self.spread + self.latency


def slice_sizes(size: float, nodes: int, itemsize: int = 4) -> Floats:
    """Return the bytes of a vector that each node holds, shape (nodes,); some may be 0.

    >>> (slice_sizes(10e6, 4) / 2**20).round(2).tolist()
    [2.5, 2.5, 2.5, 2.04]
    """
    unit = _UNIT * itemsize
    units, remaining = divmod(-int(-size // unit), nodes)
    ends = [min(float(size), unit * (units * rank + min(rank, remaining))) for rank in range(nodes + 1)]
    return np.diff(np.array(ends))


def held_sizes(size: float, nodes: int, itemsize: int = 4, copies: int = 1) -> Floats:
    """Return the bytes of a vector that each node holds if each slice lies at ``copies`` nodes, shape (nodes,).

    >>> (held_sizes(10e6, 4, copies=2) / 2**20).round(2).tolist()
    [4.54, 5.0, 5.0, 4.54]
    """
    slices = slice_sizes(size, nodes, itemsize)
    held = np.zeros(nodes)
    for copy in range(copies):
        held += np.roll(slices, copy)
    return held


def spread_seconds(
    size: float, network: NodeLink, nodes: int, *, slow: float = 1.0, itemsize: int = 4, copies: int = 1
) -> float:
    """Return the seconds until each node has read all slices of a new model that it does not hold.

    Each slice is read from the node of its number, also if other nodes have copies.
    """
    sent = (nodes - copies) * slice_sizes(size, nodes, itemsize) / network.bandwidth
    sent[SLOW_NODE] *= slow
    received = (size - held_sizes(size, nodes, itemsize, copies).min()) / network.bandwidth
    return float(max(sent.max(), received))


def transfer_seconds(
    way: Way,
    size: float,
    network: NodeLink,
    *,
    nodes: int,
    sums: int | None = None,
    replicas: int = 1,
    copies: int = 1,
    slow: float = 1.0,
    itemsize: int = 4,
) -> StepTransfer:
    """Return the seconds that a step's vectors of ``size`` bytes take if all messages are ready simultaneously.

    ``sums``: different sums that a step reads, G (default: one from each node, as uncoded). ``replicas``: the workers
    that have the same sum, c, in the smallest group. ``copies``: nodes that hold each slice, C. ``slow``: node 1 sends
    so many times slower. ``itemsize``: bytes of a number. An all-reduce is of all nodes, whatever the code. The
    formulas are derived at the top of the module.

    >>> gigabit = NodeLink.read("1Gb/s")
    >>> [round(transfer_seconds(way, 40e6, gigabit, nodes=8, sums=4, replicas=2).seconds, 3) for way in WAYS]
    [3.399, 0.445, 0.595]
    """
    n, vector = nodes, size / network.bandwidth
    sums = n if sums is None else sums
    if way == "all-reduce":
        half = (n - 1) / n * vector * slow
        return StepTransfer(half, half, 2 * (n - 1) * network.latency)
    if way == "star":
        alone = slow if replicas == 1 else 1.0  # of a sum that only the slow node has
        reading = max(sums - 1, alone) if sums > 1 else 0.0
        return StepTransfer(reading * vector, (n - 1) * vector, STAR_MESSAGES * network.latency)
    held = np.sort(held_sizes(size, n, itemsize, copies)) / network.bandwidth
    received = (sums - 1) * held[-1]
    sent = (copies * vector - held[:replicas].sum()) / (replicas - 1 + 1 / slow)  # by the replicas that hold least
    spread = spread_seconds(size, network, n, slow=slow, itemsize=itemsize, copies=copies)
    return StepTransfer(float(max(received, sent)), spread, SLICE_MESSAGES * network.latency)
