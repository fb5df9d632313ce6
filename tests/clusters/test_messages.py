"""What messages are made of, on both sides of a cluster."""

import os
import pickle
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anyk
from anyk.base.errors import RunFailed
from anyk.clusters.messages import Messages, inspect_message
from anyk.problems import LeastSquares
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
    digest = inspect_message(message)
    others = [-message, message[::-1].copy(), np.roll(message, 1), np.roll(message, 512)]
    for position in (0, size // 2, size - 1):
        others.append(message.copy())
        others[-1][position] *= -1.0
    assert digest == inspect_message(message.copy()) and digest[0] is None
    assert digest not in [inspect_message(one) for one in others if not np.array_equal(one, message)]
    for position, value, value_name in ((0, np.nan, "NaN"), (size - 1, np.inf, "Inf"), (size // 2, -np.inf, "Inf")):
        wrong = message.copy()
        wrong[position] = value
        assert inspect_message(wrong)[0] == f"not finite ({value_name})"
    assert inspect_message(np.full(size, np.finfo(dtype).max))[0] is None  # though its sums are not finite


LOADING_FORKS = """
import os
import sys
import anyk
from anyk.testing import Squares


class Partitions:
    def __init__(self, squares):
        self.squares, self.sizes = squares, squares.sizes
        self.dimension, self.dtype = squares.dimension, squares.dtype

    def load(self, partitions):
        if 1 in partitions:
            os.fork()

    def support(self, partitions):
        return None

    def partial_gradient(self, partition, w):
        return self.squares.partial_gradient(partition, w)


class Forking(Squares):
    def split(self, partitions, shares=None):
        return Partitions(super().split(partitions, shares))


if __name__ == "__main__":
    run = anyk.train(Forking(4), "uncoded", anyk.cluster(sys.argv[1], workers=4), optimizer="gd:lr=0.3", steps=8)
    print(run.steps, run.loss == anyk.train(Squares(4), "uncoded", workers=4, optimizer="gd:lr=0.3", steps=8).loss)
"""


@pytest.mark.slow
@pytest.mark.parametrize("cluster", ["simulated", "processes"])
def test_a_child_that_loading_leaves_is_no_second_worker(cluster: str, tmp_path: Path) -> None:
    """It ends with its first gradient, so that nothing is computed, sent or printed twice."""
    script = tmp_path / "script.py"
    script.write_text(LOADING_FORKS)
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(script), cluster]
    done = subprocess.run(command, check=True, timeout=250, env=environment, capture_output=True, text=True)
    assert done.stdout.split() == ["8", "True"]


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


@pytest.mark.slow
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
        assert all(len(mini_batch) != 1 for mini_batch in parts)
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
    notes = [note for (note,) in run.log.rows("SELECT text FROM notes WHERE kind = 'set aside'")]
    assert notes and all("wrong type: partition 1 gave a gradient of complex128" in note for note in notes)
    assert run.ledger["unusable"] == len(notes)
    run.close()


@pytest.mark.parametrize("spec", ["async", "sync", "pasgd:tau=2"])
@pytest.mark.parametrize(("kind", "name"), [("c16", "complex128"), ("i8", "int64"), ("O", "object")])
def test_a_run_whose_gradients_are_all_of_a_wrong_type_ends(
    spec: str, kind: str, name: str, problem: LeastSquares
) -> None:
    with pytest.raises(RunFailed, match=f"^step 0: most replies cannot be used; worker .: wrong type: .* of {name}; "):
        anyk.train(Odd(problem, range(6), kind), spec, anyk.clusters.Simulated(6), steps=2)


def test_wrong_types_are_named_on_processes_too(problem: LeastSquares) -> None:
    with pytest.raises(RunFailed, match="wrong type: partition 1 gave a gradient of complex128; it must be of real"):
        anyk.train(Odd(problem, (1,), "c16"), "sync", anyk.clusters.Processes(3), steps=2)
