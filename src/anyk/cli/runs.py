"""Commands that make or read runs: train, race, resume, show, replay."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from anyk.base import BadInput, ByName, Spec, values_of
from anyk.cli.arguments import new_folder, resume_arguments, training_arguments
from anyk.cli.fields import FLEET, is_given, option, options_class, takes
from anyk.cli.group import main
from anyk.cli.options import (
    ResumeOptions,
    TrainingOptions,
    config_option,
    curve_option,
    json_option,
    picture_option,
    plugin_option,
    problem_option,
    read_spec,
    table_option,
    trust_option,
)
from anyk.cli.output import json_to_output, say, warn, write_json
from anyk.cli.races import resume_the_race, tell_race
from anyk.cli.settings_report import show_settings
from anyk.cli.supervising import supervise, supervised

if TYPE_CHECKING:
    from anyk.fleet import Auto
    from anyk.runs import Promise, Run
    from anyk.runs.api import SharedConfig


@options_class
class _Strategy:
    strategy: Spec = option(
        default="uncoded",
        metavar="SPEC",
        callback=read_spec,
        help="Strategy; see 'anyk list strategies'. auto:measure=10,every=10: measure, plan, switch, and check every "
        "so often; also record=, slope=, max_load=.",
    )
    begin: str | None = option(
        "--from",
        metavar="FOLDER",
        help="Start from this run: its models, optimiser states and step numbers.",
    )
    plan_file: str | None = option(
        "--plan",
        metavar="FILE.toml",
        help="Instead of --strategy: run what 'anyk plan -o' advised, and check its promise.",
    )
    supervise: bool = option(
        is_flag=True, help="Resume the run when its process is killed, for want of memory or otherwise."
    )


@options_class
class TrainOptions(TrainingOptions, _Strategy):
    """The options of ``train``."""


@main.command()
@config_option
@plugin_option
@takes(TrainOptions)
def train(options: TrainOptions) -> None:
    """Train one model, or several at once, with one strategy."""
    promise = _read_promise(options)
    if promise is not None:
        options = replace(options, strategy=promise.strategy, workers=promise.workers)
    if options.settings:
        show_settings(options)
    elif options.supervise and not supervised():
        sys.exit(supervise(resume, new_folder(options, "train")))
    elif options.strategy.name == "auto":
        _train_in_parts(options)
    else:
        _train_at_once(options, promise)


def _train_at_once(options: TrainOptions, promise: Promise | None) -> None:
    """Train with one strategy, and report the result and, after a plan, whether it kept its promise."""
    from anyk.clusters import cluster
    from anyk.runs import train as train_one
    from anyk.runs import train_many
    from anyk.strategies import strategy as build
    from anyk.views import race_notes, race_table

    models = options.models
    spec = options.strategy.with_keys({"models": models} if models > 1 else {})
    build(spec, workers=options.workers)  # complain before anything is loaded
    fleet = cluster(options.cluster, workers=options.workers.most, **values_of(options, *FLEET))
    folder = new_folder(options, "train")
    continues = options.begin is not None and options.optimizer is None
    if promise is not None:
        options = _with_optimizer_of(promise, options)
    with training_arguments(folder, options) as (problems, arguments):
        training: Any = train_many if models > 1 else train_one
        run: Run = training(
            arguments.pop("problem"),
            promise or options.strategy,
            fleet,
            workers=options.workers,
            optimizer=None if continues else options.make_optimizer(problems[0]),
            lr=options.lr if continues else None,
            begin=options.begin,
            **arguments,
        )
    say(race_table([run]), *race_notes([run]), f"run: {folder}")
    report = run.report()
    if promise is not None:
        report["check"] = _check_promise(run)
    write_json(report)


def _with_optimizer_of(promise: Promise, options: TrainOptions) -> TrainOptions:
    """Return options with the promise's optimiser and learning rate where the command line gives none."""
    from anyk.optimizers import split_rate

    optimizer = options.optimizer or promise.optimizer
    _, lr = (None, options.lr) if optimizer is None else split_rate(optimizer, options.lr)
    if lr is None and promise.learning_rate is not None:
        options = replace(options, lr=str(promise.learning_rate))
    return replace(options, optimizer=optimizer)


def _check_promise(run: Run) -> ByName:
    """Print whether a run kept the promise of its plan, and return that for JSON."""
    from anyk.fleet import check
    from anyk.views import checked_lines

    checked = check(run)
    say(*checked_lines(checked))
    return checked.report()


