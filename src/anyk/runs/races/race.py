"""Races: several strategies on the same problem with the same delays, one after another, with one or more seeds."""

from __future__ import annotations

import timeit
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Self

from msgspec.structs import replace

from anyk.base import installed
from anyk.base.checks import AtLeastOne, typed
from anyk.base.errors import BadInput, RunFailed
from anyk.base.html import html_curves, html_table, html_text
from anyk.base.plain import ByName
from anyk.base.specs import Spec, parse_spec, with_keys
from anyk.clusters import cluster as build_cluster
from anyk.delays import Communication, DelayModel, parse
from anyk.optimizers import Optimizer, Schedule
from anyk.problems.base import Problem, Tell
from anyk.protocol import Workers
from anyk.runs.callbacks import Callbacks, check_callbacks
from anyk.runs.defaults import usual_optimizer
from anyk.runs.evaluation.evaluate import USUAL, Evaluate, check_evaluation, read_evaluate
from anyk.runs.folder.config import write_sealed
from anyk.runs.folder.digests import digests_of, files_of, with_callbacks, with_plugins
from anyk.runs.folder.folders import check_plain, new_folder, unstarted
from anyk.runs.folder.rebuilding import Rebuilt, cluster_like, describe, rebuild
from anyk.runs.limits import Limits, check_launcher
from anyk.runs.live_progress import showing
from anyk.runs.races.race_folder import NAME, RaceConfig, is_race, name_folders, read_race, run_folders, titled
from anyk.runs.races.speedups import compare_seeds, grouped
from anyk.runs.run import Run, result_cells, setup
from anyk.runs.spec import fitted
from anyk.runs.training import combine, resume, train
from anyk.strategies import resolve_paths

_TRIES = 9


@dataclass(frozen=True, repr=False)
class Race:
    """The runs of a race, in the order of the strategies; with several seeds, first all runs with the first seed.

    ``path``: its folder (None: in memory). ``waiting``: titles of runs that have not started. ``config``: its settings,
    as in ``race.toml`` (None without that file). The runs' logs are open until the race is closed, as by ``with``.
    """

    runs: tuple[Run, ...]
    path: Path | None = None
    waiting: tuple[str, ...] = ()
    config: RaceConfig | None = None

    @classmethod
    @typed
    def open(cls, path: str | Path) -> Race:
        """Read the folder of a race, or a folder that contains run folders, such as a probe's.

        Raises :class:`~anyk.BadInput` for any other folder, and if it is damaged or of a newer format.
        """
        folder = Path(path)
        if not is_race(folder):
            raise BadInput(f"'{folder}' is not the folder of a race: it has no {NAME} and no run folders")
        if not (folder / NAME).is_file():
            runs = [Run.open(run_folder) for run_folder in run_folders(folder)]
            return cls(tuple(sorted(runs, key=lambda run: (run.begun, str(run.path)))), folder)
        config = read_race(folder)
        started = [entry for entry in config.entries if (folder / entry.folder).is_dir()]
        waiting = tuple(entry.title for entry in config.entries if entry not in started)
        runs = [Run.open(folder / entry.folder) for entry in started]
        return cls(tuple(runs), path=folder, waiting=waiting, config=config)

    def __repr__(self) -> str:
        names = ", ".join([*map(self.title, self.runs), *self.waiting])
        return f"<Race {names}: {len(self.runs)} of {len(self.runs) + len(self.waiting)} runs>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _repr_html_(self) -> str:
        """Return a table with a row for each run, and their losses against seconds, for notebooks."""
        compared = compare_seeds(self.runs) if len(self.runs) > 1 else None
        times = [by and by.times for by in compared.speed_ups] if compared else [None] * len(self.runs)
        rows = [
            (self.title(run), *result_cells(run), speed_up and f"{speed_up:.1f}x")
            for run, speed_up in zip(self.runs, times, strict=True)
        ]
        lines = {self.title(run): (run.history["seconds"], run.history["loss"]) for run in self.runs}
        metric = self.runs[0].metric_name if self.runs else "metric"
        speed_up = f"speed-up over {compared.over}" if compared else "speed-up"
        waiting = html_text(f"Not started yet: {', '.join(self.waiting)}.") if self.waiting else ""
        table = html_table(["strategy", "steps", "seconds", "loss", metric, speed_up], rows)
        return table + html_curves(lines, "loss") + waiting

    @property
    def seeds(self) -> int:
        """The number of seeds with which each strategy runs."""
        return self.config.seeds if self.config else max(map(len, grouped(self.runs)), default=1)

    def title(self, run: Run) -> str:
        """Return the title of a run: its strategy and, if the race has several seeds, its seed."""
        return titled(run.config.strategy, run.config.seed, self.seeds)

    @property
    def unfinished(self) -> tuple[Run, ...]:
        """The runs that have not reached a limit."""
        return tuple(run for run in self.runs if not _finished(run))

    @property
    def failures(self) -> dict[str, str]:
        """The reason why a run failed, by the run's title."""
        last = {self.title(run): (run.notes or [{}])[-1] for run in self.runs}
        return {title: str(note["text"]) for title, note in last.items() if note.get("kind") == "failed"}

    def report(self) -> ByName:
        """Return setup and results in the form that ``--json`` writes; with several seeds also for each strategy."""
        config = self.config or self.runs[0].config
        top = setup(self.runs[0].config if self.runs else config) | {"seed": config.seed, "seeds": self.seeds}
        if not self.runs:
            return top | {"speed_up_over": None, "speed_up_by": None, "runs": []}
        compared = compare_seeds(self.runs)
        lines = [
            run.result() | {"seed": run.config.seed, "speed_up": by and by.times}
            for run, by in zip(self.runs, compared.speed_ups, strict=True)
        ]
        top |= {"speed_up_over": compared.over, "speed_up_by": compared.by, "runs": lines}
        return (
            top | {"strategies": [compared_strategy.result() for compared_strategy in compared.strategies]}
            if self.seeds > 1
            else top
        )

    def close(self) -> None:
        """Close the logs of all runs."""
        for run in self.runs:
            run.close()


