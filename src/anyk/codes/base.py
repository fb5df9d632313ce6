"""What every gradient code can do, and how any code is decoded when nothing better is known.

A code gives worker ``i`` the row ``B[i]`` of an encoding matrix ``B`` (workers x partitions): the worker adds up the
partial gradients of its partitions with that row's coefficients and sends the sum. From the replies of some workers
the driver needs weights ``a`` with ``a @ B = 1``, exactly or as nearly as possible (Tandon, Lei, Dimakis and
Karampatziakis 2017).
"""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from anyk.errors import BadInput, NotDecodable

if TYPE_CHECKING:
    import scipy.sparse

Floats = NDArray[np.float64]
Row = tuple[tuple[int, ...], tuple[float, ...]]  # partitions a worker holds, and their coefficients

EXACT = 1e-6  # a decode is exact when max|a B - 1| is at most this


@dataclass(frozen=True)
class Decoding:
    """Weights for a set of replies, and how good they are; unpacks into ``weights, residual, gain``.

    ``weights``: shape (replies,), zero for every reply that is not used. ``residual``:
    ``||a B - 1||_2 / sqrt(partitions)``. ``gain``: ``sqrt(sum_i (a_i ||B_i||)^2)``, the factor by which the rounding
    of replies is amplified. ``worst``: ``max|a B - 1|``, which decides what is exact.
    """

    weights: Floats
    residual: float
    gain: float
    worst: float

    def __iter__(self) -> Iterator[Any]:
        return iter((self.weights, self.residual, self.gain))

    def __getitem__(self, item: int) -> Any:
        return (self.weights, self.residual, self.gain)[item]

    @property
    def exact(self) -> bool:
        """Whether the sum is the full sum, to rounding."""
        return self.worst <= EXACT


class Selection(NamedTuple):
    """A decoding by the replies it uses, in ascending order; the form in which rounds ask for it."""

    replies: list[int]
    weights: list[float]
    residual: float
    gain: float


class Decoder(ABC):
    """Sees who replied, in order of arrival, and says at once when the sum is recoverable. One per step."""

    decodable: bool = False

    @abstractmethod
    def add(self, worker: int) -> bool:
        """One more reply; returns whether the sum is recoverable now."""

    @property
    @abstractmethod
    def residual(self) -> float:
        """The residual if the step were taken now."""

    @abstractmethod
    def decode(self) -> Decoding:
        """Weights for the replies so far; depends on their set only, not on their order."""

    def select(self) -> Selection:
        """As :meth:`decode`, without the replies that are not used."""
        weights, residual, gain = self.decode()
        used = np.flatnonzero(weights)
        return Selection(used.tolist(), weights[used].tolist(), residual, gain)


class Code(ABC):
    """Which partitions each worker holds and with which coefficients: an immutable matrix with a way to decode.

    A subclass is a frozen dataclass with fields ``workers`` and whatever else it needs; it gives ``partitions``,
    ``rows`` and ``tolerates``, and may give a faster ``decoder``, ``_solve`` or ``finish_times``. Where a worker sends
    several ``messages`` a step, message c of worker i is row ``i * messages + c``, a worker of its own to the decoder.
    """

    workers: int
    messages: int = 1

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

    # ------------------------------------------------------------------------------------------- facts

    @cached_property
    def encoding(self) -> scipy.sparse.csr_array:
        """The matrix B, shape (replies, partitions), sparse."""
        from scipy.sparse import csr_array

        indices = np.concatenate([np.asarray(p, dtype=np.int64) for p, _ in self.rows])
        values = np.concatenate([np.asarray(c, dtype=np.float64) for _, c in self.rows])
        starts = np.concatenate([[0], np.cumsum([len(p) for p, _ in self.rows])])
        return csr_array((values, indices, starts), shape=(self.replies, self.partitions))

    @property
    def replies(self) -> int:
        """The number of messages there can be in a step: workers x messages."""
        return self.workers * self.messages

    @cached_property
    def holdings(self) -> tuple[tuple[int, ...], ...]:
        """The partitions of each worker, sorted."""
        c = self.messages
        return tuple(
            tuple(sorted({j for partitions, _ in self.rows[i * c : i * c + c] for j in partitions}))
            for i in range(self.workers)
        )

    @cached_property
    def load(self) -> int:
        """The most partitions any worker computes in a step."""
        return max(len(held) for held in self.holdings)

    @cached_property
    def norms(self) -> Floats:
        """Euclidean norm of each row of the encoding, shape (replies,)."""
        return np.array([float(np.linalg.norm(c)) for _, c in self.rows])

    def expected_coefficients(self, replies: int) -> Floats:
        """What a partition's coefficient in the decoded sum is on average over random sets of ``replies`` workers.

        Shape (partitions,). Used for ``scaling=marginal``; only codes with a closed form have it.
        """
        raise BadInput(f"scaling=marginal needs a repetition code, got '{self.spec}'; use scaling=conditional or none")

    # ------------------------------------------------------------------------------------------- decoding

    def decode(self, workers: Iterable[int]) -> Decoding:
        """Weights for the replies of ``workers``: exact where they suffice, else as near as possible.

        Raises :class:`~anyk.errors.BadInput` for a worker out of range or named twice.

        >>> import anyk
        >>> weights, residual, gain = anyk.code("frc:stragglers=1", workers=4).decode([0, 3])
        >>> weights.tolist(), residual
        ([1.0, 0.0, 0.0, 1.0], 0.0)
        """
        decoder = self.decoder()
        for worker in self._checked(workers):
            decoder.add(worker)
        return decoder.decode()

    def decode_exactly(self, workers: Iterable[int]) -> Decoding:
        """As :meth:`decode`; raises :class:`~anyk.errors.NotDecodable` where the sum would not be exact."""
        chosen = self._checked(workers)
        decoding = self.decode(chosen)
        if not decoding.exact:
            raise NotDecodable(
                f"{len(chosen)} of {self.replies} replies do not give the exact sum under '{self.spec}' "
                f"(residual {decoding.residual:.2g}); any {self.replies - self.tolerates} do"
            )
        return decoding

    def decoder(self) -> Decoder:
        """A fresh incremental decoder for one step."""
        return LeastSquaresDecoder(self)

    def _checked(self, workers: Iterable[int]) -> list[int]:
        chosen = sorted(whole("a worker's number", worker) for worker in workers)
        if len(set(chosen)) < len(chosen):
            raise BadInput(f"workers must be different, got {chosen}")
        if chosen and not 0 <= chosen[0] <= chosen[-1] < self.replies:
            raise BadInput(f"workers must be 0 to {self.replies - 1}, got {chosen}")
        return chosen

    def _solve(self, workers: Sequence[int]) -> Floats:
        """Least-squares weights of smallest norm for sorted ``workers``, shape (replies,)."""
        weights = np.zeros(self.replies)
        if len(workers):
            chosen = np.asarray(workers)
            matrix = self.encoding[chosen].toarray().T
            weights[chosen] = np.linalg.lstsq(matrix, np.ones(self.partitions), rcond=None)[0]
        return weights

    def judge(self, weights: Floats) -> Decoding:
        """Weights with the residual and gain they have."""
        error = weights @ self.encoding - 1.0
        residual = 0.0 if np.max(np.abs(error)) < 1e-15 else float(np.linalg.norm(error) / np.sqrt(self.partitions))
        return Decoding(weights, residual, float(np.linalg.norm(weights * self.norms)), float(np.abs(error).max()))

    # ------------------------------------------------------------------------------------------- planning

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


