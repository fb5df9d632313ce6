"""End a run when its loss or metric stops getting better."""

from __future__ import annotations

from typing import Any

from anyk.callbacks.checkpoint import Best, Quantity
from anyk.callbacks.lookup import registry
from anyk.checks import AtLeastOne, typed
from anyk.plain import ByName
from anyk.runs.callbacks import Callback, EvaluationInfo, RunInfo, StopRun


@registry.register("early-stopping")
@typed
class EarlyStopping(Callback):
    """Ends a run when ``patience`` evaluations in a row did not improve on the best value by ``min_delta``.

    ``of``: ``loss``, or ``metric`` on held-out data. :class:`anyk.Evaluate` sets when evaluations happen; on a real
    clock they take at most a twentieth of the time, so the run may end late. If several models are trained,
    only the first counts. Each run of a race is judged separately, a resumed run together with its earlier part.

    Raises :class:`~anyk.errors.BadInput` if nothing is evaluated.

    >>> import anyk
    >>> problem = anyk.problems.from_data("synthetic:rows=60,features=3")
    >>> stop = EarlyStopping(patience=3, min_delta=0.01)
    >>> run = anyk.train(problem, "uncoded", "simulated", workers=3, steps=500, callbacks=[stop])
    >>> run.steps < 500, run.summary["stopped"].startswith("loss has not got better by 0.01 for 3 evaluations")
    (True, True)
    """

    def __init__(self, patience: AtLeastOne = 5, *, min_delta: float = 0.0, of: Quantity = "loss") -> None:
        self.patience, self.min_delta, self.of = patience, min_delta, of
        self._restored: ByName | None = None
        self._reset()

    def _reset(self) -> None:
        self._best, self._slot, self.waited = Best(self.of, self.min_delta), "", 0

    @property
    def best(self) -> float | None:
        """Best value so far; None before the first evaluation."""
        return self._best.value

    def on_begin(self, info: RunInfo) -> None:
        self._reset()
        self._best.begin(info, "EarlyStopping")
        if self._restored is not None:
            self._best.value, self._best.step = self._restored["best"], self._restored["step"]
            self._slot, self.waited, self._restored = self._restored["slot"], self._restored["waited"], None

    def on_evaluation(self, info: EvaluationInfo) -> None:
        self._slot = self._slot or info.slot
        better = self._best.improved(info) if info.slot == self._slot else None
        if better is None:
            return
        self.waited = 0 if better else self.waited + 1
        if self.waited >= self.patience:
            by = f" by {self.min_delta:g}" if self.min_delta else ""
            best = "" if self.best is None else f", best {self.best:.6g}"
            raise StopRun(f"{self.of} has not got better{by} for {self.waited} evaluations (step {info.step}{best})")

    def state_dict(self) -> dict[str, Any]:
        """Return the state from which a resumed run continues."""
        return {"best": self.best, "step": self._best.step, "slot": self._slot, "waited": self.waited}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from the result of :meth:`state_dict`."""
        self._restored = state
