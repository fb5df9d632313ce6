"""Commands that make or read runs: train, race, resume, show, replay."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from anyk.cli import main
from anyk.cli.options import (
    common,
    join_cluster,
    json_option,
    make_optimizer,
    make_problem,
    new_folder,
    plugin_option,
    show_settings,
    tell_delays,
)
from anyk.cli.output import people, say, write_json
from anyk.errors import BadInput

if TYPE_CHECKING:
    from rich.console import Console

    from anyk.training import Run

# what `anyk race` does when told nothing: long enough to see, short enough to wait for
_RACE = {"delays": "exp:mean=0.2", "target": 0.93, "seconds": 40.0}


_curve = click.option(
    "--curve", type=click.Choice(["metric", "loss"]), default="metric", show_default=True,
    help="What the picture shows against seconds.",
)  # fmt: skip


def _variant(problem: Any, number: int) -> Any:
    """The same problem with a start of its own, where it has a random one; the data is shared."""
    from anyk.problems import TwoLayerNetwork
    from anyk.specs import parse

    if not isinstance(problem, TwoLayerNetwork):
        return problem
    recipe = problem.recipe() or {}
    name, values = parse(str(recipe["model"]))
    seed = problem.seed + number
    keys = ",".join(f"{key}={value}" for key, value in (values | {"seed": str(seed)}).items())
    return TwoLayerNetwork(
        problem.X, problem.y, hidden=problem.hidden, seed=seed, l2=problem.l2, X_test=problem.X_test,
        y_test=problem.y_test, recipe=recipe | {"model": f"{name}:{keys}"},
    )  # fmt: skip


def _interrupted(folder: str | Path | None) -> None:
    click.echo(f"anyk: interrupted; go on with: anyk resume {folder}", err=True)
    sys.exit(130)


@main.command()
@click.option(
    "--strategy", default="uncoded", show_default=True, metavar="SPEC", help="Strategy; see 'anyk strategies'."
)
@click.option("--models", type=int, default=1, show_default=True,
              help="Models trained at once, in turn (of two-layer networks each with a start of its own).")  # fmt: skip
@click.option("--from", "begin", metavar="FOLDER",
              help="Begin where this run stands: its models, optimiser states and step numbers.")  # fmt: skip
@click.option("--probe", type=int, metavar="ROUNDS",
              help="In place of --strategy: measure for so many rounds, uncoded and coded, and go on with what "
              "suits the delays best.")  # fmt: skip
@common
@click.pass_context
def train(
    ctx: click.Context, /, strategy: str, models: int, begin: str | None, probe: int | None, **given: Any
) -> None:
    """Train one model, or several at once, with one strategy."""
    if given["settings"]:
        show_settings(ctx)
        return
    from anyk.clusters import cluster
    from anyk.delays import parse
    from anyk.reports import Progress, race_table
    from anyk.specs import with_keys
    from anyk.strategies import strategy as build
    from anyk.training import train as run_training
    from anyk.training import train_many

    if models < 1:
        raise BadInput(f"models must be at least 1, got {models}")
    if probe is not None:
        from click.core import ParameterSource

        if ctx.get_parameter_source("strategy") != ParameterSource.DEFAULT:
            raise BadInput("--probe finds the strategy itself; leave out --strategy, or --probe")
        if begin is not None:
            raise BadInput("--probe begins anew; leave out --from, or --probe")
        _train_tuned(probe, models, given)
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
    problem = make_problem(given)
    tell_delays(given["delays"], given["workers"])
    optimizer = make_optimizer(problem, given)
    folder = Path(given["out"]) if given["out"] else new_folder("train")
    console = people(given["json_file"])
    try:
        with Progress(console, quiet=given["quiet"]) as progress:
            training: Any = run_training
            if models > 1:
                training = train_many
            run = training(
                [problem, *(_variant(problem, i) for i in range(1, models))] if models > 1 else problem,
                strategy,
                fleet,
                optimizer=optimizer,
                steps=given["steps"],
                seconds=given["seconds"],
                target=given["target"],
                begin=begin,
                out=folder,
                watch=progress,
            )
    except KeyboardInterrupt:
        _interrupted(folder)
    say(console, race_table([run]), f"run: {folder}")
    write_json(run.report(), given["json_file"])


def _train_tuned(probe: int, models: int, given: dict[str, Any]) -> None:
    """Probe, choose, switch."""
    from anyk.planning import Candidate, train_tuned
    from anyk.reports import Progress, candidates_note, candidates_table, race_table
    from anyk.training.run import setup

    problem = make_problem(given)
    tell_delays(given["delays"], given["workers"])
    folder = Path(given["out"]) if given["out"] else new_folder("train")
    console = people(given["json_file"])

    def tell(spec: str, candidates: Sequence[Candidate]) -> None:
        if candidates:
            say(console, candidates_table(candidates), *candidates_note(candidates))
        if not given["quiet"]:
            say(console, f"· {spec}")

    names = ("workers", "cluster", "delays", "communication", "seed", "steps", "seconds", "target")
    try:
        with Progress(console, quiet=given["quiet"]) as progress:
            tuned = train_tuned(
                [problem, *(_variant(problem, i) for i in range(1, models))],
                probe=probe,
                optimizer=make_optimizer(problem, given),
                out=folder,
                watch=progress,
                before=tell,
                **{name: given[name] for name in names},
            )
    except KeyboardInterrupt:
        if (folder / "run").exists():
            _interrupted(folder / "run")
        click.echo("anyk: interrupted in the probe; begin again", err=True)
        sys.exit(130)
    say(console, race_table(tuned.runs))
    if tuned.choice is None:
        say(console, "a limit was reached in the probe: nothing was chosen")
    say(console, f"run: {tuned.run.path}")
    chosen = {"choice": [vars(one) for one in tuned.candidates], "seconds": tuned.seconds}
    report = setup(tuned.run.config) | {"runs": [run.result() for run in tuned.runs]} | chosen
    write_json(report, given["json_file"])


@main.command()
@click.option("--strategy", "strategies", multiple=True, metavar="SPEC",
              help="A strategy; repeat for each.  [default, for 30 workers: uncoded, frc:load=3, agc:load=3,wait=11, "
              "async:step=0.05]")  # fmt: skip
@click.option("--picture", metavar="FILE", help="Picture of the race; race.png in the run's folder if left out.")
@_curve
@common
@click.pass_context
def race(ctx: click.Context, /, strategies: tuple[str, ...], picture: str | None, curve: Any, **given: Any) -> None:
    """Train with several strategies, one after another, on the same data with the same stragglers.

    With no options: scikit-learn's digits, 30 processes, exponential delays with a mean of 0.2 s, until 93 % of the
    held-out digits are read correctly.
    """
    from click.core import ParameterSource

    from anyk.training.racing import racers

    chosen = strategies or racers(given["workers"])

    told = {"steps", "seconds", "target", "delays", "data", "problem"} & {
        name for name in given if ctx.get_parameter_source(name) != ParameterSource.DEFAULT
    }
    if not told:
        given.update(_RACE)
        ctx.params.update(_RACE)
    if given["settings"]:
        ctx.params["strategies"] = chosen
        show_settings(ctx)
        return
    from anyk.reports import Progress, plot, race_table
    from anyk.training import race as run_race

    folder = Path(given["out"]) if given["out"] else new_folder("race")
    console = people(given["json_file"])
    file = Path(picture) if picture else folder / "race.png"
    _check_picture()
    problem = make_problem(given)
    tell_delays(given["delays"], given["workers"])
    optimizer = make_optimizer(problem, given)
    say(
        console,
        f"{given['problem'] or given['data'] + ', ' + given['model']}: {problem.samples:,} rows, "
        f"{problem.dimension:,} parameters; "
        f"{given['workers']} workers, delays {given['delays']}, {optimizer.spec}, learning rate {optimizer.rate.spec}",
    )
    try:
        with Progress(console, quiet=given["quiet"]) as progress:
            result = run_race(
                problem,
                chosen,
                workers=given["workers"],
                cluster=given["cluster"],
                delays=given["delays"],
                communication=given["communication"],
                seed=given["seed"],
                optimizer=optimizer,
                steps=given["steps"],
                seconds=given["seconds"],
                target=given["target"],
                out=folder,
                watch=progress,
                before=lambda spec: None if given["quiet"] else say(console, f"· {spec}"),
            )
    except KeyboardInterrupt:
        _interrupted(folder / "…")
    say(console, race_table(result.runs))
    plot(result.runs, file, of=curve)
    say(console, f"picture: {file}")
    write_json(result.report(), given["json_file"])


def _check_picture() -> None:
    """Say that the picture cannot be drawn before the race, not after it."""
    from importlib.util import find_spec

    from anyk.errors import MissingPackage

    if find_spec("matplotlib") is None:
        raise MissingPackage("matplotlib", "plot", "the picture of a race")


_problem_again = click.option(
    "--problem", metavar="FILE.py:FUNCTION",
    help="The function that makes the run's problem, named again: what a run folder names is not run by itself.",
)  # fmt: skip
_trust = click.option(
    "--trust", is_flag=True,
    help="Run the code that the folder names, if it is still what it was (its SHA-256); only for folders of your own.",
)  # fmt: skip


@main.command()
@click.argument("run")
@click.option("--steps", type=int, help="New limit on steps, counted from the beginning.")
@click.option("--seconds", type=float, help="New limit on the run's clock.")
@click.option("--target", type=float, help="New target of the metric.")
@_problem_again
@_trust
@click.option("--quiet", is_flag=True, help="No progress.")
@json_option
@plugin_option
def resume(
    run: str, steps: int | None, seconds: float | None, target: float | None, problem: str | None, trust: bool,
    quiet: bool, json_file: str | None,
) -> None:  # fmt: skip
    """Go on with a run that was interrupted, killed, failed or ended at its limit."""
    from anyk.problems import from_function
    from anyk.reports import Progress, race_table
    from anyk.training import resume as resume_training
    from anyk.training.config import read_config

    join_cluster(read_config(Path(run))["cluster"])
    console = people(json_file)
    made = None if problem is None else from_function(problem)
    try:
        with Progress(console, quiet=quiet) as progress:
            done = resume_training(
                run, problem=made, steps=steps, seconds=seconds, target=target, trust=trust, watch=progress
            )
    except KeyboardInterrupt:
        _interrupted(run)
    say(console, race_table([done]))
    write_json(done.report(), json_file)


@main.command()
@click.argument("run")
@click.option("--step", type=int, help="Show the receipt of this step.")
@click.option("--picture", metavar="FILE", help="Draw the metric against seconds.")
@_curve
@json_option
def show(run: str, step: int | None, picture: str | None, curve: Any, json_file: str | None) -> None:
    """Show a run: what it was, what it came to, how its chunks ended, and the receipt of a step."""
    from anyk.reports import plot, race_table
    from anyk.training import Run

    found = Run.open(run)
    console = people(json_file)
    if step is not None:
        _show_receipt(console, found, step)
    else:
        keys = (
            "strategy",
            "cluster",
            "workers",
            "delays",
            "communication",
            "seed",
            "optimizer",
            "lr",
            "steps",
            "seconds",
            "target",
        )
        for key in keys:
            if key == "strategy":
                say(console, f"{key:<10} {_expanded(found)}")
            elif found.config.get(key) is not None:
                say(console, f"{key:<10} {found.config[key]}")
        say(console, race_table([found]))
        books = found.books
        if books:
            ended = "  ".join(f"{key} {value}" for key, value in books.items() if value and key != "unusable")
            say(console, f"chunks: {ended}")
        for note in found.notes:
            say(console, f"{note['time']:9.3f} s  {note['kind']}: {note['text']}")
    if picture is not None:
        plot(found, picture, of=curve)
        say(console, f"picture: {picture}")
    write_json(found.report(), json_file)


def _expanded(run: Run) -> str:
    """The strategy as it was asked for and, where that is another name, as what it is."""
    from anyk.errors import BadInput
    from anyk.strategies import strategy

    asked = str(run.config["strategy"])
    try:
        meant = strategy(asked, workers=run.config["workers"]).spec
    except BadInput:  # made in Python, or by a plug-in that is not loaded
        return asked
    return asked if meant == asked else f"{asked}, that is {meant}"


def _show_receipt(console: Console, run: Run, step: int) -> None:
    receipt = run.receipt(step)
    say(console, f"step {step} at {receipt.time:.3f} s: residual {receipt.residual:.3g}, gain {receipt.gain:.3g}")
    say(console, "partitions counted with weight:")
    say(console, "  " + " ".join(f"{weight:.3g}" for weight in receipt.weights))
    say(console, f"{len(receipt.used)} messages used:")
    for worker, task, weight, staleness in receipt.used:
        say(console, f"  worker {worker}, task {task}, weight {weight:.3g}, staleness {staleness}")
    say(console, f"{len(receipt.cut_off)} cut off:")
    for cut in receipt.cut_off:
        say(console, f"  {cut}")


@main.command()
@click.argument("run")
@click.option("--decisions-only", is_flag=True, help="Do not compute gradients.")
@_problem_again
@_trust
@plugin_option
def replay(run: str, decisions_only: bool, problem: str | None, trust: bool) -> None:
    """Replay a run from its log: the same decisions, the same bits of model."""
    from anyk.problems import from_function
    from anyk.training import replay as replay_run

    made = None if problem is None else from_function(problem)
    result = replay_run(run, problem=made, compute=not decisions_only, trust=trust)
    click.echo(str(result))
    if not result.decisions:
        sys.exit(1)
