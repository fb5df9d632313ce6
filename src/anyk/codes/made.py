"""Read-only arrays of codes, and checks of the rows and matrices of custom codes."""

from __future__ import annotations

import inspect
import operator
from abc import ABCMeta
from collections.abc import Callable, Sized
from functools import cached_property, wraps
from math import isfinite
from numbers import Number, Real
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

import numpy as np

from anyk.base.arrays import Floats, Indices
from anyk.base.checks import AtLeastOne, check_range, check_value
from anyk.base.errors import BadInput, as_bad_input
from anyk.base.plain import ByName

if TYPE_CHECKING:
    import scipy.sparse

    from anyk.codes.base import Code

T = TypeVar("T")
SparseMatrix: TypeAlias = "scipy.sparse.csr_array"


LEFT_OUT: Any = None  # default of a parameter that the code computes; afterwards it is a fact of the code


def frozen(value: T) -> T:
    """Return ``value`` with its arrays read-only, also in tuples and sparse matrices."""
    if isinstance(value, np.ndarray):
        value.flags.writeable = False
    elif isinstance(value, tuple):
        for element in value:
            frozen(element)
    elif hasattr(value, "indptr"):
        matrix: Any = value
        matrix.sum_duplicates()  # SciPy would do it in place for the next sum
        frozen((matrix.data, matrix.indices, matrix.indptr))
    return value


class fixed_property(cached_property[T]):
    """A cached property whose arrays are read-only, as decoders, workers and users share them."""

    def __init__(self, compute: Callable[[Any], T]) -> None:
        @wraps(compute)
        def compute_frozen(code: object) -> T:
            return frozen(compute(code))

        super().__init__(compute_frozen)


class ReadOnlyArrays:
    """A base class whose copies and unpickled objects have read-only arrays as well, unlike NumPy's.

    In a user's class these are the values of :class:`fixed_property`.
    """

    def __setstate__(self, state: ByName) -> None:
        ours = not is_users(type(self))
        for name, value in state.items():
            if ours or isinstance(getattr(type(self), name, None), fixed_property):
                frozen(value)
        self.__dict__.update(state)


class CodeType(ABCMeta):
    """The type of :class:`~anyk.codes.Code`: checks each code of a user's class as soon as it is built.

    anyk's own codes are not checked, as some build their rows only on demand, and tests cover them.
    """

    @property
    def __signature__(cls) -> inspect.Signature:
        """Signature of the constructor, which the method below would hide from help and specs."""
        parameters = list(inspect.signature(cast(Any, cls).__init__).parameters.values())[1:]
        return inspect.Signature(parameters)

    def __call__(cls, *args: Any, **keys: Any) -> Any:
        """Build a code and check it."""
        code = super().__call__(*args, **keys)
        if is_users(cls):
            try:
                check_code(code)
            except BadInput as error:
                raise BadInput(f"{cls.__name__}: {error}") from None
        return code


def is_users(cls: type) -> bool:
    """Return whether a class of codes is not one of anyk's."""
    return not cls.__module__.startswith("anyk.")


def checked_weights(code: Code, weights: Any, replies: Indices) -> Floats:
    """Return a copy of the weights that a user's code or method gives ``replies``, shape (replies,) or with blocks.

    Raises :class:`~anyk.BadInput` for another shape, what is not a finite number, or a weight of a message that has
    not arrived.
    """
    shape = (code.replies,) if code.blocks == 1 else (code.replies, code.blocks)
    given = np.asarray(weights)
    name = f"the weights of '{code.spec}' for the replies {replies.tolist()}"
    if given.shape != shape or given.dtype.kind not in "iuf":
        raise BadInput(f"{name} must be numbers, shape {shape}, got {given.dtype} numbers, shape {given.shape}")
    if not np.isfinite(given).all():
        raise BadInput(f"{name} are not finite: {given.tolist()}")
    absent = np.delete(given, replies, axis=0)
    if absent.any():
        raise BadInput(f"{name} must be 0 for others, got {given.tolist()}")
    return given.astype(np.float64)


