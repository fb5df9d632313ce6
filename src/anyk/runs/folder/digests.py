"""What a run was made of, in digests: its data, its traces and the code that it names. They tell of later changes."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np

from anyk.clusters import Cluster
from anyk.delays import Trace
from anyk.errors import BadInput, UnknownName
from anyk.files import open_plain
from anyk.named import admit, beside, plugins, sha256_of
from anyk.problems import data_digest
from anyk.problems.base import Problem
from anyk.specs import absolute
from anyk.strategies import settled

_TORCH = re.compile(r"(?:torch:|method=|schedule=\(?)([A-Za-z_][\w.]*\.\w+)")


def digests_of(problem: Problem, cluster: Cluster, config: Mapping[str, Any]) -> dict[str, Any]:
    """The digests to keep in a run's configuration, as :class:`~anyk.runs.folder.config.Digests` has them."""
    named = [*sorted(_code_named(config)), *map(str, plugins())]
    code = {where: sha256_of(where) for where in _with_files_beside(named)}
    data = data_digest(problem)
    return {
        **({} if data is None else {"data": data}),
        "traces": dict(traces_of(cluster.delays)) | dict(traces_of(cluster.communication)),
        "code": {where: digest for where, digest in code.items() if digest is not None},
        "plugins": list(map(str, plugins())),
        "files": files_of(config.get("runs") or [config["strategy"]]),
    }


def with_callbacks(config: Mapping[str, Any], specs: Sequence[str]) -> dict[str, Any]:
    """A configuration with other callbacks, and the digests of their code."""
    made = {**config, "callbacks": list(specs)}
    code = {where: sha256_of(where) for where in _with_files_beside(_of_callbacks(made))}
    known = {where: digest for where, digest in code.items() if digest is not None}
    made["digests"] = config["digests"] | {"code": config["digests"].get("code", {}) | known}
    return made


@contextmanager
def with_plugins(config: Mapping[str, Any], of: str) -> Iterator[None]:
    """Where a name is not known inside, tell which plug-ins of a run or race have not been given again."""
    try:
        yield
    except UnknownName as error:
        recorded = config.get("digests", {}).get("plugins", [])
        missing = [file for file in recorded if Path(file) not in plugins()]
        if not missing:
            raise
        again = " ".join(f"--plugin {file}" for file in missing)
        raise BadInput(
            f"no {error.what}: {of} was made with plug-ins that are not given now; if they are yours, add {again} (in "
            "Python, import what registers the name)"
        ) from None


def check_problem(config: Mapping[str, Any], problem: Problem, of: str) -> None:
    """Raise :class:`~anyk.errors.BadInput` where the problem's code or data are not those that the run began with."""
    recorded = config["digests"]
    before, now = config.get("problem") or {}, problem.recipe() or {}
    if "problem" in before and "problem" in now:
        was, where = (name["problem"].rpartition(":")[0] for name in (before, now))
        _check_code(recorded.get("code", {}), was, where, of)
    known, found = recorded.get("data"), data_digest(problem)
    if known is not None and found != known:
        name = before.get("file") or before.get("data")
        what = f"'{name}' has" if name else "the problem's data have"
        raise BadInput(
            f"{what} changed since {of} began: the data's digest is {str(found)[:8]}…, recorded {known[:8]}…; "
            "restore the data, or start a new run from this one: anyk train --from"
        )


def files_of(strategies: Iterable[str]) -> dict[str, str]:
    """SHA-256 of the files that specs of strategies name, as that of a matrix, by absolute path."""
    named: list[str] = []

    def seen(file: str) -> str:
        named.append(absolute(file))
        return file

    for spec in strategies:
        settled(spec, seen)
    found = {file: file_digest(file) for file in named}
    return {file: digest for file, digest in found.items() if digest is not None}


def file_digest(file: str | Path, *, follow: bool = True) -> str | None:
    """SHA-256 of a file that is read and not run, or None if it cannot be read; ``follow``: also through a link."""
    try:
        with open_plain(file, follow=follow) as opened:
            return hashlib.file_digest(opened, "sha256").hexdigest()
    except (OSError, ValueError):  # a name may hold a NUL
        return None


