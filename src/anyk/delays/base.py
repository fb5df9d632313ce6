"""The base class of delay models: seconds sampled by key, and facts about their distribution; streams of their samples.

A model provides its distribution, mean and order statistics; each is None if it has no closed form, and the caller
simulates instead. Keyed uniform draws become seconds, so a delay is a pure function of (seed, worker, number) and
strategies that are compared meet the same luck. Seconds are rounded to the nanosecond, which makes them equal on
machines whose logarithms differ in the last bit.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Annotated, ClassVar, Literal

import msgspec
import numpy as np

from anyk.base.arrays import Floats
from anyk.base.checks import check_value
from anyk.base.errors import BadInput
from anyk.base.keyed import keyed_uniforms
from anyk.base.specs import show_spec

_FAR = 1e15  # seconds beyond which distribution functions are 1 up to rounding, and say nothing about the tail
MOST = 1e9  # seconds; sums of longer draws are not accurate to a microsecond, or overflow

Seconds = Annotated[float, msgspec.Meta(gt=0, le=MOST)]
SecondsOrZero = Annotated[float, msgspec.Meta(ge=0, le=MOST)]


@dataclass(frozen=True)
class DelayModel(ABC):
    """Seconds by which a worker's reply is delayed, beyond its real computation.

    ``by``: what numbers the draws of a worker: its dispatched ``task``s (default), the ``round`` (model version), or
    the ``item`` (model version, and number of the task on it). ``per="load"``: the worker waits for the drawn seconds
    before each partition; ``per="task"``: once, before the first. ``uninterruptible``: the worker cannot be preempted
    while it waits.
    """

    by: Literal["task", "round", "item"] = field(default="task", kw_only=True)
    per: Literal["task", "load"] = field(default="task", kw_only=True)
    uninterruptible: bool = field(default=False, kw_only=True)
    name: ClassVar[str] = ""

    def __post_init__(self) -> None:
        # a custom model need not be typed
        check_value(self.by, Literal["task", "round", "item"], f"by of '{self.name}'")
        check_value(self.per, Literal["task", "load"], f"per of '{self.name}'")

    @property
    def spec(self) -> str:
        """The short form that :func:`anyk.delays.parse` reads back."""
        return self._spec_with()

    def _spec_with(self, **replaced: str) -> str:
        """Return the short form, with some fields shown as given."""
        defaults = {f.name: f.default for f in fields(self)}
        return show_spec(self.name, {name: vars(self)[name] for name in defaults} | replaced, defaults)

    @abstractmethod
    def seconds(self, uniforms: Floats, worker: int) -> Floats:
        """Return the delays for uniform draws in [0, 1), same shape, in seconds; finite and at least 0."""

    def draws(self, seed: int, worker: int, start: int, count: int) -> Floats:
        """Return delays ``start`` to ``start + count - 1`` of a worker, in seconds, shape (count,).

        >>> import anyk
        >>> model = anyk.delays.Exponential(mean=0.5)
        >>> model.draws(1, 0, 3, 2).tolist() == model.draws(1, 0, 0, 5)[3:].tolist()
        True
        """
        return self.rounded(keyed_uniforms(seed, "delay", worker, start=start, count=count), worker)

    def item_draw(self, seed: int, worker: int, version: int, repeat: int) -> float:
        """Return the delay of a worker's ``repeat``-th task on a model version (``by="item"``), in seconds."""
        draws = keyed_uniforms(seed, "delay-item", worker, version, start=repeat, count=1)
        return float(self.rounded(draws, worker)[0])

    def rounded(self, uniforms: Floats, worker: int) -> Floats:
        """Return the seconds, rounded to nanoseconds; raise if a custom delay model returns something else."""
        seconds = np.asarray(self.seconds(uniforms, worker))
        valid = seconds.dtype.kind in "iuf" and seconds.min(initial=0.0) >= 0.0 and seconds.max(initial=0.0) < np.inf
        if seconds.shape != uniforms.shape or not valid:
            raise BadInput(
                f"seconds of '{self.name}' must be finite numbers of at least 0, shape {uniforms.shape}, "
                f"got {np.array2string(seconds, precision=3, threshold=4, edgeitems=2)}, shape {seconds.shape}"
            )
        return np.round(seconds, 9)

    # ------------------------------------------------------------------------------------------- facts

    @property
    def is_plain_law(self) -> bool:
        """Whether ``by``, ``per`` and ``uninterruptible`` are not set, as within another model."""
        return (self.by, self.per, self.uninterruptible) == ("task", "task", False)

    silent: ClassVar[bool] = False  # no delay at all
    memoryless: ClassVar[bool] = False  # the remainder of a delay is distributed as a new delay

    @property
    def steady(self) -> bool:
        """Whether a worker that never waits has the expected delay on average, however its delays number its draws."""
        return True

    def cdf(self, seconds: Floats, worker: int) -> Floats | None:
        """Return P(delay <= seconds) of a worker, same shape as ``seconds``; None if it is not known."""
        return None

    def expected(self, worker: int = 0) -> float | None:
        """Return the mean delay of a worker in seconds: inf if it does not exist, None if it is not known.

        >>> import anyk
        >>> anyk.delays.Pareto(minimum=1.0, alpha=3.0).expected(), anyk.delays.Pareto(minimum=1.0, alpha=1.0).expected()
        (1.5, inf)
        """
        return None

    def order_statistic(self, k: int, workers: int) -> float | None:
        """Return the mean of the k-th smallest of one delay for each of ``workers`` workers, in seconds.

        By default of independent delays, ``integral of P(fewer than k <= t) dt``; the number of workers that are done
        by t is Poisson-binomial. The integral is taken over pieces that double in length until a piece no longer
        counts. None for a model without a distribution, and if the tail is so heavy that all pieces count: then the
        mean may be infinite. Accurate to about six digits, because distributions may jump.

        >>> import anyk
        >>> round(anyk.delays.Heterogeneous((1.0, 1.0, 1.0, 1.0)).order_statistic(2, 4) or 0, 6)  # 1/4 + 1/3
        0.583333
        """
        if self.cdf(np.zeros(1), 0) is None:
            return None
        from scipy.integrate import quad

        fewer = partial(_fewer, self, k, workers)
        end = 1e-9
        while fewer(end) > 0.5 and end < _FAR:
            end *= 2.0
        total = float(quad(fewer, 0.0, end, limit=500, epsabs=0.0, epsrel=1e-10, full_output=1)[0])
        while end < _FAR:
            piece = float(quad(fewer, end, 2.0 * end, limit=200, epsabs=1e-13 * total, epsrel=1e-9, full_output=1)[0])
            total, end = total + piece, 2.0 * end
            if piece <= 1e-12 * total:
                return total
        return None

    def longest_sum(self, count: int, workers: int) -> float | None:
        """Return the mean of the largest of ``workers`` sums of ``count`` independent delays, in seconds, or None."""
        return None

    def short_of(self, k: int, workers: int, begin: float, end: float) -> float | None:
        """Return the mean time between ``begin`` and ``end`` with fewer than k independent delays over, in seconds.

        None for a model without a distribution.

        >>> import anyk
        >>> round(anyk.delays.Exponential(mean=1.0).short_of(1, 4, 0.0, 9.0) or 0, 6)  # of the first of four
        0.25
        """
        if self.cdf(np.zeros(1), 0) is None:
            return None
        from scipy.integrate import quad

        return float(quad(partial(_fewer, self, k, workers), begin, end, limit=500, full_output=1)[0])

    def at_load(self, seconds: float, relative_load: float) -> float:
        """Return a drawn delay adjusted to the share of the data that the task covers; only traces change it."""
        return seconds

    def check_fleet(self, workers: int) -> None:  # noqa: B027
        """Raise :class:`~anyk.BadInput` if the model cannot serve this number of workers."""


