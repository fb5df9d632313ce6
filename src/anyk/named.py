"""Functions of the user's, named as ``file.py:function`` or ``module:function``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from difflib import get_close_matches
from importlib import import_module, util
from pathlib import Path
from types import ModuleType
from typing import Any

from anyk.errors import BadInput


def function_named(name: str, what: str) -> tuple[Callable[..., Any], str]:
    """The function of that name, and the name by which it is found from any folder; ``what``: for what it is asked.

    A file is run as a module, once, with its folder on the path; a module may also lie in the current folder. What a
    file defines travels by value when it is pickled by cloudpickle, as others do not know the file. Raises
    :class:`~anyk.errors.BadInput` where there is no such file, module or function, and where running it fails.

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
    try:
        if where.endswith(".py"):
            path = Path(where).resolve()
            if not path.is_file():
                raise BadInput(f"no file '{where}' for the {what} '{name}'")
            module, whole = _module_of(path), f"{path}:{function}"
        else:
            module, whole = _imported(where), name
    except BadInput:
        raise
    except Exception as error:
        verb = "failed" if where.endswith(".py") else "cannot be imported"
        raise BadInput(f"'{where}' {verb}: {type(error).__name__}: {error}") from None
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
    import cloudpickle

    known = f"anyk_file_{path.stem}"
    found = sys.modules.get(known)
    if found is not None and found.__file__ == str(path):
        return found
    spec = util.spec_from_file_location(known, path)
    assert spec is not None and spec.loader is not None
    module = util.module_from_spec(spec)
    sys.modules[known] = module
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))  # as for a script: it may import what lies beside it
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[known]
        raise
    cloudpickle.register_pickle_by_value(module)
    return module


def _imported(where: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    return import_module(where)
