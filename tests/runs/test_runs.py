"""Runs: limits, folders, receipts, ledger, checkpoints, resumption, replay."""

import dataclasses
import json
import resource
import signal
import sqlite3
import subprocess
import sys
import time

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

import anyk
from anyk.base.errors import BadInput
from anyk.cli import main
from anyk.clusters import Compute, Outage, Simulated
from anyk.runs.callbacks import Watching
from anyk.runs.engine.counts import ENDINGS
from anyk.runs.evaluation.evaluator import Evaluator, divergence
from anyk.runs.limits import check_launcher
from anyk.runs.log.delay_trace import task_seconds
from anyk.runs.log.schema import Evaluation
from anyk.testing import Squares

EXP = anyk.delays.Exponential(0.5)


def small(spec="frc:load=2,wait=4", *, steps=10, seed=1, delays=EXP, out=None, **more):
    partitions = anyk.strategy(spec, workers=6).layout.partitions
    cluster = Simulated(6, delays=delays, seed=seed, **more.pop("cluster", {}))
    optimizer = more.pop("optimizer", anyk.optimizers.Nesterov(lr=0.05))
    return anyk.train(Squares(partitions), spec, cluster, optimizer=optimizer, steps=steps, out=out, **more)


# ----------------------------------------------------------------------------------------------- what a run says


@pytest.mark.slow
def test_exact_codes_follow_the_synchronous_trajectory():
    problem = anyk.problems.from_data("synthetic:rows=240,features=12,density=0.2")
    optimizer = anyk.optimizers.Accelerated(lr=0.5)
    reference = anyk.train(problem, "uncoded", Simulated(12), optimizer=optimizer, steps=40)
    for spec in ("frc:stragglers=3", "frc:stragglers=4", "cyclic:stragglers=3", "partial:stragglers=2,load=5"):
        run = anyk.train(problem, spec, Simulated(12, delays=EXP, seed=4), optimizer=optimizer, steps=40)
        error = np.linalg.norm(run.model - reference.model) / np.linalg.norm(reference.model)
        assert error <= 1e-8, (spec, error)


def test_the_floor_of_a_simulated_run_is_its_own_time():
    for spec in ("uncoded", "frc:load=2,wait=4", "async:lr_scale=0.1", "partial", "frc:load=2,wait=0.3s"):
        run = small(spec)
        assert run.seconds == run.floor_seconds, spec


def test_history_has_a_row_for_every_version():
    run = small(steps=7)
    assert run.history["step"].tolist() == list(range(8))
    assert np.all(np.diff(run.history["seconds"]) > 0)
    assert not np.isnan(run.history["loss"]).any()
    assert run.history["loss"][-1] == run.loss


def test_a_receipt_says_what_counted_and_who_was_cut_off():
    run = small("frc:load=2,wait=4", steps=5)
    code = anyk.code("frc:load=2", workers=6)
    for version in range(1, 6):
        receipt = run.receipt(version)
        weights = np.zeros(6)
        for worker, _, weight, staleness in receipt.used:
            weights[worker] = weight
            assert staleness == 0
        assert np.allclose(weights @ code.encoding, receipt.weights)
        residual = np.linalg.norm(receipt.weights - 1) / np.sqrt(6)
        assert receipt.residual == pytest.approx(residual, abs=1e-12)
        rows = run.log.rows("SELECT count(*) FROM chunks WHERE version = ? AND cancelled IS NOT NULL", (version - 1,))
        in_time = run.log.rows(
            "SELECT count(*) FROM chunks WHERE version = ? AND received <= ?", (version - 1, receipt.time)
        )
        assert len(receipt.cut_off) == 6 - in_time[0][0]
        assert rows[0][0] >= len(receipt.cut_off)
        for cut in receipt.cut_off:  # on the virtual clock it is known exactly
            assert cut.known
            assert cut.seconds > receipt.time - (run.receipt(version - 1).time if version > 1 else 0.0)
    with pytest.raises(anyk.BadInput, match="no version 6 .*1 to 5"):
        run.receipt(6)


def test_a_receipt_on_processes_says_at_least():
    delays = anyk.delays.Heterogeneous(means=(0.001, 0.001, 1000.0, 1000.0))
    run = anyk.train(Squares(4), "uncoded:wait=2", anyk.clusters.Processes(4, delays=delays, seed=1), steps=3)
    cut = run.receipt(1).cut_off
    assert len(cut) == 2
    # None where the run ended before the worker said how far it had come
    assert all(not c.known and c.done in (0, None) and "at least" in str(c) for c in cut)


