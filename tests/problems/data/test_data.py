"""Data sets: the real files' published dimensions, every format's round trip, splits, and each error's sentence."""

from __future__ import annotations

import bz2
import csv
import gzip
import http.client
import os
import struct
import sys
import tracemalloc
import urllib.error
from collections import Counter
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import sparse

from anyk.base.errors import BadInput, MissingPackage
from anyk.problems import from_data, from_recipe
from anyk.problems.data import Column, Dataset, load, sources
from anyk.problems.data.dataset import assemble, read_target
from anyk.tables import limit, read_csv

REAL = Path(os.environ.get("ANYK_DATA", Path(__file__).parents[3] / "../shared/data"))


def real(name: str) -> Path:
    if not (REAL / name).exists():
        pytest.skip(f"{name} is not in {REAL}; set ANYK_DATA to the folder that has it")
    return REAL / name


def rows_of(file: Path) -> list[dict[str, str]]:
    with gzip.open(file, "rt") as lines:
        return list(csv.DictReader(lines))


def everything(data: Dataset) -> tuple[Any, np.ndarray]:
    stack = sparse.vstack if sparse.issparse(data.X_train) else np.vstack
    return stack([data.X_train, data.X_test]), np.concatenate([data.y_train, data.y_test])


def same(one: Dataset, two: Dataset) -> bool:
    def equal(a: Any, b: Any) -> bool:
        return a.shape == b.shape and (abs(a - b).sum() == 0)

    return all(equal(getattr(one, k), getattr(two, k)) for k in ("X_train", "y_train", "X_test", "y_test"))


@pytest.fixture(scope="module")
def amazon() -> Dataset:
    return load("amazon", file=real("amazon_employee_access_train.csv.gz"))


@pytest.fixture(scope="module")
def kc_housing() -> Dataset:
    return load("kc-housing", file=real("kc_house_data.csv.gz"))


# The real files, against the numbers in ErasureHead's Table 1 and against a count by hand.


@pytest.mark.slow
def test_amazon_has_the_published_dimension_and_rows(amazon: Dataset) -> None:
    assert amazon.X_train.shape == (26_215, 241_915)
    assert amazon.X_test.shape == (32_769 - 26_215, 241_915)
    assert (amazon.name, amazon.task, amazon.classes) == ("amazon", "binary", ("0", "1"))
    assert set(amazon.y_train) == set(amazon.y_test) == {-1.0, 1.0}


def test_kc_housing_has_the_published_dimension_and_rows(kc_housing: Dataset) -> None:
    assert kc_housing.X_train.shape == (17_290, 27_654)
    assert kc_housing.X_test.shape == (21_613 - 17_290, 27_654)
    assert (kc_housing.name, kc_housing.task, kc_housing.classes) == ("kc-housing", "regression", ())


@pytest.mark.parametrize(("name", "ones"), [("amazon", 9 + 34 + 1), ("kc_housing", 18 + 1)])
def test_one_hot_rows_are_ones_with_a_constant_last(name: str, ones: int, request: pytest.FixtureRequest) -> None:
    data = request.getfixturevalue(name)
    for X in (data.X_train, data.X_test):
        assert isinstance(X, sparse.csr_array)
        assert (X.dtype, X.indices.dtype, X.indptr.dtype) == (np.float64, np.int32, np.int32)
        assert X.has_sorted_indices
        assert (X.data == 1).all()
        assert (np.diff(X.indptr) == ones).all()
        assert (X.indices[X.indptr[1:] - 1] == X.shape[1] - 1).all()


@pytest.mark.slow
def test_amazon_columns_count_what_a_count_by_hand_counts(amazon: Dataset) -> None:
    rows = rows_of(real("amazon_employee_access_train.csv.gz"))
    names = [name for name in rows[0] if name != "ACTION"]
    groups = [(a,) for a in range(9)] + [p for p in combinations(range(9), 2) if p not in {(5, 7), (2, 3)}]
    by_hand = [len(rows)]
    for group in groups:
        by_hand += Counter(tuple(row[names[i]] for i in group) for row in rows).values()
    X, _ = everything(amazon)
    assert sorted(by_hand) == sorted(X.sum(axis=0))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["amazon", "kc_housing"])
def test_rows_can_be_read_back_from_the_encoding(name: str, request: pytest.FixtureRequest) -> None:
    data = request.getfixturevalue(name)
    file = {"amazon": "amazon_employee_access_train.csv.gz", "kc_housing": "kc_house_data.csv.gz"}[name]
    rows = rows_of(real(file))
    target = {"amazon": "ACTION", "kc_housing": "price"}[name]
    names = [column for column in rows[0] if column not in {"ACTION", "id", "date", "price"}]
    values = [np.unique([float(row[column]) for row in rows]) for column in names]
    X, y = everything(data)
    starts = np.cumsum([0, *map(len, values)])
    ones = X.indices.reshape(X.shape[0], -1)[:, : len(names)]  # the blocks stand in the order of the columns
    decoded = np.column_stack([values[i][ones[:, i] - starts[i]] for i in range(len(names))])
    labels = (y + 1) / 2 if name == "amazon" else y * 1e6
    expected = np.array([[float(row[c]) for c in [*names, target]] for row in rows])
    got = np.column_stack([decoded, labels.round(3)])
    assert Counter(map(tuple, expected)) == Counter(map(tuple, got))  # so no row is lost, doubled or in both parts


def test_mnist_test_images_split_80_20() -> None:
    folder = real("t10k-images-idx3-ubyte.gz").parent
    data = load("mnist-idx", file=folder)
    assert data.X_train.shape == (8000, 785) and data.X_test.shape == (2000, 785)
    X, y = everything(data)
    assert X.min() == 0 and X.max() == 1 and (X[:, -1] == 1).all()
    assert data.classes == tuple("0123456789")
    assert np.bincount(y.astype(int)).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert same(data, load("mnist-idx", file=folder / "t10k-images-idx3-ubyte.gz"))


def test_digits() -> None:
    data = load("digits")
    assert data.X_train.shape == (1437, 65) and data.X_test.shape == (360, 65)
    assert data.task == "multiclass" and data.classes == tuple("0123456789")
    X, y = everything(data)
    assert X.min() == 0 and X.max() == 1 and (X[:, -1] == 1).all() and X.dtype == np.float64
    assert np.bincount(y.astype(int)).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


def hide_pandas(monkeypatch: pytest.MonkeyPatch) -> None:
    def find_spec(name: str, *_: Any) -> None:
        if name == "pandas":
            raise ImportError(name)

    monkeypatch.delitem(sys.modules, "pandas", raising=False)
    monkeypatch.setattr(sys, "meta_path", [SimpleNamespace(find_spec=find_spec), *sys.meta_path])


# The network, replaced by a stub: nothing here reaches out.


