"""Block designs: any two workers share equally many partitions, so optimal decoding is one number."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from anyk.checks import typed
from anyk.codes.base import Decoder, Floats, Indices, MatrixCode, check_workers
from anyk.codes.decoders import SetDecoder
from anyk.codes.galois import field, prime_power
from anyk.codes.made import LEFT_OUT
from anyk.errors import BadInput

if TYPE_CHECKING:
    import scipy.sparse

Family = Literal[
    "projective",
    "affine",
    "paley",
    "paley-complement",
    "hadamard",
    "hadamard-complement",
    "singer",
    "twin-prime",
    "twin-prime-complement",
    "biquadratic",
]
Incidence = NDArray[np.bool_]

_LARGEST = 64  # order of fields that designs are made over


class Design(NamedTuple):
    """Parameters of a design: workers, partitions, partitions of a worker (w), partitions two workers share."""

    family: Family
    workers: int
    partitions: int
    load: int
    shared: int


def hyperplanes(q: int, dimension: int) -> Incidence:
    """Points and hyperplanes of PG(dimension, q): nonzero vectors of GF(q)^(dimension + 1) up to a factor.

    They are incident when their product is 0. Dimension 2 is the projective plane; of higher ones the cyclic difference
    sets are Singer's (1938).
    """
    F = field(q)
    points = [
        (0,) * lead + (1, *rest) for lead in range(dimension + 1) for rest in product(range(q), repeat=dimension - lead)
    ]
    x = np.array(points)
    total = F.times[x[:, None, 0], x[None, :, 0]]
    for i in range(1, dimension + 1):
        total = F.plus[total, F.times[x[:, None, i], x[None, :, i]]]
    return np.asarray(total == 0)


def affine_plane(q: int) -> Incidence:
    """AG(2, q): workers are the q^2 points, partitions the q^2 + q lines ``y = a x + b`` and ``x = c``."""
    F = field(q)
    x, y = (part.ravel() for part in np.meshgrid(np.arange(q), np.arange(q), indexing="ij"))
    a, b = (part.ravel() for part in np.meshgrid(np.arange(q), np.arange(q), indexing="ij"))
    sloped = F.plus[F.times[a[None, :], x[:, None]], b[None, :]] == y[:, None]
    return np.concatenate([sloped, x[:, None] == np.arange(q)[None, :]], axis=1)


def paley(q: int) -> Incidence:
    """Paley: worker i holds i + s for every nonzero square s of GF(q); q = 3 mod 4."""
    F = field(q)
    held = np.zeros((q, q), dtype=bool)
    for s in F.squares:
        held[np.arange(q), F.plus[np.arange(q), s]] = True
    return held


def twin_prime(q: int) -> Incidence:
    """Twin prime powers q and q + 2 (Stanton and Sprott 1958): a difference set of GF(q) x GF(q + 2).

    Pairs (a, b) with both squares, or both nonsquares but 0, and all pairs (a, 0).
    """
    F, G = field(q), field(q + 2)
    kinds = [np.array([0 if a == 0 else (1 if a in K.squares else -1) for a in range(K.order)]) for K in (F, G)]
    alike = (kinds[0][:, None] * kinds[1][None, :] == 1) | (kinds[1][None, :] == 0)
    a, b = (part.ravel() for part in np.meshgrid(np.arange(q), np.arange(q + 2), indexing="ij"))
    return _developed(alike[a, b], F.plus[np.ix_(a, a)] * (q + 2) + G.plus[np.ix_(b, b)])


def biquadratic(p: int) -> Incidence:
    """Fourth powers modulo a prime p = 4 a^2 + 1, a odd; with 0 for p = 4 a^2 + 9, a odd (Chowla 1944, Lehmer 1953)."""
    fourth = {pow(x, 4, p) for x in range(1, p)} | ({0} if _biquadratic(p) == "with 0" else set())
    numbers = np.arange(p)
    return _developed(np.isin(numbers, sorted(fourth)), (numbers[:, None] + numbers[None, :]) % p)


def _developed(member: NDArray[np.bool_], plus: NDArray[np.int64]) -> Incidence:
    """Worker i holds i + d for every member d of a difference set; ``plus[i, d]`` numbers the sum."""
    held = np.zeros((len(member), len(member)), dtype=bool)
    for d in np.flatnonzero(member):
        held[np.arange(len(member)), plus[:, d]] = True
    return held


def _biquadratic(p: int) -> str | None:
    """Which of the two difference sets of fourth powers exists modulo p."""
    if prime_power(p) != (p, 1):
        return None
    for name, beyond in (("plain", 1), ("with 0", 9)):
        a = round(max(0, (p - beyond) // 4) ** 0.5)
        if a % 2 and 4 * a * a + beyond == p:
            return name
    return None


def _twin(workers: int) -> int | None:
    """q with q (q + 2) workers, both prime powers and odd."""
    q = round((workers + 1) ** 0.5) - 1
    return q if q * (q + 2) == workers and q % 2 and q > 1 and prime_power(q) and prime_power(q + 2) else None


def _singer(workers: int) -> tuple[int, int] | None:
    """(q, dimension) with as many points as workers, dimension at least 3."""
    for q in range(2, _LARGEST + 1):
        for dimension in range(3, 8):
            points = (q ** (dimension + 1) - 1) // (q - 1)
            if points == workers and prime_power(q) is not None:
                return q, dimension
            if points > workers:
                break
    return None


def hadamard(order: int) -> Incidence:
    """Sylvester's Hadamard matrix of a power of 2, without its first row and column: where it is +1."""
    bits = np.arange(order)[:, None] & np.arange(order)[None, :]
    ones = np.zeros_like(bits)
    while bits.any():
        ones += bits & 1
        bits >>= 1
    return np.asarray(ones[1:, 1:] % 2 == 0)


