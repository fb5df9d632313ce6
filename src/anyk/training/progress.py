"""Progress while a run goes on: a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import time as clock
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from anyk.training.driver import Driver
from anyk.training.evaluation import Evaluator

if TYPE_CHECKING:
    from rich.console import Console

Watch = Callable[[Driver, Evaluator], None]
_LIVE = 0.1  # seconds between redraws on a terminal
_PLAIN = 2.0  # seconds between lines elsewhere


class Progress:
    """Shows loss, metric, steps, seconds and workers on time; pass it as ``watch``.

    ``console``: where; standard error if left out. ``also``: called after every step as well.
    """

    def __init__(
        self,
        console: Console | None = None,
        *,
        quiet: bool = False,
        also: Watch | None = None,
    ) -> None:
        from rich.console import Console

        self._console, self._quiet, self._also = console or Console(stderr=True), quiet, also
        self._last = 0.0
        self._live: Any = None
        self._shown: tuple[Driver, Evaluator] | None = None

    def __enter__(self) -> Self:
        if self._console.is_terminal and not self._quiet:
            from rich.live import Live

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
        if self._also is not None:
            self._also(driver, evaluator)
        if not self._due():
            return
        first = self._shown is None or self._shown[0] is not driver
        self._shown = driver, evaluator
        if self._live is not None or not first:  # in a file a run's first step says nothing yet
            self._show(describe(driver, evaluator))

    def stage(self, text: str, *, at_once: bool = True) -> None:
        """What goes on between steps: workers start, versions are evaluated."""
        if not self._quiet and (self._due() or at_once):
            self._show(text)

    def _due(self) -> bool:
        """Whether it is time for another line; if so, the next is due a while later."""
        now = clock.monotonic()
        if self._quiet or now - self._last < (_LIVE if self._live is not None else _PLAIN):
            return False
        self._last = now
        return True

    def _show(self, text: str) -> None:
        from rich.text import Text

        if self._live is not None:
            self._live.update(Text(text, overflow="ellipsis", no_wrap=True), refresh=True)
        else:
            self._console.print(text, highlight=False, markup=False, soft_wrap=True)


def describe(driver: Driver, evaluator: Evaluator) -> str:
    """One line on how a run stands."""
    of = f"/{driver.steps}" if driver.steps else ""
    parts = [f"{driver.strategy.spec}", f"step {driver.step}{of}", f"{driver.time:.1f} s"]
    latest = evaluator.latest
    if latest is not None:
        if latest.loss is not None:
            parts.append(f"loss {latest.loss:.4g}")
        if latest.metric is not None:
            parts.append(f"{evaluator.problem.metric} {latest.metric:.4f}")
    parts.append(f"{driver.on_time} of {driver.layout.workers} workers on time")
    return "  ".join(parts)


@contextlib.contextmanager
def showing(progress: bool, watch: Watch | None) -> Iterator[Watch | None]:
    """``watch``, with progress shown besides if that is asked for."""
    if not progress:
        yield watch
        return
    with Progress(also=watch) as shown:
        yield shown


def stage(watch: Watch | None, text: str, *, at_once: bool = True) -> None:
    """Tell who watches, if it can show that, what goes on between steps."""
    stage = getattr(watch, "stage", None)
    if stage is not None:
        stage(text, at_once=at_once)
