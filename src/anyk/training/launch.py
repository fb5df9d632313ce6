"""Training: set up a run, drive it, and leave a folder from which it can be read, replayed and resumed."""

from __future__ import annotations

import contextlib
import copy
import errno
import math
import resource
import signal
import sys
import threading
import time as clock
import warnings
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from anyk.checks import typed
from anyk.clusters import Cluster
from anyk.clusters import cluster as build_cluster
from anyk.codes import Code
from anyk.delays import Communication, DelayModel
from anyk.delays import settled as settled_law
from anyk.errors import BadInput, RunFailed
from anyk.named import names_in_folder
from anyk.optimizers import Optimizer
from anyk.optimizers import optimizer as build_optimizer
from anyk.problems import from_recipe
from anyk.problems.base import Problem, ensure_problem
from anyk.protocol import Strategy
from anyk.specs import parse
from anyk.strategies import SequentialRounds, completed, settled
from anyk.strategies import strategy as build_strategy
from anyk.training import checkpoints
from anyk.training.beginning import Beginning
from anyk.training.config import FORMAT, NAME, read_config, write_config
from anyk.training.defaults import usual_cluster, usual_optimizer
from anyk.training.digests import admit_strategy, check_named, check_problem, check_traces, digests_of
from anyk.training.driver import Driver
from anyk.training.evaluation import Evaluator
from anyk.training.floor import floor_seconds
from anyk.training.folder import empty, empty_if_it_fails, locked, new_folder
from anyk.training.progress import Progress
from anyk.training.run import Run
from anyk.training.runlog import RunLog

Watch = Callable[[Driver, Evaluator], None]
LIMIT = 10_000  # steps at most where a target is the only limit: it may be out of reach
STEPS = 100  # taken when no limit is given
_SWITCH = 2e-4  # seconds after which the evaluating thread must let the driver go on


