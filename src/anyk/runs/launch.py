"""A run from its start to its summary: driven, evaluated and saved."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from anyk.base.errors import RunFailed, describe_error, outside
from anyk.clusters import Cluster
from anyk.optimizers import STEPPED
from anyk.problems.base import Problem, abilities_of
from anyk.problems.many import each_of
from anyk.protocol import Strategy
from anyk.runs.callbacks import RunInfo
from anyk.runs.engine.driver import Driver
from anyk.runs.engine.session import session
from anyk.runs.evaluating import Evaluating
from anyk.runs.evaluation.evaluator import divergence, no_number
from anyk.runs.floor import floor_seconds
from anyk.runs.folder import checkpoints
from anyk.runs.folder.environment import changes
from anyk.runs.folder.predictors import predictor_of
from anyk.runs.log import queries
from anyk.runs.log.log_writer import LogWriter
from anyk.runs.log.runlog import RunLog
from anyk.runs.log.schema import ASSUMED, DIFFERENT, RESET
from anyk.runs.run import Run
from anyk.runs.saving import Saving
from anyk.runs.spec import Preparation
from anyk.runs.telling import Telling

_PAIRS = 5  # pairs of workers that a note names at most
_READ_RARELY = (
    "models lie in slices at the nodes, and are read to be evaluated at most every 30 s unless evaluate says how often"
)
_SWITCH = 2e-4  # seconds after which the evaluating thread must let the driver continue


class Launch:
    """A run from its start, or from the checkpoint ``saved``, to its summary.

    It drives; evaluating, saving and telling callbacks are objects of their own.
    """

    def __init__(
        self, prepared: Preparation, log: LogWriter, folder: Path | None, *, saved: checkpoints.Saved | None = None
    ) -> None:
        self._prepared, self._log, self._folder, self._saved = prepared, log, folder, saved
        self._telling = Telling(prepared.callbacks)
        self._evaluating = Evaluating(prepared, log, self._telling)
        self._saving = Saving(
            folder=folder,
            log=log,
            cluster=prepared.cluster,
            callbacks=prepared.callbacks,
            every=prepared.checkpoint_every,
            saved=saved,
        )
        self._started = False  # until then nothing is written
        self._remarks: list[str] = []  # on what the user may have meant to train from
        tells = self._telling.of_steps or self._telling.of_evaluations
        self.driver = Driver(
            prepared.strategy,
            prepared.cluster,
            problem=prepared.problem,
            optimizer=prepared.optimizer,
            log=log,
            steps=prepared.config.steps,
            seconds=prepared.config.seconds,
            warm_start=prepared.warm_start,
            on_step=self._evaluating.after_step,
            on_news=self._telling.tell_news if tells else None,
            on_lost=self._telling.tell_lost,
            on_event=None if folder is None else self._saving.after_event,
            evaluate_objective=self._evaluating.objective,
            workers_evaluate=self._evaluating.by_workers,
        )
        self._telling.driver = self._evaluating.driver = self.driver

    def run(self) -> Run:
        """Drive the run to its end, write its summary and call the last hooks."""
        try:
            run = self._run()
        except BaseException as error:
            self._telling.end(error, None)
            raise
        finally:
            self._saving.close()
        self._telling.end(None, run)
        failed = self._telling.hooks.failed
        if failed is not None:
            run.close()
            raise failed
        return run

    def _run(self) -> Run:
        driver, log = self.driver, self._log
        failure: BaseException | None = None
        try:
            self._drive()
        except BaseException as error:
            if not (isinstance(error, RunFailed) and self._started):
                if self._evaluating.opened:
                    self._evaluating.stop_asking()
                    self._evaluating.evaluator.stop()
                log.close()
                raise
            failure = error
            log.note(driver.time, "failed", str(error))
        failure = self._note_end() or failure
        try:
            diverged = self._conclude()
        except RunFailed as error:
            log.close()
            raise (failure or error) from None
        if failure is None and diverged is not None:
            failure = RunFailed(diverged)
            log.note(driver.time, "failed", diverged)
        if failure is not None:
            with contextlib.closing(log):
                log.flush()
            raise failure
        state = driver.versions.warm_start()
        models = {slot: state.models[slot] if slot in state.models else w.copy() for slot, w in driver.models.items()}
        return Run(
            log,
            self._prepared.config,
            path=self._folder,
            models=models,
            started_with=driver.warm_start,
            state=state,
            predictor=predictor_of(self._prepared.problem),
        )

    def _note_end(self) -> BaseException | None:
        """Note why a callback or an interrupt has ended the run; return the exception to raise, if any."""
        driver, log, hooks = self.driver, self._log, self._telling.hooks
        failed = hooks.failed
        if failed is not None:
            log.note(driver.time, "failed", f"{failed.__notes__[-1]}: {describe_error(failed)}")
            if self._folder is not None:
                failed.add_note(f"the run was saved at step {driver.step} in '{self._folder}', and can be resumed")
            return failed
        if driver.interrupted:
            log.note(driver.time, "interrupted", f"at step {driver.step}")
            return KeyboardInterrupt()
        if hooks.stop is not None:
            log.note(driver.time, "stopped", hooks.stop)
        return None

    @property
    def _problems(self) -> list[Problem]:
        """The problems of the models, each once."""
        return list({id(problem): problem for problem in each_of(self._prepared.problem)}.values())

    def _check_unchanged(self) -> None:
        """Refuse problems whose copies of the user's objects are out of date, and say what else may be."""
        prepared = self._prepared
        if prepared.optimizer.spec == STEPPED:  # the loop has done it
            return
        begins = self._saved is None and prepared.warm_start is None
        for problem in self._problems:
            check_unchanged = abilities_of(problem).check_unchanged
            self._remarks += [] if check_unchanged is None else check_unchanged(begins=begins)
        for remark in self._remarks:
            if prepared.tell is None:
                warnings.warn(remark, RuntimeWarning, stacklevel=outside())
            else:
                prepared.tell(remark)

    def _drive(self) -> None:
        driver, saved, virtual = self.driver, self._saved, self._prepared.cluster.virtual
        self._check_unchanged()
        with contextlib.ExitStack() as driving:
            driving.enter_context(_patient_interrupts(driver, lambda: self._evaluating.opened))
            driving.callback(sys.setswitchinterval, sys.getswitchinterval())
            sys.setswitchinterval(_SWITCH)
            self._evaluating.import_metrics()
            with session(
                driver,
                None if saved is None else (saved.state, saved.vectors),
                on_open=self._recover,
                tell=None if virtual else self._tell_memory,
            ):
                self._started = True
                if saved is not None:
                    saved.vectors.clear()  # the driver has them
                self._evaluating.store_first_versions(warm=saved is None and driver.warm_start is not None)
                self._saving.begin()
                self._evaluating.take_evaluations()
                self._telling.tell_news(driver)
                driver.run()
                self._telling.tell_news(driver)
                self._saving.finish(driver)
                if self._evaluating.by_workers:
                    driving.close()
                    self._evaluating.finish()  # while workers can still answer
        if saved is None or driver.versions.newest != saved.state["versions"] or driver.interrupted:
            return
        limits = vars(self._prepared.config.limits)
        reached = " or ".join(f"{name} = {value:g}" for name, value in limits.items() if value is not None)
        reason = driver.stopped.reason if driver.stopped is not None else f"it has reached its limit ({reached})"
        if self._prepared.tell is not None:
            self._prepared.tell(nothing_left(driver.step, reason))

    def _tell_memory(self, memory: str) -> None:
        """Report the required memory before workers start."""
        self._telling.hooks.stage(f"starting {self._prepared.cluster.workers} workers; {memory}")

    def _recover(self) -> None:
        """Recover log, evaluations and callbacks from the earlier part of the run, when workers have started."""
        log, saved, prepared = self._log, self._saved, self._prepared
        evaluator = self._saving.evaluator = self._evaluating.open()
        self._telling.watch(self._problems)
        self._saving.recover_log()
        self._note_beginning()
        for evaluation in queries.evaluations(log):
            evaluator.recall(evaluation)
        self._saving.recover_callbacks()
        if saved is not None and evaluator.reached is not None:
            self.driver.end()
        step = self.driver.step if saved is None else min(saved.state["versions"].values())
        info = RunInfo(
            config=prepared.config,
            path=self._folder,
            step=step,
            metric=prepared.problem.metric,
            title=prepared.callbacks.title,
            evaluated=self._evaluating.on,
            driver=self.driver,
        )
        self._telling.begin(info)

    def _note_beginning(self) -> None:
        """Log what was assumed of the data, or what a resumed run does not have as before."""
        log, saved, prepared = self._log, self._saved, self._prepared
        if saved is None:
            assumed = [text for problem in each_of(prepared.problem) for text in abilities_of(problem).data_remarks]
            if prepared.cluster.in_slices and prepared.evaluate is not None:
                assumed.append(_READ_RARELY)
            for remark in [*dict.fromkeys(assumed), *self._remarks]:
                log.note(0.0, ASSUMED, remark)
            return
        if lost := lost_on_resume(saved, prepared.strategy, prepared.cluster, log):
            log.note(saved.state["time"], RESET, lost)
        if changed := changes(prepared.config.environment):
            log.note(saved.state["time"], "resumed", f"with {', '.join(changed)}")

    def _note_differences(self) -> None:
        """Log the workers whose messages of the same work differ, as one worker computes wrongly."""
        log = self._log
        log.flush()
        pairs = queries.different_messages(log) if self.driver.equal_bits else {}
        if pairs:
            by_count = sorted(pairs.items(), key=lambda pair: (-pair[1][0], pair[0]))
            named = [f"{a} and {b} ({count:,} times, first at step {first})" for (a, b), (count, first) in by_count]
            more = f" and {len(pairs) - _PAIRS:,} more pairs" if len(pairs) > _PAIRS else ""
            text = f"workers sent different messages of the same work: {', '.join(named[:_PAIRS])}{more}"
            text += "; one of each pair is wrong, unless their machines round differently"
            log.note(self.driver.time, DIFFERENT, text)

    def _conclude(self) -> str | None:
        """Evaluate the remaining versions and write the summary; return a sentence if the run has diverged."""
        driver, log, config = self.driver, self._log, self._prepared.config
        self._evaluating.stop_asking()
        evaluations, evaluator = self._evaluating.finish(), self._evaluating.evaluator
        models = self._saving.write_models(driver, self._prepared.problem, self._evaluating.values)
        self._note_differences()
        if without := no_number(evaluations):
            log.note(driver.time, ASSUMED, without)
        versions = {slot: driver.versions[slot] for slot in driver.versions.trained}
        steps = versions if len(set(versions.values())) > 1 else driver.step  # models differ under a limit of seconds
        reached = evaluator.reached
        last = evaluations[-1] if evaluations else None
        metric, metrics = None, {}
        if last and last.metric is not None:
            metric = {"name": config.metric, "value": last.metric}
            metrics = evaluator.metrics(last.slot, last.version, driver.models[last.slot], self._evaluating.values)
        counts = driver.ledger.counts.plain()
        messages = {name: counts.pop(name) for name in ("compared", "differed")}
        log.flush()
        floor = floor_seconds(
            self._prepared.strategy,
            self._prepared.cluster,
            steps,
            log,
            warm_start=driver.warm_start,
            on_step=lambda step: self._telling.hooks.stage(
                f"computing the floor: step {step:,} of {driver.step:,}", always=False
            ),
        )
        log.summarise(
            {
                "floor_seconds": floor,
                "loss": last.loss if last else None,
                "metric": metric,
                "metrics": metrics,
                "time_to_target": reached.time if reached else None,
                "ledger": counts,
                "stopped": driver.stopped.reason if driver.stopped else self._telling.hooks.stop,
                **({"models": models} if models else {}),
                **({"messages": messages} if messages["compared"] else {}),
            }
        )
        return divergence(evaluations, config.lr, config.metric, config.better)


def nothing_left(step: int, reason: str) -> str:
    """Return the sentence for the user who resumes a run that is complete."""
    return f"nothing was left to do at step {step}: {reason}; to continue, give more steps or seconds"


def lost_on_resume(saved: checkpoints.Saved, strategy: Strategy, cluster: Cluster, log: RunLog) -> str | None:
    """Return a sentence on the states of workers that a resumed run has lost; not all clusters save them."""
    in_checkpoint = cluster.virtual or any(key.startswith("cluster/state/") for key in saved.vectors)
    states = [] if in_checkpoint or not strategy.layout.stateful else sorted(queries.kept_states(log))
    return f"the workers start with fresh {' and '.join(states)}: what they had is not saved" if states else None


@contextlib.contextmanager
def _patient_interrupts(driver: Driver, started: Callable[[], bool]) -> Iterator[None]:
    """Have Ctrl-C or SIGTERM end the run after the current event, or immediately the second time or at the start."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def note(number: int, _: Any) -> None:
        if driver.interrupted or not started():
            raise KeyboardInterrupt
        driver.interrupt()

    handled = [number for number in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(number) != signal.SIG_IGN]
    previous = {number: signal.signal(number, note) for number in handled}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)  # None: set by a library in C
