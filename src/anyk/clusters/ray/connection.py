"""Connections to Ray clusters, and the start of local ones that no other machine can reach."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import signal
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from anyk.base.errors import BadInput, MissingPackage, RunFailed, as_bad_input
from anyk.base.regular_files import LockedFolder, remove_abandoned
from anyk.clusters.ray.answers import leave_errors_closed
from anyk.clusters.remote.workforce import NOTICE

_KNOCK = 10.0  # seconds that a machine may take to answer
_FOLDERS = "anykray-"  # the start of the names of the folders of local Ray clusters
_TOKEN = secrets.token_hex(32)  # the token of all Ray clusters that this process starts: Ray reads it once


class Connection:
    """The program's connection to a Ray cluster, which is made and ended here unless the program has one already.

    ``address``: of a running Ray cluster; "" for a local one that is started, and stopped at the end.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._connected = False  # whether this object, not the program, connected to Ray
        self.folder: LockedFolder | None = None  # the folder of a local Ray cluster that this object started

    def open(self, ray: Any, *, processors: int, resources: Mapping[str, float]) -> None:
        """Connect, if necessary; ``processors`` and ``resources``: those of a local Ray cluster.

        Raises :class:`~anyk.BadInput` if no Ray cluster answers at the address or the program is connected to another,
        and :class:`~anyk.RunFailed` if a local one does not start.
        """
        previous = signal.getsignal(signal.SIGTERM)  # Ray replaces the handler
        leave_errors_closed(ray)
        if ray.is_initialized():
            current = ray.get_runtime_context().gcs_address
            if self._address not in ("", "auto", current):
                raise BadInput(f"this program is connected to the Ray cluster at '{current}', not '{self._address}'")
            return
        self._connected = True
        try:
            address = self._address or os.environ.get("RAY_ADDRESS", "")
            if address:
                knock(address)
                with as_bad_input(f"no Ray cluster answers at '{address}'", Exception):
                    ray.init(address=address, log_to_driver=False, logging_level="ERROR")
            else:
                self._start(ray, processors, resources)
        finally:
            if threading.current_thread() is threading.main_thread() and previous is not None:
                signal.signal(signal.SIGTERM, previous)

    def _start(self, ray: Any, processors: int, resources: Mapping[str, float]) -> None:
        """Start a local Ray cluster, and connect to it."""
        remove_abandoned(_FOLDERS, "/tmp")
        self.folder = LockedFolder(_FOLDERS, "/tmp")  # names of sockets must be short
        # Ray lets all users write to its folder, so it has one inside a folder that only this user may enter
        inside = Path(self.folder.name) / "r"
        inside.mkdir()
        try:
            with loopback():
                ray.init(
                    address="local",
                    num_cpus=processors,
                    resources=dict(resources),
                    include_dashboard=False,
                    log_to_driver=False,
                    logging_level="ERROR",
                    _temp_dir=str(inside),
                    _node_ip_address="127.0.0.1",
                    # with Ray's default, 15, workers would starve if other programs run
                    _system_config={"worker_niceness": 0},
                )
        except Exception as error:
            self.close(ray)
            raise RunFailed(f"Ray does not start here: {one_line(error)}") from None
        address = ray.get_runtime_context().gcs_address
        if not address.startswith("127.0.0.1:"):
            self.close(ray)
            raise RunFailed(
                f"Ray {ray.__version__} listens at {address} instead of 127.0.0.1 only; start Ray yourself, "
                "where no other user can reach it, and pass its address=…"
            )

    def close(self, ray: Any) -> None:
        """End the connection and the Ray cluster that this object started; ``ray``: None if it was never imported."""
        if self._connected and ray is not None:
            ray.shutdown()  # this also stops a Ray cluster that this object started
            self._connected = False
        if self.folder is not None:
            self.folder.cleanup()
            self.folder = None
            read_token()  # other Ray clusters may use other tokens


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
