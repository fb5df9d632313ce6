"""Linear models on shards and streams: columns as numbers, and partial gradients of rows that are read as needed.

Shards have specs for the command line and run folders: ``train-*.parquet`` or ``shards:files=…,target=…``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np

from anyk.base.arrays import Array, DType, Vector
from anyk.base.errors import BadInput, RunFailed, describe_error
from anyk.base.specs import absolute, parse_spec, with_keys
from anyk.problems.base import Ends, Index, Tell
from anyk.problems.batches import Batches
from anyk.problems.data.dataset import Task, guess_of_classes, read_target, sources
from anyk.problems.data.reader_processes import map_in_processes
from anyk.problems.data.sample_batches import Arrays, PartitionSamples, SampleBatch
from anyk.problems.data.shards.shard_samples import BlockArrays, BlockSamples
from anyk.problems.data.shards.sources import Shards
from anyk.problems.data.shards.survey import Moments, Survey, like_training, places_of, plain, survey
from anyk.problems.data.streams import Stream, StreamSamples
from anyk.problems.linear.row_partitions import as_matrix, losses_of, slope_of
from anyk.problems.linear.scaling import Scaling, encode_labels, model_columns
from anyk.tables import (
    Column,
    Encoding,
    Table,
    check_categories,
    check_complete,
    codes_of,
    is_code,
    is_sparse,
    like_dates_in_digits,
    listed,
    long_numbers,
    rows_text,
    shown,
)

_SQUARE = 1024  # columns up to which the curvature is computed, and not only bounded
Labels = tuple[float | str, ...]


@dataclass(frozen=True, eq=False)
class Design:
    """The conversion of blocks into ``X`` and ``y``, the same for all blocks and for held-out shards."""

    shards: Shards
    encoding: Encoding
    features: int
    labels: Labels  # empty for regression
    task: Task
    dtype: DType
    scaling: Scaling | None = None
    intercept: bool = False

    def __call__(self, content: Table, where: str) -> tuple[Any, Vector]:
        """Return a block's ``X``, scaled and with its intercept, and the targets as the model needs them."""
        if self.shards.read is None:
            places = self.encoding.places(content.names, where, header=content.header)
            X: Any = self.encoding.encode([content.columns[i] for i in places], where)
            y: Array = content.columns[places_of(self.shards, content.names, where)[1]]
        else:
            X, y = plain(self.shards, content, where)
            if is_sparse(X) and X.shape[1] < self.features:
                X.resize(X.shape[0], self.features)
            if X.shape[1] != self.features:
                raise BadInput(f"{where} has {X.shape[1]} columns, but the model learns from {self.features}")
        X = model_columns(X.astype(self.dtype, copy=False), self.scaling, self.intercept)
        return X, self._targets(y, where)

    def _targets(self, y: Array, where: str) -> Vector:
        if not self.labels:
            if y.dtype.kind not in "biuf":
                raise BadInput(f"the target of {where} holds text, and that of the training rows numbers")
            check_complete(y, f"the target of {where}")
            return y.astype(self.dtype)
        codes = codes_of(y, self.labels)
        if (codes < 0).any():
            value = y[int(np.argmin(codes))]
            raise BadInput(f"the target of {where} holds '{shown(str(value))}', which the training rows do not have")
        return np.asarray(2 * codes - 1 if self.task == "binary" else codes, dtype=self.dtype)


