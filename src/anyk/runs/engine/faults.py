"""Unusable messages, after which a worker is given up or the run fails."""

from __future__ import annotations

import re
from typing import Any

from anyk.base.errors import BadInput, RunFailed
from anyk.protocol import Failed, Lost
from anyk.runs.engine.agreement import DIFFERS

_AT_FAULT = f"{BadInput.__name__}: "  # start of a reason that makes another attempt useless
_NOT_FINITE = "not finite"
_FAILURES = 10  # unusable messages in a row after which a worker is given up


class Faults:
    """Unusable messages by worker, in a row and since the last step; a usable one takes its worker off ``in_a_row``."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self.in_a_row: dict[int, tuple[int, str]] = {}  # by worker: their number, and the last reason
        self._since_step: dict[int, str] = {}  # by worker

    def judge(self, event: Failed, step: int) -> Failed | Lost:
        """Return the failure, or the loss of its worker after too many failures in a row.

        Raises when most workers fail in the same way, which no other worker can make up for, and when the problem
        itself is at fault.
        """
        worker, reason = event.worker, event.reason
        if reason.startswith(DIFFERS):
            self._since_step[worker] = reason
            return event  # it may be the other one that is wrong
        if reason.startswith(_AT_FAULT):
            raise RunFailed(f"step {step}: worker {worker}: {reason.removeprefix(_AT_FAULT)}")
        count = self.in_a_row.get(worker, (0, ""))[0] + 1
        self.in_a_row[worker] = count, reason
        self._since_step[worker] = reason
        kind = _kind(reason)
        alike = sum(_kind(other) == kind for _, other in self.in_a_row.values())
        most_fail = alike > self._workers // 2
        if most_fail and kind == _NOT_FINITE:
            raise _diverged(reason, step)
        if most_fail and alike > 1:  # the only worker of a run is asked again
            raise RunFailed(f"step {step}: most replies cannot be used; worker {worker}: {reason}")
        if count < _FAILURES:
            return event
        del self.in_a_row[worker]  # it has left, and says nothing about those that are still there
        return Lost(event.time, worker, f"{count} unusable messages in a row, the last: {reason}", gone=True)

    def stepped(self) -> None:
        """Forget the faults that a step makes obsolete."""
        self._since_step.clear()

    def since_step(self) -> str:
        """Return the faults since the last step, of at most three workers, to append to the reason of a stop."""
        return "".join([f"; worker {worker}: {reason}" for worker, reason in sorted(self._since_step.items())][:3])

    def state(self) -> list[Any]:
        """Return the faults in a row, as plain data."""
        return [[worker, *failing] for worker, failing in self.in_a_row.items()]

    def restore(self, state: list[Any]) -> None:
        """Continue from :meth:`state`."""
        self.in_a_row.clear()  # in place: the driver's loop keeps a reference to it
        self.in_a_row.update({worker: (count, reason) for worker, count, reason in state})


def _kind(fault: str) -> str:
    """Return the kind of a fault: the type of an error, without numbers that differ between workers."""
    return _NOT_FINITE if fault.startswith(_NOT_FINITE) else re.sub(r"\d+(, \d+)*", "…", fault.partition(":")[0])


def _diverged(reason: str, step: int) -> RunFailed:
    advice = "lower the learning rate"
    if not step:
        advice = "before the first step that is a matter of the data, the loss or the initial model, or else of steps "
        advice += "that workers take themselves: lower their learning rate"
    return RunFailed(f"diverged at step {step}: most replies are {reason}; {advice}")
