"""M-SGC: every worker works on several jobs in each round."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from anyk.base.arrays import Indices
from anyk.base.checks import typed
from anyk.codes.base import Row
from anyk.protocol import Layout, StrategyFacts
from anyk.strategies.sequential.jobs import JobSum, Place
from anyk.strategies.sequential.replay import as_bits
from anyk.strategies.sequential.sequential_rounds import ForBursts
from anyk.strategies.sequential.sequential_settings import SequentialState, Work


@dataclass(slots=True)
class MultiplexedState(SequentialState):
    """The rounds, and the messages of each job that have arrived."""

    own: dict[int, Any] = field(default_factory=dict)  # job -> messages of own pieces: task (or -1), chunk
    groups: dict[int, list[dict[int, Place]]] = field(default_factory=dict)  # job -> group -> worker -> its message


@typed
@dataclass(frozen=True, repr=False, kw_only=True)
class Multiplexed(ForBursts):
    """M-SGC: a worker computes a small part of W - 1 + B jobs in each round, and repeats lost parts in later rounds.

    For (``B``, ``W``, ``lambda``)-bursty stragglers; T = W - 2 + B. In a job, worker i has W - 1 pieces of its own,
    which it repeats in the last B rounds if they are missing, and a share in B groups of pieces that a code protects
    against lambda stragglers. All pieces take the same time, (lambda + 1) / Q of the time for all data, with
    ``Q = n (B + (W - 1) (lambda + 1))``; a worker's load is W - 1 + B pieces. A piece of its own is one
    partition; the partitions of the groups are lambda + 1 times smaller (``shares``).

    If groups of workers count (``inner=frc``), more than lambda workers may straggle in W rounds, as long as each
    group of workers has one that does not.

    >>> round(Multiplexed(256, B=1, W=2, lambda_=27).load, 7)
    0.0075431
    """

    name = "m-sgc"
    State = MultiplexedState

    @property
    def T(self) -> int:
        return self.W - 2 + self.B

    @property
    def coded(self) -> bool:
        """Whether a part of each job is protected by a code."""
        return self.lambda_ < self.workers

    @property
    def _each(self) -> int:
        """Size of one of a worker's own pieces, relative to a partition of the groups."""
        return self.lambda_ + 1 if self.coded else 1

    @cached_property
    def shares(self) -> tuple[int, ...]:
        """Sizes of the partitions, relative to each other."""
        n = self.workers
        return (self._each,) * (n * (self.W - 1)) + (1,) * (n * self.B if self.coded else 0)

    @property
    def load(self) -> float:
        uncoded, coded = self._each, self.code.load if self.coded else self._each
        return ((self.W - 1) * uncoded + self.B * max(uncoded, coded)) / sum(self.shares)

    @property
    def facts(self) -> StrategyFacts:
        # a worker stores all its own pieces, and its part of every group
        stored = ((self.W - 1) * self._each + (self.B * self.code.load if self.coded else 0)) / sum(self.shares)
        return replace(super().facts, share_stored=stored, vectors_sent=2.0 * self.workers * (self.W - 1 + self.B))

    @property
    def tolerated(self) -> int:
        return self.lambda_

    @cached_property
    def groups(self) -> list[int]:
        return super().groups if self.coded else []

    @cached_property
    def layout(self) -> Layout:
        assignment = tuple(
            tuple(sorted({j for own_pieces, _ in rows for j in own_pieces})) for rows in self._piece_rows
        )
        return Layout(
            workers=self.workers,
            partitions=len(self.shares),
            assignment=assignment,
            slots=self.slots,
            shares=self.shares,
            minibatches=self.batch > 0,
        )

    @cached_property
    def _piece_rows(self) -> tuple[tuple[Row, ...], ...]:
        """Partitions and coefficients of each worker's own pieces, then of its parts of the groups."""
        n, own_pieces = self.workers, self.W - 1
        rows: list[list[Row]] = [[((i * own_pieces + piece,), (1.0,)) for piece in range(own_pieces)] for i in range(n)]
        if self.coded:
            for pieces, (partitions, coefficients) in zip(rows, self.code.rows, strict=True):
                for first in range(n * own_pieces, n * (own_pieces + self.B), n):
                    pieces.append((tuple(first + j for j in partitions), coefficients))
        return tuple(map(tuple, rows))

    def rebuild(self, state: MultiplexedState) -> None:
        state.own = {job: np.array(messages, dtype=np.int64) for job, messages in state.own.items()}

    def _of(self, s: MultiplexedState, job: int) -> tuple[Indices, list[dict[int, Place]]]:
        if job not in s.own:
            s.own[job] = np.full((self.workers, self.W - 1, 2), -1, dtype=np.int64)
            s.groups[job] = [{} for _ in range(self.B)]
        return s.own[job], s.groups[job]

    def _assign(self, s: MultiplexedState, t: int) -> list[Work]:
        work: list[Work] = [[] for _ in range(self.workers)]
        for m in range(self.T + 1):
            job = t - m
            if job < s.combined or (self.limit and job >= self.limit):
                continue
            if m <= self.W - 2:
                for mine in work:
                    mine.append((job, m))
                continue
            missing: Any = self._of(s, job)[0][:, :, 0] < 0
            retry = missing.any(axis=1)
            lowest = missing.argmax(axis=1)
            for worker, mine in enumerate(work):
                if retry[worker]:
                    mine.append((job, int(lowest[worker])))
                elif self.coded:
                    mine.append((job, m))  # piece W - 1 + l is this worker's part of group l
        return work

    def _deliver(self, s: MultiplexedState, worker: int, job: int, piece: int, message: Place) -> None:
        own_messages, groups = self._of(s, job)
        if piece < self.W - 1:
            own_messages[worker, piece] = message
        else:
            groups[piece - (self.W - 1)][worker] = message

    def _job_done(self, s: MultiplexedState, job: int) -> bool:
        if job not in s.own or (s.own[job][:, :, 0] < 0).any():
            return False
        return not self.coded or all(self._decodes_without(self._without(group)) for group in s.groups[job])

    def _job_sum(self, s: MultiplexedState, job: int) -> JobSum:
        own_messages, groups = s.own.pop(job), s.groups.pop(job)
        messages = [(int(task), int(chunk)) for task, chunk in own_messages.reshape(-1, 2)]
        weights = [1.0] * len(messages)
        residual = gain = 0.0
        for group in groups if self.coded else ():
            coded, factors, group_residual, group_gain = self._decode(group)
            messages, weights = messages + coded, weights + factors
            residual, gain = max(residual, group_residual), max(gain, group_gain)
        return messages, weights, residual, max(gain, 1.0)

    def _feasible(self, s: MultiplexedState, late: int) -> bool:
        for m in range(self.T + 1):
            job = s.round - m
            if job < s.combined or (self.limit and job >= self.limit):
                continue
            if not self._job_feasible(s, job, m, late):
                return False
        return True

    def _job_feasible(self, s: MultiplexedState, job: int, m: int, late: int) -> bool:
        """Return whether the job of m rounds ago can still be done if these workers straggle now, and none later."""
        missing, absent = self._missing_after(s, job, late)
        short = missing.sum(axis=1)
        if (short > self.T - m).any():
            return False
        # pieces not computed yet come in their own rounds; lost pieces take the first of the last B rounds
        lost = missing[:, : m + 1].sum(axis=1) if m < self.W - 1 else short
        begin = max(m + 1, self.W - 1)
        for group in range(self.B if self.coded else 0):
            slot = self.W - 1 + group
            if slot > m:  # workers without lost pieces by then will still compute this part
                absent[group] &= as_bits(np.flatnonzero(begin + lost > slot).tolist())
            if not self._decodes_without(absent[group]):
                return False
        return True

    def _missing_after(self, s: MultiplexedState, job: int, late: int) -> tuple[Any, list[int]]:
        """Return what a job lacks after this round if these workers straggle.

        That is: which own pieces of each worker, shape (workers, W - 1), and the workers absent from each group.
        """
        own_messages, groups = self._of(s, job)
        missing: Any = own_messages[:, :, 0] < 0
        absent = [self._without(group) for group in groups]
        for worker, work in enumerate(s.assigned):
            if late >> worker & 1:
                continue
            for other, piece in work:
                if other != job:
                    continue
                if piece < self.W - 1:
                    missing[worker, piece] = False
                else:
                    absent[piece - (self.W - 1)] &= ~(1 << worker)
        return missing, absent
