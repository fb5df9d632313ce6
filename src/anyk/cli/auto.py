"""``anyk train --strategy auto``, which measures, plans, checks the plan, and plans again."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from anyk.cli.fields import FLEET, LIMITS
from anyk.cli.options import (
    ResumeOptions,
    make_callbacks,
    new_folder,
    option_callbacks,
    print_trace_summary,
    resume_arguments,
    workers_or_range,
)
from anyk.cli.output import people, say, write_json
from anyk.errors import BadInput
from anyk.plain import values_of

if TYPE_CHECKING:
    from rich.console import Console

    from anyk.cli.runs import TrainOptions
    from anyk.fleet import Auto

MODE = "auto"


def is_auto(strategy: str) -> bool:
    """Return whether a strategy's spec names the mode."""
    return strategy.partition(":")[0] == MODE


def is_auto_folder(folder: str) -> bool:
    """Return whether a folder belongs to a training in this mode."""
    return (Path(folder) / f"{MODE}.toml").is_file()


def train_in_parts(options: TrainOptions) -> None:
    """Train in parts, and report measurements, plans and results."""
    from anyk.fleet import train_auto
    from anyk.fleet.auto.auto_training import modes

    settings = modes.build(options.strategy)
    if options.begin is not None:
        raise BadInput(f"'{MODE}' starts a new run; leave out --from, or name a strategy")
    folder = new_folder(options, "train")
    callbacks = make_callbacks(options.callbacks)
    problems = options.make_problems()
    print_trace_summary(options.delays, options.workers)
    console = people(options.json_file)
    with option_callbacks(console, callbacks, options, folder) as all_callbacks:
        result = train_auto(
            problems if options.models > 1 else problems[0],
            cluster=options.cluster,
            optimizer=options.make_optimizer(problems[0]),
            out=folder,
            callbacks=all_callbacks,
            tell=lambda text: say(console, text),
            evaluate=options.evaluate or "",
            **asdict(settings),
            **values_of(options, *FLEET, *LIMITS, "partitions") | {"workers": workers_or_range(options.workers)},
        )
    _report(console, result, options.json_file)


def resume_the_parts(console: Console, folder: Path, options: ResumeOptions) -> None:
    """Resume a training in this mode, and report all of it."""
    from anyk.fleet import resume_auto
    from anyk.fleet.auto.parts import read_auto

    with resume_arguments(console, folder, read_auto(folder), options) as arguments:
        result = resume_auto(folder, tell=lambda text: say(console, text), **arguments)
    _report(console, result, options.json_file)


def _report(console: Console, result: Auto, json_file: str | None) -> None:
    """Print the parts, whether they kept their promises, and the result."""
    from anyk.runs.run import setup
    from anyk.views.fleet_tables import parts_table

    say(console, parts_table(result.parts))
    for part in result.parts:
        if part.checked is not None:
            say(console, f"steps {part.run.begun} to {part.run.steps}: {part.checked.sentence}")
    value = result.run.metric
    metric = f", {value['name']} {value['value']:.4g}" if value else ""
    say(console, f"{result.run.steps} steps in {result.seconds:.4g} s, loss {result.run.loss:.4g}{metric}")
    say(console, f"cannot take part, and were left out: {', '.join(result.left_out)}", f"run: {result.run.path}")
    write_json(setup(result.run.config) | result.report(), json_file)
