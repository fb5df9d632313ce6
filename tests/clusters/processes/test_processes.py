"""Workers that are slow, stopped, killed or wrong, on real processes."""

import contextlib
import os
import resource
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse

import anyk
from anyk.clusters.processes.helper_program import Helper
from anyk.runs.callbacks import Watching
from anyk.testing import Squares

pytestmark = pytest.mark.slow


def plain_descent(problem, steps, lr=0.5):
    w = problem.initial().astype(float)
    for _ in range(steps):
        w -= lr * (w - problem.centres.mean(axis=0))
    return w


class Modules(Squares):
    """Its pickle names torch, which unpickling it does not import."""

    def split(self, partitions, shares=None):
        pieces = super().split(partitions, shares)
        pieces.note, pieces.load = "torch", needs_torch
        return pieces


def needs_torch(partitions):
    if "torch" not in sys.modules:
        raise RuntimeError("torch is not there")


def test_workers_share_the_import_of_torch():
    """It takes seconds of a processor, which each of many workers would spend."""
    import torch  # noqa: F401  # as a driver has that trains a module

    with anyk.train(Modules(2), "uncoded", anyk.clusters.Processes(2), steps=1) as run:
        assert run.steps == 1


class Penalised(Squares):
    """Its regulariser is a NumPy number."""

    l2 = np.float64(0.5)


def test_the_settings_of_workers_may_be_numpy_numbers():
    models = []
    for cluster in (anyk.clusters.Processes(2), anyk.clusters.Simulated(2)):
        with anyk.train(Penalised(2), "pasgd:tau=2", cluster, steps=3) as run:
            models.append(run.model)
    np.testing.assert_allclose(models[0], models[1], rtol=1e-12)


class Heavy(Squares):
    """Its workers import a module."""

    def split(self, partitions, shares=None):
        pieces = super().split(partitions, shares)
        pieces.load = needs_heavy
        return pieces


def needs_heavy(partitions):
    import anyk_heavy  # noqa: F401


