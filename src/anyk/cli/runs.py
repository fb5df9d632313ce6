"""Commands that make or read runs: train, race, resume, show, replay."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from anyk.cli import main
from anyk.cli.auto import is_auto, is_auto_folder, resume_the_parts, train_in_parts
from anyk.cli.options import (
    callback_option,
    callbacks_again,
    common,
    curve_option,
    evaluate_option,
    join_cluster,
    json_option,
    listening,
    make_callbacks,
    make_optimizer,
    make_problem,
    metrics_option,
    mirror_option,
    models_option,
    new_folder,
    picture_option,
    plugin_option,
    show_settings,
    tell_delays,
)
from anyk.cli.output import check_file, exit_interrupted, people, say, warn, write_json
from anyk.cli.races import resume_the_race, tell_race, variant
from anyk.errors import BadInput

if TYPE_CHECKING:
    from rich.console import Console

    from anyk.runs import Promise, Run
    from anyk.runs.folder.config import SharedConfig

_LIMITS = ("steps", "seconds", "target")


@main.command()
@click.option(
    "--strategy",
    default="uncoded",
    show_default=True,
    metavar="SPEC",
    help="Strategy; see 'anyk strategies'. auto:measure=30,every=100: measure, plan, switch, and check every so often; "
    "also record=, slope=, max_load=.",
)
@models_option
@click.option(
    "--from", "begin", metavar="FOLDER", help="Start from this run: its models, optimiser states and step numbers."
)
@click.option(
    "--plan",
    "plan_file",
    metavar="FILE.toml",
    help="Instead of --strategy: run what 'anyk plan -o' advised, and check its promise.",
)
@common
@click.pass_context
def train(
    ctx: click.Context,
    /,
    strategy: str,
    models: int,
    begin: str | None,
    plan_file: str | None,
    **given: Any,
) -> None:
    """Train one model, or several at once, with one strategy."""
    promise = None if plan_file is None else _promise(ctx, plan_file, models)
    if promise is not None:
        strategy = ctx.params["strategy"] = promise.strategy
        given["workers"] = ctx.params["workers"] = promise.workers
    if given["settings"]:
        show_settings(ctx)
        return
    from anyk.clusters import cluster
    from anyk.delays import parse
    from anyk.runs import train as run_training
    from anyk.runs import train_many
    from anyk.specs import with_keys
    from anyk.strategies import strategy as build
    from anyk.views import race_notes, race_table

    if models < 1:
        raise BadInput(f"models must be at least 1, got {models}")
    if is_auto(strategy):
        train_in_parts(strategy, models, begin, given)
        return
    asked = with_keys(strategy, {"models": models}) if models > 1 else strategy
    build(asked, workers=given["workers"])  # complain before anything is loaded
    delays = parse(given["delays"])
    fleet = cluster(
        given["cluster"],
        workers=given["workers"],
        delays=delays,
        seed=given["seed"],
        communication=given["communication"],
    )
    folder = new_folder(given["out"], "train")
    check_file(given["json_file"], "file", folder=folder)
    callbacks = make_callbacks(given["callbacks"], ())
    problem = make_problem(given)
    tell_delays(given["delays"], given["workers"])
    goes_on = begin is not None and given["optimizer"] is None and given["lr"] is None
    if promise is not None:
        given["optimizer"] = given["optimizer"] or promise.optimizer
        if promise.learning_rate is not None and given["lr"] is None:
            given["lr"] = str(promise.learning_rate)
    optimizer = None if goes_on else make_optimizer(problem, given)
    console = people(given["json_file"])
    try:
        with listening(console, callbacks, given) as heard:
            training: Any = run_training
            if models > 1:
                training = train_many
            run = training(
                [problem, *(variant(problem, i) for i in range(1, models))] if models > 1 else problem,
                promise or strategy,
                fleet,
                optimizer=optimizer,
                steps=given["steps"],
                seconds=given["seconds"],
                target=given["target"],
                begin=begin,
                out=folder,
                evaluate=given["evaluate"] or "",
                callbacks=heard,
            )
    except KeyboardInterrupt:
        exit_interrupted(folder)
    say(console, race_table([run]), *race_notes([run]), f"run: {folder}")
    report = run.report()
    if promise is not None:
        report["check"] = _tell_check(console, run)
    write_json(report, given["json_file"])


def _tell_check(console: Console, run: Run) -> dict[str, Any]:
    """Say whether a run has kept its promise; returned for JSON."""
    from anyk.fleet import check
    from anyk.views.fleet_tables import checked_lines

    found = check(run)
    say(console, *checked_lines(found))
    return found.report()


def _promise(ctx: click.Context, file: str, models: int) -> Promise:
    """The promise of a plan file; raises where other options contradict it."""
    from click.core import ParameterSource
    from msgspec.structs import replace

    from anyk.runs import Promise

    promise = Promise.load(file, trust=True)
    named = promise if ctx.params["optimizer"] is None else replace(promise, optimizer=None)
    named.check_code(f"the plan '{file}'")
    if ctx.get_parameter_source("strategy") != ParameterSource.DEFAULT:
        raise BadInput(f"the plan '{file}' says which strategy to run; leave out --strategy, or --plan")
    if models > 1:
        raise BadInput(f"the plan '{file}' is for one model, got --models {models}")
    workers = ctx.params["workers"]
    if ctx.get_parameter_source("workers") != ParameterSource.DEFAULT and workers != promise.workers:
        raise BadInput(
            f"the plan '{file}' is for {promise.workers} workers, got --workers {workers}; plan for the fleet that is "
            "to train"
        )
    return promise


_problem_again = click.option(
    "--problem",
    metavar="FILE.py:FUNCTION",
    help="The function that makes the run's problem; name it again, as code is not run just because a folder names it.",
)
_trust = click.option(
    "--trust",
    is_flag=True,
    help="Run the code that the folder names, if its SHA-256 is unchanged; only for your own folders.",
)


@main.command()
@click.argument("run")
@click.option("--steps", type=int, help="New limit on steps, counted from the beginning.")
@click.option("--seconds", type=float, help="New limit on the run's clock.")
@click.option("--target", type=float, help="New target of the metric.")
@_problem_again
@_trust
@evaluate_option
@callback_option
@metrics_option
@mirror_option
@click.option("--add", multiple=True, metavar="SPEC", help="For a race: a further strategy; may be repeated.")
@click.option("--seeds", type=int, help="For a race: train with further seeds, until there are so many.")
@click.option("--quiet", is_flag=True, help="Show no progress.")
@json_option
@plugin_option
def resume(
    run: str,
    steps: int | None,
    seconds: float | None,
    target: float | None,
    evaluate: str | None,
    add: tuple[str, ...],
    seeds: int | None,
    **given: Any,
) -> None:
    """Resume a run that was interrupted, was killed, failed or reached its limit, or the rest of a race.

    A folder of --strategy auto goes on as a whole: it is measured, planned and checked as before.
    """
    from anyk.problems import from_function
    from anyk.runs import is_race
    from anyk.runs import resume as resume_training
    from anyk.runs.folder.config import read_config
    from anyk.views import race_notes, race_table

    console = people(given["json_file"])
    limits: dict[str, Any] = {"steps": steps, "seconds": seconds, "target": target}
    several = "that of --strategy auto" if is_auto_folder(run) else "that of a race" if is_race(run) else None
    if several is not None and evaluate is not None:
        raise BadInput(f"the folder '{run}' is {several}, whose runs are evaluated alike; leave out --evaluate")
    if is_auto_folder(run):
        if add or seeds is not None:
            raise BadInput(f"the folder '{run}' is {several}; --add and --seeds are for the folder of a race")
        resume_the_parts(console, run, limits, given)
        return
    if is_race(run):
        resume_the_race(console, run, add, seeds, limits, given)
        return
    if add:
        raise BadInput(f"'{run}' is a single run; --add is for the folder of a race")
    if seeds is not None:
        raise BadInput(f"'{run}' is a single run; --seeds is for the folder of a race")
    kept: dict[str, Any] = {} if evaluate is None else {"evaluate": evaluate}
    config = read_config(Path(run))
    join_cluster(config.cluster)
    callbacks = callbacks_again(run, config, given["callbacks"], trust=given["trust"])
    made = None if given["problem"] is None else from_function(given["problem"])
    try:
        with listening(console, callbacks, given) as heard:
            done = resume_training(
                run, problem=made, trust=given["trust"], callbacks=heard, tell=warn, **limits, **kept
            )
    except KeyboardInterrupt:
        exit_interrupted(run)
    say(console, race_table([done]), *race_notes([done]))
    write_json(done.report(), given["json_file"])


_SHOWN = ("cluster", "workers", "delays", "communication", "seed", "seeds", "optimizer", "lr", *_LIMITS, "evaluate")


@main.command()
@click.argument("run")
@click.option("--step", type=int, help="Show the receipt of this step.")
@click.option("--staleness", is_flag=True, help="Show how stale the messages were that it used.")
@picture_option("Draw the metric against seconds or, with --staleness, its histogram.")
@click.option("--dark", is_flag=True, help="Draw the picture for a dark page.")
@curve_option
@json_option
def show(
    run: str, step: int | None, staleness: bool, picture: str | None, dark: bool, curve: Any, json_file: str | None
) -> None:
    """Show a run (settings, result, how its chunks ended, the receipt of a step, staleness) or a race."""
    from anyk.runs import Race, Run, is_race
    from anyk.views import plot, plot_staleness, race_notes, race_table

    console = people(json_file)
    if is_race(run):
        if step is not None:
            raise BadInput(f"'{run}' is the folder of a race; --step is for one of its runs")
        if staleness:
            raise BadInput(f"'{run}' is the folder of a race; --staleness is for one of its runs")
        found_race = Race.open(run)
        first = found_race.runs[0].config if found_race.runs else None
        if config := found_race.config or first:
            _say_setup(console, config, first.environment if first else {})
        if found_race.waiting or found_race.unfinished:
            left = [*map(found_race.title, found_race.unfinished), *found_race.waiting]
            say(console, f"not finished: {', '.join(left)}; go on with: anyk resume {run}")
        tell_race(console, found_race, None if picture is None else Path(picture), curve, dark=dark)
        write_json(found_race.report(), json_file)
        return
    found = Run.open(run)
    report = found.report()
    if step is not None:
        _show_receipt(console, found, step)
    if staleness:
        report |= _show_staleness(console, found)
    if step is None and not staleness:
        say(console, f"{'strategy':<13} {_expanded(found)}")
        _say_setup(console, found.config, found.config.environment)
        say(console, race_table([found]), *race_notes([found]))
        ledger = found.ledger
        if ledger:
            ended = "  ".join(f"{key} {value}" for key, value in ledger.items() if value and key != "unusable")
            say(console, f"chunks: {ended}")
        for note in found.notes:
            say(console, f"{note['time']:9.3f} s  {note['kind']}: {note['text']}")
    if picture is not None:
        if staleness:
            plot_staleness(found, picture)
        else:
            plot(found, picture, of=curve, dark=dark)
        say(console, f"picture: {picture}")
    write_json(report, json_file)


def _say_setup(console: Console, config: SharedConfig, environment: Mapping[str, str]) -> None:
    settings = config.plain()
    for key in _SHOWN:
        if settings.get(key, "") != "":
            say(console, f"{key:<13} {settings[key]}")
    if config.callbacks:
        say(console, f"{'callbacks':<13} {', '.join(config.callbacks)}")
    if environment:
        say(console, f"{'made with':<13} {', '.join(f'{name} {value}' for name, value in environment.items())}")


def _expanded(run: Run) -> str:
    """The strategy as it was asked for and, where that is another name, as what it is."""
    from anyk.errors import BadInput
    from anyk.strategies import strategy

    asked = run.config.strategy
    try:
        meant = strategy(asked, workers=run.config.workers).spec
    except BadInput:  # made in Python, or by a plug-in that is not loaded
        return asked
    return asked if meant == asked else f"{asked}, that is {meant}"


def _show_receipt(console: Console, run: Run, step: int) -> None:
    receipt = run.receipt(step)
    say(console, f"step {step} at {receipt.time:.3f} s: residual {receipt.residual:.3g}, gain {receipt.gain:.3g}")
    say(console, "partitions counted with weight:")
    say(console, "  " + " ".join(f"{weight:.3g}" for weight in receipt.weights))
    say(console, f"{len(receipt.used)} messages used:")
    for (worker, task, weight, staleness), samples in zip(receipt.used, receipt.samples, strict=True):
        of = "" if samples is None else f", {samples:,} samples"
        say(console, f"  worker {worker}, task {task}, weight {weight:.3g}, staleness {staleness}{of}")
    if receipt.spare:
        say(console, f"{len(receipt.spare)} in time but not needed: workers {_listed(receipt.spare)}")
    say(console, f"{len(receipt.cut_off)} cut off:" if receipt.cut_off else "nobody was cut off")
    for cut in receipt.cut_off:
        say(console, f"  {cut}")
    if receipt.rest:
        say(console, f"still at work, or away: workers {_listed(receipt.rest)}")


def _show_staleness(console: Console, run: Run) -> dict[str, Any]:
    """Table and mean; returned for JSON."""
    from anyk.views import mean_staleness, staleness_table

    counts = run.staleness()
    mean = mean_staleness(counts)
    if mean is None:
        say(console, "no messages were used yet")
    else:
        say(console, staleness_table(counts), f"mean staleness {mean:.4g} versions")
    plain = [{"staleness": value, "messages": count} for value, count in counts.items()]
    return {"staleness": plain, "mean_staleness": mean}


def _listed(workers: Sequence[int]) -> str:
    return ", ".join(map(str, workers))


@main.command()
@click.argument("run")
@click.option("--decisions-only", is_flag=True, help="Do not compute gradients.")
@_problem_again
@_trust
@plugin_option
def replay(run: str, decisions_only: bool, problem: str | None, trust: bool) -> None:
    """Replay a run from its log, and check that decisions and model are the same, bit for bit."""
    from anyk.problems import from_function
    from anyk.runs import replay as replay_run

    made = None if problem is None else from_function(problem)
    result = replay_run(run, problem=made, compute=not decisions_only, trust=trust)
    click.echo(str(result))
    if not result.decisions:
        sys.exit(1)


@main.command()
@click.argument("run")
@json_option
def verify(run: str, json_file: str | None) -> None:
    """Check that a run folder is intact: its log, its ledger, its checkpoints, and the data and code it used.

    No code that the folder names is run, and nothing is written to it. Exit codes: 0 intact, 1 damaged, 2 not a run
    folder.
    """
    from anyk.runs import verify as verify_run

    found = verify_run(run)
    if json_file != "-":
        click.echo(str(found))
    write_json(found.report(), json_file)
    if not found.whole:
        sys.exit(1)
