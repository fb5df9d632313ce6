"""Local updates: what rounds of local work come to, against matrix recursions and the synchronous case."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import anyk
from anyk.base.errors import BadInput
from anyk.clusters import Messages
from anyk.fleet.simulation import simulated_pace
from anyk.graphs import elastic, graph, matcha
from anyk.protocol import Chunk
from anyk.strategies import AdaptingSteps, DecentralisedSGD, adapted_tau, strategy
from anyk.testing import check_strategy
from byhand import ByHand, adapted_by_hand

pytestmark = pytest.mark.slow

P = 4
LR = 0.3
GD = anyk.optimizers.GD(lr=LR)


def problem() -> Any:
    return anyk.problems.from_data("synthetic:rows=203,features=6")


def trained(
    spec: str, *, steps: int = 5, cluster: str = "simulated", optimizer: Any = GD, workers: int = P, **setting: Any
) -> Any:
    fleet = anyk.cluster(cluster, workers=workers, **({"delays": "exp:mean=0.3", "seed": 3} | setting))
    return anyk.train(problem(), spec, fleet, steps=steps, optimizer=optimizer)


class Oracle:
    """Local steps computed here: plain gradient descent on partition i, mini-batches by (iteration, partition)."""

    def __init__(self, batch: int, workers: int = P) -> None:
        self.problem = problem()
        self.partitions = self.problem.split(workers)
        self.messages = Messages(self.partitions, seed=3)
        self.batch = batch

    def steps(self, i: int, w: Any, first: int, count: int) -> Any:
        for k in range(first, first + count):
            g = self.messages.partial_gradient(i, w, Chunk((i,), (1.0,), batch=self.batch), k)
            w = w - LR * (g / self.partitions.sizes[i] + self.problem.l2 * w)
        return w


# ------------------------------------------------------------------------------------------- cases that coincide


def test_one_local_step_is_synchronous_sgd() -> None:
    """Equal to rounding when partitions are equal; the same draws, the same seconds."""
    equal = anyk.problems.from_data("synthetic:rows=250,features=6")  # 200 rows to train on: 50 each
    runs = []
    for spec in ("sync:batch=5", "pasgd:tau=1,batch=5", "dpsgd:graph=complete,batch=5"):
        fleet = anyk.cluster("simulated", workers=P, delays="exp:mean=0.3", seed=3)
        runs.append(anyk.train(equal, spec, fleet, steps=12, optimizer=GD))
    assert runs[1].model == pytest.approx(runs[0].model, abs=1e-14)
    assert runs[2].model == pytest.approx(runs[0].model, abs=1e-14)
    assert np.array_equal(runs[1].history["seconds"], runs[0].history["seconds"])
    assert np.array_equal(runs[2].history["seconds"], runs[0].history["seconds"])


@pytest.mark.parametrize("tau", [1, 3])
def test_periodic_averaging_against_the_oracle(tau: int) -> None:
    oracle = Oracle(batch=7)
    w = oracle.problem.initial()
    for r in range(5):
        w = np.mean([oracle.steps(i, w, r * tau, tau) for i in range(P)], axis=0)
    assert trained(f"pasgd:tau={tau},batch=7").model == pytest.approx(w, abs=1e-13)


def test_one_worker_is_serial_sgd() -> None:
    oracle = Oracle(batch=7, workers=1)
    serial = oracle.steps(0, oracle.problem.initial(), 0, 15)
    for spec in ("pasgd:tau=3,batch=7", "fedbuff:tau=3,batch=7", "dpsgd:graph=none,tau=3,batch=7"):
        assert trained(spec, workers=1).model == pytest.approx(serial, abs=1e-13), spec


GRAPHS = ["ring", "torus", "complete", "star", "none", "exp", "one-peer", "regular:degree=3", "groups:groups=3,every=2"]


@pytest.mark.parametrize("barrier", ["local", "global"])
@pytest.mark.parametrize("name", GRAPHS)
def test_event_driven_is_the_matrix_recursion(name: str, barrier: str) -> None:
    """X <- (X - lr G) W, whatever the delays and barriers: they change times, never values."""
    n, tau, rounds = 8, 2, 6
    oracle, mixing = Oracle(batch=3, workers=n), graph(name, workers=n)
    X = np.tile(oracle.problem.initial(), (n, 1))
    for k in range(rounds):
        half = np.array([oracle.steps(i, X[i], k * tau, tau) for i in range(n)])
        mean = half.mean(axis=0)
        X = mixing.at(k).T @ half
        assert X.mean(axis=0) == pytest.approx(mean, abs=1e-13)  # mixing keeps the mean
    spec = f"dpsgd:graph=({name}),tau={tau},batch=3,barrier={barrier}"
    for law in ("exp:mean=1", "bimodal:fast=0.1,slow=5"):
        run = trained(spec, steps=rounds, workers=n, delays=law)
        assert run.model == pytest.approx(mean, abs=1e-12)


def test_an_event_costs_gossip_the_edges_of_its_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 24 nodes in a ring, a reply lets itself and two neighbours be looked at, and a new version everybody."""
    looked, begins = [], DecentralisedSGD.may_begin

    def counting(self: Any, s: Any, node: int) -> bool:
        looked.append(node)
        return begins(self, s, node)

    monkeypatch.setattr(DecentralisedSGD, "may_begin", counting)
    n, steps = 24, 40
    simulated_pace(strategy("dpsgd", workers=n), anyk.delays.Exponential(1.0), updates=steps)
    replies = n * (steps + n // 2)  # nodes may be ahead, by half a ring at most
    assert n * steps < len(looked) <= (3 + 1) * replies


def test_no_edges_are_independent_runs_a_ring_of_3_complete() -> None:
    oracle = Oracle(batch=3)
    alone = np.mean([oracle.steps(i, oracle.problem.initial(), 0, 5) for i in range(P)], axis=0)
    assert trained("dpsgd:graph=none,batch=3").model == pytest.approx(alone, abs=1e-13)
    ring, complete = (trained(f"dpsgd:graph={g},batch=3", workers=3) for g in ("ring", "complete"))
    assert ring.model == pytest.approx(complete.model, abs=1e-13)


@pytest.mark.parametrize("alpha", [0.1, 2 / (P + 2)])
def test_elastic_averaging_is_its_matrix_recursion(alpha: float) -> None:
    oracle, tau, rounds = Oracle(batch=3), 2, 6
    W = elastic(P, alpha)
    X = np.tile(oracle.problem.initial(), (P + 1, 1))
    for k in range(rounds):
        half = np.vstack([[oracle.steps(i, X[i], k * tau, tau) for i in range(P)], X[-1:]])
        X = W.T @ half
    run = trained(f"easgd:alpha={alpha},tau={tau},batch=3", steps=rounds)
    assert run.model == pytest.approx(X[-1], abs=1e-12)


def test_matcha_is_its_matrix_recursion_with_keyed_activations() -> None:
    oracle, rounds, n = Oracle(batch=3, workers=6), 7, 6
    plan = matcha("ring", workers=n, budget=0.5)
    X = np.tile(oracle.problem.initial(), (n, 1))
    for k in range(rounds):
        half = np.array([oracle.steps(i, X[i], k, 1) for i in range(n)])
        X = plan.at(k, 9).T @ half
    run = trained("matcha:graph=ring,budget=0.5,batch=3,seed=9", steps=rounds, workers=n)
    assert run.model == pytest.approx(half.mean(axis=0), abs=1e-12)
    assert len({plan.at(k, 9).tobytes() for k in range(20)}) > 2


def test_pairwise_gossip_against_its_log() -> None:
    """Re-run in the order of the log's replies: pair means, and changes on top."""
    run = trained("ad-psgd:tau=2,batch=3,seed=5", steps=4)
    oracle = Oracle(batch=3)
    X = [oracle.problem.initial() for _ in range(P)]
    bases, taken = [x.copy() for x in X], [0] * P
    order = run.log.rows("SELECT worker FROM events WHERE kind = 'Reply' ORDER BY seq")
    for count, (i,) in enumerate(order):
        change = oracle.steps(i, bases[i], taken[i], 2) - bases[i]
        taken[i] += 2
        others = [j for j in range(P) if j != i]
        j = others[int(anyk.base.keyed_uniform(5, "ad-psgd", number=count) * len(others))]
        X[j] = 0.5 * (X[j] + X[i])
        X[i] = X[j] + change
        bases[i] = X[i].copy()
    assert len(order) == 4 * P
    assert run.model == pytest.approx(np.mean(X, axis=0), abs=1e-12)


# ------------------------------------------------------------------------------------------- outer steps


def test_slow_momentum_s_special_cases() -> None:
    """alpha = 1, beta = 0: local SGD; tau = 1: heavy ball; one worker, beta = 0: Lookahead; alpha = 1: block momentum."""
    assert trained("slowmo:tau=3,alpha=1,beta=0,batch=5").model == pytest.approx(
        trained("pasgd:tau=3,batch=5").model, abs=1e-14
    )
    heavy = trained("sync", optimizer=anyk.optimizers.Momentum(lr=LR, momentum=0.7), steps=10, workers=1)
    slow = trained("slowmo:tau=1,alpha=1,beta=0.7", steps=10, workers=1)
    assert slow.model == pytest.approx(heavy.model, abs=1e-13)
    oracle = Oracle(batch=5, workers=1)
    w = oracle.problem.initial()
    for r in range(5):
        w = w + 0.4 * (oracle.steps(0, w, 3 * r, 3) - w)
    assert trained("slowmo:tau=3,alpha=0.4,beta=0,batch=5", workers=1).model == pytest.approx(w, abs=1e-13)
    oracle = Oracle(batch=5)
    w = oracle.problem.initial()
    u = np.zeros_like(w)
    for r in range(5):  # u = beta u + G, w = w - lr u, G the mean sum of local gradients
        mean = np.mean([oracle.steps(i, w, 3 * r, 3) for i in range(P)], axis=0)
        u = 0.6 * u + (w - mean) / LR
        w = w - LR * u
    assert trained("slowmo:tau=3,alpha=1,beta=0.6,batch=5").model == pytest.approx(w, abs=1e-13)


def test_slow_momentum_is_in_units_of_gradients() -> None:
    """When the learning rate falls, past momentum falls with it."""
    outer = anyk.optimizers.SlowMo(lr=1.0, momentum=0.5)
    w = np.zeros(1)
    state = outer.start(w)
    w = outer.step(w, np.array([0.2]), state, 0, 0.2)  # u = 1, a step of 0.2
    assert w == pytest.approx([-0.2])
    w = outer.step(w, np.array([0.0]), state, 1, 0.02)  # u = 0.5, a step of 0.01
    assert w == pytest.approx([-0.21])


_TORCH = """
import numpy as np, torch
rng = np.random.default_rng(0)
w = torch.nn.Parameter(torch.tensor(rng.standard_normal(200)))
outer = torch.optim.SGD([w], lr=0.7, momentum=0.9, nesterov=True)
for t in range(20):
    w.grad = torch.tensor(rng.standard_normal(200) * 0.1)
    outer.step()
print(w.detach().numpy().tobytes().hex())
"""


def test_diloco_s_outer_step_is_torch_s_nesterov_to_the_bit() -> None:
    """Without torch's fused multiply-add, which rounds once where two roundings are written."""
    environment = os.environ | {"ATEN_CPU_CAPABILITY": "default"}
    done = subprocess.run([sys.executable, "-c", _TORCH], env=environment, capture_output=True, text=True, check=True)
    rng = np.random.default_rng(0)
    w = rng.standard_normal(200)
    ours = anyk.optimizers.Nesterov(lr=0.7, momentum=0.9)
    state = ours.start(w)
    for t in range(20):
        w = ours.step(w, rng.standard_normal(200) * 0.1, state, t)
    assert w.tobytes().hex() == done.stdout.strip()


def test_diloco_is_its_formula() -> None:
    """Inner AdamW whose state stays on the worker; outer Nesterov by the mean change."""
    lr, tau, rounds = 0.05, 4, 3
    run = trained(f"diloco:tau={tau},batch=5", steps=rounds, optimizer=anyk.optimizers.GD(lr=lr))
    oracle = Oracle(batch=5)
    inner = anyk.optimizers.AdamW(lr=lr)
    w = oracle.problem.initial()
    states, buffer = [inner.start(w) for _ in range(P)], np.zeros_like(w)
    for r in range(rounds):
        models = []
        for i in range(P):
            x = w.copy()
            for k in range(r * tau, (r + 1) * tau):
                g = oracle.messages.partial_gradient(i, x, Chunk((i,), (1.0,), batch=5), k)
                x = inner.step(x, g / oracle.partitions.sizes[i] + oracle.problem.l2 * x, states[i], k)
            models.append(x)
        delta = w - np.mean(models, axis=0)
        buffer = 0.9 * buffer + delta
        w = w - 0.7 * (delta + 0.9 * buffer)
    assert run.model == pytest.approx(w, abs=1e-12)


def test_momentum_on_the_worker_begins_afresh_unless_kept() -> None:
    momentum = anyk.optimizers.Momentum(lr=0.1)
    kept_run = trained("pasgd:tau=2,keep=true", optimizer=momentum)
    fresh = trained("pasgd:tau=2", optimizer=momentum)
    assert np.abs(kept_run.model - fresh.model).max() > 1e-3


# ------------------------------------------------------------------------------------------- who takes part


def test_clients_are_drawn_by_key_and_weighted_by_samples() -> None:
    run = trained("fedavg:tau=2,clients=2,batch=5,seed=8", steps=12)
    rows = run.log.rows("SELECT step, worker, weight FROM chunks WHERE step IS NOT NULL ORDER BY step, worker")
    for step in range(1, 13):
        drawn = anyk.base.keyed_generator(8, "clients", step - 1).permutation(P)[:2]
        assert [worker for s, worker, _ in rows if s == step] == sorted(drawn.tolist())
    assert len({worker for _, worker, _ in rows}) == P
    oracle = Oracle(batch=5)
    w = oracle.problem.initial()
    sizes = oracle.partitions.sizes
    assert len(set(sizes)) > 1  # else weights by samples are no test
    for step in range(1, 13):
        workers = [worker for s, worker, _ in rows if s == step]
        models = [oracle.steps(i, w, 2 * (step - 1), 2) for i in workers]
        w = np.average(models, axis=0, weights=[sizes[i] for i in workers])
    assert run.model == pytest.approx(w, abs=1e-12)


def test_k_of_n_and_deadlines_apply_to_local_work() -> None:
    run = trained("pasgd:tau=3,wait=2", steps=10)
    assert set(run.history["replies"][1:]) == {2}
    assert run.ledger["cancelled"] == 10 * 2 + P  # the last round's are closed with the run
    late = trained("pasgd:tau=3,wait=0.5s", steps=10)
    assert max(np.diff([0.0, *late.history["seconds"][1:]])) > 0.5 - 1e-9
    assert {1} < set(late.history["replies"][1:])


def test_steps_in_proportion_to_speed() -> None:
    """Workers twice as slow take half the steps, so that all end a round together."""
    run = trained("pasgd:tau=12,speeds=true", steps=6, delays="constant:1", workers=2)
    assert [row[0] for row in run.log.rows("SELECT DISTINCT steps FROM works")] == [12]
    law = anyk.delays.Heterogeneous(means=(0.1, 0.4))
    fleet = anyk.clusters.Simulated(2, delays=law, seed=1)
    run = anyk.train(problem(), "pasgd:tau=40,speeds=true", fleet, steps=40, optimizer=GD)
    steps = run.log.rows(
        "SELECT c.worker, avg(w.steps) FROM chunks c JOIN works w ON w.id = c.work WHERE c.version > 5 GROUP BY c.worker"
    )
    assert dict(steps)[0] == pytest.approx(40, abs=1) and 7 < dict(steps)[1] < 14


# ------------------------------------------------------------------------------------------- AdaComm


def test_golden_sequences_of_adacomm() -> None:
    """Values 36 and 37 of the literature: the formula, stalls, and a learning rate that has fallen."""
    tau, seen = 20, [20]
    for loss in (1.6, 1.0, 0.5, 0.2, 0.05):
        tau = adapted_tau(20, 2.3, loss, tau, stalled=False)
        seen.append(tau)
    assert seen == [20, 17, 14, 10, 6, 3]
    tau, seen = 20, [20]
    for _ in range(5):
        tau = adapted_tau(20, 1.0, 1.0, tau)
        seen.append(tau)
    assert seen == [20, 10, 5, 2, 1, 1]
    assert adapted_tau(10, 1.0, 0.25, 99, rate=0.1) == 16
    assert adapted_tau(20, 1.0, 1.0, 20, stalled=False) == 20  # falling, if slowly: nothing to do
    assert adapted_tau(20, 1.0, 1.0, 3, least=2) == 2
    assert adapted_tau(20, 1.0, float("nan"), 7) == 7 and adapted_tau(20, 0.0, 0.0, 7) == 7


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 100), st.lists(st.floats(1e-6, 10), min_size=2, max_size=10))
def test_tau_never_grows_at_a_fixed_rate(first: int, losses: list[float]) -> None:
    tau = first
    for before, loss in zip(losses, losses[1:], strict=False):
        new = adapted_tau(first, losses[0], loss, tau, stalled=loss > 0.99 * before)
        assert 1 <= new <= tau
        tau = new


