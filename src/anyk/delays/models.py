"""Delay laws: constant, uniform, exponential, shifted exponential, Pareto, two-valued, heterogeneous."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from anyk.checks import typed
from anyk.delays.base import DelayModel, Floats, check_seconds
from anyk.errors import BadInput

HEAVIEST = 0.1  # exponent of a Pareto law; with a smaller one the longest draws overflow


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
        check_seconds("the value of 'constant'", self.value)

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
        check_seconds("'low' of 'uniform'", self.low, strictly=False)
        check_seconds("'high' of 'uniform'", self.high)
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
        check_seconds("the mean of 'exp'", self.mean)

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
        check_seconds("the shift of 'shifted-exp'", self.shift, strictly=False)
        check_seconds("the mean of 'shifted-exp'", self.mean)

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
        check_seconds("the minimum of 'pareto'", self.minimum)
        check_seconds("the alpha of 'pareto'", self.alpha)
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
        check_seconds("'fast' of 'bimodal'", self.fast, strictly=False)
        check_seconds("'slow' of 'bimodal'", self.slow)
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
            check_seconds("each mean of 'hetero'", mean)

    def seconds(self, uniforms: Floats, worker: int) -> Floats:
        """See :meth:`DelayModel.seconds`."""
        return -self.expected(worker) * np.log1p(-uniforms)

    def cdf(self, seconds: Floats, worker: int) -> Floats:
        """See :meth:`DelayModel.cdf`."""
        return -np.expm1(-np.maximum(seconds, 0.0) / self.expected(worker))

    def expected(self, worker: int = 0) -> float:
        """See :meth:`DelayModel.expected`."""
        return self.means[worker % len(self.means)]
