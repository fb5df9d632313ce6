"""Laws of how long a worker takes: constant, exponential, shifted exponential, Pareto, two-valued, heterogeneous.

A law knows its own facts (distribution, mean, order statistics); those that have no closed form are None, and whoever
asked simulates instead. Every model turns keyed uniform draws into seconds, so a delay is a pure function of (seed,
worker, number) and strategies that are compared meet the same luck. Seconds are rounded to the nanosecond, which makes
them equal on machines whose logarithms differ in the last bit.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from anyk import keyed
from anyk.checks import typed
from anyk.errors import BadInput
from anyk.specs import show

Floats = NDArray[np.float64]
_FAR = 1e15  # beyond it distribution functions are 1 to rounding, and tell nothing of the tail
MOST = 1e9  # seconds; sums of draws of longer ones are no longer good to a microsecond, or overflow
HEAVIEST = 0.1  # exponent of a Pareto law; with a smaller one the longest draws overflow


def _check(name: str, value: float, *, strictly: bool = True) -> None:
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

        >>> Exponential(mean=0.5).draws(1, 0, 3, 2).tolist() == Exponential(mean=0.5).draws(1, 0, 0, 5)[3:].tolist()
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

        >>> Pareto(minimum=1.0, alpha=3.0).expected(), Pareto(minimum=1.0, alpha=1.0).expected()
        (1.5, inf)
        """
        del worker
        return None

    def order_statistic(self, k: int, workers: int) -> float | None:
        """Mean of the k-th smallest of one delay for each of ``workers`` workers, in seconds.

        Here of independent delays, by integrating the chance that fewer than k are over; None where the distribution
        is not known.

        >>> round(Heterogeneous((1.0, 1.0, 1.0, 1.0)).order_statistic(2, 4) or 0, 6)  # 1/4 + 1/3
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

        >>> round(Exponential(mean=1.0).short_of(1, 4, 0.0, 9.0) or 0, 6)  # of the first of four
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


@dataclass(frozen=True)
class NoDelay(DelayModel):
    """No injected delay."""

    name: ClassVar[str] = "none"
    silent: ClassVar[bool] = True

    def seconds(self, uniforms: Floats, worker: int) -> Floats:
        """See :meth:`DelayModel.seconds`."""
        del worker
        return np.zeros_like(uniforms)

    def cdf(self, seconds: Floats, worker: int) -> Floats:
        """See :meth:`DelayModel.cdf`."""
        del worker
        return np.where(seconds >= 0.0, 1.0, 0.0)

    def expected(self, worker: int = 0) -> float:
        """See :meth:`DelayModel.expected`."""
        del worker
        return 0.0

    def order_statistic(self, k: int, workers: int) -> float:
        """See :meth:`DelayModel.order_statistic`."""
        del k, workers
        return 0.0

    def longest_sum(self, count: int, workers: int) -> float:
        """See :meth:`DelayModel.longest_sum`."""
        del count, workers
        return 0.0


@typed
@dataclass(frozen=True)
class Constant(DelayModel):
    """The same delay always."""

    value: float
    name: ClassVar[str] = "constant"

    def __post_init__(self) -> None:
        super().__post_init__()
        _check("the value of 'constant'", self.value)

    def seconds(self, uniforms: Floats, worker: int) -> Floats:
        """See :meth:`DelayModel.seconds`."""
        del worker
        return np.full_like(uniforms, self.value)

    def cdf(self, seconds: Floats, worker: int) -> Floats:
        """See :meth:`DelayModel.cdf`."""
        del worker
        return np.where(seconds >= self.value, 1.0, 0.0)

    def expected(self, worker: int = 0) -> float:
        """See :meth:`DelayModel.expected`."""
        del worker
        return self.value

    def order_statistic(self, k: int, workers: int) -> float:
        """See :meth:`DelayModel.order_statistic`."""
        del k, workers
        return self.value

    def longest_sum(self, count: int, workers: int) -> float:
        """See :meth:`DelayModel.longest_sum`."""
        del workers
        return count * self.value


@typed
@dataclass(frozen=True)
class Uniform(DelayModel):
    """Anything from ``low`` to ``high``, all equally likely."""

    low: float
    high: float
    name: ClassVar[str] = "uniform"

    def __post_init__(self) -> None:
        super().__post_init__()
        _check("'low' of 'uniform'", self.low, strictly=False)
        _check("'high' of 'uniform'", self.high)
        if self.high <= self.low:
            raise BadInput(f"'high' of 'uniform' must be above 'low' ({self.low:g}), got {self.high:g}")

    def seconds(self, uniforms: Floats, worker: int) -> Floats:
        """See :meth:`DelayModel.seconds`."""
        del worker
        return self.low + (self.high - self.low) * uniforms

    def cdf(self, seconds: Floats, worker: int) -> Floats:
        """See :meth:`DelayModel.cdf`."""
        del worker
        return np.clip((seconds - self.low) / (self.high - self.low), 0.0, 1.0)

    def expected(self, worker: int = 0) -> float:
        """See :meth:`DelayModel.expected`."""
        del worker
        return 0.5 * (self.low + self.high)

    def order_statistic(self, k: int, workers: int) -> float:
        """``low + (high - low) k / (n + 1)``."""
        return self.low + (self.high - self.low) * k / (workers + 1)


@typed
@dataclass(frozen=True)
class Exponential(DelayModel):
    """Exponential delays with the given mean.

    >>> float(Exponential(mean=0.5).draws(seed=0, worker=0, start=0, count=20000).mean().round(2))
    0.5
    """

    mean: float
    name: ClassVar[str] = "exp"
    memoryless: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        _check("the mean of 'exp'", self.mean)

    def seconds(self, uniforms: Floats, worker: int) -> Floats:
        """See :meth:`DelayModel.seconds`."""
        del worker
        return -self.mean * np.log1p(-uniforms)

    def cdf(self, seconds: Floats, worker: int) -> Floats:
        """See :meth:`DelayModel.cdf`."""
        del worker
        return -np.expm1(-np.maximum(seconds, 0.0) / self.mean)

    def expected(self, worker: int = 0) -> float:
        """See :meth:`DelayModel.expected`."""
        del worker
        return self.mean

    def order_statistic(self, k: int, workers: int) -> float:
        """``mean (H_n - H_(n-k))`` with the harmonic numbers H.

        >>> round(Exponential(mean=1.0).order_statistic(4, 8), 7)
        0.6345238
        """
        return self.mean * float((1.0 / np.arange(workers - k + 1, workers + 1)).sum())

    def longest_sum(self, count: int, workers: int) -> float:
        """Sums are Erlang: ``mean x integral of 1 - P(count, t)^n``, P the regularised incomplete gamma function.

        >>> round(Exponential(mean=1.0).longest_sum(10, 8) / 10, 7)
        1.4917748
        """
        from scipy.integrate import quad
        from scipy.special import gammainc

        n = workers
        top = count + 12.0 * (count * np.log(n + 1.0)) ** 0.5 + 12.0 * np.log(n + 1.0) + 40.0
        value, _ = quad(lambda t: 1.0 - gammainc(count, t) ** n, 0.0, top, limit=500, epsabs=1e-11, points=[count])
        return self.mean * float(value)


@typed
@dataclass(frozen=True)
class ShiftedExponential(DelayModel):
    """A fixed shift plus an exponential delay with the given mean."""

    shift: float
    mean: float
    name: ClassVar[str] = "shifted-exp"

    def __post_init__(self) -> None:
        super().__post_init__()
        _check("the shift of 'shifted-exp'", self.shift, strictly=False)
        _check("the mean of 'shifted-exp'", self.mean)

    def seconds(self, uniforms: Floats, worker: int) -> Floats:
        """See :meth:`DelayModel.seconds`."""
        del worker
        return self.shift - self.mean * np.log1p(-uniforms)

    def cdf(self, seconds: Floats, worker: int) -> Floats:
        """See :meth:`DelayModel.cdf`."""
        return self._beyond.cdf(seconds - self.shift, worker)

    def expected(self, worker: int = 0) -> float:
        """See :meth:`DelayModel.expected`."""
        return self.shift + self._beyond.expected(worker)

    def order_statistic(self, k: int, workers: int) -> float:
        """See :meth:`DelayModel.order_statistic`."""
        return self.shift + self._beyond.order_statistic(k, workers)

    def longest_sum(self, count: int, workers: int) -> float:
        """See :meth:`DelayModel.longest_sum`."""
        return count * self.shift + self._beyond.longest_sum(count, workers)

    @property
    def _beyond(self) -> Exponential:
        return Exponential(mean=self.mean)


@typed
@dataclass(frozen=True)
class Pareto(DelayModel):
    """Pareto delays: ``P(delay > x) = (minimum / x)^alpha``; heavy tails, no mean for alpha <= 1."""

    minimum: float
    alpha: float
    name: ClassVar[str] = "pareto"

    def __post_init__(self) -> None:
        super().__post_init__()
        _check("the minimum of 'pareto'", self.minimum)
        _check("the alpha of 'pareto'", self.alpha)
        if self.alpha < HEAVIEST:
            raise BadInput(
                f"the alpha of 'pareto' must be at least {HEAVIEST:g}, got {self.alpha:g}; delays would overflow"
            )

    def seconds(self, uniforms: Floats, worker: int) -> Floats:
        """See :meth:`DelayModel.seconds`."""
        del worker
        return self.minimum * (1.0 - uniforms) ** (-1.0 / self.alpha)

    def cdf(self, seconds: Floats, worker: int) -> Floats:
        """See :meth:`DelayModel.cdf`."""
        del worker
        return 1.0 - (self.minimum / np.maximum(seconds, self.minimum)) ** self.alpha

    def expected(self, worker: int = 0) -> float:
        """See :meth:`DelayModel.expected`."""
        del worker
        return self.minimum * self.alpha / (self.alpha - 1.0) if self.alpha > 1.0 else float("inf")

    def order_statistic(self, k: int, workers: int) -> float:
        """``x G(n+1) G(n-k+1-1/a) / (G(n-k+1) G(n+1-1/a))`` with the gamma function G; inf for a <= 1/(n-k+1)."""
        from scipy.special import gammaln

        n, a = workers, self.alpha
        if (n - k + 1) * a <= 1.0:
            return float("inf")
        log = gammaln(n + 1) + gammaln(n - k + 1 - 1 / a) - gammaln(n - k + 1) - gammaln(n + 1 - 1 / a)
        return float(self.minimum * np.exp(log))


@typed
@dataclass(frozen=True)
class Bimodal(DelayModel):
    """Fast most of the time, slow with the given probability, of each worker or one for all.

    Several probabilities, ``bimodal:fast=0,slow=1,probability=0.05/0.2/0.6``, are repeated over the fleet.
    """

    fast: float
    slow: float
    probability: tuple[float, ...] = (0.1,)
    name: ClassVar[str] = "bimodal"

    def __post_init__(self) -> None:
        super().__post_init__()
        _check("'fast' of 'bimodal'", self.fast, strictly=False)
        _check("'slow' of 'bimodal'", self.slow)
        given: Any = self.probability
        object.__setattr__(self, "probability", tuple(given) if isinstance(given, (tuple, list)) else (given,))
        if not self.probability:
            raise BadInput("'bimodal' needs at least one probability, as in probability=0.1")
        for one in self.probability:
            if not 0.0 < one < 1.0:
                raise BadInput(f"the probability of 'bimodal' must be between 0 and 1, got {one:g}")
        if self.slow <= self.fast:
            raise BadInput(f"'slow' of 'bimodal' must be above 'fast' ({self.fast:g}), got {self.slow:g}")

    def of(self, worker: int) -> float:
        """The probability with which a worker is slow."""
        return self.probability[worker % len(self.probability)]

    def seconds(self, uniforms: Floats, worker: int) -> Floats:
        """See :meth:`DelayModel.seconds`."""
        return np.where(uniforms < self.of(worker), self.slow, self.fast)

    def cdf(self, seconds: Floats, worker: int) -> Floats:
        """See :meth:`DelayModel.cdf`."""
        return np.where(seconds >= self.slow, 1.0, np.where(seconds >= self.fast, 1.0 - self.of(worker), 0.0))

    def expected(self, worker: int = 0) -> float:
        """See :meth:`DelayModel.expected`."""
        return self.fast + (self.slow - self.fast) * self.of(worker)

    def order_statistic(self, k: int, workers: int) -> float:
        """``slow - (slow - fast) P(at least k are fast)``; the number that are fast is Poisson-binomial."""
        fast = np.ones(1)  # chance that exactly j are fast
        for worker in range(workers):
            slow = self.of(worker)
            fast = np.append(fast * slow, 0.0) + np.append(0.0, fast * (1.0 - slow))
        return self.slow - (self.slow - self.fast) * float(fast[k:].sum())


@typed
@dataclass(frozen=True)
class Heterogeneous(DelayModel):
    """Exponential delays whose mean differs by worker: ``hetero:means=0.1/0.1/0.4``, repeated over the fleet."""

    means: tuple[float, ...]
    name: ClassVar[str] = "hetero"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.means:
            raise BadInput("'hetero' needs at least one mean, as in hetero:means=0.1/0.4")
        for mean in self.means:
            _check("each mean of 'hetero'", mean)

    def seconds(self, uniforms: Floats, worker: int) -> Floats:
        """See :meth:`DelayModel.seconds`."""
        return -self.expected(worker) * np.log1p(-uniforms)

    def cdf(self, seconds: Floats, worker: int) -> Floats:
        """See :meth:`DelayModel.cdf`."""
        return -np.expm1(-np.maximum(seconds, 0.0) / self.expected(worker))

    def expected(self, worker: int = 0) -> float:
        """See :meth:`DelayModel.expected`."""
        return self.means[worker % len(self.means)]
