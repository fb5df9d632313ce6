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


@main.group(invoke_without_command=True)
@json_option
@plugin_option
@click.pass_context
def strategies(ctx: click.Context, /, json_file: str | None) -> None:
    """List the strategies; every code is one, too. 'anyk strategies show SPEC' explains one."""
    if ctx.invoked_subcommand is not None:
        return
    from anyk.codes import registry as codes_registry
    from anyk.strategies import registry

    names = ", ".join(entry.name for entry in codes_registry)
    _list(registry, json_file, also=(
        f"CODE:…,wait=…,scaling=…,cancel=preempt,decoder=own,batch=0\n    Rounds of any code ({names}).\n"
        "wait: a number of replies, 'decodable' (default), 'all', a residual such as 5%, a deadline such as 0.5s or "
        "3mad, joined by | or &\nscaling: none, marginal or conditional      cancel: preempt or discard\n"
        "decoder: own, exact, least-squares, one-step or algorithmic      batch: samples of each partition, 0 for all\n"
        "'anyk strategies show SPEC' explains one."
    ))  # fmt: skip


@strategies.command()
@click.argument("spec")
@click.option("--workers", type=int, default=30, show_default=True, help="Number of workers, n.")
@click.option("--delays", metavar="SPEC", default="exp:mean=1", show_default=True, help="Delays; see 'anyk delays'.")
@json_option
@plugin_option
def show(spec: str, workers: int, delays: str, json_file: str | None) -> None:
    """Explain a strategy: what it is short for, how it works, how long an update takes and how stale it is."""
    from anyk.delays import parse
    from anyk.planning import pace
    from anyk.reports import theory_text
    from anyk.strategies import strategy

    found = strategy(spec, workers=workers)
    law = parse(delays)
    expected = pace(found, law)
    if json_file != "-":
        click.echo(spec if found.spec == spec else f"{spec}, that is {found.spec}")
        seconds = "no closed form" if expected.seconds is None else f"{expected.seconds:.6g} s"
        click.echo(f"an update with {workers} workers and {law.spec}: {seconds}  ({expected.why})")
        stale = "not known" if expected.staleness is None else f"{expected.staleness:.4g} versions on average"
        click.echo(f"staleness: {stale}\n")
        click.echo(theory_text(found))
    plain = {"spec": found.spec, "workers": workers, "delays": law.spec, "seconds": expected.seconds}
    write_json(plain | {"staleness": expected.staleness, "why": expected.why}, json_file)


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
