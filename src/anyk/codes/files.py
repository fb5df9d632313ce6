"""A code whose matrix is in a file, and how many stragglers a matrix of which nothing is known tolerates."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from math import comb
from typing import TYPE_CHECKING, Any

import numpy as np

from anyk.checks import typed
from anyk.codes.base import MatrixCode, check_workers
from anyk.codes.decoders import EXACT, Floats
from anyk.codes.made import fixed_property, valid_matrix
from anyk.codes.removal import Removal
from anyk.errors import BadInput
from anyk.matrices import read_matrix
from anyk.specs import File, absolute, show
from anyk.tables import shown

if TYPE_CHECKING:
    from scipy.sparse import csr_array

_WORK = 4_000_000  # entries of a block times the sets of stragglers to which each further worker is added
_DENSE = 160_000  # entries of a block that is decomposed


@typed
@dataclass(frozen=True)
class FileCode(MatrixCode):
    """A code from a file: its matrix B, n x m, a row for each worker, a column for each partition.

    ``file``: ``.csv`` without a header, ``.npy`` or ``.npz``, dense or as ``scipy.sparse.save_npz`` writes it. Replies
    are decoded by least squares. Where all replies together do not give the exact sum, the code is meant to be
    approximate, and its rounds wait for all but a tenth of the workers unless ``wait`` says otherwise.

    ``tolerates`` is the largest s for which all sets of s stragglers have been tried and decode. Blocks of workers that
    share no partition are looked at each by itself, so that this is exact for codes of small blocks (repetition) and of
    few workers; where trying more sets would take long, it is a lower bound.

    Raises :class:`~anyk.errors.BadInput` for a matrix with another number of rows than workers, a value that is not
    finite, or a partition that nobody holds.
    """

    workers: int
    file: File

    def __post_init__(self) -> None:
        check_workers(self.workers)
        object.__setattr__(self, "file", absolute(self.file))
        object.__setattr__(self, "approximate", not self.decode(range(self.workers)).exact)

    @property
    def spec(self) -> str:
        return show("matrix", {"file": self.file})

    @property
    def partitions(self) -> int:
        """The columns of the matrix."""
        return int(self._read.shape[1])

    @fixed_property
    def tolerates(self) -> int:
        """See :class:`FileCode`; 0 for a code that is meant to be approximate."""
        return 0 if self.approximate else proven_stragglers(self.encoding)

    def _matrix(self) -> csr_array[Any]:
        return self._read

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
        held = np.bincount(matrix.indices, minlength=partitions)
        if not held.size or not held.all():
            nobody = int(held.argmin()) if held.size else 0
            raise BadInput(f"{where} gives partition {nobody} to nobody; every column needs a value other than 0")
        return matrix


def proven_stragglers(matrix: csr_array[Any]) -> int:
    """A number of stragglers with which the sum is exact, whoever they are: all sets of so many have been tried.

    ``matrix``: the encoding, shape (replies, partitions), of which all rows together give the sum. Rows that share no
    column with others are a block of their own, in which the stragglers may all be. The number is the largest there is
    unless a block is so large that not all sets of one more are tried.

    >>> from scipy.sparse import csr_array
    >>> proven_stragglers(csr_array([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]]))
    1
    """
    from scipy.sparse import bmat
    from scipy.sparse.csgraph import connected_components

    rows, columns = matrix.shape
    most = int(np.bincount(matrix.indices, minlength=columns).min()) - 1  # else all who hold a partition may straggle
    _, block_of = connected_components(bmat([[None, matrix], [matrix.T, None]], format="csr"), directed=False)
    known: set[bytes] = set()
    for block in np.unique(block_of[rows:]) if most else ():
        held = matrix[np.flatnonzero(block_of[:rows] == block)][:, np.flatnonzero(block_of[rows:] == block)]
        if np.prod(held.shape) > _DENSE:
            return 0
        dense = held.toarray()
        if dense.tobytes() not in known:
            known.add(dense.tobytes())
            most = _tried(dense, most)
    return most


def _tried(block: Floats, most: int) -> int:
    """As :func:`proven_stragglers`, of one block and up to ``most``."""
    workers, partitions = block.shape
    removal, stragglers = Removal(block), 0
    while stragglers < most and comb(workers, stragglers) * block.size <= _WORK:
        for lost in combinations(range(workers), stragglers):
            more = np.arange(lost[-1] + 1 if lost else 0, workers)
            if removal.residuals(np.array(lost, dtype=np.int64), more).max(initial=0.0) > EXACT / partitions**0.5:
                return stragglers
        stragglers += 1
    return stragglers
