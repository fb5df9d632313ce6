"""Delay models: constant, uniform, exponential, Pareto, two-valued, heterogeneous, mixed, SciPy's, and fitted."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import ArrayLike

from anyk.base.arrays import Flags, Floats
from anyk.base.checks import FiniteNumber, PositiveNumber, value_class
from anyk.base.errors import BadInput
from anyk.delays.base import DelayModel, Seconds, SecondsOrZero

HEAVIEST = 0.1  # least exponent of a Pareto delay model; with a smaller one the longest draws overflow


class _Fixed(DelayModel):
    """The same delay always."""

    @abstractmethod
    def expected(self, worker: int = 0) -> float:
        """Return the delay in seconds."""

    def seconds(self, uniforms: Floats, worker: int) -> Floats:
        return np.full_like(uniforms, self.expected())

    def cdf(self, seconds: Floats, worker: int) -> Floats:
        return np.where(seconds >= self.expected(), 1.0, 0.0)

    def order_statistic(self, k: int, workers: int) -> float:
        return self.expected()

    def longest_sum(self, count: int, workers: int) -> float:
        return count * self.expected()


@dataclass(frozen=True)
class NoDelay(_Fixed):
    """No injected delay."""

    name = "none"
    silent = True

    def expected(self, worker: int = 0) -> float:
        return 0.0


@value_class
class Constant(_Fixed):
    """The same delay always."""

    value: Seconds
    name = "constant"

    def expected(self, worker: int = 0) -> float:
        return self.value


@value_class
class Uniform(DelayModel):
    """Anything from ``low`` to ``high``, all equally likely."""

    low: SecondsOrZero
    high: Seconds
    name = "uniform"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.high <= self.low:
            raise BadInput(f"'high' of 'uniform' must be above 'low' ({self.low:g}), got {self.high:g}")

    def seconds(self, uniforms: Floats, worker: int) -> Floats:
        return self.low + (self.high - self.low) * uniforms

    def cdf(self, seconds: Floats, worker: int) -> Floats:
        return np.clip((seconds - self.low) / (self.high - self.low), 0.0, 1.0)

    def expected(self, worker: int = 0) -> float:
        return 0.5 * (self.low + self.high)

    def order_statistic(self, k: int, workers: int) -> float:
        """``low + (high - low) k / (n + 1)``."""
        return self.low + (self.high - self.low) * k / (workers + 1)


class _Exponentials(DelayModel):
    """A shift plus an exponential delay, by worker."""

    @abstractmethod
    def _shift_and_mean(self, worker: int) -> tuple[float, float]: ...

    def seconds(self, uniforms: Floats, worker: int) -> Floats:
        shift, mean = self._shift_and_mean(worker)
        return shift - mean * np.log1p(-uniforms)

    def cdf(self, seconds: Floats, worker: int) -> Floats:
        shift, mean = self._shift_and_mean(worker)
        return -np.expm1(-np.maximum(seconds - shift, 0.0) / mean)

    def expected(self, worker: int = 0) -> float:
        return sum(self._shift_and_mean(worker))


class _EqualExponentials(_Exponentials):
    """The same for all workers."""

    def order_statistic(self, k: int, workers: int) -> float:
        """``shift + mean (H_n - H_(n-k))`` with the harmonic numbers H.

        >>> round(Exponential(mean=1.0).order_statistic(4, 8), 7)
        0.6345238
        """
        shift, mean = self._shift_and_mean(0)
        return shift + mean * float((1.0 / np.arange(workers - k + 1, workers + 1)).sum())

    def longest_sum(self, count: int, workers: int) -> float:
        """Sums are Erlang: ``mean x integral of 1 - P(count, t)^n``, P the regularised incomplete gamma function.

        >>> round(Exponential(mean=1.0).longest_sum(10, 8) / 10, 7)
        1.4917748
        """
        from scipy.integrate import quad
        from scipy.special import gammainc

        shift, mean = self._shift_and_mean(0)
        n = workers
        top = count + 12.0 * (count * np.log(n + 1.0)) ** 0.5 + 12.0 * np.log(n + 1.0) + 40.0
        value, _ = quad(lambda t: 1.0 - gammainc(count, t) ** n, 0.0, top, limit=500, epsabs=1e-11, points=[count])
        return count * shift + mean * float(value)


@value_class
class Exponential(_EqualExponentials):
    """Exponential delays with the given mean.

    >>> float(Exponential(mean=0.5).draws(seed=0, worker=0, start=0, count=20000).mean().round(2))
    0.5
    """

    mean: Seconds
    name = "exp"
    memoryless = True

    def _shift_and_mean(self, worker: int) -> tuple[float, float]:
        return 0.0, self.mean


@value_class
class ShiftedExponential(_EqualExponentials):
    """A fixed shift plus an exponential delay with the given mean."""

    shift: SecondsOrZero
    mean: Seconds
    name = "shifted-exp"

    def _shift_and_mean(self, worker: int) -> tuple[float, float]:
        return self.shift, self.mean


@value_class
class Pareto(DelayModel):
    """Pareto delays: ``P(delay > x) = (minimum / x)^alpha``; heavy tails, no mean for alpha <= 1."""

    minimum: Seconds
    alpha: Annotated[float, msgspec.Meta(ge=HEAVIEST, le=1e9)]
    name = "pareto"

    def seconds(self, uniforms: Floats, worker: int) -> Floats:
        return self.minimum * (1.0 - uniforms) ** (-1.0 / self.alpha)

    def cdf(self, seconds: Floats, worker: int) -> Floats:
        return 1.0 - (self.minimum / np.maximum(seconds, self.minimum)) ** self.alpha

    def expected(self, worker: int = 0) -> float:
        return self.minimum * self.alpha / (self.alpha - 1.0) if self.alpha > 1.0 else float("inf")

    def order_statistic(self, k: int, workers: int) -> float:
        """``x G(n+1) G(n-k+1-1/a) / (G(n-k+1) G(n+1-1/a))`` with the gamma function G; inf for a <= 1/(n-k+1)."""
        from scipy.special import gammaln

        n, a = workers, self.alpha
        if (n - k + 1) * a <= 1.0:
            return float("inf")
        log = gammaln(n + 1) + gammaln(n - k + 1 - 1 / a) - gammaln(n - k + 1) - gammaln(n + 1 - 1 / a)
        return float(self.minimum * np.exp(log))


@value_class
class Bimodal(DelayModel):
    """Fast most of the time, slow with the given probability, of each worker or one for all.

    Several probabilities, ``bimodal:fast=0,slow=1,probability=0.05/0.2/0.6``, are repeated over the fleet.
    """

    fast: SecondsOrZero
    slow: Seconds
    probability: tuple[Annotated[float, msgspec.Meta(gt=0, lt=1)], ...] = (0.1,)
    name = "bimodal"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.probability:
            raise BadInput("'bimodal' needs at least one probability, as in probability=0.1")
        if self.slow <= self.fast:
            raise BadInput(f"'slow' of 'bimodal' must be above 'fast' ({self.fast:g}), got {self.slow:g}")

    def of(self, worker: int) -> float:
        """Return the probability with which a worker is slow."""
        return self.probability[worker % len(self.probability)]

    def seconds(self, uniforms: Floats, worker: int) -> Floats:
        return np.where(uniforms < self.of(worker), self.slow, self.fast)

    def cdf(self, seconds: Floats, worker: int) -> Floats:
        return np.where(seconds >= self.slow, 1.0, np.where(seconds >= self.fast, 1.0 - self.of(worker), 0.0))

    def expected(self, worker: int = 0) -> float:
        return self.fast + (self.slow - self.fast) * self.of(worker)

    def order_statistic(self, k: int, workers: int) -> float:
        """``slow - (slow - fast) P(at least k are fast)``; the number that are fast is Poisson-binomial."""
        fast = np.ones(1)  # chance that exactly j are fast
        for worker in range(workers):
            slow = self.of(worker)
            fast = np.append(fast * slow, 0.0) + np.append(0.0, fast * (1.0 - slow))
        return self.slow - (self.slow - self.fast) * float(fast[k:].sum())


@value_class
class Heterogeneous(_Exponentials):
    """Exponential delays whose mean differs by worker: ``hetero:means=0.1/0.1/0.4``, repeated over the fleet."""

    means: tuple[Seconds, ...]
    name = "hetero"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.means:
            raise BadInput("'hetero' needs at least one mean, as in hetero:means=0.1/0.4")

    def _shift_and_mean(self, worker: int) -> tuple[float, float]:
        return 0.0, self.means[worker % len(self.means)]


@value_class
class Mixture(DelayModel):
    """Each delay follows one of several models, ``laws``, sampled with ``weights`` (normalised to add up to 1).

    A mixture of exponential delays is hyper-exponential: its delays vary more than exponential ones.

    >>> import anyk
    >>> mixture = anyk.delays.parse("mixture:laws=(exp:mean=0.5)/(exp:mean=5.5),weights=0.9/0.1")
    >>> mixture.spec, mixture.expected()
    ('mixture:laws=(exp:mean=0.5)/(exp:mean=5.5),weights=0.9/0.1', 1.0)
    """

    laws: tuple[DelayModel, ...]
    weights: tuple[PositiveNumber, ...]
    name = "mixture"

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.laws) < 2 or len(self.laws) != len(self.weights):
            raise BadInput(
                f"'mixture' needs at least two laws and a weight for each, got {len(self.laws)} laws and "
                f"{len(self.weights)} weights"
            )
        if any(type(law).draws is not DelayModel.draws for law in self.laws):
            raise BadInput(
                "'mixture' takes laws only; a trace has rows that belong together, and bursts last for rounds"
            )
        for law in self.laws:
            if not law.is_plain_law:
                raise BadInput(
                    f"by, per and uninterruptible are keys of 'mixture' itself, not of its laws, got '{law.spec}'"
                )

    @property
    def spec(self) -> str:
        return self._spec_with(laws="/".join(f"({law.spec})" for law in self.laws))

    @cached_property
    def _tops(self) -> Floats:
        """The end of each model's share of the unit interval, shape (models,)."""
        return np.cumsum(self.weights) / sum(self.weights)

    def seconds(self, uniforms: Floats, worker: int) -> Floats:
        """Choose the model by the part of the unit interval, and the delay by the position in that part."""
        tops = self._tops
        which = np.minimum(np.searchsorted(tops, uniforms, side="right"), len(tops) - 1)
        starts = np.concatenate(([0.0], tops[:-1]))
        delays = np.empty_like(uniforms)
        for i, law in enumerate(self.laws):
            drawn = which == i
            inside = np.minimum((uniforms[drawn] - starts[i]) / (tops[i] - starts[i]), np.nextafter(1.0, 0.0))
            delays[drawn] = law.seconds(inside, worker)
        return delays

    def cdf(self, seconds: Floats, worker: int) -> Floats | None:
        shares = [law.cdf(seconds, worker) for law in self.laws]
        if any(share is None for share in shares):
            return None
        return np.average(np.array(shares), axis=0, weights=self.weights)

    def expected(self, worker: int = 0) -> float | None:
        means = [law.expected(worker) for law in self.laws]
        return None if None in means else float(np.average(np.array(means, dtype=float), weights=self.weights))

    def check_fleet(self, workers: int) -> None:
        for law in self.laws:
            law.check_fleet(workers)