def _fewer(model: DelayModel, k: int, workers: int, t: float) -> float:
    """Return the chance that fewer than k of independent delays are over by t."""
    counts = np.zeros(k)  # chance that exactly j < k are
    counts[0] = 1.0
    for worker in range(workers):
        chance = model.cdf(np.array([t]), worker)
        p = float(chance[0]) if chance is not None else 0.0
        counts[1:] = counts[1:] * (1.0 - p) + counts[:-1] * p
        counts[0] *= 1.0 - p
    return float(counts.sum())


_BLOCK = 256


class DelayStream:
    """The delays of a fleet by (worker, number), from a block of draws for each worker."""

    def __init__(self, model: DelayModel, seed: int, workers: int) -> None:
        model.check_fleet(workers)
        self.model = model
        self.silent = model.silent
        self._seed = seed
        self._starts = [-1] * workers
        self._row_start = 0
        self._rows: list[list[float]] = []
        self._blocks: list[list[float]] = [[] for _ in range(workers)]

    def at(self, worker: int, number: int) -> float:
        """Return the ``number``-th delay of a worker, in seconds."""
        offset = number - self._starts[worker]
        if not 0 <= offset < _BLOCK or self._starts[worker] < 0:
            start = number - number % _BLOCK
            self._starts[worker] = start
            self._blocks[worker] = self.model.draws(self._seed, worker, start, _BLOCK).tolist()
            offset = number - start
        return self._blocks[worker][offset]

    def row(self, number: int) -> list[float]:
        """Return the ``number``-th delay of every worker, in seconds."""
        if not self._row_start <= number < self._row_start + len(self._rows):
            start = self._row_start = number - number % _BLOCK
            workers = range(len(self._starts))
            columns = [self.model.draws(self._seed, worker, start, _BLOCK).tolist() for worker in workers]
            self._rows = [list(row) for row in zip(*columns, strict=True)]
        return self._rows[number - self._row_start]

    def for_task(
        self, worker: int, *, number: int, version: int, repeat: int, partitions: int, relative_load: float
    ) -> tuple[float, float]:
        """Return the seconds of delay before a task and before each of its partitions.

        ``number``: tasks that were dispatched to the worker before; ``version``: the model version; ``repeat``: the
        worker's tasks on that version before.
        """
        if self.silent:
            return 0.0, 0.0
        by = self.model.by
        if by == "item":
            seconds = self.model.item_draw(self._seed, worker, version, repeat)
        else:
            seconds = self.at(worker, number if by == "task" else version)
        if self.model.per == "load":
            return 0.0, seconds
        return self.model.at_load(seconds, relative_load), 0.0
