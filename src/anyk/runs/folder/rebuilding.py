"""What the folder of several runs names, made again and held against what it was when the folder was made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from anyk.clusters import Cluster
from anyk.clusters import cluster as build_cluster
from anyk.errors import BadInput
from anyk.named import names_in_folder
from anyk.optimizers import Optimizer
from anyk.optimizers import optimizer as build_optimizer
from anyk.problems import from_recipe
from anyk.problems.base import Problem
from anyk.runs.evaluation.settings import evaluating, read_evaluate
from anyk.runs.folder.digests import admit_strategy, check_named, check_problem, check_traces, with_plugins
from anyk.runs.limits import check_address, check_limits
from anyk.strategies import strategy as build_strategy


class Reopened(NamedTuple):
    """What the runs of a folder have in common."""

    problem: Problem
    optimizer: Optimizer
    cluster: Cluster


def reopened(
    folder: Path,
    config: Mapping[str, Any],
    of: str,
    *,
    call: str,
    strategies: Iterable[str] = (),
    problem: Problem | None = None,
    optimizer: Optimizer | None = None,
    trust: bool = False,
) -> Reopened:
    """The problem, optimiser and cluster that a folder's configuration names, unless they are given.

    ``of`` names the folder in messages, ``call`` the function to which a problem made in Python is given again.
    ``strategies``: those that the folder names. Raises :class:`~anyk.errors.BadInput` where data, traces or code are
    not those that the folder was made with, for code that is not trusted, and for limits that cannot be.
    """
    check_named(config, of)
    with names_in_folder(folder, config["digests"].get("code", {}), trust=trust):
        for spec in strategies:
            admit_strategy({"strategy": spec})
        check_address(config["cluster"], of, trust=trust)
        if problem is None:
            if not config.get("problem"):
                raise BadInput(f"the problem of '{folder}' was made in Python; give it again: {call}(path, problem=…)")
            problem = from_recipe(config["problem"])
        optimizer = optimizer or build_optimizer(config["optimizer"], lr=config["lr"])
    check_problem(config, problem, of)
    with evaluating(read_evaluate(config.get("evaluate", "")), problem) as evaluated:
        check_limits(evaluated, config.get("steps"), config.get("seconds"), config.get("target"))
    with with_plugins(config, of):
        for spec in strategies:
            build_strategy(spec, workers=config["workers"])
        cluster = build_cluster(
            config["cluster"],
            workers=config["workers"],
            delays=config["delays"],
            seed=config["seed"],
            communication=config["communication"],
        )
    check_traces(config, cluster, of)
    return Reopened(problem, optimizer, cluster)
