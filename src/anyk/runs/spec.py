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
from anyk.base.specs import with_keys
from anyk.clusters import Cluster
from anyk.clusters import cluster as build_cluster
from anyk.codes import Code
from anyk.delays import Communication, DelayModel
from anyk.optimizers import Optimizer, Schedule, split_rate
from anyk.optimizers import optimizer as build_optimizer
from anyk.problems.base import Problem, Tell, ensure_problem
from anyk.protocol import Strategy
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
    check_rows,
    plan,
)
from anyk.runs.run import Run
from anyk.strategies import complete_spec, for_fleet, resolve_paths, with_fleet
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


@typed
@dataclass(frozen=True)
class RunSpec:
    """The request for a run: objects or their specs; None for a default."""

    problem: Problem
    strategy: Strategy | Code | str | Promise
    cluster: Cluster | str
    workers: int | tuple[int, int] | None = None
    delays: DelayModel | str | None = None
    seed: int | None = None
    communication: Communication | DelayModel | str | None = None
    optimizer: Optimizer | str | None = None
    limits: Limits = field(default_factory=Limits)
    begin: WarmStart | Run | str | Path | None = None
    evaluate: Evaluate | str | None = USUAL
    checkpoint_every: Nonnegative = 10.0
    callbacks: Sequence[Any] = ()
    partitions: AtLeastOne | None = None
    lr: float | str | Schedule | None = None

    @contextlib.contextmanager
    def prepare(self) -> Iterator[Preparation]:
        """Yield the parts, built and checked; a process that evaluates the run ends with the context."""
        check_launcher(self.cluster)
        ensure_problem(self.problem)
        promise = self.strategy if isinstance(self.strategy, Promise) else None
        spec = self._for_fleet() if promise is None else self._as_promised(promise)
        problem, limits = spec.problem, spec.limits
        strategy, cluster = spec._build()
        sampled = with_usual_batch(problem, strategy, spec.strategy)
        if sampled is not strategy:
            strategy = sampled
            if isinstance(spec.strategy, str):
                spec = replace(spec, strategy=with_keys(spec.strategy, values_of(sampled, "batch")))
        check_rows(problem, strategy)
        check_hooks(problem, strategy)
        evaluate = read_evaluate(spec.evaluate)
        check_evaluate(evaluate, strategy, limits.target)
        optimizer, warm_start, origin = spec._start_with(strategy, promise)
        first_step = 0 if warm_start is None else warm_start.step
        with evaluating(evaluate, problem) as evaluated:
            check_held_out(evaluate, evaluated)
            check_limits(evaluated, limits, first_step)
            usual = LIMIT if limits.target is not None else STEPS if promise is None else promise.horizon
            limits = limits.within(first_step + usual)
            check_clock(cluster, limits)
            strategy, callbacks = plan(strategy, limits.steps, first_step), check_callbacks(spec.callbacks)
            text = (
                complete_spec(spec.strategy, strategy)
                if isinstance(spec.strategy, str)
                else resolve_paths(strategy.spec)
            )
            config = describe(
                RunConfig,
                problem=problem,
                cluster=cluster,
                optimizer=optimizer,
                limits=limits,
                evaluate=evaluate,
                callbacks=callbacks,
                strategy=text,
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

    @property
    def _strategy(self) -> Strategy | str:
        """The strategy, or its spec."""
        assert not isinstance(self.strategy, Promise)
        return self.strategy if isinstance(self.strategy, str) else build_strategy(self.strategy)

    def _for_fleet(self) -> RunSpec:
        """Return the request with a range of workers, or a number of partitions, as settings of its strategy."""
        strategy = self._strategy
        match self.workers:
            case (fewest, workers):
                pass
            case _ if self.partitions is None:
                return self
            case count:
                fewest = workers = count or workers_of(self.cluster, strategy)
        ready = self.cluster if isinstance(self.cluster, Cluster) else None
        if ready is not None and ready.workers != workers:
            raise BadInput(f"the cluster has {ready.workers} workers, got {workers} as the largest number")
        if isinstance(strategy, str):
            strategy, _ = with_fleet(strategy, (fewest, workers), self.partitions)
        else:
            strategy = for_fleet(strategy, fewest, self.partitions)
        return replace(self, strategy=strategy, workers=workers if ready is None else None, partitions=None)

    def _as_promised(self, promise: Promise) -> RunSpec:
        """Return the request with the plan's choices; raise if it asks for another number of workers."""
        ready = self.cluster if isinstance(self.cluster, Cluster) else None
        workers = self.workers if ready is None else ready.workers
        if (workers is not None and workers != promise.workers) or self.partitions is not None:
            got = f"{self.partitions} partitions" if self.partitions else workers
            raise BadInput(f"the plan is for {promise.workers} workers, got {got}; plan for the fleet that is to train")
        return replace(
            self,
            strategy=promise.strategy,
            workers=promise.workers if ready is None else None,
            optimizer=promise.optimizer if self.optimizer is None and self.begin is None else self.optimizer,
            limits=self.limits or Limits(target=promise.target),
        )

    def _build(self) -> tuple[Strategy, Cluster]:
        """Return the strategy and the cluster."""
        assert not isinstance(self.workers, tuple)
        strategy = self._strategy
        cluster, settings = self.cluster, values_of(self, "workers", "delays", "seed", "communication")
        if isinstance(cluster, str):
            workers = workers_of(cluster, strategy) if self.workers is None else self.workers
            cluster = build_cluster(cluster, **settings | {"workers": workers, "seed": self.seed or 0})
        elif key := next((key for key, value in settings.items() if value is not None), None):
            raise BadInput(f"the cluster already exists; give {key} when it is created, as in anyk.cluster(…, {key}=…)")
        return build_strategy(strategy, workers=cluster.workers), cluster

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
