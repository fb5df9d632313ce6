"""Block designs: any two workers share the same number of partitions, so optimal decoding is one number."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import chain, product
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from anyk.base.arrays import Flags, Floats, Indices
from anyk.base.checks import value_class
from anyk.base.errors import BadInput
from anyk.codes.base import Decoder, MatrixCode, check_workers
from anyk.codes.decoders import SetDecoder
from anyk.codes.made import LEFT_OUT, SparseMatrix, fixed_property

Table = NDArray[np.int64]


def prime_power(q: int) -> tuple[int, int] | None:
    """Return ``(p, e)`` with ``q = p^e`` and p prime, or None.

    >>> prime_power(9), prime_power(12)
    ((3, 2), None)
    """
    if q < 2:
        return None
    p = next((d for d in range(2, int(q**0.5) + 1) if q % d == 0), q)
    e = 1
    while p**e < q:
        e += 1
    return (p, e) if p**e == q else None


@dataclass(frozen=True)
class Field:
    """GF(q): elements 0 to q - 1 (digits base p are polynomial coefficients), with tables of sums and products."""

    order: int
    plus: Table
    times: Table

    @property
    def squares(self) -> frozenset[int]:
        """Squares except 0."""
        return frozenset(np.diagonal(self.times)[1:].tolist())


@cache
def field(q: int) -> Field:
    """Return the field of prime power order ``q``, by the first polynomial that gives every element an inverse.

    >>> field(4).times.tolist()
    [[0, 0, 0, 0], [0, 1, 2, 3], [0, 2, 3, 1], [0, 3, 1, 2]]
    """
    power = prime_power(q)
    if power is None:
        raise ValueError(f"there is no field of order {q}: it is no prime power")
    p, e = power
    digits = np.array([[a // p**i % p for i in range(e)] for a in range(q)], dtype=np.int64)
    weights = p ** np.arange(e)
    plus = ((digits[:, None, :] + digits[None, :, :]) % p) @ weights
    for low in product(range(p), repeat=e):  # x^e = -(low_0 + low_1 x + …)
        long = np.zeros((q, q, 2 * e - 1), dtype=np.int64)
        for i in range(e):
            for j in range(e):
                long[:, :, i + j] += digits[:, None, i] * digits[None, :, j]
        for top in range(2 * e - 2, e - 1, -1):
            for i in range(e):
                long[:, :, top - e + i] -= low[i] * long[:, :, top]
        times = (long[:, :, :e] % p) @ weights
        if (np.sort(times[1:, 1:], axis=1) == np.arange(1, q)).all():
            return Field(q, plus, times)
    raise AssertionError(f"no irreducible polynomial of degree {e} over GF({p})")


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
    "mcfarland",
    "gewirtz",
    "threefold",
]
Incidence = NDArray[np.bool_]  # whether a worker holds a partition, shape (workers, partitions)

_LARGEST = 64  # order of the fields of geometries


class BlockDesign(NamedTuple):
    """Parameters of a design: workers, partitions, partitions of a worker (w), partitions that two workers share."""

    family: Family
    workers: int
    partitions: int
    load: int
    shared: int


Buildable = tuple[BlockDesign, Callable[[], Incidence]]


def hyperplanes(q: int, dimension: int) -> Incidence:
    """Return the incidence of points and hyperplanes of PG(dimension, q): whether their product is 0.

    Both are nonzero vectors of GF(q)^(dimension + 1) up to a factor. Dimension 2 is the projective plane; the cyclic
    difference sets of higher dimensions are Singer's (1938).
    """
    F = field(q)
    points = [
        (0,) * zeros + (1, *other)
        for zeros in range(dimension + 1)
        for other in product(range(q), repeat=dimension - zeros)
    ]
    x = np.array(points)
    total = F.times[x[:, None, 0], x[None, :, 0]]
    for i in range(1, dimension + 1):
        total = F.plus[total, F.times[x[:, None, i], x[None, :, i]]]
    return np.asarray(total == 0)


def affine_plane(q: int) -> Incidence:
    """Return AG(2, q): workers are the q^2 points, partitions the q^2 + q lines ``y = a x + b`` and ``x = c``."""
    F = field(q)
    x, y = np.divmod(np.arange(q * q)[:, None], q)
    a, b = x.T, y.T
    return np.concatenate([F.plus[F.times[a, x], b] == y, x == np.arange(q)], axis=1)


def paley(q: int) -> Incidence:
    """Return Paley's design: worker i holds i + s for every nonzero square s of GF(q); q = 3 mod 4."""
    F = field(q)
    return _developed(np.isin(np.arange(q), list(F.squares)), F.plus)


