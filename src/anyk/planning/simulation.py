"""What has no closed form: strategies run on the virtual clock, without computing anything."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import numpy as np

from anyk.clusters import Simulated
from anyk.delays import Communication, DelayModel
from anyk.errors import BadInput
from anyk.protocol import Strategy
from anyk.training.driver import Driver

_BATCHES = 20


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

    What depends on losses stays as it begins. Bytes are not known without a problem: of ``communication`` only the
    latency counts.

    >>> import anyk
    >>> found = simulated_pace(anyk.strategy("dpsgd", workers=3), anyk.delays.Constant(2.0), updates=40)
    >>> found.seconds, found.error
    (2.0, 0.0)
    """
    if updates < 2 * _BATCHES:
        raise BadInput(f"updates must be at least {2 * _BATCHES}, got {updates}")
    cluster = Simulated(strategy.workers, delays=delays, seed=seed, communication=communication)
    driver = Driver(copy.deepcopy(strategy), cluster, steps=updates)
    times: list[float] = [0.0]
    driver.watch = lambda driver: times.append(driver.time)
    driver.open()
    driver.begin()
    driver.run()
    waits = np.diff(times)
    batches = waits[: len(waits) // _BATCHES * _BATCHES].reshape(_BATCHES, -1).mean(axis=1)
    return Measured(float(waits.mean()), float(batches.std(ddof=1) / _BATCHES**0.5))
