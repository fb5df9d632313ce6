"""Refuses commands of a strategy that would train on a wrong sum without a word, or let a run wait for ever."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NoReturn, get_args

import numpy as np

from anyk.base.errors import RunFailed
from anyk.protocol import Cancel, CancelMode, Combine, Dispatch, Layout, Mix, SetAlarm, Task
from anyk.runs.engine.dispatches import ARRIVED, KEPT
from anyk.runs.engine.ledger import Ledger

_MODES = get_args(CancelMode)


@dataclass(eq=False)
class CommandChecks:
    """What a run checks of each command; each method raises :class:`~anyk.RunFailed` with the rule that was broken.

    :func:`anyk.testing.check_strategy` checks more, with the shortest schedule on which a rule is broken.
    """

    _spec: str
    _layout: Layout
    _ledger: Ledger
    _seen: Sequence[Task] = field(default=(), init=False)  # tasks that were checked last: rounds repeat them

    def dispatch(self, command: Dispatch) -> None:
        """Check that every task's chunks name each partition once, with its coefficients."""
        if len(command.workers) != len(command.chunks):
            self._refuse(f"gave {len(command.workers)} workers {len(command.chunks)} tasks")
        if command.chunks is self._seen:
            return
        for task, chunks in enumerate(command.chunks, command.task):
            for chunk in chunks:
                count = len(chunk.partitions)
                if len(chunk.coefficients) != count * self._layout.blocks:
                    self._refuse(f"gave task {task} {len(chunk.coefficients)} coefficients for {count} partitions")
                if len(set(chunk.partitions)) != count:
                    self._refuse(f"gave task {task} a partition twice")
                if not all(map(math.isfinite, chunk.coefficients)):
                    self._refuse(f"gave task {task} a coefficient that is not finite")
        self._seen = command.chunks if isinstance(command.chunks, tuple) else ()  # a list may change

    def step(self, command: Combine | Mix) -> None:
        """Check that a step uses messages that have arrived, each once and with a weight."""
        messages = command.messages
        if command.slot not in self._layout.slots:
            self._refuse(f"stepped '{command.slot}', which is not one of its models")
        try:
            weights = np.asarray(command.weights, dtype=np.float64)
        except (TypeError, ValueError):
            self._refuse(f"gave messages the weights {command.weights!r}, which are not numbers")
        if weights.size != len(messages) * self._layout.blocks:
            self._refuse(f"gave {len(messages)} messages {weights.size} weights")
        if not np.isfinite(weights).all():
            self._refuse("gave a message a weight that is not finite")
        if not messages and isinstance(command, Combine):
            self._refuse("stepped without a message")
        used = set()
        for task, index in messages:
            batch = self._ledger.batch(task)
            if (task, index) in used:
                fault = "twice in a step"
            elif batch is None:
                fault = "which is not, or no longer, under way"
            elif not 0 <= index < batch.width:
                fault = "which the task does not have"
            elif batch.status[(task - batch.first) * batch.width + index] not in (ARRIVED, KEPT):
                fault = "which has not arrived"
            else:
                used.add((task, index))
                continue
            self._refuse(f"used the message of task {task}, chunk {index}, {fault}")

    def cancel(self, command: Cancel) -> None:
        """Check that a cancellation says how."""
        if command.mode not in _MODES:
            self._refuse(f"cancelled tasks by {command.mode!r}, which is neither {' nor '.join(map(repr, _MODES))}")

    def alarm(self, command: SetAlarm) -> None:
        """Check that an alarm has a time at which it can ring."""
        if command.time is not None and math.isnan(command.time):
            self._refuse(f"set the alarm '{command.name}' to a time that is not a number")

    def _refuse(self, what: str) -> NoReturn:
        raise RunFailed(f"'{self._spec}' {what} (anyk strategies check '{self._spec}' shows when)")
