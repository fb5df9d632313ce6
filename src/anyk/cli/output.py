"""The output of commands: text and tables for people, JSON for programs, and warnings."""

from __future__ import annotations

import codecs
import contextlib
import io
import json
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from anyk.base import BadInput, as_bad_input

if TYPE_CHECKING:
    from rich.console import Console

JSON_FILE = "anyk.json_file"  # the key in a click context for the file of --json
_CONSOLE = "anyk.console"  # the key for the console
_UNLIMITED = 1000  # characters of a line if neither a terminal nor COLUMNS limits it
_AFTER_COMMAS = re.compile(r"(?<=,)")


_PLAIN = {"–": "-", "…": "...", "≥": ">=", "≤": "<=", "±": "+-", "·": "-", "—": "-", "‖": "|", "×": "x"}


def plain_where_needed() -> None:
    """Let standard output and error replace characters that their encoding lacks (LC_ALL=C) instead of failing."""

    def replace_characters(error: UnicodeError) -> tuple[str, int]:
        assert isinstance(error, UnicodeEncodeError)
        return "".join(_PLAIN.get(sign, "?") for sign in error.object[error.start : error.end]), error.end

    codecs.register_error("anyk", replace_characters)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # the shell closed it: >&-
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115  # for as long as the program runs
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="anyk")


def drop_output() -> None:
    """Discard standard output from here on, so that its remainder is not written again at the end."""
    with Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())


def json_to_output() -> bool:
    """Return whether standard output carries the result of the running command as JSON."""
    return bool(click.get_current_context().meta.get(JSON_FILE) == "-")


def people() -> Console:
    """Return the command's console for texts and tables: standard error if standard output carries JSON.

    Lines in a file or a pipe are not broken, unless COLUMNS is set.
    """
    from rich.console import Console

    meta = click.get_current_context().meta
    if _CONSOLE not in meta:
        to_errors = json_to_output()
        terminal = (sys.stderr if to_errors else sys.stdout).isatty()
        columns = os.environ.get("COLUMNS", "")
        width = None if terminal or columns.isdecimal() else _UNLIMITED
        if columns.isdecimal() and int(columns) == 0:  # unknown, as in some editors
            width = shutil.get_terminal_size().columns if terminal else _UNLIMITED

        class CommandConsole(Console):
            def on_broken_pipe(self) -> None:
                raise  # the group of commands decides: Rich would exit with status 1

        meta[_CONSOLE] = CommandConsole(stderr=to_errors, width=width)
    console: Console = meta[_CONSOLE]
    return console


def text_width() -> int:
    """Return the number of characters in a line of prose: the terminal's width, at most 100."""
    return min(100, shutil.get_terminal_size((100, 24)).columns)


