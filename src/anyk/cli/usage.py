"""Sentences about a command line that cannot be read, in the style of all other errors."""

from __future__ import annotations

import re
from collections.abc import Iterable

import click

from anyk.base import suggest
from anyk.cli.kinds import KINDS

_BELONGS = {("resume", "--lr"), ("resume", "--optimizer"), ("resume", "--strategy"), ("resume", "--cluster")}
_NUMBERS = {"integer": "a whole number", "float": "a number", "boolean": "yes or no"}


def sentence(error: click.UsageError) -> str:
    """Return what is wrong with the words of a command, and what works."""
    words = error.ctx.command_path.split() if error.ctx is not None else []
    path = " ".join(["anyk", *words[1:]])
    command = error.ctx.command if error.ctx is not None else None
    match error:
        case click.NoSuchOption():
            return f"'{path}' has no option '{error.option_name}'; {_instead(error, path, command)}"
        case click.MissingParameter():
            return f"'{path}' needs {_name(error.param)}; see '{path} --help'"
        case click.BadParameter():
            return _of_value(error)
        case click.BadOptionUsage() if "requires" in error.message:
            return f"{error.option_name} needs a value"
        case click.BadOptionUsage():
            return f"{error.option_name} takes no value"
    unexpected = re.fullmatch(r"Got unexpected extra arguments? \((.*)\)", error.message)
    if unexpected is not None:
        return f"'{path}' takes no further argument, got '{unexpected[1]}'; see '{path} --help'"
    unknown = re.fullmatch(r"No such command ['\"](.*?)['\"]\.?.*", error.message, re.DOTALL)
    if unknown is not None and isinstance(command, click.Group):
        names = command.commands if error.ctx is None else command.list_commands(error.ctx)
        return f"'{path}' has no command '{unknown[1]}'; {_other_command(unknown[1], path, names)}"
    message = error.message.rstrip(".")
    return f"{message[:1].lower()}{message[1:]}; see '{path} --help'"


def _instead(error: click.NoSuchOption, path: str, command: click.Command | None) -> str:
    """Return what works in place of an option that does not exist."""
    name = error.option_name
    if command is not None and (command.name, name) in _BELONGS:
        return f"a run keeps what it began with: 'anyk train --from RUN {name} …' goes on from it in a new folder"
    parameters = [] if command is None else command.params
    flags = [flag for parameter in parameters for flag in parameter.opts if flag.startswith("--")]
    return suggest(name, flags, f"see '{path} --help'")


def _other_command(name: str, path: str, commands: Iterable[str]) -> str:
    """Return the command that was meant, or how to see all."""
    if path == "anyk" and name in KINDS:
        return f"'anyk list {name}' lists them"
    listed = ", ".join(commands)
    return suggest(name, commands, f"its commands: {listed}" if path != "anyk" else "see 'anyk --help'")


def _of_value(error: click.BadParameter) -> str:
    """Return the sentence about a value of the wrong kind."""
    kind = error.param.type if error.param is not None else None
    match = re.match(r"'(.*?)' is not", error.message, re.DOTALL)
    if kind is None or match is None:
        return f"{_name(error.param)}: {error.message.rstrip('.')}"
    if isinstance(kind, click.Choice):
        choices = list(map(str, kind.choices))
        near = suggest(match[1], choices, "")
        return f"{_name(error.param)} should be one of {', '.join(choices)}, got '{match[1]}'{'; ' * bool(near)}{near}"
    what = _NUMBERS.get(kind.name, kind.name)
    return f"{_name(error.param)} should be {what}, got '{match[1]}'"


def _name(parameter: click.Parameter | None) -> str:
    """Return an option's longest flag, or an argument's name as the usage line has it."""
    if parameter is None:
        return "a value"
    if isinstance(parameter, click.Option):
        return max(parameter.opts, key=len)
    return (parameter.metavar or str(parameter.name).upper()).strip("[]").rstrip(".…")
