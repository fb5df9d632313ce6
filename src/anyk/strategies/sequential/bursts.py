"""The settings of schemes that are made for stragglers in bursts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from anyk.errors import BadInput
from anyk.specs import show
from anyk.strategies.sequential.rounds import DEFAULTS, Late, SequentialRounds


@dataclass(frozen=True, repr=False, kw_only=True)
class ForBursts(SequentialRounds):
    """Schemes for bursty stragglers: in any W rounds at most lambda workers straggle, each for at most B in a row."""

    B: int
    W: int
    lambda_: int
    late: Late = "drop"  # a setting here, and fixed elsewhere

    def __post_init__(self) -> None:
        B, W = self.B, self.W
        if W < 2 or not 1 <= B <= W - 1:
            raise BadInput(f"B of '{self.name}' must be 1 to W - 1, and W at least 2, got B = {B}, W = {W}")
        if not 0 <= self.lambda_ <= self.workers:
            raise BadInput(f"lambda of '{self.name}' must be 0 to {self.workers} workers, got {self.lambda_}")
        super().__post_init__()

    @cached_property
    def spec(self) -> str:
        values: dict[str, Any] = {"B": self.B, "W": self.W, "lambda": self.lambda_, "end": self.end}
        values |= {"mu": self.mu, "wait": self.waits, "late": self.late, "inner": self.inner}
        values |= {"models": self.trained, "jobs": self.jobs, "batch": self.batch}
        return show(self.name, values, DEFAULTS | {"models": self.T + 1, "wait": self.usual_wait})