@pytest.mark.slow
def test_fetching_amazon_gives_what_the_file_gives(amazon: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    import pandas

    frame = pandas.read_csv(real("amazon_employee_access_train.csv.gz"), dtype=str).astype("category")
    asked, said = [], []

    def fetch(**arguments: Any) -> Any:
        asked.append(arguments)
        return SimpleNamespace(frame=frame.rename(columns={"ACTION": "target"}))  # OpenML's name for it

    monkeypatch.setattr("sklearn.datasets.fetch_openml", fetch)
    assert same(load("amazon", progress=said.append), amazon)
    assert asked == [{"data_id": 4135, "as_frame": True}]
    assert said == ["fetching 'amazon' from OpenML"]


def test_fetching_kc_housing_gives_what_the_file_gives(kc_housing: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    import pandas

    frame = pandas.read_csv(real("kc_house_data.csv.gz"), dtype={"zipcode": "category"})
    monkeypatch.setattr("sklearn.datasets.fetch_openml", lambda **_: SimpleNamespace(frame=frame))
    assert same(load("kc-housing"), kc_housing)


@pytest.mark.parametrize("name", ["amazon", "kc-housing", "covertype"])
@pytest.mark.parametrize(
    "failure",
    [
        urllib.error.URLError("no route"),
        TimeoutError("no route"),
        ValueError("no route"),
        http.client.BadStatusLine("no route"),
    ],
)
def test_no_network_is_one_sentence(name: str, failure: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fetch(**_: Any) -> Any:
        raise failure

    monkeypatch.setattr("sklearn.datasets.fetch_openml", fetch)
    monkeypatch.setattr("sklearn.datasets.fetch_covtype", fetch)
    with pytest.raises(
        BadInput, match=f"'{name}' could not be fetched from .*no route.*give a local copy with --data-file"
    ):
        load(name)


def test_fetched_frame_without_the_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    import pandas

    frame = pandas.DataFrame({"price": [1.0, 2.0], "bedrooms": [1, 2]})
    monkeypatch.setattr("sklearn.datasets.fetch_openml", lambda **_: SimpleNamespace(frame=frame))
    with pytest.raises(
        BadInput, match=r"data set 42092 of OpenML lacks bathrooms, .* which data set 'kc-housing' needs"
    ):
        load("kc-housing")


@pytest.mark.parametrize("name", ["amazon", "kc-housing"])
def test_fetching_without_pandas(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hide_pandas(monkeypatch)
    with pytest.raises(
        MissingPackage,
        match=rf"fetching data set '{name}' from OpenML needs pandas, which is not installed; .*pip install .*\[data\]'$",
    ):
        load(name)


def test_files_without_text_need_no_pandas(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hide_pandas(monkeypatch)
    for name in ("d.npz", "d.svm"):
        assert len(load("file", file=write(tmp_path / name, X0, Y0)).y_train) == 6


COVER = np.column_stack([np.arange(12).repeat(54).reshape(12, 54) % 5, [1, 2, 7, 1, 2, 2, 3, 1, 1, 2, 5, 1]])


@pytest.mark.parametrize("how", ["fetched", "plain", "gz"])
def test_covertype_keeps_types_1_and_2(how: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    lines = "".join(",".join(map(str, row)) + "\n" for row in COVER)
    file = None
    if how == "fetched":
        bunch = SimpleNamespace(data=COVER[:, :-1].astype(float), target=COVER[:, -1].astype(np.int32))
        monkeypatch.setattr("sklearn.datasets.fetch_covtype", lambda: bunch)
    else:
        file = tmp_path / ("covtype.data" + (".gz" if how == "gz" else ""))
        file.write_bytes(gzip.compress(lines.encode()) if how == "gz" else lines.encode())
    data = load("covertype", file=file)
    X, y = everything(data)
    assert X.shape == (9, 54 * 5 + 1) and X.nnz == 9 * 55 and (X[:, [-1]].toarray() == 1).all()
    assert sorted(y) == [-1] * 5 + [1] * 4 and data.classes == ("1", "2")
    first = COVER[COVER[:, -1] <= 2, 0]
    types = X[:, :5].toarray().argmax(axis=1)
    assert Counter(zip(types, y, strict=True)) == Counter(
        zip(first, np.where(COVER[COVER[:, -1] <= 2, -1] == 2, 1, -1), strict=True)
    )


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        (
            "amazon",
            "id,price\n1,2\n3,4\n",
            r"lacks ACTION, RESOURCE, .* which data set 'amazon' needs; its columns: 'id', 'price'",
        ),
        ("kc-housing", "ACTION,RESOURCE\n1,2\n3,4\n", r"lacks price, bedrooms, .* which data set 'kc-housing' needs"),
        ("covertype", "1,2\n3,4\n", r"does not look like covtype.data: 55 columns are needed.*got 2"),
        ("covertype", "a,b\n3,4\n", r"column 'column 0' of .* holds text, not numbers"),
        ("covertype", ",".join(["1"] * 54 + ["9"]) + "\n", r"a cover type from 1 to 7"),
        (
            "covertype",
            "nan," + ",".join(["1"] * 54) + "\n",
            r"column 'column 0' of .* is missing or not finite in 1 row;",
        ),
        ("covertype", "", r"c\.csv is empty"),
        ("covertype", "\n\n", r"c\.csv is empty"),
    ],
)
def test_a_local_copy_that_is_another_file(name: str, content: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "c.csv").write_text(content)
    with pytest.raises(BadInput, match=says):
        load(name, file=tmp_path / "c.csv")


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ([], r"has too few rows \(0\); at least 2 are needed"),
        (["1,1,1,1,1,1,1,1,1,1"], r"has too few rows \(1\); at least 2"),
        (["1,1,1,1,1,1,1,1,1,1", "0,1,,1,1,1,1,1,1,1"], r"column 'MGR_ID' of .* is missing or not finite in 1 row;"),
        (["1,1,1,1,1,1,1,1,1,1", "0,1,one,1,1,1,1,1,1,1"], r"column 'MGR_ID' of .* holds text, not numbers"),
        (["1,1,1,1,1,1,1,1,1,1", "0,1,nan,1,1,1,1,1,1,1"], r"column 'MGR_ID' of .* is missing or not finite in 1 row;"),
        (["1,1,1,1,1,1,1,1,1,1", "0,1,1"], r"cannot be read as CSV: row 3 has 3 cells"),
        (["1,1,1,1,1,1,1,1,1,1"] * 5, r"column 'ACTION' of data set 'amazon' holds one class only, '1'"),
        ([f"{i},1,1,1,1,1,1,1,1,1" for i in range(5)], r"'ACTION' .* has 5 different values but task=binary needs two"),
    ],
)
def test_amazon_rows_that_are_broken(lines: list[str], says: str, tmp_path: Path) -> None:
    roles = "ROLLUP_1,ROLE_ROLLUP_2,ROLE_DEPTNAME,ROLE_TITLE,ROLE_FAMILY_DESC,ROLE_FAMILY,ROLE_CODE"
    header = f"ACTION,RESOURCE,MGR_ID,ROLE_{roles}"
    (tmp_path / "train.csv").write_text("\n".join([header, *lines]) + "\n")
    with pytest.raises(BadInput, match=says):
        load("amazon", file=tmp_path / "train.csv")


# Files of one's own.

X0 = np.array([[1.0, 2.0], [0.0, -3.5], [4.25, 0.0], [0.0, 0.0], [1e-300, 7.0], [8.0, 9.0], [2.0, 2.0], [3.0, 1.0]])
Y0 = np.array([0.5, 1.5, -2.0, 3.25, 4.0, 5.0, 6.5, 7.0])


def table(X: np.ndarray, y: np.ndarray, header: str | None = "a,b,y") -> str:
    lines = [",".join([*map(repr, map(float, row)), repr(float(label))]) for row, label in zip(X, y, strict=True)]
    return "\n".join(([header] if header else []) + lines) + "\n"


def write(file: Path, X: np.ndarray, y: np.ndarray) -> Path:
    packed = {".gz": gzip.compress, ".bz2": bz2.compress}.get(file.suffix, bytes)
    if ".csv" in file.name:
        file.write_bytes(packed(table(X, y).encode()))
    elif ".parquet" in file.name:
        import pandas

        pandas.DataFrame({"a": X[:, 0], "b": X[:, 1], "y": y}).to_parquet(file)
    elif ".npz" in file.name:
        np.savez(file, X=X, y=y)
    else:
        entries = [" ".join(f"{j + 1}:{float(v)!r}" for j, v in enumerate(row) if v) for row in X]
        file.write_bytes(packed("".join(f"{float(t)!r} {e}\n" for t, e in zip(y, entries, strict=True)).encode()))
    return file


NAMES = ["d.csv", "d.csv.gz", "d.csv.bz2", "d.CSV", "d.parquet", "d.npz", "d.svm", "d.svmlight.gz", "d.libsvm.bz2"]


@pytest.mark.parametrize("name", NAMES)
def test_every_format_gives_back_what_was_written(name: str, tmp_path: Path) -> None:
    data = load("file", file=write(tmp_path / name.lower(), X0, Y0).rename(tmp_path / name))
    assert (data.task, data.classes, data.name) == ("regression", (), "file")
    assert len(data.y_train) == 6 and len(data.y_test) == 2
    X, y = everything(data)
    assert sparse.issparse(X) == ("svm" in name)
    X = X.toarray() if sparse.issparse(X) else X
    order = np.argsort(y)
    assert (y[order] == np.sort(Y0)).all() and (X[order] == X0[np.argsort(Y0)]).all()


finite_numbers = st.floats(allow_nan=False, allow_infinity=False, width=64)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    X=arrays(np.float64, st.tuples(st.integers(3, 9), st.just(2)), elements=finite_numbers),
    name=st.sampled_from(["h.csv", "h.npz", "h.svm"]),
)
def test_no_bit_of_a_number_is_lost(X: np.ndarray, name: str, tmp_path: Path) -> None:
    X[0] = 1, 1  # svmlight tells the number of columns by the last one that is not zero
    y = np.arange(len(X)) + 0.5
    got, labels = everything(load("file", file=write(tmp_path / name, X, y)))
    got = got.toarray() if sparse.issparse(got) else got
    assert (got[np.argsort(labels)] == X).all()


def test_header_or_not_and_target_by_name_number_or_custom(tmp_path: Path) -> None:
    file = tmp_path / "d.csv"
    file.write_text(table(X0, Y0))
    plain = load("file", file=file)
    for spec in ("file:target=y", "file:y", "file:target=2", "file:target=-1"):
        assert same(load(spec, file=file), plain)
    file.write_text("\ufeff" + table(X0, Y0, header=None))
    assert same(load("file", file=file), plain) and same(load("file:target=2", file=file), plain)
    file.write_text(table(X0[:, ::-1], Y0, header="Label,b,c"))
    assert load("file", file=file).y_train[0] in X0[:, 1]


def test_text_columns_become_one_hot_in_place(tmp_path: Path) -> None:
    file = tmp_path / "d.csv"
    file.write_text(
        "size,colour,flag,target\n" + "".join(f"{i},{'rgb'[i % 3]},{i % 2 == 0},{i / 2}\n" for i in range(12))
    )
    said: list[str] = []
    data = load("file", file=file, progress=said.append)
    X, y = everything(data)
    assert isinstance(data.X_train, sparse.csr_array) and data.X_train.indices.dtype == np.int32
    i = (2 * y).astype(int)
    expected = np.column_stack([i, i % 3 == 2, i % 3 == 1, i % 3 == 0, i % 2 == 0])  # b, g, r in order of their names
    assert (X.toarray() == expected).all()
    assert said == [
        "one-hot encoding the text column 'colour' of d.csv: 3 different values",
        "d.csv: 12 rows, 5 columns and an intercept, task regression, label 'target', header yes",
    ]
    assert data.summary == said[1] and data.label == "target" and data.intercept
    assert data.columns == (Column("size"), Column("colour", ("b", "g", "r")), Column("flag", truth=True))


def test_utf_16_is_read_and_other_encodings_are_named(tmp_path: Path) -> None:
    file = tmp_path / "d.csv"
    rows = "größe,y\n" + "".join(f"{i},{i % 2}\n" for i in range(9))
    for encoding in ("utf-8", "utf-8-sig", "utf-16"):
        file.write_text(rows, encoding=encoding)
        assert load("file", file=file).columns == (Column("größe"),)
    file.write_text(rows, encoding="latin-1")
    with pytest.raises(BadInput, match=r"d\.csv is not text in UTF-8 \(byte 0xf6\); save it in that encoding"):
        load("file", file=file)


def test_text_with_separators_remains_a_category(tmp_path: Path) -> None:
    (tmp_path / "d.csv").write_text("a,b,y\n" + "".join(f"w{i // 2},x;{i % 2},{i % 2}\n" for i in range(200)))
    assert [len(column.categories) for column in load("file", file=tmp_path / "d.csv").columns] == [100, 2]


def test_npz_with_a_test_set_uses_it(tmp_path: Path) -> None:
    np.savez(
        tmp_path / "d.npz",
        X=X0,
        y=np.array(["a", "b", "c", "bb", "b", "c", "a", "b"]),
        X_test=X0[:3],
        y_test=np.array(["c", "bb", "a"]),
    )
    data = load("file", file=tmp_path / "d.npz")
    assert (data.X_train == X0).all() and (data.X_test == X0[:3]).all()
    assert data.classes == ("a", "b", "bb", "c") and data.y_test.tolist() == [3, 2, 0]


@pytest.mark.parametrize(
    ("values", "task", "found", "y", "classes"),
    [
        ([3, 7, 3], "auto", "binary", [-1, 1, -1], ("3", "7")),
        ([-1.0, 1.0], "auto", "binary", [-1, 1], ("-1", "1")),
        ([0.5, 2.5], "auto", "binary", [-1, 1], ("0.5", "2.5")),
        ([True, False], "auto", "binary", [1, -1], ("0", "1")),
        (["no", "yes", "no"], "auto", "binary", [-1, 1, -1], ("no", "yes")),
        (["c", "a", "b"], "auto", "multiclass", [2, 0, 1], ("a", "b", "c")),
        ([2, 10, 1, 2, 10, 1], "auto", "multiclass", [1, 2, 0, 1, 2, 0], ("1", "2", "10")),
        ([1, 2, 3], "auto", "regression", [1, 2, 3], ()),
        ([1, 2, 3], "multiclass", "multiclass", [0, 1, 2], ("1", "2", "3")),
        ([3, 7], "multiclass", "multiclass", [0, 1], ("3", "7")),
        ([3, 7], "regression", "regression", [3, 7], ()),
        ([0.5, 1.5, 2.5] * 9, "auto", "regression", [0.5, 1.5, 2.5] * 9, ()),
        (list(range(21)) * 9, "auto", "regression", list(range(21)) * 9, ()),
    ],
)
def test_targets(values: list[Any], task: Any, found: str, y: list[float], classes: tuple[str, ...]) -> None:
    got = read_target(np.array(values), task, "y")
    assert (got[0].tolist(), got[1], got[2]) == (y, found, classes)
    assert got[0].dtype == np.float64


BAD_TABLES = [
    (
        "file",
        "a,b,y\n1,2,3\n,4,5\n1,,5\n,4,5\n",
        r"column 'a' of .*d\.csv is missing or not finite in 2 rows; remove or fill",
    ),
    ("file", "a,b,y\n1,inf,3\n1,4,5\n", r"column 'b' .* in 1 row;"),
    ("file", "a,b,y\n1,2,3\n1,4,\n", r"column 'y' .* in 1 row;"),
    ("file:target=prise", "price,b\n1,2\n3,4\n", r"has no column 'prise' for the target; did you mean 'price'\?"),
    ("file:target=zzz", "price,b\n1,2\n3,4\n", r"no column 'zzz' for the target; its columns: 'price', 'b'"),
    ("file:target=5", "price,b\n1,2\n3,4\n", r"has 2 columns, so target is a number from 0 to 1, got 5"),
    ("file", "a,y\n1,3\n2,3\n", r"column 'y' of .*d\.csv holds one class only, '3'; two or more are needed"),
    (
        "file:task=binary",
        "a,y\n1,1\n2,2\n3,3\n",
        r"column 'y' .* has 3 different values but task=binary needs two; use task=mul",
    ),
    (
        "file:task=multiclass",
        "a,y\n1,1\n2,2.5\n",
        r"holds fractions, such as 2\.5, which are not classes; use task=regression",
    ),
    ("file:task=regression", "a,y\n1,u\n2,v\n", r"holds text, such as 'u', but regression needs numbers"),
    ("file:task=clustering", "a,y\n1,u\n2,v\n", r"task in .* should be one of auto, binary, multiclass, regression"),
    ("file:test=0", "a,y\n1,1\n2,2\n", r"test must be a number above 0 and below 1, got 0\.0"),
    ("file:test=1", "a,y\n1,1\n2,2\n", r"test must be .*got 1"),
    ("file:test=-0.5", "a,y\n1,1\n2,2\n", r"test must be .*got -0\.5"),
    ("file:test=inf", "a,y\n1,1\n2,2\n", r"test must be .*got inf"),
    ("file:task=regression", "a,y\n1,3\n", r"at least 2 rows, one to train and one to test, got 1"),
    ("file", "a,y\n", r"has 0 rows and 2 columns"),
    ("file", "y\n1\n2\n", r"has 2 rows and 1 column \(separated by commas\); a target, a feature"),
    ("file", "a;y\n1;2\n2;3\n", r"the columns of .*d\.csv are separated by ';'; save it with commas between columns"),
    ("file", "a;b;y\n1,5;2;0\n2,5;3;1\n", r"separated by ';'; .* and points in decimal numbers"),
    ("file", "1,5;2;0\n2,5;3;1\n", r"separated by ';'"),
    ("file", "a\ty\n1\t2\n2\t3\n", r"separated by tabs"),
    ("file", "a y\n1 2\n2 3\n", r"separated by spaces"),
    (
        "file",
        'a,y\n"1,005",0\n"2,005",1\n',
        r"column 'a' of .* holds numbers with commas, such as '1,005', which would",
    ),
    ("file", 'a,y\n0,"1,5"\n1,"2,5"\n', r"column 'y' of .* holds numbers with commas, such as '1,5'"),
    (
        "file",
        "day,y\n" + "".join(f"d{i},{i % 2}\n" for i in range(51)),
        r"'day' of .* 51 different values in 51 rows, such as 'd0'",
    ),
    ("file", "a,y\n1,2\n1,2,3\n", r"cannot be read as CSV: row 3 has 3 cells, the first has 2"),
    ("file", "a,y\n1,2,3\n4,5,6\n", r"cannot be read as CSV: row 2 has 3 cells, the first has 2"),
    ("file", 'a,y\n1,2\n"1,2\n', r"cannot be read as CSV: unexpected end of data"),
    ("file", "a,y\n1,2\n\0,4\n", r"contains NUL characters, so it is not text"),
    ("file", "\n", r"d\.csv is empty"),
    ("file:header=perhaps", "a,y\n1,2\n", r"header in .* should be one of auto, yes, no, got 'perhaps'"),
    ("file:target=a", "a,a,y\n1,2,3\n", r"has 2 columns 'a'; give target as a number"),
    ("file", "a,y\n1,0\n2,1\n", r"all training rows are of one class; hold out fewer rows"),
    ("file:taget=y", "a,y\n1,0\n2,1\n", r"data set 'file' has no key 'taget'; did you mean 'target'\?"),
]


@pytest.mark.parametrize(("spec", "content", "says"), BAD_TABLES)
def test_bad_tables(spec: str, content: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "d.csv").write_text(content)
    with pytest.raises(BadInput, match=says):
        load(spec, file=tmp_path / "d.csv")


IRIS = "5.1,3.5,1.4,setosa\n4.9,3.0,1.3,setosa\n6.1,2.9,4.7,versicolor\n5.6,2.9,3.6,versicolor\n"
MUSHROOMS = "p,x,s\ne,x,y\ne,b,s\np,x,y\n"


@pytest.mark.parametrize(
    ("content", "header"),
    [
        (IRIS, False),
        ("a,b,c,kind\n" + IRIS, True),
        ("2019,2020,2021,kind\n" + IRIS, None),  # "kind" may be a flower that is seen once
        ("5.1,?,1.4,setosa\n" + IRIS, None),
        ("5.1,NA,1.4,setosa\n" + IRIS, False),
        (MUSHROOMS, False),
        ("class,cap,surface\n" + MUSHROOMS, True),
        ("red,red,red\n" + MUSHROOMS, None),
        ("1,2\n3,4\n5,6\n", False),
        ("0,1,2\n3,4,8\n5,6,9\n", None),  # pandas calls columns so that have no names
        (",0,1,2\n0,3,4,8\n1,5,6,9\n", True),
        (" a , b\n1, 2\n3, 4\n", True),
        ('"a\nb",c\r\n1,"2"\r\n3,4\r\n', True),
        ("10,20,30\n4,,6\n7,9,8\n", False),
    ],
)
def test_a_header_is_recognised_or_asked_for(content: str, header: bool | None, tmp_path: Path) -> None:
    file = tmp_path / "d.csv"
    file.write_text(content, newline="")
    allowed = limit(file)
    if header is None:
        with pytest.raises(
            BadInput, match=r"the first row of .*d\.csv \('.*\) may be names or data; give header=yes or"
        ):
            read_csv(file, allowed)
    else:
        assert read_csv(file, allowed).header == header
    lines = len(list(csv.reader(content.splitlines(keepends=True))))
    for said, rows in ((True, lines - 1), (False, lines)):
        table = read_csv(file, allowed, header=said)
        assert (table.header, table.rows) == (said, rows)
    if header is not None:
        assert read_csv(file, allowed).rows == lines - header


def test_a_file_without_a_header_loses_no_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "iris.csv").write_text(IRIS)
    data = load("file:test=0.25,seed=1", file=tmp_path / "iris.csv")
    assert sorted([*data.X_train[:, 0], *data.X_test[:, 0]]) == [4.9, 5.1, 5.6, 6.1]
    said = (
        "iris.csv: 4 rows, 3 columns and an intercept, task binary ('setosa', 'versicolor'), label 'column 3' "
        "(the last column; target= names another), header no"
    )
    assert data.summary == said
    assert capsys.readouterr().err.startswith(said + "\n")  # in Python too, unless told otherwise
    load("file:target=0,header=no,task=regression", file=tmp_path / "iris.csv", progress=None)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("name", ["d.csv", "d.npz", "d.svm", "d.parquet"])
