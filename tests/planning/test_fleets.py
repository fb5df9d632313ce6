"""Measured fleets: who is slow for good, how times grow with load, and rounds in closed form against the virtual clock."""

from typing import Any

import numpy as np
import pytest

import anyk
from anyk.clusters import Compute, Simulated
from anyk.errors import BadInput
from anyk.planning.fleets import Fleet, fleet_of, slowness
from anyk.recording import Record

N = 6


def fleet(times: Any, slope: Any, load: float = 1 / N) -> Fleet:
    table = np.asarray(times, dtype=float)
    return Fleet(table, np.zeros(table.shape, bool), load, slope)


def test_two_speeds_all_computing() -> None:
    """Half of the workers take twice as long for good: cut 2 to 1, all take 4/3; twice the load takes all twice."""
    found = fleet(np.tile([1.0, 2.0] * 3, (10, 1)), slope=float(N))
    assert found.slopes == pytest.approx([N, 2 * N] * 3)
    assert found.alone("uncoded") == 2.0
    assert found.seconds(np.array([2.0, 1.0] * 3) / 9) == pytest.approx(np.full((10, N), 4 / 3))
    assert found.alone("frc:load=2") == pytest.approx(2.0)  # each group waits for its fast worker, which takes 2
    apart = fleet(np.tile([1.0] * 3 + [2.0] * 3, (10, 1)), slope=float(N))
    assert apart.alone("frc:load=3") == pytest.approx(6.0)  # a group of slow ones alone


def test_wandering_stragglers_are_no_slower_at_computing() -> None:
    """Each round another worker takes 10 s more; twice the load takes 1 s more of all, also of who straggles."""
    times = np.ones((60, N))
    times[np.arange(60), np.arange(60) % N] += 10.0
    found = fleet(times, slope=float(N))
    assert found.slopes == pytest.approx(np.full(N, N))
    assert found.seconds(np.full(N, 2 / N)) == pytest.approx(times + 1.0)
    half = fleet(times, slope=float(N / 2))
    assert half.seconds(np.full(N, 2 / N)) == pytest.approx(times + 0.5)


def test_both_persistent_and_wandering() -> None:
    random = np.random.default_rng(0)
    speeds = np.array([1.0, 1.0, 1.0, 1.0, 3.0, 3.0])
    times = speeds * (1.0 + 0.05 * random.random((100, N)))
    times[np.arange(100), random.integers(0, N, 100)] += 20.0
    assert slowness(times) == pytest.approx(speeds, rel=0.02)
    clean = 1.0 + random.exponential(1.0, (100, 30))
    assert np.ptp(np.log(slowness(clean))) < 0.5 * np.ptp(np.log(np.median(clean, axis=0)))  # chance is drawn in


def test_slopes_of_two_records_and_of_compute_stamps() -> None:
    random = np.random.default_rng(0)
    fixed, speeds = 1.0 + 0.1 * random.random((80, N)), np.array([1.0, 1.0, 1.0, 2.0, 2.0, 4.0])
    first, second = Record(fixed + speeds / N, load=1 / N), Record(fixed[::-1] + speeds / 2, load=1 / 2)
    found, assumptions, guessed = fleet_of(first, second)
    assert found.slopes == pytest.approx(speeds, rel=0.05) and not assumptions and not guessed
    stamped = Record(fixed + speeds / N, load=1 / N, parts={"compute": np.tile(speeds / N, (80, 1))})
    assert fleet_of(stamped)[0].slopes == pytest.approx(speeds)
    typical, said, _ = fleet_of(Record(np.tile(speeds, (80, 1)), load=1 / N), slope=2.0)
    assert typical.slopes == pytest.approx(2.0 * speeds) and "compute slowly" in said[0]
    assert fleet_of(Record(fixed, load=1 / N), slope=2.0)[1] == []


def test_partitions_cost_each_worker_its_own_on_the_virtual_clock() -> None:
    """Without delays, a worker whose partition costs twice as much is done after twice the time."""
    cluster = Simulated(3, compute=Compute(0.0, (1.0, 2.0, 3.0), 0.0, 3))
    ends: list[float] = []
    driver = anyk.training.Driver(
        anyk.strategy("uncoded:wait=2", workers=3), cluster, steps=3, on_step=lambda driver: ends.append(driver.time)
    )
    with anyk.training.session(driver):
        driver.run()
    assert ends == [2.0, 4.0, 6.0]
    with pytest.raises(BadInput, match="given for 2 workers"):
        Simulated(3, compute=Compute(0.0, (1.0, 2.0), 0.0, 3))
