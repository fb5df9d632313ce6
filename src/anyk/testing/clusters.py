"""Requirements of every cluster; together these checks are the definition of a cluster."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, TypeVar

import numpy as np

from anyk.base import BadInput
from anyk.clusters import Cluster, Simulated
from anyk.delays import Constant, DelayModel
from anyk.optimizers import GD
from anyk.problems import ManyProblems, Problem, Tell, some_rows
from anyk.protocol import (
    Cancel,
    Chunk,
    Combine,
    Command,
    Commands,
    Dispatch,
    Event,
    Failed,
    Joined,
    Lost,
    MessageProjected,
    Mix,
    Progress,
    ProjectMessage,
    Reply,
    RequestMessage,
    Task,
)
from anyk.runs import Driver, Evaluate, LogWriter, RunLog, session, train
from anyk.runs.api import EvaluationInfo, decisions, log_columns
from anyk.strategies import strategy as build
from anyk.testing.problems import Squares
from anyk.testing.toy import Toy

MakeCluster = Callable[[int, DelayModel | None], Cluster]
Kill = Callable[[Cluster, int], None]
E = TypeVar("E", bound=Event)
_N = 4
_CENTRES = Squares(_N).centres
_EXACT = (
    ("uncoded", _N),
    ("frc:stragglers=1", _N),
    ("cyclic:stragglers=1", _N),
    ("partial:stragglers=1,load=3", _N),
    ("nested:stragglers=1", _N),
    ("progress:load=2", _N),
    ("comm-efficient", _N),
    ("draco:kind=cyclic", _N),
    ("tree:children=2", 6),
)
_STEADY = (
    "uncoded",
    "cyclic:stragglers=1,wait=all",
    "anytime:deadline=60,parts=2",
    "pasgd:tau=3",
    "pasgd:tau=2,clients=2",
    "dpsgd",
    "easgd:tau=2",
    "compressed:of=(uncoded),by=(top-k:share=0.5)",
    "m-sgc:B=1,W=2,lambda=2",
)
_EVALUATED = (("frc:stragglers=1", 1, _N), ("uncoded:models=2", 2, _N), ("k-async:k=1", 1, 3))  # models, samples


def _run(strategy: Any, cluster: Cluster, steps: int, problem: Squares | None = None) -> Driver:
    problem = problem or Squares(strategy.layout.partitions)
    driver = Driver(strategy, cluster, problem=problem, optimizer=GD(lr=0.5), log=LogWriter(), steps=steps)
    with session(driver):
        driver.run()
    assert driver.ledger.counts.open == 0, f"the ledger does not balance: {driver.ledger.counts}"
    driver.versions.kept = {slot: np.array(w) for slot, w in driver.models.items()}
    return driver


def _log(driver: Driver) -> RunLog:
    assert driver.log is not None
    return driver.log


def _all(n: int) -> Task:
    """Return a task of one chunk: the sum of n partitions."""
    return (Chunk(tuple(range(n)), (1.0,) * n),)


def _received(toy: Toy, kind: type[E]) -> list[E]:
    """Return the events of one kind that a toy has received."""
    return [event for event in toy.seen if isinstance(event, kind)]


def _single(task: int, partition: int, worker: int = 0, **settings: Any) -> Dispatch:
    """Return the dispatch of a task of one chunk with one partition."""
    return Dispatch(task, (worker,), ((Chunk((partition,), (1.0,), **settings),),))


def _step(toy: Toy, event: Reply) -> list[Command]:
    """Return the step by a reply's message alone."""
    return [Combine("model", [(event.task, event.chunk)], [1.0])]


def _expect_model(driver: Driver, expected: Any, name: str = "model", slot: str = "model") -> None:
    w = driver.models[slot]
    assert np.allclose(w, expected, rtol=1e-9, atol=1e-12), f"{name} is {w}, not {expected}"


