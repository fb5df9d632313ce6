"""Every strategy meets one fault in a fleet of one size here, and all faults in all sizes by ``scripts/soak clusters``."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

import anyk
from anyk.codes import registry as codes
from anyk.delays import Exponential
from anyk.runs.callbacks import Watching
from anyk.strategies import registry as strategies
from clusters.limits import FAULTS, SIZES, STRATEGIES, fitting, make_problem, settled, survive

pytestmark = pytest.mark.slow

assert SIZES == (6, 8, 30)
HERE = (6, 8, 6, 30)  # fewer of the largest fleet
CASES = [(spec, HERE[i % len(HERE)], FAULTS[i % len(FAULTS)]) for i, spec in enumerate(STRATEGIES)]


@pytest.mark.parametrize(("spec", "n", "fault"), CASES)
def test_a_strategy_survives(spec: str, n: int, fault: str) -> None:
    survive(spec, n, fault, steps=25)


@pytest.mark.parametrize("spec", STRATEGIES[::2])  # neighbours are of a kind
def test_a_run_that_its_seconds_end_replays(spec: str) -> None:
    spec, n = fitting(spec, 6)
    problem = make_problem()
    fleet = anyk.clusters.Processes(n, delays=Exponential(mean=0.01), seed=1)
    run = anyk.train(problem, spec, fleet, optimizer=anyk.optimizers.GD(lr=0.1), seconds=0.3)
    settled(run, problem)
    run.close()


def test_no_strategy_is_left_out() -> None:
    names = {
        entry.name
        for registry in (strategies, codes)
        for entry in registry
        if entry.build.__module__.startswith("anyk.")
    }
    assert names - {"matrix"} <= {spec.partition(":")[0] for spec in STRATEGIES}


@pytest.mark.parametrize("spec", ["matcha:graph=ring,tau=2", "dpsgd:graph=ring"])
def test_messages_left_with_a_frozen_worker_are_taken_up(spec: str, tmp_path: Path) -> None:
    """The others run ahead of it by as many rounds as the graph allows, and more than a worker has buffers."""
    cluster = anyk.clusters.Processes(8, delays=Exponential(mean=0.003), seed=0)

    def watch(driver: Any, evaluator: Any) -> None:
        if driver.step == 2:
            os.kill(cluster.pids[1], signal.SIGSTOP)

    optimizer = anyk.optimizers.GD(lr=0.1)
    out = tmp_path / "run"
    anyk.train(
        make_problem(), spec, cluster, optimizer=optimizer, seconds=1.0, out=out, callbacks=[Watching(watch)]
    ).close()
    run = anyk.resume(out, seconds=60.0, steps=20)
    assert run.steps == 20
    settled(run, make_problem())
    run.close()
