"""The arithmetic of steps: Combine and Mix compute the next model from messages, models and optimiser vectors.

Models are processed part by part, so that intermediate results stay in the processor's cache and take no memory,
whatever the model's size; the parts of a large model are distributed over all cores. Coordinates are independent, so
the numbers do not depend on the parts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from anyk.base import keyed
from anyk.base.arrays import Floats, Vector, Vectors
from anyk.base.errors import RunFailed
from anyk.clusters.contract import Cluster
from anyk.clusters.vector_parts import sum_over_parts
from anyk.optimizers import Optimizer, SlowMo
from anyk.optimizers import optimizer as build_optimizer
from anyk.problems.base import Problem, abilities_of, penalty_of
from anyk.problems.many import problem_of
from anyk.protocol import Combine, Mix
from anyk.runs.engine.audit import Audit
from anyk.runs.engine.ledger import Ledger
from anyk.runs.engine.versions import Versions
from anyk.runs.engine.warm_start import OUTER

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

    def result(self, command: Combine | Mix) -> tuple[Vector, int] | None:
        """Return the slot's next version and its digest, or None without an optimiser.

        Raises :class:`~anyk.RunFailed` if it is not finite.
        """
        if self._optimizer is None:
            return None
        version = self._versions[command.slot]
        if isinstance(command, Combine):
            return self._combine(command, version, self._optimizer)
        return self._mix(command, version, self._optimizer)

    def _combine(self, command: Combine, version: int, optimizer: Optimizer) -> tuple[Vector, int]:
        """Return the model and its digest after a step by the decoded gradient."""
        slot, combine = command.slot, self._cluster.store.combine
        problem = problem_of(self._problem, slot)
        rounding = float(np.finfo(problem.dtype).eps) * command.gain
        if rounding > _AMPLIFIED:
            raise RunFailed(
                f"decoding step {version} would amplify the rounding of {problem.dtype} replies {command.gain:.1e} "
                f"times; use {'float64 data or ' if problem.dtype == np.float32 else ''}a repetition code"
            )
        w = self._versions.models[slot]
        divisor = problem.samples if command.divisor == "all" else self._ledger.covered(command.messages)
        penalty = penalty_of(problem)

        def gradient(part: slice) -> Vector:
            g = combine(command.messages, command.weights, part)
            if command.compensation:
                g += self._compensation(command, version, part)
            g /= divisor
            if problem.l2:
                g += w[part] * (penalty[part] if isinstance(penalty, np.ndarray) else penalty)
            return g.astype(problem.dtype, copy=False)

        hooks = abilities_of(problem).through_hooks if abilities_of(problem).hooked_parameters else None
        state = self._versions.optimizer_states[slot]
        return self._step(
            slot=slot, gradient=gradient, optimizer=optimizer, state=state, t=version, scale=command.scale, hooks=hooks
        )

    def _step(
        self,
        slot: str,
        gradient: Callable[[slice], Vector],
        optimizer: Optimizer,
        state: Vectors,
        t: int,
        scale: float,
        hooks: Callable[[Vector, Vector], Vector] | None = None,
    ) -> tuple[Vector, int]:
        """Return the model and its digest after an optimiser's step by a gradient that is computed part by part.

        ``hooks``: a function of the model and the whole gradient, which returns the gradient to step by.
        """
        w, out = self._versions.models[slot], self._cluster.store.blank(slot)
        if hooks is None:
            with optimizer.stepping(w, state, t, scale, out) as take:
                if take is not None:

                    def step(part: slice) -> int:
                        take(part, gradient(part))
                        return self._digest(out[part], t, part)

                    return out, sum_over_parts(step, w.size)
        whole = np.empty_like(w)

        def write(part: slice) -> int:
            whole[part] = gradient(part)
            return 0

        sum_over_parts(write, w.size)
        if hooks is not None:
            whole = hooks(w, whole)
        with np.errstate(over="ignore", invalid="ignore"):
            out = optimizer.step(w, whole, state, t, scale, out=out)
        return out, sum_over_parts(lambda part: self._digest(out[part], t, part), w.size)

    def _digest(self, w: Vector, version: int, part: slice) -> int:
        """Return the digest of ``w``, a part of the next version."""
        if not np.isfinite(w).all():
            raise RunFailed(f"diverged at step {version}: the model is no longer finite; lower the learning rate")
        return keyed.digest(w, part.start)

    def _compensation(self, command: Combine, version: int, part: slice) -> Floats | float:
        """Return the delay compensation of the sum: ``compensation g g (w - w_old)`` of each stale mean gradient g."""
        slot, w = command.slot, self._versions.models[command.slot]
        total: Floats | float = 0.0
        for message, weight in zip(command.messages, command.weights, strict=True):
            base = self._ledger.version(slot, message[0])
            if base != version:
                g = self._cluster.store.combine([message], [1.0], part)
                g *= g
                g *= w[part] - self._cluster.store.model(slot, base)[part]
                total = total + g * (weight * command.compensation / self._ledger.covered([message]))
        return total

    def _mix(self, command: Mix, version: int, optimizer: Optimizer) -> tuple[Vector, int]:
        """Return a weighted sum of models, or the model after an outer optimiser's step towards it, and its digest."""
        slot, models, cluster = command.slot, self._versions.models, self._cluster
        w = models[slot]
        weights = list(command.weights)
        if command.by_samples:
            samples = [self._ledger.covered([message]) for message in command.messages]
            total = sum(weights)
            weights = [weight * size for weight, size in zip(weights, samples, strict=True)]
            weights = [weight * total / sum(weights) for weight in weights]

        def target(part: slice) -> Floats:
            mixed = cluster.store.combine(command.messages, weights, part)
            if command.relative:
                for (task, _), weight in zip(command.messages, weights, strict=True):
                    mixed -= weight * cluster.store.model(slot, self._ledger.version(slot, task))[part]
            if command.share:
                mixed += command.share * w[part]
            for other, weight in command.others:
                mixed += weight * models[other][part]
            return mixed

        if command.outer is None:
            blank = cluster.store.blank(slot)

            def write(part: slice) -> int:
                blank[part] = target(part)
                return self._digest(blank[part], version, part)

            return blank, sum_over_parts(write, w.size)
        outer = build_optimizer(command.outer[0], lr=command.outer[1])
        scale = optimizer.rate.at(command.number) if isinstance(outer, SlowMo) else 1.0
        state = self._outer_state(slot, outer, w)

        def change(part: slice) -> Vector:
            return np.subtract(w[part], target(part)).astype(w.dtype, copy=False)

        model = self._step(slot=slot, gradient=change, optimizer=outer, state=state, t=version, scale=scale)
        self._versions.optimizer_states[slot] |= {OUTER + name: vector for name, vector in state.items()}
        return model

    def _outer_state(self, slot: str, outer: Optimizer, w: Vector) -> Vectors:
        """Return the state of the outer optimiser, which steps by the change of local work."""
        state = self._versions.optimizer_states[slot]
        if not any(name.startswith(OUTER) for name in state):
            for name, vector in outer.start(w).items():
                state[OUTER + name] = vector
        return {name.removeprefix(OUTER): vector for name, vector in state.items() if name.startswith(OUTER)}
