"""Data sets by name: public ones, prepared as in papers and with a constant column, and random ones."""

from __future__ import annotations

import gzip
import math
import struct
import warnings
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import import_module
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import numpy as np

from anyk.base.arrays import Array, Floats
from anyk.base.checks import AtLeastOne, NonnegativeNumber, PositiveShare, typed
from anyk.base.errors import BadInput, needing
from anyk.base.keyed import keyed_generator
from anyk.base.named import admit_address
from anyk.problems.base import Tell
from anyk.problems.data.dataset import Dataset, Fraction, Task, assemble, read_target, sources
from anyk.tables import Encoding, Matrix, Table, check_finite, check_input_file, limit, listed, read_csv, reading, shown

if TYPE_CHECKING:
    from scipy.sparse import csr_array

_AMAZON = (
    "RESOURCE",
    "MGR_ID",
    "ROLE_ROLLUP_1",
    "ROLE_ROLLUP_2",
    "ROLE_DEPTNAME",
    "ROLE_TITLE",
    "ROLE_FAMILY_DESC",
    "ROLE_FAMILY",
    "ROLE_CODE",
)
_KC_HOUSING = (
    "bedrooms",
    "bathrooms",
    "sqft_living",
    "sqft_lot",
    "floors",
    "waterfront",
    "view",
    "condition",
    "grade",
    "sqft_above",
    "sqft_basement",
    "yr_built",
    "yr_renovated",
    "zipcode",
    "lat",
    "long",
    "sqft_living15",
    "sqft_lot15",
)
_WITH_ONES = Encoding(constant=True)
_INSTEAD = "give a local copy with --data-file (in Python: file=...)"


@sources.register("digits")
def digits(*, test: Fraction = 0.2, seed: int = 0) -> Dataset:
    """Handwritten digits, 1,797 images of 8 x 8 pixels, 10 classes; part of scikit-learn.

    Pixels are scaled to [0, 1] and a constant column is added: 65 dense columns.
    """
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    target = read_target(labels, "multiclass", "the target of data set 'digits'")
    data = assemble(np.column_stack([pixels / 16, np.ones(len(pixels))]), *target, test=test, seed=seed)
    return replace(data, encoding=_WITH_ONES)


@sources.register("amazon")
def amazon(*, test: Fraction = 0.2, seed: int = 0, file: Path | None = None, progress: Tell | None = None) -> Dataset:
    """Amazon Employee Access, 32,769 rows, binary, 241,915 sparse columns (OpenML 4135).

    The nine categorical columns, all pairs of columns except (ROLE_TITLE, ROLE_FAMILY) and (ROLE_ROLLUP_1,
    ROLE_ROLLUP_2) as one categorical column each, and a constant. All are one-hot encoded over training and test rows
    together, which gives 44 ones in each row. ``file`` is the challenge's train.csv, plain or compressed. As in Table 1
    of ErasureHead (Wang, Charles and Papailiopoulos 2019). Raises BadInput if the set can neither be fetched nor read.
    """
    table = _columns("amazon", ("ACTION", *_AMAZON), 4135, file, progress)
    from sklearn.preprocessing import OrdinalEncoder

    codes = OrdinalEncoder(dtype=np.int64).fit_transform(table[:, 1:])
    sizes = codes.max(axis=0) + 1
    pairs = [(a, b) for a, b in combinations(range(len(_AMAZON)), 2) if (a, b) not in {(5, 7), (2, 3)}]
    crossed = np.column_stack([codes[:, a] * sizes[b] + codes[:, b] for a, b in pairs])
    target = read_target(table[:, 0], "binary", "column 'ACTION' of data set 'amazon'")
    return assemble(_one_hot(np.hstack([codes, crossed])), *target, test=test, seed=seed)


@sources.register("kc-housing")
def kc_housing(
    *, test: Fraction = 0.2, seed: int = 0, file: Path | None = None, progress: Tell | None = None
) -> Dataset:
    """House sales in King County, 21,613 rows, price in millions, 27,654 sparse columns (OpenML 42092).

    The columns from ``bedrooms`` on and a constant, all one-hot encoded over training and test rows together, which
    gives 19 ones in each row; the target is the price / 1e6. ``file`` is kc_house_data.csv, plain or compressed. As in
    Table 1 of ErasureHead (Wang, Charles and Papailiopoulos 2019). Raises BadInput if the set can neither be fetched
    nor read.
    """
    table = _columns("kc-housing", ("price", *_KC_HOUSING), 42092, file, progress)
    return assemble(_one_hot(table[:, 1:]), table[:, 0] / 1e6, "regression", test=test, seed=seed)


