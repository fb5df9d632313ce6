"""Cooperative SGD: any matrix, any number of auxiliary models, against the matrix recursion; the known special cases."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anyk
from anyk.base.errors import BadInput
from anyk.graphs import elastic, graph, zeta
from anyk.strategies import strategy
from strategies.averaging.test_local_steps import GD, Oracle, trained

N = 4


def saved(folder: Path, matrix: Any) -> str:
    np.save(folder / "w.npy", matrix)
    return f"(file:file={folder / 'w.npy'})"


def mixture(nodes: int, seed: int) -> np.ndarray:
    """Doubly stochastic and not symmetric: a mean of permutations and nothing moved."""
    random = np.random.default_rng(seed)
    weights = random.dirichlet(np.ones(4))
    return sum(w * np.eye(nodes)[random.permutation(nodes)] for w in weights[1:]) + weights[0] * np.eye(nodes)


def recursion(W: np.ndarray, auxiliary: int, tau: int, rounds: int) -> Any:
    """``X <- (X - lr G) W``; what the run's model is after so many rounds."""
    oracle, n = Oracle(batch=3, workers=N), N
    X = np.tile(oracle.problem.initial(), (n + auxiliary, 1))
    for k in range(rounds):
        half = np.vstack([[oracle.steps(i, X[i], k * tau, tau) for i in range(n)], X[n:]])
        X = W.T @ half
        assert X.mean(axis=0) == pytest.approx(half.mean(axis=0), abs=1e-13)
    return X[n:].mean(axis=0) if auxiliary else half.mean(axis=0)


@pytest.mark.slow
@pytest.mark.parametrize("auxiliary", [0, 1, 2, 3])
def test_any_matrix_is_its_recursion_whatever_the_delays(auxiliary: int, tmp_path: Path) -> None:
    for seed, barrier, law in ((1, "local", "exp:mean=1"), (2, "global", "bimodal:fast=0.1,slow=5")):
        W = mixture(N + auxiliary, seed)
        spec = f"coop:matrix={saved(tmp_path, W)},auxiliary={auxiliary},tau=2,batch=3,barrier={barrier}"
        run = trained(spec, steps=6, delays=law)
        assert run.model == pytest.approx(recursion(W, auxiliary, 2, 6), abs=1e-12)


@pytest.mark.slow
def test_two_centres_that_pull_each_other_and_weights_below_0(tmp_path: Path) -> None:
    """Workers 0 and 1 know centre 4, workers 2 and 3 centre 5; the centres overshoot, and average with each other."""
    W = np.eye(6)
    for i, j, weight in ((0, 4, 0.5), (1, 4, 0.5), (2, 5, 0.5), (3, 5, 0.5), (4, 5, 0.2)):
        W[i, j] = W[j, i] = weight
        W[i, i] -= weight
        W[j, j] -= weight
    assert W[4, 4] < 0
    run = trained(f"coop:matrix={saved(tmp_path, W)},auxiliary=2,batch=3", steps=7)
    assert run.model == pytest.approx(recursion(W, 2, 1, 7), abs=1e-12)


@pytest.mark.slow
def test_known_schemes_are_special_cases(tmp_path: Path) -> None:
    for alpha in (0.1, 1 / 3):
        spec = f"coop:matrix={saved(tmp_path, elastic(N, alpha))},auxiliary=1,tau=2,batch=3"
        pairs = [(spec, f"easgd:alpha={alpha!r},tau=2,batch=3")]
        if alpha == 0.1:
            pairs += [("coop:matrix=ring,tau=2,batch=3", "dpsgd:graph=ring,tau=2,batch=3")]
            pairs += [("coop:matrix=one-peer,batch=3", "dpsgd:graph=one-peer,batch=3")]
            pairs += [("coop:tau=3,batch=3", "pasgd:tau=3,batch=3")]
        for general, special in pairs:
            a, b = trained(general, steps=6), trained(special, steps=6)
            assert a.model == pytest.approx(b.model, abs=1e-14), special
            assert np.array_equal(a.history["seconds"], b.history["seconds"]), special


@pytest.mark.slow
def test_processes_resume_and_replay_come_to_the_same_bits(tmp_path: Path) -> None:
    spec = "coop:matrix=ring,auxiliary=2,batch=3"
    real = trained(spec, cluster="processes", delays="exp:mean=0.01", steps=4)
    assert real.model.tobytes() == trained(spec, delays="exp:mean=0.01", steps=4).model.tobytes()
    problem = anyk.problems.from_data("synthetic:rows=203,features=6")
    fleet = anyk.cluster("simulated", workers=N, delays="exp:mean=0.3", seed=3)
    anyk.train(problem, spec, fleet, steps=3, optimizer=GD, out=tmp_path / "run").close()
    resumed = anyk.resume(tmp_path / "run", steps=7)
    assert resumed.model.tobytes() == trained(spec, steps=7).model.tobytes()
    assert anyk.verify(tmp_path / "run").whole
    ledger = resumed.ledger
    assert ledger["counted"] + ledger["late_counted"] == 7 * N
    resumed.close()
    assert str(anyk.replay(tmp_path / "run")).endswith("the same bits of model")


