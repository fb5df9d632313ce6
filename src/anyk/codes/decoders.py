"""How weights are found: what a decoding is, decoders for one step, and methods that work for any code, as values.

A method maps a set of replies to weights: :class:`Own` is the code's own closed form, :class:`LeastSquares` the
optimum for any code, :class:`OneStep` one number for all, :class:`Algorithmic` a few gradient steps towards the
optimum. A :class:`Decoder` sees replies one by one and says at once when the sum is recoverable.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from anyk.checks import typed
from anyk.errors import BadInput, NotDecodable

if TYPE_CHECKING:
    from anyk.codes.base import Code

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]

EXACT = 1e-6  # a decode is exact when max|a B - 1| is at most this
_DENSE = 40_000  # replies x partitions up to which least squares are solved densely
_DECOMPOSED = 160_000  # replies x partitions of codes of which few lost replies are taken away from the whole
_GROWING = 400_000  # and up to which an orthonormal basis of the replies' rows grows with each arrival


@dataclass(frozen=True)
class Decoding:
    """Weights for a set of replies, and how good they are; unpacks into ``weights, residual, gain``.

    ``weights``: shape (replies,), zero for every reply that is not used ((replies, blocks) for a code whose replies
    are a fraction 1/blocks of the vector). ``residual``: ``||a B - 1||_2 / sqrt(partitions)``. ``gain``:
    ``sqrt(sum_i (a_i ||B_i||)^2)``, the factor by which the rounding of replies is amplified. ``worst``:
    ``max|a B - 1|``, which decides what is exact.
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
    weights: list[Any]  # a number each, or with blocks a list of numbers each
    residual: float
    gain: float


class Decoder(ABC):
    """Sees who replied, in order of arrival, and says at once when the sum is recoverable. One per step."""

    decodable: bool = False

    def measure(self, worker: int, value: float) -> None:
        """The projection of a reply, before :meth:`add`; not finite for a reply that is not."""
        raise NotImplementedError(f"{type(self).__name__} does not project replies")

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
        used = np.flatnonzero(weights if weights.ndim == 1 else np.abs(weights).sum(axis=1))
        return Selection(used.tolist(), weights[used].tolist(), residual, gain)


# ---------------------------------------------------------------------------------------------------- methods


class Method(Protocol):
    """A way to find weights for sorted ``replies``; shape (code.replies,), zero elsewhere."""

    def weights(self, code: Code, replies: Indices) -> Floats:
        """The weights."""
        ...


@dataclass(frozen=True)
class Own(Method):
    """The code's own way: its closed form where it has one, else least squares."""

    def weights(self, code: Code, replies: Indices) -> Floats:
        return code._solve(replies)


@dataclass(frozen=True)
class Exact(Method):
    """The code's own way, refused with :class:`~anyk.errors.NotDecodable` where the sum would not be exact."""

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
class LeastSquares(Method):
    """Weights of smallest norm among those nearest to the sum: ``argmin ||a B - 1||``, the optimal decoder.

    Small sets are solved densely; of codes with up to 160,000 entries few lost replies are taken away from a
    decomposition of the whole; larger ones are left to LSQR (Paige and Saunders 1982), in time linear in the non-zeros.
    """

    def weights(self, code: Code, replies: Indices) -> Floats:
        n, m = code.replies, code.partitions
        if len(replies) * m > _DENSE and n * m <= _DECOMPOSED and 3 * (n - len(replies)) <= n:
            found = code.removal.weights(np.setdiff1d(np.arange(n), replies))
            if found is not None:
                return found
        weights = np.zeros(n)
        if len(replies):
            weights[replies] = least_squares(code.encoding[replies], m)
        return weights


def least_squares(rows: Any, partitions: int) -> Floats:
    """Weights of smallest norm with ``weights @ rows`` nearest to ones; ``rows``: sparse, (replies, partitions)."""
    ones = np.ones(partitions)
    if rows.shape[0] * partitions <= _DENSE:
        return np.asarray(np.linalg.lstsq(rows.toarray().T, ones, rcond=None)[0])
    from scipy.sparse.linalg import lsqr

    scale = 1.0 / np.maximum(np.sqrt(np.asarray(rows.multiply(rows).sum(axis=1)).ravel()), 1e-300)
    even = np.ptp(scale) <= 1e-9 * scale.max()  # rows of very different norm would make the stopping test lie
    matrix = rows.T.tocsr() if even else (rows.T * scale).tocsr()
    found = np.asarray(lsqr(matrix, ones, atol=1e-8, btol=1e-8, iter_lim=4 * sum(rows.shape))[0])
    return found if even else found * scale


@dataclass(frozen=True)
class OneStep(Method):
    """One number for all replies: ``a_i = m n / (r sum(B))``, for which the mean coefficient is 1 on average.

    Unbiased over uniformly random sets of r replies where all partitions have equally many holders (Charles,
    Papailiopoulos and Ellenberg 2017, "one-step decoding").
    """

    def weights(self, code: Code, replies: Indices) -> Floats:
        weights = np.zeros(code.replies)
        if len(replies):
            total = float(code.encoding.sum())
            if total == 0.0:
                raise BadInput(f"one-step decoding needs coefficients that do not cancel; '{code.spec}' has sum 0")
            weights[replies] = code.partitions * code.replies / (len(replies) * total)
        return weights