def _train_in_parts(options: TrainOptions) -> None:
    """Train in parts, and report measurements, plans and results."""
    from anyk.fleet import modes, train_auto

    settings = modes.build(options.strategy)
    if options.begin is not None:
        raise BadInput("'auto' starts a new run; leave out --from, or name a strategy")
    folder = new_folder(options, "train")
    with training_arguments(folder, options) as (problems, arguments):
        result = train_auto(
            optimizer=options.make_optimizer(problems[0]),
            tell=say,
            **arguments,
            **asdict(settings),
            **values_of(options, *FLEET, "workers", "cluster"),
        )
    _report_parts(result)


def _resume_the_parts(folder: Path, options: ResumeOptions) -> None:
    """Resume a training in this mode, and report all of it."""
    from anyk.fleet import read_auto, resume_auto

    with resume_arguments(folder, read_auto(folder), options) as arguments:
        result = resume_auto(folder, tell=say, **arguments)
    _report_parts(result)


def _report_parts(result: Auto) -> None:
    """Print the parts, whether they kept their promises, and the result."""
    from anyk.runs.api import setup
    from anyk.views import parts_table

    say(parts_table(result.parts))
    for stretch in result.parts:
        if stretch.checked is not None:
            say(f"steps {stretch.run.begun} to {stretch.run.steps}: {stretch.checked.sentence}")
    value = result.run.metric
    metric = f", {value['name']} {value['value']:.4g}" if value else ""
    say(f"{result.run.steps} steps in {result.seconds:.4g} s, loss {result.run.loss:.4g}{metric}")
    say(f"cannot take part, and were left out: {', '.join(result.left_out)}", f"run: {result.run.path}")
    write_json(setup(result.run.config) | result.report())


def _read_promise(options: TrainOptions) -> Promise | None:
    """Return the promise of the plan file, or None without one; raise BadInput if other options contradict it."""
    from msgspec import structs

    from anyk.runs import Promise

    if (file := options.plan_file) is None:
        return None
    promise = Promise.load(file, trust=True)
    named = promise if options.optimizer is None else structs.replace(promise, optimizer=None)
    named.check_code(f"the plan '{file}'")
    if is_given("strategy"):
        raise BadInput(f"the plan '{file}' says which strategy to run; leave out --strategy, or --plan")
    if options.models > 1:
        raise BadInput(f"the plan '{file}' is for one model, got --models {options.models}")
    if (is_given("workers") or is_given("partitions")) and options.workers != promise.workers:
        given = f"--partitions {options.partitions}" if options.partitions else f"--workers {options.workers}"
        raise BadInput(
            f"the plan '{file}' is for {promise.workers} workers, got {given}; plan for the fleet that is to train"
        )
    return promise


@main.command()
@click.argument("run")
@click.argument("workers", type=int, nargs=-1)
@click.option("--back", is_flag=True, help="Let these workers return.")
def drain(run: str, workers: tuple[int, ...], back: bool) -> None:
    """Have workers of a run leave when their tasks have ended, as before their machine is taken away."""
    from anyk.runs import drain
    from anyk.runs.api import describe_shortage, read_config

    away = drain(run, workers, back=back)
    click.echo(f"workers that are to stay away: {', '.join(map(str, away)) or 'none'}")
    if (shortage := describe_shortage(read_config(Path(run)), away)) is not None:
        warn(shortage)


@main.command()
@click.argument("run")
@takes(ResumeOptions)
@plugin_option
def resume(run: str, options: ResumeOptions) -> None:
    """Resume a run that was interrupted, was killed, failed or reached its limit, or the rest of a race.

    In a folder of --strategy auto, measuring, planning and checking continue as before.
    """
    from anyk.runs import is_race
    from anyk.runs import resume as resume_training
    from anyk.runs.api import read_config
    from anyk.views import race_notes, race_table

    in_parts = (Path(run) / "auto.toml").is_file()
    several = "that of --strategy auto" if in_parts else "that of a race" if is_race(run) else None
    if several is not None and options.evaluate is not None:
        raise BadInput(f"the folder '{run}' is {several}, whose runs are evaluated alike; leave out --evaluate")
    if several is not None and options.cluster is not None:
        raise BadInput(f"the folder '{run}' is {several}, whose runs share a cluster; leave out --cluster")
    if in_parts:
        if options.add or options.seeds is not None:
            raise BadInput(f"the folder '{run}' is {several}; --add and --seeds are for the folder of a race")
        _resume_the_parts(Path(run), options)
        return
    if is_race(run):
        resume_the_race(Path(run), options)
        return
    for name, value in (("add", options.add or None), ("seeds", options.seeds)):
        if value is not None:
            raise BadInput(f"'{run}' is a single run; --{name} is for the folder of a race")
    with resume_arguments(Path(run), read_config(Path(run)), options) as arguments:
        if options.evaluate is not None:
            arguments["evaluate"] = options.evaluate
        result = resume_training(run, cluster=options.cluster, tell=warn, **arguments)
    say(race_table([result]), *race_notes([result]))
    write_json(result.report())


