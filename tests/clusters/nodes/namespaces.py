"""Runs ranks.py on three network namespaces of this machine, as root, each with a clock of its own. By scripts/soak nodes.

``python tests/clusters/nodes/namespaces.py speed``: measure the cluster on three machines with links of 1 Gb/s instead.
``… machines``: check eight such machines, as before a first run.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from machines import Machines, Network

NAME = "anyk-node-"
SCRIPT = str(Path(__file__).with_name("ranks.py"))


def machine(rank: int, folder: str) -> list[str]:
    """What a command begins with that is to have a clock of its own, and the number of another machine's start."""
    boot = Path(folder) / str(rank)
    boot.write_text(f"machine {rank}\n")
    script = f'mount --bind {boot} /proc/sys/kernel/random/boot_id; exec "$@"'
    clock = ["unshare", "--mount", "--time", "--monotonic", str(1000 * rank), "--fork", "--kill-child"]
    return [*clock, "sh", "-c", script, "sh"]


def measured(nodes: int, *words: str) -> int:
    """Run ``anyk cluster check`` on machines with links of 1 Gb/s."""
    settings = {"WORLD_SIZE": str(nodes), "MASTER_PORT": "29500", "ANYK_SECRET": "soak", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "anyk", "cluster", "check", *words]
    with Machines(nodes, rate="1gbit") as machines:
        settings["MASTER_ADDR"] = machines.address(0)
        for rank in range(1, nodes):
            machines.start(rank, command, env=os.environ | settings | {"RANK": str(rank)})
        return int(machines.start(0, command, env=os.environ | settings | {"RANK": "0"}).wait())


def main(nodes: int = 3) -> int:
    settings = {"WORLD_SIZE": str(nodes), "MASTER_ADDR": "10.77.0.1", "MASTER_PORT": "29500", "ANYK_SECRET": "soak"}
    settings |= {"ANYK_NAMESPACES": NAME, "OMP_NUM_THREADS": "1"}
    programs = []
    with tempfile.TemporaryDirectory() as folder, Network(nodes, prefix=NAME) as network:
        try:
            for rank in range(nodes):
                command = ["ip", "netns", "exec", network.space(rank), *machine(rank, folder), sys.executable, SCRIPT]
                command += sys.argv[1:]
                programs.append(subprocess.Popen(command, env=os.environ | settings | {"RANK": str(rank)}))
            return programs[0].wait()
        finally:
            for program in programs:
                program.terminate()
                program.wait()


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["speed"]:
            sys.exit(measured(3, "nodes", "--workers", "3"))
        case ["machines"]:
            sys.exit(measured(8))
    sys.exit(main())
