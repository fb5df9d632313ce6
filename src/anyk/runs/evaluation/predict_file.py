"""Predictions of a run's model for the rows of a file."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

from anyk.base.arrays import Array
from anyk.problems.data.new_rows import check_output_file, memory_limit, read_rows, write_predictions
from anyk.runs.run import Run


def predict_file(
    run: Run | str | Path,
    file: str | Path,
    out: str | Path | None = None,
    *,
    probabilities: bool = False,
    header: bool | None = None,
    max_gb: float | None = None,
    tell: Callable[[str], None] | None = None,
) -> int:
    """Write predictions for the rows of a file (CSV, Parquet, npz or svmlight) to ``out``; return the number of rows.

    ``out``: a CSV file, or for Parquet also a Parquet file; None: CSV on standard output. It has the file's columns
    (for npz and svmlight, none) and a column ``prediction``; with ``probabilities`` also ``probability_LABEL`` for each
    class. ``header``: whether the first row of a CSV file contains names; by default as in the training data.
    ``max_gb``: the memory that the unpacked file may take. ``tell`` is called with a sentence on values that the model
    has not seen. Names, categories, scaling and the values for missing ones come from the training data, as in
    :meth:`Run.predict`. Raises :class:`~anyk.BadInput` for a file that does not fit the model, and if nothing
    can be written.

    >>> import tempfile
    >>> import anyk
    >>> problem = anyk.problems.LeastSquares([[0.0], [2.0]], [1.0, 5.0], intercept=True)
    >>> run = anyk.train(problem, "uncoded", "simulated", workers=1, steps=300)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     new, out = Path(folder, "new.csv"), Path(folder, "out.csv")
    ...     _ = new.write_text("x\\n0.5\\n")
    ...     rows = predict_file(run, new, out)
    ...     rows, out.read_text().split()[0]
    (1, 'x,prediction')
    """
    source, target = Path(file).expanduser(), None if out is None else Path(out).expanduser()
    with contextlib.nullcontext(run) if isinstance(run, Run) else Run.open(run) as opened:
        predictor, model = opened.predictor, opened.model
    if probabilities:
        predictor.check_classes()
    check_output_file(source, target, format=predictor.encoding.format)
    rows = read_rows(source, predictor, header=header, max_gb=max_gb, tell=tell)
    scores = predictor.scores(model, rows)
    columns: dict[str, Array] = {"prediction": predictor.decided(scores)}
    if probabilities:
        chances = predictor.chances(scores)
        columns |= {f"probability_{label}": chances[:, k] for k, label in enumerate(predictor.labels.tolist())}
    write_predictions(source, target, columns, memory_limit(source, max_gb), format=predictor.encoding.format)
    return len(scores)
