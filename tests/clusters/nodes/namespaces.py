"""Runs ranks.py on three network namespaces of this machine, as root, each with a clock of its own. By scripts/soak nodes.

``python tests/clusters/nodes/namespaces.py speed``: measure the cluster on three machines with links of 1 Gb/s instead.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

NAME = "anyk-node-"
SCRIPT = str(Path(__file__).with_name("ranks.py"))


def ip(line: str) -> None:
    subprocess.run(["ip", *line.split()], check=True)


def make(nodes: int) -> None:
    """Namespaces with the addresses 10.77.0.1, 2, … on one bridge, which is in a namespace of its own."""
    ip(f"netns add {NAME}bridge")
    ip(f"-n {NAME}bridge link add name br0 type bridge")
    ip(f"-n {NAME}bridge link set br0 up")
    for rank in range(nodes):
        own = f"{NAME}{rank}"
        ip(f"netns add {own}")
        ip(f"link add name eth0 netns {own} type veth peer name port{rank} netns {NAME}bridge")
        ip(f"-n {NAME}bridge link set port{rank} master br0 up")
        ip(f"-n {own} addr add 10.77.0.{rank + 1}/24 dev eth0")
        for device in ("lo", "eth0"):
            ip(f"-n {own} link set {device} up")


def remove(nodes: int) -> None:
    for name in (*range(nodes), "bridge"):
        with contextlib.suppress(subprocess.CalledProcessError):
            ip(f"netns del {NAME}{name}")


def machine(rank: int, folder: str) -> list[str]:
    """What a command begins with that is to have a clock of its own, and the number of another machine's start."""
    boot = Path(folder) / str(rank)
    boot.write_text(f"machine {rank}\n")
    script = f'mount --bind {boot} /proc/sys/kernel/random/boot_id; exec "$@"'
    clock = ["unshare", "--mount", "--time", "--monotonic", str(1000 * rank), "--fork", "--kill-child"]
    return [*clock, "sh", "-c", script, "sh"]


def speed(nodes: int = 3) -> int:
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from machines import Machines

    settings = {"WORLD_SIZE": str(nodes), "MASTER_PORT": "29500", "ANYK_SECRET": "soak", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "anyk", "cluster", "check", "nodes", "--workers", str(nodes)]
    with Machines(nodes, rate="1gbit") as machines:
        settings["MASTER_ADDR"] = machines.address(0)
        for rank in range(1, nodes):
            machines.start(rank, command, env=os.environ | settings | {"RANK": str(rank)})
        return int(machines.start(0, command, env=os.environ | settings | {"RANK": "0"}).wait())


def main(nodes: int = 3) -> int:
    settings = {"WORLD_SIZE": str(nodes), "MASTER_ADDR": "10.77.0.1", "MASTER_PORT": "29500", "ANYK_SECRET": "soak"}
    settings |= {"ANYK_NAMESPACES": NAME, "OMP_NUM_THREADS": "1"}
    programs = []
    folder = tempfile.mkdtemp()
    try:
        make(nodes)
        for rank in range(nodes):
            command = ["ip", "netns", "exec", f"{NAME}{rank}", *machine(rank, folder), sys.executable, SCRIPT]
            command += sys.argv[1:]
            programs.append(subprocess.Popen(command, env=os.environ | settings | {"RANK": str(rank)}))
        return programs[0].wait()
    finally:
        for program in programs:
            program.terminate()
            program.wait()
        remove(nodes)
        shutil.rmtree(folder)


if __name__ == "__main__":
    sys.exit(speed() if sys.argv[1:] == ["speed"] else main())
