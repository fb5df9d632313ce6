"""The states of rounds: a common part, and the state of coded rounds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from anyk.base.plain import derived, part
from anyk.strategies.crew import Crew


@dataclass(slots=True)
class BasicState:
    """The crew of a run, and the beginning of the present round."""

    crew: Crew
    now: float
    before: int = 0  # rounds that an earlier run took
    version: int = 0
    first: int = 0  # the round's first task
    began: float = 0.0
    task_of: dict[int, int] = field(default_factory=dict)  # the newest task of each reply, in order of arrival if coded


Ending: TypeAlias = Callable[["RoundState"], bool]  # whether a round is over


@dataclass(slots=True)
class RoundState(BasicState):
    """The progress of the present round; a reply is ``worker x messages + message``."""

    open: dict[int, int] = field(default_factory=dict)  # expected message (task x messages + chunk) -> worker
    measuring: dict[int, int] = field(default_factory=dict)  # task whose reply is being projected -> worker
    values: dict[int, float] = field(default_factory=dict)  # the projection of each worker's reply
    arrivals: dict[int, float] = field(default_factory=dict)  # seconds to each reply of this round, if a rule may ask
    recent: tuple[float, ...] = ()  # the same for the last rounds, if the wait rule uses them
    noted: str = ""  # the last note in the log about an adapting deadline
    work: Any = part()  # state of the work: gradients or local steps
    code_rule: Any = part()  # state of the rule by which the code changes
    expected: int = derived()  # replies of all workers that have partitions
    ending: Any = derived()  # the condition that ends this round in place of the wait rule; None: the wait rule
    count: int | None = derived()  # number of replies that end a round, None if the rule is not a number
    code: Any = derived()
    tasks: Any = derived()
    row_sums: Any = derived()
    decoder: Any = derived()
