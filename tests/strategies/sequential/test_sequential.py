"""Sequential gradient codes: golden rounds, every conforming pattern in time, what ends rounds, exact sums, hazards."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import anyk
from anyk.base.errors import BadInput
from anyk.clusters import Simulated
from anyk.codes import FractionalRepetition
from anyk.delays import TableDelays
from anyk.fleet import simulate
from anyk.protocol import Combine, Command, Dispatch, Event
from anyk.strategies import (
    Arbitrary,
    Bursty,
    GilbertElliott,
    PerRound,
    smallest_arbitrary,
    smallest_bursty,
    strategy,
)
from anyk.testing import check_strategy
from byhand import ByHand

GOLDEN = np.array([
    [1, 1, 1, 1, 1, 1, 1, 1],
    [1, 3, 1, 1, 1, 3, 1, 1],
    [1, 1, 1, 3, 1, 1, 1, 1],
    [4, 1, 1, 1, 5, 1, 3, 1],
]).T  # fmt: skip


@pytest.mark.parametrize(
    ("spec", "T", "load", "durations", "waits"),
    [
        ("m-sgc:B=1,W=2,lambda=2", 1, 0.375, [2, 2, 1, 2, 2], 0),
        ("m-sgc:B=1,W=2,lambda=1", 1, 1 / 3, [2, 3, 1, 2, 5], 2),
        ("m-sgc:B=2,W=3,lambda=2", 3, 0.375, [2, 2, 1, 2, 2, 3, 3], 2),
        ("m-sgc:B=1,W=3,lambda=4", 2, 0.375, [2, 2, 1, 2, 2, 2], 0),
        ("sr-sgc:B=1,W=2,lambda=2", 1, 0.5, [2, 2, 1, 2, 0], 0),
        ("sr-sgc:B=2,W=3,lambda=3", 2, 0.75, [2, 2, 1, 2, 0, 0], 0),
        ("gc:stragglers=1,end=cutoff", 0, 0.5, [2, 2, 1, 2], 0),
        ("gc:stragglers=1,end=cutoff,strict=true", 0, 0.5, [4, 3, 1, 3], 3),
        ("gc:stragglers=1", 0, 0.5, [1, 1, 1, 1], 0),
    ],
)
def test_golden_rounds(spec: str, T: int, load: float, durations: list[float], waits: int) -> None:
    scheme: Any = strategy(spec, workers=4)
    assert scheme.T == T and scheme.load == pytest.approx(load)
    seconds, waited = simulate(spec, GOLDEN, jobs=4)
    assert seconds == pytest.approx(durations, abs=1e-9) and waited == waits


def test_golden_loads() -> None:
    """The settings of the paper's experiment on 256 workers."""
    for spec, load in (
        ("m-sgc:B=1,W=2,lambda=27", 56 / 7424), ("sr-sgc:B=2,W=3,lambda=23", 13 / 256), ("gc:stragglers=15", 0.0625),
    ):  # fmt: skip
        repeating: Any = strategy(spec, workers=256)
        assert repeating.load == pytest.approx(load, rel=1e-12)
    scheme: Any = strategy("m-sgc:B=2,W=4,lambda=3", workers=8)
    assert sum(scheme.shares) == 8 * (2 + 3 * 4) and set(scheme.shares) == {4, 1}  # D1 pieces are lambda + 1 times D2's
    assert {j for partitions in scheme.layout.assignment for j in partitions} == set(range(scheme.layout.partitions))
    for i in range(8):  # all pieces cost the same
        for piece in range(3 + 2):
            assert sum(scheme.shares[j] for j in scheme._piece_rows[i][piece][0]) == 4


# ------------------------------------------------------------------------------------------- in time, always


def seconds(pattern: np.ndarray) -> np.ndarray:
    """1 s, and 3 s for stragglers: beyond a cut-off at twice the fastest; someone is always in time."""
    return np.where(pattern, 3.0, 1.0)


def in_time(spec: str, pattern: np.ndarray, jobs: int) -> bool:
    """Whether no round had to wait, and every job was done by its deadline (else the strategy stops the run)."""
    pattern = pattern.copy()
    pattern[pattern.all(axis=1), 0] = False  # where all straggle the fastest is one, and nobody is late
    seconds_found, waits = simulate(spec, seconds(pattern), jobs=jobs)
    return waits == 0 and seconds_found.max() <= 2.0 + 1e-9


