"""Rounds under a code, fed by hand: when the step is taken, with what, what becomes of the rest, and what if it goes wrong.

No cluster and no clock: events go in, commands come out.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import cache
from itertools import combinations, permutations, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import anyk
from anyk import codes
from anyk.base.errors import BadInput
from anyk.protocol import (
    Alarm,
    Cancel,
    Chunk,
    Combine,
    Command,
    Dispatch,
    Event,
    Failed,
    Fleet,
    Joined,
    Lost,
    Reply,
    SetAlarm,
    Stop,
)
from anyk.strategies import Deadline, Decodable, Gradients, LocalSteps, Rounds, strategy
from byhand import ByHand

pytestmark = pytest.mark.in_process


@cache
def _built(spec: str, workers: int) -> Rounds:
    built = strategy(spec, workers=workers)
    assert isinstance(built, Rounds)
    return built


def rounds(spec: str, workers: int) -> ByHand:
    """A fresh strategy; the code, which is immutable, is built once."""
    built = _built(spec, workers)
    return ByHand(deepcopy(built, {id(built.code): built.code}))


def begun(spec: str, workers: int, time: float = 0.0, present: Sequence[int] | None = None) -> ByHand:
    running = rounds(spec, workers)
    running.start(Fleet(workers, tuple(range(workers) if present is None else present), time))
    return running


def only(kind: type[Any], commands: Sequence[Command]) -> Any:
    chosen = [command for command in commands if isinstance(command, kind)]
    assert len(chosen) == 1, commands
    return chosen[0]


def fed(made: ByHand, order: Sequence[int]) -> tuple[int, Combine]:
    """One-message replies of the first round in this order: after how many the step was taken, and the step."""
    for count, worker in enumerate(order, start=1):
        commands = made.on(Reply(float(count), worker, worker, 0))
        if commands:
            return count, only(Combine, commands)
    raise AssertionError("no step was taken")


def coefficients(made: ByHand, combine: Combine) -> np.ndarray:
    """With which weight each partition counts; tasks of the first round are numbered like their workers."""
    weights = np.zeros(made.code.replies)
    for (task, chunk), weight in zip(combine.messages, combine.weights, strict=True):
        weights[task * made.code.messages + chunk] = weight
    return np.asarray(weights @ made.code.encoding.toarray())


# ------------------------------------------------------------------------------------------- the commands


def test_the_commands_of_a_round() -> None:
    running = rounds("frc:load=2,wait=3|0.5s,cancel=discard", 4)
    first = running.start(Fleet(4, (0, 1, 2, 3), 10.0))
    dispatch, alarm = first
    assert isinstance(dispatch, Dispatch) and isinstance(alarm, SetAlarm)
    assert (dispatch.task, list(dispatch.workers)) == (0, [0, 1, 2, 3])
    assert [task[0].partitions for task in dispatch.chunks] == [(0, 1), (0, 1), (2, 3), (2, 3)]
    assert all(task == (Chunk(task[0].partitions, (1.0, 1.0)),) for task in dispatch.chunks)
    assert alarm == SetAlarm("wait 0", 10.5)
    assert not running.on(Reply(10.1, 3, 3, 0))
    combine, cancel, dispatch, alarm = running.on(Reply(10.2, 0, 0, 0))
    assert combine == Combine("model", [(0, 0), (3, 0)], [1.0, 1.0], "all", 1.0, 0.0, 2.0)
    assert isinstance(cancel, Cancel) and list(cancel.tasks) == [0, 1, 2, 3] and cancel.mode == "discard"
    assert isinstance(dispatch, Dispatch) and (dispatch.task, list(dispatch.workers)) == (4, [0, 1, 2, 3])
    assert alarm == SetAlarm("wait 0", 10.7)
    assert running.version == 1


def test_two_messages_a_worker_are_two_chunks() -> None:
    running = rounds("partial:stragglers=1,load=4", 2)
    dispatch = only(Dispatch, running.start(Fleet(2, (0, 1), 0.0)))
    assert [[chunk.partitions for chunk in task] for task in dispatch.chunks] == [[(0, 1), (4, 5)], [(2, 3), (4, 5)]]
    for reply in (Reply(1, 0, 0, 0), Reply(2, 0, 0, 1)):
        assert not running.on(reply)
    combine = only(Combine, running.on(Reply(3, 1, 1, 0)))
    assert combine.messages == [(0, 0), (0, 1), (1, 0)] and combine.weights == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("spec", ["uncoded", "frc:load=2", "cyclic:stragglers=2", "cyclic:stragglers=2,wait=2"])
def test_equal_sets_give_equal_bits_in_canonical_order(spec: str) -> None:
    """Whatever the order of arrival, the same messages are added with the same weights in the order of workers."""
    steps: dict[frozenset[int], set[str]] = {}
    for order in permutations(range(4)):
        running = begun(spec, 4)
        count, combine = fed(running, order)
        assert combine.messages == sorted(combine.messages)
        steps.setdefault(frozenset(order[:count]), set()).add(repr(combine))
    assert all(len(steps_of_spec) == 1 for steps_of_spec in steps.values())
    assert len(steps) == {"uncoded": 1, "frc:load=2": 4 * 3 // 2 - 2 + 4, "cyclic:stragglers=2": 6}.get(spec, 6)


# ------------------------------------------------------------------------------------------- when


@settings(deadline=None, max_examples=60)
@given(st.sampled_from([(12, 2), (12, 3), (12, 4), (30, 3)]), st.data())
def test_the_step_is_taken_at_the_reply_that_makes_it_possible(size: tuple[int, int], data: st.DataObject) -> None:
    """Fractional repetition: at the reply that completes the groups, or at the number waited for, if that comes first."""
    n, c = size
    order = data.draw(st.permutations(range(n)))
    number = data.draw(st.none() | st.integers(1, n))
    covered = next(m for m in range(1, n + 1) if len({worker // c for worker in order[:m]}) == n // c)
    spec = f"frc:load={c}" + ("" if number is None else f",wait={number}")
    count, combine = fed(begun(spec, n), order)
    assert count == (covered if number is None else min(number, covered))
    answered = len({worker // c for worker in order[:count]})
    share = (
        n // c / answered
    )  # by which the covered part is scaled: of m groups a count m / a times, the rest not at all
    assert combine.weights == pytest.approx([share] * answered)
    assert combine.residual == pytest.approx((share - 1) ** 0.5, abs=1e-9)


@settings(deadline=None, max_examples=30)
@given(st.permutations(range(9)), st.integers(0, 8))
def test_cyclic_steps_at_the_reply_n_less_s(order: list[int], s: int) -> None:
    running = begun(f"cyclic:stragglers={s}", 9)
    count, combine = fed(running, order)
    assert count == 9 - s
    assert coefficients(running, combine) == pytest.approx(np.ones(9), abs=1e-9)


@pytest.mark.slow
@settings(deadline=None, max_examples=40)
@given(st.permutations(range(12)), st.permutations(range(4)), st.integers(1, 12), st.data())
def test_relabelled_workers_and_groups_change_nothing(
    order: list[int], groups: list[int], number: int, data: st.DataObject
) -> None:
    inside = [data.draw(st.permutations(range(3))) for _ in range(4)]
    relabelled = [3 * groups[worker // 3] + inside[worker // 3][worker % 3] for worker in order]
    for scaling in ("none", "conditional", "marginal"):
        one = fed(begun(f"frc:load=3,wait={number},scaling={scaling}", 12), order)
        other = fed(begun(f"frc:load=3,wait={number},scaling={scaling}", 12), relabelled)
        assert one[0] == other[0] and one[1].residual == other[1].residual and one[1].weights == other[1].weights


def test_a_residual_to_wait_for() -> None:
    """Two thirds of six groups leave sqrt(1/3) = 58 %: enough for 60 %, not for 55 %."""
    for bound, count in (("60%", 4), ("55%", 5), ("1%", 6), ("100%", 1)):
        assert fed(begun(f"frc:load=2,wait={bound}", 12), range(0, 12, 2))[0] == count


def test_a_predicate_sees_who_replied() -> None:
    running = ByHand(Rounds(codes.Uncoded(5), wait=lambda waiting: {1, 3} <= set(waiting.replied)))
    running.start(Fleet(5, (0, 1, 2, 3, 4), 0.0))
    count, combine = fed(running, [3, 0, 4, 1, 2])
    assert count == 4 and [task for task, _ in combine.messages] == [0, 1, 3, 4]


def test_waiting_for_all_stops_where_more_add_nothing() -> None:
    assert fed(begun("frc:load=3,wait=all", 6), [0, 1, 2, 5])[0] == 4


# ------------------------------------------------------------------------------------------- deadlines


def test_a_deadline_ends_the_round_with_what_there_is() -> None:
    running = rounds("uncoded:wait=0.5s", 4)
    assert only(SetAlarm, running.start(Fleet(4, (0, 1, 2, 3), 2.0))) == SetAlarm("wait 0", 2.5)
    assert not running.on(Reply(2.125, 1, 1, 0))
    assert not running.on(Reply(2.25, 3, 3, 0))
    combine = only(Combine, running.on(Alarm(2.5, "wait 0")))
    assert combine.messages == [(1, 0), (3, 0)] and combine.weights == pytest.approx([2.0, 2.0])  # scaled by 4 / 2


def test_after_an_empty_deadline_the_first_reply_steps() -> None:
    running = begun("uncoded:wait=0.5s", 4, time=2.0)
    assert not running.on(Alarm(2.5, "wait 0"))
    commands = running.on(Reply(9.0, 2, 2, 0))
    assert only(Combine, commands).messages == [(2, 0)]
    assert only(SetAlarm, commands) == SetAlarm("wait 0", 9.5)  # the next round's deadline counts from its own start


def test_an_alarm_of_an_earlier_round_ends_nothing() -> None:
    running = begun("uncoded:wait=2|0.5s", 3)
    running.on(Reply(0.125, 0, 0, 0))
    assert only(Combine, running.on(Reply(0.25, 1, 1, 0)))
    assert not running.on(Reply(0.375, 0, 3, 0))
    assert not running.on(Alarm(0.5, "wait 0"))  # rung for the round before; this one began at 0.25
    assert only(Combine, running.on(Alarm(0.75, "wait 0"))).messages == [(3, 0)]


def test_two_deadlines_are_two_alarms() -> None:
    """Two replies by half a second, or whatever there is by two."""
    running = rounds("uncoded:wait=2&0.5s|2s", 4)
    commands = running.start(Fleet(4, (0, 1, 2, 3), 0.0))
    alarms = {command.name: command.time for command in commands if isinstance(command, SetAlarm)}
    assert sorted(alarms.values()) == [0.5, 2.0] and len(alarms) == 2
    running.on(Reply(0.25, 0, 0, 0))
    assert not any(running.on(Alarm(0.5, name)) for name, time in alarms.items() if time == 0.5)
    running.on(Lost(1.0, 3, "preempted"))
    assert only(Combine, running.on(Alarm(2.0, next(n for n, t in alarms.items() if t == 2.0)))).messages == [(0, 0)]


@pytest.mark.parametrize("seconds", [0.1, 0.3, 0.7, 1 / 3, 1e-3])
def test_a_deadline_holds_at_any_time_of_day(seconds: float) -> None:
    """The alarm rings at start + seconds as floating point has it, and start + seconds - start is not always seconds."""
    for start in np.arange(0.0, 10.0, 0.1).tolist():
        running = ByHand(Rounds(codes.Uncoded(2), wait=Deadline(seconds)))
        alarm = only(SetAlarm, running.start(Fleet(2, (0, 1), start)))
        running.on(Reply(start, 0, 0, 0))
        commands = running.on(Alarm(alarm.time, alarm.name))
        assert commands, f"the deadline of a round begun at {start} was missed"


def test_a_round_begun_without_workers_has_its_deadline_too() -> None:
    running = rounds("uncoded:wait=2s", 2)
    commands = [*running.start(Fleet(2, (), 0.0)), *running.on(Joined(0.5, 0)), *running.on(Joined(0.5, 1))]
    assert not running.on(Reply(1.0, 0, 0, 0))
    assert any(isinstance(command, SetAlarm) for command in commands)  # else worker 1 may hold it up for ever


# ------------------------------------------------------------------------------------------- scaling


def estimates(spec: str, workers: int, replies: int) -> np.ndarray:
    """The coefficients of all partitions in the decoded sum, for every set of ``replies`` workers."""
    sums = []
    for chosen in combinations(range(workers), replies):
        running = begun(spec, workers)
        _, combine = fed(running, chosen)
        reached = coefficients(running, combine)
        error = float(np.linalg.norm(reached - 1) / len(reached) ** 0.5)
        assert combine.residual == pytest.approx(error, abs=1e-9)  # the receipt is of what is used, after scaling
        weights = dict(zip([task for task, _ in combine.messages], combine.weights, strict=True))
        norms = running.code.norms
        assert combine.gain == pytest.approx(sum((a * norms[i]) ** 2 for i, a in weights.items()) ** 0.5)
        sums.append(reached)
    return np.array(sums)


@pytest.mark.parametrize("load", [2, 5])
def test_conditional_scaling_is_unbiased_over_all_sets(load: int) -> None:
    """All C(10, 4) sets; a set that covers everything is left as it is, and given how many groups answered it is fair."""
    actual = estimates(f"frc:load={load},wait=4", 10, 4)
    assert len(actual) == 210
    assert actual.mean(axis=0) == pytest.approx(np.ones(10), abs=1e-12)
    answered = (actual > 0).sum(axis=1)
    for number in set(answered.tolist()):
        assert actual[answered == number].mean(axis=0) == pytest.approx(np.ones(10), abs=1e-12)
    assert (actual[answered == 10] == 1).all() and (answered == 10).any() == (load == 5)


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["frc:load=2", "frc:load=5", "frc:stragglers=2", "frc:stragglers=1,partitions=7"])
def test_marginal_scaling_is_unbiased_over_all_sets(spec: str) -> None:
    """Also where groups are of different size: each is scaled by its own chance."""
    for replies in (1, 4, 6):
        actual = estimates(f"{spec},wait={replies},scaling=marginal", 10, replies)
        assert actual.mean(axis=0) == pytest.approx(np.ones(actual.shape[1]), abs=1e-12)


def test_unscaled_sums_are_short_by_the_chance_of_loss() -> None:
    actual = estimates("frc:load=2,wait=4,scaling=none", 10, 4)
    assert set(np.unique(actual)) == {0.0, 1.0}
    assert actual.mean(axis=0) == pytest.approx(np.full(10, 1 - 15 / 45), abs=1e-12)  # p = C(8, 4) / C(10, 4) = 1/3


def test_erasureheads_moments() -> None:
    """E g = (1-p) f', E|g|^2 = (1-q)|f'|^2 + (q-p)/n^2 sum_u |g[u]|^2, over all sets of four of ten, groups of two."""
    n, p, q = 10, 70 / 210, (2 * 70 - 15) / 210  # C(8,4) = 70, C(6,4) = 15
    G = np.random.default_rng(0).standard_normal((n, 3))
    full, groups = G.mean(axis=0), G.reshape(5, 2, 3).sum(axis=1)
    square, spread = float(full @ full), float((groups**2).sum()) / n**2
    plain = estimates("frc:load=2,wait=4,scaling=none", 10, 4) @ G / n
    assert plain.mean(axis=0) == pytest.approx((1 - p) * full, rel=1e-12)
    assert (plain**2).sum(axis=1).mean() == pytest.approx((1 - q) * square + (q - p) * spread, rel=1e-12)
    fair = estimates("frc:load=2,wait=4,scaling=marginal", 10, 4) @ G / n
    variance = ((fair - full) ** 2).sum(axis=1).mean()
    assert variance == pytest.approx(((1 - q) / (1 - p) ** 2 - 1) * square + (q - p) / (1 - p) ** 2 * spread, rel=1e-12)


def test_erasureheads_coefficient_errors() -> None:
    """n p without scaling, n p / (1-p) with: 3.362 and 3.786 at n = 30, c = 3, r = 15; by enumeration at ten workers."""
    p = codes.code("frc:load=3", workers=30).expected_coefficients(15)[0] * -1 + 1
    assert 30 * p == pytest.approx(3.362, abs=5e-4) and 30 * p / (1 - p) == pytest.approx(3.786, abs=5e-4)
    for scaling, error in (("none", 10 / 3), ("marginal", 10 / 3 / (2 / 3))):
        actual = estimates(f"frc:load=2,wait=4,scaling={scaling}", 10, 4)
        assert ((actual - 1) ** 2).sum(axis=1).mean() == pytest.approx(error, rel=1e-12)


def test_only_the_marginal_factor_scales_complete_sums() -> None:
    order = [0, 2, 4, 1, 3, 5]
    count, combine = fed(begun("frc:load=2,wait=4,scaling=marginal", 6), order)
    expected = 1 - 1 / 15  # C(4, 4) / C(6, 4)
    assert count == 3 and combine.weights == pytest.approx([1 / expected] * 3)
    assert combine.residual == pytest.approx(1 / expected - 1)
    assert fed(begun("frc:load=2,wait=4,scaling=conditional", 6), order)[1].weights == [1.0] * 3


def test_ignoring_stragglers_of_an_uncoded_sum() -> None:
    """a = n / r and ||a B - 1||^2 = n (n - r) / r whoever replied; fair over all sets of four of six."""
    count, combine = fed(begun("uncoded:wait=20", 30), np.random.default_rng(0).permutation(30).tolist())
    assert count == 20 and combine.weights == pytest.approx([1.5] * 20)
    assert 30 * combine.residual**2 == pytest.approx(15.0)
    assert estimates("uncoded:wait=4", 6, 4).mean(axis=0) == pytest.approx(np.ones(6), abs=1e-12)
    G = np.random.default_rng(1).standard_normal((6, 2))
    spread = ((G - G.mean(axis=0)) ** 2).sum() / 5
    error = ((estimates("uncoded:wait=4", 6, 4) @ G - G.sum(axis=0)) ** 2).sum(axis=1).mean()
    assert error == pytest.approx(36 * (1 - 4 / 6) / 4 * spread)  # sampling without replacement


def test_conditional_scaling_makes_mean_coefficients_one() -> None:
    for spec in ("cyclic:stragglers=2,wait=5", "frc:stragglers=2,wait=2", "frc:stragglers=1,partitions=9,wait=3"):
        assert estimates(spec, 8, int(spec[-1])).mean(axis=1) == pytest.approx(1.0, abs=1e-9)


# ------------------------------------------------------------------------------------------- unusable replies


def test_an_unusable_reply_is_set_aside_if_others_may_come() -> None:
    running = begun("frc:load=2", 4)
    assert not running.on(Failed(0.1, 0, 0, 0, "not finite"))
    assert not running.on(Reply(0.2, 2, 2, 0))
    assert only(Combine, running.on(Reply(0.3, 1, 1, 0))).messages == [(1, 0), (2, 0)]


def test_the_last_worker_is_asked_twice_again_before_a_stop() -> None:
    running = begun("uncoded", 3)
    running.on(Failed(0.1, 1, 1, 0, "not finite"))
    running.on(Reply(0.2, 0, 0, 0))
    for time, task in ((0.3, 3), (0.4, 4)):
        event = Reply(time, 2, 2, 0) if task == 3 else Failed(time, 1, 3, 0, "not finite")
        asked = only(Dispatch, running.on(event))
        assert (asked.task, list(asked.workers), asked.chunks[0][0].partitions) == (task, [1], (1,))
    stop = only(Stop, running.on(Failed(0.5, 1, 4, 0, "not finite")))
    assert stop.failed
    assert stop.reason == (
        "step 0 cannot be taken under 'uncoded': 2 of 3 replies do not give the sum (unusable replies from worker 1); "
        "a code that tolerates more stragglers, or wait=…, goes on"
    )


def test_the_second_answer_counts_and_failures_are_forgotten() -> None:
    running = begun("uncoded", 2)
    running.on(Reply(0.1, 0, 0, 0))
    assert only(Dispatch, running.on(Failed(0.2, 1, 1, 0, "not finite"))).task == 2
    combine = only(Combine, running.on(Reply(0.3, 1, 2, 0)))
    assert combine.messages == [(0, 0), (2, 0)]
    running.on(Reply(0.4, 0, 3, 0))
    for task in (4, 5):  # twice again: the count is of one round
        assert list(only(Dispatch, running.on(Failed(0.5, 1, task, 0, "not finite"))).workers) == [1]


def test_all_who_failed_are_asked_again_in_order() -> None:
    running = begun("frc:load=2", 4)
    for worker in (3, 0, 2):
        assert not running.on(Failed(0.1, worker, worker, 0, "not finite"))
    asked = only(Dispatch, running.on(Failed(0.2, 1, 1, 0, "not finite")))
    assert list(asked.workers) == [0, 1, 2, 3] and asked.task == 4


def test_an_approximate_rule_steps_with_what_there_is() -> None:
    running = begun("uncoded:wait=3", 4)
    running.on(Lost(0.0, 3, "preempted", gone=True))
    running.on(Reply(0.1, 0, 0, 0))
    running.on(Reply(0.1, 1, 1, 0))
    for task in (2, 4):
        assert only(Dispatch, running.on(Failed(0.2, 2, task, 0, "not finite"))).task == {2: 4, 4: 5}[task]
    combine = only(Combine, running.on(Failed(0.3, 2, 5, 0, "not finite")))
    assert combine.messages == [(0, 0), (1, 0)] and combine.weights == pytest.approx([2.0, 2.0])


def test_no_reply_at_all_is_not_an_approximation() -> None:
    running = begun("uncoded:wait=1", 1)
    for task in (0, 1):
        assert only(Dispatch, running.on(Failed(0.2, 0, task, 0, "not finite")))
    assert only(Stop, running.on(Failed(0.3, 0, 2, 0, "not finite"))).failed


def test_a_second_message_that_came_is_not_waited_for_again() -> None:
    """Both first messages were unusable, both workers are asked again: one answers, the other fails. Somebody must act."""
    running = begun("partial:stragglers=1,load=3", 2)
    asked = {0: 0, 1: 1}  # the newest task of each worker
    coming = {(task, chunk) for task in (0, 1) for chunk in (0, 1)}

    def tell(event: Reply | Failed) -> None:
        coming.discard((event.task, event.chunk))
        for command in running.on(event):
            assert isinstance(command, Dispatch), command
            for task, worker in enumerate(command.workers, command.task):
                asked[worker] = task
                coming.update({(task, 0), (task, 1)})

    for worker in (0, 1):
        tell(Failed(1.0, worker, worker, 0, "not finite"))
        tell(Reply(1.1, worker, worker, 1))
    assert asked == {0: 2, 1: 3}
    tell(Reply(2.0, 0, 2, 0))
    tell(Reply(2.1, 0, 2, 1))
    tell(Failed(2.2, 1, 3, 0, "not finite"))
    tell(Reply(2.3, 1, 3, 1))
    assert coming, "worker 1 is needed, and nothing more will come of it"


def test_two_unusable_messages_of_one_task_are_one_failure() -> None:
    """The worker is asked again twice, and the run does not stop while an answer is still to come."""
    running = begun("partial:stragglers=0,load=2", 1)
    tasks = 1
    for task, chunk in product(range(3), range(2)):
        for command in running.on(Failed(1.0, 0, task, chunk, "not finite")):
            assert isinstance(command, Dispatch) or (task, chunk) == (2, 1), "stopped before all was heard"
            tasks += isinstance(command, Dispatch)
    assert tasks == 3


def test_a_message_is_awaited_after_its_sister_was_unusable() -> None:
    """Worker 1's second message is on its way; the rule allows an approximation, but only when nobody is left."""
    running = begun("partial:stragglers=1,load=3,wait=4", 2)
    running.on(Reply(0.1, 0, 0, 0))
    running.on(Reply(0.2, 0, 0, 1))
    for task in (1, 2, 3):  # the first message fails each time, and is asked for again before the second one comes
        commands = running.on(Failed(0.3, 1, task, 0, "not finite"))
        assert not any(isinstance(command, Combine) for command in commands)


