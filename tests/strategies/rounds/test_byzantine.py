"""Codes against liars as a strategy: every reply is measured before it counts, and no liar's message does."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import anyk
from anyk.clusters import Simulated
from anyk.protocol import Combine, Command, Dispatch, Failed, Fleet, MessageProjected, ProjectMessage, Reply, Stop
from anyk.strategies import strategy
from anyk.testing import Squares, check_strategy
from byhand import ByHand


def begun(spec: str, n: int) -> ByHand:
    running = ByHand(strategy(spec, workers=n))
    running.start(Fleet(n, tuple(range(n)), 0.0))
    return running


def honest(made: ByHand, seed: int = 0) -> np.ndarray:
    """What each worker's message is projected to when it does not lie."""
    return np.asarray(made.code.encoding.toarray() @ np.random.default_rng(seed).normal(1.0, 1.0, made.partitions))


def told(made: ByHand, worker: int, value: float, task: int | None = None) -> Sequence[Command]:
    """A reply and what it is measured to be."""
    task = worker if task is None else task
    assert list(made.on(Reply(1.0, worker, task, 0))) == [ProjectMessage(worker, task, 0)]  # it does not count yet
    return made.on(MessageProjected(1.0, worker, task, 0, value))


def step_of(made: ByHand, order: Sequence[int], values: Any) -> tuple[int, Combine | None]:
    for count, worker in enumerate(order, 1):
        for command in told(made, worker, float(values[worker])):
            if isinstance(command, Combine):
                return count, command
    return len(order), None