@pytest.mark.parametrize("guard", [0.99, 0.0])
def test_adacomm_does_what_its_rule_says(guard: float) -> None:
    """``guard=0``: the published rule, where the candidate is not smaller tau is multiplied by gamma in any case."""
    run = trained(f"adacomm:tau=16,interval=8,batch=5,guard={guard:g}", steps=60)
    notes = [(n["time"], n["text"]) for n in run.notes if n["kind"] == "strategy"]
    assert len(notes) >= 2
    losses = [
        json.loads(info)[2]
        for (info,) in run.log.rows("SELECT info FROM events WHERE kind = 'LossEvaluated' ORDER BY seq")
    ]
    tau, expected = 16, []
    for before, loss in zip(losses, losses[1:], strict=False):
        new = adapted_tau(16, losses[0], loss, tau, stalled=loss > guard * before)
        expected += [new] if new != tau else []
        tau = new
    assert [int(note.split()[2]) for _, note in notes] == expected
    assert run.seconds == run.floor_seconds
    assert str(anyk.replay(run, problem=problem())).endswith("the same bits of model")


def test_adacomm_refuses_shares_that_its_spec_cannot_say() -> None:
    uneven, adapting = anyk.codes.Uncoded(4, (1, 2, 1, 1)), AdaptingSteps(interval=5.0)
    with pytest.raises(BadInput, match="'adacomm' has been tested with equal shares of the data only"):
        anyk.strategies.Rounds(uneven, work=anyk.strategies.LocalSteps(5, adapt=adapting))