def twin_prime(q: int) -> Incidence:
    """Return the design of twin prime powers q and q + 2 (Stanton and Sprott 1958).

    Its difference set in GF(q) x GF(q + 2): pairs (a, b) of two squares or two nonsquares, not 0, and all pairs (a, 0).
    """
    F, G = field(q), field(q + 2)
    characters = [np.array([0] + [1 if a in K.squares else -1 for a in range(1, K.order)]) for K in (F, G)]
    member = (np.outer(*characters) == 1) | (characters[1] == 0)
    a, b = np.divmod(np.arange(q * (q + 2)), q + 2)
    return _developed(member[a, b], F.plus[np.ix_(a, a)] * (q + 2) + G.plus[np.ix_(b, b)])


def biquadratic(p: int) -> Incidence:
    """Return the design of fourth powers modulo a prime p = 4 a^2 + 1, a odd (Chowla 1944).

    For p = 4 a^2 + 9, a odd, 0 is a member as well (Lehmer 1953).
    """
    fourth = {pow(x, 4, p) for x in range(1, p)} | ({0} if _biquadratic(p) == "with 0" else set())
    numbers = np.arange(p)
    return _developed(np.isin(numbers, sorted(fourth)), (numbers[:, None] + numbers[None, :]) % p)


def _developed(member: Flags, plus: Indices) -> Incidence:
    """Return the incidence in which worker i has the partitions i + d, ``plus[i, d]``, for d in a difference set."""
    incident = np.zeros((len(member), len(member)), dtype=bool)
    for d in np.flatnonzero(member):
        incident[np.arange(len(member)), plus[:, d]] = True
    return incident