# ------------------------------------------------------------------------------------------- who lies


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(st.permutations(range(9)), st.sets(st.integers(0, 2), max_size=3), st.floats(-1e12, 1e12))
def test_replicas_outvote_one_liar_in_each_group(order: list[int], lying: set[int], lie: float) -> None:
    """Groups of three; the step is taken when in each two have said the same, and uses none that lies."""
    running = begun("draco:byzantine=1", 9)
    values = honest(running)
    byzantine = {3 * group + group for group in lying}
    for liar in byzantine:
        values[liar] = lie
    count, combine = step_of(running, order, values)
    spoken = [max(sorted(order.index(w) for w in range(g, g + 3) if w not in byzantine)[:2]) for g in (0, 3, 6)]
    assert combine is not None and count == max(spoken) + 1
    used = [task for task, _ in combine.messages]
    assert not set(used) & byzantine and sorted(worker // 3 for worker in used) == [0, 1, 2]


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(st.sampled_from([(7, 1, 0), (9, 2, 0), (9, 1, 2), (15, 3, 1)]), st.data())
def test_cyclic_codes_find_any_liars(size: tuple[int, int, int], data: st.DataObject) -> None:
    n, t, f = size
    running = begun(f"draco:byzantine={t},stragglers={f},kind=cyclic", n)
    values = honest(running)
    byzantine = data.draw(st.sets(st.integers(0, n - 1), max_size=t))
    for liar in byzantine:
        values[liar] += data.draw(st.sampled_from([1e-3, 1.0, -100.0, 1e6])) * data.draw(st.floats(0.5, 2.0))
    late = data.draw(st.permutations(range(n)))
    count, combine = step_of(running, late, values)
    assert combine is not None and count == n - f
    used = [task for task, _ in combine.messages]
    assert not set(used) & byzantine
    weights = np.zeros(n)
    weights[used] = combine.weights
    assert weights @ running.code.encoding.toarray() == pytest.approx(np.ones(n), abs=1e-6)


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
@pytest.mark.parametrize("kind", ["repetition", "cyclic"])
@pytest.mark.parametrize("liar", [0, 2])
def test_a_projection_that_overflows_is_a_lie(kind: str, value: float, liar: int) -> None:
    """A finite message may be so large that its projection is not: that worker's message is not to be used."""
    running = begun(f"draco:byzantine=1,kind={kind}", 5)
    values = honest(running)
    values[liar] = value
    _, combine = step_of(running, range(5), values)
    assert combine is not None
    assert (liar, 0) not in combine.messages
    weights = np.zeros(5)
    weights[[task for task, _ in combine.messages]] = combine.weights
    assert weights @ running.code.encoding.toarray() == pytest.approx(np.ones(5), abs=1e-6)


@pytest.mark.parametrize("kind", ["repetition", "cyclic"])
def test_a_liar_may_lie_with_nan(kind: str) -> None:
    """ "Whatever they like" includes messages that are not finite; the cluster says so, and the others are honest."""
    running = begun(f"draco:byzantine=1,kind={kind}", 5)
    values = honest(running)
    pending = {worker: worker for worker in range(5)}
    steps, stops = [], []
    for _ in range(12):
        if not pending or steps or stops:
            break
        task, worker = min(pending.items())
        del pending[task]
        commands: Sequence[Command]
        if worker == 2:
            commands = running.on(Failed(1.0, worker, task, 0, "not finite (NaN)"))
        else:
            commands = told(running, worker, float(values[worker]), task)
        steps += [command for command in commands if isinstance(command, Combine)]
        stops += [command for command in commands if isinstance(command, Stop)]
        for command in commands:
            if isinstance(command, Dispatch) and not steps:
                pending |= dict(enumerate(command.workers, command.task))
    assert steps, stops


@pytest.mark.parametrize("rule", ["wait=3", "wait=0.5s", "wait=90%"])
def test_no_step_is_taken_before_liars_would_have_been_found_out(rule: str) -> None:
    """Either such a rule is refused for a code against Byzantine workers, or no liar's message is used under it."""
    try:
        run = anyk.train(
            Squares(9), f"draco:byzantine=1,{rule}", Simulated(9, delays=anyk.delays.Exponential(0.5), byzantine=(0,), seed=1),
            steps=10, optimizer=anyk.optimizers.GD(lr=0.1),
        )  # fmt: skip
    except anyk.BadInput as error:
        assert "finds Byzantine workers by its own decoder" in str(error)
        return
    assert run.log.rows("SELECT count(*) FROM chunks WHERE worker = 0 AND step IS NOT NULL")[0][0] == 0


@pytest.mark.parametrize("name", ["least-squares", "one-step", "algorithmic"])
def test_another_decoder_is_refused_or_finds_them_out(name: str) -> None:
    cluster = Simulated(6, byzantine=(0,))
    try:
        run = anyk.train(Squares(6), f"draco:byzantine=1,decoder={name}", cluster, steps=2)
    except anyk.BadInput as error:
        assert "finds Byzantine workers by its own decoder" in str(error)
        return
    assert run.log.rows("SELECT count(*) FROM chunks WHERE worker = 0 AND step IS NOT NULL")[0][0] == 0


def test_too_many_liars_are_said_to_be() -> None:
    """What stops a run is said: not "replies do not give the sum ()"."""
    with pytest.raises(anyk.RunFailed) as caught:
        anyk.train(Squares(7), "draco:byzantine=1,kind=cyclic", Simulated(7, byzantine=(1, 4)), steps=1)
    assert "()" not in str(caught.value)


def test_float32_replies_are_refused_in_one_sentence_or_work() -> None:
    """Their rounding is above what the syndromes take for a lie."""
    data = np.random.default_rng(0).normal(size=(140, 20)).astype(np.float32)
    problem = anyk.problems.LogisticRegression(data, np.sign(data[:, 0]))
    try:
        run = anyk.train(problem, "draco:byzantine=1,kind=cyclic", Simulated(7, byzantine=(2,)), steps=2)
    except (anyk.BadInput, anyk.RunFailed) as error:
        assert "float" in str(error)
    else:
        assert run.steps == 2


# ------------------------------------------------------------------------------------------- the protocol


def test_measures_of_a_taken_step_say_nothing_of_the_next() -> None:
    running = begun("draco:byzantine=1", 3)
    assert list(running.on(Reply(1.0, 2, 2, 0))) == [ProjectMessage(2, 2, 0)]
    told(running, 0, 5.0)
    assert any(isinstance(command, Combine) for command in told(running, 1, 5.0))
    before = running.save()
    assert not running.on(MessageProjected(1.0, 2, 2, 0, 7.0))  # asked for in the step before
    assert {**running.save(), "now": 0.0} == {**before, "now": 0.0}


@pytest.mark.parametrize("spec", ["draco:byzantine=1", "draco:byzantine=1,stragglers=1,kind=cyclic"])
def test_it_goes_on_from_its_state_between_reply_and_measure(spec: str) -> None:
    running = begun(spec, 9)
    values = honest(running)
    values[4] = 1e3
    for worker in range(9):
        twin = ByHand(strategy(spec, workers=9))
        twin.restore(json.loads(json.dumps(running.save())))
        reply = Reply(1.0, worker, worker, 0)
        assert list(twin.on(reply)) == list(running.on(reply))
        between = ByHand(strategy(spec, workers=9))
        between.restore(json.loads(json.dumps(running.save())))
        measured = MessageProjected(1.0, worker, worker, 0, float(values[worker]))
        commands = list(running.on(measured))
        assert list(between.on(measured)) == commands and between.save() == running.save()
        if commands:
            break
    assert running.version == 1


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("spec", "n"), [("draco:byzantine=1", 9), ("draco:byzantine=1,stragglers=1,kind=cyclic", 7)])
def test_it_survives_outages(spec: str, n: int, seed: int) -> None:
    check_strategy(strategy(spec, workers=n), steps=10, outages=5, seed=seed)


