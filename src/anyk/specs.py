"""Specs: ``name:key=value,key=value``, the short form by which codes, strategies, laws and the like are named.

One grammar and one kind of registry serve codes, strategies, delay models, optimisers, schedules, clusters and data,
on the command line, in a config file, in help and in error messages. A registry maps a name to a constructor; the
constructor's keyword parameters are the spec's keys and its annotations say how the values are read.
"""

from __future__ import annotations

import inspect
import math
import numbers
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from difflib import get_close_matches
from functools import partial
from itertools import islice
from keyword import iskeyword
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

from anyk.errors import BadInput, UnknownName

T = TypeVar("T")
Builder = TypeVar("Builder", bound=Callable[..., Any])

_A_FILE = "a file's name"
# the annotation of a key that names a file, by which with_files finds it; a key that holds a spec is annotated with the
# registries of its name, Annotated[str, registry, …], so that the files named in there are found, too
File = Annotated[str, _A_FILE]
Folder = Annotated[str | Path, _A_FILE]


def parse(text: str) -> tuple[str, dict[str, str]]:
    """Split a spec into its name and its keys; a first value without a key is stored under ``""``.

    >>> parse("frc:load=3,wait=11")
    ('frc', {'load': '3', 'wait': '11'})
    >>> parse("trace:lambda.npz,by=round")
    ('trace', {'': 'lambda.npz', 'by': 'round'})

    A spec inside a spec stands in brackets, which are taken off:

    >>> parse("kronecker:left=(frc:load=2),split=4")
    ('kronecker', {'left': 'frc:load=2', 'split': '4'})
    """
    if not isinstance(text, str) or not text.strip():
        raise BadInput(f"a spec looks like name:key=value,key=value, got {text!r}")
    name, _, rest = text.strip().partition(":")
    values: dict[str, str] = {}
    for place, item in enumerate(_items(rest, text)):
        key, equals, value = item.partition("=")
        if not equals:
            key, value = "", item
        if key.strip() != "wait":  # the brackets of a wait rule are its own
            value = _unbracketed(value.strip())
        key, value = key.strip().replace("-", "_"), value.strip()
        if (not key and (place or equals)) or not value:
            raise BadInput(f"'{item}' in '{text}' should be key=value, as in name:key=value,key=value")
        if key in values:
            raise BadInput(f"'{key}' is given twice in '{text}'; keep one")
        values[key] = value
    return name.strip(), values


def with_keys(spec: str, values: Mapping[str, Any]) -> str:
    """A spec with keys added that it does not give itself.

    >>> with_keys("frc:load=3", {"models": 4, "load": 2})
    'frc:load=3,models=4'
    """
    given = parse(spec)[1]
    added = [f"{key}={_show(value)}" for key, value in values.items() if key not in given]
    return spec + (("," if given else ":") + ",".join(added) if added else "")


def bracketed(spec: str | None) -> str | None:
    """A spec as the value of a key of another.

    >>> bracketed("frc:load=2"), bracketed("ring")
    ('(frc:load=2)', 'ring')
    """
    return f"({spec})" if spec and any(sign in spec for sign in ":,") else spec


def absolute(name: str) -> str:
    """A file's name as it is found from any folder."""
    return str(Path(name).expanduser().absolute())


def with_files(text: str, change: Callable[[str], str], *registries: Registry[Any]) -> str:
    """A spec with the name of each file in it changed, also in the specs inside it.

    So what a run keeps means the same in any folder (:func:`absolute`), and what it was made of is known.

    ``registries``: those in which its own name may stand; a spec that none knows is left alone. Raises
    :class:`~anyk.errors.BadInput` for names that a spec cannot hold.
    """
    name, values = parse(text)
    entry = next((registry.entries[name] for registry in registries if name in registry), None)
    if entry is None:
        return text
    marks, first = entry.marks(), next(iter(entry.parameters()), "")
    changed = dict(values)
    for key, value in values.items():
        found = marks.get(key or first, ())
        inner = [mark for mark in found if isinstance(mark, Registry)]
        changed[key] = change(value) if _A_FILE in found else with_files(value, change, *inner) if inner else value
    if changed == values:
        return text
    named = {key or first: value for key, value in changed.items()}
    made = show(name, {key: value if key == "wait" else bracketed(value) for key, value in named.items()})
    try:
        held = parse(made)[1] == named
    except BadInput:
        held = False
    if not held:
        raise BadInput(f"a spec cannot hold the names of files in '{text}', {', '.join(named.values())}; rename them")
    return made


def _unbracketed(value: str) -> str:
    """A value without brackets that enclose it whole."""
    depth = 0
    for place, character in enumerate(value):
        depth += (character == "(") - (character == ")")
        if depth == 0:
            return value[1:-1] if place and place == len(value) - 1 and value[0] == "(" else value
    return value


def _items(rest: str, text: str) -> list[str]:
    """What commas outside of brackets separate."""
    items, depth = [""], 0
    for character in rest:
        depth += (character == "(") - (character == ")")
        if depth < 0:
            break
        if character == "," and not depth:
            items.append("")
        else:
            items[-1] += character
    if depth:
        raise BadInput(f"the brackets in '{text}' do not match")
    return items if rest else []