def test_workers_share_modules_that_are_preloaded(tmp_path, monkeypatch):
    (tmp_path / "anyk_heavy.py").write_text(
        f"import os\nwith open({str(tmp_path / 'imports')!r}, 'a') as file:\n    print(os.getpid(), file=file)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    cluster = anyk.cluster("processes:preload=json/anyk_heavy", workers=2)
    assert cluster.spec == "processes:preload=json/anyk_heavy"
    for _ in range(2):  # the second time another helper program
        anyk.train(Heavy(2), "uncoded", cluster, steps=1).close()
    pids = (tmp_path / "imports").read_text().split()
    assert len(pids) == 2 and str(os.getpid()) not in pids


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("import anyk_missing", r"preload=anyk_heavy: the module cannot be imported \(ModuleNotFoundError: No module"),
        (
            "raise SystemExit('no display')",
            r"preload=anyk_heavy: the module cannot be imported \(SystemExit: no display",
        ),
        (
            "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
            "preload=anyk_heavy: importing it starts 1 threads, which workers cannot share; leave it out",
        ),
    ],
)
def test_modules_that_must_not_be_shared_are_refused(tmp_path, monkeypatch, text, sentence):
    (tmp_path / "anyk_heavy.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(anyk.BadInput, match=sentence):
        anyk.train(Squares(2), "uncoded", anyk.clusters.Processes(2, preload=["anyk_heavy"]), steps=1)


def test_modules_that_a_run_folder_names_need_trust(tmp_path):
    cluster = anyk.clusters.Processes(2, preload=["json"])
    anyk.train(Squares(2), "uncoded", cluster, steps=1, out=tmp_path / "run").close()
    with pytest.raises(anyk.BadInput, match="names the cluster 'processes:preload=json', which may belong to somebody"):
        anyk.resume(tmp_path / "run", problem=Squares(2), steps=2)
    with anyk.resume(tmp_path / "run", problem=Squares(2), steps=2, trust=True) as run:
        assert run.steps == 2


def test_injected_delays_are_those_of_the_simulator():
    delays = anyk.delays.Exponential(mean=0.05)
    for spec in ("uncoded", "frc:load=2"):
        real = anyk.train(Squares(6), spec, anyk.clusters.Processes(6, delays=delays, seed=3), steps=5)
        virtual = anyk.train(Squares(6), spec, anyk.clusters.Simulated(6, delays=delays, seed=3), steps=5)
        query = "SELECT task, computing - started FROM chunks WHERE ending = 'counted' ORDER BY task"
        waited, drawn = dict(real.log.rows(query)), dict(virtual.log.rows(query))
        shared = waited.keys() & drawn.keys()
        assert len(shared) == 30 if spec == "uncoded" else shared  # who is first of two near each other is open
        assert all(waited[task] >= drawn[task] - 1e-3 for task in shared)  # never shorter than drawn


def test_a_trajectory_with_stragglers_equals_the_synchronous_one():
    rng = np.random.default_rng(5)
    X = rng.standard_normal((90, 7))
    y = np.sign(X @ rng.standard_normal(7))
    problem = anyk.problems.LogisticRegression(X, y, l2=1e-3)
    optimizer = anyk.optimizers.Nesterov(lr=0.5)
    reference = anyk.train(problem, "uncoded", anyk.clusters.Simulated(6), optimizer=optimizer, steps=15)
    for spec in ("frc:stragglers=2", "cyclic:stragglers=2", "partial:stragglers=1,load=4"):
        cluster = anyk.clusters.Processes(6, delays=anyk.delays.Exponential(mean=0.01), seed=2)
        run = anyk.train(problem, spec, cluster, optimizer=optimizer, steps=15)
        assert np.linalg.norm(run.model - reference.model) <= 1e-8 * np.linalg.norm(reference.model), spec


@pytest.mark.parametrize("spec", ["frc:stragglers=2", "cyclic:stragglers=2"])
def test_kill_9_at_any_moment_changes_nothing(spec):
    """Random kills while the run goes on: the model is that of plain gradient descent, and the ledger balances."""
    problem = Squares(6)
    cluster = anyk.clusters.Processes(6, delays=anyk.delays.Exponential(mean=0.01), seed=1)
    rng = np.random.default_rng(0)
    stop, begun = threading.Event(), threading.Event()

    def kill_some():
        begun.wait()
        while not stop.wait(0.3):
            pid = dict(cluster.pids).get(int(rng.integers(6)))
            if pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    killer = threading.Thread(target=kill_some)
    killer.start()
    try:
        optimizer = anyk.optimizers.GD(lr=0.5)
        run = anyk.train(
            problem, spec, cluster, optimizer=optimizer, steps=200, callbacks=[Watching(lambda *_: begun.set())]
        )
    finally:
        stop.set()
        begun.set()
        killer.join()
    assert np.allclose(run.model, plain_descent(problem, 200), rtol=1e-9)
    assert any(note["kind"] == "lost" and "SIGKILL" in note["text"] for note in run.notes)
    ledger = run.ledger
    assert ledger["dispatched"] == sum(ledger[k] for k in ("counted", "late_counted", "discarded", "cancelled", "lost"))
    assert anyk.replay(run, problem=Squares(6)).decisions


def until_heard(problem, cluster, heard):
    """A run that goes on until something has happened, whoever comes first until then."""

    def watch(driver, evaluator):
        if heard(driver):
            driver.end()

    optimizer = anyk.optimizers.GD(lr=0.5)
    return anyk.train(
        problem, "frc:stragglers=1", cluster, optimizer=optimizer, seconds=120.0, callbacks=[Watching(watch)]
    )


def test_kill_9_while_a_reply_is_being_written():
    """A worker that dies in mid-message has sent nothing; its half-written buffer is never read."""

    problem = Squares(4, faults={2: "die"})  # in the middle of encode(), with its reply buffer marked as being written
    cluster = anyk.clusters.Processes(4)
    run = until_heard(problem, cluster, lambda driver: driver.ledger.counts.lost)
    assert np.allclose(run.model, plain_descent(problem, run.steps), rtol=1e-9)


def test_a_worker_that_dies_at_once_is_given_up_by_name():
    cluster = anyk.clusters.Processes(4, delays=anyk.delays.Constant(0.02))

    def watch(driver, evaluator):  # however long a machine under load takes to start it again
        if cluster.handles[1].gone:
            driver.end()

    run = anyk.train(
        Squares(4, faults={1: "die"}), "frc:stragglers=1", cluster, steps=3000, callbacks=[Watching(watch)]
    )
    gone = [note["text"] for note in run.notes if note["kind"] == "given up"]
    assert len(gone) == 1
    assert "worker 1" in gone[0]
    assert "exited with code 7, 5 times in a row" in gone[0]


def test_a_given_up_worker_without_redundancy_ends_the_run():
    with pytest.raises(anyk.RunFailed, match=r"step 1 cannot be taken under 'uncoded': .*given up: worker 1"):
        anyk.train(Squares(3, faults={1: "die"}), "uncoded", anyk.clusters.Processes(3), steps=5)


def test_a_stopped_worker_is_left_behind():
    """SIGSTOP: it does not listen; the driver goes on without it, and it joins in again when it wakes."""
    cluster = anyk.clusters.Processes(4, delays=anyk.delays.Constant(0.01))

    class StopsWorker(anyk.Callback):
        def on_step(self, info):
            if info.step == 5:
                os.kill(cluster.pids[0], signal.SIGSTOP)
            if info.step == 25:
                os.kill(cluster.pids[0], signal.SIGCONT)
            if info.step > 25 and 0 in info.record.used_by:
                info.driver.end()

    run = anyk.train(Squares(4), "frc:stragglers=1", cluster, seconds=120.0, callbacks=[StopsWorker()])
    by_step = dict(run.log.rows("SELECT step, sum(worker = 0) FROM chunks WHERE step IS NOT NULL GROUP BY step"))
    assert sum(by_step[step] for step in range(8, 25)) == 0
    assert by_step[run.steps] == 1
    assert run.ledger["dispatched"] == sum(run.ledger[k] for k in anyk.runs.engine.counts.ENDINGS)


@pytest.mark.parametrize(("fault", "reason"), [("nan", "NaN"), ("inf", "Inf")])
def test_a_reply_that_is_not_finite_is_named_and_not_used(fault, reason):
    problem = Squares(4, faults={3: fault})
    run = until_heard(problem, anyk.clusters.Processes(4), lambda driver: driver.ledger.counts.unusable)
    assert np.allclose(run.model, plain_descent(problem, run.steps), rtol=1e-9)
    named = [note["text"] for note in run.notes if note["kind"] == "set aside"]
    assert named
    assert all("worker 3" in sentence and reason in sentence for sentence in named)
    assert run.ledger["unusable"] == len(named)


def test_a_gradient_of_the_wrong_length_is_named_and_set_aside():
    problem = Squares(4, faults={2: "short"})
    run = until_heard(problem, anyk.clusters.Processes(4), lambda driver: driver.ledger.counts.unusable)
    assert np.allclose(run.model, plain_descent(problem, run.steps), rtol=1e-9)
    named = [note["text"] for note in run.notes if note["kind"] == "set aside"]
    assert named
    assert all("worker 2" in reason and "shape (4,), its support has 5" in reason for reason in named)
    with pytest.raises(anyk.RunFailed, match="step 1 cannot be taken under 'uncoded'.*unusable replies from worker 2"):
        anyk.train(Squares(4, faults={2: "short"}), "uncoded", anyk.clusters.Processes(4), steps=5)


def test_a_users_gradient_error_is_told_with_worker_and_text():
    sentence = (
        r"step 1 cannot be taken under 'uncoded': .* from worker 1.*; worker 1: ValueError: partition 1 is broken"
    )
    with pytest.raises(anyk.RunFailed, match=sentence):
        anyk.train(Squares(4, faults={1: "raise"}), "uncoded", anyk.clusters.Processes(4), steps=5)


def test_the_same_error_on_most_workers_ends_the_run():
    faults = dict.fromkeys(range(1, 4), "raise")
    sentence = "step 1: most replies cannot be used; worker .: ValueError: partition . is broken"
    with pytest.raises(anyk.RunFailed, match=sentence):
        anyk.train(Squares(4, faults=faults), "uncoded", anyk.clusters.Processes(4), steps=5)


def test_when_most_replies_are_not_finite_the_run_has_diverged():
    faults = dict.fromkeys(range(4), "nan")
    with pytest.raises(anyk.RunFailed, match="diverged at step 1: .*lower the learning rate"):
        anyk.train(Squares(4, faults=faults), "uncoded", anyk.clusters.Processes(4), steps=5)


def test_workers_that_never_listen_agree_with_the_simulator():
    delays = anyk.delays.Bimodal(0.01, 0.3, 0.2, uninterruptible=True)
    real = anyk.train(Squares(6), "frc:stragglers=2", anyk.clusters.Processes(6, delays=delays, seed=4), steps=10)
    virtual = anyk.train(Squares(6), "frc:stragglers=2", anyk.clusters.Simulated(6, delays=delays, seed=4), steps=10)
    assert real.seconds >= virtual.seconds * 0.999
    began = "SELECT task, started FROM chunks WHERE ending = 'counted' ORDER BY task"
    starts, expected = dict(real.log.rows(began)), dict(virtual.log.rows(began))
    late = [starts[task] - expected[task] for task in starts.keys() & expected.keys()]
    assert min(late) > -1e-3  # nobody starts while the delay before holds it up


SCRIPT = """
import os, sys, time
import numpy as np
import anyk

class Mine:
    metric, better, l2, samples, dimension, dtype = "loss", "lower", 0.0, 4, 3, np.dtype(float)
    def split(self, m):
        return Pieces()
    def initial(self):
        return np.zeros(3)
    def loss(self, w):
        return float(w @ w)
    def metrics(self, w):
        return {}
    def recipe(self):
        return None

class Pieces:
    dimension, dtype, sizes = 3, np.dtype(float), (1, 1, 1, 1)
    def load(self, partitions):
        pass
    def support(self, j):
        return None
    def partial_gradient(self, j, w):
        return w - j

cluster = anyk.clusters.Processes(4, delays=anyk.delays.Constant(0.05))
def watch(driver, evaluator):
    print("step", driver.step, *cluster.pids.values(), cluster.helper, flush=True)
optimizer = anyk.optimizers.GD(lr=1.0)
run = anyk.train(Mine(), "uncoded", cluster, optimizer=optimizer, steps=int(sys.argv[1]), callbacks=[anyk.runs.callbacks.Watching(watch)], out=sys.argv[2])
print("done", run.model.tolist(), flush=True)
"""


def start_script(tmp_path, steps):
    script = tmp_path / "mine.py"
    script.write_text(textwrap.dedent(SCRIPT))
    out = tmp_path / "run"
    return subprocess.Popen([sys.executable, str(script), str(steps), str(out)], stdout=subprocess.PIPE, text=True)


def alive(pids, groups=False):
    if not groups:
        return [pid for pid in pids if Path(f"/proc/{pid}").exists()]
    outcome = []
    for pid in pids:  # each worker's processes have its number as their group
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, 0)
            outcome.append(pid)
    return outcome


