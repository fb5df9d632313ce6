"""The progress of a run: a live line on a terminal, a live picture in a notebook, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import sys
import time as clock
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from anyk.base.html import html_bar, html_curves, html_text
from anyk.runs.callbacks import Callback, Callbacks, EndInfo, RunInfo, StepInfo

if TYPE_CHECKING:
    from rich.console import Console

_LIVE = 0.1  # seconds between redraws on a terminal
_CELL = 0.5  # seconds between redraws in a notebook
_PLAIN = 2.0  # seconds between lines elsewhere


class LiveProgress(Callback):
    """A callback that shows loss, metric, steps, seconds and the number of workers on time.

    ``console``: by default standard error or, in a notebook, the cell's output, with a plot of the loss.
    """

    def __init__(self, console: Console | None = None, *, quiet: bool = False) -> None:
        from rich.console import Console

        self._cell = _Cell() if console is None and not quiet and in_notebook() else None
        self._console, self._quiet = console or Console(stderr=True), quiet
        self._last = 0.0
        self._live: Any = None
        self._run: RunInfo | None = None
        self._first = True

    def __enter__(self) -> Self:
        if self._console.is_terminal and not self._quiet:
            from rich.live import Live

            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        if self._live is not None:
            self._live.__exit__(*error)

    def on_begin(self, info: RunInfo) -> None:
        self._run, self._first = info, True
        if self._cell is not None:
            self._cell = _Cell(info)

    def on_step(self, info: StepInfo) -> None:
        if self._cell is not None:
            self._cell.step(info, show=self._due())
            return
        if not self._due():
            return
        first, self._first = self._first, False
        if self._run is not None and (self._live is not None or not first):  # no first line in a file
            self._show(describe(self._run, info))

    def on_end(self, info: EndInfo) -> None:
        if self._cell is not None:
            self._cell.show()

    def stage(self, text: str, *, always: bool = True) -> None:
        """Show a line on the work between two steps, such as the start of workers or an evaluation."""
        if not self._quiet and (self._due() or always):
            self._show(text)

    def _due(self) -> bool:
        """Return whether it is time for another line; if so, remember the time."""
        now = clock.monotonic()
        every = _CELL if self._cell is not None else _LIVE if self._live is not None else _PLAIN
        if self._quiet or now - self._last < every:
            return False
        self._last = now
        return True

    def _show(self, line: str) -> None:
        from rich.text import Text

        if self._cell is not None:
            self._cell.show(line)
        elif self._live is not None:
            self._live.update(Text(line, overflow="ellipsis", no_wrap=True), refresh=True)
        else:
            self._console.print(line, highlight=False, markup=False, soft_wrap=True)


def in_notebook() -> bool:
    """Return whether this process is a notebook's kernel, without importing IPython."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None


@dataclass
class _Cell:
    """The progress of a run, or of its start, in the output of a notebook's cell, updated in place."""

    _run: RunInfo | None = None
    _handle: Any = None
    _last: StepInfo | None = None
    _losses: dict[int, tuple[float, float]] = field(default_factory=dict)  # seconds and loss, by version

    def step(self, info: StepInfo, *, show: bool) -> None:
        """Store a step, and draw it if ``show``."""
        self._last = info
        if info.loss is not None and info.evaluated is not None:
            self._losses.setdefault(info.evaluated, (info.seconds, info.loss))
        if show:
            self.show()

    def show(self, stage: str = "") -> None:
        """Draw the state of the run; ``stage``: the work between two steps."""
        from IPython.display import HTML, display

        if self._run is None or self._last is None:
            words, picture = stage, ""
        else:
            limit = self._run.config.steps
            words = describe(self._run, self._last) + (f"  ({stage})" if stage else "")
            picture = html_bar(self._last.driver.step / limit) if limit else ""
            if len(self._losses) > 1:
                times, losses = zip(*self._losses.values(), strict=True)
                picture += html_curves({self._run.strategy: (times, losses)}, "loss")
        page = HTML(html_text(words) + picture)
        if self._handle is None:
            self._handle = display(page, display_id=True)
        else:
            self._handle.update(page)


def describe(run: RunInfo, info: StepInfo) -> str:
    """Return a line on the state of a run; the most important values are first, as narrow screens show only these."""
    steps = run.config.steps
    parts = [f"step {info.driver.step}/{steps}" if steps else f"step {info.driver.step}"]
    if info.loss is not None:
        parts.append(f"loss {info.loss:.4g}")
    if info.metric is not None:
        parts.append(f"{run.metric} {info.metric:.4f}")
    parts += [f"{info.workers} of {run.config.workers.most} workers on time", f"{info.seconds:.1f} s", run.strategy]
    return "  ".join(parts)


@contextlib.contextmanager
def showing(progress: bool, callbacks: Callbacks) -> Iterator[Callbacks]:
    """Yield the callbacks, with one more that shows progress if ``progress``."""
    if not progress:
        yield callbacks
        return
    with LiveProgress() as display:
        yield callbacks.also(display)
