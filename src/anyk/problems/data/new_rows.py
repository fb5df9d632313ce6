"""Files of new rows for a trained model, and files of its predictions beside them."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from numpy.typing import NDArray

from anyk.errors import BadInput
from anyk.matrices import read_npz
from anyk.problems.data.encoding import Matrix
from anyk.problems.data.files import extension_of, read_svmlight
from anyk.problems.predicting import Predictor, Tell
from anyk.tables import (
    Limit,
    Table,
    csv_rows,
    limit,
    listed,
    open_text,
    read_csv,
    read_parquet,
    reading,
    shown,
)


def read_rows(
    file: Path,
    predictor: Predictor,
    *,
    header: bool | None = None,
    max_gb: float | None = None,
    tell: Tell | None = None,
) -> Matrix:
    """The rows of a file as the model's columns of numbers; see :meth:`Predictor.matrix`.

    CSV and Parquet: columns by the names of the training data (in order, where those had none); others, the target's
    too, are left alone. ``header``: whether a CSV file's first row holds names; None: as in the training data, or found
    out where those had no columns of their own. npz: the array ``X``. svmlight: columns beyond those of the training
    data are refused. Raises :class:`~anyk.errors.BadInput` for a file that cannot be read or does not fit the model.
    """
    kind, allowed = extension_of(file), limit_of(file, max_gb)
    where = shown(file.name)
    if kind in (".csv", ".parquet"):
        table = _table(file, kind, predictor, allowed, header)
        if not table.rows:
            raise BadInput(f"{where} has no rows")
        return predictor.matrix(table, where, tell)
    if kind == ".npz":
        arrays, array_names = read_npz(file, allowed, ("X",))
        if "X" not in arrays:
            raise BadInput(f"{where} holds {listed(array_names) or 'nothing'}, but needs the array X")
        return predictor.matrix(arrays["X"], where, tell)
    if predictor.encoding.columns:
        raise BadInput(f"{where} is svmlight, whose columns have numbers; the model learned from those of a table")
    return predictor.matrix(_svmlight(file, predictor, allowed), where, tell)


def limit_of(file: Path, max_gb: float | None) -> Limit:
    """Return the limit on the memory that a file of rows takes."""
    return limit(file, max_gb, remedy="; if you trust the file give --max-gb {:g}")


def _table(file: Path, kind: str, predictor: Predictor, allowed: Limit, header: bool | None) -> Table:
    encoding = predictor.encoding
    if kind == ".parquet":
        return read_parquet(file, allowed, needed=[column.name for column in encoding.columns] or None)
    if header is None and encoding.columns:
        header = encoding.named
    return read_csv(file, allowed, header=header, text=encoding.text)


def _svmlight(file: Path, predictor: Predictor, allowed: Limit) -> Any:
    """Return a svmlight file's rows with the model's number of columns; entries that are missing are 0."""
    base, features = predictor.encoding.base, predictor.features
    X: Any = read_svmlight(file, allowed, 0 if base is None else base)[0]
    if base is None and X.nnz and X.indices.min() > 0:  # the model's own data did not count columns
        if X.shape[1] <= features:
            raise BadInput(
                f"the columns of {shown(file.name)} may begin with 0 or with 1; add an entry of column 0, or of column "
                f"{features}, to a row"
            )
        X = X[:, 1:]
    if X.shape[1] > features:
        raise BadInput(f"{shown(file.name)} has {X.shape[1]} columns, but the model learned from {features}")
    X.resize(X.shape[0], features)
    return X


# ------------------------------------------------------------------------------------------- predictions


def write_predictions(file: Path, out: Path | None, found: Mapping[str, NDArray[Any]], allowed: Limit) -> None:
    """Write a file's columns and those ``found`` beside them: CSV, or Parquet as ``out`` says; None: standard output.

    Cells of a CSV file are copied as they stand; without a header the new columns have no names, either. npz and
    svmlight files have no columns to copy, and only those found are written. The file appears when it is whole. Raises
    :class:`~anyk.errors.BadInput` for a name that the file has already, for an extension other than .csv (of Parquet
    files also .parquet), and where nothing can be written.
    """
    kind = extension_of(file)
    check_out(file, out)
    if kind == ".parquet":
        _beside_parquet(file, out, found)
        return
    with _opened(out) as text:
        rows: Iterable[list[str]] = ([] for _ in next(iter(found.values())))
        header: list[str] | None = []
        if kind == ".csv":
            header, rows = _cells(file, allowed, len(next(iter(found.values()))))
        if header is not None:
            check_names(header, found, file)
        writer = csv.writer(text, lineterminator="\n")
        if header is not None:
            writer.writerow([*header, *found])
        for cells, *values in zip(rows, *(column.tolist() for column in found.values()), strict=True):
            writer.writerow([*cells, *values])


def check_out(file: Path, out: Path | None) -> None:
    """Raise before the work where predictions for ``file`` could not be written to ``out``."""
    kinds = (".csv", ".parquet") if extension_of(file) == ".parquet" else (".csv",)
    if out is None:
        return
    if out.suffix.lower() not in kinds:
        raise BadInput(
            f"predictions for {shown(file.name)} go to a file that ends in {' or '.join(kinds)}, got '{out}'"
        )
    if out.exists() and out.samefile(file):
        raise BadInput(f"'{out}' holds the rows themselves; give predictions another file")


def check_names(names: Iterable[str], found: Iterable[str], file: Path) -> None:
    """Raise where a file has a column already that is to be added."""
    there = {name.strip() for name in names}
    for name in found:
        if name in there:
            raise BadInput(f"{shown(file.name)} has a column '{name}' already; rename it")


@contextmanager
def _written(out: Path) -> Iterator[Path]:
    """Give a file to write, which takes the place of ``out`` when it is complete."""
    part = out.with_name(f"{out.name}.part")
    try:
        yield part
        part.replace(out)
    except OSError as error:
        raise BadInput(f"'{out}' cannot be written ({error.strerror or error})") from None
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def _opened(out: Path | None) -> Iterator[IO[str]]:
    if out is None:
        yield sys.stdout
        return
    with _written(out) as part, part.open("w", encoding="utf-8", newline="") as text:
        yield text


def _cells(file: Path, allowed: Limit, rows: int) -> tuple[list[str] | None, Iterator[list[str]]]:
    """A CSV file's header, None without one, and its rows of cells: as many as there are predictions."""

    def read() -> Iterator[list[str]]:
        with open_text(file, allowed) as text:
            yield from csv_rows(text, file)

    if sum(1 for _ in read()) == rows:
        return None, read()
    cells = read()
    return next(cells), cells


def _beside_parquet(file: Path, out: Path | None, found: Mapping[str, NDArray[Any]]) -> None:
    """Append to a Parquet file's columns."""
    import pyarrow
    from pyarrow import csv as arrow_csv
    from pyarrow import parquet

    with reading(file, "Parquet"):
        table = parquet.read_table(file, use_threads=False)
    check_names(map(str, table.column_names), found, file)
    for name, column in found.items():
        table = table.append_column(name, pyarrow.array(column.tolist()))
    if out is None:
        with reading(file, "Parquet"):
            plain = [table.column(name).to_pylist() for name in table.column_names]
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(table.column_names)
        writer.writerows(zip(*plain, strict=True))
        return
    with _written(out) as part:
        try:
            (parquet.write_table if out.suffix.lower() == ".parquet" else arrow_csv.write_csv)(table, part)
        except pyarrow.ArrowException as error:
            raise BadInput(f"the columns of {shown(file.name)} cannot be written to '{out}' ({error})") from None
