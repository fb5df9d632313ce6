"""Decoders: the set of replies decides, not their order; any matrix is decoded; residual and gain mean what they say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from anyk import codes
from anyk.codes import Code, Uncoded
from anyk.errors import BadInput, NotDecodable
from code_oracles import AnyMatrix, dense, least_squares, made, spans_ones

pytestmark = pytest.mark.in_process

SPECS = ["uncoded", "frc:load=3", "frc:stragglers=4", "frc:stragglers=2,partitions=20", "cyclic:stragglers=3"]
SPECS += ["partial:stragglers=2,load=4", "partial:stragglers=1,load=3,inner=cyclic"]


@st.composite
def matrices(draw: st.DrawFn, most: int = 5) -> tuple[tuple[int, ...], ...]:
    """Small whole-number codes, of any rank, with no empty row."""
    n, m = draw(st.integers(1, most)), draw(st.integers(1, most))
    entry = st.sampled_from([0, 0, 1, 1, 2, -1])
    rows = draw(st.lists(st.tuples(*[entry] * m), min_size=n, max_size=n))
    assume(all(map(any, rows)))
    return tuple(rows)


def added(code: Code, order: Any) -> Any:
    decoder = code.decoder()
    for worker in order:
        decoder.add(worker)
    return decoder


# ------------------------------------------------------------------------------------------- any matrix


@settings(deadline=None, max_examples=150)
@given(matrices(), st.data())
def test_least_squares_agrees_with_rational_arithmetic(
    matrix: tuple[tuple[int, ...], ...], data: st.DataObject
) -> None:
    code = AnyMatrix(len(matrix), matrix)
    order = data.draw(st.permutations(range(len(matrix))))
    decoder = code.decoder()
    assert decoder.residual == 1.0 and not decoder.decodable
    for count, worker in enumerate(order, start=1):
        said = decoder.add(worker)
        replied = sorted(order[:count])
        assert said == decoder.decodable == spans_ones(frozenset(matrix[i] for i in replied))
        weights, residual = least_squares(code, replied)
        decoding = decoder.decode()
        assert decoder.residual == pytest.approx(residual, abs=1e-9)
        assert decoding.residual == pytest.approx(residual, abs=1e-9)
        assert decoding.weights == pytest.approx(weights, abs=1e-9)
        assert decoding.exact == said


@settings(deadline=None, max_examples=100)
@given(matrices(), st.data())
def test_renumbered_workers_have_renumbered_weights(matrix: tuple[tuple[int, ...], ...], data: st.DataObject) -> None:
    n = len(matrix)
    order = data.draw(st.permutations(range(n)))
    code, renumbered = AnyMatrix(n, matrix), AnyMatrix(n, tuple(matrix[i] for i in order))
    replied = data.draw(st.sets(st.integers(0, n - 1)))
    one, other = code.decode(replied), renumbered.decode([order.index(i) for i in replied])
    assert other.weights == pytest.approx(one.weights[order], abs=1e-9)
    assert other.residual == pytest.approx(one.residual, abs=1e-9)
    assert other.gain == pytest.approx(one.gain, abs=1e-9)


@settings(deadline=None, max_examples=100)
@given(matrices(), st.data())
def test_the_size_of_a_row_decides_nothing(matrix: tuple[tuple[int, ...], ...], data: st.DataObject) -> None:
    """A worker that sends a thousand times its sum is weighted a thousandth; whether and how well it decodes stays."""
    n = len(matrix)
    scales = data.draw(st.lists(st.sampled_from([1.0, -1.0, 2.0**10, 2.0**-10]), min_size=n, max_size=n))
    scaled = AnyMatrix(n, tuple(tuple(s * v for v in row) for s, row in zip(scales, matrix, strict=True)))
    for i in range(n):
        one, other = added(AnyMatrix(n, matrix), range(i + 1)), added(scaled, range(i + 1))
        assert one.decodable == other.decodable
        assert other.residual == pytest.approx(one.residual, abs=1e-7)
    if one.decodable:
        assert np.abs(other.decode().weights @ dense(scaled) - 1).max() < 1e-6


def test_a_worker_without_partitions_adds_nothing() -> None:
    """Random codes have such rows; its reply counts as a reply and is worth nothing."""
    code = AnyMatrix(3, ((1, 0), (0, 0), (0, 1)))
    assert [code.decoder().add(worker) for worker in range(3)] == [False, False, False]
    decoder = added(code, [1, 0, 2])
    assert decoder.decodable and decoder.decode().weights == pytest.approx([1, 0, 1])


@pytest.mark.parametrize("n", [30, 100])
def test_dense_codes_decode_as_many_replies_as_partitions(n: int) -> None:
    random = np.random.default_rng(n)
    B = random.standard_normal((n, n // 2))
    code = AnyMatrix(n, tuple(map(tuple, B.tolist())))
    order = random.permutation(n).tolist()
    decoder = code.decoder()
    said = [decoder.add(worker) for worker in order]
    assert said == [count >= n // 2 for count in range(1, n + 1)]
    assert decoder.decode().weights == pytest.approx(least_squares(code, range(n))[0], abs=1e-9)


# ------------------------------------------------------------------------------------------- built-in codes


@settings(deadline=None, max_examples=40)
@given(st.sampled_from(SPECS), st.data())
def test_the_set_of_replies_decides_not_the_order(spec: str, data: st.DataObject) -> None:
    code = made(spec, 12)
    order = data.draw(st.lists(st.integers(0, code.replies - 1), unique=True))
    one, other = added(code, order), added(code, sorted(order))
    assert one.decodable == other.decodable and one.residual == other.residual
    first, second = one.decode(), other.decode()
    assert first.weights.tolist() == second.weights.tolist()  # to the last bit
    assert first[1:] == second[1:]
    assert one.select() == other.select()
    assert code.decode(order)[1:] == pytest.approx(first[1:], rel=1e-12, abs=1e-15)


@settings(deadline=None, max_examples=40)
@given(st.sampled_from(SPECS), st.data())
def test_residual_and_gain_mean_what_they_say(spec: str, data: st.DataObject) -> None:
    code = made(spec, 12)
    B = dense(code)
    replied = data.draw(st.sets(st.integers(0, code.replies - 1)))
    weights, residual, gain = code.decode(replied)
    assert residual == pytest.approx(np.linalg.norm(weights @ B - 1) / np.sqrt(code.partitions), abs=1e-9)
    assert gain == pytest.approx(np.sqrt(sum((a * np.linalg.norm(b)) ** 2 for a, b in zip(weights, B, strict=True))))
    assert residual == pytest.approx(least_squares(code, sorted(replied))[1], abs=1e-9)  # no decoding comes nearer
    judged = code.judge(weights)
    assert judged.residual == pytest.approx(residual, abs=1e-12) and judged.gain == pytest.approx(gain)


@settings(deadline=None, max_examples=40)
@given(st.sampled_from(SPECS), st.data())
def test_a_selection_is_the_decoding_without_what_is_not_used(spec: str, data: st.DataObject) -> None:
    code = made(spec, 12)
    decoder = added(code, data.draw(st.lists(st.integers(0, code.replies - 1), unique=True, min_size=1)))
    selection, decoding = decoder.select(), decoder.decode()
    assert selection.replies == np.flatnonzero(decoding.weights).tolist()  # ascending: sums run in canonical order
    assert selection.weights == decoding.weights[selection.replies].tolist()
    assert selection.residual == pytest.approx(decoding.residual, abs=1e-15)
    assert selection.gain == pytest.approx(decoding.gain, rel=1e-12)


@pytest.mark.parametrize("spec", SPECS)
def test_a_decoder_that_can_decode_goes_on_to(spec: str) -> None:
    """More replies take nothing away, and the residual never grows."""
    code = made(spec, 12)
    for seed in range(5):
        decoder, last, could = code.decoder(), 1.0, False
        for worker in np.random.default_rng(seed).permutation(code.replies).tolist():
            said = decoder.add(worker)
            assert said == decoder.decodable and said >= could
            assert decoder.residual <= last + 1e-9
            last, could = decoder.residual, said
        assert could and decoder.decode().exact


@pytest.mark.parametrize("spec", SPECS)
def test_no_replies_give_nothing(spec: str) -> None:
    code = made(spec, 12)
    weights, residual, gain = code.decode([])
    assert not weights.any() and residual == 1.0 and gain == 0.0
    assert code.decoder().residual == 1.0 and not code.decoder().decodable


def test_exact_is_a_bound_on_every_partition() -> None:
    """max|a B - 1| <= 1e-6: a partition that counts five millionths too much is not hidden among many that are right."""
    weights = np.ones(100)
    assert Uncoded(100).judge(weights).exact
    weights[3] += 5e-6
    assert not Uncoded(100).judge(weights).exact


# ------------------------------------------------------------------------------------------- complaints


@pytest.mark.parametrize(
    ("replies", "sentence"),
    [
        ([0, 0, 1], r"workers must be different, got \[0, 0, 1\]"),
        ([0, 12], "a worker's number must be 0 to 11, got 12"),
        ([-1], "a worker's number must be 0 to 11, got -1"),
    ],
)
@pytest.mark.parametrize("spec", ["uncoded", "frc:load=3", "cyclic:stragglers=3"])
def test_workers_out_of_range_or_named_twice(spec: str, replies: list[int], sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        made(spec, 12).decode(replies)
    with pytest.raises(BadInput, match=sentence):
        made(spec, 12).decode_exactly(replies)


@pytest.mark.parametrize(
    ("spec", "replies", "sentence"),
    [
        ("uncoded", range(9), r"9 of 12 replies do not give the exact sum under 'uncoded' \(residual 0.5\); any 12 do"),
        ("frc:load=3", range(3), r"3 of 12 replies .* under 'frc:load=3' \(residual 0.87\); any 10 do"),
        ("cyclic:stragglers=3", range(8), r"8 of 12 replies .* under 'cyclic:stragglers=3' \(residual .*\); any 9 do"),
        ("cyclic:stragglers=3", [], r"0 of 12 replies .* \(residual 1\); any 9 do"),
    ],
)
def test_what_cannot_be_decoded_exactly_is_said(spec: str, replies: Any, sentence: str) -> None:
    with pytest.raises(NotDecodable, match=sentence):
        made(spec, 12).decode_exactly(replies)
    assert issubclass(NotDecodable, BadInput) and issubclass(BadInput, ValueError)


def test_what_can_be_is_given() -> None:
    for spec in SPECS:
        code = made(spec, 12)
        assert code.decode_exactly(range(code.replies)).exact


@pytest.mark.parametrize("workers", [0, -3, 2.0, True, "4", None])
@pytest.mark.parametrize("name", ["uncoded", "frc", "cyclic", "partial"])
def test_the_number_of_workers_is_checked(name: str, workers: Any) -> None:
    rule = " of at least 1" if type(workers) is int else ""  # of another type, the type is what is wrong
    with pytest.raises(BadInput, match=f"workers must be a whole number{rule}, got "):
        codes.code(name, workers=workers)


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("frc:load=5", "frc:load=5 does not exist for 12 workers and 12 partitions: load must divide the number of "
         "partitions and leave at most 12 groups; frc:stragglers=4 always exists; nearest: frc:load=4, frc:load=6, or "
         "10 or 15 workers"),
        ("frc:load=0", "nearest: frc:load=1"),
        ("frc:load=-2", "nearest: frc:load=1"),
        ("frc:load=24", "nearest: frc:load=12, or 24 workers"),
        ("frc:load=1,partitions=24", "frc:load=1 does not exist for 12 workers and 24 partitions"),
        ("frc:load=2,stragglers=1", "frc takes load=… or stragglers=…, not both; stragglers=s is load=s+1 where s+1 divides"),
        ("frc:partitions=0", "partitions must be a whole number of at least 1, got 0"),
        ("frc:stragglers=12", "stragglers must be at least 0 and below workers (12), got 12; to take a step on few replies "
         "use wait=1"),
        ("frc:stragglers=-1", "stragglers must be at least 0 and below workers (12), got -1; to take a step on few replies "
         "use wait=12"),
        ("cyclic:stragglers=12", "stragglers must be at least 0 and below workers (12), got 12"),
        ("cyclic:stragglers=-2", "stragglers must be at least 0 and below workers (12), got -2"),
        ("partial:stragglers=12", "stragglers must be at least 0 and below workers (12), got 12"),
        ("partial:stragglers=3,load=4", "partial:load=4 leaves no private part with stragglers=3; load must be at least 5, "
         "or use frc:stragglers=3"),
        ("partial:stragglers=3,load=-1,inner=cyclic", "or use cyclic:stragglers=3"),
        ("partial:inner=mds", "inner in 'partial:inner=mds' should be one of frc, cyclic, got 'mds'"),
    ],
)  # fmt: skip
def test_codes_that_do_not_exist(spec: str, sentence: str) -> None:
    with pytest.raises(BadInput) as caught:
        codes.code(spec, workers=12)
    assert sentence in str(caught.value)


def test_worker_numbers_that_are_not_whole_are_refused() -> None:
    with pytest.raises(ValueError, match=r"1\.5"):
        Uncoded(3).decode([1.5])  # type: ignore[list-item]


def test_stragglers_that_are_not_whole_are_refused() -> None:
    for build in (codes.FractionalRepetition, codes.CyclicRepetition):
        with pytest.raises(ValueError, match=r"1\.5"):
            build(6, stragglers=1.5)  # type: ignore[arg-type]


@pytest.mark.parametrize("decoder", ["own", "least-squares", "one-step", "algorithmic"])
def test_replies_without_partitions_count_for_nothing(decoder: str) -> None:
    code = codes.code("bgc:load=2", workers=6)
    empty = [worker for worker, (partitions, _) in enumerate(code.rows) if not partitions]
    assert empty
    assert code.decode(empty, decoder=decoder).residual == 1.0
