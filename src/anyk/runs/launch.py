"""A run from its start to its summary: driven, evaluated and saved."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time as clock
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from anyk.arrays import Vector
from anyk.clusters import Cluster
from anyk.clusters.processes.aside import EvaluatedAside
from anyk.clusters.remote.losses import LossUnknown
from anyk.errors import BadInput, RunFailed, describe_error, outside
from anyk.optimizers import STEPPED
from anyk.problems.base import Problem, abilities_of, with_values
from anyk.problems.many import each_of, problem_of
from anyk.problems.values import Leaves
from anyk.problems.watch import is_glanced_at
from anyk.protocol import Lost, Strategy
from anyk.runs.callbacks import EndInfo, EvaluationInfo, Hooks, LostInfo, RunInfo, StepInfo
from anyk.runs.engine.driver import Driver
from anyk.runs.engine.session import session
from anyk.runs.evaluation.by_workers import Asking, by_workers
from anyk.runs.evaluation.evaluate import check_watched, gives_loss, needs_loss, resolve_data
from anyk.runs.evaluation.evaluator import Evaluator, divergence
from anyk.runs.floor import floor_seconds
from anyk.runs.folder import callback_states, checkpoints
from anyk.runs.folder.digests import file_digest
from anyk.runs.folder.drains import read_drained
from anyk.runs.folder.environment import changes
from anyk.runs.folder.predictors import predictor_of
from anyk.runs.limits import LIMIT, first_metrics
from anyk.runs.log import queries
from anyk.runs.log.runlog import RunLog
from anyk.runs.log.schema import ASSUMED, DIFFERENT, RESET, Evaluation
from anyk.runs.run import Run
from anyk.runs.spec import Preparation

_LOOKS = 0.3  # seconds between two checks for workers that are to leave
_PAIRS = 5  # pairs of workers that a note names at most
AWAY = {"aside": "in another process (where='aside')", "workers": "by workers (where='workers')"}
_FIRST_SAVE = 1.0  # seconds, at most, until the first checkpoint
_SWITCH = 2e-4  # seconds after which the evaluating thread must let the driver continue


class Launch:
    """A run from its start, or from the checkpoint ``saved``, to its summary."""

    def __init__(
        self, prepared: Preparation, log: RunLog, folder: Path | None, saved: checkpoints.Saved | None = None
    ) -> None:
        self._prepared, self._strategy, self._cluster = prepared, prepared.strategy, prepared.cluster
        self._problem, self._config, self._log = prepared.problem, prepared.config, log
        self._folder, self._saved = folder, saved
        self._evaluator: Evaluator  # from the time when the workers have started
        self._opened = False  # whether there is an evaluator
        self._save_at = self._look_at = 0.0
        self._drained: list[int] = []  # workers that are to stay away
        self._writer = None if folder is None else checkpoints.CheckpointWriter(folder, log)
        self._evaluate, self._evaluated = resolve_data(prepared.evaluate, self._problem), prepared.evaluated
        check_watched(self._evaluate, self._evaluated, self._strategy, prepared.optimizer)
        self._asking: Asking | None = None
        self._unknown = ""  # the last logged reason why a loss is unknown
        if self._evaluate is not None and self._evaluate.where == "workers":
            self._evaluated, self._asking = by_workers(self._evaluate, self._problem, self._cluster)
        if self._asking is not None:
            self._asking.interrupted = lambda: self.driver.interrupted
        for each in each_of(prepared.evaluated):
            if isinstance(each, EvaluatedAside):
                each.aside.interrupted = lambda: self.driver.interrupted
        self._started = False  # until then nothing is written
        self._hooks = hooks = Hooks(prepared.callbacks)
        self._announced = self._ended = False  # whether callbacks know of the start, and can no longer end the run
        self._steps, self._evaluations = hooks["on_step"], hooks["on_evaluation"]
        self._watches: list[Any] = []  # notice if a user's callback changes what workers compute with
        self._remarks: list[str] = []  # on what the user may have meant to train from
        self._news: list[tuple[str, Any]] = []  # hooks to call
        self.driver = Driver(
            self._strategy,
            self._cluster,
            problem=self._problem,
            optimizer=prepared.optimizer,
            log=log,
            steps=self._config.steps,
            seconds=self._config.seconds,
            warm_start=prepared.warm_start,
            on_step=self._after_step,
            on_news=self._tell_news if self._steps or self._evaluations else None,
            on_lost=self._on_worker_lost,
            on_event=None if folder is None else self._after_event,
            evaluate_objective=self._evaluate_objective,
            workers_evaluate=self._asking is not None,
        )

    def run(self) -> Run:
        """Drive the run to its end, write its summary and call the last hooks."""
        try:
            run = self._run()
        except BaseException as error:
            self._tell_end(error, None)
            raise
        finally:
            if self._writer is not None:
                self._writer.close()
        self._tell_end(None, run)
        if self._hooks.failed is not None:
            run.close()
            raise self._hooks.failed
        return run

    def _run(self) -> Run:
        driver, log = self.driver, self._log
        failure: BaseException | None = None
        try:
            self._drive()
        except BaseException as error:
            if not (isinstance(error, RunFailed) and self._started):
                if self._opened:
                    self._stop_asking()
                    self._evaluator.stop()
                log.close(write=False)
                raise
            failure = error
            log.note(driver.time, "failed", str(error))
        failed = self._hooks.failed
        if failed is not None:
            failure = failed
            log.note(driver.time, "failed", f"{failed.__notes__[-1]}: {describe_error(failed)}")
            if self._folder is not None:
                failed.add_note(f"the run was saved at step {driver.step} in '{self._folder}', and can be resumed")
        elif driver.interrupted:
            failure = KeyboardInterrupt()
            log.note(driver.time, "interrupted", f"at step {driver.step}")
        elif self._hooks.stop is not None:
            log.note(driver.time, "stopped", self._hooks.stop)
        try:
            diverged = self._conclude()
        except RunFailed as error:
            log.close(write=False)
            raise (failure or error) from None
        if failure is None and diverged is not None:
            failure = RunFailed(diverged)
            log.note(driver.time, "failed", diverged)
        if failure is not None:
            log.close()
            raise failure
        state = driver.versions.warm_start()
        models = {slot: state.models[slot] if slot in state.models else w.copy() for slot, w in driver.models.items()}
        return Run(
            log,
            self._config,
            path=self._folder,
            models=models,
            started_with=driver.warm_start,
            state=state,
            predictor=predictor_of(self._problem),
        )

    def _distinct(self) -> list[Problem]:
        return list({id(problem): problem for problem in each_of(self._problem)}.values())

    def _check_unchanged(self) -> None:
        """Refuse problems whose copies of the user's objects are out of date, and say what else may be."""
        prepared = self._prepared
        if prepared.optimizer.spec == STEPPED:  # the loop has done it
            return
        begins = self._saved is None and prepared.warm_start is None
        for problem in self._distinct():
            check_unchanged = abilities_of(problem).check_unchanged
            self._remarks += [] if check_unchanged is None else check_unchanged(begins=begins)
        for remark in self._remarks:
            if prepared.tell is None:
                warnings.warn(remark, RuntimeWarning, stacklevel=outside())
            else:
                prepared.tell(remark)

    def _drive(self) -> None:
        driver, saved = self.driver, self._saved
        self._check_unchanged()
        with contextlib.ExitStack() as driving:
            driving.enter_context(_patient_interrupts(driver, lambda: self._opened))
            driving.callback(sys.setswitchinterval, sys.getswitchinterval())
            sys.setswitchinterval(_SWITCH)
            if self._evaluate is not None:
                first_metrics(self._evaluated)  # modules that metrics import are imported before the clock starts
            with session(
                driver,
                None if saved is None else (saved.state, saved.vectors),
                on_open=self._recover,
                tell=None if self._cluster.virtual else self._tell_memory,
            ):
                self._started = True
                if saved is not None:
                    saved.vectors.clear()  # the driver has them
                self._store_first_versions()
                self._take_evaluations()
                self._tell_news(driver)
                driver.run()
                self._tell_news(driver)
                if self._writer is not None:
                    self._save()
                    self._writer.finish()
                if self._asking is not None:
                    driving.close()
                    self._evaluate_rest()  # while workers can still answer
        if saved is None or driver.versions.newest != saved.state["versions"] or driver.interrupted:
            return
        limits = vars(self._config.limits)
        reached = " or ".join(f"{name} = {value:g}" for name, value in limits.items() if value is not None)
        reason = driver.stopped.reason if driver.stopped is not None else f"it has reached its limit ({reached})"
        if self._prepared.tell is not None:
            self._prepared.tell(nothing_left(driver.step, reason))

    def _tell_memory(self, memory: str) -> None:
        """Report the required memory before workers start."""
        self._hooks.stage(f"starting {self._cluster.workers} workers; {memory}")

    def _recover(self) -> None:
        """Recover log, evaluations and callbacks from the earlier part of the run, when workers have started."""
        log, saved = self._log, self._saved
        self._evaluator = evaluator = Evaluator(
            self._evaluated,
            self._evaluate,
            target=self._config.target,
            # on a virtual clock, and if it changes the next step, evaluation is immediate
            background=not self._cluster.virtual and self._prepared.optimizer.watches is None,
            meanwhile=None if self._asking is None else self._asking.pass_on,
        )
        self._opened = True
        makers = [abilities_of(problem).watch_code for problem in self._distinct()]
        if self._hooks.of_users:
            self._watches = [make() for make in makers if make is not None]
        if saved is None:
            log.truncate(0)  # a run that ended before its first checkpoint starts again
            for remark in dict.fromkeys(
                text for each in each_of(self._problem) for text in abilities_of(each).data_remarks
            ):
                log.note(0.0, ASSUMED, remark)
            for remark in self._remarks:
                log.note(0.0, ASSUMED, remark)
        else:
            now = saved.state["time"]
            log.truncate(saved.state["seq"], saved.state["seal"])
            if saved.digest not in queries.checkpoint_digests(log, log.seq):  # the run ended before it was listed
                log.checkpoint(log.seq, saved.digest)
            if saved.instead is not None and self._folder is not None:
                if saved.name == checkpoints.OLDER:
                    checkpoints.set_aside(self._folder)
                log.note(now, "older checkpoint", saved.instead)
            if lost := lost_on_resume(saved, self._strategy, self._cluster, log):
                log.note(now, RESET, lost)
            if changed := changes(self._config.environment):
                log.note(now, "resumed", f"with {', '.join(changed)}")
        for evaluation in log.evaluations():
            evaluator.recall(evaluation)
        if saved is not None:
            evaluator.restore_interval(saved.state["every"])
            callback_states.restore(self._hooks.callbacks, saved.state.get(callback_states.KEY, {}), saved.vectors)
            if evaluator.reached is not None:
                self.driver.end()
        step = self.driver.step if saved is None else min(saved.state["versions"].values())
        self._announced = True
        title = self._hooks.callbacks.title
        on = None if self._evaluate is None else self._evaluate.on
        self._tell("on_begin", RunInfo(self._config, self._folder, step, self._problem.metric, title, on, self.driver))
        if self._hooks.failed is not None:
            raise self._hooks.failed

    def _evaluate_objective(self, slot: str, w: Vector) -> float:
        """Return the objective for a strategy that asks; raise if the run does not evaluate it."""
        if not gives_loss(self._prepared.evaluate):
            raise RunFailed(needs_loss(self._strategy.spec))
        try:
            problem = problem_of(self._evaluator.problem, slot)
            return (problem if self._values is None else with_values(problem, self._values)).loss(w)
        except LossUnknown as reason:
            self._note_unknown(reason)
            return float("nan")

    @property
    def _values(self) -> Leaves | None:
        """The problem's values that the newest version carries; None if they are the initial ones."""
        carried = self.driver.versions.carried
        values = None if carried is None else carried.changed
        where = "driver" if self._evaluate is None else self._evaluate.where
        if values is not None and where != "driver":
            raise RunFailed(
                f"the problem's values change during the run, which evaluation {AWAY[where]} does not follow; evaluate "
                "where='driver'"
            )
        return values

    def _store_first_versions(self) -> None:
        """Store, for evaluation, the versions with which the run starts or continues."""
        driver, evaluator = self.driver, self._evaluator
        first = self._saved is None and driver.warm_start is not None  # the history starts with it, whatever its number
        for slot, w in driver.versions.trained.items():
            version = driver.versions[slot]
            if evaluator.store_version(slot, version, driver.time, w, values=self._values, last=first):
                driver.versions.pin(slot, version)
        # the first checkpoint comes early, as a run is often killed soon, for example by a mistake in a loop's body
        self._save_at = clock.monotonic() + min(_FIRST_SAVE, self._prepared.checkpoint_every)

    def _after_step(self, driver: Driver) -> None:
        evaluator, last = self._evaluator, driver.last
        assert last is not None
        slot, version = last.slot, last.version
        if evaluator.store_version(slot, version, driver.time, driver.models[slot], values=self._values):
            driver.versions.pin(slot, version)
        for returned in evaluator.take_returned_versions():
            driver.versions.unpin(*returned)
        self._take_evaluations()
        evaluation = evaluator.done.get((slot, version))
        if evaluation is not None and evaluation.value is not None:
            driver.observe(slot, version, evaluation.value)
        if evaluator.target is not None and evaluator.reached is not None:
            driver.end()
        elif evaluator.hopeless is not None and driver.seconds is None and (driver.steps or LIMIT) >= LIMIT:
            raise RunFailed(f"it is not known any more whether the target is reached: {evaluator.hopeless}")
        if self._steps:
            newest = evaluator.latest
            loss, metric, evaluated = (None,) * 3 if newest is None else (newest.loss, newest.metric, newest.version)
            head = slot, version, driver.time, driver.on_time, last.residual, last.gain, last.staleness, last.stalest
            info = StepInfo(*head, loss, metric, evaluated, driver, evaluator)
            self._news.append(("on_step", info))

    def _take_evaluations(self) -> None:
        """Log new evaluations, and note the hooks to call."""
        unknown = self._evaluator.unknown
        for evaluation, w in self._evaluator.take_new_evaluations():
            self._log.evaluation(evaluation)
            if evaluation.loss is None and unknown is not None:
                self._note_unknown(unknown)
            if self._evaluations:
                self._news.append(("on_evaluation", EvaluationInfo(*evaluation, w.copy())))

    def _note_unknown(self, reason: LossUnknown) -> None:
        """Log why a version was not evaluated, once for each reason."""
        if str(reason) != self._unknown:
            self._unknown = str(reason)
            self._log.note(self.driver.now, "not evaluated", self._unknown)

    def _on_worker_lost(self, event: Lost) -> None:
        self._tell("on_worker_lost", LostInfo(event.worker, self.driver.step, event.time, event.reason, event.gone))

    def _tell_news(self, driver: Driver) -> None:
        """Call the hooks that are due."""
        for watch in self._watches:
            try:
                if driver.step.bit_count() == 1 or driver.step == driver.steps:
                    watch.check()
                elif is_glanced_at(driver.step):
                    watch.glance()
            except BadInput as changed:
                raise RunFailed(str(changed)) from None
        while self._news:
            self._tell(*self._news.pop(0))

    def _tell(self, hook: str, info: Any) -> None:
        """Call a hook of all callbacks; if a callback ends the run, it ends after the current event."""
        if self._hooks(hook, info) and not self._ended:
            if self._hooks.failed is None:
                self.driver.end()
            else:
                self.driver.interrupt()

    def _tell_end(self, error: BaseException | None, run: Run | None) -> None:
        """Call the last hook, if the first has been called."""
        if self._announced:
            step, seconds = self.driver.step, self.driver.time
            loss, metric = (None, None) if run is None else (run.loss, (run.metric or {}).get("value"))
            self._ended = True
            self._tell("on_end", EndInfo(step, seconds, loss, metric, run, error))

    def _after_event(self, driver: Driver) -> None:
        writer, every = self._writer, self._prepared.checkpoint_every
        assert writer is not None
        if writer.done:
            writer.finish()
        now = clock.monotonic()
        if now > self._look_at and not self._cluster.virtual:
            self._look_at = now + _LOOKS
            self._drain_workers()
        late = now - self._save_at
        # after a step few messages are waiting, which would have to be saved as well
        if late >= 0.0 and not writer.busy and (driver.now == driver.time or late >= every):
            self._save()
            if not every:
                writer.finish()
            self._save_at = clock.monotonic() + every

    def _drain_workers(self) -> None:
        """Have workers leave, or let them return, as the run folder requests."""
        assert self._folder is not None
        drained = read_drained(self._folder)
        if drained != self._drained:
            self._drained = drained
            self._cluster.drain(drained)
            names = ", ".join(map(str, drained)) or "none"
            self._log.note(self._cluster.now(), "drained", f"workers that are to stay away: {names}")

    def _save(self) -> None:
        """Start to write a checkpoint."""
        assert self._writer is not None
        if self._writer.busy:
            self._writer.finish()
        log = self._log
        if self._saved is not None and log.seq == self._saved.state["seq"]:
            log.seq += 1  # no two checkpoints have the same number
        log.flush(lasting=True)  # the log must contain all that a checkpoint does
        state = self.driver.state() | {"every": self._evaluator.every, "seal": log.seal}
        states, arrays = callback_states.save(self._hooks.callbacks)
        if states:
            state[callback_states.KEY] = states
        log.seq += 1  # entries from here on belong after the checkpoint
        self._writer.start(state, self.driver.vectors() | arrays)

    def _write_models(self) -> dict[str, str]:
        """Write the models as files for other programs, if there is a folder and the problem is able to.

        Returns their SHA-256 by slot; the log notes why a model could not be written.
        """
        digests = {}
        for slot, w in self.driver.versions.trained.items():
            problem = problem_of(self._problem, slot)
            if (values := self._values) is not None:
                problem = with_values(problem, values)
            write = abilities_of(problem).write_model
            if write is None or self._folder is None:
                continue
            try:
                write(w, file := self._folder / f"{slot}.safetensors")
                if (digest := file_digest(file, follow=False)) is not None:
                    digests[slot] = digest
            except RunFailed as error:  # the checkpoint has the model as well
                self._log.note(self.driver.time, "not written", str(error))
        return digests

    def _stop_asking(self) -> None:
        """End questions to workers, which have ended."""
        if self._asking is not None:
            self._asking.close()

    def _evaluate_rest(self) -> list[Evaluation]:
        """Evaluate the stored versions and the last one; return all evaluations."""
        driver, evaluator = self.driver, self._evaluator
        for slot, w in driver.versions.trained.items():
            evaluator.store_version(slot, driver.versions[slot], driver.time, w, values=self._values, last=True)
        self._ended = True

        def tell(done: int, of: int) -> None:
            self._take_evaluations()
            self._tell_news(driver)
            self._hooks.stage(f"evaluating {done} of {of}", always=False)

        evaluations = evaluator.finish(tell)
        self._take_evaluations()
        self._tell_news(driver)
        return evaluations

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
        driver, evaluator, log = self.driver, self._evaluator, self._log
        self._stop_asking()
        evaluations = self._evaluate_rest()
        models = self._write_models()
        self._note_differences()
        versions = {slot: driver.versions[slot] for slot in driver.versions.trained}
        steps = versions if len(set(versions.values())) > 1 else driver.step  # models differ under a limit of seconds
        reached = evaluator.reached
        last = evaluations[-1] if evaluations else None
        metric, metrics = None, {}
        if last and last.metric is not None:
            metric = {"name": self._config.metric, "value": last.metric}
            metrics = evaluator.metrics(last.slot, last.version, driver.models[last.slot], self._values)
        counts = driver.ledger.counts.plain()
        messages = {name: counts.pop(name) for name in ("compared", "differed")}
        log.flush()
        floor = floor_seconds(
            self._strategy,
            self._cluster,
            steps,
            log,
            warm_start=driver.warm_start,
            on_step=lambda floor: self._hooks.stage(
                f"computing the floor: step {floor.step:,} of {driver.step:,}", always=False
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
                "stopped": driver.stopped.reason if driver.stopped else self._hooks.stop,
                **({"models": models} if models else {}),
                **({"messages": messages} if messages["compared"] else {}),
            }
        )
        return divergence(evaluations, self._config.lr, self._config.metric, self._config.better)


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