@typed
def race(
    problem: Problem | Sequence[Problem],
    strategies: Sequence[str],
    *,
    workers: int | tuple[int, int] | Workers,
    partitions: int | None = None,
    cluster: str = "processes",
    delays: str | DelayModel = "none",
    seed: int = 0,
    seeds: AtLeastOne = 1,
    communication: str | DelayModel | Communication = "none",
    optimizer: Optimizer | str | None = None,
    lr: float | str | Schedule | None = None,
    steps: int | None = None,
    seconds: float | None = None,
    target: float | None = None,
    out: str | Path | None = None,
    evaluate: Evaluate | str | None = USUAL,
    callbacks: Sequence[Any] = (),
    progress: bool = False,
    before: Tell | None = None,
) -> Race:
    """Train with each of ``strategies`` (specs) on its own cluster with the same delays and seed.

    ``seeds``: the number of runs of each strategy, with ``seed``, ``seed + 1``, …, from which delays, mini-batches and
    random compressors are drawn (:func:`anyk.runs.compare_seeds`). With several problems every strategy trains a model
    for each problem simultaneously. Every run ends at the first of ``steps``, ``seconds`` and ``target`` that it
    reaches. ``out``: a folder for ``race.toml`` and the run folders, which :func:`resume_race` continues; a run that
    fails there does not end the race (:attr:`Race.failures`). ``before`` is called with the title of each run
    (:meth:`Race.title`) before it starts; ``optimizer``, ``lr``, ``evaluate``, ``callbacks`` (the same for all runs)
    and ``progress`` are as for :func:`train`.

    Raises :class:`~anyk.BadInput` for arguments that cannot work and, without ``out``,
    :class:`~anyk.RunFailed` when a run cannot continue.

    >>> import anyk
    >>> problem = anyk.problems.from_data("synthetic:rows=200,features=5")
    >>> result = race(problem, ["uncoded", "frc:load=3"], workers=6, cluster="simulated", delays="exp:mean=1", steps=20)
    >>> uncoded, coded = result.runs
    >>> coded.seconds < uncoded.seconds
    True
    """
    check_launcher(cluster)
    if not strategies:
        raise BadInput("a race needs at least one strategy")
    trained, models = combine(problem)
    workers = Workers.of(workers, partitions)
    limits, evaluate = Limits(steps=steps, seconds=seconds, target=target), read_evaluate(evaluate)
    fit = partial(_fitted, trained, models=models, workers=workers, evaluate=evaluate, target=target)
    names = name_folders([fit(Spec(spec)) for spec in strategies], {})  # all must be valid before the first runs
    fleet = build_cluster(cluster, workers=workers.most, delays=parse(delays), seed=seed, communication=communication)
    optimizer, checked_callbacks = usual_optimizer(trained, optimizer, lr), check_callbacks(callbacks)
    check_evaluation(trained, evaluate, limits)
    config = describe(
        RaceConfig,
        problem=trained,
        cluster=fleet,
        workers=workers,
        optimizer=optimizer,
        limits=limits,
        evaluate=evaluate,
        callbacks=checked_callbacks,
        models=models,
        runs=names,
        seeds=seeds,
    )
    config = replace(config, cluster=cluster)  # as it was asked for: each run builds its own
    folder = None if out is None else Path(out)
    if folder is not None:
        config = replace(config, digests=digests_of(trained, fleet, config))
        new_folder(folder, settings=NAME)
        write_sealed(folder / NAME, config)
    with showing(progress, checked_callbacks) as display:
        return _run_entries(config, Rebuilt(trained, optimizer, fleet), folder, display, before)


