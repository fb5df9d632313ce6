"""Plug-ins among the installed distributions, found through their entry points and loaded when a name asks for them.

A distribution names a module in the group ``anyk.plugins``. It is imported when a name is looked up that is not
registered, or when the names of a registry are listed, and then registers codes, strategies and the like. So importing
anyk costs nothing more. In the group ``anyk.commands`` a distribution names commands of the command line.
"""

from __future__ import annotations

import hashlib
import re
import sys
import threading
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, MutableMapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from importlib import import_module
from importlib.machinery import all_suffixes
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anyk.base.errors import BadInput, describe_error, outside

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

# the groups of entry points
PLUGINS = "anyk.plugins"
COMMANDS = "anyk.commands"
_CODE_SUFFIXES = tuple(suffix for suffix in all_suffixes() if suffix != ".pyc")
# a name or a value in a spec; a key is none, as = follows it
_WORD = re.compile(r"[^\s:,=()|&/]+(?![^\s:,()|&/])")


def _warn(sentence: str) -> None:
    warnings.warn(sentence, RuntimeWarning, stacklevel=outside())


_tell: Callable[[str], None] = _warn  # shows a sentence about a plug-in that is broken


def tell_of_plugins(tell: Callable[[str], None]) -> None:
    """Show sentences about broken plug-ins by a function instead of warnings, as the command line does."""
    global _tell
    _tell = tell


@dataclass
class _PlugIn:
    """A distribution with plug-ins: the names that it has registered, and a digest of its code when it was loaded."""

    name: str
    version: str
    names: list[tuple[MutableMapping[str, Any], str]] = field(default_factory=list)  # entries of a registry, and a name
    digest: str = ""

    def __str__(self) -> str:
        return f"{self.name} {self.version}"

    def registered(self) -> set[str]:
        """Return the names that are still those of this distribution."""
        return {name for entries, name in self.names if name in entries and entries[name].origin == str(self)}


_LOCK = threading.RLock()
_LOADING: ContextVar[_PlugIn | None] = ContextVar("the plug-in that is being loaded", default=None)
_ONLY: ContextVar[Collection[str] | None] = ContextVar("the distributions that may be loaded", default=None)
_loaded: dict[str, _PlugIn] | None = None  # by the distribution's name; None before the first need
_complete = False  # whether these are all
_failures: dict[str, str] = {}  # sentences, by the distribution's name
_told: set[str] = set()


def _search_path() -> list[str]:
    """Return the search path of modules without the current folder, which Python may have put in front.

    A folder of somebody else's, in which anyk is started, must not bring plug-ins along. Further back on the path the
    current folder stays: an installation has added it there.
    """
    path = [entry for entry in sys.path if entry]  # an empty entry is the current folder
    if not path or path[0] != sys.path[0]:
        return path
    try:
        first_is_here = Path(path[0]).resolve() == Path.cwd().resolve()
    except OSError:  # the current folder has been deleted
        return path
    return path[1:] if first_is_here else path


def entry_points(group: str) -> Iterator[tuple[EntryPoint, str, str]]:
    """Yield the entry points of a group, each with the name and version of its distribution, sorted."""
    from importlib.metadata import distributions

    installed = list(distributions(path=_search_path()))
    # nearly always there is none, and to parse a hundred files for their names takes longer than most runs begin
    if not any(group in (distribution.read_text("entry_points.txt") or "") for distribution in installed):
        return
    seen: dict[str, Any] = {}
    for distribution in installed:
        seen.setdefault(str(distribution.metadata["Name"]), distribution)  # the first on the path is imported
    for name, distribution in sorted(seen.items()):
        if group not in (distribution.read_text("entry_points.txt") or ""):
            continue
        try:
            points = [point for point in distribution.entry_points if point.group == group]
        except Exception as error:  # of which kind depends on the version of Python
            _failures[name] = f"the entry points of the distribution '{name}' cannot be read: {describe_error(error)}"
            continue
        for point in points:
            yield point, name, str(distribution.version)


def load() -> None:
    """Import the installed plug-ins, once; one that fails registers nothing, and :func:`failures` says why."""
    global _loaded, _complete
    with _LOCK:
        if _LOADING.get() is not None or (_loaded is not None and _complete):
            return
        before, wanted = dict(_loaded or {}), _ONLY.get()
        _loaded = _loaded or {}
        for point, name, version in list(entry_points(PLUGINS)):
            if name not in before and (wanted is None or name in wanted):
                plugin = _loaded.setdefault(name, _PlugIn(name, version))
                _load(point, plugin)
        _complete = wanted is None


@contextmanager
def only(labels: Iterable[str]) -> Iterator[None]:
    """Load no other distributions inside than these, each as "name version": those that a run has used."""
    token = _ONLY.set({label.rpartition(" ")[0] for label in labels})
    try:
        yield
    finally:
        _ONLY.reset(token)


