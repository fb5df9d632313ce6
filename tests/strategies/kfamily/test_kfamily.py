"""The K family, fed by hand and on the virtual clock: who works on what, what is used once, how stale it is."""

from __future__ import annotations

import json
from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import anyk
from anyk.base.errors import BadInput
from anyk.base.plain import from_plain, to_plain
from anyk.protocol import Cancel, Combine, Command, Dispatch, Event, Failed, Fleet, Joined, Lost, Reply, Stop
from anyk.strategies import KFamily, adapted_k, adasync, strategy
from byhand import ByHand


def begun(workers: int, present: Sequence[int] | None = None, lr_scale: float = 1.0) -> ByHand:
    running = ByHand(KFamily(workers, lr_scale=lr_scale))
    running.start(Fleet(workers, tuple(range(workers) if present is None else present), 0.0))
    return running


def test_the_commands() -> None:
    running = ByHand(KFamily(3, lr_scale=0.25))
    (first,) = running.start(Fleet(3, (0, 1, 2), 0.0))
    assert isinstance(first, Dispatch) and (first.task, list(first.workers)) == (0, [0, 1, 2])
    assert [task[0].partitions for task in first.chunks] == [(0,), (1,), (2,)]
    combine, dispatch = running.on(Reply(0.1, 1, 1, 0))
    assert isinstance(combine, Combine) and isinstance(dispatch, Dispatch)  # first apply, then dispatch
    assert list(combine.messages) == [(1, 0)] and list(combine.weights) == [1.0]
    assert (combine.slot, combine.divisor, combine.scale) == ("model", "counted", 0.25)
    assert (dispatch.task, list(dispatch.workers), dispatch.chunks[0][0].partitions) == (3, [1], (1,))
    assert running.version == 1


def test_the_residual_is_that_of_the_coefficients() -> None:
    """A step of one of n partitions counts it n times and the others not at all."""
    for n in (1, 2, 7):
        combine = begun(n).on(Reply(0.1, n - 1, n - 1, 0))[0]
        assert isinstance(combine, Combine)
        assert combine.residual == pytest.approx(((n - 1) ** 2 / n + (n - 1) / n) ** 0.5, abs=1e-12)


def test_each_worker_holds_its_own_partition() -> None:
    layout = KFamily(4).layout
    assert (layout.workers, layout.partitions, layout.slots) == (4, 4, ("model",))
    assert list(layout.assignment) == [(0,), (1,), (2,), (3,)]


def test_who_fails_or_joins_is_given_the_newest_version() -> None:
    running = begun(3, present=(0, 2))
    for event, task in ((Failed(0.1, 0, 0, 0, "not finite"), 2), (Joined(0.2, 1), 3)):
        (dispatch,) = running.on(event)
        assert isinstance(dispatch, Dispatch)
        assert (dispatch.task, list(dispatch.workers)) == (task, [event.worker]) and running.version == 0