@value_class
class ScipyLaw(DelayModel):
    """A distribution of :mod:`scipy.stats`: ``loc + scale x X``, X with the shape parameters ``args`` in SciPy's order.

    The last digits of draws depend on the installed SciPy; rounding to nanoseconds mostly hides that.

    >>> gamma = ScipyLaw("gamma", args=(2.0,), scale=0.5)
    >>> gamma.spec, gamma.expected()
    ('scipy:law=gamma,args=2,scale=0.5', 1.0)
    """

    law: str
    args: tuple[float, ...] = ()
    loc: FiniteNumber = 0.0
    scale: PositiveNumber = 1.0
    name = "scipy"

    def __post_init__(self) -> None:
        super().__post_init__()
        from scipy import stats

        distribution = getattr(stats, self.law, None)
        if not isinstance(distribution, stats.rv_continuous):
            raise BadInput(f"scipy.stats has no continuous law '{self.law}'; there are gamma, lognorm, weibull_min, …")
        count = distribution.numargs
        if len(self.args) != count:
            names = f" ({distribution.shapes})" if distribution.shapes else ""
            raise BadInput(
                f"'scipy:{self.law}' takes {count} shape parameters{names}, as in args=2, got {len(self.args)}"
            )
        least = float(self._frozen.support()[0])
        if np.isnan(least):
            raise BadInput(f"'{self.law}' of scipy.stats does not exist for the shape parameters {self.args}")
        if least < 0.0:
            raise BadInput(f"'scipy:{self.law}' can give delays below 0 (from {least:g}); choose another law or loc")

    @cached_property
    def _frozen(self) -> Any:
        from scipy import stats

        return getattr(stats, self.law)(*self.args, loc=self.loc, scale=self.scale)

    def seconds(self, uniforms: Floats, worker: int) -> Floats:
        return np.asarray(self._frozen.ppf(uniforms), dtype=float)

    def cdf(self, seconds: Floats, worker: int) -> Floats:
        return np.asarray(self._frozen.cdf(seconds), dtype=float)

    def expected(self, worker: int = 0) -> float:
        return float(self._frozen.mean())


