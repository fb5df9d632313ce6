"""What can go wrong, in two kinds: the input is bad, or a run cannot go on."""

from __future__ import annotations

import os
from pathlib import Path

RAISED = "raised by "  # how the note begins that names the callback which raised an exception
_LIBRARIES = (f"{Path(__file__).parent}{os.sep}", f"{Path(os.__file__).parent}{os.sep}", "<frozen ", "<string>", "<__")
_INSTALLED = {"site-packages", "dist-packages"}
_COMPILED = (".pyx", ".pxi", ".pxd")  # of which no file need be there


class BadInput(ValueError):
    """The caller asked for something that cannot be; one sentence names the value, the rule and what works.

    The command line prints the sentence and exits with code 2.
    """


class UnknownName(BadInput):
    """A spec names something that is not registered; ``what`` is its kind and name alone, as in strategy 'x'."""

    def __init__(self, what: str, hint: str) -> None:
        super().__init__(f"no {what}; {hint}")
        self.what = what


class NotDecodable(BadInput):
    """The replies at hand do not give the sum that was asked for."""


class RunFailed(RuntimeError):
    """A run ended before it was done: it diverged, lost too many workers, or a disk filled.

    The sentence says at which step and what to do; the run folder stays and can be resumed. The command line exits
    with code 1.
    """


class MissingPackage(BadInput):
    """An optional package is needed for what was asked; the sentence gives the line that installs it."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs {package}, which is not installed; run: pip install 'anyk[{extra}]'")


def told(error: BaseException, said: str | None = None) -> str:
    """An exception of a user's own code: its type, what it says, and the file and line of that code that it came from.

    ``said``: what it says, if not all of it. The package's own sentences stay as they are.
    """
    said = str(error) if said is None else said
    if isinstance(error, (BadInput, RunFailed)):
        return said
    text = f"{type(error).__name__}: {said}" if said else type(error).__name__
    place, step = "", error.__traceback__
    while step is not None:
        file = step.tb_frame.f_code.co_filename
        path = Path(file)
        if not file.startswith(_LIBRARIES) and not _INSTALLED & set(path.parts) and path.suffix not in _COMPILED:
            place = f" ({path.name}, line {step.tb_lineno})"
        step = step.tb_next
    return text + place