def resume_race(
    path: str | Path,
    *,
    add: Sequence[str] = (),
    seeds: int | None = None,
    problem: Problem | None = None,
    optimizer: Optimizer | None = None,
    steps: int | None = None,
    seconds: float | None = None,
    target: float | None = None,
    trust: bool = False,
    callbacks: Sequence[Any] = (),
    before: Tell | None = None,
    tell: Tell | None = None,
) -> Race:
    """Continue the runs of a race that were interrupted or failed, and start those that have not started.

    ``add``: further strategies with the same settings; ``seeds``: a larger number of seeds for all strategies. With new
    limits every run continues to these. The other arguments are as in :func:`anyk.resume`.
    """
    folder = Path(path)
    config, of = read_race(folder), f"the race '{folder}'"
    check_plain(*folder.iterdir())
    limits = Limits(steps=steps, seconds=seconds, target=target)
    if limits:
        config = replace(config, **vars(limits))
    if seeds is not None and seeds < config.seeds:
        raise BadInput(f"{of} has {config.seeds} seeds, which cannot become {seeds}; give a larger number")
    rebuilt = rebuild(folder, config, of, call="anyk.resume_race", problem=problem, optimizer=optimizer, trust=trust)
    evaluate = read_evaluate(config.evaluate)
    check_evaluation(rebuilt.problem, evaluate, config.limits)
    fit = partial(
        _fitted,
        rebuilt.problem,
        models=config.models,
        workers=config.workers,
        evaluate=evaluate,
        target=config.target,
    )
    with with_plugins(config, of):
        for spec in config.runs:
            fit(spec)
    added = [fit(Spec(spec)) for spec in add]
    runs, checked_callbacks = config.runs | name_folders(added, config.runs), check_callbacks(callbacks)
    used = config.digests.installed | installed.used_by(runs)
    digests = replace(config.digests, files=files_of(runs) | config.digests.files, installed=used)
    config = replace(config, runs=runs, seeds=seeds or config.seeds, digests=digests)
    config = with_callbacks(config, checked_callbacks.specs)
    write_sealed(folder / NAME, config)
    arguments = {"trust": trust, "tell": tell} | (vars(limits) if limits else {})
    return _run_entries(
        config=config, rebuilt=rebuilt, folder=folder, callbacks=checked_callbacks, before=before, resumed=arguments
    )


def _run_entries(
    config: RaceConfig,
    rebuilt: Rebuilt,
    folder: Path | None,
    callbacks: Callbacks,
    before: Tell | None,
    resumed: ByName | None = None,
) -> Race:
    """Run each entry that is not finished; ``resumed``: arguments to resume runs with, None for a new race."""
    problem, optimizer, cluster = rebuilt
    runs = []
    for entry in config.entries:
        run_folder = None if folder is None else folder / entry.folder
        if run_folder is not None and resumed is not None and run_folder.is_dir() and not unstarted(run_folder):
            run = Run.open(run_folder)
            if _finished(run) and "steps" not in resumed:
                runs.append(run)
                continue
            run.close()
            start = partial(resume, run_folder, **resumed)
        else:
            fleet = cluster_like(cluster, config, entry.seed)
            settings = {
                "workers": config.workers,
                "out": run_folder,
                "evaluate": config.evaluate,
                **vars(config.limits),
            }
            start = partial(train, strategy=entry.strategy, cluster=fleet, **settings)
        if before is not None:
            before(entry.title)
        try:
            run = start(problem=problem, optimizer=optimizer, callbacks=callbacks.also(title=entry.folder))
        except RunFailed:
            if run_folder is None or not (run_folder / "log.sqlite").is_file():
                raise
            run = Run.open(run_folder)  # its log notes why; the other runs continue
        runs.append(run)
    return Race(tuple(runs), path=folder, config=None if folder is None else config)


