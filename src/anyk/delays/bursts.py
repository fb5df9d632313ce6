"""Delays in bursts: each worker is slow for several rounds in succession, then normal again.

Whether a worker is slow follows a two-state Markov chain, the channel with bursts of errors of Gilbert (1960) and
Elliott (1963). The chain needs no history from its caller: a uniform number of each round is *decisive* if it leads to
the same state from either state, so the state of a round is that of the last decisive round up to it.
"""

from __future__ import annotations

from functools import cached_property, lru_cache
from typing import Annotated

import msgspec
import numpy as np

from anyk.base.arrays import Array, Flags, Floats
from anyk.base.checks import value_class
from anyk.base.errors import BadInput
from anyk.base.keyed import keyed_uniforms
from anyk.delays.base import DelayModel
from anyk.delays.models import Mixture

LONGEST = 1e9  # rounds of a mean burst; longer ones begin in no run
_STAY = -1  # what a round that is not decisive says
_SEARCHED = 256  # rounds searched together for a decisive one

ShareOfRounds = Annotated[float, msgspec.Meta(gt=0, lt=1)]
BurstLength = Annotated[float, msgspec.Meta(ge=1, le=LONGEST)]


@value_class
class Bursts(DelayModel):
    """A worker is slow for some rounds in succession: delays follow the model ``slow`` then, else ``normal``.

    ``share``: of all rounds in which a worker is slow; ``length``: mean length of a burst in rounds, a geometric number
    of at least 1. Workers are independent of each other. Rounds are those that ``by`` counts: tasks of the worker
    (default), or model versions (``by=round``, ``by=item``). Raises :class:`~anyk.BadInput` if bursts would be
    shorter than those of independent rounds, 1 / (1 - share). Source: Gilbert (1960), Elliott (1963).

    >>> import anyk
    >>> model = anyk.delays.parse("bursts:normal=(exp:mean=0.5),slow=(exp:mean=5),share=0.1,length=20")
    >>> round(model.expected(), 9)  # 0.9 x 0.5 + 0.1 x 5
    0.95
    """

    normal: DelayModel
    slow: DelayModel
    share: ShareOfRounds = 0.1
    length: BurstLength = 10.0
    name = "bursts"

    def __post_init__(self) -> None:
        super().__post_init__()
        for key, law in (("normal", self.normal), ("slow", self.slow)):
            if type(law).draws is not DelayModel.draws:
                raise BadInput(
                    f"'{key}' of 'bursts' must be a model of independent delays, as exp:mean=0.5, got '{law.spec}'"
                )
            if not law.is_plain_law:
                raise BadInput(
                    f"by, per and uninterruptible are keys of 'bursts' itself, not of its '{key}', got '{law.spec}'"
                )
        least = 1.0 / (1.0 - self.share)
        if self.length < least * (1.0 - 1e-12):
            raise BadInput(
                f"'length' of 'bursts' must be at least 1 / (1 - share) = {least:.6g}, as of independent rounds, "
                f"got {self.length:g}"
            )

    @property
    def spec(self) -> str:
        return self._spec_with(normal=f"({self.normal.spec})", slow=f"({self.slow.spec})")

    # ------------------------------------------------------------------------------------------- slow rounds

    def is_slow(self, seed: int, worker: int, start: int, count: int) -> Flags:
        """Return whether a worker is slow in rounds ``start`` to ``start + count - 1``, shape (count,)."""
        if not count:
            return np.zeros(0, dtype=bool)
        states = self._decisive(seed, worker, start, count)
        if states[0] == _STAY:
            states[0] = self._state_before(seed, worker, start)
        decisive = np.where(states == _STAY, 0, np.arange(count))
        states = states[np.maximum.accumulate(decisive)]
        _recent(self.share, self.length, seed, worker)["last"] = (start + count - 1, int(states[-1]))
        return np.asarray(states == 1)

    def _decisive(self, seed: int, worker: int, start: int, count: int) -> Array:
        """Return the state in which each round begins whatever the one before: 1 slow, 0 normal, or ``_STAY``."""
        uniforms = keyed_uniforms(seed, "burst", worker, start=start, count=count)
        begins = self.share / (1.0 - self.share) / self.length  # chance of a burst after a normal round
        states = np.full(count, _STAY)
        states[uniforms < begins] = 1
        states[uniforms >= 1.0 - 1.0 / self.length] = 0
        if start == 0:  # the first round has the chances of all rounds
            states[0] = uniforms[0] < self.share
        return states

    def _state_before(self, seed: int, worker: int, start: int) -> int:
        """Return the state of the round before ``start``, at least 1."""
        last_known, state = _recent(self.share, self.length, seed, worker).get("last", (-1, _STAY))
        end = start
        while True:
            begin = max(0, end - _SEARCHED)
            decisive = self._decisive(seed, worker, begin, end - begin)
            decisive = decisive[decisive != _STAY]
            if decisive.size:
                return int(decisive[-1])
            if begin <= last_known < end:  # nothing has changed since
                return state
            end = begin

    # ------------------------------------------------------------------------------------------- delays

    def draws(self, seed: int, worker: int, start: int, count: int) -> Floats:
        uniforms = keyed_uniforms(seed, "delay", worker, start=start, count=count)
        return self._delays(uniforms, self.is_slow(seed, worker, start, count), worker)

    def item_draw(self, seed: int, worker: int, version: int, repeat: int) -> float:
        uniforms = keyed_uniforms(seed, "delay-item", worker, version, start=repeat, count=1)
        return float(self._delays(uniforms, self.is_slow(seed, worker, version, 1), worker)[0])

    def _delays(self, uniforms: Floats, slow: Flags, worker: int) -> Floats:
        delays = np.empty_like(uniforms)
        for law, rounds in ((self.normal, ~slow), (self.slow, slow)):
            delays[rounds] = law.rounded(uniforms[rounds], worker)
        return delays

    # ------------------------------------------------------------------------------------------- facts of a round

    @cached_property
    def _one_round(self) -> Mixture:
        """The model of a round by itself."""
        return Mixture((self.slow, self.normal), (self.share, 1.0 - self.share))

    @property
    def steady(self) -> bool:
        return self.by == "task"

    def seconds(self, uniforms: Floats, worker: int) -> Floats:
        return self._one_round.seconds(uniforms, worker)

    def cdf(self, seconds: Floats, worker: int) -> Floats | None:
        return self._one_round.cdf(seconds, worker)

    def expected(self, worker: int = 0) -> float | None:
        """Return ``share`` x the mean of ``slow`` + (1 - ``share``) x the mean of ``normal``."""
        return self._one_round.expected(worker)

    def check_fleet(self, workers: int) -> None:
        self._one_round.check_fleet(workers)


@lru_cache(maxsize=4096)
def _recent(share: float, length: float, seed: int, worker: int) -> dict[str, tuple[int, int]]:
    """Return a worker's last known round and its state, so that rounds in order need no search in long bursts."""
    del share, length, seed, worker
    return {}