def test_a_file_of_ones_own_gets_an_intercept(name: str, tmp_path: Path) -> None:
    """Prices around 1000 are beyond any multiple of columns around 0."""
    X = np.random.default_rng(1).standard_normal((60, 2))
    file = write(tmp_path / name, X, 1000 + X @ [1.0, 2.0])
    problem = from_data("file", file=file, l2=0.1, progress=None)
    assert problem.dimension == 3
    X = problem.X.toarray() if sparse.issparse(problem.X) else problem.X
    fitted = np.linalg.lstsq(X, problem.y)[0]
    assert problem.metrics(fitted)["mse"] < 1e-12
    assert problem.loss(np.array([0.0, 0.0, 1000.0])) < 10  # the regulariser spares it
    assert from_data("file:intercept=no", file=file, progress=None).dimension == 2
    rebuilt = from_recipe(problem.recipe() or {})
    assert rebuilt.dimension == 3


def test_row_numbers_that_pandas_wrote_are_left_out(tmp_path: Path) -> None:
    import pandas

    frame = pandas.DataFrame({"a": [3.0, 1.0, 4.0, 1.5], "y": [1.0, 2.5, 3.0, 0.5]})
    frame.to_csv(tmp_path / "d.csv")
    frame.iloc[::-1].to_parquet(tmp_path / "d.parquet")
    for name in ("d.csv", "d.parquet"):
        assert load("file", file=tmp_path / name, progress=None).columns == (Column("a"),)
    assert "row numbers in the first column left out" in load("file", file=tmp_path / "d.csv").summary