def patterns(rounds: int, workers: int) -> Any:
    for bits in product((False, True), repeat=rounds * workers):
        table = np.array(bits).reshape(rounds, workers)
        if not table.all(axis=1).any():  # if all straggle the fastest is a straggler, and nobody is
            yield table


@pytest.mark.slow
@pytest.mark.parametrize(
    ("B", "W", "lam", "n", "jobs"),
    [(1, 2, 1, 2, 3), (1, 2, 2, 3, 2), (1, 3, 1, 2, 3), (2, 3, 1, 2, 2), (1, 2, 1, 3, 3)],
)
def test_every_conforming_pattern_is_decoded_in_time(B: int, W: int, lam: int, n: int, jobs: int) -> None:
    """Exhaustive: all patterns of the bursty and of the arbitrary model, for M-SGC; of the bursty one for SR-SGC."""
    bursty, arbitrary = Bursty(B, W, lam), Arbitrary(B, W + B - 1, lam)
    counts = [0, 0]
    for pattern in patterns(jobs + W - 2 + B, n):
        # the waiting rule is the bursty model's; patterns of the other are tested where they are also of this one
        if bursty.conforms(pattern):
            counts[0] += 1
            counts[1] += arbitrary.conforms(pattern)
            assert in_time(f"m-sgc:B={B},W={W},lambda={lam}", pattern, jobs), pattern
    assert counts[0] > 8
    if (W - 1) % B == 0:
        for pattern in patterns(jobs + B, n):
            if bursty.conforms(pattern):
                assert in_time(f"sr-sgc:B={B},W={W},lambda={lam}", pattern, jobs), pattern


@pytest.mark.slow
@settings(max_examples=80, deadline=None)
@given(
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(0, 6),
    st.integers(0, 10_000),
    st.sampled_from(["all", "minimal", "feasible"]),
)
def test_conforming_patterns_of_larger_fleets(B: int, x: int, lam: int, seed: int, wait: str) -> None:
    n, jobs = 7, 9
    W = x * B + 1
    pattern = Bursty(B, W, lam).draw(jobs + W + B, n, seed=seed)
    assert in_time(f"m-sgc:B={B},W={W},lambda={lam},wait={wait}", pattern, jobs)
    assert in_time(f"sr-sgc:B={B},W={W},lambda={lam},wait={wait}", pattern, jobs)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.integers(1, 3), st.integers(2, 5), st.integers(0, 6), st.integers(0, 10_000))
def test_feasible_waiting_bears_arbitrary_patterns(B: int, W: int, lam: int, seed: int) -> None:
    """(N = B, W' = W + B - 1, lambda)-arbitrary stragglers, tolerated though the bursty model would refuse some."""
    B = min(B, W - 1)
    n, jobs = 6, 7
    pattern = Arbitrary(B, W + B - 1, lam).draw(jobs + W + B, n, seed=seed)
    assert in_time(f"m-sgc:B={B},W={W},lambda={lam},wait=feasible", pattern, jobs)


@pytest.mark.slow
@settings(max_examples=80, deadline=None)
@given(st.sampled_from(["m-sgc:B=1,W=2,lambda=2", "m-sgc:B=2,W=3,lambda=1", "sr-sgc:B=2,W=3,lambda=3", "sr-sgc:B=1,W=3,lambda=2", "gc:stragglers=1"]),
       st.sampled_from(["all", "minimal", "feasible"]), st.integers(0, 10_000))  # fmt: skip
def test_patterns_outside_the_model_cost_time_and_never_a_job(spec: str, wait: str, seed: int) -> None:
    table = np.random.default_rng(seed).exponential(size=(16, 5)) + 0.2
    seconds_found, waits = simulate(f"{spec},wait={wait}", table, jobs=10)
    assert len(seconds_found) == 10 + strategy(spec, workers=5).T  # type: ignore[attr-defined]
    assert (seconds_found <= table[: len(seconds_found)].max(axis=1) + 1e-9).all() and 0 <= waits <= len(seconds_found)
    everything, _ = simulate(f"{spec},wait=all", table, jobs=10)
    if wait == "all":
        assert seconds_found == pytest.approx(everything)


