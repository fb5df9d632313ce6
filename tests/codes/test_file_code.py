"""A code from a file: the same matrix from every kind of file, what is refused, and how many stragglers it tolerates."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

import anyk
from anyk.base.errors import BadInput
from anyk.cli import main
from anyk.codes.file_code import proven_stragglers
from anyk.testing import check_code, check_strategy
from code_oracles import spans_ones

pytestmark = pytest.mark.in_process

B = np.array([[0.5, 1.0, 0.0], [0.0, 1.0, -1.0], [0.5, 0.0, 1.0]])  # Tandon et al. 2017, figure 2


def saved(folder: Path, matrix: Any, kind: str) -> anyk.codes.Code:
    name, _, layout = kind.partition(" ")
    file = folder / f"b.{name}"
    if name == "csv":
        np.savetxt(file, matrix, delimiter=",")
    elif name == "npy":
        np.save(file, matrix)
    elif layout:
        scipy.sparse.save_npz(file, scipy.sparse.coo_array(matrix).asformat(layout))
    else:
        np.savez(file, weights=matrix)
    return anyk.code(f"matrix:file={file}", workers=len(matrix))


@pytest.mark.parametrize("kind", ["csv", "npy", "npz", "npz csr", "npz csc", "npz coo"])
def test_every_kind_of_file_gives_the_same_code(kind: str, tmp_path: Path) -> None:
    code = saved(tmp_path, B, kind)
    assert code.encoding.toarray().tolist() == B.tolist()
    assert (code.partitions, code.load, code.assignment[1], code.tolerates) == (3, 2, (1, 2), 1)
    assert not code.approximate and code.rows[1] == ((1, 2), (1.0, -1.0))
    check_code(code)


def whole(rows: list[list[int]]) -> bool:
    return spans_ones(frozenset(map(tuple, rows)))


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 6).flatmap(lambda m: st.lists(
    st.lists(st.integers(-1, 1), min_size=m, max_size=m), min_size=2, max_size=6)))  # fmt: skip
def test_what_is_tolerated_is_what_rational_arithmetic_says(rows: list[list[int]]) -> None:
    if not whole(rows):
        return
    n = len(rows)
    exact = max(s for s in range(n) if all(
        whole([rows[i] for i in subset]) for r in range(s + 1) for subset in combinations(range(n), n - r)))  # fmt: skip
    assert proven_stragglers(scipy.sparse.csr_array(np.array(rows, dtype=float))) == exact


@pytest.mark.slow
@pytest.mark.parametrize(("spec", "workers", "tolerates"), [
    ("frc:load=10", 1000, 9), ("frc:stragglers=2", 11, 2), ("cyclic:stragglers=3", 14, 3), ("binary:stragglers=2", 13, 2),
    ("bgc:load=3", 20, 0), ("uncoded", 60, 0),
])  # fmt: skip
def test_known_codes_tolerate_as_many_from_a_file(spec: str, workers: int, tolerates: int) -> None:
    assert proven_stragglers(anyk.code(spec, workers=workers).encoding) == tolerates


def test_tolerance_of_large_files_is_a_lower_bound() -> None:
    """Any 140 of 200 rows of this code do; all sets of 1 are tried, not all of 2."""
    code = anyk.code("mds:stragglers=3", workers=180)
    assert 1 <= proven_stragglers(code.encoding) <= 3


def test_a_matrix_without_the_exact_sum_is_approximate(tmp_path: Path) -> None:
    code = saved(tmp_path, np.array([[1.0, 0.0, 1.0], [0.0, 1.0, 1.0], [0.0, 0.0, 0.0]]), "npy")
    assert code.approximate and code.tolerates == 0
    assert anyk.strategy(code).spec == f"{code.spec},wait=2" and not anyk.strategy(code).facts.exact
    check_code(code)
    assert code.decode([0, 1]).residual == pytest.approx(1 / 3)  # weights 2/3 give 2/3, 2/3, 4/3


@pytest.mark.parametrize("kind", ["npy", "npz csr"])
@pytest.mark.parametrize(("change", "sentence"), [
    ((1, 1, np.nan), r"the matrix in '.*b\.np.' : ?row 1 has coefficient nan; they must be finite"),
    ((2, 2, np.inf), r"row 2 has coefficient inf; they must be finite numbers"),
])  # fmt: skip
def test_values_that_are_not_finite_are_refused(kind: str, change: Any, sentence: str, tmp_path: Path) -> None:
    matrix = B.copy()
    matrix[change[:2]] = change[2]
    with pytest.raises(BadInput, match=sentence.replace(" : ?", ": ")):
        saved(tmp_path, matrix, kind)


def test_files_that_are_no_code_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"b.npy' has 3 rows; a code for 4 workers has one for each"):
        saved(tmp_path, B, "npy")
        anyk.code(f"matrix:file={tmp_path / 'b.npy'}", workers=4)
    with pytest.raises(BadInput, match="gives partition 3 to no worker; every column needs a value other than 0"):
        saved(tmp_path, np.hstack([B, np.zeros((3, 1))]), "npz coo")
    twice = scipy.sparse.coo_array(([1.0, 2.0, 1.0, 1.0], ([0, 0, 1, 2], [1, 1, 0, 2])), shape=(3, 3))
    scipy.sparse.save_npz(tmp_path / "twice.npz", twice)
    with pytest.raises(BadInput, match=r"twice.npz' has two values for row 0, column 1; add them up"):
        anyk.code(f"matrix:file={tmp_path / 'twice.npz'}", workers=3)
    scipy.sparse.save_npz(tmp_path / "dia.npz", scipy.sparse.dia_array(np.eye(3)))
    with pytest.raises(BadInput, match="a sparse matrix of format 'dia'; save it as csr, csc or coo"):
        anyk.code(f"matrix:file={tmp_path / 'dia.npz'}", workers=3)
    np.savez(
        tmp_path / "outside.npz", format=b"csr", shape=(3, 3), data=np.ones(3), indices=[0, 1, 7], indptr=[0, 1, 2, 3]
    )
    with pytest.raises(BadInput, match=r"outside.npz cannot be read as a sparse matrix"):
        anyk.code(f"matrix:file={tmp_path / 'outside.npz'}", workers=3)
    np.savez(tmp_path / "two.npz", a=B, b=B)
    with pytest.raises(BadInput, match=r"two.npz' holds 'a', 'b'; a matrix file holds one array"):
        anyk.code(f"matrix:file={tmp_path / 'two.npz'}", workers=3)
    (tmp_path / "text.csv").write_text("1,two\n3,4\n")
    with pytest.raises(BadInput, match="text.csv' cannot be read as a matrix: it holds object, not numbers"):
        anyk.code(f"matrix:file={tmp_path / 'text.csv'}", workers=2)
    with pytest.raises(BadInput, match=r"the extension of the matrix file '.*\.txt' must be .csv, .npy or .npz"):
        (tmp_path / "b.txt").write_text("1")
        anyk.code(f"matrix:file={tmp_path / 'b.txt'}", workers=1)
    with pytest.raises(BadInput, match="code 'matrix' needs file=…"):
        anyk.code("matrix", workers=3)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["%.6f", "%.5g", "float32"])
@pytest.mark.parametrize(("n", "s"), [(30, 3), (60, 6)])
def test_a_rounded_matrix_is_refused_with_the_remedy(how: str, n: int, s: int, tmp_path: Path) -> None:
    matrix = anyk.code(f"cyclic:stragglers={s}", workers=n).encoding.toarray()
    file = tmp_path / ("b.npy" if how == "float32" else "b.csv")
    for factor in (1.0, 1e-3):
        if how == "float32":
            np.save(file, (factor * matrix).astype(np.float32))
        else:
            np.savetxt(file, factor * matrix, delimiter=",", fmt=how)
        with pytest.raises(BadInput, match=r"b\.(npy|csv)' was rounded to .*: \d+ replies give the sum to .* only"):
            anyk.code(f"matrix:file={file}", workers=n)
    np.savetxt(tmp_path / "whole.csv", matrix, delimiter=",", fmt="%.17g")
    assert anyk.code(f"matrix:file={tmp_path / 'whole.csv'}", workers=n).tolerates <= s


@pytest.mark.parametrize(
    "spec", ["frc:stragglers=2", "bgc:load=3", "uncoded", "binary:stragglers=2", "mds:stragglers=1"]
)
def test_short_numbers_that_lose_nothing_are_accepted(spec: str, tmp_path: Path) -> None:
    matrix = anyk.code(spec, workers=12).encoding.toarray()
    np.save(tmp_path / "b.npy", np.round(matrix * 3).astype(np.int8))
    assert anyk.code(f"matrix:file={tmp_path / 'b.npy'}", workers=12).workers == 12


@pytest.mark.slow
def test_a_file_trains_as_the_code_it_was_written_from(tmp_path: Path) -> None:
    cyclic_code = anyk.code("cyclic:stragglers=2", workers=7)
    scipy.sparse.save_npz(tmp_path / "b.npz", cyclic_code.encoding)
    spec = f"matrix:file={tmp_path / 'b.npz'}"
    problem = anyk.problems.from_data("synthetic:rows=70,features=4")
    how = {"workers": 7, "delays": "exp:mean=1", "seed": 2}
    runs = [anyk.train(problem, of, "simulated", steps=6, **how) for of in (spec, cyclic_code)]
    assert runs[0].seconds == runs[1].seconds  # any five replies
    assert runs[0].model == pytest.approx(runs[1].model, abs=1e-12)
    for seed in range(4):
        check_strategy(anyk.strategy(spec + ",wait=5,decoder=one-step", workers=7), steps=8, outages=3, seed=seed)


def test_the_command_line_shows_and_compares_a_file(tmp_path: Path) -> None:
    np.save(tmp_path / "b.npy", B)
    spec, runner = f"matrix:file={tmp_path / 'b.npy'}", CliRunner()
    shown_by_command = runner.invoke(
        main, ["codes", "show", spec, "--workers", "3", "--json", str(tmp_path / "shown.json")]
    )
    assert shown_by_command.exit_code == 0 and "tolerates" in shown_by_command.output, shown_by_command.output
    report = json.loads((tmp_path / "shown.json").read_text())
    assert (report["tolerates"], report["load"], report["rows"][1]) == (1, 2, [[1, 2], [1.0, -1.0]])
    compared = runner.invoke(
        main, ["codes", "compare", spec, "uncoded", "--workers", "3", "--sets", "3", "--json", "-"]
    )
    assert json.loads(compared.stdout)[0]["adversarial"][1] == pytest.approx(0.0, abs=1e-12)
