"""Messages contain the coordinates that their partitions touch, and no others."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anyk.clusters.supports import Supports

DIMENSION = 40
touched = st.lists(st.sets(st.integers(0, DIMENSION - 1)), min_size=2, max_size=5)


def supports(sets: list[set[int] | None], dimension: int = DIMENSION) -> Supports:
    """Return the supports of partitions that touch these coordinates; None: all."""
    arrays = [None if coordinates is None else np.array(sorted(coordinates), dtype=np.intp) for coordinates in sets]
    return Supports(SimpleNamespace(dimension=dimension, support=arrays.__getitem__))


@pytest.mark.parametrize("dimension", [DIMENSION, 100_000])  # with an array of marks, and by sorting
@settings(max_examples=60, deadline=None)
@given(sets=touched)
def test_a_message_has_the_union_of_its_partitions(dimension: int, sets: list[set[int]]) -> None:
    ids = tuple(range(len(sets)))
    messages = supports(list(sets), dimension)
    union = messages.support(ids)
    assert union.tolist() == sorted(set().union(*sets))
    for j in ids:
        positions = messages.positions(ids, (j,))
        chosen = union if positions is None else union[positions]
        assert chosen.tolist() == sorted(sets[j])


def test_a_partition_that_touches_all_makes_all_of_a_message() -> None:
    messages = supports([{1, 2}, None])
    assert messages.support((0, 1)) is None and messages.positions((0, 1), (1,)) is None
    assert messages.positions((0, 1), (0,)).tolist() == [1, 2]