def wrapped(sentence: str, width: int) -> str:
    """Return a text with its longer lines broken between words, and with the further lines indented as the first.

    A line of a single word is broken after commas, as in a spec with many keys; other words are never broken.
    """
    lines = []
    for line in sentence.split("\n"):
        indent = line[: len(line) - len(line.lstrip())]
        breaks = textwrap.TextWrapper(width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
        if " " not in line.strip():
            breaks.wordsep_simple_re = _AFTER_COMMAS
        lines += breaks.wrap(line) if len(line) > width else [line]
    return "\n".join(lines)


def say(*things: Any) -> None:
    """Print tables and texts; lines are broken between words only, and brackets are not taken for styles."""
    console = people()
    for thing in things:
        printable = wrapped(thing, console.width) if isinstance(thing, str) else thing
        console.print(printable, highlight=False, markup=False, soft_wrap=True)


def say_result(*things: Any) -> None:
    """Print tables and texts for people, unless standard output carries JSON."""
    if not json_to_output():
        say(*things)


def check_file(file: str | None, what: str, *, folder: Path | None = None) -> str | None:
    """Return the name of a file; raise BadInput, before the work begins, if the file cannot be written.

    ``folder``: a folder that does not exist yet and that the work makes.
    """
    if file is None or file == "-":
        return file
    path = Path(file)
    if path.is_symlink() and any((path.parent / name).exists() for name in ("run.toml", "race.toml")):
        from anyk.runs.api import check_plain

        check_plain(path)
    if path.is_dir():
        raise BadInput(f"the {what} '{file}' cannot be written: that is a folder")
    if folder is not None and path.parent.absolute() == folder.absolute():
        return file
    if not path.parent.is_dir():
        raise BadInput(f"the {what} '{file}' cannot be written: there is no folder '{path.parent}'")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise BadInput(f"the {what} '{file}' cannot be written: permission denied")
    return file


def check_picture(file: str | None, *, folder: Path | None = None) -> None:
    """Raise BadInput, before the work begins, if a picture cannot be drawn or written."""
    if file is None:
        return
    from anyk.views import picture_formats

    check_file(file, "picture", folder=folder)
    kinds = picture_formats()
    if Path(file).suffix[1:].lower() not in kinds:
        raise BadInput(f"the picture '{file}' should end in .png, .pdf or .svg (known: {', '.join(kinds)})")


def check_table(file: str | None, *, folder: Path | None = None) -> None:
    """Raise BadInput, before the work begins, if a table of a race cannot be made or written."""
    if file is None:
        return
    from anyk.views import check_table_packages

    check_table_packages(file)
    check_file(file, "table", folder=folder)


def check_page(file: str | None, *, folder: Path) -> None:
    """Raise BadInput, before the work begins, if a report cannot be made or written."""
    if file is None or file == "none":
        return
    from anyk.views import check_packages

    if Path(file).suffix.lower() not in (".html", ".htm"):
        raise BadInput(f"a report is written as .html, got '{file}'")
    check_file(file, "report", folder=folder)
    check_packages()


def write_json(value: object) -> None:
    """Write the result of the running command to the file that ``--json`` names."""
    file = click.get_current_context().meta.get(JSON_FILE)
    if file is None:
        return
    plain = json.loads(json.dumps(value), parse_constant=lambda name: None)  # JSON has no NaN
    content = json.dumps(plain, indent=2)
    if file == "-":
        click.echo(content)
        return
    with as_bad_input(f"the file '{file}' cannot be written"):
        Path(file).write_text(content + "\n", encoding="utf-8")


def warn(sentence: str) -> None:
    """Print a sentence on standard error."""
    width = shutil.get_terminal_size().columns if sys.stderr.isatty() else _UNLIMITED
    click.echo(wrapped(f"anyk: {sentence}", width), err=True)


def exit_interrupted(folder: Path) -> None:
    """Print how to resume, after the results of a race so far, and exit with status 130.

    Raise KeyboardInterrupt if the folder has nothing to resume.
    """
    if not any((folder / name).is_file() for name in ("run.toml", "race.toml", "auto.toml")):
        raise KeyboardInterrupt
    if (folder / "race.toml").is_file():
        from anyk.runs import Race
        from anyk.views import race_table

        with Race.open(folder) as race:
            if race.runs:
                say(race_table(race.runs))
    click.echo(f"anyk: interrupted; go on with: anyk resume {folder}", err=True)
    sys.exit(130)


def free_folder(kind: str) -> Path:
    """Return the first folder runs/KIND-1, runs/KIND-2, … that does not exist yet."""
    number = 1
    while (folder := Path("runs") / f"{kind}-{number}").exists():
        number += 1
    return folder


@contextlib.contextmanager
def claimed_folder(kind: str) -> Iterator[Path]:
    """Make the first free folder under runs/; if it is empty in the end, remove it."""
    while True:
        folder = free_folder(kind)
        try:
            folder.mkdir(parents=True)
            break
        except FileExistsError:
            continue  # another process was faster
        except OSError as error:
            raise BadInput(f"the folder '{folder}' cannot be made ({error.strerror})") from None
    try:
        yield folder
    finally:
        with contextlib.suppress(OSError):  # only empty folders can be removed in this way
            folder.rmdir()
            folder.parent.rmdir()
