"""What a code is made of: arrays that nobody can write to, and rows that exist."""

from __future__ import annotations

import inspect
import operator
from abc import ABCMeta
from collections.abc import Callable
from functools import cached_property, wraps
from math import isfinite
from numbers import Number, Real
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np

from anyk.errors import BadInput

if TYPE_CHECKING:
    import scipy.sparse

    from anyk.codes.base import Code

T = TypeVar("T")


LEFT_OUT: Any = None  # stands for a parameter that is computed when it is left out; afterwards it is a fact of the code


def frozen(value: T) -> T:
    """``value`` with its arrays read-only; those of sparse matrices and inside tuples, too."""
    if isinstance(value, np.ndarray):
        value.flags.writeable = False
    elif isinstance(value, tuple):
        for part in value:
            frozen(part)
    elif hasattr(value, "indptr"):
        matrix: Any = value
        matrix.sum_duplicates()  # SciPy would do it in place when it is next asked for a sum
        frozen((matrix.data, matrix.indices, matrix.indptr))
    return value


class fixed_property(cached_property[T]):
    """A cached property whose arrays are read-only: decoders, workers and users read the same ones."""

    def __init__(self, make: Callable[[Any], T]) -> None:
        @wraps(make)
        def made(code: Any) -> T:
            return frozen(make(code))

        super().__init__(made)


class ReadOnly:
    """A base class whose copies and unpickled objects have read-only arrays as well, which NumPy alone forgets.

    Of a user's class these are the ones kept by :class:`fixed_property`.
    """

    def __setstate__(self, state: dict[str, Any]) -> None:
        ours = type(self).__module__.startswith("anyk.")
        for name, value in state.items():
            if ours or isinstance(getattr(type(self), name, None), fixed_property):
                frozen(value)
        self.__dict__.update(state)


class Checked(ABCMeta):
    """The type of :class:`~anyk.codes.Code`: looks at each code of a user's class as soon as it is made.

    anyk's own are not looked at: some build their rows only when these are needed, and tests hold them right.
    """

    @property
    def __signature__(cls) -> inspect.Signature:
        """That of the constructor, which the method below would hide from help, and from specs."""
        parameters = list(inspect.signature(cast(Any, cls).__init__).parameters.values())[1:]
        return inspect.Signature(parameters)

    def __call__(cls, *args: Any, **keys: Any) -> Any:
        """Make a code, and look at it."""
        code = super().__call__(*args, **keys)
        if not cls.__module__.startswith("anyk."):
            try:
                check(code)
            except BadInput as error:
                raise BadInput(f"{cls.__name__}: {error}") from None
        return code


def check(code: Code) -> None:
    """Raise :class:`~anyk.errors.BadInput` for rows, a matrix or orders that cannot be."""
    for name in ("workers", "partitions", "messages", "blocks"):
        value = getattr(code, name)
        if not _is_whole(value) or value < 1:
            raise BadInput(f"{name} must be a whole number of at least 1, got {value!r}")
    if not _is_whole(code.tolerates) or not 0 <= code.tolerates < code.replies:
        raise BadInput(f"tolerates must be 0 to {code.replies - 1} stragglers, got {code.tolerates!r}")
    rows = code.rows
    if not hasattr(rows, "__len__"):
        raise BadInput(f"rows must be a sequence, got {rows!r}")
    if len(rows) != code.replies:
        each = f"{code.messages} message{'s' * (code.messages != 1)} each"
        raise BadInput(f"the code has {len(rows)} rows; {code.workers} workers with {each} need {code.replies}")
    for i, row in enumerate(rows):
        _check_row(i, row, code.partitions, code.blocks)
    _check_encoding(code)
    _ = code.encoding, code.assignment  # made now, of the rows that have been looked at
    orders = getattr(code, "orders", None)
    if orders is not None:
        _check_orders(orders, code)


def _is_whole(value: Any) -> bool:
    return hasattr(type(value), "__index__") and not isinstance(value, bool)


