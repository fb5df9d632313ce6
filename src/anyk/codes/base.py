"""The base classes of gradient codes, with decoding and error measures that work for any code.

A code gives worker ``i`` the row ``B[i]`` of an encoding matrix ``B`` (workers x partitions): the worker adds up the
partial gradients of its partitions with that row's coefficients and sends the sum. From the replies of some workers
the driver needs weights ``a`` with ``a @ B = 1``, exactly or as nearly as possible (Tandon, Lei, Dimakis and
Karampatziakis 2017).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import pairwise
from math import log
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike

from anyk.base.arrays import Floats, Indices
from anyk.base.checks import check_range, check_workers, value_class, whole
from anyk.base.errors import BadInput
from anyk.base.html import html_matrix, html_table
from anyk.base.specs import show_spec
from anyk.codes.decoders import (
    EXACT,
    METHODS,
    CountingDecoder,
    Decoder,
    Decoding,
    LeastSquaresDecoder,
    Method,
    Removal,
    Selection,
    method,
)
from anyk.codes.made import CodeType, ReadOnlyArrays, checked_weights, fixed_property, is_users, valid_matrix

if TYPE_CHECKING:
    import scipy.sparse

Row = tuple[tuple[int, ...], tuple[float, ...]]  # partitions of a worker, and their coefficients

_REMEMBERED = 256  # number of decodings that a code caches


@value_class
class Policy:
    """Duties of a code's rounds besides waiting and decoding.

    ``rounds``: the kind of rounds that run it. ``projected``: each reply is projected to a number when it arrives,
    which the decoder gets before the reply counts. ``relearned(missed, steps)`` returns the code for the next rounds,
    given how often each worker was missing in that number of steps; it is called after every ``every`` steps.
    """

    rounds: Literal["coded", "progress", "tree"] = "coded"
    projected: bool = False
    every: int = 0
    relearned: Callable[[Sequence[int], int], Code] | None = None

    def __post_init__(self) -> None:
        if self.relearned is not None and self.every < 1:
            raise BadInput(f"every, the steps after which a code is relearned, must be at least 1, got {self.every}")


class _CodeRows(ReadOnlyArrays, metaclass=CodeType):
    """The facts of a code that follow from its rows."""

    workers: int
    messages: int = 1
    blocks: int = 1
    approximate: bool = False
    unbiased: bool = False
    own_messages: bool = False

    @property
    @abstractmethod
    def spec(self) -> str:
        """Short form from which the same code can be built for the same number of workers."""

    @property
    @abstractmethod
    def partitions(self) -> int:
        """Number of pieces into which the data is cut, m."""

    @property
    @abstractmethod
    def rows(self) -> Sequence[Row]:
        """Partitions and their coefficients for each reply, worker by worker and message by message."""

    @property
    @abstractmethod
    def tolerates(self) -> int:
        """Largest number of stragglers with which the sum is still exact, whoever they are."""

    def _repr_html_(self) -> str:
        """Return facts for notebooks, and the matrix if it is small."""
        tolerates = "no fixed number" if self.approximate else self.tolerates
        facts = [(self.spec, self.workers, self.partitions, self.load, tolerates)]
        return html_table(["code", "workers", "partitions", "load", "tolerates"], facts) + html_matrix(
            [row if self.blocks == 1 else (row[0], (1.0,) * len(row[0])) for row in self.rows], self.partitions
        )

    # ------------------------------------------------------------------------------------------- facts

    @fixed_property
    def encoding(self) -> scipy.sparse.csr_array:
        """Sparse matrix B, shape (replies, partitions x blocks); the blocks of a partition are adjacent."""
        from scipy.sparse import csr_array

        b = self.blocks
        columns = np.concatenate([np.asarray(p, dtype=np.int64) for p, _ in self.rows])
        for j in (columns.min(initial=0), columns.max(initial=0)):  # beyond these SciPy would write to foreign memory
            check_range("a partition of a row", j, 0, self.partitions - 1)
        indices = (columns[:, None] * b + np.arange(b)).ravel()
        values = np.concatenate([np.asarray(c, dtype=float) for _, c in self.rows])
        starts = b * np.concatenate([[0], np.cumsum([len(p) for p, _ in self.rows])])
        return csr_array((values, indices, starts), shape=(self.replies, self.partitions * b))

    @property
    def replies(self) -> int:
        """Largest number of messages in a step, workers x messages."""
        return self.workers * self.messages

    @property
    def expected(self) -> int:
        """Number of messages in a step if no worker is late; absent workers send none."""
        return self.replies

    @fixed_property
    def assignment(self) -> tuple[tuple[int, ...], ...]:
        """Partitions of each worker, sorted."""
        c = self.messages
        return tuple(
            tuple(sorted({j for partitions, _ in self.rows[i * c : i * c + c] for j in partitions}))
            for i in range(self.workers)
        )

    @fixed_property
    def load(self) -> int:
        """Largest number of partitions that a worker computes in a step."""
        return max(map(len, self.assignment))

    @fixed_property
    def norms(self) -> Floats:
        """Euclidean norm of each row of the encoding, shape (replies,)."""
        squares = self.encoding.multiply(self.encoding).sum(axis=1)
        return np.sqrt(np.asarray(squares, dtype=np.float64).ravel())

    @fixed_property
    def removal(self) -> Removal:
        """Least squares without some of the replies for many sets, from one dense decomposition."""
        return Removal(self.encoding.toarray())

    @property
    def replication(self) -> float:
        """Mean number of workers that hold a partition."""
        return sum(map(len, self.assignment)) / self.partitions

    def expected_coefficients(self, replies: int) -> Floats:
        """Return the mean coefficient of each partition over random sets of ``replies`` workers, shape (partitions,).

        ``scaling=marginal`` uses it. Raises :class:`~anyk.BadInput` for codes without a closed form.
        """
        raise BadInput(f"scaling=marginal needs a repetition code, got '{self.spec}'; use scaling=conditional or none")

    def _check_encoding(self) -> None:
        """Raise :class:`~anyk.BadInput` unless a matrix that a class builds itself is the matrix of its rows."""
        if type(self).encoding in (Code.encoding, MatrixCode.encoding):
            return
        shape = self.replies, self.partitions * self.blocks
        differs = abs(valid_matrix(self.encoding, shape) - Code.encoding.func(self))
        if differs.nnz and differs.max() > 0:
            row = int(np.flatnonzero(np.asarray(differs.sum(axis=1)).ravel())[0])
            raise BadInput(f"the encoding is not that of the rows: row {row} differs")

    def _check_more(self) -> None:
        """Raise :class:`~anyk.BadInput` for invalid parts of a custom code besides rows and encoding."""


class Code(_CodeRows):
    """The partitions of each worker with their coefficients: an immutable matrix with a way to decode.

    A subclass is a frozen dataclass with a field ``workers`` and further settings. It defines ``spec``, ``partitions``,
    ``rows`` and ``tolerates``, and may define a faster ``decoder``, ``_solve`` or ``finish_times``. If a worker sends
    several ``messages`` a step, message c of worker i is row ``i * messages + c``, which decoders take for a worker.
    ``approximate``: steps are meant to be taken without the exact sum. ``unbiased``: its own decoding is right on
    average and must not be rescaled. ``optimal``: its own weights are as good as least squares. ``blocks``: each reply
    is a vector of length d / blocks, with ``blocks`` sets of coefficients and weights. ``own_messages``: each reply
    covers a partition that no other worker holds.

    A code of a class outside anyk is checked when it is built: :class:`~anyk.BadInput` names the row with
    a partition that does not exist or occurs twice, or with a coefficient that is not finite.
    """

    # ------------------------------------------------------------------------------------------- decoding

    def decode(self, workers: Iterable[int], *, decoder: str | Method = "own") -> Decoding:
        """Return weights for the replies of ``workers``: exact if they suffice, else as near as possible.

        ``decoder``: the code's ``own`` way, or ``exact``, ``least-squares``, ``one-step``, ``algorithmic``; see
        :mod:`anyk.codes.decoders`. Recent decodings are cached. Raises :class:`~anyk.BadInput` for a worker
        that does not exist or is named twice.

        >>> import anyk
        >>> weights, residual, gain = anyk.code("frc:stragglers=1", workers=4).decode([0, 3])
        >>> weights.tolist(), residual
        ([1.0, 0.0, 0.0, 1.0], 0.0)
        """
        return self._decode(self._checked(workers), method(decoder))

    def decode_exactly(self, workers: Iterable[int]) -> Decoding:
        """Return weights as :meth:`decode`; raise :class:`~anyk.NotDecodable` if the sum is not exact."""
        return self.decode(workers, decoder="exact")

    def policy(self) -> Policy:
        """Return further duties of the code's rounds; by default none."""
        return Policy()

    def decoder(self) -> Decoder:
        """Return a new incremental decoder for one step."""
        return LeastSquaresDecoder(self)

    def _decode(self, replies: Indices, how: Method) -> Decoding:
        """Return the decoding of sorted replies; it is cached and shared, so its weights are read-only."""
        remembered, key = self._remembered, (how, replies.tobytes())
        decoding = remembered.pop(key, None)
        if decoding is None:
            weights = how.weights(self, replies)
            if is_users(type(self)) or is_users(type(how)):
                weights = checked_weights(self, weights, replies)
            decoding = self.judge(weights)
            decoding.weights.flags.writeable = False
            if len(remembered) >= _REMEMBERED:
                remembered.pop(next(iter(remembered)), None)
        remembered[key] = decoding  # the last, as it was used last
        return decoding

    @cached_property
    def _remembered(self) -> dict[tuple[Method, bytes], Decoding]:
        return {}

    def _checked(self, workers: Iterable[int]) -> Indices:
        listed = workers if isinstance(workers, np.ndarray) else list(workers)
        replies = np.asarray(listed)
        if not replies.size:
            return np.empty(0, dtype=np.int64)
        if replies.ndim != 1 or replies.dtype.kind not in "iu":
            replies = np.array([whole("a worker's number", worker) for worker in np.asarray(listed, dtype=object).flat])
        replies = np.sort(replies.astype(np.int64))
        if (replies[1:] == replies[:-1]).any():
            raise BadInput(f"workers must be different, got {replies.tolist()}")
        for replying in replies[[0, -1]].tolist():
            check_range("a worker's number", replying, 0, self.replies - 1)
        return replies

    def _solve(self, replies: Indices) -> Floats:
        """Return the code's own weights for sorted replies, shape (replies,): by default least squares."""
        return METHODS["least-squares"].weights(self, replies)

    @property
    def optimal(self) -> bool:
        """Whether the code's own weights are least-squares weights, or as good."""
        return type(self)._solve is Code._solve

    def _resolve(self, **values: Any) -> None:
        """Set fields of a frozen code to values derived from its arguments, while it is being built."""
        self.__dict__.update(values)

    def judge(self, weights: Floats) -> Decoding:
        """Return weights with their residual and gain."""
        error = weights @ self.encoding - 1.0
        worst = float(np.abs(error).max())
        residual = 0.0 if worst < 1e-15 else float(np.linalg.norm(error) / np.sqrt(self.partitions))
        return Decoding(weights, residual, float(np.linalg.norm(weights * self.norms)), worst)

    # ------------------------------------------------------------------------------------------- theory

    def expected_error(self, replies: int, *, decoder: str = "own") -> float | None:
        """Return the mean of ``err = m x residual^2`` over random sets of ``replies``; None without a closed form.

        ``one-step`` decoding has one for every code: with ``a_i = rho``, column sums c_j and sums of squares q_j it
        is ``sum_j rho^2 (p1 q_j + p2 (c_j^2 - q_j)) - 2 rho p1 c_j + 1``, where p1 is the chance that a given worker
        replies and p2 that two given workers do.
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
        by_partition = rho**2 * (one * squares + two * (sums**2 - squares)) - 2 * rho * one * sums + 1.0
        return float(by_partition.sum())

    def worst_error(self, stragglers: int) -> tuple[float, bool] | None:
        """Return the largest ``err = m x residual^2`` with this many stragglers, and whether a set attains it.

        If not, the error is an upper bound. None: neither is known. The code's own decoder is used.
        """
        return (0.0, True) if stragglers <= self.tolerates and not (self.approximate and not self.tolerates) else None

    def _check_count(self, replies: int) -> None:
        check_range("replies", whole("replies", replies), 1, self.replies)

    # ------------------------------------------------------------------------------------------- planning

    @property
    def quick(self) -> bool:
        """Whether :meth:`finish_times` computes all rounds together instead of reply by reply."""
        return type(self).finish_times is not Code.finish_times

    def finish_times(self, arrivals: ArrayLike) -> Floats:
        """Return the seconds after which the sum is recoverable, shape (rounds,); ``inf`` for never.

        ``arrivals``: seconds at which each worker's reply arrives, shape (rounds, replies), ``inf`` for never.
        Raises :class:`~anyk.BadInput` for another shape or NaN.
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
        times = np.atleast_2d(np.asarray(arrivals, dtype=float))
        if times.ndim != 2 or times.shape[1] != self.replies:
            raise BadInput(f"arrivals must have shape (rounds, {self.replies}), got {np.shape(arrivals)}")
        if np.isnan(times).any():
            raise BadInput("arrivals must be numbers (inf for a worker that never replies), got NaN")
        return times