def test_adacomm_of_sampled_clients_by_hand() -> None:
    counts = np.zeros(P)
    for seed in range(3):
        run = trained(f"adacomm:tau=16,interval=8,batch=5,clients=2,seed={seed}", steps=60)
        w, taus = adapted_by_hand(run, problem(), partitions=P, first_tau=16, by_samples=False)
        assert run.model == pytest.approx(w, abs=1e-12)
        assert taus[0] > taus[3] > taus[-1]
        rows = run.log.rows("SELECT step, worker FROM chunks WHERE step IS NOT NULL ORDER BY step, worker")
        for step in range(1, 61):
            drawn = anyk.base.keyed_generator(seed, "clients", step - 1).permutation(P)[:2]
            assert [worker for number, worker in rows if number == step] == sorted(drawn.tolist())
        counts += np.bincount([worker for _, worker in rows], minlength=P)
    assert np.abs(counts / 180 - 0.5).max() < 4 * 0.5 / 180**0.5  # each worker in half of the rounds: unbiased


def test_adacomm_probes_the_first_tau() -> None:
    """Each number for an interval from the same initial model; on from the best one's model."""
    spec = "adacomm:interval=6,probe=1/4/16,batch=5"
    setting = {"communication": "constant:0.5", "steps": 40}
    run = trained(spec, **setting)
    note = next(n["text"] for n in run.notes if n["kind"] == "strategy")
    tried = {
        int(tau): float(loss) for tau, loss in (pair.split(": ") for pair in note.split("losses ")[1][:-1].split(", "))
    }
    assert list(tried) == [1, 4, 16] and len(set(tried.values())) == 3
    best = min(tried, key=lambda tau: tried[tau])
    assert note.startswith(f"tau = {best} of those probed")
    first = trained(
        "pasgd:tau=1,batch=5", communication="constant:0.5", steps=40
    )  # the first trial is this run's beginning
    index = int(np.searchsorted(first.history["seconds"], 6.0))
    assert tried[1] == pytest.approx(first.history["loss"][index], rel=1e-3)
    steps = [
        row[0] for row in run.log.rows("SELECT w.steps FROM chunks c JOIN works w ON w.id = c.work ORDER BY c.task")
    ]
    assert [tau for i, tau in enumerate(steps) if not i or tau != steps[i - 1]][:3] == [1, 4, 16]
    assert run.seconds == run.floor_seconds and sorted(run.models) == ["best probed", "initial model", "model"]
    assert not run.models["initial model"].any()
    assert str(anyk.replay(run, problem=problem())).endswith("the same bits of model")