class ShardRows(BlockSamples):
    """The rows of a linear model's shards, used in the place of ``X`` and ``y``; batches are pairs (X, y)."""

    def __init__(self, design: Design, survey: Survey, moments: Moments) -> None:
        super().__init__(design.shards, survey, tuple)
        self.design, self._moments = design, moments
        self.extremes = moments.low, moments.high  # least and largest number of each column before scaling
        self.mark = f"{design.shards.digest()} {design.shards.target} {design.shards.columns} {design.encoding}"
        self.shape = len(self), design.features + design.intercept
        self.dtype = design.dtype

    @classmethod
    def learned(
        cls,
        shards: Shards,
        task: Task | Literal["auto"],
        *,
        intercept: bool,
        fill: Literal["mean"] | None,
        standardize: bool = False,
        ridge: float = 0.0,
        scaling: Scaling | None = None,
    ) -> ShardRows:
        """Return the training rows, after a pass over them; see :class:`~anyk.problems.LinearProblem`."""
        survey_result: Survey = vars(shards).get("surveyed") or survey(shards, "columns")
        vars(shards)["surveyed"] = survey_result  # files are read once for several models
        where = (
            f"{shown(shards.resolved_files[0].address)} and the other files"
            if len(shards.resolved_files) > 1
            else shown(shards.resolved_files[0].address)
        )
        encoding, moments, features = _encoding(shards, survey_result, fill, where)
        labels, actual_task = _labels(survey_result, task, where)
        if standardize:
            scaling = Scaling.from_moments(
                moments.mean,
                np.sqrt(moments.deviation / survey_result.rows),
                constant=moments.low == moments.high,
                full=(not encoding.categorical.any()) | (2 * moments.nonzero >= survey_result.rows),
                categories=encoding.categorical,
                ridge=ridge,
            )
        elif scaling is not None:
            scaling = scaling.of_columns(features, where)
        if labels and encoding.label:
            encoding = replace(encoding, words=isinstance(labels[0], str))
        dtype = np.dtype(np.float32 if survey_result.single else np.float64)
        design = Design(
            shards=shards,
            encoding=encoding,
            features=features,
            labels=labels,
            task=actual_task,
            dtype=dtype,
            scaling=scaling,
            intercept=intercept,
        )
        return cls(design, survey_result, moments)

    def held_out(self, shards: Shards) -> ShardRows:
        """Return the rows of other shards, with the columns and labels of these."""
        shards = like_training(shards, self.shards, self.names)
        return ShardRows(replace(self.design, shards=shards), survey(shards, "rows"), self._moments)

    def convert(self, content: Table, where: str) -> BlockArrays:
        return self.design(content, where)

    def parts(
        self, first: int, last: int, rows: Index | None = None, *, most: int | None = None, key: int = 0
    ) -> Iterator[SampleBatch]:
        """Return batches of the rows, block by block, or a single batch of the given ``rows``."""
        batches = self.by_block(first, last) if rows is None else [self.read_rows(rows + first)]
        return (SampleBatch(batch, len(batch[1]), first, rows) for batch in batches)

    def curvature(self) -> float:
        """Return the largest eigenvalue of ``X'X / N``, found in another pass; for many columns, a bound of it.

        The bound is a sum over the columns of the files. As each row has one category, only the largest term of a
        column's categories counts.
        """
        rows, columns = self.shape
        if columns <= _SQUARE:
            ends = np.linspace(0, rows, min(rows, 64) + 1).astype(int).tolist()
            parts = map_in_processes(partial(_gram, self), list(pairwise(ends)))
            gram = np.sum([np.frombuffer(piece).reshape(columns, columns) for piece in parts], axis=0)
            return float(np.linalg.eigvalsh(gram)[-1]) / rows
        moments, scaling = self._moments, self.design.scaling
        center, scale = (0.0, 1.0) if scaling is None else (scaling.center, scaling.scale)
        squares = (moments.deviation / rows + (moments.mean - center) ** 2) / np.square(scale)
        kinds = self.design.encoding.columns
        if kinds and not np.any(center * self.design.encoding.categorical):  # no row has two categories of a column
            starts = np.cumsum([0, *(len(column.categories) or 1 for column in kinds[:-1])])
            squares = np.maximum.reduceat(squares, starts)
        return float(squares.sum()) + self.design.intercept


def _gram(rows: ShardRows, piece: tuple[int, int]) -> bytes:
    """Return ``X'X`` of rows from the first to before the last number of ``piece``."""
    total = np.zeros((rows.shape[1],) * 2)
    for X, _ in rows.by_block(*piece):
        square = X.T @ X
        total += square.toarray() if hasattr(square, "toarray") else square
    return total.tobytes()


def _labels(survey_result: Survey, task: Task | Literal["auto"], where: str) -> tuple[Labels, Task]:
    """Return the classes, and the task according to :func:`~anyk.problems.data.dataset.read_target`."""
    place_text = f"the target of {where}"
    if survey_result.labels is None:
        if task in ("binary", "multiclass"):
            raise BadInput(
                f"{place_text} has more than 10,000 different values, which are not classes; use task=regression"
            )
        return (), "regression"
    is_text = bool(survey_result.labels) and isinstance(survey_result.labels[0], str)
    values = np.array(survey_result.labels, dtype=object if is_text else np.float64)
    few = 2 * len(values) <= survey_result.rows
    _, task_read, _ = read_target(np.repeat(values, 2) if few else values, task, place_text)
    return (tuple(survey_result.labels) if task_read != "regression" else ()), task_read


