"""The state of a run of the K family, and the settings that a rule of growth may ask about."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from anyk.base.plain import part
from anyk.protocol import CancelMode
from anyk.strategies.crew import Crew

Kind = Literal["async", "k-sync", "k-async", "k-batch-async", "k-batch-sync"]
Base = Literal["k-sync", "k-async", "k-batch-sync", "k-batch-async"]  # kinds with a k that may grow
Stale = Literal["constant", "inverse", "sqrt", "distance"]


@dataclass(slots=True)
class KState:
    """A run of the K family: gradients under way, and gradients that wait for the next step."""

    crew: Crew
    k: int
    now: float
    steps_taken: list[int]  # local steps of each worker so far
    version: int = 0
    under_way: dict[int, tuple[int, int]] = field(default_factory=dict)  # task -> worker, version
    repeats: dict[int, tuple[int, int]] = field(
        default_factory=dict
    )  # worker -> version, number of its tasks on that version
    weights: dict[int, float] = field(
        default_factory=dict
    )  # task in the buffer -> weight, if weights depend on the drift of the model
    buffer: list[tuple[int, int, int]] = field(
        default_factory=list
    )  # worker, task and version of gradients that wait for the step
    growth: Any = part()


class FamilyTerms(Protocol):
    """The settings of one of the K family, as a rule by which k grows sees them."""

    @property
    def workers(self) -> int:
        """Number of workers, n."""

    @property
    def kind(self) -> Kind:
        """Which of the family."""

    @property
    def k(self) -> int:
        """The number of gradients in the first steps."""

    @property
    def batches(self) -> bool:
        """Whether a worker may contribute several gradients to a step."""

    @property
    def lr_scale(self) -> float:
        """Factor of the learning rate."""

    @property
    def batch(self) -> int:
        """Samples in a mini-batch; 0: all."""

    @property
    def cancel(self) -> CancelMode:
        """The fate of tasks under way at a step of the synchronous kinds."""
