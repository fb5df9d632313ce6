"""The faults of a chaos run, and the times at which they occur."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated

import msgspec

from anyk.base import AtLeastZero, BadInput, keyed_uniform, keyed_uniforms, typed

# each kind of fault, and what anyk promises if it occurs
PROMISES = {
    "kill": "the worker is replaced, and its task is done by others",
    "stop": "the worker is left behind until it continues",
    "freeze": "the run goes on without workers that never answer",
    "slow": "the slow worker is left behind",
    "corrupt": "wrong but finite numbers are found, and not used",
    "nan": "the message is named, never used and asked for again",
    "node-kill": "its workers are lost, the others go on, and it joins again",
    "node-stop": "it is left behind until it continues, and not taken for dead",
    "driver": "the workers end with it, and the run resumes",
    "disk-full": "the run ends in a sentence, and resumes when there is space",
}
_RATED = ("kill", "stop", "corrupt", "nan", "node-kill", "node-stop", "driver")
OF_NODES = ("node-kill", "node-stop")
_RATE = re.compile(r"(\d+(?:\.\d+)?)/(s|min|h)")
_SECONDS = {"s": 1.0, "min": 60.0, "h": 3600.0}
_MOST = 50.0  # faults of a kind per second


def per_second(kind: str, amount: str) -> float:
    """Return the faults per second of a rate such as ``2/s``, ``1/min`` or ``30/h``.

    >>> per_second("kill", "30/min")
    0.5
    """
    match = _RATE.fullmatch(amount)
    rate = 0.0 if match is None else float(match[1]) / _SECONDS[match[2]]
    if not 0.0 < rate <= _MOST:
        raise BadInput(f"{kind} must be a rate such as 2/s, 30/min or 5/h, at most {_MOST:g}/s, got '{amount}'")
    return rate


def slowness(amount: str) -> float:
    """Return the factor of a text such as ``3x``, or 1 if it is empty.

    >>> slowness("3x")
    3.0
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)x", amount or "1x")
    if match is None or (amount and float(match[1]) <= 1):
        raise BadInput(f"slow must be a factor above 1 such as 3x, got '{amount}'")
    return float(match[1])


@typed
@dataclass(frozen=True, kw_only=True)
class FaultPlan:
    """The faults that a chaos run injects for a number of seconds, at times that depend on the seed only.

    Rates are texts such as ``2/s`` or ``1/min``; empty: no fault of this kind. ``kill``: a random worker is killed.
    ``stop``: a random worker is stopped for up to two seconds. ``freeze``: this many workers are stopped all the time.
    ``slow``: one worker is slowed by a factor such as ``3x``, by stopping it most of the time. ``corrupt``, ``nan``: a
    worker alters finite numbers of a message, or sends one that is not a number. ``node_kill``, ``node_stop``: on the
    cluster ``nodes`` a node is killed and started again, or stopped with its workers for up to eight seconds.
    ``driver``: the process that trains is killed, and the run resumed. ``disk_full``: once, nothing more can be written
    to files, and the run is resumed.

    >>> FaultPlan(kill="1/s", freeze=1, seconds=10).kinds
    ('kill', 'freeze')
    """

    kill: str = ""
    stop: str = ""
    freeze: AtLeastZero = 0
    slow: str = ""
    corrupt: str = ""
    nan: str = ""
    node_kill: str = ""
    node_stop: str = ""
    driver: str = ""
    disk_full: bool = False
    seconds: Annotated[float, msgspec.Meta(ge=1, le=1e6)] = 60.0
    seed: int = 0

    def __post_init__(self) -> None:
        slowness(self.slow)
        for kind in _RATED:
            if amount := self.amounts[kind]:
                per_second(kind, amount)
        if not self.kinds:
            raise BadInput(f"a chaos run needs a fault: one or several of {', '.join(PROMISES)}")

    @property
    def amounts(self) -> dict[str, str]:
        """The rate, number or factor of each kind of fault; empty if it is not injected."""
        freeze, full = str(self.freeze or ""), "once" if self.disk_full else ""
        of_nodes = self.node_kill, self.node_stop
        values = self.kill, self.stop, freeze, self.slow, self.corrupt, self.nan, *of_nodes, self.driver, full
        return dict(zip(PROMISES, values, strict=True))

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of faults that are injected."""
        return tuple(kind for kind, amount in self.amounts.items() if amount)

    def schedule(self) -> list[tuple[float, str]]:
        """Return the times of all faults, in seconds since the first step, and their kinds, in order.

        In each period of a rate there is one fault, at a random time.
        """
        times = []
        for kind in _RATED:
            rate = per_second(kind, self.amounts[kind]) if self.amounts[kind] else 0.0
            draws = keyed_uniforms(self.seed, "chaos", kind, start=0, count=int(self.seconds * rate) + 1)
            times += [((i + draw) / rate, kind) for i, draw in enumerate(draws.tolist()) if rate]
        if self.disk_full:
            share = keyed_uniform(self.seed, "chaos", "disk-full", number=0)
            times.append(((1.0 + share) / 3.0 * self.seconds, "disk-full"))  # in the middle of the run
        return sorted(fault for fault in times if fault[0] < self.seconds)
