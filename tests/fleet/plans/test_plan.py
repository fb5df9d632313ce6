"""Plans: pace against closed forms and simulation, intervals that cover, and decisions on fleets whose answer is known."""

import json
import math
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

import anyk
from anyk.base.errors import BadInput
from anyk.cli import main
from anyk.fleet import simulate
from anyk.fleet.plans.candidates import specs_for
from anyk.fleet.plans.judging import block_length, pareto, resample
from anyk.fleet.plans.measured_fleet import MeasuredFleet
from anyk.fleet.records import Record
from anyk.protocol import Workers
from anyk.views.fleet_tables import draw_plan, inexact_table, plan_lines, plan_table

pytestmark = pytest.mark.in_process

N = 6


def record(times: Any, **more: Any) -> Record:
    return Record(times, load=1 / np.shape(times)[1], **more)


def exponential(rounds: int, seed: int = 0, workers: int = N) -> Any:
    return np.random.default_rng(seed).exponential(1.0, (rounds, workers))


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from(["uncoded", "frc:stragglers=1", "frc:load=3", "k-sync:k=4", "cyclic:stragglers=2", "agc:load=2,wait=4",
                     "mds:stragglers=2", "comm-efficient:stragglers=1"]),
    st.integers(0, 999),
)  # fmt: skip
def test_seconds_of_rounds_are_those_of_the_strategy_itself(spec: str, seed: int) -> None:
    times = exponential(12, seed) + 0.01
    strategy = anyk.strategy(spec, workers=N)
    durations = strategy.facts.durations(times, np.zeros_like(times))
    assert durations is not None
    assert durations == pytest.approx(simulate(strategy, times, jobs=12)[0], abs=1e-9)


def test_a_gain_is_no_less_than_in_the_worst_round() -> None:
    """Of 16 rounds two stall for 100 s, which a code cuts off: no step of it takes longer, however unsure its gain."""
    times = 1.0 + 0.01 * np.random.default_rng(0).random((16, 6))
    times[[3, 11], [0, 4]] = 100.0
    plan = anyk.plan(Record(times, load=1 / 6), slope=0.0, resamples=200)
    coded = next(one for one in plan.candidates if one.spec == "frc:stragglers=1")
    assert coded.gain.median > 0.8 and coded.gain.low >= 1.0 - math.exp(coded.optimism) - 1e-12
    assert coded.gain.high > coded.gain.median  # and no more is taken of the other side


def test_the_pace_is_that_of_the_closed_forms() -> None:
    """Exponential times, slope 0: H_n for all, H_n - H_{n-k} for k, and groups of 2: the largest of 3 least of 2."""
    fleet = MeasuredFleet(exponential(40_000), np.zeros((40_000, N), bool), 1 / N, 0.0)
    harmonic = np.cumsum(1 / np.arange(1, N + 1))
    for spec, mean in (
        ("uncoded", harmonic[5]),
        ("k-sync:k=4", harmonic[5] - harmonic[1]),
        ("frc:load=2", harmonic[2] / 2),
    ):
        assert fleet.alone(spec) == pytest.approx(mean, rel=0.02)


def test_load_costs_what_the_slope_says() -> None:
    times = exponential(30) + 1.0
    lean, loaded = Record(times, load=1 / N), Record(times + 3.0 * (1 / 2 - 1 / N), load=1 / 2)
    plan = anyk.plan(lean, other=loaded, resamples=50, max_load=1 / 3)
    assert plan.assumptions == () and all(one.load <= 1 / 3 for one in plan.candidates)
    seconds = {one.spec: one.seconds_per_step.median - 0.0 for one in plan.candidates}
    code = anyk.code("frc:stragglers=1", workers=N)
    expected = code.finish_times(times + 3.0 * (code.load / N - 1 / N)).mean()
    one = next(choice for choice in plan.candidates if choice.spec == "frc:stragglers=1")
    assert seconds["frc:stragglers=1"] == pytest.approx(expected * np.exp(one.optimism), rel=1e-9)
    with pytest.raises(BadInput, match="two records with different loads"):
        anyk.plan(Record(times), other=loaded)


