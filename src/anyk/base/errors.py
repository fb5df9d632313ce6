"""The two kinds of errors: the input is bad, or a run cannot continue."""

from __future__ import annotations

import errno
import os
import sqlite3
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path

_ERRNO = {
    errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO, errno.ESTALE, errno.EROFS,
    errno.EACCES, errno.EPERM,
}  # fmt: skip
_SQLITE = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_NOMEM}
RAISED = "raised by "  # start of the note that names the callback which raised an exception
_LIBRARIES = (f"{Path(__file__).parent}{os.sep}", f"{Path(os.__file__).parent}{os.sep}", "<frozen ", "<string>", "<__")
_INSTALLED = {"site-packages", "dist-packages"}
_COMPILED = (".pyx", ".pxi", ".pxd")  # whose files need not exist


class BadInput(ValueError):
    """A request that cannot be fulfilled; one sentence names the value, the rule and what works.

    The command line prints the sentence and exits with code 2.
    """


class Surroundings(BadInput):
    """What is asked cannot be done here and now: there is no room, no memory, no permission; the input may be whole."""


class UnknownName(BadInput):
    """A spec with a name that is not registered; ``what`` is its kind and name alone, as in strategy 'x'."""

    def __init__(self, what: str, hint: str) -> None:
        super().__init__(f"no {what}; {hint}")
        self.what = what


class NotDecodable(BadInput):
    """The available replies do not give the exact sum."""


class RunFailed(RuntimeError):
    """A run ended early: it diverged, lost too many workers, or a disk filled.

    The sentence names the step and a remedy; the run folder stays and can be resumed. The command line exits
    with code 1.
    """


SUPERVISED = "ANYK_SUPERVISED"  # set for a process that is started again when it ends by accident


class StateLost(RunFailed):
    """A machine was lost that held a part of a run's model.

    The run can be resumed from its last checkpoint, which ``--supervise`` does; the command line exits with code 75.
    """

    exit_code = 75  # by sysexits.h: a temporary failure


class MissingPackage(BadInput):
    """An optional package is missing; the sentence gives the line that installs it.

    ``origin``: an extra of anyk, or a folder of its source that is a distribution of its own, such as ./papers.
    """

    def __init__(self, package: str, origin: str, purpose: str) -> None:
        what = origin if origin.startswith("./") else f"'.[{origin}]'"
        super().__init__(
            f"{purpose} needs {package}, which is not installed; in the folder of anyk's source, run: "
            f"pip install {what}"
        )


@contextmanager
def needing(package: str, origin: str, purpose: str) -> Iterator[None]:
    """Raise :class:`MissingPackage`, with these arguments, if an import in the block fails."""
    try:
        yield
    except ImportError:
        raise MissingPackage(package, origin, purpose) from None


@contextmanager
def as_bad_input(sentence: str, *kinds: type[Exception]) -> Iterator[None]:
    """Raise :class:`BadInput` with this sentence and the reason if the block raises one of ``kinds``, else OSError."""
    kinds = kinds or (OSError,)
    try:
        yield
    except kinds as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        kind = Surroundings if hindered(error) else BadInput
        raise kind(f"{sentence} ({' '.join(reason.split())})") from None


def hindered(error: BaseException) -> bool:
    """Return whether an error is of the surroundings, and says nothing about the file that was read or written."""
    if isinstance(error, sqlite3.Error):  # also of extended codes, whose last byte is the plain one
        return getattr(error, "sqlite_errorcode", 0) & 0xFF in _SQLITE
    return isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno in _ERRNO)


@contextmanager
def explaining(what: str, *, alone: type[Exception] = BadInput) -> Iterator[None]:
    """Turn an exception of a user's code into a BadInput that begins with ``what``; a BadInput stays as it is.

    ``alone``: a type of exception whose own message is the whole sentence.
    """
    try:
        yield
    except BadInput:
        raise
    except alone as error:
        raise BadInput(str(error)) from None
    except (Exception, SystemExit) as error:  # a script may end itself
        raise BadInput(f"{what}: {describe_error(error)}") from None


def suggest(name: str, names: Iterable[str], otherwise: str, *, cutoff: float = 0.6) -> str:
    """Return "did you mean …?" with the name that resembles another most, or ``otherwise`` if none does."""
    near = get_close_matches(name, list(names), n=1, cutoff=cutoff)
    return f"did you mean '{near[0]}'?" if near else otherwise


def printable(text: str) -> str:
    """Return a text without the halves of characters that no encoding has, as in names of files: they are escaped.

    >>> printable("a\\udcffb")
    'a\\\\udcffb'
    """
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def describe_error(error: BaseException, message: str | None = None) -> str:
    """Return the type and message of an exception in a user's code, with the last file and line of that code.

    ``message``: by default the exception's own. The message of an error of this package is returned unchanged.
    """
    message = printable(str(error) if message is None else message)
    if isinstance(error, (BadInput, RunFailed)):
        return message
    sentence = f"{type(error).__name__}: {message}" if message else type(error).__name__
    location, step = "", error.__traceback__
    while step is not None:
        file = step.tb_frame.f_code.co_filename
        path = Path(file)
        if not file.startswith(_LIBRARIES) and not _INSTALLED & set(path.parts) and path.suffix not in _COMPILED:
            location = f" ({path.name}, line {step.tb_lineno})"
        step = step.tb_next
    return sentence + location


def outside() -> int:
    """Return the ``stacklevel`` of the innermost caller outside the package, as seen from this function's caller."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("anyk."):
        level, frame = level + 1, frame.f_back
    return level