class MatrixCode(Code):
    """A code defined by its sparse encoding matrix, which a subclass builds in :meth:`_matrix`."""

    @abstractmethod
    def _matrix(self) -> scipy.sparse.csr_array:
        """Return the encoding, shape (replies, partitions)."""

    @fixed_property
    def encoding(self) -> scipy.sparse.csr_array:
        return valid_matrix(self._matrix(), (self.replies, self.partitions))

    @fixed_property
    def rows(self) -> Sequence[Row]:
        starts, indices, values = self.encoding.indptr.tolist(), self.encoding.indices, self.encoding.data
        return tuple((tuple(indices[a:b].tolist()), tuple(values[a:b].tolist())) for a, b in pairwise(starts))

    @property
    def partitions(self) -> int:
        return self.workers

    @property
    def tolerates(self) -> int:
        """Largest number of stragglers for which the sum is always exact: 0, as no set is promised."""
        return 0


@dataclass(frozen=True)
class RegisteredCode(Code):
    """A code whose spec consists of its registered ``name`` and its fields; it has as many partitions as workers."""

    name: ClassVar[str]
    optional: ClassVar[tuple[str, ...]] = ("seed",)  # fields that the spec omits at their default

    @property
    def spec(self) -> str:
        settings = [field for field in fields(self) if field.name != "workers"]
        defaults = {field.name: field.default for field in settings if field.name in self.optional}
        return show_spec(self.name, {field.name: self.__dict__[field.name] for field in settings}, defaults)

    @property
    def partitions(self) -> int:
        return self.workers


