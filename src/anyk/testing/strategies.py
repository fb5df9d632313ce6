"""What every strategy must hold, under random delays, losses and returns."""

from __future__ import annotations

import copy
import json

from anyk import keyed
from anyk.clusters import Outage, Simulated
from anyk.delays import Exponential
from anyk.errors import RunFailed
from anyk.protocol import Strategy
from anyk.training.driver import Driver
from anyk.training.runlog import RunLog


def check_strategy(strategy: Strategy, *, steps: int = 20, outages: int = 3, seed: int = 0) -> None:
    """Run a fresh strategy on the simulated cluster while workers are lost and come back.

    It takes its steps without deadlock; the books balance (every chunk dispatched ends exactly once); the same seed
    gives the same decisions; and restored from its state, through JSON, it goes on exactly as if it had not been.

    >>> import anyk
    >>> check_strategy(anyk.strategy("frc:load=2", workers=4))
    """
    again = f"anyk strategies check '{strategy.spec}' --workers {strategy.workers} --steps {steps} --outages {outages}"
    try:
        _check(strategy, steps, outages, seed)
    except AssertionError as error:
        raise AssertionError(f"{error}; again: {again} --seed {seed} --schedules 1") from error
    except RunFailed as error:
        raise AssertionError(f"the run failed: {error}; again: {again} --seed {seed} --schedules 1") from error


def _check(strategy: Strategy, steps: int, outages: int, seed: int) -> None:
    whole = _drive(copy.deepcopy(strategy), steps, outages, seed, None)
    again = _drive(copy.deepcopy(strategy), steps, outages, seed, None)
    assert whole == again, "two runs with one seed differ"
    for interrupted in {1, max(1, steps // 2), steps - 1}:
        resumed = _drive(copy.deepcopy(strategy), steps, outages, seed, interrupted)
        assert resumed == whole, f"resumed at step {interrupted} it decides otherwise"


def _cluster(strategy: Strategy, outages: int, seed: int) -> Simulated:
    random = keyed.generator(seed, "check-strategy", strategy.spec)
    planned = []
    for _ in range(outages):
        time = float(random.exponential(1.0))
        back = time + float(random.exponential(0.5))
        planned.append(Outage(time, int(random.integers(strategy.workers)), back))
    return Simulated(strategy.workers, delays=Exponential(mean=0.3), seed=seed, outages=planned)


def _drive(
    strategy: Strategy, steps: int, outages: int, seed: int, interrupted: int | None
) -> list[tuple[object, ...]]:
    """The decisions of a run, perhaps saved and taken up again half-way."""
    fresh = copy.deepcopy(strategy)
    log = RunLog()
    driver = Driver(strategy, _cluster(strategy, outages, seed), log=log, steps=interrupted or steps)
    driver.open()
    driver.begin()
    driver.run()
    if interrupted is not None:
        state = json.loads(json.dumps(driver.state()))
        driver = Driver(fresh, _cluster(strategy, outages, seed), log=log, steps=steps)
        driver.open()
        driver.restore(state, {})
        driver.run()
    driver.settle()
    books = driver.books
    assert books.open == 0, f"the books of '{strategy.spec}' do not balance: {books}"
    return log.rows(
        "SELECT step, task, chunk, worker, version, weight, received FROM chunks WHERE step IS NOT NULL "
        "ORDER BY step, task, chunk"
    )
