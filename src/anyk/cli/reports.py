"""Commands that present runs: report pages, live pages, predictions, coefficients, and files for other programs."""

from __future__ import annotations

import contextlib
from pathlib import Path

import click

from anyk.base import BadInput, explaining
from anyk.cli.group import main
from anyk.cli.options import json_option, max_gb_option, plugin_option, writable
from anyk.cli.output import check_file, say, warn, write_json


@main.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN|RACE...")
@click.option(
    "-o",
    "--out",
    metavar="FILE.html",
    callback=writable("report"),
    help="The page to write; default: report.html in the folder of the run or race.",
)
@plugin_option
def report(runs: tuple[str, ...], out: str | None) -> None:
    """Write one self-contained HTML page about runs and races, which opens without a network.

    It shows settings and results, metric and loss, every task on a timeline, seconds by worker and step, the workers
    that were used or cut off, where the time went, and the receipt of each step. Several runs are compared.

    \b
    anyk report runs/train-1                             runs/train-1/report.html
    anyk report runs/race-1 -o page.html
    anyk report runs/train-1 runs/train-2 -o both.html
    """
    from anyk.runs import Race, Run, is_race
    from anyk.views import PAGE, check_packages
    from anyk.views import report as write

    check_packages()
    if out is None and len(runs) > 1:
        raise BadInput(f"a report on {len(runs)} runs belongs to no folder; name its file, as in -o both.html")

    opened: list[Run | Race] = []
    with contextlib.ExitStack() as stack:
        for name in runs:
            opened.append(Race.open(name) if is_race(name) else Run.open(name))
            stack.enter_context(opened[-1])
        if not any(isinstance(run_or_race, Run) or run_or_race.runs for run_or_race in opened):
            raise BadInput(f"'{runs[0]}' has no run that has begun; there is nothing to report on")
        if out is None:
            out = check_page_of(Path(runs[0]) / PAGE)
        replaced = ", in place of the one that was there" if Path(out).exists() else ""
        written = write(opened, out)
    click.echo(f"report: {written} ({written.stat().st_size / 1e6:.1f} MB{replaced}); open it in a browser")


def check_page_of(path: Path) -> str:
    """Return the path of a page in the folder of a run; raise BadInput if it cannot be written there."""
    try:
        check_file(str(path), "report")
    except BadInput as error:
        raise BadInput(f"{error}; name another file with -o") from None
    return str(path)


@main.command()
@click.argument("folders", nargs=-1, metavar="[RUN|RACE|FOLDER]...")
@click.option("--port", default=8642, help="Port on 127.0.0.1; 0 takes a free one.")
def watch(folders: tuple[str, ...], port: int) -> None:
    """Serve live pages about runs and races, to this machine only, until Ctrl-C.

    The pages are those of 'anyk report', and show new steps within a second. Without an argument they cover all runs
    in the folder 'runs'. Other processes may execute the runs: only the logs are read, and nothing is written to the
    folders.

    \b
    anyk watch                      all runs in runs/, also those that start later
    anyk watch runs/train-1
    anyk watch runs/race-1 --port 0
    """
    import os
    import signal

    from anyk.views import Watch

    with contextlib.suppress(KeyboardInterrupt), Watch(folders or ["runs"], port=port) as served:
        os.nice(5)  # training on this machine comes first
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) != signal.SIG_IGN:  # nohup ignores SIGHUP
                signal.signal(number, signal.default_int_handler)
        watched = ", ".join(folders or ["runs"])
        click.echo(f"watching {watched} at {served.url} (Ctrl-C ends this)")
        served.serve()


@main.command()
@click.argument("run")
@click.option(
    "--to",
    "kind",
    metavar="SPEC",
    default="perfetto",
    help="perfetto: a trace for ui.perfetto.dev; parquet or csv: tables; others: see 'anyk list exporters'.",
)
@click.option(
    "-o",
    "--out",
    metavar="PATH",
    help="The file, or for tables the folder, to write; default: named after the run, in the current folder.",
)
@plugin_option
def export(run: str, kind: str, out: str | None) -> None:
    """Export a run to other programs: a trace for ui.perfetto.dev, its tables as Parquet or CSV, or as a plug-in does.

    The tables are steps, chunks (every task, with its times and how it ended), events, works, reuses and notes.

    \b
    anyk export runs/train-1                      train-1.perfetto.json.gz
    anyk export runs/train-1 --to csv -o tables   tables/chunks.csv, …
    """
    from anyk.base import parse_spec
    from anyk.runs import Run
    from anyk.views import build_exporter, exporters

    exporter = build_exporter(kind)
    with Run.open(run) as opened:
        path = out or f"{Path(run).resolve().name}{exporter.ending}"
        if not exporter.folder:
            check_file(path, "export")
        is_own = exporters.entry(parse_spec(kind)[0]).own
        with contextlib.nullcontext() if is_own else explaining(f"the exporter '{kind}' failed"):
            line: object = exporter.save(opened, Path(path))
    if not isinstance(line, str):
        raise BadInput(f"the exporter '{kind}' wrote '{path}', but save() returned {line!r} instead of a line about it")
    say(line)


@main.command()
@click.argument("run")
@click.argument("file")
@click.option(
    "-o", "--out", metavar="FILE", help="Write here (.csv, or .parquet for a Parquet file); default: standard output."
)
@click.option("--probabilities", is_flag=True, help="Add the probability of each class.")
@click.option(
    "--header",
    type=click.Choice(["yes", "no"]),
    help="Whether the first row of a CSV file holds names; default: as in the training data.",
)
@max_gb_option
@plugin_option
def predict(
    run: str, file: str, out: str | None, probabilities: bool, header: str | None, max_gb: float | None
) -> None:
    """Predict for the rows of a file with the model of a run.

    RUN is the folder of a run, FILE a CSV, Parquet, npz (array X) or svmlight file. The output has the columns of FILE
    (none for npz and svmlight) and one more, 'prediction'. The model's columns are found by name, in any order; all
    others are copied. Missing values are filled if training filled them (--data file:fill=median), and refused
    otherwise. A category that was not in the training data counts as none of the known ones, which is reported.
    """
    from anyk.runs import predict_file

    out = None if out == "-" else out
    check_file(out, "file")
    has_names = None if header is None else header == "yes"
    rows = predict_file(run, file, out, probabilities=probabilities, header=has_names, max_gb=max_gb, tell=warn)
    if out is not None:
        click.echo(f"{rows:,} predictions: {out}", err=True)


@main.command()
@click.argument("run")
@json_option
def coefficients(run: str) -> None:
    """Show the coefficients of a run's linear model, in the units of the input.

    They belong to the columns of the data set, even if the model was trained on standardised ones; a column of text
    has one coefficient for each of its values.
    """
    from anyk.runs import Run
    from anyk.views import coefficients_report, coefficients_table

    with Run.open(run) as opened:
        values = opened.coefficients
    table, note = coefficients_table(values)
    say(table, *[note] * bool(note))
    write_json(coefficients_report(values))
