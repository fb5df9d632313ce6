"""Commands about measured delays: trace show, trace record, tune."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from anyk.cli import main
from anyk.cli.options import json_option, picture_option, plugin_option
from anyk.cli.output import check_file, people, say, write_json
from anyk.errors import BadInput

_mu = click.option("--mu", type=float, default=1.0, show_default=True,
                   help="A round's cut-off is at 1 + mu times its fastest worker.")  # fmt: skip
_unit = click.option("--unit", type=click.Choice(["s", "ms", "us"]),
                     help="Unit of the times; default: as the columns' names say, else s.")  # fmt: skip
_max_gb = click.option(
    "--max-gb", type=float, help="Largest size of the unpacked file in GB; default: 1, or 8 times the file's size."
)


@main.group()
def trace() -> None:
    """Measured delays: show what is in a trace, or make one of a run."""


@trace.command()
@click.argument("file")
@_unit
@_max_gb
@_mu
@picture_option("Draw a heat map and the distribution.")
@json_option
def show(
    file: str, unit: Any, max_gb: float | None, mu: float, picture: str | None, json_file: str | None
) -> None:  # fmt: skip
    """Show a trace: distribution and laws that fit it, who is slow, and how long bursts last."""
    from anyk.delays import Trace
    from anyk.reports.traces import draw_trace, facts, trace_text

    if not 0.0 <= mu < float("inf"):
        raise BadInput(f"mu must be a finite number of at least 0, got {mu:g}")
    table = Trace(file, unit=unit, max_gb=max_gb)
    found = facts(table.times, mu, table.censored)
    if json_file != "-":
        click.echo(table.summary)
        if table.load_measured is not None:
            click.echo(f"each worker computed {table.load_measured:g} of the data")
        click.echo(trace_text(found, mu))
        if table.censored is not None and table.censored.any():
            click.echo(f"{100 * table.censored.mean():.3g} % of the times are lower bounds: those workers were cut off")
    if picture is not None:
        draw_trace(
            table.times,
            picture,
            table.censored,
            f"{Path(file).name}: {found['rounds']} rounds x {found['workers']} workers",
        )
        click.echo(f"picture: {picture}", err=json_file == "-")
    write_json(found, json_file)


@trace.command()
@click.argument("run")
@click.option("--out", metavar="FILE.npz", required=True, callback=lambda _, __, file: check_file(file, "trace"),
              help="The trace to write; read it with trace:FILE.npz.")  # fmt: skip
@plugin_option
def record(run: str, out: str) -> None:
    """Make a trace of a run's log: seconds from a worker's task to its reply, a row for each version.

    For a task that was cut off only a lower bound is known; the array 'censored' marks these.
    """
    from anyk.training import Run, save_trace

    found = Run.open(run)
    rounds, workers, cut = save_trace(found, out)
    click.echo(f"{out}: {rounds} rounds x {workers} workers, {100 * cut:.3g} % of the times are lower bounds (cut off)")


@main.command()
@click.option("--trace", "files", multiple=True, required=True, metavar="FILE",
              help="A trace; repeat it for other loads, and the slope of time against load is fitted.")  # fmt: skip
@click.option("--workers", type=int, help="Use only this many workers, the first ones; default: all.")
@click.option("--models", type=int, default=4, show_default=True, help="Models trained at once.")
@click.option("--jobs", type=int, help="Steps of all models to plan for; default: as many as the trace allows.")
@click.option("--slope", type=float, help="Seconds to compute on the whole data set; default: fitted.")
@_unit
@_max_gb
@_mu
@json_option
def tune(
    files: tuple[str, ...], workers: int | None, models: int, jobs: int | None, slope: float | None, unit: Any,
    max_gb: float | None, mu: float, json_file: str | None,
) -> None:  # fmt: skip
    """Find the fastest FRC, GC, SR-SGC and M-SGC for measured delays, over all parameters, beside no coding."""
    from anyk.delays import Trace
    from anyk.planning import fit_slope
    from anyk.planning import tune as find
    from anyk.reports import candidates_note, candidates_table

    if workers is not None and workers < 1:
        raise BadInput(f"workers must be at least 1, got {workers}")
    tables = []
    for file in files:
        table = Trace(file, unit=unit, max_gb=max_gb)
        if table.load_measured is None:
            raise BadInput(
                f"the trace '{file}' does not say the load it was measured at, the share of the data that each worker "
                "computed (1 / workers without coding); save it as .npz with that: "
                "numpy.savez('trace.npz', seconds=times, load=0.05), times in rounds x workers"
            )
        if workers is not None:
            table.check_fleet(workers)
        click.echo(table.summary if workers is None else table.summary_for(workers), err=True)
        tables.append((table.load_measured, table.times[:, :workers]))
    tables.sort(key=lambda one: one[0])
    if slope is None:
        slope = fit_slope(tables)
    load, times = tables[0]
    best = find(times, models=models, load=load, slope=slope, jobs=jobs, mu=mu)
    if json_file != "-":
        click.echo(
            f"{best[0].jobs} jobs of {models} models on {times.shape[1]} workers, trace at load {load:g}, "
            f"{slope:.4g} s for the whole data"
        )
        say(people(None), candidates_table(best), *candidates_note(best))
    write_json([vars(one) for one in best], json_file)
