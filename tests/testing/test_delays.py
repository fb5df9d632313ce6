"""The suite that defines what a delay law is: what it accepts, and each thing it must find."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

import anyk
from anyk.delays import DelayModel, registry
from anyk.testing import check_delays

pytestmark = pytest.mark.in_process


@dataclass(frozen=True)
class Triangular(DelayModel):
    """P(delay <= t) = t^2, with one thing wrong."""

    wrong: str = ""
    name: ClassVar[str] = "triangular"

    @property
    def spec(self):
        return "triangular" if self.wrong == "spec" else super().spec

    def seconds(self, uniforms, worker):
        draws = np.sqrt(uniforms)
        return {
            "negative": draws - 0.5, "nan": draws * np.nan, "inf": draws + np.inf, "shape": draws[:1],
            "block": draws + len(draws), "nothing": None, "text": np.full(len(draws), "1"), "complex": draws + 1j,
            "objects": draws.astype(object),
        }.get(self.wrong, draws)  # fmt: skip

    def cdf(self, seconds, worker):
        return np.clip(seconds, 0.0, 1.0) ** (3 if self.wrong == "cdf" else 2)

    def expected(self, worker=0):
        return 0.7 if self.wrong == "mean" else 2 / 3

    def order_statistic(self, k, workers):
        return 0.9 if self.wrong == "order" else super().order_statistic(k, workers)


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setattr(registry, "entries", dict(registry.entries))
    registry.register("triangular")(Triangular)


FOUND = {
    "spec": "gives another law", "block": "by themselves", "cdf": "cdf of worker 0", "mean": "mean of worker 0",
    "order": "order_statistic",
}  # fmt: skip


@pytest.mark.parametrize("wrong", FOUND)
def test_each_thing_that_is_wrong_is_found(wrong):
    with pytest.raises(AssertionError, match=FOUND[wrong]):
        check_delays(Triangular(wrong))


@pytest.mark.parametrize(
    ("wrong", "by"),
    [
        ("negative", "task"),
        ("nan", "task"),
        ("inf", "task"),
        ("shape", "task"),
        ("nan", "item"),
        ("inf", "item"),
        ("nothing", "task"),
        ("text", "round"),
        ("complex", "task"),
        ("objects", "item"),
    ],
)
def test_what_is_no_delay_is_refused_when_it_is_drawn(wrong, by):
    law = Triangular(wrong, by=by)
    with pytest.raises(anyk.BadInput, match="seconds of 'triangular' must be finite numbers of at least 0, shape"):
        anyk.train(
            anyk.problems.from_data("synthetic:rows=60,features=3"), "uncoded", "simulated", workers=3, delays=law, steps=2
        )  # fmt: skip


LAWS = ["none", "constant:0.3", "exp:mean=0.5", "pareto:minimum=0.1,alpha=0.9", "bimodal:fast=0.1,slow=1",
        "hetero:means=0.1/0.5/2", "scipy:gamma,args=2,scale=0.25", "triangular"]  # fmt: skip


@pytest.mark.parametrize("spec", LAWS)
def test_what_is_right_passes(spec):
    check_delays(anyk.delays.parse(spec))
