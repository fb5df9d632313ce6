"""Mixing matrices: eigenvalues in closed form, golden values, matchings, MATCHA against brute force."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anyk.base.errors import BadInput
from anyk.delays import parse
from anyk.fleet import best_tau, cooperative_bound, simulated_pace
from anyk.graphs import best_constant, edges_of, elastic, graph, laplacian, matcha, matchings, metropolis, zeta
from anyk.strategies import strategy

pytestmark = pytest.mark.in_process

NAMES = ["ring", "torus", "complete", "star", "exp", "one-peer", "regular:degree=4", "ring:weights=best", "none"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("workers", [6, 8, 16])
def test_rows_and_columns_add_up_to_one(name: str, workers: int) -> None:
    mixing = graph(name, workers=workers)
    for w in mixing.rounds:
        assert w.sum(axis=0) == pytest.approx(1.0) and w.sum(axis=1) == pytest.approx(1.0)
    x = np.random.default_rng(0).standard_normal((workers, 3))
    mixed = x
    for k in range(2 * len(mixing.rounds)):
        mixed = mixing.at(k).T @ mixed
    assert mixed.mean(axis=0) == pytest.approx(x.mean(axis=0))
    spread = np.linalg.norm(mixed - x.mean(axis=0)) / np.linalg.norm(x - x.mean(axis=0))
    assert spread <= mixing.zeta ** (2 * len(mixing.rounds)) + 1e-9


def test_values_27_and_28_elastic_averaging() -> None:
    assert np.sort(np.linalg.eigvalsh(elastic(8, 0.1))) == pytest.approx([0.1, *[0.9] * 7, 1.0], abs=1e-12)
    assert zeta(elastic(8, 0.2)) == pytest.approx(0.8, abs=1e-12)  # 2/(m+2), the best: zeta = m/(m+2)
    assert zeta(elastic(8, 0.8)) == pytest.approx(6.2, abs=1e-12)  # m/(m+2), as printed in a talk: diverges
    alphas = np.linspace(0.001, 2 / 9 - 0.001, 500)
    best = alphas[np.argmin([zeta(elastic(8, a)) for a in alphas])]
    assert best == pytest.approx(0.2, abs=5e-4)
    for m in range(3, 20):
        assert zeta(elastic(m, m / (m + 2))) > 1 and zeta(elastic(m, 2 / (m + 2))) == pytest.approx(m / (m + 2))
    assert zeta(elastic(2, 0.5)) == pytest.approx(0.5)  # where the two are the same


@pytest.mark.parametrize(
    ("name", "workers", "value"),
    [("ring", 8, 0.8047378541), ("ring", 16, 0.9492530217), ("torus", 16, 0.6), ("exp", 16, 0.6), ("exp", 8, 0.5),
     ("ring", 3, 0.0), ("ring", 2, 0.0), ("complete", 5, 0.0), ("none", 5, 1.0)],
)  # fmt: skip
def test_values_29_and_30_zeta(name: str, workers: int, value: float) -> None:
    assert graph(name, workers=workers).zeta == pytest.approx(value, abs=1e-9)


def test_ring_eigenvalues_in_closed_form() -> None:
    for n in (4, 7, 12):
        values = np.sort((1 + 2 * np.cos(2 * np.pi * np.arange(n) / n)) / 3)
        assert np.linalg.eigvalsh(graph("ring", workers=n).at(0)) == pytest.approx(values, abs=1e-12)


def test_one_peer_averages_exactly_every_log_n_rounds() -> None:
    for n in (2, 4, 8, 16, 32):
        product_ = np.eye(n)
        for k in range(n.bit_length() - 1):
            product_ = product_ @ graph("one-peer", workers=n).at(k)
        assert product_ == pytest.approx(np.full((n, n), 1 / n), abs=1e-15)
    assert graph("one-peer", workers=6).zeta > 0.1  # only of powers of two


def test_best_constant_is_best() -> None:
    edges = edges_of("star", workers=6)
    best = zeta(best_constant(edges, 6))
    others = [zeta(np.eye(6) - a * laplacian(edges, 6)) for a in np.linspace(0.01, 0.5, 200)]
    assert best <= min(others) + 1e-9 and best <= zeta(metropolis(edges, 6))


@settings(max_examples=200, deadline=None)
@given(st.integers(2, 12), st.floats(0, 1), st.integers(0, 10_000))
def test_matchings_share_no_node_and_are_few(n: int, density: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    edges = [(i, j) for i in range(n) for j in range(i + 1, n) if rng.random() < density]
    groups = matchings(edges, n)
    assert sorted(edge for group in groups for edge in group) == sorted(edges)
    assert all(len({v for edge in group for v in edge}) == 2 * len(group) for group in groups)
    degree = int(np.bincount(np.array(edges, dtype=int).ravel(), minlength=1).max(initial=0))
    assert degree <= len(groups) <= degree + 1 or not edges


def test_bipartite_graphs_need_as_many_matchings_as_their_degree() -> None:
    for n in (4, 6, 10):
        assert len(matchings(edges_of("ring", workers=n), n)) == 2
    assert len(matchings(edges_of("torus", workers=16), 16)) == 4
    assert len(matchings([(i, 5 + j) for i in range(5) for j in range(5)], 10)) == 5


def test_value_31_matcha_on_a_ring_of_four() -> None:
    mixing = matcha("ring", workers=4, budget=0.5)
    assert mixing.chances == pytest.approx((0.5, 0.5))
    assert mixing.step == pytest.approx(0.5, abs=1e-6) and mixing.rho == pytest.approx(0.5, abs=1e-6)


@pytest.mark.parametrize(
    ("name", "workers", "budget"), [("star", 5, 0.6), ("ring", 6, 0.4), ("regular:degree=3", 6, 0.5)]
)
def test_matcha_s_rho_by_enumeration_of_all_activations(name: str, workers: int, budget: float) -> None:
    """||E[W^2] - J||, the mean over all 2^q choices of matchings, and no better at other steps."""
    mixing = matcha(name, workers=workers, budget=budget)
    q = len(mixing.groups)
    assert sum(mixing.chances) <= budget * q + 1e-6 and all(0 <= p <= 1 for p in mixing.chances)

    def norm(step: float) -> float:
        mean = np.zeros((workers, workers))
        for active in product((0, 1), repeat=q):
            chance = np.prod([p if a else 1 - p for a, p in zip(active, mixing.chances, strict=True)])
            edges = [edge for a, group in zip(active, mixing.groups, strict=True) if a for edge in group]
            w = np.eye(workers) - step * laplacian(edges, workers)
            mean += chance * (w @ w)
        return float(np.linalg.norm(mean - 1 / workers, 2))

    assert mixing.rho == pytest.approx(norm(mixing.step), abs=1e-9)
    assert mixing.rho <= min(norm(mixing.step * f) for f in (0.8, 0.95, 1.05, 1.2)) + 1e-9
    assert mixing.rho < 1


def test_matcha_favours_edges_that_hold_the_graph_together(tmp_path: Path) -> None:
    """A bridge between two triangles is active more often than the triangles' own edges."""
    np.save(tmp_path / "w.npy", metropolis([(0, 1), (1, 2), (0, 2), (3, 4), (4, 5), (3, 5), (2, 3)], 6))
    mixing = matcha(f"file:file={tmp_path / 'w.npy'}", workers=6, budget=0.5)
    bridge = next(p for group, p in zip(mixing.groups, mixing.chances, strict=True) if (2, 3) in group)
    assert bridge == max(mixing.chances) and bridge > 0.5


