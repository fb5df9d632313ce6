"""Defaults, the same in Python as on the command line."""

from __future__ import annotations

from anyk.clusters import Cluster
from anyk.clusters import cluster as build_cluster
from anyk.delays import Communication, DelayModel
from anyk.errors import BadInput
from anyk.optimizers import Optimizer
from anyk.optimizers import optimizer as build_optimizer
from anyk.problems.base import Problem, abilities_of
from anyk.problems.many import ManyProblems
from anyk.protocol import Strategy

WORKERS = 30
# what the papers used on their data; elsewhere Nesterov momentum with learning rate 1/L
_KNOWN = {
    "amazon": ("accelerated", "10"),
    "covertype": ("accelerated", "0.1"),
    "kc-housing": ("accelerated", "exponential:start=0.1,decay=0.99"),
}


def usual_optimizer(
    problem: Problem, optimizer: Optimizer | str | None = None, lr: float | str | None = None
) -> Optimizer:
    """``optimizer`` or, where it or its learning rate is left out, what suits the problem.

    That is Nesterov momentum with learning rate 1 / smoothness, or what the papers used on their data. Raises
    :class:`~anyk.errors.BadInput` where the problem does not know its smoothness.

    >>> import anyk
    >>> found = usual_optimizer(anyk.problems.from_data("synthetic:rows=60,features=4"))
    >>> found.name, found.rate.at(0) > 0
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
    """The optimiser for a data set (a spec), or the one given, and its learning rate; None: 1 / smoothness.

    >>> usual_rule("amazon"), usual_rule("amazon", "adam"), usual_rule("digits")
    (('accelerated', '10'), ('adam', None), ('nesterov', None))
    """
    name, rate = _KNOWN.get(data.partition(":")[0], ("nesterov", None))
    if optimizer is None or optimizer == name:
        return name, rate
    return optimizer, None  # the papers' learning rates were found for the papers' method


def _smoothness(problem: Problem) -> float | None:
    """L, of several problems the largest; None where one does not know its own."""
    if isinstance(problem, ManyProblems):
        different = {id(one): one for one in problem.each}
        values = [_smoothness(one) for one in different.values()]
        finite = [value for value in values if value is not None]
        return max(finite) if len(finite) == len(values) else None
    own = abilities_of(problem).smoothness
    return None if own is None else float(own())


def usual_cluster(
    cluster: Cluster | str,
    strategy: Strategy | str,
    *,
    workers: int | None,
    delays: DelayModel | str | None,
    seed: int | None,
    communication: Communication | DelayModel | str | None,
) -> Cluster:
    """``cluster``, or the one that its spec and the other arguments ask for."""
    arguments = {"workers": workers, "delays": delays, "seed": seed, "communication": communication}
    if isinstance(cluster, str):
        if workers is None:
            workers = WORKERS if isinstance(strategy, str) else strategy.layout.workers
        return build_cluster(cluster, workers=workers, delays=delays, seed=seed or 0, communication=communication)
    for key, value in arguments.items():
        if value is not None:
            raise BadInput(f"the cluster already exists; give {key} when it is created, as in anyk.cluster(…, {key}=…)")
    return cluster
