"""Rounds that adapt: relearned coefficients, default waits, decoders by name, codes with short replies."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import anyk
from anyk.base.errors import BadInput, NotDecodable, RunFailed
from anyk.clusters import Simulated
from anyk.clusters.store import VectorStore
from anyk.codes import HeterogeneousCode
from anyk.protocol import Alarm, Combine, Command, Dispatch, Fleet, Lost, Reply
from anyk.strategies import Rounds, strategy
from anyk.strategies.rounds.code_rules import LearningCode
from anyk.testing import Squares, check_strategy
from byhand import ByHand


def made(spec: str, n: int) -> ByHand:
    rounds = strategy(spec, workers=n)
    assert isinstance(rounds, Rounds)
    return ByHand(rounds)


class Fed:
    """A strategy and the tasks it gave out last."""

    def __init__(self, spec: str, n: int) -> None:
        self.strategy, self.n = made(spec, n), n
        self.obey(self.strategy.start(Fleet(n, tuple(range(n)), 0.0)))

    def obey(self, commands: Sequence[Any]) -> Combine | None:
        step = None
        for command in commands:
            if isinstance(command, Dispatch):
                self.first, self.chunks = command.task, command.chunks
            if isinstance(command, Combine):
                step = command
        return step

    def round(self, order: Sequence[int]) -> tuple[int, Combine]:
        """Replies in this order: after how many the step was taken, and the step."""
        first = self.first
        for count, worker in enumerate(order, 1):
            step = self.obey(self.strategy.on(Reply(float(count), worker, first + worker, 0)))
            if step is not None:
                return count, step
        raise AssertionError("no step was taken")


# ------------------------------------------------------------------------------------------- what a code learns


def test_probabilities_are_learned_from_who_was_missing() -> None:
    """After ``relearn`` steps p_i = (1 + missed) / (2 + steps); the data stays, the coefficients change."""
    fed = Fed("hetero:probability=0.1,load=3,relearn=4,wait=6", 8)
    before = fed.chunks
    for step in range(4):
        assert fed.chunks == before
        fed.round([0, 1, 2, 3, 4, 5 + step % 2])  # 7 is always missing, 5 and 6 half the time
    code = fed.strategy.code
    assert isinstance(code, HeterogeneousCode)
    p = np.array([1, 1, 1, 1, 1, 3, 3, 5]) / 6
    assert code.learned == pytest.approx(p)
    initial = anyk.code("hetero:probability=0.1,load=3", workers=8)
    assert code.assignment == initial.assignment
    odds = (1 - p) / p
    for j, holders in enumerate(code.allocation):
        total = odds[list(holders)].sum()
        for i in holders:
            partitions, coefficients, *_ = fed.chunks[i][0]
            assert coefficients[partitions.index(j)] == pytest.approx(1 / total / p[i])
    # right on average when workers straggle as learned: sum of (1 - p_i) w_ij = 1
    assert (1 - p) @ code.encoding.toarray() == pytest.approx(np.ones(8), abs=1e-12)
    assert [chunks[0].partitions for chunks in fed.chunks] == [chunks[0].partitions for chunks in before]


def test_coefficients_that_were_learned_survive_a_restart() -> None:
    """At every step, through JSON: the same tasks, the same weights, also between two times of learning."""
    spec = "hetero:probability=0.2,load=3,relearn=3,wait=6"
    fed = Fed(spec, 8)
    random = np.random.default_rng(0)
    for _ in range(11):
        twin = Fed(spec, 8)
        twin.strategy = made(spec, 8)
        twin.strategy.restore(json.loads(json.dumps(fed.strategy.save())))
        twin.first = fed.first
        order = random.permutation(8).tolist()
        assert twin.round(order) == fed.round(order)
        assert [list(c) for c in twin.chunks] == [list(c) for c in fed.chunks]
        assert twin.strategy.save() == fed.strategy.save()


def test_relearn_0_keeps_what_was_given() -> None:
    fed = Fed("hetero:probability=0.1,load=3,relearn=0,wait=6", 8)
    before = fed.chunks
    for _ in range(30):
        fed.round(range(8))
    assert fed.chunks == before


@pytest.mark.slow
def test_a_run_that_learns_is_replayed_and_resumed_bit_for_bit(tmp_path: Any) -> None:
    spec = "hetero:probability=0.2,load=3,relearn=3"

    def trained(**more: Any) -> Any:
        cluster = Simulated(8, delays=anyk.delays.Exponential(0.3), seed=4)
        return anyk.train(Squares(8), spec, cluster, optimizer=anyk.optimizers.Nesterov(lr=0.1), **more)

    uninterrupted = trained(steps=11)
    replayed = anyk.replay(uninterrupted, problem=Squares(8))
    assert replayed.decisions and replayed.model
    for steps in (2, 3, 7):
        trained(steps=steps, out=tmp_path / str(steps))
        resumed = anyk.resume(tmp_path / str(steps), problem=Squares(8), steps=11)
        assert np.array_equal(resumed.model, uninterrupted.model)
    receipts = [uninterrupted.receipt(version) for version in range(1, 12)]
    for receipt in receipts:  # by the coefficients of their own time
        assert receipt.residual == pytest.approx(np.linalg.norm(receipt.weights - 1) / 8**0.5, abs=1e-9)
    assert len({receipt.used[0][2] for receipt in receipts}) == 1  # weights 1: what changes is the encoding


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    "spec",
    ["hetero:probability=0.2,load=3,relearn=2", "comm-efficient:stragglers=2,blocks=2", "bgc:decoder=one-step"],
)
def test_they_survive_outages(spec: str, seed: int) -> None:
    check_strategy(strategy(spec, workers=7), steps=10, outages=5, seed=seed)


# ------------------------------------------------------------------------------------------- default waits


@pytest.mark.parametrize(("n", "replies"), [(2, 1), (8, 7), (20, 18), (30, 27)])
def test_an_approximate_code_waits_for_all_but_a_tenth(n: int, replies: int) -> None:
    running = made("hetero:probability=0.3,load=2", n)
    assert str(running.enough).startswith(f"{replies}|")
    fed = Fed("hetero:probability=0.3,load=2", n)
    assert fed.round(range(n))[0] == replies
    assert strategy(running.spec, workers=n).spec == running.spec


def test_an_exact_code_waits_until_it_is_decodable() -> None:
    assert made("frc:load=2", 4).spec == "frc:load=2"
    assert Fed("frc:load=2", 4).round([0, 2, 1, 3])[0] == 2


# ------------------------------------------------------------------------------------------- decoders by name


@pytest.mark.parametrize(
    ("spec", "scaling"),
    [
        ("frc:load=2,wait=3", "conditional"),
        ("frc:load=2,wait=3,decoder=one-step", "none"),  # unbiased as it is
        ("frc:load=2,wait=3,decoder=least-squares", "conditional"),
        ("frc:load=2,wait=3,decoder=algorithmic", "conditional"),
        ("hetero:probability=0.2,load=3", "none"),
        ("hetero:probability=0.2,load=3,decoder=least-squares", "conditional"),
        ("hetero:probability=0.2,load=3,scaling=conditional", "conditional"),
    ],
)
def test_scaling_is_left_out_where_decoding_is_fair_already(spec: str, scaling: str) -> None:
    running = made(spec, 6)
    assert running.scaling_used == scaling
    assert strategy(running.spec, workers=6).spec == running.spec
    assert ("scaling=" in running.spec) == ("scaling=" in spec)


@pytest.mark.parametrize("name", ["least-squares", "one-step", "algorithmic"])
def test_weights_are_those_of_the_decoder_that_was_named(name: str) -> None:
    code = anyk.code("frc:load=2", workers=6)
    for order in ([0, 1, 2], [0, 2, 3], [5, 1, 4]):
        count, step = Fed(f"frc:load=2,wait=3,scaling=none,decoder={name}", 6).round(order)
        expected = code.decode(order, decoder=name)
        weights = np.zeros(6)
        weights[[task for task, _ in step.messages]] = step.weights
        assert count == 3 and weights == pytest.approx(expected.weights, abs=1e-12)
        assert step.residual == pytest.approx(expected.residual) and step.gain == pytest.approx(expected.gain)


def test_least_squares_steps_as_soon_as_the_sum_is_there() -> None:
    """Groups (0, 1) and (2, 3): the replies of 0 and 2 are enough, by whatever weights."""
    assert Fed("frc:stragglers=1,decoder=least-squares", 4).round([0, 2, 1, 3])[0] == 2


def test_exact_never_takes_an_approximation() -> None:
    """It is the decoder that refuses what would not be exact."""
    cluster = Simulated(6, delays=anyk.delays.Exponential(0.5), seed=1)
    try:
        run = anyk.train(Squares(6), "frc:load=2,wait=2,decoder=exact", cluster, steps=5)
    except (BadInput, NotDecodable, RunFailed):
        return
    assert max(run.receipt(version).residual for version in range(1, 6)) <= 1e-6


def test_an_unknown_decoder() -> None:
    with pytest.raises(BadInput, match="no decoder 'best'; there are own, exact"):
        strategy("frc:load=2,decoder=best", workers=4)


def test_a_code_with_short_replies_has_its_own_decoder_only() -> None:
    with pytest.raises(BadInput, match="supports only its own decoder"):
        anyk.train(Squares(6), "comm-efficient:stragglers=1,decoder=least-squares", Simulated(6), steps=1)


# ------------------------------------------------------------------------------------------- short replies


@pytest.mark.parametrize(("stragglers", "blocks", "d"), [(1, 2, 5), (2, 2, 8), (1, 3, 7), (0, 4, 3)])
def test_short_replies_give_the_exact_sum(stragglers: int, blocks: int, d: int, monkeypatch: Any) -> None:
    """Also where blocks does not divide d; each reply is ceil(d / blocks) long, and the receipt says 1 for each."""
    spec = f"comm-efficient:stragglers={stragglers},blocks={blocks}"
    problem = Squares(6, d)
    lengths = set()

    combine = VectorStore.combine

    def watched(store: VectorStore, messages: Any, weights: Any, *part: slice) -> Any:
        lengths.update(store.arrived[key].vector.size for key in messages)
        return combine(store, messages, weights, *part)

    monkeypatch.setattr(VectorStore, "combine", watched)
    cluster = Simulated(6, delays=anyk.delays.Exponential(0.5), seed=3)
    run = anyk.train(problem, spec, cluster, steps=4, optimizer=anyk.optimizers.GD(lr=0.5))
    assert run.model == pytest.approx(problem.centres.mean(axis=0) * (1 - 0.5**4), rel=1e-9)
    assert lengths == {-(-d // blocks)}
    for version in range(1, 5):
        receipt = run.receipt(version)
        assert receipt.weights == pytest.approx(np.ones(6), abs=1e-9) and receipt.residual < 1e-9
        assert len(receipt.used) == 6 - stragglers
    assert anyk.replay(run, problem=problem).model


def begun(spec: str, workers: int) -> tuple[ByHand, list[Command]]:
    running = ByHand(anyk.strategy(spec, workers=workers))
    return running, list(running.start(Fleet(workers, tuple(range(workers)))))


def kinds(commands: Any) -> list[type]:
    return [type(command) for command in commands]


@pytest.mark.in_process
@pytest.mark.parametrize("event", [Lost(0.4, 3, "died"), Reply(0.4, 3, 3, 0)])
def test_a_comparing_round_ends_when_no_comparison_is_left(event: Any) -> None:
    running, _ = begun("frc:load=2,check=1", 4)
    for worker in (0, 1, 2):
        assert not running.on(Reply(0.1 * worker, worker, worker, 0))
    assert running.decoder.decodable
    assert kinds(running.on(event))[0] is Combine


@pytest.mark.in_process
@pytest.mark.parametrize(
    ("spec", "first", "then"),
    [("uncoded:wait=0.5n&0.2s", [], 2), ("uncoded:wait=0.75n|9s", [3], None), ("frc:load=2,wait=0.26n&0.2s", [2], 1)],
)
def test_a_share_of_the_workers_joined_with_a_deadline(spec: str, first: list[int], then: int | None) -> None:
    """After which reply of 4 the step comes before the deadline; else with how many replies at the deadline."""
    running, _ = begun(spec, 4)
    order = [0, 2, 1, 3]
    steps = [n + 1 for n, w in enumerate(order[: then or 4]) if Combine in kinds(running.on(Reply(0.1, w, w, 0)))]
    assert steps[:1] == (first if then is None else [])
    if then is not None:
        assert Combine in kinds(running.on(Alarm(0.2, "wait 0")))


@pytest.mark.in_process
@pytest.mark.parametrize(
    ("spec", "compares"),
    [
        ("draco", True),
        ("frc:load=3,check=1", True),
        ("cyclic:stragglers=2,check=1", True),
        ("frc:load=3,check=0.5", False),
        ("frc:load=3", False),
        ("uncoded:wait=3,snapshot=3", False),
        ("pasgd", False),
        ("async", False),
        ("compressed:of=(frc:load=3),by=(random-k:share=0.5)", False),
    ],
)
def test_a_strategy_states_whether_it_compares_every_message(spec: str, compares: bool) -> None:
    assert anyk.strategy(spec, workers=6).facts.compares_all is compares


@pytest.mark.in_process
def test_a_code_that_does_not_learn_cannot_follow_learning() -> None:
    with pytest.raises(BadInput, match="'uncoded' does not learn from missing replies; leave out changes"):
        Rounds(anyk.codes.Uncoded(4), changes=LearningCode())
