"""Matrices from files: dense ones from CSV, npy or npz, sparse ones as ``scipy.sparse.save_npz`` writes them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from anyk.errors import BadInput
from anyk.tables import existing_file, limit, listed, read_csv, read_npy, read_npz, reading, shown

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Matrix: TypeAlias = "NDArray[np.float64] | csr_array[Any]"

_SPARSE = {"csr": ("data", "indices", "indptr"), "csc": ("data", "indices", "indptr"), "coo": ("data", "row", "col")}


def read_matrix(file: str | Path) -> Matrix:
    """The matrix of numbers in a file, as float64: ``.csv`` without a header, ``.npy`` or ``.npz``.

    An ``.npz`` file holds one dense array, whatever its name, or a sparse matrix in the format csr, csc or coo.
    Raises :class:`~anyk.errors.BadInput` for a file that holds anything else, and for a sparse matrix with two values
    for the same place. Nothing is ever unpickled.
    """
    path = Path(file).expanduser()
    existing_file(path, "matrix file")
    if path.suffix not in _READERS:
        raise BadInput(f"the extension of the matrix file '{shown(path)}' must be .csv, .npy or .npz")
    raw = _READERS[path.suffix](path)
    if raw.dtype.kind not in "biuf":
        raise BadInput(f"'{shown(path)}' cannot be read as a matrix: it holds {raw.dtype}, not numbers")
    if raw.ndim != 2:
        raise BadInput(f"'{shown(path)}' cannot be read as a matrix: its array has shape {raw.shape}")
    made: Matrix = raw.astype(np.float64)
    return made


def _csv(path: Path) -> NDArray[Any]:
    return np.column_stack(read_csv(path, limit(path), header=False).columns)


def _npy(path: Path) -> NDArray[Any]:
    return read_npy(path, limit(path))


def _npz(path: Path) -> Any:
    arrays, found = read_npz(path, limit(path), ("format", "shape"))
    if set(arrays) == {"format", "shape"}:
        return _sparse(path, arrays)
    if len(found) != 1:
        raise BadInput(f"'{shown(path)}' holds {listed(found) or 'nothing'}; a matrix file holds one array")
    return read_npz(path, limit(path), found)[0][found[0]]


def _sparse(path: Path, arrays: dict[str, NDArray[Any]]) -> csr_array[Any]:
    from scipy import sparse

    with reading(path, "a sparse matrix"):
        kind = arrays["format"].item().decode()
        rows, columns = map(int, arrays["shape"])
    names = _SPARSE.get(kind)
    if names is None:
        raise BadInput(f"'{shown(path)}' holds a sparse matrix of format '{shown(kind)}'; save it as csr, csc or coo")
    allowed = limit(path)
    allowed.check(8.0 * (rows + columns))
    parts, found = read_npz(path, allowed, names)
    if set(parts) != set(names):
        raise BadInput(f"'{shown(path)}' holds {listed(found)}; a sparse matrix of format {kind} has {listed(names)}")
    with reading(path, "a sparse matrix"):
        data, first, second = (parts[name] for name in names)
        if kind == "coo":
            made: Any = sparse.coo_array((data, (first, second)), shape=(rows, columns))
        else:
            made = getattr(sparse, f"{kind}_array")((data, first, second), shape=(rows, columns))
            made.check_format(full_check=True)
            made = made.tocoo()
        distinct, counts = np.unique(np.stack((made.row, made.col)), axis=1, return_counts=True)
        once = sparse.csr_array(made)
    if (counts > 1).any():
        row, column = distinct[:, int(counts.argmax())].tolist()
        raise BadInput(f"'{shown(path)}' has two values for row {row}, column {column}; add them up")
    return once


_READERS = {".csv": _csv, ".npy": _npy, ".npz": _npz}
