"""Smaller messages for any strategy that can do with them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from anyk.codes import DracoCode, Uncoded
from anyk.compression import compressor
from anyk.errors import BadInput
from anyk.protocol import Combine, Command, Dispatch, Event, Fleet, Lost, Mix, Strategy
from anyk.specs import bracketed, show
from anyk.strategies.buffered import FedBuff
from anyk.strategies.kfamily import KFamily
from anyk.strategies.local import LocalRounds
from anyk.strategies.rounds import CodedRounds


class Compressed:
    """A strategy whose messages are compressed by a compressor (``anyk compression`` lists them).

    It decides as the strategy inside does. Local work is compressed as the change from the version it began at. With
    error feedback a worker adds what its last used message left out to the next; which of its messages were used, it
    learns with its next task. Raises :class:`~anyk.errors.BadInput` where the two do not compose:

    - linear compressors (``random-k``) compose exactly with everything below, every code included;
    - unbiased ones (``qsgd``, ``half``) in expectation, noise times the size of the decoding weights;
    - contractive ones (``top-k``, ``sign``) where a message is one worker's own: rounds of ``uncoded``, the K family,
      ``pasgd`` and its kin, ``fedbuff``.

    Averaging among neighbours, trees, rounds that collect on request and codes against liars do not compose.

    >>> import anyk
    >>> anyk.strategy("compressed:of=(k-sync:k=3),by=(top-k:share=0.1)", workers=8).spec
    'compressed:of=(uncoded:wait=3),by=(top-k:share=0.1)'
    """

    def __init__(self, of: Strategy, by: str) -> None:
        self.of, self.by = of, compressor(by)
        single = isinstance(of, (KFamily, LocalRounds, FedBuff))
        coded = isinstance(of, CodedRounds) and not isinstance(of, LocalRounds)
        if isinstance(of, CodedRounds) and isinstance(of.code, DracoCode):
            raise BadInput(f"'{of.spec}' compares messages to find liars; compressed ones it cannot")
        if isinstance(of, CodedRounds) and of.blocks > 1:
            raise BadInput(f"the messages of '{of.spec}' are a fraction of the vector already; they are not compressed")
        if not (single or coded):
            raise BadInput(f"'{of.spec}' does not compose with compressed messages: workers use each other's")
        if self.by.promise == "contractive" and coded and not isinstance(of.code, Uncoded):  # type: ignore[attr-defined]
            raise BadInput(
                f"'{self.by.spec}' keeps what it leaves out, which replicas of '{of.spec}' do not share; take random-k "
                "(exact) or qsgd (in expectation), or rounds of uncoded"
            )
        if getattr(of, "keep", False) and self.by.feedback:
            raise BadInput(f"'{of.spec}' keeps the inner optimiser's state; with '{self.by.spec}' leave out keep")
        if getattr(of, "compensate", 0.0):
            raise BadInput("delay compensation needs gradients as they are; leave out compensate")
        self._used: dict[int, int] = {}  # worker -> its last task whose message was used
        self._worker: dict[int, int] = {}  # task -> worker, since then

    def __getattr__(self, name: str) -> Any:
        if name == "of":  # not made yet: copying asks for attributes before there are any
            raise AttributeError(name)
        return getattr(self.of, name)

    @property
    def spec(self) -> str:
        """The short form."""
        return show("compressed", {"of": bracketed(self.of.spec), "by": bracketed(self.by.spec)})

    @property
    def workers(self) -> int:
        """n."""
        return self.of.workers

    @property
    def partitions(self) -> int:
        """m."""
        return self.of.partitions

    @property
    def slots(self) -> tuple[str, ...]:
        """See :class:`~anyk.protocol.Strategy`."""
        return self.of.slots

    @property
    def holdings(self) -> Sequence[tuple[int, ...]]:
        """See :class:`~anyk.protocol.Strategy`."""
        return self.of.holdings

    def start(self, fleet: Fleet) -> Sequence[Command]:
        """See :class:`~anyk.protocol.Strategy`."""
        self._used, self._worker = {}, {}
        return self._compressed(self.of.start(fleet))

    def on(self, event: Event) -> Sequence[Command]:
        """See :class:`~anyk.protocol.Strategy`."""
        if isinstance(event, Lost):
            self._used.pop(event.worker, None)  # what it had left out is gone with it
        return self._compressed(self.of.on(event))

    def _compressed(self, commands: Sequence[Command]) -> Sequence[Command]:
        changed: list[Command] = []
        for command in commands:
            if isinstance(command, Dispatch):
                command = self._dispatched(command)
            elif isinstance(command, (Combine, Mix)) and self.by.feedback:
                for task, _ in command.messages:
                    worker = self._worker.pop(task)
                    self._used[worker] = max(task, self._used.get(worker, -1))
                    self._worker = {t: w for t, w in self._worker.items() if w != worker or t > task}
            changed.append(command)
        return changed

    def _dispatched(self, command: Dispatch) -> Dispatch:
        tasks = []
        for task, (worker, chunks) in enumerate(zip(command.workers, command.chunks, strict=True), command.task):
            state = -1
            if self.by.feedback:
                self._worker[task] = worker
                state = self._used.get(worker, -1)
            tasks.append(
                tuple(
                    chunk._replace(compress=self.by.spec, state=state if self.by.feedback else chunk.state)
                    for chunk in chunks
                )
            )
        return command._replace(chunks=tasks)

    def state(self) -> dict[str, Any]:
        """See :class:`~anyk.protocol.Strategy`."""
        return {"of": self.of.state(), "used": list(self._used.items()), "worker": list(self._worker.items())}

    def restore(self, state: dict[str, Any]) -> None:
        """See :class:`~anyk.protocol.Strategy`."""
        self.of.restore(state["of"])
        self._used, self._worker = dict(state["used"]), dict(state["worker"])