def _biquadratic(p: int) -> str | None:
    """Return which of the two difference sets of fourth powers exists modulo p."""
    if prime_power(p) != (p, 1):
        return None
    for name, beyond in (("plain", 1), ("with 0", 9)):
        a = round(max(0, (p - beyond) // 4) ** 0.5)
        if a % 2 and 4 * a * a + beyond == p:
            return name
    return None


def _singer(workers: int) -> tuple[int, int] | None:
    """Return (q, dimension) of the geometry with this number of points, dimension at least 3."""
    for q in filter(prime_power, range(2, _LARGEST + 1)):
        for dimension in range(3, 8):
            if (q ** (dimension + 1) - 1) // (q - 1) == workers:
                return q, dimension
    return None


def hadamard(order: int) -> Incidence:
    """Return where Sylvester's Hadamard matrix of a power of 2 is +1, without its first row and column."""
    from scipy import linalg

    return np.asarray(linalg.hadamard(order)[1:, 1:] == 1)


def mcfarland(q: int) -> Incidence:
    """Return the design of the q + 1 lines through the origin of GF(q)^2, one in each coset but one (McFarland 1973).

    Its difference set is in GF(q)^2 x Z_(q + 2): the points of line i at i, for ``a x = y`` (i = a) and ``x = 0``.
    """
    F = field(q)
    x, y, coset = (digit.ravel() for digit in np.meshgrid(range(q), range(q), range(q + 2), indexing="ij"))
    slope = np.minimum(coset, q - 1)
    member = np.where(coset < q, F.times[slope, x] == y, (coset == q) & (x == 0))
    sums = F.plus[np.ix_(x, x)], F.plus[np.ix_(y, y)], (coset[:, None] + coset[None, :]) % (q + 2)
    return _developed(member, (sums[0] * q + sums[1]) * (q + 2) + sums[2])


def gewirtz() -> Incidence:
    """Return the biplane of 56 workers: those that are adjacent or the same in the graph of Gewirtz (1969).

    Its vertices are 56 of the hyperovals (six points, no three in a line) of PG(2, 4), any two of which have an even
    number of points in common; those with none are adjacent, and two vertices have 0 or 2 common neighbours.
    """
    lines = hyperplanes(4, 2).astype(np.int64)
    ovals: list[tuple[int, ...]] = []
    grow: list[tuple[int, ...]] = [(point,) for point in range(len(lines))]
    while grow:
        oval = grow.pop()
        if len(oval) == 6:
            ovals.append(oval)
            continue
        free = (lines[:, list(oval)].sum(axis=1) == 2) @ lines == 0  # on no line through two points
        grow += [(*oval, point) for point in range(oval[-1] + 1, len(lines)) if free[point]]
    points = np.array([np.isin(np.arange(len(lines)), oval) for oval in ovals], dtype=np.int64)
    common = points @ points.T
    alike = np.flatnonzero(common[0] % 2 == 0)
    return np.asarray((common[np.ix_(alike, alike)] == 0) | np.eye(len(alike), dtype=bool))


def threefold() -> Incidence:
    """Return a design of 25 workers that hold 9 partitions and share 3, found by a search among those of order 3.

    The rotation takes points 0, 1, 2 of each of eight triples on to the next, and leaves point 24 in place. Worker 24
    holds the first three triples; the others are the rotations of eight blocks.
    """
    blocks = (
        (0, 1, 7, 10, 11, 17, 18, 23, 24),
        (3, 6, 7, 12, 15, 17, 20, 21, 24),
        (0, 4, 5, 9, 12, 14, 18, 21, 24),
        (2, 6, 7, 11, 12, 14, 18, 19, 22),
        (1, 2, 5, 12, 15, 16, 18, 20, 23),
        (2, 4, 8, 10, 12, 17, 21, 22, 23),
        (1, 4, 6, 9, 11, 12, 13, 16, 17),
        (4, 5, 7, 10, 11, 16, 19, 20, 21),
    )
    incident = np.zeros((25, 25), dtype=bool)
    incident[24, :9] = True
    for worker in range(24):
        number, turns = divmod(worker, 3)
        for point in blocks[number]:
            incident[worker, point if point == 24 else point - point % 3 + (point + turns) % 3] = True
    return incident


def _halves(family: Family, complement: Family, n: int, build: Callable[[], Incidence]) -> Iterator[Buildable]:
    """Yield a design whose workers hold (n - 1) / 2 of the partitions, and its complement."""
    yield BlockDesign(family, n, n, (n - 1) // 2, (n - 3) // 4), build
    yield BlockDesign(complement, n, n, (n + 1) // 2, (n + 1) // 4), lambda: ~build()


def _projective(n: int) -> Iterator[Buildable]:
    q = round((n - 0.75) ** 0.5 - 0.5)
    if q <= _LARGEST and q * q + q + 1 == n and prime_power(q):
        yield BlockDesign("projective", n, n, q + 1, 1), lambda: hyperplanes(q, 2)


def _affine(n: int) -> Iterator[Buildable]:
    root = round(n**0.5)
    if root <= _LARGEST and root * root == n and prime_power(root):
        yield BlockDesign("affine", n, n + root, root + 1, 1), lambda: affine_plane(root)


def _paley(n: int) -> Iterator[Buildable]:
    if n % 4 == 3 and n >= 7 and prime_power(n):
        yield from _halves("paley", "paley-complement", n, lambda: paley(n))


def _hadamard(n: int) -> Iterator[Buildable]:
    if n >= 7 and (n + 1) & n == 0:
        yield from _halves("hadamard", "hadamard-complement", n, lambda: hadamard(n + 1))


def _hyperplanes(n: int) -> Iterator[Buildable]:
    if singer := _singer(n):
        order, dimension = singer
        loads = [(order**power - 1) // (order - 1) for power in (dimension, dimension - 1)]
        yield BlockDesign("singer", n, n, *loads), lambda: hyperplanes(order, dimension)


def _twin_prime(n: int) -> Iterator[Buildable]:
    twin = round((n + 1) ** 0.5) - 1
    if twin * (twin + 2) == n and twin % 2 and twin > 1 and prime_power(twin) and prime_power(twin + 2):
        yield from _halves("twin-prime", "twin-prime-complement", n, lambda: twin_prime(twin))


def _fourth_powers(n: int) -> Iterator[Buildable]:
    fourth = _biquadratic(n)
    if fourth and n > 5:
        load = (n - 1) // 4 + (fourth == "with 0")
        yield BlockDesign("biquadratic", n, n, load, load * (load - 1) // (n - 1)), lambda: biquadratic(n)


def _mcfarland(n: int) -> Iterator[Buildable]:
    third = next((q for q in filter(prime_power, range(2, _LARGEST + 1)) if q * q * (q + 2) == n), 0)
    if third:
        yield BlockDesign("mcfarland", n, n, third * (third + 1), third), lambda: mcfarland(third)


def _single(n: int) -> Iterator[Buildable]:
    if n == 25:
        yield BlockDesign("threefold", n, n, 9, 3), threefold
    if n == 56:
        yield BlockDesign("gewirtz", n, n, 11, 2), gewirtz


_FAMILIES = (
    _projective,
    _affine,
    _paley,
    _hadamard,
    _hyperplanes,
    _twin_prime,
    _fourth_powers,
    _mcfarland,
    _single,
)


def _buildable_designs(n: int) -> Iterator[Buildable]:
    """Yield the designs for n workers with the functions that build them."""
    return chain.from_iterable(designs_of(n) for designs_of in _FAMILIES)


def designs_for(workers: int) -> list[BlockDesign]:
    """Return the designs that anyk can build for this number of workers, smallest load first.

    >>> [(d.family, d.load) for d in designs_for(7)]
    [('projective', 3), ('paley', 3), ('hadamard', 3), ('paley-complement', 4), ('hadamard-complement', 4)]
    """
    return sorted((design for design, _ in _buildable_designs(workers)), key=lambda design: design.load)


@value_class
class BlockDesignCode(MatrixCode):
    """Block design code: any two workers share the same number of partitions (Kadhe, Koyluoglu and Ramchandran 2019).

    With load w and l shared, ``B B' = (w - l) I + l J``, so for *any* r replies the optimal weights are all
    ``w / (w - l + l r)`` and the error is ``err = m - r w^2 / (w - l + l r)``: no
    choice of stragglers hurts more than another. It is exact only when all reply.

    ``family``: projective planes PG(2, q) (n = q^2 + q + 1: 7, 13, 21, 31, 57, …), affine planes (n = q^2), Paley (n =
    3 mod 4, a prime power), Hadamard (n = 2^k - 1), twin prime powers (n = q (q + 2): 15, 35, 63, 99, …), and the
    complements of the last three; hyperplanes of PG(d, q) (``singer``: 15, 31, 40, 63, 85, …); fourth powers
    (``biquadratic``: 13, 37, 101, …); lines of GF(q)^2 in cosets (``mcfarland``, n = q^2 (q + 2): 16, 45, 96, …); the
    graph of Gewirtz (``gewirtz``: 56) and a design with a rotation of order 3 (``threefold``: 25). The default is the
    family of smallest load that exists for n workers, or the family with this ``load``. Raises
    :class:`~anyk.BadInput` if there is none.

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
        existing = designs_for(n)
        if not existing:
            raise BadInput(f"no block design is known for {n} workers")
        fitting = [d for d in existing if self.family in (None, d.family) and self.load in (LEFT_OUT, d.load)]
        if not fitting:
            choices = ", ".join(f"family={d.family} (load={d.load})" for d in existing)
            setting = f"family={self.family}" if self.load is LEFT_OUT else f"load={self.load}"
            raise BadInput(f"bibd:{setting} does not exist for {n} workers; there is {choices}")
        self._resolve(family=fitting[0].family, load=fitting[0].load)

    @fixed_property
    def design(self) -> BlockDesign:
        """Parameters of the design."""
        return next(design for design in designs_for(self.workers) if design.family == self.family)

    @property
    def spec(self) -> str:
        return f"bibd:family={self.family}"

    @property
    def partitions(self) -> int:
        """Number of partitions, m; more than workers in affine planes."""
        return self.design.partitions

    def _matrix(self) -> SparseMatrix:
        from scipy.sparse import csr_array

        build = next(build for design, build in _buildable_designs(self.workers) if design.family == self.family)
        return csr_array(build().astype(float))

    def decoder(self) -> Decoder:
        return SetDecoder(self)

    def _solve(self, replies: Indices) -> Floats:
        weights = np.zeros(self.workers)
        w, shared = self.design.load, self.design.shared
        if len(replies):
            weights[replies] = w / (w - shared + shared * len(replies))
        return weights

    def expected_error(self, replies: int, *, decoder: str = "own") -> float | None:
        """Return ``m - r w^2 / (w - l + l r)``, the error of every set of r replies."""
        if decoder not in ("own", "least-squares"):
            return super().expected_error(replies, decoder=decoder)
        self._check_count(replies)
        w, shared = self.design.load, self.design.shared
        return max(0.0, self.partitions - replies * w**2 / (w - shared + shared * replies))

    def worst_error(self, stragglers: int) -> tuple[float, bool] | None:
        """Return the error of every set of this many stragglers, which are all alike."""
        if not 0 <= stragglers < self.workers:
            return None
        error = self.expected_error(self.workers - stragglers)
        return None if error is None else (error, True)
