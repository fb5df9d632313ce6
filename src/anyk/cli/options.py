"""Options that commands share, and what becomes of them."""

from __future__ import annotations

import contextlib
import os
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from anyk.checks import check
from anyk.cli.output import check_file, check_picture
from anyk.errors import BadInput, told
from anyk.named import names_in_folder, plugged_in
from anyk.tables import reading

if TYPE_CHECKING:
    from rich.console import Console

    from anyk.optimizers import Optimizer
    from anyk.problems import Problem
    from anyk.runs.callbacks import Callbacks
    from anyk.runs.folder.config import SharedConfig

Command = TypeVar("Command", bound=Callable[..., Any])


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
    known = {_option(parameter): parameter for parameter in ctx.command.params if parameter.name != "config"}
    defaults: dict[str, Any] = {}
    for given, value in values.items():
        key = given.replace("_", "-")
        if key not in known:
            near = get_close_matches(key, known, n=1)
            hint = f"did you mean '{near[0]}'?" if near else f"keys: {', '.join(sorted(known))}"
            raise BadInput(f"the config file '{file}' has an unknown key '{given}'; {hint}")
        parameter = known[key]
        defaults[str(parameter.name)] = check(value, _kind(parameter), f"{given} in the config file '{file}'")
    ctx.default_map = {**(ctx.default_map or {}), **defaults}
    return file


def _option(parameter: click.Parameter) -> str:
    """What a parameter is called on the command line, without dashes."""
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
            raise BadInput(f"the plug-in '{file}' failed: {told(error)}") from None
    return files


