"""What messages are made of, on both sides of a cluster."""

import pickle

import numpy as np
import pytest

import anyk
from anyk import keyed
from anyk.clusters.messages import Messages, inspect_message
from anyk.protocol import Chunk
from anyk.testing import Squares


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_messages_of_sent_partitions_have_numpys_own_type(dtype: str) -> None:
    """An unpickled type is equal but another object, with which NumPy's ``add.at`` takes 10 times as long."""
    travelled = pickle.loads(pickle.dumps(Squares(3, dtype=dtype).split(3)))
    assert travelled.dtype is not np.dtype(dtype)
    assert Messages(travelled).dtype is np.dtype(dtype)


@pytest.mark.parametrize("size", [3, 5000, 300_001])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_digests_notice_signs_order_and_infinite_values(size: int, dtype: str) -> None:
    message = np.random.default_rng(size).standard_normal(size).astype(dtype)
    whole = inspect_message(message)
    others = [-message, message[::-1].copy(), np.roll(message, 1), np.roll(message, 512)]
    for place in (0, size // 2, size - 1):
        others.append(message.copy())
        others[-1][place] *= -1.0
    assert whole == inspect_message(message.copy()) and whole[0] is None
    assert whole not in [inspect_message(one) for one in others if not np.array_equal(one, message)]
    for place, value, why in ((0, np.nan, "NaN"), (size - 1, np.inf, "Inf"), (size // 2, -np.inf, "Inf")):
        wrong = message.copy()
        wrong[place] = value
        assert inspect_message(wrong)[0] == f"not finite ({why})"
    assert inspect_message(np.full(size, np.finfo(dtype).max))[0] is None  # though its sums are not finite


@pytest.mark.parametrize("batch", [1, 2, 3])
def test_each_sample_counts_alike_in_an_epoch(batch: int) -> None:
    """Partitions have 3 or 4 rows, and parts of them 0 to 3; an epoch's mean gradient is that of all samples."""
    problem = anyk.problems.from_data("synthetic:rows=203,features=3")
    partitions = problem.split(50)
    messages, w = Messages(partitions, epochs=True), problem.initial() + 0.1
    chunk = Chunk((0,), (1.0,), batch=batch)
    steps = -(-max(partitions.sizes) // batch)
    for j in (0, 49):
        total = sum(messages.partial_gradient(j, w, chunk, version) for version in range(steps))
        np.testing.assert_allclose(total / steps, messages.partial_gradient(j, w), rtol=1e-12, atol=1e-12)


def test_an_epoch_is_drawn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A permutation of a large partition takes longer than a small gradient; versions may come in any order."""
    partitions = anyk.problems.from_data("synthetic:rows=203,features=3").split(2)
    chunk = Chunk((0,), (1.0,), batch=7)
    drawn = []
    generator = keyed.generator
    monkeypatch.setattr(keyed, "generator", lambda *key: drawn.append(key[1:]) or generator(*key))
    messages = Messages(partitions, epochs=True)
    steps = -(-max(partitions.sizes) // 7)
    rows = {version: messages.rows(0, chunk, version) for version in range(3 * steps)}
    assert drawn == [("epoch", epoch, 0) for epoch in range(3)]
    for version in (2 * steps, steps - 1, 3 * steps - 1, 0):
        np.testing.assert_array_equal(messages.rows(0, chunk, version), rows[version])
        np.testing.assert_array_equal(Messages(partitions, epochs=True).rows(0, chunk, version), rows[version])


@pytest.mark.parametrize("batch", [2, 3, 4])
def test_with_batch_norm_no_part_of_an_epoch_has_one_row(batch: int) -> None:
    """Partitions have 4 or 5 rows, which would be cut into parts of 1 and 2; still each row is used once an epoch."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    module = torch.nn.Sequential(
        torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1), torch.nn.Flatten(0)
    )
    problem = anyk.problems.TorchProblem(module, torch.nn.MSELoss(), (torch.randn(65, 6), torch.randn(65)))
    partitions = problem.split(16)
    assert set(partitions.sizes) == {4, 5}
    messages, chunk, steps = Messages(partitions, epochs=True), Chunk((0,), (1.0,), batch=batch), -(-5 // batch)
    for j, size in enumerate(partitions.sizes):
        parts = [messages.rows(j, chunk, version) for version in range(steps)]
        assert all(len(part) != 1 for part in parts)
        assert sorted(np.concatenate(parts)) == list(range(size))
    run = anyk.train(
        problem,
        f"uncoded:batch={batch},order=epoch",
        "simulated",
        workers=(2, 4),
        steps=2 * steps,
        optimizer=anyk.optimizers.GD(lr=0.1),
    )
    assert run.steps == 2 * steps