def test_lost_workers_end_the_run_if_none_can_return() -> None:
    running = begun(2)
    assert not running.on(Lost(0.1, 0, "preempted"))
    assert not running.on(Lost(0.1, 1, "preempted"))
    assert list(running.on(Joined(0.2, 1))[0].workers) == [1]  # type: ignore[union-attr]
    assert not running.on(Lost(0.3, 0, "could not be started", gone=True))
    (stop,) = running.on(Lost(0.4, 1, "died", gone=True))
    assert stop == Stop("every worker has been given up", failed=True)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"workers": 0}, "workers must be a whole number of at least 1, got 0"),
        ({"workers": 3, "lr_scale": 0.0}, r"lr_scale must be a finite number above 0, got 0.0"),
        ({"workers": 3, "lr_scale": -1.0}, r"lr_scale must be a finite number above 0, got -1.0"),
        ({"workers": 3, "lr_scale": float("nan")}, "lr_scale must be a finite number .*, got nan"),
        ({"workers": 3, "lr_scale": float("inf")}, "lr_scale must be a finite number above 0, got inf"),
        ({"workers": 3, "k": 0}, "k must be a whole number of at least 1, got 0"),
        (
            {"workers": 3, "k": 4, "kind": "k-async"},
            "k of 'k-async' must be 1 to 3; the batch kinds take more gradients than workers, got 4",
        ),
        ({"workers": 3, "batch": -1}, "batch must be a whole number of at least 0, got -1"),
        ({"workers": 3, "stale": "never"}, "stale must be constant, inverse, sqrt or distance, got 'never'"),
        ({"workers": 3, "cutoff": -2}, "cutoff must be a whole number of at least 0, got -2"),
        ({"workers": 3, "stale": "distance"}, "stale=distance needs bound=.*got stale=distance, bound=None"),
        ({"workers": 3, "bound": 1.0}, "stale=distance needs bound=.*got stale=constant, bound=1.0"),
        ({"workers": 3, "cancel": "no"}, "cancel must be preempt or discard, got 'no'"),
    ],
)
def test_parameters_out_of_range(options: Any, sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        KFamily(**options)


def test_its_spec() -> None:
    assert strategy("async", workers=3).spec == "async"
    assert (
        strategy("async:lr_scale=0.25", workers=3).spec
        == strategy("async:0.25", workers=3).spec
        == "async:lr_scale=0.25"
    )


# ------------------------------------------------------------------------------------------- any events at all

KINDS = ("async", "k-sync", "k-async", "k-batch-async", "k-batch-sync")


class World:
    """Which worker has which task, since which version, and what has become of every message."""

    def __init__(self, strategy: KFamily, present: Sequence[int]) -> None:
        self.strategy = ByHand(strategy)
        self.workers, self.present, self.gone = strategy.workers, set(present), set[int]()
        self.given: dict[int, tuple[int, int]] = {}  # worker -> (task, version)
        self.arrived: dict[int, int] = {}  # task -> version, not used yet
        self.used: dict[int, int] = {}  # task -> staleness
        self.dropped: set[int] = set()
        self.next = self.version = 0
        self.stopped = False
        self.obey(self.strategy.start(Fleet(self.workers, tuple(sorted(present)), 0.0)))

    def obey(self, commands: Sequence[Command]) -> None:
        for command in commands:
            if isinstance(command, Dispatch):
                assert command.task == self.next
                for worker, chunks in zip(command.workers, command.chunks, strict=True):
                    assert worker in self.present and worker not in self.given
                    assert [chunk.partitions for chunk in chunks] == [(worker,)]
                    self.given[worker] = (self.next, self.version)
                    self.next += 1
            elif isinstance(command, Cancel):
                for task in command.tasks:
                    if task in self.arrived:
                        del self.arrived[task]
                        self.dropped.add(task)
                    self.given = {worker: assigned for worker, assigned in self.given.items() if assigned[0] != task}
            elif isinstance(command, Combine):
                for task, _ in command.messages:
                    self.used[task] = self.version - self.arrived.pop(task)  # a KeyError is a double count
                self.version += 1
            else:
                assert isinstance(command, Stop) and command.failed and len(self.gone) == self.workers
                self.stopped = True

    def tell(self, event: Event) -> None:
        twin = ByHand(deepcopy(self.strategy.strategy))
        twin.restore(json.loads(json.dumps(self.strategy.save())))
        commands = self.strategy.on(event)
        assert list(twin.on(event)) == list(commands)
        assert json.dumps(twin.save()) == json.dumps(self.strategy.save())
        self.obey(commands)
        assert self.stopped == (len(self.gone) == self.workers)
        if not self.stopped:
            assert self.strategy.version == self.version
            assert self.given or len(self.present) + len(self.gone) < self.workers, "nothing can happen any more"
            if self.strategy.kind not in ("k-sync", "k-async"):
                assert set(self.given) == self.present  # all have work, always

    def do(self, kind: str, pick: int) -> None:
        time = float(self.next)
        absent = sorted(set(range(self.workers)) - self.present - self.gone)
        idle, busy = sorted(self.present), sorted(self.given)
        if kind in ("lost", "gone") and idle:
            worker = idle[pick % len(idle)]
            self.present.discard(worker)
            self.given.pop(worker, None)
            self.gone |= {worker} if kind == "gone" else set()
            self.tell(Lost(time, worker, "preempted", kind == "gone"))
        elif kind == "joined" and absent:
            self.present.add(absent[pick % len(absent)])
            self.tell(Joined(time, absent[pick % len(absent)]))
        elif busy:
            worker = busy[pick % len(busy)]
            task, version = self.given.pop(worker)
            if kind == "fail":
                self.tell(Failed(time, worker, task, 0, "not finite"))
            else:
                self.arrived[task] = version
                self.tell(Reply(time, worker, task, 0))


EVENTS = ["reply"] * 7 + ["fail", "lost", "joined", "joined", "gone"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None, max_examples=250)
@given(
    st.sets(st.integers(0, 3), min_size=1),
    st.integers(1, 6),
    st.sampled_from([0, 0, 2]),
    st.lists(st.tuples(st.sampled_from(EVENTS), st.integers(0, 11)), max_size=40),
)
def test_under_any_events_nothing_stops_and_nothing_counts_twice(
    kind: Any, present: set[int], k: int, cutoff: int, actions: list[tuple[str, int]]
) -> None:
    k = 1 if kind == "async" else min(k, 4) if kind in ("k-sync", "k-async") else k
    cutoff = 0 if kind in ("k-sync", "k-batch-sync") else cutoff
    world = World(KFamily(4, kind=kind, k=k, cutoff=cutoff), sorted(present))
    for action in actions:
        if not world.stopped:
            world.do(*action)
    if cutoff:
        assert all(staleness < cutoff for staleness in world.used.values())
    if kind in ("k-sync", "k-batch-sync"):
        assert not any(world.used.values())  # everything is fresh


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["k-async", "k-batch-async"])
@settings(deadline=None, max_examples=100)
@given(st.integers(1, 9), st.integers(1, 9), st.lists(st.integers(0, 1000), min_size=1, max_size=80))
def test_staleness_is_conserved(kind: Any, workers: int, k: int, picks: list[int]) -> None:
    """At each step exactly n - k (k-batch-async: n - 1) unfinished tasks grow one version older, whatever the order."""
    k = min(k, workers)
    world = World(KFamily(workers, kind=kind, k=k), range(workers))
    for pick in picks:
        world.do("reply", pick)
    ages = [world.version - version for _, version in world.given.values()]
    ages += [world.version - version for version in world.arrived.values()]
    older = workers - k if kind == "k-async" else workers - 1
    if kind == "k-async":  # who waits in the buffer has finished: it grows no older until the step
        assert sum(world.used.values()) + sum(ages) == world.version * older
    else:
        assert sum(world.used.values()) + sum(ages) == world.version * (older)


