"""The command that predicts steps on any number of nodes: scale."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from anyk.base import BadInput
from anyk.cli.fields import Command
from anyk.cli.group import main
from anyk.cli.options import json_option, picture_option, plugin_option, quiet_option
from anyk.cli.output import json_to_output, say_result, write_json

_DTYPES = ("float32", "float64", "float16", "bfloat16")


def read_parameters(_: click.Context, __: click.Parameter, text: str) -> float:
    """Return a number of parameters; raise BadInput for what is no number, such as a file or a size in bytes."""
    try:
        number = float(text.replace("_", ""))
    except ValueError:
        raise BadInput(f"--model should be the number of the model's parameters, such as 1e8, got '{text}'") from None
    return number


def model_option(**settings: Any) -> Callable[[Command], Command]:
    """Return the option ``--model`` of commands that predict what a step moves."""
    help = "The number of the model's parameters, such as 1e8."
    return click.option("--model", "parameters", metavar="NUMBER", callback=read_parameters, help=help, **settings)


dtype_option = click.option(
    "--dtype", type=click.Choice(_DTYPES), default=_DTYPES[0], help="The type of the parameters, and of messages."
)
compute_option = click.option(
    "--compute",
    type=float,
    default=0.0,
    metavar="SECONDS",
    help="Seconds that a node computes in a step without redundancy; with load r it takes r times as long.",
)


@main.command()
@click.argument("strategy")
@model_option(required=True)
@click.option("--network", metavar="RATE", required=True, help="Of each node's link: 10Gb/s, 1Gbit/s, 100MB/s.")
@click.option("--nodes", metavar="N..M", default="4..512", help="4..512: each twice the one before; or 4,6,8.")
@click.option("--latency", type=float, default=0.0, metavar="SECONDS", help="Of a short message, from node to node.")
@click.option("--delays", metavar="SPEC", default="none", help="Delays of workers; see 'anyk list delays'.")
@compute_option
@dtype_option
@click.option("--copies", default=1, metavar="N", help="Nodes that hold each slice: 1, or 2 to outlive one.")
@click.option("--slow-node", "slow", type=float, default=1.0, metavar="K", help="One node is K times slower.")
@click.option("--seed", default=0, help="Seed of the delays.")
@click.option("--steps", default=0, help="Steps to simulate for each number of nodes; 0: 40 to 400.")
@picture_option("Draw the seconds of a step against the number of nodes.")
@quiet_option
@json_option
@plugin_option
def scale(strategy: str, picture: str | None, quiet: bool, **settings: Any) -> None:
    """Predict the seconds of a step on many nodes: as a star, in slices, and as an all-reduce.

    The strategy runs on the virtual clock, with delays and with the transfers of its vectors over links. Each node has
    one worker, and one link. The all-reduce is that of DistributedDataParallel, without redundancy, with the same
    delays.

    \b
    anyk scale frc:load=2 --model 1e8 --network 10Gb/s --compute 0.3
    anyk scale frc:load=2 --model 1e8 --network 10Gb/s --delays exp:mean=0.5
    anyk scale frc:load=2 --model 1e7 --network 1Gb/s --nodes 4,8 --slow-node 3
    """
    from anyk.fleet import scale as predict
    from anyk.views import SCALE_NOTE, draw_scale, scale_lines, scale_table

    tell = None if quiet else (lambda line: click.echo(f"· {line}", err=True))
    result = predict(strategy, tell=tell, **settings)
    # files first: a reader of the output may stop early, as head does
    write_json(result.report())
    if picture is not None:
        draw_scale(result, picture)
    say_result(*scale_lines(result), "", scale_table(result), SCALE_NOTE)
    if picture is not None:
        click.echo(f"picture: {picture}", err=json_to_output())
