"""Checks of a linear model's input, scaling of columns to comparable sizes, and models in the units of the input."""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from anyk.base.arrays import DType, Floats, Vector
from anyk.base.checks import FiniteNumber, NonnegativeNumber, check_unmasked, check_value
from anyk.base.errors import BadInput
from anyk.tables import check_sizes, shown

_ROUNDED = 1e-6  # part of its intercept by which a model may differ from one without


def design_of(X: Any, name: str) -> Any:
    """Return ``X`` as a finite 2-D array or CSR array of floats; float32 stays, all else becomes float64."""
    from scipy import sparse

    is_sparse: bool = sparse.issparse(X)
    if is_sparse:
        X = sparse.csr_array(X, copy=True)  # the caller's is not changed
        X.sum_duplicates()
        values = X.data
    else:
        X = _numbers_of(X, array_of(X, name))
        if X.ndim != 2:
            raise BadInput(f"{name} must be a table (rows x columns), got shape {X.shape}")
        values = X
    if values.dtype.kind not in "biuf":
        raise BadInput(f"{name} must hold numbers, got {values.dtype}")
    if values.dtype != np.float32:
        X = X.astype(float, copy=False)
    bad = int(np.size(values) - np.count_nonzero(np.isfinite(values)))
    if bad:
        raise BadInput(f"{name} has {bad} values that are NaN or infinite; drop or fill those rows first")
    check_sizes(X, name)
    return X if is_sparse else np.ascontiguousarray(X)


def _numbers_of(X: Any, values: Any) -> Any:
    """Return the values of a data frame as numbers, where its columns are of different types of them."""
    if values.dtype.kind != "O" or not hasattr(X, "iloc") or any(kind.kind not in "biuf" for kind in X.dtypes):
        return values
    return np.column_stack([X.iloc[:, i].to_numpy(dtype=float, na_value=np.nan) for i in range(X.shape[1])])


def names_of_columns(X: object) -> tuple[str, ...]:
    """Return the names of a table's columns as text (of pandas or PyArrow), if they differ; else none."""
    names: Any = getattr(X, "column_names", None)
    if names is None:
        names = getattr(X, "columns", ())
    texts = tuple(map(str, names))
    return texts if len(set(texts)) == len(texts) else ()