class StragglersCode(RegisteredCode):
    """A code built for a number of ``stragglers``, s.

    s is by default a tenth of the workers, at least 1.
    """

    stragglers: int | None

    def __post_init__(self) -> None:
        n = check_workers(self.workers)
        s = max(1, n // 10) if self.stragglers is None and n > 1 else self.stragglers or 0
        self._resolve(stragglers=check_stragglers(s, n))

    @property
    def tolerates(self) -> int:
        return self.stragglers or 0


class WindowCode(StragglersCode):
    """A code in which worker i holds partitions i, …, i + load - 1 (mod n), and any n - s replies give the sum."""

    @property
    def load(self) -> int:
        """Partitions of each worker: stragglers + blocks, the least possible (Ye and Abbe 2018)."""
        return self.tolerates + self.blocks

    @fixed_property
    def assignment(self) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(sorted(window)) for window in windows(self.workers, self.load))

    def decoder(self) -> Decoder:
        return CountingDecoder(self)

    def finish_times(self, arrivals: ArrayLike) -> Floats:
        """Return the (n - s)-th arrival of each round."""
        last = self.workers - self.tolerates - 1
        return np.partition(self._arrivals(arrivals), last, axis=1)[:, last]


def windows(workers: int, load: int) -> tuple[tuple[int, ...], ...]:
    """Return the partitions i, …, i + load - 1 (mod workers) of each worker i, in this order."""
    return tuple(tuple((i + step) % workers for step in range(load)) for i in range(workers))