def _is_finite(value: Any) -> bool:
    return isinstance(value, Real) and isfinite(value)


def _check_row(i: int, row: Any, partitions: int, blocks: int) -> None:
    try:
        held, coefficients = row
        sizes = len(held), len(coefficients)
    except (TypeError, ValueError):
        raise BadInput(f"row {i} must be (partitions, coefficients), got {row!r}") from None
    for j in held:
        if not _is_whole(j):
            raise BadInput(f"row {i} holds partition {j!r}, which is not a whole number")
        if not 0 <= j < partitions:
            raise BadInput(f"row {i} holds partition {j}; there are {partitions} (0 to {partitions - 1})")
    numbers = [operator.index(j) for j in held]
    if len(set(numbers)) < len(numbers):
        twice = next(j for j in numbers if numbers.count(j) > 1)
        raise BadInput(f"row {i} holds partition {twice} twice; add its coefficients up")
    if sizes[1] != sizes[0] * blocks:
        each = f"{blocks} (blocks={blocks})" if blocks > 1 else "one"
        raise BadInput(
            f"the number of row {i}'s coefficients must be {sizes[0] * blocks}, {each} for each of its partitions, "
            f"got {sizes[1]}"
        )
    for value in coefficients:
        if not _is_finite(value):
            said = value if isinstance(value, Number) else repr(value)
            raise BadInput(f"row {i} has coefficient {said}; they must be finite numbers")


def _check_encoding(code: Code) -> None:
    """That a matrix of a class's own is that of its rows; the one that is made of the rows is."""
    from anyk.codes.base import Code, MatrixCode

    if type(code).encoding in (Code.encoding, MatrixCode.encoding):
        return
    shape = code.replies, code.partitions * code.blocks
    differs = abs(valid_matrix(code.encoding, shape) - Code.encoding.func(code))
    if differs.nnz and differs.max() > 0:
        row = int(np.flatnonzero(np.asarray(differs.sum(axis=1)).ravel())[0])
        raise BadInput(f"the encoding is not that of the rows: row {row} differs")


def _check_orders(orders: Any, code: Code) -> None:
    from anyk.codes.base import Code

    assignment = Code.assignment.func(code)  # of the rows, wherever a class takes its own from
    if len(orders) != len(assignment):
        raise BadInput(f"orders must be one for each of {len(assignment)} workers, got {len(orders)}")
    for i, (order, held) in enumerate(zip(orders, assignment, strict=True)):
        if sorted(order) != sorted(held):
            raise BadInput(f"orders[{i}] must list the partitions of worker {i}, {held}, got {order}")


def valid_matrix(matrix: Any, shape: tuple[int, int]) -> scipy.sparse.csr_array:
    """A copy of a matrix (sparse or dense); one that cannot be an encoding is refused."""
    from scipy.sparse import csr_array, issparse

    if not issparse(matrix):
        matrix = np.asarray(matrix)
    if matrix.shape != shape:
        raise BadInput(f"the encoding must have shape {shape}, got {matrix.shape}")
    if matrix.dtype.kind not in "biuf":
        raise BadInput(f"the encoding must be a matrix of real numbers, got {matrix.dtype}")
    try:
        copied = csr_array(matrix, dtype=np.float64, copy=True)
    except ValueError as error:
        raise BadInput(f"the encoding is not a valid sparse matrix: {error}") from None
    row_of = np.repeat(np.arange(shape[0]), np.diff(copied.indptr))
    outside = np.flatnonzero((copied.indices < 0) | (copied.indices >= shape[1]))
    if len(outside):
        row, column = row_of[outside[0]], copied.indices[outside[0]]
        raise BadInput(f"row {row} holds partition {column}; there are {shape[1]} (0 to {shape[1] - 1})")
    odd = np.flatnonzero(~np.isfinite(copied.data))
    if len(odd):
        raise BadInput(f"row {row_of[odd[0]]} has coefficient {copied.data[odd[0]]}; they must be finite numbers")
    return copied
