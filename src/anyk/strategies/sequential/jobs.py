"""The state of a run under a sequential code."""

from __future__ import annotations

from dataclasses import dataclass, field

from anyk.strategies.crew import Crew

Place = tuple[int, int]  # task and chunk of a message
Work = list[tuple[int, int]]  # (job, piece) pairs


@dataclass(slots=True)
class SequentialState:
    """The rounds of a run: the assignment of pieces of jobs to workers, and the stragglers."""

    crew: Crew
    now: float
    before: int = 0  # rounds that an earlier run took
    round: int = 0
    waits: int = 0  # number of rounds whose late workers at the cut-off did not fit
    durations: list[float] = field(default_factory=list)  # seconds of each round, if the number of jobs is limited
    began: float = 0.0
    cut: float = float("inf")  # seconds from the start of the round to its cut-off, once known
    task: dict[int, int] = field(default_factory=dict)  # worker -> its newest task, of this round or one that continues
    worker: dict[int, int] = field(default_factory=dict)  # task -> worker
    work: dict[int, Work] = field(default_factory=dict)  # task -> (job, piece) of each chunk, until counted
    missing: dict[int, set[int]] = field(default_factory=dict)  # task under way -> chunks that have not arrived
    behind: set[int] = field(default_factory=set)  # tasks under way of earlier rounds
    done: list[int] = field(default_factory=list)  # workers that have completed this round, in order
    waiting: bool = False  # whether the cut-off of this round has passed without fitting
    late: list[list[int]] = field(default_factory=list)  # stragglers of the last rounds, newest last
    reusable: dict[int, list[int]] = field(
        default_factory=dict
    )  # round -> completed tasks whose messages may still be used
    combined: int = 0  # number of jobs done; they are done in order
    assigned: list[Work] = field(default_factory=list)  # (job, piece) pairs of this round, by worker
