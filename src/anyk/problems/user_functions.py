"""Problems made by a user's function, given as ``file.py:function`` or ``module:function``."""

from __future__ import annotations

from typing import cast

from anyk.errors import BadInput, explaining
from anyk.named import function_named
from anyk.problems.base import Problem, missing_members


def from_function(name: str) -> Problem:
    """Return the problem that a function without arguments makes: ``file.py:function`` or ``module:function``.

    Classes and functions of a file are sent to workers with the problem; a module, and files next to the file, are
    imported there. The problem's ``recipe()`` is the function's name, so its runs can be resumed and replayed. Raises
    :class:`~anyk.errors.BadInput` if there is no such file, module or function, if it fails, or if the result is not a
    problem.

    >>> from_function("nowhere.py:make_problem")
    Traceback (most recent call last):
    anyk.errors.BadInput: no file 'nowhere.py' for the problem 'nowhere.py:make_problem'
    """
    make, whole = function_named(name, "problem")
    with explaining(f"'{name}' failed"):
        problem = make()
    if missing := missing_members(problem):
        raise BadInput(f"'{name}' gave {type(problem).__name__}, which is not a problem: it has no {missing[0]}")
    problem.recipe = lambda: {"problem": whole}
    return cast(Problem, problem)