@typed
def train(
    problem: Problem,
    strategy: Strategy | Code | str,
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
    evaluate_every: int | None = None,
    checkpoint_every: float = 10.0,
    watch: Watch | None = None,
    progress: bool = False,
) -> Run:
    """Train until ``steps`` steps, ``seconds`` seconds or the ``target`` of the metric; whatever comes first.

    A run whose only limit is a target ends after 10,000 steps in any case, one without a limit after 100. On a virtual
    clock a run without a limit of steps fails where its seconds would take more than 1,000,000 of them.

    ``strategy`` may be a spec or a code. With ``cluster`` as a spec go ``workers`` (if left out, the strategy's, or
    30), ``delays``, ``seed`` and ``communication``. ``optimizer`` may be a spec, with learning rate 1 / smoothness of
    the problem; left out, it is that of ``begin``, or Nesterov momentum. ``out`` is the folder to make (without one
    the log is kept in memory); in it a checkpoint is written every ``checkpoint_every`` seconds. Loss and metric are
    evaluated off the clock, for every ``evaluate_every``-th version (default: for a few hundred of them).
    ``watch`` is called after every step; ``progress`` shows how the run stands, on standard error. On Ctrl-C the run is
    saved and ``KeyboardInterrupt`` raised.

    ``begin``: a run, or its folder, where this one begins, with any other strategy and cluster. Models, states of the
    optimiser (the same; its learning rate may be another) and version numbers are taken over, so that learning rates,
    mini-batches and ``steps``, counted from the earlier run's beginning, go on; delays are drawn behind those it drew.
    What it had under way is not taken over, and the clock, to which ``seconds`` belongs, begins at 0. The new folder
    needs the other no more.

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
    ensure_problem(problem)
    asked = strategy if isinstance(strategy, str) else None
    if not isinstance(strategy, str):
        strategy = build_strategy(strategy)
    cluster = usual_cluster(cluster, strategy, workers=workers, delays=delays, seed=seed, communication=communication)
    strategy = build_strategy(strategy, workers=cluster.workers)
    check_rows(problem, strategy)
    beginning, come_from = None, None
    if begin is None:
        optimizer = usual_optimizer(problem, optimizer)
    else:
        optimizer, beginning, come_from = _begin_from(begin, problem, strategy, optimizer)
    begun = 0 if beginning is None else beginning.step
    _check_intervals(evaluate_every, checkpoint_every)
    check_limits(problem, steps, seconds, target, begun)
    if steps is None and seconds is None:
        steps = begun + (STEPS if target is None else LIMIT)
    _check_clock(cluster, steps, seconds)
    plan(strategy, steps, begun)
    config: dict[str, Any] = {
        "format": FORMAT,
        "anyk": version("anyk"),
        "strategy": settled(strategy.spec) if asked is None else completed(asked, strategy),
        "cluster": cluster.spec,
        "workers": cluster.workers,
        "partitions": strategy.layout.partitions,
        "delays": settled_law(cluster.delays.spec),
        "communication": cluster.communication.spec,
        "seed": cluster.seed,
        "optimizer": optimizer.spec,
        "lr": optimizer.rate.spec,
        "steps": steps,
        "seconds": seconds,
        "target": target,
        "problem": problem.recipe(),
        "auxiliary": list(strategy.layout.auxiliary),
        "metric": problem.metric,
        "better": problem.better,
    }
    if come_from is not None:
        config["begin"] = come_from
    if out is not None:
        config["digests"] = digests_of(problem, cluster, config)
    folder = None if out is None else Path(out)
    if folder is not None:
        new_folder(folder, known=NAME)
    with locked(folder):
        with empty_if_it_fails(folder):
            if beginning is not None and folder is not None:
                beginning.save(folder)
            log = RunLog(None if folder is None else folder / "log.sqlite")
            driver = Driver(
                strategy,
                cluster,
                problem=problem,
                optimizer=optimizer,
                log=log,
                steps=steps,
                seconds=seconds,
                beginning=beginning,
            )
            if come_from is not None:
                log.note(0.0, "begun", f"at step {begun} of {come_from['run']} ({come_from['strategy']})")
            if folder is not None:
                write_config(folder, config)  # last: with it, the folder is a run's
        fresh = copy.deepcopy(strategy)
        with showing(progress, watch) as watching:
            try:
                return _drive(driver, fresh, config, folder, None, evaluate_every, checkpoint_every, watching)
            except BadInput:  # what was asked for cannot be, as the cluster found out
                if driver.step == begun:
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
    evaluate_every: int | None = None,
    checkpoint_every: float = 10.0,
    watch: Watch | None = None,
    tell: Callable[[str], None] | None = None,
    progress: bool = False,
) -> Run:
    """Go on with a run from its last checkpoint (or from its beginning), until its limits or the new ones given.

    ``problem`` is needed where the run's was made in Python, not from a data set's spec, and so is ``optimizer`` where
    it has no spec. On a simulated cluster the result is bit for bit that of a run never interrupted.

    ``tell`` is called with what the user should know: that an older checkpoint had to be used (without ``tell``, a
    ``RuntimeWarning``), or that nothing was left to do.

    A run folder may be anybody's: no code that it names is run (a problem's function, an optimiser of another package
    than torch and optax), unless with ``trust``, and then only if its SHA-256 is the one that was recorded. Data,
    traces and code must be those that the run began with. Raises :class:`~anyk.errors.BadInput` where they are not.
    """
    _check_intervals(evaluate_every, checkpoint_every)
    folder = Path(path)
    config = read_config(folder)
    check_named(config, f"the run '{folder}'")
    code = config["digests"].get("code", {})
    with names_in_folder(folder, code, trust=trust), showing(progress, watch) as watching:
        return _resume(
            folder, config, problem, optimizer, {"steps": steps, "seconds": seconds, "target": target}, trust,
            (evaluate_every, checkpoint_every, watching, tell),
        )  # fmt: skip


def _resume(
    folder: Path,
    config: dict[str, Any],
    problem: Problem | None,
    optimizer: Optimizer | None,
    limits: dict[str, Any],
    trust: bool,
    how: tuple[int | None, float, Watch | None, Callable[[str], None] | None],
) -> Run:
    planned = config.get("steps")
    if any(value is not None for value in limits.values()):
        config = {k: v for k, v in config.items() if k not in limits} | limits
        if config["steps"] is None and config["seconds"] is None:
            config["steps"] = _steps_of(folder) + LIMIT
    if problem is None:
        if not config.get("problem"):
            raise BadInput(f"the problem of '{folder}' was made in Python; give it: anyk.resume(path, problem=…)")
        problem = from_recipe(config["problem"])
    check_problem(config, problem, f"the run '{folder}'")
    beginning = Beginning.load(folder) if "begin" in config else None
    begun = 0 if beginning is None else beginning.step
    check_limits(problem, config.get("steps"), config.get("seconds"), config.get("target"), begun)
    admit_strategy(config)
    strategy = build_strategy(config["strategy"], workers=config["workers"])
    plan(strategy, config.get("steps"), begun)
    fresh = copy.deepcopy(strategy)
    check_address(config["cluster"], f"the run '{folder}'", trust=trust)
    cluster = build_cluster(
        config["cluster"],
        workers=config["workers"],
        delays=config["delays"],
        seed=config["seed"],
        communication=config["communication"],
    )
    check_traces(config, cluster, f"the run '{folder}'")
    _check_clock(cluster, config.get("steps"), config.get("seconds"))
    with locked(folder):
        with RunLog.reading(folder / "log.sqlite", prefix=True) as whole:  # before anything is changed
            saved = checkpoints.newest(folder, whole, or_older=True)
        if isinstance(strategy, SequentialRounds) and saved and planned and config.get("steps") != planned:
            strategy.check_further(planned, saved.state["strategy"], begun)
        log = RunLog(folder / "log.sqlite")
        write_config(folder, config)
        driver = Driver(
            strategy,
            cluster,
            problem=problem,
            optimizer=optimizer or build_optimizer(config["optimizer"], lr=config["lr"]),
            log=log,
            steps=config.get("steps"),
            seconds=config.get("seconds"),
            beginning=beginning,
        )
        return _drive(driver, fresh, config, folder, saved, *how)


def check_rows(problem: Problem, strategy: Strategy) -> None:
    """Raise where there are fewer rows than partitions."""
    if problem.samples < strategy.layout.partitions:
        raise BadInput(
            f"{problem.samples} rows cannot be cut into {strategy.layout.partitions} partitions of at least one row; "
            "use fewer workers"
        )


def check_address(cluster: str, of: str, *, trust: bool) -> None:
    """Raise where a folder names a cluster elsewhere and is not trusted."""
    if not trust and parse(cluster)[1].get("address", "auto") != "auto":
        raise BadInput(
            f"{of} names the cluster '{cluster}', which may be anybody's; if it is yours, trust the folder with "
            "--trust (in Python: trust=True)"
        )


def _steps_of(folder: Path) -> int:
    """The newest version in a run's log."""
    with RunLog.reading(folder / "log.sqlite", prefix=True) as log:
        return int(log.rows("SELECT max(version) FROM updates")[0][0] or 0)


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


