"""Decoders and decoding methods: the set of replies decides, any matrix is decoded, residual and gain mean what they say."""

from __future__ import annotations

from math import comb
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import anyk
from anyk import codes
from anyk.base.errors import BadInput, NotDecodable
from anyk.cli import main
from anyk.codes import (
    Algorithmic,
    BernoulliCode,
    Code,
    Exact,
    LeastSquaresMethod,
    OneStep,
    Own,
    Uncoded,
)
from anyk.codes.decoders import Removal
from anyk.fleet import facts
from code_oracles import AnyMatrix, dense, least_squares, made, spans_ones, subsets

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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


METHOD_CODES = [
    ("bgc:load=4", 20),
    ("biregular:load=4", 20),
    ("graph:load=4", 20),
    ("frc:load=2", 12),
    ("mds:stragglers=2", 9),
]

METHOD_CODES += [("cyclic:stragglers=3", 10), ("expander:load=4", 20), ("bibd", 13)]


@pytest.mark.parametrize(("spec", "n"), METHOD_CODES)
def test_algorithmic_decoding_descends_to_least_squares(spec: str, n: int) -> None:
    code, random = made(spec, n), np.random.default_rng(n)
    for r in (n // 2, n - 2):
        replied = random.choice(n, r, replace=False)
        counts = [1, 2, 3, 5, 10, 50, 200]
        errors = [code.decode(replied, decoder=Algorithmic(k)).residual for k in counts]
        best = code.decode(replied, decoder=LeastSquaresMethod()).residual
        assert errors[0] <= 1.0 and all(
            later <= earlier + 1e-12 for earlier, later in zip(errors, errors[1:], strict=False)
        )
        assert errors[-1] >= best - 1e-9 and best == pytest.approx(least_squares(code, replied.tolist())[1], abs=1e-8)
        assert code.decode(replied, decoder="algorithmic").residual == errors[5]


@pytest.mark.slow
def test_algorithmic_decoding_finds_the_weights_of_least_norm() -> None:
    code = made("biregular:load=4", 12)
    replied = [0, 1, 2, 5, 7, 8, 11]
    decoding = code.decode(replied, decoder=Algorithmic(20_000))
    assert decoding.weights == pytest.approx(least_squares(code, replied)[0], abs=1e-6)


def test_one_gradient_step_from_zero_by_hand() -> None:
    code = made("frc:load=2", 4)  # nu = 2 x 2 with all replies: column sums 2, row sums 2
    assert code.decode(range(4), decoder=Algorithmic(1)).weights.tolist() == [0.5] * 4
    assert code.decode([0, 2], decoder=Algorithmic(1)).weights.tolist() == [1.0, 0.0, 1.0, 0.0]
    assert code.decode([], decoder=Algorithmic(3)).weights.tolist() == [0.0] * 4


@pytest.mark.parametrize(("spec", "n"), METHOD_CODES)
def test_methods_by_name_and_as_values_are_the_same(spec: str, n: int) -> None:
    code = made(spec, n)
    for name, value in (
        ("own", Own()),
        ("least-squares", LeastSquaresMethod()),
        ("one-step", OneStep()),
        ("algorithmic", Algorithmic()),
    ):
        by_name, by_value = (code.decode(range(n - 2), decoder=how) for how in (name, value))
        assert by_name is by_value
    assert code.decode(range(n), decoder="exact").exact if not spec.startswith("bgc") else True


@pytest.mark.parametrize(("spec", "n"), METHOD_CODES)
def test_remembered_decodings_cannot_be_written(spec: str, n: int) -> None:
    code = anyk.code(spec, workers=n)
    one = code.decode([1, 0, 2])
    assert code.decode([2, 1, 0]) is one and code.decode(np.array([0, 1, 2])) is one and code.decode({0, 1, 2}) is one
    assert code.decode([0, 1, 3]) is not one
    assert code.decode([0, 1, 2], decoder=Algorithmic(7)) is code.decode([0, 1, 2], decoder=Algorithmic(7))
    assert code.decode([0, 1, 2], decoder=Algorithmic(8)) is not code.decode([0, 1, 2], decoder=Algorithmic(7))
    with pytest.raises(ValueError, match="read-only"):
        one.weights[0] = 5.0


def test_the_exact_method_raises_where_no_sum_is_exact() -> None:
    for spec, n in METHOD_CODES:
        code = made(spec, n)
        with pytest.raises(NotDecodable, match=rf"1 of {n} replies do not give the exact sum"):
            code.decode([0], decoder=Exact())
    with pytest.raises(NotDecodable, match="only an approximation"):
        made("bibd", 13).decode(range(12), decoder="exact")


def test_methods_that_do_not_exist() -> None:
    code: Code = made("frc:load=2", 4)
    with pytest.raises(
        BadInput, match="no decoder 'two-step'; there are own, exact, least-squares, one-step, algorithmic"
    ):
        code.decode([0], decoder="two-step")
    for iterations in (0, -3):
        with pytest.raises(BadInput, match=f"iterations must be a whole number of at least 1, got {iterations}"):
            Algorithmic(iterations)


def one_step_error(B: np.ndarray, replied: np.ndarray, rho: float) -> float:
    return float(((rho * B[replied].sum(axis=0) - 1.0) ** 2).sum())


@pytest.mark.parametrize(
    "code",
    [
        made("bgc:load=3", 9),
        made("rbgc:load=2", 9),
        made("sbc:load=3", 9),
        made("biregular:load=3", 9),
        made("expander:load=4", 9),
        made("graph:load=3", 9),
        made("frc:load=3", 9),
        made("mds:stragglers=2", 8),
        made("cyclic:stragglers=2", 8),
        made("bibd", 7),
        made("hetero:probability=0.2,load=3", 8),
        made("partial:stragglers=1,load=3", 4),
        made("bcc:batches=3", 9),
        made("uncoded", 1),
        AnyMatrix(4, ((1, 0, 2), (0, 3, 0), (1, 1, 1), (2, 0, -1))),
    ],
    ids=lambda code: code.spec,
)
def test_expected_one_step_error_is_the_mean_over_all_sets(code: Code) -> None:
    n, B = code.replies, dense(code)
    for r in range(1, n + 1):
        rho = code.partitions * n / (r * B.sum())
        errors = [one_step_error(B, np.array(replied), rho) for replied in subsets(range(n), r, r)]
        assert len(errors) == comb(n, r)
        expected = code.expected_error(r, decoder="one-step")
        assert expected == pytest.approx(np.mean(errors), rel=1e-9, abs=1e-9)
        weights, residual, _ = code.decode(range(r), decoder="one-step")
        assert weights[:r] == pytest.approx([rho] * r) and not weights[r:].any()
        assert code.partitions * residual**2 == pytest.approx(errors[0], rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("replies", [0, 10, -1])
def test_counts_of_replies_out_of_range(replies: int) -> None:
    for spec in ("bgc:load=3", "frc:load=3"):
        with pytest.raises(BadInput, match=f"replies must be 1 to 9, got {replies}"):
            made(spec, 9).expected_error(replies)
    with pytest.raises(BadInput, match=f"replies must be 1 to 9, got {replies}"):
        BernoulliCode(9).drawn_error(replies)


MATRICES = {
    "square": lambda random: random.standard_normal((12, 12)),
    "wide": lambda random: random.standard_normal((9, 15)),
    "tall": lambda random: random.standard_normal((15, 9)),
    "sparse": lambda random: (random.random((14, 12)) < 0.2).astype(float),
    "repeated": lambda random: np.repeat((random.random((5, 12)) < 0.4).astype(float), 3, axis=0),
}


@pytest.mark.parametrize("kind", MATRICES)
def test_weights_and_residuals_are_those_of_a_solve(kind: str) -> None:
    random = np.random.default_rng(1)
    for _ in range(20):
        matrix = MATRICES[kind](random)
        n, m = matrix.shape
        removal = Removal(matrix)
        lost = np.sort(random.choice(n, int(random.integers(0, n - 2)), replace=False))
        remaining = np.setdiff1d(np.arange(n), lost)
        weights = removal.weights(lost)
        assert weights is not None and not weights[lost].any()
        assert np.allclose(
            weights[remaining], np.linalg.lstsq(matrix[remaining].T, np.ones(m), rcond=1e-9)[0], atol=1e-8
        )
        for one, residual in zip(remaining, removal.residuals(lost, remaining), strict=True):
            left = np.setdiff1d(remaining, [one])
            best = np.linalg.lstsq(matrix[left].T, np.ones(m), rcond=1e-9)[0] @ matrix[left]
            assert residual == pytest.approx(np.linalg.norm(best - 1.0) / m**0.5, abs=1e-7)


@pytest.mark.slow
def test_facts_of_large_codes_need_no_iterative_solve(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 300 workers that was a minute."""

    def never(*_: Any) -> Any:
        raise AssertionError("an iterative solve")

    monkeypatch.setattr("anyk.codes.decoders.least_squares", never)
    code_facts = facts(anyk.code("expander", workers=300))
    assert round(code_facts.expected, 5) == 0.04721 and code_facts.worst > 0.16  # as iterative solves found


@pytest.mark.slow
def test_the_table_of_codes_tells_how_far_it_is() -> None:
    done = CliRunner().invoke(main, ["list", "codes", "--workers", "4", "--json", "-"])
    assert done.exit_code == 0
    assert done.stdout.startswith("[") and "looking at codes for 4 workers" in done.stderr