# ------------------------------------------------------------------------------------------- asynchronous


def test_fedbuff_against_its_log() -> None:
    """w <- w + rate (1/K) sum (1 + s)^-1/2 (model - base), each model from the version its worker began at."""
    run = trained("fedbuff:tau=2,k=2,rate=0.8,batch=5", steps=10)
    oracle = Oracle(batch=5)
    versions, taken = [oracle.problem.initial()], dict.fromkeys(range(P), 0)
    rows = run.log.rows(
        "SELECT step, worker, version, w.repeat FROM chunks c JOIN works w ON w.id = c.work WHERE step IS NOT NULL ORDER BY step, worker"
    )
    for step in range(1, 11):
        w = versions[-1]
        for s, worker, base, first in rows:
            if s == step:
                assert first == taken[worker]
                taken[worker] += 2
                change = oracle.steps(worker, versions[base], first, 2) - versions[base]
                w = w + 0.8 / 2 * (1 + step - 1 - base) ** -0.5 * change
        versions.append(w)
    assert run.model == pytest.approx(versions[-1], abs=1e-12)


@pytest.mark.parametrize("law", ["exp:mean=1", "pareto:minimum=1,alpha=3"])
def test_staleness_of_fedbuff_is_that_of_k_batch_async(law: str) -> None:
    run = trained("fedbuff:tau=2,k=3,batch=2", steps=900, delays=law, workers=8)
    assert np.mean(run.history["staleness"][1:]) == pytest.approx(7 / 3, abs=8 * 7 / 3 / 900 * 3)


