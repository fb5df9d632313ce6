"""What the driver passes on of a step: as the log has it, with the messages and workers of this step."""

from __future__ import annotations

from typing import Any

import pytest

import anyk
from anyk.clusters import Simulated
from anyk.protocol import Chunk, Combine, Dispatch
from anyk.runs import Driver, LogWriter, session
from anyk.runs.engine.step_record import StepBegun, StepRecord
from anyk.runs.log.schema import Update
from anyk.testing.problems import Squares
from anyk.testing.toy import Toy


def drive(strategy: Any, steps: int) -> tuple[list[StepBegun], list[StepRecord], LogWriter]:
    begun: list[StepBegun] = []
    records: list[StepRecord] = []
    log = LogWriter()
    driver = Driver(
        strategy,
        Simulated(strategy.layout.workers, delays=anyk.delays.Exponential(1.0), seed=3),
        problem=Squares(strategy.layout.partitions),
        optimizer=anyk.optimizers.GD(lr=0.1),
        log=log,
        steps=steps,
        on_step=records.append,
    )
    driver.before_step = begun.append
    with session(driver):
        driver.run()
    return begun, records, log


@pytest.mark.parametrize("spec", ["frc:load=2", "k-async:k=2", "pasgd:tau=2", "uncoded:models=2", "dpsgd"])
def test_a_record_says_what_the_log_says(spec: str) -> None:
    strategy = anyk.strategy(spec, workers=4)
    begun, records, log = drive(strategy, 5)
    rows = [Update(*row[:-1]) for row in log.rows("SELECT * FROM updates")]
    assert [record.update for record in records] == [row for row in rows if row.slot not in strategy.layout.auxiliary]
    for record in records:
        version = record.update.slot, record.update.version
        used = log.rows("SELECT worker FROM chunks WHERE slot = ? AND step = ?", version)
        assert set(record.used_by) == {worker for (worker,) in used}
    made = [(step.command.slot, step.version) for step in begun]
    assert made == [(row.slot, row.version) for row in rows]
    assert all(step.time <= row.time for step, row in zip(begun, rows, strict=True))


def test_what_a_step_cancels_is_known_when_it_begins() -> None:
    begun, _, log = drive(anyk.strategy("uncoded:wait=2", workers=4), 6)
    assert [step.cancelled for step in begun] == [tuple(range(4 * t, 4 * t + 4)) for t in range(6)]
    cut_off = {task for (task,) in log.rows("SELECT task FROM chunks WHERE cancelled IS NOT NULL AND task < 24")}
    used = {task for step in begun for task, _ in step.command.messages}
    assert {task for step in begun for task in step.cancelled} == cut_off | used


def test_two_steps_of_one_event_have_records_of_their_own() -> None:
    dispatch = Dispatch(0, (0, 1), ((Chunk((0,), (1.0,), slot="a"),), (Chunk((1,), (1.0,), slot="b"),)))

    def react(toy: Toy, event: Any) -> list[Combine]:
        if len(toy.seen) < 2:
            return []
        return [Combine("a", [(0, 0)], [1.0]), Combine("b", [(1, 0)], [1.0])]

    begun, records, _ = drive(Toy(2, [dispatch], react, slots=("a", "b")), 1)
    assert [(record.update.slot, set(record.used_by)) for record in records] == [("a", {0}), ("b", {1})]
    assert [step.command for step in begun] == [record.command for record in records]
