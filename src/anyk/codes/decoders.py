"""Decoding: methods that find weights for a set of replies, and decoders that receive the replies of one step.

A method is a value that maps a set of replies to weights: :class:`Own` is the code's own closed form,
:class:`LeastSquaresMethod` the optimum for any code, :class:`OneStep` one number for all, :class:`Algorithmic` a few
gradient steps towards the optimum. A :class:`Decoder` receives replies one by one and detects when the sum is
recoverable.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from anyk.base.arrays import Floats, Indices
from anyk.base.checks import AtLeastOne, value_class
from anyk.base.errors import BadInput, NotDecodable
from anyk.codes.made import ReadOnlyArrays, frozen

if TYPE_CHECKING:
    from anyk.codes.base import Code


_RANK = 1e-9  # singular values below this fraction of the largest count as 0
_SPANNED = 1e-8  # a vector whose remainder is shorter than this fraction lies in the span of others


class Removal(ReadOnlyArrays):
    """The least-squares weights without some replies, by one singular value decomposition for all sets.

    With ``B = U S V'`` and its pseudo-inverse P, the remaining rows span less than all rows by the vectors
    ``P[:, lost] c`` for which ``c`` is orthogonal to the lost rows of the left null space. The error grows by the part
    of the all-ones vector in their span. This is fast if few replies are lost.
    """

    def __init__(self, matrix: Floats) -> None:
        """Decompose ``matrix``, the encoding, shape (replies, partitions)."""
        self._partitions = matrix.shape[1]
        left, singular, right = np.linalg.svd(matrix, full_matrices=True)
        rank = int((singular > _RANK * singular[0]).sum())
        spanned = right[:rank]
        self._inverse = (spanned.T / singular[:rank]) @ left[:, :rank].T
        self._null = left[:, rank:]
        self._ones = spanned.T @ spanned.sum(axis=1)  # projection of the all-ones vector on the span of all rows
        self._error = self._partitions - float(self._ones @ self._ones)
        frozen((self._inverse, self._null, self._ones))

    def weights(self, lost: Indices) -> Floats | None:
        """Return weights of smallest norm without ``lost``, shape (replies,); None if rounding spoils them."""
        basis = self._lost_span(lost)
        weights = self._inverse.T @ (self._ones - basis @ (basis.T @ self._ones))
        if self._null.shape[1] and len(lost):
            weights -= self._null @ (np.linalg.pinv(self._null[lost], rcond=_RANK) @ weights[lost])
        if np.abs(weights[lost]).max(initial=0.0) > _SPANNED * np.abs(weights).max():
            return None
        weights[lost] = 0.0
        return np.asarray(weights)

    def residuals(self, lost: Indices, more: Indices) -> Floats:
        """Return the residuals without ``lost`` and each of ``more``, shape (len(more),)."""
        basis = self._lost_span(lost)
        error = self._error + float(np.square(basis.T @ self._ones).sum())
        vectors = self._inverse[:, more]
        free = np.ones(len(more), dtype=bool)  # whether the remaining rows do not span the vector
        if self._null.shape[1]:
            weights = -self._null[more] @ np.linalg.pinv(self._null[lost], rcond=_RANK)
            free = np.linalg.norm(self._null[more] + weights @ self._null[lost], axis=1) < _SPANNED
            vectors = vectors + self._inverse[:, lost] @ weights.T
        size = np.linalg.norm(vectors, axis=0)
        for _ in range(2):  # once is not enough for orthogonality in floating point, twice is
            vectors = vectors - basis @ (basis.T @ vectors)
        norms = np.linalg.norm(vectors, axis=0)
        free &= norms > _SPANNED * size
        grown = np.square(self._ones @ np.where(free, vectors / np.where(free, norms, 1.0), 0.0))
        return np.asarray(np.sqrt(np.maximum(error + grown, 0.0) / self._partitions))

    def _lost_span(self, lost: Indices) -> Floats:
        """Return an orthonormal basis of the lost part of the span, shape (partitions, dimensions)."""
        vectors = self._inverse[:, lost]
        if self._null.shape[1] and len(lost):
            left, singular, _ = np.linalg.svd(self._null[lost], full_matrices=True)
            vectors = vectors @ left[:, int((singular > _SPANNED).sum()) :]
        return np.linalg.qr(vectors)[0]


EXACT = 1e-6  # a decode is exact when max|a B - 1| is at most this
_DENSE = 40_000  # replies x partitions up to which least squares are solved densely
_DECOMPOSED = 160_000  # replies x partitions up to which few lost replies are removed from a decomposition of all
_GROWING = 400_000  # and up to which an orthonormal basis of the replies' rows grows with each arrival


@dataclass(frozen=True)
class Decoding:
    """Weights for a set of replies, and how good they are; unpacks into ``weights, residual, gain``.

    ``weights``: shape (replies,), zero for unused replies; (replies, blocks) for a code whose replies are a fraction
    1/blocks of the vector. ``residual``: ``||a B - 1||_2 / sqrt(partitions)``. ``gain``:
    ``sqrt(sum_i (a_i ||B_i||)^2)``, the factor by which the rounding of replies is amplified. ``worst``:
    ``max|a B - 1|``, which decides whether the sum is exact.
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
    """A decoding restricted to the replies that it uses, in ascending order."""

    replies: list[int]
    weights: list[Any]  # a number for each reply, or with blocks a list of numbers
    residual: float
    gain: float