# ------------------------------------------------------------------------------------------- both clusters, all hazards

ALL = [
    "pasgd:tau=3,batch=4", "pasgd:tau=3,keep=true,batch=4", "fedavg:tau=2,clients=2", "slowmo:tau=2", "diloco:tau=3",
    "adacomm:tau=6,interval=0.2", "adacomm:interval=0.3,probe=2/5", "dpsgd:graph=ring,tau=2", "matcha:graph=ring", "easgd:tau=2",
    "compressed:of=(pasgd:tau=2),by=(top-k:share=0.3)", "compressed:of=sync,by=qsgd",
]  # fmt: skip


@pytest.mark.parametrize("spec", ALL)
def test_processes_come_to_the_same_bits_and_replay(spec: str) -> None:
    optimizer = anyk.optimizers.Adam(lr=0.02) if "keep" in spec or "diloco" in spec else GD
    setting = {"delays": "exp:mean=0.01", "communication": "link:latency=0.005,bandwidth=1e6", "optimizer": optimizer}
    virtual, real = (trained(spec, cluster=name, **setting) for name in ("simulated", "processes"))
    assert virtual.model.tobytes() == real.model.tobytes()
    assert virtual.seconds == virtual.floor_seconds == real.floor_seconds <= real.seconds
    assert str(anyk.replay(real, problem=problem())).endswith("the same bits of model")
    assert real.ledger["dispatched"] == sum(v for k, v in real.ledger.items() if k not in ("dispatched", "unusable"))


