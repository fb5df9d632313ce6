"""What listens while anyk's programs run is what the table in docs/clusters.md promises, and nothing else.

As a program, ``python test_listening.py PROGRAM``, it runs one of them and prints the sockets that are open meanwhile.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

import anyk
import anyk.views

PAGE = Path(__file__).parents[2] / "docs" / "clusters.md"
DATA = "synthetic:rows=60,features=4"


def table() -> dict[str, str]:
    """Return what each program listens on, as the page documents it."""
    lines = PAGE.read_text(encoding="utf-8").partition("| program | listens on |")[2].splitlines()[2:]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[: lines.index("")]]
    return {program: address for program, address, _ in rows}


def sockets(root: psutil.Process) -> list[tuple[str, str]]:
    """Return the process names and addresses of the tree's sockets that others could reach: TCP, UDP and raw."""
    listening = set()
    for process in [root, *root.children(recursive=True)]:
        with contextlib.suppress(psutil.Error):
            for connection in process.net_connections("inet"):
                if connection.laddr and (
                    connection.status == psutil.CONN_LISTEN or (not connection.raddr and connection.type != 1)
                ):
                    listening.add((process.name(), connection.laddr.ip.removeprefix("::ffff:")))
    return sorted(listening)


class Look(anyk.Callback):
    """Prints the sockets that are open while a run goes on, and how many processes it has."""

    def on_step(self, info: Any) -> None:
        if info.step == 3:
            process = psutil.Process()
            print(json.dumps([len(process.children(recursive=True)), sockets(process)]), flush=True)


def train(cluster: Any, *callbacks: Any, evaluate: str = "") -> None:
    """Train for some steps, looking at the sockets meanwhile."""
    anyk.train(
        anyk.problems.from_data(DATA), "uncoded", cluster, steps=5, callbacks=[*callbacks, Look()], evaluate=evaluate
    ).close()


def run(program: str) -> None:
    """Run a program of the table."""
    match program:
        case "processes":
            train(anyk.clusters.Processes(2), evaluate="every=1,where=aside")
        case "simulated":
            train(anyk.clusters.Simulated(2))
        case "ray":
            train(anyk.clusters.Ray(2))
        case "nodes":
            with socket.create_server(("127.0.0.1", 0)) as server:
                port = str(server.getsockname()[1])
            os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            train(anyk.clusters.Nodes(2))
        case _:
            host = ["0.0.0.0"] if program == "metrics everywhere" else []
            with anyk.views.Metrics(0, *host) as metrics:
                train(anyk.clusters.Simulated(2), metrics)


def seen(program: str) -> tuple[int, set[str]]:
    """Return the number of processes and the addresses that a program in a process of its own listens at."""
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, __file__, program], capture_output=True, text=True, timeout=280, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    children, addresses = json.loads(done.stdout.splitlines()[-1])
    return children, {address for _, address in addresses}


def expected(text: str) -> set[str]:
    """Return the addresses that a cell of the table names."""
    return set(re.findall(r"\d+\.\d+\.\d+\.\d+", text))


def test_every_row_is_tested() -> None:
    rows = table()
    assert list(rows) == [
        "`processes`, `simulated`", "a Ray that anyk starts", "`anyk watch`", "`--metrics PORT` (Prometheus)",
        "`nodes`", "your own Ray cluster or MPI job",
    ]  # fmt: skip
    assert rows["`processes`, `simulated`"].startswith("nothing")
    assert rows["your own Ray cluster or MPI job"] == "as you configure it"
    addresses = [expected(row) for row in rows.values()]
    assert addresses == [set(), {"127.0.0.1"}, {"127.0.0.1"}, {"127.0.0.1"}, set(), set()]
    assert rows["`nodes`"] == "the interface towards `MASTER_ADDR`"


@pytest.mark.slow
@pytest.mark.parametrize("program", ["processes", "simulated"])
def test_clusters_of_this_machine_listen_nowhere(program: str) -> None:
    children, addresses = seen(program)
    assert addresses == expected(table()["`processes`, `simulated`"])
    assert children >= (4 if program == "processes" else 0)  # helper, workers and evaluation were looked at


@pytest.mark.slow
def test_a_ray_that_anyk_starts_listens_on_the_loopback_address() -> None:
    pytest.importorskip("ray")
    children, addresses = seen("ray")
    # IPv6's is the same machine, too
    assert children > 2 and expected(table()["a Ray that anyk starts"]) <= addresses <= {"127.0.0.1", "::1"}


@pytest.mark.slow
def test_nodes_listen_on_the_interface_towards_the_first() -> None:
    children, addresses = seen("nodes")
    assert children >= 4 and addresses == {"127.0.0.1"}  # the agent, its helper and workers were looked at


@pytest.mark.slow
def test_metrics_listen_on_the_loopback_address_or_where_asked() -> None:
    pytest.importorskip("prometheus_client")
    documented = table()["`--metrics PORT` (Prometheus)"]
    assert seen("metrics")[1] == expected(documented) and "HOST:PORT" in documented
    assert seen("metrics everywhere")[1] == {"0.0.0.0"}


@pytest.mark.slow
def test_watch_listens_on_the_loopback_address(tmp_path: Path) -> None:
    pytest.importorskip("bokeh")
    command = [sys.executable, "-m", "anyk", "watch", str(tmp_path), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert "watching" in line, line
            until, listening = time.monotonic() + 60, set[str]()
            while not listening and time.monotonic() < until:
                listening = {address for _, address in sockets(psutil.Process(process.pid))}
            assert listening == expected(table()["`anyk watch`"])
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(250)


if __name__ == "__main__":
    run(" ".join(sys.argv[1:]))
