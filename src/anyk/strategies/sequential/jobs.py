"""The state of a run under a sequential code."""

from __future__ import annotations

from dataclasses import dataclass, field

from anyk.strategies.crew import Crew

Place = tuple[int, int]  # task and chunk of a message
Work = list[tuple[int, int]]  # (job, piece) pairs


@dataclass(slots=True)
class SequentialState:
    """A run's rounds: who works on which pieces of which jobs, and who straggled."""

    crew: Crew
    now: float
    before: int = 0  # rounds of the run that this one goes on from
    round: int = 0
    waits: int = 0  # rounds in which those late at the cut-off did not fit
    durations: list[float] = field(default_factory=list)  # seconds of each round, where the number of jobs is known
    began: float = 0.0
    cut: float = float("inf")  # seconds from a round's beginning to its cut-off, once that is known
    task: dict[int, int] = field(default_factory=dict)  # worker -> its newest task, of this round or one that goes on
    worker: dict[int, int] = field(default_factory=dict)  # and back
    work: dict[int, Work] = field(default_factory=dict)  # task -> (job, piece) of each of its chunks, until used up
    missing: dict[int, set[int]] = field(default_factory=dict)  # task under way -> chunks that have not come
    behind: set[int] = field(default_factory=set)  # those of them that are of earlier rounds
    done: list[int] = field(default_factory=list)  # workers that have completed this round, in order
    waiting: bool = False  # whether the cut-off of this round has passed without fitting
    late: list[list[int]] = field(default_factory=list)  # stragglers of the last rounds, newest last
    reusable: dict[int, list[int]] = field(default_factory=dict)  # round -> completed tasks that may still be used
    combined: int = 0  # jobs done, which is in order
    assigned: list[Work] = field(default_factory=list)  # (job, piece) pairs of this round, by worker