class Decoder(ABC):
    """Receives the replies of one step in order of arrival, and detects when the sum is recoverable."""

    decodable: bool = False

    def measure(self, worker: int, value: float) -> None:
        """Receive the projection of a reply, before :meth:`add`; it is not finite if the reply is not."""
        raise NotImplementedError(f"{type(self).__name__} does not project replies")

    @abstractmethod
    def add(self, worker: int) -> bool:
        """Add a reply by its number; return whether the sum is now recoverable."""

    @property
    @abstractmethod
    def residual(self) -> float:
        """Residual of a step taken now."""

    @abstractmethod
    def decode(self) -> Decoding:
        """Return weights for the replies so far, which depend on their set, not on their order."""

    def select(self) -> Selection:
        """Return the decoding without unused replies."""
        weights, residual, gain = self.decode()
        used = np.flatnonzero(weights if weights.ndim == 1 else np.abs(weights).sum(axis=1))
        return Selection(used.tolist(), weights[used].tolist(), residual, gain)


# ---------------------------------------------------------------------------------------------------- methods


class Method(Protocol):
    """A way to find weights for sorted ``replies``; shape (code.replies,), zero elsewhere."""

    def weights(self, code: Code, replies: Indices) -> Floats:
        """Return the weights."""
        ...


@dataclass(frozen=True)
class Own(Method):
    """The code's own way: its closed form if it has one, else least squares."""

    def weights(self, code: Code, replies: Indices) -> Floats:
        return code._solve(replies)


@dataclass(frozen=True)
class Exact(Method):
    """The code's own way; raises :class:`~anyk.NotDecodable` if the sum would not be exact."""

    def weights(self, code: Code, replies: Indices) -> Floats:
        weights = code._solve(replies)
        decoding = code.judge(weights)
        if not decoding.exact:
            enough = code.replies - code.tolerates
            hint = f"any {enough} do" if len(replies) < enough else f"rounding is amplified {decoding.gain:.1g} times"
            raise NotDecodable(
                f"{len(replies)} of {code.replies} replies do not give the exact sum under '{code.spec}' "
                f"(residual {decoding.residual:.2g}); " + ("only an approximation" if code.approximate else hint)
            )
        return weights