def wait_gone(pids, groups=False):
    for _ in range(600):
        if not alive(pids, groups):
            return []
        time.sleep(0.1)
    return alive(pids, groups)


def test_a_script_without_a_main_guard_trains_its_own_class(tmp_path):
    with start_script(tmp_path, 3) as script:
        output, _ = script.communicate(timeout=250)
    assert script.returncode == 0
    assert "done" in output


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_driver_that_ends_takes_its_workers_along(tmp_path, sign):
    with start_script(tmp_path, 1000) as script:
        pids = []
        for line in script.stdout:
            if line.startswith("step 2"):
                pids = [int(word) for word in line.split()[2:]]
                break
        assert len(alive(pids)) == 5
        os.kill(pids[0], signal.SIGSTOP)  # a worker that cannot hear must go as well
        script.send_signal(sign)
        script.communicate(timeout=250)
    assert wait_gone(pids) == []
    assert script.returncode != 0
    if sign != signal.SIGKILL:
        run = anyk.Run.open(tmp_path / "run")
        assert any(note["kind"] == "interrupted" for note in run.notes)
        run.close()


def test_the_helper_is_started_again_and_the_workers_join_in():
    cluster = anyk.clusters.Processes(3, delays=anyk.delays.Constant(0.01))
    pids = set()

    def watch(driver, evaluator):
        pids.update(cluster.pids.values())
        if driver.step in (3, 6):
            pids.add(cluster.helper)
            os.kill(cluster.helper, signal.SIGKILL)

    optimizer = anyk.optimizers.GD(lr=0.5)
    run = anyk.train(Squares(3), "uncoded", cluster, optimizer=optimizer, steps=12, callbacks=[Watching(watch)])
    assert np.allclose(run.model, plain_descent(Squares(3), 12), rtol=1e-9)
    lost = [note["text"] for note in run.notes if note["kind"] == "lost"]
    assert len(lost) == 6
    assert all("the helper program that starts workers has ended" in reason for reason in lost)
    assert wait_gone(list(pids)) == []