@sources.register("covertype")
def covertype(
    *, test: Fraction = 0.2, seed: int = 0, file: Path | None = None, progress: Tell | None = None
) -> Dataset:
    """Forest cover types 1 and 2, 495,141 rows, binary, about 15,500 sparse columns (UCI).

    Cover type 1 is -1 and type 2 is +1; rows of the other five types are omitted. The 54 columns are one-hot encoded
    over training and test rows together, and a constant is added, which gives 55 ones in each row. ``file`` is UCI's
    covtype.data, plain or compressed. Prepared as for Table 1 of ErasureHead (Wang, Charles and Papailiopoulos 2019),
    which prints 15,509 columns; the tests do not check this number, as they have no network. Raises BadInput if the set
    can neither be fetched nor read.
    """
    if file is None:
        from sklearn.datasets import fetch_covtype

        fetched = _fetch("covertype", "UCI", lambda: fetch_covtype(), progress)
        table = np.column_stack([fetched.data, fetched.target]).astype(float)
        where = "the fetched data set 'covertype'"
        check_finite(table, where)
    else:
        if progress is not None:
            progress(f"reading 'covertype' from {file}")
        content, where = _read_table(file, header=False), str(file)
        table = _as_numbers(content, content.names, where)
    if table.shape[1] != 55 or not np.isin(table[:, -1], np.arange(1, 8)).all():
        raise BadInput(
            f"{where} does not look like covtype.data: 55 columns are needed, the last a cover type from 1 to 7, "
            f"got {table.shape[1]} columns"
        )
    table = table[table[:, -1] <= 2]
    target = read_target(table[:, -1], "binary", f"the cover type in {where}")
    return assemble(_one_hot(table[:, :-1]), *target, test=test, seed=seed)


@sources.register("mnist-idx")
@typed
def mnist_idx(*, test: Fraction = 0.2, seed: int = 0, max_gb: float | None = None, file: Path) -> Dataset:
    """Images and labels in MNIST's IDX format, plain or .gz (needs --data-file: a folder or the images file).

    Pixels are scaled to [0, 1] and a constant column is added, which gives 785 dense columns for MNIST. The labels must
    be in the same folder under their usual names. A folder's ``train-*`` and ``t10k-*`` are the training and test rows;
    if it contains only one, or if ``file`` is an images file, the fraction ``test`` of the rows is held out. ``max_gb``
    limits the memory for a file's contents, by default 1 GB or 8 times its size, whichever is more. Raises BadInput for
    files that are missing, damaged or do not belong together.
    """
    if not file.is_dir():
        check_input_file(file)
        parts = [file]
    else:
        stems = ([file / f"{subset}-images{sign}idx3-ubyte" for sign in "-."] for subset in ("train", "t10k"))
        parts = [images for images in map(_plain_or_gz, stems) if images is not None]
        if not parts:
            raise BadInput(
                f"folder {file} holds neither train-images-idx3-ubyte nor t10k-images-idx3-ubyte (.gz or not)"
            )
    images = [_read_idx(subset, 3, max_gb) for subset in parts]
    labels = [_read_idx(_labels_of(subset), 1, max_gb) for subset in parts]
    for subset, pixels, digits in zip(parts, images, labels, strict=True):
        if len(pixels) != len(digits):
            raise BadInput(
                f"{subset} holds {len(pixels)} images but its labels file {len(digits)} labels; they must agree"
            )
    if len({pixels.shape[1:] for pixels in images}) > 1:
        raise BadInput(f"the training and test images in {file} are of different sizes")
    X = [np.column_stack([i.reshape(len(i), i[0].size) / 255, np.ones(len(i))]) for i in images]
    target = read_target(np.concatenate(labels), "multiclass", f"the labels of {file}")
    data = assemble(X[0], *target, test=test, seed=seed, X_test=X[1] if len(X) > 1 else None)
    return replace(data, encoding=_WITH_ONES)


