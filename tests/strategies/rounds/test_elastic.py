"""Fleets whose workers join and leave: the model is that of a fixed fleet, and nothing is computed twice after notice."""

from __future__ import annotations

import numpy as np
import pytest
from click.testing import CliRunner

import anyk
from anyk.cli import main
from anyk.clusters import Outage, Simulated
from anyk.protocol import Dispatch, Failed, Fleet, Joined, Leaving, Lost, Reply, Running, Stop, Workers
from anyk.runs.floor import floor_seconds
from anyk.runs.log import queries
from anyk.testing import check_strategy
from byhand import adapted_by_hand

pytestmark = pytest.mark.in_process

MOST = 16
PROBLEM = anyk.problems.from_data("synthetic:rows=640,features=8")


def away(start: float, end: float, *workers: int, notice: float = 0.0) -> list[Outage]:
    return [Outage(start, worker, end, notice) for worker in workers]


# 12, 7, 16 and 3 workers; one is lost alone in between
FLEET = [*away(0, 20, *range(12, 16)), *away(23, 50, *range(7, 16)), *away(75, 95, *range(3, 16)), *away(60, 65, 2)]


def train(strategy: str, outages=(), *, steps: int = 200, problem=PROBLEM, **more):
    return anyk.train(
        problem, strategy, Simulated(MOST, delays="exp:mean=1", seed=3, outages=outages), steps=steps, **more
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "steps"),
    [
        ("uncoded", 50),
        ("frc:stragglers=2", 210),
        ("uncoded:wait=all", 50),
        ("k-sync:k=all", 50),
        ("uncoded:batch=4", 50),
        ("frc:stragglers=1,batch=4,order=epoch", 150),
        ("frc:stragglers=2,check=0.3", 160),
        ("frc:stragglers=1,cancel=discard", 110),
    ],
)
def test_the_model_does_not_depend_on_who_is_there(strategy: str, steps: int) -> None:
    settings = {"steps": steps, "evaluate": None}
    changing, fixed = (train(strategy, outages, workers=(3, MOST), **settings) for outages in (FLEET, ()))
    assert changing.seconds > 95.0  # all have left and come back
    counts = {int(note.split()[0]) for (note,) in changing.log.rows("SELECT text FROM notes WHERE kind = 'fleet'")}
    assert {3, 7, 16} <= counts
    np.testing.assert_allclose(changing.model, fixed.model, rtol=0, atol=1e-12)
    few = anyk.train(PROBLEM, strategy, Simulated(12, delays="exp:mean=1", seed=3), partitions=64, **settings)
    np.testing.assert_allclose(changing.model, few.model, rtol=0, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["uncoded:wait=0.75n", "bgc:load=3", "pasgd:tau=3"])
def test_approximate_steps_go_on(strategy: str) -> None:
    """The loss ends where a fixed fleet's does, though the models differ."""
    changing, fixed = (train(strategy, outages, workers=(3, MOST), evaluate="every=200") for outages in (FLEET, ()))
    assert changing.steps == 200
    assert changing.loss == pytest.approx(fixed.loss, rel=0.1)


@pytest.mark.slow
def test_adacomm_of_a_changing_fleet_by_hand() -> None:
    """Models are weighted by the samples of those who are there, and tau follows the loss of their mean."""
    outages = [*away(0, 20, 4, 5), *away(30, 60, 3), *away(70, 95, 1, 2, 3)]
    fleet = Simulated(6, delays="exp:mean=0.3", seed=3, outages=outages)
    spec = "adacomm:tau=16,interval=8,batch=2"
    optimizer = anyk.optimizers.GD(lr=0.3)
    run = anyk.train(PROBLEM, spec, fleet, workers=(2, 6), partitions=25, steps=60, optimizer=optimizer)
    w, taus = adapted_by_hand(run, PROBLEM, partitions=25, first_tau=16, by_samples=True)
    assert run.model == pytest.approx(w, abs=1e-12)
    assert taus[0] > taus[3] > taus[-1]
    assert {len(run.receipt(step).samples) for step in range(1, 61)} >= {3, 4, 5, 6}


