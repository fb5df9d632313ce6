"""What a user's own code must keep to: what it is handed cannot be written, and what it gives is checked by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import anyk
from anyk.base.errors import BadInput, RunFailed
from anyk.clusters import Simulated
from anyk.compression import Compressor
from anyk.optimizers import GD
from anyk.problems.base import cut
from own_problem import Rows, Squares, X, Y


def train(problem: Any, strategy: Any = "uncoded", optimizer: Any = "gd:lr=0.05", **settings: Any) -> Any:
    return anyk.train(problem, strategy, Simulated(4), steps=6, optimizer=optimizer, **settings)


READ_ONLY = "read-only"


@pytest.mark.parametrize("strategy", ["uncoded", "pasgd:tau=2", "easgd", "dpsgd:graph=ring", "fedbuff:k=2"])
def test_a_gradient_cannot_write_to_the_model(strategy: str) -> None:
    class Writing(Rows):
        def partial_gradient(self, partition: int, w: Any, rows: Any = None, /) -> Any:
            gradient = super().partial_gradient(partition, w, rows)
            w *= 1.01
            return gradient

    problem = Squares()
    problem.kind = Writing
    with pytest.raises(RunFailed, match=READ_ONLY):
        train(problem, strategy)


@pytest.mark.parametrize("method", ["loss", "metrics"])
@pytest.mark.parametrize("cluster", [anyk.clusters.Simulated, anyk.clusters.Processes])
def test_an_evaluation_cannot_write_to_the_model(method: str, cluster: Any) -> None:
    class Writing(Squares):
        pass

    def wrong(self: Any, w: Any) -> Any:
        result = getattr(Squares, method)(self, w)
        w *= 0.0
        return result

    setattr(Writing, method, wrong)
    with pytest.raises(RunFailed, match=READ_ONLY):
        anyk.train(Writing(), "uncoded", cluster(2), steps=3, optimizer="gd:lr=0.05")


class InPlace(GD):
    def step(self, w: Any, gradient: Any, state: Any, t: int, scale: float = 1.0, out: Any = None) -> Any:
        w -= self.lr * gradient
        return w


BUFFER = np.zeros(4)


class Reusing(GD):
    def step(self, w: Any, gradient: Any, state: Any, t: int, scale: float = 1.0, out: Any = None) -> Any:
        BUFFER[:] = w - self.lr * gradient
        return BUFFER


class Aliasing(GD):
    def start(self, w: Any) -> Any:
        return {"position": w}

    def step(self, w: Any, gradient: Any, state: Any, t: int, scale: float = 1.0, out: Any = None) -> Any:
        state["position"] -= self.lr * gradient
        return state["position"].copy()


def test_an_optimizer_cannot_write_to_the_model() -> None:
    with pytest.raises((RunFailed, ValueError), match=READ_ONLY):
        train(Squares(), "async", InPlace(lr=0.05))


@pytest.mark.parametrize("kind", [Reusing, Aliasing])
@pytest.mark.parametrize("strategy", ["uncoded", "k-async:k=2", "async"])
def test_what_an_optimizer_returns_and_keeps_is_copied(kind: Any, strategy: str) -> None:
    plain = train(Squares(), strategy, GD(lr=0.05))
    other = train(Squares(), strategy, kind(lr=0.05))
    np.testing.assert_allclose(other.model, plain.model, rtol=1e-12)
    assert other.history["loss"].tolist() == pytest.approx(plain.history["loss"].tolist())


@pytest.mark.parametrize(
    "returned", [np.ones(3), np.ones((4, 1)), np.ones(4, complex), None, np.ma.masked_less(np.arange(4.0), 2)]
)
def test_an_optimizer_must_return_a_model(returned: Any) -> None:
    class Wrong(GD):
        def step(self, w: Any, gradient: Any, state: Any, t: int, scale: float = 1.0, out: Any = None) -> Any:
            return returned

    with pytest.raises(RunFailed, match="must return a model of 4 real numbers, got"):
        train(Squares(), "uncoded", Wrong(lr=0.05))


@pytest.mark.parametrize("ends", [[0, 15, 30, 45], [0, 10, 20, 30, 40, 60], [0, 15, 30, 45, 50], [0, 15, 15, 30, 60]])
@pytest.mark.parametrize("strategy", ["uncoded", "frc:load=2", "pasgd:tau=2"])
def test_partitions_have_all_samples(ends: Any, strategy: str) -> None:
    class Other(Squares):
        def split(self, partitions: int, shares: Any = None) -> Any:
            return Rows(ends)

    with pytest.raises(BadInput, match=r"split\(4\) of the problem must give 4 partitions .* 60 samples in all; its"):
        train(Other(), strategy)


def test_partitions_must_have_what_workers_call() -> None:
    class Other(Squares):
        def split(self, partitions: int, shares: Any = None) -> Any:
            return None

    with pytest.raises(BadInput, match=r"split\(4\) of the problem gave a NoneType, which has no sizes"):
        train(Other())


@pytest.mark.parametrize(
    "support", [np.array([1, 0]), np.array([0, 0, 1]), np.array([-1, 2]), [3, 4], np.array([0.5]), np.eye(2)]
)
@pytest.mark.parametrize("strategy", ["uncoded", "frc:load=2", "pasgd:tau=2"])
def test_a_support_is_sorted_coordinates(support: Any, strategy: str) -> None:
    class Sparse(Rows):
        def support(self, partition: int) -> Any:
            return support

    problem = Squares()
    problem.kind = Sparse
    with pytest.raises(
        (BadInput, RunFailed), match=r"support\(\d\) must be coordinates from 0 to 3 in ascending order, each once"
    ):
        train(problem, strategy)


def test_an_attribute_called_penalty_on_partitions_means_nothing() -> None:
    class Named(Rows):
        penalty = 7.0

    problem = Squares()
    problem.kind = Named
    assert np.array_equal(train(problem, "pasgd:tau=2").model, train(Squares(), "pasgd:tau=2").model)


@pytest.mark.parametrize(
    "rows", [np.ones(2, bool), np.array([3, 1]), np.array([0, 99]), np.array([0.0, 1.0]), np.arange(3)]
)
def test_drawn_rows_are_a_mini_batch(rows: Any) -> None:
    class Drawing(Rows):
        def draw_rows(self, partition: int, count: int, random: Any) -> Any:
            return rows

    problem = Squares()
    problem.kind = Drawing
    with pytest.raises(RunFailed, match=r"draw_rows\(\d, 2, …\) must give 2 rows from 0 to 14 in ascending order"):
        train(problem, "uncoded:batch=2")


def test_masked_gradients_and_models_are_refused() -> None:
    class Masked(Rows):
        def partial_gradient(self, partition: int, w: Any, rows: Any = None, /) -> Any:
            return np.ma.masked_less(super().partial_gradient(partition, w, rows), 0.0)

    problem = Squares()
    problem.kind = Masked
    with pytest.raises(RunFailed, match="gave a masked gradient"):
        train(problem)


@pytest.mark.parametrize("model", [np.ma.masked_less(np.arange(4.0), 2), np.ones(4, complex), ["a"] * 4])
def test_the_model_of_a_loop_is_real_numbers(model: Any) -> None:
    with pytest.raises(BadInput, match="step.model must stay a vector of real numbers, got"):
        for step in anyk.rounds(Squares(), "uncoded", Simulated(2), steps=3):
            step.model = model


class Halving(Compressor):
    name = "halving"

    def __init__(self, wrong: Any) -> None:
        self.wrong = wrong

    feedback = False

    def pack(self, vector: Any, key: Any) -> Any:
        return vector.copy()

    def size(self, length: int, dtype: Any) -> int:
        return 8 * length

    def unpack(self, payload: Any, length: int, dtype: Any, key: Any) -> Any:
        return self.wrong


@pytest.mark.parametrize("wrong", [np.ones(1), np.ones(5), None, np.ones(4, int)])
def test_a_compressor_gives_back_all_numbers(wrong: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anyk.clusters.packing.scheme", lambda spec: Halving(wrong))
    with pytest.raises((BadInput, RunFailed), match="Halving must unpack 4 numbers, got"):
        train(Squares(), "compressed:of=uncoded,by=(top-k:share=0.5)")


def test_a_cluster_is_in_one_run_at_a_time() -> None:
    cluster = Simulated(2)

    class Nested(anyk.callbacks.Callback):
        def on_step(self, info: Any) -> None:
            anyk.train(Squares(), "uncoded", cluster, steps=2, optimizer="gd:lr=0.05")

    with pytest.raises((BadInput, RunFailed), match="the cluster is in use by another run"):
        anyk.train(Squares(), "uncoded", cluster, steps=3, optimizer="gd:lr=0.05", callbacks=[Nested()])
    anyk.train(Squares(), "uncoded", cluster, steps=3, optimizer="gd:lr=0.05")


@pytest.mark.parametrize("strategy", ["uncoded", "frc:load=2"])
def test_half_precision_is_summed_on_several_workers(strategy: str) -> None:
    class Half(Squares):
        dtype = np.dtype("f2")

        def split(self, partitions: int, shares: Any = None) -> Any:
            made = super().split(partitions, shares)
            made.dtype = self.dtype
            return made

    assert train(Half(), strategy).model == pytest.approx(train(Squares(), strategy).model, rel=0.02, abs=0.02)


@pytest.mark.parametrize("initial", [np.ones(3), np.ones((4, 1)), None, np.ones(4, complex), ["a"] * 4])
def test_the_initial_model_is_real_numbers(initial: Any) -> None:
    class Other(Squares):
        def initial(self) -> Any:
            return initial

    with pytest.raises(BadInput, match=r"initial\(\) of the problem must give 4 real numbers, got"):
        train(Other())
    with pytest.raises(BadInput, match=r"initial\(\) of the problem must give 4 real numbers, got"):
        list(anyk.rounds(Other(), "uncoded", Simulated(2), steps=3))


@pytest.mark.parametrize("value", [np.ones(4), "1.0", None, 1j])
@pytest.mark.parametrize("method", ["loss", "metrics"])
def test_a_loss_and_metrics_are_numbers(method: str, value: Any) -> None:
    class Other(Squares):
        def metrics(self, w: Any) -> dict[str, float]:
            return {"mse": 0.0}

    setattr(Other, method, lambda self, w: value if method == "loss" else {"mse": value})
    what = r"loss\(w\)" if method == "loss" else r"'mse' in metrics\(w\)"
    with pytest.raises((BadInput, RunFailed), match=f"{what} of the problem must give a number, got"):
        train(Other())


@pytest.mark.parametrize("value", [None, [1.0]])
def test_metrics_are_numbers_by_name(value: Any) -> None:
    class Other(Squares):
        def metrics(self, w: Any) -> Any:
            return value

    with pytest.raises((BadInput, RunFailed), match=r"metrics\(w\) of the problem must give a dictionary of numbers"):
        train(Other())


def test_a_loss_of_a_library_is_a_number(tmp_path: Any) -> None:
    torch = pytest.importorskip("torch")

    class Other(Squares):
        def loss(self, w: Any) -> Any:
            return torch.tensor(Squares.loss(self, w), dtype=torch.float64)

        def metrics(self, w: Any) -> Any:
            return {"mse": np.float32(2 * Squares.loss(self, w))}

    run = train(Other(), out=tmp_path / "run")
    assert run.loss == pytest.approx(train(Squares()).loss)
    run.close()


class Slotted(Rows):
    """Its rows are in a slot, deep inside, and in a file."""

    __slots__ = ("deep", "mapped")

    def partial_gradient(self, partition: int, w: Any, rows: Any = None, /) -> Any:
        gradient = super().partial_gradient(partition, w, rows)
        self.write()
        return gradient

    def write(self) -> None:
        raise NotImplementedError


@pytest.mark.parametrize("where", ["slot", "file"])
def test_data_in_slots_and_files_are_protected_too(where: str, tmp_path: Any) -> None:
    np.save(tmp_path / "rows.npy", X)
    mapped = np.load(tmp_path / "rows.npy", mmap_mode="r+")

    class Writing(Slotted):
        def __init__(self, ends: Any) -> None:
            super().__init__(ends)
            if where == "slot":
                self.deep = {"a": [{"b": ({"c": [X.copy()]},)}]}
            else:
                self.mapped = mapped

        def write(self) -> None:
            if where == "slot":
                self.deep["a"][0]["b"][0]["c"][0][0] = 1.0
            else:
                self.mapped[0] = 1.0

    problem = Squares()
    problem.kind = Writing
    with pytest.raises(RunFailed, match="a gradient must not change its data"):
        train(problem)
    assert np.array_equal(np.load(tmp_path / "rows.npy"), X)


def test_numbers_in_another_order_of_bytes_are_refused() -> None:
    problem = Squares()
    problem.dtype = np.dtype(">f8")
    with pytest.raises(BadInput, match="bytes in another order than this machine's"):
        train(problem)


class Swapped(GD):
    """Its state is in another order of bytes than this machine's."""

    def start(self, w: Any) -> Any:
        return {"sum": np.zeros(4, ">f8")}

    def step(self, w: Any, gradient: Any, state: Any, t: int, scale: float = 1.0, out: Any = None) -> Any:
        state["sum"] = state["sum"] + gradient
        return w - self.lr * state["sum"]


