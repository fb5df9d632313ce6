"""Trees: loads of nodes, weights of their messages, and whom a parent waits for."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import anyk
from anyk.base.errors import BadInput
from anyk.codes import (
    CyclicRepetition,
    FractionalRepetition,
    TreeCode,
)
from anyk.codes.tree_code import ROOT
from code_oracles import dense

pytestmark = pytest.mark.in_process


@pytest.mark.parametrize(
    ("c", "s", "depth", "fraction"),
    [(5, 1, 2, 0.1142857), (8, 1, 3, 0.0119048), (4, 1, 3, 1 / 14), (3, 2, 2, 1 / 2), (3, 0, 2, 1 / 12)],
)
def test_golden_fractions_and_every_node_computes_as_much(c: int, s: int, depth: int, fraction: float) -> None:
    n = sum(c**level for level in range(1, depth + 1))
    code = TreeCode(n, children=c, stragglers=s)
    assert code.depth == depth
    assert code.load / code.partitions == pytest.approx(fraction, rel=1e-5)
    assert 1 / sum((c / (s + 1)) ** level for level in range(1, depth + 1)) == pytest.approx(fraction, rel=1e-5)
    assert {len(partitions) for partitions in code.assignment} == {code.load}
    assert sorted({j for partitions in code.assignment for j in partitions}) == list(range(code.partitions))
    handed = (s + 1) / c  # what the first layer covers, then layer by layer
    for layer in range(depth):
        first = sum(c**level for level in range(1, layer + 1))
        assert len(code.covers[first]) / code.partitions == pytest.approx(handed)
        handed = (s + 1) / c * (handed - code.load / code.partitions)


@settings(deadline=None, max_examples=40)
@given(st.integers(2, 5), st.integers(1, 3))
def test_parents_and_children_are_a_regular_tree(c: int, depth: int) -> None:
    n = sum(c**level for level in range(1, depth + 1))
    code = TreeCode(n, children=c)
    assert code.children_of(ROOT) == range(c)
    below = [child for node in range(ROOT, n) for child in code.children_of(node)]
    assert below == list(range(n))
    for node in range(ROOT, n):
        assert len(code.children_of(node)) in (0, c)
        assert all(code.parents[child] == node for child in code.children_of(node))
        assert node == ROOT or code.shares[node].children == tuple(code.children_of(node))


@pytest.mark.parametrize(("c", "s"), [(3, 1), (4, 1), (3, 2)])
def test_with_dead_children_weights_add_up_to_one(c: int, s: int) -> None:
    code = TreeCode(c + c * c, children=c, stragglers=s)
    B = dense(code)
    patterns = list(product(combinations(range(c), s), repeat=c + 1))
    random = np.random.default_rng(0)
    for index in random.choice(len(patterns), min(len(patterns), 150), replace=False).tolist():
        dead = {
            code.children_of(node)[i] for node, lost in zip(range(ROOT, c), patterns[index], strict=True) for i in lost
        }
        alive = sorted(set(range(code.workers)) - dead)
        decoding = code.decode_exactly(alive)
        assert np.abs(decoding.weights @ B - 1).max() < 1e-9
        for node in sorted(dead):
            assert not decoding.weights[[node, *code.children_of(node)]].any()  # workers that are cut off count nothing


@pytest.mark.parametrize(
    ("n", "c", "s", "dead"), [(30, 5, 1, 1), (84, 4, 1, 1), (39, 3, 1, 1), (30, 5, 2, 2), (5, 5, 2, 2)]
)
def test_messages_up_the_tree_give_the_sum(n: int, c: int, s: int, dead: int) -> None:
    code, random = TreeCode(n, children=c, stragglers=s), np.random.default_rng(n)
    for _ in range(15):
        gradients = random.standard_normal((code.partitions, 3))
        lost = {child for node in range(ROOT, n) if (below := code.children_of(node))
                for child in random.choice(list(below), dead, replace=False).tolist()}  # fmt: skip
        messages: dict[int, np.ndarray] = {}
        for node in reversed(range(ROOT, n)):
            total = np.zeros(3)
            if node != ROOT:
                share = code.shares[node]
                total += np.array(share.coefficients) @ gradients[list(share.partitions)]
            if len(code.children_of(node)):
                ready = [child for child in code.children_of(node) if child not in lost]
                weights = code.weights_below(node, ready)
                assert weights is not None and set(weights) <= set(ready)
                total += sum((weight * messages[child] for child, weight in weights.items()), np.zeros(3))
            messages[node] = total
        assert messages[ROOT] == pytest.approx(gradients.sum(axis=0), abs=1e-9)
        replies = sorted(set(range(n)) - lost)
        assert code.decode(replies).weights @ dense(code) == pytest.approx(np.ones(code.partitions), abs=1e-9)


def test_a_parent_waits_while_its_children_do_not_suffice() -> None:
    code = TreeCode(20, children=4)
    assert code.weights_below(ROOT, []) is None and code.weights_below(ROOT, [0, 1]) is None
    assert code.weights_below(2, [12, 15]) == {12: 1.0, 15: 1.0}
    decoder = code.decoder()
    said = [decoder.add(worker) for worker in (0, 2, 4, 6, 12, 14)]
    assert said == [False] * 5 + [True]


def test_a_tree_of_one_layer_is_a_plain_code() -> None:
    for n, s in ((6, 1), (6, 2), (5, 1), (4, 0)):
        code = TreeCode(n, children=n, stragglers=s)
        plain = FractionalRepetition(n, stragglers=s) if n % (s + 1) == 0 else CyclicRepetition(n, stragglers=s)
        assert code.depth == 1 and code.partitions == n
        assert dense(code) == pytest.approx(dense(plain))


@pytest.mark.parametrize(
    ("n", "spec", "sentence"),
    [
        (
            30,
            "tree:children=4",
            "tree:children=4 does not exist for 30 workers: they must number c + c^2 + … + c^L; nearest: ",
        ),
        (30, "tree:children=5,stragglers=5", "tree: stragglers must be below children (5), got 5"),
        (30, "tree:children=5,stragglers=-1", "stragglers must be at least 0 and below workers (30), got -1"),
    ],
)
def test_trees_that_do_not_exist(n: int, spec: str, sentence: str) -> None:
    with pytest.raises(BadInput) as caught:
        anyk.code(spec, workers=n)
    assert sentence in str(caught.value)
