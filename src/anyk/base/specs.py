"""Specs: ``name:key=value,key=value``, the short form that names codes, strategies, delay models and the like.

One grammar serves codes, strategies, delay models, optimisers, schedules, clusters and data, on the command line, in a
config file, in help and in error messages. What builds the objects of specs is in :mod:`anyk.base.registries`.
"""

from __future__ import annotations

import math
import numbers
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Annotated, Any

from anyk.base.errors import BadInput

A_FILE = "a file's name"
_DEEPEST = 16  # brackets of a spec in one another
# the annotation of a key that names a file, by which registries find it; a key with a spec is annotated with the
# registries of that spec, Annotated[str, registry, …], so that the files in it are found as well
File = Annotated[str, A_FILE]
Folder = Annotated[str | Path, A_FILE]


class Spec(str):
    """A spec that has been split into its ``name`` and its ``keys``; as text, it is what the user wrote.

    A setting becomes a spec where it enters: on the command line, in a call, in a file. A first value without a key is
    stored under ``""``, and the brackets around a spec inside a spec are removed:

    >>> spec = Spec("kronecker:left=(frc:load=2),split=4")
    >>> spec.name, spec.keys, str(spec)
    ('kronecker', {'left': 'frc:load=2', 'split': '4'}, 'kronecker:left=(frc:load=2),split=4')

    Raises :class:`~anyk.BadInput` for a text that is none.
    """

    name: str
    keys: Mapping[str, str]

    def __new__(cls, text: str) -> Spec:
        """Return a text as a spec; a spec is returned unchanged."""
        return text if isinstance(text, Spec) else cls._of(text, *_split(text))

    @classmethod
    def _of(cls, text: str, name: str, keys: Mapping[str, str]) -> Spec:
        spec = str.__new__(cls, text)
        spec.name, spec.keys = name, keys
        return spec

    def with_keys(self, values: Mapping[str, Any]) -> Spec:
        """Return the spec with the keys added that it does not contain; their values are numbers or names.

        >>> Spec("frc:load=3").with_keys({"models": 4, "load": 2})
        'frc:load=3,models=4'
        """
        added = {key: show_value(value) for key, value in values.items() if key not in self.keys}
        if not added:
            return self
        head = f"{self}," if self.keys else f"{self.rstrip(': ')}:"
        text = head + ",".join(f"{key}={value}" for key, value in added.items())
        return self._of(text, self.name, {**self.keys, **added})


def parse_spec(spec: str) -> tuple[str, dict[str, str]]:
    """Return the name and the keys of a spec; see :class:`Spec`.

    >>> parse_spec("trace:lambda.npz,by=round")
    ('trace', {'': 'lambda.npz', 'by': 'round'})
    """
    spec = Spec(spec)
    return spec.name, dict(spec.keys)


def _split(spec: str) -> tuple[str, dict[str, str]]:
    """Return the name and the keys of a text."""
    if not isinstance(spec, str) or not spec.strip():
        raise BadInput(f"a spec looks like name:key=value,key=value, got {spec!r}")
    if max(bracket_depths(spec)) > _DEEPEST:
        raise BadInput(f"a spec may have {_DEEPEST} brackets in one another, more have '{spec[:60]}…'")
    name, _, keys = spec.strip().partition(":")
    values: dict[str, str] = {}
    for index, item in enumerate(_items(keys, spec)):
        key, equals, value = item.partition("=")
        if not equals:
            key, value = "", item
        if key.strip() != "wait":  # the brackets of a wait rule are its own
            value = _unbracketed(value.strip())
        key, value = key.strip().replace("-", "_"), value.strip()
        if (not key and (index or equals)) or not value:
            raise BadInput(f"'{item}' in '{spec}' should be key=value, as in name:key=value,key=value")
        if key in values:
            raise BadInput(f"'{key}' is given twice in '{spec}'; keep one")
        values[key] = value
    return name.strip(), values


def with_keys(spec: str, values: Mapping[str, Any]) -> str:
    """Return the text of a spec with the keys added that it does not contain; see :meth:`Spec.with_keys`."""
    return str(Spec(spec).with_keys(values))


def take_key(spec: str, key: str) -> tuple[str, str | None]:
    """Return a spec without a key, and the value of the key; None if the spec does not have it.

    >>> take_key("adam:beta1=0.8,lr=0.1", "lr")
    ('adam:beta1=0.8', '0.1')
    """
    value = parse_spec(spec)[1].get(key)
    if value is None:
        return spec, None
    name, _, keys = spec.strip().partition(":")
    others = [item for item in _items(keys, spec) if item.partition("=")[0].strip() != key]
    return name + (":" + ",".join(others) if others else ""), value