@pytest.mark.parametrize(
    "spec", ["uncoded", "agc:load=2,wait=3", "async:lr_scale=0.1", "partial", "frc:load=2,cancel=discard"]
)
def test_every_chunk_ends_in_exactly_one_way(spec):
    outages = [Outage(0.7, 2, 1.5), Outage(1.1, 0, 1.3), Outage(2.0, 5, 2.1)]
    run = small(spec, steps=12, cluster={"outages": outages})
    ledger = run.ledger
    assert ledger["dispatched"] == sum(ledger[ending] for ending in ENDINGS)
    rows = run.log.rows("SELECT task, chunk, count(*) FROM chunks GROUP BY task, chunk HAVING count(*) > 1")
    assert rows == []
    assert run.log.rows("SELECT count(*) FROM chunks")[0][0] == ledger["dispatched"]
    for ending in ENDINGS:
        assert run.log.rows("SELECT count(*) FROM chunks WHERE ending = ?", (ending,))[0][0] == ledger[ending]


def halfway(problem):
    """A loss between that of the first model and the least."""
    return 0.5 * (problem.loss(problem.initial()) + problem.loss(problem.centres.mean(axis=0)))


def test_every_limit_ends_a_run():
    assert small(steps=3).steps == 3
    run = anyk.train(Squares(6), "uncoded", Simulated(6, delays=anyk.delays.Constant(1.0)), seconds=4.5)
    assert (run.steps, run.seconds) == (4, 4.0)
    target = halfway(Squares(6))
    run = anyk.train(
        Squares(6), "uncoded", Simulated(6, delays=anyk.delays.Constant(1.0)), target=target,
        optimizer=anyk.optimizers.GD(lr=0.1),
    )  # fmt: skip
    losses = run.history["loss"]
    assert losses[-1] <= target < losses[-2]
    assert run.time_to_target == run.steps


def test_processes_of_torchrun_do_not_each_train_a_model(tmp_path, monkeypatch):
    small(steps=2, out=tmp_path / "run").close()
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert small(steps=1).steps == 1
    monkeypatch.setenv("WORLD_SIZE", "2")
    for start in (
        lambda: small(steps=1, out=tmp_path / "other"),
        lambda: anyk.resume(tmp_path / "run", problem=Squares(6), steps=3),
        lambda: anyk.race(Squares(6), ["uncoded"], workers=6, cluster="simulated", steps=1, out=tmp_path / "other"),
    ):
        with pytest.raises(anyk.BadInput, match="torchrun has started this program 2 times"):
            start()
    assert not (tmp_path / "other").exists()
    check_launcher("nodes:port=29600")  # whose nodes torchrun's processes are


def test_a_targets_time_is_that_of_the_version_not_of_the_look():
    cluster = anyk.clusters.Processes(4, delays=anyk.delays.Constant(0.01))
    target = halfway(Squares(4))
    run = anyk.train(Squares(4), "uncoded", cluster, target=target, optimizer=anyk.optimizers.GD(lr=0.02))
    history = run.history
    first = np.flatnonzero(history["loss"] <= target)[0]
    assert run.time_to_target == history["seconds"][first]
    assert run.time_to_target <= run.seconds


@pytest.mark.slow
@pytest.mark.parametrize("target", [None, 0.9])
def test_evaluation_keeps_to_its_share_of_the_time(target, monkeypatch):
    monkeypatch.setattr("anyk.runs.evaluation.evaluator._SHARE", 1e-9)
    problem = anyk.problems.from_data("digits")
    evaluator = anyk.runs.Evaluator(problem, anyk.Evaluate(every=1), target=target, background=True)
    good = anyk.train(problem, "uncoded", Simulated(4), optimizer=anyk.optimizers.Nesterov(lr=0.15), steps=30).model
    try:
        evaluator.store_version("model", 1, 0.1, problem.initial())
        until = time.monotonic() + 60
        while evaluator.latest is None and time.monotonic() < until:
            time.sleep(0.01)
        for version in range(2, 6):
            evaluator.store_version("model", version, version / 10, good)
        if target is None:
            time.sleep(1.5)  # of the years that it is to rest
            assert list(evaluator.done) == [("model", 1)]
        else:  # which it does not while a target may have been reached
            while evaluator.reached is None and time.monotonic() < until:
                time.sleep(0.01)
            assert evaluator.reached is not None
    finally:
        evaluations = evaluator.finish()
    assert [evaluation.version for evaluation in evaluations] == [1, 2, 3, 4, 5]


