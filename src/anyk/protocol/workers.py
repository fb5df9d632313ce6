"""The workers of a run: a fixed number, or a range within which they join and leave."""

from __future__ import annotations

from dataclasses import dataclass, replace

from anyk.base.checks import AtLeastOne, check_range, check_value
from anyk.base.errors import BadInput
from anyk.protocol.strategy import Layout

PARTITIONS = 4  # of the data for each worker of the largest fleet, if none are given


@dataclass(frozen=True, kw_only=True)
class Workers:
    """The workers of a run: always ``most``, or at least ``fewest`` and at most ``most``, which join and leave.

    ``partitions`` of the data, whatever the number of workers. It is None, as ``fewest`` is, if the number of workers
    is fixed: then the strategy divides the data. As text, it is what ``--workers`` reads.

    >>> str(Workers.of((4, 16))), Workers.of((4, 16)).partitions, str(Workers.of(30))
    ('4..16', 64, '30')
    """

    most: AtLeastOne
    fewest: AtLeastOne | None = None
    partitions: AtLeastOne | None = None

    def __post_init__(self) -> None:
        if (self.fewest is None) != (self.partitions is None):
            raise BadInput(f"a range of workers has a smallest number and partitions, got {vars(self)}")
        if self.fewest is not None:
            check_range("the smallest number of workers", self.fewest, 1, self.most, ", the largest")

    @classmethod
    def of(cls, workers: int | tuple[int, int] | Workers | None, partitions: int | None = None) -> Workers:
        """Return the workers that a user gave: a number, or a range (fewest, most), and perhaps partitions.

        A number with ``partitions`` is a range as well: a worker that is lost may return, and the data stay in these.
        A range has 4 partitions for each worker by default. Raises :class:`~anyk.BadInput` for what cannot be.
        """
        if not isinstance(workers, Workers):
            given = check_value(workers, int | tuple[int, int], "workers")
            fewest, most = (None, given) if isinstance(given, int) else given
            usual = None if fewest is None else PARTITIONS * max(1, most)
            workers = cls(fewest=fewest, most=most, partitions=usual)
        if partitions is None:
            return workers
        check_value(partitions, AtLeastOne, "partitions")
        return replace(workers, fewest=workers.fewest or workers.most, partitions=partitions)

    @classmethod
    def of_layout(cls, layout: Layout) -> Workers:
        """Return the workers of a strategy."""
        if not layout.fewest:
            return cls(most=layout.workers)
        return cls(fewest=layout.fewest, most=layout.workers, partitions=layout.partitions)

    @classmethod
    def read(cls, text: str) -> Workers:
        """Return the workers that a text states, such as ``30`` or ``4..16``; raise BadInput for any other."""
        fewest, dots, most = text.partition("..")
        try:
            return cls.of((int(fewest), int(most)) if dots else int(text))
        except ValueError as error:
            if isinstance(error, BadInput):
                raise
            raise BadInput(f"workers should be a whole number, or a range such as 4..16, got '{text}'") from None

    def __str__(self) -> str:
        return str(self.most) if self.fewest is None else f"{self.fewest}..{self.most}"