def _encoding(shards: Shards, survey_result: Survey, fill: str | None, where: str) -> tuple[Encoding, Moments, int]:
    """Return the encoding of columns as numbers, the moments of the encoded columns, and their number."""
    rows, moments = float(survey_result.rows), survey_result.moments
    if not survey_result.names:
        _check_unnamed(moments, fill, where)
        return Encoding(), moments, len(moments.mean)
    names = survey_result.names
    places, target = places_of(shards, names, where)
    if not places:
        raise BadInput(f"{where} have no columns beside the target")
    columns, moments_of = [], []
    for number, index in enumerate(places):
        column_moments = Moments(*(values[number : number + 1] for values in moments))
        words = survey_result.words.get(index)
        if words is not None and _are_truths(words):
            column_moments, words = _of_truths(words), None
        column_name = f"column '{shown(names[index])}' of {where}"
        present = float(column_moments.present[0]) if words is None else float(sum(words.values()))
        _check_present(present, rows, column_name, filled=words is not None or fill is not None)
        if words is None:
            replacement = None if fill is None else float(column_moments.mean[0])
            columns.append(Column(names[index], fill=replacement, truth=_are_ones_and_zeros(column_moments)))
            moments_of.append(_filled(column_moments, rows))
        else:
            check_categories(words, column_name)
            counts = {**words, "": rows - present} if present < rows else dict(words)
            columns.append(Column(names[index], tuple(sorted(counts)), "" if "" in counts or fill else None))
            moments_of.append(_of_counts([counts[word] for word in sorted(counts)], rows))
    encoding = Encoding(
        tuple(columns),
        bool(survey_result.header),
        label=names[target],
        file_columns=0 if survey_result.header else len(names),
    )
    return encoding, Moments(*map(np.concatenate, zip(*moments_of, strict=True))), encoding.width


def _check_unnamed(moments: Moments, fill: str | None, where: str) -> None:
    """Raise BadInput for a setting that needs columns with names, and for arrays without columns."""
    if fill is not None:
        raise BadInput(f"fill={fill} is for Parquet and CSV files; {where} have no columns of their own")
    if not len(moments.mean):
        raise BadInput(f"{where} have no columns beside the target")


def _check_present(present: float, rows: float, where: str, *, filled: bool) -> None:
    """Raise BadInput for a column without values, or without some, unless missing ones are ``filled``."""
    if not present:
        raise BadInput(f"{where} has no value; leave it out (columns=)")
    if present < rows and not filled:
        raise BadInput(
            f"{where} is missing or not finite in {int(rows - present):,} rows; remove or fill them (fill=mean)"
        )


def _are_truths(words: Mapping[str, int]) -> bool:
    return {word.lower() for word in words} <= {"true", "false"}


def _are_ones_and_zeros(column: Moments) -> bool:
    """Return whether all values of a column are 1 and 0: none is beyond them, and their sum counts those not 0."""
    low, high, present, nonzero, mean = (
        float(values[0]) for values in (column.low, column.high, column.present, column.nonzero, column.mean)
    )
    return low >= 0.0 and high <= 1.0 and abs(present * mean - nonzero) <= 1e-9 * present


def _of_truths(words: Mapping[str, int]) -> Moments:
    """Return the moments of a column of the words true and false, as 1 and 0."""
    return _of_counts([sum(count for word, count in words.items() if word.lower() == "true")], sum(words.values()))


def _filled(moments: Moments, rows: float) -> Moments:
    """Return the moments of a column after missing values are replaced by its mean."""
    nonzero = moments.nonzero + (rows - moments.present) * (moments.mean != 0)
    return moments._replace(present=np.array([rows]), nonzero=nonzero)


def _of_counts(counts: Sequence[float], rows: float) -> Moments:
    """Return the moments of columns with these numbers of ones, and zeros elsewhere."""
    ones = np.array(counts, dtype=float)
    share = ones / rows
    low, high = np.where(ones < rows, 0.0, 1.0), np.where(ones > 0, 1.0, 0.0)
    return Moments(
        present=np.full(len(ones), rows),
        nonzero=ones,
        mean=share,
        deviation=rows * share * (1.0 - share),
        low=low,
        high=high,
    )


