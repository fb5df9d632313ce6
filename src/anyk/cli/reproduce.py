"""The command that reproduces figures and tables of papers."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from anyk.base import BadInput, ByName, needing, values_of
from anyk.cli.fields import as_field, option, options_class, takes
from anyk.cli.group import main
from anyk.cli.options import json_option, quiet_option
from anyk.cli.output import say, write_json

if TYPE_CHECKING:
    from anyk_papers import Item, Reproduction


@options_class
class ReproductionOptions:
    """The options of ``reproduce``."""

    everything: bool = option("--all", is_flag=True, help="Reproduce all items, and write a page of them (gallery.md).")
    quick: bool = option(is_flag=True, help="Run at a smaller size.")
    seeds: int | None = option(type=int, help="Number of seeds to average over; default: the item's own.")
    cluster: str | None = option(
        type=click.Choice(["simulated", "processes"]), help="Cluster to run on: a virtual or a real clock."
    )
    data_folder: str | None = option(
        "--data-dir", metavar="FOLDER", envvar="ANYK_DATA", help="Folder with data sets (or ANYK_DATA)."
    )
    out: str = option("-o", "--out", metavar="FOLDER", default="runs/gallery", help="Folder for the results.")
    quiet: bool = as_field(quiet_option)


@main.command()
@click.argument("name", required=False)
@takes(ReproductionOptions)
@json_option
def reproduce(name: str | None, options: ReproductionOptions) -> None:
    """Reproduce a figure or table of a paper and check its claims. Without NAME: list all items."""
    with needing("anyk-papers", "./papers", "anyk reproduce"):
        import anyk_papers  # noqa: F401

    if name is None and not options.everything:
        _list()
        return
    if name is not None and options.everything:
        raise BadInput(f"--all reproduces every item; leave out '{name}' or --all")
    if options.everything and options.cluster is not None:
        raise BadInput("--all runs each item on its own clock; leave out --cluster")
    try:
        if name is None:
            _reproduce_all(options)
        else:
            _reproduce_one(name, options)
    except KeyboardInterrupt:
        kept_in = f"what was done is kept in '{options.out}', the same command goes on"
        click.echo(f"\nanyk: interrupted; {kept_in}", err=True)
        sys.exit(130)


def _reproduce_all(options: ReproductionOptions) -> None:
    from anyk_papers import reproduce_all

    reproduced, missing = reproduce_all(
        **_common_arguments(options),
        before=lambda item: None if options.quiet else say(f"· {item.name} (about {_minutes(item)})"),
        after=lambda result: say(f"  {result.word} ({result.seconds:.0f} s)"),
    )
    for omitted, reason in missing.items():
        say(f"{omitted}: not run: {reason}")
    say(f"page: {Path(options.out) / 'gallery.md'}")
    write_json({"items": [reproduction.plain() for reproduction in reproduced], "not_run": missing})


def _reproduce_one(name: str, options: ReproductionOptions) -> None:
    from anyk_papers import items
    from anyk_papers import reproduce as run_item

    item = items().get(name)
    if item is not None and not options.quiet:
        say(f"{item.title}; about {_minutes(item)} at full size")
    result = run_item(name, cluster=options.cluster, **_common_arguments(options))
    _print(result, Path(options.out))
    write_json(result.plain())


def _common_arguments(options: ReproductionOptions) -> ByName:
    """Return the arguments of one reproduction and of all."""

    def progress(sentence: str, done: int, of: int) -> None:
        if not options.quiet and sys.stderr.isatty():
            click.echo(f"\r\x1b[K{done} of {of}  {sentence}"[:100] if done < of else "\r\x1b[K", err=True, nl=False)

    return {"progress": progress, **values_of(options, "out", "quick", "seeds", "data_folder")}


def _minutes(item: Item) -> str:
    return f"{item.minutes:g} min" if item.minutes >= 1 else f"{60 * item.minutes:.0f} s"


def _list() -> None:
    from anyk.views import Columns
    from anyk_papers import items

    rows = [[item.name, item.title, _minutes(item)] for item in items().values()]
    say(Columns(["item", "what", "full size"], rows))
    say("anyk reproduce NAME [--quick]")
    write_json(
        [
            values_of(item, "name", "title", "source", "minutes") | {"claims": [claim.text for claim in item.claims]}
            for item in items().values()
        ]
    )


def _print(result: Reproduction, out: Path) -> None:
    from anyk.views import Columns

    item, columns = result.item, list(result.item.columns)
    say(Columns(columns, result.table.cells(columns)))
    say(Columns(["claim", "paper", "here", "verdict"], [list(verdict) for verdict in result.verdicts]))
    say(f"{item.name}: {result.word}", result.setting, f"differs from the paper: {item.differs}")
    picture = result.picture or "none: pip install matplotlib"
    say(f"table: {out / (item.name + '.csv')}", f"picture: {picture}")
