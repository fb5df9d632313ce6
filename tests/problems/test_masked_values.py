"""Values under a mask are not numbers to learn from, and tensors without plain numbers are refused."""

import numpy as np
import pytest

import anyk
from anyk.problems import LeastSquares, LogisticRegression

X = np.arange(24.0).reshape(8, 3) % 5
Y = np.array([-1.0, 1.0] * 4)
MASKED = np.ma.masked_array(X, mask=X > 3)
MASKED_Y = np.ma.masked_array(Y, mask=[True] + [False] * 7)
USES = {
    "inputs": lambda: LeastSquares(MASKED, Y),
    "targets": lambda: LogisticRegression(X, MASKED_Y),
    "held out": lambda: LogisticRegression(X, Y, X_test=MASKED, y_test=Y),
    "weights": lambda: LeastSquares(X, Y, weights=np.ma.masked_array(np.ones(8), mask=MASKED_Y.mask)),
}


@pytest.mark.parametrize("use", USES)
def test_linear_models_refuse_masked_values(use):
    with pytest.raises(anyk.BadInput, match="masked values; drop them, or fill them"):
        USES[use]()


@pytest.mark.parametrize("X, y", [(MASKED, Y), (X, MASKED_Y)], ids=["inputs", "targets"])
def test_networks_refuse_masked_values(X, y):
    torch = pytest.importorskip("torch")
    with pytest.raises(anyk.BadInput, match="the data set has . masked values"):
        anyk.problems.TorchProblem(torch.nn.Linear(3, 1).double(), torch.nn.SoftMarginLoss(), (X, y[:, None]))


def test_functions_of_jax_refuse_masked_values():
    pytest.importorskip("jax")
    with pytest.raises(anyk.BadInput, match="masked values"):
        anyk.problems.JaxProblem(
            lambda w, batch: ((batch[0] @ w - batch[1]) ** 2).mean(), np.zeros(3, "float32"), (MASKED, Y)
        )


def test_estimators_refuse_masked_values():
    sklearn = pytest.importorskip("anyk.sklearn")
    for rows, labels in ((MASKED, Y), (X, MASKED_Y)):
        with pytest.raises(anyk.BadInput, match="masked values"):
            sklearn.AnykClassifier().fit(rows, labels)


def test_a_mask_that_hides_nothing_changes_nothing():
    plain, masked = (LeastSquares(rows, Y) for rows in (X, np.ma.masked_array(X, mask=np.zeros_like(X))))
    assert (plain.X == masked.X).all()


def test_masked_times_of_a_record_are_absences():
    times = np.ma.masked_array([[1.0, 1.0], [1.0, 99.0], [1.0, 2.0]], mask=[[0, 0], [0, 1], [0, 0]])
    record = anyk.fleet.Record(times)
    assert np.isnan(record.seconds[1, 1]) and record.measured.sum() == 5


def test_tensors_without_plain_numbers_are_refused():
    torch = pytest.importorskip("torch")
    y = torch.zeros(8, 1)
    for tensor in (torch.eye(8).to_sparse(), torch.empty(8, 8, device="meta")):
        with pytest.raises(anyk.BadInput, match="the data set has a tensor that is no plain array of numbers"):
            anyk.problems.TorchProblem(torch.nn.Linear(8, 1), torch.nn.MSELoss(), (tensor, y))