class StreamRows(StreamSamples):
    """The rows of a linear model's stream, used in the place of ``X`` and ``y``.

    Samples are pairs (x, y): numbers of shape (columns,), and one number. ``classes``: the labels, None for values.
    """

    def __init__(
        self, stream: Stream, kind: str, classes: Array | None, *, intercept: bool, scaling: Scaling | None
    ) -> None:
        super().__init__(stream, lambda samples: Arrays(_stacked(samples), tuple))
        X, y = self.head.arrays
        self.dtype, self.features = np.dtype(X.dtype), int(X.shape[1])
        if scaling is not None:
            scaling = scaling.of_columns(self.features, "the stream's samples")
        self.scaling = scaling
        self.shape = len(self), self.features + intercept
        _targets(kind, classes, y)
        self._form = partial(self._rows, kind, classes, intercept, scaling)

    def _rows(
        self, kind: str, classes: Array | None, intercept: bool, scaling: Scaling | None, samples: list[Any]
    ) -> Arrays:
        """Return samples in the columns of the model."""
        X, y = _stacked(samples)
        if X.shape[1] != self.features:
            raise RunFailed(f"samples of the stream have {X.shape[1]} columns, the first ones {self.features}")
        X = model_columns(X.astype(self.dtype, copy=False), scaling, intercept)
        return Arrays([X, _targets(kind, classes, y).astype(self.dtype, copy=False)], tuple)


class LinearBatches(Batches):
    """A linear model's shards or stream in partitions; see :class:`~anyk.problems.base.Partitions`.

    Only the blocks read last are in memory. Supports are all coordinates.
    """

    def __init__(
        self,
        kind: str,
        outputs: int,
        data: ShardRows | StreamRows,
        ends: Ends,
    ) -> None:
        super().__init__(data, ends, dimension=data.shape[1] * outputs, dtype=data.dtype)
        self.kind, self.outputs = kind, outputs

    def gradient_sum(self, w: Vector, chosen: PartitionSamples) -> Vector:
        """Return the gradient of the sum of losses, added up block by block."""
        W = as_matrix(w, self.outputs)
        total = np.zeros_like(W)
        for sample_batch in chosen.parts(self.most):
            X, y = sample_batch.batch
            total += X.T @ slope_of(self.kind, X @ W, y)
        return total.reshape(-1)

    def loss_sum(self, w: Vector, chosen: PartitionSamples) -> float:
        """Return the sum of losses, added up block by block."""
        W = as_matrix(w, self.outputs)
        batches = (sample_batch.batch for sample_batch in chosen.parts(self.most))
        return float(sum(losses_of(self.kind, X @ W, y).sum() for X, y in batches))


def _targets(kind: str, classes: Array | None, y: Array) -> Vector:
    """Return a stream's targets as the model needs them; raise :class:`~anyk.BadInput` for unknown labels."""
    values = y.astype(float)
    if not np.isfinite(values).all():
        raise BadInput("the stream's targets must be finite numbers")
    return values if classes is None else encode_labels(values, classes, kind, "the stream", "classes")


def _stacked(samples: list[Any]) -> list[Array]:
    """Return samples as rows and targets; raise :class:`~anyk.BadInput` if they are no such pairs."""
    must = "samples of a linear model's stream must be pairs (x, y), equally many numbers and a target"
    try:
        xs, ys = zip(*samples, strict=True)
        X, y = np.stack([np.asarray(x) for x in xs]), np.stack([np.asarray(target) for target in ys])
    except (TypeError, ValueError) as error:
        raise BadInput(f"{must}: {describe_error(error)}") from None
    if X.ndim != 2 or y.ndim != 1 or X.dtype.kind not in "biuf" or y.dtype.kind not in "biuf":
        raise BadInput(f"{must}, got x of shape {X.shape[1:]} ({X.dtype}) and y of shape {y.shape[1:]} ({y.dtype})")
    if not np.isfinite(X).all():
        raise BadInput("samples of the stream have values that are NaN or infinite; drop or fill those")
    return [X if X.dtype == np.float32 else X.astype(float, copy=False), y]


@dataclass(frozen=True, eq=False)
class ShardedData:
    """Shards with the training rows and, if any are held out, with the test rows; takes the place of a ``Dataset``."""

    X_train: Shards
    X_test: Shards | None
    task: Task
    rows: int
    intercept: bool
    standardize: bool
    fill: Literal["mean"] | None
    y_train = y_test = None  # the targets are in the files


