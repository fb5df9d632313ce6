"""Random data of any size, the same for the same seed on every machine."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import numpy as np

from anyk.checks import AtLeastOne, NonnegativeNumber, PositiveShare, typed
from anyk.errors import BadInput
from anyk.keyed import generator
from anyk.matrices import Matrix
from anyk.problems.data.dataset import Dataset, Fraction, Task, assemble, sources

if TYPE_CHECKING:
    from scipy.sparse import csr_array


@sources.register("synthetic")
@typed
def synthetic(
    *,
    rows: Annotated[int, msgspec.Meta(ge=2)] = 1000,
    features: AtLeastOne = 20,
    task: Task = "binary",
    noise: NonnegativeNumber = 0.1,
    density: PositiveShare = 1.0,
    classes: Annotated[int, msgspec.Meta(ge=2)] | None = None,
    test: Fraction = 0.2,
    seed: int = 0,
    max_gb: float = 1.0,
) -> Dataset:
    """Random features and a linear rule with noise, both from a seed.

    Entries of ``X`` are standard normal; with ``density`` below 1 each is nonzero with that probability, and ``X`` is
    sparse. The scores are ``X W + noise E`` with normal ``W`` and ``E``, where ``W`` is scaled so that a score has a
    variance of about 1. The target is the score (regression), its sign (binary), or the index of the largest of
    ``classes`` scores (multiclass, by default 3). Raises BadInput for data that would take more than ``max_gb``.
    """
    if classes is not None and task != "multiclass":
        raise BadInput(f"classes={classes} is for task=multiclass, but the task is {task}; leave it out")
    scores = classes or 3 if task == "multiclass" else 1
    size = 8e-9 * rows * (features * min(1.0, 2 * density) + scores)
    if not size <= max_gb:
        raise BadInput(
            f"data set 'synthetic' would take {size:.3g} GB, but the limit is {max_gb:g} GB; for more give max_gb=…"
        )

    X: Matrix
    if density < 1:
        X = _sparse_normal(rows, features, density, seed)
    else:
        X = generator(seed, "synthetic", "features").standard_normal((rows, features))
    rule = generator(seed, "synthetic", "rule").standard_normal((features, scores)) / math.sqrt(features * density)
    score = X @ rule + noise * generator(seed, "synthetic", "noise").standard_normal((rows, scores))
    if task == "regression":
        return assemble(X, score[:, 0], task, test=test, seed=seed)
    y = np.where(score[:, 0] > 0, 1.0, -1.0) if task == "binary" else score.argmax(axis=1).astype(float)
    labels = ("-1", "1") if task == "binary" else tuple(map(str, range(scores)))
    return assemble(X, y, task, labels, test=test, seed=seed)


def _sparse_normal(rows: int, features: int, density: float, seed: int) -> csr_array[Any]:
    # The gaps between nonzero entries are geometric, so that the cost depends on their number alone.
    from scipy.sparse import csr_array

    cells = rows * features
    expected = cells * density
    enough = math.ceil(expected + 10 * math.sqrt(expected) + 10)
    places = np.cumsum(generator(seed, "synthetic", "places").geometric(density, size=enough)) - 1
    places = places[places < cells]
    values = generator(seed, "synthetic", "features").standard_normal(len(places))
    starts = np.searchsorted(places, np.arange(rows + 1) * features)
    return csr_array((values, places % features, starts), shape=(rows, features))
