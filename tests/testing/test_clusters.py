"""Every cluster holds the suite. Ray and MPI do so in programs of their own, which end all they have started."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import anyk
from anyk.clusters import Cluster, Outage, Processes, Simulated
from anyk.clusters.store import VectorStore
from anyk.testing.clusters import CHECKS, check_a_lost_worker
from clusters.conform import IN_SLICES, ON_RAY

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
CONFORM = str(ROOT / "tests" / "clusters" / "conform.py")
NAMES = [check.__name__ for check in (*CHECKS, check_a_lost_worker)]
MAKERS: dict[str, Callable[..., Cluster]] = {
    "simulated": lambda workers, delays: Simulated(workers, delays=delays),
    "processes": lambda workers, delays: Processes(workers, delays=delays),
}


@pytest.mark.parametrize("cluster", MAKERS)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_cluster_conforms(cluster: str, check: Any) -> None:
    check(MAKERS[cluster])


def test_a_lost_worker_of_the_simulator() -> None:
    outage = Outage(0.3, 1, 0.5)
    check_a_lost_worker(lambda n, delays: Simulated(n, delays=delays, outages=[outage]), lambda cluster, worker: None)


def test_a_lost_worker_that_is_a_process() -> None:
    check_a_lost_worker(MAKERS["processes"], lambda cluster, worker: os.kill(cluster.pids[worker], signal.SIGKILL))


def mpiexec() -> str:
    """Of this environment, else of the machine."""
    beside = Path(sys.executable).with_name("mpiexec")
    program = str(beside) if beside.exists() else shutil.which("mpiexec")
    assert program, "no mpiexec: pip install 'anyk[test]' brings MPICH's"
    return program


def told(*command: str, env: dict[str, str] | None = None) -> dict[str, str]:
    """What a program told, by check: '' for what held."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=1450, env=env)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return dict(json.loads(line) for line in done.stdout.splitlines() if line.startswith("["))


@pytest.mark.timeout(1500)  # a busy machine starts actors slowly
def test_ray_conforms() -> None:
    """What is Ray's own, on two nodes; also a machine that leaves and one that comes, a gradient that exits, processes left behind."""
    assert told(sys.executable, CONFORM, "ray") == dict.fromkeys(
        [
            "loopback",
            "abandoned",
            *(check.__name__ for check in (*ON_RAY, check_a_lost_worker)),
            "by_value",
            "options",
            "nodes",
            "fleet",
            "exits",
            "leaks",
        ],
        "",
    )


@pytest.mark.timeout(1500)
def test_mpi_conforms() -> None:
    """Also many steps with stragglers; a rank cannot be started anew: of one that dies see test_mpi."""
    names = [name for name in NAMES if name != "check_a_lost_worker"]
    assert told(mpiexec(), "-n", "7", sys.executable, CONFORM, "mpi") == dict.fromkeys(
        [*names, "by_value", "go_on"], ""
    )


@pytest.mark.timeout(1500)
def test_nodes_conform() -> None:
    """On three nodes, also with each slice at two; what happens to nodes that die or freeze see clusters/nodes/test_nodes."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        place = {"WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(server.getsockname()[1])}
    command = [sys.executable, CONFORM, "nodes"]
    others = [subprocess.Popen(command, env=os.environ | place | {"RANK": rank}) for rank in "12"]
    try:
        sliced = [f"{check.__name__} in 2" for check in (*IN_SLICES, check_a_lost_worker)]
        names = [*NAMES, "by_value", *sliced]
        assert told(*command, env=os.environ | place | {"RANK": "0"}) == dict.fromkeys(names, "")
        assert [other.wait(250) for other in others] == [0, 0]
    finally:
        for other in others:
            other.terminate()  # its helper program ends its workers
            other.wait()


@pytest.mark.timeout(1500)
@pytest.mark.parametrize(
    ("example", "cluster"), [("resnet.py", "ray"), ("gpt2.py", "mpi")]
)  # the other two take as long
def test_examples_train_on_ray_and_mpi_as_well(example: str, cluster: str) -> None:
    if example == "gpt2.py" and importlib.util.find_spec("transformers") is None:
        pytest.skip("transformers is not installed; pip install 'anyk[test]' brings it")
    launch = [mpiexec(), "-n", "3"] if cluster == "mpi" else []
    script = str(ROOT / "examples" / example)
    done = subprocess.run(
        [*launch, sys.executable, script, cluster, "2"], capture_output=True, text=True, timeout=1450, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]


def test_the_suite_notices_a_cluster_that_adds_wrongly(monkeypatch: Any) -> None:
    combine = VectorStore.combine
    monkeypatch.setattr(
        VectorStore, "combine", lambda self, m, weights, *part: combine(self, m[:1], weights[:1], *part)
    )
    with pytest.raises(AssertionError, match="model of 'uncoded' is"):
        anyk.testing.check_cluster(lambda workers, delays: anyk.clusters.Simulated(workers, delays=delays))