# ------------------------------------------------------------------------------------------- who is there


def test_only_those_present_are_given_work() -> None:
    running = rounds("frc:load=2", 6)
    dispatch = only(Dispatch, running.start(Fleet(6, (1, 2, 5), 0.0)))
    assert list(dispatch.workers) == [1, 2, 5] and dispatch.task == 0
    assert [task[0].partitions for task in dispatch.chunks] == [(0, 1), (2, 3), (4, 5)]


def test_a_worker_lost_and_found_gets_the_rounds_work_at_once() -> None:
    running = begun("uncoded", 3)
    running.on(Reply(0.1, 0, 0, 0))
    assert not running.on(Lost(0.2, 1, "preempted"))
    assert not running.on(Reply(0.3, 2, 2, 0))  # worker 1 may come back
    asked = only(Dispatch, running.on(Joined(0.4, 1)))
    assert (asked.task, list(asked.workers), asked.chunks[0][0].partitions) == (3, [1], (1,))
    commands = running.on(Reply(0.5, 1, 3, 0))
    assert only(Combine, commands).messages == [(0, 0), (3, 0), (2, 0)]  # in the order of workers
    assert list(only(Cancel, commands).tasks) == [0, 1, 2, 3]
    assert list(only(Dispatch, commands).workers) == [0, 1, 2]


