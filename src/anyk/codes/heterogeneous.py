"""The heterogeneous code: unbiased and of least variance for workers that straggle with different probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import scipy.sparse

from anyk.checks import typed
from anyk.codes.base import Decoder, Floats, Indices, MatrixCode, Policy, check_workers, usual_load, whole
from anyk.codes.decoders import SetDecoder
from anyk.codes.made import LEFT_OUT, fixed_property
from anyk.errors import BadInput
from anyk.specs import show

_LEAST = 1e-9  # probabilities are kept this far from 0: nobody has been seen to be that punctual


@typed
@dataclass(frozen=True)
class HeterogeneousCode(MatrixCode):
    """Heterogeneous code: fixed weights that make the sum right on average, with the least variance there is.

    Worker i straggles with probability ``p_i``, independently. A reply of a holder i of partition j counts with
    ``w_ij = c_j / p_i``, ``c_j = 1 / sum over holders of (1 - p_i) / p_i``, whoever else replies: the minimum of
    ``E err = sum_ij p_i (1 - p_i) w_ij^2`` under ``sum_i (1 - p_i) w_ij = 1``, which is ``sum_j c_j`` (after Song and
    Choi 2025; derived here). Weights stand in the encoding; decoding adds up. Weights that depend on who replies
    (``decoder=least-squares``) can have less error, but are biased.

    Allocation: workers in order of decreasing odds ``(1 - p_i) / p_i`` take, of the partitions they may hold, those
    whose holders' odds add up to least; then pairs of holders change places while that helps. No allocation has less
    error than ``m^2 / sum_i budget_i odds_i``.

    ``probability``: one for all, or one for each worker. ``load``: how many partitions a worker may hold, one for all
    or one each, kept as ``budgets`` (the attribute ``load`` is the largest in use); left out, about log n.
    ``relearn``: in a run, after every so many steps the probabilities are set to ``(1 + missed) / (2 + steps)`` (the
    mean under a uniform prior) and workers get new coefficients for the data they have; 0 keeps them.

    >>> code = HeterogeneousCode(12, probability=0.2, load=3)
    >>> round(code.expected_error(0) or 0, 6)  # m p / (d (1 - p))
    1.0
    """

    workers: int
    probability: float | tuple[float, ...] = 0.1
    load: int | tuple[int, ...] | None = None  # type: ignore[assignment]
    partitions: int = LEFT_OUT
    relearn: int = 20
    learned: tuple[float, ...] | None = field(default=None, init=False)  # what the coefficients are for, if not that
    budgets: tuple[int, ...] = field(init=False)  # the load given, for each worker
    approximate = True
    unbiased = True

    def __post_init__(self) -> None:
        n = check_workers(self.workers)
        m = n if self.partitions is LEFT_OUT else whole("partitions", self.partitions)
        if m < 1:
            raise BadInput(f"partitions must be at least 1, got {m}")
        object.__setattr__(self, "partitions", m)
        _check("probability", self.probability, n)
        if not all(0.0 <= p <= 1.0 for p in self.probabilities):
            raise BadInput(f"probability of 'hetero' must lie between 0 and 1, got {self.probability}")
        load = min(usual_load(n), m) if self.load is None else self.load
        _check("load", load, n)
        budgets = tuple(whole("load", b) for b in (load if isinstance(load, tuple) else (load,) * n))
        if not all(0 <= b <= m for b in budgets):
            raise BadInput(f"load of 'hetero' must be 0 to {m} partitions, got {self.load}")
        useful = [b for b, p in zip(budgets, self.probabilities, strict=True) if p < 1]
        if sum(useful) < m:
            raise BadInput(
                f"hetero: {m} partitions do not fit on workers that may hold {sum(useful)} in all (those that never "
                "reply left out); allow more load or use fewer partitions"
            )
        if self.relearn < 0:
            raise BadInput(f"relearn must be at least 0 steps, got {self.relearn}")
        object.__setattr__(self, "budgets", budgets)
        object.__setattr__(self, "load", max(useful))

    @property
    def spec(self) -> str:
        load = self.budgets if len(set(self.budgets)) > 1 else self.budgets[0]
        values = {"probability": self.probability, "load": load, "partitions": self.partitions}
        return show("hetero", values | {"relearn": self.relearn}, {"partitions": self.workers, "relearn": 20})

    @property
    def probabilities(self) -> tuple[float, ...]:
        """The probability given for each worker."""
        p = self.probability
        return p if isinstance(p, tuple) else (float(p),) * self.workers

    @property
    def _odds(self) -> Floats:
        p = np.array(self.probabilities)
        return np.asarray((1.0 - p) / np.maximum(p, _LEAST))

    @fixed_property
    def allocation(self) -> tuple[tuple[int, ...], ...]:
        """The workers that hold each partition; from the probabilities given, whatever is learned later."""
        m, odds, budgets = self.partitions, self._odds, np.array(self.budgets)
        total = np.zeros(m)
        holders: list[list[int]] = [[] for _ in range(m)]
        order = np.argsort(-odds, kind="stable")
        left = int(budgets[order][odds[order] > 0].sum())
        for i in order.tolist():
            if not odds[i]:
                continue
            bare = [j for j in range(m) if not holders[j]]
            first = np.argsort(total, kind="stable").tolist()
            own = first[: budgets[i]]
            if len(bare) > left - len(own):  # the rest of the budgets is needed for what nobody holds yet
                own = [*bare, *(j for j in first if j not in set(bare))][: budgets[i]]
            for j in own:
                holders[j].append(i)
                total[j] += odds[i]
            left -= int(budgets[i])
        return tuple(tuple(sorted(own)) for own in _exchanged(holders, odds))

    @fixed_property
    def _coefficients(self) -> tuple[Floats, Floats]:
        """c_j of each partition, and 1 / p_i of each worker (0 for one that never replies)."""
        p = np.clip(np.array(self.learned or self.probabilities), _LEAST, 1.0)
        odds = (1.0 - p) / p
        inverse = np.where(odds > 0, 1.0 / p, 0.0)
        sums = np.array([odds[list(own)].sum() for own in self.allocation])
        return np.divide(1.0, sums, out=np.zeros_like(sums), where=sums > 0), inverse

    def _matrix(self) -> scipy.sparse.csr_array:
        from scipy.sparse import csr_array

        c, inverse = self._coefficients
        at = [(i, j) for j, own in enumerate(self.allocation) for i in own]
        rows, columns = (np.array(part) for part in zip(*at, strict=True))
        return csr_array((c[columns] * inverse[rows], (rows, columns)), shape=(self.workers, self.partitions))

    def relearned(self, missed: Sequence[int], steps: int) -> HeterogeneousCode:
        """The same allocation with coefficients for what has been seen: how often each worker ``missed`` a step."""
        learned = tuple((1.0 + count) / (2.0 + steps) for count in missed)
        code = replace(self, load=self.budgets)
        object.__setattr__(code, "learned", learned)
        return code

    def policy(self) -> Policy:
        return Policy(every=self.relearn, relearned=self.relearned) if self.relearn else Policy()

    def decoder(self) -> Decoder:
        return SetDecoder(self)

    def _solve(self, replies: Indices) -> Floats:
        weights = np.zeros(self.workers)
        weights[replies] = 1.0
        return weights

    def expected_error(self, replies: int = 0, *, decoder: str = "own") -> float | None:
        """Mean ``err`` when workers straggle with their probabilities, ``sum_j c_j``; ``replies`` is not used."""
        if decoder != "own":
            return super().expected_error(max(1, replies), decoder=decoder)
        return float(self._coefficients[0].sum())

    @property
    def least_error(self) -> float:
        """What no allocation under these budgets can go below: ``m^2 / sum_i budget_i odds_i``."""
        return float(self.partitions**2 / (np.array(self.budgets) @ self._odds))


def _exchanged(holders: list[list[int]], odds: Floats) -> list[list[int]]:
    """Let a holder of the partition that has least change places with another one's while the error shrinks."""
    worker = np.array([i for own in holders for i in own])
    of = np.array([j for j, own in enumerate(holders) for _ in own])
    total = np.bincount(of, weights=odds[worker], minlength=len(holders))
    held = np.zeros((len(odds), len(holders)), dtype=bool)
    held[worker, of] = True
    for _ in range(min(20 * len(holders), 2_000)):
        j = int(total.argmin())
        best: tuple[float, int, int] | None = None
        for mine in np.flatnonzero(of == j).tolist():
            i = worker[mine]
            now, then = total[j] - odds[i] + odds[worker], total[of] - odds[worker] + odds[i]
            allowed = ~held[i, of] & ~held[worker, j] & (now > 0) & (then > 0)
            gained = np.full(len(of), -np.inf)
            gained[allowed] = (
                1 / total[j] + 1 / total[of] - 1 / np.maximum(now, 1e-300) - 1 / np.maximum(then, 1e-300)
            )[allowed]
            other = int(gained.argmax())
            if gained[other] > 1e-12 and (best is None or gained[other] > best[0]):
                best = float(gained[other]), mine, other
        if best is None:
            break
        _, mine, other = best
        a, b, k = int(worker[mine]), int(worker[other]), int(of[other])
        held[a, j] = held[b, k] = False
        held[b, j] = held[a, k] = True
        total[j] += odds[b] - odds[a]
        total[k] += odds[a] - odds[b]
        worker[mine], worker[other] = b, a
    return [worker[of == j].tolist() for j in range(len(holders))]


def _check(name: str, value: object, workers: int) -> None:
    if isinstance(value, tuple) and len(value) != workers:
        raise BadInput(f"{name} of 'hetero' should be one number or {workers}, one for each worker; got {len(value)}")