def test_round_robin_is_stale_by_all_the_others() -> None:
    """0, 1, …, P - 1 while warming up, P - 1 from then on."""
    world = World(KFamily(4), range(4))
    for turn in range(20):
        world.do("reply", turn % 4)
    assert [world.used[task] for task in sorted(world.used)] == [0, 1, 2] + [3] * 17


# ------------------------------------------------------------------------------------------- equalities, closed forms

P = 8


def trained(spec: str, *, steps: int = 12, delays: str = "exp:mean=0.3", seed: int = 3) -> Any:
    problem = anyk.problems.from_data("synthetic:rows=400,features=12")
    cluster = anyk.cluster("simulated", workers=P, delays=delays, seed=seed)
    return anyk.train(problem, spec, cluster, steps=steps, optimizer=anyk.optimizers.GD(lr=0.2))


@pytest.mark.slow
@pytest.mark.parametrize(
    "same",
    [
        ("sync:batch=9", "k-sync:k=8,batch=9", "k-async:k=8,batch=9", "uncoded:batch=9"),
        ("k-sync:k=1,batch=9", "k-batch-sync:k=1,batch=9"),
        ("async:batch=9", "k-async:k=1,batch=9", "k-batch-async:k=1,batch=9"),
        ("k-sync:k=5", "uncoded:wait=5"),
    ],
)
def test_two_names_of_one_strategy_give_equal_bits_and_times(same: tuple[str, ...]) -> None:
    runs = [trained(spec) for spec in same]
    assert len({run.model.tobytes() for run in runs}) == 1
    assert len({tuple(run.history["seconds"]) for run in runs}) == 1


def test_k_batch_sync_of_all_is_not_synchronous() -> None:
    assert trained("k-batch-sync:k=8").model.tobytes() != trained("sync").model.tobytes()  # a fast worker counts twice


@pytest.mark.slow
@pytest.mark.parametrize(
    "delays", ["exp:mean=1", "shifted-exp:shift=1,mean=1", "pareto:minimum=1,alpha=3", "bimodal:fast=1,slow=7"]
)
@pytest.mark.parametrize(("spec", "mean"), [("async", 7.0), ("k-async:k=3", 5 / 3), ("k-batch-async:k=3", 7 / 3)])
def test_mean_staleness_under_any_law(delays: str, spec: str, mean: float) -> None:
    """(P - K) / K and (P - 1) / K: conservation, so the mean over a long run is off by at most the warm-up's share."""
    run = trained(spec, steps=400, delays=delays)
    assert np.mean(run.history["staleness"][1:]) == pytest.approx(mean, abs=P * mean / 400 * 3)


