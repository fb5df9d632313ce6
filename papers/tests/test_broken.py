"""Verdicts are about anyk: breaking a code or a strategy changes those of the items that are about it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from anyk.base import RunFailed
from anyk.codes import decoders, repetition
from anyk.codes.base import Code
from anyk.codes.decoders import Decoding, Selection
from anyk.codes.heterogeneous import HeterogeneousCode
from anyk.fleet.theory import adversaries
from anyk.strategies import StragglerModel
from anyk.strategies.averaging import adapting, gossip
from anyk.strategies.kfamily.kfamily import KFamily
from anyk.strategies.rounds.coded_rounds import Rounds
from anyk.strategies.sequential.sequential_rounds import SequentialRounds
from anyk_papers import Lab, Table, items
from anyk_papers.gallery import (
    adacomm_tau,
    bibd_adversarial,
    coop_bound,
    coop_easgd,
    designs_variants,
    erasurehead_theory,
    hetero_codes,
    random_codes,
)
from anyk_papers.gallery import sgc_converse as converse
from anyk_papers.item_table import cases

pytestmark = [pytest.mark.in_process, pytest.mark.slow]

Patch = pytest.MonkeyPatch


class BrokenError(Exception):
    """Raised by a strategy that was broken on purpose."""


class SmallLab(Lab):
    """A lab for a look that is smaller still, where an item has thousands of anything."""

    def size(self, full: int, quick: int) -> int:
        return quick // 10 if quick >= 2_000 else quick


# worst stragglers of many workers, or of random codes, are searched for; these have a decoder of each kind
FEWER = {
    bibd_adversarial: ("block design", "biregular", "FRC", "expander"),
    designs_variants: ("Fano x Fano", "FRC x Fano", "biregular, n = 30", "design, n = 31", "FRC, n = 30"),
}


@pytest.fixture(scope="module", autouse=True)
def fewer_codes() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for item, names in FEWER.items():
            patch.setattr(item, "CODES", {name: item.CODES[name] for name in names})
        yield


@cache
def words(name: str, data: Path | None) -> list[str]:
    item = items()[name]
    return [verdict.word for verdict in item.verdicts(item.table(SmallLab(name, 1, True, data_folder=data)))]


def scaled_decoder(patch: Patch) -> None:
    """Every decoder's output times 0.3, with the residual of the right one where it is stated by the decoder."""
    for method in (decoders.Own, decoders.LeastSquaresMethod, decoders.OneStep, decoders.Algorithmic):
        weights = method.weights
        patch.setattr(method, "weights", lambda *args, weights=weights: 0.3 * weights(*args))
    select = repetition._GroupDecoder.select

    def scaled(decoder: repetition._GroupDecoder) -> Selection:
        selection = select(decoder)
        return selection._replace(weights=[0.3 * weight for weight in selection.weights])

    patch.setattr(repetition._GroupDecoder, "select", scaled)


def wrong_residual(patch: Patch) -> None:
    """Every residual 0.9."""
    judge = Code.judge

    def misjudge(code: Code, weights: np.ndarray) -> Decoding:
        right = judge(code, weights)
        return Decoding(right.weights, 0.9, right.gain, right.worst)

    patch.setattr(Code, "judge", misjudge)


def no_elastic_matrix(patch: Patch) -> None:
    for item in (coop_bound, coop_easgd):
        patch.setattr(item, "elastic", lambda workers, alpha: np.eye(workers + 1))


def no_elastic_force(patch: Patch) -> None:
    """Workers go on from their own models."""
    patch.setattr(
        gossip.ElasticSGD, "beginning", lambda self, s, node, k: (((node, s.ended[k - 1][node], 0, 1.0),), 0.0)
    )


def no_mixing(patch: Patch) -> None:
    """Nodes go on from their own models."""
    patch.setattr(
        gossip.Neighbours, "beginning", lambda self, s, node, k: (((node, s.ended[k - 1][node], 0, 1.0),), 0.0)
    )


def raising(*steps: tuple[type, str]) -> Callable[[Patch], None]:
    def fail(*args: object, **options: object) -> None:
        raise BrokenError

    def broken(patch: Patch) -> None:
        for kind, method in steps:
            patch.setattr(kind, method, fail)

    return broken


def one_gradient_more(patch: Patch) -> None:
    """A step of the K family takes one gradient more than it says."""
    start = KFamily.start

    def greedy(self: KFamily, fleet: object) -> object:
        state, commands = start(self, fleet)  # type: ignore[arg-type]
        if state.k < self.workers:
            state.k += 1
        return state, commands

    patch.setattr(KFamily, "start", greedy)


def stale_weights(patch: Patch) -> None:
    """A gradient counts fully, however far the model has moved."""
    patch.setattr("anyk.strategies.kfamily.kfamily.min", max, raising=False)