@pytest.mark.parametrize("spec", [*ALL, "fedbuff:tau=2,k=3", "ad-psgd:tau=2", "pasgd:tau=3,wait=2,cancel=discard,speeds=true",
                                  "compressed:of=(k-async:k=2),by=sign"])  # fmt: skip
def test_they_survive_outages(spec: str) -> None:
    for seed in range(6):
        check_strategy(strategy(spec, workers=5), steps=12, outages=4, seed=seed)


@pytest.mark.parametrize(
    "spec",
    ["pasgd:tau=3,keep=true,batch=4", "dpsgd:graph=ring,tau=2,batch=4", "easgd:tau=2", "ad-psgd:batch=3", "slowmo:tau=2",
     "compressed:of=(k-sync:k=3),by=(top-k:share=0.3)"],
)  # fmt: skip
def test_a_killed_run_goes_on_to_the_same_bits(spec: str, tmp_path: Any) -> None:
    setting = {"workers": P, "delays": "exp:mean=0.3", "seed": 3, "communication": "exp:mean=0.1"}
    optimizer = anyk.optimizers.Momentum(lr=0.1)
    data = problem()
    uninterrupted = anyk.train(data, spec, anyk.cluster("simulated", **setting), steps=14, optimizer=optimizer)
    cluster = anyk.cluster("simulated", **setting)
    anyk.train(data, spec, cluster, steps=6, optimizer=optimizer, out=tmp_path / "run").close()
    resumed = anyk.resume(tmp_path / "run", steps=14)
    assert resumed.model.tobytes() == uninterrupted.model.tobytes()
    assert resumed.seconds == uninterrupted.seconds
    resumed.close()