@pytest.mark.slow
def test_stale_gradients_count_less() -> None:
    for rule, weight in (("inverse", lambda s: 1 / max(1, s)), ("sqrt", lambda s: (1 + s) ** -0.5)):
        run = trained(f"async:stale={rule}", steps=60)
        rows = run.log.rows("SELECT step - 1 - version, weight FROM chunks WHERE step IS NOT NULL")
        assert {staleness for staleness, _ in rows} > {0, 5}
        for staleness, got in rows:
            assert got == pytest.approx(weight(staleness))


def test_gradients_of_a_model_that_has_moved_far_count_less() -> None:
    """min(1, bound / d^2), d from a trajectory computed here: w <- w - lr a (w_tau - c_i)."""
    bound, lr = 4.0, 0.4
    cluster = anyk.cluster("simulated", workers=P, delays="exp:mean=0.3", seed=3)
    problem = anyk.testing.Squares(P)
    optimizer = anyk.optimizers.GD(lr=lr)
    run = anyk.train(problem, f"async:stale=distance,bound={bound}", cluster, steps=60, optimizer=optimizer)
    rows = run.log.rows("SELECT step, version, worker, weight FROM chunks WHERE step IS NOT NULL ORDER BY step")
    models = [problem.initial()]
    for step, version, worker, weight in rows:
        moved = models[-1] - models[version]
        expected = min(1.0, bound / float(moved @ moved)) if moved.any() else 1.0
        assert weight == pytest.approx(expected, rel=1e-9), step
        models.append(models[-1] - lr * weight * (models[version] - problem.centres[worker]))
    assert run.model == pytest.approx(models[-1], abs=1e-9)
    assert 0 < sum(weight < 1 for *_, weight in rows) < 60  # the rule has worked, and not always
    assert str(anyk.replay(run, problem=problem)).endswith("the same bits of model")
    assert "same decisions" in str(anyk.replay(run, compute=False))  # the log tells the distances


@pytest.mark.slow
@pytest.mark.parametrize(
    "spec", ["k-async:k=3,stale=distance,bound=1", "k-batch-async:k=4,batch=2,cutoff=5", "adasync:interval=1"]
)
@pytest.mark.parametrize("seed", range(3))
def test_they_survive_outages(spec: str, seed: int) -> None:
    anyk.testing.check_strategy(strategy(spec, workers=6), steps=30, outages=5, seed=seed)


def test_an_endless_bound_is_plain_async() -> None:
    assert trained("async:stale=distance,bound=1e300").model.tobytes() == trained("async").model.tobytes()


# ------------------------------------------------------------------------------------------- mini-batches


@pytest.mark.slow
def test_mini_batches_are_unbiased_and_alike_in_replicas() -> None:
    problem = anyk.problems.from_data("synthetic:rows=60,features=5")
    from anyk.clusters import Messages
    from anyk.protocol import Chunk

    messages = Messages(problem.split(4), seed=7)
    w = np.linspace(-1, 1, 5)
    full = messages.partial_gradient(2, w)
    draws = np.array([messages.partial_gradient(2, w, Chunk((2,), (1.0,), batch=4), v) for v in range(3000)])
    error = draws.std(axis=0) / 3000**0.5
    assert (np.abs(draws.mean(axis=0) - full) < 4.5 * error).all()
    alone = Messages(problem.split(4), seed=7).partial_gradient(2, w, Chunk((1, 2), (1.0, 1.0), batch=4), 11)
    assert np.array_equal(alone, draws[11])  # whoever holds it, in whatever message
    other = messages.partial_gradient(2, w, Chunk((2,), (1.0,), batch=4, repeat=1), 11)
    assert not np.array_equal(other, draws[11])
    gradient = messages.partial_gradient(2, w, Chunk((2,), (1.0,), batch=99), 0)
    assert np.array_equal(gradient, full)


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["frc:load=2,batch=6", "async:batch=6", "k-batch-sync:k=3,batch=6"])
def test_mini_batches_replay(spec: str) -> None:
    problem = anyk.problems.from_data("synthetic:rows=60,features=5")
    for name in ("simulated", "processes"):
        run = anyk.train(problem, spec, anyk.cluster(name, workers=4, delays="exp:mean=0.01", seed=9), steps=6)
        assert str(anyk.replay(run, problem=problem)).endswith("the same bits of model")


