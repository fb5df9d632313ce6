import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import anyk
from anyk.clusters import Compute, Outage, Simulated
from anyk.runs import Driver, session
from anyk.runs.floor import floor_seconds
from anyk.testing import Squares, check_strategy


def seconds_per_step(spec, n, delays, steps=4000, seed=1):
    strategy = anyk.strategy(spec, workers=n)
    return floor_seconds(strategy, Simulated(n, delays=anyk.delays.parse(delays), seed=seed), steps) / steps


def harmonic(n):
    return sum(1 / i for i in range(1, n + 1))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("uncoded", harmonic(30)),
        ("frc:load=3", harmonic(10) / 3),  # the max over 10 groups of the min of 3
        ("uncoded:wait=11", harmonic(30) - harmonic(19)),
        ("cyclic:stragglers=3", harmonic(30) - harmonic(3)),
        ("async", 1 / 30),
    ],
)
def test_seconds_per_step_are_the_closed_forms(spec, expected):
    steps = 30_000 if spec == "async" else 600 if "cyclic" in spec else 4000
    got = seconds_per_step(spec, 30, "exp:mean=1", steps=steps)
    assert got == pytest.approx(expected, rel=0.05 if steps < 1000 else 0.03)


@pytest.mark.slow
def test_erasurehead_numbers_of_the_shifted_exponential_model():
    """n = 30, c = 3, lambda = 1/3: exact EGC 0.3928968, uncoded 0.4328320 (the printed 0.3162 for EGC is wrong)."""
    uncoded = seconds_per_step("uncoded", 30, f"shifted-exp:shift={1 / 30},mean={3 / 30}")
    assert uncoded == pytest.approx(0.4328320464, rel=0.02)
    coded = seconds_per_step("frc:load=3", 30, f"shifted-exp:shift={3 / 30},mean={3 * 3 / 30}")
    assert coded == pytest.approx(0.3928968254, rel=0.02)


@pytest.mark.slow
def test_discard_is_slower_by_the_markov_chains_value():
    """P = 8, K = 4, exponential: 0.6345238 with preemption, 1.0343494 without."""
    preempt = seconds_per_step("uncoded:wait=4", 8, "exp:mean=1", steps=12_000)
    discard = seconds_per_step("uncoded:wait=4,cancel=discard", 8, "exp:mean=1", steps=12_000)
    assert preempt == pytest.approx(0.6345238095, rel=0.02)
    assert discard == pytest.approx(1.0343494016, rel=0.02)


@pytest.mark.slow
def test_mean_staleness_of_async_is_workers_less_one():
    for delays in ("exp:mean=1", "pareto:minimum=1,alpha=2.5", "bimodal:fast=1,slow=10", "hetero:means=1/2/8"):
        problem = Squares(6)
        cluster = Simulated(6, delays=anyk.delays.parse(delays), seed=1)
        run = anyk.train(problem, "async:lr_scale=0.01", cluster, steps=4000, evaluate="every=4000")
        assert run.history["staleness"][50:-1].mean() == pytest.approx(5.0, rel=0.03), delays


def test_same_seed_same_events_and_bits():
    runs = [
        anyk.train(Squares(6), "frc:load=2,wait=4", Simulated(6, delays=anyk.delays.Exponential(1.0), seed=9), steps=20)
        for _ in range(2)
    ]
    events = [run.log.rows("SELECT * FROM events") for run in runs]
    assert events[0] == events[1]
    assert runs[0].model.tobytes() == runs[1].model.tobytes()
    other = anyk.train(
        Squares(6), "frc:load=2,wait=4", Simulated(6, delays=anyk.delays.Exponential(1.0), seed=10), steps=20
    )
    assert other.log.rows("SELECT * FROM events") != events[0]


def test_uninterruptible_workers_start_when_their_delay_is_over():
    delays = anyk.delays.Bimodal(1.0, 10.0, 0.3, uninterruptible=True)
    run = anyk.train(Squares(6), "frc:load=3", Simulated(6, delays=delays, seed=2), steps=30)
    rows = run.log.rows("SELECT worker, started, computing FROM chunks WHERE received IS NOT NULL ORDER BY started")
    end = dict.fromkeys(range(6), 0.0)
    for worker, started, computing in rows:
        assert started >= end[worker] - 1e-9
        end[worker] = computing


def test_per_load_delays_grow_with_the_load():
    one = seconds_per_step("uncoded", 6, "constant:1,per=load", steps=5)
    three = seconds_per_step("frc:load=3", 6, "constant:1,per=load", steps=5)
    assert (one, three) == (1.0, 3.0)


def test_a_trace_is_replayed_row_by_row(tmp_path):
    table = np.array([[1.0, 2.0, 3.0], [5.0, 1.0, 1.0]])
    np.savez(tmp_path / "trace.npz", seconds=table)
    strategy = anyk.strategy("uncoded", workers=3)
    cluster = Simulated(3, delays=anyk.delays.parse(f"trace:{tmp_path / 'trace.npz'}"))
    assert floor_seconds(strategy, cluster, 4) == 3 + 5 + 3 + 5


