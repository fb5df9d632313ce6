"""Steps corrected by a snapshot: the sum they come to, its error in closed form, and that it vanishes at the optimum."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

import anyk
from anyk.base.errors import BadInput
from anyk.optimizers import GD
from anyk.problems import LeastSquares
from anyk.protocol import Combine, Fleet, Lost, Reply
from anyk.runs import Driver, session
from anyk.runs.log import queries
from anyk.testing import check_strategy
from anyk.testing.world import Broken, World
from byhand import ByHand

pytestmark = pytest.mark.in_process

RANDOM = np.random.default_rng(3)
X = RANDOM.standard_normal((120, 3))
PROBLEM = LeastSquares(X, X @ np.array([1.0, -2.0, 0.5]) + RANDOM.standard_normal(120), l2=0.1)


def played(spec: str, workers: int, rounds: list[list[int]]) -> tuple[list[Combine], dict[int, tuple[int, int]]]:
    """The steps of rounds in which these workers reply in this order; of each task its worker and its round."""
    running = ByHand(anyk.strategy(spec, workers=workers))
    running.start(Fleet(workers, tuple(range(workers))))
    steps, tasks = [], {}
    for number, order in enumerate(rounds):
        first = running.first
        tasks |= {first + worker: (worker, number) for worker in range(workers)}
        for worker in order:
            steps += [
                command for command in running.on(Reply(1.0, worker, first + worker, 0)) if isinstance(command, Combine)
            ]
    assert len(steps) == len(rounds)
    return steps, tasks


def summed(step: Combine, given: dict[int, tuple[int, int]], members: int, at: dict[int, np.ndarray]) -> np.ndarray:
    """The decoded sum, where ``at[round][group]`` is what a group says in a round."""
    parts = [(given[task], weight) for (task, _), weight in zip(step.messages, step.weights, strict=True)]
    return np.sum([weight * at[number][worker // members] for (worker, number), weight in parts], axis=0)


@pytest.mark.parametrize("scaling", ["conditional", "none"])
def test_the_error_is_that_of_the_plain_decoding_on_differences(scaling: str) -> None:
    """All sets of groups that can be heard of: Cauchy and Schwarz's bound, and the mean square in closed form.

    Of G groups k are heard of, D_u is the change of group u's sum since the snapshot. Scaled by G / k the error is that
    of a mean drawn without replacement, G^2 (1 - k / G) / k S^2; not scaled, it is the sum of G - k D_u's, drawn so.
    """
    groups, members, heard = 5, 2, 3
    spec = f"agc:load=2,wait={heard},snapshot=9,scaling={scaling}"
    v, w = RANDOM.standard_normal((2, groups, 4)) + 1.0
    squares, bounds = [], []
    for some in combinations(range(groups), heard):
        steps, tasks = played(spec, 10, [list(range(0, 10, 2)), [members * u + 1 for u in some]])
        assert [step.residual for step in steps] == [0.0, 0.0]
        assert np.allclose(summed(steps[0], tasks, members, {0: v}), v.sum(axis=0), rtol=1e-14)
        error = summed(steps[1], tasks, members, {0: v, 1: w}) - w.sum(axis=0)
        factor = groups / heard if scaling == "conditional" else 1.0
        coefficients = np.where(np.isin(range(groups), some), factor, 0.0) - 1.0
        assert np.allclose(error, coefficients @ (w - v), rtol=1e-12)
        squares.append(error @ error)
        bounds.append(coefficients @ coefficients * ((w - v) ** 2).sum())
    assert (np.array(squares) <= bounds).all()
    change = w - v
    spread = ((change - change.mean(axis=0)) ** 2).sum() / (groups - 1)
    silent = groups - heard
    drawn = silent * heard / groups * spread  # of a sum of so many, drawn without replacement
    factor, mean = (groups / heard, 0.0) if scaling == "conditional" else (1.0, silent / groups)
    expected = factor**2 * drawn + mean**2 * (change.sum(axis=0) ** 2).sum()
    assert np.isclose(np.mean(squares), expected, rtol=1e-12)


def test_it_converges_whoever_is_late() -> None:
    """The bound that docs/codes/agc.md derives, on quadratics, where in each round the worst group is silent."""
    groups, every, d = 40, 6, 3
    roots = RANDOM.standard_normal((groups, d, d)) * 0.3 + 2.0 * np.eye(d)
    curvatures = roots @ roots.transpose(0, 2, 1)
    centres = RANDOM.standard_normal((groups, d))
    mean = curvatures.mean(axis=0)
    best = np.linalg.solve(mean, np.einsum("uij,uj->i", curvatures, centres) / groups)
    mu, beta = np.linalg.eigvalsh(mean)[[0, -1]]
    kappa = np.sqrt((np.linalg.eigvalsh(curvatures)[:, -1] ** 2).sum()) / groups  # one is silent: |a - 1| = 1
    assert kappa < mu / 2
    rate = 1.0 / beta
    r = 1.0 - rate * (mu - kappa)
    factor = r**every + (1.0 - r**every) * kappa / (mu - kappa)

    def sums(w: np.ndarray) -> np.ndarray:
        return np.einsum("uij,uj->ui", curvatures, w - centres)

    w = best + RANDOM.standard_normal(d)
    for _ in range(5):
        v, before = w, np.linalg.norm(w - best)
        for _ in range(every):
            change = sums(w) - sums(v)
            all_but_one = sums(v).sum(axis=0) + change.sum(axis=0) - change
            after = w - rate * all_but_one / groups
            w = after[np.linalg.norm(after - best, axis=1).argmax()]
        assert np.linalg.norm(w - best) <= factor * before < before


def test_a_run_is_what_its_formula_says() -> None:
    """An independent computation from the log's decisions alone, with gradients from NumPy."""
    n, every, steps, lr = 6, 4, 14, 0.2
    cluster = anyk.clusters.Simulated(n, delays="exp:mean=1", seed=5)
    run = anyk.train(PROBLEM, f"agc:load=2,wait=2,snapshot={every}", cluster, optimizer=GD(lr=lr), steps=steps)
    used: dict[int, list[queries.Decision]] = {}
    for decision in queries.decisions(run.log):
        used.setdefault(decision.step, []).append(decision)
    blocks = np.array_split(np.arange(120), 3)  # of each group

    def sums(w: np.ndarray) -> np.ndarray:
        return np.array([PROBLEM.X[b].T @ (PROBLEM.X[b] @ w - PROBLEM.y[b]) for b in blocks])

    w, seen = PROBLEM.initial(), set()
    for step in range(1, steps + 1):
        fresh = {d.worker // 2 for d in used[step] if d.version == step - 1}
        if step % every == 1:
            v = w
            assert fresh == {0, 1, 2} and len(used[step]) == 3
        seen.add(len(fresh))
        share = len(fresh) / 3
        gradient = sums(v).sum(axis=0) + sum((sums(w) - sums(v))[u] for u in fresh) / share
        w = w - lr * (gradient / 120 + PROBLEM.l2 * w)
    assert seen == {1, 2, 3}
    assert np.allclose(run.model, w, rtol=1e-12)
    staleness = run.history["staleness"]
    assert (staleness[1::every] == 0.0).all() and np.nanmax(staleness) < every
    assert run.ledger["dispatched"] == sum(run.ledger[e] for e in anyk.runs.engine.counts.ENDINGS)


@pytest.mark.slow
def test_no_noise_floor() -> None:
    best = PROBLEM.loss(np.linalg.solve(X.T @ X / 120 + 0.1 * np.eye(3), X.T @ PROBLEM.y / 120))
    excess = {}
    for spec in ("frc:load=2", "agc:load=2,wait=5", "agc:load=2,wait=5,snapshot=10"):
        cluster = anyk.clusters.Simulated(12, delays="exp:mean=1", seed=1)
        excess[spec] = PROBLEM.loss(anyk.train(PROBLEM, spec, cluster, optimizer=GD(lr=0.5), steps=80).model) - best
    exact, plain, corrected = excess.values()
    assert exact < 1e-12 and plain > 1e-4 and corrected < 1e-12, excess


def test_a_given_up_group_counts_with_its_last_message() -> None:
    running = ByHand(anyk.strategy("agc:load=2,wait=2,snapshot=2", workers=4))
    running.start(Fleet(4, (0, 1, 2, 3)))
    for task in (0, 2):
        first = running.on(Reply(1.0, task, task, 0))
    assert first[0].keep == [(0, 0), (2, 0)] and list(first[1].tasks) == [1, 3]
    for worker in (2, 3):
        running.on(Lost(2.0, worker, "died", gone=True))
    running.on(Reply(3.0, 0, 4, 0))
    step, cancel = running.on(Reply(3.0, 1, 5, 0))[:2]
    assert step.messages == [(4, 0), (0, 0), (2, 0)] and step.weights == [2.0, -1.0, 1.0] and step.residual == 0.0
    assert step.keep == () and list(cancel.tasks) == [4, 5, 6, 7]
    running.on(Reply(4.0, 0, 8, 0))
    step, cancel = running.on(Reply(4.0, 1, 9, 0))[:2]  # a snapshot without it
    assert (8, 0) in step.keep and (2, 0) in step.messages and step.residual == 0.0
    assert 0 in cancel.tasks and 2 not in cancel.tasks  # let go, held on to


def test_a_group_without_a_first_message_is_in_the_residual() -> None:
    running = ByHand(anyk.strategy("agc:load=2,wait=2,snapshot=2,scaling=none", workers=6))
    running.start(Fleet(6, tuple(range(6))))
    for worker in (4, 5):
        running.on(Lost(0.0, worker, "died", gone=True))
    running.on(Reply(1.0, 0, 0, 0))
    running.on(Reply(1.0, 1, 1, 0))
    running.on(Reply(1.0, 2, 2, 0))
    assert running.on(Reply(1.0, 3, 3, 0))[0].residual == pytest.approx((1 / 3) ** 0.5)


def test_under_losses_and_resumed() -> None:
    for spec in ("agc:load=3,wait=3,snapshot=3", "uncoded:wait=2&0.2s,snapshot=2,cancel=discard"):
        check_strategy(anyk.strategy(spec, workers=6), steps=12)


def test_the_driver_holds_one_message_a_group() -> None:
    cluster = anyk.clusters.Simulated(6, delays="exp:mean=1")
    strategy = anyk.strategy("agc:load=2,wait=2,snapshot=5", workers=6)
    driver = Driver(strategy, cluster, problem=PROBLEM, optimizer=GD(lr=0.1), steps=23)
    messages: list[int] = []
    driver._on_step = lambda driver: messages.append(len(cluster.store.arrived))
    with session(driver):
        driver.run()
        assert messages[-1] >= 3 and max(messages) <= 3 + 6
        driver.settle()
        assert not cluster.store.arrived
    counts = driver.ledger.counts
    assert counts.open == 0 and counts.late_counted == 0


def test_a_message_that_was_not_kept_cannot_be_used_again() -> None:
    strategy = anyk.strategy("uncoded:wait=1", workers=2)
    for keep, sentence in (((), "though it was used before"), (((1, 0),), "keeps messages that it does not use")):
        fleet = Fleet(2, (0, 1))
        world = World(strategy, fleet, 0)
        world.obey(strategy.start(fleet)[1])
        world.tasks[0].status[0] = "arrived"
        step = Combine("model", [(0, 0)], [1.0], keep=keep)
        with pytest.raises(Broken, match=sentence):
            world.obey([step, step])
    world.tasks[0].status[0] = "arrived"
    world.obey([step._replace(keep=[(0, 0)], residual=None)] * 2)


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ("agc:load=2,snapshot=1", "snapshot must be at least 2 rounds (0: no snapshots), got 1"),
        ("cyclic:stragglers=1,wait=3,snapshot=5", "'cyclic:stragglers=1' has no groups; take agc, frc, bcc or uncoded"),
        ("frc:load=2,snapshot=5", "snapshot corrects steps taken early, and these are all exact; add wait=…"),
        ("agc:load=2,wait=2,batch=4,snapshot=5", "snapshot has been tested with wait, scaling and cancel only"),
        (
            "compressed:of=(agc:load=2,wait=2,snapshot=5),by=qsgd",
            "uses messages again, which 'qsgd:levels=64' would blur",
        ),
    ],
)
def test_refusals(spec: str, why: str) -> None:
    with pytest.raises(BadInput) as caught:
        anyk.strategy(spec, workers=6)
    assert why in str(caught.value)
