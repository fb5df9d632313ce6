"""What every gradient code can do, and how any code is decoded when nothing better is known.

A code gives worker ``i`` the row ``B[i]`` of an encoding matrix ``B`` (workers x partitions): the worker adds up the
partial gradients of its partitions with that row's coefficients and sends the sum. From the replies of some workers
the driver needs weights ``a`` with ``a @ B = 1``, exactly or as nearly as possible (Tandon, Lei, Dimakis and
Karampatziakis 2017).
"""

from __future__ import annotations

from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import log
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import ArrayLike

from anyk import html
from anyk.checks import check_workers, typed, whole
from anyk.codes.decoders import (
    EXACT,
    METHODS,
    Decoder,
    Decoding,
    Floats,
    Indices,
    LeastSquaresDecoder,
    Method,
    Selection,
    method,
)
from anyk.codes.made import Checked, ReadOnly, fixed_property, valid_matrix
from anyk.codes.removal import Removal
from anyk.errors import BadInput

if TYPE_CHECKING:
    import scipy.sparse

Row = tuple[tuple[int, ...], tuple[float, ...]]  # partitions a worker holds, and their coefficients

_REMEMBERED = 256  # straggler patterns whose weights are kept


@typed
@dataclass(frozen=True)
class Policy:
    """Duties of a code's rounds besides waiting and decoding.

    ``rounds``: the kind of rounds that run it. ``projected``: each reply is projected when it arrives, and the decoder
    gets the number before the reply counts. ``relearned(missed, steps)``: the code for the rounds to come, given how
    often each worker was missing in that many steps; called after every ``every`` steps.
    """

    rounds: Literal["coded", "progress", "tree"] = "coded"
    projected: bool = False
    every: int = 0
    relearned: Callable[[Sequence[int], int], Code] | None = None

    def __post_init__(self) -> None:
        if self.relearned is not None and self.every < 1:
            raise BadInput(f"every, the steps after which a code is relearned, must be at least 1, got {self.every}")