def load_entry_point(point: EntryPoint) -> Any:
    """Return the module that an entry point names, or the object in it."""
    with searching(_search_path()):
        value: Any = import_module(point.module)
        for attribute in point.attr.split(".") if point.attr else ():
            value = getattr(value, attribute)
        return value


@contextmanager
def searching(folders: list[str]) -> Iterator[None]:
    """Let modules be found in some folders only, and afterwards also in those that were added meanwhile."""
    before = sys.path[:]
    sys.path[:] = folders
    try:
        yield
    finally:
        sys.path[:] = before + [entry for entry in sys.path if entry not in before]


def _load(point: EntryPoint, plugin: _PlugIn) -> None:
    before, token = len(plugin.names), _LOADING.set(plugin)
    try:
        if point.attr:
            raise BadInput(f"its entry point must name a module, got '{point.value}'")
        load_entry_point(point)
        plugin.digest = _digest(plugin.digest, point.module)
    except (Exception, SystemExit) as error:  # a module may raise anything, and may end itself
        for entries, name in plugin.names[before:]:
            entries.pop(name, None)
        del plugin.names[before:]
        _failures[plugin.name] = (
            f"the plug-in '{point.name}' of the distribution '{plugin}' cannot be loaded: {describe_error(error)}"
        )
    finally:
        _LOADING.reset(token)


def registering(kind: str, name: str, entries: MutableMapping[str, Any]) -> str:
    """Note that a name is registered; return the distribution whose plug-in does it, empty for any other code.

    Raises :class:`~anyk.BadInput` if a plug-in would replace something: what a name means must not depend on
    which distributions are installed.
    """
    plugin = _LOADING.get()
    if plugin is None:
        return ""
    if name in entries:
        other = f"that of '{entries[name].origin}'" if entries[name].origin else "another"
        raise BadInput(f"it registers the {kind} '{name}', but there is {other} of this name")
    plugin.names.append((entries, name))
    return str(plugin)


def failures() -> list[str]:
    """Return a sentence about each plug-in that could not be loaded."""
    return list(_failures.values())


def tell_failures() -> None:
    """Show the sentences of :func:`failures`, each once."""
    for sentence in _failures.values():
        if sentence not in _told:
            _told.add(sentence)
            _tell(sentence)


# ------------------------------------------------------------------------------------------- what a run used


def used_by(specs: Iterable[str]) -> dict[str, str]:
    """Return the loaded distributions whose names specs contain, as "name version", with digests of their code."""
    words = {word for spec in specs for word in _WORD.findall(spec)}
    return {str(plugin): plugin.digest for plugin in (_loaded or {}).values() if words & plugin.registered()}


def check_used(recorded: dict[str, str], specs: Iterable[str], of: str) -> None:
    """Raise :class:`~anyk.BadInput` unless specs use the distributions that were recorded, unchanged."""
    load()
    now, plugins = used_by(specs), _loaded or {}
    for label, digest in recorded.items():
        name, _, version = label.rpartition(" ")
        if name in _failures:
            raise BadInput(f"{of} was made with the distribution '{label}', but {_failures[name]}")
        if name not in plugins:
            raise BadInput(
                f"{of} was made with the plug-in distribution '{label}', which is not installed here; if you know it, "
                "install it again"
            )
        plugin = plugins[name]
        if plugin.version != version:
            raise BadInput(
                f"{of} was made with version {version} of the plug-in distribution '{name}', and {plugin.version} is "
                "installed; install that version again, or start a new run from this one: anyk train --from"
            )
        if plugin.digest != digest:
            raise BadInput(
                f"the code of the plug-in distribution '{label}' has changed since {of} began (SHA-256 "
                f"{plugin.digest[:8]}…, recorded {digest[:8]}…); restore it, or start a new run from this one: anyk "
                "train --from"
            )
    if added := sorted(now.keys() - recorded.keys()):
        words = set(_WORD.findall(" ".join(specs)))
        names = plugins[added[0].rpartition(" ")[0]].registered() & words
        raise BadInput(
            f"'{min(names)}' is now a name of the plug-in distribution '{added[0]}', with which {of} was not made; "
            "give the plug-in of then with --plugin (in Python, import what registers the name), or start a new run "
            "from this one: anyk train --from"
        )


def _digest(before: str, module: str) -> str:
    """Return SHA-256 of the code of a module's package, together with an earlier digest of the same distribution."""
    parts = module.split(".")
    packages = (sys.modules[".".join(parts[: end + 1])] for end in range(len(parts)))
    top = next(package for package in packages if getattr(package, "__file__", None))  # below a namespace
    digest = hashlib.sha256(before.encode())
    file = Path(str(top.__file__))
    folder = file.parent if hasattr(top, "__path__") else None
    files = [file] if folder is None else [path for path in folder.rglob("*") if path.name.endswith(_CODE_SUFFIXES)]
    for path in sorted(files):
        if path.is_file():
            digest.update(f"{path.relative_to((folder or file).parent).as_posix()}\0".encode())
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()
