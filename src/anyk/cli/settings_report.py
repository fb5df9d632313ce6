"""The output of ``--settings``: every setting of a command, and its source."""

from __future__ import annotations

import click

from anyk.base import values_of
from anyk.cli.fields import FLEET, option_name
from anyk.cli.options import TrainingOptions
from anyk.cli.output import free_folder


def show_settings(options: TrainingOptions) -> None:
    """Print the value of every setting and its source."""
    from anyk.strategies import complete_spec, strategy

    ctx = click.get_current_context()
    sources = {"COMMANDLINE": "command line", "DEFAULT_MAP": "config file"}
    resolved = _resolved(options, str(ctx.command.name))
    for parameter in ctx.command.params:
        name = str(parameter.name)
        if name not in ctx.params or name == "settings":
            continue
        source, value = ctx.get_parameter_source(name), getattr(options, name)
        if name in resolved:
            setting = resolved[name]
        elif value is None or value == ():
            setting = "none"
        elif name in ("strategy", "strategies"):
            specs = (value,) if isinstance(value, str) else value
            setting = ", ".join(complete_spec(spec, strategy(spec, workers=options.workers)) for spec in specs)
        else:
            setting = ", ".join(value) if isinstance(value, tuple) else str(value)
        origin = source.name if source else ""
        click.echo(f"{option_name(parameter):<14} {setting:<44} {sources.get(origin, origin.lower())}")


def _resolved(options: TrainingOptions, command: str) -> dict[str, str]:
    """Return the values of options that are omitted or abbreviated, as ``run.toml`` stores them."""
    from anyk.clusters import cluster
    from anyk.optimizers import optimizer as build
    from anyk.optimizers import split_rate
    from anyk.runs import Run, usual_rule
    from anyk.runs.api import LIMIT, STEPS

    values = vars(options)
    fleet = cluster(options.cluster, workers=options.workers.most, **values_of(options, *FLEET))
    resolved = {"cluster": fleet.spec, "delays": fleet.delays.spec, "communication": fleet.communication.spec}
    named, lr = (None, options.lr) if options.optimizer is None else split_rate(options.optimizer, options.lr)
    method, rate = usual_rule("" if options.problem else options.data, named)
    rate = rate if lr is None else lr
    l2 = "the problem's own" if options.problem else "1 / training rows"
    if (begin := values.get("begin")) and options.optimizer is None:
        with Run.open(begin) as earlier:
            resolved |= {"optimizer": earlier.config.optimizer, "lr": options.lr or earlier.config.lr}
    else:
        if rate is None:  # it follows from the data
            problem = options.make_problem()
            l2, optimizer = f"{problem.l2:.6g}", options.make_optimizer(problem)
        else:
            optimizer = build(method, lr=rate)
        resolved |= {"optimizer": optimizer.spec, "lr": optimizer.rate.spec}
    steps = STEPS if options.target is None else LIMIT
    defaults = {
        "l2": l2,
        "partitions": str(options.workers.partitions or "the strategy's"),
        "steps": str(steps) if options.seconds is None else "no limit",
        "seconds": "no limit",
        "out": str(free_folder(command)),
        "evaluate": "some hundred versions",
        "picture": "race.png in the folder",
        "page": "report.html in the folder",
    }
    strategy = str(values.get("strategy"))
    if strategy.partition(":")[0] == "auto":
        resolved["strategy"] = strategy
    return resolved | {name: default for name, default in defaults.items() if values.get(name) is None}