def test_a_reply_outlives_its_worker() -> None:
    running = begun("uncoded", 2)
    running.on(Reply(0.1, 0, 0, 0))
    running.on(Lost(0.2, 0, "preempted"))
    assert not running.on(Joined(0.3, 0))  # it has replied already
    running.on(Lost(0.4, 0, "preempted"))
    commands = running.on(Reply(0.5, 1, 1, 0))
    assert only(Combine, commands).messages == [(0, 0), (1, 0)]
    assert list(only(Dispatch, commands).workers) == [1]


def test_a_worker_absent_at_the_start_joins_in_mid_round() -> None:
    running = begun("frc:load=2", 4, present=(0, 1))
    assert not running.on(Reply(0.1, 0, 0, 0))
    assert list(only(Dispatch, running.on(Joined(0.2, 3))).workers) == [3]
    assert only(Combine, running.on(Reply(0.3, 3, 2, 0))).messages == [(0, 0), (2, 0)]


def test_a_given_up_worker_is_done_without_if_possible() -> None:
    running = begun("frc:load=2", 4)
    for worker in (0, 3):
        assert not running.on(Lost(0.1, worker, "died three times", gone=True))
    running.on(Reply(0.2, 2, 2, 0))
    commands = running.on(Reply(0.3, 1, 1, 0))
    assert only(Combine, commands).residual == 0.0
    assert list(only(Dispatch, commands).workers) == [1, 2]


