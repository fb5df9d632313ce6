"""Facts of rounds of gradients: their durations and their pace in closed form, and what they are in words."""

from __future__ import annotations

import numpy as np

from anyk.base.arrays import Floats
from anyk.codes import Code, Method
from anyk.protocol import DelayLaw, Pace
from anyk.strategies.closed_forms import uncoded_pace
from anyk.strategies.rounds.terms import RoundTerms
from anyk.strategies.wait import Count, Decodable


def durations(rounds: RoundTerms, seconds: Floats, full_seconds: Floats) -> Floats | None:
    """Return the seconds of each round, see :class:`~anyk.protocol.StrategyFacts`; None: simulate."""
    code, rule = rounds.code, rounds.rule
    if rounds.changes is not None or rounds.cancel != "preempt" or not rounds.own_decoder:
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


def no_durations(seconds: Floats, full_seconds: Floats) -> None:
    """Return None, as there is no closed form."""
    return


def pace(rounds: RoundTerms, method: Method, delays: DelayLaw) -> Pace:
    """Return the seconds and the staleness of a step."""
    code = rounds.code
    if rounds.together or rounds.changes is not None:
        return Pace(None, 0.0, "no closed form where workers compute different shares; simulate")
    if code.own_messages:
        return uncoded_pace(code, rounds.enough, method, delays, in_vain=rounds.cancel == "discard")
    reason = "no closed form when workers finish in vain; simulate"
    return Pace(None, 0.0, reason if rounds.cancel == "discard" else "no closed form; simulate")


def in_words(code: Code, wait: str | None, corrected: str) -> str:
    """Return a short description of rounds of gradients.

    ``wait``: the rule, None if they wait for the exact sum. ``corrected``: how approximate steps are corrected.
    """
    n = code.workers
    load_text = "" if code.load == 1 else f"; each computes {code.load} of {code.partitions} parts"
    if wait is not None:
        first = f"the first {wait} of {n} replies" if wait.isdigit() else f"enough replies (wait={wait})"
        return f"approximate gradient from {first}{load_text}{corrected}"
    if code.tolerates == 0 and not code.approximate:
        return f"exact gradient; waits for all {n} workers{load_text}"
    if code.approximate:
        return f"approximate gradient from most of {n} replies{load_text}"
    return f"exact gradient, whichever {code.tolerates} of {n} workers are late{load_text}"
