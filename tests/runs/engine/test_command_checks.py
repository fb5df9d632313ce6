"""Commands of a strategy that would give a wrong sum without a word, or end no run, are refused by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import anyk
from anyk.base.errors import RunFailed
from anyk.clusters import Simulated
from anyk.protocol import Cancel, Chunk, Combine, Dispatch, Event, Mix, SetAlarm, Stop
from anyk.runs import Driver, session
from anyk.testing.problems import Squares
from anyk.testing.toy import Toy

pytestmark = pytest.mark.in_process

ONE, TWO = (Chunk((0,), (1.0,)),), (Chunk((1,), (1.0,)),)
BOTH = [(0, 0), (1, 0)]
NAN = float("nan")


def trained(*commands: Any, begin: Sequence[Any] = (Dispatch(0, (0, 1), (ONE, TWO)),), replies: int = 2) -> Any:
    """The model of a strategy that gives these commands once so many replies have arrived."""

    def react(toy: Toy, event: Event) -> Sequence[Any]:
        return [*commands, Stop("done")] if len(toy.seen) == replies else []

    optimizer = anyk.optimizers.GD(lr=0.5)
    driver = Driver(
        Toy(2, list(begin), react), Simulated(2, delays="constant:1"), problem=Squares(2), optimizer=optimizer, steps=9
    )
    with session(driver):
        driver.run()
    return driver.models["model"]


def refused(why: str, *commands: Any, **keys: Any) -> None:
    with pytest.raises(RunFailed) as error:
        trained(*commands, **keys)
    assert str(error.value) == f"'toy' {why} (anyk strategies check 'toy' shows when)"


@pytest.mark.parametrize("divisor", ["all", "counted"])
def test_the_messages_of_a_step(divisor: Any) -> None:
    def combine(messages: Any, weights: Any, slot: str = "model") -> Combine:
        return Combine(slot, messages, weights, divisor)

    expected = trained(combine(BOTH, [1.0, 1.0]))
    assert np.array_equal(trained(combine(BOTH[::-1], np.ones(2))), expected)
    refused("used the message of task 0, chunk 0, twice in a step", combine([(0, 0), (1, 0), (0, 0)], [0.5, 1.0, 0.5]))
    refused("used the message of task 7, chunk 0, which is not, or no longer, under way", combine([(7, 0)], [1.0]))
    for chunk in (1, -1):
        refused(
            f"used the message of task 1, chunk {chunk}, which the task does not have", combine([(1, chunk)], [1.0])
        )
    refused("used the message of task 1, chunk 0, which has not arrived", combine(BOTH, [1.0, 1.0]), replies=1)
    gone = "used the message of task 0, chunk 0, which is not, or no longer, under way"
    refused(gone, Cancel([0]), combine(BOTH, [1.0, 1.0]))
    refused(gone, combine(BOTH, [1.0, 1.0]), combine([(0, 0)], [1.0]))
    refused("stepped without a message", combine([], []))
    refused("stepped 'modell', which is not one of its models", combine(BOTH, [1.0, 1.0], "modell"))
    refused("gave 2 messages 1 weights", combine(BOTH, [1.0]))
    refused("gave 2 messages 4 weights", combine(BOTH, [[1.0, 2.0], [1.0, 2.0]]))
    refused("gave a message a weight that is not finite", combine(BOTH, [1.0, NAN]))
    refused("gave messages the weights [1.0, 'x'], which are not numbers", combine(BOTH, [1.0, "x"]))


def test_models_that_are_mixed() -> None:
    refused("used the message of task 1, chunk 0, twice in a step", Mix("model", [(1, 0), (1, 0)], [0.5, 0.5]))
    refused("gave 2 messages 3 weights", Mix("model", BOTH, [0.5, 0.25, 0.25]))


def test_a_message_may_be_kept_and_used_again() -> None:
    first = Combine("model", BOTH, [1.0, 1.0], "counted", keep=BOTH)
    trained(first, Combine("model", BOTH, [1.0, 1.0], "counted"))


@pytest.mark.parametrize(
    ("task", "why"),
    [
        ((Chunk((0, 1), (1.0,)),), "1 coefficients for 2 partitions"),
        ((Chunk((0,), (1.0, 2.0)),), "2 coefficients for 1 partitions"),
        ((Chunk((0, 1, 0), (1.0, 1.0, 1.0)),), "a partition twice"),
        ((Chunk((0,), (NAN,)),), "a coefficient that is not finite"),
    ],
)
def test_the_chunks_of_a_task(task: Any, why: str) -> None:
    step = Combine("model", [(0, 0)], [1.0], "counted")
    refused(f"gave task 0 {why}", step, begin=[Dispatch(0, (0,), (task,))], replies=1)
    later = [Dispatch(0, (0, 1), (ONE, TWO)), Dispatch(2, (0, 1), (ONE, task))]
    refused(f"gave task 3 {why}", step, begin=later)


def test_as_many_tasks_as_workers() -> None:
    refused("gave 2 workers 1 tasks", begin=[Dispatch(0, (0, 1), (ONE,))])
    repeated = (ONE,)
    refused("gave 2 workers 1 tasks", begin=[Dispatch(0, (0,), repeated), Dispatch(1, (0, 1), repeated)])


def test_a_list_of_tasks_is_looked_at_each_time() -> None:
    tasks = [ONE, TWO]

    def change(toy: Toy, event: Event) -> Sequence[Any]:
        tasks[0] = (Chunk((0, 0), (1.0, 1.0)),)
        return [Cancel([0, 1]), Dispatch(2, (0, 1), tasks)]

    toy, optimizer = Toy(2, [Dispatch(0, (0, 1), tasks)], change), anyk.optimizers.GD(lr=0.5)
    driver = Driver(toy, Simulated(2), problem=Squares(2), optimizer=optimizer, steps=1)
    with pytest.raises(RunFailed, match="'toy' gave task 2 a partition twice"), session(driver):
        driver.run()


def test_cancellations_and_alarms_which_would_never_end_a_run() -> None:
    refused(
        "cancelled tasks by 'stop', which is neither 'preempt' nor 'discard'",
        Cancel([0], "stop"),  # type: ignore[arg-type]
    )
    refused("set the alarm 'late' to a time that is not a number", SetAlarm("late", NAN))