@pytest.mark.slow
def test_intervals_cover_the_means_of_future_runs() -> None:
    """Of 300 records of 100 rounds, correlated by 0.6, the 90 % interval holds the next run's mean in 80 % or more (less 3 %)."""
    random = np.random.default_rng(1)
    covered = 0
    for _ in range(300):
        noise = random.normal(size=200) * 0.2
        for t in range(1, 200):
            noise[t] += 0.6 * noise[t - 1]
        series = np.exp(noise)
        past, future = series[:100], series[100:]
        block = max(int(np.ceil(block_length(past))), 5)
        drawn = resample(100, 100, block, 200, random)
        low, high = drawn.widened(drawn.spread(past[None]).deviations(0))
        covered += low <= np.log(future.mean() / past.mean()) <= high
    assert 0.77 <= covered / 300 <= 0.97


@pytest.mark.slow
def test_wandering_stragglers_a_clean_fleet_and_load_that_costs() -> None:
    wandering = np.ones((60, N))
    wandering[np.arange(60), np.arange(60) % N] = 10.0
    plan = anyk.plan(record(wandering), slope=0.0, resamples=100)
    assert (plan.verdict, plan.best.spec, plan.evidence) == ("change", "frc:stragglers=1", "enough")
    assert plan.best.gain.median == pytest.approx(0.9) and plan.fleet.named == []
    clean = 1.0 + 0.01 * np.random.default_rng(0).random((60, N))
    page = plan._repr_html_()
    assert page.startswith("<table>") and "change: " in page and f"<td>{plan.best.spec}</td>" in page
    nothing = anyk.plan(record(clean), resamples=100)
    assert (nothing.verdict, nothing.best.spec) == ("nothing", "uncoded")
    assert "all of a task's 1" in nothing.assumptions[0] and "if only half" in nothing.assumptions[1]
    drifting = anyk.plan(record(exponential(60) * 0.1 + np.linspace(1, 2, 60)[:, None]), slope=0.0, resamples=50)
    assert any("though it drifts" in assumption for assumption in drifting.assumptions)
    assert not any("though it drifts" in assumption for assumption in nothing.assumptions)
    dear = anyk.plan(record(exponential(60) * 0.1 + 5.0), slope=5.0 * N, resamples=100)  # a second partition: 5 s more
    assert dear.verdict == "nothing" and dear.best.spec == "uncoded"


@pytest.mark.slow
def test_thin_evidence_and_gains_that_are_not_sure() -> None:
    few = np.ones((8, N))
    few[3, 2] = 4.0  # one stall in eight rounds, in one half only
    plan = anyk.plan(record(few), slope=0.0, resamples=100)
    assert (plan.verdict, plan.evidence) == ("nothing", "thin") and "which is not sure" in plan.why
    assert plan.candidates[0].gain.median > 0.2 and plan.best == plan.today
    small = np.ones((40, N))
    small[::3, 0] = small[1::7, 1] = 1.1  # coded steps are never longer, and sooner or later shorter
    gained = anyk.plan(record(small), slope=0.0, resamples=100)
    assert (
        gained.verdict == "nothing" and 0.0 <= gained.candidates[0].gain.low < 0.03 <= gained.candidates[0].gain.median
    )
    same_plan = anyk.plan(record(few), slope=0.0, resamples=100)
    assert same_plan == plan and anyk.plan(record(few), slope=0.0, resamples=100, seed=1) != plan


@pytest.mark.slow
def test_what_was_cut_off_never_decides() -> None:
    times = exponential(40) + 0.5
    slow = times > np.sort(times, axis=1)[:, 3:4]
    cut = np.where(slow, np.sort(times, axis=1)[:, 3:4], times)  # the last two of six are cut off at the fourth
    plan = anyk.plan(record(cut, censored=slow), today="k-sync:k=4", slope=0.0, resamples=50)
    assert plan.verdict == "nothing" and plan.today.seen == 1.0
    unknown = anyk.plan(record(cut, censored=slow), slope=0.0, resamples=50)
    assert unknown.evidence == "none" and unknown.today.seen == 0.0 and "too many times were cut off" in unknown.why


