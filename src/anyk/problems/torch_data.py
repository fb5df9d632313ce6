"""Training data of torch problems: arrays and data sets of items, as tensors of chosen rows."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from anyk import keyed
from anyk.errors import BadInput, RunFailed
from anyk.problems.base import Index, some_rows
from anyk.problems.torch_random import kept_generators, seed_all

if TYPE_CHECKING:
    import torch

Rows = slice | Index


class _Alias:
    """A read-only array as one that may be written: torch has no read-only tensors, and warns."""

    def __init__(self, array: NDArray[Any]) -> None:
        self.__array_interface__ = array.__array_interface__ | {"data": (array.ctypes.data, False)}
        self._array = array


def tensor_over(array: NDArray[Any]) -> torch.Tensor:
    """A tensor on an array's own memory; nobody may write to one that was read-only."""
    import torch

    return torch.from_numpy(array if array.flags.writeable else np.asarray(_Alias(array)))


class Arrays:
    """Samples as arrays with equal first axis: the module's inputs, then the targets."""

    def __init__(self, arrays: Sequence[Any], name: str, dtype: np.dtype[Any]) -> None:
        if len(arrays) < 2:
            raise BadInput(f"{name} must be inputs and targets, (X, y), got {len(arrays)} array")
        self.arrays = [_array(array, name, dtype) for array in arrays]
        if self.arrays[-1].dtype.kind in "iu":
            self.arrays[-1] = self.arrays[-1].astype(np.int64, copy=False)  # what torch's losses take classes as
        lengths = [len(array) for array in self.arrays]
        if len(set(lengths)) > 1:
            raise BadInput(f"the arrays of {name} must have one entry for each sample, got {lengths} entries")

    def __len__(self) -> int:
        return len(self.arrays[0])

    def tensors(self, rows: Rows, device: torch.device | str, key: int = 0) -> tuple[torch.Tensor, ...]:
        """Some samples; on the CPU those of a slice lie where the arrays do. Nothing is drawn, so ``key`` is unused."""
        del key
        return tuple(tensor_over(array[rows]).to(device) for array in self.arrays)

    def some(self, samples: int, of: str) -> Arrays:
        """So many of the samples; see :func:`~anyk.problems.base.some_rows`."""
        made, rows = copy(self), some_rows(len(self), samples, of)
        made.arrays = [array[rows] for array in self.arrays]
        return made

    @property
    def labels(self) -> NDArray[Any] | None:
        """The targets where they are one whole number each, shape (samples,), else None."""
        targets = self.arrays[-1]
        return targets if targets.dtype.kind in "biu" and targets.ndim == 1 else None

    def arranged(self, order: Index) -> Arrays:
        """The same samples in another order."""
        made = copy(self)
        made.arrays = [array[order] for array in self.arrays]
        return made


class Items:
    """Samples of a map-style data set, read when they are needed: ``data[i]`` is (inputs …, target)."""

    labels: None = None  # reading them would read everything

    def __init__(self, data: Any) -> None:
        self.data = data
        self._rows: Index | None = None  # those of the data set's items that are samples, if not all

    def __len__(self) -> int:
        return len(self.data) if self._rows is None else len(self._rows)

    def some(self, samples: int, of: str) -> Items:
        """So many of the samples, which keep their numbers; see :func:`~anyk.problems.base.some_rows`."""
        made, rows = Items(self.data), some_rows(len(self), samples, of)
        made._rows = self._rows if isinstance(rows, slice) else rows
        return made

    def tensors(self, rows: Rows, device: torch.device | str, key: int = 0) -> tuple[torch.Tensor, ...]:
        """Some samples, as torch's own loader puts them together.

        What an item draws (augmentation) from torch, NumPy's global generator or ``random`` is determined by ``key``
        and its number: it does not depend on who reads it, nor on what was read before.
        """
        import torch
        from torch.utils.data import default_collate

        numbers = range(rows.start, rows.stop) if isinstance(rows, slice) else rows.tolist()
        if self._rows is not None:
            numbers = self._rows[list(numbers)].tolist()
        items = []
        with kept_generators([]) as generators:
            for i in numbers:
                seed_all(generators, keyed.integer(key, "item", i))
                try:
                    items.append(self.data[i])
                except Exception as error:
                    raise RunFailed(
                        f"item {i} of the data set cannot be read: {type(error).__name__}: {error}"
                    ) from error
        parts = default_collate(items) if isinstance(items[0], (tuple, list)) else ()
        if len(parts) < 2 or not all(isinstance(part, torch.Tensor) for part in parts):
            raise BadInput(
                f"an item of a data set must be a tuple of tensors or numbers, the inputs and then the target, got "
                f"{_described(items[0])}; wrap the data set in one whose items are such tuples"
            )
        return tuple(part.to(device) for part in parts)


def _described(item: Any) -> str:
    """An item of a data set in a few words."""
    if isinstance(item, (tuple, list)):
        return f"{type(item).__name__} of {', '.join(type(part).__name__ for part in item) or 'nothing'}"
    keys = f" with keys {', '.join(map(repr, item))}" if isinstance(item, dict) else ""
    return f"{type(item).__name__}{keys}"


def _array(array: Any, name: str, dtype: np.dtype[Any]) -> NDArray[Any]:
    """As NumPy, so that it is sent once to a machine; numbers with a fraction as the parameters have them."""
    import torch

    if isinstance(array, torch.Tensor):
        array = array.detach().cpu()
        array = (array.to(torch.float32) if array.dtype in (torch.bfloat16, torch.float16) else array).numpy()
    try:
        array = np.asarray(array)
    except ValueError:  # rows of different lengths
        array = np.array(None)
    if array.ndim == 0 or array.dtype.kind not in "biuf":
        raise BadInput(
            f"{name} must hold arrays of numbers with a row for each sample, got {array.dtype} {array.shape}"
        )
    if array.dtype.kind == "f":
        if not np.isfinite(array).all():
            raise BadInput(f"{name} must hold finite numbers")
        array = array.astype(dtype, copy=False)
    return np.ascontiguousarray(array)


def samples_of(data: Any, name: str, dtype: np.dtype[Any]) -> Arrays | Items:
    """A user's data as one of the two kinds; raises :class:`~anyk.errors.BadInput` where it is neither."""
    import torch

    if hasattr(data, "tensors") and isinstance(data.tensors, tuple):  # torch's TensorDataset
        data = data.tensors
    listed = isinstance(data, list) and all(isinstance(part, (np.ndarray, torch.Tensor)) for part in data)
    if isinstance(data, tuple) or listed:
        return Arrays(data, name, dtype)
    if not (hasattr(data, "__getitem__") and hasattr(data, "__len__")) or isinstance(
        data, (str, dict, np.ndarray, torch.Tensor)
    ):
        raise BadInput(
            f"{name} must be a pair (X, y) of tensors or arrays, or a data set with a length and items by number, got "
            f"{type(data).__name__}"
        )
    if not len(data):
        raise BadInput(f"{name} is empty")
    return Items(data)
