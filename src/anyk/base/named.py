"""User functions, named as ``file.py:function`` or ``module:function``, plug-ins, and trust in them.

The code that the user names is run. A name in a run folder may come from anyone: inside :func:`names_in_folder` only
trusted code is run, and only if it has not changed since it was recorded. The code of a file includes the files in its
folder that it imports (:func:`local_imports`).
"""

from __future__ import annotations

import ast
import hashlib
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from importlib import import_module, util
from importlib.machinery import PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

from anyk.base.errors import BadInput, explaining, suggest
from anyk.base.installed import searching
from anyk.base.regular_files import read_plain

_LOADED: dict[str, str] = {}  # SHA-256 of the files that have been run, by path
_PLUGGED: list[Path] = []  # plug-ins in use


@dataclass(frozen=True)
class _Folder:
    """A run folder that is being read, with the SHA-256 that it records of code, by file or module."""

    path: Path
    code: Mapping[str, str]
    trust: bool


_FOLDER: ContextVar[_Folder | None] = ContextVar("the run folder whose names are being read", default=None)


@contextmanager
def names_in_folder(path: Path, code: Mapping[str, str], *, trust: bool) -> Iterator[None]:
    """Refuse code that a run folder names; with ``trust``, run it if its SHA-256 in ``code`` is unchanged."""
    token = _FOLDER.set(_Folder(path, code, trust))
    try:
        yield
    finally:
        _FOLDER.reset(token)


def admit(source: str, name: str, what: str) -> None:
    """Raise :class:`~anyk.BadInput` if a run folder names code of ``source`` that must not run.

    ``source`` is a file or a module, ``name`` the complete name, and ``what`` its purpose. With trust, the file must be
    an absolute path outside of the folder, a module must not lie in the current folder, and its SHA-256 must be the
    recorded value.
    """
    folder = _FOLDER.get()
    if folder is None:
        return
    named = what in ("problem", "callback")
    advice = f"name it again with --{what} {name}, or trust the folder" if named else "trust the folder"
    ways = f"{advice} with --trust" + ("" if what == "callback" else f" (in Python: {what}=… or trust=True)")
    _refuse_untrusted(f"code to run, the {what} '{name}', which may belong to somebody else; if it is yours, {ways}")
    refused = f"the run '{folder.path}' names the {what} '{name}', which is not run: "
    file = Path(source) if source.endswith(".py") else file_of(source, folder.path)
    if file is None:
        raise BadInput(f"{refused}no file of the module '{source}' is found outside of the current folder")
    if not file.is_absolute():
        raise BadInput(f"{refused}'{source}' is not an absolute path")
    if file.resolve().is_relative_to(folder.path.resolve()):
        raise BadInput(f"{refused}'{file}' lies in the run folder itself")
    for code in (source, *map(str, local_imports(file) if source.endswith(".py") else ())):
        path, digest = (file, "its SHA-256") if code == source else (code, f"the SHA-256 of '{code}'")
        recorded, present = folder.code.get(code), sha256_of(code, folder.path)
        if recorded is None:
            raise BadInput(f"{refused}{digest} was not recorded")
        if present is None:
            raise BadInput(f"{refused}there is no file '{path}'")
        if present != recorded:
            raise BadInput(
                f"{refused}'{path}' has changed since the run began (SHA-256 {present[:8]}…, recorded "
                f"{recorded[:8]}…); restore it, or start a new run from this one: anyk train --from"
            )


def admit_place(name: str, what: str) -> None:
    """Raise :class:`~anyk.BadInput` if an untrusted run folder names a place to write or send to."""
    _refuse_untrusted(
        f"the {what} '{name}', which writes to a place that somebody else may have chosen; if it is yours, name it "
        f"again with --{what}, or trust the folder with --trust"
    )


def admit_address(address: str) -> None:
    """Raise :class:`~anyk.BadInput` if an untrusted run folder names data that would be fetched."""
    _refuse_untrusted(
        f"data that would be fetched, '{address}'; if the run is yours, trust its folder with --trust (in Python: "
        "problem=… or trust=True)"
    )


def _refuse_untrusted(what: str) -> None:
    """Raise :class:`~anyk.BadInput` if an untrusted run folder is being read, which names ``what``."""
    folder = _FOLDER.get()
    if folder is not None and not folder.trust:
        raise BadInput(f"the run '{folder.path}' names {what}")


def file_of(module: str, excluded: Path | None = None) -> Path | None:
    """Return the source file of a module without running anything; None if there is none.

    The current folder and the folder ``excluded`` are not searched.
    """
    loaded = sys.modules.get(module)
    if loaded is not None:
        origin = getattr(loaded, "__file__", None)
        return None if origin is None else Path(origin)
    search = _path_without(excluded)
    spec = None
    for end, _ in enumerate(parts := module.split("."), 1):
        spec = PathFinder.find_spec(".".join(parts[:end]), search) if search else None
        if spec is None:
            return None
        search = list(spec.submodule_search_locations or ())
    return None if spec is None or not spec.has_location or spec.origin is None else Path(spec.origin)


def sha256_of(source: str, excluded: Path | None = None) -> str | None:
    """Return the SHA-256 of a file or module, in the state in which it was run; None without a file."""
    try:
        file = Path(source).resolve() if source.endswith(".py") else file_of(source, excluded)
        if file is None:
            return None
        return _LOADED.get(str(file)) or hashlib.sha256(read_plain(file, follow=True)).hexdigest()
    except (OSError, ValueError):  # a name may hold a NUL
        return None


