"""Commands about measured fleets: record, explain, plan and check."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from anyk.base import BadInput, values_of
from anyk.cli.fields import as_field, is_given, option, options_class, takes
from anyk.cli.group import main
from anyk.cli.options import (
    ProblemOptions,
    json_option,
    max_gb_option,
    picture_option,
    plugin_option,
    quiet_option,
    read_workers,
    round_option,
    seconds_option,
    unit_option,
    worker_option,
    writable,
)
from anyk.cli.output import check_file, json_to_output, say_result, write_json
from anyk.protocol import Workers

if TYPE_CHECKING:
    from anyk.fleet import Plan
    from anyk.problems import Problem


@main.command()
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@click.option(
    "-o",
    "--out",
    metavar="FILE",
    required=True,
    callback=writable("record"),
    help="The record to write: .parquet, .csv or .npz.",
)
@click.option(
    "--load",
    type=float,
    metavar="SHARE",
    help="The share of the data that each worker computes in a round, for sources that do not say it; "
    "default: left open, which `anyk plan` takes as 1 / workers.",
)
@round_option
@worker_option
@seconds_option
@unit_option
@max_gb_option
@plugin_option
def record(
    sources: tuple[str, ...],
    out: str,
    load: float | None,
    round: str | None,
    worker: str | None,
    seconds: str | None,
    unit: Any,
    max_gb: float | None,
) -> None:
    """Make one fleet record of measured times: the seconds of each worker in each round.

    A SOURCE is a run folder, a folder that a recorder wrote (anyk.fleet) or with a file for each worker, a table of
    rounds x workers or with the columns round, worker and seconds (.npz, .csv, .parquet, JSON lines), an operation
    trace in the layout of StragglerAnalysis, a Spark event log or the folder of a rolled one, or a JSON trace of
    PyTorch's profiler, of Ray, of Horovod or of NCCL's flight recorder. Several are taken as measured one after
    another, or at once if each is of another worker; workers are matched by their names.
    """
    from anyk.fleet import read_all

    columns: dict[str, Any] = {"round": round, "worker": worker, "seconds": seconds}
    record = read_all(list(sources), unit=unit, max_gb=max_gb, load=load, **columns)
    record.save(out)
    click.echo(f"{out}: {record.summary}")
    for sentence in record.vanished():
        click.echo(sentence)


@main.command()
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@click.option("--today", default="uncoded", metavar="SPEC", help="The strategy in use.")
@click.option("--seed", default=0, help="Seed of the shuffles that test the findings.")
@round_option
@worker_option
@seconds_option
@unit_option
@max_gb_option
@picture_option("Draw the times relative to their rounds' medians, and the cost of each worker.")
@json_option
@plugin_option
def explain(
    sources: tuple[str, ...],
    today: str,
    seed: int,
    round: str | None,
    worker: str | None,
    seconds: str | None,
    unit: Any,
    max_gb: float | None,
    picture: str | None,
) -> None:
    """Find the slow workers of a measured fleet, the time that they cost, and the kind of their slowness.

    A SOURCE is a source of `anyk record`, or a record that it made. Costs are Shapley shares: they add up to the
    time that is waited beyond each round's median. A worker is named only if it costs more than chance explains.
    """
    from anyk.fleet import explain as explained
    from anyk.fleet import read_all
    from anyk.views import draw_explanation, explained_note, explained_table

    columns: dict[str, Any] = {"round": round, "worker": worker, "seconds": seconds}
    source = read_all(list(sources), unit=unit, max_gb=max_gb, **columns)
    explanation = explained(source, today=today, seed=seed)
    # files first: a reader of the output may stop early, as head does
    write_json(explanation.report())
    if picture is not None:
        draw_explanation(source, explanation, picture)
    say_result(source.summary, "", *(f"- {sentence}" for sentence in explanation.sentences))
    say_result("", explained_table(explanation), explained_note(explanation))
    if picture is not None:
        click.echo(f"picture: {picture}", err=json_to_output())


@options_class
class _Fleet:
    today: str | None = option(
        metavar="SPEC", help="The strategy in use; default: that of the run, if SOURCE is one, else uncoded."
    )
    slope: float | None = option(type=float, help="Seconds that a worker takes to compute on all of the data.")
    other: str | None = option(metavar="SOURCE", help="A second record at another load, to which the slope is fitted.")
    workers: Workers | None = option(
        metavar="N|RANGE",
        callback=read_workers,
        help="Number of workers if SOURCE is a delay model, or a range that the strategy must follow, such as 4..16.",
    )
    partitions: int | None = option(type=int, help="Number of partitions of the data for any number of workers.")
    steps: int | None = option(
        type=int, help="Steps of the run to plan for; default: as many as the record has rounds."
    )
    max_load: float | None = option(
        type=float,
        help="Largest share of the data that a worker may compute; default: no limit, but a quarter for a delay model "
        "without --slope.",
    )
    memory: float = option(default=1.0, help="Largest share of the data that a worker may hold.")
    models: int = option(
        default=1,
        help="Models trained at once, which codes over several rounds need.",
    )
    everything: bool = option(
        "--all", is_flag=True, help="Show every strategy, also those whose steps are not the exact sum."
    )
    seed: int = option(default=0, help="Seed of the resamples.")
    resamples: int = option(default=400, help="Number of resamples, which give the intervals.")


@options_class
class PlanOptions(ProblemOptions, _Fleet):
    """The options of ``plan``."""

    target: float | None = option(
        type=float,
        metavar="VALUE",
        help="Plan for the seconds to this value of the metric, with real gradients of the problem that --data "
        "or --problem names, each strategy with its own learning rate.",
    )
    batch: int | None = option(
        type=int,
        metavar="SAMPLES",
        help="Samples of a step, all workers together; 0: all of the data; default: as --today.",
    )
    exact: bool = option(is_flag=True, help="Only strategies whose steps are the exact sum.")
    max_staleness: float | None = option(type=float, help="Only strategies whose messages are no staler, on average.")
    runs: int = option(default=600, help="With --target: train at most so often.")
    round: str | None = as_field(round_option)
    worker: str | None = as_field(worker_option)
    seconds: str | None = as_field(seconds_option)
    unit: Literal["s", "ms", "us", "ns"] | None = as_field(unit_option)
    out: str | None = option(
        "-o",
        "--out",
        metavar="FILE.toml",
        callback=lambda _, __, file: _check_plan_file(file),
        help="Write the plan, for 'anyk train --plan'.",
    )
    quiet: bool = as_field(quiet_option)
    picture: str | None = as_field(picture_option("Draw seconds a step against load, with intervals."))


# options that are arguments of anyk.fleet.plan under the same name
_PASSED = tuple(field.name for field in fields(_Fleet))
_PASSED += (
    "round",
    "worker",
    "seconds",
    "unit",
    "target",
    "optimizer",
    "lr",
    "runs",
    "batch",
    "exact",
    "max_staleness",
)


@main.command()
@click.argument("source", metavar="SOURCE")
@takes(PlanOptions)
@json_option
@plugin_option
def plan(source: str, options: PlanOptions) -> None:
    """Recommend a strategy for a measured fleet, with the time that it saves and how sure that is.

    SOURCE is a source of `anyk record`, a record that it made, or a delay model (then with --workers). Strategies whose
    steps are the exact sum compete by their seconds, or with --target all strategies by their seconds to the target; a
    change is advised only where the 90 % prediction interval of the gain does not reach below 3 %.

    \b
    anyk plan fleet.parquet --slope 12 -o plan.toml
    anyk plan runs/train-1
    anyk plan exp:mean=0.5 --workers 30 --slope 0
    anyk plan fleet.parquet --today k-sync:k=20 --data digits --target 0.9
    """
    from anyk.fleet import plan as make
    from anyk.views import draw_plan

    result = make(
        _read_source(source),
        **values_of(options, *_PASSED),
        problem=_problem(options),
        evaluate=options.evaluate or "",
        tell=None if options.quiet else _tell,
    )
    # files first: a reader of the output may stop early, as head does
    if options.out is not None:
        result.save(options.out)
    write_json(result.report())
    if options.picture is not None:
        draw_plan(result, options.picture)
    _print_plan(result, options)
    to_errors = json_to_output()
    if options.picture is not None:
        click.echo(f"picture: {options.picture}", err=to_errors)
    if options.out is not None:
        click.echo(f"plan: {options.out}; run it with: anyk train --plan {options.out}", err=to_errors)


def _print_plan(result: Plan, options: PlanOptions) -> None:
    """Print the advice and the candidates of a plan."""
    from anyk.fleet import pareto
    from anyk.views import PLAN_NOTE, inexact_table, plan_lines, plan_table

    everything, today = options.everything, result.today
    front = pareto(result.candidates)
    listed = list(result.candidates) if everything else [choice for choice in front if choice.spec != today.spec]
    listed += [today] * (today not in listed)
    lines: list[Any] = [*[result.read_as] * bool(result.read_as), *plan_lines(result), "", plan_table(listed, today)]
    hidden = len(result.candidates) - len(listed)
    if hidden > 0:
        lines.append(f"{hidden} more are neither faster nor cheaper than these; --all shows them")
    lines.append(PLAN_NOTE)
    unranked = [choice for choice in result.others if choice.exact]
    if unranked:
        note = "of these too much was cut off: from the least to the most that they may take; they are not ranked"
        lines += ["", note, plan_table(unranked if everything else unranked[:5], today)]
    inexact = [choice for choice in result.others if not choice.exact]
    if inexact and (everything or options.target is None):
        reason = "the steps of these are not the exact sum, and may be worth less; they are not ranked"
        if options.target is not None:
            reason = "these were not trained to the target, or given up on the way"
        lines += ["", reason, inexact_table(inexact)]
    say_result(*lines)


@main.command()
@click.argument("run", metavar="RUN")
@click.option(
    "--record", "source", metavar="SOURCE", help="The record that the plan was made from, if it is not where it was."
)
@quiet_option
@json_option
@plugin_option
def check(run: str, source: str | None, quiet: bool) -> None:
    """Check whether a run kept the promise of its plan and, if not, find out why.

    RUN is the folder of a run that was started with `anyk train --plan`. Outside of the promised interval, the
    difference is split into luck, delays, load, steps, and the overhead of anyk itself.
    """
    from anyk.fleet import check as checked
    from anyk.views import checked_lines

    result = checked(run, record=source, tell=None if quiet else _tell)
    write_json(result.report())
    say_result(*checked_lines(result))


_FOR_A_TARGET = ("data", "data_file", "problem", "model", "l2", "split", "optimizer", "lr", "evaluate", "runs")
_OF_A_FILE = ("round", "worker", "seconds", "unit")


def _problem(options: PlanOptions) -> Problem | None:
    """Return the problem that --data or --problem names, if there is a target."""
    if options.target is not None:
        if options.data is None and options.problem is None:
            raise BadInput("--target is of a problem's metric; name it with --data or --problem")
        return options.make_problem()
    for name in _FOR_A_TARGET:
        if is_given(name):
            raise BadInput(f"--{name.replace('_', '-')} is for a plan with a --target")
    return None


def _tell(spec: str) -> None:
    click.echo(f"· {spec}", err=True)


def _check_plan_file(file: str | None) -> str | None:
    if file is not None and Path(file).suffix != ".toml":
        raise BadInput(f"a plan is written as .toml, got '{file}'")
    return check_file(file, "plan")


def _read_source(source: str) -> Any:
    """Return the delay model that a source names, or a source that is a file or folder unchanged."""
    from anyk.delays import parse, registry

    if Path(source).expanduser().exists() or source.partition(":")[0] not in registry:
        return source
    for name in _OF_A_FILE:
        if is_given(name):
            raise BadInput(f"--{name} is for a table of measured times, and '{source}' is a delay model")
    return parse(source)