def plan(strategy: Strategy, steps: int | None, begun: int = 0) -> None:
    """Tell a sequential code how many steps there will be, so that its last rounds begin no further jobs."""
    if isinstance(strategy, SequentialRounds):
        strategy.plan(None if steps is None else steps - begun)


def _drive(
    driver: Driver,
    fresh: Strategy,
    config: dict[str, Any],
    folder: Path | None,
    saved: checkpoints.Saved | None,
    evaluate_every: int | None,
    checkpoint_every: float,
    watch: Watch | None,
    tell: Callable[[str], None] | None = None,
) -> Run:
    """Drive a run that has been set up, from its beginning or from what was saved, and write down what it came to."""
    problem, cluster, log = driver.problem, driver.cluster, driver.log
    assert problem is not None
    assert log is not None
    evaluator: Evaluator | None = None
    ended: BaseException | None = None
    begun = False  # before it has, nothing is written
    try:
        with cluster, _patient_interrupts(driver), _quick_switching():
            _first_metrics(problem)  # what metrics import is not to be imported on the clock
            if not cluster.virtual:
                _stage(watch, f"starting {cluster.workers} workers")
            driver.open()
            evaluator = Evaluator(
                problem, target=config.get("target"), every=evaluate_every, background=not cluster.virtual
            )
            driver.watch = _watching(evaluator, watch)
            if saved is None:
                log.truncate(0)  # a run that ended before its first checkpoint begins again
            else:
                log.truncate(saved.state["seq"], saved.state["seal"])
                if saved.instead is not None and folder is not None:
                    checkpoints.set_aside(folder)
                    log.note(saved.state["time"], "older checkpoint", saved.instead)
                    older = f"{saved.instead}; going on from the checkpoint before, at step {_step(saved)}"
                    if tell is None:
                        warnings.warn(older, RuntimeWarning, stacklevel=5)  # where resume was called
                    else:
                        tell(older)
            for row in log.rows("SELECT slot, version, time, loss, metric FROM evaluations"):
                evaluator.recall(*row)
            if saved is None:
                driver.begin()
            else:
                evaluator.every = saved.state["every"]
                _restore(driver, saved, folder)
                driver.reached = evaluator.reached is not None
            begun = True
            first = saved is None and driver.beginning is not None  # its history begins with that, whatever the number
            for slot, w in driver.versions.trained.items():
                if evaluator.keep(slot, driver.versions[slot], driver.time, w, last=first):
                    driver.versions.pin(slot, driver.versions[slot])
            if folder is not None:
                driver.save = _saving(driver, evaluator, folder)
                driver.save_every, driver.save_at = checkpoint_every, clock.monotonic() + checkpoint_every
            driver.run()
            if driver.save is not None:
                driver.save()
        if saved is not None and driver.versions.newest == saved.state["versions"] and not driver.interrupted:
            limits = {name: config.get(name) for name in ("steps", "seconds", "target")}
            reached = " or ".join(f"{name} = {value:g}" for name, value in limits.items() if value is not None)
            said = driver.stopped.reason if driver.stopped is not None else f"it has reached its limit ({reached})"
            if tell is not None:
                tell(f"nothing was left to do at step {driver.step}: {said}; to go on, give more steps or seconds")
    except RunFailed as error:
        ended = error
        log.note(driver.time, "failed", str(error))
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            log.close(write=False)
            raise
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        ended = RunFailed(
            f"{cluster.workers} workers need more open files than this process may have ({most}); allow more "
            "(ulimit -n) and resume the run"
        )
        log.note(driver.time, "failed", str(ended))
    except BaseException:
        if evaluator is not None:
            evaluator.stop()
        log.close(write=False)
        raise
    if ended is not None and not begun:
        if evaluator is not None:
            evaluator.stop()
        log.close(write=False)
        raise ended from None
    if driver.interrupted:
        ended = KeyboardInterrupt()
        log.note(driver.time, "interrupted", f"at step {driver.step}")
    try:
        driver.settle()
        _conclude(driver, fresh, evaluator, config, watch)
    except RunFailed as error:
        log.close(write=False)
        raise (ended or error) from None
    if ended is not None:
        log.close()
        raise ended
    standing = driver.versions.standing()
    models = {slot: standing.models[slot] if slot in standing.models else w.copy() for slot, w in driver.models.items()}
    return Run(log, config, path=folder, models=models, beginning=driver.beginning, standing=standing)


