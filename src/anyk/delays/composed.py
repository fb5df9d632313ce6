"""Laws made of others: mixtures, and any law that SciPy knows."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from anyk.checks import typed
from anyk.delays.base import DelayModel, Floats
from anyk.errors import BadInput
from anyk.specs import show


@typed
@dataclass(frozen=True)
class Mixture(DelayModel):
    """Each delay follows one of several ``laws``, drawn with ``weights`` (normalised to add up to 1).

    Of exponential laws this is the hyper-exponential law, whose delays vary more than those of one exponential.

    >>> import anyk
    >>> law = anyk.delays.parse("mixture:laws=(exp:mean=0.5)/(exp:mean=5.5),weights=0.9/0.1")
    >>> law.spec, law.expected()
    ('mixture:laws=(exp:mean=0.5)/(exp:mean=5.5),weights=0.9/0.1', 1.0)
    """

    laws: tuple[DelayModel, ...]
    weights: tuple[float, ...]
    name: ClassVar[str] = "mixture"

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.laws) < 2 or len(self.laws) != len(self.weights):
            raise BadInput(
                f"'mixture' needs at least two laws and a weight for each, got {len(self.laws)} laws and "
                f"{len(self.weights)} weights"
            )
        if not all(np.isfinite(w) and w > 0 for w in self.weights):
            raise BadInput(f"the weights of 'mixture' must be above 0, got {'/'.join(f'{w:g}' for w in self.weights)}")
        if any(type(law).draws is not DelayModel.draws for law in self.laws):
            raise BadInput("'mixture' takes laws only; a trace has rows that belong together")

    @property
    def spec(self) -> str:
        """See :attr:`DelayModel.spec`."""
        laws = "/".join(f"({law.spec})" for law in self.laws)
        values = {"laws": laws} | {f.name: getattr(self, f.name) for f in fields(self) if f.name != "laws"}
        return show(self.name, values, {f.name: f.default for f in fields(self)})

    @cached_property
    def _tops(self) -> Floats:
        """Where each law's share of the unit interval ends."""
        return np.cumsum(self.weights) / sum(self.weights)

    def seconds(self, uniforms: Floats, worker: int) -> Floats:
        """See :meth:`DelayModel.seconds`: the part of the unit interval chooses the law, the place in it the delay."""
        tops = self._tops
        which = np.minimum(np.searchsorted(tops, uniforms, side="right"), len(tops) - 1)
        starts = np.concatenate(([0.0], tops[:-1]))
        drawn = np.empty_like(uniforms)
        for i, law in enumerate(self.laws):
            chosen = which == i
            inside = np.minimum((uniforms[chosen] - starts[i]) / (tops[i] - starts[i]), np.nextafter(1.0, 0.0))
            drawn[chosen] = law.seconds(inside, worker)
        return drawn

    def cdf(self, seconds: Floats, worker: int) -> Floats | None:
        """See :meth:`DelayModel.cdf`."""
        known = [law.cdf(seconds, worker) for law in self.laws]
        if any(part is None for part in known):
            return None
        return np.average(np.array(known), axis=0, weights=self.weights)

    def expected(self, worker: int = 0) -> float | None:
        """See :meth:`DelayModel.expected`."""
        means = [law.expected(worker) for law in self.laws]
        return None if None in means else float(np.average(np.array(means, dtype=float), weights=self.weights))

    def check_fleet(self, workers: int) -> None:
        """See :meth:`DelayModel.check_fleet`."""
        for law in self.laws:
            law.check_fleet(workers)


@typed
@dataclass(frozen=True)
class ScipyLaw(DelayModel):
    """A law of :mod:`scipy.stats`: ``loc + scale x X``, X with the shape parameters ``args`` in SciPy's order.

    Draws depend on the installed SciPy in the last digits, which the rounding to nanoseconds mostly hides.

    >>> law = ScipyLaw("gamma", args=(2.0,), scale=0.5)
    >>> law.spec, law.expected()
    ('scipy:law=gamma,args=2,scale=0.5', 1.0)
    """

    law: str
    args: tuple[float, ...] = ()
    loc: float = 0.0
    scale: float = 1.0
    name: ClassVar[str] = "scipy"

    def __post_init__(self) -> None:
        super().__post_init__()
        from scipy import stats

        known = getattr(stats, self.law, None)
        if not isinstance(known, stats.rv_continuous):
            raise BadInput(f"scipy.stats has no continuous law '{self.law}'; there are gamma, lognorm, weibull_min, …")
        if len(self.args) != known.numargs:
            names = f" ({known.shapes})" if known.shapes else ""
            raise BadInput(
                f"'scipy:{self.law}' takes {known.numargs} shape parameters{names}, as in args=2, got {len(self.args)}"
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
        """See :meth:`DelayModel.seconds`: the inverse of the distribution function."""
        del worker
        return np.asarray(self._frozen.ppf(uniforms), dtype=np.float64)

    def cdf(self, seconds: Floats, worker: int) -> Floats:
        """See :meth:`DelayModel.cdf`."""
        del worker
        return np.asarray(self._frozen.cdf(seconds), dtype=np.float64)

    def expected(self, worker: int = 0) -> float:
        """See :meth:`DelayModel.expected`."""
        del worker
        return float(self._frozen.mean())
