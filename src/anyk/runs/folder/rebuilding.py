"""Descriptions of problem, cluster and optimiser in a folder, from which they are rebuilt and compared."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from anyk import delays
from anyk.base.errors import BadInput
from anyk.base.named import admit, names_in_folder
from anyk.clusters import Cluster
from anyk.clusters import cluster as build_cluster
from anyk.optimizers import Optimizer
from anyk.optimizers import optimizer as build_optimizer
from anyk.problems import from_recipe
from anyk.problems.base import Problem
from anyk.protocol import Workers
from anyk.runs.callbacks import Callbacks
from anyk.runs.evaluation.evaluate import Evaluate, spec_of
from anyk.runs.folder.config import FORMAT, Config, SharedConfig, recipe_of
from anyk.runs.folder.digests import START_ANOTHER, check_named, check_problem, check_traces, with_plugins
from anyk.runs.folder.promise import torch_named
from anyk.runs.limits import Limits, check_address


class Rebuilt(NamedTuple):
    """The objects that the configuration of a folder names."""

    problem: Problem
    optimizer: Optimizer
    cluster: Cluster


def describe(
    kind: Callable[..., Config],
    *,
    problem: Problem,
    cluster: Cluster,
    workers: Workers,
    optimizer: Optimizer,
    limits: Limits,
    evaluate: Evaluate | None,
    callbacks: Callbacks,
    **settings: Any,
) -> Config:
    """Return the configuration of a folder; ``settings``: those of its ``kind``."""
    shared = {
        "format": FORMAT,
        "anyk": version("anyk"),
        "cluster": cluster.spec,
        "workers": workers,
        "delays": delays.resolve_paths(cluster.delays.spec),
        "communication": delays.resolve_paths(cluster.communication.spec),
        "seed": cluster.seed,
        "optimizer": optimizer.spec,
        "lr": optimizer.rate.spec,
        "problem": recipe_of(problem),
        "evaluate": spec_of(evaluate),
        "callbacks": list(callbacks.specs),
    }
    return kind(**shared | vars(limits) | settings)


def rebuild(
    folder: Path,
    config: SharedConfig,
    of: str,
    *,
    call: str,
    problem: Problem | None = None,
    optimizer: Optimizer | None = None,
    cluster: str | None = None,
    trust: bool = False,
) -> Rebuilt:
    """Build the problem, optimiser and cluster that a folder's configuration names, unless they are given.

    ``cluster``: the spec of a cluster to use in place of the recorded one.
    ``of`` names the folder in messages, ``call`` the function to which a problem made in Python is given again. Raises
    :class:`~anyk.BadInput` if data, traces or code are not those that the folder was made with, and for code
    that is not trusted.
    """
    with names_in_folder(folder, config.digests.code, trust=trust), with_plugins(config, of):
        if cluster is None:
            check_address(config.cluster, of, trust=trust)
        admitted = admitted_problem(config, of, problem)
        if admitted is None:
            raise BadInput(f"the problem of '{folder}' was made in Python; give it again: {call}(path, problem=…)")
        if optimizer is None:
            optimizer = build_optimizer(config.optimizer, lr=config.lr)
        else:
            _check_optimizer(config, optimizer, of)
        built = build_cluster(
            config.cluster if cluster is None else cluster,
            workers=config.workers.most,
            delays=config.delays,
            seed=config.seed,
            communication=config.communication,
        )
    check_traces(config, built, of)
    return Rebuilt(admitted, optimizer, built)


def _check_optimizer(config: SharedConfig, optimizer: Optimizer, of: str) -> None:
    """Raise :class:`~anyk.BadInput` if an optimiser is not the one that a configuration names."""
    for what, before, now in (("optimizer", config.optimizer, optimizer.spec), ("lr", config.lr, optimizer.rate.spec)):
        if now != before:
            raise BadInput(
                f"{of} has {what} '{before}', got '{now}', and a run that continues keeps what it began with; "
                f"{START_ANOTHER}"
            )


def admitted_problem(config: SharedConfig, of: str, problem: Problem | None, *, needed: bool = True) -> Problem | None:
    """Return the problem that a configuration names, unless it is given; None if it was made in Python.

    Everything else that the configuration names is checked first. ``needed``: whether to make the problem. Raises
    :class:`~anyk.BadInput` as :func:`rebuild` does.
    """
    check_named(config, of)
    for spec in config.strategies:  # other code is checked when it is imported
        for module, name in torch_named(spec):
            admit(module, name, "optimizer")
    if problem is None and needed and config.problem is not None:
        problem = from_recipe(config.problem.plain())
    if problem is not None:
        check_problem(config, problem, of)
    return problem


def cluster_like(cluster: Cluster, config: SharedConfig, seed: int) -> Cluster:
    """Return a further cluster with the same delays."""
    return build_cluster(
        config.cluster,
        workers=config.workers.most,
        delays=cluster.delays,
        seed=seed,
        communication=cluster.communication,
    )
