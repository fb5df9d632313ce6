"""Steps as arithmetic: what Combine and Mix make of messages, models and the optimiser's vectors."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from anyk.clusters.contract import Cluster
from anyk.errors import RunFailed
from anyk.optimizers import Optimizer, SlowMo
from anyk.optimizers import optimizer as build_optimizer
from anyk.problems.base import Problem, Vector, penalty_of
from anyk.problems.many import problem_of
from anyk.protocol import Combine, Layout, Mix
from anyk.training.audit import Audit
from anyk.training.beginning import OUTER
from anyk.training.ledger import Ledger
from anyk.training.versions import Versions

_AMPLIFIED = 1e-3  # a decode whose gain x rounding exceeds this is refused


class Updates:
    """Checks what a strategy combines, and makes a slot's next version of it."""

    def __init__(
        self,
        layout: Layout,
        cluster: Cluster,
        versions: Versions,
        ledger: Ledger,
        problem: Problem,
        optimizer: Optimizer | None,
    ) -> None:
        self._cluster, self._versions, self._ledger = cluster, versions, ledger
        self._problem, self._optimizer = problem, optimizer
        self._audit = Audit(layout.partitions, layout.blocks)
        self._scratch: NDArray[np.float64] | None = None

    def audited(self, command: Combine) -> Combine:
        """A combine with its residual checked or, where it states none, worked out."""
        parts = []
        for (task, chunk), weight in zip(command.messages, command.weights, strict=True):
            batch = self._ledger.batch(task)
            assert batch is not None
            parts.append((batch, (task - batch.first) * batch.width + chunk, weight))
        step = self._versions[command.slot]
        return command._replace(residual=self._audit.residual(command, parts, step))

    def result(self, command: Combine | Mix) -> Vector | None:
        """The slot's next version, None without an optimiser; raises :class:`~anyk.errors.RunFailed` if not finite."""
        if self._optimizer is None:
            return None
        version = self._versions[command.slot]
        with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is found and named
            if isinstance(command, Combine):
                w = self._stepped(command, version, self._optimizer)
            else:
                w = self._mixed(command, version, self._optimizer)
            if not np.isfinite(np.add.reduce(w)) and not np.isfinite(w).all():
                raise RunFailed(f"diverged at step {version}: the model is no longer finite; lower the learning rate")
        return w

    def _stepped(self, command: Combine, version: int, optimizer: Optimizer) -> Vector:
        """A step by the decoded gradient."""
        slot = command.slot
        problem = problem_of(self._problem, slot)
        rounding = float(np.finfo(problem.dtype).eps) * command.gain
        if rounding > _AMPLIFIED:
            raise RunFailed(
                f"decoding step {version} would amplify the rounding of {problem.dtype} replies {command.gain:.1e} "
                f"times; use {'float64 data or ' if problem.dtype == np.float32 else ''}a repetition code"
            )
        extra = self._compensation(command, version) if command.compensation else None
        gradient = self._cluster.combine(command.messages, command.weights)
        if extra is not None:
            gradient += extra
        w = self._versions.models[slot]
        gradient /= problem.samples if command.divisor == "all" else self._ledger.covered(command.messages)
        if problem.l2:
            if self._scratch is None:
                self._scratch = np.empty(problem.dimension)
            gradient += np.multiply(w, penalty_of(problem), out=self._scratch)
        typed = gradient.astype(problem.dtype, copy=False)
        state = self._versions.optimizer_states[slot]
        return optimizer.step(w, typed, state, version, command.scale, out=self._cluster.blank(slot))

    def _compensation(self, command: Combine, version: int) -> NDArray[np.float64]:
        """The delay compensation of the sum: ``compensation g g (w - w_old)`` of each stale mean gradient g."""
        slot, w = command.slot, self._versions.models[command.slot]
        total = np.zeros(w.size)
        for message, weight in zip(command.messages, command.weights, strict=True):
            base = self._ledger.version(slot, message[0])
            if base != version:
                g = self._cluster.combine([message], [1.0])
                g *= g
                g *= w - self._cluster.model(slot, base)
                total += g * (weight * command.compensation / self._ledger.covered([message]))
        return total

    def _mixed(self, command: Mix, version: int, optimizer: Optimizer) -> Vector:
        """A weighted sum of models, or an outer optimiser's step to it."""
        slot, models = command.slot, self._versions.models
        w = models[slot]
        weights = list(command.weights)
        if command.by_samples:
            samples = [self._ledger.covered([message]) for message in command.messages]
            total = sum(weights)
            weights = [weight * size for weight, size in zip(weights, samples, strict=True)]
            weights = [weight * total / sum(weights) for weight in weights]
        target = self._cluster.combine(command.messages, weights)
        if command.relative:
            for (task, _), weight in zip(command.messages, weights, strict=True):
                target -= weight * self._cluster.model(slot, self._ledger.version(slot, task))
        if command.share:
            target += command.share * w
        for other, weight in command.others:
            target += weight * models[other]
        blank = self._cluster.blank(slot)
        if command.outer is None:
            blank[:] = target
            return blank
        outer = build_optimizer(command.outer[0], lr=command.outer[1])
        change = np.subtract(w, target).astype(w.dtype, copy=False)
        scale = optimizer.rate.at(command.number) if isinstance(outer, SlowMo) else 1.0
        state = self._outer_state(slot, outer, w)
        blank = outer.step(w, change, state, version, scale, out=blank)
        self._versions.optimizer_states[slot] |= {OUTER + name: vector for name, vector in state.items()}
        return blank

    def _outer_state(self, slot: str, outer: Optimizer, w: Vector) -> dict[str, Vector]:
        """The state of the optimiser that steps by what local work has changed."""
        state = self._versions.optimizer_states[slot]
        if not any(name.startswith(OUTER) for name in state):
            for name, vector in outer.start(w).items():
                state[OUTER + name] = vector
        return {name.removeprefix(OUTER): vector for name, vector in state.items() if name.startswith(OUTER)}
