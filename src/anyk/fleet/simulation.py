"""What has no closed form: strategies run on the virtual clock, without computing anything."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from anyk.clusters import Simulated
from anyk.delays import Communication, DelayModel, Table
from anyk.errors import BadInput
from anyk.protocol import Strategy
from anyk.runs.engine.driver import Driver
from anyk.runs.engine.session import session
from anyk.runs.log.queries import works
from anyk.runs.log.runlog import RunLog
from anyk.strategies import strategy as build_strategy

_BATCHES = 20


def driven(strategy: Strategy, cluster: Simulated, steps: int, log: RunLog | None = None) -> tuple[list[float], Any]:
    """When each step is taken on a virtual clock, in seconds, with a 0 before the first, and the strategy's last state.

    Nothing is computed.
    """
    ends = [0.0]
    driver = Driver(strategy, cluster, log=log, steps=steps, on_step=lambda driver: ends.append(driver.time))
    with session(driver):
        driver.run()
    return ends, driver.running.state


@dataclass(frozen=True)
class Measured:
    """Mean ``seconds`` of an update on the virtual clock, and the standard ``error`` of that mean (batch means)."""

    seconds: float
    error: float


def simulated_pace(
    strategy: Strategy,
    delays: DelayModel,
    *,
    communication: Communication | None = None,
    updates: int = 2000,
    seed: int = 0,
) -> Measured:
    """Seconds of an update, by running a fresh ``strategy`` for so many updates on the virtual clock.

    Settings that adapt to the loss keep their initial values. Bytes are not known without a problem: of
    ``communication`` only the latency counts.

    >>> import anyk
    >>> found = simulated_pace(anyk.strategy("dpsgd", workers=3), anyk.delays.Constant(2.0), updates=40)
    >>> found.seconds, found.error
    (2.0, 0.0)
    """
    if updates < 2 * _BATCHES:
        raise BadInput(f"updates must be at least {2 * _BATCHES}, got {updates}")
    cluster = Simulated(strategy.layout.workers, delays=delays, seed=seed, communication=communication)
    waits = np.diff(driven(strategy, cluster, updates)[0])
    batches = waits[: len(waits) // _BATCHES * _BATCHES].reshape(_BATCHES, -1).mean(axis=1)
    return Measured(float(waits.mean()), float(batches.std(ddof=1) / _BATCHES**0.5))


def computed_load(
    strategy: Strategy,
    delays: DelayModel,
    *,
    communication: Communication | None = None,
    updates: int = 200,
    seed: int = 0,
) -> float:
    """The share of the data that a worker really computes in an update, on average, on the virtual clock.

    A code's ``load`` is computed by a worker that is never cut off. This counts each partial gradient that is finished
    when its worker is told to stop, used or not; the one it is on then does not count. So it is at most the load, and
    much less with codes that end in mid-step, ``nested`` and ``progress``. It tells something where delays go by
    partitions (``per=load``). Raises :class:`~anyk.errors.BadInput` where workers take local steps.

    >>> import anyk
    >>> law = anyk.delays.parse("bimodal:fast=1,slow=5,probability=0.1,per=load")
    >>> round(computed_load(anyk.strategy("nested:stragglers=3", workers=8), law) * 8, 2)  # partitions, of up to 4
    1.46
    """
    layout = strategy.layout
    if layout.inner is not None:
        raise BadInput(f"workers of '{strategy.spec}' take local steps, which are no share of the data")
    cluster = Simulated(layout.workers, delays=delays, seed=seed, communication=communication)
    log = RunLog()
    driver = Driver(strategy, cluster, log=log, steps=-(-updates // len(layout.slots)))
    with session(driver):
        driver.run()
    held = {number: work.partitions for number, work in works(log).items()}
    sizes = layout.shares or (1,) * layout.partitions
    total = 0.0
    for number, done, count in log.rows("SELECT work, done, count(*) FROM chunks WHERE done > 0 GROUP BY work, done"):
        known = held[number][:done]
        total += count * (sum(sizes[j] for j in known) + (done - len(known)))  # it may have been asked for less
    made = log.rows("SELECT count(*) FROM updates")[0][0]
    return total / (sum(sizes) * layout.workers * int(made))


def simulate(strategy: Strategy | str, delays: ArrayLike, *, jobs: int) -> tuple[NDArray[np.float64], int]:
    """Seconds of each round, and in how many the master had to wait, when ``jobs`` jobs meet measured delays.

    The strategy itself runs, on the virtual clock. ``delays``: seconds, rounds x workers; round t meets row t.
    Sequential codes take ``jobs + T`` rounds. A strategy without a straggler model waits in every round. Raises
    :class:`~anyk.errors.BadInput` when there are fewer rows than rounds.

    >>> durations, waits = simulate("m-sgc:B=1,W=2,lambda=1", [[1, 1, 4], [1, 3, 1], [1, 1, 1]], jobs=2)
    >>> durations.round(9).tolist(), waits
    ([2.0, 3.0, 1.0], 1)
    """
    table = np.asarray(delays, dtype=np.float64)
    if table.ndim != 2:
        raise BadInput(f"delays must be a table of rounds x workers, got shape {table.shape}")
    if isinstance(strategy, str):
        strategy = build_strategy(strategy, workers=table.shape[1])
    found, facts = for_jobs(strategy, jobs), strategy.facts
    rounds = jobs + facts.extra_rounds
    if jobs < 1 or len(table) < rounds:
        raise BadInput(
            f"{jobs} jobs of '{strategy.spec}' take {rounds} rounds, at least one; the delays have {len(table)}"
        )
    cluster = Simulated(found.layout.workers, delays=Table(table[:rounds], by="round"))
    ends, state = driven(found, cluster, jobs)
    if facts.round_seconds is None:
        return np.diff(ends), jobs
    seconds, waits = facts.round_seconds(state)
    return np.array(seconds), waits


def for_jobs(strategy: Strategy, jobs: int) -> Strategy:
    """Return the strategy for a number of steps of all models together."""
    return strategy if strategy.facts.for_jobs is None else strategy.facts.for_jobs(jobs)
