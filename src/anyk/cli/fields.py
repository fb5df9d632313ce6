"""Options of a command as one dataclass, which has a field for each option."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar, dataclass_transform

import click
from click.core import ParameterSource

T = TypeVar("T")
Command = TypeVar("Command", bound=Callable[..., Any])


def option(*names: str, **settings: Any) -> Any:
    """Return a dataclass field whose value comes from a command-line option.

    ``names``: the option's flags, by default the field's name. ``settings``: the settings of :func:`click.option`.
    """

    def make_decorator(name: str) -> Callable[[Any], Any]:
        flags = names or (f"--{name.replace('_', '-')}",)
        return click.option(*flags, name, **settings)

    return field(metadata={"option": make_decorator})


def as_field(decorator: Callable[[Any], Any]) -> Any:
    """Return a dataclass field whose value comes from the option that ``decorator`` adds to a command."""
    return field(metadata={"option": lambda _: decorator})


@dataclass_transform(kw_only_default=True, frozen_default=True)
def options_class(kind: type[T]) -> type[T]:
    """Decorate a class whose fields are options of a command: a frozen dataclass."""
    return dataclass(frozen=True, kw_only=True)(kind)


def option_name(parameter: click.Parameter) -> str:
    """Return the name of a parameter on the command line, without dashes."""
    return max(parameter.opts, key=len).lstrip("-")


def is_given(name: str) -> bool:
    """Return whether the value of a parameter of the running command is another than its default."""
    return click.get_current_context().get_parameter_source(name) != ParameterSource.DEFAULT


FLEET = ("delays", "communication", "seed")
LIMITS = ("steps", "seconds", "target")


def takes(kind: type[Any]) -> Callable[[Command], Command]:
    """Return a decorator that adds a dataclass's options to a command, whose argument ``options`` is the instance."""

    def decorate(function: Command) -> Command:
        @functools.wraps(function)
        def command(*args: Any, **values: Any) -> object:
            arguments = {of_field.name: values.pop(of_field.name) for of_field in fields(kind)}
            return function(*args, options=kind(**arguments), **values)

        for of_field in reversed(fields(kind)):
            command = of_field.metadata["option"](of_field.name)(command)
        return command  # type: ignore[return-value]

    return decorate
