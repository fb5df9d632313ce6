"""Options that commands share, and what becomes of them."""

from __future__ import annotations

import contextlib
import os
import sys
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from anyk.checks import check
from anyk.cli.fields import Command, as_field, option
from anyk.cli.output import check_file, check_picture, exit_interrupted
from anyk.errors import BadInput, describe_error
from anyk.named import names_in_folder, plugged_in
from anyk.tables import reading

if TYPE_CHECKING:
    from rich.console import Console

    from anyk.optimizers import Optimizer
    from anyk.problems import Problem
    from anyk.runs.callbacks import Callbacks
    from anyk.runs.folder.config import SharedConfig


def _read_config(ctx: click.Context, _: click.Parameter, file: str | None) -> str | None:
    """Take defaults from a TOML file whose keys are the options' names."""
    if file is None:
        return None
    path = Path(file)
    with reading(path, "a config file"):  # a name may be too long, a file not ours to read, tables nested too deep
        if not path.is_file():
            raise BadInput(f"no config file '{file}'")
        try:
            values = tomllib.loads(path.read_text(encoding="utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise BadInput(f"the config file '{file}' is not TOML: {error}") from None
    options = {_option(parameter): parameter for parameter in ctx.command.params if parameter.name != "config"}
    defaults: dict[str, Any] = {}
    for given, value in values.items():
        key = given.replace("_", "-")
        if key not in options:
            near = get_close_matches(key, options, n=1)
            hint = f"did you mean '{near[0]}'?" if near else f"keys: {', '.join(sorted(options))}"
            raise BadInput(f"the config file '{file}' has an unknown key '{given}'; {hint}")
        parameter = options[key]
        defaults[str(parameter.name)] = check(value, _kind(parameter), f"{given} in the config file '{file}'")
    ctx.default_map = {**(ctx.default_map or {}), **defaults}
    return file


def _option(parameter: click.Parameter) -> str:
    """Return the name of a parameter on the command line, without dashes."""
    return max(parameter.opts, key=len).lstrip("-")


def _kind(parameter: click.Parameter) -> Any:
    """The type of an option's value in a config file."""
    kinds: dict[str, Any] = {"integer": int, "float": float, "boolean": bool}
    if getattr(parameter, "multiple", False):
        return tuple[str, ...]
    if "NUMBER" in str(parameter.metavar):
        return float | str
    return kinds.get(parameter.type.name, str)


PLUGINS = "anyk.plugins"  # where a click context keeps the files that were given


def _load_plugins(ctx: click.Context, _: click.Parameter, files: tuple[str, ...]) -> tuple[str, ...]:
    """Run Python files that register codes, strategies, delay models or data sets of their own."""
    ctx.meta[PLUGINS] = (*ctx.meta.get(PLUGINS, ()), *files)
    for file in files:
        path = Path(file)
        with reading(path, "a plug-in"):
            if not path.is_file():
                raise BadInput(f"no plug-in file '{file}'")
        if path.suffix != ".py":
            raise BadInput(f"the plug-in '{file}' is not a Python file")
        try:
            ctx.with_resource(plugged_in(path))
        except BadInput:
            raise
        except (Exception, SystemExit) as error:  # a script may end itself when it is imported
            raise BadInput(f"the plug-in '{file}' failed: {describe_error(error)}") from None
    return files


def _ranks_of_mpiexec() -> tuple[int, int] | None:
    """Rank and number of ranks where mpiexec has started several, else None."""
    for rank, size in (("PMI_RANK", "PMI_SIZE"), ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")):
        texts = os.environ.get(rank, ""), os.environ.get(size, "")
        if texts[0].isdigit() and texts[1].isdigit() and int(texts[1]) > 1:
            return int(texts[0]), int(texts[1])
    return None


def join_cluster(spec: str) -> str:
    """Under mpiexec every rank runs the command; all but the first become workers here and do not come back.

    With any other cluster each rank would begin a run of its own: the first says so, and all end.
    """
    ranks = _ranks_of_mpiexec()
    if ranks is not None and spec.partition(":")[0] != "mpi":
        rank, size = ranks
        if rank:
            sys.exit(2)
        raise BadInput(
            f"mpiexec started this command {size} times, and cluster '{spec}' would run it in each; give "
            "--cluster mpi, or start it without mpiexec"
        )
    if spec.partition(":")[0] == "mpi":
        from anyk.clusters.mpi import join

        join()
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
    help="Python file that registers codes, strategies, delay laws, clusters or data sets; may be repeated.",
)


def _checked_evaluate(_: click.Context, __: click.Parameter, text: str | None) -> str | None:
    if text is not None:
        from anyk.runs.evaluation.settings import read_evaluate

        read_evaluate(text)  # complain before anything is loaded
    return text


evaluate_option = click.option(
    "--evaluate",
    metavar="SPEC",
    callback=_checked_evaluate,
    help="none, or every=10 (steps), seconds=5 (between two), samples=1000, on=train or on=held_out (the metric "
    "only), where=aside (by a process of its own) or where=workers "
    "(the loss, by those who hold the data); default: some hundred versions.",
)
quiet_option = click.option("--quiet", is_flag=True, help="Show no progress.")
_MAKERS = ("train", "race")  # commands that make a folder, into which a file may go; they check themselves


def _checked_json(ctx: click.Context, _: click.Parameter, file: str | None) -> str | None:
    if ctx.command.name not in _MAKERS:
        check_file(file, "file")
    return file


def _checked_picture(ctx: click.Context, _: click.Parameter, file: str | None) -> str | None:
    if ctx.command.name not in _MAKERS:
        check_picture(file)
    return file


json_option = click.option(
    "--json",
    "json_file",
    metavar="FILE",
    callback=_checked_json,
    help="Write the result as JSON ('-': to standard output).",
)


def picture_option(text: str) -> Callable[[Command], Command]:
    """``--picture``; a file that cannot be written is found before the work."""
    return click.option("--picture", metavar="FILE", callback=_checked_picture, help=text)


@contextlib.contextmanager
def listening(
    console: Console, callbacks: Callbacks, options: TrainingOptions | ResumeOptions, folder: Path
) -> Iterator[Callbacks]:
    """Yield a run's callbacks with those of the options: progress on the terminal, metrics, a copy of the log.

    If the run is interrupted, say how to resume the folder, and exit.
    """
    from anyk.callbacks import Mirror
    from anyk.views import Progress
    from anyk.views.exports.prometheus import Metrics, address

    try:
        with contextlib.ExitStack() as opened:
            others: list[Any] = [] if options.mirror is None else [Mirror(options.mirror)]
            if options.metrics is not None:
                metrics = opened.enter_context(Metrics(*address(options.metrics)))
                click.echo(f"metrics: {metrics.url}", err=True)
                others.append(metrics)
            progress = opened.enter_context(Progress(console, quiet=options.quiet))
            yield callbacks.also(progress, *others)
    except KeyboardInterrupt:
        exit_interrupted(folder, console)


callback_option = click.option(
    "--callback",
    "callbacks",
    multiple=True,
    metavar="SPEC",
    help="early-stopping:patience=5, checkpoint:folder=…,best=loss, log, …, see 'anyk callbacks'; or FILE.py:FUNCTION, "
    "which makes one of yours. May be repeated.",
)


metrics_option = click.option(
    "--metrics",
    metavar="PORT",
    help="Serve metrics for Prometheus on this port ([HOST:]PORT), for this machine only "
    "unless HOST says otherwise; 0 takes a free port.",
)
mirror_option = click.option(
    "--mirror",
    metavar="FOLDER",
    help="Copy the run's log into this folder every 5 seconds, for 'anyk watch' on other machines.",
)


unit_option = click.option(
    "--unit",
    type=click.Choice(["s", "ms", "us"]),
    help="Unit of the times; default: as the columns' names say, else s.",
)
curve_option = click.option(
    "--curve",
    type=click.Choice(["metric", "loss"]),
    default="metric",
    show_default=True,
    help="What the picture shows against seconds.",
)
problem_again = click.option(
    "--problem",
    metavar="FILE.py:FUNCTION",
    help="The function that makes the run's problem; name it again, as code is not run just because a folder names it.",
)
trust_option = click.option(
    "--trust",
    is_flag=True,
    help="Run the code that the folder names, if its SHA-256 is unchanged; only for your own folders.",
)


@dataclass(frozen=True, kw_only=True)
class ProblemOptions:
    """The options that specify the problem, its optimiser and its evaluation."""

    data: str | None = option(metavar="SPEC", help="Data set; see 'anyk data'.")
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
        help="dirichlet:alpha=0.3,seed=1 spreads rows over partitions unevenly by label; default: as they come.",
    )
    l2: float | None = option(type=float, help="L2 regularisation; default: 1 / training rows.")
    optimizer: str | None = option(
        metavar="SPEC",
        help="gd, momentum, nesterov, accelerated, adam, adamw, torch:AdamW, optax:adam or clip:of=adam,norm=1; "
        "default: nesterov (on the papers' data sets: accelerated).",
    )
    lr: str | None = option(
        metavar="NUMBER|SPEC",
        help="Learning rate, or exponential:start=…,decay=… or inverse:…; default: 1 / smoothness (on the papers' data "
        "sets: theirs).",
    )
    evaluate: str | None = as_field(evaluate_option)

    def make_problem(self) -> Problem:
        """Return the problem that the options specify."""
        from click.core import ParameterSource

        from anyk.problems import from_data, from_function

        if self.problem is None:
            tell = partial(click.echo, err=True)
            return from_data(
                str(self.data), file=self.data_file, l2=self.l2, model=self.model, split=self.split, progress=tell
            )
        source = click.get_current_context().get_parameter_source
        for name in ("data", "data_file", "model", "split", "l2"):
            if source(name) != ParameterSource.DEFAULT:
                raise BadInput(f"--problem brings its own data and model; leave --{name.replace('_', '-')} out")
        return from_function(self.problem)

    def make_optimizer(self, problem: Problem) -> Optimizer:
        """Return the optimiser that the options specify, with the defaults that suit the data."""
        from anyk.runs import usual_optimizer

        return usual_optimizer(problem, self.optimizer, self.lr)


@dataclass(frozen=True, kw_only=True)
class TrainingOptions(ProblemOptions):
    """The options of ``train`` and ``race``."""

    data: str = option(default="digits", metavar="SPEC", help="Data set; see 'anyk data'.")
    models: int = option(
        default=1, help="Number of models trained at once, in turn (two-layer networks start from different weights)."
    )
    workers: int = option(default=30, help="Number of workers, n.")
    delays: str = option(metavar="SPEC", default="none", help="Injected delays; see 'anyk delays'.")
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
        help="processes, simulated, ray or mpi; see 'anyk cluster'.",
    )
    steps: int | None = option(type=int, help="Stop after this many steps.")
    seconds: float | None = option(type=float, help="Stop after this many seconds of the run's clock.")
    target: float | None = option(type=float, help="Stop when the metric reaches this value.")
    callbacks: tuple[str, ...] = as_field(callback_option)
    seed: int = option(default=0, help="Seed of the delays.")
    metrics: str | None = as_field(metrics_option)
    mirror: str | None = as_field(mirror_option)
    out: str | None = option(metavar="FOLDER", help="Folder for the run; default: a new one under runs/.")
    json_file: str | None = as_field(json_option)
    quiet: bool = as_field(quiet_option)
    settings: bool = option(is_flag=True, help="Show every setting and where it comes from, and exit.")

    def make_problems(self) -> list[Problem]:
        """Return the problem of each model: the same, but for a random start of its own."""
        if self.models < 1:
            raise BadInput(f"models must be at least 1, got {self.models}")
        problem = self.make_problem()
        return [problem, *(_variant(problem, number) for number in range(1, self.models))]