@pytest.mark.slow
def test_long_runs_are_evaluated_sparsely():
    run = small("uncoded", steps=3000)
    evaluated = ~np.isnan(run.history["loss"])
    assert 200 < evaluated.sum() < 3000
    assert evaluated[-1]


# ----------------------------------------------------------------------------------------------- folders


def test_a_run_folder_can_be_read_back(tmp_path):
    run = small(out=tmp_path / "run")
    reopened = anyk.Run.open(tmp_path / "run")
    assert reopened.result() == run.result()
    assert np.array_equal(reopened.model, run.model)
    assert reopened.receipt(3).used == run.receipt(3).used
    for opened in (run, reopened):
        opened.close()


def test_bad_folders_get_their_sentence(tmp_path):
    run = small(out=tmp_path / "run")
    run.close()
    with pytest.raises(anyk.BadInput, match="exists; choose another, or go on with it: anyk resume"):
        small(out=tmp_path / "run")
    with pytest.raises(anyk.BadInput, match="is not a run folder"):
        anyk.Run.open(tmp_path)
    with pytest.raises(anyk.BadInput, match=r"does not exist; did you mean '.*/run'\?"):
        anyk.Run.open(tmp_path / "rnu")
    with pytest.raises(anyk.BadInput, match="does not exist$"):
        anyk.resume(tmp_path / "nowhere" / "train-1", steps=3)
    config = (tmp_path / "run" / "run.toml").read_text()
    (tmp_path / "run" / "run.toml").write_text(config.replace("format = 1", "format = 2"))
    with pytest.raises(anyk.BadInput, match="format 2, this anyk reads up to 1; use a newer anyk"):
        anyk.Run.open(tmp_path / "run")
    with pytest.raises(anyk.BadInput, match="use a newer anyk"):
        anyk.resume(tmp_path / "run", problem=Squares(6))
    (tmp_path / "run" / "run.toml").write_text("format = [")
    with pytest.raises(anyk.BadInput, match=r"run.toml' is damaged"):
        anyk.Run.open(tmp_path / "run")
    (tmp_path / "run" / "run.toml").write_text(config)
    (tmp_path / "run" / "checkpoint.safetensors").write_bytes(b"\x80\x04not safetensors")
    with pytest.raises(anyk.BadInput, match="is damaged"):
        anyk.resume(tmp_path / "run", problem=Squares(6))
    (tmp_path / "run" / "log.sqlite").write_bytes(b"garbage" * 100)
    with pytest.raises(anyk.BadInput, match="is damaged"):
        anyk.Run.open(tmp_path / "run")


