"""Settings of a cluster stay as it was made with: delays, for one, are drawn from what it was given."""

from __future__ import annotations

from typing import Any

import pytest

import anyk
from anyk.base.errors import BadInput


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("workers", 5),
        ("seed", 1),
        ("byzantine", (0,)),
        ("spoiled", "folder"),
        ("delays", anyk.delays.Exponential(9.0)),
        ("communication", anyk.delays.Exponential(9.0)),
    ],
)
@pytest.mark.parametrize("kind", [anyk.clusters.Simulated, anyk.clusters.Processes])
def test_settings_cannot_be_assigned_afterwards(kind: Any, name: str, value: Any) -> None:
    cluster = kind(4, delays="exp:mean=1")
    before = getattr(cluster, name)
    with pytest.raises(BadInput, match=f"^{name} of a {kind.__name__} cannot be changed; make a new one with another"):
        setattr(cluster, name, value)
    assert getattr(cluster, name) is before


def test_a_cluster_of_somebodys_own_sets_what_it_adds() -> None:
    class Slower(anyk.clusters.Simulated):
        def __init__(self, workers: int, factor: float) -> None:
            super().__init__(workers, delays=f"constant:{factor}")
            self.factor = factor

    cluster = Slower(3, factor=2.0)
    cluster.factor = 3.0
    assert (cluster.workers, cluster.delays.spec) == (3, "constant:value=2")
