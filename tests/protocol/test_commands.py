"""Measures, messages inside messages, short replies and Byzantine workers: the same on every cluster, also after a checkpoint."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse

import anyk
from anyk.clusters import Cluster, Processes, Simulated
from anyk.optimizers import GD
from anyk.protocol import (
    Cancel,
    Chunk,
    Combine,
    Command,
    Dispatch,
    Event,
    Fleet,
    MessageProjected,
    Progress,
    ProjectMessage,
    Reply,
    RequestMessage,
    Running,
)
from anyk.runs import Driver, session
from anyk.runs.log.log_writer import LogWriter
from anyk.testing import Squares
from anyk.testing.toy import Toy

pytestmark = pytest.mark.slow

CLUSTERS: dict[str, Callable[..., Cluster]] = {"simulated": Simulated, "processes": Processes}
both = pytest.mark.parametrize("make", CLUSTERS.values(), ids=CLUSTERS)


def sparse_problem(outputs: int = 1, rows: int = 120) -> Any:
    random = np.random.default_rng(0)
    X = scipy.sparse.random_array((rows, 300), density=0.01, rng=random, format="csr")
    if outputs > 1:
        return anyk.problems.SoftmaxRegression(X, random.integers(0, outputs, rows))
    return anyk.problems.LogisticRegression(X, np.where(random.random(rows) < 0.5, -1.0, 1.0))


PROBLEMS: dict[str, Callable[[], Any]] = {
    "dense": lambda: Squares(4),
    "float32": lambda: Squares(4, dtype="float32"),
    "sparse": sparse_problem,
    "sparse, three outputs": lambda: sparse_problem(3),
}


def driven(strategy: Any, cluster: Cluster, problem: Any = None, *, steps: int = 1, seconds: float = 20.0) -> Driver:
    """A run to its end; the limit is there so that what waits for ever fails and does not hang."""
    problem = problem or Squares(strategy.layout.partitions)
    driver = Driver(
        strategy, cluster, problem=problem, optimizer=GD(lr=0.5), log=LogWriter(), steps=steps, seconds=seconds
    )
    with session(driver):
        driver.run()
    ended(driver)
    return driver


def ended(driver: Driver) -> None:
    driver.versions.kept = {slot: np.array(w) for slot, w in driver.models.items()}
    ledger = driver.ledger.counts
    assert ledger.open == 0, ledger
    assert not driver.cluster.store.arrived  # no message is left lying


# ------------------------------------------------------------------------------------------- measures


def measuring(key: int = 0) -> tuple[Toy, dict[int, float]]:
    """Worker i sends partitions i and i + 1, and each message is measured before the step."""
    values: dict[int, float] = {}

    def begin(toy: Toy) -> Sequence[Command]:
        n = toy.layout.workers
        chunks = [(Chunk((i, (i + 1) % n), (1.0, -0.5)),) for i in range(n)]
        return [Dispatch(0, tuple(range(n)), chunks)]

    def react(toy: Toy, event: Event) -> Sequence[Command]:
        if isinstance(event, Reply):
            return [ProjectMessage(event.worker, event.task, 0, key)]
        if isinstance(event, MessageProjected):
            values[event.worker] = event.value
            if len(values) == toy.layout.workers:
                return [Combine("model", [(i, 0) for i in range(toy.layout.workers)], [1.0] * toy.layout.workers)]
        return []

    return Toy(4, begin, react), values


def direction(d: int, key: int) -> np.ndarray:
    """As documented: normal draws with mean 1, by (key, purpose, length)."""
    return np.asarray(1.0 + anyk.base.keyed_generator(key, "projection", d).standard_normal(d))


@pytest.mark.parametrize("key", [0, 5])
@pytest.mark.parametrize("kind", PROBLEMS)
def test_a_measure_projects_the_message_on_every_cluster(kind: str, key: int) -> None:
    answers = []
    for make in CLUSTERS.values():
        toy, values = measuring(key)
        driven(toy, make(4), PROBLEMS[kind]())
        answers.append(values)
    assert answers[0] == answers[1] and len(answers[0]) == 4  # bit for bit
    parts = PROBLEMS[kind]().split(4)
    w = np.zeros(parts.dimension, dtype=parts.dtype)
    for worker in range(4):
        gradient = np.zeros(parts.dimension)  # zeros outside of a message's support add nothing
        for j, coefficient in ((worker, 1.0), ((worker + 1) % 4, -0.5)):
            support = parts.support(j)
            np.add.at(gradient, slice(None) if support is None else support, coefficient * parts.partial_gradient(j, w))
        expected = float(direction(parts.dimension, key) @ gradient)
        assert answers[0][worker] == pytest.approx(expected, rel=1e-5, abs=1e-12)


@both
def test_measures_of_one_message_are_answered_in_the_order_asked(make: Any) -> None:
    """What comes back does not name the key."""

    def begin(toy: Toy) -> Sequence[Command]:
        return [Dispatch(0, (0,), [(Chunk((0,), (1.0,)),)])]

    def react(toy: Toy, event: Event) -> Sequence[Command]:
        if isinstance(event, Reply):
            return [ProjectMessage(0, 0, 0, key) for key in (3, 0, 7)]
        done = sum(isinstance(event, MessageProjected) for event in toy.seen) == 3
        return [Combine("model", [(0, 0)], [1.0])] if done else []

    toy = Toy(1, begin, react)
    driven(toy, make(1))
    got = [event.value for event in toy.seen if isinstance(event, MessageProjected)]
    gradient = -Squares(1).centres[0]
    assert got == pytest.approx([float(direction(5, key) @ gradient) for key in (3, 0, 7)])


@both
def test_a_measure_is_answered_after_the_last_cancellation(make: Any) -> None:
    def begin(toy: Toy) -> Sequence[Command]:
        return [Dispatch(0, (0, 1), [(Chunk((0,), (1.0,)),)] * 2)]

    def react(toy: Toy, event: Event) -> Sequence[Command]:
        if isinstance(event, Reply):
            return [ProjectMessage(event.worker, event.task, 0), Cancel((1 - event.task,))]
        return [Combine("model", [(event.task, 0)], [1.0])] if isinstance(event, MessageProjected) else []

    toy = Toy(2, begin, react)
    assert driven(toy, make(2, delays=anyk.delays.Exponential(0.2), seed=1)).step == 1


@both
def test_what_is_no_more_is_not_measured(make: Any) -> None:
    """No number is told of a message that has been used and freed before the measure was taken."""

    def begin(toy: Toy) -> Sequence[Command]:
        return [Dispatch(0, (0,), [(Chunk((0,), (1.0,)),)])]

    def react(toy: Toy, event: Event) -> Sequence[Command]:
        if not isinstance(event, Reply):
            return []
        more = [ProjectMessage(0, 0, 0), Dispatch(1, (0,), [(Chunk((0,), (1.0,)),)])] if event.task == 0 else []
        return [*more[:1], Combine("model", [(event.task, 0)], [1.0]), *more[1:]]

    toy = Toy(1, begin, react)
    driven(toy, make(1), steps=2)
    assert not [event for event in toy.seen if isinstance(event, MessageProjected)]


# ------------------------------------------------------------------------------------------- messages in messages


def adding_up(divisor: str = "all") -> Toy:
    """Worker 0 adds -2 times its own partition 1 to 0.5 x (3, 0) of worker 1 and 2 x (2) of worker 2."""

    def begin(toy: Toy) -> Sequence[Command]:
        request = Chunk((1, 2), (7.0, 7.0), send="request")
        return [
            Dispatch(0, (0,), [(request,)]),
            Dispatch(1, (1, 2), [(Chunk((3, 0), (1.0, 1.0)),), (Chunk((2,), (1.0,)),)]),
        ]

    def react(toy: Toy, event: Event) -> Sequence[Command]:
        if isinstance(event, Reply) and event.task == 0:
            return [Combine("model", [(0, 0)], [0.5], divisor)]  # type: ignore[arg-type]
        if (isinstance(event, Progress) and event.done == 2) or isinstance(event, Reply):
            toy.memory[str(event.task)] = True
            if len(toy.memory) == 3:
                return [RequestMessage(0, 0, 0, (1,), (-2.0,), ((1, 0), (2, 0)), (0.5, 2.0))]
        return []

    return Toy(4, begin, react)


WEIGHTS = np.array([0.25, -1.0, 1.0, 0.25])  # of partitions 0 to 3, times the combine's one half


@pytest.mark.parametrize("kind", PROBLEMS)
def test_a_worker_adds_up_others_messages(kind: str) -> None:
    models = []
    for make in CLUSTERS.values():
        problem = PROBLEMS[kind]()
        driver = driven(adding_up(), make(4), problem)
        parts = problem.split(4)
        w, expected = np.zeros(parts.dimension, dtype=parts.dtype), np.zeros(parts.dimension)
        for j, weight in enumerate(WEIGHTS):
            support = parts.support(j)
            np.add.at(expected, slice(None) if support is None else support, weight * parts.partial_gradient(j, w))
        tolerance = 1e-5 if kind == "float32" else 1e-12
        assert driver.models["model"] == pytest.approx(-0.5 * expected / problem.samples, rel=tolerance, abs=tolerance)
        assert driver.ledger.counts.counted == 3
        assert driver.log is not None
        rows = driver.log.rows("SELECT task, weight, ending FROM chunks ORDER BY task")
        assert rows == [(0, 0.5, "counted"), (1, 0.25, "counted"), (2, 1.0, "counted")]
        models.append(driver.models["model"])
    assert np.array_equal(models[0], models[1])


@both
def test_counted_samples_include_those_of_inner_messages(make: Any) -> None:
    """divisor="counted" divides by the samples that the message covers: partitions 1, 3, 0 and 2."""
    expected = driven(adding_up("all"), make(4)).models["model"]
    assert driven(adding_up("counted"), make(4)).models["model"] == pytest.approx(expected)


@both
def test_a_chunk_on_request_is_sent_on_request_only(make: Any) -> None:
    """Also when it is given out together with others that are sent when done."""

    def begin(toy: Toy) -> Sequence[Command]:
        return [Dispatch(0, (0, 1), [(Chunk((0,), (1.0,)),), (Chunk((1,), (1.0,), send="request"),)])]

    def react(toy: Toy, event: Event) -> Sequence[Command]:
        toy.memory[f"{type(event).__name__} {event.task}"] = True  # type: ignore[union-attr]
        return [Combine("model", [(0, 0)], [1.0])] if len(toy.memory) == 2 else []

    toy = Toy(2, begin, react)
    driven(toy, make(2))
    assert set(toy.memory) == {"Reply 0", "Progress 1"}


# ------------------------------------------------------------------------------------------- trees, blocks, liars


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("spec", ["tree:children=3,stragglers=1", "nested:stragglers=2,kind=cyclic", "progress:load=3"])
def test_sparse_data_gives_the_full_gradient(spec: str, outputs: int) -> None:
    problem = sparse_problem(outputs)
    expected = anyk.train(problem, "uncoded", Simulated(12), optimizer=GD(lr=0.5), steps=3).model
    for make in CLUSTERS.values():
        cluster = make(12, delays=anyk.delays.Exponential(0.01, per="load"), seed=1)
        run = anyk.train(problem, spec, cluster, optimizer=GD(lr=0.5), steps=3)
        assert np.linalg.norm(run.model - expected) <= 1e-9 * np.linalg.norm(expected)
        assert run.receipt(3).weights == pytest.approx(np.ones(run.config.partitions), abs=1e-6)
        replayed = anyk.replay(run, problem=problem)
        assert replayed.decisions and replayed.model


@both
def test_short_replies_of_sparse_data_are_refused(make: Any, capfd: Any) -> None:
    with pytest.raises(anyk.BadInput, match="this data is sparse, and its replies are short already"):
        anyk.train(sparse_problem(), "comm-efficient:stragglers=1", make(6), steps=1)
    assert "Traceback" not in capfd.readouterr().err  # nor does the helper program complain


@both
def test_short_replies_are_parts_of_the_vector(make: Any) -> None:
    """With three blocks message v is the sum of factor_u x coordinate 3 v + u; a combine puts parts into their places."""

    def begin(toy: Toy) -> Sequence[Command]:
        return [Dispatch(0, (0,), [(Chunk((1, 0), (1.0, 10.0, 100.0, 2.0, 0.0, 0.0)),)])]

    def react(toy: Toy, event: Event) -> Sequence[Command]:
        return [Combine("model", [(0, 0)], [[1.0, 0.5, 0.0]])]

    toy = Toy(2, begin, react)
    toy.layout = replace(toy.layout, blocks=3)
    driver = driven(toy, make(2), Squares(2, 7))
    g = -Squares(2, 7).centres
    padded = np.pad(np.stack([g[0], g[1]]), ((0, 0), (0, 2)))
    message = padded[1].reshape(3, 3) @ [1.0, 10.0, 100.0] + 2.0 * padded[0].reshape(3, 3)[:, 0]
    expected = (message[:, None] * [1.0, 0.5, 0.0]).ravel()[:7]
    assert driver.models["model"] == pytest.approx(-0.5 * expected / 2)


def test_weights_of_blocks_may_be_any_sequence() -> None:
    def begin(toy: Toy) -> Sequence[Command]:
        return [Dispatch(0, (0,), [(Chunk((0,), (1.0, 1.0)),)])]

    toy = Toy(2, begin, lambda toy, event: [Combine("model", [(0, 0)], [(1.0, 0.5)])])
    toy.layout = replace(toy.layout, blocks=2)
    driver = driven(toy, Simulated(2))
    assert driver.log is not None
    assert json.loads(driver.log.rows("SELECT weight FROM chunks")[0][0]) == [1.0, 0.5]


def test_liars_lie_alike() -> None:
    """-100 times what they should send; a parent in a tree its whole sum, its children's share included."""
    models = []
    for make in CLUSTERS.values():
        run = anyk.train(
            Squares(12),
            "tree:children=2,stragglers=0",
            make(6, byzantine=(0, 3)),
            optimizer=GD(lr=0.01),
            steps=2,
            evaluate=None,
        )
        problem = Squares(int(run.config.partitions))
        parts = problem.split(problem.samples)
        assert anyk.replay(run, problem=problem).model
        models.append(run.model)
    assert np.array_equal(models[0], models[1])
    code = anyk.code("tree:children=2,stragglers=0", workers=6)
    weights = np.ones(code.partitions)
    for liar in (0, 3):
        weights[list(code.covers[liar])] *= -100.0
    w = np.zeros(parts.dimension)
    for _ in range(2):
        w = w - 0.01 * sum(weights[j] * (w - problem.centres[j]) for j in range(code.partitions)) / code.partitions
    assert models[0] == pytest.approx(w, rel=1e-9)


