"""Training and resuming: check what is asked for, set a run up, and launch it."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from anyk.checks import typed
from anyk.clusters import Cluster
from anyk.clusters import cluster as build_cluster
from anyk.codes import Code
from anyk.delays import Communication, DelayModel
from anyk.delays import settled as settled_law
from anyk.errors import BadInput
from anyk.named import names_in_folder
from anyk.optimizers import Optimizer
from anyk.optimizers import optimizer as build_optimizer
from anyk.plain import from_plain
from anyk.problems import from_recipe
from anyk.problems.base import Problem, ensure_problem
from anyk.protocol import Strategy
from anyk.runs.callbacks import check_callbacks
from anyk.runs.defaults import usual_cluster, usual_optimizer
from anyk.runs.engine.warm_start import Beginning
from anyk.runs.evaluation.settings import (
    USUAL,
    Evaluate,
    check_evaluate,
    check_held_out,
    evaluating,
    read_evaluate,
    spec_of,
)
from anyk.runs.folder import checkpoints, predictors
from anyk.runs.folder.config import FORMAT, NAME, read_config, write_config
from anyk.runs.folder.digests import (
    admit_strategy,
    check_named,
    check_problem,
    check_traces,
    digests_of,
    with_callbacks,
    with_plugins,
)
from anyk.runs.folder.environment import environment, new_major
from anyk.runs.folder.folders import empty, empty_if_it_fails, locked, new_folder
from anyk.runs.folder.promise import Promise
from anyk.runs.launch import Beside, Launch, lost_on_resume
from anyk.runs.limits import (
    LIMIT,
    STEPS,
    check_address,
    check_clock,
    check_intervals,
    check_launcher,
    check_limits,
    check_rows,
    plan,
)
from anyk.runs.log.queries import newest
from anyk.runs.log.runlog import RunLog
from anyk.runs.progress import showing
from anyk.runs.run import Run
from anyk.strategies import completed, settled
from anyk.strategies import strategy as build_strategy

_AS_BEFORE = "as before"


@typed
def train(
    problem: Problem,
    strategy: Strategy | Code | str | Promise,
    cluster: Cluster | str = "processes",
    *,
    workers: int | None = None,
    delays: DelayModel | str | None = None,
    seed: int | None = None,
    communication: Communication | DelayModel | str | None = None,
    optimizer: Optimizer | str | None = None,
    steps: int | None = None,
    seconds: float | None = None,
    target: float | None = None,
    begin: Run | str | Path | None = None,
    out: str | Path | None = None,
    evaluate: Evaluate | str | None = USUAL,
    checkpoint_every: float = 10.0,
    callbacks: Sequence[Any] = (),
    progress: bool = False,
) -> Run:
    """Train until ``steps`` steps, ``seconds`` seconds or the ``target`` of the metric; whatever comes first.

    A run whose only limit is a target ends after 10,000 steps in any case, one without a limit after 100. On a virtual
    clock a run without a limit of steps fails where its seconds would take more than 1,000,000 of them.

    ``strategy`` may be a spec, a code, or a plan's ``promise``: the run then has the plan's strategy, workers, learning
    rate, if it found one, its optimiser and, without a limit, its target or steps, and keeps the promise for
    :func:`anyk.check`. If ``cluster``
    is a spec, it takes ``workers`` (if left out, the strategy's, or 30), ``delays``, ``seed`` and ``communication``.
    ``optimizer`` may be a spec, with learning rate 1 / smoothness
    of the problem; left out, it is that of ``begin``, or Nesterov momentum. ``out`` is the folder to make (without one
    the log is kept in memory); in it a checkpoint is written every ``checkpoint_every`` seconds. Loss and metric are
    evaluated off the clock as ``evaluate`` says (:class:`anyk.Evaluate` or its spec), with None not at all.
    ``callbacks`` hear of steps, evaluations and workers lost (:class:`anyk.Callback`); ``progress`` shows the state of
    the run on standard error. On Ctrl-C the run is saved and ``KeyboardInterrupt`` raised.

    ``begin``: a run, or its folder, where this one begins, with any other strategy and cluster. Models, states of the
    optimiser (the same; its learning rate may be another) and version numbers are taken over, so that learning rates,
    mini-batches and ``steps``, counted from the earlier run's beginning, continue, as do the draws of delays. Work that
    it had under way is not taken over, and the clock, by which ``seconds`` are counted, starts at 0. The new folder
    does not depend on the other.

    Raises :class:`~anyk.errors.BadInput` for what cannot work and :class:`~anyk.errors.RunFailed` when a run cannot
    go on; its folder can then be resumed.

    >>> import anyk
    >>> problem = anyk.problems.from_data("synthetic:rows=200,features=5")
    >>> run = anyk.train(problem, "frc:load=3", "simulated", workers=6, delays="exp:mean=0.5", seed=1, steps=10)
    >>> run.steps, run.seconds == run.floor_seconds
    (10, True)
    >>> further = anyk.train(problem, "uncoded", anyk.clusters.Simulated(workers=3), steps=15, begin=run)
    >>> further.begun, further.history["step"].tolist()
    (10, [10, 11, 12, 13, 14, 15])
    """
    check_launcher()
    ensure_problem(problem)
    promise = None
    if isinstance(strategy, Promise):
        promise = strategy
        strategy, workers = promise.strategy, _planned_workers(promise, cluster, workers)
        optimizer = promise.optimizer if optimizer is None and begin is None else optimizer
        if target is None and steps is None and seconds is None:
            target = promise.target
    asked = strategy if isinstance(strategy, str) else None
    if not isinstance(strategy, str):
        strategy = build_strategy(strategy)
    cluster = usual_cluster(cluster, strategy, workers=workers, delays=delays, seed=seed, communication=communication)
    strategy = build_strategy(strategy, workers=cluster.workers)
    check_rows(problem, strategy)
    evaluate = read_evaluate(evaluate)
    check_evaluate(evaluate, strategy, target)
    beginning, come_from = None, None
    if begin is None:
        optimizer = usual_optimizer(problem, optimizer, None if promise is None else promise.learning_rate)
    else:
        optimizer, beginning, come_from = _begin_from(begin, problem, strategy, optimizer)
    begun = 0 if beginning is None else beginning.step
    check_intervals(checkpoint_every)
    with evaluating(evaluate, problem) as evaluated:
        check_held_out(evaluate, evaluated)
        check_limits(evaluated, steps, seconds, target, begun)
        if steps is None and seconds is None:
            usual = STEPS if promise is None else promise.horizon
            steps = begun + (usual if target is None else LIMIT)
        check_clock(cluster, steps, seconds)
        strategy = plan(strategy, steps, begun)
        limits = {"steps": steps, "seconds": seconds, "target": target}
        config = _described(problem, strategy, cluster, optimizer, asked) | limits
        config["evaluate"] = spec_of(evaluate)
        if come_from is not None:
            config["begin"] = come_from
        if promise is not None:
            config["plan"] = promise.plain()
        beside = Beside(evaluate, checkpoint_every, check_callbacks(callbacks))
        if beside.callbacks.specs:
            config["callbacks"] = list(beside.callbacks.specs)
        return _begun(
            strategy, cluster, problem, optimizer, config, beside, beginning, out, evaluated, progress=progress
        )


def _begun(
    strategy: Strategy,
    cluster: Cluster,
    problem: Problem,
    optimizer: Optimizer,
    config: dict[str, Any],
    beside: Beside,
    beginning: Beginning | None,
    out: str | Path | None,
    evaluated: Problem,
    *,
    progress: bool,
) -> Run:
    """A run in a folder of its own, or in memory; where it could not begin, its folder goes."""
    folder = None if out is None else Path(out)
    if folder is not None:
        config["digests"] = digests_of(problem, cluster, config)
        config["environment"] = environment()
        new_folder(folder, known=NAME)
    with locked(folder), showing(progress, beside.callbacks) as callbacks:
        with empty_if_it_fails(folder):
            if beginning is not None and folder is not None:
                beginning.save(folder)
            log = RunLog(None if folder is None else folder / "log.sqlite")
            beside = replace(beside, callbacks=callbacks)
            launch = Launch(
                strategy,
                cluster,
                problem,
                optimizer,
                config,
                log,
                beside,
                folder=folder,
                beginning=beginning,
                evaluated=evaluated,
            )
            if "begin" in config:
                earlier = config["begin"]
                log.note(0.0, "begun", f"at step {earlier['step']} of {earlier['run']} ({earlier['strategy']})")
            if folder is not None:
                if (kept := predictors.keep(problem, folder)) is not None:
                    config["digests"]["predictor"] = kept
                write_config(folder, config)  # last: with it, the folder is a run's
        before = launch.driver.step
        try:
            return launch.run()
        except BadInput:  # what was asked for cannot be, as the cluster found out
            if launch.driver.step == before:
                empty(folder)
            raise


@typed
def resume(
    path: str | Path,
    *,
    problem: Problem | None = None,
    optimizer: Optimizer | None = None,
    steps: int | None = None,
    seconds: float | None = None,
    target: float | None = None,
    trust: bool = False,
    evaluate: Evaluate | str | None = _AS_BEFORE,
    checkpoint_every: float = 10.0,
    callbacks: Sequence[Any] = (),
    tell: Callable[[str], None] | None = None,
    progress: bool = False,
) -> Run:
    """Go on with a run from its last checkpoint (or from its beginning), until its limits or the new ones given.

    ``problem`` is needed where the run's was made in Python, not from a data set's spec, and so is ``optimizer`` where
    it has no spec. On a simulated cluster the result is bit for bit that of a run never interrupted.

    ``evaluate``: as before, if left out. ``tell`` is called with a sentence for the user where an older checkpoint had
    to be used or numpy, torch or jax have another major version than the run began with (without ``tell``, these are
    ``RuntimeWarning``), or nothing was left to do. The log notes whatever has changed of
    :attr:`Run.config` ``["environment"]``.

    A run folder may be anybody's: no code that it names is run (a problem's function, an optimiser of another package
    than torch and optax), unless with ``trust``, and then only if its SHA-256 is the one that was recorded. Data,
    traces and code must be those that the run began with. Raises :class:`~anyk.errors.BadInput` where they are not.
    """
    check_launcher()
    check_intervals(checkpoint_every)
    folder = Path(path)
    config = read_config(folder)
    if config.get("mirror"):
        raise BadInput(f"'{folder}' is a copy by a Mirror and has no checkpoint; resume the folder of the run itself")
    if evaluate != _AS_BEFORE:
        config["evaluate"] = spec_of(read_evaluate(evaluate))
    check_named(config, f"the run '{folder}'")
    code = config["digests"].get("code", {})
    limits = {"steps": steps, "seconds": seconds, "target": target}
    with (
        names_in_folder(folder, code, trust=trust),
        with_plugins(config, f"the run '{folder}'"),
        showing(progress, check_callbacks(callbacks)) as hearing,
    ):
        beside = Beside(read_evaluate(config.get("evaluate", "")), checkpoint_every, hearing, tell)
        if hearing.specs and list(hearing.specs) != config.get("callbacks"):
            config = with_callbacks(config, hearing.specs)
        return _resume(folder, config, limits, problem, optimizer, beside, trust=trust)


def _resume(
    folder: Path,
    config: dict[str, Any],
    limits: dict[str, Any],
    problem: Problem | None,
    optimizer: Optimizer | None,
    beside: Beside,
    *,
    trust: bool,
) -> Run:
    planned = config.get("steps")
    if any(value is not None for value in limits.values()):
        config = {key: value for key, value in config.items() if key not in limits} | limits
        if config["steps"] is None and config["seconds"] is None:
            config["steps"] = _steps_of(folder) + LIMIT
    if problem is None:
        if not config.get("problem"):
            raise BadInput(f"the problem of '{folder}' was made in Python; give it again: anyk.resume(path, problem=…)")
        problem = from_recipe(config["problem"])
    check_problem(config, problem, f"the run '{folder}'")
    beginning = Beginning.load(folder) if "begin" in config else None
    begun = 0 if beginning is None else beginning.step
    with evaluating(beside.evaluate, problem) as evaluated:
        check_held_out(beside.evaluate, evaluated)
        check_limits(evaluated, config.get("steps"), config.get("seconds"), config.get("target"), begun)
        admit_strategy(config)
        strategy = build_strategy(config["strategy"], workers=config["workers"])
        strategy = plan(strategy, config.get("steps"), begun)
        check_evaluate(beside.evaluate, strategy, config.get("target"))
        check_address(config["cluster"], f"the run '{folder}'", trust=trust)
        cluster = build_cluster(
            config["cluster"],
            workers=config["workers"],
            delays=config["delays"],
            seed=config["seed"],
            communication=config["communication"],
        )
        check_traces(config, cluster, f"the run '{folder}'")
        check_clock(cluster, config.get("steps"), config.get("seconds"))
        if optimizer is None:
            optimizer = build_optimizer(config["optimizer"], lr=config["lr"])
        with locked(folder):
            with RunLog.reading(folder / "log.sqlite", prefix=True) as whole:  # before anything is changed
                saved = checkpoints.newest(folder, whole, or_older=True)
                if saved is not None and (lost := lost_on_resume(cluster, whole)):
                    _tell(beside, lost)
            check_further = strategy.facts.check_further
            if check_further and saved and planned and config.get("steps") != planned:
                state = from_plain(strategy.State, saved.state["strategy"], strategy)
                check_further(state, planned, begun)
            if saved is not None and saved.instead is not None:
                step = min(saved.state["versions"].values())
                _tell(beside, f"{saved.instead}; going on from the checkpoint before, at step {step}")
            if saved is not None and (newer := new_major(config)):
                _tell(beside, f"going on with {' and '.join(newer)}: from here on bits may differ from what they were")
            log = RunLog(folder / "log.sqlite")
            write_config(folder, config)
            launch = Launch(
                strategy,
                cluster,
                problem,
                optimizer,
                config,
                log,
                beside,
                folder=folder,
                beginning=beginning,
                evaluated=evaluated,
                saved=saved,
            )
            return launch.run()


def _tell(beside: Beside, text: str) -> None:
    """A sentence for who resumes a run; a warning where :func:`resume` was called, if nobody listens."""
    if beside.tell is None:
        warnings.warn(text, RuntimeWarning, stacklevel=5)
    else:
        beside.tell(text)


def _described(
    problem: Problem, strategy: Strategy, cluster: Cluster, optimizer: Optimizer, asked: str | None
) -> dict[str, Any]:
    """The configuration of a run, as its run.toml has it; ``asked``: the strategy's spec as the user wrote it."""
    return {
        "format": FORMAT,
        "anyk": version("anyk"),
        "strategy": settled(strategy.spec) if asked is None else completed(asked, strategy),
        "cluster": cluster.spec,
        "workers": cluster.workers,
        "partitions": strategy.layout.partitions,
        "delays": settled_law(cluster.delays.spec),
        "communication": settled_law(cluster.communication.spec),
        "seed": cluster.seed,
        "optimizer": optimizer.spec,
        "lr": optimizer.rate.spec,
        "problem": problem.recipe(),
        "auxiliary": list(strategy.layout.auxiliary),
        "metric": problem.metric,
        "better": problem.better,
    }


