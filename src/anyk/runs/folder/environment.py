"""The surroundings of a run: versions of Python and numerical packages, the host, and the commit of the user's code."""

from __future__ import annotations

import contextlib
import platform
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_PACKAGES = ("numpy", "torch", "jax")
_PATIENCE = 5.0  # seconds that git may take
_OWN = Path(__file__).parents[1]  # where the command is, as __main__.py


def environment() -> dict[str, str]:
    """Return versions of Python and installed numpy, torch and jax, the host and the commit of the user's repository.

    The repository contains the running script or, without one (a notebook, the command ``anyk``), the current folder; a
    commit with changes that were not committed ends in ``-dirty``. Without a repository there is no commit.

    >>> import numpy
    >>> environment()["numpy"] == numpy.__version__
    True
    """
    versions = {"python": platform.python_version()}
    for package in _PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            versions[package] = version(package)
    versions["host"] = platform.node()
    commit = _commit(_place())
    return versions | ({"commit": commit} if commit else {})


def changes(began: Mapping[str, str]) -> list[str]:
    """Return the differences from the environment in which a run began, as ``torch 3.0.1 (was 2.4.0)``."""
    now = environment() if began else {}
    return [f"{name} {now.get(name, 'missing')} (was {was})" for name, was in began.items() if now.get(name) != was]


def new_major(began: Mapping[str, str]) -> list[str]:
    """Return those :func:`changes` that are another major version of a package, with which bits may differ."""
    now = environment() if began else {}
    pairs = [(name, now[name], began[name]) for name in _PACKAGES if name in began and name in now]
    return [f"{name} {new} (was {old})" for name, new, old in pairs if new.split(".")[0] != old.split(".")[0]]


def _place() -> Path:
    """Return the folder of the running script, or the current folder if there is none or it is anyk's own."""
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    if script is None or Path(script).name == "anyk" or Path(script).parent == _OWN:
        return Path.cwd()
    return Path(script).resolve().parent


def _commit(folder: Path) -> str | None:
    """Return the commit that is checked out in a folder's repository, or None without git or a repository."""
    command = ["git", "-c", "core.fsmonitor=false", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(
            command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_PATIENCE
        )
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None