def check_named(config: Mapping[str, Any], of: str) -> None:
    """Raise :class:`~anyk.errors.BadInput` where a plug-in in use, or a file that a strategy names, has changed."""
    for file, known in config.get("digests", {}).get("files", {}).items():
        found = file_digest(file)
        if found is not None and found != known:
            raise BadInput(
                f"'{file}' has changed since {of} began (SHA-256 {found[:8]}…, recorded {known[:8]}…); restore it, or "
                "start a new run from this one: anyk train --from"
            )
    code = config.get("digests", {}).get("code", {})
    for path in plugins():
        alike = [where for where in code if where == str(path)] or [
            where
            for where in code
            if where.endswith(".py") and Path(where).name == path.name  # its folder was moved
        ]
        for was in alike[:1]:
            _check_code(code, was, str(path), of)


def _check_code(code: Mapping[str, str], was: str, where: str, of: str) -> None:
    """Raise where a file or module, or what a file imports from beside it, is not what was recorded of ``was``."""
    pairs = [(was, where)]
    if where.endswith(".py") and was.endswith(".py"):
        folder, before = Path(where).resolve().parent, Path(was).parent
        pairs += [(str(before / part.relative_to(folder)), str(part)) for part in beside(Path(where))]
    for recorded, part in pairs:
        known, found = code.get(recorded), sha256_of(part)
        if known is not None and found is not None and found != known:
            raise BadInput(
                f"'{part}' is not the code of {of}: it has changed since (SHA-256 {found[:8]}…, recorded "
                f"{known[:8]}…); restore it, or start a new run from this one: anyk train --from"
            )


def check_traces(config: Mapping[str, Any], cluster: Cluster, of: str) -> None:
    """Raise :class:`~anyk.errors.BadInput` where a trace of delays is not the one that the run began with."""
    known = config["digests"].get("traces", {})
    for file, found in [*traces_of(cluster.delays), *traces_of(cluster.communication)]:
        if known.get(file, found) != found:
            raise BadInput(
                f"the trace '{file}' has changed since {of} began: its digest is {found[:8]}…, recorded "
                f"{known[file][:8]}…; restore it, or start a new run from this one: anyk train --from"
            )


def traces_of(law: Any) -> Iterator[tuple[str, str]]:
    """The measured delays in a law of delays, by file, with their digests."""
    if isinstance(law, Trace):
        text = hashlib.blake2b(digest_size=16)
        text.update(f"{law.times.shape}{law.load_measured}".encode())
        text.update(np.ascontiguousarray(law.times).data)
        yield law.file, text.hexdigest()
    elif isinstance(law, (list, tuple)):
        for part in law:
            yield from traces_of(part)
    elif is_dataclass(law):
        for field in fields(law):
            yield from traces_of(getattr(law, field.name))


def admit_strategy(config: Mapping[str, Any]) -> None:
    """Raise where the strategy names an optimiser whose code must not run; others are met as they are made."""
    for where, name in torch_named(config["strategy"]):
        admit(where, name, "optimizer")


def _with_files_beside(named: Iterable[str]) -> list[str]:
    """Files and modules, and what the files import from beside them."""
    whole = list(named)
    return whole + [str(part) for where in whole if where.endswith(".py") for part in beside(Path(where))]


def _code_named(config: Mapping[str, Any]) -> set[str]:
    """The files and modules of functions and classes that a configuration names."""
    found = {name.rpartition(":")[0] for name in _problems(config.get("problem") or {})} | _of_callbacks(config)
    return found | {where for key in ("strategy", "optimizer", "lr") for where, _ in torch_named(config[key])}


def _of_callbacks(config: Mapping[str, Any]) -> set[str]:
    """Where the functions are that make callbacks; anyk's own are told from them by their keys."""
    named = [spec.rpartition(":")[0] for spec in config.get("callbacks") or ()]
    return {
        where
        for where in named
        if where.endswith(".py") or ("=" not in where and where.replace(".", "_").isidentifier())
    }


def torch_named(spec: str) -> list[tuple[str, str]]:
    """The modules besides torch's own whose classes a spec names, each with the class's whole name."""
    names = [(name.rpartition(".")[0], name) for name in _TORCH.findall(spec)]
    return [(where, name) for where, name in names if not f"{where}.".startswith("torch.optim.")]


def _problems(recipe: Mapping[str, Any]) -> Iterator[str]:
    """The names of functions in a problem's recipe."""
    if "problem" in recipe:
        yield str(recipe["problem"])
    for one in recipe.get("many", ()):
        yield from _problems(one)