class LeastSquaresDecoder(Decoder):
    """Decodes any code: an orthonormal basis of the replies' rows grows with each arrival (O(workers x partitions)).

    The part of the all-ones vector outside the span is the residual. Weights are computed once, when asked for.
    """

    def __init__(self, code: Code) -> None:
        self._code = code
        self._replied: list[int] = []
        self._basis: list[Floats] = []
        self._rest = np.ones(code.partitions)

    def add(self, worker: int) -> bool:
        """See :meth:`Decoder.add`."""
        self._replied.append(worker)
        row = np.zeros(self._code.partitions)
        partitions, coefficients = self._code.rows[worker]
        row[list(partitions)] = coefficients
        row /= self._code.norms[worker] or 1.0  # rows of very different norm would make the rank test lie
        for _ in range(2):  # once is not enough for orthogonality in floating point, twice is
            for direction in self._basis:
                row -= direction * (direction @ row)
        norm = float(np.linalg.norm(row))
        if norm > 1e-9:
            row /= norm
            self._basis.append(row)
            self._rest -= row * (row @ self._rest)
        if not self.decodable and len(self._replied) >= self._code.replies - self._code.tolerates:
            self.decodable = bool(np.max(np.abs(self._rest)) <= EXACT) and self.decode().exact
        elif not self.decodable:
            self.decodable = bool(np.max(np.abs(self._rest)) <= EXACT / 10)
        return self.decodable

    @property
    def residual(self) -> float:
        """See :attr:`Decoder.residual`."""
        return float(np.linalg.norm(self._rest) / np.sqrt(self._code.partitions))

    def decode(self) -> Decoding:
        """See :meth:`Decoder.decode`."""
        return self._code.judge(self._code._solve(sorted(self._replied)))


def whole(name: str, value: Any) -> int:
    """``value`` as a whole number, or one sentence of complaint."""
    try:
        return operator.index(value)
    except TypeError:
        least = " of at least 1" if name == "workers" else ""
        raise BadInput(f"{name} must be a whole number{least}, got {value!r}") from None


def check_workers(workers: Any) -> int:
    """``workers`` as a whole number of at least 1, or one sentence of complaint."""
    if isinstance(workers, bool) or whole("workers", workers) < 1:
        raise BadInput(f"workers must be a whole number of at least 1, got {workers!r}")
    return int(workers)


def check_stragglers(stragglers: int, workers: int) -> int:
    """``stragglers`` between 0 and ``workers - 1``, or one sentence of complaint."""
    if not 0 <= whole("stragglers", stragglers) < workers:
        raise BadInput(
            f"stragglers must be at least 0 and below workers ({workers}), got {stragglers}; "
            f"to take a step on few replies use wait={max(1, workers - max(stragglers, 0))}"
        )
    return int(stragglers)
