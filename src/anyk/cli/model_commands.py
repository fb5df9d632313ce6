"""Commands that use a trained model: predict, coefficients."""

from __future__ import annotations

import click

from anyk.cli.group import main
from anyk.cli.options import json_option, max_gb_option, plugin_option
from anyk.cli.output import check_file, people, say, warn, write_json
from anyk.errors import BadInput


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
def coefficients(run: str, json_file: str | None) -> None:
    """Show the coefficients of a run's linear model, in the units of the input.

    They belong to the columns of the data set, even if the model was trained on standardised ones; a column of text
    has one coefficient for each of its values.
    """
    from anyk.runs import Run, is_race
    from anyk.views import coefficients_report, coefficients_table

    if is_race(run):
        raise BadInput(f"'{run}' is the folder of a race; name one of the runs in it")
    with Run.open(run) as opened:
        values = opened.coefficients
    table, note = coefficients_table(values)
    say(people(json_file), table, *[note] * bool(note))
    write_json(coefficients_report(values), json_file)