@pytest.mark.slow
def test_with_notice_no_step_is_computed_twice() -> None:
    """Without notice the workers that take over begin anew; with it every chunk that is finished counts."""
    outages = [
        away(start, start + 60.0, worker, notice=8.0)[0] for start, worker in ((40, 1), (90, 5), (140, 2), (190, 7))
    ]
    run = anyk.train(
        PROBLEM, "uncoded", Simulated(8, delays="exp:mean=1", seed=1, outages=outages), workers=(4, 8), steps=200
    )
    assert set(run.log.rows("SELECT ending FROM chunks WHERE version < 200")) == {("counted",)}
    assert len(run.log.rows("SELECT 1 FROM events WHERE kind = 'Leaving'")) == 4
    sudden = [outage._replace(notice=0.0) for outage in outages]
    run = anyk.train(
        PROBLEM, "uncoded", Simulated(8, delays="exp:mean=1", seed=1, outages=sudden), workers=(4, 8), steps=200
    )
    assert dict(run.log.rows("SELECT ending, count(*) FROM chunks GROUP BY ending"))["lost"] >= 1


def test_an_epoch_uses_each_sample_once() -> None:
    """Also while workers come and go: the rows of each partition's mini-batches, recorded as they are computed."""
    problem = anyk.problems.from_data("synthetic:rows=203,features=3")
    used: list[tuple[int, int]] = []
    partitions = type(problem.split(64))
    gradient = partitions.partial_gradient

    def noting(self, j, w, rows=None, /):
        used.extend((j, int(row)) for row in (range(self.sizes[j]) if rows is None else rows))
        return gradient(self, j, w, rows)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(partitions, "partial_gradient", noting)
        run = train("uncoded:batch=2,order=epoch", FLEET, workers=(3, MOST), steps=8, problem=problem, evaluate=None)
    assert run.steps == 8
    sizes = problem.split(64).sizes  # 2 or 3 rows: an epoch has 2 steps
    once = {(j, row) for j, size in enumerate(sizes) for row in range(size)}
    counts = {worker: used.count(worker) for worker in once}
    assert set(counts.values()) == {4}
    assert len(used) == 4 * len(once)


def test_dropout_masks_do_not_depend_on_who_is_there() -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    X, y = torch.randn(64, 6, dtype=torch.float64), torch.randn(64, dtype=torch.float64)
    layers = torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Dropout(0.4), torch.nn.Linear(8, 1), torch.nn.Flatten(0)
    module = torch.nn.Sequential(*layers).double()
    problem = anyk.problems.TorchProblem(module, torch.nn.MSELoss(), (X, y))
    models = []
    for strategy, outages in (("uncoded", away(0, 900, *range(3, 8))), ("frc:stragglers=1", ()), ("uncoded", ())):
        cluster = Simulated(8, delays="exp:mean=1", seed=2, outages=outages)
        run = anyk.train(
            problem,
            strategy,
            cluster,
            workers=(3, 8),
            partitions=16,
            steps=1,
            optimizer=anyk.optimizers.GD(lr=0.1),
        )
        models.append(run.model)
    np.testing.assert_allclose(models[1], models[0], rtol=0, atol=1e-12)
    np.testing.assert_allclose(models[2], models[0], rtol=0, atol=1e-12)
    assert np.abs(models[0] - problem.initial()).max() > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spec", "fewest"),
    [
        ("uncoded", 3),
        ("frc:stragglers=2,check=0.5", 4),
        ("uncoded:wait=0.75n", 3),
        ("bgc:load=3", 3),
        ("pasgd:tau=3", 2),
        ("uncoded:models=2", 2),
        ("adacomm:tau=5,interval=0.5", 2),
        ("adacomm:tau=5,interval=0.5,probe=1/2/5", 3),
        ("uncoded:wait=2|0.5s", 3),
    ],
)
def test_hostile_schedules(spec: str, fewest: int) -> None:
    for seed in range(6):
        check_strategy(anyk.strategy(spec, workers=(fewest, 7)), steps=12, outages=6, seed=seed)


@pytest.mark.parametrize("strategy", ["uncoded", anyk.strategy("uncoded", workers=5)])
def test_a_range_must_be_that_of_the_cluster(strategy) -> None:
    for cluster, more in ((Simulated(8), {"workers": (2, 5)}), (Simulated(4), {"workers": 5, "partitions": 16})):
        with pytest.raises(anyk.BadInput, match=r"the cluster has \d workers, got 5 as the largest number"):
            anyk.train(PROBLEM, strategy, cluster, steps=3, **more)
    assert anyk.train(PROBLEM, strategy, Simulated(5), workers=(2, 5), steps=3).steps == 3