def test_a_killed_decentralised_worker_restarts_at_the_mean() -> None:
    from anyk.clusters import Outage

    fleet = anyk.clusters.Simulated(P, delays=anyk.delays.Constant(1.0), seed=1, outages=[Outage(2.5, 1, 2.7)])
    run = anyk.train(problem(), "dpsgd:graph=ring,batch=5", fleet, steps=6, optimizer=GD)
    begun = run.log.rows(
        "SELECT c.worker, w.share, w.mix FROM chunks c JOIN works w ON w.id = c.work WHERE c.dispatched = 2.7"
    )
    assert begun == [(1, 1.0, "[]")]
    assert run.ledger["lost"] == 1 and run.steps == 6


def test_clients_that_are_given_up_are_replaced() -> None:
    from anyk.clusters import Outage

    for gone in range(8):
        outages = [Outage(0.0001, gone), Outage(0.0001, (gone + 3) % 8, 9.0)]
        fleet = anyk.clusters.Simulated(8, delays=anyk.delays.Exponential(mean=1.0), outages=outages)
        run = anyk.train(problem(), "pasgd:tau=1,clients=2,batch=5", fleet, steps=12, optimizer=anyk.optimizers.GD())
        assert run.steps == 12 and set(run.history["replies"][1:]) <= {1, 2}


def test_a_given_up_node_that_comes_back_joins_the_others() -> None:
    from anyk.protocol import Dispatch, Fleet, Joined, Lost, Mix, Reply

    running: Any = ByHand(strategy("dpsgd:graph=ring", workers=4))
    busy: dict[int, int] = {}

    def obey(commands: Any) -> int:
        for command in commands:
            if isinstance(command, Dispatch):
                busy.update(zip(command.workers, range(command.task, command.task + len(command.workers)), strict=True))
        return sum(isinstance(command, Mix) for command in commands)

    obey(running.start(Fleet(4, (0, 1, 2, 3))))
    busy.pop(3)
    obey(running.on(Lost(0.1, 3, "died", gone=True)))
    for _ in range(18):
        worker = min(busy, key=lambda i: busy[i])
        obey(running.on(Reply(1.0, worker, busy.pop(worker), 0)))
    assert running.version >= 4
    obey(running.on(Joined(2.0, 3)))
    steps = 0
    for _ in range(20):
        worker = min(busy, key=lambda i: busy[i])
        steps += obey(running.on(Reply(3.0, worker, busy.pop(worker), 0)))
    assert steps >= 4 and len(busy) == 4  # all at work, and versions are made


def test_pairs_that_diverge_end_the_run() -> None:
    far = anyk.problems.LeastSquares(1e100 * np.eye(8), np.ones(8))
    fleet = anyk.clusters.Simulated(4, delays=anyk.delays.Constant(1.0))
    with pytest.raises(anyk.RunFailed, match="gave no usable model, 3 times|diverged"):
        anyk.train(far, "ad-psgd", fleet, steps=50, optimizer=anyk.optimizers.GD(lr=1e200))


