"""Commands that say what there is: codes, strategies, delays, data."""

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
@click.option("--workers", type=int, default=30, show_default=True, help="Number of workers, n.")
@json_option
@plugin_option
def codes(workers: int, json_file: str | None) -> None:
    """List the gradient codes, with load, replication and tolerance for a number of workers."""
    from rich.console import Console
    from rich.table import Table

    from anyk.codes import registry
    from anyk.errors import BadInput

    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in ("code", "load", "partitions", "replication", "tolerates"):
        table.add_column(title, justify="left" if title == "code" else "right", no_wrap=True)
    rows = []
    for entry in registry:
        row: dict[str, Any] = {"name": entry.name, "usage": entry.usage(), "summary": entry.summary}
        try:
            code = registry.build(entry.name, workers=workers)
            replication = code.encoding.nnz / code.partitions
            row |= {"spec": code.spec, "load": code.load, "partitions": code.partitions, "replication": replication,
                    "tolerates": code.tolerates}  # fmt: skip
            cells = (code.spec, str(code.load), str(code.partitions), f"{replication:g}", str(code.tolerates))
        except BadInput as error:
            row["error"] = str(error)
            cells = (entry.name, "–", "–", "–", "–")
        table.add_row(*cells)
        rows.append(row)
    if json_file != "-":
        click.echo(f"for {workers} workers, where keys are left out:")
        Console().print(table)
        for row in rows:
            click.echo(f"\n{row['usage']}\n    {row.get('error') or row['summary']}")
    write_json(rows, json_file)


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
