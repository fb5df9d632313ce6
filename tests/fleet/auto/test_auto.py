"""Training that measures, plans, switches and checks: no step is lost, and exact steps stay exact."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from click.testing import CliRunner

import anyk
from anyk.base.errors import BadInput
from anyk.cli import main
from anyk.clusters import Outage, Simulated, registry
from anyk.delays import TableDelays
from anyk.fleet.auto.auto_training import left_out
from anyk.fleet.auto.parts import continues
from anyk.fleet.records import Record
from anyk.protocol import Workers
from anyk.runs.callbacks import Watching

N = 4


def problem() -> Any:
    return anyk.problems.from_data("synthetic:rows=120,features=4")


def wide_problem() -> Any:
    return anyk.problems.from_data("synthetic:rows=240,features=4")


def wandering(rounds: int, then: int = 0) -> Any:
    """Each round another worker takes 10 s, the others 1; then all workers take 5 s."""
    times = np.full((rounds + then, N), 5.0)
    times[:rounds] = 1.0
    times[np.arange(rounds), np.arange(rounds) % N] = 10.0
    return times


@pytest.mark.slow
def test_a_missed_promise_plans_again_and_loses_no_step() -> None:
    heard: list[str] = []
    training = anyk.train_auto(
        problem(), workers=N, cluster="simulated", delays=TableDelays(wandering(30, 70), by="round"), steps=70, measure=10,
        every=10, tell=heard.append,
    )  # fmt: skip
    parts = [(run.config.strategy, run.begun, run.steps) for run in training.runs]
    # measured under a code that cuts the stragglers off; missed by far in the first ten steps of another fleet
    coded = "frc:stragglers=1"
    assert parts == [(coded, 0, 10), (coded, 10, 40), (coded, 40, 70)]
    assert training.history["step"].tolist() == list(range(71))  # every step once
    seconds = training.history["seconds"]
    assert seconds[10] == 10.0 and seconds[30] == pytest.approx(30.0) and (np.diff(seconds) > 0).all()
    assert training.seconds == pytest.approx(30 + 40 * 5)
    assert [stage.plan is None for stage in training.parts] == [True, False, False]
    missed, kept_promise = training.parts[1].checked, training.parts[2].checked
    assert missed is not None and not missed.held and kept_promise is not None and kept_promise.held
    assert [line.split(":")[0] for line in heard if line.startswith("at step")] == ["at step 40"]
    alone = anyk.train(problem(), "uncoded", "simulated", workers=N, steps=70)
    assert training.model == pytest.approx(alone.model, rel=1e-12)  # the sums are exact
    assert training.history["loss"][-1] == pytest.approx(alone.history["loss"][-1], rel=1e-12)


@pytest.mark.slow
def test_all_workers_are_waited_for_where_that_may_be_faster() -> None:
    """Computing takes all of the time: two copies cost twice as much, until one worker becomes six times slower."""
    times = np.full((300, 8), 0.5) * np.exp(np.random.default_rng(0).normal(0.0, 0.02, (300, 8)))
    times[100:, 3] *= 6.0
    heard: list[str] = []
    training = anyk.train_auto(
        problem(), workers=8, cluster="simulated", delays=TableDelays(times, by="round", per="load"), steps=200,
        evaluate="none", tell=heard.append,
    )  # fmt: skip
    parts = [(run.config.strategy, run.begun) for run in training.runs]
    assert parts[:3] == [("frc:stragglers=1", 0), ("uncoded", 10), ("uncoded", 20)]
    assert any("may be faster, but too many times were cut off" in line for line in heard)
    assert 100 < parts[3][1] <= 120 and parts[-1][0] != "uncoded"
    assert training.seconds < 200.0  # uncoded takes 50 s, then 300 s


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["exponential", "constant", "slower", "ends"])
@pytest.mark.parametrize("per", ["task", "load"])
def test_it_takes_little_longer_than_the_best_fixed_strategy(kind: str, per: str) -> None:
    """At most 1.3 times the best of six; the times are virtual, and the same for all."""
    random = np.random.default_rng(5)
    times = 0.5 * (1.0 + random.exponential(0.05, (600, 8)))
    if kind == "exponential":
        times = random.exponential(0.5, times.shape)
    elif kind == "constant":
        times[:] = 0.5
    elif kind == "slower":
        times[150:, 3] *= 6.0
    else:
        times[:150] += random.exponential(0.5, (150, 8))
    same: Any = {"workers": 8, "delays": TableDelays(times, by="round", per=per), "steps": 300, "evaluate": "none"}
    same["cluster"] = "simulated"
    fixed = (
        "uncoded",
        "uncoded:balance=auto",
        "frc:stragglers=1",
        "frc:stragglers=7",
        "cyclic:stragglers=2",
        "progress:load=2",
    )
    best = min(anyk.train(wide_problem(), spec, **same).seconds for spec in fixed)
    training = anyk.train_auto(wide_problem(), **same)
    assert training.run.steps == 300 and all(
        anyk.strategy(run.config.strategy, workers=8).facts.exact for run in training.runs
    )
    assert training.seconds <= 1.3 * best


@pytest.mark.slow
def test_a_fleet_that_changes_is_measured_until_all_were_there() -> None:
    absences = [[], [Outage(0.0, 3, 100.0)]]  # of the cluster that describes all, and of the first part

    def make(*, workers: int, delays: Any, seed: int, communication: Any) -> Simulated:
        away = absences.pop(0) if absences else ()
        return Simulated(workers, delays=delays, seed=seed, communication=communication, outages=away)

    lines: list[str] = []
    delays = TableDelays(wandering(100), by="round")
    with mock.patch.dict(registry.entries, {"late": replace(registry.entry("simulated"), build=make)}):
        auto = anyk.train_auto(
            problem(), workers=(2, N), cluster="late", delays=delays, steps=60, measure=12, tell=lines.append
        )
    parts = [(run.config.strategy, run.begun, run.steps) for run in auto.runs]
    coded = "frc:stragglers=1"
    assert {run.config.workers for run in auto.runs} == {Workers(fewest=2, most=N, partitions=16)}
    assert parts == [(coded, 0, 12), (coded, 12, 36), (coded, 36, 60)]  # twice as long
    assert [line for line in lines if "no plan yet" in line]
    alone = anyk.train(problem(), "uncoded", "simulated", workers=N, partitions=16, steps=60)
    np.testing.assert_allclose(auto.model, alone.model, rtol=0, atol=1e-12)
    assert "cyclic" in auto.left_out and "frc" not in auto.left_out


@pytest.mark.slow
def test_limits_are_of_all_parts_and_a_record_spares_measuring(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"workers": N, "cluster": "simulated", "delays": TableDelays(wandering(60), by="round")}
    only = anyk.train_auto(problem(), **settings, steps=8, measure=10)
    assert [run.steps for run in only.runs] == [8] and only.parts[0].plan is None
    short = anyk.train_auto(problem(), **settings, seconds=40.0, measure=10)
    assert [(run.config.strategy, run.steps) for run in short.runs] == [
        ("frc:stragglers=1", 10),
        ("frc:stragglers=1", 39),
    ]
    assert 38.0 <= short.seconds <= 40.0
    lean = anyk.train_auto(problem(), **settings, steps=12, measure=10, max_load=0.3)  # too little for two copies
    assert [run.config.strategy for run in lean.runs] == ["uncoded", "uncoded"]
    fixed = anyk.train_auto(
        problem(),
        **settings,
        steps=20,
        record=Record(wandering(60), load=1 / N),
        slope=0.0,
        every=10,
        out=tmp_path / "a",
    )
    assert (tmp_path / "a" / "record.npz").exists()  # the first part is checked against it, whenever that is resumed
    assert [(run.config.strategy, run.steps) for run in fixed.runs] == [("frc:stragglers=1", 20)]
    with pytest.raises(BadInput, match="the record is of 4 workers, and 5 are to train"):
        anyk.train_auto(problem(), **(settings | {"workers": 5}), record=Record(wandering(60), load=1 / N))


@pytest.mark.slow
def test_stopped_in_each_part_it_goes_on_to_the_same_bits(tmp_path: Path, monkeypatch: Any) -> None:
    """Once in each part, between two missed windows, while planning, and killed before a part's first checkpoint."""
    np.savez(tmp_path / "fleet.npz", seconds=wandering(30, 70))
    settings: dict[str, Any] = {"workers": N, "cluster": "simulated", "delays": f"trace:{tmp_path}/fleet.npz,by=round", "steps": 70,
                             "measure": 10, "every": 10, "slope": 0.0}  # fmt: skip
    uninterrupted = anyk.train_auto(problem(), **settings)
    assert [(run.begun, run.steps) for run in uninterrupted.runs] == [(0, 10), (10, 40), (40, 70)]
    heard: list[str] = []
    first: dict[str, Any] = {"out": tmp_path / "auto", "tell": heard.append, "checkpoint_every": 1e-6}

    class Kill(anyk.Callback):
        def __init__(self, step: int) -> None:
            self.step = step

        def on_step(self, info: Any) -> None:
            if info.step == self.step:
                raise SystemExit  # as SIGKILL: nothing is written any more

    def stop(driver: Any, _: Any) -> None:
        if driver.step == 35:
            driver.interrupt()

    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(SystemExit):
        anyk.train_auto(problem(), **settings, **first, callbacks=[Kill(5)])
    options = {"tell": heard.append, "checkpoint_every": 1e-6}
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("anyk.fleet.auto.parts.plan", interrupted)
        anyk.resume_auto(tmp_path / "auto", **options)
    with pytest.raises(KeyboardInterrupt):  # in a window that will be missed
        anyk.resume_auto(tmp_path / "auto", **options, callbacks=[Watching(stop)])
    with pytest.raises(SystemExit):
        anyk.resume_auto(tmp_path / "auto", **(options | {"checkpoint_every": 1e9}), callbacks=[Kill(55)])
    (tmp_path / "auto" / "4-uncoded").mkdir()
    (tmp_path / "auto" / "4-uncoded" / "lock").touch()  # killed before its run.toml was written
    resumed = anyk.resume_auto(tmp_path / "auto", **options)
    assert resumed.model.tobytes() == uninterrupted.model.tobytes()
    for name, column in uninterrupted.history.items():
        assert np.array_equal(resumed.history[name], column, equal_nan=True), name
    assert [stage.promise for stage in resumed.parts] == [stage.promise for stage in uninterrupted.parts]
    assert [stage.checked and stage.checked.report() for stage in resumed.parts] == [
        stage.checked and stage.checked.report() for stage in uninterrupted.parts
    ]
    assert [line.split(":")[0] for line in heard if line.startswith("at step")] == ["at step 40"]
    further = anyk.resume_auto(tmp_path / "auto", steps=75)
    assert [run.steps for run in further.runs] == [10, 40, 75]


