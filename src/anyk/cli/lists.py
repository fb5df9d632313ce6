"""Commands that say what there is: strategies, delays, data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from anyk.cli import main
from anyk.cli.options import json_option, plugin_option, write_json

if TYPE_CHECKING:
    from anyk.specs import Registry


def _list(registry: Registry[Any], json_file: str | None, *, also: str = "") -> None:
    entries = list(registry)
    if json_file != "-":
        for entry in entries:
            click.echo(f"{entry.usage()}\n    {entry.summary}")
        if also:
            click.echo(also)
    write_json([{"name": e.name, "usage": e.usage(), "summary": e.summary} for e in entries], json_file)


@main.command()
@json_option
@plugin_option
def strategies(json_file: str | None) -> None:
    """List the strategies; every code is one, too."""
    from anyk.codes import registry as codes_registry
    from anyk.strategies import registry

    names = ", ".join(entry.name for entry in codes_registry)
    _list(registry, json_file, also=(
        f"CODE:…,wait=…,scaling=conditional,cancel=preempt\n    Rounds of any code ({names}).\n"
        "wait: a number of replies, 'decodable' (default), 'all', a residual such as 5%, a deadline such as 0.5s, "
        "joined by | or &\nscaling: none, marginal or conditional      cancel: preempt or discard"
    ))  # fmt: skip


@main.command()
@json_option
@plugin_option
def delays(json_file: str | None) -> None:
    """List the delay models."""
    from anyk.delays import registry

    _list(registry, json_file)


@main.command()
@json_option
@plugin_option
def data(json_file: str | None) -> None:
    """List the data sets; --data-file takes a local file instead of fetching."""
    from anyk.problems import sources

    _list(sources, json_file)