def test_two_writers_are_kept_apart(tmp_path):
    small(out=tmp_path / "run").close()
    holder = subprocess.Popen(
        [sys.executable, "-c", "import fcntl, sys; f = open(sys.argv[1]); fcntl.flock(f, fcntl.LOCK_EX); print(1, "
         "flush=True); sys.stdin.read()", str(tmp_path / "run" / "lock")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    with holder:
        holder.stdout.readline()
        with pytest.raises(anyk.BadInput, match="is being written by another process"):
            anyk.resume(tmp_path / "run", problem=Squares(6), steps=20)
        holder.stdin.close()


@pytest.mark.slow
def test_a_full_disk_ends_the_run_with_a_sentence(tmp_path):
    """A limit on file size stands in for a full disk: writes fail in the same place."""
    script = f"""
import resource, anyk
from anyk.testing import Squares
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
anyk.train(Squares(6), "uncoded", anyk.clusters.Simulated(6, delays=anyk.delays.Exponential(1.0)), steps=10**6,
           out={str(tmp_path / "run")!r}, checkpoint_every=0.05)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=250)
    assert "RunFailed" in done.stderr.splitlines()[-1]
    assert "cannot be written" in done.stderr
    assert "resume" in done.stderr
    resumed = anyk.resume(tmp_path / "run", problem=Squares(6), steps=2000)  # there is room again
    assert resumed.steps >= 2000
    resumed.close()
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY


# ----------------------------------------------------------------------------------------------- resume and replay

SPECS = [
    "uncoded",
    "agc:load=2,wait=3",
    "async:lr_scale=0.1",
    "partial",
    "cyclic:stragglers=2",
    "frc:load=2,cancel=discard",
    "frc:stragglers=2,wait=0.3s|4",
    "agc:load=2,wait=3,snapshot=4",
]
SETTINGS = [
    {},
    {"delays": anyk.delays.Exponential(0.5, uninterruptible=True)},
    {"delays": anyk.delays.Exponential(0.5, per="load")},
    {"delays": anyk.delays.Exponential(0.5, by="item")},
    {"delays": anyk.delays.Exponential(0.5, by="round")},
    {"cluster": {"compute": Compute(task=0.05, partition=0.05, step=0.02, cores=2)}},
    {"cluster": {"outages": [Outage(0.9, 1, 1.4), Outage(1.0, 4, 3.0)]}},
]


# each strategy with the first delays, and with each of the others every other strategy: a run goes on from what a
# strategy and a clock have saved, which do not know each other. What a cluster was made with is not in its spec: for
# such settings see test_saved_at_any_step_it_goes_on_exactly
RESUMED = [(spec, SETTINGS[0]) for spec in SPECS]
RESUMED += [(spec, setting) for i, setting in enumerate(SETTINGS[1:5]) for spec in SPECS[i % 2 :: 2]]


@pytest.mark.slow
@pytest.mark.parametrize(("spec", "setting"), RESUMED, ids=repr)
def test_a_resumed_run_is_bit_for_bit_the_uninterrupted_one(tmp_path, spec, setting):
    uninterrupted = small(spec, steps=12, out=tmp_path / "whole", **setting)
    for stop in (1, 6):
        beginning = small(spec, steps=stop, out=tmp_path / f"part{stop}", **setting)
        beginning.close()
        resumed = anyk.resume(tmp_path / f"part{stop}", problem=Squares(uninterrupted.config.partitions), steps=12)
        assert resumed.model.tobytes() == uninterrupted.model.tobytes()
        assert resumed.seconds == uninterrupted.seconds
        used = "SELECT step, task, chunk, worker, weight, received FROM chunks WHERE step NOT NULL ORDER BY 1, 2, 3"
        assert resumed.log.rows(used) == uninterrupted.log.rows(used)
        for table in ("events", "reuses"):
            assert resumed.log.rows(f"SELECT * FROM {table}") == uninterrupted.log.rows(f"SELECT * FROM {table}")
        assert np.array_equal(resumed.history["loss"], uninterrupted.history["loss"])
        assert resumed.log.rows("SELECT task, chunk FROM chunks GROUP BY 1, 2 HAVING count(*) > 1") == []
        resumed.close()
    uninterrupted.close()


def interrupted_driver(spec, setting, stop, steps):
    """Drive, save through JSON and bytes at a step, restore into fresh objects, go on."""
    from anyk.runs import Driver, LogWriter, session

    def make(limit):
        strategy = anyk.strategy(spec, workers=6)
        more = dict(setting.get("cluster", {}))
        cluster = Simulated(6, delays=setting.get("delays", EXP), seed=1, **more)
        return Driver(strategy, cluster, problem=Squares(strategy.layout.partitions),
                      optimizer=anyk.optimizers.Nesterov(lr=0.05), log=LogWriter(), steps=limit)  # fmt: skip

    driver = make(stop)
    with session(driver):
        driver.run()
        state, vectors = json.loads(json.dumps(driver.state())), {k: v.copy() for k, v in driver.vectors().items()}
    if stop < steps:
        driver = make(steps)
        with session(driver, (state, vectors)):
            driver.run()
    return driver.models["model"].tobytes(), driver.time


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(spec=st.sampled_from(SPECS), setting=st.sampled_from(SETTINGS), stop=st.integers(1, 11))
def test_saved_at_any_step_it_goes_on_exactly(spec, setting, stop):
    assert interrupted_driver(spec, setting, stop, 12) == interrupted_driver(spec, setting, 12, 12)


@pytest.mark.slow
def test_a_run_killed_with_kill_9_resumes_to_the_same_bits(tmp_path):
    script = f"""
import anyk
problem = anyk.problems.from_data("synthetic:rows=200,features=8")
cluster = anyk.cluster("simulated", workers=6, delays="exp:mean=0.5", seed=3)
def watch(driver, evaluator):
    print(driver.step, flush=True)
anyk.train(problem, "agc:load=2,wait=3", cluster, steps=100000, out={str(tmp_path / "run")!r}, checkpoint_every=0.05,
           callbacks=[anyk.runs.callbacks.Watching(watch)])
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            if int(line) > 50 and (tmp_path / "run" / "checkpoint.safetensors").exists():
                break
        process.send_signal(signal.SIGKILL)
        process.stdout.read()
    saved = anyk.runs.folder.checkpoints.load(tmp_path / "run")[0]["versions"]["model"]
    goal = saved + 40
    resumed = anyk.resume(tmp_path / "run", steps=goal)
    problem = anyk.problems.from_data("synthetic:rows=200,features=8")
    cluster = anyk.cluster("simulated", workers=6, delays="exp:mean=0.5", seed=3)
    uninterrupted = anyk.train(problem, "agc:load=2,wait=3", cluster, steps=goal)
    assert resumed.model.tobytes() == uninterrupted.model.tobytes()
    assert str(anyk.replay(resumed)).endswith("the same decisions and the same bits of model")
    resumed.close()


@pytest.mark.slow
def test_a_run_without_a_checkpoint_begins_again(tmp_path):
    problem = anyk.problems.from_data("synthetic:rows=200,features=8")
    setting = {"workers": 6, "delays": "exp:mean=0.5", "seed": 3}
    uninterrupted = anyk.train(problem, "frc", anyk.cluster("simulated", **setting), steps=20)

    def watch(driver, evaluator):
        if driver.step == 10:
            driver.log.flush()
            raise SystemExit

    with pytest.raises(SystemExit):
        anyk.train(
            problem,
            "frc",
            anyk.cluster("simulated", **setting),
            steps=20,
            out=tmp_path / "run",
            callbacks=[Watching(watch)],
        )
    unfinished = anyk.runs.Run.open(tmp_path / "run")
    with pytest.raises(anyk.BadInput, match="no model yet.*resume it"):
        unfinished.model  # noqa: B018
    unfinished.close()
    resumed = anyk.resume(tmp_path / "run")
    assert resumed.model.tobytes() == uninterrupted.model.tobytes()
    assert resumed.ledger == uninterrupted.ledger
    assert resumed.steps == len(resumed.history["step"]) - 1 == 20  # nothing is in the log twice
    resumed.close()


@pytest.mark.slow
def test_a_run_goes_on_with_another_cluster(tmp_path):
    """With the same delays and the same model; the folder then names the other cluster."""
    problem = anyk.problems.from_data("synthetic:rows=60,features=4")
    options = {"workers": 3, "delays": "exp:mean=0.01", "seed": 4}
    whole = anyk.train(problem, "frc:load=3", "processes", steps=8, **options)
    anyk.train(problem, "frc:load=3", "processes", steps=4, out=tmp_path / "run", **options).close()
    for cluster in ("simulated", "processes:byzantine=1"):
        with pytest.raises(BadInput, match=r"virtual clock|has other Byzantine workers"):
            anyk.resume(tmp_path / "run", steps=8, cluster=cluster)
    run = anyk.resume(tmp_path / "run", steps=8, cluster="processes:children=9")
    assert run.config.cluster == "processes:children=9" and run.config.delays == "exp:mean=0.01"
    assert run.model.tobytes() == whole.model.tobytes()
    assert "same decisions" in str(anyk.replay(run))
    done = CliRunner().invoke(main, ["resume", str(tmp_path / "run"), "--steps", "9", "--cluster", "processes"])
    assert done.exit_code == 0, done.output
    assert anyk.Run.open(tmp_path / "run").config.cluster == "processes"


@pytest.mark.slow
def test_an_interrupted_run_on_processes_resumes(tmp_path):
    class Enough(Exception):
        pass

    def watch(driver, evaluator):
        if driver.step == 5:
            signal.raise_signal(signal.SIGINT)

    cluster = anyk.clusters.Processes(4, delays=anyk.delays.Exponential(0.02), seed=1)
    optimizer = anyk.optimizers.GD(lr=0.5)
    with pytest.raises(KeyboardInterrupt):
        anyk.train(
            Squares(4),
            "frc:load=2",
            cluster,
            optimizer=optimizer,
            steps=20,
            out=tmp_path / "run",
            callbacks=[Watching(watch)],
        )
    resumed = anyk.resume(tmp_path / "run", problem=Squares(4))
    assert resumed.steps == 20
    centre = Squares(4).centres.mean(axis=0)
    assert np.allclose(resumed.model, centre * (1 - 0.5**20), rtol=1e-12)
    assert anyk.replay(resumed, problem=Squares(4)).model
    assert resumed.ledger["dispatched"] == sum(resumed.ledger[ending] for ending in ENDINGS)
    resumed.close()


@pytest.mark.slow
def test_replay_repeats_decisions_and_bits_also_of_real_runs():
    for spec in ("frc:load=2", "agc:load=2,wait=3", "async:lr_scale=0.1", "partial", "uncoded:wait=0.05s"):
        partitions = anyk.strategy(spec, workers=6).layout.partitions
        cluster = anyk.clusters.Processes(6, delays=anyk.delays.Exponential(0.03), seed=5)
        run = anyk.train(Squares(partitions), spec, cluster, optimizer=anyk.optimizers.GD(lr=0.1), steps=10)
        result = anyk.replay(run, problem=Squares(partitions))
        assert (result.decisions, result.model) == (True, True), (spec, str(result))


def test_replay_notices_another_log_and_another_problem():
    run = small("frc:load=2,wait=4")
    assert anyk.replay(run, problem=Squares(6, d=5)).model is True

    class Shifted(Squares):
        def initial(self):
            return super().initial() + 1e-12

    other = anyk.replay(run, problem=Shifted(6))
    assert other.decisions
    assert other.model is False
    assert "first at version 1" in str(other)
    nothing = anyk.replay(run)
    assert nothing.model is None
    assert "made in Python" in str(nothing)
    run.log._db.execute("UPDATE chunks SET weight = 2.0 WHERE step = 3")
    assert not anyk.replay(run, problem=Squares(6)).decisions


@pytest.mark.slow
def test_the_log_is_never_far_behind_on_a_quiet_cluster(tmp_path):
    """Rows are on disk a moment after they are made, also while the driver waits for a slow round."""
    cluster = anyk.clusters.Processes(2, delays=anyk.delays.Bimodal(0.01, 2.0, 0.5), seed=8)
    seen = []

    def watch(driver, evaluator):
        time.sleep(0.25)  # give the idle turns of the driver a chance to be needed
        with sqlite3.connect(f"file:{tmp_path}/run/log.sqlite?mode=ro", uri=True) as db:
            seen.append((driver.log.seq, db.execute("SELECT max(seq) FROM events").fetchone()[0]))
        db.close()

    run = anyk.train(Squares(2), "uncoded", cluster, steps=4, out=tmp_path / "run", callbacks=[Watching(watch)])
    run.close()
    assert all(written is None or version - written <= 4 for version, written in seen)


# ----------------------------------------------------------------------------------------------- refusals


def test_bad_limits_and_mismatches():
    with pytest.raises(anyk.BadInput, match="steps must be a whole number of at least 1 or None, got 0"):
        small(steps=0)
    with pytest.raises(anyk.BadInput, match="seconds must be a number or None, got nan"):
        anyk.train(Squares(6), "uncoded", Simulated(6), seconds=float("nan"))
    with pytest.raises(anyk.BadInput, match="a target of -1 cannot be reached: loss is above 0"):
        anyk.train(Squares(6), "uncoded", Simulated(6), target=-1)
    problem = anyk.problems.from_data("synthetic:rows=60,features=4")
    with pytest.raises(anyk.BadInput, match=r"a target of 1.5 cannot be reached: auc lies between 0 and 1"):
        anyk.train(problem, "uncoded", Simulated(6), target=1.5)
    with pytest.raises(anyk.BadInput, match="the strategy is for 6 workers, the cluster has 5"):
        anyk.train(Squares(6), anyk.strategy("uncoded", workers=6), Simulated(5))
    with pytest.raises(anyk.BadInput, match="48 rows cannot be cut into 50 partitions"):
        anyk.train(problem, "uncoded", Simulated(50))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spec", "delays"),
    [
        ("uncoded", "exp:mean=1e-9"),
        ("async:lr_scale=0.01", "exp:mean=1e-9"),
        ("uncoded:wait=4", "hetero:means=1e-9/1e-9/1e-9/1e-9/1/1"),
    ],
)
def test_a_virtual_clock_that_hardly_moves_ends_in_a_sentence(spec, delays, tmp_path):
    how = {"cluster": "simulated", "workers": 6, "optimizer": anyk.optimizers.GD(0.01), "delays": delays}
    said = r"steps took .* s of the virtual clock; at this pace a limit of 3 seconds .* give steps as well"
    with pytest.raises(anyk.RunFailed, match=said):
        anyk.train(Squares(6), spec, seconds=3, out=tmp_path / "run", **how)
    with anyk.resume(tmp_path / "run", problem=Squares(6), steps=20) as resumed:
        assert resumed.steps >= 20  # more if the run was slow enough to have a checkpoint
    assert anyk.train(Squares(6), spec, seconds=3, steps=1500, **how).steps == 1500


@pytest.mark.slow
def test_many_steps_at_the_same_instant_are_no_slow_clock():
    cluster = Simulated(1200, delays="constant:1")
    run = anyk.train(Squares(1200), "async:lr_scale=0.0001", cluster, optimizer=anyk.optimizers.GD(0.01), seconds=3.5)
    assert run.steps == 3600


def test_divergence_is_named():
    problem = anyk.problems.from_data("synthetic:rows=60,features=4,task=regression")
    with pytest.raises(anyk.RunFailed, match=r"diverged at step \d+: .*lower the learning rate"):
        anyk.train(problem, "uncoded", Simulated(6), optimizer=anyk.optimizers.GD(lr=1e6), steps=200)


@pytest.mark.slow
def test_a_loss_far_above_the_first_is_a_failure(tmp_path):
    """Even though the model is finite; a loss that is large from the start is not."""
    digits = anyk.problems.from_data("digits")
    rate = {"optimizer": anyk.optimizers.GD(lr=1e9), "steps": 5, "out": tmp_path / "run"}
    with pytest.raises(anyk.RunFailed, match=r"diverged: the loss was 2.3 at step 0 and is \S+ at step 5; lower the"):
        anyk.train(digits, "uncoded", "simulated", workers=4, **rate)
    with anyk.Run.open(tmp_path / "run") as run:
        assert run.steps == 5 and run.loss > 1e9 and run.notes[-1]["kind"] == "failed"
    X = np.arange(20.0)[:, None]
    large = anyk.problems.LeastSquares(X, 1e30 * X[:, 0])
    assert large.loss(large.initial()) > 1e60
    assert anyk.train(large, "uncoded", "simulated", workers=4, steps=50).loss < 1e58
    held_out = anyk.problems.LeastSquares(X, X[:, 0], X_test=X, y_test=X[:, 0])
    with pytest.raises(anyk.RunFailed, match="diverged: the mse was"):
        anyk.train(held_out, "uncoded", "simulated", workers=4, evaluate="on=held_out", **rate | {"out": None})


@pytest.mark.parametrize(
    ("losses", "diverged"),
    [
        ((0.7, 1e9, 0.1), False),  # on the way does not count
        ((0.7, 999.0), False),
        ((0.7, 1001.0), True),
        ((5e6, 4.9e9), False),
        ((0.0, 0.5), False),  # from a model that fits perfectly
        ((0.7, float("inf")), True),
        ((0.7, float("nan")), True),
        ((float("nan"), float("nan")), False),
        ((None, None), False),
    ],
)
def test_what_has_diverged(losses, diverged):
    evaluations = [Evaluation("model", step, step, loss, None) for step, loss in enumerate(losses)]
    assert (divergence(evaluations, "0.1") is not None) == diverged


@pytest.mark.parametrize("loss", [float("nan"), 1.0])
def test_a_loss_that_is_never_a_number_is_noted(loss):
    class OfNoNumber(Squares):
        def loss(self, w):
            return loss

    optimizer = anyk.optimizers.GD(lr=0.5)
    run = anyk.train(OfNoNumber(4), "uncoded", "simulated", workers=4, steps=3, optimizer=optimizer)
    notes = [note["text"] for note in run.notes if note["text"].startswith("the loss is not a number at any step")]
    assert len(notes) == (loss != 1.0)


def test_a_decode_that_would_amplify_float32_rounding_is_refused():
    class Loud(anyk.codes.FractionalRepetition):
        @property
        def rows(self):
            return tuple((p, tuple(1e-6 for _ in c)) for p, c in super().rows)

        def decoder(self):
            return anyk.codes.LeastSquaresDecoder(self)

        def _solve(self, replies):
            return anyk.codes.LeastSquaresMethod().weights(self, replies)

        def judge(self, weights):
            decoding = super().judge(weights)
            return dataclasses.replace(decoding, gain=1e6)

    strategy = anyk.strategies.Rounds(Loud(4, load=2))
    with pytest.raises(anyk.RunFailed, match="amplify the rounding of float32 replies 1.0e\\+06 times"):
        anyk.train(Squares(4, dtype="float32"), strategy, Simulated(4), steps=2)


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["uncoded", "async:lr_scale=0.1", "frc:load=2,wait=4"])
def test_a_run_ended_by_its_seconds_loses_no_event(tmp_path, spec):
    """The event after the limit is still to come when the run is taken up again."""
    cluster = Simulated(6, delays=EXP, seed=1)
    optimizer = anyk.optimizers.GD(lr=0.05)
    anyk.train(Squares(6), spec, cluster, optimizer=optimizer, seconds=2.0, out=tmp_path / "run").close()
    resumed = anyk.resume(tmp_path / "run", problem=Squares(6), steps=60)
    uninterrupted = anyk.train(Squares(6), spec, Simulated(6, delays=EXP, seed=1), optimizer=optimizer, steps=60)
    assert resumed.seconds == uninterrupted.seconds
    assert resumed.model.tobytes() == uninterrupted.model.tobytes()
    resumed.close()


