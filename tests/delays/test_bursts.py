"""Delays in bursts: the chain of slow rounds against its definition, and runs and plans that meet it."""

from __future__ import annotations

import numpy as np
import pytest

import anyk
from anyk.base.errors import BadInput
from anyk.base.keyed import keyed_uniforms
from anyk.delays import DelayModel, parse
from anyk.delays.bursts import _recent
from anyk.testing import check_delays

pytestmark = pytest.mark.in_process

SPEC = "bursts:normal=(exp:mean=0.5),slow=(exp:mean=5),share=0.2,length=5"
CHAINS = [(0.2, 5.0), (0.5, 2.0), (0.02, 40.0), (0.9, 10.0), (0.1, 1.0 / 0.9)]


def bursts(share: float, length: float, **keys: str) -> anyk.delays.Bursts:
    return anyk.delays.Bursts(parse("exp:mean=0.5"), parse("exp:mean=5"), share, length, **keys)


def stepped(model: anyk.delays.Bursts, seed: int, worker: int, rounds: int) -> list[bool]:
    """The chain, one round after another, as it is defined: with the state of the round before."""
    uniforms = keyed_uniforms(seed, "burst", worker, start=0, count=rounds)
    slow = [bool(uniforms[0] < model.share)]
    begins, ends = model.share / (1.0 - model.share) / model.length, 1.0 / model.length
    for uniform in uniforms[1:]:
        slow.append(bool(uniform < 1.0 - ends if slow[-1] else uniform < begins))
    return slow


def lengths(slow: np.ndarray) -> np.ndarray:
    """The lengths of the bursts that began and ended within the rounds."""
    edges = np.flatnonzero(np.diff(slow.astype(int)))
    edges = edges[int(slow[0]) :]  # from the first beginning
    return edges[1::2] - edges[: len(edges) // 2 * 2 : 2]


@pytest.mark.parametrize(("share", "length"), CHAINS)
def test_slow_rounds_are_the_chain_stepped_from_its_start(share: float, length: float) -> None:
    model = bursts(share, length)
    for worker in range(3):
        assert model.is_slow(4, worker, 0, 3000).tolist() == stepped(model, 4, worker, 3000)


@pytest.mark.slow
@pytest.mark.parametrize(("share", "length"), CHAINS)
def test_bursts_have_the_stated_share_and_geometric_lengths(share: float, length: float) -> None:
    """Within five standard errors, over 200 workers of 2000 rounds; their shares are independent."""
    slow = np.stack([bursts(share, length).is_slow(1, worker, 0, 2000) for worker in range(200)])
    shares = slow.mean(axis=1)
    assert abs(shares.mean() - share) <= 5 * shares.std(ddof=1) / 200**0.5
    begun = slow[:, 1:] & ~slow[:, :-1]  # the chance to stay slow does not depend on how long it has been slow
    for age in (1, 2, 3):
        aged = begun[:, : begun.shape[1] - age].copy()
        for later in range(1, age):
            aged &= slow[:, 1 + later : 1 + later + aged.shape[1]]
        stays = slow[:, 1 + age : 1 + age + aged.shape[1]][aged]
        chance = 1.0 - 1.0 / length
        assert abs(stays.mean() - chance) <= 5 * (chance * (1 - chance) / stays.size) ** 0.5
    if length <= 10:  # of longer ones, the rounds cut off the longest
        burst_lengths = np.concatenate([lengths(row) for row in slow])
        assert burst_lengths.mean() == pytest.approx(length, rel=0.03)


@pytest.mark.slow
def test_the_first_round_has_the_share_of_all_rounds() -> None:
    first = [bursts(0.3, 50.0).is_slow(2, worker, 0, 1)[0] for worker in range(800)]
    assert abs(np.mean(first) - 0.3) <= 5 * (0.3 * 0.7 / 800) ** 0.5


def test_workers_and_seeds_have_independent_bursts() -> None:
    model = bursts(0.2, 5.0)
    rows = [model.is_slow(seed, worker, 0, 40_000) for seed, worker in ((0, 0), (0, 1), (1, 0))]
    assert np.abs(np.corrcoef(rows) - np.eye(3)).max() < 0.08  # 5 errors of about 9 dependent rounds each


@pytest.mark.parametrize("length", [5.0, 3000.0])
def test_draws_are_the_same_in_any_order(length: float) -> None:
    model = bursts(0.2, length)
    all_draws = model.draws(9, 1, 0, 5000)
    order = np.random.default_rng(0).permutation(np.arange(0, 5000, 37))
    for start in order.tolist():
        count = min(1 + start % 300, 5000 - start)
        if start % 2:
            _recent.cache_clear()  # as in another process
        assert np.array_equal(model.draws(9, 1, start, count), all_draws[start : start + count])
    assert model.draws(9, 1, 7, 0).shape == (0,)


def test_rounds_in_order_need_no_search_in_long_bursts(monkeypatch: pytest.MonkeyPatch) -> None:
    model, searched = bursts(0.2, 1e6), []
    inner = anyk.delays.Bursts._decisive
    monkeypatch.setattr(
        anyk.delays.Bursts, "_decisive", lambda self, *key: (searched.append(key[-1]), inner(self, *key))[1]
    )
    for start in range(0, 256 * 100, 256):
        model.draws(3, 0, start, 256)
    assert sum(searched) <= 2 * 256 * 100


def test_each_round_has_the_delay_of_its_own_model() -> None:
    model = parse(SPEC)
    slow, draws = model.is_slow(3, 2, 0, 2000), model.draws(3, 2, 0, 2000)
    assert np.array_equal(draws[~slow], parse("exp:mean=0.5").draws(3, 2, 0, 2000)[~slow])
    assert np.array_equal(draws[slow], parse("exp:mean=5").draws(3, 2, 0, 2000)[slow])


def test_items_of_a_version_are_slow_together() -> None:
    model = parse("bursts:normal=(constant:1),slow=(constant:9),share=0.2,length=5,by=item")
    slow = model.is_slow(0, 1, 0, 300)
    for version in reversed(range(300)):
        assert {model.item_draw(0, 1, version, repeat) for repeat in range(3)} == {9.0 if slow[version] else 1.0}


@pytest.mark.slow
@pytest.mark.parametrize(
    "spec",
    [
        SPEC,
        "bursts:normal=none,slow=(pareto:minimum=1,alpha=3),share=0.4,length=100",
        "bursts:normal=(hetero:means=1/2),slow=(mixture:laws=(exp:mean=5)/(constant:value=9),weights=1/1),by=round",
    ],
)
def test_facts_are_those_of_the_draws(spec: str) -> None:
    """The mean, P(delay <= t) and order statistics, within 5 standard errors of batches, as check_delays states."""
    check_delays(parse(spec))
    law = parse(spec)
    assert law.longest_sum(3, 4) is None  # which needs independent rounds


def test_a_wrong_mean_of_bursts_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(anyk.delays.Bursts, "expected", lambda self, worker=0: 2.5)
    with pytest.raises(AssertionError, match="the mean of worker 0 is 2.5"):
        check_delays(parse(SPEC))


def test_draws_that_depend_on_the_order_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(self: anyk.delays.Bursts, seed: int, worker: int, start: int) -> int:
        return 1

    monkeypatch.setattr(anyk.delays.Bursts, "_state_before", forgetful)
    with pytest.raises(AssertionError, match="differ by themselves and among more"):
        check_delays(parse("bursts:normal=none,slow=(constant:1),share=0.1,length=30"))


def test_the_mean_is_that_of_both_models() -> None:
    assert parse(SPEC).expected() == pytest.approx(0.8 * 0.5 + 0.2 * 5)
    assert parse("bursts:normal=none,slow=(pareto:minimum=1,alpha=1)").expected() == np.inf


@pytest.mark.slow
@pytest.mark.parametrize("by", ["task", "round"])
@pytest.mark.parametrize("strategy", ["uncoded:wait=6", "uncoded", "k-async:k=1", "fedbuff:tau=4,k=2"])
def test_planned_paces_are_simulated_ones_or_none(strategy: str, by: str) -> None:
    """A worker that never waits meets fewer slow rounds if it skips rounds while it is slow, so no closed form then."""
    built, law = anyk.strategy(strategy, workers=8), parse(f"{SPEC},by={by}")
    planned, simulated = anyk.fleet.pace(built, law).seconds, anyk.fleet.simulated_pace(built, law, updates=4000)
    if by == "round" and not strategy.startswith("uncoded"):
        assert planned is None
    else:
        assert planned == pytest.approx(simulated.seconds, abs=4 * simulated.error)


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ("normal=none,slow=(exp:mean=1),share=0.5,length=1.9", r"at least 1 / \(1 - share\) = 2, as of independent ro"),
        ("normal=none,slow=(exp:mean=1),share=1", "share must be a number above 0 and below 1, got 1.0"),
        ("normal=none,slow=(exp:mean=1),length=0.5", "length must be a number from 1 to 1e"),
        ("normal=none,slow=(exp:mean=1,by=round)", "are keys of 'bursts' itself, not of its 'slow', got 'exp:by=round"),
        (
            "normal=(bursts:normal=none,slow=none),slow=none",
            "'normal' of 'bursts' must be a model of independent delays",
        ),
        ("normal=none", "delay model 'bursts' needs slow=…"),
    ],
)
def test_bursts_that_cannot_be_are_refused(keys: str, reason: str) -> None:
    with pytest.raises(BadInput, match=reason):
        parse(f"bursts:{keys}")