@pytest.mark.slow
def test_several_models_are_trained_in_turn() -> None:
    """Bursts of two rounds that any worker may have: what is chosen gives each model the steps of uncoded."""
    random = np.random.default_rng(3)
    times = np.ones((80, 8))
    for t in range(0, 80, 4):
        times[t : t + 2, random.choice(8, 3, replace=False)] = 6.0
    problems = [anyk.problems.from_data(f"synthetic:rows=160,features=4,seed={i}") for i in range(3)]
    training = anyk.train_auto(
        problems, workers=8, cluster="simulated", delays=TableDelays(times, by="round"), steps=20, measure=30, every=12
    )
    measured, coded = training.runs[:2]
    assert (measured.config.strategy, measured.steps) == ("frc:stragglers=1,models=3", 10)
    plan = training.parts[1].plan
    assert plan is not None and {"m-sgc", "sr-sgc", "gc"} <= {one.family for one in (*plan.candidates, *plan.others)}
    assert coded.seconds_a_job < measured.seconds_a_job
    alone = anyk.train_many(problems, "uncoded", "simulated", workers=8, steps=20)
    for slot, model in alone.models.items():
        assert training.models[slot] == pytest.approx(model, rel=1e-9)
        assert training.history_of(slot)["step"].tolist() == list(range(21))
    assert not {"gc", "m-sgc"} & set(left_out(Workers(most=8), 3)) and {"pasgd", "dpsgd"} <= set(
        left_out(Workers(most=8), 3)
    )


