"""What is known of a step when it begins, and when it has been taken, as plain data."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from anyk.protocol import Combine, Mix
from anyk.runs.log.schema import Update


class StepBegun(NamedTuple):
    """A step whose model has not been computed yet.

    ``command``: the strategy's, with the messages inside messages in place of those that contain them. ``version``: the
    number of the version that it makes. ``time``: of the event that led to it. ``cancelled``: the tasks that the
    strategy cancels together with it.
    """

    command: Combine | Mix
    version: int
    time: float
    cancelled: tuple[int, ...]


class StepRecord(NamedTuple):
    """A step that was taken.

    ``update``: its row in the log; without log and problem, the statistics of its messages are 0. ``command``: the
    strategy's, with the messages inside messages in place of those that contain them. ``used_by``: the workers whose
    messages were used for the first time.
    """

    update: Update
    command: Combine | Mix
    used_by: Collection[int] = ()