def bracketed(spec: str | None) -> str | None:
    """Return a spec in the form of a value of another spec's key.

    >>> bracketed("frc:load=2"), bracketed("ring")
    ('(frc:load=2)', 'ring')
    """
    return f"({spec})" if spec and any(sign in spec for sign in ":,") else spec


def absolute(name: str) -> str:
    """Return a file's name that is valid in any folder."""
    return str(Path(name).expanduser().absolute())


def bracket_depths(spec: str) -> list[int]:
    """Return the number of open brackets after each character."""
    return list(accumulate((character == "(") - (character == ")") for character in spec))


def _unbracketed(value: str) -> str:
    """Return a value without brackets that enclose all of it."""
    depths = bracket_depths(value)
    return value[1:-1] if value.startswith("(") and depths.index(0) == len(value) - 1 else value


def _items(keys: str, spec: str) -> list[str]:
    """Return the parts of a spec's keys between commas outside of brackets."""
    depths = bracket_depths(keys)
    if keys and (depths[-1] or min(depths) < 0):
        raise BadInput(f"the brackets in '{spec}' do not match")
    return split_outside(keys, ",") if keys else []


def split_outside(spec: str, sign: str) -> list[str]:
    """Return the parts of a spec between signs outside of brackets."""
    signs = [index for index, depth in enumerate(bracket_depths(spec)) if spec[index] == sign and not depth]
    return [spec[a + 1 : b] for a, b in pairwise([-1, *signs, len(spec)])]


def read(value: str, annotation: object, name: str) -> Any:
    """Return a value of a spec, converted to its parameter's annotation; ``name`` names it in errors."""
    origin, options = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return _read_union(value, options, name)
    if origin is typing.Literal:
        if value not in options:
            raise BadInput(f"{name} should be one of {', '.join(map(str, options))}, got '{value}'")
        return value
    if origin in (tuple, Sequence):
        return tuple(read(member, options[0], name) for member in value.removesuffix("/").split("/"))
    if annotation is bool:
        if value.lower() not in {"true", "false", "yes", "no"}:
            raise BadInput(f"{name} should be true or false, got '{value}'")
        return value.lower() in {"true", "yes"}
    if annotation is int:
        return _read_number(value, int, f"{name} should be a whole number, got '{value}'")
    if annotation is float:
        return _read_number(value, float, f"{name} should be a number, got '{value}'")
    return value


def _read_union(value: str, options: Sequence[Any], name: str) -> Any:
    """Return a value converted to the first member of a union that it fits."""
    kinds = [option for option in options if option is not type(None)]
    if any(typing.get_origin(kind) is typing.Literal and value in typing.get_args(kind) for kind in kinds):
        return value  # "none" may be one of the choices
    if value.lower() == "none" and len(kinds) < len(options):
        return None
    for kind in kinds[:-1]:
        try:
            return read(value, kind, name)
        except BadInput:
            continue
    return read(value, kinds[-1], name)


def _read_number(value: str, kind: Callable[[str], float], complaint: str) -> float:
    """Return a number, which is not NaN."""
    try:
        number = kind(value)
    except ValueError:
        number = math.nan
    if math.isnan(number):
        raise BadInput(complaint)
    return number


def show_value(value: object) -> str:
    """Return the text of a key's value in a spec."""
    match value:
        case bool():
            return str(value).lower()
        case tuple():
            return "/".join(map(show_value, value))
        case numbers.Integral():
            return str(int(value))
        case numbers.Real():
            return repr(float(value)).removesuffix(".0")
    return str(value)


def _enclosed(key: str, value: str) -> str:
    """Return the value, in brackets if a comma, as in the name of a file, would end it."""
    return f"({value})" if len(split_outside(value, ",")) > 1 and key != "wait" else value


def show_spec(name: str, values: Mapping[str, Any], defaults: Mapping[str, Any] | None = None) -> str:
    """Return the spec that :meth:`Registry.build` reads back; values equal to their default are omitted.

    >>> show_spec("frc", {"load": 3, "wait": 11})
    'frc:load=3,wait=11'
    """
    defaults = defaults or {}
    parts = [f"{k}={_enclosed(k, show_value(v))}" for k, v in values.items() if k not in defaults or defaults[k] != v]
    return name + (":" + ",".join(parts) if parts else "")
