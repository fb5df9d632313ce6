"""Predictions for new rows by a trained vector, with the names, categories and labels that it was trained on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from datetime import date
from typing import Any, NamedTuple

import msgspec
import numpy as np

from anyk.base.arrays import Array, Floats, Vector
from anyk.base.checks import value_class
from anyk.base.errors import BadInput
from anyk.problems.base import Index, Tell
from anyk.problems.linear.scaling import Scaling, array_of, in_units, model_columns
from anyk.tables import Encoding, Matrix, Table, check_finite

_EXACT = 2.0**53  # up to here each whole number is a float64


def layers_of(w: Vector, features: int, hidden: int, outputs: int) -> tuple[Vector, Vector, Vector, Vector]:
    """Return views of a flat model: weights (features x hidden), bias, weights (hidden x outputs), bias."""
    a = features * hidden
    b = a + hidden
    c = b + hidden * outputs
    return w[:a].reshape(features, hidden), w[a:b], w[b:c].reshape(hidden, outputs), w[c:]


def scores_of(X: Any, w: Vector, *shape: int) -> Floats:
    """Return the scores of rows, shape (rows, outputs); ``shape``: numbers of features, hidden units and outputs."""
    first, bias, second, offset = layers_of(w, *shape)
    return np.asarray(np.tanh(X @ first + bias) @ second + offset, dtype=float)


def likeliest_class(scores: Vector) -> Index:
    """Return the number of each row's likeliest class; of two classes there is one score, of the second."""
    return (scores[:, 0] > 0).astype(np.intp) if scores.shape[1] == 1 else scores.argmax(axis=1)


class Coefficients(NamedTuple):
    """A linear model in the units of its input: scores are ``X @ weights + intercepts``.

    ``names``: the columns (text has one column for each category); ``weights``: shape (columns, outputs);
    ``intercepts``: shape (outputs,); ``outputs``: the names of the scores: the second of two classes, each of several
    classes, or the target.
    """

    names: tuple[str, ...]
    weights: Floats
    intercepts: Floats
    outputs: tuple[str, ...]


