"""A code whose matrix is in a file, and the number of stragglers that an arbitrary matrix tolerates."""

from __future__ import annotations

from itertools import combinations
from math import comb
from typing import TYPE_CHECKING, Any

import numpy as np

from anyk.base.arrays import Floats
from anyk.base.checks import value_class
from anyk.base.errors import BadInput
from anyk.base.specs import File, absolute
from anyk.codes.base import EXACT, MatrixCode, RegisteredCode, check_workers
from anyk.codes.decoders import Removal
from anyk.codes.made import fixed_property, valid_matrix
from anyk.tables import read_matrix, shown

if TYPE_CHECKING:
    from scipy.sparse import csr_array

_WORK = 4_000_000  # entries of a block times the sets of stragglers to which each further worker is added
_TRIED = 20  # sets of replies of each size that are tried for a sign of rounding
_NEARLY = 1e-3  # an error of decoding below which it is rounding, and not what a code leaves out
_MOST_DIGITS = 12  # numbers with more are not taken for rounded
_DENSE = 160_000  # entries of a block that is decomposed


@value_class
class FileCode(RegisteredCode, MatrixCode):
    """A code from a file: its matrix B, n x m, a row for each worker, a column for each partition.

    ``file``: ``.csv`` without a header, ``.npy`` or ``.npz``, dense or as ``scipy.sparse.save_npz`` writes it. Replies
    are decoded by least squares. If all replies together do not give the exact sum, the code is meant to be
    approximate, and its rounds wait for all but a tenth of the workers unless ``wait`` specifies otherwise.

    ``tolerates`` is the largest s for which all sets of s stragglers have been tried and decode. Blocks of workers that
    share no partition are tried separately, so this is exact for codes of small blocks (repetition) and of few
    workers; if trying more sets would take long, it is a lower bound.

    Raises :class:`~anyk.BadInput` for a matrix with another number of rows than workers, a value that is not
    finite, or a partition without a holder, and for one that was rounded, so that sets of replies which decode before
    rounding no longer do.
    """

    workers: int
    file: File
    name = "matrix"

    def __post_init__(self) -> None:
        check_workers(self.workers)
        self._resolve(file=absolute(self.file))
        self._resolve(approximate=not self.decode(range(self.workers)).exact)
        self._refuse_rounded()

    @property
    def partitions(self) -> int:
        """Number of columns of the matrix."""
        return int(self._read.shape[1])

    @fixed_property
    def tolerates(self) -> int:
        """Proven number of stragglers with which the sum is exact; 0 for an approximate code."""
        return 0 if self.approximate else proven_stragglers(self.encoding)

    def _matrix(self) -> csr_array[Any]:
        return self._read

    def _refuse_rounded(self) -> None:
        """Raise BadInput if numbers of few digits decode some sets of replies nearly, but not to the precision needed.

        Such sets make rounds wait for further replies. Sets of every size are tried up to the number of stragglers that
        no code of this load exceeds, at random.
        """
        matrix = self._read
        integral = np.array_equal(np.round(matrix.data), matrix.data)
        if integral or np.prod(matrix.shape) > _DENSE or (digits := _digits(matrix.data)) is None:
            return
        holders = np.bincount(matrix.indices, minlength=self.partitions)
        random = np.random.default_rng(0)
        for stragglers in range(int(holders.min())):
            for _ in range(_TRIED if stragglers else 1):
                replies = np.sort(random.choice(self.workers, self.workers - stragglers, replace=False))
                worst = self.decode(replies).worst
                if EXACT < worst < _NEARLY:
                    raise BadInput(
                        f"the matrix in '{shown(self.file)}' was rounded to {digits}: {len(replies)} replies give the "
                        f"sum to {worst:.0e} only, and rounds would wait for others until it is {EXACT:g}; save it "
                        "with all digits (numpy.save of float64, or numpy.savetxt with fmt='%.17g')"
                    )

    @fixed_property
    def _read(self) -> csr_array[Any]:
        raw, where = read_matrix(self.file), f"the matrix in '{shown(self.file)}'"
        rows, partitions = raw.shape
        if rows != self.workers:
            raise BadInput(f"{where} has {rows} rows; a code for {self.workers} workers has one for each")
        try:
            matrix = valid_matrix(raw, raw.shape)
        except BadInput as error:
            raise BadInput(f"{where}: {error}") from None
        matrix.eliminate_zeros()
        holders = np.bincount(matrix.indices, minlength=partitions)
        if not holders.size or not holders.all():
            bare = int(holders.argmin()) if holders.size else 0
            raise BadInput(f"{where} gives partition {bare} to no worker; every column needs a value other than 0")
        return matrix


def _digits(values: Floats) -> str | None:
    """Return the precision to which numbers were rounded; None if some have all digits of float64.

    >>> _digits(np.array([0.333333, 1.5])), _digits(np.array([1 / 3]))
    ('6 digits', None)
    """
    for digits in range(1, _MOST_DIGITS + 1):
        if all(float(f"{value:.{digits}g}") == value for value in values.tolist()):
            return f"{digits} digit{'s' * (digits != 1)}"
    with np.errstate(over="ignore"):
        return "single precision" if np.array_equal(values.astype(np.float32), values) else None


def proven_stragglers(matrix: csr_array[Any]) -> int:
    """Return a number of stragglers with which the sum is exact, whoever they are: all such sets have been tried.

    ``matrix``: the encoding, shape (replies, partitions); all rows together give the sum. Rows that share no column
    with others are a block of their own, in which all stragglers may be. The number is the largest possible unless a
    block is so large that not all sets of one more straggler are tried.

    >>> from scipy.sparse import csr_array
    >>> proven_stragglers(csr_array([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]]))
    1
    """
    from scipy.sparse import bmat
    from scipy.sparse.csgraph import connected_components

    rows, columns = matrix.shape
    most = int(np.bincount(matrix.indices, minlength=columns).min()) - 1  # else all holders of a partition may straggle
    _, block_of = connected_components(bmat([[None, matrix], [matrix.T, None]], format="csr"), directed=False)
    tried: set[bytes] = set()
    for block in np.unique(block_of[rows:]) if most else ():
        submatrix = matrix[np.flatnonzero(block_of[:rows] == block)][:, np.flatnonzero(block_of[rows:] == block)]
        if np.prod(submatrix.shape) > _DENSE:
            return 0
        dense = submatrix.toarray()
        if dense.tobytes() not in tried:
            tried.add(dense.tobytes())
            most = _proven_in_block(dense, most)
    return most


def _proven_in_block(block: Floats, most: int) -> int:
    """Return :func:`proven_stragglers` of one block, up to ``most``."""
    workers, partitions = block.shape
    removal, stragglers = Removal(block), 0
    while stragglers < most and comb(workers, stragglers) * block.size <= _WORK:
        for lost in combinations(range(workers), stragglers):
            more = np.arange(lost[-1] + 1 if lost else 0, workers)
            if removal.residuals(np.array(lost, dtype=np.int64), more).max(initial=0.0) > EXACT / partitions**0.5:
                return stragglers
        stragglers += 1
    return stragglers