def test_a_helper_that_is_frozen_is_replaced():
    cluster = anyk.clusters.Processes(3, delays=anyk.delays.Constant(0.01))
    helpers = []

    def watch(driver, evaluator):
        helpers.append(cluster.helper)
        if driver.step == 3:
            os.kill(cluster.helper, signal.SIGSTOP)
            cluster._helper.heard -= 1000.0

    run = anyk.train(Squares(3), "uncoded", cluster, steps=12, callbacks=[Watching(watch)])
    lost = [note["text"] for note in run.notes if note["kind"] == "lost"]
    assert run.steps == 12 and len(set(helpers)) == 2
    assert len(lost) == 3 and all("the helper program that starts workers has ended" in reason for reason in lost)


def test_a_helper_whose_link_is_closed_at_the_start_is_replaced(monkeypatch, capfd):
    """It then ends in good order, without a message."""
    brief, helpers = Helper.brief, []

    def briefed(helper, *briefing):
        brief(helper, *briefing)
        helpers.append(helper.pid)
        if len(helpers) == 1:
            helper.link.shutdown(socket.SHUT_WR)

    monkeypatch.setattr(Helper, "brief", briefed)
    with anyk.train(Squares(3), "uncoded", anyk.clusters.Processes(3), steps=3) as run:
        assert run.steps == 3
    assert len(set(helpers)) == 2
    assert capfd.readouterr().err == ""