def test_a_worker_given_up_ends_the_run_where_it_is_needed() -> None:
    running = begun("uncoded", 3)
    running.on(Reply(0.1, 0, 0, 0))
    running.on(Reply(0.1, 1, 1, 0))
    assert not running.on(Lost(0.2, 2, "preempted"))
    stop = only(Stop, running.on(Lost(0.3, 2, "could not be started", gone=True)))
    assert stop.failed and stop.reason.startswith(
        "step 0 cannot be taken under 'uncoded': 2 of 3 replies do not give the sum (given up: worker 2); "
    )
    running = begun("uncoded", 2)
    running.on(Lost(0.1, 0, "died", gone=True))
    assert running.on(Lost(0.2, 1, "died", gone=True)) == [Stop("every worker has been given up", failed=True)]


@pytest.mark.parametrize("spec", ["uncoded", "uncoded:wait=2", "frc:load=2,wait=2", "uncoded:wait=0.5s"])
def test_a_fleet_given_up_to_the_last_worker_ends_the_run(spec: str) -> None:
    """Also where what there was gave a last step: nobody will ever begin another round."""
    running = begun(spec, 2)
    running.on(Reply(0.1, 0, 0, 0))
    commands = [*running.on(Lost(0.2, 0, "died", gone=True)), *running.on(Lost(0.3, 1, "died", gone=True))]
    assert only(Stop, commands).failed


