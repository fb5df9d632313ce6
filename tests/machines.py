"""Several machines in one: namespaces of Linux for network, processes, shared memory and temporary files.

Machines have the addresses 10.77.0.1, 10.77.0.2 and so on, on one switch. Needs root, ``ip``, ``tc``, ``unshare`` and
``nsenter``. Scripts use this, tests of CI do not.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

TOOLS = ("ip", "tc", "unshare", "nsenter", "mount")
PRIVATE = ("/dev/shm", "/tmp/ray")  # folders of which each machine has its own


class Network:
    """``count`` network namespaces on one switch while a ``with`` block lasts, named ``prefix`` and their number."""

    def __init__(self, count: int, *, prefix: str, rate: str | None = None) -> None:
        """``rate``: of each link, in each direction, such as ``1gbit``; None does not limit it."""
        missing = [tool for tool in TOOLS if shutil.which(tool) is None]
        if os.getuid() != 0 or missing:
            raise SystemExit(f"machines need root and {', '.join(missing) or 'nothing else'}")
        self.count, self.prefix, self.rate = count, prefix, rate

    def address(self, machine: int) -> str:
        """Return the address of a machine."""
        return f"10.77.0.{machine + 1}"

    @property
    def switch(self) -> str:
        """The namespace of the switch, in which machine 2's port is ``port2``."""
        return f"{self.prefix}switch"

    def space(self, machine: int) -> str:
        """Return the namespace of a machine."""
        return f"{self.prefix}{machine}"

    def __enter__(self) -> Self:
        try:
            _call("ip", "netns", "add", self.switch)
            _call("ip", "-n", self.switch, "link", "add", "br0", "type", "bridge")
            _call("ip", "-n", self.switch, "link", "set", "br0", "up")
            for machine in range(self.count):
                self.add(machine)
        except BaseException:
            self.__exit__()
            raise
        return self

    def add(self, machine: int) -> None:
        """Make a machine's namespace and connect it."""
        space, port = self.space(machine), f"port{machine}"
        _call("ip", "netns", "add", space)
        _call("ip", "link", "add", "eth0", "netns", space, "type", "veth", "peer", "name", port, "netns", self.switch)
        _call("ip", "-n", self.switch, "link", "set", port, "master", "br0", "up")
        _call("ip", "-n", space, "link", "set", "lo", "up")
        _call("ip", "-n", space, "addr", "add", f"{self.address(machine)}/24", "dev", "eth0")
        _call("ip", "-n", space, "link", "set", "eth0", "up")
        if self.rate is not None:
            self.limit(machine, self.rate)

    def limit(self, machine: int, rate: str) -> None:
        """Limit a machine's link, in each direction."""
        for owner, device in ((self.space(machine), "eth0"), (self.switch, f"port{machine}")):
            limit = ("tbf", "rate", rate, "burst", "256kb", "latency", "100ms")
            _call("tc", "-n", owner, "qdisc", "replace", "dev", device, "root", *limit)

    def link(self, machine: int, *, up: bool) -> None:
        """Connect or disconnect a machine's link."""
        _call("ip", "-n", self.switch, "link", "set", f"port{machine}", "up" if up else "down")

    def __exit__(self, *exception: object) -> None:
        for name in [*map(self.space, range(self.count)), self.switch]:
            for _ in range(20):
                if (
                    not Path("/run/netns", name).exists()
                    or not subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True).returncode
                ):
                    break
                time.sleep(0.1)


class Machines(Network):
    """Machines whose processes, shared memory and temporary files are their own as well; all processes end with them."""

    def __init__(self, count: int, *, rate: str | None = None) -> None:
        """``rate``: see :class:`Network`."""
        super().__init__(count, prefix=f"ak{os.getpid()}m", rate=rate)
        self._holders: list[subprocess.Popen[bytes]] = []
        self._jobs: list[subprocess.Popen[Any]] = []

    def add(self, machine: int) -> None:
        """Make a machine, whose first process holds its namespaces."""
        super().add(machine)
        own = "; ".join(f"mkdir -p {folder}; mount -t tmpfs tmpfs {folder}" for folder in PRIVATE)
        script = f"hostname machine{machine}; {own}; echo ready; exec sleep infinity"
        isolate = ["unshare", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc"]
        holder = subprocess.Popen(
            ["ip", "netns", "exec", self.space(machine), *isolate, "sh", "-c", script],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._holders.append(holder)
        assert holder.stdout is not None and holder.stdout.readline() == b"ready\n"

    def start(self, machine: int, command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Start a program on a machine; ``options``: those of :class:`subprocess.Popen`."""
        inside = self._inside(self._holders[machine].pid)
        job = subprocess.Popen(["nsenter", "--target", str(inside), "--all", "--", *command], **options)
        self._jobs.append(job)
        return job

    def _inside(self, pid: int) -> int:
        """Return the first process of a machine, below the program that made the namespaces."""
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split()
        return int(children[0])

    def lives(self, machine: int) -> bool:
        """Return whether a machine has not been killed."""
        return self._holders[machine].poll() is None

    def run(self, machine: int, command: Sequence[str], **options: Any) -> str:
        """Return what a program on a machine prints; raise if it fails."""
        job = self.start(machine, command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)
        printed, _ = job.communicate()
        if job.returncode:
            raise RuntimeError(f"{' '.join(command)} on machine {machine} ended with {job.returncode}:\n{printed}")
        return str(printed)

    def kill(self, machine: int) -> None:
        """Kill all processes of a machine at once."""
        os.kill(self._inside(self._holders[machine].pid), signal.SIGKILL)
        self._holders[machine].wait()

    def __exit__(self, *exception: object) -> None:
        for machine, holder in enumerate(self._holders):
            if self.lives(machine):
                self.kill(machine)
            if holder.stdout is not None:
                holder.stdout.close()
        for job in self._jobs:
            job.wait()
        super().__exit__()


def _call(*command: str) -> None:
    subprocess.run(command, check=True)