def test_value_32_the_bound() -> None:
    setting = {"excess": 1.0, "rate": 0.05, "smoothness": 1.0, "noise": 1.0, "workers": 8, "steps": 1000}
    assert cooperative_bound(**setting, tau=10) == pytest.approx(0.06875, rel=1e-9)  # type: ignore[arg-type]
    ring = graph("ring", workers=8).zeta
    assert cooperative_bound(**setting, zeta=ring) == pytest.approx(0.0554385436, rel=1e-9)  # type: ignore[arg-type]
    assert cooperative_bound(**setting, zeta=0.8, auxiliary=1) == pytest.approx(0.0594444444, rel=1e-9)  # type: ignore[arg-type]


@pytest.mark.slow
def test_values_33_to_35() -> None:
    law = parse("exp:mean=1")
    for tau, golden in ((1, 2.7178571), (2, 2.1802929), (5, 1.7153523), (10, 1.4917748), (100, 1.1468716)):
        assert (law.longest_sum(tau, 8) or 0) / tau == pytest.approx(golden, abs=1e-6)
    pace = simulated_pace(strategy("pasgd:tau=10", workers=8), law, updates=2000)
    assert abs(pace.seconds / 10 - 1.4917748) < 4 * pace.error / 10
    sync = 2.7178571429 + 1.0
    assert sync / ((law.longest_sum(10, 8) or 0) / 10 + 0.1) == pytest.approx(2.3356678, abs=1e-6)
    assert best_tau(1.0, 1.0, 0.1, 1.0, 1.0, 200.0) == pytest.approx(3.1622776602, rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spec", "workers", "golden"),
    [("dpsgd:graph=ring", 8, 2.155), ("dpsgd:graph=ring", 16, 2.285), ("easgd", 8, 1.776),
     ("dpsgd:graph=ring,barrier=global", 8, 2.7178571), ("dpsgd:graph=ring,barrier=global", 16, 3.3807290)],
)  # fmt: skip
def test_value_47_rounds_with_local_and_global_barriers(spec: str, workers: int, golden: float) -> None:
    pace = simulated_pace(strategy(spec, workers=workers), parse("exp:mean=1"), updates=2000, seed=2)
    assert pace.seconds == pytest.approx(golden, rel=0.03)