def test_a_given_up_worker_changes_nothing_while_others_work() -> None:
    running = begun("uncoded:wait=2", 3)
    running.on(Reply(0.1, 0, 0, 0))
    assert not running.on(Lost(0.2, 2, "died", gone=True))
    assert only(Combine, running.on(Reply(0.3, 1, 1, 0)))


def test_an_empty_fleet_is_waited_for() -> None:
    running = begun("uncoded", 2)
    for worker in (0, 1):
        assert not running.on(Lost(0.1, worker, "preempted"))
    assert list(only(Dispatch, running.on(Joined(5.0, 1))).workers) == [1]
    assert list(only(Dispatch, running.on(Joined(6.0, 0))).workers) == [0]


def test_agc_is_frc_stopped_early_with_mini_batches_too():
    built = strategy("agc:load=2,wait=3,batch=16", workers=6)
    assert built.spec == "frc:load=2,wait=3,batch=16"
    assert strategy(built.spec, workers=6).spec == built.spec


# ------------------------------------------------------------------------------------------- any events at all

Rule = Callable[[int, bool, float, float], bool]  # replies, exact, residual, elapsed
RULES: dict[str, Rule] = {
    "uncoded": lambda k, exact, residual, elapsed: exact,
    "frc:load=2": lambda k, exact, residual, elapsed: exact,
    "frc:stragglers=1,wait=3": lambda k, exact, residual, elapsed: exact or k >= 3,
    "frc:load=2,wait=80%,scaling=none": lambda k, exact, residual, elapsed: exact or residual < 0.8,
    "agc:load=2,wait=3,scaling=marginal": lambda k, exact, residual, elapsed: exact or k >= 3,
    "cyclic:stragglers=2": lambda k, exact, residual, elapsed: exact,
    "cyclic:stragglers=1,wait=2,cancel=discard": lambda k, exact, residual, elapsed: exact or k >= 2,
    "uncoded:wait=0.5s": lambda k, exact, residual, elapsed: exact or (k > 0 and elapsed >= 0.5),
    "frc:load=2,wait=2&0.5s|2s": lambda k, exact, residual, elapsed: (
        exact or (k >= 2 and elapsed >= 0.5) or (k > 0 and elapsed >= 2)
    ),
    "partial:stragglers=1,load=3": lambda k, exact, residual, elapsed: exact,
    "partial:stragglers=1,load=3,inner=cyclic,wait=6": lambda k, exact, residual, elapsed: exact or k >= 6,
}
WORKERS = 4
KINDS = ["reply"] * 7 + ["fail", "fail", "lost", "joined", "joined", "gone", "alarm"]
Actions = list[tuple[str, int, float]]
actions = st.lists(
    st.tuples(st.sampled_from(KINDS), st.integers(0, 1000), st.sampled_from([0.0, 0.25, 1.0])), max_size=40
)


