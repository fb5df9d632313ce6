"""A limit on what might hang."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def within(seconds: float, *, error: type[Exception] = AssertionError, of_processor: bool = False) -> Iterator[None]:
    """Raise ``error`` in whatever takes more seconds; ``of_processor``: waiting does not count."""

    def ring(*_: Any) -> None:
        raise error(f"it hangs: nothing within {seconds} s")

    timer, number = (signal.ITIMER_PROF, signal.SIGPROF) if of_processor else (signal.ITIMER_REAL, signal.SIGALRM)
    before = signal.signal(number, ring)
    signal.setitimer(timer, seconds)
    try:
        yield
    finally:
        signal.setitimer(timer, 0)
        signal.signal(number, before)