@pytest.mark.slow
def test_a_checkpoint_between_any_two_events_can_be_resumed(tmp_path):
    """Messages that are in but not yet told to the driver are not forgotten."""
    optimizer = anyk.optimizers.GD(lr=0.5)

    def watch(driver, evaluator):
        if driver.step == 8:
            driver.interrupt()

    with pytest.raises(KeyboardInterrupt):
        anyk.train(
            Squares(8), "uncoded", anyk.clusters.Processes(8), optimizer=optimizer, steps=20, out=tmp_path / "run",
            checkpoint_every=0.0, callbacks=[Watching(watch)],
        )  # fmt: skip
    state = anyk.runs.folder.checkpoints.load(tmp_path / "run")[0]
    live = {task for task, *_ in state["cluster"]["in_flight"]}
    for first, workers, _, _, _, status, *_ in state["given"]:
        assert {first + i for i in range(len(workers)) if status[i] == 0} <= live
    resumed = anyk.resume(tmp_path / "run", problem=Squares(8), steps=20)
    centre = Squares(8).centres.mean(axis=0)
    assert np.allclose(resumed.model, centre * (1 - 0.5**20), rtol=1e-12)
    resumed.close()


class _Screen:
    """A console that keeps what it is given."""

    is_terminal = False

    def __init__(self):
        self.lines = []

    def print(self, text, **_):
        self.lines.append(text)