def test_a_mixture_of_bursts_is_refused() -> None:
    with pytest.raises(BadInput, match="bursts last for rounds"):
        parse("mixture:laws=(bursts:normal=none,slow=(exp:mean=1))/(exp:mean=1),weights=1/1")


@pytest.mark.slow
def test_a_resumed_run_meets_the_same_bursts(tmp_path) -> None:
    problem = anyk.problems.from_data("synthetic:rows=60,features=3")
    settings = {"workers": 4, "delays": SPEC, "seed": 5}
    uninterrupted = anyk.train(problem, "uncoded:wait=3", "simulated", steps=40, **settings)
    anyk.train(problem, "uncoded:wait=3", "simulated", steps=17, out=tmp_path / "run", **settings)
    _recent.cache_clear()  # as in another process
    resumed = anyk.resume(tmp_path / "run", steps=40)
    assert resumed.seconds == uninterrupted.seconds and (resumed.model == uninterrupted.model).all()


@pytest.mark.slow
def test_a_plan_takes_bursts() -> None:
    plan = anyk.fleet.plan(parse(SPEC), workers=6)
    assert plan is not None


@pytest.mark.slow
def test_processes_take_the_time_of_the_simulation() -> None:
    problem = anyk.problems.from_data("synthetic:rows=60,features=3")
    delays: DelayModel = parse("bursts:normal=(constant:0.002),slow=(constant:0.03),share=0.3,length=4")
    real = anyk.train(problem, "frc:load=3", anyk.clusters.Processes(6, delays=delays, seed=1), steps=12)
    virtual = anyk.train(problem, "frc:load=3", anyk.clusters.Simulated(6, delays=delays, seed=1), steps=12)
    assert virtual.seconds == real.floor_seconds <= real.seconds
    assert (real.model == virtual.model).all()
