"""``anyk train --strategy auto``: measured, planned, checked, and planned again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anyk.cli.options import (
    callbacks_again,
    join_cluster,
    listening,
    make_callbacks,
    make_optimizer,
    make_problem,
    new_folder,
    tell_delays,
)
from anyk.cli.output import check_file, exit_interrupted, people, say, write_json
from anyk.cli.races import variant
from anyk.errors import BadInput

if TYPE_CHECKING:
    from rich.console import Console

    from anyk.fleet import Auto

MODE = "auto"


def is_auto(strategy: str) -> bool:
    """Whether a strategy's spec asks for the mode."""
    return strategy.partition(":")[0] == MODE


def is_auto_folder(folder: str) -> bool:
    """Whether a folder is that of a training in this mode."""
    return (Path(folder) / f"{MODE}.toml").is_file()


def train_in_parts(spec: str, models: int, begin: str | None, given: dict[str, Any]) -> None:
    """Train, and tell what was measured, planned, missed and reached."""
    from anyk.fleet import train_auto
    from anyk.fleet.auto.training import modes

    settings = modes.build(spec)
    if begin is not None:
        raise BadInput(f"'{MODE}' starts a new run; leave out --from, or name a strategy")
    folder = new_folder(given["out"], "train")
    check_file(given["json_file"], "file", folder=folder)
    callbacks = make_callbacks(given["callbacks"], ())
    problem = make_problem(given)
    tell_delays(given["delays"], given["workers"])
    console = people(given["json_file"])
    names = ("workers", "cluster", "delays", "communication", "seed", "steps", "seconds", "target")
    try:
        with listening(console, callbacks, given) as heard:
            found = train_auto(
                [problem, *(variant(problem, i) for i in range(1, models))] if models > 1 else problem,
                optimizer=make_optimizer(problem, given),
                out=folder,
                callbacks=heard,
                tell=lambda text: say(console, text),
                evaluate=given["evaluate"] or "",
                **asdict(settings),
                **{name: given[name] for name in names},
            )
    except KeyboardInterrupt:
        exit_interrupted(folder)
    _tell(console, found, given["json_file"])


def resume_the_parts(console: Console, folder: str, limits: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Go on with such a training, and tell of all of it; ``given``: the other options of ``resume``."""
    from anyk.fleet import resume_auto
    from anyk.fleet.auto.parts import read_auto
    from anyk.problems import from_function

    config = read_auto(Path(folder))
    join_cluster(config.cluster)
    callbacks = callbacks_again(folder, config, given["callbacks"], trust=given["trust"])
    made = None if given["problem"] is None else from_function(given["problem"])
    try:
        with listening(console, callbacks, given) as heard:
            found = resume_auto(
                folder,
                problem=made,
                trust=given["trust"],
                callbacks=heard,
                tell=lambda text: say(console, text),
                **limits,
            )
    except KeyboardInterrupt:
        exit_interrupted(folder)
    _tell(console, found, given["json_file"])


def _tell(console: Console, found: Auto, json_file: str | None) -> None:
    """The parts, whether they kept their promises, and what came of it."""
    from anyk.runs.run import setup
    from anyk.views.fleet_tables import parts_table

    say(console, parts_table(found.parts))
    for part in found.parts:
        if part.checked is not None:
            say(console, f"steps {part.run.begun} to {part.run.steps}: {part.checked.sentence}")
    value = found.run.metric
    metric = f", {value['name']} {value['value']:.4g}" if value else ""
    say(console, f"{found.run.steps} steps in {found.seconds:.4g} s, loss {found.run.loss:.4g}{metric}")
    say(console, f"cannot continue a run, and were left out: {', '.join(found.left_out)}", f"run: {found.run.path}")
    write_json(setup(found.run.config) | found.report(), json_file)
