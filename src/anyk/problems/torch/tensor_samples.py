"""Training data of torch problems: arrays and data sets of items, as tensors of chosen rows."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from anyk.base.arrays import Array, DType
from anyk.base.errors import BadInput, RunFailed, as_bad_input, describe_error, explaining
from anyk.base.keyed import keyed_integer
from anyk.base.plain import ByName
from anyk.problems.base import Index, some_rows
from anyk.problems.data.sample_batches import Arrays, Batch, NamedForm, Rows, Samples
from anyk.problems.data.shards.shard_samples import ShardSamples
from anyk.problems.data.shards.sources import Shards
from anyk.problems.data.streams import ENDS, Stream, StreamSamples
from anyk.problems.generators import preserved_generators, seed_all
from anyk.problems.network_problem import check_lengths, number_array
from anyk.problems.torch.loaders import has_plain_tensors

if TYPE_CHECKING:
    import torch


class _Alias:
    """A read-only array that is declared writable, as torch warns of others: it has no read-only tensors."""

    def __init__(self, array: Array) -> None:
        self.__array_interface__ = array.__array_interface__ | {"data": (array.ctypes.data, False)}
        self._array = array


def tensor_over(array: Array) -> torch.Tensor:
    """Return a tensor on an array's own memory; if the array is read-only, it must not be written to."""
    import torch

    return torch.from_numpy(array if array.flags.writeable else np.asarray(_Alias(array)))


_LABELS = ("labels", "label")  # names of the targets in data sets of dictionaries


class Tensors(NamedForm):
    """The form of batches of tensors: inputs and then the targets as a tuple, or, with ``keys``, by name."""

    def __call__(self, arrays: Sequence[Array]) -> Batch:
        return super().__call__(list(map(tensor_over, arrays)))  # on the CPU, rows of a slice lie where the arrays do

    def target_places(self, count: int) -> list[int]:
        """Return which of ``count`` arrays hold targets."""
        if self.keys is None:
            return [count - 1]
        return [index for index, key in enumerate(self.keys) if key in _LABELS]


def checked_arrays(arrays: Sequence[Any], name: str, dtype: DType, keys: Sequence[Any] | None = None) -> list[Array]:
    """Return NumPy arrays of the number types that a module takes; integer targets are int64."""
    if len(arrays) < (2 if keys is None else 1):
        raise BadInput(f"{name} must be inputs and targets, (X, y), got {len(arrays)} array")
    checked = [_array(array, name, dtype) for array in arrays]
    for index in Tensors(keys).target_places(len(checked)):
        if checked[index].dtype.kind in "iu":
            checked[index] = checked[index].astype(np.int64, copy=False)  # torch's losses demand this type
    check_lengths(checked, name)
    return checked


def labels_of(data: Samples) -> Array | None:
    """Return the targets if they are in memory and one integer each, shape (samples,), else None."""
    targets: list[Array] = []
    match data:
        case Arrays(form=Tensors() as form, arrays=arrays):
            targets = [arrays[index] for index in form.target_places(len(arrays))]
    has_labels = len(targets) == 1 and targets[0].dtype.kind in "biu" and targets[0].ndim == 1
    return targets[0] if has_labels else None


def _as_arrays(dtype: DType, named: dict[str, Array], where: str) -> dict[str, Array]:
    """Return a block's arrays in the form of :func:`checked_arrays`."""
    keys = None if next(iter(named)).isdigit() else list(named)
    return dict(zip(named, checked_arrays(list(named.values()), where, dtype, keys), strict=True))


class CannotCombine(RunFailed):
    """The error for items that cannot be combined, although others may be."""


class ItemReading(NamedTuple):
    """The conversion of items to samples, and of samples to a batch.

    ``collate``: combines samples, by default as torch does. ``free``: a batch may have any type. ``transform``: turns
    an item into a training sample, ``eval_transform`` into one for evaluation. ``as_many``: whether a batch must have
    as many samples as items, because its loss is a mean.
    """

    collate: Callable[[list[Any]], Any] | None = None
    free: bool = False
    transform: Callable[[Any], Any] | None = None
    eval_transform: Callable[[Any], Any] | None = None
    as_many: bool = False

    @property
    def evaluated(self) -> ItemReading:
        """The conversion for evaluation."""
        return self._replace(transform=self.eval_transform)

    def refuse_arrays(self, name: str, what: str) -> None:
        """Raise :class:`~anyk.BadInput` for functions of items if the data has no items."""
        which = "eval_transform" if self.transform is self.eval_transform else "transform"
        options = {"collate_fn": self.collate, which: self.transform}
        for function, value in options.items():
            if value is not None:
                raise BadInput(f"{function} is for items of a data set, and {name} is {what}; leave it out")