def designs_for(workers: int) -> list[Design]:
    """The designs known here for so many workers, smallest load first.

    >>> [(d.family, d.load) for d in designs_for(7)]
    [('projective', 3), ('paley', 3), ('hadamard', 3), ('paley-complement', 4), ('hadamard-complement', 4)]
    """
    found: list[Design] = []
    for q in range(2, _LARGEST + 1):
        if prime_power(q) is None:
            continue
        if q * q + q + 1 == workers:
            found.append(Design("projective", workers, workers, q + 1, 1))
        if q * q == workers:
            found.append(Design("affine", workers, q * q + q, q + 1, 1))
    n = workers
    if n % 4 == 3 and n >= 7 and prime_power(n) is not None:
        found.append(Design("paley", n, n, (n - 1) // 2, (n - 3) // 4))
        found.append(Design("paley-complement", n, n, (n + 1) // 2, (n + 1) // 4))
    if n >= 7 and (n + 1) & n == 0:
        found.append(Design("hadamard", n, n, (n - 1) // 2, (n - 3) // 4))
        found.append(Design("hadamard-complement", n, n, (n + 1) // 2, (n + 1) // 4))
    singer, twin, fourth = _singer(n), _twin(n), _biquadratic(n)
    if singer is not None:
        q, dimension = singer
        found.append(Design("singer", n, n, (q**dimension - 1) // (q - 1), (q ** (dimension - 1) - 1) // (q - 1)))
    if twin is not None:
        found.append(Design("twin-prime", n, n, (n - 1) // 2, (n - 3) // 4))
        found.append(Design("twin-prime-complement", n, n, (n + 1) // 2, (n + 1) // 4))
    if fourth is not None and n > 5:
        load = (n - 1) // 4 + (fourth == "with 0")
        found.append(Design("biquadratic", n, n, load, load * (load - 1) // (n - 1)))
    return sorted(found, key=lambda design: design.load)


_BUILD: dict[str, Callable[[int], Incidence]] = {
    "projective": lambda n: hyperplanes(round((n - 0.75) ** 0.5 - 0.5), 2),
    "affine": lambda n: affine_plane(round(n**0.5)),
    "paley": paley,
    "paley-complement": lambda n: ~paley(n),
    "hadamard": lambda n: hadamard(n + 1),
    "hadamard-complement": lambda n: ~hadamard(n + 1),
    "singer": lambda n: hyperplanes(*(_singer(n) or (2, 3))),
    "twin-prime": lambda n: twin_prime(_twin(n) or 3),
    "twin-prime-complement": lambda n: ~twin_prime(_twin(n) or 3),
    "biquadratic": biquadratic,
}


@typed
@dataclass(frozen=True)
class BlockDesignCode(MatrixCode):
    """Block design code: any two workers share equally many partitions (Kadhe, Koyluoglu and Ramchandran 2019).

    With load w and l shared, ``B B' = (w - l) I + l J``, so for *any* r replies the optimal weights are all
    ``w / (w - l + l r)`` and the error is ``err = m - r w^2 / (w - l + l r)``: nobody can choose stragglers that hurt
    more than others. It is exact only when all reply.

    ``family``: projective planes PG(2, q) (n = q^2 + q + 1: 7, 13, 21, 31, 57, …), affine planes (n = q^2), Paley
    (n = 3 mod 4, a prime power), Hadamard (n = 2^k - 1), twin prime powers (n = q (q + 2): 15, 35, 63, 99, …), and the
    complements of the last three; hyperplanes of PG(d, q) (``singer``: 15, 31, 40, 63, 85, …); fourth powers
    (``biquadratic``: 13, 37, 101, …). Left out, the one of smallest load that exists for n workers, or the one of this
    ``load``. Raises :class:`~anyk.errors.BadInput` where none does.

    >>> code = BlockDesignCode(7)
    >>> code.family, code.load, [round(7 * code.decode(range(r)).residual ** 2, 3) for r in (7, 6, 5, 4)]
    ('projective', 3, [0.0, 0.25, 0.571, 1.0])
    """

    workers: int
    load: int = LEFT_OUT
    family: Family | None = None
    approximate = True

    def __post_init__(self) -> None:
        n = check_workers(self.workers)
        known = designs_for(n)
        if not known:
            raise BadInput(f"no block design is known for {n} workers")
        fitting = [d for d in known if self.family in (None, d.family) and self.load in (LEFT_OUT, d.load)]
        if not fitting:
            there = ", ".join(f"family={d.family} (load={d.load})" for d in known)
            asked = f"family={self.family}" if self.load is LEFT_OUT else f"load={self.load}"
            raise BadInput(f"bibd:{asked} does not exist for {n} workers; there is {there}")
        object.__setattr__(self, "family", fitting[0].family)
        object.__setattr__(self, "load", fitting[0].load)
        object.__setattr__(self, "_design", fitting[0])

    @property
    def design(self) -> Design:
        """Its parameters."""
        found: Design = self.__dict__["_design"]
        return found

    @property
    def spec(self) -> str:
        return f"bibd:family={self.family}"

    @property
    def partitions(self) -> int:
        """m; more than workers in affine planes."""
        return self.design.partitions

    def _matrix(self) -> scipy.sparse.csr_array:
        from scipy.sparse import csr_array

        return csr_array(_BUILD[self.design.family](self.workers).astype(np.float64))

    def decoder(self) -> Decoder:
        return SetDecoder(self)

    def _solve(self, replies: Indices) -> Floats:
        weights = np.zeros(self.workers)
        w, shared = self.design.load, self.design.shared
        if len(replies):
            weights[replies] = w / (w - shared + shared * len(replies))
        return weights

    def expected_error(self, replies: int, *, decoder: str = "own") -> float | None:
        """See :meth:`Code.expected_error`: ``m - r w^2 / (w - l + l r)`` for every set of r replies."""
        if decoder not in ("own", "least-squares"):
            return super().expected_error(replies, decoder=decoder)
        self._check_count(replies)
        w, shared = self.design.load, self.design.shared
        return max(0.0, self.partitions - replies * w**2 / (w - shared + shared * replies))

    def worst_error(self, stragglers: int) -> tuple[float, bool] | None:
        """See :meth:`Code.worst_error`: all sets of so many stragglers are alike."""
        if not 0 <= stragglers < self.workers:
            return None
        error = self.expected_error(self.workers - stragglers)
        return None if error is None else (error, True)
