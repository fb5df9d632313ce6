"""DRACO: liars are found by linear measures of their messages, and nobody else is accused."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest

import anyk
from anyk.base.errors import BadInput
from anyk.codes import (
    DracoCode,
    locate,
)
from code_oracles import dense

pytestmark = pytest.mark.in_process


def honest(code: DracoCode, random: np.random.Generator) -> np.ndarray:
    return dense(code) @ random.standard_normal(code.partitions)


DRACO = [(9, 1, 0, "repetition"), (12, 1, 1, "repetition"), (16, 2, 0, "repetition"), (30, 2, 2, "repetition")]
DRACO += [(7, 1, 0, "cyclic"), (9, 2, 0, "cyclic"), (15, 3, 0, "cyclic"), (15, 2, 2, "cyclic"), (15, 1, 4, "cyclic")]
DRACO += [(21, 2, 4, "cyclic"), (8, 1, 1, "cyclic"), (16, 3, 1, "cyclic"), (31, 5, 0, "cyclic"), (40, 4, 3, "cyclic")]


@pytest.mark.parametrize(("n", "byzantine", "late", "kind"), DRACO)
def test_all_liars_are_found_and_nobody_else(n: int, byzantine: int, late: int, kind: Any) -> None:
    code, random = DracoCode(n, byzantine=byzantine, stragglers=late, kind=kind), np.random.default_rng(n)
    assert code.load >= 2 * byzantine + late + 1 and (code.tolerates, code.partitions) == (late, n)
    for _ in range(40):
        truth = honest(code, random)
        order = random.permutation(n)
        f, t = int(random.integers(late + 1)), int(random.integers(byzantine + 1))
        replied = np.sort(order[: n - f])
        lying = np.sort(random.choice(replied, t, replace=False))
        values = truth.copy()
        values[lying] += random.choice([-1, 1], t) * random.uniform(0.5, 50, t)
        assert locate(code, replied.tolist(), values[replied].tolist()) == tuple(lying.tolist())


@pytest.mark.parametrize(("n", "byzantine", "late", "kind"), DRACO)
def test_honest_words_accuse_nobody(n: int, byzantine: int, late: int, kind: Any) -> None:
    code, random = DracoCode(n, byzantine=byzantine, stragglers=late, kind=kind), np.random.default_rng(n)
    for scale in (1e-30, 1e-6, 1.0, 1e12):
        for _ in range(10):
            replied = np.sort(random.choice(n, n - int(random.integers(late + 1)), replace=False))
            values = scale * honest(code, random)
            assert locate(code, replied.tolist(), values[replied].tolist()) == ()
    assert locate(code, range(n), [0.0] * n) == ()


@pytest.mark.parametrize(
    ("n", "kind"), [(3, "repetition"), (7, "repetition"), (5, "cyclic"), (6, "cyclic"), (9, "cyclic")]
)
@pytest.mark.parametrize("lie", [1e-3, -1.0, 1e9])
def test_every_single_liar_is_found(n: int, kind: Any, lie: float) -> None:
    code, random = DracoCode(n, byzantine=1, kind=kind), np.random.default_rng(0)
    for liar in range(n):
        values = honest(code, random)
        values[liar] += lie
        assert locate(code, range(n), values.tolist()) == (liar,)


@pytest.mark.parametrize("kind", ["repetition", "cyclic"])
def test_every_pair_of_liars_with_every_straggler_is_found(kind: Any) -> None:
    code, random = DracoCode(12, byzantine=2, stragglers=1, kind=kind), np.random.default_rng(3)
    for late in range(12):
        replied = [i for i in range(12) if i != late]
        for lying in combinations(replied, 2):
            values = honest(code, random)
            values[list(lying)] += random.uniform(1, 10, 2)
            assert locate(code, replied, values[replied].tolist()) == lying


def test_liars_that_agree_are_still_outvoted() -> None:
    code, values = DracoCode(10, byzantine=2), np.repeat([1.0, 2.0], 5)
    values[[1, 3]] = 77.0
    assert locate(code, range(10), values.tolist()) == (1, 3)
    values[4] = 77.0  # three are more than were to be expected: they are believed
    assert locate(code, range(10), values.tolist()) == (0, 2)


def test_nothing_is_said_before_liars_would_have_been_found_out() -> None:
    code = DracoCode(9, byzantine=1)
    assert locate(code, [0, 1, 3, 4, 6], [1.0, 1.0, 2.0, 2.0, 3.0]) is None
    assert locate(code, [0, 1, 3, 4, 6, 7], [1.0, 1.0, 2.0, 2.0, 3.0, 4.0]) is None
    assert locate(code, [0, 1, 3, 4, 6, 7], [1.0, 1.0, 2.0, 2.0, 3.0, 3.0]) == ()
    cyclic = DracoCode(9, byzantine=1, kind="cyclic")
    assert locate(cyclic, range(8), honest(cyclic, np.random.default_rng(0))[:8].tolist()) is None


@pytest.mark.parametrize("kind", ["repetition", "cyclic"])
def test_the_sum_of_real_vectors_in_spite_of_liars(kind: Any) -> None:
    code, random = DracoCode(15, byzantine=2, stragglers=2, kind=kind), np.random.default_rng(5)
    for _ in range(20):
        gradients, secret = random.standard_normal((15, 6)), random.standard_normal(6)
        replies = dense(code) @ gradients
        order = random.permutation(15).tolist()
        lying = sorted(order[:2])
        replies[lying] = random.standard_normal((2, 6)) * 1e3
        decoder = code.decoder()
        assert decoder.residual == 1.0
        for worker in order[:13]:
            decoder.measure(worker, float(replies[worker] @ secret))  # type: ignore[attr-defined]
            decoder.add(worker)
        assert decoder.decodable and decoder.byzantine == tuple(lying)  # type: ignore[attr-defined]
        decoding = decoder.decode()
        assert decoding.exact and not decoding.weights[lying].any()
        assert decoding.weights @ replies == pytest.approx(gradients.sum(axis=0), abs=1e-8)


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("draco:byzantine=4", "draco:byzantine=4,stragglers=0 needs 2 x byzantine + stragglers + 1 workers, and there are 8; at most 3 may lie"),
        ("draco:byzantine=3,stragglers=3", "at most 2 may lie"),
        ("draco:byzantine=-1", "byzantine must be a whole number of at least 0, got -1; nearest: draco:byzantine=0"),
        ("draco:kind=other", "should be one of repetition, cyclic, got 'other'"),
    ],
)  # fmt: skip
def test_draco_codes_that_do_not_exist(spec: str, sentence: str) -> None:
    with pytest.raises(BadInput) as caught:
        anyk.code(spec, workers=8)
    assert sentence in str(caught.value)


def test_cyclic_draco_is_refused_where_it_would_accuse_the_wrong() -> None:
    with pytest.raises(
        BadInput, match="up to 5 Byzantine workers among at most 40 .*got 50 with 8; use kind=repetition"
    ):
        DracoCode(50, byzantine=8, kind="cyclic")
    assert DracoCode(50, byzantine=8).load == 25


def test_the_floor_knows_who_lies() -> None:
    import anyk

    for spec in ("draco:byzantine=1", "draco:byzantine=2,stragglers=1,kind=cyclic"):
        cluster = anyk.cluster("simulated:byzantine=3", workers=9, delays="exp:mean=0.5", seed=1)
        run = anyk.train(anyk.testing.Squares(9), spec, cluster, steps=10)
        assert run.seconds == pytest.approx(run.floor_seconds, rel=1e-12)