class Code(ReadOnly, metaclass=Checked):
    """Which partitions each worker holds and with which coefficients: an immutable matrix with a way to decode.

    A subclass is a frozen dataclass with fields ``workers`` and whatever else it needs; it gives ``partitions``,
    ``rows`` and ``tolerates``, and may give a faster ``decoder``, ``_solve`` or ``finish_times``. Where a worker sends
    several ``messages`` a step, message c of worker i is row ``i * messages + c``, a worker of its own to the decoder.
    ``approximate``: a step is meant to be taken without the exact sum. ``unbiased``: its own decoding is right on
    average as it is, and must not be rescaled. ``blocks``: each reply is a fraction 1/blocks of the vector, and
    coefficients and weights come in that many sets. ``own_messages``: each reply is of a worker's own
    partition, which nobody else holds.

    A code of a class outside anyk is checked when it is made: :class:`~anyk.errors.BadInput` names the row that holds
    a partition that does not exist, or holds it twice, or has a coefficient that is not finite.
    """

    workers: int
    messages: int = 1
    blocks: int = 1
    approximate: bool = False
    unbiased: bool = False
    own_messages: bool = False

    @property
    @abstractmethod
    def spec(self) -> str:
        """The short form from which the same code can be built for the same number of workers."""

    @property
    @abstractmethod
    def partitions(self) -> int:
        """m, the number of pieces the data is cut into."""

    @property
    @abstractmethod
    def rows(self) -> Sequence[Row]:
        """For each reply (worker by worker, message by message), the partitions it adds up and their coefficients."""

    @property
    @abstractmethod
    def tolerates(self) -> int:
        """The number of stragglers, whoever they are, with which the sum is still exact."""

    def _repr_html_(self) -> str:
        """For notebooks: its facts, and the matrix where it is small enough to draw."""
        tolerates = "no fixed number" if self.approximate else self.tolerates
        facts = [(self.spec, self.workers, self.partitions, self.load, tolerates)]
        return html.table(["code", "workers", "partitions", "load", "tolerates"], facts) + html.matrix(
            [row if self.blocks == 1 else (row[0], (1.0,) * len(row[0])) for row in self.rows], self.partitions
        )

    # ------------------------------------------------------------------------------------------- facts

    @fixed_property
    def encoding(self) -> scipy.sparse.csr_array:
        """The matrix B, shape (replies, partitions x blocks), sparse; a partition's blocks stand side by side."""
        from scipy.sparse import csr_array

        b = self.blocks
        held = np.concatenate([np.asarray(p, dtype=np.int64) for p, _ in self.rows])
        for j in (held.min(initial=0), held.max(initial=0)):  # outside of them SciPy would write where it must not
            if not 0 <= j < self.partitions:
                raise BadInput(f"a row holds partition {j}; there are {self.partitions} (0 to {self.partitions - 1})")
        indices = (held[:, None] * b + np.arange(b)).ravel()
        values = np.concatenate([np.asarray(c, dtype=np.float64) for _, c in self.rows])
        starts = b * np.concatenate([[0], np.cumsum([len(p) for p, _ in self.rows])])
        return csr_array((values, indices, starts), shape=(self.replies, self.partitions * b))

    @property
    def replies(self) -> int:
        """The number of messages there can be in a step: workers x messages."""
        return self.workers * self.messages

    @fixed_property
    def assignment(self) -> tuple[tuple[int, ...], ...]:
        """The partitions of each worker, sorted."""
        c = self.messages
        return tuple(
            tuple(sorted({j for partitions, _ in self.rows[i * c : i * c + c] for j in partitions}))
            for i in range(self.workers)
        )

    @fixed_property
    def load(self) -> int:
        """The most partitions any worker computes in a step."""
        return max(len(held) for held in self.assignment)

    @fixed_property
    def norms(self) -> Floats:
        """Euclidean norm of each row of the encoding, shape (replies,)."""
        squares = self.encoding.multiply(self.encoding).sum(axis=1)
        return np.sqrt(np.asarray(squares, dtype=np.float64).ravel())

    @fixed_property
    def removal(self) -> Removal:
        """Least squares without some of the replies, for many sets; built from a dense decomposition."""
        return Removal(self.encoding.toarray())

    @property
    def replication(self) -> float:
        """How many workers hold a partition, on average."""
        return sum(len(held) for held in self.assignment) / self.partitions

    def expected_coefficients(self, replies: int) -> Floats:
        """Mean coefficient of each partition in the decoded sum, over random sets of ``replies`` workers.

        Shape (partitions,). Used for ``scaling=marginal``; only codes with a closed form have it.
        """
        raise BadInput(f"scaling=marginal needs a repetition code, got '{self.spec}'; use scaling=conditional or none")

    # ------------------------------------------------------------------------------------------- decoding

    def decode(self, workers: Iterable[int], *, decoder: str | Method = "own") -> Decoding:
        """Weights for the replies of ``workers``: exact where they suffice, else as near as possible.

        ``decoder``: the code's ``own`` way, or ``exact``, ``least-squares``, ``one-step``, ``algorithmic``; see
        :mod:`anyk.codes.decoders`. Sets seen before are remembered. Raises :class:`~anyk.errors.BadInput` for a
        worker out of range or named twice.

        >>> import anyk
        >>> weights, residual, gain = anyk.code("frc:stragglers=1", workers=4).decode([0, 3])
        >>> weights.tolist(), residual
        ([1.0, 0.0, 0.0, 1.0], 0.0)
        """
        return self._decode(self._checked(workers), method(decoder))

    def decode_exactly(self, workers: Iterable[int]) -> Decoding:
        """As :meth:`decode`; raises :class:`~anyk.errors.NotDecodable` where the sum would not be exact."""
        return self.decode(workers, decoder="exact")

    def policy(self) -> Policy:
        """Further duties of its rounds; by default none."""
        return Policy()

    def decoder(self) -> Decoder:
        """A fresh incremental decoder for one step."""
        return LeastSquaresDecoder(self)

    def _decode(self, replies: Indices, how: Method) -> Decoding:
        """Decode sorted replies, or remember how; what is returned is shared and its weights are read-only."""
        remembered: OrderedDict[tuple[Method, bytes], Decoding] = self._remembered
        key = how, replies.tobytes()
        decoding = remembered.get(key)
        if decoding is None:
            decoding = self.judge(how.weights(self, replies))
            decoding.weights.flags.writeable = False
            remembered[key] = decoding
            if len(remembered) > _REMEMBERED:
                remembered.popitem(last=False)
        else:
            remembered.move_to_end(key)
        return decoding

    @cached_property
    def _remembered(self) -> OrderedDict[tuple[Method, bytes], Decoding]:
        return OrderedDict()

    def _checked(self, workers: Iterable[int]) -> Indices:
        given = workers if isinstance(workers, np.ndarray) else list(workers)
        chosen = np.asarray(given)
        if not chosen.size:
            return np.empty(0, dtype=np.int64)
        if chosen.ndim != 1 or chosen.dtype.kind not in "iu":
            chosen = np.array([whole("a worker's number", worker) for worker in np.asarray(given, dtype=object).flat])
        chosen = np.sort(chosen.astype(np.int64))
        if (chosen[1:] == chosen[:-1]).any():
            raise BadInput(f"workers must be different, got {chosen.tolist()}")
        if not 0 <= chosen[0] <= chosen[-1] < self.replies:
            raise BadInput(f"workers must be 0 to {self.replies - 1}, got {chosen.tolist()}")
        return chosen

    def _solve(self, replies: Indices) -> Floats:
        """The code's own weights for sorted replies, shape (replies,); here: least squares of smallest norm."""
        return METHODS["least-squares"].weights(self, replies)

    def judge(self, weights: Floats) -> Decoding:
        """Weights with the residual and gain they have."""
        error = weights @ self.encoding - 1.0
        worst = float(np.abs(error).max())
        residual = 0.0 if worst < 1e-15 else float(np.linalg.norm(error) / np.sqrt(self.partitions))
        return Decoding(weights, residual, float(np.linalg.norm(weights * self.norms)), worst)

    # ------------------------------------------------------------------------------------------- theory

    def expected_error(self, replies: int, *, decoder: str = "own") -> float | None:
        """Mean of ``err = m x residual^2`` over uniformly random sets of ``replies``; None without a closed form.

        For ``one-step`` decoding it is known for every code: with ``a_i = rho``, column sums c_j and sums of squares
        q_j it is ``sum_j rho^2 (p1 q_j + p2 (c_j^2 - q_j)) - 2 rho p1 c_j + 1``, p1 and p2 being the chances that one
        and that two given workers reply.
        """
        self._check_count(replies)
        if decoder != "one-step":
            return None
        n, encoding = self.replies, self.encoding
        sums = np.asarray(encoding.sum(axis=0)).ravel()
        squares = np.asarray(encoding.multiply(encoding).sum(axis=0)).ravel()
        if not sums.sum():
            return None
        rho = self.partitions * n / (replies * sums.sum())
        one, two = replies / n, replies * (replies - 1) / (n * (n - 1)) if n > 1 else 0.0
        each = rho**2 * (one * squares + two * (sums**2 - squares)) - 2 * rho * one * sums + 1.0
        return float(each.sum())

    def worst_error(self, stragglers: int) -> tuple[float, bool] | None:
        """Largest ``err = m x residual^2`` of the own decoder with that many stragglers, and whether that is attained.

        False says that it is an upper bound; None that neither is known.
        """
        return (0.0, True) if stragglers <= self.tolerates and not (self.approximate and not self.tolerates) else None

    def _check_count(self, replies: int) -> None:
        if not 1 <= whole("replies", replies) <= self.replies:
            raise BadInput(f"replies must be 1 to {self.replies}, got {replies}")

    # ------------------------------------------------------------------------------------------- planning

    @property
    def quick(self) -> bool:
        """Whether :meth:`finish_times` takes all rounds at once, and not one reply after another."""
        return type(self).finish_times is not Code.finish_times

    def finish_times(self, arrivals: ArrayLike) -> Floats:
        """When the sum becomes recoverable, for many rounds at once.

        ``arrivals``: seconds at which each worker's reply arrives, shape (rounds, replies), ``inf`` for never.
        Returns shape (rounds,), ``inf`` where the sum never becomes recoverable.
        """
        times = self._arrivals(arrivals)
        finish = np.full(len(times), np.inf)
        for r, row in enumerate(times):
            decoder = self.decoder()
            for worker in np.argsort(row, kind="stable").tolist():
                if not np.isfinite(row[worker]):
                    break
                if decoder.add(worker):
                    finish[r] = row[worker]
                    break
        return finish

    def _arrivals(self, arrivals: ArrayLike) -> Floats:
        times = np.atleast_2d(np.asarray(arrivals, dtype=np.float64))
        if times.ndim != 2 or times.shape[1] != self.replies:
            raise BadInput(f"arrivals must have shape (rounds, {self.replies}), got {np.shape(arrivals)}")
        if np.isnan(times).any():
            raise BadInput("arrivals must be numbers (inf for a worker that never replies), got NaN")
        return times


