"""The settings of rounds as seen by each other, to refuse combinations that do not work."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from anyk.codes import Code, Policy
from anyk.protocol import CancelMode
from anyk.strategies.wait import Wait


class ChangesTerms(Protocol):
    """The rule by which the code changes, as the other settings see it."""

    @property
    def name(self) -> str:
        """The setting that asks for the rule, in messages."""

    @property
    def measures(self) -> bool:
        """Whether shares of the data follow the measured speed of workers."""


class RoundTerms(Protocol):
    """The settings of rounds as each of them sees the others."""

    @property
    def spec(self) -> str:
        """The rounds as text."""

    @property
    def code(self) -> Code:
        """The code as it was given."""

    @property
    def first_code(self) -> Code:
        """The code at the start of a run."""

    @property
    def policy(self) -> Policy:
        """Further duties of the code's rounds."""

    @property
    def batch(self) -> int:
        """Samples in a mini-batch; 0: all."""

    @property
    def cancel(self) -> CancelMode:
        """The fate of tasks under way when a round ends."""

    @property
    def rule(self) -> Wait:
        """The rule that ends a round before the sum is exact."""

    @property
    def enough(self) -> Wait:
        """The rule that ends a round."""

    @property
    def wait_shown(self) -> str | None:
        """The rule as text; None if rounds end when the sum is exact."""

    @property
    def changes(self) -> ChangesTerms | None:
        """The rule by which the code changes; None if it is the code's own."""

    @property
    def keys_of_changes(self) -> Mapping[str, Any]:
        """The keys of the spec for this rule."""

    @property
    def models(self) -> int:
        """Number of models that are trained simultaneously."""

    @property
    def own_decoder(self) -> bool:
        """Whether replies are decoded in the code's own way."""

    @property
    def spanning(self) -> int:
        """Number of replies from which all others follow; 0 if replicas show it or none do."""

    @property
    def together(self) -> bool:
        """Whether the partitions of a block are computed together, as blocks differ in size."""
