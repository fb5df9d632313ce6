"""Codes as their users make and read them: nothing depends on what is read first, and what cannot be is refused."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_array, sparray

import anyk
from anyk.base.errors import BadInput
from anyk.codes import Code, MatrixCode, ProgressCode, registry
from anyk.codes.decoders import SetDecoder
from anyk.codes.made import check_code

pytestmark = pytest.mark.in_process

SPECS = [
    *(entry.name for entry in registry if entry.build.__module__.startswith("anyk.") and entry.name != "matrix"),
    *("nested:kind=cyclic", "progress:placement=random", "draco:kind=cyclic", "tree:children=2,stragglers=0"),
    *("cyclic:stragglers=0", "frc:stragglers=1", "kronecker:left=(frc:stragglers=1),right=cyclic,split=2"),
]
READ = ("rows", "encoding", "norms", "decoder")


def made(spec: str) -> Code:
    return anyk.code(spec, workers=7 if spec.startswith("bibd") else 6)


def seen(code: Code, what: str) -> Any:
    if what == "decoder":
        decoder = code.decoder()
        for reply in range(1, code.replies):
            decoder.add(reply)
        return decoder.decode().weights.tolist(), code.decode(range(code.replies)).weights.tolist()
    value = getattr(code, what)
    return value.toarray().tolist() if isinstance(value, sparray) else np.array(value, dtype=object).tolist()


@pytest.mark.parametrize("spec", SPECS)
def test_what_is_read_first_changes_nothing(spec: str) -> None:
    alone = {what: seen(made(spec), what) for what in READ}
    for first in READ:
        code = made(spec)
        seen(code, first)
        assert {what: seen(code, what) for what in reversed(READ)} == alone, first


def arrays(value: Any, at: str, known: set[int]) -> list[tuple[str, np.ndarray[Any, Any]]]:
    """All arrays below a value, and where they are."""
    if id(value) in known or at.endswith("_remembered"):
        return []
    known.add(id(value))
    if isinstance(value, np.ndarray):
        return [(at, value)]
    if isinstance(value, (tuple, list)):
        return [array for i, item in enumerate(value) for array in arrays(item, f"{at}[{i}]", known)]
    return [
        array for name, item in getattr(value, "__dict__", {}).items() for array in arrays(item, f"{at}.{name}", known)
    ]


def read(code: Code) -> Code:
    """A code, when all that it keeps has been made."""
    for name in dir(type(code)):
        if not callable(getattr(type(code), name)) and not name.startswith("__") and name != "relearned":
            getattr(code, name)
    for what in READ:
        seen(code, what)
    code.finish_times(np.ones(code.replies))
    return code


@pytest.mark.parametrize("spec", SPECS)
def test_every_array_of_a_code_and_of_its_copies_is_read_only(spec: str) -> None:
    code = read(made(spec))
    for copied in (code, copy.copy(code), copy.deepcopy(code), pickle.loads(pickle.dumps(code))):
        assert [path for path, array in arrays(copied, spec, set()) if array.flags.writeable] == []
        assert {what: seen(copied, what) for what in READ} == {what: seen(code, what) for what in READ}


def test_copies_of_a_users_code_leave_its_own_arrays_as_they_are() -> None:
    code = Own(7, good(), scratch=np.zeros(3))
    copied = copy.deepcopy(code)
    assert copied.scratch.flags.writeable and not copied.encoding.data.flags.writeable  # type: ignore[attr-defined]


# --------------------------------------------------------------------------------------------- codes of one's own


class Own(Code):
    """A code of a user's, by its rows."""

    spec, rows, partitions, tolerates = "own", (), 7, 0

    def __init__(self, workers: int, rows: Any, **given: Any) -> None:
        self.__dict__.update(given, workers=workers, rows=rows)