def test_too_few_workers_are_waited_for_or_the_run_says_so() -> None:
    wait = anyk.train(
        PROBLEM, "uncoded", Simulated(4, delays="exp:mean=1", outages=away(5, 90, 0, 1)), workers=(3, 4), steps=20
    )
    assert any("waits for 1 more workers" in note for (note,) in wait.log.rows("SELECT text FROM notes"))
    assert wait.seconds > 90
    forever = Simulated(4, delays="exp:mean=1", outages=[Outage(5, 0), Outage(6, 1)])
    with pytest.raises(anyk.RunFailed, match="3 workers are needed; given up: 0, 1"):
        anyk.train(PROBLEM, "uncoded", forever, workers=(3, 4), steps=20)


@pytest.mark.parametrize("strategy", ["uncoded", "frc:stragglers=1"])
@pytest.mark.parametrize("order", ["failed lost", "failed leaving lost", "leaving failed lost", "leaving failed"])
@pytest.mark.parametrize("last", [True, False])
def test_who_fails_and_leaves_is_replaced_in_the_same_round(strategy: str, order: str, last: bool) -> None:
    """Workers 2 and 3 hold partitions that no other has; the message of worker 2 cannot be used, and it is taken away."""
    subject = anyk.strategy(strategy, workers=(2, 4))
    state, commands = subject.start(Fleet(4, (0, 1, 2, 3)))
    tasks = {}

    def note(commands) -> None:
        for command in commands:
            assert not isinstance(command, Stop), command
            if isinstance(command, Dispatch):
                tasks.update(dict(zip(command.workers, range(command.task, 99), strict=False)))

    note(commands)
    if "frc" in strategy:  # worker 3 of the same group is away
        note(subject.on(state, Lost(0.5, 3, "gone")))
    others = [worker for worker in (0, 1, 3) if worker in tasks and not ("frc" in strategy and worker)]
    for worker in others[: len(others) - (not last)]:
        note(subject.on(state, Reply(1.0, worker, tasks[worker], 0)))
    for kind in order.split():
        event = {
            "failed": Failed(2.0, 2, tasks[2], 0, "not finite"),
            "leaving": Leaving(2.0, 2, 30.0),
            "lost": Lost(3.0, 2, "left after notice"),
        }[kind]
        note(subject.on(state, event))
    if not last:
        note(subject.on(state, Reply(4.0, others[-1], tasks[others[-1]], 0)))
    for worker, task in list(tasks.items()):
        if worker != 2 and task in state.open and not state.version:
            note(subject.on(state, Reply(5.0, worker, task, 0)))
    assert state.version >= 1, "no step was taken"


@pytest.mark.slow
def test_a_run_that_is_resumed_and_replayed_decides_alike(tmp_path) -> None:
    folder = tmp_path / "run"
    cut = anyk.train(
        PROBLEM, "frc:stragglers=1", "simulated", workers=(3, MOST), delays="exp:mean=1", steps=30, out=folder
    )
    cut.close()
    resumed = anyk.resume(folder, steps=60)
    straight = anyk.train(PROBLEM, "frc:stragglers=1", "simulated", workers=(3, MOST), delays="exp:mean=1", steps=60)
    assert resumed.model.tobytes() == straight.model.tobytes()
    assert "the same decisions and the same bits" in str(anyk.replay(folder))
    resumed.close()


@pytest.mark.slow
def test_the_floor_has_the_workers_that_the_run_had(tmp_path) -> None:
    """On the virtual clock a run is its own floor, also if workers come late, leave with notice or stay away."""
    outages = [*away(0, 30, 6, 7), *away(40, 60, 1, notice=3.0), *away(50, 10_000, 2)]
    cluster = Simulated(8, delays="exp:mean=1", seed=3, outages=outages)
    run = anyk.train(PROBLEM, "frc:stragglers=1", cluster, workers=(3, 8), steps=120)
    assert run.seconds > 60
    assert run.floor_seconds == pytest.approx(run.seconds, rel=1e-9)
    cluster = Simulated(8, delays="exp:mean=1", seed=3, outages=away(1000, 2000, 0, 1, 2, notice=990.0))
    run = anyk.train(PROBLEM, "uncoded", cluster, workers=(3, 8), steps=40)  # who had notice has not left yet
    assert run.floor_seconds == pytest.approx(run.seconds, rel=1e-9)


