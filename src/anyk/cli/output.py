"""Where results go: text and tables to people, JSON to programs."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from anyk.errors import BadInput

if TYPE_CHECKING:
    from rich.console import Console

_UNLIMITED = 1000  # characters of a line where nobody says how long it may be


def people(json_file: str | None) -> Console:
    """Where people read; standard error when standard output carries JSON.

    In a file or a pipe lines are as long as they need to be, unless COLUMNS says how long they may be.
    """
    from rich.console import Console

    to_errors = json_file == "-"
    terminal = (sys.stderr if to_errors else sys.stdout).isatty()
    given = os.environ.get("COLUMNS", "").isdigit()
    return Console(stderr=to_errors, width=None if terminal or given else _UNLIMITED)


def say(console: Console, *things: Any) -> None:
    """Print tables, and texts as they are: no line is broken, no bracket is taken for a style."""
    for thing in things:
        console.print(thing, highlight=False, markup=False, soft_wrap=True)


def write_json(value: Any, file: str | None) -> None:
    """Write a result where ``--json`` says."""
    if file is None:
        return
    text = json.dumps(value, indent=2)
    if file == "-":
        click.echo(text)
        return
    try:
        Path(file).write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise BadInput(f"the file '{file}' cannot be written ({error.strerror})") from None
