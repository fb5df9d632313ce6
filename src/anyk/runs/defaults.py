"""Defaults, the same in Python as on the command line."""

from __future__ import annotations

from dataclasses import replace

from anyk.clusters import Cluster
from anyk.errors import BadInput
from anyk.optimizers import Optimizer
from anyk.optimizers import optimizer as build_optimizer
from anyk.problems.base import Problem, abilities_of
from anyk.problems.many import each_of
from anyk.protocol import Strategy
from anyk.specs import parse
from anyk.strategies import Rounds

WORKERS = 30
# optimisers and learning rates of the papers for their data; the default is Nesterov momentum with rate 1/L
_FROM_PAPERS = {
    "amazon": ("accelerated", "10"),
    "covertype": ("accelerated", "0.1"),
    "kc-housing": ("accelerated", "exponential:start=0.1,decay=0.99"),
}


def usual_optimizer(
    problem: Problem, optimizer: Optimizer | str | None = None, lr: float | str | None = None
) -> Optimizer:
    """Return ``optimizer``, with defaults for itself and its learning rate that suit the problem.

    The defaults are Nesterov momentum and 1 / smoothness, or the papers' settings on their data. Raises
    :class:`~anyk.errors.BadInput` if the problem has no smoothness.

    >>> import anyk
    >>> optimizer = usual_optimizer(anyk.problems.from_data("synthetic:rows=60,features=4"))
    >>> optimizer.name, optimizer.rate.at(0) > 0
    ('nesterov', True)
    """
    if isinstance(optimizer, Optimizer):
        return optimizer
    name, rate = usual_rule(str((problem.recipe() or {}).get("data", "")), optimizer)
    learning_rate = lr if lr is not None else rate
    if learning_rate is None:
        smoothness = _smoothness(problem)
        if smoothness is None:
            example = f"{type(build_optimizer(name, lr=1.0)).__name__}({'…, ' if ':' in name else ''}lr=…)"
            raise BadInput(
                "no default learning rate is known for this problem; give it a smoothness(), or a rate: --lr, or in "
                f"Python optimizer=anyk.optimizers.{example}"
            )
        learning_rate = f"{1.0 / (smoothness or 1.0):.3g}"
    return build_optimizer(name, lr=learning_rate)


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
    for each in {id(each): each for each in each_of(problem)}.values():
        smoothness = abilities_of(each).smoothness
        if smoothness is None:
            return None
        values.append(float(smoothness()))
    return max(values)


def with_usual_batch(problem: Problem, strategy: Strategy, requested: object) -> Strategy:
    """Return a strategy with the mini-batches of the problem's data (a ``DataLoader``), unless it has its own.

    The samples of a step are spread evenly over the partitions. ``requested``: what was asked for, perhaps a spec.
    Raises :class:`~anyk.errors.BadInput` if that is impossible, or if the strategy is none of rounds of gradients.
    """
    layout = strategy.layout
    sizes = {abilities_of(each).step_samples for each in each_of(problem)}
    states = isinstance(requested, str) and "batch" in parse(requested)[1]  # it may be 0: all samples
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


def workers_of(cluster: Cluster | str, strategy: Strategy | str) -> int:
    """Return the number of workers if none is given: the cluster's, the strategy's, or 30."""
    if isinstance(cluster, Cluster):
        return cluster.workers
    return WORKERS if isinstance(strategy, str) else strategy.layout.workers