class Items(Samples):
    """Samples of a map-style data set, read when they are needed: ``data[i]`` is (inputs …, target)."""

    takes_weights = True
    processes = 0  # number of processes that each worker starts to read items
    _readers: _Readers | None = None

    def __init__(self, data: object, reading: ItemReading) -> None:
        self.mark, self._reading = data, reading
        self._rows: Index | None = None  # the items of the data set that are samples, if not all

    def __len__(self) -> int:
        return len(self.mark) if self._rows is None else len(self._rows)

    def __getstate__(self) -> ByName:
        return self.__dict__ | {"_readers": None}

    @property
    def code(self) -> Mapping[str, object]:
        reading = self._reading
        return {"the data set": self.mark, "collate_fn": reading.collate, "transform": reading.transform}

    def some(self, samples: int, of: str) -> Items:
        """Return ``samples`` of the items, which keep their numbers."""
        some, rows = copy(self), some_rows(len(self), samples, of)
        some._rows = self._rows if isinstance(rows, slice) else rows
        some.weights = self.weights_of(rows)
        return some

    @property
    def evaluated(self) -> Items:
        """The same samples for evaluation, read by this process alone."""
        if self._reading.evaluated == self._reading:
            return self
        evaluated = copy(self)
        evaluated._reading, evaluated.processes, evaluated._readers = self._reading.evaluated, 0, None
        return evaluated

    def batch(self, rows: Rows, key: int = 0) -> Batch:
        """Return some samples, combined as by torch's own loader.

        ``key`` and an item's number determine its draws (augmentation) from torch, NumPy's global generator and
        ``random``: they depend neither on the process that reads it, nor on earlier items.
        """
        numbers = range(rows.start, rows.stop) if isinstance(rows, slice) else rows.tolist()
        if self._rows is not None:
            numbers = self._rows[list(numbers)].tolist()
        items = self._read(key, numbers)
        with preserved_generators([]) as generators:
            seed_all(generators, keyed_integer(key, "together", numbers[-1]))
            return self._together(items, numbers)

    def _read(self, key: int, numbers: Sequence[int]) -> list[Any]:
        """Return items; in a worker's process they are read by further processes, if the user wants these."""
        transform = self._reading.transform
        if not self.processes or "ANYK_WORKER" not in os.environ:
            return _read_items(self.mark, transform, key, numbers)
        self._readers = self._readers or _Readers((self.mark, transform), self.processes)
        try:
            return self._readers.read(key, numbers)
        except RuntimeError:  # a process has ended
            self._readers = None
            raise

    def _together(self, items: list[Any], numbers: Sequence[int]) -> Batch:
        """Return items as a batch."""
        import torch

        collate, free = self._reading.collate, self._reading.free
        if collate is None and not free and not isinstance(items[0], (tuple, list)):
            raise BadInput(f"an item of a data set {_PAIR}, got {_described(items[0])}; {_OTHERWISE}")
        batch = self._collated(items, numbers)
        if self._reading.as_many and collate is not None:
            self._check_size(batch, len(items))
        if free:
            return batch
        parts = batch if isinstance(batch, (tuple, list)) else ()
        if len(parts) < 2 or not all(isinstance(tensor, torch.Tensor) for tensor in parts):
            what, got = ("an item of a data set", items[0]) if collate is None else ("a batch", batch)
            raise BadInput(f"{what} {_PAIR}, got {_described(got)}; {_OTHERWISE}")
        return tuple(parts)

    def _collated(self, items: list[Any], numbers: Sequence[int]) -> Any:
        """Return what the user's function, or torch's, makes of items."""
        from torch.utils.data import default_collate

        collate = self._reading.collate
        for i, item in zip(numbers, items, strict=True):
            if item is None and collate is None and i != numbers[0]:
                raise RunFailed(f"item {i} of the data set is None")
        try:
            batch = (collate or default_collate)(items)
        except Exception as error:
            by = "torch's default_collate" if collate is None else "collate_fn"
            reason = f"({by}): {describe_error(error)}"
            raise CannotCombine(f"items {_listed(numbers)} of the data set cannot be put together {reason}") from error
        return dict(batch) if isinstance(batch, Mapping) else batch  # tokenizers have mappings of their own

    def _check_size(self, batch: Batch, items: int) -> None:
        """Refuse a batch with another number of samples than items: its mean would have a wrong weight."""
        import torch
        from torch.utils import _pytree as pytree

        parts = batch[-1] if isinstance(batch, (tuple, list)) and batch and not self._reading.free else batch
        tensors = [leaf for leaf in pytree.tree_leaves(parts) if isinstance(leaf, torch.Tensor)]
        lengths = sorted({len(tensor) for tensor in tensors if tensor.dim()})
        if lengths and items not in lengths:
            sizes = " or ".join(map(str, lengths))
            raise BadInput(
                f"collate_fn makes a batch of {sizes} samples of {items} items, so that the mean of its loss would "
                f"count as that of {items}; give count=…, a function of a batch that returns the number of terms in "
                "its mean, or a loss that is a sum, with reduction='sum'"
            )