def check_exact_sums(make: MakeCluster, specs: Sequence[tuple[str, int]] = _EXACT) -> None:
    """Check that rounds of exact codes give the model of plain gradient descent."""
    for spec, n in specs:
        strategy = build(spec, workers=n)
        driver = _run(strategy, make(n, None), 3)
        centre = Squares(strategy.layout.partitions).centres.mean(axis=0)
        _expect_model(driver, centre * (1 - 0.5**3), f"model of '{spec}'")


def check_order_of_delays(make: MakeCluster) -> None:
    """Check that a round ends with the first replies, and cancels the others."""
    driver = _run(build("uncoded:wait=1", workers=_N), make(_N, _Staggered(value=0.4)), 2)
    used = {decision.worker for decision in decisions(_log(driver))}
    assert used == {0}, f"worker 0 is fastest, used: {sorted(used)}"
    counts = driver.ledger.counts
    assert counts.cancelled + counts.discarded >= _N - 1, f"no worker was cut off: {counts}"


def check_discard(make: MakeCluster) -> None:
    """Check that the message of a discarded task is dropped, and its worker then continues with the newest task."""

    def react(toy: Toy, event: Reply) -> Commands:
        if event.task == 0:
            return [*_step(toy, event), Cancel((1,), "discard"), Dispatch(2, (1,), (_all(2),))]
        return _step(toy, event)

    driver = _run(Toy(2, [Dispatch(0, (0, 1), (_all(2), _all(2)))], {Reply: react}), make(2, _Staggered(value=0.2)), 2)
    chunks = log_columns(_log(driver), "chunks")
    endings, received, cancelled = chunks["ending"].tolist(), chunks["received"], chunks["cancelled"]
    assert endings == ["counted", "discarded", "counted"], f"endings: {endings}"
    assert received[1] > cancelled[1], "the discarded message should come after the cancel"
    assert received[2] > received[1], "the newest task starts only when the discarded one is done"


def check_collect(make: MakeCluster) -> None:
    """Check that a worker reports each partition and sends one message, of the partitions that are requested."""
    chunk = Chunk((0, 1, 2, 3), (1.0,) * 4, send="request")

    def request(toy: Toy, event: Progress) -> Commands:
        return [RequestMessage(0, 0, 0, (0, 2), (1.0, -2.0))] if event.done == 3 else []

    toy = Toy(1, [Dispatch(0, (0,), ((chunk,),))], {Progress: request, Reply: _step}, partitions=_N)
    driver = _run(toy, make(1, None), 1)
    done = [event.done for event in _received(toy, Progress)]
    assert done[:3] == [1, 2, 3], f"progress was {done}"
    _expect_model(driver, -0.5 * (-_CENTRES[0] + 2.0 * _CENTRES[2]) / _N)


def check_messages_between_workers(make: MakeCluster) -> None:
    """Check that a worker adds messages of others to its own; the driver gets one message, the ledger counts all."""
    chunks = (Chunk((0,), (1.0,), send="request"),)
    first = Dispatch(0, (0, 1, 2), (chunks, (Chunk((1, 2), (1.0, 1.0)),), (Chunk((3,), (2.0,)),)))

    def react(toy: Toy, event: Event) -> Commands:
        if isinstance(event, Reply) and event.task == 0:
            return [Combine("model", [(0, 0)], [0.5])]
        toy.memory["events"] = toy.memory.get("events", 0) + 1
        if toy.memory["events"] < 3:  # until it has its own part and both messages
            return []
        return [
            RequestMessage(
                worker=0,
                task=0,
                chunk=0,
                partitions=(0,),
                coefficients=(3.0,),
                messages=((1, 0), (2, 0)),
                weights=(1.0, -1.0),
            )
        ]

    driver = _run(Toy(3, [first], react, partitions=_N), make(3, None), 1)
    gradient = -3.0 * _CENTRES[0] - _CENTRES[1] - _CENTRES[2] + 2.0 * _CENTRES[3]
    _expect_model(driver, -0.5 * 0.5 * gradient / _N)
    weights = [(decision.task, decision.weight) for decision in decisions(_log(driver))]
    assert weights == [(0, 0.5), (1, 0.5), (2, -0.5)], f"weights in the ledger: {weights}"


