"""Settings of schemes for stragglers in bursts."""

from __future__ import annotations

from dataclasses import dataclass

from anyk.errors import BadInput
from anyk.strategies.sequential.sequential_rounds import Late, SequentialRounds


@dataclass(frozen=True, repr=False, kw_only=True)
class ForBursts(SequentialRounds):
    """Schemes for bursty stragglers: in any W rounds at most lambda workers straggle, each for at most B in a row."""

    _own_settings = ("B", "W", "lambda_"), ("late",)

    B: int
    W: int
    lambda_: int
    late: Late = "drop"  # a setting of these schemes only

    def __post_init__(self) -> None:
        B, W = self.B, self.W
        if W < 2 or not 1 <= B <= W - 1:
            raise BadInput(f"B of '{self.name}' must be 1 to W - 1, and W at least 2, got B = {B}, W = {W}")
        if not 0 <= self.lambda_ <= self.workers:
            raise BadInput(f"lambda of '{self.name}' must be 0 to {self.workers} workers, got {self.lambda_}")
        super().__post_init__()

    @property
    def _past_rounds(self) -> int:
        return self.W
