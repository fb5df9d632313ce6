"""Limits, intervals, rows, addresses and the launcher of a run, checked before anything is started."""

from __future__ import annotations

import math
import os
from typing import NamedTuple

from anyk.clusters import Cluster
from anyk.errors import BadInput, describe_error
from anyk.problems.base import Problem, abilities_of
from anyk.problems.data.streams import NO_PASS
from anyk.protocol import Strategy
from anyk.specs import parse

LIMIT = 10_000  # steps at most where a target is the only limit: it may be out of reach
STEPS = 100  # taken when no limit is given


class Limits(NamedTuple):
    """The limits of a run, which ends at the first that it reaches: its steps, seconds on its clock, the metric."""

    steps: int | None = None
    seconds: float | None = None
    target: float | None = None

    @property
    def given(self) -> bool:
        """Whether there is a limit."""
        return any(limit is not None for limit in self)

    @property
    def endless(self) -> bool:
        """Whether a run might never reach one."""
        return self.steps is None and self.seconds is None


NO_LIMIT = Limits()


def check_launcher() -> None:
    """Raise :class:`~anyk.errors.BadInput` in the processes of ``torchrun``, each of which would train on its own."""
    size = os.environ.get("WORLD_SIZE", "1")
    if "TORCHELASTIC_RUN_ID" in os.environ and size != "1":
        raise BadInput(
            f"torchrun has started this program {size} times, and each process would train a model of its own; start "
            "it with python, since anyk starts the workers itself"
        )


def check_rows(problem: Problem, strategy: Strategy) -> None:
    """Raise where there are fewer rows than partitions, or full batches are to be computed of a stream."""
    if abilities_of(problem).endless and not strategy.layout.minibatches:
        raise BadInput(NO_PASS)
    if problem.samples < strategy.layout.partitions:
        raise BadInput(
            f"{problem.samples} rows cannot be cut into {strategy.layout.partitions} partitions of at least one row; "
            f"use {'smaller shares=… or ' if strategy.layout.together else ''}fewer workers"
        )


def check_address(cluster: str, of: str, *, trust: bool) -> None:
    """Raise where a folder that is not trusted names a cluster elsewhere, or modules for its workers to import."""
    settings = parse(cluster)[1]
    if not trust and (settings.get("address", "auto") != "auto" or "preload" in settings):
        raise BadInput(
            f"{of} names the cluster '{cluster}', which may belong to somebody else; if it is yours, trust the "
            "folder with "
            "--trust (in Python: trust=True)"
        )


def check_limits(problem: Problem, limits: Limits, begun: int = 0) -> None:
    """Raise for limits that are out of range, reached already, or out of reach."""
    steps, seconds, target = limits
    if steps is not None and steps < 1:
        raise BadInput(f"steps must be at least 1, got {steps}")
    if steps is not None and steps <= begun:
        raise BadInput(f"the run begins at step {begun}, and steps count from 0; they must be more, got {steps}")
    if seconds is not None and not 0 < seconds < float("inf"):
        raise BadInput(f"seconds must be a finite number above 0, got {seconds:g}")
    if target is None:
        return
    first = first_metrics(problem)
    if math.isnan(first.get(problem.metric, 0.0)):
        raise BadInput(
            f"a target of {target:g} cannot be reached: {problem.metric} is not defined on the held-out rows (nan), as "
            "where they are of one class; hold out others, or give steps or seconds"
        )
    if not first and problem.metric != "loss":
        raise BadInput(
            f"a target is a value of the metric, {problem.metric}, which needs held-out data (X_test and y_test); "
            "without them, give steps or seconds"
        )
    metric = problem.metric
    if metric in ("auc", "accuracy") and not 0 < target <= 1:
        raise BadInput(f"a target of {target:g} cannot be reached: {metric} lies between 0 and 1")
    if metric in ("mse", "loss") and not target > 0:
        raise BadInput(f"a target of {target:g} cannot be reached: {metric} is above 0")


def check_intervals(checkpoint_every: float) -> None:
    """Raise for an interval that is out of range."""
    if checkpoint_every < 0:
        raise BadInput(f"checkpoint_every must be at least 0 s, got {checkpoint_every:g}")


def check_clock(cluster: Cluster, limits: Limits) -> None:
    """Raise if a run would never end: its only limit is of a clock that stands still."""
    seconds = limits.seconds
    if limits.steps is None and seconds is not None and not cluster.passes_time:
        raise BadInput(
            f"nothing takes time on the cluster '{cluster.spec}' with delays '{cluster.delays.spec}', so a limit of "
            f"{seconds:g} seconds is never reached; give --steps as well, or --delays"
        )


def plan(strategy: Strategy, steps: int | None, begun: int = 0) -> Strategy:
    """The strategy for so many steps, of which an earlier run has taken some."""
    return strategy.planned(None if steps is None else steps - begun)


def first_metrics(problem: Problem) -> dict[str, float]:
    """Loss and metrics of the initial model; raises :class:`~anyk.errors.BadInput` where they cannot be computed."""
    try:
        return problem.metrics(problem.initial())
    except BadInput:
        raise
    except Exception as error:  # a user's problem may raise anything
        raise BadInput(f"the metrics fail at the initial model: {describe_error(error)}") from error
