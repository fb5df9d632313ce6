"""The place of this process in a job that torchrun, srun or ssh has started, and the store at which its nodes meet.

The store is PyTorch's TCPStore, in which whoever reaches its port can write. So every entry is signed.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import ipaddress
import os
import platform
import secrets
import socket
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from importlib.metadata import version
from typing import Any

import msgspec
import numpy as np

from anyk.base.errors import BadInput, needing

WIRE = 1  # version of what driver and nodes say to each other
_FIRST, _AGAIN = 300.0, 2.0  # seconds that the store may take to answer at the start, and when it has ended
_FORGED = 10.0  # seconds that an entry which was not signed with this job's secret may stay
_DRIVER = "driver"  # the name of the driver's entry
_START = (
    "cluster 'nodes' needs one process on each machine, started as in 'RANK=0 WORLD_SIZE=4 MASTER_ADDR=FIRST "
    "MASTER_PORT=29500 python train.py' (RANK 0 to 3), or by torchrun or srun"
)


class SiteEntry(msgspec.Struct):
    """What the store says of a process: its public key, versions and WORLD_SIZE, which life it is, how to reach it."""

    rank: int
    key: str
    life: str
    versions: dict[str, str]
    size: int
    host: str = ""
    port: int = 0  # for the driver: of control


def versions() -> dict[str, str]:
    """Return the versions in which driver and nodes must agree, by name."""
    import torch

    return {
        "wire": str(WIRE),
        "anyk": version("anyk"),
        "Python": ".".join(map(str, sys.version_info[:2])),
        "NumPy": np.__version__,
        "msgspec": msgspec.__version__,
        "torch": str(torch.__version__),
        "byte order": sys.byteorder,
    }


def difference(node: str, theirs: Mapping[str, str], ours: Mapping[str, str]) -> str:
    """Return a sentence that names the versions that differ; empty if none does."""
    apart = [name for name in {**ours, **theirs} if theirs.get(name) != ours.get(name)]
    if not apart:
        return ""
    both = ["; ".join(f"{name} {side.get(name, 'unknown')}" for name in apart) for side in (theirs, ours)]
    return f"{node} has {both[0]}, and the driver {both[1]}; install the same versions on all nodes"


def need_packages(purpose: str) -> None:
    """Raise :class:`~anyk.BadInput` if a package of the extra ``nodes`` is missing that a purpose needs."""
    with needing("pyzmq", "nodes", purpose):
        import zmq  # noqa: F401
    with needing("blake3", "nodes", purpose):
        import blake3  # noqa: F401


def other_size(rank: int, theirs: int, ours: int) -> str:
    """Return a sentence about a node of a job of another size."""
    return f"node {rank} was started with WORLD_SIZE={theirs}, and rank 0 with {ours}; start all with the same one"


def signed(secret: bytes, name: str, value: bytes) -> bytes:
    """Return a value with a signature that holds for this name only."""
    return hmac.new(secret, name.encode() + b"\0" + value, hashlib.sha256).hexdigest().encode() + b" " + value


def unsigned(secret: bytes, name: str, data: bytes) -> bytes:
    """Return a value without its signature; raise :class:`~anyk.BadInput` if that is not right."""
    value = data.partition(b" ")[2]
    if not hmac.compare_digest(signed(secret, name, value), data):
        raise BadInput(
            f"'{name}' in the store at MASTER_ADDR was not signed with this node's ANYK_SECRET; set it to the same "
            "text on all nodes"
        )
    return value


def is_loopback(host: str) -> bool:
    """Return whether a host's address reaches no other machine.

    >>> is_loopback("127.0.0.1"), is_loopback("::1"), is_loopback("10.0.0.1")
    (True, True, False)
    """
    return ipaddress.ip_address(host).is_loopback


def _address_towards(host: str, port: int) -> str:
    """Return the address of this machine from which a host is reached; nothing is sent."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError as error:
        raise BadInput(f"MASTER_ADDR={host} cannot be reached from {platform.node()}: {error.strerror}") from None


