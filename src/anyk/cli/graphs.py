"""Commands about averaging among neighbours and about compression."""

from __future__ import annotations

import click

from anyk.cli.group import main
from anyk.cli.lists import list_entries
from anyk.cli.options import json_option, picture_option, plugin_option
from anyk.cli.output import write_json


@main.group(invoke_without_command=True)
@json_option
@plugin_option
@click.pass_context
def graphs(ctx: click.Context, /, json_file: str | None) -> None:
    """List the graphs for decentralised averaging. 'anyk graphs show SPEC' shows one."""
    if ctx.invoked_subcommand is None:
        from anyk.graphs import registry

        list_entries(registry, json_file, also="'anyk graphs show SPEC --workers 16' shows one.")


@graphs.command()
@click.argument("spec")
@click.option("--workers", default=16, help="Number of workers, n.")
@click.option("--delays", metavar="SPEC", default="exp:mean=1", help="Seconds of a local step.")
@click.option(
    "--communication",
    metavar="SPEC",
    default="none",
    help="Seconds of an exchange with a neighbour.",
)
@picture_option("Draw graph and matrix.")
@json_option
@plugin_option
def show(spec: str, workers: int, delays: str, communication: str, picture: str | None, json_file: str | None) -> None:
    """Show a graph: its neighbours, its mixing matrix, zeta, and the time of a round with local and global barriers."""
    from anyk.delays import communication as lines
    from anyk.delays import parse
    from anyk.fleet import simulated_pace
    from anyk.graphs import graph
    from anyk.specs import bracketed
    from anyk.strategies import strategy
    from anyk.views.trace_pictures import draw_graph, graph_text

    mixing, law, link = graph(spec, workers=workers), parse(delays), lines(communication)
    times = {
        barrier: simulated_pace(
            strategy(f"dpsgd:graph={bracketed(spec)},barrier={barrier}", workers=workers), law, communication=link
        )
        for barrier in ("local", "global")
    }
    if json_file != "-":
        click.echo(graph_text(mixing))
        for barrier, pace in times.items():
            others = "its neighbours" if barrier == "local" else "everybody"
            click.echo(
                f"a round where a node waits for {others}: {pace.seconds:.4g} ± {2 * pace.error:.2g} s  "
                f"({law.spec}, communication {link.spec}; simulated)"
            )
    if picture is not None:
        draw_graph(mixing, picture)
        click.echo(f"picture: {picture}", err=json_file == "-")
    rounds = {barrier: pace.seconds for barrier, pace in times.items()}
    write_json(
        {
            "spec": mixing.spec,
            "workers": workers,
            "zeta": mixing.zeta,
            "seconds": rounds,
            "matrices": [matrix.tolist() for matrix in mixing.rounds],
        },
        json_file,
    )


@main.command()
@json_option
@plugin_option
def compression(json_file: str | None) -> None:
    """List the compressors of messages and what they compose with."""
    from anyk.compression import registry

    list_entries(
        registry,
        json_file,
        also=(
            "as in compressed:of=(k-sync:k=5),by=(top-k:share=0.01); how they compose with strategies:\n"
            "linear: exactly with every code; unbiased: on average; contractive: where messages are one worker's own"
        ),
    )
