"""Problems: objectives, with their data and gradients."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np

from anyk.base.errors import BadInput, explaining
from anyk.base.named import function_named
from anyk.base.registries import Registry
from anyk.base.specs import absolute
from anyk.problems.base import (
    Index,
    Partitions,
    Problem,
    Recipe,
    Tell,
    ensure_problem,
    missing_members,
    partition_abilities,
    penalty_of,
    rows_of,
    some_rows,
)
from anyk.problems.data import Dataset, load, sources, tell
from anyk.problems.data.dataset import Dirichlet, splits
from anyk.problems.digests import data_digest
from anyk.problems.jax.decompiling import decompiling
from anyk.problems.jax.functions import JaxProblem
from anyk.problems.jax.loss_partitions import JaxPartitions
from anyk.problems.linear.regression import LeastSquares, LinearProblem, LogisticRegression, SoftmaxRegression
from anyk.problems.linear.row_partitions import LinearPartitions
from anyk.problems.linear.scaling import Scaling, array_of, checked_l2, row_weights
from anyk.problems.linear.sharded import ShardedData, as_shards
from anyk.problems.linear.two_layer import TwoLayerNetwork
from anyk.problems.many import ManyPartitions, ManyProblems, problem_of
from anyk.problems.predicting import Coefficients, Predictor, likeliest_class
from anyk.problems.torch.module_partitions import TorchPartitions
from anyk.problems.torch.modules import TorchProblem
from anyk.tables import check_sizes, shown

_LINEAR: dict[str, type[LinearProblem]] = {
    kind.task: kind for kind in (LogisticRegression, SoftmaxRegression, LeastSquares)
}

models: Registry[Callable[..., LinearProblem]] = Registry("model", supplied=("data",))


@models.register("linear")
def _linear(data: Dataset | ShardedData, *, standardize: bool | None = None) -> Callable[..., LinearProblem]:
    """The linear model that suits the data: logistic, softmax or least-squares regression.

    ``standardize``: columns of mean 0 and variance 1 (:class:`LinearProblem`); by default for your own tables with an
    intercept, but not for svmlight files and the data sets that come with anyk.
    """
    kind = _LINEAR[data.task]
    standardize = data.standardize if standardize is None else standardize
    if isinstance(data, ShardedData):
        return partial(kind, intercept=data.intercept, standardize=standardize, fill=data.fill)
    classes = range(len(data.classes)) if data.task == "multiclass" else None  # of which training rows may lack some
    if not (standardize and data.encoding.categorical.any()):
        return partial(kind, intercept=data.intercept, standardize=standardize, classes=classes)

    def make(X: Any, y: Any, *, l2: float, **options: Any) -> LinearProblem:
        scaling = Scaling.standard(X, categories=data.encoding.categorical, ridge=checked_l2(l2) / kind.curvature)
        return kind(X, y, l2=l2, intercept=data.intercept, scaling=scaling, classes=classes, **options)

    return make


@models.register("two-layer")
def _two_layer(data: Dataset | ShardedData, *, hidden: int = 32, seed: int = 0) -> Callable[..., LinearProblem]:
    """A network with one hidden layer of tanh units, for classes."""
    if isinstance(data, ShardedData):
        raise BadInput("model 'two-layer' is for data in memory, and shards stay in their files; use linear")
    if data.task == "regression":
        raise BadInput("model 'two-layer' is for classes, and this data has numbers to predict; use linear")

    def make(X: Any, y: Any, *, y_test: Any = None, **options: Any) -> TwoLayerNetwork:
        classes = np.unique(y)  # a two-class data set may name its classes -1 and 1
        test = None if y_test is None else np.searchsorted(classes, y_test)
        network = TwoLayerNetwork(X, np.searchsorted(classes, y), y_test=test, hidden=hidden, seed=seed, **options)
        network.labels = tuple(label for i, label in enumerate(data.labels) if data.task == "binary" or i in classes)
        return network

    return make


def from_data(
    data: str,
    *,
    file: str | Path | None = None,
    l2: float | None = None,
    model: str = "linear",
    split: str | None = None,
    progress: Tell | None = tell,
) -> LinearProblem:
    """Return a model of a data set, by default linear: logistic, softmax or least-squares regression.

    ``data`` is a source's spec (``anyk list data`` lists them) or the pattern of files that stay in their place
    (``train-*.parquet``, :class:`~anyk.data.Shards`), ``file`` a local file for it, ``l2`` the regulariser (default:
    1 / training rows), ``model`` ``linear`` or ``two-layer:hidden=32``. Linear models of your own tables are trained in
    standardised columns, on whose weights ``l2`` acts (for categories of text, on the original weights), unless
    ``model`` is ``linear:standardize=false``. ``split``: how training rows are spread over partitions,
    ``dirichlet:alpha=0.3`` unevenly by label (:class:`Dirichlet`), by default in their order. The interpretation of a
    file is printed to standard error, or passed to ``progress`` if this is not None. Raises
    :class:`~anyk.BadInput` if the data is not usable.

    >>> from_data("synthetic:rows=100,features=5").metric
    'auc'
    """
    if not isinstance(data, str):
        raise BadInput(
            f"data must be a spec such as 'digits' or 'file', got {type(data).__name__}; rows in memory go to "
            "LogisticRegression, SoftmaxRegression or LeastSquares, or to the estimators of anyk.sklearn"
        )
    spec = as_shards(data)
    if spec is not None and file is not None:
        raise BadInput(f"shards are named by files=…, got the file '{file}'")
    if spec is not None and split is not None:
        raise BadInput(f"split={split} needs rows in memory, and shards stay in their files; leave it out")
    recipe = _recipe_of(spec or data, file=file, l2=l2, model=model, split=split)
    dataset: Any
    if spec is None:
        dataset = load(data, file=file, progress=progress)
        rows = dataset.X_train.shape[0]
        if file is not None:
            check_sizes(dataset.X_train, shown(file), dataset.encoding.names)
    else:
        dataset = sources.build(spec, progress=progress)
        rows = dataset.rows
    problem = models.build(model, data=dataset)(
        dataset.X_train,
        dataset.y_train,
        X_test=dataset.X_test,
        y_test=dataset.y_test,
        l2=1.0 / rows if l2 is None else l2,
        recipe=recipe,
        split=split,
    )
    if spec is None:
        problem.encoding, problem.labels = dataset.encoding, problem.labels or dataset.labels
    if progress is not None and (uneven := problem.uneven_columns()) is not None:
        progress(uneven)
    return problem


def _recipe_of(data: str, *, file: str | Path | None, l2: float | None, model: str, split: str | None) -> Recipe:
    """Return the arguments of :func:`from_data` that are not the defaults."""
    options = {
        "file": None if file is None else absolute(str(file)),
        "l2": None if l2 is None else float(l2),
        "model": None if model == "linear" else model,
        "split": split,
    }
    return {"data": data} | {name: value for name, value in options.items() if value is not None}


def from_function(name: str) -> Problem:
    """Return the problem that a function without arguments makes: ``file.py:function`` or ``module:function``.

    Classes and functions of a file are sent to workers with the problem; a module, and files next to the file, are
    imported there. The problem's ``recipe()`` is the function's name, so its runs can be resumed and replayed. Raises
    :class:`~anyk.BadInput` if there is no such file, module or function, if it fails, or if the result is not a
    problem.

    >>> from_function("nowhere.py:make_problem")
    Traceback (most recent call last):
    anyk.base.errors.BadInput: no file 'nowhere.py' for the problem 'nowhere.py:make_problem'
    """
    make, full_name = function_named(name, "problem")
    with explaining(f"'{name}' failed"):
        problem = make()
    if missing := missing_members(problem):
        raise BadInput(f"'{name}' gave {type(problem).__name__}, which is not a problem: it has no {missing[0]}")
    problem.recipe = lambda: {"problem": full_name}
    return cast(Problem, problem)


def from_recipe(recipe: dict[str, Any]) -> Problem:
    """Return the problem that has this ``recipe()``."""
    if set(recipe) == {"many"}:
        return ManyProblems([from_recipe(inner) for inner in recipe["many"]])
    if set(recipe) == {"problem"}:
        return from_function(recipe["problem"])
    if "data" not in recipe or not set(recipe) <= {"data", "file", "l2", "model", "split"}:
        raise BadInput(
            f"a problem's recipe has problem, or data and perhaps file, l2, model and split, got {sorted(recipe)}"
        )
    return from_data(**recipe, progress=None)


__all__ = [
    "Coefficients",
    "Dataset",
    "Dirichlet",
    "Index",
    "JaxPartitions",
    "JaxProblem",
    "LeastSquares",
    "LinearPartitions",
    "LinearProblem",
    "LogisticRegression",
    "ManyPartitions",
    "ManyProblems",
    "Partitions",
    "Predictor",
    "Problem",
    "Scaling",
    "SoftmaxRegression",
    "Tell",
    "TorchPartitions",
    "TorchProblem",
    "TwoLayerNetwork",
    "array_of",
    "checked_l2",
    "data_digest",
    "decompiling",
    "ensure_problem",
    "from_data",
    "from_function",
    "from_recipe",
    "likeliest_class",
    "load",
    "models",
    "partition_abilities",
    "penalty_of",
    "problem_of",
    "row_weights",
    "rows_of",
    "some_rows",
    "sources",
    "splits",
]
