"""The common part of rounds whose workers keep what they computed until they are asked for a message."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from anyk.codes.progress_codes import Ask
from anyk.protocol import (
    Cancel,
    CancelMode,
    Combine,
    Command,
    Commands,
    Dispatch,
    Event,
    Failed,
    Fleet,
    Progress,
    Reply,
    RequestMessage,
    Task,
)
from anyk.strategies.crew import RETRIES, Crew, CrewStrategy
from anyk.strategies.rounds.state import BasicState


@dataclass(slots=True)
class RequestState(BasicState):
    """The progress of the present round by worker; a worker has one task."""

    done: dict[int, int] = field(default_factory=dict)  # number of partitions that the worker has finished
    asked: dict[int, float] = field(default_factory=dict)  # weight of each worker's message; empty until requested
    got: dict[int, int] = field(default_factory=dict)  # workers whose message has arrived, and the task that gave it


R = TypeVar("R", bound=RequestState)


class RequestRounds(CrewStrategy[R]):
    """Rounds in which workers report progress, and some are then asked for one message each.

    Events of a task that is not its worker's newest are ignored.
    """

    cancel: CancelMode = "preempt"

    @abstractmethod
    def _task(self, s: R, worker: int) -> Task:
        """Return the task of a worker in this round."""

    def _set_alarms(self, s: R) -> list[Command]:
        """Return commands to issue after a round has been dispatched; by default none."""
        return []

    @abstractmethod
    def _combine(self, s: R) -> Combine:
        """Return the step made of the requested messages."""

    def start(self, fleet: Fleet) -> tuple[R, Commands]:
        s = self.State(Crew.of(fleet), fleet.time, before=fleet.rounds)
        return s, self._begin(s)

    def on(self, state: R, event: Event) -> Commands:
        state.now = event.time
        if isinstance(event, (Progress, Reply, Failed)) and state.task_of.get(event.worker) != event.task:
            return ()
        return super().on(state, event)

    def on_reply(self, state: R, event: Reply) -> Commands:
        if event.worker not in state.asked:
            return ()
        state.got[event.worker] = event.task
        return self._step_if_complete(state)

    def _begin(self, s: R) -> list[Command]:
        """Start a round with all workers that can compute, or end the run if there are none and none can join."""
        s.first, s.began = s.crew.next, s.now
        s.task_of, s.done, s.asked, s.got = {}, {}, {}, {}
        self.rebuild(s)
        commands = self._dispatch(s, sorted(s.crew.present))
        if not commands and s.crew.complete:
            return self._stop_without_workers(s)
        return [*commands, *self._set_alarms(s)]

    def _stop_without_workers(self, s: R) -> list[Command]:
        """End the run if no worker can give a usable message."""
        return self.cannot_step(s, f"no usable messages in {RETRIES + 1} attempts")

    def _restart(self, s: R) -> list[Command]:
        """Cancel the tasks of this round and start another."""
        return [Cancel(range(s.first, s.crew.next), self.cancel), *self._begin(s)]

    def _dispatch(self, s: R, workers: Iterable[int]) -> list[Command]:
        """Return the command that gives tasks to the workers that can compute; none without any."""
        workers = tuple(filter(s.crew.able, workers))
        if not workers:
            return []
        first = s.crew.number(len(workers))
        s.task_of.update(zip(workers, range(first, s.crew.next), strict=True))
        return [Dispatch(first, workers, [self._task(s, worker) for worker in workers])]

    def _request(self, s: R, asks: Sequence[Ask]) -> list[Command]:
        """Request messages of some workers, and cancel the tasks of the others."""
        s.asked = {ask.worker: ask.weight for ask in asks}
        others = tuple(task for worker, task in s.task_of.items() if worker not in s.asked)
        commands: list[Command] = [Cancel(others, self.cancel)] if others else []
        for ask in asks:
            commands.append(RequestMessage(ask.worker, s.task_of[ask.worker], 0, ask.partitions, ask.coefficients))
        return commands

    def _step_if_complete(self, s: R) -> Commands:
        """Take the step if all requested messages have arrived."""
        return self._step(s) if len(s.got) == len(s.asked) else ()

    def _step(self, s: R) -> list[Command]:
        """Take the step and start the next round."""
        combine = self._combine(s)
        s.version += 1
        s.crew.failures = {}
        return [combine, *self._restart(s)]
