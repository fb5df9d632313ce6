"""Connections to Ray clusters, and local ones that no other machine can reach."""

from __future__ import annotations

import contextlib
import os
import re
import socket
from collections.abc import Iterator
from typing import Any

from anyk.errors import BadInput, MissingPackage

_KNOCK = 10.0  # seconds that a machine may take to answer


@contextlib.contextmanager
def loopback() -> Iterator[None]:
    """Have Ray listen on this machine's loopback address alone: whoever reaches a Ray cluster can run code on it.

    Ray does so where its clusters have one machine only, as on macOS; elsewhere it takes 127.0.0.1 for a name of the
    machine's outward address.
    """
    from ray._private import ray_constants

    name = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
    before, variable = ray_constants.ENABLE_RAY_CLUSTER, os.environ.get(name)
    ray_constants.ENABLE_RAY_CLUSTER, os.environ[name] = False, "0"  # here, and in the programs that Ray starts
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before
        if variable is None:
            del os.environ[name]
        else:
            os.environ[name] = variable


def knock(address: str) -> None:
    """Raise BadInput if nothing listens at an address: Ray itself waits for minutes, and then ends the program."""
    host, _, port = address.rpartition("//")[2].rpartition(":")
    if not host:
        return  # 'auto', which Ray looks up
    try:
        with socket.create_connection((host, int(port)), timeout=_KNOCK):
            pass
    except (OSError, ValueError) as error:
        raise BadInput(f"no Ray cluster answers at '{address}' ({error})") from None


def one_line(error: BaseException) -> str:
    """Return the gist of an error: its first line, or the last if it was raised on another machine."""
    lines = [re.sub("\x1b\\[[0-9;]*m", "", line).strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    return lines[-1 if "creation task" in lines[0] else 0].rstrip(".")


def ray_module() -> Any:
    """Return Ray, imported when it is needed; raise :class:`~anyk.errors.MissingPackage` if it is not installed."""
    try:
        import ray
    except ImportError:
        raise MissingPackage("Ray", "ray", "cluster 'ray'") from None
    return ray