_SHOWN = (
    "cluster",
    "workers",
    "partitions",
    "delays",
    "communication",
    "seed",
    "seeds",
    "optimizer",
    "lr",
    "steps",
    "seconds",
    "target",
    "evaluate",
)


@main.command()
@click.argument("run")
@click.option("--step", type=int, help="Show the receipt of this step.")
@click.option("--staleness", is_flag=True, help="Show how stale the messages were that it used.")
@picture_option("Draw the metric against seconds or, with --staleness, its histogram.")
@click.option("--dark", is_flag=True, help="Draw the picture for a dark page.")
@table_option
@curve_option
@json_option
def show(
    run: str, step: int | None, staleness: bool, picture: str | None, dark: bool, table: str | None, curve: Any
) -> None:
    """Show a run (settings, result, how its chunks ended, the receipt of a step, staleness) or a race."""
    from anyk.runs import is_race

    for name in ("dark", "curve"):
        if is_given(name) and (picture is None or staleness):
            raise BadInput(f"--{name} is for the picture of the metric or the loss against seconds (--picture)")
    if (Path(run) / "auto.toml").is_file():
        for name in ("step", "staleness", "picture", "table"):
            if is_given(name):
                raise BadInput(f"'{run}' is the folder of --strategy auto; --{name} is for one of the runs in it")
        from anyk.fleet import open_auto, read_auto

        opened = open_auto(Path(run))
        _say_setup((read_auto(Path(run)), opened.run.config.environment))
        _report_parts(opened)
        return
    if not is_race(run):
        _show_run(run, step, staleness=staleness, picture=picture, dark=dark, table=table, curve=curve)
        return
    if step is not None or staleness:
        name = "staleness" if step is None else "step"
        raise BadInput(f"'{run}' is the folder of a race; --{name} is for one of its runs")
    _show_race(run, picture=picture, dark=dark, table=table, curve=curve)


def _show_race(folder: str, *, picture: str | None, dark: bool, table: str | None, curve: Any) -> None:
    """Print the settings and the result of a race, and what is missing of it."""
    from anyk.runs import Race

    race = Race.open(folder)
    first = race.runs[0].config if race.runs else None
    if race.config:
        _say_setup((race.config, first.environment if first else {}))
    else:
        _say_setup(*((run.config, run.config.environment) for run in race.runs))
    if race.waiting or race.unfinished:
        unfinished = [*map(race.title, race.unfinished), *race.waiting]
        say(f"not finished: {', '.join(unfinished)}; go on with: anyk resume {folder}")
    tell_race(race, None if picture is None else Path(picture), curve, dark=dark, table=table)
    write_json(race.report())


def _show_run(
    folder: str, step: int | None, *, staleness: bool, picture: str | None, dark: bool, table: str | None, curve: Any
) -> None:
    """Print a run, or only the receipt of a ``step`` or its ``staleness``."""
    from anyk.runs import Run
    from anyk.views import plot, plot_staleness, save_race_table

    run = Run.open(folder)
    report = run.report()
    if step is not None:
        report |= _show_receipt(run, step)
    if staleness:
        report |= _show_staleness(run)
    if step is None and not staleness:
        _show_result(run)
    if picture is not None:
        if staleness:
            plot_staleness(run, picture)
        else:
            plot(run, picture, of=curve, dark=dark)
        say(f"picture: {picture}")
    if table is not None:
        save_race_table([run], table)
        say(f"table: {table}")
    write_json(report)


def _show_result(run: Run) -> None:
    """Print the settings of a run, its result, how its chunks ended, and its notes."""
    from anyk.views import race_notes, race_table

    say(f"{'strategy':<13} {_expanded(run)}")
    _say_setup((run.config, run.config.environment))
    say(race_table([run]), *race_notes([run]))
    if run.ledger:
        ended = "  ".join(f"{key} {value}" for key, value in run.ledger.items() if value and key != "unusable")
        say(f"chunks: {ended}")
        if run.comparison:
            say(run.comparison)
    for note in run.notes:
        say(f"{note['time']:9.3f} s  {note['kind']}: {note['text']}")