def test_without_stragglers_nothing_is_done_twice() -> None:
    for spec, T in (("m-sgc:B=2,W=4,lambda=2", 4), ("sr-sgc:B=2,W=3,lambda=2", 2)):
        scheme: Any = strategy(spec + ",jobs=12", workers=5)
        pieces: list[tuple[int, int, int]] = []
        done: list[tuple[int, int]] = []
        deliver, total = scheme._deliver, scheme._job_sum

        def seen(
            s: Any, worker: int, job: int, piece: int, place: Any, deliver: Any = deliver, pieces: Any = pieces
        ) -> None:
            pieces.append((worker, job, piece))
            deliver(s, worker, job, piece, place)

        def summed(s: Any, job: int, total: Any = total, done: Any = done) -> Any:
            done.append((job, s.round))
            return total(s, job)

        object.__setattr__(scheme, "_deliver", seen)
        object.__setattr__(scheme, "_job_sum", summed)
        cluster = anyk.clusters.Simulated(5, delays=anyk.delays.Constant(1.0))
        driver = anyk.runs.Driver(scheme, cluster)
        with anyk.runs.session(driver):
            driver.run()
        assert len(pieces) == len(set(pieces))
        if spec.startswith("m-sgc"):
            assert done == [(job, job + T) for job in range(12)]
        else:
            assert done == [(job, job) for job in range(12)]  # nobody is late: a job is done in its own round


# ------------------------------------------------------------------------------------------- exact sums

PROBLEMS = 4


def gradient_descent(problem: Any, steps: int, lr: float) -> Any:
    w, partition = problem.initial(), problem.split(1)
    for _ in range(steps):
        w = w - lr * (partition.partial_gradient(0, w) / problem.samples + problem.l2 * w)
    return w


@pytest.mark.slow
@pytest.mark.parametrize("cluster", ["simulated", "processes"])
@pytest.mark.parametrize(
    "spec",
    ["m-sgc:B=1,W=2,lambda=2", "m-sgc:B=2,W=3,lambda=2,inner=cyclic", "m-sgc:B=1,W=3,lambda=6", "m-sgc:B=1,W=2,lambda=1,inner=frc",
     "sr-sgc:B=1,W=2,lambda=2", "sr-sgc:B=2,W=3,lambda=3,wait=minimal", "gc:stragglers=2,inner=binary", "frc:load=2", "cyclic:stragglers=1",
     "m-sgc:B=2,W=3,lambda=2,wait=feasible"],
)  # fmt: skip
def test_several_models_take_full_gradient_steps(spec: str, cluster: str) -> None:
    """Every job's decoded gradient is the whole one: each model is that of plain gradient descent on its own problem."""
    problems = [anyk.problems.from_data(f"synthetic:rows=250,features=5,seed={i}") for i in range(PROBLEMS)]
    fleet = anyk.cluster(cluster, workers=6, delays="bimodal:fast=0.002,slow=0.02,probability=0.2", seed=4)
    run = anyk.train_many(problems, spec, fleet, steps=6, optimizer=anyk.optimizers.GD(lr=0.5))
    for i, problem in enumerate(problems):
        assert run.models[f"model {i}"] == pytest.approx(gradient_descent(problem, 6, 0.5), abs=1e-9)
        assert run.history_of(f"model {i}")["step"].tolist() == list(range(7))
    assert run.steps == 6
    assert run.ledger["dispatched"] == sum(v for k, v in run.ledger.items() if k not in ("dispatched", "unusable"))
    assert str(anyk.replay(run, problem=anyk.problems.ManyProblems(problems))).endswith("the same bits of model")


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["m-sgc:B=2,W=3,lambda=2", "sr-sgc:B=1,W=2,lambda=3", "gc:stragglers=1", "frc:load=2"])
def test_a_killed_run_of_several_models_goes_on(spec: str, tmp_path: Any) -> None:
    problems = [anyk.problems.from_data(f"synthetic:rows=250,features=5,seed={i}") for i in range(PROBLEMS)]
    setting = {"workers": 6, "delays": "exp:mean=0.3", "seed": 3}
    optimizer = anyk.optimizers.Nesterov(lr=0.3)
    uninterrupted = anyk.train_many(problems, spec, anyk.cluster("simulated", **setting), steps=9, optimizer=optimizer)
    cluster = anyk.cluster("simulated", **setting)
    half = uninterrupted.seconds / 2
    anyk.train_many(problems, spec, cluster, steps=9, seconds=half, optimizer=optimizer, out=tmp_path / "run").close()
    resumed = anyk.resume(tmp_path / "run", steps=9)
    for slot, w in uninterrupted.models.items():
        assert resumed.models[slot].tobytes() == w.tobytes()
    resumed.close()
    if not spec.startswith("frc"):  # its last rounds were without further jobs
        with pytest.raises(BadInput, match="the run was planned for 9 steps of each model.*start a new one from it"):
            anyk.resume(tmp_path / "run", steps=12)