def test_a_worker_that_is_stopped_at_the_start_is_named(monkeypatch):
    monkeypatch.setattr("anyk.clusters.processes.helper_program._ENDING", 0.1)
    cluster = anyk.clusters.Processes(3)
    hear = cluster._hear_helper

    def hear_and_stop():
        hear()
        if 1 in cluster.pids:
            os.kill(cluster.pids[1], signal.SIGSTOP)
            if all(handle.present for handle in cluster.handles[::2]):  # however long the others take
                cluster.patience_at_start = 0.0

    cluster._hear_helper = hear_and_stop
    with pytest.raises(anyk.RunFailed) as failure:
        anyk.train(SlowToLoad(3), "uncoded", cluster, steps=3)
    expected = (
        f"workers [1] did not load their partitions within 0 s; worker 1 is stopped: kill -CONT {cluster.pids[1]}"
    )
    assert str(failure.value) == expected


class SlowToLoad(Squares):
    """Its second worker can be stopped while it loads its partition."""

    def split(self, partitions, shares=None):
        pieces = super().split(partitions, shares)
        pieces.load = lambda assigned: time.sleep(60.0 * (1 in assigned))
        return pieces


def test_a_helper_frozen_at_the_start_ends_the_run(monkeypatch):
    monkeypatch.setattr(anyk.clusters.Processes, "patience_at_start", 0.5)
    monkeypatch.setattr("anyk.clusters.processes.helper_program._ENDING", 0.1)
    cluster = anyk.clusters.Processes(3)
    cluster.prepare()
    os.kill(cluster.helper, signal.SIGSTOP)
    with pytest.raises(anyk.RunFailed, match=r"workers \[0, 1, 2\] did not load their partitions within"):
        anyk.train(Squares(3), "uncoded", cluster, steps=3)


def test_while_workers_start_one_interrupt_is_enough(monkeypatch):
    monkeypatch.setattr("anyk.clusters.processes.helper_program._ENDING", 0.1)
    cluster = anyk.clusters.Processes(3)
    cluster.prepare()
    os.kill(cluster.helper, signal.SIGSTOP)
    interrupt = threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT))
    interrupt.start()
    with pytest.raises(KeyboardInterrupt):
        anyk.train(Squares(3), "uncoded", cluster, steps=3)
    interrupt.join()