def _planned_workers(promise: Promise, cluster: Cluster | str, workers: int | None) -> int | None:
    """The number of workers for a cluster that has yet to be made; raises where others than the plan's are given."""
    given = cluster.workers if isinstance(cluster, Cluster) else workers
    if given is not None and given != promise.workers:
        raise BadInput(f"the plan is for {promise.workers} workers, got {given}; plan for the fleet that is to train")
    return None if isinstance(cluster, Cluster) else promise.workers


def _steps_of(folder: Path) -> int:
    """The newest version in a run's log."""
    with RunLog.reading(folder / "log.sqlite", prefix=True) as log:
        return max(newest(log).values(), default=0)


def _begin_from(
    begin: Run | str | Path, problem: Problem, strategy: Strategy, optimizer: Optimizer | str | None
) -> tuple[Optimizer, Beginning, dict[str, Any]]:
    """The optimiser (the earlier run's, if none is given), where the earlier run stands, and which it is."""
    with contextlib.nullcontext(begin) if isinstance(begin, Run) else Run.open(begin) as earlier:
        if optimizer is None:
            with names_in_folder(earlier.path or Path(), {}, trust=False):
                optimizer = build_optimizer(earlier.config["optimizer"], lr=earlier.config["lr"])
        chosen = usual_optimizer(problem, optimizer)
        beginning = earlier.standing
        beginning.check(strategy, problem, chosen, earlier.config)
        run = str(earlier.path or "a run in memory")
        return chosen, beginning, {"run": run, "strategy": earlier.config["strategy"], "step": beginning.step}