def _plain_or_gz(files: Sequence[Path]) -> Path | None:
    """Return the first of the files that exists, plain or with the extension .gz."""
    return next((path for file in files for path in (file, Path(f"{file}.gz")) if path.exists()), None)


def _labels_of(images: Path) -> Path:
    name = images.name.removesuffix(".gz")
    if "images" not in name:
        raise BadInput(f"{images} should be an images file, with 'images' in its name, so that its labels can be found")
    stem = images.with_name(name.replace("images", "labels").replace("idx3", "idx1"))
    labels = _plain_or_gz([stem])
    if labels is None:
        raise BadInput(f"the labels of {images} should be in {stem} or {stem.name}.gz, which is not there")
    return labels


def _read_idx(file: Path, dimensions: int, max_gb: float | None) -> Array:
    """Return the array in an IDX file: two zeros, 8 for uint8, the number of dimensions, sizes as uint32, values."""
    check_input_file(file)
    allowed = limit(file, max_gb)
    with reading(file, "IDX"), file.open("rb") as packed:
        gz = packed.read(2) == b"\x1f\x8b"  # by content, because a copy that a browser unpacked still ends in .gz
        packed.seek(0)
        content = gzip.GzipFile(fileobj=packed) if gz else packed
        magic, *sizes = struct.unpack(f">{dimensions + 1}I", content.read(4 + 4 * dimensions))
        if magic != 0x800 + dimensions:
            what = {1: "labels", 3: "images"}[dimensions]
            raise BadInput(
                f"{shown(file)} is not an IDX file of {what}: its magic number is {magic}, not {0x800 + dimensions}"
            )
        expected = math.prod(sizes)
        allowed.check(8 * expected)  # a pixel becomes a float64
        values = content.read(expected + 1)
    if len(values) != expected:
        count = len(values) if len(values) < expected else f"more than {expected}"
        raise BadInput(
            f"{shown(file)} is truncated or damaged: its header tells of {expected} values, it holds {count}"
        )
    if not expected:
        raise BadInput(f"{shown(file)} holds no values")
    return np.frombuffer(values, np.uint8).reshape(sizes)


def _one_hot(columns: Array) -> csr_array[Any]:
    """Return columns one-hot encoded, with a constant as the last column."""
    from scipy.sparse import csr_array
    from sklearn.preprocessing import OneHotEncoder

    return csr_array(OneHotEncoder().fit_transform(np.column_stack([columns, np.ones(len(columns), columns.dtype)])))


def _columns(name: str, wanted: tuple[str, ...], openml: int, file: Path | None, progress: Tell | None) -> Floats:
    """Return the columns ``wanted`` in this order, shape (rows, columns), from a local CSV file or else from OpenML."""
    if file is not None:
        table = _read_table(file, header=True)
        _need_columns(name, wanted, table.names, str(file))
        if table.rows < 2:
            raise BadInput(
                f"{file} has too few rows ({table.rows}); at least 2 are needed, one to train and one to test"
            )
        return _as_numbers(table, wanted, str(file))
    with needing("pandas", "data", f"fetching data set '{name}' from OpenML"):
        import_module("pandas")
    from sklearn.datasets import fetch_openml

    frame = _fetch(name, "OpenML", lambda: fetch_openml(data_id=openml, as_frame=True), progress).frame
    frame = frame.rename(columns={"target": wanted[0]})
    where = f"data set {openml} of OpenML"
    _need_columns(name, wanted, list(map(str, frame.columns)), where)
    try:
        numbers = np.column_stack([np.asarray(frame[column], dtype=float) for column in wanted])
    except (TypeError, ValueError) as error:
        raise BadInput(f"{where} holds a value that is not a number: {error}; {_INSTEAD}") from None
    check_finite(numbers, where, wanted)
    return numbers


def _read_table(file: Path, header: bool) -> Table:
    check_input_file(file)
    return read_csv(file, limit(file, remedy=", so this is not that data set"), header=header)


