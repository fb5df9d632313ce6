"""The seconds that strategies take, in closed form or on the virtual clock, without computing gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import ArrayLike

from anyk.base import BadInput, Floats, typed
from anyk.clusters import Simulated
from anyk.delays import Communication, DelayModel, TableDelays
from anyk.protocol import Pace, Strategy
from anyk.runs import Driver, LogWriter, session
from anyk.runs.api import finished_works, mean_update, works
from anyk.strategies import strategy as build_strategy

_BATCHES = 20  # of updates, whose means give the standard error


def drive(strategy: Strategy, cluster: Simulated, steps: int, log: LogWriter | None = None) -> tuple[list[float], Any]:
    """Run a strategy on a virtual clock; return 0 and the time of each step, in seconds, and the last state."""
    times = [0.0]
    driver = Driver(strategy, cluster, log=log, steps=steps, on_step=lambda record: times.append(record.update.time))
    with session(driver):
        driver.run()
    return times, driver.running.state


def pace(strategy: Strategy, delays: DelayModel) -> Pace:
    """Return the expected seconds of an update and the mean staleness; computing and communication take no time.

    Dutta, Joshi, Ghosh, Dube and Nagpurkar 2018. Workers are preempted, and delays do not depend on load. Each strategy
    states its pace in its :class:`~anyk.protocol.StrategyFacts`.

    >>> import anyk
    >>> pace(anyk.strategy("k-batch-async:k=4", workers=8), anyk.delays.Exponential(mean=1.0))
    Pace(seconds=0.5, staleness=1.75, why="k over the sum of the workers' rates, whatever the law")
    """
    delays.check_fleet(strategy.layout.workers)
    return strategy.facts.pace(delays)


@dataclass(frozen=True)
class Measured:
    """Mean ``seconds`` of an update on the virtual clock, and the standard ``error`` of that mean (batch means)."""

    seconds: float
    error: float


@typed
def simulated_pace(
    strategy: Strategy,
    delays: DelayModel,
    *,
    communication: Communication | None = None,
    updates: Annotated[int, msgspec.Meta(ge=2 * _BATCHES)] = 2000,
    seed: int = 0,
) -> Measured:
    """Return the seconds of an update, measured by running ``updates`` updates on the virtual clock.

    Settings that adapt to the loss keep their initial values. Only the latency of ``communication`` counts, because
    bytes are unknown without a problem.

    >>> import anyk
    >>> simulated_pace(anyk.strategy("dpsgd", workers=3), anyk.delays.Constant(2.0), updates=40)
    Measured(seconds=2.0, error=0.0)
    """
    cluster = Simulated(strategy.layout.workers, delays=delays, seed=seed, communication=communication)
    durations = np.diff(drive(strategy, cluster, updates)[0])
    batch_means = durations[: len(durations) // _BATCHES * _BATCHES].reshape(_BATCHES, -1).mean(axis=1)
    return Measured(float(durations.mean()), float(batch_means.std(ddof=1) / _BATCHES**0.5))


def computed_load(
    strategy: Strategy,
    delays: DelayModel,
    *,
    communication: Communication | None = None,
    updates: int = 200,
    seed: int = 0,
) -> float:
    """Return the mean share of the data that a worker computes in an update, on the virtual clock.

    A worker that is never cancelled computes its code's ``load``. If it is cancelled, the partial gradients that it has
    finished count, used or not. So the result is at most the load, and much less with the codes ``nested`` and
    ``progress``, which use unfinished tasks. It is informative only if delays depend on the load (``per=load``). Raises
    :class:`~anyk.BadInput` if workers take local steps.

    >>> import anyk
    >>> delays = anyk.delays.parse("bimodal:fast=1,slow=5,probability=0.1,per=load")
    >>> round(computed_load(anyk.strategy("nested:stragglers=3", workers=8), delays) * 8, 2)  # partitions, of up to 4
    1.46
    """
    layout = strategy.layout
    if layout.inner is not None:
        raise BadInput(f"workers of '{strategy.spec}' take local steps, which are no share of the data")
    cluster = Simulated(layout.workers, delays=delays, seed=seed, communication=communication)
    log = LogWriter()
    drive(strategy, cluster, -(-updates // len(layout.slots)), log)
    assigned = {number: work.partitions for number, work in works(log).items()}
    sizes = layout.shares or (1,) * layout.partitions
    computed = 0.0
    for work, done, count in finished_works(log):
        finished = assigned[work][:done]
        # a message on request may cover fewer partitions than are finished; the others count as 1 each
        computed += count * (sum(sizes[j] for j in finished) + (done - len(finished)))
    return computed / (sum(sizes) * layout.workers * mean_update(log).number)


def simulate(strategy: Strategy | str, delays: ArrayLike, *, jobs: int) -> tuple[Floats, int]:
    """Return the seconds of each round with measured delays, and the number of rounds that waited for stragglers.

    The strategy runs on the virtual clock. ``jobs``: steps of all models together; ``delays``: seconds, shape (rounds,
    workers), a row for each round. Sequential codes take ``jobs + T`` rounds. A strategy without a straggler model
    waits in every round. Raises
    :class:`~anyk.BadInput` if there are fewer rows than rounds.

    >>> durations, waits = simulate("m-sgc:B=1,W=2,lambda=1", [[1, 1, 4], [1, 3, 1], [1, 1, 1]], jobs=2)
    >>> durations.round(9).tolist(), waits
    ([2.0, 3.0, 1.0], 1)
    """
    table = np.asarray(delays, dtype=float)
    if table.ndim != 2:
        raise BadInput(f"delays must be a table of rounds x workers, got shape {table.shape}")
    if isinstance(strategy, str):
        strategy = build_strategy(strategy, workers=table.shape[1])
    planned, facts = for_jobs(strategy, jobs), strategy.facts
    rounds = jobs + facts.extra_rounds
    if jobs < 1 or len(table) < rounds:
        raise BadInput(
            f"{jobs} jobs of '{strategy.spec}' take {rounds} rounds, at least one; the delays have {len(table)}"
        )
    cluster = Simulated(planned.layout.workers, delays=TableDelays(table[:rounds], by="round"))
    times, state = drive(planned, cluster, jobs)
    if facts.round_seconds is None:
        return np.diff(times), jobs
    seconds, waits = facts.round_seconds(state)
    return np.array(seconds), waits


def for_jobs(strategy: Strategy, jobs: int) -> Strategy:
    """Return the strategy that is planned for ``jobs`` steps of all models together."""
    return strategy if strategy.facts.for_jobs is None else strategy.facts.for_jobs(jobs)
