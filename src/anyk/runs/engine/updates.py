"""Steps of models: what a strategy's Combine and Mix mean, as plans that the cluster's store carries out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from anyk.base.arrays import Vector, Vectors
from anyk.base.errors import RunFailed
from anyk.clusters.contract import Cluster
from anyk.clusters.steps import MixPlan, ModelTerm, StaleMessage, StepPlan
from anyk.clusters.store import Elsewhere
from anyk.optimizers import Optimizer, SlowMo
from anyk.optimizers import optimizer as build_optimizer
from anyk.problems.base import Problem, abilities_of, penalty_of
from anyk.problems.many import problem_of
from anyk.protocol import Combine, Mix
from anyk.runs.engine.audit import Audit
from anyk.runs.engine.ledger import Ledger
from anyk.runs.engine.versions import Versions

_AMPLIFIED = 1e-3  # a decode whose gain x rounding exceeds this is refused


@dataclass(eq=False)
class Updates:
    """Checks a strategy's sums, and computes a slot's next version from them."""

    _cluster: Cluster
    _versions: Versions
    _ledger: Ledger
    _problem: Problem
    _optimizer: Optimizer | None
    _audit: Audit

    def audit(self, command: Combine) -> Combine:
        """Return the command with its residual, which is checked or, if missing, computed."""
        parts = []
        for (task, chunk), weight in zip(command.messages, command.weights, strict=True):
            batch = self._ledger.batch(task)
            assert batch is not None
            parts.append((batch, (task - batch.first) * batch.width + chunk, weight))
        step = self._versions[command.slot]
        return command._replace(residual=self._audit.residual(command, parts, step))

    def result(self, command: Combine | Mix) -> tuple[Vector | Elsewhere, int] | None:
        """Return the slot's next version and its digest, or None without an optimiser.

        Raises :class:`~anyk.RunFailed` if it is not finite.
        """
        if self._optimizer is None:
            return None
        if isinstance(command, Combine):
            return self._combine(command, self._optimizer)
        return self._mix(command, self._optimizer)

    def _combine(self, command: Combine, optimizer: Optimizer) -> tuple[Vector | Elsewhere, int]:
        """Return the model and its digest after a step by the decoded gradient."""
        slot, version = command.slot, self._versions[command.slot]
        problem = problem_of(self._problem, slot)
        rounding = float(np.finfo(problem.dtype).eps) * command.gain
        # a plain sum of the messages rounds as much as it must, also in float16
        if rounding > _AMPLIFIED and command.gain**2 > 1.001 * self._plain_gain_squared(command):
            raise RunFailed(
                f"decoding step {version} would amplify the rounding of {problem.dtype} replies {command.gain:.1e} "
                f"times; use {'float64 data or ' if problem.dtype == np.float32 else ''}a repetition code"
            )
        if command.divisor not in ("all", "counted"):
            raise RunFailed(f"a step divides by 'all' samples or by those 'counted', got {command.divisor!r}")
        penalty = penalty_of(problem)
        by_coordinate = penalty if isinstance(penalty, np.ndarray) else None
        plan = StepPlan(
            slot=slot,
            version=version,
            messages=command.messages,
            weights=command.weights,
            divisor=problem.samples if command.divisor == "all" else self._ledger.covered(command.messages),
            penalty=0.0 if isinstance(penalty, np.ndarray) else penalty,
            compensation=self._stale(command, version) if command.compensation else None,
            scale=command.scale,
        )
        if abilities_of(problem).hooked_parameters:
            hooks = abilities_of(problem).through_hooks
            assert hooks is not None
            optimizer = _ThroughHooks(optimizer, hooks)
        return self._cluster.store.apply(plan, optimizer, by_coordinate)

    def _plain_gain_squared(self, command: Combine) -> int:
        """Return the squared gain of a sum of the messages' partitions, each with the weight 1."""
        return sum(len(self._ledger.partitions(*message)) for message in command.messages)

    def _stale(self, command: Combine, version: int) -> tuple[StaleMessage, ...]:
        """Return the messages with gradients of older versions, and the factors of their compensation."""
        stale = []
        for message, weight in zip(command.messages, command.weights, strict=True):
            base = self._ledger.version(command.slot, message[0])
            if base != version:
                factor = weight * command.compensation / self._ledger.covered([message])
                stale.append(StaleMessage(message, base, factor))
        return tuple(stale)

    def _mix(self, command: Mix, optimizer: Optimizer) -> tuple[Vector | Elsewhere, int]:
        """Return a weighted sum of models, or the model after an outer optimiser's step towards it, and its digest."""
        slot, versions = command.slot, self._versions
        weights = self._weights(command)
        models = []
        if command.relative:
            for (task, _), weight in zip(command.messages, weights, strict=True):
                models.append(ModelTerm(slot, self._ledger.version(slot, task), -weight))
        if command.share:
            models.append(ModelTerm(slot, versions[slot], command.share))
        models += [ModelTerm(other, versions[other], weight) for other, weight in command.others]
        plan = StepPlan(
            slot=slot,
            version=versions[slot],
            messages=command.messages,
            weights=weights,
            mix=MixPlan(tuple(models), command.outer),
        )
        if command.outer is not None and isinstance(build_optimizer(command.outer[0], lr=command.outer[1]), SlowMo):
            plan = plan._replace(scale=optimizer.rate.at(command.number))
        return self._cluster.store.apply(plan, optimizer)

    def _weights(self, command: Mix) -> list[Any]:
        """Return the weights of a mix, multiplied by the samples of its messages where it asks for that."""
        weights = list(command.weights)
        if not command.by_samples:
            return weights
        total = sum(weights)
        samples = [self._ledger.covered([message]) for message in command.messages]
        products = [weight * size for weight, size in zip(weights, samples, strict=True)]
        sum_of_products = sum(products)
        return [product * total / sum_of_products for product in products]


class _ThroughHooks(Optimizer):
    """Steps of an optimiser by what hooks of parameters, which see a whole gradient, make of it."""

    def __init__(self, of: Optimizer, hooks: Callable[[Vector, Vector], Vector]) -> None:
        super().__init__()
        self._of, self._hooks = of, hooks

    def step(
        self, w: Vector, gradient: Vector, state: Vectors, t: int, scale: float = 1.0, out: Vector | None = None
    ) -> Vector:
        return self._of.step(w, self._hooks(w, gradient), state, t, scale, out=out)
