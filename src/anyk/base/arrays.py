"""Names of the types of arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
DType = np.dtype[Any]
Vector = NDArray[np.floating[Any]]
Vectors = dict[str, Vector]  # by name
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Indices = NDArray[np.int64]

# What a parameter that the loss does not use has in place of a gradient: a sum of numbers is never -0.0 if it starts
# from 0.0, while sums of -0.0, with positive weights, stay -0.0.
NO_GRADIENT = -0.0


def read_only(vector: Vector) -> Vector:
    """Return a view through which a vector cannot be written, as it is handed to a user's code."""
    view = vector.view()
    view.flags.writeable = False
    return view


def lacks_gradient(piece: Vector, *, unused: bool = False) -> bool:
    """Return whether a parameter's piece of a gradient says that it has none.

    ``unused``: whether it is known that the loss does not use the parameter. Negative weights and compression turn
    :data:`NO_GRADIENT` into 0.0, which then says the same.

    >>> lacks_gradient(np.array([-0.0, -0.0])), lacks_gradient(np.array([0.0, 0.0]))
    (True, False)
    """
    if not piece.size:
        return False
    first = piece.flat[0]
    if first != 0.0 or not (unused or np.signbit(first)):
        return False
    return not piece.any() and (unused or bool(np.signbit(piece).all()))