def _step(saved: checkpoints.Saved) -> int:
    return int(min(saved.state["versions"].values()))


def _restore(driver: Driver, saved: checkpoints.Saved, folder: Path | None) -> None:
    try:
        driver.restore(saved.state, saved.vectors)
    except (BadInput, RunFailed):
        raise
    except Exception as error:  # of a folder whose files do not belong together
        raise BadInput(
            f"the checkpoint of '{folder}' is not one of the run that its run.toml describes "
            f"({type(error).__name__}: {error})"
        ) from error


def _conclude(
    driver: Driver, fresh: Strategy, evaluator: Evaluator | None, config: dict[str, Any], watch: Watch | None
) -> None:
    """Evaluate what was kept and write the summary."""
    assert driver.log is not None
    evaluations = []
    if evaluator is not None and driver.models:
        for slot, w in driver.versions.trained.items():
            evaluator.keep(slot, driver.versions[slot], driver.time, w, last=True)
        evaluations = evaluator.finish(lambda done, of: _stage(watch, f"evaluating {done} of {of}", at_once=False))
        for evaluation in evaluator.fresh():
            driver.log.evaluation(tuple(evaluation))
    versions = {slot: driver.versions[slot] for slot in driver.versions.trained}
    steps = versions if len(set(versions.values())) > 1 else driver.step  # a limit of seconds cuts models apart
    reached = evaluator.reached if evaluator is not None else None
    last = evaluations[-1] if evaluations else None
    driver.log.flush()
    driver.log.summarise(
        {
            "floor_seconds": floor_seconds(fresh, driver.cluster, steps, driver.log, beginning=driver.beginning),
            "loss": last.loss if last else None,
            "metric": {"name": config["metric"], "value": last.metric} if last and last.metric is not None else None,
            "time_to_target": reached.time if reached else None,
            "ledger": driver.ledger.plain(),
            "stopped": driver.stopped.reason if driver.stopped else None,
        }
    )


@contextlib.contextmanager
def showing(progress: bool, watch: Watch | None) -> Iterator[Watch | None]:
    """``watch``, with progress shown besides if that is asked for."""
    if not progress:
        yield watch
        return
    with Progress(also=watch) as shown:
        yield shown


