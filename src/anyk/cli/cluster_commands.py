"""Commands about clusters."""

from __future__ import annotations

import click

from anyk.cli.group import main
from anyk.cli.lists import list_entries
from anyk.cli.options import join_cluster, json_option, plugin_option
from anyk.cli.output import say_result, write_json


@main.group(invoke_without_command=True)
@json_option
@plugin_option
@click.pass_context
def cluster(ctx: click.Context, /, json_file: str | None) -> None:
    """List the kinds of clusters. 'anyk cluster check SPEC' measures one."""
    if ctx.invoked_subcommand is None:
        from anyk.clusters import registry

        list_entries(registry, json_file, also="'anyk cluster check SPEC --workers 8' measures one.")


@cluster.command()
@click.argument("spec", callback=lambda _, __, spec: join_cluster(spec))
@click.option("--workers", default=8, help="Number of workers, n.")
@click.option("--steps", default=20, help="Number of measurements of each.")
@json_option
@plugin_option
def check(spec: str, workers: int, steps: int, json_file: str | None) -> None:
    """Start a cluster and measure it: latency, bandwidth, and a step at 0.1, 2 and 50 MB beside its floor."""
    from anyk.clusters import cluster as build
    from anyk.runs.cluster_speed import cluster_speed
    from anyk.views import speed_table

    speed = cluster_speed(
        lambda: build(spec, workers=workers),
        steps=steps,
        tell=lambda text: click.echo(f"· {text}", err=True),
    )
    say_result(
        json_file,
        f"{speed.spec}: {speed.workers} workers ready after {speed.start:.2f} s, latency {1e3 * speed.latency:.2f} ms",
        speed_table(speed),
        "round trip: one worker gets a model and answers; step: all do; floor: adding up the answers here",
    )
    rows = [each._asdict() | {"bandwidth": speed.bandwidth(each)} for each in speed.speeds]
    write_json(speed._asdict() | {"speeds": rows}, json_file)
