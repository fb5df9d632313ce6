"""Gradients that are not of real floating-point numbers are set aside and named, under every strategy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import anyk
from anyk.errors import RunFailed
from anyk.problems import LeastSquares

SPECS = [
    *("async", "k-async:k=2", "k-batch-sync:k=2", "uncoded:wait=3", "sync", "frc:load=2", "cyclic:stragglers=1"),
    *("comm-efficient", "nested", "tree:children=2", "gc:stragglers=1", "m-sgc:B=1,W=2,lambda=1", "partial"),
    *("pasgd:tau=2", "fedbuff:tau=2,k=2", "dpsgd", "ad-psgd", "easgd", "compressed:of=sync,by=half"),
]
GOES_ON = (
    "async",
    "k-async:k=2",
    "k-batch-sync:k=2",
    "uncoded:wait=3",
    "fedbuff:tau=2,k=2",
    "dpsgd",
    "ad-psgd",
    "easgd",
)


class Odd:
    """A problem some of whose gradients are of another type."""

    def __init__(self, inner: Any, odd: Sequence[int], kind: str) -> None:
        self.inner, self.odd, self.kind = inner, odd, kind

    def __getattr__(self, name: str) -> Any:
        if name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)

    def recipe(self) -> None:
        return None

    def split(self, partitions: int, shares: Sequence[int] | None = None) -> Any:
        return Odd(self.inner.split(partitions, shares), self.odd, self.kind)

    def partial_gradient(self, partition: int, w: Any, rows: Any = None, /) -> Any:
        gradient = self.inner.partial_gradient(partition, w, rows)
        return gradient.astype(self.kind) if partition in self.odd else gradient


@pytest.fixture
def problem() -> LeastSquares:
    random = np.random.default_rng(0)
    X = random.standard_normal((60, 4))
    return LeastSquares(X, X @ np.ones(4))


@pytest.mark.parametrize("spec", SPECS)
def test_a_complex_gradient_is_never_taken_for_a_real_one(spec: str, problem: LeastSquares) -> None:
    cluster = anyk.clusters.Simulated(6, delays=anyk.delays.Exponential(mean=1.0), seed=1)
    try:
        run = anyk.train(Odd(problem, (1,), "c16"), spec, cluster, steps=4)
    except RunFailed as error:
        assert spec not in GOES_ON
        assert str(error).endswith(
            "wrong type: partition 1 gave a gradient of complex128; it must be of real floating-point numbers"
        )
        return
    assert spec in GOES_ON
    notes = [text for (text,) in run.log.rows("SELECT text FROM notes WHERE kind = 'set aside'")]
    assert notes and all("wrong type: partition 1 gave a gradient of complex128" in text for text in notes)
    assert run.ledger["unusable"] == len(notes)
    run.close()


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["async", "sync", "pasgd:tau=2"])
@pytest.mark.parametrize(("kind", "name"), [("c16", "complex128"), ("i8", "int64"), ("O", "object")])
def test_a_run_whose_gradients_are_all_of_a_wrong_type_ends(
    spec: str, kind: str, name: str, problem: LeastSquares
) -> None:
    with pytest.raises(RunFailed, match=f"^step 0: most replies cannot be used; worker .: wrong type: .* of {name}; "):
        anyk.train(Odd(problem, range(6), kind), spec, anyk.clusters.Simulated(6), steps=2)


def test_it_is_the_same_on_processes(problem: LeastSquares) -> None:
    with pytest.raises(RunFailed, match="wrong type: partition 1 gave a gradient of complex128; it must be of real"):
        anyk.train(Odd(problem, (1,), "c16"), "sync", anyk.clusters.Processes(3), steps=2)
