"""Training of several models: while one model waits for stragglers, the fleet works on another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from anyk.clusters import Cluster
from anyk.errors import BadInput
from anyk.problems.base import Problem, ensure_problem
from anyk.problems.many import ManyProblems
from anyk.protocol import Strategy
from anyk.runs.defaults import workers_of
from anyk.runs.run import Run
from anyk.runs.training import train
from anyk.specs import with_keys
from anyk.strategies import strategy as build_strategy


def train_many(
    problems: Sequence[Problem],
    strategy: Strategy | str,
    cluster: Cluster | str = "processes",
    *,
    workers: int | tuple[int, int] | None = None,
    steps: int | None = None,
    **rest: Any,
) -> Run:
    """Train a model for each of ``problems`` simultaneously: round t starts a step of model t mod M.

    Sequential codes (``gc``, ``sr-sgc``, ``m-sgc``) finish a step within T more rounds, other codes in the same round.
    ``steps``: the number of steps of each model. Each model has its slot (``model 0``, …), optimiser state, checkpoint
    and curve (:meth:`Run.history_of`). The other arguments are as in :func:`anyk.train`. The problems must agree in
    dimension, number type and number of samples.

    >>> import anyk
    >>> problem = anyk.problems.from_data("synthetic:rows=60,features=4")
    >>> run = train_many([problem] * 2, "m-sgc:B=1,W=2,lambda=1", anyk.clusters.Simulated(4), steps=3)
    >>> sorted(run.models), run.history_of("model 1")["step"].tolist()
    (['model 0', 'model 1'], [0, 1, 2, 3])
    """
    if not isinstance(problems, Sequence):
        raise BadInput(f"problems must be a list of problems, one for each model, got {problems!r}")
    trained, models = combine(problems)
    if isinstance(strategy, str):
        strategy = with_keys(strategy, {"models": models})
        most = workers_of(cluster, strategy) if workers is None else workers
        built = build_strategy(strategy, workers=most[-1] if isinstance(most, tuple) else most)
    else:
        built = build_strategy(strategy)
    if len(built.layout.slots) != models:
        raise BadInput(f"'{built.spec}' trains {len(built.layout.slots)} models, there are {models} problems")
    return train(trained, strategy, cluster, workers=workers, steps=steps, **rest)


def combine(problem: Problem | Sequence[Problem]) -> tuple[Problem, int]:
    """Return one problem that stands for all problems, and their number; raise for other objects."""
    problems = problem if isinstance(problem, Sequence) else [problem]
    for each in problems:
        ensure_problem(each)
    if not problems:
        raise BadInput("there is no problem to train on")
    return (ManyProblems(problem) if isinstance(problem, Sequence) else problem), len(problems)
