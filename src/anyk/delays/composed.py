"""Delay models built from others: mixtures, and the continuous distributions of SciPy."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from anyk.checks import PositiveNumber, typed
from anyk.delays.base import DelayModel, Floats
from anyk.errors import BadInput


@typed
@dataclass(frozen=True)
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
            raise BadInput("'mixture' takes laws only; a trace has rows that belong together")

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
            own = which == i
            inside = np.minimum((uniforms[own] - starts[i]) / (tops[i] - starts[i]), np.nextafter(1.0, 0.0))
            delays[own] = law.seconds(inside, worker)
        return delays

    def cdf(self, seconds: Floats, worker: int) -> Floats | None:
        parts = [law.cdf(seconds, worker) for law in self.laws]
        if any(part is None for part in parts):
            return None
        return np.average(np.array(parts), axis=0, weights=self.weights)

    def expected(self, worker: int = 0) -> float | None:
        means = [law.expected(worker) for law in self.laws]
        return None if None in means else float(np.average(np.array(means, dtype=float), weights=self.weights))

    def check_fleet(self, workers: int) -> None:
        for law in self.laws:
            law.check_fleet(workers)


@typed
@dataclass(frozen=True)
class ScipyLaw(DelayModel):
    """A distribution of :mod:`scipy.stats`: ``loc + scale x X``, X with the shape parameters ``args`` in SciPy's order.

    The last digits of draws depend on the installed SciPy; rounding to nanoseconds mostly hides that.

    >>> gamma = ScipyLaw("gamma", args=(2.0,), scale=0.5)
    >>> gamma.spec, gamma.expected()
    ('scipy:law=gamma,args=2,scale=0.5', 1.0)
    """

    law: str
    args: tuple[float, ...] = ()
    loc: float = 0.0
    scale: float = 1.0
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
        if not np.isfinite(self.loc) or not 0.0 < self.scale < float("inf"):
            raise BadInput(
                f"'scipy' needs a finite loc and a scale above 0, got loc={self.loc:g}, scale={self.scale:g}"
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
        return np.asarray(self._frozen.ppf(uniforms), dtype=np.float64)

    def cdf(self, seconds: Floats, worker: int) -> Floats:
        return np.asarray(self._frozen.cdf(seconds), dtype=np.float64)

    def expected(self, worker: int = 0) -> float:
        return float(self._frozen.mean())
