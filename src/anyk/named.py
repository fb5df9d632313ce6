"""Functions of the user's, named as ``file.py:function`` or ``module:function``, plug-ins, and who may name them.

A name that the user gives now is run. A name that stands in a run folder may be anybody's: inside
:func:`names_in_folder` nothing is run but what the user says to trust, and then only what it was when it was recorded.
A file counts with the files beside it that it imports (:func:`beside`).
"""

from __future__ import annotations

import ast
import hashlib
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module, util
from importlib.machinery import PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

from anyk.errors import BadInput, told
from anyk.files import read_plain

_LOADED: dict[str, str] = {}  # SHA-256 of the files that were run, by path
_PLUGGED: list[Path] = []  # plug-ins in use


@dataclass(frozen=True)
class _Folder:
    """A run folder that is being read: the SHA-256 it records of code, by file or module."""

    path: Path
    code: Mapping[str, str]
    trust: bool


_FOLDER: ContextVar[_Folder | None] = ContextVar("the run folder whose names are being read", default=None)


@contextmanager
def names_in_folder(path: Path, code: Mapping[str, str], *, trust: bool) -> Iterator[None]:
    """Names met inside are those of a run folder: they are refused, or with ``trust`` compared with ``code``."""
    token = _FOLDER.set(_Folder(path, code, trust))
    try:
        yield
    finally:
        _FOLDER.reset(token)


def admit(where: str, name: str, what: str) -> None:
    """Raise :class:`~anyk.errors.BadInput` where a run folder names code of ``where`` that must not run.

    ``where`` is a file or a module, ``name`` the whole name, and ``what`` says for what it is named. With trust, the
    file must be an absolute path outside of the folder, a module must not lie in the current folder, and its SHA-256
    must be the one that was recorded.
    """
    folder = _FOLDER.get()
    if folder is None:
        return
    named = what in ("problem", "callback")
    again = f"name it again with --{what} {name}, or trust the folder" if named else "trust the folder"
    ways = f"{again} with --trust" + ("" if what == "callback" else f" (in Python: {what}=… or trust=True)")
    if not folder.trust:
        raise BadInput(
            f"the run '{folder.path}' names code to run, the {what} '{name}', which may belong to somebody else; "
            "if it is yours, "
            f"{ways}"
        )
    refused = f"the run '{folder.path}' names the {what} '{name}', which is not run: "
    file = Path(where) if where.endswith(".py") else file_of(where, folder.path)
    if file is None:
        raise BadInput(f"{refused}no file of the module '{where}' is found outside of the current folder")
    if not file.is_absolute():
        raise BadInput(f"{refused}'{where}' is not an absolute path")
    if file.resolve().is_relative_to(folder.path.resolve()):
        raise BadInput(f"{refused}'{file}' lies in the run folder itself")
    for part in (where, *map(str, beside(file) if where.endswith(".py") else ())):
        one, whose = (file, "its SHA-256") if part == where else (part, f"the SHA-256 of '{part}'")
        recorded, found = folder.code.get(part), sha256_of(part, folder.path)
        if recorded is None:
            raise BadInput(f"{refused}{whose} was not recorded")
        if found is None:
            raise BadInput(f"{refused}there is no file '{one}'")
        if found != recorded:
            raise BadInput(
                f"{refused}'{one}' has changed since the run began (SHA-256 {found[:8]}…, recorded {recorded[:8]}…); "
                "restore it, or start a new run from this one: anyk train --from"
            )


def admit_place(name: str, what: str) -> None:
    """Raise :class:`~anyk.errors.BadInput` where a run folder that is not trusted names a place to write or send to."""
    folder = _FOLDER.get()
    if folder is not None and not folder.trust:
        raise BadInput(
            f"the run '{folder.path}' names the {what} '{name}', which writes to a place that somebody else may have "
            f"chosen; if it is yours, name it again with --{what}, or trust the folder with --trust"
        )


def admit_address(address: str) -> None:
    """Raise :class:`~anyk.errors.BadInput` where a run folder that is not trusted names data that would be fetched."""
    folder = _FOLDER.get()
    if folder is not None and not folder.trust:
        raise BadInput(
            f"the run '{folder.path}' names data that would be fetched, '{address}'; if the run is yours, trust its "
            "folder with --trust (in Python: problem=… or trust=True)"
        )


def file_of(module: str, besides: Path | None = None) -> Path | None:
    """The source file of a module, found without running anything; None where there is none.

    The current folder and ``besides`` are not searched.
    """
    loaded = sys.modules.get(module)
    if loaded is not None:
        known = getattr(loaded, "__file__", None)
        return None if known is None else Path(known)
    search: list[str] | None = _path_without(besides)
    spec = None
    for end, _ in enumerate(parts := module.split("."), 1):
        spec = PathFinder.find_spec(".".join(parts[:end]), search) if search else None
        if spec is None:
            return None
        search = list(spec.submodule_search_locations or ())
    return None if spec is None or not spec.has_location or spec.origin is None else Path(spec.origin)


def sha256_of(where: str, besides: Path | None = None) -> str | None:
    """SHA-256 of a file or module, as it was run if it has been; None where there is no file."""
    try:
        file = Path(where).resolve() if where.endswith(".py") else file_of(where, besides)
        if file is None:
            return None
        return _LOADED.get(str(file)) or hashlib.sha256(read_plain(file, follow=True)).hexdigest()
    except (OSError, ValueError):  # a name may hold a NUL
        return None