def test_progress_tells_what_happens_between_steps(monkeypatch):
    monkeypatch.setattr("anyk.runs.live_progress._PLAIN", 0.0)
    monkeypatch.setattr(Evaluator, "_evaluate_sometimes", lambda _: None)  # something is left to evaluate at the end
    screen = _Screen()
    seen = []
    both = [anyk.views.LiveProgress(screen), Watching(lambda driver, _: seen.append(driver.step))]
    anyk.train(Squares(3), "k-batch-sync:k=7", anyk.clusters.Processes(3), steps=5, callbacks=both,
               optimizer=anyk.optimizers.GD(lr=0.1))  # fmt: skip
    assert screen.lines[0].startswith("starting 3 workers; ")
    assert any(line.startswith("evaluating ") for line in screen.lines[1:])
    counts = [int(line.partition(" of 3 workers on time")[0].split()[-1]) for line in screen.lines if "on time" in line]
    assert counts and max(counts) <= 3 and seen == [1, 2, 3, 4, 5]


def test_progress_in_python(capsys):
    anyk.train(Squares(3), "uncoded", anyk.clusters.Processes(3), steps=2, progress=True)
    assert "starting 3 workers" in capsys.readouterr().err


def test_a_folder_of_runs_says_which_runs_it_has(tmp_path):
    anyk.train(Squares(3), "uncoded", "simulated", workers=3, steps=2, out=tmp_path / "race" / "uncoded").close()
    with pytest.raises(anyk.BadInput, match=r"has no run.toml; name one of the runs in it, as in .*uncoded"):
        anyk.replay(tmp_path / "race")


def test_a_trace_has_the_rounds_that_took_no_time():
    delays = anyk.delays.parse("bimodal:fast=0,slow=1,probability=0.2")
    with small("uncoded", steps=20, delays=delays) as run:
        seconds, censored, _ = task_seconds(run)
        took = run.seconds
    assert seconds.shape == (20, 6) and not censored.any()
    assert (seconds.max(axis=1) == 0).any() and seconds.max(axis=1).sum() == took
    assert (seconds == np.transpose([delays.draws(1, i, 0, 20) for i in range(6)])).all()


def test_receipts_are_found_by_the_numbers_of_the_history() -> None:
    problem = anyk.problems.from_data("synthetic:rows=60,features=4")
    run = anyk.train(problem, "frc:load=2", "simulated", workers=4, steps=3)
    assert [run.receipt(step).version for step in run.history["step"][1:]] == [1, 2, 3]
    with pytest.raises(BadInput, match="version must be a whole number"):
        run.receipt("first")  # type: ignore[arg-type]