@dataclass(frozen=True)
class JobPlace:
    """This process's rank among ``size`` nodes, where the store is, and the address of this machine towards it."""

    rank: int
    size: int
    store_host: str
    store_port: int
    host: str
    secret: bytes

    @classmethod
    def from_environment(cls, address: str = "", environment: Mapping[str, str] | None = None) -> JobPlace:
        """Return the place that RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT describe; SLURM's variables may help.

        ``address``: the address of this machine to use. Raises :class:`~anyk.BadInput` if there is no such place.
        """
        env = dict(os.environ if environment is None else environment)
        if "RANK" not in env and "SLURM_PROCID" in env:
            env |= {"RANK": env["SLURM_PROCID"], "WORLD_SIZE": env.get("SLURM_NTASKS", "")}
            env["LOCAL_WORLD_SIZE"] = str(1 + int(env.get("SLURM_LOCALID", "0")))
            env.setdefault("MASTER_PORT", str(20000 + int(env.get("SLURM_JOB_ID", "0")) % 20000))
            if "MASTER_ADDR" not in env:
                raise BadInput(
                    "under srun cluster 'nodes' needs the first machine's name: export MASTER_ADDR=$(scontrol show "
                    "hostnames $SLURM_JOB_NODELIST | head -n 1)"
                )
        if missing := [name for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if not env.get(name)]:
            raise BadInput(f"{_START}; {' and '.join(missing)} not set")
        try:
            rank, size, port = (int(env[name]) for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"))
        except ValueError:
            raise BadInput(f"RANK, WORLD_SIZE and MASTER_PORT must be whole numbers; {_START}") from None
        if env.get("LOCAL_WORLD_SIZE", "1") != "1":
            raise BadInput(
                "cluster 'nodes' starts the workers of a machine itself and needs one process there, not "
                f"{env['LOCAL_WORLD_SIZE']}; start it with --nproc-per-node 1 (torchrun) or --ntasks-per-node 1 (srun)"
            )
        if not 0 <= rank < size:
            raise BadInput(f"RANK must be from 0 to WORLD_SIZE - 1 = {size - 1}, got {rank}")
        host = address or _address_towards(env["MASTER_ADDR"], port)
        secret = env.get("ANYK_SECRET", "").encode()
        if not secret and not is_loopback(host):
            raise BadInput(
                "between machines cluster 'nodes' needs a secret that only they know, by which they recognise each "
                "other: set ANYK_SECRET to the same text on all nodes (for example of: openssl rand -hex 32)"
            )
        return cls(rank=rank, size=size, store_host=env["MASTER_ADDR"], store_port=port, host=host, secret=secret)


class Site:
    """The store of a job, with this process's life: a number that no other process has."""

    def __init__(self, place: JobPlace) -> None:
        self.place, self.life = place, secrets.token_hex(8)
        self._store = self._connect()

    def _connect(self, within: float = _FIRST) -> Any:
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # otherwise it prints stacks of C++ where a store ends
        with needing("torch", "nodes", "cluster 'nodes', whose nodes meet at its TCPStore,"):
            from torch.distributed import TCPStore
        place, listening = self.place, None
        # under torchrun the store is its agent's, and outlasts this program
        hosts = place.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
        try:
            if hosts:  # on one interface; torch by itself would listen on all
                listening = socket.create_server(
                    (place.host, place.store_port), family=socket.AF_INET6 if ":" in place.host else socket.AF_INET
                ).detach()
            else:
                _await_port(place.store_host, place.store_port, within)
            return TCPStore(
                place.host if hosts else place.store_host,
                place.store_port,
                world_size=None,
                is_master=hosts,
                timeout=timedelta(seconds=within),
                wait_for_workers=False,
                master_listen_fd=listening,
            )
        except (OSError, RuntimeError) as error:
            reason = str(error).splitlines()[0]
            raise BadInput(
                f"rank {place.rank} cannot {'open' if hosts else 'reach'} the store at MASTER_ADDR={place.store_host}, "
                f"MASTER_PORT={place.store_port} ({reason}); is the port free on rank 0, and let through?"
            ) from None

    def publish(self, entry: SiteEntry) -> None:
        """Write this process's entry, as the driver's or as a node's."""
        self.write(_DRIVER if not entry.rank else _node(entry.key), msgspec.json.encode(entry))

    def write(self, name: str, value: bytes) -> None:
        """Write a signed value for all nodes under a name."""
        self._store.set(f"anyk/{name}", signed(self.place.secret, name, value))

    def read(self, name: str) -> bytes | None:
        """Return the value under a name; None if there is none, or the store does not answer.

        Raises :class:`~anyk.BadInput` if it was not signed with this job's secret.
        """
        try:
            if not self._store.check([f"anyk/{name}"]):
                return None
            data = self._store.get(f"anyk/{name}")
        except RuntimeError:  # it has ended, with the program that hosts it
            with contextlib.suppress(BadInput):
                self._store = self._connect(_AGAIN)
            return None
        return unsigned(self.place.secret, name, data)

    def has(self, entry: SiteEntry) -> bool:
        """Return whether the driver's entry is this one, and nobody has written another."""
        try:
            return self.driver() == entry
        except BadInput:
            return False

    def driver(self, *, unlike: str = "") -> SiteEntry | None:
        """Return the driver's entry; None while there is none, or only that of the life ``unlike``."""
        entry = self._look_up(_DRIVER)
        return None if entry is None or entry.life == unlike else entry

    def node(self, key: str) -> SiteEntry | None:
        """Return the entry of the node that has a public key; None if there is none that this job's secret signed."""
        try:
            return self._look_up(_node(key))
        except BadInput:
            return None

    def _look_up(self, name: str) -> SiteEntry | None:
        value = self.read(name)
        if value is None:
            return None
        try:
            return msgspec.json.decode(value, type=SiteEntry)
        except msgspec.MsgspecError:
            raise BadInput(f"'{name}' in the store at MASTER_ADDR is not anyk's entry of this version") from None


def _await_port(host: str, port: int, within: float) -> None:
    """Return when a port accepts connections; TCPStore by itself prints stacks while there is none."""
    until = time.monotonic() + within
    while True:
        try:
            socket.create_connection((host, port), within).close()
            return
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.2)


def _node(key: str) -> str:
    return f"node/{key.encode().hex()}"


def wait_for(find: Callable[[], SiteEntry | None], within: float) -> SiteEntry | None:
    """Return what is found within some seconds; None if nothing is.

    Raises :class:`~anyk.BadInput` if an entry that is not this job's stays for some seconds: the driver replaces what
    strangers write.
    """
    until = time.monotonic() + within
    forged: tuple[float, BadInput] | None = None  # since when there is none but one that is not this job's
    while True:
        answer = None
        try:
            answer = find()
        except BadInput as error:
            forged = forged or (time.monotonic(), error)
        if answer is not None or time.monotonic() >= until:
            return answer
        if forged is not None and time.monotonic() > forged[0] + _FORGED:
            raise forged[1]
        time.sleep(0.1)