class MatrixCode(Code):
    """A code that is given by its encoding matrix; a subclass builds it, sparse, in :meth:`_matrix`."""

    @abstractmethod
    def _matrix(self) -> scipy.sparse.csr_array:
        """The encoding, shape (replies, partitions)."""

    @fixed_property
    def encoding(self) -> scipy.sparse.csr_array:
        return valid_matrix(self._matrix(), (self.replies, self.partitions))

    @fixed_property
    def rows(self) -> Sequence[Row]:
        starts, indices, values = self.encoding.indptr.tolist(), self.encoding.indices, self.encoding.data
        return tuple((tuple(indices[a:b].tolist()), tuple(values[a:b].tolist())) for a, b in pairwise(starts))

    @property
    def partitions(self) -> int:
        """As many as workers."""
        return self.workers

    @property
    def tolerates(self) -> int:
        """0: nothing is promised for every straggler set."""
        return 0


def windows(workers: int, load: int) -> tuple[tuple[int, ...], ...]:
    """Of each worker i the partitions i, …, i + load - 1 (mod workers), sorted."""
    return tuple(tuple(sorted((i + step) % workers for step in range(load))) for i in range(workers))


def usual_load(workers: int) -> int:
    """The load that random codes get when none is given: about the logarithm of the workers, at least 2."""
    return min(workers, max(2, round(log(workers)))) if workers > 1 else 1