class World:
    """What a cluster knows: who is here and which messages may still come. It holds a strategy to its word."""

    def __init__(self, spec: str, present: Sequence[int]) -> None:
        self.spec, self.rule, self.strategy = spec, RULES[spec], rounds(spec, WORKERS)
        self.code = self.strategy.code
        self.B = self.code.encoding.toarray()
        self.present, self.gone = set(present), set[int]()
        self.pending: dict[tuple[int, int], int] = {}  # (task, chunk) -> worker
        self.replied: dict[int, tuple[int, int]] = {}  # reply -> (task, chunk), of this round
        self.failures: Counter[int] = Counter()
        self.alarms: dict[str, float] = {}
        self.time = self.began = 0.0
        self.next = self.version = 0
        self.stopped: Stop | None = None
        self.obey(self.strategy.start(Fleet(WORKERS, tuple(sorted(present)), 0.0)))

    # what it sees

    def error(self) -> float:
        if not self.replied:
            return 1.0
        B = self.B[sorted(self.replied)]
        weights = np.linalg.lstsq(B.T, np.ones(B.shape[1]), rcond=None)[0]
        return float(np.sqrt(((weights @ B - 1) ** 2).mean()))

    def enough(self) -> bool:
        error = self.error()
        return self.rule(len(self.replied), error < 1e-7, error, self.time - self.began)

    def expected(self) -> bool:
        """Whether anything may still happen by itself."""
        return bool(self.pending or self.alarms or len(self.present) + len(self.gone) < WORKERS)

    # what it is told

    def obey(self, commands: Sequence[Command]) -> None:
        for command in commands:
            assert self.stopped is None
            if isinstance(command, Dispatch):
                workers = list(command.workers)
                assert workers == sorted(set(workers)) and set(workers) <= self.present and workers
                assert command.task == self.next  # numbered upwards, never reused
                self.next += len(workers)
                c = self.code.messages
                for task, (worker, chunks) in enumerate(zip(workers, command.chunks, strict=True), command.task):
                    rows = [(chunk.partitions, chunk.coefficients) for chunk in chunks]
                    assert rows == list(self.code.rows[worker * c : worker * c + c])
                    self.pending |= {(task, chunk): worker for chunk in range(c)}
            elif isinstance(command, Combine):
                self.combined(command)
            elif isinstance(command, Cancel):
                assert {task for task, _ in self.pending} <= set(command.tasks)
                self.pending.clear()
            elif isinstance(command, SetAlarm):
                assert command.time is not None and command.time >= self.time
                self.alarms[command.name] = command.time
            else:
                assert isinstance(command, Stop) and command.failed
                step = f"step {self.version} cannot be taken under '{self.strategy.spec}'"
                assert command.reason.startswith((step, "every worker has been given up"))
                assert not self.pending and len(self.present) + len(self.gone) == WORKERS  # nobody was left to wait for
                self.stopped = command

    def combined(self, command: Combine) -> None:
        replies = {message: reply for reply, message in self.replied.items()}
        used = [replies[message] for message in command.messages]  # only what came in this round
        assert used == sorted(set(used)) and used
        assert self.enough() or not self.pending  # not before time
        weights = np.zeros(len(self.B))
        weights[used] = command.weights
        reached = weights @ self.B
        assert command.residual == pytest.approx(float(np.sqrt(((reached - 1) ** 2).mean())), abs=1e-7)
        assert command.gain == pytest.approx(float(np.linalg.norm(weights * self.code.norms)), rel=1e-9)
        if self.error() < 1e-7 and self.strategy.scaling_used != "marginal":
            assert reached == pytest.approx(np.ones(len(reached)), abs=1e-9)  # the whole sum, whenever it is there
        self.version += 1
        assert self.strategy.version == self.version
        self.replied, self.began = {}, self.time
        self.failures.clear()

    def tell(self, event: Event) -> None:
        """A twin restored from the strategy's state, as JSON, must do the same and come to the same state."""
        twin = rounds(self.spec, WORKERS)
        twin.restore(json.loads(json.dumps(self.strategy.save())))
        commands = self.strategy.on(event)
        assert list(twin.on(event)) == list(commands)
        assert twin.save() == self.strategy.save()
        self.obey(commands)
        if self.stopped is None:
            assert not self.enough() or not self.replied  # not after time, either
            assert self.expected(), "nothing can happen any more, and the strategy has not said so"

    # what happens

    def do(self, kind: str, pick: int, later: float) -> None:
        until = self.time + later
        if kind == "alarm" and self.alarms:
            until = max(until, min(self.alarms.values()))
        while self.alarms and min(self.alarms.values()) <= until and self.stopped is None:
            name = min(self.alarms, key=lambda name: (self.alarms[name], name))
            self.time = self.alarms.pop(name)
            self.tell(Alarm(self.time, name))
        self.time = max(self.time, until)
        if self.stopped is not None or kind == "alarm":
            return
        absent = sorted(set(range(WORKERS)) - self.present - self.gone)
        if kind in ("lost", "gone") and self.present:
            worker = sorted(self.present)[pick % len(self.present)]
            self.present.discard(worker)
            self.gone |= {worker} if kind == "gone" else set()
            self.pending = {message: w for message, w in self.pending.items() if w != worker}
            self.tell(Lost(self.time, worker, "preempted", kind == "gone"))
        elif absent and (kind == "joined" or not self.pending):
            worker = absent[pick % len(absent)]
            if kind == "gone":
                self.gone.add(worker)
                self.tell(Lost(self.time, worker, "given up", True))
            else:
                self.present.add(worker)
                self.tell(Joined(self.time, worker))
        elif self.pending:
            heads = [message for message in sorted(self.pending) if (message[0], message[1] - 1) not in self.pending]
            task, chunk = heads[pick % len(heads)]
            worker = self.pending.pop((task, chunk))
            if kind == "fail":
                self.failures[worker] += 1
                self.tell(Failed(self.time, worker, task, chunk, "not finite"))
            else:
                self.replied.setdefault(worker * self.code.messages + chunk, (task, chunk))
                self.tell(Reply(self.time, worker, task, chunk))


