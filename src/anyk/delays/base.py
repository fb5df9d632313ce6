"""The base class of delay laws: seconds drawn by key, and the facts that a law knows of itself.

A law knows its distribution, mean and order statistics; those that have no closed form are None, and whoever asked
simulates instead. Keyed uniform draws become seconds, so a delay is a pure function of (seed, worker, number) and
strategies that are compared meet the same luck. Seconds are rounded to the nanosecond, which makes them equal on
machines whose logarithms differ in the last bit.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, fields
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from anyk import keyed
from anyk.errors import BadInput
from anyk.specs import show

Floats = NDArray[np.float64]
_FAR = 1e15  # beyond it distribution functions are 1 to rounding, and tell nothing of the tail
MOST = 1e9  # seconds; sums of draws of longer ones are no longer good to a microsecond, or overflow


def check_seconds(name: str, value: float, *, strictly: bool = True) -> None:
    """Raise :class:`~anyk.errors.BadInput` unless ``value`` is 0 (above 0 if ``strictly``) to :data:`MOST` seconds."""
    if not 0.0 <= value < float("inf") or (strictly and not value):
        rule = "above 0" if strictly else "at least 0"
        raise BadInput(f"{name} must be a finite number {rule}, got {value:g}; for no delay at all use 'none'")
    if value > MOST:
        raise BadInput(f"{name} must be at most {MOST:g} s (30 years), got {value:g}")


@dataclass(frozen=True)
class DelayModel(ABC):
    """How long a worker is held up before its reply is ready, in seconds, beyond its real computation.

    ``by``: what numbers the draws of a worker: its dispatched ``task``s (default), the ``round`` (model version), or
    the ``item`` (model version and how-many-th task on it). ``per="load"``: the drawn seconds are for one partition and
    held before each; ``per="task"``: once, before the first. ``uninterruptible``: the worker cannot be preempted while
    it is held up.
    """

    by: Literal["task", "round", "item"] = field(default="task", kw_only=True)
    per: Literal["task", "load"] = field(default="task", kw_only=True)
    uninterruptible: bool = field(default=False, kw_only=True)
    name: ClassVar[str] = ""

    def __post_init__(self) -> None:
        for key, known in (("by", ("task", "round", "item")), ("per", ("task", "load"))):
            if getattr(self, key) not in known:
                raise BadInput(f"{key} of '{self.name}' must be one of {', '.join(known)}, got {getattr(self, key)!r}")

    @property
    def spec(self) -> str:
        """The short form that :func:`anyk.delays.parse` reads back."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.init}
        return show(self.name, values, {f.name: f.default for f in fields(self)})

    @abstractmethod
    def seconds(self, uniforms: Floats, worker: int) -> Floats:
        """The delays that uniform draws in [0, 1) stand for, same shape; finite and at least 0."""

    def draws(self, seed: int, worker: int, start: int, count: int) -> Floats:
        """Delays ``start`` to ``start + count - 1`` of a worker, in seconds, shape (count,).

        >>> import anyk
        >>> law = anyk.delays.Exponential(mean=0.5)
        >>> law.draws(1, 0, 3, 2).tolist() == law.draws(1, 0, 0, 5)[3:].tolist()
        True
        """
        draws = keyed.uniforms(seed, "delay", worker, start=start, count=count)
        return self._rounded(draws, worker)

    def item_draw(self, seed: int, worker: int, version: int, repeat: int) -> float:
        """The delay of a worker's ``repeat``-th task on a model version (``by="item"``)."""
        draws = keyed.uniforms(seed, "delay-item", worker, version, start=repeat, count=1)
        return float(self._rounded(draws, worker)[0])

    def _rounded(self, uniforms: Floats, worker: int) -> Floats:
        """Seconds to the nanosecond; raises where a law of the user's gives what is no delay."""
        found = np.asarray(self.seconds(uniforms, worker))
        if found.shape != uniforms.shape or not (found.min(initial=0.0) >= 0.0 and found.max(initial=0.0) < np.inf):
            raise BadInput(
                f"seconds of '{self.name}' must be finite numbers of at least 0, shape {uniforms.shape}, "
                f"got {np.array2string(found, precision=3, threshold=4, edgeitems=2)}, shape {found.shape}"
            )
        return np.round(found, 9)

    # ------------------------------------------------------------------------------------------- facts

    silent: ClassVar[bool] = False  # no delay at all
    memoryless: ClassVar[bool] = False  # what is left of a delay under way is distributed as a new one

    def cdf(self, seconds: Floats, worker: int) -> Floats | None:
        """P(delay <= seconds) of a worker, same shape as ``seconds``; None where it is not known."""
        del seconds, worker
        return None

    def expected(self, worker: int = 0) -> float | None:
        """Mean delay of a worker in seconds: inf where it does not exist, None where it is not known.

        >>> import anyk
        >>> anyk.delays.Pareto(minimum=1.0, alpha=3.0).expected(), anyk.delays.Pareto(minimum=1.0, alpha=1.0).expected()
        (1.5, inf)
        """
        del worker
        return None

    def order_statistic(self, k: int, workers: int) -> float | None:
        """Mean of the k-th smallest of one delay for each of ``workers`` workers, in seconds.

        Here of independent delays, by integrating the chance that fewer than k are over; None where the distribution
        is not known.

        >>> import anyk
        >>> round(anyk.delays.Heterogeneous((1.0, 1.0, 1.0, 1.0)).order_statistic(2, 4) or 0, 6)  # 1/4 + 1/3
        0.583333
        """
        return mean_of_kth(self, k, workers)

    def longest_sum(self, count: int, workers: int) -> float | None:
        """Mean of the largest of ``workers`` sums of ``count`` independent delays, in seconds; None where not known."""
        del count, workers
        return None

    def short_of(self, k: int, workers: int, begin: float, end: float) -> float | None:
        """Mean time between ``begin`` and ``end`` in which fewer than k of independent delays are over, in seconds.

        None for a law without a distribution.

        >>> import anyk
        >>> round(anyk.delays.Exponential(mean=1.0).short_of(1, 4, 0.0, 9.0) or 0, 6)  # of the first of four
        0.25
        """
        if self.cdf(np.zeros(1), 0) is None:
            return None
        from scipy.integrate import quad

        return float(quad(lambda t: _fewer(self, k, workers, t), begin, end, limit=500, full_output=1)[0])

    def at_load(self, seconds: float, relative_load: float) -> float:
        """A drawn delay adjusted to the share of the data that the task covers; only traces change it."""
        del relative_load
        return seconds

    def check_fleet(self, workers: int) -> None:
        """Raise :class:`~anyk.errors.BadInput` when the model cannot serve this many workers."""
        del workers


def _fewer(law: DelayModel, k: int, workers: int, t: float) -> float:
    """The chance that fewer than k of independent delays are over by t."""
    counts = np.zeros(k)  # chance that exactly j < k are
    counts[0] = 1.0
    for worker in range(workers):
        known = law.cdf(np.array([t]), worker)
        p = float(known[0]) if known is not None else 0.0
        counts[1:] = counts[1:] * (1.0 - p) + counts[:-1] * p
        counts[0] *= 1.0 - p
    return float(counts.sum())


def mean_of_kth(law: DelayModel, k: int, workers: int) -> float | None:
    """Mean of the k-th smallest of independent delays: ``integral of P(fewer than k of them <= t) dt``, in seconds.

    The number of workers that are done by t is Poisson-binomial. The integral is taken over pieces that double in
    length until a piece no longer counts. None for a law without a distribution, and where the tail is so heavy that
    the pieces go on counting: then the mean may be infinite. Good to about six digits: jumps of the distribution cost
    the rest, of which SciPy would warn.
    """
    if law.cdf(np.zeros(1), 0) is None:
        return None
    from scipy.integrate import quad

    def fewer(t: float) -> float:
        return _fewer(law, k, workers, t)

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