@dataclass(frozen=True)
class LeastSquaresMethod(Method):
    """Weights of smallest norm among those nearest to the sum: ``argmin ||a B - 1||``, the optimal decoder.

    Small sets are solved densely. For codes with up to 160,000 entries few lost replies are removed from a
    decomposition of all rows. Larger codes use LSQR (Paige and Saunders 1982), in time linear in the non-zeros.
    """

    def weights(self, code: Code, replies: Indices) -> Floats:
        n, m = code.replies, code.partitions
        if len(replies) * m > _DENSE and n * m <= _DECOMPOSED and 3 * (n - len(replies)) <= n:
            solution = code.removal.weights(np.setdiff1d(np.arange(n), replies))
            if solution is not None:
                return solution
        weights = np.zeros(n)
        if len(replies):
            weights[replies] = least_squares(code.encoding[replies], m)
        return weights


def least_squares(rows: Any, partitions: int) -> Floats:
    """Return weights of smallest norm with ``weights @ rows`` nearest to ones, shape (replies,).

    ``rows``: sparse, shape (replies, partitions).
    """
    ones = np.ones(partitions)
    if rows.shape[0] * partitions <= _DENSE:
        return np.asarray(np.linalg.lstsq(rows.toarray().T, ones, rcond=None)[0])
    from scipy.sparse.linalg import lsqr

    scale = 1.0 / np.maximum(np.sqrt(np.asarray(rows.multiply(rows).sum(axis=1)).ravel()), 1e-300)
    even = np.ptp(scale) <= 1e-9 * scale.max()  # rows of very different norm mislead the stopping test
    matrix = rows.T.tocsr() if even else (rows.T * scale).tocsr()
    solution = np.asarray(lsqr(matrix, ones, atol=1e-8, btol=1e-8, iter_lim=4 * sum(rows.shape))[0])
    return solution if even else solution * scale


@dataclass(frozen=True)
class OneStep(Method):
    """The same weight for all replies: ``a_i = m n / (r sum(B))``, for which the mean coefficient is 1 on average.

    Unbiased over uniformly random sets of r replies if all partitions have the same number of holders (Charles,
    Papailiopoulos and Ellenberg 2017, "one-step decoding").
    """

    def weights(self, code: Code, replies: Indices) -> Floats:
        weights = np.zeros(code.replies)
        if len(replies):
            total = float(code.encoding.sum())
            if total == 0.0:
                raise BadInput(f"one-step decoding needs coefficients that do not cancel; '{code.spec}' has sum 0")
            weights[replies] = code.partitions * code.expected / (len(replies) * total)
        return weights


@value_class
class Algorithmic(Method):
    """``iterations`` gradient steps from zero towards the least-squares weights.

    ``a <- a + B_S (1 - a B_S) / nu`` with ``nu = ||B_S||_1 ||B_S||_inf >= ||B_S||_2^2``, so that the error never
    grows (Charles, Papailiopoulos and Ellenberg 2017, "algorithmic decoding").
    """

    iterations: AtLeastOne = 50

    def weights(self, code: Code, replies: Indices) -> Floats:
        weights = np.zeros(code.replies)
        if not len(replies):
            return weights
        rows = code.encoding[replies]
        size = abs(rows)
        nu = float(size.sum(axis=0).max() * size.sum(axis=1).max())
        columns = rows.T.tocsr()
        solution = np.zeros(len(replies))
        for _ in range(self.iterations):
            solution += rows @ (1.0 - columns @ solution) / (nu or 1.0)  # 0: no worker has a partition
        weights[replies] = solution
        return weights


METHODS: dict[str, Method] = {
    "own": Own(),
    "exact": Exact(),
    "least-squares": LeastSquaresMethod(),
    "one-step": OneStep(),
    "algorithmic": Algorithmic(),
}


def method(name: str | Method) -> Method:
    """Return a method by its name: own, exact, least-squares, one-step or algorithmic; a method is returned unchanged.

    >>> method("one-step")
    OneStep()
    """
    if not isinstance(name, str):
        return name
    if name not in METHODS:
        raise BadInput(f"no decoder '{name}'; there are {', '.join(METHODS)}")
    return METHODS[name]


