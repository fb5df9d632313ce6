"""Sessions: what a driver and its parts do at their edges."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import anyk
from anyk.base.errors import BadInput, RunFailed
from anyk.clusters import Simulated
from anyk.protocol import Alarm, Cancel, Chunk, Combine, Dispatch, Event, Layout, Reply, SetAlarm, Stop
from anyk.runs import Driver, LogWriter, session
from anyk.runs.engine.versions import Versions
from anyk.testing.problems import Squares
from anyk.testing.toy import Toy


def asks_all(toy: Toy) -> Sequence[Any]:
    return [Dispatch(0, (0, 1), ((Chunk((0,), (1.0,)),), (Chunk((1,), (1.0,)),)))]


def test_the_ledger_of_a_run_that_fails_is_closed() -> None:
    toy = Toy(2, asks_all, lambda toy, event: [Stop("enough", failed=True)])
    driver = Driver(toy, Simulated(2, delays="constant:1"), log=LogWriter(), steps=1)
    with pytest.raises(RunFailed, match="enough"), session(driver):
        driver.run()
    assert driver.log is not None
    assert driver.ledger.counts.open == 0 and driver.ledger.counts.dispatched == 2
    assert len(driver.log.rows("SELECT * FROM chunks")) == 2


def test_after_another_error_the_ledger_stays_as_it_is() -> None:
    def react(toy: Toy, event: Event) -> Sequence[Any]:
        raise KeyError("a strategy's mistake")

    driver = Driver(Toy(2, asks_all, react), Simulated(2, delays="constant:1"), steps=1)
    with pytest.raises(KeyError), session(driver):
        driver.run()
    assert driver.ledger.counts.open == 2


def test_what_is_not_a_command_is_named() -> None:
    toy = Toy(2, asks_all, lambda toy, event: ["step!"])  # type: ignore[list-item]
    driver = Driver(toy, Simulated(2), steps=1)
    with pytest.raises(RunFailed, match="'toy' returned 'step!', which is not a command"), session(driver):
        driver.run()


def test_a_run_ends_when_it_is_told_to() -> None:
    for tell, interrupted in ((Driver.end, False), (Driver.interrupt, True)):
        driver = Driver(anyk.strategy("uncoded", workers=3), Simulated(3), steps=9, on_news=tell)
        with session(driver):
            driver.run()
        assert (driver.step, driver.interrupted) == (1, interrupted)


def test_a_checkpoint_of_another_run_is_refused() -> None:
    driver = Driver(anyk.strategy("uncoded", workers=3), Simulated(3), steps=2)
    with session(driver):
        state = driver.state()
    other = Driver(anyk.strategy("uncoded", workers=3), Simulated(3), steps=2)
    damaged = {key: value for key, value in state.items() if key != "given"}
    with pytest.raises(BadInput, match="not one of the run that its run.toml describes"), session(other, (damaged, {})):
        other.run()


def test_a_pinned_version_stays_until_it_is_unpinned_as_often() -> None:
    cluster, problem = Simulated(2), Squares(2)
    layout = Layout(2, 2, ((0,), (1,)))
    cluster.open(layout, problem.split(2))
    versions = Versions(cluster, layout, problem, anyk.optimizers.GD(lr=0.5))
    versions.begin()
    first = cluster.store.model("model", 0).copy()
    for _ in range(2):
        versions.pin("model", 0)
    for number in (1, 2):
        w = cluster.store.blank("model")
        w[:] = number
        versions.publish("model", w)
    versions.unpin("model", 0)
    assert np.array_equal(cluster.store.model("model", 0), first)
    versions.unpin("model", 0)
    for gone in (0, 1):
        with pytest.raises(KeyError):
            cluster.store.model("model", gone)
    assert versions["model"] == versions.step == 2 and versions.trained["model"][0] == 2.0


def test_combine_is_not_seen_by_who_watches_auxiliary_models() -> None:
    """Steps of auxiliary slots are not steps of the run."""
    seen: list[str] = []

    def react(toy: Toy, event: Event) -> Sequence[Any]:
        return [Combine("beside", [(0, 0)], [1.0]), Stop("done")]

    toy = Toy(1, lambda toy: [Dispatch(0, (0,), ((Chunk((0,), (1.0,)),),))], react)
    toy.layout = Layout(1, 1, ((0,),), ("model", "beside"), ("beside",))
    driver = Driver(toy, Simulated(1), steps=2, on_step=lambda _: seen.append("step"))
    with session(driver):
        driver.run()
    assert seen == [] and driver.step == 0 and driver.versions["beside"] == 1


def test_each_task_of_a_batch_has_its_own_time_of_cancellation() -> None:
    """Two of three tasks dispatched together are cancelled one after the other, and reply late; the third counts."""

    def begin(toy: Toy) -> Sequence[Any]:
        tasks = tuple((Chunk((i,), (1.0,)),) for i in range(3))
        return [Dispatch(0, (0, 1, 2), tasks), SetAlarm("0", 1.0), SetAlarm("1", 2.0)]

    def react(toy: Toy, event: Event) -> Sequence[Any]:
        if isinstance(event, Alarm):
            return [Cancel((int(event.name),), "discard")]
        if isinstance(event, Reply):
            return [Combine("model", [(event.task, 0)], [1.0], "counted")]
        return []

    driver = Driver(Toy(3, begin, react), Simulated(3, delays="constant:5"), log=LogWriter(), steps=1)
    with session(driver):
        driver.run()
    assert driver.log is not None
    rows = driver.log.rows("SELECT task, ending, cancelled FROM chunks ORDER BY task")
    assert rows == [(0, "discarded", 1.0), (1, "discarded", 2.0), (2, "counted", None)]