def check_messages_that_wait(make: MakeCluster) -> None:
    """Check that many messages of one worker can wait until another worker starts from their mean."""
    count = 9

    def work(task: int, worker: int, **start: Any) -> Dispatch:
        return _single(task, task % _N, worker, repeat=task, steps=1, **start)

    def react(toy: Toy, event: Reply) -> Commands:
        if event.task < count - 1:
            return [work(event.task + 1, 0)]
        if event.task == count - 1:
            return [work(count, 1, mix=tuple((0, task, 0, 1.0 / count) for task in range(count)), share=0.0)]
        return [Mix("model", [(count, 0)], [1.0])]

    toy = Toy(2, [work(0, 0)], {Reply: react}, inner="", partitions=_N)  # with the run's own optimiser
    driver = _run(toy, make(2, None), 1)
    start = 0.5 * sum(_CENTRES[task % _N] for task in range(count)) / count
    _expect_model(driver, 0.5 * start + 0.5 * _CENTRES[count % _N])


def check_versions_that_wait(make: MakeCluster) -> None:
    """Check that waiting messages keep any number of versions on which they were computed.

    Each round steps with the message of worker 0; those of worker 1 all wait for the last step, of their mean.
    """
    rounds, n = 30, 2

    def work(task: int) -> Dispatch:
        return Dispatch(task, (0, 1), ((Chunk((0,), (1.0,)),), (Chunk((1,), (1.0,)),)))

    def react(toy: Toy, event: Reply) -> Commands:
        toy.memory["replies"] = replies = toy.memory.get("replies", 0) + 1
        if replies % 2:
            return []
        step = Combine("model", [(replies - 2, 0)], [1.0])
        if replies < 2 * rounds:
            return [step, work(replies)]
        waiting = [(task, 0) for task in range(1, replies, 2)]
        return [step, Combine("model", waiting, [1.0 / rounds] * rounds)]

    driver = _run(Toy(n, [work(0)], {Reply: react}), make(n, None), rounds + 1)
    centres, w, mean_of_waiting = Squares(n).centres, np.zeros(5), np.zeros(5)
    for _ in range(rounds):
        mean_of_waiting += (w - centres[1]) / rounds
        w = w - 0.5 * (w - centres[0]) / n
    _expect_model(driver, w - 0.5 * mean_of_waiting / n)


def check_measures(make: MakeCluster) -> None:
    """Check that messages are projected on request; equal messages have equal projections, others do not."""
    first = Dispatch(0, (0, 1, 2), (_all(2), _all(2), (Chunk((0, 1), (1.0, 2.0)),)))

    def project(toy: Toy, event: Reply) -> Commands:
        return [ProjectMessage(event.worker, event.task, event.chunk, key) for key in (0, 1)]

    def step(toy: Toy, event: MessageProjected) -> Commands:
        return [Combine("model", [(0, 0)], [1.0])] if len(_received(toy, MessageProjected)) == 6 else []

    toy = Toy(3, [first], {Reply: project, MessageProjected: step})
    _run(toy, make(3, None), 1)
    values: dict[int, list[float]] = {}
    for event in _received(toy, MessageProjected):
        values.setdefault(event.task, []).append(event.value)
    assert values[0] == values[1], f"projections of replicas are {values[0]} and {values[1]}"
    assert values[0][0] != values[2][0], "different messages have the same projection"
    assert values[0][0] != values[0][1], "two keys have the same direction"


def check_two_models(make: MakeCluster) -> None:
    """Check that a task works on two models, each with its own versions, steps and optimiser."""

    def give(task: int) -> Dispatch:
        return Dispatch(task, (1,), ((Chunk((0, 1), (1.0, 1.0), "a"), Chunk((2, 3), (1.0, 1.0), "b")),))

    def react(toy: Toy, event: Reply) -> Commands:
        commands: list[Command] = [Combine(("a", "b")[event.chunk], [(event.task, event.chunk)], [1.0])]
        if event.chunk == 1 and event.task < 2:
            commands.append(give(event.task + 1))
        return commands

    driver = _run(Toy(2, [give(0)], {Reply: react}, slots=("a", "b"), partitions=_N), make(2, None), 3)
    assert driver.versions.newest == {"a": 3, "b": 3}, f"versions {driver.versions.newest}"
    for slot, assigned in (("a", (0, 1)), ("b", (2, 3))):
        w = np.zeros(_CENTRES.shape[1])
        for _ in range(3):
            w -= 0.5 * sum(w - _CENTRES[j] for j in assigned) / _N
        _expect_model(driver, w, f"model {slot}", slot)