# ---------------------------------------------------------------------------------------------------- decoders


class SetDecoder(Decoder):
    """Collects the set of replies and decodes it on request; a subclass decides when it may suffice."""

    def __init__(self, code: Code, how: Method | None = None) -> None:
        self._code = code
        self._how = how or METHODS["own"]
        self._replied: list[int] = []

    def add(self, worker: int) -> bool:
        self._replied.append(worker)
        if not self.decodable and self._may_suffice():
            self.decodable = self.decode().exact
        return self.decodable

    def _may_suffice(self) -> bool:
        """Return whether the replies are worth decoding; by default if there is one of every worker."""
        return len(self._replied) == self._code.replies

    @property
    def residual(self) -> float:
        return self.decode().residual if self._replied else 1.0

    def decode(self) -> Decoding:
        return self._code._decode(np.array(sorted(self._replied), dtype=np.int64), self._how)


class CountingDecoder(SetDecoder):
    """Decodes as soon as n - s workers have replied; fewer are not tried, even if they might suffice.

    The solution is checked: rounding may spoil unlucky sets, and then one more reply is needed.
    """

    def _may_suffice(self) -> bool:
        return len(self._replied) >= self._code.replies - self._code.tolerates

    @property
    def residual(self) -> float:
        return 0.0 if self.decodable else super().residual


class LeastSquaresDecoder(SetDecoder):
    """Decodes any code. For small codes, an orthonormal basis of the replies' rows grows with each arrival.

    The part of the all-ones vector outside the span is the residual, in O(replies x partitions) per arrival. The set of
    a code with more than 400,000 entries is decoded once every partition is covered, then after every further 1 % of
    the replies.
    """

    def __init__(self, code: Code, how: Method | None = None) -> None:
        super().__init__(code, how)
        self._covered = np.zeros(code.partitions, dtype=bool)
        self._missing = code.partitions
        self._small = code.replies * code.partitions <= _GROWING
        self._every = max(1, code.replies // 100)
        if self._small:
            self._basis = np.empty((min(code.replies, code.partitions), code.partitions))
            self._rank = 0
            self._error = np.ones(code.partitions)

    def add(self, worker: int) -> bool:
        self._replied.append(worker)
        if self.decodable:
            return True
        code = self._code
        encoding = code.encoding
        start, end = encoding.indptr[worker], encoding.indptr[worker + 1]
        columns = encoding.indices[start:end]
        if self._missing:
            self._covered[columns] = True
            self._missing = code.partitions - int(np.count_nonzero(self._covered))
        if self._small:
            self._grow(columns, encoding.data[start:end] / (code.norms[worker] or 1.0))
        if self._missing:
            return False
        count = len(self._replied)
        promised = count >= code.replies - code.tolerates > 0
        if self._small and not promised:
            self.decodable = bool(np.abs(self._error).max() <= EXACT / 10) and self.decode().exact
        elif promised or count % self._every == 0 or count == code.replies:
            self.decodable = self.decode().exact
        return self.decodable

    def _grow(self, columns: Indices, values: Floats) -> None:
        """Add the part of a row (scaled to norm 1) that is orthogonal to the rows before it to the basis."""
        if self._rank == len(self._basis):
            return
        row = np.zeros(self._code.partitions)
        row[columns] = values
        basis = self._basis[: self._rank]
        for _ in range(2):  # once is not enough for orthogonality in floating point, twice is
            row -= (basis @ row) @ basis
        norm = float(np.linalg.norm(row))
        if norm > 1e-9:
            row /= norm
            self._basis[self._rank] = row
            self._rank += 1
            self._error -= row * (row @ self._error)

    @property
    def residual(self) -> float:
        if not self._small:
            return super().residual
        return float(np.linalg.norm(self._error) / np.sqrt(self._code.partitions))
