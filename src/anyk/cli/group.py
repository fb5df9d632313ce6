"""The group of all commands, its help in sections, and the exit code of each error."""

from __future__ import annotations

import contextlib
import errno
import select
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

import click

from anyk.base import (
    COMMANDS,
    RAISED,
    BadInput,
    RunFailed,
    StateLost,
    describe_error,
    entry_points,
    load_entry_point,
    tell_of_plugins,
)
from anyk.cli.output import drop_output, plain_where_needed, warn

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

_PLACES = (errno.EACCES, errno.EPERM, errno.ENAMETOOLONG)  # of a folder; files are checked earlier
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_SHORT = 20  # options that are listed without sections
_OPTIONS = {
    "Strategy": ("strategy", "strategies", "plan_file", "models", "seeds"),
    "Problem": ("data", "data_file", "problem", "model", "split", "l2", "begin"),
    "Workers": ("workers", "partitions", "cluster", "slices", "delays", "communication", "seed", "supervise"),
    "Optimisation": ("optimizer", "lr", "steps", "seconds", "target"),
    "Evaluation and callbacks": ("evaluate", "callbacks", "metrics", "mirror"),
    "Results": ("out", "picture", "page", "table", "curve", "json_file", "quiet"),
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
        rows = {name: (name, command.get_short_help_str(1000)) for name, command in self.commands.items()}
        _write_sections(formatter, rows, self.sections, "Commands")


Listing.group_class = Listing


def _installed_commands() -> dict[str, list[tuple[EntryPoint, str]]]:
    """Return the commands of installed distributions by name, each with the distributions that have it."""
    by_name: dict[str, list[tuple[EntryPoint, str]]] = {}
    for point, name, version in entry_points(COMMANDS):
        by_name.setdefault(point.name, []).append((point, f"{name} {version}"))
    return by_name


def _loaded_command(name: str, points: Sequence[tuple[EntryPoint, str]]) -> click.Command:
    """Import a command of an installed distribution; raise BadInput if it is broken, or if two have its name."""
    point, origin = points[0]
    if len(points) > 1:
        others = " and ".join(f"'{distribution}'" for _, distribution in points)
        raise BadInput(f"the command '{name}' is in the distributions {others}; uninstall all but one")
    try:
        command = load_entry_point(point)
    except (Exception, SystemExit) as error:
        raise BadInput(
            f"the command '{name}' of the distribution '{origin}' cannot be loaded: {describe_error(error)}"
        ) from None
    if not isinstance(command, click.Command):
        raise BadInput(
            f"the command '{name}' of the distribution '{origin}' is {type(command).__name__}, not a click command"
        )
    return command


def _here() -> bool:
    """Return whether there still is a current folder."""
    try:
        Path.cwd()
    except OSError:
        return False
    return True


_INTERRUPTED = "anyk: interrupted; start it again"


class _Group(Listing):
    """Turns the package's errors into one sentence and an exit code."""

    sections = {  # noqa: RUF012
        "Train": ("race", "train", "resume", "drain"),
        "Runs": ("show", "report", "watch", "predict", "coefficients", "export", "replay", "verify", "chaos"),
        "Measured fleets": ("record", "explain", "plan", "check", "trace"),
        "Building blocks": ("list", "strategies", "codes", "graphs"),
        "Machines": ("cluster", "scale"),
        "Papers and sources": ("reproduce", "decompile"),
    }

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the words before the command's name."""
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            _refuse(ctx, error)
        except BrokenPipeError as error:  # of the help, behind which nobody reads
            _exit_after(ctx, error)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of anyk's commands and of those of installed distributions."""
        return [*self.commands, *(name for name in _installed_commands() if name not in self.commands)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command; that of an installed distribution is imported only now."""
        command = super().get_command(ctx, cmd_name)
        if command is None and (points := _installed_commands().get(cmd_name)):
            try:
                return _loaded_command(cmd_name, points)
            except BadInput:
                if ctx.resilient_parsing:  # the shell completes a line, and others of its commands are whole
                    return None
                raise
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands, and below them those of installed distributions, which are not imported for this."""
        super().format_commands(ctx, formatter)
        rows = []
        for name, points in _installed_commands().items():
            origins = " and ".join(f"'{origin}'" for _, origin in points)
            taken = ", which cannot be reached: anyk has a command of this name" if name in self.commands else ""
            rows.append((name, f"A command of {origins}{taken}."))
        if rows:
            with formatter.section("Installed distributions"):
                formatter.write_dl(rows)

    def invoke(self, ctx: click.Context) -> object:
        plain_where_needed()
        tell_of_plugins(warn)
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            _refuse(ctx, error)
        except BadInput as error:
            warn(str(error))
            ctx.exit(2)
        except RunFailed as error:
            warn(str(error))
            ctx.exit(error.exit_code if isinstance(error, StateLost) else 1)
        except KeyboardInterrupt:
            click.echo(_INTERRUPTED, err=True)
            ctx.exit(130)
        except Exception as error:
            _exit_after(ctx, error)


def _exit_after(ctx: click.Context, error: Exception) -> NoReturn:
    """Explain an error in a sentence and exit; raise it again if it is one of anyk's own code."""
    status = _explain(error)
    if status is None:
        raise error
    ctx.exit(status)


def _explain(error: Exception) -> int | None:
    """Print one sentence about an error of the user's own code or of the system, and return its exit code, or None."""
    notes = [note for note in getattr(error, "__notes__", ()) if isinstance(note, str)]
    if any(note.startswith(RAISED) for note in notes):
        warn(f"{describe_error(error)}; {'; '.join(notes)}")
        return 1
    if isinstance(error, MemoryError):
        reason = f" ({error})" if str(error) else ""
        warn(f"this takes more memory than there is{reason}; use fewer workers or less data")
        return 2
    if isinstance(error, BrokenPipeError) and _reader_has_ended():  # which is no error
        drop_output()
        sys.stderr.close()
        return 0
    if isinstance(error, FileNotFoundError) and not _here():
        warn("the current folder does not exist any more; change to another")
        return 2
    if not isinstance(error, OSError) or error.errno not in (*_FULL, *_PLACES):
        return None
    if error.errno in _PLACES:
        reason = str(error.strerror).lower()
        warn(f"'{str(error.filename)[:240]}' is not accessible ({reason})" if error.filename else reason)
    else:
        drop_output()
        warn(f"the output cannot be written ({error.strerror})")
    return 2


def _reader_has_ended() -> bool:
    """Return whether nobody reads standard output or error any more, as behind ``anyk … | head``."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # it is no file
            poll = select.poll()
            poll.register(stream.fileno(), 0)
            if any(events & select.POLLERR for _, events in poll.poll(0)):
                return True
    return False


def _refuse(ctx: click.Context, error: click.UsageError) -> NoReturn:
    """Print what is wrong with a command line, and exit; of a command without any words, its help."""
    from anyk.cli.usage import sentence

    if isinstance(error, getattr(click.exceptions, "NoArgsIsHelpError", ())):
        error.show()
    else:
        warn(sentence(error))
    ctx.exit(2)


_SETTINGS = {"help_option_names": ["-h", "--help"], "auto_envvar_prefix": "ANYK", "show_default": True}


@click.group(cls=_Group, context_settings=_SETTINGS)
@click.version_option(package_name="anyk", message="anyk %(version)s")
def main() -> None:
    """Train by gradient descent with the replies of any k of n workers, without waiting for stragglers.

    A SPEC is name:key=value,key=value, as in frc:load=3 or exp:mean=0.5.

    Exit codes: 0 done, 1 the run failed (resume it), 2 bad input, 130 interrupted (resume it).
    """
