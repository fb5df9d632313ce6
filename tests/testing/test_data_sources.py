"""The suite that defines what a source of data is: anyk's own pass, and each thing that it must find."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse

import anyk
from anyk.problems.data import Dataset, assemble, load, sources
from anyk.testing import check_data_source

pytestmark = pytest.mark.in_process


@pytest.mark.parametrize(
    "spec", ["synthetic:rows=60,features=4", "synthetic:rows=60,features=4,task=regression",
             "synthetic:rows=90,features=4,task=multiclass", "digits"],
)  # fmt: skip
def test_anyks_sources_pass(spec: str) -> None:
    check_data_source(spec)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    lines = ["age,town,income", *(f"{20 + i % 40},{'abc'[i % 3]},{i % 40 + i % 7}" for i in range(60))]
    file = tmp_path / "people.csv"
    file.write_text("\n".join(lines) + "\n")
    return file


def test_a_table_passes(table: Path) -> None:
    check_data_source("file", file=table)
    check_data_source("file:target=town", file=table)


@pytest.mark.slow
@pytest.mark.parametrize(("spec", "name"), [("kc-housing", "kc_house_data"), ("mnist-idx", "t10k-images")])
def test_sources_of_files_pass(spec: str, name: str, data_folder: Path) -> None:
    file = next(iter(data_folder.rglob(f"{name}*")), None)
    if file is None:
        pytest.skip(f"no {name} among the data")
    check_data_source(spec, file=file)


WRONG: dict[str, tuple[Callable[..., Any], str]] = {}


def wrong(sentence: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def add(source: Callable[..., Any]) -> Callable[..., Any]:
        WRONG[f"test-{source.__name__.replace('_', '-')}"] = source, sentence
        return source

    return add


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    for name, (source, _) in WRONG.items():
        sources.register(name)(source)
    yield
    for name in WRONG:
        del sources.entries[name]


def rows(count: int = 60) -> tuple[Any, Any]:
    draws = np.random.default_rng(0)
    X = draws.normal(size=(count, 3))
    return X, np.where(X[:, 0] > 0, 1.0, -1.0)


def binary(**changes: Any) -> Dataset:
    X, y = rows()
    return replace(assemble(X, y, "binary", ("no", "yes"), test=0.2, seed=0), **changes)


def test_what_is_right_passes() -> None:
    sources.register("test-right")(lambda: binary())
    try:
        check_data_source("test-right")
    finally:
        del sources.entries["test-right"]


@wrong("returned tuple, not a Dataset; anyk.problems.data.assemble makes one")
def pair() -> Any:
    return rows()


@wrong("X_train is of float32, not float64")
def single() -> Any:
    return binary(X_train=binary().X_train.astype(np.float32))


@wrong("y_test has shape .12, 1., but X_test has 12 rows")
def column() -> Any:
    return binary(y_test=binary().y_test[:, None])


@wrong("y_train has shape .47,., but X_train has 48 rows")
def short() -> Any:
    return binary(y_train=binary().y_train[1:])


@wrong("training rows have 3 columns, test rows 2")
def other_columns() -> Any:
    return binary(X_test=binary().X_test[:, :2])


@wrong("X_test has values that are missing or not finite")
def missing_values() -> Any:
    X = binary().X_test.copy()
    X[0, 0] = np.nan
    return binary(X_test=X)


@wrong("y_train has values that are missing")
def missing_targets() -> Any:
    y = binary().y_train.copy()
    y[0] = np.inf
    return binary(y_train=y)


@wrong("X_train has indices that are not sorted, or twice")
def unsorted() -> Any:
    X = scipy.sparse.csr_array(binary().X_train)
    X.indices = np.ascontiguousarray(X.indices.reshape(-1, 3)[:, ::-1].reshape(-1))
    X.has_canonical_format = False
    return binary(X_train=scipy.sparse.csr_array((X.data, X.indices, X.indptr), shape=X.shape))


@wrong("X_train is a coo_array")
def other_format() -> Any:
    return binary(X_train=scipy.sparse.coo_array(binary().X_train))


@wrong("targets of binary data are -1 and 1, got .0.0.")
def zero_and_one() -> Any:
    return binary(y_train=(binary().y_train + 1) / 2)


@wrong("targets of multiclass data are 0 to 1 with 2 classes, got .-1.0.")
def from_minus_one() -> Any:
    return binary(task="multiclass")


@wrong("data for regression have no classes")
def classes_of_numbers() -> Any:
    return binary(task="regression")


@wrong("classes are named twice")
def same_names() -> Any:
    return binary(classes=("a", "a"))


@wrong("task is 'classification'")
def unknown_task() -> Any:
    return binary(task="classification")


@wrong("all training rows are of one class")
def one_class() -> Any:
    return binary(y_train=np.ones(48))


@wrong("NumPy's own random numbers")
def global_draws() -> Any:
    return binary(X_train=np.random.normal(size=(48, 3)))  # noqa: NPY002


@wrong("NumPy's own random numbers")
def global_seed() -> Any:
    np.random.seed(0)  # noqa: NPY002
    return binary()


@wrong("X_train differs from one call to the next")
def unseeded() -> Any:
    return binary(X_train=np.random.default_rng().normal(size=(48, 3)))


@wrong("classes differ from one call to the next")
def any_order() -> Any:
    return binary(classes=tuple(random.sample(["a" * i for i in range(1, 40)], 2)))


@wrong("fails: KeyError: 'columns'")
def raising() -> Any:
    return {}["columns"]


@wrong("progress.. receives 0.5, not a sentence")
def talkative(*, progress: Any = None) -> Any:
    if progress is not None:
        progress(0.5)
    return binary()


@wrong("the source of .* fails: TypeError")
def needs_progress(*, progress: Any) -> Any:
    progress("loading")
    return binary()


@pytest.mark.parametrize("name", list(WRONG))
def test_what_is_wrong_is_found(name: str) -> None:
    sentence = WRONG[name][1]
    if name == "test-pair":
        with pytest.raises(anyk.BadInput, match=sentence):
            load(name)
        return
    with pytest.raises(AssertionError, match=sentence):
        check_data_source(name)


# ------------------------------------------------------------------------------------------- files


def numbers(file: Path) -> Dataset:
    cells = [line.split(",") for line in file.read_text(encoding="utf-8").splitlines()]
    values = np.array(cells, dtype=float)
    return assemble(values[:, 1:], values[:, 0], "regression", test=0.2, seed=0)


def careful(*, file: Path) -> Dataset:
    try:
        return numbers(file)
    except (OSError, ValueError, IndexError) as error:
        raise anyk.BadInput(f"'{file}' is no table of numbers ({error})") from None


def careless(*, file: Path) -> Dataset:
    return numbers(file)


def of_missing(*, file: Path) -> Dataset:
    try:
        return numbers(file)
    except OSError as error:
        raise anyk.BadInput(str(error)) from None


def forgiving(*, file: Path) -> Dataset:
    try:
        return careful(file=file)
    except anyk.BadInput:
        return binary()


def writing(*, file: Path) -> Dataset:
    data = careful(file=file)
    file.write_text(file.read_text() + "\n")
    return data


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        (careful, None),
        (careless, "a file that is missing ends in FileNotFoundError.*raise anyk.BadInput with a sentence"),
        (of_missing, "a file that is (empty|truncated|damaged) ends in (IndexError|ValueError|UnicodeDecodeError)"),
        (forgiving, "a file that is missing is read without a word"),
        (writing, "the source changes its file"),
    ],
)
def test_files_that_cannot_be_read_are_refused(source: Any, sentence: str | None, tmp_path: Path) -> None:
    draws = np.random.default_rng(0).normal(size=(30, 4)).round(3)
    file = tmp_path / "numbers.csv"
    file.write_text("\n".join(",".join(map(str, row)) for row in draws))
    sources.register("test-file")(source)
    try:
        if sentence is None:
            check_data_source("test-file", file=file)
        else:
            with pytest.raises(AssertionError, match=sentence):
                check_data_source("test-file", file=file)
    finally:
        del sources.entries["test-file"]


def test_a_source_that_does_not_exist_is_bad_input() -> None:
    with pytest.raises(anyk.BadInput, match="no data set 'digit'; did you mean 'digits'"):
        check_data_source("digit")
