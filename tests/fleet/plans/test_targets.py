"""Plans for a target: seconds to it against training itself, learning rates of each strategy's own, and promises kept."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import anyk
from anyk.base.errors import BadInput
from anyk.cli import main
from anyk.delays import TableDelays
from anyk.fleet.plans.candidates import batch_of, build_candidate
from anyk.fleet.plans.measured_fleet import MeasuredFleet, VectorSize, vectors_held
from anyk.fleet.records import Record
from anyk.protocol import Workers

N, TARGET = 6, 0.02
DATA = "synthetic:rows=240,features=8"


def problem(l2: float = 0.0) -> Any:
    """Least squares whose loss falls from 0.5 by a factor that the smallest of 6 eigenvalues decides."""
    random = np.random.default_rng(5)
    X = random.normal(size=(240, 6)) * np.linspace(1.0, 0.3, 6)
    y = X @ (random.normal(size=6) / np.linspace(1.0, 0.3, 6))
    return anyk.problems.LeastSquares(X, y, l2=l2, X_test=X, y_test=y)


def times(seed: int = 0, rounds: int = 60) -> Any:
    return np.random.default_rng(seed).exponential(1.0, (rounds, N)) + 0.4


def known(spec: str) -> bool:
    return spec.partition(":")[0] in ("uncoded", "frc", "async", "k-sync", "pasgd")


@pytest.fixture(scope="module")
def plan() -> Any:
    return anyk.plan(
        Record(times(), load=1 / N), slope=2.4, problem=problem(), target=TARGET, lr=0.2, resamples=100, runs=150,
        optimizer="gd", among=lambda strategy: known(strategy.spec),
    )  # fmt: skip


def trained(choice: Any, seed: int) -> float:
    """Seconds to the target on rounds that the plan has not seen."""
    optimizer = anyk.optimizers.GD(lr=choice.learning_rate)
    strategy = anyk.strategy(choice.spec, workers=N)
    seconds = times(100 + seed) + 2.4 * (max(anyk.protocol.shares_computed(strategy)) - 1 / N)  # as the slope says
    delays = TableDelays(seconds, by="round" if strategy.facts.exact else "task")
    cluster = anyk.clusters.Simulated(N, delays=delays, seed=seed)
    with anyk.train(problem(), strategy, cluster, optimizer=optimizer, target=TARGET, steps=5000) as run:
        assert run.time_to_target is not None
        return run.time_to_target


@pytest.mark.slow
def test_seconds_to_the_target_are_those_of_training(plan: Any) -> None:
    """Exact ones take the steps of uncoded; five runs on other rounds lie in the 90 % interval, all but one at most."""
    assert plan.report()["compared_by"] == "seconds_to_target" and plan.target == TARGET
    assert {one["spec"]: one["gain"] for one in plan.report()["others"]}["pasgd:tau=10"] is None  # given up
    exact = [one for one in plan.candidates if one.exact]
    assert len(exact) >= 3 and len({one.steps_to_target for one in exact}) == 1
    uncoded = anyk.train(
        problem(), "uncoded", anyk.clusters.Simulated(N), target=TARGET, steps=5000,
        optimizer=anyk.optimizers.GD(lr=exact[0].learning_rate),
    )  # fmt: skip
    assert uncoded.steps == exact[0].steps_to_target == plan.horizon
    for one in exact:
        seconds = one.seconds_per_step.median * one.steps_to_target
        assert one.arrival.median == pytest.approx(seconds * np.exp(one.optimism), rel=1e-6)
    assert [one.spec for one in plan.candidates if one.optimism] == [plan.best.spec]
    families = {one.spec.partition(":")[0]: one for one in reversed(plan.candidates)}
    assert {"frc", "async", "uncoded"} <= set(families)
    for one in (families["frc"], families["async"]):
        within = [one.arrival.holds(trained(one, seed)) for seed in range(5)]
        assert sum(within) >= 4, (one.spec, one.arrival)


@pytest.mark.slow
def test_every_strategy_has_a_learning_rate_of_its_own(plan: Any) -> None:
    """At the rate of uncoded, asynchronous SGD does not come there in ten times the time that it takes at its own."""
    rates = {one.family: one.learning_rate for one in plan.candidates}
    assert rates["async"] < rates["uncoded"] / 2
    assert all(one.bytes_per_step == one.vectors * 6 * 8 for one in plan.candidates)
    assert plan.promise.learning_rate == plan.best.learning_rate and plan.promise.arrival == plan.best.arrival
    one = next(one for one in plan.candidates if one.spec == "async")
    with pytest.raises(anyk.RunFailed, match="diverged: the loss was 4"):
        anyk.train(
            problem(), "async", anyk.clusters.Simulated(N, delays=TableDelays(times(), by="task")), target=TARGET,
            seconds=10 * one.arrival.median, optimizer=anyk.optimizers.GD(lr=rates["uncoded"] * 4),
        )  # fmt: skip


@pytest.mark.slow
def test_gains_over_a_strategy_that_fails_are_lower_bounds() -> None:
    """A worker with data of its own that is never waited for: only strategies that take it in come to the target."""
    slow = np.ones((30, N))
    slow[:, 0] = 20.0
    random = np.random.default_rng(0)
    X = np.zeros((60, 2))
    X[:10, 0], X[10:, 1] = random.normal(size=10), random.normal(size=50)  # the first worker's rows know the first
    y = X @ [3.0, 1.0]
    plan = anyk.plan(
        Record(slow, load=1 / N), slope=0.0, today="k-sync:k=5", target=0.02, resamples=50, runs=60, optimizer="gd", lr=2.0,
        evaluate="every=2",
        problem=anyk.problems.LeastSquares(X, y, l2=0.0, X_test=X, y_test=y),
        among=lambda strategy: strategy.spec in ("uncoded", "frc:stragglers=1", "frc:stragglers=2", "uncoded:wait=5"),
    )  # fmt: skip
    assert plan.verdict == "change" and plan.best.spec == "frc:stragglers=1" and plan.best.gain.median > 0.8
    assert any("'uncoded:wait=5' had not reached the target" in assumption for assumption in plan.assumptions)


@pytest.mark.slow
def test_seeds_with_which_todays_strategy_was_given_up_are_told(monkeypatch: Any) -> None:
    monkeypatch.setattr("anyk.fleet.plans.targets._SEED_PATIENCE", 0.01)
    plan = anyk.plan(
        Record(times(), load=1 / N), slope=2.4, problem=problem(), target=TARGET, lr=0.2, resamples=20, runs=30,
        optimizer="gd", today="async", among=lambda strategy: strategy.spec == "async",
    )  # fmt: skip
    assert any("'async' reached the target with 0 of 5 seeds; the others count as" in one for one in plan.assumptions)


def test_a_target_reached_in_one_step_gives_no_warning() -> None:
    """Steps of asynchronous SGD that are taken at one moment take no time."""
    plan = anyk.plan(
        Record(np.ones((30, N)), load=1 / N), slope=0.0, problem=problem(), target=5.0, resamples=20, runs=30, lr=0.4,
        optimizer="gd", among=lambda strategy: strategy.spec in ("uncoded", "async"),
    )  # fmt: skip
    assert plan.horizon == 1 and plan.today.steps_to_target == 1.0


def test_mini_batches_have_as_many_samples_as_todays() -> None:
    today = anyk.strategy("uncoded:batch=4", workers=N)
    assert batch_of(today) == 4 * N
    for spec in ("frc:stragglers=1", "k-sync:k=4", "uncoded:balance=auto", "pasgd:tau=2"):
        assert batch_of(build_candidate(spec, Workers(most=N), 1, batch=4 * N)) == 4 * N
    assert build_candidate("agc:load=3,partitions=3", Workers(most=N), 1, batch=4 * N).spec.endswith("batch=8")
    with pytest.raises(BadInput, match="cannot have 4 samples"):
        build_candidate("uncoded", Workers(most=N), 1, batch=4)
    record = Record(times(), load=1 / N)
    plan = anyk.plan(record, today="uncoded:batch=4", slope=0.0, resamples=50)
    assert plan.best.spec != "uncoded:batch=4"
    assert all(batch_of(anyk.strategy(one.spec, workers=N)) == pytest.approx(4 * N, rel=0.1) for one in plan.candidates)


def test_a_promise_of_a_target_is_run_and_checked(plan: Any, tmp_path: Path) -> None:
    """Kept on the record's own rounds; at a quarter of the rate it is the steps that broke it; parts add up exactly."""
    file = tmp_path / "plan.toml"
    plan.save(file)
    promise = anyk.runs.Promise.load(file)
    assert promise == plan.promise
    cluster = anyk.clusters.Simulated(N, delays=TableDelays(times(), by="round"))
    run = anyk.train(problem(), promise, cluster)
    check = anyk.check(run, record=Record(times(), load=1 / N))
    assert run.config.target == TARGET and check.held and "the target took" in check.sentence
    slow = anyk.train(problem(), promise, anyk.clusters.Simulated(N, delays=TableDelays(times(), by="round")),
                      optimizer=anyk.optimizers.GD(lr=promise.learning_rate / 8))  # fmt: skip
    check = anyk.check(slow, record=Record(times(), load=1 / N))
    assert not check.held and check.broke == "steps" and check.parts is not None
    assert sum(check.parts.values()) == check.measured.seconds - check.promised.seconds
    assert check.measured.steps == slow.steps > 2 * check.promised.steps


