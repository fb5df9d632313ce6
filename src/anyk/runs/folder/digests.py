"""Digests of the data, the traces and the code that a run was made of; they reveal later changes."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from anyk import delays, strategies
from anyk.base import installed
from anyk.base.errors import BadInput, UnknownName
from anyk.base.named import local_imports, plugins, sha256_of
from anyk.base.regular_files import open_plain
from anyk.base.specs import absolute
from anyk.clusters import Cluster
from anyk.problems import data_digest
from anyk.problems.base import Problem
from anyk.problems.watch import gradient_mark, same_gradient
from anyk.runs.folder.config import Config, Digests, Recipe, SharedConfig, recipe_of
from anyk.runs.folder.promise import torch_named, without_none

START_ANOTHER = "start another run from its model with begin= (on the command line --from)"
_ANOTHER = f"give the problem with which it began, or {START_ANOTHER}"


def digests_of(problem: Problem, cluster: Cluster, config: SharedConfig) -> Digests:
    """Return the digests to store in a folder's configuration."""
    return Digests(
        data=data_digest(problem),
        l2=float(problem.l2),
        gradient=gradient_mark(problem) if recipe_of(problem) is None else [],
        traces=dict(traces_of((cluster.delays, cluster.communication))),
        code=_code_digests([*sorted(_code_named(config)), *map(str, plugins())]),
        plugins=list(map(str, plugins())),
        installed=installed.used_by(_specs_of(config)),
        files=files_of(config.strategies),
    )


def with_callbacks(config: Config, specs: Sequence[str]) -> Config:
    """Return a configuration with other callbacks, if ``specs`` names any, and the digests of their code."""
    if not specs or list(specs) == config.callbacks:
        return config
    code = config.digests.code | _code_digests(_of_callbacks(specs))
    used = config.digests.installed | installed.used_by(specs)
    return replace(config, callbacks=list(specs), digests=replace(config.digests, code=code, installed=used))


@contextmanager
def with_plugins(config: SharedConfig, of: str) -> Iterator[None]:
    """Load only the plug-ins of a run or race; if a name inside is unknown, name those that are not given again."""
    try:
        with installed.only(config.digests.installed):
            yield
    except UnknownName as error:
        installed.check_used(config.digests.installed, _specs_of(config), of)  # another may have the name now
        missing = [file for file in config.digests.plugins if Path(file) not in plugins()]
        if not missing:
            raise
        options = " ".join(f"--plugin {file}" for file in missing)
        raise BadInput(
            f"no {error.what}: {of} was made with plug-ins that are not given now; if they are yours, add {options} "
            "(in Python, import what registers the name)"
        ) from None


def check_problem(config: SharedConfig, problem: Problem, of: str) -> None:
    """Raise :class:`~anyk.BadInput` if the problem's code or data are not those that the run began with."""
    before, now = config.problem or Recipe(), recipe_of(problem) or Recipe()
    if before.problem is not None and now.problem is not None:
        was, source = (name.rpartition(":")[0] for name in (before.problem, now.problem))
        _check_code(config.digests.code, was, source, of)
    if config.digests.data is not None:
        name = before.file or before.data
        what = f"'{name}' has" if name else "the problem's data set has"
        digest = str(data_digest(problem))
        _check_digest(f"{what} changed since {of} began", digest, config.digests.data, "the data's digest")
    if config.digests.l2 not in (None, float(problem.l2)):
        raise BadInput(f"{of} began with l2 {config.digests.l2}, and the problem has {float(problem.l2)}; {_ANOTHER}")
    if config.digests.gradient and not same_gradient(config.digests.gradient, gradient_mark(problem), problem.dtype):
        raise BadInput(f"the problem computes other gradients of the same data than when {of} began; {_ANOTHER}")


def files_of(specs: Iterable[str]) -> dict[str, str]:
    """Return SHA-256 of the files that specs of strategies name, such as a matrix, by absolute path."""
    named: list[str] = []

    def add_file(file: str) -> str:
        named.append(absolute(file))
        return file

    for spec in specs:
        strategies.resolve_paths(spec, add_file)
    return dict(without_none({file: file_digest(file) for file in named}))


def file_digest(file: str | Path, *, follow: bool = True) -> str | None:
    """Return SHA-256 of a data file, or None if it cannot be read; ``follow``: also through a link."""
    try:
        with open_plain(file, follow=follow) as opened:
            return hashlib.file_digest(opened, "sha256").hexdigest()
    except (OSError, ValueError):  # a name may hold a NUL
        return None


