"""Shares of the data, given or following the measured speed of workers."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import anyk
from anyk.base.errors import BadInput
from anyk.clusters import Messages, Simulated
from anyk.clusters.virtual.cores import Compute
from anyk.codes import FractionalRepetition
from anyk.delays import TableDelays
from anyk.problems import TorchProblem
from anyk.protocol import Chunk, Fleet, Reply, Running
from anyk.strategies.rounds.balance import BalanceState, _growing, better, reconsidered_sizes
from anyk.strategies.rounds.shares import batch_of
from anyk.testing import check_strategy

GD = anyk.optimizers.GD(lr=0.3)
ROWS = 162  # for training


def problem() -> Any:
    return anyk.problems.from_data("synthetic:rows=203,features=6")


def trained(spec: str, *, workers: int = 4, steps: int = 6, **setting: Any) -> anyk.Run:
    cluster = anyk.cluster("simulated", workers=workers, **({"delays": "exp:mean=0.3", "seed": 3} | setting))
    return anyk.train(problem(), spec, cluster, steps=steps, optimizer=GD)


def cuts(run: anyk.Run) -> list[str]:
    return [note["text"] for note in run.notes if note["text"].startswith("shares=")]


# ------------------------------------------------------------------------------------------- shares that are given


@pytest.mark.slow
@settings(deadline=None)
@given(st.data())
def test_codes_with_shares_cut_the_data_once_and_decode_exactly(data: st.DataObject) -> None:
    n = data.draw(st.integers(2, 9))
    shares = tuple(data.draw(st.lists(st.integers(1, 5), min_size=n, max_size=n)))
    stragglers = data.draw(st.integers(0, n - 1))
    code = FractionalRepetition(n, stragglers=stragglers, shares=shares)
    assert sorted(j for block in code.blocks_of for j in block) == list(range(code.partitions))
    for members, block in zip(code.members, code.blocks_of, strict=True):
        assert len(block) == max(shares[worker] for worker in members)
    late = data.draw(st.permutations(range(n)))[:stragglers]
    weights, residual, _ = code.decode([i for i in range(n) if i not in late])
    assert residual == 0.0
    assert (weights @ code.encoding.toarray() == 1.0).all()
    assert anyk.codes.code(code.spec, workers=n) == code
    rebuilt = anyk.strategy(anyk.strategy(code).spec, workers=n)
    assert rebuilt.layout.partitions == code.partitions


@pytest.mark.parametrize("shares", ["3/1", "3/1/1/0", "3/1/1/1/1", "3/1/1/20000"])
def test_shares_that_do_not_fit_are_refused(shares: str) -> None:
    with pytest.raises(BadInput, match=r"shares must be one whole number from 1 to 10,000 for each of 4 workers"):
        anyk.strategy(f"uncoded:shares={shares}", workers=4)


@pytest.mark.slow
@pytest.mark.parametrize(
    "spec",
    ["uncoded:shares=3/1/1/2", "frc:stragglers=1,shares=3/1/1/2", "uncoded:balance=auto", "frc:load=2,balance=auto",
     "k-sync:k=4,balance=auto"],
)  # fmt: skip
def test_the_objective_stays_the_same_whatever_the_shares(spec: str) -> None:
    run = trained(spec, steps=30, delays="hetero:means=1/0.1/0.1/0.1,per=load")
    assert run.model == pytest.approx(trained("uncoded", steps=30).model, abs=1e-12)
    for step in (1, 15, 30):
        receipt = run.receipt(step)
        assert receipt.residual == 0.0
        assert (receipt.weights == 1.0).all()
        if not spec.startswith("frc:load=2"):
            assert sum(samples or 0 for samples in receipt.samples) == ROWS


def test_receipts_say_of_how_many_samples_a_message_is_made() -> None:
    # 162 rows in 7 partitions, the first of 24 and the others of 23
    assert trained("uncoded:shares=3/1/1/2").receipt(2).samples == (70, 23, 23, 46)
    assert trained("uncoded:shares=3/1/1/2,batch=7").receipt(2).samples == (12, 4, 4, 8)
    assert trained("pasgd:tau=2,shares=3/1/1/2").receipt(1).samples == (70, 23, 23, 46)
    # 41 rows in 6 parts of up to 7: a part of an epoch rarely has as many rows as a batch
    assert trained("uncoded:batch=7,order=epoch").receipt(2).samples == (None,) * 4


def test_k_sync_with_shares_divides_by_the_share_that_came() -> None:
    # the delays are those of every round: workers 1 and 2 of shares 1 and 2 come first
    table = TableDelays(np.tile([0.9, 0.1, 0.2, 0.8], (8, 1)), by="round")
    run = trained("k-sync:k=2,shares=3/1/2/1", steps=1, delays=table)
    problem_here = problem()
    parts = problem_here.split(7)
    heard = (3, 4, 5)
    gradient = sum(parts.partial_gradient(j, problem_here.initial()) for j in heard) * (7 / 3) / ROWS
    assert run.model == pytest.approx(problem_here.initial() - 0.3 * gradient, abs=1e-12)
    # of the coefficients 0, 7/3 and so on: ||a B - 1|| / sqrt(7)
    assert run.receipt(1).residual == pytest.approx(((4 + 3 * (7 / 3 - 1) ** 2) / 7) ** 0.5)


def test_local_models_count_by_their_samples() -> None:
    run = trained("pasgd:tau=3,shares=2/1/1/3", steps=1)
    problem_here = problem()
    parts, ends = problem_here.split(7), [0, 2, 3, 4, 7]
    total, counted = np.zeros(problem_here.dimension), 0
    for first, last in zip(ends, ends[1:], strict=False):
        size, w = sum(parts.sizes[first:last]), problem_here.initial()
        for _ in range(3):
            gradient = sum(parts.partial_gradient(j, w) for j in range(first, last)) / size
            w = w - 0.3 * (gradient + problem_here.l2 * w)
        total += size * w
        counted += size
    assert counted == ROWS
    assert run.model == pytest.approx(total / counted, abs=1e-12)


def test_mini_batches_are_as_large_as_without_shares() -> None:
    assert batch_of(30, workers=4, partitions=6) == 20
    with pytest.raises(BadInput, match="which 60 shares cannot give to within 10 %"):
        anyk.strategy("uncoded:batch=4,shares=30/10/10/10", workers=4)
    for batch in range(1, 70):
        strategy: Any = anyk.strategy(f"uncoded:batch={batch},balance=auto", workers=5)
        chunks = [chunk for task in strategy._tasks[0] for chunk in task]
        assert sum(chunk.batch * len(chunk.partitions) for chunk in chunks) == pytest.approx(5 * batch, rel=0.1)


# ------------------------------------------------------------------------------------------- computed at once


def problems() -> list[Any]:
    import torch

    rows = 120
    random = np.random.default_rng(0)
    X, y = random.normal(size=(rows, 5)), random.integers(0, 3, rows)
    net = torch.nn.Sequential(torch.nn.Linear(5, 3)).double()
    sparse = anyk.problems.from_data(f"synthetic:rows={rows},features=200,density=0.01")
    return [
        anyk.problems.LeastSquares(X, y.astype(float)),
        anyk.problems.SoftmaxRegression(X, y),
        anyk.problems.LogisticRegression(X, y > 0, intercept=True, l2=0.1),
        anyk.problems.TwoLayerNetwork(X, y),
        sparse,
        TorchProblem(net, torch.nn.CrossEntropyLoss(), (X, y)),
    ]


def test_a_piece_computes_what_its_partitions_add_up_to() -> None:
    for each_problem in problems():
        parts: Any = each_problem.split(9)
        messages = Messages(parts, together=True)
        w = np.random.default_rng(1).normal(size=each_problem.dimension).astype(each_problem.dtype)
        ids = (2, 3, 4, 5)
        assert messages.parts(Chunk(ids, (1.0,) * 4)) == [ids]
        expected = np.zeros(each_problem.dimension)
        for j in ids:
            support = parts.support(j)
            expected[slice(None) if support is None else support] += parts.partial_gradient(j, w)
        actual = np.zeros(each_problem.dimension)
        support = messages.support(ids)
        out = np.empty(messages.length(ids), dtype=each_problem.dtype)
        messages.encode(Chunk(ids, (1.0,) * 4), w, out)
        actual[slice(None) if support is None else support] = out
        assert actual == pytest.approx(expected, rel=1e-5, abs=1e-6), type(each_problem).__name__


# ------------------------------------------------------------------------------------------- shares that follow speed


@pytest.mark.slow
def test_a_slow_worker_is_given_less_once() -> None:
    law = "hetero:means=0.3/0.1/0.1/0.1,per=load"
    run = trained("uncoded:balance=auto", steps=150, delays=law)
    assert len(cuts(run)) == 1
    shares = [int(share) for share in cuts(run)[0].partition(" ")[0].removeprefix("shares=").split("/")]
    assert sum(shares) == 64
    assert max(shares[0] * 2, 1) < min(shares[1:])  # 6.4 and 19.2 of 64, if it were known
    assert trained("uncoded:shares=1/3/3/3", steps=150, delays=law).seconds < run.seconds
    assert run.seconds < 0.9 * trained("uncoded", steps=150, delays=law).seconds


def rounds_of(draw: Any, groups: int, rounds: int) -> tuple[int, list[int], float]:
    """How often balance cuts, the last sizes, and the mean seconds of the last 50 rounds."""
    balance = BalanceState([16] * groups)
    count, taken = 0, []
    for number in range(rounds):
        seconds = draw(number) * np.array(balance.sizes) / 16.0
        balance.first_reply = dict(enumerate(seconds.tolist()))
        taken.append(float(seconds.max()))
        count += reconsidered_sizes(balance, float(seconds.max())) is not None
    return count, balance.sizes, float(np.mean(taken[-50:]))


@pytest.mark.slow
@pytest.mark.parametrize("groups", [2, 4, 12, 40])
def test_stragglers_that_wander_change_nothing(groups: int) -> None:
    """At most 2 cuts in 40 fleets of 200 rounds: 20 looks each, at a chance of 0.2 % and 5 % to gain."""
    total = 0
    for seed in range(40):
        random = np.random.default_rng([groups, seed])
        law = [lambda _, r=random: r.exponential(1.0, groups), lambda _, r=random: 1.0 + r.pareto(2.2, groups)][
            seed % 2
        ]
        total += rounds_of(law, groups, 200)[0]
    assert total <= 2


@pytest.mark.parametrize(("groups", "slow"), [(2, 2.0), (4, 3.0), (12, 2.0)])
def test_lasting_differences_are_cut_away(groups: int, slow: float) -> None:
    speeds = np.ones(groups)
    speeds[0] = slow
    random = np.random.default_rng(5)
    count, sizes, mean = rounds_of(lambda _: speeds * random.normal(1.0, 0.02, groups), groups, 120)
    assert count == 1
    ideal = groups / (groups - 1 + 1 / slow)  # seconds of a round if the data could be cut to the sample
    assert mean <= ideal * (1.0 + 1 / 16) * 1.06  # a partition too many, and the slowest of the noise
    assert sum(sizes) == 16 * groups


def test_what_changes_is_cut_again() -> None:
    def draw(number: int) -> NDArray[np.float64]:
        speeds = np.ones(5)
        speeds[0 if number < 100 else 3] = 2.0
        return speeds

    count, sizes, mean = rounds_of(draw, 5, 200)
    assert count >= 2
    assert sizes[3] < 12 < sizes[0]
    assert mean < 1.25  # 10/9 if it were known; uncut 2


def test_a_delay_equal_for_any_share_is_not_computing() -> None:
    """Worker 0 waits a second and computes as the others: after one mistake, its share is right to a partition."""
    even, size = np.array([2.0, 1.0, 1.0, 1.0]), np.array([16, 16, 16, 16])
    first = better(np.tile(even, (10, 1)), size, np.ones(4))
    assert first is not None
    seconds = np.array([1.0, 0.0, 0.0, 0.0]) + np.array(first) / 16.0
    table = np.tile(seconds, (10, 1))
    second = better(table, np.array(first), _growing(seconds, np.array(first), (size.tolist(), even.tolist())))
    # min max over shares: 1 + x/16 = (64 - x) / 3 / 16, so x = 4
    assert (second or first)[0] in (3, 4, 5)


def test_balance_costs_no_time_per_partition() -> None:
    for setting in ({"delays": "constant:0.1,per=load"}, {"delays": "none", "compute": Compute(0.0, 0.1, 0.0, 4)}):
        seconds = []
        for spec in ("uncoded", "uncoded:balance=auto", "uncoded:shares=2/2/2/2"):
            run = anyk.train(problem(), spec, Simulated(4, **setting), steps=5, optimizer=GD)
            seconds.append(run.seconds)
        assert seconds == pytest.approx([0.5] * 3)


@pytest.mark.slow
@pytest.mark.parametrize(
    "spec",
    [
        "uncoded:balance=auto",
        "frc:stragglers=1,balance=auto",
        "pasgd:tau=2,balance=auto",
        "uncoded:balance=auto,models=2",
        "frc:stragglers=1,balance=auto,batch=4,models=3",
    ],
)
def test_schedules_of_any_kind(spec: str) -> None:
    for seed in range(5):
        check_strategy(anyk.strategy(spec, workers=6), seed=seed)


def test_shares_are_reconsidered_after_ten_measured_rounds() -> None:
    balance, changed = BalanceState([16] * 4), []
    for number in range(60):
        slow = 2.0 if number > 16 else 1.0
        balance.first_reply = {group: 1.0 if group else slow for group in range(4)}
        balance.disturbed = number == 5
        sizes = reconsidered_sizes(balance, slow)
        if sizes is not None:
            changed.append((number + 1, sizes))
    assert changed[0] == (2 + 1 + 30, [9, 19, 18, 18])  # two rounds are cold, one is disturbed, 30 are measured


def test_the_first_reply_of_a_group_is_measured() -> None:
    strategy: Any = anyk.strategy("frc:stragglers=1,balance=auto", workers=4)
    running = Running(strategy)
    running.start(Fleet(4, (0, 1, 2, 3)))
    for time, worker in ((1.0, 1), (2.0, 0), (3.0, 3)):
        running.on(Reply(time, worker, worker, 0))
        if time < 3.0:
            assert running.state.code_rule.first_reply == {0: 1.0}
    assert running.state.version == 1


# ------------------------------------------------------------------------------------------- several models


def many(spec: str, law: str, steps: int) -> anyk.Run:
    problems = [anyk.problems.from_data(f"synthetic:rows=203,features=6,seed={seed}") for seed in (0, 1)]
    cluster = Simulated(4, delays=law, seed=3)
    return anyk.train_many(problems, spec, cluster, steps=steps, optimizer=GD)


@pytest.mark.slow
@pytest.mark.parametrize(("code", "means"), [("uncoded", "1/0.1/0.1/0.1"), ("frc:stragglers=1", "1/1/0.1/0.1")])
def test_models_in_turn_are_exact_and_faster_with_balance(code: str, means: str) -> None:
    law, mark = f"hetero:means={means},per=load", "," if ":" in code else ":"
    balanced, even = many(f"{code}{mark}balance=auto", law, 40), many(code, law, 40)
    assert len(cuts(balanced)) == 1 and " from round " in cuts(balanced)[0]
    assert balanced.seconds < 0.75 * even.seconds
    for slot in ("model 0", "model 1"):
        assert balanced.models[slot] == pytest.approx(even.models[slot], abs=1e-12)


def test_balanced_mini_batches_of_models_in_turn_by_hand() -> None:
    """Each step adds up every partition once, at its own model and with the mini-batch of its version."""
    run = many("uncoded:balance=auto,batch=7", "hetero:means=1/0.1/0.1/0.1,per=load", 20)
    assert len(cuts(run)) == 1
    for seed, slot in enumerate(("model 0", "model 1")):
        problem_here = anyk.problems.from_data(f"synthetic:rows=203,features=6,seed={seed}")
        parts = problem_here.split(run.config.partitions)
        messages, w = Messages(parts, seed=3), problem_here.initial()
        for step in range(20):
            works = run.log.rows(
                "SELECT w.partitions, w.batch FROM chunks c JOIN works w ON w.id = c.work WHERE c.slot = ? AND "
                "c.step = ?", (slot, step + 1)
            )  # fmt: skip
            chunks = [Chunk(tuple(json.loads(ids)), (), batch=batch) for ids, batch in works]
            assert sorted(j for chunk in chunks for j in chunk.partitions) == list(range(28))
            total = sum(messages.partial_gradient(j, w, c, step) for c in chunks for j in c.partitions)
            w = w - 0.3 * (total / sum(parts.sizes) + problem_here.l2 * w)
        assert run.models[slot] == pytest.approx(w, abs=1e-12)


@pytest.mark.slow
def test_mini_batches_of_uneven_shares_are_unbiased() -> None:
    """Over many seeds, the mean sum of the shares' mini-batches is the gradient of all data."""
    problem_here = problem()
    parts, w = problem_here.split(28), np.random.default_rng(0).normal(size=6)
    shares = [range(1), range(1, 9), range(9, 20), range(20, 28)]
    exact = sum(parts.partial_gradient(j, w) for j in range(28))
    for together in (True, False):
        sums = []
        for seed in range(400):
            messages, total = Messages(parts, seed=seed, together=together), np.zeros(6)
            for share in shares:
                out = np.empty(6)
                messages.encode(Chunk(tuple(share), (1.0,) * len(share), batch=1), w, out)
                total += out
            sums.append(total)
        errors = (np.mean(sums, axis=0) - exact) / (np.std(sums, axis=0) / 20.0)
        assert np.abs(errors).max() < 4.0