def test_an_interrupt_during_a_restart_closes_the_cluster(monkeypatch):
    spawn = anyk.clusters.Processes.spawn

    def interrupted():
        raise KeyboardInterrupt

    def spawn_twice(cluster, worker):
        spawn(cluster, worker)
        monkeypatch.setattr(os, "pipe", interrupted)
        try:
            spawn(cluster, worker)
        finally:
            monkeypatch.undo()

    monkeypatch.setattr(anyk.clusters.Processes, "spawn", spawn_twice)
    with pytest.raises(KeyboardInterrupt):
        anyk.train(Squares(3), "uncoded", anyk.clusters.Processes(3), steps=3)


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
def test_a_frozen_helper_ends_with_its_driver():
    script = "import anyk, os, signal; cluster = anyk.clusters.Processes(2); cluster.prepare(); "
    script += "os.kill(cluster.helper, signal.SIGSTOP); print(cluster.helper, flush=True)\n"
    script += "while open(f'/proc/{cluster.helper}/stat').read().rpartition(')')[2].split()[0] != 'T': pass\n"
    script += "os.kill(os.getpid(), signal.SIGKILL)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, start_new_session=True)
    assert done.returncode == -signal.SIGKILL and wait_gone([int(done.stdout)]) == []


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
@pytest.mark.parametrize("sparse", [False, True])
def test_the_helper_imports_scipy_for_sparse_data_only(sparse):
    X = np.eye(12)
    problem = anyk.problems.LeastSquares(scipy.sparse.csr_array(X) if sparse else X, np.ones(12))
    cluster, loaded = anyk.clusters.Processes(2), []

    def watch(driver, evaluator):
        loaded.append("scipy/sparse" in Path(f"/proc/{cluster.helper}/maps").read_text())

    anyk.train(problem, "uncoded", cluster, steps=1, callbacks=[Watching(watch)])
    assert loaded == [sparse]


def test_a_helper_that_keeps_ending_ends_the_run():
    cluster = anyk.clusters.Processes(2)

    def watch(driver, evaluator):
        os.kill(cluster.helper, signal.SIGKILL)

    with pytest.raises(anyk.RunFailed, match="helper program .* has ended, 5 times within 60 s, .* resume the run"):
        anyk.train(Squares(2), "uncoded", cluster, steps=1000, callbacks=[Watching(watch)])


def test_a_worker_that_is_killed_again_and_again_is_not_given_up(monkeypatch):
    """Ten times without a message in between: what comes from outside speaks against it less than crashes of its own.

    Only once the other worker is ready: while none is, a worker that is killed five times ends the run.
    """
    monkeypatch.setattr("anyk.clusters.remote.handles._PAUSE", 0.0)
    cluster = anyk.clusters.Processes(2, delays=anyk.delays.Constant(0.05))
    stop, killed = threading.Event(), []

    def kill():
        while len(killed) < 10 and not stop.wait(0.001):
            pid = cluster.pids.get(0)
            if pid is not None and pid not in killed and cluster.handles[1].present:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                killed.append(pid)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        run = anyk.train(Squares(2), "uncoded", cluster, steps=3)
    finally:
        stop.set()
        killer.join()
    assert run.steps == 3
    assert not [note for note in run.notes if note["kind"] == "given up"]


@pytest.mark.parametrize(("fault", "children"), [("fork", 100), ("forks", 8)])
def test_a_gradient_that_forks_is_no_fork_bomb(fault, children):
    """A child that comes back from the gradient ends; children that stay are counted, and ended with their worker."""
    problem = Squares(4, faults={1: fault})
    cluster = anyk.clusters.Processes(4, children=children)
    pids = set()

    def watch(driver, evaluator):
        pids.update(cluster.pids.values())
        if (fault == "fork" and driver.step >= 20) or cluster.handles[1].blame > 0:
            driver.end()

    optimizer = anyk.optimizers.GD(lr=0.5)
    run = anyk.train(
        problem, "frc:stragglers=1", cluster, optimizer=optimizer, seconds=60.0, callbacks=[Watching(watch)]
    )
    assert np.allclose(run.model, plain_descent(problem, run.steps), rtol=1e-9)
    lost = [note["text"] for note in run.notes if note["kind"] == "lost"]
    assert bool(lost) == (fault == "forks")
    assert all("worker 1: started " in reason and "more than children=8 allows" in reason for reason in lost)
    assert wait_gone(list(pids), groups=True) == []


def test_processes_that_a_gradient_leaves_end_with_its_worker():
    """Processes are counted by session, so they are ended by session too."""
    from anyk.clusters.processes.forkserver import _sessions

    cluster = anyk.clusters.Processes(2, children=64)
    pids, seen = set(), set()

    def watch(driver, evaluator):
        pids.update(cluster.pids.values())
        seen.update(pid for pid, session in _sessions() if session in pids and pid not in pids)

    run = anyk.train(Squares(2, faults={1: "stray"}), "uncoded", cluster, steps=4, callbacks=[Watching(watch)])
    assert run.steps == 4
    assert seen
    assert wait_gone(list(seen)) == []