def test_local_barriers_are_the_max_plus_recursion() -> None:
    """t_i(k+1) = max over readers' sources of the end of round k, plus its own delay; the version when all have ended."""
    n, rounds = 7, 30
    law = parse("exp:mean=1")
    draws = np.array([law.draws(4, i, 0, rounds) for i in range(n)])
    for name in ("ring", "exp", "star"):
        w = graph(name, workers=n).at(0)
        ends = np.zeros(n)
        versions = []
        for k in range(rounds):
            begins = np.array([ends[np.flatnonzero(w[:, i])].max() for i in range(n)])
            ends = begins + draws[:, k]
            versions.append(ends.max())
        from anyk.clusters import Simulated
        from anyk.runs import Driver, session

        times: list[float] = []
        driver = Driver(
            strategy(f"dpsgd:graph={name}", workers=n),
            Simulated(n, delays=law, seed=4),
            steps=rounds,
            on_step=lambda record, times=times: times.append(record.update.time),  # type: ignore[misc]
        )
        with session(driver):
            driver.run()
        assert times == pytest.approx(versions, abs=1e-9)


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("torus:rows=3", "a torus of 3 rows needs a multiple of them, got 8 workers"),
        ("file:file=nowhere.csv", "no matrix file 'nowhere.csv'"),
        ("regular:degree=9", "no graph on 8 vertices has 9 edges at each"),
    ],
)
def test_graphs_that_do_not_exist(spec: str, sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        graph(spec, workers=8)


def test_a_matrix_from_a_file(tmp_path: Path) -> None:
    w = graph("exp", workers=5).at(0)
    np.savetxt(tmp_path / "w.csv", w, delimiter=",")
    assert graph(f"file:file={tmp_path / 'w.csv'}", workers=5).at(0) == pytest.approx(w)
    np.save(tmp_path / "bad.npy", w * 1.01)
    with pytest.raises(BadInput, match="the columns of the matrix in .* must add up to 1, they miss it by 0.01"):
        graph(f"file:file={tmp_path / 'bad.npy'}", workers=5)
    with pytest.raises(BadInput, match="must be 6 x 6, got shape"):
        graph(f"file:file={tmp_path / 'w.csv'}", workers=6)
    with pytest.raises(BadInput, match="an undirected graph is needed here"):
        matcha("exp", workers=6, budget=0.5)
    with pytest.raises(BadInput, match="'none' has no edges; MATCHA needs a connected graph"):
        matcha("none", workers=6, budget=0.5)
    np.save(tmp_path / "two.npy", metropolis([(0, 1), (2, 3), (4, 5)], 6))
    with pytest.raises(BadInput, match="does not connect all 6 workers"):
        matcha(f"file:file={tmp_path / 'two.npy'}", workers=6, budget=0.5)