def _number(text: str, kind: type[float] | type[int], where: str) -> float | int:
    try:
        value = kind(text)
    except ValueError:
        what = "a whole number" if kind is int else "a number"
        raise BadInput(f"{where} should be {what}, got '{text}'") from None
    if kind is float and math.isnan(value):
        raise BadInput(f"{where} should be a number, got '{text}'")
    return value


def read(text: str, annotation: Any, where: str) -> Any:
    """One value of a spec as its parameter's annotation says."""
    origin, options = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        kinds = [option for option in options if option is not type(None)]
        if any(typing.get_origin(kind) is typing.Literal and text in typing.get_args(kind) for kind in kinds):
            return text  # where "none" is one of the choices it is not left out
        if text.lower() == "none" and len(kinds) < len(options):
            return None
        for kind in kinds[:-1]:
            try:
                return read(text, kind, where)
            except BadInput:
                continue
        return read(text, kinds[-1], where)
    if origin is typing.Literal:
        if text not in options:
            raise BadInput(f"{where} should be one of {', '.join(map(str, options))}, got '{text}'")
        return text
    if origin in (tuple, Sequence):
        return tuple(read(part, options[0], where) for part in text.removesuffix("/").split("/"))
    if annotation is bool:
        if text.lower() not in {"true", "false", "yes", "no"}:
            raise BadInput(f"{where} should be true or false, got '{text}'")
        return text.lower() in {"true", "yes"}
    if annotation in (int, float):
        return _number(text, annotation, where)
    return text