@pytest.mark.slow
@pytest.mark.parametrize("spec", RULES)
@settings(deadline=None, max_examples=40)
@given(present=st.sets(st.integers(0, WORKERS - 1), min_size=1), actions=actions)
def test_under_any_events_rounds_keep_their_word(spec: str, present: set[int], actions: Actions) -> None:
    world = World(spec, sorted(present))
    for action in actions:
        world.do(*action)
        if world.stopped is not None:
            break


# ------------------------------------------------------------------------------------------- what it is


def test_facts_come_from_the_code() -> None:
    built = rounds("frc:load=3,wait=11", 30)
    assert (built.workers, built.partitions, built.slots) == (30, 30, ("model",))
    assert built.assignment[4] == (3, 4, 5) and len(built.assignment) == 30
    assert built.spec == "frc:load=3,wait=11"
    assert rounds("cyclic:stragglers=1", 4).spec == "cyclic:stragglers=1"
    assert Rounds(codes.Uncoded(4), wait=Decodable(), work=Gradients(scaling="none"), cancel="discard").spec == (
        "uncoded:scaling=none,cancel=discard"
    )


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"scaling": "mean"}, r"scaling must be none, marginal, conditional or None, got 'mean'"),
        ({"cancel": "stop"}, r"cancel must be preempt or discard, got 'stop'"),
        ({"wait": 5}, r"wait must be 1 to 4 \(the number of replies\), got 5"),
        (
            {"scaling": "marginal"},
            r"scaling=marginal needs a fixed number of replies, as in wait=11; got wait=decodable",
        ),
        (
            {"scaling": "marginal", "wait": "5%"},
            r"scaling=marginal needs a fixed number of replies, as in wait=11; got wait=5%",
        ),
        (
            {"scaling": "marginal", "wait": "2|3"},
            r"scaling=marginal needs a fixed number of replies, as in wait=11; got wait=2\|3",
        ),
    ],
)
def test_options_that_cannot_be(options: Any, sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        anyk.strategies.rounds(codes.Uncoded(4), **options)


def test_local_steps_of_a_code_with_replicas_are_refused() -> None:
    with pytest.raises(BadInput, match="local steps under 'frc:load=2' have been tested as rounds of uncoded"):
        Rounds(codes.FractionalRepetition(4, load=2), work=LocalSteps(tau=2))


@pytest.mark.parametrize("key", ["models", "scaling", "decoder", "snapshot", "check", "order"])
def test_keys_of_gradients_do_not_exist_for_local_steps(key: str) -> None:
    with pytest.raises(BadInput, match=key):
        strategy(f"pasgd:tau=2,{key}=1", workers=4)


def test_marginal_scaling_needs_a_code_with_a_closed_form() -> None:
    with pytest.raises(
        BadInput,
        match="scaling=marginal needs a repetition code, got 'cyclic:stragglers=1'; use scaling=conditional or none",
    ):
        strategy("cyclic:stragglers=1,wait=2,scaling=marginal", workers=4)


def test_agc_takes_partitions_and_a_decoder() -> None:
    built: Any = strategy("agc:load=4,partitions=24,wait=5,decoder=one-step", workers=12)
    assert built.spec == strategy("frc:load=4,partitions=24,wait=5,decoder=one-step", workers=12).spec
    assert (built.layout.partitions, built.code.load) == (24, 4)