@dataclass(frozen=True, kw_only=True)
class ResumeOptions:
    """The options of ``resume``."""

    steps: int | None = option(type=int, help="New limit on steps, counted from the beginning.")
    seconds: float | None = option(type=float, help="New limit on the run's clock.")
    target: float | None = option(type=float, help="New target of the metric.")
    problem: str | None = as_field(problem_again)
    trust: bool = as_field(trust_option)
    evaluate: str | None = as_field(evaluate_option)
    callbacks: tuple[str, ...] = as_field(callback_option)
    metrics: str | None = as_field(metrics_option)
    mirror: str | None = as_field(mirror_option)
    add: tuple[str, ...] = option(
        multiple=True, metavar="SPEC", help="For a race: a further strategy; may be repeated."
    )
    seeds: int | None = option(type=int, help="For a race: train with further seeds, until there are so many.")
    quiet: bool = as_field(quiet_option)
    json_file: str | None = as_field(json_option)


def _variant(problem: Any, number: int) -> Any:
    """Return the same problem with a start of its own, if it has a random one; the data is shared."""
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


def make_callbacks(specs: Sequence[str]) -> Callbacks:
    """Return the callbacks that the options name; a logger without handlers writes to standard error."""
    import logging

    from anyk.callbacks.named import named_callbacks

    callbacks = named_callbacks(specs, ())
    for logger in (each.logger for each in callbacks if isinstance(getattr(each, "logger", None), logging.Logger)):
        if not logger.hasHandlers():
            handler = logging.StreamHandler()
            handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
            logger.addHandler(handler)
            logger.setLevel(logging.INFO)
    return callbacks