def _show(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return "/".join(map(_show, value))
    if isinstance(value, numbers.Integral):
        return str(int(value))
    if isinstance(value, numbers.Real):
        return repr(float(value)).removesuffix(".0")
    return str(value)


@dataclass(frozen=True, slots=True)
class Entry(Generic[T]):
    """One name of a registry: how to build it, and what to say of it."""

    name: str
    build: Callable[..., T]
    given: tuple[str, ...]  # parameters that the caller supplies (the number of workers, say), not the spec
    grid: Callable[[int], Iterable[str]] | None = None  # specs worth planning with, for a number of workers

    @property
    def summary(self) -> str:
        """The first line of the constructor's docstring."""
        return (inspect.getdoc(self.build) or "").partition("\n")[0].replace("``", "")

    def parameters(self) -> dict[str, inspect.Parameter]:
        """The keys a spec may give, in order, with annotations resolved."""
        source: Any = self.build
        if isinstance(source, type) and not is_dataclass(source):
            source = vars(source).get("__init__", source)
        hints = typing.get_type_hints(source)
        return {
            key: parameter.replace(annotation=hints.get(key, str))
            for key, parameter in inspect.signature(self.build).parameters.items()
            if key not in self.given and parameter.kind is not parameter.VAR_KEYWORD
        }

    def marks(self) -> dict[str, tuple[Any, ...]]:
        """Annotations of keys beside their types, such as :data:`File`."""
        source: Any = self.build
        if isinstance(source, type) and not is_dataclass(source):
            source = vars(source).get("__init__", source)
        hints = typing.get_type_hints(source, include_extras=True)
        return {key: hint.__metadata__ for key, hint in hints.items() if typing.get_origin(hint) is Annotated}

    def further(self) -> Any:
        """The annotation of keys beyond the named ones, where the constructor takes any; else None."""
        for key, parameter in inspect.signature(self.build).parameters.items():
            if parameter.kind is parameter.VAR_KEYWORD:
                return typing.get_type_hints(self.build).get(key)
        return None

    def usage(self) -> str:
        """The spec with every key and its default, those that must be given first, as shown in help."""
        parameters = self.parameters().items()
        keys = [
            f"{key.rstrip('_')}=…"
            if p.default in (inspect.Parameter.empty, None)
            else f"{key.rstrip('_')}={_show(p.default)}"
            for key, p in sorted(parameters, key=lambda item: item[1].default is not inspect.Parameter.empty)
        ]
        return self.name + (":" + ",".join(keys) if keys else "")


@dataclass(slots=True)
class Registry(Generic[T]):
    """Names of one kind (``kind`` in the singular) and how each is built from a spec."""

    kind: str
    given: tuple[str, ...] = ()
    entries: dict[str, Entry[T]] = field(default_factory=dict)

    def register(
        self, name: str, *, grid: Callable[[int], Iterable[str]] | None = None
    ) -> Callable[[Builder], Builder]:
        """Class or function decorator: make ``name`` known; its keyword parameters become the spec's keys.

        ``grid``: the specs that a planner tries for a number of workers; left out, the name alone.
        """

        def add(build: Builder) -> Builder:
            self.entries[name] = Entry(name, build, self.given, grid)
            return build

        return add

    def __iter__(self) -> Iterator[Entry[T]]:
        return iter(self.entries.values())

    def __contains__(self, name: str) -> bool:
        return name in self.entries

    def entry(self, name: str, *, also: tuple[str, ...] = ()) -> Entry[T]:
        """The entry called ``name``; an unknown name is answered with the nearest known ones."""
        if name in self.entries:
            return self.entries[name]
        known = [*self.entries, *also]
        near = get_close_matches(name, known, n=1, cutoff=0.5)
        hint = f"did you mean '{near[0]}'?" if near else f"known: {', '.join(known)}"
        raise UnknownName(f"{self.kind} '{name}'", hint)

    def build(self, text: str, **given: Any) -> T:
        """Build what a spec asks for; ``given`` are the parameters that the caller supplies."""
        name, values = parse(text)
        return self.build_parsed(text, name, values, **given)

    def build_parsed(self, text: str, name: str, values: Mapping[str, str], **given: Any) -> T:
        """As :meth:`build`, from a spec already split."""
        entry = self.entry(name)
        parameters, further = entry.parameters(), entry.further()
        arguments: dict[str, Any] = {}
        for key, value in values.items():
            if not key:
                if not parameters:
                    raise BadInput(f"{self.kind} '{name}' takes no value, got '{value}' in '{text}'")
                key = next(iter(parameters))
                if key in values:
                    raise BadInput(f"'{key}' is given twice in '{text}'; keep one")
            key += "_" * iskeyword(key)  # a parameter cannot be called lambda
            if key in given and further is not None:
                raise BadInput(f"{key} of {self.kind} '{name}' is an argument of its own, not a key, got '{text}'")
            if key not in parameters and further is not None:
                arguments[key] = read(value, further, f"{key} in '{text}'")
                continue
            if key not in parameters:
                near = get_close_matches(key, parameters, n=1)
                known = ", ".join(parameters) or "none"
                hint = f"did you mean '{near[0]}'?" if near else f"its keys: {known}"
                raise BadInput(f"{self.kind} '{name}' has no key '{key}'; {hint}")
            arguments[key] = read(value, parameters[key].annotation, f"{key} in '{text}'")
        for key, parameter in parameters.items():
            if parameter.default is inspect.Parameter.empty and key not in arguments:
                raise BadInput(f"{self.kind} '{name}' needs {key.rstrip('_')}=…, as in {entry.usage()}")
        return entry.build(**arguments, **given)


def _enclosed(key: str, value: str) -> str:
    """In brackets where a comma, as in the name of a file, would end the value."""
    depth = 0
    for character in value:
        depth += (character == "(") - (character == ")")
        if character == "," and not depth and key != "wait":
            return f"({value})"
    return value


def show(name: str, values: Mapping[str, Any], defaults: Mapping[str, Any] | None = None) -> str:
    """The spec that :meth:`Registry.build` reads back; values equal to their default are left out.

    >>> show("frc", {"load": 3, "wait": 11})
    'frc:load=3,wait=11'
    """
    defaults = defaults or {}
    parts = [f"{k}={_enclosed(k, _show(v))}" for k, v in values.items() if k not in defaults or defaults[k] != v]
    return name + (":" + ",".join(parts) if parts else "")


_TRIES = 200  # numbers that are tried in either direction


def build_or_suggest(build: Callable[..., T], spec: str, workers: int) -> T:
    """Return ``build(spec, workers=workers)``; where that raises BadInput, the sentence names what exists instead.

    These are the specs that differ least in one whole number, and the nearest numbers of workers for the spec itself.
    """
    try:
        return build(spec, workers=workers)
    except UnknownName:
        raise
    except BadInput as error:
        near = _nearest(build, spec, workers) if workers > 0 else []
        if not near:
            raise
        *others, last = near
        raise BadInput(f"{error}; nearest: {', or '.join([*filter(None, [', '.join(others)]), last])}") from None


def _nearest(build: Callable[..., object], spec: str, workers: int) -> list[str]:
    """The nearest specs that exist for this number of workers, then the nearest numbers of workers for this spec."""
    name, values = parse(spec)
    values = {key: value if key == "wait" else str(bracketed(value)) for key, value in values.items()}
    most = 2 * max(workers, 8)

    def exists(asked: tuple[str, int]) -> bool:
        try:
            build(asked[0], workers=asked[1])
        except BadInput:
            return False
        return True

    def around(value: int, change: Callable[[int], tuple[str, int]]) -> list[tuple[str, int]]:
        below = map(change, range(min(value - 1, most), -1, -1)[:_TRIES])
        above = map(change, range(max(value + 1, 0), max(value, most) + 1)[:_TRIES])
        return [asked for way in (below, above) for asked in islice(filter(exists, way), 1)]

    def with_value(key: str, value: int) -> tuple[str, int]:
        return show(name, {**values, key: value}), workers

    near = []
    for key, text in values.items():
        if key not in ("", "seed") and text.removeprefix("-").isdigit():
            near += [found for found, _ in around(int(text), partial(with_value, key))]
    counts = [str(count) for _, count in around(workers, lambda count: (spec, count))]
    return [*near, f"{' or '.join(counts)} worker{'s' * (counts != ['1'])}"] if counts else near
