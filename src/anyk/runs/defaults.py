"""Defaults, the same in Python as on the command line."""

from __future__ import annotations

from dataclasses import replace

from anyk.base.errors import BadInput
from anyk.base.specs import parse_spec, with_keys
from anyk.clusters import Cluster
from anyk.codes import Code
from anyk.optimizers import Optimizer, Schedule, split_rate, suits_smoothness
from anyk.optimizers import optimizer as build_optimizer
from anyk.problems.base import Problem, abilities_of
from anyk.problems.many import each_of
from anyk.protocol import Strategy
from anyk.strategies import Rounds

WORKERS = 30
# optimisers and learning rates of the papers for their data; the default is Nesterov momentum with rate 1/L
_FROM_PAPERS = {
    "amazon": ("accelerated", "10"),
    "covertype": ("accelerated", "0.1"),
    "kc-housing": ("accelerated", "exponential:start=0.1,decay=0.99"),
}


def usual_optimizer(
    problem: Problem, optimizer: Optimizer | str | None = None, lr: float | str | Schedule | None = None
) -> Optimizer:
    """Return ``optimizer``, with defaults for itself and its learning rate that suit the problem.

    The defaults are Nesterov momentum and 1 / smoothness, or the papers' settings on their data. Raises
    :class:`~anyk.BadInput` if two learning rates are given, or none and there is no default: if the problem has
    no smoothness, or the optimiser's steps are not in proportion to the gradient, as those of Adam.

    >>> import anyk
    >>> optimizer = usual_optimizer(anyk.problems.from_data("synthetic:rows=60,features=4"))
    >>> optimizer.name, optimizer.rate.at(0) > 0
    ('nesterov', True)
    """
    if isinstance(optimizer, Optimizer):
        if lr is not None:
            raise BadInput(
                f"the optimizer {optimizer.spec} has its learning rate, {optimizer.rate.spec}, and lr is given as "
                "well; keep one"
            )
        return optimizer
    built, stated_rate = (None, lr) if optimizer is None else split_rate(optimizer, lr)
    name, rate = usual_rule(str((problem.recipe() or {}).get("data", "")), built)
    if stated_rate is None and rate is None:
        check_has_default(name)
        smoothness = _smoothness(problem)
        if smoothness is None:
            raise BadInput(
                f"no default learning rate is known for this problem, which has no smoothness(); {_give(name)}"
            )
        rate = f"{1.0 / (smoothness or 1.0):.3g}"
    return build_optimizer(name, lr=rate if stated_rate is None else stated_rate)


def check_has_default(optimizer: str) -> None:
    """Raise BadInput if an optimiser has no default learning rate; its spec has none."""
    if not suits_smoothness(optimizer):
        raise BadInput(
            f"the optimizer '{optimizer}' has no default learning rate (1 / smoothness is one for gradient descent "
            f"only); {_give(optimizer)}"
        )


def _give(optimizer: str) -> str:
    return f"give one, as in '{with_keys(optimizer, {'lr': 0.001})}', lr=0.001, or --lr 0.001 on the command line"


def usual_rule(data: str, optimizer: str | None = None) -> tuple[str, str | None]:
    """Return the name of the optimiser, by default for a data set (a spec), and its rate; None: 1 / smoothness.

    >>> usual_rule("amazon"), usual_rule("amazon", "adam"), usual_rule("digits")
    (('accelerated', '10'), ('adam', None), ('nesterov', None))
    """
    name, rate = _FROM_PAPERS.get(data.partition(":")[0], ("nesterov", None))
    if optimizer is None or optimizer == name:
        return name, rate
    return optimizer, None  # the papers' learning rates suit only their own optimisers


def _smoothness(problem: Problem) -> float | None:
    """Return the smoothness L, the largest of several problems; None if a problem does not state it."""
    values: list[float] = []
    for member in {id(member): member for member in each_of(problem)}.values():
        smoothness = abilities_of(member).smoothness
        if smoothness is None:
            return None
        values.append(float(smoothness()))
    return max(values)


def with_usual_batch(problem: Problem, strategy: Strategy, requested: object) -> Strategy:
    """Return a strategy with the mini-batches of the problem's data (a ``DataLoader``), unless it has its own.

    The samples of a step are spread evenly over the partitions. ``requested``: what was asked for, perhaps a spec.
    Raises :class:`~anyk.BadInput` if that is impossible, or if the strategy is none of rounds of gradients.
    """
    layout = strategy.layout
    sizes = {abilities_of(member).step_samples for member in each_of(problem)}
    states = isinstance(requested, str) and "batch" in parse_spec(requested)[1]  # it may be 0: all samples
    if layout.minibatches or states or sizes == {None}:
        return strategy
    size = sizes.pop()
    parts = layout.workers if layout.together else layout.partitions
    advice = f"give the strategy the samples of each partition, as in '{strategy.spec.partition(':')[0]}:batch=8'"
    if size is None or sizes:
        raise BadInput(f"the problems have mini-batches of different sizes; {advice}")
    if not isinstance(strategy, Rounds) or layout.inner is not None:
        raise BadInput(
            f"the data has mini-batches of {size} samples, which are spread over the partitions for rounds of a code "
            f"alone; give '{strategy.spec}' batch=…, the samples of each partition, or, if it has no mini-batches, the "
            "data set in the place of its DataLoader"
        )
    if size % parts:
        raise BadInput(
            f"the data has mini-batches of {size} samples, which {parts} partitions cannot share evenly; {advice}, or "
            f"the DataLoader a batch size that is a multiple of {parts}"
        )
    return replace(strategy, batch=size // parts)


def workers_of(cluster: Cluster | str, strategy: Strategy | Code | str) -> int:
    """Return the number of workers if none is given: the cluster's, the strategy's, or 30."""
    if isinstance(cluster, Cluster):
        return cluster.workers
    if isinstance(strategy, str):
        return WORKERS
    return strategy.workers if isinstance(strategy, Code) else strategy.layout.workers