@contextlib.contextmanager
def resuming(console: Console, folder: Path, config: SharedConfig, options: ResumeOptions) -> Iterator[dict[str, Any]]:
    """Yield the arguments with which every kind of folder is resumed.

    Callbacks are those given now, or else those that the folder has stored.
    """
    from anyk.problems import from_function

    join_cluster(config.cluster)
    if options.callbacks:
        callbacks = make_callbacks(options.callbacks)
    else:
        with names_in_folder(folder, config.digests.code, trust=options.trust):
            callbacks = make_callbacks(config.callbacks)
    problem = None if options.problem is None else from_function(options.problem)
    with listening(console, callbacks, options, folder) as shown:
        yield {
            "problem": problem,
            "trust": options.trust,
            "callbacks": shown,
            "steps": options.steps,
            "seconds": options.seconds,
            "target": options.target,
        }


def tell_delays(spec: str, workers: int) -> None:
    """Print to standard error how a trace was understood."""
    from anyk.delays import Trace, parse

    model = parse(spec)
    if isinstance(model, Trace):
        model.check_fleet(workers)
        click.echo(model.summary_for(workers), err=True)


def free_folder(kind: str) -> Path:
    """Return the first folder runs/KIND-1, runs/KIND-2, … that does not exist yet."""
    number = 1
    while (folder := Path("runs") / f"{kind}-{number}").exists():
        number += 1
    return folder