@pytest.mark.slow
def test_the_command_line_and_what_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = tmp_path / "fleet.npz"
    Record(times(), load=1 / N).save(record)

    def run(*more: str) -> Any:
        return CliRunner().invoke(
            main, ["plan", str(record), "--slope", "0", "--resamples", "20", "--max-load", "0.2", *more]
        )

    result = run("--data", DATA, "--target", "0.95", "--runs", "30", "--lr", "0.5", "--exact", "--json", str(tmp_path / "p.json"),
               "-o", str(tmp_path / "plan.toml"))  # fmt: skip
    assert (
        result.exit_code == 0
        and "seconds to" in result.output
        and "training to the target: 1 strategy" in result.output
    )
    plain = json.loads((tmp_path / "p.json").read_text(), parse_constant=pytest.fail)  # no NaN
    assert plain["target"] == 0.95 and plain["best"]["seconds_to_target"] == plain["best"]["arrival"]["median"]
    ran = CliRunner().invoke(main, ["train", "--plan", str(tmp_path / "plan.toml"), "--data", DATA, "--quiet",
                                    "--cluster", "simulated", "--delays", f"trace:{record}", "--workers", str(N),
                                    "--out", str(tmp_path / "run")])  # fmt: skip
    assert ran.exit_code == 0 and "the target took" in ran.output
    for args, said in (
        (["--target", "0.9"], "name it with --data or --problem"),
        (["--data", DATA], "--data is for a plan with a --target"),
        (["--lr", "0.1"], "--lr is for a plan with a --target"),
        (["--data-file", "none.csv"], "--data-file is for a plan with a --target"),
        (["--split", "nonsense"], "--split is for a plan with a --target"),
        (["--model", "two-layer:hidden=3"], "--model is for a plan with a --target"),
        (["--l2", "5"], "--l2 is for a plan with a --target"),
        (["--runs", "77"], "--runs is for a plan with a --target"),
        (["--data", DATA, "--target", "1.5"], "auc lies between 0 and 1"),
        (["--data", DATA, "--target", "0.9", "--runs", "3"], "runs must be a whole number of at least 30, got 3"),
        (["--data", DATA, "--target", "0.9", "--models", "2"], "for one model, got models=2"),
        (["--batch", "-1"], "batch must be a whole number of at least 0"),
        (["--max-staleness", "-1"], "max_staleness must be a number of at least 0"),
    ):
        bad = run(*args)
        assert bad.exit_code == 2 and said in bad.output, bad.output
    monkeypatch.setattr("anyk.fleet.plans.targets.LIMIT", 300)  # steps
    with pytest.raises(BadInput, match="no strategy reached mse 0.001 within"):
        anyk.plan(
            Record(times(), load=1 / N), slope=0.0, problem=problem(l2=1.0), evaluate="every=100",
            target=1e-3, runs=30, resamples=20, among=lambda strategy: strategy.spec in ("uncoded", "frc:stragglers=1"),
        )  # fmt: skip


