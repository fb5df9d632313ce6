"""A run as messages of Python's logging, under the logger ``anyk.run``."""

from __future__ import annotations

import logging

from anyk.callbacks.lookup import registry
from anyk.checks import AtLeastOne, typed
from anyk.runs.callbacks import Callback, EndInfo, EvaluationInfo, LostInfo, RunInfo, StepInfo


@registry.register("log")
@typed
class Logging(Callback):
    """Writes a run as messages of Python's logging.

    Its start and end, evaluations and every ``every``-th step (INFO), lost workers (WARNING) and the error of a failed
    run (ERROR), under ``logger``. The settings of ``logging`` decide which messages appear where; the command
    line shows them unless they are set up.

    >>> import anyk
    >>> problem = anyk.problems.from_data("synthetic:rows=60,features=3")
    >>> run = anyk.train(problem, "uncoded", "simulated", workers=3, steps=20, callbacks=[Logging(every=10)])
    """

    def __init__(self, every: AtLeastOne = 1, logger: str = "anyk.run") -> None:
        self._every, self.logger = every, logging.getLogger(logger)

    def on_begin(self, info: RunInfo) -> None:
        self._metric = info.metric
        where = "in memory" if info.path is None else info.path
        self.logger.info("%s begins at step %d (%s, %s)", info.strategy, info.step, info.config.cluster, where)

    def on_step(self, info: StepInfo) -> None:
        if info.step % self._every == 0:
            self.logger.info(
                "step %d of %s at %.3f s: %d workers, residual %.3g, staleness %.3g",
                info.step,
                info.slot,
                info.seconds,
                info.workers,
                info.residual,
                info.staleness,
            )

    def on_evaluation(self, info: EvaluationInfo) -> None:
        self.logger.info("step %d of %s: %s", info.step, info.slot, _values(info, self._metric))

    def on_worker_lost(self, info: LostInfo) -> None:
        fate = "abandoned" if info.gone else "lost"
        self.logger.warning(
            "worker %d %s at step %d, %.3f s: %s", info.worker, fate, info.step, info.seconds, info.reason
        )

    def on_end(self, info: EndInfo) -> None:
        if info.error is None:
            self.logger.info("ended at step %d, %.3f s: %s", info.step, info.seconds, _values(info, self._metric))
        else:
            kind = type(info.error).__name__
            self.logger.error("ended at step %d, %.3f s: %s: %s", info.step, info.seconds, kind, info.error)


def _values(info: EvaluationInfo | EndInfo, metric: str) -> str:
    values = {"loss": info.loss, metric: info.metric}
    return ", ".join(f"{name} {value:.6g}" for name, value in values.items() if value is not None) or "not evaluated"