@pytest.mark.slow
@pytest.mark.parametrize("auxiliary", [1, 2])
def test_the_weight_of_a_given_up_node_stays_with_its_readers(auxiliary: int) -> None:
    from anyk.clusters import Outage

    fleet = anyk.clusters.Simulated(N, delays=anyk.delays.Constant(1.0), outages=[Outage(1.5, 1)])
    problem = anyk.problems.from_data("synthetic:rows=203,features=6")
    run = anyk.train(problem, f"coop:matrix=complete,auxiliary={auxiliary}", fleet, steps=8, optimizer=GD)
    assert run.steps == 8 and run.loss < problem.loss(problem.initial())
    assert run.history["replies"].tolist()[-1] == N - 1


@pytest.mark.parametrize(("matrix", "auxiliary", "sentence"), [
    (elastic(N, 0.45), 1, r"must have a zeta below 1, else models do not come together, got 1.25"),
    (np.eye(N), 0, "must have a zeta below 1, else models do not come together, got 1$"),
    (graph("ring", workers=N).at(0) * 0.9, 0, r"must add up to 1, they miss it by 0.1"),
    (elastic(N, 0.2), 0, r"must be 4 x 4, got shape \(5, 5\)"),
    ("one-peer", 1, "has another matrix each round; auxiliary models need one that stays the same"),
    ("ring", -1, "auxiliary must be a whole number of at least 0, got -1"),
])  # fmt: skip
def test_matrices_without_consensus_are_refused(matrix: Any, auxiliary: int, sentence: str, tmp_path: Path) -> None:
    spec = matrix if isinstance(matrix, str) else saved(tmp_path, matrix)
    with pytest.raises(BadInput, match=sentence):
        strategy(f"coop:matrix={spec},auxiliary={auxiliary}", workers=N)


def test_auxiliary_weights_that_cancel_out_are_refused(tmp_path: Path) -> None:
    x = np.array([1.0, 0.0, -0.25, -0.75])
    W = 0.25 + 0.5 * np.outer(x, x)  # worker 0 reads 1/8 of one and -1/8 of the other
    with pytest.raises(BadInput, match="the weights that worker 0 gives auxiliary models in .* add up to 0, which is"):
        strategy(f"coop:matrix={saved(tmp_path, W)},auxiliary=2", workers=2)


# ------------------------------------------------------------------------------------------- groups, and all now and then


@pytest.mark.slow
def test_one_group_or_all_every_time_is_periodic_averaging() -> None:
    expected = trained("pasgd:tau=3,batch=3", steps=6)
    for spec in ("hierarchical:groups=1,tau=3,every=5,batch=3", "hierarchical:groups=3,tau=3,every=1,batch=3"):
        run = trained(spec, steps=6)
        assert run.model == pytest.approx(expected.model, abs=1e-13)
        assert np.array_equal(run.history["seconds"], expected.history["seconds"])


@pytest.mark.parametrize(("workers", "groups", "every"), [(8, 4, 3), (7, 3, 5), (6, 6, 2)])
def test_groups_average_inside_and_at_times_all_together(workers: int, groups: int, every: int) -> None:
    mixing = graph(f"groups:groups={groups},every={every}", workers=workers)
    inside = mixing.at(0)
    assert [mixing.at(k).tobytes() == inside.tobytes() for k in range(2 * every)] == (
        [True] * (every - 1) + [False]
    ) * 2
    assert inside @ inside == pytest.approx(inside)  # a projection, on vectors that are equal in each group
    assert np.linalg.matrix_rank(inside) == groups and zeta(inside) == pytest.approx(1.0)
    assert mixing.at(every - 1) == pytest.approx(np.full((workers, workers), 1 / workers)) and mixing.zeta == 0.0
    mean = sum(mixing.rounds) / every
    assert zeta(mean) == pytest.approx((every - 1) / every)  # differences between groups are left, the others at 0


@pytest.mark.slow
def test_groups_go_on_without_lost_workers() -> None:
    from anyk.clusters import Outage

    outages = [Outage(2.5, 1), Outage(3.5, 4, 9.25)]
    fleet = anyk.clusters.Simulated(6, delays=anyk.delays.Constant(1.0), outages=outages)
    problem = anyk.problems.from_data("synthetic:rows=203,features=6")
    run = anyk.train(problem, "hierarchical:groups=3,tau=1,every=2", fleet, steps=14, optimizer=GD)
    assert run.steps == 14 and run.history["replies"][-1] == 5
    with pytest.raises(BadInput, match="groups must be 1 to 6 nodes, got 7"):
        strategy("hierarchical:groups=7", workers=6)
    with pytest.raises(BadInput, match="every must be a whole number from 1 to 1000, got 0"):
        strategy("hierarchical:every=0", workers=6)
