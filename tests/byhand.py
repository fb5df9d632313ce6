"""Strategies told events by hand, and runs computed again by hand."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from anyk.clusters import Messages
from anyk.protocol import Chunk, Running, Strategy
from anyk.strategies import adapted_tau


class ByHand(Running):
    """A strategy and its state, whose fields can be looked at as if they were one."""

    def __init__(self, strategy: Strategy) -> None:
        super().__init__(strategy)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ("strategy", "state", "on"):
            raise AttributeError(name)
        for owner in (self.state, getattr(self.state, "work", None), getattr(self.state, "crew", None), self.strategy,
                      self.strategy.layout):  # fmt: skip
            if owner is not None and hasattr(owner, name):
                return getattr(owner, name)
        raise AttributeError(name)


def adapted_by_hand(
    run: Any, problem: Any, *, partitions: int, first_tau: int, by_samples: bool
) -> tuple[Any, list[int]]:
    """The model of a run of ``adacomm`` (GD, lr 0.3, seed 3), and the numbers of local steps that the loss gives.

    Only who took part in a step, with which partitions, is taken from the log.
    """
    parts = problem.split(partitions)
    messages, sizes = Messages(parts, seed=3), parts.sizes
    rows = run.log.rows("SELECT info FROM events WHERE kind = 'LossEvaluated' ORDER BY seq")
    losses = {version: loss for _, version, loss, *_ in (json.loads(info) for (info,) in rows)}
    w, tau, taken, taus = problem.initial(), first_tau, 0, [first_tau]
    first = last = problem.loss(w)
    assert losses[0] == pytest.approx(first, abs=1e-12)
    for step in range(1, run.steps + 1):
        works = run.log.rows(
            "SELECT w.partitions, w.batch, w.steps, w.repeat FROM chunks c JOIN works w ON w.id = c.work "
            "WHERE c.step = ?", (step,)
        )  # fmt: skip
        models, weights = [], []
        for plain, batch, steps, repeat in works:
            assert (steps, repeat) == (tau, taken)
            ids = tuple(json.loads(plain))
            samples, model = sum(sizes[j] for j in ids), w.copy()
            for number in range(taken, taken + tau):
                chunk = Chunk(ids, (1.0,) * len(ids), batch=batch)
                gradient = sum(messages.partial_gradient(j, model, chunk, number) for j in ids)
                model = model - 0.3 * (gradient / samples + problem.l2 * model)
            models.append(model)
            weights.append(samples if by_samples else 1)
        w = np.average(models, axis=0, weights=weights)
        taken += tau
        if step in losses:
            loss = problem.loss(w)
            assert losses[step] == pytest.approx(loss, abs=1e-12)
            tau = adapted_tau(first_tau, first, loss, tau, stalled=loss > 0.99 * last)
            last = loss
            taus.append(tau)
    return w, taus