def check_named(config: SharedConfig, of: str) -> None:
    """Raise :class:`~anyk.BadInput` if a plug-in, or a file that a strategy names, has changed or is missing.

    A plug-in file that is not given is not missing before one of its names is looked up.
    """
    for file, recorded in config.digests.files.items():
        _check_digest(f"'{file}' has changed since {of} began", file_digest(file), recorded)
    code = config.digests.code
    for path in plugins():
        moved = (source for source in code if Path(source).name == path.name)  # together with its folder
        was = str(path) if str(path) in code else next(moved, None)
        if was is not None:
            _check_code(code, was, str(path), of)
    installed.check_used(config.digests.installed, _specs_of(config), of)


def _check_digest(sentence: str, digest: str | None, recorded: str | None, kind: str = "SHA-256") -> None:
    """Raise :class:`~anyk.BadInput` if a digest is not the one recorded; a missing one is not compared."""
    if digest is not None and recorded is not None and digest != recorded:
        raise BadInput(
            f"{sentence} ({kind} {digest[:8]}…, recorded {recorded[:8]}…); restore it, or start a new run from this "
            "one: anyk train --from"
        )


def _check_code(code: Mapping[str, str], was: str, source: str, of: str) -> None:
    """Raise if a file or module, or code that it imports from its folder, differs from the recorded ``was``."""
    pairs = [(was, source)]
    if source.endswith(".py") and was.endswith(".py"):
        folder, before = Path(source).resolve().parent, Path(was).parent
        pairs += [
            (str(before / module_file.relative_to(folder)), str(module_file))
            for module_file in local_imports(Path(source))
        ]
    for recorded, module_file in pairs:
        _check_digest(
            f"'{module_file}' is not the code of {of}: it has changed since", sha256_of(module_file), code.get(recorded)
        )


def check_traces(config: SharedConfig, cluster: Cluster, of: str) -> None:
    """Raise :class:`~anyk.BadInput` if a trace of delays is not the one that the run began with."""
    for file, digest in traces_of((cluster.delays, cluster.communication)):
        recorded = config.digests.traces.get(file)
        _check_digest(f"the trace '{file}' has changed since {of} began", digest, recorded, "digest")


def traces_of(law: Any) -> Iterator[tuple[str, str]]:
    """Yield the file and the digest of each record of measured delays in a delay model."""
    match law:
        case delays.Trace():
            hasher = hashlib.blake2b(digest_size=16)
            hasher.update(f"{law.times.shape}{law.load_measured}".encode())
            hasher.update(np.ascontiguousarray(law.times).data)
            yield law.file, hasher.hexdigest()
        case list() | tuple():
            for inner in law:
                yield from traces_of(inner)
        case _ if is_dataclass(law):
            for field in fields(law):
                yield from traces_of(getattr(law, field.name))


def _code_digests(named: Collection[str]) -> dict[str, str]:
    """Return SHA-256, by name, of files and modules, and of what the files import from their own folders."""
    imported = [
        str(module_file) for source in named if source.endswith(".py") for module_file in local_imports(Path(source))
    ]
    return dict(without_none({source: sha256_of(source) for source in [*named, *imported]}))


def _code_named(config: SharedConfig) -> set[str]:
    """Return the files and modules of functions and classes that a configuration names."""
    functions = [recipe.problem for recipe in (config.problem.each if config.problem else ()) if recipe.problem]
    named = {name.rpartition(":")[0] for name in functions} | _of_callbacks(config.callbacks)
    specs = (*config.strategies, config.optimizer, config.lr)
    return named | {module for spec in specs for module, _ in torch_named(spec)}


def _specs_of(config: SharedConfig) -> list[str]:
    """Return the specs in a configuration, which may contain names of plug-ins."""
    recipes = config.problem.each if config.problem else ()
    of_data = [spec for recipe in recipes for spec in (recipe.data, recipe.model, recipe.split) if spec]
    fixed = (config.cluster, config.delays, config.communication, config.optimizer, config.lr, config.evaluate)
    return [*config.strategies, *fixed, *config.callbacks, *of_data]


def _of_callbacks(specs: Sequence[str]) -> set[str]:
    """Return the files and modules of functions that make callbacks; built-in ones are recognised by their keys."""
    named = [spec.rpartition(":")[0] for spec in specs]
    return {
        source
        for source in named
        if source.endswith(".py") or ("=" not in source and source.replace(".", "_").isidentifier())
    }
