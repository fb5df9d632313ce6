"""Help texts: commands and options in sections, each with a whole sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import click

_SHORT = 20  # options that are listed without sections
_OPTIONS = {
    "Strategy": ("strategy", "strategies", "plan_file", "models", "seeds"),
    "Problem": ("data", "data_file", "problem", "model", "split", "l2", "begin"),
    "Workers": ("workers", "cluster", "delays", "communication", "seed", "supervise"),
    "Optimisation": ("optimizer", "lr", "steps", "seconds", "target"),
    "Evaluation and callbacks": ("evaluate", "callbacks", "metrics", "mirror"),
    "Results": ("out", "picture", "page", "curve", "json_file", "quiet"),
    "Settings": ("config", "plugin", "settings", "help"),
}


def _write_sections(
    formatter: click.HelpFormatter, rows: Mapping[str, Any], sections: Mapping[str, Sequence[str]], other: str
) -> None:
    """Write each section's rows, after those that are in no section; ``rows``: by name."""
    named = {name for names in sections.values() for name in names}
    for title, names in {other: [name for name in rows if name not in named], **sections}.items():
        if section_rows := [rows[name] for name in names if name in rows]:
            with formatter.section(title):
                formatter.write_dl(section_rows)


class Command(click.Command):
    """A command whose options are listed in sections if there are many."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options."""
        options = [param for param in self.get_params(ctx) if isinstance(param, click.Option)]
        names = ["help" if "--help" in option.opts else str(option.name) for option in options]
        records = zip(names, (option.get_help_record(ctx) for option in options), strict=True)
        rows = {name: record for name, record in records if record is not None}
        _write_sections(formatter, rows, _OPTIONS if len(rows) > _SHORT else {}, "Options")


class Listing(click.Group):
    """A group whose commands are listed with whole sentences, in its ``sections`` if it has any."""

    command_class = Command
    sections: ClassVar[Mapping[str, Sequence[str]]] = {}

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands."""
        rows = {name: (name, self.commands[name].get_short_help_str(1000)) for name in self.list_commands(ctx)}
        _write_sections(formatter, rows, self.sections, "Commands")


Listing.group_class = Listing
