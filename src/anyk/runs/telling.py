"""The callbacks of a run: the news they are told, and the end of the run if one of them asks for it."""

from __future__ import annotations

from typing import Any

from anyk.base.errors import BadInput, RunFailed
from anyk.problems.base import Problem
from anyk.problems.watch import ProblemWatch, is_glanced_at
from anyk.protocol import Lost
from anyk.runs.callbacks import Callbacks, EndInfo, Hooks, LostInfo, RunInfo
from anyk.runs.engine.driver import Driver
from anyk.runs.run import Run


class Telling:
    """The callbacks of a run. News is collected at a step, and told after the commands that follow an event."""

    def __init__(self, callbacks: Callbacks) -> None:
        self.hooks = Hooks(callbacks)
        self.driver: Driver  # set before the run begins
        self._news: list[tuple[str, Any]] = []  # hooks to call
        self._watches: list[ProblemWatch] = []  # notice if a user's callback changes what workers compute with
        self._announced = False  # whether callbacks know of the start
        self._ended = False  # whether they can no longer end the run

    @property
    def of_steps(self) -> bool:
        """Whether a callback wants to know of steps."""
        return self.hooks.has("on_step")

    @property
    def of_evaluations(self) -> bool:
        """Whether a callback wants to know of evaluations."""
        return self.hooks.has("on_evaluation")

    def watch(self, problems: list[Problem]) -> None:
        """Notice from here on if a user's callback changes what workers compute with."""
        if self.hooks.of_users:
            self._watches = [ProblemWatch(problem) for problem in problems]

    def begin(self, info: RunInfo) -> None:
        """Call the first hook; raise the exception of a callback that cannot begin."""
        self._announced = True
        self._call("on_begin", info)
        if self.hooks.failed is not None:
            raise self.hooks.failed

    def later(self, hook: str, info: Any) -> None:
        """Call a hook after the commands that follow the current event."""
        self._news.append((hook, info))

    def tell_news(self, driver: Driver) -> None:
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
            self._call(*self._news.pop(0))

    def tell_lost(self, event: Lost) -> None:
        """Tell that a worker was lost."""
        self._call("on_worker_lost", LostInfo(event.worker, self.driver.step, event.time, event.reason, event.gone))

    def too_late(self) -> None:
        """Let callbacks no longer end the run, which has ended."""
        self._ended = True

    def end(self, error: BaseException | None, run: Run | None) -> None:
        """Call the last hook, if the first has been called."""
        if self._announced:
            loss, metric = (None, None) if run is None else (run.loss, (run.metric or {}).get("value"))
            self._ended = True
            self._call(
                "on_end",
                EndInfo(
                    step=self.driver.step, seconds=self.driver.time, loss=loss, metric=metric, run=run, error=error
                ),
            )

    def _call(self, hook: str, info: Any) -> None:
        """Call a hook of all callbacks; if a callback ends the run, it ends after the current event."""
        if self.hooks(hook, info) and not self._ended:
            if self.hooks.failed is None:
                self.driver.end()
            else:
                self.driver.interrupt()
