"""Sequential codes whose rounds end when decodable, and groups in the straggler model: promises, oracles, and prices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import anyk
from anyk.clusters import Simulated
from anyk.codes import FractionalRepetition
from anyk.delays import Table
from anyk.fleet import simulate
from anyk.protocol import Combine, Command, Dispatch, Event
from anyk.strategies import Bursty, strategy
from anyk.testing import check_strategy
from byhand import ByHand

pytestmark = pytest.mark.in_process

SPECS = [
    "m-sgc:B=1,W=2,lambda=2", "m-sgc:B=2,W=3,lambda=1,inner=frc", "m-sgc:B=1,W=3,lambda=6,wait=feasible",
    "m-sgc:B=2,W=4,lambda=2,wait=feasible", "sr-sgc:B=2,W=3,lambda=3", "sr-sgc:B=1,W=3,lambda=2,wait=feasible",
    "sr-sgc:B=1,W=2,lambda=4,inner=cyclic", "gc:stragglers=2,inner=cyclic",
]  # fmt: skip


@settings(max_examples=12, deadline=None)
@given(st.integers(2, 9), st.integers(0, 8), st.integers(0, 10_000))
def test_gc_ends_when_decodable_and_never_after_a_cut_off(n: int, s: int, seed: int) -> None:
    s = min(s, n - 1)
    table = np.random.default_rng(seed).exponential(size=(8, n)) + 0.1
    counted, _ = simulate(f"gc:stragglers={s},inner=cyclic", table, jobs=8)
    assert counted == pytest.approx(np.sort(table, axis=1)[:, n - s - 1])
    grouped, _ = simulate(f"gc:stragglers={s},inner=frc", table, jobs=8)
    assert grouped == pytest.approx(FractionalRepetition(n, stragglers=s).finish_times(table))
    assert grouped == pytest.approx(simulate(f"frc:stragglers={s}", table, jobs=8)[0])
    for inner, ended in (("cyclic", counted), ("frc", grouped)):
        cut, _ = simulate(f"gc:stragglers={s},inner={inner},end=cutoff,wait=minimal", table, jobs=8)
        assert (ended <= cut + 1e-9).all()


def rounds_of_jobs(spec: str, table: Any, jobs: int) -> list[int]:
    """In which round each job got its sum."""
    made = strategy(f"{spec},jobs={jobs}", workers=np.shape(table)[1])
    at: list[int] = []
    newest = 0

    def note(found: Sequence[Command]) -> Sequence[Command]:
        nonlocal newest
        for command in found:
            if isinstance(command, Combine):
                assert command.residual < 1e-9
                at.append(newest)
            elif isinstance(command, Dispatch) and command.round is not None:
                newest = command.round
        return found

    class Noted(ByHand):
        def start(self, fleet: Any) -> Sequence[Command]:
            commands = note(super().start(fleet))
            self.inside, self.on = self.on, self.hear
            return commands

        def hear(self, event: Event) -> Sequence[Command]:
            return note(self.inside(event))

    driver = anyk.runs.Driver(made, Simulated(made.layout.workers, delays=Table(np.asarray(table), by="round")))
    driver.running = Noted(made)
    with anyk.runs.session(driver):
        driver.run()
    return at


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(SPECS), st.sampled_from(["", ",late=keep"]), st.integers(0, 10_000))
def test_no_job_is_later_than_its_deadline_whatever_the_delays(spec: str, late: str, seed: int) -> None:
    table = np.random.default_rng(seed).exponential(size=(14, 6)) + 0.1
    spec += ",end=decodable" + late * (not spec.startswith("gc"))
    made: Any = strategy(spec, workers=6)
    at = rounds_of_jobs(spec, table, 8)
    assert len(at) == 8 and all(job <= done <= job + made.T for job, done in enumerate(at))


def test_an_early_end_may_cost_more_than_it_saves() -> None:
    """Worker 2 is only last in round 0. Cut off all the same, it has used up what worker 0 needs in round 1."""
    table = [[1, 1, 1.1], [4, 1, 1], [1, 1, 1], [1, 1, 1]]
    waited, _ = simulate("m-sgc:B=1,W=2,lambda=1", table, jobs=3)
    early, _ = simulate("m-sgc:B=1,W=2,lambda=1,end=decodable", table, jobs=3)
    assert waited.tolist() == pytest.approx([1.1, 2.0, 1.0, 1.0])
    assert early.tolist() == pytest.approx([1.0, 4.0, 1.0, 1.0])


class Grouped(Bursty):
    """Bursts of at most B rounds in any W, which leave one of each pair of workers."""

    def _allows(self, pattern: Any, row: int) -> bool:
        pairs = pattern[max(0, row + 1 - self.window) : row + 1].any(axis=0).reshape(-1, 2)
        return bool(super()._allows(pattern, row) and not pairs.all(axis=1).any())


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 3), st.integers(1, 2), st.integers(0, 10_000))
def test_groups_bear_more_stragglers_than_promised(B: int, x: int, seed: int) -> None:
    """Pairs of 8 workers, lambda = 1: up to 4 straggle at once; and of SR-SGC all but the fastest, if not for long."""
    n, jobs, W = 8, 7, x * B + 1
    pattern = Grouped(B, W, n).draw(jobs + W + B, n, seed=seed)
    assert pattern.any()
    found, waits = simulate(f"m-sgc:B={B},W={W},lambda=1,inner=frc", np.where(pattern, 3.0, 1.0), jobs=jobs)
    assert waits == 0 and found.max() <= 2.0 + 1e-9
    pattern = Bursty(B, B + 1, n).draw(jobs + B, n, seed=seed, density=0.9)
    pattern[pattern.all(axis=1), 0] = False
    found, waits = simulate(f"sr-sgc:B={B},W={B + 1},lambda=2,inner=frc", np.where(pattern, 3.0, 1.0), jobs=jobs)
    assert waits == 0 and found.max() <= 2.0 + 1e-9


@pytest.mark.parametrize(
    "spec", ["m-sgc:B=2,W=3,lambda=2,end=decodable", "m-sgc:B=1,W=2,lambda=2,inner=frc", "sr-sgc:B=1,W=2,lambda=4,end=decodable",
             "sr-sgc:B=2,W=3,lambda=3,inner=frc,end=cutoff,late=keep", "gc:stragglers=3,inner=frc"],
)  # fmt: skip
def test_sums_are_of_the_whole_data_despite_outages(spec: str) -> None:
    problems = [anyk.problems.from_data(f"synthetic:rows=60,features=3,seed={i}") for i in range(4)]
    fleet = anyk.clusters.Simulated(6, delays=anyk.delays.Exponential(1.0), seed=4)
    run = anyk.train_many(problems, spec, fleet, steps=3, optimizer=anyk.optimizers.GD(lr=0.5))
    for i, problem in enumerate(problems):
        w, part = problem.initial(), problem.split(1)
        for _ in range(3):
            w = w - 0.5 * (part.partial_gradient(0, w) / problem.samples + problem.l2 * w)
        assert run.models[f"model {i}"] == pytest.approx(w, abs=1e-9)
    check_strategy(strategy(spec, workers=6), steps=8, outages=4, seed=1)


def test_specs_and_loads() -> None:
    """The rule that is usual is left out; where groups are uneven the load is what the largest group computes."""
    for spec in ("gc:stragglers=1", "gc:stragglers=1,end=cutoff", "m-sgc:B=1,W=2,lambda=1,end=decodable",
                 "sr-sgc:B=1,W=2,lambda=1,end=decodable,wait=all"):  # fmt: skip
        assert strategy(spec, workers=4).spec == spec
    assert strategy("gc:stragglers=1,end=cutoff,wait=all", workers=4).spec == "gc:stragglers=1,end=cutoff"
    assert strategy("sr-sgc:B=1,W=2,lambda=1,wait=all,end=cutoff", workers=4).spec == "sr-sgc:B=1,W=2,lambda=1"
    for spec in ("gc:stragglers=2,inner=frc", "gc:stragglers=2,inner=binary", "m-sgc:B=1,W=2,lambda=2,inner=frc"):
        made: Any = strategy(spec, workers=7)
        widest = max(
            sum((made.layout.shares or [1] * 7)[j] for piece in pieces for j in made._piece_rows[i][piece][0])
            for i in range(7) for pieces in ((0, 1) if spec.startswith("m") else (0,),)
        )  # fmt: skip
        assert made.load == pytest.approx(widest / sum(made.layout.shares or [1] * 7))
