"""The command that races strategies, and what is told of races."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from anyk.cli import main
from anyk.cli.options import (
    callbacks_again,
    common,
    curve_option,
    join_cluster,
    listening,
    make_callbacks,
    make_optimizer,
    make_problem,
    models_option,
    new_folder,
    picture_option,
    show_settings,
    tell_delays,
)
from anyk.cli.output import check_file, check_page, check_picture, exit_interrupted, people, say, warn, write_json
from anyk.errors import BadInput
from anyk.problems.base import rows_of

if TYPE_CHECKING:
    from rich.console import Console

    from anyk.runs import Race

# what `anyk race` does when told nothing: long enough to see, short enough to wait for
_RACE = {"delays": "exp:mean=0.2", "target": 0.93, "seconds": 40.0}

PAGE = "report.html"  # in the folder of a race


def variant(problem: Any, number: int) -> Any:
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
        problem.X,
        problem.y,
        hidden=problem.hidden,
        seed=seed,
        l2=problem.l2,
        X_test=problem.X_test,
        y_test=problem.y_test,
        split=problem.uneven,
        recipe=recipe | {"model": f"{name}:{keys}"},
    )


@main.command()
@click.option(
    "--strategy",
    "strategies",
    multiple=True,
    metavar="SPEC",
    help="A strategy; repeat for each.  [default, for 30 workers: uncoded, frc:load=3, agc:load=3,wait=11, "
    "async:lr_scale=0.05]",
)
@models_option
@click.option(
    "--seeds",
    type=int,
    default=1,
    show_default=True,
    help="How often each strategy trains: with --seed, --seed + 1, …, the same for all.",
)
@picture_option("Picture of the race; race.png in the race's folder if left out.")
@click.option(
    "-o",
    "--report",
    "page",
    metavar="FILE.html|none",
    help="Page about the race; report.html in the race's folder if left out; none: no page.",
)
@curve_option
@common
@click.pass_context
def race(
    ctx: click.Context,
    /,
    strategies: tuple[str, ...],
    models: int,
    seeds: int,
    picture: str | None,
    page: str | None,
    curve: Any,
    **given: Any,
) -> None:
    """Train with several strategies, one after another, on the same data with the same stragglers.

    With no options: scikit-learn's digits, 30 processes, exponential delays with a mean of 0.2 s, until 93 % of the
    held-out digits are classified correctly. Speed-ups are over 'uncoded' (else over the first strategy): by the time
    to the target; without one, by the time to the lowest loss that both reached; with several models, by seconds a job.
    With several seeds: medians, least and largest values, and speed-ups over the run of 'uncoded' with the same seed.

    \b
    anyk show runs/race-1              the table again; --picture draws it again
    anyk resume runs/race-1            what is left of an interrupted race
    anyk resume runs/race-1 --add SPEC     adds a strategy
    anyk resume runs/race-1 --seeds 5      trains with further seeds
    """
    from click.core import ParameterSource

    from anyk.runs.races.race import charged, racers

    chosen = strategies or racers(given["workers"], models)
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
    from anyk.runs import race as run_race

    if models < 1:
        raise BadInput(f"models must be at least 1, got {models}")
    if seeds < 1:
        raise BadInput(f"seeds must be at least 1, got {seeds}")
    folder = new_folder(given["out"], "race")
    check_picture(picture, folder=folder)
    check_page(page, folder=folder)
    check_file(given["json_file"], "file", folder=folder)
    console = people(given["json_file"])
    callbacks = make_callbacks(given["callbacks"], ())
    problem = make_problem(given)
    tell_delays(given["delays"], given["workers"])
    optimizer = make_optimizer(problem, given)
    asked = given["cluster"]
    if not told:
        given["cluster"] = charged(asked, problem, workers=given["workers"])
    head = [
        f"{given['problem'] or given['data'] + ', ' + given['model']}: {rows_of(problem)}, "
        f"{problem.dimension:,} parameters; "
        f"{given['workers']} workers, delays {given['delays']}, {optimizer.spec}, learning rate {optimizer.rate.spec}"
        + f", {seeds} seeds"
        * (seeds > 1)
    ]
    if given["cluster"] != asked:
        head.append(f"cluster {given['cluster']}: what computing a partition takes here, on a core for each worker")
    try:
        with listening(console, callbacks, given) as heard:
            result = run_race(
                problem if models == 1 else [problem, *(variant(problem, i) for i in range(1, models))],
                chosen,
                workers=given["workers"],
                cluster=given["cluster"],
                delays=given["delays"],
                communication=given["communication"],
                seed=given["seed"],
                seeds=seeds,
                optimizer=optimizer,
                steps=given["steps"],
                seconds=given["seconds"],
                target=given["target"],
                out=folder,
                evaluate=given["evaluate"] or "",
                callbacks=heard,
                before=_saying(console, given["quiet"], head),
            )
    except KeyboardInterrupt:
        _race_interrupted(console, folder)
    written = None if page == "none" else Path(page or folder / PAGE)
    tell_race(console, result, Path(picture) if picture else folder / "race.png", curve, page=written)
    write_json(result.report(), given["json_file"])
    _exit_if_failed(result)


def _saying(console: Console, quiet: bool, head: Sequence[str] = ()) -> Callable[[str], None]:
    """Says which run begins; before the first, when all that was asked for is known to be possible, the head."""
    unsaid = list(head)

    def tell(title: str) -> None:
        say(console, *unsaid, *([] if quiet else [f"· {title}"]))
        unsaid.clear()

    return tell


def _race_interrupted(console: Console, folder: Path) -> None:
    """What there is so far, and how to go on."""
    from anyk.runs import Race, is_race
    from anyk.views import race_table

    if is_race(folder):
        so_far = Race.open(folder)
        if so_far.runs:
            say(console, race_table(so_far.runs))
        so_far.close()
    exit_interrupted(folder)


def tell_race(
    console: Console, result: Race, picture: Path | None, curve: Any, *, dark: bool = False, page: Path | None = None
) -> None:
    """Table, remarks, picture and page; without the packages that these need, how to get them."""
    from anyk.errors import MissingPackage
    from anyk.views import NothingToDraw, plot, race_notes, race_table, report

    if not result.runs:
        say(console, "nothing has begun")
        return
    say(console, race_table(result.runs), *race_notes(result.runs))
    for title, why in result.failures.items():
        say(console, f"{title} failed: {why}")
    if picture is not None:
        try:
            plot(result.runs, picture, of=curve, dark=dark)
        except (MissingPackage, NothingToDraw) as error:
            say(console, f"no picture: {error}")
        else:
            say(console, f"picture: {picture}")
    if page is not None:
        try:
            report(result, page)
        except MissingPackage as error:
            say(console, f"no report: {error}")
        else:
            say(console, f"report: {page}; open it in a browser")


def _exit_if_failed(result: Race) -> None:
    if result.failures:
        sys.exit(1)


def resume_the_race(
    console: Console,
    folder: str,
    add: Sequence[str],
    seeds: int | None,
    limits: Mapping[str, Any],
    given: Mapping[str, Any],
) -> None:
    """Run what is left of a race, and tell of all of it; ``given``: the other options of ``resume``."""
    from anyk.problems import from_function
    from anyk.runs import resume_race
    from anyk.runs.races.race_folder import read_race

    config = read_race(Path(folder))
    join_cluster(config.cluster)
    callbacks = callbacks_again(folder, config, given["callbacks"], trust=given["trust"])
    made = None if given["problem"] is None else from_function(given["problem"])
    before = _saying(console, given["quiet"])
    try:
        with listening(console, callbacks, given) as heard:
            result = resume_race(
                folder,
                problem=made,
                trust=given["trust"],
                add=add,
                seeds=seeds,
                callbacks=heard,
                before=before,
                tell=warn,
                **limits,
            )
    except KeyboardInterrupt:
        _race_interrupted(console, Path(folder))
    page = Path(folder) / PAGE
    tell_race(console, result, Path(folder) / "race.png", "metric", page=page if page.exists() else None)
    write_json(result.report(), given["json_file"])
    _exit_if_failed(result)
