"""Checks of a linear model's input: a table of finite numbers, weights of rows, the regulariser."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from anyk.checks import NonnegativeNumber, check
from anyk.errors import BadInput
from anyk.problems.base import Floats


def design_of(X: Any, name: str) -> Any:
    """Return ``X`` as a finite 2-D array or CSR array of floats; float32 stays, all else becomes float64."""
    from scipy import sparse

    is_sparse: bool = sparse.issparse(X)
    if is_sparse:
        X = sparse.csr_array(X, copy=True)  # the caller's is not changed
        X.sum_duplicates()
        values = X.data
    else:
        X = np.asarray(X)
        if X.ndim != 2:
            raise BadInput(f"{name} must be a table (rows x columns), got shape {X.shape}")
        values = X
    if not (np.issubdtype(values.dtype, np.number) or values.dtype == bool) or np.iscomplexobj(values):
        raise BadInput(f"{name} must hold numbers, got {values.dtype}")
    if values.dtype != np.float32:
        X = X.astype(float, copy=False)
    bad = int(np.size(values) - np.count_nonzero(np.isfinite(values)))
    if bad:
        raise BadInput(f"{name} has {bad} values that are NaN or infinite; drop or fill those rows first")
    return X if is_sparse else np.ascontiguousarray(X)


def checked_l2(l2: float) -> float:
    """Return the regulariser's factor; raise :class:`~anyk.errors.BadInput` if it is invalid."""
    return float(check(l2, NonnegativeNumber, "l2"))


def row_weights(weights: ArrayLike, rows: int, name: str = "weights") -> Floats:
    """Return weights of rows divided by their mean; raise :class:`~anyk.errors.BadInput` for invalid weights."""
    values = np.asarray(weights)
    if values.shape != (rows,):
        raise BadInput(f"{name} must hold one number for each of the {rows} rows, got shape {values.shape}")
    if values.dtype.kind not in "biuf" or not np.isfinite(values).all() or (values < 0).any():
        raise BadInput(f"{name} must be finite numbers of at least 0")
    if not values.any():
        raise BadInput(f"all {name} are zero; at least one row must have a weight above 0")
    return np.asarray(values / values.mean(dtype=float), dtype=float)