# ------------------------------------------------------------------------------------------- on the simulated cluster


@pytest.mark.parametrize(
    ("spec", "byzantine"), [("draco:byzantine=1", (0, 4, 8)), ("draco:byzantine=2,stragglers=1,kind=cyclic", (3, 7))]
)
def test_the_model_is_that_of_an_honest_fleet(spec: str, byzantine: tuple[int, ...]) -> None:
    models = []
    for lying in ((), byzantine):
        cluster = Simulated(9, delays=anyk.delays.Exponential(0.5), seed=2, byzantine=lying)
        run = anyk.train(Squares(9), spec, cluster, steps=8, optimizer=anyk.optimizers.Nesterov(lr=0.2))
        rows = run.log.rows("SELECT DISTINCT worker FROM chunks WHERE step IS NOT NULL")
        assert not {worker for (worker,) in rows} & set(lying)
        assert anyk.replay(run, problem=Squares(9)).model
        models.append(run.model)
    assert models[0] == pytest.approx(models[1], rel=1e-9)


def test_liars_spoil_what_is_not_made_for_them() -> None:
    """So that the test above says something."""
    runs = [
        anyk.train(Squares(9), "uncoded", Simulated(9, byzantine=lying), steps=2, evaluate=None)
        for lying in ((), (0, 4, 8))
    ]
    assert np.abs(runs[0].model - runs[1].model).max() > 1.0


def test_liars_are_part_of_the_clusters_spec(tmp_path: Any) -> None:
    cluster = Simulated(9, delays=anyk.delays.Exponential(0.5), seed=2, byzantine=(1, 5))
    assert anyk.clusters.cluster(cluster.spec, workers=9).byzantine == (1, 5)
    anyk.train(Squares(9), "draco:byzantine=1", cluster, steps=3, out=tmp_path / "run")
    resumed = anyk.resume(tmp_path / "run", problem=Squares(9), steps=6)
    honest_run = anyk.train(
        Squares(9),
        "draco:byzantine=1",
        Simulated(9, delays=anyk.delays.Exponential(0.5), seed=2, byzantine=(1, 5)),
        steps=6,
    )
    assert np.array_equal(resumed.model, honest_run.model)
    with pytest.raises(anyk.BadInput, match="a worker of byzantine must be 0 to 8, got 9"):
        Simulated(9, byzantine=(9,))