_PAIR = "must be a tuple of tensors or numbers, the inputs and then the target"
_OTHERWISE = "wrap the data set in one whose items are such tuples, or give a loss(module, batch), which takes any"


def _listed(numbers: Sequence[int]) -> str:
    """Return some of the numbers of items, as text."""
    few = ", ".join(map(str, numbers[:6]))
    return few if len(numbers) <= 6 else f"{few}, … ({len(numbers)})"


def _described(item: object) -> str:
    """Return an item of a data set in a few words."""
    if isinstance(item, (tuple, list)):
        return f"{type(item).__name__} of {', '.join(type(element).__name__ for element in item) or 'nothing'}"
    keys = f" with keys {', '.join(map(repr, item))}" if isinstance(item, dict) else ""
    return f"{type(item).__name__}{keys}"


def _array(array: object, name: str, dtype: DType) -> Array:
    """Return a NumPy array, which is sent once to a machine; floating-point numbers get the parameters' type."""
    import torch

    if isinstance(array, torch.Tensor):
        with as_bad_input(f"{name} has a tensor that is no plain array of numbers", Exception):
            array = array.detach().cpu()
            array = (array.to(torch.float32) if array.dtype in (torch.bfloat16, torch.float16) else array).numpy()
    return number_array(array, name, dtype)


def samples_of(data: object, name: str, dtype: DType, reading: ItemReading) -> Samples:
    """Return a user's training data as samples; raise :class:`~anyk.BadInput` if that is impossible."""
    from torch.utils.data import IterableDataset

    # the stream of an iterable data set is the data set itself: it draws from the global generators, if at all
    stream = Stream(lambda _partition, _seed: data) if isinstance(data, IterableDataset) else data
    if isinstance(stream, Stream):
        try:
            return StreamSamples(stream, partial(Items, reading=reading))
        except BadInput as error:
            if stream is data:
                raise
            raise BadInput(
                f"{name} is an IterableDataset, which every mini-batch starts anew, as an anyk.data.Stream: {error}; "
                "if it is finite, give its samples as a list or a map-style data set"
            ) from None
    return finite_samples_of(data, name, dtype, reading)


def finite_samples_of(
    data: Any, name: str, dtype: DType, reading: ItemReading, training: Samples | None = None
) -> Samples:
    """Return the same as :func:`samples_of`, but refuse streams; held-out shards have the columns of ``training``."""
    from torch.utils.data import IterableDataset

    if isinstance(data, Stream | IterableDataset):
        raise BadInput(ENDS)
    if isinstance(data, Shards):
        reading.refuse_arrays(name, "shards of arrays")
        trained = training if isinstance(training, ShardSamples) else None
        samples = ShardSamples(data, partial(_as_arrays, dtype), Tensors, training=trained)
        if samples.named and not reading.free:
            raise BadInput(f"the files of {name} hold arrays by name; {_NAMED}")
        return samples
    in_memory = _arrays_of(data, name, dtype, reading)
    return _items_of(data, name, reading) if in_memory is None else in_memory


def _arrays_of(data: Any, name: str, dtype: DType, reading: ItemReading) -> Arrays | None:
    """Return a tuple, list or dictionary of arrays or tensors, or a data set of tensors, as samples; else None."""
    import torch

    if reading.collate is None and reading.transform is None and has_plain_tensors(data):
        data = data.tensors
    listed = isinstance(data, list) and all(isinstance(column, (np.ndarray, torch.Tensor)) for column in data)
    listed = listed and reading.collate is None and reading.transform is None  # else its tensors are items
    if isinstance(data, (tuple, Mapping)):
        reading.refuse_arrays(name, "arrays")
    if isinstance(data, tuple) or listed:
        return Arrays(checked_arrays(data, name, dtype), Tensors(None))
    if isinstance(data, Mapping):
        if not reading.free:
            raise BadInput(f"{name} must be a pair (X, y) of tensors or arrays, got {type(data).__name__}; {_NAMED}")
        return Arrays(checked_arrays(list(data.values()), name, dtype, list(data)), Tensors(list(data)))
    return None


