"""Progress while a run goes on: a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time as clock
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from anyk.training.driver import Driver
from anyk.training.evaluation import Evaluator

_LIVE = 0.1  # seconds between redraws on a terminal
_PLAIN = 2.0  # seconds between lines elsewhere


class Progress:
    """Shows loss, metric, steps, seconds and workers on time; pass it as ``watch``."""

    def __init__(self, console: Console, *, quiet: bool = False) -> None:
        self._console, self._quiet = console, quiet
        self._last = 0.0
        self._live: Live | None = None
        self._shown: tuple[Driver, Evaluator] | None = None

    def __enter__(self) -> Self:
        if self._console.is_terminal and not self._quiet:
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.__exit__(kind, error, trace)

    def __call__(self, driver: Driver, evaluator: Evaluator) -> None:
        """After a step."""
        now = clock.monotonic()
        if self._quiet or now - self._last < (_LIVE if self._live is not None else _PLAIN):
            return
        first = self._shown is None or self._shown[0] is not driver
        self._shown = driver, evaluator
        self._last = now
        if self._live is not None:
            self._live.update(Text(describe(driver, evaluator), overflow="ellipsis", no_wrap=True), refresh=True)
        elif not first:  # a run's first step says nothing yet
            self._console.print(describe(driver, evaluator), highlight=False, markup=False, soft_wrap=True)


def describe(driver: Driver, evaluator: Evaluator) -> str:
    """One line on how a run stands."""
    of = f"/{driver.steps}" if driver.steps else ""
    parts = [f"{driver.strategy.spec}", f"step {driver.step}{of}", f"{driver.time:.1f} s"]
    latest = evaluator.latest
    if latest is not None:
        parts.append(f"loss {latest.loss:.4g}")
        if latest.metric is not None:
            parts.append(f"{evaluator.problem.metric} {latest.metric:.4f}")
    parts.append(f"{driver.on_time} of {driver.strategy.workers} workers on time")
    return "  ".join(parts)