_Law = Exponential | ShiftedExponential | Pareto | Bimodal


@dataclass(frozen=True)
class Fit:
    """A delay model, ``law``, and its ``misfit``: the largest distance between its distribution and the measured one.

    The misfit (Kolmogorov's distance) measures the quality of the fit, not the probability that the model is true,
    because its parameters are fitted to the same times.
    """

    law: DelayModel
    misfit: float


def fit(seconds: ArrayLike, *, censored: ArrayLike | None = None) -> list[Fit]:
    """Fit exponential, shifted exponential and Pareto models by maximum likelihood, and a two-valued one by two means.

    The best fit comes first. ``censored`` marks times that are lower bounds, because a worker was cancelled; the two
    means ignore them. Raises :class:`~anyk.BadInput` for fewer than two different times above 0.

    >>> times = Exponential(mean=0.5).draws(seed=1, worker=0, start=0, count=4000)
    >>> best = fit(times)[0]
    >>> isinstance(best.law, (Exponential, ShiftedExponential)), best.misfit < 0.03
    (True, True)
    """
    times = np.asarray(seconds, dtype=float).ravel()
    cut = np.zeros(times.size, dtype=bool) if censored is None else np.asarray(censored, dtype=bool).ravel()
    if cut.shape != times.shape:
        raise BadInput(f"censored must have one flag for each of the {times.size} times, got {cut.size}")
    if not np.isfinite(times).all() or (times < 0).any():
        raise BadInput("times must be finite and at least 0")
    complete = times[~cut]
    if np.unique(complete).size < 2 or complete.max() <= 0:
        raise BadInput("a law needs at least two different times above 0")
    least, count = float(complete.min()), complete.size
    models: list[_Law | None] = [
        Exponential(mean=float(times.sum() / count)),
        ShiftedExponential(shift=least, mean=float(np.maximum(times - least, 0.0).sum() / count)),
    ]
    if least > 0:
        alpha = count / float(np.log(np.maximum(times, least) / least).sum())
        models.append(Pareto(minimum=least, alpha=alpha) if alpha >= HEAVIEST else None)
    models.append(_two_means(complete))
    fits = [Fit(model, _misfit(model, times, cut)) for model in models if model is not None]
    return sorted(fits, key=lambda fit: fit.misfit)