def _stage(watch: Watch | None, text: str, *, at_once: bool = True) -> None:
    """Tell who watches, if it can show that, what goes on between steps."""
    stage = getattr(watch, "stage", None)
    if stage is not None:
        stage(text, at_once=at_once)


def _watching(evaluator: Evaluator, watch: Watch | None) -> Callable[[Driver], None]:
    def after_step(driver: Driver) -> None:
        update = driver.last_update
        assert update is not None
        slot = update.slot
        version = driver.versions[slot]
        if evaluator.keep(slot, version, driver.time, driver.models[slot]):
            driver.versions.pin(slot, version)
        for returned in evaluator.let_go():
            driver.versions.unpin(*returned)
        for evaluation in evaluator.fresh():
            assert driver.log is not None
            driver.log.evaluation(tuple(evaluation))
        if evaluator.target is not None and evaluator.reached is not None:
            driver.reached = True
        if watch is not None:
            watch(driver, evaluator)

    return after_step


def _saving(driver: Driver, evaluator: Evaluator, folder: Path) -> Callable[[], None]:
    def save() -> None:
        assert driver.log is not None
        log = driver.log
        log.flush(lasting=True)  # never behind a checkpoint
        state = driver.state() | {"every": evaluator.every, "seal": log.seal}
        log.checkpoint(checkpoints.save(folder, state, driver.vectors()))

    return save


# ----------------------------------------------------------------------------------------------- set-up


def _first_metrics(problem: Problem) -> dict[str, float]:
    try:
        return problem.metrics(problem.initial())
    except BadInput:
        raise
    except Exception as error:  # a user's problem may raise anything
        raise BadInput(f"the metrics fail at the initial model: {type(error).__name__}: {error}") from error


def _check_intervals(evaluate_every: int | None, checkpoint_every: float) -> None:
    if evaluate_every is not None and evaluate_every < 1:
        raise BadInput(f"evaluate_every must be at least 1 step, got {evaluate_every}")
    if checkpoint_every < 0:
        raise BadInput(f"checkpoint_every must be at least 0 s, got {checkpoint_every:g}")


def check_limits(
    problem: Problem, steps: int | None, seconds: float | None, target: float | None, begun: int = 0
) -> None:
    """Raise for limits that are out of range, reached already, or out of reach."""
    if steps is not None and steps < 1:
        raise BadInput(f"steps must be at least 1, got {steps}")
    if steps is not None and steps <= begun:
        raise BadInput(f"the run begins at step {begun}, and steps count from 0; they must be more, got {steps}")
    if seconds is not None and not 0 < seconds < float("inf"):
        raise BadInput(f"seconds must be a finite number above 0, got {seconds:g}")
    if target is None:
        return
    first = _first_metrics(problem)
    if math.isnan(first.get(problem.metric, 0.0)):
        raise BadInput(
            f"a target of {target:g} cannot be reached: {problem.metric} is not defined on the held-out rows (nan), as "
            "where they are of one class; hold out others, or give steps or seconds"
        )
    if not first and problem.metric != "loss":
        raise BadInput(
            f"a target is a value of the metric, {problem.metric}, which takes held-out data (X_test and y_test); "
            "without, give steps or seconds"
        )
    metric = problem.metric
    if metric in ("auc", "accuracy") and not 0 < target <= 1:
        raise BadInput(f"a target of {target:g} cannot be reached: {metric} lies between 0 and 1")
    if metric in ("mse", "loss") and not target > 0:
        raise BadInput(f"a target of {target:g} cannot be reached: {metric} is above 0")


def _check_clock(cluster: Cluster, steps: int | None, seconds: float | None) -> None:
    """Raise where a run would go on for ever: its only limit is of a clock that stands still."""
    if steps is None and seconds is not None and not cluster.passes_time:
        raise BadInput(
            f"nothing takes time on the cluster '{cluster.spec}' with delays '{cluster.delays.spec}', so a limit of "
            f"{seconds:g} seconds never comes; give --steps as well, or --delays"
        )


@contextlib.contextmanager
def _patient_interrupts(driver: Driver) -> Iterator[None]:
    """The first Ctrl-C or SIGTERM ends the run between two events; a second one at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def note(number: int, _: Any) -> None:
        del number
        if driver.interrupted:
            raise KeyboardInterrupt
        driver.interrupted = True

    previous = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _quick_switching() -> Iterator[None]:
    previous = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH)
    try:
        yield
    finally:
        sys.setswitchinterval(previous)
