"""The state of coded rounds, and the view of it that wait rules have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from anyk.plain import derived, part
from anyk.strategies.crew import Crew


@dataclass(slots=True)
class RoundState:
    """A run's rounds: the crew, and how far the present round has come."""

    crew: Crew
    now: float
    before: int = 0  # rounds of the run that this one goes on from
    version: int = 0
    first: int = 0  # the round's first task
    began: float = 0.0
    open: dict[int, int] = field(default_factory=dict)  # messages expected (task x messages + chunk), and of whom
    measuring: dict[int, int] = field(default_factory=dict)  # tasks whose reply is being projected, and whose they are
    values: dict[int, float] = field(default_factory=dict)  # the projection of each worker's reply
    task_of: dict[int, int] = field(default_factory=dict)  # reply (worker x messages + message) -> task, as they came
    arrivals: list[float] = field(default_factory=list)  # seconds to each reply of this round
    recent: tuple[float, ...] = ()  # the same of the last rounds, where the wait rule looks at them
    checking: bool = False  # whether replies of this round are waited for until they can be compared
    noted: str = ""  # the log's last note about an adapting deadline
    snapshot: dict[int, int] = field(default_factory=dict)  # group -> task whose message of the snapshot is stored
    missed: list[int] = field(default_factory=list)  # how often each worker was not in when a step was taken
    learned: list[int] = field(default_factory=list)  # the same when the code last learned of it
    work: Any = part()  # of local steps
    adapt: Any = part()  # of the rule that adapts them
    balance: Any = part()  # of shares that follow the speed of workers
    code: Any = derived()
    tasks: Any = derived()
    row_sums: Any = derived()
    decoder: Any = derived()


class Seen:
    """The view of a round that a wait rule gets."""

    __slots__ = ("_messages", "_state")

    def __init__(self, state: RoundState, messages: int) -> None:
        self._state, self._messages = state, messages

    @property
    def replies(self) -> int:
        """Usable replies so far."""
        return len(self._state.task_of)

    @property
    def decodable(self) -> bool:
        """Whether they give the exact sum."""
        return bool(self._state.decoder.decodable)

    @property
    def residual(self) -> float:
        """The residual if the step were taken now, before scaling."""
        return float(self._state.decoder.residual)

    @property
    def elapsed(self) -> float:
        """Seconds since the round began."""
        return self._state.now - self._state.began

    @property
    def replied(self) -> tuple[int, ...]:
        """The workers that replied, in order of arrival."""
        return tuple(reply // self._messages for reply in self._state.task_of)

    @property
    def recent(self) -> Sequence[float]:
        """Seconds from a round's start to each reply, of the last rounds."""
        return self._state.recent
