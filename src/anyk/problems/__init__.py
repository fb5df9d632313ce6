"""Problems: what a gradient is, and where its data comes from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from anyk.errors import BadInput
from anyk.problems.base import Partitions, Problem
from anyk.problems.data import Dataset, load, sources
from anyk.problems.linear import (
    LeastSquares,
    LinearPartitions,
    LinearProblem,
    LogisticRegression,
    SoftmaxRegression,
)

_MODELS: dict[str, type[LinearProblem]] = {
    "binary": LogisticRegression,
    "multiclass": SoftmaxRegression,
    "regression": LeastSquares,
}


def from_data(
    data: str,
    *,
    file: str | Path | None = None,
    l2: float | None = None,
    progress: Callable[[str], None] | None = None,
) -> LinearProblem:
    """The linear model that suits a data set: logistic, softmax or least-squares regression.

    ``data`` is a source's spec (``anyk data`` lists them), ``file`` a local file for it, ``l2`` the regulariser,
    1 / training rows if left out. Raises :class:`~anyk.errors.BadInput` when the data is not usable.

    >>> from_data("synthetic:rows=100,features=5").metric
    'auc'
    """
    made = load(data, file=file, progress=progress)
    recipe: dict[str, Any] = {"data": data}
    if file is not None:
        recipe["file"] = str(Path(file).resolve())
    if l2 is not None:
        recipe["l2"] = float(l2)
    return _MODELS[made.task](
        made.X_train,
        made.y_train,
        X_test=made.X_test,
        y_test=made.y_test,
        l2=1.0 / made.X_train.shape[0] if l2 is None else l2,
        recipe=recipe,
    )


def from_recipe(recipe: dict[str, Any]) -> LinearProblem:
    """Make a problem again from what its ``recipe()`` said."""
    unknown = set(recipe) - {"data", "file", "l2"}
    if unknown or "data" not in recipe:
        raise BadInput(f"a problem's recipe has data and perhaps file and l2, got {sorted(recipe)}")
    return from_data(recipe["data"], file=recipe.get("file"), l2=recipe.get("l2"))


__all__ = [
    "Dataset",
    "LeastSquares",
    "LinearPartitions",
    "LinearProblem",
    "LogisticRegression",
    "Partitions",
    "Problem",
    "SoftmaxRegression",
    "from_data",
    "from_recipe",
    "load",
    "sources",
]