@pytest.mark.slow
def test_strategies_of_users_take_part_and_others_are_not_ranked() -> None:
    @anyk.strategies.register("mine", grid=lambda workers: ("mine:load=2", "mine:load=99"))
    def mine(workers: int, *, load: int = 1) -> Any:
        """As frc."""
        return anyk.strategy(f"frc:load={load}", workers=workers)

    try:
        assert {"mine:load=2", "mine:load=99"} <= set(specs_for(N))
        plan = anyk.plan(record(exponential(40)), slope=0.0, resamples=50, everything=True)
    finally:
        del anyk.strategies.registry.entries["mine"]
    assert "frc:load=2" in {one.spec for one in plan.candidates} and all(one.exact for one in plan.candidates)
    assert any(one.family in ("uncoded", "k-batch-sync") and not one.exact for one in plan.others)
    half = next(one for one in plan.others if one.spec == "uncoded:wait=3")
    assert (half.residual, half.samples_per_step) == pytest.approx((1.0, 0.5)) and half.staleness == 0.0
    stale = next(one for one in plan.others if one.spec == "async")
    assert stale.samples_per_step == pytest.approx(1 / 6) and 3 < (stale.staleness or 0) < 5.5  # n - 1, from 0 on
    assert {"pasgd", "frc"} <= {one.spec.partition(":")[0] for one in plan.others} | {"frc"}  # local steps are no sums
    front = pareto(plan.candidates)
    prices = [(one.seconds_per_step.median, one.load, one.memory) for one in front]
    assert all(any(a < b for a, b in zip(one, two, strict=True)) for one in prices for two in prices if one is not two)
    assert sum(one.probability_best for one in plan.candidates) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("given_", "why"),
    [
        ({"slope": -1.0}, "slope must be a number from 0 to 1e"),
        ({"max_load": 0.0}, "max_load must be a number above 0"),
        ({"steps": 0}, "steps must be a whole number of at least 1"),
        ({"resamples": 5}, "resamples must be a whole number of at least 20"),
        ({"today": "frc:load=4"}, "frc:load=4 does not exist for 6 workers"),
    ],
)
def test_what_cannot_be_planned(given_: dict[str, Any], why: str) -> None:
    with pytest.raises(BadInput, match=why):
        anyk.plan(record(exponential(20)), **given_)
    with pytest.raises(BadInput, match="5 rounds or more"):
        anyk.plan(record(exponential(4)))
    with pytest.raises(BadInput, match="give the number of workers"):
        anyk.plan(anyk.delays.parse("exp:mean=1"))


