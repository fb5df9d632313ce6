"""Arrays and matrices from files: dense ones from CSV, npy or npz, sparse ones as ``scipy.sparse.save_npz`` writes."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from anyk.base import Array, BadInput
from anyk.tables.input_files import Limit, check_input_file, limit, reading, shown
from anyk.tables.table import listed
from anyk.tables.text_tables import read_csv

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Matrix: TypeAlias = "NDArray[np.float64] | csr_array[Any]"

_SPARSE = {"csr": ("data", "indices", "indptr"), "csc": ("data", "indices", "indptr"), "coo": ("data", "row", "col")}


def is_sparse(array: object) -> bool:
    """Return whether an array is a compressed sparse one of SciPy."""
    return hasattr(array, "indptr")


def read_matrix(file: str | Path) -> Matrix:
    """Return the matrix of numbers in a file as float64: ``.csv`` without a header, ``.npy`` or ``.npz``.

    An ``.npz`` file contains one dense array of any name, or a sparse matrix in the format csr, csc or coo. Raises
    :class:`~anyk.BadInput` for a file with any other content, and for a sparse matrix with two values for the
    same entry. Nothing is ever unpickled.
    """
    path = Path(file).expanduser()
    check_input_file(path, "matrix file")
    if path.suffix not in _READERS:
        raise BadInput(f"the extension of the matrix file '{shown(path)}' must be .csv, .npy or .npz")
    raw = _READERS[path.suffix](path)
    if raw.dtype.kind not in "biuf":
        raise BadInput(f"'{shown(path)}' cannot be read as a matrix: it holds {raw.dtype}, not numbers")
    if raw.ndim != 2:
        raise BadInput(f"'{shown(path)}' cannot be read as a matrix: its array has shape {raw.shape}")
    return raw.astype(np.float64)


def _npz(path: Path) -> object:
    arrays, names = read_npz(path, limit(path), ("format", "shape"))
    if set(arrays) == {"format", "shape"}:
        return _sparse(path, arrays)
    if len(names) != 1:
        raise BadInput(f"'{shown(path)}' holds {listed(names) or 'nothing'}; a matrix file holds one array")
    return read_npz(path, limit(path), names)[0][names[0]]


def _sparse(path: Path, arrays: dict[str, Array]) -> csr_array[Any]:
    from scipy import sparse

    with reading(path, "a sparse matrix"):
        kind = arrays["format"].item().decode()
        rows, columns = map(int, arrays["shape"])
    if (names := _SPARSE.get(kind)) is None:
        raise BadInput(f"'{shown(path)}' holds a sparse matrix of format '{shown(kind)}'; save it as csr, csc or coo")
    allowed = limit(path)
    allowed.check(8.0 * (rows + columns))
    parts, present = read_npz(path, allowed, names)
    if set(parts) != set(names):
        raise BadInput(f"'{shown(path)}' holds {listed(present)}; a sparse matrix of format {kind} has {listed(names)}")
    with reading(path, "a sparse matrix"):
        data, first, second = (parts[name] for name in names)
        if kind == "coo":
            matrix = sparse.coo_array((data, (first, second)), shape=(rows, columns))
        else:
            build = sparse.csr_array if kind == "csr" else sparse.csc_array
            compressed = build((data, first, second), shape=(rows, columns))
            compressed.check_format(full_check=True)
            matrix = compressed.tocoo()
        distinct, counts = np.unique(np.stack((matrix.row, matrix.col)), axis=1, return_counts=True)
        result = sparse.csr_array(matrix)
    if (counts > 1).any():
        row, column = distinct[:, int(counts.argmax())].tolist()
        raise BadInput(f"'{shown(path)}' has two values for row {row}, column {column}; add them up")
    return result


def read_npz(file: Path, allowed: Limit, wanted: Sequence[str]) -> tuple[dict[str, Array], list[str]]:
    """Return the arrays of an npz file whose names are ``wanted``, and the names of all its arrays.

    The size in an array's header is compared with the file before any memory is allocated. Raises
    :class:`~anyk.BadInput` for a file of another format, a damaged one, or one with Python objects, which only
    unpickling could read.
    """
    arrays: dict[str, Array] = {}
    with reading(file, "npz"):
        is_zip = zipfile.is_zipfile(file)
    if not is_zip:
        raise BadInput(f"{shown(file)} cannot be read as npz: it is not an npz file, or is truncated")
    with reading(file, "npz"), zipfile.ZipFile(file) as archive:
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        allocated = 0
        for name in wanted:
            if name in members:
                with archive.open(members[name]) as member:
                    arrays[name] = _read_array(
                        f"array '{name}' of {shown(file)}", member, members[name].file_size, allowed, allocated
                    )
                allocated += arrays[name].size * 8
    return arrays, list(members)


def read_npy(file: Path, allowed: Limit) -> Array:
    """Return the array in an npy file, under the conditions of :func:`read_npz`."""
    with reading(file, "npy"), file.open("rb") as binary:
        return _read_array(shown(file), binary, file.stat().st_size, allowed, 0)


def _read_array(where: str, binary: Any, size: int, allowed: Limit, allocated: int) -> Array:
    """Return an array in npy format of ``size`` bytes with its header, after ``allocated`` bytes for the same file."""
    version = np.lib.format.read_magic(binary)
    read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}.get(version)
    if read is None:
        raise BadInput(f"{where} is of npy format {version[0]}.{version[1]}; only 1.0 and 2.0 can be read")
    shape, fortran, dtype = read(binary)
    if dtype.hasobject:
        raise BadInput(
            f"{where} holds Python objects, which only unpickling could read, and that is never done; save it as "
            "numbers or text"
        )
    count = math.prod(shape)
    bytes_ = count * dtype.itemsize
    if min(shape, default=0) < 0 or bytes_ != size - binary.tell():
        raise BadInput(f"{where} is truncated or damaged")
    allowed.check(allocated + count * max(dtype.itemsize, 8))  # numbers of every kind become float64
    content = binary.read()
    if len(content) != bytes_:
        raise BadInput(f"{where} is truncated or damaged")
    values = np.frombuffer(content, dtype=dtype) if bytes_ else np.empty(count, dtype)
    return values.reshape(shape, order="F" if fortran else "C")


_READERS: dict[str, Callable[[Path], Any]] = {
    ".csv": lambda path: np.column_stack(read_csv(path, limit(path), header=False).columns),
    ".npy": lambda path: read_npy(path, limit(path)),
    ".npz": _npz,
}
