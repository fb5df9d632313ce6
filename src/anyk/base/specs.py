"""Specs: ``name:key=value,key=value``, the short form that names codes, strategies, delay models and the like.

One grammar and one kind of registry serve codes, strategies, delay models, optimisers, schedules, clusters and data,
on the command line, in a config file, in help and in error messages. A registry maps a name to a constructor; the
constructor's keyword parameters are the spec's keys, and its annotations determine how the values are read.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
import numbers
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from difflib import SequenceMatcher, get_close_matches
from functools import partial
from importlib import import_module
from itertools import accumulate, islice, pairwise
from keyword import iskeyword
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

from anyk.base import installed
from anyk.base.errors import BadInput, UnknownName, suggest

T = TypeVar("T")
Builder = TypeVar("Builder", bound=Callable[..., Any])

_A_FILE = "a file's name"
_DEEPEST = 16  # brackets of a spec in one another
# the annotation of a key that names a file, by which with_files finds it; a key with a spec is annotated with the
# registries of that spec, Annotated[str, registry, …], so that the files in it are found as well
File = Annotated[str, _A_FILE]
Folder = Annotated[str | Path, _A_FILE]


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
        added = {key: _show(value) for key, value in values.items() if key not in self.keys}
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


def with_files(spec: str, change: Callable[[str], str], *registries: Registry[Any]) -> Spec:
    """Return a spec with the name of each file in it changed, also in the specs inside it.

    This makes the stored specs of a run valid in any folder (:func:`absolute`), and finds the files that they name.

    ``registries``: the registries that may contain the spec's name; a spec of another name is returned unchanged.
    Raises :class:`~anyk.BadInput` for file names that a spec cannot contain.
    """
    spec = Spec(spec)
    name, values = spec.name, spec.keys
    loaded = [registry for registry in registries if name in registry.entries]  # before any plug-in is loaded
    home = next(iter(loaded or [registry for registry in registries if name in registry]), None)
    if home is None:
        return spec
    entry = home.entries[name]
    marks, first = entry.marks(), next(iter(entry.parameters()), "")
    changed = {key: _with_changed_file(value, marks.get(key or first, ()), change) for key, value in values.items()}
    if changed == values:
        return spec
    named = {key or first: value for key, value in changed.items()}
    result = show_spec(name, {key: value if key == "wait" else bracketed(value) for key, value in named.items()})
    with contextlib.suppress(BadInput):
        if (renamed := Spec(result)).keys == named:
            return renamed
    raise BadInput(f"a spec cannot hold the names of files in '{spec}', {', '.join(named.values())}; rename them")


def _with_changed_file(value: str, marks: Sequence[object], change: Callable[[str], str]) -> str:
    """Return the value of a key with its file's name changed if the key's ``marks`` say that it is one or has some."""
    if _A_FILE in marks:
        return change(value)
    registries = [mark for mark in marks if isinstance(mark, Registry)]
    return with_files(value, change, *registries) if registries else value


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


def _show(value: object) -> str:
    match value:
        case bool():
            return str(value).lower()
        case tuple():
            return "/".join(map(_show, value))
        case numbers.Integral():
            return str(int(value))
        case numbers.Real():
            return repr(float(value)).removesuffix(".0")
    return str(value)


@dataclass(frozen=True, slots=True)
class Entry(Generic[T]):
    """A name of a registry with the function that builds it, and its summary.

    ``origin``: the installed distribution whose plug-in registered it; empty for anyk's own and all others.
    """

    name: str
    build: Callable[..., T]
    supplied: tuple[str, ...]  # parameters that the caller adds to the spec's, such as the number of workers
    grid: Callable[[int], Iterable[str]] | None = None  # specs worth planning with, for a number of workers
    origin: str = ""

    @property
    def own(self) -> bool:
        """Whether it is anyk's, and of no plug-in."""
        return str(getattr(self.build, "__module__", "")).startswith("anyk.")

    @property
    def summary(self) -> str:
        """The first line of the constructor's docstring."""
        return (inspect.getdoc(self.build) or "").partition("\n")[0].replace("``", "")

    def parameters(self) -> dict[str, inspect.Parameter]:
        """Return the keys that a spec may contain, in order, with annotations resolved."""
        hints = self._hints()
        return {
            key: parameter.replace(annotation=hints.get(key, str))
            for key, parameter in inspect.signature(self.build).parameters.items()
            if key not in self.supplied and parameter.kind is not parameter.VAR_KEYWORD
        }

    def marks(self) -> dict[str, tuple[Any, ...]]:
        """Return annotations of keys beside their types, such as :data:`File`."""
        hints = self._hints(include_extras=True)
        return {key: hint.__metadata__ for key, hint in hints.items() if typing.get_origin(hint) is Annotated}

    def _hints(self, *, include_extras: bool = False) -> dict[str, Any]:
        source = self.build
        if isinstance(source, type) and not is_dataclass(source):
            source = vars(source).get("__init__", source)
        return _resolved(source, include_extras)

    def further(self) -> Any:
        """Return the annotation of keys beyond the named ones; None unless the constructor accepts any key."""
        for key, parameter in inspect.signature(self.build).parameters.items():
            if parameter.kind is parameter.VAR_KEYWORD:
                return self._hints().get(key)
        return None

    def usage(self) -> str:
        """Return the spec with every key and its default, required keys first, for help."""
        parameters = self.parameters().items()
        keys = [
            f"{key.rstrip('_')}=…"
            if p.default in (inspect.Parameter.empty, None)
            else f"{key.rstrip('_')}={_show(p.default)}"
            for key, p in sorted(parameters, key=lambda item: item[1].default is not inspect.Parameter.empty)
        ]
        return self.name + (":" + ",".join(keys) if keys else "")