@sources.register("shards")
def from_shards(
    *,
    files: str,
    target: str | None = None,
    task: Literal["auto", "binary", "multiclass", "regression"] = "auto",
    columns: tuple[str, ...] | None = None,
    header: Literal["auto", "yes", "no"] = "auto",
    fill: Literal["mean"] | None = None,
    intercept: bool = True,
    test: str = "last",
    cache_mb: float = 256.0,
    progress: Tell | None = None,
) -> ShardedData:
    """Files larger than memory, which only the workers that need their rows open: ``--data "train-*.parquet"``.

    ``files``: a path, a pattern or an address (``s3://bucket/train-*.parquet``, by fsspec) of files that are all
    Parquet or all CSV. ``test``: a pattern of the files to hold out; ``last`` (the last of several files) or ``none``.
    ``target``, ``task``, ``header`` and ``intercept``: as of data set ``file``. ``columns``: the columns to learn from,
    a/b/c. ``fill=mean``: replaces missing values by the mean. ``cache_mb``: the size of each worker's cache of blocks.
    Raises BadInput for files that cannot be used, with the reason.
    """
    addresses = [file.address for file in Shards(files).resolved_files]
    if test == "last":
        test_files = addresses[-1:] if len(addresses) > 1 else []
    else:
        test_files = [] if test == "none" else [file.address for file in Shards(test).resolved_files]
    train_files = [file for file in addresses if file not in test_files]
    if not train_files:
        raise BadInput(f"all files of '{files}' are held out (test={test}); none is left to train on")
    shards = partial(
        Shards, target=target, columns=columns, header={"yes": True, "no": False}.get(header), cache_mb=cache_mb
    )
    train = shards(train_files)
    rows = ShardRows.learned(train, task, intercept=intercept, fill=fill)
    design, number = rows.design, len(train_files)
    if progress is not None:
        among = f" ({listed(list(map(str, design.labels)))})" if design.labels else ""
        label = f", label '{design.encoding.label}'" if design.encoding.label else ""
        wide = f"{design.features:,} column{'s' * (design.features != 1)}" + " and an intercept" * intercept
        out = ", ".join(Path(file).name for file in test_files) or "nothing (test=FILES holds some out)"
        progress(
            f"{Path(files).name}: {rows_text(len(rows))} in {number} file{'s' * (number != 1)}, {wide}, "
            f"task {design.task}{among}{label}; held out: {out}"
        )
        for remark in _remarks(train, rows, task):
            progress(remark)
    held_out = shards(test_files) if test_files else None
    return ShardedData(
        X_train=train,
        X_test=held_out,
        task=design.task,
        rows=len(rows),
        intercept=intercept,
        standardize=intercept,
        fill=fill,
    )


def _remarks(shards: Shards, rows: ShardRows, task: str) -> Iterator[str]:
    """Yield sentences on columns whose reading their values put in doubt, as far as one pass over files tells."""
    encoding, facts = rows.design.encoding, vars(shards)["surveyed"]
    moments: Moments = facts.moments
    gaps = 0
    for number, column in enumerate(encoding.columns):
        name = shown(column.name)
        if column.categories:
            yield f"one-hot encoding the text column '{name}': {len(column.categories):,} different values"
            code = next((word for word in column.categories if is_code(word)), None)
            if code is not None:
                yield f"column '{name}' has codes such as '{shown(code)}', so its values are categories"
            continue
        if not moments.present[number]:  # a column of true and false
            continue
        gaps += len(rows) - int(moments.present[number])
        low, high = float(moments.low[number]), float(moments.high[number])
        extremes = np.array([low, high])
        if long_numbers(extremes):
            yield (
                f"a guess: column '{name}' is learned from, although it has numbers such as "
                f"{max(low, high, key=abs):.0f}, of which several may be one float64; columns= leaves it out"
            )
        elif low < high and like_dates_in_digits(extremes):
            yield (
                f"a guess: column '{name}' is learned from as numbers, although they look like dates, from "
                f"{low:.0f} to {high:.0f}; columns= leaves it out"
            )
    if gaps:
        yield f"{gaps:,} missing value{'s' * (gaps != 1)} filled in by mean"
    labels = rows.design.labels
    if task == "auto" and rows.design.task == "multiclass" and not isinstance(labels[0], str):
        yield guess_of_classes(len(labels), f"'{shown(encoding.label)}'")


def as_shards(data: str) -> str | None:
    """Return the spec of shards that ``data`` names, with paths that are valid in any folder; None for other data.

    >>> as_shards("s3://bucket/train-*.parquet"), as_shards("digits")
    ('shards:files=(s3://bucket/train-*.parquet)', None)
    """
    stripped = data.strip()
    if stripped.partition(":")[0] == "shards":
        values = parse_spec(stripped)[1]
        values["files"] = values.pop("", values.get("files", ""))
    elif "://" in stripped or any(sign in stripped.partition(":")[0] for sign in "*?["):
        values = {"files": stripped}
    else:
        return None
    for key in ("files", "test"):
        if values.get(key) and not (key == "test" and values[key] in ("last", "none")):
            values[key] = f"({values[key] if '://' in values[key] else absolute(values[key])})"
    return with_keys("shards", {key: value for key, value in values.items() if value})