family_raises = raising((KFamily, "on"), (Rounds, "_step"))
averaging_raises = raising((Rounds, "_step"))
sequential_raises = raising((SequentialRounds, "_end"))


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        ("adacomm-tau", averaging_raises),
        ("adacomm-further", averaging_raises),
        ("agc-vr", scaled_decoder),
        ("algorithmic-decoding", scaled_decoder),
        ("bibd-adversarial", wrong_residual),
        ("coop-bound", no_elastic_force),
        ("coop-bound", no_elastic_matrix),
        ("coop-bound", no_mixing),
        ("coop-easgd", no_elastic_force),
        ("coop-easgd", no_elastic_matrix),
        ("designs-variants", scaled_decoder),
        ("erasurehead-amazon", scaled_decoder),
        ("erasurehead-bound", scaled_decoder),
        ("erasurehead-kc", scaled_decoder),
        ("erasurehead-nodelay", scaled_decoder),
        ("erasurehead-theory", raising((Rounds, "_step"))),
        ("hetero-codes", scaled_decoder),
        ("kfamily-bestk", scaled_decoder),
        ("kfamily-bestk", family_raises),
        ("kfamily-errorruntime", family_raises),
        ("kfamily-runtime", one_gradient_more),
        ("kfamily-runtime", family_raises),
        ("nested-latency", scaled_decoder),
        ("pasgd-runtime", averaging_raises),
        ("random-codes", scaled_decoder),
        ("sbc-detection", scaled_decoder),
        ("sgc-clock", sequential_raises),
        ("sgc-converse", sequential_raises),
        ("sgc-params", sequential_raises),
        ("sgc-table", sequential_raises),
        ("stale-lr", stale_weights),
        ("talk-stragglers", scaled_decoder),
        ("tandon-12", scaled_decoder),
        ("tandon-12", wrong_residual),
        ("tandon-bound", scaled_decoder),
    ],
)
def test_a_broken_anyk_changes_a_verdict(
    name: str, broken: Callable[[Patch], None], monkeypatch: Patch, request: pytest.FixtureRequest
) -> None:
    data = None
    if name.startswith("sgc") or name in (
        "erasurehead-amazon",
        "talk-stragglers",
        "erasurehead-kc",
        "erasurehead-nodelay",
    ):
        data = request.getfixturevalue("data_folder")
    with monkeypatch.context() as patch:
        broken(patch)
        try:
            changed = words.__wrapped__(name, data)
        except (RunFailed, BrokenError, ZeroDivisionError) as error:
            assert not isinstance(error, RunFailed) or "add up to a residual of" in str(error)
            return
    assert changed != words(name, data)


# ----------------------------------------------------------------------------------- one claim and one wrong function


def no_adapting(patch: Patch) -> None:
    """AdaComm keeps the number of local steps with which it begins."""
    patch.setattr(adapting, "adapted_tau", lambda first_tau, first_loss, loss, tau, **options: tau)


def halved_bound(patch: Patch) -> None:
    bound = StragglerModel.load_bound
    patch.setattr(StragglerModel, "load_bound", lambda self, workers: 0.5 * (bound(self, workers) or 0.0))


def blind_adversary(patch: Patch) -> None:
    """Who sees overlaps chooses at random."""
    patch.setattr(
        adversaries,
        "_community",
        lambda code, size: np.sort(np.random.default_rng(size).permutation(code.workers)[:size]),
    )


def neighbours_in_place_of_allocation(patch: Patch) -> None:
    """Partition j lies on workers j, j + 1 and j + 2, whatever their chances."""

    def allocation(code: HeterogeneousCode) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(sorted((j + i) % code.workers for i in range(3))) for j in range(code.partitions))

    patch.setattr(HeterogeneousCode, "allocation", property(allocation))


def scaled_weights(patch: Patch) -> None:
    """The heterogeneous code's weights are 0.9 of the right ones."""
    matrix = HeterogeneousCode._matrix
    patch.setattr(HeterogeneousCode, "_matrix", lambda code: 0.9 * matrix(code))


def waiting_for_all(patch: Patch) -> None:
    """Rounds wait for all replies, unless they decode, whatever their rule."""
    patch.setattr(Rounds, "_count_of", lambda self, expected: expected)


def unlike_workers(lab: Lab) -> Table:
    return lab.measure(adacomm_tau.measure_unlike, cases(workers=["unlike"], tau=[1, 5, 20, 50, "adacomm"]))


def attacks(lab: Lab) -> Table:
    return lab.measure(random_codes.attacked, cases(code=["FRC", "SBC"], knows=["code", "overlaps", "nothing"]))


def unequal_chances(lab: Lab) -> Table:
    return hetero_codes.table(lab)


def growing_fleets(lab: Lab) -> Table:
    return lab.measure(erasurehead_theory.speed_up, cases(workers=[12, 36, 108]))


@cache
def measured(name: str, table: Callable[[Lab], Table], broken: Callable[[Patch], None] | None) -> Table:
    """The table of an item; the claims about one wrong function share it."""
    with pytest.MonkeyPatch.context() as patch:
        if broken is not None:
            broken(patch)
        return table(SmallLab(name, 1, True))


@pytest.mark.parametrize(
    ("name", "claim", "table", "broken"),
    [
        ("adacomm-tau", "ends below 1.5 times the lowest floor", unlike_workers, no_adapting),
        ("sgc-converse", "the work of a round over the workers", converse.table, halved_bound),
        ("sgc-converse", "the gap to the bound vanishes", converse.table, halved_bound),
        ("random-codes", "an adversary that must find communities", attacks, blind_adversary),
        ("hetero-codes", "least error of unbiased fixed weights", unequal_chances, neighbours_in_place_of_allocation),
        ("hetero-codes", "least error of unbiased fixed weights", unequal_chances, scaled_weights),
        ("hetero-codes", "the sum is unbiased", unequal_chances, scaled_weights),
        ("erasurehead-theory", "by a factor that grows as log n", growing_fleets, waiting_for_all),
    ],
)
def test_a_claim_is_false_for_the_function_it_is_about_if_wrong(
    name: str, claim: str, table: Callable[[Lab], Table], broken: Callable[[Patch], None]
) -> None:
    [judged] = [one for one in items()[name].claims if claim in one.text]
    assert judged.judge(measured(name, table, None)).word == "holds"
    assert judged.judge(measured(name, table, broken)).word == "does not hold"