def _ranks_of_mpiexec() -> tuple[int, int] | None:
    """Rank and number of ranks where mpiexec has started several, else None."""
    for rank, size in (("PMI_RANK", "PMI_SIZE"), ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")):
        found = os.environ.get(rank, ""), os.environ.get(size, "")
        if found[0].isdigit() and found[1].isdigit() and int(found[1]) > 1:
            return int(found[0]), int(found[1])
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
def listening(console: Console, callbacks: Callbacks, given: Mapping[str, Any]) -> Iterator[Callbacks]:
    """A run's callbacks with those that the options ask for: progress on the terminal, metrics, a copy of the log."""
    from anyk.callbacks import Mirror
    from anyk.views import Progress
    from anyk.views.exports.prometheus import Metrics, address

    with contextlib.ExitStack() as opened:
        asked: list[Any] = [] if given["mirror"] is None else [Mirror(given["mirror"])]
        if given["metrics"] is not None:
            metrics = opened.enter_context(Metrics(*address(given["metrics"])))
            click.echo(f"metrics: {metrics.url}", err=True)
            asked.append(metrics)
        progress = opened.enter_context(Progress(console, quiet=given["quiet"]))
        yield callbacks.also(progress, *asked)


callback_option = click.option(
    "--callback",
    "callbacks",
    multiple=True,
    metavar="SPEC",
    help="early-stopping:patience=5, checkpoint:folder=…,best=loss, log, …, see 'anyk callbacks'; or FILE.py:FUNCTION, "
    "which makes one of yours. May be repeated.",
)


def make_callbacks(specs: Sequence[str], others: Sequence[Any]) -> Callbacks:
    """The callbacks that the options ask for, besides others; where nobody listens to their logger, it is shown."""
    import logging

    from anyk.callbacks.named import named_callbacks

    made = named_callbacks(specs, others)
    for logger in (one.logger for one in made if isinstance(getattr(one, "logger", None), logging.Logger)):
        if not logger.hasHandlers():
            handler = logging.StreamHandler()
            handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
            logger.addHandler(handler)
            logger.setLevel(logging.INFO)
    return made


def callbacks_again(folder: str, config: SharedConfig, given: Sequence[str], *, trust: bool) -> Callbacks:
    """Return the callbacks given now, or else those that a run or race has stored."""
    if given:
        return make_callbacks(given, ())
    with names_in_folder(Path(folder), config.digests.code, trust=trust):
        return make_callbacks(config.callbacks, ())


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


optimizer_option = click.option(
    "--optimizer",
    metavar="SPEC",
    help="gd, momentum, nesterov, accelerated, adam, adamw, torch:AdamW, optax:adam or clip:of=adam,norm=1; default: "
    "nesterov (on the papers' data sets: accelerated).",
)
rate_option = click.option(
    "--lr",
    metavar="NUMBER|SPEC",
    help="Learning rate, or exponential:start=…,decay=… or inverse:…; default: 1 / smoothness (on the papers' data "
    "sets: theirs).",
)


def problem_options(*, data: str | None) -> list[Callable[[Command], Command]]:
    """The options that say what is trained; ``data``: by default."""
    return [
        click.option(
            "--data", default=data, show_default=data is not None, metavar="SPEC", help="Data set; see 'anyk data'."
        ),
        click.option("--data-file", metavar="PATH", help="Local file for the data set."),
        click.option(
            "--problem",
            metavar="FILE.py:FUNCTION",
            help="Your function that returns the problem (or "
            "module:function), in place of --data, --model, --split and --l2.",
        ),
        click.option(
            "--model",
            default="linear",
            show_default=True,
            metavar="SPEC",
            help="linear (logistic, softmax or least squares, as suits the data) or two-layer:hidden=32.",
        ),
        click.option(
            "--split",
            metavar="SPEC",
            help="dirichlet:alpha=0.3,seed=1 spreads rows over partitions unevenly by label; default: as they come.",
        ),
        click.option("--l2", type=float, help="L2 regularisation; default: 1 / training rows."),
    ]


def common(command: Command) -> Command:
    """The options of ``train`` and ``race``."""
    options = [
        config_option,
        plugin_option,
        *problem_options(data="digits"),
        click.option("--workers", type=int, default=30, show_default=True, help="Number of workers, n."),
        click.option(
            "--delays", metavar="SPEC", default="none", show_default=True, help="Injected delays; see 'anyk delays'."
        ),
        click.option(
            "--communication",
            metavar="SPEC",
            default="none",
            show_default=True,
            help="Communication time: a distribution as for delays, or link:latency=…,bandwidth=…,"
            "links=parallel (or serial, shared).",
        ),
        click.option(
            "--cluster",
            metavar="SPEC",
            default="processes",
            show_default=True,
            is_eager=True,
            callback=lambda _, __, spec: join_cluster(spec),
            help="processes, simulated, ray or mpi; see 'anyk cluster'.",
        ),
        optimizer_option,
        rate_option,
        click.option("--steps", type=int, help="Stop after this many steps."),
        click.option("--seconds", type=float, help="Stop after this many seconds of the run's clock."),
        click.option("--target", type=float, help="Stop when the metric reaches this value."),
        evaluate_option,
        callback_option,
        click.option("--seed", type=int, default=0, show_default=True, help="Seed of the delays."),
        metrics_option,
        mirror_option,
        click.option("--out", metavar="FOLDER", help="Folder for the run; default: a new one under runs/."),
        json_option,
        click.option("--quiet", is_flag=True, help="Show no progress."),
        click.option("--settings", is_flag=True, help="Show every setting and where it comes from, and exit."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def make_problem(given: dict[str, Any]) -> Problem:
    """The problem that the options ask for."""
    from click.core import ParameterSource

    from anyk.problems import from_data, from_function

    if given["problem"] is None:
        tell = partial(click.echo, err=True)
        return from_data(
            given["data"],
            file=given["data_file"],
            l2=given["l2"],
            model=given["model"],
            split=given["split"],
            progress=tell,
        )
    source = click.get_current_context().get_parameter_source
    for name in ("data", "data_file", "model", "split", "l2"):
        if source(name) != ParameterSource.DEFAULT:
            raise BadInput(f"--problem brings its own data and model; leave --{name.replace('_', '-')} out")
    return from_function(given["problem"])


def make_optimizer(problem: Problem, given: dict[str, Any]) -> Optimizer:
    """The optimiser that the options ask for, with the defaults that suit the data."""
    from anyk.runs import usual_optimizer

    return usual_optimizer(problem, given["optimizer"], given["lr"])


def tell_delays(spec: str, workers: int) -> None:
    """One line on standard error on how a trace was understood."""
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


def new_folder(out: str | None, kind: str) -> Path:
    """Return the folder that --out names, or else make a free one under runs/, which no other process can take.

    If the command leaves it empty, it is removed in the end.
    """
    return Path(out) if out else click.get_current_context().with_resource(_claimed_folder(kind))


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


def show_settings(ctx: click.Context) -> None:
    """Every setting and where it comes from."""
    from anyk.strategies import completed, strategy

    sources = {
        "COMMANDLINE": "command line",
        "ENVIRONMENT": "environment",
        "DEFAULT_MAP": "config file",
        "DEFAULT": "default",
    }
    given = ctx.params
    used = _used(given, str(ctx.command.name))
    for parameter in ctx.command.params:
        name = str(parameter.name)
        if name not in given or name == "settings":
            continue
        source, value = ctx.get_parameter_source(name), given[name]
        if name in used:
            text = used[name]
        elif value is None or value == ():
            text = "none"
        elif name in ("strategy", "strategies"):
            asked = (value,) if isinstance(value, str) else value
            text = ", ".join(completed(spec, strategy(spec, workers=given["workers"])) for spec in asked)
        else:
            text = ", ".join(value) if isinstance(value, tuple) else str(value)
        click.echo(f"{_option(parameter):<14} {text:<44} {sources.get(source.name if source else '', '')}")


def _used(given: dict[str, Any], command: str) -> dict[str, str]:
    """Values in full where an option is left out or given in short: as ``run.toml`` stores them."""
    from anyk.clusters import cluster
    from anyk.optimizers import optimizer as build
    from anyk.runs import Run, usual_rule
    from anyk.runs.limits import LIMIT, STEPS

    fleet = cluster(
        given["cluster"], workers=given["workers"], delays=given["delays"], communication=given["communication"]
    )
    used = {"cluster": fleet.spec, "delays": fleet.delays.spec, "communication": fleet.communication.spec}
    method, rate = usual_rule("" if given["problem"] else given["data"], given["optimizer"])
    rate = rate if given["lr"] is None else given["lr"]
    l2 = "the problem's own" if given["problem"] else "1 / training rows"
    if given.get("begin") and given["optimizer"] is None and given["lr"] is None:
        with Run.open(given["begin"]) as earlier:
            used |= {"optimizer": earlier.config.optimizer, "lr": earlier.config.lr}
    else:
        if rate is None:  # it follows from the data
            problem = make_problem(given)
            l2, optimizer = f"{problem.l2:.6g}", make_optimizer(problem, given)
        else:
            optimizer = build(method, lr=rate)
        used |= {"optimizer": optimizer.spec, "lr": optimizer.rate.spec}
    steps = STEPS if given["target"] is None else LIMIT
    left_out = {
        "l2": l2,
        "steps": str(steps) if given["seconds"] is None else "no limit",
        "seconds": "no limit",
        "out": str(free_folder(command)),
        "evaluate": "some hundred versions",
        "picture": "race.png in the folder",
        "page": "report.html in the folder",
    }
    if str(given.get("strategy")).partition(":")[0] == "auto":
        used["strategy"] = given["strategy"]
    return used | {name: text for name, text in left_out.items() if given.get(name) is None}


curve_option = click.option(
    "--curve",
    type=click.Choice(["metric", "loss"]),
    default="metric",
    show_default=True,
    help="What the picture shows against seconds.",
)
models_option = click.option(
    "--models",
    type=int,
    default=1,
    show_default=True,
    help="Number of models trained at once, in turn (two-layer networks start from different weights).",
)
