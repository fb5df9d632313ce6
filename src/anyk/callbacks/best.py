"""The best evaluation of a run so far, by its loss or its metric."""

from __future__ import annotations

from typing import Literal

from anyk.checks import typed
from anyk.errors import BadInput
from anyk.runs.callbacks import EvaluationInfo, RunInfo

Quantity = Literal["loss", "metric"]


@typed
class Best:
    """The best value so far of one model; ``of``: the loss, or the metric, which is minimised or maximised."""

    def __init__(self, of: Quantity, min_delta: float = 0.0) -> None:
        if not 0.0 <= min_delta < float("inf"):
            raise BadInput(f"min_delta must be a finite number of at least 0, got {min_delta:g}")
        self.of, self.min_delta = of, min_delta
        self.value: float | None = None
        self.step = -1
        self._sign, self._who = 1.0, ""

    def begin(self, info: RunInfo, who: str) -> None:
        """Prepare for a run; raise :class:`~anyk.errors.BadInput` if it evaluates nothing."""
        if info.config.evaluate == "none":
            raise BadInput(f"{who} needs evaluation, which evaluate=None switches off; omit one of them")
        self._who = who
        if info.evaluated is None or (self.of == "loss" and info.evaluated == "held_out"):
            raise self._missing()
        higher = self.of == "metric" and info.config.better == "higher"
        self._sign = -1.0 if higher else 1.0

    def _missing(self) -> BadInput:
        way = "give held-out data"
        if self.of == "loss":
            way = (
                "ask for that on training data, evaluate='on=train' (on the command line: --evaluate on=train) or have "
                "it go by the metric, of='metric'"
            )
        return BadInput(f"{self._who} goes by the {self.of}, which is not evaluated; {way}")

    def improved(self, info: EvaluationInfo) -> bool | None:
        """Return whether an evaluation is better than all before by at least ``min_delta``; None if unknown.

        It is unknown for versions older than one evaluated before, and without a loss. Raises
        :class:`~anyk.errors.BadInput` without a metric.
        """
        value = info.loss if self.of == "loss" else info.metric
        if value is None:
            if self.of == "loss":
                return None
            raise self._missing()
        if info.step <= self.step:
            return None
        self.step = info.step
        before = self.value
        if value != value or value == before:
            return False
        if before is not None and self._sign * value > self._sign * before - self.min_delta:
            return False
        self.value = value
        return True
