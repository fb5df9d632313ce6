"""Entries of the virtual clock's heap: the next event of a task, and its time."""

from __future__ import annotations

# (time, task, worker, chunk, kind); of two at the same time the one of the earlier task comes first. A plain tuple: the
# heap compares them by the million. A kind from 1 on is the number of partitions that are finished.
Entry = tuple[float, int, int, int, int]

DUE = -1  # a chunk's delay is over: its message arrives, or, where computing takes time, it queues for a core
REQUESTED = -2  # a message that was requested has been sent
COMPUTED = -3  # a chunk leaves its core, and its message arrives
