"""Commands that show runs to others: a page, and files for other programs."""

from __future__ import annotations

from pathlib import Path

import click

from anyk.cli import main
from anyk.cli.options import plugin_option
from anyk.cli.output import check_file
from anyk.errors import BadInput


@main.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN|RACE...")
@click.option("-o", "--out", default="report.html", show_default=True, metavar="FILE.html",
              callback=lambda _, __, file: check_file(file, "report"), help="The page to write.")  # fmt: skip
@plugin_option
def report(runs: tuple[str, ...], out: str) -> None:
    """Write one self-contained HTML page about runs and races, which opens without a network.

    It says what ran and how it ended, and shows metric and loss, every task on a timeline, seconds by worker and step,
    who was used and who was cut off, where the time went, and the receipt of each step. Several are compared.

    \b
    anyk report runs/train-1 -o report.html
    anyk report runs/race-1
    anyk report runs/train-1 runs/train-2
    """
    from anyk.reports import report as write
    from anyk.training import Race, Run, is_race

    opened: list[Run | Race] = []
    try:
        for name in runs:
            opened.append(Race.open(name) if is_race(name) else Run.open(name))
        if not any(one.runs if isinstance(one, Race) else True for one in opened):
            raise BadInput(f"'{runs[0]}' has no run that has begun; there is nothing to report on")
        written = write(opened, out)
    finally:
        for one in opened:
            one.close()
    click.echo(f"report: {written} ({Path(written).stat().st_size / 1e6:.1f} MB); open it in a browser")
