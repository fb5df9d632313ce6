"""Connections to Ray clusters, and the start of local ones that no other machine can reach."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import socket
import time
from collections.abc import Iterator, Mapping
from typing import Any

from anyk.base.errors import MissingPackage, as_bad_input
from anyk.clusters.remote.workforce import NOTICE

_KNOCK = 10.0  # seconds that a machine may take to answer
_TOKEN = secrets.token_hex(32)  # the token of all Ray clusters that this process starts: Ray reads it once


@contextlib.contextmanager
def loopback() -> Iterator[None]:
    """Let Ray listen on the loopback address only, and accept only programs that have this process's token.

    Otherwise anyone who reaches a Ray cluster can run code on it. Ray listens on the loopback address only if its
    clusters are limited to one machine, as on macOS; otherwise it replaces 127.0.0.1 by the machine's external address.
    Versions of Ray before 2.52 do not support tokens.
    """
    from ray._private import ray_constants

    settings = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
    if "RAY_AUTH_MODE" not in os.environ:
        settings |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": _TOKEN}
    clusters, variables = ray_constants.ENABLE_RAY_CLUSTER, dict(os.environ)
    ray_constants.ENABLE_RAY_CLUSTER = False  # in this process; the environment variable is for those that Ray starts
    os.environ.update(settings)
    read_token()
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = clusters
        for name in settings:
            if name in variables:
                os.environ[name] = variables[name]
            else:
                del os.environ[name]


def read_token() -> None:
    """Make Ray reread the token settings from the environment of this process.

    Otherwise Ray uses the settings from the time of its import. Versions before 2.52 do not support tokens.
    """
    from ray import _raylet

    raylet: Any = _raylet
    with contextlib.suppress(AttributeError):
        raylet.Config.initialize("")
        raylet.AuthenticationTokenLoader.instance().reset_cache()


def knock(address: str) -> None:
    """Raise BadInput if nothing listens at an address: Ray itself waits for minutes, and then ends the program."""
    host, _, port = address.rpartition("//")[2].rpartition(":")
    if not host:
        return  # 'auto', which Ray resolves
    with as_bad_input(f"no Ray cluster answers at '{address}'", OSError, ValueError):
        socket.create_connection((host, int(port)), timeout=_KNOCK).close()


def machines_drained(actors: Mapping[int, Any]) -> dict[int, float]:
    """Return the seconds until a worker's machine is taken away, for the workers whose machines Ray is draining.

    ``actors``: by worker. Ray has no public function for it, and versions without one drain no machine.
    """
    from ray._private.state import state

    # node -> deadline in milliseconds since 1970, or 0
    draining: dict[str, int] = getattr(state, "get_draining_nodes", dict)()
    seconds = {}
    for worker, actor in actors.items() if draining else ():
        node = machine_of(actor)
        if node in draining:
            seconds[worker] = max(0.0, draining[node] / 1000.0 - time.time()) if draining[node] else NOTICE
    return seconds


def machine_of(actor: Any) -> str:
    """Return the id of the machine on which an actor is, "" if it is on none. Ray has no public function for it."""
    from ray._private.state import state

    return str(state.actor_table(actor._actor_id.hex(), None, None).get("Address", {}).get("NodeID", ""))


def one_line(error: BaseException) -> str:
    """Return the most informative line of an error: its first, or the last if it was raised on another machine."""
    lines = [re.sub("\x1b\\[[0-9;]*m", "", line).strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    return lines[-1 if "creation task" in lines[0] else 0].rstrip(".")


def ray_module() -> Any:
    """Return the module ray, imported on first use; raise :class:`~anyk.base.errors.MissingPackage` if missing."""
    try:
        import ray
    except ImportError:
        raise MissingPackage("Ray", "ray", "cluster 'ray'") from None
    return ray
