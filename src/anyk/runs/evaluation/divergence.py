"""Runs whose loss ends far above its initial value."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

from anyk.runs.log.schema import Evaluation

_TIMES = 1e3  # factor by which a loss may grow


def divergence(evaluations: Sequence[Evaluation], lr: str, metric: str = "", better: str = "higher") -> str | None:
    """Return a sentence on a model that has diverged, or None.

    A model has diverged if the loss of its last version is not finite, or is above 1,000 times the loss of the first
    version (or above 1,000, if that loss is less than 1). A metric that is to be minimised takes the place of a loss
    that is not evaluated. ``evaluations``: of all slots, oldest first.

    >>> first, last = Evaluation("model", 0, 0.0, 0.7, None), Evaluation("model", 5, 1.0, 2e63, None)
    >>> divergence([first, last], "1e+09")
    'diverged: the loss was 0.7 at step 0 and is 2e+63 at step 5; lower the learning rate (1e+09)'
    """
    by_slot: dict[str, list[Evaluation]] = defaultdict(list)
    for evaluation in evaluations:
        by_slot[evaluation.slot].append(evaluation)
    for own in by_slot.values():
        first, last = own[0], own[-1]
        what, before, after = "loss", first.loss, last.loss
        if before is None and better == "lower":
            what, before, after = metric, first.metric, last.metric
        if before is None or after is None or not math.isfinite(before):
            continue
        if not after <= _TIMES * max(before, 1.0):
            return (
                f"diverged: the {what} was {before:.3g} at step {first.version} and is {after:.3g} at step "
                f"{last.version}; lower the learning rate ({lr})"
            )
    return None
