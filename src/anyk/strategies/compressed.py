"""Smaller messages for any strategy that can do with them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from anyk.checks import typed
from anyk.codes import DracoCode, Uncoded
from anyk.compression import compressor
from anyk.errors import BadInput
from anyk.protocol import (
    Cancel,
    Combine,
    Command,
    Dispatch,
    Event,
    Failed,
    Fleet,
    Layout,
    Lost,
    Mix,
    Reply,
    Strategy,
    strategy_text,
)
from anyk.specs import bracketed, show
from anyk.strategies.buffered import FedBuff
from anyk.strategies.kfamily import KFamily
from anyk.strategies.local import LocalRounds
from anyk.strategies.rounds import CodedRounds


@typed
class Compressed:
    """A strategy whose messages are compressed by a compressor (``anyk compression`` lists them).

    It decides as the strategy inside does. Local work is compressed as the change from the version it began at. With
    error feedback a worker adds what its last message left out to the next; of a message that arrived and was dropped
    it is told with its next task, and goes on from what the one before had left out. Raises
    :class:`~anyk.errors.BadInput` where the two do not compose:

    - linear compressors (``random-k``) compose exactly with everything below, every code included, where messages cover
      the same coordinates (of sparse data, whose messages do not, in expectation);
    - unbiased ones (``qsgd``, ``half``) in expectation, noise times the size of the decoding weights;
    - contractive ones (``top-k``, ``sign``) where a message is one worker's own: rounds of ``uncoded``, the K family,
      ``pasgd`` and its kin, ``fedbuff``.

    Averaging among neighbours, trees, rounds that collect on request and codes against Byzantine
    workers do not compose.

    >>> import anyk
    >>> anyk.strategy("compressed:of=(k-sync:k=3),by=(top-k:share=0.1)", workers=8).spec
    'compressed:of=(uncoded:wait=3),by=(top-k:share=0.1)'
    """

    def __repr__(self) -> str:
        return strategy_text(self)

    def __init__(self, of: Strategy, by: str) -> None:
        self.of, self.by = of, compressor(by)
        single = isinstance(of, (KFamily, LocalRounds, FedBuff))
        coded = isinstance(of, CodedRounds) and not isinstance(of, LocalRounds)
        if isinstance(of, CodedRounds) and isinstance(of.code, DracoCode):
            raise BadInput(f"'{of.spec}' compares messages to find Byzantine workers; compressed ones it cannot")
        if isinstance(of, CodedRounds) and of.blocks > 1:
            raise BadInput(f"the messages of '{of.spec}' are a fraction of the vector already; they are not compressed")
        if not (single or coded):
            raise BadInput(f"'{of.spec}' does not compose with compressed messages: workers use each other's")
        if self.by.promise == "contractive" and coded and not isinstance(of.code, Uncoded):  # type: ignore[attr-defined]
            raise BadInput(
                f"'{self.by.spec}' keeps what it leaves out, which replicas of '{of.spec}' do not share; take random-k "
                "(exact) or qsgd (in expectation), or rounds of uncoded"
            )
        if getattr(of, "keep", False):
            raise BadInput(f"'{of.spec}' keeps the inner optimiser's state; with '{self.by.spec}' leave out keep")
        if getattr(of, "compensate", 0.0):
            raise BadInput("delay compensation needs gradients as they are; leave out compensate")
        self._last: dict[int, int] = {}  # worker -> its last task whose message has come and was not dropped
        self._tasks: dict[int, tuple[int, int]] = {}  # task -> worker, and the task it goes on from

    def __getattr__(self, name: str) -> Any:
        if name == "of":  # not made yet: copying asks for attributes before there are any
            raise AttributeError(name)
        return getattr(self.of, name)

    @property
    def spec(self) -> str:
        """The short form."""
        return show("compressed", {"of": bracketed(self.of.spec), "by": bracketed(self.by.spec)})

    @property
    def layout(self) -> Layout:
        """That of the strategy inside."""
        return self.of.layout

    def start(self, fleet: Fleet) -> Sequence[Command]:
        """See :class:`~anyk.protocol.Strategy`."""
        self._last, self._tasks = {}, {}
        return self._compressed(self.of.start(fleet))

    def on(self, event: Event) -> Sequence[Command]:
        """See :class:`~anyk.protocol.Strategy`."""
        if isinstance(event, Lost):
            self._last.pop(event.worker, None)  # what it had left out is gone with it
            self._tasks = {task: at for task, at in self._tasks.items() if at[0] != event.worker}
        elif isinstance(event, Failed):
            self._tasks.pop(event.task, None)
        elif isinstance(event, Reply) and event.task in self._tasks and event.task > self._last.get(event.worker, -1):
            self._last[event.worker] = event.task
        return self._compressed(self.of.on(event))

    def _compressed(self, commands: Sequence[Command]) -> Sequence[Command]:
        changed: list[Command] = []
        for command in commands:
            if isinstance(command, Dispatch):
                command = self._dispatched(command)
            elif isinstance(command, (Combine, Mix)):
                for task, _ in command.messages:
                    self._tasks.pop(task, None)
            elif isinstance(command, Cancel) and self._tasks:
                for task in command.tasks:
                    worker, before = self._tasks.pop(task, (-1, -1))
                    if self._last.get(worker) == task:  # it had come, and is not used
                        self._last[worker] = before
            changed.append(command)
        return changed

    def _dispatched(self, command: Dispatch) -> Dispatch:
        if not self.by.feedback:
            tasks = [tuple(chunk._replace(compress=self.by.spec) for chunk in task) for task in command.chunks]
            return command._replace(chunks=tasks)
        tasks = []
        for task, (worker, chunks) in enumerate(zip(command.workers, command.chunks, strict=True), command.task):
            state = self._last.get(worker, -1)
            self._tasks[task] = worker, state
            tasks.append(tuple(chunk._replace(compress=self.by.spec, state=state) for chunk in chunks))
        return command._replace(chunks=tasks)

    def state(self) -> dict[str, Any]:
        """See :class:`~anyk.protocol.Strategy`."""
        tasks = [[task, *at] for task, at in self._tasks.items()]
        return {"of": self.of.state(), "last": list(self._last.items()), "tasks": tasks}

    def restore(self, state: dict[str, Any]) -> None:
        """See :class:`~anyk.protocol.Strategy`."""
        self.of.restore(state["of"])
        self._last = dict(state["last"])
        self._tasks = {task: (worker, before) for task, worker, before in state["tasks"]}
