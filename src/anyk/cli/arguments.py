"""What commands that train make of their options: problems, callbacks, folders, and the arguments of a training."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from anyk.base import ByName, names_in_folder, parse_spec, show_spec, values_of
from anyk.cli.fields import LIMITS
from anyk.cli.options import ResumeOptions, RunOptions, TrainingOptions, join_cluster
from anyk.cli.output import check_file, claimed_folder, exit_interrupted, people
from anyk.protocol import slot_names

if TYPE_CHECKING:
    from anyk.problems import Problem
    from anyk.runs.api import Callbacks, SharedConfig


@contextlib.contextmanager
def option_callbacks(callbacks: Callbacks, options: RunOptions, folder: Path) -> Iterator[Callbacks]:
    """Yield a run's callbacks, and callbacks for the options: progress on the terminal, metrics, a copy of the log.

    If the run is interrupted, print the command that resumes the folder, and exit.
    """
    from anyk.callbacks import Mirror
    from anyk.views import LiveProgress, Metrics, address

    try:
        with contextlib.ExitStack() as stack:
            added: list[Any] = [] if options.mirror is None else [Mirror(options.mirror)]
            if options.metrics is not None:
                metrics = stack.enter_context(Metrics(*address(options.metrics)))
                click.echo(f"metrics: {metrics.url}", err=True)
                added.append(metrics)
            progress = stack.enter_context(LiveProgress(people(), quiet=options.quiet))
            yield callbacks.also(progress, *added)
    except KeyboardInterrupt:
        exit_interrupted(folder)


def _variant(problem: object, number: int) -> Any:
    """Return a problem with the same data and another random start; the same problem if its start is not random."""
    from anyk.problems import TwoLayerNetwork

    if not isinstance(problem, TwoLayerNetwork):
        return problem
    recipe = problem.recipe() or {}
    name, values = parse_spec(str(recipe["model"]))
    seed = problem.seed + number
    return TwoLayerNetwork(
        problem.X,
        problem.y,
        hidden=problem.hidden,
        seed=seed,
        l2=problem.l2,
        X_test=problem.X_test,
        y_test=problem.y_test,
        split=problem.uneven,
        recipe=recipe | {"model": show_spec(name, values | {"seed": seed})},
    )


def make_callbacks(specs: Sequence[str]) -> Callbacks:
    """Return the callbacks with these specs; loggers without handlers get one that writes to standard error."""
    import logging

    from anyk.callbacks import named_callbacks

    callbacks = named_callbacks(specs)
    for callback in callbacks:
        logger = getattr(callback, "logger", None)
        if isinstance(logger, logging.Logger) and not logger.hasHandlers():
            handler = logging.StreamHandler()
            handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
            logger.addHandler(handler)
            logger.setLevel(logging.INFO)
    return callbacks


@contextlib.contextmanager
def resume_arguments(folder: Path, config: SharedConfig, options: ResumeOptions) -> Iterator[ByName]:
    """Yield the arguments that ``resume``, ``resume_race`` and ``resume_auto`` have in common.

    Callbacks come from the options or, if there are none, from the folder.
    """
    from anyk.problems import from_function

    join_cluster(options.cluster or config.cluster)
    if options.callbacks:
        callbacks = make_callbacks(options.callbacks)
    else:
        with names_in_folder(folder, config.digests.code, trust=options.trust):
            callbacks = make_callbacks(config.callbacks)
    problem = None if options.problem is None else from_function(options.problem)
    with option_callbacks(callbacks, options, folder) as all_callbacks:
        yield {"problem": problem, "callbacks": all_callbacks, **values_of(options, "trust", *LIMITS)}


@contextlib.contextmanager
def training_arguments(folder: Path, options: TrainingOptions) -> Iterator[tuple[list[Problem], ByName]]:
    """Yield a problem for each model, and the arguments that ``train``, ``race`` and ``train_auto`` have in common.

    If the delays are a trace, print how it was read to standard error.
    """
    from anyk.delays import Trace, parse

    callbacks = make_callbacks(options.callbacks)
    slots = slot_names(options.models)
    problem = options.make_problem()
    # the same data for each model, with different random starts
    problems = [problem, *(_variant(problem, number) for number in range(1, len(slots)))]
    delays = parse(options.delays)
    if isinstance(delays, Trace):
        delays.check_fleet(options.workers.most)
        click.echo(delays.summary_for(options.workers.most), err=True)
    with option_callbacks(callbacks, options, folder) as all_callbacks:
        arguments: ByName = {"problem": problems if options.models > 1 else problem, **values_of(options, *LIMITS)}
        yield problems, arguments | {"out": folder, "callbacks": all_callbacks, "evaluate": options.evaluate or ""}


def new_folder(options: TrainingOptions, kind: str) -> Path:
    """Return the folder that --out names, or else create one under runs/ that no other process can take.

    A created folder is removed at the end if it is still empty. Raise if --json names a file that cannot be written.
    """
    folder = Path(options.out) if options.out else click.get_current_context().with_resource(claimed_folder(kind))
    check_file(options.json_file, "file", folder=folder)
    return folder
