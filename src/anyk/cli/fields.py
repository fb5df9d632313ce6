"""Options of commands as typed values: a dataclass has a field for each option, and its command receives one value."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import field, fields
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])


def option(*names: str, **settings: Any) -> Any:
    """Return a field that is read from an option, as of :func:`click.option`; by default it has the field's name."""

    def named(name: str) -> Callable[[Any], Any]:
        flags = names or (f"--{name.replace('_', '-')}",)
        return click.option(*flags, name, **settings)

    return field(metadata={"option": named})


def as_field(decorator: Callable[[Any], Any]) -> Any:
    """Return a field that is read from an option that other commands have as a decorator."""
    return field(metadata={"option": lambda _: decorator})


def takes(kind: type[Any]) -> Callable[[Command], Command]:
    """Return a decorator that gives a command the options of a dataclass, as its argument ``options``."""

    def decorate(function: Command) -> Command:
        @functools.wraps(function)
        def command(*args: Any, **values: Any) -> Any:
            own = {each.name: values.pop(each.name) for each in fields(kind)}
            return function(*args, options=kind(**own), **values)

        for each in reversed(fields(kind)):
            command = each.metadata["option"](each.name)(command)
        return command  # type: ignore[return-value]

    return decorate
