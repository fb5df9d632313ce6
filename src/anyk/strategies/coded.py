"""What all rounds of a code have in common: they are for its workers, partitions and assignment."""

from __future__ import annotations

from collections.abc import Sequence

from anyk.codes import Code
from anyk.protocol import Layout, strategy_text


class OfCode:
    """A strategy that runs a code on one model."""

    slots: tuple[str, ...] = ("model",)
    auxiliary: tuple[str, ...] = ()
    inner: str | None = None
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
    def assignment(self) -> Sequence[tuple[int, ...]]:
        """The partitions of each worker."""
        return self.code.assignment

    @property
    def covers(self) -> Sequence[tuple[int, ...]] | None:
        """The partitions that each worker's message covers, if not those it holds."""
        return None

    @property
    def layout(self) -> Layout:
        """See :class:`~anyk.protocol.Strategy`."""
        return Layout(
            self.workers, self.partitions, self.assignment, self.slots, self.auxiliary, self.covers,
            blocks=self.code.blocks, inner=self.inner,
        )  # fmt: skip

    def _spec(self, parts: Sequence[str]) -> str:
        """The code's spec with keys of the strategy's own."""
        code = self.code.spec
        return code + ((":" if ":" not in code else ",") + ",".join(parts) if parts else "")
