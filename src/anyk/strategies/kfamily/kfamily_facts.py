"""Facts of the K family: its pace in the closed forms of Dutta et al. 2018, and the compressors that it accepts."""

from __future__ import annotations

from functools import partial

from anyk.base.errors import BadInput
from anyk.protocol import CompressorFacts, DelayLaw, Pace, StrategyFacts
from anyk.strategies.closed_forms import finishing_in_vain, mean_interval
from anyk.strategies.kfamily.kfamily_settings import KFamilySettings


def facts_of(family: KFamilySettings) -> StrategyFacts:
    """Return the facts of one of the K family."""
    return StrategyFacts(pace=partial(_pace, family), check_compressor=partial(_check_compressor, family))


def _check_compressor(family: KFamilySettings, by: CompressorFacts) -> None:
    if family.compensate:
        raise BadInput("delay compensation needs uncompressed gradients; leave out compensate")


def _pace(family: KFamilySettings, delays: DelayLaw) -> Pace:
    """Return the pace: the mean seconds of a step, and the mean staleness."""
    n, k, mean = family.workers, family.k, mean_interval(delays, family.workers)
    if family.growth is not None:
        return Pace(None, None, family.growth.why)
    if family.work is not None:
        reason = "k tau over the sum of the workers' rates, whatever the law"
        if family.cutoff:
            return Pace(None, None, reason)
        return Pace(None if mean is None else k * family.work.tau * mean, (n - 1) / k, reason)
    if family.kind == "k-batch-sync":
        return _pace_of_batches(family, delays, mean)
    if family.cutoff:
        return Pace(None, None, "no closed form with a cut-off; simulate")
    if family.kind == "k-async" and k > 1:
        seconds = delays.order_statistic(k, n) if delays.memoryless or k == n else None
        return Pace(seconds, (n - k) / k, "mean of the k-th of n delays for exponential delays, else simulate")
    seconds = None if mean is None else k * mean
    return Pace(seconds, (n - 1) / k, "k over the sum of the workers' rates, whatever the law")


def _pace_of_batches(family: KFamilySettings, delays: DelayLaw, mean: float | None) -> Pace:
    """Return the pace of k-batch-sync; ``mean``: seconds between two gradients of workers that never wait."""
    if family.cancel == "discard" or delays.uninterruptible:
        return finishing_in_vain(family.k, family.workers, delays, batch=True)
    seconds = family.k * mean if mean is not None and delays.memoryless else None
    return Pace(seconds, 0.0, "k E[X] / n for exponential delays, else simulate")
