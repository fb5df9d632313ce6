"""Three nodes of this machine, each a program as ssh would start it; and what is refused before any is started."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import anyk
from clusters.nodes import ranks

SCRIPT = str(Path(ranks.__file__))
CHECKS, PARTS = 23, 6  # of the script, which are run in parts
DRIVER = """
import os, sys, time
import anyk
from anyk.clusters import Nodes
from anyk.runs.callbacks import Watching
from anyk.testing import Squares
cluster = Nodes(4, delays="exp:mean=0.05", seed=1)
def watch(driver, evaluator):
    if driver.step == 3:
        print("under way", *[pid for w, pid in cluster.pids.items() if w % 2], flush=True)
        if "wait" in sys.argv:
            time.sleep(600)
run = anyk.train(Squares(4), "frc:load=2", cluster, steps=6, callbacks=[Watching(watch)])
print("done", run.steps, flush=True)
"""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def start(rank: int, size: int, port: int, *command: str, **settings: str) -> subprocess.Popen[str]:
    env = os.environ | {"RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1"}
    env |= {"MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"} | settings
    return subprocess.Popen(
        [sys.executable, *command], env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


@contextlib.contextmanager
def ended(*processes: subprocess.Popen[str]) -> Iterator[None]:
    """End processes, and all below them, if they have not ended."""
    try:
        yield
    finally:
        for process in processes:
            if process.poll() is None:
                for each in [*psutil.Process(process.pid).children(recursive=True), process]:
                    with contextlib.suppress(psutil.Error):
                        each.kill()
            process.communicate()


@pytest.mark.slow
@pytest.mark.timeout(1500)  # of a busy machine: alone they take four minutes
@pytest.mark.parametrize("part", range(PARTS))
def test_three_nodes_train_and_go_through_their_failures(part):
    port = free_port()
    others = [start(rank, 3, port, SCRIPT, f"{part}/{PARTS}") for rank in (1, 2)]
    driver = start(0, 3, port, SCRIPT, f"{part}/{PARTS}")
    with ended(driver, *others):
        out, errors = driver.communicate(timeout=1450)
        told = dict(json.loads(line) for line in out.splitlines() if line.startswith("["))
        assert told == dict.fromkeys(told, ""), "".join(told.values()) + errors[-4000:]
        assert len(told) == len(range(part, CHECKS, PARTS)) and driver.returncode == 0, errors[-4000:]
        assert others[0].wait(250) == 0
        was_killed = "killed_agent" in told  # and started again by the check
        assert others[1].wait(250) == (-signal.SIGKILL if was_killed else 0)


@pytest.mark.slow
def test_workers_end_with_the_driver_and_a_new_one_takes_over():
    port = free_port()
    node = start(1, 2, port, "-c", DRIVER)
    driver = start(0, 2, port, "-c", DRIVER, "wait")
    with ended(node, driver):
        assert driver.stdout is not None
        words = driver.stdout.readline().split()
        assert words[:2] == ["under", "way"], driver.communicate()
        workers = [int(pid) for pid in words[2:]]
        assert len(workers) == 2 and all(map(psutil.pid_exists, workers))
        driver.kill()
        ranks.over(workers, within=30.0)
        assert node.poll() is None, node.communicate()
        following = start(0, 2, port, "-c", DRIVER)
        with ended(following):
            out, errors = following.communicate(timeout=250)
            assert out.splitlines()[-1] == "done 6", errors
            assert node.wait(250) == 0
            assert "the driver is gone (its program has ended); its workers here have ended" in node.communicate()[1]


@pytest.mark.slow
def test_a_supervised_run_goes_on_after_a_lost_slice(tmp_path):
    out, port = tmp_path / "run", free_port()
    command = ["-m", "anyk", "train", "--data", "digits", "--workers", "4", "--strategy", "frc:load=2"]
    command += ["--cluster", "nodes:slices=nodes", "--delays", "constant:0.05", "--steps", "300", "--supervise"]
    command += ["--out", str(out)]
    node = start(1, 2, port, *command)
    driver = start(0, 2, port, *command)
    with ended(node, driver):
        until = time.monotonic() + 120.0
        while not list(out.rglob("checkpoint*")) and time.monotonic() < until:
            time.sleep(0.1)
        agents = [
            process for process in psutil.Process(driver.pid).children(recursive=True)
            if any("nodes import agent" in word for word in process.cmdline())
        ]  # fmt: skip
        agents[0].kill()
        _, errors = driver.communicate(timeout=250)
        assert "node 0 was lost with its slice of the model" in errors
        assert "the run lost a machine; resuming it again" in errors
        assert driver.returncode == 0 and node.wait(250) == 0, errors
    with anyk.Run.open(out) as run:
        assert run.steps == 300


@pytest.mark.slow
def test_a_node_with_another_secret_ends_with_a_line():
    port = free_port()
    driver = start(0, 2, port, "-c", "from anyk.clusters import Nodes; Nodes(2); input()", ANYK_SECRET="right")
    node = start(1, 2, port, "-c", "from anyk.clusters import Nodes; Nodes(2)", ANYK_SECRET="wrong")
    with ended(driver, node):
        _, errors = node.communicate(timeout=250)
        assert node.returncode == 2 or node.returncode == 1
        assert "was not signed with this node's ANYK_SECRET; set it to the same text on all nodes" in errors


def test_without_a_launcher_it_is_said_how_to_start(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    for begin in (
        lambda: anyk.clusters.Nodes(4),
        lambda: anyk.train(anyk.testing.Squares(4), "uncoded", "nodes", workers=4, steps=1),
        lambda: anyk.clusters.cluster("nodes:port=29600", workers=4),
    ):
        with pytest.raises(anyk.BadInput, match=r"'RANK=0 WORLD_SIZE=4 MASTER_ADDR=FIRST MASTER_PORT=29500 python tra"):
            begin()


def test_missing_packages_are_named_with_the_line_to_install(monkeypatch):
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setitem(sys.modules, "zmq", None)
    with pytest.raises(anyk.BadInput, match=r"needs pyzmq, which is not installed.*pip install '.\[nodes\]'"):
        anyk.clusters.Nodes(2)
    monkeypatch.delitem(sys.modules, "zmq")
    monkeypatch.setitem(sys.modules, "blake3", None)
    for begin in (lambda: anyk.clusters.Nodes(2), anyk.clusters.survey_nodes):
        with pytest.raises(anyk.BadInput, match=r"needs blake3, which is not installed.*pip install '.\[nodes\]'"):
            begin()
    monkeypatch.delitem(sys.modules, "blake3")
    monkeypatch.setitem(sys.modules, "torch.distributed", None)
    with pytest.raises(anyk.BadInput, match=r"needs torch, which is not installed.*pip install '.\[nodes\]'"):
        anyk.clusters.Nodes(2)
