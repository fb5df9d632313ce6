"""Files of new rows for a trained model, and files of predictions for them."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from anyk.base.arrays import Array
from anyk.base.errors import BadInput, as_bad_input
from anyk.base.regular_files import replacing
from anyk.problems.base import Tell
from anyk.problems.data.user_files import extension_of, read_svmlight
from anyk.problems.predicting import Predictor
from anyk.tables import (
    Limit,
    Matrix,
    cell_chunks,
    limit,
    listed,
    open_text,
    read_csv,
    read_npz,
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
    """Return a file's rows as the model's columns of numbers, shape (rows, columns); see :meth:`Predictor.matrix`.

    CSV and Parquet: columns are matched by the names of the training data, or by order if those had no names; other
    columns, such as the target, are ignored. ``header``: whether the first row of a CSV file contains names; by default
    as in the training data, or detected if those had no columns. npz: the array ``X``. svmlight: columns beyond those
    of the training data are refused. Raises :class:`~anyk.BadInput` for a file that cannot be read or does not
    fit the model.
    """
    where, encoding = shown(file.name), predictor.encoding
    kind, allowed = extension_of(file, otherwise=encoding.format), memory_limit(file, max_gb)
    if kind in (".csv", ".parquet"):
        if kind == ".parquet":
            table = read_parquet(file, allowed, needed=[column.name for column in encoding.columns] or None, exact=True)
        else:
            header = encoding.named if header is None and encoding.columns else header
            table = read_csv(file, allowed, header=header, text=encoding.text)
        if not table.rows:
            raise BadInput(f"{where} has no rows")
        return predictor.matrix(table, where, tell)
    if kind == ".npz":
        arrays, names = read_npz(file, allowed, ("X",))
        if "X" not in arrays:
            raise BadInput(f"{where} holds {listed(names) or 'nothing'}, but needs the array X")
        return predictor.matrix(arrays["X"], where, tell)
    if encoding.columns:
        raise BadInput(f"{where} is svmlight, whose columns have numbers; the model learned from columns of a table")
    return predictor.matrix(_svmlight(file, predictor, allowed), where, tell)


def memory_limit(file: Path, max_gb: float | None) -> Limit:
    """Return the limit on the memory for a file of rows."""
    return limit(file, max_gb, remedy="; if you trust the file give --max-gb {:g}")


def _svmlight(file: Path, predictor: Predictor, allowed: Limit) -> Any:
    """Return the rows of a svmlight file with the model's number of columns."""
    base, features = predictor.encoding.base, predictor.features
    X: Any = read_svmlight(file, allowed, 0 if base is None else base)[0]
    if base is None and X.nnz and X.indices.min() > 0:  # the training data had no column numbers
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


def write_predictions(
    file: Path, out: Path | None, predictions: Mapping[str, Array], allowed: Limit, *, format: str | None = None
) -> None:
    """Write a file's columns and then ``predictions`` to ``out``, as CSV or Parquet; None: to standard output.

    Cells of a CSV file are copied unchanged; if it has no header, the new columns have no names. Of npz and svmlight
    files only the predictions are written. The file appears when it is complete. ``format``: the file's, if its
    extension is unknown. Raises
    :class:`~anyk.BadInput` if the file has a column of the same name, and if nothing can be written.
    """
    kind = extension_of(file, otherwise=format)
    if kind == ".parquet":
        _write_parquet_and_predictions(file, out, predictions)
        return
    rows = len(next(iter(predictions.values())))
    with _open_output(out) as stream:
        cells: Iterable[Sequence[str]] = ([] for _ in range(rows))
        header: list[str] | None = []
        if kind == ".csv":
            header, cells = _read_cells(file, allowed, rows)
        writer = csv.writer(stream, lineterminator="\n")
        if header is not None:
            _check_names(header, predictions, file)
            writer.writerow([*header, *predictions])
        for row_cells, *values in zip(cells, *(column.tolist() for column in predictions.values()), strict=True):
            writer.writerow([*row_cells, *values])


def check_output_file(file: Path, out: Path | None, *, format: str | None = None) -> None:
    """Raise BadInput if predictions for ``file`` cannot be written to ``out``."""
    if out is None:
        return
    kinds = (".csv", ".parquet") if extension_of(file, otherwise=format) == ".parquet" else (".csv",)
    if out.suffix.lower() not in kinds:
        raise BadInput(
            f"predictions for {shown(file.name)} go to a file that ends in {' or '.join(kinds)}, got '{out}'"
        )
    if out.exists() and out.samefile(file):
        raise BadInput(f"'{out}' holds the rows themselves; give predictions another file")


def _check_names(names: Iterable[str], added: Iterable[str], file: Path) -> None:
    """Raise BadInput if a file already has a column that is to be added."""
    present = {name.strip() for name in names}
    for name in added:
        if name in present:
            raise BadInput(f"{shown(file.name)} has a column '{name}' already; rename it")


@contextmanager
def _replacing_output(out: Path) -> Iterator[Path]:
    """Yield the path of a file that replaces ``out`` when it is complete; raise BadInput if that fails."""
    with as_bad_input(f"'{out}' cannot be written"), replacing(out) as unfinished:
        yield unfinished


@contextmanager
def _open_output(out: Path | None) -> Iterator[IO[str]]:
    if out is None:
        yield sys.stdout
        return
    with _replacing_output(out) as unfinished, unfinished.open("w", encoding="utf-8", newline="") as stream:
        yield stream


def _read_cells(file: Path, allowed: Limit, rows: int) -> tuple[list[str] | None, Iterator[Sequence[str]]]:
    """Return the header of a CSV file with this number of rows, None if it has no header, and the cells of its rows."""

    def read() -> Iterator[Sequence[str]]:
        with open_text(file, allowed) as stream:
            for columns in cell_chunks(stream, file):
                yield from zip(*columns, strict=True)

    cells = read()
    header = None if sum(1 for _ in read()) == rows else list(next(cells))
    return header, cells


def _write_parquet_and_predictions(file: Path, out: Path | None, predictions: Mapping[str, Array]) -> None:
    """Write the columns of a Parquet file and then the predictions."""
    import pyarrow
    from pyarrow import csv as arrow_csv
    from pyarrow import parquet

    with reading(file, "Parquet"):
        table = parquet.read_table(file, use_threads=False)
    _check_names(map(str, table.column_names), predictions, file)
    for name, column in predictions.items():
        table = table.append_column(name, pyarrow.array(column.tolist()))
    if out is None:
        with reading(file, "Parquet"):
            columns = [table.column(name).to_pylist() for name in table.column_names]
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(table.column_names)
        writer.writerows(zip(*columns, strict=True))
        return
    sentence = f"the columns of {shown(file.name)} cannot be written to '{out}'"
    with as_bad_input(sentence, pyarrow.ArrowException), _replacing_output(out) as unfinished:
        (parquet.write_table if out.suffix.lower() == ".parquet" else arrow_csv.write_csv)(table, unfinished)
