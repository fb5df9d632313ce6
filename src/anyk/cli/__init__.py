"""The command line: parses, calls, prints."""

from anyk.cli import (  # noqa: F401  # they add their commands to the group
    chaos_runs,
    code_commands,
    decompile,
    fleets,
    lists,
    races,
    reports,
    reproduce,
    runs,
    scaling,
    traces,
)
from anyk.cli.group import main

__all__ = ["main"]
