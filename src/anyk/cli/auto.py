"""``anyk train --strategy auto``: measured, planned, checked, and planned again."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from anyk.cli.options import make_optimizer, make_problem, new_folder, serving, tell_delays
from anyk.cli.output import check_file, exit_interrupted, people, say, write_json
from anyk.cli.races import variant
from anyk.errors import BadInput

MODE = "auto"


def is_auto(strategy: str) -> bool:
    """Whether a strategy's spec asks for the mode."""
    return strategy.partition(":")[0] == MODE


def train_in_parts(spec: str, models: int, begin: str | None, given: dict[str, Any]) -> None:
    """Train, and tell what was measured, planned, missed and reached."""
    from anyk.planning import train_auto
    from anyk.planning.auto import modes
    from anyk.reports import Progress
    from anyk.reports.fleets import parts_table
    from anyk.training.run import setup

    settings = modes.build(spec)
    if begin is not None:
        raise BadInput(f"'{MODE}' starts a new run; leave out --from, or name a strategy")
    folder = Path(given["out"]) if given["out"] else new_folder("train")
    check_file(given["json_file"], "file", folder=folder)
    problem = make_problem(given)
    tell_delays(given["delays"], given["workers"])
    console = people(given["json_file"])
    names = ("workers", "cluster", "delays", "communication", "seed", "steps", "seconds", "target")
    try:
        with serving(given["metrics"], given["mirror"]) as served, Progress(console, quiet=given["quiet"]) as progress:
            found = train_auto(
                [problem, *(variant(problem, i) for i in range(1, models))] if models > 1 else problem,
                optimizer=make_optimizer(problem, given), out=folder, callbacks=[progress, *served],
                tell=lambda text: say(console, text), evaluate=given["evaluate"] or "", **asdict(settings),
                **{name: given[name] for name in names},
            )  # fmt: skip
    except KeyboardInterrupt:
        last = max(folder.glob("*-*/run.toml"), key=lambda file: int(file.parent.name.partition("-")[0]), default=None)
        if last is not None and not last.parent.name.endswith("-measure"):
            exit_interrupted(last.parent)
        click.echo("anyk: interrupted while measuring; begin again", err=True)
        sys.exit(130)
    say(console, parts_table(found.parts))
    for part in found.parts:
        if part.checked is not None:
            say(console, f"steps {part.run.begun} to {part.run.steps}: {part.checked.sentence}")
    value = found.run.metric
    metric = f", {value['name']} {value['value']:.4g}" if value else ""
    say(console, f"{found.run.steps} steps in {found.seconds:.4g} s, loss {found.run.loss:.4g}{metric}")
    say(console, f"cannot continue a run, and were left out: {', '.join(found.left_out)}", f"run: {found.run.path}")
    write_json(setup(found.run.config) | found.report(), given["json_file"])
