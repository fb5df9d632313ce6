"""Short replies: every set of them recovers all blocks of the sum, and what fewer give."""

from __future__ import annotations

import numpy as np
import pytest

from anyk.base.errors import BadInput, NotDecodable
from anyk.codes import (
    CommunicationEfficient,
)
from code_oracles import subsets

pytestmark = pytest.mark.in_process


def short_replies(code: CommunicationEfficient, gradients: np.ndarray) -> np.ndarray:
    """What workers send, from the rows alone; gradients have shape (partitions, a multiple of blocks)."""
    b = code.blocks
    parts = gradients.reshape(len(gradients), -1, b)  # coordinate v b + u is part u
    sent = np.zeros((code.workers, parts.shape[1]))
    for i, (partitions, coefficients) in enumerate(code.rows):
        for j, block_weights in zip(partitions, np.reshape(coefficients, (len(partitions), b)), strict=True):
            sent[i] += parts[j] @ block_weights
    return sent


@pytest.mark.parametrize(
    ("n", "s", "b"), [(5, 1, 2), (5, 2, 3), (6, 1, 2), (6, 0, 3), (6, 3, 1), (7, 2, 2), (4, 0, 4), (3, 2, 1)]
)
def test_any_replies_but_s_recover_all_blocks_of_the_sum(n: int, s: int, b: int) -> None:
    code, random = CommunicationEfficient(n, stragglers=s, blocks=b), np.random.default_rng(n)
    length = 11
    padded = -(-length // b) * b
    gradients = np.pad(random.standard_normal((n, length)), ((0, 0), (0, padded - length)))
    sent = short_replies(code, gradients)
    assert sent.shape == (n, -(-length // b))
    assert code.load == s + b == max(len(partitions) for partitions in code.assignment) and (
        code.tolerates,
        code.blocks,
    ) == (s, b)
    assert all(len(partitions) == s + b for partitions, _ in code.rows)
    for replied in subsets(range(n), n - s):
        weights, residual, gain = code.decode_exactly(replied)
        assert weights.shape == (n, b) and residual < 1e-9 and np.isfinite(gain) and 0 < gain < 1e6
        assert not weights[np.setdiff1d(np.arange(n), replied)].any()
        decoded = (weights.T @ sent).T.ravel()[:length]
        assert decoded == pytest.approx(gradients.sum(axis=0)[:length], abs=1e-8)


def test_fewer_replies_are_refused_or_as_near_as_possible() -> None:
    code = CommunicationEfficient(6, stragglers=1, blocks=2)
    for replied in subsets(range(6), 0, 4):
        decoder = code.decoder()
        assert not any(decoder.add(worker) for worker in replied)
        assert code.decode(replied).residual > 1e-3
        with pytest.raises(
            NotDecodable, match=rf"{len(replied)} of 6 replies .*'comm-efficient:stragglers=1,blocks=2'"
        ):
            code.decode_exactly(replied)
    decoder = code.decoder()
    assert [decoder.add(worker) for worker in (5, 0, 3, 2, 1, 4)] == [False] * 4 + [True] * 2


def test_a_larger_code_with_short_replies() -> None:
    code, random = CommunicationEfficient(30, stragglers=4, blocks=3), np.random.default_rng(0)
    gradients = random.standard_normal((30, 12))
    sent = short_replies(code, gradients)
    for _ in range(20):
        replied = random.choice(30, 26, replace=False)
        decoding = code.decode_exactly(replied)
        assert (decoding.weights.T @ sent).T.ravel() == pytest.approx(
            gradients.sum(axis=0), abs=1e-12 * decoding.gain * 30
        )
    arrivals = random.exponential(size=(5, 30))
    assert code.finish_times(arrivals) == pytest.approx(np.sort(arrivals, axis=1)[:, 25])


@pytest.mark.parametrize(
    ("blocks", "sentence"),
    [
        (0, "blocks of 'comm-efficient' must be 1 to 4 .*, got 0"),
        (5, "blocks of 'comm-efficient' must be 1 to 4 .*, got 5"),
        (-1, "blocks of 'comm-efficient' must be 1 to 4 .*, got -1"),
    ],
)
def test_blocks_out_of_range(blocks: int, sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        CommunicationEfficient(6, stragglers=2, blocks=blocks)
    with pytest.raises(BadInput, match=r"stragglers must be at least 0 and below workers \(6\), got 6"):
        CommunicationEfficient(6, stragglers=6)
    for decoder in ("one-step", "least-squares", "algorithmic"):
        with pytest.raises(BadInput, match="supports only its own decoder: each reply is a part of the vector"):
            CommunicationEfficient(6).decode(range(6), decoder=decoder)


def test_codes_with_short_replies_conform() -> None:
    from anyk.testing import check_code

    check_code(CommunicationEfficient(6, stragglers=1, blocks=2))
    check_code(CommunicationEfficient(7, stragglers=2, blocks=3))