def test_vectors_are_counted_as_strategies_define_them() -> None:
    """Sent in a step, of 6 workers: to each and back, of those given new work; each neighbour's model; compressed."""
    fleet = MeasuredFleet(1.0 + np.random.default_rng(0).exponential(1.0, (12, 6)), np.zeros((12, 6), bool), 1 / 6, 0.0)
    share = anyk.compression.compressor("top-k:share=0.1").size(50, 4) / 200
    sent = {
        "uncoded:wait=4": 12, "async": 2, "k-async:k=3": 6, "fedbuff:k=3,tau=4": 6, "pasgd:tau=5": 12,
        "pasgd:tau=5,clients=3": 6, "dpsgd:graph=ring": 2 * 6, "dpsgd:graph=complete": 6 * 5, "easgd": 12,
        "compressed:of=(uncoded),by=(top-k:share=0.1)": 6 + 6 * share,
        "compressed:of=(pasgd:tau=5),by=(top-k:share=0.1)": 6 + 6 * share,
    }  # fmt: skip
    for spec, vectors in sent.items():
        counted = fleet.quality(anyk.strategy(spec, workers=6), VectorSize(50, 4)).vectors
        assert counted == pytest.approx(vectors), spec
    # the model and a sum; with local steps, a model and an optimiser's state (of Adam's, 2) besides; what is left out
    expected = {"async": 2, "dpsgd:graph=ring": 5, "pasgd:tau=5,inner=adamw": 6}
    expected |= {"compressed:of=(uncoded),by=(top-k:share=0.1)": 3, "compressed:of=(uncoded),by=(qsgd)": 2}
    assert {spec: vectors_held(anyk.strategy(spec, workers=6), state=1) for spec in expected} == expected


def test_a_target_that_the_initial_model_meets_is_refused() -> None:
    with pytest.raises(BadInput, match="the model has mse 1e\\+06 before the first step; give another target"):
        anyk.plan(Record(times(), load=1 / N), slope=2.4, problem=problem(), target=1e6, lr=0.2, resamples=20, runs=60,
                  optimizer="gd", among=lambda strategy: strategy.spec in ("uncoded", "async"))  # fmt: skip