def _as_numbers(table: Table, wanted: Sequence[str], where: str) -> Floats:
    """Return columns by name, shape (rows, columns); raise BadInput for text and for missing values."""
    columns = [table.columns[table.names.index(name)] for name in wanted]
    for name, column in zip(wanted, columns, strict=True):
        if column.dtype.kind != "f":
            raise BadInput(f"column '{name}' of {where} holds text, not numbers")
    numbers = np.column_stack(columns)
    check_finite(numbers, where, wanted)
    return numbers


def _need_columns(name: str, wanted: Sequence[str], present: Sequence[str], where: str) -> None:
    if missing := [column for column in wanted if column not in present]:
        raise BadInput(
            f"{where} lacks {', '.join(missing)}, which data set '{name}' needs; its columns: {listed(present)}"
        )


def _fetch(name: str, site: str, fetcher: Callable[[], Any], progress: Tell | None) -> Any:
    """Return the data that ``fetcher`` takes from ``site`` or scikit-learn's cache; raise BadInput if it fails."""
    from http.client import HTTPException

    admit_address(name)
    if progress is not None:
        progress(f"fetching '{name}' from {site}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # scikit-learn warns at each retry; the last failure is reported below
            return fetcher()
    except (OSError, EOFError, ValueError, HTTPException, zlib.error) as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise BadInput(f"data set '{name}' could not be fetched from {site} ({reason}); {_INSTEAD}") from None


@sources.register("synthetic")
@typed
def synthetic(
    *,
    rows: Annotated[int, msgspec.Meta(ge=2)] = 1000,
    features: AtLeastOne = 20,
    task: Task = "binary",
    noise: NonnegativeNumber = 0.1,
    density: PositiveShare = 1.0,
    classes: Annotated[int, msgspec.Meta(ge=2)] | None = None,
    test: Fraction = 0.2,
    seed: int = 0,
    max_gb: float = 1.0,
) -> Dataset:
    """Random features and a linear rule with noise, both from a seed.

    Entries of ``X`` are standard normal; with ``density`` below 1 each is nonzero with that probability, and ``X`` is
    sparse. The scores are ``X W + noise E`` with normal ``W`` and ``E``, where ``W`` is scaled so that a score has a
    variance of about 1. The target is the score (regression), its sign (binary), or the index of the largest of
    ``classes`` scores (multiclass, by default 3). Raises BadInput for data that would take more than ``max_gb``.
    """
    if classes is not None and task != "multiclass":
        raise BadInput(f"classes={classes} is for task=multiclass, but the task is {task}; leave it out")
    scores = classes or 3 if task == "multiclass" else 1
    size = 8e-9 * rows * (features * min(1.0, 2 * density) + scores)
    if not size <= max_gb:
        raise BadInput(
            f"data set 'synthetic' would take {size:.3g} GB, but the limit is {max_gb:g} GB; for more give max_gb=…"
        )

    X: Matrix
    if density < 1:
        X = _sparse_normal(rows, features, density, seed)
    else:
        X = keyed_generator(seed, "synthetic", "features").standard_normal((rows, features))
    rule = keyed_generator(seed, "synthetic", "rule").standard_normal((features, scores)) / math.sqrt(
        features * density
    )
    score = X @ rule + noise * keyed_generator(seed, "synthetic", "noise").standard_normal((rows, scores))
    if task == "regression":
        return assemble(X, score[:, 0], task, test=test, seed=seed)
    y = np.where(score[:, 0] > 0, 1.0, -1.0) if task == "binary" else score.argmax(axis=1).astype(float)
    labels = ("-1", "1") if task == "binary" else tuple(map(str, range(scores)))
    return assemble(X, y, task, labels, test=test, seed=seed)


def _sparse_normal(rows: int, features: int, density: float, seed: int) -> csr_array[Any]:
    # The gaps between nonzero entries are geometric, so that the cost depends on their number alone.
    from scipy.sparse import csr_array

    cells = rows * features
    expected = cells * density
    enough = math.ceil(expected + 10 * math.sqrt(expected) + 10)
    places = np.cumsum(keyed_generator(seed, "synthetic", "places").geometric(density, size=enough)) - 1
    places = places[places < cells]
    values = keyed_generator(seed, "synthetic", "features").standard_normal(len(places))
    starts = np.searchsorted(places, np.arange(rows + 1) * features)
    return csr_array((values, places % features, starts), shape=(rows, features))
