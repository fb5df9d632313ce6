"""Workers of ``processes`` that leave after notice, stay away and return."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from click.testing import CliRunner

import anyk
from anyk.cli import main
from anyk.clusters import Processes
from anyk.runs import drain
from anyk.runs.folder.folders import locked
from anyk.testing import Squares

PROBLEM = anyk.problems.from_data("synthetic:rows=240,features=4")


class At(anyk.Callback):
    """Acts at steps, each action once its ``ready`` holds; ends the run after the last."""

    def __init__(self, *actions):
        self.actions = list(actions)

    def on_step(self, info):
        if not self.actions:
            info.driver.end()
        elif self.actions[0](info):
            self.actions.pop(0)


def events(run, *kinds):
    marks = ",".join("?" * len(kinds))
    return run.log.rows(f"SELECT kind, worker FROM events WHERE kind IN ({marks}) ORDER BY seq", kinds)


@pytest.mark.slow
def test_workers_leave_with_notice_stay_away_and_return(tmp_path) -> None:
    """SIGTERM is notice: the task is finished, and another process takes the place. Who is drained stays away."""
    folder, cluster = tmp_path / "run", Processes(5, delays="exp:mean=0.01", seed=1)
    away = lambda *workers: lambda info: not set(workers) & info.driver.present  # noqa: E731
    present = lambda *workers: lambda info: set(workers) <= info.driver.present  # noqa: E731

    def act(action):
        return lambda info: action() or True

    run = anyk.train(
        PROBLEM,
        "uncoded",
        cluster,
        workers=(2, 5),
        seconds=120.0,
        out=folder,
        callbacks=[
            At(
                act(lambda: os.kill(cluster.pids[1], signal.SIGTERM)),
                lambda info: cluster.handles[1].incarnation == 1 and 1 in info.driver.present,
                act(lambda: drain(folder, [2, 3])),
                away(2, 3),
                act(lambda: time.sleep(0.5)),
                away(2, 3),
                act(lambda: drain(folder, [2], back=True)),
                present(2),
                away(3),
            )
        ],
    )
    assert drain(folder) == [3]
    assert [worker for kind, worker in events(run, "Leaving")] == [1, 2, 3]
    assert {reason for (reason,) in run.log.rows("SELECT text FROM notes WHERE kind = 'lost'")} == {
        f"worker {worker}: left after notice" for worker in (1, 2, 3)
    }
    # what was lost had not been started: every task that was computed before is counted
    computed = run.log.rows("SELECT count(*) FROM chunks WHERE ending = 'lost' AND computing IS NOT NULL")
    assert computed == [(0,)]
    fixed = anyk.train(PROBLEM, "uncoded", "simulated", workers=5, partitions=20, steps=run.steps)
    np.testing.assert_allclose(run.model, fixed.model, rtol=0, atol=1e-12)
    assert "the same decisions" in str(anyk.replay(folder))
    assert anyk.verify(folder).whole
    run.close()
    resumed = anyk.resume(folder, steps=fixed.steps + 20, seconds=200.0)
    assert resumed.steps > fixed.steps
    resumed.close()


@pytest.mark.slow
def test_a_worker_that_does_not_finish_in_time_is_ended(monkeypatch) -> None:
    """Worker 1 is frozen in the middle of its task, which the round needs; its notice is up after 0.3 s."""
    monkeypatch.setattr("anyk.clusters.remote.workforce.NOTICE", 0.3)
    cluster = Processes(3, delays="constant:0.02", seed=1)

    def notice(info):
        os.kill(cluster.pids[1], signal.SIGSTOP)
        cluster.drain([1])
        return True

    gone = At(notice, lambda info: 1 not in info.driver.present)
    run = anyk.train(PROBLEM, "uncoded", cluster, workers=(2, 3), seconds=60.0, callbacks=[gone])
    assert events(run, "Leaving", "Lost") == [("Leaving", 1), ("Lost", 1)]
    (leaving,), (lost,) = run.log.rows("SELECT time FROM events WHERE kind IN ('Leaving', 'Lost') ORDER BY seq")
    assert lost >= leaving + 0.3


class SlowToLoad(Squares):
    """Its second worker notes that it has begun to load, and takes a second."""

    def __init__(self, marks):
        super().__init__(3)
        self.marks = marks

    def split(self, partitions, shares=None):
        pieces = super().split(partitions, shares)
        pieces.load = self.slowly
        return pieces

    def slowly(self, assigned):
        if list(assigned) == [1]:
            (self.marks / str(os.getpid())).touch()
            time.sleep(1.0)


@pytest.mark.slow
def test_a_worker_told_to_leave_while_loading_is_replaced(tmp_path) -> None:
    cluster, pids = Processes(3), []
    hear = cluster._hear_helper

    def hear_and_tell():
        hear()
        for begun in tmp_path.iterdir() if not pids else ():
            pids.append(int(begun.name))
            os.kill(pids[0], signal.SIGTERM)

    cluster._hear_helper = hear_and_tell
    poll = cluster.poll
    cluster.poll = lambda timeout: (poll(min(timeout, 0.05)), hear_and_tell())
    with anyk.train(SlowToLoad(tmp_path), "uncoded", cluster, steps=3) as run:
        assert run.steps == 3
    assert len(list(tmp_path.iterdir())) == 2, "the worker was not replaced"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nowhere", "1"], "'nowhere' is not a run folder"),
        (["RUN", "9"], "a worker of the run must be 0 to 3, got 9"),
        (["RUN", "1"], "cluster 'simulated' cannot drain workers; processes, nodes and ray can"),
    ],
)
@pytest.mark.in_process
def test_what_cannot_be_drained(tmp_path, arguments, sentence) -> None:
    folder = tmp_path / "run"
    anyk.train(PROBLEM, "uncoded", "simulated", workers=4, steps=2, out=folder).close()
    done = CliRunner().invoke(main, ["drain", *(str(folder) if word == "RUN" else word for word in arguments)])
    assert done.exit_code == 2
    assert sentence in done.output + done.stderr


def test_only_a_run_that_is_going_on_is_drained(tmp_path) -> None:
    folder = tmp_path / "run"
    anyk.train(PROBLEM, "uncoded", Processes(2), steps=2, out=folder).close()
    with pytest.raises(anyk.BadInput, match="is not going on; resume it first"):
        drain(folder, [1])
    (folder / "drained.json").write_text('{"not": "a list"}')
    assert drain(folder) == []


def test_workers_that_were_leaving_return_in_a_resumed_run(tmp_path) -> None:
    """Notice of worker 1 came, and the driver was stopped before the worker had left."""
    folder, cluster = tmp_path / "run", Processes(3, delays="constant:0.02", seed=1)

    class Stopped(anyk.Callback):
        def on_step(self, info):
            cluster.end_worker = lambda worker: info.driver.interrupt()
            os.kill(cluster.pids[1], signal.SIGTERM)

    with pytest.raises(KeyboardInterrupt):
        anyk.train(PROBLEM, "uncoded", cluster, workers=(2, 3), seconds=60.0, out=folder, callbacks=[Stopped()])
    with anyk.Run.open(folder) as cut:
        assert events(cut, "Leaving", "Lost") == [("Leaving", 1)]
        steps = cut.steps
    run = anyk.resume(folder, steps=steps + 5, seconds=120.0)
    assert {cut[0] for cut in run.log.rows("SELECT worker FROM chunks WHERE version = ?", (steps + 4,))} == {0, 1, 2}
    assert "the same decisions" in str(anyk.replay(folder))
    run.close()


def test_calls_at_the_same_time_drain_all_their_workers(tmp_path) -> None:
    """As scripts on several machines do when these are taken away together; what cannot be written is one sentence."""
    folder = tmp_path / "run"
    anyk.train(PROBLEM, "uncoded", Processes(8), steps=1, out=folder).close()
    with locked(folder):  # as if the run were going on
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(lambda worker: drain(folder, [worker]), range(8)))
            assert drain(folder) == list(range(8))
            list(threads.map(lambda worker: drain(folder, [worker], back=True), range(2, 8)))
        assert drain(folder) == [0, 1]
        (folder / "drained.json").unlink()
        (folder / "drained.json").mkdir()
        with pytest.raises(anyk.BadInput, match=r"drained.json' cannot be written \(Is a directory\)"):
            drain(folder, [1])


@pytest.mark.slow
def test_a_resumed_run_starts_with_the_workers_that_are_there(tmp_path, monkeypatch) -> None:
    """Its range is 3 to 6. First all are there, then only four can be started, and then five are to stay away."""
    folder = tmp_path / "run"
    anyk.train(PROBLEM, "frc:stragglers=1", Processes(6, seed=1), workers=(3, 6), steps=20, out=folder).close()
    spawn = Processes.spawn
    with monkeypatch.context() as patch:
        patch.setattr("anyk.clusters.remote.workforce.OTHERS", 0.1)
        patch.setattr(Processes, "spawn", lambda self, worker: spawn(self, worker) if worker < 4 else None)
        with anyk.resume(folder, steps=40) as run:
            at_the_end = {w for (w,) in run.log.rows("SELECT worker FROM chunks WHERE version >= 21")}
            assert run.steps == 40 and at_the_end == {0, 1, 2, 3}
    with anyk.resume(folder, steps=60) as run:
        assert {w for (w,) in run.log.rows("SELECT worker FROM chunks WHERE version >= 41")} == set(range(6))
    (folder / "drained.json").write_text("[1, 2, 3, 4, 5]")
    lines: list[str] = []
    with anyk.resume(folder, steps=61, tell=lines.append) as run:
        straight = anyk.train(PROBLEM, "frc:stragglers=1", "simulated", workers=6, partitions=24, steps=61)
        np.testing.assert_allclose(run.model, straight.model, rtol=0, atol=1e-12)
    assert lines == [
        "1 of 6 workers remain, and the run needs at least 3: it waits until others are called back (anyk drain RUN "
        "WORKER --back)"
    ]


@pytest.mark.parametrize(("workers", "needed"), [((2, 4), 2), (4, 1)])
def test_a_run_that_is_left_too_few_workers_is_said_to_wait(tmp_path, workers, needed) -> None:
    folder = str(tmp_path / "run")
    anyk.train(PROBLEM, "uncoded", "processes", workers=workers, steps=1, out=folder).close()
    with locked(tmp_path / "run"):  # as if the run were going on
        for leaving in range(4):
            done = CliRunner().invoke(main, ["drain", folder, str(leaving)])
            assert done.exit_code == 0
            assert (f"the run needs at least {needed}: it waits" in done.stderr) == (3 - leaving < needed)
        done = CliRunner().invoke(main, ["drain", folder, "0", "1", "--back"])
    assert (done.exit_code, done.output) == (0, "workers that are to stay away: 2, 3\n")
