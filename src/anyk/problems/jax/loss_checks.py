"""What is found out about a loss before it is trained, by tracing it and computing it on a few rows."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import numpy as np

from anyk.base.arrays import Floats, Vector
from anyk.base.errors import BadInput, describe_error
from anyk.problems.base import Index
from anyk.problems.data.sample_batches import Samples
from anyk.problems.jax.model_loss import SEED, JaxNetwork, seed_of
from anyk.problems.jax.pytrees import Held, JaxArray, Tree, first_line
from anyk.problems.replicas import adds_up, not_a_sum, nudge_signs, trial_groups

_ROUNDED = 0.02  # relative difference that rounding may cause in a loss that computes in bfloat16


def try_loss(
    network: JaxNetwork, w: Vector, constants: Held, head: Samples, name: str, *, gradient: bool = True
) -> list[str]:
    """Trace the loss, and its gradient, on some rows, without computing; return the names of its metrics."""
    import jax

    some = min(2, head.tried)
    arguments = w, constants, head.batch(slice(0, some)), SEED
    try:
        if gradient:
            jax.eval_shape(network.gradient, *arguments)
        return list(jax.eval_shape(network.evaluated, *arguments)[1])
    except BadInput as error:
        raise BadInput(str(error)) from None  # without frames of JAX
    except Exception as error:
        reason = describe_error(error, first_line(error))
        raise BadInput(f"the loss fails on the first {some} rows of {name}: {reason}") from None


def check_sum(network: JaxNetwork, w: Vector, constants: Held, head: Samples) -> None:
    """Refuse a loss of several rows that is not the mean of their losses, as far as can be found out."""
    import jax

    draws = itertools.count()

    def total(flat: JaxArray, batch: Tree, seed: JaxArray) -> Any:
        if network.switches:  # without dropout, and with running statistics
            return network.evaluated(flat, constants, batch, seed)[0]
        return network.total(flat, constants, batch, seed)

    with_gradient = jax.jit(jax.value_and_grad(total))

    def measure(rows: Index, places: Index, nudge: int | None) -> Floats:
        nudged = w
        if nudge is not None:
            rounding = np.finfo(w.dtype).eps * nudge_signs(w.size, nudge)
            nudged = w * (1.0 + rounding).astype(w.dtype)
        seed = seed_of(next(draws)) if network.random else SEED
        return np.asarray(np.append(*with_gradient(nudged, head.batch(rows[places]), seed)), dtype=float)

    for rows in trial_groups(head.arrays, head.tried):
        try:
            correct = adds_up(partial(measure, rows), len(rows), tolerance=_ROUNDED)
        except Exception:  # the run reports what fails
            return
        if not correct:
            raise not_a_sum(
                f"rows {', '.join(map(str, rows))}",
                "to leave out targets or weigh them give a loss that is a sum over rows, with reduction='sum'; one "
                "that normalises by the batch is taken as it is with reduction='mean'; outputs of shape (rows, 1) "
                "beside targets of shape (rows,) are not paired: give them the same shape",
                mean=network.mean,
            )


def check_weighted(network: JaxNetwork, reduction: str | None, workers: str) -> None:
    """Refuse weights of rows whose losses cannot be computed one by one."""
    if workers == "numpy":
        raise BadInput("workers='numpy' compute sums without weights; leave workers or weights out")
    if reduction == "mean":
        raise BadInput(
            "weights are of losses of rows, and reduction='mean' is for a loss that normalises by the batch; leave "
            "one of them out"
        )
    if network.keeps:
        raise BadInput(
            "with weights the loss of each row is computed from this row alone, but a state such as running "
            "statistics is of several rows; leave weights out, or let the data contain them and a loss with "
            "reduction='sum' multiply by them"
        )
