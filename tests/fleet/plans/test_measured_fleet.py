"""Measured fleets: who is slow for good, how times grow with load, and rounds in closed form against the virtual clock."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import anyk
from anyk.base.errors import BadInput
from anyk.clusters import Compute, Simulated
from anyk.fleet import simulate
from anyk.fleet.plans.measured_fleet import MeasuredFleet, completed, fleet_of, slowness
from anyk.fleet.records import Record
from anyk.views.fleet_tables import plan_lines

pytestmark = pytest.mark.in_process

N = 6


def fleet(times: Any, slope: Any, load: float = 1 / N) -> MeasuredFleet:
    table = np.asarray(times, dtype=float)
    return MeasuredFleet(table, np.zeros(table.shape, bool), load, slope)


def test_two_speeds_all_computing() -> None:
    """Half of the workers take twice as long for good: cut 2 to 1, all take 4/3; twice the load takes all twice."""
    measured = fleet(np.tile([1.0, 2.0] * 3, (10, 1)), slope=float(N))
    assert measured.slopes == pytest.approx([N, 2 * N] * 3)
    assert measured.alone("uncoded") == 2.0
    assert measured.seconds(np.array([2.0, 1.0] * 3) / 9) == pytest.approx(np.full((10, N), 4 / 3))
    assert measured.alone("frc:load=2") == pytest.approx(2.0)  # each group waits for its fast worker, which takes 2
    apart = fleet(np.tile([1.0] * 3 + [2.0] * 3, (10, 1)), slope=float(N))
    assert apart.alone("frc:load=3") == pytest.approx(6.0)  # a group of slow ones alone


def test_wandering_stragglers_are_no_slower_at_computing() -> None:
    """Each round another worker takes 10 s more; twice the load takes 1 s more of all, also of who straggles."""
    times = np.ones((60, N))
    times[np.arange(60), np.arange(60) % N] += 10.0
    measured = fleet(times, slope=float(N))
    assert measured.slopes == pytest.approx(np.full(N, N))
    assert measured.seconds(np.full(N, 2 / N)) == pytest.approx(times + 1.0)
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


@pytest.mark.parametrize("rounds", [20, 120])  # a slope for all, and one for each
def test_a_rare_stall_is_not_how_times_grow(rounds: int) -> None:
    """One task in 120 takes 40 s more at the larger load: 0.33 s on average, twice what the load adds."""
    times = 1.0 + np.random.default_rng(0).exponential(0.05, (rounds, N))
    stalled = times[::-1] + (2 / N - 1 / N)
    stalled[np.arange(0, rounds, 20), 1] += 40.0
    measured = fleet_of(Record(times, load=1 / N), Record(stalled, load=2 / N))[0]
    assert measured.slopes == pytest.approx(np.full(N, 1.0), rel=0.15)


def test_slopes_of_two_records_and_of_compute_stamps() -> None:
    random = np.random.default_rng(0)
    fixed, speeds = 1.0 + 0.1 * random.random((80, N)), np.array([1.0, 1.0, 1.0, 2.0, 2.0, 4.0])
    first, second = Record(fixed + speeds / N, load=1 / N), Record(fixed[::-1] + speeds / 2, load=1 / 2)
    measured, assumptions, guessed = fleet_of(first, second)
    assert measured.slopes == pytest.approx(speeds, rel=0.05) and not assumptions and not guessed
    stamped = Record(fixed + speeds / N, load=1 / N, parts={"compute": np.tile(speeds / N, (80, 1))})
    assert fleet_of(stamped)[0].slopes == pytest.approx(speeds)
    typical, said, _ = fleet_of(Record(np.tile(speeds, (80, 1)), load=1 / N), slope=2.0)
    assert typical.slopes == pytest.approx(2.0 * speeds) and "compute slowly" in said[0]
    assert fleet_of(Record(fixed, load=1 / N), slope=2.0)[1] == []


def test_partitions_cost_each_worker_its_own_time() -> None:
    """Without delays, a worker whose partition costs twice as much is done after twice the time."""
    cluster = Simulated(3, compute=Compute(0.0, (1.0, 2.0, 3.0), 0.0, 3))
    ends: list[float] = []
    driver = anyk.runs.Driver(
        anyk.strategy("uncoded:wait=2", workers=3),
        cluster,
        steps=3,
        on_step=lambda record: ends.append(record.update.time),
    )
    with anyk.runs.session(driver):
        driver.run()
    assert ends == [2.0, 4.0, 6.0]
    with pytest.raises(BadInput, match="given for 2 workers"):
        Simulated(3, compute=Compute(0.0, (1.0, 2.0), 0.0, 3))


CLOSED = ["nested:stragglers=3", "nested:stragglers=2,kind=cyclic", "progress:load=3", "progress:load=2,placement=random",
          "partial:stragglers=1", "partial:stragglers=1,load=5,inner=cyclic", "tree:children=2", "tree:children=6",
          "binary:stragglers=1", "binary:stragglers=3", "frc:stragglers=2", "cyclic:stragglers=2", "k-sync:k=4"]  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(CLOSED), st.integers(0, 999), st.sampled_from([0.0, 0.5, 3.0]), st.booleans())
def test_rounds_in_closed_form_are_those_of_the_virtual_clock(spec: str, seed: int, slope: float, slow: bool) -> None:
    """Also where parts of a task count, and some workers compute at a third of the speed of the others."""
    n = 8 if spec.startswith("nested:stragglers=3") else N
    random = np.random.default_rng(seed)
    times = 1.5 + random.exponential(1.0, (9, n))
    slope = 1e3 if spec.startswith("partial") else slope  # all computing: there a task's messages come in its order
    slopes = slope * np.where(np.arange(n) % 3 == 2, 3.0, 1.0) if slow else np.full(n, slope)
    measured = fleet(times, slopes, load=1 / n)
    strategy = anyk.strategy(spec, workers=n)
    closed = measured.closed_form(strategy)
    assert closed is not None and closed == pytest.approx(measured.simulate(strategy), abs=1e-9)


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(["gc:stragglers=2", "gc:stragglers=1,end=cutoff", "sr-sgc:B=1,W=2,lambda=2", "sr-sgc:B=2,W=3,lambda=4",
                     "sr-sgc:B=1,W=2,lambda=2,inner=frc,end=decodable", "m-sgc:B=1,W=2,lambda=1", "m-sgc:B=2,W=3,lambda=6",
                     "m-sgc:B=1,W=3,lambda=2,end=decodable", "m-sgc:B=1,W=2,lambda=1,inner=frc,end=decodable"]),
    st.integers(0, 999),
)  # fmt: skip
def test_sequential_rounds_are_those_of_the_virtual_clock(spec: str, seed: int) -> None:
    """Without an end of jobs: of as many jobs as there are rounds, the rounds that begin one."""
    random = np.random.default_rng(seed)
    times = 0.5 + random.exponential(1.0, (16, N)) * random.integers(0, 2, (16, N))
    strategy = anyk.strategy(spec, workers=N)
    facts = strategy.facts
    assert facts.exact
    jobs = 16 - facts.extra_rounds
    durations = facts.durations(times, np.zeros_like(times))
    assert durations is not None and durations[:jobs] == pytest.approx(simulate(strategy, times, jobs=jobs)[0][:jobs])


def test_a_missing_time_is_that_of_its_worker_in_its_round() -> None:
    """Rounds of two lengths; half of the workers are missing in the short ones, one of which is slow for good."""
    random = np.random.default_rng(0)
    levels = np.where(np.arange(60) % 3 == 0, 20.0, 1.0)
    seconds = levels[:, None] * np.array([1.0, 1.0, 1.0, 1.0, 1.0, 3.0]) * np.exp(random.normal(0.0, 0.02, (60, N)))
    times = seconds.copy()
    times[levels < 10.0, 3:] = np.nan
    filled = completed(Record(times, load=1 / N))
    assert filled.gaps == 120 and np.array_equal(filled.times[:, :3], seconds[:, :3])
    assert filled.times == pytest.approx(seconds, rel=0.1)
    assert filled.absent[1, 3] > seconds[1].min() * 2 + 15  # both short rounds, and its time in the long one
    assert (filled.absent >= filled.times).all()
    plan = anyk.plan(Record(times, load=1 / N), slope=1.0, resamples=50)
    promise = plan.today.seconds_per_step
    assert promise.median == pytest.approx(seconds.max(axis=1).mean(), rel=0.02) and promise.high > promise.median * 1.5
    assert any("120 of 360 times are missing" in assumption for assumption in plan.assumptions)


@pytest.mark.slow
def test_a_tenth_of_the_times_of_thirty_workers_may_be_missing() -> None:
    random = np.random.default_rng(0)
    seconds = 1.0 + random.exponential(0.5, (40, 30))
    times = np.where(random.random(seconds.shape) < 0.1, np.nan, seconds)
    assert np.isfinite(times).all(axis=1).sum() < 5
    plan = anyk.plan(Record(times, load=1 / 30), slope=3.0, resamples=50, today="frc:stragglers=1")
    assert plan.today.seconds_per_step.holds(plan.today.seconds_per_step.median)
    uncoded = next(one for one in plan.candidates if one.spec == "uncoded").seconds_per_step
    assert uncoded.low < seconds.max(axis=1).mean() < uncoded.high
    few = seconds[:, :4].copy()
    few[3:, 2] = np.nan
    with pytest.raises(BadInput, match="worker 2 has 3; leave such workers out, or measure longer"):
        anyk.plan(Record(few))


@pytest.mark.slow
def test_slow_links_and_processors_are_told_apart_or_covered() -> None:
    """Worker 3 replies 1 s later. Balance takes its data, which helps little; with parts this is known."""
    random = np.random.default_rng(0)
    fixed = 0.05 * random.exponential(1.0, (60, 12))
    fixed[:, 3] += 1.0
    record = Record(fixed + 0.5, load=1 / 12)
    plan = anyk.plan(record, slope=6.0, resamples=50)
    shares = next(one for one in plan.candidates if one.spec == "uncoded:balance=auto").seconds_per_step
    strategy = anyk.strategy("uncoded:balance=auto", workers=12)
    link, processor = (
        fleet(record.seconds, np.where(np.arange(12) == 3, slope, 6.0), load=1 / 12) for slope in (6.0, 18.0)
    )
    for truth in (link.durations(strategy), link.durations(processor.adapt(strategy)), processor.durations(strategy)):
        assert shares.low < truth.mean() < shares.high
    for parts in ({"compute": np.full((60, 12), 0.5)}, {"transport": fixed}):
        stamped = anyk.plan(Record(record.seconds, load=1 / 12, parts=parts), resamples=50)
        assert not any("slow link" in assumption for assumption in stamped.assumptions)
        promise = next(one for one in stamped.candidates if one.spec == "uncoded:balance=auto").seconds_per_step
        assert promise.low < link.durations(strategy).mean() < promise.high < 1.3


@pytest.mark.slow
def test_the_drivers_own_time_is_part_of_every_promise(tmp_path: Path) -> None:
    problem = anyk.problems.from_data("synthetic:rows=60,features=4")
    cluster = anyk.cluster(
        "simulated:step=0.5,partition=0.25,cores=6", workers=6, delays="uniform:low=0,high=1", seed=1
    )
    recorded = anyk.train(problem, "uncoded", cluster, steps=40)
    record = anyk.fleet.read(recorded)
    assert record.driver == pytest.approx(0.5)
    record.save(tmp_path / "fleet.npz")
    assert anyk.fleet.read(tmp_path / "fleet.npz").driver == record.driver
    plan = anyk.plan(recorded, resamples=50, everything=True)
    promises = {one.spec: one.seconds_per_step for one in (*plan.candidates, *plan.others)}
    assert any("0.5 s of each step are the driver's own" in line for line in plan_lines(plan))
    for spec in ("uncoded", "frc:stragglers=1", "nested:stragglers=1", "uncoded:wait=3", "async"):
        run = anyk.train(problem, spec, cluster, steps=40)
        low, high = (
            promises[anyk.strategy(spec, workers=6).spec].low,
            promises[anyk.strategy(spec, workers=6).spec].high,
        )
        assert low <= run.seconds / run.steps <= high, spec


@pytest.mark.slow
def test_workers_that_share_cores_widen_promises() -> None:
    """The driver takes 0.5 s of each step; half of it or twice as much if cores are free or all are busy."""
    times = 1.0 + np.random.default_rng(0).random((60, N))
    alone = anyk.plan(Record(times, load=1 / N, driver=0.5), slope=1.0, resamples=50)
    shared = anyk.plan(Record(times, load=1 / N, driver=0.5, crowding=2.0), slope=1.0, resamples=50)
    assert any("2 workers share a core" in assumption for assumption in shared.assumptions)
    first, second = alone.today.seconds_per_step, shared.today.seconds_per_step
    assert second.median == first.median
    assert second.low == pytest.approx(first.low * (first.median - 0.25) / first.median)
    assert second.high == pytest.approx(first.high * (first.median + 0.5) / first.median)
    codes = (next(one for one in plan.candidates if one.spec == "frc:stragglers=1") for plan in (alone, shared))
    narrow, wide = (one.seconds_per_step for one in codes)
    everyone = times.max(axis=1).mean() + 1 / N + 1.0  # no task is cut off, and the driver takes 1 s
    assert narrow.high < everyone < wide.high and wide.low < narrow.low


@pytest.mark.parametrize("spec", ["exp:mean=0.5,per=load", "exp:mean=0.5,uninterruptible=true"])
def test_no_plan_for_delays_that_a_record_cannot_say(spec: str) -> None:
    with pytest.raises(BadInput, match="a plan is for delays of whole tasks that can be cut off"):
        anyk.plan(anyk.delays.parse(spec), workers=N, slope=0.0, resamples=20)


def test_a_trace_is_planned_for_as_the_record_that_it_is(tmp_path: Path) -> None:
    times = np.random.default_rng(0).exponential(1.0, (40, N))
    np.savez(tmp_path / "t.npz", seconds=times, load=0.5)
    with pytest.raises(BadInput, match="holds measured times, which are a record: plan for its file itself"):
        anyk.plan(anyk.delays.Trace(str(tmp_path / "t.npz")), workers=N, slope=2.0, resamples=20)
    with pytest.raises(BadInput, match="a table of delays holds measured times"):
        anyk.plan(anyk.delays.TableDelays(times), workers=N, slope=2.0, resamples=20)
    assert anyk.plan(tmp_path / "t.npz", slope=2.0, resamples=20).candidates
