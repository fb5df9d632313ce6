"""Checks of what codes require and a user's code may lack: losses that add up, and equal gradients of replicas."""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from anyk.base.arrays import Array, DType, Floats, Vector
from anyk.base.errors import BadInput, describe_error
from anyk.base.keyed import keyed_generator
from anyk.problems.base import Index, cut
from anyk.problems.surroundings import Variables, differences

TOGETHER = 4  # samples that a loss is tried on together before a run
_TRIED = 32  # samples of the data set that a loss is tried on before a run
_NUDGES = 4  # times that a loss is computed from slightly changed numbers, to measure the effect of rounding
_BEYOND = 8.0  # a difference larger than this multiple of the effect of rounding is no rounding

# loss and gradient of the samples at some places, as one vector; the second argument is None or a nudge
Measure = Callable[[Index, int | None], Floats]


def trial_groups(arrays: Sequence[Array], samples: int, together: int = TOGETHER) -> Iterator[Index]:
    """Yield groups of rows on which a loss is tried: at most 32 rows from all parts of the data, 4 or fewer in a group.

    Among them are the rows with the least and the largest number of each of ``arrays`` (shape (samples, …)), as padding
    and other targets that a loss omits are often extreme. ``together``: rows in a group, at most.

    >>> [rows.tolist() for rows in trial_groups([np.array([3, 3, 0, 3, 3, 9])], samples=6)]
    [[2, 4, 5], [0, 1, 3]]
    """
    places = [0, min(1, samples - 1)]
    for array in arrays:
        width = array.size // samples
        places += [int(extreme(array)) // width for extreme in (np.argmin, np.argmax) if width]
    ends = cut(samples, min(samples, _TRIED))
    generator = keyed_generator(0, "telling", samples)
    places += generator.permutation(generator.integers(ends[:-1], ends[1:])).tolist()
    rows = generator.permutation(list(dict.fromkeys(places))[:_TRIED]).astype(np.intp)
    for group in np.array_split(rows, -(-len(rows) // min(together, TOGETHER))):
        yield np.sort(group)


def adds_up(
    measure: Measure,
    count: int,
    *,
    tolerance: float,
    singles: Index | None = None,
    vectors: int = 1,
    together: int = 1,
) -> bool:
    """Return whether the loss of ``count`` samples and its gradient are the sums over single samples, up to rounding.

    ``measure(places, nudge)`` returns the summed loss of the samples at these places, followed by its gradient, which
    consists of ``vectors`` vectors of equal length. With a ``nudge`` from 0 to 3 the numbers that the loss is computed
    from are changed by some roundings. ``singles``: the places of the samples that are measured one by one, by default
    all; if these are fewer, only gradients are compared. ``together``: samples that count as one, such as 2 if a single
    one has no loss. ``tolerance``: a relative difference that is always accepted.

    Returns True also where the answer cannot be found: if the loss draws random numbers, or is not finite.
    """
    every = np.arange(count)
    places = every[::together] if singles is None else singles

    def sizes(measured: Floats) -> Floats:
        """Return the absolute loss, and the norm of the longest vector of the gradient."""
        norms = np.linalg.norm(measured[1:].reshape(vectors, -1), axis=1)
        return np.array([abs(measured[0]), norms.max()])

    def measure_singly() -> tuple[Floats, Floats]:
        """Return the sum over single samples, one in memory at a time, and the sizes of each."""
        total, singles = np.zeros_like(of_all), []
        for index in places:
            single = measure(every[index : index + together], None)
            total += single
            singles.append(sizes(single))
        return total, np.array(singles)

    of_all = measure(every, None)
    if of_all[0] != measure(every, None)[0] or not np.isfinite(of_all).all():
        return True
    total, of_each = measure_singly()
    difference = sizes(total - of_all)
    if len(places) * together < count:
        difference[0] = 0.0  # the loss cannot be compared
    allowed = tolerance * np.max([sizes(of_all), *of_each], axis=0)
    if (difference <= allowed).all() or not np.array_equal(measure_singly()[1], of_each, equal_nan=True):
        return True
    rounding = np.max([sizes(measure(every, nudge) - of_all) for nudge in range(_NUDGES)], axis=0)
    return bool((difference <= np.fmax(allowed, _BEYOND * rounding)).all())  # False for NaN


def nudge_signs(size: int, nudge: int) -> Floats:
    """Return changes of ``size`` numbers in multiples of their rounding: 4 up or down."""
    return keyed_generator(nudge, "nudged", size).choice((-4.0, 4.0), size)


def not_a_sum(samples: str, advice: str, *, mean: bool) -> BadInput:
    """Return the error for a loss of several ``samples`` that is not the mean, or the sum, of their losses."""
    return BadInput(
        f"the loss of {samples} together is not the {'mean' if mean else 'sum'} of their losses: it weighs or leaves "
        f"out targets, or looks at several samples at once; {advice}"
    )


ROWS = 8  # samples of the partition whose gradient is tried before a run
SINGLE = 1e-6  # relative difference of marks that is below the precision of float32
_SKETCH = 64  # sums that represent a gradient
_PART = 1 << 16  # numbers processed at a time
_ADVICE = (
    "a code takes replicas of a partition for equal; draw from the global generator of torch, NumPy or Python, which "
    "are seeded alike on all workers, not from one of your own or the clock, or use a strategy without replicas "
    "('uncoded')"
)


_NAMED = 3  # variables that a sentence names at most
_REMEDY = (
    "a worker imports modules anew in the environment of its machine, and what this program has set in them since is "
    "not there: make the value an attribute of the loss or of the module, bind it with functools.partial, or name it "
    "in values="
)
_UNKNOWN_CAUSE = (
    "no variable that the loss, the module and the data set read is different, so they may draw from a generator of "
    "their own or read the clock, a file, a library's settings or a variable of the environment whose name they put "
    "together; give them what they need as attributes, and draw from the global generator of torch, NumPy or Python, "
    "which are seeded alike on all workers"
)


def trial_rows(most: int, samples: int) -> Index:
    """Return the rows of a trial: the first ones, or, if they are more than :data:`ROWS`, from all parts of the data.

    >>> trial_rows(8, 100).tolist(), trial_rows(9, 90).tolist()
    ([0, 1, 2, 3, 4, 5, 6, 7], [0, 11, 22, 33, 44, 55, 66, 77, 89])
    """
    if most <= ROWS or most >= samples:
        return np.arange(min(most, samples))
    return np.linspace(0, samples - 1, most).astype(np.intp)


class Trial(NamedTuple):
    """The driver's gradient of a few samples, with which workers compare theirs.

    ``sketch``: sums that represent the gradient. ``limit``: the relative difference that kernels may cause.
    ``variables``: what the user's code reads (:func:`~anyk.problems.surroundings.variables_of`).
    """

    sketch: Floats
    limit: float
    variables: Variables

    @classmethod
    def of(
        cls, compute: Callable[[], Floats], limit: float, *, replicas: bool, variables: Variables | None = None
    ) -> Trial | None:
        """Sketch a gradient twice; return None if it is not finite or fails, which the run itself will report.

        If the two differ, which a code's ``replicas`` of a partition must not, raises
        :class:`~anyk.BadInput`; other strategies may draw samples as they like, and nothing can be compared.
        """
        try:
            trial, second = cls(compute(), limit, variables or {}), compute()
        except Exception:
            return None
        if not np.isfinite(trial.sketch).all():
            return None
        apart = trial.apart(second)
        if apart <= limit:
            return trial
        if replicas:
            raise BadInput(
                f"the same samples at the same model gave two gradients that are {_percent(apart)} apart: {_ADVICE}"
            )
        return None

    def apart(self, sketch: Floats) -> float:
        """Estimate the norm of the difference from a gradient, relative to the larger of the two norms."""
        norm = max(np.linalg.norm(sketch), np.linalg.norm(self.sketch))
        return float(np.linalg.norm(sketch - self.sketch) / norm) if norm else 0.0

    def check(self, compute: Callable[[], Floats], variables: Callable[[], Variables]) -> None:
        """Raise :class:`~anyk.BadInput` if this worker's gradient is not the driver's, and name the cause."""
        try:
            apart = self.apart(compute())
        except Exception as error:  # the run itself reports it, but for its cause
            different = list(differences(self.variables, variables()))
            if different:
                raise BadInput(
                    f"it cannot compute a gradient that the driver can ({describe_error(error)}): "
                    f"{_cause_of(different)}"
                ) from None
            return
        if not apart <= self.limit:
            raise BadInput(
                f"it computes a gradient that is {_percent(apart)} apart from the driver's, of the same samples at the "
                f"same model: {_cause_of(list(differences(self.variables, variables())))}"
            )


def _cause_of(different: Sequence[tuple[str, str, str]]) -> str:
    """Return the likely cause of different gradients; ``different``: name, driver's and worker's value of variables."""
    if not different:
        return _UNKNOWN_CAUSE
    named = [f"{name} is {theirs} on the worker and {ours} on the driver" for name, ours, theirs in different[:_NAMED]]
    more = f", and {len(different) - _NAMED} more variables differ" if len(different) > _NAMED else ""
    return f"{', '.join(named)}{more}; {_REMEDY}"


class Sketch:
    """Signed ``sums`` of a gradient, made of its pieces.

    Norms of sketches and of their differences estimate the norms for gradients.
    """

    def __init__(self) -> None:
        self.sums = np.zeros(_SKETCH)
        self._part, self._signs = -1, np.empty(0, np.int8)  # those used last

    @classmethod
    def of(cls, gradient: Vector) -> Floats:
        """Return the sums of a gradient.

        >>> whole, g = Sketch(), np.arange(5.0)
        >>> whole.add(3, g[3:])
        >>> whole.add(0, g[:3])
        >>> bool((whole.sums == Sketch.of(g)).all())
        True
        """
        whole = cls()
        whole.add(0, gradient)
        return whole.sums

    def add(self, first: int, piece: Vector) -> None:
        """Take in the gradient's numbers from the coordinate ``first`` on."""
        last = first + piece.size
        for part in range(first // _PART, -(-last // _PART)):
            begin, end = max(first, part * _PART), min(last, (part + 1) * _PART)
            signs = self._signs_of(part)[begin - part * _PART : end - part * _PART]
            before = begin % _SKETCH
            padded = np.zeros(-(-(before + end - begin) // _SKETCH) * _SKETCH)
            np.multiply(piece[begin - first : end - first], signs, out=padded[before : before + end - begin])
            self.sums += padded.reshape(-1, _SKETCH).sum(axis=0)

    def _signs_of(self, part: int) -> NDArray[np.int8]:
        if part != self._part:
            signs = keyed_generator(0, "sketch", part).integers(0, 2, _PART, dtype=np.int8)
            self._part, self._signs = part, 2 * signs - 1
        return self._signs


def _parts(vector: Vector) -> Iterator[Vector]:
    for first in range(0, vector.size, _PART):
        yield vector[first : first + _PART]


class Mark:
    """A number that represents a gradient: a signed sum and the norm, as two float32; made of its pieces."""

    def __init__(self) -> None:
        self._signed = self._squares = 0.0

    @classmethod
    def of(cls, gradient: Vector) -> Mark:
        """Return the mark of a gradient.

        >>> whole, g = Mark(), np.arange(5.0)
        >>> whole.add(3, g[3:])
        >>> whole.add(0, g[:3])
        >>> whole.number == Mark.of(g).number
        True
        """
        whole = cls()
        whole.add(0, gradient)
        return whole

    def add(self, first: int, piece: Vector) -> None:
        """Take in the gradient's numbers from the coordinate ``first`` on."""
        with np.errstate(over="ignore", invalid="ignore"):
            for part in _parts(piece):
                wide = part.astype(float, copy=False)
                signed = float(wide[::2].sum() - wide[1::2].sum())
                self._signed += -signed if first % 2 else signed
                self._squares += float(wide @ wide)

    @property
    def number(self) -> int | None:
        """The number; None if the gradient is not finite."""
        with np.errstate(over="ignore", invalid="ignore"):
            pair = np.array([self._signed, np.sqrt(self._squares)], dtype=np.float32)
        return int(pair.view(np.int64)[0]) if np.isfinite(pair).all() else None


def marks_apart(one: int, other: int) -> float:
    """Return the difference of two marks, relative to the larger; for equal gradients far below :data:`SINGLE`."""
    (first, norm), (second, size) = np.array([one, other]).view(np.float32).reshape(2, 2).astype(float)
    larger = max(norm, size, abs(first), abs(second))
    return float(max(abs(first - second), abs(norm - size)) / larger) if larger else 0.0


def differing(one: int, other: int, partition: int, version: int, apart: float) -> str:
    """Return the sentence on two workers whose gradients of a partition differ."""
    return (
        f"at step {version} workers {one} and {other} computed gradients of partition {partition} that are "
        f"{_percent(apart)} apart: {_ADVICE}"
    )


def seed_of_draws(key: int, partition: int, rows: Array | None) -> int:
    """Return the seed, of 63 bits, of random numbers for a partition, or some of its rows.

    ``key``: the key of the model version. All workers with the partition draw the same numbers.
    """
    rows_key = -1 if rows is None else crc32(np.asarray(rows, dtype=np.int64).tobytes())
    return int(keyed_generator(key, "module", partition, rows_key).integers(2**63))


_EQUAL = 0.01  # standard deviation in place of 0
_PAGE, _SPARSE = 1 << 12, 4  # numbers of a sparse model that stand together, and the pages of which one has numbers
Scales = list[tuple[int, float, float]]  # size, mean and standard deviation of each parameter of a model


def scales_of(parameters: Sequence[Array]) -> Scales:
    """Return the scales of a model's parameters, of which empty ones are omitted.

    Equal numbers get a small deviation, as a gradient may vanish where all weights are 0.
    """
    return [(array.size, float(array.mean()), float(array.std()) or _EQUAL) for array in parameters if array.size]


def model_like(scales: Scales, dtype: DType, *, sparse: bool = False) -> Vector:
    """Return normal random numbers with the scales of the initial model's parameters.

    Workers use them in the place of that model, which is not sent before the run begins. ``sparse``: numbers stand on
    one page of four, and zeros elsewhere, which take no memory.
    """
    generator = keyed_generator(0, "trial model")
    size = sum(size for size, _, _ in scales)
    w = _untouched(size, dtype) if sparse else np.empty(size, dtype=dtype)
    step, filled = (_SPARSE * _PAGE, _PAGE) if sparse else (_PART, _PART)
    first = 0
    for size, mean, deviation in scales:
        parameter = w[first : first + size]
        for start in range(0, size, step):
            piece = parameter[start : start + filled]
            piece[:] = mean + deviation * generator.standard_normal(piece.size)
        first += size
    return w


def _untouched(size: int, dtype: DType) -> Vector:
    """Return zeros that take no memory until others are written, page by page; also if they are read."""
    if not hasattr(mmap, "MADV_NOHUGEPAGE"):
        return np.zeros(size, dtype=dtype)
    memory = mmap.mmap(-1, size * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a system without large pages, of which each would be touched
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(memory, dtype=dtype, count=size)


def _percent(apart: float) -> str:
    percent = 100.0 * apart
    return f"{percent:.0f} %" if percent >= 10.0 else f"{percent:.2g} %"
