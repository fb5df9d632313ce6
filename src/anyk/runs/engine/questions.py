"""Questions of a strategy to the driver itself: losses, noise and drift, computed or answered from a log."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from anyk.base.arrays import Vector
from anyk.clusters.contract import Cluster
from anyk.clusters.vector_parts import parts_of
from anyk.optimizers import Optimizer
from anyk.problems.base import Problem
from anyk.problems.many import problem_of
from anyk.protocol import DriftMeasured, EvaluateLoss, LossEvaluated, MeasureDrift, MeasureNoise, NoiseMeasured
from anyk.runs.engine.ledger import Ledger
from anyk.runs.engine.versions import Versions
from anyk.runs.log.schema import KINDS

Answer = LossEvaluated | NoiseMeasured | DriftMeasured


@dataclass(eq=False)
class Questions:
    """Answers in the order of the questions, until the driver takes them.

    Without a problem, losses and noise are taken from ``_earlier_answers``, in their order. On a recorded cluster no
    question is answered here, because the log contains the answers. ``_evaluate`` returns the objective of a slot; by
    default the problem does.
    """

    _cluster: Cluster
    _versions: Versions
    _ledger: Ledger
    _problem: Problem | None
    _optimizer: Optimizer | None
    _evaluate: Callable[[str, Vector], float] | None
    _earlier_answers: Sequence[LossEvaluated | NoiseMeasured]
    answers: deque[Answer] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self._losses = deque(event for event in self._earlier_answers if type(event) is LossEvaluated)
        self._noises = deque(event for event in self._earlier_answers if type(event) is NoiseMeasured)

    def loss(self, command: EvaluateLoss) -> None:
        """Answer with the objective at the newest version, or NaN if it is unknown."""
        if self._cluster.recorded:
            return
        time, slot = self._cluster.now(), command.slot
        if self._problem is None:
            answer = self._losses.popleft()._replace(time=time) if self._losses else None
            self.answers.append(answer or LossEvaluated(time, "", 0, float("nan")))
            return
        with np.errstate(over="ignore", invalid="ignore"):
            w = self._versions.model(slot)
            loss = problem_of(self._problem, slot).loss(w) if self._evaluate is None else self._evaluate(slot, w)
        version = self._versions[slot]
        number = version if command.number is None else command.number
        rate = 1.0 if self._optimizer is None else self._optimizer.rate.at(number)
        self.answers.append(LossEvaluated(self._cluster.now(), slot, version, loss, rate))

    def noise(self, command: MeasureNoise) -> None:
        """Answer with the spread of gradients, which separates their noise from their mean."""
        if self._cluster.recorded:
            return
        if self._problem is None:
            if self._noises:
                self.answers.append(self._noises.popleft()._replace(time=self._cluster.now()))
            return
        messages = command.messages
        covered = [self._ledger.covered([message]) for message in messages]
        squares, agreed = 0.0, 0.0
        for span in parts_of(self._problem.dimension):
            total = np.zeros(len(range(span.start, span.stop)))
            for message, samples in zip(messages, covered, strict=True):
                mean = self._cluster.store.combine([message], [1.0], span)
                mean /= samples
                squares += float(mean @ mean)
                total += mean
            total /= len(messages)
            agreed += float(total @ total)
        self.answers.append(NoiseMeasured(self._cluster.now(), len(messages), squares / len(messages), agreed))

    def drift(self, command: MeasureDrift) -> None:
        """Answer with the squared distance of the model from the version of a task."""
        if self._cluster.recorded:
            return
        value = 0.0
        batch = self._ledger.batch(command.task)
        if self._problem is not None and batch is not None:
            slot = batch.chunks[command.task - batch.first][command.chunk].slot
            then, now = self._cluster.store.model(slot, batch.versions[slot]), self._versions.model(slot)
            for span in parts_of(now.size):
                moved = np.subtract(now[span], then[span], dtype=np.float64)
                value += float(moved @ moved)
        self.answers.append(DriftMeasured(self._cluster.now(), *command, value))

    def state(self) -> list[Any]:
        """Return the answers that the strategy has not received, as plain data."""
        return [[type(answer).__name__, *answer] for answer in self.answers]

    def restore(self, state: list[Any]) -> None:
        """Continue from :meth:`state`."""
        self.answers.extend(KINDS[name](*plain) for name, *plain in state)
