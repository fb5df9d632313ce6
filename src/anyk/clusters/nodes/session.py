"""What driver and nodes say to each other, each message once and in order, although a connection may lose some.

Everything here is a state machine without sockets: it is given a function that sends, and a clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, Literal, NamedTuple, TypeVar

import msgspec

from anyk.clusters.contract import Key, Report
from anyk.clusters.nodes.wire import Offered
from anyk.clusters.processes.memory import MemoryLayout
from anyk.clusters.remote.wire import Form
from anyk.clusters.remote.worker import RunSetup
from anyk.clusters.steps import StepPlan

BEAT = 1.0  # seconds between two signs of life
_AGAIN = 2.0  # seconds after which a message that has not been acknowledged is sent again, if the other side is heard
SILENCE = 3.0  # seconds without a sign of life after which the other side is probed
_BETWEEN = 2.0  # seconds between two probes
QUIET = 30.0  # seconds without a sign of life, or an answer to a probe, after which the other side is taken for dead
PROGRAM_ENDED = "its program has ended"
NOT_INTACT = "its bytes did not arrive intact"

Answer = Literal["refused", "accepted", "none"]  # to a probe: an attempt to connect


class NodeMessage(msgspec.Struct, tag=True, array_like=True):
    """What one side tells the other."""


class Hello(NodeMessage):
    """A node's first message: where its bytes are read, and which process it is."""

    address: str
    machine: str
    pid: int


class Told(NodeMessage):
    """A worker's report; ``form`` and ``offered``: of its message, if it has one."""

    run: int
    worker: int
    incarnation: int
    report: Report
    form: Form | None = None
    offered: Offered | None = None


class WorkerEnded(NodeMessage):
    """A worker has died."""

    run: int
    worker: int
    incarnation: int
    reason: str
    blame: int


class Done(NodeMessage):
    """A node has done what the driver asked for under a number, with a slice; ``failure``: why it could not, else "".

    ``final``: whether the failure is the model's and not the node's. ``digest``: of its slice of a model. ``squares``:
    squared norms. ``offered``: vectors by name, each with its form. ``key``: that under which a slice of a message, or
    most of it, was offered to the node.
    """

    run: int
    number: int
    slice: int
    failure: str = ""
    final: bool = False
    digest: int = 0
    squares: list[float] = []
    offered: list[tuple[str, Form, Offered]] = []
    key: bytes = b""


class NodeBroken(NodeMessage):
    """A node cannot take part in the run."""

    run: int
    reason: str


class Brief(NodeMessage):
    """A new run: what a node's workers need, and the address at which the driver offers its bytes.

    ``data``: the partitions, an object's bytes and its arrays. ``holds``: the slices that the node may hold, each with
    its first coordinate and the one after its last.
    """

    run: int
    address: str
    layout: MemoryLayout
    setup: RunSetup
    assignment: Sequence[Sequence[int]]
    imports: list[str]
    data: list[Offered]
    holds: dict[int, tuple[int, int]] = {}


class Spawn(NodeMessage):
    """Start a worker."""

    run: int
    worker: int
    incarnation: int


class Kill(NodeMessage):
    """End a worker."""

    run: int
    worker: int


class OfferedPart(NamedTuple):
    """A part of a vector: its first byte's place in it, and where its bytes are offered."""

    first: int
    offered: Offered
    address: str


class Locate(NodeMessage):
    """Say where vectors are read, if they come to be needed; a later message holds.

    A part at the node's own address is that of a model which it writes itself, by a step.
    """

    run: int
    vectors: list[tuple[Key, list[OfferedPart]]]


class Give(NodeMessage):
    """Give a worker its newest orders, as soon as the vectors that they need are there."""

    run: int
    worker: int
    orders: bytes
    needs: list[Key]


class Drop(NodeMessage):
    """Forget vectors and slices of messages, and free messages of workers by the keys with which they are offered."""

    run: int
    vectors: list[Key]
    messages: list[bytes]
    slices: list[int]


class SliceOrder(NodeMessage):
    """What the driver asks of one that holds a slice, which carries out its orders one after another."""

    run: int
    number: int
    slice: int


class Hold(SliceOrder):
    """Prepare steps of a slot: read the slice of its optimiser's state, None for that before a first step.

    ``penalties``: the slice of the regulariser's factors if they differ. ``needs``: models to read as well, from which
    steps may be taken; ``offers``: those of them whose slice to offer to others.
    """

    slot: str
    optimizer: bytes
    states: list[tuple[str, Form, OfferedPart]] | None
    penalties: tuple[Form, OfferedPart] | None
    needs: list[Key] = []
    offers: list[Key] = []


class Collect(SliceOrder):
    """Read the slice of a message, which begins with the byte ``first`` of what is offered under the key."""

    first: int
    offered: Offered
    address: str


class CollectAlso(SliceOrder):
    """Read the slice from a further process as well, which offers the same bytes."""

    key: bytes
    address: str


class TakeStep(SliceOrder):
    """Step the slice when the ``needs`` and the messages are there, which are meant by the numbers of their slices.

    ``factor``: of an optimiser that clips, by which the direction is multiplied that was kept when it was measured.
    ``optimizer``: a new one of the slot, with the same state; empty if it is as before.
    """

    plan: StepPlan
    needs: list[Key]
    factor: float | None = None
    optimizer: bytes = b""


