"""Puts Ray or MPI through the conformance suite and tells what held, a line of JSON a check; run by testing/test_clusters.py.

``python tests/clusters/conform.py ray whole``: every check and strategy on Ray, of which the tests take a few; ``nodes
whole``, started as three ranks: all that can be done in slices.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import psutil

import anyk
from anyk.base.regular_files import LockedFolder
from anyk.clusters import Cluster, Mpi, Nodes, Ray, join_nodes
from anyk.problems.linear.row_partitions import LinearPartitions
from anyk.runs.callbacks import Watching
from anyk.testing import Squares
from anyk.testing.clusters import (
    _EXACT,
    _STEADY,
    CHECKS,
    check_a_lost_worker,
    check_bad_replies,
    check_collect,
    check_discard,
    check_exact_sums,
    check_losses,
    check_messages_between_workers,
    check_same_models,
)

WHOLE = "whole" in sys.argv
# An actor takes a second of a processor to start, and the whole suite starts seventy. Here are the checks of what is
# Ray's own: how mail goes to and between actors, what comes back, and who is lost. The rest is decided in what Ray
# shares with MPI, where all is checked. All on Ray: python tests/clusters/conform.py ray whole
ON_RAY: dict[Any, tuple[Any, ...]] = {
    check_exact_sums: ((("tree:children=2", 6),),),
    check_discard: (),
    check_messages_between_workers: (),
    check_bad_replies: (),
    check_losses: ((("uncoded:models=2", 2, 4),),),
    check_same_models: (("pasgd:tau=2,clients=2",),),
}
# In slices, of which the strategies are refused whose messages are not sums of whole vectors; see slices_refuse_… of
# nodes/ranks.py. All of them, once and twice: python tests/clusters/conform.py nodes whole
NOT_IN_SLICES = ("comm-efficient", "draco:kind=cyclic", "compressed:of=(uncoded),by=(top-k:share=0.5)")
IN_SLICES: dict[Any, tuple[Any, ...]] = {
    check_exact_sums: ((("tree:children=2", 6),),),
    check_messages_between_workers: (),
    check_bad_replies: (),
    check_losses: ((("uncoded:models=2", 2, 4),),),
    check_same_models: (("pasgd:tau=2,clients=2",),),
}
IN_SLICES_WHOLE = dict.fromkeys(CHECKS, ()) | {
    check_exact_sums: ([case for case in _EXACT if case[0] not in NOT_IN_SLICES],),
    check_same_models: ([spec for spec in _STEADY if spec not in NOT_IN_SLICES],),
}

failed: list[str] = []


def tell(name: str, check: Callable[[], Any]) -> None:
    try:
        check()
    except Exception:
        failed.append(name)
        print(json.dumps([name, traceback.format_exc()]), flush=True)
    else:
        print(json.dumps([name, ""]), flush=True)


def over(pids: set[int], within: float = 60.0) -> set[int]:
    """Which of the processes are still there after a while."""
    until = time.monotonic() + within
    while time.monotonic() < until:
        pids = {pid for pid in pids if os.path.exists(f"/proc/{pid}")}
        if not pids:
            break
        time.sleep(0.1)
    return pids


class Own(Squares):
    """A problem whose partitions are of a class that no other program can import."""

    def split(self, partitions: int, shares: Any = None) -> Any:
        made = super().split(partitions, shares)
        return Doubled(made)


class Doubled:
    """Partial gradients of Squares, twice."""

    def __init__(self, of: Any) -> None:
        self.of, self.sizes, self.dimension, self.dtype = of, of.sizes, of.dimension, of.dtype

    def load(self, partitions: Any) -> None:
        self.of.load(partitions)

    def support(self, partition: int) -> Any:
        return self.of.support(partition)

    def partial_gradient(self, partition: int, w: Any, rows: Any = None, /) -> Any:
        return 2 * self.of.partial_gradient(partition, w, rows)


def partitions_by_value(make: Callable[[int, Any], Cluster]) -> None:
    """What a script itself defines reaches the workers, and they compute with it what the simulator does."""
    simulated = anyk.clusters.Simulated
    setting = {"steps": 5, "optimizer": anyk.optimizers.GD(lr=0.1)}
    found = anyk.train(Own(2), "uncoded", make(2, None), **setting).model
    assert np.array_equal(found, anyk.train(Own(2), "uncoded", simulated(2), **setting).model)
    assert not np.array_equal(found, anyk.train(Squares(2), "uncoded", simulated(2), **setting).model)


def through_mpi() -> None:
    def make(workers: int, delays: Any) -> Cluster:
        return Mpi(workers, delays=delays)

    for check in CHECKS:
        tell(check.__name__, lambda check=check: check(make))
    tell("by_value", lambda: partitions_by_value(make))

    def go_on() -> None:
        """Many steps whose last workers are cut off each time: mail is always on its way somewhere."""
        run = anyk.train(Squares(3, 20_000), "uncoded:wait=2", Mpi(3), steps=500)
        assert run.steps == 500

    tell("go_on", go_on)


def through_nodes() -> None:
    """Rank 0 of three nodes; on the others the program ends here."""
    join_nodes()

    def make(workers: int, delays: Any) -> Cluster:
        return Nodes(workers, delays=delays)

    for check in CHECKS:
        tell(check.__name__, lambda check=check: check(make))
    kill = lambda cluster, worker: os.kill(cluster.pids[worker], signal.SIGKILL)  # noqa: E731
    tell("check_a_lost_worker", lambda: check_a_lost_worker(make, kill))
    tell("by_value", lambda: partitions_by_value(make))
    for copies in (1, 2) if WHOLE else (2,):

        def make_sliced(workers: int, delays: Any, copies: Any = copies) -> Cluster:
            return Nodes(workers, delays=delays, slices="nodes", copies=copies)

        for check, fewer in (IN_SLICES_WHOLE if WHOLE else IN_SLICES).items():
            if check is not check_collect or copies == 1:  # it has one worker
                tell(f"{check.__name__} in {copies}", lambda check=check, fewer=fewer: check(make_sliced, *fewer))
        tell(f"check_a_lost_worker in {copies}", lambda: check_a_lost_worker(make_sliced, kill))


def loopback() -> None:
    """A Ray cluster that we start listens on the loopback address only, and admits no program without its token."""
    import ray

    with Ray(1) as cluster:
        cluster.prepare()
        found: dict[str, set[str]] = {}
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                for open_ in process.net_connections("inet"):
                    if open_.status == psutil.CONN_LISTEN:
                        found.setdefault(open_.laddr.ip.removeprefix("::ffff:"), set()).add(process.name())
        assert "gcs_server" in found["127.0.0.1"], found
        assert set(found) <= {"127.0.0.1", "::1"}, found
        address = ray.get_runtime_context().gcs_address
        for token in ("", "0" * 64):
            asked = subprocess.run(
                [sys.executable, "-c", f"from ray._raylet import GcsClient; GcsClient(address='{address}')"],
                env=os.environ | {"RAY_AUTH_MODE": "token" if token else "disabled", "RAY_AUTH_TOKEN": token},
                capture_output=True,
                text=True,
                check=False,
                timeout=250,
            )
            assert asked.returncode and "token" in asked.stderr, asked


def ray_socket() -> str:
    """The socket of the local raylet, through which all that Ray does can be had."""
    from ray._private import worker

    return str(worker._global_node.raylet_socket_name)


def abandoned() -> None:
    """The folder of a Ray cluster whose driver was killed is removed by the next one, those in use are not."""
    script = (
        "import os; from anyk.clusters import Ray; cluster = Ray(1); cluster.prepare(); "
        "print(cluster._connection.folder.name, flush=True); os.kill(os.getpid(), 9)"
    )
    killed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=250, check=False)
    left = Path(killed.stdout.splitlines()[-1])
    assert left.is_dir(), killed
    with Ray(1) as cluster, LockedFolder("anykray-", "/tmp") as other:
        cluster.prepare()
        assert cluster._connection.folder is not None
        own = Path(cluster._connection.folder.name)
        raylet = Path(ray_socket())
        assert raylet.is_socket() and raylet.is_relative_to(own) and len(str(raylet)) < 100
        assert own.stat().st_mode & 0o777 == 0o700  # no other user reaches what is in it
        assert own.is_dir() and Path(other).is_dir()
        assert not left.exists()
    assert not own.exists()


def through_ray() -> None:
    import ray
    from ray.cluster_utils import Cluster as Nodes

    tell("loopback", loopback)
    tell("abandoned", abandoned)
    head = {
        "num_cpus": 4,
        "resources": {"slot": 2},
        "include_dashboard": False,
        "_system_config": {"worker_niceness": 0},
    }
    nodes = Nodes(initialize_head=True, head_node_args=head)
    try:
        second = nodes.add_node(num_cpus=4)
        ray.init(address=nodes.address, log_to_driver=False, logging_level="ERROR")
        on_two_machines(nodes, second)
    finally:
        ray.shutdown()
        nodes.shutdown()


class Here(Squares):
    """A problem whose workers have what Ray was asked for."""

    def split(self, partitions: int, shares: Any = None) -> Any:
        made = super().split(partitions, shares)
        made.load = has_slot
        return made


def has_slot(partitions: Any) -> None:
    import ray

    context = ray.get_runtime_context()
    assert os.environ["ANYK_TRIED"] == "yes" and context.get_placement_group_id() is not None
    assert context.get_assigned_resources()["slot"] == 1.0, context.get_assigned_resources()


def options() -> None:
    """Resources, environment and placement group reach the actors; the cluster can be used again."""
    from ray.util import placement_group, remove_placement_group

    group = placement_group([{"CPU": 0.5, "slot": 1}] * 2)
    cluster = Ray(2, cpus=0.5, resources={"slot": 1}, runtime_env={"env_vars": {"ANYK_TRIED": "yes"}},
                  placement_group=group)  # fmt: skip
    models = [anyk.train(Here(2), "uncoded", cluster, steps=steps).model for steps in (2, 2)]
    remove_placement_group(group)
    assert np.array_equal(*models) and models[0].any()


def on_two_machines(nodes: Any, second: Any) -> None:
    made: list[Ray] = []
    more: list[Any] = []

    def make(workers: int, delays: Any) -> Cluster:
        made.append(Ray(workers, delays=delays, cpus=0.5))
        return made[-1]

    for check, fewer in dict.fromkeys(CHECKS, ()).items() if WHOLE else ON_RAY.items():
        tell(check.__name__, lambda check=check, fewer=fewer: check(make, *fewer))
    tell("by_value", lambda: partitions_by_value(make))
    tell("check_a_lost_worker", lambda: check_a_lost_worker(make, lambda c, i: os.kill(c.pids[i], signal.SIGKILL)))

    def come_and_go() -> None:
        """With four workers on two machines one machine goes in mid-run, and another comes."""
        at: list[int] = []

        def watch(driver: Any, evaluator: Any) -> None:
            if driver.step == 3:
                nodes.remove_node(second)
                at.append(driver.step)
                more.append(nodes.add_node(num_cpus=4))

        cluster = Ray(4, delays=anyk.delays.Constant(0.05), cpus=1.5)  # at most two on a machine
        made.append(cluster)
        run = anyk.train(Squares(4), "uncoded", cluster, steps=8, callbacks=[Watching(watch)])
        ledger = run.ledger
        assert at == [3]
        assert run.steps == 8
        assert ledger["lost"] >= 1, f"nobody was lost: {ledger}"
        kinds = [note["kind"] for note in run.notes]
        assert "lost" in kinds, kinds

    def fleet() -> None:
        """Of 2 to 6 workers 4 have room; a machine comes for the others, one is drained, and one is killed."""
        from ray._raylet import GcsClient

        problem, folder = anyk.problems.from_data("synthetic:rows=2400,features=20"), Path(tempfile.mkdtemp())

        class Recorded(LinearPartitions):
            """Partitions whose workers write down which they load later than at their start."""

            def adopt(self, other: LinearPartitions) -> None:
                with (folder / os.environ["ANYK_WORKER"]).open("a") as file:
                    file.writelines(f"{j}\n" for j, part in enumerate(other._parts) if part is not None)
                super().adopt(other)

        def split(self: Any, partitions: int, shares: Any = None) -> LinearPartitions:
            divided = type(self).split(self, partitions, shares)
            divided.__class__ = Recorded
            return divided

        cluster = Ray(6, delays=anyk.delays.Constant(0.02), cpus=1.5)
        made.append(cluster)
        counts: list[int] = []

        def watch(driver: Any, evaluator: Any) -> None:
            here = len(driver.present)
            if not counts or counts[-1] != here:
                counts.append(here)
                if counts == [4]:
                    more.append(nodes.add_node(num_cpus=4))
                elif here == 6:
                    deadline = int((time.time() + 60.0) * 1000)
                    GcsClient(address=nodes.gcs_address).drain_node(more[0].node_id, 2, "spot machine", deadline)
                elif here == 4:
                    nodes.remove_node(more[1])
                elif here == 2 and 6 in counts:
                    driver.end()

        callbacks = [Watching(watch)]
        with mock.patch.object(problem, "split", split.__get__(problem)):
            run = anyk.train(problem, "uncoded", cluster, workers=(2, 6), seconds=120.0, callbacks=callbacks)
        events = run.log.rows("SELECT kind, worker FROM events WHERE kind IN ('Leaving', 'Lost')")
        assert counts[0] == 4 and 6 in counts and counts[-1] == 2, counts
        assert sum(kind == "Leaving" for kind, _ in events) == 2, events
        fixed = anyk.train(problem, "uncoded", "simulated", workers=6, partitions=24, steps=run.steps)
        np.testing.assert_allclose(run.model, fixed.model, rtol=0, atol=1e-12)
        loaded = [set(map(int, file.read_text().split())) for file in sorted(folder.iterdir())]
        shutil.rmtree(folder)
        assert set(range(1, 24)) <= set().union(*loaded), loaded
        assert len(loaded) == 6 and all(len(own) < 18 for own in loaded), loaded  # and not the data of all

    tell("options", options)
    tell("nodes", come_and_go)
    tell("fleet", fleet)

    def exits() -> None:
        """A gradient that ends its thread ends its actor: the others go on, and it is said."""
        made.append(Ray(2, cpus=0.5))

        class Seen(Exception):
            """The loss has been told; how soon Ray tells it is up to the machine."""

        def watch(driver: Any, evaluator: Any) -> None:
            if driver.step > 3 and driver.ledger.counts.lost:
                raise Seen

        with contextlib.suppress(Seen):
            run = anyk.train(
                Squares(2, faults={1: "exit"}), "frc:stragglers=1", made[-1], seconds=60.0, callbacks=[Watching(watch)]
            )
            raise AssertionError(f"nobody was lost: {run.ledger}")

    tell("exits", exits)
    pids = {pid for cluster in made for pid in cluster.pids.values()}

    def leaks() -> None:
        assert len(pids) > 8
        assert not over(set(pids)), "actors have outlived their clusters"

    tell("leaks", leaks)


if __name__ == "__main__":
    {"ray": through_ray, "mpi": through_mpi, "nodes": through_nodes}[sys.argv[1]]()
    sys.exit(1 if failed else 0)
