"""Verdicts are about anyk: breaking a code or a strategy changes those of the items that are about it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from anyk.codes import decoders, repetition
from anyk.codes.base import Code
from anyk.codes.decoders import Decoding, Selection
from anyk.errors import RunFailed
from anyk.papers import Lab, items
from anyk.papers.items import coop_bound, coop_easgd
from anyk.strategies.averaging import gossip
from anyk.strategies.kfamily.kfamily import KFamily
from anyk.strategies.rounds.coded_rounds import Rounds
from anyk.strategies.sequential.sequential_rounds import SequentialRounds

pytestmark = [pytest.mark.in_process, pytest.mark.slow]

Patch = pytest.MonkeyPatch


class BrokenError(Exception):
    """Raised by a strategy that was broken on purpose."""


class SmallLab(Lab):
    """A lab for a look that is smaller still, where an item has thousands of anything."""

    def size(self, full: int, quick: int) -> int:
        return quick // 10 if quick >= 2_000 else quick


@cache
def words(name: str, data: Path | None) -> list[str]:
    item = items()[name]
    return [verdict.word for verdict in item.verdicts(item.table(SmallLab(name, 1, True, data_folder=data)))]


def scaled_decoder(patch: Patch) -> None:
    """Every decoder's output times 0.3, with the residual of the right one where it is stated by the decoder."""
    for method in (decoders.Own, decoders.LeastSquares, decoders.OneStep, decoders.Algorithmic):
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