@pytest.mark.slow
@pytest.mark.parametrize(
    "spec",
    ["m-sgc:B=1,W=2,lambda=2", "m-sgc:B=2,W=4,lambda=2,wait=feasible", "m-sgc:B=1,W=2,lambda=1,wait=minimal", "sr-sgc:B=1,W=3,lambda=3",
     "sr-sgc:B=2,W=3,lambda=3,wait=feasible", "gc:stragglers=1", "frc:load=2,models=3"],
)  # fmt: skip
def test_they_survive_outages(spec: str) -> None:
    for seed in range(8):
        check_strategy(strategy(spec, workers=6), steps=10, outages=4, seed=seed)


def test_a_worker_that_is_gone_for_good_is_borne_or_said() -> None:
    from anyk.clusters import Outage

    problem = anyk.problems.from_data("synthetic:rows=250,features=5")
    fleet = anyk.clusters.Simulated(4, delays=anyk.delays.Constant(1.0), outages=[Outage(2.5, 1)])
    run = anyk.train(problem, "gc:stragglers=1", fleet, steps=6)
    assert run.steps == 6
    for gone in ([Outage(0.5, i) for i in range(4)], [Outage(2.5, i) for i in range(4)]):
        fleet = anyk.clusters.Simulated(4, delays=anyk.delays.Constant(1.0), outages=gone)
        with pytest.raises(anyk.RunFailed, match="every worker has been given up"):
            anyk.train(problem, "gc:stragglers=1", fleet, steps=6)
    fleet = anyk.clusters.Simulated(4, delays=anyk.delays.Constant(1.0), outages=[Outage(2.5, 1)])
    with pytest.raises(anyk.RunFailed, match=r"round 2 of 'gc:stragglers=0' cannot end: workers 1 give nothing"):
        anyk.train(problem, "gc:stragglers=0", fleet, steps=6)