def check_equal_bits(make: MakeCluster) -> None:
    """Check that equal sets of replies give equal bits in any order, also when a cluster is used a second time."""
    late, plain = make(_N, _Staggered(value=0.01)), make(_N, None)
    strategy = build("frc:stragglers=1", workers=_N)
    models = [_run(strategy, cluster, 3).models["model"] for cluster in (late, plain, late)]
    assert np.array_equal(models[0], models[1]), "the same sums differ in their bits"
    assert np.array_equal(models[0], models[2]), "a cluster that is used a second time gives another model"


def check_the_newest_task_wins(make: MakeCluster) -> None:
    """Check that a worker that gets a new task abandons the old one, whose message is not used."""
    tasks = [Dispatch(task, (0,), (_all(2),)) for task in range(3)]
    toy = Toy(2, [tasks[0], Cancel((0,)), tasks[1], Cancel((1,)), tasks[2]], {Reply: _step})
    driver = _run(toy, make(2, _Staggered(value=0.1)), 1)
    tasks_of_replies = [event.task for event in _received(toy, Reply)]
    assert tasks_of_replies == [2], f"the strategy received replies of tasks {tasks_of_replies}"
    counts = driver.ledger.counts
    assert (counts.cancelled, counts.counted) == (2, 1), f"counts in the ledger: {counts}"


def check_bad_replies(make: MakeCluster) -> None:
    """Check that messages with NaN, Inf or a wrong length, and errors, are reported, and their workers continue."""
    faults = {-1: "nan", -2: "inf", -3: "short", -4: "raise"}

    def retry(toy: Toy, event: Failed) -> Commands:
        return [_single(event.task + 1, event.task)] if event.task < 5 else []

    def react(toy: Toy, event: Reply) -> Commands:
        return [*_step(toy, event), *([] if event.task else [_single(1, 0)])]

    toy = Toy(5, [_single(0, 0)], {Failed: retry, Reply: react})  # the first gradients, at zero, have no faults
    driver = _run(toy, make(5, None), 2, Squares(5, faults=faults))
    reasons = [event.reason for event in _received(toy, Failed)]
    for reason, word in zip(reasons, ("NaN", "Inf", "wrong length", "ValueError: partition 3 is broken"), strict=True):
        assert word in reason, f"expected '{word}' in '{reason}'"
    assert np.isfinite(driver.models["model"]).all(), "a message that is not finite reached the model"


def check_same_models(make: MakeCluster, specs: Sequence[str] = _STEADY) -> None:
    """Check that strategies whose steps do not depend on the order of arrival give the simulator's models."""
    for spec in specs:
        strategy = build(spec, workers=_N)
        expected = _run(strategy, Simulated(_N), 4).models
        models = _run(strategy, make(_N, None), 4).models
        for slot, w in expected.items():
            assert np.allclose(models[slot], w, rtol=1e-12, atol=1e-12), f"'{spec}' gave {models[slot]}, not {w}"


def check_losses(make: MakeCluster, cases: Sequence[tuple[str, int, int]] = _EVALUATED) -> None:
    """Check that workers evaluate the objective of each version that is due, for each model."""
    for spec, models, samples in cases:
        problem, infos = Squares(_N), list[EvaluationInfo]()
        trained: Problem = ManyProblems([problem] * models) if models > 1 else problem
        train(
            trained,
            spec,
            make(_N, Constant(0.02)),
            optimizer=GD(lr=0.5),
            steps=5,
            callbacks=[SimpleNamespace(on_evaluation=infos.append)],
            evaluate=Evaluate(every=2, samples=samples, where="workers"),
        )
        assert {info.step for info in infos} >= {0, 2, 4, 5}, f"evaluations of '{spec}': {infos}"
        centres = problem.centres[some_rows(_N, samples, "train")]
        for info in infos:
            expected = float(0.5 * ((info.model - centres) ** 2).sum() / samples)
            correct = info.loss is not None and np.isclose(info.loss, expected, rtol=1e-12)
            assert correct, f"the loss of '{spec}' at step {info.step} is {info.loss}, not {expected}"


