"""Settings of schemes for stragglers in bursts."""

from __future__ import annotations

from dataclasses import dataclass

from anyk.checks import check_range
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
        check_range(f"B of '{self.name}'", self.B, 1, self.W - 1, f" (W - 1, W = {self.W})")
        check_range(f"lambda of '{self.name}'", self.lambda_, 0, self.workers, " workers")
        super().__post_init__()

    @property
    def _past_rounds(self) -> int:
        return self.W