def new_folder(options: TrainingOptions, kind: str) -> Path:
    """Return the folder that --out names, or else make a free one under runs/, which no other process can take.

    If the command leaves it empty, it is removed in the end. Raise if --json names a file that cannot be written.
    """
    out = options.out
    folder = Path(out) if out else click.get_current_context().with_resource(_claimed_folder(kind))
    check_file(options.json_file, "file", folder=folder)
    return folder


@contextlib.contextmanager
def _claimed_folder(kind: str) -> Iterator[Path]:
    while True:
        folder = free_folder(kind)
        try:
            folder.mkdir(parents=True)
            break
        except FileExistsError:
            continue  # another process was faster
        except OSError as error:
            raise BadInput(f"the folder '{folder}' cannot be made ({error.strerror})") from None
    try:
        yield folder
    finally:
        with contextlib.suppress(OSError):  # only empty folders can be removed in this way
            folder.rmdir()
            folder.parent.rmdir()


def show_settings(ctx: click.Context, options: TrainingOptions) -> None:
    """Print every setting and where it comes from."""
    from anyk.strategies import completed, strategy

    sources = {
        "COMMANDLINE": "command line",
        "ENVIRONMENT": "environment",
        "DEFAULT_MAP": "config file",
        "DEFAULT": "default",
    }
    resolved = _resolved(options, str(ctx.command.name))
    for parameter in ctx.command.params:
        name = str(parameter.name)
        if name not in ctx.params or name == "settings":
            continue
        source, value = ctx.get_parameter_source(name), getattr(options, name)
        if name in resolved:
            text = resolved[name]
        elif value is None or value == ():
            text = "none"
        elif name in ("strategy", "strategies"):
            specs = (value,) if isinstance(value, str) else value
            text = ", ".join(completed(spec, strategy(spec, workers=options.workers)) for spec in specs)
        else:
            text = ", ".join(value) if isinstance(value, tuple) else str(value)
        click.echo(f"{_option(parameter):<14} {text:<44} {sources.get(source.name if source else '', '')}")


def _resolved(options: TrainingOptions, command: str) -> dict[str, str]:
    """Return the values of options that are given in short or not at all, as ``run.toml`` stores them."""
    from anyk.clusters import cluster
    from anyk.optimizers import optimizer as build
    from anyk.runs import Run, usual_rule
    from anyk.runs.limits import LIMIT, STEPS

    values = vars(options)
    fleet = cluster(
        options.cluster, workers=options.workers, delays=options.delays, communication=options.communication
    )
    resolved = {"cluster": fleet.spec, "delays": fleet.delays.spec, "communication": fleet.communication.spec}
    method, rate = usual_rule("" if options.problem else options.data, options.optimizer)
    rate = rate if options.lr is None else options.lr
    l2 = "the problem's own" if options.problem else "1 / training rows"
    if (begin := values.get("begin")) and options.optimizer is None and options.lr is None:
        with Run.open(begin) as earlier:
            resolved |= {"optimizer": earlier.config.optimizer, "lr": earlier.config.lr}
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
        "steps": str(steps) if options.seconds is None else "no limit",
        "seconds": "no limit",
        "out": str(free_folder(command)),
        "evaluate": "some hundred versions",
        "picture": "race.png in the folder",
        "page": "report.html in the folder",
    }
    if str(values.get("strategy")).partition(":")[0] == "auto":
        resolved["strategy"] = str(values.get("strategy"))
    return resolved | {name: text for name, text in defaults.items() if values.get(name) is None}