def _two_means(times: Floats) -> Bimodal | None:
    """Fit two values by two means of logarithms, as slow times are multiples of fast ones; None without two values."""
    logs = np.log(times[times > 0])
    centre = np.array([logs.min(), logs.max()])
    if centre[0] == centre[1]:
        return None
    for _ in range(100):
        slow = np.abs(logs - centre[1]) < np.abs(logs - centre[0])
        if slow.all() or not slow.any():
            return None
        moved = np.array([logs[~slow].mean(), logs[slow].mean()])
        if np.array_equal(moved, centre):
            break
        centre = moved
    return Bimodal(fast=float(np.exp(centre[0])), slow=float(np.exp(centre[1])), probability=(float(slow.mean()),))


def _misfit(law: _Law, times: Floats, cut: Flags) -> float:
    """Return the largest distance to the product-limit distribution of the times."""
    order = np.lexsort((cut, times))
    ordered, ended = times[order], ~cut[order]
    at_risk = np.arange(times.size, 0, -1)
    survival = np.cumprod(np.where(ended, 1.0 - 1.0 / at_risk, 1.0))
    last = np.append(np.diff(ordered[ended]) > 0, True)  # of equal times the last has the whole jump
    jumps = ordered[ended][last]
    after = (1.0 - survival[ended])[last]
    before = np.concatenate(([0.0], after[:-1]))
    if isinstance(law, Bimodal):  # its distribution is compared at values, not at jumps
        shares = law.cdf(jumps * (1 + 1e-9), 0)  # fitted values may be off in the last digit
        return float(np.abs(shares - after).max())
    shares = law.cdf(jumps, 0)
    return float(np.maximum(np.abs(shares - after), np.abs(shares - before)).max())