def check_code(code: Code) -> None:
    """Raise :class:`~anyk.BadInput` for invalid numbers, rows, matrix or orders."""
    numbers = {"workers": code.workers, "partitions": code.partitions, "messages": code.messages, "blocks": code.blocks}
    for name, value in numbers.items():
        check_value(value, AtLeastOne, name)
    check_range("tolerates", check_value(code.tolerates, int, "tolerates"), 0, code.replies - 1, " stragglers")
    rows = code.rows
    if not isinstance(rows, Sized):
        raise BadInput(f"rows must be a sequence, got {rows!r}")
    if len(rows) != code.replies:
        messages_each = f"{code.messages} message{'s' * (code.messages != 1)} each"
        raise BadInput(
            f"the code has {len(rows)} rows; {code.workers} workers with {messages_each} need {code.replies}"
        )
    for i, row in enumerate(rows):
        _check_row(i, row, code.partitions, code.blocks)
    code._check_encoding()
    _ = code.encoding, code.assignment  # computed now, from the checked rows
    code._check_more()


def _is_whole(value: object) -> bool:
    return hasattr(type(value), "__index__") and not isinstance(value, bool)


def _check_row(i: int, row: Any, partitions: int, blocks: int) -> None:
    try:
        own_partitions, coefficients = row
        sizes = len(own_partitions), len(coefficients)
    except (TypeError, ValueError):
        raise BadInput(f"row {i} must be (partitions, coefficients), got {row!r}") from None
    for j in own_partitions:
        if not _is_whole(j):
            raise BadInput(f"row {i} holds partition {j!r}, which is not a whole number")
        check_range(f"a partition of row {i}", j, 0, partitions - 1)
    numbers = list(map(operator.index, own_partitions))
    if len(set(numbers)) < len(numbers):
        twice = next(j for j in numbers if numbers.count(j) > 1)
        raise BadInput(f"row {i} holds partition {twice} twice; add its coefficients up")
    if sizes[1] != sizes[0] * blocks:
        expected = f"{blocks} (blocks={blocks})" if blocks > 1 else "one"
        raise BadInput(
            f"the number of row {i}'s coefficients must be {sizes[0] * blocks}, {expected} for each of its partitions, "
            f"got {sizes[1]}"
        )
    for value in coefficients:
        if not isinstance(value, Real) or not isfinite(value):
            value_text = value if isinstance(value, Number) else repr(value)
            raise BadInput(f"row {i} has coefficient {value_text}; they must be finite numbers")


def valid_matrix(matrix: Any, shape: tuple[int, int]) -> SparseMatrix:
    """Return a sparse copy of a matrix; raise :class:`~anyk.BadInput` unless it can be an encoding."""
    from scipy.sparse import csr_array, issparse

    if not issparse(matrix):
        matrix = np.asarray(matrix)
    if matrix.shape != shape:
        raise BadInput(f"the encoding must have shape {shape}, got {matrix.shape}")
    if matrix.dtype.kind not in "biuf":
        raise BadInput(f"the encoding must be a matrix of real numbers, got {matrix.dtype}")
    with as_bad_input("the encoding is not a valid sparse matrix", ValueError):
        copied = csr_array(matrix, dtype=float, copy=True)
    row_of = np.repeat(np.arange(shape[0]), np.diff(copied.indptr))
    outside = np.flatnonzero((copied.indices < 0) | (copied.indices >= shape[1]))
    if len(outside):
        row, column = row_of[outside[0]], copied.indices[outside[0]]
        raise BadInput(f"row {row} holds partition {column}; there are {shape[1]} (0 to {shape[1] - 1})")
    odd = np.flatnonzero(~np.isfinite(copied.data))
    if len(odd):
        raise BadInput(f"row {row_of[odd[0]]} has coefficient {copied.data[odd[0]]}; they must be finite numbers")
    return copied
