"""The model that a run has trained: its versions at the end, its predictions, and the state for a run that goes on."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

from anyk.base.arrays import Array, Vector, Vectors
from anyk.base.errors import BadInput, outside
from anyk.problems.data.new_rows import read_rows
from anyk.problems.predicting import Coefficients, Predictor
from anyk.runs.engine.warm_start import WarmStart
from anyk.runs.folder import checkpoints, predictors
from anyk.runs.folder.config import RunConfig
from anyk.runs.log.runlog import RunLog


class TrainedModel:
    """The model of a run, in memory or read from its folder when it is first asked for."""

    log: RunLog
    config: RunConfig
    path: Path | None
    _models: Vectors | None
    _started_with: WarmStart | None
    _state: WarmStart | None
    _predictor: Predictor | None

    @property
    def started_with(self) -> WarmStart | None:
        """The state of the earlier run that this run continues; None if there is none."""
        if self._started_with is None and self.config.begin is not None and self.path is not None:
            self._started_with = WarmStart.load(self.path)
        return self._started_with

    def warm_start(self) -> WarmStart:
        """Return the state from which another run can start; raise :class:`~anyk.BadInput` if it is unknown."""
        if self._state is None:
            saved = None if self.path is None else checkpoints.newest(self.path, self.log)
            if saved is None:
                raise BadInput(f"'{self.path}' has no checkpoint yet to continue from; resume it")
            self._state = WarmStart.of_saved(saved.state, saved.vectors, auxiliary=self.config.auxiliary)
        return self._state

    @property
    def model(self) -> Vector:
        """The final model of the first slot, shape (d,)."""
        return self.models[min(self.models.keys() - self.config.auxiliary)]

    @cached_property
    def models(self) -> Vectors:
        """The final models by slot, each of shape (d,)."""
        if self._models is not None:
            return self._models
        if self.path is None:
            raise BadInput("this run has stored no model")
        saved = checkpoints.newest(self.path, self.log)
        if saved is None:
            raise BadInput(f"'{self.path}' has no model yet: the run ended before its first checkpoint; resume it")
        return {slot: saved.vectors[f"model/{slot}/{version}"] for slot, version in saved.state["versions"].items()}

    @property
    def predictor(self) -> Predictor:
        """The predictor of the model; raises :class:`~anyk.BadInput` for models of PyTorch and JAX."""
        if self._predictor is None:
            self._predictor = predictors.load_predictor(self.path, self.config.digests.predictor)
        return self._predictor

    def predict(self, X: Any, *, probabilities: bool = False, tell: Callable[[str], None] | None = None) -> Array:
        """Return predictions of the (first) final model for rows: the likeliest label or the value, shape (rows,).

        ``X``: a data frame, a dictionary of columns or a file, whose columns are found by name, or an array with the
        columns of the training data in order. Names, categories, scaling and values for missing ones come from the
        training data. ``probabilities``: return the probabilities of the classes, shape (rows, classes), in the order
        of ``run.predictor.labels``. ``tell`` is called with a sentence if a text column has values that the model has
        not seen, which then belong to no category; by default this is a RuntimeWarning.

        Raises :class:`~anyk.BadInput` if ``X`` does not fit the model, and if the run has no predictor.

        >>> import anyk
        >>> problem = anyk.problems.LogisticRegression([[0.0], [1.0], [2.0], [3.0]], [5, 5, 7, 7], intercept=True)
        >>> run = anyk.train(problem, "uncoded", "simulated", workers=2, steps=200)
        >>> run.predict([[0.5], [2.5]]).tolist(), run.predict([[1.5]], probabilities=True).shape
        ([5, 7], (1, 2))
        """
        predictor = self.predictor
        file = isinstance(X, str | Path)
        tell = _warn if tell is None else tell
        rows = read_rows(Path(X), predictor, tell=tell) if file else predictor.matrix(X, "X", tell)
        scores = predictor.scores(self.model, rows)
        return predictor.chances(scores) if probabilities else predictor.decided(scores)

    @property
    def coefficients(self) -> Coefficients:
        """The (first) final model in the units of the input; :class:`~anyk.BadInput` if it is not linear."""
        return self.predictor.coefficients(self.model)


def _warn(sentence: str) -> None:
    warnings.warn(sentence, RuntimeWarning, stacklevel=outside())
