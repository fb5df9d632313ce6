"""Shares of the data that differ in size: those in a code's settings, and mini-batches in proportion to them."""

from __future__ import annotations

from anyk.base.errors import BadInput
from anyk.codes import Code, RepetitionCode

_OFF = 0.1  # largest relative deviation of the samples of a step


def shares_of(code: Code) -> tuple[int, ...]:
    """Return the shares in a code's settings; none if its blocks are as even as possible."""
    return code.shares if isinstance(code, RepetitionCode) else ()


def batch_of(batch: int, workers: int, partitions: int) -> int:
    """Return the samples per partition for which a step has about ``batch`` samples per worker.

    >>> batch_of(32, workers=4, partitions=6)
    21
    """
    if not batch:
        return 0
    batch_each = max(1, round(batch * workers / partitions))
    if abs(batch_each * partitions - batch * workers) > _OFF * batch * workers:
        raise BadInput(
            f"batch={batch} is {batch * workers} samples a step, which {partitions} shares cannot give to within 10 %; "
            "give smaller shares or a larger batch"
        )
    return batch_each
