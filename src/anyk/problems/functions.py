"""Problems that a function of the user's makes, named as ``file.py:function`` or ``module:function``."""

from __future__ import annotations

import sys
from difflib import get_close_matches
from importlib import import_module, util
from pathlib import Path
from types import ModuleType
from typing import Any

from anyk.errors import BadInput
from anyk.problems.base import Problem

_PARTS = ("dimension", "dtype", "samples", "l2", "metric", "better", "split", "initial", "loss", "metrics", "recipe")


def from_function(name: str) -> Problem:
    """The problem that a function without arguments makes; ``name`` is ``file.py:function`` or ``module:function``.

    A file's classes and functions travel to workers with the problem; what a module of that name holds, and what a file
    imports from beside it, is imported there. The problem's ``recipe()`` is its name, so its runs can be resumed and
    replayed without it. Raises :class:`~anyk.errors.BadInput` where there is no such file, module or function, where
    it fails, and where what it makes is no problem.

    >>> from_function("nowhere.py:make_problem")
    Traceback (most recent call last):
    anyk.errors.BadInput: no file 'nowhere.py' for the problem 'nowhere.py:make_problem'
    """
    where, _, function = name.rpartition(":")
    if not where or not function.isidentifier():
        raise BadInput(f"a problem is named as file.py:function or module:function, got '{name}'")
    if where.endswith(".py"):
        path = Path(where).resolve()
        module, whole = _module_of(path, name), f"{path}:{function}"
    else:
        module, whole = _imported(where, name), name
    make = getattr(module, function, None)
    if not callable(make):
        near = get_close_matches(function, [key for key, value in vars(module).items() if callable(value)], n=1)
        hint = f"; did you mean '{near[0]}'?" if near else ""
        raise BadInput(f"'{where}' has no function '{function}'{hint}")
    try:
        problem: Any = make()
    except BadInput:
        raise
    except Exception as error:
        raise BadInput(f"'{name}' failed: {type(error).__name__}: {error}") from None
    missing = [part for part in _PARTS if not hasattr(problem, part)]
    if missing:
        raise BadInput(f"'{name}' gave {type(problem).__name__}, which is no problem: it has no {missing[0]}")
    problem.recipe = lambda: {"problem": whole}
    return problem  # type: ignore[no-any-return]


def _module_of(path: Path, name: str) -> ModuleType:
    """A file run as a module, once; what it defines is sent to workers by value, as they do not know the file."""
    import cloudpickle

    if not path.is_file():
        raise BadInput(f"no file '{name.rpartition(':')[0]}' for the problem '{name}'")
    known = f"anyk_problem_{path.stem}"
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
    except BadInput:
        raise
    except Exception as error:
        del sys.modules[known]
        raise BadInput(f"the file of '{name}' failed: {type(error).__name__}: {error}") from None
    cloudpickle.register_pickle_by_value(module)
    return module


def _imported(where: str, name: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    try:
        return import_module(where)
    except Exception as error:
        raise BadInput(f"the module of '{name}' cannot be imported: {type(error).__name__}: {error}") from None