@both
def test_liars_are_found_out_on_every_cluster(make: Any) -> None:
    problem = Squares(6)
    run = anyk.train(problem, "draco:byzantine=1", make(6, byzantine=(1, 5)), optimizer=GD(lr=0.5), steps=3)
    assert run.model == pytest.approx(problem.centres.mean(axis=0) * (1 - 0.5**3), rel=1e-12)


def test_nan_from_a_worker_spoils_no_nested_round_or_tree() -> None:
    for spec, workers, bad in (
        ("nested:stragglers=1,kind=cyclic", 5, 2),
        ("tree:children=2,stragglers=1", 6, 1),
        ("tree:children=2,stragglers=1", 6, 4),
        ("draco:byzantine=1", 6, 2),
    ):
        partitions = anyk.strategy(spec, workers=workers).layout.partitions
        problem = Squares(partitions, faults={bad: "nan"})
        run = anyk.train(problem, spec, Processes(workers), optimizer=GD(lr=0.5), steps=4)
        assert run.model == pytest.approx(problem.centres.mean(axis=0) * (1 - 0.5**4), rel=1e-9)


# ------------------------------------------------------------------------------------------- no work in vain


def test_who_has_sent_its_message_computes_no_further(tmp_path: Any) -> None:
    """Each worker holds four partitions, of which a fast fleet needs one a step; all that is computed is written down."""
    path = str(tmp_path / "computed")

    class Pieces:
        def __init__(self, pieces: Any) -> None:
            self.pieces = pieces
            self.dimension, self.dtype, self.sizes = pieces.dimension, pieces.dtype, pieces.sizes
            self.load, self.support = pieces.load, pieces.support

        def partial_gradient(self, partition: int, w: Any) -> Any:
            with open(path, "a") as file:
                file.write("x")
            return self.pieces.partial_gradient(partition, w)

    class Counting(Squares):
        def split(self, partitions: int) -> Any:
            return Pieces(super().split(partitions))

    steps, workers = 4, 4
    cluster = Processes(workers, delays=anyk.delays.Constant(0.15, per="load"), seed=1)
    run = anyk.train(Counting(workers), "nested:stragglers=3", cluster, optimizer=GD(lr=0.5), steps=steps)
    used = (
        "SELECT total(json_array_length(partitions)) FROM chunks JOIN works ON work = works.id WHERE step IS NOT NULL"
    )
    needed = run.log.rows(used)[0][0] + workers  # and one each to warm up
    computed = (tmp_path / "computed").stat().st_size
    assert needed >= steps * workers + workers
    assert computed < 2 * needed  # of four times as many there could be