@typed
@dataclass(frozen=True)
class Algorithmic(Method):
    """``iterations`` gradient steps from zero towards the least-squares weights.

    ``a <- a + B_S (1 - a B_S) / nu`` with ``nu = ||B_S||_1 ||B_S||_inf >= ||B_S||_2^2``, so that the error never
    grows (Charles, Papailiopoulos and Ellenberg 2017, "algorithmic decoding").
    """

    iterations: int = 50

    def __post_init__(self) -> None:
        if self.iterations < 1:
            raise BadInput(f"iterations must be a whole number of at least 1, got {self.iterations}")

    def weights(self, code: Code, replies: Indices) -> Floats:
        weights = np.zeros(code.replies)
        if not len(replies):
            return weights
        rows = code.encoding[replies]
        size = abs(rows)
        nu = float(size.sum(axis=0).max() * size.sum(axis=1).max())
        columns = rows.T.tocsr()
        found = np.zeros(len(replies))
        for _ in range(self.iterations):
            found += rows @ (1.0 - columns @ found) / nu
        weights[replies] = found
        return weights


METHODS: dict[str, Method] = {
    "own": Own(),
    "exact": Exact(),
    "least-squares": LeastSquares(),
    "one-step": OneStep(),
    "algorithmic": Algorithmic(),
}


def method(name: str | Method) -> Method:
    """A method by its name: own, exact, least-squares, one-step or algorithmic; a method itself is returned as it is.

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
    """Knows the set of replies and decodes it when asked; a subclass says when it suffices."""

    def __init__(self, code: Code, how: Method | None = None) -> None:
        self._code = code
        self._how = how or METHODS["own"]
        self._replied: list[int] = []

    def add(self, worker: int) -> bool:
        """See :meth:`Decoder.add`; here: when all have replied and that is exact."""
        self._replied.append(worker)
        if len(self._replied) == self._code.replies:
            self.decodable = self.decode().exact
        return self.decodable

    @property
    def residual(self) -> float:
        return self.decode().residual if self._replied else 1.0

    def decode(self) -> Decoding:
        return self._code._decode(np.array(sorted(self._replied), dtype=np.int64), self._how)


class CountingDecoder(SetDecoder):
    """Any n - s replies suffice; fewer are not tried, even where they might do. The solution is checked.

    In rounding arithmetic "suffice" may fail for unlucky sets; then one more reply is waited for.
    """

    def add(self, worker: int) -> bool:
        self._replied.append(worker)
        if not self.decodable and len(self._replied) >= self._code.replies - self._code.tolerates:
            self.decodable = self.decode().exact
        return self.decodable

    @property
    def residual(self) -> float:
        return 0.0 if self.decodable else super().residual


class LeastSquaresDecoder(SetDecoder):
    """Decodes any code. Of a small one, an orthonormal basis of the replies' rows grows with each arrival.

    The part of the all-ones vector outside the span is the residual, at O(replies x partitions) an arrival. Of a code
    with more than 400,000 entries the set is decoded when every partition is covered, then after every further 1 %
    of the replies.
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
            self._rest = np.ones(code.partitions)

    def add(self, worker: int) -> bool:
        self._replied.append(worker)
        if self.decodable:
            return True
        code = self._code
        encoding = code.encoding
        at, end = encoding.indptr[worker], encoding.indptr[worker + 1]
        held = encoding.indices[at:end]
        if self._missing:
            self._covered[held] = True
            self._missing = code.partitions - int(np.count_nonzero(self._covered))
        if self._small:
            self._grow(held, encoding.data[at:end] / (code.norms[worker] or 1.0))
        if self._missing:
            return False
        count = len(self._replied)
        promised = count >= code.replies - code.tolerates > 0
        if self._small and not promised:
            self.decodable = bool(np.abs(self._rest).max() <= EXACT / 10) and self.decode().exact
        elif promised or count % self._every == 0 or count == code.replies:
            self.decodable = self.decode().exact
        return self.decodable

    def _grow(self, held: Any, values: Floats) -> None:
        """Add the part of a row (scaled to norm 1) that is orthogonal to the rows before it to the basis."""
        if self._rank == len(self._basis):
            return
        row = np.zeros(self._code.partitions)
        row[held] = values
        basis = self._basis[: self._rank]
        for _ in range(2):  # once is not enough for orthogonality in floating point, twice is
            row -= (basis @ row) @ basis
        norm = float(np.linalg.norm(row))
        if norm > 1e-9:
            row /= norm
            self._basis[self._rank] = row
            self._rank += 1
            self._rest -= row * (row @ self._rest)

    @property
    def residual(self) -> float:
        if not self._small:
            return super().residual
        return float(np.linalg.norm(self._rest) / np.sqrt(self._code.partitions))