def check_a_lost_worker(make: MakeCluster, kill: Kill) -> None:
    """Check that a worker that dies is lost with its task, joins again and works."""

    def dispatch(toy: Toy, event: Joined) -> Commands:
        return [Dispatch(2, (event.worker,), (_all(2),))]

    def react(toy: Toy, event: Reply) -> Commands:
        if event.task == 0:
            kill(cluster, 1)
        return _step(toy, event)

    toy = Toy(2, [Dispatch(0, (0, 1), (_all(2), _all(2)))], {Joined: dispatch, Reply: react})
    cluster = make(2, _Staggered(value=0.2))
    driver = _run(toy, cluster, 2)
    kinds = [(type(event).__name__, event.worker) for event in toy.seen if isinstance(event, Reply | Lost | Joined)]
    assert kinds == [("Reply", 0), ("Lost", 1), ("Joined", 1), ("Reply", 1)], f"the events were {kinds}"
    counts = driver.ledger.counts
    assert (counts.lost, counts.counted) == (1, 2), f"counts in the ledger: {counts}"


class _Staggered(Constant):
    """Delays of i + 1 times the value for worker i."""

    def seconds(self, uniforms: object, worker: int) -> Any:
        return np.full_like(uniforms, self.value * (worker + 1))


CHECKS = (
    check_exact_sums,
    check_order_of_delays,
    check_discard,
    check_collect,
    check_messages_between_workers,
    check_messages_that_wait,
    check_versions_that_wait,
    check_measures,
    check_two_models,
    check_equal_bits,
    check_the_newest_task_wins,
    check_bad_replies,
    check_same_models,
    check_losses,
)


def _name(spec: str) -> str:
    return spec.partition(":")[0]


def _check_refused(make: MakeCluster, spec: str, n: int) -> None:
    try:
        _run(build(spec, workers=n), make(n, None), 3)
    except BadInput:
        return
    raise AssertionError(f"'{spec}' is not refused")


def check_cluster(
    make: MakeCluster, kill: Kill | None = None, *, refused: Collection[str] = (), tell: Tell | None = None
) -> None:
    """Put a kind of cluster through all checks; ``make(workers, delays)`` returns a new cluster.

    ``kill(cluster, worker)`` kills a worker; without it, the loss of workers is not checked. ``refused``: names of
    strategies that the cluster refuses, which it must do by :class:`~anyk.BadInput`. ``tell`` is called with a line
    before each check, such as ``print``.

    >>> import anyk
    >>> check_cluster(lambda workers, delays: anyk.clusters.Simulated(workers, delays=delays))
    """
    exact = [case for case in _EXACT if _name(case[0]) not in refused]
    steady = [spec for spec in _STEADY if _name(spec) not in refused]
    for spec, n in (*_EXACT, *((spec, _N) for spec in _STEADY)):
        if _name(spec) in refused:
            _check_refused(make, spec, n)
    chosen: dict[Any, Any] = {check_exact_sums: exact, check_same_models: steady}
    checks: list[tuple[str, Callable[[], None]]] = [
        (check.__name__, partial(check, make, *([chosen[check]] if check in chosen else []))) for check in CHECKS
    ]
    if kill is not None:
        checks.append((check_a_lost_worker.__name__, partial(check_a_lost_worker, make, kill)))
    for number, (name, check) in enumerate(checks, 1):
        if tell is not None:
            tell(f"{number} of {len(checks)}: {name.removeprefix('check_').replace('_', ' ')}")
        check()