# ------------------------------------------------------------------------------------------- checkpoints


def gone_on(
    strategy: Callable[[], Any],
    make: Callable[[], Cluster],
    problem: Callable[[], Any],
    when: Callable[[Event, Sequence[Command]], bool],
    steps: int,
) -> Driver:
    """A run that goes on from what was saved (as JSON) after the first event that ``when`` names."""
    saved: list[Any] = []

    class Watched(Running):
        def start(self, fleet: Fleet) -> Sequence[Command]:
            commands = super().start(fleet)
            self.told, self.on = self.on, self.hear
            return commands

        def hear(self, event: Event) -> Sequence[Command]:
            commands = self.told(event)
            driver._obey(commands)
            if not saved and when(event, commands):
                vectors = {name: np.array(vector) for name, vector in driver.vectors().items()}
                saved.append((json.loads(json.dumps(driver.state())), vectors))
                driver.interrupt()
            return ()

    first = strategy()
    cluster = make()
    driver = Driver(first, cluster, problem=problem(), optimizer=GD(lr=0.5), log=LogWriter(), steps=steps, seconds=20.0)
    driver.running = Watched(first)
    with session(driver):
        driver.run()
    assert saved, "the moment never came"
    state, vectors = saved[0]
    cluster = make()
    limit = state["now"] + 3.0
    second = Driver(
        strategy(), cluster, problem=problem(), optimizer=GD(lr=0.5), log=LogWriter(), steps=steps, seconds=limit
    )
    with session(second, (state, vectors)):
        second.run()
    ended(second)
    return second


