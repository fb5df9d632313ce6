"""The floor of a run of several models, which a limit of seconds may leave with different numbers of steps."""

import pytest

import anyk
from anyk.runs.callbacks import Callback


@pytest.mark.parametrize("spec", ["uncoded", "frc:load=2", "gc:stragglers=1"])
def test_on_a_virtual_clock_the_floor_is_what_it_took(spec: str) -> None:
    problems = [anyk.testing.Squares(6) for _ in range(2)]
    cluster = anyk.cluster("simulated", workers=6, delays="bimodal:fast=0.1,slow=1", seed=1)
    run = anyk.train_many(problems, spec, cluster, steps=50, seconds=1.35)
    versions = [len(run.history_of(slot)["step"]) for slot in run.models]
    assert run.seconds <= 1.35
    assert run.seconds == pytest.approx(run.floor_seconds, abs=1e-12), versions


def test_the_floor_of_a_long_run_reports_its_progress() -> None:
    lines: list[str] = []

    class Shown(Callback):
        def stage(self, text: str, *, always: bool = True) -> None:
            lines.append(text)

    anyk.train(anyk.testing.Squares(4), "uncoded", "simulated", workers=4, steps=3, callbacks=[Shown()])
    assert [line for line in lines if "floor" in line] == [f"computing the floor: step {t} of 3" for t in (1, 2, 3)]