def _items_of(data: Any, name: str, reading: ItemReading) -> Items:
    """Return the items of a map-style data set as samples."""
    import torch

    alone = isinstance(data, (str, np.ndarray, torch.Tensor))
    if alone or not (hasattr(data, "__getitem__") and hasattr(data, "__len__")):
        iterated = hasattr(data, "__iter__") and not alone and name != "held_out"
        raise BadInput(
            f"{name} must be a pair (X, y) of tensors or arrays, or a data set with a length and items by number, got "
            f"{type(data).__name__}{_ITERATED if iterated else ''}"
        )
    with explaining(f"{name} cannot tell its length"):
        length = len(data)
    if not length:
        raise BadInput(f"{name} is empty")
    return Items(data, reading)


_ITERATED = "; of samples that are iterated make an anyk.data.Stream"
_NAMED = "arrays by name go with a loss(module, batch), whose first parameter is called 'module' or 'model'"


def _read_items(data: Any, transform: Callable[[Any], Any] | None, key: int, numbers: Sequence[int]) -> list[Any]:
    """Return items of a data set, changed by ``transform``, if this is not None.

    ``key`` and an item's number determine its draws from the global generators.
    """
    items = []
    with preserved_generators([]) as generators:
        for i in numbers:
            seed_all(generators, keyed_integer(key, "item", i))
            try:
                items.append(data[i] if transform is None else transform(data[i]))
            except Exception as error:
                raise RunFailed(f"item {i} of the data set cannot be read: {describe_error(error)}") from error
    return items


_PATIENCE = 5.0  # seconds for a process that reads items to end


class _Readers:
    """Processes that call :func:`_read_items`; they end with this object or its process.

    They are joined by pipes, since queues and locks of ``multiprocessing`` have names in the file system, which stay
    there if a worker is killed. ``source``: a data set, and the function that changes its items, or None.
    """

    def __init__(self, source: tuple[Any, Callable[[Any], Any] | None], processes: int) -> None:
        import cloudpickle

        context = multiprocessing.get_context("spawn")
        self._pipes: list[Any] = []
        readers: list[Any] = []
        body = cloudpickle.dumps(source)  # by value where the classes are of a script or notebook
        for _ in range(processes):
            own_end, other = context.Pipe()
            with _unnamed_main():
                reader = context.Process(target=_read_for, args=(other, body), daemon=True)
                readers.append(reader)
                reader.start()
            other.close()
            self._pipes.append(own_end)
        weakref.finalize(self, _end_readers, self._pipes, readers)

    def read(self, key: int, numbers: Sequence[int]) -> list[Any]:
        items: list[Any] = [None] * len(numbers)
        pipes = self._pipes[: len(numbers)]
        try:
            for first, pipe in enumerate(pipes):
                pipe.send((key, list(numbers[first :: len(pipes)])))
            for first, pipe in enumerate(pipes):
                items[first :: len(pipes)] = pipe.recv()
        except (EOFError, OSError) as error:
            raise RuntimeError("a process that reads items has ended") from error
        for error_text, _ in items:
            if error_text:
                raise RunFailed(error_text)
        return [pickle.loads(body) for _, body in items]


def _end_readers(pipes: Sequence[Any], readers: Sequence[Any]) -> None:
    """Close the pipes, at which the processes end, and wait for them."""
    for pipe in pipes:
        pipe.close()
    for reader in readers:
        reader.join(_PATIENCE)


def _read_for(pipe: Any, body: bytes) -> None:
    """Answer requests for items, until the process that reads has ended: an error's sentence and an item's bytes."""
    import torch

    torch.set_num_threads(1)
    data, transform = pickle.loads(body)
    with suppress(EOFError, OSError):
        while True:
            key, numbers = pipe.recv()
            pipe.send([_read_item(data, transform, key, number) for number in numbers])


def _read_item(data: Any, transform: Callable[[Any], Any] | None, key: int, number: int) -> tuple[str, bytes]:
    """Return an error's sentence, and an item's bytes."""
    try:
        item = _read_items(data, transform, key, [number])[0]
    except RunFailed as error:
        return str(error), b""
    try:
        return "", pickle.dumps(item, protocol=5)
    except Exception:  # of a class of a script or notebook
        import cloudpickle

        return "", cloudpickle.dumps(item)


@contextmanager
def _unnamed_main() -> Iterator[None]:
    """Hide the main module, which new processes would import although it need not have a ``__main__`` guard."""
    main, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
