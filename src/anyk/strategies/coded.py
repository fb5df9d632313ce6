"""What all rounds of a code have in common: they are for its workers, partitions and holdings."""

from __future__ import annotations

from collections.abc import Sequence

from anyk.codes import Code
from anyk.protocol import strategy_text


class OfCode:
    """A strategy that runs a code on one model."""

    slots: tuple[str, ...] = ("model",)
    code: Code

    def __repr__(self) -> str:
        return strategy_text(self)  # type: ignore[arg-type]

    @property
    def workers(self) -> int:
        """n."""
        return self.code.workers

    @property
    def partitions(self) -> int:
        """m."""
        return self.code.partitions

    @property
    def holdings(self) -> Sequence[tuple[int, ...]]:
        """The partitions of each worker."""
        return self.code.holdings

    def _spec(self, parts: Sequence[str]) -> str:
        """The code's spec with keys of the strategy's own."""
        code = self.code.spec
        return code + ((":" if ":" not in code else ",") + ",".join(parts) if parts else "")