def asked(event: Event, commands: Sequence[Command]) -> bool:
    return any(isinstance(command, RequestMessage) for command in commands)


def measured(event: Event, commands: Sequence[Command]) -> bool:
    return any(isinstance(command, ProjectMessage) for command in commands)


def answered(event: Event, commands: Sequence[Command]) -> bool:
    return isinstance(event, Reply)


def reported_twice(event: Event, commands: Sequence[Command]) -> bool:
    return isinstance(event, Progress) and event.done == 2 and not commands


@both
@pytest.mark.parametrize(
    ("spec", "n", "when"),
    [
        ("draco:byzantine=1", 6, measured),
        ("draco:byzantine=1,kind=cyclic", 5, measured),
        ("nested:stragglers=1", 4, asked),
        ("progress:load=2", 4, asked),
        ("progress:load=3", 5, reported_twice),
        ("nested:stragglers=2,kind=cyclic", 5, reported_twice),
        ("tree:children=2,stragglers=1", 6, asked),
        ("tree:children=2,stragglers=0", 6, answered),
        ("comm-efficient:stragglers=1,blocks=2", 5, answered),
    ],
)
def test_a_run_goes_on_from_between_question_and_answer(make: Any, spec: str, n: int, when: Any) -> None:
    """Whatever had been asked for when the checkpoint was written is asked for again."""
    byzantine = (1,) if "draco" in spec else ()
    partitions = anyk.strategy(spec, workers=n).layout.partitions
    driver = gone_on(
        lambda: anyk.strategy(spec, workers=n),
        lambda: make(n, delays=anyk.delays.Exponential(0.05, per="load"), seed=2, byzantine=byzantine),
        lambda: Squares(partitions),
        when,
        3,
    )
    assert driver.step == 3  # and not the limit
    centres = Squares(partitions).centres
    assert driver.models["model"] == pytest.approx(centres.mean(axis=0) * (1 - 0.5**3), rel=1e-9, abs=1e-12)


@both
def test_a_measure_after_a_checkpoint_gives_the_same_number(make: Any) -> None:
    """Of a message that the checkpoint holds, on sparse data."""
    toy, expected = measuring()
    driven(toy, make(4), sparse_problem())
    values: list[dict[int, float]] = []

    def strategy() -> Toy:
        toy, answers = measuring()
        answers |= values[0] if values else {}  # a strategy of its own would have it in its state
        values.append(answers)
        return toy

    gone_on(strategy, lambda: make(4), sparse_problem, measured, 1)
    assert values[1] == expected
