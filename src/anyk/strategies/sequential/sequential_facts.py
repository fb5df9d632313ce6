"""Facts of the sequential codes: the seconds of their rounds, and whether a run may be resumed."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from anyk.base.arrays import Floats
from anyk.base.errors import BadInput
from anyk.protocol import Pace, StrategyFacts
from anyk.strategies.sequential.replay import KnownRounds
from anyk.strategies.sequential.sequential_settings import SequentialSettings, SequentialState


def facts_of(rounds: SequentialSettings) -> StrategyFacts:
    """Return the facts of the rounds of a sequential code."""
    return StrategyFacts(
        exact=True,
        models=rounds.trained,
        shares_computed=(rounds.load,) * rounds.workers,
        vectors_sent=2.0 * rounds.workers,
        # a job starts after the step before it on its model, so staleness is 0
        pace=lambda delays: Pace(None, 0.0, "no closed form; simulate"),
        durations=partial(_durations, rounds),
        for_jobs=lambda jobs: replace(rounds, jobs=jobs),
        extra_rounds=rounds.T,
        round_seconds=lambda state: (state.durations, state.rounds_waited),
        check_further=partial(_check_further, rounds),
    )


def _durations(rounds: SequentialSettings, seconds: Floats, full_seconds: Floats) -> Floats | None:
    """Return the seconds of each round of a run without an end."""
    if rounds.waits != rounds.usual_wait or rounds.late != "drop":
        return None
    decided = rounds.replay_rounds(KnownRounds(seconds, rounds.mu))
    return np.array([round_seconds for round_seconds, _ in decided])


def _check_further(rounds: SequentialSettings, state: SequentialState, steps: int, begun: int) -> None:
    """Raise BadInput if the last rounds of a state, planned for ``steps`` steps, have started without new jobs."""
    if state.round >= (steps - begun) * rounds.trained:
        raise BadInput(
            f"the run was planned for {steps} steps of each model, and its last rounds started no further jobs; "
            "start a new one from it: anyk train --from FOLDER, or train_many(begin=…)"
        )