@pytest.mark.slow
def test_the_command(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    wandering = np.ones((40, N))
    wandering[np.arange(40), np.arange(40) % N] = 10.0
    record(wandering).save("fleet.csv")
    words = ["plan", "fleet.csv", "--slope", "0", "--quiet"]
    done = CliRunner().invoke(main, [*words, "--picture", "x.png", "--json", "x.json"])
    assert done.exit_code == 0, done.output
    assert "\nchange: 'frc:stragglers=1' would take 90 % less" in done.output and "> uncoded" in done.output
    assert Path("x.png").stat().st_size > 10_000
    report = json.loads(Path("x.json").read_text())
    assert (report["version"], report["verdict"], report["interval"]) == (1, "change", "prediction")
    assert report["best"]["gain"]["low"] > 0.8 and report["candidates"][0]["spec"] == "frc:stragglers=1"
    for wrong, sentence in ((["fleet.csv", "--workers", "3"], "a record knows its workers"), (["nowhere.csv"], "no fleet record"),
                       (["exp:mean=1"], "give the number of workers")):  # fmt: skip
        refused = CliRunner().invoke(main, ["plan", *wrong])
        assert refused.exit_code == 2 and sentence in refused.output and refused.output.count("\n") == 1, refused.output


@pytest.mark.slow
def test_files_are_written_before_anything_is_printed(tmp_path: Path, monkeypatch: Any) -> None:
    """A reader of the output may stop early, as head does, and the files are there all the same."""
    monkeypatch.chdir(tmp_path)
    record(exponential(20)).save("fleet.csv")

    def closed(*_: Any) -> None:
        raise BrokenPipeError

    monkeypatch.setattr("anyk.cli.fleets.say_result", closed)
    words = ["plan", "fleet.csv", "--slope", "0", "--quiet", "--resamples", "20", "-o", "plan.toml"]
    for command in (words, ["explain", "fleet.csv"]):
        CliRunner().invoke(main, [*command, "--json", f"{command[0]}.json", "--picture", f"{command[0]}.png"])
    written = {"plan.toml", "plan.json", "plan.png", "explain.json", "explain.png"}
    assert all(Path(name).stat().st_size for name in written)


@pytest.mark.slow
def test_a_picture_of_a_dense_front_is_readable() -> None:
    plan = anyk.plan(record(1.0 + exponential(40, workers=30)), slope=1.5)
    figure = draw_plan(plan, None)
    (legend,), (axes,) = figure.legends, figure.axes
    names = [label.get_text() for label in legend.get_texts()]
    assert {plan.best.spec, "uncoded (today's)"} <= set(names) and len(names) == len(set(names)) >= 4
    points = [drawn[0] for drawn in axes.containers if drawn.get_label() in names]
    assert len({(point.get_color(), point.get_marker()) for point in points}) == len(names)
    figure.draw_without_rendering()
    assert not legend.get_window_extent().overlaps(axes.get_tightbbox())


@pytest.mark.slow
def test_a_worker_that_is_needed_is_not_left_out() -> None:
    plan = anyk.plan(record(exponential(20)), today="frc:load=3", slope=0.0, resamples=50)  # 3 does not divide 5
    assert plan.today.spec == "frc:load=3" and plan.advice[0].today is None
    assert anyk.plan(record(exponential(20)), slope=0.0, resamples=50).advice[0].today is not None


def test_changes_of_the_fleet_and_what_they_gain() -> None:
    """A worker three times as slow: without it or repaired, two thirds are gained; a spare helps a code, not who waits for all."""
    times = np.ones((40, N))
    times[:, 2] = 3.0
    plan = anyk.plan(record(times), slope=0.0, resamples=50)
    advice = {one.what: one for one in plan.advice}
    assert advice["worker 2 left out"].today == pytest.approx(2 / 3)
    assert advice["worker 2 repaired"].today == pytest.approx(2 / 3)
    assert advice["1 spare worker"].today == pytest.approx(0.0) and set(advice) >= {"2 spare workers"}
    assert plan.best.exact and plan.best.gain.median == pytest.approx(2 / 3)
    # the best strategy does not wait for the slow worker, so that it saves nothing to be without it
    assert advice["worker 2 left out"].best == pytest.approx(0.0)
    line = next(line for line in plan_lines(plan) if "worker 2 left out" in line)
    assert line == (
        f"with worker 2 left out, 'uncoded' takes 67 % less and '{plan.best.spec}' takes 0 % less than on the fleet as it is"
    )


@pytest.mark.slow
def test_cut_off_times_are_continued_by_laws_and_probed() -> None:
    times = exponential(60, workers=12) + 0.5
    fifth = np.sort(times, axis=1)[:, 4:5]
    cut = Record(np.minimum(times, fifth), censored=times > fifth, load=1 / 12)
    plan = anyk.plan(cut, today="k-sync:k=5", slope=0.0, resamples=50, everything=True)
    uncoded = next(one for one in plan.others if one.spec == "uncoded")
    truth = times.max(axis=1).mean()
    assert plan.verdict == "nothing" and uncoded.seen == 0.0
    assert uncoded.seconds_per_step.low < truth < uncoded.seconds_per_step.high
    assert plan.probe is not None and "--strategy uncoded --steps 30" in plan.probe
    with pytest.raises(BadInput, match="every time of the record is cut off"):
        anyk.plan(Record(times, censored=np.ones(times.shape, bool)))
    assert anyk.plan(record(exponential(20)), resamples=20).probe is None


@pytest.mark.slow
@pytest.mark.parametrize(("spec", "models"), [("frc:load=3", 1), ("m-sgc:B=1,W=2,lambda=2", 2)])
def test_a_plan_for_a_run_compares_with_the_strategy_of_the_run(spec: str, models: int) -> None:
    """Its replies that came too late were cut off, so that only its own steps were measured, not those of uncoded."""
    problem = anyk.problems.from_data("synthetic:rows=60,features=4")
    fleet = anyk.clusters.Simulated(6, delays="exp:mean=0.2", seed=1)
    train = anyk.train if models == 1 else anyk.train_many
    run = train(problem if models == 1 else [problem] * models, spec, fleet, steps=20)
    plan = anyk.plan(run, resamples=20, among=lambda one: one.spec.startswith("frc"))
    asked = anyk.strategies.strategy(run.config.strategy, workers=6)
    assert plan.today.spec == asked.spec and plan.today.measured
    cause = next(line for line in plan_lines(plan) if line.startswith("where all are waited for"))
    assert "waiting for slow workers takes at least " in cause  # what was cut off may have taken far longer
    assert plan_lines(plan)[0].startswith(("change: ", f"stay with '{plan.today.spec}'"))


def test_a_plan_without_todays_times_promises_no_gain() -> None:
    times = np.random.default_rng(0).exponential(1.0, (40, 6))
    slow = times > np.sort(times)[:, 1:2]
    cut = Record(times, censored=slow, load=1 / 6)
    plan = anyk.plan(cut, slope=0.0, resamples=20, among=lambda one: one.spec.startswith("frc"))
    assert plan.evidence == "none" and plan.candidates[0].gain.low > 0
    assert plan_lines(plan)[0].startswith("no advice: how long steps of 'uncoded' take is not known")
    gains = {row[0].strip(): row[2] for row in plan_table(plan.candidates, plan.today).rows}
    assert gains.pop("> uncoded") == "today's" and set(gains.values()) == {"not known"}
    assert "%" not in plan._repr_html_() and plan.probe is not None and "e+" not in plan.probe


@pytest.mark.slow
def test_several_models_bring_codes_over_rounds_and_limits_hold() -> None:
    """Bursts of one round, four workers: with two models m-sgc is soonest; a limit of memory leaves less."""
    times = np.ones((60, 4))
    times[np.arange(0, 60, 2), np.arange(30) % 4] = 9.0
    one = anyk.plan(Record(times, load=1 / 4), slope=4.0, resamples=30)
    two = anyk.plan(Record(times, load=1 / 4), slope=4.0, models=2, resamples=30)
    assert one.best.family not in ("m-sgc", "sr-sgc") and two.best.family in ("m-sgc", "sr-sgc")
    assert two.best.seconds_per_step.median < one.best.seconds_per_step.median
    assert "models=2" in two.today.spec
    lean = anyk.plan(Record(times, load=1 / 4), slope=4.0, memory=0.25, resamples=30)
    assert {choice.memory for choice in lean.candidates} == {0.25} and lean.verdict == "nothing"


@pytest.mark.slow
def test_two_speeds_are_balanced_wandering_stragglers_coded() -> None:
    """Half of six take twice as long, all computing: shares of 2 to 1 take 4/3 in place of 2; and both remedies together."""
    random = np.random.default_rng(0)
    two = np.tile([1.0, 2.0] * 3, (60, 1)) * (1.0 + 0.001 * random.random((60, N)))
    plan = anyk.plan(record(two), slope=float(N), resamples=50)
    shares = next(one for one in plan.candidates if one.spec == "uncoded:balance=auto")
    assert plan.verdict == "change" and plan.best.seconds_per_step.median <= shares.seconds_per_step.median * 1.01
    assert shares.seconds_per_step.median == pytest.approx(4 / 3, rel=0.05)
    assert shares.load == pytest.approx(2 / 9, rel=0.1) and shares.memory == 1.0  # any part may become its own
    wandering = np.ones((60, N))
    wandering[np.arange(60), np.arange(60) % N] += 9.0
    coded = anyk.plan(record(wandering), slope=float(N), resamples=50)
    assert coded.best.exact and "balance" not in coded.best.spec
    censored = two.copy()
    censored[np.arange(60), random.integers(0, N, 60)] += 20.0
    both = anyk.plan(record(censored), slope=float(N), resamples=50)
    assert both.verdict == "change" and both.best.family in ("frc", "nested", "progress")


@pytest.mark.slow
def test_records_that_tell_too_little() -> None:
    five = anyk.plan(record(exponential(5)), resamples=20)
    assert five.evidence == "thin"
    never = exponential(20)
    never[:, 2] = np.nan
    for times, sentence in (
        (np.ones((20, 1)), "2 workers or more"),
        (np.zeros((20, 4)), "all times of the fleet record are 0"),
        (never, "worker 2 has no times"),
    ):
        with pytest.raises(BadInput, match=sentence):
            anyk.plan(record(times))


@pytest.mark.slow
def test_a_plan_for_a_changing_fleet_keeps_its_range() -> None:
    """Workers 1 and 4 are away from 5 s to 200 s: only rounds of all 8 workers tell how fast the fleet is."""
    problem = anyk.problems.from_data("synthetic:rows=640,features=4")
    away = [anyk.clusters.Outage(5.0, worker, 200.0, notice=2.0) for worker in (1, 4)]
    fleet = anyk.clusters.Simulated(8, delays="exp:mean=1", outages=away)
    run = anyk.train(problem, "uncoded", fleet, workers=(3, 8), partitions=16, steps=150)
    tasks = run.log.rows("SELECT count(DISTINCT worker) FROM chunks WHERE version < 150 GROUP BY version")
    complete = tasks.count((8,))
    assert 20 < complete < run.steps == 150
    record = anyk.fleet.read(run)
    sentence = f"only the {complete} of its 150 rounds in which all 8 workers were there"
    assert sentence in record.summary
    plan = anyk.plan(run, slope=0.0, everything=True)
    assert plan.assumptions[0] == f"all workers are there, as in the record: {sentence}"
    assert plan.best.spec == "frc:stragglers=2"  # the most that can be lost among 3
    assert plan.promise.workers == Workers(fewest=3, most=8, partitions=16)
    assert "cyclic" not in {choice.spec.partition(":")[0] for choice in (*plan.candidates, *plan.others)}
    trained = anyk.train(problem, plan.promise, anyk.clusters.Simulated(8, delays="exp:mean=1"), steps=5)
    assert (trained.config.strategy, trained.config.workers) == (plan.best.spec, plan.promise.workers)
    never = anyk.clusters.Simulated(8, delays="exp:mean=1", outages=[anyk.clusters.Outage(0.0, 1)])
    run = anyk.train(problem, "uncoded", never, workers=(3, 8), steps=5)
    with pytest.raises(anyk.BadInput, match="in which all workers are given a task .*; its 8 workers never were"):
        anyk.plan(run)


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["frc:stragglers=2", "k-sync:k=4", "bcc:batches=3"])
def test_nothing_printed_is_astronomical(spec: str) -> None:
    """What was cut off may have no mean at all: then there is a least value only, and no percentage below it."""
    problem = anyk.problems.from_data("synthetic:rows=60,features=4")
    fleet = anyk.clusters.Simulated(12, delays="exp:mean=0.05", seed=1)
    plan = anyk.plan(anyk.train(problem, spec, fleet, steps=60), resamples=50, everything=True)
    choices = (*plan.candidates, *plan.others)
    cells = [cell for row in (*plan_table(choices, plan.today).rows, *inexact_table(choices).rows) for cell in row]
    assert not [cell for cell in cells if "e+" in cell or re.search(r"(?<![.\d])\d{4,}", cell)]
    assert any("or more" in cell for cell in cells)
    assert "e+" not in plan._repr_html_()
    report = json.dumps(plan.report(), default=str)
    assert "e+" not in report