def beside(file: Path) -> list[Path]:
    """The files in a Python file's own folder that it imports, and what those import there, in order of their names.

    Nothing is run: what is named in an import statement, also inside a function, and lies there counts. The folder's
    packages are looked into, other folders are not.
    """
    file = file.resolve()
    folder, found, left = file.parent, set[Path](), [file]
    while left:
        one = left.pop()
        for name in _imports(one, folder):
            for end in range(1, len(name) + 1):
                place = folder.joinpath(*name[:end])
                for path in (place / "__init__.py", place.with_name(f"{place.name}.py")):
                    if path.is_file() and path != file and path not in found:
                        found.add(path)
                        left.append(path)
    return sorted(found)


def _imports(file: Path, folder: Path) -> Iterator[list[str]]:
    """The names of modules, in parts, that a file in a folder or in a package there may import."""
    try:
        tree = ast.parse(read_plain(file, follow=True))
    except (OSError, SyntaxError, ValueError):  # which running it will report
        return
    package = list(file.parent.relative_to(folder).parts)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) + 1 - node.level] if node.level else []
            start += node.module.split(".") if node.module else []
            yield from ([*start, alias.name] for alias in node.names)  # which may be a module or a name in one


def _path_without(besides: Path | None) -> list[str]:
    """Where modules are looked for, without the current folder and another."""
    not_there = [Path.cwd().resolve(), *([] if besides is None else [besides.resolve()])]
    return [entry for entry in sys.path if entry and Path(entry).resolve() not in not_there]


def function_named(name: str, what: str) -> tuple[Callable[..., Any], str]:
    """The function of that name, and the name by which it is found from any folder; ``what``: for what it is asked.

    A file is run as a module, once, with its folder on the path; a module may also lie in the current folder. What a
    file defines travels by value when it is pickled by cloudpickle, as others do not know the file. Raises
    :class:`~anyk.errors.BadInput` where there is no such file, module or function, where running it fails, and where
    a run folder names it that is not trusted (:func:`names_in_folder`).

    >>> function_named("statistics:median", "average")[0]([3, 1, 2])
    2
    >>> function_named("nowhere.py:make", "problem")
    Traceback (most recent call last):
    anyk.errors.BadInput: no file 'nowhere.py' for the problem 'nowhere.py:make'
    """
    where, _, function = name.rpartition(":")
    parts = function.split(".")
    if not where or not all(part.isidentifier() for part in parts):
        raise BadInput(f"a {what} is named as file.py:function or module:function, got '{name}'")
    admit(where, name, what)
    try:
        if where.endswith(".py"):
            path = Path(where).resolve()
            if not path.is_file():
                raise BadInput(f"no file '{where}' for the {what} '{name}'")
            module, whole = _module_of(path), f"{path}:{function}"
        else:
            module, whole = imported(where), name
    except BadInput:
        raise
    except (Exception, SystemExit) as error:  # a script may end itself when it is imported
        verb = "failed" if where.endswith(".py") else "cannot be imported"
        raise BadInput(f"'{where}' {verb}: {told(error)}") from None
    found: Any = module
    for part in parts:
        holder, found = found, getattr(found, part, None)
        if found is None:
            break
    if not callable(found):
        near = get_close_matches(part, [key for key in dir(holder) if callable(getattr(holder, key, None))], n=1)
        hint = f"; did you mean '{near[0]}'?" if near else ""
        raise BadInput(f"'{where}' has no function '{function}'{hint}")
    return found, whole


def _module_of(path: Path) -> ModuleType:
    known = f"anyk_file_{path.stem}"
    found = sys.modules.get(known)
    return found if found is not None and found.__file__ == str(path) else _run(path, known)


@contextmanager
def plugged_in(file: Path) -> Iterator[None]:
    """Run a file that registers codes, strategies and the like; a run that is begun inside records its SHA-256.

    Its folder is on the path, and what it defines travels to workers by value. Raises what running it raises.
    """
    path = file.resolve()
    _run(path, f"anyk_plugin_{path.stem}")
    _PLUGGED.append(path)
    try:
        yield
    finally:
        _PLUGGED.remove(path)


def plugins() -> list[Path]:
    """The plug-ins in use."""
    return list(dict.fromkeys(_PLUGGED))


def _run(path: Path, known: str) -> ModuleType:
    """Run a file as a module of that name."""
    import cloudpickle

    source = path.read_bytes()
    loader = SourceFileLoader(known, str(path))
    spec = util.spec_from_file_location(known, path, loader=loader)
    assert spec is not None
    module = util.module_from_spec(spec)
    sys.modules[known] = module
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))  # as for a script: it may import what lies beside it
    try:
        # what is run is what was read, and not a compiled file beside it
        exec(loader.source_to_code(source, str(path)), module.__dict__)
    except BaseException:
        del sys.modules[known]
        raise
    _LOADED[str(path)] = hashlib.sha256(source).hexdigest()
    cloudpickle.register_pickle_by_value(module)
    return module


def imported(where: str, *, here: bool = True) -> ModuleType:
    """The module of that name; with ``here`` it may lie in the current folder, unless a run folder names it."""
    folder = _FOLDER.get()
    if folder is not None:
        before = sys.path[:]
        sys.path[:] = _path_without(folder.path)
        try:
            return import_module(where)
        finally:
            sys.path[:] = before + [entry for entry in sys.path if entry not in before]
    current = str(Path.cwd())
    if here and current not in sys.path and "" not in sys.path:
        sys.path.insert(0, current)
    return import_module(where)