def local_imports(file: Path) -> list[Path]:
    """Return the files in a Python file's own folder that it imports, directly or indirectly, sorted.

    Nothing is run: any file there that an import statement names, also inside a function, counts. The folder's packages
    are searched, other folders are not.
    """
    file = file.resolve()
    folder, imports, pending = file.parent, set[Path](), [file]
    while pending:
        for name in _imports(pending.pop(), folder):
            for end in range(1, len(name) + 1):
                location = folder.joinpath(*name[:end])
                for path in (location / "__init__.py", location.with_name(f"{location.name}.py")):
                    if path.is_file() and path != file and path not in imports:
                        imports.add(path)
                        pending.append(path)
    return sorted(imports)


def _imports(file: Path, folder: Path) -> Iterator[list[str]]:
    """Yield the names of modules, in parts, that a file in a folder or in a package there may import."""
    try:
        tree = ast.parse(read_plain(file, follow=True))
    except (OSError, SyntaxError, ValueError):  # running the file will report it
        return
    package = list(file.parent.relative_to(folder).parts)
    for node in ast.walk(tree):
        match node:
            case ast.Import():
                yield from (alias.name.split(".") for alias in node.names)
            case ast.ImportFrom():
                start = package[: len(package) + 1 - node.level] if node.level else []
                start += node.module.split(".") if node.module else []
                yield from ([*start, alias.name] for alias in node.names)  # a module, or a name in a module


def _path_without(folder: Path | None) -> list[str]:
    """Return the search path of modules without the current folder and another."""
    excluded = [Path.cwd().resolve(), *([] if folder is None else [folder.resolve()])]
    return [entry for entry in sys.path if entry and Path(entry).resolve() not in excluded]


def function_named(name: str, what: str) -> tuple[Callable[..., Any], str]:
    """Return the function of a name, and its name that is valid in any folder; ``what``: its purpose.

    A file is run as a module, once, with its folder on the path; a module may also lie in the current folder. Objects
    that a file defines are pickled by value by cloudpickle, as other processes do not have the file. Raises
    :class:`~anyk.BadInput` if there is no such file, module or function, if running it fails, and if an
    untrusted run folder names it (:func:`names_in_folder`).

    >>> function_named("statistics:median", "average")[0]([3, 1, 2])
    2
    >>> function_named("nowhere.py:make", "problem")
    Traceback (most recent call last):
    anyk.base.errors.BadInput: no file 'nowhere.py' for the problem 'nowhere.py:make'
    """
    source, _, function = name.rpartition(":")
    attributes = function.split(".")
    if not source or not all(attribute.isidentifier() for attribute in attributes):
        raise BadInput(f"a {what} is named as file.py:function or module:function, got '{name}'")
    admit(source, name, what)
    with explaining(f"'{source}' {'failed' if source.endswith('.py') else 'cannot be imported'}"):
        if source.endswith(".py"):
            path = Path(source).resolve()
            if not path.is_file():
                raise BadInput(f"no file '{source}' for the {what} '{name}'")
            module, full_name = _module_of(path), f"{path}:{function}"
        else:
            module, full_name = import_named(source), name
    member: Any = module
    for attribute in attributes:
        holder, member = member, getattr(member, attribute, None)
        if member is None:
            break
    if not callable(member):
        hint = suggest(attribute, [key for key in dir(holder) if callable(getattr(holder, key, None))], "")
        raise BadInput(f"'{source}' has no function '{function}'{hint and f'; {hint}'}")
    return member, full_name


def _module_of(path: Path) -> ModuleType:
    """Return the module of a file, which is run if it has not been run before."""
    name = f"anyk_file_{path.stem}"
    module = sys.modules.get(name)
    return module if module is not None and module.__file__ == str(path) else _run(path, name)


@contextmanager
def plugged_in(file: Path) -> Iterator[None]:
    """Run a file that registers codes, strategies and the like; a run that starts inside records its SHA-256.

    Its folder is on the path, and its objects are sent to workers by value. Errors of the file are raised unchanged.
    """
    path = file.resolve()
    _run(path, f"anyk_plugin_{path.stem}")
    _PLUGGED.append(path)
    try:
        yield
    finally:
        _PLUGGED.remove(path)


def plugins() -> list[Path]:
    """Return the plug-ins in use."""
    return list(dict.fromkeys(_PLUGGED))


def _run(path: Path, name: str) -> ModuleType:
    """Run a file as a module of this name."""
    import cloudpickle

    source = path.read_bytes()
    loader = SourceFileLoader(name, str(path))
    spec = util.spec_from_file_location(name, path, loader=loader)
    assert spec is not None
    module = util.module_from_spec(spec)
    sys.modules[name] = module
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))  # as for a script: it may import files of its folder
    try:
        # the source itself is run, not a compiled file in the folder
        exec(loader.source_to_code(source, str(path)), module.__dict__)
    except BaseException:
        del sys.modules[name]
        raise
    _LOADED[str(path)] = hashlib.sha256(source).hexdigest()
    cloudpickle.register_pickle_by_value(module)
    return module


def import_named(source: str, *, in_current_folder: bool = True) -> ModuleType:
    """Return the module of a name; with ``in_current_folder`` it may lie there, unless a run folder names it."""
    folder = _FOLDER.get()
    if folder is not None:
        with searching(_path_without(folder.path)):
            return import_module(source)
    current = str(Path.cwd())
    if in_current_folder and current not in sys.path and "" not in sys.path:
        sys.path.insert(0, current)
    return import_module(source)
