"""The limits of a run, and checks of a request before anything is started."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, replace
from typing import Annotated

from msgspec import Meta

from anyk.base.checks import AtLeastOne, typed
from anyk.base.errors import BadInput, RunFailed, explaining
from anyk.base.specs import Spec, parse_spec
from anyk.clusters import Cluster
from anyk.problems.base import Problem, abilities_of, initial_of
from anyk.problems.data.streams import NO_PASS
from anyk.problems.many import each_of
from anyk.protocol import Strategy

Duration = Annotated[float, Meta(gt=0, le=1e15)]  # seconds; longer ones would be infinite for every purpose
LIMIT = 10_000  # steps at most if a target is the only limit: it may be out of reach
STEPS = 100  # steps if no limit is specified
_MOST = 1_000_000  # steps that a limit of seconds may take on a virtual clock; without one of steps
_EVERY = 1000  # steps between two checks


@typed
@dataclass(frozen=True)
class Limits:
    """The limits of a run, which ends at the first that it reaches: steps, seconds on its clock, a metric's value."""

    steps: AtLeastOne | None = None
    seconds: Duration | None = None
    target: float | None = None

    def __bool__(self) -> bool:
        """Return whether any limit is specified."""
        return any(limit is not None for limit in vars(self).values())

    @property
    def endless(self) -> bool:
        """Whether a run might never reach a limit."""
        return self.steps is None and self.seconds is None

    def within(self, steps: int) -> Limits:
        """Return the limits of a run that is certain to end: after ``steps`` steps if it might be endless."""
        return replace(self, steps=steps) if self.endless else self


@dataclass
class ClockLimit:
    """Checks the virtual clock at regular steps; ``_first_step``: the step at which the run began."""

    _seconds: float
    _first_step: int
    _look: int = _EVERY

    def check(self, step: int, now: float) -> None:
        """Raise :class:`~anyk.RunFailed` if too little time has passed for the steps taken."""
        steps = step - self._first_step
        if steps < self._look:
            return
        if now * _MOST < self._seconds * steps:
            raise RunFailed(
                f"{steps:,} steps took {now:.3g} s of the virtual clock; at this pace a limit of {self._seconds:g} "
                f"seconds takes more than {_MOST:,} steps; give steps as well, or longer delays"
            )
        self._look = steps + _EVERY


def check_launcher(cluster: Cluster | str) -> None:
    """Raise :class:`~anyk.BadInput` in a process of ``torchrun``, unless these processes are the cluster's nodes."""
    name = cluster.name if isinstance(cluster, Cluster) else parse_spec(cluster)[0]
    size = os.environ.get("WORLD_SIZE", "1")
    if "TORCHELASTIC_RUN_ID" in os.environ and size != "1" and name != "nodes":
        raise BadInput(
            f"torchrun has started this program {size} times, and each process would train a model of its own; start "
            "it with python, since anyk starts the workers itself, or choose the cluster 'nodes'"
        )


def check_models(problem: Problem, strategy: Strategy) -> None:
    """Raise if there is not one problem for each model."""
    problems, models = each_of(problem), strategy.layout.slots
    if len(problems) > 1 and len(problems) != len(models):
        trains = "one model" if len(models) == 1 else f"{len(models)} models"
        raise BadInput(f"there are {len(problems)} problems, and '{strategy.spec}' trains {trains}")


def check_hooks(problem: Problem, strategy: Strategy) -> None:
    """Raise if workers take the steps and the parameters have hooks, which only the driver calls."""
    hooked = abilities_of(problem).hooked_parameters
    if hooked and strategy.layout.inner is not None:
        raise BadInput(
            f"parameter '{hooked[0]}' of the module has a hook, and under '{strategy.spec}' workers take the steps, "
            "where it would not be called; use a strategy whose workers send gradients, or remove the hook"
        )