def _say_setup(*runs: tuple[SharedConfig, Mapping[str, str]]) -> None:
    """Print the settings and versions of runs; of a setting in which they differ, all values."""
    rows = []
    for config, environment in runs:
        settings = config.plain() | {"workers": config.workers, "partitions": config.workers.partitions or ""}
        row = {key: str(settings[key]) for key in _SHOWN if settings.get(key, "") != ""}
        row["callbacks"] = ", ".join(config.callbacks)
        row["made with"] = ", ".join(f"{name} {value}" for name, value in environment.items())
        rows.append(row)
    for name in dict.fromkeys(name for row in rows for name in row):
        values = dict.fromkeys(row.get(name) or "none" for row in rows)
        if any(row.get(name) for row in rows):
            say(f"{name:<13} {'differs: ' * (len(values) > 1)}{' | '.join(values)}")


def _expanded(run: Run) -> str:
    """Return the requested strategy and, if it differs, its complete spec."""
    from anyk.strategies import strategy

    requested = run.config.strategy
    try:
        completed_spec = strategy(requested, workers=run.config.workers).spec
    except BadInput:  # made in Python, or by a plug-in that is not loaded
        return requested
    return requested if completed_spec == requested else f"{requested}, that is {completed_spec}"


def _show_receipt(run: Run, step: int) -> ByName:
    """Print the receipt of a step, and return it for JSON."""
    receipt = run.receipt(step)
    lines = [f"step {step} at {receipt.time:.3f} s: residual {receipt.residual:.3g}, gain {receipt.gain:.3g}"]
    if receipt.fleet:
        lines.append(receipt.fleet)
    if receipt.values:
        lines.append(f"values: {', '.join(f'{name} = {value}' for name, value in receipt.values.items())}")
    lines += [
        "partitions counted with weight:",
        "  " + " ".join(f"{weight:.3g}" for weight in receipt.weights),
        f"{len(receipt.used)} messages used:",
    ]
    for (worker, task, weight, staleness), samples, givers in zip(
        receipt.used, receipt.samples, receipt.slices, strict=True
    ):
        of = "" if samples is None else f", {samples:,} samples"
        whose = f", slices from workers {', '.join(map(str, givers))}" if givers else ""
        lines.append(f"  worker {worker}, task {task}, weight {weight:.3g}, staleness {staleness}{of}{whose}")
    if receipt.spare:
        lines.append(f"{len(receipt.spare)} in time but not needed: workers {', '.join(map(str, receipt.spare))}")
    lines.append(f"{len(receipt.cut_off)} cut off:" if receipt.cut_off else "no worker was cut off")
    lines += [f"  {cut}" for cut in receipt.cut_off]
    if receipt.rest:
        lines.append(f"still at work, or away: workers {', '.join(map(str, receipt.rest))}")
    say(*lines)
    return {"receipt": receipt.report()}


def _show_staleness(run: Run) -> ByName:
    """Print the table and the mean of staleness, and return both for JSON."""
    from anyk.views import mean_staleness, staleness_table

    counts = run.staleness()
    mean = mean_staleness(counts)
    if mean is None:
        say("no messages were used yet")
    else:
        say(staleness_table(counts), f"mean staleness {mean:.4g} versions")
    plain = [{"staleness": value, "messages": count} for value, count in counts.items()]
    return {"staleness": plain, "mean_staleness": mean}


@main.command()
@click.argument("run")
@click.option("--decisions-only", is_flag=True, help="Do not compute gradients.")
@problem_option
@trust_option
@plugin_option
def replay(run: str, decisions_only: bool, problem: str | None, trust: bool) -> None:
    """Replay a run from its log, and check that decisions and model are the same, bit for bit."""
    from anyk.problems import from_function
    from anyk.runs import replay as replay_run

    given_problem = None if problem is None else from_function(problem)
    result = replay_run(run, problem=given_problem, compute=not decisions_only, trust=trust)
    click.echo(str(result))
    if not result.decisions:
        sys.exit(1)


@main.command()
@click.argument("run")
@json_option
def verify(run: str) -> None:
    """Check that a run folder is intact: its log, its ledger, its checkpoints, and the data and code it used.

    No code that the folder names is run, and no file in it is changed; checkpoints that a killed process left
    unfinished are removed. Exit codes: 0 intact, 1 damaged, 2 not a run folder.
    """
    from anyk.runs import verify as verify_run

    verification = verify_run(run)
    if not json_to_output():
        click.echo(str(verification))
    write_json(verification.report())
    if not verification.whole:
        sys.exit(1)