def test_a_strategy_can_be_used_again() -> None:
    for spec in ("dpsgd", "ad-psgd", "fedbuff:tau=2,k=3", "k-async:k=3", "pasgd:tau=2,keep=true", "gc:stragglers=1"):
        scheme = strategy(spec, workers=P)
        models = []
        for _ in range(2):
            fleet = anyk.cluster("simulated", workers=P, delays="exp:mean=0.3", seed=3)
            models.append(anyk.train(problem(), scheme, fleet, steps=5, optimizer=GD).model.tobytes())
        assert models[0] == models[1], spec


def test_kept_states_count_their_own_steps() -> None:
    """Adam's bias correction goes by the steps that its moments have seen, not by the run's."""
    optimizer = anyk.optimizers.Adam(lr=0.01)
    run = trained("pasgd:tau=3,clients=1,keep=true,batch=5,seed=2", optimizer=optimizer, steps=8)
    oracle = Oracle(batch=5)
    w = oracle.problem.initial()
    states: dict[int, Any] = {}
    counts = dict.fromkeys(range(P), 0)
    for r in range(8):
        i = int(anyk.base.keyed_generator(2, "clients", r).permutation(P)[0])
        state = states.setdefault(i, optimizer.start(w))
        for k in range(3 * r, 3 * r + 3):
            g = oracle.messages.partial_gradient(i, w, Chunk((i,), (1.0,), batch=5), k)
            w = optimizer.step(w, g / oracle.partitions.sizes[i] + oracle.problem.l2 * w, state, counts[i])
            counts[i] += 1
    assert sorted(counts.values())[-2] > 0
    assert run.model == pytest.approx(w, abs=1e-12)


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("adacomm:probe=1/5,outer=slowmo", "probe of 'adacomm' starts again and again, which an outer optimiser"),
        (
            "compressed:of=(pasgd:keep=true),by=qsgd",
            "keeps the inner optimiser's state; with 'qsgd:levels=64' leave out keep",
        ),
        ("dpsgd:graph=(torus:rows=-2)", "rows must be a whole number of at least 1 or None, got -2"),
        ("pasgd:tau=0", r"tau must be a whole number of at least 1, got 0"),
        ("fedavg:clients=9", "clients must be 1 to 4 workers, got 9"),
        ("pasgd:rate=0.5", "rate is the learning rate of an outer optimiser; give outer=gd, or leave rate out"),
        ("adacomm:interval=0", r"interval must be a finite number above 0, got 0.0"),
        ("adacomm:tau=5,least=6", r"least of 'adacomm' must be 1 to 5 \(tau\) local steps, got 6"),
        ("adacomm:probe=4/0", "probe must be a tuple of whole numbers of at least 1, got "),
        ("adacomm:clients=9", "clients must be 1 to 4 workers, got 9"),
        ("adacomm:gamma=1", "gamma must be a number above 0 and below 1, got 1.0"),
        ("dpsgd:graph=rign", "no graph 'rign'; did you mean 'ring'?"),
        ("dpsgd:barrier=none", "barrier in 'dpsgd:barrier=none' should be one of local, global, got 'none'"),
        (
            "easgd:alpha=0.6667",
            r"alpha of 'easgd' must be above 0 and below 2 / \(n \+ 1\) = 0.4 for 4 workers.*best is",
        ),
        ("matcha:budget=0", "budget must be a number above 0 and of at most 1, got 0"),
        (
            "compressed:of=(frc:load=2),by=top-k",
            "'top-k:share=0.01' keeps what it leaves out, which replicas of 'frc:load=2'",
        ),
        ("compressed:of=dpsgd,by=half", "'dpsgd:graph=ring' does not compose with compressed messages: workers use"),
        (
            "compressed:of=draco,by=qsgd",
            "finds wrong workers by comparing messages, and cannot compare compressed ones",
        ),
        ("compressed:of=sync,by=zip", "no compressor 'zip'"),
        ("compressed:of=sync,by=(qsgd:levels=200)", "levels must be a whole number from 1 to 127"),
    ],
)
def test_specs_that_mean_nothing(spec: str, sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        strategy(spec, workers=P)
