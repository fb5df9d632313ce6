"""Sequential codes that keep late results: what that means, that nothing is lost by it, and that both clusters agree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import anyk
from anyk.base.errors import BadInput
from anyk.clusters import Simulated
from anyk.delays import TableDelays
from anyk.fleet import simulate
from anyk.protocol import Cancel, Command, Dispatch, Event, Reply
from anyk.strategies import Bursty, strategy
from anyk.testing import check_strategy
from byhand import ByHand

pytestmark = pytest.mark.slow

SPECS = [
    "m-sgc:B=1,W=2,lambda=2", "m-sgc:B=2,W=3,lambda=1", "m-sgc:B=2,W=4,lambda=5", "sr-sgc:B=2,W=3,lambda=3",
    "sr-sgc:B=1,W=3,lambda=2",
]  # fmt: skip


def told(spec: str, table: Any, jobs: int) -> list[Command]:
    """All commands of a strategy that meets these delays; a worker is never given a task while it is on another."""
    scheme = strategy(f"{spec},jobs={jobs}", workers=np.shape(table)[1])
    commands: list[Command] = []
    busy: dict[int, tuple[int, set[int]]] = {}  # worker -> task and its chunks that have not come

    def note(found: Sequence[Command]) -> Sequence[Command]:
        for command in found:
            commands.append(command)
            if isinstance(command, Cancel):
                for worker in [worker for worker, (task, _) in busy.items() if task in command.tasks]:
                    del busy[worker]
            elif isinstance(command, Dispatch):
                for task, (worker, chunks) in enumerate(
                    zip(command.workers, command.chunks, strict=True), command.task
                ):
                    assert worker not in busy
                    busy[worker] = task, set(range(len(chunks)))
        return found

    class Noted(ByHand):
        def start(self, fleet: Any) -> Sequence[Command]:
            commands = note(super().start(fleet))
            self.inside, self.on = self.on, self.hear
            return commands

        def hear(self, event: Event) -> Sequence[Command]:
            if isinstance(event, Reply):
                busy[event.worker][1].discard(event.chunk)
                if not busy[event.worker][1]:
                    del busy[event.worker]
            return note(self.inside(event))

    cluster = Simulated(scheme.layout.workers, delays=TableDelays(np.asarray(table, dtype=float), by="round"))
    driver = anyk.runs.Driver(scheme, cluster)
    driver.running = Noted(scheme)
    with anyk.runs.session(driver):
        driver.run()
    assert driver.running.state.combined == jobs
    return commands


def test_a_straggler_ends_its_task_and_joins_the_present_round() -> None:
    """Worker 2 takes 5 s for round 0 where a round lasts 2 s: it is given nothing before, and then round 2's task."""
    table = [[1, 1, 5], [1, 1, 1], [1, 1, 0.5], [1, 1, 1]]
    commands = told("m-sgc:B=2,W=3,lambda=2,mu=1,late=keep", table, 1)
    dispatched = [(c.round, tuple(c.workers)) for c in commands if isinstance(c, Dispatch)]
    assert dispatched == [(0, (0, 1, 2)), (1, (0, 1)), (2, (0, 1)), (2, (2,)), (3, (0, 1, 2))]
    pieces = [
        [chunk.partitions for chunk in c.chunks[-1]] for c in commands if isinstance(c, Dispatch) and 2 in c.workers
    ]
    # its first own piece came late and is not tried again: the second follows, then the shares of both groups
    assert pieces[0] == [(4,)] and pieces[1] == [(5,)] and len(pieces[2][0]) == 3
    dropped = told("m-sgc:B=2,W=3,lambda=2,mu=1", table, 1)
    dispatched = [(c.round, tuple(c.workers)) for c in dropped if isinstance(c, Dispatch)]
    assert dispatched == [(t, (0, 1, 2)) for t in range(4)]
    assert sum(isinstance(c, Cancel) and c.tasks == (2,) for c in dropped) == 1
    assert not any(isinstance(c, Cancel) and 2 in c.tasks for c in commands[:4])