@pytest.mark.parametrize("back", [None, 1000.0])
def test_a_run_that_has_all_its_steps_has_succeeded(back: float | None) -> None:
    """Workers 0 and 1 are lost after their last reply, so that there are too few for another step."""
    delays = "bimodal:fast=1,slow=3,probability=0.001/0.001/0.999"
    cluster = Simulated(3, delays=delays, outages=[Outage(2.0, 0, back), Outage(2.0, 1, back)])
    run = anyk.train(PROBLEM, "uncoded", cluster, workers=(2, 3), steps=1)
    assert (run.steps, run.seconds, run.floor_seconds) == (1, 3.0, 3.0)
    slower = floor_seconds(anyk.strategy("uncoded", workers=(2, 3)), Simulated(3, delays="constant:9"), 1, run.log)
    assert slower == 12.0  # they are there again after the run's last step, at 3 s


TRAIN = ["train", "--data", "synthetic:rows=64,features=3", "--cluster", "simulated", "--steps", "2"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--workers", "0..4"], "the smallest number of workers must be 1 to 4, the largest, got 0"),
        (["--workers", "8..4"], "the smallest number of workers must be 1 to 4, the largest, got 8"),
        (["--workers", "2..4", "--strategy", "bgc:wait=decodable"], "wait=decodable waits for the exact sum, which 'b"),
        (["--workers", "8", "--partitions", "65"], "cut into 65 partitions of at least one row; use fewer partitions"),
        (["--workers", "8", "--partitions", "16", "--strategy", "mds"], "or leave out the range and partitions"),
        (["--workers", "4..8", "--partitions", "0"], "partitions must be a whole number of at least 1, got 0"),
        (
            ["--workers", "4..8", "--strategy", "uncoded:wait=2,snapshot=3"],
            "snapshot uses earlier messages of groups again, whos",
        ),
        (["--workers", "4..8", "--strategy", "pasgd:clients=3"], "clients are sampled from all workers of a fixed fle"),
        (["--workers", "4..8", "--strategy", "uncoded:balance=auto"], "has a rule by which its code changes already"),
        (["--workers", "8", "--strategy", "uncoded:fewest=4"], "give workers=(4, 8), or --workers 4..8"),
        (["--workers", "4..8", "--strategy", "async:partitions=64"], "give partitions=64, or --partitions 64"),
        (
            ["--workers", "4..8", "--strategy", "frc:load=2,partitions=8"],
            "'frc:load=2,partitions=8' has its own partitio",
        ),
        (["--workers", "4..x"], "workers should be a whole number, or a range such as 4..16, got '4..x'"),
    ],
)
def test_ranges_that_cannot_be(tmp_path, arguments, sentence) -> None:
    done = CliRunner().invoke(main, [*TRAIN, "--out", str(tmp_path / "run"), *arguments])
    assert done.exit_code == 2
    assert sentence in done.output + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("more", [[], ["--models", "2"]])
def test_a_race_of_a_range_has_strategies_by_default(tmp_path, more) -> None:
    done = CliRunner().invoke(main, ["race", *TRAIN[1:], "--workers", "2..4", "--out", str(tmp_path / "race"), *more])
    assert done.exit_code == 0, done.output + done.stderr
    with anyk.Race.open(tmp_path / "race") as race:
        assert [str(run.config.workers) for run in race.runs] == ["2..4"] * 3


def test_strategies_that_are_added_to_a_race_have_its_range(tmp_path) -> None:
    settings = {"workers": (2, 4), "partitions": 8, "cluster": "simulated", "steps": 2}
    anyk.race(PROBLEM, ["uncoded", "frc:stragglers=1"], out=tmp_path / "range", **settings).close()
    with pytest.raises(anyk.BadInput, match=r"'async.*' is for a fixed number of workers"):
        anyk.runs.resume_race(tmp_path / "range", add=["async"])
    with anyk.runs.resume_race(tmp_path / "range", add=["uncoded:wait=0.75n", "pasgd"]) as race:
        assert [run.config.strategy for run in race.runs[2:]] == ["uncoded:wait=0.75n", "pasgd:tau=10"]
        assert {run.config.workers for run in race.runs} == {Workers(fewest=2, most=4, partitions=8)}


