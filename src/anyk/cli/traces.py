"""Commands about measured delays: ``trace show`` and ``trace record``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from anyk.base import NonnegativeNumber, check_value
from anyk.cli.group import main
from anyk.cli.options import json_option, max_gb_option, picture_option, plugin_option, unit_option, writable
from anyk.cli.output import json_to_output, write_json


@main.group()
def trace() -> None:
    """Show a trace, a table of measured delays, or make one from a run."""


@trace.command()
@click.argument("file")
@unit_option
@max_gb_option
@click.option("--mu", default=1.0, help="A round cuts workers off at 1 + mu times the seconds of its fastest.")
@picture_option("Draw a heat map and the distribution.")
@json_option
def show(file: str, unit: Any, max_gb: float | None, mu: float, picture: str | None) -> None:
    """Show a trace: distribution, delay models that fit it, slow workers, and the length of bursts."""
    from anyk.delays import Trace
    from anyk.views import draw_trace, trace_facts, trace_text

    check_value(mu, NonnegativeNumber, "mu")
    table = Trace(file, unit=unit, max_gb=max_gb)
    facts = trace_facts(table.times, mu, table.censored)
    if not json_to_output():
        click.echo(table.summary)
        if table.load_measured is not None:
            click.echo(f"each worker computed {table.load_measured:g} of the data")
        click.echo(trace_text(facts, mu))
        if table.censored is not None and table.censored.any():
            click.echo(f"{100 * table.censored.mean():.3g} % of the times are lower bounds: those workers were cut off")
    if picture is not None:
        draw_trace(
            table.times,
            picture,
            table.censored,
            f"{Path(file).name}: {facts['rounds']} rounds x {facts['workers']} workers",
        )
        click.echo(f"picture: {picture}", err=json_to_output())
    write_json(facts)


@trace.command()
@click.argument("run")
@click.option(
    "-o",
    "--out",
    metavar="FILE.npz",
    required=True,
    callback=writable("trace"),
    help="The trace to write; read it with trace:FILE.npz.",
)
@plugin_option
def record(run: str, out: str) -> None:
    """Make a trace from a run's log: a row for each version, with the seconds from each worker's task to its reply.

    For a task that was cut off only a lower bound is known; the array 'censored' marks these.
    """
    from anyk.runs import Run, save_trace

    opened = Run.open(run)
    rounds, workers, cut = save_trace(opened, out)
    click.echo(f"{out}: {rounds} rounds x {workers} workers, {100 * cut:.3g} % of the times are lower bounds (cut off)")
