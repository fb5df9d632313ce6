"""Expected seconds of an update, in closed form, for the K family under the common delay models."""

from __future__ import annotations

from anyk.delays import DelayModel
from anyk.protocol import Pace, Strategy


def pace(strategy: Strategy, delays: DelayModel) -> Pace:
    """Return the expected seconds of an update and the mean staleness, without computing and communication.

    Dutta, Joshi, Ghosh, Dube and Nagpurkar 2018; preemption is assumed, and delays that do not depend on load. Each
    strategy states it in its :class:`~anyk.protocol.StrategyFacts`.

    >>> import anyk
    >>> pace(anyk.strategy("k-batch-async:k=4", workers=8), anyk.delays.Exponential(mean=1.0))
    Pace(seconds=0.5, staleness=1.75, why="k over the sum of the workers' rates, whatever the law")
    """
    delays.check_fleet(strategy.layout.workers)
    return strategy.facts.pace(delays)