def test_a_column_that_turns_to_text_late_keeps_its_first_cells(tmp_path: Path) -> None:
    """Rows are converted in chunks; a code such as 007 must not come out of the first of them as 7."""
    cells = ["007"] * 5000 + ["x"] * 10 + ["7.0"]
    (tmp_path / "d.csv").write_text("code,y\n" + "".join(f"{cell},{i}\n" for i, cell in enumerate(cells)))
    data = load("file", file=tmp_path / "d.csv", progress=None)
    assert data.columns == (Column("code", ("007", "7.0", "x")),)
    assert everything(data)[0].sum(axis=0).tolist() == [5000, 1, 10]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(
        st.tuples(finite_numbers, st.text("ab ,\"\n'é", min_size=1).map(str.strip).filter(bool)), min_size=2, max_size=9
    )
)
def test_what_is_written_as_csv_is_read_back(rows: list[tuple[float, str]], tmp_path: Path) -> None:
    import pandas

    with (tmp_path / "d.csv").open("w", newline="", encoding="utf-8") as out:
        writer = csv.writer(out)
        writer.writerows([("number", "text"), *rows])
    table = read_csv(tmp_path / "d.csv", limit(tmp_path / "d.csv"), header=True)
    assert table.names == ("number", "text")
    assert list(zip(*map(np.ndarray.tolist, table.columns), strict=True)) == rows
    frame = pandas.read_csv(tmp_path / "d.csv", dtype=str, keep_default_na=False)
    assert frame["text"].tolist() == table.columns[1].tolist()


