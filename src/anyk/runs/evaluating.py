"""How the versions of a run are evaluated while it is driven, and after it has ended."""

from __future__ import annotations

from anyk.base.arrays import Vector, read_only
from anyk.base.errors import BadInput, RunFailed
from anyk.clusters import Cluster
from anyk.clusters.processes.aside import EvaluatedAside
from anyk.clusters.remote.losses import LossUnknown
from anyk.problems.base import abilities_of, with_values
from anyk.problems.many import each_of, problem_of
from anyk.problems.values import Leaves
from anyk.runs.callbacks import EvaluationInfo, StepInfo
from anyk.runs.engine.driver import Driver
from anyk.runs.engine.step_record import StepRecord
from anyk.runs.evaluation.by_workers import Asking, by_workers
from anyk.runs.evaluation.evaluate import check_watched, gives_loss, needs_loss, resolve_data
from anyk.runs.evaluation.evaluator import Evaluator
from anyk.runs.limits import LIMIT, first_metrics
from anyk.runs.log.log_writer import LogWriter
from anyk.runs.log.schema import Evaluation
from anyk.runs.spec import Preparation
from anyk.runs.telling import Telling

_AWAY = {"aside": "in another process (where='aside')", "workers": "by workers (where='workers')"}


class Evaluating:
    """The evaluations of a run: which versions, where, and who is told of the results.

    ``evaluator`` exists from the time when the workers have started (``opened``).
    """

    def __init__(self, prepared: Preparation, log: LogWriter, telling: Telling) -> None:
        self._prepared, self._log, self._telling = prepared, log, telling
        self._cluster: Cluster = prepared.cluster
        self._evaluate = resolve_data(prepared.evaluate, prepared.problem)
        self._evaluated = prepared.evaluated
        self._check_values()
        check_watched(self._evaluate, self._evaluated, prepared.strategy, prepared.optimizer)
        self._asking: Asking | None = None
        self._unknown = ""  # the last logged reason why a loss is unknown
        self.evaluator: Evaluator
        self.opened = False
        self.driver: Driver  # set before the run begins
        if self._evaluate is not None and self._evaluate.where == "workers":
            self._evaluated, self._asking = by_workers(self._evaluate, prepared.problem, self._cluster)
        if self._asking is not None:
            self._asking.interrupted = lambda: self.driver.interrupted
        for problem in each_of(prepared.evaluated):
            if isinstance(problem, EvaluatedAside):
                problem.aside.interrupted = lambda: self.driver.interrupted

    @property
    def on(self) -> str | None:
        """The data on which versions are evaluated; None if they are not."""
        return None if self._evaluate is None else self._evaluate.on

    @property
    def by_workers(self) -> bool:
        """Whether the workers of a real cluster evaluate."""
        return self._asking is not None

    @property
    def values(self) -> Leaves | None:
        """The problem's values that the newest version carries; None if they are the initial ones."""
        carried = self.driver.versions.carried
        values = None if carried is None else carried.changed
        where = "driver" if self._evaluate is None else self._evaluate.where
        if values is not None and where != "driver":
            raise RunFailed(_not_followed("the problem's values", where))
        return values

    def _check_values(self) -> None:
        """Refuse an evaluation elsewhere if schedules change the problem's values."""
        where = "driver" if self._evaluate is None else self._evaluate.where
        values = abilities_of(self._prepared.problem).changing_values
        if where != "driver" and values is not None and values.scheduled:
            names = ", ".join(f"'{name}'" for name in values.scheduled)
            raise BadInput(_not_followed(f"the problem's values {names}", where))

    def import_metrics(self) -> None:
        """Import the modules that metrics import, before the clock starts."""
        if self._evaluate is not None:
            first_metrics(self._evaluated)

    def open(self) -> Evaluator:
        """Make the evaluator, and let it know the evaluations that the log has."""
        self.evaluator = Evaluator(
            self._evaluated,
            self._evaluate,
            target=self._prepared.config.target,
            # on a virtual clock, and if it changes the next step, evaluation is immediate
            background=not self._cluster.virtual and self._prepared.optimizer.watches is None,
            elsewhere=self._cluster.in_slices,
            meanwhile=None if self._asking is None else self._asking.pass_on,
        )
        self.opened = True
        return self.evaluator

    def objective(self, slot: str, w: Vector) -> float:
        """Return the objective for a strategy that asks; raise if the run does not evaluate it."""
        if not gives_loss(self._prepared.evaluate):
            raise RunFailed(needs_loss(self._prepared.strategy.spec))
        try:
            problem = problem_of(self.evaluator.problem, slot)
            return (problem if self.values is None else with_values(problem, self.values)).loss(read_only(w))
        except LossUnknown as reason:
            self._note_unknown(reason)
            return float("nan")

    def store_first_versions(self, *, warm: bool) -> None:
        """Store the versions with which the run begins; ``warm``: they are an earlier run's, and begin the history."""
        driver = self.driver
        for slot, w in driver.versions.trained.items():
            version = driver.versions[slot]
            if self.evaluator.store_version(slot, version, driver.time, w, values=self.values, last=warm):
                driver.versions.pin(slot, version)

    def after_step(self, record: StepRecord) -> None:
        """Store the new version if it is to be evaluated, take results, and end the run if its target is reached."""
        driver, evaluator, update = self.driver, self.evaluator, record.update
        slot, version = update.slot, update.version
        if evaluator.is_due(slot, version, driver.time):  # only then the model is read
            w = driver.versions.model(slot)
            if evaluator.store_version(slot, version, driver.time, w, values=self.values):
                driver.versions.pin(slot, version)
        for returned in evaluator.take_returned_versions():
            driver.versions.unpin(*returned)
        self.take_evaluations()
        evaluation = evaluator.done.get((slot, version))
        if evaluation is not None and evaluation.value is not None:
            driver.observe(slot, version, evaluation.value)
        if evaluator.target is not None and evaluator.reached is not None:
            driver.end()
        elif evaluator.hopeless is not None and driver.seconds is None and (driver.steps or LIMIT) >= LIMIT:
            raise RunFailed(f"it is not known any more whether the target is reached: {evaluator.hopeless}")
        if self._telling.of_steps:
            self._telling.later("on_step", self._step_info(record))

    def _step_info(self, record: StepRecord) -> StepInfo:
        update, newest = record.update, self.evaluator.latest
        return StepInfo(
            slot=update.slot,
            step=update.version,
            seconds=update.time,
            workers=len(record.used_by),
            residual=update.residual,
            gain=update.gain,
            staleness=update.staleness,
            stalest=update.stalest,
            loss=None if newest is None else newest.loss,
            metric=None if newest is None else newest.metric,
            evaluated=None if newest is None else newest.version,
            record=record,
            driver=self.driver,
            evaluator=self.evaluator,
        )

    def take_evaluations(self) -> None:
        """Log new evaluations, and have callbacks told of them."""
        unknown = self.evaluator.unknown
        for evaluation, w in self.evaluator.take_new_evaluations():
            self._log.evaluation(evaluation)
            if evaluation.loss is None and unknown is not None:
                self._note_unknown(unknown)
            if self._telling.of_evaluations:
                self._telling.later("on_evaluation", EvaluationInfo(*evaluation, w.copy()))

    def finish(self) -> list[Evaluation]:
        """Evaluate the stored versions and the last one; return all evaluations."""
        driver, telling = self.driver, self._telling
        for slot, w in driver.versions.trained.items():
            self.evaluator.store_version(slot, driver.versions[slot], driver.time, w, values=self.values, last=True)
        telling.too_late()

        def tell(done: int, of: int) -> None:
            self.take_evaluations()
            telling.tell_news(driver)
            telling.hooks.stage(f"evaluating {done} of {of}", always=False)

        evaluations = self.evaluator.finish(tell)
        self.take_evaluations()
        telling.tell_news(driver)
        return evaluations

    def stop_asking(self) -> None:
        """End questions to workers, which have ended."""
        if self._asking is not None:
            self._asking.close()

    def _note_unknown(self, reason: LossUnknown) -> None:
        """Log why a version was not evaluated, once for each reason."""
        if str(reason) != self._unknown:
            self._unknown = str(reason)
            self._log.note(self.driver.now, "not evaluated", self._unknown)


def _not_followed(values: str, where: str) -> str:
    """Return the sentence on values that an evaluation elsewhere does not get."""
    return (
        f"{values} change during the run, and evaluation {_AWAY[where]} computes with the initial ones; evaluate "
        "where='driver'"
    )
