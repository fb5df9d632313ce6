"""Training, of one model or of several, and resuming runs from their folders."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from msgspec import structs

from anyk.base.checks import typed
from anyk.base.errors import BadInput
from anyk.base.named import names_in_folder
from anyk.base.plain import from_plain
from anyk.base.specs import Spec
from anyk.clusters import Cluster
from anyk.codes import Code
from anyk.delays import Communication, DelayModel
from anyk.optimizers import Optimizer, Schedule
from anyk.problems.base import Problem, Tell, ensure_problem
from anyk.problems.many import ManyProblems
from anyk.protocol import Strategy, Workers
from anyk.runs.callbacks import check_callbacks
from anyk.runs.defaults import workers_of
from anyk.runs.engine.warm_start import WarmStart
from anyk.runs.evaluation.evaluate import USUAL, Evaluate, read_evaluate, spec_of
from anyk.runs.folder import checkpoints
from anyk.runs.folder.config import NAME, RunConfig, read_config, write_sealed
from anyk.runs.folder.digests import digests_of, with_callbacks, with_plugins
from anyk.runs.folder.drains import describe_shortage, read_drained
from anyk.runs.folder.environment import environment, new_major
from anyk.runs.folder.folders import empty, empty_if_it_fails, locked, new_folder
from anyk.runs.folder.predictors import save_predictor
from anyk.runs.folder.promise import Promise
from anyk.runs.folder.rebuilding import rebuild
from anyk.runs.launch import Launch, lost_on_resume, nothing_left
from anyk.runs.limits import LIMIT, Limits, check_other_cluster
from anyk.runs.live_progress import showing
from anyk.runs.log.log_writer import LogWriter
from anyk.runs.log.queries import newest_versions
from anyk.runs.log.runlog import RunLog
from anyk.runs.run import Run
from anyk.runs.spec import Preparation, RunSpec
from anyk.strategies import strategy as build_strategy

_AS_BEFORE = "as before"
_MANY = 1000  # workers for each that was present at the start, from which the number is not believed


@typed
def train(
    problem: Problem,
    strategy: Strategy | Code | str | Promise,
    cluster: Cluster | str = "processes",
    *,
    workers: int | tuple[int, int] | Workers | None = None,
    partitions: int | None = None,
    delays: DelayModel | str | None = None,
    seed: int | None = None,
    communication: Communication | DelayModel | str | None = None,
    optimizer: Optimizer | str | None = None,
    lr: float | str | Schedule | None = None,
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
    """Train until the first of ``steps`` steps, ``seconds`` seconds and the ``target`` of the metric.

    A run with no limit but a target ends after 10,000 steps in any case, a run without a limit after 100. On a virtual
    clock a run with a limit of seconds only fails if this takes more than 1,000,000 steps.

    ``strategy``: a strategy, a code, a spec, or a plan's ``promise``. With a promise the run has the plan's strategy,
    workers, learning rate, optimiser and, without a limit, target or steps, and stores it for :func:`anyk.check`.
    ``cluster``: a cluster or a spec, to which ``workers`` (by default the strategy's, or 30), ``delays``, ``seed`` and
    ``communication`` belong. ``workers=(4, 16)``: workers join and leave, and the run continues with 4 to 16; the data
    have a fixed number of ``partitions``, by default 4 for each of the most workers, so that the gradient does not
    depend on who is there. ``optimizer``: an optimiser or a spec, by default as in ``begin``, or Nesterov momentum.
    ``lr``: the learning rate, unless the optimiser has it, as ``"adam:lr=0.1"``; by default as in ``begin`` or, for
    gradient descent with or without momentum, 1 / smoothness of the problem. ``out``: a new folder, in which a
    checkpoint is written every ``checkpoint_every`` seconds; by default the log is in memory. ``evaluate``: when and on
    which data loss and metric are evaluated (:class:`anyk.Evaluate` or its spec; None: never). ``callbacks`` are called
    at steps, evaluations and losses of workers (:class:`anyk.Callback`). ``progress`` shows the state of the run on
    standard error.

    ``begin``: a run, or its folder, that this run continues, with any strategy and cluster. It takes over the models,
    the states of the optimiser (which must be the same; its learning rate may differ) and the version numbers. So
    learning rates, mini-batches, delays and ``steps``, counted from the start of the earlier run, continue. Unfinished
    work is not taken over, and the clock, to which ``seconds`` belongs, starts at 0. The new folder does not depend on
    the earlier one.

    On Ctrl-C the run is saved and ``KeyboardInterrupt`` raised. Raises :class:`~anyk.BadInput` for arguments
    that cannot work and :class:`~anyk.RunFailed` if a run cannot continue; its folder can then be resumed.

    >>> import anyk
    >>> problem = anyk.problems.from_data("synthetic:rows=200,features=5")
    >>> run = anyk.train(problem, "frc:load=3", "simulated", workers=6, delays="exp:mean=0.5", seed=1, steps=10)
    >>> run.steps, run.seconds == run.floor_seconds
    (10, True)
    >>> further = anyk.train(problem, "uncoded", anyk.clusters.Simulated(workers=3), steps=15, begin=run)
    >>> further.begun, further.history["step"].tolist()
    (10, [10, 11, 12, 13, 14, 15])
    """
    spec = RunSpec(
        problem=problem,
        strategy=Spec(strategy) if isinstance(strategy, str) else strategy,
        cluster=cluster,
        workers=workers,
        partitions=partitions,
        delays=delays,
        seed=seed,
        communication=communication,
        optimizer=optimizer,
        lr=lr,
        limits=Limits(steps=steps, seconds=seconds, target=target),
        begin=begin,
        evaluate=evaluate,
        checkpoint_every=checkpoint_every,
        callbacks=callbacks,
    )
    with spec.prepare() as prepared:
        return _start(prepared, None if out is None else Path(out), progress=progress)


def _start(prepared: Preparation, folder: Path | None, *, progress: bool) -> Run:
    """Return a run in a new folder, or in memory; if the run cannot start, its folder is removed."""
    config = prepared.config
    if folder is not None:
        digests = digests_of(prepared.problem, prepared.cluster, config)
        new_folder(folder, settings=NAME)
    with locked(folder), showing(progress, prepared.callbacks) as callbacks:
        with empty_if_it_fails(folder):
            if folder is not None:
                if prepared.warm_start is not None:
                    prepared.warm_start.save(folder)
                digests = structs.replace(digests, predictor=save_predictor(prepared.problem, folder))
                config = structs.replace(config, digests=digests, environment=environment())
            log = LogWriter(None if folder is None else folder / "log.sqlite")
            launch = Launch(replace(prepared, config=config, callbacks=callbacks), log, folder)
            if (origin := config.begin) is not None:
                log.note(0.0, "begun", f"at step {origin.step} of {origin.run} ({origin.strategy})")
            if folder is not None:
                write_sealed(folder / NAME, config)  # last: with it, the folder is a run's
        before = launch.driver.step
        try:
            return launch.run()
        except BadInput:  # the cluster has refused the request
            if launch.driver.step == before:
                empty(folder)
            raise


@typed
def resume(
    path: str | Path,
    *,
    problem: Problem | None = None,
    optimizer: Optimizer | None = None,
    cluster: str | None = None,
    steps: int | None = None,
    seconds: float | None = None,
    target: float | None = None,
    trust: bool = False,
    evaluate: Evaluate | str | None = _AS_BEFORE,
    checkpoint_every: float = 10.0,
    callbacks: Sequence[Any] = (),
    tell: Tell | None = None,
    progress: bool = False,
) -> Run:
    """Continue a run from its last checkpoint, or from its start, until its limits or new ones.

    ``problem`` is needed if it was made in Python, not from a data set's spec, and ``optimizer`` if it has no spec. On
    a simulated cluster the result is bit for bit the result of a run without interruption.

    ``cluster``: the spec of another cluster to go on with, such as ``processes`` after ``nodes``; it replaces the one
    in the folder, with the same delays. A run on a virtual clock stays there, and Byzantine workers stay the same.

    ``evaluate``: by default as before. ``tell`` is called with a sentence for the user if an older checkpoint had to be
    used, if numpy, torch or jax have another major version than at the start (without ``tell``, these are
    ``RuntimeWarning``), or if nothing was left to do. The log notes all changes of ``run.config.environment``.

    A run folder may come from a stranger. So code that it names (a problem's function, an optimiser of another
    package than torch and optax) is only executed with ``trust``, and then only if it has the recorded SHA-256. Data,
    traces, code, ``l2``, the gradient of a few samples and the optimizer must be those with which the run started; else
    :class:`~anyk.BadInput` is raised.
    """
    folder = Path(path)
    config, of = read_config(folder), f"the run '{folder}'"
    if config.mirror:
        raise BadInput(f"'{folder}' is a copy by a Mirror and has no checkpoint; resume the folder of the run itself")
    if evaluate != _AS_BEFORE:
        config = structs.replace(config, evaluate=spec_of(read_evaluate(evaluate)))
    most = config.workers.most
    if most > _MANY:  # a stranger's number, for which a code may be constructed for hours
        with RunLog.reading(folder / "log.sqlite", prefix=True) as log:
            present = len(log.started()[1])
        if most > _MANY * max(1, present):
            raise BadInput(f"{of} names {most:,} workers, its log begins with {present:,}; restore its folder")
    previous, limits = config.steps, Limits(steps=steps, seconds=seconds, target=target)
    if limits:
        if limits.endless:
            with RunLog.reading(folder / "log.sqlite", prefix=True) as log:
                limits = limits.within(max(newest_versions(log).values(), default=0) + LIMIT)
        config = structs.replace(config, **vars(limits))
    with (
        names_in_folder(folder, config.digests.code, trust=trust),
        with_plugins(config, of),
        showing(progress, check_callbacks(callbacks)) as display,
    ):
        config = with_callbacks(config, display.specs)
        if cluster is not None:
            check_other_cluster(config.cluster, cluster)
        rebuilt = rebuild(
            folder,
            config,
            of,
            call="anyk.resume",
            problem=problem,
            optimizer=optimizer,
            cluster=cluster,
            trust=trust,
        )
        if cluster is not None:
            config = structs.replace(config, cluster=rebuilt.cluster.spec)
        spec = RunSpec(
            problem=rebuilt.problem,
            strategy=config.strategy,
            cluster=rebuilt.cluster,
            workers=config.workers,
            optimizer=rebuilt.optimizer,
            limits=config.limits,
            begin=None if config.begin is None else WarmStart.load(folder),
            evaluate=config.evaluate,
            checkpoint_every=checkpoint_every,
            callbacks=display,
        )
        with spec.prepare() as prepared:
            return _resume(replace(prepared, config=config, tell=tell), folder, previous)


def _resume(prepared: Preparation, folder: Path, previous: int | None) -> Run:
    """Continue a run from its last checkpoint; ``previous``: its earlier limit of steps."""
    strategy, steps, config = prepared.strategy, prepared.config.steps, prepared.config
    with locked(folder):
        with RunLog.reading(folder / "log.sqlite", prefix=True) as complete:  # before anything is changed
            saved = checkpoints.newest(folder, complete, or_older=True)
            if saved is not None and (lost := lost_on_resume(saved, strategy, prepared.cluster, complete)):
                _tell(prepared, lost)
        if saved is not None and (reached := _reached(saved, config, folder)):
            if prepared.tell is not None:
                step = min(saved.state["versions"].values())
                prepared.tell(nothing_left(step, f"it has reached its limit ({reached})"))
            return Run.open(folder)
        if saved is not None and previous and steps != previous:
            _check_further(strategy, saved, config, previous)
        if saved is not None and saved.instead is not None:
            step = min(saved.state["versions"].values())
            _tell(prepared, f"{saved.instead}; continuing from the checkpoint before, at step {step}")
        if saved is not None and (newer := new_major(config.environment)):
            _tell(prepared, f"continuing with {' and '.join(newer)}: from here on bits may differ from earlier results")
        if (shortage := describe_shortage(config, read_drained(folder))) is not None:
            _tell(prepared, shortage)
        log = LogWriter(folder / "log.sqlite")
        write_sealed(folder / NAME, config)
        return Launch(prepared, log, folder, saved=saved).run()


def _check_further(strategy: Strategy, saved: checkpoints.Saved, config: RunConfig, previous: int) -> None:
    """Raise :class:`~anyk.BadInput` if the strategy cannot go on after its earlier limit of steps."""
    check_further = strategy.facts.check_further
    if check_further:
        state = from_plain(strategy.State, saved.state["strategy"], strategy)
        check_further(state, previous, 0 if config.begin is None else config.begin.step)


def _reached(saved: checkpoints.Saved, config: RunConfig, folder: Path) -> str:
    """Return the limit that a complete run has reached, as text; empty if there is something left to do."""
    versions: dict[str, int] = saved.state["versions"]
    try:
        opened = Run.open(folder)
    except BadInput:  # its last rows are missing, as after a loss of power: it is resumed from its checkpoint
        return ""
    with opened as run:
        ended = bool(run.summary) and not any(note["kind"] in ("interrupted", "failed") for note in run.notes[-1:])
        unchanged = (run.config.evaluate, run.config.callbacks) == (config.evaluate, config.callbacks)
        if saved.instead or not ended or not unchanged or newest_versions(run.log) != versions:
            return ""
        same_target = config.target is not None and config.target == run.config.target
        if same_target and run.time_to_target is not None:
            return f"target = {config.target:g}"
    return _limit_reached(saved, config)


def _limit_reached(saved: checkpoints.Saved, config: RunConfig) -> str:
    versions: dict[str, int] = saved.state["versions"]
    steps = min(version for slot, version in versions.items() if slot not in config.auxiliary)
    if config.steps is not None and steps >= config.steps:
        return f"steps = {config.steps}"
    if config.seconds is not None and saved.state["now"] >= config.seconds:
        return f"seconds = {config.seconds:g}"
    return ""


def _tell(prepared: Preparation, sentence: str) -> None:
    """Report to the user who resumes a run; without ``tell``, by a warning at the call of :func:`resume`."""
    if prepared.tell is None:
        warnings.warn(sentence, RuntimeWarning, stacklevel=5)
    else:
        prepared.tell(sentence)


# ------------------------------------------------------------------------------------------- several models


def train_many(
    problems: Sequence[Problem],
    strategy: Strategy | str,
    cluster: Cluster | str = "processes",
    *,
    workers: int | tuple[int, int] | Workers | None = None,
    partitions: int | None = None,
    steps: int | None = None,
    **options: Any,
) -> Run:
    """Train a model for each of ``problems`` simultaneously: round t starts a step of model t mod M.

    Sequential codes (``gc``, ``sr-sgc``, ``m-sgc``) finish a step within T more rounds, other codes in the same round.
    ``steps``: the number of steps of each model. Each model has its slot (``model 0``, …), optimiser state, checkpoint
    and curve (:meth:`Run.history_of`). The other arguments are as in :func:`anyk.train`. The problems must agree in
    dimension, number type and number of samples.

    >>> import anyk
    >>> problem = anyk.problems.from_data("synthetic:rows=60,features=4")
    >>> run = train_many([problem] * 2, "m-sgc:B=1,W=2,lambda=1", anyk.clusters.Simulated(4), steps=3)
    >>> sorted(run.models), run.history_of("model 1")["step"].tolist()
    (['model 0', 'model 1'], [0, 1, 2, 3])
    """
    if not isinstance(problems, Sequence):
        raise BadInput(f"problems must be a list of problems, one for each model, got {problems!r}")
    trained, models = combine(problems)
    if isinstance(strategy, str):
        strategy = Spec(strategy).with_keys({"models": models})
    built = build_strategy(strategy, workers=workers_of(cluster, strategy) if workers is None else workers)
    if len(built.layout.slots) != models:
        raise BadInput(f"'{built.spec}' trains {len(built.layout.slots)} models, there are {models} problems")
    return train(trained, strategy, cluster, workers=workers, partitions=partitions, steps=steps, **options)


def combine(problem: Problem | Sequence[Problem]) -> tuple[Problem, int]:
    """Return one problem that stands for all problems, and their number; raise for other objects."""
    problems = problem if isinstance(problem, Sequence) else [problem]
    for member in problems:
        ensure_problem(member)
    if not problems:
        raise BadInput("there is no problem to train on")
    return (ManyProblems(problem) if isinstance(problem, Sequence) else problem), len(problems)
