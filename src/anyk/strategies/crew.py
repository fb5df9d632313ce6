"""The crew of a run: workers present and given up, unusable messages, and the number of the next task."""

from __future__ import annotations

from dataclasses import dataclass, field

from anyk.checks import typed
from anyk.protocol import Fleet, Lost

RETRIES = 2  # how often a worker whose message was unusable is asked again in a round


@typed
@dataclass(slots=True)
class Crew:
    """The workers of a run, as every strategy has to know them.

    ``size``: n. ``gone``: workers that have been given up. ``next``: the number of the next task. ``failures``: tasks
    of this round that gave an unusable message, by worker.

    >>> crew = Crew.of(Fleet(3, (0, 1)))
    >>> crew.join(2), crew.join(2), crew.number(2), crew.number(1)
    (True, False, 0, 2)
    """

    size: int
    present: set[int]
    gone: set[int] = field(default_factory=set)
    next: int = 0
    failures: dict[int, list[int]] = field(default_factory=dict)

    @classmethod
    def of(cls, fleet: Fleet) -> Crew:
        """The crew at the start of a run."""
        return cls(fleet.workers, set(fleet.present))

    def join(self, worker: int) -> bool:
        """Take a worker in; False if it is present already, which may be told twice."""
        if worker in self.present:
            return False
        self.present.add(worker)
        self.gone.discard(worker)
        return True

    def lose(self, event: Lost) -> None:
        """Strike a worker off, for good if it has been given up."""
        self.present.discard(event.worker)
        if event.gone:
            self.gone.add(event.worker)

    @property
    def hopeless(self) -> bool:
        """Whether every worker has been given up."""
        return len(self.gone) == self.size

    @property
    def complete(self) -> bool:
        """Whether everybody who can come is present."""
        return len(self.present) + len(self.gone) >= self.size

    def number(self, count: int) -> int:
        """The first of so many task numbers in a row."""
        first = self.next
        self.next = first + count
        return first

    def fail(self, worker: int, task: int) -> None:
        """Note an unusable message; two of one task are one failure."""
        tasks = self.failures.setdefault(worker, [])
        if task not in tasks:
            tasks.append(task)

    def able(self, worker: int) -> bool:
        """Whether a worker is present and has not failed too often in this round."""
        return worker in self.present and len(self.failures.get(worker, ())) <= RETRIES