def good(**changed: tuple[Any, Any]) -> list[tuple[Any, Any]]:
    rows: list[tuple[Any, Any]] = [((i, (i + 1) % 7), (1.0, 0.5)) for i in range(7)]
    for name, row in changed.items():
        rows[int(name.removeprefix("row"))] = row
    return rows


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"rows": good(row6=((0, 7), (1.0, 1.0)))}, "a partition of row 6 must be 0 to 6, got 7"),
        ({"rows": good(row2=((-1, 3), (1.0, 1.0)))}, "a partition of row 2 must be 0 to 6, got -1"),
        ({"rows": good(row2=((3, 3), (1.0, 1.0)))}, "row 2 holds partition 3 twice; add its coefficients up"),
        ({"rows": good(row2=((3.5, 3), (1.0, 1.0)))}, "row 2 holds partition 3.5, which is not a whole number"),
        (
            {"rows": good(row2=((3, 4), (1.0,)))},
            "the number of row 2's coefficients must be 2, one for each of its partitions, got 1",
        ),
        ({"rows": good(row2=((3, 4), (1.0, float("nan"))))}, "row 2 has coefficient nan; they must be finite numbers"),
        ({"rows": good(row2=((3, 4), (float("inf"), 1.0)))}, "row 2 has coefficient inf; they must be finite numbers"),
        ({"rows": good(row2=((3, 4), (1.0, 1j)))}, "row 2 has coefficient 1j; they must be finite numbers"),
        ({"rows": good(row2=((3, 4), (1.0, "x")))}, "row 2 has coefficient 'x'; they must be finite numbers"),
        ({"rows": good(row2=(3, 4))}, "row 2 must be (partitions, coefficients), got (3, 4)"),
        ({"rows": good()[:6]}, "the code has 6 rows; 7 workers with 1 message each need 7"),
        ({"rows": good(), "messages": 2}, "the code has 7 rows; 7 workers with 2 messages each need 14"),
        (
            {"rows": good(), "blocks": 2},
            "the number of row 0's coefficients must be 4, 2 (blocks=2) for each of its partitions, got 2",
        ),
        ({"rows": good(), "partitions": 7.5}, "partitions must be a whole number of at least 1, got 7.5"),
        ({"rows": good(), "partitions": 0}, "partitions must be a whole number of at least 1, got 0"),
        ({"rows": good(), "tolerates": 7}, "tolerates must be 0 to 6 stragglers, got 7"),
        ({"rows": good(), "tolerates": -1}, "tolerates must be 0 to 6 stragglers, got -1"),
        ({"rows": 3}, "rows must be a sequence, got 3"),
    ],
)
def test_rows_that_cannot_be_are_refused_when_the_code_is_made(keys: dict[str, Any], why: str) -> None:
    with pytest.raises(BadInput) as error:
        Own(7, **keys)
    assert str(error.value) == f"Own: {why}"


class OwnWeights(Code):
    """A code of a user's in pairs of workers, which decodes in its own way."""

    spec, partitions, tolerates = "own", 4, 1
    rows = (((0, 1), (1.0, 1.0)), ((0, 1), (1.0, 1.0)), ((2, 3), (1.0, 1.0)), ((2, 3), (1.0, 1.0)))

    def __init__(self, weights: Callable[[np.ndarray[Any, Any]], Any]) -> None:
        self.__dict__.update(workers=4, weights=weights)

    def _solve(self, replies: Any) -> Any:
        right = np.zeros(4)
        right[[0 if 0 in replies else 1, 2 if 2 in replies else 3]] = 1.0
        return self.weights(right)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("weights", "why"),
    [
        (lambda right: right[:2], "must be numbers, shape (4,), got float64 numbers, shape (2,)"),
        (lambda right: np.ones((4, 4)), "must be numbers, shape (4,), got float64 numbers, shape (4, 4)"),
        (lambda right: None, "must be numbers, shape (4,), got object numbers, shape ()"),
        (lambda right: right + 1j, "must be numbers, shape (4,), got complex128 numbers, shape (4,)"),
        (lambda right: right * np.nan, "are not finite: [nan, nan, nan, nan]"),
        (lambda right: np.ones(4), "must be 0 for others, got [1.0, 1.0, 1.0, 1.0]"),
    ],
)
def test_weights_of_an_own_code_are_checked(weights: Any, why: str) -> None:
    with pytest.raises(BadInput) as error:
        OwnWeights(weights).decode([1, 2, 3])
    assert str(error.value) == f"the weights of 'own' for the replies [1, 2, 3] {why}"