# ------------------------------------------------------------------------------------------- AdaSync


def test_k_for_a_loss() -> None:
    """K_0 sqrt(F_0 / F) where a step takes time proportional to K; the root of K^2 = C (P - K) elsewhere."""
    assert adapted_k(2, 1.0, 0.25, 8, linear=True) == 4.0
    assert adapted_k(2, 1.0, 0.25, 8, linear=True, rate=0.5) == 2.0
    for loss in (1.0, 0.3, 0.01, 1e-5):
        k = adapted_k(2, 1.0, loss, 8, linear=False)
        assert k**2 / (8 - k) == pytest.approx(2**2 / (8 - 2) / loss, rel=1e-6)
        assert 2.0 - 1e-9 <= k < 8.0 + 1e-9
    assert adapted_k(8, 1.0, 0.1, 8, linear=False) == 8.0  # nowhere to go
    assert adapted_k(1, 1.0, 0.0, 8, linear=True) == 8.0


@pytest.mark.slow
@pytest.mark.parametrize("base", ["k-sync", "k-async", "k-batch-sync", "k-batch-async"])
def test_adasync_grows_k_as_the_loss_falls_and_says_so(base: str) -> None:
    linear = "batch" in base
    problem = anyk.problems.from_data("synthetic:rows=400,features=12,noise=0")
    cluster = anyk.cluster("simulated", workers=P, delays="exp:mean=0.3", seed=3)
    run = anyk.train(
        problem, f"adasync:base={base},k=2,interval=3", cluster, steps=300, optimizer=anyk.optimizers.GD(lr=2.0)
    )
    notes = [(note["time"], note["text"]) for note in run.notes if note["kind"] == "strategy"]
    grown = [int(sentence.split()[2]) for _, sentence in notes]
    assert grown == sorted(set(grown)) and grown[-1] > 2
    first = problem.loss(problem.initial())
    for (_, sentence), k in zip(notes, grown, strict=True):
        loss = float(sentence.rsplit(" ", 1)[1])
        assert k == min(P, int(adapted_k(2, first, loss, P, linear=linear) + 0.5))
    counts = run.history["replies"][1:]
    assert counts[0] == 2 and counts[-1] == grown[-1]
    assert str(anyk.replay(run, problem=problem)).endswith("the same bits of model")
    assert "same decisions" in str(anyk.replay(run, compute=False))  # the log tells the losses


@pytest.mark.slow
def test_adasync_saved_and_taken_up_again_goes_on_alike(tmp_path: Any) -> None:
    problem = anyk.problems.from_data("synthetic:rows=400,features=12")
    spec = "adasync:base=k-async,k=1,interval=1,batch=5"
    setting = {"workers": P, "delays": "exp:mean=0.3", "seed": 3}
    optimizer = anyk.optimizers.GD(lr=1.0)
    uninterrupted = anyk.train(problem, spec, anyk.cluster("simulated", **setting), steps=120, optimizer=optimizer)
    cut = anyk.cluster("simulated", **setting)
    anyk.train(problem, spec, cut, steps=50, optimizer=optimizer, out=tmp_path / "run").close()
    resumed = anyk.resume(tmp_path / "run", steps=120)
    assert resumed.model.tobytes() == uninterrupted.model.tobytes()
    resumed.close()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"base": "async"}, "base must be k-sync, k-async, k-batch-sync or k-batch-async, got 'async'"),
        ({"interval": 0.0}, r"interval must be a finite number above 0, got 0.0"),
        ({"k": 9}, "k of 'adasync' grows up to 8 workers, it cannot start at 9"),
    ],
)
def test_adasync_out_of_range(options: Any, sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        adasync(8, **options)


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["adasync:interval=1", "gradual:every=10,by=2,last=6"])
def test_growing_from_one_gradient_a_step_it_takes_more(spec: str) -> None:
    """A step of one gradient has a path of its own in the strategy, which is to be left when k grows."""
    run = trained(spec, steps=120)
    counts = run.history["replies"][1:]
    assert counts[0] == 1 and counts[-1] > 1 and list(counts) == sorted(counts)


# ------------------------------------------------------------------------------------------- delay compensation