def bomb(folder: Path, name: str) -> Path:
    """Eight megabytes of zeros (as float64) in a small file."""
    file = folder / name
    zeros = np.zeros(1_000_000)
    if name == "d.npz":
        np.savez_compressed(file, X=zeros[:, None].astype(np.uint8), y=zeros[:1])
    elif name == "d.parquet":
        import pandas

        pandas.DataFrame({"x": zeros, "y": "word"}).to_parquet(file)
    elif name.startswith("d.csv"):
        (folder / name).write_bytes({"z": gzip.compress, "2": bz2.compress}[name[-1]](b"x,y\n" + b"0,0\n" * 500_000))
    elif name == "d.svm.gz":
        file.write_bytes(gzip.compress(b"1 1:0\n" * 1_500_000))
    elif name == "d.svm":
        file.write_bytes(b"1 1:1\n0 1000000:1\n")
    else:
        file.write_bytes(gzip.compress(idx(zeros.reshape(1000, 10, 100))))
        write_idx(folder, "train", slice(0, 20))
    return file


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["d.npz", "d.csv.gz", "d.csv.bz2", "d.svm.gz", "d.svm", "d.parquet", "train-images.idx3-ubyte.gz"]
)
def test_a_small_file_that_unpacks_to_much_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("anyk.tables.input_files._DEFAULT", 1_500_000)
    monkeypatch.setattr("anyk.tables.input_files._EXPANSION", 0)
    file = bomb(tmp_path, name)
    source = "mnist-idx" if "idx" in name else "file"
    with pytest.raises(BadInput, match=r"unpacks to (more than )?[\d.]+ GB, but the limit is 0\.0015 GB; if you trust"):
        load(source, file=file)
    tracemalloc.start()
    try:
        with pytest.raises(BadInput, match=r"the limit is 0\.0005 GB; if you trust the file give max_gb=0\.1"):
            load(f"{source}:max_gb=0.0005", file=file)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 6_000_000
    with pytest.raises(BadInput, match=r"max_gb must be above 0, got 0"):
        load(f"{source}:max_gb=0", file=file)