@pytest.mark.slow
def test_a_resumed_run_goes_on_with_the_shares_it_had(tmp_path: Any) -> None:
    law = "hetero:means=0.4/0.1/0.1/0.1,per=load"
    uninterrupted = trained("uncoded:balance=auto", steps=60, delays=law)
    cluster = anyk.cluster("simulated", workers=4, delays=law, seed=3)
    anyk.train(problem(), "uncoded:balance=auto", cluster, steps=45, optimizer=GD, out=tmp_path / "run")
    resumed = anyk.resume(tmp_path / "run", steps=60)
    assert cuts(resumed) == cuts(uninterrupted) != []
    assert (resumed.model == uninterrupted.model).all()
    assert resumed.seconds == uninterrupted.seconds


@pytest.mark.slow
@settings(max_examples=8, deadline=None)
@given(st.integers(2, 8), st.integers(0, 2**31))
def test_shares_are_the_best_that_whole_partitions_allow(groups: int, seed: int) -> None:
    """Against the bound of shares in any fraction: no group is slower than that by more than one partition."""
    random = np.random.default_rng(seed)
    pace = random.uniform(0.5, 3.0, groups)  # seconds of an even share
    sizes = better(np.tile(pace, (10, 1)), np.full(groups, 16), np.ones(groups))
    ideal = groups / (1.0 / pace).sum()
    if sizes is not None:
        assert sum(sizes) == 16 * groups
        assert (np.array(sizes) * pace / 16).max() <= ideal + (pace / 16).max()


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("cyclic:stragglers=1,balance=auto", "'cyclic:stragglers=1' needs even blocks"),
        ("uncoded:wait=3,snapshot=4,balance=auto", "snapshot uses earlier messages of groups again, whose partitions"),
        ("uncoded:wait=3,scaling=marginal,balance=auto", "scaling=marginal divides by shares that are expected under"),
        ("frc:stragglers=1,check=0.5,balance=auto", "check has not been tested with shares that change"),
        ("uncoded:balance=yes", "balance"),
        ("pasgd:tau=2,clients=2,balance=auto", "clients are sampled from all workers of a fixed fleet"),
    ],
)
def test_what_balance_cannot_do_is_refused(spec: str, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        anyk.strategy(spec, workers=4)


# ------------------------------------------------------------------------------------------- planned


def planned(times: NDArray[np.float64], **options: Any) -> Any:
    return anyk.plan(anyk.fleet.Record(times, load=1 / times.shape[1]), **options)


@pytest.mark.slow
def test_plans_tell_lasting_slowness_from_stragglers_that_wander() -> None:
    n, rounds = 8, 80
    random = np.random.default_rng(2)
    noise = random.normal(1.0, 0.01, (rounds, n))
    speeds = np.ones(n)
    speeds[[2, 5]] = 2.5
    lasting = planned(speeds * noise)
    outcome = (lasting.verdict, lasting.evidence, lasting.best.spec)
    assert outcome == ("change", "enough", "uncoded:balance=auto")
    # n workers of which two have 2/5 of the speed; a partition in sixteen too many, and the largest of the noise
    assert 8 / 6.8 <= lasting.best.seconds_per_step.median <= 8 / 6.8 * 17 / 16 * 1.02
    assert lasting.best.load < 1 / 6.8 + 1 / 128
    wandering = noise.copy()
    wandering[np.arange(rounds), random.integers(0, n, rounds)] *= 6.0
    outcome = planned(wandering, slope=2.0)
    assert outcome.verdict == "change"
    assert "balance" not in outcome.best.spec
    even = next(one for one in outcome.candidates if one.spec == "uncoded:balance=auto")
    assert even.seconds_per_step.median == pytest.approx(outcome.today.seconds_per_step.median, rel=0.02)


def test_only_replicas_gradients_must_agree_if_shares_move() -> None:
    import torch

    draws = torch.Generator().manual_seed(0)  # its own: no two calls alike

    class Noisy(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(5, 2)

        def forward(self, x: Any) -> Any:
            return self.linear(x) * torch.rand((), generator=draws)

    random = np.random.default_rng(0)
    X, y = random.normal(size=(160, 5)).astype(np.float32), random.integers(0, 2, 160)
    problem_here = TorchProblem(Noisy(), torch.nn.CrossEntropyLoss(), (X, y))
    anyk.train(problem_here, "uncoded:balance=auto", "simulated", workers=4, steps=2, optimizer=GD)
    with pytest.raises(BadInput, match="a code takes replicas of a partition for equal"):
        anyk.train(problem_here, "frc:load=2,balance=auto", "simulated", workers=4, steps=2, optimizer=GD)


def test_processes_compute_shares_to_the_same_bits() -> None:
    models = []
    for name in ("simulated", "processes"):
        cluster = anyk.cluster(name, workers=4)
        run = anyk.train(problem(), "uncoded:shares=2/2/1/1,batch=6", cluster, steps=3, optimizer=GD)
        models.append(run.model)
    assert (models[0] == models[1]).all()
    assert anyk.replay(run, problem=problem(), optimizer=GD).model