@pytest.mark.parametrize(
    "spec", ["async:compensate=0.3", "k-async:k=3,compensate=0.3", "k-batch-async:k=3,compensate=0.3"]
)
def test_delay_compensation_follows_its_formula(spec: str) -> None:
    """g + lambda g g (w - w_old) for each stale mean gradient, on a trajectory computed here from the log."""
    lr, lam = 0.2, 0.3
    problem = anyk.testing.Squares(P)
    cluster = anyk.cluster("simulated", workers=P, delays="exp:mean=0.3", seed=3)
    run = anyk.train(problem, spec, cluster, steps=40, optimizer=anyk.optimizers.GD(lr=lr))
    models = [problem.initial()]
    corrected = 0
    for step in range(1, 41):
        w, total = models[-1], np.zeros_like(models[-1])
        rows = run.log.rows("SELECT version, worker FROM chunks WHERE step = ?", (step,))
        for version, worker in rows:
            g = models[version] - problem.centres[worker]
            total += g + lam * g * g * (w - models[version])
            corrected += version < step - 1
        models.append(w - lr * total / len(rows))
    assert corrected > 20
    assert run.model == pytest.approx(models[-1], rel=1e-9)
    assert str(anyk.replay(run, problem=problem)).endswith("the same bits of model")
    plain = anyk.cluster("simulated", workers=P, delays="exp:mean=0.3", seed=3)
    without = anyk.train(problem, spec.replace("0.3", "0"), plain, steps=40, optimizer=anyk.optimizers.GD(lr=lr))
    assert np.abs(without.model - run.model).max() > 1e-3


def test_compensation_of_sparse_replies_is_that_of_dense_ones() -> None:
    rng = np.random.default_rng(0)
    X = np.where(rng.random((60, 40)) < 0.1, rng.standard_normal((60, 40)), 0.0)
    y = np.where(rng.random(60) < 0.5, -1, 1)
    from scipy import sparse

    models = []
    for design in (X, sparse.csr_array(X)):
        cluster = anyk.cluster("simulated", workers=6, delays="exp:mean=0.3", seed=3)
        problem = anyk.problems.LogisticRegression(design, y)
        models.append(anyk.train(problem, "async:compensate=2", cluster, steps=50).model)
    assert models[0] == pytest.approx(models[1], abs=1e-12)


# ------------------------------------------------------------------------------------------- AdaSync's other rules


@pytest.mark.slow
@pytest.mark.parametrize("base", ["k-sync", "k-async", "k-batch-sync", "k-batch-async"])
@pytest.mark.parametrize("rule", ["delays", "noise"])
def test_the_other_rules_grow_k_and_replay(base: str, rule: str) -> None:
    problem = anyk.problems.from_data("synthetic:rows=400,features=12")
    cluster = anyk.cluster("simulated", workers=P, delays="shifted-exp:shift=0.1,mean=0.3", seed=3)
    spec = f"adasync:base={base},rule={rule},k=2,interval=3,batch=4"
    run = anyk.train(problem, spec, cluster, steps=300, optimizer=anyk.optimizers.GD(lr=2.0))
    notes = [note["text"] for note in run.notes if note["kind"] == "strategy"]
    grown = [int(sentence.split()[2]) for sentence in notes]
    assert grown and grown == sorted(set(grown)) and all(2 < k <= P for k in grown)
    assert all(("loss" in sentence) == (rule == "delays") for sentence in notes)
    assert str(anyk.replay(run, problem=problem)).endswith("the same bits of model")
    anyk.testing.check_strategy(strategy(spec, workers=P), steps=30, seed=1)


@pytest.mark.slow
def test_durations_of_tasks_that_were_cut_off_still_count() -> None:
    """Of exponential delays seen only up to the 3rd of 8: product limit and tail give back the mean and the k-th of 8."""
    seen = anyk.strategies.Durations(keep=100_000)
    rng = np.random.default_rng(1)
    for _ in range(4000):
        row = np.sort(rng.exponential(2.0, P))
        for i, seconds in enumerate(row):
            seen.add(min(seconds, row[2]), ended=i < 3)
    assert seen.mean() == pytest.approx(2.0, rel=0.03)
    exact = [2.0 * sum(1 / i for i in range(P - k + 1, P + 1)) for k in range(1, P + 1)]
    assert seen.means(P) == pytest.approx(exact, rel=0.05)
    restored = from_plain(anyk.strategies.Durations, json.loads(json.dumps(to_plain(seen))))
    assert restored.mean() == seen.mean() and len(restored) == len(seen) == 12_000


