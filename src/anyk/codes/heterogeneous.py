"""The heterogeneous code: unbiased and of least variance for workers that straggle with different probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace

import numpy as np

from anyk.base.arrays import Floats, Indices
from anyk.base.checks import AtLeastOne, AtLeastZero, check_range, value_class
from anyk.base.errors import BadInput
from anyk.base.specs import show_spec
from anyk.codes.base import Decoder, MatrixCode, Policy, check_workers, usual_load
from anyk.codes.decoders import SetDecoder
from anyk.codes.made import LEFT_OUT, SparseMatrix, fixed_property

_LEAST = 1e-9  # smallest probability to straggle, as no worker has been observed for long enough for less


@value_class
class HeterogeneousCode(MatrixCode):
    """Heterogeneous code: fixed weights that make the sum right on average, with the least possible variance.

    Worker i straggles with probability ``p_i``, independently. A reply of a holder i of partition j counts with
    ``w_ij = c_j / p_i``, ``c_j = 1 / sum over holders of (1 - p_i) / p_i``, whoever else replies: the minimum of
    ``E err = sum_ij p_i (1 - p_i) w_ij^2`` under ``sum_i (1 - p_i) w_ij = 1``, which is ``sum_j c_j`` (after Song and
    Choi 2025; derived here). Weights are part of the encoding; decoding adds up. Weights that depend on who replies
    (``decoder=least-squares``) can have less error, but are biased.

    Allocation: workers in order of decreasing odds ``(1 - p_i) / p_i`` take the partitions with the least sum of their
    holders' odds; then pairs of holders change places while that helps. No allocation has less error than
    ``m^2 / sum_i budget_i odds_i``.

    ``probability``: one for all, or one for each worker. ``load``: number of partitions that a worker may hold, one for
    all or one each, stored as ``budgets`` (the attribute ``load`` is the largest in use); by default about log n.
    ``relearn``: in a run, after this number of steps the probabilities are set to ``(1 + missed) / (2 + steps)`` (the
    mean under a uniform prior) and workers get new coefficients for the data they have; 0 never does. Raises
    :class:`~anyk.BadInput` for values out of range, and budgets that do not hold all partitions.

    >>> code = HeterogeneousCode(12, probability=0.2, load=3)
    >>> round(code.expected_error(0) or 0, 6)  # m p / (d (1 - p))
    1.0
    """

    workers: int
    probability: float | tuple[float, ...] = 0.1
    load: int | tuple[int, ...] | None = None  # type: ignore[assignment]
    partitions: AtLeastOne = LEFT_OUT
    relearn: AtLeastZero = 20
    learned: tuple[float, ...] | None = field(default=None, init=False)  # probabilities of the coefficients, if learned
    budgets: tuple[int, ...] = field(init=False)  # the load given, for each worker
    approximate = True
    unbiased = True

    def __post_init__(self) -> None:
        n = check_workers(self.workers)
        m = n if self.partitions is LEFT_OUT else self.partitions
        load = min(usual_load(n), m) if self.load is None else self.load
        for name, value in (("probability", self.probability), ("load", load)):
            if isinstance(value, tuple) and len(value) != n:
                raise BadInput(f"{name} of 'hetero' should be one number or {n}, one for each worker; got {len(value)}")
        for probability in self.probabilities:
            check_range("probability of 'hetero'", probability, 0, 1)
        budgets = load if isinstance(load, tuple) else (load,) * n
        for budget in budgets:
            check_range("load of 'hetero'", budget, 0, m, " partitions")
        useful = [b for b, p in zip(budgets, self.probabilities, strict=True) if p < 1]
        if sum(useful) < m:
            raise BadInput(
                f"hetero: {m} partitions do not fit on workers that may hold {sum(useful)} in all (those that never "
                "reply left out); allow more load or use fewer partitions"
            )
        self._resolve(partitions=m, budgets=budgets, load=max(useful))

    @property
    def spec(self) -> str:
        load = self.budgets if len(set(self.budgets)) > 1 else self.budgets[0]
        values = {"probability": self.probability, "load": load, "partitions": self.partitions}
        return show_spec("hetero", values | {"relearn": self.relearn}, {"partitions": self.workers, "relearn": 20})

    @property
    def probabilities(self) -> tuple[float, ...]:
        """Probability of each worker to straggle, as specified."""
        p = self.probability
        return p if isinstance(p, tuple) else (float(p),) * self.workers

    @property
    def _odds(self) -> Floats:
        p = np.array(self.probabilities)
        return np.asarray((1.0 - p) / np.maximum(p, _LEAST))

    @fixed_property
    def allocation(self) -> tuple[tuple[int, ...], ...]:
        """Workers that hold each partition, by the specified probabilities even after relearning."""
        m, odds, budgets = self.partitions, self._odds, np.array(self.budgets)
        total = np.zeros(m)
        holders: list[list[int]] = [[] for _ in range(m)]
        order = np.argsort(-odds, kind="stable")
        remaining = int(budgets[odds > 0].sum())
        for i in order[odds[order] > 0].tolist():
            bare = [j for j in range(m) if not holders[j]]
            preferred = np.argsort(total, kind="stable").tolist()
            if len(bare) > remaining - min(budgets[i], m):  # the other budgets are too small for all bare partitions
                preferred.sort(key=lambda j: bool(holders[j]))
                preferred[: len(bare)] = bare
            for j in preferred[: budgets[i]]:
                holders[j].append(i)
                total[j] += odds[i]
            remaining -= int(budgets[i])
        return tuple(tuple(sorted(partitions)) for partitions in _exchanged(holders, odds))

    @fixed_property
    def _coefficients(self) -> tuple[Floats, Floats]:
        """c_j of each partition, and 1 / p_i of each worker (0 if it never replies)."""
        p = np.clip(np.array(self.learned or self.probabilities), _LEAST, 1.0)
        odds = (1.0 - p) / p
        inverse = np.where(odds > 0, 1.0 / p, 0.0)
        sums = np.array([odds[list(holders)].sum() for holders in self.allocation])
        return np.divide(1.0, sums, out=np.zeros_like(sums), where=sums > 0), inverse

    def _matrix(self) -> SparseMatrix:
        from scipy.sparse import csr_array

        c, inverse = self._coefficients
        rows, columns = np.array([(i, j) for j, holders in enumerate(self.allocation) for i in holders]).T
        return csr_array((c[columns] * inverse[rows], (rows, columns)), shape=(self.workers, self.partitions))

    def relearned(self, missed: Sequence[int], steps: int) -> HeterogeneousCode:
        """Return the same allocation with coefficients for the number of steps that each worker ``missed``."""
        learned = tuple((1.0 + count) / (2.0 + steps) for count in missed)
        code = replace(self, load=self.budgets)
        code._resolve(learned=learned)
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
        """Return ``sum_j c_j``, the mean ``err`` over stragglers with their probabilities; ``replies`` is ignored."""
        if decoder != "own":
            return super().expected_error(max(1, replies), decoder=decoder)
        return float(self._coefficients[0].sum())

    @property
    def least_error(self) -> float:
        """Lower bound of the error of any allocation with these budgets: ``m^2 / sum_i budget_i odds_i``."""
        return float(self.partitions**2 / (np.array(self.budgets) @ self._odds))


def _exchanged(holders: list[list[int]], odds: Floats) -> list[list[int]]:
    """Return holders after a holder of the partition with least odds has repeatedly changed places with another."""
    worker, of = np.array([(i, j) for j, workers in enumerate(holders) for i in workers]).T.copy()
    total = np.bincount(of, weights=odds[worker], minlength=len(holders))
    holds = np.zeros((len(odds), len(holders)), dtype=bool)
    holds[worker, of] = True
    for _ in range(min(20 * len(holders), 2_000)):
        j = int(total.argmin())
        best = 1e-12, -1, -1
        for mine in np.flatnonzero(of == j).tolist():
            i = worker[mine]
            now, then = total[j] - odds[i] + odds[worker], total[of] - odds[worker] + odds[i]
            allowed = ~holds[i, of] & ~holds[worker, j] & (now > 0) & (then > 0)
            gained = np.full(len(of), -np.inf)
            gained[allowed] = (
                1 / total[j] + 1 / total[of] - 1 / np.maximum(now, 1e-300) - 1 / np.maximum(then, 1e-300)
            )[allowed]
            other = int(gained.argmax())
            if gained[other] > best[0]:
                best = float(gained[other]), mine, other
        _, mine, other = best
        if mine < 0:
            break
        a, b, k = int(worker[mine]), int(worker[other]), int(of[other])
        holds[a, j] = holds[b, k] = False
        holds[b, j] = holds[a, k] = True
        total[j] += odds[b] - odds[a]
        total[k] += odds[a] - odds[b]
        worker[mine], worker[other] = b, a
    return [worker[of == j].tolist() for j in range(len(holders))]