def test_the_limit_is_one_gigabyte_or_eight_times_the_file(tmp_path: Path) -> None:
    file = tmp_path / "d.npz"
    file.touch()
    assert limit(file).bytes == 1e9
    os.truncate(file, 500_000_000)
    assert limit(file).bytes == 4e9 and limit(file, 0.5).bytes == 5e8


def test_an_array_that_claims_more_than_its_file_holds(tmp_path: Path) -> None:
    import io
    import zipfile

    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": "<f8", "fortran_order": False, "shape": (10**8, 1)})
    with zipfile.ZipFile(tmp_path / "d.npz", "w") as archive:
        archive.writestr("X.npy", buffer.getvalue() + b"\0" * 800)
        archive.writestr("y.npy", buffer.getvalue())
    with pytest.raises(BadInput, match=r"array 'X' of .* is truncated or damaged"):
        load("file", file=tmp_path / "d.npz")


def test_held_out_rows_of_one_class_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "d.csv").write_text("a,y\n" + "".join(f"{i},{'no' if i else 'yes'}\n" for i in range(8)))
    load("file:seed=1", file=tmp_path / "d.csv")
    assert (
        "the 2 held-out rows are of one class ('no'), so their AUC is not defined (nan); hold out more rows (test=)"
    ) in capsys.readouterr().err


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "d.csv").write_bytes(b"a,y\n\xff\xfe,1\n")
    with pytest.raises(BadInput, match=r"d\.csv is not text in UTF-8 \(byte 0xff\)"):
        load("file", file=tmp_path / "d.csv")


def test_columns_that_are_neither_numbers_nor_text(tmp_path: Path) -> None:
    import pandas

    days = pandas.to_datetime(["2020-01-01", "2020-01-02"])
    pandas.DataFrame({"when": days, "y": [1.0, 2.0]}).to_parquet(tmp_path / "d.parquet")
    with pytest.raises(
        BadInput, match=r"column 'when' of .* has timestamp\[.*\] values, which are neither numbers nor text"
    ):
        load("file", file=tmp_path / "d.parquet")
    pandas.DataFrame({"many": [[1], [2, 3]], "y": [1.0, 2.0]}).to_parquet(tmp_path / "d.parquet")
    with pytest.raises(BadInput, match=r"column 'many' of .* has list<.*> values"):
        load("file", file=tmp_path / "d.parquet")


@pytest.mark.parametrize(
    ("name", "kind"),
    [("d.csv.gz", "CSV"), ("d.csv.bz2", "CSV"), ("d.svm.gz", "svmlight"), ("d.parquet", "Parquet"), ("d.npz", "npz")],
)
@pytest.mark.parametrize("damage", ["cut", "garbage"])
def test_damaged_files(name: str, kind: str, damage: str, tmp_path: Path) -> None:
    file = write(tmp_path / name, np.arange(4000.0).reshape(-1, 2), np.arange(2000.0))
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2] if damage == "cut" else b"\x93" * 1000)
    with pytest.raises(BadInput, match=f"cannot be read as {kind}: |is not an npz file, or is truncated"):
        load("file", file=file)


@pytest.mark.slow
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.sampled_from(NAMES), place=st.floats(0, 1), cut=st.integers(0, 20), put=st.binary(max_size=8))
def test_whatever_is_broken_it_is_data_or_one_sentence(
    name: str, place: float, cut: int, put: bytes, tmp_path: Path
) -> None:
    file = write(tmp_path / name.lower(), X0, Y0)
    content = file.read_bytes()
    start = int(place * len(content))
    file.write_bytes(content[:start] + put + content[start + cut :])
    try:
        X, y = everything(load("file", file=file))
    except BadInput as error:
        assert "\n" not in str(error)
    else:
        assert X.shape[0] == len(y) >= 2 and np.isfinite(y).all()


def test_npz_with_a_flipped_byte(tmp_path: Path) -> None:
    file = write(tmp_path / "d.npz", X0, Y0)
    content = bytearray(file.read_bytes())
    content[200] ^= 0xFF
    file.write_bytes(content)
    with pytest.raises(BadInput, match=r"cannot be read as npz: .*CRC"):
        load("file", file=file)


