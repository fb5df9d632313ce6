"""Arguments checked against their annotations: numbers and their ranges, truth values, names, and tuples of those."""

from __future__ import annotations

import functools
import inspect
import math
import numbers
import operator
import types
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, is_dataclass
from difflib import get_close_matches
from typing import Annotated, Any, TypeVar

import msgspec
import numpy as np

from anyk.base.errors import BadInput

Thing = TypeVar("Thing", bound=Callable[..., Any])
Kind = TypeVar("Kind")

# ranges that many settings share; any other is declared in place, as Annotated[float, msgspec.Meta(ge=0, lt=1)]
AtLeastOne = Annotated[int, msgspec.Meta(ge=1)]
AtLeastZero = Annotated[int, msgspec.Meta(ge=0)]
Positive = Annotated[float, msgspec.Meta(gt=0)]
Nonnegative = Annotated[float, msgspec.Meta(ge=0)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
PositiveShare = Annotated[float, msgspec.Meta(gt=0, le=1)]
_FINITE = 1e100  # as the largest value it stands for "any finite number"
PositiveNumber = Annotated[float, msgspec.Meta(gt=0, le=_FINITE)]
NonnegativeNumber = Annotated[float, msgspec.Meta(ge=0, le=_FINITE)]
FiniteNumber = Annotated[float, msgspec.Meta(ge=-_FINITE, le=_FINITE)]

MOST_WORKERS = 1_000_000
_VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_PLAIN = {int: "a whole number", float: "a number", bool: "True or False", str: "a string", type(None): "None"}


def check_value(value: object, annotation: object, name: str) -> Any:
    """Return ``value`` if it fits ``annotation``, with NumPy's numbers as Python's own; else raise BadInput.

    The comparison is strict: a text is no number, a number no truth value, NaN no number. Ranges are annotated as
    ``Annotated[int, msgspec.Meta(ge=1)]``. As in specs, a value may stand for a tuple of one. Annotations that
    cannot be checked at run time (protocols, functions, classes that are ``duck_typed``) accept every value.

    >>> check_value(np.int64(4), int, "workers"), check_value([1, 2], tuple[int, ...], "byzantine")
    (4, (1, 2))
    >>> check_value("4", int | None, "workers")
    Traceback (most recent call last):
    anyk.base.errors.BadInput: workers must be a whole number or None, got '4'
    >>> check_value(0, AtLeastOne, "load")
    Traceback (most recent call last):
    anyk.base.errors.BadInput: load must be a whole number of at least 1, got 0
    """
    kinds = _kinds(annotation)
    if any(map(_opaque, kinds)):
        return value
    plain = _plain(value)
    for kind in kinds:
        if inspect.isclass(kind) and kind not in _PLAIN:
            if isinstance(value, kind):
                return value
            continue
        try:
            converted = msgspec.convert(_as_members(plain, kind), kind, strict=True)
        except msgspec.ValidationError:
            continue
        if not _has_nan(converted):
            return converted
    hint = next((kind.meant_by(value) for kind in kinds if hasattr(kind, "meant_by")), "")
    raise BadInput(
        f"{name} must be {_either([word for kind in kinds for word in _words(kind)])}, got {_shown(value)}{hint}"
    )


def whole(name: str, value: Any) -> int:
    """Return ``value`` as an integer; raise :class:`~anyk.BadInput` for anything else."""
    try:
        return operator.index(value)
    except TypeError:
        raise BadInput(f"{name} must be a whole number, got {value!r}") from None


def check_range(name: str, value: float, low: float, high: float, of: str = "") -> None:
    """Raise :class:`~anyk.BadInput` unless ``value`` lies between ``low`` and ``high``.

    ``of``: what the largest value is, for the message.

    >>> check_range("replies", 5, 1, 4, " workers")
    Traceback (most recent call last):
    anyk.base.errors.BadInput: replies must be 1 to 4 workers, got 5
    """
    if not low <= value <= high:
        raise BadInput(f"{name} must be {low:,} to {high:,}{of}, got {value}")


def check_workers(workers: Any) -> int:
    """Return ``workers`` as an integer from 1 to :data:`MOST_WORKERS`; raise BadInput for anything else."""
    number: int = check_value(workers, AtLeastOne, "workers")
    check_range("workers", number, 1, MOST_WORKERS)  # a typing error would fill the memory
    return number


def typed(thing: Thing) -> Thing:
    """Decorate a function or class so that :func:`check_value` compares its arguments with their annotations.

    >>> @typed
    ... def double(number: int) -> int:
    ...     return 2 * number
    >>> double(number=True)
    Traceback (most recent call last):
    anyk.base.errors.BadInput: number must be a whole number, got True
    """
    function = thing.__init__ if inspect.isclass(thing) else thing
    signature = inspect.signature(function)

    @functools.cache
    def hints() -> dict[str, Any]:  # resolved on first use: names may be defined further down
        return typing.get_type_hints(thing if is_dataclass(thing) else function, include_extras=True)

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> object:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError:
            for key in kwargs:
                if key not in signature.parameters and (near := get_close_matches(key, signature.parameters, n=1)):
                    name = typing.cast(Any, thing).__name__
                    raise TypeError(f"{name}() has no argument '{key}'; did you mean '{near[0]}'?") from None
            return function(*args, **kwargs)  # Python's own complaint names the function
        for key, value in bound.arguments.items():
            parameter = signature.parameters[key]
            omitted = value is None and parameter.default is None
            if key in hints() and not omitted and parameter.kind not in _VARIABLE:
                bound.arguments[key] = check_value(value, hints()[key], key.rstrip("_"))
        return function(*bound.args, **bound.kwargs)

    if not inspect.isclass(thing):
        return typing.cast(Thing, checked)
    typing.cast(Any, thing).__init__ = checked
    return thing


@typing.dataclass_transform(frozen_default=True, field_specifiers=(field,))
def value_class(kind: type[Kind]) -> type[Kind]:
    """Decorate a class whose objects are values: a frozen dataclass whose fields are checked as by :func:`typed`."""
    return typed(dataclass(frozen=True)(kind))


def _kinds(annotation: object) -> list[Any]:
    """Return the members of a union, or the annotation alone; sequences of plain values as tuples."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated and not any(isinstance(extra, msgspec.Meta) for extra in arguments[1:]):
        return _kinds(arguments[0])  # for readers and for specs
    if origin in (typing.Union, types.UnionType):
        return [kind for member in arguments for kind in _kinds(member)]
    if origin is Sequence and arguments[0] in _PLAIN:
        return [types.GenericAlias(tuple, (arguments[0], ...))]
    return [annotation]


def _opaque(kind: object) -> bool:
    """Return whether an annotation cannot be checked."""
    if typing.get_origin(kind) is tuple:
        return not all(
            member in _PLAIN or member is ... or typing.get_origin(member) is Annotated
            for member in typing.get_args(kind)
        )
    if typing.get_origin(kind) in (typing.Literal, Annotated):
        return False
    return (
        kind is Any or not inspect.isclass(kind) or any(getattr(kind, m, False) for m in ("_is_protocol", "duck_typed"))
    )


def _plain(value: object) -> Any:
    """Return numbers of any library as Python's own, also within lists and tuples."""
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    if isinstance(value, list | tuple | range | np.ndarray):
        return value if isinstance(value, np.ndarray) and not value.ndim else list(map(_plain, value))
    return value


def _as_members(plain: Any, kind: Any) -> Any:
    """Return a list of one for a value that stands for a tuple of one."""
    return [plain] if typing.get_origin(kind) is tuple and not isinstance(plain, list) else plain


def _has_nan(value: Any) -> bool:
    """Return whether a value is NaN, or a tuple with NaN in it."""
    members = value if isinstance(value, tuple) else (value,)
    return any(isinstance(member, float) and math.isnan(member) for member in members)


def _words(kind: Any) -> list[str]:
    """Return the values of a kind in words."""
    if typing.get_origin(kind) is typing.Literal:
        return [str(option) for option in typing.get_args(kind)]
    if typing.get_origin(kind) is tuple:
        single = _either(_words(typing.get_args(kind)[0]))
        plural = single.replace("number", "numbers") if "number" in single else f"{single}s"
        return [f"a tuple of {plural.removeprefix('a ')}"]
    if typing.get_origin(kind) is Annotated:
        base, *extras = typing.get_args(kind)
        ranges = [word for extra in extras if isinstance(extra, msgspec.Meta) for word in _range_words(extra)]
        words = f"{_either(_words(base))} {' and '.join(ranges)}".rstrip()
        finite = any(isinstance(extra, msgspec.Meta) and extra.le == _FINITE for extra in extras)
        return [words.replace("a ", "a finite ", 1) if finite else words]
    return [_PLAIN.get(kind) or f"{'an' if kind.__name__[0] in 'AEIOU' else 'a'} {kind.__name__}"]


def _range_words(meta: msgspec.Meta) -> list[str]:
    """Return the bounds of a range in words."""
    least, most = (None if bound in (-_FINITE, _FINITE) else bound for bound in (meta.ge, meta.le))
    if least is not None and most is not None:
        return [f"from {least:g} to {most:g}"]
    bounds = {"of at least": least, "above": meta.gt, "of at most": most, "below": meta.lt}
    return [f"{words} {bound:g}" for words, bound in bounds.items() if bound is not None]


def _either(words: list[str]) -> str:
    return " or ".join([", ".join(words[:-1])] * (len(words) > 1) + words[-1:])


def _shown(value: object) -> str:
    """Return a value for a message: its text, or its type if that is long."""
    representation = repr(value)
    return representation if len(representation) <= 60 and "\n" not in representation else f"a {type(value).__name__}"


def check_unmasked(values: object, name: str) -> None:
    """Raise :class:`~anyk.BadInput` for an array with masked values, which NumPy would take for numbers.

    >>> check_unmasked(np.ma.masked_equal([1, -9, -9], -9), "X")
    Traceback (most recent call last):
    anyk.base.errors.BadInput: X has 2 masked values; drop them, or fill them: X.filled(…)
    """
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        count = int(np.ma.getmaskarray(values).sum())
        raise BadInput(f"{name} has {count} masked values; drop them, or fill them: X.filled(…)")
