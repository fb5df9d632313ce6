"""``anyk reproduce``: the papers' figures, made again."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from anyk.cli.group import main
from anyk.cli.options import json_option
from anyk.cli.output import people, say, write_json
from anyk.errors import BadInput

if TYPE_CHECKING:
    from anyk.papers import Item, Reproduction


@main.command()
@click.argument("name", required=False)
@click.option("--all", "everything", is_flag=True, help="Reproduce all items, and write a page of them (gallery.md).")
@click.option("--quick", is_flag=True, help="Run at a smaller size.")
@click.option("--seeds", type=int, help="Number of seeds to average over; default: the item's own.")
@click.option(
    "--cluster", type=click.Choice(["simulated", "processes"]), help="Cluster to run on: a virtual or a real clock."
)
@click.option("--data-dir", metavar="FOLDER", envvar="ANYK_DATA", help="Folder with data sets (or ANYK_DATA).")
@click.option("--out", metavar="FOLDER", default="runs/gallery", show_default=True, help="Folder for the results.")
@click.option("--quiet", is_flag=True, help="Show no progress.")
@json_option
def reproduce(
    name: str | None,
    everything: bool,
    quick: bool,
    seeds: int | None,
    cluster: str | None,
    data_dir: str | None,
    out: str,
    quiet: bool,
    json_file: str | None,
) -> None:
    """Reproduce a figure or table of a paper and check its claims. Without NAME: list all of them."""
    from anyk.papers import items, reproduce_all
    from anyk.papers import reproduce as run_item

    if name is None and not everything:
        _list(json_file)
        return
    if name is not None and everything:
        raise BadInput(f"--all reproduces every item; leave out '{name}' or --all")
    if everything and cluster is not None:
        raise BadInput("--all runs each item on its own clock; leave out --cluster")
    console = people(json_file)

    def progress(text: str, done: int, of: int) -> None:
        if not quiet and sys.stderr.isatty():
            click.echo(f"\r\x1b[K{done} of {of}  {text}"[:100] if done < of else "\r\x1b[K", err=True, nl=False)

    try:
        if everything:
            reproduced, missing = reproduce_all(
                out=out,
                quick=quick,
                seeds=seeds,
                data_folder=data_dir,
                progress=progress,
                before=lambda item: None if quiet else say(console, f"· {item.name} (about {_minutes(item)})"),
                after=lambda one: say(console, f"  {one.word} ({one.seconds:.0f} s)"),
            )
            for omitted, why in missing.items():
                say(console, f"{omitted}: not run: {why}")
            say(console, f"page: {Path(out) / 'gallery.md'}")
            write_json({"items": [one.plain() for one in reproduced], "not_run": missing}, json_file)
            return
        item = items().get(str(name))
        if item is not None and not quiet:
            say(console, f"{item.title}; about {_minutes(item)} at full size")
        one = run_item(
            str(name), out=out, quick=quick, seeds=seeds, cluster=cluster, data_folder=data_dir, progress=progress
        )
    except KeyboardInterrupt:
        click.echo(f"\nanyk: interrupted; what was done is kept in '{out}', the same command goes on", err=True)
        sys.exit(130)
    _tell(console, one, Path(out))
    write_json(one.plain(), json_file)


def _minutes(item: Item) -> str:
    return f"{item.minutes:g} min" if item.minutes >= 1 else f"{60 * item.minutes:.0f} s"


def _list(json_file: str | None) -> None:
    from anyk.papers import items
    from anyk.views.columns import Columns

    console = people(json_file)
    rows = [[item.name, item.title, _minutes(item)] for item in items().values()]
    say(console, Columns(["item", "what", "full size"], rows))
    say(console, "anyk reproduce NAME [--quick]")
    write_json(
        [
            {
                "name": i.name,
                "title": i.title,
                "source": i.source,
                "minutes": i.minutes,
                "claims": [claim.text for claim in i.claims],
            }
            for i in items().values()
        ],
        json_file,
    )


def _tell(console: Any, one: Reproduction, out: Path) -> None:
    from anyk.views.columns import Columns

    columns = list(one.item.columns)
    say(console, Columns(columns, one.table.cells(columns)))
    say(console, Columns(["claim", "paper", "here", "verdict"], [list(verdict) for verdict in one.verdicts]))
    say(console, f"{one.item.name}: {one.word}", one.setting, f"differs from the paper: {one.item.differs}")
    picture = one.picture or "none: pip install matplotlib"
    say(console, f"table: {out / (one.item.name + '.csv')}", f"picture: {picture}")
