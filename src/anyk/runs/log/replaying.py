"""Replays, which give a run's logged events to a fresh strategy and compare its decisions and models bit by bit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from anyk.base.errors import BadInput
from anyk.base.named import names_in_folder
from anyk.base.specs import parse_spec
from anyk.clusters import Order, Simulated
from anyk.clusters.local import Local
from anyk.optimizers import Optimizer
from anyk.optimizers import optimizer as build_optimizer
from anyk.problems.base import Partitions, Problem
from anyk.protocol import Cut, Dispatch, Event, Layout, Lost, Reply, RequestMessage
from anyk.runs.engine.driver import Driver
from anyk.runs.engine.session import session
from anyk.runs.engine.step_record import StepRecord
from anyk.runs.folder.digests import with_plugins
from anyk.runs.folder.rebuilding import admitted_problem
from anyk.runs.limits import plan
from anyk.runs.log import queries
from anyk.runs.log.log_writer import LogWriter
from anyk.runs.log.runlog import RunLog
from anyk.runs.log.schema import RESET, START
from anyk.runs.run import Run
from anyk.strategies import strategy as build_strategy


@dataclass(frozen=True)
class Replay:
    """The result of a replay.

    ``events`` and ``updates``: the numbers of events replayed and of updates compared. ``decisions``: whether each
    update used the same messages with the same weights. ``model``: whether each version has the same bits; None if it
    was not computed. ``differs``: the first difference. ``resets``: the number of times at which workers lost their own
    states because the run was resumed, as in the replay.
    """

    events: int
    updates: int
    decisions: bool
    model: bool | None
    differs: str | None
    resets: int = 0

    def __str__(self) -> str:
        head = f"{self.events} events, {self.updates} updates"
        head += f", workers' states reset {self.resets} times by resume: " if self.resets else ": "
        if not self.decisions:
            return head + f"the decisions differ: {self.differs}"
        if self.model is None:
            return head + f"the same decisions; the model was not computed ({self.differs})"
        return head + (
            "the same decisions and the same bits of model"
            if self.model
            else f"the same decisions; the model's bits differ: {self.differs} (other libraries or another CPU?)"
        )


class _Recorded(Simulated):
    """A cluster that reports the events of a log, and computes messages when they arrive."""

    recorded = True

    def __init__(self, log: RunLog, workers: int, seed: int, byzantine: Sequence[int]) -> None:
        super().__init__(workers, seed=seed, byzantine=byzantine)
        self._log = log

    def open(self, layout: Layout, partitions: Partitions | None, local: Local | None = None) -> tuple[int, ...]:
        super().open(layout, partitions, local)
        self._schedule.now, present = self._log.started()
        return present

    def execute(self, orders: Sequence[Order]) -> Sequence[Cut]:
        for order in orders:
            match order:
                case Dispatch():
                    self._schedule.dispatch(order)
                    self._schedule.heap.clear()
                case RequestMessage():
                    self._schedule.request(order)
        return ()

    def events(self) -> Iterator[Event | Cut | None]:
        resets = _resets(self._log)
        numbers = self._log.rows("SELECT seq FROM events WHERE kind != ? ORDER BY seq", (START,))
        for (number,), event in zip(numbers, self._log.events(), strict=True):
            self._schedule.now = event.time
            if resets and number > resets[0] and self.computing is not None:
                resets = [reset for reset in resets if reset >= number]
                for states in self.computing.states:
                    states.clear()
            if isinstance(event, Lost):
                self.abandon(event.worker)  # and its optimiser's state
            if isinstance(event, Reply) and self.computing is not None:
                entry = self._schedule.in_flight.get(event.task)
                if entry is None:
                    raise BadInput(f"task {event.task} answered in the log, but was not dispatched in the replay")
                _, chunks, versions, *_ = entry
                chunk = chunks[event.chunk]
                self.computing.compute(event.task, event.chunk, chunk, versions[event.chunk], event.worker)
            yield event


def replay(
    run: Run | str | Path,
    *,
    problem: Problem | None = None,
    optimizer: Optimizer | None = None,
    compute: bool = True,
    trust: bool = False,
) -> Replay:
    """Replay a run's decisions and, with ``compute``, its model.

    To compute the model, ``problem`` and ``optimizer`` are needed if they were made in Python. A run whose strategy has
    no spec cannot be replayed. ``trust`` and the requirements for the problem are as in :func:`anyk.resume`.

    >>> import anyk
    >>> problem = anyk.problems.from_data("synthetic:rows=60,features=4")
    >>> run = anyk.train(problem, "frc:load=2", anyk.clusters.Simulated(4), steps=3)
    >>> print(replay(run, problem=problem))
    9 events, 3 updates: the same decisions and the same bits of model
    """
    run = run if isinstance(run, Run) else Run.open(run)
    code = run.config.digests.code
    named = nullcontext() if run.path is None else names_in_folder(run.path, code, trust=trust)
    with named, with_plugins(run.config, f"the run '{run.path}'"):
        return _replay(run, problem, optimizer, compute)


def _replay(run: Run, problem: Problem | None, optimizer: Optimizer | None, compute: bool) -> Replay:
    config = run.config
    problem = admitted_problem(config, f"the run '{run.path}'", problem, needed=compute)
    reason = None if compute else "not asked for"
    if compute and problem is None:
        reason = "its problem was made in Python; give it with problem=…"
    strategy = build_strategy(config.strategy, workers=config.workers)
    strategy = plan(strategy, config.steps, run.begun)
    new = LogWriter()
    values = {(evaluation.slot, evaluation.version): evaluation.value for evaluation in queries.evaluations(run.log)}

    def observe(record: StepRecord) -> None:
        newest = record.update.slot, record.update.version
        if (value := values.get(newest)) is not None:
            driver.observe(*newest, value)

    driver = Driver(
        strategy,
        _Recorded(run.log, config.workers.most, config.seed, _byzantine(config.cluster)),
        problem=problem if reason is None else None,
        optimizer=(optimizer or build_optimizer(config.optimizer, lr=config.lr)) if reason is None else None,
        log=new,
        warm_start=run.started_with,
        on_step=observe,
    )
    with session(driver):
        driver.run()
    return _compared(run.log, new, reason)


def _compared(log: RunLog, new: RunLog, reason: str | None) -> Replay:
    """Return what the log of a replay shows; ``reason``: the reason if the model was not computed."""
    bits = "SELECT slot, version, digest FROM updates ORDER BY slot, version"
    updates = new.rows(bits)
    counts = sum(1 for _ in new.events()), len(updates)
    resets = len(_resets(log))
    for logged, replayed in zip_longest(queries.decisions(log), queries.decisions(new)):
        if logged != replayed:
            step = (logged or replayed).step
            return Replay(*counts, False, None, f"step {step}: logged {logged}, replayed {replayed}", resets)
    if reason is not None:
        return Replay(*counts, True, None, reason, resets)
    for old, now in zip_longest(log.rows(bits), updates):
        if old != now:
            return Replay(*counts, True, False, f"first at version {(old or now)[1]}", resets)
    return Replay(*counts, True, True, None, resets)


def _resets(log: RunLog) -> list[int]:
    """Return the numbers of the events after which the run was resumed without the workers' own states."""
    return [seq for (seq,) in log.rows("SELECT DISTINCT seq FROM notes WHERE kind = ? ORDER BY seq", (RESET,))]


def _byzantine(cluster: str) -> tuple[int, ...]:
    """Return the workers that send wrong messages."""
    byzantine = parse_spec(cluster)[1].get("byzantine", "")
    return tuple(int(worker) for worker in byzantine.split("/") if worker)
