"""Regular codes: all workers have the same number of partitions, and all partitions equally many holders; products."""

from __future__ import annotations

from operator import itemgetter

import numpy as np

from anyk.base.arrays import Floats, Indices
from anyk.base.checks import AtLeastOne, value_class
from anyk.base.errors import BadInput
from anyk.base.keyed import keyed_generator
from anyk.base.specs import show_spec
from anyk.codes.base import Code, MatrixCode, RegisteredCode, check_load, check_workers, incidence, usual_load
from anyk.codes.decoders import LeastSquaresMethod
from anyk.codes.made import LEFT_OUT, SparseMatrix, fixed_property
from anyk.graphs import adjacency, edges_of_regular, second_eigenvalue

_DENSE = 600  # size up to which singular values are computed densely


def second_singular(matrix: SparseMatrix) -> float:
    """Return the second largest singular value of a sparse matrix."""
    if max(matrix.shape) <= _DENSE:
        values = np.linalg.svd(matrix.toarray(), compute_uv=False)
        return float(values[1]) if len(values) > 1 else 0.0
    from scipy.sparse.linalg import svds

    start = keyed_generator(0, "singular", *matrix.shape).standard_normal(min(matrix.shape))
    return float(np.sort(svds(matrix, k=2, v0=start, return_singular_vectors=False, tol=1e-6))[0])


def adversarial_bound(code: Code, stragglers: int, ratio: float) -> tuple[float, bool] | None:
    """Return ``ratio^2 n f / (n - f)``, at most m, and whether it is attained; None for an invalid f."""
    n = code.workers
    if not 0 <= stragglers < n:
        return None
    return min(ratio**2 * n * stragglers / (n - stragglers), float(code.partitions)), stragglers == 0


class BiregularCode(MatrixCode):
    """Rows and columns with constant sums, for which one-step decoding has a bound against any adversary.

    With row sum w, column sum ``c = n w / m`` and second singular value s2, the weights ``n / ((n - f) c)`` have
    ``err <= (s2 / c)^2 n f / (n - f)`` whoever the f stragglers are: they are 1/c plus a vector of squared norm
    ``n f / ((n - f) c^2)`` orthogonal to ones. Least squares are no worse.
    """

    approximate = True

    @fixed_property
    def second_singular(self) -> float:
        """Second largest singular value of the encoding."""
        return second_singular(self.encoding)

    def worst_error(self, stragglers: int) -> tuple[float, bool] | None:
        """Return the bound of :class:`BiregularCode`."""
        column = float(self.encoding.sum()) / self.partitions
        return adversarial_bound(self, stragglers, self.second_singular / column)


@value_class
class ExpanderCode(RegisteredCode, BiregularCode):
    """Expander code: B is the adjacency matrix of a random regular graph, divided by the degree.

    For a graph whose second eigenvalue is near Ramanujan's ``2 sqrt(d - 1)`` the error is small whoever straggles
    (Raviv, Tamo, Tandon and Dimakis 2017). Up to 20 graphs are sampled until it is below that plus 0.5.

    ``load`` is the degree d, at least 2; workers x load must be even. The default is about log n. Raises
    :class:`~anyk.BadInput` for fewer than 3 workers and loads without a suitable graph.

    >>> code = ExpanderCode(100, load=6)
    >>> bool(code.second_singular * 6 < 2 * 5**0.5 + 0.5), code.load
    (True, 6)
    """

    workers: int
    load: int = LEFT_OUT
    seed: int = 0
    name = "expander"

    def __post_init__(self) -> None:
        n = check_workers(self.workers)
        if n < 3:
            raise BadInput(f"expander needs at least 3 workers, got {n}; use frc")
        load = self.load
        if load is LEFT_OUT:
            load = min(usual_load(n), n - 1)
            load += n * load % 2 or (load == 2 and n % 2 == 0)
        # a ring of even length is bipartite: its second eigenvalue is as large as the first
        good = [d for d in range(2, n) if n * d % 2 == 0 and (d > 2 or n % 2)]
        if load not in good:
            raise BadInput(
                f"expander:load={load} does not exist for {n} workers: load must be {good[0]} to {n - 1} and workers x "
                "load even"
            )
        self._resolve(load=load)

    def _matrix(self) -> SparseMatrix:
        n, d = self.workers, self.load
        samples = []
        for draw in range(20):
            matrix = adjacency(edges_of_regular(n, d, seed=self.seed, draw=draw), n)
            samples.append((second_eigenvalue(matrix, seed=self.seed), matrix))
            if samples[-1][0] <= min(2 * np.sqrt(d - 1) + 0.5, d - 1e-6):
                break
        second, best = min(samples, key=itemgetter(0))
        if second > d - 1e-6:
            raise BadInput(f"no graph of degree {d} that is not bipartite was found for {n} workers; use another load")
        return best / d


