"""Every strategy while workers are frozen or killed, and the helper that starts them is: what has to hold all the same.

As a program it tries all of it, as ``scripts/soak clusters`` does: ``python tests/clusters/limits.py [SPEC …]``.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

import anyk
from anyk.clusters.contract import PINNED
from anyk.runs import Driver
from anyk.runs.callbacks import Watching
from anyk.runs.engine.counts import ENDINGS
from anyk.runs.engine.dispatches import ARRIVED, KEPT


def check_bounds(driver: Driver) -> dict[str, int]:
    """Check that a run keeps a bounded number of messages and versions, however long it is, also with silent workers.

    A model has at most as many versions as there are workers, each on its own, the newest, one that is being written
    and those that are yet to be evaluated. A cluster keeps no message but those that may still be used or read. Of the
    tasks of a worker that were cut off and whose end is not known 16 are remembered.

    Returns what is kept: ``versions`` of the model that has the most, ``messages`` of the worker that has the most, and
    ``cut``, such tasks of one worker.
    """
    workers = driver.layout.workers
    versions = Counter(slot for slot, _ in driver.versions._pins)
    messages = Counter[int]()
    for task, batch in driver.ledger._given.items():
        start = (task - batch.first) * batch.width
        statuses = batch.status[start : start + batch.width]
        messages[batch.workers[task - batch.first]] += sum(status in (ARRIVED, KEPT) for status in statuses)
    kept = {
        "versions": max(versions.values(), default=0),
        "messages": max(messages.values(), default=0),
        "cut": max(map(len, driver.ledger._cancelled_of)),
    }
    assert kept["versions"] <= workers + 2 + PINNED, f"the versions of a model pile up: {versions}"
    assert kept["cut"] <= 16, f"tasks that were cut off pile up: {kept['cut']} of one worker"
    store = driver.cluster.store
    assert len(store.arrived) <= messages.total() + len(store.freed), (
        f"{len(store.arrived)} messages are kept, {messages} may be used"
    )
    return kept


SIZES = (6, 8, 30)
FAULTS = ("frozen", "another frozen", "killed", "all killed", "helper killed")
STRATEGIES = (
    "sync", "k-sync:k=3", "k-batch-sync:k=4", "async", "async:cutoff=3", "k-async:k=3", "k-batch-async:k=5",
    "anytime:deadline=0.01,parts=4", "anytime:batch=2,parts=4", "adasync:base=k-async,k=2,interval=0.05", "adasync:base=k-batch-sync,k=2,interval=0.05,rule=noise",
    "gradual:base=k-batch-async,k=2,every=5", "pasgd:tau=2", "adacomm:tau=4,interval=0.05", "fedavg:tau=2,clients=3",
    "fedbuff:tau=2,k=3", "slowmo:tau=2", "diloco:tau=2", "dpsgd:graph=ring", "dpsgd:graph=exp,tau=2",
    "matcha:graph=ring,tau=2", "easgd:tau=2", "coop:matrix=ring,auxiliary=2", "hierarchical:groups=2,tau=2,every=3", "ad-psgd:tau=2", "gc:stragglers=1", "sr-sgc:B=1,W=2,lambda=2",
    "m-sgc:B=1,W=2,lambda=2", "m-sgc:B=2,W=3,lambda=2,late=keep", "compressed:of=(k-sync:k=4),by=(top-k:share=0.5)",
    "compressed:of=(async),by=qsgd", "agc:load=2", "uncoded:wait=4", "uncoded:wait=0.01s", "uncoded:wait=3mad",
    "uncoded:wait=4,cancel=discard", "uncoded:models=2", "frc:stragglers=1", "frc:stragglers=1,balance=auto", "cyclic:stragglers=1", "mds:stragglers=1",
    "binary:stragglers=1", "nested:stragglers=1", "progress:load=2", "partial:stragglers=1,load=3", "bcc",
    "comm-efficient", "draco:kind=cyclic", "draco", "tree:children=2", "bgc:load=2", "rbgc:load=2", "sbc:load=2",
    "expander:load=3", "biregular:load=2", "graph", "bibd", "kronecker", "hetero",
)  # fmt: skip


def fitting(spec: str, n: int) -> tuple[str, int]:
    """A spec and number of workers, near those given, that go together."""
    if spec == "bibd":
        return spec, {6: 7, 8: 9, 30: 31}[n]
    if spec.startswith("tree") and n == 8:
        return "tree:children=8", n
    return spec, n


def make_problem() -> Any:
    """One that is quick to load: workers import no other module for it."""
    return anyk.problems.from_data("synthetic:rows=600,features=5")


@contextlib.contextmanager
def waking(pids: Sequence[int], going: list[float]) -> Iterator[None]:
    """Wake stopped workers once the run has stood still for a while, or has ended."""
    over = threading.Event()

    def wake() -> None:
        while not over.wait(0.02):
            if pids and time.monotonic() > going[0] + 0.25:
                break
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    thread = threading.Thread(target=wake)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def survive(spec: str, n: int, fault: str, *, seed: int = 0, steps: int = 40) -> dict[str, int]:
    """Train on processes with a fault after two steps; returns what was kept at most.

    A frozen worker stays so for as long as the run goes on without it, and is woken when it does not.
    """
    spec, n = fitting(spec, n)
    cluster = anyk.clusters.Processes(n, delays=anyk.delays.Exponential(mean=0.003), seed=seed)
    problem = make_problem()
    frozen: list[int] = []
    going = [time.monotonic()]
    kept: dict[str, int] = {}
    done: list[str] = []

    def watch(driver: Any, evaluator: Any) -> None:
        going[0] = time.monotonic()
        for name, value in check_bounds(driver).items():
            kept[name] = max(kept.get(name, 0), value)
        victim = {"frozen": 1, "another frozen": n - 1}.get(fault, 0)
        if driver.step < 2 or done or victim not in cluster.pids:
            return
        done.append(fault)
        if "frozen" in fault:
            frozen.append(cluster.pids[victim])
            os.kill(frozen[0], signal.SIGSTOP)
        elif fault == "killed":
            os.kill(cluster.pids[victim], signal.SIGKILL)
        elif fault == "all killed":
            for pid in list(cluster.pids.values()):
                os.kill(pid, signal.SIGKILL)
        elif fault == "helper killed":
            assert cluster.helper is not None
            os.kill(cluster.helper, signal.SIGKILL)

    with waking(frozen, going):
        run = anyk.train(
            problem, spec, cluster, optimizer=anyk.optimizers.GD(lr=0.1), steps=steps, callbacks=[Watching(watch)]
        )
    try:
        assert done == [fault]
        assert run.steps == steps, f"{run.steps} steps of {steps}"
        settled(run, problem)
    finally:
        run.close()
    return kept


def settled(run: Any, problem: Any) -> None:
    """The ledger balances, and the log replays to the same decisions and the same bits."""
    ledger = run.ledger
    assert ledger["dispatched"] == sum(ledger[name] for name in ENDINGS), f"the ledger does not balance: {ledger}"
    assert all(np.isfinite(model).all() for model in run.models.values())
    again = anyk.replay(run, problem=problem, optimizer=anyk.optimizers.GD(lr=0.1))
    assert again.decisions, str(again)
    assert again.model, str(again)


def main(specs: Sequence[str]) -> int:
    """Try all strategies with all faults at all sizes; returns how many failed."""
    failed = 0
    for spec in specs or STRATEGIES:
        for n in SIZES:
            for fault in FAULTS:
                began = time.monotonic()
                try:
                    kept: Any = survive(spec, n, fault)
                except Exception:
                    failed += 1
                    kept = "FAILED\n" + traceback.format_exc()
                print(f"{spec} n={n} {fault}: {time.monotonic() - began:.1f} s {kept}", flush=True)
    print(f"{failed} failed")
    return failed


if __name__ == "__main__":
    sys.exit(1 if main(sys.argv[1:]) else 0)