@pytest.mark.slow
def test_a_law_without_computing_advises_no_full_copies() -> None:
    law = anyk.delays.parse("exp:mean=0.5")
    for slope in (None, 0.0):
        plan = anyk.plan(law, workers=12, slope=slope, resamples=30)
        assert max(one.load for one in plan.candidates) <= 0.25 and plan.max_load == 0.25
        assert "tells how late workers are, but not how long they compute" in plan.assumptions[-1]
    with_slope = anyk.plan(law, workers=12, slope=1.2, resamples=30)
    assert with_slope.max_load == 1.0 and not any(
        "not how long they compute" in assumption for assumption in with_slope.assumptions
    )
    asked = anyk.plan(law, workers=12, slope=0.0, max_load=1.0, resamples=30)
    assert asked.best.load == 1.0 and any("then one is enough" in line for line in plan_lines(asked))
    assert [anyk.plan(law, workers=n, slope=0.0, resamples=20).max_load for n in (2, 3, 4)] == [0.5, 2 / 3, 0.5]


def test_a_plan_for_a_record_refuses_another_number_of_workers() -> None:
    times = np.ones((40, 6))
    with pytest.raises(BadInput, match="a record knows its workers"):
        anyk.plan(anyk.fleet.Record(times, load=1 / 6), workers=7)


def test_a_plan_against_asynchronous_steps_warns_of_nothing() -> None:
    times = np.ones((40, 6))
    times[np.arange(40), np.arange(40) % 6] = 10.0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plan = anyk.plan(anyk.fleet.Record(times, load=1 / 6), slope=2.0, today="async", resamples=20)
    assert all(np.isfinite(one.gain.low) for one in plan.candidates)
