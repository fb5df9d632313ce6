"""Rounds of a code whose workers send several messages, each when its own partitions are done."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from anyk.checks import typed
from anyk.codes.base import Floats
from anyk.strategies.rounds.rounds import Rounds
from anyk.strategies.wait import Decodable


@typed
@dataclass(frozen=True, repr=False)
class PartRounds(Rounds):
    """Rounds of a code of several messages a worker, which can be planned without being simulated.

    >>> import numpy as np
    >>> import anyk
    >>> anyk.strategy("partial", workers=4).durations(np.array([[1.0, 1.0, 1.0, 9.0]])).tolist()
    [9.0]
    """

    @property
    def vectors_sent(self) -> float:
        """See :class:`~anyk.protocol.Strategy`."""
        return float(self.code.workers + self.code.replies)

    def durations(self, seconds: Floats) -> Floats | None:
        """See :class:`~anyk.protocol.Strategy`."""
        return self.durations_by_parts(seconds, np.zeros_like(seconds))

    def durations_by_parts(self, seconds: Floats, whole: Floats) -> Floats | None:
        """See :class:`~anyk.protocol.Strategy`: a message comes when all but the worker's later ones is done."""
        if not isinstance(self.rule, Decodable) or self.cancel != "preempt" or not self._own or self.snapshot:
            return None
        sizes = np.array([len(held) for held, _ in self.code.rows]).reshape(-1, self.code.messages)
        later = sizes[:, ::-1].cumsum(axis=1)[:, ::-1] - sizes
        arrivals = seconds[:, :, None] - later * whole[:, :, None] / self.code.partitions
        return self.code.finish_times(arrivals.reshape(len(seconds), -1))