def array_of(values: Any, name: str) -> Any:
    """Return an array; raise :class:`~anyk.BadInput` for rows of different lengths and for masked values."""
    check_unmasked(values, name)
    try:
        return np.asarray(values)
    except (TypeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise BadInput(f"{name} must hold values in rows of equal length; NumPy says: {reason}") from None


def checked_l2(l2: float) -> float:
    """Return the regulariser's factor; raise :class:`~anyk.BadInput` if it is invalid."""
    return float(check_value(l2, NonnegativeNumber, "l2"))


def row_weights(weights: ArrayLike, rows: int, name: str = "weights") -> Floats:
    """Return weights of rows divided by their mean; raise :class:`~anyk.BadInput` for invalid weights."""
    values = array_of(weights, name)
    if values.shape != (rows,):
        raise BadInput(f"{name} must hold one number for each of the {rows} rows, got shape {values.shape}")
    if values.dtype.kind not in "biuf" or not np.isfinite(values).all() or (values < 0).any():
        raise BadInput(f"{name} must be finite numbers of at least 0")
    if not values.any():
        raise BadInput(f"all {name} are zero; at least one row must have a weight above 0")
    return np.asarray(values / values.mean(dtype=float), dtype=float)


def encode_labels(labels: Floats, classes: Floats, kind: str, name: str, where: str) -> Floats:
    """Return labels as a model of this ``kind`` needs them; raise BadInput if some are not among the ``classes``.

    ``name``: what has the labels; ``where``: what has the classes.
    """
    if unknown := np.setdiff1d(labels, classes).tolist():
        raise BadInput(f"{name} has labels that are not in {where}: {unknown}")
    return np.where(labels == classes[1], 1.0, -1.0) if kind == "logistic" else labels


Mask = NDArray[np.bool_]
_UNEVEN = 1e3  # ratio of the sizes of columns above which training without scaling is advised against


@dataclass(frozen=True, eq=False)
class Scaling:
    """The conversion of columns into a model's columns, ``z = (x - center) / scale``; both of shape (columns,).

    ``units``, of the same shape: the regulariser acts on the weights of ``x / units``, by default on the weights of
    ``x``. In sparse data only columns with entries in half of the rows or more have a center, so that they stay sparse.
    A model converts exactly between both units: ``z.v + b = x.(v / scale) + (b - center.(v / scale))``. ``target`` is
    subtracted from numbers to predict, so that the model learns how they differ from it.

    >>> scaling = Scaling.standard(np.array([[1.0, 5.0], [3.0, 5.0]]))
    >>> scaling.center.tolist(), scaling.scale.tolist()
    ([2.0, 0.0], [1.0, 1.0])
    """

    center: Floats
    scale: Floats
    units: Floats | None = None
    target: float = 0.0

    @classmethod
    def standard(
        cls, X: Any, weights: Floats | None = None, *, categories: Mask | None = None, ridge: float = 0.0
    ) -> Scaling:
        """Return the scaling to mean 0 and variance 1 (columns without a center: variance 1); constant columns stay.

        ``X``: rows x columns, dense or sparse; ``weights``: of the rows; ``categories``, ``ridge``: see
        :meth:`from_moments`. Raises :class:`~anyk.BadInput` if the numbers are too large to be squared.
        """
        from sklearn.preprocessing import StandardScaler

        dense = isinstance(X, np.ndarray)
        low, high = extremes(X)
        with np.errstate(over="ignore", invalid="ignore"):
            scaler = StandardScaler(with_mean=dense).fit(X.astype(float, copy=False), sample_weight=weights)
            mean, deviation = np.array(scaler.mean_), np.array(scaler.scale_)
            # far from 0 compared with its spread, a column counts as constant there: consecutive identifiers, say
            far = np.flatnonzero((low != high) & (deviation == 1.0))
            if far.size:
                columns = X[:, far] if dense else X[:, far].toarray()
                near = StandardScaler().fit(columns - low[far], sample_weight=weights)
                mean[far], deviation[far] = low[far] + near.mean_, near.scale_
        return cls.from_moments(
            mean, deviation, constant=low == high, full=_full(X), categories=categories, ridge=ridge
        )

    @classmethod
    def from_moments(
        cls,
        mean: Floats,
        deviation: Floats,
        *,
        constant: Mask,
        full: Mask,
        categories: Mask | None = None,
        ridge: float = 0.0,
    ) -> Scaling:
        """Return the scaling of :meth:`standard` for columns with these means and standard deviations.

        ``constant``: columns of one value; ``full``: columns with entries in half of the rows or more. The regulariser
        acts on the weights of the scaled columns. ``categories``: columns of zeros and ones that encode text. As these
        have no unit, the regulariser acts on their original weights (with standardised columns the model could learn
        rare categories by heart); only steps are taken in ``x / sqrt(mean of x^2 + ridge)``, where ``ridge`` is the
        regulariser's factor divided by the largest curvature of a sample's loss.
        """
        center = np.where(constant | ~full, 0.0, mean)
        scale = np.where(constant | (deviation == 0.0), 1.0, _beyond_rounding(deviation, center, np.float64))
        if categories is None or not categories.any():
            return cls(center, scale, scale).checked()
        present = categories & (mean > 0.0)
        return cls(
            np.where(categories, 0.0, center),
            np.where(categories, np.sqrt(np.where(present, mean + ridge, 1.0)), scale),
            np.where(categories, 1.0, scale),
        ).checked()

    @classmethod
    def curved(
        cls,
        X: Any,
        weights: Floats | None,
        *,
        curvature: float,
        l2: float,
        centered: bool,
        target: float = 0.0,
    ) -> Scaling:
        """Return the scaling to columns in which the bound of the objective's Hessian has a diagonal of ones.

        ``scale^2 = curvature * mean of x^2 + l2`` for each column, whose mean is subtracted first if ``centered`` (an
        intercept makes up for it). The condition number is within a factor of the number of columns of the best that a
        diagonal scaling can give (van der Sluis 1969). Raises the same errors as :meth:`standard`.
        """
        shares = np.full(X.shape[0], 1.0 / X.shape[0]) if weights is None else weights / weights.sum()
        center = np.where(_full(X), X.T @ shares, 0.0) if centered else np.zeros(X.shape[1])
        with np.errstate(over="ignore", invalid="ignore"):
            squares = _mean_of_squares(X, center, shares)
        scale = np.sqrt(curvature * squares + l2)
        scale = _beyond_rounding(scale, center * np.sqrt(curvature), X.dtype)
        return cls(center, np.where(scale == 0.0, 1.0, scale), target=target).checked()

    def checked(self) -> Scaling:
        """Return the scaling itself; raise :class:`~anyk.BadInput` if it is not finite."""
        bad = np.flatnonzero(~(np.isfinite(self.center) & np.isfinite(self.scale)))
        if bad.size:
            raise BadInput(f"the numbers of column {bad[0]} are too large to be standardised; divide them first")
        return self

    def of_columns(self, columns: int, where: str = "X") -> Scaling:
        """Return the scaling as arrays of floats; raise :class:`~anyk.BadInput` if it does not fit ``where``."""

        def checked(given: Floats, name: str, *, positive: bool = True) -> Floats:
            values = array_of(given, name)
            numeric = values.dtype.kind in "biuf"
            if not numeric or values.shape != (columns,):
                found = f"shape {values.shape}" if numeric else values.dtype
                raise BadInput(f"{name} must hold one number for each of the {columns} columns of {where}, got {found}")
            if not np.isfinite(values).all() or (positive and not (values > 0).all()):
                finite = "finite numbers above 0" if positive else "finite numbers"
                raise BadInput(f"{name} must hold {finite}, got {reprlib.repr(values.tolist())}")
            return np.asarray(values, dtype=float)

        return Scaling(
            center=checked(self.center, "the scaling's center", positive=False),
            scale=checked(self.scale, "the scaling's scale"),
            units=None if self.units is None else checked(self.units, "the scaling's units"),
            target=float(check_value(self.target, FiniteNumber, "the scaling's target")),
        )

    def apply(self, X: Any) -> Any:
        """Return a copy of ``X`` in the model's columns, in the precision of ``X``."""
        if isinstance(X, np.ndarray):
            scaled = X - self.center.astype(X.dtype)
            scaled /= self.scale.astype(X.dtype)
            return scaled
        scaled = X.copy()
        if self.center.any():
            from scipy import sparse

            ones = sparse.csr_array(np.ones((X.shape[0], 1), dtype=X.dtype))
            scaled = sparse.csr_array(scaled - ones @ sparse.csr_array(self.center[None, :].astype(X.dtype)))
        scaled.sort_indices()  # now: sorted later, the same data would have another digest
        scaled.data /= self.scale.astype(X.dtype)[scaled.indices]
        return scaled

    def undone(self, weights: object, intercepts: object) -> tuple[Floats, Floats]:
        """Return a model in the units of the input: weights (columns x outputs) and intercepts (outputs,)."""
        W = np.asarray(weights, dtype=float) / self.scale[:, None]
        return W, np.asarray(intercepts, dtype=float) - self.center @ W + self.target

    def done(self, weights: object, intercepts: object) -> tuple[Floats, Floats]:
        """Return a model in scaled columns, the inverse of :meth:`undone`."""
        W = np.asarray(weights, dtype=float)
        return W * self.scale[:, None], np.asarray(intercepts, dtype=float) + self.center @ W - self.target


def _beyond_rounding(scale: Floats, center: Floats, dtype: Any) -> Floats:
    """Return scales, replaced where columns differ from their center by rounding only.

    Rounding must not be amplified, so that the scale is then at least 1. Nor may a column of large numbers dominate the
    others, so that it is at least the size of the rounding.
    """
    rounding = 4 * np.finfo(dtype).eps * np.abs(center)
    return np.where(scale > rounding, scale, np.where(rounding > 0.0, np.maximum(rounding, 1.0), scale))


def extremes(X: Any) -> tuple[Floats, Floats]:
    """Return the least and the largest number of each column, both of shape (columns,)."""
    low, high = X.min(axis=0), X.max(axis=0)
    return (low, high) if isinstance(X, np.ndarray) else (low.toarray().reshape(-1), high.toarray().reshape(-1))


def uneven_columns(low: Floats, high: Floats, names: Sequence[str]) -> str | None:
    """Return a sentence if the largest absolute values of columns differ by more than a factor of 1,000, or None.

    >>> low, high = np.array([-2e6, 0.0]), np.array([3.0, 1.0])
    >>> print(uneven_columns(low, high, ()))  # doctest: +NORMALIZE_WHITESPACE
    column 0 holds numbers 2,000,000 times as large as column 1, so that steps hardly learn from the smaller one; bring
    columns to similar sizes, or give a linear model standardize=true
    """
    sizes = np.maximum(high, -low).astype(float)
    present = np.flatnonzero(sizes > 0.0)
    if not present.size:
        return None
    small, large = present[sizes[present].argmin()], present[sizes[present].argmax()]
    ratio = float(sizes[large] / sizes[small])
    if not ratio > _UNEVEN:
        return None
    first, second = (f"column '{shown(names[i])}'" if len(names) else f"column {i}" for i in (large, small))
    times = f"{float(f'{ratio:.2g}'):,.0f}" if ratio < 1e12 else f"{ratio:.1e}"
    return (
        f"{first} holds numbers {times} times as large as {second}, so that steps hardly learn from the smaller one; "
        "bring columns to similar sizes, or give a linear model standardize=true"
    )


def model_columns(X: Any, scaling: Scaling | None, intercept: bool) -> Any:
    """Return the columns that a model learns from: scaled, and with a last column of ones for an intercept."""
    if scaling is not None:
        X = scaling.apply(X)
    if not intercept:
        return X
    ones = np.ones((X.shape[0], 1), dtype=X.dtype)
    if isinstance(X, np.ndarray):
        return np.hstack([X, ones])
    from scipy import sparse

    return sparse.hstack([X, sparse.csr_array(ones)], format="csr")


def start_in_columns(
    start: object, features: int, outputs: int, *, scaling: Scaling | None, intercept: bool
) -> tuple[Floats, Floats]:
    """Return weights (features x outputs) and intercepts (outputs,) in scaled columns; ``start``: in the input's units.

    Raises :class:`~anyk.BadInput` if it is something else.
    """
    expected = (features, outputs), (outputs,)
    if not isinstance(start, tuple | list) or len(start) != 2:
        raise BadInput(f"start must be a pair of weights and intercepts, got {reprlib.repr(start)}")
    arrays = [array_of(array, "start") for array in start]
    shapes = tuple(array.shape for array in arrays)
    if shapes != expected:
        raise BadInput(
            f"start must be weights of shape {expected[0]} and intercepts of shape {expected[1]}, got {shapes[0]} "
            f"and {shapes[1]}"
        )
    if not all(array.dtype.kind in "biuf" and np.isfinite(array).all() for array in arrays):
        raise BadInput("start must hold finite numbers")
    if scaling is None:
        weights, intercepts = arrays[0].astype(float), arrays[1].astype(float)
    else:
        weights, intercepts = scaling.done(*arrays)
    if not intercept and not np.allclose(intercepts, 0.0, atol=_ROUNDED * max(1.0, abs(arrays[1]).max())):
        raise BadInput("start has intercepts, and the model has none; give intercept=True, or zeros")
    return weights, intercepts


def in_units(w: object, outputs: int, intercept: bool, scaling: Scaling | None) -> tuple[Floats, Floats]:
    """Return a flat model as weights (columns x outputs) and intercepts (outputs,) in the units of the input."""
    W = np.asarray(w, dtype=float).reshape(-1, outputs)
    weights, intercepts = (W[:-1], W[-1]) if intercept else (W, np.zeros(outputs))
    return (weights, intercepts) if scaling is None else scaling.undone(weights, intercepts)


def _full(X: Any) -> Mask:
    """Return a mask of the columns with entries in half of the rows or more."""
    rows, columns = X.shape
    if isinstance(X, np.ndarray):
        return np.ones(columns, dtype=bool)
    return np.asarray(2 * np.bincount(X.indices, minlength=columns) >= rows)


def _mean_of_squares(X: Any, center: Floats, shares: Floats) -> Floats:
    """Return the weighted mean of squares of each column less its center, computed block by block."""
    if not isinstance(X, np.ndarray):
        X = Scaling(center, np.ones(len(center))).apply(X)
        return np.asarray(X.multiply(X).T @ shares, dtype=float).reshape(-1)
    total = np.zeros(X.shape[1])
    for begin in range(0, X.shape[0], 4096):
        block = X[begin : begin + 4096] - center
        total += shares[begin : begin + 4096] @ (block * block)
    return total


def penalty_factors(
    l2: float, scaling: Scaling | None, *, columns: int, outputs: int, intercept: bool, dtype: DType
) -> float | Vector:
    """Return the regulariser's factor of all coordinates of a model, or of each, shape (columns * outputs,).

    ``columns``: the model's, with the ``intercept``, if there is one, as the last, which is not regularised.
    """
    in_own_units = scaling is None or (scaling.units is not None and np.array_equal(scaling.units, scaling.scale))
    if not l2 or (in_own_units and not intercept):
        return l2
    factors = np.full((columns, outputs), l2)
    if scaling is not None and not in_own_units:
        if scaling.units is not None:
            factors[: len(scaling.scale)] *= (scaling.units**2)[:, None]
        factors[: len(scaling.scale)] /= (scaling.scale**2)[:, None]
    if intercept:
        factors[-1] = 0.0
    return factors.reshape(-1).astype(dtype)
