"""The start of workers that die: at once given up if they cannot start, and patiently started again otherwise."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

import anyk
from anyk.clusters import ClusterOptions
from anyk.clusters.remote.handles import Died
from anyk.clusters.remote.networked import Networked, NetworkedHandle
from anyk.testing import Squares

Reason = Callable[[int, int], str]  # why a worker ends, by its number and how often it has been started


class Failing(Networked):
    """Workers that end as soon as they are started."""

    name = "failing"

    def __init__(self, workers: int, reason: Reason, blame: int = 1) -> None:
        super().__init__(ClusterOptions(workers), NetworkedHandle)
        self.reason, self.blame, self.starts = reason, blame, [0] * workers

    def ship(self, partitions: Any) -> None:
        pass

    def close(self) -> None:
        pass

    def spawn(self, worker: int) -> None:
        self.starts[worker] += 1
        handle = self.renew(worker)
        self.news.append(Died(worker, handle.incarnation, self.reason(worker, self.starts[worker]), self.blame))

    def listens(self, worker: int) -> bool:
        return True

    def send(self, worker: int, envelope: Any) -> None:
        pass

    def poll(self, timeout: float) -> None:
        time.sleep(min(timeout, 0.01))


@pytest.mark.parametrize("blame", [1, 4])
def test_workers_that_cannot_start_end_the_run_at_once(blame: int) -> None:
    cluster = Failing(2, lambda worker, start: "no such program: wrker", blame)
    with pytest.raises(anyk.RunFailed, match="^worker [01] did not start: no such program: wrker, 5 times in a row$"):
        anyk.train(Squares(2), "uncoded", cluster, steps=1)
    assert max(cluster.starts) == 5


@pytest.mark.slow
def test_workers_that_end_for_other_reasons_start_again() -> None:
    cluster = Failing(1, lambda worker, start: f"machine {start} was taken away" if start < 8 else "lost")
    cluster.patience = 6
    with pytest.raises(anyk.RunFailed, match="did not start: machine 6 was taken away, 6 times in a row"):
        anyk.train(Squares(1), "uncoded", cluster, steps=1)
    assert cluster.starts == [6]


@pytest.mark.slow
def test_the_suite_says_which_check_begins_and_fails_at_once() -> None:
    lines: list[str] = []
    with pytest.raises(anyk.RunFailed, match="did not start: no such program"):
        anyk.testing.check_cluster(
            lambda workers, delays: Failing(workers, lambda *_: "no such program"), tell=lines.append
        )
    assert lines == ["1 of 14: exact sums"]
    anyk.testing.check_cluster(
        lambda workers, delays: anyk.clusters.Simulated(workers, delays=delays), tell=lines.append
    )
    assert lines[-1] == "14 of 14: losses" and len(lines) == 15
