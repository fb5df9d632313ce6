"""Requirements of every gradient code."""

from __future__ import annotations

from itertools import combinations
from math import comb

import numpy as np

from anyk.base import Floats, keyed_generator
from anyk.codes import EXACT, Code

_SETS = 300  # straggler sets that are tried if all would be too many


def check_code(code: Code, *, seed: int = 0) -> None:
    """Check all properties of a code that the driver relies on; raise AssertionError for the first that fails.

    Rows and encoding agree; every straggler set up to ``tolerates`` (a sample, if there are more than 300) decodes
    exactly; the incremental decoder detects it immediately, whatever the order; residual and gain are correct; no
    decoder beats least squares; ``finish_times`` agrees with the decoder; the stated mean error agrees with a sample,
    and no error exceeds the stated worst.

    >>> import anyk
    >>> check_code(anyk.codes.FractionalRepetition(6, load=2))
    """
    random = keyed_generator(seed, "check-code", code.workers)
    matrix = code.encoding.toarray()
    assert matrix.shape == (code.replies, code.partitions * code.blocks), f"encoding has shape {matrix.shape}"
    assert len(code.rows) == code.replies, f"{len(code.rows)} rows for {code.replies} replies"
    assert (np.abs(matrix).sum(axis=0) > 0).all(), "some partition is assigned to no worker"
    assert code.load == max(map(len, code.assignment)), "load is not the longest row of the assignment"
    for lost in _straggler_sets(code, random) if code.tolerates or not code.approximate else []:
        _check_set(code, matrix, sorted(set(range(code.replies)) - set(lost)), random, must=True)
    for _ in range(20):
        count = int(random.integers(1, code.replies + 1))
        _check_set(code, matrix, sorted(random.choice(code.replies, count, replace=False).tolist()), random, must=False)
    if code.messages == code.blocks == 1:
        _check_theory(code, random)
    arrivals = random.exponential(size=(20, code.replies))
    arrivals[random.random(arrivals.shape) < 0.1] = np.inf
    assert np.array_equal(code.finish_times(arrivals), Code.finish_times(code, arrivals)), (
        "finish_times differs from the incremental decoder"
    )


def _check_theory(code: Code, random: np.random.Generator) -> None:
    """Compare closed forms with random sets: a mean within 5 standard errors, a worst case never exceeded."""
    n, m = code.replies, code.partitions
    for count in {1, max(1, n // 2), max(1, n - 1), n}:
        sets = [np.sort(random.choice(n, count, replace=False)) for _ in range(60)]
        errors = np.array([m * code.decode(replies).residual ** 2 for replies in sets])
        best = np.array([m * code.decode(replies, decoder="least-squares").residual ** 2 for replies in sets])
        assert (best <= errors + 1e-6 * m).all(), f"own decoding of {count} replies beats least squares"
        expected = None if code.unbiased else code.expected_error(count)
        if expected is not None:
            slack = 5 * errors.std() / len(errors) ** 0.5 + 1e-6 * m
            if errors.std() > 0 or abs(errors.mean() - expected) > slack:  # rare losses may not be in a small sample
                assert abs(errors.mean() - expected) <= max(slack, expected), (
                    f"mean error of {count} replies is {errors.mean():.4g}, the closed form says {expected:.4g}"
                )
        worst = code.worst_error(n - count) if count < n else None
        if worst is not None:
            assert errors.max() <= worst[0] + 1e-6 * m, (
                f"error {errors.max():.4g} with {n - count} stragglers, the worst should be {worst[0]:.4g}"
            )


def _straggler_sets(code: Code, random: np.random.Generator) -> list[tuple[int, ...]]:
    n, s = code.replies, code.tolerates
    assert 0 <= s < n, f"tolerates {s} of {n}"
    sets: list[tuple[int, ...]] = []
    for count in range(s + 1):
        if comb(n, count) <= _SETS:
            sets += combinations(range(n), count)
        else:
            sets += [tuple(random.choice(n, count, replace=False).tolist()) for _ in range(_SETS // (s + 1) + 1)]
            sets += [tuple((np.arange(count) + first) % n) for first in range(0, n, max(1, n // 10))]
    return sets


def _check_set(code: Code, matrix: Floats, replied: list[int], random: np.random.Generator, *, must: bool) -> None:
    """Check the decoding of a set of replies; ``must``: they must give the exact sum."""
    decoding = code.decode(replied)
    outside = np.delete(decoding.weights, replied, axis=0)
    assert not outside.any(), f"weights on workers that did not reply: {replied}"
    # with blocks, part u of the decoded vector must have 1 in block u of every partition and 0 in the others
    target = np.tile(np.eye(code.blocks), (1, code.partitions)) if code.blocks > 1 else 1.0
    error = decoding.weights.T @ matrix - target
    residual = float(np.linalg.norm(error) / np.sqrt(code.partitions * code.blocks))
    assert abs(residual - decoding.residual) < 1e-9, f"residual {decoding.residual} should be {residual}"
    gain = float(np.linalg.norm(decoding.weights.T * np.linalg.norm(matrix, axis=1)))
    assert abs(gain - decoding.gain) <= 1e-9 * max(gain, 1), f"gain {decoding.gain} should be {gain}"
    if must:
        assert np.abs(error).max() <= EXACT, f"replies {replied} should decode exactly, residual {residual:.2g}"
    decoder = code.decoder()
    order = random.permutation(replied).tolist()
    for i, worker in enumerate(order):
        decodable = decoder.add(worker)
        assert decodable == decoder.decodable, "add() and decodable disagree"
        if decodable:
            exact = code.decode(order[: i + 1])
            assert exact.exact, f"decodable after {order[: i + 1]}, but the residual is {exact.residual:.2g}"
    assert decoder.decodable or not must, f"replies {replied} suffice, but the incremental decoder does not say so"
    assert np.allclose(decoder.decode().weights, decoding.weights), "weights depend on the order of arrival"