def test_ranges_of_several_models_and_in_a_spec_of_estimators() -> None:
    with anyk.train_many([PROBLEM] * 2, "uncoded", "simulated", workers=(2, 4), steps=3) as run:
        assert (run.config.strategy, run.config.workers) == ("uncoded:models=2", Workers.of((2, 4)))
    sklearn = pytest.importorskip("anyk.sklearn")
    X, y = np.arange(40.0).reshape(20, 2), np.arange(20) % 2
    model = sklearn.AnykClassifier("uncoded", workers=(2, 4), cluster="simulated").fit(X, y)
    assert model.run_.config.workers == Workers.of((2, 4))


def running(spec: str, present: tuple[int, ...], *, fewest: int = 2, partitions: int | None = None) -> Running:
    """Return a strategy for 4 workers whose first round has begun with those present, as tasks 0, 1, …"""
    started = Running(anyk.strategy(spec, workers=(fewest, 4), partitions=partitions))
    started.start(Fleet(4, present))
    return started


def dispatched(commands) -> list[int]:
    assert not [command for command in commands if isinstance(command, Stop)]
    return [worker for command in commands if isinstance(command, Dispatch) for worker in command.workers]


@pytest.mark.parametrize("spec", ["uncoded", "uncoded:wait=all"])
def test_others_replace_a_leaving_workers_unusable_message(spec: str) -> None:
    fleet = running(spec, (0, 1, 2))
    fleet.on(Leaving(0.5, 0, 30.0))
    fleet.on(Reply(1.0, 1, 1, 0))
    fleet.on(Reply(1.0, 2, 2, 0))
    assert dispatched(fleet.on(Failed(1.0, 0, 0, 0, "not finite"))) == [1, 2]


@pytest.mark.parametrize("spec", ["uncoded:wait=5s", "pasgd:tau=3", "uncoded:wait=5%"])
def test_joined_workers_go_on_if_all_others_are_lost(spec: str) -> None:
    fleet = running(spec, (0, 1))
    assert [dispatched(fleet.on(Joined(0.5, worker))) for worker in (2, 3)] == [[], []]
    assert dispatched(fleet.on(Lost(0.6, 0, "preempted"))) == []
    assert dispatched(fleet.on(Lost(0.7, 1, "preempted"))) == [2, 3]


def test_where_nobody_is_left_no_code_is_said_to_go_on() -> None:
    strategy = running("frc:stragglers=1", (0, 1, 2, 3), fewest=3, partitions=8)
    strategy.on(Lost(0.1, 0, "died"))
    assert not any(
        isinstance(command, Stop) for worker in (1, 2) for command in strategy.on(Lost(0.1, worker, "died", True))
    )
    (stop,) = strategy.on(Lost(0.2, 3, "died"))
    assert isinstance(stop, Stop) and stop.failed
    assert stop.reason.endswith("0 of 4 replies do not give the sum (given up: worker 1, worker 2)")


@pytest.mark.slow
def test_receipts_state_the_fleet_of_their_step() -> None:
    """Who is there when a round starts decides; the numbers are those of the messages that were handed out."""
    run = train("frc:stragglers=2", FLEET, workers=(3, MOST))
    starts = [0.0, *(time for (time,) in run.log.rows("SELECT time FROM updates ORDER BY version"))]
    handed = "SELECT worker, work FROM chunks WHERE version = ? ORDER BY task"
    works = queries.works(run.log)
    checked = set()
    for step in range(1, run.steps + 1):
        present = sum(
            not any(o.worker == w and o.time <= starts[step - 1] < o.back for o in FLEET) for w in range(MOST)
        )
        loads = {worker: len(works[work].partitions) for worker, work in run.log.rows(handed, (step - 1,))}
        if any(starts[step - 1] <= change <= starts[step] for o in FLEET for change in (o.time, o.back)):
            continue
        assert len(loads) == present
        fleet_text = run.receipt(step).fleet
        uneven = 100.0 * (max(loads.values()) * present / sum(loads.values()) - 1.0)
        assert (
            fleet_text.startswith(f"{present} workers from step ") and f" {uneven:.0f} % above the mean" in fleet_text
        ), step
        checked.add(present)
    assert {3, 7, 12, 16} <= checked
    assert train("frc:stragglers=2", steps=3).receipt(2).fleet == ""