def test_weights_of_an_own_code_stay_the_users() -> None:
    kept = np.zeros(4)

    def same(right: Any) -> Any:
        kept[:] = right
        return kept

    for weights in (lambda right: right.astype("float32"), lambda right: right.astype(int), list, same):
        code = OwnWeights(weights)
        assert code.decode([1, 2, 3]).weights.tolist() == [0.0, 1.0, 1.0, 0.0]
        assert code.decode([0, 1, 3]).exact
        run = anyk.train(
            anyk.problems.from_data("synthetic:rows=70,features=3"),
            code,
            "simulated",
            workers=4,
            delays="exp:mean=1",
            steps=3,
        )
        assert run.receipt(2).residual < 1e-6
        run.close()
    kept[:] = 2.0  # nobody else reads it, nor is it read-only


class Hasty(SetDecoder):
    """Says after two replies that they suffice."""

    def __init__(self, code: Code, *, says: bool) -> None:
        super().__init__(code)
        self._says = says

    def add(self, worker: int) -> bool:
        super().add(worker)
        self.decodable = self._says and len(self._replied) >= 2
        return len(self._replied) >= 2


@pytest.mark.parametrize("says", [True, False])
def test_a_decoder_that_is_too_hasty_ends_the_run(says: bool) -> None:
    class Decoded(OwnWeights):
        def decoder(self) -> Hasty:
            return Hasty(self, says=says)

        def _solve(self, replies: Any) -> Any:
            return Code._solve(self, replies)

    problem = anyk.problems.from_data("synthetic:rows=70,features=3")
    with pytest.raises(anyk.RunFailed) as error:
        anyk.train(problem, Decoded(list), "simulated", workers=4, delays="hetero:means=1/1/9/9", steps=9)
    assert str(error.value).endswith(
        "the decoder of 'own' says that 2 replies give the exact sum, and its weights leave a residual of 0.707"
    )


def test_rows_of_arrays_are_taken() -> None:
    problem = anyk.problems.from_data("synthetic:rows=70,features=3")
    arrays_ = Own(7, [(np.array(p), np.array(c)) for p, c in good()])
    runs = [
        anyk.train(problem, anyk.strategies.Rounds(code), anyk.clusters.Simulated(7), steps=3)
        for code in (arrays_, Own(7, tuple(good())))
    ]
    assert runs[0].model.tobytes() == runs[1].model.tobytes()
    for run in runs:
        assert run.receipt(2).residual < 1e-6
        run.close()


@dataclass(frozen=True)
class OwnMatrix(MatrixCode):
    """A code of a user's, by its matrix."""

    workers: int
    matrix: Any = field(compare=False)
    spec = "own-matrix"

    def _matrix(self) -> Any:
        return self.matrix


def broken(**parts: Any) -> csr_array:
    """A sparse matrix that SciPy did not look at."""
    matrix = csr_array(np.eye(3))
    for name, value in parts.items():
        setattr(matrix, name, np.array(value))
    return matrix


@pytest.mark.parametrize(
    ("matrix", "why"),
    [
        (np.ones((3, 4)), "the encoding must have shape (3, 3), got (3, 4)"),
        (np.ones(3), "the encoding must have shape (3, 3), got (3,)"),
        (np.array([[1.0, 0, 0], [0, float("nan"), 0], [0, 0, 1]]), "row 1 has coefficient nan; they must be finite"),
        (1j * np.eye(3), "the encoding must be a matrix of real numbers, got complex128"),
        (np.array([["x"] * 3] * 3), "the encoding must be a matrix of real numbers, got <U1"),
        (broken(indices=[0, 1, 9]), "row 2 holds partition 9; there are 3 (0 to 2)"),
        (broken(indices=[0, -1, 2]), "row 1 holds partition -1; there are 3 (0 to 2)"),
        (broken(indptr=[0, 1, 2, 99]), "the encoding is not a valid sparse matrix"),
    ],
)
def test_an_impossible_matrix_is_refused_when_the_code_is_made(matrix: Any, why: str) -> None:
    with pytest.raises(BadInput, match="^OwnMatrix: ") as error:
        OwnMatrix(3, matrix)
    assert why in str(error.value)