@value_class
class Predictor:
    """The meaning of a flat vector as a model of rows, without the vector itself.

    ``kind``: ``logistic``, ``softmax``, ``least-squares`` or ``two-layer`` (with ``hidden`` units); ``features``:
    columns of X, ``outputs``: scores of a row; ``classes``: the labels; ``center``, ``scale``, ``target``: see
    :class:`~anyk.problems.linear.scaling.Scaling`, empty without one.

    >>> import anyk
    >>> problem = anyk.problems.LeastSquares([[0.0], [2.0]], [1.0, 5.0], intercept=True)
    >>> problem.predictor().predict(np.array([2.0, 1.0]), [[0.5], [1.0]]).tolist()
    [2.0, 3.0]
    """

    kind: str
    features: int
    outputs: int
    intercept: bool
    hidden: int = 0
    classes: tuple[float | str, ...] = ()
    encoding: Encoding = field(default_factory=Encoding)
    center: tuple[float, ...] = ()
    scale: tuple[float, ...] = ()
    target: float = 0.0

    # ------------------------------------------------------------------------------------------- predictions

    def predict(self, w: Vector, X: Any, *, tell: Tell | None = None) -> Array:
        """Return the likeliest label of each row, or its value; ``X``: see :meth:`matrix`."""
        return self.decided(self.scores(w, self.matrix(X, "X", tell)))

    def decided(self, scores: Floats) -> Array:
        """Return the labels or values, shape (rows,), that follow from scores (rows, outputs)."""
        if not self.classes:
            return scores[:, 0]
        return np.asarray(self.labels[likeliest_class(scores)])

    def chances(self, scores: Floats) -> Floats:
        """Return probabilities, shape (rows, classes); raise :class:`~anyk.BadInput` if there are no classes."""
        from scipy.special import expit, softmax

        self.check_classes()
        if self.outputs > 1:
            return np.asarray(softmax(scores, axis=1))
        return np.column_stack([expit(-scores[:, 0]), expit(scores[:, 0])])

    def check_classes(self) -> None:
        """Raise :class:`~anyk.BadInput` if there are no classes, and so no probabilities."""
        if not self.classes:
            raise BadInput("the model predicts numbers, which have no probabilities; leave probabilities out")

    def scores(self, w: Vector, X: Matrix) -> Floats:
        """Return the scores of rows, shape (rows, outputs)."""
        if self.kind == "two-layer":
            return scores_of(X, w, self.features, self.hidden, self.outputs)
        weights, intercepts = in_units(w, self.outputs, self.intercept, self._scaling)
        return np.asarray(X @ weights + intercepts, dtype=float)

    @property
    def labels(self) -> Array:
        """The classes: text, integers or numbers."""
        if any(isinstance(one, str) for one in self.classes):
            return np.array(list(map(str, self.classes)), dtype=object)
        numbers = np.array(self.classes, dtype=float)
        whole = (numbers == np.floor(numbers)).all() and (np.abs(numbers) <= _EXACT).all()
        return numbers.astype(np.int64) if whole else numbers

    def coefficients(self, w: Vector) -> Coefficients:
        """Return the model in the units of the input; raise :class:`~anyk.BadInput` if it is not linear."""
        if self.kind == "two-layer":
            raise BadInput("a two-layer network has no coefficients; its weights are run.model")
        weights, intercepts = in_units(w, self.outputs, self.intercept, self._scaling)
        names = self.encoding.names or tuple(f"column {i}" for i in range(self.features))
        classes = tuple(map(str, self.labels.tolist())) if self.classes else (self.encoding.label or "value",)
        return Coefficients(names, weights, intercepts, classes[-1:] if self.outputs == 1 else classes)

    # ------------------------------------------------------------------------------------------- rows

    def matrix(self, X: Any, where: str, tell: Tell | None = None) -> Matrix:
        """Return rows as the model's columns of numbers.

        ``X`` is a table with names (a data frame, a dictionary of columns, a :class:`~anyk.tables.Table`), whose
        columns may be in any order and more than the model needs, or an array with the model's columns in order; in a
        sparse array columns of text are encoded. Raises :class:`~anyk.BadInput` if it does not fit the model.
        """
        from scipy import sparse

        if sparse.issparse(X):
            if X.ndim != 2:
                raise BadInput(f"{where} must be a table (rows x columns), got shape {X.shape}")
            return self._plain(sparse.csr_array(X), where)
        if hasattr(X, "column_names") and hasattr(X, "to_pandas"):  # a table of PyArrow
            X = X.to_pandas()
        if isinstance(X, Table):
            table = X
        elif isinstance(X, Mapping) or hasattr(X, "columns"):
            names = list(X) if isinstance(X, Mapping) else list(X.columns)
            table = Table(tuple(map(str, names)), tuple(_column(X[name], where) for name in names), True)
        else:
            return self._matrix_of_array(array_of(X, where), where, tell)
        if len({len(column) for column in table.columns}) > 1:
            raise BadInput(f"the columns of {where} are not equally long")
        if self.encoding.columns:
            places = self.encoding.places(table.names, where, header=table.header)
            return self.encoding.encode([table.columns[index] for index in places], where, tell)
        for name, column in zip(table.names, table.columns, strict=True):
            if column.dtype.kind != "f":
                raise BadInput(f"column '{name}' of {where} holds text, but the model learned from numbers alone")
        return self._plain(np.column_stack(table.columns), where)

    def _matrix_of_array(self, values: Array, where: str, tell: Tell | None) -> Matrix:
        """Return rows without columns' names, which are in the model's order, as the model's columns of numbers."""
        if values.ndim != 2:
            raise BadInput(f"{where} must be a table (rows x columns), got shape {values.shape}")
        if not self.encoding.columns:
            return self._plain(values, where)
        columns = tuple(_column(column, where) for column in values.T)
        self._check_width(len(columns), len(self.encoding.columns), where)
        return self.encoding.encode(columns, where, tell)

    def _plain(self, X: Any, where: str) -> Matrix:
        """Return numbers that need no encoding, after checks; a last column of ones may be left out."""
        if self.encoding.constant and X.shape[1] == self.features - 1:
            X = model_columns(X, None, True)
        self._check_width(X.shape[1], self.features, where)
        if X.dtype.kind not in "biuf":
            raise BadInput(f"{where} must hold numbers, got {X.dtype}")
        encoded: Matrix = X.astype(float)
        check_finite(encoded, where, self.encoding.names)
        return encoded

    def _check_width(self, columns: int, expected: int, where: str) -> None:
        if columns != expected:
            raise BadInput(f"{where} has {columns} columns, but the model learned from {expected}")

    @property
    def _scaling(self) -> Scaling | None:
        return Scaling(np.array(self.center), np.array(self.scale), target=self.target) if self.scale else None

    # ------------------------------------------------------------------------------------------- files

    def encoded(self) -> bytes:
        """Return the predictor as JSON."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1)

    @classmethod
    def decoded(cls, text: bytes) -> Predictor:
        """Return the predictor that :meth:`encoded` wrote; raise ValueError for any other text."""
        predictor = msgspec.json.decode(text, type=cls)
        wide = predictor.encoding.width if predictor.encoding.columns else predictor.features
        if (
            wide != predictor.features
            or len(predictor.scale) not in (0, predictor.features)
            or len(predictor.center) != len(predictor.scale)
        ):
            raise ValueError("its parts do not fit together")
        return predictor


def _column(values: object, where: str) -> Array:
    """Return a column in the form of a table's: numbers with NaN, or text with None."""
    import pandas

    array: Array = array_of(values, f"a column of {where}")
    if array.ndim != 1:
        raise BadInput(f"a column of {where} must be a list of values, one for each row, got shape {array.shape}")
    if array.dtype.kind in "biuf":
        return array.astype(float)
    if array.dtype.kind == "M":
        words = np.datetime_as_string(array, unit="us").astype(object)
        words[np.isnat(array)] = None
        return words
    if array.dtype.kind not in "OUT":
        raise BadInput(f"{where} holds {array.dtype} values, which are neither numbers nor text")
    column = array.astype(object)
    absent = pandas.isna(column)
    column = np.array([cell.isoformat() if isinstance(cell, date) else cell for cell in column], dtype=object)
    is_text = all(isinstance(cell, str) for cell in column[~absent])
    column[absent] = None if is_text else np.nan
    try:
        return column if is_text else column.astype(float)
    except (TypeError, ValueError):
        raise BadInput(f"a column of {where} holds numbers and text together; make it one of the two") from None
