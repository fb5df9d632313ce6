"""Commands about measured fleets: record and explain."""

from __future__ import annotations

from typing import Any

import click

from anyk.cli import main
from anyk.cli.options import json_option, picture_option, plugin_option
from anyk.cli.output import check_file, people, say, write_json
from anyk.errors import BadInput

_unit = click.option("--unit", type=click.Choice(["s", "ms", "us"]),
                     help="Unit of the times; default: as the columns' names say, else s.")  # fmt: skip
_max_gb = click.option(
    "--max-gb", type=float, help="Largest size of an unpacked file in GB; default: 1, or 8 times the file's size."
)


@main.command()
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@click.option("-o", "--out", metavar="FILE", required=True, callback=lambda _, __, file: check_file(file, "record"),
              help="The record to write: .parquet, .csv or .npz.")  # fmt: skip
@_unit
@_max_gb
@plugin_option
def record(sources: tuple[str, ...], out: str, unit: Any, max_gb: float | None) -> None:
    """Make one fleet record of measured times: seconds of each worker in each round.

    A SOURCE is a run folder, a folder that a recorder wrote (anyk.recording), a table of rounds x workers or with the
    columns round, worker and seconds (.npz, .csv, .parquet), an operation trace in the layout of StragglerAnalysis, or
    a Spark event log. Several are taken as measured one after another; workers are matched by their names.
    """
    from anyk.recording import read_all

    found = read_all(list(sources), unit=unit, max_gb=max_gb)
    found.save(out)
    click.echo(f"{out}: {found.summary}")
    for sentence in found.vanished():
        click.echo(sentence)


@main.command()
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@click.option("--today", default="uncoded", show_default=True, metavar="SPEC", help="The strategy in use.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the shuffles that test the findings.")
@_unit
@_max_gb
@picture_option("Draw the times over their rounds' medians, and what each worker costs.")
@json_option
@plugin_option
def explain(
    sources: tuple[str, ...], today: str, seed: int, unit: Any, max_gb: float | None, picture: str | None,
    json_file: str | None,
) -> None:  # fmt: skip
    """Find the slow workers of a measured fleet, the time that they cost, and the kind of their slowness.

    A SOURCE is whatever `anyk record` takes, or a record that it made. Costs are Shapley shares: they add up to the
    time that is waited beyond each round's median. A worker is named only if it costs more than chance would have it.
    """
    from anyk.planning import explain as explained
    from anyk.recording import read_all
    from anyk.reports.fleets import draw_explanation, explained_note, explained_table

    if seed < 0:
        raise BadInput(f"seed must be at least 0, got {seed}")
    source = read_all(list(sources), unit=unit, max_gb=max_gb)
    found = explained(source, today=today, seed=seed)
    if json_file != "-":
        console = people(json_file)
        say(console, source.summary, "", *(f"- {sentence}" for sentence in found.sentences), "")
        say(console, explained_table(found), explained_note(found))
    if picture is not None:
        draw_explanation(source, found, picture)
        click.echo(f"picture: {picture}", err=json_file == "-")
    write_json(found.report(), json_file)
