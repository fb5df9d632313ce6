"""Facts of a strategy that planners and compressors need without running it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from anyk.arrays import Floats
from anyk.protocol.pace import DelayLaw, Pace

if TYPE_CHECKING:
    from anyk.protocol.strategy import Strategy


class CompressorFacts(Protocol):
    """The properties of a compressor of messages on which a strategy may depend."""

    @property
    def spec(self) -> str:
        """The compressor's spec."""
        ...

    @property
    def promise(self) -> str:
        """The property of messages that can be relied on: linear, unbiased or contractive."""
        ...


@dataclass(frozen=True, kw_only=True)
class StrategyFacts:
    """Optional facts that make a strategy easier to plan.

    ``exact``: every step is the exact sum. ``models``: the number of models trained simultaneously, if the layout takes
    long to build. ``shares_computed``: the share of the data that each worker computes in a step (None: its
    partitions). ``share_stored``: the largest share that a worker stores (None: its partitions). ``vectors_sent``: the
    largest number of vectors of the model's length that workers receive and send in a step (None: unknown).

    ``pace(delays)``: seconds and staleness of an update under a delay model. ``durations(seconds, whole)``: seconds of
    each round, shape (rounds,), if workers take ``seconds`` for their tasks and ``whole`` for all of the data, both of
    shape (rounds, workers); a partition takes its share of ``whole``, and partitions are computed in order at the end
    of a task. None: simulate. ``adapted(seconds, slopes, load)``: the strategy after it has adapted to workers that
    take ``seconds``, shape (rounds, workers), for the share ``load`` of the data, and ``slopes``, shape (workers,), for
    all of it.

    ``for_jobs(jobs)``: the strategy for a number of steps of all models together, which take ``extra_rounds`` more
    rounds. ``round_seconds(state)``: seconds of each round so far, and the number of rounds that waited for stragglers.
    ``check_further(state, steps, begun)`` raises :class:`~anyk.errors.BadInput` if a state cannot continue beyond the
    planned ``steps``, including ``begun`` steps of an earlier run. ``check_compressor(by)`` raises it if messages must
    not be compressed by this compressor; without it no compressor is accepted.
    """

    exact: bool = False
    models: int | None = None
    shares_computed: Sequence[float] | None = None
    share_stored: float | None = None
    vectors_sent: float | None = None
    pace: Callable[[DelayLaw], Pace] = lambda delays: Pace(None, None, "no closed form; simulate")
    durations: Callable[[Floats, Floats], Floats | None] = lambda seconds, whole: None
    adapted: Callable[[Floats, Floats, float], Strategy] | None = None
    for_jobs: Callable[[int], Strategy] | None = None
    extra_rounds: int = 0
    round_seconds: Callable[[Any], tuple[Sequence[float], int]] | None = None
    check_further: Callable[[Any, int, int], None] | None = None
    check_compressor: Callable[[CompressorFacts], None] | None = None


def models_trained(strategy: Strategy) -> int:
    """Return the number of models that a strategy trains simultaneously."""
    return strategy.facts.models or len(strategy.layout.trained)


def shares_computed(strategy: Strategy) -> Sequence[float]:
    """Return the share of the data that each worker computes in a step."""
    return strategy.facts.shares_computed or strategy.layout.shares_assigned


def share_stored(strategy: Strategy) -> float:
    """Return the largest share of the data that a worker stores."""
    return strategy.facts.share_stored or max(strategy.layout.shares_assigned)