class Trap:
    """What must never be called: unpickling it would leave a file behind."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return Path.touch, (self.mark,)


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    np.savez(tmp_path / "d.npz", X=X0, y=np.array([Trap(mark)] * 8, dtype=object), allow_pickle=True)
    with pytest.raises(BadInput, match=r"array 'y' of .* holds Python objects, which only unpickling could read"):
        load("file", file=tmp_path / "d.npz")
    assert not mark.exists()


@pytest.mark.parametrize(
    ("held", "says"),
    [
        ({"X": X0}, r"holds 'X', but needs the arrays X and y"),
        ({"X": X0, "y": Y0, "X_test": X0}, r"holds 'X', 'y', 'X_test', but needs"),
        ({"X": X0, "y": Y0[:5]}, r"X of .* has 8 rows but y has 5; they must agree"),
        ({"X": X0[:, 0], "y": Y0}, r"array 'X' of .* should be a table of numbers, got float64 of shape \(8,\)"),
        ({"X": X0.astype(complex), "y": Y0}, r"array 'X' of .* got complex128"),
        ({"X": X0, "y": X0}, r"array 'y' of .* should be one column of numbers or text, got float64 of shape \(8, 2\)"),
        ({"X": X0[:0], "y": Y0[:0]}, r"X of .* has no rows"),
        ({"X": np.where(X0 == 2, np.nan, X0), "y": Y0}, r"column 0 of X in .* is missing or not finite in 1 row;"),
        ({"X": X0, "y": np.where(Y0 == 4, np.inf, Y0)}, r"column 'y' of .* is missing or not finite in 1 row;"),
        ({"X": X0, "y": Y0, "X_test": X0[:, :1], "y_test": Y0}, r"X of .* has 2 columns but X_test has 1"),
        ({"X": X0, "y": Y0, "X_test": X0, "y_test": Y0.astype(str)}, r"one of y and y_test in .* is text"),
    ],
)
def test_bad_npz(held: dict[str, Any], says: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", **held)
    with pytest.raises(BadInput, match=says):
        load("file", file=tmp_path / "d.npz")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("1 1:2\nx 1:3\n", r"cannot be read as svmlight: .*'x'"),
        ("1 1:2 2:nan\n2 2:inf\n3 1:1\n", r"column 1 of .* is missing or not finite in 2 rows"),
        ("nan 1:2\n2 1:1\n", r"column 'the target' of .* in 1 row"),
        ("# only a remark\n", r"d\.svm is empty"),
        ("1 99999999999:1\n2 1:1\n", r"cannot be read as svmlight"),
    ],
)
def test_bad_svmlight(content: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "d.svm").write_text(content)
    with pytest.raises(BadInput, match=says):
        load("file", file=tmp_path / "d.svm")


def test_target_is_for_tables(tmp_path: Path) -> None:
    for name in ("d.svm", "d.npz"):
        with pytest.raises(BadInput, match="target=y is for CSV and Parquet files"):
            load("file:target=y", file=write(tmp_path / name, X0, Y0))


@pytest.mark.parametrize(
    ("spec", "name", "says"),
    [
        ("file", "dta.csv", r"there is no file '.*dta\.csv'; did you mean '.*data\.csv'\?$"),
        ("file", "nowhere/else.csv", r"there is no file '.*else\.csv'$"),
        ("file", "missing.csv", r"there is no file '.*missing\.csv'$"),  # .csv alone does not make a name similar
        ("file", "data.parquet", r"there is no file '.*'; did you mean '.*data\.csv'\?$"),
        ("file", "a\0b.csv", r"there is no file"),
        ("file", ".", r"is a folder; give the file itself"),
        ("file", "empty.csv", r"empty\.csv is empty"),
        ("file", "data.xlsx", r"the extension of .*data\.xlsx is not that of a known format; known are \.csv, .*\.npz"),
        ("file", "data.npz.gz", r"the extension of .*data\.npz\.gz is not that of a known format"),
        ("file", "x" * 3000 + ".csv", r"^.{1,400}: File name too long$"),
        ("amazon", ".", r"is a folder"),
        ("kc-housing", "dta.csv", r"there is no file"),
        ("covertype", "empty.csv", r"is empty"),
        ("mnist-idx", "nothing", r"there is no file"),
    ],
)
def test_files_that_cannot_be(spec: str, name: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "empty.csv").touch()
    for full in ("data.csv", "data.xlsx", "data.npz.gz"):
        (tmp_path / full).write_text("a,y\n1,2\n")
    with pytest.raises(BadInput, match=says):
        load(spec, file=tmp_path / name)


@pytest.mark.parametrize(
    ("spec", "file", "says"),
    [
        ("digits", "x.csv", r"data set 'digits' takes no file, got 'x\.csv'; to read your own use the data set 'file'"),
        ("synthetic:rows=5", "x.csv", r"data set 'synthetic' takes no file"),
        ("file", None, r"data set 'file' needs a file; give it with --data-file"),
        ("mnist-idx", None, r"data set 'mnist-idx' needs a file"),
        ("amazn", None, r"no data set 'amazn'; did you mean 'amazon'\?"),
        ("x.csv", None, r"'x\.csv' looks like a file; to read one use the data set 'file' with --data-file x\.csv"),
        ("", None, r"a spec looks like name:key=value"),
        ("digits:seed=a", None, r"seed in 'digits:seed=a' should be a whole number, got 'a'"),
        ("synthetic:rows=1", None, r"rows must be a whole number of at least 2, got 1"),
        ("synthetic:rows=500000000", None, r"would take 84 GB, but the limit is 1 GB; for more give max_gb=…"),
        ("synthetic:features=0", None, r"features must be a whole number of at least 1, got 0"),
        ("synthetic:noise=-1", None, "noise must be a finite number of at least 0, got -1"),
        ("synthetic:noise=inf", None, "noise must be a finite number of at least 0, got inf"),
        ("synthetic:density=0", None, r"density must be a number above 0 and of at most 1, got 0"),
        ("synthetic:density=1.5", None, r"density .* got 1\.5"),
        ("synthetic:classes=4", None, r"classes=4 is for task=multiclass, but the task is binary; leave it out"),
        ("synthetic:task=multiclass,classes=1", None, r"classes must be a whole number of at least 2 or None, got 1"),
    ],
)
def test_specs_that_cannot_be(spec: str, file: str | None, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        load(spec, file=file)


def test_no_memory_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(**_: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr("sklearn.datasets.load_digits", full)
    with pytest.raises(BadInput, match="data set 'digits' does not fit into the memory"):
        load("digits")


# IDX.


def idx(values: np.ndarray) -> bytes:
    return struct.pack(f">HBB{values.ndim}I", 0, 8, values.ndim, *values.shape) + values.astype(np.uint8).tobytes()


PIXELS = np.arange(20 * 6).reshape(20, 2, 3) * 2
LABELS = np.arange(20) % 3


def write_idx(folder: Path, part: str, rows: slice, sign: str = "-", gz: bool = False) -> Path:
    for kind, number, values in (("images", 3, PIXELS[rows]), ("labels", 1, LABELS[rows])):
        content = idx(values)
        file = folder / f"{part}-{kind}{sign}idx{number}-ubyte{'.gz' * gz}"
        file.write_bytes(gzip.compress(content) if gz else content)
    return folder / f"{part}-images{sign}idx3-ubyte{'.gz' * gz}"


def test_idx_folder_with_both_parts_uses_them(tmp_path: Path) -> None:
    train = write_idx(tmp_path, "train", slice(0, 14))
    write_idx(tmp_path, "t10k", slice(14, 20), sign=".", gz=True)
    data = load("mnist-idx", file=tmp_path)
    assert (data.X_train == np.column_stack([PIXELS[:14].reshape(14, 6) / 255, np.ones(14)])).all()
    assert (data.X_test == np.column_stack([PIXELS[14:].reshape(6, 6) / 255, np.ones(6)])).all()
    assert (data.y_train == LABELS[:14]).all() and (data.y_test == LABELS[14:]).all()
    assert len(load("mnist-idx:test=0.5", file=train).y_test) == 7
    with pytest.raises(BadInput, match="test must be a number above 0 and below 1"):  # also where it is not used
        load("mnist-idx:test=2", file=tmp_path)


def test_bad_idx(tmp_path: Path) -> None:
    file = write_idx(tmp_path, "train", slice(0, 20))
    labels = tmp_path / "train-labels-idx1-ubyte"

    def says(text: str, given: Path = file) -> None:
        with pytest.raises(BadInput, match=text):
            load("mnist-idx", file=given)

    content = file.read_bytes()
    for broken, text in (
        (content[:-1], r"truncated or damaged: its header tells of 120 values, it holds 119"),
        (content + b"0", r"tells of 120 values, it holds more than 120"),
        (content[:7], r"cannot be read as IDX: "),
        (gzip.compress(content)[:-20], r"cannot be read as IDX: "),
        (labels.read_bytes(), r"is not an IDX file of images: its magic number is 2049, not 2051"),
        (idx(PIXELS[:5]), r"holds 5 images but its labels file 20 labels; they must agree"),
        (idx(PIXELS[:0]), r"holds no values"),
    ):
        file.write_bytes(broken)
        says(text)
    file.write_bytes(content)
    labels.write_bytes(content)
    says(r"is not an IDX file of labels: its magic number is 2051, not 2049")
    labels.write_bytes(idx(LABELS * 0))
    says(r"holds one class only, '0'")
    labels.unlink()
    says(r"the labels of .* should be in .*train-labels-idx1-ubyte or train-labels-idx1-ubyte\.gz, which is not there")
    says(r"should be an images file, with 'images' in its name", file.rename(tmp_path / "pictures"))
    says(r"holds neither train-images-idx3-ubyte nor t10k-images-idx3-ubyte", tmp_path)


# Splits and synthetic data.


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(rows=st.integers(2, 200), test=st.floats(0.001, 0.999), seed=st.integers(0, 2**40))
def test_a_split_is_a_partition_of_the_rows(rows: int, test: float, seed: int) -> None:
    X, y = np.arange(rows, dtype=float)[:, None], np.arange(rows, dtype=float)
    data = assemble(X, y, task="regression", test=test, seed=seed)
    assert (data.X_train[:, 0] == data.y_train).all() and (data.X_test[:, 0] == data.y_test).all()
    assert sorted([*data.y_train, *data.y_test]) == y.tolist()
    assert 1 <= len(data.y_test) < rows
    assert len(data.y_test) == 1 or len(data.y_test) == rows - 1 or abs(len(data.y_test) - test * rows) <= 1 + 1e-6


@pytest.mark.parametrize(
    ("rows", "test", "held"), [(10, 0.3, 3), (10, 0.7, 7), (10, 0.9, 9), (32_769, 0.2, 6554), (21_613, 0.2, 4323)]
)
def test_held_out_rows_do_not_hang_on_rounding(rows: int, test: float, held: int) -> None:
    y = np.arange(rows, dtype=float)
    assert len(assemble(y[:, None], y, task="regression", test=test, seed=0).y_test) == held


def test_targets_of_whole_numbers_become_float64() -> None:
    data = assemble(np.eye(6), np.arange(6) % 3, "multiclass", ("a", "b", "c"), test=0.5, seed=0)
    assert data.y_train.dtype == data.y_test.dtype == np.float64
    assert sorted([*data.y_train, *data.y_test]) == [0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"X": np.ones(6)}, r"X of a data set must be of shape \(rows, features\), got \(6,\)"),
        ({"X_test": np.ones(6)}, r"X_test of a data set must be of shape"),
        ({"y": np.ones(5)}, r"y of a data set must be numbers of shape \(6,\), one a row, got float64 of \(5,\)"),
        ({"X_test": np.ones((2, 6))}, r"y of a data set must be numbers of shape \(8,\)"),
        ({"y": np.array(list("abcabc"))}, r"y of a data set must be numbers"),
        ({"classes": 3}, r"classes of a data set must be their names, a tuple of texts, got 3"),
        ({"classes": (0, 1, 2)}, r"classes of a data set must be their names"),
        ({"classes": ("a", "b")}, r"task=multiclass must be the number of one of its 2 classes, from 0, got 2"),
        ({"y": np.full(6, 0.5)}, r"must be the number of one of its 3 classes, from 0, got 0.5"),
        ({"task": "binary", "classes": ()}, r"task=binary must be -1 or 1, got 0"),
    ],
)
def test_arrays_that_make_no_data_set_are_refused(change: dict[str, Any], sentence: str) -> None:
    given = {"X": np.eye(6), "y": np.arange(6) % 3, "task": "multiclass", "classes": ("a", "b", "c"), **change}
    with pytest.raises(BadInput, match=sentence):
        assemble(**given, test=0.5, seed=0)


@pytest.mark.parametrize(
    "spec", ["digits", "synthetic", "synthetic:density=0.1,task=multiclass", "synthetic:task=regression"]
)
def test_the_seed_decides(spec: str) -> None:
    join = "," if ":" in spec else ":"
    assert same(load(f"{spec}{join}seed=3"), load(f"{spec}{join}seed=3"))
    assert not same(load(f"{spec}{join}seed=3"), load(f"{spec}{join}seed=4"))


def test_synthetic_is_the_same_for_ever() -> None:
    data = load("synthetic:rows=4,features=2,task=regression,seed=7")
    x = [-1.216777394, 1.007073544, 0.792919546, -0.507754533, -1.188761117, 1.282013428]
    y = [0.663717198, -0.068299497, 0.834444359]
    assert [*data.X_train.ravel(), *data.y_train] == pytest.approx([*x, *y], abs=2e-9)


def test_synthetic_follows_a_linear_rule_up_to_its_noise() -> None:
    def residual(spec: str) -> tuple[float, float]:
        X, y = everything(load(spec))
        X = X.toarray() if sparse.issparse(X) else X
        return float(np.std(y - X @ np.linalg.lstsq(X, y, rcond=None)[0])), float(np.std(y))

    exact, spread = residual("synthetic:rows=3000,task=regression,noise=0")
    assert exact < 1e-12 and 0.5 < spread < 2
    noisy, spread = residual("synthetic:rows=3000,features=100,task=regression,noise=0.5,density=0.2")
    assert noisy == pytest.approx(0.5, rel=0.1) and 0.7 < spread < 2


def test_synthetic_density_and_classes() -> None:
    data = load("synthetic:rows=500,features=400,density=0.05,task=multiclass,classes=5")
    X, y = everything(data)
    assert isinstance(data.X_train, sparse.csr_array) and data.X_train.indices.dtype == np.int32
    assert X.has_canonical_format or X.nnz == X.tocoo().nnz
    assert X.nnz / 200_000 == pytest.approx(0.05, abs=5 * np.sqrt(0.05 * 0.95 / 200_000))
    per_column = X.sum(axis=0)
    assert np.abs(per_column).max() < 6 * np.sqrt(500 * 0.05)
    assert data.classes == tuple("01234") and set(y) == set(range(5))
    assert set(load("synthetic").y_train) == {-1.0, 1.0}
    assert len(load("synthetic:rows=9,task=multiclass,classes=50").classes) == 50  # drawn or not


def test_every_source_is_known_and_explained() -> None:
    assert {entry.name for entry in sources} == {
        "digits", "amazon", "kc-housing", "covertype", "mnist-idx", "file", "synthetic", "shards",
    }  # fmt: skip
    for entry in sources:
        assert 20 < len(entry.summary) <= 120 and entry.summary.endswith((".", ")."))
        keys = entry.parameters()
        if entry.name == "shards":
            assert keys["test"].default == "last"  # whole files are held out
        else:
            assert keys["test"].default == 0.2 and keys["seed"].default == 0
        assert not {"file", "progress"} & set(keys)
