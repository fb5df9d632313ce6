"""Waiting for descriptors of any number (``select.select`` refuses those from 1,024 on), and names of signals."""

from __future__ import annotations

import select
import signal
import time
from collections.abc import Sequence

_SLICE = 1e-4  # seconds between two looks in the last millisecond, as poll() counts in milliseconds


def readable(descriptors: Sequence[int], seconds: float | None = None) -> set[int]:
    """Return the descriptors that can be read without waiting, or have ended; wait for one up to ``seconds``.

    >>> import os
    >>> reader, writer = os.pipe()
    >>> readable([reader], 0.0)
    set()
    >>> os.write(writer, b"!")
    1
    >>> readable([reader]) == {reader}
    True
    >>> os.close(reader), os.close(writer)
    (None, None)
    """
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    until = None if seconds is None else time.monotonic() + seconds
    ready = poll.poll(None if seconds is None else int(seconds * 1000))
    while not ready and until is not None and (left := until - time.monotonic()) > 0.0:
        time.sleep(min(left, _SLICE))
        ready = poll.poll(0)
    return {descriptor for descriptor, _ in ready}


def signal_name(number: int) -> str:
    """Return the name of a signal; real-time signals between the first and the last have none.

    >>> signal_name(9), signal_name(35)
    ('SIGKILL', 'signal 35')
    """
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