def _finished(run: Run) -> bool:
    """Return whether a run has reached a limit or was stopped on purpose."""
    if not run.summary:
        return False
    if run.time_to_target is not None or run.summary.get("stopped"):
        return True
    steps = run.config.steps
    if steps is not None and run.steps >= steps:
        return True
    return not any(note["kind"] in ("interrupted", "failed") for note in run.notes[-1:])


def racers(workers: int | tuple[int, int] | Workers, models: int = 1) -> tuple[str, ...]:
    """Return the default strategies of a race: waiting for all, an exact code, an approximate one, and ``async``.

    With several models ``async``, which trains one only, is omitted, as it is for workers that join and leave.

    >>> racers(30)
    ('uncoded', 'frc:load=3', 'agc:load=3,wait=11', 'async:lr_scale=0.05')
    >>> racers(10)
    ('uncoded', 'frc:stragglers=2', 'frc:stragglers=2,wait=4', 'async:lr_scale=0.05')
    >>> racers(30, models=4)
    ('uncoded', 'frc:load=3', 'frc:load=3,wait=11')
    """
    fleet = Workers.of(workers)
    if fleet.fewest is not None:
        return ("uncoded", *["frc:stragglers=1"] * (fleet.fewest > 1), "uncoded:wait=0.75n")
    n = fleet.most
    if n < 2:
        return ("uncoded", "async:lr_scale=0.05") if models == 1 else ("uncoded",)
    stragglers = min(2, n - 1)
    even = n % (stragglers + 1) == 0
    exact = f"frc:load={stragglers + 1}" if even else f"frc:stragglers={stragglers}"
    early = f"agc:load={stragglers + 1}" if even and models == 1 else exact
    rounds = "uncoded", exact, f"{early},wait={max(1, round(n * 11 / 30))}"
    if models > 1:
        return rounds
    scale = 0.05 if n <= 30 else float(f"{1.5 / n:.2g}")  # a gradient is about n versions old
    return (*rounds, f"async:lr_scale={scale:g}")


def charged(cluster: str, problem: Problem, *, workers: int) -> str:
    """Return a simulated cluster's spec with the seconds that a partition takes on this machine as computing time.

    Specs of other clusters, and those that specify computing times, are returned unchanged.
    """
    name, values = parse_spec(cluster)
    if name != "simulated" or {"task", "partition", "step", "cores"} & values.keys():
        return cluster
    pieces = problem.split(workers)
    pieces.load(range(workers))
    w = problem.initial()
    durations = timeit.repeat(lambda: pieces.partial_gradient(0, w), number=1, repeat=_TRIES)
    return with_keys(cluster, {"partition": float(f"{median(durations):.2g}"), "cores": workers})


def _fitted(
    problem: Problem, spec: Spec, models: int, workers: Workers, *, evaluate: Evaluate | None, target: float | None
) -> Spec:
    """Return a strategy's spec for a number of models; raise if the strategy does not suit the race."""
    spec = resolve_paths(spec)
    several = spec.with_keys({"models": models}) if models > 1 else spec
    try:
        strategy, _ = fitted(problem, several, workers, evaluate=evaluate, target=target)
        trained = len(strategy.layout.slots)
    except BadInput as error:
        if "has no key 'models'" not in str(error):
            raise
        trained = 1
    if models > 1 and trained != models:
        raise BadInput(
            f"'{spec}' trains {trained} model{'s' * (trained > 1)} and cannot race with {models} models; rounds of a "
            "code can, and gc, sr-sgc and m-sgc"
        )
    return several
