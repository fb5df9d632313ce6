"""The state of coded rounds, and the view of it that wait rules have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from anyk.plain import derived, part
from anyk.strategies.crew import Crew


@dataclass(slots=True)
class RoundState:
    """The crew of a run, and the progress of the present round."""

    crew: Crew
    now: float
    before: int = 0  # rounds that an earlier run took
    version: int = 0
    first: int = 0  # the round's first task
    began: float = 0.0
    open: dict[int, int] = field(default_factory=dict)  # expected message (task x messages + chunk) -> worker
    measuring: dict[int, int] = field(default_factory=dict)  # task whose reply is being projected -> worker
    values: dict[int, float] = field(default_factory=dict)  # the projection of each worker's reply
    # reply (worker x messages + message) -> task, in order of arrival
    task_of: dict[int, int] = field(default_factory=dict)
    arrivals: list[float] = field(default_factory=list)  # seconds to each reply of this round
    recent: tuple[float, ...] = ()  # the same for the last rounds, if the wait rule uses them
    checking: bool = False  # whether this round waits until its replies can be compared
    noted: str = ""  # the last note in the log about an adapting deadline
    snapshot: dict[int, int] = field(default_factory=dict)  # group -> task whose message of the snapshot is stored
    missed: list[int] = field(default_factory=list)  # number of steps taken without each worker's reply
    learned: list[int] = field(default_factory=list)  # the same when the code was last relearned
    work: Any = part()  # state of local steps
    adapt: Any = part()  # state of the rule that adapts them
    balance: Any = part()  # state of the shares that follow the speed of workers
    elastic: Any = part()  # state of the code that follows the fleet
    expected: int = derived()  # replies of all workers that have partitions
    count: int | None = derived()  # number of replies that end a round, None if the rule is not a number
    code: Any = derived()
    tasks: Any = derived()
    row_sums: Any = derived()
    decoder: Any = derived()


class Seen:
    """The view of a round that a wait rule gets."""

    __slots__ = ("_messages", "_state")

    def __init__(self, state: Any, messages: int = 1) -> None:
        self._state, self._messages = state, messages

    @property
    def replies(self) -> int:
        """Number of usable replies."""
        return len(self._state.task_of)

    @property
    def expected(self) -> int:
        """Number of replies of all workers that take part."""
        return int(self._state.expected)

    @property
    def decodable(self) -> bool:
        """Whether the replies give the exact sum."""
        return bool(self._state.decoder.decodable)

    @property
    def residual(self) -> float:
        """Residual if the step were taken now, before scaling."""
        return float(self._state.decoder.residual)

    @property
    def elapsed(self) -> float:
        """Seconds since the round began."""
        return float(self._state.now - self._state.began)

    @property
    def replied(self) -> tuple[int, ...]:
        """Workers that replied, in order of arrival."""
        return tuple(reply // self._messages for reply in self._state.task_of)

    @property
    def recent(self) -> Sequence[float]:
        """Seconds from a round's start to each reply, of the last rounds."""
        recent: tuple[float, ...] = self._state.recent
        return recent
