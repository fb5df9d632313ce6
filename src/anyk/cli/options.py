"""Options that commands share."""

from __future__ import annotations

import os
import sys
import tomllib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from anyk.base import BadInput, Spec, as_bad_input, check_value, explaining, parse_spec, plugged_in, suggest
from anyk.cli.fields import Command, as_field, is_given, option, option_name, options_class
from anyk.cli.output import JSON_FILE, check_file, check_picture, check_table
from anyk.cli.supervising import supervises
from anyk.protocol import Workers
from anyk.tables import reading

if TYPE_CHECKING:
    from anyk.optimizers import Optimizer
    from anyk.problems import Problem


def _read_config(ctx: click.Context, _: click.Parameter, file: str | None) -> str | None:
    """Read defaults from a TOML file whose keys are the options' names."""
    if file is None:
        return None
    path = Path(file)
    with reading(path, "a config file"):  # also if its name is too long or its tables are nested too deeply
        if not path.is_file():
            raise BadInput(f"no config file '{file}'")
        with as_bad_input(f"the config file '{file}' is not TOML", tomllib.TOMLDecodeError, UnicodeDecodeError):
            values = tomllib.loads(path.read_text(encoding="utf-8"))
    options = {option_name(parameter): parameter for parameter in ctx.command.params if parameter.name != "config"}
    defaults: dict[str, Any] = {}
    for name, value in values.items():
        key = name.replace("_", "-")
        if key not in options:
            hint = suggest(key, options, f"keys: {', '.join(sorted(options))}")
            raise BadInput(f"the config file '{file}' has an unknown key '{name}'; {hint}")
        parameter = options[key]
        defaults[str(parameter.name)] = check_value(value, _type_of(parameter), f"{name} in the config file '{file}'")
    ctx.default_map = {**(ctx.default_map or {}), **defaults}
    return file


def _type_of(parameter: click.Parameter) -> Any:
    """Return the type of an option's value in a config file."""
    types: dict[str, Any] = {"integer": int, "float": float, "boolean": bool}
    if isinstance(parameter, click.Option) and parameter.multiple:
        return tuple[str, ...]
    if "NUMBER" in str(parameter.metavar):
        return float | str
    if "RANGE" in str(parameter.metavar):
        return int | str
    return types.get(parameter.type.name, str)


PLUGINS = "anyk.plugins"  # the key in a click context for the files of --plugin


def _load_plugins(ctx: click.Context, _: click.Parameter, files: tuple[str, ...]) -> tuple[str, ...]:
    """Run Python files that register codes, strategies, delay models, clusters or data sets."""
    ctx.meta[PLUGINS] = (*ctx.meta.get(PLUGINS, ()), *files)
    for file in files:
        path = Path(file)
        with reading(path, "a plug-in"):
            if not path.is_file():
                raise BadInput(f"no plug-in file '{file}'")
        if path.suffix != ".py":
            raise BadInput(f"the plug-in '{file}' is not a Python file")
        with explaining(f"the plug-in '{file}' failed"):
            ctx.with_resource(plugged_in(path))
    return files