@value_class
class RandomBiregularCode(BiregularCode):
    """Random biregular code ("soft BIBD"): a random 0/1 matrix with constant row and column sums.

    Two workers share ``load^2 / m`` partitions on average, as in a block design, for any number of workers (after
    Sakorikar and Wang 2021). On average over stragglers its error is far below a design's; against many adversarial
    stragglers the design wins. Decoded by least squares.

    ``load`` is the row sum, by default about log n; ``partitions`` is by default n, and ``n load / m`` must be an
    integer, else :class:`~anyk.BadInput` is raised.

    >>> code = RandomBiregularCode(57, load=8)
    >>> set(code.encoding.sum(axis=0).tolist()) == set(code.encoding.sum(axis=1).tolist()) == {8.0}
    True
    """

    workers: int
    load: int = LEFT_OUT
    partitions: AtLeastOne = LEFT_OUT
    seed: int = 0

    def __post_init__(self) -> None:
        n = check_workers(self.workers)
        m = n if self.partitions is LEFT_OUT else self.partitions
        good = [w for w in range(1, m + 1) if n * w % m == 0 and n * w >= m]
        load = self.load
        if load is LEFT_OUT:
            load = min(good, key=lambda w: abs(w - usual_load(n)))
        if check_load("biregular", load, m) not in good:
            raise BadInput(
                f"biregular:load={load} does not exist for {n} workers and {m} partitions: workers x load must be a "
                "multiple of the partitions"
            )
        self._resolve(partitions=m, load=load)

    @property
    def spec(self) -> str:
        values = {"load": self.load, "partitions": self.partitions, "seed": self.seed}
        return show_spec("biregular", values, {"partitions": self.workers, "seed": 0})

    def _matrix(self) -> SparseMatrix:
        n, m, w = self.workers, self.partitions, self.load
        random = keyed_generator(self.seed, "biregular", n, m, w)
        if 2 * w <= m:
            return incidence(_biregular(n, m, w, random).tolist(), m)
        if w == m:
            return incidence([range(m)] * n, m)
        missing = _biregular(n, m, m - w, random)  # for a dense matrix the missing partitions are sampled
        return incidence([np.setdiff1d(np.arange(m), row).tolist() for row in missing], m)


