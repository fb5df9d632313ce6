"""A strategy's state, which every checkpoint contains, does not grow with the number of steps."""

import json

import pytest

import anyk
from anyk.clusters import Simulated
from anyk.clusters.virtual.calendar import Outage
from anyk.runs import Driver, session
from strategy_schedules import STRATEGIES

pytestmark = pytest.mark.in_process


def characters(spec: str, workers: int, steps: int) -> int:
    """Size of the state as JSON after some steps; a worker is lost every 10 seconds and returns."""
    outages = [Outage(10.0 * i + 5.0, i % workers, 10.0 * i + 6.0) for i in range(steps)]
    cluster = Simulated(workers, delays=anyk.delays.Exponential(0.5), seed=1, outages=outages)
    driver = Driver(anyk.strategy(spec, workers=workers), cluster, steps=steps)
    with session(driver):
        driver.run()
    assert driver.step == steps
    return len(json.dumps(driver.running.save()))


@pytest.mark.slow
@pytest.mark.parametrize(("spec", "workers"), [(s, n) for s, n in STRATEGIES if "adasync" not in s and "jobs" not in s])
def test_what_is_over_is_forgotten(spec: str, workers: int) -> None:
    """adasync remembers more steps than this; with a number of jobs the run ends."""
    assert characters(spec, workers, 120) <= 1.2 * characters(spec, workers, 40) + 60  # numbers get longer