def test_what_nobody_needs_any_more_is_cut_off_all_the_same() -> None:
    """A job that is done without it: the task is dropped, and its worker is free for the next round."""
    table = [[1, 1, 9], [1, 1, 1], [1, 1, 1]]
    seconds, waits = simulate("sr-sgc:B=1,W=2,lambda=2,late=keep", table, jobs=2)
    dropped, _ = simulate("sr-sgc:B=1,W=2,lambda=2", table, jobs=2)
    assert seconds.tolist() == pytest.approx(dropped.tolist()) == [2.0, 1.0, 0.0] and waits == 0


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(SPECS), st.sampled_from(["all", "minimal", "feasible"]), st.integers(0, 10_000))
def test_no_job_is_lost_and_no_worker_ever_has_two_tasks(spec: str, wait: str, seed: int) -> None:
    table = np.random.default_rng(seed).exponential(size=(14, 5)) + 0.1
    told(f"{spec},wait={wait},late=keep", table, 8)
    # rounds in which nobody is late are as without it: nobody is cut off, nobody goes on
    calm = np.ones((14, 5)) + 0.5 * np.random.default_rng(seed).random((14, 5))
    kept_seconds, dropped = (simulate(f"{spec},wait={wait},late={late}", calm, jobs=8) for late in ("keep", "drop"))
    assert kept_seconds[0] == pytest.approx(dropped[0], abs=1e-12) and kept_seconds[1] == dropped[1] == 0


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(SPECS), st.sampled_from(["all", "minimal", "feasible"]), st.integers(0, 10_000))
def test_stragglers_within_the_model_are_borne(spec: str, wait: str, seed: int) -> None:
    """Who ends its late task soon after the round is in time in the next: no round waits, every job is in time."""
    keys = dict(setting.split("=") for setting in spec.partition(":")[2].split(","))
    pattern = Bursty(*(int(keys[key]) for key in ("B", "W", "lambda"))).draw(14, 6, seed=seed)
    table = np.where(pattern, 2.1, 1.0)  # 0.1 s beyond the cut-off
    seconds, waits = simulate(f"{spec},wait={wait},late=keep", table, jobs=8)
    assert waits == 0
    late = pattern[: len(seconds)].any(axis=1)
    if spec.startswith("m-sgc"):
        assert seconds == pytest.approx(np.where(late, 2.0, seconds)) and seconds[~late].max(initial=0.0) < 1.5


@pytest.mark.parametrize("spec", ["m-sgc:B=1,W=2,lambda=2", "sr-sgc:B=2,W=3,lambda=3", "m-sgc:B=2,W=4,lambda=2"])
@pytest.mark.parametrize("wait", ["all", "feasible"])
def test_they_survive_outages_and_being_saved(spec: str, wait: str) -> None:
    for seed in range(3):
        check_strategy(strategy(f"{spec},wait={wait},late=keep", workers=6), steps=8, outages=4, seed=seed)


def gradient_descent(problem: Any, steps: int, lr: float) -> Any:
    w, partition = problem.initial(), problem.split(1)
    for _ in range(steps):
        w = w - lr * (partition.partial_gradient(0, w) / problem.samples + problem.l2 * w)
    return w


@pytest.mark.parametrize("cluster", ["simulated", "processes"])
@pytest.mark.parametrize("spec", ["m-sgc:B=2,W=3,lambda=2,wait=feasible", "sr-sgc:B=2,W=3,lambda=3"])
def test_every_sum_is_exact_and_every_chunk_ends_in_one_way(spec: str, cluster: str) -> None:
    problems = [anyk.problems.from_data(f"synthetic:rows=250,features=5,seed={i}") for i in range(4)]
    fleet = anyk.cluster(cluster, workers=6, delays="bimodal:fast=0.004,slow=0.03,probability=0.2", seed=4)
    run = anyk.train_many(problems, spec + ",late=keep", fleet, steps=6, optimizer=anyk.optimizers.GD(lr=0.5))
    for i, problem in enumerate(problems):
        assert run.models[f"model {i}"] == pytest.approx(gradient_descent(problem, 6, 0.5), abs=1e-9)
    assert run.ledger["dispatched"] == sum(v for k, v in run.ledger.items() if k not in ("dispatched", "unusable"))
    assert str(anyk.replay(run, problem=anyk.problems.ManyProblems(problems))).endswith("the same bits of model")


def test_both_clusters_decide_alike() -> None:
    """Delays far enough apart that a few milliseconds do not matter: the same rounds, from the same workers."""
    table = np.array([[4, 4, 4, 25], [4, 4, 9, 4], [4, 4, 4, 4], [4, 15, 4, 4], [4, 4, 4, 4]]) / 50
    problems = [anyk.testing.Squares(8)] * 2
    outcomes = []
    for make in (anyk.clusters.Simulated, anyk.clusters.Processes):
        fleet = make(4, delays=TableDelays(table, by="round"))
        run = anyk.train_many(problems, "m-sgc:B=1,W=2,lambda=3,late=keep", fleet, steps=2)
        rows = run.log.rows(
            "SELECT slot, step, worker, task, chunk FROM chunks WHERE step IS NOT NULL ORDER BY 1, 2, 3, 4, 5"
        )
        outcomes.append((rows, run.log.rows("SELECT worker, task, ending FROM chunks ORDER BY 1, 2, 3")))
    assert outcomes[0] == outcomes[1]


def test_what_means_nothing() -> None:
    with pytest.raises(BadInput, match="late in 'm-sgc:B=1,W=2,lambda=1,late=some' should be one of drop, keep"):
        strategy("m-sgc:B=1,W=2,lambda=1,late=some", workers=4)
    with pytest.raises(BadInput, match="late must be drop or keep, got 'some'"):
        anyk.strategies.Multiplexed(4, B=1, W=2, lambda_=1, late="some")  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="strategy 'gc' has no key 'late'"):
        strategy("gc:stragglers=1,late=keep", workers=4)
    assert strategy("sr-sgc:B=1,W=2,lambda=1,late=keep", workers=4).spec == "sr-sgc:B=1,W=2,lambda=1,late=keep"