def _biregular(rows: int, columns: int, load: int, random: np.random.Generator) -> Indices:
    """Return distinct columns for each row, every column equally often; shape (rows, load), sorted.

    Column stubs are dealt out at random; a row's duplicates are exchanged with random stubs until there are none.
    """
    dealt = random.permutation(np.repeat(np.arange(columns), rows * load // columns)).reshape(rows, load)
    while True:
        dealt.sort(axis=1)
        duplicates = np.argwhere(dealt[:, 1:] == dealt[:, :-1])
        if not len(duplicates):
            return np.asarray(dealt, dtype=np.int64)
        flat = dealt.ravel()
        other = random.integers(flat.size, size=len(duplicates)).tolist()
        for (i, j), k in zip(duplicates.tolist(), other, strict=True):
            edge = i * load + j
            flat[edge], flat[k] = flat[k], flat[edge]


@value_class
class KroneckerCode(MatrixCode):
    """Product of two codes: worker (i, j) holds partition (p, q) with coefficient ``B1[i, p] B2[j, q]``.

    Loads, as fractions of the data, multiply. When the replies form a product of worker sets, the product of the
    factors' optimal weights is optimal, with ``err = m1 m2 - (m1 - err1) (m2 - err2)``; any other set is decoded by
    least squares. Where both factors have constant row and column sums, the bound of
    :class:`~anyk.codes.BiregularCode` holds with second singular value ``max(s1 t2, t1 s2)``, where t is the first one
    (product gradient codes, Sakorikar and Wang 2021). Worker (i, j) is number ``i n2 + j``, partitions likewise. Raises
    :class:`~anyk.BadInput` for factors whose workers send several messages or parts of the vector.

    >>> import anyk
    >>> code = KroneckerCode(anyk.codes.BlockDesignCode(7), anyk.codes.BlockDesignCode(13))
    >>> replies = [i * 13 + j for i in range(4) for j in range(9)]
    >>> round(code.partitions * code.decode(replies).residual ** 2, 9)
    19.0
    """

    left: Code
    right: Code
    optimal = True

    def __post_init__(self) -> None:
        for code in (self.left, self.right):
            if code.messages > 1 or code.blocks > 1:
                raise BadInput(f"kronecker takes codes whose workers send one whole message; '{code.spec}' is not one")
        self._resolve(workers=self.left.replies * self.right.replies)
        self._resolve(approximate=self.left.approximate or self.right.approximate)

    @property
    def spec(self) -> str:
        return f"kronecker:left=({self.left.spec}),right=({self.right.spec}),split={self.left.workers}"

    @property
    def partitions(self) -> int:
        """Number of partitions, m1 m2."""
        return self.left.partitions * self.right.partitions

    @property
    def tolerates(self) -> int:
        """Number of stragglers with which a product of decodable sets surely replies: (s1 + 1) (s2 + 1) - 1.

        More than s2 stragglers are needed to spoil a row of the grid of workers, and more than s1 rows must be spoiled.
        """
        if self.approximate:
            return 0
        return (self.left.tolerates + 1) * (self.right.tolerates + 1) - 1

    def _matrix(self) -> SparseMatrix:
        from scipy.sparse import csr_array, kron

        return csr_array(kron(self.left.encoding, self.right.encoding, format="csr"))

    def _solve(self, replies: Indices) -> Floats:
        replied = np.zeros((self.left.replies, self.right.replies), dtype=bool)
        replied.ravel()[replies] = True
        rows, columns = replied.any(axis=1), replied.any(axis=0)
        if (replied == np.outer(rows, columns)).all():
            first = self.left.decode(np.flatnonzero(rows), decoder="least-squares").weights
            second = self.right.decode(np.flatnonzero(columns), decoder="least-squares").weights
            return np.outer(first, second).ravel()
        return LeastSquaresMethod().weights(self, replies)

    def worst_error(self, stragglers: int) -> tuple[float, bool] | None:
        """Return the bound for biregular factors, see :class:`KroneckerCode`; None for other factors."""
        if stragglers <= self.tolerates and self.tolerates:
            return 0.0, True
        factors = []
        for code in (self.left, self.right):
            rows, columns = (np.asarray(code.encoding.sum(axis=axis)).ravel() for axis in (1, 0))
            if np.ptp(rows) > 1e-9 or np.ptp(columns) > 1e-9:
                return None
            largest = float(np.sqrt(rows[0] * columns[0]))
            factors.append((largest, second_singular(code.encoding), float(columns[0])))
        (t1, s1, c1), (t2, s2, c2) = factors
        return adversarial_bound(self, stragglers, max(s1 * t2, t1 * s2) / (c1 * c2))
