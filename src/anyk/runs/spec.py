"""The request for a run, and how its parts are built and checked in one order."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from anyk.base.checks import AtLeastOne, Nonnegative, typed
from anyk.base.errors import BadInput
from anyk.base.named import names_in_folder
from anyk.base.plain import values_of
from anyk.base.specs import Spec
from anyk.clusters import Cluster
from anyk.clusters import cluster as build_cluster
from anyk.codes import Code
from anyk.delays import Communication, DelayModel
from anyk.optimizers import Optimizer, Schedule, split_rate
from anyk.optimizers import optimizer as build_optimizer
from anyk.problems.base import Problem, Tell, ensure_problem
from anyk.protocol import Strategy, Workers
from anyk.runs.callbacks import Callbacks, check_callbacks
from anyk.runs.defaults import usual_optimizer, with_usual_batch, workers_of
from anyk.runs.engine.warm_start import WarmStart
from anyk.runs.evaluation.evaluate import USUAL, Evaluate, check_evaluate, check_held_out, evaluating, read_evaluate
from anyk.runs.folder.config import Origin, RunConfig
from anyk.runs.folder.promise import Promise
from anyk.runs.folder.rebuilding import describe
from anyk.runs.limits import (
    LIMIT,
    STEPS,
    Limits,
    check_clock,
    check_hooks,
    check_launcher,
    check_limits,
    check_models,
    check_rows,
    plan,
)
from anyk.runs.run import Run
from anyk.strategies import check_recorded, complete_spec, resolve_paths
from anyk.strategies import strategy as build_strategy


@dataclass(frozen=True)
class Preparation:
    """The parts of a run. ``evaluated``: the problem on which it is evaluated.

    ``tell`` receives sentences for the user who resumes a run.
    """

    strategy: Strategy
    cluster: Cluster
    problem: Problem
    optimizer: Optimizer
    config: RunConfig
    warm_start: WarmStart | None
    evaluate: Evaluate | None
    evaluated: Problem
    checkpoint_every: float
    callbacks: Callbacks
    tell: Tell | None = None


Requested = Strategy | Code | Spec


def workers_on(
    cluster: Cluster | str,
    requested: Requested,
    workers: int | tuple[int, int] | Workers | None,
    partitions: int | None,
) -> Workers:
    """Return the workers of a run: those given, or else as many as the cluster has, the strategy is for, or 30."""
    made = Workers.of(workers_of(cluster, requested) if workers is None else workers, partitions)
    if isinstance(cluster, Cluster) and cluster.workers != made.most and made.fewest is not None:
        raise BadInput(f"the cluster has {cluster.workers} workers, got {made.most} as the largest number")
    return made


def fitted(
    problem: Problem, requested: Requested, workers: Workers, *, evaluate: Evaluate | None, target: float | None
) -> tuple[Strategy, Requested]:
    """Return the strategy of a run on a problem, checked, and the request with the mini-batches of the problem's data.

    Whatever trains builds its strategies here. Raises :class:`~anyk.BadInput` if they do not suit the problem, its
    evaluation or the workers.
    """
    built = build_strategy(requested, workers=workers)
    strategy = with_usual_batch(problem, built, requested)
    if strategy is not built and isinstance(requested, Spec):
        requested = requested.with_keys(values_of(strategy, "batch"))
    check_models(problem, strategy)
    check_rows(problem, strategy)
    check_hooks(problem, strategy)
    check_evaluate(evaluate, strategy, target)
    return strategy, requested


@typed
@dataclass(frozen=True, kw_only=True)
class RunSpec:
    """The request for a run: objects or their specs; None for a default."""

    problem: Problem
    strategy: Strategy | Code | Spec | Promise
    cluster: Cluster | str
    workers: int | tuple[int, int] | Workers | None = None
    partitions: AtLeastOne | None = None
    delays: DelayModel | str | None = None
    seed: int | None = None
    communication: Communication | DelayModel | str | None = None
    optimizer: Optimizer | str | None = None
    lr: float | str | Schedule | None = None
    limits: Limits = field(default_factory=Limits)
    begin: WarmStart | Run | str | Path | None = None
    evaluate: Evaluate | str | None = USUAL
    checkpoint_every: Nonnegative = 10.0
    callbacks: Sequence[Any] = ()

    @contextlib.contextmanager
    def prepare(self) -> Iterator[Preparation]:
        """Yield the parts, built and checked; a process that evaluates the run ends with the context."""
        check_launcher(self.cluster)
        ensure_problem(self.problem)
        promise = self.strategy if isinstance(self.strategy, Promise) else None
        spec = self if promise is None else self._as_promised(promise)
        problem, limits, evaluate = spec.problem, spec.limits, read_evaluate(spec.evaluate)
        workers = workers_on(spec.cluster, spec._strategy, spec.workers, spec.partitions)
        cluster = spec._build_cluster(workers)
        strategy, requested = fitted(problem, spec._strategy, workers, evaluate=evaluate, target=limits.target)
        optimizer, warm_start, origin = spec._start_with(strategy, promise)
        first_step = 0 if warm_start is None else warm_start.step
        with evaluating(evaluate, problem) as evaluated:
            check_held_out(evaluate, evaluated)
            check_limits(evaluated, limits, first_step)
            usual = LIMIT if limits.target is not None else STEPS if promise is None else promise.horizon
            limits = limits.within(first_step + usual)
            check_clock(cluster, limits)
            if not isinstance(requested, Spec):
                check_recorded(strategy)
            strategy, callbacks = plan(strategy, limits.steps, first_step), check_callbacks(spec.callbacks)
            strategy_text = (
                complete_spec(requested, strategy) if isinstance(requested, Spec) else resolve_paths(strategy.spec)
            )
            config = describe(
                RunConfig,
                problem=problem,
                cluster=cluster,
                workers=Workers.of_layout(strategy.layout),
                optimizer=optimizer,
                limits=limits,
                evaluate=evaluate,
                callbacks=callbacks,
                strategy=strategy_text,
                partitions=strategy.layout.partitions,
                auxiliary=list(strategy.layout.auxiliary),
                metric=problem.metric,
                better=problem.better,
                begin=origin,
                plan=promise,
            )
            yield Preparation(
                strategy=strategy,
                cluster=cluster,
                problem=problem,
                optimizer=optimizer,
                config=config,
                warm_start=warm_start,
                evaluate=evaluate,
                evaluated=evaluated,
                checkpoint_every=spec.checkpoint_every,
                callbacks=callbacks,
            )

    def _as_promised(self, promise: Promise) -> RunSpec:
        """Return the request with the plan's choices; raise if it asks for other workers."""
        expected, got = promise.workers, self.workers
        if got is None and isinstance(self.cluster, Cluster):
            got = self.cluster.workers if self.cluster.workers != expected.most else None
        if got is not None and Workers.of(got, expected.partitions) != expected:
            raise BadInput(f"the plan is for {expected} workers, got {got}; plan for the fleet that is to train")
        if self.partitions not in (None, expected.partitions):
            raise BadInput(
                f"the plan is for {expected} workers, got {self.partitions} partitions; plan for the fleet that is to "
                "train"
            )
        return replace(
            self,
            strategy=promise.strategy,
            workers=expected,
            partitions=None,
            optimizer=promise.optimizer if self.optimizer is None and self.begin is None else self.optimizer,
            limits=self.limits or Limits(target=promise.target),
        )

    @property
    def _strategy(self) -> Strategy | Spec:
        """The strategy, or its spec."""
        assert not isinstance(self.strategy, Promise)
        return self.strategy if isinstance(self.strategy, Spec) else build_strategy(self.strategy)

    def _build_cluster(self, workers: Workers) -> Cluster:
        """Return the cluster, which may exist already."""
        settings = values_of(self, "delays", "seed", "communication")
        if isinstance(self.cluster, str):
            return build_cluster(self.cluster, **settings | {"workers": workers.most, "seed": self.seed or 0})
        if isinstance(self.workers, int) and self.partitions is None:
            settings["workers"] = self.workers
        if key := next((key for key, value in settings.items() if value is not None), None):
            raise BadInput(f"the cluster already exists; give {key} when it is created, as in anyk.cluster(…, {key}=…)")
        return self.cluster

    def _start_with(
        self, strategy: Strategy, promise: Promise | None
    ) -> tuple[Optimizer, WarmStart | None, Origin | None]:
        """Return the optimiser (by default the earlier run's), the warm start and its origin."""
        begin, optimizer = self.begin, self.optimizer
        if begin is None or isinstance(begin, WarmStart):
            rate, names_rate = self.lr, isinstance(optimizer, str) and split_rate(optimizer)[1] is not None
            if promise is not None and rate is None and not names_rate and not isinstance(optimizer, Optimizer):
                rate = promise.learning_rate
            return usual_optimizer(self.problem, optimizer, rate), begin, None
        with contextlib.nullcontext(begin) if isinstance(begin, Run) else Run.open(begin) as earlier:
            if optimizer is None:
                with names_in_folder(earlier.path or Path(), {}, trust=False):
                    rate = earlier.config.lr if self.lr is None else self.lr
                    taken_over = build_optimizer(earlier.config.optimizer, lr=rate)
            else:
                taken_over = usual_optimizer(self.problem, optimizer, self.lr)
            warm_start = earlier.warm_start()
            warm_start.check(strategy, self.problem, taken_over, earlier.config.optimizer)
            run = str(earlier.path or "a run in memory")
            return taken_over, warm_start, Origin(run, earlier.config.strategy, warm_start.step)
