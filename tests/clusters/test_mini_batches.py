"""Mini-batches take the rows that their keys say, whatever was drawn before."""

import numpy as np
import pytest

import anyk
from anyk.base.keyed import keyed_generator
from anyk.clusters.mini_batches import MiniBatches
from anyk.protocol import Chunk
from anyk.testing import Squares


def test_an_epoch_is_drawn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A permutation of a large partition takes longer than a small gradient; versions may come in any order."""
    partitions = anyk.problems.from_data("synthetic:rows=203,features=3").split(2)
    chunk = Chunk((0,), (1.0,), batch=7)
    drawn = []
    generator = keyed_generator
    monkeypatch.setattr(
        "anyk.clusters.mini_batches.keyed_generator", lambda *key: drawn.append(key[1:]) or generator(*key)
    )
    messages = MiniBatches(partitions, 0, epochs=True, first=0)
    steps = -(-max(partitions.sizes) // 7)
    rows = {version: messages.rows(0, chunk, version) for version in range(3 * steps)}
    assert drawn == [("epoch", epoch, 0) for epoch in range(3)]
    for version in (2 * steps, steps - 1, 3 * steps - 1, 0):
        np.testing.assert_array_equal(messages.rows(0, chunk, version), rows[version])
        np.testing.assert_array_equal(
            MiniBatches(partitions, 0, epochs=True, first=0).rows(0, chunk, version), rows[version]
        )


def test_an_epoch_takes_every_row_once() -> None:
    partitions = anyk.problems.from_data("synthetic:rows=203,features=3").split(2)
    batches, chunk = MiniBatches(partitions, 4, epochs=True, first=0), Chunk((0,), (1.0,), batch=7)
    for j, size in enumerate(partitions.sizes):
        steps = -(-max(partitions.sizes) // 7)
        taken = [batches.rows(j, chunk, version) for version in range(steps, 2 * steps)]
        assert sorted(np.concatenate(taken)) == list(range(size))
        assert max(map(len, taken)) - min(map(len, taken)) <= 1


def test_rows_depend_on_the_number_of_the_first_partition() -> None:
    """A partition that is computed as a piece of its own draws the rows that it draws among all."""
    partitions, chunk = anyk.problems.from_data("synthetic:rows=204,features=3").split(4), Chunk((0,), (1.0,), batch=9)
    drawn = {first: MiniBatches(partitions, 4, epochs=False, first=first).rows(0, chunk, 3) for first in (0, 2)}
    among_all = MiniBatches(partitions, 4, epochs=False, first=0).rows(2, chunk, 3)
    assert drawn[2].tolist() == among_all.tolist() != drawn[0].tolist()


def test_a_batch_of_all_rows_or_more_takes_all() -> None:
    batches = MiniBatches(Squares(3).split(3), 0, epochs=False, first=0)
    assert batches.rows(0, Chunk((0,), (1.0,), batch=1), 5) is None
