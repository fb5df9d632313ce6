"""Facts of rounds: their pace and durations in closed form, and the compressors that they accept."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from anyk.base.arrays import Floats
from anyk.base.errors import BadInput
from anyk.codes import RepetitionCode
from anyk.protocol import CompressorFacts, DelayLaw, Pace, Strategy, StrategyFacts
from anyk.strategies.averaging.local_steps import LocalSteps
from anyk.strategies.closed_forms import uncoded_pace
from anyk.strategies.rounds.balance import Balance, settled_sizes
from anyk.strategies.rounds.gradients import Gradients
from anyk.strategies.rounds.round_settings import RoundSettings
from anyk.strategies.wait import Count, Decodable


def facts_of(rounds: RoundSettings) -> StrategyFacts:
    """Return the facts of rounds."""
    code, exact = rounds.code, isinstance(rounds.work, Gradients) and not rounds.enough.approximate
    computed = None
    if rounds.changes is not None:  # at the start
        computed = [len(assigned) / rounds.first_code.partitions for assigned in rounds.first_code.assignment]
    # each worker receives a model; it sends several messages, or one that may be a fraction of a vector
    vectors = float(code.workers + code.replies) if code.messages > 1 else code.workers * (1.0 + 1.0 / code.blocks)
    return StrategyFacts(
        exact=exact,
        shares_computed=computed,
        vectors_sent=vectors if exact else None,
        pace=partial(_pace, rounds),
        durations=partial(_durations, rounds),
        adapted=partial(_adapted, rounds) if isinstance(rounds.changes, Balance) else None,
        check_compressor=partial(_check_compressor, rounds),
    )


def _check_compressor(rounds: RoundSettings, by: CompressorFacts) -> None:
    """Raise :class:`~anyk.BadInput` if these messages must not be compressed by this compressor."""
    spec, code = rounds.spec, rounds.code
    if rounds.policy.projected or rounds.work.checks is not None:
        raise BadInput(f"'{spec}' finds wrong workers by comparing messages, and cannot compare compressed ones")
    if code.blocks > 1:
        raise BadInput(f"the messages of '{spec}' are a fraction of the vector already; leave compression out")
    if rounds.work.snapshot is not None:
        raise BadInput(f"'{spec}' uses messages again, which '{by.spec}' would blur; leave out snapshot")
    if rounds.work.keep:
        raise BadInput(f"'{spec}' keeps the inner optimiser's state; with '{by.spec}' leave out keep")
    if by.promise == "contractive" and not code.own_messages:
        raise BadInput(
            f"'{by.spec}' keeps what it leaves out, which replicas of '{spec}' do not share; take random-k (exact) or "
            "qsgd (in expectation), or rounds of uncoded"
        )


def _durations(rounds: RoundSettings, seconds: Floats, full_seconds: Floats) -> Floats | None:
    """Return the seconds of each round, see :class:`~anyk.protocol.StrategyFacts`; None: simulate."""
    code, rule, work = rounds.code, rounds.rule, rounds.work
    if rounds.changes is not None or rounds.cancel != "preempt" or isinstance(work, LocalSteps):
        return None
    if not work.own_decoder or work.snapshot is not None or work.checks is not None:
        return None
    if code.messages > 1:  # each arrives when all but the worker's later messages are done
        if rule != Decodable():
            return None
        sizes = np.array([len(partitions) for partitions, _ in code.rows]).reshape(-1, code.messages)
        later = sizes[:, ::-1].cumsum(axis=1)[:, ::-1] - sizes
        arrivals = seconds[:, :, None] - later * full_seconds[:, :, None] / code.partitions
        return code.finish_times(arrivals.reshape(len(seconds), -1))
    decodable = code.finish_times(seconds)
    if isinstance(rule, Count):
        return np.minimum(decodable, np.sort(seconds, axis=1)[:, min(rule.number, seconds.shape[1]) - 1])
    return decodable if rule == Decodable() else None


def _adapted(rounds: RoundSettings, seconds: Floats, slopes: Floats, load: float) -> Strategy:
    """Return rounds with the shares at which balance settles."""
    code = rounds.first_code
    assert isinstance(code, RepetitionCode)
    return replace(rounds, code=code.cut(settled_sizes(code, seconds, slopes, load)), changes=None)


def _pace(rounds: RoundSettings, delays: DelayLaw) -> Pace:
    code, work = rounds.code, rounds.work
    if isinstance(work, LocalSteps):
        if work.adapt is not None:
            return Pace(None, 0.0, "tau changes with the loss")
        everyone = work.clients is None and str(rounds.rule) == "decodable" and not work.speeds
        seconds = delays.longest_sum(work.tau, code.workers) if everyone else None
        return Pace(seconds, 0.0, "mean of the largest of n sums of tau delays, exponential, else simulate")
    if work.snapshot is not None:
        return Pace(None, None, "no closed form with snapshots; simulate")
    if rounds.together or rounds.changes is not None:
        return Pace(None, 0.0, "no closed form where workers compute different shares; simulate")
    if code.own_messages:
        return uncoded_pace(code, rounds.enough, work.method, delays, in_vain=rounds.cancel == "discard")
    reason = "no closed form when workers finish in vain; simulate"
    return Pace(None, 0.0, reason if rounds.cancel == "discard" else "no closed form; simulate")