@functools.cache  # a plan builds hundreds of strategies, and resolving annotations would take most of its time
def _resolved(source: Callable[..., Any], include_extras: bool) -> dict[str, Any]:
    return typing.get_type_hints(source, include_extras=include_extras)


@dataclass(slots=True)
class Registry(Generic[T]):
    """Names of one kind (``kind`` in the singular) with the functions that build them from specs.

    ``entries``: those registered so far. Looking up a name that is not among them, and going through all names, first
    loads the plug-ins of installed distributions (:mod:`anyk.base.installed`). ``beside``: another registry whose names
    the same specs may have, so that none is in both.
    """

    kind: str
    supplied: tuple[str, ...] = ()
    entries: dict[str, Entry[T]] = field(default_factory=dict)
    beside: Registry[Any] | None = field(default=None, repr=False)

    def register(
        self, name: str, *, grid: Callable[[int], Iterable[str]] | None = None
    ) -> Callable[[Builder], Builder]:
        """Register a class or function under ``name``; its keyword parameters become the spec's keys.

        ``grid``: the specs that a planner tries for a number of workers; by default the name alone.
        """

        def add(build: Builder) -> Builder:
            if self.beside is not None and name in self.beside.entries:
                raise BadInput(
                    f"the {self.kind} '{name}' cannot be registered: there is a {self.beside.kind} of this name, and a "
                    "spec could mean either; give it another name"
                )
            origin = installed.registering(self.kind, name, self.entries)
            self.entries[name] = Entry(name=name, build=build, supplied=self.supplied, grid=grid, origin=origin)
            return build

        return add

    def __iter__(self) -> Iterator[Entry[T]]:
        installed.load()
        installed.tell_failures()
        return iter(self.entries.values())

    def __contains__(self, name: str) -> bool:
        if name not in self.entries:
            installed.load()
        return name in self.entries

    def entry(self, name: str, *, also: tuple[str, ...] = ()) -> Entry[T]:
        """Return the entry of a name; raise :class:`~anyk.base.errors.UnknownName` with the nearest registered one."""
        if name in self:
            return self.entries[name]
        hint = self._hint(name, [*self.entries, *also])
        raise UnknownName(f"{self.kind} '{name}'", "; ".join([hint, *installed.failures()]))

    def _hint(self, name: str, names: Sequence[str]) -> str:
        """Return what helps a user who gave a name that is not among ``names``.

        A name of another kind is said to be one; a name that resembles one of another kind more gets no suggestion.
        """
        known = f"known: {', '.join(names)}"
        others = _names_of_other_kinds(self)
        if name in others:
            kind = others[name]
            return f"it is {'an' if kind[0] in 'aeio' else 'a'} {kind}; {known}"
        near = get_close_matches(name, names, n=1, cutoff=0.5)
        if not near or get_close_matches(name, others, n=1, cutoff=min(1.0, _likeness(name, near[0]) + 1e-9)):
            return known
        return f"did you mean '{near[0]}'?"

    def build(self, spec: str, **supplied: Any) -> T:
        """Build the object of a spec; ``supplied``: the parameters that the caller adds."""
        name, values = parse_spec(spec)
        return self.build_parsed(spec, name, values, **supplied)

    def build_parsed(self, spec: str, name: str, values: Mapping[str, str], **supplied: Any) -> T:
        """Build the object of a spec that is split already; see :meth:`build`."""
        entry = self.entry(name)
        parameters, further = entry.parameters(), entry.further()
        arguments = {}
        for key, value in values.items():
            if not key:
                if not parameters:
                    raise BadInput(f"{self.kind} '{name}' takes no value, got '{value}' in '{spec}'")
                key = next(iter(parameters))
                if key in values:
                    raise BadInput(f"'{key}' is given twice in '{spec}'; keep one")
            key += "_" * iskeyword(key)  # a parameter cannot be called lambda
            if key in supplied and further is not None:
                raise BadInput(f"{key} of {self.kind} '{name}' is an argument of its own, not a key, got '{spec}'")
            annotation = parameters[key].annotation if key in parameters else further
            if annotation is None:
                hint = suggest(key, parameters, f"its keys: {', '.join(parameters) or 'none'}")
                raise BadInput(f"{self.kind} '{name}' has no key '{key}'; {hint}")
            arguments[key] = read(value, annotation, f"{key} in '{spec}'")
        for key, parameter in parameters.items():
            if parameter.default is inspect.Parameter.empty and key not in arguments:
                raise BadInput(f"{self.kind} '{name}' needs {key.rstrip('_')}=…, as in {entry.usage()}")
        return entry.build(**arguments, **supplied)


