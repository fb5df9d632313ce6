"""Injected communication on processes."""

from __future__ import annotations

import pytest

import anyk


@pytest.mark.slow
def test_processes_are_held_up_as_the_simulator_says() -> None:
    setting = {"workers": 3, "communication": "link:latency=0.02,links=serial"}
    problem = anyk.problems.from_data("synthetic:rows=60,features=4")
    for spec in ("sync", "dpsgd:graph=ring"):
        virtual, real = (
            anyk.train(problem, spec, anyk.cluster(name, **setting), steps=3)  # type: ignore[arg-type]
            for name in ("simulated", "processes")
        )
        assert virtual.seconds == virtual.floor_seconds == pytest.approx(real.floor_seconds)
        assert real.seconds >= real.floor_seconds
        for run in (virtual, real):
            run.close()