def test_mini_batches_and_unusable_messages() -> None:
    problem = anyk.testing.Squares(8, faults={2: "nan"})
    fleet = anyk.cluster("processes", workers=6, delays="exp:mean=0.005")
    run = anyk.train(problem, "gc:stragglers=1", fleet, steps=4)
    assert run.ledger["unusable"] > 0 and np.isfinite(run.model).all() and run.steps == 4


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("m-sgc:B=2,W=2,lambda=1", r"B of 'm-sgc' must be 1 to 1 \(W - 1, W = 2\), got 2"),
        ("m-sgc:B=1,W=2,lambda=7", "lambda of 'm-sgc' must be 0 to 6 workers, got 7"),
        ("sr-sgc:B=2,W=4,lambda=2", "W - 1 of 'sr-sgc' must be a multiple of B = 2, got W = 4"),
        ("m-sgc:B=1,W=2", r"strategy 'm-sgc' needs lambda=…, as in m-sgc:B=…,W=…,lambda=…"),
        ("gc:stragglers=6", "'gc' would have to tolerate 6 of 6 workers; at most all but one"),
        (
            "m-sgc:B=2,W=3,lambda=1,models=3",
            "'m-sgc' needs models >= 4 \\(each job spans 4 rounds\\), got 3",
        ),
        ("gc:stragglers=1,mu=-1", r"mu must be a finite number of at least 0, got -1.0"),
        ("gc:stragglers=1,wait=some", "wait in 'gc:stragglers=1,wait=some' should be one of all, minimal, feasible"),
        ("gc:stragglers=1,inner=bgc", "inner=bgc has no code of 6 partitions|no key"),
    ],
)
def test_specs_that_mean_nothing(spec: str, sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        scheme: Any = strategy(spec, workers=6)
        _ = scheme.layout


def test_problems_that_cannot_be_trained_at_once() -> None:
    one, other = (anyk.problems.from_data(f"synthetic:rows=60,features={f}") for f in (4, 5))
    with pytest.raises(BadInput, match="problems trained together must agree in dimension, got"):
        anyk.train_many([one, other], "gc:stragglers=1", anyk.clusters.Simulated(4), steps=1)
    with pytest.raises(BadInput, match="'frc:load=2,models=3' trains 3 models, there are 2 problems"):
        anyk.train_many([one, one], "frc:load=2,models=3", anyk.clusters.Simulated(4), steps=1)
    with pytest.raises(BadInput, match="there is no problem to train on"):
        anyk.train_many([], "frc:load=2", anyk.clusters.Simulated(4), steps=1)


# ------------------------------------------------------------------------------------------- straggler models


def by_definition(pattern: np.ndarray, model: Any) -> bool:
    """Every window looked at on its own."""
    rounds = len(pattern)
    if isinstance(model, PerRound):
        return all(row.sum() <= model.s for row in pattern)
    for start in range(rounds):
        window = pattern[start : start + model.window]
        if window.any(axis=0).sum() > model.most:
            return False
        for column in window.T:
            straggling = np.flatnonzero(column)
            if isinstance(model, Bursty) and straggling.size and straggling[-1] - straggling[0] > model.burst - 1:
                return False
            if isinstance(model, Arbitrary) and straggling.size > model.times:
                return False
    return True


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(st.integers(1, 3), st.integers(0, 3), st.integers(0, 4), st.integers(0, 10_000), st.floats(0.05, 0.5))
def test_models_against_their_definition(burst: int, more: int, most: int, seed: int, density: float) -> None:
    pattern = np.random.default_rng(seed).random((8, 4)) < density
    for model in (Bursty(burst, burst + 1 + more, most), Arbitrary(burst, burst + 1 + more, most), PerRound(most)):
        assert model.conforms(pattern) == by_definition(pattern, model)
        drawn = model.draw(10, 5, seed=seed)
        assert by_definition(drawn, model)
        assert np.array_equal(drawn, model.draw(10, 5, seed=seed))
    try:
        smallest = smallest_bursty(pattern, window=4)
    except BadInput:
        assert not by_definition(pattern, Bursty(3, 4, 4))
    else:
        assert by_definition(pattern, smallest)
        if smallest.burst > 1:
            assert not by_definition(pattern, Bursty(smallest.burst - 1, 4, smallest.most))
        if smallest.most:
            assert not by_definition(pattern, Bursty(smallest.burst, 4, smallest.most - 1))
    loose = smallest_arbitrary(pattern, window=4)
    assert by_definition(pattern, loose)


def test_value_45_gilbert_and_elliott() -> None:
    model = GilbertElliott(fail=0.05, recover=0.25)
    assert (model.share, model.burst, model.correlation) == pytest.approx((1 / 6, 4.0, 0.7))
    assert 1 - (1 - model.share) ** 8 == pytest.approx(0.7674320, abs=1e-6)
    drawn = model.draw(4000, 30, seed=1)
    assert drawn.mean() == pytest.approx(1 / 6, rel=0.04)
    x = drawn - drawn.mean()
    assert (x[1:] * x[:-1]).mean() / (x * x).mean() == pytest.approx(0.7, abs=0.02)
    lengths = np.concatenate(
        [np.diff(np.flatnonzero(np.diff(np.r_[0, column, 0])))[::2] for column in drawn.T.astype(int)]
    )
    assert lengths.mean() == pytest.approx(4.0, rel=0.05)
    assert drawn[0].any()  # stationary from the first round on


ENDING = [
    "m-sgc:B=1,W=2,lambda=2", "m-sgc:B=2,W=3,lambda=1,inner=frc", "m-sgc:B=1,W=3,lambda=6,wait=feasible",
    "m-sgc:B=2,W=4,lambda=2,wait=feasible", "sr-sgc:B=2,W=3,lambda=3", "sr-sgc:B=1,W=3,lambda=2,wait=feasible",
    "sr-sgc:B=1,W=2,lambda=4,inner=cyclic", "gc:stragglers=2,inner=cyclic",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.in_process
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
    scheme = strategy(f"{spec},jobs={jobs}", workers=np.shape(table)[1])
    ends: list[int] = []
    newest = 0

    def note(found: Sequence[Command]) -> Sequence[Command]:
        nonlocal newest
        for command in found:
            if isinstance(command, Combine):
                assert command.residual < 1e-9
                ends.append(newest)
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

    driver = anyk.runs.Driver(
        scheme, Simulated(scheme.layout.workers, delays=TableDelays(np.asarray(table), by="round"))
    )
    driver.running = Noted(scheme)
    with anyk.runs.session(driver):
        driver.run()
    return ends


@pytest.mark.slow
@pytest.mark.in_process
@settings(max_examples=30, deadline=None)
@given(st.sampled_from(ENDING), st.sampled_from(["", ",late=keep"]), st.integers(0, 10_000))
def test_no_job_is_later_than_its_deadline_whatever_the_delays(spec: str, late: str, seed: int) -> None:
    table = np.random.default_rng(seed).exponential(size=(14, 6)) + 0.1
    spec += ",end=decodable" + late * (not spec.startswith("gc"))
    scheme: Any = strategy(spec, workers=6)
    ends = rounds_of_jobs(spec, table, 8)
    assert len(ends) == 8 and all(job <= done <= job + scheme.T for job, done in enumerate(ends))


@pytest.mark.in_process
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


@pytest.mark.slow
@pytest.mark.in_process
@settings(max_examples=30, deadline=None)
@given(st.integers(1, 3), st.integers(1, 2), st.integers(0, 10_000))
def test_groups_bear_more_stragglers_than_promised(B: int, x: int, seed: int) -> None:
    """Pairs of 8 workers, lambda = 1: up to 4 straggle at once; and of SR-SGC all but the fastest, if not for long."""
    n, jobs, W = 8, 7, x * B + 1
    pattern = Grouped(B, W, n).draw(jobs + W + B, n, seed=seed)
    assert pattern.any()
    seconds, waits = simulate(f"m-sgc:B={B},W={W},lambda=1,inner=frc", np.where(pattern, 3.0, 1.0), jobs=jobs)
    assert waits == 0 and seconds.max() <= 2.0 + 1e-9
    pattern = Bursty(B, B + 1, n).draw(jobs + B, n, seed=seed, density=0.9)
    pattern[pattern.all(axis=1), 0] = False
    seconds, waits = simulate(f"sr-sgc:B={B},W={B + 1},lambda=2,inner=frc", np.where(pattern, 3.0, 1.0), jobs=jobs)
    assert waits == 0 and seconds.max() <= 2.0 + 1e-9


@pytest.mark.slow
@pytest.mark.in_process
@pytest.mark.parametrize(
    "spec", ["m-sgc:B=2,W=3,lambda=2,end=decodable", "m-sgc:B=1,W=2,lambda=2,inner=frc", "sr-sgc:B=1,W=2,lambda=4,end=decodable",
             "sr-sgc:B=2,W=3,lambda=3,inner=frc,end=cutoff,late=keep", "gc:stragglers=3,inner=frc"],
)  # fmt: skip
def test_sums_are_of_the_whole_data_despite_outages(spec: str) -> None:
    problems = [anyk.problems.from_data(f"synthetic:rows=60,features=3,seed={i}") for i in range(4)]
    fleet = anyk.clusters.Simulated(6, delays=anyk.delays.Exponential(1.0), seed=4)
    run = anyk.train_many(problems, spec, fleet, steps=3, optimizer=anyk.optimizers.GD(lr=0.5))
    for i, problem in enumerate(problems):
        w, partition = problem.initial(), problem.split(1)
        for _ in range(3):
            w = w - 0.5 * (partition.partial_gradient(0, w) / problem.samples + problem.l2 * w)
        assert run.models[f"model {i}"] == pytest.approx(w, abs=1e-9)
    check_strategy(strategy(spec, workers=6), steps=8, outages=4, seed=1)


@pytest.mark.in_process
def test_specs_and_loads() -> None:
    """The rule that is usual is left out; where groups are uneven the load is what the largest group computes."""
    for spec in ("gc:stragglers=1", "gc:stragglers=1,end=cutoff", "m-sgc:B=1,W=2,lambda=1,end=decodable",
                 "sr-sgc:B=1,W=2,lambda=1,end=decodable,wait=all"):  # fmt: skip
        assert strategy(spec, workers=4).spec == spec
    assert strategy("gc:stragglers=1,end=cutoff,wait=all", workers=4).spec == "gc:stragglers=1,end=cutoff"
    assert strategy("sr-sgc:B=1,W=2,lambda=1,wait=all,end=cutoff", workers=4).spec == "sr-sgc:B=1,W=2,lambda=1"
    for spec in ("gc:stragglers=2,inner=frc", "gc:stragglers=2,inner=binary", "m-sgc:B=1,W=2,lambda=2,inner=frc"):
        scheme: Any = strategy(spec, workers=7)
        widest = max(
            sum((scheme.layout.shares or [1] * 7)[j] for piece in pieces for j in scheme._piece_rows[i][piece][0])
            for i in range(7) for pieces in ((0, 1) if spec.startswith("m") else (0,),)
        )  # fmt: skip
        assert scheme.load == pytest.approx(widest / sum(scheme.layout.shares or [1] * 7))