# the registries whose names may be confused, by module and attribute; imported only to tell what an unknown name is
_CONFUSED = (
    ("anyk.strategies", "registry"),
    ("anyk.codes", "registry"),
    ("anyk.clusters", "registry"),
    ("anyk.delays", "registry"),
    ("anyk.optimizers", "registry"),
    ("anyk.optimizers", "schedules"),
    ("anyk.compression", "registry"),
    ("anyk.graphs", "registry"),
    ("anyk.callbacks", "registry"),
    ("anyk.problems", "sources"),
    ("anyk.problems", "models"),
)


def _names_of_other_kinds(asked: Registry[Any]) -> dict[str, str]:
    """Return the names of other registries than the one that was asked, and of what kind each is."""
    names: dict[str, str] = {}
    for module, attribute in _CONFUSED:
        registry: Registry[Any] = getattr(import_module(module), attribute)
        kind = "strategy" if registry.kind == "code" else registry.kind  # the spec of a code is a strategy, too
        if registry is not asked:
            names = dict.fromkeys(registry.entries, kind) | names
    return names


def _likeness(name: str, other: str) -> float:
    """Return how much two names resemble each other, from 0 to 1, as :func:`difflib.get_close_matches` does."""
    return SequenceMatcher(None, other, name).ratio()


def _enclosed(key: str, value: str) -> str:
    """Return the value, in brackets if a comma, as in the name of a file, would end it."""
    return f"({value})" if len(split_outside(value, ",")) > 1 and key != "wait" else value


def show_spec(name: str, values: Mapping[str, Any], defaults: Mapping[str, Any] | None = None) -> str:
    """Return the spec that :meth:`Registry.build` reads back; values equal to their default are omitted.

    >>> show_spec("frc", {"load": 3, "wait": 11})
    'frc:load=3,wait=11'
    """
    defaults = defaults or {}
    parts = [f"{k}={_enclosed(k, _show(v))}" for k, v in values.items() if k not in defaults or defaults[k] != v]
    return name + (":" + ",".join(parts) if parts else "")


_TRIES = 200  # numbers that are tried in either direction


def build_or_suggest(build: Callable[..., T], spec: str, workers: int) -> T:
    """Return ``build(spec, workers=workers)``; if that raises BadInput, add alternatives to the sentence.

    Alternatives are the specs that differ least in one integer, and the nearest numbers of workers for the spec.
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
    """Return the nearest specs that exist for this number of workers, then the nearest numbers of workers."""
    name, values = parse_spec(spec)
    values = {key: value if key == "wait" else str(bracketed(value)) for key, value in values.items()}
    most = 2 * max(workers, 8)

    def exists(candidate: tuple[str, int]) -> bool:
        try:
            build(candidate[0], workers=candidate[1])
        except BadInput:
            return False
        return True

    def around(value: int, change: Callable[[int], tuple[str, int]]) -> list[tuple[str, int]]:
        below = map(change, range(min(value - 1, most), -1, -1)[:_TRIES])
        above = map(change, range(max(value + 1, 0), max(value, most) + 1)[:_TRIES])
        return [candidate for way in (below, above) for candidate in islice(filter(exists, way), 1)]

    def with_value(key: str, value: int) -> tuple[str, int]:
        return show_spec(name, {**values, key: value}), workers

    near = []
    for key, value in values.items():
        if key not in ("", "seed") and value.removeprefix("-").isdigit():
            near += [candidate for candidate, _ in around(int(value), partial(with_value, key))]
    counts = [str(count) for _, count in around(workers, lambda count: (spec, count))]
    return [*near, f"{' or '.join(counts)} worker{'s' * (counts != ['1'])}"] if counts else near
