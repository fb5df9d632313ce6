"""Registries: names of one kind with what they build from specs, and what helps a user whose spec is none.

A registry maps a name to a constructor; the constructor's keyword parameters are the spec's keys, and its annotations
determine how the values are read.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from difflib import SequenceMatcher, get_close_matches
from functools import partial
from importlib import import_module
from itertools import islice
from keyword import iskeyword
from typing import Annotated, Any, Generic, TypeVar

from anyk.base import installed
from anyk.base.errors import BadInput, UnknownName, suggest
from anyk.base.specs import A_FILE, Spec, bracketed, parse_spec, read, show_spec, show_value

T = TypeVar("T")
Builder = TypeVar("Builder", bound=Callable[..., Any])

_TRIES = 200  # numbers that are tried in either direction


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
            else f"{key.rstrip('_')}={show_value(p.default)}"
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
    if A_FILE in marks:
        return change(value)
    registries = [mark for mark in marks if isinstance(mark, Registry)]
    return with_files(value, change, *registries) if registries else value


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