def test_states_in_another_order_of_bytes_are_stored(tmp_path: Any) -> None:
    whole = anyk.train(Squares(), "uncoded", Simulated(4), steps=9, optimizer=Swapped(lr=0.01))
    train(Squares(), optimizer=Swapped(lr=0.01), out=tmp_path / "run").close()
    resumed = anyk.resume(tmp_path / "run", problem=Squares(), optimizer=Swapped(lr=0.01), steps=9)
    assert np.array_equal(resumed.model, whole.model)
    resumed.close()


# ------------------------------------------------------------------------------------------- runs that continue


class Huber(Squares):
    def __init__(self, width: float = 1.0, l2: float = 0.0, penalty: Any = None, start: float = 1.0) -> None:
        self.width, self.l2, self.penalty, self.start = width, l2, penalty, start

    def initial(self) -> Any:
        return np.full(4, self.start)

    def split(self, partitions: int, shares: Any = None) -> Any:
        problem = self

        class Clipped(Rows):
            def partial_gradient(self, partition: int, w: Any, rows: Any = None, /) -> Any:
                design, y = self.rows_of(partition, rows)
                return design.T @ np.clip(design @ w - y, -problem.width, problem.width)

        return Clipped(cut(60, partitions, shares).tolist())


OTHERS: list[tuple[Any, Any, str]] = [
    (lambda: Huber(1.0), lambda: Huber(0.1), "computes other gradients of the same data"),
    (lambda: Huber(1.0), lambda: Huber(1.0, penalty=np.arange(4.0)), "computes other gradients of the same data"),
    (lambda: Huber(1.0), lambda: Huber(1.0, l2=0.5), r"began with l2 0\.0, and the problem has 0\.5"),
    (
        lambda: anyk.problems.LeastSquares(X, Y, l2=0.01),
        lambda: anyk.problems.LeastSquares(X, Y, l2=0.5),
        r"began with l2 0\.01, and the problem has 0\.5",
    ),
]


