"""Rows spread unevenly over partitions by their labels: all rows once, the objective unchanged, shares as asked for."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array
from scipy.stats import chi2_contingency, dirichlet

import anyk
from anyk.base.errors import BadInput
from anyk.cli import main
from anyk.problems import Dirichlet, LeastSquares, LogisticRegression, SoftmaxRegression, TwoLayerNetwork
from anyk.problems.base import cut
from anyk.runs.folder.config import read_config


def counted(split: Dirichlet, labels: np.ndarray, partitions: int) -> np.ndarray:
    """Rows of each class in each partition, shape (partitions, classes)."""
    ends = cut(len(labels), partitions)
    order, classes = split.order(labels, ends), np.unique(labels)
    return np.array([[np.count_nonzero(labels[order[a:b]] == c) for c in classes] for a, b in pairwise(ends)])


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=60), st.integers(1, 9), st.sampled_from([1e-6, 0.03, 1.0, 1e6]),
       st.integers(0, 5))  # fmt: skip
def test_every_row_is_in_one_partition_whatever_the_labels(
    labels: list[int], partitions: int, alpha: float, seed: int
) -> None:
    ends = cut(len(labels), min(partitions, len(labels)))
    order = Dirichlet(alpha=alpha, seed=seed).order(np.array(labels), ends)
    assert sorted(order.tolist()) == list(range(len(labels)))
    assert all((np.diff(order[a:b]) > 0).all() for a, b in pairwise(ends))  # rows lie as they did


def test_a_large_alpha_evens_labels_a_small_one_gives_few() -> None:
    labels = np.repeat([0, 1, 2, 3], [4000, 2000, 1000, 1000])
    even, uneven, none = (counted(Dirichlet(alpha=alpha, seed=3), labels, 20) for alpha in (1e6, 0.1, 1e-6))
    assert chi2_contingency(even).pvalue > 0.999 and np.abs(even[:, 0] - 200).max() <= 5
    assert chi2_contingency(uneven).pvalue < 1e-100
    first = none[:10]  # later ones make do with what is left
    assert ((first == 400).sum(axis=1) == 1).all()
    assert (even.sum(axis=1) == 400).all() and even.sum(axis=0).tolist() == uneven.sum(axis=0).tolist()


@pytest.mark.slow
def test_the_first_partition_has_the_shares_of_the_law() -> None:
    """Mean and variance of Dir(alpha C p), by 400 seeds: the mean within 4 standard errors."""
    labels, alpha, p = np.repeat([0, 1, 2], [500, 300, 200]), 0.7, np.array([0.5, 0.3, 0.2])
    shares = np.array([counted(Dirichlet(alpha=alpha, seed=seed), labels, 10)[0] / 100 for seed in range(400)])
    law = dirichlet(alpha * 3 * p)
    assert np.abs(shares.mean(axis=0) - law.mean()).max() < 4 * law.var().max() ** 0.5 / 20
    assert shares.var(axis=0) == pytest.approx(law.var(), rel=0.25)


def problems(**keys: Any) -> list[Any]:
    random = np.random.default_rng(2)
    X = random.standard_normal((61, 4))
    y = (X @ random.standard_normal((4, 3))).argmax(axis=1)
    X_sparse = csr_array(X * (random.random(X.shape) < 0.4))
    return [
        LogisticRegression(X, np.where(y == 1, 1, -1), l2=0.1, intercept=True, **keys),
        SoftmaxRegression(X_sparse, y, **keys),
        TwoLayerNetwork(X, y, hidden=3, **keys),
    ]


def test_gradients_add_up_to_the_same_and_sizes_stay() -> None:
    for plain, uneven in zip(problems(), problems(split="dirichlet:alpha=0.1,seed=4"), strict=True):
        w = plain.initial() + np.linspace(-1, 1, plain.dimension)
        for shares in (None, [1, 3, 1, 2, 1, 1]):
            a, b = (problem.split(6, shares) for problem in (plain, uneven))
            assert a.sizes == b.sizes and plain.loss(w) == uneven.loss(w)
            sums = []
            for parts in (a, b):
                total = np.zeros(plain.dimension)
                for j in range(6):
                    support = parts.support(j)
                    total[slice(None) if support is None else support] += parts.partial_gradient(j, w)
                sums.append(total)
            assert sums[0] == pytest.approx(sums[1], abs=1e-12)
            norms = [[np.linalg.norm(parts.partial_gradient(j, w)) for j in range(6)] for parts in (a, b)]
            assert not np.allclose(*norms)


def test_data_without_labels_and_other_mistakes_are_refused() -> None:
    with pytest.raises(BadInput, match="split=dirichlet:alpha=0.3 needs labels, and regression has numbers to predict"):
        LeastSquares(np.eye(3), [1.0, 2.0, 3.5], split=Dirichlet(alpha=0.3))
    with pytest.raises(BadInput, match=r"alpha must be a number from 1e-06 to 1e\+06, got 0"):
        anyk.problems.from_data("digits", split="dirichlet:alpha=0")
    with pytest.raises(BadInput, match="no split 'dirichelt'; did you mean 'dirichlet'"):
        anyk.problems.from_data("digits", split="dirichelt:alpha=1")


def test_a_run_keeps_its_split_and_goes_on_with_it(tmp_path: Path) -> None:
    train = ["train", "--data", "synthetic:rows=90,features=3", "--split", "dirichlet:alpha=0.2,seed=1", "--cluster",
             "simulated", "--workers", "5", "--strategy", "pasgd:tau=3,batch=2", "--quiet", "--lr", "0.3"]  # fmt: skip
    runner, folder = CliRunner(), tmp_path / "run"
    for steps, out in ((6, folder), (9, tmp_path / "whole")):
        done = runner.invoke(main, [*train, "--steps", str(steps), "--out", str(out)])
        assert done.exit_code == 0, done.output
    assert read_config(folder).problem.split == "dirichlet:alpha=0.2,seed=1"
    anyk.resume(folder, steps=9).close()
    with anyk.Run.open(folder) as resumed, anyk.Run.open(tmp_path / "whole") as uninterrupted:
        assert resumed.model.tobytes() == uninterrupted.model.tobytes()
    even = anyk.problems.from_data("synthetic:rows=90,features=3")
    with pytest.raises(BadInput, match="changed since"):
        anyk.resume(folder, problem=even, steps=10)
    refused = runner.invoke(main, [*train, "--problem", "p.py:f"])
    assert refused.exit_code == 2 and "omit --data" in refused.output
    result = runner.invoke(main, [*train, "--settings"])
    assert "dirichlet:alpha=0.2,seed=1" in result.output, json.dumps(result.output)