def _ranks_of_mpiexec() -> tuple[int, int] | None:
    """Return this rank and the number of ranks if mpiexec has started several processes, else None."""
    for rank, size in (("PMI_RANK", "PMI_SIZE"), ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")):
        texts = os.environ.get(rank, ""), os.environ.get(size, "")
        if texts[0].isdigit() and texts[1].isdigit() and int(texts[1]) > 1:
            return int(texts[0]), int(texts[1])
    return None


def join_cluster(spec: str) -> str:
    """Return the spec of a cluster; with ``mpi`` and ``nodes``, ranks above 0 become workers or nodes and never return.

    Under mpiexec with any other cluster each rank would start its own run: rank 0 raises BadInput, the others exit.
    """
    name, ranks = spec.partition(":")[0], _ranks_of_mpiexec()
    if ranks is not None and name != "mpi":
        rank, size = ranks
        if rank:
            sys.exit(2)
        raise BadInput(
            f"mpiexec started this command {size} times, and cluster '{spec}' would run it in each; give "
            "--cluster mpi, or start it without mpiexec"
        )
    if name == "mpi":
        from anyk.clusters import join

        join()
    elif name == "nodes" and not supervises():
        from anyk.clusters import join_nodes

        keys = parse_spec(spec)[1]
        port = keys.get("port", "0")  # what is no number is refused where the cluster is made
        join_nodes(keys.get("address", ""), int(port) if port.isdecimal() else 0)
    return spec


config_option = click.option(
    "--config",
    metavar="FILE",
    callback=_read_config,
    is_eager=True,
    expose_value=False,
    help='TOML file with defaults for these options (steps = 40, delays = "exp:mean=0.5", …).',
)
plugin_option = click.option(
    "--plugin",
    metavar="FILE.py",
    multiple=True,
    callback=_load_plugins,
    is_eager=True,
    expose_value=False,
    help="Python file that registers codes, strategies, clusters or other things of 'anyk list'; may be repeated.",
)


def read_workers(_: click.Context, __: click.Parameter, value: str | int | None) -> Workers | None:
    """Return the number or the range of workers that an option states."""
    return None if value is None else Workers.read(str(value))


def read_spec(_: click.Context, __: click.Parameter, text: str) -> Spec:
    """Return the spec that an option states."""
    return Spec(text)


def _check_evaluate(_: click.Context, __: click.Parameter, spec: str | None) -> str | None:
    if spec is not None:
        from anyk.runs.api import read_evaluate

        read_evaluate(spec)  # fail before anything is loaded
    return spec


evaluate_option = click.option(
    "--evaluate",
    metavar="SPEC",
    callback=_check_evaluate,
    help="none, or every=10 (steps), seconds=5 (between two evaluations), samples=1000, on=train or on=held_out "
    "(the metric only), where=aside (in a separate process) or where=workers (the training loss, each worker on its "
    "own data); default: a few hundred versions.",
)
quiet_option = click.option("--quiet", is_flag=True, help="Show no progress.")
_CREATE_FOLDERS = ("train", "race")  # output files may lie in the folder that they create, so they check files later


def writable(what: str) -> Callable[..., str | None]:
    """Return the callback of an option that checks an output file before the command starts."""
    by_kind = {"picture": check_picture, "table": check_table}
    check_output = by_kind.get(what) or partial(check_file, what=what)

    def callback(ctx: click.Context, _: click.Parameter, file: str | None) -> str | None:
        if ctx.command.name not in _CREATE_FOLDERS:
            check_output(file)
        return file

    return callback


def _note_json_file(ctx: click.Context, parameter: click.Parameter, file: str | None) -> str | None:
    """Check the file of --json, and store it in the context, where :func:`write_json` finds it."""
    ctx.meta[JSON_FILE] = file
    return writable("file")(ctx, parameter, file)


_json_option = partial(
    click.option,
    "--json",
    "json_file",
    metavar="FILE",
    callback=_note_json_file,
    help="Write the result as JSON ('-': to standard output).",
)
json_option = _json_option(expose_value=False)


def workers_option(default: int) -> Callable[[Command], Command]:
    """Return the option ``--workers`` of commands that do not train."""
    return click.option("--workers", default=default, help="Number of workers, n.")


def picture_option(purpose: str) -> Callable[[Command], Command]:
    """Return the option ``--picture``, which refuses a file that cannot be written before the work starts."""
    return click.option("--picture", metavar="FILE", callback=writable("picture"), help=purpose)


table_option = click.option(
    "--table",
    metavar="FILE.tex|.csv",
    callback=writable("table"),
    help="Write the results, for LaTeX or as CSV: with several seeds, means and 95 % confidence intervals.",
)


max_gb_option = click.option(
    "--max-gb",
    type=float,
    metavar="NUMBER",
    help="Largest size of an unpacked file in GB; default: 1, or 8 times the file's size.",
)
unit_option = click.option(
    "--unit",
    type=click.Choice(["s", "ms", "us", "ns"]),
    help="Unit of the times; default: the unit that the columns' names state, else s.",
)
round_option = click.option("--round", metavar="COLUMN", help="The column of a table that numbers the rounds.")
worker_option = click.option(
    "--worker",
    metavar="COLUMN",
    help="The column of a table that names the workers, or, with commas, a column of seconds for each worker.",
)
seconds_option = click.option("--seconds", metavar="COLUMN", help="The column of a table with the seconds of tasks.")
curve_option = click.option(
    "--curve",
    type=click.Choice(["metric", "loss"]),
    default="metric",
    help="The value that the picture shows against seconds.",
)
problem_option = click.option(
    "--problem",
    metavar="FILE.py:FUNCTION",
    help="The function that makes the run's problem; name it again, as code is not run just because a folder names it.",
)
trust_option = click.option(
    "--trust",
    is_flag=True,
    help="Run the code that the folder names, if its SHA-256 is unchanged; only for your own folders.",
)


@options_class
class RunOptions:
    """The options of every command that trains."""

    callbacks: tuple[str, ...] = option(
        "--callback",
        multiple=True,
        metavar="SPEC",
        help="early-stopping:patience=5, checkpoint:folder=…,best=loss, log, …, see 'anyk list callbacks'; or "
        "FILE.py:FUNCTION, which returns your own. May be repeated.",
    )
    metrics: str | None = option(
        metavar="PORT",
        help="Serve metrics for Prometheus on this port ([HOST:]PORT), for this machine only "
        "unless HOST is given; 0 takes a free port.",
    )
    mirror: str | None = option(
        metavar="FOLDER",
        help="Copy the run's log into this folder every 5 seconds, for 'anyk watch' on other machines.",
    )
    quiet: bool = as_field(quiet_option)
    json_file: str | None = as_field(_json_option())


@options_class
class ProblemOptions:
    """The options that specify the problem, its optimiser and its evaluation."""

    data: str | None = option(metavar="SPEC", help="Data set; see 'anyk list data'.")
    data_file: str | None = option(metavar="PATH", help="Local file for the data set.")
    problem: str | None = option(
        metavar="FILE.py:FUNCTION",
        help="Your function that returns the problem (or "
        "module:function), in place of --data, --model, --split and --l2.",
    )
    model: str = option(
        default="linear",
        metavar="SPEC",
        help="linear (logistic, softmax or least squares, as suits the data) or two-layer:hidden=32.",
    )
    split: str | None = option(
        metavar="SPEC",
        help="dirichlet:alpha=0.3,seed=1 spreads rows over partitions unevenly by label; default: in their order.",
    )
    l2: float | None = option(type=float, help="L2 regularisation; default: 1 / training rows.")
    optimizer: str | None = option(
        metavar="SPEC",
        help="gd, momentum, nesterov, accelerated, adam, adamw, torch:AdamW, optax:adam or clip:of=adam,norm=1, with "
        "its learning rate or without, as adam:lr=0.01; default: nesterov (on the papers' data sets: accelerated).",
    )
    lr: str | None = option(
        metavar="NUMBER|SPEC",
        help="Learning rate, or exponential:start=…,decay=… or inverse:…; default, for gradient descent with or "
        "without momentum: 1 / smoothness (on the papers' data sets: theirs).",
    )
    evaluate: str | None = as_field(evaluate_option)

    def make_problem(self) -> Problem:
        """Return the problem that the options specify."""
        from anyk.problems import from_data, from_function

        if self.problem is None:
            report = partial(click.echo, err=True)
            return from_data(
                str(self.data), file=self.data_file, l2=self.l2, model=self.model, split=self.split, progress=report
            )
        for name in ("data", "data_file", "model", "split", "l2"):
            if is_given(name):
                raise BadInput(f"--problem brings its own data and model; omit --{name.replace('_', '-')}")
        return from_function(self.problem)

    def make_optimizer(self, problem: Problem) -> Optimizer:
        """Return the optimiser that the options specify, with the defaults that suit the data."""
        from anyk.runs import usual_optimizer

        return usual_optimizer(problem, self.optimizer, self.lr)


@options_class
class TrainingOptions(ProblemOptions, RunOptions):
    """The options of ``train`` and ``race``."""

    data: str = option(default="digits", metavar="SPEC", help="Data set; see 'anyk list data'.")
    models: int = option(
        default=1, help="Number of models trained in turn (two-layer networks start from different weights)."
    )
    workers: Workers = option(
        default="30",
        metavar="N|RANGE",
        callback=read_workers,
        help="Number of workers, n, or a range such as 4..16: workers join and leave during the run.",
    )
    partitions: int | None = option(
        type=int,
        help="Number of partitions of the data for any number of workers.  [default for a range: 4 each]",
    )
    delays: str = option(metavar="SPEC", default="none", help="Injected delays; see 'anyk list delays'.")
    communication: str = option(
        metavar="SPEC",
        default="none",
        help="Communication time: a distribution as for delays, or link:latency=…,bandwidth=…,"
        "links=parallel (or serial, shared).",
    )
    cluster: str = option(
        metavar="SPEC",
        default="processes",
        is_eager=True,
        callback=lambda _, __, spec: join_cluster(spec),
        help="processes, simulated, nodes, ray or mpi; see 'anyk list clusters'.",
    )
    slices: str | None = option(
        type=click.Choice(["nodes"]),
        help="With --cluster nodes or ray: sums, models and optimiser states lie in slices at the nodes.",
    )
    steps: int | None = option(type=int, help="Stop after this many steps.")
    seconds: float | None = option(type=float, help="Stop after this many seconds of the run's clock.")
    target: float | None = option(type=float, help="Stop when the metric reaches this value.")
    seed: int = option(default=0, help="Seed of the delays.")
    out: str | None = option(
        "-o", "--out", metavar="FOLDER", help="Folder for the run; default: a new one under runs/."
    )
    settings: bool = option(is_flag=True, help="Show every setting and where it comes from, and exit.")

    def __post_init__(self) -> None:
        """Make one value of both options that concern workers, and of both that concern the cluster."""
        object.__setattr__(self, "workers", Workers.of(self.workers, self.partitions))
        if self.slices is None:
            return
        name, colon, keys = self.cluster.partition(":")
        if name not in ("nodes", "ray"):
            raise BadInput(f"--slices is an option of --cluster nodes and ray, got --cluster {self.cluster}")
        object.__setattr__(self, "cluster", f"{name}:slices={self.slices}{',' if colon else ''}{keys}")


@options_class
class ResumeOptions(RunOptions):
    """The options of ``resume``."""

    steps: int | None = option(type=int, help="New limit on steps, counted from the beginning.")
    seconds: float | None = option(type=float, help="New limit on the run's clock.")
    target: float | None = option(type=float, help="New target of the metric.")
    cluster: str | None = option(
        metavar="SPEC",
        is_eager=True,
        callback=lambda _, __, spec: spec and join_cluster(spec),
        help="Another cluster to go on with, with the same delays.",
    )
    problem: str | None = as_field(problem_option)
    trust: bool = as_field(trust_option)
    evaluate: str | None = as_field(evaluate_option)
    add: tuple[str, ...] = option(
        multiple=True, metavar="SPEC", help="For a race: a further strategy; may be repeated."
    )
    seeds: int | None = option(type=int, help="For a race: increase the number of seeds to this.")