def test_those_that_cannot_continue_a_run_are_left_out() -> None:
    names = left_out(Workers(most=N))
    assert {"pasgd", "dpsgd", "diloco"} <= set(names) and not {"frc", "uncoded", "cyclic"} & set(names)
    assert continues(anyk.strategy("frc:load=2", workers=N)) and not continues(anyk.strategy("dpsgd", workers=N))


@pytest.mark.parametrize(
    ("given_", "why"),
    [
        ({"measure": 4}, "measure must be a whole number of at least 5"),
        ({"every": 0}, "every must be a whole number of at least 1"),
        ({"delays": "none"}, "there is nothing to measure; give delays"),
    ],
)
def test_what_cannot_be_found(given_: dict[str, Any], why: str) -> None:
    with pytest.raises(BadInput, match=why):
        anyk.train_auto(problem(), **({"workers": N, "cluster": "simulated", "delays": "exp:mean=1"} | given_))


@pytest.mark.slow
def test_the_command(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez("fleet.npz", seconds=wandering(60))
    words = ["train", "--data", "synthetic:rows=120,features=4", "--cluster", "simulated", "--quiet", "--workers", str(N),
             "--delays", "trace:fleet.npz"]  # fmt: skip
    done = CliRunner().invoke(main, [*words, "--strategy", "auto:measure=12", "--steps", "30", "--out", "run", "--json",
                                     "run.json"])  # fmt: skip
    assert done.exit_code == 0, done.output
    assert (
        "from step 0: measuring 12 steps of 'frc:stragglers=1'" in done.output and "from step 12: 'frc" in done.output
    )
    assert "steps 12 to 30: held: a step took 1 s" in done.output and "left out: ad-psgd, " in done.output
    assert sorted(one.name for one in Path("run").iterdir()) == ["1-measure", "2-frc", "auto.toml"]
    shown = CliRunner().invoke(main, ["show", "run"])  # parts of one training are no rivals
    table = [line.split() for line in shown.output.splitlines() if "frc" in line]
    assert [row[1:4] for row in table[:2]] == [["0", "to", "12"], ["12", "to", "30"]], shown.output
    assert "1.0x" not in shown.output and "30 steps in" in shown.output
    refused = CliRunner().invoke(main, ["show", "run", "--step", "3"])
    assert refused.exit_code == 2 and "--step is for one of the runs in it" in refused.output
    refused = CliRunner().invoke(main, ["verify", "run"])
    assert refused.exit_code == 2 and "name one of the runs in it, as in run/1-measure" in refused.output
    resumed = CliRunner().invoke(main, ["resume", "run", "--steps", "33", "--quiet"])
    assert resumed.exit_code == 0 and "steps 12 to 33: held: a step took 1 s" in resumed.output, resumed.output
    refused = CliRunner().invoke(main, ["resume", "run", "--add", "uncoded"])
    assert refused.exit_code == 2 and "--seeds are for the folder of a race" in refused.output
    several = [*words, "--strategy", "auto:measure=5", "--workers", f"2..{N}", "--partitions", "12", "--steps", "8"]
    follows = CliRunner().invoke(main, several)
    assert follows.exit_code == 0 and "'frc:stragglers=1' (" in follows.output, follows.output
    report = json.loads(Path("run.json").read_text())
    assert [stage["steps"] for stage in report["parts"]] == [12, 30] and report["parts"][1]["check"]["held"] is True
    for more, sentence in (
        (["--strategy", "auto:measures=12"], "measures"),
        (["--strategy", "auto", "--from", "run/2-frc"], "starts a new run"),
        (["--strategy", "auto:record=nowhere.csv"], "nowhere.csv"),
        (["--strategy", "auto", "--out", "run"], "'run' exists; choose another, or go on with it: anyk resume run"),
    ):
        failed = CliRunner().invoke(main, [*words, *more])
        assert failed.exit_code == 2 and sentence in failed.output and failed.output.count("\n") <= 2, failed.output
    assert "auto:measure=12" in CliRunner().invoke(main, [*words, "--strategy", "auto:measure=12", "--settings"]).output


def test_candidates_are_admitted_as_strategies_of_train_are() -> None:
    """A data loader's mini-batches are spread over the partitions, which six cannot share."""
    torch = pytest.importorskip("torch")
    x, y = torch.randn(24, 3), torch.randn(24, 1)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=4)
    trained = anyk.problems.TorchProblem(torch.nn.Linear(3, 1), torch.nn.MSELoss(), loader)
    admitted = {}
    specs = ("uncoded", "frc:load=2", "frc:load=3,partitions=6", "pasgd", "uncoded:batch=3")

    def fake_plan(record: Any, *, among: Any, **settings: Any) -> Any:
        admitted.update({spec: among(anyk.strategy(spec, workers=N)) for spec in specs})
        raise BadInput("seen")

    measured = Record(np.tile([1.0, 1.0, 1.0, 3.0], (30, 1)))
    with mock.patch("anyk.fleet.auto.parts.plan", fake_plan), pytest.raises(BadInput, match="seen"):
        anyk.train_auto(trained, record=measured, workers=N, cluster="simulated", delays="exp:mean=1", lr=0.1, steps=20)
    assert admitted == dict(zip(specs, (True, True, False, False, True), strict=True))
    with pytest.raises(BadInput, match="which 6 partitions cannot share evenly"):
        anyk.train(trained, "frc:load=3,partitions=6", "simulated", workers=N, lr=0.1, steps=2)