@pytest.mark.parametrize(("before", "after", "sentence"), OTHERS)
def test_a_run_continues_with_its_own_objective(before: Any, after: Any, sentence: str, tmp_path: Any) -> None:
    train(before(), out=tmp_path / "run").close()
    with pytest.raises(BadInput, match=sentence):
        anyk.resume(tmp_path / "run", problem=after(), steps=9)
    anyk.resume(tmp_path / "run", problem=before(), steps=9).close()


def test_another_initial_model_is_no_other_objective(tmp_path: Any) -> None:
    """A run that continues does not begin with it, and modules begin with random numbers."""
    train(Huber(), out=tmp_path / "run").close()
    anyk.resume(tmp_path / "run", problem=Huber(start=3.0), steps=9).close()


@pytest.mark.slow
def test_a_module_with_another_loss_is_another_objective(tmp_path: Any) -> None:
    torch = pytest.importorskip("torch")

    def problem(loss: Any) -> Any:
        return anyk.problems.TorchProblem(torch.nn.Linear(4, 1), loss, (X.astype("f4"), Y.astype("f4")[:, None]))

    train(problem(torch.nn.MSELoss()), out=tmp_path / "run").close()
    with pytest.raises(BadInput, match="computes other gradients of the same data"):
        anyk.resume(tmp_path / "run", problem=problem(torch.nn.HuberLoss(delta=0.1)), steps=9)
    anyk.resume(tmp_path / "run", problem=problem(torch.nn.MSELoss()), steps=9).close()


@pytest.mark.parametrize("spec", ["gd:lr=0.3", "momentum:lr=0.05", "nesterov:lr=0.05", "adam:lr=0.05"])
def test_a_run_continues_with_its_own_optimizer(spec: str, tmp_path: Any) -> None:
    train(Squares(), out=tmp_path / "run").close()
    with pytest.raises(BadInput, match="a run that continues keeps what it began with"):
        anyk.resume(tmp_path / "run", problem=Squares(), optimizer=anyk.optimizers.optimizer(spec), steps=9)
    anyk.resume(tmp_path / "run", problem=Squares(), optimizer=GD(lr=0.05), steps=9).close()
