"""Random data of any size, the same for the same seed on every machine."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from anyk.errors import BadInput
from anyk.keyed import generator
from anyk.problems.data.dataset import Dataset, Task, assemble, sources
from anyk.problems.data.encoding import Matrix

if TYPE_CHECKING:
    from scipy.sparse import csr_array


@sources.register("synthetic")
def synthetic(
    *,
    rows: int = 1000,
    features: int = 20,
    task: Task = "binary",
    noise: float = 0.1,
    density: float = 1.0,
    classes: int | None = None,
    test: float = 0.2,
    seed: int = 0,
    max_gb: float = 1.0,
) -> Dataset:
    """Random features and a linear rule with noise, drawn from a seed.

    Entries of ``X`` are standard normal; with ``density`` below 1 each is kept with that probability, and ``X`` is
    sparse. With ``W`` normal, scaled so that a score has a variance of about 1, the scores are ``X W + noise E``, with
    ``E`` normal: the target itself (regression), its sign (binary), or the place of the largest of ``classes`` scores
    (multiclass, 3 unless told). Raises BadInput for a size or probability that cannot be, and for data that would take
    more than ``max_gb``.
    """
    for name, value, least in (("rows", rows, 2), ("features", features, 1)):
        if value < least:
            raise BadInput(f"{name} of data set 'synthetic' should be at least {least}, got {value}")
    if not 0 <= noise < math.inf:
        raise BadInput(f"noise of data set 'synthetic' should be 0 or more and finite, got {noise:g}")
    if not 0 < density <= 1:
        raise BadInput(f"density of data set 'synthetic' should be above 0 and at most 1, got {density:g}")
    if classes is not None and task != "multiclass":
        raise BadInput(f"classes={classes} is for task=multiclass, but the task is {task}; leave it out")
    scores = 1 if task != "multiclass" else 3 if classes is None else classes
    if task == "multiclass" and scores < 2:
        raise BadInput(f"classes of data set 'synthetic' should be at least 2, got {classes}")

    takes = 8e-9 * rows * (features * min(1.0, 2 * density) + scores)
    if not takes <= max_gb:
        raise BadInput(
            f"data set 'synthetic' would take {takes:.3g} GB, but the limit is {max_gb:g} GB; for more give max_gb=…"
        )

    X: Matrix
    if density < 1:
        X = _sparse_normal(rows, features, density, seed)
    else:
        X = generator(seed, "synthetic", "features").standard_normal((rows, features))
    rule = generator(seed, "synthetic", "rule").standard_normal((features, scores)) / math.sqrt(features * density)
    score = X @ rule + noise * generator(seed, "synthetic", "noise").standard_normal((rows, scores))
    if task == "regression":
        return assemble(X, score[:, 0], task=task, test=test, seed=seed)
    y = np.where(score[:, 0] > 0, 1.0, -1.0) if task == "binary" else score.argmax(axis=1).astype(np.float64)
    labels = ("-1", "1") if task == "binary" else tuple(map(str, range(scores)))
    return assemble(X, y, task=task, classes=labels, test=test, seed=seed)


def _sparse_normal(rows: int, features: int, density: float, seed: int) -> csr_array[Any]:
    # The gaps between kept entries are geometric, so the cost is that of the kept ones and not of the whole matrix.
    from scipy.sparse import csr_array

    cells, draw = rows * features, generator(seed, "synthetic", "places")
    expected_entries = cells * density
    places = (
        np.cumsum(draw.geometric(density, size=math.ceil(expected_entries + 10 * math.sqrt(expected_entries) + 10))) - 1
    )
    places = places[places < cells]
    values = generator(seed, "synthetic", "features").standard_normal(len(places))
    starts = np.searchsorted(places, np.arange(rows + 1) * features)
    return csr_array((values, places % features, starts), shape=(rows, features))