def test_data_that_does_not_fit_is_refused_before_the_start(monkeypatch):
    monkeypatch.setattr("anyk.clusters.processes.memory.available_memory", lambda: 1000)
    with pytest.raises(anyk.BadInput, match=r"MiB of shared memory, 0 MiB are available; use fewer workers"):
        anyk.train(Squares(3), "uncoded", anyk.clusters.Processes(3), steps=1)


def test_one_worker_and_many(tmp_path):
    one = anyk.train(Squares(1), "uncoded", anyk.clusters.Processes(1), steps=3)
    assert np.allclose(one.model, plain_descent(Squares(1), 3, lr=1.0))
    many = anyk.train(
        Squares(40), "frc:load=4", anyk.clusters.Processes(40), optimizer=anyk.optimizers.GD(lr=0.5), steps=3
    )
    assert np.allclose(many.model, plain_descent(Squares(40), 3))


def test_float32_replies_are_summed_in_float64():
    run = anyk.train(
        Squares(6, dtype="float32"),
        "frc:load=2",
        anyk.clusters.Processes(6),
        optimizer=anyk.optimizers.GD(lr=0.5),
        steps=5,
    )
    assert run.model.dtype == np.float32
    assert np.allclose(run.model, plain_descent(Squares(6), 5), rtol=1e-5)


def test_processes_are_counted_where_there_is_no_proc(monkeypatch):
    import psutil  # noqa: F401  # by the name of the system as it is

    from anyk.clusters.processes import forkserver

    group = os.getsid(0)
    assert (os.getpid(), group) in set(forkserver._sessions())
    monkeypatch.setattr("sys.platform", "darwin")
    assert (os.getpid(), group) in set(forkserver._sessions())


class Unsteady(Squares):
    """Its gradients are different each time."""

    def split(self, partitions, shares=None):
        pieces = super().split(partitions, shares)
        pieces.partial_gradient = unsteady_gradient
        return pieces


def unsteady_gradient(partition, w, rows=None):
    return np.random.default_rng().normal(size=w.size)


def test_gradients_that_differ_each_time_end_a_run_with_replicas():
    with pytest.raises(anyk.RunFailed, match="differs from .* and from its earlier message: random numbers of a grad"):
        anyk.train(Unsteady(4), "frc:load=2,check=1", "processes", workers=4, steps=3)
    assert anyk.train(Unsteady(4), "uncoded", "processes", workers=4, steps=3).steps == 3


def test_wrong_numbers_of_a_process_are_found_and_replayed(tmp_path: Path) -> None:
    """Three replicas send each sum, one of them wrongly; the model is that of undisturbed workers."""
    setting = {"workers": 6, "steps": 20, "evaluate": None}
    problem = anyk.problems.from_data("synthetic:rows=120,features=6")
    spec = "frc:load=3,check=1"
    right = anyk.train(problem, spec, "simulated", **setting)
    with anyk.train(problem, spec, "processes:byzantine=4", out=tmp_path / "run", **setting) as run:
        wrong = [note["text"] for note in run.notes if note["kind"] == "wrong numbers"]
        given_up = [note["text"] for note in run.notes if note["kind"] == "given up"]
    assert {reason.split(":")[0] for reason in wrong} == {"a message of worker 4 was wrong"}
    assert given_up == ["worker 4: 3 messages with wrong numbers"] * (len(wrong) == 3)
    assert run.model == pytest.approx(right.model, rel=1e-12)
    assert anyk.replay(tmp_path / "run").model


MANY_FILES = """
import os, resource
resource.setrlimit(resource.RLIMIT_NOFILE, (2048, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
kept = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
import anyk
problem = anyk.problems.from_data("synthetic:rows=60,features=4")
for evaluate in ("", "every=2,where=aside"):
    print(anyk.train(problem, "frc:load=2", "processes", workers=4, steps=5, evaluate=evaluate).steps)
"""


@pytest.mark.slow
@pytest.mark.skipif(resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 2048, reason="too few files may be open")
def test_processes_train_beside_a_thousand_open_files() -> None:
    done = subprocess.run([sys.executable, "-c", MANY_FILES], capture_output=True, text=True, timeout=250)
    assert done.stdout.split() == ["5", "5"], done.stderr[-3000:]