@pytest.mark.slow
def test_a_learning_rate_that_falls_holds_k_back() -> None:
    """K_0 r sqrt(F_0 / F): with the rate a hundredth after a while, no growth from then on."""
    problem = anyk.problems.from_data("synthetic:rows=400,features=12")
    last = {}
    for lr in ("2.0", "exponential:start=2.0,decay=0.97"):
        cluster = anyk.cluster("simulated", workers=P, delays="exp:mean=0.3", seed=3)
        run = anyk.train(
            problem, "adasync:base=k-batch-async,k=2,interval=3,batch=4", cluster, steps=400,
            optimizer=anyk.optimizers.optimizer("gd", lr=lr),
        )  # fmt: skip
        last[lr] = run.history["replies"][-1]
    assert last["exponential:start=2.0,decay=0.97"] < last["2.0"]


@pytest.mark.slow
def test_a_k_that_grows_by_plan() -> None:
    run = trained("gradual:base=k-sync,k=2,every=5,by=2,last=7", steps=25)
    counts = [int(count) for count in run.history["replies"][1:]]
    assert counts == [2] * 5 + [4] * 5 + [6] * 5 + [7] * 10
    assert next(note["text"] for note in run.notes if note["kind"] == "strategy") == "k = 4 of 8 from step 5 on"
    anyk.testing.check_strategy(strategy("gradual:k=2,every=4", workers=P), steps=30, seed=1)


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("adasync:rule=never", "rule in 'adasync:rule=never' should be one of loss, delays, noise, got 'never'"),
        (
            "adasync:rule=noise,k=1",
            "rule=noise of 'adasync' measures how gradients of a step differ; k must be at least 2",
        ),
        ("gradual:every=0", "every must be a whole number of at least 1, got 0"),
        ("gradual:last=9", "last of 'gradual' must be 1 to 8 workers, and at least k, got 9"),
        ("gradual:base=async", "base in 'gradual:base=async' should be one of k-sync, .*"),
        ("async:compensate=-1", r"compensate must be a finite number of at least 0, got -1.0"),
        ("k-batch-sync:compensate=1", "strategy 'k-batch-sync' has no key 'compensate'"),
    ],
)
def test_specs_that_mean_nothing(spec: str, sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        strategy(spec, workers=P)


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["loss", "noise"])
def test_the_floor_of_adasync_grows_k_as_the_run_did(rule: str) -> None:
    """On the virtual clock without computing a run is its own floor, also where decisions depend on losses."""
    run = trained(f"adasync:base=k-sync,k=2,interval=1,rule={rule},batch=4", steps=80)
    assert run.history["replies"][-1] > 2
    assert run.seconds == run.floor_seconds


@pytest.mark.slow
def test_adasync_learns_from_few_replies_and_many_cut_off() -> None:
    """K-sync with K = 1 of 24 sees one duration a step to its end, and 23 cut off: enough to grow."""
    problem = anyk.problems.from_data("synthetic:rows=400,features=12")
    cluster = anyk.cluster("simulated", workers=24, delays="shifted-exp:shift=0.1,mean=0.3", seed=3)
    spec = "adasync:base=k-sync,rule=delays,k=1,interval=2,batch=4"
    run = anyk.train(problem, spec, cluster, steps=250, optimizer=anyk.optimizers.GD(lr=1.0))
    assert run.history["replies"][-1] > 1


def test_losses_and_rates_at_the_edge_stop_nothing() -> None:
    from anyk.protocol import LossEvaluated

    running = ByHand(adasync(8, base="k-async", k=2))
    running.start(Fleet(8, tuple(range(8))))
    assert not running.on(LossEvaluated(0.0, "model", 0, 1.0, 0.1))
    for loss, rate in ((float("inf"), 0.1), (float("nan"), 0.1), (0.5, 0.0)):
        assert not running.on(LossEvaluated(1.0, "model", 1, loss, rate))
    low = ByHand(adasync(8, base="k-async", k=2, loss_floor=2.0))
    low.start(Fleet(8, tuple(range(8))))
    (stop,) = low.on(LossEvaluated(0.0, "model", 0, 1.0, 0.1))
    assert (
        isinstance(stop, Stop) and stop.failed and "loss_floor of 'adasync' is not below the first loss" in stop.reason
    )


def test_a_worker_told_twice_to_be_here_gets_one_task() -> None:
    running = begun(3)
    assert not running.on(Joined(0.1, 1))
