"""Slices on a Ray cluster of three nodes; a line of JSON a check. test_slices.py runs it.

``python tests/clusters/ray/slices_on_ray.py whole``: with more optimisers and strategies than the tests take.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np
import ray

import anyk
from anyk.clusters import Ray
from anyk.runs.callbacks import Watching
from anyk.testing import Squares
from clusters.conform import failed, over, tell

SPEC, WORKERS, D = "frc:load=2", 4, 400_000
SLICES = "ray:slices=nodes,cpus=0.5"
PIDS: set[int] = set()


def on_ray(**options: Any) -> Ray:
    return Ray(WORKERS, slices="nodes", cpus=0.5, seed=1, **options)


def both(spec: str, optimizer: Any, problem: Any, **options: Any) -> tuple[Any, Any]:
    """The runs on Ray, in slices, and on processes."""
    clusters = on_ray(), anyk.clusters.Processes(WORKERS, seed=1)
    sliced, whole = (
        anyk.train(problem, spec, cluster, optimizer=optimizer, steps=4, evaluate=None, **options)
        for cluster in clusters
    )
    PIDS.update(clusters[0].pids.values())
    assert not sliced.ledger["lost"], sliced.notes
    return sliced, whole


def have_the_bits_of_processes() -> None:
    """Models, digests, states: with state, clipping, an optimiser of torch, an outer one, several models, stale messages."""
    adamw = anyk.optimizers.optimizer("adamw", lr=0.1)
    rmsprop = anyk.optimizers.TorchOptimizer("RMSprop", lr=0.01, schedule="StepLR:step_size=2")
    gd = anyk.optimizers.GD(lr=0.1)
    clipped = [anyk.optimizers.Clip(of=of, norm=0.01) for of in (adamw, rmsprop)]
    cases = [(SPEC, adamw), (SPEC, clipped[1]), ("dpsgd", gd)]
    if "whole" in sys.argv:
        cases += [(SPEC, each) for each in (gd, rmsprop, clipped[0])]
        cases += [(spec, gd) for spec in ("slowmo:tau=2", "tree:children=4", "m-sgc:B=1,W=2,lambda=2")]
    for spec, optimizer in cases:
        sliced, whole = both(spec, optimizer, Squares(24, 140_000 if spec == "dpsgd" else D))
        for slot, model in whole.models.items():
            assert np.array_equal(sliced.models[slot], model), (spec, optimizer.spec)
        digests = [run.log.rows("SELECT slot, version, digest FROM updates") for run in (sliced, whole)]
        assert digests[0] == digests[1] and len(digests[0]) >= 4, spec
        if spec == SPEC:  # each slice of a message came from one of the two workers of its group
            receipt = sliced.receipt(2)
            for used, givers in zip(receipt.used, receipt.slices, strict=True):
                assert len(givers) == 3 and {giver // 2 for giver in givers} == {used.worker // 2}, receipt
        states = [run.warm_start().states for run in (sliced, whole)]
        for slot, state in states[1].items():
            for name, vector in state.items():
                assert np.array_equal(states[0][slot][name], vector), (spec, name)


def step_behind_an_optimizer_of_torch() -> None:
    import torch

    def script(cluster: Any) -> Any:
        torch.manual_seed(0)
        module = torch.nn.Sequential(torch.nn.Linear(500, 600), torch.nn.Tanh(), torch.nn.Linear(600, 2))
        X = torch.randn(60, 500)
        adam = torch.optim.AdamW(module.parameters(), lr=0.01)
        problem = anyk.problems.TorchProblem(module, torch.nn.CrossEntropyLoss(), (X, (X[:, 0] > 0).long()))
        optimizer = anyk.torch.Optimizer(adam, problem, SPEC, cluster, clip=0.05, evaluate=None)
        with optimizer:
            while optimizer.step().number < 3:
                adam.param_groups[0]["lr"] *= 0.5
        return [*module.state_dict().values()], optimizer.run.log.rows("SELECT version, digest FROM updates")

    found, expected = script(on_ray()), script(anyk.clusters.Processes(WORKERS, seed=1))
    assert all(map(torch.equal, found[0], expected[0])) and found[1] == expected[1]


def are_saved_and_resumed_anywhere() -> None:
    whole, adam = Squares(6, D), anyk.optimizers.optimizer("adam", lr=0.1)
    expected = anyk.train(whole, SPEC, anyk.clusters.Processes(WORKERS), optimizer=adam, steps=8).model
    with tempfile.TemporaryDirectory() as folder:
        for first, second in ((SLICES, "processes"), ("processes", SLICES)):
            out = os.path.join(folder, second)
            options: Any = {"optimizer": adam, "workers": WORKERS, "checkpoint_every": 0.01}
            anyk.train(whole, SPEC, first, steps=4, out=out, **options).close()
            with anyk.resume(out, problem=whole, steps=8, cluster=second) as run:
                assert np.array_equal(run.model, expected), second


def a_killed_worker_is_replaced() -> None:
    """And what no step needs any more is not kept, neither by the driver nor by the holders."""
    cluster, most = on_ray(), [0]

    def watch(driver: Any, evaluator: Any) -> None:
        assert cluster._sliced is not None
        actors = cluster._sliced.actors
        most[0] = max(most[0], len(actors.carrier.stored))
        if driver.step == 3 and not driver.ledger.counts.lost:
            os.kill(cluster.pids[0], signal.SIGKILL)
        if driver.step == 29:
            for actor in actors._actors.values():
                held = ray.get(actor.__ray_call__.remote(lambda self: (len(self._models), len(self._holder._sums))))
                assert max(held) <= 8, held

    run = anyk.train(Squares(4, D), SPEC, cluster, steps=30, evaluate=None, callbacks=[Watching(watch)])
    expected = anyk.train(Squares(4, D), SPEC, anyk.clusters.Processes(WORKERS, seed=1), steps=30, evaluate=None)
    assert np.array_equal(run.model, expected.model)
    assert most[0] <= 40, most  # vectors, of 30 versions and 120 messages
    PIDS.update(cluster.pids.values())


def a_killed_holder_ends_the_run_which_goes_on() -> None:
    cluster, problem = on_ray(), Squares(4, D)

    def watch(driver: Any, evaluator: Any) -> None:
        if driver.step == 5:
            assert cluster._sliced is not None
            actor = cluster._sliced.actors._actors[1]
            os.kill(ray.get(actor.__ray_call__.remote(lambda self: os.getpid())), signal.SIGKILL)

    adamw = anyk.optimizers.optimizer("adamw", lr=0.1)
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "run")
        try:
            anyk.train(
                problem, SPEC, cluster, optimizer=adamw, steps=9, out=out, checkpoint_every=0.01,
                callbacks=[Watching(watch)],
            )  # fmt: skip
        except anyk.RunFailed as error:
            assert type(error).__name__ == "StateLost" and "was lost with its slice of the model" in str(error), error
        else:
            raise AssertionError("the run went on")
        with anyk.resume(out, problem=problem, steps=9, cluster=SLICES) as run:
            expected = anyk.train(
                problem, SPEC, anyk.clusters.Processes(WORKERS, seed=1), optimizer=adamw, steps=9
            ).model
            assert np.array_equal(run.model, expected)


def what_slices_cannot_do_is_refused() -> None:
    words = {
        "draco:stragglers=1": "replies are compared number by number",
        "compressed:of=(uncoded),by=(top-k:share=0.5)": "compressed messages are decompressed as a whole",
    }
    for spec, reason in words.items():
        try:
            anyk.train(Squares(4, 1000), spec, on_ray(), steps=2)
        except anyk.BadInput as error:
            assert reason in str(error) and "use cluster 'ray' without slices" in str(error), error
        else:
            raise AssertionError(spec)


def main() -> None:
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 2, "object_store_memory": 150_000_000}
    head = {**node, "include_dashboard": False, "_system_config": {"worker_niceness": 0}}
    nodes = Cluster(initialize_head=True, head_node_args=head)
    try:
        for _ in range(2):
            nodes.add_node(**node)
        ray.init(address=nodes.address, log_to_driver=False, logging_level="ERROR")
        for check in CHECKS:
            tell(check.__name__, check)
        assert PIDS
        tell("leaks", lambda: np.testing.assert_equal(over(set(PIDS)), set()))
    finally:
        ray.shutdown()
        nodes.shutdown()


CHECKS = [
    have_the_bits_of_processes,
    step_behind_an_optimizer_of_torch,
    are_saved_and_resumed_anywhere,
    a_killed_worker_is_replaced,
    a_killed_holder_ends_the_run_which_goes_on,
    what_slices_cannot_do_is_refused,
]

if __name__ == "__main__":
    main()
    sys.exit(1 if failed else 0)
