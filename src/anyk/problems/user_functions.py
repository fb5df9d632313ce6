"""Problems made by a user's function, which is named as ``file.py:function`` or ``module:function``."""

from __future__ import annotations

from typing import Any, cast

from anyk.errors import BadInput, describe_error
from anyk.named import function_named
from anyk.problems.base import Problem, missing_parts


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
    make, whole = function_named(name, "problem")
    try:
        problem: Any = make()
    except BadInput:
        raise
    except (Exception, SystemExit) as error:
        raise BadInput(f"'{name}' failed: {describe_error(error)}") from None
    missing = missing_parts(problem)
    if missing:
        raise BadInput(f"'{name}' gave {type(problem).__name__}, which is not a problem: it has no {missing[0]}")
    problem.recipe = lambda: {"problem": whole}
    return cast(Problem, problem)
