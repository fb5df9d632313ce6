"""The command that races strategies, and the output of races."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from anyk.base import values_of
from anyk.cli.arguments import new_folder, resume_arguments, training_arguments
from anyk.cli.fields import FLEET, as_field, is_given, option, options_class, takes
from anyk.cli.group import main
from anyk.cli.options import (
    ResumeOptions,
    TrainingOptions,
    config_option,
    curve_option,
    picture_option,
    plugin_option,
    table_option,
)
from anyk.cli.output import check_page, check_picture, check_table, say, warn, write_json
from anyk.cli.settings_report import show_settings
from anyk.problems import rows_of

if TYPE_CHECKING:
    from anyk.optimizers import Optimizer
    from anyk.problems import Problem
    from anyk.runs import Race

# a race without options: long enough to show differences, short enough to wait for
_DELAYS, _TARGET, _SECONDS = "exp:mean=0.2", 0.93, 40.0

PAGE = "report.html"  # in the folder of a race


@options_class
class _Strategies:
    strategies: tuple[str, ...] = option(
        "--strategy",
        multiple=True,
        metavar="SPEC",
        help="A strategy; repeat for each.  [default, for 30 workers: uncoded, frc:load=3, agc:load=3,wait=11, "
        "async:lr_scale=0.05]",
    )
    seeds: int = option(
        default=1,
        help="Number of runs of each strategy, with the seeds --seed, --seed + 1, ….",
    )
    picture: str | None = as_field(picture_option("Picture of the race; race.png in the race's folder if left out."))
    page: str | None = option(
        metavar="FILE.html|none",
        help="Page about the race; report.html in the race's folder if left out; none: no page.",
    )
    table: str | None = as_field(table_option)
    curve: Literal["metric", "loss"] = as_field(curve_option)


@options_class
class RaceOptions(TrainingOptions, _Strategies):
    """The options of ``race``."""


@main.command()
@config_option
@plugin_option
@takes(RaceOptions)
def race(options: RaceOptions) -> None:
    """Train with several strategies, one after another, on the same data with the same stragglers.

    With no options: scikit-learn's digits, 30 processes, exponential delays with a mean of 0.2 s, until 93 % of the
    held-out digits are classified correctly. Speed-ups are over 'uncoded' (else over the first strategy): by the time
    to the target; without one, by the time to the lowest loss that both reached; with several models, by seconds a job.
    With several seeds: medians, least and largest values, and speed-ups over the run of 'uncoded' with the same seed.

    \b
    anyk show runs/race-1              the table again; --picture draws it again
    anyk resume runs/race-1            the rest of an interrupted race
    anyk resume runs/race-1 --add SPEC     adds a strategy
    anyk resume runs/race-1 --seeds 5      trains with further seeds
    """
    from anyk.runs.api import charged, racers

    strategies = options.strategies or racers(options.workers, options.models)
    options = replace(options, strategies=strategies)
    changed = any(map(is_given, ("steps", "seconds", "target", "delays", "data", "problem")))
    if not changed:
        options = replace(options, delays=_DELAYS, target=_TARGET, seconds=_SECONDS)
    if options.settings:
        show_settings(options)
        return
    from anyk.base import AtLeastOne, check_value
    from anyk.runs import race as run_race

    check_value(options.seeds, AtLeastOne, "seeds")
    folder = new_folder(options, "race")
    check_picture(options.picture, folder=folder)
    check_page(options.page, folder=folder)
    check_table(options.table, folder=folder)
    with training_arguments(folder, options) as (problems, arguments):
        optimizer = options.make_optimizer(problems[0])
        cluster = options.cluster if changed else charged(options.cluster, problems[0], workers=options.workers.most)
        head = [_head(options, problems[0], optimizer)]
        if cluster != options.cluster:
            head.append(f"cluster {cluster}: what computing a partition takes here, on a core for each worker")
        result = run_race(
            cluster=cluster,
            optimizer=optimizer,
            before=_announce(options.quiet, head),
            **arguments,
            **values_of(options, "strategies", "seeds", "workers", *FLEET),
        )
    page = None if options.page == "none" else Path(options.page or folder / PAGE)
    picture = Path(options.picture) if options.picture else folder / "race.png"
    tell_race(result, picture, options.curve, page=page, table=options.table)
    write_json(result.report())
    if result.failures:
        sys.exit(1)


def _head(options: RaceOptions, problem: Problem, optimizer: Optimizer) -> str:
    """Return a line on data, workers, delays and optimiser."""
    data = options.problem or f"{options.data}, {options.model}"
    seeds = f", {options.seeds} seeds" * (options.seeds > 1)
    return (
        f"{data}: {rows_of(problem)}, {problem.dimension:,} parameters; {options.workers} workers, delays "
        f"{options.delays}, {optimizer.spec}, learning rate {optimizer.rate.spec}{seeds}"
    )


def _announce(quiet: bool, head: list[str]) -> Callable[[str], None]:
    """Return a function that prints the title of each run before it starts, and the head before the first."""

    def tell(title: str) -> None:
        say(*head)
        head.clear()
        if not quiet:
            say(f"· {title}")

    return tell


def tell_race(
    result: Race,
    picture: Path | None,
    curve: Any,
    *,
    dark: bool = False,
    page: Path | None = None,
    table: str | None = None,
) -> None:
    """Print a race's table and remarks, and make picture and page, or print how to install a missing package."""
    from anyk.base import MissingPackage
    from anyk.views import MEAN_NOTE, NothingToDraw, mean_table, plot, race_notes, race_table, report, save_race_table

    if not result.runs:
        say("nothing has begun")
        return
    say(race_table(result.runs), *race_notes(result.runs))
    if result.seeds > 1:
        say("", mean_table(result.runs), MEAN_NOTE)
    for title, reason in result.failures.items():
        say(f"{title} failed: {reason}")
    if picture is not None:
        try:
            plot(result.runs, picture, of=curve, dark=dark)
        except (MissingPackage, NothingToDraw) as error:
            say(f"no picture: {error}")
        else:
            say(f"picture: {picture}")
    if table is not None:
        save_race_table(result.runs, table)
        say(f"table: {table}")
    if page is not None:
        try:
            report(result, page)
        except MissingPackage as error:
            say(f"no report: {error}")
        else:
            say(f"report: {page}; open it in a browser")


def resume_the_race(folder: Path, options: ResumeOptions) -> None:
    """Run the rest of a race, and print the results of the whole race."""
    from anyk.runs import resume_race
    from anyk.runs.api import read_race

    before = _announce(options.quiet, [])
    with resume_arguments(folder, read_race(folder), options) as arguments:
        result = resume_race(folder, add=options.add, seeds=options.seeds, before=before, tell=warn, **arguments)
    page = folder / PAGE
    tell_race(result, folder / "race.png", "metric", page=page if page.exists() else None)
    write_json(result.report())
    if result.failures:
        sys.exit(1)