def check_load(name: str, load: int, most: int) -> int:
    """``load``; raises :class:`~anyk.errors.BadInput` unless it is between 1 and ``most``."""
    if not 1 <= whole("load", load) <= most:
        raise BadInput(f"{name}:load={load} does not exist for {most} partitions; load must be 1 to {most}")
    return int(load)


def incidence(assignment: Sequence[Sequence[int]], partitions: int, value: float = 1.0) -> scipy.sparse.csr_array:
    """The sparse matrix with ``value`` where a worker holds a partition, shape (workers, partitions)."""
    from scipy.sparse import csr_array

    starts = np.concatenate([[0], np.cumsum([len(held) for held in assignment])])
    indices = (
        np.concatenate([np.asarray(held, dtype=np.int64) for held in assignment]) if starts[-1] else np.empty(0, int)
    )
    return csr_array((np.full(len(indices), value), indices, starts), shape=(len(assignment), partitions))


def check_stragglers(stragglers: int, workers: int) -> int:
    """``stragglers``; raises :class:`~anyk.errors.BadInput` unless it is between 0 and ``workers - 1``."""
    if not 0 <= whole("stragglers", stragglers) < workers:
        raise BadInput(
            f"stragglers must be at least 0 and below workers ({workers}), got {stragglers}; "
            f"to take a step on few replies use wait={max(1, workers - max(stragglers, 0))}"
        )
    return int(stragglers)


__all__ = [
    "EXACT",
    "Code",
    "Decoder",
    "Decoding",
    "Floats",
    "Indices",
    "LeastSquaresDecoder",
    "MatrixCode",
    "Method",
    "Policy",
    "Row",
    "Selection",
    "check_load",
    "check_stragglers",
    "check_workers",
    "incidence",
    "usual_load",
    "windows",
    "whole",
]
