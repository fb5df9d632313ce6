"""Compressed messages for any strategy that permits them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from anyk.base.checks import typed
from anyk.base.errors import BadInput
from anyk.base.plain import ByName, part
from anyk.base.specs import bracketed, show_spec
from anyk.compression import Compressor, compressor
from anyk.protocol import (
    Cancel,
    Combine,
    Command,
    Commands,
    Dispatch,
    Event,
    Failed,
    Fleet,
    Layout,
    Lost,
    Mix,
    Reply,
    Strategy,
    StrategyFacts,
)


@dataclass(slots=True)
class CompressedState:
    """The state of the strategy inside, and the tasks from which workers' error feedback continues."""

    of: Any = part()
    last: dict[int, int] = field(
        default_factory=dict
    )  # worker -> its last task whose message arrived and was not dropped
    tasks: dict[int, tuple[int, int]] = field(
        default_factory=dict
    )  # task -> worker, and the task from which it continues


@typed
@dataclass(frozen=True, repr=False)
class Compressed(Strategy):
    """A strategy whose messages are compressed by a compressor (``anyk list compressors`` lists them).

    It takes the decisions of the strategy inside. Local work is compressed as the change from its initial version. With
    error feedback a worker adds to each message the part omitted from the last one. If a message arrived and was
    dropped, the next task tells the worker to continue from the part omitted from the message before. Raises
    :class:`~anyk.BadInput` if the two do not compose:

    - linear compressors (``random-k``) compose exactly with all the following, including every code, if messages cover
      the same coordinates (for sparse data, whose messages do not, in expectation);
    - unbiased compressors (``qsgd``, ``half``) compose in expectation; decoding weights multiply the noise;
    - contractive compressors (``top-k``, ``sign``) compose if a message is from a single worker: rounds of
      ``uncoded``, the K family, ``pasgd`` and the like, ``fedbuff``.

    Averaging among neighbours, trees, rounds that collect messages on request and codes against Byzantine workers do
    not compose.

    >>> import anyk
    >>> anyk.strategy("compressed:of=(k-sync:k=3),by=(top-k:share=0.1)", workers=8).spec
    'compressed:of=(uncoded:wait=3),by=(top-k:share=0.1)'
    """

    State = CompressedState

    of: Strategy
    by: str

    def __post_init__(self) -> None:
        check = self.of.facts.check_compressor
        if check is None:
            raise BadInput(
                f"'{self.of.spec}' does not compose with compressed messages; a custom strategy permits them by "
                "check_compressor in its facts"
            )
        check(self.compressor)

    @cached_property
    def compressor(self) -> Compressor:
        """Compressor of the messages."""
        return compressor(self.by)

    @cached_property
    def spec(self) -> str:
        return show_spec("compressed", {"of": bracketed(self.of.spec), "by": bracketed(self.compressor.spec)})

    @cached_property
    def layout(self) -> Layout:
        layout = self.of.layout
        return replace(layout, stateful=layout.stateful or self.compressor.feedback)

    @property
    def facts(self) -> StrategyFacts:
        return StrategyFacts(exact=self.of.facts.exact, pace=self.of.facts.pace)

    def planned(self, steps: int | None) -> Strategy:
        return Compressed(self.of.planned(steps), self.by)

    def start(self, fleet: Fleet) -> tuple[CompressedState, Commands]:
        s = CompressedState()
        s.of, commands = self.of.start(fleet)
        return s, self._compressed(s, commands)

    def rebuild(self, state: CompressedState) -> None:
        self.of.rebuild(state.of)

    def on(self, state: CompressedState, event: Event) -> Commands:
        s = state
        match event:
            case Lost(worker=worker):
                s.last.pop(worker, None)  # the part that it had omitted is lost
                s.tasks = {task: work for task, work in s.tasks.items() if work[0] != worker}
            case Failed(task=task):
                s.tasks.pop(task, None)
            case Reply(worker=worker, task=task) if task in s.tasks and task > s.last.get(worker, -1):
                s.last[worker] = task
        return self._compressed(s, self.of.on(s.of, event))

    def _compressed(self, s: CompressedState, commands: Commands) -> Commands:
        changed: list[Command] = []
        for command in commands:
            match command:
                case Dispatch():
                    command = self._dispatched(s, command)
                case Combine(messages=messages) | Mix(messages=messages):
                    for task, _ in messages:
                        s.tasks.pop(task, None)
                case Cancel(tasks=tasks) if s.tasks:
                    for task in tasks:
                        worker, before = s.tasks.pop(task, (-1, -1))
                        if s.last.get(worker) == task:  # it had arrived and is not used
                            s.last[worker] = before
            changed.append(command)
        return changed

    def _dispatched(self, s: CompressedState, command: Dispatch) -> Dispatch:
        tasks, changes = [], ByName(compress=self.compressor.spec)
        for task, (worker, chunks) in enumerate(zip(command.workers, command.chunks, strict=True), command.task):
            if self.compressor.feedback:
                changes["state"] = s.last.get(worker, -1)
                s.tasks[task] = worker, changes["state"]
            tasks.append(tuple(chunk._replace(**changes) for chunk in chunks))
        return command._replace(chunks=tasks)