def test_computing_takes_turns_on_the_cores():
    """4 tasks of 1 s on 2 cores take 2 s, and the driver 0.5 s a step."""
    cluster = Simulated(4, compute=Compute(task=0.25, partition=0.75, step=0.5, cores=2))
    run = anyk.train(Squares(4), "uncoded", cluster, steps=3)
    assert run.seconds == pytest.approx(3 * 2.5)


def test_a_fleet_that_is_lost_for_good_ends_with_a_sentence():
    outages = [Outage(0.5, worker) for worker in range(3)]
    with pytest.raises(anyk.RunFailed, match="every worker has been given up"):
        anyk.train(Squares(3), "uncoded", Simulated(3, delays=anyk.delays.Constant(1.0), outages=outages), steps=3)


STRATEGIES = [
    "uncoded",
    "frc:stragglers=2",
    "agc:load=2,wait=3",
    "async",
    "cyclic:stragglers=2",
    "partial",
    "uncoded:wait=4",
    "frc:stragglers=1,cancel=discard",
    "frc:stragglers=2,wait=0.2s|3",
    "uncoded:wait=50%",
]


@pytest.mark.slow
@pytest.mark.parametrize("spec", STRATEGIES)
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), outages=st.integers(0, 6))
def test_strategies_hold_under_random_loss_and_return(spec, seed, outages):
    check_strategy(anyk.strategy(spec, workers=6), steps=8, outages=outages, seed=seed)


def test_a_payload_free_run_decides_as_one_with_payload():
    for spec in STRATEGIES:
        delays = anyk.delays.Exponential(0.5)
        problem = Squares(anyk.strategy(spec, workers=6).layout.partitions)
        run = anyk.train(problem, spec, Simulated(6, delays=delays), steps=12, evaluate=None)
        driver = Driver(anyk.strategy(spec, workers=6), Simulated(6, delays=delays), steps=12)
        with session(driver):
            driver.run()
        assert driver.time == run.seconds, spec


def test_delays_by_round_count_without_computing_too(tmp_path) -> None:
    """The floor of a run with a trace that goes by rounds meets the same rows as the run."""
    table = np.random.default_rng(0).random((50, 4))
    np.savez(tmp_path / "t.npz", seconds=table)
    delays = anyk.delays.parse(f"trace:{tmp_path / 't.npz'},by=round")
    problem = anyk.problems.from_data("synthetic:rows=60,features=4")
    run = anyk.train(problem, "uncoded", anyk.clusters.Simulated(4, delays=delays), steps=9)
    assert run.seconds == run.floor_seconds == pytest.approx(table[:9].max(axis=1).sum())


@pytest.mark.parametrize("spec", ["async", "k-async:k=2", "fedbuff:k=1,tau=2"])
def test_of_equal_times_nobody_is_always_last(spec: str) -> None:
    """Without delays all is due at once: whoever was asked first comes first, else some would never be heard."""
    run = anyk.train(Squares(4), spec, anyk.clusters.Simulated(4), optimizer=anyk.optimizers.GD(lr=0.01), steps=40)
    heard = [worker for step in range(1, 41) for worker, *_ in run.receipt(step).used]
    assert [heard.count(worker) for worker in range(4)] == [len(heard) // 4] * 4


@pytest.mark.parametrize("logged", [False, True], ids=["without a log", "with a log"])
@pytest.mark.parametrize("spec", ["m-sgc:B=1,W=3,lambda=2", "frc:load=2,wait=3,cancel=discard", "tree:children=2"])
def test_nothing_is_remembered_of_tasks_that_have_ended(spec, logged):
    """Also where their worker was lost: unwanted tasks, messages sent and requests are those of tasks in flight."""
    strategy = anyk.strategy(spec, workers=6)
    outages = [Outage(0.2 + 0.7 * i, i % 6, 0.6 + 0.7 * i) for i in range(12)]
    delays = "exp:mean=1,per=load" + ",uninterruptible=true" * logged
    cluster = Simulated(6, delays=delays, compute=Compute(0.1, 0.0, 0.0, 6), outages=outages, seed=3)
    problem = Squares(strategy.layout.partitions) if logged else None
    seen = {"unwanted": 0, "delivered": 0, "requests": 0}

    def look(driver):
        state = cluster.state()
        alive = {task for task, _ in state["in_flight"]}
        of = {name: [entry if name == "unwanted" else entry[0] for entry in state[name]] for name in list(seen)[:2]}
        of["requests"] = [request.task for request in state["requests"]]
        for name, tasks in of.items():
            assert set(tasks) <= alive, name
            seen[name] += len(tasks)

    driver = Driver(strategy, cluster, problem=problem, optimizer=anyk.optimizers.GD(lr=0.1) if logged else None,
                    log=anyk.runs.LogWriter() if logged else None, steps=30, on_event=look)  # fmt: skip
    with session(driver):
        driver.run()
    assert seen[{"m": "delivered", "f": "unwanted", "t": "requests"}[spec[0]]] or (spec[0] == "t" and not logged)


@pytest.mark.parametrize("outage", [(5.0, 1, 4.0), (-1.0, 1, 4.0), (1.0, 1, 2.0, -1.0), (float("nan"), 1)])
def test_outages_that_cannot_be(outage):
    with pytest.raises(anyk.BadInput, match="an outage has time, worker, back"):
        Simulated(3, outages=[outage])