def usual_load(workers: int) -> int:
    """Return the default load of random codes: about the logarithm of the workers, at least 2."""
    return min(workers, max(2, round(log(workers)))) if workers > 1 else 1


def check_load(name: str, load: int, most: int) -> int:
    """Return ``load``; raise :class:`~anyk.BadInput` unless it is between 1 and ``most``."""
    check_range(f"load of '{name}'", load, 1, most, " partitions")
    return load


def incidence(assignment: Sequence[Sequence[int]], partitions: int) -> scipy.sparse.csr_array:
    """Return the sparse matrix with 1 for each partition of a worker, shape (workers, partitions)."""
    from scipy.sparse import csr_array

    starts = np.concatenate([[0], np.cumsum(list(map(len, assignment)))])
    indices = np.array([j for assigned in assignment for j in assigned], dtype=np.int64)
    return csr_array((np.ones(len(indices)), indices, starts), shape=(len(assignment), partitions))


def check_stragglers(stragglers: int, workers: int) -> int:
    """Return ``stragglers``; raise :class:`~anyk.BadInput` unless it is between 0 and ``workers - 1``."""
    if not 0 <= stragglers < workers:
        raise BadInput(
            f"stragglers must be at least 0 and below workers ({workers}), got {stragglers}; "
            f"to take a step on few replies use wait={max(1, workers - max(stragglers, 0))}"
        )
    return stragglers


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
    "RegisteredCode",
    "Row",
    "Selection",
    "StragglersCode",
    "WindowCode",
    "check_load",
    "check_stragglers",
    "check_workers",
    "incidence",
    "usual_load",
    "whole",
    "windows",
]