class MeasureStep(SliceOrder):
    """Tell the squared norm of each part of what a step goes by, which is kept for the step."""

    plan: StepPlan
    needs: list[Key]


class Measure(SliceOrder):
    """Tell the squared norm of a weighted sum of messages."""

    terms: list[tuple[int, float]]


class Show(SliceOrder):
    """Offer the slice of the state of a slot's optimiser before the step from a version, until the next step."""

    slot: str
    version: int


class Release(SliceOrder):
    """Hold the slice no more: stop, and forget what belongs to it."""


class End(NodeMessage):
    """End the run."""

    run: int


class Leave(NodeMessage):
    """End the program."""


ToDriver = Hello | Told | WorkerEnded | Done | NodeBroken
ToHolder = Hold | Collect | CollectAlso | TakeStep | MeasureStep | Measure | Show | Release
ToNode = Brief | Spawn | Kill | Locate | Give | Drop | ToHolder | End | Leave
M = TypeVar("M", ToDriver, ToNode)  # what this side tells
pack_message = msgspec.msgpack.Encoder(enc_hook=float).encode  # float() converts NumPy's numbers
from_node = msgspec.msgpack.Decoder(ToDriver).decode
from_driver = msgspec.msgpack.Decoder(ToNode).decode


class _Frame(msgspec.Struct, array_like=True):
    """A message on its way; ``number`` is 0 if it is only a sign of life."""

    number: int
    taken: int  # the number of the last message taken from the other side
    body: bytes


_frame = msgspec.msgpack.Decoder(_Frame).decode


class Session(Generic[M]):
    """One side of a conversation between two processes."""

    def __init__(self, send: Callable[[bytes], None], clock: Callable[[], float]) -> None:
        self._send, self._clock = send, clock
        self._kept: deque[bytes] = deque()  # messages that have not been acknowledged
        self._last = 0  # number of the last message told
        self._sent_at = 0.0  # time at which messages were last sent again, or the first of those kept was sent
        self._taken = 0  # number of the last message taken in
        self._heard = False

    @property
    def acknowledged(self) -> int:
        """The number of the last message that the other side has taken."""
        return self._last - len(self._kept)

    def tell(self, message: M) -> None:
        """Send a message, and keep it until it is acknowledged."""
        if not self._kept:
            self._sent_at = self._clock()
        self._last += 1
        self._kept.append(pack_message(message))
        self._emit(self._last, self._kept[-1])

    def acknowledge(self) -> None:
        """Acknowledge now what has been taken in, instead of with the next message or sign of life."""
        self._emit(0, b"")

    def beat(self) -> None:
        """Send a sign of life; call this regularly."""
        if not self._heard:
            self._send_again()  # before the first answer, nobody asks for what was lost
        self._emit(0, b"")

    def take(self, data: bytes) -> bytes | None:
        """Take in a frame; return its message if it is the next one.

        Raises ValueError (msgspec's errors) for anything that is no frame.
        """
        frame = _frame(data)
        if not 0 <= frame.taken <= self._last:
            raise ValueError(f"it acknowledges message {frame.taken} of {self._last}")
        self._heard = True
        while self.acknowledged < frame.taken:
            self._kept.popleft()
            self._sent_at = self._clock()
        if not frame.number:
            self._send_again()
        if frame.number != self._taken + 1:
            return None  # a sign of life, a message that came twice, or one that follows a lost one
        self._taken += 1
        return frame.body

    def _send_again(self) -> None:
        if self._kept and self._clock() > self._sent_at + _AGAIN:
            self._sent_at = self._clock()
            for number, body in enumerate(self._kept, self.acknowledged + 1):
                self._emit(number, body)

    def _emit(self, number: int, body: bytes) -> None:
        self._send(pack_message(_Frame(number, self._taken, body)))


class NodeWatch:
    """Tells apart a process that has died, one that is stopped, and one that cannot be reached.

    A process that gives no sign of life is probed by a connection to its port. If that is refused, it has died. If the
    system accepts it, the process is stopped, and may continue. Without an answer it cannot be reached, and is taken
    for dead after ``quiet`` seconds.
    """

    def __init__(self, clock: Callable[[], float], quiet: float = QUIET) -> None:
        self._clock, self._quiet = clock, quiet
        self._heard = self._probed = clock()
        self.dead = ""  # why it is taken for dead

    def heard(self) -> None:
        """Note a sign of life."""
        self._heard = self._clock()

    @property
    def silent(self) -> float:
        """Seconds since the last sign of life."""
        return self._clock() - self._heard

    def due(self) -> bool:
        """Return whether to probe it now."""
        now = self._clock()
        due = not self.dead and now > max(self._heard + SILENCE, self._probed + _BETWEEN)
        if due:
            self._probed = now
        return due

    def answered(self, answer: Answer) -> None:
        """Take in the answer to a probe."""
        silent = self.silent
        if silent <= SILENCE:
            return
        if answer == "refused":
            self.dead = PROGRAM_ENDED
        elif answer == "none" and silent > self._quiet:
            self.dead = f"it could not be reached for {silent:.0f} s"