def test_a_users_matrix_of_any_form_is_copied() -> None:
    unsorted = csr_array((np.array([2.0, 1.0, 1.0, 1.0]), np.array([2, 0, 1, 2]), np.array([0, 2, 3, 4])), shape=(3, 3))
    code = OwnMatrix(3, unsorted)
    assert code.rows[0] == ((0, 2), (1.0, 2.0))
    assert unsorted.indices.tolist() == [2, 0, 1, 2]
    unsorted.data[:] = 0.0
    assert code.encoding.toarray().tolist() == [[1, 0, 2], [0, 1, 0], [0, 0, 1]]
    assert OwnMatrix(3, np.eye(3, dtype=int)).rows[1] == ((1,), (1.0,))


def test_an_encoding_of_ones_own_must_be_that_of_the_rows() -> None:
    class Twice(Own):
        @cached_property
        def encoding(self) -> Any:
            return csr_array(2.0 * Own(7, self.rows).encoding)

    with pytest.raises(BadInput, match="^Twice: the encoding is not that of the rows: row 0 differs$"):
        Twice(7, good())


def test_orders_that_are_not_of_the_rows_are_refused() -> None:
    class Orders(ProgressCode):
        spec, rows, partitions, tolerates, orders = "orders", (((0,), (1.0,)), ((1,), (1.0,))), 2, 0, ()

        def __init__(self, workers: int, orders: Any) -> None:
            self.__dict__.update(workers=workers, orders=orders)

        def watch(self) -> Any:
            raise NotImplementedError

    assert Orders(2, ((0,), (1,))).load == 1
    with pytest.raises(
        BadInput, match=r"^Orders: orders\[1\] must list the partitions of worker 1, \(1,\), got \(2,\)$"
    ):
        Orders(2, ((0,), (2,)))


# --------------------------------------------------------------------------------------------- anyk's own

HOSTILE = [-1, 0, 2.5, float("nan"), float("inf"), "x", (), (0.1,), [1], True, None, 1j]
OWN = [
    *(entry.build for entry in registry if entry.build.__module__.startswith("anyk.") and entry.name != "matrix"),
    *(anyk.codes.BernoulliCode, anyk.codes.RegularisedBernoulliCode, anyk.codes.StochasticBlockCode),
    *(anyk.codes.EdgeCode, anyk.codes.KroneckerCode),
]


@pytest.mark.parametrize("build", OWN, ids=lambda build: build.__name__)
def test_any_parameter_makes_a_sound_code_or_is_refused(build: Any) -> None:
    for name in inspect.signature(build).parameters:
        for value in HOSTILE:
            keys: dict[str, Any] = {"workers": 7 if build is anyk.codes.BlockDesignCode else 6}
            if build is anyk.codes.KroneckerCode:
                keys = {"left": anyk.codes.Uncoded(2), "right": anyk.codes.Uncoded(3)}
            try:
                code = build(**keys | {name: value})
            except BadInput:
                continue
            check_code(code)
            assert anyk.code(code.spec, workers=code.workers).rows == code.rows, (name, value)


class Changing(Code):
    """Its rows are a list that somebody keeps and changes."""

    approximate = True
    spec, partitions, tolerates = "changing", 7, 0

    def __init__(self) -> None:
        self.workers = 7
        self.kept = [((i,), (1.0,)) for i in range(7)]

    @property
    def rows(self) -> list[tuple[tuple[int, ...], tuple[float, ...]]]:
        return self.kept


def test_rows_that_change_after_the_code_was_made_change_nothing() -> None:
    code = Changing()
    code.kept[6] = ((7,), (1.0,))
    assert code.decode(range(7)).residual == 0.0
    del code.__dict__["encoding"]
    with pytest.raises(BadInput, match="a partition of a row must be 0 to 6, got 7"):
        code.decode(range(6))