def check_rows(problem: Problem, strategy: Strategy) -> None:
    """Raise if a partition would have no row, or if a strategy draws full batches or epochs from an endless stream."""
    if abilities_of(problem).endless and not strategy.layout.minibatches:
        raise BadInput(NO_PASS)
    if abilities_of(problem).endless and strategy.layout.epochs:
        raise BadInput("the training data is a stream, which has no epochs; leave out order=epoch")
    if strategy.layout.epochs and any(abilities_of(member).by_weight for member in each_of(problem)):
        raise BadInput(
            "order=epoch takes each sample once in an epoch, and sampling='weights' draws samples in proportion to "
            "their weights; leave out one of them"
        )
    if problem.samples < strategy.layout.partitions:
        raise BadInput(
            f"{problem.samples} rows cannot be cut into {strategy.layout.partitions} partitions of at least one row; "
            f"use {'smaller shares=… or ' if strategy.layout.together else ''}fewer "
            f"{'partitions' if strategy.layout.fewest else 'workers'}"
        )


def check_address(cluster: str, of: str, *, trust: bool) -> None:
    """Raise if an untrusted folder names a remote cluster, modules to import, or a folder in which to remove files."""
    settings = parse_spec(cluster)[1]
    if not trust and (settings.get("address", "auto") != "auto" or {"preload", "spoiled"} & settings.keys()):
        raise BadInput(
            f"{of} names the cluster '{cluster}', which may belong to somebody else; if it is yours, trust the folder "
            "with --trust (in Python: trust=True)"
        )


def check_other_cluster(before: str, cluster: str) -> None:
    """Raise :class:`~anyk.BadInput` if a run on a cluster cannot be continued on another."""
    old, new = Spec(before), Spec(cluster)
    if (old.name == "simulated") != (new.name == "simulated"):
        raise BadInput(
            f"a run on '{old.name}' cannot be continued on '{new.name}': only one of the two has a virtual clock; "
            "start another run from its model with begin= (on the command line --from)"
        )
    if old.keys.get("byzantine") != new.keys.get("byzantine"):
        raise BadInput(f"'{cluster}' has other Byzantine workers than '{before}', with which the run began")


def check_limits(problem: Problem, limits: Limits, first_step: int = 0) -> None:
    """Raise for limits that are reached at the start, or out of reach."""
    steps, target, metric = limits.steps, limits.target, problem.metric
    if steps is not None and steps <= first_step:
        raise BadInput(f"the run starts at step {first_step}, and steps are counted from 0; give more, got {steps}")
    if target is None:
        return
    first = first_metrics(problem)
    if math.isnan(first.get(metric, 0.0)):
        raise BadInput(
            f"a target of {target:g} cannot be reached: {metric} is not defined on the held-out rows (nan), as when "
            "they belong to one class; hold out others, or give steps or seconds"
        )
    if not first and metric != "loss":
        raise BadInput(
            f"a target is a value of the metric, {metric}, which needs held-out data (X_test and y_test); without "
            "them, give steps or seconds"
        )
    if metric in ("auc", "accuracy") and not 0 < target <= 1:
        raise BadInput(f"a target of {target:g} cannot be reached: {metric} lies between 0 and 1")
    if metric in ("mse", "loss") and not target > 0:
        raise BadInput(f"a target of {target:g} cannot be reached: {metric} is above 0")


def check_clock(cluster: Cluster, limits: Limits) -> None:
    """Raise if a run would never end: its only limit is a time on a clock that stands still."""
    seconds = limits.seconds
    if limits.steps is None and seconds is not None and not cluster.passes_time:
        raise BadInput(
            f"nothing takes time on the cluster '{cluster.spec}' with delays '{cluster.delays.spec}', so a limit of "
            f"{seconds:g} seconds is never reached; give --steps as well, or --delays"
        )


def plan(strategy: Strategy, steps: int | None, first_step: int = 0) -> Strategy:
    """Return the strategy for a run from ``first_step`` to ``steps``."""
    return strategy.planned(None if steps is None else steps - first_step)


def first_metrics(problem: Problem) -> dict[str, float]:
    """Return the metrics of the initial model; raise :class:`~anyk.BadInput` if they cannot be computed."""
    initial = initial_of(problem)
    with explaining("the metrics fail at the initial model"):  # a user's problem may raise anything
        return problem.metrics(initial)
